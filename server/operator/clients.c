/* clients.c - the devices that have spoken since the service started. */
#include <stdlib.h>
#include <time.h>

#include "server/operator/call.h"

enum { PAGE_PRESET = 100, PAGE_MAX = 1000 };

static json_t *time_or_null(uint64_t seconds) {
    char text[32];
    struct tm parts;
    time_t at = (time_t)seconds;
    if (seconds == 0 || gmtime_r(&at, &parts) == NULL) return json_null();
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return json_string(text);
}

static json_t *client_of(const sheaf_client_row *row) {
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "tenant",
                     row->identity.tenant, "name", row->identity.name, "role", sheaf_role_name(row->identity.role),
                     "region", row->identity.region, "carrier", row->carrier, "job", row->job, "first_seen_unix_ms",
                     (json_int_t)row->first_seen_unix_ms, "last_seen_unix_ms", (json_int_t)row->last_seen_unix_ms,
                     "last_round", (json_int_t)row->last_round, "accepted", (json_int_t)row->accepted, "refused",
                     (json_int_t)row->refused, "last_refusal",
                     row->last_refusal == SHEAF_OK ? json_null() : json_string(sheaf_status_name(row->last_refusal)),
                     "not_after", time_or_null((uint64_t)row->not_after_unix_s));
}

void sheaf_get_clients(sheaf_call *call) {
    uint64_t skip, limit, total = 0;
    if (!sheaf_call_number(call, "after", 0, UINT32_MAX, &skip) ||
        !sheaf_call_number(call, "limit", PAGE_PRESET, PAGE_MAX, &limit))
        return;
    sheaf_client_row *rows = calloc(limit + 1, sizeof *rows);
    json_t *list = json_array();
    if (rows == NULL || list == NULL) {
        free(rows);
        json_decref(list);
        sheaf_call_answer(call, 500, NULL);
        return;
    }
    size_t count = sheaf_clients_list(call->operator->options.clients, call->tenant, skip, rows, limit, &total);
    for (size_t i = 0; i < count; i++) (void)json_array_append_new(list, client_of(&rows[i]));
    free(rows);
    json_t *next = skip + count < total ? json_integer((json_int_t)skip + (json_int_t)count) : json_null();
    sheaf_call_answer(call, 200,
                      json_pack("{s:o, s:I, s:o}", "clients", list, "total", (json_int_t)total, "next", next));
}

void sheaf_get_client(sheaf_call *call) {
    sheaf_client_row row;
    if (sheaf_call_may_see(call, call->names[0]) &&
        sheaf_clients_find(call->operator->options.clients, call->names[0], call->names[1], &row))
        sheaf_call_answer(call, 200, client_of(&row));
    else
        sheaf_call_refuse(call, 404, SHEAF_E_NOT_FOUND,
                          "no device '%s' of tenant '%s' was here since this service started", call->names[1],
                          call->names[0]);
}
