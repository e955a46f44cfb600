#include "server/version.h"

#include <stdlib.h>

#define SAME_BYTES_MIN 1024u /* fewer equal bytes travel faster than they can be spoken of */

void sheaf_shelf_init(sheaf_shelf *shelf) {
    memset(shelf, 0, sizeof *shelf);
    pthread_mutex_init(&shelf->lock, NULL);
}

static void drop_locked(sheaf_version *version) {
    if (version == NULL || --version->references > 0) return;
    sheaf_model_free(&version->model);
    free(version->since);
    free(version);
}

void sheaf_shelf_fini(sheaf_shelf *shelf) {
    drop_locked(shelf->current);
    shelf->current = NULL;
    for (size_t i = 0; i < SHEAF_SHELF_PAST; i++) free(shelf->past[i].since);
    pthread_mutex_destroy(&shelf->lock);
}

static int has_same_bytes(const sheaf_model *a, const sheaf_model *b, size_t index) {
    const sheaf_model_tensor *of_a = &a->tensors[index], *of_b = &b->tensors[index];
    return memcmp(a->stream + of_a->data_offset, b->stream + of_b->data_offset, (size_t)of_a->tensor.bytes) == 0;
}

sheaf_status sheaf_version_make(sheaf_model *model, const uint8_t digest[SHEAF_DIGEST_BYTES], const sheaf_version *base,
                                sheaf_version **out) {
    sheaf_problem problem;
    sheaf_version *version = calloc(1, sizeof *version);
    *out = NULL;
    if (version != NULL) version->since = calloc(model->count + 1, sizeof *version->since);
    if (version == NULL || version->since == NULL) {
        free(version);
        return SHEAF_E_MEMORY;
    }
    version->number = base == NULL ? 1 : base->number + 1;
    int follows = base != NULL && sheaf_model_same_shape(&base->model, model, &problem) == SHEAF_OK;
    for (size_t i = 0; i < model->count; i++)
        version->since[i] = follows && has_same_bytes(&base->model, model, i) ? base->since[i] : version->number;
    version->model = *model;
    memset(model, 0, sizeof *model);
    memcpy(version->digest, digest, SHEAF_DIGEST_BYTES);
    version->references = 1;
    *out = version;
    return SHEAF_OK;
}

/* Remembers a version that readers may still hold; without memory it is forgotten, and devices fetch it whole. */
static void remember(sheaf_shelf *shelf, const sheaf_version *version) {
    sheaf_past_version *past = &shelf->past[shelf->next_past];
    size_t bytes = (version->model.count + 1) * sizeof *version->since;
    free(past->since);
    past->since = malloc(bytes);
    if (past->since == NULL) return;
    memcpy(past->since, version->since, bytes);
    memcpy(past->digest, version->digest, SHEAF_DIGEST_BYTES);
    shelf->next_past = (shelf->next_past + 1) % SHEAF_SHELF_PAST;
}

void sheaf_shelf_put(sheaf_shelf *shelf, sheaf_version *version) {
    pthread_mutex_lock(&shelf->lock);
    if (shelf->current != NULL) remember(shelf, shelf->current);
    drop_locked(shelf->current);
    shelf->current = version;
    pthread_mutex_unlock(&shelf->lock);
}

sheaf_version *sheaf_shelf_take(sheaf_shelf *shelf) {
    pthread_mutex_lock(&shelf->lock);
    sheaf_version *version = shelf->current;
    if (version != NULL) version->references++;
    pthread_mutex_unlock(&shelf->lock);
    return version;
}

void sheaf_shelf_drop(sheaf_shelf *shelf, sheaf_version *version) {
    pthread_mutex_lock(&shelf->lock);
    drop_locked(version);
    pthread_mutex_unlock(&shelf->lock);
}

/* The past version with that digest; the lock is held. */
static const uint64_t *find_past(const sheaf_shelf *shelf, sheaf_span held) {
    for (size_t i = 0; i < SHEAF_SHELF_PAST; i++) {
        const sheaf_past_version *past = &shelf->past[i];
        if (past->since != NULL && sheaf_span_equal(held, sheaf_span_of(past->digest, SHEAF_DIGEST_BYTES)))
            return past->since;
    }
    return NULL;
}

static uint64_t end_of(const sheaf_model *model, size_t index) {
    return model->tensors[index].data_offset + model->tensors[index].tensor.bytes;
}

/* Takes one run of tensors [start, end) of the stream, all equal or all not, into what has been found so far. */
static void take_run(sheaf_difference *found, uint64_t start, uint64_t end, int same, uint64_t offset) {
    same = same && end - start >= SAME_BYTES_MIN;
    if (same) found->same_total += end - start;
    if (end <= offset) return;
    if (same && start <= offset)
        found->same_bytes = end - offset;
    else if (same && found->same_bytes == 0 && found->plain_bytes == 0)
        found->plain_bytes = start - offset;
}

void sheaf_shelf_difference(sheaf_shelf *shelf, const sheaf_version *version, sheaf_span held, uint64_t offset,
                            sheaf_difference *out) {
    const sheaf_model *model = &version->model;
    *out = (sheaf_difference){0};
    if (sheaf_span_equal(held, sheaf_span_of(version->digest, SHEAF_DIGEST_BYTES))) {
        *out = (sheaf_difference){.same_bytes = model->stream_bytes - offset, .same_total = model->stream_bytes};
        return;
    }
    pthread_mutex_lock(&shelf->lock);
    const uint64_t *since = held.size == 0 ? NULL : find_past(shelf, held);
    /* Headers are the same in all versions of a job, so a tensor's bytes begin where those before it end. */
    uint64_t start = 0;
    for (size_t i = 0; since != NULL && i < model->count;) {
        int same = since[i] == version->since[i];
        size_t last = i;
        while (last + 1 < model->count && (since[last + 1] == version->since[last + 1]) == same) last++;
        take_run(out, start, end_of(model, last), same, offset);
        start = end_of(model, last);
        i = last + 1;
    }
    pthread_mutex_unlock(&shelf->lock);
    if (out->same_bytes == 0 && out->plain_bytes == 0) out->plain_bytes = model->stream_bytes - offset;
}
