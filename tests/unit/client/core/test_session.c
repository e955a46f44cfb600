/* The device's core against an aggregator in memory, one thing going wrong at a time. */
#include <math.h>

#include "common/digest.h"
#include "tests/unit/client/core/session_test.h"

/* ---- the good way ---- */

/* The seed's bytes as proto/plan.h spells them, written by hand. */
static void expected_seed(uint8_t out[32]) {
    static const uint8_t bytes[] = "\x16\0sheaf training seed v1"
                                   "\3\0\0\0\0\0\0\0"
                                   "\4\0acme\6\0digits"
                                   "\1\0\0\0\0\0\0\0"
                                   "\t\0device-01";
    assert_int_equal(sheaf_digest_of(sheaf_span_of(bytes, sizeof bytes - 1), out), SHEAF_OK);
}

static void a_round_ends_with_the_differences_at_the_aggregator(void **state) {
    (void)state;
    uint8_t seed[32];
    assert_counted_once();
    expected_seed(seed);
    assert_memory_equal(world.seed, seed, sizeof seed);
    assert_int_equal(world.server.upload_size, 4 * 307);
    uint32_t counter = 1;
    for (size_t i = 0; i < 307; i++) {
        float before = (float)(counter++ % 19) / 8.0f - 1.0f;
        float expected = edge_world_trained(before, i, seed) - before;
        assert_memory_equal(world.server.upload + 4 * i, &expected, 4); /* this machine is little-endian */
    }
    assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], 1);
    assert_int_equal(world.of_kind[SHEAF_EDGE_JOB_ENDED], 1);
    assert_true(world.of_kind[SHEAF_EDGE_TRAINING] >= 3);
}

static void the_weight_is_capped_before_it_is_signed(void **state) {
    (void)state;
    assert_counted_once();
    assert_int_equal(world.server.accepted_weight, 32); /* 40 examples, cap 32 */
}

static void progress_is_reported_while_training(void **state) {
    (void)state;
    world.slice_count = 20; /* 10 s of training, 4 s of patience */
    assert_counted_once();
    assert_true(world.server.requests[sheaf_v1_Request_progress_tag] >= 4);
    assert_int_equal(world.server.regressions, 0);
}

static void three_rounds_fetch_the_same_model_once(void **state) {
    (void)state;
    world.server.last_round = 3;
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.accepted, 3);
    assert_int_equal(world.trainings, 3);
    assert_int_equal(world.server.requests[sheaf_v1_Request_model_tag], (world.server.model_bytes + 499) / 500);
}

/* ---- replies that are lost, late, repeated or wrong ---- */

static int lose_first_of_each(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)reply;
    (void)out;
    return w->server.requests[request->which_body] != 1;
}

/* The time until a request whose reply is lost is given up, when bytes move on the line for so long. */
static uint64_t given_up_after(uint64_t moves_ms) {
    uint64_t begun = world.now_ms;
    unsigned before = world.of_kind[SHEAF_EDGE_LINK_LOST];
    world.line_until_ms = begun + moves_ms;
    world.hook = lose_first_of_each;
    for (unsigned polls = 0; world.of_kind[SHEAF_EDGE_LINK_LOST] == before; polls++) {
        assert_true(polls < 100000);
        (void)edge_world_run(&world, 1);
    }
    return world.now_ms - begun;
}

static void silence_is_given_up_after_reply_ms(void **state) {
    (void)state;
    assert_in_range(given_up_after(0), 30000, 34000);
}

static void a_slow_line_is_no_silence_while_bytes_move(void **state) {
    (void)state;
    assert_in_range(given_up_after(200000), 226000, 234000);
    assert_counted_once();
}

static void every_first_reply_may_be_lost(void **state) {
    (void)state;
    world.hook = lose_first_of_each;
    assert_counted_once();
    assert_true(told(SHEAF_EDGE_LINK_LOST, SHEAF_E_TIMEOUT));
    assert_int_equal(world.trainings, 1);
}

static int lose_receipts(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)request;
    (void)out;
    if (reply->which_body != sheaf_v1_Reply_receipt_tag) return 1;
    return w->hook_count++ >= 3;
}

