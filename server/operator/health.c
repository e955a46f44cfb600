/* health.c - is it alive, is it ready. */
#include "server/operator/call.h"

void sheaf_get_livez(sheaf_call *call) {
    sheaf_call_answer(call, 200, json_pack("{s:s, s:s}", "status", "ok", "version", SHEAF_VERSION));
}

static void look_at_carriers(const sheaf_operator *operator, json_t * reasons) {
    const sheaf_ends *ends = operator->options.ends;
    size_t count = ends->count;
    if (count < sheaf_ends_wanted(operator->options.config))
        (void)json_array_append_new(reasons, json_string("a carrier is not open yet"));
    for (size_t i = 0; i < count; i++) {
        sheaf_server_report report;
        const char *carrier = sheaf_ends_look(ends, i, &report);
        if (!report.ready) (void)json_array_append_new(reasons, json_sprintf("carrier %s: not connected", carrier));
    }
}

/* Lists that have expired lock everybody out when the policy says so: that is for the alarm before it, not for here. */
static void look_at_trust(const sheaf_operator *operator, json_t * reasons) {
    sheaf_trust_report report;
    sheaf_trust_look(operator->options.trust, &report);
    if (report.expired) (void)json_array_append_new(reasons, json_string("a revocation list is past its nextUpdate"));
    if (report.unreadable)
        (void)json_array_append_new(
            reasons,
            json_string("authorities or revocation lists cannot be read, or a list is older than the one in force"));
}

static sheaf_status count_job(const sheaf_job_summary *job, void *context) {
    (void)job;
    (*(size_t *)context)++;
    return SHEAF_OK;
}

/* Why it is not ready; empty: it is. */
void sheaf_get_readyz(sheaf_call *call) {
    const sheaf_operator *operator= call->operator;
    json_t *reasons = json_array();
    sheaf_problem problem = {SHEAF_OK, ""};
    size_t known = 0;
    if (sheaf_history_jobs(operator->history, count_job, &known, &problem) != SHEAF_OK)
        (void)json_array_append_new(reasons, json_string(problem.text));
    for (size_t i = 0; i < operator->options.job_count; i++) {
        sheaf_round_view state;
        sheaf_job_look(operator->options.jobs[i], &state);
        const sheafd_job_config *config = sheaf_job_config_of(operator->options.jobs[i]);
        if (state.failing != SHEAF_OK && sheaf_call_may_see(call, config->tenant))
            (void)json_array_append_new(
                reasons, json_sprintf("job %s/%s: %s", config->tenant, config->name, sheaf_status_name(state.failing)));
    }
    look_at_carriers(operator, reasons);
    look_at_trust(operator, reasons);
    if (sheaf_history_can_write(operator->history, &problem) != SHEAF_OK)
        (void)json_array_append_new(reasons, json_string(problem.text));
    int ready = json_array_size(reasons) == 0;
    sheaf_call_answer(call, ready ? 200 : 503,
                      json_pack("{s:s, s:o}", "status", ready ? "ready" : "not_ready", "reasons", reasons));
}
