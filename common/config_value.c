#include "common/config_value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/name.h"

static const char not_whole[] = "is not a whole number";
static const char out_of_range[] = "is out of range";

/* ---- bounds ---- */

static int bounded(const sheaf_config_field *field) { return field->minimum != 0 || field->maximum != 0; }
/* A maximum below the minimum was left out: then only the type bounds. */
static int bounded_above(const sheaf_config_field *field) { return bounded(field) && field->maximum >= field->minimum; }

static uint64_t u64_of(double bound) {
    if (bound <= 0) return 0;
    return bound >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)bound;
}

static int64_t i64_of(double bound) {
    if (bound >= 9223372036854775808.0) return INT64_MAX;
    return bound <= -9223372036854775808.0 ? INT64_MIN : (int64_t)bound;
}

static uint64_t u64_minimum(const sheaf_config_field *field) { return u64_of(field->minimum); }
static uint64_t u64_maximum(const sheaf_config_field *field) {
    uint64_t type = field->kind == SHEAF_CONFIG_U32 ? UINT32_MAX : UINT64_MAX;
    uint64_t bound = bounded_above(field) ? u64_of(field->maximum) : type;
    return bound < type ? bound : type;
}
static int64_t i64_minimum(const sheaf_config_field *field) {
    return bounded(field) ? i64_of(field->minimum) : INT64_MIN;
}
static int64_t i64_maximum(const sheaf_config_field *field) {
    return bounded_above(field) ? i64_of(field->maximum) : INT64_MAX;
}

int sheaf_config_length_ok(const sheaf_config_field *field, size_t count) {
    if (count > SHEAF_CONFIG_ENTRIES_MAX || count < u64_minimum(field)) return 0;
    return !bounded_above(field) || count <= u64_of(field->maximum);
}

/* ---- text to value ---- */

/* Decimal digits and nothing else; no leading zero, which YAML 1.1 reads as octal. 0 when it is none or overflows. */
static int digits(const char *text, size_t size, uint64_t *out, int *overflow) {
    if (size == 0 || strspn(text, "0123456789") < size || (size > 1 && text[0] == '0')) return 0;
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) {
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) *overflow = 1;
        value = value * 10 + digit;
    }
    *out = value;
    return 1;
}

static const char *read_u64(const sheaf_config_field *field, const char *text, uint64_t *out) {
    int overflow = 0;
    if (text[0] == '-' && digits(text + 1, strlen(text + 1), out, &overflow)) return out_of_range;
    if (!digits(text, strlen(text), out, &overflow)) return not_whole;
    return overflow || *out < u64_minimum(field) || *out > u64_maximum(field) ? out_of_range : NULL;
}

const char *sheaf_config_i64_read(const sheaf_config_field *field, const sheaf_node *node, int64_t *out) {
    if (node->quoted) return not_whole;
    int negative = node->text[0] == '-', overflow = 0;
    const char *text = node->text + negative;
    uint64_t size = 0;
    if (!digits(text, strlen(text), &size, &overflow)) return not_whole;
    if (overflow || size > (uint64_t)INT64_MAX + (unsigned)negative) return out_of_range;
    *out = negative && size > 0 ? -(int64_t)(size - 1) - 1 : (int64_t)size;
    return *out < i64_minimum(field) || *out > i64_maximum(field) ? out_of_range : NULL;
}

static const struct {
    const char *name;
    unsigned shift;
} size_units[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}};

static const char *read_bytes(const sheaf_config_field *field, const char *text, uint64_t *out) {
    static const char wrong[] = "is not a size";
    size_t number = strspn(text, "0123456789");
    const char *unit = text + number + strspn(text + number, " ");
    unsigned shift = 0;
    for (size_t i = 0; i < sizeof size_units / sizeof *size_units; i++) {
        if (strcmp(unit, size_units[i].name) == 0) shift = size_units[i].shift;
    }
    if (shift == 0 && text[number] != '\0') return wrong;
    int overflow = 0;
    if (!digits(text, number, out, &overflow)) return wrong;
    if (overflow || *out > UINT64_MAX >> shift) return out_of_range;
    *out <<= shift;
    return *out < u64_minimum(field) || *out > u64_maximum(field) ? out_of_range : NULL;
}