static void a_lost_receipt_is_asked_for_until_it_comes(void **state) {
    (void)state;
    world.hook = lose_receipts;
    assert_counted_once();
    assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], 1);
}

static void a_link_that_fails_is_tried_again(void **state) {
    (void)state;
    for (int state_of_failure = SHEAF_EDGE_JOINING; state_of_failure <= SHEAF_EDGE_UPLOADING; state_of_failure++) {
        edge_world_close(&world);
        edge_world_open(&world, 1);
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        if (!edge_world_run_to(&world, (sheaf_edge_state)state_of_failure))
            continue; /* CHECKING_UPDATE: not this way */
        world.receive = SHEAF_E_NETWORK;
        assert_counted_once();
    }
}

/* The second stands where the next answer is expected. */
static void every_reply_may_come_twice(void **state) {
    (void)state;
    world.repeats = 1;
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.accepted, 1);
    assert_int_equal(world.trainings, 1);
}

static int busy_at_first(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    int upload = request->which_body == sheaf_v1_Request_offer_tag || request->which_body == sheaf_v1_Request_chunk_tag;
    if (!upload || w->server.requests[request->which_body] > 2) return 1;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_wait_tag;
    reply->body.wait.retry_ms = 5000;
    reply->body.wait.status = SHEAF_E_BUSY;
    *out = sheaf_span_of(NULL, 0);
    return 1;
}

static void a_busy_aggregator_is_given_its_time(void **state) {
    (void)state;
    world.hook = busy_at_first;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_OFFERING), 1);
    uint64_t from = world.now_ms;
    assert_counted_once();
    assert_in_range(world.now_ms - from, 4 * 5000, 4 * 6250 + 2000);
    assert_int_equal(world.trainings, 1);
}

static int wait_for_weeks(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)out;
    if (request->which_body != sheaf_v1_Request_round_tag || w->hook_count++ > 0) return 1;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_wait_tag;
    reply->body.wait.retry_ms = UINT32_MAX;
    return 1;
}

static void no_aggregator_sends_a_device_away_for_weeks(void **state) {
    (void)state;
    world.hook = wait_for_weeks;
    assert_counted_once();
    assert_in_range(world.now_ms, 3600000, 3600000 * 5 / 4 + 60000);
}

static int forget_the_upload(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)out;
    if (request->which_body != sheaf_v1_Request_chunk_tag || w->hook_count++ != 1) return 1;
    w->server.offer_known = 0;
    w->server.upload_size = 0;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_refusal_tag;
    reply->body.refusal.status = SHEAF_E_NOT_FOUND;
    return 1;
}

static void an_aggregator_that_forgot_the_upload_gets_another_offer(void **state) {
    (void)state;
    world.hook = forget_the_upload;
    assert_counted_once();
    assert_int_equal(world.server.requests[sheaf_v1_Request_offer_tag], 2);
    assert_int_equal(world.of_kind[SHEAF_EDGE_REFUSED], 0);
}

/* ---- what must not be believed ---- */

static int break_round_signature(edge_world *w, const sheaf_v1_Request *q, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)w;
    (void)q;
    (void)out;
    if (reply->which_body == sheaf_v1_Reply_round_tag) reply->body.round.statement.bytes[40] ^= 1;
    return 1;
}
static int break_plan(edge_world *w, const sheaf_v1_Request *q, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)w;
    (void)q;
    (void)out;
    if (reply->which_body == sheaf_v1_Reply_round_tag) reply->body.round.plan.bytes[15] ^= 1;
    return 1;
}

static void assert_nothing_was_trained(edge_world_hook hook, sheaf_status status) {
    world.hook = hook;
    assert_goes_on(2000);
    assert_true(told(SHEAF_EDGE_GAVE_UP, status));
    assert_int_equal(world.server.requests[sheaf_v1_Request_model_tag], 0);
    assert_int_equal(world.trainings, 0);
    world.hook = NULL; /* and it was only a setback */
    assert_counted_once();
}

