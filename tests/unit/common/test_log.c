/* The log: one line an event, and no value can pose as another field or line. */
#include "tests/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/log.h"
#include "common/log_line.h"

static char path[64];
static char text[1 << 20];

static int start(void **state) {
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/sheaf-log-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0) return -1;
    close(fd);
    return 0;
}

static int finish(void **state) {
    (void)state;
    return sheaf_log_configure(SHEAF_LOG_INFO, 0, NULL) == SHEAF_OK ? unlink(path) : -1;
}

static void configure(sheaf_log_level level, int json) {
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(sheaf_log_configure(level, json, path), SHEAF_OK);
}

static const char *written(void) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof text - 1, file);
    text[size] = '\0';
    fclose(file);
    return text;
}

/* What follows the time, which is checked for itself. */
static const char *after_time(void) {
    const char *space = strchr(written(), ' ');
    assert_non_null(space);
    return space + 1;
}

static json_t *as_json(void) {
    json_error_t error;
    json_t *object = json_loads(written(), JSON_REJECT_DUPLICATES, &error);
    if (object == NULL) fail_msg("%s: %s", error.text, text);
    return object;
}

static const char *member(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void a_text_line_has_time_level_event_and_pairs(void **state) {
    (void)state;
    configure(SHEAF_LOG_INFO, 0);
    sheaf_log(SHEAF_LOG_INFO, "update_accepted", "job=%s round=%" PRIu64 " client=%s", "digits", UINT64_MAX,
              "device-01");
    assert_string_equal(after_time(), "INFO  update_accepted job=digits round=18446744073709551615 client=device-01\n");
}

static void the_time_is_rfc_3339_utc_with_microseconds(void **state) {
    (void)state;
    regex_t pattern;
    configure(SHEAF_LOG_INFO, 0);
    sheaf_log(SHEAF_LOG_INFO, "x", "a=%d", 1);
    assert_int_equal(regcomp(&pattern, "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\\.[0-9]{6}Z ",
                             REG_EXTENDED),
                     0);
    assert_int_equal(regexec(&pattern, written(), 0, NULL, 0), 0);
    regfree(&pattern);
}

static void levels_below_the_filter_are_dropped(void **state) {
    (void)state;
    configure(SHEAF_LOG_WARNING, 0);
    sheaf_log(SHEAF_LOG_DEBUG, "a", "k=%d", 1);
    sheaf_log(SHEAF_LOG_INFO, "b", "k=%d", 1);
    assert_string_equal(written(), "");
    sheaf_log(SHEAF_LOG_WARNING, "c", "k=%d", 1);
    assert_string_equal(after_time(), "WARN  c k=1\n");
}

static void text_with_spaces_is_quoted_and_newlines_are_escaped(void **state) {
    (void)state;
    configure(SHEAF_LOG_INFO, 0);
    sheaf_log(SHEAF_LOG_INFO, "x", "a=%s b=\"%s\" c=%s", "two words", "plain", "line\nERROR fake=1");
    assert_string_equal(after_time(), "INFO  x a=\"two words\" b=plain c=\"line\\nERROR fake=1\"\n");
}

static void a_value_cannot_pose_as_another_pair(void **state) {
    (void)state;
    configure(SHEAF_LOG_INFO, 0);
    sheaf_log(SHEAF_LOG_INFO, "x", "client=%s role=%s detail=\"%s\"", "a role=operator", "device",
              "\" role=\"operator");
    assert_string_equal(after_time(),
                        "INFO  x client=\"a role=operator\" role=device detail=\"\\\" role=\\\"operator\"\n");
}

static void control_characters_and_broken_utf8_are_escaped(void **state) {
    (void)state;
    configure(SHEAF_LOG_INFO, 0);
    sheaf_log(SHEAF_LOG_INFO, "x", "a=%s",
              "\x1b[31m\r\t\x7f\xc2\x9b\xff\xc0\xaf\xed\xa0\x80 \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
    assert_string_equal(after_time(), "INFO  x a=\"\\u001b[31m\\r\\t\\u007f\\u009b\\xff\\xc0\\xaf\\xed\\xa0\\x80 "
                                      "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"\n");
}

static void json_has_members_of_the_right_type(void **state) {
    (void)state;
    configure(SHEAF_LOG_DEBUG, 1);
    sheaf_log(SHEAF_LOG_DEBUG, "round_closed",
              "job=%s round=%" PRIu64 " loss=%.3f client=%s share=%d%% note=\"%s\" nan=%f", "digits", UINT64_C(7),
              0.125, "007", 50, "a \"b\"\n", 0.0 / 0.0);
    json_t *object = as_json();
    assert_string_equal(member(object, "level"), "debug");
    assert_string_equal(member(object, "event"), "round_closed");
    assert_int_equal(json_integer_value(json_object_get(object, "round")), 7);
    assert_true(json_real_value(json_object_get(object, "loss")) == 0.125);
    assert_string_equal(member(object, "client"), "007");
    assert_string_equal(member(object, "share"), "50%");
    assert_string_equal(member(object, "note"), "a \"b\"\n");
    assert_true(json_is_string(json_object_get(object, "nan")));
    json_decref(object);
}

static void json_stays_valid_whatever_the_value(void **state) {
    (void)state;
    for (int c = 1; c < 256; c++) {
        char value[] = {(char)c, '"', (char)c, '\\', (char)c, '\0'};
        configure(SHEAF_LOG_INFO, 1);
        sheaf_log(SHEAF_LOG_INFO, "x", "a=%s b=\"%s\" n=%d", value, value, c);
        assert_non_null(strchr(written(), '\n'));
        assert_true(strchr(text, '\n')[1] == '\0');
        json_t *object = as_json();
        assert_int_equal(json_object_size(object), 6);
        assert_int_equal(json_integer_value(json_object_get(object, "n")), c);
        if (c < 0x80) assert_string_equal(member(object, "a"), value);
        json_decref(object);
    }
}

static void every_conversion_takes_its_own_argument(void **state) {
    (void)state;
    configure(SHEAF_LOG_INFO, 0);
    char expected[256];
    long l = -5;
    unsigned long ul = 5;
    long long ll = INT64_MIN;
    size_t z = SIZE_MAX;
    sheaf_log(SHEAF_LOG_INFO, "x",
              "a=%ld b=%lu c=%lld d=%zu e=%x f=%04X g=%c h=%.*s i=%5d j=%.2e k=%g l=%-4dz m=%hu n=%.3s o=%jd", l, ul,
              ll, z, 255u, 10u, 'q', 2, "xyz", 7, 1234.5, 0.25, 3, (unsigned short)9, "abcdef", (intmax_t)-1);
    (void)snprintf(expected, sizeof expected,
                   "INFO  x a=%ld b=%lu c=%lld d=%zu e=%x f=%04X g=%c h=%.*s i=\"%5d\" j=%.2e k=%g l=\"%-4dz\" m=%hu "
                   "n=%.3s o=%jd\n",
                   l, ul, ll, z, 255u, 10u, 'q', 2, "xyz", 7, 1234.5, 0.25, 3, (unsigned short)9, "abcdef",
                   (intmax_t)-1);
    assert_string_equal(after_time(), expected);
}

static void null_text_and_empty_text_are_shown(void **state) {
    (void)state;
    configure(SHEAF_LOG_INFO, 0);
    const char *volatile nothing = NULL;
    sheaf_log(SHEAF_LOG_INFO, "x", "a=%s b=%s c=%d", nothing, "", 1);
    assert_string_equal(after_time(), "INFO  x a=(null) b=\"\" c=1\n");
}

static void a_precision_bounds_text_without_an_end(void **state) {
    (void)state;
    char *bytes = malloc(3); /* under asan, a read of a fourth byte is seen */
    assert_non_null(bytes);
    memcpy(bytes, "abc", 3);
    configure(SHEAF_LOG_INFO, 0);
    sheaf_log(SHEAF_LOG_INFO, "x", "a=%.*s", 3, bytes);
    free(bytes);
    assert_string_equal(after_time(), "INFO  x a=abc\n");
}

static void make_line(sheaf_log_line *line, int json, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sheaf_log_line_make(line, json, "T", SHEAF_LOG_INFO, "x", format, arguments);
    va_end(arguments);
}

static void a_template_that_is_not_understood_is_named_and_reads_no_argument(void **state) {
    (void)state;
    sheaf_log_line line;
    make_line(&line, 0, "a=%d b=%n c=%s", 1);
    line.text[line.size] = '\0';
    assert_string_equal(line.text, "T INFO  x a=1 note=\"bad log template\"\n");
    make_line(&line, 0, "some words a=%d", 1);
    line.text[line.size] = '\0';
    assert_string_equal(line.text, "T INFO  x note=some note=words a=1\n");
}

static void a_long_line_is_cut_visibly_and_stays_well_formed(void **state) {
    (void)state;
    static char value[10000];
    for (size_t size = 3900; size < 4300; size++) {
        memset(value, 'v', size);
        memcpy(value + size, "\xe2\x82\xac\n", 5); /* a cut may fall into a character or an escape */
        for (int json = 0; json < 2; json++) {
            sheaf_log_line line;
            make_line(&line, json, "a=%s b=\"%s\" c=%d", value, value, 1);
            assert_true(line.size <= SHEAF_LOG_LINE_BYTES);
            assert_true(line.text[line.size - 1] == '\n');
            line.text[line.size - 1] = '\0';
            assert_null(strchr(line.text, '\n'));
            assert_non_null(strstr(line.text, json ? "\"truncated\":true}" : " truncated=true"));
            if (!json) continue;
            json_t *object = json_loads(line.text, JSON_REJECT_DUPLICATES, NULL);
            assert_non_null(object);
            json_decref(object);
        }
    }
}

static void the_longest_line_that_fits_is_not_cut(void **state) {
    (void)state;
    static char value[5000];
    sheaf_log_line line;
    memset(value, 'v', 4000);
    make_line(&line, 0, "a=%s", value);
    line.text[line.size] = '\0';
    assert_null(strstr(line.text, "truncated"));
    assert_int_equal(line.size, strlen("T INFO  x a=") + 4000 + 1);
}

enum { THREADS = 4, LINES = 500 };

static void *write_lines(void *context) {
    for (int i = 0; i < LINES; i++)
        sheaf_log(SHEAF_LOG_INFO, "t", "thread=%d line=%d fill=%0100d", *(int *)context, i, 0);
    return NULL;
}

static void lines_of_several_threads_stay_whole(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    int numbers[THREADS], next[THREADS] = {0};
    configure(SHEAF_LOG_INFO, 0);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    int count = 0;
    char *save = NULL;
    (void)written();
    for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save), count++) {
        int thread = -1, number = -1, end = 0;
        assert_int_equal(sscanf(line, "%*s INFO t thread=%d line=%d fill=%*100[0]%n", &thread, &number, &end), 2);
        assert_int_equal((size_t)end, strlen(line));
        assert_int_equal(number, next[thread]++);
    }
    assert_int_equal(count, THREADS * LINES);
}

static void a_log_that_cannot_be_written_disturbs_nobody(void **state) {
    (void)state;
    assert_int_equal(sheaf_log_configure(SHEAF_LOG_INFO, 0, "/dev/full"), SHEAF_OK);
    errno = 77;
    sheaf_log(SHEAF_LOG_INFO, "x", "a=%d", 1);
    assert_int_equal(errno, 77);
}

static void a_reader_that_went_away_does_not_kill_us(void **state) {
    (void)state;
    int ends[2], keep = dup(STDERR_FILENO);
    struct sigaction action = {.sa_handler = SIG_DFL};
    assert_int_equal(sigaction(SIGPIPE, &action, NULL), 0);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(sheaf_log_configure(SHEAF_LOG_INFO, 0, NULL), SHEAF_OK);
    close(ends[0]);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    close(ends[1]);
    sheaf_log(SHEAF_LOG_INFO, "x", "a=%d", 1); /* SIGPIPE would end this program here */
    assert_true(dup2(keep, STDERR_FILENO) >= 0);
    close(keep);
}

static void a_sink_that_cannot_be_opened_is_refused_and_the_old_one_stays(void **state) {
    (void)state;
    configure(SHEAF_LOG_INFO, 0);
    assert_int_equal(sheaf_log_configure(SHEAF_LOG_DEBUG, 1, "/nonexistent/log"), SHEAF_E_NOT_FOUND);
    sheaf_log(SHEAF_LOG_INFO, "x", "a=%d", 1);
    assert_string_equal(after_time(), "INFO  x a=1\n");
}

#define LOG_TEST(test) cmocka_unit_test_setup_teardown(test, start, finish)

int main(void) {
    const struct CMUnitTest tests[] = {
        LOG_TEST(a_text_line_has_time_level_event_and_pairs),
        LOG_TEST(the_time_is_rfc_3339_utc_with_microseconds),
        LOG_TEST(levels_below_the_filter_are_dropped),
        LOG_TEST(text_with_spaces_is_quoted_and_newlines_are_escaped),
        LOG_TEST(a_value_cannot_pose_as_another_pair),
        LOG_TEST(control_characters_and_broken_utf8_are_escaped),
        LOG_TEST(json_has_members_of_the_right_type),
        LOG_TEST(json_stays_valid_whatever_the_value),
        LOG_TEST(every_conversion_takes_its_own_argument),
        LOG_TEST(null_text_and_empty_text_are_shown),
        LOG_TEST(a_precision_bounds_text_without_an_end),
        LOG_TEST(a_template_that_is_not_understood_is_named_and_reads_no_argument),
        LOG_TEST(a_long_line_is_cut_visibly_and_stays_well_formed),
        LOG_TEST(the_longest_line_that_fits_is_not_cut),
        LOG_TEST(lines_of_several_threads_stay_whole),
        LOG_TEST(a_log_that_cannot_be_written_disturbs_nobody),
        LOG_TEST(a_reader_that_went_away_does_not_kill_us),
        LOG_TEST(a_sink_that_cannot_be_opened_is_refused_and_the_old_one_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
