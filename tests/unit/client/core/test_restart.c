/* The device's core over stops, restarts, losses of power, rotten storage and rounds that open again. */
#include "tests/unit/client/core/session_test.h"

static int lose_receipts(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    (void)request;
    (void)out;
    if (reply->which_body != sheaf_v1_Reply_receipt_tag) return 1;
    return w->hook_count++ >= 3;
}

/* ---- stop, restart, power ---- */

static void a_stop_in_training_is_followed_by_the_same_update_later(void **state) {
    (void)state;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_IN_TRAINING), 1);
    sheaf_edge_request_stop(&world.edge);
    assert_int_equal(edge_world_run(&world, 10), SHEAF_STOPPED);
    assert_int_equal(world.cancels, 1);
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_counted_once();
}

static void after_a_restart_the_very_same_bytes_are_offered(void **state) {
    (void)state;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_UPLOADING), 1);
    sheaf_v1_Offer first = world.server.last_offer;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_UPLOADING), 1);
    assert_memory_equal(&first, &world.server.last_offer, sizeof first); /* statement, signature, loss */
    assert_counted_once();
    assert_int_equal(world.trainings, 1);
}

static void the_newest_round_with_a_receipt_is_told_also_after_a_restart(void **state) {
    (void)state;
    world.server.last_round = 2;
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.last_round_told, 2);
    world.server.last_round_told = 0;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.last_round_told, 2);
    assert_int_equal(world.server.requests[sheaf_v1_Request_offer_tag], 2); /* and nothing is offered again */
}

static void lose_the_receipt_and_die(void) {
    world.server.last_round = 2;
    world.hook = lose_receipts;
    while (world.server.accepted == 0) assert_true(edge_world_run(&world, 1) <= SHEAF_AGAIN);
    world.hook = NULL;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
}

static void a_receipt_that_was_lost_with_the_power_is_asked_for_while_waiting(void **state) {
    (void)state;
    lose_the_receipt_and_die();
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_FINISHING), 1); /* the next round is not open yet */
    assert_int_equal(world.trainings, 1);
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], 2);
}

static void a_receipt_that_was_lost_with_the_power_is_asked_for_before_the_next_round(void **state) {
    (void)state;
    lose_the_receipt_and_die();
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED); /* the next round is open at once */
    assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], 2);
    assert_int_equal(world.trainings, 2);
}

static void a_receipt_that_was_lost_with_the_power_is_asked_for_at_the_end(void **state) {
    (void)state;
    lose_the_receipt_and_die();
    world.server.last_round = 1;
    assert_counted_once();
    assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], 1);
}

/* The aggregator takes no statement of another certificate than the connection's, and its receipt is for the statement that it
 * accepted. */
static void a_receipt_that_was_lost_is_taken_though_the_certificate_was_renewed(void **state) {
    (void)state;
    for (unsigned rounds = 1; rounds <= 2; rounds++) { /* it is asked for at the end, or before the next round */
        edge_world_close(&world);
        edge_world_open(&world, 1);
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        lose_the_receipt_and_die();
        world.server.last_round = rounds;
        world.device_certificate = 0xde;
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
        assert_int_equal(world.of_kind[SHEAF_EDGE_RECEIPT], rounds);
        assert_int_equal(world.of_kind[SHEAF_EDGE_REFUSED], 0);
        assert_int_equal(world.of_kind[SHEAF_EDGE_GAVE_UP], 0);
        assert_int_equal(world.server.accepted, rounds);
        assert_int_equal(world.trainings, rounds);
    }
}

static void a_round_that_opens_again_gets_the_same_payload_newly_signed(void **state) {
    (void)state;
    for (int what = 0; what < 2; what++) { /* either alone makes another statement necessary */
        edge_world_close(&world);
        edge_world_open(&world, 1);
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_UPLOADING), 1);
        if (what == 0)
            world.server.attempt = 2;
        else
            world.server.nonce_letter = 'm';
        world.server.offer_known = 0;
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        assert_counted_once();
        assert_int_equal(world.trainings, 1);
        assert_int_equal(world.of_kind[SHEAF_EDGE_REFUSED], 0);
    }
}

static void a_round_that_opens_again_on_other_terms_is_trained_again(void **state) {
    (void)state;
    for (int what = 0; what < 2; what++) {
        edge_world_close(&world);
        edge_world_open(&world, 1);
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_UPLOADING), 1);
        if (what == 0)
            world.server.plan.seed++;
        else
            world.server.model[world.server.model_bytes - 1] ^= 1;
        world.server.attempt = 2;
        world.server.offer_known = 0;
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        assert_counted_once();
        assert_int_equal(world.trainings, 2);
    }
}

static void a_lost_link_introduces_itself_again(void **state) {
    (void)state;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_UPLOADING), 1);
    assert_int_equal(world.server.requests[sheaf_v1_Request_hello_tag], 1);
    world.receive = SHEAF_E_NETWORK;
    assert_counted_once();
    assert_int_equal(world.server.requests[sheaf_v1_Request_hello_tag], 2);
}

