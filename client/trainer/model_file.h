/* model_file.h - describes a network in a small YAML file:
 *
 *     input: [28, 28, 1]        # height, width, channels; or [features] for a table
 *     scale: 0.00392156862745   # an input value is (raw - shift) * scale
 *     layers:
 *       - {kind: conv, channels: 8, kernel: 3, padding: same}
 *       - {kind: relu}
 *       - {kind: maxpool, size: 2}
 *       - {kind: dense, units: 10}
 *
 * Owner:   the caller; the spec holds no pointer.
 * Threads: any; no state.
 * Errors:  SHEAF_E_CONFIG with file, line, key and what was expected; SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION.
 * Not:     the values of the parameters; those are safetensors files. */
#pragma once
#include "client/trainer/network.h"
#include "common/problem.h"

SHEAF_MUST_USE sheaf_status sheaf_model_file_load(const char *path, sheaf_network_spec *out, sheaf_problem *problem);
/* The same from memory; `name` stands in errors. */
SHEAF_MUST_USE sheaf_status sheaf_model_file_parse(const char *text, size_t size, const char *name,
                                                   sheaf_network_spec *out, sheaf_problem *problem);
/* Every key with its bounds and help. `stream` is a FILE *. */
void sheaf_model_file_print_reference(void *stream);
