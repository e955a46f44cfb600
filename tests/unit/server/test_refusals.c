/* Bad updates are refused with a named reason, counted under it, the device is told, and the round goes on. */
#include "tests/cmocka.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/digest.h"
#include "tests/kit/service_kit.h"

static const char one_round[] = "    rounds: 1\n    cohort: {minimum: 2, target: 2, maximum: 8}\n    weight_cap: 100\n";

static void change_payload(update *u, uint32_t index, float value) {
    sheaf_store_f32(u->payload + 4 * index, value);
    assert_int_equal(sheaf_digest_of(sheaf_span_of(u->payload, u->payload_size), u->statement.payload_digest),
                     SHEAF_OK);
}

/* One lie each. They change an honest update before it is signed. */
static void lie_client(update *u) { snprintf(u->statement.client, sizeof u->statement.client, "somebody-else"); }
static void lie_tenant(update *u) { snprintf(u->statement.tenant, sizeof u->statement.tenant, "other"); }
static void lie_certificate(update *u) { u->statement.certificate[0] ^= 1; }
static void lie_job(update *u) { snprintf(u->statement.job, sizeof u->statement.job, "other"); }
static void lie_round_before(update *u) { u->statement.round = 0; }
static void lie_round_after(update *u) { u->statement.round = 2; }
static void lie_round_far(update *u) { u->statement.round = UINT64_MAX; }
static void lie_attempt(update *u) { u->statement.attempt = 2; }
static void lie_nonce(update *u) { u->statement.nonce[31] ^= 1; }
static void lie_base(update *u) { u->statement.base_model[0] ^= 1; }
static void lie_plan(update *u) { u->statement.plan_digest[0] ^= 1; }
static void lie_encoding(update *u) { snprintf(u->statement.payload_type, sizeof u->statement.payload_type, "mxint8"); }
static void lie_weight_zero(update *u) { u->statement.weight = 0; }
static void lie_weight_negative(update *u) { u->statement.weight = -1; }
static void lie_weight_least(update *u) { u->statement.weight = INT64_MIN; }
static void lie_weight_above(update *u) { u->statement.weight = 101; }
static void lie_shorter(update *u) { u->statement.payload_bytes -= 4; }
static void lie_longer(update *u) { u->statement.payload_bytes += 4; }
static void lie_huge(update *u) { u->statement.payload_bytes = UINT64_MAX; }
static void lie_nan(update *u) { change_payload(u, 2, NAN); }
static void lie_infinity(update *u) { change_payload(u, 0, -INFINITY); }
static void lie_range(update *u) { change_payload(u, 3, 1e30f); }
static void lie_digest(update *u) { u->statement.payload_digest[5] ^= 1; }

static const struct {
    const char *name;
    void (*lie)(update *u);
    sheaf_status reason;
} lies[] = {
    {"another client's name", lie_client, SHEAF_E_IDENTITY},
    {"another tenant", lie_tenant, SHEAF_E_IDENTITY},
    {"another certificate", lie_certificate, SHEAF_E_IDENTITY},
    {"another job", lie_job, SHEAF_E_JOB},
    {"a round before", lie_round_before, SHEAF_E_LATE},
    {"a round to come", lie_round_after, SHEAF_E_ROUND},
    {"the last round of all", lie_round_far, SHEAF_E_ROUND},
    {"an attempt to come", lie_attempt, SHEAF_E_ROUND},
    {"another nonce", lie_nonce, SHEAF_E_NONCE},
    {"another base model", lie_base, SHEAF_E_BASE_MODEL},
    {"another plan", lie_plan, SHEAF_E_PLAN},
    {"another encoding", lie_encoding, SHEAF_E_ENCODING},
    {"weight zero", lie_weight_zero, SHEAF_E_WEIGHT_ZERO},
    {"weight -1", lie_weight_negative, SHEAF_E_WEIGHT_NEGATIVE},
    {"the least weight", lie_weight_least, SHEAF_E_WEIGHT_NEGATIVE},
    {"weight above the cap", lie_weight_above, SHEAF_E_WEIGHT_CAP},
    {"too few values", lie_shorter, SHEAF_E_SHAPE},
    {"too many values", lie_longer, SHEAF_E_SHAPE},
    {"2^64 - 1 bytes", lie_huge, SHEAF_E_SHAPE},
    {"a NaN", lie_nan, SHEAF_E_NOT_FINITE},
    {"an infinity", lie_infinity, SHEAF_E_NOT_FINITE},
    {"a value off the lattice", lie_range, SHEAF_E_RANGE},
    {"a payload that was changed", lie_digest, SHEAF_E_DIGEST},
};

