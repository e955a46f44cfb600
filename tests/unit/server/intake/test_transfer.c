/* A large payload from one process into the intake of another, over each network carrier: every byte arrives, and neither
 * side holds more than a few frames. 64 MiB; 4 GiB with SHEAF_LONG=1. The payload is made as it is sent, block by block,
 * and its digest is taken by the sender before anything is sent. */
#include "tests/cmocka.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/digest.h"
#include "proto/frame.h"
#include "server/intake/upload.h"
#include "tests/kit/broker_kit.h"
#include "tests/kit/carrier_kit.h"

#define CHUNK_BYTES   262144u
#define SIDE_MOST_KIB (64 * 1024)
#define CLIENT        "device-01"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static uint64_t total_bytes(void) {
    const char *is_long = getenv("SHEAF_LONG");
    if (is_long != NULL && is_long[0] != '\0' && is_long[0] != '0') return UINT64_C(4) << 30;
    return UINT64_C(64) << 20;
}

static long peak_kib(void) {
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL) abort();
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtol(line + 6, NULL, 10);
    (void)fclose(file);
    return kib;
}

/* The bytes at `offset`, a multiple of 8: different in each block. */
static void make_block(uint64_t offset, uint8_t *out, size_t size) {
    for (size_t i = 0; i < size; i += 8) sheaf_store_u64(out + i, (offset + i) * UINT64_C(0x9e3779b97f4a7c15));
}

/* --- the device's process ----------------------------------------------------------------------------------------- */

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "sender: %s\n", what);
    _exit(1);
}

static void payload_digest(uint64_t total, uint8_t out[SHEAF_DIGEST_BYTES]) {
    static uint8_t block[CHUNK_BYTES];
    sheaf_digest digest;
    check(sheaf_digest_begin(&digest) == SHEAF_OK, "digest");
    for (uint64_t at = 0; at < total; at += CHUNK_BYTES) {
        make_block(at, block, sizeof block);
        check(sheaf_digest_update(&digest, sheaf_span_of(block, sizeof block)) == SHEAF_OK, "digest");
    }
    check(sheaf_digest_finish(&digest, out) == SHEAF_OK, "digest");
}

typedef struct {
    const sheaf_transport *carrier;
    sheaf_link *link;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    uint64_t acknowledged;
    unsigned owed;
    int has_receipt;
} sender;

static void take_answer(sender *self) {
    static uint8_t bytes[SHEAF_FRAME_BYTES_MAX(0)];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    sheaf_span none;
    sheaf_status status = self->carrier->receive(self->link, &answer, &problem);
    if (status == SHEAF_AGAIN) {
        usleep(200);
        return;
    }
    check(status == SHEAF_OK, problem.text);
    check(sheaf_frame_decode_reply(sheaf_buffer_span(&answer), &reply, &none) == SHEAF_OK, "a reply that is none");
    self->owed--;
    self->has_receipt |= reply.which_body == sheaf_v1_Reply_receipt_tag;
    if (reply.which_body == sheaf_v1_Reply_upload_tag && reply.body.upload.next_offset > self->acknowledged)
        self->acknowledged = reply.body.upload.next_offset;
}

static void send_request(sender *self, sheaf_v1_Request *request, sheaf_span payload, sheaf_buffer *frame) {
    check(sheaf_frame_encode_request(request, payload, frame) == SHEAF_OK, "a frame");
    sheaf_status status;
    while ((status = self->carrier->send(self->link, sheaf_buffer_span(frame))) == SHEAF_AGAIN) take_answer(self);
    check(status == SHEAF_OK, "send");
    self->owed++;
}

static void send_all(sender *self, uint64_t total) {
    static uint8_t bytes[SHEAF_FRAME_BYTES_MAX(CHUNK_BYTES)];
    uint8_t *at = bytes + SHEAF_FRAME_BYTES_MAX(0);
    sheaf_v1_Request request = sheaf_v1_Request_init_zero;
    memcpy(request.client, CLIENT, sizeof CLIENT);
    request.which_body = sheaf_v1_Request_chunk_tag;
    memcpy(request.body.chunk.payload_digest.bytes, self->digest, SHEAF_DIGEST_BYTES);
    request.body.chunk.payload_digest.size = request.body.chunk.chunk_digest.size = SHEAF_DIGEST_BYTES;
    for (uint64_t offset = 0; offset < total; offset += CHUNK_BYTES) {
        sheaf_buffer frame = {bytes, 0, sizeof bytes};
        make_block(offset, at, CHUNK_BYTES);
        request.body.chunk.offset = offset;
        check(sheaf_digest_of(sheaf_span_of(at, CHUNK_BYTES), request.body.chunk.chunk_digest.bytes) == SHEAF_OK,
              "digest");
        send_request(self, &request, sheaf_span_of(at, CHUNK_BYTES), &frame);
    }
    while (self->owed > 0) take_answer(self);
}

