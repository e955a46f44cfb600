/* A model comes down by parts, by a cast, or as a difference, as the device asks and the carrier can. */
#define _XOPEN_SOURCE 700
#include "tests/cmocka.h"

#include <ftw.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/safetensors.h"
#include "tests/kit/service_kit.h"

enum { VALUES = 2500 };

static void nap(long ms) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at) {
    (void)info, (void)type, (void)at;
    return remove(path);
}

/* The kit's service with a model of several parts instead of the kit's own. */
static void start(service_kit *kit, const char *job) {
    sheaf_tensor tensor = {.name = "a", .dtype = "F32", .rank = 1, .dims = {VALUES}};
    sheaf_model model;
    sheaf_problem problem;
    char path[1100];
    service_kit_start(kit, job);
    service_kit_stop_service(kit);
    assert_int_equal(nftw(kit->state, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    (void)snprintf(path, sizeof path, "%s/initial.safetensors", kit->folder);
    assert_int_equal(sheaf_model_make(&tensor, 1, &model, &problem), SHEAF_OK);
    for (int i = 0; i < VALUES; i++) sheaf_store_f32(model.stream + model.tensors[0].data_offset + 4 * i, (float)i);
    assert_int_equal(sheaf_safetensors_write(path, &model, NULL, 0, &problem), SHEAF_OK);
    sheaf_model_free(&model);
    service_kit_restart(kit);
}

static void ask(device *self, uint64_t offset, const uint8_t *held, int can_join) {
    sheaf_v1_Request request = device_request(self);
    request.which_body = sheaf_v1_Request_model_tag;
    memcpy(request.body.model.digest.bytes, self->round.base_model, SHEAF_DIGEST_BYTES);
    request.body.model.digest.size = SHEAF_DIGEST_BYTES;
    request.body.model.offset = offset;
    request.body.model.bytes_max = 65536;
    request.body.model.can_join = can_join != 0;
    if (held != NULL) {
        memcpy(request.body.model.held.bytes, held, SHEAF_DIGEST_BYTES);
        request.body.model.held.size = SHEAF_DIGEST_BYTES;
    }
    device_exchange(self, &request, sheaf_span_of(NULL, 0));
}

/* The next frame that was cast. */
static void listen(device *self) {
    sheaf_buffer in = {self->frame, 0, sizeof self->frame};
    sheaf_problem problem;
    sheaf_status status = SHEAF_AGAIN;
    for (int i = 0; i < 5000 && status == SHEAF_AGAIN; i++) {
        status = sheaf_transport_inproc.receive(self->link, &in, &problem);
        if (status == SHEAF_AGAIN) nap(1);
    }
    assert_int_equal(status, SHEAF_OK);
    assert_int_equal(sheaf_frame_decode_reply(sheaf_buffer_span(&in), &self->reply, &self->payload), SHEAF_OK);
}

/* Takes parts by `next` until the model is whole, and compares its digest. */
static void take_whole(device *self, void (*next)(device *self, uint64_t offset)) {
    uint8_t digest[SHEAF_DIGEST_BYTES], stream[5 * VALUES];
    uint64_t at = 0;
    while (at < self->round.base_model_bytes) {
        next(self, at);
        assert_int_equal(self->reply.which_body, sheaf_v1_Reply_model_tag);
        assert_int_equal(self->reply.body.model.offset, at);
        assert_int_equal(self->reply.body.model.total_bytes, self->round.base_model_bytes);
        assert_true(self->payload.size > 0 && at + self->payload.size <= sizeof stream);
        memcpy(stream + at, self->payload.data, self->payload.size);
        at += self->payload.size;
    }
    assert_int_equal(EVP_Digest(stream, (size_t)at, digest, NULL, EVP_sha256(), NULL), 1);
    assert_memory_equal(digest, self->round.base_model, sizeof digest);
}

static void pull(device *self, uint64_t offset) {
    const uint8_t unknown[SHEAF_DIGEST_BYTES] = {7};
    ask(self, offset, unknown, offset > 0); /* who lacks the rest only gets it by parts */
    assert_int_equal(self->reply.body.model.same_bytes, 0);
}

static void hear(device *self, uint64_t offset) {
    (void)offset;
    listen(self);
}

static void devices_that_can_join_get_one_cast_and_may_pull_all_the_same(void **state) {
    (void)state;
    service_kit kit = {0};
    start(&kit, "    rounds: 1\n    cohort: {minimum: 3, target: 3, maximum: 3}\n");
    device *fleet[3] = {device_make(&kit, "a"), device_make(&kit, "b"), device_make(&kit, "c")};
    for (int i = 0; i < 3; i++) assert_true(device_await_round(fleet[i]));
    for (int i = 0; i < 3; i++) {
        ask(fleet[i], 0, NULL, 1);
        assert_int_equal(fleet[i]->reply.which_body, sheaf_v1_Reply_cast_tag);
        sheaf_cast_group group;
        assert_int_equal(fleet[i]->reply.body.cast.group.size, sizeof group.id);
        assert_int_equal(fleet[i]->reply.body.cast.key.size, sizeof group.key);
        memcpy(group.id, fleet[i]->reply.body.cast.group.bytes, sizeof group.id);
        memcpy(group.key, fleet[i]->reply.body.cast.key.bytes, sizeof group.key);
        assert_int_equal(sheaf_transport_inproc.join(fleet[i]->link, &group), SHEAF_OK);
    }
    for (int i = 0; i < 3; i++) {
        take_whole(fleet[i], hear);
        assert_int_equal(sheaf_transport_inproc.join(fleet[i]->link, NULL), SHEAF_OK);
    }
    take_whole(fleet[1], pull);
    for (int i = 0; i < 3; i++) device_free(fleet[i]);
    service_kit_stop(&kit);
}

static void who_holds_the_version_or_another_is_told_what_is_the_same(void **state) {
    (void)state;
    service_kit kit = {0};
    start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 1, maximum: 3}\n");
    device *a = device_make(&kit, "a");
    assert_true(device_await_round(a));
    ask(a, 0, a->round.base_model, 1);
    assert_int_equal(a->reply.which_body, sheaf_v1_Reply_model_tag);
    assert_int_equal(a->payload.size, 0);
    assert_int_equal(a->reply.body.model.same_bytes, a->reply.body.model.total_bytes);
    assert_int_equal(a->reply.body.model.total_bytes, a->round.base_model_bytes);
    take_whole(a, pull);
    device_free(a);
    service_kit_stop(&kit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_that_can_join_get_one_cast_and_may_pull_all_the_same),
        cmocka_unit_test(who_holds_the_version_or_another_is_told_what_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
