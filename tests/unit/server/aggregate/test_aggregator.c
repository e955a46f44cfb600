/* The aggregator: what it admits, what it refuses, and that the model depends on the set of updates only. Expected
 * values are small enough to be computed by hand. */
#include "tests/cmocka.h"

#include "common/lattice.h"
#include "server/aggregate/aggregator.h"
#include "tests/unit/server/aggregate/float_mutant.h"

#include <math.h>
#include <stdlib.h>

static const sheaf_tensor tensors[] = {
    {.name = "bias", .dtype = "F32", .rank = 1, .dims = {2}},
    {.name = "weight", .dtype = "F32", .rank = 2, .dims = {1, 3}},
};
static const int bits[] = {24, 20};

typedef struct {
    sheaf_model base, next;
    sheaf_aggregator *aggregator;
} world;

static sheaf_aggregator_options options_of(const sheaf_model *shape) {
    sheaf_aggregator_options options = {.shape = shape, .fraction_bits = bits, .cohort_max = 4, .weight_max = 100};
    return options;
}

static int open_world(void **state) {
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_int_equal(sheaf_model_make(tensors, 2, &w->base, NULL), SHEAF_OK);
    assert_int_equal(sheaf_model_make(tensors, 2, &w->next, NULL), SHEAF_OK);
    sheaf_aggregator_options options = options_of(&w->base);
    assert_int_equal(sheaf_aggregator_open(&options, &w->aggregator, NULL), SHEAF_OK);
    *state = w;
    return 0;
}

static int close_world(void **state) {
    world *w = *state;
    sheaf_aggregator_close(w->aggregator);
    sheaf_aggregator_close(NULL);
    sheaf_model_free(&w->base);
    sheaf_model_free(&w->next);
    free(w);
    return 0;
}

static sheaf_span payload_of(uint8_t out[20], const float values[5]) {
    for (size_t i = 0; i < 5; i++) sheaf_store_f32(out + 4 * i, values[i]);
    return sheaf_span_of(out, 20);
}

static void add(world *w, const float values[5], int64_t weight) {
    uint8_t bytes[20];
    sheaf_span payload = payload_of(bytes, values);
    assert_int_equal(sheaf_aggregator_validate(w->aggregator, "f32", payload, NULL), SHEAF_OK);
    assert_int_equal(sheaf_aggregator_add(w->aggregator, "f32", payload, weight), SHEAF_OK);
}

static float value(const sheaf_model *model, size_t tensor, size_t i) {
    return sheaf_load_f32(model->stream + model->tensors[tensor].data_offset + 4 * i);
}

static void the_weighted_mean_is_added_to_the_base(void **state) {
    world *w = *state;
    sheaf_store_f32(w->base.stream + w->base.tensors[1].data_offset, 10.0f);
    add(w, (const float[]){1, -1, 0.5f, 0, 2}, 1);
    add(w, (const float[]){2, 1, 0.25f, 0, -1}, 3);
    assert_int_equal(sheaf_aggregator_weight(w->aggregator), 4);
    assert_int_equal(sheaf_aggregator_apply(w->aggregator, &w->base, &w->next, NULL), SHEAF_OK);
    const float expected[] = {1.75f, 0.5f, 10.3125f, 0, -0.25f};
    for (size_t i = 0; i < 5; i++) assert_true(value(&w->next, i < 2 ? 0 : 1, i < 2 ? i : i - 2) == expected[i]);
}

static void reset_forgets_updates_and_weight(void **state) {
    world *w = *state;
    add(w, (const float[]){1, 1, 1, 1, 1}, 7);
    sheaf_aggregator_reset(w->aggregator);
    assert_int_equal(sheaf_aggregator_weight(w->aggregator), 0);
    for (int i = 0; i < 4; i++) add(w, (const float[]){2, 0, 0, 0, 0}, 1);
    assert_int_equal(sheaf_aggregator_apply(w->aggregator, &w->base, &w->next, NULL), SHEAF_OK);
    assert_true(value(&w->next, 0, 0) == 2.0f && value(&w->next, 0, 1) == 0.0f);
}

static void nothing_accepted_is_no_weight(void **state) {
    world *w = *state;
    sheaf_problem problem;
    assert_int_equal(sheaf_aggregator_apply(w->aggregator, &w->base, &w->next, &problem), SHEAF_E_NO_WEIGHT);
}

static sheaf_status validate(world *w, const char *type, size_t at, float x, size_t size, sheaf_problem *problem) {
    uint8_t bytes[24] = {0};
    sheaf_store_f32(bytes + 4 * at, x);
    return sheaf_aggregator_validate(w->aggregator, type, sheaf_span_of(bytes, size), problem);
}

