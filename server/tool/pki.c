/* pki.c - `sheaf pki init|issue|list|check`: a development authority, what it issued, and whether we accept a
 * certificate. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/pki/authority.h"
#include "common/trust.h"
#include "server/tool/verb.h"

static const char help[] =
    "usage: sheaf pki init  [--dir DIR] [--name NAME] [--days DAYS] [--key-type p256|ed25519] [--json]\n"
    "       sheaf pki issue --role ROLE --name NAME [--tenant TENANT] [--region REGION] [--san NAME,ADDRESS...]\n"
    "                       [--days DAYS] [--key-type p256|ed25519] [--dir DIR] [--out DIR] [--renew] [--json]\n"
    "       sheaf pki list  [--dir DIR] [--json]\n"
    "       sheaf pki check --ca CA.pem CERTIFICATE.pem [--json]\n"
    "\n"
    "init    makes a root: DIR/ca.pem and DIR/ca.key. It never replaces one that is there (exit code 1).\n"
    "issue   makes DIR/ROLE-NAME.pem and DIR/ROLE-NAME.key (mode 0600) and notes them in DIR/index.jsonl.\n"
    "        A key file that is there is kept and used; a certificate that is there is replaced only with --renew,\n"
    "        which keeps role, tenant, name and key, and otherwise refused (exit code 1).\n"
    "list    prints what was issued, oldest first.\n"
    "check   says whom a certificate names and whether we accept it; exit code 1 when it is refused.\n"
    "\n"
    "  --dir DIR        folder of the authority (default: pki)\n"
    "  --out DIR        folder for the new certificate and key (default: that of the authority)\n"
    "  --role ROLE      device, operator, auditor or aggregator\n"
    "  --name NAME      1 to 63 of A-Z a-z 0-9 . _ - and not starting with '.' (init: default sheaf-ca)\n"
    "  --tenant TENANT  whose it is, spelled like a name (default: default)\n"
    "  --region REGION  where its data may be used, spelled like a name (default: none)\n"
    "  --san LIST       aggregator: the DNS names and addresses that devices connect to (default: "
    "localhost,127.0.0.1)\n"
    "  --days DAYS      validity (default: 3650 for the root, else 365; never beyond the end of the root)\n"
    "  --key-type TYPE  p256 (default) or ed25519\n"
    "  --renew          a new certificate for the key that is there\n"
    "  --json           one JSON object on one line\n"
    "\n"
    "certs/README.md tells what is accepted, and how to keep the root's key offline.\n";

typedef struct {
    const char *dir, *out, *role, *name, *tenant, *region, *san, *ca, *path;
    uint32_t days; /* 0: not given */
    sheaf_key_type key_type;
    int renew, json, help;
} choices;

typedef struct {
    const char *name;
    const char *options; /* letters of the options that it takes, besides json and help */
    int paths;           /* how many arguments without option it needs */
    int (*run)(const choices *chosen);
} command;

static int usage(const char *text) { return sheaf_tool_usage("pki", help, "%s", text); }

