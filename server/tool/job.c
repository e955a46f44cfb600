/* job.c - `sheaf job`: what a service did and does, read from its state folder; with a test set, how good its models are.
 * The commands that steer a running service stand in job_order.c. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/store/checkpoint.h"
#include "server/store/history.h"
#include "server/tool/channel.h"
#include "server/tool/job_order.h"
#include "server/tool/trainable.h"
#include "server/tool/verb.h"

static const char help[] =
    "usage: sheaf job list CHANNEL [--json]\n"
    "       sheaf job show|pause|resume|cancel [TENANT/]NAME CHANNEL [--json]\n"
    "       sheaf job status --state DIR [--json]\n"
    "       sheaf job watch --state DIR [--job [TENANT/]NAME] [--network FILE --data FILE [--labels FILE]]\n"
    "                       [--label NAME] [--wait S] [--json]\n"
    "\n"
    "Ask a running sheafd:\n"
    "  list     one line a job: rounds released, the open round, the newest model\n"
    "  show     the same of one job, and what was refused, by reason\n"
    "  pause    the open round keeps what it has; devices that are in it may bring their updates, no others are\n"
    "           admitted, nothing is reduced, no deadline passes; until resume, also over restarts\n"
    "  resume   go on\n"
    "  cancel   end the job for good; its devices are told, its models stay\n"
    "\n"
    "CHANNEL is one of\n" SHEAF_CHANNEL_HELP "\n"
    "Read the state folder of a sheafd on this machine (server.state of its config), which may run or not:\n"
    "  status   one line a job: rounds released, the open round, the newest model; and refusals by reason\n"
    "  watch    one line a round, from the first on, until the job has ended; failed attempts too\n"
    "\n"
    "  --state DIR       the state folder\n"
    "  --job NAME        which job; may be left out when there is only one\n"
    "  --network FILE    network description; with --data, loss and accuracy of each released model are shown\n"
    "  --data FILE       test examples: a CSV table, or an IDX file of images\n"
    "  --labels FILE     the IDX file of labels\n"
    "  --label NAME      CSV: name of the label column (default: label)\n"
    "  --wait S          seconds to wait for the state folder to appear, 0 to 999999 (default 0)\n"
    "  --json            one JSON object a line\n"
    "\n"
    "exit codes: 0 done, 1 the job was given up or the service refused, 2 usage, 3 bad input, 4 environment\n";

typedef struct {
    const char *state, *job, *network, *data, *labels, *label, *wait;
    int json;
} choices;

static int fail(const sheaf_problem *problem) { return sheaf_tool_fail("job", problem); }

/* ---- options ---- */

enum { WAIT_DIGITS_MAX = 6 };

static int read_choices(int count, char **arguments, choices *out) {
    const struct {
        const char *name;
        const char **value;
    } options[] = {{"--state", &out->state}, {"--job", &out->job},       {"--network", &out->network},
                   {"--data", &out->data},   {"--labels", &out->labels}, {"--label", &out->label},
                   {"--wait", &out->wait}};
    for (int i = 1; i < count; i++) {
        size_t o = 0;
        while (o < sizeof options / sizeof options[0] && strcmp(arguments[i], options[o].name) != 0) o++;
        if (o < sizeof options / sizeof options[0]) {
            if (i + 1 == count) return sheaf_tool_usage("job", help, "%s needs a value", arguments[i]);
            *options[o].value = arguments[++i];
        } else if (strcmp(arguments[i], "--json") == 0) {
            out->json = 1;
        } else {
            return sheaf_tool_usage("job", help, "%s does not take '%s'", arguments[0], arguments[i]);
        }
    }
    if (out->wait != NULL && (strspn(out->wait, "0123456789") != strlen(out->wait) || *out->wait == '\0' ||
                              strlen(out->wait) > WAIT_DIGITS_MAX))
        return sheaf_tool_usage("job", help, "--wait: '%s' is no whole number of seconds up to 999999", out->wait);
    if (strcmp(arguments[0], "status") == 0) {
        for (size_t o = 1; o < sizeof options / sizeof options[0]; o++) {
            if (*options[o].value != NULL)
                return sheaf_tool_usage("job", help, "status does not take %s", options[o].name);
        }
    }
    if (out->state == NULL) return sheaf_tool_usage("job", help, "--state DIR is missing");
    if ((out->network == NULL) != (out->data == NULL))
        return sheaf_tool_usage("job", help, "--network and --data go together");
    return SHEAF_EXIT_OK;
}

