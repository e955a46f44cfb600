#include "server/aggregate/aggregator.h"

#include "common/lattice.h"
#include "server/aggregate/backend.h"
#include "server/aggregate/optimizer.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#define BLOCK_VALUES 2048u /* 8-byte sums and three float rows of a block stay in the first-level cache */

struct sheaf_aggregator {
    sheaf_model shape;             /* names and sizes only: no stream */
    sheaf_backend_tensor *tensors; /* as the backend sees them, in the same order */
    const sheaf_backend *backend;
    void *sums;
    uint64_t cohort_max;
    int64_t weight_max;
    pthread_mutex_t lock; /* guards the two below */
    uint64_t added;       /* updates; <= cohort_max, so that no sum can overflow */
    uint64_t weight;      /* theirs, together; < 2^63 */
};

static sheaf_status check_options(const sheaf_aggregator_options *options, sheaf_problem *problem) {
    const sheaf_model *shape = options->shape;
    if (shape->elements == 0) return sheaf_problem_set(problem, SHEAF_E_SHAPE, "the model has no values");
    for (size_t i = 0; i < shape->count; i++) {
        const sheaf_tensor *tensor = &shape->tensors[i].tensor;
        int bits = options->fraction_bits[i];
        if (strcmp(tensor->dtype, "F32") != 0) {
            return sheaf_problem_set(problem, SHEAF_E_DTYPE, "tensor '%s' is %s; a job's model holds F32 only",
                                     tensor->name, tensor->dtype);
        }
        if (bits < LATTICE_FRACTION_BITS_MIN || bits > LATTICE_FRACTION_BITS_MAX) {
            return sheaf_problem_set(problem, SHEAF_E_NOT_REPRESENTABLE,
                                     "tensor '%s': fraction_bits %d; expected %d to %d", tensor->name, bits,
                                     LATTICE_FRACTION_BITS_MIN, LATTICE_FRACTION_BITS_MAX);
        }
    }
    if (options->cohort_max == 0 || options->weight_max <= 0) {
        return sheaf_problem_set(problem, SHEAF_E_OVERFLOW, "the cohort maximum and the weight cap must be at least 1");
    }
    if (lattice_bound_holds(options->cohort_max, (uint64_t)options->weight_max, (uint64_t)LATTICE_Q_MAX, 0))
        return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_OVERFLOW,
                             "%" PRIu64 " updates of weight %" PRId64
                             " may overflow 64-bit sums: cohort maximum x weight cap x (2^31 - 1) must stay below 2^63",
                             options->cohort_max, options->weight_max);
}

/* Copies what must outlive the options. */
static sheaf_status take_shape(sheaf_aggregator *self, const sheaf_aggregator_options *options) {
    const sheaf_model *shape = options->shape;
    self->shape.tensors = calloc(shape->count, sizeof *self->shape.tensors);
    self->tensors = calloc(shape->count, sizeof *self->tensors);
    if (self->shape.tensors == NULL || self->tensors == NULL) return SHEAF_E_MEMORY;
    memcpy(self->shape.tensors, shape->tensors, shape->count * sizeof *shape->tensors);
    self->shape.count = shape->count;
    self->shape.elements = shape->elements;
    for (size_t i = 0; i < shape->count; i++) {
        self->tensors[i] = (sheaf_backend_tensor){shape->tensors[i].first, shape->tensors[i].tensor.elements,
                                                  options->fraction_bits[i]};
    }
    return SHEAF_OK;
}

