/* The aggregator's end: TLS over NNG's streams, each a small machine that takes one request at a time.
 *
 *     accept -> HELLO_OUT -> HELLO_IN -> LENGTH -> (SLOT) -> BODY -> EXCHANGE -> REPLY -> LENGTH ...
 *
 * HELLO_OUT is the first write, so the TLS handshake runs inside it. A connection reads the next request only after the
 * reply to the last one is out; TCP holds back whoever sends more.
 *
 * Memory: before a connection may take a frame in, it needs one of exchanges_max slots, and keeps it until its reply is
 * written. So at most exchanges_max frames each way are held, however many devices are connected. One identity has at
 * most CONNECTIONS_PER_PEER connections, so that it cannot keep the slots from the others by beginning frames and never
 * ending them. Beyond connections_max a connection is a guest: what it asks is answered by on_surplus, until there is room. Guests
 * count, and are cut, as those do who are still shaking hands. A request in the handler keeps its slot even when its connection is gone, until the handler replies.
 *
 * Time: the handshake has a deadline. After it only progress counts: who moves no byte of a message for a few times as
 * long is cut, who moves some is not, however slow; but while somebody waits for a slot, who holds one has to move
 * TRICKLE_BYTES_PER_S.
 *
 * Threads: steps end on NNG's threads, which also run the handler. The keeper, one thread a server, cuts what is past
 * its deadline, frees what has ended, and accepts again after accept has failed. `lock` guards everything in `server`
 * and the fields of a connection, except that who owns its step (busy) may fill the buffers without it. It may be held
 * while NNG's functions are called, for NNG never calls back on the calling thread. */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/transport/nng_address.h"
#include "common/transport/nng_connection.h"
#include "common/transport/nng_ends.h"

#define ACCEPT_PAUSE_MS  100u  /* after accept failed: no descriptors, no memory */
#define STOP_PATIENCE_MS 2000u /* for replies that are being written when the server stops */

/* Connections that one identity (tenant, role and name) may hold. A device needs one; a reconnect overlaps with the
 * dead one before it, perhaps with two or three of a bad hour, until TCP gives them up. Without this limit any one
 * certificate could take all connections by being silent, and all slots by beginning frames. */
#define CONNECTIONS_PER_PEER 4u

