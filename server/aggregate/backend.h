/* backend.h - where the sums of a round live and who adds to them: one ops table a backend (scalar C; later vector
 * units and GPUs).
 *
 * Backends are compared by memcmp: the same payloads give the same sums on each, in any order, on any number of
 * threads, whole or in parts that are merged. tests/unit/server/aggregate/backend_suite.h is the suite that each must
 * pass.
 *
 * Owner:   the aggregator opens a state and closes it; the state copies the shape. Payloads are borrowed for the call.
 * Threads: validate: any, at any time. add: several at once. All others: one thread, while no add runs.
 * Units:   lattice integers; values are counted over all tensors in the model's order.
 * Errors:  per function, below.
 * Not:     it checks no weight, count or payload size; the aggregator does, and proves that no sum can overflow. */
#pragma once
#include "common/codec/codec.h"

typedef struct {
    uint64_t first;    /* index of the tensor's first value among all values */
    uint64_t elements; /* may be 0 */
    int fraction_bits;
} sheaf_backend_tensor;

typedef struct {
    const sheaf_backend_tensor *tensors;
    size_t count;
    uint64_t elements; /* over all tensors; > 0 */
} sheaf_backend_shape;

typedef struct {
    const char *name; /* "scalar" ... */

    /* All sums zero. SHEAF_E_MEMORY; nothing is left to close on failure. */
    sheaf_status (*open)(const sheaf_backend_shape *shape, void **state);
    void (*close)(void *state);

    /* Whether every value decodes; on failure (SHEAF_E_NOT_FINITE, SHEAF_E_RANGE) *wrong is the first that does not. */
    sheaf_status (*validate)(const void *state, const sheaf_codec *codec, sheaf_span payload, uint64_t *wrong);

    /* sums += weight * q for every value. The payload passed validate: one that does not decode is our bug, asserted. A
     * backend on the CPU cannot fail; a device that is lost says so, and its sums are then void. */
    sheaf_status (*add)(void *state, const sheaf_codec *codec, sheaf_span payload, int64_t weight);

    /* sums[first..first+count) += other: a partial accumulator of another state, node, or recovered round. */
    sheaf_status (*merge)(void *state, uint64_t first, size_t count, const int64_t *other);

    /* out = sums[first..first+count). */
    sheaf_status (*read)(const void *state, uint64_t first, size_t count, int64_t *out);

    /* All sums zero again. */
    sheaf_status (*reset)(void *state);
} sheaf_backend;

extern const sheaf_backend sheaf_backend_scalar; /* cpu.c: plain C, the definition that all others must match */
