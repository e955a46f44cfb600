#include "server/operator/http_server.h"

#include <assert.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/listener.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "server/operator/http_socket.h"

#define DRAIN_MS 1000 /* so that a reply to somebody who still sends is not lost to a reset */

typedef enum { READING_HEAD, READING_BODY, WORKING, WRITING, DRAINING } phase;

struct sheaf_http_exchange {
    sheaf_http_server *server;
    sheaf_http_exchange *previous, *next; /* in order of arrival */
    struct bufferevent *stream;
    struct event *deadline;
    phase phase;
    int shaken; /* the handshake is done; always over the Unix socket */
    int rest;   /* the client may still send */
    sheaf_http_head head;
    sheaf_certificate *peer;
};

struct sheaf_http_server {
    sheaf_http_options options;
    struct evconnlistener *listener;
    sheaf_http_tls tls; /* NULL: Unix socket */
    void *tls_source;
    char url[SHEAF_HTTP_URL_BYTES];
    sheaf_http_exchange *first, *last;
    uint32_t count;
    uint64_t dropped;
};

/* --- ends --------------------------------------------------------------------------------------------------------- */

static void end(sheaf_http_exchange *exchange) {
    sheaf_http_server *server = exchange->server;
    SSL *ssl = server->tls == NULL ? NULL : bufferevent_openssl_get_ssl(exchange->stream);
    if (exchange->previous == NULL)
        server->first = exchange->next;
    else
        exchange->previous->next = exchange->next;
    if (exchange->next == NULL)
        server->last = exchange->previous;
    else
        exchange->next->previous = exchange->previous;
    server->count--;
    if (ssl != NULL && exchange->shaken) (void)SSL_shutdown(ssl); /* only says goodbye: clients tell it from a cut */
    ERR_clear_error();
    event_free(exchange->deadline);
    bufferevent_free(exchange->stream);
    sheaf_certificate_unref(exchange->peer);
    sheaf_wipe(&exchange->head, sizeof exchange->head); /* may hold a password */
    free(exchange);
}

static void set_deadline(sheaf_http_exchange *exchange, uint32_t ms) {
    const struct timeval after = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};
    (void)event_add(exchange->deadline, &after);
}

static void on_deadline(evutil_socket_t fd, short what, void *context) {
    (void)fd, (void)what;
    sheaf_http_exchange *exchange = context;
    if (exchange->phase == READING_HEAD || exchange->phase == READING_BODY) {
        exchange->server->dropped++;
        sheaf_log(SHEAF_LOG_DEBUG, "operator_client_dropped", "reason=timeout");
        if (exchange->shaken) {
            exchange->rest = 1;
            exchange->phase = WORKING;
            exchange->server->options.on_refused(exchange->server->options.context, exchange, 408,
                                                 "the request did not come in time");
            return;
        }
    } else if (exchange->phase == WRITING) {
        exchange->server->dropped++;
        sheaf_log(SHEAF_LOG_DEBUG, "operator_client_dropped", "reason=does_not_read");
    }
    end(exchange);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void refuse(sheaf_http_exchange *exchange, int code, const char *why) {
    const sheaf_http_options *options = &exchange->server->options;
    exchange->phase = WORKING;
    exchange->rest = 1;
    options->on_refused(options->context, exchange, code, why);
}

static void hand_over(sheaf_http_exchange *exchange) {
    const sheaf_http_options *options = &exchange->server->options;
    exchange->phase = WORKING;
    (void)bufferevent_disable(exchange->stream, EV_READ);
    (void)event_del(exchange->deadline); /* from here on the time is ours */
    options->on_request(options->context, exchange);
}

/* 1 when the head is read and good. */
static int take_head(sheaf_http_exchange *exchange) {
    struct evbuffer *input = bufferevent_get_input(exchange->stream);
    struct evbuffer_ptr found = evbuffer_search(input, "\r\n\r\n", 4, NULL);
    size_t size = found.pos < 0 ? evbuffer_get_length(input) : (size_t)found.pos + 4;
    const char *why = "the head is larger than 8 KiB";
    if (size > SHEAF_HTTP_HEAD_BYTES_MAX) return refuse(exchange, 431, why), 0;
    if (found.pos < 0) return 0;
    int code =
        sheaf_http_head_read(sheaf_span_of(evbuffer_pullup(input, (ev_ssize_t)size), size), &exchange->head, &why);
    (void)evbuffer_drain(input, size);
    if (code == 200 && exchange->head.body_bytes > exchange->server->options.body_bytes_max) {
        code = 413;
        why = "the body is larger than is taken here";
    }
    if (code != 200) return refuse(exchange, code, why), 0;
    if (exchange->head.expects_continue && exchange->head.body_bytes > evbuffer_get_length(input)) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        (void)bufferevent_write(exchange->stream, go_on, sizeof go_on - 1);
    }
    exchange->phase = READING_BODY;
    return 1;
}

