/* The carrier inside one process, for tests and the simulator.
 *
 * Each server has one worker thread that takes requests in the order in which they were sent, one of each link at a
 * time, so a run is as deterministic as its senders. No TLS runs, but both ends read the same files as on the network and judge each
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
#define CASTS_MAX  64u  /* frames of a group that a link has not fetched; it misses further ones */

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

/* What waits to be fetched from a link: an answer, or a frame that was cast. */
typedef struct frame frame;
struct frame {
    frame *next;
    sheaf_certificate *peer; /* who gave it; NULL for casts */
    size_t size;
    uint8_t data[];
};

struct sheaf_link {
    endpoint end;
    sheaf_link *next;    /* in the links of the server that it is connected to */
    uint64_t generation; /* of the server it is connected to; 0: none */
    uint32_t window;
    uint32_t pending;         /* requests without an answer, and answers that were not fetched */
    sheaf_exchange *handling; /* the one that the handler has */
    frame *answers, *casts;   /* oldest first */
    uint32_t casts_count;
    int failed; /* and nobody was told yet */
    char problem[160];
    int is_member;
    sheaf_cast_group group;
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

/* A connection shows the certificate in force when it begins, as on the network. */
static void endpoint_refresh(endpoint *end) {
    sheaf_credentials_pair pair;
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

static frame *frame_make(sheaf_span bytes, sheaf_certificate *peer) {
    frame *made = malloc(sizeof *made + bytes.size);
    if (made == NULL) return NULL;
    made->next = NULL;
    made->peer = peer == NULL ? NULL : sheaf_certificate_ref(peer); /* what is cast names nobody */
    made->size = bytes.size;
    if (bytes.size > 0) memcpy(made->data, bytes.data, bytes.size);
    return made;
}

static void frame_append(frame **list, frame *added) {
    while (*list != NULL) list = &(*list)->next;
    *list = added;
}

static void frames_free(frame **list) {
    while (*list != NULL) {
        frame *oldest = *list;
        *list = oldest->next;
        sheaf_certificate_unref(oldest->peer);
        free(oldest);
    }
}

static uint32_t frames_count(const frame *oldest) {
    uint32_t count = 0;
    for (; oldest != NULL; oldest = oldest->next) count++;
    return count;
}

static sheaf_server *find_server(const char *url) {
    sheaf_server *server = registry;
    while (server != NULL && strcmp(server->end.url, url) != 0) server = server->next;
    return server;
}

/* The server that the link is connected to, if it is still there. */
static sheaf_server *connected_server(const sheaf_link *link) {
    sheaf_server *server = find_server(link->end.url);
    return server != NULL && server->generation == link->generation ? server : NULL;
}

/* The link waits for none of its requests any more: those that the worker has not taken are removed, one that it has
 * loses its reader. */
static void forget_requests(sheaf_link *link) {
    sheaf_server *server = connected_server(link);
    sheaf_exchange *next = NULL;
    for (sheaf_exchange *exchange = server == NULL ? NULL : server->oldest; exchange != NULL; exchange = next) {
        next = exchange->next;
        if (exchange->link != link || exchange->handed_over) continue;
        exchange_unlink(exchange);
        exchange_free(exchange);
    }
    if (link->handling != NULL) link->handling->link = NULL;
    link->handling = NULL;
    link->pending = frames_count(link->answers);
}

static void link_fail(sheaf_link *link, const char *text) {
    forget_requests(link);
    link->failed = 1;
    (void)snprintf(link->problem, sizeof link->problem, "%s: %s", link->end.url, text);
}

/* ---- server ---- */

static sheaf_exchange *next_request(sheaf_server *server) {
    if (server->handed_over >= server->exchanges_max) return NULL;
    for (sheaf_exchange *exchange = server->oldest; exchange != NULL; exchange = exchange->next)
        if (!exchange->handed_over && exchange->link->handling == NULL) return exchange;
    return NULL;
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
        exchange->link->handling = exchange;
        server->handed_over++;
        pthread_mutex_unlock(&lock);
        server->on_request(server->context, exchange, exchange->peer, sheaf_span_of(exchange->request, exchange->size));
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
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

/* Those that the handler holds are freed by the reply that still comes; the others here. The server must still be
 * found by its name. */
static void drop_exchanges(sheaf_server *server) {
    while (server->oldest != NULL) {
        sheaf_exchange *exchange = server->oldest;
        if (exchange->link != NULL) {
            link_fail(exchange->link, "the server stopped");
        } else {
            exchange_unlink(exchange);
        }
    }
}

static void unregister(sheaf_server *server) {
    for (sheaf_server **at = &registry; *at != NULL; at = &(*at)->next) {
        if (*at != server) continue;
        *at = server->next;
        return;
    }
}

static void stop_server(sheaf_server *server) {
    if (server == NULL) return;
    pthread_mutex_lock(&lock);
    server->stopping = 1;
    pthread_cond_signal(&server->changed);
    pthread_mutex_unlock(&lock);
    pthread_join(server->worker, NULL);
    pthread_mutex_lock(&lock);
    drop_exchanges(server);
    unregister(server);
    pthread_mutex_unlock(&lock);
    endpoint_fini(&server->end);
    pthread_cond_destroy(&server->changed);
    free(server);
}

static void deliver(sheaf_link *link, sheaf_span bytes) {
    frame *answer = bytes.size <= link->end.frame_bytes_max ? frame_make(bytes, link->server_certificate) : NULL;
    link->handling = NULL;
    if (answer == NULL) {
        link_fail(link, bytes.size > link->end.frame_bytes_max ? "the server sent a frame above the limit"
                                                               : "no memory for the answer");
    } else {
        frame_append(&link->answers, answer);
    }
}

static void reply(sheaf_exchange *exchange, sheaf_span bytes) {
    pthread_mutex_lock(&lock);
    sheaf_link *link = exchange->link;
    exchange->link = NULL;
    if (link != NULL) deliver(link, bytes);
    if (exchange->server != NULL) exchange_unlink(exchange);
    pthread_mutex_unlock(&lock);
    exchange_free(exchange);
}

/* ---- casts ---- */

/* Who does not fetch what comes misses the rest, as on a network; nobody has to wait for him. */
static sheaf_status cast(sheaf_server *server, const sheaf_cast_group *group, uint64_t sequence, sheaf_span bytes) {
    (void)sequence; /* nothing is sealed here */
    pthread_mutex_lock(&lock);
    for (sheaf_link *link = server->links; link != NULL; link = link->next) {
        if (!link->is_member || memcmp(&link->group, group, sizeof *group) != 0) continue;
        if (link->casts_count >= CASTS_MAX) continue;
        frame *copy = bytes.size <= link->end.frame_bytes_max ? frame_make(bytes, NULL) : NULL;
        if (copy == NULL) continue;
        frame_append(&link->casts, copy);
        link->casts_count++;
    }
    pthread_mutex_unlock(&lock);
    return SHEAF_OK;
}

static sheaf_status join(sheaf_link *link, const sheaf_cast_group *group) {
    pthread_mutex_lock(&lock);
    frames_free(&link->casts);
    link->casts_count = 0;
    link->is_member = group != NULL;
    if (group != NULL) link->group = *group;
    pthread_mutex_unlock(&lock);
    return SHEAF_OK;
}

/* ---- link ---- */

static void disconnect(sheaf_link *link) {
    sheaf_server *server = connected_server(link);
    if (server != NULL) {
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
    if (server != NULL && server->stopping) server = NULL;
    if (server != NULL && server->generation == link->generation) return server;
    disconnect(link);
    if (server == NULL) {
        link_fail(link, "connection refused: no server has this name");
        return NULL;
    }
    sheaf_problem problem = {SHEAF_OK, ""};
    endpoint_refresh(&server->end);
    endpoint_refresh(&link->end);
    if (judge(server, link, &problem) != SHEAF_OK) {
        link_fail(link, problem.text);
        return NULL;
    }
    server->connections++;
    link->next = server->links;
    server->links = link;
    link->generation = server->generation;
    link->server_certificate = sheaf_certificate_ref(server->end.own);
    return server;
}

/* A single request that the handler has is answered all the same; with others behind it all have failed. */
static void throw_out(sheaf_link *link) {
    uint32_t unanswered = link->pending - frames_count(link->answers);
    if (unanswered > (link->handling != NULL)) link_fail(link, "the server ended the connection");
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

static void look(sheaf_server *server, sheaf_server_report *out) {
    pthread_mutex_lock(&lock);
    *out = (sheaf_server_report){.ready = !server->stopping, .connections = server->connections};
    pthread_mutex_unlock(&lock);
}

static sheaf_status open_link(const sheaf_transport_options *options, sheaf_link **out, sheaf_problem *problem) {
    sheaf_link *link = calloc(1, sizeof *link);
    if (link == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    link->window = options->window > 0 ? options->window : 1;
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
    link->pending++;
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
    if (link->pending >= link->window || link->failed) {
        status = SHEAF_AGAIN;
    } else {
        sheaf_server *server = connect_to_server(link);
        if (server != NULL && frame.size > server->end.frame_bytes_max) {
            if (server->on_reject != NULL)
                server->on_reject(server->context, SHEAF_E_TOO_LARGE, "a frame is above the limit");
            disconnect(link);
            link_fail(link, "the server ended the connection");
        } else if (server != NULL) {
            submit(server, link, exchange);
            exchange = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    free(exchange);
    return status;
}

static sheaf_status take_frame(sheaf_link *link, frame **list, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    frame *oldest = *list;
    if (oldest->size > out->capacity) {
        status = sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: an answer of %zu bytes does not fit", link->end.url,
                                   oldest->size);
    } else {
        if (oldest->size > 0) memcpy(out->data, oldest->data, oldest->size);
        out->size = oldest->size;
    }
    *list = oldest->next;
    free(oldest);
    return status;
}

static sheaf_status take_answer(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_certificate *peer = link->answers->peer;
    if (peer != NULL) { /* NULL: it was thrown out before the answer came */
        sheaf_certificate_unref(link->peer);
        link->peer = peer;
    }
    link->pending--;
    return take_frame(link, &link->answers, out, problem);
}

static sheaf_status receive_frame(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = SHEAF_AGAIN;
    pthread_mutex_lock(&lock);
    if (link->answers != NULL) {
        status = take_answer(link, out, problem);
    } else if (link->failed) {
        link->failed = 0;
        status = sheaf_problem_set(problem, SHEAF_E_NETWORK, "%s", link->problem);
    } else if (link->casts != NULL) {
        link->casts_count--;
        status = take_frame(link, &link->casts, out, problem);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static void forget(sheaf_link *link) {
    frames_free(&link->answers);
    link->failed = 0;
    forget_requests(link);
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
    frames_free(&link->casts);
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
    .cast = cast,
    .expel = expel,
    .look = look,
    .open_link = open_link,
    .send = send_request,
    .receive = receive_frame,
    .cancel = cancel,
    .peer = peer,
    .join = join,
    .close = close_link,
};
