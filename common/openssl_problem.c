#include "common/openssl_problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <openssl/err.h>

sheaf_status sheaf_problem_openssl(sheaf_problem *problem, sheaf_status status, const char *format, ...) {
    if (problem == NULL) return status;
    problem->status = status;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    size_t used = strlen(problem->text);
    if (reason != NULL) (void)snprintf(problem->text + used, sizeof problem->text - used, ": %s", reason);
    return status;
}
