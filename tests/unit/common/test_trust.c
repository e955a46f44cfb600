/* Whom we believe: chain, time, revocation, role; and that what cannot be read changes nothing. The lists are made by plain
 * OpenSSL calls of the kit. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/err.h>

#include "common/credentials.h"
#include "common/trust.h"
#include "tests/kit/pki_kit.h"

static pki_kit *kit;
static char list_path[256];

static int set_up(void **state) {
    (void)state;
    kit = pki_kit_make();
    snprintf(list_path, sizeof list_path, "%s/list.pem", pki_kit_folder(kit));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    pki_kit_free(kit);
    return 0;
}

static sheaf_problem problem;

static sheaf_trust *open_trust(sheaf_crl_policy policy, uint32_t grace_s) {
    const sheaf_trust_options options = {.ca_path = pki_kit_ca(kit),
                                         .crl_path = list_path,
                                         .crl_expired = policy,
                                         .crl_grace_s = grace_s,
                                         .crl_warn_s = 3600};
    sheaf_trust *trust = NULL;
    if (sheaf_trust_open(&options, &trust, &problem) != SHEAF_OK) fail_msg("%s", problem.text);
    return trust;
}

static sheaf_certificate *read_certificate(const pki_kit_files *files) {
    sheaf_certificate *certificate = NULL;
    if (sheaf_certificate_from_pem_file(files->certificate, &certificate, &problem) != SHEAF_OK)
        fail_msg("%s", problem.text);
    return certificate;
}

static sheaf_status judge(sheaf_trust *trust, const pki_kit_files *files, sheaf_role role) {
    sheaf_certificate *certificate = read_certificate(files);
    problem.text[0] = '\0';
    sheaf_status status = sheaf_trust_check(trust, certificate, role, &problem);
    sheaf_certificate_unref(certificate);
    assert_int_equal(ERR_peek_error(), 0);
    return status;
}

static void assert_says(const char *word) {
    if (strstr(problem.text, word) == NULL) fail_msg("'%s' lacks '%s'", problem.text, word);
}

static void the_list_and_the_role_decide(void **state) {
    (void)state;
    const pki_kit_files *good = pki_kit_issue(kit, "device", "good", NULL);
    const pki_kit_files *bad = pki_kit_issue(kit, "device", "bad", NULL);
    const pki_kit_files *alien = pki_kit_issue(kit, "device", "alien", &(pki_kit_options){.other_ca = 1});
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.revoked = {bad}});
    sheaf_trust *trust = open_trust(SHEAF_CRL_REFUSE, 0);
    assert_int_equal(judge(trust, good, SHEAF_ROLE_NONE), SHEAF_OK);
    assert_int_equal(judge(trust, good, SHEAF_ROLE_DEVICE), SHEAF_OK);
    assert_int_equal(judge(trust, good, SHEAF_ROLE_OPERATOR), SHEAF_E_ROLE);
    assert_says("operator is needed");
    assert_int_equal(judge(trust, bad, SHEAF_ROLE_NONE), SHEAF_E_REVOKED);
    assert_says("enrol again");
    assert_int_equal(judge(trust, alien, SHEAF_ROLE_NONE), SHEAF_E_CERTIFICATE);
    sheaf_trust_unref(trust);
}

static void a_wrong_clock_is_told_with_both_times(void **state) {
    (void)state;
    const pki_kit_options early = {.not_before_s = 365L * 86400, .not_after_s = 366L * 86400};
    const pki_kit_options late = {.not_before_s = -366L * 86400, .not_after_s = -365L * 86400};
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.last_update_s = 0});
    sheaf_trust *trust = open_trust(SHEAF_CRL_REFUSE, 0);
    assert_int_equal(judge(trust, pki_kit_issue(kit, "device", "early", &early), SHEAF_ROLE_NONE), SHEAF_E_CERTIFICATE);
    assert_says("is valid from 20");
    assert_says("the clock here says 20");
    assert_int_equal(judge(trust, pki_kit_issue(kit, "device", "late", &late), SHEAF_ROLE_NONE), SHEAF_E_CERTIFICATE);
    assert_says("was valid until 20");
    assert_says("the clock here says 20");
    sheaf_trust_unref(trust);
}

static void an_expired_list_refuses_only_by_policy(void **state) {
    (void)state;
    const pki_kit_files *good = pki_kit_issue(kit, "device", "good", NULL);
    const pki_kit_files *bad = pki_kit_issue(kit, "device", "bad", NULL);
    pki_kit_write_list(kit, list_path,
                       &(pki_kit_list){.revoked = {bad}, .last_update_s = -7200, .next_update_s = -3600});
    const struct {
        sheaf_crl_policy policy;
        uint32_t grace_s;
        sheaf_status good;
    } cases[] = {{SHEAF_CRL_ACCEPT, 0, SHEAF_OK},
                 {SHEAF_CRL_ACCEPT, 7000, SHEAF_OK},
                 {SHEAF_CRL_ACCEPT, 3000, SHEAF_E_CERTIFICATE},
                 {SHEAF_CRL_REFUSE, 7000, SHEAF_E_CERTIFICATE}};
    for (size_t i = 0; i < 4; i++) {
        sheaf_trust *trust = open_trust(cases[i].policy, cases[i].grace_s);
        sheaf_trust_report report;
        assert_int_equal(judge(trust, good, SHEAF_ROLE_NONE), cases[i].good);
        if (cases[i].good != SHEAF_OK) assert_says("sheaf pki crl");
        if (cases[i].good == SHEAF_OK) assert_int_equal(judge(trust, bad, SHEAF_ROLE_NONE), SHEAF_E_REVOKED);
        assert_int_equal(sheaf_trust_poll(trust), 0);
        sheaf_trust_look(trust, &report);
        assert_true(report.expired && report.expiring);
        assert_int_equal(report.alarms, 1);
        assert_int_equal(sheaf_trust_poll(trust), 0);
        sheaf_trust_look(trust, &report);
        assert_int_equal(report.alarms, 1); /* not every second */
        sheaf_trust_unref(trust);
    }
}

