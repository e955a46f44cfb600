/* What NNG does by itself: REQ sockets with a payload a message, a REP socket with as many contexts as our server has
 * slots, everything asynchronous, and our TLS engine below both, for NNG's own is slower. */
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/transport/nng_engine.h"
#include "server/tool/bench_nng.h"

#define CONTEXTS 64u

static void need(int error, const char *what) {
    if (error != 0) sheaf_bench_die(what, nng_strerror(error));
}

static nng_tls_config *open_tls(const sheaf_bench_load *load, int number, sheaf_tls_side side) {
    sheaf_bench_paths paths;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_tls_context *context = NULL;
    nng_tls_config *config = NULL;
    sheaf_tls_options options = sheaf_bench_tls(load, number, &paths);
    if (sheaf_tls_context_open(&options, side, "127.0.0.1", &context, &problem) != SHEAF_OK ||
        sheaf_nng_engine_configure(context, &config, &problem) != SHEAF_OK)
        sheaf_bench_die("raw NNG", problem.text);
    return config;
}

static void digest_of(const sheaf_bench_load *load, sheaf_span bytes, uint8_t out[SHEAF_DIGEST_BYTES]) {
    memset(out, 0, SHEAF_DIGEST_BYTES);
    if (load->digests && sheaf_digest_of(bytes, out) != SHEAF_OK) sheaf_bench_die("raw NNG", "no digest");
}

/* ---- server ---- */

typedef struct {
    const sheaf_bench_load *load;
    unsigned number;
    nng_ctx context;
    nng_aio *aio;
    int replying;
} answering;

/* One file for each context, written and synced for every payload: the least that durable can mean. */
static void keep(const answering *one, sheaf_span bytes) {
    char path[SHEAF_PATH_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/raw-%u", one->load->folder, one->number);
    FILE *file = fopen(path, "w");
    if (file == NULL || fwrite(bytes.data, 1, bytes.size, file) != bytes.size || fflush(file) != 0 ||
        fdatasync(fileno(file)) != 0 || fclose(file) != 0)
        sheaf_bench_die("raw NNG", "cannot write a payload");
}

static void on_server(void *argument) {
    answering *one = argument;
    int error = nng_aio_result(one->aio);
    if (error == NNG_ECLOSED) return;
    need(error, "raw NNG server");
    if (one->replying) {
        one->replying = 0;
        nng_ctx_recv(one->context, one->aio);
        return;
    }
    nng_msg *message = nng_aio_get_msg(one->aio);
    sheaf_span bytes = sheaf_span_of(nng_msg_body(message), nng_msg_len(message));
    uint8_t digest[SHEAF_DIGEST_BYTES];
    digest_of(one->load, bytes, digest);
    if (one->load->durable) keep(one, bytes);
    nng_msg_free(message);
    need(nng_msg_alloc(&message, 0), "raw NNG server");
    need(nng_msg_append(message, digest, sizeof digest), "raw NNG server");
    nng_aio_set_msg(one->aio, message);
    one->replying = 1;
    nng_ctx_send(one->context, one->aio);
}

void sheaf_bench_raw_nng_serve(const sheaf_bench_load *load, int ready, int stop) {
    nng_socket socket;
    nng_listener listener;
    char address[SHEAF_BENCH_ADDRESS_BYTES];
    int port = 0;
    need(nng_rep0_open(&socket), "raw NNG server");
    need(nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, load->bytes + 64), "raw NNG server");
    need(nng_listener_create(&listener, socket, "tls+tcp://127.0.0.1:0"), "raw NNG server");
    need(nng_listener_set_ptr(listener, NNG_OPT_TLS_CONFIG, open_tls(load, -1, SHEAF_TLS_SERVER)), "raw NNG server");
    need(nng_listener_start(listener, 0), "raw NNG server");
    need(nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), "raw NNG server");
    answering *all = calloc(CONTEXTS, sizeof *all);
    if (all == NULL) sheaf_bench_die("raw NNG server", "no memory");
    for (unsigned i = 0; i < CONTEXTS; i++) {
        all[i].load = load;
        all[i].number = i;
        need(nng_ctx_open(&all[i].context, socket), "raw NNG server");
        need(nng_aio_alloc(&all[i].aio, on_server, &all[i]), "raw NNG server");
        nng_ctx_recv(all[i].context, all[i].aio);
    }
    (void)snprintf(address, sizeof address, "tls+tcp://127.0.0.1:%d", port);
    sheaf_bench_serve_until(address, ready, stop);
}

