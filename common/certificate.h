/* certificate.h - an X.509 certificate as we see one: who it names, in what role, and whether a signature is theirs.
 *
 * Names:   subject O = tenant, OU = role (device, operator, auditor, aggregator, broker), CN = name, and ST = region where there
 *          is one; all by sheaf_name_ok.
 *          The role also needs its extended key usage: aggregator and broker serverAuth, all others clientAuth.
 * Owner:   sheaf_certificate is immutable and reference counted; every _from_ and _ref is paired with an _unref.
 * Threads: any.
 *          The subject holds these and nothing else; an authority's certificate (CA:TRUE) names no peer.
 * Keys:    ECDSA P-256 (signatures in DER, SHA-256) and Ed25519; anything else is SHEAF_E_CERTIFICATE.
 * Errors:  SHEAF_E_CERTIFICATE (not a certificate, or of a form that we refuse), SHEAF_E_SIGNATURE; SHEAF_E_MEMORY and
 *          SHEAF_E_CRYPTO when OpenSSL fails for its own reasons; the file errors of file.h.
 * Not:     chain, validity and revocation: trust.h checks those. */
#pragma once
#include <openssl/types.h>

#include "common/bytes.h"
#include "common/name.h"
#include "common/problem.h"

#define SHEAF_CHAIN_MAX 5u /* certificates that a peer may bring, its own included */

typedef enum {
    SHEAF_ROLE_NONE = 0,
    SHEAF_ROLE_DEVICE,
    SHEAF_ROLE_OPERATOR,
    SHEAF_ROLE_AUDITOR,
    SHEAF_ROLE_AGGREGATOR,
    SHEAF_ROLE_BROKER /* carries messages; may not be taken for an aggregator */
} sheaf_role;

const char *sheaf_role_name(sheaf_role role);      /* "device" ... */
int sheaf_role_serves(sheaf_role role);            /* devices connect to it, so its certificate has alternative names */
sheaf_role sheaf_role_from_name(const char *name); /* SHEAF_ROLE_NONE when unknown */

typedef struct {
    char tenant[SHEAF_NAME_BYTES];
    char name[SHEAF_NAME_BYTES];
    char region[SHEAF_NAME_BYTES]; /* where its data may be used; "" when the certificate names none */
    sheaf_role role;
} sheaf_identity;

typedef struct sheaf_certificate sheaf_certificate;

SHEAF_MUST_USE sheaf_status sheaf_certificate_from_der(sheaf_span der, sheaf_certificate **out);
/* The same, with the reason of a refusal in *problem. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_read(sheaf_span der, sheaf_certificate **out, sheaf_problem *problem);
/* A peer's own certificate, then those that it brings along towards its authority. count: 1 to SHEAF_CHAIN_MAX. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_read_chain(const sheaf_span *ders, size_t count, sheaf_certificate **out,
                                                         sheaf_problem *problem);
/* The same for certificates that OpenSSL has parsed already: they are kept by reference, not a second time. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_share_chain(X509 *const *chain, size_t count, sheaf_certificate **out,
                                                          sheaf_problem *problem);
/* The first certificate of a PEM file; further ones are kept as intermediates. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_from_pem_file(const char *path, sheaf_certificate **out,
                                                            sheaf_problem *problem);
sheaf_certificate *sheaf_certificate_ref(sheaf_certificate *certificate);
void sheaf_certificate_unref(sheaf_certificate *certificate); /* NULL is fine */

const sheaf_identity *sheaf_certificate_identity(const sheaf_certificate *certificate);
const uint8_t *sheaf_certificate_fingerprint(const sheaf_certificate *certificate); /* SHA-256 of the DER, 32 bytes */
sheaf_span sheaf_certificate_der(const sheaf_certificate *certificate);
int64_t sheaf_certificate_not_after(const sheaf_certificate *certificate); /* seconds since 1970 */
/* A number that trust.h keeps with the certificate; 0 at first. It says nothing about what the certificate is. */
uint64_t sheaf_certificate_mark(const sheaf_certificate *certificate);
void sheaf_certificate_set_mark(const sheaf_certificate *certificate, uint64_t mark);
/* OpenSSL's view of the same, borrowed: for those who verify or present it. */
X509 *sheaf_certificate_x509(const sheaf_certificate *certificate);
/* What came along with it, borrowed; NULL when nothing did. */
struct stack_st_X509 *sheaf_certificate_intermediates(const sheaf_certificate *certificate);

/* SHEAF_OK when `signature` is this certificate's over exactly `message`. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_verify(const sheaf_certificate *certificate, sheaf_span message,
                                                     sheaf_span signature);

/* The rules about names and keys by themselves, for requests of certificates. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_read_subject(X509_NAME *subject, sheaf_identity *out,
                                                           sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_certificate_check_key(X509_PUBKEY *key, int *is_p256, sheaf_problem *problem);
