/* File calls by their promises. What happens when the disk fails or the power goes stands in tests/python/fault. */
#include "tests/cmocka.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"

static char folder[64], path[128];
static sheaf_problem problem;

static int start(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/sheaf-file-XXXXXX");
    (void)snprintf(path, sizeof path, "%s/x", mkdtemp(folder) == NULL ? "" : folder);
    return folder[0] == '\0' ? -1 : 0;
}

static int finish(void **state) {
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void replace(const char *text, unsigned mode) {
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of(text, strlen(text)), mode, &problem), SHEAF_OK);
}

static void assert_content(const char *text) {
    sheaf_buffer content;
    assert_int_equal(sheaf_file_read_whole(path, 1000, &content, &problem), SHEAF_OK);
    assert_string_equal((const char *)content.data, text);
    assert_int_equal(content.size, strlen(text));
    assert_int_equal(content.capacity, content.size + 1);
    free(content.data);
}

static void a_path_is_joined_up_to_its_limit(void **state) {
    (void)state;
    char out[SHEAF_PATH_BYTES], name[SHEAF_PATH_BYTES + 1];
    assert_int_equal(sheaf_path_join(out, "/a", "b", &problem), SHEAF_OK);
    assert_string_equal(out, "/a/b");
    memset(name, 'n', sizeof name);
    name[SHEAF_PATH_BYTES - 4] = '\0'; /* with "/a/" and the NUL exactly the limit */
    assert_int_equal(sheaf_path_join(out, "/a", name, &problem), SHEAF_OK);
    name[SHEAF_PATH_BYTES - 4] = 'n';
    name[SHEAF_PATH_BYTES - 3] = '\0';
    assert_int_equal(sheaf_path_join(out, "/a", name, &problem), SHEAF_E_TOO_LARGE);
}

static void replace_makes_the_file_with_its_mode(void **state) {
    (void)state;
    struct stat info;
    replace("one", 0600);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_content("one");
}

static void replace_puts_the_new_content_in_place_of_the_old(void **state) {
    (void)state;
    replace("a longer text", 0600);
    replace("short", 0600);
    assert_content("short");
    replace("", 0600);
    assert_content("");
}

static void a_temporary_file_left_by_a_crash_is_no_obstacle(void **state) {
    (void)state;
    char temporary[160];
    (void)snprintf(temporary, sizeof temporary, "%s.new", path);
    int fd = open(temporary, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "a long rest of old days", 23), 23);
    close(fd);
    replace("new", 0600);
    assert_content("new");
    assert_int_equal(access(temporary, F_OK), -1);
}

static void a_link_is_not_followed_when_a_file_is_made(void **state) {
    (void)state;
    int fd = -1;
    assert_int_equal(symlink("/tmp/sheaf-must-not-be-made", path), 0);
    assert_int_equal(sheaf_file_create(path, 0600, &fd, &problem), SHEAF_OK);
    close(fd);
    assert_int_equal(access("/tmp/sheaf-must-not-be-made", F_OK), -1);
}

static void a_stale_file_does_not_lend_its_mode_to_a_new_one(void **state) {
    (void)state;
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    struct stat info;
    assert_true(fd >= 0 && fchmod(fd, 0644) == 0);
    close(fd);
    assert_int_equal(sheaf_file_create(path, 0600, &fd, &problem), SHEAF_OK);
    assert_true(fstat(fd, &info) == 0 && (info.st_mode & 0777) == 0600);
    close(fd);
}

static void a_lock_is_had_by_one_at_a_time(void **state) {
    (void)state;
    int first = -1, second = -1;
    assert_int_equal(sheaf_file_lock(path, &first, &problem), SHEAF_OK);
    assert_int_equal(sheaf_file_lock(path, &second, &problem), SHEAF_E_EXISTS);
    assert_int_equal(second, -1);
    close(first);
    assert_int_equal(sheaf_file_lock(path, &second, &problem), SHEAF_OK);
    close(second);
}

static void read_whole_refuses_more_than_the_limit(void **state) {
    (void)state;
    sheaf_buffer content;
    replace("12345", 0600);
    assert_int_equal(sheaf_file_read_whole(path, 4, &content, &problem), SHEAF_E_TOO_LARGE);
    assert_null(content.data);
    assert_int_equal(sheaf_file_read_whole(path, 5, &content, &problem), SHEAF_OK);
    free(content.data);
}

static void read_whole_names_what_is_missing_or_no_file(void **state) {
    (void)state;
    sheaf_buffer content;
    assert_int_equal(sheaf_file_read_whole(path, 5, &content, &problem), SHEAF_E_NOT_FOUND);
    assert_non_null(strstr(problem.text, path));
    assert_int_equal(sheaf_file_read_whole(folder, 5, &content, &problem), SHEAF_E_DATA);
    assert_null(content.data);
}

