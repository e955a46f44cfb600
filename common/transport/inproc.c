/* The carrier inside one process, for tests and the simulator.
 *
 * Each server has one worker thread that takes requests in the order in which they were sent, so a run is as
 * deterministic as its senders. No TLS runs, but both ends read the same files as on the network and judge each
 * other's certificate by chain and role, when a link first meets a server.
 *
 * One mutex guards everything here: the objects point at each other in both directions, and this carrier's speed is
 * not what anybody measures. Handlers run without it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/credentials.h"
#include "common/transport/transport.h"
#include "common/trust.h"

#define NAME_BYTES 256u /* of "inproc://name", with the NUL */

typedef struct {
    char url[NAME_BYTES];
    sheaf_trust *trust;
    sheaf_credentials *credentials;
    sheaf_certificate *own; /* of the last connection */
    uint32_t frame_bytes_max;
} endpoint;

struct sheaf_exchange {
    sheaf_exchange *next, *previous; /* in the server's list, oldest first */
    sheaf_server *server;            /* NULL once the server stopped */
    sheaf_link *link;                /* NULL once nobody waits */
    sheaf_certificate *peer;
    int handed_over; /* to the handler */
    size_t size;
    uint8_t request[];
};

struct sheaf_server {
    endpoint end;
    sheaf_server *next;  /* in the registry */
    uint64_t generation; /* never used twice, so a link notices that a server of the same name is another one */
    sheaf_request_handler on_request;
    sheaf_reject_handler on_reject;
    void *context;
    sheaf_exchange *oldest, *newest;
    uint32_t handed_over, exchanges_max;
    uint32_t connections_max, connections;
    sheaf_link *links; /* those that are connected */
    int stopping;
    pthread_cond_t changed;
    pthread_t worker;
};

