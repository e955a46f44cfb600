/* lattice.h against tests/vectors/lattice.txt, which a program in exact rational arithmetic wrote; then properties on
 * random input that the design promises. */
#include "tests/cmocka.h"

#include "common/lattice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static char *next(char **rest) {
    char *word = strtok_r(NULL, " \n", rest);
    assert_non_null(word);
    return word;
}
static uint64_t next_u64(char **rest) { return strtoull(next(rest), NULL, 10); }
static int64_t next_i64(char **rest) { return strtoll(next(rest), NULL, 10); }
static uint32_t next_bits(char **rest) { return (uint32_t)strtoul(next(rest), NULL, 16); }

static lattice_norm next_norm(char **rest) {
    const char *text = next(rest);
    char high[17] = {0};
    assert_int_equal(strlen(text), 32);
    memcpy(high, text, 16);
    lattice_norm norm = {strtoull(text + 16, NULL, 16), strtoull(high, NULL, 16)};
    return norm;
}

static int decode_case(char **rest) {
    uint32_t bits = next_bits(rest);
    int fraction_bits = (int)next_i64(rest);
    const char *status = next(rest);
    int64_t expected = next_i64(rest);
    int32_t q = 0;
    sheaf_status found = lattice_decode_f32(bits, fraction_bits, &q);
    return strcmp(sheaf_status_name(found), status) == 0 && (found != SHEAF_OK || q == expected);
}

static int norm_case(char **rest) {
    lattice_norm norm = {0, 0};
    for (uint64_t n = next_u64(rest); n > 0; n--) lattice_norm_add(&norm, (int32_t)next_i64(rest));
    lattice_norm expected = next_norm(rest);
    return norm.low == expected.low && norm.high == expected.high;
}

static int multiplier_case(char **rest) {
    lattice_norm norm = next_norm(rest);
    uint64_t clip_units = next_u64(rest), unit = next_u64(rest), root = next_u64(rest), multiplier = next_u64(rest);
    return lattice_norm_ceil_root(norm) == root && lattice_clip_multiplier(norm, clip_units, unit) == multiplier;
}

static int clip_case(char **rest) {
    int32_t q = (int32_t)next_i64(rest);
    uint64_t multiplier = next_u64(rest);
    return lattice_clip(q, multiplier) == next_i64(rest);
}

static int accumulate_case(char **rest) {
    int64_t sum = 0;
    for (uint64_t n = next_u64(rest); n > 0; n--) {
        int64_t weight = next_i64(rest);
        lattice_accumulate(&sum, weight, (int32_t)next_i64(rest));
    }
    return sum == next_i64(rest);
}

static int bound_case(char **rest) {
    uint64_t cohort = next_u64(rest), weight = next_u64(rest), bound = next_u64(rest), tail = next_u64(rest);
    return lattice_bound_holds(cohort, weight, bound, tail) == (int)next_i64(rest);
}

static int choose_case(char **rest) {
    uint32_t bits = next_bits(rest);
    uint64_t total = next_u64(rest);
    const char *status = next(rest);
    int expected = (int)next_i64(rest), fraction_bits = 0;
    sheaf_status found = lattice_choose_fraction_bits(bits, total, &fraction_bits);
    return strcmp(sheaf_status_name(found), status) == 0 && fraction_bits == expected;
}

static int mean_case(char **rest) {
    int64_t sum = next_i64(rest);
    uint64_t total = next_u64(rest), unit = next_u64(rest);
    int fraction_bits = (int)next_i64(rest);
    return lattice_f32_bits(lattice_mean(sum, total, unit, fraction_bits)) == next_bits(rest);
}

typedef struct {
    const char *kind;
    int (*check)(char **rest); /* 1 when the case holds */
    size_t at_least;           /* so that an empty or cut file fails */
} vector_kind;

/* One test a kind; the state is the row. */
static void vectors_of_this_kind_hold(void **state) {
    const vector_kind *kind = *state;
    FILE *file = fopen(SHEAF_TESTS_DIR "/vectors/lattice.txt", "r");
    char line[4096], copy[4096], *rest;
    size_t seen = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        memcpy(copy, line, sizeof copy);
        const char *word = strtok_r(copy, " \n", &rest);
        if (word == NULL || strcmp(word, kind->kind) != 0) continue;
        if (!kind->check(&rest)) fail_msg("does not hold: %s", line);
        seen++;
    }
    fclose(file);
    assert_true(seen >= kind->at_least);
}

