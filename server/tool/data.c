/* data.c - `sheaf data split`: one data set becomes one file (or pair) a client, and files to train and test on. */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "client/trainer/data.h"
#include "common/file.h"
#include "server/tool/partition.h"
#include "server/tool/trainable.h"
#include "server/tool/verb.h"

static const char help[] =
    "usage: sheaf data split DATA --clients N --out DIR [--partition iid|dirichlet:ALPHA] [--seed S]\n"
    "                        [--minimum N] [--test-fraction F [--test-seed S] | HOLDOUT] [--json]\n"
    "\n"
    "DATA is   --data TABLE.csv [--label COLUMN]        (default column: label)\n"
    "or        --data IMAGES.idx --labels LABELS.idx    (.gz too)\n"
    "HOLDOUT   --holdout FILE [--holdout-labels FILE]: examples to test on that are already apart\n"
    "\n"
    "Writes DIR/client-00.csv, client-01.csv ... , train.csv (all of them) and test.csv; for IDX data\n"
    "DIR/client-00-images.idx and client-00-labels.idx and so on. The same arguments give the same files.\n"
    "Refused when DIR holds clients of another split that this one would leave standing.\n"
    "\n"
    "  --clients N           1 to 65536\n"
    "  --partition KIND      iid, or dirichlet:ALPHA: each class has its own shares among the clients\n"
    "                        (default dirichlet:0.5; the smaller ALPHA, the more unequal)\n"
    "  --seed S              of the partition (default 1)\n"
    "  --minimum N           every client gets at least so many examples (1 or more, default 8);\n"
    "                        drawn again until it is so\n"
    "  --test-fraction F     this part of DATA, rounded up, is kept for the test and goes to no client\n"
    "  --test-seed S         which part (default 0): independent of --seed, so that all partitions keep the same\n"
    "  --json                the result as one JSON object on one line\n";

typedef struct {
    sheaf_data_options data, holdout;
    sheaf_partition partition;
    const char *out;
    uint64_t seed, test_seed;
    double test_fraction;
    int json, help;
} choices;

/* ---- work ---- */

typedef struct {
    sheaf_dataset data, holdout;
    uint32_t *order;  /* first the test's examples, then the training's */
    uint32_t *picked; /* scratch: examples of one file */
    uint32_t *labels; /* of the training examples */
    uint32_t *owner;  /* client of each training example */
    uint32_t test;    /* how many of data are for the test */
    int idx;
} split;

static sheaf_status name_file(char out[SHEAF_PATH_BYTES], const char *folder, const char *base, const char *kind,
                              sheaf_problem *problem) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", base, kind);
    return sheaf_path_join(out, folder, name, problem);
}

static sheaf_status write_part(const split *s, const sheaf_dataset *from, const char *folder, const char *base,
                               const uint32_t *indices, uint32_t count, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES], labels[SHEAF_PATH_BYTES];
    sheaf_status status = name_file(path, folder, base, s->idx ? "-images.idx" : ".csv", problem);
    if (status == SHEAF_OK) status = name_file(labels, folder, base, "-labels.idx", problem);
    return status == SHEAF_OK ? sheaf_data_write(from, indices, count, path, labels, problem) : status;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Files keep the order of the source: the partition says who has an example, not where it stands. */
static void sort(uint32_t *indices, uint32_t count) {
    if (count > 1) qsort(indices, count, sizeof *indices, by_value);
}

static sheaf_status seeded(uint64_t seed, uint64_t stream, sheaf_random *random, sheaf_problem *problem) {
    uint8_t bytes[SHEAF_SEED_BYTES];
    sheaf_status status = sheaf_trainable_seed(seed, bytes);
    if (status != SHEAF_OK) return sheaf_problem_set(problem, status, "no seed");
    sheaf_random_init(random, bytes, stream);
    return SHEAF_OK;
}

enum { TEST_STREAM = 2000, PARTITION_STREAM = 2001 };

