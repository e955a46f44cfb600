/* refusals.h - how often what was refused, until the round writes it down.
 *
 * Owner:   one per job, and one for what never reached a job.
 * Threads: any.
 * Errors:  none. */
#pragma once
#include <stdatomic.h>

#include "server/store/database.h"

enum { SHEAF_REFUSAL_LINES = 100 };
enum {
    SHEAF_REFUSAL_FIRST = 100,
    SHEAF_REFUSAL_COUNT = 200
}; /* the peer's range of common/status.h, and the world's: a peer may be cut for its silence */

typedef struct {
    _Atomic uint32_t counts[SHEAF_REFUSAL_COUNT];
    _Atomic uint64_t since_start[SHEAF_REFUSAL_COUNT]; /* never forgotten */
    _Atomic uint64_t second;                           /* of the clock, for which `lines` were logged */
    _Atomic uint32_t lines;
} sheaf_refusals;

/* Counts one refusal and logs it, once; in a flood, SHEAF_REFUSAL_LINES a second are logged and the others only counted.
 * `job` and `client` may be "" when unknown. */
void sheaf_refusals_note(sheaf_refusals *refusals, sheaf_status reason, const char *job, const char *client,
                         const char *detail);
uint64_t sheaf_refusals_total(const sheaf_refusals *refusals);
/* What was written, to be forgotten once that is durable. */
typedef struct {
    uint32_t counts[SHEAF_REFUSAL_COUNT];
} sheaf_refusals_written;

/* Adds the counts to those of (job, round), in the open transaction or on its own. */
SHEAF_MUST_USE sheaf_status sheaf_refusals_write(const sheaf_refusals *refusals, sheaf_database *database, int64_t job,
                                                 uint64_t round, sheaf_refusals_written *written,
                                                 sheaf_problem *problem);
void sheaf_refusals_forget(sheaf_refusals *refusals, const sheaf_refusals_written *written);
