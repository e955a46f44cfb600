/* Every backend of this build passes the suite; backends that sum in floating point do not. */
#include "tests/cmocka.h"

#include "tests/unit/server/aggregate/backend_suite.h"
#include "tests/unit/server/aggregate/float_mutant.h"

static void passes_the_suite(void **state) {
    const sheaf_backend *backend = *state;
    const char *broken = suite_run(backend);
    if (broken != NULL) fail_msg("backend %s: does not hold: %s", backend->name, broken);
}

static void is_caught_by_the_suite(void **state) {
    const sheaf_backend *backend = *state;
    suite_sample sample;
    assert_non_null(suite_run(backend));
    suite_make(&sample);
    assert_false(suite_any_order_gives_the_expected_sums(backend, &sample));
    assert_false(suite_orders_agree(backend, &sample)); /* and not only because it rounds: the order shows */
    suite_drop(&sample);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"scalar passes the suite", passes_the_suite, NULL, NULL, (void *)(uintptr_t)&sheaf_backend_scalar},
        {"a mutant that sums in float is caught", is_caught_by_the_suite, NULL, NULL,
         (void *)(uintptr_t)&float_mutant_backend},
        {"a mutant that sums in double is caught", is_caught_by_the_suite, NULL, NULL,
         (void *)(uintptr_t)&double_mutant_backend},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
