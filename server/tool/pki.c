/* pki.c - `sheaf pki`: the table of its commands, and those that make an authority, issue, list and check. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/token_key.h"
#include "common/trust.h"
#include "server/tool/pki.h"

/* Two texts, as C promises only 4,095 bytes for one. */
static const char help[] =
    "usage: sheaf pki init   [--dir DIR] [--name NAME] [--days DAYS] [--key-type p256|ed25519]\n"
    "                        [--offline | --under DIR] [--key URI] [--json]\n"
    "       sheaf pki issue  --role ROLE --name NAME [--tenant TENANT] [--region REGION] [--san NAME,ADDRESS...]\n"
    "                        [--days DAYS] [--key-type p256|ed25519] [--dir DIR] [--out DIR] [--renew] [--json]\n"
    "       sheaf pki renew  --role ROLE --name NAME [--tenant TENANT] [--region REGION] [--san NAME,ADDRESS...]\n"
    "                        [--days DAYS] [--key-type p256|ed25519] [--dir DIR] [--out DIR] [--overlap HOURS] [--json]\n"
    "       sheaf pki revoke NAME|--serial SERIAL [--role ROLE] [--tenant TENANT] [--reason TEXT] [--dir DIR] [--json]\n"
    "       sheaf pki crl    [--dir DIR] [--days DAYS] [--json]\n"
    "       sheaf pki token  --role ROLE --name NAME [--tenant TENANT] [--region REGION] [--san NAME,ADDRESS...]\n"
    "                        [--days DAYS] [--valid HOURS] [--dir DIR] [--json]\n"
    "       sheaf pki csr    --role ROLE --name NAME [--tenant TENANT] [--region REGION] [--key KEY] [--out DIR]\n"
    "                        [--key-type p256|ed25519] [--json]\n"
    "       sheaf pki sign   --token-file FILE [--dir DIR] [--out DIR] REQUEST.csr [--json]\n"
    "       sheaf pki enroll --url URL --ca FILE --name NAME (--token-file FILE | --renew) [--role ROLE]\n"
    "                        [--tenant TENANT] [--region REGION] [--key-type p256|ed25519] [--out DIR] [--json]\n"
    "       sheaf pki broker-config --listen HOST:PORT --certificate PEM --key KEY --ca CA.pem --name AGGREGATOR\n"
    "                        [--crl CRL.pem] [--out FOLDER] [--json]\n"
    "       sheaf pki list   [--dir DIR] [--json]\n"
    "       sheaf pki check  --ca CA.pem [--crl CRL.pem] CERTIFICATE.pem [--json]\n";

