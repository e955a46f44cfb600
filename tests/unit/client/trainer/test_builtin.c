/* The built-in trainer behind the callbacks does what training by hand does, slice by slice. */
#include "tests/cmocka.h"

#include <stdlib.h>

#include "client/trainer/builtin.h"

enum { COUNT = 50, FEATURES = 4, BATCH = 8 };

static void read_example(uint32_t index, float *features, uint32_t *label, void *context) {
    (void)context;
    for (uint32_t i = 0; i < FEATURES; i++) features[i] = (float)((index * (i + 3)) % 11) / 11.0f;
    *label = index % 3;
}

static const sheaf_examples examples = {COUNT, read_example, NULL};
static const sheaf_network_spec spec = {.channels = FEATURES,
                                        .height = 1,
                                        .width = 1,
                                        .scale = 1,
                                        .count = 1,
                                        .layers = {{.kind = SHEAF_LAYER_DENSE, .units = 3}}};
static const uint64_t weight_dims[] = {3, FEATURES}, bias_dims[] = {3};
static const sheaf_edge_tensor bias = {"0.bias", "F32", 0, 1, bias_dims, 3},
                               weight = {"0.weight", "F32", 1, 2, weight_dims, 12};

typedef struct {
    sheaf_builtin builtin;
    sheaf_trainer trainer;
    void *memory;
} device;

static void open_device(device *d, uint32_t slice) {
    size_t bytes = sheaf_builtin_bytes(&spec, BATCH, COUNT);
    d->memory = malloc(bytes);
    assert_int_equal(sheaf_builtin_init(&d->builtin, &spec, BATCH, &examples, slice, d->memory, bytes), SHEAF_OK);
    d->trainer = sheaf_builtin_trainer(&d->builtin);
}

static sheaf_edge_plan plan_of(uint32_t batch) {
    sheaf_edge_plan plan = {.tenant = "t",
                            .job = "j",
                            .client = "c",
                            .round = 1,
                            .epochs = 3,
                            .batch = batch,
                            .learning_rate = 0.1f,
                            .momentum = 0.5f,
                            .seed = {3},
                            .weight_cap = 100,
                            .encoding = "f32"};
    return plan;
}

static void load_all(const device *d, const sheaf_edge_plan *plan) {
    static const float start[12] = {0.1f, -0.2f, 0.3f};
    assert_int_equal(d->trainer.begin(plan, d->trainer.context), SHEAF_OK);
    assert_int_equal(d->trainer.load(&bias, 0, start, 3, d->trainer.context), SHEAF_OK);
    assert_int_equal(d->trainer.load(&weight, 0, start, 5, d->trainer.context), SHEAF_OK);
    assert_int_equal(d->trainer.load(&weight, 5, start + 5, 7, d->trainer.context), SHEAF_OK);
}

static uint32_t train_all(const device *d, const sheaf_edge_plan *plan) {
    sheaf_edge_progress progress = {0};
    uint32_t calls = 1, before = 0;
    sheaf_status status;
    while ((status = d->trainer.train(plan, &progress, d->trainer.context)) == SHEAF_AGAIN) {
        assert_true(progress.done_permille >= before && progress.done_permille < 1000);
        before = progress.done_permille;
        calls++;
    }
    assert_int_equal(status, SHEAF_OK);
    assert_int_equal(progress.done_permille, 1000);
    assert_true(progress.loss > 0.0 && progress.loss < 2.0);
    return calls;
}

static void a_round_gives_the_same_in_any_slices_and_again(void **state) {
    (void)state;
    device a, b;
    float from_a[12], from_b[12];
    open_device(&a, 1);
    open_device(&b, 0);
    sheaf_edge_plan plan = plan_of(BATCH);
    load_all(&a, &plan);
    assert_int_equal(train_all(&a, &plan), 3 * 7); /* 50 examples are 7 batches of 8, three times */
    assert_int_equal(a.trainer.examples(a.trainer.context), COUNT);
    assert_int_equal(a.trainer.store(&weight, 0, from_a, 12, a.trainer.context), SHEAF_OK);
    for (int again = 0; again < 2; again++) {
        load_all(&b, &plan);
        assert_int_equal(train_all(&b, &plan), 2);
        assert_int_equal(b.trainer.store(&weight, 0, from_b, 6, b.trainer.context), SHEAF_OK);
        assert_int_equal(b.trainer.store(&weight, 6, from_b + 6, 6, b.trainer.context), SHEAF_OK);
        assert_memory_equal(from_a, from_b, sizeof from_a);
    }
    free(a.memory);
    free(b.memory);
}

static void a_model_of_another_network_is_refused(void **state) {
    (void)state;
    device d;
    open_device(&d, 0);
    float values[20] = {0};
    sheaf_edge_tensor unknown = weight, other = weight, whole = weight;
    const uint64_t turned[] = {FEATURES, 3};
    sheaf_edge_plan plan = plan_of(BATCH);
    sheaf_edge_progress progress = {0};
    unknown.name = "1.weight";
    other.dims = turned;
    whole.dtype = "I64";
    assert_int_equal(d.trainer.begin(&plan, d.trainer.context), SHEAF_OK);
    assert_int_equal(d.trainer.load(&unknown, 0, values, 1, d.trainer.context), SHEAF_E_NAME);
    assert_int_equal(d.trainer.load(&other, 0, values, 1, d.trainer.context), SHEAF_E_SHAPE);
    assert_int_equal(d.trainer.load(&whole, 0, values, 1, d.trainer.context), SHEAF_E_DTYPE);
    assert_int_equal(d.trainer.load(&weight, 0, values, 13, d.trainer.context), SHEAF_E_SHAPE);
    assert_int_equal(d.trainer.load(&weight, 0, values, 12, d.trainer.context), SHEAF_OK);
    assert_int_equal(d.trainer.train(&plan, &progress, d.trainer.context), SHEAF_E_NAME); /* the bias is missing */
    free(d.memory);
}

static void training_stops_when_asked_and_starts_anew(void **state) {
    (void)state;
    device d;
    open_device(&d, 1);
    sheaf_edge_plan plan = plan_of(BATCH);
    sheaf_edge_progress progress = {0};
    load_all(&d, &plan);
    assert_int_equal(d.trainer.train(&plan, &progress, d.trainer.context), SHEAF_AGAIN);
    progress.stop = 1;
    assert_int_equal(d.trainer.train(&plan, &progress, d.trainer.context), SHEAF_STOPPED);
    d.trainer.cancel(d.trainer.context);
    load_all(&d, &plan);
    assert_int_equal(train_all(&d, &plan), 3 * 7);
    free(d.memory);
}

static void a_batch_beyond_the_memory_is_refused(void **state) {
    (void)state;
    device d;
    open_device(&d, 0);
    sheaf_edge_plan plan = plan_of(BATCH + 1);
    sheaf_edge_progress progress = {0};
    load_all(&d, &plan);
    assert_int_equal(d.trainer.train(&plan, &progress, d.trainer.context), SHEAF_E_TOO_LARGE);
    assert_int_equal(sheaf_builtin_init(&d.builtin, &spec, BATCH, &examples, 0, d.memory, 100), SHEAF_E_TOO_LARGE);
    free(d.memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_gives_the_same_in_any_slices_and_again),
        cmocka_unit_test(a_model_of_another_network_is_refused),
        cmocka_unit_test(training_stops_when_asked_and_starts_anew),
        cmocka_unit_test(a_batch_beyond_the_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
