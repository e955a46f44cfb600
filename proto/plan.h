/* plan.h - what a client is told to do in a round, as canonical bytes whose digest is signed.
 *
 * Owner:   the caller; a plan holds no pointer.
 * Threads: any; no state.
 * Units:   times in seconds, sizes in bytes, learning rate and momentum as IEEE float32 bit patterns on the wire.
 * Errors:  SHEAF_E_MALFORMED (out of range, trailing bytes), SHEAF_E_TRUNCATED, SHEAF_E_VERSION.
 * Layout:  name "sheaf plan v1", then the fields below in order, little-endian, the encoding as a name. */
#pragma once
#include "common/bytes.h"
#include "common/status.h"
#include "proto/statement.h"

#define SHEAF_PLAN_BYTES_MAX 256u

typedef struct {
    uint32_t epochs;     /* passes over the local examples; 1..10000 */
    uint32_t batch;      /* examples per step; 1..1000000 */
    float learning_rate; /* finite, > 0 */
    float momentum;      /* 0 <= momentum < 1 */
    uint64_t seed;       /* of the job; each device derives its own from it, see sheaf_plan_training_seed */
    int64_t weight_cap;  /* largest contribution weight; >= 1 */
    uint32_t progress_s; /* a device that shows no progress for so long no longer holds the round up; >= 1 */
    char encoding[SHEAF_PAYLOAD_TYPE_BYTES]; /* payload type of the update */
} sheaf_plan;

SHEAF_MUST_USE sheaf_status sheaf_plan_encode(const sheaf_plan *plan, sheaf_buffer *out);
/* Also checks every range above. */
SHEAF_MUST_USE sheaf_status sheaf_plan_decode(sheaf_span bytes, sheaf_plan *out);
SHEAF_MUST_USE sheaf_status sheaf_plan_validate(const sheaf_plan *plan);

/* The bytes whose SHA-256 seeds a device's training: name "sheaf training seed v1", u64 seed, names tenant, job,
 * u64 round, name client. The attempt is left out on purpose: a round that opens again gets the same update. */
SHEAF_MUST_USE sheaf_status sheaf_plan_training_seed(const sheaf_plan *plan, const char *tenant, const char *job,
                                                     uint64_t round, const char *client, sheaf_buffer *out);
