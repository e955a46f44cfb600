/* model.c - `sheaf model init|train|evaluate|inspect`: model versions made, trained, judged and looked at without a
 * service. What `train` reaches on pooled data is what a federated job is compared with. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "server/tool/trainable.h"
#include "server/tool/verb.h"

static const char help[] =
    "usage: sheaf model init NETWORK.yaml --seed S -o OUT.safetensors [--json]\n"
    "       sheaf model train NETWORK.yaml DATA [--epochs N] [--batch N] [--lr R] [--momentum M] [--seed S]\n"
    "                   [--from MODEL.safetensors] -o OUT.safetensors [--json]\n"
    "       sheaf model evaluate NETWORK.yaml MODEL.safetensors DATA [--json]\n"
    "       sheaf model inspect MODEL.safetensors [--json]\n"
    "       sheaf model reference\n"
    "\n"
    "init       draws the first values of the network's parameters.\n"
    "train      trains on the whole of DATA, from `init --seed S` or from another model.\n"
    "evaluate   prints the mean loss and the accuracy on DATA.\n"
    "inspect    prints the tensors of a model and its digest.\n"
    "reference  prints every key that NETWORK.yaml may have.\n"
    "\n"
    "DATA is   --data TABLE.csv [--label COLUMN]        (default column: label)\n"
    "or        --data IMAGES.idx --labels LABELS.idx    (.gz too)\n"
    "\n"
    "  --epochs N     passes over the data (default 10)\n"
    "  --batch N      examples a step (default 32)\n"
    "  --lr R         learning rate (default 0.05)\n"
    "  --momentum M   0 <= M < 1 (default 0.9)\n"
    "  --seed S       whole number from which all randomness derives (default 1)\n"
    "  -o FILE        where the model goes\n"
    "  --json         the result as one JSON object on one line\n";

typedef struct {
    const char *paths[2]; /* the arguments without option */
    int path_count;
    sheaf_data_options data;
    const char *out, *from;
    uint32_t epochs, batch;
    double rate, momentum;
    uint64_t seed;
    int json, help;
} choices;

static int fail(const sheaf_problem *problem) { return sheaf_tool_fail("model", problem); }

/* ---- results ---- */

