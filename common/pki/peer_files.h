/* peer_files.h - where the certificate and key of one peer stand, and how they are replaced without a gap.
 *
 * ROLE-NAME.pem and ROLE-NAME.key; ROLE-NAME@TENANT.* where another tenant's peer has that name in the same folder.
 *
 * Owner:   the caller.
 * Threads: one writer, which the lock of authority.h gives.
 * Errors:  those of file.h, private_key.h and certificate.h; SHEAF_E_NAME, SHEAF_E_USAGE.
 * Durable: every step; whatever dies, the certificate that is there has its key beside it, in .key or in .key.old.
 * Not:     what stands in a certificate. */
#pragma once
#include "common/certificate.h"
#include "common/file.h"
#include "common/private_key.h"

typedef struct {
    char certificate[SHEAF_PATH_BYTES];
    char key[SHEAF_PATH_BYTES];
} sheaf_peer_files;

SHEAF_MUST_USE sheaf_status sheaf_peer_files_place(const char *folder, sheaf_role role, const char *tenant,
                                                   const char *name, sheaf_peer_files *out, sheaf_problem *problem);
/* 1 in *there when something stands at `path`, be it a dangling link. */
SHEAF_MUST_USE sheaf_status sheaf_peer_files_exist(const char *path, int *there, sheaf_problem *problem);
/* Writes `first`, then what of `chain` (may be NULL) a peer must show: not the root. */
SHEAF_MUST_USE sheaf_status sheaf_peer_files_write(const char *path, X509 *first, struct stack_st_X509 *chain,
                                                   sheaf_problem *problem);
/* Puts a new pair in the place of the one that is there. The old key stays as .key.old until the new certificate stands. */
SHEAF_MUST_USE sheaf_status sheaf_peer_files_replace(const sheaf_peer_files *files, const EVP_PKEY *key, X509 *first,
                                                     struct stack_st_X509 *chain, sheaf_problem *problem);