static void a_stored_update_that_broke_off_while_it_was_sent_is_made_again(void **state) {
    (void)state;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_UPLOADING), 1);
    world.storage.slots[SHEAF_EDGE_UPDATE].size = 10;
    assert_counted_once();
    assert_int_equal(world.trainings, 2);
}

static void a_renewed_certificate_signs_the_same_payload_again(void **state) {
    (void)state;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_UPLOADING), 1);
    world.device_certificate = 0xde;
    world.server.offer_known = 0;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_counted_once();
    assert_int_equal(world.trainings, 1);
}

static void a_certificate_that_is_renewed_while_it_offers_or_sends_costs_no_attempt(void **state) {
    (void)state;
    for (int state_now = SHEAF_EDGE_OFFERING; state_now <= SHEAF_EDGE_UPLOADING; state_now++) {
        edge_world_close(&world);
        edge_world_open(&world, 1);
        assert_int_equal(edge_world_start(&world), SHEAF_OK);
        assert_int_equal(edge_world_run_to(&world, (sheaf_edge_state)state_now), 1);
        world.device_certificate = 0xde;
        world.receive = SHEAF_E_NETWORK; /* its link is replaced */
        world.server.offer_known = 0;    /* as is the aggregator, which takes no other certificate's statement */
        assert_counted_once();
        assert_int_equal(world.of_kind[SHEAF_EDGE_REFUSED], 0);
        assert_int_equal(world.trainings, 1);
    }
}

static void a_stored_update_that_rotted_is_made_again(void **state) {
    (void)state;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_OFFERING), 1);
    world.storage.slots[SHEAF_EDGE_UPDATE].content[7] ^= 1;
    world.server.offer_known = 0;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_counted_once();
    assert_int_equal(world.trainings, 2);
}

static void a_state_that_rotted_is_told_and_starts_afresh(void **state) {
    (void)state;
    assert_counted_once();
    world.storage.slots[SHEAF_EDGE_STATE].content[30] ^= 1;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_true(told(SHEAF_EDGE_STATE_LOST, SHEAF_E_CORRUPT));
}

static void the_state_of_another_job_is_refused(void **state) {
    (void)state;
    assert_counted_once();
    world.options.job = "letters";
    assert_int_equal(edge_world_start(&world), SHEAF_E_MISMATCH);
}

static void a_full_disk_costs_time_only(void **state) {
    (void)state;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_SEALING), 1);
    world.storage.refuse = SHEAF_E_NO_SPACE;
    assert_goes_on(100);
    assert_true(told(SHEAF_EDGE_GAVE_UP, SHEAF_E_NO_SPACE));
    assert_int_equal(world.server.requests[sheaf_v1_Request_offer_tag], 0);
    world.storage.refuse = SHEAF_OK;
    assert_counted_once();
    assert_int_equal(world.trainings, 1);
}

/* The power goes before and after every single call that changes the storage. Whatever had left the device before is
 * what leaves it afterwards, and the update counts once. */
static void crash_at(unsigned call, int after, int *reached) {
    edge_world_close(&world);
    edge_world_open(&world, 2);
    world.storage.fail_at = call;
    world.storage.after = after;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    *reached = edge_world_run(&world, MANY) != SHEAF_ENDED;
    unsigned offers = world.server.requests[sheaf_v1_Request_offer_tag];
    sheaf_update_statement before = world.server.offered, later;
    edge_world_power_on(&world);
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.accepted, 2);
    assert_int_equal(world.server.conflicts, 0);
    later = world.server.offered;
    if (offers > 0 && before.round == later.round) assert_memory_equal(&before, &later, sizeof before);
}

static void power_may_fail_at_every_storage_call(void **state) {
    (void)state;
    for (int after = 0; after < 2; after++) {
        int reached = 1;
        unsigned call = 1;
        while (reached) crash_at(call++, after, &reached);
        assert_true(call > 15); /* a run makes about this many calls, or nothing was tried */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(a_stop_in_training_is_followed_by_the_same_update_later),
        CASE(after_a_restart_the_very_same_bytes_are_offered),
        CASE(the_newest_round_with_a_receipt_is_told_also_after_a_restart),
        CASE(a_receipt_that_was_lost_with_the_power_is_asked_for_while_waiting),
        CASE(a_receipt_that_was_lost_with_the_power_is_asked_for_before_the_next_round),
        CASE(a_receipt_that_was_lost_with_the_power_is_asked_for_at_the_end),
        CASE(a_receipt_that_was_lost_is_taken_though_the_certificate_was_renewed),
        CASE(a_round_that_opens_again_gets_the_same_payload_newly_signed),
        CASE(a_round_that_opens_again_on_other_terms_is_trained_again),
        CASE(a_lost_link_introduces_itself_again),
        CASE(a_stored_update_that_broke_off_while_it_was_sent_is_made_again),
        CASE(a_renewed_certificate_signs_the_same_payload_again),
        CASE(a_certificate_that_is_renewed_while_it_offers_or_sends_costs_no_attempt),
        CASE(a_stored_update_that_rotted_is_made_again),
        CASE(a_state_that_rotted_is_told_and_starts_afresh),
        CASE(the_state_of_another_job_is_refused),
        CASE(a_full_disk_costs_time_only),
        CASE(power_may_fail_at_every_storage_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
