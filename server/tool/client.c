/* client.c - `sheaf client`: the devices that a running service has seen. */
#include <stdio.h>
#include <string.h>

#include "common/name.h"
#include "server/tool/listing.h"
#include "server/tool/verb.h"

static const char help[] =
    "usage: sheaf client list CHANNEL [--json]\n"
    "       sheaf client show TENANT/NAME CHANNEL [--json]\n"
    "\n"
    "Devices that have spoken to a running sheafd since it started.\n"
    "\n"
    "CHANNEL is one of\n" SHEAF_CHANNEL_HELP "\n"
    "exit codes: 0 done, 1 refused by the service, 2 usage, 3 bad input or nothing of that name, 4 no service\n";

static void show_page(const json_t *page, int first) {
    const json_t *client;
    size_t at;
    char seen[32];
    if (first)
        printf("%-24s %-8s %-8s %-20s %10s %8s %8s  %s\n", "client", "region", "carrier", "last seen", "last round",
               "accepted", "refused", "certificate until");
    json_array_foreach(json_object_get(page, "clients"), at, client) {
        char name[2 * SHEAF_NAME_BYTES + 1];
        (void)snprintf(name, sizeof name, "%s/%s", sheaf_listing_text(client, "tenant"),
                       sheaf_listing_text(client, "name"));
        printf("%-24s %-8s %-8s %-20s %10lld %8lld %8lld  %s\n", name, sheaf_listing_text(client, "region"),
               sheaf_listing_text(client, "carrier"), sheaf_listing_time(client, "last_seen_unix_ms", seen),
               sheaf_listing_number(client, "last_round"), sheaf_listing_number(client, "accepted"),
               sheaf_listing_number(client, "refused"), sheaf_listing_text(client, "not_after"));
    }
}

static void show_client(const json_t *client) {
    static const char *const texts[] = {"tenant",  "name", "role",         "region",
                                        "carrier", "job",  "last_refusal", "not_after"};
    static const char *const times[] = {"first_seen_unix_ms", "last_seen_unix_ms"};
    static const char *const numbers[] = {"last_round", "accepted", "refused"};
    char text[32];
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        printf("%-14s %s\n", texts[i], sheaf_listing_text(client, texts[i]));
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        printf("%-14.*s %s\n", (int)(strlen(times[i]) - strlen("_unix_ms")), times[i],
               sheaf_listing_time(client, times[i], text));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        printf("%-14s %lld\n", numbers[i], sheaf_listing_number(client, numbers[i]));
}

static int list(int count, char **arguments) {
    sheaf_listing listing = {.verb = "client", .help = help};
    int code = sheaf_listing_read(&listing, count, arguments, 0, "");
    return code == SHEAF_EXIT_OK ? sheaf_listing_pages(&listing, "/v1/clients", show_page) : code;
}

static int show(int count, char **arguments) {
    sheaf_listing listing = {.verb = "client", .help = help};
    char path[SHEAF_LISTING_PATH_BYTES], tenant[SHEAF_NAME_BYTES];
    int code = sheaf_listing_read(&listing, count, arguments, 1, "TENANT/NAME");
    if (code != SHEAF_EXIT_OK) return code;
    const char *slash = strchr(listing.operands[0], '/');
    size_t size = slash == NULL ? sizeof tenant : (size_t)(slash - listing.operands[0]);
    if (size < sizeof tenant) (void)snprintf(tenant, sizeof tenant, "%.*s", (int)size, listing.operands[0]);
    if (size >= sizeof tenant || !sheaf_name_ok(tenant) || !sheaf_name_ok(slash + 1))
        return sheaf_tool_usage("client", help, "'%s' is no TENANT/NAME", listing.operands[0]);
    (void)snprintf(path, sizeof path, "/v1/clients/%s/%s", tenant, slash + 1);
    json_t *answer = NULL;
    code = sheaf_listing_ask(&listing, 0, path, &answer);
    if (code == SHEAF_EXIT_OK && !listing.channel.json) show_client(answer);
    json_decref(answer);
    return code;
}

int sheaf_verb_client(int count, char **arguments) {
    if (count < 2) return sheaf_tool_usage("client", help, "which? list or show");
    if (strcmp(arguments[1], "--help") == 0 || (count > 2 && strcmp(arguments[2], "--help") == 0))
        return fputs(help, stdout), SHEAF_EXIT_OK;
    if (strcmp(arguments[1], "list") == 0) return list(count - 1, arguments + 1);
    if (strcmp(arguments[1], "show") == 0) return show(count - 1, arguments + 1);
    return sheaf_tool_usage("client", help, "no command '%s'", arguments[1]);
}
