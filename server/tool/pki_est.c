/* pki_est.c - `sheaf pki enroll`: a certificate from a service over HTTPS (EST, RFC 7030), for a key that is made here and
 * never leaves.
 *
 * In this order, each durably: the key, the service's note of what it issued, the certificate. Whatever dies in between, the
 * same call again finishes: the token is good again for the same key. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pkcs7.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "common/pki/peer_files.h"
#include "common/pki/request.h"
#include "common/trust.h"
#include "server/tool/channel.h"
#include "server/tool/pki.h"

typedef struct {
    const sheaf_pki_choices *chosen;
    sheaf_identity identity;
    sheaf_peer_files files;
    EVP_PKEY *key;
    char *token; /* NULL: with the certificate that is there */
} enrolment;

/* --- the request -------------------------------------------------------------------------------------------------- */

static sheaf_status take_key(enrolment *self, sheaf_problem *problem) {
    int there = 0;
    sheaf_key_type type = SHEAF_KEY_ANY;
    if (self->token != NULL) {
        sheaf_status status = sheaf_peer_files_exist(self->files.certificate, &there, problem);
        if (status == SHEAF_OK && there)
            status = sheaf_problem_set(problem, SHEAF_E_EXISTS, "%s: is there already; --renew gets the next one",
                                       self->files.certificate);
        if (status == SHEAF_OK) status = sheaf_peer_files_exist(self->files.key, &there, problem);
        if (status != SHEAF_OK) return status;
        if (there) return sheaf_private_key_read(self->files.key, &self->key, &type, problem);
    }
    sheaf_status status = sheaf_private_key_make(self->chosen->key_type, &self->key, problem);
    /* The next key of a certificate is written with it: until then the old pair is what counts. */
    return status == SHEAF_OK && self->token != NULL ? sheaf_private_key_write(self->files.key, self->key, problem)
                                                     : status;
}

static sheaf_status ask(const enrolment *self, sheaf_span text, sheaf_channel_answer *answer, sheaf_problem *problem) {
    int first = self->token != NULL;
    const sheaf_channel channel = {.url = self->chosen->url,
                                   .ca = self->chosen->ca,
                                   .certificate = first ? NULL : self->files.certificate,
                                   .key = first ? NULL : self->files.key};
    const sheaf_channel_request request = {.path = first ? "/.well-known/est/simpleenroll"
                                                         : "/.well-known/est/simplereenroll",
                                           .body = text,
                                           .type = "application/pkcs10",
                                           .user = first ? self->identity.name : NULL,
                                           .secret = self->token};
    sheaf_status status = sheaf_channel_exchange(&channel, &request, answer, problem);
    if (status != SHEAF_OK || answer->code == 200) return status;
    status = sheaf_channel_refusal(answer, problem);
    free(answer->text);
    return status;
}

/* Request out, PKCS#7 in. */
static sheaf_status exchange(const enrolment *self, PKCS7 **out, sheaf_problem *problem) {
    sheaf_buffer der = {NULL, 0, 0};
    sheaf_channel_answer answer = {0};
    sheaf_status status = sheaf_request_make(&self->identity, self->key, &der, problem);
    unsigned char *text = status == SHEAF_OK ? malloc(der.size * 2 + 4) : NULL;
    if (text != NULL) {
        int size = EVP_EncodeBlock(text, der.data, (int)der.size);
        status = ask(self, sheaf_span_of(text, (size_t)size), &answer, problem);
    } else if (status == SHEAF_OK) {
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the request");
    }
    free(text);
    free(der.data);
    if (status != SHEAF_OK) return status;
    BIO *lines = answer.text == NULL ? NULL : BIO_new_mem_buf(answer.text, (int)answer.size);
    BIO *plain = BIO_push(BIO_new(BIO_f_base64()), lines);
    *out = lines == NULL ? NULL : d2i_PKCS7_bio(plain, NULL);
    BIO_free_all(plain);
    free(answer.text);
    if (*out != NULL && PKCS7_type_is_signed(*out)) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_MALFORMED, "%s: the answer holds no certificates", self->chosen->url);
}

/* --- the certificate ---------------------------------------------------------------------------------------------- */

static X509 *find_own(STACK_OF(X509) * all, const EVP_PKEY *key) {
    for (int i = 0; i < sk_X509_num(all); i++) {
        X509 *x509 = sk_X509_value(all, i);
        EVP_PKEY *its = X509_get0_pubkey(x509);
        if (its != NULL && EVP_PKEY_eq(its, key) == 1) return x509;
    }
    return NULL;
}

/* The others, in the order in which they signed one another; *out is empty for a root that signs by itself. */
static int sort_chain(STACK_OF(X509) * all, X509 *own, STACK_OF(X509) * out) {
    X509 *last = own;
    for (int i = 0; i < sk_X509_num(all) && sk_X509_num(out) < (int)SHEAF_CHAIN_MAX; i++) {
        X509 *x509 = sk_X509_value(all, i);
        if (x509 == last || x509 == own || X509_check_issued(x509, last) != X509_V_OK) continue;
        if (sk_X509_push(out, x509) <= 0) return 0;
        last = x509;
        i = -1; /* from the start: they may come in any order; each step adds one, so it ends */
    }
    return 1;
}

