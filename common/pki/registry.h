/* registry.h - the list of what an authority has issued: index.jsonl in its folder, one JSON object a line.
 *
 * Owner:   the caller; entries hold no pointer. The array of sheaf_registry_read is freed with free().
 * Threads: one writer at a time, which the lock of authority.h gives.
 * Units:   times are UTC, RFC 3339.
 * Errors:  those of file.h; SHEAF_E_CORRUPT for a line that is not an entry.
 * Durable: an entry is on the disk before its certificate is, so no certificate is out that the list does not know.
 *          A line cut short by a crash has no certificate; it is passed over, and the next entry overwrites it. */
#pragma once
#include "common/certificate.h"
#include "common/file.h"

#define SHEAF_REGISTRY_FILE "index.jsonl"
#define SHEAF_SERIAL_BYTES  43u /* hex of up to 21 bytes, with the NUL */
#define SHEAF_RFC3339_BYTES 32u

typedef struct {
    sheaf_identity identity;
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
