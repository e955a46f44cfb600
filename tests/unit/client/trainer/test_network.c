/* Every layer's gradient is the slope of the loss, by central differences of a second implementation: plain loops in
 * double, written from the definitions. */
#include "tests/cmocka.h"

#include <math.h>
#include <stdlib.h>

#include "client/trainer/network.h"

/* ---- the reference: parameters as the tensors that leave the device, one after the other ---- */

enum { VALUES_MAX = 4096, PARAMETERS_MAX = 8192, BATCH = 3 };

typedef struct {
    double values[VALUES_MAX];
    uint32_t c, h, w;
} image;

static const double *ref_dense(const sheaf_layer_spec *s, const double *p, const image *in, image *out) {
    uint32_t size = in->c * in->h * in->w;
    const double *bias = p + (size_t)s->units * size;
    for (uint32_t o = 0; o < s->units; o++) {
        out->values[o] = bias[o];
        for (uint32_t i = 0; i < size; i++) out->values[o] += p[o * size + i] * in->values[i];
    }
    out->c = s->units;
    out->h = out->w = 1;
    return bias + s->units;
}

static double pixel(const image *in, uint32_t c, long y, long x) {
    if (y < 0 || x < 0 || y >= (long)in->h || x >= (long)in->w) return 0.0;
    return in->values[(c * in->h + (uint32_t)y) * in->w + (uint32_t)x];
}

static const double *ref_conv(const sheaf_layer_spec *s, const double *p, const image *in, image *out) {
    long before = s->padding == SHEAF_PADDING_SAME ? (long)(s->kernel - 1) / 2 : 0;
    uint32_t lost = s->padding == SHEAF_PADDING_SAME ? 0 : s->kernel - 1;
    const double *bias = p + (size_t)s->channels * in->c * s->kernel * s->kernel;
    out->c = s->channels;
    out->h = (in->h - lost - 1) / s->stride + 1;
    out->w = (in->w - lost - 1) / s->stride + 1;
    for (uint32_t o = 0; o < out->c; o++) {
        for (uint32_t y = 0; y < out->h; y++) {
            for (uint32_t x = 0; x < out->w; x++) {
                double sum = bias[o];
                for (uint32_t k = 0; k < in->c * s->kernel * s->kernel; k++) {
                    uint32_t c = k / (s->kernel * s->kernel), ky = k / s->kernel % s->kernel, kx = k % s->kernel;
                    sum += p[o * in->c * s->kernel * s->kernel + k] *
                           pixel(in, c, (long)(y * s->stride + ky) - before, (long)(x * s->stride + kx) - before);
                }
                out->values[(o * out->h + y) * out->w + x] = sum;
            }
        }
    }
    return bias + s->channels;
}

static void ref_maxpool(const sheaf_layer_spec *s, const image *in, image *out) {
    out->c = in->c;
    out->h = in->h / s->size;
    out->w = in->w / s->size;
    for (uint32_t i = 0; i < out->c * out->h * out->w; i++) {
        uint32_t c = i / (out->h * out->w), y = i / out->w % out->h, x = i % out->w;
        double best = -INFINITY;
        for (uint32_t k = 0; k < s->size * s->size; k++) {
            best = fmax(best, pixel(in, c, y * s->size + k / s->size, x * s->size + k % s->size));
        }
        out->values[i] = best;
    }
}

static double ref_loss_one(const sheaf_network_spec *spec, const double *p, const double *x, uint32_t label) {
    static image at, next;
    at.c = spec->channels, at.h = spec->height, at.w = spec->width;
    for (uint32_t i = 0; i < at.c * at.h * at.w; i++) at.values[i] = (x[i] - (double)spec->shift) * (double)spec->scale;
    for (uint32_t l = 0; l < spec->count; l++) {
        const sheaf_layer_spec *s = &spec->layers[l];
        next = at;
        if (s->kind == SHEAF_LAYER_DENSE) p = ref_dense(s, p, &at, &next);
        if (s->kind == SHEAF_LAYER_CONV) p = ref_conv(s, p, &at, &next);
        if (s->kind == SHEAF_LAYER_MAXPOOL) ref_maxpool(s, &at, &next);
        for (uint32_t i = 0; s->kind == SHEAF_LAYER_RELU && i < at.c * at.h * at.w; i++)
            next.values[i] = fmax(at.values[i], 0.0);
        at = next;
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < at.c * at.h * at.w; i++) sum += exp(at.values[i]);
    return log(sum) - at.values[label];
}

