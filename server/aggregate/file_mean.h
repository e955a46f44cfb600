/* file_mean.h - the weighted mean of whole models or updates that lie in safetensors files, by the lattice's rules.
 *
 * Each F32 tensor gets the finest lattice that its values and their weighted sum fit in; integer and bool tensors have
 * to be equal in all inputs and are copied. Memory is the output plus a fixed window, whatever the number of inputs.
 *
 * Owner:   the caller frees the result with sheaf_file_mean_free; inputs are borrowed for the call.
 * Threads: any; no state. The thread must have the default floating-point environment (asserted).
 * Units:   weights are integers >= 0.
 * Errors:  SHEAF_E_USAGE (no inputs), SHEAF_E_WEIGHT_NEGATIVE, SHEAF_E_OVERFLOW (sum of weights), SHEAF_E_NO_WEIGHT;
 * with file and tensor: SHEAF_E_NAME, SHEAF_E_DTYPE, SHEAF_E_SHAPE, SHEAF_E_NOT_FINITE, SHEAF_E_NOT_REPRESENTABLE,
 * SHEAF_E_MISMATCH, and those of safetensors.h. */
#pragma once
#include "common/model.h"

#define SHEAF_FILE_MEAN_COPIED INT32_MIN /* in fraction_bits: the tensor holds no floats */

typedef struct {
    const char *path;
    int64_t weight;
} sheaf_file_mean_input;

typedef struct {
    sheaf_model model;
    int32_t *fraction_bits; /* one a tensor, in the model's order */
    uint64_t weight;        /* sum of all */
} sheaf_file_mean;

SHEAF_MUST_USE sheaf_status sheaf_file_mean_make(const sheaf_file_mean_input *inputs, size_t count,
                                                 sheaf_file_mean *out, sheaf_problem *problem);
void sheaf_file_mean_free(sheaf_file_mean *mean); /* safe on a zeroed or freed one */
