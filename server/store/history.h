/* history.h - the service's database as tools read it: jobs, closed rounds, refusals. Never writes.
 *
 * Owner:   the caller closes a history.
 * Threads: one.
 * Units:   times in Unix milliseconds, sizes in bytes.
 * Errors:  SHEAF_E_NOT_FOUND (no database there), SHEAF_E_DATABASE, SHEAF_E_VERSION, SHEAF_E_CORRUPT. Callbacks stop
 *          the walk with any status but SHEAF_OK, which is returned. */
#pragma once
#include "common/bytes.h"
#include "common/name.h"
#include "common/problem.h"

typedef struct sheaf_history sheaf_history;

typedef struct {
    int64_t id;
    char tenant[SHEAF_NAME_BYTES], name[SHEAF_NAME_BYTES];
    sheaf_status ended; /* SHEAF_AGAIN while it runs */
    int paused;
    uint64_t released;   /* rounds */
    uint64_t open_round; /* 0: none */
    uint32_t open_attempt;
    uint64_t open_accepted;
    uint8_t model[SHEAF_DIGEST_BYTES]; /* newest version */
} sheaf_job_summary;

typedef struct {
    uint64_t round;
    uint32_t attempt;
    int released; /* else it failed, for `reason` */
    sheaf_status reason;
    uint64_t opened_unix_ms, closed_unix_ms, accepted, refused, upload_bytes, weight;
    double training_loss;              /* NaN when no device told */
    uint8_t model[SHEAF_DIGEST_BYTES]; /* of a released round */
} sheaf_round_summary;

SHEAF_MUST_USE sheaf_status sheaf_history_open(const char *state_folder, sheaf_history **out, sheaf_problem *problem);
void sheaf_history_close(sheaf_history *history); /* NULL is fine */

/* Whether the database takes writes now: its write lock is taken and given back, nothing is written. */
SHEAF_MUST_USE sheaf_status sheaf_history_can_write(sheaf_history *history, sheaf_problem *problem);

SHEAF_MUST_USE sheaf_status sheaf_history_jobs(sheaf_history *history,
                                               sheaf_status (*each)(const sheaf_job_summary *job, void *context),
                                               void *context, sheaf_problem *problem);
/* Closed rounds of a job after (round, attempt), in order. */
SHEAF_MUST_USE sheaf_status sheaf_history_rounds(sheaf_history *history, int64_t job, uint64_t round, uint32_t attempt,
                                                 sheaf_status (*each)(const sheaf_round_summary *round, void *context),
                                                 void *context, sheaf_problem *problem);
typedef struct {
    uint64_t arrival; /* grows with each update of the service */
    uint32_t attempt;
    char client[SHEAF_NAME_BYTES];
    int64_t weight;
    uint64_t payload_bytes, accepted_unix_ms;
    double training_loss;
    uint8_t payload_digest[SHEAF_DIGEST_BYTES];
} sheaf_update_summary;

/* Accepted updates of a round that came after `arrival`, in order. */
SHEAF_MUST_USE sheaf_status sheaf_history_updates(sheaf_history *history, int64_t job, uint64_t round, uint64_t arrival,
                                                  sheaf_status (*each)(const sheaf_update_summary *update,
                                                                       void *context),
                                                  void *context, sheaf_problem *problem);
/* Refusals of a job in one round (0: in all), by reason; job 0: of connections and requests that belong to no job. */
SHEAF_MUST_USE sheaf_status sheaf_history_refusals(sheaf_history *history, int64_t job, uint64_t round,
                                                   sheaf_status (*each)(const char *reason, uint64_t count,
                                                                        void *context),
                                                   void *context, sheaf_problem *problem);
