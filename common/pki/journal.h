/* journal.h - a file of JSON objects, one a line, that only grows: the lists of an authority's folder.
 *
 * Owner:   the caller; objects are borrowed in both directions.
 * Threads: one writer at a time, which the lock of authority.h gives.
 * Errors:  those of file.h; SHEAF_E_CORRUPT for a line that is no object.
 * Durable: a line is on the disk when append returns. One cut short by a crash is passed over by readers, and the next
 *          one overwrites it. */
#pragma once
#include <jansson.h>

#include "common/file.h"

SHEAF_MUST_USE sheaf_status sheaf_journal_append(const char *folder, const char *name, const json_t *object,
                                                 sheaf_problem *problem);
/* Calls `take` for each line, oldest first; it returns 0 for one that it cannot read (SHEAF_E_CORRUPT, with its number). No
 * file is an empty one. */
SHEAF_MUST_USE sheaf_status sheaf_journal_read(const char *folder, const char *name,
                                               int (*take)(void *context, const json_t *object), void *context,
                                               sheaf_problem *problem);
/* Copies a string member; 0 when it is missing or does not fit. */
int sheaf_journal_text(const json_t *object, const char *key, char *out, size_t capacity);
