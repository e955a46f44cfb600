/* backend_suite.h - what every aggregation backend must do, compared by memcmp and never with a tolerance.
 *
 * The expected sums come from the plain loop below over lattice_decode_f32 (which the golden vectors pin), one value
 * and one update at a time. The sample has odd lengths, an empty tensor, several lattices, and values near both ends of
 * each lattice, so that sums need more than 53 bits.
 *
 * Usage:   const char *broken = suite_run(&backend); NULL, or what does not hold. */
#pragma once
#include "common/lattice.h"
#include "server/aggregate/backend.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SUITE_UPDATES = 12, SUITE_TENSORS = 6, SUITE_VALUES = 1 + 70001 + 4096 + 3 + 65536 };

static const sheaf_backend_tensor suite_tensors[SUITE_TENSORS] = {
    {0, 1, 24}, {1, 0, 0}, {1, 70001, 20}, {70002, 4096, 126}, {74098, 3, -125}, {74101, 65536, -3},
};
static const sheaf_backend_shape suite_shape = {suite_tensors, SUITE_TENSORS, SUITE_VALUES};

typedef struct {
    uint8_t *payloads[SUITE_UPDATES];
    int64_t weights[SUITE_UPDATES];
    int64_t *expected; /* SUITE_VALUES sums of all updates */
    int64_t *found;    /* room for as many */
} suite_sample;

static uint64_t suite_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* A float whose lattice integer has up to `bits_max` bits, or rounds to 0: bits of sign, exponent and fraction. */
static uint32_t suite_value(uint64_t *state, int fraction_bits) {
    uint64_t r = suite_random(state);
    int power = (int)(r >> 40 & 31) - 2; /* |x| * 2^f in [2^-2, 2^30) */
    int exponent = 127 - fraction_bits + (power > 29 ? 29 : power);
    if (exponent < 0) exponent = 0;
    if (exponent > 254) exponent = 254;
    return (uint32_t)(r & 0x807fffffu) | (uint32_t)exponent << 23;
}

static sheaf_span suite_payload(const suite_sample *sample, size_t update) {
    return sheaf_span_of(sample->payloads[update], 4 * (size_t)SUITE_VALUES);
}

static void suite_fill(uint8_t *payload, uint64_t seed) {
    for (size_t t = 0; t < SUITE_TENSORS; t++) {
        for (uint64_t i = 0; i < suite_tensors[t].elements; i++) {
            sheaf_store_u32(payload + 4 * (suite_tensors[t].first + i),
                            suite_value(&seed, suite_tensors[t].fraction_bits));
        }
    }
}

static void suite_add_expected(int64_t *sums, const uint8_t *payload, int64_t weight) {
    for (size_t t = 0; t < SUITE_TENSORS; t++) {
        for (uint64_t i = suite_tensors[t].first; i < suite_tensors[t].first + suite_tensors[t].elements; i++) {
            int32_t q = 0;
            sheaf_status status =
                lattice_decode_f32(sheaf_load_u32(payload + 4 * i), suite_tensors[t].fraction_bits, &q);
            assert(status == SHEAF_OK);
            sums[i] += weight * q;
        }
    }
}

static void suite_make(suite_sample *sample) {
    uint64_t seed = 42;
    sample->expected = calloc(SUITE_VALUES, sizeof *sample->expected);
    sample->found = calloc(SUITE_VALUES, sizeof *sample->found);
    assert(sample->expected != NULL && sample->found != NULL);
    for (size_t u = 0; u < SUITE_UPDATES; u++) {
        sample->payloads[u] = malloc(4 * (size_t)SUITE_VALUES);
        assert(sample->payloads[u] != NULL);
        suite_fill(sample->payloads[u], suite_random(&seed));
        /* 12 * 2^27 * (2^31 - 1) < 2^63: large enough that a sum in double would round. */
        sample->weights[u] = 1 + (int64_t)(suite_random(&seed) % (1u << 27));
        suite_add_expected(sample->expected, sample->payloads[u], sample->weights[u]);
    }
}

static void suite_drop(suite_sample *sample) {
    for (size_t u = 0; u < SUITE_UPDATES; u++) free(sample->payloads[u]);
    free(sample->expected);
    free(sample->found);
}

static void suite_open(const sheaf_backend *backend, void **state) {
    sheaf_status status = backend->open(&suite_shape, state);
    assert(status == SHEAF_OK);
}

static void suite_add(const sheaf_backend *backend, void *state, const suite_sample *sample, size_t update) {
    sheaf_status status = backend->add(state, &sheaf_codec_f32, suite_payload(sample, update), sample->weights[update]);
    assert(status == SHEAF_OK);
}

static int suite_equal(const sheaf_backend *backend, const void *state, const suite_sample *sample,
                       const int64_t *expected) {
    sheaf_status status = backend->read(state, 0, SUITE_VALUES, sample->found);
    assert(status == SHEAF_OK);
    return memcmp(sample->found, expected, SUITE_VALUES * sizeof *expected) == 0;
}

