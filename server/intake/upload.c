#include "server/intake/upload.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "server/queue.h"

#define READ_AGAIN_BYTES (64u << 20) /* a slice: about a tenth of a second of hashing */

struct sheaf_uploads {
    pthread_mutex_t lock; /* guards the counts, `used`, `taken`, `doomed` of every slot, and who may touch the rest */
    sheaf_uploads_options options;
    uint64_t arriving_bytes, kept_bytes;
    sheaf_upload slots[];
};

sheaf_status sheaf_uploads_make(const sheaf_uploads_options *options, sheaf_uploads **out) {
    *out = NULL;
    sheaf_uploads *uploads = calloc(1, sizeof *uploads + options->maximum * sizeof uploads->slots[0]);
    if (uploads == NULL) return SHEAF_E_MEMORY;
    pthread_mutex_init(&uploads->lock, NULL);
    uploads->options = *options;
    for (uint32_t i = 0; i < options->maximum; i++) {
        uploads->slots[i].table = uploads;
        uploads->slots[i].part.fd = -1;
    }
    *out = uploads;
    return SHEAF_OK;
}

static sheaf_spool_part file_of(const sheaf_update_statement *statement) {
    const sheaf_spool_part file = {statement->round, statement->client, statement->payload_digest};
    return file;
}

/* Frees a slot; the lock is held. */
static void release(sheaf_upload *upload) {
    if (upload->part.fd >= 0) {
        const sheaf_spool_part file = file_of(&upload->statement);
        sheaf_part_close(&upload->part);
        sheaf_spool_forget(upload->table->options.spool, &file);
    }
    sheaf_part_close(&upload->part);
    upload->table->arriving_bytes -= upload->statement.payload_bytes;
    upload->used = upload->taken = upload->doomed = 0;
}

void sheaf_uploads_free(sheaf_uploads *uploads) {
    if (uploads == NULL) return;
    for (uint32_t i = 0; i < uploads->options.maximum; i++) sheaf_part_close(&uploads->slots[i].part);
    pthread_mutex_destroy(&uploads->lock);
    free(uploads);
}

static sheaf_upload *find(sheaf_uploads *uploads, const char *client) {
    for (uint32_t i = 0; i < uploads->options.maximum; i++) {
        sheaf_upload *upload = &uploads->slots[i];
        if (upload->used && strcmp(upload->statement.client, client) == 0) return upload;
    }
    return NULL;
}

static sheaf_upload *find_free(sheaf_uploads *uploads) {
    for (uint32_t i = 0; i < uploads->options.maximum; i++) {
        if (!uploads->slots[i].used) return &uploads->slots[i];
    }
    return NULL;
}

static int has_room(const sheaf_uploads *uploads, uint64_t bytes) {
    uint64_t capacity = uploads->options.capacity_bytes, used = uploads->arriving_bytes + uploads->kept_bytes;
    return capacity == 0 || (used <= capacity && bytes <= capacity - used);
}

static sheaf_status begin(sheaf_uploads *uploads, const sheaf_update_statement *statement, sheaf_upload **out,
                          sheaf_problem *problem) {
    sheaf_upload *upload = find_free(uploads);
    if (upload == NULL) return SHEAF_E_BUSY;
    if (!has_room(uploads, statement->payload_bytes))
        return sheaf_problem_set(problem, SHEAF_E_NO_SPACE, "limits.spool_bytes: no room for another payload");
    const sheaf_spool_part file = file_of(statement);
    sheaf_status status =
        sheaf_part_open(&upload->part, uploads->options.spool, &file, statement->payload_bytes, problem);
    if (status != SHEAF_OK) return status;
    uploads->arriving_bytes += statement->payload_bytes;
    upload->used = 1;
    *out = upload;
    return SHEAF_OK;
}

/* A resumed upload takes the newer statement: the round may have opened again with another nonce. */
static void set_terms(sheaf_upload *upload, const sheaf_upload_terms *terms) {
    assert(terms->statement_bytes.size <= sizeof upload->statement_bytes &&
           terms->signature.size <= sizeof upload->signature);
    upload->statement = *terms->statement;
    memcpy(upload->statement_bytes, terms->statement_bytes.data, terms->statement_bytes.size);
    upload->statement_size = terms->statement_bytes.size;
    memcpy(upload->signature, terms->signature.data, terms->signature.size);
    upload->signature_size = terms->signature.size;
    upload->training_loss = terms->training_loss;
    upload->moved_ns = sheaf_now_ns();
}

static int is_same_payload(const sheaf_update_statement *a, const sheaf_update_statement *b) {
    return a->round == b->round && a->payload_bytes == b->payload_bytes &&
           memcmp(a->payload_digest, b->payload_digest, SHEAF_DIGEST_BYTES) == 0;
}

static sheaf_status agree_locked(sheaf_uploads *uploads, const sheaf_upload_terms *terms, sheaf_upload **out,
                                 sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    sheaf_upload *upload = find(uploads, terms->statement->client);
    if (upload != NULL && upload->taken) return SHEAF_E_BUSY;
    if (upload != NULL && !is_same_payload(&upload->statement, terms->statement)) {
        release(upload);
        upload = NULL;
    }
    if (upload == NULL)
        status = begin(uploads, terms->statement, &upload, problem);
    else
        status = sheaf_part_begin_grid(&upload->part, problem);
    if (status != SHEAF_OK) return status;
    set_terms(upload, terms);
    upload->taken = 1;
    *out = upload;
    return upload->part.next_offset < upload->part.on_disk ? SHEAF_AGAIN : SHEAF_OK;
}

