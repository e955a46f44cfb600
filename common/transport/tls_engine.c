#include "common/transport/tls_engine.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <nng/supplemental/tls/engine.h>

/* The engine's struct grew in NNG 1.6 without a change of its version number, so the library's version decides. */
#if NNG_MAJOR_VERSION != 1 || NNG_MINOR_VERSION != 5
#error "tls_engine.c is written for NNG 1.5: check nng/supplemental/tls/engine.h before you allow another version"
#endif
_Static_assert(NNG_TLS_ENGINE_VERSION == NNG_TLS_ENGINE_V1, "another engine interface");

#define DRAINED_BYTES_MAX 65536
#define RELEASE_S_MAX     5 /* NNG's reaper needs milliseconds */
/* NNG moves 16 KiB at a time below TLS. With its head, type and tag a record of this size fits, so that each travels in
 * one piece; the usual 16 KiB would travel in two, with a wait for the second. */
#define RECORD_BYTES (16384 - 5 - 1 - 16)

struct sheaf_tls_context {
    pthread_mutex_t lock;
    pthread_cond_t released;
    unsigned references;
    atomic_uint failures;
    sheaf_tls_source *source;
    sheaf_tls_side side;
    char host[256];
};

/* NNG allocates these two behind its own structs and clears them. */
struct nng_tls_engine_config {
    sheaf_tls_context *context;
};
struct nng_tls_engine_conn {
    SSL *ssl;
    void *wire; /* NNG's handle for nng_tls_engine_send and _recv */
    sheaf_tls_context *context;
    sheaf_certificate *peer;
    int established, failed;
    size_t drained; /* bytes that came after we refused */
    uint64_t moved; /* bytes on the wire, both ways */
    int alert;      /* received from the peer; -1: none */
    sheaf_status status;
    char text[sizeof((sheaf_tls_state *)0)->text];
};

/* NNG calls config init and `verified` on the thread that asks, so these carry what its interface cannot. */
static _Thread_local sheaf_tls_context *handed_over;
static _Thread_local sheaf_tls_state *asked;

/* ---- why a connection failed ---- */

