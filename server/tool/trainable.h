/* trainable.h - for the verbs that train or evaluate: a network with memory, its parameters from and to model files.
 *
 * Owner:   the caller closes it (safe on a zeroed one).
 * Threads: one.
 * Errors:  SHEAF_E_DATA (the file's tensors are not the network's), SHEAF_E_MEMORY, and those of the files. */
#pragma once
#include "client/trainer/data.h"
#include "client/trainer/model_file.h"
#include "common/safetensors.h"

typedef struct {
    sheaf_network_spec spec;
    sheaf_network network;
    void *memory;
} sheaf_trainable;

SHEAF_MUST_USE sheaf_status sheaf_trainable_open(const char *network_path, uint32_t batch_max, sheaf_trainable *out,
                                                 sheaf_problem *problem);
void sheaf_trainable_close(sheaf_trainable *trainable);
/* The 32 bytes that a seed number stands for. */
SHEAF_MUST_USE sheaf_status sheaf_trainable_seed(uint64_t number, uint8_t seed[SHEAF_SEED_BYTES]);
SHEAF_MUST_USE sheaf_status sheaf_trainable_load(sheaf_trainable *trainable, const char *model_path,
                                                 sheaf_problem *problem);
/* Writes the parameters as safetensors and tells their model digest in hex (65 bytes with the NUL). */
SHEAF_MUST_USE sheaf_status sheaf_trainable_save(const sheaf_trainable *trainable, const char *model_path,
                                                 char digest[2 * SHEAF_DIGEST_BYTES + 1], sheaf_problem *problem);
/* Loads data that must fit the network. */
SHEAF_MUST_USE sheaf_status sheaf_trainable_data(const sheaf_trainable *trainable, const sheaf_data_options *options,
                                                 sheaf_dataset *out, sheaf_problem *problem);
