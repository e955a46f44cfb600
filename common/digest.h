/* digest.h - SHA-256 on a host (OpenSSL). The device core does not use this: it calls the digest functions of its port.
 *
 * Owner:   sheaf_digest holds an OpenSSL context from begin to finish (or drop).
 * Threads: one digest, one thread.
 * Errors:  OpenSSL's digest calls fail only without memory; that is SHEAF_E_CRYPTO. */
#pragma once
#include "common/bytes.h"
#include "common/status.h"

typedef struct {
    void *context; /* EVP_MD_CTX */
} sheaf_digest;

SHEAF_MUST_USE sheaf_status sheaf_digest_begin(sheaf_digest *digest);
SHEAF_MUST_USE sheaf_status sheaf_digest_update(sheaf_digest *digest, sheaf_span bytes);
/* Ends the digest and releases its context, also on failure. */
SHEAF_MUST_USE sheaf_status sheaf_digest_finish(sheaf_digest *digest, uint8_t out[SHEAF_DIGEST_BYTES]);
/* Releases an unfinished digest; safe on a zeroed or finished one. */
void sheaf_digest_drop(sheaf_digest *digest);
/* In one call. */
SHEAF_MUST_USE sheaf_status sheaf_digest_of(sheaf_span bytes, uint8_t out[SHEAF_DIGEST_BYTES]);
