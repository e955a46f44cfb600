/* csv.c - tables with a header line. Two passes: the first counts lines, so that memory is asked for once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/trainer/data.h"

typedef struct {
    const sheaf_data_options *options;
    sheaf_problem *problem;
    const char *label; /* name of the label column */
    sheaf_span rest;   /* lines not read yet */
    uint64_t line;     /* of the last one read, from 1 */
    sheaf_span header;
    uint32_t columns, label_column;
} reader;

enum { SHOWN_BYTES = 40 }; /* of a bad field in an error */

/* The next line without its end; 0 at the end of the text. */
static int next_line(reader *r, sheaf_span *line) {
    if (r->rest.size == 0) return 0;
    const uint8_t *end = memchr(r->rest.data, '\n', r->rest.size);
    size_t size = end == NULL ? r->rest.size : (size_t)(end - r->rest.data);
    *line = sheaf_span_of(r->rest.data, size);
    size_t step = end == NULL ? size : size + 1;
    r->rest = sheaf_span_of(r->rest.data + step, r->rest.size - step);
    if (line->size > 0 && line->data[line->size - 1] == '\r') line->size--;
    r->line++;
    return 1;
}

static void trim(sheaf_span *field) {
    while (field->size > 0 && (field->data[0] == ' ' || field->data[0] == '\t')) field->data++, field->size--;
    while (field->size > 0 && (field->data[field->size - 1] == ' ' || field->data[field->size - 1] == '\t'))
        field->size--;
}

/* Cuts the next field off `line`; *more tells whether a comma follows it. 0 when quotes do not match. */
static int next_field(sheaf_span *line, sheaf_span *field, int *more) {
    size_t at = 0, quotes = 0;
    while (at < line->size && (line->data[at] != ',' || quotes % 2 == 1)) quotes += line->data[at++] == '"';
    *field = sheaf_span_of(line->data, at);
    *more = at < line->size;
    at += (size_t)*more;
    *line = sheaf_span_of(line->data + at, line->size - at);
    trim(field);
    if (quotes == 0) return 1;
    if (quotes != 2 || field->size < 2 || field->data[0] != '"' || field->data[field->size - 1] != '"') return 0;
    *field = sheaf_span_of(field->data + 1, field->size - 2);
    return 1;
}

/* What a person may see of a field: its start, control characters shown as '?'. */
static const char *shown(sheaf_span field, char text[SHOWN_BYTES + 4]) {
    size_t size = field.size < SHOWN_BYTES ? field.size : SHOWN_BYTES;
    for (size_t i = 0; i < size; i++)
        text[i] = field.data[i] < 0x20 || field.data[i] == 0x7f ? '?' : (char)field.data[i];
    memcpy(text + size, field.size > SHOWN_BYTES ? "..." : "", field.size > SHOWN_BYTES ? 4 : 1);
    return text;
}

static sheaf_status refuse_field(const reader *r, uint32_t column, sheaf_span field, const char *expected) {
    char name[SHOWN_BYTES + 4] = "?", value[SHOWN_BYTES + 4];
    sheaf_span header = r->header, here = {0};
    int more = 1;
    for (uint32_t i = 0; i <= column && more; i++) (void)next_field(&header, &here, &more);
    return sheaf_problem_set(r->problem, SHEAF_E_DATA, "%s:%llu: column '%s': '%s'; expected %s", r->options->path,
                             (unsigned long long)r->line, shown(here, name), shown(field, value), expected);
}

static sheaf_status read_header(reader *r) {
    const char *path = r->options->path;
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf}; /* UTF-8's byte order mark */
    if (r->rest.size >= 3 && memcmp(r->rest.data, mark, 3) == 0)
        r->rest = sheaf_span_of(r->rest.data + 3, r->rest.size - 3);
    if (!next_line(r, &r->header))
        return sheaf_problem_set(r->problem, SHEAF_E_DATA, "%s: is empty; expected a header line", path);
    sheaf_span line = r->header, field;
    int more = 1, found = 0;
    while (more) {
        if (!next_field(&line, &field, &more))
            return sheaf_problem_set(r->problem, SHEAF_E_DATA, "%s:1: quotes do not match", path);
        if (sheaf_span_equal(field, sheaf_span_of(r->label, strlen(r->label)))) {
            if (found)
                return sheaf_problem_set(r->problem, SHEAF_E_DATA, "%s:1: two columns are named '%s'", path, r->label);
            found = 1;
            r->label_column = r->columns;
        }
        if (++r->columns > SHEAF_DATA_FEATURES_MAX)
            return sheaf_problem_set(r->problem, SHEAF_E_TOO_LARGE, "%s:1: too many columns", path);
    }
    if (!found) {
        char text[SHOWN_BYTES + 4];
        return sheaf_problem_set(r->problem, SHEAF_E_DATA,
                                 "%s:1: no column is named '%s'; expected a header line with it, found '%s'", path,
                                 r->label, shown(r->header, text));
    }
    uint32_t features = r->columns - 1;
    if (features == 0) return sheaf_problem_set(r->problem, SHEAF_E_DATA, "%s:1: no columns besides the label", path);
    if (r->options->features == 0 || r->options->features == features) return SHEAF_OK;
    return sheaf_problem_set(r->problem, SHEAF_E_DATA, "%s:1: %u feature columns; expected %u, as the network takes",
                             path, (unsigned)features, (unsigned)r->options->features);
}