/* ---- JSON ---- */

static json_t *number_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *hex(const uint8_t digest[SHEAF_DIGEST_BYTES]) {
    char text[2 * SHEAF_DIGEST_BYTES + 1];
    sheaf_hex(digest, SHEAF_DIGEST_BYTES, text);
    return json_string(text);
}

static void print_line(json_t *object) {
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    if (text != NULL) puts(text);
    (void)fflush(stdout);
    free(text);
    json_decref(object);
}

/* ---- status ---- */

typedef struct {
    sheaf_history *history;
    const choices *chosen;
    const char *heading; /* printed before the first refusal; NULL: none */
    json_t *jobs;        /* with --json */
    json_t *refusals;    /* of the job at hand */
    sheaf_problem problem;
} status_view;

static sheaf_status add_refusal(const char *reason, uint64_t count, void *context) {
    status_view *view = context;
    if (view->heading != NULL && !view->chosen->json) puts(view->heading);
    view->heading = NULL;
    if (view->chosen->json)
        json_object_set_new(view->refusals, reason, json_integer((json_int_t)count));
    else
        printf("    refused %-20s %" PRIu64 "\n", reason, count);
    return SHEAF_OK;
}

static void print_job(const status_view *view, const sheaf_job_summary *job) {
    char text[2 * SHEAF_DIGEST_BYTES + 1];
    (void)view;
    sheaf_hex(job->model, SHEAF_DIGEST_BYTES, text);
    printf("%s/%s: %s, %" PRIu64 " rounds released, ", job->tenant, job->name,
           job->ended == SHEAF_AGAIN ? (job->paused ? "paused" : "running")
           : job->ended == SHEAF_OK  ? "finished"
                                     : sheaf_status_name(job->ended),
           job->released);
    if (job->open_round != 0)
        printf("round %" PRIu64 " (attempt %u) open with %" PRIu64 " updates, ", job->open_round, job->open_attempt,
               job->open_accepted);
    printf("model %s\n", text);
}

static sheaf_status show_job(const sheaf_job_summary *job, void *context) {
    status_view *view = context;
    if (!view->chosen->json) print_job(view, job);
    view->refusals = json_object();
    sheaf_status status = sheaf_history_refusals(view->history, job->id, 0, add_refusal, view, &view->problem);
    if (!view->chosen->json) {
        json_decref(view->refusals);
        return status;
    }
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "tenant", job->tenant, "job", job->name, "status",
                  job->ended == SHEAF_AGAIN ? (job->paused ? "paused" : "running") : sheaf_status_name(job->ended),
                  "rounds", (json_int_t)job->released, "open_round", (json_int_t)job->open_round, "open_attempt",
                  (json_int_t)job->open_attempt, "open_accepted", (json_int_t)job->open_accepted, "model_digest",
                  hex(job->model), "refusals", view->refusals);
    json_array_append_new(view->jobs, row);
    return status;
}

static int show_status(const choices *chosen) {
    status_view view = {.chosen = chosen, .problem = {SHEAF_OK, ""}};
    sheaf_status status = sheaf_history_open(chosen->state, &view.history, &view.problem);
    if (status != SHEAF_OK) return fail(&view.problem);
    view.jobs = json_array();
    status = sheaf_history_jobs(view.history, show_job, &view, &view.problem);
    view.refusals = json_object();
    view.heading = "connections and requests of no job:";
    if (status == SHEAF_OK) status = sheaf_history_refusals(view.history, 0, 0, add_refusal, &view, &view.problem);
    if (chosen->json && status == SHEAF_OK)
        print_line(json_pack("{s:O, s:O}", "jobs", view.jobs, "refusals", view.refusals));
    json_decref(view.jobs);
    json_decref(view.refusals);
    sheaf_history_close(view.history);
    return status == SHEAF_OK ? SHEAF_EXIT_OK : fail(&view.problem);
}

/* ---- watch ---- */

enum { EVALUATION_BATCH = 256 };

typedef struct {
    sheaf_history *history;
    const choices *chosen;
    sheaf_trainable network; /* with --network */
    sheaf_dataset test;
    sheaf_job_summary job;
    int found; /* jobs that fit --job */
    char folder[SHEAF_PATH_BYTES];
    uint64_t last_round;
    uint32_t last_attempt;
    sheaf_problem problem;
} watch_view;

