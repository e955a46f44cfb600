#include "common/model.h"

#include "common/digest.h"

#include <stdlib.h>

static int by_name(const void *a, const void *b) {
    return strcmp(((const sheaf_model_tensor *)a)->tensor.name, ((const sheaf_model_tensor *)b)->tensor.name);
}

static sheaf_status no_memory(sheaf_problem *problem, uint64_t bytes) {
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a model of %llu bytes", (unsigned long long)bytes);
}

static uint64_t header_bytes(const sheaf_tensor *tensor) {
    return 4 * 8 + strlen(tensor->name) + strlen(tensor->dtype) + 8 * (uint64_t)tensor->rank;
}

/* Copies the tensors in the order of names and checks each. */
static sheaf_status take_tensors(const sheaf_tensor *tensors, size_t count, sheaf_model *out, sheaf_problem *problem) {
    if (count > SIZE_MAX / 2 / sizeof *out->tensors) return no_memory(problem, UINT64_MAX);
    out->tensors = calloc(count + 1, sizeof *out->tensors);
    if (out->tensors == NULL) return no_memory(problem, (uint64_t)count * sizeof *out->tensors);
    out->count = count;
    for (size_t i = 0; i < count; i++) {
        sheaf_tensor *tensor = &out->tensors[i].tensor;
        *tensor = tensors[i];
        if (!sheaf_tensor_name_ok(tensor->name))
            return sheaf_problem_set(problem, SHEAF_E_NAME, "a tensor's name is empty or has control characters");
        sheaf_status status = sheaf_tensor_measure(tensor);
        if (status != SHEAF_OK)
            return sheaf_problem_set(problem, status, "tensor '%s': element type or dimensions are not possible",
                                     tensor->name);
    }
    qsort(out->tensors, count, sizeof *out->tensors, by_name);
    for (size_t i = 1; i < count; i++) {
        if (by_name(&out->tensors[i - 1], &out->tensors[i]) == 0) {
            return sheaf_problem_set(problem, SHEAF_E_NAME, "tensor '%s' is there twice", out->tensors[i].tensor.name);
        }
    }
    return SHEAF_OK;
}

/* Where each tensor lies in the stream, and how long the stream is. */
static sheaf_status lay_out(sheaf_model *model, sheaf_problem *problem) {
    uint64_t at = 0, elements = 0;
    for (size_t i = 0; i < model->count; i++) {
        sheaf_model_tensor *entry = &model->tensors[i];
        at += header_bytes(&entry->tensor); /* < 2^8 each, and at < 2^62: no overflow */
        entry->data_offset = at;
        entry->first = elements;
        if (entry->tensor.bytes > (uint64_t)PTRDIFF_MAX / 2 || at > (uint64_t)PTRDIFF_MAX / 2 - entry->tensor.bytes ||
            entry->tensor.elements > UINT64_MAX - elements) {
            return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE,
                                     "tensor '%s': the model does not fit the address space", entry->tensor.name);
        }
        at += entry->tensor.bytes;
        elements += entry->tensor.elements;
    }
    model->stream_bytes = at;
    model->elements = elements;
    return SHEAF_OK;
}

static void write_headers(sheaf_model *model) {
    for (size_t i = 0; i < model->count; i++) {
        const sheaf_model_tensor *entry = &model->tensors[i];
        uint64_t size = header_bytes(&entry->tensor);
        sheaf_buffer out = {model->stream + (entry->data_offset - size), 0, (size_t)size};
        sheaf_status status = sheaf_tensor_header_encode(&entry->tensor, &out);
        (void)status; /* cannot fail: the room was measured */
    }
}

sheaf_status sheaf_model_make(const sheaf_tensor *tensors, size_t count, sheaf_model *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    sheaf_status status = take_tensors(tensors, count, out, problem);
    if (status == SHEAF_OK) status = lay_out(out, problem);
    if (status == SHEAF_OK) {
        out->stream = calloc((size_t)out->stream_bytes + 1, 1);
        if (out->stream == NULL) status = no_memory(problem, out->stream_bytes);
    }
    if (status != SHEAF_OK) {
        sheaf_model_free(out);
        return status;
    }
    write_headers(out);
    return SHEAF_OK;
}

/* Walks the stream; with `out->tensors` set it also fills them. *count is the number of tensors. */
static sheaf_status walk(sheaf_span stream, sheaf_model *out, size_t *count) {
    sheaf_tensor previous, current;
    size_t at = 0;
    uint64_t elements = 0;
    for (*count = 0; at < stream.size; (*count)++) {
        size_t used = 0;
        sheaf_status status = sheaf_tensor_header_decode(sheaf_span_of(stream.data + at, stream.size - at),
                                                         *count > 0 ? &previous : NULL, &current, &used);
        if (status != SHEAF_OK) return status;
        at += used;
        if (current.bytes > stream.size - at) return SHEAF_E_TRUNCATED;
        /* A tensor with a dimension of zero may name any others, but its elements are none: the sum stays <= size. */
        if (out->tensors != NULL) {
            out->tensors[*count] = (sheaf_model_tensor){current, at, elements};
        }
        at += (size_t)current.bytes;
        elements += current.elements;
        previous = current;
    }
    out->elements = elements;
    return SHEAF_OK;
}

