#include "server/operator/operator.h"

#include <event2/event.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/log.h"
#include "server/operator/call.h"
#include "server/operator/http_socket.h"

enum { CONNECTIONS_MAX = SHEAF_OPERATOR_CONNECTIONS, REQUEST_MS = 10000, REPLY_MS = 30000, BODY_BYTES_MAX = 65536 };
#define ORDER_LOOK_US 5000 /* how often it is looked whether an order is done, while one is out */

/* --- orders ------------------------------------------------------------------------------------------------------- */

static void answer_order(sheaf_operator *operator, pending_order * pending) {
    sheaf_call call = {operator, pending->exchange, sheaf_http_head_of(pending->exchange), {NULL, NULL, NULL}, NULL};
    const sheaf_job_order *order = &pending->order;
    if (order->status != SHEAF_OK)
        sheaf_call_refuse(&call, sheaf_call_code_of(order->status), order->status, "%s", order->problem.text);
    else
        sheaf_call_answer(&call, 200,
                          json_pack("{s:s}", "status", sheaf_job_status_name(order->view.ended, order->view.paused)));
}

/* Answers those that are done. */
static void look_at_orders(sheaf_operator *operator) {
    pending_order **at = &operator->orders;
    while (*at != NULL) {
        pending_order *pending = *at;
        if (!atomic_load(&pending->order.done)) {
            at = &pending->next;
            continue;
        }
        *at = pending->next;
        answer_order(operator, pending);
        free(pending);
    }
}

static void wait_for_orders(sheaf_operator *operator) {
    const struct timeval pause = {0, ORDER_LOOK_US};
    if (operator->orders != NULL) (void)event_add(operator->order_timer, &pause);
}

static void on_order_timer(evutil_socket_t fd, short what, void *context) {
    (void)fd, (void)what;
    look_at_orders(context);
    wait_for_orders(context);
}

void sheaf_operator_order(sheaf_call *call, sheaf_job *job, sheaf_event kind) {
    sheaf_operator *operator= call->operator;
    pending_order *pending = calloc(1, sizeof *pending);
    if (pending == NULL) {
        sheaf_call_refuse(call, 500, SHEAF_E_MEMORY, "no memory for the order");
        return;
    }
    pending->order.kind = kind;
    pending->exchange = call->exchange;
    pending->next = operator->orders;
    operator->orders = pending;
    sheaf_job_give_order(job, &pending->order);
    wait_for_orders(operator);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void on_stop(evutil_socket_t fd, short what, void *context) {
    (void)fd, (void)what;
    sheaf_operator *operator= context;
    (void)event_base_loopbreak(operator->base);
}

static void *run(void *context) {
    sheaf_operator *operator= context;
    (void)event_base_dispatch(operator->base);
    return NULL;
}

static sheaf_status open_base(sheaf_operator *operator, sheaf_problem * problem) {
    struct event_config *settings = event_config_new();
    if (settings != NULL) {
        (void)event_config_set_flag(settings, EVENT_BASE_FLAG_NOLOCK); /* one thread */
        operator->base = event_base_new_with_config(settings);
        event_config_free(settings);
    }
    if (operator->base == NULL || pipe(operator->stop_pipe) != 0)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "operator channel: no memory or descriptors");
    for (int i = 0; i < 2; i++) (void)fcntl(operator->stop_pipe[i], F_SETFD, FD_CLOEXEC);
    operator->stop_event = event_new(operator->base, operator->stop_pipe[0], EV_READ, on_stop, operator);
    operator->order_timer = event_new(operator->base, -1, 0, on_order_timer, operator);
    if (operator->stop_event == NULL || operator->order_timer == NULL || event_add(operator->stop_event, NULL) != 0)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "operator channel: no memory");
    return SHEAF_OK;
}

/* Who comes without a certificate may only ask to be enrolled: routes.c. */
static SSL *greet_strangers(void *source) {
    SSL *ssl = sheaf_tls_source_connect(source);
    if (ssl != NULL) SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
    return ssl;
}

static SSL *greet_holders(void *source) { return sheaf_tls_source_connect(source); }

