#include "common/certificate.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include "common/file.h"
#include "common/openssl_problem.h"

#define DER_BYTES_MAX      16384u /* ours have about 600; a peer must not make us parse more */
#define PEM_FILE_BYTES_MAX (1u << 20)

struct sheaf_certificate {
    atomic_uint references;
    atomic_ullong mark; /* see sheaf_certificate_mark */
    int64_t not_after_unix_s;
    X509 *x509;
    EVP_PKEY *key;                  /* borrowed from x509 */
    const EVP_MD *hash;             /* NULL for Ed25519 */
    STACK_OF(X509) * intermediates; /* NULL when none came along */
    sheaf_identity identity;
    uint8_t fingerprint[SHEAF_DIGEST_BYTES];
    size_t der_size;
    uint8_t der[];
};

static const char *const role_names[] = {"none", "device", "operator", "auditor", "aggregator", "broker"};

const char *sheaf_role_name(sheaf_role role) {
    return (unsigned)role <= SHEAF_ROLE_BROKER ? role_names[role] : role_names[SHEAF_ROLE_NONE];
}

sheaf_role sheaf_role_from_name(const char *name) {
    for (int role = SHEAF_ROLE_DEVICE; role <= SHEAF_ROLE_BROKER; role++) {
        if (strcmp(name, role_names[role]) == 0) return (sheaf_role)role;
    }
    return SHEAF_ROLE_NONE;
}

int sheaf_role_serves(sheaf_role role) { return role == SHEAF_ROLE_AGGREGATOR || role == SHEAF_ROLE_BROKER; }

static sheaf_status refuse(sheaf_problem *problem, const char *why) {
    return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE, "certificate refused: %s", why);
}

/* --- subject ------------------------------------------------------------------------------------------------------ */

/* Copies an attribute's text; only the encodings that are plain bytes, so that no other spelling of a name exists. */
static int copy_text(const ASN1_STRING *value, char out[SHEAF_NAME_BYTES]) {
    int type = ASN1_STRING_type(value), size = ASN1_STRING_length(value);
    if (type != V_ASN1_UTF8STRING && type != V_ASN1_PRINTABLESTRING && type != V_ASN1_IA5STRING) return 0;
    if (size <= 0 || size >= (int)SHEAF_NAME_BYTES) return 0;
    const unsigned char *text = ASN1_STRING_get0_data(value);
    if (memchr(text, 0, (size_t)size) != NULL) return 0;
    memcpy(out, text, (size_t)size);
    out[size] = '\0';
    return sheaf_name_ok(out);
}

static sheaf_status read_attribute(X509_NAME *subject, int nid, const char *label, char out[SHEAF_NAME_BYTES],
                                   sheaf_problem *problem) {
    int at = X509_NAME_get_index_by_NID(subject, nid, -1);
    if (at < 0 || X509_NAME_get_index_by_NID(subject, nid, at) >= 0) {
        return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE,
                                 "certificate refused: the subject must hold exactly one %s", label);
    }
    if (copy_text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)), out)) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE,
                             "certificate refused: %s must be 1 to 63 of A-Z a-z 0-9 . _ - and not start with '.'",
                             label);
}

/* A region is optional; where it stands it must be as plain as the other names. */
static sheaf_status read_region(X509_NAME *subject, char out[SHEAF_NAME_BYTES], sheaf_problem *problem) {
    out[0] = '\0';
    if (X509_NAME_get_index_by_NID(subject, NID_stateOrProvinceName, -1) < 0) return SHEAF_OK;
    return read_attribute(subject, NID_stateOrProvinceName, "ST (region)", out, problem);
}

