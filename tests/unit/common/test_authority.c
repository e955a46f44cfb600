/* An authority is made once, issues what we accept, notes it before it is out, and never replaces anything silently. */
#include "tests/cmocka.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/err.h>

#include "common/pki/authority.h"
#include "common/signer.h"
#include "common/trust.h"

static char base[64], folder[96];

static int set_up(void **state) {
    (void)state;
    snprintf(base, sizeof base, "/tmp/sheaf-authority-XXXXXX");
    if (mkdtemp(base) == NULL) return 1;
    snprintf(folder, sizeof folder, "%s/pki", base);
    return 0;
}

static void remove_files(const char *path) {
    DIR *listing = opendir(path);
    for (struct dirent *item = listing == NULL ? NULL : readdir(listing); item != NULL; item = readdir(listing)) {
        char file[512];
        snprintf(file, sizeof file, "%s/%s", path, item->d_name);
        if (item->d_name[0] != '.') (void)unlink(file);
    }
    if (listing != NULL) closedir(listing);
    (void)rmdir(path);
}

static int tear_down(void **state) {
    (void)state;
    char out[128];
    snprintf(out, sizeof out, "%s/out", base);
    remove_files(folder);
    remove_files(out);
    remove_files(base);
    return 0;
}

static sheaf_problem problem;

static void make_root(sheaf_key_type type) {
    const sheaf_authority_options options = {.name = "test-ca", .days = 30, .key_type = type};
    assert_int_equal(sheaf_authority_create(folder, &options, &problem), SHEAF_OK);
}

static sheaf_status issue_with(const sheaf_issue_options *options, sheaf_issued *issued) {
    sheaf_authority *authority = NULL;
    sheaf_status status = sheaf_authority_open(folder, &authority, &problem);
    if (status == SHEAF_OK) status = sheaf_authority_issue(authority, options, issued, &problem);
    sheaf_authority_close(authority);
    assert_int_equal(ERR_peek_error(), 0);
    return status;
}

static sheaf_issue_options device(const char *name) {
    return (sheaf_issue_options){.role = SHEAF_ROLE_DEVICE, .tenant = "acme", .name = name, .days = 7};
}

static const char *in_folder(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static mode_t mode_of(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_mode & 07777;
}

static size_t files_in(const char *path) {
    size_t count = 0;
    DIR *listing = opendir(path);
    for (struct dirent *item = listing == NULL ? NULL : readdir(listing); item != NULL; item = readdir(listing)) {
        count += item->d_name[0] != '.';
    }
    if (listing != NULL) closedir(listing);
    return count;
}

static void every_role_and_key_type_is_accepted_with_its_key(void **state) {
    (void)state;
    for (int root = SHEAF_KEY_P256; root <= SHEAF_KEY_ED25519; root++) {
        make_root((sheaf_key_type)root);
        for (int i = 0; i < 8; i++) {
            char name[32];
            snprintf(name, sizeof name, "node-%d", i);
            sheaf_role role = (sheaf_role)(SHEAF_ROLE_DEVICE + i / 2);
            sheaf_issue_options options = {.role = role,
                                           .tenant = "acme",
                                           .name = name,
                                           .days = 7,
                                           .key_type = (sheaf_key_type)(SHEAF_KEY_P256 + i % 2),
                                           .alternative_names = role == SHEAF_ROLE_AGGREGATOR ? "localhost,::1" : NULL};
            sheaf_issued issued;
            assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
            sheaf_certificate *certificate = NULL;
            sheaf_signer *signer = NULL;
            assert_int_equal(sheaf_certificate_from_pem_file(issued.certificate, &certificate, &problem), SHEAF_OK);
            assert_int_equal(sheaf_certificate_check_chain(certificate, in_folder("ca.pem"), &problem), SHEAF_OK);
            assert_int_equal(sheaf_signer_open(issued.key, &signer, &problem), SHEAF_OK);
            uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX];
            sheaf_buffer signature = {bytes, 0, sizeof bytes};
            sheaf_span message = sheaf_span_of("x", 1);
            assert_int_equal(sheaf_signer_sign(signer, message, &signature), SHEAF_OK);
            assert_int_equal(sheaf_certificate_verify(certificate, message, sheaf_buffer_span(&signature)), SHEAF_OK);
            assert_string_equal(sheaf_certificate_identity(certificate)->name, name);
            assert_int_equal(sheaf_certificate_identity(certificate)->role, role);
            sheaf_signer_free(signer);
            sheaf_certificate_unref(certificate);
        }
        remove_files(folder);
    }
}

