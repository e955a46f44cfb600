/* How many mutual TLS 1.3 connections come about in a second: dialed as a link does it, through NNG to the carrier's
 * server; and with OpenSSL alone on blocking sockets, with the same certificates, groups and checks of the chain. On both
 * sides the server's hello ends a connection, so that the server has verified the client's certificate by then. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/transport/nng_address.h"
#include "common/transport/sp.h"
#include "common/transport/tls_stream.h"
#include "server/tool/bench_nng.h"

#define DIALERS   8u
#define ACCEPTORS 8u

typedef struct {
    const sheaf_bench_load *load;
    const char *address;
    void *tls; /* sheaf_tls_context or SSL_CTX */
    atomic_uint connects;
    atomic_int stop;
} dialing;

/* ---- clients of both kinds ---- */

static double count_connects(dialing *state, void *(*dial_main)(void *)) {
    pthread_t threads[DIALERS];
    struct timespec measured = {(time_t)state->load->seconds,
                                (long)((state->load->seconds - (double)(time_t)state->load->seconds) * 1e9)};
    const struct timespec warm_up = {0, 200000000L};
    for (unsigned i = 0; i < DIALERS; i++)
        if (pthread_create(&threads[i], NULL, dial_main, state) != 0) sheaf_bench_die("clients", "no thread");
    (void)nanosleep(&warm_up, NULL);
    double begun = sheaf_bench_now();
    unsigned first = atomic_load(&state->connects);
    (void)nanosleep(&measured, NULL);
    double figure = (atomic_load(&state->connects) - first) / (sheaf_bench_now() - begun);
    atomic_store(&state->stop, 1);
    for (unsigned i = 0; i < DIALERS; i++) (void)pthread_join(threads[i], NULL);
    return figure;
}

/* ---- through NNG ---- */

/* One connection at a time, waited for. */
typedef struct {
    sheaf_tls_stream stream;
    nng_aio *dialing;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int is_over, error;
} calling;

static void on_step(void *context, int error) {
    calling *call = context;
    pthread_mutex_lock(&call->lock);
    call->is_over = 1;
    call->error = error;
    pthread_cond_signal(&call->ended);
    pthread_mutex_unlock(&call->lock);
}

static int wait_for_step(calling *call, int begun) {
    pthread_mutex_lock(&call->lock);
    while (begun == 0 && !call->is_over) pthread_cond_wait(&call->ended, &call->lock);
    int error = begun == 0 ? call->error : begun;
    call->is_over = 0;
    pthread_mutex_unlock(&call->lock);
    return error == 0;
}

static void connect_once(dialing *state, calling *call) {
    nng_stream_dialer *dialer = NULL;
    uint8_t hello[SHEAF_SP_HELLO_BYTES];
    if (nng_stream_dialer_alloc(&dialer, sheaf_nng_below_tls(state->address)) != 0 ||
        nng_stream_dialer_set_bool(dialer, NNG_OPT_TCP_NODELAY, true) != 0)
        sheaf_bench_die("clients", "no dialer");
    nng_stream_dialer_dial(dialer, call->dialing);
    nng_aio_wait(call->dialing);
    if (nng_aio_result(call->dialing) != 0) sheaf_bench_die("clients", nng_strerror(nng_aio_result(call->dialing)));
    sheaf_tls_stream_attach(&call->stream, nng_aio_get_output(call->dialing, 0), state->tls);
    if (!wait_for_step(call, sheaf_tls_stream_receive(&call->stream, hello, sizeof hello, NULL, 0)))
        sheaf_bench_die("clients", "no hello");
    sheaf_sp_write_hello(hello, SHEAF_SP_REQ);
    if (wait_for_step(call, sheaf_tls_stream_send(&call->stream, sheaf_span_of(hello, sizeof hello))))
        (void)atomic_fetch_add(&state->connects, 1);
    sheaf_tls_stream_detach(&call->stream);
    nng_stream_dialer_free(dialer);
}

static void *dial_nng(void *argument) {
    dialing *state = argument;
    calling call;
    memset(&call, 0, sizeof call);
    pthread_mutex_init(&call.lock, NULL);
    pthread_cond_init(&call.ended, NULL);
    if (sheaf_tls_stream_init(&call.stream, on_step, on_step, &call) != 0 ||
        nng_aio_alloc(&call.dialing, NULL, NULL) != 0)
        sheaf_bench_die("clients", "no memory");
    while (!atomic_load(&state->stop)) connect_once(state, &call);
    sheaf_tls_stream_fini(&call.stream);
    nng_aio_free(call.dialing);
    pthread_cond_destroy(&call.ended);
    pthread_mutex_destroy(&call.lock);
    return NULL;
}