static void refuse(nng_tls_engine_conn *conn, sheaf_status status, const char *why, X509 *certificate) {
    char subject[256] = "";
    BIO *bio = certificate == NULL ? NULL : BIO_new(BIO_s_mem());
    if (bio != NULL) {
        /* RFC 2253 with control characters escaped: the name is the peer's word and goes into our log. */
        X509_NAME_print_ex(bio, X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
        int size = BIO_read(bio, subject, (int)sizeof subject - 1);
        subject[size > 0 ? size : 0] = '\0';
        BIO_free(bio);
    }
    conn->status = status;
    (void)snprintf(conn->text, sizeof conn->text, "%s%s%s%s", why, subject[0] ? " (subject " : "", subject,
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

static void note_failure(nng_tls_engine_conn *conn) {
    conn->failed = 1;
    (void)atomic_fetch_add(&conn->context->failures, 1);
    if (conn->status != SHEAF_OK) return; /* our own refusal is the reason */
    char text[256];
    unsigned long error = ERR_peek_error();
    if (conn->alert >= 0) {
        (void)snprintf(text, sizeof text, "the peer refused: TLS alert '%s'%s", SSL_alert_desc_string_long(conn->alert),
                       advice_for_alert(conn->alert));
        refuse(conn, status_of_alert(conn->alert), text, NULL);
    } else if (error != 0) {
        const char *reason = ERR_reason_error_string(error);
        (void)snprintf(text, sizeof text, "TLS failed: %s", reason == NULL ? "unknown reason" : reason);
        refuse(conn, status_of_reason(error), text, NULL);
    } else {
        refuse(conn, SHEAF_E_NETWORK,
               conn->established ? "the connection was lost" : "closed before the handshake ended", NULL);
    }
}

/* A server that refuses in the middle of a peer's flight must not close at once: what still comes would be answered with
 * a reset, which destroys the alert on its way, and the device would never learn why. So the stream stays open and
 * swallows what comes, until the peer closes, or sends too much, or the owner of the stream closes it. */
static int linger(nng_tls_engine_conn *conn) {
    uint8_t waste[2048];
    while (conn->drained < DRAINED_BYTES_MAX) {
        size_t size = sizeof waste;
        int error = nng_tls_engine_recv(conn->wire, waste, &size);
        if (error != 0) return error;
        conn->drained += size;
    }
    return NNG_ECONNSHUT;
}

static int after_failure(nng_tls_engine_conn *conn) {
    if (conn->established) return NNG_ECONNSHUT;
    return conn->context->side == SHEAF_TLS_SERVER ? linger(conn) : NNG_EPEERAUTH;
}

/* SSL_get_error to NNG's errors; NNG_EAGAIN: more bytes must move first. */
static int nng_error_of(nng_tls_engine_conn *conn, int result) {
    switch (SSL_get_error(conn->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return NNG_EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return NNG_ECONNSHUT;
    default:
        note_failure(conn);
        return after_failure(conn);
    }
}

/* ---- who the peer is ---- */

static int chain_refused(nng_tls_engine_conn *conn, X509_STORE_CTX *store, X509 *leaf) {
    int error = X509_STORE_CTX_get_error(store);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = sheaf_trust_explain(store, &problem);
    if (status != SHEAF_E_MEMORY) (void)sheaf_problem_prefix(&problem, "certificate refused");
    if (error == X509_V_ERR_HOSTNAME_MISMATCH || error == X509_V_ERR_IP_ADDRESS_MISMATCH) {
        (void)sheaf_problem_set(&problem, status, "certificate refused: it is not for %.100s", conn->context->host);
    }
    sheaf_certificate *peer = NULL;
    if (error == X509_V_ERR_INVALID_PURPOSE && sheaf_tls_read_peer(store, &peer, NULL) == SHEAF_OK) {
        status = SHEAF_E_ROLE; /* a good certificate of ours, but of the wrong end */
        (void)sheaf_problem_set(&problem, status,
                                "certificate refused: the role %s does not fit this end of a connection",
                                sheaf_role_name(sheaf_certificate_identity(peer)->role));
    }
    sheaf_certificate_unref(peer);
    refuse(conn, status, problem.text, leaf);
    return 0;
}

/* Small devices' profile: the certificate's key must be on P-256 too, not only the exchange. */
static int key_fits_version(SSL *ssl, X509 *leaf) {
    return SSL_version(ssl) >= TLS1_3_VERSION || EVP_PKEY_get_base_id(X509_get0_pubkey(leaf)) == EVP_PKEY_EC;
}

static int identity_refused(nng_tls_engine_conn *conn, X509_STORE_CTX *store, X509 *leaf, int error,
                            sheaf_status status, const char *why) {
    X509_STORE_CTX_set_error(store, error); /* chooses the alert */
    refuse(conn, status, why, leaf);
    return 0;
}

/* Replaces OpenSSL's verification as a whole: its own first, then ours. Runs once in each full handshake, and no other
 * handshakes exist here. */
static int verify_peer(X509_STORE_CTX *store, void *unused) {
    (void)unused;
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    nng_tls_engine_conn *conn = SSL_get_app_data(ssl);
    X509 *leaf = X509_STORE_CTX_get0_cert(store);
    if (X509_verify_cert(store) != 1) return chain_refused(conn, store, leaf);
    sheaf_certificate *peer = NULL;
    sheaf_problem problem = {SHEAF_OK, "certificate refused: its key does not fit the TLS 1.2 profile"};
    if (!key_fits_version(ssl, leaf) || sheaf_tls_read_peer(store, &peer, &problem) != SHEAF_OK) {
        return identity_refused(conn, store, leaf, X509_V_ERR_CERT_REJECTED, SHEAF_E_CERTIFICATE, problem.text);
    }
    int aggregator = sheaf_certificate_identity(peer)->role == SHEAF_ROLE_AGGREGATOR;
    if (aggregator != (conn->context->side == SHEAF_TLS_LINK)) {
        sheaf_certificate_unref(peer);
        return identity_refused(conn, store, leaf, X509_V_ERR_INVALID_PURPOSE, SHEAF_E_ROLE,
                                aggregator ? "certificate refused: an aggregator's, used by a client"
                                           : "certificate refused: a server must have an aggregator's");
    }
    sheaf_certificate_unref(conn->peer);
    conn->peer = peer;
    return 1;
}

static void note_alert(const SSL *ssl, int where, int value) {
    nng_tls_engine_conn *conn = SSL_get_app_data(ssl);
    if (where == SSL_CB_READ_ALERT && conn != NULL && (value & 0xff) != SSL_AD_CLOSE_NOTIFY) conn->alert = value & 0xff;
}

/* ---- context ---- */

static void install_callbacks(SSL_CTX *ssl) {
    SSL_CTX_set_cert_verify_callback(ssl, verify_peer, NULL);
    SSL_CTX_set_info_callback(ssl, note_alert);
    (void)SSL_CTX_set_max_send_fragment(ssl, RECORD_BYTES);
}

sheaf_status sheaf_tls_context_open(const sheaf_tls_options *options, sheaf_tls_side side, const char *host,
                                    sheaf_tls_context **out, sheaf_problem *problem) {
    sheaf_tls_context *context = calloc(1, sizeof *context);
    if (context == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a TLS context");
    pthread_mutex_init(&context->lock, NULL);
    pthread_cond_init(&context->released, NULL);
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
    pthread_cond_destroy(&context->released);
    pthread_mutex_destroy(&context->lock);
    free(context);
}

void sheaf_tls_context_unref(sheaf_tls_context *context) {
    if (context == NULL) return;
    pthread_mutex_lock(&context->lock);
    unsigned left = --context->references;
    pthread_cond_broadcast(&context->released);
    pthread_mutex_unlock(&context->lock);
    if (left == 0) context_free(context);
}

void sheaf_tls_context_release(sheaf_tls_context *context) {
    struct timespec until;
    int waited = 0;
    if (context == NULL) return;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += RELEASE_S_MAX;
    pthread_mutex_lock(&context->lock);
    while (context->references > 1 && waited == 0) {
        waited = pthread_cond_timedwait(&context->released, &context->lock, &until);
    }
    pthread_mutex_unlock(&context->lock);
    sheaf_tls_context_unref(context);
}

unsigned sheaf_tls_context_failures(sheaf_tls_context *context) { return atomic_load(&context->failures); }

static sheaf_tls_context *context_ref(sheaf_tls_context *context) {
    if (context == NULL) return NULL;
    pthread_mutex_lock(&context->lock);
    context->references++;
    pthread_mutex_unlock(&context->lock);
    return context;
}

/* ---- bytes: an OpenSSL BIO over NNG's two functions ---- */

static BIO_METHOD *wire_method;

static int wire_write(BIO *bio, const char *data, size_t size, size_t *written) {
    BIO_clear_retry_flags(bio);
    *written = size;
    nng_tls_engine_conn *conn = BIO_get_data(bio);
    int error = nng_tls_engine_send(conn->wire, (const uint8_t *)data, written);
    if (error == 0) {
        conn->moved += *written;
        return 1;
    }
    *written = 0;
    if (error == NNG_EAGAIN) BIO_set_retry_write(bio);
    return 0;
}

static int wire_read(BIO *bio, char *data, size_t size, size_t *got) {
    BIO_clear_retry_flags(bio);
    *got = size;
    nng_tls_engine_conn *conn = BIO_get_data(bio);
    int error = nng_tls_engine_recv(conn->wire, (uint8_t *)data, got);
    if (error == 0) {
        conn->moved += *got;
        return 1;
    }
    *got = 0;
    if (error == NNG_EAGAIN) BIO_set_retry_read(bio);
    return 0;
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

static int make_wire_method(void) {
    wire_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "nng");
    return wire_method != NULL && BIO_meth_set_write_ex(wire_method, wire_write) &&
           BIO_meth_set_read_ex(wire_method, wire_read) && BIO_meth_set_ctrl(wire_method, wire_control) &&
           BIO_meth_set_create(wire_method, wire_create);
}

/* ---- connections, each called under NNG's lock of that connection ---- */

static int expect_host(SSL *ssl, const char *host) {
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (X509_VERIFY_PARAM_set1_ip_asc(param, host)) return 1;
    ERR_clear_error(); /* not an address, so a name */
    return SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
}

static int conn_init(nng_tls_engine_conn *conn, void *wire, nng_tls_engine_config *config) {
    conn->alert = -1;
    conn->wire = wire;
    if (config->context == NULL) return NNG_ECRYPTO; /* a configuration that did not come from us lets nobody in */
    conn->context = context_ref(config->context);
    conn->ssl = sheaf_tls_source_connect(conn->context->source);
    BIO *bio = BIO_new(wire_method);
    if (conn->ssl == NULL || bio == NULL) {
        BIO_free(bio);
        return NNG_ENOMEM;
    }
    BIO_set_data(bio, conn);
    SSL_set_bio(conn->ssl, bio, bio);
    SSL_set_app_data(conn->ssl, conn);
    if (conn->context->side == SHEAF_TLS_SERVER) {
        SSL_set_accept_state(conn->ssl);
        return 0;
    }
    SSL_set_connect_state(conn->ssl);
    return expect_host(conn->ssl, conn->context->host) ? 0 : NNG_ECRYPTO;
}

/* NNG calls this also for connections that it never began, so all may be zero. */
static void conn_fini(nng_tls_engine_conn *conn) {
    SSL_free(conn->ssl);
    sheaf_certificate_unref(conn->peer);
    sheaf_tls_context_unref(conn->context);
    memset(conn, 0, sizeof *conn);
}

static void conn_close(nng_tls_engine_conn *conn) {
    if (!conn->established || conn->failed) return;
    ERR_clear_error();
    (void)SSL_shutdown(conn->ssl); /* a courtesy; whether it still gets out does not matter */
    ERR_clear_error();
}

/* The handshake also runs inside the first read or write, so every way in ends here. */
static int finished(nng_tls_engine_conn *conn, int result) {
    if (!conn->established && SSL_is_init_finished(conn->ssl)) conn->established = 1;
    int error = result == 1 ? 0 : nng_error_of(conn, result);
    ERR_clear_error();
    return error;
}

static int conn_handshake(nng_tls_engine_conn *conn) {
    if (conn->failed) return after_failure(conn);
    ERR_clear_error();
    return finished(conn, SSL_do_handshake(conn->ssl));
}

static int conn_recv(nng_tls_engine_conn *conn, uint8_t *data, size_t *size) {
    if (conn->failed) return after_failure(conn);
    ERR_clear_error();
    return finished(conn, SSL_read_ex(conn->ssl, data, *size, size));
}

static int conn_send(nng_tls_engine_conn *conn, const uint8_t *data, size_t *size) {
    if (conn->failed) return after_failure(conn);
    ERR_clear_error();
    return finished(conn, SSL_write_ex(conn->ssl, data, *size, size));
}

static bool conn_verified(nng_tls_engine_conn *conn) {
    bool verified = conn->established && conn->peer != NULL && !conn->failed;
    if (asked != NULL) {
        asked->peer = verified ? sheaf_certificate_ref(conn->peer) : NULL;
        asked->status = conn->status;
        memcpy(asked->text, conn->text, sizeof asked->text);
        asked->moved_bytes = conn->moved;
    }
    return verified;
}

/* ---- configurations ---- */

static int config_init(nng_tls_engine_config *config, nng_tls_mode mode) {
    (void)mode;
    config->context = context_ref(handed_over);
    return 0;
}
static void config_fini(nng_tls_engine_config *config) { sheaf_tls_context_unref(config->context); }
/* NNG sets a name and a mode on the default configuration of every dialer and listener, before ours replaces it. They
 * change nothing here: names and modes are the context's. */
static int config_server(nng_tls_engine_config *config, const char *name) {
    (void)config, (void)name;
    return 0;
}
static int config_auth(nng_tls_engine_config *config, nng_tls_auth_mode mode) {
    (void)config, (void)mode;
    return 0;
}
static int config_ca_chain(nng_tls_engine_config *config, const char *certificates, const char *crl) {
    (void)config, (void)certificates, (void)crl;
    return NNG_ENOTSUP;
}
static int config_own_cert(nng_tls_engine_config *config, const char *certificate, const char *key,
                           const char *password) {
    (void)config, (void)certificate, (void)key, (void)password;
    return NNG_ENOTSUP;
}
static int config_version(nng_tls_engine_config *config, nng_tls_version minimum, nng_tls_version maximum) {
    (void)config, (void)minimum, (void)maximum;
    return NNG_ENOTSUP;
}

/* ---- registration ---- */

static nng_tls_engine_config_ops config_ops = {
    .size = sizeof(nng_tls_engine_config),
    .init = config_init,
    .fini = config_fini,
    .server = config_server,
    .auth = config_auth,
    .ca_chain = config_ca_chain,
    .own_cert = config_own_cert,
    .version = config_version,
};
static nng_tls_engine_conn_ops conn_ops = {
    .size = sizeof(nng_tls_engine_conn),
    .init = conn_init,
    .fini = conn_fini,
    .close = conn_close,
    .handshake = conn_handshake,
    .recv = conn_recv,
    .send = conn_send,
    .verified = conn_verified,
};
static const nng_tls_engine engine = {
    .version = NNG_TLS_ENGINE_VERSION,
    .config_ops = &config_ops,
    .conn_ops = &conn_ops,
    .name = "sheaf-openssl",
    .description = "OpenSSL 3, verified on both sides",
    .fips_mode = false,
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int registered;

/* NNG sets its built-in engine whenever it initialises, so it must have done that before we replace it: making a
 * configuration initialises it. */
static void register_engine(void) {
    nng_tls_config *config = NULL;
    if (strncmp(nng_version(), "1.5.", 4) != 0 || !make_wire_method()) return;
    if (nng_tls_config_alloc(&config, NNG_TLS_MODE_CLIENT) != 0) return;
    nng_tls_config_free(config);
    registered = nng_tls_engine_register(&engine) == 0;
}

sheaf_status sheaf_tls_context_configure(sheaf_tls_context *context, nng_tls_config **out, sheaf_problem *problem) {
    (void)pthread_once(&once, register_engine);
    if (!registered) {
        return sheaf_problem_set(problem, SHEAF_E_VERSION, "NNG %s does not take our TLS engine, which is made for 1.5",
                                 nng_version());
    }
    handed_over = context;
    int error =
        nng_tls_config_alloc(out, context->side == SHEAF_TLS_SERVER ? NNG_TLS_MODE_SERVER : NNG_TLS_MODE_CLIENT);
    handed_over = NULL;
    if (error == 0) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no TLS configuration: %s", nng_strerror(error));
}

void sheaf_tls_ask(nng_stream *stream, sheaf_tls_state *state) {
    bool verified = false;
    memset(state, 0, sizeof *state);
    asked = state;
    int error = nng_stream_get_bool(stream, NNG_OPT_TLS_VERIFIED, &verified);
    asked = NULL;
    if (error != 0) {
        state->status = SHEAF_E_NETWORK;
        (void)snprintf(state->text, sizeof state->text, "not a TLS stream of ours: %s", nng_strerror(error));
    }
}
