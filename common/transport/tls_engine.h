/* tls_engine.h - OpenSSL 3 as the TLS engine of NNG, with our rules about who may talk to whom.
 *
 * Debian's NNG is built with mbedTLS: TLS 1.2 only, and it does not tell who the peer is. NNG takes another engine at
 * run time; this one knows a single kind of configuration: TLS 1.3 (and 1.2 on P-256 with AES-GCM when the profile says
 * so), both sides verified, no resumption, no tickets, no renegotiation.
 *
 * Owner:   a context is reference counted; NNG's configuration holds its own reference.
 * Threads: open, configure and unref on any thread; the engine itself runs on NNG's threads.
 * Errors:  SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION (also when group or others may read the key), SHEAF_E_CERTIFICATE,
 *          SHEAF_E_VERSION (another NNG than the one that we were compiled for), SHEAF_E_MEMORY.
 * Not:     deadlines; the engine runs only when bytes move. See nng_server.c. */
#pragma once
#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#include "common/transport/tls_source.h"

typedef struct sheaf_tls_context sheaf_tls_context;

/* `host` (links only): DNS name or address that the aggregator's certificate must hold. */
SHEAF_MUST_USE sheaf_status sheaf_tls_context_open(const sheaf_tls_options *options, sheaf_tls_side side,
                                                   const char *host, sheaf_tls_context **out, sheaf_problem *problem);
void sheaf_tls_context_unref(sheaf_tls_context *context); /* NULL is fine */
/* The same, once all configurations and streams of the context are gone: NNG frees them some time after they were given
 * back, on a thread of its own, which must not happen while the process ends and OpenSSL with it. */
void sheaf_tls_context_release(sheaf_tls_context *context);
/* A configuration for NNG's tls+tcp dialers and listeners, sockets' or streams'. Free it with nng_tls_config_free. */
SHEAF_MUST_USE sheaf_status sheaf_tls_context_configure(sheaf_tls_context *context, nng_tls_config **out,
                                                        sheaf_problem *problem);

/* Connections that failed so far. A server's stream that failed in its handshake stays open, so that the alert arrives:
 * it ends when the peer closes, but whoever owns it must look for it (this number grows) and close it soon. */
unsigned sheaf_tls_context_failures(sheaf_tls_context *context);

/* What the engine knows about one connection. */
typedef struct {
    sheaf_certificate *peer; /* a new reference, once the handshake is done; else NULL */
    sheaf_status status;     /* why the connection failed, SHEAF_OK while it did not */
    char text[512];          /* the same for people */
    uint64_t moved_bytes;    /* so far, both ways, before decryption */
} sheaf_tls_state;

/* Asks about a stream of tls+tcp that runs on this engine; the caller unrefs state->peer. */
void sheaf_tls_ask(nng_stream *stream, sheaf_tls_state *state);
