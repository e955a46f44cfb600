#include "client/trainer/network.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/trainer/loss.h"
#include "client/trainer/matrix.h"

static const sheaf_layer_ops *const ops_of_kind[SHEAF_LAYER_KINDS] = {
    [SHEAF_LAYER_DENSE] = &sheaf_layer_dense,     [SHEAF_LAYER_CONV] = &sheaf_layer_conv,
    [SHEAF_LAYER_RELU] = &sheaf_layer_relu,       [SHEAF_LAYER_MAXPOOL] = &sheaf_layer_maxpool,
    [SHEAF_LAYER_FLATTEN] = &sheaf_layer_flatten,
};

/* ---- shapes ---- */

static const char *check_shape(sheaf_shape shape) {
    uint64_t size = (uint64_t)shape.height * shape.width;
    if (shape.channels == 0 || size == 0) return "has no values";
    if (size > SHEAF_LAYER_VALUES_MAX || size * shape.channels > SHEAF_LAYER_VALUES_MAX)
        return "more than 16777216 values";
    return NULL;
}

static const char *shape_layer(sheaf_layer *layer, const sheaf_layer_spec *spec, sheaf_shape in, uint32_t batch_max) {
    memset(layer, 0, sizeof *layer);
    if ((unsigned)spec->kind >= SHEAF_LAYER_KINDS) return "unknown kind";
    layer->ops = ops_of_kind[spec->kind];
    layer->spec = *spec;
    layer->in = in;
    const char *why = layer->ops->shape(layer, batch_max);
    if (why == NULL) why = check_shape(layer->out);
    if (why == NULL && sheaf_shape_size(layer->out) * (uint64_t)batch_max > SHEAF_LAYER_FLOATS_MAX)
        why = "too large a batch";
    return why;
}

/* Fills the layers' shapes and the network's counts; memory comes later. */
static sheaf_status shape_network(sheaf_network *network, const sheaf_network_spec *spec, uint32_t batch_max,
                                  uint32_t *where, const char **why) {
    memset(network, 0, sizeof *network);
    sheaf_shape shape = {spec->channels, spec->height, spec->width};
    *where = spec->count;
    *why = check_shape(shape);
    if (*why == NULL && (spec->count == 0 || spec->count > SHEAF_LAYERS_MAX)) *why = "needs 1 to 32 layers";
    if (*why == NULL && (batch_max == 0 || batch_max > SHEAF_BATCH_MAX)) *why = "needs a batch of 1 to 65536";
    if (*why == NULL && !(isfinite(spec->scale) && isfinite(spec->shift))) *why = "scale and shift must be finite";
    if (*why != NULL) return SHEAF_E_USAGE;
    network->features = (uint32_t)sheaf_shape_size(shape);
    for (uint32_t i = 0; i < spec->count; i++) {
        *where = i;
        *why = shape_layer(&network->layers[i], &spec->layers[i], shape, batch_max);
        if (*why != NULL) return SHEAF_E_USAGE;
        const sheaf_layer *layer = &network->layers[i];
        network->parameter_count += ((uint64_t)layer->fan_in + 1) * layer->outputs;
        shape = layer->out;
    }
    network->classes = (uint32_t)sheaf_shape_size(shape);
    if (network->classes < 2) *why = "must have at least two outputs, one a class";
    if (network->parameter_count > SHEAF_PARAMETERS_MAX) *why = "more than 268435456 parameters";
    if (network->parameter_count == 0) *why = "has no parameters to train";
    network->count = spec->count;
    network->batch_max = batch_max;
    network->scale = spec->scale;
    network->shift = spec->shift;
    return *why == NULL ? SHEAF_OK : SHEAF_E_USAGE;
}

sheaf_status sheaf_network_check(const sheaf_network_spec *spec, uint32_t *layer, const char **why) {
    sheaf_network network;
    return shape_network(&network, spec, 1, layer, why);
}

uint64_t sheaf_network_parameters(const sheaf_network_spec *spec) {
    sheaf_network network;
    uint32_t layer;
    const char *why;
    return shape_network(&network, spec, 1, &layer, &why) == SHEAF_OK ? network.parameter_count : 0;
}

