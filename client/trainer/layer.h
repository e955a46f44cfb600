/* layer.h - what a layer is to its network: a spec, shapes, its parameters, and three functions. One file per kind.
 *
 * Weights are kept as [fan_in, out], the transpose of the tensors that leave the device: so that both the outputs and
 * the weights' gradients are products with long rows of `out` (matrix.h). sheaf_network_load and _store turn them.
 *
 * Owner:   the network; layers point into its memory.
 * Threads: as the network.
 * Units:   floats; [batch, channels, height, width]. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef enum {
    SHEAF_LAYER_DENSE = 0,
    SHEAF_LAYER_CONV,
    SHEAF_LAYER_RELU,
    SHEAF_LAYER_MAXPOOL,
    SHEAF_LAYER_FLATTEN,
    SHEAF_LAYER_KINDS
} sheaf_layer_kind;

typedef enum { SHEAF_PADDING_VALID = 0, SHEAF_PADDING_SAME } sheaf_padding;

typedef struct {
    sheaf_layer_kind kind;
    uint32_t units;    /* dense: outputs */
    uint32_t channels; /* conv: outputs */
    uint32_t kernel;   /* conv: height and width of the window */
    uint32_t stride;   /* conv: step of the window; 1 with same padding */
    sheaf_padding padding;
    uint32_t size; /* maxpool: window and step; a rest at the right or bottom is left out, as in PyTorch */
} sheaf_layer_spec;

typedef struct {
    uint32_t channels, height, width;
} sheaf_shape;

#define SHEAF_LAYER_VALUES_MAX (UINT64_C(1) << 24) /* outputs of one layer for one example */
#define SHEAF_LAYER_FLOATS_MAX (UINT64_C(1) << 28) /* any one array of a layer */

/* <= SHEAF_LAYER_VALUES_MAX once the network is checked. */
static inline size_t sheaf_shape_size(sheaf_shape s) { return (size_t)s.channels * s.height * s.width; }

/* Shared by all layers of a network, one at a time; each part as large as the hungriest layer needs. */
typedef struct {
    float *pack;  /* for matrix.h */
    float *patch; /* conv: [fan_in, pixels] of one example; dense: [in, batch] */
    float *turn;  /* conv: [pixels, out] of one example; dense: [out, batch] */
} sheaf_scratch;

typedef struct sheaf_layer sheaf_layer;

typedef struct {
    const char *name;
    /* Fills out, fan_in, outputs and the scratch sizes, each <= SHEAF_LAYER_FLOATS_MAX, from spec and in. NULL, or why
     * this cannot be. */
    const char *(*shape)(sheaf_layer *layer, uint32_t batch_max);
    void (*forward)(const sheaf_layer *layer, uint32_t batch, const float *in, const sheaf_scratch *scratch);
    /* `slope` is the loss by this layer's output; it may be spoilt. Fills the gradients and, when it is not NULL,
     * slope_before: the loss by `in`. */
    void (*backward)(const sheaf_layer *layer, uint32_t batch, const float *in, float *slope, float *slope_before,
                     const sheaf_scratch *scratch);
    int in_place; /* works on its input: out_values is the layer before's, and slope stays where it is */
} sheaf_layer_ops;

struct sheaf_layer {
    const sheaf_layer_ops *ops;
    sheaf_layer_spec spec;
    sheaf_shape in, out;
    size_t fan_in, outputs;           /* weights are [fan_in, outputs], biases [outputs]; both 0 without parameters */
    size_t patch_floats, turn_floats; /* scratch that it needs */
    float *weight, *bias, *weight_gradient, *bias_gradient;
    float *values;    /* outputs of the last forward, [batch_max, out] */
    uint8_t *winners; /* maxpool: which place of the window won, [batch_max, out] */
};

extern const sheaf_layer_ops sheaf_layer_dense, sheaf_layer_conv, sheaf_layer_relu, sheaf_layer_maxpool,
    sheaf_layer_flatten;
