#include "common/pki/mint.h"

#include <arpa/inet.h>
#include <string.h>
#include <time.h>

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "common/openssl_problem.h"

#define BACKDATE_S             300
#define SERIAL_BITS            128
#define ALTERNATIVE_NAMES_MAX  32
#define ALTERNATIVE_NAME_BYTES 254 /* a DNS name has at most 253; with the NUL */

static sheaf_status failed(sheaf_problem *problem, const char *what) {
    return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot set a certificate's %s", what);
}

static sheaf_status set_serial(X509 *x509, sheaf_problem *problem) {
    BIGNUM *number = BN_new();
    int done = number != NULL && BN_rand(number, SERIAL_BITS, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
               BN_to_ASN1_INTEGER(number, X509_get_serialNumber(x509)) != NULL;
    BN_free(number);
    return done ? SHEAF_OK : failed(problem, "serial number");
}

/* From five minutes ago to `days` from now, or to the issuer's end if that comes first. */
static sheaf_status set_validity(X509 *x509, uint32_t days, const X509 *issuer, sheaf_problem *problem) {
    if (days == 0 || days > SHEAF_MINT_DAYS_MAX) {
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "days must be 1 to %u", SHEAF_MINT_DAYS_MAX);
    }
    time_t now = time(NULL);
    if (X509_time_adj_ex(X509_getm_notBefore(x509), 0, -BACKDATE_S, &now) == NULL ||
        X509_time_adj_ex(X509_getm_notAfter(x509), (int)days, 0, &now) == NULL) {
        return failed(problem, "validity");
    }
    if (issuer == NULL) return SHEAF_OK;
    const ASN1_TIME *end = X509_get0_notAfter(issuer);
    int left = X509_cmp_time(end, &now); /* 0 is an error */
    if (left == 0) return failed(problem, "validity");
    if (left < 0) return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE, "the authority's own certificate has expired");
    if (ASN1_TIME_compare(end, X509_get0_notAfter(x509)) >= 0) return SHEAF_OK;
    return X509_set1_notAfter(x509, end) == 1 ? SHEAF_OK : failed(problem, "validity");
}

static sheaf_status add_name(X509 *x509, const char *field, const char *value, sheaf_problem *problem) {
    if (!sheaf_name_ok(value)) {
        return sheaf_problem_set(problem, SHEAF_E_NAME,
                                 "%s '%.80s': must be 1 to 63 of A-Z a-z 0-9 . _ - and not start with '.'", field,
                                 value);
    }
    int done = X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), field, MBSTRING_UTF8,
                                          (const unsigned char *)value, -1, -1, 0);
    return done == 1 ? SHEAF_OK : failed(problem, "subject");
}

static sheaf_status add_extension(X509 *x509, X509 *issuer, int nid, const char *value, sheaf_problem *problem) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, x509, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value); /* constants only, no text of users */
    int done = extension != NULL && X509_add_ext(x509, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return done ? SHEAF_OK : failed(problem, OBJ_nid2sn(nid));
}

/* --- alternative names -------------------------------------------------------------------------------------------- */

static int is_host_name(const char *text) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.";
    size_t size = strlen(text);
    return size > 0 && strspn(text, allowed) == size && text[0] != '.' && text[0] != '-' && text[size - 1] != '.' &&
           strstr(text, "..") == NULL;
}

/* Takes `value` over, also when it fails; NULL fails. */
static int push_name(GENERAL_NAMES *names, int type, ASN1_STRING *value) {
    GENERAL_NAME *name = value == NULL ? NULL : GENERAL_NAME_new();
    if (name == NULL) {
        ASN1_STRING_free(value);
        return 0;
    }
    GENERAL_NAME_set0_value(name, type, value);
    if (sk_GENERAL_NAME_push(names, name) > 0) return 1;
    GENERAL_NAME_free(name);
    return 0;
}

/* No top-level domain is a number, so a name that ends in one is an address with a mistake (300.1.1.1). */
static int ends_in_number(const char *text) {
    const char *dot = strrchr(text, '.'), *last = dot == NULL ? text : dot + 1;
    return last[0] != '\0' && strspn(last, "0123456789") == strlen(last);
}

static sheaf_status add_alternative(GENERAL_NAMES *names, const char *text, sheaf_problem *problem) {
    ASN1_OCTET_STRING *address = a2i_IPADDRESS(text);
    if (address != NULL) return push_name(names, GEN_IPADD, address) ? SHEAF_OK : failed(problem, "subjectAltName");
    if (!is_host_name(text) || ends_in_number(text)) {
        return sheaf_problem_set(problem, SHEAF_E_NAME, "alternative name '%s': not a DNS name or an IP address", text);
    }
    ASN1_STRING *host = ASN1_IA5STRING_new();
    if (host != NULL && ASN1_STRING_set(host, text, -1) != 1) {
        ASN1_STRING_free(host);
        host = NULL;
    }
    return push_name(names, GEN_DNS, host) ? SHEAF_OK : failed(problem, "subjectAltName");
}

