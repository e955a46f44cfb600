#include "common/trust_content.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include "common/file.h"
#include "common/openssl_problem.h"

#define FILE_BYTES_MAX  (32u << 20) /* a list of half a million serials */
#define FILES_MAX       256
#define AUTHORITY_LEVEL 2 /* OpenSSL's security level for the chain: at least 112 bits, no SHA-1 */

/* --- which files -------------------------------------------------------------------------------------------------- */

static int is_wanted(const struct dirent *item) {
    const char *dot = strrchr(item->d_name, '.');
    return item->d_name[0] != '.' && dot != NULL && (strcmp(dot, ".pem") == 0 || strcmp(dot, ".crl") == 0);
}

typedef struct {
    struct dirent **items; /* NULL: one plain file */
    int count;
} listing;

static listing list_files(const char *path) {
    listing found = {NULL, 1};
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return found;
    found.count = scandir(path, &found.items, is_wanted, alphasort);
    if (found.count < 0) found.count = 0;
    return found;
}

static sheaf_status file_at(const char *path, const listing *files, int i, char out[SHEAF_PATH_BYTES],
                            sheaf_problem *problem) {
    if (files->items != NULL) return sheaf_path_join(out, path, files->items[i]->d_name, problem);
    if (snprintf(out, SHEAF_PATH_BYTES, "%s", path) < (int)SHEAF_PATH_BYTES) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: path is too long", path);
}

static void free_listing(listing *files) {
    for (int i = 0; files->items != NULL && i < files->count; i++) free(files->items[i]);
    free(files->items);
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t size) { /* FNV-1a */
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++) hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

/* ctime too: a replaced file may have been given the old one's mtime and size. */
static uint64_t stamp_path(uint64_t hash, const char *path) {
    listing files = list_files(path);
    for (int i = 0; i < files.count; i++) {
        char file[SHEAF_PATH_BYTES];
        struct stat info;
        if (file_at(path, &files, i, file, NULL) != SHEAF_OK || stat(file, &info) != 0) continue;
        hash = mix(hash, file, strlen(file));
        hash = mix(hash, &info.st_ino, sizeof info.st_ino);
        hash = mix(hash, &info.st_size, sizeof info.st_size);
        hash = mix(hash, &info.st_mtim, sizeof info.st_mtim);
        hash = mix(hash, &info.st_ctim, sizeof info.st_ctim);
    }
    free_listing(&files);
    return hash;
}

uint64_t sheaf_trust_content_stamp(const char *ca_path, const char *crl_path) {
    uint64_t hash = stamp_path(14695981039346656037u, ca_path);
    return crl_path == NULL ? hash : stamp_path(hash, crl_path);
}

/* --- what the store does with lists ------------------------------------------------------------------------------- */

static int policy_index = -1;
static pthread_once_t policy_once = PTHREAD_ONCE_INIT;

static void free_policy(void *parent, void *policy, CRYPTO_EX_DATA *data, int index, long number, void *pointer) {
    (void)parent, (void)data, (void)index, (void)number, (void)pointer;
    free(policy);
}

static void make_policy_index(void) {
    policy_index = CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_X509_STORE, 0, NULL, NULL, NULL, free_policy);
}

static int64_t unix_of(const ASN1_TIME *time) {
    struct tm parts;
    if (time == NULL || ASN1_TIME_to_tm(time, &parts) != 1) return 0;
    return (int64_t)timegm(&parts);
}

/* Lets a list serve beyond its nextUpdate as far as the policy says. One that is not valid yet was signed by the
 * authority all the same: what it revokes is revoked, and a clock that is behind must not lock everybody out. */
static int judge_error(int good, X509_STORE_CTX *context) {
    if (good) return 1;
    int error = X509_STORE_CTX_get_error(context);
    if (error == X509_V_ERR_CRL_NOT_YET_VALID) return 1;
    if (error != X509_V_ERR_CRL_HAS_EXPIRED) return 0;
    const sheaf_trust_policy *policy = X509_STORE_get_ex_data(X509_STORE_CTX_get0_store(context), policy_index);
    const X509_CRL *list = X509_STORE_CTX_get0_current_crl(context);
    if (policy == NULL || policy->crl_expired == SHEAF_CRL_REFUSE || list == NULL) return 0;
    if (policy->crl_grace_s == 0) return 1;
    return (int64_t)time(NULL) <= unix_of(X509_CRL_get0_nextUpdate(list)) + (int64_t)policy->crl_grace_s;
}

