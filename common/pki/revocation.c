#include "common/pki/revocation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "common/openssl_problem.h"

#define BACKDATE_S     300 /* for clocks that are behind, as with certificates */
#define LIST_BYTES_MAX (32u << 20)

/* --- choosing ----------------------------------------------------------------------------------------------------- */

static int is_chosen(const sheaf_issued *entry, const sheaf_revocation_choice *choice) {
    if (choice->except != NULL && strcmp(entry->serial, choice->except) == 0) return 0;
    if (choice->serial != NULL) return strcasecmp(entry->serial, choice->serial) == 0;
    return strcmp(entry->identity.name, choice->name) == 0 &&
           (choice->tenant == NULL || strcmp(entry->identity.tenant, choice->tenant) == 0) &&
           (choice->role == SHEAF_ROLE_NONE || entry->identity.role == choice->role);
}

static int is_same_peer(const sheaf_issued *a, const sheaf_issued *b) {
    return a->authority == b->authority && a->identity.role == b->identity.role &&
           strcmp(a->identity.tenant, b->identity.tenant) == 0 && strcmp(a->identity.name, b->identity.name) == 0;
}

/* A name must mean one peer: else revoking it would hit somebody whom nobody thought of. */
static sheaf_status check_one_peer(const sheaf_issued *entries, size_t count, const sheaf_revocation_choice *choice,
                                   sheaf_problem *problem) {
    const sheaf_issued *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!is_chosen(&entries[i], choice)) continue;
        if (first == NULL) first = &entries[i];
        if (is_same_peer(first, &entries[i])) continue;
        return sheaf_problem_set(problem, SHEAF_E_MISMATCH,
                                 "'%s' names several peers; say --role and --tenant, or --serial", choice->name);
    }
    if (first != NULL || choice->except != NULL) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_NOT_FOUND, "no certificate of '%s' was issued here; see sheaf pki list",
                             choice->serial != NULL ? choice->serial : choice->name);
}

static sheaf_status note_chosen(const char *folder, const sheaf_issued *entries, size_t count,
                                const sheaf_revocation_choice *choice, sheaf_revoked *note, size_t *noted,
                                sheaf_problem *problem) {
    sheaf_revoked *revoked = NULL;
    size_t revoked_count = 0;
    sheaf_status status = sheaf_registry_read_revoked(folder, &revoked, &revoked_count, problem);
    for (size_t i = 0; i < count && status == SHEAF_OK; i++) {
        if (!is_chosen(&entries[i], choice)) continue;
        const sheaf_revoked *found = sheaf_registry_find_revoked(revoked, revoked_count, entries[i].serial);
        if (found != NULL && found->at_unix_s <= note->at_unix_s) continue;
        memcpy(note->serial, entries[i].serial, sizeof note->serial);
        status = sheaf_registry_revoke(folder, note, problem);
        if (status == SHEAF_OK) ++*noted;
    }
    free(revoked);
    return status;
}

sheaf_status sheaf_authority_revoke(sheaf_authority *authority, const sheaf_revocation_choice *choice,
                                    int64_t at_unix_s, const char *reason, size_t *count, sheaf_problem *problem) {
    const char *folder = sheaf_authority_folder(authority);
    sheaf_issued *entries = NULL;
    size_t entry_count = 0;
    sheaf_revoked note = {.at_unix_s = at_unix_s};
    *count = 0;
    if (snprintf(note.reason, sizeof note.reason, "%s", reason) >= (int)sizeof note.reason)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "the reason has more than %zu bytes",
                                 sizeof note.reason - 1);
    sheaf_status status = sheaf_registry_read(folder, &entries, &entry_count, problem);
    if (status == SHEAF_OK) status = check_one_peer(entries, entry_count, choice, problem);
    if (status == SHEAF_OK) status = note_chosen(folder, entries, entry_count, choice, &note, count, problem);
    free(entries);
    return status;
}

