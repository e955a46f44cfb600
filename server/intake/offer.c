#include "server/intake/offer.h"

sheaf_status sheaf_identity_check(const sheaf_certificate *peer, const char *tenant, const char *client) {
    const sheaf_identity *identity = sheaf_certificate_identity(peer);
    if (identity->role != SHEAF_ROLE_DEVICE) return SHEAF_E_ROLE;
    if (strcmp(identity->tenant, tenant) != 0 || strcmp(identity->name, client) != 0) return SHEAF_E_IDENTITY;
    return SHEAF_OK;
}

sheaf_status sheaf_offer_verify(const sheaf_certificate *peer, const char *tenant, const char *job,
                                sheaf_span statement, sheaf_span signature, sheaf_update_statement *out) {
    sheaf_status status = sheaf_update_statement_decode(statement, out);
    if (status != SHEAF_OK) return status;
    status = sheaf_identity_check(peer, out->tenant, out->client);
    if (status != SHEAF_OK) return status;
    if (memcmp(out->certificate, sheaf_certificate_fingerprint(peer), SHEAF_DIGEST_BYTES) != 0) return SHEAF_E_IDENTITY;
    status = sheaf_certificate_verify(peer, statement, signature);
    if (status != SHEAF_OK) return status;
    return strcmp(out->tenant, tenant) == 0 && strcmp(out->job, job) == 0 ? SHEAF_OK : SHEAF_E_JOB;
}

static int same(const uint8_t *a, const uint8_t *b) { return memcmp(a, b, SHEAF_DIGEST_BYTES) == 0; }

sheaf_status sheaf_offer_judge(const sheaf_update_statement *statement, const sheaf_offer_terms *terms) {
    const sheaf_round_statement *round = terms->round;
    if (statement->round < round->round) return SHEAF_E_LATE;
    if (statement->round > round->round) return SHEAF_E_ROUND;
    if (statement->attempt < round->attempt) return SHEAF_E_LATE;
    if (statement->attempt > round->attempt) return SHEAF_E_ROUND;
    if (!same(statement->nonce, round->nonce)) return SHEAF_E_NONCE;
    if (!same(statement->base_model, round->base_model)) return SHEAF_E_BASE_MODEL;
    if (!same(statement->plan_digest, round->plan_digest)) return SHEAF_E_PLAN;
    if (strcmp(statement->payload_type, terms->plan->encoding) != 0) return SHEAF_E_ENCODING;
    if (statement->weight < 0) return SHEAF_E_WEIGHT_NEGATIVE;
    if (statement->weight == 0) return SHEAF_E_WEIGHT_ZERO;
    if (statement->weight > terms->plan->weight_cap) return SHEAF_E_WEIGHT_CAP;
    if (statement->payload_bytes != terms->payload_bytes) return SHEAF_E_SHAPE;
    return SHEAF_OK;
}