/* Counts the lines that hold something; blank ones may only stand at the end. */
static sheaf_status count_examples(const reader *at_body, uint64_t *count) {
    reader r = *at_body;
    sheaf_span line;
    uint64_t blank = 0;
    *count = 0;
    while (next_line(&r, &line)) {
        trim(&line);
        if (line.size == 0) {
            if (blank == 0) blank = r.line;
            continue;
        }
        if (blank != 0) {
            return sheaf_problem_set(r.problem, SHEAF_E_DATA, "%s:%llu: an empty line; expected %u fields",
                                     r.options->path, (unsigned long long)blank, (unsigned)r.columns);
        }
        ++*count;
    }
    if (*count == 0)
        return sheaf_problem_set(r.problem, SHEAF_E_DATA, "%s: no lines after the header", r.options->path);
    if (*count > INT32_MAX)
        return sheaf_problem_set(r.problem, SHEAF_E_TOO_LARGE, "%s: too many lines", r.options->path);
    return SHEAF_OK;
}

/* Digits, sign, point and exponent only: strtod would also take hexadecimal, infinity and NaN. */
static int parse_number(sheaf_span field, double *out) {
    char text[64];
    if (field.size == 0 || field.size >= sizeof text) return 0;
    for (size_t i = 0; i < field.size; i++) {
        char c = (char)field.data[i];
        if (c == '\0' || strchr("0123456789+-.eE", c) == NULL) return 0;
        text[i] = c;
    }
    text[field.size] = '\0';
    char *end;
    *out = strtod(text, &end);
    return *end == '\0' && fabs(*out) <= 3.4e38; /* finite in float32 */
}

static sheaf_status take_label(const reader *r, sheaf_span field, uint32_t *label, uint32_t *classes) {
    uint32_t limit = r->options->classes != 0 ? r->options->classes : SHEAF_DATA_CLASSES_MAX;
    double value;
    if (!parse_number(field, &value) || !(value >= 0.0 && value < (double)limit) || value != floor(value)) {
        char expected[64];
        snprintf(expected, sizeof expected, "a class: a whole number from 0 to %u", (unsigned)limit - 1);
        return refuse_field(r, r->label_column, field, expected);
    }
    *label = (uint32_t)value;
    if (*label >= *classes) *classes = *label + 1;
    return SHEAF_OK;
}

static sheaf_status read_fields(const reader *r, sheaf_span line, float *features, uint32_t *label, uint32_t *classes) {
    uint32_t column = 0;
    for (int more = 1; more; column++) {
        sheaf_span field;
        double value;
        if (!next_field(&line, &field, &more)) return refuse_field(r, column, field, "matching quotes");
        if (column >= r->columns) continue; /* only to count them */
        if (column == r->label_column) {
            sheaf_status status = take_label(r, field, label, classes);
            if (status != SHEAF_OK) return status;
            continue;
        }
        if (!parse_number(field, &value)) return refuse_field(r, column, field, "a finite decimal number");
        *features++ = (float)value;
    }
    if (column == r->columns) return SHEAF_OK;
    return sheaf_problem_set(r->problem, SHEAF_E_DATA, "%s:%llu: %u fields; expected %u, as the header has",
                             r->options->path, (unsigned long long)r->line, (unsigned)column, (unsigned)r->columns);
}

static sheaf_status read_body(reader *r, const uint8_t *start, sheaf_dataset *out) {
    for (uint32_t i = 0; i < out->count; i++) {
        sheaf_span line;
        uint64_t at = (uint64_t)(r->rest.data - start);
        if (!next_line(r, &line)) break;
        if (out->lines != NULL) out->lines[i] = at;
        if (out->lines != NULL) out->lines[i + 1] = (uint64_t)(r->rest.data - start);
        sheaf_status status =
            read_fields(r, line, out->values + (size_t)i * out->features, &out->labels[i], &out->classes);
        if (status != SHEAF_OK) return status;
    }
    return SHEAF_OK;
}

static sheaf_status make_room(const reader *r, uint64_t count, sheaf_dataset *out) {
    out->count = (uint32_t)count;
    out->features = r->columns - 1;
    /* Each field but a line's last is followed by a comma, so a text that is much too short for what its header
     * promises gets no memory. A little too short is told line by line, which is clearer. */
    if (count * r->columns > r->rest.size + 65536) {
        return sheaf_problem_set(r->problem, SHEAF_E_DATA, "%s: lines have fewer fields than the header's %u",
                                 r->options->path, (unsigned)r->columns);
    }
    out->values = calloc((size_t)count * out->features, sizeof *out->values);
    out->labels = calloc((size_t)count, sizeof *out->labels);
    if (r->options->keep_source) out->lines = calloc((size_t)count + 1, sizeof *out->lines);
    int ok = out->values != NULL && out->labels != NULL && (!r->options->keep_source || out->lines != NULL);
    return ok ? SHEAF_OK : sheaf_problem_set(r->problem, SHEAF_E_MEMORY, "%s: no memory", r->options->path);
}

sheaf_status sheaf_csv_parse(sheaf_span text, const sheaf_data_options *options, sheaf_dataset *out,
                             sheaf_problem *problem) {
    reader r = {.options = options, .problem = problem, .rest = text};
    uint64_t count = 0;
    memset(out, 0, sizeof *out);
    r.label = options->label == NULL ? "label" : options->label;
    sheaf_status status = read_header(&r);
    if (status == SHEAF_OK) out->header_bytes = (uint64_t)(r.rest.data - text.data);
    if (status == SHEAF_OK) status = count_examples(&r, &count);
    if (status == SHEAF_OK) status = make_room(&r, count, out);
    if (status == SHEAF_OK) status = read_body(&r, text.data, out);
    if (status != SHEAF_OK) sheaf_data_free(out);
    return status;
}