sheaf_status sheaf_aggregator_open(const sheaf_aggregator_options *options, sheaf_aggregator **out,
                                   sheaf_problem *problem) {
    *out = NULL;
    sheaf_status status = check_options(options, problem);
    if (status != SHEAF_OK) return status;
    sheaf_aggregator *self = calloc(1, sizeof *self);
    if (self != NULL && pthread_mutex_init(&self->lock, NULL) != 0) {
        free(self);
        self = NULL;
    }
    if (self == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for an aggregator");
    self->backend = options->backend != NULL ? options->backend : &sheaf_backend_scalar;
    self->cohort_max = options->cohort_max;
    self->weight_max = options->weight_max;
    status = take_shape(self, options);
    sheaf_backend_shape shape = {self->tensors, self->shape.count, self->shape.elements};
    if (status == SHEAF_OK) status = self->backend->open(&shape, &self->sums);
    if (status != SHEAF_OK) {
        sheaf_aggregator_close(self);
        return sheaf_problem_set(problem, status, "cannot hold the sums of %" PRIu64 " values: %s",
                                 options->shape->elements, sheaf_status_text(status));
    }
    *out = self;
    return SHEAF_OK;
}

void sheaf_aggregator_close(sheaf_aggregator *aggregator) {
    if (aggregator == NULL) return;
    if (aggregator->sums != NULL) aggregator->backend->close(aggregator->sums);
    pthread_mutex_destroy(&aggregator->lock);
    free(aggregator->tensors);
    free(aggregator->shape.tensors);
    free(aggregator);
}

static uint64_t payload_bytes(const sheaf_aggregator *aggregator, const sheaf_codec *codec) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < aggregator->shape.count; i++) bytes += codec->part_bytes(aggregator->tensors[i].elements);
    return bytes;
}

uint64_t sheaf_aggregator_payload_bytes(const sheaf_aggregator *aggregator, const char *payload_type) {
    const sheaf_codec *codec = sheaf_codec_find(payload_type);
    return codec == NULL ? 0 : payload_bytes(aggregator, codec);
}

/* The codec of a payload of the right size. */
static sheaf_status find_codec(const sheaf_aggregator *aggregator, const char *payload_type, sheaf_span payload,
                               const sheaf_codec **out, sheaf_problem *problem) {
    *out = sheaf_codec_find(payload_type);
    if (*out == NULL)
        return sheaf_problem_set(problem, SHEAF_E_ENCODING, "payload type '%.15s' is not known", payload_type);
    uint64_t expected = payload_bytes(aggregator, *out);
    if (payload.size == expected) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_SHAPE,
                             "payload has %zu bytes; a model of this shape takes %" PRIu64 " as %s", payload.size,
                             expected, payload_type);
}

/* Names the value `index`, counted over all tensors. */
static sheaf_status refuse_value(const sheaf_aggregator *aggregator, sheaf_status status, uint64_t index,
                                 const char *what, sheaf_problem *problem) {
    size_t i = 0;
    while (index - aggregator->tensors[i].first >= aggregator->tensors[i].elements) i++;
    return sheaf_problem_set(problem, status, "tensor '%s', value %" PRIu64 ": %s",
                             aggregator->shape.tensors[i].tensor.name, index - aggregator->tensors[i].first, what);
}

sheaf_status sheaf_aggregator_validate(const sheaf_aggregator *aggregator, const char *payload_type, sheaf_span payload,
                                       sheaf_problem *problem) {
    const sheaf_codec *codec = NULL;
    uint64_t wrong = 0;
    sheaf_status status = find_codec(aggregator, payload_type, payload, &codec, problem);
    if (status != SHEAF_OK) return status;
    status = aggregator->backend->validate(aggregator->sums, codec, payload, &wrong);
    return status == SHEAF_OK ? status : refuse_value(aggregator, status, wrong, sheaf_status_text(status), problem);
}

/* Takes a place among the cohort_max updates that the bound was proved for. */
static sheaf_status count_update(sheaf_aggregator *aggregator, int64_t weight) {
    if (weight < 0) return SHEAF_E_WEIGHT_NEGATIVE;
    if (weight == 0) return SHEAF_E_WEIGHT_ZERO;
    if (weight > aggregator->weight_max) return SHEAF_E_WEIGHT_CAP;
    sheaf_status status = SHEAF_E_COHORT_FULL;
    pthread_mutex_lock(&aggregator->lock);
    if (aggregator->added < aggregator->cohort_max) {
        aggregator->added++;
        aggregator->weight += (uint64_t)weight;
        status = SHEAF_OK;
    }
    pthread_mutex_unlock(&aggregator->lock);
    return status;
}

sheaf_status sheaf_aggregator_add(sheaf_aggregator *aggregator, const char *payload_type, sheaf_span payload,
                                  int64_t weight) {
    const sheaf_codec *codec = NULL;
    sheaf_status status = find_codec(aggregator, payload_type, payload, &codec, NULL);
    if (status == SHEAF_OK) status = count_update(aggregator, weight);
    return status == SHEAF_OK ? aggregator->backend->add(aggregator->sums, codec, payload, weight) : status;
}