/* order[i] of 0..n-1: seed 0 forwards, 1 backwards, others shuffled. */
static void suite_order(size_t order[SUITE_UPDATES], uint64_t seed) {
    for (size_t i = 0; i < SUITE_UPDATES; i++) order[i] = seed == 1 ? SUITE_UPDATES - 1 - i : i;
    for (size_t i = SUITE_UPDATES - 1; seed > 1 && i > 0; i--) {
        size_t other = (size_t)(suite_random(&seed) % (i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

static int suite_any_order_gives_the_expected_sums(const sheaf_backend *backend, const suite_sample *sample) {
    int ok = 1;
    for (uint64_t seed = 0; ok && seed < 5; seed++) {
        size_t order[SUITE_UPDATES];
        void *state = NULL;
        suite_order(order, seed);
        suite_open(backend, &state);
        for (size_t i = 0; i < SUITE_UPDATES; i++) suite_add(backend, state, sample, order[i]);
        ok = suite_equal(backend, state, sample, sample->expected);
        backend->close(state);
    }
    return ok;
}

/* Forwards and backwards give the same bits, whatever they are. */
static int suite_orders_agree(const sheaf_backend *backend, const suite_sample *sample) {
    void *forwards = NULL, *backwards = NULL;
    int64_t *sums = calloc(SUITE_VALUES, sizeof *sums);
    assert(sums != NULL);
    suite_open(backend, &forwards);
    suite_open(backend, &backwards);
    for (size_t i = 0; i < SUITE_UPDATES; i++) {
        suite_add(backend, forwards, sample, i);
        suite_add(backend, backwards, sample, SUITE_UPDATES - 1 - i);
    }
    sheaf_status status = backend->read(forwards, 0, SUITE_VALUES, sums);
    assert(status == SHEAF_OK);
    int ok = suite_equal(backend, backwards, sample, sums);
    backend->close(forwards);
    backend->close(backwards);
    free(sums);
    return ok;
}

typedef struct {
    const sheaf_backend *backend;
    const suite_sample *sample;
    void *state;
    atomic_size_t next; /* update to take */
} suite_crew;

static void *suite_worker(void *context) {
    suite_crew *crew = context;
    for (size_t u = atomic_fetch_add(&crew->next, 1); u < SUITE_UPDATES; u = atomic_fetch_add(&crew->next, 1)) {
        suite_add(crew->backend, crew->state, crew->sample, u);
    }
    return NULL;
}

static int suite_any_number_of_threads_gives_the_expected_sums(const sheaf_backend *backend,
                                                               const suite_sample *sample) {
    int ok = 1;
    for (size_t threads = 1; ok && threads <= 8; threads *= 2) {
        pthread_t workers[8];
        suite_crew crew = {.backend = backend, .sample = sample};
        atomic_init(&crew.next, 0);
        suite_open(backend, &crew.state);
        for (size_t i = 0; i < threads; i++) {
            int failed = pthread_create(&workers[i], NULL, suite_worker, &crew);
            assert(!failed);
        }
        for (size_t i = 0; i < threads; i++) pthread_join(workers[i], NULL);
        ok = suite_equal(backend, crew.state, sample, sample->expected);
        backend->close(crew.state);
    }
    return ok;
}

#ifdef __SANITIZE_THREAD__ /* sees every race at once, slowly */
enum { SUITE_CROWD_ADDS = 100 };
#else
enum { SUITE_CROWD_ADDS = 2500 };
#endif
enum { SUITE_CROWD = 4, SUITE_CROWD_VALUES = 4096 };

typedef struct {
    const sheaf_backend *backend;
    void *state;
    uint8_t payload[4 * SUITE_CROWD_VALUES];
} suite_crowd;

static void *suite_crowd_worker(void *context) {
    suite_crowd *crowd = context;
    for (int i = 0; i < SUITE_CROWD_ADDS; i++) {
        sheaf_status status = crowd->backend->add(crowd->state, &sheaf_codec_f32,
                                                  sheaf_span_of(crowd->payload, sizeof crowd->payload), 3);
        assert(status == SHEAF_OK);
    }
    return NULL;
}

/* Everybody adds to the same few values all the time, so that a lost addition shows without a sanitizer. */
static int suite_a_crowd_on_the_same_values_loses_nothing(const sheaf_backend *backend, const suite_sample *sample) {
    (void)sample;
    static const sheaf_backend_tensor tensor = {0, SUITE_CROWD_VALUES, 0};
    const sheaf_backend_shape shape = {&tensor, 1, SUITE_CROWD_VALUES};
    suite_crowd crowd = {.backend = backend};
    pthread_t workers[SUITE_CROWD];
    int64_t sums[SUITE_CROWD_VALUES];
    for (unsigned i = 0; i < SUITE_CROWD_VALUES; i++) sheaf_store_f32(crowd.payload + 4 * i, 1.0f + (float)i);
    sheaf_status status = backend->open(&shape, &crowd.state);
    assert(status == SHEAF_OK);
    for (size_t i = 0; i < SUITE_CROWD; i++) {
        int failed = pthread_create(&workers[i], NULL, suite_crowd_worker, &crowd);
        assert(!failed);
    }
    for (size_t i = 0; i < SUITE_CROWD; i++) pthread_join(workers[i], NULL);
    status = backend->read(crowd.state, 0, SUITE_CROWD_VALUES, sums);
    assert(status == SHEAF_OK);
    int ok = 1;
    for (int i = 0; i < SUITE_CROWD_VALUES; i++)
        ok = ok && sums[i] == INT64_C(3) * SUITE_CROWD * SUITE_CROWD_ADDS * (i + 1);
    backend->close(crowd.state);
    return ok;
}

/* Updates dealt to several states, whose sums are then merged in pieces of a length that divides nothing. */
static int suite_merged_parts_give_the_expected_sums(const sheaf_backend *backend, const suite_sample *sample) {
    enum { PARTS = 3, PIECE = 9973 };
    void *states[PARTS];
    int64_t piece[PIECE];
    for (size_t p = 0; p < PARTS; p++) suite_open(backend, &states[p]);
    for (size_t u = 0; u < SUITE_UPDATES; u++) suite_add(backend, states[u % PARTS], sample, u);
    for (size_t p = 1; p < PARTS; p++) {
        for (uint64_t at = 0; at < SUITE_VALUES; at += PIECE) {
            size_t count = SUITE_VALUES - at < PIECE ? (size_t)(SUITE_VALUES - at) : PIECE;
            sheaf_status status = backend->read(states[p], at, count, piece);
            if (status == SHEAF_OK) status = backend->merge(states[0], at, count, piece);
            assert(status == SHEAF_OK);
        }
    }
    int ok = suite_equal(backend, states[0], sample, sample->expected);
    for (size_t p = 0; p < PARTS; p++) backend->close(states[p]);
    return ok;
}

static int suite_reset_begins_again_from_zero(const sheaf_backend *backend, const suite_sample *sample) {
    void *state = NULL;
    suite_open(backend, &state);
    suite_add(backend, state, sample, 3);
    sheaf_status status = backend->reset(state);
    assert(status == SHEAF_OK);
    for (size_t i = 0; i < SUITE_UPDATES; i++) suite_add(backend, state, sample, i);
    int ok = suite_equal(backend, state, sample, sample->expected);
    backend->close(state);
    return ok;
}

/* Puts `bits` at value `at` and asks: the status must be `expected`, at that value. */
static int suite_refuses_at(const sheaf_backend *backend, void *state, const suite_sample *sample, uint64_t at,
                            uint32_t bits, sheaf_status expected) {
    uint8_t *payload = sample->payloads[0];
    uint32_t kept = sheaf_load_u32(payload + 4 * at);
    uint64_t wrong = UINT64_MAX;
    sheaf_store_u32(payload + 4 * at, bits);
    sheaf_status status = backend->validate(state, &sheaf_codec_f32, suite_payload(sample, 0), &wrong);
    sheaf_store_u32(payload + 4 * at, kept);
    return status == expected && wrong == at;
}

static int suite_validate_finds_the_first_bad_value(const sheaf_backend *backend, const suite_sample *sample) {
    static const uint64_t places[] = {0, 1, 4096, 65535, 65536, 70001, 74097, 74101, SUITE_VALUES - 1};
    void *state = NULL;
    uint64_t wrong = 0;
    suite_open(backend, &state);
    int ok = backend->validate(state, &sheaf_codec_f32, suite_payload(sample, 0), &wrong) == SHEAF_OK;
    for (size_t i = 0; ok && i < sizeof places / sizeof places[0]; i++) {
        ok = suite_refuses_at(backend, state, sample, places[i], 0x7fc00000u, SHEAF_E_NOT_FINITE) &&
             suite_refuses_at(backend, state, sample, places[i], 0xff800000u, SHEAF_E_NOT_FINITE) &&
             suite_refuses_at(backend, state, sample, places[i], 0x7f7fffffu, SHEAF_E_RANGE);
    }
    backend->close(state);
    return ok;
}

static const char *suite_run(const sheaf_backend *backend) {
    static const struct {
        const char *name;
        int (*holds)(const sheaf_backend *backend, const suite_sample *sample);
    } rows[] = {
        {"any order gives the expected sums", suite_any_order_gives_the_expected_sums},
        {"orders agree", suite_orders_agree},
        {"any number of threads gives the expected sums", suite_any_number_of_threads_gives_the_expected_sums},
        {"a crowd on the same values loses nothing", suite_a_crowd_on_the_same_values_loses_nothing},
        {"merged parts give the expected sums", suite_merged_parts_give_the_expected_sums},
        {"reset begins again from zero", suite_reset_begins_again_from_zero},
        {"validate finds the first bad value", suite_validate_finds_the_first_bad_value},
    };
    const char *broken = NULL;
    suite_sample sample;
    suite_make(&sample);
    for (size_t i = 0; broken == NULL && i < sizeof rows / sizeof rows[0]; i++) {
        if (!rows[i].holds(backend, &sample)) broken = rows[i].name;
    }
    suite_drop(&sample);
    return broken;
}
