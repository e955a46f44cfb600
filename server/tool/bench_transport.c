/* The cases of `sheaf bench transport`: each a pair of roles and what it is compared with, run in turns, because a
 * machine that does other work too is faster now and slower then; of each side the median counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/tool/bench.h"
#include "server/tool/bench_mqtt.h"
#include "server/tool/bench_nng.h"

#define TURNS_MAX 15u

typedef struct {
    const char *name, *unit;
    sheaf_bench_pair subject, reference; /* a reference without roles: none */
    int digests, durable;
    unsigned memory_clients; /* > 0: the figure is the server's memory with so many, */
    const char *of_case;     /* and the reference is that of this earlier case */
} bench_case;

#define CARRIER                                                                                                        \
    { sheaf_bench_carrier_serve, sheaf_bench_carrier_drive }
#define RAW_NNG                                                                                                        \
    { sheaf_bench_raw_nng_serve, sheaf_bench_raw_nng_drive }
#define MQTT                                                                                                           \
    { sheaf_bench_mqtt_serve, sheaf_bench_carrier_drive }
#define RAW_MQTT                                                                                                       \
    { sheaf_bench_raw_mqtt_serve, sheaf_bench_raw_mqtt_drive }

static const bench_case cases[] = {
    {"nng", "MiB/s", CARRIER, RAW_NNG, 1, 0, 0, NULL},
    {"nng_plain", "MiB/s", CARRIER, RAW_NNG, 0, 0, 0, NULL},
    {"nng_durable", "MiB/s", CARRIER, RAW_NNG, 1, 1, 0, NULL},
    {"nng_connects",
     "1/s",
     {sheaf_bench_carrier_serve, sheaf_bench_connects_drive},
     {sheaf_bench_raw_tls_serve, sheaf_bench_raw_tls_drive},
     0,
     0,
     0,
     NULL},
    {"nng_memory_50", "KiB", CARRIER, {NULL, NULL}, 1, 0, 50, NULL},
    {"nng_memory_1000", "KiB", CARRIER, {NULL, NULL}, 1, 0, 1000, "nng_memory_50"},
    {"mqtt", "MiB/s", MQTT, RAW_MQTT, 1, 0, 0, NULL},
    {"mqtt_plain", "MiB/s", MQTT, RAW_MQTT, 0, 0, 0, NULL},
    {"mqtt_durable", "MiB/s", MQTT, {NULL, NULL}, 1, 1, 0, NULL},
    {"mqtt_broker_peak", "KiB", {sheaf_bench_mqtt_serve, sheaf_bench_broker_drive}, {NULL, NULL}, 1, 0, 0, NULL},
};
#define CASES (sizeof cases / sizeof cases[0])

static int by_size(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static double median(double *figures, unsigned count) {
    qsort(figures, count, sizeof *figures, by_size);
    return count % 2 ? figures[count / 2] : (figures[count / 2 - 1] + figures[count / 2]) / 2;
}

static int run_case(const bench_case *one, const sheaf_bench_load *base, unsigned turns, sheaf_bench_result *result) {
    double subject[TURNS_MAX], reference[TURNS_MAX];
    sheaf_bench_load load = *base;
    load.digests = one->digests;
    load.durable = one->durable;
    if (one->memory_clients > 0) load.clients = one->memory_clients;
    int has_reference = one->reference.serve != NULL;
    for (unsigned i = 0; i < turns; i++) {
        long peak_kib = 0;
        reference[i] = has_reference ? sheaf_bench_run(&one->reference, &load, NULL) : 0;
        subject[i] = sheaf_bench_run(&one->subject, &load, &peak_kib);
        if (subject[i] < 0 || reference[i] < 0) return 0;
        if (one->memory_clients > 0) subject[i] = (double)peak_kib;
    }
    *result = (sheaf_bench_result){.name = one->name,
                                   .unit = one->unit,
                                   .value = median(subject, turns),
                                   .reference = has_reference ? median(reference, turns) : 0};
    return 1;
}

static void compare_with_earlier(const bench_case *one, sheaf_bench_result *results, size_t count) {
    for (size_t i = 0; one->of_case != NULL && i + 1 < count; i++)
        if (strcmp(results[i].name, one->of_case) == 0) results[count - 1].reference = results[i].value;
}

/* As many devices as the largest case that will run has. */
static unsigned most_devices(const sheaf_bench_options *options) {
    unsigned most = options->clients;
    for (size_t i = 0; i < CASES; i++)
        if (sheaf_bench_is_wanted(options, cases[i].name) && cases[i].memory_clients > most)
            most = cases[i].memory_clients;
    return most;
}

int sheaf_bench_transport(const sheaf_bench_options *options, sheaf_bench_result *results, size_t *count,
                          sheaf_problem *problem) {
    sheaf_bench_load load = {.clients = options->clients,
                             .bytes = options->bytes,
                             .frame_bytes =
                                 options->frame_bytes < options->bytes ? options->frame_bytes : options->bytes,
                             .seconds = options->seconds};
    _Static_assert(CASES <= SHEAF_BENCH_RESULTS_MAX, "results have room for all cases");
    unsigned turns = options->turns < TURNS_MAX ? options->turns : TURNS_MAX;
    sheaf_status status = sheaf_bench_folder_make(&load, most_devices(options), problem);
    *count = 0;
    for (size_t i = 0; i < CASES && status == SHEAF_OK; i++) {
        if (!sheaf_bench_is_wanted(options, cases[i].name)) continue;
        if (!run_case(&cases[i], &load, turns, &results[*count])) {
            status = sheaf_problem_set(problem, SHEAF_E_NETWORK, "%s: a process of it failed", cases[i].name);
            break;
        }
        (*count)++;
        compare_with_earlier(&cases[i], results, *count);
        options->show(&results[*count - 1]);
    }
    sheaf_bench_folder_remove(&load);
    return status == SHEAF_OK;
}
