/* A file that parses is a model whose tensors lie, in order, inside its stream. */
#include <assert.h>
#include <string.h>

#include "common/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_model(const sheaf_model *model) {
    uint64_t end = 0;
    for (size_t i = 0; i < model->count; i++) {
        const sheaf_model_tensor *at = &model->tensors[i];
        assert(at->data_offset >= end && at->tensor.bytes <= model->stream_bytes - at->data_offset);
        assert(i == 0 || strcmp(model->tensors[i - 1].tensor.name, at->tensor.name) < 0);
        end = at->data_offset + at->tensor.bytes;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_model model;
    sheaf_problem problem;
    memset(&model, 0, sizeof model);
    if (sheaf_safetensors_parse(sheaf_span_of(data, size), "fuzz.safetensors", &model, &problem) == SHEAF_OK) {
        check_model(&model);
    }
    sheaf_model_free(&model);
    return 0;
}