sheaf_status sheaf_uploads_agree(sheaf_uploads *uploads, const sheaf_upload_terms *terms, sheaf_upload **out,
                                 sheaf_problem *problem) {
    pthread_mutex_lock(&uploads->lock);
    sheaf_status status = agree_locked(uploads, terms, out, problem);
    pthread_mutex_unlock(&uploads->lock);
    return status;
}

sheaf_status sheaf_uploads_take(sheaf_uploads *uploads, const char *client, sheaf_span payload_digest,
                                sheaf_upload **out) {
    sheaf_status status = SHEAF_OK;
    pthread_mutex_lock(&uploads->lock);
    sheaf_upload *upload = find(uploads, client);
    if (upload == NULL ||
        !sheaf_span_equal(payload_digest, sheaf_span_of(upload->statement.payload_digest, SHEAF_DIGEST_BYTES))) {
        status = SHEAF_E_NOT_FOUND;
    } else if (upload->taken) {
        status = SHEAF_E_BUSY;
    } else {
        upload->taken = 1;
        *out = upload;
    }
    pthread_mutex_unlock(&uploads->lock);
    return status;
}

void sheaf_upload_give_back(sheaf_upload *upload) {
    sheaf_uploads *uploads = upload->table; /* the slot may be another's as soon as it is free */
    pthread_mutex_lock(&uploads->lock);
    upload->taken = 0;
    if (upload->doomed) release(upload);
    pthread_mutex_unlock(&uploads->lock);
}

void sheaf_upload_drop(sheaf_upload *upload) {
    sheaf_uploads *uploads = upload->table;
    pthread_mutex_lock(&uploads->lock);
    release(upload);
    pthread_mutex_unlock(&uploads->lock);
}

sheaf_status sheaf_upload_read_again(sheaf_upload *upload, sheaf_problem *problem) {
    sheaf_status status = sheaf_part_read_again(&upload->part, READ_AGAIN_BYTES, problem);
    upload->moved_ns = sheaf_now_ns();
    return status == SHEAF_OK || status == SHEAF_AGAIN ? status : sheaf_part_restart(&upload->part, problem);
}

sheaf_status sheaf_upload_write(sheaf_upload *upload, uint64_t offset, sheaf_span bytes, sheaf_span digest,
                                sheaf_problem *problem) {
    uint64_t before = upload->part.next_offset, held = upload->part.held;
    sheaf_status status = sheaf_part_write(&upload->part, offset, bytes, digest, problem);
    if (upload->part.next_offset != before || upload->part.held != held) upload->moved_ns = sheaf_now_ns();
    return status;
}

sheaf_status sheaf_upload_verify(sheaf_upload *upload, sheaf_span *payload, sheaf_problem *problem) {
    int resumed = upload->part.resumed;
    sheaf_status status = sheaf_part_verify(&upload->part, upload->statement.payload_digest);
    if (status == SHEAF_E_DIGEST && resumed) {
        status = sheaf_part_restart(&upload->part, problem);
        return status == SHEAF_OK ? SHEAF_AGAIN : status;
    }
    return status == SHEAF_OK ? sheaf_spool_map_fd(upload->part.fd, upload->statement.payload_bytes, payload, problem)
                              : status;
}

sheaf_status sheaf_upload_keep(sheaf_upload *upload, sheaf_problem *problem) {
    const sheaf_spool_part file = file_of(&upload->statement);
    sheaf_status status = sheaf_spool_keep(upload->table->options.spool, &file, upload->part.fd, problem);
    if (status == SHEAF_OK) sheaf_part_close(&upload->part);
    return status;
}

uint32_t sheaf_uploads_load(sheaf_uploads *uploads, uint64_t *bytes) {
    uint32_t count = 0;
    pthread_mutex_lock(&uploads->lock);
    for (uint32_t i = 0; i < uploads->options.maximum; i++) count += uploads->slots[i].used != 0;
    *bytes = uploads->arriving_bytes + uploads->kept_bytes;
    pthread_mutex_unlock(&uploads->lock);
    return count;
}

void sheaf_uploads_count_kept(sheaf_uploads *uploads, uint64_t bytes) {
    pthread_mutex_lock(&uploads->lock);
    uploads->kept_bytes += bytes;
    pthread_mutex_unlock(&uploads->lock);
}

uint32_t sheaf_uploads_expire(sheaf_uploads *uploads, uint64_t before_ns) {
    uint32_t dropped = 0;
    pthread_mutex_lock(&uploads->lock);
    for (uint32_t i = 0; i < uploads->options.maximum; i++) {
        sheaf_upload *upload = &uploads->slots[i];
        if (!upload->used || upload->taken || upload->moved_ns >= before_ns) continue;
        release(upload);
        dropped++;
    }
    pthread_mutex_unlock(&uploads->lock);
    return dropped;
}

void sheaf_uploads_clear(sheaf_uploads *uploads) {
    pthread_mutex_lock(&uploads->lock);
    uploads->kept_bytes = 0;
    for (uint32_t i = 0; i < uploads->options.maximum; i++) {
        if (!uploads->slots[i].used) continue;
        if (uploads->slots[i].taken)
            uploads->slots[i].doomed = 1;
        else
            release(&uploads->slots[i]);
    }
    pthread_mutex_unlock(&uploads->lock);
}