static void bad_payloads_are_refused_by_name(void **state) {
    world *w = *state;
    sheaf_problem problem;
    assert_int_equal(sheaf_aggregator_payload_bytes(w->aggregator, "f32"), 20);
    assert_int_equal(sheaf_aggregator_payload_bytes(w->aggregator, "f33"), 0);
    assert_int_equal(validate(w, "f32", 0, 0, 20, &problem), SHEAF_OK);
    assert_int_equal(validate(w, "f33", 0, 0, 20, &problem), SHEAF_E_ENCODING);
    assert_int_equal(validate(w, "f32", 0, 0, 19, &problem), SHEAF_E_SHAPE);
    assert_int_equal(validate(w, "f32", 0, 0, 24, &problem), SHEAF_E_SHAPE);
    assert_int_equal(validate(w, "f32", 4, NAN, 20, &problem), SHEAF_E_NOT_FINITE);
    assert_non_null(strstr(problem.text, "tensor 'weight', value 2"));
    assert_int_equal(validate(w, "f32", 1, -INFINITY, 20, &problem), SHEAF_E_NOT_FINITE);
    assert_int_equal(validate(w, "f32", 1, 128.0f, 20, &problem), SHEAF_E_RANGE); /* 2^7 * 2^24 = 2^31 */
    assert_non_null(strstr(problem.text, "tensor 'bias', value 1"));
    assert_int_equal(validate(w, "f32", 2, 128.0f, 20, &problem), SHEAF_OK);
}

