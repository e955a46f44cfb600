#include "common/credentials.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/err.h>
#include <openssl/x509.h>

#include "common/file.h"
#include "common/log.h"

struct sheaf_credentials {
    atomic_uint references;
    char *certificate_path, *key_path;
    pthread_mutex_t lock; /* guards the rest */
    sheaf_credentials_pair pair;
    struct stat certificate_seen, key_seen;
};

static int fits(const sheaf_certificate *certificate, const sheaf_signer *signer) {
    (void)ERR_set_mark();
    int same = X509_check_private_key(sheaf_certificate_x509(certificate), sheaf_signer_key(signer)) == 1;
    (void)ERR_pop_to_mark();
    return same;
}

/* The key of the certificate: the one in the file, or the one that it has just replaced there. */
static sheaf_status open_key(const char *path, const sheaf_certificate *certificate, sheaf_signer **out,
                             sheaf_problem *problem) {
    char old[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_signer_open(path, out, problem);
    if (status != SHEAF_OK || fits(certificate, *out)) return status;
    sheaf_signer_free(*out);
    *out = NULL;
    int named = snprintf(old, sizeof old, "%s.old", path) < (int)sizeof old;
    if (named && sheaf_signer_open(old, out, NULL) == SHEAF_OK && fits(certificate, *out)) return SHEAF_OK;
    sheaf_signer_free(*out);
    *out = NULL;
    return sheaf_problem_set(problem, SHEAF_E_MISMATCH, "%s: not the private key of the certificate", path);
}

static sheaf_status read_pair(const sheaf_credentials *credentials, sheaf_credentials_pair *out,
                              sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    sheaf_status status = sheaf_certificate_from_pem_file(credentials->certificate_path, &out->certificate, problem);
    if (status == SHEAF_OK) status = open_key(credentials->key_path, out->certificate, &out->signer, problem);
    if (status != SHEAF_OK) sheaf_credentials_pair_fini(out);
    return status;
}

static void look(const char *path, struct stat *seen) {
    if (stat(path, seen) != 0) memset(seen, 0, sizeof *seen);
}

static int is_other(const struct stat *a, const struct stat *b) {
    return a->st_ino != b->st_ino || a->st_size != b->st_size || a->st_mtim.tv_sec != b->st_mtim.tv_sec ||
           a->st_mtim.tv_nsec != b->st_mtim.tv_nsec || a->st_ctim.tv_sec != b->st_ctim.tv_sec ||
           a->st_ctim.tv_nsec != b->st_ctim.tv_nsec;
}

sheaf_status sheaf_credentials_open(const char *certificate_path, const char *key_path, sheaf_credentials **out,
                                    sheaf_problem *problem) {
    *out = NULL;
    sheaf_credentials *credentials = calloc(1, sizeof *credentials);
    if (credentials == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a certificate");
    atomic_init(&credentials->references, 1);
    pthread_mutex_init(&credentials->lock, NULL);
    credentials->certificate_path = strdup(certificate_path);
    credentials->key_path = strdup(key_path);
    sheaf_status status = credentials->certificate_path != NULL && credentials->key_path != NULL
                              ? SHEAF_OK
                              : sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a certificate");
    look(certificate_path, &credentials->certificate_seen);
    look(key_path, &credentials->key_seen);
    if (status == SHEAF_OK) status = read_pair(credentials, &credentials->pair, problem);
    credentials->pair.generation = 1;
    if (status == SHEAF_OK)
        *out = credentials;
    else
        sheaf_credentials_unref(credentials);
    return status;
}

sheaf_credentials *sheaf_credentials_ref(sheaf_credentials *credentials) {
    atomic_fetch_add_explicit(&credentials->references, 1, memory_order_relaxed);
    return credentials;
}

void sheaf_credentials_unref(sheaf_credentials *credentials) {
    if (credentials == NULL || atomic_fetch_sub_explicit(&credentials->references, 1, memory_order_acq_rel) != 1)
        return;
    sheaf_credentials_pair_fini(&credentials->pair);
    pthread_mutex_destroy(&credentials->lock);
    free(credentials->certificate_path);
    free(credentials->key_path);
    free(credentials);
}

void sheaf_credentials_pair_fini(sheaf_credentials_pair *pair) {
    sheaf_certificate_unref(pair->certificate);
    sheaf_signer_free(pair->signer);
    memset(pair, 0, sizeof *pair);
}

/* Another name in the same file is a mistake of somebody's, and would change who counts as what in mid-round. */
static sheaf_status check_same_peer(const sheaf_certificate *old, const sheaf_certificate *fresh,
                                    sheaf_problem *problem) {
    const sheaf_identity *was = sheaf_certificate_identity(old), *is = sheaf_certificate_identity(fresh);
    if (was->role == is->role && strcmp(was->tenant, is->tenant) == 0 && strcmp(was->name, is->name) == 0)
        return SHEAF_OK;
    return sheaf_problem_set(
        problem, SHEAF_E_MISMATCH, "the new certificate names %s %s of %s, the one in use %s %s of %s",
        sheaf_role_name(is->role), is->name, is->tenant, sheaf_role_name(was->role), was->name, was->tenant);
}

static int take_over(sheaf_credentials *credentials) {
    sheaf_credentials_pair fresh;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = read_pair(credentials, &fresh, &problem);
    if (status == SHEAF_OK) status = check_same_peer(credentials->pair.certificate, fresh.certificate, &problem);
    if (status != SHEAF_OK) {
        sheaf_credentials_pair_fini(&fresh);
        sheaf_log(SHEAF_LOG_ERROR, "certificate_not_reloaded",
                  "status=%s reason=\"%s\" advice=\"the certificate and key that were in use stay in use\"",
                  sheaf_status_name(status), problem.text);
        return 0;
    }
    int same = memcmp(sheaf_certificate_fingerprint(fresh.certificate),
                      sheaf_certificate_fingerprint(credentials->pair.certificate), SHEAF_DIGEST_BYTES) == 0;
    fresh.generation = credentials->pair.generation + (same ? 0 : 1);
    sheaf_credentials_pair_fini(&credentials->pair);
    credentials->pair = fresh;
    char hex[2 * SHEAF_DIGEST_BYTES + 1];
    sheaf_hex(sheaf_certificate_fingerprint(fresh.certificate), SHEAF_DIGEST_BYTES, hex);
    if (!same)
        sheaf_log(SHEAF_LOG_INFO, "certificate_reloaded", "path=%s fingerprint=%s", credentials->certificate_path, hex);
    return !same;
}

int sheaf_credentials_poll(sheaf_credentials *credentials) {
    struct stat certificate, key;
    int changed = 0;
    look(credentials->certificate_path, &certificate);
    look(credentials->key_path, &key);
    pthread_mutex_lock(&credentials->lock);
    if (is_other(&certificate, &credentials->certificate_seen) || is_other(&key, &credentials->key_seen)) {
        credentials->certificate_seen = certificate;
        credentials->key_seen = key;
        changed = take_over(credentials);
    }
    pthread_mutex_unlock(&credentials->lock);
    return changed;
}

void sheaf_credentials_take(sheaf_credentials *credentials, sheaf_credentials_pair *out) {
    pthread_mutex_lock(&credentials->lock);
    out->certificate = sheaf_certificate_ref(credentials->pair.certificate);
    out->signer = sheaf_signer_ref(credentials->pair.signer);
    out->generation = credentials->pair.generation;
    pthread_mutex_unlock(&credentials->lock);
}

uint64_t sheaf_credentials_generation(sheaf_credentials *credentials) {
    pthread_mutex_lock(&credentials->lock);
    uint64_t generation = credentials->pair.generation;
    pthread_mutex_unlock(&credentials->lock);
    return generation;
}
