#include "tests/kit/carrier_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/cmocka.h"

#define OUTCOME_MS 10000u

void carrier_sleep_ms(unsigned ms) {
    struct timespec pause = {(time_t)(ms / 1000u), (long)(ms % 1000u) * 1000000L};
    (void)nanosleep(&pause, NULL);
}

uint64_t carrier_now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

sheaf_transport_options carrier_options(const char *url, const pki_kit_files *files) {
    sheaf_transport_options options = {
        .url = url,
        .tls = {.certificate_path = files->certificate, .key_path = files->key, .ca_path = files->ca},
        .frame_bytes_max = CARRIER_FRAME_MAX,
        .handshake_ms = 2000,
        .exchanges_max = 8,
        .connections_max = 500,
    };
    return options;
}

/* ---- server ---- */

typedef struct {
    carrier_server *server;
    sheaf_exchange *exchange;
    size_t size;
    uint8_t answer[];
} job;

static job *make_job(carrier_server *server, sheaf_exchange *exchange, sheaf_span request) {
    job *made = malloc(sizeof *made + request.size);
    if (made == NULL) abort();
    made->server = server;
    made->exchange = exchange;
    made->size = request.size;
    for (size_t i = 0; i < request.size; i++) made->answer[i] = request.data[request.size - 1 - i];
    return made;
}

static void *answer_job(void *argument) {
    job *made = argument;
    carrier_server *server = made->server;
    server->transport->reply(made->exchange, sheaf_span_of(made->answer, made->size));
    free(made);
    pthread_mutex_lock(&server->lock);
    server->jobs--;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

static void answer_later(job *made) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer_job, made) != 0) abort();
    pthread_detach(thread);
}

static void on_request(void *context, sheaf_exchange *exchange, sheaf_certificate *peer, sheaf_span request) {
    carrier_server *server = context;
    pthread_mutex_lock(&server->lock);
    server->requests++;
    server->handlers++;
    if (server->mode != CARRIER_HOLD) server->jobs++;
    server->last_peer = *sheaf_certificate_identity(peer);
    memcpy(server->last_fingerprint, sheaf_certificate_fingerprint(peer), SHEAF_DIGEST_BYTES);
    carrier_mode mode = server->mode;
    if (mode == CARRIER_HOLD) {
        if (server->held_count == CARRIER_HELD_MAX) abort();
        server->held[server->held_count++] = exchange;
        if (server->held_count > server->most_at_once) server->most_at_once = server->held_count;
    }
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    if (mode == CARRIER_ECHO) answer_job(make_job(server, exchange, request));
    if (mode == CARRIER_WORKER) answer_later(make_job(server, exchange, request));
    pthread_mutex_lock(&server->lock);
    server->handlers--;
    pthread_mutex_unlock(&server->lock);
}

static void on_reject(void *context, sheaf_status reason, const char *detail) {
    carrier_server *server = context;
    pthread_mutex_lock(&server->lock);
    server->rejects++;
    server->last_reject = reason;
    (void)snprintf(server->last_reject_text, sizeof server->last_reject_text, "%s", detail);
    size_t used = strlen(server->rejects_text);
    (void)snprintf(server->rejects_text + used, sizeof server->rejects_text - used, "%s: %s\n",
                   sheaf_status_name(reason), detail);
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

void carrier_start(carrier_server *server, const sheaf_transport *transport, const sheaf_transport_options *options,
                   carrier_mode mode) {
    memset(server, 0, sizeof *server);
    server->transport = transport;
    server->mode = mode;
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->changed, NULL);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = transport->open_server(options, on_request, on_reject, server, &server->server, &problem);
    if (status != SHEAF_OK) fail_msg("open_server: %s: %s", sheaf_status_name(status), problem.text);
}

void carrier_stop(carrier_server *server) {
    server->transport->stop_server(server->server);
    server->server = NULL;
    assert_int_equal(server->handlers, 0);
    pthread_mutex_lock(&server->lock);
    while (server->jobs > 0) pthread_cond_wait(&server->changed, &server->lock); /* late workers */
    pthread_mutex_unlock(&server->lock);
    for (unsigned i = 0; i < server->held_count; i++)
        server->transport->reply(server->held[i], sheaf_span_of("late", 4));
    server->held_count = 0;
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
}

static void wait_change(carrier_server *server, const char *what) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += OUTCOME_MS / 1000u;
    if (pthread_cond_timedwait(&server->changed, &server->lock, &until) == 0) return;
    pthread_mutex_unlock(&server->lock);
    fail_msg("waited too long for %s; turned away so far:\n%s", what, server->rejects_text);
}

sheaf_exchange *carrier_take(carrier_server *server) {
    pthread_mutex_lock(&server->lock);
    while (server->held_count == 0) wait_change(server, "a request");
    sheaf_exchange *exchange = server->held[--server->held_count];
    pthread_mutex_unlock(&server->lock);
    return exchange;
}

unsigned carrier_rejects(carrier_server *server) {
    pthread_mutex_lock(&server->lock);
    unsigned rejects = server->rejects;
    pthread_mutex_unlock(&server->lock);
    return rejects;
}

void carrier_wait_rejects(carrier_server *server, unsigned count) {
    pthread_mutex_lock(&server->lock);
    while (server->rejects < count) wait_change(server, "a rejection");
    pthread_mutex_unlock(&server->lock);
}

/* ---- link ---- */

sheaf_status carrier_poll(const sheaf_transport *transport, sheaf_link *link, sheaf_buffer *answer,
                          sheaf_problem *problem) {
    uint64_t until = carrier_now_ms() + OUTCOME_MS;
    for (;;) {
        sheaf_status status = transport->receive(link, answer, problem);
        if (status != SHEAF_AGAIN || carrier_now_ms() > until) return status;
        carrier_sleep_ms(1);
    }
}

sheaf_status carrier_ask(const sheaf_transport *transport, sheaf_link *link, sheaf_span request, sheaf_buffer *answer,
                         sheaf_problem *problem) {
    sheaf_status status = transport->send(link, request);
    return status == SHEAF_OK ? carrier_poll(transport, link, answer, problem) : status;
}

sheaf_status carrier_insist(const sheaf_transport *transport, sheaf_link *link, sheaf_span request,
                            sheaf_buffer *answer, sheaf_problem *problem) {
    uint64_t until = carrier_now_ms() + OUTCOME_MS;
    sheaf_status status;
    do {
        status = carrier_ask(transport, link, request, answer, problem);
        if (status != SHEAF_OK) carrier_sleep_ms(5);
    } while (status == SHEAF_E_NETWORK && carrier_now_ms() < until);
    return status;
}

void carrier_round_trip(const sheaf_transport *transport, sheaf_link *link, size_t size, unsigned seed) {
    uint8_t *request = malloc(size + 1), *answer = malloc(size + 1);
    assert_non_null(request);
    assert_non_null(answer);
    for (size_t i = 0; i < size; i++) request[i] = (uint8_t)((i * 2654435761u + seed * 97u) >> 7);
    sheaf_buffer out = {answer, 0, size + 1};
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = carrier_ask(transport, link, sheaf_span_of(request, size), &out, &problem);
    if (status != SHEAF_OK) fail_msg("round trip of %zu bytes: %s: %s", size, sheaf_status_name(status), problem.text);
    assert_int_equal(out.size, size);
    for (size_t i = 0; i < size; i++) assert_int_equal(answer[i], request[size - 1 - i]);
    free(request);
    free(answer);
}
