/* log_config.h - the `log` map that every program's config has.
 *
 * Owner:   the config owns the file's name (config.h).
 * Threads: read-only.
 * Errors:  none; config.h checks the values, sheaf_log_configure opens the file. */
#pragma once
#include "common/config.h"

typedef struct {
    int level;        /* sheaf_log_level */
    int json;         /* 0: text for people */
    const char *file; /* NULL: standard error */
} sheaf_log_config;

/* For a MAP field of a struct's sheaf_log_config. */
extern const sheaf_config_field sheaf_log_config_fields[];