static sheaf_status choose_test(const choices *chosen, split *s, sheaf_problem *problem) {
    sheaf_random random;
    uint32_t count = s->data.count;
    sheaf_status status = seeded(chosen->test_seed, TEST_STREAM, &random, problem);
    if (status != SHEAF_OK) return status;
    sheaf_random_order(&random, s->order, count);
    s->test = (uint32_t)ceil(chosen->test_fraction * count);
    if (s->test >= count)
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: no example is left to train on", chosen->data.path);
    sort(s->order, s->test);
    sort(s->order + s->test, count - s->test);
    return SHEAF_OK;
}

static sheaf_status deal(const choices *chosen, split *s, sheaf_problem *problem) {
    sheaf_random random;
    uint32_t count = s->data.count - s->test;
    for (uint32_t i = 0; i < count; i++) s->labels[i] = s->data.labels[s->order[s->test + i]];
    sheaf_status status = seeded(chosen->seed, PARTITION_STREAM, &random, problem);
    if (status != SHEAF_OK) return status;
    return sheaf_partition_deal(&chosen->partition, s->labels, count, s->data.classes, &random, s->owner, problem);
}

static sheaf_status write_clients(const choices *chosen, split *s, sheaf_problem *problem) {
    uint32_t training = s->data.count - s->test;
    for (uint32_t client = 0; client < chosen->partition.clients; client++) {
        char base[32];
        uint32_t count = 0;
        for (uint32_t i = 0; i < training; i++) {
            if (s->owner[i] == client) s->picked[count++] = s->order[s->test + i];
        }
        snprintf(base, sizeof base, "client-%02" PRIu32, client);
        sheaf_status status = write_part(s, &s->data, chosen->out, base, s->picked, count, problem);
        if (status != SHEAF_OK) return status;
    }
    return SHEAF_OK;
}

static int is_client_file(const char *name) {
    const char *end = strrchr(name, '.');
    if (end == NULL || strncmp(name, "client-", 7) != 0) return 0;
    return strcmp(end, ".csv") == 0 || strcmp(end, ".idx") == 0;
}

static int will_be_written(const choices *chosen, const split *s, const char *name) {
    char own[64], *end;
    uint64_t client = strtoull(name + 7, &end, 10);
    int labels = strcmp(end, "-labels.idx") == 0;
    const char *kind = !s->idx ? ".csv" : labels ? "-labels.idx" : "-images.idx";
    (void)snprintf(own, sizeof own, "client-%02" PRIu64 "%s", client, kind);
    return client < chosen->partition.clients && strcmp(own, name) == 0;
}

/* Clients of an earlier split that this one would not overwrite would pass for clients of this one. */
static sheaf_status find_strangers(const choices *chosen, const split *s, sheaf_problem *problem) {
    DIR *folder = opendir(chosen->out);
    if (folder == NULL) return errno == ENOENT ? SHEAF_OK : sheaf_problem_errno(problem, "open", chosen->out);
    sheaf_status status = SHEAF_OK;
    const struct dirent *entry;
    errno = 0; /* readdir tells its failures only so */
    while (status == SHEAF_OK && (entry = readdir(folder)) != NULL) {
        if (!is_client_file(entry->d_name) || will_be_written(chosen, s, entry->d_name)) continue;
        status = sheaf_problem_set(problem, SHEAF_E_EXISTS, "%s/%s: is there from another split; choose another --out",
                                   chosen->out, entry->d_name);
    }
    if (status == SHEAF_OK && errno != 0) status = sheaf_problem_errno(problem, "read", chosen->out);
    closedir(folder);
    return status;
}