/* Prints the object on one line and drops it. */
static int print_json(json_t *object) {
    int done =
        object != NULL && json_dumpf(object, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF && fflush(stdout) == 0;
    json_decref(object);
    if (done) return SHEAF_EXIT_OK;
    fprintf(stderr, "sheaf pki: cannot print the result\n");
    return SHEAF_EXIT_ENVIRONMENT;
}

/* What is there already is left alone by policy: refused, not a fault of the environment. */
static int fail(const char *verb, const sheaf_problem *problem) {
    int code = sheaf_tool_fail(verb, problem);
    return problem->status == SHEAF_E_EXISTS ? SHEAF_EXIT_FINDING : code;
}

/* --- init --------------------------------------------------------------------------------------------------------- */

static json_t *summary_to_json(const sheaf_authority_summary *summary) {
    return json_pack("{s:s, s:s, s:s, s:s}", "name", summary->name, "not_after", summary->not_after, "fingerprint",
                     summary->fingerprint, "certificate", summary->certificate);
}

static int run_init(const choices *chosen) {
    const sheaf_authority_options options = {chosen->name != NULL ? chosen->name : "sheaf-ca",
                                             chosen->days != 0 ? chosen->days : 3650, chosen->key_type};
    sheaf_problem problem = {0};
    sheaf_authority_summary summary;
    if (sheaf_authority_create(chosen->dir, &options, &problem) != SHEAF_OK ||
        sheaf_authority_describe(chosen->dir, &summary, &problem) != SHEAF_OK) {
        return fail("pki init", &problem);
    }
    if (chosen->json) return print_json(json_pack("{s:o}", "authority", summary_to_json(&summary)));
    printf("authority %s: %s, key %s/%s, valid until %s\n", summary.name, summary.certificate, chosen->dir,
           SHEAF_AUTHORITY_KEY, summary.not_after);
    return SHEAF_EXIT_OK;
}

/* --- issue -------------------------------------------------------------------------------------------------------- */

static json_t *issued_to_json(const sheaf_issued *issued) {
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "role",
                     sheaf_role_name(issued->identity.role), "tenant", issued->identity.tenant, "name",
                     issued->identity.name, "region", issued->identity.region, "serial", issued->serial, "not_before",
                     issued->not_before, "not_after", issued->not_after, "fingerprint", issued->fingerprint,
                     "certificate", issued->certificate, "key", issued->key);
}

static sheaf_status issue(const choices *chosen, const sheaf_issue_options *options, sheaf_issued *issued,
                          sheaf_problem *problem) {
    sheaf_authority *authority = NULL;
    sheaf_status status = sheaf_authority_open(chosen->dir, &authority, problem);
    if (status == SHEAF_OK) status = sheaf_authority_issue(authority, options, issued, problem);
    sheaf_authority_close(authority);
    return status;
}

static int run_issue(const choices *chosen) {
    if (chosen->role == NULL || chosen->name == NULL) return usage("issue needs --role and --name");
    sheaf_issue_options options = {.role = sheaf_role_from_name(chosen->role),
                                   .tenant = chosen->tenant != NULL ? chosen->tenant : "default",
                                   .name = chosen->name,
                                   .region = chosen->region,
                                   .alternative_names = chosen->san,
                                   .days = chosen->days != 0 ? chosen->days : 365,
                                   .key_type = chosen->key_type,
                                   .folder = chosen->out,
                                   .renew = chosen->renew};
    if (options.role == SHEAF_ROLE_NONE) return usage("--role must be device, operator, auditor or aggregator");
    if (options.role != SHEAF_ROLE_AGGREGATOR && chosen->san != NULL) return usage("--san is for aggregators");
    if (options.role == SHEAF_ROLE_AGGREGATOR && chosen->san == NULL && chosen->renew) {
        return usage("to renew an aggregator's certificate, say its --san again");
    }
    if (options.role == SHEAF_ROLE_AGGREGATOR && chosen->san == NULL) options.alternative_names = "localhost,127.0.0.1";
    sheaf_problem problem = {0};
    sheaf_issued issued;
    if (issue(chosen, &options, &issued, &problem) != SHEAF_OK) return fail("pki issue", &problem);
    if (chosen->json) return print_json(issued_to_json(&issued));
    printf("%s %s of %s: %s, key %s, valid until %s\n", chosen->role, issued.identity.name, issued.identity.tenant,
           issued.certificate, issued.key, issued.not_after);
    return SHEAF_EXIT_OK;
}

/* --- list --------------------------------------------------------------------------------------------------------- */

