/* call.h - the inside of the operator channel, for the files of this folder only: one request that has found its resource.
 *
 *   operator.c   the thread, its listeners, orders on their way
 *   routes.c     the table: method, path, roles, handler; errors as JSON
 *   health.c jobs.c rounds.c clients.c refusals.c metrics.c revocation.c enrol.c   the resources
 *
 * Threads: all on the channel's thread. */
#pragma once
#include <jansson.h>

#include "common/log.h"
#include "common/transport/tls_source.h"
#include "server/operator/http_server.h"
#include "server/operator/operator.h"
#include "server/store/history.h"

typedef struct sheaf_call sheaf_call;

/* An order to a job that has not been answered. */
typedef struct pending_order {
    sheaf_job_order order; /* first: the job's thread fills it */
    sheaf_http_exchange *exchange;
    struct pending_order *next;
} pending_order;

struct sheaf_operator {
    sheaf_operator_options options;
    struct event_base *base;
    struct event *stop_event; /* readable when the service closes */
    struct event *order_timer;
    int stop_pipe[2];
    sheaf_tls_source *tls;             /* of remote */
    sheaf_http_server *local, *remote; /* remote: NULL when not configured */
    sheaf_history *history;
    pending_order *orders;
    pthread_t thread;
    int running;
    uint64_t started_unix_ms;
};

struct sheaf_call {
    sheaf_operator *operator;
    sheaf_http_exchange *exchange;
    const sheaf_http_head *head;
    const char *names[3]; /* what stood at the {} of the route's path */
    const char *tenant;   /* whose things may be seen; NULL: everybody's */
};

/* Answers with an object; takes the reference. NULL is answered as lack of memory. */
void sheaf_call_answer(sheaf_call *call, int code, json_t *object);
/* Answers {"error": name of the status, "detail": text}. */
void sheaf_call_refuse(sheaf_call *call, int code, sheaf_status status, const char *format, ...) SHEAF_PRINTF(4, 5);
/* The same as 401, with what is to be shown instead. */
void sheaf_call_challenge(sheaf_call *call, const char *scheme, const char *detail);
/* The HTTP status that fits a status of ours. */
int sheaf_call_code_of(sheaf_status status);
/* Whether this caller may know of the tenant. */
int sheaf_call_may_see(const sheaf_call *call, const char *tenant);
/* A number from the query, or `preset`; 0 when it was refused: not a number of 0..maximum. */
int sheaf_call_number(sheaf_call *call, const char *name, uint64_t preset, uint64_t maximum, uint64_t *out);
/* The job of names[0]/names[1]; NULL when it was answered with 404. */
sheaf_job *sheaf_call_job(sheaf_call *call);
/* The same as the database knows it; 0 when it was answered. */
int sheaf_call_job_summary(sheaf_call *call, sheaf_job_summary *out);

json_t *sheaf_json_hex(const uint8_t digest[SHEAF_DIGEST_BYTES]);
json_t *sheaf_json_real(double value); /* null for NaN and infinities, which JSON lacks */

void sheaf_operator_on_request(void *context, sheaf_http_exchange *exchange);
void sheaf_operator_on_refused(void *context, sheaf_http_exchange *exchange, int code, const char *why);
/* Sends an order to a job's thread and answers the call once it is done. */
void sheaf_operator_order(sheaf_call *call, sheaf_job *job, sheaf_event kind);

/* Handlers, by resource. */
void sheaf_get_livez(sheaf_call *call);
void sheaf_get_readyz(sheaf_call *call);
void sheaf_get_metrics(sheaf_call *call);
void sheaf_get_jobs(sheaf_call *call);
void sheaf_get_job(sheaf_call *call);
void sheaf_pause_job(sheaf_call *call);
void sheaf_resume_job(sheaf_call *call);
void sheaf_cancel_job(sheaf_call *call);
void sheaf_get_rounds(sheaf_call *call);
void sheaf_get_round(sheaf_call *call);
void sheaf_get_clients(sheaf_call *call);
void sheaf_get_client(sheaf_call *call);
void sheaf_get_refusals(sheaf_call *call);
void sheaf_get_crl(sheaf_call *call);
void sheaf_look_at_crl(sheaf_call *call);
void sheaf_get_cacerts(sheaf_call *call);
void sheaf_enrol(sheaf_call *call);
void sheaf_enrol_again(sheaf_call *call);
/* The same as a JSON object: of a job (0: of none) and round (0: of all), in the database and, unless NULL, in memory. */
json_t *sheaf_operator_refusals(sheaf_operator *operator, int64_t job, uint64_t round, const sheaf_refusals *live);
/* What the job has counted since its last round closed; NULL when it is not served. */
const sheaf_refusals *sheaf_operator_live_refusals(const sheaf_operator *operator, const sheaf_job_summary * job);
json_t *sheaf_operator_job(sheaf_operator *operator, const sheaf_job_summary * summary);
