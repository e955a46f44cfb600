/* Answers that come late or twice are met by the core beside a newer request: they must cost time only. */
#include "tests/unit/client/core/session_test.h"

/* The aggregator forgot an upload, and says so twice: the second time where the offer's answer should be. */
static int forget_twice(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    int chunk = request->which_body == sheaf_v1_Request_chunk_tag && w->hook_count == 0;
    int offer = request->which_body == sheaf_v1_Request_offer_tag && w->hook_count == 1;
    if (!chunk && !offer) return 1;
    w->hook_count++;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_refusal_tag;
    reply->body.refusal.status = SHEAF_E_NOT_FOUND;
    *out = sheaf_span_of(NULL, 0);
    return 1;
}

static void a_chunk_forgotten_twice_is_offered_again_in_the_same_round(void **state) {
    (void)state;
    world.hook = forget_twice;
    assert_counted_once();
    assert_int_equal(world.hook_count, 2);
    assert_int_equal(world.of_kind[SHEAF_EDGE_REFUSED], 0);
    assert_int_equal(world.trainings, 1);
}

static int forget_the_model(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    if (request->which_body != sheaf_v1_Request_model_tag || w->hook_count++ != 0) return 1;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_refusal_tag;
    reply->body.refusal.status = SHEAF_E_NOT_FOUND;
    *out = sheaf_span_of(NULL, 0);
    return 1;
}

static void a_late_not_found_beside_a_download_does_not_bar_the_round(void **state) {
    (void)state;
    world.hook = forget_the_model;
    assert_counted_once();
    assert_int_equal(world.hook_count > 1, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {CASE(a_chunk_forgotten_twice_is_offered_again_in_the_same_round),
                                       CASE(a_late_not_found_beside_a_download_does_not_bar_the_round)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
