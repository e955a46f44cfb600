/* safetensors.h - model versions as files in Hugging Face's safetensors format, with its rules and ours.
 *
 * Rules: u64 little-endian header length (<= 100 MB), a JSON object that starts with '{', per tensor dtype, shape and
 * data_offsets; offsets cover the data without hole or overlap; sizes agree; duplicate keys are refused; metadata is a
 * map of strings.
 *
 * Owner:   read gives a model that the caller frees.
 * Threads: any; no state.
 * Errors:  SHEAF_E_DATA with file, tensor and reason; SHEAF_E_NOT_FOUND; disk errors of file.h. */
#pragma once
#include "common/model.h"

typedef struct {
    const char *key, *value;
} sheaf_metadata;

SHEAF_MUST_USE sheaf_status sheaf_safetensors_read(const char *path, uint64_t limit_bytes, sheaf_model *out, sheaf_problem *problem);
/* The same from memory; `name` stands in errors. This is what the fuzz target feeds. */
SHEAF_MUST_USE sheaf_status sheaf_safetensors_parse(sheaf_span file, const char *name, sheaf_model *out, sheaf_problem *problem);
/* Writes durably (file.h): the file is whole under its name, or the old one is still there. */
SHEAF_MUST_USE sheaf_status sheaf_safetensors_write(const char *path, const sheaf_model *model, const sheaf_metadata *metadata, size_t count,
                                                    sheaf_problem *problem);
