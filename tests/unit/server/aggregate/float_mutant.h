/* float_mutant.h - a backend that is wrong on purpose: it sums in floating point, as others do. Tests that promise the
 * same bits for any order must fail with it. */
#pragma once
#include "common/lattice.h"
#include "server/aggregate/backend.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct {
    void *scalar; /* for validate */
    sheaf_backend_shape shape;
    sheaf_backend_tensor *tensors;
    double *sums;
    int single; /* 1: rounds every sum to float */
    pthread_mutex_t lock;
} float_mutant;

static sheaf_status float_mutant_open_as(const sheaf_backend_shape *shape, int single, void **state) {
    float_mutant *self = calloc(1, sizeof *self);
    assert(self != NULL);
    self->tensors = calloc(shape->count, sizeof *self->tensors);
    self->sums = calloc((size_t)shape->elements, sizeof *self->sums);
    assert(self->tensors != NULL && self->sums != NULL);
    memcpy(self->tensors, shape->tensors, shape->count * sizeof *self->tensors);
    self->shape = (sheaf_backend_shape){self->tensors, shape->count, shape->elements};
    self->single = single;
    pthread_mutex_init(&self->lock, NULL);
    *state = self;
    return sheaf_backend_scalar.open(shape, &self->scalar);
}
static sheaf_status float_mutant_open(const sheaf_backend_shape *shape, void **state) {
    return float_mutant_open_as(shape, 1, state);
}
static sheaf_status double_mutant_open(const sheaf_backend_shape *shape, void **state) {
    return float_mutant_open_as(shape, 0, state);
}

static void float_mutant_close(void *state) {
    float_mutant *self = state;
    sheaf_backend_scalar.close(self->scalar);
    pthread_mutex_destroy(&self->lock);
    free(self->sums);
    free(self->tensors);
    free(self);
}

static sheaf_status float_mutant_validate(const void *state, const sheaf_codec *codec, sheaf_span payload,
                                          uint64_t *wrong) {
    return sheaf_backend_scalar.validate(((const float_mutant *)state)->scalar, codec, payload, wrong);
}

static void float_mutant_sum(float_mutant *self, uint64_t at, double term) {
    double sum = self->sums[at] + term;
    self->sums[at] = self->single ? (double)(float)sum : sum;
}

static sheaf_status float_mutant_add(void *state, const sheaf_codec *codec, sheaf_span payload, int64_t weight) {
    float_mutant *self = state;
    const uint8_t *data = payload.data;
    pthread_mutex_lock(&self->lock);
    for (size_t t = 0; t < self->shape.count; t++) {
        const sheaf_backend_tensor *tensor = &self->tensors[t];
        sheaf_span part = sheaf_span_of(data, (size_t)codec->part_bytes(tensor->elements));
        for (uint64_t i = 0; i < tensor->elements; i++) {
            int32_t q = 0;
            size_t wrong = 0;
            sheaf_status status = codec->decode(part, i, 1, tensor->fraction_bits, &q, &wrong);
            assert(status == SHEAF_OK);
            float_mutant_sum(self, tensor->first + i, (double)weight * q);
        }
        data += part.size;
    }
    pthread_mutex_unlock(&self->lock);
    return SHEAF_OK;
}

static sheaf_status float_mutant_merge(void *state, uint64_t first, size_t count, const int64_t *other) {
    for (size_t i = 0; i < count; i++) float_mutant_sum(state, first + i, (double)other[i]);
    return SHEAF_OK;
}

static sheaf_status float_mutant_read(const void *state, uint64_t first, size_t count, int64_t *out) {
    for (size_t i = 0; i < count; i++) out[i] = (int64_t)((const float_mutant *)state)->sums[first + i];
    return SHEAF_OK;
}

static sheaf_status float_mutant_reset(void *state) {
    float_mutant *self = state;
    memset(self->sums, 0, (size_t)self->shape.elements * sizeof *self->sums);
    return SHEAF_OK;
}

static const sheaf_backend float_mutant_backend = {"float mutant",        float_mutant_open, float_mutant_close,
                                                   float_mutant_validate, float_mutant_add,  float_mutant_merge,
                                                   float_mutant_read,     float_mutant_reset};
static const sheaf_backend double_mutant_backend = {"double mutant",       double_mutant_open, float_mutant_close,
                                                    float_mutant_validate, float_mutant_add,   float_mutant_merge,
                                                    float_mutant_read,     float_mutant_reset};