static const char details[] =
    "\n"
    "init    makes a root: DIR/ca.pem and DIR/ca.key. It never replaces one that is there (exit code 1).\n"
    "issue   makes DIR/ROLE-NAME.pem and DIR/ROLE-NAME.key (mode 0600) and notes them in DIR/index.jsonl.\n"
    "        A key file that is there is kept and used; a certificate that is there is replaced only with --renew,\n"
    "        which keeps role, tenant, name and key, and otherwise refused (exit code 1).\n"
    "renew   makes another key and certificate in the place of those that are there; running programs take them over.\n"
    "        The old certificate stays valid; with --overlap, a list published after so many hours revokes it.\n"
    "revoke  takes all certificates of a name back, or one by its serial number, and publishes the list.\n"
    "crl     publishes the list again: DIR/crl.pem. Do so well before its nextUpdate, from a timer.\n"
    "token   prints a token with which one certificate may be fetched, once; only its hash is stored.\n"
    "csr     makes a key, unless --key names one that is there, and a request for a certificate: ROLE-NAME.csr.\n"
    "sign    signs such a request by a token: ROLE-NAME.pem. (sheafd does the same over HTTPS.)\n"
    "enroll  the same over HTTPS: makes a key, sends a request with the token (or, with --renew, under the certificate\n"
    "        that is there), stores ROLE-NAME.pem. The key never leaves; the same call again finishes what was cut off.\n"
    "list    prints what was issued, oldest first, and whether it is good, superseded, expired or revoked.\n"
    "check   says whom a certificate names and whether we accept it; exit code 1 when it is refused.\n"
    "\n"
    "  --dir DIR        folder of the authority (default: pki)\n"
    "  --out DIR        folder for the new certificate and key (default: that of the authority)\n"
    "  --role ROLE      device, operator, auditor, aggregator or broker\n"
    "  --name NAME      1 to 63 of A-Z a-z 0-9 . _ - and not starting with '.' (init: default sheaf-ca)\n"
    "  --tenant TENANT  whose it is, spelled like a name (default: default)\n"
    "  --region REGION  where its data may be used, spelled like a name (default: none; renew: as it was)\n"
    "  --san LIST       aggregator, broker: the DNS names and addresses that devices connect to (default: "
    "localhost,127.0.0.1;\n"
    "                   renew: as they were)\n"
    "  --days DAYS      validity (default: 3650 for the root, 30 for a list, else 365; never beyond the end of the root)\n"
    "  --key-type TYPE  p256 (default) or ed25519\n"
    "  --offline        init: a root that signs issuing authorities only, and whose key is then kept offline\n"
    "  --under DIR      init: an issuing authority under the root in that folder\n"
    "  --url URL        enroll: https://HOST:PORT, operator.listen of the service\n"
    "  --renew          enroll: follow the certificate that is there by another, with another key\n"
    "  --renew          issue: a new certificate for the key that is there\n"
    "  --overlap HOURS  renew: how long the old certificate stays good\n"
    "  --valid HOURS    token: how long it may be used (default: 24)\n"
    "  --key KEY        csr: a key file, or a pkcs11: URI; init: a pkcs11: URI\n"
    "  --token-file F   sign: the file with the token; - is the standard input\n"
    "  --crl LIST       check: a revocation list, or a folder of them\n"
    "  --json           one JSON object on one line\n"
    "\n"
    "certs/README.md tells what is accepted, and how to keep the root's key offline.\n";

#define SHEAF_PKI_NAME_OR_SERIAL -1 /* one, unless --serial is given */

typedef struct {
    const char *name;
    const char *options; /* letters of the options that it takes, besides json and help */
    int paths;           /* how many arguments without option it needs; or SHEAF_PKI_NAME_OR_SERIAL */
    int (*run)(const sheaf_pki_choices *chosen);
} command;

int sheaf_pki_usage(const char *text) { return sheaf_tool_usage("pki", help, "%s", text); }

