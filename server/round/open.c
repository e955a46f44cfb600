/* open.c - the next round or attempt is written down and signed, or the job ends; see state.h. */
#include <inttypes.h>
#include <math.h>
#include <openssl/rand.h>
#include <stdio.h>

#include "common/log.h"
#include "server/round/state.h"

void sheaf_round_set_plan(sheaf_round *round, sheaf_plan plan) {
    round->plan = plan;
    round->payload_bytes = sheaf_aggregator_payload_bytes(round->aggregator, plan.encoding);
}

/* Statement and signature of the row by the credentials in force. */
static sheaf_status sign_row(sheaf_round *round, sheaf_round_row *row) {
    sheaf_credentials_pair own;
    sheaf_buffer bytes = {row->statement_bytes, 0, sizeof row->statement_bytes},
                 signature = {row->signature, 0, sizeof row->signature};
    sheaf_credentials_take(round->parts.credentials, &own);
    memcpy(row->statement.certificate, sheaf_certificate_fingerprint(own.certificate), SHEAF_DIGEST_BYTES);
    sheaf_status status = sheaf_round_statement_encode(&row->statement, &bytes);
    if (status == SHEAF_OK) status = sheaf_signer_sign(own.signer, sheaf_buffer_span(&bytes), &signature);
    sheaf_credentials_pair_fini(&own);
    row->statement_size = bytes.size;
    row->signature_size = signature.size;
    return status;
}

static sheaf_status write_round_statement(sheaf_round *round, uint64_t number, uint32_t attempt, sheaf_round_row *row) {
    const sheafd_job_config *config = round->parts.config;
    sheaf_round_statement *statement = &row->statement;
    sheaf_version *base = sheaf_shelf_take(round->parts.shelf);
    *row = (sheaf_round_row){.round = number, .attempt = attempt, .training_loss = (double)NAN};
    *statement = (sheaf_round_statement){.round = number,
                                         .attempt = attempt,
                                         .base_model_bytes = base->model.stream_bytes,
                                         .opened_unix_ms = sheaf_now_unix_ms()};
    (void)snprintf(statement->tenant, sizeof statement->tenant, "%s", config->tenant);
    (void)snprintf(statement->job, sizeof statement->job, "%s", config->name);
    memcpy(statement->base_model, base->digest, SHEAF_DIGEST_BYTES);
    sheaf_shelf_drop(round->parts.shelf, base);
    if (RAND_bytes(statement->nonce, sizeof statement->nonce) != 1) return SHEAF_E_CRYPTO;
    sheaf_buffer plan = {row->plan, 0, sizeof row->plan};
    sheaf_status status = sheaf_plan_encode(&round->plan, &plan);
    row->plan_size = plan.size;
    if (status == SHEAF_OK) status = sheaf_digest_of(sheaf_buffer_span(&plan), statement->plan_digest);
    return status == SHEAF_OK ? sign_row(round, row) : status;
}

static int is_signed_by_now(const sheaf_round *round) {
    sheaf_credentials_pair own;
    sheaf_credentials_take(round->parts.credentials, &own);
    int same = memcmp(round->row.statement.certificate, sheaf_certificate_fingerprint(own.certificate),
                      SHEAF_DIGEST_BYTES) == 0;
    sheaf_credentials_pair_fini(&own);
    return same;
}

