#include "client/trainer/builtin.h"

#include <string.h>

enum { SLICE = 16 };

size_t sheaf_builtin_bytes(const sheaf_network_spec *spec, uint32_t batch_max, uint32_t examples) {
    uint64_t parameters = sheaf_network_parameters(spec);
    size_t network = sheaf_network_bytes(spec, batch_max), work = sheaf_training_bytes(parameters, examples);
    return network == 0 || work == 0 || work > SIZE_MAX - network ? 0 : network + work;
}

sheaf_status sheaf_builtin_init(sheaf_builtin *builtin, const sheaf_network_spec *spec, uint32_t batch_max,
                                const sheaf_examples *examples, uint32_t slice, void *memory, size_t bytes) {
    memset(builtin, 0, sizeof *builtin);
    size_t needed = sheaf_builtin_bytes(spec, batch_max, examples->count);
    if (needed == 0) return SHEAF_E_USAGE;
    if (bytes < needed) return SHEAF_E_TOO_LARGE;
    size_t network_bytes =
        sheaf_network_bytes(spec, batch_max); /* a multiple of a cache line, so work is aligned as memory is */
    sheaf_status status = sheaf_network_open(&builtin->network, spec, batch_max, memory, network_bytes);
    builtin->examples = *examples;
    builtin->work = (uint8_t *)memory + network_bytes;
    builtin->work_bytes = needed - network_bytes;
    builtin->slice = slice == 0 ? SLICE : slice;
    return status;
}

static sheaf_status begin_round(const sheaf_edge_plan *plan, void *context) {
    sheaf_builtin *b = context;
    (void)plan;
    b->loaded = 0;
    b->training_begun = 0;
    return SHEAF_OK;
}

static sheaf_status find(const sheaf_builtin *b, const sheaf_edge_tensor *tensor, uint32_t *index) {
    if (strcmp(tensor->dtype, "F32") != 0) return SHEAF_E_DTYPE;
    return sheaf_network_find(&b->network, tensor->name, tensor->rank, tensor->dims, index);
}

static sheaf_status load(const sheaf_edge_tensor *tensor, uint64_t first, const float *values, size_t count,
                         void *context) {
    sheaf_builtin *b = context;
    uint32_t index;
    sheaf_status status = find(b, tensor, &index);
    if (status == SHEAF_OK) status = sheaf_network_load(&b->network, index, first, values, count);
    if (status == SHEAF_OK) b->loaded += count;
    return status;
}

static sheaf_status begin_training(sheaf_builtin *b, const sheaf_edge_plan *plan) {
    if (b->loaded != b->network.parameter_count) return SHEAF_E_NAME; /* a tensor of the network did not come */
    sheaf_training_options options = {
        .epochs = plan->epochs, .batch = plan->batch, .learning_rate = plan->learning_rate, .momentum = plan->momentum};
    if (options.batch > b->examples.count) options.batch = b->examples.count;
    if (options.batch > b->network.batch_max) return SHEAF_E_TOO_LARGE;
    memcpy(options.seed, plan->seed, sizeof options.seed);
    sheaf_status status =
        sheaf_training_begin(&b->training, &b->network, &b->examples, &options, b->work, b->work_bytes);
    b->training_begun = status == SHEAF_OK;
    return status;
}

static sheaf_status train(const sheaf_edge_plan *plan, sheaf_edge_progress *progress, void *context) {
    sheaf_builtin *b = context;
    if (progress->stop) return SHEAF_STOPPED;
    if (!b->training_begun) {
        sheaf_status status = begin_training(b, plan);
        if (status != SHEAF_OK) return status;
    }
    sheaf_status status = sheaf_training_step(&b->training, b->slice);
    progress->done_permille = sheaf_training_permille(&b->training);
    progress->loss = sheaf_training_loss(&b->training);
    return status;
}

static sheaf_status store(const sheaf_edge_tensor *tensor, uint64_t first, float *values, size_t count, void *context) {
    const sheaf_builtin *b = context;
    uint32_t index;
    sheaf_status status = find(b, tensor, &index);
    return status != SHEAF_OK ? status : sheaf_network_store(&b->network, index, first, values, count);
}

static int64_t count_examples(void *context) { return (int64_t)((const sheaf_builtin *)context)->examples.count; }

static void cancel(void *context) { (void)begin_round(NULL, context); }

sheaf_trainer sheaf_builtin_trainer(sheaf_builtin *builtin) {
    return (sheaf_trainer){.begin = begin_round,
                           .load = load,
                           .train = train,
                           .store = store,
                           .examples = count_examples,
                           .cancel = cancel,
                           .context = builtin};
}
