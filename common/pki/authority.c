#include "common/pki/authority.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "common/openssl_problem.h"
#include "common/pki/mint.h"
#include "common/pki/peer_files.h"

#define CA_FILE_BYTES_MAX 65536u
#define CHAIN_MAX         8

struct sheaf_authority {
    char folder[SHEAF_PATH_BYTES];
    int lock;
    STACK_OF(X509) * chain; /* ca.pem: the issuer first */
    EVP_PKEY *key;
    sheaf_key_type key_type;
};

/* --- folder and lock ---------------------------------------------------------------------------------------------- */

/* Who may write the folder could exchange the authority. */
static sheaf_status check_folder(const char *folder, sheaf_problem *problem) {
    struct stat info;
    if (stat(folder, &info) != 0) return sheaf_problem_errno(problem, "look at", folder);
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) == 0) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_PERMISSION, "%s: group or others may write this folder; chmod 700 it",
                             folder);
}

static sheaf_status take_lock(const char *folder, int *fd, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = check_folder(folder, problem);
    if (status == SHEAF_OK) status = sheaf_path_join(path, folder, "lock", problem);
    if (status != SHEAF_OK) return status;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) return sheaf_problem_errno(problem, "open", path);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (fcntl(*fd, F_SETLKW, &whole) != 0) {
        if (errno == EINTR) continue;
        status = sheaf_problem_errno(problem, "lock", path);
        close(*fd);
        *fd = -1;
        return status;
    }
    return SHEAF_OK;
}

/* --- certificates as text ----------------------------------------------------------------------------------------- */