static int print_json(json_t *object) {
    int done =
        object != NULL && json_dumpf(object, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF && fflush(stdout) == 0;
    json_decref(object);
    if (done) return SHEAF_EXIT_OK;
    fprintf(stderr, "sheaf model: cannot print the result\n");
    return SHEAF_EXIT_ENVIRONMENT;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- init ---- */

static int run_init(const choices *chosen) {
    sheaf_problem problem;
    sheaf_trainable trainable;
    char digest[2 * SHEAF_DIGEST_BYTES + 1];
    uint8_t seed[SHEAF_SEED_BYTES];
    sheaf_status status = sheaf_trainable_open(chosen->paths[0], 1, &trainable, &problem);
    if (status == SHEAF_OK) {
        status = sheaf_trainable_seed(chosen->seed, seed);
        if (status != SHEAF_OK) (void)sheaf_problem_set(&problem, status, "no seed");
    }
    if (status == SHEAF_OK) sheaf_network_initialise(&trainable.network, seed);
    if (status == SHEAF_OK) status = sheaf_trainable_save(&trainable, chosen->out, digest, &problem);
    json_int_t parameters = (json_int_t)trainable.network.parameter_count;
    sheaf_trainable_close(&trainable);
    if (status != SHEAF_OK) return fail(&problem);
    if (chosen->json)
        return print_json(
            json_pack("{s:s, s:s, s:I}", "model", chosen->out, "model_digest", digest, "parameters", parameters));
    printf("%s: %lld parameters, digest %s\n", chosen->out, (long long)parameters, digest);
    return SHEAF_EXIT_OK;
}

/* ---- train ---- */

static void show_progress(const sheaf_training *training, int over) {
    if (!isatty(STDERR_FILENO)) return;
    if (over)
        fprintf(stderr, "\r\033[K");
    else
        fprintf(stderr, "\repoch %u of %u, %u.%u %%, loss %.4f   ", (unsigned)training->epoch + 1,
                (unsigned)training->options.epochs, (unsigned)sheaf_training_permille(training) / 10,
                (unsigned)sheaf_training_permille(training) % 10, sheaf_training_loss(training));
}

static sheaf_status train_all(sheaf_training *training, sheaf_problem *problem) {
    sheaf_status status;
    double shown = 0.0;
    while ((status = sheaf_training_step(training, 16)) == SHEAF_AGAIN) {
        if (seconds_now() - shown < 0.2) continue;
        show_progress(training, 0);
        shown = seconds_now();
    }
    show_progress(training, 1);
    if (status == SHEAF_E_NOT_FINITE)
        return sheaf_problem_set(problem, status, "the loss is no longer a number; try a smaller --lr");
    return status == SHEAF_OK ? status : sheaf_problem_set(problem, status, "training cannot begin");
}

static sheaf_status train_on(const choices *chosen, sheaf_trainable *trainable, const sheaf_dataset *data,
                             sheaf_training *training, sheaf_problem *problem) {
    sheaf_training_options options = {.epochs = chosen->epochs,
                                      .batch = chosen->batch,
                                      .learning_rate = (float)chosen->rate,
                                      .momentum = (float)chosen->momentum};
    sheaf_status status = sheaf_trainable_seed(chosen->seed, options.seed);
    if (status != SHEAF_OK) return sheaf_problem_set(problem, status, "no seed");
    if (chosen->from == NULL)
        sheaf_network_initialise(&trainable->network, options.seed);
    else
        status = sheaf_trainable_load(trainable, chosen->from, problem);
    if (status != SHEAF_OK) return status;
    sheaf_examples examples = sheaf_data_examples(data);
    size_t bytes = sheaf_training_bytes(trainable->network.parameter_count, examples.count);
    void *memory = bytes == 0 ? NULL : malloc(bytes);
    if (memory == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory to train");
    status = sheaf_training_begin(training, &trainable->network, &examples, &options, memory, bytes);
    if (status == SHEAF_OK)
        status = train_all(training, problem);
    else
        (void)sheaf_problem_set(problem, status, "training cannot begin");
    free(memory);
    return status;
}

static int run_train(const choices *chosen) {
    sheaf_problem problem;
    sheaf_trainable trainable;
    sheaf_dataset data = {0};
    sheaf_training training = {0};
    char digest[2 * SHEAF_DIGEST_BYTES + 1];
    double start = seconds_now();
    sheaf_status status = sheaf_trainable_open(chosen->paths[0], chosen->batch, &trainable, &problem);
    if (status == SHEAF_OK) status = sheaf_trainable_data(&trainable, &chosen->data, &data, &problem);
    if (status == SHEAF_OK) status = train_on(chosen, &trainable, &data, &training, &problem);
    if (status == SHEAF_OK) status = sheaf_trainable_save(&trainable, chosen->out, digest, &problem);
    json_int_t examples = data.count;
    sheaf_data_free(&data);
    sheaf_trainable_close(&trainable);
    if (status != SHEAF_OK) return fail(&problem);
    double loss = training.epoch_loss, seconds = seconds_now() - start;
    if (chosen->json) {
        return print_json(json_pack("{s:s, s:s, s:I, s:i, s:f, s:f}", "model", chosen->out, "model_digest", digest,
                                    "examples", examples, "epochs", (int)chosen->epochs, "loss", loss, "seconds",
                                    seconds));
    }
    printf("%s: %lld examples, %u epochs, loss %.4f in the last, %.1f s, digest %s\n", chosen->out, (long long)examples,
           (unsigned)chosen->epochs, loss, seconds, digest);
    return SHEAF_EXIT_OK;
}

/* ---- evaluate ---- */

enum { EVALUATION_BATCH = 64 };

static int run_evaluate(const choices *chosen) {
    sheaf_problem problem;
    sheaf_trainable trainable;
    sheaf_dataset data = {0};
    sheaf_evaluation result = {0};
    sheaf_status status = sheaf_trainable_open(chosen->paths[0], EVALUATION_BATCH, &trainable, &problem);
    if (status == SHEAF_OK) status = sheaf_trainable_load(&trainable, chosen->paths[1], &problem);
    if (status == SHEAF_OK) status = sheaf_trainable_data(&trainable, &chosen->data, &data, &problem);
    if (status == SHEAF_OK) {
        sheaf_examples examples = sheaf_data_examples(&data);
        status = sheaf_evaluate(&trainable.network, &examples, &result);
        if (status != SHEAF_OK)
            (void)sheaf_problem_set(&problem, status, "%s: the loss is not a number", chosen->paths[1]);
    }
    json_int_t examples = data.count;
    sheaf_data_free(&data);
    sheaf_trainable_close(&trainable);
    if (status != SHEAF_OK) return fail(&problem);
    if (chosen->json) {
        return print_json(json_pack("{s:s, s:I, s:f, s:f}", "model", chosen->paths[1], "examples", examples, "loss",
                                    result.loss, "accuracy", result.accuracy));
    }
    printf("%s: accuracy %.4f, loss %.4f on %lld examples\n", chosen->paths[1], result.accuracy, result.loss,
           (long long)examples);
    return SHEAF_EXIT_OK;
}

/* ---- inspect ---- */

static json_t *tensor_to_json(const sheaf_tensor *tensor) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->rank; i++) json_array_append_new(shape, json_integer((json_int_t)tensor->dims[i]));
    return json_pack("{s:s, s:s, s:o, s:I}", "name", tensor->name, "dtype", tensor->dtype, "shape", shape, "bytes",
                     (json_int_t)tensor->bytes);
}

static int inspect_as_json(const char *path, const sheaf_model *model, const char *digest) {
    json_t *tensors = json_array();
    for (size_t i = 0; i < model->count; i++) json_array_append_new(tensors, tensor_to_json(&model->tensors[i].tensor));
    return print_json(json_pack("{s:s, s:s, s:I, s:o}", "model", path, "model_digest", digest, "parameters",
                                (json_int_t)model->elements, "tensors", tensors));
}

static int inspect_as_text(const char *path, const sheaf_model *model, const char *digest) {
    for (size_t i = 0; i < model->count; i++) {
        const sheaf_tensor *tensor = &model->tensors[i].tensor;
        printf("%-32s %-6s [", tensor->name, tensor->dtype);
        for (uint32_t d = 0; d < tensor->rank; d++)
            printf("%s%llu", d == 0 ? "" : ", ", (unsigned long long)tensor->dims[d]);
        printf("]\n");
    }
    printf("%s: %zu tensors, %llu parameters, digest %s\n", path, model->count, (unsigned long long)model->elements,
           digest);
    return SHEAF_EXIT_OK;
}

static int run_inspect(const choices *chosen) {
    sheaf_problem problem;
    sheaf_model model = {0};
    uint8_t digest[SHEAF_DIGEST_BYTES];
    char text[2 * SHEAF_DIGEST_BYTES + 1];
    const char *path = chosen->paths[0];
    sheaf_status status = sheaf_safetensors_read(path, UINT64_MAX, &model, &problem);
    if (status == SHEAF_OK) {
        status = sheaf_model_digest(&model, digest);
        if (status != SHEAF_OK) (void)sheaf_problem_set(&problem, status, "%s: no digest", path);
    }
    if (status != SHEAF_OK) {
        sheaf_model_free(&model);
        return fail(&problem);
    }
    sheaf_hex(digest, sizeof digest, text);
    int code = chosen->json ? inspect_as_json(path, &model, text) : inspect_as_text(path, &model, text);
    sheaf_model_free(&model);
    return code;
}

static int run_reference(const choices *chosen) {
    (void)chosen;
    sheaf_model_file_print_reference(stdout);
    return SHEAF_EXIT_OK;
}

/* ---- the command line ---- */

static const struct option options[] = {
    {"data", required_argument, NULL, 'd'},
    {"labels", required_argument, NULL, 'L'},
    {"label", required_argument, NULL, 'l'},
    {"epochs", required_argument, NULL, 'e'},
    {"batch", required_argument, NULL, 'b'},
    {"lr", required_argument, NULL, 'r'},
    {"momentum", required_argument, NULL, 'm'},
    {"seed", required_argument, NULL, 's'},
    {"from", required_argument, NULL, 'f'},
    {"output", required_argument, NULL, 'o'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

typedef struct {
    const char *name;
    const char *options; /* letters of the options that it takes, besides json and help */
    const char *needs;   /* of those, the ones it cannot do without */
    int paths;
    int (*run)(const choices *chosen);
} command;

static const command commands[] = {
    {"init", "so", "o", 1, run_init},          {"train", "dLlebrmsfo", "do", 1, run_train},
    {"evaluate", "dLl", "d", 2, run_evaluate}, {"inspect", "", "", 1, run_inspect},
    {"reference", "", "", 0, run_reference},
};

static int take_whole(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *out) {
    char *end;
    if (*text < '0' || *text > '9') return 0;
    unsigned long long value = strtoull(text, &end, 10);
    *out = value;
    return *end == '\0' && value >= minimum && value <= maximum &&
           !(value == UINT64_MAX && strcmp(text, "18446744073709551615") != 0);
}

static int take_count(const char *text, uint64_t maximum, uint32_t *out) {
    uint64_t value;
    if (!take_whole(text, 1, maximum, &value)) return 0;
    *out = (uint32_t)value;
    return 1;
}

static int take_real(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
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
        chosen->data.label = value;
        return NULL;
    case 'o':
        chosen->out = value;
        return NULL;
    case 'f':
        chosen->from = value;
        return NULL;
    case 'j':
        chosen->json = 1;
        return NULL;
    case 'h':
        chosen->help = 1;
        return NULL;
    case 'e':
        return take_count(value, 10000, &chosen->epochs) ? NULL : "--epochs: expected 1 to 10000";
    case 'b':
        return take_count(value, SHEAF_BATCH_MAX, &chosen->batch) ? NULL : "--batch: expected 1 to 65536";
    case 's':
        return take_whole(value, 0, UINT64_MAX, &chosen->seed) ? NULL : "--seed: expected a whole number";
    case 'r':
        return take_real(value, &chosen->rate) && chosen->rate > 0.0 ? NULL : "--lr: expected a number above 0";
    case 'm':
        return take_real(value, &chosen->momentum) && chosen->momentum >= 0.0 && chosen->momentum < 1.0
                   ? NULL
                   : "--momentum: expected 0 <= M < 1";
    default:
        return "unknown option, or one without its value";
    }
}

static const command *find_command(const char *name) {
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    }
    return NULL;
}

static const char *parse(const command *wanted, int count, char **arguments, choices *chosen) {
    char seen[32] = {0};
    size_t seen_count = 0;
    int letter;
    optind = 1;
    opterr = 0;
    while ((letter = getopt_long(count, arguments, "o:h", options, NULL)) != -1) {
        const char *wrong = take_option(letter, optarg, chosen);
        if (wrong != NULL) return wrong;
        if (letter != 'j' && letter != 'h' && strchr(wanted->options, letter) == NULL)
            return "an option of another command";
        if (seen_count + 1 < sizeof seen) seen[seen_count++] = (char)letter;
    }
    if (chosen->help) return NULL;
    chosen->path_count = count - optind;
    if (chosen->path_count != wanted->paths) return "too few or too many arguments";
    for (int i = 0; i < wanted->paths; i++) chosen->paths[i] = arguments[optind + i];
    for (const char *need = wanted->needs; *need != '\0'; need++) {
        if (strchr(seen, *need) == NULL) return *need == 'd' ? "--data is needed" : "-o is needed";
    }
    return NULL;
}

int sheaf_verb_model(int count, char **arguments) {
    if (count < 2) return sheaf_tool_usage("model", help, "which command?");
    if (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0) {
        fputs(help, stdout);
        return SHEAF_EXIT_OK;
    }
    const command *wanted = find_command(arguments[1]);
    if (wanted == NULL) return sheaf_tool_usage("model", help, "no command '%s'", arguments[1]);
    choices chosen = {.epochs = 10, .batch = 32, .rate = 0.05, .momentum = 0.9, .seed = 1};
    const char *wrong = parse(wanted, count - 1, arguments + 1, &chosen);
    if (wrong != NULL) return sheaf_tool_usage("model", help, "%s: %s", wanted->name, wrong);
    if (chosen.help) {
        fputs(help, stdout);
        return SHEAF_EXIT_OK;
    }
    return wanted->run(&chosen);
}
