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
#define EDGE_WORLD_REPLIES     80u

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
    int roomy;           /* two copies: content stays readable beside the draft, and a draft survives; set by
                            edge_world_give_room */
} edge_world_storage;

/* Replaces or drops the aggregator's reply. Return 0 to lose it. */
typedef int (*edge_world_hook)(edge_world *world, const sheaf_v1_Request *request, sheaf_v1_Reply *reply,
                               sheaf_span *payload);

typedef struct edge_world_server {
    uint64_t round, last_round; /* the round that is open (0: none); the last of the job */
    uint32_t attempt;
    uint8_t nonce_letter;
    uint8_t *model;
    size_t model_bytes;
    sheaf_plan plan;
    uint32_t chunk_bytes;
    uint8_t *old_model; /* the version before, whose tensors need not be sent again; NULL: none */
    uint8_t *upload;    /* of the round */
    size_t upload_size;
    size_t chunk_size; /* of the grid: that of the first chunk after an offer */
    uint64_t held;     /* as in Upload */
    unsigned passed_over, off_grid, wrong_digests,
        chunks_again; /* chunks too far ahead, not on it, damaged, held already */
    int casts;        /* answers can_join with ModelCast */
    int joined;       /* the device takes what is cast */
    size_t cast_at;   /* of the next frame */
    unsigned joins, leaves, cast_frames;
    int (*cast_hook)(edge_world *world, sheaf_v1_Reply *reply, sheaf_span *payload); /* 0: this frame is lost */
    uint64_t model_bytes_sent, same_bytes;
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
    uint64_t line_until_ms; /* bytes move on the line until then, whatever arrives */
    uint32_t random;
    unsigned signatures;
    sheaf_status peer; /* what transport.peer says */
    uint8_t device_certificate;
    void *digest; /* sheaf_digest */

    struct {
        uint8_t *frame;
        size_t size;
    } replies[EDGE_WORLD_REPLIES]; /* a ring */
    unsigned reply_first, reply_count;
    unsigned waiting; /* requests on their way without a reply */
    unsigned waiting_most;
    int (*lose)(edge_world *world, const sheaf_v1_Request *request); /* not 0: this request never arrives */
    int repeats;                                                     /* every reply comes twice */
    sheaf_status receive;                                            /* not 0: the next receive says so */
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

    uint64_t newest_bytes[16];                       /* of each kind of event */
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
/* Two copies of the model, as on a file system: call before edge_world_start. */
void edge_world_give_room(edge_world *world);
/* For the world's own use. */
sheaf_edge_storage edge_world_storage_of(edge_world *world);
/* Instead of all replies that wait. */
void edge_world_replace_replies(edge_world *world, const uint8_t *frame, size_t size);
/* Polls and moves the clock until the core ends or stops, the power is lost, or `polls` are used up. */
sheaf_status edge_world_run(edge_world *world, unsigned polls);
/* Until the core is in `state` (1), or something else ended it (0). */
int edge_world_run_to(edge_world *world, sheaf_edge_state state);
/* Gives the power back; what was not committed is garbage, as the storage's contract allows. */
void edge_world_power_on(edge_world *world);
/* What the trainer makes of base value `index` under `seed`. */
float edge_world_trained(float before, size_t index, const uint8_t seed[32]);