static int fits(const choices *chosen, const sheaf_job_summary *job) {
    char full[2 * SHEAF_NAME_BYTES + 1];
    if (chosen->job == NULL) return 1;
    (void)snprintf(full, sizeof full, "%s/%s", job->tenant, job->name);
    return strcmp(chosen->job, job->name) == 0 || strcmp(chosen->job, full) == 0;
}

static sheaf_status find_job(const sheaf_job_summary *job, void *context) {
    watch_view *view = context;
    if (!fits(view->chosen, job)) return SHEAF_OK;
    view->job = *job;
    view->found++;
    return SHEAF_OK;
}

static sheaf_status look(watch_view *view) {
    view->found = 0;
    sheaf_status status = sheaf_history_jobs(view->history, find_job, view, &view->problem);
    if (status != SHEAF_OK || view->found == 1) return status;
    if (view->found == 0)
        return sheaf_problem_set(&view->problem, SHEAF_E_NOT_FOUND, "%s: has no job '%s'", view->chosen->state,
                                 view->chosen->job == NULL ? "" : view->chosen->job);
    return sheaf_problem_set(&view->problem, SHEAF_E_USAGE, "%s: has %d jobs that fit; name one with --job TENANT/NAME",
                             view->chosen->state, view->found);
}

static sheaf_status evaluate(watch_view *view, const sheaf_round_summary *round, sheaf_evaluation *out) {
    *out = (sheaf_evaluation){(double)NAN, (double)NAN};
    if (view->chosen->network == NULL || !round->released) return SHEAF_OK;
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_checkpoint_path(view->folder, round->model, path, &view->problem);
    if (status == SHEAF_OK) status = sheaf_trainable_load(&view->network, path, &view->problem);
    if (status == SHEAF_E_NOT_FOUND) return SHEAF_OK; /* retention has taken it */
    if (status != SHEAF_OK) return status;
    sheaf_examples examples = sheaf_data_examples(&view->test);
    status = sheaf_evaluate(&view->network.network, &examples, out);
    return status == SHEAF_OK ? status
                              : sheaf_problem_set(&view->problem, status, "%s: cannot be evaluated: %s", path,
                                                  sheaf_status_text(status));
}

static void print_round(const watch_view *view, const sheaf_round_summary *round, const sheaf_evaluation *test) {
    double seconds = (double)(round->closed_unix_ms - round->opened_unix_ms) / 1000.0;
    if (!round->released) {
        printf("round %4" PRIu64 "  attempt %u failed: %s; accepted %" PRIu64 "  refused %" PRIu64 "\n", round->round,
               round->attempt, sheaf_status_name(round->reason), round->accepted, round->refused);
        return;
    }
    printf("round %4" PRIu64 "  accepted %" PRIu64 "  refused %" PRIu64 "  bytes %" PRIu64 "  %.2f s  loss %.4f",
           round->round, round->accepted, round->refused, round->upload_bytes, seconds, round->training_loss);
    if (view->chosen->network != NULL) printf("  test loss %.4f  accuracy %.4f", test->loss, test->accuracy);
    putchar('\n');
    (void)fflush(stdout);
}

static void print_round_json(const sheaf_round_summary *round, const sheaf_evaluation *test) {
    json_t *line = json_pack(
        "{s:I, s:I, s:b, s:s, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:o}", "round", (json_int_t)round->round,
        "attempt", (json_int_t)round->attempt, "released", round->released, "reason", sheaf_status_name(round->reason),
        "accepted", (json_int_t)round->accepted, "refused", (json_int_t)round->refused, "upload_bytes",
        (json_int_t)round->upload_bytes, "weight", (json_int_t)round->weight, "seconds",
        (double)(round->closed_unix_ms - round->opened_unix_ms) / 1000.0, "training_loss",
        number_or_null(round->training_loss), "test_loss", number_or_null(test->loss), "test_accuracy",
        number_or_null(test->accuracy), "model_digest", round->released ? hex(round->model) : json_null());
    print_line(line);
}

static sheaf_status show_round(const sheaf_round_summary *round, void *context) {
    watch_view *view = context;
    sheaf_evaluation test;
    sheaf_status status = evaluate(view, round, &test);
    if (status != SHEAF_OK) return status;
    if (view->chosen->json)
        print_round_json(round, &test);
    else
        print_round(view, round, &test);
    view->last_round = round->round;
    view->last_attempt = round->attempt;
    return SHEAF_OK;
}

