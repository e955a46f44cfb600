#include "common/log_line.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Kept free while pairs are added, for a closing quote, the word about the cut, and the newline. */
enum { RESERVE = 32 };

typedef struct {
    char text[SHEAF_LOG_LINE_BYTES];
    size_t size;
    int cut;
    int has_text; /* a %s or %c went in: never a number, whatever it looks like */
    int quoted;   /* the template put it in quotes */
} value_text;

/* va_list may be an array type, so only a struct around it can be handed on by pointer. */
typedef struct {
    va_list list;
} argument_list;

/* ---- characters ---- */

/* Bytes of the UTF-8 character at `p`, its code in *code; 0 when it is none (Unicode 15, table 3-7). */
static size_t utf8_read(const unsigned char *p, size_t left, uint32_t *code) {
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (size == 0 || size > left) return 0;
    *code = size == 1 ? p[0] : p[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (p[i] & 0x3fu);
    }
    return *code < smallest[size] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000) ? 0 : size;
}

static int add(sheaf_log_line *line, const char *text, size_t size) {
    if (line->cut || line->size + size > SHEAF_LOG_LINE_BYTES - RESERVE) {
        line->cut = 1;
        return 0;
    }
    memcpy(line->text + line->size, text, size);
    line->size += size;
    return 1;
}

static void add_text(sheaf_log_line *line, const char *text) { (void)add(line, text, strlen(text)); }

/* One character, escaped when it could end a value, a line, or steer a terminal. Returns the bytes it took. */
static size_t add_escaped(sheaf_log_line *line, const unsigned char *p, size_t left) {
    char escape[8];
    uint32_t code = 0;
    size_t size = utf8_read(p, left, &code);
    if (size == 0) {
        (void)snprintf(escape, sizeof escape, line->json ? "\\ufffd" : "\\x%02x", (unsigned)p[0]);
        add_text(line, escape);
        return 1;
    }
    if (code == '"' || code == '\\') {
        escape[0] = '\\';
        escape[1] = (char)code;
        (void)add(line, escape, 2);
    } else if (code == '\n' || code == '\r' || code == '\t') {
        add_text(line, code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t");
    } else if (code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029) {
        (void)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)code);
        add_text(line, escape);
    } else {
        (void)add(line, (const char *)p, size);
    }
    return size;
}

static void add_quoted(sheaf_log_line *line, const char *text, size_t size) {
    if (!add(line, "\"", 1)) return;
    for (size_t i = 0; i < size && !line->cut;) i += add_escaped(line, (const unsigned char *)text + i, size - i);
    line->text[line->size++] = '"'; /* the reserve has room for it */
}

/* ---- pairs ---- */

/* RFC 8259, section 6. */
static int is_json_number(const char *text, size_t size) {
    size_t i = size > 0 && text[0] == '-', digits = i;
    while (i < size && text[i] >= '0' && text[i] <= '9') i++;
    if (i == digits || (text[digits] == '0' && i > digits + 1)) return 0;
    if (i < size && text[i] == '.') {
        for (digits = ++i; i < size && text[i] >= '0' && text[i] <= '9';) i++;
        if (i == digits) return 0;
    }
    if (i < size && (text[i] == 'e' || text[i] == 'E')) {
        i++;
        if (i < size && (text[i] == '+' || text[i] == '-')) i++;
        for (digits = i; i < size && text[i] >= '0' && text[i] <= '9';) i++;
        if (i == digits) return 0;
    }
    return i == size;
}

static int is_plain(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '=') return 0;
    }
    return size > 0;
}

static void add_pair(sheaf_log_line *line, const char *key, size_t key_size, const value_text *value) {
    size_t before = line->size;
    int number = !value->has_text && !value->quoted && is_json_number(value->text, value->size);
    (void)add(line, line->json ? ",\"" : " ", line->json ? 2 : 1);
    (void)add(line, key, key_size);
    (void)add(line, line->json ? "\":" : "=", line->json ? 2 : 1);
    if (line->cut) {
        line->size = before; /* half a key helps nobody */
        return;
    }
    size_t start = line->size;
    if (line->json ? number : is_plain(value->text, value->size))
        (void)add(line, value->text, value->size);
    else
        add_quoted(line, value->text, value->size);
    if (line->size == start) line->size = before;
    line->cut |= value->cut;
}

