/* partition.h - deals examples out to clients, evenly or with unequal shares of each class.
 *
 * Owner:   the caller; `owner` gets the client of each example.
 * Threads: any; no state.
 * Errors:  SHEAF_E_DATA when there are too few examples, or no draw in a thousand gave every client `minimum` of them;
 *          SHEAF_E_MEMORY. */
#pragma once
#include "client/trainer/random.h"
#include "common/problem.h"

typedef struct {
    uint32_t clients; /* 1..65536 */
    double alpha;     /* Dirichlet over clients for each class (Hsu, Qi, Brown 2019); 0 = iid */
    uint32_t
        minimum; /* examples that every client must get; at least 1, for a file without examples is refused by its trainer */
} sheaf_partition;

SHEAF_MUST_USE sheaf_status sheaf_partition_deal(const sheaf_partition *partition, const uint32_t *labels,
                                                 uint32_t count, uint32_t classes, sheaf_random *random,
                                                 uint32_t *owner, sheaf_problem *problem);