static void run_sender(const sheaf_transport *carrier, const char *url, const pki_kit_files *files, uint64_t total,
                       const uint8_t digest[SHEAF_DIGEST_BYTES], int report) {
    static sender self;
    sheaf_transport_options options = carrier_options(url, files);
    sheaf_problem problem = {SHEAF_OK, ""};
    self.carrier = carrier;
    options.frame_bytes_max = SHEAF_FRAME_BYTES_MAX(CHUNK_BYTES);
    options.window = 2;
    memcpy(self.digest, digest, sizeof self.digest);
    check(carrier->open_link(&options, &self.link, &problem) == SHEAF_OK, problem.text);
    send_all(&self, total);
    check(self.has_receipt, "no receipt");
    long kib = peak_kib();
    check(write(report, &kib, sizeof kib) == (ssize_t)sizeof kib, "report");
    carrier->close(self.link);
    _exit(0);
}

/* --- the aggregator's process ------------------------------------------------------------------------------------- */

typedef struct {
    const sheaf_transport *carrier;
    sheaf_uploads *uploads;
    unsigned chunks, failures;
    int kept;
} receiver;

static void take_chunk(receiver *self, const sheaf_v1_Chunk *chunk, sheaf_span payload, sheaf_v1_Reply *reply) {
    sheaf_upload *upload = NULL;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_span mapped = {NULL, 0};
    sheaf_span which = sheaf_span_of(chunk->payload_digest.bytes, chunk->payload_digest.size);
    sheaf_status status = sheaf_uploads_take(self->uploads, CLIENT, which, &upload);
    if (status == SHEAF_OK)
        status = sheaf_upload_write(upload, chunk->offset, payload,
                                    sheaf_span_of(chunk->chunk_digest.bytes, chunk->chunk_digest.size), &problem);
    self->failures += status != SHEAF_OK;
    self->chunks++;
    if (status != SHEAF_OK) return;
    reply->body.upload.next_offset = upload->part.next_offset;
    if (!sheaf_part_whole(&upload->part)) {
        sheaf_upload_give_back(upload);
        return;
    }
    status = sheaf_upload_verify(upload, &mapped, &problem);
    sheaf_spool_unmap(mapped);
    if (status == SHEAF_OK) status = sheaf_upload_keep(upload, &problem);
    self->failures += status != SHEAF_OK;
    self->kept = status == SHEAF_OK;
    sheaf_upload_drop(upload);
    reply->which_body = sheaf_v1_Reply_receipt_tag;
}

static void on_request(void *context, sheaf_exchange *exchange, sheaf_certificate *peer, sheaf_span bytes) {
    receiver *self = context;
    uint8_t out[SHEAF_FRAME_BYTES_MAX(0)];
    sheaf_buffer frame = {out, 0, sizeof out};
    sheaf_v1_Request request = sheaf_v1_Request_init_zero;
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    sheaf_span payload = {NULL, 0};
    (void)peer;
    reply.which_body = sheaf_v1_Reply_upload_tag;
    if (sheaf_frame_decode_request(bytes, &request, &payload) == SHEAF_OK)
        take_chunk(self, &request.body.chunk, payload, &reply);
    if (sheaf_frame_encode_reply(&reply, sheaf_span_of(NULL, 0), &frame) != SHEAF_OK) abort();
    self->carrier->reply(exchange, sheaf_buffer_span(&frame));
}

static void begin_upload(receiver *self, const sheaf_spool *spool, const uint8_t digest[SHEAF_DIGEST_BYTES],
                         uint64_t total) {
    const sheaf_uploads_options options = {spool, 1, 0};
    sheaf_update_statement statement = {.round = 1, .payload_bytes = total, .client = CLIENT};
    const sheaf_upload_terms terms = {&statement, sheaf_span_of("s", 1), sheaf_span_of("g", 1), 0};
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_upload *upload = NULL;
    memcpy(statement.payload_digest, digest, SHEAF_DIGEST_BYTES);
    assert_int_equal(sheaf_uploads_make(&options, &self->uploads), SHEAF_OK);
    assert_int_equal(sheaf_uploads_agree(self->uploads, &terms, &upload, &problem), SHEAF_OK);
    sheaf_upload_give_back(upload);
}

static void read_exactly(int fd, void *out, size_t size) {
    for (size_t at = 0; at < size;) {
        ssize_t got = read(fd, (uint8_t *)out + at, size - at);
        if (got <= 0) fail_msg("the sender has failed");
        at += (size_t)got;
    }
}