static long long counted(const service_kit *kit, sheaf_status reason) {
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT coalesce(sum(count), 0) FROM refusals WHERE reason = '%s'",
             sheaf_status_name(reason));
    return service_kit_query(kit, sql);
}

/* How often the log names the reason as a refusal. */
static int logged(const service_kit *kit, sheaf_status reason) {
    char path[1200], line[2048], want[80];
    int count = 0;
    snprintf(path, sizeof path, "%s/service.log", kit->folder);
    snprintf(want, sizeof want, "reason=%s ", sheaf_status_name(reason));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, "refused") != NULL && strstr(line, want) != NULL;
    fclose(file);
    return count;
}

static int lies_with(sheaf_status reason) {
    int count = 0;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) count += lies[i].reason == reason;
    return count;
}

/* Two honest devices end the round; 3 * 1 + 5 * 2 over 3 + 5 is exact. */
static void finish_round(device *a, device *b) {
    update u;
    assert_true(device_await_round(a) && device_await_round(b));
    device_update(a, 3.0f, 1, &u);
    assert_int_equal(device_send(a, &u), sheaf_v1_Reply_receipt_tag);
    device_update(b, 5.0f, 3, &u);
    assert_int_equal(device_send(b, &u), sheaf_v1_Reply_receipt_tag);
    assert_int_equal(service_kit_wait_end(a->kit), SHEAF_OK);
    float model[4];
    service_kit_model(a->kit, model);
    for (int i = 0; i < 4; i++) assert_true(model[i] == (float)(i + 1) + 4.5f); /* (3*1 + 5*3) / 4 */
}

