/* signer.h - a private key that signs statements.
 *
 * Owner:   the caller frees it; the key is wiped then.
 * Threads: sign may run on any thread, several at a time.
 * Keys:    PEM (PKCS#8 or SEC1), ECDSA P-256 with SHA-256 (DER, <= 72 bytes) or Ed25519 (64 bytes).
 * Errors:  SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION (also when group or others may read the file), SHEAF_E_CRYPTO. */
#pragma once
#include "common/bytes.h"
#include "common/problem.h"

#define SHEAF_SIGNATURE_BYTES_MAX 80u

typedef struct sheaf_signer sheaf_signer;

SHEAF_MUST_USE sheaf_status sheaf_signer_open(const char *key_path, sheaf_signer **out, sheaf_problem *problem);
void sheaf_signer_free(sheaf_signer *signer); /* NULL is fine */
/* out->capacity >= SHEAF_SIGNATURE_BYTES_MAX. */
SHEAF_MUST_USE sheaf_status sheaf_signer_sign(sheaf_signer *signer, sheaf_span message, sheaf_buffer *out);