static const char *read_f64(const sheaf_config_field *field, const char *text, double *out) {
    static const char wrong[] = "is not a number";
    /* strtod also takes nan, inf and hexadecimal, which nobody means here. */
    if (text[0] == '\0' || text[strspn(text, "0123456789+-.eE")] != '\0') return wrong;
    char *end = NULL;
    *out = strtod(text, &end);
    if (end == text || *end != '\0') return wrong;
    if (!isfinite(*out)) return out_of_range;
    if (bounded(field) && *out < field->minimum) return out_of_range;
    return bounded_above(field) && *out > field->maximum ? out_of_range : NULL;
}

static const char *read_bool(const char *text, int *out) {
    *out = strcmp(text, "true") == 0;
    return *out || strcmp(text, "false") == 0 ? NULL : "is neither";
}

static const char *read_choice(const sheaf_config_field *field, const char *text, int *out) {
    for (int i = 0; field->choices[i] != NULL; i++) {
        *out = i;
        if (strcmp(field->choices[i], text) == 0) return NULL;
    }
    return "is none of the choices";
}

static const char *read_text(const sheaf_config_field *field, const char *text, const char **out) {
    *out = text;
    if (field->kind == SHEAF_CONFIG_NAME && !sheaf_name_ok(text)) return "is not a name";
    if (field->kind == SHEAF_CONFIG_PATH && text[0] == '\0') return "is not a path";
    return NULL;
}

const char *sheaf_config_scalar_read(const sheaf_config_field *field, const sheaf_node *node, void *target) {
    int is_text =
        field->kind == SHEAF_CONFIG_STRING || field->kind == SHEAF_CONFIG_NAME || field->kind == SHEAF_CONFIG_PATH;
    if (!node->quoted && node->text[0] == '\0') return "has no value";
    if (node->quoted && !is_text && field->kind != SHEAF_CONFIG_CHOICE) return "is text in quotes";
    uint64_t number = 0;
    const char *wrong = NULL;
    switch (field->kind) {
    case SHEAF_CONFIG_STRING:
    case SHEAF_CONFIG_NAME:
    case SHEAF_CONFIG_PATH:
        return read_text(field, node->text, target);
    case SHEAF_CONFIG_U32:
        wrong = read_u64(field, node->text, &number);
        if (wrong == NULL) *(uint32_t *)target = (uint32_t)number; /* u64_maximum is at most UINT32_MAX here */
        return wrong;
    case SHEAF_CONFIG_U64:
        return read_u64(field, node->text, target);
    case SHEAF_CONFIG_I64:
        return sheaf_config_i64_read(field, node, target);
    case SHEAF_CONFIG_BYTES:
        return read_bytes(field, node->text, target);
    case SHEAF_CONFIG_F64:
        return read_f64(field, node->text, target);
    case SHEAF_CONFIG_BOOL:
        return read_bool(node->text, target);
    case SHEAF_CONFIG_CHOICE:
        return read_choice(field, node->text, target);
    default:
        return "is a single value";
    }
}

/* ---- what was expected ---- */

const char *sheaf_config_noun(const sheaf_config_field *field) {
    switch (field->kind) {
    case SHEAF_CONFIG_STRING:
        return "text";
    case SHEAF_CONFIG_NAME:
        return "a name";
    case SHEAF_CONFIG_PATH:
        return "a path";
    case SHEAF_CONFIG_U32:
    case SHEAF_CONFIG_U64:
    case SHEAF_CONFIG_I64:
        return "a whole number";
    case SHEAF_CONFIG_BYTES:
        return "a size";
    case SHEAF_CONFIG_F64:
        return "a number";
    case SHEAF_CONFIG_BOOL:
        return "true or false";
    case SHEAF_CONFIG_CHOICE:
        return "a choice";
    case SHEAF_CONFIG_MAP:
        return "a map";
    case SHEAF_CONFIG_LIST:
        return "a list of maps";
    case SHEAF_CONFIG_PAIRS:
        return "a map of whole numbers";
    case SHEAF_CONFIG_NUMBERS:
        return "a list of whole numbers";
    case SHEAF_CONFIG_NAMES:
        return "a list of names";
    }
    return "a value";
}

