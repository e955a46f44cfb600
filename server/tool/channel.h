/* channel.h - how the tool's verbs reach a running service: HTTP over its socket, or over mutual TLS.
 *
 * Owner:   options borrow the command line; answers are the caller's to json_decref.
 * Threads: one.
 * Errors:  SHEAF_E_NETWORK (nobody answers), SHEAF_E_CERTIFICATE, SHEAF_E_USAGE, SHEAF_E_TOO_LARGE, SHEAF_E_MALFORMED (no answer
 *          of a sheafd), and whatever status the service names in its refusal.
 * Not:     what is asked; each verb knows its resources (docs/API.md). */
#pragma once
#include <jansson.h>

#include "common/bytes.h"
#include "common/problem.h"

typedef struct {
    const char *state; /* folder with the socket; or */
    const char *url;   /* https://HOST:PORT, with */
    const char *certificate, *key, *ca;
    int json;
} sheaf_channel;

#define SHEAF_CHANNEL_HELP                                                                                             \
    "  --state DIR          the service's state folder on this machine, with its operator socket; or\n"                \
    "  --url URL            https://HOST:PORT, operator.listen of its config, with\n"                                  \
    "  --certificate FILE   an operator's certificate (to read: or an auditor's),\n"                                   \
    "  --key FILE           its key, and\n"                                                                            \
    "  --ca FILE            the authorities that the service's certificate must chain to\n"                            \
    "  --json               the answer as one JSON object\n"

/* Takes the option at arguments[*at], with its value, and moves on; 0 when it is none of the channel's or has no value. */
int sheaf_channel_option(sheaf_channel *channel, int count, char **arguments, int *at);
/* NULL when the options make one channel; else what is wrong. */
const char *sheaf_channel_check(const sheaf_channel *channel);

/* GET, or POST without a body. */
SHEAF_MUST_USE sheaf_status sheaf_channel_ask(const sheaf_channel *channel, int post, const char *path, json_t **out,
                                              sheaf_problem *problem);

/* Any request, for other resources than JSON's. */
typedef struct {
    const char *path;
    sheaf_span body;           /* data NULL: GET */
    const char *type;          /* Content-Type of the body */
    const char *user, *secret; /* HTTP Basic; NULL: none */
} sheaf_channel_request;

typedef struct {
    long code;
    char *text; /* with a NUL; free() it */
    size_t size;
} sheaf_channel_answer;

/* SHEAF_OK when there was an answer of HTTP, whatever it says. */
SHEAF_MUST_USE sheaf_status sheaf_channel_exchange(const sheaf_channel *channel, const sheaf_channel_request *request,
                                                   sheaf_channel_answer *out, sheaf_problem *problem);
/* Status and text of an answer that is a refusal. */
sheaf_status sheaf_channel_refusal(const sheaf_channel_answer *answer, sheaf_problem *problem);

/* Prints an object on one line. */
void sheaf_channel_print(const json_t *object);
