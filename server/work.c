#include "server/ends.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct sheaf_request_pool {
    pthread_mutex_t lock;
    sheaf_request *free;
    sheaf_request requests[];
};

sheaf_status sheaf_request_pool_make(uint32_t capacity, sheaf_request_pool **out) {
    *out = NULL;
    sheaf_request_pool *pool = calloc(1, sizeof *pool + capacity * sizeof pool->requests[0]);
    if (pool == NULL) return SHEAF_E_MEMORY;
    pthread_mutex_init(&pool->lock, NULL);
    for (uint32_t i = 0; i < capacity; i++) {
        pool->requests[i].pool = pool;
        pool->requests[i].next_free = pool->free;
        pool->free = &pool->requests[i];
    }
    *out = pool;
    return SHEAF_OK;
}

void sheaf_request_pool_free(sheaf_request_pool *pool) {
    if (pool == NULL) return;
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

sheaf_request *sheaf_request_take(sheaf_request_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    sheaf_request *request = pool->free;
    if (request != NULL) pool->free = request->next_free;
    pthread_mutex_unlock(&pool->lock);
    return request;
}

static void give_back(sheaf_request *request) {
    request->exchange = NULL;
    request->upload = NULL;
    sheaf_quota_give_back(&request->charged);
    pthread_mutex_lock(&request->pool->lock);
    request->next_free = request->pool->free;
    request->pool->free = request;
    pthread_mutex_unlock(&request->pool->lock);
}

void sheaf_request_reply(sheaf_request *request, const sheaf_v1_Reply *reply, sheaf_span payload,
                         sheaf_buffer *scratch) {
    sheaf_status status = sheaf_frame_encode_reply(reply, payload, scratch);
    if (reply->which_body == sheaf_v1_Reply_refusal_tag && request->peer != NULL)
        sheaf_clients_refused(request->clients, sheaf_certificate_identity(request->peer),
                              sheaf_status_from_number((long)reply->body.refusal.status));
    assert(status == SHEAF_OK); /* every reply of ours fits the frame, by the sizes in sheaf.options */
    request->end->carrier->reply(request->exchange, sheaf_buffer_span(scratch));
    give_back(request);
}

void sheaf_request_fill_refusal(sheaf_v1_Refusal *out, sheaf_status reason, const char *detail) {
    out->status = (uint32_t)reason;
    (void)snprintf(out->reason, sizeof out->reason, "%s", sheaf_status_name(reason));
    (void)snprintf(out->detail, sizeof out->detail, "%s", detail == NULL ? sheaf_status_text(reason) : detail);
}

void sheaf_request_refuse(sheaf_request *request, sheaf_status reason, const char *detail, sheaf_buffer *scratch) {
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_refusal_tag;
    sheaf_request_fill_refusal(&reply.body.refusal, reason, detail);
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
}

/* Those that were told to wait together shall not come back together. */
uint32_t sheaf_wait_jitter(uint32_t retry_ms) {
    static _Atomic uint32_t turn;
    uint32_t spread = retry_ms / 4 + 1;
    return retry_ms +
           (uint32_t)(atomic_fetch_add(&turn, 1) * 2654435769u >> 8) % spread; /* Weyl: even, no state to seed */
}

void sheaf_request_wait(sheaf_request *request, sheaf_status why, uint32_t retry_ms, sheaf_buffer *scratch) {
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_wait_tag;
    reply.body.wait.status = (uint32_t)why;
    reply.body.wait.retry_ms = sheaf_wait_jitter(retry_ms);
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
}