static void print_size(uint64_t bytes, char *out, size_t capacity) {
    const char *unit = "";
    for (size_t i = 0; i < sizeof size_units / sizeof *size_units; i++) {
        uint64_t one = UINT64_C(1) << size_units[i].shift;
        if (bytes == 0 || bytes % one != 0 ||
            (i + 1 < sizeof size_units / sizeof *size_units && bytes % (one << 10) == 0))
            continue;
        bytes /= one;
        unit = size_units[i].name;
        break;
    }
    (void)snprintf(out, capacity, "%" PRIu64 "%s%s", bytes, unit[0] == '\0' ? "" : " ", unit);
}

static void print_sizes(const sheaf_config_field *field, char *out, size_t capacity) {
    char low[32], high[32];
    print_size(u64_minimum(field), low, sizeof low);
    print_size(u64_maximum(field), high, sizeof high);
    if (bounded_above(field))
        (void)snprintf(out, capacity, "%s..%s, as bytes or with KiB, MiB, GiB", low, high);
    else
        (void)snprintf(out, capacity, "%s or more, as bytes or with KiB, MiB, GiB", low);
}

static void print_choices(const sheaf_config_field *field, char *out, size_t capacity) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; field->choices[i] != NULL && used < capacity; i++) {
        const char *comma = i == 0 ? "" : field->choices[i + 1] == NULL ? " or " : ", ";
        int written = snprintf(out + used, capacity - used, "%s%s", comma, field->choices[i]);
        used += written > 0 ? (size_t)written : 0;
    }
}

static void print_bounds(const sheaf_config_field *field, char *out, size_t capacity) {
    char low[400], high[400]; /* %.0f of a double has at most 309 digits */
    const char *format = field->kind == SHEAF_CONFIG_F64 ? "%.15g" : "%.0f";
    (void)snprintf(low, sizeof low, format, field->minimum);
    (void)snprintf(high, sizeof high, format, field->maximum);
    if (bounded_above(field))
        (void)snprintf(out, capacity, "%s..%s", low, high);
    else
        (void)snprintf(out, capacity, "%s or more", low);
}

const char *sheaf_config_expected(const sheaf_config_field *field, char out[SHEAF_CONFIG_EXPECTED_BYTES]) {
    size_t capacity = SHEAF_CONFIG_EXPECTED_BYTES;
    (void)snprintf(out, capacity, "%s", sheaf_config_noun(field));
    switch (field->kind) {
    case SHEAF_CONFIG_NAME:
        (void)snprintf(out, capacity, "1..%u characters of A-Z a-z 0-9 . _ -, the first no dot", SHEAF_NAME_BYTES - 1);
        break;
    case SHEAF_CONFIG_U32:
    case SHEAF_CONFIG_U64:
        if (bounded(field))
            print_bounds(field, out, capacity);
        else
            (void)snprintf(out, capacity, "0..%" PRIu64, u64_maximum(field));
        break;
    case SHEAF_CONFIG_BYTES:
        print_sizes(field, out, capacity);
        break;
    case SHEAF_CONFIG_CHOICE:
        print_choices(field, out, capacity);
        break;
    case SHEAF_CONFIG_I64:
    case SHEAF_CONFIG_F64:
    case SHEAF_CONFIG_PAIRS:
    case SHEAF_CONFIG_NUMBERS:
        if (bounded(field)) print_bounds(field, out, capacity);
        break;
    default:
        break;
    }
    return out;
}