static void on_readable(struct bufferevent *stream, void *context) {
    sheaf_http_exchange *exchange = context;
    struct evbuffer *input = bufferevent_get_input(stream);
    if (exchange->phase == READING_HEAD && !take_head(exchange)) return;
    if (exchange->phase == READING_BODY && evbuffer_get_length(input) >= exchange->head.body_bytes)
        hand_over(exchange);
    else if (exchange->phase == WRITING || exchange->phase == DRAINING)
        (void)evbuffer_drain(input, evbuffer_get_length(input));
}

/* --- replies ------------------------------------------------------------------------------------------------------ */

static const char *phrase_of(int code) {
    static const struct {
        int code;
        const char *phrase;
    } phrases[] = {{200, "OK"},
                   {202, "Accepted"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {417, "Expectation Failed"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof phrases / sizeof phrases[0]; i++) {
        if (phrases[i].code == code) return phrases[i].phrase;
    }
    return "Unknown";
}

void sheaf_http_answer(sheaf_http_exchange *exchange, const sheaf_http_reply *reply) {
    assert(exchange->phase == WORKING);
    struct evbuffer *output = bufferevent_get_output(exchange->stream);
    int failed = evbuffer_add_printf(output,
                                     "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                                     "Cache-Control: no-store\r\nConnection: close\r\n",
                                     reply->code, phrase_of(reply->code), reply->type, reply->body.size) < 0;
    if (reply->field_name != NULL)
        failed |= evbuffer_add_printf(output, "%s: %s\r\n", reply->field_name, reply->field_value) < 0;
    failed |= evbuffer_add(output, "\r\n", 2) != 0;
    if (exchange->head.method != SHEAF_HTTP_HEAD)
        failed |= evbuffer_add(output, reply->body.data, reply->body.size) != 0;
    exchange->phase = WRITING;
    if (failed) {
        set_deadline(exchange, 1); /* not ended here: the caller may still look at the exchange */
        return;
    }
    set_deadline(exchange, exchange->server->options.reply_ms);
    if (exchange->rest) (void)bufferevent_enable(exchange->stream, EV_READ);
}

static void on_written(struct bufferevent *stream, void *context) {
    sheaf_http_exchange *exchange = context;
    if (exchange->phase != WRITING || evbuffer_get_length(bufferevent_get_output(stream)) > 0) return;
    if (!exchange->rest) {
        end(exchange);
        return;
    }
    exchange->phase = DRAINING;
    SSL *ssl = exchange->server->tls == NULL ? NULL : bufferevent_openssl_get_ssl(stream);
    if (ssl != NULL) (void)SSL_shutdown(ssl);
    (void)shutdown(bufferevent_getfd(stream), SHUT_WR);
    set_deadline(exchange, DRAIN_MS);
}

/* --- connections -------------------------------------------------------------------------------------------------- */

static sheaf_certificate *read_peer(SSL *ssl) {
    STACK_OF(X509) *chain = SSL_get0_verified_chain(ssl);
    unsigned char *ders[SHEAF_CHAIN_MAX] = {NULL};
    sheaf_span spans[SHEAF_CHAIN_MAX];
    sheaf_certificate *peer = NULL;
    int count = 0, whole = 1;
    /* The root, at the end, is ours already. */
    for (int i = 0; i < sk_X509_num(chain) && count < (int)SHEAF_CHAIN_MAX; i++) {
        X509 *x509 = sk_X509_value(chain, i);
        if (i > 0 && (X509_get_extension_flags(x509) & EXFLAG_SS) != 0) break;
        int size = i2d_X509(x509, &ders[count]);
        whole = whole && size > 0;
        spans[count] = sheaf_span_of(ders[count], size > 0 ? (size_t)size : 0);
        count++;
    }
    sheaf_status status =
        whole && count > 0 ? sheaf_certificate_read_chain(spans, (size_t)count, &peer, NULL) : SHEAF_OK;
    for (int i = 0; i < count; i++) OPENSSL_free(ders[i]);
    return status == SHEAF_OK ? peer : NULL;
}

static void on_handshake(sheaf_http_exchange *exchange) {
    SSL *ssl = bufferevent_openssl_get_ssl(exchange->stream);
    exchange->shaken = 1;
    if (SSL_get0_peer_certificate(ssl) == NULL) return;
    exchange->peer = read_peer(ssl);
    if (exchange->peer == NULL)
        refuse(exchange, 403, "the certificate names no role here, or more than one thing"); /* its authority is ours */
}

static void on_event(struct bufferevent *stream, short what, void *context) {
    (void)stream;
    sheaf_http_exchange *exchange = context;
    if (what & BEV_EVENT_CONNECTED) {
        on_handshake(exchange);
    } else if (exchange->phase == WORKING) {
        (void)bufferevent_disable(exchange->stream, EV_READ | EV_WRITE); /* ends when its reply comes */
    } else if ((what & BEV_EVENT_EOF) && exchange->phase == WRITING) {
        (void)bufferevent_disable(exchange->stream, EV_READ); /* half closed: it may still take the reply */
    } else {
        if (!exchange->shaken) {
            unsigned long error = bufferevent_get_openssl_error(exchange->stream);
            sheaf_log(SHEAF_LOG_DEBUG, "operator_handshake_failed", "reason=\"%s\"",
                      error == 0 ? "hung up" : ERR_reason_error_string(error));
        }
        end(exchange);
    }
    ERR_clear_error();
}

static struct bufferevent *open_stream(sheaf_http_server *server, evutil_socket_t fd) {
    if (server->tls == NULL) return bufferevent_socket_new(server->options.base, fd, BEV_OPT_CLOSE_ON_FREE);
    SSL *ssl = server->tls(server->tls_source);
    if (ssl == NULL) return NULL;
    struct bufferevent *stream =
        bufferevent_openssl_socket_new(server->options.base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    if (stream == NULL) SSL_free(ssl);
    return stream;
}

/* Whoever has been at his request for longest gives up his place; 0 when all places are at work. */
static int make_room(sheaf_http_server *server) {
    if (server->count < server->options.connections_max) return 1;
    for (sheaf_http_exchange *one = server->first; one != NULL; one = one->next) {
        if (one->phase == WORKING) continue;
        server->dropped++;
        end(one);
        return 1;
    }
    return 0;
}

static void add(sheaf_http_server *server, sheaf_http_exchange *exchange) {
    exchange->server = server;
    exchange->previous = server->last;
    if (server->last == NULL)
        server->first = exchange;
    else
        server->last->next = exchange;
    server->last = exchange;
    server->count++;
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int size,
                      void *context) {
    (void)listener, (void)address, (void)size;
    sheaf_http_server *server = context;
    sheaf_http_exchange *exchange = make_room(server) ? calloc(1, sizeof *exchange) : NULL;
    struct bufferevent *stream = exchange == NULL ? NULL : open_stream(server, fd);
    if (stream == NULL) {
        free(exchange);
        close(fd);
        return;
    }
    exchange->deadline = event_new(server->options.base, -1, 0, on_deadline, exchange);
    if (exchange->deadline == NULL) {
        free(exchange);
        bufferevent_free(stream);
        return;
    }
    exchange->stream = stream;
    exchange->shaken = server->tls == NULL;
    add(server, exchange);
    bufferevent_setcb(stream, on_readable, on_written, on_event, exchange);
    /* No more is read ahead than one request may have. */
    bufferevent_setwatermark(stream, EV_READ, 0, SHEAF_HTTP_HEAD_BYTES_MAX + server->options.body_bytes_max);
    set_deadline(exchange, server->options.request_ms);
    (void)bufferevent_enable(stream, EV_READ | EV_WRITE);
}

static void on_accept_failed(struct evconnlistener *listener, void *context) {
    (void)listener, (void)context;
    sheaf_log(SHEAF_LOG_WARNING, "operator_accept_failed", "reason=\"%s\"",
              evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
}

/* --- servers ------------------------------------------------------------------------------------------------------ */

static sheaf_status open_server(const sheaf_http_options *options, int fd, const char *url, sheaf_http_tls tls,
                                void *source, sheaf_http_server **out, sheaf_problem *problem) {
    sheaf_http_server *server = calloc(1, sizeof *server);
    if (server != NULL) {
        server->options = *options;
        server->tls = tls;
        server->tls_source = source;
        (void)snprintf(server->url, sizeof server->url, "%s", url);
        server->listener =
            evconnlistener_new(options->base, on_accept, server, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, -1, fd);
    }
    if (server == NULL || server->listener == NULL) {
        free(server);
        close(fd);
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory to listen", url);
    }
    evconnlistener_set_error_cb(server->listener, on_accept_failed);
    *out = server;
    return SHEAF_OK;
}

sheaf_status sheaf_http_listen_local(const sheaf_http_options *options, const char *path, sheaf_http_server **out,
                                     sheaf_problem *problem) {
    int fd = -1;
    *out = NULL;
    sheaf_status status = sheaf_http_socket_local(path, &fd, problem);
    return status == SHEAF_OK ? open_server(options, fd, path, NULL, NULL, out, problem) : status;
}

sheaf_status sheaf_http_listen_tls(const sheaf_http_options *options, const char *url, sheaf_http_tls tls, void *source,
                                   sheaf_http_server **out, sheaf_problem *problem) {
    int fd = -1;
    char chosen[SHEAF_HTTP_URL_BYTES];
    *out = NULL;
    sheaf_status status = sheaf_http_socket_tcp(url, &fd, chosen, problem);
    return status == SHEAF_OK ? open_server(options, fd, chosen, tls, source, out, problem) : status;
}

void sheaf_http_close(sheaf_http_server *server) {
    if (server == NULL) return;
    if (server->tls == NULL) (void)unlink(server->url);
    evconnlistener_free(server->listener);
    while (server->first != NULL) end(server->first);
    free(server);
}

const char *sheaf_http_url(const sheaf_http_server *server) { return server->url; }
uint32_t sheaf_http_connections(const sheaf_http_server *server) { return server->count; }
uint64_t sheaf_http_dropped(const sheaf_http_server *server) { return server->dropped; }
const sheaf_http_head *sheaf_http_head_of(const sheaf_http_exchange *exchange) { return &exchange->head; }
int sheaf_http_is_local(const sheaf_http_exchange *exchange) { return exchange->server->tls == NULL; }
sheaf_certificate *sheaf_http_peer(const sheaf_http_exchange *exchange) { return exchange->peer; }

sheaf_span sheaf_http_body_of(sheaf_http_exchange *exchange) {
    struct evbuffer *input = bufferevent_get_input(exchange->stream);
    size_t size = (size_t)exchange->head.body_bytes;
    if (size == 0 || evbuffer_get_length(input) < size) return sheaf_span_of(NULL, 0);
    return sheaf_span_of(evbuffer_pullup(input, (ev_ssize_t)size), size);
}