static void server_unref_locked(sheaf_server *server) {
    unsigned left = --server->references;
    pthread_mutex_unlock(&server->lock);
    if (left > 0) return;
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

static void exchange_free_locked(sheaf_exchange *exchange) {
    sheaf_certificate_unref(exchange->peer);
    exchange->server->references--; /* never the last: the caller uses the server */
    free(exchange);
}

/* ---- the end of a connection ---- */

/* Says who was turned away, if it never became a member or broke the rules. Called without the lock. */
void sheaf_nng_report(sheaf_server *server, const char *address, sheaf_status reason, const char *text) {
    char detail[SHEAF_NNG_ADDRESS_BYTES + sizeof((sheaf_tls_state *)0)->text + 4];
    if (reason == SHEAF_OK || server->on_reject == NULL) return;
    (void)snprintf(detail, sizeof detail, "%s: %s", address, text);
    server->on_reject(server->context, reason, detail);
}

void sheaf_nng_leave_waiting(sheaf_server *server, connection *conn) {
    connection **at = &server->waiting;
    while (*at != NULL && *at != conn) at = &(*at)->next_waiting;
    if (*at == NULL) return;
    *at = conn->next_waiting;
    if (*at == NULL) server->waiting_end = at;
}

static void set_deadline(connection *conn, uint64_t deadline_ms) {
    sheaf_server *server = conn->server;
    conn->deadline_ms = deadline_ms;
    if (conn->deadline_ms >= server->look_ms) return;
    server->look_ms = conn->deadline_ms;
    pthread_cond_signal(&server->changed);
}

uint64_t sheaf_nng_patience_ms(const sheaf_server *server) {
    return (uint64_t)server->handshake_ms * SHEAF_TLS_PATIENCE;
}

static void expect_progress(connection *conn) {
    sheaf_tls_watch_begin(&conn->watch, sheaf_tls_now_ms(), sheaf_nng_patience_ms(conn->server));
    set_deadline(conn, conn->watch.look_ms);
}

static void release_slot(sheaf_server *server) {
    server->slots--;
    if (server->waiting != NULL) pthread_cond_signal(&server->changed); /* the keeper lets the next one in */
}

static int is_outside(const connection *conn) { return conn->phase <= HELLO_IN || conn->guest; }

/* Takes a connection whose last step is over out of everything; the keeper frees it. */
static void bury(connection *conn) {
    sheaf_server *server = conn->server;
    *(conn->previous != NULL ? &conn->previous->next : &server->live) = conn->next;
    if (conn->next != NULL) conn->next->previous = conn->previous;
    if (conn->phase == SLOT) sheaf_nng_leave_waiting(server, conn);
    *(is_outside(conn) ? &server->strangers : &server->members) -= 1;
    if (conn->phase == EXCHANGE) {
        conn->exchange->connection = NULL; /* its slot goes when the handler replies */
    } else {
        if (conn->exchange != NULL) exchange_free_locked(conn->exchange);
        if (conn->has_slot) release_slot(server);
    }
    conn->exchange = NULL;
    conn->next_waiting = server->ended;
    server->ended = conn;
    pthread_cond_signal(&server->changed);
}

/* Ends a connection: at once if nothing is under way (the keeper reports it), else when the step has noticed. */
void sheaf_nng_cut(connection *conn, sheaf_status reason, const char *text) {
    if (conn->closing) return;
    conn->closing = 1;
    conn->reason = reason;
    conn->reason_text = text;
    sheaf_tls_stream_close(&conn->stream);
    if (!conn->busy) bury(conn);
}

/* Ends what its own step found out. Returns with the lock released. */
static void fall(connection *conn, sheaf_status reason, const char *text) {
    sheaf_server *server = conn->server;
    char address[SHEAF_NNG_ADDRESS_BYTES];
    sheaf_tls_state state = {NULL, SHEAF_OK, ""};
    int stranger = conn->phase <= HELLO_IN;
    if (stranger && !server->stopping) {
        sheaf_tls_stream_ask(&conn->stream, &state);
        sheaf_certificate_unref(state.peer);
    }
    if (state.status != SHEAF_OK) { /* nearer to the cause than what followed from it */
        reason = state.status;
        text = state.text;
    } else if (conn->reason != SHEAF_OK) {
        reason = conn->reason;
        text = conn->reason_text;
    } else if (reason == SHEAF_OK && stranger && !server->stopping) {
        reason = SHEAF_E_NETWORK;
        text = "closed before the handshake ended";
    }
    memcpy(address, conn->address, sizeof address);
    conn->busy = 0;
    conn->closing = 1;
    conn->reason = SHEAF_OK; /* it is reported here, not by the keeper */
    sheaf_tls_stream_close(&conn->stream);
    server->handlers++; /* the report counts as one, so that stop waits for it */
    bury(conn);
    pthread_mutex_unlock(&server->lock);
    sheaf_nng_report(server, address, reason, text);
    pthread_mutex_lock(&server->lock);
    server->handlers--;
    if (server->stopping) pthread_cond_signal(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

/* ---- the steps of a connection; each is entered with the lock and returns without it ---- */

static void on_step(void *argument, int error);

static void begin_receive(connection *conn, phase next, void *first, size_t first_bytes, void *second,
                          size_t second_bytes) {
    conn->phase = next;
    conn->busy = 1;
    pthread_mutex_unlock(&conn->server->lock);
    if (sheaf_tls_stream_receive(&conn->stream, first, first_bytes, second, second_bytes) != 0)
        on_step(conn, NNG_ECLOSED);
}

/* Length and id come in one record as a rule, so both are read in one step; but a length that is refused need not have
 * an id behind it. One byte is left, so that read_body always has something to wait for. */
static void read_length(connection *conn) {
    conn->phase = LENGTH;
    conn->deadline_ms = 0; /* a member may be silent as long as it likes */
    if (conn->guest) set_deadline(conn, sheaf_tls_now_ms() + conn->server->handshake_ms);
    conn->busy = 1;
    pthread_mutex_unlock(&conn->server->lock);
    if (sheaf_tls_stream_receive_some(&conn->stream, conn->head, SHEAF_SP_LENGTH_BYTES, SHEAF_SP_HEAD_BYTES - 1) != 0)
        on_step(conn, NNG_ECLOSED);
}

static int is_same_peer(const sheaf_certificate *a, const sheaf_certificate *b) {
    const sheaf_identity *one = sheaf_certificate_identity(a), *other = sheaf_certificate_identity(b);
    return one->role == other->role && strcmp(one->name, other->name) == 0 && strcmp(one->tenant, other->tenant) == 0;
}

/* The longest connected of the newcomer's identity if that has all it may have, else NULL. The oldest one goes, not the
 * newcomer: a device that comes back must not be locked out by its own dead connections. */
static connection *find_surplus(const sheaf_server *server, const connection *newcomer) {
    connection *oldest = NULL;
    unsigned held = 0;
    for (connection *conn = server->live; conn != NULL; conn = conn->next) {
        if (conn == newcomer || conn->phase <= HELLO_IN || conn->closing) continue;
        if (!is_same_peer(conn->peer, newcomer->peer)) continue;
        oldest = conn;
        held++;
    }
    return held >= CONNECTIONS_PER_PEER ? oldest : NULL;
}

static void let_be_member(connection *conn) {
    conn->guest = 0;
    conn->server->strangers--;
    conn->server->members++;
}

/* HELLO_IN is over: a member, if there is room, be it that of an older connection; else a guest, who is told to come later. */
static void admit(connection *conn) {
    sheaf_server *server = conn->server;
    sheaf_tls_state state;
    if (!sheaf_sp_hello_is(conn->hello, SHEAF_SP_REQ)) {
        fall(conn, SHEAF_E_MALFORMED, "does not speak NNG's REQ protocol");
        return;
    }
    sheaf_tls_stream_ask(&conn->stream, &state);
    conn->peer = state.peer;
    if (conn->peer == NULL) {
        fall(conn, SHEAF_E_CERTIFICATE, "no verified certificate");
        return;
    }
    connection *surplus = find_surplus(server, conn);
    int has_room = server->members < server->connections_max || (surplus != NULL && !surplus->guest);
    if (!has_room && server->on_surplus == NULL) {
        fall(conn, SHEAF_E_BUSY, "cut: the limit of connections is reached");
        return;
    }
    if (surplus != NULL)
        sheaf_nng_cut(surplus, SHEAF_E_BUSY, "cut: too many connections of this peer; this was the oldest");
    conn->guest = !has_room;
    if (has_room) let_be_member(conn);
    read_length(conn);
}

void sheaf_nng_read_body(connection *conn) {
    sheaf_server *server = conn->server;
    size_t size = (size_t)(sheaf_sp_read_length(conn->head) - SHEAF_SP_ID_BYTES);
    size_t received = sheaf_tls_stream_received(&conn->stream); /* of the head */
    conn->has_slot = 1;
    conn->trickle_ms = 0;
    server->slots++;
    sheaf_exchange *exchange = malloc(sizeof *exchange + size);
    if (exchange == NULL) {
        fall(conn, SHEAF_E_MEMORY, "cut: no memory for its request");
        return;
    }
    memset(exchange, 0, sizeof *exchange);
    exchange->size = size;
    exchange->server = server;
    server->references++;
    conn->exchange = exchange;
    expect_progress(conn);
    begin_receive(conn, BODY, conn->head + received, sizeof conn->head - received, exchange->request, size);
}

/* LENGTH is over. Nothing has been allocated for this message yet. */
static void judge_length(connection *conn) {
    sheaf_server *server = conn->server;
    uint64_t bytes = sheaf_sp_read_length(conn->head);
    if (bytes > (uint64_t)server->frame_bytes_max + SHEAF_SP_ID_BYTES) {
        fall(conn, SHEAF_E_TOO_LARGE, "cut: announces a frame above the limit");
    } else if (bytes < SHEAF_SP_ID_BYTES) {
        fall(conn, SHEAF_E_MALFORMED, "cut: a message too short for its request id");
    } else if (server->slots < server->exchanges_max && server->waiting == NULL) {
        sheaf_nng_read_body(conn);
    } else {
        conn->phase = SLOT;
        conn->busy = 0;
        conn->next_waiting = NULL;
        *server->waiting_end = conn;
        server->waiting_end = &conn->next_waiting;
        pthread_cond_signal(&server->changed); /* the keeper must see to it that slots become free */
        pthread_mutex_unlock(&server->lock);
    }
}

static void hand_over(connection *conn) {
    sheaf_server *server = conn->server;
    sheaf_exchange *exchange = conn->exchange;
    if ((sheaf_sp_read_id(conn->head + SHEAF_SP_LENGTH_BYTES) & 0x80000000u) ==
        0) { /* an id without the top bit is a hop: messages here come direct */
        fall(conn, SHEAF_E_MALFORMED, "cut: a request that came through a relay");
        return;
    }
    exchange->connection = conn;
    exchange->peer = sheaf_certificate_ref(conn->peer);
    conn->phase = EXCHANGE;
    conn->busy = 0;
    conn->deadline_ms = 0;
    server->handlers++;
    if (conn->guest && server->members < server->connections_max) let_be_member(conn);
    sheaf_request_handler handle = conn->guest ? server->on_surplus : server->on_request;
    sheaf_certificate *peer = exchange->peer;
    sheaf_span request = sheaf_span_of(exchange->request, exchange->size);
    pthread_mutex_unlock(&server->lock);
    handle(server->context, exchange, peer, request);
    pthread_mutex_lock(&server->lock); /* the connection may be gone by now, the server not: stop waits for us */
    server->handlers--;
    if (server->stopping) pthread_cond_signal(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void end_reply(connection *conn) {
    free(conn->reply);
    conn->reply = NULL;
    conn->has_slot = 0;
    release_slot(conn->server);
    if (conn->server->stopping) {
        fall(conn, SHEAF_OK, "");
    } else {
        read_length(conn);
    }
}

static void on_step(void *argument, int error) {
    connection *conn = argument;
    pthread_mutex_lock(&conn->server->lock);
    if (error != 0 || conn->closing) {
        fall(conn, SHEAF_OK, "");
        return;
    }
    switch (conn->phase) {
    case HELLO_OUT:
        begin_receive(conn, HELLO_IN, conn->hello, sizeof conn->hello, NULL, 0);
        return;
    case HELLO_IN:
        admit(conn);
        return;
    case LENGTH:
        judge_length(conn);
        return;
    case BODY:
        hand_over(conn);
        return;
    case REPLY:
        end_reply(conn);
        return;
    case SLOT:
    case EXCHANGE:
        break; /* have no step */
    }
    assert(0 && "a step ended in a phase that has none");
}

void sheaf_nng_reply(sheaf_exchange *exchange, sheaf_span frame) {
    sheaf_server *server = exchange->server;
    assert(frame.size <= server->frame_bytes_max);
    uint8_t *copy = malloc(SHEAF_SP_HEAD_BYTES + frame.size);
    if (copy != NULL && frame.size > 0) memcpy(copy + SHEAF_SP_HEAD_BYTES, frame.data, frame.size);
    pthread_mutex_lock(&server->lock);
    connection *conn = exchange->connection;
    server->references++; /* for the duration of this call */
    exchange_free_locked(exchange);
    if (conn == NULL) {
        release_slot(server);
    } else {
        conn->exchange = NULL;
        conn->phase = REPLY;
        conn->reply = copy;
        if (copy == NULL) sheaf_nng_cut(conn, SHEAF_E_MEMORY, "cut: no memory for its reply");
    }
    if (conn == NULL || copy == NULL) {
        if (conn == NULL) free(copy);
        server_unref_locked(server);
        return;
    }
    conn->busy = 1;
    expect_progress(conn);
    sheaf_sp_write_head(copy, sheaf_sp_read_id(conn->head + SHEAF_SP_LENGTH_BYTES), frame.size);
    server_unref_locked(server); /* the connection keeps the server alive now: stop waits for it */
    if (sheaf_tls_stream_send(&conn->stream, sheaf_span_of(copy, SHEAF_SP_HEAD_BYTES + frame.size)) != 0)
        on_step(conn, NNG_ECLOSED);
}

/* ---- accept ---- */

/* Whoever has been shaking hands for longest goes, so that a crowd of silent peers cannot lock the others out. */
static void cut_oldest_stranger(sheaf_server *server) {
    connection *oldest = NULL;
    for (connection *conn = server->live; conn != NULL; conn = conn->next) {
        if (is_outside(conn) && !conn->closing) oldest = conn;
    }
    if (oldest != NULL)
        sheaf_nng_cut(oldest, SHEAF_E_BUSY, "cut: too many unfinished handshakes, and this was the oldest");
}

static void welcome(sheaf_server *server, nng_stream *stream) {
    connection *conn = calloc(1, sizeof *conn);
    if (conn == NULL || sheaf_tls_stream_init(&conn->stream, on_step, on_step, conn) != 0) {
        free(conn);
        nng_stream_close(stream);
        nng_stream_free(stream);
        return;
    }
    conn->server = server;
    conn->busy = 1;
    sheaf_nng_name_peer(stream, conn->address);
    sheaf_tls_stream_attach(&conn->stream, stream, server->credentials);
    sheaf_sp_write_hello(conn->hello, SHEAF_SP_REP);
    pthread_mutex_lock(&server->lock);
    if (server->strangers >= server->connections_max) cut_oldest_stranger(server);
    server->strangers++;
    conn->next = server->live;
    if (conn->next != NULL) conn->next->previous = conn;
    server->live = conn;
    set_deadline(conn, sheaf_tls_now_ms() + server->handshake_ms);
    pthread_mutex_unlock(&server->lock);
    if (sheaf_tls_stream_send(&conn->stream, sheaf_span_of(conn->hello, SHEAF_SP_HELLO_BYTES)) != 0)
        on_step(conn, NNG_ECLOSED);
}

static void on_accept(void *argument) {
    sheaf_server *server = argument;
    int error = nng_aio_result(server->accepting);
    if (error == 0) welcome(server, nng_aio_get_output(server->accepting, 0));
    pthread_mutex_lock(&server->lock);
    int again = !server->stopping && error == 0;
    if (!server->stopping && error != 0) server->accept_again_ms = sheaf_tls_now_ms() + ACCEPT_PAUSE_MS;
    if (again) nng_stream_listener_accept(server->listener, server->accepting);
    pthread_cond_signal(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

/* ---- open and stop ---- */

static sheaf_status start_server(sheaf_server *server, sheaf_problem *problem) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&server->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&server->lock, NULL);
    if (nng_aio_alloc(&server->accepting, on_accept, server) == 0) {
        nng_aio_set_timeout(server->accepting, NNG_DURATION_INFINITE);
        if (pthread_create(&server->keeper, NULL, sheaf_nng_keep, server) == 0) {
            nng_stream_listener_accept(server->listener, server->accepting);
            return SHEAF_OK;
        }
    }
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: cannot start the server", server->url);
}

static void free_parts(sheaf_server *server) {
    nng_aio_free(server->accepting);
    if (server->listener != NULL) nng_stream_listener_free(server->listener);
    sheaf_tls_context_unref(server->credentials);
}

sheaf_status sheaf_nng_open_server(const sheaf_transport_options *options, sheaf_request_handler on_request,
                                   sheaf_reject_handler on_reject, void *context, sheaf_server **out,
                                   sheaf_problem *problem) {
    sheaf_server *server = calloc(1, sizeof *server);
    if (server == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    server->references = 1;
    server->on_request = on_request;
    server->on_surplus = options->on_surplus;
    server->on_reject = on_reject;
    server->context = context;
    server->frame_bytes_max = options->frame_bytes_max;
    server->handshake_ms = options->handshake_ms;
    server->exchanges_max = options->exchanges_max;
    server->connections_max = options->connections_max;
    server->waiting_end = &server->waiting;
    server->accept_again_ms = server->look_ms = NEVER_MS;
    sheaf_status status = sheaf_tls_context_open(&options->tls, SHEAF_TLS_SERVER, NULL, &server->credentials, problem);
    if (status == SHEAF_OK) status = sheaf_nng_listen(options->url, &server->listener, server->url, problem);
    if (status == SHEAF_OK) status = start_server(server, problem);
    if (status == SHEAF_OK) {
        *out = server;
        return SHEAF_OK;
    }
    free_parts(server);
    free(server);
    return status;
}

const char *sheaf_nng_server_url(const sheaf_server *server) { return server->url; }

void sheaf_nng_stop_server(sheaf_server *server) {
    if (server == NULL) return;
    nng_stream_listener_close(server->listener);
    nng_aio_wait(server->accepting); /* nobody is welcomed after this */
    pthread_mutex_lock(&server->lock);
    server->stopping = 1;
    connection *next = NULL;
    for (connection *conn = server->live; conn != NULL; conn = next) {
        next = conn->next;
        if (conn->phase == REPLY) {
            /* An answer that is on its way may still arrive. */
            conn->deadline_ms = sheaf_tls_now_ms() + STOP_PATIENCE_MS;
        } else {
            sheaf_nng_cut(conn, SHEAF_OK, "");
        }
    }
    server->look_ms = 0;
    pthread_cond_signal(&server->changed);
    pthread_mutex_unlock(&server->lock);
    pthread_join(server->keeper, NULL);
    free_parts(server);
    pthread_mutex_lock(&server->lock);
    server_unref_locked(server);
}