static void every_lie_is_refused_by_its_name_and_the_round_goes_on(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *liar = device_make(&kit, "liar"), *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    assert_true(device_await_round(liar));
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        update u;
        device_update(liar, 0.5f, 7, &u);
        lies[i].lie(&u);
        device_sign(liar, &u);
        pb_size_t body = device_send(liar, &u);
        if (body != sheaf_v1_Reply_refusal_tag || device_told(liar) != lies[i].reason)
            fail_msg("%s: got body %d, %s", lies[i].name, (int)body, sheaf_status_name(device_told(liar)));
        assert_string_equal(liar->reply.body.refusal.reason, sheaf_status_name(lies[i].reason));
    }
    finish_round(a, b);
    service_kit_stop_service(&kit);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        assert_int_equal(counted(&kit, lies[i].reason), lies_with(lies[i].reason));
        assert_int_equal(logged(&kit, lies[i].reason), lies_with(lies[i].reason));
    }
    assert_int_equal(service_kit_query(&kit, "SELECT refused FROM rounds WHERE outcome = 1"),
                     sizeof lies / sizeof lies[0]);
    device_free(liar), device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void a_signature_of_other_bytes_or_another_key_is_refused(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    update u;
    assert_true(device_await_round(a) && device_await_round(b));
    device_update(a, 1.0f, 1, &u);
    u.bytes[u.size - 1] ^= 1; /* the weight's highest byte, after signing */
    assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_SIGNATURE);
    device_update(a, 1.0f, 1, &u);
    sheaf_buffer forged = {u.signature, 0, sizeof u.signature};
    assert_int_equal(sheaf_signer_sign(b->signer, sheaf_span_of(u.bytes, u.size), &forged), SHEAF_OK);
    u.signature_size = forged.size;
    assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_SIGNATURE);
    u.signature_size = 0;
    assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_SIGNATURE);
    finish_round(a, b);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void garbage_truncated_and_empty_statements_are_refused(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    update u;
    assert_true(device_await_round(a));
    device_update(a, 1.0f, 1, &u);
    size_t whole = u.size;
    for (size_t cut = 0; cut < whole; cut += 7) {
        u.size = cut;
        assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_refusal_tag);
    }
    memset(u.bytes, 0xff, sizeof u.bytes);
    u.size = sizeof u.bytes;
    assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_refusal_tag);
    uint8_t garbage[300];
    for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (uint8_t)(i * 131 + 7);
    for (size_t size = 0; size < sizeof garbage; size += 11) {
        assert_true(device_exchange_raw(a, sheaf_span_of(garbage, size)));
        assert_int_equal(a->reply.which_body, sheaf_v1_Reply_refusal_tag);
    }
    finish_round(a, b);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void another_name_in_the_message_than_in_the_certificate_is_refused(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    snprintf(a->name, sizeof a->name, "b");
    assert_int_equal(device_ask_round(a, 0), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_IDENTITY);
    snprintf(a->name, sizeof a->name, "a");
    snprintf(a->tenant, sizeof a->tenant, "other");
    assert_int_equal(device_ask_round(a, 0), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_IDENTITY);
    snprintf(a->tenant, sizeof a->tenant, "acme");
    snprintf(a->job, sizeof a->job, "nothing");
    assert_int_equal(device_ask_round(a, 0), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_JOB);
    snprintf(a->job, sizeof a->job, "job");
    finish_round(a, b);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void an_operator_may_not_send_updates(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *operator_ = device_make_with(&kit, "operator", "olga", NULL), *a = device_make(&kit, "a"),
           *b = device_make(&kit, "b");
    assert_int_equal(device_ask_round(operator_, 0), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(operator_), SHEAF_E_ROLE);
    finish_round(a, b);
    device_free(operator_), device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void a_second_sending_gets_the_same_receipt_and_counts_once(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    update u, other;
    assert_true(device_await_round(a));
    device_update(a, 3.0f, 1, &u);
    device_update(a, 9.0f, 1, &other);
    assert_int_equal(device_send(a, &u), sheaf_v1_Reply_receipt_tag);
    sheaf_v1_Receipt first = a->reply.body.receipt;
    assert_int_equal(device_send(a, &u), sheaf_v1_Reply_receipt_tag);
    assert_memory_equal(&first, &a->reply.body.receipt, sizeof first);
    assert_int_equal(device_send(a, &other), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_CONFLICT);
    assert_true(a->reply.body.refusal.has_receipt);
    assert_memory_equal(&first, &a->reply.body.refusal.receipt, sizeof first);
    assert_true(device_await_round(b));
    device_update(b, 5.0f, 3, &u);
    assert_int_equal(device_send(b, &u), sheaf_v1_Reply_receipt_tag);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_int_equal(service_kit_query(&kit, "SELECT accepted FROM rounds"), 2);
    float model[4];
    service_kit_model(&kit, model);
    assert_true(model[0] == 5.5f);
    /* Also after the job has ended. */
    device_update(a, 3.0f, 1, &u);
    assert_int_equal(device_send(a, &u), sheaf_v1_Reply_receipt_tag);
    assert_memory_equal(&first, &a->reply.body.receipt, sizeof first);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void an_update_after_the_close_is_late(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *slow = device_make(&kit, "slow"), *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    update offered, never;
    assert_true(device_await_round(slow));
    device_update(slow, 1.0f, 1, &offered);
    never = offered;
    assert_int_equal(device_offer(slow, &offered), sheaf_v1_Reply_upload_tag);
    finish_round(a, b);
    /* The agreed upload is gone with the round; offering again says late. */
    assert_int_equal(device_chunk(slow, &offered, 0, offered.payload_size), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(slow), SHEAF_E_NOT_FOUND);
    assert_int_equal(device_send(slow, &never), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(slow), SHEAF_E_LATE);
    device_free(slow), device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void chunks_may_repeat_go_back_or_come_from_nowhere(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    update u;
    assert_true(device_await_round(a));
    device_update(a, 3.0f, 1, &u);
    assert_int_equal(device_chunk(a, &u, 0, 4), sheaf_v1_Reply_refusal_tag); /* never offered */
    assert_int_equal(device_told(a), SHEAF_E_NOT_FOUND);
    assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_upload_tag);
    assert_int_equal(device_chunk(a, &u, 0, 8), sheaf_v1_Reply_upload_tag);
    assert_int_equal(a->reply.body.upload.next_offset, 8);
    assert_int_equal(device_chunk(a, &u, 0, 8), sheaf_v1_Reply_upload_tag); /* repeated */
    assert_int_equal(a->reply.body.upload.next_offset, 8);
    assert_int_equal(device_chunk(a, &u, 12, 4), sheaf_v1_Reply_refusal_tag); /* off the grid of 8 bytes */
    assert_int_equal(device_told(a), SHEAF_E_MALFORMED);
    assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_upload_tag); /* resumed */
    assert_int_equal(a->reply.body.upload.next_offset, 8);
    update longer = u;
    longer.payload_size = sizeof longer.payload;
    assert_int_equal(device_chunk(a, &longer, 8, 8), sheaf_v1_Reply_receipt_tag);
    assert_true(device_await_round(b));
    device_update(b, 5.0f, 3, &u);
    assert_int_equal(device_send(b, &u), sheaf_v1_Reply_receipt_tag);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void more_bytes_than_were_offered_are_refused(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    update u;
    assert_true(device_await_round(a));
    device_update(a, 3.0f, 1, &u);
    assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_upload_tag);
    sheaf_v1_Request request = device_request(a);
    request.which_body = sheaf_v1_Request_chunk_tag;
    memcpy(request.body.chunk.payload_digest.bytes, u.statement.payload_digest, SHEAF_DIGEST_BYTES);
    request.body.chunk.payload_digest.size = SHEAF_DIGEST_BYTES;
    uint8_t more[32] = {0};
    device_exchange(a, &request, sheaf_span_of(more, sizeof more));
    assert_int_equal(a->reply.which_body, sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_TOO_LARGE);
    finish_round(a, b);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void a_model_is_served_by_its_digest_only(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, one_round);
    device *a = device_make(&kit, "a");
    assert_true(device_await_round(a));
    sheaf_v1_Request request = device_request(a);
    request.which_body = sheaf_v1_Request_model_tag;
    memcpy(request.body.model.digest.bytes, a->round.base_model, SHEAF_DIGEST_BYTES);
    request.body.model.digest.size = SHEAF_DIGEST_BYTES;
    request.body.model.bytes_max = 1000;
    device_exchange(a, &request, sheaf_span_of(NULL, 0));
    assert_int_equal(a->reply.which_body, sheaf_v1_Reply_model_tag);
    assert_int_equal(a->payload.size, a->round.base_model_bytes);
    uint8_t digest[SHEAF_DIGEST_BYTES];
    assert_int_equal(sheaf_digest_of(a->payload, digest), SHEAF_OK);
    assert_memory_equal(digest, a->round.base_model, SHEAF_DIGEST_BYTES);
    request.body.model.offset = UINT64_MAX;
    device_exchange(a, &request, sheaf_span_of(NULL, 0));
    assert_int_equal(device_told(a), SHEAF_E_TOO_LARGE);
    request.body.model.digest.bytes[0] ^= 1;
    device_exchange(a, &request, sheaf_span_of(NULL, 0));
    assert_int_equal(device_told(a), SHEAF_E_NOT_FOUND);
    device_free(a);
    service_kit_stop(&kit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lie_is_refused_by_its_name_and_the_round_goes_on),
        cmocka_unit_test(a_signature_of_other_bytes_or_another_key_is_refused),
        cmocka_unit_test(garbage_truncated_and_empty_statements_are_refused),
        cmocka_unit_test(another_name_in_the_message_than_in_the_certificate_is_refused),
        cmocka_unit_test(an_operator_may_not_send_updates),
        cmocka_unit_test(a_second_sending_gets_the_same_receipt_and_counts_once),
        cmocka_unit_test(an_update_after_the_close_is_late),
        cmocka_unit_test(chunks_may_repeat_go_back_or_come_from_nowhere),
        cmocka_unit_test(more_bytes_than_were_offered_are_refused),
        cmocka_unit_test(a_model_is_served_by_its_digest_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
