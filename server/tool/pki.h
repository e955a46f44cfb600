/* pki.h - what the commands of `sheaf pki` share; pki.c has the table, and those that only issue and look.
 *
 * Owner:   texts are borrowed from the command line.
 * Threads: one.
 * Errors:  functions return exit codes; see verb.h. */
#pragma once
#include <jansson.h>

#include "common/pki/authority.h"
#include "common/pki/registry.h"
#include "server/tool/verb.h"

typedef struct {
    const char *dir, *out, *role, *name, *tenant, *region, *san, *ca, *crl, *path;
    const char *serial, *reason, *under, *token_file, *key, *listen, *certificate, *url;
    uint32_t days, overlap_h, valid_h; /* 0: not given */
    sheaf_key_type key_type;
    int renew, offline, json, help;
} sheaf_pki_choices;

int sheaf_pki_usage(const char *text);
/* Prints the object on one line and drops it. */
int sheaf_pki_print_json(json_t *object);
/* Problem on stderr, and its exit code: what is refused by a policy is SHEAF_EXIT_FINDING. */
int sheaf_pki_fail(const char *verb, const sheaf_problem *problem);
json_t *sheaf_pki_issued_to_json(const sheaf_issued *issued);

/* broker.c */
int sheaf_pki_broker_config(const sheaf_pki_choices *chosen);
/* pki_revocation.c */
int sheaf_pki_revoke(const sheaf_pki_choices *chosen);
int sheaf_pki_crl(const sheaf_pki_choices *chosen);
/* pki_request.c */
int sheaf_pki_renew(const sheaf_pki_choices *chosen);
int sheaf_pki_token(const sheaf_pki_choices *chosen);
int sheaf_pki_csr(const sheaf_pki_choices *chosen);
int sheaf_pki_sign(const sheaf_pki_choices *chosen);
/* NULL, or what is wrong. Role, name, tenant and region of the command line. */
const char *sheaf_pki_identity(const sheaf_pki_choices *chosen, sheaf_identity *out);
/* A token's text from a file ('-': standard input), without the line's end, with a NUL. Wipe and free it. */
SHEAF_MUST_USE sheaf_status sheaf_pki_read_token(const char *path, sheaf_buffer *out, sheaf_problem *problem);
/* pki_est.c */
int sheaf_pki_enroll(const sheaf_pki_choices *chosen);