static void bytes_are_written_and_read_at_their_offset(void **state) {
    (void)state;
    int fd = -1;
    char back[4] = "";
    assert_int_equal(sheaf_file_create(path, 0600, &fd, &problem), SHEAF_OK);
    assert_int_equal(sheaf_file_write_at(fd, sheaf_span_of("abc", 3), UINT64_C(5000000000), path, &problem), SHEAF_OK);
    assert_int_equal(sheaf_file_read_at(fd, back, 3, UINT64_C(5000000000), path, &problem), SHEAF_OK);
    assert_string_equal(back, "abc");
    assert_int_equal(sheaf_file_read_at(fd, back, 1, 7, path, &problem), SHEAF_OK);
    assert_int_equal(back[0], 0);
    close(fd);
}

static void a_file_that_ends_too_early_is_named(void **state) {
    (void)state;
    char back[4];
    replace("abc", 0600);
    int fd = open(path, O_RDONLY);
    assert_int_equal(sheaf_file_read_at(fd, back, 4, 0, path, &problem), SHEAF_E_TRUNCATED);
    assert_int_equal(sheaf_file_read_at(fd, back, 1, 3, path, &problem), SHEAF_E_TRUNCATED);
    close(fd);
}

static void a_write_that_the_system_refuses_is_named(void **state) {
    (void)state;
    replace("abc", 0600);
    int fd = open(path, O_RDONLY);
    assert_int_equal(sheaf_file_write_at(fd, sheaf_span_of("x", 1), 0, path, &problem), SHEAF_E_DISK);
    close(fd);
}

static void create_empties_what_is_there(void **state) {
    (void)state;
    int fd = -1;
    replace("abc", 0600);
    assert_int_equal(sheaf_file_create(path, 0600, &fd, &problem), SHEAF_OK);
    close(fd);
    assert_content("");
}

/* What a person names by mistake as an output, /dev/full for one, must outlive it; a FIFO stands for all of them. */
static void what_is_no_regular_file_is_never_replaced(void **state) {
    (void)state;
    char link[160], temporary[160];
    struct stat info;
    (void)snprintf(link, sizeof link, "%s/link", folder);
    (void)snprintf(temporary, sizeof temporary, "%s.new", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of("x", 1), 0600, &problem), SHEAF_E_EXISTS);
    assert_non_null(strstr(problem.text, path));
    assert_true(lstat(path, &info) == 0 && S_ISFIFO(info.st_mode));
    assert_int_equal(access(temporary, F_OK), -1);
    assert_int_equal(sheaf_file_replace(link, sheaf_span_of("x", 1), 0600, &problem), SHEAF_E_EXISTS);
    assert_true(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
    assert_int_equal(unlink(link), 0);
}

static void folders_are_made_with_their_parents_and_closed_to_others(void **state) {
    (void)state;
    char deep[160];
    struct stat info;
    (void)snprintf(deep, sizeof deep, "%s/a/b/c", folder);
    assert_int_equal(sheaf_file_make_folder(deep, &problem), SHEAF_OK);
    assert_int_equal(sheaf_file_make_folder(deep, &problem), SHEAF_OK);
    assert_int_equal(stat(deep, &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    assert_int_equal(info.st_mode & 0777, 0700);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rmdir(deep), 0);
        *strrchr(deep, '/') = '\0';
    }
}

static void a_file_in_the_way_of_a_folder_is_named(void **state) {
    (void)state;
    char deep[160];
    replace("abc", 0600);
    assert_int_equal(sheaf_file_make_folder(path, &problem), SHEAF_E_EXISTS);
    (void)snprintf(deep, sizeof deep, "%s/a", path);
    assert_int_equal(sheaf_file_make_folder(deep, &problem), SHEAF_E_EXISTS);
    assert_int_equal(sheaf_file_make_folder("", &problem), SHEAF_E_TOO_LARGE);
}

static void removing_what_is_not_there_is_fine(void **state) {
    (void)state;
    replace("abc", 0600);
    assert_int_equal(sheaf_file_remove(path, &problem), SHEAF_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(sheaf_file_remove(path, &problem), SHEAF_OK);
}

#define FILE_TEST(test) cmocka_unit_test_setup_teardown(test, start, finish)

int main(void) {
    const struct CMUnitTest tests[] = {
        FILE_TEST(a_path_is_joined_up_to_its_limit),
        FILE_TEST(replace_makes_the_file_with_its_mode),
        FILE_TEST(replace_puts_the_new_content_in_place_of_the_old),
        FILE_TEST(a_temporary_file_left_by_a_crash_is_no_obstacle),
        FILE_TEST(a_link_is_not_followed_when_a_file_is_made),
        FILE_TEST(a_stale_file_does_not_lend_its_mode_to_a_new_one),
        FILE_TEST(a_lock_is_had_by_one_at_a_time),
        FILE_TEST(read_whole_refuses_more_than_the_limit),
        FILE_TEST(read_whole_names_what_is_missing_or_no_file),
        FILE_TEST(bytes_are_written_and_read_at_their_offset),
        FILE_TEST(a_file_that_ends_too_early_is_named),
        FILE_TEST(a_write_that_the_system_refuses_is_named),
        FILE_TEST(create_empties_what_is_there),
        FILE_TEST(what_is_no_regular_file_is_never_replaced),
        FILE_TEST(folders_are_made_with_their_parents_and_closed_to_others),
        FILE_TEST(a_file_in_the_way_of_a_folder_is_named),
        FILE_TEST(removing_what_is_not_there_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
