/* job_order.h - the commands of `sheaf job` that ask a running service: list, show, pause, resume, cancel.
 *
 * Threads: one.
 * Errors:  exit codes; what is wrong was printed.
 * Not:     status and watch, which read the state folder; job.c has those. */
#pragma once

/* Runs the command arguments[0]; -1 when it is none of these. */
int sheaf_job_order_run(int count, char **arguments, const char *help);
