/* optimizer.h - how the mean of a round's updates moves the model: one ops table a rule.
 *
 * Elementwise + - x / and square root in IEEE order, so that the result does not depend on how values are split over
 * threads or devices. Called in pieces of any size, in any order.
 *
 * Owner:   the caller's memory.
 * Threads: several at once on disjoint values. The thread must have the default floating-point environment, which
 *          sheaf_optimizer_step asserts.
 * Units:   float32 values; `state` has state_values floats a value, kept across rounds by the job.
 * Errors:  none; the caller refuses values that are not finite. */
#pragma once
#include <stddef.h>

typedef struct {
    const char *name;
    unsigned state_values; /* per parameter: 0 for FedAvg */
    /* next[i] from base[i], mean[i] and the state of i. */
    void (*step)(size_t count, const float *base, const float *mean, float *state, float *next);
} sheaf_optimizer;

extern const sheaf_optimizer sheaf_optimizer_fedavg; /* next = base + mean */

void sheaf_optimizer_step(const sheaf_optimizer *optimizer, size_t count, const float *base, const float *mean,
                          float *state, float *next);
