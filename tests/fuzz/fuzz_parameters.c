/* A parameter stream that is read as a model is that model's stream, byte for byte: a digest has one meaning. */
#include <assert.h>
#include <string.h>

#include "common/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_model model, again;
    sheaf_problem problem;
    memset(&model, 0, sizeof model);
    memset(&again, 0, sizeof again);
    if (sheaf_model_from_stream(sheaf_span_of(data, size), &model, &problem) == SHEAF_OK) {
        assert(sheaf_span_equal(sheaf_span_of(model.stream, (size_t)model.stream_bytes), sheaf_span_of(data, size)));
        sheaf_status status = sheaf_model_copy(&model, &again);
        assert(status == SHEAF_OK && sheaf_model_same_shape(&model, &again, NULL) == SHEAF_OK);
    }
    sheaf_model_free(&model);
    sheaf_model_free(&again);
    return 0;
}
