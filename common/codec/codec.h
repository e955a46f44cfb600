/* codec.h - how the values of an update stand in its payload: one ops table an encoding (WIRE.md "Payload types").
 *
 * A payload is the tensors' parts one after the other, in the model's order, without padding. Each part can be read
 * from any value on, so that threads may share one payload.
 *
 * Owner:   tables are constant; spans are borrowed for the call.
 * Threads: any; no state.
 * Units:   bytes, values, lattice integers (lattice.h).
 * Errors:  per function, below. SHEAF_E_NOT_FINITE, SHEAF_E_RANGE are the payload's; nothing else can be wrong in it,
 *          since its size was checked first.
 * Not:     it neither allocates nor prints; the device core uses it too. */
#pragma once
#include "common/bytes.h"
#include "common/status.h"

typedef struct {
    const char *name; /* payload type, as plans and statements spell it */

    /* Bytes that a tensor of `elements` values takes; elements < 2^60. */
    uint64_t (*part_bytes)(uint64_t elements);

    /* q[0..count) = the values from `first` on of a tensor's part, on the lattice of `fraction_bits`. On failure *wrong
     * is the index of the first bad value, counted from `first`, and q is unspecified. `part` has exactly part_bytes of
     * the tensor, first + count <= elements. */
    sheaf_status (*decode)(sheaf_span part, uint64_t first, size_t count, int fraction_bits, int32_t *q, size_t *wrong);

    /* Writes `count` consecutive values from `first` on into the part (part_bytes of the tensor, writable).
     * SHEAF_E_NOT_FINITE: *wrong is the first value that cannot be sent. */
    sheaf_status (*encode)(const float *values, uint64_t first, size_t count, uint8_t *part, size_t *wrong);
} sheaf_codec;

extern const sheaf_codec sheaf_codec_f32; /* IEEE binary32, little-endian, as they are */

/* The codec of a payload type, or NULL. */
const sheaf_codec *sheaf_codec_find(const char *payload_type);