sheaf_status sheaf_certificate_read_subject(X509_NAME *subject, sheaf_identity *identity, sheaf_problem *problem) {
    char role[SHEAF_NAME_BYTES];
    sheaf_status status = read_attribute(subject, NID_organizationName, "O (tenant)", identity->tenant, problem);
    if (status == SHEAF_OK) status = read_attribute(subject, NID_organizationalUnitName, "OU (role)", role, problem);
    if (status == SHEAF_OK) status = read_attribute(subject, NID_commonName, "CN (name)", identity->name, problem);
    if (status == SHEAF_OK) status = read_region(subject, identity->region, problem);
    if (status != SHEAF_OK) return status;
    if (X509_NAME_entry_count(subject) != (identity->region[0] != '\0' ? 4 : 3))
        return refuse(problem, "the subject holds more than O, OU, CN and ST (region)");
    identity->role = sheaf_role_from_name(role);
    if (identity->role != SHEAF_ROLE_NONE) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE,
                             "certificate refused: OU '%s' is no role (device, operator, auditor, aggregator)", role);
}

/* --- extensions and key ------------------------------------------------------------------------------------------- */

static sheaf_status check_usage(X509 *x509, sheaf_role role, sheaf_problem *problem) {
    uint32_t flags = X509_get_extension_flags(x509);
    if ((flags & EXFLAG_INVALID) != 0) return refuse(problem, "an extension is malformed or there twice");
    if ((flags & EXFLAG_CRITICAL) != 0) return refuse(problem, "a critical extension is not understood");
    if ((flags & EXFLAG_CA) != 0) return refuse(problem, "an authority's certificate (CA:TRUE) names no peer");
    if ((flags & EXFLAG_KUSAGE) != 0 && (X509_get_key_usage(x509) & KU_DIGITAL_SIGNATURE) == 0) {
        return refuse(problem, "keyUsage lacks digitalSignature");
    }
    /* OpenSSL lets a certificate without this extension serve any purpose, so its presence is asked for here. */
    if ((flags & EXFLAG_XKUSAGE) == 0) return refuse(problem, "the extendedKeyUsage extension is missing");
    uint32_t usage = X509_get_extended_key_usage(x509);
    if (sheaf_role_serves(role)) {
        return (usage & XKU_SSL_SERVER) != 0
                   ? SHEAF_OK
                   : refuse(problem, role == SHEAF_ROLE_BROKER ? "a broker needs extendedKeyUsage serverAuth"
                                                               : "an aggregator needs extendedKeyUsage serverAuth");
    }
    return (usage & XKU_SSL_CLIENT) != 0 ? SHEAF_OK : refuse(problem, "this role needs extendedKeyUsage clientAuth");
}

/* Looks at the algorithm as written: a curve spelled out by explicit parameters is not the named one. */
sheaf_status sheaf_certificate_check_key(X509_PUBKEY *key, int *is_p256, sheaf_problem *problem) {
    X509_ALGOR *algorithm = NULL;
    const ASN1_OBJECT *kind = NULL;
    const void *parameter = NULL;
    int parameter_type = V_ASN1_UNDEF;
    X509_PUBKEY_get0_param(NULL, NULL, NULL, &algorithm, key);
    X509_ALGOR_get0(&kind, &parameter_type, &parameter, algorithm);
    int nid = OBJ_obj2nid(kind);
    *is_p256 = nid == NID_X9_62_id_ecPublicKey && parameter_type == V_ASN1_OBJECT &&
               OBJ_obj2nid(parameter) == NID_X9_62_prime256v1;
    return *is_p256 || nid == NID_ED25519 ? SHEAF_OK : refuse(problem, "the key must be ECDSA P-256 or Ed25519");
}

static sheaf_status read_key(sheaf_certificate *certificate, sheaf_problem *problem) {
    int p256 = 0;
    sheaf_status status = sheaf_certificate_check_key(X509_get_X509_PUBKEY(certificate->x509), &p256, problem);
    if (status != SHEAF_OK) return status;
    certificate->key = X509_get0_pubkey(certificate->x509);
    certificate->hash = p256 ? EVP_sha256() : NULL;
    return certificate->key != NULL ? SHEAF_OK : refuse(problem, "the public key is malformed");
}

/* --- from bytes and files ----------------------------------------------------------------------------------------- */

/* OpenSSL also reads sloppy encodings; one certificate must have one fingerprint, so only the exact DER passes. */
static int is_exact_der(X509 *x509, sheaf_span der) {
    unsigned char *again = NULL;
    int size = i2d_X509(x509, &again);
    int same = size > 0 && sheaf_span_equal(der, sheaf_span_of(again, (size_t)size));
    OPENSSL_free(again);
    return same;
}

