/* conv.c - 2-D convolution, as PyTorch means it (the window is not mirrored).
 *
 * One example at a time is unfolded into a matrix of patches [fan_in, pixels], fan_in = channels x kernel x kernel, so
 * that both passes are products: out = W' patches; gradient of W = patches slope'; slope of the patches = W slope,
 * folded back by adding up. One example's patches stay in the nearest caches, which those of a batch would not; the
 * backward pass unfolds again rather than remember. */
#include <string.h>

#include "client/trainer/layer.h"
#include "client/trainer/matrix.h"

static const char *conv_shape(sheaf_layer *layer, uint32_t batch_max) {
    (void)batch_max;
    const sheaf_layer_spec *spec = &layer->spec;
    if (spec->channels == 0 || spec->channels > 4096) return "channels must be 1 to 4096";
    if (spec->kernel == 0 || spec->kernel > 64) return "kernel must be 1 to 64";
    if (spec->stride == 0 || spec->stride > 64) return "stride must be 1 to 64";
    int same = spec->padding == SHEAF_PADDING_SAME;
    if (same && spec->stride != 1) return "same padding needs stride 1";
    if (!same && (spec->kernel > layer->in.height || spec->kernel > layer->in.width))
        return "kernel is larger than its input";
    layer->out.channels = spec->channels;
    layer->out.height = same ? layer->in.height : (layer->in.height - spec->kernel) / spec->stride + 1;
    layer->out.width = same ? layer->in.width : (layer->in.width - spec->kernel) / spec->stride + 1;
    layer->fan_in = (size_t)layer->in.channels * spec->kernel * spec->kernel;
    layer->outputs = spec->channels;
    size_t pixels = (size_t)layer->out.height * layer->out.width;
    uint64_t widest = layer->fan_in > layer->outputs ? layer->fan_in : layer->outputs;
    if (widest * pixels > SHEAF_LAYER_FLOATS_MAX) return "too many patches";
    layer->patch_floats = layer->fan_in * pixels;
    layer->turn_floats = layer->outputs * pixels;
    return NULL;
}

/* Where one place of the window lies over the input: output (y, x) meets input (y * stride + top, x * stride + left).
 */
typedef struct {
    ptrdiff_t top, left;
    ptrdiff_t stride;
    ptrdiff_t first, last; /* outputs x in [first, last) meet a pixel inside the row */
} place;

static place place_of(const sheaf_layer *layer, uint32_t ky, uint32_t kx) {
    ptrdiff_t before = layer->spec.padding == SHEAF_PADDING_SAME ? (ptrdiff_t)(layer->spec.kernel - 1) / 2 : 0;
    ptrdiff_t width = (ptrdiff_t)layer->in.width, out_width = (ptrdiff_t)layer->out.width;
    place p = {.top = (ptrdiff_t)ky - before, .left = (ptrdiff_t)kx - before, .stride = (ptrdiff_t)layer->spec.stride};
    /* Only same padding (stride 1) leaves the input at all. */
    p.first = p.left < 0 ? -p.left : 0;
    p.last = p.left > width - out_width && p.stride == 1 ? width - p.left : out_width;
    if (p.first > out_width) p.first = out_width;
    if (p.last < p.first) p.last = p.first;
    return p;
}

static void unfold_row(const place *p, const float *in, float *out, ptrdiff_t out_width) {
    for (ptrdiff_t x = 0; x < p->first; x++) out[x] = 0.0f;
    if (p->stride == 1)
        memcpy(out + p->first, in + p->first + p->left, (size_t)(p->last - p->first) * sizeof *out);
    else
        for (ptrdiff_t x = p->first; x < p->last; x++) out[x] = in[x * p->stride + p->left];
    for (ptrdiff_t x = p->last; x < out_width; x++) out[x] = 0.0f;
}

static void fold_row(const place *p, const float *in, float *out) {
    for (ptrdiff_t x = p->first; x < p->last; x++) out[x * p->stride + p->left] += in[x];
}

/* One channel, one place of the window: a row of the patch matrix. */
static void unfold_plane(const sheaf_layer *layer, const place *p, const float *in, float *out) {
    ptrdiff_t height = (ptrdiff_t)layer->in.height, width = (ptrdiff_t)layer->in.width;
    ptrdiff_t out_width = (ptrdiff_t)layer->out.width;
    for (ptrdiff_t y = 0; y < (ptrdiff_t)layer->out.height; y++, out += out_width) {
        ptrdiff_t row = y * p->stride + p->top;
        if (row < 0 || row >= height)
            memset(out, 0, (size_t)out_width * sizeof *out);
        else
            unfold_row(p, in + row * width, out, out_width);
    }
}

static void fold_plane(const sheaf_layer *layer, const place *p, const float *in, float *out) {
    ptrdiff_t height = (ptrdiff_t)layer->in.height, width = (ptrdiff_t)layer->in.width;
    for (ptrdiff_t y = 0; y < (ptrdiff_t)layer->out.height; y++, in += layer->out.width) {
        ptrdiff_t row = y * p->stride + p->top;
        if (row >= 0 && row < height) fold_row(p, in, out + row * width);
    }
}