int sheaf_pki_print_json(json_t *object) {
    int done =
        object != NULL && json_dumpf(object, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF && fflush(stdout) == 0;
    json_decref(object);
    if (done) return SHEAF_EXIT_OK;
    fprintf(stderr, "sheaf pki: cannot print the result\n");
    return SHEAF_EXIT_ENVIRONMENT;
}

/* What is there already is left alone by policy, and a token or name that does not fit is refused by one. */
int sheaf_pki_fail(const char *verb, const sheaf_problem *problem) {
    int code = sheaf_tool_fail(verb, problem);
    switch (problem->status) {
    case SHEAF_E_EXISTS:
    case SHEAF_E_TOKEN:
    case SHEAF_E_IDENTITY:
    case SHEAF_E_REVOKED:
        return SHEAF_EXIT_FINDING;
    default:
        return code;
    }
}

/* --- init --------------------------------------------------------------------------------------------------------- */

static json_t *summary_to_json(const sheaf_authority_summary *summary) {
    return json_pack("{s:s, s:s, s:s, s:s}", "name", summary->name, "not_after", summary->not_after, "fingerprint",
                     summary->fingerprint, "certificate", summary->certificate);
}

static sheaf_status create(const sheaf_pki_choices *chosen, sheaf_problem *problem) {
    sheaf_authority_options options = {.name = chosen->name != NULL ? chosen->name : "sheaf-ca",
                                       .days = chosen->days != 0 ? chosen->days : 3650,
                                       .key_type = chosen->key_type,
                                       .may_have_others_below = chosen->offline,
                                       .key_uri = chosen->key};
    sheaf_status status = SHEAF_OK;
    if (chosen->under != NULL) status = sheaf_authority_open(chosen->under, &options.parent, problem);
    if (status == SHEAF_OK) status = sheaf_authority_create(chosen->dir, &options, problem);
    sheaf_authority_close(options.parent);
    return status;
}

static int run_init(const sheaf_pki_choices *chosen) {
    sheaf_problem problem = {0};
    sheaf_authority_summary summary;
    if (chosen->under != NULL && chosen->offline)
        return sheaf_pki_usage("an authority under another can have none below it: --under or --offline");
    if (chosen->key != NULL && !sheaf_token_key_is(chosen->key))
        return sheaf_pki_usage("init takes --key only as a pkcs11: URI");
    if (chosen->under != NULL && strcmp(chosen->under, chosen->dir) == 0)
        return sheaf_pki_usage("--under is the folder of another authority than --dir");
    if (create(chosen, &problem) != SHEAF_OK || sheaf_authority_describe(chosen->dir, &summary, &problem) != SHEAF_OK) {
        return sheaf_pki_fail("pki init", &problem);
    }
    if (chosen->json) return sheaf_pki_print_json(json_pack("{s:o}", "authority", summary_to_json(&summary)));
    printf("authority %s: %s, key %s/%s, valid until %s\n", summary.name, summary.certificate, chosen->dir,
           SHEAF_AUTHORITY_KEY, summary.not_after);
    return SHEAF_EXIT_OK;
}

/* --- issue -------------------------------------------------------------------------------------------------------- */

json_t *sheaf_pki_issued_to_json(const sheaf_issued *issued) {
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "role",
                     issued->authority ? SHEAF_REGISTRY_AUTHORITY : sheaf_role_name(issued->identity.role), "tenant",
                     issued->identity.tenant, "name", issued->identity.name, "region", issued->identity.region,
                     "serial", issued->serial, "not_before", issued->not_before, "not_after", issued->not_after,
                     "fingerprint", issued->fingerprint, "certificate", issued->certificate, "key", issued->key);
}

static sheaf_status issue(const sheaf_pki_choices *chosen, const sheaf_issue_options *options, sheaf_issued *issued,
                          sheaf_problem *problem) {
    sheaf_authority *authority = NULL;
    sheaf_status status = sheaf_authority_open(chosen->dir, &authority, problem);
    if (status == SHEAF_OK) status = sheaf_authority_issue(authority, options, issued, problem);
    sheaf_authority_close(authority);
    return status;
}

static int run_issue(const sheaf_pki_choices *chosen) {
    if (chosen->role == NULL || chosen->name == NULL) return sheaf_pki_usage("issue needs --role and --name");
    sheaf_issue_options options = {.role = sheaf_role_from_name(chosen->role),
                                   .tenant = chosen->tenant != NULL ? chosen->tenant : "default",
                                   .name = chosen->name,
                                   .region = chosen->region,
                                   .alternative_names = chosen->san,
                                   .days = chosen->days != 0 ? chosen->days : 365,
                                   .key_type = chosen->key_type,
                                   .folder = chosen->out,
                                   .renew = chosen->renew};
    if (options.role == SHEAF_ROLE_NONE)
        return sheaf_pki_usage("--role must be device, operator, auditor, aggregator or broker");
    if (!sheaf_role_serves(options.role) && chosen->san != NULL)
        return sheaf_pki_usage("--san is for aggregators and brokers");
    if (sheaf_role_serves(options.role) && chosen->san == NULL && chosen->renew) {
        return sheaf_pki_usage("to renew an aggregator's certificate, say its --san again");
    }
    if (sheaf_role_serves(options.role) && chosen->san == NULL) options.alternative_names = "localhost,127.0.0.1";
    sheaf_problem problem = {0};
    sheaf_issued issued;
    if (issue(chosen, &options, &issued, &problem) != SHEAF_OK) return sheaf_pki_fail("pki issue", &problem);
    if (chosen->json) return sheaf_pki_print_json(sheaf_pki_issued_to_json(&issued));
    printf("%s %s of %s: %s, key %s, valid until %s\n", chosen->role, issued.identity.name, issued.identity.tenant,
           issued.certificate, issued.key, issued.not_after);
    return SHEAF_EXIT_OK;
}

