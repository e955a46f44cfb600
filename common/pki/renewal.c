/* renewal.c - sheaf_authority_renew: a peer's next key and certificate; see authority.h. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include "common/pki/authority.h"
#include "common/pki/peer_files.h"
#include "common/pki/revocation.h"

/* What the next certificate says: what the last one did, unless the caller wants otherwise. */
typedef struct {
    sheaf_peer_files files;
    sheaf_identity identity;
    char alternative_names[SHEAF_ALTERNATIVES_BYTES];
    sheaf_key_type key_type;
} terms;

static sheaf_status read_old(const sheaf_issue_options *options, terms *out, sheaf_problem *problem) {
    sheaf_certificate *old = NULL;
    sheaf_status status = sheaf_certificate_from_pem_file(out->files.certificate, &old, problem);
    if (status != SHEAF_OK) return status;
    out->identity = *sheaf_certificate_identity(old);
    X509 *x509 = sheaf_certificate_x509(old);
    out->key_type = EVP_PKEY_is_a(X509_get0_pubkey(x509), "ED25519") ? SHEAF_KEY_ED25519 : SHEAF_KEY_P256;
    if (options->key_type != SHEAF_KEY_ANY) out->key_type = options->key_type;
    status = sheaf_mint_alternatives_of(x509, out->alternative_names, problem);
    sheaf_certificate_unref(old);
    return status;
}

static sheaf_status mint(sheaf_authority *authority, const sheaf_issue_options *options, const terms *from,
                         EVP_PKEY *key, X509 **out, sheaf_problem *problem) {
    const sheaf_issuer issuer = sheaf_authority_issuer(authority);
    const char *names = options->alternative_names != NULL ? options->alternative_names : from->alternative_names;
    const sheaf_mint_options mint = {.role = options->role,
                                     .tenant = options->tenant,
                                     .name = options->name,
                                     .region = options->region != NULL ? options->region : from->identity.region,
                                     .alternative_names = sheaf_role_serves(options->role) ? names : NULL,
                                     .days = options->days};
    return sheaf_mint_peer(&mint, key, &issuer, out, problem);
}

static sheaf_status supersede(sheaf_authority *authority, const sheaf_issue_options *options, uint64_t overlap_s,
                              const sheaf_issued *fresh, sheaf_problem *problem) {
    const sheaf_revocation_choice others = {
        .name = options->name, .tenant = options->tenant, .role = options->role, .except = fresh->serial};
    size_t count = 0;
    if (overlap_s == 0) return SHEAF_OK;
    return sheaf_authority_revoke(authority, &others, (int64_t)time(NULL) + (int64_t)overlap_s, "superseded", &count,
                                  problem);
}

static sheaf_status renew(sheaf_authority *authority, const sheaf_issue_options *options, uint64_t overlap_s,
                          terms *from, sheaf_issued *out, sheaf_problem *problem) {
    EVP_PKEY *key = NULL;
    X509 *x509 = NULL;
    sheaf_status status = read_old(options, from, problem);
    if (status == SHEAF_OK) status = sheaf_private_key_make(from->key_type, &key, problem);
    if (status == SHEAF_OK) status = mint(authority, options, from, key, &x509, problem);
    memcpy(out->certificate, from->files.certificate, sizeof out->certificate);
    memcpy(out->key, from->files.key, sizeof out->key);
    if (status == SHEAF_OK) status = sheaf_authority_note(authority, x509, out, problem);
    if (status == SHEAF_OK)
        status = sheaf_peer_files_replace(&from->files, key, x509, sheaf_authority_chain(authority), problem);
    if (status == SHEAF_OK) status = supersede(authority, options, overlap_s, out, problem);
    X509_free(x509);
    EVP_PKEY_free(key);
    return status;
}

sheaf_status sheaf_authority_renew(sheaf_authority *authority, const sheaf_issue_options *options, uint64_t overlap_s,
                                   sheaf_issued *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    const char *folder = options->folder != NULL ? options->folder : sheaf_authority_folder(authority);
    terms *from = calloc(1, sizeof *from);
    if (from == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a certificate");
    (void)ERR_set_mark();
    sheaf_status status =
        sheaf_peer_files_place(folder, options->role, options->tenant, options->name, &from->files, problem);
    if (status == SHEAF_OK) status = renew(authority, options, overlap_s, from, out, problem);
    (void)ERR_pop_to_mark();
    free(from);
    return status;
}
