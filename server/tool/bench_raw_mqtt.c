/* What libmosquitto does by itself: one client a device with its own thread, one that serves them all; chunks sealed with
 * AES-128-GCM and digested at both ends, an acknowledgement each, two on their way. Nothing is sent again. */
#include <mosquitto.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/digest.h"
#include "common/seal.h"
#include "server/tool/bench_mqtt.h"

#define WINDOW     2u
#define HEAD_BYTES 16u /* number of the chunk, 1 for the last of a payload */
#define TOPIC_MAX  64u
#define MQTT_5     5

static const uint8_t key[SHEAF_SEAL_KEY_BYTES] = {7}, nonce_base[SHEAF_SEAL_NONCE_BYTES] = {9};

static void need(int holds, const char *what) {
    if (!holds) sheaf_bench_die("raw libmosquitto", what);
}

static struct mosquitto *connect_client(const sheaf_bench_load *load, int number, const char *address, void *context,
                                        void (*on_message)(struct mosquitto *, void *,
                                                           const struct mosquitto_message *)) {
    sheaf_bench_paths paths;
    sheaf_tls_options tls = sheaf_bench_tls(load, number, &paths);
    const char *colon = strrchr(address, ':');
    struct mosquitto *client = mosquitto_new(NULL, true, context);
    need(client != NULL && colon != NULL, "no client");
    need(mosquitto_int_option(client, MOSQ_OPT_PROTOCOL_VERSION, MQTT_5) == MOSQ_ERR_SUCCESS &&
             mosquitto_int_option(client, MOSQ_OPT_TCP_NODELAY, 1) == MOSQ_ERR_SUCCESS &&
             mosquitto_tls_set(client, tls.ca_path, NULL, tls.certificate_path, tls.key_path, NULL) == MOSQ_ERR_SUCCESS,
         "options");
    mosquitto_message_callback_set(client, on_message);
    need(mosquitto_connect(client, "127.0.0.1", (int)strtol(colon + 1, NULL, 10), 60) == MOSQ_ERR_SUCCESS, "connect");
    return client;
}

/* --- server ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const sheaf_bench_load *load;
    sheaf_aead *opens; /* one a device */
    sheaf_digest *digests;
    int *is_open;
    uint8_t *plain;
} serving;

static void on_chunk(struct mosquitto *client, void *context, const struct mosquitto_message *message) {
    serving *self = context;
    const uint8_t *bytes = message->payload;
    size_t size = (size_t)message->payloadlen;
    const char *name = strrchr(message->topic, '/') + 1;
    unsigned number = (unsigned)strtoul(name, NULL, 10);
    uint8_t answer[SHEAF_DIGEST_BYTES] = {0};
    char topic[TOPIC_MAX];
    need(size >= HEAD_BYTES + SHEAF_SEAL_TAG_BYTES && number < self->load->clients, "an odd chunk");
    sheaf_span sealed = sheaf_span_of(bytes + HEAD_BYTES, size - HEAD_BYTES);
    sheaf_span plain = sheaf_span_of(self->plain, sealed.size - SHEAF_SEAL_TAG_BYTES);
    need(sheaf_aead_open(&self->opens[number], sheaf_load_u64(bytes), sheaf_span_of(bytes, HEAD_BYTES), sealed,
                         self->plain) == SHEAF_OK,
         "a chunk that does not open");
    sheaf_status status = SHEAF_OK;
    if (self->load->digests && !self->is_open[number]) status = sheaf_digest_begin(&self->digests[number]);
    self->is_open[number] = 1;
    if (self->load->digests && status == SHEAF_OK) status = sheaf_digest_update(&self->digests[number], plain);
    if (bytes[8]) {
        if (self->load->digests && status == SHEAF_OK) status = sheaf_digest_finish(&self->digests[number], answer);
        self->is_open[number] = 0;
    }
    need(status == SHEAF_OK, "no digest");
    (void)snprintf(topic, sizeof topic, "sheaf/1/down/%s", name);
    need(mosquitto_publish(client, NULL, topic, sizeof answer, answer, 0, false) == MOSQ_ERR_SUCCESS, "publish");
}

void sheaf_bench_raw_mqtt_serve(const sheaf_bench_load *load, int ready, int stop) {
    char address[SHEAF_BENCH_ADDRESS_BYTES];
    serving self = {load, calloc(load->clients, sizeof(sheaf_aead)), calloc(load->clients, sizeof(sheaf_digest)),
                    calloc(load->clients, sizeof(int)), malloc(load->frame_bytes)};
    need(self.opens != NULL && self.digests != NULL && self.is_open != NULL && self.plain != NULL, "no memory");
    for (unsigned i = 0; i < load->clients; i++)
        need(sheaf_aead_begin(&self.opens[i], 1, key, nonce_base) == SHEAF_OK, "no cipher");
    sheaf_bench_broker_start(load, address);
    (void)mosquitto_lib_init();
    struct mosquitto *client = connect_client(load, -1, address, &self, on_chunk);
    need(mosquitto_subscribe(client, NULL, "sheaf/1/up/+", 0) == MOSQ_ERR_SUCCESS, "subscribe");
    need(mosquitto_loop_start(client) == MOSQ_ERR_SUCCESS, "loop");
    sheaf_bench_serve_until(address, ready, stop);
}