static int print_list_json(const sheaf_authority_summary *summary, const sheaf_issued *entries, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) (void)json_array_append_new(list, issued_to_json(&entries[i]));
    if (json_array_size(list) !=
        count) { /* without memory an entry is missing; a short list must not pass for a whole one */
        json_decref(list);
        return print_json(NULL);
    }
    return print_json(json_pack("{s:o, s:o}", "authority", summary_to_json(summary), "issued", list));
}

static void print_list(const sheaf_authority_summary *summary, const sheaf_issued *entries, size_t count) {
    printf("authority %s, valid until %s, %zu issued\n", summary->name, summary->not_after, count);
    for (size_t i = 0; i < count; i++) {
        printf("%-10s  %-16s  %-24s  %s  %s  %s\n", sheaf_role_name(entries[i].identity.role),
               entries[i].identity.tenant, entries[i].identity.name, entries[i].not_after, entries[i].serial,
               entries[i].certificate);
    }
}

static int run_list(const choices *chosen) {
    sheaf_problem problem = {0};
    sheaf_authority_summary summary;
    sheaf_issued *entries = NULL;
    size_t count = 0;
    if (sheaf_authority_describe(chosen->dir, &summary, &problem) != SHEAF_OK ||
        sheaf_registry_read(chosen->dir, &entries, &count, &problem) != SHEAF_OK) {
        return sheaf_tool_fail("pki list", &problem);
    }
    int code = SHEAF_EXIT_OK;
    if (chosen->json)
        code = print_list_json(&summary, entries, count);
    else
        print_list(&summary, entries, count);
    free(entries);
    return code;
}

/* --- check -------------------------------------------------------------------------------------------------------- */

static int print_refusal(const choices *chosen, const sheaf_problem *problem) {
    if (problem->status != SHEAF_E_CERTIFICATE) return sheaf_tool_fail("pki check", problem);
    if (!chosen->json) {
        (void)sheaf_tool_fail("pki check", problem);
        return SHEAF_EXIT_FINDING;
    }
    int code = print_json(json_pack("{s:b, s:s, s:s}", "accepted", 0, "status", sheaf_status_name(problem->status),
                                    "reason", problem->text));
    return code == SHEAF_EXIT_OK ? SHEAF_EXIT_FINDING : code;
}

static int print_identity(const choices *chosen, const sheaf_certificate *certificate) {
    const sheaf_identity *identity = sheaf_certificate_identity(certificate);
    char fingerprint[2 * SHEAF_DIGEST_BYTES + 1];
    sheaf_hex(sheaf_certificate_fingerprint(certificate), SHEAF_DIGEST_BYTES, fingerprint);
    if (chosen->json) {
        return print_json(json_pack("{s:b, s:s, s:s, s:s, s:s, s:s, s:s}", "accepted", 1, "status", "ok", "role",
                                    sheaf_role_name(identity->role), "tenant", identity->tenant, "name", identity->name,
                                    "region", identity->region, "fingerprint", fingerprint));
    }
    printf("accepted: %s %s of %s, fingerprint %s\n", sheaf_role_name(identity->role), identity->name, identity->tenant,
           fingerprint);
    return SHEAF_EXIT_OK;
}

static int run_check(const choices *chosen) {
    if (chosen->ca == NULL) return usage("check needs --ca");
    sheaf_problem problem = {0};
    sheaf_certificate *certificate = NULL;
    if (sheaf_certificate_from_pem_file(chosen->path, &certificate, &problem) != SHEAF_OK)
        return print_refusal(chosen, &problem);
    sheaf_status status = sheaf_certificate_check_chain(certificate, chosen->ca, &problem);
    int code = status == SHEAF_OK ? print_identity(chosen, certificate) : print_refusal(chosen, &problem);
    sheaf_certificate_unref(certificate);
    return code;
}

/* --- command line ------------------------------------------------------------------------------------------------- */

static const command commands[] = {
    {"init", "dntk", 0, run_init},
    {"issue", "dntkorTSRg", 0, run_issue},
    {"list", "d", 0, run_list},
    {"check", "c", 1, run_check},
};

