/* main.c - sheaf-edge: a device as a daemon, built on the library as anybody would. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/daemon/config.h"
#include "client/daemon/events.h"
#include "client/port/posix/exec_trainer.h"
#include "client/trainer/builtin.h"
#include "common/file.h"
#include "common/log.h"

enum { EXIT_DONE = 0, EXIT_REFUSED = 1, EXIT_BAD_USAGE = 2, EXIT_BAD_CONFIG = 3, EXIT_ENVIRONMENT = 4 };
#define ASK_AGAIN_S 60

static const char help[] =
    "usage: sheaf-edge --config FILE [--trainer exec:PROGRAM] [--once] [--exit-when-done]\n"
    "\n"
    "A device that takes part in a job: it fetches the model of each round, trains, and sends the signed update.\n"
    "\n"
    "  --config FILE        YAML; --help-config prints every key\n"
    "  --trainer WHAT       builtin, or \"exec:PROGRAM ARGUMENTS\"; instead of the config's trainer.use\n"
    "  --once               end after one receipt (exit code 0) or refusal (1)\n"
    "  --exit-when-done     end when the job has ended; instead of the config's edge.exit_when_done\n"
    "  --check-config       only read and check the config\n"
    "  --help-config        print the config reference and exit\n"
    "  --version            print the version and exit\n"
    "\n"
    "SIGINT or SIGTERM stop it cleanly; a restart goes on where it was.\n"
    "exit codes: 0 done, 1 refused or the job was given up, 2 usage, 3 bad config or input files, 4 environment (disk, "
    "memory, state folder in use)\n";

typedef struct {
    const char *config_path, *trainer;
    int once, exit_when_done, only_check;
} command_line;

typedef struct {
    sheaf_builtin_host *builtin;
    sheaf_exec *exec;
} trainers;

/* Set by the signal handler, read by the loop; the device learns of it through its own flag. */
static volatile sig_atomic_t stop_asked;
static sheaf_edge_device *volatile running;

static void on_signal(int number) {
    (void)number;
    stop_asked = 1;
    if (running != NULL) sheaf_edge_device_request_stop(running);
}

static int fail(sheaf_status status, const char *text) {
    fprintf(stderr, "sheaf-edge: %s (%s)\n", text, sheaf_status_name(status));
    int input = status >= 300 || status < 200 || status == SHEAF_E_NOT_FOUND || status == SHEAF_E_PERMISSION;
    return input ? EXIT_BAD_CONFIG : EXIT_ENVIRONMENT;
}

/* ---- trainer ---- */

static sheaf_status open_builtin(const edge_config *config, trainers *made, sheaf_trainer *out,
                                 sheaf_problem *problem) {
    sheaf_builtin_options options = {
        .model_path = config->trainer.network,
        .data = {.path = config->trainer.data, .labels = config->trainer.labels, .label = config->trainer.label},
    };
    sheaf_status status = sheaf_builtin_open(&options, &made->builtin, problem);
    if (status != SHEAF_OK) return status;
    *out = sheaf_builtin_host_trainer(made->builtin);
    sheaf_log(SHEAF_LOG_INFO, "examples", "count=%u data=%s", sheaf_builtin_host_examples(made->builtin),
              config->trainer.data);
    return SHEAF_OK;
}