uint32_t sheaf_network_classes(const sheaf_network_spec *spec) {
    sheaf_network network;
    uint32_t layer;
    const char *why;
    return shape_network(&network, spec, 1, &layer, &why) == SHEAF_OK ? network.classes : 0;
}

/* ---- memory ---- */

enum { ALIGNMENT = 64 }; /* a cache line */

/* Hands out parts of one block; without a block it only counts. */
typedef struct {
    uint8_t *base; /* NULL while counting */
    uint64_t used;
} arena;

static void *carve(arena *a, uint64_t count, size_t item_bytes) {
    void *part = a->base == NULL ? NULL : a->base + a->used;
    a->used += (count * item_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return part;
}

static void place_parameters(sheaf_network *network) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < network->count; i++) {
        sheaf_layer *layer = &network->layers[i];
        if (layer->outputs == 0) continue;
        layer->weight = network->parameters + at;
        layer->weight_gradient = network->gradients + at;
        at += (uint64_t)layer->fan_in * layer->outputs;
        layer->bias = network->parameters + at;
        layer->bias_gradient = network->gradients + at;
        at += layer->outputs;
    }
    assert(at == network->parameter_count);
}

static void place_layers(sheaf_network *network, arena *a) {
    uint64_t widest = network->features, patch = 0, turn = 0;
    float *before = network->input;
    for (uint32_t i = 0; i < network->count; i++) {
        sheaf_layer *layer = &network->layers[i];
        uint64_t size = sheaf_shape_size(layer->out);
        layer->values = layer->ops->in_place ? before : carve(a, size * network->batch_max, sizeof(float));
        if (layer->spec.kind == SHEAF_LAYER_MAXPOOL) layer->winners = carve(a, size * network->batch_max, 1);
        before = layer->values;
        if (size > widest) widest = size;
        if (layer->patch_floats > patch) patch = layer->patch_floats;
        if (layer->turn_floats > turn) turn = layer->turn_floats;
    }
    network->slope = carve(a, widest * network->batch_max, sizeof(float));
    network->slope_before = carve(a, widest * network->batch_max, sizeof(float));
    network->scratch.pack = carve(a, SHEAF_MATRIX_PACK, sizeof(float));
    network->scratch.patch = carve(a, patch, sizeof(float));
    network->scratch.turn = carve(a, turn, sizeof(float));
}

/* Every count here is below 2^44 by the limits of shape_network, so 64 bits hold the sum. */
static void place_all(sheaf_network *network, arena *a) {
    network->parameters = carve(a, network->parameter_count, sizeof(float));
    network->gradients = carve(a, network->parameter_count, sizeof(float));
    network->input = carve(a, (uint64_t)network->features * network->batch_max, sizeof(float));
    network->labels = carve(a, network->batch_max, sizeof(uint32_t));
    place_layers(network, a);
    if (a->base != NULL) place_parameters(network);
}

size_t sheaf_network_bytes(const sheaf_network_spec *spec, uint32_t batch_max) {
    sheaf_network network;
    uint32_t layer;
    const char *why;
    if (shape_network(&network, spec, batch_max, &layer, &why) != SHEAF_OK) return 0;
    arena a = {NULL, ALIGNMENT};
    place_all(&network, &a);
    return a.used > SIZE_MAX / 2 ? 0 : (size_t)a.used;
}

sheaf_status sheaf_network_open(sheaf_network *network, const sheaf_network_spec *spec, uint32_t batch_max,
                                void *memory, size_t bytes) {
    uint32_t layer;
    const char *why;
    sheaf_status status = shape_network(network, spec, batch_max, &layer, &why);
    if (status != SHEAF_OK) return status;
    if (bytes < sheaf_network_bytes(spec, batch_max)) return SHEAF_E_TOO_LARGE;
    memset(memory, 0, bytes);
    uint8_t *base = memory;
    arena a = {base + (ALIGNMENT - (uintptr_t)base % ALIGNMENT), 0};
    place_all(network, &a);
    return SHEAF_OK;
}

