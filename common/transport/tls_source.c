#include "common/transport/tls_source.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "common/log.h"
#include "common/openssl_problem.h"

#define CERTIFICATE_LIST_BYTES_MAX 32768 /* of a peer, before anything is verified */
#define CHAIN_DEPTH_MAX            4
#define LOOK_PERIOD_S              1

_Static_assert(CHAIN_DEPTH_MAX + 1 == SHEAF_CHAIN_MAX, "a chain that passes can be kept");

struct sheaf_tls_source {
    sheaf_tls_side side;
    int tls12_profile;
    void (*prepare)(SSL_CTX *context);
    sheaf_trust *trust;
    sheaf_credentials *credentials;
    int own_trust;        /* nobody else looks after its files */
    pthread_mutex_t lock; /* guards the rest */
    SSL_CTX *ssl;
    uint64_t credentials_generation, trust_generation; /* of `ssl` */
    time_t looked;
};

/* --- settings ----------------------------------------------------------------------------------------------------- */

static int restrict_versions(SSL_CTX *ssl, int tls12_profile) {
    if (!tls12_profile) {
        return SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) && SSL_CTX_set1_groups_list(ssl, "X25519:P-256");
    }
    return SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION) && SSL_CTX_set1_groups_list(ssl, "P-256") &&
           SSL_CTX_set_cipher_list(ssl, "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384");
}

static int restrict_context(SSL_CTX *ssl, const sheaf_tls_source *source) {
    static const unsigned char session_context[] = "sheaf";
    int purpose = source->side == SHEAF_TLS_SERVER ? X509_PURPOSE_SSL_CLIENT : X509_PURPOSE_SSL_SERVER;
    SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(ssl,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_max_cert_list(ssl, CERTIFICATE_LIST_BYTES_MAX);
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_verify_depth(ssl, CHAIN_DEPTH_MAX);
    if (source->prepare != NULL) source->prepare(ssl);
    return restrict_versions(ssl, source->tls12_profile) && SSL_CTX_set_num_tickets(ssl, 0) &&
           SSL_CTX_set_purpose(ssl, purpose) &&
           SSL_CTX_set_session_id_context(ssl, session_context, sizeof session_context - 1);
}

static int present(SSL_CTX *ssl, const sheaf_credentials_pair *pair) {
    STACK_OF(X509) *chain = sheaf_certificate_intermediates(pair->certificate);
    return SSL_CTX_use_certificate(ssl, sheaf_certificate_x509(pair->certificate)) == 1 &&
           (chain == NULL || SSL_CTX_set1_chain(ssl, chain) == 1) &&
           SSL_CTX_use_PrivateKey(ssl, sheaf_signer_key(pair->signer)) == 1;
}

static sheaf_status make_context(const sheaf_tls_source *source, const sheaf_credentials_pair *pair, SSL_CTX **out,
                                 sheaf_problem *problem) {
    (void)ERR_set_mark();
    SSL_CTX *ssl = SSL_CTX_new(source->side == SHEAF_TLS_SERVER ? TLS_server_method() : TLS_client_method());
    sheaf_status status = SHEAF_OK;
    if (ssl == NULL || !restrict_context(ssl, source))
        status = sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "OpenSSL does not take our TLS settings");
    else if (!present(ssl, pair))
        status = sheaf_problem_openssl(problem, SHEAF_E_CERTIFICATE, "OpenSSL does not take our certificate and key");
    (void)ERR_pop_to_mark();
    if (status == SHEAF_OK) {
        SSL_CTX_set_cert_store(ssl, sheaf_trust_store(source->trust));
        *out = ssl;
    } else {
        SSL_CTX_free(ssl);
    }
    return status;
}