static void the_alarm_comes_before_the_list_expires(void **state) {
    (void)state;
    sheaf_trust_report report;
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.last_update_s = -60, .next_update_s = 7200});
    sheaf_trust *trust = open_trust(SHEAF_CRL_REFUSE, 0);
    (void)sheaf_trust_poll(trust);
    sheaf_trust_look(trust, &report);
    assert_false(report.expiring || report.alarms > 0);
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.last_update_s = -60, .next_update_s = 1800});
    assert_int_equal(sheaf_trust_poll(trust), 1);
    sheaf_trust_look(trust, &report);
    assert_true(report.expiring && !report.expired && report.alarms == 1);
    sheaf_trust_unref(trust);
}

static void a_list_of_the_future_still_revokes(void **state) {
    (void)state;
    const pki_kit_files *good = pki_kit_issue(kit, "device", "good", NULL);
    const pki_kit_files *bad = pki_kit_issue(kit, "device", "bad", NULL);
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.revoked = {bad}, .last_update_s = 3600, .next_update_s = 7200});
    sheaf_trust *trust = open_trust(SHEAF_CRL_REFUSE, 0);
    assert_int_equal(judge(trust, good, SHEAF_ROLE_NONE), SHEAF_OK);
    assert_int_equal(judge(trust, bad, SHEAF_ROLE_NONE), SHEAF_E_REVOKED);
    sheaf_trust_unref(trust);
}

