#include "server/operator/http_head.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* What remains of the head, cut from the front. */
typedef struct {
    const char *at, *end;
} text;

static int is_token(char c) {
    static const char others[] = "!#$%&'*+-.^_`|~";
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != '\0' && strchr(others, c) != NULL);
}

static int is_path_char(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' || c == '_' ||
           c == '-' || c == '~';
}

static int is_query_char(char c) { return is_path_char(c) || c == '/' || c == ':' || c == ','; }

/* The text up to `stop`, which is passed over; NULL end when there is none. */
static text take_until(text *from, const char *stop) {
    size_t size = strlen(stop);
    text taken = {from->at, NULL};
    for (const char *at = from->at; (size_t)(from->end - at) >= size; at++) {
        if (memcmp(at, stop, size) != 0) continue;
        taken.end = at;
        from->at = at + size;
        break;
    }
    return taken;
}

static size_t length(text t) { return (size_t)(t.end - t.at); }

static int is_word(text t, const char *word) { return length(t) == strlen(word) && memcmp(t.at, word, length(t)) == 0; }

/* Copies with a closing NUL; 0 when it does not fit. */
static int copy(text from, char *out, size_t capacity) {
    if (length(from) >= capacity) return 0;
    memcpy(out, from.at, length(from));
    out[length(from)] = '\0';
    return 1;
}

/* --- request line ------------------------------------------------------------------------------------------------- */

static int read_method(text word, sheaf_http_method *out) {
    static const char *const others[] = {"PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"};
    if (is_word(word, "GET")) return *out = SHEAF_HTTP_GET, 200;
    if (is_word(word, "HEAD")) return *out = SHEAF_HTTP_HEAD, 200;
    if (is_word(word, "POST")) return *out = SHEAF_HTTP_POST, 200;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (is_word(word, others[i])) return *out = SHEAF_HTTP_OTHER, 200;
    }
    for (const char *c = word.at; c < word.end; c++) {
        if (!is_token(*c)) return 400;
    }
    return length(word) == 0 ? 400 : 501;
}

static int read_segment(text segment, sheaf_http_head *out) {
    if (length(segment) == 0 || is_word(segment, ".") || is_word(segment, "..")) return 400;
    for (const char *c = segment.at; c < segment.end; c++) {
        if (!is_path_char(*c)) return 400;
    }
    /* Longer than any name of ours, or deeper than any path: well-formed, but nothing is there. */
    if (out->segment_count == SHEAF_HTTP_SEGMENTS_MAX || length(segment) >= SHEAF_NAME_BYTES) return 404;
    (void)copy(segment, out->segments[out->segment_count++], SHEAF_NAME_BYTES);
    return 200;
}

static int read_path(text path, sheaf_http_head *out) {
    if (length(path) == 0 || *path.at != '/') return 400;
    path.at++;
    while (length(path) > 0) {
        text segment = take_until(&path, "/");
        int last = segment.end == NULL;
        if (last) segment.end = path.end;
        int code = read_segment(segment, out);
        if (code != 200) return code;
        if (last) return 200;
        if (length(path) == 0) return 404; /* a slash at the end names no resource of ours */
    }
    return 200;
}

static int read_parameter(text pair, sheaf_http_head *out) {
    if (out->parameter_count == SHEAF_HTTP_PARAMETERS_MAX) return 400;
    sheaf_http_parameter *parameter = &out->parameters[out->parameter_count];
    for (const char *c = pair.at; c < pair.end; c++) {
        if (!is_query_char(*c) && *c != '=') return 400;
    }
    text name = take_until(&pair, "=");
    if (name.end == NULL || length(name) == 0) return 400;
    if (!copy(name, parameter->name, sizeof parameter->name) || !copy(pair, parameter->value, sizeof parameter->value))
        return 400;
    if (sheaf_http_parameter_of(out, parameter->name) != NULL) return 400;
    out->parameter_count++;
    return 200;
}

static int read_query(text query, sheaf_http_head *out) {
    for (;;) {
        text pair = take_until(&query, "&");
        int last = pair.end == NULL;
        if (last) pair = query;
        int code = read_parameter(pair, out);
        if (code != 200 || last) return code;
    }
}