static void a_round_with_a_bad_signature_is_not_worked_on(void **state) {
    (void)state;
    assert_nothing_was_trained(break_round_signature, SHEAF_E_SIGNATURE);
}
static void a_plan_that_was_not_signed_is_not_followed(void **state) {
    (void)state;
    assert_nothing_was_trained(break_plan, SHEAF_E_DIGEST);
}

static void a_peer_that_is_no_aggregator_hears_no_more_than_hello(void **state) {
    (void)state;
    world.peer = SHEAF_E_ROLE;
    assert_goes_on(500);
    assert_true(told(SHEAF_EDGE_LINK_LOST, SHEAF_E_ROLE));
    assert_int_equal(world.server.requests[sheaf_v1_Request_round_tag], 0);
    assert_int_equal(world.of_kind[SHEAF_EDGE_JOINED], 0);
}

static int break_model_once(edge_world *w, const sheaf_v1_Request *q, sheaf_v1_Reply *reply, sheaf_span *out) {
    static uint8_t broken[500];
    (void)q;
    if (reply->which_body != sheaf_v1_Reply_model_tag || w->hook_count++ != 1) return 1;
    memcpy(broken, out->data, out->size);
    broken[3] ^= 1;
    out->data = broken;
    return 1;
}

static void a_model_with_the_wrong_digest_is_fetched_again(void **state) {
    (void)state;
    world.hook = break_model_once;
    assert_counted_once();
    assert_true(told(SHEAF_EDGE_GAVE_UP, SHEAF_E_DIGEST));
    assert_int_equal(world.server.requests[sheaf_v1_Request_model_tag], 2 * ((world.server.model_bytes + 499) / 500));
    assert_int_equal(world.trainings, 1);
}

static int forge_receipts(edge_world *w, const sheaf_v1_Request *q, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)q;
    (void)out;
    if (reply->which_body != sheaf_v1_Reply_receipt_tag || w->hook_count++ >= 2) return 1;
    reply->body.receipt.signature.bytes[5] ^= 1;
    return 1;
}

static void a_receipt_counts_only_with_the_aggregators_signature(void **state) {
    (void)state;
    world.hook = forge_receipts;
    assert_counted_once();
    assert_true(told(SHEAF_EDGE_GAVE_UP, SHEAF_E_SIGNATURE));
    assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], 1);
    assert_int_equal(world.trainings, 1);
}

/* Signed by the right key, and yet not what this device may believe. */
static void of_another_certificate(sheaf_round_statement *round) { round->certificate[3] ^= 1; }
static void of_another_job(sheaf_round_statement *round) { round->job[0] = 'x'; }
static void of_another_tenant(sheaf_round_statement *round) { round->tenant[0] = 'x'; }
static void of_no_round(sheaf_round_statement *round) { round->round = 0; }
static void with_another_plan(sheaf_round_statement *round) { round->plan_digest[0] ^= 1; }

static void a_signed_round_must_be_ours(void **state) {
    (void)state;
    static const struct {
        void (*twist)(sheaf_round_statement *);
        sheaf_status status;
    } cases[] = {{of_another_certificate, SHEAF_E_CERTIFICATE},
                 {of_another_job, SHEAF_E_JOB},
                 {of_another_tenant, SHEAF_E_JOB},
                 {of_no_round, SHEAF_E_MALFORMED},
                 {with_another_plan, SHEAF_E_DIGEST}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        world.server.twist_round = cases[i].twist;
        assert_goes_on(500);
        assert_true(told(SHEAF_EDGE_GAVE_UP, cases[i].status));
        assert_int_equal(world.server.requests[sheaf_v1_Request_model_tag], 0);
    }
    world.server.twist_round = NULL;
    assert_counted_once();
}

static void for_another_payload(sheaf_receipt_statement *receipt) { receipt->payload_digest[0] ^= 1; }
static void for_a_later_attempt(sheaf_receipt_statement *receipt) { receipt->attempt++; }
static void for_another_round(sheaf_receipt_statement *receipt) { receipt->round++; }
static void for_another_client(sheaf_receipt_statement *receipt) { receipt->client[0] = 'x'; }
static void for_another_job(sheaf_receipt_statement *receipt) { receipt->job[0] = 'x'; }