/* --- list --------------------------------------------------------------------------------------------------------- */

typedef struct {
    sheaf_authority_summary authority;
    sheaf_issued *entries;
    size_t count;
    sheaf_revoked *revoked;
    size_t revoked_count;
    char now[SHEAF_RFC3339_BYTES];
} listing;

/* "good", "expired", "revoked", or "superseded" (good until its successor's overlap ends). */
static const char *status_of(const listing *list, const sheaf_issued *entry) {
    const sheaf_revoked *found = sheaf_registry_find_revoked(list->revoked, list->revoked_count, entry->serial);
    if (found != NULL && found->at_unix_s <= (int64_t)time(NULL)) return "revoked";
    if (strcmp(entry->not_after, list->now) < 0) return "expired"; /* both RFC 3339 in UTC */
    return found != NULL ? "superseded" : "good";
}

static int print_list_json(const listing *list) {
    json_t *issued = json_array();
    for (size_t i = 0; i < list->count; i++) {
        json_t *entry = sheaf_pki_issued_to_json(&list->entries[i]);
        (void)json_object_set_new(entry, "status", json_string(status_of(list, &list->entries[i])));
        (void)json_array_append_new(issued, entry);
    }
    if (json_array_size(issued) != list->count) {
        /* without memory an entry is missing; a short list must not pass for a whole one */
        json_decref(issued);
        return sheaf_pki_print_json(NULL);
    }
    return sheaf_pki_print_json(
        json_pack("{s:o, s:o}", "authority", summary_to_json(&list->authority), "issued", issued));
}

static void print_list(const listing *list) {
    printf("authority %s, valid until %s, %zu issued\n", list->authority.name, list->authority.not_after, list->count);
    for (size_t i = 0; i < list->count; i++) {
        const sheaf_issued *entry = &list->entries[i];
        printf("%-10s  %-10s  %-16s  %-24s  %-8s  %s  %s  %s\n", status_of(list, entry),
               entry->authority ? SHEAF_REGISTRY_AUTHORITY : sheaf_role_name(entry->identity.role),
               entry->identity.tenant, entry->identity.name, entry->identity.region, entry->not_after, entry->serial,
               entry->certificate);
    }
}

static int run_list(const sheaf_pki_choices *chosen) {
    sheaf_problem problem = {0};
    listing list = {0};
    time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts) != NULL) (void)strftime(list.now, sizeof list.now, "%Y-%m-%dT%H:%M:%SZ", &parts);
    int code = SHEAF_EXIT_OK;
    if (sheaf_authority_describe(chosen->dir, &list.authority, &problem) != SHEAF_OK ||
        sheaf_registry_read(chosen->dir, &list.entries, &list.count, &problem) != SHEAF_OK ||
        sheaf_registry_read_revoked(chosen->dir, &list.revoked, &list.revoked_count, &problem) != SHEAF_OK) {
        code = sheaf_tool_fail("pki list", &problem);
    } else if (chosen->json) {
        code = print_list_json(&list);
    } else {
        print_list(&list);
    }
    free(list.entries);
    free(list.revoked);
    return code;
}

/* --- check -------------------------------------------------------------------------------------------------------- */

static int print_refusal(const sheaf_pki_choices *chosen, const sheaf_problem *problem) {
    if (problem->status != SHEAF_E_CERTIFICATE && problem->status != SHEAF_E_REVOKED)
        return sheaf_tool_fail("pki check", problem);
    if (!chosen->json) {
        (void)sheaf_tool_fail("pki check", problem);
        return SHEAF_EXIT_FINDING;
    }
    int code = sheaf_pki_print_json(json_pack("{s:b, s:s, s:s}", "accepted", 0, "status",
                                              sheaf_status_name(problem->status), "reason", problem->text));
    return code == SHEAF_EXIT_OK ? SHEAF_EXIT_FINDING : code;
}

