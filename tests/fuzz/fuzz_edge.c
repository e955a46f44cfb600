/* A reply frame from anywhere, given to the device's core in each of its states: it must neither fall over nor lose its
 * way, and an honest aggregator afterwards must still bring the round to its end, with the update counted once.
 *
 * The first byte says in which state the frame comes (JOINING to FINISHING); the rest is the frame, as a carrier hands
 * it out. Signatures are those of the kit's keyed digest, so that a frame of the corpus can be genuine in part. */
#include <assert.h>
#include <string.h>

#include "tests/kit/edge_world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define POLLS 30000u /* an aggregator may have asked for chunks of one byte */

/* Until a request is on its way, whose reply the frame replaces. */
static int reach(edge_world *world, sheaf_edge_state state) {
    if (!edge_world_run_to(world, state)) return 0;
    for (unsigned i = 0; i < 50 && !world->waiting; i++) {
        if (edge_world_run(world, 1) == SHEAF_ENDED) return 0;
    }
    return world->waiting > 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static edge_world world;
    if (size < 2) return 0;
    edge_world_open(&world, 1);
    sheaf_status status = edge_world_start(&world);
    assert(status == SHEAF_OK);
    if (reach(&world, (sheaf_edge_state)(data[0] % (SHEAF_EDGE_FINISHING + 1)))) {
        edge_world_replace_replies(&world, data + 1, size - 1);
        (void)edge_world_run(&world, 2);
    }
    /* An unsigned word of the aggregator may end the job, and its signed receipt for this very update (one of the
     * seeds) is believed; after all else the round still comes to its end. Another attempt opens, because a refusal is
     * the end of one. */
    int believed = world.of_kind[SHEAF_EDGE_RECEIPT] > 0 && world.server.accepted == 0;
    if (sheaf_edge_state_of(&world.edge) != SHEAF_EDGE_ENDED && !believed) {
        if (world.server.accepted == 0) world.server.attempt = 2;
        status = edge_world_run(&world, POLLS);
        assert(status == SHEAF_ENDED);
        assert(world.server.accepted == 1 && world.server.conflicts == 0);
    }
    edge_world_close(&world);
    return 0;
}
