/* A statement has one encoding, and nothing else decodes. */
#include "tests/cmocka.h"

#include "proto/plan.h"
#include "proto/statement.h"

static sheaf_update_statement sample(void) {
    sheaf_update_statement s = {.tenant = "acme",
                                .job = "digits",
                                .round = 7,
                                .attempt = 1,
                                .client = "device-03",
                                .payload_type = "f32",
                                .payload_bytes = 1234,
                                .weight = -5};
    memset(s.nonce, 1, sizeof s.nonce);
    memset(s.payload_digest, 2, sizeof s.payload_digest);
    return s;
}

static size_t encode(const sheaf_update_statement *s, uint8_t *bytes) {
    sheaf_buffer out = {bytes, 0, SHEAF_STATEMENT_BYTES_MAX};
    assert_int_equal(sheaf_update_statement_encode(s, &out), SHEAF_OK);
    return out.size;
}

static void comes_back_as_it_was(void **state) {
    (void)state;
    uint8_t bytes[SHEAF_STATEMENT_BYTES_MAX];
    sheaf_update_statement s = sample(), back;
    size_t size = encode(&s, bytes);
    assert_int_equal(sheaf_update_statement_decode(sheaf_span_of(bytes, size), &back), SHEAF_OK);
    assert_memory_equal(&s, &back, sizeof s);
}

static void every_prefix_and_any_extra_byte_is_refused(void **state) {
    (void)state;
    uint8_t bytes[SHEAF_STATEMENT_BYTES_MAX + 1] = {0};
    sheaf_update_statement s = sample(), back;
    size_t size = encode(&s, bytes);
    for (size_t cut = 0; cut < size; cut++) {
        assert_int_not_equal(sheaf_update_statement_decode(sheaf_span_of(bytes, cut), &back), SHEAF_OK);
    }
    assert_int_equal(sheaf_update_statement_decode(sheaf_span_of(bytes, size + 1), &back), SHEAF_E_MALFORMED);
}

static void one_kind_is_not_read_as_another(void **state) {
    (void)state;
    uint8_t bytes[SHEAF_STATEMENT_BYTES_MAX];
    sheaf_update_statement s = sample();
    sheaf_round_statement round;
    size_t size = encode(&s, bytes);
    assert_int_equal(sheaf_round_statement_decode(sheaf_span_of(bytes, size), &round), SHEAF_E_VERSION);
}

static void a_plan_out_of_range_is_refused(void **state) {
    (void)state;
    uint8_t bytes[SHEAF_PLAN_BYTES_MAX];
    sheaf_buffer out = {bytes, 0, sizeof bytes};
    sheaf_plan plan = {.epochs = 1,
                       .batch = 8,
                       .learning_rate = 0.1f,
                       .momentum = 0.9f,
                       .seed = 3,
                       .weight_cap = 10,
                       .progress_s = 5,
                       .encoding = "f32"},
               back;
    assert_int_equal(sheaf_plan_encode(&plan, &out), SHEAF_OK);
    assert_int_equal(sheaf_plan_decode(sheaf_buffer_span(&out), &back), SHEAF_OK);
    assert_memory_equal(&plan, &back, offsetof(sheaf_plan, encoding) + sizeof plan.encoding); /* not the padding */
    plan.momentum = 1.0f;
    assert_int_equal(sheaf_plan_encode(&plan, &out), SHEAF_OK);
    assert_int_equal(sheaf_plan_decode(sheaf_buffer_span(&out), &back), SHEAF_E_MALFORMED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back_as_it_was),
        cmocka_unit_test(every_prefix_and_any_extra_byte_is_refused),
        cmocka_unit_test(one_kind_is_not_read_as_another),
        cmocka_unit_test(a_plan_out_of_range_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
