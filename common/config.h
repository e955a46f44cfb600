/* config.h - YAML configuration, read by a table: errors name file, line, key, and what was expected.
 *
 * A program describes its config once, as nested tables of fields; the same tables check the file, fill the program's
 * struct, and print the reference that --help-config shows. Unknown, duplicate, missing and ill-typed keys are refused.
 *
 * Owner:   sheaf_config owns every string and list that was read; free it after the struct's last use.
 * Threads: one.
 * Units:   stand in the key's name (deadline_s, chunk_bytes). Sizes may be written with KiB, MiB, GiB.
 * Limits:  files up to 1 MiB, depth 16, 4096 list entries. No YAML tags, anchors or aliases.
 * Errors:  SHEAF_E_CONFIG with "FILE:LINE: KEY: what is wrong; expected ...", SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/problem.h"

typedef enum {
    SHEAF_CONFIG_STRING,  /* const char * */
    SHEAF_CONFIG_NAME,    /* const char *, by sheaf_name_ok */
    SHEAF_CONFIG_PATH,    /* const char *; a relative path is taken from the config file's folder */
    SHEAF_CONFIG_U32,     /* uint32_t within minimum..maximum */
    SHEAF_CONFIG_U64,     /* uint64_t */
    SHEAF_CONFIG_I64,     /* int64_t */
    SHEAF_CONFIG_BYTES,   /* uint64_t, with KiB, MiB, GiB */
    SHEAF_CONFIG_F64,     /* double, finite */
    SHEAF_CONFIG_BOOL,    /* int: true or false */
    SHEAF_CONFIG_CHOICE,  /* int: index into `choices` */
    SHEAF_CONFIG_MAP,     /* a nested struct, by `fields` */
    SHEAF_CONFIG_LIST,    /* sheaf_config_list of structs, by `fields` and `item_bytes` */
    SHEAF_CONFIG_PAIRS,   /* sheaf_config_list of sheaf_config_pair: free keys, integer values (I64 bounds) */
    SHEAF_CONFIG_NUMBERS, /* sheaf_config_list of int64_t, as in [28, 28, 1]; the bounds are each number's */
    SHEAF_CONFIG_NAMES    /* sheaf_config_list of const char *, by sheaf_name_ok */
} sheaf_config_kind;

typedef struct {
    void *items; /* count structs of item_bytes; NULL when empty */
    size_t count;
} sheaf_config_list;

typedef struct {
    const char *key;
    int64_t value;
} sheaf_config_pair;

typedef struct sheaf_config_field sheaf_config_field;
struct sheaf_config_field {
    const char *key; /* NULL ends a table */
    sheaf_config_kind kind;
    size_t offset;              /* in the struct */
    int required;               /* refused when absent; inside an optional MAP only when the map itself is there */
    const char *preset;         /* value when absent, written as in the file; NULL: zero or NULL */
    double minimum, maximum;    /* numbers and list lengths; both 0: no bound; maximum < minimum: none above */
    const char *const *choices; /* CHOICE: NULL-terminated */
    const sheaf_config_field *fields; /* MAP, LIST */
    size_t item_bytes;                /* LIST */
    const char *help;                 /* one sentence */
};

typedef struct sheaf_config sheaf_config;

/* Reads `path` into *target (a struct of `target_bytes`, cleared first). */
SHEAF_MUST_USE sheaf_status sheaf_config_load(const char *path, const sheaf_config_field *fields, void *target,
                                              size_t target_bytes, sheaf_config **out, sheaf_problem *problem);
/* The same from memory; `name` stands in errors, relative paths are taken from `folder`. */
SHEAF_MUST_USE sheaf_status sheaf_config_parse(const char *text, size_t size, const char *name, const char *folder,
                                               const sheaf_config_field *fields, void *target, size_t target_bytes,
                                               sheaf_config **out, sheaf_problem *problem);
void sheaf_config_free(sheaf_config *config); /* NULL is fine */
/* Where a key stands, for checks that the table cannot say: "FILE:LINE" of e.g. "jobs[2].cohort.minimum", or of the
 * nearest map around it that is in the file. Lives as long as `config`. */
const char *sheaf_config_where(const sheaf_config *config, const char *key_path);
/* Prints every key with its kind, default, bounds and help, as a commented YAML file. */
void sheaf_config_print_reference(const sheaf_config_field *fields, void *stream /* FILE * */);