/* ---- parameters by name ---- */

static sheaf_layer *layer_of(const sheaf_network *network, uint32_t index, uint32_t *position) {
    for (uint32_t i = 0; i < network->count; i++) {
        if (network->layers[i].outputs == 0) continue;
        if (position != NULL) *position = i;
        if (index < 2) return (sheaf_layer *)&network->layers[i];
        index -= 2;
    }
    return NULL;
}

uint32_t sheaf_network_tensor_count(const sheaf_network *network) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < network->count; i++) count += network->layers[i].outputs != 0 ? 2 : 0;
    return count;
}

void sheaf_network_tensor(const sheaf_network *network, uint32_t index, sheaf_tensor *out) {
    uint32_t position = 0;
    const sheaf_layer *layer = layer_of(network, index, &position);
    assert(layer != NULL);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%u.%s", (unsigned)position, index % 2 == 0 ? "weight" : "bias");
    memcpy(out->dtype, "F32", 4);
    out->dims[0] = layer->outputs;
    out->rank = 1;
    if (index % 2 == 0 && layer->spec.kind == SHEAF_LAYER_DENSE) out->dims[out->rank++] = layer->fan_in;
    if (index % 2 == 0 && layer->spec.kind == SHEAF_LAYER_CONV) {
        out->dims[out->rank++] = layer->in.channels;
        out->dims[out->rank++] = layer->spec.kernel;
        out->dims[out->rank++] = layer->spec.kernel;
    }
    out->elements = index % 2 == 0 ? (uint64_t)layer->fan_in * layer->outputs : layer->outputs;
    out->bytes = out->elements * sizeof(float);
}

sheaf_status sheaf_network_find(const sheaf_network *network, const char *name, uint32_t rank, const uint64_t *dims,
                                uint32_t *index) {
    uint32_t count = sheaf_network_tensor_count(network);
    for (uint32_t i = 0; i < count; i++) {
        sheaf_tensor tensor;
        sheaf_network_tensor(network, i, &tensor);
        if (strcmp(tensor.name, name) != 0) continue;
        *index = i;
        return rank == tensor.rank && memcmp(dims, tensor.dims, rank * sizeof *dims) == 0 ? SHEAF_OK : SHEAF_E_SHAPE;
    }
    return SHEAF_E_NAME;
}

/* Where the values of a tensor lie: element e of the tensor [rows, columns] at base[e % columns * rows + e / columns].
 */
typedef struct {
    float *base;
    uint64_t rows, columns;
} layout;

static sheaf_status find_layout(const sheaf_network *network, float *of, uint32_t index, uint64_t first, uint64_t count,
                                layout *out) {
    const sheaf_layer *layer = layer_of(network, index, NULL);
    if (layer == NULL) return SHEAF_E_NAME;
    int weight = index % 2 == 0;
    out->base = of + ((weight ? layer->weight : layer->bias) - network->parameters);
    out->rows = layer->outputs;
    out->columns = weight ? layer->fan_in : 1;
    uint64_t elements = out->rows * out->columns;
    return first <= elements && count <= elements - first ? SHEAF_OK : SHEAF_E_SHAPE;
}

sheaf_status sheaf_network_load(sheaf_network *network, uint32_t index, uint64_t first, const float *values,
                                size_t count) {
    layout at;
    sheaf_status status = find_layout(network, network->parameters, index, first, count, &at);
    if (status != SHEAF_OK) return status;
    uint64_t row = first / at.columns, column = first % at.columns;
    for (size_t i = 0; i < count; i++) {
        at.base[column * at.rows + row] = values[i];
        if (++column == at.columns) column = 0, row++;
    }
    return SHEAF_OK;
}

