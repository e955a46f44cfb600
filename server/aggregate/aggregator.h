/* aggregator.h - the exact weighted sum of a round's updates, and the model that follows from it.
 *
 * Owner:   the job owns one aggregator and resets it for each round; memory (8 bytes a value) is taken at open.
 * Threads: validate: any, at any time. add: several at once, not during reset/apply. reset, apply: the round's thread,
 *          while no add runs.
 * Units:   lattice integers (common/lattice.h); payloads as in proto/WIRE.md "Payload types".
 * Errors:  SHEAF_E_OVERFLOW (open: cohort_max * weight_max * |q|max does not stay below 2^63), SHEAF_E_ENCODING,
 *          SHEAF_E_SHAPE (payload size), SHEAF_E_NOT_FINITE, SHEAF_E_RANGE, SHEAF_E_NOT_REPRESENTABLE,
 * SHEAF_E_NO_WEIGHT. Not:     it knows no client, signature or file. */
#pragma once
#include "common/model.h"
#include "server/aggregate/backend.h"

typedef struct sheaf_aggregator sheaf_aggregator;

typedef struct {
    const sheaf_model *shape;     /* all tensors F32; borrowed for the call */
    const int *fraction_bits;     /* one per tensor, in the model's order; -125..126 */
    uint64_t cohort_max;          /* updates in one round */
    int64_t weight_max;           /* of one update */
    const sheaf_backend *backend; /* NULL: the best of this machine (today: scalar) */
} sheaf_aggregator_options;

SHEAF_MUST_USE sheaf_status sheaf_aggregator_open(const sheaf_aggregator_options *options, sheaf_aggregator **out,
                                                  sheaf_problem *problem);
void sheaf_aggregator_close(sheaf_aggregator *aggregator); /* NULL is fine */

/* Bytes that a payload of this type has for this shape, 0 when the type is unknown. */
uint64_t sheaf_aggregator_payload_bytes(const sheaf_aggregator *aggregator, const char *payload_type);
/* Whether every value of the payload decodes; nothing is added. A pure function of its arguments. */
SHEAF_MUST_USE sheaf_status sheaf_aggregator_validate(const sheaf_aggregator *aggregator, const char *payload_type,
                                                      sheaf_span payload, sheaf_problem *problem);
/* accumulator += weight * q for every value. The payload must have passed validate: one that does not decode stops the
 * program. Nothing is added on SHEAF_E_ENCODING, SHEAF_E_SHAPE, a weight outside 1..weight_max (SHEAF_E_WEIGHT_...), or
 * more than cohort_max updates (SHEAF_E_COHORT_FULL). */
SHEAF_MUST_USE sheaf_status sheaf_aggregator_add(sheaf_aggregator *aggregator, const char *payload_type,
                                                 sheaf_span payload, int64_t weight);
/* Sums and weight back to zero. */
void sheaf_aggregator_reset(sheaf_aggregator *aggregator);
/* Sum of the weights that were added. Any thread, at any time. */
uint64_t sheaf_aggregator_weight(const sheaf_aggregator *aggregator);
/* next = base + lattice_mean(sum), value by value; `next` is already a model of the same shape. On failure `next` must
 * not be used. */
SHEAF_MUST_USE sheaf_status sheaf_aggregator_apply(const sheaf_aggregator *aggregator, const sheaf_model *base,
                                                   sheaf_model *next, sheaf_problem *problem);
