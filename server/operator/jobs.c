/* jobs.c - the jobs that are served: how they stand, and orders to them. */
#include "server/operator/call.h"

static sheaf_job *served(const sheaf_operator *operator, const sheaf_job_summary * summary) {
    for (size_t i = 0; i < operator->options.job_count; i++) {
        const sheafd_job_config *config = sheaf_job_config_of(operator->options.jobs[i]);
        if (strcmp(config->tenant, summary->tenant) == 0 && strcmp(config->name, summary->name) == 0)
            return operator->options.jobs[i];
    }
    return NULL;
}

static json_t *cohort_of(const sheaf_job *job, const sheaf_round_view *state) {
    const sheafd_job_config *config = sheaf_job_config_of(job);
    return json_pack("{s:I, s:I, s:I, s:I}", "minimum", (json_int_t)config->cohort.minimum, "target",
                     (json_int_t)config->cohort.target, "maximum", (json_int_t)config->cohort.maximum, "joined",
                     (json_int_t)state->joined);
}

/* What the database says of the job, and for one that is served what its thread said last. */
json_t *sheaf_operator_job(sheaf_operator *operator, const sheaf_job_summary * summary) {
    sheaf_job *job = served(operator, summary);
    sheaf_round_view state = {.ended = summary->ended, .paused = summary->paused};
    if (job != NULL) sheaf_job_look(job, &state);
    json_t *refusals = sheaf_operator_refusals(operator, summary->id, 0, job == NULL ? NULL : sheaf_job_refusals(job));
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:o, s:o}", "tenant", summary->tenant, "job", summary->name,
                  "status", sheaf_job_status_name(state.ended, state.paused), "served", job != NULL, "rounds",
                  (json_int_t)summary->released, "open_round", (json_int_t)summary->open_round, "open_attempt",
                  (json_int_t)summary->open_attempt, "open_accepted", (json_int_t)summary->open_accepted,
                  "model_digest", sheaf_json_hex(summary->model), "refusals", refusals);
    if (object == NULL || job == NULL) return object;
    (void)json_object_set_new(object, "rounds_wanted", json_integer(sheaf_job_config_of(job)->rounds));
    (void)json_object_set_new(object, "phase", json_string(state.phase));
    (void)json_object_set_new(object, "cohort", cohort_of(job, &state));
    return object;
}

typedef struct {
    const sheaf_call *call;
    json_t *jobs;
} listing;

static sheaf_status add_job(const sheaf_job_summary *summary, void *context) {
    const listing *to = context;
    if (!sheaf_call_may_see(to->call, summary->tenant)) return SHEAF_OK;
    json_t *job = sheaf_operator_job(to->call->operator, summary);
    return json_array_append_new(to->jobs, job) == 0 ? SHEAF_OK : SHEAF_E_MEMORY;
}

void sheaf_get_jobs(sheaf_call *call) {
    listing to = {call, json_array()};
    sheaf_problem problem = {SHEAF_E_MEMORY, "no memory for the answer"};
    sheaf_status status = sheaf_history_jobs(call->operator->history, add_job, &to, &problem);
    if (status == SHEAF_OK) {
        sheaf_call_answer(call, 200, json_pack("{s:o}", "jobs", to.jobs));
        return;
    }
    json_decref(to.jobs);
    sheaf_call_refuse(call, sheaf_call_code_of(status), status, "%s", problem.text);
}

void sheaf_get_job(sheaf_call *call) {
    sheaf_job_summary summary;
    if (sheaf_call_job_summary(call, &summary))
        sheaf_call_answer(call, 200, sheaf_operator_job(call->operator, & summary));
}

static void give(sheaf_call *call, sheaf_event kind) {
    sheaf_job *job = sheaf_call_job(call);
    if (job != NULL) sheaf_operator_order(call, job, kind);
}

void sheaf_pause_job(sheaf_call *call) { give(call, SHEAF_ON_PAUSE); }
void sheaf_resume_job(sheaf_call *call) { give(call, SHEAF_ON_RESUME); }
void sheaf_cancel_job(sheaf_call *call) { give(call, SHEAF_ON_CANCEL); }