static sheaf_status read_own(X509 *own, STACK_OF(X509) * chain, sheaf_certificate **out, sheaf_problem *problem) {
    uint8_t *ders[SHEAF_CHAIN_MAX] = {NULL};
    sheaf_span spans[SHEAF_CHAIN_MAX];
    size_t count = 0;
    for (int i = -1; i < sk_X509_num(chain) && count < SHEAF_CHAIN_MAX; i++) {
        X509 *x509 = i < 0 ? own : sk_X509_value(chain, i);
        if (i >= 0 && X509_self_signed(x509, 0) == 1) break;
        int size = i2d_X509(x509, &ders[count]);
        if (size <= 0) break;
        spans[count] = sheaf_span_of(ders[count], (size_t)size);
        count++;
    }
    sheaf_status status = count == 0 ? sheaf_problem_set(problem, SHEAF_E_CRYPTO, "cannot encode a certificate")
                                     : sheaf_certificate_read_chain(spans, count, out, problem);
    for (size_t i = 0; i < count; i++) OPENSSL_free(ders[i]);
    return status;
}

/* What came must be ours, name us, and be believed by whoever has --ca; nothing else is stored. */
static sheaf_status check_own(const enrolment *self, X509 *own, STACK_OF(X509) * chain, sheaf_problem *problem) {
    sheaf_certificate *certificate = NULL;
    sheaf_status status = read_own(own, chain, &certificate, problem);
    if (status != SHEAF_OK) return status;
    const sheaf_identity *identity = sheaf_certificate_identity(certificate);
    if (identity->role != self->identity.role || strcmp(identity->name, self->identity.name) != 0 ||
        strcmp(identity->tenant, self->identity.tenant) != 0 || strcmp(identity->region, self->identity.region) != 0)
        status = sheaf_problem_set(problem, SHEAF_E_IDENTITY, "the certificate that came names %s %s of %s",
                                   sheaf_role_name(identity->role), identity->name, identity->tenant);
    else
        status = sheaf_certificate_check_chain(certificate, self->chosen->ca, problem);
    sheaf_certificate_unref(certificate);
    return status;
}

static sheaf_status store(const enrolment *self, PKCS7 *bundle, sheaf_problem *problem) {
    STACK_OF(X509) *all = bundle->d.sign->cert, *chain = sk_X509_new_null();
    X509 *own = find_own(all, self->key);
    sheaf_status status;
    if (chain == NULL || own == NULL || !sort_chain(all, own, chain))
        status = sheaf_problem_set(problem, SHEAF_E_MISMATCH, "the answer holds no certificate for our key");
    else
        status = check_own(self, own, chain, problem);
    if (status == SHEAF_OK && self->token != NULL)
        status = sheaf_peer_files_write(self->files.certificate, own, chain, problem);
    else if (status == SHEAF_OK)
        status = sheaf_peer_files_replace(&self->files, self->key, own, chain, problem);
    sk_X509_free(chain);
    return status;
}

/* --- the command -------------------------------------------------------------------------------------------------- */

/* The one that is there says who we are. */
static sheaf_status check_renewable(const enrolment *self, sheaf_problem *problem) {
    sheaf_certificate *present = NULL;
    sheaf_status status = sheaf_certificate_from_pem_file(self->files.certificate, &present, problem);
    if (status == SHEAF_OK) {
        const sheaf_identity *identity = sheaf_certificate_identity(present);
        if (strcmp(identity->region, self->identity.region) != 0)
            status = sheaf_problem_set(problem, SHEAF_E_MISMATCH, "%s: its region is '%s'; say --region %s",
                                       self->files.certificate, identity->region, identity->region);
    }
    sheaf_certificate_unref(present);
    return status;
}

static sheaf_status enrol(enrolment *self, sheaf_problem *problem) {
    PKCS7 *bundle = NULL;
    const char *folder = self->chosen->out != NULL ? self->chosen->out : ".";
    sheaf_status status = sheaf_file_make_folder(folder, problem);
    if (status == SHEAF_OK)
        status = sheaf_peer_files_place(folder, self->identity.role, self->identity.tenant, self->identity.name,
                                        &self->files, problem);
    if (status == SHEAF_OK && self->token == NULL) status = check_renewable(self, problem);
    if (status == SHEAF_OK) status = take_key(self, problem);
    if (status == SHEAF_OK) status = exchange(self, &bundle, problem);
    if (status == SHEAF_OK) status = store(self, bundle, problem);
    PKCS7_free(bundle);
    EVP_PKEY_free(self->key);
    return status;
}

int sheaf_pki_enroll(const sheaf_pki_choices *chosen) {
    enrolment self = {.chosen = chosen};
    sheaf_pki_choices named = *chosen;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_buffer token = {NULL, 0, 0};
    if (named.role == NULL) named.role = "device";
    const char *wrong = sheaf_pki_identity(&named, &self.identity);
    if (wrong != NULL) return sheaf_pki_usage(wrong);
    if (chosen->url == NULL || chosen->ca == NULL || strncmp(chosen->url, "https://", 8) != 0)
        return sheaf_pki_usage("enroll needs --url https://HOST:PORT and --ca");
    if ((chosen->token_file == NULL) != chosen->renew)
        return sheaf_pki_usage("enroll needs either --token-file or --renew");
    sheaf_status status = chosen->renew ? SHEAF_OK : sheaf_pki_read_token(chosen->token_file, &token, &problem);
    self.token = (char *)token.data;
    if (status == SHEAF_OK) status = enrol(&self, &problem);
    sheaf_wipe(token.data, token.size);
    free(token.data);
    if (status != SHEAF_OK) return sheaf_pki_fail("pki enroll", &problem);
    if (chosen->json)
        return sheaf_pki_print_json(
            json_pack("{s:s, s:s}", "certificate", self.files.certificate, "key", self.files.key));
    printf("%s %s of %s: %s, key %s\n", sheaf_role_name(self.identity.role), self.identity.name, self.identity.tenant,
           self.files.certificate, self.files.key);
    return SHEAF_EXIT_OK;
}
