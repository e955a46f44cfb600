/* A name can stand in a topic level, a file name and a log line as it is. */
#include "tests/cmocka.h"

#include "common/name.h"

static void letters_digits_dot_underscore_and_hyphen_are_fine(void **state) {
    (void)state;
    static const char *const good[] = {"a", "Z", "0", "-", "_", "a.b", "device-03", "A_b.c-9"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_int_equal(sheaf_name_ok(good[i]), 1);
}

static void every_other_byte_is_refused(void **state) {
    (void)state;
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    for (int c = 1; c < 256; c++) {
        char name[] = {'a', (char)c, 'b', '\0'};
        assert_int_equal(sheaf_name_ok(name), strchr(allowed, c) != NULL);
    }
}

static void a_name_is_not_empty_and_does_not_begin_with_a_dot(void **state) {
    (void)state;
    static const char *const bad[] = {"", ".", "..", ".hidden"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(sheaf_name_ok(bad[i]), 0);
}

static void sixty_three_bytes_are_the_most(void **state) {
    (void)state;
    char name[66];
    memset(name, 'n', sizeof name);
    name[63] = '\0';
    assert_int_equal(sheaf_name_ok(name), 1);
    name[63] = 'n';
    name[64] = '\0';
    assert_int_equal(sheaf_name_ok(name), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(letters_digits_dot_underscore_and_hyphen_are_fine),
        cmocka_unit_test(every_other_byte_is_refused),
        cmocka_unit_test(a_name_is_not_empty_and_does_not_begin_with_a_dot),
        cmocka_unit_test(sixty_three_bytes_are_the_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
