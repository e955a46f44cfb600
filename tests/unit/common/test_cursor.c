/* A cursor never leaves its memory, and one failed step spoils all that follow. */
#include "tests/cmocka.h"

#include <stdlib.h>

#include "common/cursor.h"

/* On the heap, so that a sanitizer or valgrind sees a single byte too many. */
static sheaf_reader reader_of(const char *bytes, size_t size, uint8_t **memory) {
    *memory = malloc(size > 0 ? size : 1);
    assert_non_null(*memory);
    memcpy(*memory, bytes, size);
    return sheaf_reader_of(sheaf_span_of(*memory, size));
}

static void integers_are_read_little_endian(void **state) {
    (void)state;
    uint8_t *memory;
    sheaf_reader r = reader_of("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff", 15, &memory);
    assert_int_equal(sheaf_read_u8(&r), 0x01);
    assert_int_equal(sheaf_read_u16(&r), 0x0302);
    assert_int_equal(sheaf_read_u32(&r), 0x07060504);
    assert_true(sheaf_read_u64(&r) == UINT64_C(0xff0e0d0c0b0a0908));
    assert_int_equal(sheaf_reader_left(&r), 0);
    assert_int_equal(r.failed, 0);
    free(memory);
}

static void integers_are_written_little_endian(void **state) {
    (void)state;
    uint8_t memory[15];
    sheaf_writer w = sheaf_writer_of(memory, sizeof memory);
    sheaf_write_u8(&w, 0x01);
    sheaf_write_u16(&w, 0x0302);
    sheaf_write_u32(&w, 0x07060504);
    sheaf_write_u64(&w, UINT64_C(0xff0e0d0c0b0a0908));
    assert_int_equal(w.failed, 0);
    assert_memory_equal(memory, "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff", 15);
    assert_int_equal(sheaf_writer_span(&w).size, 15);
}

static void a_read_past_the_end_yields_zero_and_sticks(void **state) {
    (void)state;
    uint8_t *memory;
    sheaf_reader r = reader_of("\xff\xff\xff", 3, &memory);
    assert_int_equal(sheaf_read_u32(&r), 0);
    assert_int_equal(r.failed, 1);
    assert_int_equal(sheaf_read_u8(&r), 0); /* there are three bytes, but the message is already wrong */
    assert_int_equal(sheaf_reader_left(&r), 3);
    free(memory);
}

static void a_size_near_the_limit_of_the_type_does_not_wrap(void **state) {
    (void)state;
    uint8_t *memory;
    sheaf_reader r = reader_of("abcd", 4, &memory);
    (void)sheaf_read_u8(&r);
    sheaf_span span = sheaf_read_bytes(&r, SIZE_MAX);
    assert_int_equal(r.failed, 1);
    assert_int_equal(span.size, 0);
    free(memory);
    uint8_t out[4];
    sheaf_writer w = sheaf_writer_of(out, sizeof out);
    sheaf_write_u8(&w, 1);
    sheaf_write_bytes(&w, out, SIZE_MAX);
    assert_int_equal(w.failed, 1);
    assert_int_equal(w.position, 1);
}

static void bytes_are_borrowed_where_they_stand(void **state) {
    (void)state;
    uint8_t *memory;
    sheaf_reader r = reader_of("abcd", 4, &memory);
    (void)sheaf_read_u8(&r);
    sheaf_span span = sheaf_read_bytes(&r, 2);
    assert_ptr_equal(span.data, memory + 1);
    assert_int_equal(span.size, 2);
    free(memory);
}

static void an_empty_read_works_at_the_end_and_on_no_memory(void **state) {
    (void)state;
    sheaf_reader r = sheaf_reader_of(sheaf_span_of(NULL, 0));
    assert_int_equal(sheaf_read_bytes(&r, 0).size, 0);
    sheaf_read_copy(&r, NULL, 0);
    assert_int_equal(r.failed, 0);
}

static void a_failed_copy_leaves_zeros(void **state) {
    (void)state;
    uint8_t *memory, out[4] = {1, 2, 3, 4};
    sheaf_reader r = reader_of("abc", 3, &memory);
    sheaf_read_copy(&r, out, sizeof out);
    assert_memory_equal(out, "\0\0\0\0", 4);
    free(memory);
}

static void a_name_is_read_with_its_nul(void **state) {
    (void)state;
    uint8_t *memory;
    char name[4] = "zzz";
    sheaf_reader r = reader_of("\x03\0abc", 5, &memory);
    sheaf_read_name(&r, name, sizeof name);
    assert_int_equal(r.failed, 0);
    assert_string_equal(name, "abc");
    free(memory);
}

static void a_name_that_is_empty_too_long_cut_or_holds_a_nul_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
    } cases[] = {{"\0\0", 2}, {"\x04\0abcd", 6}, {"\x03\0ab", 4}, {"\x03\0a\0c", 5}, {"\x03", 1}, {"\xff\xff", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *memory;
        char name[4] = "zzz";
        sheaf_reader r = reader_of(cases[i].bytes, cases[i].size, &memory);
        sheaf_read_name(&r, name, sizeof name);
        assert_int_equal(r.failed, 1);
        assert_string_equal(name, "");
        free(memory);
    }
}

static void a_write_that_does_not_fit_writes_nothing_and_sticks(void **state) {
    (void)state;
    uint8_t memory[4] = {9, 9, 9, 9};
    sheaf_writer w = sheaf_writer_of(memory, 3);
    sheaf_write_u32(&w, 0);
    assert_int_equal(w.failed, 1);
    sheaf_write_u8(&w, 0);
    assert_int_equal(w.position, 0);
    assert_memory_equal(memory, "\x09\x09\x09\x09", 4);
}

static void names_written_are_bounded_by_their_length_field(void **state) {
    (void)state;
    static uint8_t memory[UINT16_MAX + 16];
    static char name[UINT16_MAX + 2];
    memset(name, 'n', sizeof name - 1);
    sheaf_writer w = sheaf_writer_of(memory, sizeof memory);
    sheaf_write_name(&w, name); /* 65,536 bytes */
    assert_int_equal(w.failed, 1);
    name[UINT16_MAX] = '\0';
    w = sheaf_writer_of(memory, sizeof memory);
    sheaf_write_name(&w, name);
    assert_int_equal(w.failed, 0);
    assert_int_equal(w.position, 2 + UINT16_MAX);
    w = sheaf_writer_of(memory, sizeof memory);
    sheaf_write_name(&w, "");
    assert_int_equal(w.failed, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_read_little_endian),
        cmocka_unit_test(integers_are_written_little_endian),
        cmocka_unit_test(a_read_past_the_end_yields_zero_and_sticks),
        cmocka_unit_test(a_size_near_the_limit_of_the_type_does_not_wrap),
        cmocka_unit_test(bytes_are_borrowed_where_they_stand),
        cmocka_unit_test(an_empty_read_works_at_the_end_and_on_no_memory),
        cmocka_unit_test(a_failed_copy_leaves_zeros),
        cmocka_unit_test(a_name_is_read_with_its_nul),
        cmocka_unit_test(a_name_that_is_empty_too_long_cut_or_holds_a_nul_is_refused),
        cmocka_unit_test(a_write_that_does_not_fit_writes_nothing_and_sticks),
        cmocka_unit_test(names_written_are_bounded_by_their_length_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
