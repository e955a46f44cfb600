/* bench.h - what `sheaf bench X` hands to X, and what comes back.
 *
 * Threads: one.
 * Units:   bytes, seconds; a result names its own.
 * Errors:  of a benchmark: 0, with a problem. */
#pragma once
#include <stddef.h>

#include "common/problem.h"

#define SHEAF_BENCH_RESULTS_MAX 32u

typedef struct {
    const char *name, *unit;
    double value, reference; /* reference 0: none */
} sheaf_bench_result;

typedef struct {
    unsigned clients, turns;
    size_t bytes, frame_bytes;
    double seconds;
    const char *only; /* one result, or NULL for all */
    void (*show)(const sheaf_bench_result *result);
} sheaf_bench_options;

int sheaf_bench_is_wanted(const sheaf_bench_options *options, const char *name);

/* Fills results (SHEAF_BENCH_RESULTS_MAX) and *count; 1 when all went well. */
int sheaf_bench_transport(const sheaf_bench_options *options, sheaf_bench_result *results, size_t *count,
                          sheaf_problem *problem);