static void a_new_list_is_noticed_and_a_broken_one_changes_nothing(void **state) {
    (void)state;
    const pki_kit_files *one = pki_kit_issue(kit, "device", "one", NULL);
    const pki_kit_files *two = pki_kit_issue(kit, "device", "two", NULL);
    sheaf_trust_report before, after;
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.revoked = {one}});
    sheaf_trust *trust = open_trust(SHEAF_CRL_REFUSE, 0);
    assert_int_equal(sheaf_trust_poll(trust), 0);
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.revoked = {one, two}});
    sheaf_trust_look(trust, &before);
    assert_int_equal(judge(trust, two, SHEAF_ROLE_NONE), SHEAF_OK);
    assert_int_equal(sheaf_trust_poll(trust), 1);
    sheaf_trust_look(trust, &after);
    assert_true(after.generation > before.generation);
    assert_int_equal(after.revoked, 2);
    assert_int_equal(judge(trust, two, SHEAF_ROLE_NONE), SHEAF_E_REVOKED);

    const pki_kit_list forged = {.bad_signature = 1};
    pki_kit_write_list(kit, list_path, &forged); /* would give both of them back */
    assert_int_equal(sheaf_trust_poll(trust), 0);
    assert_int_equal(judge(trust, one, SHEAF_ROLE_NONE), SHEAF_E_REVOKED);
    FILE *file = fopen(list_path, "w");
    assert_non_null(file);
    fputs("-----BEGIN X509 CRL-----\nnot base64\n", file);
    (void)fclose(file);
    assert_int_equal(sheaf_trust_poll(trust), 0);
    (void)unlink(list_path);
    assert_int_equal(sheaf_trust_poll(trust), 0);
    sheaf_trust_look(trust, &before);
    assert_true(before.unreadable && before.alarms >= 2 && before.generation == after.generation);
    assert_int_equal(judge(trust, one, SHEAF_ROLE_NONE), SHEAF_E_REVOKED);
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.revoked = {one}});
    assert_int_equal(sheaf_trust_poll(trust), 1);
    sheaf_trust_look(trust, &before);
    assert_false(before.unreadable);
    assert_int_equal(judge(trust, two, SHEAF_ROLE_NONE), SHEAF_OK);
    sheaf_trust_unref(trust);
}

static void a_connected_peer_is_judged_anew_with_every_content(void **state) {
    (void)state;
    const pki_kit_files *files = pki_kit_issue(kit, "device", "one", NULL);
    sheaf_certificate *peer = read_certificate(files);
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.last_update_s = 0});
    sheaf_trust *trust = open_trust(SHEAF_CRL_REFUSE, 0);
    assert_int_equal(sheaf_trust_holds(trust, peer, &problem), SHEAF_OK);
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.revoked = {files}});
    assert_int_equal(sheaf_trust_poll(trust), 1);
    assert_int_equal(sheaf_trust_holds(trust, peer, &problem), SHEAF_E_REVOKED);
    assert_int_equal(sheaf_trust_holds(trust, peer, &problem), SHEAF_E_REVOKED);
    sheaf_trust_unref(trust);
    sheaf_certificate_unref(peer);
}

static void a_folder_holds_the_lists_of_several_authorities(void **state) {
    (void)state;
    char folder[280], path[400];
    snprintf(folder, sizeof folder, "%s/lists", pki_kit_folder(kit));
    assert_int_equal(mkdir(folder, 0700), 0);
    const pki_kit_files *one = pki_kit_issue(kit, "device", "one", NULL);
    const pki_kit_files *alien = pki_kit_issue(kit, "device", "alien", &(pki_kit_options){.other_ca = 1});
    snprintf(path, sizeof path, "%s/kit.crl", folder);
    pki_kit_write_list(kit, path, &(pki_kit_list){.revoked = {one}});
    const sheaf_trust_options options = {.ca_path = pki_kit_folder(kit), .crl_path = folder};
    sheaf_trust *trust = NULL;
    /* The kit's folder holds both authorities, and peers' certificates, which are no authorities and do no harm. */
    assert_int_equal(sheaf_trust_open(&options, &trust, &problem), SHEAF_OK);
    assert_int_equal(judge(trust, one, SHEAF_ROLE_NONE), SHEAF_E_REVOKED);
    assert_int_equal(judge(trust, alien, SHEAF_ROLE_NONE), SHEAF_E_CERTIFICATE);
    assert_says("no revocation list");
    snprintf(path, sizeof path, "%s/other.crl", folder);
    pki_kit_write_list(kit, path, &(pki_kit_list){.other_ca = 1});
    assert_int_equal(sheaf_trust_poll(trust), 1);
    assert_int_equal(judge(trust, alien, SHEAF_ROLE_NONE), SHEAF_OK);
    sheaf_trust_report report;
    sheaf_trust_look(trust, &report);
    assert_int_equal(report.authorities, 2);
    assert_int_equal(report.lists, 2);
    sheaf_trust_unref(trust);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/kit.crl", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

/* What a poll finds: 1 taken, 0 not, and then one more alarm is raised, and one only. */
static void put(sheaf_trust *trust, const pki_kit_list *list, int taken) {
    sheaf_trust_report before, after;
    sheaf_trust_look(trust, &before);
    pki_kit_write_list(kit, list_path, list);
    assert_int_equal(sheaf_trust_poll(trust), taken);
    (void)sheaf_trust_poll(trust);
    sheaf_trust_look(trust, &after);
    assert_int_equal(after.alarms, before.alarms + (taken ? 0 : 1));
    assert_int_equal(after.unreadable, !taken);
}

/* RFC 5280, 5.2.3: the number tells which list supersedes which. */
static void an_older_list_that_is_put_back_is_not_taken(void **state) {
    (void)state;
    const pki_kit_files *bad = pki_kit_issue(kit, "device", "bad", NULL);
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.number = 255});
    sheaf_trust *trust = open_trust(SHEAF_CRL_REFUSE, 0);
    /* 256 has one byte more than 255, and a smaller last one. Its time does not matter: the authority's clock was set back. */
    put(trust, &(pki_kit_list){.revoked = {bad}, .number = 256, .last_update_s = -900, .next_update_s = 86400}, 1);
    put(trust, &(pki_kit_list){.number = 255}, 0);
    assert_int_equal(judge(trust, bad, SHEAF_ROLE_NONE), SHEAF_E_REVOKED);
    put(trust, &(pki_kit_list){.revoked = {bad}, .number = 256}, 1); /* the same number is no step back */
    put(trust, &(pki_kit_list){.number = 257}, 1);
    assert_int_equal(judge(trust, bad, SHEAF_ROLE_NONE), SHEAF_OK);
    sheaf_trust_unref(trust);
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.number = 1});
    trust = open_trust(SHEAF_CRL_REFUSE, 0); /* the way out for an authority that lost its count: a new process */
    sheaf_trust_unref(trust);
}