static uint64_t random_state = 1;
static uint64_t random_u64(void) { /* splitmix64 */
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* q is the nearest lattice point: |x * 2^f - q| <= 1/2, and q even where it is exactly 1/2. In long double (64 bits of
 * significand here) the difference is exact as long as q fits it, which the compiler is asked to confirm. */
static void decode_is_within_half_a_unit_on_random_bits(void **state) {
    (void)state;
    _Static_assert(LDBL_MANT_DIG >= 64, "long double must hold float and q exactly");
    for (int i = 0; i < 300000; i++) {
        uint32_t bits = (uint32_t)random_u64();
        int f = (int)(random_u64() % 252) - 125;
        int32_t q = 0;
        float x;
        memcpy(&x, &bits, sizeof x);
        if (lattice_decode_f32(bits, f, &q) != SHEAF_OK) continue;
        long double exact = (long double)x * (long double)lattice_power_of_two(f), rest = exact - q;
        assert_true(rest <= 0.5L && rest >= -0.5L);
        if (rest == 0.5L || rest == -0.5L) assert_int_equal(q % 2, 0);
    }
}

static void a_clipped_update_stays_within_its_bound(void **state) {
    (void)state;
    for (int i = 0; i < 3000; i++) {
        int32_t q[33];
        lattice_norm before = {0, 0}, after = {0, 0};
        unsigned shift = (unsigned)(random_u64() % 31);
        for (int k = 0; k < 33; k++) {
            q[k] =
                (int32_t)((int64_t)(random_u64() % (2 * (uint64_t)LATTICE_Q_MAX + 1)) - LATTICE_Q_MAX) / (1 << shift);
            lattice_norm_add(&before, q[k]);
        }
        uint64_t clip_units = 1 + random_u64() % (UINT64_C(1) << (random_u64() % 34));
        uint64_t multiplier = lattice_clip_multiplier(before, clip_units, LATTICE_UNIT);
        for (int k = 0; k < 33; k++) lattice_norm_add(&after, lattice_clip(q[k], multiplier));
        lattice_u128 sum = (lattice_u128)after.high << 64 | after.low;
        assert_true(sum <= (lattice_u128)clip_units * clip_units);
    }
}

static void norms_merge_in_any_order(void **state) {
    (void)state;
    lattice_norm forward = {0, 0}, halves[2] = {{0, 0}, {0, 0}};
    for (int i = 0; i < 1000; i++) {
        int32_t q = (int32_t)(random_u64() % (uint64_t)LATTICE_Q_MAX) * (i % 2 ? -1 : 1);
        lattice_norm_add(&forward, q);
        lattice_norm_add(&halves[i % 2], q);
    }
    lattice_norm_merge(&halves[1], halves[0]);
    assert_true(forward.high > 0 && halves[1].high == forward.high && halves[1].low == forward.low);
}

static void a_zero_update_divides_nothing(void **state) {
    (void)state;
    lattice_norm zero = {0, 0};
    assert_int_equal(lattice_clip_multiplier(zero, 1, LATTICE_UNIT), LATTICE_UNIT);
}

static void unit_multipliers_up_to_the_bound_are_admitted(void **state) {
    (void)state;
    assert_false(lattice_unit_multiplier_ok(0));
    assert_true(lattice_unit_multiplier_ok(1));
    assert_true(lattice_unit_multiplier_ok(LATTICE_UNIT));
    assert_true(lattice_unit_multiplier_ok(LATTICE_UNIT + 2));  /* (2^31 - 1)(2^32 + 2) = 2^63 - 2 */
    assert_false(lattice_unit_multiplier_ok(LATTICE_UNIT + 3)); /* is above 2^63 */
}

static void this_process_rounds_to_nearest(void **state) {
    (void)state;
    assert_true(lattice_float_environment_ok());
}

int main(void) {
    static vector_kind kinds[] = {
        {"decode", decode_case, 3000},        {"norm", norm_case, 60},
        {"multiplier", multiplier_case, 900}, {"clip", clip_case, 400},
        {"accumulate", accumulate_case, 60},  {"bound", bound_case, 200},
        {"choose", choose_case, 500},         {"mean", mean_case, 2000},
    };
#define VECTORS(i, name)                                                                                               \
    { name, vectors_of_this_kind_hold, NULL, NULL, &kinds[i] }
    const struct CMUnitTest tests[] = {
        VECTORS(0, "vectors: decode"),
        VECTORS(1, "vectors: norm"),
        VECTORS(2, "vectors: clip multiplier"),
        VECTORS(3, "vectors: clip"),
        VECTORS(4, "vectors: accumulate"),
        VECTORS(5, "vectors: bound"),
        VECTORS(6, "vectors: choose fraction_bits"),
        VECTORS(7, "vectors: mean"),
        cmocka_unit_test(decode_is_within_half_a_unit_on_random_bits),
        cmocka_unit_test(a_clipped_update_stays_within_its_bound),
        cmocka_unit_test(norms_merge_in_any_order),
        cmocka_unit_test(a_zero_update_divides_nothing),
        cmocka_unit_test(unit_multipliers_up_to_the_bound_are_admitted),
        cmocka_unit_test(this_process_rounds_to_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
