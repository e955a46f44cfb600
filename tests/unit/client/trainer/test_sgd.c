/* Training is a function of network, examples, options and seed, however it is cut into slices; and it learns. */
#include "tests/cmocka.h"

#include <math.h>
#include <stdlib.h>

#include "client/trainer/sgd.h"

/* The first outputs of xoshiro256** from the state 1, 2, 3, 4, as the test of the Rust crate rand_xoshiro lists them
 * from the authors' C program. */
static void the_generator_is_the_published_one(void **state) {
    (void)state;
    static const uint64_t expected[] = {UINT64_C(11520),
                                        0,
                                        UINT64_C(1509978240),
                                        UINT64_C(1215971899390074240),
                                        UINT64_C(1216172134540287360),
                                        UINT64_C(607988272756665600),
                                        UINT64_C(16172922978634559625),
                                        UINT64_C(8476171486693032832),
                                        UINT64_C(10595114339597558777),
                                        UINT64_C(2904607092377533576)};
    sheaf_random random = {{1, 2, 3, 4}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_true(sheaf_random_u64(&random) == expected[i]);
}

static void an_order_is_a_permutation_and_spreads_evenly(void **state) {
    (void)state;
    enum { N = 5, ROUNDS = 20000 };
    uint32_t order[N], seen[N][N] = {{0}};
    uint8_t seed[SHEAF_SEED_BYTES] = {0}; /* the weakest seed must do as well */
    sheaf_random random;
    sheaf_random_init(&random, seed, 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t all = 0;
        sheaf_random_order(&random, order, N);
        for (uint32_t i = 0; i < N; i++) {
            seen[i][order[i]]++;
            all |= 1u << order[i];
        }
        assert_int_equal(all, (1u << N) - 1);
    }
    /* Expected 4000 with a standard deviation of 57 in each of 25 cells: six of them off is no accident. */
    for (int i = 0; i < N * N; i++) assert_in_range(seen[i / N][i % N], 4000 - 340, 4000 + 340);
}

static void streams_of_one_seed_differ(void **state) {
    (void)state;
    uint8_t seed[SHEAF_SEED_BYTES] = {1}, other[SHEAF_SEED_BYTES] = {1, [31] = 1};
    sheaf_random a, b, c;
    sheaf_random_init(&a, seed, 0);
    sheaf_random_init(&b, seed, 1);
    sheaf_random_init(&c, other, 0);
    uint64_t first = sheaf_random_u64(&a);
    assert_true(first != sheaf_random_u64(&b) && first != sheaf_random_u64(&c));
}

/* Points in three noisy clusters. */
enum { POINTS = 90, FEATURES = 6, CLASSES = 3, BATCH = 8 };

static void read_point(uint32_t index, float *features, uint32_t *label, void *context) {
    sheaf_random random;
    (void)context;
    uint8_t seed[SHEAF_SEED_BYTES] = {5};
    sheaf_random_init(&random, seed, index);
    *label = index % CLASSES;
    for (uint32_t i = 0; i < FEATURES; i++)
        features[i] = sheaf_random_unit(&random) + (i % CLASSES == *label ? 1.0f : 0.0f);
}

static const sheaf_examples points = {POINTS, read_point, NULL};

typedef struct {
    sheaf_network network;
    sheaf_training training;
    void *memory, *work;
    size_t work_bytes;
} run;

static void open_run(run *r) {
    sheaf_network_spec spec = {.channels = FEATURES,
                               .height = 1,
                               .width = 1,
                               .scale = 1,
                               .count = 3,
                               .layers = {{.kind = SHEAF_LAYER_DENSE, .units = 20},
                                          {.kind = SHEAF_LAYER_RELU},
                                          {.kind = SHEAF_LAYER_DENSE, .units = CLASSES}}};
    uint8_t seed[SHEAF_SEED_BYTES] = {7};
    size_t bytes = sheaf_network_bytes(&spec, BATCH);
    r->memory = malloc(bytes);
    assert_int_equal(sheaf_network_open(&r->network, &spec, BATCH, r->memory, bytes), SHEAF_OK);
    sheaf_network_initialise(&r->network, seed);
    r->work_bytes = sheaf_training_bytes(r->network.parameter_count, POINTS);
    r->work = malloc(r->work_bytes);
}

static void close_run(run *r) {
    free(r->memory);
    free(r->work);
}

static sheaf_training_options options_of(uint8_t seed, float rate) {
    sheaf_training_options options = {
        .epochs = 5, .batch = BATCH, .learning_rate = rate, .momentum = 0.9f, .seed = {seed}};
    return options;
}

static sheaf_status train(run *r, uint8_t seed, float rate, uint32_t slice) {
    sheaf_training_options options = options_of(seed, rate);
    assert_int_equal(sheaf_training_begin(&r->training, &r->network, &points, &options, r->work, r->work_bytes),
                     SHEAF_OK);
    uint32_t permille = 0;
    sheaf_status status;
    while ((status = sheaf_training_step(&r->training, slice)) == SHEAF_AGAIN) {
        assert_true(sheaf_training_permille(&r->training) >= permille);
        permille = sheaf_training_permille(&r->training);
        assert_in_range(permille, 0, 1000);
    }
    return status;
}

static int same_parameters(const run *a, const run *b) {
    return memcmp(a->network.parameters, b->network.parameters, (size_t)a->network.parameter_count * sizeof(float)) ==
           0;
}

static void the_same_seed_gives_the_same_bytes_in_any_slices(void **state) {
    (void)state;
    run a, b, c;
    open_run(&a);
    open_run(&b);
    open_run(&c);
    assert_int_equal(train(&a, 1, 0.05f, 1), SHEAF_OK);
    assert_int_equal(train(&b, 1, 0.05f, 1000), SHEAF_OK);
    assert_int_equal(train(&c, 2, 0.05f, 7), SHEAF_OK);
    assert_true(same_parameters(&a, &b));
    assert_false(same_parameters(&a, &c));
    assert_int_equal(sheaf_training_permille(&a.training), 1000);
    assert_int_equal(sheaf_training_step(&a.training, 1), SHEAF_OK);
    assert_true(same_parameters(&a, &b));
    close_run(&a);
    close_run(&b);
    close_run(&c);
}

static void training_learns_the_clusters(void **state) {
    (void)state;
    run r;
    sheaf_evaluation before, after;
    open_run(&r);
    assert_int_equal(sheaf_evaluate(&r.network, &points, &before), SHEAF_OK);
    assert_int_equal(train(&r, 3, 0.05f, 10), SHEAF_OK);
    assert_int_equal(sheaf_evaluate(&r.network, &points, &after), SHEAF_OK);
    assert_true(before.loss > 0.6 && after.loss < 0.2 && after.accuracy > 0.97);
    assert_true(sheaf_training_loss(&r.training) > after.loss && sheaf_training_loss(&r.training) < before.loss);
    close_run(&r);
}

static void a_rate_that_explodes_is_named(void **state) {
    (void)state;
    run r;
    open_run(&r);
    assert_int_equal(train(&r, 3, 1e30f, 10), SHEAF_E_NOT_FINITE);
    close_run(&r);
}

static void options_out_of_range_are_refused(void **state) {
    (void)state;
    run r;
    open_run(&r);
    sheaf_training_options good = options_of(1, 0.1f), bad = good;
    sheaf_examples none = {0, read_point, NULL};
    assert_int_equal(sheaf_training_begin(&r.training, &r.network, &none, &good, r.work, r.work_bytes), SHEAF_E_USAGE);
    assert_int_equal(sheaf_training_begin(&r.training, &r.network, &points, &good, r.work, r.work_bytes - 1),
                     SHEAF_E_TOO_LARGE);
    bad.batch = BATCH + 1;
    assert_int_equal(sheaf_training_begin(&r.training, &r.network, &points, &bad, r.work, r.work_bytes), SHEAF_E_USAGE);
    bad = good, bad.learning_rate = NAN;
    assert_int_equal(sheaf_training_begin(&r.training, &r.network, &points, &bad, r.work, r.work_bytes), SHEAF_E_USAGE);
    bad = good, bad.momentum = 1.0f;
    assert_int_equal(sheaf_training_begin(&r.training, &r.network, &points, &bad, r.work, r.work_bytes), SHEAF_E_USAGE);
    bad = good, bad.epochs = 0;
    assert_int_equal(sheaf_training_begin(&r.training, &r.network, &points, &bad, r.work, r.work_bytes), SHEAF_E_USAGE);
    close_run(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_generator_is_the_published_one),
        cmocka_unit_test(an_order_is_a_permutation_and_spreads_evenly),
        cmocka_unit_test(streams_of_one_seed_differ),
        cmocka_unit_test(the_same_seed_gives_the_same_bytes_in_any_slices),
        cmocka_unit_test(training_learns_the_clusters),
        cmocka_unit_test(a_rate_that_explodes_is_named),
        cmocka_unit_test(options_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