static void transfer(const sheaf_transport *carrier, const char *url, pki_kit *kit) {
    const pki_kit_files *aggregator = pki_kit_issue(kit, "aggregator", "main", NULL);
    const pki_kit_files *device = pki_kit_issue(kit, "device", CLIENT, NULL);
    char path[1200];
    int report[2], address[2], status = 0;
    uint64_t total = total_bytes();
    receiver self = {.carrier = carrier};
    sheaf_spool spool;
    sheaf_problem problem = {SHEAF_OK, ""};
    uint8_t digest[SHEAF_DIGEST_BYTES];
    assert_int_equal(pipe(report), 0);
    assert_int_equal(pipe(address), 0);
    pid_t child = fork(); /* before this process has threads */
    if (child == 0) {
        static char at[300];
        payload_digest(total, digest);
        check(write(report[1], digest, sizeof digest) == (ssize_t)sizeof digest, "report");
        check(read(address[0], at, sizeof at - 1) > 0, "no address"); /* the receiver is ready */
        run_sender(carrier, at, device, total, digest, report[1]);
    }
    assert_true(child > 0);
    close(report[1]);
    sheaf_transport_options options = carrier_options(url, aggregator);
    options.frame_bytes_max = SHEAF_FRAME_BYTES_MAX(CHUNK_BYTES);
    sheaf_server *server = NULL;
    assert_int_equal(sheaf_spool_open(&spool, pki_kit_folder(kit), &problem), SHEAF_OK);
    assert_int_equal(sheaf_spool_begin(&spool, 1, &problem), SHEAF_OK);
    read_exactly(report[0], digest, sizeof digest);
    begin_upload(&self, &spool, digest, total);
    if (carrier->open_server(&options, on_request, NULL, &self, &server, &problem) != SHEAF_OK)
        fail_msg("%s", problem.text);
    const char *chosen = carrier->server_url(server);
    assert_int_equal(write(address[1], chosen, strlen(chosen)), (ssize_t)strlen(chosen));
    long sender_kib = 0;
    read_exactly(report[0], &sender_kib, sizeof sender_kib);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    carrier->stop_server(server);
    assert_int_equal(self.failures, 0);
    assert_true(self.kept);
    assert_true(self.chunks >= total / CHUNK_BYTES);
    printf("    %s: %llu MiB; peak of the sender %ld KiB, of the receiver %ld KiB\n", carrier->name,
           (unsigned long long)(total >> 20), sender_kib, peak_kib());
    if (SANITIZED)
        printf("    the bound of memory is not asked for: sanitizers take their own\n");
    else {
        assert_true(sender_kib < SIDE_MOST_KIB);
        assert_true(peak_kib() < SIDE_MOST_KIB);
    }
    sheaf_uploads_free(self.uploads);
    (void)snprintf(path, sizeof path, "%s/spool/00000001/" CLIENT ".update", pki_kit_folder(kit));
    assert_int_equal(remove(path), 0);
    (void)snprintf(path, sizeof path, "%s/spool/00000001", pki_kit_folder(kit));
    assert_int_equal(rmdir(path), 0);
    (void)snprintf(path, sizeof path, "%s/spool", pki_kit_folder(kit));
    assert_int_equal(rmdir(path), 0);
    close(report[0]);
    close(address[0]);
    close(address[1]);
}

static void a_large_payload_passes_over_nng_in_little_memory(void **state) {
    (void)state;
    pki_kit *kit = pki_kit_make();
    transfer(&sheaf_transport_nng, "tls+tcp://127.0.0.1:0", kit);
    pki_kit_free(kit);
}

static void a_large_payload_passes_over_mqtt_in_little_memory(void **state) {
    (void)state;
    pki_kit *kit = pki_kit_make();
    broker_kit *broker = broker_kit_start(kit, NULL);
    transfer(&sheaf_transport_mqtt, broker_kit_url(broker), kit);
    broker_kit_free(broker);
    pki_kit_free(kit);
}

/* One behaviour a process, so that the peak of one is not the other's: "nng" or "mqtt" as argument; both without. */
int main(int count, char **arguments) {
    char self[4096] = ""; /* by its path, since under valgrind /proc/self/exe itself is valgrind */
    const struct CMUnitTest nng[] = {cmocka_unit_test(a_large_payload_passes_over_nng_in_little_memory)};
    const struct CMUnitTest mqtt[] = {cmocka_unit_test(a_large_payload_passes_over_mqtt_in_little_memory)};
    if (count > 1 && strcmp(arguments[1], "nng") == 0)
        return cmocka_run_group_tests_name("unit.server.intake.transfer", nng, NULL, NULL);
    if (count > 1) return cmocka_run_group_tests_name("unit.server.intake.transfer", mqtt, NULL, NULL);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
    for (int i = 0; i < 2; i++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) execl(self, arguments[0], i == 0 ? "nng" : "mqtt", (char *)NULL);
        if (child <= 0 || waitpid(child, &status, 0) != child || status != 0) return 1;
    }
    return 0;
}
