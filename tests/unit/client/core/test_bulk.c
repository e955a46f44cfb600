/* Bulk data on its way to and from the device's core: windows, casts, what an older version already holds, and what stood
 * before a restart. The world's model has 1,228 bytes of values in chunks of 100. */
#include "tests/unit/client/core/session_test.h"

#include <stdlib.h>

#define CHUNK       100u
#define PAYLOAD     (307u * 4u)
#define CHUNKS      ((PAYLOAD + CHUNK - 1) / CHUNK)
#define SECOND_TAIL (7u * 4u) /* values of the second tensor, at the end of the stream */

static int setup_bulk(void **state) {
    (void)state;
    edge_world_open(&world, 1);
    world.server.chunk_bytes = CHUNK;
    edge_world_give_room(&world);
    return edge_world_start(&world) == SHEAF_OK ? 0 : -1;
}

static void set_window(uint32_t window) {
    world.options.window = window;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
}

/* ---- windows ---- */

static unsigned lost;
static int lose_the_first_four(edge_world *w, const sheaf_v1_Request *request) {
    (void)w;
    return request->which_body == sheaf_v1_Request_chunk_tag && lost < 4 && ++lost > 0;
}

static void as_many_chunks_are_on_their_way_as_the_window_allows(void **state) {
    (void)state;
    lost = 0;
    set_window(4);
    world.lose = lose_the_first_four; /* so that nothing is answered before the window is full */
    assert_counted_once();
    assert_int_equal(world.waiting_most, 4);
    assert_int_equal(world.server.requests[sheaf_v1_Request_chunk_tag], CHUNKS + 4);
}

static void without_a_window_there_is_one(void **state) {
    (void)state;
    lost = 0;
    world.lose = lose_the_first_four;
    assert_counted_once();
    assert_int_equal(world.waiting_most, 1);
}

static int lose_one_chunk(edge_world *w, const sheaf_v1_Request *request) {
    (void)w;
    if (request->which_body != sheaf_v1_Request_chunk_tag || request->body.chunk.offset != 3 * CHUNK || lost > 0)
        return 0;
    lost++;
    return 1;
}

static void only_the_chunk_that_was_lost_travels_again(void **state) {
    (void)state;
    lost = 0;
    set_window(4);
    world.lose = lose_one_chunk;
    assert_counted_once();
    assert_int_equal(lost, 1);
    assert_int_equal(world.server.chunks_again, 0);
    assert_int_equal(world.server.off_grid, 0);
}

static void a_lost_chunk_is_noticed_before_the_long_silence(void **state) {
    (void)state;
    lost = 0;
    set_window(4);
    world.lose = lose_one_chunk;
    assert_counted_once();
    assert_int_equal(lost, 1);
    assert_true(world.now_ms < 30000); /* reply_ms: the answers to the later chunks say what is missing */
}

static int busy_for_the_fifth(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    if (request->which_body != sheaf_v1_Request_chunk_tag || w->hook_count++ != 5) return 1;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_wait_tag;
    reply->body.wait.status = SHEAF_E_QUOTA;
    reply->body.wait.retry_ms = 700;
    *out = sheaf_span_of(NULL, 0);
    return 1;
}

static void a_window_waits_as_it_is_told(void **state) {
    (void)state;
    set_window(4);
    world.hook = busy_for_the_fifth;
    assert_counted_once();
    assert_true(world.now_ms >= 700);
    assert_int_equal(world.of_kind[SHEAF_EDGE_LINK_LOST], 0);
}

static void an_aggregator_that_takes_smaller_chunks_after_a_lost_link_gets_them(void **state) {
    (void)state;
    assert_int_equal(edge_world_run_to(&world, SHEAF_EDGE_UPLOADING), 1);
    world.server.chunk_bytes = CHUNK / 2;
    world.receive = SHEAF_E_NETWORK;
    assert_counted_once();
    assert_int_equal(world.server.chunk_size, CHUNK / 2);
    assert_int_equal(world.server.off_grid, 0);
}

static unsigned busy_query;
static int busy_for_one_part(edge_world *w, const sheaf_v1_Request *request, sheaf_v1_Reply *reply, sheaf_span *out) {
    if (request->which_body != sheaf_v1_Request_model_tag || w->hook_count++ != busy_query) return 1;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_wait_tag;
    reply->body.wait.status = SHEAF_E_QUOTA;
    reply->body.wait.retry_ms = 700;
    *out = sheaf_span_of(NULL, 0);
    return 1;
}

/* Also for the last one, after which no other part would tell that it is missing. */
static void a_part_that_must_wait_is_asked_for_again(void **state) {
    (void)state;
    unsigned parts = (unsigned)((world.server.model_bytes + CHUNK - 1) / CHUNK);
    for (busy_query = 0; busy_query < parts; busy_query++) {
        for (uint32_t window = 1; window <= 4; window += 3) {
            edge_world_close(&world);
            edge_world_open(&world, 1);
            world.server.chunk_bytes = CHUNK;
            edge_world_give_room(&world);
            set_window(window);
            world.hook = busy_for_one_part;
            assert_counted_once();
            assert_true(world.now_ms >= 700);
            assert_int_equal(world.of_kind[SHEAF_EDGE_LINK_LOST], 0);
            assert_true(world.server.requests[sheaf_v1_Request_model_tag] > parts);
        }
    }
}

/* ---- casts ---- */

