/* edge_world.h - everything around a device's core, in memory and under a test's hand: storage that loses power at the
 * Nth call, a clock that only moves when told, a trainer whose result is known, and an aggregator that follows
 * proto/WIRE.md, with a hook that may lose, repeat or replace any reply.
 *
 * Owner:   the test; edge_world_close frees what grew.
 * Threads: one. Units: as in sheaf/edge.h.
 * Not:     cryptography. A "signature" here is SHA-256 over a key's letter, a counter and the message, the counter in
 *          front; so signing twice gives two signatures, as ECDSA does. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/bytes.h"
#include "proto/frame.h"
#include "proto/plan.h"
#include "proto/statement.h"
#include "sheaf/edge.h"

#define EDGE_WORLD_FRAME_BYTES SHEAF_EDGE_FRAME_BYTES(SHEAF_EDGE_CHUNK_BYTES_MIN)
#define EDGE_WORLD_EVENTS      64u

typedef struct edge_world edge_world;

typedef struct {
    uint8_t *content; /* what a reader sees */
    size_t size;
    int committed;
    uint8_t *draft;
    size_t draft_size;
} edge_world_slot;

typedef struct {
    edge_world_slot slots[SHEAF_EDGE_SLOTS];
    unsigned calls;   /* writes, commits, erases */
    unsigned fail_at; /* the power goes at this call (from 1; 0: never) ... */
    int after;        /* ... after it took effect, instead of before */
    int dead;
    sheaf_status refuse; /* not 0: every write fails so, the power stays */
} edge_world_storage;

/* Replaces or drops the aggregator's reply. Return 0 to lose it. */
typedef int (*edge_world_hook)(edge_world *world, const sheaf_v1_Request *request, sheaf_v1_Reply *reply,
                               sheaf_span *payload);

typedef struct {
    uint64_t round, last_round; /* the round that is open (0: none); the last of the job */
    uint32_t attempt;
    uint8_t nonce_letter;
    uint8_t *model;
    size_t model_bytes;
    sheaf_plan plan;
    uint32_t chunk_bytes;
    uint8_t *upload; /* of the round */
    size_t upload_size;
    sheaf_update_statement offered;
    uint8_t offered_digest[SHEAF_DIGEST_BYTES];
    int offer_known;
    unsigned accepted; /* updates counted */
    uint8_t accepted_payload[SHEAF_DIGEST_BYTES], accepted_update[SHEAF_DIGEST_BYTES];
    uint32_t accepted_attempt;
    int64_t accepted_weight;
    uint64_t accepted_round;
    unsigned requests[16]; /* seen, by tag */
    sheaf_v1_Offer last_offer;
    unsigned conflicts;
    uint64_t last_round_told;                              /* by the newest RoundQuery */
    void (*twist_round)(sheaf_round_statement *statement); /* before it is signed, by the right key */
    void (*twist_receipt)(sheaf_receipt_statement *statement);
    uint32_t max_permille;
    unsigned regressions; /* progress that did not grow */
} edge_world_server;

struct edge_world {
    sheaf_edge edge;
    sheaf_edge_options options;
    uint8_t frame[EDGE_WORLD_FRAME_BYTES];
    float work[SHEAF_EDGE_WORK_VALUES_MIN];

    uint64_t now_ms;
    uint32_t random;
    unsigned signatures;
    sheaf_status peer; /* what transport.peer says */
    uint8_t device_certificate;
    void *digest; /* sheaf_digest */

    uint8_t *reply; /* waits to be received */
    size_t reply_size;
    int waiting;          /* a request is on its way without a reply */
    sheaf_status receive; /* not 0: the next receive says so */
    edge_world_storage storage;
    edge_world_server server;
    edge_world_hook hook;
    unsigned hook_count;

    float *values; /* the trainer's */
    size_t value_count;
    unsigned slices, slice_count, trainings, cancels;
    int64_t examples;
    float poison; /* replaces the first value when not 0 */
    sheaf_status train_result;
    uint8_t seed[32];

    sheaf_edge_event_kind events[EDGE_WORLD_EVENTS]; /* the newest ones, in a ring */
    sheaf_status statuses[EDGE_WORLD_EVENTS];
    unsigned event_count;
    unsigned of_kind[16];
};

/* A job of `rounds` rounds with a model of two tensors; the device is "device-01" of acme/digits. */
void edge_world_open(edge_world *world, uint64_t rounds);
void edge_world_close(edge_world *world);
/* Powers the device on: a fresh core over the storage as it is. */
sheaf_status edge_world_start(edge_world *world);
/* Polls and moves the clock until the core ends or stops, the power is lost, or `polls` are used up. */
sheaf_status edge_world_run(edge_world *world, unsigned polls);
/* Until the core is in `state` (1), or something else ended it (0). */
int edge_world_run_to(edge_world *world, sheaf_edge_state state);
/* Gives the power back; what was not committed is garbage, as the storage's contract allows. */
void edge_world_power_on(edge_world *world);
/* What the trainer makes of base value `index` under `seed`. */
float edge_world_trained(float before, size_t index, const uint8_t seed[32]);
