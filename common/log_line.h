/* log_line.h - one line of the log, built so that no value can pose as another field or another line.
 *
 * The format is read as a template of key=value pairs, and each conversion is put into its value with everything
 * escaped: a space, quote or newline in a peer's text stays inside the value it came in.
 *
 * Owner:   the caller; a line holds no pointer.
 * Threads: any; no state.
 * Units:   bytes; a line with its newline has at most SHEAF_LOG_LINE_BYTES, so that a pipe takes it in one piece.
 * Errors:  none; what does not fit is cut at a character, and the line says so ("truncated"). */
#pragma once
#include <stdarg.h>
#include <stddef.h>

#include "common/log.h"

#define SHEAF_LOG_LINE_BYTES 4096u

typedef struct {
    char text[SHEAF_LOG_LINE_BYTES];
    size_t size;
    int json;
    int cut;
} sheaf_log_line;

/* `time` is RFC 3339. Conversions: d i u x X c s p f e g with flags, width, precision and h l ll z j t. */
void sheaf_log_line_make(sheaf_log_line *line, int json, const char *time, sheaf_log_level level, const char *event,
                         const char *format, va_list arguments);