static sheaf_status format_time(const ASN1_TIME *time, char out[SHEAF_RFC3339_BYTES], sheaf_problem *problem) {
    struct tm parts;
    if (ASN1_TIME_to_tm(time, &parts) != 1 || strftime(out, SHEAF_RFC3339_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
        return sheaf_problem_openssl(problem, SHEAF_E_CERTIFICATE, "a certificate's time cannot be read");
    }
    return SHEAF_OK;
}

static sheaf_status format_fingerprint(const X509 *x509, char out[2 * SHEAF_DIGEST_BYTES + 1], sheaf_problem *problem) {
    uint8_t digest[SHEAF_DIGEST_BYTES];
    if (X509_digest(x509, EVP_sha256(), digest, NULL) != 1) {
        return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot hash a certificate");
    }
    sheaf_hex(digest, sizeof digest, out);
    return SHEAF_OK;
}

/* --- create ------------------------------------------------------------------------------------------------------- */

static sheaf_status refuse_existing(const char *certificate, const char *key, sheaf_problem *problem) {
    int has_certificate = 0, has_key = 0;
    sheaf_status status = sheaf_peer_files_exist(certificate, &has_certificate, problem);
    if (status == SHEAF_OK) status = sheaf_peer_files_exist(key, &has_key, problem);
    if (status != SHEAF_OK || (!has_certificate && !has_key)) return status;
    return sheaf_problem_set(
        problem, SHEAF_E_EXISTS,
        "%s: an authority is already there; a new root would make every certificate of the old one "
        "worthless. To begin anew on purpose, choose another folder or move this one away%s",
        has_certificate ? certificate : key,
        has_certificate ? "" : " (this key has no certificate: an earlier init was cut short)");
}

static sheaf_status mint(const sheaf_authority_options *options, EVP_PKEY *key, sheaf_key_type type, X509 **out,
                         sheaf_problem *problem) {
    if (options->parent == NULL)
        return sheaf_mint_root(options->name, options->days, options->may_have_others_below, key, type, out, problem);
    const sheaf_issuer issuer = sheaf_authority_issuer(options->parent);
    return sheaf_mint_authority(options->name, options->days, key, &issuer, out, problem);
}

/* In the list of the authority above, so that it can be revoked there. */
static sheaf_status note_below(const sheaf_authority_options *options, const char *certificate, X509 *x509,
                               sheaf_problem *problem) {
    sheaf_issued *entry = calloc(1, sizeof *entry);
    if (entry == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for an entry");
    entry->authority = 1;
    (void)snprintf(entry->identity.name, sizeof entry->identity.name, "%s", options->name);
    (void)snprintf(entry->certificate, sizeof entry->certificate, "%s", certificate);
    sheaf_status status = format_fingerprint(x509, entry->fingerprint, problem);
    if (status == SHEAF_OK) status = sheaf_registry_serial_of(x509, entry->serial, problem);
    if (status == SHEAF_OK) status = format_time(X509_get0_notBefore(x509), entry->not_before, problem);
    if (status == SHEAF_OK) status = format_time(X509_get0_notAfter(x509), entry->not_after, problem);
    if (status == SHEAF_OK) status = sheaf_registry_add(options->parent->folder, entry, problem);
    free(entry);
    return status;
}

/* Its own certificate, then those above it up to the root: what `ca` may name, and what is put behind peers' own. */
static sheaf_status write_authority(const char *path, X509 *x509, const sheaf_authority *parent,
                                    sheaf_problem *problem) {
    BIO *memory = BIO_new(BIO_s_mem());
    int done = memory != NULL && PEM_write_bio_X509(memory, x509) == 1;
    for (int i = 0; done && parent != NULL && i < sk_X509_num(parent->chain); i++)
        done = PEM_write_bio_X509(memory, sk_X509_value(parent->chain, i)) == 1;
    char *text = NULL;
    long size = done ? BIO_get_mem_data(memory, &text) : 0;
    sheaf_status status = size > 0
                              ? sheaf_file_replace(path, sheaf_span_of(text, (size_t)size), 0644, problem)
                              : sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: cannot encode a certificate", path);
    BIO_free(memory);
    return status;
}

/* ca.key is the key, or says in which token it is. */
static sheaf_status write_key(const char *path, const char *uri, const EVP_PKEY *key, sheaf_problem *problem) {
    if (uri == NULL) return sheaf_private_key_write(path, key, problem);
    return sheaf_file_replace(path, sheaf_span_of(uri, strlen(uri)), 0600, problem);
}

static sheaf_status create_files(const char *folder, const sheaf_authority_options *options, sheaf_problem *problem) {
    char certificate[SHEAF_PATH_BYTES], key_path[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_path_join(certificate, folder, SHEAF_AUTHORITY_CERTIFICATE, problem);
    if (status == SHEAF_OK) status = sheaf_path_join(key_path, folder, SHEAF_AUTHORITY_KEY, problem);
    if (status == SHEAF_OK) status = refuse_existing(certificate, key_path, problem);
    if (status != SHEAF_OK) return status;
    sheaf_key_type type = options->key_type == SHEAF_KEY_ANY ? SHEAF_KEY_P256 : options->key_type;
    EVP_PKEY *key = NULL;
    X509 *x509 = NULL;
    status = options->key_uri != NULL ? sheaf_private_key_read(options->key_uri, &key, &type, problem)
                                      : sheaf_private_key_make(type, &key, problem);
    if (status == SHEAF_OK) status = mint(options, key, type, &x509, problem);
    if (status == SHEAF_OK) status = write_key(key_path, options->key_uri, key, problem);
    if (status == SHEAF_OK && options->parent != NULL) status = note_below(options, certificate, x509, problem);
    if (status == SHEAF_OK) status = write_authority(certificate, x509, options->parent, problem);
    X509_free(x509);
    EVP_PKEY_free(key);
    return status;
}

sheaf_status sheaf_authority_create(const char *folder, const sheaf_authority_options *options,
                                    sheaf_problem *problem) {
    /* Asked before anything is made, so that a refusal leaves no folder behind. */
    if (!sheaf_name_ok(options->name)) {
        return sheaf_problem_set(problem, SHEAF_E_NAME,
                                 "name '%.80s': must be 1 to 63 of A-Z a-z 0-9 . _ - and not start with '.'",
                                 options->name);
    }
    int lock = -1;
    sheaf_status status = sheaf_file_make_folder(folder, problem);
    if (status == SHEAF_OK) status = take_lock(folder, &lock, problem);
    if (status != SHEAF_OK) return status;
    (void)ERR_set_mark();
    status = create_files(folder, options, problem);
    (void)ERR_pop_to_mark();
    close(lock);
    return status;
}

/* --- open --------------------------------------------------------------------------------------------------------- */

static sheaf_status parse_chain(const sheaf_buffer *text, const char *path, STACK_OF(X509) * chain,
                                sheaf_problem *problem) {
    BIO *memory = BIO_new_mem_buf(text->data, (int)text->size); /* size <= CA_FILE_BYTES_MAX */
    X509 *x509 = NULL;
    while (memory != NULL && sk_X509_num(chain) < CHAIN_MAX &&
           (x509 = PEM_read_bio_X509(memory, NULL, NULL, NULL)) != NULL) {
        if (sk_X509_push(chain, x509) <= 0) X509_free(x509);
    }
    BIO_free(memory);
    X509 *first = sk_X509_num(chain) > 0 ? sk_X509_value(chain, 0) : NULL;
    /* 1: CA:TRUE, and keyCertSign wherever there is a keyUsage. */
    if (first != NULL && X509_check_ca(first) == 1) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE, "%s: not the certificate of an authority in PEM", path);
}

static sheaf_status load_chain(const char *folder, STACK_OF(X509) * *out, sheaf_problem *problem) {
    *out = NULL;
    char path[SHEAF_PATH_BYTES];
    sheaf_buffer text = {0};
    sheaf_status status = sheaf_path_join(path, folder, SHEAF_AUTHORITY_CERTIFICATE, problem);
    if (status == SHEAF_OK) status = sheaf_file_read_whole(path, CA_FILE_BYTES_MAX, &text, problem);
    if (status == SHEAF_E_NOT_FOUND) {
        return sheaf_problem_set(problem, status, "%s: no authority is there; make one with sheaf pki init", path);
    }
    if (status != SHEAF_OK) return status;
    STACK_OF(X509) *chain = sk_X509_new_null();
    status = chain != NULL ? parse_chain(&text, path, chain, problem)
                           : sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", path);
    free(text.data);
    if (status == SHEAF_OK)
        *out = chain;
    else
        sk_X509_pop_free(chain, X509_free);
    return status;
}

static sheaf_status load(sheaf_authority *authority, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = load_chain(authority->folder, &authority->chain, problem);
    if (status == SHEAF_OK) status = sheaf_path_join(path, authority->folder, SHEAF_AUTHORITY_KEY, problem);
    if (status == SHEAF_OK) status = sheaf_private_key_read(path, &authority->key, &authority->key_type, problem);
    if (status != SHEAF_OK) return status;
    if (X509_check_private_key(sk_X509_value(authority->chain, 0), authority->key) == 1) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_MISMATCH, "%s: not the key of the certificate beside it", path);
}

sheaf_status sheaf_authority_open(const char *folder, sheaf_authority **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_authority *authority = calloc(1, sizeof *authority);
    if (authority == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", folder);
    authority->lock = -1;
    sheaf_status status = SHEAF_OK;
    if (snprintf(authority->folder, sizeof authority->folder, "%s", folder) >= (int)sizeof authority->folder) {
        status = sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: path is too long", folder);
    }
    (void)ERR_set_mark();
    if (status == SHEAF_OK) status = take_lock(folder, &authority->lock, problem);
    if (status == SHEAF_OK) status = load(authority, problem);
    (void)ERR_pop_to_mark();
    if (status == SHEAF_OK)
        *out = authority;
    else
        sheaf_authority_close(authority);
    return status;
}

void sheaf_authority_close(sheaf_authority *authority) {
    if (authority == NULL) return;
    EVP_PKEY_free(authority->key);
    sk_X509_pop_free(authority->chain, X509_free);
    if (authority->lock >= 0) close(authority->lock);
    free(authority);
}

sheaf_status sheaf_authority_describe(const char *folder, sheaf_authority_summary *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    STACK_OF(X509) *chain = NULL;
    (void)ERR_set_mark();
    sheaf_status status = load_chain(folder, &chain, problem);
    X509 *first = status == SHEAF_OK ? sk_X509_value(chain, 0) : NULL;
    if (status == SHEAF_OK) status = format_time(X509_get0_notAfter(first), out->not_after, problem);
    if (status == SHEAF_OK) status = format_fingerprint(first, out->fingerprint, problem);
    if (status == SHEAF_OK) status = sheaf_path_join(out->certificate, folder, SHEAF_AUTHORITY_CERTIFICATE, problem);
    if (status == SHEAF_OK) {
        (void)X509_NAME_get_text_by_NID(X509_get_subject_name(first), NID_commonName, out->name, sizeof out->name);
    }
    sk_X509_pop_free(chain, X509_free);
    (void)ERR_pop_to_mark();
    return status;
}

/* --- issue -------------------------------------------------------------------------------------------------------- */

/* A renewed certificate must name the same peer: else somebody else would inherit its key. */
static sheaf_status check_renewed(const char *path, const sheaf_issue_options *options, sheaf_problem *problem) {
    sheaf_certificate *old = NULL;
    sheaf_status status = sheaf_certificate_from_pem_file(path, &old, problem);
    if (status != SHEAF_OK) return status;
    const sheaf_identity *identity = sheaf_certificate_identity(old);
    if (strcmp(identity->tenant, options->tenant) != 0 || strcmp(identity->name, options->name) != 0 ||
        identity->role != options->role) {
        status = sheaf_problem_set(problem, SHEAF_E_MISMATCH, "%s: names %s %s of tenant %s, not %s %s of tenant %s",
                                   path, sheaf_role_name(identity->role), identity->name, identity->tenant,
                                   sheaf_role_name(options->role), options->name, options->tenant);
    }
    sheaf_certificate_unref(old);
    return status;
}

static sheaf_status check_existing(const char *path, const sheaf_issue_options *options, sheaf_problem *problem) {
    int there = 0;
    sheaf_status status = sheaf_peer_files_exist(path, &there, problem);
    if (status != SHEAF_OK) return status;
    if (there && options->renew) return check_renewed(path, options, problem);
    if (options->renew) return sheaf_problem_set(problem, SHEAF_E_NOT_FOUND, "%s: no certificate to renew", path);
    if (!there) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_EXISTS,
                             "%s: is there already; renew it, or put another in a folder of its own", path);
}

/* The key file that is there, or a new key, which is not written yet. */
static sheaf_status get_key(const char *path, sheaf_key_type wanted, EVP_PKEY **key, int *is_new,
                            sheaf_problem *problem) {
    sheaf_key_type type = SHEAF_KEY_ANY;
    int there = 0;
    sheaf_status status = sheaf_peer_files_exist(path, &there, problem);
    if (status != SHEAF_OK) return status;
    *is_new = !there;
    if (!there) return sheaf_private_key_make(wanted, key, problem);
    status = sheaf_private_key_read(path, key, &type, problem);
    if (status != SHEAF_OK || wanted == SHEAF_KEY_ANY || wanted == type) return status;
    return sheaf_problem_set(problem, SHEAF_E_MISMATCH, "%s: the key that is there is %s, not %s", path,
                             sheaf_key_type_name(type), sheaf_key_type_name(wanted));
}

/* What was made is read back by the code that will judge it: a certificate that we would refuse never leaves. */
static sheaf_status describe(X509 *x509, sheaf_issued *out, sheaf_problem *problem) {
    unsigned char *der = NULL;
    sheaf_certificate *certificate = NULL;
    int size = i2d_X509(x509, &der);
    if (size <= 0) return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot encode a certificate");
    sheaf_status status = sheaf_certificate_read(sheaf_span_of(der, (size_t)size), &certificate, problem);
    OPENSSL_free(der);
    if (status != SHEAF_OK) return status;
    out->identity = *sheaf_certificate_identity(certificate);
    sheaf_hex(sheaf_certificate_fingerprint(certificate), SHEAF_DIGEST_BYTES, out->fingerprint);
    sheaf_certificate_unref(certificate);
    status = sheaf_registry_serial_of(x509, out->serial, problem);
    if (status == SHEAF_OK) status = format_time(X509_get0_notBefore(x509), out->not_before, problem);
    return status == SHEAF_OK ? format_time(X509_get0_notAfter(x509), out->not_after, problem) : status;
}

const char *sheaf_authority_folder(const sheaf_authority *authority) { return authority->folder; }

sheaf_issuer sheaf_authority_issuer(const sheaf_authority *authority) {
    return (sheaf_issuer){sk_X509_value(authority->chain, 0), authority->key, authority->key_type};
}

struct stack_st_X509 *sheaf_authority_chain(const sheaf_authority *authority) {
    return authority->chain;
}

sheaf_status sheaf_authority_note(sheaf_authority *authority, X509 *x509, sheaf_issued *out, sheaf_problem *problem) {
    sheaf_status status = describe(x509, out, problem);
    return status == SHEAF_OK ? sheaf_registry_add(authority->folder, out, problem) : status;
}

static void name_files(sheaf_issued *out, const sheaf_peer_files *files) {
    memcpy(out->certificate, files->certificate, sizeof out->certificate);
    memcpy(out->key, files->key, sizeof out->key);
}

/* Nothing is written before all that can be refused has been made. */
static sheaf_status issue(sheaf_authority *authority, const sheaf_issue_options *options, sheaf_issued *out,
                          sheaf_problem *problem) {
    const sheaf_mint_options mint = {.role = options->role,
                                     .tenant = options->tenant,
                                     .name = options->name,
                                     .region = options->region,
                                     .alternative_names = options->alternative_names,
                                     .days = options->days};
    const sheaf_issuer issuer = sheaf_authority_issuer(authority);
    EVP_PKEY *key = NULL;
    X509 *x509 = NULL;
    int is_new = 0;
    const char *folder = options->folder != NULL ? options->folder : authority->folder;
    sheaf_peer_files files;
    sheaf_status status =
        sheaf_peer_files_place(folder, options->role, options->tenant, options->name, &files, problem);
    if (status == SHEAF_OK) name_files(out, &files);
    if (status == SHEAF_OK) status = check_existing(out->certificate, options, problem);
    if (status == SHEAF_OK) status = get_key(out->key, options->key_type, &key, &is_new, problem);
    if (status == SHEAF_OK) status = sheaf_mint_peer(&mint, key, &issuer, &x509, problem);
    if (status == SHEAF_OK) status = describe(x509, out, problem);
    if (status == SHEAF_OK && options->folder != NULL) status = sheaf_file_make_folder(options->folder, problem);
    if (status == SHEAF_OK && is_new) status = sheaf_private_key_write(out->key, key, problem);
    if (status == SHEAF_OK) status = sheaf_registry_add(authority->folder, out, problem);
    if (status == SHEAF_OK) status = sheaf_peer_files_write(out->certificate, x509, authority->chain, problem);
    X509_free(x509);
    EVP_PKEY_free(key);
    return status;
}

sheaf_status sheaf_authority_issue(sheaf_authority *authority, const sheaf_issue_options *options, sheaf_issued *out,
                                   sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    (void)ERR_set_mark();
    sheaf_status status = issue(authority, options, out, problem);
    (void)ERR_pop_to_mark();
    return status;
}
