/* A plan that decodes is valid and has one encoding. */
#include <assert.h>

#include "proto/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_plan plan;
    uint8_t memory[SHEAF_PLAN_BYTES_MAX];
    sheaf_buffer out = {memory, 0, sizeof memory};
    if (sheaf_plan_decode(sheaf_span_of(data, size), &plan) != SHEAF_OK) return 0;
    sheaf_status status = sheaf_plan_validate(&plan);
    assert(status == SHEAF_OK);
    status = sheaf_plan_encode(&plan, &out);
    assert(status == SHEAF_OK && sheaf_span_equal(sheaf_buffer_span(&out), sheaf_span_of(data, size)));
    return 0;
}
