/* version.h - a model version that many threads read while the round moves on to the next, and what newer versions have in
 * common with older ones.
 *
 * Each tensor of a version knows since which version it has had its bytes. Two versions of a job have the same tensor in the
 * same place exactly when that number is the same in both, so the newest few versions are remembered by such numbers
 * alone, 8 bytes a tensor.
 *
 * Owner:   reference counted: make and take give a reference, drop returns it. The shelf holds one to the current.
 * Threads: any. A version is immutable once it is on a shelf.
 * Units:   bytes of the parameter stream.
 * Errors:  none but memory. */
#pragma once
#include <pthread.h>

#include "common/model.h"

#define SHEAF_SHELF_PAST 8u /* older versions that are remembered */

typedef struct {
    sheaf_model model;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    uint64_t number;     /* counts up along a shelf */
    uint64_t *since;     /* one a tensor: the number of the version that gave it its bytes */
    unsigned references; /* guarded by the shelf's lock */
} sheaf_version;

typedef struct {
    uint8_t digest[SHEAF_DIGEST_BYTES];
    uint64_t *since; /* NULL: nothing here */
} sheaf_past_version;

typedef struct {
    pthread_mutex_t lock;
    sheaf_version *current;
    sheaf_past_version past[SHEAF_SHELF_PAST];
    size_t next_past; /* the place that is written next */
} sheaf_shelf;

void sheaf_shelf_init(sheaf_shelf *shelf);
void sheaf_shelf_fini(sheaf_shelf *shelf);
/* A version that is on no shelf yet, with one reference; takes over the model (cleared in the caller's hands). `base`:
 * the version that it follows, or NULL. */
SHEAF_MUST_USE sheaf_status sheaf_version_make(sheaf_model *model, const uint8_t digest[SHEAF_DIGEST_BYTES],
                                               const sheaf_version *base, sheaf_version **out);
/* Makes it the current version; the shelf takes over the reference. Cannot fail, so it may follow a commit. */
void sheaf_shelf_put(sheaf_shelf *shelf, sheaf_version *version);
/* The current version, with a reference; NULL before the first. */
sheaf_version *sheaf_shelf_take(sheaf_shelf *shelf);
void sheaf_shelf_drop(sheaf_shelf *shelf, sheaf_version *version);

/* What somebody who holds another version whole lacks of this one, from an offset on. */
typedef struct {
    uint64_t same_bytes;  /* > 0: so many bytes from the offset on are equal */
    uint64_t plain_bytes; /* else: so many come before the next that are equal and worth a message of their own */
    uint64_t same_total;  /* equal bytes of the whole version */
} sheaf_difference;

/* `held`: the digest of the version held; one that is unknown has nothing in common. offset <= the stream's bytes. */
void sheaf_shelf_difference(sheaf_shelf *shelf, const sheaf_version *version, sheaf_span held, uint64_t offset,
                            sheaf_difference *out);
