/* Our side of the comparison: the same table of functions that devices and the aggregator use.
 *
 * A frame is a head (its number, and whether it is the payload's last) and its part of the payload; an answer is that number
 * and a digest. A carrier may bring a frame twice, and answers may then come in another order. All clients send the same payload,
 * so that frames need no assembling; each client's digest is computed all the same, at both ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/digest.h"
#include "server/store/spool.h"
#include "server/tool/bench_mqtt.h"
#include "server/tool/bench_nng.h"

#define HEAD_BYTES   16u
#define WINDOW       2u
#define NUMBER_BYTES 8u
#define ANSWER_BYTES (NUMBER_BYTES + SHEAF_DIGEST_BYTES)
/* Room for an answer too. */
#define FRAME_MAX(load) ((uint32_t)(load)->frame_bytes + HEAD_BYTES + ANSWER_BYTES)
#define IDLE_NS         1000000L
#define ROUND           1u

/* ---- server ---- */

static const uint8_t any_digest[SHEAF_DIGEST_BYTES]; /* only names the file */

typedef struct {
    sheaf_digest digest;
    int open, fd;
    uint64_t next;                      /* number of the frame that is due */
    uint8_t answer[SHEAF_DIGEST_BYTES]; /* of the last payload */
} upload;

typedef struct {
    const sheaf_transport *carrier;
    const sheaf_bench_load *load;
    sheaf_spool spool;
    upload *uploads; /* by the number in the device's name; one request of a device at a time */
} serving;

static void take(serving *server, upload *part, const char *name, sheaf_span bytes) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = SHEAF_OK;
    const sheaf_spool_part file = {ROUND, name, any_digest};
    uint64_t left = 0;
    if (!part->open && server->load->digests) status = sheaf_digest_begin(&part->digest);
    if (!part->open && server->load->durable && status == SHEAF_OK)
        status = sheaf_spool_receive(&server->spool, &file, &part->fd, &left, &problem);
    part->open = 1;
    if (server->load->digests && status == SHEAF_OK) status = sheaf_digest_update(&part->digest, bytes);
    if (server->load->durable && write(part->fd, bytes.data, bytes.size) != (ssize_t)bytes.size)
        sheaf_bench_die("server", "cannot write a payload");
    if (status != SHEAF_OK) sheaf_bench_die("server", problem.text);
}

static void finish(serving *server, upload *part, const char *name, uint8_t digest[SHEAF_DIGEST_BYTES]) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = SHEAF_OK;
    const sheaf_spool_part file = {ROUND, name, any_digest};
    if (server->load->digests) status = sheaf_digest_finish(&part->digest, digest);
    if (server->load->durable && status == SHEAF_OK) {
        status = sheaf_spool_keep(&server->spool, &file, part->fd, &problem);
        (void)close(part->fd);
    }
    part->open = 0;
    if (status != SHEAF_OK) sheaf_bench_die("server", problem.text);
}

static void on_request(void *context, sheaf_exchange *exchange, sheaf_certificate *peer, sheaf_span request) {
    serving *server = context;
    uint8_t answer[ANSWER_BYTES];
    const char *name = sheaf_certificate_identity(peer)->name;
    unsigned number = (unsigned)strtoul(name, NULL, 10);
    if (request.size < HEAD_BYTES || number >= server->load->clients) sheaf_bench_die("server", "an odd frame");
    upload *part = &server->uploads[number];
    if (sheaf_load_u64(request.data) == part->next) {
        part->next++;
        take(server, part, name, sheaf_span_of(request.data + HEAD_BYTES, request.size - HEAD_BYTES));
        if (request.data[8]) finish(server, part, name, part->answer);
    }
    memcpy(answer, request.data, NUMBER_BYTES);
    memcpy(answer + NUMBER_BYTES, part->answer, SHEAF_DIGEST_BYTES);
    server->carrier->reply(exchange, sheaf_span_of(answer, sizeof answer));
}

static void serve(const sheaf_bench_load *load, const char *url, int ready, int stop) {
    sheaf_bench_paths paths;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_server *server = NULL;
    serving state = {
        .carrier = sheaf_transport_for(url), .load = load, .uploads = calloc(load->clients, sizeof(upload))};
    const sheaf_transport_options options = {.url = url,
                                             .tls = sheaf_bench_tls(load, -1, &paths),
                                             .frame_bytes_max = FRAME_MAX(load),
                                             .handshake_ms = 10000,
                                             .exchanges_max = 64,
                                             .connections_max = load->clients + 64};
    if (state.uploads == NULL) sheaf_bench_die("server", "no memory");
    if (load->durable && (sheaf_spool_open(&state.spool, load->folder, &problem) != SHEAF_OK ||
                          sheaf_spool_begin(&state.spool, ROUND, &problem) != SHEAF_OK))
        sheaf_bench_die("server", problem.text);
    if (state.carrier->open_server(&options, on_request, NULL, &state, &server, &problem) != SHEAF_OK)
        sheaf_bench_die("server", problem.text);
    sheaf_bench_serve_until(state.carrier->server_url(server), ready, stop);
}

void sheaf_bench_carrier_serve(const sheaf_bench_load *load, int ready, int stop) {
    serve(load, "tls+tcp://127.0.0.1:0", ready, stop);
}

void sheaf_bench_mqtt_serve(const sheaf_bench_load *load, int ready, int stop) {
    char url[SHEAF_BENCH_ADDRESS_BYTES];
    sheaf_bench_broker_start(load, url);
    serve(load, url, ready, stop);
}

/* ---- clients ---- */

typedef struct {
    uint8_t *bytes; /* head and payload part */
    size_t size;
    int is_last;
} frame;

