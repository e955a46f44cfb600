#include "tests/kit/pki_kit.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

typedef struct {
    X509 *certificate;
    EVP_PKEY *key;
} authority;

typedef struct entry entry;
struct entry {
    entry *next;
    pki_kit_files files;
    char certificate[160], der[160], key[160];
};

struct pki_kit {
    char folder[96];
    char ca_path[128], other_ca_path[128];
    authority ca, other_ca;
    entry *entries;
    unsigned issued;
};

static void need(int done, const char *what) {
    if (done) return;
    fprintf(stderr, "pki_kit: %s failed\n", what);
    ERR_print_errors_fp(stderr);
    abort();
}

static EVP_PKEY *make_key(const char *type) {
    EVP_PKEY *key = NULL;
    if (type == NULL || strcmp(type, "p256") == 0)
        key = EVP_EC_gen("P-256");
    else if (strcmp(type, "p384") == 0)
        key = EVP_EC_gen("P-384");
    else if (strcmp(type, "rsa") == 0)
        key = EVP_RSA_gen(2048);
    else if (strcmp(type, "ed25519") == 0)
        key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    need(key != NULL, "key generation");
    return key;
}

static void add_extension(X509 *x509, int nid, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, x509, x509, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    need(extension != NULL && X509_add_ext(x509, extension, -1) == 1, value);
    X509_EXTENSION_free(extension);
}

static void add_name(X509_NAME *name, const char *field, const char *value) {
    if (value == NULL) return;
    need(X509_NAME_add_entry_by_txt(name, field, V_ASN1_UTF8STRING, (const unsigned char *)value, -1, -1, 0) == 1,
         field);
}

static X509 *begin(EVP_PKEY *key, long not_before_s, long not_after_s) {
    X509 *x509 = X509_new();
    uint64_t serial = 0;
    need(x509 != NULL && RAND_bytes((unsigned char *)&serial, sizeof serial) == 1, "a serial");
    need(X509_set_version(x509, X509_VERSION_3) == 1, "version");
    need(ASN1_INTEGER_set_uint64(X509_get_serialNumber(x509), serial >> 1) == 1, "serial");
    need(X509_gmtime_adj(X509_getm_notBefore(x509), not_before_s) != NULL, "notBefore");
    need(X509_gmtime_adj(X509_getm_notAfter(x509), not_after_s) != NULL, "notAfter");
    need(X509_set_pubkey(x509, key) == 1, "public key");
    return x509;
}

static const EVP_MD *hash_of(const EVP_PKEY *key) { return EVP_PKEY_is_a(key, "ED25519") ? NULL : EVP_sha256(); }

static authority make_authority(const char *name) {
    authority made = {NULL, make_key(NULL)};
    made.certificate = begin(made.key, -3600, 30L * 86400);
    add_name(X509_get_subject_name(made.certificate), "CN", name);
    need(X509_set_issuer_name(made.certificate, X509_get_subject_name(made.certificate)) == 1, "issuer");
    add_extension(made.certificate, NID_basic_constraints, "critical,CA:TRUE");
    add_extension(made.certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
    add_extension(made.certificate, NID_subject_key_identifier, "hash");
    need(X509_sign(made.certificate, made.key, EVP_sha256()) > 0, "signing");
    return made;
}

static FILE *create(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "wb");
    need(file != NULL, path);
    return file;
}

static void write_pem(const char *path, X509 *x509) {
    FILE *file = create(path);
    need(PEM_write_X509(file, x509) == 1, path);
    need(fclose(file) == 0, path);
}

static void write_der(const char *path, X509 *x509) {
    FILE *file = create(path);
    need(i2d_X509_fp(file, x509) == 1, path);
    need(fclose(file) == 0, path);
}

static void write_key(const char *path, EVP_PKEY *key) {
    FILE *file = create(path);
    need(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1, path);
    need(fclose(file) == 0, path);
}

pki_kit *pki_kit_make(void) {
    pki_kit *kit = calloc(1, sizeof *kit);
    need(kit != NULL, "memory");
    const char *base = getenv("TMPDIR");
    snprintf(kit->folder, sizeof kit->folder, "%s/sheaf-pki-XXXXXX", base != NULL && strlen(base) < 64 ? base : "/tmp");
    need(mkdtemp(kit->folder) != NULL, kit->folder);
    snprintf(kit->ca_path, sizeof kit->ca_path, "%s/ca.pem", kit->folder);
    snprintf(kit->other_ca_path, sizeof kit->other_ca_path, "%s/other-ca.pem", kit->folder);
    kit->ca = make_authority("kit-ca");
    kit->other_ca = make_authority("kit-other-ca");
    write_pem(kit->ca_path, kit->ca.certificate);
    write_pem(kit->other_ca_path, kit->other_ca.certificate);
    return kit;
}

