/* relu.c - max(x, 0), in place; and flatten, which only renames a shape. */
#include "client/trainer/layer.h"

static const char *relu_shape(sheaf_layer *layer, uint32_t batch_max) {
    (void)batch_max;
    layer->out = layer->in;
    return NULL;
}

/* A NaN stays one (the comparison is false), so that a diverged model is seen and not hidden. */
static void relu_forward(const sheaf_layer *layer, uint32_t batch, const float *in, const sheaf_scratch *scratch) {
    (void)in;
    (void)scratch;
    size_t count = batch * sheaf_shape_size(layer->out);
    float *values = layer->values;
    for (size_t i = 0; i < count; i++) values[i] = values[i] < 0.0f ? 0.0f : values[i];
}

static void relu_backward(const sheaf_layer *layer, uint32_t batch, const float *in, float *slope, float *slope_before,
                          const sheaf_scratch *scratch) {
    (void)in;
    (void)slope_before;
    (void)scratch;
    size_t count = batch * sheaf_shape_size(layer->out);
    const float *restrict values = layer->values;
    float *restrict loose = slope;
    for (size_t i = 0; i < count; i++) {
        float kept = loose[i]; /* read in any case, so that the compiler needs no branch */
        loose[i] = values[i] > 0.0f ? kept : 0.0f;
    }
}

static const char *flatten_shape(sheaf_layer *layer, uint32_t batch_max) {
    (void)batch_max;
    size_t size = sheaf_shape_size(layer->in);
    if (size > UINT32_MAX) return "too many values";
    layer->out = (sheaf_shape){(uint32_t)size, 1, 1};
    return NULL;
}

static void flatten_forward(const sheaf_layer *layer, uint32_t batch, const float *in, const sheaf_scratch *scratch) {
    (void)layer;
    (void)batch;
    (void)in;
    (void)scratch;
}

static void flatten_backward(const sheaf_layer *layer, uint32_t batch, const float *in, float *slope,
                             float *slope_before, const sheaf_scratch *scratch) {
    (void)slope;
    (void)slope_before;
    flatten_forward(layer, batch, in, scratch);
}

const sheaf_layer_ops sheaf_layer_relu = {"relu", relu_shape, relu_forward, relu_backward, 1};
const sheaf_layer_ops sheaf_layer_flatten = {"flatten", flatten_shape, flatten_forward, flatten_backward, 1};
