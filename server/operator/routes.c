/* routes.c - who may ask for what, as one table, and how refusals read. docs/API.md is the same table for people. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "server/operator/call.h"

/* Who asks, as bits. */
enum {
    LOCAL = 1,     /* over the Unix socket: whoever may open it runs the service */
    OPERATOR = 2,  /* by certificate, of its own tenant's things */
    AUDITOR = 4,   /* likewise, reading only */
    DEVICE = 8,    /* by certificate, for the next one */
    STRANGER = 16, /* over TLS without a certificate */
    ANYONE = LOCAL | OPERATOR | AUDITOR | DEVICE | STRANGER,
    HOLDERS = LOCAL | OPERATOR | AUDITOR | DEVICE, /* of a certificate; the socket is told what it lacks */
    READERS = LOCAL | OPERATOR | AUDITOR,
    WRITERS = LOCAL | OPERATOR
};

typedef struct {
    sheaf_http_method method;
    const char *path; /* {} stands for any name */
    unsigned who;
    void (*handle)(sheaf_call *call);
} route;

// clang-format off
static const route routes[] = {
    {SHEAF_HTTP_GET,  "/livez",                      READERS, sheaf_get_livez},
    {SHEAF_HTTP_GET,  "/readyz",                     READERS, sheaf_get_readyz},
    {SHEAF_HTTP_GET,  "/metrics",                    READERS, sheaf_get_metrics},
    {SHEAF_HTTP_GET,  "/v1/jobs",                    READERS, sheaf_get_jobs},
    {SHEAF_HTTP_GET,  "/v1/jobs/{}/{}",              READERS, sheaf_get_job},
    {SHEAF_HTTP_POST, "/v1/jobs/{}/{}/pause",        WRITERS, sheaf_pause_job},
    {SHEAF_HTTP_POST, "/v1/jobs/{}/{}/resume",       WRITERS, sheaf_resume_job},
    {SHEAF_HTTP_POST, "/v1/jobs/{}/{}/cancel",       WRITERS, sheaf_cancel_job},
    {SHEAF_HTTP_GET,  "/v1/jobs/{}/{}/rounds",       READERS, sheaf_get_rounds},
    {SHEAF_HTTP_GET,  "/v1/jobs/{}/{}/rounds/{}",    READERS, sheaf_get_round},
    {SHEAF_HTTP_GET,  "/v1/clients",                 READERS, sheaf_get_clients},
    {SHEAF_HTTP_GET,  "/v1/clients/{}/{}",           READERS, sheaf_get_client},
    {SHEAF_HTTP_GET,  "/v1/refusals",                READERS, sheaf_get_refusals},
    {SHEAF_HTTP_GET,  "/v1/crl",                     READERS, sheaf_get_crl},
    {SHEAF_HTTP_POST, "/v1/crl",                     WRITERS, sheaf_look_at_crl},
    {SHEAF_HTTP_GET,  "/.well-known/est/cacerts",        ANYONE,  sheaf_get_cacerts},
    {SHEAF_HTTP_POST, "/.well-known/est/simpleenroll",   ANYONE,  sheaf_enrol},
    {SHEAF_HTTP_POST, "/.well-known/est/simplereenroll", HOLDERS, sheaf_enrol_again},
};
// clang-format on

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void answer_text(sheaf_http_exchange *exchange, int code, const char *text, const char *name,
                        const char *value) {
    const sheaf_http_reply reply = {code, "application/json", sheaf_span_of(text, strlen(text)), name, value};
    sheaf_http_answer(exchange, &reply);
}

void sheaf_call_answer(sheaf_call *call, int code, json_t *object) {
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    if (text == NULL)
        answer_text(call->exchange, 500, "{\"error\":\"memory\",\"detail\":\"no memory for the answer\"}", NULL, NULL);
    else
        answer_text(call->exchange, code, text, NULL, NULL);
    free(text);
    json_decref(object);
}

static void refuse(sheaf_http_exchange *exchange, int code, sheaf_status status, const char *detail, const char *name,
                   const char *value) {
    json_t *object = json_pack("{s:s, s:s}", "error", sheaf_status_name(status), "detail", detail);
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    answer_text(exchange, code, text == NULL ? "{\"error\":\"memory\",\"detail\":\"\"}" : text, name, value);
    free(text);
    json_decref(object);
}

