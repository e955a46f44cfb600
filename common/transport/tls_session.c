#include "common/transport/tls_session.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define DRAINED_BYTES_MAX 65536

struct sheaf_tls_context {
    pthread_mutex_t lock;
    unsigned references;
    atomic_uint failures;
    sheaf_tls_source *source;
    sheaf_tls_side side;
    char host[256];
};

struct sheaf_tls_session {
    SSL *ssl;
    const sheaf_tls_wire *way; /* how bytes get to `wire` */
    void *wire;
    sheaf_tls_context *context;
    sheaf_certificate *peer;
    int established, failed;
    size_t drained; /* bytes that came after we refused */
    int alert;      /* received from the peer; -1: none */
    sheaf_status status;
    char text[sizeof((sheaf_tls_state *)0)->text];
};

/* ---- why a connection failed ---- */

static void refuse(sheaf_tls_session *session, sheaf_status status, const char *why, X509 *certificate) {
    char subject[256] = "";
    BIO *bio = certificate == NULL ? NULL : BIO_new(BIO_s_mem());
    if (bio != NULL) {
        /* RFC 2253 with control characters escaped: the name is the peer's word and goes into our log. */
        X509_NAME_print_ex(bio, X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
        int size = BIO_read(bio, subject, (int)sizeof subject - 1);
        subject[size > 0 ? size : 0] = '\0';
        BIO_free(bio);
    }
    session->status = status;
    (void)snprintf(session->text, sizeof session->text, "%s%s%s%s", why, subject[0] ? " (subject " : "", subject,
                   subject[0] ? ")" : "");
}

static sheaf_status status_of_alert(int alert) {
    if (alert == SSL_AD_CERTIFICATE_REVOKED) return SHEAF_E_REVOKED;
    if (alert == SSL_AD_PROTOCOL_VERSION) return SHEAF_E_VERSION;
    int certificate = (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_CERTIFICATE_UNKNOWN) ||
                      alert == SSL_AD_UNKNOWN_CA || alert == SSL_AD_CERTIFICATE_REQUIRED;
    return certificate ? SHEAF_E_CERTIFICATE : SHEAF_E_NETWORK;
}

static const char *advice_for_alert(int alert) {
    if (alert == SSL_AD_CERTIFICATE_REVOKED) return "; our certificate was revoked: enrol again for a new one";
    if (alert == SSL_AD_CERTIFICATE_EXPIRED)
        return "; our certificate is outside its validity by the peer's clock: renew it, or set the clock that is wrong";
    return "";
}

static sheaf_status status_of_reason(unsigned long error) {
    if (ERR_GET_LIB(error) != ERR_LIB_SSL) return SHEAF_E_NETWORK;
    switch (ERR_GET_REASON(error)) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        return SHEAF_E_CERTIFICATE;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
        return SHEAF_E_VERSION;
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_LENGTH_TOO_LONG:
    case SSL_R_BAD_PACKET_LENGTH:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_UNEXPECTED_MESSAGE:
        return SHEAF_E_MALFORMED;
    default:
        return SHEAF_E_NETWORK;
    }
}

static void note_failure(sheaf_tls_session *session) {
    session->failed = 1;
    (void)atomic_fetch_add(&session->context->failures, 1);
    if (session->status != SHEAF_OK) return; /* our own refusal is the reason */
    char text[256];
    unsigned long error = ERR_peek_error();
    if (session->alert >= 0) {
        (void)snprintf(text, sizeof text, "the peer refused: TLS alert '%s'%s",
                       SSL_alert_desc_string_long(session->alert), advice_for_alert(session->alert));
        refuse(session, status_of_alert(session->alert), text, NULL);
    } else if (error != 0) {
        const char *reason = ERR_reason_error_string(error);
        (void)snprintf(text, sizeof text, "TLS failed: %s", reason == NULL ? "unknown reason" : reason);
        refuse(session, status_of_reason(error), text, NULL);
    } else {
        refuse(session, SHEAF_E_NETWORK,
               session->established ? "the connection was lost" : "closed before the handshake ended", NULL);
    }
}

