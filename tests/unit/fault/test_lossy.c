/* A job over a network that loses 20 % of all frames, doubles 5 %, brings 10 % late and stops the aggregator now and
 * then, ends with the model of the calm run, and every update is counted once.
 *
 * SHEAF_LONG=1 tries hundreds of seeds; SHEAF_SEED=N only that one. */
#include "tests/kit/core_fleet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cmocka.h"

#define DEVICES  5u
#define ROUNDS   2u
#define VALUES   6000u /* 24 chunks of 1 KiB */
#define SECONDS  60u
#define RESTARTS 2u

static const lossy_odds calm = {.drop = 0}, bad = {.drop = 20, .twice = 5, .late = 10, .late_ms = 30};

static lossy_counts add(const core_fleet *fleet) {
    lossy_counts sum = {0, 0, 0, 0};
    for (unsigned i = 0; i < fleet->options.devices; i++) {
        const lossy_counts *one = &fleet->device[i].link.counts;
        sum.frames += one->frames;
        sum.dropped += one->dropped;
        sum.doubled += one->doubled;
        sum.delayed += one->delayed;
    }
    return sum;
}

static void run_with_restarts(core_fleet *fleet, uint64_t seed, unsigned restarts) {
    for (unsigned i = 0; i < restarts; i++) {
        unsigned steps = 200 + (unsigned)(seed * 7919 + i * 104729) % 600;
        while (steps-- > 0 && core_fleet_step(fleet)) continue;
        service_kit_restart(&fleet->kit);
    }
    assert_int_equal(core_fleet_run(fleet, SECONDS), 1);
}

static lossy_counts job(uint64_t seed, const lossy_odds *odds, unsigned restarts, uint8_t digest[SHEAF_DIGEST_BYTES]) {
    static core_fleet fleet;
    const core_fleet_options options = {
        .devices = DEVICES, .rounds = ROUNDS, .values = VALUES, .seed = seed, .odds = *odds};
    core_fleet_open(&fleet, &options);
    run_with_restarts(&fleet, seed, restarts);
    assert_int_equal(core_fleet_counted(&fleet, digest), 1);
    for (unsigned i = 0; i < DEVICES; i++) {
        assert_int_equal(fleet.device[i].receipts, ROUNDS);
        assert_string_equal(sheaf_status_name(fleet.device[i].refusal), "ok");
    }
    lossy_counts counts = add(&fleet);
    core_fleet_close(&fleet);
    return counts;
}

static void check_share(unsigned part, unsigned whole, unsigned percent) {
    assert_true(100 * part >= (percent - 2) * whole);
    assert_true(100 * part <= (percent + 2) * whole);
}

static void a_lossy_job_ends_with_the_model_of_the_calm_one(void **state) {
    (void)state;
    const char *text = getenv("SHEAF_LONG"), *only = getenv("SHEAF_SEED");
    uint64_t seeds = text != NULL && text[0] != '\0' && text[0] != '0' ? 300 : 4;
    uint64_t first = only != NULL ? strtoull(only, NULL, 10) : 1;
    if (only != NULL) seeds = 1;
    uint8_t expected[SHEAF_DIGEST_BYTES], found[SHEAF_DIGEST_BYTES];
    lossy_counts sum = job(first, &calm, 0, expected);
    assert_int_equal(sum.dropped + sum.doubled + sum.delayed, 0);
    memset(&sum, 0, sizeof sum);
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        lossy_counts counts = job(seed, &bad, RESTARTS, found);
        print_message("    seed %llu: %u frames, %u lost, %u twice, %u late\n", (unsigned long long)seed, counts.frames,
                      counts.dropped, counts.doubled, counts.delayed);
        assert_memory_equal(found, expected, sizeof found);
        sum.frames += counts.frames;
        sum.dropped += counts.dropped;
        sum.doubled += counts.doubled;
    }
    check_share(sum.dropped, sum.frames, bad.drop);
    check_share(sum.doubled, sum.frames - sum.dropped, bad.twice);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_lossy_job_ends_with_the_model_of_the_calm_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