static int read_target(text target, sheaf_http_head *out, const char **why) {
    text path = take_until(&target, "?");
    int has_query = path.end != NULL;
    if (!has_query) path = target;
    int code = read_path(path, out);
    *why = code == 404 ? "no such resource" : "the path has empty parts, dots, escapes or odd characters";
    if (code != 200 || !has_query) return code;
    *why = "the query is not NAME=VALUE, joined by &, without escapes";
    return read_query(target, out);
}

static int read_request_line(text line, sheaf_http_head *out, int *is_1_1, const char **why) {
    text method = take_until(&line, " "), target = {NULL, NULL};
    if (method.end != NULL) target = take_until(&line, " ");
    *why = "not a request line of HTTP/1.1";
    if (target.end == NULL) return 400;
    *is_1_1 = is_word(line, "HTTP/1.1");
    if (!*is_1_1 && !is_word(line, "HTTP/1.0")) {
        *why = "only HTTP/1.1 and 1.0 are spoken here";
        return length(line) > 5 && memcmp(line.at, "HTTP/", 5) == 0 ? 505 : 400;
    }
    int code = read_method(method, &out->method);
    *why = code == 501 ? "no such method" : "the method is no word";
    return code == 200 ? read_target(target, out, why) : code;
}

/* --- header fields ------------------------------------------------------------------------------------------------ */

typedef struct {
    sheaf_http_head *head;
    unsigned seen; /* a bit for each row below */
} fields;

static int take_length(text value, sheaf_http_head *head) {
    uint64_t number = 0;
    if (length(value) == 0 || length(value) > 18) return length(value) == 0 ? 400 : 413;
    for (const char *c = value.at; c < value.end; c++) {
        if (*c < '0' || *c > '9') return 400;
        number = 10 * number + (uint64_t)(*c - '0'); /* 18 digits: < 2^60 */
    }
    head->body_bytes = number;
    return 200;
}

static int take_host(text value, sheaf_http_head *head) {
    (void)head;
    return length(value) == 0 ? 400 : 200;
}

static int take_coding(text value, sheaf_http_head *head) {
    (void)value, (void)head;
    return 501;
}

static int take_expect(text value, sheaf_http_head *head) {
    static const char known[] = "100-continue";
    head->expects_continue = 1;
    return length(value) == sizeof known - 1 && strncasecmp(value.at, known, sizeof known - 1) == 0 ? 200 : 417;
}

static int take_authorization(text value, sheaf_http_head *head) {
    return copy(value, head->authorization, sizeof head->authorization) ? 200 : 431;
}

static int take_type(text value, sheaf_http_head *head) {
    const char *semicolon = memchr(value.at, ';', length(value));
    if (semicolon != NULL) value.end = semicolon;
    while (value.end > value.at && value.end[-1] == ' ') value.end--;
    return copy(value, head->content_type, sizeof head->content_type) ? 200 : 431;
}

enum { HOST };
static const struct {
    const char *name;
    int (*take)(text value, sheaf_http_head *head);
    const char *why;
} known_fields[] = {
    [HOST] = {"host", take_host, "the Host field is empty"},
    {"content-length", take_length, "Content-Length is no number that we take"},
    {"transfer-encoding", take_coding, "transfer codings are not spoken here: send Content-Length"},
    {"expect", take_expect, "only 100-continue can be expected"},
    {"authorization", take_authorization, "the Authorization field is too long"},
    {"content-type", take_type, "the Content-Type field is too long"},
};
enum { KNOWN = sizeof known_fields / sizeof known_fields[0] };

static int read_field(text line, fields *to, const char **why) {
    *why = "a header field is not NAME: VALUE";
    text name = take_until(&line, ":");
    if (name.end == NULL || length(name) == 0) return 400;
    for (const char *c = name.at; c < name.end; c++) {
        if (!is_token(*c)) return 400;
    }
    for (const char *c = line.at; c < line.end; c++) {
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f) return 400;
    }
    while (length(line) > 0 && (*line.at == ' ' || *line.at == '\t')) line.at++;
    while (length(line) > 0 && (line.end[-1] == ' ' || line.end[-1] == '\t')) line.end--;
    for (unsigned i = 0; i < KNOWN; i++) {
        size_t size = strlen(known_fields[i].name);
        if (length(name) != size || strncasecmp(name.at, known_fields[i].name, size) != 0) continue;
        *why = "a header field that may stand once stands twice";
        if (to->seen & 1u << i) return 400;
        to->seen |= 1u << i;
        *why = known_fields[i].why;
        return known_fields[i].take(line, to->head);
    }
    return 200;
}

