/* The reference of a configuration, printed from the table that reads it. What is printed is itself a valid file:
 * required keys stand with a placeholder, optional ones are commented out when they have no default. */
#include <stdio.h>
#include <string.h>

#include "common/config_value.h"

typedef struct {
    FILE *out;
    unsigned indent;
    int off; /* inside a section that is commented out */
} printer;

static void print_fields(const printer *p, const sheaf_config_field *fields);

static const char *placeholder(const sheaf_config_field *field, char *out, size_t capacity) {
    switch (field->kind) {
    case SHEAF_CONFIG_STRING:
        return "text";
    case SHEAF_CONFIG_NAME:
        return "name";
    case SHEAF_CONFIG_PATH:
        return "path/to/file";
    case SHEAF_CONFIG_BOOL:
        return "false";
    case SHEAF_CONFIG_CHOICE:
        return field->choices[0];
    case SHEAF_CONFIG_PAIRS:
        return "{}";
    case SHEAF_CONFIG_NUMBERS:
    case SHEAF_CONFIG_NAMES:
        return "[]";
    default:
        (void)snprintf(out, capacity, field->kind == SHEAF_CONFIG_F64 ? "%.15g" : "%.0f", field->minimum);
        return out;
    }
}

static void print_help(const printer *p, const sheaf_config_field *field) {
    char expected[SHEAF_CONFIG_EXPECTED_BYTES];
    const char *noun = sheaf_config_noun(field);
    (void)sheaf_config_expected(field, expected);
    if (field->help != NULL) fprintf(p->out, "%*s# %s\n", (int)p->indent, "", field->help);
    fprintf(p->out, "%*s# %s", (int)p->indent, "", noun);
    if (strcmp(noun, expected) != 0) fprintf(p->out, ": %s", expected);
    if ((field->kind == SHEAF_CONFIG_LIST || field->kind == SHEAF_CONFIG_NAMES) && field->maximum > 0)
        fprintf(p->out, " (%.0f..%.0f)", field->minimum, field->maximum);
    fprintf(p->out, "; %s\n", field->required ? "required" : field->preset != NULL ? "default below" : "optional");
}

static void print_key(const printer *p, const sheaf_config_field *field, const char *value) {
    fprintf(p->out, "%*s%s%s:%s%s\n", (int)p->indent, "", p->off ? "#" : "", field->key, value[0] != '\0' ? " " : "",
            value);
}

static int is_map_like(const sheaf_config_field *field) {
    return field->kind == SHEAF_CONFIG_MAP || field->kind == SHEAF_CONFIG_LIST;
}

static void print_section(const printer *p, const sheaf_config_field *field) {
    printer inner = *p;
    print_key(p, field, "");
    inner.indent += 2;
    if (field->kind == SHEAF_CONFIG_LIST) {
        fprintf(p->out, "%*s%s-\n", (int)inner.indent, "", p->off ? "#" : "");
        inner.indent += 2;
    }
    print_fields(&inner, field->fields);
}

static int any_on(const sheaf_config_field *fields) {
    for (; fields->key != NULL; fields++) {
        if (fields->required || (!is_map_like(fields) && fields->preset != NULL)) return 1;
    }
    return 0;
}

static int any_required(const sheaf_config_field *fields) {
    for (; fields->key != NULL; fields++) {
        if (fields->required) return 1;
    }
    return 0;
}

static void print_field(const printer *p, const sheaf_config_field *field) {
    char text[64];
    printer mine = *p;
    print_help(p, field);
    if (is_map_like(field)) {
        /* An optional section with required keys, or with nothing to show, would be an error if it stood here. */
        if (!field->required &&
            (field->kind == SHEAF_CONFIG_LIST || any_required(field->fields) || !any_on(field->fields)))
            mine.off = 1;
        print_section(&mine, field);
        return;
    }
    if (!field->required && field->preset == NULL) mine.off = 1;
    const char *value = field->preset != NULL ? field->preset : placeholder(field, text, sizeof text);
    print_key(&mine, field, value[0] == '\0' ? "\"\"" : value);
}

static void print_fields(const printer *p, const sheaf_config_field *fields) {
    for (const sheaf_config_field *field = fields; field->key != NULL; field++) print_field(p, field);
}

void sheaf_config_print_reference(const sheaf_config_field *fields, void *stream) {
    printer p = {.out = stream};
    print_fields(&p, fields);
}