/* --- the list ----------------------------------------------------------------------------------------------------- */

static sheaf_status failed(sheaf_problem *problem, const char *what) {
    return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot set a revocation list's %s", what);
}

/* The number of the list that stands in the folder; NULL when none does, or none that can be read. */
static BIGNUM *last_number(const char *path) {
    sheaf_buffer text = {0};
    if (sheaf_file_read_whole(path, LIST_BYTES_MAX, &text, NULL) != SHEAF_OK) return NULL;
    BIO *memory = BIO_new_mem_buf(text.data, (int)text.size);
    X509_CRL *list = memory == NULL ? NULL : PEM_read_bio_X509_CRL(memory, NULL, NULL, NULL);
    ASN1_INTEGER *number = list == NULL ? NULL : X509_CRL_get_ext_d2i(list, NID_crl_number, NULL, NULL);
    BIGNUM *value = number == NULL ? NULL : ASN1_INTEGER_to_BN(number, NULL);
    ASN1_INTEGER_free(number);
    X509_CRL_free(list);
    BIO_free(memory);
    free(text.data);
    return value;
}

static sheaf_status set_number(X509_CRL *list, const char *path, char out[SHEAF_SERIAL_BYTES], sheaf_problem *problem) {
    BIGNUM *last = last_number(path), *next = BN_new();
    char *text = NULL;
    int done = next != NULL && BN_set_word(next, (BN_ULONG)time(NULL)) == 1;
    if (done && last != NULL && BN_cmp(next, last) <= 0)
        done = BN_copy(next, last) != NULL && BN_add_word(next, 1) == 1;
    ASN1_INTEGER *number = done ? BN_to_ASN1_INTEGER(next, NULL) : NULL;
    done = number != NULL && X509_CRL_add1_ext_i2d(list, NID_crl_number, number, 0, X509V3_ADD_DEFAULT) == 1;
    if (done) text = BN_bn2dec(next);
    done = text != NULL && snprintf(out, SHEAF_SERIAL_BYTES, "%s", text) < (int)SHEAF_SERIAL_BYTES;
    OPENSSL_free(text);
    ASN1_INTEGER_free(number);
    BN_free(next);
    BN_free(last);
    return done ? SHEAF_OK : failed(problem, "number");
}

static sheaf_status set_times(X509_CRL *list, uint32_t days, char out[SHEAF_RFC3339_BYTES], sheaf_problem *problem) {
    time_t now = time(NULL);
    struct tm parts;
    ASN1_TIME *from = X509_time_adj_ex(NULL, 0, -BACKDATE_S, &now), *until = X509_time_adj_ex(NULL, (int)days, 0, &now);
    int done = from != NULL && until != NULL && X509_CRL_set1_lastUpdate(list, from) == 1 &&
               X509_CRL_set1_nextUpdate(list, until) == 1 && ASN1_TIME_to_tm(until, &parts) == 1 &&
               strftime(out, SHEAF_RFC3339_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts) > 0;
    ASN1_TIME_free(from);
    ASN1_TIME_free(until);
    return done ? SHEAF_OK : failed(problem, "times");
}

static sheaf_status add_entry(X509_CRL *list, const sheaf_revoked *entry, sheaf_problem *problem) {
    X509_REVOKED *revoked = X509_REVOKED_new();
    BIGNUM *number = NULL;
    ASN1_INTEGER *serial = BN_hex2bn(&number, entry->serial) > 0 ? BN_to_ASN1_INTEGER(number, NULL) : NULL;
    ASN1_TIME *at = ASN1_TIME_set(NULL, (time_t)entry->at_unix_s);
    int done = revoked != NULL && serial != NULL && at != NULL && X509_REVOKED_set_serialNumber(revoked, serial) == 1 &&
               X509_REVOKED_set_revocationDate(revoked, at) == 1 && X509_CRL_add0_revoked(list, revoked) == 1;
    ASN1_TIME_free(at);
    ASN1_INTEGER_free(serial);
    BN_free(number);
    if (done) return SHEAF_OK;
    X509_REVOKED_free(revoked);
    return failed(problem, "entry");
}

