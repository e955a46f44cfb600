/* refusals.h - how often what was refused, until the round writes it down.
 *
 * Owner:   one per job, and one for what never reached a job.
 * Threads: any.
 * Errors:  none. */
#pragma once
#include <stdatomic.h>

#include "server/store/database.h"

enum { SHEAF_REFUSAL_FIRST = 100, SHEAF_REFUSAL_COUNT = 100 }; /* the peer's range of common/status.h */

typedef struct {
    _Atomic uint32_t counts[SHEAF_REFUSAL_COUNT];
} sheaf_refusals;

/* Counts one refusal and logs it, once. `job` and `client` may be "" when unknown. */
void sheaf_refusals_note(sheaf_refusals *refusals, sheaf_status reason, const char *job, const char *client,
                         const char *detail);
uint64_t sheaf_refusals_total(const sheaf_refusals *refusals);
/* Writes the counts under (job, round) in the open transaction or on its own, then forgets what was written. */
SHEAF_MUST_USE sheaf_status sheaf_refusals_flush(sheaf_refusals *refusals, sheaf_database *database, int64_t job,
                                                 uint64_t round, sheaf_problem *problem);