/* Under the lock, or before anybody else knows the source. What fails leaves the context that is there. */
static sheaf_status renew_context(sheaf_tls_source *source, sheaf_problem *problem) {
    sheaf_credentials_pair pair;
    SSL_CTX *fresh = NULL;
    uint64_t trusted = sheaf_trust_generation(source->trust);
    sheaf_credentials_take(source->credentials, &pair);
    sheaf_status status = make_context(source, &pair, &fresh, problem);
    source->credentials_generation = pair.generation;
    source->trust_generation = trusted;
    sheaf_credentials_pair_fini(&pair);
    if (status != SHEAF_OK) return status;
    SSL_CTX_free(source->ssl);
    source->ssl = fresh;
    return SHEAF_OK;
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static sheaf_status open_parts(sheaf_tls_source *source, const sheaf_tls_options *options, sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    source->own_trust = options->trust == NULL;
    if (options->credentials == NULL)
        status = sheaf_credentials_open(options->certificate_path, options->key_path, &source->credentials, problem);
    else
        source->credentials = sheaf_credentials_ref(options->credentials);
    if (status != SHEAF_OK) return status;
    const sheaf_trust_options files = {.ca_path = options->ca_path};
    if (source->own_trust)
        status = sheaf_trust_open(&files, &source->trust, problem);
    else
        source->trust = sheaf_trust_ref(options->trust);
    return status;
}

sheaf_status sheaf_tls_source_open(const sheaf_tls_options *options, sheaf_tls_side side,
                                   void (*prepare)(SSL_CTX *context), sheaf_tls_source **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_tls_source *source = calloc(1, sizeof *source);
    if (source == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for TLS");
    pthread_mutex_init(&source->lock, NULL);
    source->side = side;
    source->tls12_profile = options->tls12_profile;
    source->prepare = prepare;
    sheaf_status status = open_parts(source, options, problem);
    if (status == SHEAF_OK) status = renew_context(source, problem);
    if (status == SHEAF_OK)
        *out = source;
    else
        sheaf_tls_source_close(source);
    return status;
}

void sheaf_tls_source_close(sheaf_tls_source *source) {
    if (source == NULL) return;
    SSL_CTX_free(source->ssl);
    sheaf_trust_unref(source->trust);
    sheaf_credentials_unref(source->credentials);
    pthread_mutex_destroy(&source->lock);
    free(source);
}

/* --- connections -------------------------------------------------------------------------------------------------- */

static void look_at_files(sheaf_tls_source *source) {
    time_t now = time(NULL);
    if (now - source->looked < LOOK_PERIOD_S && now >= source->looked) return;
    source->looked = now;
    if (source->own_trust) (void)sheaf_trust_poll(source->trust);
}

SSL_CTX *sheaf_tls_source_context(sheaf_tls_source *source) {
    sheaf_problem problem = {SHEAF_OK, ""};
    pthread_mutex_lock(&source->lock);
    look_at_files(source);
    int is_old = source->credentials_generation != sheaf_credentials_generation(source->credentials) ||
                 source->trust_generation != sheaf_trust_generation(source->trust);
    if (is_old && renew_context(source, &problem) != SHEAF_OK)
        sheaf_log(SHEAF_LOG_ERROR, "certificate_not_reloaded", "status=%s reason=\"%s\"",
                  sheaf_status_name(problem.status), problem.text);
    SSL_CTX *ssl = source->ssl;
    (void)SSL_CTX_up_ref(ssl);
    pthread_mutex_unlock(&source->lock);
    return ssl;
}

SSL *sheaf_tls_source_connect(sheaf_tls_source *source) {
    SSL_CTX *context = sheaf_tls_source_context(source);
    SSL *ssl = SSL_new(context);
    SSL_CTX_free(context);
    return ssl;
}

/* --- peers -------------------------------------------------------------------------------------------------------- */

static int is_root(X509 *x509) { return (X509_get_extension_flags(x509) & EXFLAG_SS) != 0; }

sheaf_status sheaf_tls_read_peer(X509_STORE_CTX *verified, sheaf_certificate **out, sheaf_problem *problem) {
    STACK_OF(X509) *chain = X509_STORE_CTX_get0_chain(verified);
    X509 *certificates[SHEAF_CHAIN_MAX];
    size_t count = 0;
    for (int i = 0; i < sk_X509_num(chain) && count < SHEAF_CHAIN_MAX; i++) {
        X509 *x509 = sk_X509_value(chain, i);
        if (i > 0 && is_root(x509)) break;
        certificates[count++] = x509;
    }
    return sheaf_certificate_share_chain(certificates, count, out, problem);
}