static int print_identity(const sheaf_pki_choices *chosen, const sheaf_certificate *certificate) {
    const sheaf_identity *identity = sheaf_certificate_identity(certificate);
    char fingerprint[2 * SHEAF_DIGEST_BYTES + 1];
    sheaf_hex(sheaf_certificate_fingerprint(certificate), SHEAF_DIGEST_BYTES, fingerprint);
    if (chosen->json) {
        return sheaf_pki_print_json(json_pack("{s:b, s:s, s:s, s:s, s:s, s:s, s:s}", "accepted", 1, "status", "ok",
                                              "role", sheaf_role_name(identity->role), "tenant", identity->tenant,
                                              "name", identity->name, "region", identity->region, "fingerprint",
                                              fingerprint));
    }
    printf("accepted: %s %s of %s, fingerprint %s\n", sheaf_role_name(identity->role), identity->name, identity->tenant,
           fingerprint);
    return SHEAF_EXIT_OK;
}

static sheaf_status check(const sheaf_pki_choices *chosen, sheaf_certificate **certificate, sheaf_problem *problem) {
    const sheaf_trust_options options = {
        .ca_path = chosen->ca, .crl_path = chosen->crl, .crl_expired = SHEAF_CRL_REFUSE};
    sheaf_trust *trust = NULL;
    sheaf_status status = sheaf_certificate_from_pem_file(chosen->path, certificate, problem);
    if (status == SHEAF_OK) status = sheaf_trust_open(&options, &trust, problem);
    if (status == SHEAF_OK) status = sheaf_trust_check(trust, *certificate, SHEAF_ROLE_NONE, problem);
    sheaf_trust_unref(trust);
    return status;
}

static int run_check(const sheaf_pki_choices *chosen) {
    if (chosen->ca == NULL) return sheaf_pki_usage("check needs --ca");
    sheaf_problem problem = {0};
    sheaf_certificate *certificate = NULL;
    sheaf_status status = check(chosen, &certificate, &problem);
    int code = status == SHEAF_OK ? print_identity(chosen, certificate) : print_refusal(chosen, &problem);
    sheaf_certificate_unref(certificate);
    return code;
}

/* --- command line ------------------------------------------------------------------------------------------------- */

static const command commands[] = {
    {"init", "dntkufK", 0, run_init},
    {"issue", "dntkorTSRg", 0, run_issue},
    {"list", "d", 0, run_list},
    {"broker-config", "LCKclno", 0, sheaf_pki_broker_config},
    {"check", "cl", 1, run_check},
    {"revoke", "drTsw", SHEAF_PKI_NAME_OR_SERIAL, sheaf_pki_revoke},
    {"crl", "dt", 0, sheaf_pki_crl},
    {"renew", "dntkorTSgv", 0, sheaf_pki_renew},
    {"token", "dntrTSgV", 0, sheaf_pki_token},
    {"csr", "nkorTgK", 0, sheaf_pki_csr},
    {"sign", "doF", 1, sheaf_pki_sign},
    {"enroll", "UcFRrnTgok", 0, sheaf_pki_enroll},
};

static const struct option long_options[] = {
    {"dir", required_argument, NULL, 'd'},      {"out", required_argument, NULL, 'o'},
    {"role", required_argument, NULL, 'r'},     {"name", required_argument, NULL, 'n'},
    {"tenant", required_argument, NULL, 'T'},   {"region", required_argument, NULL, 'g'},
    {"san", required_argument, NULL, 'S'},      {"days", required_argument, NULL, 't'},
    {"key-type", required_argument, NULL, 'k'}, {"ca", required_argument, NULL, 'c'},
    {"crl", required_argument, NULL, 'l'},      {"serial", required_argument, NULL, 's'},
    {"reason", required_argument, NULL, 'w'},   {"overlap", required_argument, NULL, 'v'},
    {"valid", required_argument, NULL, 'V'},    {"under", required_argument, NULL, 'u'},
    {"offline", no_argument, NULL, 'f'},        {"token-file", required_argument, NULL, 'F'},
    {"key", required_argument, NULL, 'K'},      {"url", required_argument, NULL, 'U'},
    {"listen", required_argument, NULL, 'L'},   {"certificate", required_argument, NULL, 'C'},
    {"renew", no_argument, NULL, 'R'},          {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
};

/* 0 when `text` is not a number of 1 to 36500. */
static uint32_t read_number(const char *text) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') return 0;
    unsigned long number = strtoul(text, NULL, 10);
    return number <= 36500 ? (uint32_t)number : 0;
}