static void keys_are_ours_alone_whatever_the_umask(void **state) {
    (void)state;
    mode_t before = umask(0);
    make_root(SHEAF_KEY_ANY);
    sheaf_issued issued;
    sheaf_issue_options options = device("d1");
    assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
    umask(before);
    assert_int_equal(mode_of(folder), 0700);
    assert_int_equal(mode_of(in_folder("ca.key")), 0600);
    assert_int_equal(mode_of(issued.key), 0600);
    assert_int_equal(mode_of(in_folder("index.jsonl")), 0600);
}

static void a_stale_temporary_file_does_not_lend_a_key_its_mode(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    assert_int_equal(sheaf_file_replace(in_folder("device-d1.key.new"), sheaf_span_of("x", 1), 0666, NULL), SHEAF_OK);
    assert_int_equal(chmod(in_folder("device-d1.key.new"), 0666), 0);
    sheaf_issued issued;
    sheaf_issue_options options = device("d1");
    assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
    assert_int_equal(mode_of(issued.key), 0600);
}

static void assert_root_refused(void) {
    const sheaf_authority_options options = {.name = "test-ca", .days = 30};
    assert_int_equal(sheaf_authority_create(folder, &options, &problem), SHEAF_E_EXISTS);
}

static void a_root_is_never_replaced(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    sheaf_buffer before = {0}, after = {0};
    assert_int_equal(sheaf_file_read_whole(in_folder("ca.pem"), 65536, &before, NULL), SHEAF_OK);
    assert_root_refused();
    assert_int_equal(sheaf_file_read_whole(in_folder("ca.pem"), 65536, &after, NULL), SHEAF_OK);
    assert_true(sheaf_span_equal(sheaf_buffer_span(&before), sheaf_buffer_span(&after)));
    free(before.data);
    free(after.data);
    assert_int_equal(unlink(in_folder("ca.key")),
                     0); /* the key is kept offline: ca.pem alone says whose folder it is */
    assert_root_refused();
    assert_int_equal(unlink(in_folder("ca.pem")), 0);
    assert_int_equal(symlink("/nonexistent/offline", in_folder("ca.key")), 0); /* a medium that is not plugged in */
    assert_root_refused();
}

static void a_certificate_is_replaced_only_to_renew_it_and_keeps_its_key(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    sheaf_issued first, second;
    sheaf_issue_options options = device("d1");
    options.renew = 1;
    assert_int_equal(issue_with(&options, &first), SHEAF_E_NOT_FOUND);
    options.renew = 0;
    assert_int_equal(issue_with(&options, &first), SHEAF_OK);
    assert_int_equal(issue_with(&options, &second), SHEAF_E_EXISTS);
    sheaf_buffer before = {0}, after = {0};
    assert_int_equal(sheaf_file_read_whole(first.key, 65536, &before, NULL), SHEAF_OK);
    options.renew = 1;
    assert_int_equal(issue_with(&options, &second), SHEAF_OK);
    assert_int_equal(sheaf_file_read_whole(first.key, 65536, &after, NULL), SHEAF_OK);
    assert_true(sheaf_span_equal(sheaf_buffer_span(&before), sheaf_buffer_span(&after)));
    assert_string_not_equal(first.serial, second.serial);
    free(before.data);
    free(after.data);
    options.tenant = "other"; /* another peer, who has no certificate here yet */
    assert_int_equal(issue_with(&options, &second), SHEAF_E_NOT_FOUND);
    options.tenant = "acme";
    options.key_type = SHEAF_KEY_ED25519;
    assert_int_equal(issue_with(&options, &second), SHEAF_E_MISMATCH);
}

static void an_issue_cut_short_after_its_key_is_finished_by_the_same_call(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    sheaf_issued first, second;
    sheaf_issue_options options = device("d1");
    options.key_type = SHEAF_KEY_ED25519;
    assert_int_equal(issue_with(&options, &first), SHEAF_OK);
    assert_int_equal(unlink(first.certificate), 0);
    assert_int_equal(issue_with(&options, &second), SHEAF_OK);
}

static void forbidden_names_are_refused_and_leave_nothing(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    char longest[65];
    memset(longest, 'n', sizeof longest);
    longest[64] = '\0';
    const char *const bad[] = {"",     "a/b",   "../x", "a+b",       "a#",     "a b",
                               "a\tb", "a\x7f", ".x",   "d\xc3\xa9", "a=b,CN", longest};
    size_t before = files_in(folder);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        sheaf_issued issued;
        sheaf_issue_options options = device(bad[i]);
        assert_int_equal(issue_with(&options, &issued), SHEAF_E_NAME);
        options = device("good");
        options.tenant = bad[i];
        assert_int_equal(issue_with(&options, &issued), SHEAF_E_NAME);
        assert_int_equal(files_in(folder), before);
    }
    longest[63] = '\0';
    sheaf_issued issued;
    sheaf_issue_options options = device(longest);
    assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
}

