/* metrics.c - figures for Prometheus, in its text format 0.0.4. docs/OPERATING.md says what each is good for.
 *
 * Names and labels are ours and need no escaping: sheaf_name_ok allows no quote, backslash or line break. */
#include <event2/buffer.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/operator/call.h"

typedef struct {
    const sheaf_call *call;
    struct evbuffer *out;
} page;

static void head(const page *to, const char *name, const char *type, const char *help) {
    (void)evbuffer_add_printf(to->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void plain(const page *to, const char *name, const char *type, const char *help, double value) {
    head(to, name, type, help);
    (void)evbuffer_add_printf(to->out, "%s %.17g\n", name, value);
}

/* --- of jobs ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *name, *type, *help;
    double (*value)(sheaf_job *job, const sheaf_round_view *view);
} job_figure;

static double up(sheaf_job *job, const sheaf_round_view *view) { return (void)job, view->ended == SHEAF_AGAIN; }
static double paused(sheaf_job *job, const sheaf_round_view *view) { return (void)job, view->paused; }
static double failing(sheaf_job *job, const sheaf_round_view *view) { return (void)job, view->failing != SHEAF_OK; }
static double round_number(sheaf_job *job, const sheaf_round_view *view) { return (void)job, (double)view->round; }
static double attempt(sheaf_job *job, const sheaf_round_view *view) { return (void)job, view->attempt; }
static double accepted(sheaf_job *job, const sheaf_round_view *view) { return (void)job, view->accepted; }
static double joined(sheaf_job *job, const sheaf_round_view *view) { return (void)job, view->joined; }
static double target(sheaf_job *job, const sheaf_round_view *view) {
    return (void)view, sheaf_job_config_of(job)->cohort.target;
}
static double updates(sheaf_job *job, const sheaf_round_view *view) { return (void)job, (double)view->accepted_total; }
static double bytes(sheaf_job *job, const sheaf_round_view *view) { return (void)job, (double)view->bytes_total; }
static double released(sheaf_job *job, const sheaf_round_view *view) { return (void)job, (double)view->released_total; }
static double failed(sheaf_job *job, const sheaf_round_view *view) { return (void)job, (double)view->failed_total; }
static double cast(sheaf_job *job, const sheaf_round_view *view) {
    return (void)view, (double)sheaf_job_cast_bytes(job);
}

static const job_figure job_figures[] = {
    {"sheaf_job_running", "gauge", "1 until the job has ended.", up},
    {"sheaf_job_paused", "gauge", "1 while an operator has paused the job.", paused},
    {"sheaf_job_failing", "gauge", "1 while disk or database keep the job from going on.", failing},
    {"sheaf_job_round", "gauge", "Number of the open round.", round_number},
    {"sheaf_job_attempt", "gauge", "Attempt of the open round.", attempt},
    {"sheaf_job_round_accepted", "gauge", "Updates accepted in the open round.", accepted},
    {"sheaf_job_round_joined", "gauge", "Devices admitted to the open round.", joined},
    {"sheaf_job_cohort_target", "gauge", "Accepted updates at which the round is reduced.", target},
    {"sheaf_updates_accepted_total", "counter", "Updates accepted since the service started.", updates},
    {"sheaf_update_bytes_total", "counter", "Bytes of accepted updates since the service started.", bytes},
    {"sheaf_rounds_released_total", "counter", "Rounds released since the service started.", released},
    {"sheaf_rounds_failed_total", "counter", "Attempts of rounds that failed since the service started.", failed},
    {"sheaf_cast_bytes_total", "counter", "Bytes of models sent once for many devices since the service started.",
     cast},
};

static void job_lines(const page *to, const job_figure *figure) {
    const sheaf_operator_options *options = &to->call->operator->options;
    head(to, figure->name, figure->type, figure->help);
    for (size_t i = 0; i < options->job_count; i++) {
        const sheafd_job_config *config = sheaf_job_config_of(options->jobs[i]);
        sheaf_round_view view;
        if (!sheaf_call_may_see(to->call, config->tenant)) continue;
        sheaf_job_look(options->jobs[i], &view);
        (void)evbuffer_add_printf(to->out, "%s{tenant=\"%s\",job=\"%s\"} %.17g\n", figure->name, config->tenant,
                                  config->name, figure->value(options->jobs[i], &view));
    }
}

static void upload_lines(const page *to) {
    const sheaf_operator_options *options = &to->call->operator->options;
    const char *const names[] = {"sheaf_uploads", "sheaf_spool_bytes"};
    head(to, names[0], "gauge", "Unfinished uploads.");
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) head(to, names[1], "gauge", "Bytes of the open round's payloads, kept or arriving.");
        for (size_t i = 0; i < options->job_count; i++) {
            const sheafd_job_config *config = sheaf_job_config_of(options->jobs[i]);
            uint64_t size = 0;
            if (!sheaf_call_may_see(to->call, config->tenant)) continue;
            uint32_t count = sheaf_uploads_load(sheaf_job_uploads(options->jobs[i]), &size);
            (void)evbuffer_add_printf(to->out, "%s{tenant=\"%s\",job=\"%s\"} %" PRIu64 "\n", names[pass],
                                      config->tenant, config->name, pass == 0 ? (uint64_t)count : size);
        }
    }
}

/* --- carriers and trust ------------------------------------------------------------------------------------------- */

static void carrier_lines(const page *to) {
    const sheaf_ends *ends = to->call->operator->options.ends;
    static const char *const names[] = {"sheaf_carrier_ready", "sheaf_carrier_connections", "sheaf_carrier_strangers"};
    static const char *const helps[] = {"1 while devices can reach this carrier.",
                                        "Connections, or sessions past a broker, of devices that are known.",
                                        "Connections that have not said yet who they are."};
    size_t count = ends->count;
    for (int line = 0; line < 3; line++) {
        head(to, names[line], "gauge", helps[line]);
        for (size_t i = 0; i < count; i++) {
            sheaf_server_report report;
            const char *carrier = sheaf_ends_look(ends, i, &report);
            uint32_t value = line == 0 ? report.ready != 0 : line == 1 ? report.connections : report.strangers;
            (void)evbuffer_add_printf(to->out, "%s{carrier=\"%s\"} %u\n", names[line], carrier, value);
        }
    }
}

static void trust_lines(const page *to) {
    sheaf_trust_report report;
    sheaf_trust_look(to->call->operator->options.trust, &report);
    plain(to, "sheaf_crl_lists", "gauge", "Revocation lists in force.", report.lists);
    plain(to, "sheaf_crl_revoked", "gauge", "Certificates that they revoke.", report.revoked);
    if (report.next_update_unix_s != 0)
        plain(to, "sheaf_crl_next_update_seconds", "gauge", "Earliest nextUpdate of the lists, in Unix seconds.",
              (double)report.next_update_unix_s);
    plain(to, "sheaf_crl_expired", "gauge", "1 while a list is past its nextUpdate.", report.expired != 0);
    plain(to, "sheaf_trust_unreadable", "gauge",
          "1 while authorities or lists cannot be read again, or a list is older than the one in force.",
          report.unreadable != 0);
    plain(to, "sheaf_trust_alarms_total", "counter", "Alarms about authorities and lists.", (double)report.alarms);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

static void refusal_lines(const page *to, const sheaf_refusals *refusals, const char *tenant, const char *job) {
    for (int i = 0; i < SHEAF_REFUSAL_COUNT; i++) {
        uint64_t count = atomic_load(&refusals->since_start[i]);
        if (count == 0) continue;
        const char *reason = sheaf_status_name(sheaf_status_from_number(SHEAF_REFUSAL_FIRST + i));
        (void)evbuffer_add_printf(to->out, "sheaf_refused_total{tenant=\"%s\",job=\"%s\",reason=\"%s\"} %" PRIu64 "\n",
                                  tenant, job, reason, count);
    }
}

static void all_refusals(const page *to) {
    const sheaf_operator_options *options = &to->call->operator->options;
    head(to, "sheaf_refused_total", "counter", "Refused requests and peers since the service started, by reason.");
    for (size_t i = 0; i < options->job_count; i++) {
        const sheafd_job_config *config = sheaf_job_config_of(options->jobs[i]);
        if (sheaf_call_may_see(to->call, config->tenant))
            refusal_lines(to, sheaf_job_refusals(options->jobs[i]), config->tenant, config->name);
    }
    if (to->call->tenant == NULL) refusal_lines(to, options->refusals, "", "");
}

/* --- quotas ------------------------------------------------------------------------------------------------------- */

static void one_wait(const page *to, const char *tenant, const char *job, const char *quota, uint64_t count) {
    (void)evbuffer_add_printf(to->out, "sheaf_quota_waits_total{tenant=\"%s\",job=\"%s\",quota=\"%s\"} %" PRIu64 "\n",
                              tenant, job, quota, count);
}

/* Three are of a device whatever it asks for; the one that a job has is that of payloads in a round. */
static void quota_lines(const page *to) {
    static const char *const names[SHEAF_QUOTA_KINDS] = {"requests", "bytes", "in_flight"};
    const sheaf_operator_options *options = &to->call->operator->options;
    head(to, "sheaf_quota_waits_total", "counter", "Requests of devices over a quota, which were told to come later.");
    for (size_t i = 0; i < options->job_count; i++) {
        const sheafd_job_config *config = sheaf_job_config_of(options->jobs[i]);
        const sheaf_refusals *refusals = sheaf_job_refusals(options->jobs[i]);
        if (sheaf_call_may_see(to->call, config->tenant))
            one_wait(to, config->tenant, config->name, "uploads",
                     atomic_load(&refusals->since_start[SHEAF_E_QUOTA - SHEAF_REFUSAL_FIRST]));
    }
    uint64_t waits[SHEAF_QUOTA_KINDS];
    sheaf_quota_waits(options->quota, waits);
    for (int i = 0; i < SHEAF_QUOTA_KINDS && to->call->tenant == NULL; i++) one_wait(to, "", "", names[i], waits[i]);
}

/* --- of the process ----------------------------------------------------------------------------------------------- */

static double resident_bytes(void) {
    char line[128], *end = NULL;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) return 0;
    const char *found = fgets(line, sizeof line, file);
    fclose(file);
    if (found == NULL) return 0;
    (void)strtoull(line, &end, 10); /* all of its address space; then what is resident */
    return (double)strtoull(end, NULL, 10) * (double)sysconf(_SC_PAGESIZE);
}

static void process_lines(const page *to) {
    const sheaf_operator *operator= to->call->operator;
    struct rusage usage;
    head(to, "sheaf_build_info", "gauge", "1; its label is the version.");
    (void)evbuffer_add_printf(to->out, "sheaf_build_info{version=\"%s\"} 1\n", SHEAF_VERSION);
    plain(to, "process_start_time_seconds", "gauge", "When the service started, in Unix seconds.",
          (double)operator->started_unix_ms / 1000.0);
    plain(to, "process_resident_memory_bytes", "gauge", "Memory in use.", resident_bytes());
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        plain(to, "process_cpu_seconds_total", "counter", "Processor time used.",
              (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                  (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    plain(to, "sheaf_clients_seen", "gauge", "Devices that have spoken since the service started.",
          sheaf_clients_count(operator->options.clients));
    head(to, "sheaf_operator_connections", "gauge", "Open connections of this channel.");
    (void)evbuffer_add_printf(to->out, "sheaf_operator_connections{listener=\"local\"} %u\n",
                              sheaf_http_connections(operator->local));
    if (operator->remote != NULL)
        (void)evbuffer_add_printf(to->out, "sheaf_operator_connections{listener=\"https\"} %u\n",
                                  sheaf_http_connections(operator->remote));
}

void sheaf_get_metrics(sheaf_call *call) {
    const page to = {call, evbuffer_new()};
    if (to.out == NULL) {
        sheaf_call_answer(call, 500, NULL);
        return;
    }
    process_lines(&to);
    for (size_t i = 0; i < sizeof job_figures / sizeof job_figures[0]; i++) job_lines(&to, &job_figures[i]);
    upload_lines(&to);
    carrier_lines(&to);
    trust_lines(&to);
    all_refusals(&to);
    quota_lines(&to);
    size_t size = evbuffer_get_length(to.out);
    const sheaf_http_reply reply = {.code = 200,
                                    .type = "text/plain; version=0.0.4; charset=utf-8",
                                    .body = sheaf_span_of(evbuffer_pullup(to.out, -1), size)};
    sheaf_http_answer(call->exchange, &reply);
    evbuffer_free(to.out);
}
