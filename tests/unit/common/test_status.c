/* Status numbers travel and stand in logs: they are pinned, named once, and stay in their ranges. */
#include "tests/cmocka.h"

#include "common/name.h"
#include "common/status.h"

static const struct {
    sheaf_status status;
    long number;
    const char *name, *text;
} list[] = {
#define ROW(symbol, number, name, text) {SHEAF_##symbol, number, name, text},
    SHEAF_STATUS_LIST(ROW)
#undef ROW
};
enum { COUNT = sizeof list / sizeof *list };

static void released_numbers_have_not_moved(void **state) {
    (void)state;
    /* Written down here a second time on purpose. Add lines; never change one. */
    static const struct {
        const char *name;
        long number;
    } pinned[] = {{"ok", 0},
                  {"again", 1},
                  {"ended", 2},
                  {"stopped", 3},
                  {"malformed", 100},
                  {"truncated", 101},
                  {"too_large", 102},
                  {"unknown_version", 103},
                  {"bad_certificate", 110},
                  {"wrong_identity", 111},
                  {"wrong_role", 112},
                  {"bad_signature", 113},
                  {"wrong_digest", 114},
                  {"revoked", 115},
                  {"wrong_region", 116},
                  {"replay", 117},
                  {"bad_token", 118},
                  {"bad_seal", 119},
                  {"unknown_job", 120},
                  {"wrong_round", 121},
                  {"wrong_nonce", 122},
                  {"wrong_base_model", 123},
                  {"wrong_plan", 124},
                  {"late", 125},
                  {"conflict", 126},
                  {"cohort_full", 127},
                  {"weight_zero", 130},
                  {"weight_negative", 131},
                  {"weight_above_cap", 132},
                  {"not_finite", 133},
                  {"out_of_range", 134},
                  {"wrong_shape", 135},
                  {"wrong_dtype", 136},
                  {"wrong_name", 137},
                  {"wrong_encoding", 138},
                  {"mismatch", 139},
                  {"no_weight", 140},
                  {"no_quorum", 141},
                  {"not_representable", 142},
                  {"busy", 150},
                  {"over_quota", 151},
                  {"paused", 152},
                  {"cancelled", 153},
                  {"disk", 200},
                  {"no_space", 201},
                  {"memory", 202},
                  {"network", 203},
                  {"timeout", 204},
                  {"address_in_use", 205},
                  {"not_found", 206},
                  {"permission", 207},
                  {"closed", 208},
                  {"crypto", 209},
                  {"database", 210},
                  {"corrupt", 211},
                  {"trainer", 212},
                  {"exists", 213},
                  {"usage", 300},
                  {"config", 301},
                  {"data", 302},
                  {"overflow", 303}};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++) {
        assert_string_equal(sheaf_status_name(sheaf_status_from_number(pinned[i].number)), pinned[i].name);
    }
}

static void every_status_has_a_name_and_a_text_of_its_own(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        assert_string_equal(sheaf_status_name(list[i].status), list[i].name);
        assert_string_equal(sheaf_status_text(list[i].status), list[i].text);
        assert_int_equal(sheaf_name_ok(list[i].name), 1);
        assert_true(list[i].text[0] != '\0');
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(list[i].name, list[j].name);
            assert_int_not_equal(list[i].number, list[j].number);
        }
    }
}

static void every_error_is_the_peers_the_worlds_or_the_operators(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT; i++)
        assert_true(list[i].number < 10 || (list[i].number >= 100 && list[i].number < 400));
}

static void numbers_from_outside_are_checked(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT; i++) assert_int_equal(sheaf_status_from_number(list[i].number), list[i].status);
    static const long strangers[] = {-1, 4, 99, 199, 400, 4294967296L, -9223372036854775807L};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        assert_int_equal(sheaf_status_from_number(strangers[i]), SHEAF_E_MALFORMED);
    }
}

static void a_number_that_is_not_in_the_list_has_no_name(void **state) {
    (void)state;
    assert_string_equal(sheaf_status_name((sheaf_status)399), "unknown_status");
    assert_true(sheaf_status_text((sheaf_status)399)[0] != '\0');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_numbers_have_not_moved),
        cmocka_unit_test(every_status_has_a_name_and_a_text_of_its_own),
        cmocka_unit_test(every_error_is_the_peers_the_worlds_or_the_operators),
        cmocka_unit_test(numbers_from_outside_are_checked),
        cmocka_unit_test(a_number_that_is_not_in_the_list_has_no_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