/* ---- the template ---- */

static void value_add(value_text *value, const char *text, size_t size) {
    size_t left = sizeof value->text - value->size;
    if (size > left) {
        value->cut = 1;
        size = left;
    }
    memcpy(value->text + value->size, text, size);
    value->size += size;
}

typedef struct {
    char text[32]; /* one conversion, as printf takes it, without `*` */
    size_t size;   /* 0: not understood */
    const char *end;
    int precision; /* -1: none */
    char length[3], kind;
} conversion;

static void copy_while(conversion *c, const char *allowed, const char **p) {
    size_t count = strspn(*p, allowed);
    if (count > 8) count = 8; /* flags, width and precision of our own templates are short */
    memcpy(c->text + c->size, *p, count);
    c->size += count;
    *p += count;
}

static int star(conversion *c, const char **p, argument_list *arguments) {
    int number = va_arg(arguments->list, int);
    int written = snprintf(c->text + c->size, 12, "%d", number);
    c->size += written > 0 && written < 12 ? (size_t)written : 0;
    (*p)++;
    return number;
}

static int number_of(const char *digits) {
    int number = 0;
    while (*digits >= '0' && *digits <= '9' && number < 100000) number = number * 10 + (*digits++ - '0');
    return number;
}

/* Reads the conversion at `p`, just behind the '%'. */
static conversion conversion_read(const char *p, argument_list *arguments) {
    conversion c = {.text = "%", .size = 1, .precision = -1};
    copy_while(&c, "-+ #0", &p);
    if (*p == '*')
        (void)star(&c, &p, arguments);
    else
        copy_while(&c, "0123456789", &p);
    if (*p == '.') {
        c.text[c.size++] = *p++;
        if (*p == '*') {
            if (c.size > 16) c.size = 0; /* no room for what the star says */
            c.precision = star(&c, &p, arguments);
        } else {
            c.precision = number_of(p);
            copy_while(&c, "0123456789", &p);
        }
    }
    size_t length = strspn(p, "hlzjt");
    c.kind = length <= 2 ? p[length] : '\0';
    if (c.size == 0 || c.size + 4 > sizeof c.text || c.kind == '\0' || strchr("diuxXcspfeg", c.kind) == NULL)
        return (conversion){.size = 0};
    memcpy(c.length, p, length);
    memcpy(c.text + c.size, p, length + 1);
    c.end = p + length + 1;
    return c;
}

static int print_signed(const conversion *c, char *out, size_t capacity, argument_list *a) {
    if (strcmp(c->length, "ll") == 0) return snprintf(out, capacity, c->text, va_arg(a->list, long long));
    if (strcmp(c->length, "l") == 0) return snprintf(out, capacity, c->text, va_arg(a->list, long));
    if (strcmp(c->length, "j") == 0) return snprintf(out, capacity, c->text, va_arg(a->list, intmax_t));
    if (strcmp(c->length, "z") == 0 || strcmp(c->length, "t") == 0)
        return snprintf(out, capacity, c->text, va_arg(a->list, ptrdiff_t));
    return snprintf(out, capacity, c->text, va_arg(a->list, int));
}

static int print_unsigned(const conversion *c, char *out, size_t capacity, argument_list *a) {
    if (strcmp(c->length, "ll") == 0) return snprintf(out, capacity, c->text, va_arg(a->list, unsigned long long));
    if (strcmp(c->length, "l") == 0) return snprintf(out, capacity, c->text, va_arg(a->list, unsigned long));
    if (strcmp(c->length, "j") == 0) return snprintf(out, capacity, c->text, va_arg(a->list, uintmax_t));
    if (strcmp(c->length, "z") == 0 || strcmp(c->length, "t") == 0)
        return snprintf(out, capacity, c->text, va_arg(a->list, size_t));
    return snprintf(out, capacity, c->text, va_arg(a->list, unsigned));
}

