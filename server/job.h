/* job.h - one federated training task: a thread that owns its rounds, and what workers may read beside it.
 *
 * Owner:   the service owns jobs; a job owns its database connection, spool, uploads, shelf and round.
 * Threads: open, close: the service's main thread. post: any thread. What the accessors return may be used on any
 *          thread until close.
 * Errors:  open: whatever makes the job impossible (config, model, disk), named.
 * Not:     it reads no frame. */
#pragma once
#include "server/cast.h"
#include "server/ends.h"
#include "server/round.h"

typedef struct sheaf_job sheaf_job;

typedef struct {
    const sheafd_config *service;    /* limits, state folder; borrowed */
    const sheafd_job_config *config; /* borrowed */
    sheaf_credentials *credentials;  /* borrowed */
    sheaf_queue *workers;            /* borrowed */
} sheaf_job_options;

/* An operator's order on its way. The giver owns it and may look at the rest once `done` is 1. */
typedef struct sheaf_job_order {
    sheaf_event kind; /* SHEAF_ON_PAUSE, _RESUME, _CANCEL */
    struct sheaf_job_order *next;
    sheaf_status status;
    sheaf_problem problem;
    sheaf_round_view view; /* how the job stands after it */
    _Atomic int done;
} sheaf_job_order;

SHEAF_MUST_USE sheaf_status sheaf_job_open(const sheaf_job_options *options, sheaf_job **out, sheaf_problem *problem);
/* Stops the thread; every acknowledged update is durable already. No request of this job may be in work. NULL is fine.
 */
void sheaf_job_close(sheaf_job *job);
/* Hands a request to the job's thread. */
void sheaf_job_post(sheaf_job *job, sheaf_request *request);

/* The job's thread looks around: the service has other credentials, say. */
void sheaf_job_wake(sheaf_job *job);

/* Hands an order to the job's thread, which answers when it can; until sheaf_job_close at the latest. Any thread. */
void sheaf_job_give_order(sheaf_job *job, sheaf_job_order *order);
/* How the job stood when its thread last came to rest. */
void sheaf_job_look(sheaf_job *job, sheaf_round_view *out);
/* "running", "paused", "finished", else why it ended. Static text. */
const char *sheaf_job_status_name(sheaf_status ended, int paused);

const sheafd_job_config *sheaf_job_config_of(const sheaf_job *job);
sheaf_shelf *sheaf_job_shelf(sheaf_job *job);
sheaf_uploads *sheaf_job_uploads(sheaf_job *job);
sheaf_refusals *sheaf_job_refusals(sheaf_job *job);
/* A device of this job has just shown progress. */
void sheaf_job_moved(sheaf_job *job);
/* A device has fetched the model up to `offset` bytes: progress if that is further than it was before, by a thousandth
 * at least. Asking for the same bytes again is none. */
void sheaf_job_fetched(sheaf_job *job, const char *client, const sheaf_version *version, uint64_t offset);
/* The caster of this job on that end; NULL when its carrier cannot cast, or there is no memory for one. */
sheaf_caster *sheaf_job_caster(sheaf_job *job, const sheaf_end *end);
/* Somebody was expelled: what is cast from now on is not for his key. */
void sheaf_job_renew_casts(sheaf_job *job);
/* Casts no more; before the ends close. */
void sheaf_job_stop_casts(sheaf_job *job);
/* Bytes that were cast, in all. */
uint64_t sheaf_job_cast_bytes(sheaf_job *job);
/* Whether every value of a payload decodes on this job's lattice. */
SHEAF_MUST_USE sheaf_status sheaf_job_validate(sheaf_job *job, const char *payload_type, sheaf_span payload,
                                               sheaf_problem *problem);
/* SHEAF_AGAIN while it runs; SHEAF_OK when it has released all rounds; else why it ended. */
sheaf_status sheaf_job_ended(sheaf_job *job);
/* 1 when it has ended and every known device has been told. */
int sheaf_job_everyone_knows(sheaf_job *job);
