/* work.h - one request on its way through the service, from the carrier to its reply.
 *
 * Owner:   the service's pool; a request belongs to one thread at a time, and goes back with sheaf_request_reply.
 * Threads: moved between threads through queues; never shared.
 * Errors:  none; a reply that the carrier cannot deliver is the device's to ask for again. */
#pragma once
#include "common/transport/transport.h"
#include "proto/frame.h"
#include "proto/statement.h"
#include "server/clients.h"
#include "server/intake/upload.h"
#include "server/queue.h"
#include "server/quota.h"

/* What a worker runs. Tasks are embedded in what they work on. `scratch` is the worker's frame buffer. */
typedef struct sheaf_task sheaf_task;
struct sheaf_task {
    void (*run)(sheaf_task *task, sheaf_buffer *scratch);
};

/* What a round reacts to. */
typedef enum {
    SHEAF_ON_QUERY,
    SHEAF_ON_PROGRESS,
    SHEAF_ON_OFFER,
    SHEAF_ON_UPDATE,
    SHEAF_ON_CLOCK,
    /* an operator's orders */
    SHEAF_ON_PAUSE,
    SHEAF_ON_RESUME,
    SHEAF_ON_CANCEL
} sheaf_event;

typedef struct sheaf_request_pool sheaf_request_pool;
typedef struct sheaf_end sheaf_end; /* ends.h */

typedef struct sheaf_request sheaf_request;
struct sheaf_request {
    sheaf_task task; /* first */
    void *service;
    sheaf_request_pool *pool;
    sheaf_request *next_free;
    const sheaf_end *end; /* where it came in, and its reply goes out */
    sheaf_exchange *exchange;
    sheaf_clients *clients;    /* notes what became of it */
    sheaf_certificate *peer;   /* borrowed until the reply */
    sheaf_span frame, payload; /* likewise */
    sheaf_v1_Request message;
    /* filled by workers for the round */
    sheaf_event event;
    sheaf_update_statement statement; /* ON_OFFER: verified */
    sheaf_upload *upload;             /* ON_UPDATE: taken, durable */
    void *round;                      /* of a request that its round gave back to the workers */
    sheaf_quota_charged charged;      /* to its device */
};

SHEAF_MUST_USE sheaf_status sheaf_request_pool_make(uint32_t capacity, sheaf_request_pool **out);
void sheaf_request_pool_free(sheaf_request_pool *pool); /* NULL is fine */
/* A free request, or NULL when all are in work. */
sheaf_request *sheaf_request_take(sheaf_request_pool *pool);

/* Sends the reply and gives the request back to its pool. */
void sheaf_request_reply(sheaf_request *request, const sheaf_v1_Reply *reply, sheaf_span payload,
                         sheaf_buffer *scratch);
/* Number, name and text of a refusal; `detail` NULL: the status's own text. */
void sheaf_request_fill_refusal(sheaf_v1_Refusal *out, sheaf_status reason, const char *detail);
/* With up to a quarter more, different for each. */
uint32_t sheaf_wait_jitter(uint32_t retry_ms);
/* The replies that need only a word; of a wait, at least `retry_ms`. */
void sheaf_request_refuse(sheaf_request *request, sheaf_status reason, const char *detail, sheaf_buffer *scratch);
void sheaf_request_wait(sheaf_request *request, sheaf_status why, uint32_t retry_ms, sheaf_buffer *scratch);
