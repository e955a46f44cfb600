/* network.h - a small neural network that trains in memory given by the caller: dense and 2-D convolution layers,
 * ReLU, max-pool, softmax cross-entropy at the end.
 *
 * Its parameters have the names and shapes of a PyTorch nn.Sequential with the same layers: "0.weight" and "0.bias" for
 * the layer at position 0, [out, in] for dense, [out, in, kernel, kernel] for conv. A dense layer flattens what it is
 * given, channels outermost, as nn.Flatten does; an explicit flatten layer only keeps the numbering equal.
 *
 * Owner:   the caller owns the object and its memory; nothing is allocated.
 * Threads: one at a time. Results do not depend on the processor (matrix.h).
 * Units:   images are [channels, height, width]; batches are [example, ...] without padding. Values are float32.
 * Errors:  SHEAF_E_USAGE (a spec that makes no network), SHEAF_E_TOO_LARGE, SHEAF_E_NAME, SHEAF_E_SHAPE, SHEAF_E_DTYPE.
 * Not:     the order of examples and the steps of SGD; those are sgd.h. Files; that is model_file.h. */
#pragma once
#include "client/trainer/layer.h"
#include "client/trainer/random.h"
#include "common/parameters.h"

#define SHEAF_LAYERS_MAX     32u
#define SHEAF_PARAMETERS_MAX (UINT64_C(1) << 28) /* of one network */
#define SHEAF_BATCH_MAX      65536u

typedef struct {
    uint32_t channels, height, width; /* of one example; a table of features has channels = its columns, 1 x 1 */
    float scale, shift;               /* an input value is (raw - shift) * scale */
    uint32_t count;
    sheaf_layer_spec layers[SHEAF_LAYERS_MAX];
} sheaf_network_spec;

typedef struct {
    uint32_t count, batch_max;
    sheaf_layer layers[SHEAF_LAYERS_MAX];
    uint32_t features, classes;
    uint64_t parameter_count;
    float scale, shift;
    float *parameters;           /* [parameter_count], as the layers keep them (layer.h) */
    float *gradients;            /* [parameter_count] */
    float *input;                /* [batch_max, features]: fill it before forward */
    uint32_t *labels;            /* [batch_max], each < classes */
    float *slope, *slope_before; /* the loss by a layer's output and input, [batch_max, widest layer] each */
    sheaf_scratch scratch;
} sheaf_network;

typedef struct {
    double loss;      /* sum over the examples of the batch */
    uint32_t correct; /* examples whose largest output is their label's */
} sheaf_batch_result;

/* SHEAF_OK when the spec makes a network; else *layer says where (count: the whole) and *why in a few words. */
SHEAF_MUST_USE sheaf_status sheaf_network_check(const sheaf_network_spec *spec, uint32_t *layer, const char **why);
/* Values of all parameters, and outputs; 0 when the spec is wrong. */
uint64_t sheaf_network_parameters(const sheaf_network_spec *spec);
uint32_t sheaf_network_classes(const sheaf_network_spec *spec);
/* Memory that sheaf_network_open needs; 0 when the spec is wrong or too large. */
size_t sheaf_network_bytes(const sheaf_network_spec *spec, uint32_t batch_max);
/* All parameters are zero afterwards. `memory` must outlive the network. */
SHEAF_MUST_USE sheaf_status sheaf_network_open(sheaf_network *network, const sheaf_network_spec *spec,
                                               uint32_t batch_max, void *memory, size_t bytes);

/* Parameter tensors: weight and bias of each layer that has them; index < sheaf_network_tensor_count. */
uint32_t sheaf_network_tensor_count(const sheaf_network *network);
void sheaf_network_tensor(const sheaf_network *network, uint32_t index, sheaf_tensor *out);
/* Finds a tensor by name and checks rank and dimensions: SHEAF_E_NAME, SHEAF_E_SHAPE. */
SHEAF_MUST_USE sheaf_status sheaf_network_find(const sheaf_network *network, const char *name, uint32_t rank,
                                               const uint64_t *dims, uint32_t *index);
/* Values [first, first + count) of a tensor, in the order of its dimensions. SHEAF_E_SHAPE when out of its range. */
SHEAF_MUST_USE sheaf_status sheaf_network_load(sheaf_network *network, uint32_t index, uint64_t first,
                                               const float *values, size_t count);
SHEAF_MUST_USE sheaf_status sheaf_network_store(const sheaf_network *network, uint32_t index, uint64_t first,
                                                float *values, size_t count);
/* The same for the gradients of the last sheaf_network_backward. */
SHEAF_MUST_USE sheaf_status sheaf_network_gradient(const sheaf_network *network, uint32_t index, uint64_t first,
                                                   float *values, size_t count);

/* First values: uniform within sqrt(6 / fan_in) before a ReLU (He 2015), else sqrt(6 / (fan_in + fan_out)) (Glorot
 * 2010); biases zero. */
void sheaf_network_initialise(sheaf_network *network, const uint8_t seed[SHEAF_SEED_BYTES]);

/* The outputs for the first `batch` examples of input, [batch, classes]; 1 <= batch <= batch_max. */
const float *sheaf_network_forward(sheaf_network *network, uint32_t batch);
/* Loss and hits of the last forward, by network->labels. */
sheaf_batch_result sheaf_network_score(sheaf_network *network, uint32_t batch);
/* Gradients of the mean loss over the batch of the last forward. */
sheaf_batch_result sheaf_network_backward(sheaf_network *network, uint32_t batch);