static double ref_loss(const sheaf_network_spec *spec, const double *p, const double *x, const uint32_t *labels) {
    double total = 0.0;
    uint32_t features = spec->channels * spec->height * spec->width;
    for (uint32_t i = 0; i < BATCH; i++) total += ref_loss_one(spec, p, x + (size_t)i * features, labels[i]);
    return total / BATCH;
}

/* ---- the comparison ---- */

typedef struct {
    sheaf_network network;
    void *memory;
    double parameters[PARAMETERS_MAX], inputs[VALUES_MAX];
    size_t count;
} subject;

static void open_subject(subject *s, const sheaf_network_spec *spec) {
    uint8_t seed[SHEAF_SEED_BYTES] = {42};
    size_t bytes = sheaf_network_bytes(spec, BATCH);
    assert_true(bytes > 0);
    s->memory = malloc(bytes);
    assert_non_null(s->memory);
    assert_int_equal(sheaf_network_open(&s->network, spec, BATCH, s->memory, bytes), SHEAF_OK);
    sheaf_random random;
    sheaf_random_init(&random, seed, 77);
    s->count = 0;
    for (uint32_t t = 0; t < sheaf_network_tensor_count(&s->network); t++) {
        sheaf_tensor tensor;
        sheaf_network_tensor(&s->network, t, &tensor);
        for (uint64_t i = 0; i < tensor.elements; i++) {
            float value = (sheaf_random_unit(&random) - 0.5f) * 0.8f;
            assert_int_equal(sheaf_network_load(&s->network, t, i, &value, 1), SHEAF_OK);
            s->parameters[s->count++] = (double)value;
        }
    }
    for (uint32_t i = 0; i < BATCH * s->network.features; i++) {
        float raw = sheaf_random_unit(&random) * 4.0f - 1.0f;
        s->inputs[i] = (double)raw;
        s->network.input[i] = (raw - spec->shift) * spec->scale;
    }
    for (uint32_t i = 0; i < BATCH; i++) s->network.labels[i] = sheaf_random_below(&random, s->network.classes);
}

static void check(const sheaf_network_spec *spec) {
    static subject s;
    open_subject(&s, spec);
    (void)sheaf_network_forward(&s.network, BATCH);
    sheaf_batch_result result = sheaf_network_backward(&s.network, BATCH);
    assert_true(fabs(result.loss / BATCH - ref_loss(spec, s.parameters, s.inputs, s.network.labels)) < 1e-5);
    size_t at = 0;
    for (uint32_t t = 0; t < sheaf_network_tensor_count(&s.network); t++) {
        sheaf_tensor tensor;
        sheaf_network_tensor(&s.network, t, &tensor);
        for (uint64_t i = 0; i < tensor.elements; i++, at++) {
            float gradient;
            assert_int_equal(sheaf_network_gradient(&s.network, t, i, &gradient, 1), SHEAF_OK);
            const double kept = s.parameters[at], step = 1e-5;
            s.parameters[at] = kept + step;
            double up = ref_loss(spec, s.parameters, s.inputs, s.network.labels);
            s.parameters[at] = kept - step;
            double down = ref_loss(spec, s.parameters, s.inputs, s.network.labels);
            s.parameters[at] = kept;
            double expected = (up - down) / (2.0 * step);
            if (fabs((double)gradient - expected) > 2e-5 + 1e-4 * fabs(expected)) {
                fail_msg("%s[%llu]: gradient %.7g, the loss rises by %.7g", tensor.name, (unsigned long long)i,
                         (double)gradient, expected);
            }
        }
    }
    assert_int_equal(at, s.count);
    free(s.memory);
}

#define DENSE(n)                                                                                                       \
    { .kind = SHEAF_LAYER_DENSE, .units = (n) }
