/* Frames, statements and plans are byte for byte what an independent program makes of the same contents
 * (tests/vectors/wire/make_vectors.py), and what that program made is read as those contents.
 *
 *     test.proto.golden --dump FOLDER    writes our bytes, for the test in Python that reads them */
#include "tests/cmocka.h"

#include <stdio.h>

#include "proto/frame.h"
#include "proto/plan.h"

#define BYTES_MAX 4096u

static void fill(uint8_t *out, size_t size, uint8_t first) {
    for (size_t i = 0; i < size; i++) out[i] = (uint8_t)(first + i);
}
/* For nanopb's bytes members, which are a size and an array. */
#define SET_BYTES(member, first, count) ((member).size = (count), fill((member).bytes, (count), (first)))

/* ---- statements and the plan ---- */

static sheaf_update_statement update_sample(void) {
    sheaf_update_statement s = {.tenant = "acme",
                                .job = "digits",
                                .round = 7,
                                .attempt = 2,
                                .client = "device-03",
                                .payload_type = "f32",
                                .payload_bytes = 9720,
                                .weight = 61};
    fill(s.nonce, 32, 1);
    fill(s.base_model, 32, 2);
    fill(s.plan_digest, 32, 3);
    fill(s.certificate, 32, 4);
    fill(s.payload_digest, 32, 5);
    return s;
}

static sheaf_update_statement update_extreme(void) {
    sheaf_update_statement s = update_sample();
    s.round = UINT64_MAX;
    s.attempt = UINT32_MAX;
    fill(s.nonce, 32, 9);
    fill(s.base_model, 32, 8);
    fill(s.plan_digest, 32, 7);
    memset(s.client, 'n', 63);
    fill(s.certificate, 32, 6);
    s.payload_bytes = UINT64_C(1) << 63;
    s.weight = INT64_MIN;
    return s;
}

static sheaf_round_statement round_sample(void) {
    sheaf_round_statement s = {.tenant = "acme",
                               .job = "digits",
                               .round = 7,
                               .attempt = 2,
                               .base_model_bytes = 10240,
                               .opened_unix_ms = UINT64_C(1700000000123)};
    fill(s.nonce, 32, 1);
    fill(s.base_model, 32, 2);
    fill(s.plan_digest, 32, 3);
    fill(s.certificate, 32, 6);
    return s;
}

static sheaf_receipt_statement receipt_sample(void) {
    sheaf_receipt_statement s = {.tenant = "acme",
                                 .job = "digits",
                                 .round = 7,
                                 .attempt = 2,
                                 .client = "device-03",
                                 .accepted_unix_ms = UINT64_C(1700000001456)};
    fill(s.update_digest, 32, 7);
    fill(s.payload_digest, 32, 5);
    return s;
}

static sheaf_plan plan_sample(void) {
    sheaf_plan plan = {.epochs = 4,
                       .batch = 8,
                       .learning_rate = 0.05f,
                       .momentum = 0.9f,
                       .seed = UINT64_C(0x0123456789abcdef),
                       .weight_cap = INT64_C(1) << 40,
                       .progress_s = 30,
                       .encoding = "f32"};
    return plan;
}

static sheaf_status make_update(sheaf_buffer *out) {
    sheaf_update_statement s = update_sample();
    return sheaf_update_statement_encode(&s, out);
}
static sheaf_status make_update_extreme(sheaf_buffer *out) {
    sheaf_update_statement s = update_extreme();
    return sheaf_update_statement_encode(&s, out);
}
static sheaf_status make_round(sheaf_buffer *out) {
    sheaf_round_statement s = round_sample();
    return sheaf_round_statement_encode(&s, out);
}
static sheaf_status make_receipt(sheaf_buffer *out) {
    sheaf_receipt_statement s = receipt_sample();
    return sheaf_receipt_statement_encode(&s, out);
}
static sheaf_status make_plan(sheaf_buffer *out) {
    sheaf_plan plan = plan_sample();
    return sheaf_plan_encode(&plan, out);
}

/* ---- requests ---- */

static sheaf_v1_Request request_of(pb_size_t body) {
    sheaf_v1_Request request = sheaf_v1_Request_init_zero;
    memcpy(request.tenant, "acme", sizeof "acme");
    memcpy(request.job, "digits", sizeof "digits");
    memcpy(request.client, "device-03", sizeof "device-03");
    request.which_body = body;
    return request;
}

