/* A problem carries a status and a sentence, and the sentence never leaves its room. */
#include "tests/cmocka.h"

#include <errno.h>

#include "common/problem.h"

static void set_keeps_status_and_text(void **state) {
    (void)state;
    sheaf_problem problem;
    assert_int_equal(sheaf_problem_set(&problem, SHEAF_E_CONFIG, "%s:%d", "file", 3), SHEAF_E_CONFIG);
    assert_int_equal(problem.status, SHEAF_E_CONFIG);
    assert_string_equal(problem.text, "file:3");
}

static void nobody_who_wants_the_text_is_fine(void **state) {
    (void)state;
    assert_int_equal(sheaf_problem_set(NULL, SHEAF_E_DISK, "x"), SHEAF_E_DISK);
    assert_int_equal(sheaf_problem_prefix(NULL, "x"), SHEAF_OK);
    errno = EACCES;
    assert_int_equal(sheaf_problem_errno(NULL, "open", "x"), SHEAF_E_PERMISSION);
}

static void a_long_text_is_cut(void **state) {
    (void)state;
    sheaf_problem problem;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)sheaf_problem_set(&problem, SHEAF_E_DISK, "%s", text);
    assert_int_equal(strlen(problem.text), sizeof problem.text - 1);
    assert_int_equal(sheaf_problem_prefix(&problem, "%s", "before"), SHEAF_E_DISK);
    assert_int_equal(strlen(problem.text), sizeof problem.text - 1);
    assert_memory_equal(problem.text, "before: xx", 10);
    assert_int_equal(sheaf_problem_prefix(&problem, "%s", text), SHEAF_E_DISK);
    assert_int_equal(strlen(problem.text), sizeof problem.text - 1);
}

static void a_prefix_stands_before_the_text_and_keeps_the_status(void **state) {
    (void)state;
    sheaf_problem problem;
    (void)sheaf_problem_set(&problem, SHEAF_E_DATA, "tensor w: NaN");
    assert_int_equal(sheaf_problem_prefix(&problem, "%s", "a.safetensors"), SHEAF_E_DATA);
    assert_string_equal(problem.text, "a.safetensors: tensor w: NaN");
}

static void errno_becomes_a_status_and_a_sentence(void **state) {
    (void)state;
    static const struct {
        int code;
        sheaf_status status;
    } cases[] = {{ENOENT, SHEAF_E_NOT_FOUND}, {EEXIST, SHEAF_E_EXISTS},   {EACCES, SHEAF_E_PERMISSION},
                 {EPERM, SHEAF_E_PERMISSION}, {ENOSPC, SHEAF_E_NO_SPACE}, {EDQUOT, SHEAF_E_NO_SPACE},
                 {ENOMEM, SHEAF_E_MEMORY},    {EIO, SHEAF_E_DISK},        {EMFILE, SHEAF_E_DISK},
                 {EROFS, SHEAF_E_DISK}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sheaf_problem problem;
        errno = cases[i].code;
        assert_int_equal(sheaf_problem_errno(&problem, "open", "/a/b"), cases[i].status);
        assert_int_equal(problem.status, cases[i].status);
        assert_memory_equal(problem.text, "/a/b: cannot open: ", 19);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_keeps_status_and_text),
        cmocka_unit_test(nobody_who_wants_the_text_is_fine),
        cmocka_unit_test(a_long_text_is_cut),
        cmocka_unit_test(a_prefix_stands_before_the_text_and_keeps_the_status),
        cmocka_unit_test(errno_becomes_a_status_and_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