#define CONV(n, k, s, p)                                                                                               \
    { .kind = SHEAF_LAYER_CONV, .channels = (n), .kernel = (k), .stride = (s), .padding = (p) }
#define RELU                                                                                                           \
    { .kind = SHEAF_LAYER_RELU }
#define POOL(n)                                                                                                        \
    { .kind = SHEAF_LAYER_MAXPOOL, .size = (n) }
#define FLATTEN                                                                                                        \
    { .kind = SHEAF_LAYER_FLATTEN }
#define SAME  SHEAF_PADDING_SAME
#define VALID SHEAF_PADDING_VALID

static void one_dense_layer(void **state) {
    (void)state;
    check(&(sheaf_network_spec){.channels = 19, .height = 1, .width = 1, .scale = 1, .count = 1, .layers = {DENSE(5)}});
}

static void dense_layers_with_relu(void **state) {
    (void)state;
    check(&(sheaf_network_spec){.channels = 7,
                                .height = 1,
                                .width = 1,
                                .scale = 0.5f,
                                .shift = 1,
                                .count = 5,
                                .layers = {DENSE(33), RELU, DENSE(17), RELU, DENSE(3)}});
}

static void a_valid_convolution(void **state) {
    (void)state;
    check(&(sheaf_network_spec){
        .channels = 2, .height = 7, .width = 9, .scale = 1, .count = 2, .layers = {CONV(3, 3, 1, VALID), DENSE(4)}});
}

static void a_convolution_with_steps(void **state) {
    (void)state;
    check(&(sheaf_network_spec){.channels = 1,
                                .height = 10,
                                .width = 8,
                                .scale = 1,
                                .count = 4,
                                .layers = {CONV(4, 3, 2, VALID), RELU, CONV(3, 2, 2, VALID), DENSE(3)}});
}

static void convolutions_that_keep_the_size(void **state) {
    (void)state;
    check(&(sheaf_network_spec){.channels = 2,
                                .height = 5,
                                .width = 6,
                                .scale = 1,
                                .count = 5,
                                .layers = {CONV(3, 3, 1, SAME), RELU, CONV(9, 4, 1, SAME), FLATTEN, DENSE(3)}});
}

static void a_window_larger_than_its_image(void **state) {
    (void)state;
    check(&(sheaf_network_spec){
        .channels = 1, .height = 3, .width = 2, .scale = 1, .count = 2, .layers = {CONV(2, 9, 1, SAME), DENSE(2)}});
}

static void pools_of_two_and_three_with_a_rest(void **state) {
    (void)state;
    check(
        &(sheaf_network_spec){.channels = 1,
                              .height = 15,
                              .width = 14,
                              .scale = 1,
                              .count = 6,
                              .layers = {CONV(2, 3, 1, SAME), POOL(2), RELU, CONV(4, 2, 1, VALID), POOL(3), DENSE(3)}});
}

static void pool_and_relu_before_anything_is_trained(void **state) {
    (void)state;
    check(&(sheaf_network_spec){
        .channels = 2, .height = 6, .width = 6, .scale = 1, .count = 3, .layers = {RELU, POOL(2), DENSE(3)}});
}

/* ---- names, shapes, limits ---- */

static void tensors_are_named_and_shaped_as_in_pytorch(void **state) {
    (void)state;
    sheaf_network_spec spec = {.channels = 1,
                               .height = 8,
                               .width = 8,
                               .scale = 1,
                               .count = 5,
                               .layers = {CONV(4, 3, 1, SAME), RELU, POOL(2), FLATTEN, DENSE(10)}};
    size_t bytes = sheaf_network_bytes(&spec, 1);
    void *memory = malloc(bytes);
    sheaf_network network;
    assert_int_equal(sheaf_network_open(&network, &spec, 1, memory, bytes), SHEAF_OK);
    assert_int_equal(sheaf_network_tensor_count(&network), 4);
    uint64_t conv[] = {4, 1, 3, 3}, dense[] = {10, 64}, turned[] = {64, 10};
    uint32_t index;
    assert_int_equal(sheaf_network_find(&network, "0.weight", 4, conv, &index), SHEAF_OK);
    assert_int_equal(sheaf_network_find(&network, "4.weight", 2, dense, &index), SHEAF_OK);
    assert_int_equal(sheaf_network_find(&network, "4.weight", 2, turned, &index), SHEAF_E_SHAPE);
    assert_int_equal(sheaf_network_find(&network, "4.bias", 1, dense, &index), SHEAF_OK);
    assert_int_equal(sheaf_network_find(&network, "1.weight", 1, dense, &index), SHEAF_E_NAME);
    float value = 0;
    assert_int_equal(sheaf_network_load(&network, index, 10, &value, 1), SHEAF_E_SHAPE);
    assert_int_equal(sheaf_network_load(&network, index, UINT64_MAX, &value, 1), SHEAF_E_SHAPE);
    assert_int_equal(sheaf_network_load(&network, 4, 0, &value, 1), SHEAF_E_NAME);
    free(memory);
}

