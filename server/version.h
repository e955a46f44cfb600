/* version.h - a model version that many threads read while the round moves on to the next.
 *
 * Owner:   reference counted: make and take give a reference, drop returns it. The shelf holds one to the current.
 * Threads: any. A version is immutable once it is on a shelf.
 * Errors:  none but memory. */
#pragma once
#include <pthread.h>

#include "common/model.h"

typedef struct {
    sheaf_model model;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    unsigned references; /* guarded by the shelf's lock */
} sheaf_version;

typedef struct {
    pthread_mutex_t lock;
    sheaf_version *current;
} sheaf_shelf;

void sheaf_shelf_init(sheaf_shelf *shelf);
void sheaf_shelf_fini(sheaf_shelf *shelf);
/* A version that is on no shelf yet, with one reference; takes over the model (cleared in the caller's hands). */
SHEAF_MUST_USE sheaf_status sheaf_version_make(sheaf_model *model, const uint8_t digest[SHEAF_DIGEST_BYTES],
                                               sheaf_version **out);
/* Makes it the current version; the shelf takes over the reference. Cannot fail, so it may follow a commit. */
void sheaf_shelf_put(sheaf_shelf *shelf, sheaf_version *version);
/* The current version, with a reference; NULL before the first. */
sheaf_version *sheaf_shelf_take(sheaf_shelf *shelf);
void sheaf_shelf_drop(sheaf_shelf *shelf, sheaf_version *version);
