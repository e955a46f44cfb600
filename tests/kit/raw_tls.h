/* raw_tls.h - peers made of plain sockets and OpenSSL, without our transport or NNG: the other opinion on the wire.
 *
 * Owner:   the test frees what it opened.
 * Threads: a raw_client, one at a time; a raw_server has a thread of its own.
 * Errors:  sockets that cannot be made fail the test; handshakes report. */
#pragma once
#include <openssl/ssl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/kit/pki_kit.h"

typedef struct {
    int fd;
    SSL_CTX *context;
    SSL *ssl;
} raw_client;

/* The port of "tls+tcp://127.0.0.1:PORT". */
unsigned raw_port(const char *url);
/* A TCP connection to 127.0.0.1. */
int raw_connect(unsigned port);
/* A socket that listens on a free port. */
int raw_listen(unsigned *port);
/* 1 when the peer closes within so many milliseconds (whatever arrives before is dropped). */
int raw_is_closed(int fd, unsigned within_ms);

typedef struct {
    const pki_kit_files *files; /* certificate to show; NULL: none */
    int max_version;            /* 0: any */
    const char *ciphers;        /* TLS 1.2; NULL: OpenSSL's */
    const char *groups;         /* NULL: OpenSSL's */
    SSL_SESSION *session;       /* to resume; NULL */
} raw_client_options;

/* Connects; *shaken tells whether the handshake worked as far as the client can see. */
raw_client raw_client_open(unsigned port, const raw_client_options *options, int *shaken);
void raw_client_close(raw_client *client);
/* All bytes; 0 when the connection ends before. */
int raw_write(SSL *ssl, const void *data, size_t size);
int raw_read(SSL *ssl, void *data, size_t size);
/* The hello of NNG's protocol each way: 1 when the server's came. */
int raw_greet(raw_client *client);
/* A request with its length and id. */
int raw_ask(raw_client *client, uint32_t id, const void *data, size_t size);
/* An answer of at most `capacity` bytes; its size, or -1. */
long raw_answer(raw_client *client, uint32_t *id, void *data, size_t capacity);

/* Accepts one connection after another; each gets a hello, and one answer "raw" to its first request. */
typedef struct {
    pthread_t thread;
    int fd;
    unsigned port;
    SSL_CTX *context;
    int versions[2]; /* of the last connection: TLS version, 1 when a request was answered */
} raw_server;

void raw_server_start(raw_server *server, const pki_kit_files *files, int max_version);
void raw_server_stop(raw_server *server);
