/* certificate.h - an X.509 certificate as we see one: who it names, in what role, and whether a signature is theirs.
 *
 * Names:   subject O = tenant, OU = role (device, operator, auditor, aggregator), CN = name; all by sheaf_name_ok.
 *          The role also needs its extended key usage: aggregator serverAuth, all others clientAuth.
 * Owner:   sheaf_certificate is immutable and reference counted; every _from_ and _ref is paired with an _unref.
 * Threads: any.
 *          The subject holds these three and nothing else; an authority's certificate (CA:TRUE) names no peer.
 * Keys:    ECDSA P-256 (signatures in DER, SHA-256) and Ed25519; anything else is SHEAF_E_CERTIFICATE.
 * Errors:  SHEAF_E_CERTIFICATE (not a certificate, or of a form that we refuse), SHEAF_E_SIGNATURE; SHEAF_E_MEMORY and
 *          SHEAF_E_CRYPTO when OpenSSL fails for its own reasons; the file errors of file.h.
 * Not:     chain and validity are checked by TLS (transport/tls_engine) or by sheaf_certificate_check_chain. */
#pragma once
#include "common/bytes.h"
#include "common/name.h"
#include "common/problem.h"

typedef enum {
    SHEAF_ROLE_NONE = 0,
    SHEAF_ROLE_DEVICE,
    SHEAF_ROLE_OPERATOR,
    SHEAF_ROLE_AUDITOR,
    SHEAF_ROLE_AGGREGATOR
} sheaf_role;

const char *sheaf_role_name(sheaf_role role);      /* "device" ... */
sheaf_role sheaf_role_from_name(const char *name); /* SHEAF_ROLE_NONE when unknown */

typedef struct {
    char tenant[SHEAF_NAME_BYTES];
    char name[SHEAF_NAME_BYTES];
    sheaf_role role;
} sheaf_identity;

typedef struct sheaf_certificate sheaf_certificate;

SHEAF_MUST_USE sheaf_status sheaf_certificate_from_der(sheaf_span der, sheaf_certificate **out);
/* The same, with the reason of a refusal in *problem. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_read(sheaf_span der, sheaf_certificate **out, sheaf_problem *problem);
/* The first certificate of a PEM file; further ones are kept as intermediates for check_chain. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_from_pem_file(const char *path, sheaf_certificate **out,
                                                            sheaf_problem *problem);
sheaf_certificate *sheaf_certificate_ref(sheaf_certificate *certificate);
void sheaf_certificate_unref(sheaf_certificate *certificate); /* NULL is fine */

const sheaf_identity *sheaf_certificate_identity(const sheaf_certificate *certificate);
const uint8_t *sheaf_certificate_fingerprint(const sheaf_certificate *certificate); /* SHA-256 of the DER, 32 bytes */
sheaf_span sheaf_certificate_der(const sheaf_certificate *certificate);

/* SHEAF_OK when `signature` is this certificate's over exactly `message`. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_verify(const sheaf_certificate *certificate, sheaf_span message,
                                                     sheaf_span signature);
/* Chain to the authorities in the PEM file `ca_path`, validity now, purpose by role. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_check_chain(const sheaf_certificate *certificate, const char *ca_path,
                                                          sheaf_problem *problem);