static void lists_without_numbers_are_compared_by_their_times(void **state) {
    (void)state;
    pki_kit_write_list(kit, list_path, &(pki_kit_list){.number = 5, .last_update_s = -600, .next_update_s = 7200});
    sheaf_trust *trust = open_trust(SHEAF_CRL_REFUSE, 0);
    put(trust, &(pki_kit_list){.last_update_s = -700, .next_update_s = 7200}, 0);
    put(trust, &(pki_kit_list){.last_update_s = -500, .next_update_s = 7200}, 1);
    put(trust, &(pki_kit_list){.last_update_s = -800, .next_update_s = 7200}, 0);
    sheaf_trust_unref(trust);
}

static void a_list_that_was_taken_away_does_not_come_back_older(void **state) {
    (void)state;
    char folder[280], path[400], other[400];
    snprintf(folder, sizeof folder, "%s/lists", pki_kit_folder(kit));
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(path, sizeof path, "%s/kit.crl", folder);
    snprintf(other, sizeof other, "%s/other.crl", folder);
    pki_kit_write_list(kit, path, &(pki_kit_list){.number = 7});
    pki_kit_write_list(kit, other, &(pki_kit_list){.number = 3, .other_ca = 1});
    const sheaf_trust_options options = {.ca_path = pki_kit_folder(kit), .crl_path = folder};
    sheaf_trust *trust = NULL;
    assert_int_equal(sheaf_trust_open(&options, &trust, &problem), SHEAF_OK);
    (void)unlink(path);
    assert_int_equal(sheaf_trust_poll(trust), 1);
    pki_kit_write_list(kit, other, &(pki_kit_list){.number = 4, .other_ca = 1}); /* and it is not forgotten meanwhile */
    assert_int_equal(sheaf_trust_poll(trust), 1);
    pki_kit_write_list(kit, path, &(pki_kit_list){.number = 6});
    assert_int_equal(sheaf_trust_poll(trust), 0);
    pki_kit_write_list(kit, path, &(pki_kit_list){.number = 7}); /* and a smaller one of the other authority is none */
    assert_int_equal(sheaf_trust_poll(trust), 1);
    sheaf_trust_unref(trust);
    (void)unlink(path);
    (void)unlink(other);
    (void)rmdir(folder);
}

/* --- credentials --- */