static void a_bad_name_of_a_root_makes_no_folder(void **state) {
    (void)state;
    const sheaf_authority_options options = {.name = "a b", .days = 30};
    assert_int_equal(sheaf_authority_create(folder, &options, &problem), SHEAF_E_NAME);
    assert_int_equal(access(folder, F_OK), -1);
}

static void bad_alternative_names_and_days_are_refused_and_leave_nothing(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    const char *const bad[] = {"",   "localhost,", ",a",    "a b", "*.example", "a..b",
                               ".a", "a.",         "DNS:x", "a_b", "-a",        "1.2.3.4/8"};
    size_t before = files_in(folder);
    sheaf_issued issued;
    sheaf_issue_options options = {.role = SHEAF_ROLE_AGGREGATOR, .tenant = "acme", .name = "agg", .days = 7};
    assert_int_equal(issue_with(&options, &issued), SHEAF_E_USAGE);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        options.alternative_names = bad[i];
        assert_int_equal(issue_with(&options, &issued), SHEAF_E_NAME);
    }
    char many[4 * 33 + 1] = "";
    for (int i = 0; i < 33; i++) memcpy(many + 2 * i, i == 32 ? "a" : "a,", i == 32 ? 2 : 3);
    options.alternative_names = many;
    assert_int_equal(issue_with(&options, &issued), SHEAF_E_NAME);
    options.alternative_names = "localhost";
    options.days = 0;
    assert_int_equal(issue_with(&options, &issued), SHEAF_E_USAGE);
    options.days = 36501;
    assert_int_equal(issue_with(&options, &issued), SHEAF_E_USAGE);
    sheaf_issue_options with_names = device("d1");
    with_names.alternative_names = "localhost";
    assert_int_equal(issue_with(&with_names, &issued), SHEAF_E_USAGE);
    assert_int_equal(files_in(folder), before);
}

static void no_certificate_outlives_its_authority(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    sheaf_authority_summary summary;
    assert_int_equal(sheaf_authority_describe(folder, &summary, &problem), SHEAF_OK);
    sheaf_issued issued;
    sheaf_issue_options options = device("d1");
    options.days = 31; /* the root has 30 */
    assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
    assert_string_equal(issued.not_after, summary.not_after);
    options = device("d2");
    assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
    assert_true(strcmp(issued.not_after, summary.not_after) < 0);
}

static void the_list_knows_all_and_survives_a_torn_line(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    sheaf_issued *entries = NULL, first, second;
    size_t count = 9;
    assert_int_equal(sheaf_registry_read(folder, &entries, &count, &problem), SHEAF_OK);
    assert_int_equal(count, 0);
    free(entries);
    sheaf_issue_options options = device("d1");
    assert_int_equal(issue_with(&options, &first), SHEAF_OK);
    FILE *index = fopen(in_folder("index.jsonl"), "ab");
    assert_non_null(index);
    for (int i = 0; i < 200; i++) fputs("{\"serial\":\"12", index); /* longer than the line that will take its place */
    fclose(index);
    assert_int_equal(sheaf_registry_read(folder, &entries, &count, &problem), SHEAF_OK);
    assert_int_equal(count, 1);
    free(entries);
    options = device("d2");
    assert_int_equal(issue_with(&options, &second), SHEAF_OK);
    assert_int_equal(sheaf_registry_read(folder, &entries, &count, &problem), SHEAF_OK);
    assert_int_equal(count, 2);
    sheaf_buffer text = {0};
    assert_int_equal(sheaf_file_read_whole(in_folder("index.jsonl"), 65536, &text, NULL), SHEAF_OK);
    assert_int_equal(text.data[text.size - 1], '\n');
    free(text.data);
    assert_string_equal(entries[0].serial, first.serial);
    assert_string_equal(entries[0].identity.name, "d1");
    assert_string_equal(entries[1].serial, second.serial);
    assert_string_equal(entries[1].fingerprint, second.fingerprint);
    assert_string_equal(entries[1].certificate, second.certificate);
    free(entries);
}

