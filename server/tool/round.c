/* round.c - `sheaf round`: the closed rounds of a job, and what one round took, from a running service. */
#include <stdio.h>
#include <string.h>

#include "server/tool/listing.h"
#include "server/tool/verb.h"

static const char help[] =
    "usage: sheaf round list [TENANT/]JOB CHANNEL [--json]\n"
    "       sheaf round show [TENANT/]JOB ROUND CHANNEL [--json]\n"
    "\n"
    "  list   closed rounds and failed attempts, oldest first\n"
    "  show   the attempts of one round, what was refused in it, by reason, and the updates that were accepted\n"
    "\n"
    "CHANNEL is one of\n" SHEAF_CHANNEL_HELP "\n"
    "With --json each page of the answer is one object a line. `sheaf job watch` follows a job as it goes.\n"
    "exit codes: 0 done, 1 refused by the service, 2 usage, 3 bad input or nothing of that name, 4 no service\n";

static void print_attempt(const json_t *round) {
    char closed[32];
    printf("round %4lld  attempt %lld  %-12s accepted %lld  refused %lld  bytes %lld  closed %s",
           sheaf_listing_number(round, "round"), sheaf_listing_number(round, "attempt"),
           json_is_true(json_object_get(round, "released")) ? "released" : sheaf_listing_text(round, "reason"),
           sheaf_listing_number(round, "accepted"), sheaf_listing_number(round, "refused"),
           sheaf_listing_number(round, "upload_bytes"), sheaf_listing_time(round, "closed_unix_ms", closed));
    if (json_is_true(json_object_get(round, "released")))
        printf("  model %s", sheaf_listing_text(round, "model_digest"));
    putchar('\n');
}

static void show_rounds(const json_t *page, int first) {
    const json_t *round;
    size_t at;
    (void)first;
    json_array_foreach(json_object_get(page, "rounds"), at, round) print_attempt(round);
}

static void show_round(const json_t *page, int first) {
    const json_t *item, *open = json_object_get(page, "open");
    size_t at;
    char when[32];
    if (first) json_array_foreach(json_object_get(page, "attempts"), at, item) print_attempt(item);
    if (first && json_is_object(open))
        printf("round %4lld  attempt %lld  open         accepted %lld\n", sheaf_listing_number(open, "round"),
               sheaf_listing_number(open, "attempt"), sheaf_listing_number(open, "accepted"));
    if (first) sheaf_listing_print_refusals(json_object_get(page, "refusals"));
    json_array_foreach(json_object_get(page, "updates"), at, item)
        printf("  %-24s attempt %lld  weight %lld  bytes %lld  accepted %s\n", sheaf_listing_text(item, "client"),
               sheaf_listing_number(item, "attempt"), sheaf_listing_number(item, "weight"),
               sheaf_listing_number(item, "payload_bytes"), sheaf_listing_time(item, "accepted_unix_ms", when));
}

static int list(int count, char **arguments) {
    sheaf_listing listing = {.verb = "round", .help = help};
    char path[SHEAF_LISTING_PATH_BYTES];
    int code = sheaf_listing_read(&listing, count, arguments, 1, "[TENANT/]JOB");
    if (code == SHEAF_EXIT_OK) code = sheaf_listing_job_path(&listing, "/rounds", path);
    return code == SHEAF_EXIT_OK ? sheaf_listing_pages(&listing, path, show_rounds) : code;
}

static int show(int count, char **arguments) {
    sheaf_listing listing = {.verb = "round", .help = help};
    char path[SHEAF_LISTING_PATH_BYTES], suffix[40];
    int code = sheaf_listing_read(&listing, count, arguments, 2, "[TENANT/]JOB and ROUND");
    if (code != SHEAF_EXIT_OK) return code;
    const char *number = listing.operands[1];
    if (strspn(number, "0123456789") != strlen(number) || *number == '\0' || strlen(number) > 18)
        return sheaf_tool_usage("round", help, "'%s' is no number of a round", number);
    (void)snprintf(suffix, sizeof suffix, "/rounds/%s", number);
    code = sheaf_listing_job_path(&listing, suffix, path);
    return code == SHEAF_EXIT_OK ? sheaf_listing_pages(&listing, path, show_round) : code;
}

int sheaf_verb_round(int count, char **arguments) {
    if (count < 2) return sheaf_tool_usage("round", help, "which? list or show");
    if (strcmp(arguments[1], "--help") == 0 || (count > 2 && strcmp(arguments[2], "--help") == 0))
        return fputs(help, stdout), SHEAF_EXIT_OK;
    if (strcmp(arguments[1], "list") == 0) return list(count - 1, arguments + 1);
    if (strcmp(arguments[1], "show") == 0) return show(count - 1, arguments + 1);
    return sheaf_tool_usage("round", help, "no command '%s'", arguments[1]);
}
