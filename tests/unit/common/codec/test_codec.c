/* The f32 payload: bytes as they stand on the wire, read from any value on, refused where a value is bad. */
#include "tests/cmocka.h"

#include "common/codec/codec.h"

#include <math.h>

static void values_stand_as_little_endian_floats(void **state) {
    (void)state;
    const float values[] = {1.0f, -2.5f};
    uint8_t part[8];
    size_t wrong = 0;
    assert_int_equal(sheaf_codec_f32.part_bytes(2), 8);
    assert_int_equal(sheaf_codec_f32.encode(values, 0, 2, part, &wrong), SHEAF_OK);
    assert_memory_equal(part, ((uint8_t[]){0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0}), 8);
}

static void decoding_may_begin_anywhere(void **state) {
    (void)state;
    const float values[] = {1, 2, 3, 4};
    uint8_t part[16];
    int32_t q[2] = {0, 0};
    size_t wrong = 0;
    assert_int_equal(sheaf_codec_f32.encode(values + 2, 2, 2, part, &wrong), SHEAF_OK);
    assert_int_equal(sheaf_codec_f32.encode(values, 0, 2, part, &wrong), SHEAF_OK);
    assert_int_equal(sheaf_codec_f32.decode(sheaf_span_of(part, 16), 1, 2, 4, q, &wrong), SHEAF_OK);
    assert_int_equal(q[0], 32);
    assert_int_equal(q[1], 48);
}

static void the_first_bad_value_is_named_on_both_sides(void **state) {
    (void)state;
    const float values[] = {1, 2, INFINITY, NAN};
    uint8_t part[16];
    int32_t q[4];
    size_t wrong = 99;
    assert_int_equal(sheaf_codec_f32.encode(values, 0, 4, part, &wrong), SHEAF_E_NOT_FINITE);
    assert_int_equal(wrong, 2);
    for (size_t i = 0; i < 4; i++) sheaf_store_f32(part + 4 * i, values[i]);
    assert_int_equal(sheaf_codec_f32.decode(sheaf_span_of(part, 16), 1, 3, 0, q, &wrong), SHEAF_E_NOT_FINITE);
    assert_int_equal(wrong, 1);
    assert_int_equal(sheaf_codec_f32.decode(sheaf_span_of(part, 16), 0, 2, 30, q, &wrong), SHEAF_E_RANGE);
    assert_int_equal(wrong, 1);
}

static void a_codec_is_found_by_its_payload_type(void **state) {
    (void)state;
    assert_ptr_equal(sheaf_codec_find("f32"), &sheaf_codec_f32);
    assert_null(sheaf_codec_find("f3"));
    assert_null(sheaf_codec_find(""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_stand_as_little_endian_floats),
        cmocka_unit_test(decoding_may_begin_anywhere),
        cmocka_unit_test(the_first_bad_value_is_named_on_both_sides),
        cmocka_unit_test(a_codec_is_found_by_its_payload_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