static void a_signed_receipt_must_be_for_our_update(void **state) {
    (void)state;
    static const struct {
        void (*twist)(sheaf_receipt_statement *);
        sheaf_status status;
    } cases[] = {{for_another_payload, SHEAF_E_DIGEST},
                 {for_a_later_attempt, SHEAF_E_ROUND},
                 {for_another_round, SHEAF_E_ROUND},
                 {for_another_client, SHEAF_E_IDENTITY},
                 {for_another_job, SHEAF_E_JOB}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        edge_world_close(&world);
        edge_world_open(&world, 1);
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        world.server.twist_receipt = cases[i].twist;
        assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
        assert_true(told(SHEAF_EDGE_GAVE_UP, cases[i].status));
        assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], 0);
        assert_int_equal(world.server.last_round_told, 0);
    }
}

static void for_an_earlier_statement(sheaf_receipt_statement *receipt) { receipt->update_digest[0] ^= 1; }

static void a_receipt_for_another_statement_of_the_same_payload_is_taken(void **state) {
    (void)state;
    world.server.twist_receipt = for_an_earlier_statement;
    assert_counted_once();
    assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], 1);
    assert_int_equal(world.of_kind[SHEAF_EDGE_GAVE_UP], 0);
}

static void receipts_that_never_fit_do_not_keep_a_device_from_the_next_round(void **state) {
    (void)state;
    world.server.last_round = 2;
    world.server.twist_receipt = for_another_payload;
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.accepted, 2);
}

/* ---- refusals ---- */

static sheaf_status refusal;
static int refuse_offers(edge_world *w, const sheaf_v1_Request *q, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)out;
    if (q->which_body != sheaf_v1_Request_offer_tag || w->server.attempt > 1) return 1;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_refusal_tag;
    reply->body.refusal.status = (uint32_t)refusal;
    w->server.offer_known = 0;
    return 1;
}

static void a_refused_attempt_is_left_alone_until_another_opens(void **state) {
    (void)state;
    static const sheaf_status reasons[] = {SHEAF_E_LATE,      SHEAF_E_NONCE,    SHEAF_E_WEIGHT_CAP,
                                           SHEAF_E_SIGNATURE, SHEAF_E_CONFLICT, SHEAF_E_COHORT_FULL};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        edge_world_close(&world);
        edge_world_open(&world, 1);
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        refusal = reasons[i];
        world.hook = refuse_offers;
        assert_goes_on(3000);
        assert_true(told(SHEAF_EDGE_REFUSED, reasons[i]));
        assert_int_equal(world.server.requests[sheaf_v1_Request_offer_tag], 1);
        world.server.attempt = 2;
        world.server.nonce_letter = 'm';
        assert_counted_once();
        assert_int_equal(world.trainings, 1); /* the same payload under a new statement */
        assert_int_equal(world.server.accepted_attempt, 2);
    }
}

static void a_refusal_that_passes_is_tried_again_in_the_same_attempt(void **state) {
    (void)state;
    refusal = SHEAF_E_BUSY;
    world.hook = refuse_offers;
    assert_goes_on(500);
    assert_true(world.server.requests[sheaf_v1_Request_offer_tag] > 1);
    world.hook = NULL;
    assert_counted_once();
    assert_int_equal(world.trainings, 1);
}

static int refuse_hello(edge_world *w, const sheaf_v1_Request *q, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)w;
    (void)out;
    if (q->which_body != sheaf_v1_Request_hello_tag) return 1;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_refusal_tag;
    reply->body.refusal.status = SHEAF_E_IDENTITY;
    return 1;
}

static void a_device_that_is_not_welcome_asks_less_and_less_often(void **state) {
    (void)state;
    world.hook = refuse_hello;
    while (world.now_ms < 600000) assert_goes_on(10);
    assert_true(told(SHEAF_EDGE_REFUSED, SHEAF_E_IDENTITY));
    assert_int_equal(world.server.requests[sheaf_v1_Request_round_tag], 0);
    assert_in_range(world.server.requests[sheaf_v1_Request_hello_tag], 10, 20);
}

