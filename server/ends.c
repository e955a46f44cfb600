#include "server/ends.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/file.h"
#include "common/log.h"
#include "server/handle.h"
#include "server/operator/operator.h"

#define BUSY_RETRY_MS    100u
#define SURPLUS_RETRY_MS 1000u

static void ask_to_wait(const sheaf_end *end, sheaf_exchange *exchange, sheaf_status why, uint32_t retry_ms) {
    uint8_t bytes[SHEAF_FRAME_BYTES_MAX(0)];
    sheaf_buffer frame = {bytes, 0, sizeof bytes};
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_wait_tag;
    reply.body.wait.status = (uint32_t)why;
    reply.body.wait.retry_ms = sheaf_wait_jitter(retry_ms);
    if (sheaf_frame_encode_reply(&reply, sheaf_span_of(NULL, 0), &frame) == SHEAF_OK)
        end->carrier->reply(exchange, sheaf_buffer_span(&frame));
}

static void on_request(void *context, sheaf_exchange *exchange, sheaf_certificate *peer, sheaf_span frame) {
    const sheaf_end *end = context;
    sheaf_request *request = sheaf_request_take(end->sink->pool);
    if (request == NULL) { /* a carrier that lets in more than limits.exchanges at once */
        ask_to_wait(end, exchange, SHEAF_E_BUSY, BUSY_RETRY_MS);
        return;
    }
    request->task.run = sheaf_handle_request;
    request->service = end->sink->handlers;
    request->end = end;
    request->clients = end->sink->clients;
    request->exchange = exchange;
    request->peer = peer;
    request->frame = frame;
    sheaf_queue_push(end->sink->tasks, &request->task);
}

static void on_surplus(void *context, sheaf_exchange *exchange, sheaf_certificate *peer, sheaf_span frame) {
    const sheaf_end *end = context;
    (void)frame;
    sheaf_refusals_note(end->sink->refusals, SHEAF_E_QUOTA, "", sheaf_certificate_identity(peer)->name,
                        "limits.connections is reached");
    ask_to_wait(end, exchange, SHEAF_E_QUOTA, SURPLUS_RETRY_MS);
}

static void on_reject(void *context, sheaf_status reason, const char *detail) {
    const sheaf_end *end = context;
    /* A peer that leaves by itself before it has said who it is was not refused. */
    if (reason == SHEAF_E_NETWORK)
        sheaf_log(SHEAF_LOG_DEBUG, "connection_lost", "detail=\"%s\"", detail);
    else
        sheaf_refusals_note(end->sink->refusals, reason, "", "", detail);
}

/* Descriptors that the service needs beside connections: uploads, models, database, log, libraries. */
static uint64_t other_descriptors(const sheafd_config *config) {
    return 64 + 2 * SHEAF_OPERATOR_CONNECTIONS + config->jobs.count * ((uint64_t)config->limits.uploads + 8) +
           config->server.workers;
}

/* Connections that this process can hold without running out of descriptors for its own files; each connection may be
 * counted twice, before and after its handshake. Raises the soft limit first. */
static uint32_t connections_that_fit(const sheafd_config *config) {
    struct rlimit limit;
    uint64_t others = other_descriptors(config), wanted = others + 2 * (uint64_t)config->limits.connections;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return config->limits.connections;
    if (limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= wanted) return config->limits.connections;
    uint64_t fit = limit.rlim_cur > others + 2 ? (limit.rlim_cur - others) / 2 : 1;
    sheaf_log(SHEAF_LOG_WARNING, "connections_limited",
              "wanted=%u fit=%llu advice=\"raise the limit of open files (LimitNOFILE, ulimit -n) to %llu\"",
              config->limits.connections, (unsigned long long)fit, (unsigned long long)wanted);
    return (uint32_t)fit;
}

