/* model.h - a model version in memory: its parameter stream, and where each tensor's data lies in it.
 *
 * Owner:   sheaf_model owns its memory; free with sheaf_model_free (safe on a zeroed one).
 * Threads: reading from any thread once made; writing by one.
 * Units:   offsets in bytes of the stream; `first` and `elements` count values over all tensors in stream order.
 * Errors:  SHEAF_E_MEMORY, SHEAF_E_MALFORMED, SHEAF_E_NAME (duplicate), SHEAF_E_TOO_LARGE.
 * Not:     files; safetensors.h reads and writes those. */
#pragma once
#include "common/parameters.h"
#include "common/problem.h"

typedef struct {
    sheaf_tensor tensor;
    uint64_t data_offset; /* of its data in the stream; not aligned, so use loads, not casts */
    uint64_t first;       /* index of its first element among all elements */
} sheaf_model_tensor;

typedef struct {
    sheaf_model_tensor *tensors; /* in byte order of names */
    size_t count;
    uint8_t *stream;
    uint64_t stream_bytes;
    uint64_t elements;
} sheaf_model;

/* Makes a model of these tensors (any order; dtype, rank, dims and name given), data zeroed. */
SHEAF_MUST_USE sheaf_status sheaf_model_make(const sheaf_tensor *tensors, size_t count, sheaf_model *out,
                                             sheaf_problem *problem);
/* Copies and indexes a parameter stream. */
SHEAF_MUST_USE sheaf_status sheaf_model_from_stream(sheaf_span stream, sheaf_model *out, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_model_copy(const sheaf_model *from, sheaf_model *out);
void sheaf_model_free(sheaf_model *model);
/* SHA-256 of the stream. */
SHEAF_MUST_USE sheaf_status sheaf_model_digest(const sheaf_model *model, uint8_t out[SHEAF_DIGEST_BYTES]);
/* The tensor of that name, or NULL. */
const sheaf_model_tensor *sheaf_model_find(const sheaf_model *model, const char *name);
/* SHEAF_OK when `found` has the name, dtype and shape of `expected`. */
SHEAF_MUST_USE sheaf_status sheaf_tensor_same(const sheaf_tensor *expected, const sheaf_tensor *found,
                                              sheaf_problem *problem);
/* SHEAF_OK when names, dtypes and shapes are the same; else SHEAF_E_NAME, SHEAF_E_DTYPE or SHEAF_E_SHAPE with a text. */
SHEAF_MUST_USE sheaf_status sheaf_model_same_shape(const sheaf_model *a, const sheaf_model *b, sheaf_problem *problem);
