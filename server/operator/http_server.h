/* http_server.h - one request a connection over libevent: takes it whole, hands it over, writes the reply, hangs up.
 *
 * It must stand slow and silent clients without a thread for each: a request must be complete within request_ms of the
 * connect (handshake included), its reply taken within reply_ms, head and body are bounded, and when all places are
 * taken the newcomer gets that of whoever has dawdled longest over his request. libevent's own evhttp was not taken: it
 * has no hook at accept, so it can neither bound connections nor the time of a head that trickles in, and its lenient
 * parser was the subject of security notices.
 *
 * Owner:   whoever opens a server closes it; an exchange is the server's and ends with its reply.
 * Threads: everything on the thread that runs the event base.
 * Units:   bytes, milliseconds.
 * Errors:  of listen: SHEAF_E_ADDRESS_IN_USE, SHEAF_E_USAGE (a path or address that cannot be), SHEAF_E_PERMISSION,
 *          SHEAF_E_NETWORK, SHEAF_E_MEMORY. What clients do wrong is answered by http_head.h's and our own HTTP statuses through
 *          `on_refused`, which writes the body.
 * Not:     routes, roles and JSON; that is routes.h. */
#pragma once
#include <event2/event.h>
#include <openssl/types.h>

#include "common/certificate.h"
#include "common/problem.h"
#include "server/operator/http_head.h"

typedef struct sheaf_http_server sheaf_http_server;
typedef struct sheaf_http_exchange sheaf_http_exchange;

typedef struct {
    struct event_base *base;
    uint32_t connections_max, request_ms, reply_ms;
    size_t body_bytes_max;
    /* A whole request. The reply is owed, now or later; the exchange stays until then. */
    void (*on_request)(void *context, sheaf_http_exchange *exchange);
    /* A request that cannot be read: the reply is owed as well. */
    void (*on_refused)(void *context, sheaf_http_exchange *exchange, int code, const char *why);
    void *context;
} sheaf_http_options;

/* On a Unix socket that only its owner may use; what a dead process left there is replaced, anything else is not. */
SHEAF_MUST_USE sheaf_status sheaf_http_listen_local(const sheaf_http_options *options, const char *path,
                                                    sheaf_http_server **out, sheaf_problem *problem);
/* Makes the TLS end of one connection, which settles whom it lets in; NULL without memory. */
typedef SSL *(*sheaf_http_tls)(void *source);
/* On `https://HOST:PORT` (port 0: any free one). `source` is borrowed. */
SHEAF_MUST_USE sheaf_status sheaf_http_listen_tls(const sheaf_http_options *options, const char *url,
                                                  sheaf_http_tls tls, void *source, sheaf_http_server **out,
                                                  sheaf_problem *problem);
/* Hangs up on everybody; exchanges that are owed a reply must have had it. Removes the socket. NULL is fine. */
void sheaf_http_close(sheaf_http_server *server);
/* "https://HOST:PORT" with the port that was chosen, or the socket's path. */
const char *sheaf_http_url(const sheaf_http_server *server);
uint32_t sheaf_http_connections(const sheaf_http_server *server);
/* Clients that were hung up on: too slow, or to make room. */
uint64_t sheaf_http_dropped(const sheaf_http_server *server);

const sheaf_http_head *sheaf_http_head_of(const sheaf_http_exchange *exchange);
/* Valid until the reply. */
sheaf_span sheaf_http_body_of(sheaf_http_exchange *exchange);
/* 1 when it came over the Unix socket. */
int sheaf_http_is_local(const sheaf_http_exchange *exchange);
/* The verified certificate; NULL over the Unix socket, and of strangers. Borrowed until the reply. */
sheaf_certificate *sheaf_http_peer(const sheaf_http_exchange *exchange);

typedef struct {
    int code;
    const char *type;                     /* Content-Type */
    sheaf_span body;                      /* copied */
    const char *field_name, *field_value; /* one more header field, or NULL */
} sheaf_http_reply;

void sheaf_http_answer(sheaf_http_exchange *exchange, const sheaf_http_reply *reply);