static int refuse_progress(edge_world *w, const sheaf_v1_Request *q, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)out;
    if (q->which_body != sheaf_v1_Request_progress_tag || w->server.attempt > 1) return 1;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_refusal_tag;
    reply->body.refusal.status = SHEAF_E_LATE;
    return 1;
}

static void training_stops_when_the_round_is_over(void **state) {
    (void)state;
    world.slice_count = 100;
    world.hook = refuse_progress;
    assert_goes_on(1000);
    assert_int_equal(world.trainings, 0);
    assert_int_equal(world.cancels, 1);
    world.server.attempt = 2;
    assert_counted_once();
}

/* ---- a trainer that cannot ---- */

static void assert_not_offered(sheaf_status status) {
    assert_goes_on(2000);
    assert_true(told(SHEAF_EDGE_GAVE_UP, status));
    assert_int_equal(world.server.requests[sheaf_v1_Request_offer_tag], 0);
    assert_true(world.cancels > 0);
}

static void a_value_that_is_not_finite_never_leaves(void **state) {
    (void)state;
    world.poison = NAN;
    assert_not_offered(SHEAF_E_NOT_FINITE);
    assert_int_equal(world.trainings, 1); /* it would not be better the second time */
    world.poison = 0.0f;
    world.server.attempt = 2;
    assert_counted_once();
}
static void no_examples_is_no_update(void **state) {
    (void)state;
    world.examples = 0;
    assert_not_offered(SHEAF_E_WEIGHT_ZERO);
}
static void less_than_no_examples_is_none_either(void **state) {
    (void)state;
    world.examples = -3;
    assert_not_offered(SHEAF_E_WEIGHT_NEGATIVE);
}
static void a_trainer_that_failed_gets_another_try(void **state) {
    (void)state;
    world.train_result = SHEAF_E_TRAINER;
    assert_not_offered(SHEAF_E_TRAINER);
    world.train_result = SHEAF_OK;
    assert_counted_once();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(a_round_ends_with_the_differences_at_the_aggregator),
        CASE(the_weight_is_capped_before_it_is_signed),
        CASE(progress_is_reported_while_training),
        CASE(three_rounds_fetch_the_same_model_once),
        CASE(silence_is_given_up_after_reply_ms),
        CASE(a_slow_line_is_no_silence_while_bytes_move),
        CASE(every_first_reply_may_be_lost),
        CASE(a_lost_receipt_is_asked_for_until_it_comes),
        CASE(a_link_that_fails_is_tried_again),
        CASE(every_reply_may_come_twice),
        CASE(a_busy_aggregator_is_given_its_time),
        CASE(no_aggregator_sends_a_device_away_for_weeks),
        CASE(an_aggregator_that_forgot_the_upload_gets_another_offer),
        CASE(a_round_with_a_bad_signature_is_not_worked_on),
        CASE(a_plan_that_was_not_signed_is_not_followed),
        CASE(a_peer_that_is_no_aggregator_hears_no_more_than_hello),
        CASE(a_model_with_the_wrong_digest_is_fetched_again),
        CASE(a_receipt_counts_only_with_the_aggregators_signature),
        CASE(a_refused_attempt_is_left_alone_until_another_opens),
        CASE(a_refusal_that_passes_is_tried_again_in_the_same_attempt),
        CASE(a_device_that_is_not_welcome_asks_less_and_less_often),
        CASE(training_stops_when_the_round_is_over),
        CASE(a_value_that_is_not_finite_never_leaves),
        CASE(no_examples_is_no_update),
        CASE(less_than_no_examples_is_none_either),
        CASE(a_trainer_that_failed_gets_another_try),
        CASE(a_signed_round_must_be_ours),
        CASE(a_signed_receipt_must_be_for_our_update),
        CASE(a_receipt_for_another_statement_of_the_same_payload_is_taken),
        CASE(receipts_that_never_fit_do_not_keep_a_device_from_the_next_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