static sheaf_status open_end(sheaf_ends *ends, const char *url, const char *key, uint32_t connections,
                             sheaf_problem *problem) {
    const sheafd_config *config = ends->sink.config;
    sheaf_end *end = &ends->items[ends->count];
    end->sink = &ends->sink;
    end->carrier = sheaf_transport_for(url);
    if (end->carrier == NULL) {
        return sheaf_problem_set(problem, SHEAF_E_CONFIG,
                                 "%s: %s: '%s' is no address that a carrier knows; expected %s",
                                 sheaf_config_where(config->source, key), key, url,
                                 strcmp(key, "server.listen") == 0 ? "tls+tcp://HOST:PORT" : "mqtts://HOST:PORT");
    }
    const sheaf_transport_options options = {
        .url = url,
        .tls = {.certificate_path = config->server.certificate,
                .key_path = config->server.key,
                .ca_path = config->server.ca,
                .tls12_profile = config->server.tls12_profile,
                .trust = ends->sink.trust,
                .credentials = ends->sink.credentials},
        .frame_bytes_max = (uint32_t)SHEAF_FRAME_BYTES_MAX(config->limits.chunk_bytes),
        .handshake_ms = config->limits.handshake_ms,
        .exchanges_max = config->limits.exchanges,
        .connections_max = connections,
        .on_surplus = on_surplus,
        .topic_prefix = config->broker.topic_prefix,
    };
    sheaf_status status = end->carrier->open_server(&options, on_request, on_reject, end, &end->server, problem);
    if (status == SHEAF_OK) ends->count++;
    return status;
}

/* Where scripts and people find the ports that were chosen; written anew at every start, so it is not synced. */
static sheaf_status write_address(const sheaf_ends *ends, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES], draft[SHEAF_PATH_BYTES];
    const char *state = ends->sink.config->server.state;
    int fd = -1;
    sheaf_status status = sheaf_path_join(path, state, "address", problem);
    if (status == SHEAF_OK) status = sheaf_path_join(draft, state, "address.new", problem);
    if (status == SHEAF_OK) status = sheaf_file_create(draft, 0644, &fd, problem);
    if (status != SHEAF_OK) return status;
    uint64_t at = 0;
    for (size_t i = 0; i < ends->count && status == SHEAF_OK; i++) {
        const char *url = sheaf_ends_url(ends, i);
        status = sheaf_file_write_at(fd, sheaf_span_of(url, strlen(url)), at, draft, problem);
        at += strlen(url);
        if (status == SHEAF_OK) status = sheaf_file_write_at(fd, sheaf_span_of("\n", 1), at++, draft, problem);
    }
    close(fd);
    return status == SHEAF_OK ? sheaf_file_swap(draft, path, problem) : status;
}

sheaf_status sheaf_ends_open(sheaf_ends *ends, sheaf_problem *problem) {
    const sheafd_config *config = ends->sink.config;
    uint32_t connections = connections_that_fit(config);
    sheaf_status status = SHEAF_OK;
    if (config->server.listen[0] != '\0')
        status = open_end(ends, config->server.listen, "server.listen", connections, problem);
    if (status == SHEAF_OK && config->broker.url[0] != '\0')
        status = open_end(ends, config->broker.url, "broker.url", config->limits.connections, problem);
    return status == SHEAF_OK ? write_address(ends, problem) : status;
}

const char *sheaf_ends_url(const sheaf_ends *ends, size_t index) {
    const sheaf_end *end = &ends->items[index];
    return end->carrier->server_url(end->server);
}

unsigned sheaf_ends_expel(sheaf_ends *ends, int (*unwanted)(void *context, const sheaf_certificate *peer),
                          void *context) {
    unsigned count = 0;
    for (size_t i = 0; i < ends->count; i++) {
        const sheaf_end *end = &ends->items[i];
        if (end->carrier->expel != NULL) count += end->carrier->expel(end->server, unwanted, context);
    }
    return count;
}

void sheaf_ends_close(sheaf_ends *ends) {
    while (ends->count > 0) {
        sheaf_end *end = &ends->items[--ends->count];
        end->carrier->stop_server(end->server);
    }
}

size_t sheaf_ends_wanted(const sheafd_config *config) {
    return (size_t)(config->server.listen[0] != '\0') + (size_t)(config->broker.url[0] != '\0');
}

const char *sheaf_ends_look(const sheaf_ends *ends, size_t index, sheaf_server_report *out) {
    const sheaf_end *end = &ends->items[index];
    *out = (sheaf_server_report){.ready = 1};
    if (end->carrier->look != NULL) end->carrier->look(end->server, out);
    return end->carrier->name;
}
