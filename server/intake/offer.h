/* offer.h - the checks on an update's signed statement, in the order of proto/WIRE.md.
 *
 * Threads: any; pure functions of their arguments.
 * Errors:  each returned status is the refusal's name.
 * Not:     it knows no state: who is in the cohort and what is already counted, the round asks itself. */
#pragma once
#include "common/certificate.h"
#include "proto/frame.h"
#include "proto/plan.h"
#include "proto/statement.h"

/* Who speaks: the request's tenant and client against the verified certificate, whose role must be device. */
SHEAF_MUST_USE sheaf_status sheaf_identity_check(const sheaf_certificate *peer, const char *tenant, const char *client);

/* Decodes and verifies: form, identity, certificate digest, signature over the bytes received, tenant and job. */
SHEAF_MUST_USE sheaf_status sheaf_offer_verify(const sheaf_certificate *peer, const char *tenant, const char *job,
                                               sheaf_span statement, sheaf_span signature, sheaf_update_statement *out);

/* What the open round wants. */
typedef struct {
    const sheaf_round_statement *round; /* borrowed */
    const sheaf_plan *plan;             /* borrowed */
    uint64_t payload_bytes;             /* that the plan's encoding makes of the job's shape */
} sheaf_offer_terms;

/* Whether a verified statement is for this round and within its terms. */
SHEAF_MUST_USE sheaf_status sheaf_offer_judge(const sheaf_update_statement *statement, const sheaf_offer_terms *terms);