/* A server that refuses in the middle of a peer's flight must not close at once: what still comes would be answered with
 * a reset, which destroys the alert on its way, and the device would never learn why. So the stream stays open and
 * swallows what comes, until the peer closes, or sends too much, or the owner of the stream closes it. */
static int linger(sheaf_tls_session *session) {
    uint8_t waste[2048];
    while (session->drained < DRAINED_BYTES_MAX) {
        size_t size = sizeof waste;
        int error = session->way->receive(session->wire, waste, &size);
        if (error != 0) return error;
        session->drained += size;
    }
    return NNG_ECONNSHUT;
}

static int after_failure(sheaf_tls_session *session) {
    if (session->established) return NNG_ECONNSHUT;
    return session->context->side == SHEAF_TLS_SERVER ? linger(session) : NNG_EPEERAUTH;
}

/* SSL_get_error to NNG's errors; NNG_EAGAIN: more bytes must move first. */
static int nng_error_of(sheaf_tls_session *session, int result) {
    switch (SSL_get_error(session->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return NNG_EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return NNG_ECONNSHUT;
    default:
        note_failure(session);
        return after_failure(session);
    }
}

/* ---- who the peer is ---- */

static int chain_refused(sheaf_tls_session *session, X509_STORE_CTX *store, X509 *leaf) {
    int error = X509_STORE_CTX_get_error(store);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = sheaf_trust_explain(store, &problem);
    if (status != SHEAF_E_MEMORY) (void)sheaf_problem_prefix(&problem, "certificate refused");
    if (error == X509_V_ERR_HOSTNAME_MISMATCH || error == X509_V_ERR_IP_ADDRESS_MISMATCH) {
        (void)sheaf_problem_set(&problem, status, "certificate refused: it is not for %.100s", session->context->host);
    }
    sheaf_certificate *peer = NULL;
    if (error == X509_V_ERR_INVALID_PURPOSE && sheaf_tls_read_peer(store, &peer, NULL) == SHEAF_OK) {
        status = SHEAF_E_ROLE; /* a good certificate of ours, but of the wrong end */
        (void)sheaf_problem_set(&problem, status,
                                "certificate refused: the role %s does not fit this end of a connection",
                                sheaf_role_name(sheaf_certificate_identity(peer)->role));
    }
    sheaf_certificate_unref(peer);
    refuse(session, status, problem.text, leaf);
    return 0;
}

/* Small devices' profile: the certificate's key must be on P-256 too, not only the exchange. */
static int key_fits_version(SSL *ssl, X509 *leaf) {
    return SSL_version(ssl) >= TLS1_3_VERSION || EVP_PKEY_get_base_id(X509_get0_pubkey(leaf)) == EVP_PKEY_EC;
}

static int identity_refused(sheaf_tls_session *session, X509_STORE_CTX *store, X509 *leaf, int error,
                            sheaf_status status, const char *why) {
    X509_STORE_CTX_set_error(store, error); /* chooses the alert */
    refuse(session, status, why, leaf);
    return 0;
}

/* Replaces OpenSSL's verification as a whole: its own first, then ours. Runs once in each full handshake, and no other
 * handshakes exist here. */
static int verify_peer(X509_STORE_CTX *store, void *unused) {
    (void)unused;
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    sheaf_tls_session *session = SSL_get_app_data(ssl);
    X509 *leaf = X509_STORE_CTX_get0_cert(store);
    if (X509_verify_cert(store) != 1) return chain_refused(session, store, leaf);
    sheaf_certificate *peer = NULL;
    sheaf_problem problem = {SHEAF_OK, "certificate refused: its key does not fit the TLS 1.2 profile"};
    if (!key_fits_version(ssl, leaf) || sheaf_tls_read_peer(store, &peer, &problem) != SHEAF_OK) {
        return identity_refused(session, store, leaf, X509_V_ERR_CERT_REJECTED, SHEAF_E_CERTIFICATE, problem.text);
    }
    int aggregator = sheaf_certificate_identity(peer)->role == SHEAF_ROLE_AGGREGATOR;
    if (aggregator != (session->context->side == SHEAF_TLS_LINK)) {
        sheaf_certificate_unref(peer);
        return identity_refused(session, store, leaf, X509_V_ERR_INVALID_PURPOSE, SHEAF_E_ROLE,
                                aggregator ? "certificate refused: an aggregator's, used by a client"
                                           : "certificate refused: a server must have an aggregator's");
    }
    sheaf_certificate_unref(session->peer);
    session->peer = peer;
    return 1;
}

static void note_alert(const SSL *ssl, int where, int value) {
    sheaf_tls_session *session = SSL_get_app_data(ssl);
    if (where == SSL_CB_READ_ALERT && session != NULL && (value & 0xff) != SSL_AD_CLOSE_NOTIFY)
        session->alert = value & 0xff;
}

/* ---- context ---- */

static void install_callbacks(SSL_CTX *ssl) {
    SSL_CTX_set_cert_verify_callback(ssl, verify_peer, NULL);
    SSL_CTX_set_info_callback(ssl, note_alert);
    (void)SSL_CTX_set_max_send_fragment(ssl, SHEAF_TLS_RECORD_BYTES);
}

sheaf_status sheaf_tls_context_open(const sheaf_tls_options *options, sheaf_tls_side side, const char *host,
                                    sheaf_tls_context **out, sheaf_problem *problem) {
    sheaf_tls_context *context = calloc(1, sizeof *context);
    if (context == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a TLS context");
    pthread_mutex_init(&context->lock, NULL);
    context->references = 1;
    atomic_init(&context->failures, 0);
    context->side = side;
    sheaf_status status = SHEAF_OK;
    if (side == SHEAF_TLS_LINK && (host == NULL || host[0] == '\0' || strlen(host) >= sizeof context->host)) {
        status = sheaf_problem_set(problem, SHEAF_E_USAGE, "no usable name of the server to verify");
    } else if (side == SHEAF_TLS_LINK) {
        (void)snprintf(context->host, sizeof context->host, "%s", host);
    }
    if (status == SHEAF_OK) status = sheaf_tls_source_open(options, side, install_callbacks, &context->source, problem);
    if (status == SHEAF_OK) {
        *out = context;
    } else {
        sheaf_tls_context_unref(context);
    }
    return status;
}

static void context_free(sheaf_tls_context *context) {
    sheaf_tls_source_close(context->source);
    pthread_mutex_destroy(&context->lock);
    free(context);
}

void sheaf_tls_context_unref(sheaf_tls_context *context) {
    if (context == NULL) return;
    pthread_mutex_lock(&context->lock);
    unsigned left = --context->references;
    pthread_mutex_unlock(&context->lock);
    if (left == 0) context_free(context);
}

unsigned sheaf_tls_context_failures(sheaf_tls_context *context) { return atomic_load(&context->failures); }

sheaf_tls_context *sheaf_tls_context_ref(sheaf_tls_context *context) {
    if (context == NULL) return NULL;
    pthread_mutex_lock(&context->lock);
    context->references++;
    pthread_mutex_unlock(&context->lock);
    return context;
}

/* ---- bytes: an OpenSSL BIO over the wire's two functions ---- */

static BIO_METHOD *wire_method;

static int wire_result(BIO *bio, int error, size_t *size, void (*set_retry)(BIO *bio)) {
    if (error == 0) return 1;
    *size = 0;
    if (error == NNG_EAGAIN) set_retry(bio);
    return 0;
}

static void retry_write(BIO *bio) { BIO_set_retry_write(bio); }
static void retry_read(BIO *bio) { BIO_set_retry_read(bio); }

static int wire_write(BIO *bio, const char *data, size_t size, size_t *written) {
    const sheaf_tls_session *session = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    *written = size;
    return wire_result(bio, session->way->send(session->wire, (const uint8_t *)data, written), written, retry_write);
}

static int wire_read(BIO *bio, char *data, size_t size, size_t *got) {
    const sheaf_tls_session *session = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    *got = size;
    return wire_result(bio, session->way->receive(session->wire, (uint8_t *)data, got), got, retry_read);
}

static long wire_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH || command == BIO_CTRL_PUSH ||
           command == BIO_CTRL_POP; /* nothing is kept back here */
}

static int wire_create(BIO *bio) {
    BIO_set_init(bio, 1);
    return 1;
}

static void make_wire_method(void) {
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "sheaf");
    if (method != NULL && BIO_meth_set_write_ex(method, wire_write) && BIO_meth_set_read_ex(method, wire_read) &&
        BIO_meth_set_ctrl(method, wire_control) && BIO_meth_set_create(method, wire_create))
        wire_method = method;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- sessions ---- */

static int expect_host(SSL *ssl, const char *host) {
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (X509_VERIFY_PARAM_set1_ip_asc(param, host)) return 1;
    ERR_clear_error(); /* not an address, so a name */
    return SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
}

static int prepare(sheaf_tls_session *session) {
    (void)pthread_once(&once, make_wire_method);
    session->ssl = sheaf_tls_source_connect(session->context->source);
    BIO *bio = wire_method == NULL ? NULL : BIO_new(wire_method);
    if (session->ssl == NULL || bio == NULL) {
        BIO_free(bio);
        return NNG_ENOMEM;
    }
    BIO_set_data(bio, session);
    SSL_set_bio(session->ssl, bio, bio);
    SSL_set_app_data(session->ssl, session);
    if (session->context->side == SHEAF_TLS_SERVER) {
        SSL_set_accept_state(session->ssl);
        return 0;
    }
    SSL_set_connect_state(session->ssl);
    return expect_host(session->ssl, session->context->host) ? 0 : NNG_ECRYPTO;
}

int sheaf_tls_session_begin(sheaf_tls_context *context, const sheaf_tls_wire *way, void *wire,
                            sheaf_tls_session **out) {
    sheaf_tls_session *session = calloc(1, sizeof *session);
    if (session == NULL) return NNG_ENOMEM;
    session->alert = -1;
    session->way = way;
    session->wire = wire;
    session->context = sheaf_tls_context_ref(context);
    int error = prepare(session);
    if (error == 0) {
        *out = session;
    } else {
        sheaf_tls_session_end(session);
    }
    return error;
}

void sheaf_tls_session_end(sheaf_tls_session *session) {
    if (session == NULL) return;
    SSL_free(session->ssl);
    sheaf_certificate_unref(session->peer);
    sheaf_tls_context_unref(session->context);
    free(session);
}

void sheaf_tls_session_shut(sheaf_tls_session *session) {
    if (!session->established || session->failed) return;
    ERR_clear_error();
    (void)SSL_shutdown(session->ssl); /* a courtesy; whether it still gets out does not matter */
    ERR_clear_error();
}

/* The handshake also runs inside the first read or write, so every way in ends here. */
static int finished(sheaf_tls_session *session, int result) {
    if (!session->established && SSL_is_init_finished(session->ssl)) session->established = 1;
    int error = result == 1 ? 0 : nng_error_of(session, result);
    ERR_clear_error();
    return error;
}

int sheaf_tls_session_shake(sheaf_tls_session *session) {
    if (session->failed) return after_failure(session);
    ERR_clear_error();
    return finished(session, SSL_do_handshake(session->ssl));
}

int sheaf_tls_session_read(sheaf_tls_session *session, uint8_t *bytes, size_t *size) {
    if (session->failed) return after_failure(session);
    ERR_clear_error();
    return finished(session, SSL_read_ex(session->ssl, bytes, *size, size));
}

int sheaf_tls_session_write(sheaf_tls_session *session, const uint8_t *bytes, size_t *size) {
    if (session->failed) return after_failure(session);
    ERR_clear_error();
    return finished(session, SSL_write_ex(session->ssl, bytes, *size, size));
}

int sheaf_tls_session_is_shaking(const sheaf_tls_session *session) { return !session->established; }

int sheaf_tls_session_holds_part(const sheaf_tls_session *session) { return SSL_has_pending(session->ssl); }

void sheaf_tls_session_tell(const sheaf_tls_session *session, sheaf_tls_state *state) {
    int verified = session->established && session->peer != NULL && !session->failed;
    state->peer = verified ? sheaf_certificate_ref(session->peer) : NULL;
    state->status = session->status;
    memcpy(state->text, session->text, sizeof state->text);
}