static sheaf_status make_store(const sheaf_trust_policy *policy, int with_lists, X509_STORE **out,
                               sheaf_problem *problem) {
    (void)pthread_once(&policy_once, make_policy_index);
    X509_STORE *store = X509_STORE_new();
    sheaf_trust_policy *copy = malloc(sizeof *copy);
    if (copy != NULL) *copy = *policy;
    if (store == NULL || copy == NULL || policy_index < 0 || X509_STORE_set_ex_data(store, policy_index, copy) != 1) {
        free(copy);
        X509_STORE_free(store);
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the authorities");
    }
    X509_VERIFY_PARAM_set_auth_level(X509_STORE_get0_param(store), AUTHORITY_LEVEL);
    X509_STORE_set_verify_cb(store, judge_error);
    /* Both: CRL_CHECK_ALL alone checks nothing, CRL_CHECK alone lets a revoked intermediate through. */
    if (with_lists) (void)X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    *out = store;
    return SHEAF_OK;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef struct {
    STACK_OF(X509) * authorities;
    STACK_OF(X509_CRL) * lists;
} found;

static sheaf_status out_of_memory(sheaf_problem *problem, const char *path) {
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", path);
}

static sheaf_status read_authorities(BIO *text, const char *path, found *into, sheaf_problem *problem) {
    X509 *x509 = NULL;
    while ((x509 = PEM_read_bio_X509(text, NULL, NULL, NULL)) != NULL) {
        if (X509_check_ca(x509) == 0) { /* a peer's, which may stand in the same folder or file */
            X509_free(x509);
            continue;
        }
        if (sk_X509_push(into->authorities, x509) > 0) continue;
        X509_free(x509);
        return out_of_memory(problem, path);
    }
    return SHEAF_OK;
}

static sheaf_status read_lists(BIO *text, const char *path, found *into, sheaf_problem *problem) {
    X509_CRL *list = NULL;
    while ((list = PEM_read_bio_X509_CRL(text, NULL, NULL, NULL)) != NULL) {
        if (sk_X509_CRL_push(into->lists, list) > 0) continue;
        X509_CRL_free(list);
        return out_of_memory(problem, path);
    }
    return SHEAF_OK;
}

static sheaf_status read_file(const char *path, int lists, found *into, sheaf_problem *problem) {
    sheaf_buffer text = {0};
    sheaf_status status = sheaf_file_read_whole(path, FILE_BYTES_MAX, &text, problem);
    if (status != SHEAF_OK) return status;
    BIO *memory = BIO_new_mem_buf(text.data, (int)text.size); /* size <= FILE_BYTES_MAX */
    ERR_clear_error();
    if (memory == NULL)
        status = out_of_memory(problem, path);
    else
        status = lists ? read_lists(memory, path, into, problem) : read_authorities(memory, path, into, problem);
    /* Reading ends on an error in any case: "no start line" is the end of the file. */
    if (status == SHEAF_OK && ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
        status = sheaf_problem_openssl(problem, SHEAF_E_CERTIFICATE, "%s: malformed PEM", path);
    BIO_free(memory);
    sheaf_wipe(text.data, text.size); /* a PEM file may hold a key besides */
    free(text.data);
    return status;
}

static sheaf_status read_path(const char *path, int lists, found *into, sheaf_problem *problem) {
    listing files = list_files(path);
    sheaf_status status = SHEAF_OK;
    if (files.count > FILES_MAX)
        status = sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: holds more than %d files", path, FILES_MAX);
    for (int i = 0; i < files.count && status == SHEAF_OK; i++) {
        char file[SHEAF_PATH_BYTES];
        status = file_at(path, &files, i, file, problem);
        if (status == SHEAF_OK) status = read_file(file, lists, into, problem);
    }
    free_listing(&files);
    if (status != SHEAF_OK || (lists ? sk_X509_CRL_num(into->lists) : sk_X509_num(into->authorities)) > 0)
        return status;
    return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE, "%s: holds no %s in PEM", path,
                             lists ? "revocation list" : "certificate of an authority");
}

/* --- building ----------------------------------------------------------------------------------------------------- */

typedef enum { FORGED, FOREIGN, GENUINE } origin;

/* FORGED: an authority of the list's issuer is here and did not sign it; such a list would refuse everybody. FOREIGN: of an
 * intermediate that peers bring along; OpenSSL checks it then. */
static origin origin_of(const found *from, X509_CRL *list) {
    int named = 0;
    for (int i = 0; i < sk_X509_num(from->authorities); i++) {
        X509 *authority = sk_X509_value(from->authorities, i);
        if (X509_NAME_cmp(X509_get_subject_name(authority), X509_CRL_get_issuer(list)) != 0) continue;
        named = 1;
        if (X509_CRL_verify(list, X509_get0_pubkey(authority)) == 1) return GENUINE;
    }
    return named ? FORGED : FOREIGN;
}

static int are_of_one_issuer(const X509_CRL *a, const X509_CRL *b) {
    return X509_NAME_cmp(X509_CRL_get_issuer(a), X509_CRL_get_issuer(b)) == 0;
}

/* Below, at or above 0, as `a` is the older, of the same age, or the newer by thisUpdate. */
static int compare_times(const X509_CRL *a, const X509_CRL *b) {
    int64_t of_a = unix_of(X509_CRL_get0_lastUpdate(a)), of_b = unix_of(X509_CRL_get0_lastUpdate(b));
    return (of_a > of_b) - (of_a < of_b);
}

/* The same by the lists' numbers. 0, and *known is 0, when one of the two has none. */
static int compare_numbers(const X509_CRL *a, const X509_CRL *b, int *known) {
    ASN1_INTEGER *of_a = X509_CRL_get_ext_d2i(a, NID_crl_number, NULL, NULL);
    ASN1_INTEGER *of_b = X509_CRL_get_ext_d2i(b, NID_crl_number, NULL, NULL);
    *known = of_a != NULL && of_b != NULL;
    int order = *known ? ASN1_INTEGER_cmp(of_a, of_b) : 0;
    ASN1_INTEGER_free(of_a);
    ASN1_INTEGER_free(of_b);
    return order;
}

/* OpenSSL goes by thisUpdate. */
static int is_newest(const found *from, const X509_CRL *list) {
    for (int i = 0; i < sk_X509_CRL_num(from->lists); i++) {
        int known = 0;
        X509_CRL *other = sk_X509_CRL_value(from->lists, i);
        if (other == list || !are_of_one_issuer(other, list)) continue;
        int order = compare_times(other, list);
        if (order > 0 || (order == 0 && compare_numbers(other, list, &known) > 0)) return 0;
    }
    return 1;
}

static sheaf_status remember(STACK_OF(X509_CRL) * newest, X509_CRL *list, sheaf_problem *problem) {
    if (X509_CRL_up_ref(list) == 1) {
        if (sk_X509_CRL_push(newest, list) > 0) return SHEAF_OK;
        X509_CRL_free(list);
    }
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the revocation lists");
}

static sheaf_status add_list(const found *from, X509_CRL *list, const char *path, sheaf_trust_content *out,
                             sheaf_problem *problem) {
    origin whose = origin_of(from, list);
    if (whose == FORGED) {
        return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE,
                                 "%s: a revocation list that its authority has not signed", path);
    }
    int64_t next = unix_of(X509_CRL_get0_nextUpdate(list));
    if (next == 0)
        return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE, "%s: a revocation list without nextUpdate", path);
    if (X509_STORE_add_crl(out->store, list) != 1)
        return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: cannot use a revocation list", path);
    if (!is_newest(from, list)) return SHEAF_OK;
    STACK_OF(X509_REVOKED) *entries = X509_CRL_get_REVOKED(list);
    out->lists++;
    out->revoked += entries == NULL ? 0 : (uint32_t)sk_X509_REVOKED_num(entries);
    if (out->next_update_unix_s == 0 || next < out->next_update_unix_s) out->next_update_unix_s = next;
    return whose == GENUINE ? remember(out->newest, list, problem) : SHEAF_OK;
}

