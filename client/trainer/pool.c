/* pool.c - the largest value of each window; the windows do not overlap. The first of equal values wins, as in PyTorch.
 */
#include <string.h>

#include "client/trainer/layer.h"

static const char *maxpool_shape(sheaf_layer *layer, uint32_t batch_max) {
    (void)batch_max;
    uint32_t size = layer->spec.size;
    if (size < 2 || size > 15) return "size must be 2 to 15"; /* size * size - 1 fits the winners' uint8 */
    if (size > layer->in.height || size > layer->in.width) return "size is larger than its input";
    layer->out = (sheaf_shape){layer->in.channels, layer->in.height / size, layer->in.width / size};
    return NULL;
}

/* A NaN wins, so that it is seen. */
static void largest_of(const float *window, uint32_t size, size_t row, float *value, uint8_t *winner) {
    *value = window[0];
    *winner = 0;
    for (uint32_t y = 0; y < size; y++) {
        for (uint32_t x = 0; x < size; x++) {
            float candidate = window[y * row + x];
            if (!(candidate > *value) && candidate == candidate) continue;
            *value = candidate;
            *winner = (uint8_t)(y * size + x);
        }
    }
}

/* The common window of 2 x 2, without branches: which value wins is as good as random. */
static void largest_of_pairs(const float *restrict in, size_t row, uint32_t width, float *restrict values,
                             uint8_t *restrict winners) {
    const float *restrict below = in + row;
    for (uint32_t x = 0; x < width; x++) {
        float a = in[2 * x], b = in[2 * x + 1], c = below[2 * x], d = below[2 * x + 1];
        float upper = !(b <= a) ? b : a, lower = !(d <= c) ? d : c;
        unsigned right = !(b <= a), lower_right = !(d <= c), down = !(lower <= upper);
        values[x] = down ? lower : upper;
        winners[x] = (uint8_t)(2u * down + (down & lower_right) + ((1u - down) & right));
    }
}

static void maxpool_forward(const sheaf_layer *layer, uint32_t batch, const float *in, const sheaf_scratch *scratch) {
    (void)scratch;
    uint32_t size = layer->spec.size, width = layer->out.width;
    size_t row = layer->in.width, plane = row * layer->in.height, at = 0;
    for (size_t image = 0; image < (size_t)batch * layer->in.channels; image++, in += plane) {
        for (uint32_t y = 0; y < layer->out.height; y++, at += width) {
            const float *line = in + y * size * row;
            if (size == 2) {
                largest_of_pairs(line, row, width, layer->values + at, layer->winners + at);
                continue;
            }
            for (uint32_t x = 0; x < width; x++)
                largest_of(line + x * size, size, row, layer->values + at + x, layer->winners + at + x);
        }
    }
}

static void maxpool_backward(const sheaf_layer *layer, uint32_t batch, const float *in, float *slope,
                             float *slope_before, const sheaf_scratch *scratch) {
    (void)in;
    (void)scratch;
    if (slope_before == NULL) return;
    uint32_t size = layer->spec.size;
    size_t row = layer->in.width, plane = row * layer->in.height, at = 0;
    memset(slope_before, 0, (size_t)batch * layer->in.channels * plane * sizeof *slope_before);
    for (size_t image = 0; image < (size_t)batch * layer->in.channels; image++, slope_before += plane) {
        for (uint32_t y = 0; y < layer->out.height; y++) {
            for (uint32_t x = 0; x < layer->out.width; x++, at++) {
                uint32_t winner = layer->winners[at];
                slope_before[(y * size + winner / size) * row + x * size + winner % size] = slope[at];
            }
        }
    }
}

const sheaf_layer_ops sheaf_layer_maxpool = {"maxpool", maxpool_shape, maxpool_forward, maxpool_backward, 0};
