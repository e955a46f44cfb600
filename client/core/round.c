/* What the aggregator says about a round is believed only after its signature over the bytes received, the digest of
 * the certificate that signed, and the digest of the plan. */
#include "client/core/session.h"

static sheaf_status check_plan(const sheaf_session *s, const sheaf_round_statement *round, sheaf_span bytes,
                               sheaf_plan *plan) {
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sheaf_status status = sheaf_session_digest(s, bytes, digest);
    if (status != SHEAF_OK) return status;
    if (memcmp(digest, round->plan_digest, sizeof digest) != 0) return SHEAF_E_DIGEST;
    status = sheaf_plan_decode(bytes, plan);
    if (status != SHEAF_OK) return status;
    return strcmp(plan->encoding, "f32") == 0 ? SHEAF_OK : SHEAF_E_ENCODING;
}

static sheaf_status check_statement(const sheaf_session *s, const sheaf_round_statement *round) {
    uint8_t peer[SHEAF_DIGEST_BYTES];
    sheaf_status status = s->port.transport.peer(peer, s->port.transport.context);
    if (status != SHEAF_OK) return status;
    if (memcmp(peer, round->certificate, sizeof peer) != 0) return SHEAF_E_CERTIFICATE;
    if (strcmp(round->tenant, s->port.tenant) != 0 || strcmp(round->job, s->port.job) != 0) return SHEAF_E_JOB;
    return round->round > 0 && round->base_model_bytes > 0 ? SHEAF_OK : SHEAF_E_MALFORMED;
}

static sheaf_status derive_seed(const sheaf_session *s, const sheaf_plan *plan, uint64_t round,
                                uint8_t seed[SHEAF_DIGEST_BYTES]) {
    uint8_t bytes[SHEAF_PLAN_BYTES_MAX];
    sheaf_buffer out = {bytes, 0, sizeof bytes};
    sheaf_status status = sheaf_plan_training_seed(plan, s->port.tenant, s->port.job, round, s->port.client, &out);
    return status != SHEAF_OK ? status : sheaf_session_digest(s, sheaf_buffer_span(&out), seed);
}

/* Tells the round once, however often it is asked for. */
static void announce(sheaf_session *s, int news) {
    if (!news) return;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_ROUND_OPENED, SHEAF_OK);
    event.digest = s->round.base_model;
    event.bytes = s->round.base_model_bytes;
    sheaf_session_tell(s, &event);
}

sheaf_status sheaf_session_accept_round(sheaf_session *s) {
    const sheaf_v1_RoundOpen *open = &s->message.reply.body.round;
    sheaf_round_statement round;
    sheaf_plan plan;
    uint8_t seed[SHEAF_DIGEST_BYTES];
    sheaf_span statement = sheaf_span_of(open->statement.bytes, open->statement.size);
    sheaf_status status = s->port.signer.verify_peer(statement.data, statement.size, open->signature.bytes,
                                                     open->signature.size, s->port.signer.context);
    if (status == SHEAF_OK) status = sheaf_round_statement_decode(statement, &round);
    if (status == SHEAF_OK) status = check_statement(s, &round);
    if (status == SHEAF_OK) status = check_plan(s, &round, sheaf_span_of(open->plan.bytes, open->plan.size), &plan);
    if (status == SHEAF_OK) status = derive_seed(s, &plan, round.round, seed);
    if (status != SHEAF_OK) return status;
    int news = !s->round_known || s->round.round != round.round || s->round.attempt != round.attempt;
    s->round = round;
    s->plan = plan;
    memcpy(s->seed, seed, sizeof seed);
    s->round_known = 1;
    announce(s, news);
    return SHEAF_OK;
}