void sheaf_call_refuse(sheaf_call *call, int code, sheaf_status status, const char *format, ...) {
    char detail[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    refuse(call->exchange, code, status, detail, NULL, NULL);
}

void sheaf_call_challenge(sheaf_call *call, const char *scheme, const char *detail) {
    refuse(call->exchange, 401, SHEAF_E_TOKEN, detail, "WWW-Authenticate", scheme);
}

int sheaf_call_code_of(sheaf_status status) {
    switch (status) {
    case SHEAF_E_NOT_FOUND:
    case SHEAF_E_JOB:
        return 404;
    case SHEAF_E_CONFLICT:
    case SHEAF_E_EXISTS:
    case SHEAF_E_CANCELLED:
        return 409;
    case SHEAF_E_ROLE:
    case SHEAF_E_IDENTITY:
    case SHEAF_E_REVOKED:
    case SHEAF_E_CERTIFICATE:
        return 403;
    case SHEAF_E_TOKEN:
        return 401;
    case SHEAF_E_BUSY:
    case SHEAF_E_DATABASE:
    case SHEAF_E_NO_SPACE:
    case SHEAF_E_TIMEOUT:
        return 503;
    default:
        return status >= 100 && status < 200 ? 400 : 500;
    }
}

/* What came over the wire cannot be read; by HTTP status, for http_head.h has none of ours. */
void sheaf_operator_on_refused(void *context, sheaf_http_exchange *exchange, int code, const char *why) {
    (void)context;
    sheaf_status status = code == 403                  ? SHEAF_E_CERTIFICATE
                          : code == 404                ? SHEAF_E_NOT_FOUND
                          : code == 408                ? SHEAF_E_TIMEOUT
                          : code == 413 || code == 431 ? SHEAF_E_TOO_LARGE
                          : code == 505                ? SHEAF_E_VERSION
                                                       : SHEAF_E_MALFORMED;
    refuse(exchange, code, status, why, NULL, NULL);
}

json_t *sheaf_json_hex(const uint8_t digest[SHEAF_DIGEST_BYTES]) {
    char text[2 * SHEAF_DIGEST_BYTES + 1];
    sheaf_hex(digest, SHEAF_DIGEST_BYTES, text);
    return json_string(text);
}

json_t *sheaf_json_real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

/* --- what calls may ask ------------------------------------------------------------------------------------------- */

int sheaf_call_may_see(const sheaf_call *call, const char *tenant) {
    return call->tenant == NULL || strcmp(call->tenant, tenant) == 0;
}

int sheaf_call_number(sheaf_call *call, const char *name, uint64_t preset, uint64_t maximum, uint64_t *out) {
    const char *text = sheaf_http_parameter_of(call->head, name);
    *out = preset;
    if (text == NULL) return 1;
    size_t digits = strspn(text, "0123456789");
    if (digits > 0 && digits <= 18 && text[digits] == '\0') {
        *out = strtoull(text, NULL, 10);
        if (*out <= maximum) return 1;
    }
    sheaf_call_refuse(call, 400, SHEAF_E_MALFORMED, "%s: '%s'; expected a number of 0 to %llu", name, text,
                      (unsigned long long)maximum);
    return 0;
}

static void refuse_job(sheaf_call *call) {
    sheaf_call_refuse(call, 404, SHEAF_E_JOB, "no job '%s' of tenant '%s' is served here", call->names[1],
                      call->names[0]);
}

sheaf_job *sheaf_call_job(sheaf_call *call) {
    const sheaf_operator_options *options = &call->operator->options;
    for (size_t i = 0; i < options->job_count; i++) {
        const sheafd_job_config *config = sheaf_job_config_of(options->jobs[i]);
        if (strcmp(config->tenant, call->names[0]) == 0 && strcmp(config->name, call->names[1]) == 0 &&
            sheaf_call_may_see(call, config->tenant))
            return options->jobs[i];
    }
    refuse_job(call); /* in the same words for other tenants' jobs: who asks must not learn that there are any */
    return NULL;
}

typedef struct {
    const sheaf_call *call;
    sheaf_job_summary *out;
    int found;
} job_search;

static sheaf_status match_job(const sheaf_job_summary *job, void *context) {
    job_search *search = context;
    if (strcmp(job->tenant, search->call->names[0]) != 0 || strcmp(job->name, search->call->names[1]) != 0)
        return SHEAF_OK;
    *search->out = *job;
    search->found = 1;
    return SHEAF_ENDED;
}

int sheaf_call_job_summary(sheaf_call *call, sheaf_job_summary *out) {
    job_search search = {call, out, 0};
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = sheaf_history_jobs(call->operator->history, match_job, &search, &problem);
    if (status != SHEAF_OK && status != SHEAF_ENDED) {
        sheaf_call_refuse(call, sheaf_call_code_of(status), status, "%s", problem.text);
        return 0;
    }
    if (search.found && sheaf_call_may_see(call, out->tenant)) return 1;
    refuse_job(call);
    return 0;
}

/* --- the way to a handler ----------------------------------------------------------------------------------------- */

/* Whether the path is the route's; what stands at its {} goes to names. */
static int matches(const route *to, const sheaf_http_head *head, const char *names[3]) {
    const char *at = to->path;
    size_t name = 0, i = 0;
    for (; i < head->segment_count && *at == '/'; i++) {
        size_t size = strcspn(++at, "/");
        int is_name = size == 2 && memcmp(at, "{}", 2) == 0;
        if (is_name)
            names[name++] = head->segments[i];
        else if (strlen(head->segments[i]) != size || memcmp(head->segments[i], at, size) != 0)
            return 0;
        at += size;
    }
    return i == head->segment_count && *at == '\0';
}

static unsigned who_asks(sheaf_call *call) {
    if (sheaf_http_is_local(call->exchange)) return LOCAL;
    sheaf_certificate *peer = sheaf_http_peer(call->exchange);
    if (peer == NULL) return STRANGER;
    const sheaf_identity *identity = sheaf_certificate_identity(peer);
    call->tenant = identity->tenant;
    return identity->role == SHEAF_ROLE_OPERATOR  ? OPERATOR
           : identity->role == SHEAF_ROLE_AUDITOR ? AUDITOR
           : identity->role == SHEAF_ROLE_DEVICE  ? DEVICE
                                                  : 0;
}

static const char *name_of(sheaf_http_method method) { return method == SHEAF_HTTP_POST ? "POST" : "GET, HEAD"; }

static void call_route(const route *to, sheaf_call *call) {
    unsigned who = who_asks(call);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_certificate *peer = sheaf_http_peer(call->exchange);
    sheaf_status status = peer == NULL ? SHEAF_OK : sheaf_trust_holds(call->operator->options.trust, peer, &problem);
    if (status != SHEAF_OK) { /* revoked since the handshake */
        sheaf_call_refuse(call, 403, status, "%s", problem.text);
        return;
    }
    if (to->who & who) {
        to->handle(call);
        return;
    }
    sheaf_call_refuse(call, 403, SHEAF_E_ROLE, "%s",
                      who == AUDITOR ? "auditors may read only"
                                     : "expected the certificate of an operator (to read: or of an auditor)");
}

void sheaf_operator_on_request(void *context, sheaf_http_exchange *exchange) {
    sheaf_call call = {context, exchange, sheaf_http_head_of(exchange), {NULL, NULL, NULL}, NULL};
    sheaf_http_method method = call.head->method == SHEAF_HTTP_HEAD ? SHEAF_HTTP_GET : call.head->method;
    const route *other = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (!matches(&routes[i], call.head, call.names)) continue;
        if (routes[i].method == method) {
            call_route(&routes[i], &call);
            return;
        }
        other = &routes[i];
    }
    if (other == NULL)
        refuse(exchange, 404, SHEAF_E_NOT_FOUND, "no such resource; docs/API.md lists them", NULL, NULL);
    else
        refuse(exchange, 405, SHEAF_E_USAGE, "this resource has another method", "Allow", name_of(other->method));
}
