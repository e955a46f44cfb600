/* problem.h - a status with the sentence that a person will read: what is wrong, where, what to do.
 *
 * Owner:   the caller; it holds no pointer and needs no release.
 * Threads: one at a time.
 * Errors:  the functions return the status they were given, so that `return sheaf_problem_set(...)` reads well.
 * Not:     for the device core, which has no stdio; there the status alone speaks. */
#pragma once
#include "common/status.h"

typedef struct {
    sheaf_status status;
    char text[1024];
} sheaf_problem;

/* Fills *problem (may be NULL) with a status and a formatted text; the longest text is cut, never overrun. */
sheaf_status sheaf_problem_set(sheaf_problem *problem, sheaf_status status, const char *format, ...) SHEAF_PRINTF(3, 4);
/* Puts "prefix: " before the text that is already there. Returns problem->status. */
sheaf_status sheaf_problem_prefix(sheaf_problem *problem, const char *format, ...) SHEAF_PRINTF(2, 3);
/* For file calls: status and text from errno, as "path: verb: reason". */
sheaf_status sheaf_problem_errno(sheaf_problem *problem, const char *verb, const char *path);