static sheaf_status fill(const found *from, const char *ca_path, const char *crl_path, sheaf_trust_content *out,
                         sheaf_problem *problem) {
    for (int i = 0; i < sk_X509_num(from->authorities); i++) {
        X509 *authority = sk_X509_value(from->authorities, i);
        /* OpenSSL reads extensions at their first use, and all connections share the authorities: so that is here, on
         * one thread. One whose extensions are broken is refused in every verification. */
        (void)X509_check_purpose(authority, -1, 0);
        if (X509_STORE_add_cert(out->store, authority) != 1)
            return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: cannot use an authority", ca_path);
        out->authorities++;
    }
    sheaf_status status = SHEAF_OK;
    for (int i = 0; i < sk_X509_CRL_num(from->lists) && status == SHEAF_OK; i++)
        status = add_list(from, sk_X509_CRL_value(from->lists, i), crl_path, out, problem);
    return status;
}

sheaf_status sheaf_trust_content_read(const char *ca_path, const char *crl_path, const sheaf_trust_policy *policy,
                                      sheaf_trust_content *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    found all = {sk_X509_new_null(), sk_X509_CRL_new_null()};
    (void)ERR_set_mark();
    sheaf_status status = all.authorities != NULL && all.lists != NULL ? SHEAF_OK : out_of_memory(problem, ca_path);
    if (status == SHEAF_OK) status = read_path(ca_path, 0, &all, problem);
    if (status == SHEAF_OK && crl_path != NULL) status = read_path(crl_path, 1, &all, problem);
    if (status == SHEAF_OK && (out->newest = sk_X509_CRL_new_null()) == NULL) status = out_of_memory(problem, ca_path);
    if (status == SHEAF_OK) status = make_store(policy, crl_path != NULL, &out->store, problem);
    if (status == SHEAF_OK) status = fill(&all, ca_path, crl_path, out, problem);
    if (status != SHEAF_OK) sheaf_trust_content_fini(out);
    sk_X509_pop_free(all.authorities, X509_free);
    sk_X509_CRL_pop_free(all.lists, X509_CRL_free);
    (void)ERR_pop_to_mark();
    return status;
}