static void copy(const char *from, const char *to) {
    char draft[300], bytes[8192];
    snprintf(draft, sizeof draft, "%s.draft", to);
    FILE *in = fopen(from, "rb"), *out = fopen(draft, "wb");
    assert_non_null(in);
    assert_non_null(out);
    size_t size = fread(bytes, 1, sizeof bytes, in);
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    (void)fclose(in);
    (void)fclose(out);
    assert_int_equal(chmod(draft, 0600), 0);
    assert_int_equal(rename(draft, to), 0);
}

static void a_pair_is_taken_over_only_whole_and_only_for_the_same_peer(void **state) {
    (void)state;
    const pki_kit_files *first = pki_kit_issue(kit, "device", "one", NULL);
    const pki_kit_files *second = pki_kit_issue(kit, "device", "one", NULL);
    const pki_kit_files *other = pki_kit_issue(kit, "device", "two", NULL);
    char certificate[256], key[256];
    snprintf(certificate, sizeof certificate, "%s/own.pem", pki_kit_folder(kit));
    snprintf(key, sizeof key, "%s/own.key", pki_kit_folder(kit));
    copy(first->certificate, certificate);
    copy(first->key, key);
    sheaf_credentials *own = NULL;
    sheaf_credentials_pair pair;
    assert_int_equal(sheaf_credentials_open(certificate, key, &own, &problem), SHEAF_OK);
    assert_int_equal(sheaf_credentials_poll(own), 0);
    copy(second->key, key); /* the first half of a renewal */
    assert_int_equal(sheaf_credentials_poll(own), 0);
    copy(second->certificate, certificate);
    assert_int_equal(sheaf_credentials_poll(own), 1);
    assert_int_equal(sheaf_credentials_generation(own), 2);
    copy(other->key, key);
    copy(other->certificate, certificate);
    assert_int_equal(sheaf_credentials_poll(own), 0);
    sheaf_certificate *expected = read_certificate(second);
    sheaf_credentials_take(own, &pair);
    assert_memory_equal(sheaf_certificate_fingerprint(pair.certificate), sheaf_certificate_fingerprint(expected),
                        SHEAF_DIGEST_BYTES);
    uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX];
    sheaf_buffer signature = {bytes, 0, sizeof bytes};
    assert_int_equal(sheaf_signer_sign(pair.signer, sheaf_span_of("x", 1), &signature), SHEAF_OK);
    assert_int_equal(sheaf_certificate_verify(expected, sheaf_span_of("x", 1), sheaf_buffer_span(&signature)),
                     SHEAF_OK);
    sheaf_certificate_unref(expected);
    sheaf_credentials_pair_fini(&pair);
    sheaf_credentials_unref(own);
}

static void after_a_renewal_cut_short_the_old_key_is_found(void **state) {
    (void)state;
    const pki_kit_files *first = pki_kit_issue(kit, "device", "one", NULL);
    const pki_kit_files *second = pki_kit_issue(kit, "device", "one", NULL);
    char certificate[256], key[256], old[256];
    snprintf(certificate, sizeof certificate, "%s/cut.pem", pki_kit_folder(kit));
    snprintf(key, sizeof key, "%s/cut.key", pki_kit_folder(kit));
    snprintf(old, sizeof old, "%s/cut.key.old", pki_kit_folder(kit));
    copy(first->certificate, certificate);
    copy(second->key, key);
    sheaf_credentials *own = NULL;
    assert_int_equal(sheaf_credentials_open(certificate, key, &own, &problem), SHEAF_E_MISMATCH);
    copy(first->key, old);
    assert_int_equal(sheaf_credentials_open(certificate, key, &own, &problem), SHEAF_OK);
    sheaf_credentials_unref(own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_list_and_the_role_decide, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_wrong_clock_is_told_with_both_times, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_expired_list_refuses_only_by_policy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_alarm_comes_before_the_list_expires, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_list_of_the_future_still_revokes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_new_list_is_noticed_and_a_broken_one_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_connected_peer_is_judged_anew_with_every_content, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_folder_holds_the_lists_of_several_authorities, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_older_list_that_is_put_back_is_not_taken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lists_without_numbers_are_compared_by_their_times, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_list_that_was_taken_away_does_not_come_back_older, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_pair_is_taken_over_only_whole_and_only_for_the_same_peer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(after_a_renewal_cut_short_the_old_key_is_found, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
