/* openssl_problem.h - what OpenSSL's error queue says, as a problem that a person can read.
 *
 * Owner:   the caller brackets its OpenSSL calls with ERR_set_mark() and ERR_pop_to_mark(), so that nothing of ours
 *          stays in the thread's queue: a stale entry would be taken by SSL_get_error for a failure of its own.
 * Threads: any; the queue is the thread's.
 * Errors:  returns the status that it was given.
 * Not:     for the peer's wire; the texts stay in logs and on terminals. */
#pragma once
#include "common/problem.h"

/* Fills *problem (may be NULL) with the formatted text, ": " and the newest OpenSSL reason, if there is one. */
sheaf_status sheaf_problem_openssl(sheaf_problem *problem, sheaf_status status, const char *format, ...)
    SHEAF_PRINTF(3, 4);
