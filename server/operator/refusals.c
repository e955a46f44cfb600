/* refusals.c - what was refused, by reason: what the database has, and what is not written down yet. */
#include "server/operator/call.h"

static sheaf_status add_reason(const char *reason, uint64_t count, void *context) {
    json_t *known = json_object_get(context, reason);
    json_int_t total = (json_int_t)count + json_integer_value(known);
    return json_object_set_new(context, reason, json_integer(total)) == 0 ? SHEAF_OK : SHEAF_E_MEMORY;
}

json_t *sheaf_operator_refusals(sheaf_operator *operator, int64_t job, uint64_t round, const sheaf_refusals *live) {
    json_t *reasons = json_object();
    sheaf_problem problem;
    if (reasons == NULL ||
        sheaf_history_refusals(operator->history, job, round, add_reason, reasons, &problem) != SHEAF_OK) {
        json_decref(reasons);
        return NULL;
    }
    for (int i = 0; live != NULL && i < SHEAF_REFUSAL_COUNT; i++) {
        uint32_t count = atomic_load(&live->counts[i]);
        if (count > 0)
            (void)add_reason(sheaf_status_name(sheaf_status_from_number(SHEAF_REFUSAL_FIRST + i)), count, reasons);
    }
    return reasons;
}

typedef struct {
    const sheaf_call *call;
    json_t *jobs;
} listing;

const sheaf_refusals *sheaf_operator_live_refusals(const sheaf_operator *operator, const sheaf_job_summary * job) {
    const sheaf_operator_options *options = &operator->options;
    for (size_t i = 0; i < options->job_count; i++) {
        const sheafd_job_config *config = sheaf_job_config_of(options->jobs[i]);
        if (strcmp(config->tenant, job->tenant) == 0 && strcmp(config->name, job->name) == 0)
            return sheaf_job_refusals(options->jobs[i]);
    }
    return NULL;
}

static sheaf_status add_job(const sheaf_job_summary *job, void *context) {
    const listing *to = context;
    sheaf_operator *operator= to->call->operator;
    if (!sheaf_call_may_see(to->call, job->tenant)) return SHEAF_OK;
    json_t *reasons = sheaf_operator_refusals(operator, job->id, 0, sheaf_operator_live_refusals(operator, job));
    json_t *row = json_pack("{s:s, s:s, s:o}", "tenant", job->tenant, "job", job->name, "refusals", reasons);
    return json_array_append_new(to->jobs, row) == 0 ? SHEAF_OK : SHEAF_E_MEMORY;
}

/* What belongs to no job was refused before a tenant was known: only the local operator sees it. */
void sheaf_get_refusals(sheaf_call *call) {
    sheaf_operator *operator= call->operator;
    listing to = {call, json_array()};
    sheaf_problem problem = {SHEAF_E_MEMORY, "no memory for the answer"};
    sheaf_status status = sheaf_history_jobs(operator->history, add_job, &to, &problem);
    json_t *others =
        call->tenant == NULL ? sheaf_operator_refusals(operator, 0, 0, operator->options.refusals) : json_object();
    if (status == SHEAF_OK) {
        sheaf_call_answer(call, 200, json_pack("{s:o, s:o}", "jobs", to.jobs, "of_no_job", others));
        return;
    }
    json_decref(to.jobs);
    json_decref(others);
    sheaf_call_refuse(call, sheaf_call_code_of(status), status, "%s", problem.text);
}
