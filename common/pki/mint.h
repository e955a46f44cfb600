/* mint.h - builds and signs X.509 certificates by our profile (certs/README.md), and nothing else.
 *
 * Owner:   the caller frees the X509 it gets; keys and issuers are borrowed.
 * Threads: any; no state.
 * Units:   days of 86,400 s from now; validity starts five minutes before now, for clocks that are behind.
 * Errors:  SHEAF_E_NAME (a name by sheaf_name_ok, or an alternative name), SHEAF_E_USAGE, SHEAF_E_CERTIFICATE (the
 *          issuer has expired), SHEAF_E_CRYPTO.
 * Not:     files; authority.h keeps them. */
#pragma once
#include <openssl/types.h>

#include "common/certificate.h"
#include "common/private_key.h"

#define SHEAF_MINT_DAYS_MAX 36500u

typedef struct {
    X509 *certificate;
    EVP_PKEY *key;
    sheaf_key_type key_type;
} sheaf_issuer;

typedef struct {
    sheaf_role role;
    const char *tenant;
    const char *name;
    const char *region;            /* NULL or "": none */
    const char *alternative_names; /* aggregators: "localhost,127.0.0.1,::1"; NULL for all others */
    uint32_t days;                 /* 1 to SHEAF_MINT_DAYS_MAX; never beyond the issuer's end */
} sheaf_mint_options;

/* A root: CN = name, CA:TRUE, signed by its own key. Path length 0, or 1 when others may be below. */
SHEAF_MUST_USE sheaf_status sheaf_mint_root(const char *name, uint32_t days, int others_below, EVP_PKEY *key,
                                            sheaf_key_type type, X509 **out, sheaf_problem *problem);
/* An issuing authority below the issuer: path length 0. SHEAF_E_CERTIFICATE when the issuer may have none below. */
SHEAF_MUST_USE sheaf_status sheaf_mint_authority(const char *name, uint32_t days, EVP_PKEY *key,
                                                 const sheaf_issuer *issuer, X509 **out, sheaf_problem *problem);
/* A peer's certificate for the public part of `key`. */
SHEAF_MUST_USE sheaf_status sheaf_mint_peer(const sheaf_mint_options *options, EVP_PKEY *key,
                                            const sheaf_issuer *issuer, X509 **out, sheaf_problem *problem);
/* The alternative names of a certificate in the form that mint options take, for its renewal; "" when it has none. */
#define SHEAF_ALTERNATIVES_BYTES 8192u
SHEAF_MUST_USE sheaf_status sheaf_mint_alternatives_of(const X509 *x509, char out[SHEAF_ALTERNATIVES_BYTES],
                                                       sheaf_problem *problem);
