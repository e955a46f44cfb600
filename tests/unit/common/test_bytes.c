/* Spans, little-endian loads and stores, hex. */
#include "tests/cmocka.h"

#include "common/bytes.h"

static void loads_and_stores_are_little_endian_at_any_address(void **state) {
    (void)state;
    uint8_t memory[16];
    for (size_t at = 0; at < 8; at++) {
        sheaf_store_u64(memory + at, UINT64_C(0x0807060504030201));
        assert_memory_equal(memory + at, "\x01\x02\x03\x04\x05\x06\x07\x08", 8);
        assert_true(sheaf_load_u64(memory + at) == UINT64_C(0x0807060504030201));
        sheaf_store_u32(memory + at, UINT32_C(0xfffefdfc));
        assert_memory_equal(memory + at, "\xfc\xfd\xfe\xff", 4);
        assert_true(sheaf_load_u32(memory + at) == UINT32_C(0xfffefdfc));
    }
}

static void floats_keep_their_bits(void **state) {
    (void)state;
    uint8_t memory[4];
    sheaf_store_f32(memory, -1.5f); /* IEEE 754: 0xbfc00000 */
    assert_memory_equal(memory, "\x00\x00\xc0\xbf", 4);
    assert_true(sheaf_load_f32(memory) == -1.5f);
    memcpy(memory, "\x01\x00\xc0\x7f", 4); /* a NaN with a payload */
    float nan = sheaf_load_f32(memory);
    sheaf_store_f32(memory, nan);
    assert_memory_equal(memory, "\x01\x00\xc0\x7f", 4);
}

static void spans_are_equal_by_size_and_bytes(void **state) {
    (void)state;
    assert_true(sheaf_span_equal(sheaf_span_of("ab", 2), sheaf_span_of("abc", 2)));
    assert_false(sheaf_span_equal(sheaf_span_of("ab", 2), sheaf_span_of("abc", 3)));
    assert_false(sheaf_span_equal(sheaf_span_of("ab", 2), sheaf_span_of("ac", 2)));
    assert_true(sheaf_span_equal(sheaf_span_of(NULL, 0), sheaf_span_of("x", 0)));
}

static void a_buffer_shows_what_is_used(void **state) {
    (void)state;
    uint8_t memory[8];
    sheaf_buffer buffer = {memory, 3, sizeof memory};
    assert_ptr_equal(sheaf_buffer_span(&buffer).data, memory);
    assert_int_equal(sheaf_buffer_span(&buffer).size, 3);
}

static void hex_goes_both_ways(void **state) {
    (void)state;
    char text[9];
    uint8_t bytes[4];
    sheaf_hex((const uint8_t *)"\x00\x9a\xff\x10", 4, text);
    assert_string_equal(text, "009aff10");
    assert_int_equal(sheaf_unhex(text, bytes, 4), 1);
    assert_memory_equal(bytes, "\x00\x9a\xff\x10", 4);
    sheaf_hex(NULL, 0, text);
    assert_string_equal(text, "");
    assert_int_equal(sheaf_unhex("", bytes, 0), 1);
}

static void what_is_not_exactly_that_many_lower_case_digits_is_no_hex(void **state) {
    (void)state;
    uint8_t bytes[2];
    static const char *const wrong[] = {"", "0", "00", "000", "00000", "000g", "g000", "00A0", "00 0", "0x00", "-100"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_int_equal(sheaf_unhex(wrong[i], bytes, 2), 0);
}

static void wiped_memory_is_zero(void **state) {
    (void)state;
    uint8_t memory[5] = {1, 2, 3, 4, 5};
    sheaf_wipe(memory, 4);
    assert_memory_equal(memory, "\0\0\0\0\5", 5);
    sheaf_wipe(NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_and_stores_are_little_endian_at_any_address),
        cmocka_unit_test(floats_keep_their_bits),
        cmocka_unit_test(spans_are_equal_by_size_and_bytes),
        cmocka_unit_test(a_buffer_shows_what_is_used),
        cmocka_unit_test(hex_goes_both_ways),
        cmocka_unit_test(what_is_not_exactly_that_many_lower_case_digits_is_no_hex),
        cmocka_unit_test(wiped_memory_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
