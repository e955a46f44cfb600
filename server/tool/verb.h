/* verb.h - a verb of the `sheaf` tool: each stands in a file of its own name.
 *
 * A verb gets its own arguments (arguments[0] is the verb) and returns an exit code. It prints results on stdout and
 * problems on stderr through sheaf_tool_fail, which also picks the exit code. */
#pragma once
#include "common/problem.h"

enum {
    SHEAF_EXIT_OK = 0,
    SHEAF_EXIT_FINDING = 1, /* a finding, or refused by the service or a policy */
    SHEAF_EXIT_USAGE = 2,
    SHEAF_EXIT_INPUT = 3,       /* bad input files or config */
    SHEAF_EXIT_ENVIRONMENT = 4, /* disk, network, missing device */
    SHEAF_EXIT_BUDGET = 5
};

typedef struct {
    const char *name;
    const char *summary; /* one line for `sheaf help` */
    int (*run)(int count, char **arguments);
} sheaf_verb;

/* Prints "sheaf VERB: text" on stderr and returns the exit code that belongs to the status. */
int sheaf_tool_fail(const char *verb, const sheaf_problem *problem);
/* The same for a usage error, with the verb's help on stderr. */
int sheaf_tool_usage(const char *verb, const char *help, const char *format, ...) SHEAF_PRINTF(3, 4);

int sheaf_verb_aggregate(int count, char **arguments);
int sheaf_verb_pki(int count, char **arguments);
int sheaf_verb_client(int count, char **arguments);
int sheaf_verb_round(int count, char **arguments);
int sheaf_verb_job(int count, char **arguments);
int sheaf_verb_model(int count, char **arguments);
int sheaf_verb_data(int count, char **arguments);
int sheaf_verb_bench(int count, char **arguments);
