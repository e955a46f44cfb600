/* The released model is a function of the set of accepted updates: the same bits for any order of arrival and any number
 * of workers; and a sum in floating point would not pass this test. */
#include "tests/cmocka.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/digest.h"
#include "server/aggregate/aggregator.h"
#include "tests/kit/service_kit.h"
#include "tests/unit/server/aggregate/float_mutant.h"

enum { FLEET = 24, SENDERS = 4 };

typedef struct {
    device *devices[FLEET];
    int order[FLEET];
    int sender;
} sending;

/* xorshift64: the tests' own, so that the payloads depend on nothing of ours. */
static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Values of very different size, so that float sums depend on their order. */
static void payload_of(int client, update *u) {
    uint64_t state = 88172645463325252u + 7919u * (uint64_t)client;
    for (uint32_t i = 0; i < DEVICE_VALUES; i++) {
        float value = (float)(int64_t)(next(&state) % 2000001 - 1000000) / 1e6f;
        sheaf_store_f32(u->payload + 4 * i, client % 3 == 0 ? 60.0f * value : client % 3 == 1 ? value : 1e-3f * value);
    }
    assert_int_equal(sheaf_digest_of(sheaf_span_of(u->payload, u->payload_size), u->statement.payload_digest),
                     SHEAF_OK);
}

static int64_t weight_of(int client) { return 1 + 37 * client % 101; }

/* Every SENDERS-th device of the order, on a thread of its own. */
static void *send_some(void *context) {
    const sending *work = context;
    for (int i = work->sender; i < FLEET; i += SENDERS) {
        int client = work->order[i];
        device *self = work->devices[client];
        update u;
        if (!device_await_round(self)) return NULL;
        device_update(self, 0, weight_of(client), &u);
        payload_of(client, &u);
        device_sign(self, &u);
        if (device_send(self, &u) != sheaf_v1_Reply_receipt_tag) return NULL;
    }
    return context;
}

static void shuffle(int *order, uint64_t seed) {
    for (int i = 0; i < FLEET; i++) order[i] = i;
    for (int i = FLEET - 1; i > 0; i--) {
        int j = (int)(next(&seed) % (uint64_t)(i + 1)), keep = order[i];
        order[i] = order[j];
        order[j] = keep;
    }
}

typedef struct {
    uint8_t model[SHEAF_DIGEST_BYTES];
    int arrival[FLEET]; /* as the service recorded it */
} outcome;

static void read_arrival(const service_kit *kit, int *arrival) {
    char path[1100];
    sqlite3 *database = NULL;
    sqlite3_stmt *query = NULL;
    (void)snprintf(path, sizeof path, "%s/state.db", kit->state);
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(database, "SELECT client FROM updates ORDER BY arrival", -1, &query, NULL),
                     SQLITE_OK);
    int count = 0;
    while (sqlite3_step(query) == SQLITE_ROW && count < FLEET)
        arrival[count++] = (int)strtol((const char *)sqlite3_column_text(query, 0) + 1, NULL, 10);
    assert_int_equal(count, FLEET);
    sqlite3_finalize(query);
    sqlite3_close(database);
}

static outcome run(int workers, uint64_t seed) {
    service_kit kit = {.workers = workers};
    sending work[SENDERS];
    outcome result;
    char yaml[200], name[16];
    (void)snprintf(yaml, sizeof yaml, "    rounds: 1\n    cohort: {minimum: %d, target: %d, maximum: %d}\n", FLEET,
                   FLEET, FLEET);
    service_kit_start(&kit, yaml);
    shuffle(work[0].order, seed);
    for (int i = 0; i < FLEET; i++) {
        (void)snprintf(name, sizeof name, "d%d", i);
        work[0].devices[i] = device_make(&kit, name);
    }
    pthread_t threads[SENDERS];
    for (int s = 0; s < SENDERS; s++) {
        if (s > 0) work[s] = work[0];
        work[s].sender = s;
    }
    for (int s = 0; s < SENDERS; s++) assert_int_equal(pthread_create(&threads[s], NULL, send_some, &work[s]), 0);
    for (int s = 0; s < SENDERS; s++) {
        void *done = NULL;
        assert_int_equal(pthread_join(threads[s], &done), 0);
        assert_ptr_equal(done, &work[s]);
    }
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    read_arrival(&kit, result.arrival);
    float model[4];
    service_kit_model(&kit, model);
    assert_int_equal(sheaf_digest_of(sheaf_span_of(model, sizeof model), result.model), SHEAF_OK);
    for (int i = 0; i < FLEET; i++) device_free(work[0].devices[i]);
    service_kit_stop(&kit);
    return result;
}