sheaf_status sheaf_round_sign_again(sheaf_round *round) {
    uint64_t generation = sheaf_credentials_generation(round->parts.credentials);
    sheaf_problem problem = {SHEAF_OK, "cannot sign the round"};
    if (round->signed_generation == generation || round->state != COLLECTING) return SHEAF_OK;
    if (!is_signed_by_now(round)) {
        sheaf_round_row row = round->row;
        sheaf_status status = sign_row(round, &row);
        if (status == SHEAF_OK)
            status = sheaf_database_round_sign(round->parts.database, round->job_id, &row, &problem);
        if (status != SHEAF_OK) {
            sheaf_log(SHEAF_LOG_ERROR, "sign_failed", "job=%s round=%" PRIu64 " status=%s reason=\"%s\"",
                      round->parts.config->name, row.round, sheaf_status_name(status), problem.text);
            return status;
        }
        round->row = row;
        sheaf_log(SHEAF_LOG_INFO, "round_signed_again", "job=%s round=%" PRIu64 " attempt=%u",
                  round->parts.config->name, row.round, row.attempt);
    }
    round->signed_generation = generation;
    return SHEAF_OK;
}

/* Writes the new attempt down before any device can hear of it. */
static sheaf_status open_row(sheaf_round *round, uint64_t number, uint32_t attempt) {
    sheaf_round_row row;
    sheaf_problem problem = {SHEAF_OK, "cannot sign the round"};
    sheaf_status status = write_round_statement(round, number, attempt, &row);
    if (status == SHEAF_OK) status = sheaf_spool_begin(round->parts.spool, number, &problem);
    if (status == SHEAF_OK) status = sheaf_database_round_open(round->parts.database, round->job_id, &row, &problem);
    if (status != SHEAF_OK) {
        sheaf_log(SHEAF_LOG_ERROR, "open_failed", "job=%s round=%" PRIu64 " status=%s reason=\"%s\"",
                  round->parts.config->name, number, sheaf_status_name(status), problem.text);
        return status;
    }
    if (attempt > 1) { /* what was accepted stays counted */
        row.accepted = round->row.accepted;
        row.upload_bytes = round->row.upload_bytes;
        row.weight = round->row.weight;
    }
    round->row = row;
    round->joined_ns = SHEAF_NEVER_NS;
    sheaf_log(SHEAF_LOG_INFO, "round_opened", "job=%s round=%" PRIu64 " attempt=%u", round->parts.config->name, number,
              attempt);
    return SHEAF_OK;
}

static void forget_counts(sheaf_round *round) {
    sheaf_aggregator_reset(round->aggregator);
    sheaf_cohort_clear(round->cohort);
    sheaf_uploads_clear(round->parts.uploads);
    round->accepted = 0;
    round->loss_sum = round->loss_weight = 0;
}

sheaf_status sheaf_round_open_next(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    sheaf_round_set_plan(round, sheafd_job_plan(round->parts.config));
    sheaf_status status = open_row(round, round->row.round + 1, 1);
    if (status == SHEAF_OK) forget_counts(round);
    return status;
}

sheaf_status sheaf_round_open_again(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    sheaf_status status = open_row(round, round->row.round, round->row.attempt + 1);
    if (status != SHEAF_OK) return status;
    sheaf_cohort_keep_accepted(round->cohort);
    if (round->accepted > 0) { /* its devices wait: patience runs from now */
        sheaf_round_note_move(round);
        round->joined_ns = sheaf_now_ns();
    }
    return status;
}

sheaf_status sheaf_round_end_job_as(sheaf_round *round, sheaf_status why) {
    sheaf_problem problem;
    sheaf_status status = sheaf_database_job_end(round->parts.database, round->job_id, why, &problem);
    if (status != SHEAF_OK) {
        sheaf_log(SHEAF_LOG_ERROR, "commit_failed", "reason=\"%s\"", problem.text);
        return status;
    }
    round->ended = why;
    sheaf_log(SHEAF_LOG_INFO, "job_ended", "job=%s status=%s rounds=%" PRIu64, round->parts.config->name,
              sheaf_status_name(why), why == SHEAF_OK ? round->row.round : round->row.round - 1);
    return SHEAF_OK;
}

sheaf_status sheaf_round_end_job(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    return sheaf_round_end_job_as(round, SHEAF_OK);
}

sheaf_status sheaf_round_give_up(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    return sheaf_round_end_job_as(round, round->row.reason);
}
