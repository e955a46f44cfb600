/* enrol.c - certificates over HTTPS as EST has them (RFC 7030): cacerts, simpleenroll with a one-time token as the password
 * of HTTP Basic, simplereenroll with the certificate that one has.
 *
 * Bodies are DER in base64 both ways, as section 4 wants; certificates travel as PKCS#7 without content or signers. */
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pkcs7.h>
#include <openssl/x509.h>
#include <stdlib.h>

#include "common/pki/enrol.h"
#include "server/operator/call.h"

#define LINE_DIGITS 64u

/* --- certificates on their way out -------------------------------------------------------------------------------- */

static PKCS7 *make_bundle(X509 *first, STACK_OF(X509) * others) {
    PKCS7 *bundle = PKCS7_new();
    int ok = bundle != NULL && PKCS7_set_type(bundle, NID_pkcs7_signed) == 1;
    if (ok) bundle->d.sign->contents->type = OBJ_nid2obj(NID_pkcs7_data); /* and no content: degenerate */
    if (ok && first != NULL) ok = PKCS7_add_certificate(bundle, first) == 1;
    for (int i = 0; ok && i < sk_X509_num(others); i++)
        ok = PKCS7_add_certificate(bundle, sk_X509_value(others, i)) == 1;
    if (ok) return bundle;
    PKCS7_free(bundle);
    return NULL;
}

/* Base64 in lines, with a NUL; NULL without memory. */
static char *encode_lines(const uint8_t *der, int size) {
    size_t digits = 4 * (((size_t)size + 2) / 3);
    char *text = malloc(digits + digits / LINE_DIGITS + 3);
    size_t used = 0;
    for (int at = 0; text != NULL && at < size; at += (int)LINE_DIGITS / 4 * 3) {
        int part = size - at < (int)LINE_DIGITS / 4 * 3 ? size - at : (int)LINE_DIGITS / 4 * 3;
        used += (size_t)EVP_EncodeBlock((unsigned char *)text + used, der + at, part);
        text[used++] = '\n';
    }
    if (text != NULL) text[used] = '\0';
    return text;
}

static void answer_bundle(sheaf_call *call, X509 *first, STACK_OF(X509) * others) {
    uint8_t *der = NULL;
    PKCS7 *bundle = make_bundle(first, others);
    int size = bundle == NULL ? 0 : i2d_PKCS7(bundle, &der);
    char *text = size > 0 ? encode_lines(der, size) : NULL;
    if (text == NULL) {
        sheaf_call_refuse(call, 500, SHEAF_E_MEMORY, "cannot put the certificates together");
    } else {
        const sheaf_http_reply reply = {200, "application/pkcs7-mime; smime-type=certs-only",
                                        sheaf_span_of(text, strlen(text)), "Content-Transfer-Encoding", "base64"};
        sheaf_http_answer(call->exchange, &reply);
    }
    free(text);
    OPENSSL_free(der);
    PKCS7_free(bundle);
    ERR_clear_error();
}

/* --- the authority ------------------------------------------------------------------------------------------------ */

/* NULL when it was answered. The caller closes it at once: other processes may wait for its lock. */
static sheaf_authority *open_authority(sheaf_call *call) {
    const char *folder = call->operator->options.config->enrolment.authority;
    sheaf_authority *authority = NULL;
    sheaf_problem problem = {SHEAF_OK, ""};
    if (folder == NULL) {
        sheaf_call_refuse(call, 404, SHEAF_E_NOT_FOUND, "no enrolment here: enrolment.authority is not configured");
        return NULL;
    }
    sheaf_status status = sheaf_authority_open(folder, &authority, &problem);
    if (status == SHEAF_OK) return authority;
    sheaf_log(SHEAF_LOG_ERROR, "authority_unusable", "reason=\"%s\"", problem.text);
    sheaf_call_refuse(call, 503, status, "the authority cannot be used now; its operator finds why in the log");
    return NULL;
}

