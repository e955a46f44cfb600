/* tls_session.h - one connection's TLS, with our rules about who may talk to whom; its bytes move through two functions.
 *
 * TLS 1.3 (and 1.2 on P-256 with AES-GCM when the profile says so), both sides verified, no resumption, no tickets, no
 * renegotiation.
 *
 * Owner:   a context is reference counted, and each session holds a reference.
 * Threads: contexts on any thread; a session on one at a time.
 * Errors:  of contexts SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION (also when group or others may read the key),
 *          SHEAF_E_CERTIFICATE, SHEAF_E_MEMORY; of sessions NNG's numbers, as those of the streams below them.
 * Not:     deadlines; a session runs only when bytes move. See nng_server.c. */
#pragma once
#include <nng/nng.h>

#include "common/transport/tls_source.h"

/* Plain bytes in a full record of ours. With its head, type and tag it is 16 KiB, which NNG's own TLS streams move in one
 * piece; the usual size travels in two there, with a wait for the second. */
#define SHEAF_TLS_RECORD_BYTES    (16384u - SHEAF_TLS_RECORD_OVERHEAD)
#define SHEAF_TLS_RECORD_OVERHEAD (5u + 1u + 16u)

typedef struct sheaf_tls_context sheaf_tls_context;
typedef struct sheaf_tls_session sheaf_tls_session;

/* `host` (links only): DNS name or address that the aggregator's certificate must hold. */
SHEAF_MUST_USE sheaf_status sheaf_tls_context_open(const sheaf_tls_options *options, sheaf_tls_side side,
                                                   const char *host, sheaf_tls_context **out, sheaf_problem *problem);
sheaf_tls_context *sheaf_tls_context_ref(sheaf_tls_context *context); /* NULL is fine, here and below */
void sheaf_tls_context_unref(sheaf_tls_context *context);

/* Sessions that failed so far. A server's session that failed in its handshake goes on asking for bytes, so that its
 * connection stays open and the alert arrives: it ends when the peer closes, but whoever owns it must look for it (this
 * number grows) and close it soon. */
unsigned sheaf_tls_context_failures(sheaf_tls_context *context);

/* What is known about one connection. */
typedef struct {
    sheaf_certificate *peer; /* a new reference, once the handshake is done; else NULL */
    sheaf_status status;     /* why the connection failed, SHEAF_OK while it did not */
    char text[512];          /* the same for people */
} sheaf_tls_state;

/* Each moves what it can of *size bytes, at least one, and sets *size; or says NNG_EAGAIN, or another error. */
typedef struct {
    int (*send)(void *wire, const uint8_t *bytes, size_t *size);
    int (*receive)(void *wire, uint8_t *bytes, size_t *size);
} sheaf_tls_wire;

/* 0, NNG_ENOMEM or NNG_ECRYPTO. `way` and `wire` must outlive the session. */
SHEAF_MUST_USE int sheaf_tls_session_begin(sheaf_tls_context *context, const sheaf_tls_wire *way, void *wire,
                                           sheaf_tls_session **out);
void sheaf_tls_session_end(sheaf_tls_session *session); /* NULL is fine */

/* 0: some bytes have moved, as *size says (or the handshake is over). NNG_EAGAIN: the wire must move first; then say the
 * same again. The first read or write shakes hands by itself. */
SHEAF_MUST_USE int sheaf_tls_session_shake(sheaf_tls_session *session);
SHEAF_MUST_USE int sheaf_tls_session_read(sheaf_tls_session *session, uint8_t *bytes, size_t *size);
SHEAF_MUST_USE int sheaf_tls_session_write(sheaf_tls_session *session, const uint8_t *bytes, size_t *size);
/* Tells the peer that nothing follows. */
void sheaf_tls_session_shut(sheaf_tls_session *session);

int sheaf_tls_session_is_shaking(const sheaf_tls_session *session); /* its handshake is not over */
int sheaf_tls_session_holds_part(const sheaf_tls_session *session); /* a record that has not been read to its end */
/* The caller unrefs state->peer. */
void sheaf_tls_session_tell(const sheaf_tls_session *session, sheaf_tls_state *state);