static sheaf_status parse(sheaf_certificate *certificate, sheaf_problem *problem) {
    const unsigned char *at = certificate->der;
    certificate->x509 = d2i_X509(NULL, &at, (long)certificate->der_size);
    if (certificate->x509 == NULL)
        return sheaf_problem_openssl(problem, SHEAF_E_CERTIFICATE, "not a certificate in DER");
    if (!is_exact_der(certificate->x509, sheaf_certificate_der(certificate))) {
        return refuse(problem, "not DER, or bytes follow the certificate");
    }
    if (X509_get_version(certificate->x509) != X509_VERSION_3) return refuse(problem, "not X.509 version 3");
    sheaf_status status = read_key(certificate, problem);
    if (status == SHEAF_OK)
        status =
            sheaf_certificate_read_subject(X509_get_subject_name(certificate->x509), &certificate->identity, problem);
    if (status == SHEAF_OK) status = check_usage(certificate->x509, certificate->identity.role, problem);
    if (status != SHEAF_OK) return status;
    struct tm parts;
    if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate->x509), &parts) != 1)
        return refuse(problem, "its validity cannot be read");
    certificate->not_after_unix_s = (int64_t)timegm(&parts);
    if (EVP_Digest(certificate->der, certificate->der_size, certificate->fingerprint, NULL, EVP_sha256(), NULL) != 1) {
        return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot hash a certificate");
    }
    return SHEAF_OK;
}

