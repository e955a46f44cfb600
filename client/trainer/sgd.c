#include "client/trainer/sgd.h"

#include <math.h>
#include <string.h>

enum { ORDER_STREAM = 1000 }; /* apart from the streams of the layers' first values */

size_t sheaf_training_bytes(uint64_t parameter_count, uint32_t examples) {
    uint64_t bytes = parameter_count * sizeof(float) + (uint64_t)examples * sizeof(uint32_t);
    return bytes > SIZE_MAX / 2 ? 0 : (size_t)bytes;
}

sheaf_status sheaf_training_begin(sheaf_training *training, sheaf_network *network, const sheaf_examples *examples,
                                  const sheaf_training_options *options, void *memory, size_t bytes) {
    memset(training, 0, sizeof *training);
    /* Written so that a NaN is refused. */
    int ok = examples->count >= 1 && options->epochs >= 1 && options->batch >= 1 &&
             options->batch <= network->batch_max && options->learning_rate > 0.0f && options->momentum >= 0.0f &&
             options->momentum < 1.0f;
    if (!ok) return SHEAF_E_USAGE;
    size_t needed = sheaf_training_bytes(network->parameter_count, examples->count);
    if (needed == 0 || bytes < needed) return SHEAF_E_TOO_LARGE;
    training->network = network;
    training->examples = *examples;
    training->options = *options;
    training->velocity = memory;
    training->order = (uint32_t *)memory + network->parameter_count; /* both are four bytes an element */
    training->epoch_loss = (double)NAN;
    memset(training->velocity, 0, (size_t)network->parameter_count * sizeof(float));
    return SHEAF_OK;
}

static void begin_epoch(sheaf_training *training) {
    sheaf_random random;
    sheaf_random_init(&random, training->options.seed, ORDER_STREAM + training->epoch);
    sheaf_random_order(&random, training->order, training->examples.count);
    training->loss = 0.0;
    training->correct = 0;
}

/* Examples order[0..batch), or `first` onwards when there is no order, into the network's input. */
static void gather(sheaf_network *network, const sheaf_examples *examples, const uint32_t *order, uint32_t first,
                   uint32_t batch) {
    const float scale = network->scale, shift = network->shift;
    for (uint32_t i = 0; i < batch; i++) {
        float *to = network->input + (size_t)i * network->features;
        examples->read(order == NULL ? first + i : order[i], to, &network->labels[i], examples->context);
        for (uint32_t j = 0; j < network->features; j++) to[j] = (to[j] - shift) * scale;
    }
}

static void descend(sheaf_training *training) {
    const float rate = training->options.learning_rate, momentum = training->options.momentum;
    float *restrict w = training->network->parameters, *restrict v = training->velocity;
    const float *restrict gradient = training->network->gradients;
    size_t count = (size_t)training->network->parameter_count;
    for (size_t i = 0; i < count; i++) {
        v[i] = momentum * v[i] + gradient[i];
        w[i] -= rate * v[i];
    }
}

static sheaf_status one_batch(sheaf_training *training) {
    if (training->position == 0) begin_epoch(training);
    uint32_t left = training->examples.count - training->position;
    uint32_t batch = left < training->options.batch ? left : training->options.batch;
    gather(training->network, &training->examples, training->order + training->position, 0, batch);
    (void)sheaf_network_forward(training->network, batch);
    sheaf_batch_result result = sheaf_network_backward(training->network, batch);
    if (!isfinite(result.loss)) return SHEAF_E_NOT_FINITE;
    descend(training);
    training->loss += result.loss;
    training->correct += result.correct;
    training->position += batch;
    if (training->position < training->examples.count) return SHEAF_OK;
    training->position = 0;
    training->epoch++;
    training->epoch_loss = training->loss / (double)training->examples.count;
    return SHEAF_OK;
}

sheaf_status sheaf_training_step(sheaf_training *training, uint32_t batches) {
    for (uint32_t i = 0; i < batches && training->epoch < training->options.epochs; i++) {
        sheaf_status status = one_batch(training);
        if (status != SHEAF_OK) return status;
    }
    return training->epoch < training->options.epochs ? SHEAF_AGAIN : SHEAF_OK;
}

uint32_t sheaf_training_permille(const sheaf_training *training) {
    if (training->options.epochs == 0) return 0;
    double done = (double)training->epoch + (double)training->position / (double)training->examples.count;
    return (uint32_t)(1000.0 * done / (double)training->options.epochs);
}

double sheaf_training_loss(const sheaf_training *training) {
    return training->position > 0 ? training->loss / (double)training->position : training->epoch_loss;
}

sheaf_status sheaf_evaluate(sheaf_network *network, const sheaf_examples *examples, sheaf_evaluation *out) {
    double loss = 0.0;
    uint64_t correct = 0;
    for (uint32_t first = 0; first < examples->count;) {
        uint32_t left = examples->count - first, batch = left < network->batch_max ? left : network->batch_max;
        gather(network, examples, NULL, first, batch);
        (void)sheaf_network_forward(network, batch);
        sheaf_batch_result result = sheaf_network_score(network, batch);
        loss += result.loss;
        correct += result.correct;
        first += batch;
    }
    if (examples->count == 0 || !isfinite(loss)) return examples->count == 0 ? SHEAF_E_USAGE : SHEAF_E_NOT_FINITE;
    out->loss = loss / (double)examples->count;
    out->accuracy = (double)correct / (double)examples->count;
    return SHEAF_OK;
}
