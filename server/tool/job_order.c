#include "server/tool/job_order.h"

#include <stdio.h>
#include <string.h>

#include "server/tool/listing.h"
#include "server/tool/verb.h"

static void print_job(const json_t *job) {
    const json_t *cohort = json_object_get(job, "cohort");
    printf("%s/%s: %s, %lld of %lld rounds released", sheaf_listing_text(job, "tenant"), sheaf_listing_text(job, "job"),
           sheaf_listing_text(job, "status"), sheaf_listing_number(job, "rounds"),
           sheaf_listing_number(job, "rounds_wanted"));
    if (sheaf_listing_number(job, "open_round") != 0)
        printf(", round %lld (attempt %lld) open with %lld of %lld updates, %lld devices joined",
               sheaf_listing_number(job, "open_round"), sheaf_listing_number(job, "open_attempt"),
               sheaf_listing_number(job, "open_accepted"), sheaf_listing_number(cohort, "target"),
               sheaf_listing_number(cohort, "joined"));
    printf(", model %s\n", sheaf_listing_text(job, "model_digest"));
}

static int list(sheaf_listing *listing, int count, char **arguments) {
    json_t *answer = NULL;
    const json_t *job;
    size_t at;
    int code = sheaf_listing_read(listing, count, arguments, 0, "");
    if (code == SHEAF_EXIT_OK) code = sheaf_listing_ask(listing, 0, "/v1/jobs", &answer);
    if (code == SHEAF_EXIT_OK && !listing->channel.json)
        json_array_foreach(json_object_get(answer, "jobs"), at, job) print_job(job);
    json_decref(answer);
    return code;
}

static int show(sheaf_listing *listing, int count, char **arguments) {
    char path[SHEAF_LISTING_PATH_BYTES];
    json_t *answer = NULL;
    int code = sheaf_listing_read(listing, count, arguments, 1, "[TENANT/]NAME");
    if (code == SHEAF_EXIT_OK) code = sheaf_listing_job_path(listing, "", path);
    if (code == SHEAF_EXIT_OK) code = sheaf_listing_ask(listing, 0, path, &answer);
    if (code == SHEAF_EXIT_OK && !listing->channel.json) {
        print_job(answer);
        sheaf_listing_print_refusals(json_object_get(answer, "refusals"));
    }
    json_decref(answer);
    return code;
}

static int give(sheaf_listing *listing, int count, char **arguments) {
    char path[SHEAF_LISTING_PATH_BYTES], suffix[16];
    json_t *answer = NULL;
    (void)snprintf(suffix, sizeof suffix, "/%s", arguments[0]);
    int code = sheaf_listing_read(listing, count, arguments, 1, "[TENANT/]NAME");
    if (code == SHEAF_EXIT_OK) code = sheaf_listing_job_path(listing, suffix, path);
    if (code == SHEAF_EXIT_OK) code = sheaf_listing_ask(listing, 1, path, &answer);
    if (code == SHEAF_EXIT_OK && !listing->channel.json)
        printf("%s: %s\n", listing->operands[0], sheaf_listing_text(answer, "status"));
    json_decref(answer);
    return code;
}

static const struct {
    const char *name;
    int (*run)(sheaf_listing *listing, int count, char **arguments);
} commands[] = {{"list", list}, {"show", show}, {"pause", give}, {"resume", give}, {"cancel", give}};

int sheaf_job_order_run(int count, char **arguments, const char *help) {
    sheaf_listing listing = {.verb = "job", .help = help};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(arguments[0], commands[i].name) == 0) return commands[i].run(&listing, count, arguments);
    }
    return -1;
}
