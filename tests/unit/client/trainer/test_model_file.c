/* A network file is read whole, or its mistake is named. */
#include "tests/cmocka.h"

#include "client/trainer/model_file.h"

static sheaf_problem problem;

static sheaf_status parse(const char *text, sheaf_network_spec *spec) {
    return sheaf_model_file_parse(text, strlen(text), "n.yaml", spec, &problem);
}

static void every_kind_of_layer_is_read(void **state) {
    (void)state;
    sheaf_network_spec spec;
    assert_int_equal(parse("input: [28, 26, 3]\nscale: 0.5\nshift: -2\nlayers:\n"
                           "  - {kind: conv, channels: 8, kernel: 3, padding: same}\n  - {kind: relu}\n"
                           "  - {kind: conv, channels: 4, kernel: 5, stride: 2}\n  - {kind: maxpool, size: 2}\n"
                           "  - kind: flatten\n  - kind: dense\n    units: 10\n",
                           &spec),
                     SHEAF_OK);
    assert_int_equal(spec.height, 28);
    assert_int_equal(spec.width, 26);
    assert_int_equal(spec.channels, 3);
    assert_true(spec.scale == 0.5f && spec.shift == -2.0f);
    assert_int_equal(spec.count, 6);
    assert_int_equal(spec.layers[0].kind, SHEAF_LAYER_CONV);
    assert_int_equal(spec.layers[0].padding, SHEAF_PADDING_SAME);
    assert_int_equal(spec.layers[0].stride, 1);
    assert_int_equal(spec.layers[2].stride, 2);
    assert_int_equal(spec.layers[2].padding, SHEAF_PADDING_VALID);
    assert_int_equal(spec.layers[3].size, 2);
    assert_int_equal(spec.layers[4].kind, SHEAF_LAYER_FLATTEN);
    assert_int_equal(spec.layers[5].units, 10);
    assert_int_equal(sheaf_network_classes(&spec), 10);
    /* 8 * (27 + 1), 4 * (200 + 1); the images are then 12 x 11, and 6 x 5 after the pool. */
    assert_int_equal(sheaf_network_parameters(&spec), 224 + 804 + 10 * (4 * 6 * 5 + 1));
}

static void a_table_needs_only_its_width(void **state) {
    (void)state;
    sheaf_network_spec spec;
    assert_int_equal(parse("input: [7]\nlayers: [{kind: dense, units: 2}]\n", &spec), SHEAF_OK);
    assert_int_equal(spec.channels, 7);
    assert_int_equal(spec.height, 1);
    assert_true(spec.scale == 1.0f && spec.shift == 0.0f);
}

static void refused(const char *text, const char *expected) {
    sheaf_network_spec spec;
    assert_int_equal(parse(text, &spec), SHEAF_E_CONFIG);
    if (strstr(problem.text, expected) == NULL) fail_msg("'%s' does not hold '%s'", problem.text, expected);
}

static void mistakes_are_named(void **state) {
    (void)state;
    refused("layers: [{kind: dense, units: 2}]\n", "input");
    refused("input: [2, 3]\nlayers: [{kind: dense, units: 2}]\n",
            "n.yaml:1: input: expected [height, width, channels] or [features]");
    refused("input: [7]\nlayers: [{kind: dens, units: 2}]\n", "kind");
    refused("input: [7]\nlayers:\n  - {kind: dense, units: 2}\n  - {kind: relu, size: 2}\n",
            "n.yaml:4: layers[1]: size belongs to maxpool");
    refused("input: [7]\nlayers:\n  - {kind: dense, kernel: 2}\n", "n.yaml:3: layers[0]: channels, kernel");
    refused("input: [7]\nlayers:\n  - {kind: dense}\n", "n.yaml:3: layers[0]: units must be 1 to 65536");
    refused("input: [8, 8, 1]\nlayers:\n  - {kind: conv, channels: 2, kernel: 9}\n",
            "n.yaml:3: layers[0]: kernel is larger than its input");
    refused("input: [8, 8, 1]\nlayers:\n  - {kind: dense, units: 2, bias: no}\n", "bias");
    refused("input: [0]\nlayers: [{kind: dense, units: 2}]\n", "input");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_layer_is_read),
        cmocka_unit_test(a_table_needs_only_its_width),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
