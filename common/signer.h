/* signer.h - a private key that signs statements.
 *
 * Owner:   reference counted; the key is wiped with the last reference.
 * Threads: sign may run on any thread, several at a time.
 * Keys:    PEM (PKCS#8 or SEC1), ECDSA P-256 with SHA-256 (DER, <= 72 bytes) or Ed25519 (64 bytes).
 * Errors:  SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION (also when group or others may read the file), SHEAF_E_CRYPTO. */
#pragma once
#include <openssl/types.h>

#include "common/bytes.h"
#include "common/problem.h"

#define SHEAF_SIGNATURE_BYTES_MAX 80u

typedef struct sheaf_signer sheaf_signer;

SHEAF_MUST_USE sheaf_status sheaf_signer_open(const char *key_path, sheaf_signer **out, sheaf_problem *problem);
sheaf_signer *sheaf_signer_ref(sheaf_signer *signer);
void sheaf_signer_free(sheaf_signer *signer); /* drops one reference; NULL is fine */
/* OpenSSL's view of the key, borrowed: for TLS. */
EVP_PKEY *sheaf_signer_key(const sheaf_signer *signer);
/* out->capacity >= SHEAF_SIGNATURE_BYTES_MAX. */
SHEAF_MUST_USE sheaf_status sheaf_signer_sign(sheaf_signer *signer, sheaf_span message, sheaf_buffer *out);