static sheaf_status split_alternatives(GENERAL_NAMES *names, const char *list, sheaf_problem *problem) {
    for (const char *at = list;;) {
        char text[ALTERNATIVE_NAME_BYTES];
        size_t size = strcspn(at, ",");
        if (size >= sizeof text || sk_GENERAL_NAME_num(names) >= ALTERNATIVE_NAMES_MAX) {
            return sheaf_problem_set(problem, SHEAF_E_NAME, "alternative names: at most %d, each at most %d bytes",
                                     ALTERNATIVE_NAMES_MAX, ALTERNATIVE_NAME_BYTES - 1);
        }
        memcpy(text, at, size);
        text[size] = '\0';
        sheaf_status status = add_alternative(names, text, problem);
        if (status != SHEAF_OK || at[size] == '\0') return status;
        at += size + 1;
    }
}

static sheaf_status set_alternatives(X509 *x509, const char *list, sheaf_problem *problem) {
    if (list == NULL) return SHEAF_OK;
    GENERAL_NAMES *names = GENERAL_NAMES_new();
    if (names == NULL) return failed(problem, "subjectAltName");
    sheaf_status status = split_alternatives(names, list, problem);
    if (status == SHEAF_OK && X509_add1_ext_i2d(x509, NID_subject_alt_name, names, 0, X509V3_ADD_DEFAULT) != 1) {
        status = failed(problem, "subjectAltName");
    }
    GENERAL_NAMES_free(names);
    return status;
}

static int print_alternative(const GENERAL_NAME *name, char out[ALTERNATIVE_NAME_BYTES]) {
    int type = 0;
    const ASN1_STRING *value = GENERAL_NAME_get0_value(name, &type);
    const unsigned char *bytes = ASN1_STRING_get0_data(value);
    int size = ASN1_STRING_length(value);
    if (type == GEN_IPADD && size == 4) return inet_ntop(AF_INET, bytes, out, ALTERNATIVE_NAME_BYTES) != NULL;
    if (type == GEN_IPADD && size == 16) return inet_ntop(AF_INET6, bytes, out, ALTERNATIVE_NAME_BYTES) != NULL;
    if (type != GEN_DNS || size <= 0 || size >= ALTERNATIVE_NAME_BYTES) return 0;
    memcpy(out, bytes, (size_t)size);
    out[size] = '\0';
    return is_host_name(out);
}

sheaf_status sheaf_mint_alternatives_of(const X509 *x509, char out[SHEAF_ALTERNATIVES_BYTES], sheaf_problem *problem) {
    GENERAL_NAMES *names = X509_get_ext_d2i(x509, NID_subject_alt_name, NULL, NULL);
    size_t used = 0;
    int good = 1;
    out[0] = '\0';
    for (int i = 0; good && i < sk_GENERAL_NAME_num(names); i++) { /* -1 without names */
        char text[ALTERNATIVE_NAME_BYTES];
        good = print_alternative(sk_GENERAL_NAME_value(names, i), text);
        size_t size = good ? strlen(text) : 0;
        good = good && used + size + 2 < SHEAF_ALTERNATIVES_BYTES;
        if (!good) continue;
        if (used > 0) out[used++] = ',';
        memcpy(out + used, text, size + 1);
        used += size;
    }
    GENERAL_NAMES_free(names);
    return good ? SHEAF_OK
                : sheaf_problem_set(problem, SHEAF_E_NAME, "an alternative name that is neither DNS name nor address");
}

/* --- whole certificates ------------------------------------------------------------------------------------------- */