static sheaf_status make_hello(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_hello_tag);
    request.body.hello.protocol = 1;
    request.body.hello.encodings_count = 2;
    memcpy(request.body.hello.encodings[0], "f32", 4);
    memcpy(request.body.hello.encodings[1], "mx8", 4);
    request.body.hello.frame_bytes_max = 264192;
    return sheaf_frame_encode_request(&request, sheaf_span_of(NULL, 0), out);
}
static sheaf_status make_hello_empty(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_hello_tag);
    return sheaf_frame_encode_request(&request, sheaf_span_of(NULL, 0), out);
}
static sheaf_status make_round_query(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_round_tag);
    request.body.round.last_round = UINT64_MAX;
    return sheaf_frame_encode_request(&request, sheaf_span_of(NULL, 0), out);
}
static sheaf_status make_model_query(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_model_tag);
    SET_BYTES(request.body.model.digest, 2, 32);
    request.body.model.offset = (UINT64_C(1) << 40) + 1;
    request.body.model.bytes_max = 262144;
    return sheaf_frame_encode_request(&request, sheaf_span_of(NULL, 0), out);
}
static sheaf_status make_model_query_held(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_model_tag);
    SET_BYTES(request.body.model.digest, 2, 32);
    request.body.model.bytes_max = 262144;
    SET_BYTES(request.body.model.held, 3, 32);
    request.body.model.can_join = true;
    return sheaf_frame_encode_request(&request, sheaf_span_of(NULL, 0), out);
}
static sheaf_status make_progress(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_progress_tag);
    request.body.progress.round = 7;
    request.body.progress.attempt = 2;
    request.body.progress.done_permille = 1000;
    return sheaf_frame_encode_request(&request, sheaf_span_of(NULL, 0), out);
}
static sheaf_status make_offer(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_offer_tag);
    sheaf_buffer statement = {request.body.offer.statement.bytes, 0, sizeof request.body.offer.statement.bytes};
    sheaf_status status = make_update(&statement);
    if (status != SHEAF_OK) return status;
    request.body.offer.statement.size = (pb_size_t)statement.size;
    SET_BYTES(request.body.offer.signature, 48, 71);
    request.body.offer.training_loss = 0.6875;
    return sheaf_frame_encode_request(&request, sheaf_span_of(NULL, 0), out);
}
static sheaf_status make_chunk(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_chunk_tag);
    uint8_t payload[300];
    fill(payload, sizeof payload, 200);
    SET_BYTES(request.body.chunk.payload_digest, 5, 32);
    request.body.chunk.offset = 8192;
    return sheaf_frame_encode_request(&request, sheaf_span_of(payload, sizeof payload), out);
}

static sheaf_status make_chunk_digested(sheaf_buffer *out) {
    sheaf_v1_Request request = request_of(sheaf_v1_Request_chunk_tag);
    uint8_t payload[3];
    fill(payload, sizeof payload, 200);
    SET_BYTES(request.body.chunk.payload_digest, 5, 32);
    SET_BYTES(request.body.chunk.chunk_digest, 6, 32);
    return sheaf_frame_encode_request(&request, sheaf_span_of(payload, sizeof payload), out);
}

/* ---- replies ---- */

static sheaf_v1_Reply reply_of(pb_size_t body) {
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = body;
    return reply;
}
static sheaf_status frame_of(const sheaf_v1_Reply *reply, sheaf_buffer *out) {
    return sheaf_frame_encode_reply(reply, sheaf_span_of(NULL, 0), out);
}

