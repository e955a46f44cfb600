#include "server/version.h"

#include <stdlib.h>

void sheaf_shelf_init(sheaf_shelf *shelf) {
    shelf->current = NULL;
    pthread_mutex_init(&shelf->lock, NULL);
}

static void drop_locked(sheaf_version *version) {
    if (version == NULL || --version->references > 0) return;
    sheaf_model_free(&version->model);
    free(version);
}

void sheaf_shelf_fini(sheaf_shelf *shelf) {
    drop_locked(shelf->current);
    shelf->current = NULL;
    pthread_mutex_destroy(&shelf->lock);
}

sheaf_status sheaf_version_make(sheaf_model *model, const uint8_t digest[SHEAF_DIGEST_BYTES], sheaf_version **out) {
    sheaf_version *version = calloc(1, sizeof *version);
    *out = version;
    if (version == NULL) return SHEAF_E_MEMORY;
    version->model = *model;
    memset(model, 0, sizeof *model);
    memcpy(version->digest, digest, SHEAF_DIGEST_BYTES);
    version->references = 1;
    return SHEAF_OK;
}

void sheaf_shelf_put(sheaf_shelf *shelf, sheaf_version *version) {
    pthread_mutex_lock(&shelf->lock);
    drop_locked(shelf->current);
    shelf->current = version;
    pthread_mutex_unlock(&shelf->lock);
}

sheaf_version *sheaf_shelf_take(sheaf_shelf *shelf) {
    pthread_mutex_lock(&shelf->lock);
    sheaf_version *version = shelf->current;
    if (version != NULL) version->references++;
    pthread_mutex_unlock(&shelf->lock);
    return version;
}

void sheaf_shelf_drop(sheaf_shelf *shelf, sheaf_version *version) {
    pthread_mutex_lock(&shelf->lock);
    drop_locked(version);
    pthread_mutex_unlock(&shelf->lock);
}
