/* release.c - the sum becomes the next model, or the attempt fails; see state.h. */
#include <inttypes.h>
#include <math.h>

#include "common/log.h"
#include "server/round/state.h"
#include "server/store/checkpoint.h"

sheaf_status sheaf_round_begin_reduce(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    sheaf_uploads_clear(round->parts.uploads);
    return SHEAF_OK;
}

static void close_row(sheaf_round *round, sheaf_round_outcome outcome, sheaf_status reason) {
    round->row.outcome = outcome;
    round->row.reason = reason;
    round->row.refused = sheaf_refusals_total(round->parts.refusals);
    round->row.training_loss = round->loss_weight > 0 ? round->loss_sum / round->loss_weight : (double)NAN;
    round->row.closed_unix_ms = sheaf_now_unix_ms();
}

/* The round's row and its refusals in one transaction, with the job's end unless that is SHEAF_AGAIN; for a
 * sheaf_round_release this is the commit point. */
static sheaf_status commit_close(sheaf_round *round, sheaf_status job_ends, sheaf_problem *problem) {
    sheaf_database *database = round->parts.database;
    sheaf_refusals_written written;
    sheaf_status status = sheaf_database_begin(database, problem);
    if (status != SHEAF_OK) return status;
    status = sheaf_database_round_close(database, round->job_id, &round->row, problem);
    if (status == SHEAF_OK)
        status =
            sheaf_refusals_write(round->parts.refusals, database, round->job_id, round->row.round, &written, problem);
    if (status == SHEAF_OK && job_ends != SHEAF_AGAIN)
        status = sheaf_database_job_end(database, round->job_id, job_ends, problem);
    if (status == SHEAF_OK)
        status = sheaf_database_commit(database, problem);
    else
        sheaf_database_rollback(database);
    if (status == SHEAF_OK) sheaf_refusals_forget(round->parts.refusals, &written);
    return status;
}

static sheaf_status fail_attempt(sheaf_round *round, sheaf_status reason, sheaf_status job_ends,
                                 sheaf_problem *problem) {
    close_row(round, SHEAF_ROUND_FAILED, reason);
    sheaf_status status = commit_close(round, job_ends, problem);
    if (status != SHEAF_OK) {
        sheaf_log(SHEAF_LOG_ERROR, "commit_failed", "round=%" PRIu64 " reason=\"%s\"", round->row.round, problem->text);
        return status;
    }
    round->failed_total++;
    sheaf_log(SHEAF_LOG_WARNING, "round_failed",
              "job=%s round=%" PRIu64 " attempt=%u reason=%s accepted=%" PRIu64 " refused=%" PRIu64,
              round->parts.config->name, round->row.round, round->row.attempt, sheaf_status_name(reason),
              round->row.accepted, round->row.refused);
    return SHEAF_OK;
}

sheaf_status sheaf_round_fail_attempt_as(sheaf_round *round, sheaf_status reason) {
    sheaf_problem problem;
    return fail_attempt(round, reason, SHEAF_AGAIN, &problem);
}

sheaf_status sheaf_round_fail_job_as(sheaf_round *round, sheaf_status reason, sheaf_problem *problem) {
    return fail_attempt(round, reason, reason, problem);
}

sheaf_status sheaf_round_fail_attempt(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    return sheaf_round_fail_attempt_as(round, round->accepted == 0 ? SHEAF_E_NO_WEIGHT : SHEAF_E_NO_QUORUM);
}

