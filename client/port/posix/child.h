/* child.h - a program of the user's that runs beside us: started without a shell, spoken to by lines, never waited for.
 *
 * Owner:   the caller; stop is safe on a zeroed or ended child, and reaps.
 * Threads: one.
 * Units:   bytes; lines end with a newline, which is not part of them.
 * Errors:  SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION (the program), SHEAF_E_MEMORY, SHEAF_E_TRAINER (its own failure).
 * Limits:  a line of its standard output has at most SHEAF_CHILD_LINE_BYTES; a longer one is SHEAF_E_TOO_LARGE.
 * Group:   it leads a process group, which is killed as a whole. Its standard input stays open as long as we live: a
 *          program that must not outlive us watches for its end. */
#pragma once
#include <sys/types.h>

#include "common/problem.h"

#define SHEAF_CHILD_LINE_BYTES 65536u

typedef struct {
    int fd; /* -1 when closed */
    size_t size;
    size_t given; /* bytes at the front that were given out as a line */
    char *text;   /* SHEAF_CHILD_LINE_BYTES */
} sheaf_child_stream;

typedef struct {
    pid_t pid; /* 0 when none runs */
    int input; /* its standard input; -1 when closed */
    int exited;
    int exit_code; /* 128 + signal when it was killed */
    sheaf_child_stream output, errors;
} sheaf_child;

/* arguments[0] is looked for in PATH when it holds no slash; NULL-terminated. */
SHEAF_MUST_USE sheaf_status sheaf_child_start(sheaf_child *child, char *const arguments[], sheaf_problem *problem);
/* All of `text`, which has at most 4096 bytes so that the pipe takes it whole. */
SHEAF_MUST_USE sheaf_status sheaf_child_tell(sheaf_child *child, const char *text, sheaf_problem *problem);
/* The next line of a stream, NUL-terminated, until the next call. SHEAF_AGAIN: none yet. SHEAF_ENDED: closed. */
SHEAF_MUST_USE sheaf_status sheaf_child_line(sheaf_child_stream *stream, const char **line);
/* SHEAF_AGAIN while it runs; SHEAF_OK once it has exited, and exit_code is set. */
SHEAF_MUST_USE sheaf_status sheaf_child_ended(sheaf_child *child);
void sheaf_child_stop(sheaf_child *child);