/* The same updates in the order in which they arrived, through any backend. */
static void replay(const sheaf_backend *backend, const int *arrival, float out[DEVICE_VALUES]) {
    sheaf_tensor tensor = {.name = "a", .dtype = "F32", .rank = 1, .dims = {DEVICE_VALUES}};
    sheaf_model base = {0}, next_model = {0};
    sheaf_problem problem;
    sheaf_aggregator *aggregator = NULL;
    const int bits = 24;
    assert_int_equal(sheaf_model_make(&tensor, 1, &base, &problem), SHEAF_OK);
    assert_int_equal(sheaf_model_make(&tensor, 1, &next_model, &problem), SHEAF_OK);
    for (uint32_t i = 0; i < DEVICE_VALUES; i++)
        sheaf_store_f32(base.stream + base.tensors[0].data_offset + 4 * i, (float)(i + 1));
    const sheaf_aggregator_options options = {
        .shape = &base, .fraction_bits = &bits, .cohort_max = FLEET, .weight_max = 1000000, .backend = backend};
    assert_int_equal(sheaf_aggregator_open(&options, &aggregator, &problem), SHEAF_OK);
    for (int i = 0; i < FLEET; i++) {
        update u = {.payload_size = sizeof u.payload};
        payload_of(arrival[i], &u);
        assert_int_equal(
            sheaf_aggregator_add(aggregator, "f32", sheaf_span_of(u.payload, u.payload_size), weight_of(arrival[i])),
            SHEAF_OK);
    }
    assert_int_equal(sheaf_aggregator_apply(aggregator, &base, &next_model, &problem), SHEAF_OK);
    for (uint32_t i = 0; i < DEVICE_VALUES; i++)
        out[i] = sheaf_load_f32(next_model.stream + next_model.tensors[0].data_offset + 4 * i);
    sheaf_aggregator_close(aggregator);
    sheaf_model_free(&base);
    sheaf_model_free(&next_model);
}

static void any_order_and_any_number_of_workers_give_the_same_model(void **state) {
    (void)state;
    static const int workers[] = {1, 2, 4};
    outcome runs[9];
    int orders_differ = 0, mutants_differ = 0;
    for (int i = 0; i < 9; i++) {
        runs[i] = run(workers[i % 3], 1000003u * (uint64_t)(i + 1));
        assert_memory_equal(runs[i].model, runs[0].model, SHEAF_DIGEST_BYTES);
        orders_differ += memcmp(runs[i].arrival, runs[0].arrival, sizeof runs[0].arrival) != 0;
    }
    assert_int_equal(orders_differ, 8);
    float first[DEVICE_VALUES], other[DEVICE_VALUES];
    uint8_t digest[SHEAF_DIGEST_BYTES];
    replay(&sheaf_backend_scalar, runs[3].arrival, first);
    assert_int_equal(sheaf_digest_of(sheaf_span_of(first, sizeof first), digest), SHEAF_OK);
    assert_memory_equal(digest, runs[0].model, SHEAF_DIGEST_BYTES);
    replay(&float_mutant_backend, runs[0].arrival, first);
    for (int i = 1; i < 9; i++) {
        replay(&float_mutant_backend, runs[i].arrival, other);
        mutants_differ += memcmp(first, other, sizeof first) != 0;
    }
    assert_true(mutants_differ > 0);
    (void)double_mutant_backend;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_order_and_any_number_of_workers_give_the_same_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
