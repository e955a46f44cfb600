/* config_value.h - one scalar of a configuration: from text to value, and how to say what was expected.
 *
 * Owner:   strings that are read point into the node's text, or into the arena.
 * Threads: any; no state.
 * Errors:  a phrase such as "is not a whole number", NULL when all is well.
 * Not:     maps and lists; config.c walks those. */
#pragma once
#include "common/config_tree.h"

#define SHEAF_CONFIG_EXPECTED_BYTES 512u

/* What a value of this field is: "a whole number", "a list" ... */
const char *sheaf_config_noun(const sheaf_config_field *field);
/* Bounds or choices: "1..1000000", "nng or inproc", or the noun when there is nothing more to say. */
const char *sheaf_config_expected(const sheaf_config_field *field, char out[SHEAF_CONFIG_EXPECTED_BYTES]);
/* Reads a scalar into *target (typed by field->kind). Strings are stored as node->text; PATH is not resolved here. */
const char *sheaf_config_scalar_read(const sheaf_config_field *field, const sheaf_node *node, void *target);
/* Whether the length of a list is within the field's bounds. */
int sheaf_config_length_ok(const sheaf_config_field *field, size_t count);
/* The value as a whole number within the field's bounds (PAIRS and NUMBERS use it for each entry). */
const char *sheaf_config_i64_read(const sheaf_config_field *field, const sheaf_node *node, int64_t *out);