typedef struct {
    sheaf_link *link;
    uint64_t next; /* number of the next frame */
    unsigned payloads;
    sheaf_digest digest;
    uint8_t digests[2][SHEAF_DIGEST_BYTES]; /* of payloads whose last frame is out, by their number modulo 2 */
    unsigned sent_payloads;
} client;

typedef struct {
    const sheaf_transport *carrier;
    const sheaf_bench_load *load;
    frame *frames;
    size_t frame_count;
    client *clients;
    uint64_t bytes; /* acknowledged */
} driving;

static void make_frames(driving *state) {
    const sheaf_bench_load *load = state->load;
    state->frame_count = (load->bytes + load->frame_bytes - 1) / load->frame_bytes;
    state->frames = calloc(state->frame_count, sizeof(frame));
    for (size_t i = 0; state->frames != NULL && i < state->frame_count; i++) {
        size_t at = i * load->frame_bytes;
        size_t size = load->bytes - at < load->frame_bytes ? load->bytes - at : load->frame_bytes;
        frame *made = &state->frames[i];
        made->bytes = calloc(1, HEAD_BYTES + size);
        if (made->bytes == NULL) break;
        made->size = HEAD_BYTES + size;
        made->is_last = i + 1 == state->frame_count;
        for (size_t k = 0; k < size; k++) made->bytes[HEAD_BYTES + k] = (uint8_t)((at + k) * 2654435761u >> 13);
        made->bytes[8] = (uint8_t)made->is_last;
    }
    if (state->frames == NULL || state->frames[state->frame_count - 1].bytes == NULL)
        sheaf_bench_die("clients", "no memory");
}

static void open_links(driving *state, const char *address) {
    for (unsigned i = 0; i < state->load->clients; i++) {
        sheaf_bench_paths paths;
        sheaf_problem problem = {SHEAF_OK, ""};
        const sheaf_transport_options options = {.url = address,
                                                 .tls = sheaf_bench_tls(state->load, (int)i, &paths),
                                                 .frame_bytes_max = FRAME_MAX(state->load),
                                                 .handshake_ms = 60000,
                                                 .window = WINDOW};
        if (state->carrier->open_link(&options, &state->clients[i].link, &problem) != SHEAF_OK)
            sheaf_bench_die("clients", problem.text);
    }
}

/* The digest of a frame is computed once it has been taken, while the carrier already moves it. */
static int send_some(driving *state, client *who) {
    const frame *next = &state->frames[who->next % state->frame_count];
    sheaf_store_u64(next->bytes, who->next); /* copied by send, so the next client may write its own */
    if (state->carrier->send(who->link, sheaf_span_of(next->bytes, next->size)) != SHEAF_OK) return 0;
    sheaf_status status = SHEAF_OK;
    if (state->load->digests) {
        if (who->next % state->frame_count == 0) status = sheaf_digest_begin(&who->digest);
        if (status == SHEAF_OK)
            status =
                sheaf_digest_update(&who->digest, sheaf_span_of(next->bytes + HEAD_BYTES, next->size - HEAD_BYTES));
        if (next->is_last && status == SHEAF_OK)
            status = sheaf_digest_finish(&who->digest, who->digests[who->sent_payloads % 2]);
    }
    if (status != SHEAF_OK) sheaf_bench_die("clients", "no digest");
    if (next->is_last) who->sent_payloads++;
    who->next++;
    return 1;
}

static int receive_some(driving *state, client *who) {
    uint8_t bytes[ANSWER_BYTES];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = state->carrier->receive(who->link, &answer, &problem);
    if (status == SHEAF_AGAIN) return 0;
    if (status != SHEAF_OK) sheaf_bench_die("clients", problem.text);
    uint64_t number = sheaf_load_u64(bytes), payload = number / state->frame_count;
    const frame *done = &state->frames[number % state->frame_count];
    state->bytes += done->size - HEAD_BYTES;
    if (!done->is_last) return 1;
    if (memcmp(bytes + NUMBER_BYTES, who->digests[payload % 2], SHEAF_DIGEST_BYTES) != 0)
        sheaf_bench_die("clients", "the server has another digest");
    who->payloads++;
    return 1;
}

/* One pass over all clients; 1 when any of them did something. */
static int pass(driving *state) {
    int busy = 0;
    for (unsigned i = 0; i < state->load->clients; i++) {
        while (receive_some(state, &state->clients[i])) busy = 1;
        while (send_some(state, &state->clients[i])) busy = 1;
    }
    return busy;
}

static int all_are_warm(const driving *state) {
    for (unsigned i = 0; i < state->load->clients; i++)
        if (state->clients[i].payloads == 0) return 0;
    return 1;
}

double sheaf_bench_carrier_drive(const sheaf_bench_load *load, const char *address) {
    const struct timespec idle = {0, IDLE_NS};
    driving state = {
        .carrier = sheaf_transport_for(address), .load = load, .clients = calloc(load->clients, sizeof(client))};
    if (state.clients == NULL) return -1;
    make_frames(&state);
    open_links(&state, address);
    while (!all_are_warm(&state))
        if (!pass(&state)) (void)nanosleep(&idle, NULL);
    double begun = sheaf_bench_now(), now = begun;
    state.bytes = 0;
    for (; now - begun < load->seconds; now = sheaf_bench_now())
        if (!pass(&state)) (void)nanosleep(&idle, NULL);
    return (double)state.bytes / 1048576.0 / (now - begun);
}

double sheaf_bench_broker_drive(const sheaf_bench_load *load, const char *address) {
    return sheaf_bench_carrier_drive(load, address) < 0 ? -1 : sheaf_bench_broker_peak_kib(load);
}