void sheaf_aggregator_reset(sheaf_aggregator *aggregator) {
    sheaf_status status = aggregator->backend->reset(aggregator->sums);
    assert(status == SHEAF_OK); /* the only backend lives in host memory */
    aggregator->added = 0;
    aggregator->weight = 0;
}

uint64_t sheaf_aggregator_weight(const sheaf_aggregator *aggregator) {
    pthread_mutex_t *lock =
        (pthread_mutex_t *)(uintptr_t)&aggregator->lock; /* every aggregator is made by open: not const */
    pthread_mutex_lock(lock);
    uint64_t weight = aggregator->weight;
    pthread_mutex_unlock(lock);
    return weight;
}

typedef struct {
    int64_t sums[BLOCK_VALUES];
    float base[BLOCK_VALUES], mean[BLOCK_VALUES], next[BLOCK_VALUES];
} apply_block;

/* The values [at, at + count) of a tensor, counted in the tensor. */
static sheaf_status apply_values(const sheaf_aggregator *aggregator, const sheaf_backend_tensor *tensor, uint64_t at,
                                 size_t count, apply_block *block, const uint8_t *base, uint8_t *next,
                                 sheaf_problem *problem) {
    double divisor = lattice_mean_divisor(aggregator->weight, LATTICE_UNIT, tensor->fraction_bits);
    sheaf_status status = aggregator->backend->read(aggregator->sums, tensor->first + at, count, block->sums);
    if (status != SHEAF_OK) return sheaf_problem_set(problem, status, "the sums are lost");
    for (size_t i = 0; i < count; i++) {
        block->base[i] = sheaf_load_f32(base + 4 * (at + i));
        block->mean[i] = lattice_mean_of(block->sums[i], divisor);
    }
    sheaf_optimizer_step(&sheaf_optimizer_fedavg, count, block->base, block->mean, NULL, block->next);
    for (size_t i = 0; i < count; i++) {
        const char *what = NULL;
        if (!lattice_f32_is_finite(lattice_f32_bits(block->mean[i])))
            what = "the mean is not finite in float32";
        else if (!lattice_f32_is_finite(lattice_f32_bits(block->next[i])))
            what = "the model would not be finite in float32";
        if (what != NULL)
            return refuse_value(aggregator, SHEAF_E_NOT_REPRESENTABLE, tensor->first + at + i, what, problem);
        sheaf_store_f32(next + 4 * (at + i), block->next[i]);
    }
    return SHEAF_OK;
}

static sheaf_status apply_tensor(const sheaf_aggregator *aggregator, size_t index, const sheaf_model *base,
                                 sheaf_model *next, sheaf_problem *problem) {
    const sheaf_backend_tensor *tensor = &aggregator->tensors[index];
    apply_block block;
    for (uint64_t at = 0; at < tensor->elements; at += BLOCK_VALUES) {
        uint64_t left = tensor->elements - at;
        sheaf_status status = apply_values(aggregator, tensor, at, left < BLOCK_VALUES ? (size_t)left : BLOCK_VALUES,
                                           &block, base->stream + base->tensors[index].data_offset,
                                           next->stream + next->tensors[index].data_offset, problem);
        if (status != SHEAF_OK) return status;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_aggregator_apply(const sheaf_aggregator *aggregator, const sheaf_model *base, sheaf_model *next,
                                    sheaf_problem *problem) {
    if (aggregator->weight == 0)
        return sheaf_problem_set(problem, SHEAF_E_NO_WEIGHT, "%s", sheaf_status_text(SHEAF_E_NO_WEIGHT));
    assert(lattice_float_environment_ok());
    sheaf_status status = sheaf_model_same_shape(&aggregator->shape, base, problem);
    if (status == SHEAF_OK) status = sheaf_model_same_shape(&aggregator->shape, next, problem);
    for (size_t i = 0; status == SHEAF_OK && i < aggregator->shape.count; i++)
        status = apply_tensor(aggregator, i, base, next, problem);
    return status;
}