/* Where an option's text goes; NULL for those that are not taken as they are. */
static const char **text_of(sheaf_pki_choices *chosen, int letter) {
    const struct {
        int letter;
        const char **text;
    } texts[] = {{'d', &chosen->dir},        {'o', &chosen->out},    {'r', &chosen->role},   {'n', &chosen->name},
                 {'T', &chosen->tenant},     {'S', &chosen->san},    {'c', &chosen->ca},     {'g', &chosen->region},
                 {'l', &chosen->crl},        {'s', &chosen->serial}, {'w', &chosen->reason}, {'u', &chosen->under},
                 {'F', &chosen->token_file}, {'K', &chosen->key},    {'U', &chosen->url},    {'L', &chosen->listen},
                 {'C', &chosen->certificate}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].letter == letter) return texts[i].text;
    }
    return NULL;
}

/* What was expected, or NULL when the value was taken. */
static const char *take_value(sheaf_pki_choices *chosen, int letter) {
    const char **text = text_of(chosen, letter);
    if (text != NULL) *text = optarg;
    if (letter == 'R') chosen->renew = 1;
    if (letter == 'f') chosen->offline = 1;
    if (letter == 'j') chosen->json = 1;
    if (letter == 'h') chosen->help = 1;
    if (letter == 'k') {
        chosen->key_type = sheaf_key_type_from_name(optarg);
        return chosen->key_type != SHEAF_KEY_ANY ? NULL : "a key type (p256 or ed25519)";
    }
    uint32_t *number = letter == 't'   ? &chosen->days
                       : letter == 'v' ? &chosen->overlap_h
                       : letter == 'V' ? &chosen->valid_h
                                       : NULL;
    if (number == NULL) return NULL;
    *number = read_number(optarg);
    if (*number != 0) return NULL;
    return letter == 't' ? "a number of days from 1 to 36500" : "a number of hours from 1 to 36500";
}

static int read_options(const command *wanted, int count, char **arguments, sheaf_pki_choices *chosen) {
    opterr = 0;
    optind = 1;
    for (int letter; (letter = getopt_long(count, arguments, ":", long_options, NULL)) != -1;) {
        const char *shown = arguments[optind - 1];
        if (letter == ':') return sheaf_tool_usage("pki", help, "%s needs a value", shown);
        if (letter == '?' || (strchr("jh", letter) == NULL && strchr(wanted->options, letter) == NULL)) {
            return sheaf_tool_usage("pki", help, "%s does not take %s", wanted->name, shown);
        }
        const char *expected = take_value(chosen, letter);
        if (expected != NULL) return sheaf_tool_usage("pki", help, "'%s' is not %s", optarg, expected);
    }
    if (chosen->help) return SHEAF_EXIT_OK;
    int paths = wanted->paths != SHEAF_PKI_NAME_OR_SERIAL ? wanted->paths : chosen->serial == NULL;
    if (count - optind != paths) {
        return sheaf_tool_usage("pki", help, "%s takes %d argument%s besides its options", wanted->name, paths,
                                paths == 1 ? "" : "s");
    }
    if (paths == 1) chosen->path = arguments[optind];
    return SHEAF_EXIT_OK;
}

int sheaf_verb_pki(int count, char **arguments) {
    if (count < 2)
        return sheaf_pki_usage("which? init, issue, renew, revoke, crl, token, csr, sign, enroll, list or check");
    if (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "help") == 0) {
        fputs(help, stdout);
        fputs(details, stdout);
        return SHEAF_EXIT_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(arguments[1], commands[i].name) != 0) continue;
        sheaf_pki_choices chosen = {.dir = "pki"};
        int code = read_options(&commands[i], count - 1, arguments + 1, &chosen);
        if (code != SHEAF_EXIT_OK) return code;
        if (!chosen.help) return commands[i].run(&chosen);
        fputs(help, stdout);
        fputs(details, stdout);
        return SHEAF_EXIT_OK;
    }
    return sheaf_tool_usage("pki", help, "no command '%s'", arguments[1]);
}