static void print_end(const watch_view *view) {
    char path[SHEAF_PATH_BYTES];
    const sheaf_job_summary *job = &view->job;
    if (sheaf_checkpoint_path(view->folder, job->model, path, NULL) != SHEAF_OK) path[0] = '\0';
    if (view->chosen->json) {
        print_line(json_pack("{s:s, s:s, s:s, s:I, s:o, s:s}", "tenant", job->tenant, "job", job->name, "status",
                             sheaf_status_name(job->ended), "rounds", (json_int_t)job->released, "model_digest",
                             hex(job->model), "model", path));
    } else {
        printf("%s/%s: %s after %" PRIu64 " rounds; model %s\n", job->tenant, job->name,
               job->ended == SHEAF_OK ? "finished" : sheaf_status_name(job->ended), job->released, path);
    }
}

/* Rounds are read after the job's own row, so that the end is printed only when all its rounds were. */
static sheaf_status follow(watch_view *view) {
    const struct timespec pause = {0, 50000000};
    for (;;) {
        sheaf_status status = look(view);
        if (status == SHEAF_OK)
            status = sheaf_history_rounds(view->history, view->job.id, view->last_round, view->last_attempt, show_round,
                                          view, &view->problem);
        if (status != SHEAF_OK || view->job.ended != SHEAF_AGAIN) return status;
        (void)nanosleep(&pause, NULL);
    }
}

static sheaf_status open_state(watch_view *view) {
    const struct timespec pause = {0, 100000000};
    long tries = view->chosen->wait == NULL ? 0 : 10 * strtol(view->chosen->wait, NULL, 10);
    for (;;) {
        sheaf_status status = sheaf_history_open(view->chosen->state, &view->history, &view->problem);
        if (status == SHEAF_OK) status = look(view);
        if (status == SHEAF_OK || status == SHEAF_E_USAGE || tries-- <= 0) return status;
        sheaf_history_close(view->history);
        view->history = NULL;
        (void)nanosleep(&pause, NULL);
    }
}

static int watch(const choices *chosen) {
    watch_view view = {.chosen = chosen, .problem = {SHEAF_OK, ""}};
    sheaf_status status = open_state(&view);
    if (status == SHEAF_OK && snprintf(view.folder, sizeof view.folder, "%s/%s/%s", chosen->state, view.job.tenant,
                                       view.job.name) >= (int)sizeof view.folder) {
        status = sheaf_problem_set(&view.problem, SHEAF_E_TOO_LARGE, "%s: path is too long", chosen->state);
    }
    if (status == SHEAF_OK && chosen->network != NULL) {
        const sheaf_data_options data = {.path = chosen->data, .labels = chosen->labels, .label = chosen->label};
        status = sheaf_trainable_open(chosen->network, EVALUATION_BATCH, &view.network, &view.problem);
        if (status == SHEAF_OK) status = sheaf_trainable_data(&view.network, &data, &view.test, &view.problem);
    }
    if (status == SHEAF_OK) status = follow(&view);
    if (status == SHEAF_OK) print_end(&view);
    sheaf_data_free(&view.test);
    sheaf_trainable_close(&view.network);
    sheaf_history_close(view.history);
    if (status != SHEAF_OK) return fail(&view.problem);
    return view.job.ended == SHEAF_OK ? SHEAF_EXIT_OK : SHEAF_EXIT_FINDING;
}

int sheaf_verb_job(int count, char **arguments) {
    if (count < 2) return sheaf_tool_usage("job", help, "which? list, show, pause, resume, cancel, status or watch");
    if (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "help") == 0 ||
        (count > 2 && strcmp(arguments[2], "--help") == 0)) {
        fputs(help, stdout);
        return SHEAF_EXIT_OK;
    }
    int ordered = sheaf_job_order_run(count - 1, arguments + 1, help);
    if (ordered >= 0) return ordered;
    choices chosen = {NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0};
    int code = read_choices(count - 1, arguments + 1, &chosen);
    if (code != SHEAF_EXIT_OK) return code;
    if (strcmp(arguments[1], "status") == 0) return show_status(&chosen);
    if (strcmp(arguments[1], "watch") == 0) return watch(&chosen);
    return sheaf_tool_usage("job", help, "no command '%s'", arguments[1]);
}
