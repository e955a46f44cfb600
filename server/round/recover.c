/* recover.c - where a restarted service goes on; see state.h. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/safetensors.h"
#include "server/round/state.h"
#include "server/store/checkpoint.h"

static sheaf_status create_job(sheaf_round *round, sheaf_job_row *job, sheaf_problem *problem) {
    const sheafd_job_config *config = round->parts.config;
    sheaf_model initial;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sheaf_status status =
        sheaf_safetensors_read(config->initial_model, round->parts.model_bytes_max, &initial, problem);
    if (status != SHEAF_OK) return status;
    status = sheaf_model_digest(&initial, digest);
    if (status == SHEAF_OK)
        status = sheaf_checkpoint_save(round->parts.folder, &initial, digest, config->tenant, config->name, 0, problem);
    sheaf_model_free(&initial);
    if (status != SHEAF_OK) return status;
    return sheaf_database_job_create(round->parts.database, config->tenant, config->name, digest, job, problem);
}

/* Puts the newest model on the shelf and leaves its row, if any, in round->row. */
static sheaf_status load_model(sheaf_round *round, const sheaf_job_row *job, sheaf_problem *problem) {
    const uint8_t *digest = job->initial_model;
    sheaf_round_row released;
    sheaf_status status = sheaf_database_round_last(round->parts.database, job->id, &round->row, problem);
    if (status == SHEAF_OK && round->row.outcome == SHEAF_ROUND_RELEASED) {
        digest = round->row.model;
    } else if (status == SHEAF_OK && round->row.round > 1) {
        status =
            sheaf_database_round_released(round->parts.database, job->id, round->row.round - 1, &released, problem);
        digest = released.model;
    } else if (status == SHEAF_E_NOT_FOUND) {
        memset(&round->row, 0, sizeof round->row);
        status = SHEAF_OK;
    }
    if (status != SHEAF_OK) return status;
    sheaf_model model;
    status = sheaf_checkpoint_load(round->parts.folder, digest, round->parts.model_bytes_max, &model, problem);
    sheaf_version *version = NULL;
    if (status == SHEAF_OK) status = sheaf_version_make(&model, digest, NULL, &version);
    if (status == SHEAF_OK) sheaf_shelf_put(round->parts.shelf, version);
    sheaf_model_free(&model);
    return status;
}

static int *fraction_bits_of(const sheafd_job_config *config, const sheaf_model *model, sheaf_problem *problem) {
    const sheaf_config_pair *pairs = config->tensor_fraction_bits.items;
    int *bits = calloc(model->count, sizeof *bits);
    if (bits == NULL) {
        (void)sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the tensor table");
        return NULL;
    }
    for (size_t i = 0; i < model->count; i++) bits[i] = (int)config->fraction_bits;
    for (size_t p = 0; p < config->tensor_fraction_bits.count; p++) {
        const sheaf_model_tensor *tensor = sheaf_model_find(model, pairs[p].key);
        if (tensor != NULL) {
            bits[tensor - model->tensors] = (int)pairs[p].value;
            continue;
        }
        (void)sheaf_problem_set(problem, SHEAF_E_CONFIG,
                                "job %s: tensor_fraction_bits names '%s'; the model has no such tensor", config->name,
                                pairs[p].key);
        free(bits);
        return NULL;
    }
    return bits;
}

static sheaf_status open_aggregator(sheaf_round *round, sheaf_problem *problem) {
    const sheafd_job_config *config = round->parts.config;
    sheaf_version *version = sheaf_shelf_take(round->parts.shelf);
    problem->status = SHEAF_E_MEMORY;
    int *bits = fraction_bits_of(config, &version->model, problem);
    sheaf_status status = bits == NULL ? problem->status : SHEAF_OK;
    if (status == SHEAF_OK) {
        const sheaf_aggregator_options options = {.shape = &version->model,
                                                  .fraction_bits = bits,
                                                  .cohort_max = config->cohort.maximum,
                                                  .weight_max = config->weight_cap};
        status = sheaf_aggregator_open(&options, &round->aggregator, problem);
    }
    free(bits);
    sheaf_shelf_drop(round->parts.shelf, version);
    if (status != SHEAF_OK) return status;
    sheaf_round_set_plan(round, round->plan);
    if (round->payload_bytes == 0)
        return sheaf_problem_set(problem, SHEAF_E_CONFIG, "job %s: the model has no values to train", config->name);
    return SHEAF_OK;
}

static sheaf_status recover_update(void *context, const sheaf_update_row *row) {
    sheaf_round *round = context;
    sheaf_update_statement statement;
    if (round->accepted == round->parts.config->cohort.maximum) return SHEAF_E_COHORT_FULL;
    sheaf_status status = sheaf_update_statement_decode(row->statement, &statement);
    if (status == SHEAF_OK) sheaf_round_count_update(round, &statement, row->training_loss, 1);
    return status;
}