static void value_convert(value_text *value, const conversion *c, argument_list *arguments) {
    char out[400]; /* the longest %f has 309 digits and its precision, which snprintf cuts */
    int written = 0;
    switch (c->kind) {
    case 's': {
        const char *text = va_arg(arguments->list, const char *);
        value->has_text = 1;
        if (text == NULL) text = "(null)";
        value_add(value, text, c->precision >= 0 ? strnlen(text, (size_t)c->precision) : strlen(text));
        return;
    }
    case 'c':
        value->has_text = 1;
        out[0] = (char)va_arg(arguments->list, int);
        value_add(value, out, 1);
        return;
    case 'd':
    case 'i':
        written = print_signed(c, out, sizeof out, arguments);
        break;
    case 'p':
        written = snprintf(out, sizeof out, c->text, va_arg(arguments->list, void *));
        break;
    case 'f':
    case 'e':
    case 'g':
        written = snprintf(out, sizeof out, c->text, va_arg(arguments->list, double));
        break;
    default:
        written = print_unsigned(c, out, sizeof out, arguments);
        break;
    }
    if (written > 0) value_add(value, out, (size_t)written < sizeof out ? (size_t)written : sizeof out - 1);
}

/* Reads the value of one pair from the template; returns where it goes on, NULL when a conversion is not understood
 * (then the arguments behind it cannot be found either). */
static const char *value_read(value_text *value, const char *p, argument_list *arguments) {
    value->size = 0;
    value->cut = value->has_text = 0;
    value->quoted = *p == '"';
    if (value->quoted) p++;
    while (*p != '\0' && *p != (value->quoted ? '"' : ' ')) {
        if (p[0] != '%' || p[1] == '%') {
            value_add(value, p, 1);
            p += p[0] == '%' ? 2 : 1;
            continue;
        }
        conversion c = conversion_read(p + 1, arguments);
        if (c.size == 0) return NULL;
        value_convert(value, &c, arguments);
        p = c.end;
    }
    return *p == '"' && value->quoted ? p + 1 : p;
}

static void add_pairs(sheaf_log_line *line, const char *p, argument_list *arguments) {
    value_text value;
    while (p != NULL && *(p += strspn(p, " ")) != '\0' && !line->cut) {
        size_t key_size = strcspn(p, "= %\"");
        const char *key = p, *next = p + key_size;
        if (*next == '=')
            next++;
        else
            key = "note", key_size = 4, next = p; /* a word that is no pair */
        p = value_read(&value, next, arguments);
        if (p != NULL) add_pair(line, key, key_size, &value);
    }
    if (p == NULL) add_text(line, line->json ? ",\"note\":\"bad log template\"" : " note=\"bad log template\"");
}

static const char *level_name(sheaf_log_level level, int json) {
    static const char *const names[][2] = {
        {"DEBUG", "debug"}, {"INFO ", "info"}, {"WARN ", "warning"}, {"ERROR", "error"}};
    return names[level <= SHEAF_LOG_ERROR ? level : SHEAF_LOG_ERROR][json != 0];
}

void sheaf_log_line_make(sheaf_log_line *line, int json, const char *time, sheaf_log_level level, const char *event,
                         const char *format, va_list arguments) {
    argument_list copy;
    line->size = 0;
    line->json = json;
    line->cut = 0;
    add_text(line, json ? "{\"time\":\"" : "");
    add_text(line, time);
    add_text(line, json ? "\",\"level\":\"" : " ");
    add_text(line, level_name(level, json));
    add_text(line, json ? "\",\"event\":\"" : " ");
    add_text(line, event);
    add_text(line, json ? "\"" : "");
    va_copy(copy.list, arguments);
    add_pairs(line, format != NULL ? format : "", &copy);
    va_end(copy.list);
    if (line->cut) {
        line->cut = 0;
        const char *word = json ? ",\"truncated\":true" : " truncated=true";
        memcpy(line->text + line->size, word, strlen(word));
        line->size += strlen(word);
    }
    if (json) line->text[line->size++] = '}';
    line->text[line->size++] = '\n';
}
