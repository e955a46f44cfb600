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
} sheaf_trust_content;

/* Reads both paths (crl_path may be NULL). On failure *out is empty. */
SHEAF_MUST_USE sheaf_status sheaf_trust_content_read(const char *ca_path, const char *crl_path,
                                                     const sheaf_trust_policy *policy, sheaf_trust_content *out,
                                                     sheaf_problem *problem);
void sheaf_trust_content_fini(sheaf_trust_content *content);
/* A number that changes when a file is replaced, written, added or removed. 0 when nothing is there. */
uint64_t sheaf_trust_content_stamp(const char *ca_path, const char *crl_path);