static sheaf_status make_welcome(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_welcome_tag);
    reply.body.welcome.protocol = 1;
    reply.body.welcome.chunk_bytes = 262144;
    reply.body.welcome.encodings_ok = 1;
    return frame_of(&reply, out);
}
static sheaf_status make_wait(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_wait_tag);
    reply.body.wait.retry_ms = 250;
    reply.body.wait.status = SHEAF_E_BUSY;
    return frame_of(&reply, out);
}
static sheaf_status make_wait_zero(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_wait_tag);
    return frame_of(&reply, out);
}
static sheaf_status make_round_open(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_round_tag);
    sheaf_buffer statement = {reply.body.round.statement.bytes, 0, sizeof reply.body.round.statement.bytes};
    sheaf_buffer plan = {reply.body.round.plan.bytes, 0, sizeof reply.body.round.plan.bytes};
    sheaf_status status = make_round(&statement);
    if (status == SHEAF_OK) status = make_plan(&plan);
    if (status != SHEAF_OK) return status;
    reply.body.round.statement.size = (pb_size_t)statement.size;
    reply.body.round.plan.size = (pb_size_t)plan.size;
    SET_BYTES(reply.body.round.signature, 96, 64);
    return frame_of(&reply, out);
}
static sheaf_status make_model_part(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_model_tag);
    uint8_t payload[513];
    fill(payload, sizeof payload, 17);
    reply.body.model.offset = 4096;
    reply.body.model.total_bytes = 10240;
    return sheaf_frame_encode_reply(&reply, sheaf_span_of(payload, sizeof payload), out);
}
static sheaf_status make_model_part_same(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_model_tag);
    reply.body.model.offset = 4096;
    reply.body.model.total_bytes = 10240;
    reply.body.model.same_bytes = 6144;
    return frame_of(&reply, out);
}
static sheaf_status make_model_cast(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_cast_tag);
    SET_BYTES(reply.body.cast.group, 7, 16);
    SET_BYTES(reply.body.cast.key, 8, 16);
    reply.body.cast.total_bytes = 10240;
    return frame_of(&reply, out);
}
static sheaf_status make_upload_held(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_upload_tag);
    reply.body.upload.next_offset = 8192;
    reply.body.upload.held = 5;
    return frame_of(&reply, out);
}
static sheaf_status make_upload(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_upload_tag);
    reply.body.upload.next_offset = 8192;
    return frame_of(&reply, out);
}
static sheaf_status make_receipt_reply(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_receipt_tag);
    sheaf_buffer statement = {reply.body.receipt.statement.bytes, 0, sizeof reply.body.receipt.statement.bytes};
    sheaf_status status = make_receipt(&statement);
    if (status != SHEAF_OK) return status;
    reply.body.receipt.statement.size = (pb_size_t)statement.size;
    SET_BYTES(reply.body.receipt.signature, 96, 64);
    return frame_of(&reply, out);
}
static sheaf_status make_refusal(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_refusal_tag);
    reply.body.refusal.status = SHEAF_E_SIGNATURE;
    memcpy(reply.body.refusal.reason, "bad_signature", sizeof "bad_signature");
    memcpy(reply.body.refusal.detail, "not over these bytes", sizeof "not over these bytes");
    return frame_of(&reply, out);
}

static sheaf_status make_refusal_conflict(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_refusal_tag);
    reply.body.refusal.status = SHEAF_E_CONFLICT;
    memcpy(reply.body.refusal.reason, "conflict", sizeof "conflict");
    memcpy(reply.body.refusal.detail, "another one counts", sizeof "another one counts");
    sheaf_v1_Receipt *receipt = &reply.body.refusal.receipt;
    reply.body.refusal.has_receipt = true;
    memcpy(receipt->statement.bytes, "what counts", 11);
    receipt->statement.size = 11;
    memcpy(receipt->signature.bytes, "signed", 6);
    receipt->signature.size = 6;
    return frame_of(&reply, out);
}
static sheaf_status make_job_end(sheaf_buffer *out) {
    sheaf_v1_Reply reply = reply_of(sheaf_v1_Reply_end_tag);
    reply.body.end.rounds = 30;
    SET_BYTES(reply.body.end.model_digest, 2, 32);
    return frame_of(&reply, out);
}

static const struct {
    const char *file;
    sheaf_status (*make)(sheaf_buffer *out);
} golden[] = {
    {"statement_update.bin", make_update},
    {"statement_update_negative.bin", make_update_extreme},
    {"statement_round.bin", make_round},
    {"statement_receipt.bin", make_receipt},
    {"plan.bin", make_plan},
    {"request_hello.bin", make_hello},
    {"request_hello_empty.bin", make_hello_empty},
    {"request_round_query.bin", make_round_query},
    {"request_model_query.bin", make_model_query},
    {"request_model_query_held.bin", make_model_query_held},
    {"request_progress.bin", make_progress},
    {"request_offer.bin", make_offer},
    {"request_chunk.bin", make_chunk},
    {"request_chunk_digested.bin", make_chunk_digested},
    {"reply_welcome.bin", make_welcome},
    {"reply_wait.bin", make_wait},
    {"reply_wait_zero.bin", make_wait_zero},
    {"reply_round_open.bin", make_round_open},
    {"reply_model_part.bin", make_model_part},
    {"reply_model_part_same.bin", make_model_part_same},
    {"reply_model_cast.bin", make_model_cast},
    {"reply_upload.bin", make_upload},
    {"reply_upload_held.bin", make_upload_held},
    {"reply_receipt.bin", make_receipt_reply},
    {"reply_refusal.bin", make_refusal},
    {"reply_refusal_conflict.bin", make_refusal_conflict},
    {"reply_job_end.bin", make_job_end},
};
#define GOLDEN_COUNT (sizeof golden / sizeof golden[0])