/* Forgets what retention no longer wants. Failures are only logged: nothing depends on it. */
static void prune(sheaf_round *round) {
    const sheafd_job_config *config = round->parts.config;
    sheaf_problem problem;
    uint64_t now = round->row.round, rounds = config->retain.payload_rounds;
    if (sheaf_spool_forget_parts(round->parts.spool, now, &problem) != SHEAF_OK)
        sheaf_log(SHEAF_LOG_WARNING, "prune_failed", "reason=\"%s\"", problem.text);
    if (now > rounds && sheaf_spool_prune(round->parts.spool, now - rounds + 1, &problem) != SHEAF_OK)
        sheaf_log(SHEAF_LOG_WARNING, "prune_failed", "reason=\"%s\"", problem.text);
    if (config->retain.models == 0 || now <= config->retain.models) return;
    sheaf_round_row old, kept;
    if (sheaf_database_round_released(round->parts.database, round->job_id, now - config->retain.models, &old,
                                      &problem) != SHEAF_OK)
        return;
    for (uint64_t r = now - config->retain.models + 1; r <= now; r++) { /* two rounds may have the same model */
        if (sheaf_database_round_released(round->parts.database, round->job_id, r, &kept, &problem) != SHEAF_OK) return;
        if (memcmp(kept.model, old.model, SHEAF_DIGEST_BYTES) == 0) return;
    }
    if (sheaf_checkpoint_remove(round->parts.folder, old.model, &problem) != SHEAF_OK)
        sheaf_log(SHEAF_LOG_WARNING, "prune_failed", "reason=\"%s\"", problem.text);
}

/* reduce -> optimizer: the next version, complete in memory. */
static sheaf_status make_next(sheaf_round *round, const sheaf_version *base, sheaf_version **next,
                              sheaf_problem *problem) {
    sheaf_model model = {0};
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sheaf_status status = sheaf_model_copy(&base->model, &model);
    if (status == SHEAF_OK) status = sheaf_aggregator_apply(round->aggregator, &base->model, &model, problem);
    if (status == SHEAF_OK) status = sheaf_model_digest(&model, digest);
    if (status == SHEAF_OK) status = sheaf_version_make(&model, digest, base, next);
    sheaf_model_free(&model);
    return status;
}

/* checkpoint -> commit point -> broadcast */
static sheaf_status release_model(sheaf_round *round, const sheaf_version *base, sheaf_problem *problem) {
    const sheafd_job_config *config = round->parts.config;
    sheaf_version *next = NULL;
    sheaf_status status = make_next(round, base, &next, problem);
    if (status != SHEAF_OK) return status;
    memcpy(round->row.model, next->digest, SHEAF_DIGEST_BYTES);
    close_row(round, SHEAF_ROUND_RELEASED, SHEAF_OK);
    status = sheaf_checkpoint_save(round->parts.folder, &next->model, next->digest, config->tenant, config->name,
                                   round->row.round, problem);
    if (status == SHEAF_OK) status = commit_close(round, SHEAF_AGAIN, problem);
    if (status == SHEAF_OK)
        sheaf_shelf_put(round->parts.shelf, next);
    else
        sheaf_shelf_drop(round->parts.shelf, next);
    return status;
}

sheaf_status sheaf_round_release(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    assert(sheaf_aggregator_weight(round->aggregator) == round->row.weight);
    sheaf_problem problem = {SHEAF_OK, "no memory for the next model"};
    sheaf_version *base = sheaf_shelf_take(round->parts.shelf);
    sheaf_status status = release_model(round, base, &problem);
    sheaf_shelf_drop(round->parts.shelf, base);
    if (status != SHEAF_OK) {
        sheaf_log(SHEAF_LOG_ERROR, "release_failed", "job=%s round=%" PRIu64 " status=%s reason=\"%s\"",
                  round->parts.config->name, round->row.round, sheaf_status_name(status), problem.text);
        return status;
    }
    round->released_total++;
    char hex[2 * SHEAF_DIGEST_BYTES + 1];
    sheaf_hex(round->row.model, SHEAF_DIGEST_BYTES, hex);
    sheaf_log(SHEAF_LOG_INFO, "round_released",
              "job=%s round=%" PRIu64 " accepted=%" PRIu64 " refused=%" PRIu64 " bytes=%" PRIu64 " weight=%" PRIu64
              " loss=%.6g model=%s",
              round->parts.config->name, round->row.round, round->row.accepted, round->row.refused,
              round->row.upload_bytes, round->row.weight, round->row.training_loss, hex);
    prune(round);
    return SHEAF_OK;
}
