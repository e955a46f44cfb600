#include "client/core/session.h"

/* The header needs bytes in the frame of one tensor; the work buffer of the smallest size holds the longest header. */
_Static_assert(SHEAF_EDGE_WORK_VALUES_MIN * sizeof(float) / 2 >= SHEAF_TENSOR_HEADER_BYTES_MAX,
               "a tensor header fits into half of the smallest work buffer");

static sheaf_status enter_tensor(sheaf_session *s, float *values) {
    sheaf_session_walk *walk = &s->walk;
    uint8_t *bytes = (uint8_t *)values;
    uint64_t left = s->round.base_model_bytes - walk->offset;
    size_t size = left < SHEAF_TENSOR_HEADER_BYTES_MAX ? (size_t)left : SHEAF_TENSOR_HEADER_BYTES_MAX;
    sheaf_status status = s->port.storage.read(SHEAF_EDGE_MODEL, walk->offset, bytes, size, s->port.storage.context);
    if (status != SHEAF_OK) return status;
    sheaf_tensor tensor;
    size_t used = 0;
    const sheaf_tensor *previous = walk->index > 0 ? &walk->tensor : NULL;
    status = sheaf_tensor_header_decode(sheaf_span_of(bytes, size), previous, &tensor, &used);
    if (status != SHEAF_OK) return status;
    if (strcmp(tensor.dtype, "F32") != 0) return SHEAF_E_DTYPE;
    if (used > left || tensor.bytes > left - used) return SHEAF_E_TRUNCATED;
    walk->tensor = tensor;
    walk->offset += used;
    walk->first = 0;
    walk->in_tensor = 1;
    return SHEAF_OK;
}

/* Turns little-endian bytes into values where they lie: value i is read before it is written. */
static void to_values(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = sheaf_load_f32((const uint8_t *)values + i * sizeof(float));
}

static sheaf_status read_block(sheaf_session *s, float *values, size_t count) {
    if (count == 0) return SHEAF_OK;
    size_t size = count * sizeof(float);
    sheaf_status status =
        s->port.storage.read(SHEAF_EDGE_MODEL, s->walk.offset, (uint8_t *)values, size, s->port.storage.context);
    if (status != SHEAF_OK) return status;
    s->walk.offset += size;
    to_values(values, count);
    return SHEAF_OK;
}

static void view(const sheaf_session_walk *walk, sheaf_edge_tensor *out) {
    out->name = walk->tensor.name;
    out->dtype = walk->tensor.dtype;
    out->index = walk->index;
    out->rank = walk->tensor.rank;
    out->dims = walk->tensor.dims;
    out->elements = walk->tensor.elements;
}

sheaf_status sheaf_session_walk_next(sheaf_session *s, float *values, size_t most, sheaf_edge_tensor *tensor,
                                     uint64_t *first, size_t *count) {
    sheaf_session_walk *walk = &s->walk;
    if (!walk->in_tensor) {
        if (walk->offset == s->round.base_model_bytes) return SHEAF_ENDED;
        sheaf_status status = enter_tensor(s, values);
        if (status != SHEAF_OK) return status;
    }
    uint64_t left = walk->tensor.elements - walk->first;
    *count = left < most ? (size_t)left : most;
    *first = walk->first;
    view(walk, tensor);
    sheaf_status status = read_block(s, values, *count);
    if (status != SHEAF_OK) return status;
    walk->first += *count;
    if (walk->first == walk->tensor.elements) {
        walk->in_tensor = 0;
        walk->index++;
    }
    return SHEAF_OK;
}