static sheaf_status write_address(const sheaf_operator *operator, sheaf_problem * problem) {
    char path[SHEAF_PATH_BYTES], line[SHEAF_HTTP_URL_BYTES + 1];
    sheaf_status status =
        sheaf_path_join(path, operator->options.config->server.state, SHEAF_OPERATOR_ADDRESS, problem);
    if (status != SHEAF_OK) return status;
    int size = snprintf(line, sizeof line, "%s\n", sheaf_http_url(operator->remote));
    return sheaf_file_replace(path, sheaf_span_of(line, (size_t)size), 0644, problem);
}

static sheaf_status listen_remote(sheaf_operator *operator, const sheaf_http_options * options,
                                  sheaf_problem *problem) {
    const sheafd_config *config = operator->options.config;
    const sheaf_tls_options tls = {.trust = operator->options.trust, .credentials = operator->options.credentials };
    sheaf_http_tls greet = config->enrolment.authority == NULL ? greet_holders : greet_strangers;
    sheaf_status status = sheaf_tls_source_open(&tls, SHEAF_TLS_SERVER, NULL, &operator->tls, problem);
    if (status == SHEAF_OK)
        status =
            sheaf_http_listen_tls(options, config->operator.listen, greet, operator->tls, &operator->remote, problem);
    if (status != SHEAF_OK) return sheaf_problem_prefix(problem, "operator.listen");
    sheaf_log(SHEAF_LOG_INFO, "operator_listening", "url=%s", sheaf_http_url(operator->remote));
    return write_address(operator, problem);
}

static sheaf_status listen_all(sheaf_operator *operator, sheaf_problem * problem) {
    const sheafd_config *config = operator->options.config;
    const sheaf_http_options options = {.base = operator->base,
                                        .connections_max = CONNECTIONS_MAX,
                                        .request_ms = REQUEST_MS,
                                        .reply_ms = REPLY_MS,
                                        .body_bytes_max = BODY_BYTES_MAX,
                                        .on_request = sheaf_operator_on_request,
                                        .on_refused = sheaf_operator_on_refused,
                                        .context = operator};
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_path_join(path, config->server.state, SHEAF_OPERATOR_SOCKET, problem);
    if (status == SHEAF_OK) status = sheaf_http_listen_local(&options, path, &operator->local, problem);
    if (status != SHEAF_OK || config->operator.listen[0] == '\0') return status;
    return listen_remote(operator, & options, problem);
}

sheaf_status sheaf_operator_open(const sheaf_operator_options *options, sheaf_operator **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_operator *operator= calloc(1, sizeof *operator);
    if (operator== NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the operator channel");
    operator->options = * options;
    operator->stop_pipe[0] = operator->stop_pipe[1] = - 1;
    operator->started_unix_ms = sheaf_now_unix_ms();
    sheaf_status status = open_base(operator, problem);
    if (status == SHEAF_OK) status = sheaf_history_open(options->config->server.state, &operator->history, problem);
    if (status == SHEAF_OK) status = listen_all(operator, problem);
    if (status == SHEAF_OK && pthread_create(&operator->thread, NULL, run, operator) != 0)
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "operator channel: cannot start a thread");
    operator->running = status == SHEAF_OK;
    if (status == SHEAF_OK)
        *out = operator;
    else
        sheaf_operator_close(operator);
    return status;
}

static void finish_orders(sheaf_operator *operator) {
    while (operator->orders != NULL) { /* the jobs' threads still run */
        look_at_orders(operator);
        if (operator->orders != NULL) (void)usleep(ORDER_LOOK_US);
    }
}

void sheaf_operator_close(sheaf_operator *operator) {
    if (operator== NULL) return;
    if (operator->running) {
        (void)close(operator->stop_pipe[1]);
        operator->stop_pipe[1] = - 1;
        (void)pthread_join(operator->thread, NULL);
    }
    finish_orders(operator);
    sheaf_http_close(operator->local);
    sheaf_http_close(operator->remote);
    sheaf_tls_source_close(operator->tls);
    if (operator->stop_event != NULL) event_free(operator->stop_event);
    if (operator->order_timer != NULL) event_free(operator->order_timer);
    if (operator->base != NULL) event_base_free(operator->base);
    for (int i = 0; i < 2; i++) {
        if (operator->stop_pipe[i] >= 0) close(operator->stop_pipe[i]);
    }
    sheaf_history_close(operator->history);
    free(operator);
}

const char *sheaf_operator_url(const sheaf_operator *operator) {
    return operator->remote == NULL ? NULL : sheaf_http_url(operator->remote);
}