/* Only plain files stand in the folder: the kit's, and what a test put there. */
static void remove_folder(const char *folder) {
    DIR *listing = opendir(folder);
    for (struct dirent *item = listing == NULL ? NULL : readdir(listing); item != NULL; item = readdir(listing)) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, item->d_name);
        if (item->d_name[0] != '.') unlink(path);
    }
    if (listing != NULL) closedir(listing);
    rmdir(folder);
}

static void drop_authority(authority *gone) {
    X509_free(gone->certificate);
    EVP_PKEY_free(gone->key);
}

void pki_kit_free(pki_kit *kit) {
    if (kit == NULL) return;
    for (entry *at = kit->entries, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
    drop_authority(&kit->ca);
    drop_authority(&kit->other_ca);
    remove_folder(kit->folder);
    free(kit);
}

const char *pki_kit_folder(const pki_kit *kit) { return kit->folder; }
const char *pki_kit_ca(const pki_kit *kit) { return kit->ca_path; }
const char *pki_kit_other_ca(const pki_kit *kit) { return kit->other_ca_path; }

static void name_subject(X509 *x509, const char *role, const char *name, const pki_kit_options *options) {
    X509_NAME *subject = X509_get_subject_name(x509);
    add_name(subject, "C", options->country);
    if (!options->no_tenant) add_name(subject, "O", options->tenant != NULL ? options->tenant : "acme");
    add_name(subject, "ST", options->region);
    add_name(subject, "OU", role);
    char text[128];
    int size = snprintf(text, sizeof text - 2, "%s", name);
    need(size >= 0 && size < (int)sizeof text - 2, "a name that fits");
    if (options->nul_in_name) memcpy(text + size + 1, "x", 2), size += 2;
    int type = options->name_type != 0 ? options->name_type : V_ASN1_UTF8STRING;
    need(X509_NAME_add_entry_by_txt(subject, "CN", type, (const unsigned char *)text, size, -1, 0) == 1, "CN");
    add_name(subject, "CN", options->second_name);
}

static void extend(X509 *x509, const char *role, const pki_kit_options *options) {
    int aggregates = strcmp(role, "aggregator") == 0, serves = aggregates || strcmp(role, "broker") == 0;
    const char *eku = options->eku != NULL ? options->eku
                      : aggregates         ? "serverAuth,clientAuth"
                      : serves             ? "serverAuth"
                                           : "clientAuth";
    const char *usage = options->key_usage != NULL ? options->key_usage : "critical,digitalSignature";
    const char *san = options->san != NULL ? options->san : serves ? "DNS:localhost,IP:127.0.0.1" : "";
    add_extension(x509, NID_basic_constraints, options->is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
    if (usage[0] != '\0') add_extension(x509, NID_key_usage, usage);
    if (eku[0] != '\0') add_extension(x509, NID_ext_key_usage, eku);
    if (options->duplicate_eku) add_extension(x509, NID_ext_key_usage, eku);
    if (san[0] != '\0') add_extension(x509, NID_subject_alt_name, san);
    /* Any object will do that OpenSSL knows by number but not as an extension. */
    if (options->unknown_critical) add_extension(x509, NID_commonName, "critical,DER:0500");
}

static void open_entry(pki_kit *kit, entry *made, const char *role, const char *name) {
    unsigned number = kit->issued++;
    /* Names of tests may hold what a file name must not. */
    int plain = strpbrk(name, "/") == NULL && strpbrk(role, "/") == NULL && strlen(name) + strlen(role) < 40;
    const char *shown = plain ? name : "odd";
    const char *shown_role = plain ? role : "odd";
    snprintf(made->certificate, sizeof made->certificate, "%s/%03u-%s-%s.pem", kit->folder, number, shown_role, shown);
    snprintf(made->der, sizeof made->der, "%s/%03u-%s-%s.der", kit->folder, number, shown_role, shown);
    snprintf(made->key, sizeof made->key, "%s/%03u-%s-%s.key", kit->folder, number, shown_role, shown);
    made->files = (pki_kit_files){made->certificate, made->der, made->key, kit->ca_path};
    made->next = kit->entries;
    kit->entries = made;
}

const pki_kit_files *pki_kit_issue(pki_kit *kit, const char *role, const char *name, const pki_kit_options *options) {
    static const pki_kit_options honest = {0};
    if (options == NULL) options = &honest;
    entry *made = calloc(1, sizeof *made);
    need(made != NULL, "memory");
    open_entry(kit, made, role, name);
    const authority *signer = options->other_ca ? &kit->other_ca : &kit->ca;
    int preset = options->not_before_s == 0 && options->not_after_s == 0;
    EVP_PKEY *key = make_key(options->key_type);
    if (options->explicit_curve) {
        need(EVP_PKEY_set_utf8_string_param(key, OSSL_PKEY_PARAM_EC_ENCODING, OSSL_PKEY_EC_ENCODING_EXPLICIT) == 1,
             "curve");
    }
    X509 *x509 = begin(key, preset ? -300 : options->not_before_s, preset ? 86400 : options->not_after_s);
    name_subject(x509, role, name, options);
    need(X509_set_issuer_name(x509, X509_get_subject_name(signer->certificate)) == 1, "issuer");
    if (options->version_1)
        need(X509_set_version(x509, X509_VERSION_1) == 1, "version");
    else
        extend(x509, role, options);
    need(X509_sign(x509, signer->key, options->sha1 ? EVP_sha1() : hash_of(signer->key)) > 0, "signing");
    write_pem(made->certificate, x509);
    write_der(made->der, x509);
    write_key(made->key, key);
    X509_free(x509);
    EVP_PKEY_free(key);
    return &made->files;
}

static void add_revoked(X509_CRL *list, const pki_kit_files *files) {
    FILE *file = fopen(files->certificate, "rb");
    need(file != NULL, files->certificate);
    X509 *x509 = PEM_read_X509(file, NULL, NULL, NULL);
    (void)fclose(file);
    need(x509 != NULL, files->certificate);
    X509_REVOKED *entry = X509_REVOKED_new();
    ASN1_TIME *at = X509_gmtime_adj(NULL, -60);
    need(entry != NULL && at != NULL, "memory");
    need(X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(x509)) == 1, "serial");
    need(X509_REVOKED_set_revocationDate(entry, at) == 1, "date");
    need(X509_CRL_add0_revoked(list, entry) == 1, "entry");
    ASN1_TIME_free(at);
    X509_free(x509);
}

static void set_number(X509_CRL *list, long value) {
    ASN1_INTEGER *number = ASN1_INTEGER_new();
    need(number != NULL && ASN1_INTEGER_set(number, value) == 1, "memory");
    need(X509_CRL_add1_ext_i2d(list, NID_crl_number, number, 0, X509V3_ADD_DEFAULT) == 1, "number");
    ASN1_INTEGER_free(number);
}

void pki_kit_write_list(const pki_kit *kit, const char *path, const pki_kit_list *list) {
    const authority *named = list->other_ca ? &kit->other_ca : &kit->ca;
    const authority *signer = list->bad_signature ? &kit->other_ca : named;
    int preset = list->last_update_s == 0 && list->next_update_s == 0;
    X509_CRL *made = X509_CRL_new();
    ASN1_TIME *last = X509_gmtime_adj(NULL, preset ? -300 : list->last_update_s);
    ASN1_TIME *next = X509_gmtime_adj(NULL, preset ? 86400 : list->next_update_s);
    need(made != NULL && last != NULL && next != NULL, "memory");
    need(X509_CRL_set_version(made, X509_CRL_VERSION_2) == 1, "version");
    need(X509_CRL_set_issuer_name(made, X509_get_subject_name(named->certificate)) == 1, "issuer");
    need(X509_CRL_set1_lastUpdate(made, last) == 1 && X509_CRL_set1_nextUpdate(made, next) == 1, "times");
    for (size_t i = 0; i < 4 && list->revoked[i] != NULL; i++) add_revoked(made, list->revoked[i]);
    if (list->number != 0) set_number(made, list->number);
    need(X509_CRL_sign(made, signer->key, EVP_sha256()) > 0, "signing");
    char draft[512];
    snprintf(draft, sizeof draft, "%s.draft", path);
    (void)unlink(draft);
    FILE *file = create(draft);
    need(PEM_write_X509_CRL(file, made) == 1, path);
    need(fclose(file) == 0 && rename(draft, path) == 0, path);
    ASN1_TIME_free(last);
    ASN1_TIME_free(next);
    X509_CRL_free(made);
}