/* --- what was there before ---------------------------------------------------------------------------------------- */

/* NULL when there is none of this issuer. */
static X509_CRL *find_of_issuer(const sheaf_trust_content *content, const X509_CRL *like) {
    for (int i = 0; i < sk_X509_CRL_num(content->newest); i++) {
        if (are_of_one_issuer(sk_X509_CRL_value(content->newest, i), like))
            return sk_X509_CRL_value(content->newest, i);
    }
    return NULL;
}

static int is_older(const X509_CRL *list, const X509_CRL *than) {
    int known = 0, order = compare_numbers(list, than, &known);
    return (known ? order : compare_times(list, than)) < 0;
}

static sheaf_status refuse_older(const X509_CRL *list, const X509_CRL *than, sheaf_problem *problem) {
    char issuer[128], numbers[2][48] = {"none", "none"};
    const X509_CRL *both[2] = {list, than};
    int by_time = 0;
    (void)X509_NAME_oneline(X509_CRL_get_issuer(list), issuer, (int)sizeof issuer);
    for (int i = 0; i < 2; i++) { /* RFC 5280: at most 20 octets, which are 40 digits */
        ASN1_INTEGER *number = X509_CRL_get_ext_d2i(both[i], NID_crl_number, NULL, NULL);
        char *text = number == NULL ? NULL : i2s_ASN1_INTEGER(NULL, number);
        by_time |= number == NULL;
        if (text != NULL) (void)snprintf(numbers[i], sizeof numbers[i], "%s", text);
        OPENSSL_free(text);
        ASN1_INTEGER_free(number);
    }
    return sheaf_problem_set(problem, SHEAF_E_CONFLICT,
                             "the revocation list of %s is older (number %s) than the one in force (number %s)%s",
                             issuer, numbers[0], numbers[1], by_time ? ", by their thisUpdate" : "");
}

sheaf_status sheaf_trust_content_follow(sheaf_trust_content *fresh, const sheaf_trust_content *before,
                                        sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    for (int i = 0; i < sk_X509_CRL_num(before->newest) && status == SHEAF_OK; i++) {
        X509_CRL *old = sk_X509_CRL_value(before->newest, i), *list = find_of_issuer(fresh, old);
        if (list == NULL)
            status = remember(fresh->newest, old, problem);
        else if (is_older(list, old))
            status = refuse_older(list, old, problem);
    }
    return status;
}

void sheaf_trust_content_fini(sheaf_trust_content *content) {
    X509_STORE_free(content->store);
    sk_X509_CRL_pop_free(content->newest, X509_CRL_free);
    memset(content, 0, sizeof *content);
}
