/* listing.h - what the verbs that ask a running service share: options, operands, the way to a job of theirs.
 *
 * Owner:   borrows the command line.
 * Threads: one.
 * Errors:  exit codes; what is wrong was printed.
 * Not:     the channel itself; that is channel.h. */
#pragma once
#include "server/tool/channel.h"

#define SHEAF_LISTING_PATH_BYTES 512u

typedef struct {
    const char *verb, *help; /* set before read */
    sheaf_channel channel;
    const char *operands[2]; /* what is not an option */
    int operand_count;
} sheaf_listing;

/* Reads arguments[1..]; arguments[0] is the command. `wanted`: how many operands there must be, `what` they are. */
int sheaf_listing_read(sheaf_listing *listing, int count, char **arguments, int wanted, const char *what);
/* /v1/jobs/TENANT/NAME and `suffix`, for operands[0] = [TENANT/]NAME; without a tenant the service is asked for its
 * jobs, and only one may have that name. */
int sheaf_listing_job_path(const sheaf_listing *listing, const char *suffix, char out[SHEAF_LISTING_PATH_BYTES]);
/* Asks; prints the answer if --json is given. The caller releases *out. */
int sheaf_listing_ask(const sheaf_listing *listing, int post, const char *path, json_t **out);
/* The same for each page until there is none: the numbers in "next" go into the query of the next. `show` prints one page
 * for people. */
int sheaf_listing_pages(const sheaf_listing *listing, const char *path, void (*show)(const json_t *page, int first));

/* Of an answer: "-" and 0 for what is not there. */
const char *sheaf_listing_text(const json_t *object, const char *key);
long long sheaf_listing_number(const json_t *object, const char *key);
/* A time in Unix milliseconds, or "-". */
const char *sheaf_listing_time(const json_t *object, const char *key, char out[32]);
/* One line a reason. */
void sheaf_listing_print_refusals(const json_t *refusals);
