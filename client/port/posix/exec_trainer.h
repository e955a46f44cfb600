/* exec_trainer.h - a trainer that is a program of the user's, in any language: `exec:PROGRAM ARGUMENTS`.
 *
 * Once a round the program is started without a shell. It reads one JSON line from its standard input, trains, writes
 * a safetensors file, and writes JSON lines to its standard output; docs/TRAINERS.md holds the protocol. What it
 * writes to its standard error goes to our log.
 *
 * Owner:   the caller; close kills what runs and removes the files.
 * Threads: one, that of the sheaf_edge.
 * Units:   seconds, bytes.
 * Errors:  from the callbacks: SHEAF_E_TRAINER (exit code, protocol), SHEAF_E_TIMEOUT, SHEAF_E_TOO_LARGE, and for what
 *          it wrote SHEAF_E_NAME, SHEAF_E_SHAPE, SHEAF_E_DTYPE, SHEAF_E_NOT_FINITE, SHEAF_E_DATA; the log says more.
 * Not:     a sandbox; the program runs with the daemon's rights. */
#pragma once
#include "common/problem.h"
#include "sheaf/edge.h"

typedef struct {
    const char *command;   /* PROGRAM ARGUMENTS, parted by spaces; no quoting */
    const char *folder;    /* for its files; made if missing */
    uint32_t time_limit_s; /* of a round; > 0 */
    uint64_t size_limit;   /* of the file that it writes; > 0 */
} sheaf_exec_options;

typedef struct sheaf_exec sheaf_exec;

SHEAF_MUST_USE sheaf_status sheaf_exec_open(const sheaf_exec_options *options, sheaf_exec **out,
                                            sheaf_problem *problem);
sheaf_trainer sheaf_exec_trainer(sheaf_exec *exec);
void sheaf_exec_close(sheaf_exec *exec); /* NULL is fine */