sheaf_status sheaf_model_from_stream(sheaf_span stream, sheaf_model *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    size_t count = 0;
    sheaf_status status = walk(stream, out, &count);
    if (status != SHEAF_OK)
        return sheaf_problem_set(problem, status, "parameter stream: tensor %zu: %s", count, sheaf_status_text(status));
    out->tensors = calloc(count + 1, sizeof *out->tensors);
    out->stream = malloc(stream.size + 1);
    if (out->tensors == NULL || out->stream == NULL) {
        sheaf_model_free(out);
        return no_memory(problem, stream.size);
    }
    if (stream.size > 0) memcpy(out->stream, stream.data, stream.size);
    out->stream_bytes = stream.size;
    status = walk(stream, out, &count);
    out->count = count;
    return status;
}

sheaf_status sheaf_model_copy(const sheaf_model *from, sheaf_model *out) {
    memset(out, 0, sizeof *out);
    sheaf_model copy = *from;
    copy.tensors = calloc(from->count + 1, sizeof *copy.tensors);
    copy.stream = malloc((size_t)from->stream_bytes + 1);
    if (copy.tensors == NULL || copy.stream == NULL) {
        sheaf_model_free(&copy);
        return SHEAF_E_MEMORY;
    }
    if (from->count > 0) memcpy(copy.tensors, from->tensors, from->count * sizeof *copy.tensors);
    if (from->stream_bytes > 0) memcpy(copy.stream, from->stream, (size_t)from->stream_bytes);
    *out = copy;
    return SHEAF_OK;
}

void sheaf_model_free(sheaf_model *model) {
    free(model->tensors);
    free(model->stream);
    memset(model, 0, sizeof *model);
}

sheaf_status sheaf_model_digest(const sheaf_model *model, uint8_t out[SHEAF_DIGEST_BYTES]) {
    return sheaf_digest_of(sheaf_span_of(model->stream, (size_t)model->stream_bytes), out);
}

static int name_against_tensor(const void *name, const void *entry) {
    return strcmp(name, ((const sheaf_model_tensor *)entry)->tensor.name);
}

const sheaf_model_tensor *sheaf_model_find(const sheaf_model *model, const char *name) {
    if (model->count == 0) return NULL;
    return bsearch(name, model->tensors, model->count, sizeof *model->tensors, name_against_tensor);
}

sheaf_status sheaf_tensor_same(const sheaf_tensor *expected, const sheaf_tensor *found, sheaf_problem *problem) {
    int order = strcmp(expected->name, found->name);
    if (order < 0) return sheaf_problem_set(problem, SHEAF_E_NAME, "tensor '%s' is missing", expected->name);
    if (order > 0) return sheaf_problem_set(problem, SHEAF_E_NAME, "tensor '%s' is not expected", found->name);
    if (strcmp(expected->dtype, found->dtype) != 0) {
        return sheaf_problem_set(problem, SHEAF_E_DTYPE, "tensor '%s' is %s; expected %s", found->name, found->dtype,
                                 expected->dtype);
    }
    if (expected->rank != found->rank) {
        return sheaf_problem_set(problem, SHEAF_E_SHAPE, "tensor '%s' has %u dimensions; expected %u", found->name,
                                 found->rank, expected->rank);
    }
    for (uint32_t i = 0; i < expected->rank; i++) {
        if (expected->dims[i] == found->dims[i]) continue;
        return sheaf_problem_set(problem, SHEAF_E_SHAPE, "tensor '%s' has %llu in dimension %u; expected %llu",
                                 found->name, (unsigned long long)found->dims[i], i,
                                 (unsigned long long)expected->dims[i]);
    }
    return SHEAF_OK;
}

sheaf_status sheaf_model_same_shape(const sheaf_model *a, const sheaf_model *b, sheaf_problem *problem) {
    size_t both = a->count < b->count ? a->count : b->count;
    for (size_t i = 0; i < both; i++) {
        sheaf_status status = sheaf_tensor_same(&a->tensors[i].tensor, &b->tensors[i].tensor, problem);
        if (status != SHEAF_OK) return status;
    }
    if (a->count > both)
        return sheaf_problem_set(problem, SHEAF_E_NAME, "tensor '%s' is missing", a->tensors[both].tensor.name);
    if (b->count > both)
        return sheaf_problem_set(problem, SHEAF_E_NAME, "tensor '%s' is not expected", b->tensors[both].tensor.name);
    return SHEAF_OK;
}
