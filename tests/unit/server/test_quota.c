/* A device that asks, or sends, more than it may is told when it may again; others are not touched by it. The times expected
 * follow from the rates by hand. */
#include "tests/cmocka.h"

#include <stdio.h>

#include "server/quota.h"

static const uint64_t second = 1000000000u;

static sheaf_quota *make(uint32_t requests, uint64_t bytes, uint64_t in_flight) {
    const sheaf_quota_limits limits = {requests, bytes, in_flight};
    sheaf_quota *quota = NULL;
    assert_int_equal(sheaf_quota_make(&limits, &quota), SHEAF_OK);
    return quota;
}

static sheaf_status ask(sheaf_quota *quota, const char *client, uint64_t bytes, uint64_t now, uint32_t *retry_ms) {
    sheaf_quota_charged charged;
    sheaf_status status = sheaf_quota_charge(quota, "acme", client, bytes, now, &charged, retry_ms);
    sheaf_quota_give_back(&charged);
    sheaf_quota_give_back(&charged);
    return status;
}

static void requests_beyond_the_rate_wait_as_long_as_the_bucket_needs(void **state) {
    (void)state;
    uint32_t retry_ms = 0;
    sheaf_quota *quota = make(10, 0, 0);
    for (int i = 0; i < 20; i++) assert_int_equal(ask(quota, "a", 5, second, &retry_ms), SHEAF_OK);
    assert_int_equal(ask(quota, "a", 5, second, &retry_ms), SHEAF_E_QUOTA);
    assert_int_equal(retry_ms, 100);
    assert_int_equal(ask(quota, "b", 5, second, &retry_ms), SHEAF_OK); /* another's bucket */
    assert_int_equal(ask(quota, "a", 5, second + 60000000, &retry_ms), SHEAF_E_QUOTA);
    assert_int_equal(retry_ms, 40);
    assert_int_equal(ask(quota, "a", 5, second + 100000000, &retry_ms), SHEAF_OK);
    assert_int_equal(ask(quota, "a", 5, second + 100000000, &retry_ms), SHEAF_E_QUOTA);
    for (int i = 0; i < 20; i++) assert_int_equal(ask(quota, "a", 5, 100 * second, &retry_ms), SHEAF_OK);
    assert_int_equal(ask(quota, "a", 5, 100 * second, &retry_ms), SHEAF_E_QUOTA); /* no more than two seconds' worth */
    sheaf_quota_free(quota);
}

static void bytes_beyond_the_rate_are_owed(void **state) {
    (void)state;
    uint32_t retry_ms = 0;
    sheaf_quota *quota = make(0, 1000, 0);
    assert_int_equal(ask(quota, "a", 5000, second, &retry_ms), SHEAF_OK); /* also one that is larger than the bucket */
    assert_int_equal(ask(quota, "a", 1, second, &retry_ms), SHEAF_E_QUOTA);
    assert_int_equal(retry_ms, 3001);
    assert_int_equal(ask(quota, "a", 1, 4 * second + 1000000, &retry_ms), SHEAF_OK);
    assert_int_equal(ask(quota, "a", 90000000, 9 * second, &retry_ms), SHEAF_OK);
    assert_int_equal(ask(quota, "a", 1, 9 * second, &retry_ms), SHEAF_E_QUOTA);
    assert_int_equal(retry_ms, 60000); /* never longer than a minute */
    sheaf_quota_free(quota);
}

static void bytes_in_flight_are_bounded_but_one_request_always_goes(void **state) {
    (void)state;
    uint32_t retry_ms = 0;
    sheaf_quota_charged first, second_one;
    sheaf_quota *quota = make(0, 0, 100);
    assert_int_equal(sheaf_quota_charge(quota, "acme", "a", 1000, second, &first, &retry_ms), SHEAF_OK);
    assert_int_equal(ask(quota, "a", 1, second, &retry_ms), SHEAF_E_QUOTA);
    assert_true(retry_ms > 0);
    assert_int_equal(ask(quota, "b", 1, second, &retry_ms), SHEAF_OK);
    sheaf_quota_give_back(&first);
    assert_int_equal(sheaf_quota_charge(quota, "acme", "a", 60, second, &first, &retry_ms), SHEAF_OK);
    assert_int_equal(sheaf_quota_charge(quota, "acme", "a", 40, second, &second_one, &retry_ms), SHEAF_OK);
    assert_int_equal(ask(quota, "a", 1, second, &retry_ms), SHEAF_E_QUOTA);
    sheaf_quota_give_back(&first);
    assert_int_equal(ask(quota, "a", 60, second, &retry_ms), SHEAF_OK);
    sheaf_quota_give_back(&second_one);
    sheaf_quota_free(quota);
}

static void any_number_of_devices_fits_and_the_busy_are_remembered(void **state) {
    (void)state;
    uint32_t retry_ms = 0;
    char name[32];
    sheaf_quota *quota = make(1, 0, 0);
    for (uint64_t i = 0; i < 100000; i++) {
        snprintf(name, sizeof name, "d%u", (unsigned)i);
        assert_int_equal(ask(quota, name, 1, second + i * 1000, &retry_ms), SHEAF_OK);
        sheaf_status status = ask(quota, "greedy", 1, second + i * 1000, &retry_ms);
        assert_int_equal(status, i < 2 ? SHEAF_OK : SHEAF_E_QUOTA); /* in 0.1 s it gets no third */
    }
    sheaf_quota_free(quota);
}

static void assert_waits(sheaf_quota *quota, uint64_t requests, uint64_t bytes, uint64_t in_flight) {
    uint64_t waits[SHEAF_QUOTA_KINDS];
    sheaf_quota_waits(quota, waits);
    assert_int_equal(waits[SHEAF_QUOTA_REQUESTS], requests);
    assert_int_equal(waits[SHEAF_QUOTA_BYTES], bytes);
    assert_int_equal(waits[SHEAF_QUOTA_IN_FLIGHT], in_flight);
}

static void waits_are_counted_under_what_they_are_for(void **state) {
    (void)state;
    uint32_t retry_ms = 0;
    sheaf_quota_charged open;
    sheaf_quota *quota = make(1, 1000, 100);
    assert_waits(quota, 0, 0, 0);
    assert_int_equal(sheaf_quota_charge(quota, "acme", "a", 90, second, &open, &retry_ms), SHEAF_OK);
    assert_int_equal(ask(quota, "a", 20, second, &retry_ms), SHEAF_E_QUOTA); /* 110 at a time */
    assert_waits(quota, 0, 0, 1);
    assert_int_equal(ask(quota, "a", 10, second, &retry_ms), SHEAF_OK); /* the second request of two */
    assert_int_equal(ask(quota, "a", 20, second, &retry_ms),
                     SHEAF_E_QUOTA); /* a second to the next, longer than 50 ms */
    assert_waits(quota, 1, 0, 1);
    sheaf_quota_give_back(&open);
    assert_int_equal(ask(quota, "b", 5000, second, &retry_ms), SHEAF_OK); /* 3,000 bytes owed, a request left */
    assert_int_equal(ask(quota, "b", 1, second, &retry_ms), SHEAF_E_QUOTA);
    assert_waits(quota, 1, 1, 1);
    sheaf_quota_free(quota);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_beyond_the_rate_wait_as_long_as_the_bucket_needs),
        cmocka_unit_test(bytes_beyond_the_rate_are_owed),
        cmocka_unit_test(bytes_in_flight_are_bounded_but_one_request_always_goes),
        cmocka_unit_test(waits_are_counted_under_what_they_are_for),
        cmocka_unit_test(any_number_of_devices_fits_and_the_busy_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
