/* sgd.h - trains a network by stochastic gradient descent with momentum, a few batches at a time.
 *
 * The step is PyTorch's: v = momentum v + gradient; w = w - rate v. v starts at zero in every training. Each epoch goes
 * through all examples once in a fresh random order; the last batch of an epoch may be smaller, and is not dropped.
 * The same network, examples, options and seed give the same bits, however the work is cut into slices.
 *
 * Owner:   the caller owns the object, the network and the memory for velocity and order.
 * Threads: one at a time.
 * Errors:  SHEAF_E_NOT_FINITE (the loss is no longer a number: the rate is too high), SHEAF_E_USAGE, SHEAF_E_TOO_LARGE.
 */
#pragma once
#include "client/trainer/network.h"

/* Where examples come from: RAM, flash, a sensor's history. */
typedef struct {
    uint32_t count;
    /* Writes the raw values of example `index` < count (as many as the network has features) and its label. */
    void (*read)(uint32_t index, float *features, uint32_t *label, void *context);
    void *context;
} sheaf_examples;

typedef struct {
    uint32_t epochs, batch; /* >= 1; batch <= the network's batch_max */
    float learning_rate, momentum;
    uint8_t seed[SHEAF_SEED_BYTES];
} sheaf_training_options;

typedef struct {
    sheaf_network *network; /* borrowed */
    sheaf_examples examples;
    sheaf_training_options options;
    float *velocity;          /* [parameter_count] */
    uint32_t *order;          /* [examples.count] */
    uint32_t epoch, position; /* examples already used in this epoch */
    double loss;              /* sum over the examples of this epoch so far */
    uint64_t correct;
    double epoch_loss; /* mean of the last whole epoch; NaN before */
} sheaf_training;

size_t sheaf_training_bytes(uint64_t parameter_count, uint32_t examples);
SHEAF_MUST_USE sheaf_status sheaf_training_begin(sheaf_training *training, sheaf_network *network,
                                                 const sheaf_examples *examples, const sheaf_training_options *options,
                                                 void *memory, size_t bytes);
/* At most `batches` steps. SHEAF_AGAIN: more to do; SHEAF_OK: all epochs are done (and on every later call). */
SHEAF_MUST_USE sheaf_status sheaf_training_step(sheaf_training *training, uint32_t batches);
/* 0..1000, growing. */
uint32_t sheaf_training_permille(const sheaf_training *training);
/* Mean loss over the examples of this epoch so far, or of the last whole one; NaN before the first batch. */
double sheaf_training_loss(const sheaf_training *training);

/* Loss and hits over all examples, `batch_max` of the network at a time. */
typedef struct {
    double loss;     /* mean */
    double accuracy; /* 0..1 */
} sheaf_evaluation;
SHEAF_MUST_USE sheaf_status sheaf_evaluate(sheaf_network *network, const sheaf_examples *examples,
                                           sheaf_evaluation *out);