/* --- clients ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const sheaf_bench_load *load;
    const uint8_t *payload;
    struct mosquitto *connection;
    char topic[TOPIC_MAX];
    sheaf_aead seals;
    sheaf_digest digest;
    uint8_t *message;
    uint8_t digests[2][SHEAF_DIGEST_BYTES];
    size_t next; /* offset in the payload */
    uint64_t number;
    unsigned sent_payloads, done_payloads;
    size_t acknowledged; /* offset */
    atomic_ullong bytes;
} asking;

static void send_chunk(asking *self) {
    const sheaf_bench_load *load = self->load;
    size_t size = load->bytes - self->next < load->frame_bytes ? load->bytes - self->next : load->frame_bytes;
    sheaf_span plain = sheaf_span_of(self->payload + self->next, size);
    int is_last = self->next + size == load->bytes;
    sheaf_status status = SHEAF_OK;
    if (load->digests && self->next == 0) status = sheaf_digest_begin(&self->digest);
    if (load->digests && status == SHEAF_OK) status = sheaf_digest_update(&self->digest, plain);
    if (load->digests && is_last && status == SHEAF_OK)
        status = sheaf_digest_finish(&self->digest, self->digests[self->sent_payloads % 2]);
    memset(self->message, 0, HEAD_BYTES);
    sheaf_store_u64(self->message, self->number);
    self->message[8] = (uint8_t)is_last;
    if (status == SHEAF_OK)
        status = sheaf_aead_seal(&self->seals, self->number, sheaf_span_of(self->message, HEAD_BYTES), plain,
                                 self->message + HEAD_BYTES);
    need(status == SHEAF_OK, "seal");
    self->number++;
    self->next = is_last ? 0 : self->next + size;
    self->sent_payloads += (unsigned)is_last;
    int total = (int)(HEAD_BYTES + size + SHEAF_SEAL_TAG_BYTES);
    need(mosquitto_publish(self->connection, NULL, self->topic, total, self->message, 0, false) == MOSQ_ERR_SUCCESS,
         "publish");
}

static void on_answer(struct mosquitto *client, void *context, const struct mosquitto_message *message) {
    asking *self = context;
    const sheaf_bench_load *load = self->load;
    (void)client;
    need(message->payloadlen == (int)SHEAF_DIGEST_BYTES, "an odd answer");
    size_t left = load->bytes - self->acknowledged, size = left < load->frame_bytes ? left : load->frame_bytes;
    (void)atomic_fetch_add(&self->bytes, size);
    self->acknowledged += size;
    if (self->acknowledged == load->bytes) {
        need(!load->digests ||
                 memcmp(message->payload, self->digests[self->done_payloads % 2], SHEAF_DIGEST_BYTES) == 0,
             "the server has another digest");
        self->acknowledged = 0;
        self->done_payloads++;
    }
    send_chunk(self);
}

static void on_subscribed(struct mosquitto *client, void *context, int id, int count, const int *granted) {
    (void)client, (void)id, (void)count, (void)granted;
    for (unsigned i = 0; i < WINDOW; i++) send_chunk(context);
}

static void start_client(asking *self, unsigned number, const char *address) {
    char down[TOPIC_MAX];
    (void)snprintf(self->topic, sizeof self->topic, "sheaf/1/up/%04u", number);
    (void)snprintf(down, sizeof down, "sheaf/1/down/%04u", number);
    self->message = malloc(HEAD_BYTES + self->load->frame_bytes + SHEAF_SEAL_TAG_BYTES);
    need(self->message != NULL && sheaf_aead_begin(&self->seals, 0, key, nonce_base) == SHEAF_OK, "no memory");
    self->connection = connect_client(self->load, (int)number, address, self, on_answer);
    mosquitto_subscribe_callback_set(self->connection, on_subscribed);
    need(mosquitto_subscribe(self->connection, NULL, down, 0) == MOSQ_ERR_SUCCESS, "subscribe");
    need(mosquitto_loop_start(self->connection) == MOSQ_ERR_SUCCESS, "loop");
}

static uint64_t bytes_of(asking *all, unsigned count) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; i++) bytes += atomic_load(&all[i].bytes);
    return bytes;
}

static int all_are_warm(asking *all, const sheaf_bench_load *load) {
    for (unsigned i = 0; i < load->clients; i++)
        if (atomic_load(&all[i].bytes) < load->bytes) return 0;
    return 1;
}

double sheaf_bench_raw_mqtt_drive(const sheaf_bench_load *load, const char *address) {
    const struct timespec moment = {0, 5000000};
    asking *all = calloc(load->clients, sizeof *all);
    uint8_t *payload = malloc(load->bytes);
    need(all != NULL && payload != NULL, "no memory");
    for (size_t i = 0; i < load->bytes; i++) payload[i] = (uint8_t)(i * 2654435761u >> 13);
    (void)mosquitto_lib_init();
    for (unsigned i = 0; i < load->clients; i++) {
        all[i].load = load;
        all[i].payload = payload;
        start_client(&all[i], i, address);
    }
    while (!all_are_warm(all, load)) (void)nanosleep(&moment, NULL);
    uint64_t before = bytes_of(all, load->clients);
    double begun = sheaf_bench_now(), now = begun;
    for (; now - begun < load->seconds; now = sheaf_bench_now()) (void)nanosleep(&moment, NULL);
    return (double)(bytes_of(all, load->clients) - before) / 1048576.0 / (now - begun);
}
