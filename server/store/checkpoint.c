#include "server/store/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/safetensors.h"

sheaf_status sheaf_checkpoint_path(const char *job_folder, const uint8_t digest[SHEAF_DIGEST_BYTES],
                                   char out[SHEAF_PATH_BYTES], sheaf_problem *problem) {
    char name[16 + 2 * SHEAF_DIGEST_BYTES + 16], hex[2 * SHEAF_DIGEST_BYTES + 1];
    sheaf_hex(digest, SHEAF_DIGEST_BYTES, hex);
    (void)snprintf(name, sizeof name, "models/%s.safetensors", hex);
    return sheaf_path_join(out, job_folder, name, problem);
}

sheaf_status sheaf_checkpoint_save(const char *job_folder, const sheaf_model *model,
                                   const uint8_t digest[SHEAF_DIGEST_BYTES], const char *tenant, const char *job,
                                   uint64_t round, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES], folder[SHEAF_PATH_BYTES], hex[2 * SHEAF_DIGEST_BYTES + 1], number[24];
    sheaf_status status = sheaf_path_join(folder, job_folder, "models", problem);
    if (status == SHEAF_OK) status = sheaf_file_make_folder(folder, problem);
    if (status == SHEAF_OK) status = sheaf_checkpoint_path(job_folder, digest, path, problem);
    if (status != SHEAF_OK) return status;
    sheaf_hex(digest, SHEAF_DIGEST_BYTES, hex);
    (void)snprintf(number, sizeof number, "%" PRIu64, round);
    const sheaf_metadata metadata[] = {{"tenant", tenant}, {"job", job}, {"round", number}, {"model_digest", hex}};
    return sheaf_safetensors_write(path, model, metadata, sizeof metadata / sizeof metadata[0], problem);
}

sheaf_status sheaf_checkpoint_load(const char *job_folder, const uint8_t digest[SHEAF_DIGEST_BYTES],
                                   uint64_t limit_bytes, sheaf_model *out, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    uint8_t found[SHEAF_DIGEST_BYTES];
    memset(out, 0, sizeof *out);
    sheaf_status status = sheaf_checkpoint_path(job_folder, digest, path, problem);
    if (status == SHEAF_OK) status = sheaf_safetensors_read(path, limit_bytes, out, problem);
    if (status == SHEAF_OK) status = sheaf_model_digest(out, found);
    if (status == SHEAF_OK && memcmp(found, digest, sizeof found) != 0) {
        status =
            sheaf_problem_set(problem, SHEAF_E_CORRUPT,
                              "%s: its content does not have the digest in its name; restore it from a backup", path);
    }
    if (status != SHEAF_OK) sheaf_model_free(out);
    return status;
}

sheaf_status sheaf_checkpoint_remove(const char *job_folder, const uint8_t digest[SHEAF_DIGEST_BYTES],
                                     sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_checkpoint_path(job_folder, digest, path, problem);
    return status == SHEAF_OK ? sheaf_file_remove(path, problem) : status;
}
