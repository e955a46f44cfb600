/* dense.c - every output sees every input: y = x W + b, x flattened. */
#include <string.h>

#include "client/trainer/layer.h"
#include "client/trainer/matrix.h"

static const char *dense_shape(sheaf_layer *layer, uint32_t batch_max) {
    if (layer->spec.units == 0 || layer->spec.units > 65536) return "units must be 1 to 65536";
    layer->fan_in = sheaf_shape_size(layer->in);
    layer->outputs = layer->spec.units;
    uint64_t rows = batch_max > layer->outputs ? batch_max : layer->outputs;
    if ((uint64_t)layer->fan_in * rows > SHEAF_LAYER_FLOATS_MAX) return "too many weights, or too large a batch";
    layer->out = (sheaf_shape){layer->spec.units, 1, 1};
    layer->patch_floats = layer->fan_in * batch_max;
    layer->turn_floats = layer->outputs * batch_max;
    return NULL;
}

static void dense_forward(const sheaf_layer *layer, uint32_t batch, const float *in, const sheaf_scratch *scratch) {
    size_t outputs = layer->outputs;
    for (uint32_t i = 0; i < batch; i++) memcpy(layer->values + i * outputs, layer->bias, outputs * sizeof(float));
    sheaf_matrix_multiply(&(sheaf_product){.rows = batch,
                                           .columns = outputs,
                                           .inner = layer->fan_in,
                                           .a = in,
                                           .a_row = layer->fan_in,
                                           .a_step = 1,
                                           .b = layer->weight,
                                           .b_row = outputs,
                                           .c = layer->values,
                                           .c_row = outputs,
                                           .add = 1,
                                           .pack = scratch->pack});
}

/* The transpose of the slope before, [in, batch] = W [in, out] slope' [out, batch], is cheaper to make and to turn than
 * the transpose of W. */
static void slope_of_input(const sheaf_layer *layer, uint32_t batch, const float *slope, float *slope_before,
                           const sheaf_scratch *scratch) {
    sheaf_matrix_transpose(slope, batch, layer->outputs, layer->outputs, scratch->turn, batch);
    sheaf_matrix_multiply(&(sheaf_product){.rows = layer->fan_in,
                                           .columns = batch,
                                           .inner = layer->outputs,
                                           .a = layer->weight,
                                           .a_row = layer->outputs,
                                           .a_step = 1,
                                           .b = scratch->turn,
                                           .b_row = batch,
                                           .c = scratch->patch,
                                           .c_row = batch,
                                           .add = 0,
                                           .pack = scratch->pack});
    sheaf_matrix_transpose(scratch->patch, layer->fan_in, batch, batch, slope_before, layer->fan_in);
}

static void dense_backward(const sheaf_layer *layer, uint32_t batch, const float *in, float *slope, float *slope_before,
                           const sheaf_scratch *scratch) {
    size_t outputs = layer->outputs;
    memset(layer->bias_gradient, 0, outputs * sizeof(float));
    for (uint32_t i = 0; i < batch; i++) {
        for (size_t j = 0; j < outputs; j++) layer->bias_gradient[j] += slope[i * outputs + j];
    }
    sheaf_matrix_multiply(&(sheaf_product){.rows = layer->fan_in,
                                           .columns = outputs,
                                           .inner = batch,
                                           .a = in,
                                           .a_row = 1,
                                           .a_step = layer->fan_in,
                                           .b = slope,
                                           .b_row = outputs,
                                           .c = layer->weight_gradient,
                                           .c_row = outputs,
                                           .add = 0,
                                           .pack = scratch->pack});
    if (slope_before != NULL) slope_of_input(layer, batch, slope, slope_before, scratch);
}

const sheaf_layer_ops sheaf_layer_dense = {"dense", dense_shape, dense_forward, dense_backward, 0};