struct sheaf_link {
    endpoint end;
    sheaf_link *next;    /* in the links of the server that it is connected to */
    uint64_t generation; /* of the server it is connected to; 0: none */
    sheaf_exchange *flight;
    int answered; /* `answer` and `outcome` tell how the request ended */
    sheaf_status outcome;
    sheaf_buffer answer;
    char problem[160];
    sheaf_certificate *server_certificate, *peer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sheaf_server *registry;
static uint64_t generations;

/* ---- both ends ---- */

static void endpoint_fini(endpoint *end) {
    sheaf_trust_unref(end->trust);
    sheaf_credentials_unref(end->credentials);
    sheaf_certificate_unref(end->own);
    memset(end, 0, sizeof *end);
}

static sheaf_status endpoint_open_tls(endpoint *end, const sheaf_tls_options *tls, sheaf_problem *problem) {
    const sheaf_trust_options files = {.ca_path = tls->ca_path};
    sheaf_status status = SHEAF_OK;
    if (tls->trust != NULL)
        end->trust = sheaf_trust_ref(tls->trust);
    else
        status = sheaf_trust_open(&files, &end->trust, problem);
    if (status != SHEAF_OK) return status;
    if (tls->credentials != NULL)
        end->credentials = sheaf_credentials_ref(tls->credentials);
    else
        status = sheaf_credentials_open(tls->certificate_path, tls->key_path, &end->credentials, problem);
    return status;
}

/* What is read again when a connection begins, as on the network. */
static void endpoint_refresh(endpoint *end) {
    sheaf_credentials_pair pair;
    (void)sheaf_credentials_poll(end->credentials);
    sheaf_credentials_take(end->credentials, &pair);
    sheaf_certificate_unref(end->own);
    end->own = sheaf_certificate_ref(pair.certificate);
    sheaf_credentials_pair_fini(&pair);
}

static sheaf_status endpoint_init(endpoint *end, const sheaf_transport_options *options, sheaf_problem *problem) {
    memset(end, 0, sizeof *end);
    const char *prefix = sheaf_transport_inproc.url_prefix;
    if (strncmp(options->url, prefix, strlen(prefix)) != 0 || options->url[strlen(prefix)] == '\0' ||
        strlen(options->url) >= NAME_BYTES) {
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%.200s: not of the form inproc://name", options->url);
    }
    (void)snprintf(end->url, sizeof end->url, "%s", options->url);
    end->frame_bytes_max = options->frame_bytes_max;
    sheaf_status status = endpoint_open_tls(end, &options->tls, problem);
    if (status == SHEAF_OK) endpoint_refresh(end);
    return status;
}

static void exchange_unlink(sheaf_exchange *exchange) {
    sheaf_server *server = exchange->server;
    *(exchange->previous != NULL ? &exchange->previous->next : &server->oldest) = exchange->next;
    *(exchange->next != NULL ? &exchange->next->previous : &server->newest) = exchange->previous;
    exchange->next = exchange->previous = NULL;
    if (exchange->handed_over) server->handed_over--;
    exchange->server = NULL;
    pthread_cond_signal(&server->changed);
}

static void exchange_free(sheaf_exchange *exchange) {
    sheaf_certificate_unref(exchange->peer);
    free(exchange);
}

static void link_fail(sheaf_link *link, sheaf_status status, const char *text) {
    link->flight = NULL;
    link->answered = 1;
    link->outcome = status;
    (void)snprintf(link->problem, sizeof link->problem, "%s: %s", link->end.url, text);
}

/* ---- server ---- */

static sheaf_exchange *next_request(sheaf_server *server) {
    if (server->handed_over >= server->exchanges_max) return NULL;
    sheaf_exchange *exchange = server->oldest;
    while (exchange != NULL && exchange->handed_over) exchange = exchange->next;
    return exchange;
}

static void *worker_main(void *argument) {
    sheaf_server *server = argument;
    pthread_mutex_lock(&lock);
    while (!server->stopping) {
        sheaf_exchange *exchange = next_request(server);
        if (exchange == NULL) {
            pthread_cond_wait(&server->changed, &lock);
            continue;
        }
        exchange->handed_over = 1;
        server->handed_over++;
        pthread_mutex_unlock(&lock);
        server->on_request(server->context, exchange, exchange->peer, sheaf_span_of(exchange->request, exchange->size));
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static sheaf_server *find_server(const char *url) {
    sheaf_server *server = registry;
    while (server != NULL && strcmp(server->end.url, url) != 0) server = server->next;
    return server;
}

static sheaf_status server_register(sheaf_server *server, sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    pthread_mutex_lock(&lock);
    if (find_server(server->end.url) != NULL) {
        status =
            sheaf_problem_set(problem, SHEAF_E_ADDRESS_IN_USE, "%s: another server has this name", server->end.url);
    } else if (pthread_create(&server->worker, NULL, worker_main, server) != 0) {
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: cannot start a thread", server->end.url);
    } else {
        server->generation = ++generations;
        server->next = registry;
        registry = server;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static sheaf_status open_server(const sheaf_transport_options *options, sheaf_request_handler on_request,
                                sheaf_reject_handler on_reject, void *context, sheaf_server **out,
                                sheaf_problem *problem) {
    sheaf_server *server = calloc(1, sizeof *server);
    if (server == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    server->on_request = on_request;
    server->on_reject = on_reject;
    server->context = context;
    server->exchanges_max = options->exchanges_max;
    server->connections_max = options->connections_max;
    pthread_cond_init(&server->changed, NULL);
    sheaf_status status = endpoint_init(&server->end, options, problem);
    if (status == SHEAF_OK) status = server_register(server, problem);
    if (status == SHEAF_OK) {
        *out = server;
        return SHEAF_OK;
    }
    endpoint_fini(&server->end);
    pthread_cond_destroy(&server->changed);
    free(server);
    return status;
}

static const char *server_url(const sheaf_server *server) { return server->end.url; }

/* Those that the handler holds are freed by the reply that still comes; the others here. */
static void drop_exchanges(sheaf_server *server) {
    while (server->oldest != NULL) {
        sheaf_exchange *exchange = server->oldest;
        if (exchange->link != NULL) link_fail(exchange->link, SHEAF_E_NETWORK, "the server stopped");
        exchange->link = NULL;
        exchange_unlink(exchange);
        if (!exchange->handed_over) exchange_free(exchange);
    }
}

static void stop_server(sheaf_server *server) {
    if (server == NULL) return;
    pthread_mutex_lock(&lock);
    for (sheaf_server **at = &registry; *at != NULL; at = &(*at)->next) {
        if (*at != server) continue;
        *at = server->next;
        break;
    }
    server->stopping = 1;
    pthread_cond_signal(&server->changed);
    pthread_mutex_unlock(&lock);
    pthread_join(server->worker, NULL);
    pthread_mutex_lock(&lock);
    drop_exchanges(server);
    pthread_mutex_unlock(&lock);
    endpoint_fini(&server->end);
    pthread_cond_destroy(&server->changed);
    free(server);
}

static void deliver(sheaf_link *link, sheaf_span frame) {
    link->flight = NULL;
    link->answered = 1;
    sheaf_certificate_unref(link->peer);
    link->peer = sheaf_certificate_ref(link->server_certificate);
    link->outcome = frame.size <= link->end.frame_bytes_max ? SHEAF_OK : SHEAF_E_TOO_LARGE;
    link->answer.data = malloc(frame.size + 1);
    link->answer.size = 0;
    if (link->answer.data == NULL) {
        link->outcome = SHEAF_E_NETWORK;
        (void)snprintf(link->problem, sizeof link->problem, "%s: no memory for the answer", link->end.url);
        return;
    }
    if (frame.size > 0) memcpy(link->answer.data, frame.data, frame.size);
    link->answer.size = frame.size;
}

static void reply(sheaf_exchange *exchange, sheaf_span frame) {
    pthread_mutex_lock(&lock);
    if (exchange->link != NULL) deliver(exchange->link, frame);
    if (exchange->server != NULL) exchange_unlink(exchange);
    pthread_mutex_unlock(&lock);
    exchange_free(exchange);
}

/* ---- link ---- */

static void disconnect(sheaf_link *link) {
    sheaf_server *server = find_server(link->end.url);
    if (server != NULL && server->generation == link->generation) {
        sheaf_link **at = &server->links;
        while (*at != link) at = &(*at)->next;
        *at = link->next;
        server->connections--;
    }
    link->generation = 0;
    sheaf_certificate_unref(link->server_certificate);
    link->server_certificate = NULL;
}

/* What the TLS handshake would have found. A refusal by the server is told to its on_reject, as on the network. */
static sheaf_status judge(const sheaf_server *server, const sheaf_link *link, sheaf_problem *problem) {
    sheaf_status status = sheaf_trust_check(link->end.trust, server->end.own, SHEAF_ROLE_NONE, problem);
    if (status != SHEAF_OK) return status;
    if (sheaf_certificate_identity(server->end.own)->role != SHEAF_ROLE_AGGREGATOR) {
        return sheaf_problem_set(problem, SHEAF_E_ROLE, "the server's certificate is not an aggregator's");
    }
    status = sheaf_trust_check(server->end.trust, link->end.own, SHEAF_ROLE_NONE, problem);
    if (status == SHEAF_OK && sheaf_certificate_identity(link->end.own)->role == SHEAF_ROLE_AGGREGATOR) {
        status = sheaf_problem_set(problem, SHEAF_E_ROLE, "an aggregator's certificate is used by a client");
    }
    if (status == SHEAF_OK && server->connections >= server->connections_max) {
        status =
            sheaf_problem_set(problem, SHEAF_E_BUSY, "the limit of %u connections is reached", server->connections_max);
    }
    if (status != SHEAF_OK && server->on_reject != NULL) server->on_reject(server->context, status, problem->text);
    return status;
}

static sheaf_server *connect_to_server(sheaf_link *link) {
    sheaf_server *server = find_server(link->end.url);
    if (server != NULL && server->generation == link->generation) return server;
    disconnect(link);
    if (server == NULL) {
        link_fail(link, SHEAF_E_NETWORK, "connection refused: no server has this name");
        return NULL;
    }
    sheaf_problem problem = {SHEAF_OK, ""};
    endpoint_refresh(&server->end);
    endpoint_refresh(&link->end);
    if (judge(server, link, &problem) != SHEAF_OK) {
        link_fail(link, SHEAF_E_NETWORK, problem.text);
        return NULL;
    }
    server->connections++;
    link->next = server->links;
    server->links = link;
    link->generation = server->generation;
    link->server_certificate = sheaf_certificate_ref(server->end.own);
    return server;
}

/* Its request that the handler has is answered all the same; one that waits for the handler is not. */
static void throw_out(sheaf_link *link) {
    sheaf_exchange *exchange = link->flight;
    if (exchange != NULL && !exchange->handed_over) {
        exchange->link = NULL;
        exchange_unlink(exchange);
        exchange_free(exchange);
        link_fail(link, SHEAF_E_NETWORK, "the server ended the connection");
    }
    disconnect(link);
}

static unsigned expel(sheaf_server *server, int (*unwanted)(void *context, const sheaf_certificate *peer),
                      void *context) {
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    for (sheaf_link *link = server->links, *next = NULL; link != NULL; link = next) {
        next = link->next;
        if (!unwanted(context, link->end.own)) continue;
        throw_out(link);
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

static sheaf_status open_link(const sheaf_transport_options *options, sheaf_link **out, sheaf_problem *problem) {
    sheaf_link *link = calloc(1, sizeof *link);
    if (link == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    sheaf_status status = endpoint_init(&link->end, options, problem);
    if (status == SHEAF_OK) {
        *out = link;
        return SHEAF_OK;
    }
    endpoint_fini(&link->end);
    free(link);
    return status;
}

static void submit(sheaf_server *server, sheaf_link *link, sheaf_exchange *exchange) {
    exchange->server = server;
    exchange->link = link;
    exchange->peer = sheaf_certificate_ref(link->end.own);
    exchange->previous = server->newest;
    *(server->newest != NULL ? &server->newest->next : &server->oldest) = exchange;
    server->newest = exchange;
    link->flight = exchange;
    pthread_cond_signal(&server->changed);
}

static sheaf_status send_request(sheaf_link *link, sheaf_span frame) {
    if (frame.size > link->end.frame_bytes_max) return SHEAF_E_TOO_LARGE;
    sheaf_exchange *exchange = calloc(1, sizeof *exchange + frame.size);
    if (exchange == NULL) return SHEAF_E_MEMORY;
    exchange->size = frame.size;
    if (frame.size > 0) memcpy(exchange->request, frame.data, frame.size);
    sheaf_status status = SHEAF_OK;
    pthread_mutex_lock(&lock);
    if (link->flight != NULL || link->answered) {
        status = SHEAF_AGAIN;
    } else {
        sheaf_server *server = connect_to_server(link);
        if (server != NULL && frame.size > server->end.frame_bytes_max) {
            if (server->on_reject != NULL)
                server->on_reject(server->context, SHEAF_E_TOO_LARGE, "a frame is above the limit");
            disconnect(link);
            link_fail(link, SHEAF_E_NETWORK, "the server ended the connection");
        } else if (server != NULL) {
            submit(server, link, exchange);
            exchange = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    free(exchange);
    return status;
}

static sheaf_status take_answer(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = link->outcome;
    if (status == SHEAF_OK && link->answer.size > out->capacity) status = SHEAF_E_TOO_LARGE;
    if (status == SHEAF_OK) {
        if (link->answer.size > 0) memcpy(out->data, link->answer.data, link->answer.size);
        out->size = link->answer.size;
    } else if (status == SHEAF_E_TOO_LARGE) {
        (void)sheaf_problem_set(problem, status, "%s: an answer of %zu bytes does not fit", link->end.url,
                                link->answer.size);
    } else {
        (void)sheaf_problem_set(problem, status, "%s", link->problem);
    }
    free(link->answer.data);
    memset(&link->answer, 0, sizeof link->answer);
    link->answered = 0;
    return status;
}

static sheaf_status receive_answer(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    pthread_mutex_lock(&lock);
    sheaf_status status = link->answered ? take_answer(link, out, problem) : SHEAF_AGAIN;
    pthread_mutex_unlock(&lock);
    return status;
}

/* Forgets the request: one that the worker has not taken is removed, one that it has loses its reader. */
static void forget(sheaf_link *link) {
    sheaf_exchange *exchange = link->flight;
    link->flight = NULL;
    link->answered = 0;
    free(link->answer.data);
    memset(&link->answer, 0, sizeof link->answer);
    if (exchange == NULL) return;
    exchange->link = NULL;
    if (exchange->handed_over) return;
    exchange_unlink(exchange);
    exchange_free(exchange);
}

static void cancel(sheaf_link *link) {
    pthread_mutex_lock(&lock);
    forget(link);
    pthread_mutex_unlock(&lock);
}

static sheaf_certificate *peer(sheaf_link *link) { return link->peer; }

static void close_link(sheaf_link *link) {
    if (link == NULL) return;
    pthread_mutex_lock(&lock);
    forget(link);
    disconnect(link);
    pthread_mutex_unlock(&lock);
    sheaf_certificate_unref(link->peer);
    endpoint_fini(&link->end);
    free(link);
}

const sheaf_transport sheaf_transport_inproc = {
    .name = "inproc",
    .url_prefix = "inproc://",
    .open_server = open_server,
    .server_url = server_url,
    .stop_server = stop_server,
    .reply = reply,
    .expel = expel,
    .open_link = open_link,
    .send = send_request,
    .receive = receive_answer,
    .cancel = cancel,
    .peer = peer,
    .close = close_link,
};
