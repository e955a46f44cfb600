#include "server/aggregate/optimizer.h"

#include "common/lattice.h"

#include <assert.h>

static void fedavg(size_t count, const float *base, const float *mean, float *state, float *next) {
    (void)state;
    for (size_t i = 0; i < count; i++) next[i] = base[i] + mean[i];
}

const sheaf_optimizer sheaf_optimizer_fedavg = {"fedavg", 0, fedavg};

void sheaf_optimizer_step(const sheaf_optimizer *optimizer, size_t count, const float *base, const float *mean,
                          float *state, float *next) {
    assert(lattice_float_environment_ok());
    assert(optimizer->state_values == 0 || state != NULL);
    optimizer->step(count, base, mean, state, next);
}