static size_t load(const char *file, uint8_t *out) {
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/vectors/wire/%s", SHEAF_TESTS_DIR, file);
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) fail_msg("no %s", path);
    size_t size = fread(out, 1, BYTES_MAX, stream);
    (void)fclose(stream);
    return size;
}

static void what_we_make_is_what_the_other_made(void **state) {
    (void)state;
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        uint8_t expected[BYTES_MAX], made[BYTES_MAX];
        sheaf_buffer out = {made, 0, sizeof made};
        size_t size = load(golden[i].file, expected);
        assert_int_equal(golden[i].make(&out), SHEAF_OK);
        if (out.size != size || memcmp(made, expected, size) != 0) fail_msg("%s differs", golden[i].file);
    }
}

/* Our encoding of given contents is the golden bytes (above), and no two contents share an encoding: so what was read
 * is right exactly when it encodes to the golden bytes again. */
#define READS_WHOLE(kind, file)                                                                                        \
    do {                                                                                                               \
        uint8_t bytes_[BYTES_MAX], made_[BYTES_MAX];                                                                   \
        sheaf_buffer out_ = {made_, 0, sizeof made_};                                                                  \
        sheaf_span golden_ = sheaf_span_of(bytes_, load(file, bytes_));                                                \
        sheaf_##kind value_;                                                                                           \
        assert_int_equal(sheaf_##kind##_decode(golden_, &value_), SHEAF_OK);                                           \
        assert_int_equal(sheaf_##kind##_encode(&value_, &out_), SHEAF_OK);                                             \
        assert_true(sheaf_span_equal(golden_, sheaf_buffer_span(&out_)));                                              \
    } while (0)

static void what_the_other_made_is_read_as_its_contents(void **state) {
    (void)state;
    READS_WHOLE(update_statement, "statement_update.bin");
    READS_WHOLE(update_statement, "statement_update_negative.bin");
    READS_WHOLE(round_statement, "statement_round.bin");
    READS_WHOLE(receipt_statement, "statement_receipt.bin");
    READS_WHOLE(plan, "plan.bin");
}

/* Reads a frame, checks that encoding it again gives the same bytes: nothing was lost in reading. */
static void frame_survives(const char *file) {
    uint8_t bytes[BYTES_MAX], made[BYTES_MAX];
    sheaf_span payload, frame = sheaf_span_of(bytes, load(file, bytes));
    sheaf_buffer out = {made, 0, sizeof made};
    if (strncmp(file, "request_", 8) == 0) {
        sheaf_v1_Request request = sheaf_v1_Request_init_zero;
        assert_int_equal(sheaf_frame_decode_request(frame, &request, &payload), SHEAF_OK);
        assert_string_equal(request.tenant, "acme");
        assert_int_equal(sheaf_frame_encode_request(&request, payload, &out), SHEAF_OK);
    } else {
        sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
        assert_int_equal(sheaf_frame_decode_reply(frame, &reply, &payload), SHEAF_OK);
        assert_int_equal(sheaf_frame_encode_reply(&reply, payload, &out), SHEAF_OK);
    }
    if (!sheaf_span_equal(sheaf_buffer_span(&out), frame)) fail_msg("%s was not read whole", file);
}

static void frames_lose_nothing_in_reading(void **state) {
    (void)state;
    size_t frames = 0;
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        if (strncmp(golden[i].file, "re", 2) != 0) continue;
        frame_survives(golden[i].file);
        frames++;
    }
    assert_int_equal(frames, 22);
}

static void every_cut_of_a_frame_header_is_refused(void **state) {
    (void)state;
    uint8_t bytes[BYTES_MAX];
    size_t size = load("request_offer.bin", bytes);
    for (size_t cut = 0; cut < size; cut++) {
        sheaf_v1_Request request = sheaf_v1_Request_init_zero;
        sheaf_span payload;
        assert_int_equal(sheaf_frame_decode_request(sheaf_span_of(bytes, cut), &request, &payload), SHEAF_E_TRUNCATED);
    }
}

static sheaf_status decode_changed(size_t at, uint8_t value) {
    uint8_t bytes[BYTES_MAX];
    size_t size = load("reply_upload.bin", bytes);
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    sheaf_span payload;
    bytes[at] = value;
    return sheaf_frame_decode_reply(sheaf_span_of(bytes, size), &reply, &payload);
}

static void a_wrong_prefix_is_refused_by_its_name(void **state) {
    (void)state;
    assert_int_equal(decode_changed(0, 'S'), SHEAF_OK);
    assert_int_equal(decode_changed(0, 's'), SHEAF_E_MALFORMED);
    assert_int_equal(decode_changed(3, 2), SHEAF_E_VERSION);
    assert_int_equal(decode_changed(5, 7), SHEAF_E_TRUNCATED); /* 7 * 256 + 5 header bytes, allowed but not there */
    assert_int_equal(decode_changed(5, 8), SHEAF_E_TOO_LARGE); /* 5 above the limit of 2,048 */
    assert_int_equal(decode_changed(4, 4), SHEAF_E_MALFORMED); /* the header ends inside its field */
}

static void a_payload_belongs_to_chunks_and_model_parts_only(void **state) {
    (void)state;
    uint8_t bytes[BYTES_MAX];
    size_t size = load("request_progress.bin", bytes);
    sheaf_v1_Request request = sheaf_v1_Request_init_zero;
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    sheaf_span payload;
    bytes[size] = 0;
    assert_int_equal(sheaf_frame_decode_request(sheaf_span_of(bytes, size + 1), &request, &payload), SHEAF_E_MALFORMED);
    size = load("reply_wait.bin", bytes);
    bytes[size] = 0;
    assert_int_equal(sheaf_frame_decode_reply(sheaf_span_of(bytes, size + 1), &reply, &payload), SHEAF_E_MALFORMED);
}

static void a_frame_without_a_body_is_refused(void **state) {
    (void)state;
    const uint8_t empty[] = {'S', 'h', 'f', 1, 0, 0, 0, 0};
    const uint8_t tenant_only[] = {'S', 'h', 'f', 1, 3, 0, 0, 0, 0x0a, 1, 'a'};
    sheaf_v1_Request request = sheaf_v1_Request_init_zero;
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    sheaf_span payload;
    assert_int_equal(sheaf_frame_decode_request(sheaf_span_of(tenant_only, sizeof tenant_only), &request, &payload),
                     SHEAF_E_MALFORMED);
    assert_int_equal(sheaf_frame_decode_reply(sheaf_span_of(empty, sizeof empty), &reply, &payload), SHEAF_E_MALFORMED);
}

static void fields_of_later_versions_are_skipped(void **state) {
    (void)state;
    /* Upload{next_offset: 5} after field 90 (varint 1), as protobuf lets a later writer send it. */
    const uint8_t frame[] = {'S', 'h', 'f', 1, 8, 0, 0, 0, 0xd0, 0x05, 0x01, 0x72, 0x02, 0x08, 0x05, 0x00};
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    sheaf_span payload;
    assert_int_equal(sheaf_frame_decode_reply(sheaf_span_of(frame, 8 + 7), &reply, &payload), SHEAF_E_TRUNCATED);
    uint8_t exact[15];
    memcpy(exact, frame, sizeof exact);
    exact[4] = 7;
    assert_int_equal(sheaf_frame_decode_reply(sheaf_span_of(exact, sizeof exact), &reply, &payload), SHEAF_OK);
    assert_int_equal(reply.which_body, sheaf_v1_Reply_upload_tag);
    assert_int_equal(reply.body.upload.next_offset, 5);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    uint8_t bytes[BYTES_MAX], small[BYTES_MAX];
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        size_t size = load(golden[i].file, bytes);
        for (size_t capacity = 0; capacity < size; capacity++) {
            sheaf_buffer out = {small, 0, capacity};
            assert_int_equal(golden[i].make(&out), SHEAF_E_TOO_LARGE);
        }
        sheaf_buffer out = {small, 0, size};
        assert_int_equal(golden[i].make(&out), SHEAF_OK);
    }
}

static int dump(const char *folder) {
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        uint8_t made[BYTES_MAX];
        char path[1024];
        sheaf_buffer out = {made, 0, sizeof made};
        (void)snprintf(path, sizeof path, "%s/%s", folder, golden[i].file);
        FILE *stream = golden[i].make(&out) == SHEAF_OK ? fopen(path, "wb") : NULL;
        if (stream == NULL || fwrite(made, 1, out.size, stream) != out.size || fclose(stream) != 0) return 1;
    }
    return 0;
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_we_make_is_what_the_other_made),
        cmocka_unit_test(what_the_other_made_is_read_as_its_contents),
        cmocka_unit_test(frames_lose_nothing_in_reading),
        cmocka_unit_test(every_cut_of_a_frame_header_is_refused),
        cmocka_unit_test(a_wrong_prefix_is_refused_by_its_name),
        cmocka_unit_test(a_payload_belongs_to_chunks_and_model_parts_only),
        cmocka_unit_test(a_frame_without_a_body_is_refused),
        cmocka_unit_test(fields_of_later_versions_are_skipped),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    if (count == 3 && strcmp(arguments[1], "--dump") == 0) return dump(arguments[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