static void weights_and_counts_outside_the_proved_bound_add_nothing(void **state) {
    world *w = *state;
    uint8_t bytes[20];
    sheaf_span payload = payload_of(bytes, (const float[]){1, 1, 1, 1, 1});
    assert_int_equal(sheaf_aggregator_add(w->aggregator, "f32", payload, 0), SHEAF_E_WEIGHT_ZERO);
    assert_int_equal(sheaf_aggregator_add(w->aggregator, "f32", payload, -1), SHEAF_E_WEIGHT_NEGATIVE);
    assert_int_equal(sheaf_aggregator_add(w->aggregator, "f32", payload, 101), SHEAF_E_WEIGHT_CAP);
    assert_int_equal(sheaf_aggregator_add(w->aggregator, "f33", payload, 1), SHEAF_E_ENCODING);
    assert_int_equal(sheaf_aggregator_weight(w->aggregator), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(sheaf_aggregator_add(w->aggregator, "f32", payload, 100), SHEAF_OK);
    assert_int_equal(sheaf_aggregator_add(w->aggregator, "f32", payload, 1), SHEAF_E_COHORT_FULL);
    assert_int_equal(sheaf_aggregator_weight(w->aggregator), 400);
}

static void opening_proves_the_bound(void **state) {
    world *w = *state;
    sheaf_problem problem;
    sheaf_aggregator *other = NULL;
    sheaf_aggregator_options options = options_of(&w->base);
    options.cohort_max = UINT64_C(1) << 20;
    options.weight_max = INT64_C(1) << 12; /* 2^32 * (2^31 - 1) < 2^63 */
    assert_int_equal(sheaf_aggregator_open(&options, &other, &problem), SHEAF_OK);
    sheaf_aggregator_close(other);
    options.weight_max++;
    assert_int_equal(sheaf_aggregator_open(&options, &other, &problem), SHEAF_E_OVERFLOW);
    options.weight_max = 0;
    assert_int_equal(sheaf_aggregator_open(&options, &other, &problem), SHEAF_E_OVERFLOW);
    options = options_of(&w->base);
    options.fraction_bits = (const int[]){24, 127};
    assert_int_equal(sheaf_aggregator_open(&options, &other, &problem), SHEAF_E_NOT_REPRESENTABLE);
    assert_null(other);
}

static void only_f32_models_with_values_are_opened(void **state) {
    (void)state;
    sheaf_tensor odd[] = {{.name = "steps", .dtype = "I64", .rank = 0}};
    sheaf_model model;
    sheaf_aggregator *aggregator = NULL;
    sheaf_problem problem;
    assert_int_equal(sheaf_model_make(odd, 1, &model, NULL), SHEAF_OK);
    sheaf_aggregator_options options = options_of(&model);
    assert_int_equal(sheaf_aggregator_open(&options, &aggregator, &problem), SHEAF_E_DTYPE);
    assert_non_null(strstr(problem.text, "steps"));
    sheaf_model_free(&model);
    assert_int_equal(sheaf_model_make(odd, 0, &model, NULL), SHEAF_OK);
    assert_int_equal(sheaf_aggregator_open(&options, &aggregator, &problem), SHEAF_E_SHAPE);
    sheaf_model_free(&model);
}

static void a_model_that_would_not_be_finite_is_refused(void **state) {
    world *w = *state;
    sheaf_problem problem;
    static const int coarse[] = {-97, -97};
    sheaf_aggregator_options options = options_of(&w->base);
    sheaf_aggregator *fine = w->aggregator;
    options.fraction_bits = coarse;
    assert_int_equal(sheaf_aggregator_open(&options, &w->aggregator, NULL), SHEAF_OK);
    const float most[] = {3e38f, 0, 0, 0, 0};
    sheaf_store_f32(w->base.stream + w->base.tensors[0].data_offset, 3e38f);
    add(w, most, 1);
    assert_int_equal(sheaf_aggregator_apply(w->aggregator, &w->base, &w->next, &problem), SHEAF_E_NOT_REPRESENTABLE);
    assert_non_null(strstr(problem.text, "tensor 'bias', value 0"));
    sheaf_aggregator_close(w->aggregator);
    w->aggregator = fine;
}

static void another_shape_is_refused(void **state) {
    world *w = *state;
    sheaf_model other;
    add(w, (const float[]){1, 1, 1, 1, 1}, 1);
    assert_int_equal(sheaf_model_make(tensors, 1, &other, NULL), SHEAF_OK);
    assert_int_equal(sheaf_aggregator_apply(w->aggregator, &other, &w->next, NULL), SHEAF_E_NAME);
    assert_int_equal(sheaf_aggregator_apply(w->aggregator, &w->base, &other, NULL), SHEAF_E_NAME);
    sheaf_model_free(&other);
}

/* One round of four updates in this order; the model's digest. */
static void digest_of_order(const sheaf_backend *backend, const size_t order[4], uint8_t digest[SHEAF_DIGEST_BYTES]) {
    static const float updates[4][5] = {{100.0f, 1e-6f, 3, 7, 0.1f},
                                        {-99.99999f, 0.3f, 1e-5f, -7, 0.2f},
                                        {0.000123f, 2, 1, 1, 0.7f},
                                        {3.14159f, -2.3f, 2, 2, -0.9f}};
    static const int64_t weights[4] = {97, 89, 13, 1};
    world w = {.aggregator = NULL};
    assert_int_equal(sheaf_model_make(tensors, 2, &w.base, NULL), SHEAF_OK);
    assert_int_equal(sheaf_model_make(tensors, 2, &w.next, NULL), SHEAF_OK);
    sheaf_aggregator_options options = options_of(&w.base);
    options.backend = backend;
    assert_int_equal(sheaf_aggregator_open(&options, &w.aggregator, NULL), SHEAF_OK);
    for (size_t i = 0; i < 4; i++) add(&w, updates[order[i]], weights[order[i]]);
    assert_int_equal(sheaf_aggregator_apply(w.aggregator, &w.base, &w.next, NULL), SHEAF_OK);
    assert_int_equal(sheaf_model_digest(&w.next, digest), SHEAF_OK);
    sheaf_aggregator_close(w.aggregator);
    sheaf_model_free(&w.base);
    sheaf_model_free(&w.next);
}

/* How many of the 24 orders of arrival give another model than the first. */
static int orders_that_differ(const sheaf_backend *backend) {
    uint8_t first[SHEAF_DIGEST_BYTES], found[SHEAF_DIGEST_BYTES];
    int different = 0;
    digest_of_order(backend, (const size_t[]){0, 1, 2, 3}, first);
    for (size_t code = 0; code < 256; code++) {
        size_t order[4] = {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 & 3};
        if ((1u << order[0] | 1u << order[1] | 1u << order[2] | 1u << order[3]) != 15) continue;
        digest_of_order(backend, order, found);
        different += memcmp(first, found, sizeof first) != 0;
    }
    return different;
}

static void every_order_gives_the_same_model(void **state) {
    (void)state;
    assert_int_equal(orders_that_differ(NULL), 0);
}

static void a_sum_in_float_gives_other_models(void **state) {
    (void)state;
    (void)double_mutant_backend;
    assert_true(orders_that_differ(&float_mutant_backend) > 0);
}

int main(void) {
#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, open_world, close_world)
    const struct CMUnitTest tests[] = {
        IN_WORLD(the_weighted_mean_is_added_to_the_base),
        IN_WORLD(reset_forgets_updates_and_weight),
        IN_WORLD(nothing_accepted_is_no_weight),
        IN_WORLD(bad_payloads_are_refused_by_name),
        IN_WORLD(weights_and_counts_outside_the_proved_bound_add_nothing),
        IN_WORLD(opening_proves_the_bound),
        cmocka_unit_test(only_f32_models_with_values_are_opened),
        IN_WORLD(a_model_that_would_not_be_finite_is_refused),
        IN_WORLD(another_shape_is_refused),
        cmocka_unit_test(every_order_gives_the_same_model),
        cmocka_unit_test(a_sum_in_float_gives_other_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
