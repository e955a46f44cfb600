/* tls_source.h - where TLS connections come from: our settings, whom we believe, and who we are, as these are now.
 *
 * TLS 1.3 (and 1.2 on P-256 with AES-GCM when the profile says so), both sides verified, no resumption, no tickets, no
 * renegotiation. Each connection takes the certificate and the authorities in force when it begins; those that are open
 * keep theirs.
 *
 * Owner:   the caller closes; connections hold what they need by themselves.
 * Threads: any.
 * Errors:  of open: those of trust.h and credentials.h, SHEAF_E_CRYPTO.
 * Not:     the wire, and who the peer may be; what verifies is installed by `prepare`. */
#pragma once
#include "common/credentials.h"
#include "common/transport/transport.h"
#include "common/trust.h"

typedef struct sheaf_tls_source sheaf_tls_source;

typedef enum { SHEAF_TLS_SERVER, SHEAF_TLS_LINK } sheaf_tls_side;

/* `prepare` (may be NULL) gets every context once, before its first connection: for callbacks. */
SHEAF_MUST_USE sheaf_status sheaf_tls_source_open(const sheaf_tls_options *options, sheaf_tls_side side,
                                                  void (*prepare)(SSL_CTX *context), sheaf_tls_source **out,
                                                  sheaf_problem *problem);
void sheaf_tls_source_close(sheaf_tls_source *source); /* NULL is fine */
/* A new connection object, or NULL without memory. Authorities that are the source's own (no trust in the options) are
 * looked at first, once a second at most; a certificate never is, for who signs with its key must change with it: give
 * credentials, and poll them. */
SSL *sheaf_tls_source_connect(sheaf_tls_source *source);
/* The context in force, a new reference; its own store holds the authorities of this moment. For libraries that want a
 * context: ask again for each of their connections. */
SSL_CTX *sheaf_tls_source_context(sheaf_tls_source *source);
/* The peer's certificate with the intermediates that made up its verified chain. */
SHEAF_MUST_USE sheaf_status sheaf_tls_read_peer(X509_STORE_CTX *verified, sheaf_certificate **out,
                                                sheaf_problem *problem);
