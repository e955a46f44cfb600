/* revocation.h - takes certificates back: notes them, and publishes the list that peers read (crl.pem).
 *
 * Owner:   the authority, whose lock makes processes take turns.
 * Threads: one authority, one thread.
 * Units:   seconds, days. Numbers of lists never go back: each is the clock in seconds, or one more than the last.
 * Errors:  SHEAF_E_NOT_FOUND (no such certificate here), SHEAF_E_MISMATCH (the name is that of several peers), those of
 *          registry.h, SHEAF_E_CRYPTO.
 * Durable: what is revoked is on the disk before a list is published, so the next publication always has it.
 * Not:     who reads the list; that is trust.h. */
#pragma once
#include "common/pki/authority.h"

#define SHEAF_AUTHORITY_LIST "crl.pem"
#define SHEAF_CRL_DAYS       30u

/* Which certificates: by serial number, or by name and as much more as is needed to mean one peer only. */
typedef struct {
    const char *serial; /* hex; NULL: by name */
    const char *name;
    const char *tenant; /* NULL: any */
    sheaf_role role;    /* SHEAF_ROLE_NONE: any, also an authority below this one */
    const char *except; /* a serial that stays good; NULL */
} sheaf_revocation_choice;

/* Notes that the chosen certificates are revoked from `at_unix_s` on (which may lie ahead), unless they are already.
 * *count says how many are new. Publishes nothing. */
SHEAF_MUST_USE sheaf_status sheaf_authority_revoke(sheaf_authority *authority, const sheaf_revocation_choice *choice,
                                                   int64_t at_unix_s, const char *reason, size_t *count,
                                                   sheaf_problem *problem);

typedef struct {
    char path[SHEAF_PATH_BYTES];
    char number[SHEAF_SERIAL_BYTES];
    char next_update[SHEAF_RFC3339_BYTES];
    size_t revoked;
} sheaf_published;

/* Writes FOLDER/crl.pem anew with all that is revoked by now, valid for `days`. */
SHEAF_MUST_USE sheaf_status sheaf_authority_publish(sheaf_authority *authority, uint32_t days, sheaf_published *out,
                                                    sheaf_problem *problem);
