/* The aggregator's end, its keeper: one thread a server, which cuts what is past its deadline or moves too little, frees
 * what has ended, lets in who waits for a slot, and accepts again after accept has failed. */
#include <stdlib.h>
#include <time.h>

#include "common/transport/nng_connection.h"
#include "common/transport/nng_ends.h"

#define WATCH_PERIOD_MS   1000u /* see cut_lost */
#define REFUSED_PERIOD_MS 100u  /* see cut_refused */

/* A line of 1 kB/s must do; one byte a second, 23 in its TLS record, must not. */
#define TRICKLE_BYTES_PER_S 256u

static void free_ended(sheaf_server *server) {
    while (server->ended != NULL) {
        connection *conn = server->ended;
        server->ended = conn->next_waiting;
        pthread_mutex_unlock(&server->lock);
        sheaf_nng_report(server, conn->address, conn->reason, conn->reason_text); /* unless its own step has done so */
        sheaf_tls_stream_fini(&conn->stream); /* waits for the step's end, which may want the lock */
        sheaf_certificate_unref(conn->peer);
        free(conn->reply);
        free(conn);
        pthread_mutex_lock(&server->lock);
    }
}

static void let_in(sheaf_server *server) {
    while (server->waiting != NULL && server->slots < server->exchanges_max) {
        connection *conn = server->waiting;
        sheaf_nng_leave_waiting(server, conn);
        conn->busy = 1;
        sheaf_nng_read_body(conn); /* releases the lock */
        pthread_mutex_lock(&server->lock);
    }
}

static const char *late_text(const connection *conn) {
    if (conn->guest && conn->phase == LENGTH) return "cut: the limit of connections is reached, and it is silent";
    switch (conn->phase) {
    case HELLO_OUT:
    case HELLO_IN:
        return "cut: the handshake was not finished in time";
    case REPLY:
        return "cut: it does not take its reply";
    default:
        return "cut: it does not send the rest of its request";
    }
}

/* The deadline of a handshake, and of a guest's silence, is final; otherwise whoever has moved a byte is given more time. */
static int is_late(connection *conn, uint64_t now) {
    if (conn->phase <= HELLO_IN || (conn->guest && conn->phase == LENGTH) || conn->server->stopping) return 1;
    if (sheaf_tls_watch_is_still(&conn->watch, &conn->stream, now, sheaf_nng_patience_ms(conn->server))) return 1;
    conn->deadline_ms = conn->watch.look_ms;
    return 0;
}

static void cut_late(sheaf_server *server) {
    uint64_t now = sheaf_tls_now_ms();
    connection *next = NULL;
    server->look_ms = NEVER_MS;
    for (connection *conn = server->live; conn != NULL; conn = next) {
        next = conn->next;
        if (conn->closing || conn->deadline_ms == 0) continue;
        if (conn->deadline_ms <= now && is_late(conn, now)) {
            sheaf_nng_cut(conn, SHEAF_E_TIMEOUT, late_text(conn));
        } else if (conn->deadline_ms < server->look_ms) {
            server->look_ms = conn->deadline_ms;
        }
    }
}

static int is_trickler(connection *conn, uint64_t now) {
    uint64_t moved = sheaf_tls_stream_moved(&conn->stream), elapsed = now - conn->trickle_ms;
    int seen = conn->trickle_ms != 0;
    if (seen && elapsed < conn->server->handshake_ms) return 0;
    int64_t gained = (int64_t)(moved - conn->trickle_bytes);
    conn->trickle_ms = now;
    conn->trickle_bytes = moved;
    return seen && gained * 1000 < (int64_t)(elapsed * TRICKLE_BYTES_PER_S);
}

/* Only while somebody waits for a slot: nobody else suffers from a slow line. */
static void cut_tricklers(sheaf_server *server, uint64_t now) {
    connection *next = NULL;
    for (connection *conn = server->live; conn != NULL; conn = next) {
        next = conn->next;
        if (!conn->has_slot || (conn->phase != BODY && conn->phase != REPLY) || conn->closing) continue;
        if (is_trickler(conn, now))
            sheaf_nng_cut(conn, SHEAF_E_TIMEOUT, "cut: too slow while others wait for its place");
    }
    server->trickle_look_ms = now + server->handshake_ms / 4u;
}

/* Gives those whose handshake failed one more period to read the alert and close, then closes. Returns whether any is
 * left to look at. */
