#include "common/problem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

sheaf_status sheaf_problem_set(sheaf_problem *problem, sheaf_status status, const char *format, ...) {
    if (problem == NULL) return status;
    problem->status = status;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
    return status;
}

sheaf_status sheaf_problem_prefix(sheaf_problem *problem, const char *format, ...) {
    if (problem == NULL) return SHEAF_OK;
    char rest[sizeof problem->text];
    memcpy(rest, problem->text, sizeof rest);
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
    size_t used = written < 0 ? 0 : (size_t)written;
    if (used < sizeof problem->text)
        (void)snprintf(problem->text + used, sizeof problem->text - used, ": %.*s", (int)sizeof rest, rest);
    return problem->status;
}

static sheaf_status status_of_errno(int code) {
    switch (code) {
    case ENOENT:
        return SHEAF_E_NOT_FOUND;
    case EEXIST:
        return SHEAF_E_EXISTS;
    case EACCES:
    case EPERM:
        return SHEAF_E_PERMISSION;
    case ENOSPC:
    case EDQUOT:
        return SHEAF_E_NO_SPACE;
    case ENOMEM:
        return SHEAF_E_MEMORY;
    default:
        return SHEAF_E_DISK;
    }
}

sheaf_status sheaf_problem_errno(sheaf_problem *problem, const char *verb, const char *path) {
    int code = errno;
    return sheaf_problem_set(problem, status_of_errno(code), "%s: cannot %s: %s", path, verb, strerror(code));
}
