/* Sums in the memory of the host. A payload is walked in blocks: each is decoded without any lock into a small buffer
 * that stays in the first-level cache, then added under the lock of its range of parameters. Adders start at different
 * ranges and go around, so that several rarely want the same lock, and no one ever waits for longer than one block. */
#include "server/aggregate/backend.h"

#include "common/lattice.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define BLOCK_VALUES 4096u                /* 16 KiB of decoded integers on the stack */
#define RANGE_VALUES (16u * BLOCK_VALUES) /* one lock: 512 KiB of sums */

typedef struct {
    sheaf_backend_tensor *tensors;
    size_t count;
    uint64_t elements;
    int64_t *sums;          /* elements */
    pthread_mutex_t *locks; /* one a range */
    size_t ranges;
    atomic_size_t next_start; /* range where the next adder begins */
} cpu;

static void close_cpu(void *state) {
    cpu *self = state;
    if (self == NULL) return;
    for (size_t i = 0; i < self->ranges; i++) pthread_mutex_destroy(&self->locks[i]);
    free(self->locks);
    free(self->sums);
    free(self->tensors);
    free(self);
}

static sheaf_status open_cpu(const sheaf_backend_shape *shape, void **state) {
    assert(shape->elements > 0);
    if (shape->elements > SIZE_MAX / 2 / sizeof(int64_t)) return SHEAF_E_MEMORY;
    cpu *self = calloc(1, sizeof *self);
    if (self == NULL) return SHEAF_E_MEMORY;
    size_t ranges = (size_t)((shape->elements + RANGE_VALUES - 1) / RANGE_VALUES);
    self->tensors = calloc(shape->count, sizeof *self->tensors);
    self->sums = calloc((size_t)shape->elements, sizeof *self->sums);
    self->locks = calloc(ranges, sizeof *self->locks);
    if (self->tensors == NULL || self->sums == NULL || self->locks == NULL) {
        close_cpu(self);
        return SHEAF_E_MEMORY;
    }
    memcpy(self->tensors, shape->tensors, shape->count * sizeof *self->tensors);
    self->count = shape->count;
    self->elements = shape->elements;
    for (; self->ranges < ranges; self->ranges++) {
        if (pthread_mutex_init(&self->locks[self->ranges], NULL) == 0) continue;
        close_cpu(self);
        return SHEAF_E_MEMORY;
    }
    atomic_init(&self->next_start, 0);
    *state = self;
    return SHEAF_OK;
}

static sheaf_status validate_tensor(const sheaf_backend_tensor *tensor, const sheaf_codec *codec, sheaf_span part,
                                    uint64_t *wrong) {
    int32_t q[BLOCK_VALUES];
    for (uint64_t at = 0; at < tensor->elements; at += BLOCK_VALUES) {
        uint64_t left = tensor->elements - at;
        size_t bad = 0;
        sheaf_status status =
            codec->decode(part, at, left < BLOCK_VALUES ? (size_t)left : BLOCK_VALUES, tensor->fraction_bits, q, &bad);
        if (status == SHEAF_OK) continue;
        *wrong = tensor->first + at + bad;
        return status;
    }
    return SHEAF_OK;
}

static sheaf_status validate(const void *state, const sheaf_codec *codec, sheaf_span payload, uint64_t *wrong) {
    const cpu *self = state;
    const uint8_t *at = payload.data;
    for (size_t i = 0; i < self->count; i++) {
        sheaf_span part = sheaf_span_of(at, (size_t)codec->part_bytes(self->tensors[i].elements));
        sheaf_status status = validate_tensor(&self->tensors[i], codec, part, wrong);
        if (status != SHEAF_OK) return status;
        at += part.size;
    }
    return SHEAF_OK;
}

/* Adds values [from, to), counted over all tensors; they lie in this tensor and in one range. */
static void add_block(cpu *self, const sheaf_backend_tensor *tensor, const sheaf_codec *codec, sheaf_span part,
                      uint64_t from, uint64_t to, int64_t weight) {
    int32_t q[BLOCK_VALUES];
    assert(from / RANGE_VALUES == (to - 1) / RANGE_VALUES); /* one lock covers it */
    size_t count = (size_t)(to - from), bad = 0;
    sheaf_status status = codec->decode(part, from - tensor->first, count, tensor->fraction_bits, q, &bad);
    assert(status == SHEAF_OK); /* it was validated: adding half of it would corrupt the round */
    int64_t *sums = self->sums + from;
    pthread_mutex_t *lock = &self->locks[from / RANGE_VALUES];
    pthread_mutex_lock(lock);
    for (size_t i = 0; i < count; i++) lattice_accumulate(&sums[i], weight, q[i]);
    pthread_mutex_unlock(lock);
}

/* Adds the values of the payload that lie in [from, to). */
static void add_span(cpu *self, const sheaf_codec *codec, sheaf_span payload, uint64_t from, uint64_t to,
                     int64_t weight) {
    const uint8_t *data = payload.data;
    for (size_t i = 0; i < self->count; i++) {
        const sheaf_backend_tensor *tensor = &self->tensors[i];
        sheaf_span part = sheaf_span_of(data, (size_t)codec->part_bytes(tensor->elements));
        uint64_t at = tensor->first > from ? tensor->first : from;
        uint64_t end = tensor->first + tensor->elements < to ? tensor->first + tensor->elements : to;
        while (at < end) {
            uint64_t edge =
                (at / BLOCK_VALUES + 1) * BLOCK_VALUES; /* blocks stand on multiples, so none crosses a range */
            uint64_t stop = edge < end ? edge : end;
            add_block(self, tensor, codec, part, at, stop, weight);
            at = stop;
        }
        data += part.size;
    }
}

static sheaf_status add(void *state, const sheaf_codec *codec, sheaf_span payload, int64_t weight) {
    cpu *self = state;
    /* An odd stride of about 0.6 of the ranges spreads any number of adders that begin together. */
    size_t start =
        atomic_fetch_add_explicit(&self->next_start, self->ranges * 5 / 8 | 1u, memory_order_relaxed) % self->ranges;
    uint64_t middle = (uint64_t)start * RANGE_VALUES;
    add_span(self, codec, payload, middle, self->elements, weight);
    add_span(self, codec, payload, 0, middle, weight);
    return SHEAF_OK;
}

static sheaf_status merge(void *state, uint64_t first, size_t count, const int64_t *other) {
    cpu *self = state;
    assert(first <= self->elements && count <= self->elements - first);
    for (size_t i = 0; i < count; i++) self->sums[first + i] += other[i];
    return SHEAF_OK;
}

static sheaf_status read_sums(const void *state, uint64_t first, size_t count, int64_t *out) {
    const cpu *self = state;
    assert(first <= self->elements && count <= self->elements - first);
    memcpy(out, self->sums + first, count * sizeof *out);
    return SHEAF_OK;
}

static sheaf_status reset(void *state) {
    cpu *self = state;
    memset(self->sums, 0, (size_t)self->elements * sizeof *self->sums);
    return SHEAF_OK;
}

const sheaf_backend sheaf_backend_scalar = {"scalar", open_cpu, close_cpu, validate, add, merge, read_sums, reset};