int sheaf_http_head_read(sheaf_span bytes, sheaf_http_head *out, const char **why) {
    text all = {(const char *)bytes.data, (const char *)bytes.data + bytes.size};
    fields to = {out, 0};
    int is_1_1 = 0;
    memset(out, 0, sizeof *out);
    *why = "a line of the head has no end";
    text line = take_until(&all, "\r\n");
    if (line.end == NULL) return 400;
    int code = read_request_line(line, out, &is_1_1, why);
    for (unsigned count = 0; code == 200; count++) {
        *why = "the head does not end with an empty line";
        line = take_until(&all, "\r\n");
        if (line.end == NULL) return 400;
        if (length(line) == 0) break;
        *why = "too many header fields";
        code = count == SHEAF_HTTP_FIELDS_MAX ? 431 : read_field(line, &to, why);
    }
    if (code != 200) return code;
    *why = "the Host field is missing";
    if (is_1_1 && !(to.seen & 1u << HOST)) return 400;
    *why = "something follows the head";
    return length(all) == 0 ? 200 : 400;
}

const char *sheaf_http_parameter_of(const sheaf_http_head *head, const char *name) {
    for (size_t i = 0; i < head->parameter_count; i++) {
        if (strcmp(head->parameters[i].name, name) == 0) return head->parameters[i].value;
    }
    return NULL;
}

/* --- base64 and Basic --------------------------------------------------------------------------------------------- */

static int is_blank(uint8_t c) { return c == '\r' || c == '\n' || c == ' ' || c == '\t'; }

static int digit_of(uint8_t c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c == '\0' ? NULL : strchr(digits, c);
    return found == NULL ? -1 : (int)(found - digits);
}

int sheaf_http_read_base64(sheaf_span text, sheaf_buffer *out) {
    uint32_t group = 0;
    unsigned digits = 0, padding = 0;
    out->size = 0;
    for (size_t i = 0; i < text.size; i++) {
        uint8_t c = text.data[i];
        if (is_blank(c)) continue;
        int digit = c == '=' ? 0 : digit_of(c);
        if (digit < 0 || (padding > 0 && c != '=') || (c == '=' && digits < 2)) return 0;
        padding += c == '=';
        group = group << 6 | (uint32_t)digit;
        if (++digits < 4) continue;
        unsigned bytes = 3 - padding; /* padding <= 2, for it stands at the third or fourth place only */
        if (out->capacity - out->size < bytes) return 0;
        for (unsigned b = 0; b < bytes; b++) out->data[out->size++] = (uint8_t)(group >> (16 - 8 * b));
        if ((group & ((1u << 8 * padding) - 1)) != 0) return 0; /* one text for each value */
        group = 0;
        digits = 0;
        if (padding > 0) { /* only blanks may follow */
            for (i++; i < text.size; i++) {
                if (!is_blank(text.data[i])) return 0;
            }
        }
    }
    return digits == 0;
}

static int is_clean(const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] < 0x20 || bytes[i] > 0x7e) return 0;
    }
    return 1;
}

int sheaf_http_read_basic(const char *authorization, char user[SHEAF_NAME_BYTES],
                          char password[SHEAF_HTTP_PARAMETER_BYTES]) {
    static const char scheme[] = "Basic ";
    const size_t scheme_size = strlen(scheme);
    uint8_t memory[SHEAF_HTTP_AUTHORIZATION_BYTES];
    sheaf_buffer plain = {memory, 0, sizeof memory};
    if (strncasecmp(authorization, scheme, scheme_size) != 0) return 0;
    authorization += scheme_size;
    int ok = sheaf_http_read_base64(sheaf_span_of(authorization, strlen(authorization)), &plain) &&
             is_clean(plain.data, plain.size);
    const uint8_t *colon = ok ? memchr(plain.data, ':', plain.size) : NULL;
    if (colon != NULL) {
        text name = {(const char *)plain.data, (const char *)colon},
             secret = {(const char *)colon + 1, (const char *)plain.data + plain.size};
        ok = copy(name, user, SHEAF_NAME_BYTES) && copy(secret, password, SHEAF_HTTP_PARAMETER_BYTES);
    }
    sheaf_wipe(memory, sizeof memory);
    return ok && colon != NULL;
}