static sheaf_status add_entries(X509_CRL *list, const char *folder, size_t *count, sheaf_problem *problem) {
    sheaf_revoked *entries = NULL;
    size_t entry_count = 0;
    int64_t now = (int64_t)time(NULL);
    sheaf_status status = sheaf_registry_read_revoked(folder, &entries, &entry_count, problem);
    for (size_t i = 0; i < entry_count && status == SHEAF_OK; i++) {
        /* Once for each serial, from its earliest time. */
        if (entries[i].at_unix_s > now) continue;
        if (sheaf_registry_find_revoked(entries, entry_count, entries[i].serial) != &entries[i]) continue;
        status = add_entry(list, &entries[i], problem);
        ++*count;
    }
    free(entries);
    return status;
}

static sheaf_status sign(X509_CRL *list, const sheaf_issuer *issuer, sheaf_problem *problem) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer->certificate, NULL, NULL, list, 0);
    X509_EXTENSION *key_id = X509V3_EXT_conf_nid(NULL, &context, NID_authority_key_identifier, "keyid:always");
    int done = key_id != NULL && X509_CRL_add_ext(list, key_id, -1) == 1 && X509_CRL_sort(list) == 1 &&
               X509_CRL_sign(list, issuer->key, sheaf_private_key_hash(issuer->key_type)) > 0;
    X509_EXTENSION_free(key_id);
    return done ? SHEAF_OK : failed(problem, "signature");
}

static sheaf_status write_list(const char *path, X509_CRL *list, sheaf_problem *problem) {
    BIO *memory = BIO_new(BIO_s_mem());
    char *text = NULL;
    long size = memory != NULL && PEM_write_bio_X509_CRL(memory, list) == 1 ? BIO_get_mem_data(memory, &text) : 0;
    sheaf_status status = size > 0 ? sheaf_file_replace(path, sheaf_span_of(text, (size_t)size), 0644, problem)
                                   : failed(problem, "encoding");
    BIO_free(memory);
    return status;
}

static sheaf_status build(sheaf_authority *authority, uint32_t days, X509_CRL *list, sheaf_published *out,
                          sheaf_problem *problem) {
    const sheaf_issuer issuer = sheaf_authority_issuer(authority);
    const char *folder = sheaf_authority_folder(authority);
    sheaf_status status = sheaf_path_join(out->path, folder, SHEAF_AUTHORITY_LIST, problem);
    if (status != SHEAF_OK) return status;
    if (X509_CRL_set_version(list, X509_CRL_VERSION_2) != 1 ||
        X509_CRL_set_issuer_name(list, X509_get_subject_name(issuer.certificate)) != 1)
        return failed(problem, "issuer");
    status = set_times(list, days, out->next_update, problem);
    if (status == SHEAF_OK) status = set_number(list, out->path, out->number, problem);
    if (status == SHEAF_OK) status = add_entries(list, folder, &out->revoked, problem);
    if (status == SHEAF_OK) status = sign(list, &issuer, problem);
    return status == SHEAF_OK ? write_list(out->path, list, problem) : status;
}

sheaf_status sheaf_authority_publish(sheaf_authority *authority, uint32_t days, sheaf_published *out,
                                     sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    if (days == 0 || days > SHEAF_MINT_DAYS_MAX)
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "days must be 1 to %u", SHEAF_MINT_DAYS_MAX);
    (void)ERR_set_mark();
    X509_CRL *list = X509_CRL_new();
    sheaf_status status = list != NULL ? build(authority, days, list, out, problem)
                                       : sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a revocation list");
    X509_CRL_free(list);
    (void)ERR_pop_to_mark();
    return status;
}