static sheaf_status open_exec(const edge_config *config, trainers *made, sheaf_trainer *out, sheaf_problem *problem) {
    char folder[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_path_join(folder, config->edge.state, "trainer", problem);
    if (status != SHEAF_OK) return status;
    sheaf_exec_options options = {
        .command = edge_config_program(config),
        .folder = folder,
        .time_limit_s = config->trainer.time_limit_s,
        .size_limit = config->trainer.result_bytes,
    };
    status = sheaf_exec_open(&options, &made->exec, problem);
    if (status == SHEAF_OK) *out = sheaf_exec_trainer(made->exec);
    return status;
}

static sheaf_status open_trainer(const edge_config *config, trainers *made, sheaf_trainer *out,
                                 sheaf_problem *problem) {
    return edge_config_program(config) != NULL ? open_exec(config, made, out, problem)
                                               : open_builtin(config, made, out, problem);
}

static void close_trainer(trainers *made) {
    sheaf_builtin_close(made->builtin);
    sheaf_exec_close(made->exec);
}

/* ---- run ---- */

static sheaf_edge_device_options device_options(const edge_config *config, const sheaf_trainer *trainer,
                                                edge_events *events) {
    sheaf_edge_device_options options = {
        .url = config->edge.url,
        .certificate_path = config->edge.certificate,
        .key_path = config->edge.key,
        .ca_path = config->edge.ca,
        .crl_path = config->edge.crl,
        .topic_prefix = config->edge.topic_prefix,
        .server_name = config->edge.server_name,
        .tls12_profile = config->edge.tls12_profile,
        .state_folder = config->edge.state,
        .tenant = config->edge.tenant,
        .job = config->edge.job,
        .chunk_bytes = (uint32_t)config->limits.chunk_bytes,
        .handshake_ms = config->limits.handshake_ms,
        .reply_ms = config->limits.reply_ms,
        .window = config->limits.window,
        .trainer = *trainer,
        .on_event = edge_events_take,
        .event_context = events,
    };
    return options;
}

/* Until the job ends or a stop is asked for. */
static sheaf_status run_job(const sheaf_edge_device_options *options, edge_events *events, sheaf_problem *problem) {
    char reason[SHEAF_EDGE_REASON_BYTES];
    sheaf_edge_device *device = NULL;
    sheaf_status status = sheaf_edge_device_open(options, &device, reason);
    if (status != SHEAF_OK) return sheaf_problem_set(problem, status, "%s", reason);
    sheaf_log(SHEAF_LOG_INFO, "started", "client=%s tenant=%s job=%s url=%s version=%s",
              sheaf_edge_device_client(device), sheaf_edge_device_tenant(device), options->job, options->url,
              SHEAF_VERSION);
    events->device = device;
    running = device;
    if (stop_asked) sheaf_edge_device_request_stop(device); /* it came before `running` was set */
    status = sheaf_edge_device_run(device);
    running = NULL;
    events->device = NULL;
    sheaf_edge_device_close(device);
    return status;
}

static void wait_a_minute(void) {
    const struct timespec second = {1, 0};
    for (int i = 0; i < ASK_AGAIN_S && !stop_asked; i++) (void)nanosleep(&second, NULL);
}

static int run(const edge_config *config, const command_line *line, const sheaf_trainer *trainer) {
    edge_events events = {.once = line->once};
    sheaf_edge_device_options options = device_options(config, trainer, &events);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status;
    int stay = !config->edge.exit_when_done && !line->exit_when_done && !line->once;
    while ((status = run_job(&options, &events, &problem)) == SHEAF_ENDED && stay && !stop_asked) wait_a_minute();
    if (status != SHEAF_ENDED && status != SHEAF_STOPPED) return fail(status, problem.text);
    int refused = line->once && events.receipts == 0 && events.refusals > 0;
    int code = refused || events.job_status != SHEAF_OK ? EXIT_REFUSED : EXIT_DONE;
    sheaf_log(SHEAF_LOG_INFO, "stopped", "code=%d receipts=%u refusals=%u", code, events.receipts, events.refusals);
    return code;
}

/* SIGPIPE is ignored, because a trainer may die before it reads its plan. */
static void catch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal; /* without SA_RESTART, so that a nap ends */
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

static int serve(const edge_config *config, const command_line *line) {
    if (sheaf_log_configure((sheaf_log_level)config->log.level, config->log.json, config->log.file) != SHEAF_OK) {
        return fail(SHEAF_E_DISK, "cannot open the log file");
    }
    catch_signals();
    sheaf_problem problem = {SHEAF_OK, ""};
    trainers made = {NULL, NULL};
    sheaf_trainer trainer;
    sheaf_status status = open_trainer(config, &made, &trainer, &problem);
    int code = status == SHEAF_OK ? run(config, line, &trainer) : fail(status, problem.text);
    close_trainer(&made);
    return code;
}

static int load_and_serve(const command_line *line) {
    edge_config config;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = edge_config_load(line->config_path, &config, &problem);
    if (status != SHEAF_OK) return fail(status, problem.text);
    if (line->trainer != NULL) config.trainer.use = line->trainer;
    int code = EXIT_DONE;
    status = edge_config_check_trainer(&config, &problem);
    if (status != SHEAF_OK)
        code = fail(status, problem.text);
    else if (line->only_check)
        printf("%s: all well\n", line->config_path);
    else
        code = serve(&config, line);
    edge_config_free(&config);
    return code;
}

/* 1 when the argument was one with a value or a flag of ours; *at moves over the value. */
static int take_argument(command_line *line, int count, char **arguments, int *at) {
    const char *argument = arguments[*at];
    int has_value = *at + 1 < count;
    if (strcmp(argument, "--once") == 0)
        line->once = 1;
    else if (strcmp(argument, "--exit-when-done") == 0)
        line->exit_when_done = 1;
    else if (strcmp(argument, "--check-config") == 0)
        line->only_check = 1;
    else if (strcmp(argument, "--config") == 0 && has_value)
        line->config_path = arguments[++*at];
    else if (strcmp(argument, "--trainer") == 0 && has_value)
        line->trainer = arguments[++*at];
    else
        return 0;
    return 1;
}

int main(int count, char **arguments) {
    command_line line = {0};
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--help") == 0) return fputs(help, stdout), EXIT_DONE;
        if (strcmp(arguments[i], "--help-config") == 0) return edge_config_print_reference(stdout), EXIT_DONE;
        if (strcmp(arguments[i], "--version") == 0) return printf("sheaf-edge %s\n", SHEAF_VERSION), EXIT_DONE;
        if (take_argument(&line, count, arguments, &i)) continue;
        fprintf(stderr, "sheaf-edge: unknown or incomplete argument '%s'\n%s", arguments[i], help);
        return EXIT_BAD_USAGE;
    }
    if (line.config_path == NULL) {
        fprintf(stderr, "sheaf-edge: --config FILE is needed\n%s", help);
        return EXIT_BAD_USAGE;
    }
    return load_and_serve(&line);
}
