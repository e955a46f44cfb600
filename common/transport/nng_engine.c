#include "common/transport/nng_engine.h"

#include <pthread.h>

#include <nng/supplemental/tls/engine.h>

/* The engine's struct grew in NNG 1.6 without a change of its version number, so the library's version decides. */
#if NNG_MAJOR_VERSION != 1 || NNG_MINOR_VERSION != 5
#error "nng_engine.c is written for NNG 1.5: check nng/supplemental/tls/engine.h before you allow another version"
#endif
_Static_assert(NNG_TLS_ENGINE_VERSION == NNG_TLS_ENGINE_V1, "another engine interface");

/* NNG allocates these two behind its own structs and clears them. */
struct nng_tls_engine_config {
    sheaf_tls_context *context;
};
struct nng_tls_engine_conn {
    sheaf_tls_session *session;
};

/* NNG calls config init on the thread that asks, so this carries what its interface cannot. */
static _Thread_local sheaf_tls_context *handed_over;

/* ---- connections, each called under NNG's lock of that connection ---- */

static const sheaf_tls_wire wire = {nng_tls_engine_send, nng_tls_engine_recv};

static int conn_init(nng_tls_engine_conn *conn, void *handle, nng_tls_engine_config *config) {
    if (config->context == NULL) return NNG_ECRYPTO; /* a configuration that did not come from us lets nobody in */
    return sheaf_tls_session_begin(config->context, &wire, handle, &conn->session);
}

/* NNG calls this also for connections that it never began, so it may be zero. */
static void conn_fini(nng_tls_engine_conn *conn) {
    sheaf_tls_session_end(conn->session);
    conn->session = NULL;
}

static void conn_close(nng_tls_engine_conn *conn) {
    if (conn->session != NULL) sheaf_tls_session_shut(conn->session);
}

static int conn_handshake(nng_tls_engine_conn *conn) { return sheaf_tls_session_shake(conn->session); }
static int conn_recv(nng_tls_engine_conn *conn, uint8_t *bytes, size_t *size) {
    return sheaf_tls_session_read(conn->session, bytes, size);
}
static int conn_send(nng_tls_engine_conn *conn, const uint8_t *bytes, size_t *size) {
    return sheaf_tls_session_write(conn->session, bytes, size);
}

static bool conn_verified(nng_tls_engine_conn *conn) {
    sheaf_tls_state state;
    sheaf_tls_session_tell(conn->session, &state);
    sheaf_certificate_unref(state.peer);
    return state.peer != NULL;
}

/* ---- configurations ---- */

static int config_init(nng_tls_engine_config *config, nng_tls_mode mode) {
    (void)mode;
    config->context = sheaf_tls_context_ref(handed_over);
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
    if (strncmp(nng_version(), "1.5.", 4) != 0) return;
    if (nng_tls_config_alloc(&config, NNG_TLS_MODE_CLIENT) != 0) return;
    nng_tls_config_free(config);
    registered = nng_tls_engine_register(&engine) == 0;
}

sheaf_status sheaf_nng_engine_configure(sheaf_tls_context *context, nng_tls_config **out, sheaf_problem *problem) {
    (void)pthread_once(&once, register_engine);
    if (!registered) {
        return sheaf_problem_set(problem, SHEAF_E_VERSION, "NNG %s does not take our TLS engine, which is made for 1.5",
                                 nng_version());
    }
    handed_over = context;
    int error = nng_tls_config_alloc(out, NNG_TLS_MODE_CLIENT /* changes nothing, see above */);
    handed_over = NULL;
    if (error == 0) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no TLS configuration: %s", nng_strerror(error));
}