static int cut_refused(sheaf_server *server) {
    int left = 0;
    connection *next = NULL;
    for (connection *conn = server->live; conn != NULL; conn = next) {
        sheaf_tls_state state;
        next = conn->next;
        if (conn->phase > HELLO_IN || conn->closing) continue;
        if (conn->refused) {
            sheaf_nng_cut(conn, SHEAF_OK, "");
            continue;
        }
        sheaf_tls_stream_ask(&conn->stream, &state);
        sheaf_certificate_unref(state.peer);
        conn->refused = state.status != SHEAF_OK;
        left |= conn->refused;
    }
    return left;
}

/* Those that broke just before a step began may go unnoticed: see tls_stream.h. */
static void cut_lost(sheaf_server *server) {
    connection *next = NULL;
    for (connection *conn = server->live; conn != NULL; conn = next) {
        next = conn->next;
        if (conn->busy && !conn->closing && sheaf_tls_stream_is_lost(&conn->stream)) sheaf_nng_cut(conn, SHEAF_OK, "");
    }
}

static void wait_for_change(sheaf_server *server, uint64_t until_ms) {
    if (server->look_ms < until_ms) until_ms = server->look_ms;
    if (server->accept_again_ms < until_ms) until_ms = server->accept_again_ms;
    if (until_ms == NEVER_MS) {
        pthread_cond_wait(&server->changed, &server->lock);
        return;
    }
    struct timespec when = {(time_t)(until_ms / 1000u), (long)(until_ms % 1000u) * 1000000L};
    (void)pthread_cond_timedwait(&server->changed, &server->lock, &when);
}

static void accept_again(sheaf_server *server) {
    server->accept_again_ms = NEVER_MS;
    if (!server->stopping) nng_stream_listener_accept(server->listener, server->accepting);
}

/* While strangers are here, their refusals must be seen; nothing signals them. */
static uint64_t wake_ms(const sheaf_server *server, uint64_t now, uint64_t watch_ms) {
    if (server->live == NULL) return NEVER_MS;
    uint64_t soon = now + REFUSED_PERIOD_MS;
    if (server->waiting != NULL && server->trickle_look_ms < watch_ms) watch_ms = server->trickle_look_ms;
    return server->strangers > 0 && soon < watch_ms ? soon : watch_ms;
}

static int is_over(const sheaf_server *server) {
    return server->stopping && server->live == NULL && server->ended == NULL && server->handlers == 0;
}

void *sheaf_nng_keep(void *argument) {
    sheaf_server *server = argument;
    uint64_t watch_ms = 0, refused_ms = 0;
    unsigned failures = 0, seen = 0;
    int refused = 0;
    pthread_mutex_lock(&server->lock);
    while (!is_over(server)) {
        uint64_t now = sheaf_tls_now_ms();
        if (now >= server->look_ms) cut_late(server);
        if (server->waiting != NULL && now >= server->trickle_look_ms) cut_tricklers(server, now);
        if (now >= server->accept_again_ms) accept_again(server);
        if (now >= watch_ms) {
            cut_lost(server);
            watch_ms = now + WATCH_PERIOD_MS;
        }
        failures = sheaf_tls_context_failures(server->credentials);
        if (now >= refused_ms && (refused || failures != seen)) {
            refused = cut_refused(server);
            seen = failures;
            refused_ms = now + REFUSED_PERIOD_MS;
        }
        let_in(server);
        free_ended(server);
        if (!is_over(server) && server->ended == NULL) wait_for_change(server, wake_ms(server, now, watch_ms));
    }
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* ---- expel ---- */

/* Also of those whose hello is still to come: their certificate may have been verified before it was revoked. */
static int is_unwanted(connection *conn, int (*unwanted)(void *context, const sheaf_certificate *peer), void *context) {
    if (conn->peer != NULL) return unwanted(context, conn->peer);
    sheaf_tls_state state;
    sheaf_tls_stream_ask(&conn->stream, &state);
    int result = state.peer != NULL && unwanted(context, state.peer);
    sheaf_certificate_unref(state.peer);
    return result;
}

unsigned sheaf_nng_expel(sheaf_server *server, int (*unwanted)(void *context, const sheaf_certificate *peer),
                         void *context) {
    unsigned count = 0;
    pthread_mutex_lock(&server->lock);
    connection *next = NULL;
    for (connection *conn = server->live; conn != NULL; conn = next) {
        next = conn->next;
        if (conn->closing || !is_unwanted(conn, unwanted, context)) continue;
        sheaf_nng_cut(conn, SHEAF_E_REVOKED, "cut: its certificate is not wanted any more");
        count++;
    }
    pthread_mutex_unlock(&server->lock);
    return count;
}

void sheaf_nng_look(sheaf_server *server, sheaf_server_report *out) {
    pthread_mutex_lock(&server->lock);
    *out = (sheaf_server_report){
        .ready = !server->stopping, .connections = server->members, .strangers = server->strangers};
    pthread_mutex_unlock(&server->lock);
}