static void a_cast_brings_the_whole_model(void **state) {
    (void)state;
    world.server.casts = 1;
    assert_counted_once();
    assert_int_equal(world.server.joins, 1);
    assert_int_equal(world.server.leaves, 1);
    assert_int_equal(world.server.model_bytes_sent, 0); /* nothing was asked for by itself */
    assert_true(world.of_kind[SHEAF_EDGE_CAST] >= 1);
}

static int cast_frames;
static int lose_every_fifth(edge_world *w, sheaf_v1_Reply *reply, sheaf_span *payload) {
    (void)w;
    (void)reply;
    (void)payload;
    return ++cast_frames % 5 != 0;
}

static void what_a_cast_loses_is_asked_for(void **state) {
    (void)state;
    cast_frames = 0;
    world.server.casts = 1;
    world.server.cast_hook = lose_every_fifth;
    assert_counted_once();
    assert_true(world.server.model_bytes_sent > 0);
    assert_true(world.server.model_bytes_sent < world.server.model_bytes);
}

static int lose_all(edge_world *w, sheaf_v1_Reply *reply, sheaf_span *payload) {
    (void)w;
    (void)reply;
    (void)payload;
    return 0;
}

static void a_silent_cast_is_left(void **state) {
    (void)state;
    world.server.casts = 1;
    world.server.cast_hook = lose_all;
    assert_counted_once();
    assert_int_equal(world.server.model_bytes_sent, world.server.model_bytes);
    assert_true(told(SHEAF_EDGE_CAST, SHEAF_E_TIMEOUT));
}

static int forge(edge_world *w, sheaf_v1_Reply *reply, sheaf_span *payload) {
    static uint8_t forged[CHUNK];
    (void)w;
    if (reply->body.model.offset == 3 * CHUNK) *payload = sheaf_span_of(forged, payload->size);
    return 1;
}

static void a_forged_cast_costs_a_download_and_no_more(void **state) {
    (void)state;
    world.server.casts = 1;
    world.server.cast_hook = forge;
    assert_counted_once();
    assert_int_equal(world.server.model_bytes_sent, world.server.model_bytes);
}

/* ---- what is here already ---- */

static void a_second_version_of_which_only_a_tensor_differs(void) {
    world.server.last_round = 2;
    while (world.server.accepted == 0) assert_true(edge_world_run(&world, 1) <= SHEAF_AGAIN);
    world.server.old_model = malloc(world.server.model_bytes);
    assert_non_null(world.server.old_model);
    memcpy(world.server.old_model, world.server.model, world.server.model_bytes);
    world.server.model[17 * 4] ^= 1;
    world.server.model_bytes_sent = 0;
}

static void what_is_the_same_in_the_next_version_is_not_sent(void **state) {
    (void)state;
    a_second_version_of_which_only_a_tensor_differs();
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.accepted, 2);
    assert_true(world.server.same_bytes >= SECOND_TAIL);
    assert_true(world.server.model_bytes_sent + SECOND_TAIL <= world.server.model_bytes);
}

static void a_rotten_old_version_costs_a_download_and_no_more(void **state) {
    (void)state;
    a_second_version_of_which_only_a_tensor_differs();
    edge_world_slot *slot = &world.storage.slots[SHEAF_EDGE_MODEL];
    slot->content[slot->size - 1] ^= 1;
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.accepted, 2);
    assert_true(world.server.model_bytes_sent >= world.server.model_bytes);
}

static void run_to_the_middle_of_the_download(void) {
    while (world.server.model_bytes_sent < 6 * CHUNK) assert_true(edge_world_run(&world, 1) <= SHEAF_AGAIN);
}

static void a_download_goes_on_after_a_restart(void **state) {
    (void)state;
    run_to_the_middle_of_the_download();
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_counted_once();
    assert_true(world.server.model_bytes_sent <= world.server.model_bytes + CHUNK); /* at most one part twice */
}

static void bytes_that_a_loss_of_power_damaged_cost_a_download_and_no_more(void **state) {
    (void)state;
    run_to_the_middle_of_the_download();
    world.storage.slots[SHEAF_EDGE_MODEL].draft[CHUNK] ^= 1;
    assert_int_equal(edge_world_start(&world), SHEAF_OK);
    assert_counted_once();
    assert_true(world.server.model_bytes_sent > world.server.model_bytes + CHUNK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_bulk, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(as_many_chunks_are_on_their_way_as_the_window_allows),
        TEST(without_a_window_there_is_one),
        TEST(only_the_chunk_that_was_lost_travels_again),
        TEST(a_lost_chunk_is_noticed_before_the_long_silence),
        TEST(a_window_waits_as_it_is_told),
        TEST(an_aggregator_that_takes_smaller_chunks_after_a_lost_link_gets_them),
        TEST(a_part_that_must_wait_is_asked_for_again),
        TEST(a_cast_brings_the_whole_model),
        TEST(what_a_cast_loses_is_asked_for),
        TEST(a_silent_cast_is_left),
        TEST(a_forged_cast_costs_a_download_and_no_more),
        TEST(what_is_the_same_in_the_next_version_is_not_sent),
        TEST(a_rotten_old_version_costs_a_download_and_no_more),
        TEST(a_download_goes_on_after_a_restart),
        TEST(bytes_that_a_loss_of_power_damaged_cost_a_download_and_no_more),
    };
    return cmocka_run_group_tests_name("unit.client.core.bulk", tests, NULL, NULL);
}