void sheaf_get_cacerts(sheaf_call *call) {
    sheaf_authority *authority = open_authority(call);
    if (authority == NULL) return;
    answer_bundle(call, NULL, sheaf_authority_chain(authority));
    sheaf_authority_close(authority);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* The request's DER in `der`; 0 when it was answered. */
static int take_request(sheaf_call *call, sheaf_buffer *der) {
    sheaf_span body = sheaf_http_body_of(call->exchange);
    if (strcmp(call->head->content_type, "application/pkcs10") != 0) {
        sheaf_call_refuse(call, 415, SHEAF_E_MALFORMED, "expected Content-Type: application/pkcs10");
        return 0;
    }
    if (body.size > 0 && sheaf_http_read_base64(body, der) && der->size > 0) return 1;
    sheaf_call_refuse(call, 400, SHEAF_E_MALFORMED, "expected a PKCS#10 request of at most %u bytes, DER in base64",
                      SHEAF_REQUEST_BYTES_MAX);
    return 0;
}

static void refuse(sheaf_call *call, const char *who, sheaf_status status, const sheaf_problem *problem) {
    if (status < 200)
        sheaf_refusals_note(call->operator->options.refusals, status, "", who, problem->text);
    else
        sheaf_log(SHEAF_LOG_ERROR, "enrolment_failed", "client=%s reason=\"%s\"", who, problem->text);
    sheaf_call_refuse(call, sheaf_call_code_of(status), status, "%s",
                      status < 200 ? problem->text : "the authority failed; its operator finds why in the log");
}

static void answer_issued(sheaf_call *call, sheaf_authority *authority, const sheaf_issued *issued, sheaf_buffer *der) {
    const unsigned char *at = der->data;
    X509 *x509 = d2i_X509(NULL, &at, (long)der->size);
    sheaf_log(SHEAF_LOG_INFO, "certificate_issued", "client=%s tenant=%s role=%s serial=%s not_after=%s",
              issued->identity.name, issued->identity.tenant, sheaf_role_name(issued->identity.role), issued->serial,
              issued->not_after);
    answer_bundle(call, x509, sheaf_authority_chain(authority));
    X509_free(x509);
    free(der->data);
}

/* The name in the credentials is that in the request: a token does not say on the wire for whom it is. */
static sheaf_status check_user(const char *user, sheaf_span request, sheaf_problem *problem) {
    sheaf_request_content content;
    sheaf_status status = sheaf_request_read(request, &content, problem);
    if (status != SHEAF_OK) return status;
    if (strcmp(content.identity.name, user) != 0)
        status = sheaf_problem_set(problem, SHEAF_E_IDENTITY, "the user is '%s', the request is for '%s'", user,
                                   content.identity.name);
    sheaf_request_fini(&content);
    return status;
}

static void enrol_with(sheaf_call *call, const char *user, const char *token, sheaf_span request) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_issued issued;
    sheaf_buffer der = {NULL, 0, 0};
    sheaf_authority *authority = open_authority(call);
    if (authority == NULL) return;
    sheaf_status status = check_user(user, request, &problem);
    if (status == SHEAF_OK) status = sheaf_authority_enrol(authority, token, request, &issued, &der, &problem);
    if (status == SHEAF_OK)
        answer_issued(call, authority, &issued, &der);
    else
        refuse(call, user, status, &problem);
    sheaf_authority_close(authority);
}

void sheaf_enrol(sheaf_call *call) {
    uint8_t memory[SHEAF_REQUEST_BYTES_MAX];
    sheaf_buffer request = {memory, 0, sizeof memory};
    char user[SHEAF_NAME_BYTES] = "", token[SHEAF_HTTP_PARAMETER_BYTES] = "";
    if (!sheaf_http_read_basic(call->head->authorization, user, token) || !sheaf_name_ok(user))
        sheaf_call_challenge(call, "Basic realm=\"sheaf enrolment\", charset=\"UTF-8\"",
                             "expected the device's name and a one-time token (sheaf pki token) as user and password");
    else if (take_request(call, &request))
        enrol_with(call, user, token, sheaf_buffer_span(&request));
    sheaf_wipe(token, sizeof token);
}

void sheaf_enrol_again(sheaf_call *call) {
    uint8_t memory[SHEAF_REQUEST_BYTES_MAX];
    sheaf_buffer request = {memory, 0, sizeof memory}, der = {NULL, 0, 0};
    sheaf_certificate *peer = sheaf_http_peer(call->exchange);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_issued issued;
    if (peer == NULL) { /* the socket has no certificates */
        sheaf_call_refuse(call, 403, SHEAF_E_ROLE,
                          "expected TLS with the certificate that is to be followed by another");
        return;
    }
    if (!take_request(call, &request)) return;
    sheaf_authority *authority = open_authority(call);
    if (authority == NULL) return;
    sheaf_status status = sheaf_authority_enrol_again(authority, peer, call->operator->options.config->enrolment.days,
                                                      sheaf_buffer_span(&request), &issued, &der, &problem);
    if (status == SHEAF_OK)
        answer_issued(call, authority, &issued, &der);
    else
        refuse(call, sheaf_certificate_identity(peer)->name, status, &problem);
    sheaf_authority_close(authority);
}
