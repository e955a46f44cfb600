/* session_test.h - what the tests of the core share: one world, and the sentences that they all say about it. */
#pragma once
#include "tests/cmocka.h"
#include "tests/kit/edge_world.h"

#define MANY 20000u

static edge_world world;

static inline int setup(void **state) {
    (void)state;
    edge_world_open(&world, 1);
    return edge_world_start(&world) == SHEAF_OK ? 0 : -1;
}
static inline int teardown(void **state) {
    (void)state;
    edge_world_close(&world);
    return 0;
}

static inline int told(sheaf_edge_event_kind kind, sheaf_status status) {
    unsigned from = world.event_count > EDGE_WORLD_EVENTS ? world.event_count - EDGE_WORLD_EVENTS : 0;
    for (unsigned i = from; i < world.event_count; i++) {
        if (world.events[i % EDGE_WORLD_EVENTS] == kind && world.statuses[i % EDGE_WORLD_EVENTS] == status) return 1;
    }
    return 0;
}

static inline void assert_goes_on(unsigned polls) {
    sheaf_status status = edge_world_run(&world, polls);
    assert_true(status == SHEAF_OK || status == SHEAF_AGAIN);
}

static inline void assert_counted_once(void) {
    assert_int_equal(edge_world_run(&world, MANY), SHEAF_ENDED);
    assert_int_equal(world.server.accepted, 1);
    assert_int_equal(world.server.conflicts, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
