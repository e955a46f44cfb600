/* One version, cast once for all that asked for it: over a carrier of the test's own that records every frame. */
#include "tests/cmocka.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/digest.h"
#include "proto/frame.h"
#include "server/cast.h"

enum { PART = 1000, VALUES = 2500, FRAMES_MAX = 400 };

/* What the carrier was given. */
static struct {
    pthread_mutex_t lock;
    unsigned frames, calls, refuse_every;
    uint8_t group[FRAMES_MAX][16];
    uint64_t sequence[FRAMES_MAX], offset[FRAMES_MAX];
    uint8_t stream[5 * VALUES]; /* as a listener from the beginning puts it together */
    int hold;                   /* takes nothing */
} air;

static void nap(long ms) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static sheaf_status record_cast(sheaf_server *server, const sheaf_cast_group *group, uint64_t sequence,
                                sheaf_span frame) {
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    sheaf_span part;
    sheaf_status status = SHEAF_OK;
    (void)server;
    pthread_mutex_lock(&air.lock);
    if (air.hold || (air.refuse_every > 0 && ++air.calls % air.refuse_every == 0)) {
        status = SHEAF_AGAIN;
    } else if (sheaf_frame_decode_reply(frame, &reply, &part) == SHEAF_OK && air.frames < FRAMES_MAX) {
        memcpy(air.group[air.frames], group->id, 16);
        air.sequence[air.frames] = sequence;
        air.offset[air.frames++] = reply.body.model.offset;
        if (reply.body.model.offset + part.size <= sizeof air.stream)
            memcpy(air.stream + reply.body.model.offset, part.data, part.size);
    }
    pthread_mutex_unlock(&air.lock);
    return status;
}

static const sheaf_transport carrier = {.name = "air", .cast = record_cast};
static sheaf_server *no_server;

typedef struct {
    sheaf_shelf shelf;
    sheaf_version *version;
    sheaf_caster *caster;
    _Atomic uint64_t moved_ns;
} world;

static void put_version(world *w, float value) {
    sheaf_tensor tensor = {.name = "a", .dtype = "F32", .rank = 1, .dims = {VALUES}};
    sheaf_model model;
    sheaf_problem problem;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    assert_int_equal(sheaf_model_make(&tensor, 1, &model, &problem), SHEAF_OK);
    for (int i = 0; i < VALUES; i++)
        sheaf_store_f32(model.stream + model.tensors[0].data_offset + 4 * i, value + (float)i);
    assert_int_equal(sheaf_model_digest(&model, digest), SHEAF_OK);
    sheaf_version *next = NULL;
    assert_int_equal(sheaf_version_make(&model, digest, w->version, &next), SHEAF_OK);
    if (w->version != NULL) sheaf_shelf_drop(&w->shelf, w->version);
    sheaf_shelf_put(&w->shelf, next);
    w->version = sheaf_shelf_take(&w->shelf);
}

static int make_world(void **state) {
    world *w = calloc(1, sizeof *w);
    memset(&air, 0, sizeof air);
    pthread_mutex_init(&air.lock, NULL);
    sheaf_shelf_init(&w->shelf);
    put_version(w, 0.5f);
    const sheaf_caster_options options = {.carrier = &carrier,
                                          .server = &no_server,
                                          .shelf = &w->shelf,
                                          .job = "job",
                                          .enough = 3,
                                          .devices_max = 8,
                                          .part_bytes = PART,
                                          .moved_ns = &w->moved_ns};
    assert_int_equal(sheaf_caster_make(&options, &w->caster), SHEAF_OK);
    *state = w;
    return 0;
}

static int end_world(void **state) {
    world *w = *state;
    sheaf_caster_free(w->caster);
    sheaf_shelf_drop(&w->shelf, w->version);
    sheaf_shelf_fini(&w->shelf);
    free(w);
    return 0;
}

static unsigned frames(void) {
    pthread_mutex_lock(&air.lock);
    unsigned count = air.frames;
    pthread_mutex_unlock(&air.lock);
    return count;
}

static unsigned parts_of(const world *w) { return (unsigned)((w->version->model.stream_bytes + PART - 1) / PART); }

static void await_frames(unsigned count) {
    for (int i = 0; i < 5000 && frames() < count; i++) nap(1);
    assert_true(frames() >= count);
}

static sheaf_status join(world *w, const char *client, sheaf_cast_group *group) {
    return sheaf_caster_join(w->caster, w->version, client, group);
}

