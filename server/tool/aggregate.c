/* aggregate.c - `sheaf aggregate`: the weighted mean of safetensors files, offline, by the same arithmetic as a round.
 */
#include "server/aggregate/file_mean.h"
#include "server/tool/verb.h"

#include "common/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "usage: sheaf aggregate [--json] -o OUT.safetensors A.safetensors=WEIGHT B.safetensors=WEIGHT ...\n"
    "\n"
    "Writes the weighted mean of whole models or updates, exactly: the same bits for any order of the inputs. Weights "
    "are\n"
    "integers >= 0, not all of them 0. Each F32 tensor gets the finest lattice that fits: the largest fraction_bits "
    "in\n"
    "-125..126 with max|q| <= 2^31 - 1 and (sum of weights) x max|q| < 2^63, which is printed. Integer and bool "
    "tensors must\n"
    "be equal in all inputs. Names, shapes and types must agree; NaN and infinity are refused; other float types too.\n"
    "\n"
    "  -o, --output OUT   the file to write; it replaces an old one only when whole\n"
    "  --json             print the result as one JSON object on one line\n"
    "\n"
    "exit codes: 0 written; 2 usage, or weights that are negative, all zero or too large; 3 an input file is refused;\n"
    "            4 disk or memory\n";

typedef struct {
    const char *output;
    int json;
    sheaf_file_mean_input *inputs; /* room for one an argument */
    size_t count;
} request;

/* PATH=WEIGHT, split in place at the last '='. */
static int read_input(char *argument, sheaf_file_mean_input *out) {
    char *equals = strrchr(argument, '='), *end = NULL;
    if (equals == NULL || equals == argument)
        return sheaf_tool_usage("aggregate", help, "'%s': expected FILE=WEIGHT", argument);
    const char *digits = equals[1] == '-' ? equals + 2 : equals + 1;
    errno = 0;
    long long weight = strtoll(equals + 1, &end, 10);
    /* strtoll would also take spaces and a plus sign. */
    if (*digits < '0' || *digits > '9' || *end != '\0')
        return sheaf_tool_usage("aggregate", help, "'%s': the weight is no integer", argument);
    if (errno == ERANGE) return sheaf_tool_usage("aggregate", help, "'%s': the weight does not fit 64 bits", argument);
    *equals = '\0';
    *out = (sheaf_file_mean_input){argument, weight};
    return SHEAF_EXIT_OK;
}

static int read_arguments(int count, char **arguments, request *out) {
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--json") == 0) {
            out->json = 1;
        } else if (strcmp(arguments[i], "-o") == 0 || strcmp(arguments[i], "--output") == 0) {
            if (i + 1 == count) return sheaf_tool_usage("aggregate", help, "%s needs a file", arguments[i]);
            out->output = arguments[++i];
        } else if (arguments[i][0] == '-') {
            return sheaf_tool_usage("aggregate", help, "no option '%s'", arguments[i]);
        } else {
            int code = read_input(arguments[i], &out->inputs[out->count]);
            if (code != SHEAF_EXIT_OK) return code;
            out->count++;
        }
    }
    if (out->output == NULL) return sheaf_tool_usage("aggregate", help, "-o OUT.safetensors is missing");
    if (out->count == 0) return sheaf_tool_usage("aggregate", help, "no inputs");
    return SHEAF_EXIT_OK;
}

static json_t *tensors_json(const sheaf_file_mean *mean) {
    json_t *tensors = json_array();
    for (size_t i = 0; i < mean->model.count; i++) {
        const sheaf_tensor *tensor = &mean->model.tensors[i].tensor;
        json_t *bits =
            mean->fraction_bits[i] == SHEAF_FILE_MEAN_COPIED ? json_null() : json_integer(mean->fraction_bits[i]);
        json_array_append_new(tensors, json_pack("{s:s, s:s, s:I, s:o}", "name", tensor->name, "dtype", tensor->dtype,
                                                 "elements", (json_int_t)tensor->elements, "fraction_bits", bits));
    }
    return tensors;
}

static sheaf_status print_json(const request *request, const sheaf_file_mean *mean, const char *digest,
                               sheaf_problem *problem) {
    json_t *root = json_pack("{s:s, s:s, s:i, s:I, s:o}", "output", request->output, "model_digest", digest, "inputs",
                             (int)request->count, "weight", (json_int_t)mean->weight, "tensors", tensors_json(mean));
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "cannot print the result (is a path no UTF-8?)");
    puts(text);
    free(text);
    return SHEAF_OK;
}

static void print_text(const request *request, const sheaf_file_mean *mean, const char *digest) {
    for (size_t i = 0; i < mean->model.count; i++) {
        const sheaf_tensor *tensor = &mean->model.tensors[i].tensor;
        if (mean->fraction_bits[i] == SHEAF_FILE_MEAN_COPIED)
            printf("%s: %s, equal in all inputs\n", tensor->name, tensor->dtype);
        else
            printf("%s: %s, fraction_bits %" PRId32 "\n", tensor->name, tensor->dtype, mean->fraction_bits[i]);
    }
    printf("%s: mean of %zu files, weight %" PRIu64 ", model digest %s\n", request->output, request->count,
           mean->weight, digest);
}

/* Weights stand on the command line, so what is wrong with them is usage. */
static int refuse(const sheaf_problem *problem) {
    int code = sheaf_tool_fail("aggregate", problem);
    int weights = problem->status == SHEAF_E_WEIGHT_NEGATIVE || problem->status == SHEAF_E_NO_WEIGHT ||
                  problem->status == SHEAF_E_OVERFLOW;
    return weights ? SHEAF_EXIT_USAGE : code;
}

static int write_and_print(const request *request, const sheaf_file_mean *mean) {
    sheaf_problem problem = {.status = SHEAF_OK};
    uint8_t digest[SHEAF_DIGEST_BYTES];
    char hex[2 * SHEAF_DIGEST_BYTES + 1];
    sheaf_status status = sheaf_model_digest(&mean->model, digest);
    if (status != SHEAF_OK) (void)sheaf_problem_set(&problem, status, "%s", sheaf_status_text(status));
    if (status == SHEAF_OK) status = sheaf_safetensors_write(request->output, &mean->model, NULL, 0, &problem);
    if (status == SHEAF_OK) {
        sheaf_hex(digest, sizeof digest, hex);
        if (request->json)
            status = print_json(request, mean, hex, &problem);
        else
            print_text(request, mean, hex);
    }
    if (status == SHEAF_OK) return SHEAF_EXIT_OK;
    (void)sheaf_tool_fail("aggregate", &problem);
    return SHEAF_EXIT_ENVIRONMENT; /* the inputs were good: a missing folder here is the disk's */
}

static int run(const request *request) {
    sheaf_problem problem = {.status = SHEAF_OK};
    sheaf_file_mean mean;
    if (sheaf_file_mean_make(request->inputs, request->count, &mean, &problem) != SHEAF_OK) return refuse(&problem);
    int code = write_and_print(request, &mean);
    sheaf_file_mean_free(&mean);
    return code;
}

int sheaf_verb_aggregate(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--help") != 0) continue;
        fputs(help, stdout);
        return SHEAF_EXIT_OK;
    }
    request request = {.inputs = calloc((size_t)count, sizeof(sheaf_file_mean_input))};
    if (request.inputs == NULL) {
        sheaf_problem problem = {.status = SHEAF_E_MEMORY, .text = "no memory for the arguments"};
        return sheaf_tool_fail("aggregate", &problem);
    }
    int code = read_arguments(count, arguments, &request);
    if (code == SHEAF_EXIT_OK) code = run(&request);
    free(request.inputs);
    return code;
}
