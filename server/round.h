/* round.h - one round after another of one job: open, collect, reduce, release.
 *
 * The state machine is the table in round.c. An accepted update is durable (payload synced, row committed) before its
 * receipt leaves. The round's released row is the commit point: before it the old model is served, after it the new
 * one. An attempt that fails (nobody, or too few) keeps the updates it has: the next attempt has the same base model
 * and plan, so each acknowledged update is still counted, once.
 *
 * Owner:   the job's thread owns the round. What it works with belongs to the job (sheaf_round_parts).
 * Threads: all functions on the job's thread; `moved_ns`, `refusals`, the shelf and the uploads are shared with
 * workers. Units:   times in nanoseconds of CLOCK_MONOTONIC. Errors:  start: anything that makes the job impossible.
 * Later the world's failures are logged and tried again. Not:     it reads no frame and no file; it asks store, intake
 * and aggregate. */
#pragma once
#include "common/credentials.h"
#include "server/aggregate/aggregator.h"
#include "server/cohort.h"
#include "server/config.h"
#include "server/intake/upload.h"
#include "server/refusals.h"
#include "server/version.h"
#include "server/work.h"

typedef struct {
    const sheafd_job_config *config;
    const char *folder; /* of the job: models/, spool/ */
    uint64_t model_bytes_max;
    uint32_t client_payloads_max; /* different ones that a device may begin to send in a round */
    sheaf_database *database;
    sheaf_credentials *credentials; /* the aggregator's, which may change in mid-round */
    const sheaf_spool *spool;
    sheaf_uploads *uploads;
    sheaf_refusals *refusals;
    sheaf_shelf *shelf;
    sheaf_queue *workers;       /* of sheaf_task; has room for cohort.maximum tasks of each job */
    sheaf_queue *events;        /* of the job's thread; woken when a sum is done */
    _Atomic uint64_t *moved_ns; /* when a device of this job last showed progress */
} sheaf_round_parts;

enum { SHEAF_ROUND_BATCH = 64 }; /* most requests that one handle takes, and updates that share a commit */

typedef struct sheaf_round sheaf_round;

/* Loads or creates the job, recovers an open round with its accepted updates, or opens the next one. */
SHEAF_MUST_USE sheaf_status sheaf_round_start(const sheaf_round_parts *parts, sheaf_round **out,
                                              sheaf_problem *problem);
/* Writes down what is only counted in memory and frees; no task of this round may be in work. NULL is fine. */
void sheaf_round_stop(sheaf_round *round);

/* Answers these requests (and clears the array). Those that accept updates share one commit, and come last. */
void sheaf_round_handle(sheaf_round *round, sheaf_request **requests, size_t count, sheaf_buffer *scratch);
/* Goes as far as it can without new requests; returns when to call again at the latest. */
uint64_t sheaf_round_settle(sheaf_round *round);

/* Carries out an operator's order: SHEAF_ON_PAUSE, _RESUME or _CANCEL. Durable when it returns SHEAF_OK; giving the same order
 * again changes nothing. SHEAF_E_CONFLICT when the job has ended. */
SHEAF_MUST_USE sheaf_status sheaf_round_order(sheaf_round *round, sheaf_event order, sheaf_problem *problem);

/* How a job stands, for people. */
typedef struct {
    sheaf_status ended; /* SHEAF_AGAIN while it runs */
    int paused;
    const char *phase; /* of the round: static text */
    uint64_t round;
    uint32_t attempt, accepted, joined; /* of the open round */
    sheaf_status failing;               /* SHEAF_OK, or what disk or database say: it is tried again */
    uint64_t accepted_total, bytes_total, released_total, failed_total; /* since the service started */
} sheaf_round_view;
void sheaf_round_look(const sheaf_round *round, sheaf_round_view *out);

/* Whether every value of a payload decodes on the job's lattice. Any thread; a pure function of its arguments. */
SHEAF_MUST_USE sheaf_status sheaf_round_validate(const sheaf_round *round, const char *payload_type, sheaf_span payload,
                                                 sheaf_problem *problem);

/* SHEAF_AGAIN while the job runs; SHEAF_OK when it has released all rounds; else why it ended. */
sheaf_status sheaf_round_job_ended(const sheaf_round *round);
/* 1 when every known device has been told that the job ended. */
int sheaf_round_everyone_knows(const sheaf_round *round);
