/* loss.h - softmax cross-entropy of integer labels.
 *
 * Owner:   the caller. Threads: any; no state.
 * Units:   natural logarithm; outputs are [batch, classes]. */
#pragma once
#include <stdint.h>

/* Sum of the losses; *correct counts the examples whose largest output (the first of equals) is the label's. When
 * `slope` is not NULL it gets the *mean* loss's derivative by each output. Each label < classes. */
double sheaf_loss(const float *outputs, const uint32_t *labels, uint32_t batch, uint32_t classes, uint32_t *correct,
                  float *slope);
