#include "common/pki/request.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "common/openssl_problem.h"

/* Takes `text` over. */
static sheaf_status hand_out(unsigned char *text, int size, sheaf_buffer *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    if (size <= 0) return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot encode a request");
    out->data = malloc((size_t)size + 1);
    if (out->data != NULL) {
        memcpy(out->data, text, (size_t)size);
        out->data[size] = '\0';
        out->size = (size_t)size;
        out->capacity = (size_t)size + 1;
    }
    OPENSSL_free(text);
    return out->data != NULL ? SHEAF_OK : sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a request");
}

static int add_name(X509_NAME *subject, const char *field, const char *value) {
    if (value[0] == '\0') return 1;
    return X509_NAME_add_entry_by_txt(subject, field, MBSTRING_UTF8, (const unsigned char *)value, -1, -1, 0) == 1;
}

static int fill(X509_REQ *request, const sheaf_identity *identity, EVP_PKEY *key) {
    X509_NAME *subject = X509_REQ_get_subject_name(request);
    const EVP_MD *hash = EVP_PKEY_is_a(key, "ED25519") ? NULL : EVP_sha256();
    return X509_REQ_set_version(request, X509_REQ_VERSION_1) == 1 && add_name(subject, "O", identity->tenant) &&
           add_name(subject, "ST", identity->region) && add_name(subject, "OU", sheaf_role_name(identity->role)) &&
           add_name(subject, "CN", identity->name) && X509_REQ_set_pubkey(request, key) == 1 &&
           X509_REQ_sign(request, key, hash) > 0;
}

sheaf_status sheaf_request_make(const sheaf_identity *identity, EVP_PKEY *key, sheaf_buffer *der,
                                sheaf_problem *problem) {
    memset(der, 0, sizeof *der);
    if (!sheaf_name_ok(identity->tenant) || !sheaf_name_ok(identity->name) || identity->role == SHEAF_ROLE_NONE ||
        (identity->region[0] != '\0' && !sheaf_name_ok(identity->region))) {
        return sheaf_problem_set(problem, SHEAF_E_NAME,
                                 "tenant, name and region must be 1 to 63 of A-Z a-z 0-9 . _ - and not start with '.'");
    }
    (void)ERR_set_mark();
    X509_REQ *request = X509_REQ_new();
    unsigned char *text = NULL;
    sheaf_status status = request != NULL && fill(request, identity, key)
                              ? hand_out(text, i2d_X509_REQ(request, &text), der, problem)
                              : sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot make a request");
    X509_REQ_free(request);
    (void)ERR_pop_to_mark();
    return status;
}

sheaf_status sheaf_request_to_pem(sheaf_span der, sheaf_buffer *pem, sheaf_problem *problem) {
    memset(pem, 0, sizeof *pem);
    (void)ERR_set_mark();
    BIO *memory = BIO_new(BIO_s_mem());
    char *text = NULL;
    int done = memory != NULL && PEM_write_bio(memory, PEM_STRING_X509_REQ, "", der.data, (long)der.size) > 0;
    long size = done ? BIO_get_mem_data(memory, &text) : 0;
    unsigned char *copy = size > 0 ? OPENSSL_memdup(text, (size_t)size) : NULL;
    sheaf_status status = hand_out(copy, copy == NULL ? 0 : (int)size, pem, problem);
    BIO_free(memory);
    (void)ERR_pop_to_mark();
    return status;
}

sheaf_status sheaf_request_from_pem(sheaf_span pem, sheaf_buffer *der, sheaf_problem *problem) {
    memset(der, 0, sizeof *der);
    if (pem.size > 4 * SHEAF_REQUEST_BYTES_MAX)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "a request is larger than 32 KiB");
    (void)ERR_set_mark();
    BIO *memory = BIO_new_mem_buf(pem.data, (int)pem.size);
    X509_REQ *request = memory == NULL ? NULL : PEM_read_bio_X509_REQ(memory, NULL, NULL, NULL);
    unsigned char *text = NULL;
    sheaf_status status = SHEAF_OK;
    if (request == NULL)
        status = sheaf_problem_openssl(problem, SHEAF_E_MALFORMED, "not a certificate request in PEM");
    else
        status = hand_out(text, i2d_X509_REQ(request, &text), der, problem);
    X509_REQ_free(request);
    BIO_free(memory);
    (void)ERR_pop_to_mark();
    return status;
}

static sheaf_status digest_key(X509_PUBKEY *key, uint8_t out[SHEAF_DIGEST_BYTES], sheaf_problem *problem) {
    unsigned char *der = NULL;
    int size = i2d_X509_PUBKEY(key, &der);
    int done = size > 0 && EVP_Digest(der, (size_t)size, out, NULL, EVP_sha256(), NULL) == 1;
    OPENSSL_free(der);
    return done ? SHEAF_OK : sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot hash a key");
}

static sheaf_status judge(X509_REQ *request, sheaf_request_content *out, sheaf_problem *problem) {
    int is_p256 = 0;
    X509_PUBKEY *key = X509_REQ_get_X509_PUBKEY(request);
    sheaf_status status = sheaf_certificate_check_key(key, &is_p256, problem);
    if (status == SHEAF_OK)
        status = sheaf_certificate_read_subject(X509_REQ_get_subject_name(request), &out->identity, problem);
    if (status == SHEAF_OK) status = digest_key(key, out->key_digest, problem);
    if (status != SHEAF_OK) return status;
    out->key = X509_REQ_get_pubkey(request);
    if (out->key == NULL) return sheaf_problem_openssl(problem, SHEAF_E_CERTIFICATE, "the key is malformed");
    if (X509_REQ_verify(request, out->key) == 1) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_SIGNATURE, "its signature is not by the key that it names");
}

sheaf_status sheaf_request_read(sheaf_span der, sheaf_request_content *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    if (der.size == 0 || der.size > SHEAF_REQUEST_BYTES_MAX)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "request refused: empty, or larger than 8 KiB");
    (void)ERR_set_mark();
    const unsigned char *at = der.data;
    X509_REQ *request = d2i_X509_REQ(NULL, &at, (long)der.size);
    sheaf_status status = SHEAF_OK;
    if (request == NULL || at != der.data + der.size)
        status = sheaf_problem_set(problem, SHEAF_E_MALFORMED, "not a certificate request in DER");
    else
        status = judge(request, out, problem);
    if (status != SHEAF_OK) {
        if (problem != NULL) (void)sheaf_problem_prefix(problem, "request refused");
        sheaf_request_fini(out);
    }
    X509_REQ_free(request);
    (void)ERR_pop_to_mark();
    return status;
}

void sheaf_request_fini(sheaf_request_content *request) {
    EVP_PKEY_free(request->key);
    memset(request, 0, sizeof *request);
}
