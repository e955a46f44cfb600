/* builtin_host.c - the built-in trainer from files, with memory from the heap. */
#include <stdlib.h>
#include <string.h>

#include "client/trainer/builtin.h"

enum { BATCH_MAX = 1024 };

struct sheaf_builtin_host {
    sheaf_builtin builtin;
    sheaf_dataset data;
    void *memory;
};

void sheaf_builtin_close(sheaf_builtin_host *host) {
    if (host == NULL) return;
    sheaf_data_free(&host->data);
    free(host->memory);
    free(host);
}

static sheaf_status fill(sheaf_builtin_host *host, const sheaf_builtin_options *options, sheaf_problem *problem) {
    sheaf_network_spec spec;
    sheaf_status status = sheaf_model_file_load(options->model_path, &spec, problem);
    if (status != SHEAF_OK) return status;
    sheaf_data_options data = options->data;
    data.features = spec.channels * spec.height * spec.width; /* <= 2^24, as the model file was checked */
    data.classes = sheaf_network_classes(&spec);
    status = sheaf_data_load(&data, &host->data, problem);
    if (status != SHEAF_OK) return status;
    uint32_t batch_max = options->batch_max == 0 ? BATCH_MAX : options->batch_max;
    if (batch_max > host->data.count) batch_max = host->data.count;
    sheaf_examples examples = sheaf_data_examples(&host->data);
    size_t bytes = sheaf_builtin_bytes(&spec, batch_max, examples.count);
    host->memory = bytes == 0 ? NULL : malloc(bytes);
    if (host->memory == NULL) {
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory to train with batches of %u",
                                 options->model_path, (unsigned)batch_max);
    }
    status = sheaf_builtin_init(&host->builtin, &spec, batch_max, &examples, options->slice, host->memory, bytes);
    return status == SHEAF_OK ? status
                              : sheaf_problem_set(problem, status, "%s: cannot be trained", options->model_path);
}

sheaf_status sheaf_builtin_open(const sheaf_builtin_options *options, sheaf_builtin_host **out,
                                sheaf_problem *problem) {
    *out = NULL;
    sheaf_builtin_host *host = calloc(1, sizeof *host);
    if (host == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->model_path);
    sheaf_status status = fill(host, options, problem);
    if (status == SHEAF_OK)
        *out = host;
    else
        sheaf_builtin_close(host);
    return status;
}

sheaf_trainer sheaf_builtin_host_trainer(sheaf_builtin_host *host) { return sheaf_builtin_trainer(&host->builtin); }

uint32_t sheaf_builtin_host_examples(const sheaf_builtin_host *host) { return host->data.count; }
