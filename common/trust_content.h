/* trust_content.h - what trust.c has read: one immutable set of authorities and lists as an OpenSSL store.
 *
 * Owner:   the caller frees; a store lives on by its own references.
 * Threads: any, since nothing changes.
 * Errors:  those of trust.h.
 * Not:     when to read; trust.c decides. */
#pragma once
#include "common/trust.h"

/* Goes into the store, for the verification that runs in it. */
typedef struct {
    sheaf_crl_policy crl_expired;
    uint32_t crl_grace_s;
} sheaf_trust_policy;

typedef struct {
    X509_STORE *store;
    uint32_t authorities, lists, revoked;
    int64_t next_update_unix_s;
    STACK_OF(X509_CRL) * newest; /* the list in force of each authority that is here and has signed it */
} sheaf_trust_content;

/* Reads both paths (crl_path may be NULL). On failure *out is empty. */
SHEAF_MUST_USE sheaf_status sheaf_trust_content_read(const char *ca_path, const char *crl_path,
                                                     const sheaf_trust_policy *policy, sheaf_trust_content *out,
                                                     sheaf_problem *problem);
/* SHEAF_E_CONFLICT when an authority's list in `fresh` is older than the one in `before`: by its number (RFC 5280, 5.2.3),
 * or by thisUpdate where one of the two has none. Otherwise `fresh` also remembers the lists that were taken away since, so
 * that they cannot come back older either. The lists of intermediates that only peers bring along are not compared. */
SHEAF_MUST_USE sheaf_status sheaf_trust_content_follow(sheaf_trust_content *fresh, const sheaf_trust_content *before,
                                                       sheaf_problem *problem);
void sheaf_trust_content_fini(sheaf_trust_content *content);
/* A number that changes when a file is replaced, written, added or removed. 0 when nothing is there. */
uint64_t sheaf_trust_content_stamp(const char *ca_path, const char *crl_path);
