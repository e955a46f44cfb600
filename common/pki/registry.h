/* registry.h - the lists of an authority's folder: index.jsonl, what it has issued, and revoked.jsonl, what it takes back.
 *
 * Owner:   the caller; entries hold no pointer. The arrays that are read are freed with free().
 * Threads: one writer at a time, which the lock of authority.h gives.
 * Units:   times are UTC, RFC 3339.
 * Errors:  those of file.h; SHEAF_E_CORRUPT for a line that is not an entry.
 * Durable: an entry is on the disk before its certificate is, so no certificate is out that the list does not know.
 *          A line cut short by a crash has no certificate; it is passed over, and the next entry overwrites it. */
#pragma once
#include "common/certificate.h"
#include "common/file.h"

#define SHEAF_REGISTRY_FILE      "index.jsonl"
#define SHEAF_SERIAL_BYTES       43u /* hex of up to 21 bytes, with the NUL */
#define SHEAF_RFC3339_BYTES      32u
#define SHEAF_REVOKED_FILE       "revoked.jsonl"
#define SHEAF_REASON_BYTES       128u
#define SHEAF_REGISTRY_AUTHORITY "authority" /* the role of an issuing authority below this one */

typedef struct {
    sheaf_identity identity;
    int authority; /* of an authority below this one: identity has a name only */
    char serial[SHEAF_SERIAL_BYTES];
    char not_before[SHEAF_RFC3339_BYTES];
    char not_after[SHEAF_RFC3339_BYTES];
    char fingerprint[2 * SHEAF_DIGEST_BYTES + 1]; /* hex */
    char certificate[SHEAF_PATH_BYTES];           /* path as given when it was issued */
    char key[SHEAF_PATH_BYTES];
} sheaf_issued;

/* Appends durably. */
SHEAF_MUST_USE sheaf_status sheaf_registry_add(const char *folder, const sheaf_issued *entry, sheaf_problem *problem);
/* All entries, oldest first; none when there is no list yet. */
SHEAF_MUST_USE sheaf_status sheaf_registry_read(const char *folder, sheaf_issued **entries, size_t *count,
                                                sheaf_problem *problem);

typedef struct {
    char serial[SHEAF_SERIAL_BYTES];
    int64_t at_unix_s; /* may lie ahead: until then the certificate is good (the overlap of a renewal) */
    char reason[SHEAF_REASON_BYTES];
} sheaf_revoked;

/* Appends durably. The list that peers see is made from it afterwards; see revocation.h. */
SHEAF_MUST_USE sheaf_status sheaf_registry_revoke(const char *folder, const sheaf_revoked *entry,
                                                  sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_registry_read_revoked(const char *folder, sheaf_revoked **entries, size_t *count,
                                                        sheaf_problem *problem);
/* The earliest entry for this serial, or NULL. */
const sheaf_revoked *sheaf_registry_find_revoked(const sheaf_revoked *entries, size_t count, const char *serial);
/* A serial number as the lists write it. */
SHEAF_MUST_USE sheaf_status sheaf_registry_serial_of(const X509 *x509, char out[SHEAF_SERIAL_BYTES],
                                                     sheaf_problem *problem);
