#include "common/pki/peer_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "common/openssl_problem.h"

sheaf_status sheaf_peer_files_exist(const char *path, int *there, sheaf_problem *problem) {
    struct stat info;
    *there = lstat(path, &info) == 0;
    return *there || errno == ENOENT ? SHEAF_OK : sheaf_problem_errno(problem, "look at", path);
}

static sheaf_status join(const char *folder, const char *stem, sheaf_peer_files *out, sheaf_problem *problem) {
    char file[3 * SHEAF_NAME_BYTES + 8];
    (void)snprintf(file, sizeof file, "%s.pem", stem);
    sheaf_status status = sheaf_path_join(out->certificate, folder, file, problem);
    (void)snprintf(file, sizeof file, "%s.key", stem);
    return status == SHEAF_OK ? sheaf_path_join(out->key, folder, file, problem) : status;
}

/* What is no certificate of a peer is nobody's; who wants to write there finds it out. */
static sheaf_status look_for_another_tenant(const char *path, const char *tenant, int *other, sheaf_problem *problem) {
    sheaf_certificate *found = NULL;
    *other = 0;
    sheaf_status status = sheaf_certificate_from_pem_file(path, &found, problem);
    if (status == SHEAF_E_NOT_FOUND || status == SHEAF_E_CERTIFICATE || status == SHEAF_E_DATA) return SHEAF_OK;
    if (status != SHEAF_OK) return status;
    *other = strcmp(sheaf_certificate_identity(found)->tenant, tenant) != 0;
    sheaf_certificate_unref(found);
    return SHEAF_OK;
}

sheaf_status sheaf_peer_files_place(const char *folder, sheaf_role role, const char *tenant, const char *name,
                                    sheaf_peer_files *out, sheaf_problem *problem) {
    /* Names stand in paths below: nothing may be joined before they are known to be harmless. */
    const char *names[] = {tenant, name};
    for (int i = 0; i < 2; i++) {
        if (sheaf_name_ok(names[i])) continue;
        return sheaf_problem_set(problem, SHEAF_E_NAME,
                                 "%s '%.80s': must be 1 to 63 of A-Z a-z 0-9 . _ - and not start with '.'",
                                 i == 0 ? "tenant" : "name", names[i]);
    }
    if (role == SHEAF_ROLE_NONE)
        return sheaf_problem_set(problem, SHEAF_E_USAGE,
                                 "the role must be device, operator, auditor, aggregator or broker");
    char stem[3 * SHEAF_NAME_BYTES];
    (void)snprintf(stem, sizeof stem, "%s-%s", sheaf_role_name(role), name);
    int other = 0;
    sheaf_status status = join(folder, stem, out, problem);
    if (status == SHEAF_OK) status = look_for_another_tenant(out->certificate, tenant, &other, problem);
    if (status != SHEAF_OK || !other) return status;
    (void)snprintf(stem, sizeof stem, "%s-%s@%s", sheaf_role_name(role), name, tenant);
    return join(folder, stem, out, problem);
}

sheaf_status sheaf_peer_files_write(const char *path, X509 *first, struct stack_st_X509 *chain,
                                    sheaf_problem *problem) {
    BIO *memory = BIO_new(BIO_s_mem());
    int done = memory != NULL && PEM_write_bio_X509(memory, first) == 1;
    for (int i = 0; done && i < sk_X509_num(chain); i++) { /* -1 without a chain */
        X509 *next = sk_X509_value(chain, i);
        if ((X509_get_extension_flags(next) & EXFLAG_SI) != 0) continue; /* peers hold the root already */
        done = PEM_write_bio_X509(memory, next) == 1;
    }
    char *text = NULL;
    long size = done ? BIO_get_mem_data(memory, &text) : 0;
    sheaf_status status = size > 0
                              ? sheaf_file_replace(path, sheaf_span_of(text, (size_t)size), 0644, problem)
                              : sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: cannot encode a certificate", path);
    BIO_free(memory);
    return status;
}

static int is_key_of(const char *key_path, const sheaf_certificate *certificate) {
    EVP_PKEY *key = NULL;
    sheaf_key_type type = SHEAF_KEY_ANY;
    int same = sheaf_private_key_read(key_path, &key, &type, NULL) == SHEAF_OK &&
               X509_check_private_key(sheaf_certificate_x509(certificate), key) == 1;
    EVP_PKEY_free(key);
    ERR_clear_error();
    return same;
}

/* A second name for the key that is about to be replaced. One that an earlier renewal left there, cut short, is the key of
 * the certificate still, and stays. */
static sheaf_status keep_old_key(const sheaf_peer_files *files, const char *old, sheaf_problem *problem) {
    sheaf_certificate *certificate = NULL;
    sheaf_status status = sheaf_certificate_from_pem_file(files->certificate, &certificate, problem);
    if (status != SHEAF_OK) return status;
    if (is_key_of(files->key, certificate)) {
        status = sheaf_file_remove(old, problem);
        if (status == SHEAF_OK && link(files->key, old) != 0)
            status = sheaf_problem_errno(problem, "keep the old key as", old);
        if (status == SHEAF_OK) status = sheaf_file_sync_folder_of(old, problem);
    }
    sheaf_certificate_unref(certificate);
    return status;
}

sheaf_status sheaf_peer_files_replace(const sheaf_peer_files *files, const EVP_PKEY *key, X509 *first,
                                      struct stack_st_X509 *chain, sheaf_problem *problem) {
    char old[SHEAF_PATH_BYTES];
    if (snprintf(old, sizeof old, "%s.old", files->key) >= (int)sizeof old)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: path is too long", files->key);
    sheaf_status status = keep_old_key(files, old, problem);
    if (status == SHEAF_OK) status = sheaf_private_key_write(files->key, key, problem);
    if (status == SHEAF_OK) status = sheaf_peer_files_write(files->certificate, first, chain, problem);
    return status == SHEAF_OK ? sheaf_file_remove(old, problem) : status;
}
