/* main.c - sheafd: reads its config, runs the service, ends cleanly on SIGINT and SIGTERM. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "server/queue.h"
#include "server/service.h"

enum { EXIT_DONE = 0, EXIT_JOB_GIVEN_UP = 1, EXIT_BAD_USAGE = 2, EXIT_BAD_CONFIG = 3, EXIT_ENVIRONMENT = 4 };

static const char help[] =
    "usage: sheafd --config FILE [--check-config]\n"
    "\n"
    "The federated aggregation service. It serves the jobs of its config file until it is told to stop.\n"
    "\n"
    "  --config FILE    YAML; --help-config prints every key\n"
    "  --check-config   only read and check the config\n"
    "  --help-config    print the config reference and exit\n"
    "  --version        print the version and exit\n"
    "\n"
    "SIGINT or SIGTERM stop it cleanly; a restart goes on with the open round. SIGHUP opens the log file again, and looks\n"
    "at certificates, keys and revocation lists at once; changes of these are also noticed without it, within two\n"
    "seconds.\n"
    "exit codes: 0 done, 1 a job was given up, 2 usage, 3 bad config or input files, 4 environment (disk, address, "
    "memory)\n";

static int fail(const sheaf_problem *problem) {
    fprintf(stderr, "sheafd: %s (%s)\n", problem->text, sheaf_status_name(problem->status));
    sheaf_status status = problem->status;
    int input = status >= 300 || status < 200 || status == SHEAF_E_NOT_FOUND || status == SHEAF_E_PERMISSION;
    return input ? EXIT_BAD_CONFIG : EXIT_ENVIRONMENT;
}

/* For who moves log files away. What cannot be opened leaves the old one in use, which then says so. */
static void reopen_log(const sheafd_config *config) {
    sheaf_status status = sheaf_log_configure((sheaf_log_level)config->log.level, config->log.json, config->log.file);
    if (status != SHEAF_OK)
        sheaf_log(SHEAF_LOG_ERROR, "log_not_reopened", "file=\"%s\" status=%s", config->log.file,
                  sheaf_status_name(status));
}

/* Waits for a signal, or until every job has ended and its devices know it (at most LINGER_S longer). */
static int wait_for_end(const sheafd_config *config, sheaf_service *service, const sigset_t *signals) {
    enum { LINGER_S = 25, KEEP_S = 30 }; /* a device's longest pause is 19 s */
    const struct timespec pause = {0, 100000000};
    uint64_t linger_until_ns = SHEAF_NEVER_NS, keep_ns = sheaf_now_ns() + KEEP_S * 1000000000ull;
    for (;;) {
        int signal_number = sigtimedwait(signals, NULL, &pause);
        if (signal_number == SIGHUP) { /* also a terminal that goes, which must not take the rounds with it */
            reopen_log(config);
            sheaf_service_watch(service, 1);
            continue;
        }
        sheaf_service_watch(service, 0);
        if (signal_number > 0) {
            sheaf_log(SHEAF_LOG_INFO, "stopping", "signal=%d", signal_number);
            return EXIT_DONE;
        }
        if (sheaf_now_ns() >= keep_ns) {
            sheaf_service_keep_refusals(service);
            keep_ns = sheaf_now_ns() + KEEP_S * 1000000000ull;
        }
        sheaf_status ended = sheaf_service_jobs_ended(service);
        if (ended == SHEAF_AGAIN || !config->server.exit_when_done) continue;
        if (linger_until_ns == SHEAF_NEVER_NS) linger_until_ns = sheaf_now_ns() + LINGER_S * 1000000000ull;
        if (!sheaf_service_everyone_knows(service) && sheaf_now_ns() < linger_until_ns) continue;
        return ended == SHEAF_OK ? EXIT_DONE : EXIT_JOB_GIVEN_UP;
    }
}

static int serve(const sheafd_config *config) {
    sheaf_problem problem = {SHEAF_OK, ""};
    if (sheaf_log_configure((sheaf_log_level)config->log.level, config->log.json, config->log.file) != SHEAF_OK) {
        (void)sheaf_problem_set(&problem, SHEAF_E_DISK, "%s: cannot open the log file", config->log.file);
        return fail(&problem);
    }
    /* Blocked before any thread starts, so that only wait_for_end sees them. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    sheaf_service *service = NULL;
    if (sheaf_service_open(config, &service, &problem) != SHEAF_OK) return fail(&problem);
    sheaf_log(SHEAF_LOG_INFO, "listening", "url=%s version=%s", sheaf_service_url(service), SHEAF_VERSION);
    int code = wait_for_end(config, service, &signals);
    sheaf_service_close(service);
    sheaf_log(SHEAF_LOG_INFO, "stopped", "code=%d", code);
    return code;
}

int main(int count, char **arguments) {
    const char *path = NULL;
    int only_check = 0;
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--help") == 0) return fputs(help, stdout), EXIT_DONE;
        if (strcmp(arguments[i], "--help-config") == 0) return sheafd_config_print_reference(stdout), EXIT_DONE;
        if (strcmp(arguments[i], "--version") == 0) return printf("sheafd %s\n", SHEAF_VERSION), EXIT_DONE;
        if (strcmp(arguments[i], "--check-config") == 0)
            only_check = 1;
        else if (strcmp(arguments[i], "--config") == 0 && i + 1 < count)
            path = arguments[++i];
        else
            return fprintf(stderr, "sheafd: unknown or incomplete argument '%s'\n%s", arguments[i], help),
                   EXIT_BAD_USAGE;
    }
    if (path == NULL) return fprintf(stderr, "sheafd: --config FILE is needed\n%s", help), EXIT_BAD_USAGE;
    sheafd_config config;
    sheaf_problem problem;
    if (sheafd_config_load(path, &config, &problem) != SHEAF_OK) return fail(&problem);
    int code = EXIT_DONE;
    if (only_check)
        printf("%s: %zu job%s, all well\n", path, config.jobs.count, config.jobs.count == 1 ? "" : "s");
    else
        code = serve(&config);
    sheafd_config_free(&config);
    return code;
}