static void unfold(const sheaf_layer *layer, const float *in, float *patches) {
    uint32_t kernel = layer->spec.kernel;
    size_t plane = (size_t)layer->in.height * layer->in.width, pixels = (size_t)layer->out.height * layer->out.width;
    for (size_t row = 0; row < layer->fan_in; row++) {
        place p = place_of(layer, (uint32_t)(row / kernel % kernel), (uint32_t)(row % kernel));
        unfold_plane(layer, &p, in + row / kernel / kernel * plane, patches + row * pixels);
    }
}

static void fold(const sheaf_layer *layer, const float *patches, float *in) {
    uint32_t kernel = layer->spec.kernel;
    size_t plane = (size_t)layer->in.height * layer->in.width, pixels = (size_t)layer->out.height * layer->out.width;
    memset(in, 0, sheaf_shape_size(layer->in) * sizeof *in);
    for (size_t row = 0; row < layer->fan_in; row++) {
        place p = place_of(layer, (uint32_t)(row / kernel % kernel), (uint32_t)(row % kernel));
        fold_plane(layer, &p, patches + row * pixels, in + row / kernel / kernel * plane);
    }
}

static void conv_forward(const sheaf_layer *layer, uint32_t batch, const float *in, const sheaf_scratch *scratch) {
    size_t pixels = (size_t)layer->out.height * layer->out.width, in_size = sheaf_shape_size(layer->in);
    for (uint32_t i = 0; i < batch; i++) {
        float *out = layer->values + i * layer->outputs * pixels;
        for (size_t channel = 0; channel < layer->outputs; channel++) {
            for (size_t j = 0; j < pixels; j++) out[channel * pixels + j] = layer->bias[channel];
        }
        unfold(layer, in + i * in_size, scratch->patch);
        sheaf_matrix_multiply(&(sheaf_product){.rows = layer->outputs,
                                               .columns = pixels,
                                               .inner = layer->fan_in,
                                               .a = layer->weight,
                                               .a_row = 1,
                                               .a_step = layer->outputs,
                                               .b = scratch->patch,
                                               .b_row = pixels,
                                               .c = out,
                                               .c_row = pixels,
                                               .add = 1,
                                               .pack = scratch->pack});
    }
}

/* Sum in eight interleaved parts: as fast as the registers allow, and the same order on every processor. */
static float sum_of(const float *values, size_t count) {
    float part[8] = {0};
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (size_t j = 0; j < 8; j++) part[j] += values[i + j];
    }
    for (; i < count; i++) part[i % 8] += values[i];
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

static void backward_one(const sheaf_layer *layer, const float *in, const float *slope, float *slope_before,
                         const sheaf_scratch *scratch) {
    size_t outputs = layer->outputs, pixels = (size_t)layer->out.height * layer->out.width;
    for (size_t channel = 0; channel < outputs; channel++)
        layer->bias_gradient[channel] += sum_of(slope + channel * pixels, pixels);
    unfold(layer, in, scratch->patch);
    sheaf_matrix_transpose(slope, outputs, pixels, pixels, scratch->turn, outputs);
    sheaf_matrix_multiply(&(sheaf_product){.rows = layer->fan_in,
                                           .columns = outputs,
                                           .inner = pixels,
                                           .a = scratch->patch,
                                           .a_row = pixels,
                                           .a_step = 1,
                                           .b = scratch->turn,
                                           .b_row = outputs,
                                           .c = layer->weight_gradient,
                                           .c_row = outputs,
                                           .add = 1,
                                           .pack = scratch->pack});
    if (slope_before == NULL) return;
    sheaf_matrix_multiply(&(sheaf_product){.rows = layer->fan_in,
                                           .columns = pixels,
                                           .inner = outputs,
                                           .a = layer->weight,
                                           .a_row = outputs,
                                           .a_step = 1,
                                           .b = slope,
                                           .b_row = pixels,
                                           .c = scratch->patch,
                                           .c_row = pixels,
                                           .add = 0,
                                           .pack = scratch->pack});
    fold(layer, scratch->patch, slope_before);
}

static void conv_backward(const sheaf_layer *layer, uint32_t batch, const float *in, float *slope, float *slope_before,
                          const sheaf_scratch *scratch) {
    size_t in_size = sheaf_shape_size(layer->in), out_size = sheaf_shape_size(layer->out);
    memset(layer->weight_gradient, 0, layer->fan_in * layer->outputs * sizeof(float));
    memset(layer->bias_gradient, 0, layer->outputs * sizeof(float));
    for (uint32_t i = 0; i < batch; i++) {
        backward_one(layer, in + i * in_size, slope + i * out_size,
                     slope_before == NULL ? NULL : slope_before + i * in_size, scratch);
    }
}

const sheaf_layer_ops sheaf_layer_conv = {"conv", conv_shape, conv_forward, conv_backward, 0};
