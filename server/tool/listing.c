#include "server/tool/listing.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/name.h"
#include "server/tool/verb.h"

/* What the service refuses is its finding, but for a name that is not there: that is our input. */
static int fail(const sheaf_listing *listing, const sheaf_problem *problem) {
    int code = sheaf_tool_fail(listing->verb, problem), refused = problem->status >= 100 && problem->status < 200;
    return refused && problem->status != SHEAF_E_JOB ? SHEAF_EXIT_FINDING : code;
}

int sheaf_listing_read(sheaf_listing *listing, int count, char **arguments, int wanted, const char *what) {
    for (int i = 1; i < count; i++) {
        if (sheaf_channel_option(&listing->channel, count, arguments, &i)) continue;
        if (arguments[i][0] == '-')
            return sheaf_tool_usage(listing->verb, listing->help, "%s does not take '%s', or it lacks its value",
                                    arguments[0], arguments[i]);
        if (listing->operand_count == wanted)
            return sheaf_tool_usage(listing->verb, listing->help, "%s: '%s' is one too many", arguments[0],
                                    arguments[i]);
        listing->operands[listing->operand_count++] = arguments[i];
    }
    if (listing->operand_count < wanted)
        return sheaf_tool_usage(listing->verb, listing->help, "%s needs %s", arguments[0], what);
    const char *wrong = sheaf_channel_check(&listing->channel);
    return wrong == NULL ? SHEAF_EXIT_OK : sheaf_tool_usage(listing->verb, listing->help, "%s", wrong);
}

/* --- the job that is meant ---------------------------------------------------------------------------------------- */

/* The tenant of the one job of this name. */
static sheaf_status find_tenant(const json_t *answer, const char *name, char tenant[SHEAF_NAME_BYTES],
                                sheaf_problem *problem) {
    const json_t *job;
    size_t at, found = 0;
    json_array_foreach(json_object_get(answer, "jobs"), at, job) {
        if (strcmp(sheaf_listing_text(job, "job"), name) != 0) continue;
        (void)snprintf(tenant, SHEAF_NAME_BYTES, "%s", sheaf_listing_text(job, "tenant"));
        found++;
    }
    if (found == 1) return SHEAF_OK;
    if (found == 0) return sheaf_problem_set(problem, SHEAF_E_NOT_FOUND, "no job '%s' is served there", name);
    return sheaf_problem_set(problem, SHEAF_E_USAGE, "%zu tenants have a job '%s'; name one: TENANT/%s", found, name,
                             name);
}

static sheaf_status ask_tenant(const sheaf_listing *listing, const char *name, char tenant[SHEAF_NAME_BYTES],
                               sheaf_problem *problem) {
    json_t *answer = NULL;
    sheaf_status status = sheaf_channel_ask(&listing->channel, 0, "/v1/jobs", &answer, problem);
    if (status == SHEAF_OK) status = find_tenant(answer, name, tenant, problem);
    json_decref(answer);
    return status;
}

int sheaf_listing_job_path(const sheaf_listing *listing, const char *suffix, char out[SHEAF_LISTING_PATH_BYTES]) {
    char tenant[SHEAF_NAME_BYTES] = "";
    const char *name = listing->operands[0], *slash = strchr(name, '/');
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = SHEAF_OK;
    if (slash != NULL) {
        (void)snprintf(tenant, sizeof tenant, "%.*s", (int)(slash - name), name);
        if ((size_t)(slash - name) >= sizeof tenant) tenant[0] = '\0'; /* too long for a name: refused below */
        name = slash + 1;
    }
    if (!sheaf_name_ok(name) || (slash != NULL && !sheaf_name_ok(tenant)))
        return sheaf_tool_usage(listing->verb, listing->help, "'%s' is no [TENANT/]NAME", listing->operands[0]);
    if (slash == NULL) status = ask_tenant(listing, name, tenant, &problem);
    if (status != SHEAF_OK) return fail(listing, &problem);
    (void)snprintf(out, SHEAF_LISTING_PATH_BYTES, "/v1/jobs/%s/%s%s", tenant, name, suffix);
    return SHEAF_EXIT_OK;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

int sheaf_listing_ask(const sheaf_listing *listing, int post, const char *path, json_t **out) {
    sheaf_problem problem = {SHEAF_OK, ""};
    if (sheaf_channel_ask(&listing->channel, post, path, out, &problem) != SHEAF_OK) return fail(listing, &problem);
    if (listing->channel.json) sheaf_channel_print(*out);
    return SHEAF_EXIT_OK;
}

/* "after=..." of the next page; 0 when there is none. */
static int next_page(const json_t *answer, char *out, size_t capacity) {
    const json_t *next = json_object_get(answer, "next");
    if (json_is_integer(next)) {
        (void)snprintf(out, capacity, "?after=%lld", (long long)json_integer_value(next));
        return 1;
    }
    if (!json_is_object(next)) return 0;
    (void)snprintf(out, capacity, "?after=%lld&after_attempt=%lld", sheaf_listing_number(next, "after"),
                   sheaf_listing_number(next, "after_attempt"));
    return 1;
}

int sheaf_listing_pages(const sheaf_listing *listing, const char *path, void (*show)(const json_t *page, int first)) {
    char query[96] = "", whole[SHEAF_LISTING_PATH_BYTES + sizeof query];
    for (int first = 1, more = 1; more; first = 0) {
        json_t *answer = NULL;
        (void)snprintf(whole, sizeof whole, "%s%s", path, query);
        int code = sheaf_listing_ask(listing, 0, whole, &answer);
        if (code != SHEAF_EXIT_OK) return code;
        if (!listing->channel.json) show(answer, first);
        more = next_page(answer, query, sizeof query);
        json_decref(answer);
    }
    return SHEAF_EXIT_OK;
}

const char *sheaf_listing_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text == NULL || text[0] == '\0' ? "-" : text;
}

long long sheaf_listing_number(const json_t *object, const char *key) {
    return (long long)json_integer_value(json_object_get(object, key));
}

const char *sheaf_listing_time(const json_t *object, const char *key, char out[32]) {
    long long ms = sheaf_listing_number(object, key);
    struct tm parts;
    time_t seconds = (time_t)(ms / 1000);
    if (ms <= 0 || gmtime_r(&seconds, &parts) == NULL) return "-";
    (void)strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return out;
}

void sheaf_listing_print_refusals(const json_t *refusals) {
    const char *reason;
    json_t *count;
    json_object_foreach((json_t *)refusals, reason, count)
        printf("    refused %-20s %lld\n", reason, (long long)json_integer_value(count));
}