static sheaf_status write_pooled(const choices *chosen, split *s, sheaf_problem *problem) {
    sheaf_status status =
        write_part(s, &s->data, chosen->out, "train", s->order + s->test, s->data.count - s->test, problem);
    if (status == SHEAF_OK && s->test > 0)
        status = write_part(s, &s->data, chosen->out, "test", s->order, s->test, problem);
    if (status != SHEAF_OK || s->holdout.count == 0) return status;
    uint32_t *all = calloc(s->holdout.count, sizeof *all);
    if (all == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory");
    for (uint32_t i = 0; i < s->holdout.count; i++) all[i] = i;
    status = write_part(s, &s->holdout, chosen->out, "test", all, s->holdout.count, problem);
    free(all);
    return status;
}

static sheaf_status load(const choices *chosen, split *s, sheaf_problem *problem) {
    sheaf_status status = sheaf_data_load(&chosen->data, &s->data, problem);
    if (status != SHEAF_OK) return status;
    s->idx = chosen->data.labels != NULL;
    if (chosen->holdout.path != NULL) {
        sheaf_data_options holdout = chosen->holdout;
        holdout.features = s->data.features;
        status = sheaf_data_load(&holdout, &s->holdout, problem);
        if (status != SHEAF_OK) return status;
    }
    uint32_t count = s->data.count;
    s->order = calloc(count, sizeof *s->order);
    s->picked = calloc(count, sizeof *s->picked);
    s->labels = calloc(count, sizeof *s->labels);
    s->owner = calloc(count, sizeof *s->owner);
    if (s->order != NULL && s->picked != NULL && s->labels != NULL && s->owner != NULL) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory");
}

static void drop(split *s) {
    sheaf_data_free(&s->data);
    sheaf_data_free(&s->holdout);
    free(s->order);
    free(s->picked);
    free(s->labels);
    free(s->owner);
}

static int report(const choices *chosen, const split *s) {
    uint32_t training = s->data.count - s->test, test = s->test + s->holdout.count;
    json_t *sizes = json_array();
    if (!chosen->json)
        printf("%s: %u examples to train, %u to test; clients have", chosen->out, (unsigned)training, (unsigned)test);
    for (uint32_t client = 0; client < chosen->partition.clients; client++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < training; i++) count += s->owner[i] == client;
        json_array_append_new(sizes, json_integer(count));
        if (!chosen->json) printf(" %u", (unsigned)count);
    }
    if (!chosen->json) {
        printf("\n");
        json_decref(sizes);
        return SHEAF_EXIT_OK;
    }
    json_t *object = json_pack("{s:s, s:i, s:i, s:i, s:o}", "folder", chosen->out, "train", (int)training, "test",
                               (int)test, "classes", (int)s->data.classes, "clients", sizes);
    int done = object != NULL && json_dumpf(object, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF;
    json_decref(object);
    return done ? SHEAF_EXIT_OK : SHEAF_EXIT_ENVIRONMENT;
}

static int run_split(const choices *chosen) {
    sheaf_problem problem;
    split s = {0};
    sheaf_status status = load(chosen, &s, &problem);
    if (status == SHEAF_OK) status = choose_test(chosen, &s, &problem);
    if (status == SHEAF_OK) status = deal(chosen, &s, &problem);
    if (status == SHEAF_OK) status = find_strangers(chosen, &s, &problem);
    if (status == SHEAF_OK) status = sheaf_file_make_folder(chosen->out, &problem);
    if (status == SHEAF_OK) status = write_clients(chosen, &s, &problem);
    if (status == SHEAF_OK) status = write_pooled(chosen, &s, &problem);
    int code = status == SHEAF_OK ? report(chosen, &s) : sheaf_tool_fail("data", &problem);
    drop(&s);
    return code;
}

/* ---- the command line ---- */

static const struct option options[] = {
    {"data", required_argument, NULL, 'd'},
    {"labels", required_argument, NULL, 'L'},
    {"label", required_argument, NULL, 'l'},
    {"clients", required_argument, NULL, 'c'},
    {"out", required_argument, NULL, 'o'},
    {"partition", required_argument, NULL, 'p'},
    {"seed", required_argument, NULL, 's'},
    {"minimum", required_argument, NULL, 'm'},
    {"test-seed", required_argument, NULL, 'S'},
    {"test-fraction", required_argument, NULL, 't'},
    {"holdout", required_argument, NULL, 'D'},
    {"holdout-labels", required_argument, NULL, 'H'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int take_whole(const char *text, uint64_t maximum, uint64_t *out) {
    char *end;
    if (*text < '0' || *text > '9' || strlen(text) > 19) return 0;
    *out = strtoull(text, &end, 10);
    return *end == '\0' && *out <= maximum;
}

static int take_u32(const char *text, uint32_t maximum, uint32_t *out) {
    uint64_t value;
    if (!take_whole(text, maximum, &value)) return 0;
    *out = (uint32_t)value;
    return 1;
}

static int take_real(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
}

static int take_partition(const char *text, double *alpha) {
    *alpha = 0.0;
    if (strcmp(text, "iid") == 0) return 1;
    return strncmp(text, "dirichlet:", 10) == 0 && take_real(text + 10, alpha) && *alpha >= 0.001 && *alpha <= 1e6;
}

/* NULL, or what was expected. */
static const char *take_option(int letter, const char *value, choices *chosen) {
    switch (letter) {
    case 'd':
        chosen->data.path = value;
        return NULL;
    case 'L':
        chosen->data.labels = value;
        return NULL;
    case 'l':
        chosen->data.label = chosen->holdout.label = value;
        return NULL;
    case 'D':
        chosen->holdout.path = value;
        return NULL;
    case 'H':
        chosen->holdout.labels = value;
        return NULL;
    case 'o':
        chosen->out = value;
        return NULL;
    case 'j':
        chosen->json = 1;
        return NULL;
    case 'h':
        chosen->help = 1;
        return NULL;
    case 'c':
        return take_u32(value, 65536, &chosen->partition.clients) ? NULL : "--clients: expected 1 to 65536";
    case 'm':
        return take_u32(value, INT32_MAX, &chosen->partition.minimum) && chosen->partition.minimum > 0
                   ? NULL
                   : "--minimum: expected a whole number, at least 1";
    case 's':
        return take_whole(value, UINT64_MAX, &chosen->seed) ? NULL
                                                            : "--seed: expected a whole number of up to 19 digits";
    case 'S':
        return take_whole(value, UINT64_MAX, &chosen->test_seed)
                   ? NULL
                   : "--test-seed: expected a whole number of up to 19 digits";
    case 'p':
        return take_partition(value, &chosen->partition.alpha) ? NULL : "--partition: expected iid or dirichlet:ALPHA";
    case 't':
        return take_real(value, &chosen->test_fraction) && chosen->test_fraction >= 0.0 && chosen->test_fraction < 1.0
                   ? NULL
                   : "--test-fraction: expected 0 <= F < 1";
    default:
        return "unknown option, or one without its value";
    }
}

static const char *check(const choices *chosen) {
    if (chosen->data.path == NULL) return "--data is needed";
    if (chosen->partition.clients == 0) return "--clients is needed: 1 to 65536";
    if (chosen->out == NULL) return "--out is needed";
    if (chosen->holdout.path != NULL && chosen->test_fraction > 0.0)
        return "--holdout and --test-fraction exclude each other";
    if (chosen->holdout.path == NULL && chosen->holdout.labels != NULL) return "--holdout-labels needs --holdout";
    if (chosen->holdout.path != NULL && (chosen->holdout.labels == NULL) != (chosen->data.labels == NULL)) {
        return "the holdout must have the format of the data";
    }
    return NULL;
}

int sheaf_verb_data(int count, char **arguments) {
    if (count < 2) return sheaf_tool_usage("data", help, "which command?");
    int help_asked = strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0;
    if (!help_asked && strcmp(arguments[1], "split") != 0)
        return sheaf_tool_usage("data", help, "no command '%s'", arguments[1]);
    choices chosen = {.partition = {.alpha = 0.5, .minimum = 8}, .seed = 1, .help = help_asked};
    const char *wrong = NULL;
    int letter;
    optind = 1;
    opterr = 0;
    while (wrong == NULL && (letter = getopt_long(count - 1, arguments + 1, "h", options, NULL)) != -1) {
        wrong = take_option(letter, optarg, &chosen);
    }
    if (wrong == NULL && chosen.help) {
        fputs(help, stdout);
        return SHEAF_EXIT_OK;
    }
    if (wrong == NULL && optind != count - 1) wrong = "an argument that belongs to no option";
    if (wrong == NULL) wrong = check(&chosen);
    if (wrong != NULL) return sheaf_tool_usage("data", help, "split: %s", wrong);
    chosen.data.keep_source = chosen.holdout.keep_source = 1;
    return run_split(&chosen);
}