static void a_damaged_list_is_named_by_its_line(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    sheaf_issued issued, *entries = NULL;
    size_t count = 0;
    sheaf_issue_options options = device("d1");
    assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
    sheaf_buffer good = {0};
    assert_int_equal(sheaf_file_read_whole(in_folder("index.jsonl"), 65536, &good, NULL), SHEAF_OK);
    char unknown_role[1024];
    snprintf(unknown_role, sizeof unknown_role, "%s", (const char *)good.data);
    char *role = strstr(unknown_role, "\"device\"");
    assert_non_null(role);
    memcpy(role, "\"devise\"", 8);
    const char *const bad[] = {"\n", "{}\n", "[1]\n", "{\"role\":\"device\"}\n", "nonsense\n", unknown_role};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        FILE *index = fopen(in_folder("index.jsonl"), "wb");
        fwrite(good.data, 1, good.size, index);
        fputs(bad[i], index);
        fclose(index);
        assert_int_equal(sheaf_registry_read(folder, &entries, &count, &problem), SHEAF_E_CORRUPT);
        assert_non_null(strstr(problem.text, "index.jsonl:2"));
        assert_null(entries);
    }
    free(good.data);
}

static void processes_take_turns(void **state) {
    (void)state;
    enum { PROCESSES = 8 };
    make_root(SHEAF_KEY_ANY);
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        char name[16];
        snprintf(name, sizeof name, "d%d", i);
        sheaf_issue_options options = device(name);
        sheaf_issued issued;
        _exit(issue_with(&options, &issued) == SHEAF_OK ? 0 : 1);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int result = -1;
        assert_int_equal(waitpid(children[i], &result, 0), children[i]);
        assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    }
    sheaf_issued *entries = NULL;
    size_t count = 0;
    assert_int_equal(sheaf_registry_read(folder, &entries, &count, &problem), SHEAF_OK);
    assert_int_equal(count, PROCESSES);
    free(entries);
}

static void certificates_may_go_to_a_folder_of_their_own(void **state) {
    (void)state;
    make_root(SHEAF_KEY_ANY);
    char out[128], expected[256];
    snprintf(out, sizeof out, "%s/out", base);
    snprintf(expected, sizeof expected, "%s/device-d1.pem", out);
    sheaf_issued issued;
    sheaf_issue_options options = device("d1");
    options.folder = out;
    assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
    assert_string_equal(issued.certificate, expected);
    assert_int_equal(mode_of(out), 0700);
    assert_int_equal(mode_of(issued.key), 0600);
}

static void an_authority_that_is_not_whole_or_not_private_does_not_open(void **state) {
    (void)state;
    sheaf_authority *authority = NULL;
    assert_int_equal(sheaf_authority_open(folder, &authority, &problem), SHEAF_E_NOT_FOUND);
    make_root(SHEAF_KEY_ANY);
    sheaf_issued issued;
    sheaf_issue_options options = device("d1");
    assert_int_equal(issue_with(&options, &issued), SHEAF_OK);
    assert_int_equal(chmod(folder, 0770), 0);
    assert_int_equal(sheaf_authority_open(folder, &authority, &problem), SHEAF_E_PERMISSION);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(chmod(in_folder("ca.key"), 0644), 0);
    assert_int_equal(sheaf_authority_open(folder, &authority, &problem), SHEAF_E_PERMISSION);
    assert_int_equal(chmod(in_folder("ca.key"), 0600), 0);
    char own[256];
    snprintf(own, sizeof own, "%s", in_folder("ca.key"));
    assert_int_equal(rename(issued.key, own), 0);
    assert_int_equal(sheaf_authority_open(folder, &authority, &problem), SHEAF_E_MISMATCH);
    snprintf(own, sizeof own, "%s", in_folder("ca.pem"));
    assert_int_equal(rename(issued.certificate, own), 0);
    assert_int_equal(sheaf_authority_open(folder, &authority, &problem), SHEAF_E_CERTIFICATE);
    assert_null(authority);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(every_role_and_key_type_is_accepted_with_its_key),
        TEST(keys_are_ours_alone_whatever_the_umask),
        TEST(a_stale_temporary_file_does_not_lend_a_key_its_mode),
        TEST(a_root_is_never_replaced),
        TEST(a_certificate_is_replaced_only_to_renew_it_and_keeps_its_key),
        TEST(an_issue_cut_short_after_its_key_is_finished_by_the_same_call),
        TEST(forbidden_names_are_refused_and_leave_nothing),
        TEST(a_bad_name_of_a_root_makes_no_folder),
        TEST(bad_alternative_names_and_days_are_refused_and_leave_nothing),
        TEST(no_certificate_outlives_its_authority),
        TEST(the_list_knows_all_and_survives_a_torn_line),
        TEST(a_damaged_list_is_named_by_its_line),
        TEST(processes_take_turns),
        TEST(certificates_may_go_to_a_folder_of_their_own),
        TEST(an_authority_that_is_not_whole_or_not_private_does_not_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