static sheaf_status read_out(const sheaf_network *network, float *of, uint32_t index, uint64_t first, float *values,
                             size_t count) {
    layout at;
    sheaf_status status = find_layout(network, of, index, first, count, &at);
    if (status != SHEAF_OK) return status;
    uint64_t row = first / at.columns, column = first % at.columns;
    for (size_t i = 0; i < count; i++) {
        values[i] = at.base[column * at.rows + row];
        if (++column == at.columns) column = 0, row++;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_network_store(const sheaf_network *network, uint32_t index, uint64_t first, float *values,
                                 size_t count) {
    return read_out(network, network->parameters, index, first, values, count);
}

sheaf_status sheaf_network_gradient(const sheaf_network *network, uint32_t index, uint64_t first, float *values,
                                    size_t count) {
    return read_out(network, network->gradients, index, first, values, count);
}

/* ---- work ---- */

/* Values are drawn in the order of the tensor [out, fan_in], so that they do not depend on how it is kept. */
static void initialise_layer(sheaf_layer *layer, int before_relu, sheaf_random *random) {
    double fans = (double)layer->fan_in;
    if (!before_relu)
        fans += layer->spec.kind == SHEAF_LAYER_CONV
                    ? (double)(layer->outputs * layer->spec.kernel * layer->spec.kernel)
                    : (double)layer->outputs;
    float limit = (float)sqrt(6.0 / fans);
    for (size_t row = 0; row < layer->outputs; row++) {
        for (size_t column = 0; column < layer->fan_in; column++) {
            layer->weight[column * layer->outputs + row] = (2.0f * sheaf_random_unit(random) - 1.0f) * limit;
        }
        layer->bias[row] = 0.0f;
    }
}

static int leads_to_relu(const sheaf_network *network, uint32_t position) {
    for (uint32_t i = position + 1; i < network->count; i++) {
        if (network->layers[i].spec.kind == SHEAF_LAYER_RELU) return 1;
        if (network->layers[i].outputs != 0) return 0;
    }
    return 0;
}

void sheaf_network_initialise(sheaf_network *network, const uint8_t seed[SHEAF_SEED_BYTES]) {
    for (uint32_t i = 0; i < network->count; i++) {
        if (network->layers[i].outputs == 0) continue;
        sheaf_random random;
        sheaf_random_init(&random, seed, i);
        initialise_layer(&network->layers[i], leads_to_relu(network, i), &random);
    }
}

static const float *input_of(const sheaf_network *network, uint32_t position) {
    return position == 0 ? network->input : network->layers[position - 1].values;
}

const float *sheaf_network_forward(sheaf_network *network, uint32_t batch) {
    assert(batch >= 1 && batch <= network->batch_max);
    for (uint32_t i = 0; i < network->count; i++) {
        network->layers[i].ops->forward(&network->layers[i], batch, input_of(network, i), &network->scratch);
    }
    return network->layers[network->count - 1].values;
}

sheaf_batch_result sheaf_network_score(sheaf_network *network, uint32_t batch) {
    sheaf_batch_result result;
    const float *outputs = network->layers[network->count - 1].values;
    result.loss = sheaf_loss(outputs, network->labels, batch, network->classes, &result.correct, NULL);
    return result;
}

/* No slope is needed before the first layer that has parameters. */
static uint32_t first_trained(const sheaf_network *network) {
    uint32_t i = 0;
    while (network->layers[i].outputs == 0) i++;
    return i;
}

sheaf_batch_result sheaf_network_backward(sheaf_network *network, uint32_t batch) {
    assert(batch >= 1 && batch <= network->batch_max);
    sheaf_batch_result result;
    float *slope = network->slope, *slope_before = network->slope_before;
    const float *outputs = network->layers[network->count - 1].values;
    result.loss = sheaf_loss(outputs, network->labels, batch, network->classes, &result.correct, slope);
    uint32_t first = first_trained(network);
    for (uint32_t i = network->count; i-- > first;) {
        const sheaf_layer *layer = &network->layers[i];
        layer->ops->backward(layer, batch, input_of(network, i), slope, i == first ? NULL : slope_before,
                             &network->scratch);
        if (layer->ops->in_place) continue;
        float *swap = slope;
        slope = slope_before;
        slope_before = swap;
    }
    return result;
}
