/* main.c - `sheaf VERB ...`: finds the verb in the table and runs it. */
#include "server/tool/verb.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const sheaf_verb verbs[] = {
    /* one line a verb, in the order of the help */
    {"pki", "make certificates: an authority, and those of devices, operators, auditors, aggregators, brokers",
     sheaf_verb_pki},
    {"aggregate", "the exact weighted mean of safetensors files", sheaf_verb_aggregate},
    {"job", "list, pause, resume, cancel jobs; what a service did and does, and how good its models are",
     sheaf_verb_job},
    {"round", "the rounds of a job, and who took part", sheaf_verb_round},
    {"client", "the devices that a service has seen", sheaf_verb_client},
    {"model", "make, train, evaluate and inspect models without a service", sheaf_verb_model},
    {"data", "split a data set over clients", sheaf_verb_data},
    {"bench", "figures of this machine, each beside a reference of the same run", sheaf_verb_bench},
    {NULL, NULL, NULL},
};

int sheaf_tool_fail(const char *verb, const sheaf_problem *problem) {
    fprintf(stderr, "sheaf %s: %s (%s)\n", verb, problem->text, sheaf_status_name(problem->status));
    if (problem->status == SHEAF_E_USAGE) return SHEAF_EXIT_USAGE;
    if (problem->status == SHEAF_E_NOT_FOUND || problem->status >= 300) return SHEAF_EXIT_INPUT;
    if (problem->status >= 200) return SHEAF_EXIT_ENVIRONMENT;
    return SHEAF_EXIT_INPUT;
}

int sheaf_tool_usage(const char *verb, const char *help, const char *format, ...) {
    fprintf(stderr, "sheaf %s: ", verb);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n%s", help);
    return SHEAF_EXIT_USAGE;
}

static void print_help(FILE *out) {
    fprintf(out, "usage: sheaf VERB [ARGUMENTS]   (sheaf VERB --help tells more)\n\nverbs:\n");
    for (const sheaf_verb *verb = verbs; verb->name != NULL; verb++)
        fprintf(out, "  %-10s %s\n", verb->name, verb->summary);
    fprintf(
        out,
        "\nexit codes: 0 done, 1 a finding or refused, 2 usage, 3 bad input or config, 4 environment, 5 over a budget\n");
}

int main(int count, char **arguments) {
    if (count < 2) {
        print_help(stderr);
        return SHEAF_EXIT_USAGE;
    }
    if (strcmp(arguments[1], "help") == 0 || strcmp(arguments[1], "--help") == 0) {
        print_help(stdout);
        return SHEAF_EXIT_OK;
    }
    if (strcmp(arguments[1], "--version") == 0) {
        printf("sheaf %s\n", SHEAF_VERSION);
        return SHEAF_EXIT_OK;
    }
    for (const sheaf_verb *verb = verbs; verb->name != NULL; verb++) {
        if (strcmp(arguments[1], verb->name) == 0) return verb->run(count - 1, arguments + 1);
    }
    fprintf(stderr, "sheaf: no verb '%s'\n", arguments[1]);
    print_help(stderr);
    return SHEAF_EXIT_USAGE;
}
