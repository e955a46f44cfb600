/* http_head.h - the head of one HTTP/1.1 request, read strictly: request line and the few header fields that we heed.
 *
 * What is ambiguous is refused, not guessed: bare line feeds, folded lines, space before a colon, fields given twice,
 * transfer codings, escapes in the path (none of our paths needs any).
 *
 * Owner:   a head is a plain value and holds no pointer.
 * Threads: any; no state.
 * Units:   bytes.
 * Errors:  none of ours: the answer is the HTTP status that the client is to be told, and why.
 * Not:     bodies and connections; that is http_server.h. */
#pragma once
#include "common/bytes.h"
#include "common/name.h"

#define SHEAF_HTTP_HEAD_BYTES_MAX      8192u
#define SHEAF_HTTP_FIELDS_MAX          64u
#define SHEAF_HTTP_SEGMENTS_MAX        8u
#define SHEAF_HTTP_PARAMETERS_MAX      8u
#define SHEAF_HTTP_PARAMETER_BYTES     160u /* "TENANT/JOB" fits */
#define SHEAF_HTTP_AUTHORIZATION_BYTES 512u
#define SHEAF_HTTP_TYPE_BYTES          128u

typedef enum { SHEAF_HTTP_GET, SHEAF_HTTP_HEAD, SHEAF_HTTP_POST, SHEAF_HTTP_OTHER } sheaf_http_method;

typedef struct {
    char name[SHEAF_NAME_BYTES];
    char value[SHEAF_HTTP_PARAMETER_BYTES];
} sheaf_http_parameter;

typedef struct {
    sheaf_http_method method; /* OTHER: a method of the standard that no resource of ours has */
    char segments[SHEAF_HTTP_SEGMENTS_MAX][SHEAF_NAME_BYTES]; /* of the path: "/v1/jobs" has two, "/" has none */
    size_t segment_count;
    sheaf_http_parameter parameters[SHEAF_HTTP_PARAMETERS_MAX]; /* of the query */
    size_t parameter_count;
    uint64_t body_bytes;
    int expects_continue; /* the client waits for "100 Continue" before it sends the body */
    char authorization[SHEAF_HTTP_AUTHORIZATION_BYTES]; /* "" when absent */
    char content_type[SHEAF_HTTP_TYPE_BYTES];           /* without parameters, "" when absent */
} sheaf_http_head;

/* Reads a whole head: `bytes` ends with the empty line. Returns 200, or the HTTP status of the refusal with *why set to
 * a static text. */
int sheaf_http_head_read(sheaf_span bytes, sheaf_http_head *out, const char **why);
/* The value of a query parameter, or NULL. */
const char *sheaf_http_parameter_of(const sheaf_http_head *head, const char *name);

/* User and password of HTTP Basic credentials (RFC 7617); 0 when they are of another scheme, malformed or too long. Both
 * end with a NUL and hold no control characters. Wipe the password. */
int sheaf_http_read_basic(const char *authorization, char user[SHEAF_NAME_BYTES],
                          char password[SHEAF_HTTP_PARAMETER_BYTES]);
/* Bytes of base64 text (RFC 4648, line breaks and blanks allowed between groups); 0 when malformed or larger than
 * out->capacity. */
int sheaf_http_read_base64(sheaf_span text, sheaf_buffer *out);