static void refuses(sheaf_network_spec spec, uint32_t where) {
    uint32_t layer;
    const char *why = NULL;
    assert_int_equal(sheaf_network_check(&spec, &layer, &why), SHEAF_E_USAGE);
    assert_int_equal(layer, where);
    assert_non_null(why);
    assert_int_equal(sheaf_network_bytes(&spec, 1), 0);
}

static void what_makes_no_network_is_refused(void **state) {
    (void)state;
    sheaf_network_spec good = {.channels = 1, .height = 8, .width = 8, .scale = 1, .count = 1, .layers = {DENSE(2)}};
    assert_true(sheaf_network_bytes(&good, 1) > 0);
    assert_int_equal(sheaf_network_bytes(&good, 0), 0);
    assert_int_equal(sheaf_network_bytes(&good, SHEAF_BATCH_MAX + 1), 0);
    sheaf_network_spec bad = good;
    bad.height = 0;
    refuses(bad, 1);
    bad = good, bad.height = bad.width = bad.channels = 4096;
    refuses(bad, 1);
    bad = good, bad.scale = NAN;
    refuses(bad, 1);
    bad = good, bad.count = 0;
    refuses(bad, 0);
    bad = good, bad.count = SHEAF_LAYERS_MAX + 1;
    refuses(bad, SHEAF_LAYERS_MAX + 1);
    bad = good, bad.layers[0].units = 0;
    refuses(bad, 0);
    bad.layers[0] = (sheaf_layer_spec)CONV(2, 9, 1, VALID);
    refuses(bad, 0);
    bad.layers[0] = (sheaf_layer_spec)CONV(2, 3, 2, SAME);
    refuses(bad, 0);
    bad.layers[0] = (sheaf_layer_spec)POOL(9);
    refuses(bad, 0);
    bad.layers[0] = (sheaf_layer_spec)RELU; /* nothing to train */
    refuses(bad, 0);
    bad.layers[0] = (sheaf_layer_spec)DENSE(1); /* one class */
    refuses(bad, 0);
    bad.layers[0].kind = SHEAF_LAYER_KINDS;
    refuses(bad, 0);
}

static void too_little_memory_is_refused(void **state) {
    (void)state;
    sheaf_network_spec spec = {.channels = 8, .height = 1, .width = 1, .scale = 1, .count = 1, .layers = {DENSE(2)}};
    size_t bytes = sheaf_network_bytes(&spec, 4);
    void *memory = malloc(bytes);
    sheaf_network network;
    assert_int_equal(sheaf_network_open(&network, &spec, 4, memory, bytes - 1), SHEAF_E_TOO_LARGE);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_dense_layer),
        cmocka_unit_test(dense_layers_with_relu),
        cmocka_unit_test(a_valid_convolution),
        cmocka_unit_test(a_convolution_with_steps),
        cmocka_unit_test(convolutions_that_keep_the_size),
        cmocka_unit_test(a_window_larger_than_its_image),
        cmocka_unit_test(pools_of_two_and_three_with_a_rest),
        cmocka_unit_test(pool_and_relu_before_anything_is_trained),
        cmocka_unit_test(tensors_are_named_and_shaped_as_in_pytorch),
        cmocka_unit_test(what_makes_no_network_is_refused),
        cmocka_unit_test(too_little_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