static const struct option long_options[] = {
    {"dir", required_argument, NULL, 'd'},      {"out", required_argument, NULL, 'o'},
    {"role", required_argument, NULL, 'r'},     {"name", required_argument, NULL, 'n'},
    {"tenant", required_argument, NULL, 'T'},   {"region", required_argument, NULL, 'g'},
    {"san", required_argument, NULL, 'S'},      {"days", required_argument, NULL, 't'},
    {"key-type", required_argument, NULL, 'k'}, {"ca", required_argument, NULL, 'c'},
    {"renew", no_argument, NULL, 'R'},          {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
};

/* 0 when `text` is not a number of 1 to 36500. */
static uint32_t read_days(const char *text) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') return 0;
    unsigned long days = strtoul(text, NULL, 10);
    return days <= 36500 ? (uint32_t)days : 0;
}

/* Where an option's text goes; NULL for those that are not taken as they are. */
static const char **text_of(choices *chosen, int letter) {
    const struct {
        int letter;
        const char **text;
    } texts[] = {{'d', &chosen->dir},    {'o', &chosen->out}, {'r', &chosen->role}, {'n', &chosen->name},
                 {'T', &chosen->tenant}, {'S', &chosen->san}, {'c', &chosen->ca},   {'g', &chosen->region}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].letter == letter) return texts[i].text;
    }
    return NULL;
}

static int take_value(choices *chosen, int letter) {
    const char **text = text_of(chosen, letter);
    if (text != NULL) *text = optarg;
    if (letter == 't') chosen->days = read_days(optarg);
    if (letter == 'k') chosen->key_type = sheaf_key_type_from_name(optarg);
    if (letter == 'R') chosen->renew = 1;
    if (letter == 'j') chosen->json = 1;
    if (letter == 'h') chosen->help = 1;
    return (letter != 't' || chosen->days != 0) && (letter != 'k' || chosen->key_type != SHEAF_KEY_ANY);
}

static int read_options(const command *wanted, int count, char **arguments, choices *chosen) {
    opterr = 0;
    optind = 1;
    for (int letter; (letter = getopt_long(count, arguments, ":", long_options, NULL)) != -1;) {
        const char *shown = arguments[optind - 1];
        if (letter == ':') return sheaf_tool_usage("pki", help, "%s needs a value", shown);
        if (letter == '?' || (strchr("jh", letter) == NULL && strchr(wanted->options, letter) == NULL)) {
            return sheaf_tool_usage("pki", help, "%s does not take %s", wanted->name, shown);
        }
        if (!take_value(chosen, letter)) {
            return sheaf_tool_usage("pki", help, "'%s' is not %s", optarg,
                                    letter == 't' ? "a number of days from 1 to 36500"
                                                  : "a key type (p256 or ed25519)");
        }
    }
    if (chosen->help) return SHEAF_EXIT_OK;
    if (count - optind != wanted->paths) {
        return sheaf_tool_usage("pki", help, "%s takes %d argument%s besides its options", wanted->name, wanted->paths,
                                wanted->paths == 1 ? "" : "s");
    }
    if (wanted->paths == 1) chosen->path = arguments[optind];
    return SHEAF_EXIT_OK;
}

int sheaf_verb_pki(int count, char **arguments) {
    if (count < 2) return usage("which? init, issue, list or check");
    if (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "help") == 0) {
        fputs(help, stdout);
        return SHEAF_EXIT_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(arguments[1], commands[i].name) != 0) continue;
        choices chosen = {.dir = "pki"};
        int code = read_options(&commands[i], count - 1, arguments + 1, &chosen);
        if (code != SHEAF_EXIT_OK) return code;
        if (!chosen.help) return commands[i].run(&chosen);
        fputs(help, stdout);
        return SHEAF_EXIT_OK;
    }
    return sheaf_tool_usage("pki", help, "no command '%s'", arguments[1]);
}