static sheaf_status begin(EVP_PKEY *key, uint32_t days, const X509 *issuer, X509 **out, sheaf_problem *problem) {
    X509 *x509 = X509_new();
    *out = x509;
    if (x509 == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a certificate");
    if (X509_set_version(x509, X509_VERSION_3) != 1) return failed(problem, "version");
    if (X509_set_pubkey(x509, key) != 1) return failed(problem, "public key");
    sheaf_status status = set_serial(x509, problem);
    return status == SHEAF_OK ? set_validity(x509, days, issuer, problem) : status;
}

static sheaf_status sign(X509 *x509, const X509 *issuer, EVP_PKEY *key, sheaf_key_type type, sheaf_problem *problem) {
    if (X509_set_issuer_name(x509, X509_get_subject_name(issuer)) != 1) return failed(problem, "issuer");
    return X509_sign(x509, key, sheaf_private_key_hash(type)) > 0 ? SHEAF_OK : failed(problem, "signature");
}

/* Ends a mint: nothing stays in OpenSSL's queue, and a half-made certificate is dropped. */
static sheaf_status finish(sheaf_status status, X509 **out) {
    (void)ERR_pop_to_mark();
    if (status != SHEAF_OK) {
        X509_free(*out);
        *out = NULL;
    }
    return status;
}

static sheaf_status extend_authority(X509 *x509, X509 *issuer, int others_below, sheaf_problem *problem) {
    const char *constraints = others_below ? "critical,CA:TRUE,pathlen:1" : "critical,CA:TRUE,pathlen:0";
    sheaf_status status = add_extension(x509, issuer, NID_basic_constraints, constraints, problem);
    if (status == SHEAF_OK)
        status = add_extension(x509, issuer, NID_key_usage, "critical,keyCertSign,cRLSign", problem);
    if (status == SHEAF_OK) status = add_extension(x509, issuer, NID_subject_key_identifier, "hash", problem);
    return status == SHEAF_OK ? add_extension(x509, issuer, NID_authority_key_identifier, "keyid:always", problem)
                              : status;
}

sheaf_status sheaf_mint_root(const char *name, uint32_t days, int others_below, EVP_PKEY *key, sheaf_key_type type,
                             X509 **out, sheaf_problem *problem) {
    (void)ERR_set_mark();
    sheaf_status status = begin(key, days, NULL, out, problem);
    if (status == SHEAF_OK) status = add_name(*out, "CN", name, problem);
    if (status == SHEAF_OK) status = extend_authority(*out, *out, others_below, problem);
    if (status == SHEAF_OK) status = sign(*out, *out, key, type, problem);
    return finish(status, out);
}

sheaf_status sheaf_mint_authority(const char *name, uint32_t days, EVP_PKEY *key, const sheaf_issuer *issuer,
                                  X509 **out, sheaf_problem *problem) {
    *out = NULL;
    if (X509_get_pathlen(issuer->certificate) == 0) {
        return sheaf_problem_set(
            problem, SHEAF_E_CERTIFICATE,
            "the authority above may have no other below it; make it with sheaf pki init --offline");
    }
    (void)ERR_set_mark();
    sheaf_status status = begin(key, days, issuer->certificate, out, problem);
    if (status == SHEAF_OK) status = add_name(*out, "CN", name, problem);
    if (status == SHEAF_OK) status = extend_authority(*out, issuer->certificate, 0, problem);
    if (status == SHEAF_OK) status = sign(*out, issuer->certificate, issuer->key, issuer->key_type, problem);
    return finish(status, out);
}

static sheaf_status extend_peer(X509 *x509, X509 *issuer, const sheaf_mint_options *options, sheaf_problem *problem) {
    /* An aggregator is a client of the broker too. */
    const char *usage = options->role == SHEAF_ROLE_AGGREGATOR ? "serverAuth,clientAuth"
                        : sheaf_role_serves(options->role)     ? "serverAuth"
                                                               : "clientAuth";
    sheaf_status status = add_extension(x509, issuer, NID_basic_constraints, "critical,CA:FALSE", problem);
    if (status == SHEAF_OK) status = add_extension(x509, issuer, NID_key_usage, "critical,digitalSignature", problem);
    if (status == SHEAF_OK) status = add_extension(x509, issuer, NID_ext_key_usage, usage, problem);
    if (status == SHEAF_OK) status = add_extension(x509, issuer, NID_subject_key_identifier, "hash", problem);
    if (status == SHEAF_OK) status = add_extension(x509, issuer, NID_authority_key_identifier, "keyid:always", problem);
    return status == SHEAF_OK ? set_alternatives(x509, options->alternative_names, problem) : status;
}

static sheaf_status name_peer(X509 *x509, const sheaf_mint_options *options, sheaf_problem *problem) {
    sheaf_status status = add_name(x509, "O", options->tenant, problem);
    if (status == SHEAF_OK && options->region != NULL && options->region[0] != '\0')
        status = add_name(x509, "ST", options->region, problem);
    if (status == SHEAF_OK) status = add_name(x509, "OU", sheaf_role_name(options->role), problem);
    return status == SHEAF_OK ? add_name(x509, "CN", options->name, problem) : status;
}

sheaf_status sheaf_mint_peer(const sheaf_mint_options *options, EVP_PKEY *key, const sheaf_issuer *issuer, X509 **out,
                             sheaf_problem *problem) {
    *out = NULL;
    if (options->role == SHEAF_ROLE_NONE) {
        return sheaf_problem_set(problem, SHEAF_E_USAGE,
                                 "the role must be device, operator, auditor, aggregator or broker");
    }
    if (sheaf_role_serves(options->role) != (options->alternative_names != NULL)) {
        return sheaf_problem_set(problem, SHEAF_E_USAGE,
                                 "an aggregator and a broker need alternative names, and no other role has any");
    }
    (void)ERR_set_mark();
    sheaf_status status = begin(key, options->days, issuer->certificate, out, problem);
    if (status == SHEAF_OK) status = name_peer(*out, options, problem);
    if (status == SHEAF_OK) status = extend_peer(*out, issuer->certificate, options, problem);
    if (status == SHEAF_OK) status = sign(*out, issuer->certificate, issuer->key, issuer->key_type, problem);
    return finish(status, out);
}