/* ---- clients ---- */

typedef struct {
    const sheaf_bench_load *load;
    const uint8_t *payload;
    nng_socket socket;
    nng_aio *aio;
    int receiving;
    atomic_uint payloads;
    uint8_t digest[SHEAF_DIGEST_BYTES];
} asking;

static void ask(asking *one) {
    nng_msg *message = NULL;
    need(nng_msg_alloc(&message, one->load->bytes), "raw NNG clients");
    memcpy(nng_msg_body(message), one->payload, one->load->bytes);
    digest_of(one->load, sheaf_span_of(nng_msg_body(message), one->load->bytes), one->digest);
    nng_aio_set_msg(one->aio, message);
    one->receiving = 0;
    nng_send_aio(one->socket, one->aio);
}

static void on_client(void *argument) {
    asking *one = argument;
    need(nng_aio_result(one->aio), "raw NNG clients");
    if (!one->receiving) {
        one->receiving = 1;
        nng_recv_aio(one->socket, one->aio);
        return;
    }
    nng_msg *message = nng_aio_get_msg(one->aio);
    if (nng_msg_len(message) != sizeof one->digest ||
        memcmp(nng_msg_body(message), one->digest, sizeof one->digest) != 0)
        sheaf_bench_die("raw NNG clients", "the server has another digest");
    nng_msg_free(message);
    (void)atomic_fetch_add(&one->payloads, 1);
    ask(one);
}

static void start_client(asking *one, int number, const char *address) {
    nng_dialer dialer;
    need(nng_req0_open(&one->socket), "raw NNG clients");
    need(nng_dialer_create(&dialer, one->socket, address), "raw NNG clients");
    need(nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, open_tls(one->load, number, SHEAF_TLS_LINK)),
         "raw NNG clients");
    need(nng_dialer_start(dialer, NNG_FLAG_NONBLOCK), "raw NNG clients");
    need(nng_aio_alloc(&one->aio, on_client, one), "raw NNG clients");
    ask(one);
}

static uint64_t count(asking *all, unsigned clients, int *warm) {
    uint64_t sum = 0;
    *warm = 1;
    for (unsigned i = 0; i < clients; i++) {
        unsigned payloads = atomic_load(&all[i].payloads);
        if (payloads == 0) *warm = 0;
        sum += payloads;
    }
    return sum;
}

double sheaf_bench_raw_nng_drive(const sheaf_bench_load *load, const char *address) {
    const struct timespec pause = {0, 1000000L};
    asking *all = calloc(load->clients, sizeof *all);
    uint8_t *payload = malloc(load->bytes);
    if (all == NULL || payload == NULL) return -1;
    for (size_t k = 0; k < load->bytes; k++) payload[k] = (uint8_t)(k * 2654435761u >> 13);
    for (unsigned i = 0; i < load->clients; i++) {
        all[i].load = load;
        all[i].payload = payload;
        start_client(&all[i], (int)i, address);
    }
    int warm = 0;
    while (!warm) {
        (void)nanosleep(&pause, NULL);
        (void)count(all, load->clients, &warm);
    }
    double begun = sheaf_bench_now(), now = begun;
    uint64_t first = count(all, load->clients, &warm);
    for (; now - begun < load->seconds; now = sheaf_bench_now()) (void)nanosleep(&pause, NULL);
    return (double)(count(all, load->clients, &warm) - first) * (double)load->bytes / 1048576.0 / (now - begun);
}