/* An open round goes on with the plan, nonce and updates it had; so does the next attempt of a failed one. */
static sheaf_status recover_round(sheaf_round *round, sheaf_problem *problem) {
    if (round->row.outcome == SHEAF_ROUND_OPEN) {
        sheaf_plan plan;
        sheaf_status status = sheaf_plan_decode(sheaf_span_of(round->row.plan, round->row.plan_size), &plan);
        if (status == SHEAF_OK)
            sheaf_round_set_plan(round, plan);
        else
            return sheaf_problem_set(problem, SHEAF_E_CORRUPT, "database: the plan of round %" PRIu64 " is damaged",
                                     round->row.round);
    }
    round->row.accepted = round->row.upload_bytes = round->row.weight = 0;
    sheaf_status status = sheaf_spool_begin(round->parts.spool, round->row.round, problem);
    if (status == SHEAF_OK)
        status = sheaf_database_updates_of(round->parts.database, round->job_id, round->row.round, recover_update,
                                           round, problem);
    if (status == SHEAF_E_COHORT_FULL) {
        status = sheaf_problem_set(problem, SHEAF_E_CONFIG,
                                   "job %s: cohort.maximum is now smaller than what round %" PRIu64
                                   " has accepted; restore it until that round is released",
                                   round->parts.config->name, round->row.round);
    }
    if (status == SHEAF_OK) {
        /* With updates in hand the clock of patience runs; without, it waits for the first device as ever. */
        sheaf_round_note_move(round);
        if (round->accepted > 0) round->joined_ns = sheaf_now_ns();
        sheaf_log(SHEAF_LOG_INFO, "round_recovered", "job=%s round=%" PRIu64 " attempt=%u accepted=%u",
                  round->parts.config->name, round->row.round, round->row.attempt, round->accepted);
    }
    return status;
}

static sheaf_status make_room(sheaf_round *round, sheaf_problem *problem) {
    uint32_t maximum = round->parts.config->cohort.maximum;
    round->additions = calloc(maximum, sizeof *round->additions);
    round->staged_capacity = SHEAF_ROUND_BATCH;
    round->staged = calloc(round->staged_capacity, sizeof *round->staged);
    if (round->additions == NULL || round->staged == NULL || sheaf_cohort_make(maximum, &round->cohort) != SHEAF_OK) {
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "job %s: no memory for a cohort of %u",
                                 round->parts.config->name, maximum);
    }
    return SHEAF_OK;
}

/* An ended job goes on when its config now asks for more rounds, or allows its failed round more attempts. */
static int has_more_to_do(const sheaf_round *round, sheaf_status ended) {
    const sheafd_job_config *config = round->parts.config;
    if (ended == SHEAF_E_CANCELLED) return 0; /* that was said once and for all */
    if (ended == SHEAF_OK) return round->row.round < config->rounds;
    return round->row.outcome == SHEAF_ROUND_FAILED && round->row.attempt < config->attempts_max;
}

static sheaf_status reopen_job(const sheaf_round *round, sheaf_job_row *job, sheaf_problem *problem) {
    job->ended = SHEAF_AGAIN;
    sheaf_log(SHEAF_LOG_INFO, "job_reopened", "job=%s round=%" PRIu64, round->parts.config->name, round->row.round);
    return sheaf_database_job_end(round->parts.database, job->id, SHEAF_AGAIN, problem);
}

static sheaf_status begin(sheaf_round *round, sheaf_problem *problem) {
    const sheafd_job_config *config = round->parts.config;
    sheaf_job_row job;
    sheaf_status status = sheaf_database_job_find(round->parts.database, config->tenant, config->name, &job, problem);
    if (status == SHEAF_E_NOT_FOUND) status = create_job(round, &job, problem);
    if (status != SHEAF_OK) return status;
    round->job_id = job.id;
    round->paused = job.paused;
    status = load_model(round, &job, problem);
    if (status == SHEAF_OK) status = open_aggregator(round, problem);
    if (status != SHEAF_OK) return status;
    if (job.ended != SHEAF_AGAIN && has_more_to_do(round, job.ended)) status = reopen_job(round, &job, problem);
    if (status != SHEAF_OK) return status;
    if (job.ended != SHEAF_AGAIN) {
        round->state = ENDED;
        round->ended = job.ended;
        round->was_ended = 1;
        return SHEAF_OK;
    }
    if (round->row.round == 0 || round->row.outcome == SHEAF_ROUND_RELEASED) {
        round->state = RELEASED;
        return SHEAF_OK;
    }
    round->state = round->row.outcome == SHEAF_ROUND_OPEN ? COLLECTING : FAILED;
    return recover_round(round, problem);
}

sheaf_status sheaf_round_start(const sheaf_round_parts *parts, sheaf_round **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_round *round = calloc(1, sizeof *round);
    if (round == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a round");
    round->parts = *parts;
    round->plan = sheafd_job_plan(parts->config);
    round->joined_ns = SHEAF_NEVER_NS;
    round->ended = SHEAF_AGAIN;
    sheaf_status status = make_room(round, problem);
    if (status == SHEAF_OK) status = begin(round, problem);
    if (status == SHEAF_OK)
        *out = round;
    else
        sheaf_round_stop(round);
    return status;
}

void sheaf_round_stop(sheaf_round *round) {
    if (round == NULL) return;
    sheaf_problem problem;
    sheaf_refusals_written written; /* nothing is forgotten: this is the end */
    if (round->job_id != 0 && sheaf_refusals_write(round->parts.refusals, round->parts.database, round->job_id,
                                                   round->row.round, &written, &problem) != SHEAF_OK)
        sheaf_log(SHEAF_LOG_WARNING, "refusals_not_kept", "reason=\"%s\"", problem.text);
    sheaf_aggregator_close(round->aggregator);
    sheaf_cohort_free(round->cohort);
    free(round->additions);
    free(round->staged);
    free(round);
}
