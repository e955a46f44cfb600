/* database.h - what the service must remember: jobs, rounds, accepted updates and their receipts, refusals.
 *
 * Owner:   one connection per job's thread, on one SQLite file (WAL, synchronous=FULL: what commit returns is on disk).
 * Threads: a connection is used by one thread; any number of connections.
 * Units:   times in Unix milliseconds, sizes in bytes.
 * Errors:  SHEAF_E_DATABASE, SHEAF_E_NO_SPACE, SHEAF_E_NOT_FOUND (no such row), SHEAF_E_EXISTS (that row is there).
 *          After a failed commit nothing of the transaction is there.
 * Not:     payloads and models; those are files (spool.h, checkpoint.h). */
#pragma once
#include "common/problem.h"
#include "proto/plan.h"
#include "proto/statement.h"

#define SHEAF_SCHEMA_VERSION 2 /* of the file; older ones are brought up to date when it opens */

typedef struct sheaf_database sheaf_database;

typedef struct {
    int64_t id;
    uint8_t initial_model[SHEAF_DIGEST_BYTES];
    sheaf_status ended; /* SHEAF_AGAIN while it runs, SHEAF_OK when finished, else why it was given up */
    int paused;         /* an operator has stopped it for a while */
} sheaf_job_row;

typedef enum { SHEAF_ROUND_OPEN, SHEAF_ROUND_RELEASED, SHEAF_ROUND_FAILED } sheaf_round_outcome;

typedef struct {
    uint64_t round;
    uint32_t attempt;
    sheaf_round_outcome outcome;
    sheaf_status reason; /* of a failure */
    sheaf_round_statement statement;
    uint8_t statement_bytes[SHEAF_STATEMENT_BYTES_MAX];
    size_t statement_size;
    uint8_t signature[80];
    size_t signature_size;
    uint8_t plan[SHEAF_PLAN_BYTES_MAX];
    size_t plan_size;
    /* known once it is closed */
    uint64_t accepted, refused, upload_bytes, weight, closed_unix_ms;
    double training_loss; /* weighted mean of what devices told; NaN when none did */
    uint8_t model[SHEAF_DIGEST_BYTES];
} sheaf_round_row;

typedef struct {
    uint64_t round;
    uint32_t attempt;
    char client[SHEAF_NAME_BYTES];
    sheaf_span statement, signature;       /* of the device, as received */
    sheaf_span receipt, receipt_signature; /* ours */
    uint8_t payload_digest[SHEAF_DIGEST_BYTES];
    uint64_t payload_bytes;
    int64_t weight;
    double training_loss;
    uint64_t accepted_unix_ms;
} sheaf_update_row;

typedef struct {
    uint8_t payload_digest[SHEAF_DIGEST_BYTES];
    uint8_t statement[SHEAF_STATEMENT_BYTES_MAX];
    size_t statement_size;
    uint8_t signature[80];
    size_t signature_size;
} sheaf_receipt_row;

SHEAF_MUST_USE sheaf_status sheaf_database_open(const char *path, sheaf_database **out, sheaf_problem *problem);
void sheaf_database_close(sheaf_database *database); /* NULL is fine; an open transaction is undone */

SHEAF_MUST_USE sheaf_status sheaf_database_begin(sheaf_database *database, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_database_commit(sheaf_database *database, sheaf_problem *problem);
void sheaf_database_rollback(sheaf_database *database);

/* The job of that name; SHEAF_E_NOT_FOUND when it was never created. */
SHEAF_MUST_USE sheaf_status sheaf_database_job_find(sheaf_database *database, const char *tenant, const char *name,
                                                    sheaf_job_row *out, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_database_job_create(sheaf_database *database, const char *tenant, const char *name,
                                                      const uint8_t initial_model[SHEAF_DIGEST_BYTES],
                                                      sheaf_job_row *out, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_database_job_end(sheaf_database *database, int64_t job, sheaf_status why,
                                                   sheaf_problem *problem);

SHEAF_MUST_USE sheaf_status sheaf_database_job_pause(sheaf_database *database, int64_t job, int paused,
                                                     sheaf_problem *problem);

SHEAF_MUST_USE sheaf_status sheaf_database_round_open(sheaf_database *database, int64_t job, const sheaf_round_row *row,
                                                      sheaf_problem *problem);
/* Another signature (and statement) for the open row of (round, attempt): the aggregator has another certificate. */
SHEAF_MUST_USE sheaf_status sheaf_database_round_sign(sheaf_database *database, int64_t job, const sheaf_round_row *row,
                                                      sheaf_problem *problem);
/* Closes the open row of (round, attempt) with its outcome and figures. */
SHEAF_MUST_USE sheaf_status sheaf_database_round_close(sheaf_database *database, int64_t job,
                                                       const sheaf_round_row *row, sheaf_problem *problem);
/* The newest row (highest round, then attempt), whatever its outcome; SHEAF_E_NOT_FOUND before the first. */
SHEAF_MUST_USE sheaf_status sheaf_database_round_last(sheaf_database *database, int64_t job, sheaf_round_row *out,
                                                      sheaf_problem *problem);
/* The released row of `round`. */
SHEAF_MUST_USE sheaf_status sheaf_database_round_released(sheaf_database *database, int64_t job, uint64_t round,
                                                          sheaf_round_row *out, sheaf_problem *problem);

SHEAF_MUST_USE sheaf_status sheaf_database_update_insert(sheaf_database *database, int64_t job,
                                                         const sheaf_update_row *row, sheaf_problem *problem);
/* The receipt of the accepted update of (round, client); SHEAF_E_NOT_FOUND when none was accepted. */
SHEAF_MUST_USE sheaf_status sheaf_database_receipt_find(sheaf_database *database, int64_t job, uint64_t round,
                                                        const char *client, sheaf_receipt_row *out,
                                                        sheaf_problem *problem);
/* Calls `each` for every accepted update of the round in order of arrival; stops at the first status that is not OK. */
SHEAF_MUST_USE sheaf_status sheaf_database_updates_of(sheaf_database *database, int64_t job, uint64_t round,
                                                      sheaf_status (*each)(void *context, const sheaf_update_row *row),
                                                      void *context, sheaf_problem *problem);

/* Adds `count` to the refusals of (round, reason). Job 0, round 0: what never reached a job. */
SHEAF_MUST_USE sheaf_status sheaf_database_refusals_add(sheaf_database *database, int64_t job, uint64_t round,
                                                        sheaf_status reason, uint64_t count, sheaf_problem *problem);
