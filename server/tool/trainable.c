#include "server/tool/trainable.h"

#include <stdlib.h>

#include "common/digest.h"

enum { BLOCK = 1024 }; /* values moved at a time */
#define MODEL_BYTES_MAX (UINT64_C(4) << 30)

sheaf_status sheaf_trainable_open(const char *network_path, uint32_t batch_max, sheaf_trainable *out,
                                  sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    sheaf_status status = sheaf_model_file_load(network_path, &out->spec, problem);
    if (status != SHEAF_OK) return status;
    size_t bytes = sheaf_network_bytes(&out->spec, batch_max);
    if (bytes == 0)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: too large with batches of %u", network_path,
                                 (unsigned)batch_max);
    out->memory = malloc(bytes);
    if (out->memory == NULL)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for %zu bytes", network_path, bytes);
    status = sheaf_network_open(&out->network, &out->spec, batch_max, out->memory, bytes);
    return status == SHEAF_OK ? status : sheaf_problem_set(problem, status, "%s: cannot be opened", network_path);
}

void sheaf_trainable_close(sheaf_trainable *trainable) {
    free(trainable->memory);
    memset(trainable, 0, sizeof *trainable);
}

sheaf_status sheaf_trainable_seed(uint64_t number, uint8_t seed[SHEAF_SEED_BYTES]) {
    uint8_t text[20 + 8] = "sheaf model seed v1"; /* domain with its NUL, then the number */
    sheaf_store_u64(text + 20, number);
    return sheaf_digest_of(sheaf_span_of(text, sizeof text), seed);
}

static sheaf_status load_tensor(sheaf_network *network, const sheaf_model *model, const sheaf_model_tensor *from,
                                const char *path, sheaf_problem *problem) {
    const sheaf_tensor *t = &from->tensor;
    float values[BLOCK];
    uint32_t index = 0;
    sheaf_status status =
        strcmp(t->dtype, "F32") == 0 ? sheaf_network_find(network, t->name, t->rank, t->dims, &index) : SHEAF_E_DTYPE;
    if (status != SHEAF_OK) {
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: tensor '%s' is not the network's (%s)", path, t->name,
                                 sheaf_status_name(status));
    }
    for (uint64_t first = 0; first < t->elements && status == SHEAF_OK; first += BLOCK) {
        size_t count = t->elements - first < BLOCK ? (size_t)(t->elements - first) : BLOCK;
        for (size_t i = 0; i < count; i++)
            values[i] = sheaf_load_f32(model->stream + from->data_offset + 4 * (first + i));
        status = sheaf_network_load(network, index, first, values, count);
    }
    return status;
}

sheaf_status sheaf_trainable_load(sheaf_trainable *trainable, const char *model_path, sheaf_problem *problem) {
    sheaf_model model = {0};
    uint32_t expected = sheaf_network_tensor_count(&trainable->network);
    sheaf_status status = sheaf_safetensors_read(model_path, MODEL_BYTES_MAX, &model, problem);
    for (size_t i = 0; status == SHEAF_OK && i < model.count; i++) {
        status = load_tensor(&trainable->network, &model, &model.tensors[i], model_path, problem);
    }
    /* Names are unique in a model, so an equal count means that none is missing. */
    if (status == SHEAF_OK && model.count != expected) {
        status = sheaf_problem_set(problem, SHEAF_E_DATA, "%s: %zu tensors; the network has %u", model_path,
                                   model.count, (unsigned)expected);
    }
    sheaf_model_free(&model);
    return status;
}

static sheaf_status fill_tensor(const sheaf_network *network, sheaf_model *model, const sheaf_model_tensor *to) {
    const sheaf_tensor *t = &to->tensor;
    float values[BLOCK];
    uint32_t index = 0;
    sheaf_status status = sheaf_network_find(network, t->name, t->rank, t->dims, &index);
    for (uint64_t first = 0; first < t->elements && status == SHEAF_OK; first += BLOCK) {
        size_t count = t->elements - first < BLOCK ? (size_t)(t->elements - first) : BLOCK;
        status = sheaf_network_store(network, index, first, values, count);
        for (size_t i = 0; i < count; i++)
            sheaf_store_f32(model->stream + to->data_offset + 4 * (first + i), values[i]);
    }
    return status;
}

sheaf_status sheaf_trainable_save(const sheaf_trainable *trainable, const char *model_path,
                                  char digest[2 * SHEAF_DIGEST_BYTES + 1], sheaf_problem *problem) {
    sheaf_tensor tensors[2 * SHEAF_LAYERS_MAX];
    sheaf_model model = {0};
    uint8_t bytes[SHEAF_DIGEST_BYTES];
    uint32_t count = sheaf_network_tensor_count(&trainable->network);
    for (uint32_t i = 0; i < count; i++) sheaf_network_tensor(&trainable->network, i, &tensors[i]);
    sheaf_status status = sheaf_model_make(tensors, count, &model, problem);
    for (size_t i = 0; status == SHEAF_OK && i < model.count; i++)
        status = fill_tensor(&trainable->network, &model, &model.tensors[i]);
    if (status == SHEAF_OK) status = sheaf_safetensors_write(model_path, &model, NULL, 0, problem);
    if (status == SHEAF_OK) {
        status = sheaf_model_digest(&model, bytes);
        if (status != SHEAF_OK) (void)sheaf_problem_set(problem, status, "%s: no digest", model_path);
    }
    if (status == SHEAF_OK) sheaf_hex(bytes, sizeof bytes, digest);
    sheaf_model_free(&model);
    return status;
}

sheaf_status sheaf_trainable_data(const sheaf_trainable *trainable, const sheaf_data_options *options,
                                  sheaf_dataset *out, sheaf_problem *problem) {
    sheaf_data_options fitted = *options;
    fitted.features = trainable->network.features;
    fitted.classes = trainable->network.classes;
    return sheaf_data_load(&fitted, out, problem);
}
