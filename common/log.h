/* log.h - structured log: one line an event, as text for people or JSON for machines.
 *
 * Owner:   one process-wide sink, set once at start by main.
 * Threads: any; each line is written with one call.
 * Units:   times are UTC, RFC 3339, microseconds.
 * Errors:  none are reported: a log that cannot be written must not stop a round.
 * Usage:   sheaf_log(SHEAF_LOG_INFO, "update_accepted", "job=%s round=%" PRIu64 " client=%s", ...)
 *          the format is key=value pairs separated by single spaces; a value with spaces is put in double quotes. */
#pragma once
#include "common/status.h"

typedef enum { SHEAF_LOG_DEBUG, SHEAF_LOG_INFO, SHEAF_LOG_WARNING, SHEAF_LOG_ERROR } sheaf_log_level;

/* Level and form of the log on stderr, or in the file `path` (appended) when not NULL. Default: text, INFO, stderr. */
SHEAF_MUST_USE sheaf_status sheaf_log_configure(sheaf_log_level level, int json, const char *path);
void sheaf_log(sheaf_log_level level, const char *event, const char *format, ...) SHEAF_PRINTF(3, 4);