sheaf_status sheaf_certificate_read(sheaf_span der, sheaf_certificate **out, sheaf_problem *problem) {
    *out = NULL;
    if (der.size == 0 || der.size > DER_BYTES_MAX) return refuse(problem, "empty, or larger than 16 KiB");
    sheaf_certificate *certificate = calloc(1, sizeof *certificate + der.size);
    if (certificate == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a certificate");
    atomic_init(&certificate->references, 1);
    certificate->der_size = der.size;
    memcpy(certificate->der, der.data, der.size);
    (void)ERR_set_mark();
    sheaf_status status = parse(certificate, problem);
    (void)ERR_pop_to_mark();
    if (status != SHEAF_OK) {
        sheaf_certificate_unref(certificate);
        return status;
    }
    *out = certificate;
    return SHEAF_OK;
}

sheaf_status sheaf_certificate_from_der(sheaf_span der, sheaf_certificate **out) {
    return sheaf_certificate_read(der, out, NULL);
}

static sheaf_status add_intermediate(sheaf_certificate *certificate, sheaf_span der, sheaf_problem *problem) {
    const unsigned char *at = der.data;
    if (der.size == 0 || der.size > DER_BYTES_MAX) return refuse(problem, "an intermediate is larger than 16 KiB");
    X509 *x509 = d2i_X509(NULL, &at, (long)der.size);
    if (x509 == NULL || at != der.data + der.size) {
        X509_free(x509);
        return refuse(problem, "an intermediate is not a certificate in DER");
    }
    if (certificate->intermediates == NULL) certificate->intermediates = sk_X509_new_null();
    if (certificate->intermediates != NULL && sk_X509_push(certificate->intermediates, x509) > 0) return SHEAF_OK;
    X509_free(x509);
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a certificate");
}

sheaf_status sheaf_certificate_read_chain(const sheaf_span *ders, size_t count, sheaf_certificate **out,
                                          sheaf_problem *problem) {
    *out = NULL;
    sheaf_certificate *certificate = NULL;
    if (count == 0 || count > SHEAF_CHAIN_MAX) return refuse(problem, "no certificate came, or too many");
    sheaf_status status = sheaf_certificate_read(ders[0], &certificate, problem);
    (void)ERR_set_mark();
    for (size_t i = 1; i < count && status == SHEAF_OK; i++) status = add_intermediate(certificate, ders[i], problem);
    (void)ERR_pop_to_mark();
    if (status == SHEAF_OK)
        *out = certificate;
    else
        sheaf_certificate_unref(certificate);
    return status;
}

/* Takes `shared` for *own, whose DER is the same. */
static void replace_x509(X509 **own, X509 *shared) {
    (void)X509_up_ref(shared);
    X509_free(*own);
    *own = shared;
}

/* The objects came from the same bytes as our own, which had to pass first, so nothing that was checked changes. What is
 * saved is the decoded key with its curve and the parsed names, 5 KiB a certificate; see docs/MEASURED.md, B3. */
static void share_objects(sheaf_certificate *certificate, X509 *const *chain) {
    replace_x509(&certificate->x509, chain[0]);
    certificate->key = X509_get0_pubkey(certificate->x509);
    for (int i = 0; i < sk_X509_num(certificate->intermediates); i++) {
        X509 *own = sk_X509_value(certificate->intermediates, i);
        replace_x509(&own, chain[i + 1]);
        (void)sk_X509_set(certificate->intermediates, i, own);
    }
}

sheaf_status sheaf_certificate_share_chain(X509 *const *chain, size_t count, sheaf_certificate **out,
                                           sheaf_problem *problem) {
    unsigned char *ders[SHEAF_CHAIN_MAX] = {NULL};
    sheaf_span spans[SHEAF_CHAIN_MAX];
    size_t encoded = 0;
    *out = NULL;
    if (count == 0 || count > SHEAF_CHAIN_MAX) return refuse(problem, "no certificate came, or too many");
    (void)ERR_set_mark();
    for (; encoded < count; encoded++) {
        int size = i2d_X509(chain[encoded], &ders[encoded]);
        if (size <= 0) break;
        spans[encoded] = sheaf_span_of(ders[encoded], (size_t)size);
    }
    (void)ERR_pop_to_mark();
    sheaf_status status = encoded == count ? sheaf_certificate_read_chain(spans, count, out, problem)
                                           : refuse(problem, "not a certificate");
    if (status == SHEAF_OK) share_objects(*out, chain);
    for (size_t i = 0; i < encoded; i++) OPENSSL_free(ders[i]);
    return status;
}

/* All certificates of a PEM text; other blocks are passed over. At least one, or SHEAF_E_CERTIFICATE. */
static sheaf_status read_pem_text(sheaf_span text, const char *path, STACK_OF(X509) * certificates,
                                  sheaf_problem *problem) {
    BIO *memory = BIO_new_mem_buf(text.data, (int)text.size); /* size <= PEM_FILE_BYTES_MAX */
    if (memory == NULL) return sheaf_problem_openssl(problem, SHEAF_E_MEMORY, "%s: no memory", path);
    sheaf_status status = SHEAF_OK;
    X509 *x509 = NULL;
    while (status == SHEAF_OK && (x509 = PEM_read_bio_X509(memory, NULL, NULL, NULL)) != NULL) {
        if (sk_X509_push(certificates, x509) > 0) continue;
        X509_free(x509);
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", path);
    }
    /* The loop ends on an error in any case: "no start line" is the end of the file. */
    if (status == SHEAF_OK && ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
        status = sheaf_problem_openssl(problem, SHEAF_E_CERTIFICATE, "%s: malformed PEM", path);
    } else if (status == SHEAF_OK && sk_X509_num(certificates) == 0) {
        status = sheaf_problem_set(problem, SHEAF_E_CERTIFICATE, "%s: holds no certificate in PEM", path);
    }
    BIO_free(memory);
    return status;
}

static sheaf_status read_pem_file(const char *path, STACK_OF(X509) * *out, sheaf_problem *problem) {
    sheaf_buffer text = {0};
    sheaf_status status = sheaf_file_read_whole(path, PEM_FILE_BYTES_MAX, &text, problem);
    if (status != SHEAF_OK) return status;
    STACK_OF(X509) *certificates = sk_X509_new_null();
    if (certificates == NULL) {
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", path);
    } else {
        status = read_pem_text(sheaf_buffer_span(&text), path, certificates, problem);
    }
    sheaf_wipe(text.data, text.size); /* a PEM file may hold a key besides */
    free(text.data);
    if (status == SHEAF_OK) {
        *out = certificates;
    } else {
        sk_X509_pop_free(certificates, X509_free);
    }
    return status;
}

static sheaf_status first_of(STACK_OF(X509) * certificates, sheaf_certificate **out, sheaf_problem *problem) {
    unsigned char *der = NULL;
    int size = i2d_X509(sk_X509_value(certificates, 0), &der);
    if (size <= 0) return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot encode a certificate");
    sheaf_status status = sheaf_certificate_read(sheaf_span_of(der, (size_t)size), out, problem);
    OPENSSL_free(der);
    return status;
}

sheaf_status sheaf_certificate_from_pem_file(const char *path, sheaf_certificate **out, sheaf_problem *problem) {
    *out = NULL;
    STACK_OF(X509) *certificates = NULL;
    (void)ERR_set_mark();
    sheaf_status status = read_pem_file(path, &certificates, problem);
    if (status == SHEAF_OK) {
        status = first_of(certificates, out, problem);
        if (status != SHEAF_OK) (void)sheaf_problem_prefix(problem, "%s", path);
    }
    (void)ERR_pop_to_mark();
    if (status != SHEAF_OK) {
        sk_X509_pop_free(certificates, X509_free);
        return status;
    }
    X509_free(sk_X509_shift(certificates));
    (*out)->intermediates = certificates;
    return SHEAF_OK;
}

sheaf_certificate *sheaf_certificate_ref(sheaf_certificate *certificate) {
    atomic_fetch_add_explicit(&certificate->references, 1, memory_order_relaxed);
    return certificate;
}

void sheaf_certificate_unref(sheaf_certificate *certificate) {
    if (certificate == NULL) return;
    /* acq_rel: whoever frees must see all that the other owners did before they let go. */
    if (atomic_fetch_sub_explicit(&certificate->references, 1, memory_order_acq_rel) != 1) return;
    sk_X509_pop_free(certificate->intermediates, X509_free);
    X509_free(certificate->x509);
    free(certificate);
}

/* --- what it says ------------------------------------------------------------------------------------------------- */

const sheaf_identity *sheaf_certificate_identity(const sheaf_certificate *certificate) {
    return &certificate->identity;
}

const uint8_t *sheaf_certificate_fingerprint(const sheaf_certificate *certificate) { return certificate->fingerprint; }

sheaf_span sheaf_certificate_der(const sheaf_certificate *certificate) {
    return sheaf_span_of(certificate->der, certificate->der_size);
}

uint64_t sheaf_certificate_mark(const sheaf_certificate *certificate) {
    return atomic_load_explicit(&((sheaf_certificate *)certificate)->mark, memory_order_relaxed);
}

void sheaf_certificate_set_mark(const sheaf_certificate *certificate, uint64_t mark) {
    atomic_store_explicit(&((sheaf_certificate *)certificate)->mark, mark, memory_order_relaxed);
}

int64_t sheaf_certificate_not_after(const sheaf_certificate *certificate) { return certificate->not_after_unix_s; }

X509 *sheaf_certificate_x509(const sheaf_certificate *certificate) { return certificate->x509; }

struct stack_st_X509 *sheaf_certificate_intermediates(const sheaf_certificate *certificate) {
    return certificate->intermediates;
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

sheaf_status sheaf_certificate_verify(const sheaf_certificate *certificate, sheaf_span message, sheaf_span signature) {
    (void)ERR_set_mark();
    sheaf_status status = SHEAF_OK;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context == NULL || EVP_DigestVerifyInit(context, NULL, certificate->hash, NULL, certificate->key) != 1) {
        status = SHEAF_E_CRYPTO;
    } else if (EVP_DigestVerify(context, signature.data, signature.size, message.data, message.size) != 1) {
        status = SHEAF_E_SIGNATURE; /* 0: another's, negative: not even a signature; the peer's fault both times */
    }
    EVP_MD_CTX_free(context);
    (void)ERR_pop_to_mark();
    return status;
}
