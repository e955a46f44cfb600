/* request.h - certificate signing requests (PKCS#10): made by who has the key, judged by who signs.
 *
 * Owner:   the caller frees what it gets.
 * Threads: any; no state.
 * Errors:  SHEAF_E_MALFORMED (not a request in DER), SHEAF_E_SIGNATURE (its own signature), SHEAF_E_CERTIFICATE (a key or
 *          subject that no certificate may have), SHEAF_E_NAME, SHEAF_E_CRYPTO, SHEAF_E_MEMORY.
 * Not:     who may have which name; enrol.h compares. */
#pragma once
#include "common/certificate.h"
#include "common/private_key.h"

#define SHEAF_REQUEST_BYTES_MAX 8192u

typedef struct {
    sheaf_identity identity;                /* what its subject asks for */
    EVP_PKEY *key;                          /* the public key, owned */
    uint8_t key_digest[SHEAF_DIGEST_BYTES]; /* SHA-256 of the SubjectPublicKeyInfo */
} sheaf_request_content;

/* A request for this identity, signed with `key`; *der is malloc'd. */
SHEAF_MUST_USE sheaf_status sheaf_request_make(const sheaf_identity *identity, EVP_PKEY *key, sheaf_buffer *der,
                                               sheaf_problem *problem);
/* The same as PEM text. */
SHEAF_MUST_USE sheaf_status sheaf_request_to_pem(sheaf_span der, sheaf_buffer *pem, sheaf_problem *problem);
/* DER of the first request in a PEM text, malloc'd. */
SHEAF_MUST_USE sheaf_status sheaf_request_from_pem(sheaf_span pem, sheaf_buffer *der, sheaf_problem *problem);
/* Checks form, key and self-signature. */
SHEAF_MUST_USE sheaf_status sheaf_request_read(sheaf_span der, sheaf_request_content *out, sheaf_problem *problem);
void sheaf_request_fini(sheaf_request_content *request);
