/* sheaf bench - figures of this machine, each beside a reference that was measured in the same run. */
#include "server/tool/bench.h"
#include "common/log.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/tool/verb.h"

static const char help[] =
    "usage: sheaf bench transport [OPTIONS]\n"
    "\n"
    "Carriers on loopback, server and clients in processes of their own, over mutual TLS: payloads with an\n"
    "acknowledgement, connects, and the server's memory.\n"
    "\n"
    "  --clients N       devices that send at the same time (50)\n"
    "  --bytes N         of a payload (1048576)\n"
    "  --frame N         payload bytes in one frame (262144)\n"
    "  --seconds S       measured in each turn (2)\n"
    "  --turns N         turns of each side; the median counts (3)\n"
    "  --only NAME       a single result\n"
    "  --json            one JSON object on one line\n";

static const struct {
    const char *name;
    int (*run)(const sheaf_bench_options *options, sheaf_bench_result *results, size_t *count, sheaf_problem *problem);
} benches[] = {{"transport", sheaf_bench_transport}};

int sheaf_bench_is_wanted(const sheaf_bench_options *options, const char *name) {
    return options->only == NULL || strcmp(options->only, name) == 0;
}

static void show_nothing(const sheaf_bench_result *result) { (void)result; }

static void show_line(const sheaf_bench_result *result) {
    printf("%-18s %12.1f %s", result->name, result->value, result->unit);
    if (result->reference > 0)
        printf("   reference %.1f, ratio %.2f", result->reference, result->value / result->reference);
    printf("\n");
    (void)fflush(stdout);
}

/* "AMD EPYC ..., 2 cores" */
static void describe_machine(char *out, size_t capacity) {
    char line[256], model[128] = "unknown processor";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name : %127[^\n]", model) == 1) break;
    if (file != NULL) (void)fclose(file);
    (void)snprintf(out, capacity, "%s, %ld cores", model, sysconf(_SC_NPROCESSORS_ONLN));
}

static void print_json(const char *bench, const sheaf_bench_result *results, size_t count) {
    char machine[192];
    describe_machine(machine, sizeof machine);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        int compared = results[i].reference > 0;
        (void)json_array_append_new(
            list, json_pack("{s:s, s:f, s:s, s:o, s:o}", "name", results[i].name, "value", results[i].value, "unit",
                            results[i].unit, "reference", compared ? json_real(results[i].reference) : json_null(),
                            "ratio", compared ? json_real(results[i].value / results[i].reference) : json_null()));
    }
    json_t *object = json_pack("{s:s, s:s, s:o}", "bench", bench, "machine", machine, "results", list);
    (void)json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(object);
}

static int read_number(const char *text, double minimum, double maximum, double *out) {
    char *end = NULL;
    if (text == NULL) return 0;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= minimum && *out <= maximum;
}

/* 1 when arguments[*at] is an option, which then may have taken the one behind it; 0: it is wrong. */
static int take_option(char **arguments, int *at, sheaf_bench_options *options, int *json) {
    const char *name = arguments[*at];
    double number = 0;
    if (strcmp(name, "--json") == 0) {
        *json = 1;
        return 1;
    }
    const char *value = arguments[++*at];
    if (strcmp(name, "--only") == 0) {
        options->only = value;
        return value != NULL;
    }
    if (strcmp(name, "--clients") == 0 && read_number(value, 1, 4000, &number))
        options->clients = (unsigned)number;
    else if (strcmp(name, "--turns") == 0 && read_number(value, 1, 15, &number))
        options->turns = (unsigned)number;
    else if (strcmp(name, "--bytes") == 0 && read_number(value, 1, 268435456, &number))
        options->bytes = (size_t)number;
    else if (strcmp(name, "--frame") == 0 && read_number(value, 1, 16777216, &number))
        options->frame_bytes = (size_t)number;
    else if (strcmp(name, "--seconds") == 0 && read_number(value, 0.1, 600, &number))
        options->seconds = number;
    else
        return 0;
    return 1;
}

/* A thousand connections need more descriptors than a shell allows at first. */
static void allow_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int sheaf_verb_bench(int count, char **arguments) {
    sheaf_bench_options options = {
        .clients = 50, .turns = 3, .bytes = 1048576, .frame_bytes = 262144, .seconds = 2, .show = show_line};
    sheaf_bench_result results[SHEAF_BENCH_RESULTS_MAX];
    sheaf_problem problem = {SHEAF_OK, ""};
    size_t found = 0, bench = 0;
    int json = 0;
    if (sheaf_log_configure(SHEAF_LOG_WARNING, 0, NULL) != SHEAF_OK) return SHEAF_EXIT_ENVIRONMENT;
    if (count > 1 && strcmp(arguments[1], "--help") == 0) {
        printf("%s", help);
        return SHEAF_EXIT_OK;
    }
    if (count < 2) return sheaf_tool_usage("bench", help, "what to measure is missing");
    while (bench < sizeof benches / sizeof benches[0] && strcmp(benches[bench].name, arguments[1]) != 0) bench++;
    if (bench == sizeof benches / sizeof benches[0])
        return sheaf_tool_usage("bench", help, "'%s' is nothing that it measures", arguments[1]);
    for (int i = 2; i < count; i++) {
        int at = i;
        if (!take_option(arguments, &i, &options, &json))
            return sheaf_tool_usage("bench", help, "%s: no option, or its value is missing or out of range",
                                    arguments[at]);
    }
    if (json) options.show = show_nothing;
    allow_descriptors();
    if (!benches[bench].run(&options, results, &found, &problem)) return sheaf_tool_fail("bench", &problem);
    if (found == 0) return sheaf_tool_usage("bench", help, "no result is called '%s'", options.only);
    if (json) print_json(arguments[1], results, found);
    return SHEAF_EXIT_OK;
}