static void all_that_ask_together_get_one_stream_in_order(void **state) {
    world *w = *state;
    sheaf_cast_group a, b, c;
    air.refuse_every = 3; /* a carrier that is full now and then loses nothing */
    assert_int_equal(join(w, "a", &a), SHEAF_OK);
    assert_int_equal(join(w, "b", &b), SHEAF_OK);
    assert_int_equal(join(w, "c", &c), SHEAF_OK);
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_equal(&a, &c, sizeof a);
    await_frames(parts_of(w));
    nap(1300); /* longer than any gathering: nobody waits, so nothing more may come */
    assert_int_equal(frames(), parts_of(w));
    for (unsigned i = 0; i < frames(); i++) {
        assert_int_equal(air.sequence[i], i);
        assert_int_equal(air.offset[i], i * PART);
        assert_memory_equal(air.group[i], a.id, 16);
    }
    assert_memory_equal(air.stream, w->version->model.stream, w->version->model.stream_bytes);
    uint64_t sent = sheaf_caster_bytes(w->caster), model = w->version->model.stream_bytes;
    assert_true(sent >= model && sent < model + model / 10); /* frames are a little longer */
    assert_true(atomic_load(&w->moved_ns) > 0);
}

static void one_alone_waits_for_a_moment_only(void **state) {
    world *w = *state;
    sheaf_cast_group group;
    assert_int_equal(join(w, "a", &group), SHEAF_OK);
    await_frames(parts_of(w));
}

static void who_comes_late_is_served_the_next_time_around_by_the_same_group(void **state) {
    world *w = *state;
    sheaf_cast_group first, late;
    air.hold = 1;
    assert_int_equal(join(w, "a", &first), SHEAF_OK);
    nap(400); /* the cast has begun, and waits for the carrier */
    assert_int_equal(join(w, "late", &late), SHEAF_OK);
    assert_memory_equal(&first, &late, sizeof first);
    pthread_mutex_lock(&air.lock);
    air.hold = 0;
    pthread_mutex_unlock(&air.lock);
    await_frames(2 * parts_of(w));
    nap(500);
    assert_int_equal(frames(), 2 * parts_of(w));
    for (unsigned i = 0; i < frames(); i++) assert_int_equal(air.sequence[i], i % parts_of(w));
}

static void a_new_version_and_an_expulsion_have_new_groups_and_keys(void **state) {
    world *w = *state;
    sheaf_cast_group first, second, third;
    air.hold = 1;
    assert_int_equal(join(w, "a", &first), SHEAF_OK);
    nap(400);
    put_version(w, 7.5f);
    assert_int_equal(join(w, "a", &second), SHEAF_OK);
    assert_memory_not_equal(first.id, second.id, 16);
    assert_memory_not_equal(first.key, second.key, 16);
    nap(400);
    sheaf_caster_renew(w->caster);
    assert_int_equal(join(w, "b", &third), SHEAF_OK);
    assert_memory_not_equal(second.id, third.id, 16);
    assert_memory_not_equal(second.key, third.key, 16);
    pthread_mutex_lock(&air.lock);
    air.hold = 0;
    pthread_mutex_unlock(&air.lock);
    await_frames(parts_of(w));
    nap(500);
    assert_int_equal(frames(), parts_of(w)); /* nothing of the casts that were ended */
    for (unsigned i = 0; i < frames(); i++) assert_memory_equal(air.group[i], third.id, 16);
    assert_memory_equal(air.stream, w->version->model.stream, w->version->model.stream_bytes);
}

static void a_request_for_an_older_version_changes_nothing(void **state) {
    world *w = *state;
    sheaf_cast_group group;
    sheaf_version *old = sheaf_shelf_take(&w->shelf);
    put_version(w, 7.5f);
    assert_int_equal(join(w, "a", &group), SHEAF_OK);
    assert_int_equal(sheaf_caster_join(w->caster, old, "b", &group), SHEAF_AGAIN);
    sheaf_shelf_drop(&w->shelf, old);
}

static void who_was_told_twice_and_who_finds_no_room_shall_pull(void **state) {
    world *w = *state;
    sheaf_cast_group group;
    char name[16];
    assert_int_equal(join(w, "a", &group), SHEAF_OK);
    assert_int_equal(join(w, "a", &group), SHEAF_OK);
    assert_int_equal(join(w, "a", &group), SHEAF_AGAIN);
    for (int i = 1; i < 8; i++) {
        snprintf(name, sizeof name, "d%d", i);
        assert_int_equal(join(w, name, &group), SHEAF_OK);
    }
    assert_int_equal(join(w, "one more", &group), SHEAF_AGAIN);
    sheaf_caster_stop(w->caster);
    assert_int_equal(join(w, "d1", &group), SHEAF_AGAIN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_that_ask_together_get_one_stream_in_order, make_world, end_world),
        cmocka_unit_test_setup_teardown(one_alone_waits_for_a_moment_only, make_world, end_world),
        cmocka_unit_test_setup_teardown(who_comes_late_is_served_the_next_time_around_by_the_same_group, make_world,
                                        end_world),
        cmocka_unit_test_setup_teardown(a_new_version_and_an_expulsion_have_new_groups_and_keys, make_world, end_world),
        cmocka_unit_test_setup_teardown(a_request_for_an_older_version_changes_nothing, make_world, end_world),
        cmocka_unit_test_setup_teardown(who_was_told_twice_and_who_finds_no_room_shall_pull, make_world, end_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
