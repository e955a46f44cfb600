#include "server/tool/bench_load.h"

#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/pki/authority.h"

#define DAYS   1u
#define HUNG_S 120u /* beyond what is measured */

double sheaf_bench_now(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void sheaf_bench_die(const char *what, const char *why) {
    fprintf(stderr, "sheaf bench: %s: %s\n", what, why);
    _exit(1);
}

/* ---- processes ---- */

void sheaf_bench_serve_until(const char *address, int ready, int stop) {
    char text[SHEAF_BENCH_ADDRESS_BYTES] = "", waste;
    (void)snprintf(text, sizeof text, "%s", address);
    if (write(ready, text, sizeof text) != (ssize_t)sizeof text) sheaf_bench_die("server", "nobody wants its address");
    while (read(stop, &waste, 1) > 0) continue;
}

static pid_t start_server(const sheaf_bench_pair *pair, const sheaf_bench_load *load, int *ready, int *stop) {
    int up[2], down[2];
    if (pipe(up) != 0) return -1;
    if (pipe(down) != 0) {
        (void)close(up[0]);
        (void)close(up[1]);
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        (void)close(up[0]);
        (void)close(down[1]);
        (void)alarm(HUNG_S + (unsigned)load->seconds);
        pair->serve(load, up[1], down[0]);
        _exit(0);
    }
    (void)close(up[1]);
    (void)close(down[0]);
    *ready = up[0];
    *stop = down[1];
    return child;
}

static double run_client(const sheaf_bench_pair *pair, const sheaf_bench_load *load, const char *address, int stop) {
    int up[2], status = 0;
    double figure = -1;
    if (pipe(up) != 0) return -1;
    pid_t child = fork();
    if (child == 0) {
        (void)close(up[0]);
        (void)close(stop); /* or the server would not see its end */
        (void)alarm(HUNG_S + (unsigned)load->seconds);
        figure = pair->drive(load, address);
        _exit(write(up[1], &figure, sizeof figure) == (ssize_t)sizeof figure ? 0 : 1);
    }
    (void)close(up[1]);
    if (child > 0 && read(up[0], &figure, sizeof figure) != (ssize_t)sizeof figure) figure = -1;
    if (child > 0) (void)waitpid(child, &status, 0);
    (void)close(up[0]);
    return figure;
}

double sheaf_bench_run(const sheaf_bench_pair *pair, const sheaf_bench_load *load, long *peak_kib) {
    char address[SHEAF_BENCH_ADDRESS_BYTES];
    int ready = -1, stop = -1, status = 0;
    double figure = -1;
    struct rusage used = {0};
    pid_t server = start_server(pair, load, &ready, &stop);
    if (server < 0) return -1;
    if (read(ready, address, sizeof address) == (ssize_t)sizeof address) {
        address[sizeof address - 1] = '\0';
        figure = run_client(pair, load, address, stop);
    }
    (void)close(stop);
    (void)close(ready);
    (void)wait4(server, &status, 0, &used);
    if (peak_kib != NULL) *peak_kib = used.ru_maxrss;
    return status == 0 ? figure : -1;
}

/* ---- certificates ---- */

sheaf_tls_options sheaf_bench_tls(const sheaf_bench_load *load, int number, sheaf_bench_paths *paths) {
    char name[32] = "aggregator-bench";
    if (number >= 0) (void)snprintf(name, sizeof name, "device-%04d", number);
    (void)snprintf(paths->certificate, sizeof paths->certificate, "%s/pki/%s.pem", load->folder, name);
    (void)snprintf(paths->key, sizeof paths->key, "%s/pki/%s.key", load->folder, name);
    (void)snprintf(paths->ca, sizeof paths->ca, "%s/pki/ca.pem", load->folder);
    return (sheaf_tls_options){.certificate_path = paths->certificate, .key_path = paths->key, .ca_path = paths->ca};
}

static sheaf_status issue(sheaf_authority *authority, sheaf_role role, const char *name, sheaf_problem *problem) {
    sheaf_issued issued;
    const sheaf_issue_options options = {.role = role,
                                         .tenant = "bench",
                                         .name = name,
                                         .alternative_names = sheaf_role_serves(role) ? "127.0.0.1" : NULL,
                                         .days = DAYS};
    return sheaf_authority_issue(authority, &options, &issued, problem);
}

static sheaf_status issue_all(const char *folder, unsigned devices, sheaf_problem *problem) {
    sheaf_authority *authority = NULL;
    sheaf_status status =
        sheaf_authority_create(folder, &(sheaf_authority_options){.name = "bench", .days = DAYS}, problem);
    if (status == SHEAF_OK) status = sheaf_authority_open(folder, &authority, problem);
    if (status == SHEAF_OK) status = issue(authority, SHEAF_ROLE_AGGREGATOR, "bench", problem);
    if (status == SHEAF_OK) status = issue(authority, SHEAF_ROLE_BROKER, "broker", problem);
    for (unsigned i = 0; i < devices && status == SHEAF_OK; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%04u", i);
        status = issue(authority, SHEAF_ROLE_DEVICE, name, problem);
    }
    sheaf_authority_close(authority);
    return status;
}

sheaf_status sheaf_bench_folder_make(sheaf_bench_load *load, unsigned devices, sheaf_problem *problem) {
    const char *parent = getenv("TMPDIR");
    char pki[SHEAF_PATH_BYTES + 8];
    (void)snprintf(load->folder, sizeof load->folder, "%s/sheaf-bench-XXXXXX", parent == NULL ? "/tmp" : parent);
    if (mkdtemp(load->folder) == NULL) return sheaf_problem_errno(problem, "make", load->folder);
    (void)snprintf(pki, sizeof pki, "%s/pki", load->folder);
    return issue_all(pki, devices, problem);
}

void sheaf_bench_folder_remove(const sheaf_bench_load *load) {
    char root[SHEAF_PATH_BYTES];
    (void)snprintf(root, sizeof root, "%s", load->folder);
    char *const roots[] = {root, NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    FTSENT *entry = NULL;
    while (tree != NULL && (entry = fts_read(tree)) != NULL)
        if (entry->fts_info != FTS_D) (void)remove(entry->fts_accpath);
    if (tree != NULL) (void)fts_close(tree);
}
