/* safetensors.h - model versions as files in Hugging Face's safetensors format, with its rules and ours.
 *
 * Rules: u64 little-endian header length (<= 100 MB), a JSON object that starts with '{', per tensor dtype, shape and
 * data_offsets; offsets cover the data without hole or overlap; sizes agree; duplicate keys are refused; metadata is a
 * map of strings. Ours: the limits of parameters.h on names and rank, and no field that the format does not name.
 * Written files have their keys in byte order and their data in order of element size, so that every tensor is aligned.
 *
 * Owner:   read gives a model that the caller frees; an open sheaf_safetensors_file is closed by the caller.
 * Threads: any; no state.
 * Errors:  SHEAF_E_DATA with file, tensor and reason; SHEAF_E_NOT_FOUND; disk errors of file.h. */
#pragma once
#include "common/model.h"

typedef struct {
    const char *key, *value;
} sheaf_metadata;

SHEAF_MUST_USE sheaf_status sheaf_safetensors_read(const char *path, uint64_t limit_bytes, sheaf_model *out,
                                                   sheaf_problem *problem);
/* The same from memory; `name` stands in errors. This is what the fuzz target feeds. */
SHEAF_MUST_USE sheaf_status sheaf_safetensors_parse(sheaf_span file, const char *name, sheaf_model *out,
                                                    sheaf_problem *problem);
/* Writes durably (file.h): the file is whole under its name, or the old one is still there. */
SHEAF_MUST_USE sheaf_status sheaf_safetensors_write(const char *path, const sheaf_model *model,
                                                    const sheaf_metadata *metadata, size_t count,
                                                    sheaf_problem *problem);

/* A file that is read piece by piece, so that memory does not grow with it. */
typedef struct {
    const char *path; /* borrowed until close */
    int fd;
    sheaf_tensor *tensors; /* in byte order of names */
    uint64_t *offsets;     /* of each tensor's data in the file, bytes */
    size_t count;
} sheaf_safetensors_file;

/* Reads and checks the header. On failure there is nothing to close. */
SHEAF_MUST_USE sheaf_status sheaf_safetensors_open(const char *path, uint64_t limit_bytes, sheaf_safetensors_file *out,
                                                   sheaf_problem *problem);
/* `size` bytes of the data of tensor `index` from `offset` on; offset + size <= its bytes. */
SHEAF_MUST_USE sheaf_status sheaf_safetensors_pread(const sheaf_safetensors_file *file, size_t index, uint64_t offset,
                                                    void *out, size_t size, sheaf_problem *problem);
void sheaf_safetensors_close(sheaf_safetensors_file *file); /* safe on one that failed to open or is closed */
