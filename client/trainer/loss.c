#include "client/trainer/loss.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* e^x for x <= 0, by Cephes' polynomial (Moshier 1989), to about one unit in the last place. Not libm's, because the
 * slope becomes part of the update, and libraries differ in the last bit. */
static float exponential(float x) {
    if (!(x > -87.0f)) return x != x ? x : 0.0f;
    float rounded = x * 1.44269504088896341f - 0.5f; /* in (-126.1, -0.5], so the cast rounds to nearest */
    int power = (int)rounded;
    float r = x - (float)power * 0.693359375f;
    r = r - (float)power * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    uint32_t bits = (uint32_t)(power + 127) << 23; /* 2^power; -126 <= power <= 0 */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return y * scale;
}

static uint32_t largest(const float *values, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (values[i] > values[best]) best = i;
    }
    return best;
}

double sheaf_loss(const float *outputs, const uint32_t *labels, uint32_t batch, uint32_t classes, uint32_t *correct,
                  float *slope) {
    double total = 0.0;
    *correct = 0;
    for (uint32_t i = 0; i < batch; i++) {
        const float *row = outputs + (size_t)i * classes;
        uint32_t label = labels[i], best = largest(row, classes);
        assert(label < classes);
        *correct += best == label;
        float top = row[best], sum = 0.0f;
        for (uint32_t j = 0; j < classes; j++) sum += exponential(row[j] - top);
        total += log((double)sum) - (double)(row[label] - top);
        if (slope == NULL) continue;
        for (uint32_t j = 0; j < classes; j++) {
            float likely = exponential(row[j] - top) / sum;
            slope[(size_t)i * classes + j] = (likely - (j == label ? 1.0f : 0.0f)) / (float)batch;
        }
    }
    return total;
}
