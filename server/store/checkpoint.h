/* checkpoint.h - the model versions of a job on disk: FOLDER/models/DIGEST.safetensors.
 *
 * Owner:   the caller owns models that are loaded.
 * Threads: the round's thread.
 * Errors:  disk errors of common/file.h, SHEAF_E_DATA, SHEAF_E_CORRUPT (the file's content does not have its name's
 * digest). */
#pragma once
#include "common/file.h"
#include "common/model.h"

/* Where the version lies. */
SHEAF_MUST_USE sheaf_status sheaf_checkpoint_path(const char *job_folder, const uint8_t digest[SHEAF_DIGEST_BYTES],
                                                  char out[SHEAF_PATH_BYTES], sheaf_problem *problem);
/* Writes the model durably under its digest, with the round that made it (0: the initial model) in its metadata. */
SHEAF_MUST_USE sheaf_status sheaf_checkpoint_save(const char *job_folder, const sheaf_model *model,
                                                  const uint8_t digest[SHEAF_DIGEST_BYTES], const char *tenant,
                                                  const char *job, uint64_t round, sheaf_problem *problem);
/* Reads a version and checks that it has this digest. */
SHEAF_MUST_USE sheaf_status sheaf_checkpoint_load(const char *job_folder, const uint8_t digest[SHEAF_DIGEST_BYTES],
                                                  uint64_t limit_bytes, sheaf_model *out, sheaf_problem *problem);
/* Forgets a version; fine if it is not there. */
SHEAF_MUST_USE sheaf_status sheaf_checkpoint_remove(const char *job_folder, const uint8_t digest[SHEAF_DIGEST_BYTES],
                                                    sheaf_problem *problem);