double sheaf_bench_connects_drive(const sheaf_bench_load *load, const char *address) {
    sheaf_bench_paths paths;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_tls_context *context = NULL;
    sheaf_tls_options options = sheaf_bench_tls(load, 0, &paths);
    if (sheaf_tls_context_open(&options, SHEAF_TLS_LINK, "127.0.0.1", &context, &problem) != SHEAF_OK)
        sheaf_bench_die("clients", problem.text);
    dialing state = {.load = load, .address = address, .tls = context};
    double figure = count_connects(&state, dial_nng);
    sheaf_tls_context_unref(context);
    return figure;
}

/* ---- OpenSSL alone ---- */

/* OpenSSL reads a certificate's extensions when it first needs them; of those that all threads share, that is before they
 * start. */
static void read_authorities(SSL_CTX *tls) {
    STACK_OF(X509_OBJECT) *objects = X509_STORE_get0_objects(SSL_CTX_get_cert_store(tls));
    for (int i = 0; i < sk_X509_OBJECT_num(objects); i++) {
        X509 *authority = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(objects, i));
        if (authority != NULL) (void)X509_check_purpose(authority, -1, 0);
    }
}

static SSL_CTX *open_raw(const sheaf_bench_load *load, int number) {
    sheaf_bench_paths paths;
    sheaf_tls_options options = sheaf_bench_tls(load, number, &paths);
    SSL_CTX *tls = SSL_CTX_new(number < 0 ? TLS_server_method() : TLS_client_method());
    if (tls == NULL || !SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) ||
        !SSL_CTX_set1_groups_list(tls, "X25519:P-256") || !SSL_CTX_set_num_tickets(tls, 0) ||
        SSL_CTX_use_certificate_chain_file(tls, options.certificate_path) != 1 ||
        SSL_CTX_use_PrivateKey_file(tls, options.key_path, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_load_verify_file(tls, options.ca_path) != 1)
        sheaf_bench_die("OpenSSL", "does not take the certificates");
    read_authorities(tls);
    SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return tls;
}

typedef struct {
    SSL_CTX *tls;
    int listener;
} accepting;

static void *accept_main(void *argument) {
    const accepting *state = argument;
    for (;;) {
        int fd = accept(state->listener, NULL, NULL), one = 1;
        SSL *ssl = fd < 0 ? NULL : SSL_new(state->tls);
        if (ssl == NULL) continue;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        uint8_t hello[SHEAF_SP_HELLO_BYTES] = {0};
        (void)SSL_set_fd(ssl, fd);
        if (SSL_accept(ssl) == 1 && SSL_write(ssl, hello, sizeof hello) > 0) (void)SSL_read(ssl, hello, sizeof hello);
        SSL_free(ssl);
        (void)close(fd);
    }
    return NULL;
}

void sheaf_bench_raw_tls_serve(const sheaf_bench_load *load, int ready, int stop) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    char address[SHEAF_BENCH_ADDRESS_BYTES];
    accepting state = {open_raw(load, -1), socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(state.listener, (const struct sockaddr *)&at, size) != 0 || listen(state.listener, 128) != 0 ||
        getsockname(state.listener, (struct sockaddr *)&at, &size) != 0)
        sheaf_bench_die("OpenSSL", "cannot listen");
    for (unsigned i = 0; i < ACCEPTORS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, accept_main, &state) != 0) sheaf_bench_die("OpenSSL", "no thread");
    }
    (void)snprintf(address, sizeof address, "%u", ntohs(at.sin_port));
    sheaf_bench_serve_until(address, ready, stop);
    _exit(0); /* the threads use what stands on this stack */
}

static void *dial_raw(void *argument) {
    dialing *state = argument;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)strtoul(state->address, NULL, 10))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (!atomic_load(&state->stop)) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
        SSL *ssl = SSL_new(state->tls);
        uint8_t hello[SHEAF_SP_HELLO_BYTES] = {0};
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (ssl == NULL || connect(fd, (const struct sockaddr *)&to, sizeof to) != 0 || SSL_set_fd(ssl, fd) != 1 ||
            SSL_connect(ssl) != 1 || SSL_read(ssl, hello, sizeof hello) != (int)sizeof hello ||
            SSL_write(ssl, hello, sizeof hello) != (int)sizeof hello)
            sheaf_bench_die("OpenSSL", "a connection failed");
        (void)atomic_fetch_add(&state->connects, 1);
        SSL_free(ssl);
        (void)close(fd);
    }
    return NULL;
}

double sheaf_bench_raw_tls_drive(const sheaf_bench_load *load, const char *address) {
    dialing state = {.load = load, .address = address, .tls = open_raw(load, 0)};
    return count_connects(&state, dial_raw);
}
