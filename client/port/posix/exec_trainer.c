#include "client/port/posix/exec_trainer.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/port/posix/child.h"
#include "common/file.h"
#include "common/log.h"
#include "common/safetensors.h"

#define ARGUMENTS_MAX   64u
#define LOOK_AGAIN_MS   20u
#define ERROR_LINE_SHOW 512

typedef enum { IDLE, RUNNING, DONE } phase;

struct sheaf_exec {
    char *command; /* cut at its spaces */
    char *arguments[ARGUMENTS_MAX + 1];
    char input_path[SHEAF_PATH_BYTES], output_path[SHEAF_PATH_BYTES];
    uint32_t time_limit_s;
    uint64_t size_limit;

    sheaf_tensor *tensors; /* of the round's model, as they come */
    size_t tensor_count;
    float *values; /* all of them, in the same order */
    size_t value_count, value_capacity;

    phase phase;
    sheaf_child child;
    uint64_t started_ms;
    int finished; /* it has said so; `examples` holds */
    int64_t examples;
    sheaf_model before, after;
};

static uint64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static sheaf_status report(const sheaf_problem *problem) {
    sheaf_log(SHEAF_LOG_WARNING, "trainer_failed", "status=%s reason=%s", sheaf_status_name(problem->status),
              problem->text);
    return problem->status;
}

static void forget_round(sheaf_exec *exec) {
    sheaf_child_stop(&exec->child);
    sheaf_model_free(&exec->before);
    sheaf_model_free(&exec->after);
    exec->tensor_count = exec->value_count = 0;
    exec->phase = IDLE;
    exec->finished = 0;
    exec->examples = 0;
    (void)unlink(exec->input_path);
    (void)unlink(exec->output_path);
}

static sheaf_status begin(const sheaf_edge_plan *plan, void *context) {
    (void)plan;
    forget_round(context);
    return SHEAF_OK;
}

static void cancel(void *context) { forget_round(context); }

/* ---- load ---- */

static sheaf_status add_tensor(sheaf_exec *exec, const sheaf_edge_tensor *from) {
    if (from->rank > SHEAF_TENSOR_RANK_MAX || strlen(from->name) >= SHEAF_TENSOR_NAME_BYTES) return SHEAF_E_SHAPE;
    sheaf_tensor *grown = realloc(exec->tensors, (exec->tensor_count + 1) * sizeof *grown);
    if (grown == NULL) return SHEAF_E_MEMORY;
    exec->tensors = grown;
    sheaf_tensor *tensor = &grown[exec->tensor_count];
    memset(tensor, 0, sizeof *tensor);
    memcpy(tensor->name, from->name, strlen(from->name));
    memcpy(tensor->dtype, "F32", sizeof "F32");
    tensor->rank = from->rank;
    if (from->rank > 0) memcpy(tensor->dims, from->dims, from->rank * sizeof from->dims[0]);
    exec->tensor_count++;
    return sheaf_tensor_measure(tensor);
}

static sheaf_status make_room(sheaf_exec *exec, size_t count) {
    size_t needed = exec->value_count + count;
    if (needed <= exec->value_capacity) return SHEAF_OK;
    size_t capacity = needed + needed / 2;
    float *grown = realloc(exec->values, capacity * sizeof *grown);
    if (grown == NULL) return SHEAF_E_MEMORY;
    exec->values = grown;
    exec->value_capacity = capacity;
    return SHEAF_OK;
}

static sheaf_status load(const sheaf_edge_tensor *tensor, uint64_t first, const float *values, size_t count,
                         void *context) {
    sheaf_exec *exec = context;
    sheaf_status status = first == 0 ? add_tensor(exec, tensor) : SHEAF_OK;
    if (status == SHEAF_OK) status = make_room(exec, count);
    if (status != SHEAF_OK) return status;
    if (count > 0) memcpy(exec->values + exec->value_count, values, count * sizeof *values);
    exec->value_count += count;
    return SHEAF_OK;
}

/* ---- start ---- */

/* Tensors came in byte order of their names, which is also the model's order. */
static sheaf_status write_input(sheaf_exec *exec, sheaf_problem *problem) {
    sheaf_status status = sheaf_model_make(exec->tensors, exec->tensor_count, &exec->before, problem);
    if (status != SHEAF_OK) return status;
    const float *value = exec->values;
    for (size_t i = 0; i < exec->before.count; i++) {
        const sheaf_model_tensor *tensor = &exec->before.tensors[i];
        uint8_t *at = exec->before.stream + tensor->data_offset;
        for (uint64_t k = 0; k < tensor->tensor.elements; k++) sheaf_store_f32(at + 4 * k, *value++);
    }
    return sheaf_safetensors_write(exec->input_path, &exec->before, NULL, 0, problem);
}

static char *request_line(const sheaf_exec *exec, const sheaf_edge_plan *plan) {
    char seed[2 * sizeof plan->seed + 1];
    sheaf_hex(plan->seed, sizeof plan->seed, seed);
    json_t *line = json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:I}", "event", "train", "version", 1,
        "parameters", exec->input_path, "result", exec->output_path, "tenant", plan->tenant, "job", plan->job, "client",
        plan->client, "round", (json_int_t)plan->round, "attempt", (json_int_t)plan->attempt, "epochs",
        (json_int_t)plan->epochs, "batch", (json_int_t)plan->batch, "learning_rate", (double)plan->learning_rate,
        "momentum", (double)plan->momentum, "seed", seed, "weight_cap", (json_int_t)plan->weight_cap);
    if (line == NULL) return NULL;
    char *text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    return text;
}

static sheaf_status tell_plan(sheaf_exec *exec, const sheaf_edge_plan *plan, sheaf_problem *problem) {
    char *text = request_line(exec, plan);
    if (text == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the trainer's plan");
    sheaf_status status = sheaf_child_tell(&exec->child, text, problem);
    if (status == SHEAF_OK) status = sheaf_child_tell(&exec->child, "\n", problem);
    free(text);
    return status;
}

static sheaf_status start(sheaf_exec *exec, const sheaf_edge_plan *plan, sheaf_problem *problem) {
    sheaf_status status = write_input(exec, problem);
    if (status == SHEAF_OK) status = sheaf_child_start(&exec->child, exec->arguments, problem);
    if (status == SHEAF_OK) status = tell_plan(exec, plan, problem);
    if (status != SHEAF_OK) return status;
    exec->started_ms = now_ms();
    exec->phase = RUNNING;
    return SHEAF_OK;
}

/* ---- run ---- */

static sheaf_status take_message(sheaf_exec *exec, const json_t *message, sheaf_edge_progress *progress,
                                 sheaf_problem *problem) {
    const char *event = json_string_value(json_object_get(message, "event"));
    const json_t *loss = json_object_get(message, "loss");
    if (json_is_number(loss)) progress->loss = json_number_value(loss);
    if (event != NULL && strcmp(event, "progress") == 0) {
        json_int_t done = json_integer_value(json_object_get(message, "done_permille"));
        if (done > (json_int_t)progress->done_permille) progress->done_permille = done < 1000 ? (uint32_t)done : 1000;
        return SHEAF_OK;
    }
    const json_t *examples = json_object_get(message, "examples");
    if (event != NULL && strcmp(event, "done") == 0 && json_is_integer(examples)) {
        exec->finished = 1;
        exec->examples = json_integer_value(examples);
        return SHEAF_OK;
    }
    return sheaf_problem_set(problem, SHEAF_E_TRAINER,
                             "%s: wrote neither a progress nor a done line (with integer \"examples\")",
                             exec->arguments[0]);
}

static sheaf_status take_line(sheaf_exec *exec, const char *line, sheaf_edge_progress *progress,
                              sheaf_problem *problem) {
    json_error_t error;
    json_t *message = json_loads(line, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(message)) {
        json_decref(message);
        return sheaf_problem_set(problem, SHEAF_E_TRAINER, "%s: standard output is for JSON lines, found: %.80s",
                                 exec->arguments[0], line);
    }
    sheaf_status status = take_message(exec, message, progress, problem);
    json_decref(message);
    return status;
}

/* What has come so far; SHEAF_AGAIN when there is no more for now, SHEAF_ENDED at the end. */
static sheaf_status take_output(sheaf_exec *exec, sheaf_edge_progress *progress, sheaf_problem *problem) {
    const char *line;
    sheaf_status status;
    while ((status = sheaf_child_line(&exec->child.output, &line)) == SHEAF_OK) {
        status = take_line(exec, line, progress, problem);
        if (status != SHEAF_OK) return status;
    }
    if (status == SHEAF_E_TOO_LARGE) {
        return sheaf_problem_set(problem, SHEAF_E_TRAINER, "%s: wrote a line of more than %u bytes", exec->arguments[0],
                                 SHEAF_CHILD_LINE_BYTES);
    }
    return status;
}

static void log_errors(sheaf_exec *exec) {
    const char *line;
    sheaf_status status;
    while ((status = sheaf_child_line(&exec->child.errors, &line)) == SHEAF_OK) {
        sheaf_log(SHEAF_LOG_INFO, "trainer_says", "line=%.*s", ERROR_LINE_SHOW, line);
    }
    if (status == SHEAF_E_TOO_LARGE) exec->child.errors.size = 0;
}

static sheaf_status check_finite(const sheaf_model *model, sheaf_problem *problem) {
    for (size_t i = 0; i < model->count; i++) {
        const sheaf_model_tensor *tensor = &model->tensors[i];
        for (uint64_t k = 0; k < tensor->tensor.elements; k++) {
            if (isfinite(sheaf_load_f32(model->stream + tensor->data_offset + 4 * k))) continue;
            return sheaf_problem_set(problem, SHEAF_E_NOT_FINITE, "%s[%llu] is NaN or infinite", tensor->tensor.name,
                                     (unsigned long long)k);
        }
    }
    return SHEAF_OK;
}

static sheaf_status read_result(sheaf_exec *exec, sheaf_problem *problem) {
    if (exec->child.exit_code != 0 || !exec->finished) {
        return sheaf_problem_set(problem, SHEAF_E_TRAINER, "%s: ended with code %d %s a done line", exec->arguments[0],
                                 exec->child.exit_code, exec->finished ? "after" : "without");
    }
    sheaf_status status = sheaf_safetensors_read(exec->output_path, exec->size_limit, &exec->after, problem);
    if (status == SHEAF_E_NOT_FOUND)
        return sheaf_problem_set(problem, SHEAF_E_TRAINER, "%s: wrote no result", exec->arguments[0]);
    if (status == SHEAF_OK) status = sheaf_model_same_shape(&exec->before, &exec->after, problem);
    return status == SHEAF_OK ? check_finite(&exec->after, problem) : status;
}

static sheaf_status watch(sheaf_exec *exec, sheaf_edge_progress *progress, sheaf_problem *problem) {
    log_errors(exec);
    sheaf_status output = take_output(exec, progress, problem);
    if (output != SHEAF_AGAIN && output != SHEAF_ENDED) return output;
    int exited = sheaf_child_ended(&exec->child) == SHEAF_OK;
    if (exited && exec->child.exited) {
        /* What it wrote last may have come after the look above. */
        output = take_output(exec, progress, problem);
        log_errors(exec);
        if (output != SHEAF_AGAIN && output != SHEAF_ENDED) return output;
        return read_result(exec, problem);
    }
    if (now_ms() - exec->started_ms > (uint64_t)exec->time_limit_s * 1000u) {
        return sheaf_problem_set(problem, SHEAF_E_TIMEOUT, "%s: not done after %u s", exec->arguments[0],
                                 exec->time_limit_s);
    }
    progress->wait_ms = LOOK_AGAIN_MS;
    return SHEAF_AGAIN;
}

static sheaf_status train(const sheaf_edge_plan *plan, sheaf_edge_progress *progress, void *context) {
    sheaf_exec *exec = context;
    sheaf_problem problem = {SHEAF_OK, ""};
    if (progress->stop) {
        forget_round(exec);
        return SHEAF_STOPPED;
    }
    if (exec->phase == DONE) return SHEAF_OK;
    sheaf_status status = exec->phase == IDLE ? start(exec, plan, &problem) : watch(exec, progress, &problem);
    if (status == SHEAF_OK && exec->child.pid != 0) {
        progress->wait_ms = LOOK_AGAIN_MS;
        return SHEAF_AGAIN;
    }
    if (status == SHEAF_AGAIN) return status;
    sheaf_child_stop(&exec->child);
    if (status == SHEAF_OK) exec->phase = DONE;
    return status == SHEAF_OK ? status : report(&problem);
}

/* ---- store ---- */

static sheaf_status store(const sheaf_edge_tensor *tensor, uint64_t first, float *values, size_t count, void *context) {
    const sheaf_exec *exec = context;
    const sheaf_model_tensor *found = sheaf_model_find(&exec->after, tensor->name);
    if (found == NULL) return SHEAF_E_NAME;
    if (first > found->tensor.elements || count > found->tensor.elements - first) return SHEAF_E_SHAPE;
    const uint8_t *at = exec->after.stream + found->data_offset + 4 * first;
    for (size_t i = 0; i < count; i++) values[i] = sheaf_load_f32(at + 4 * i);
    return SHEAF_OK;
}

static int64_t examples(void *context) { return ((const sheaf_exec *)context)->examples; }

/* ---- open and close ---- */

static sheaf_status split_command(sheaf_exec *exec, const char *command, sheaf_problem *problem) {
    exec->command = strdup(command);
    if (exec->command == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory");
    size_t count = 0;
    for (char *at = exec->command; *at != '\0';) {
        while (*at == ' ') *at++ = '\0';
        if (*at == '\0') break;
        if (count == ARGUMENTS_MAX)
            return sheaf_problem_set(problem, SHEAF_E_USAGE, "trainer: more than %u arguments", ARGUMENTS_MAX);
        exec->arguments[count++] = at;
        at += strcspn(at, " ");
    }
    return count > 0 ? SHEAF_OK : sheaf_problem_set(problem, SHEAF_E_USAGE, "trainer: exec: names no program");
}

/* A program given by a path is looked at now, so that a typing error does not wait for the first round. */
static sheaf_status check_program(const sheaf_exec *exec, sheaf_problem *problem) {
    const char *program = exec->arguments[0];
    if (strchr(program, '/') == NULL || access(program, X_OK) == 0) return SHEAF_OK;
    return sheaf_problem_errno(problem, "run the trainer", program);
}

static sheaf_status set_up(sheaf_exec *exec, const sheaf_exec_options *options, sheaf_problem *problem) {
    sheaf_status status = split_command(exec, options->command, problem);
    if (status == SHEAF_OK) status = check_program(exec, problem);
    if (status == SHEAF_OK) status = sheaf_file_make_folder(options->folder, problem);
    if (status == SHEAF_OK)
        status = sheaf_path_join(exec->input_path, options->folder, "parameters.safetensors", problem);
    if (status == SHEAF_OK) status = sheaf_path_join(exec->output_path, options->folder, "result.safetensors", problem);
    exec->time_limit_s = options->time_limit_s;
    exec->size_limit = options->size_limit;
    return status;
}

sheaf_status sheaf_exec_open(const sheaf_exec_options *options, sheaf_exec **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a trainer");
    sheaf_status status = set_up(exec, options, problem);
    if (status != SHEAF_OK) {
        sheaf_exec_close(exec);
        return status;
    }
    *out = exec;
    return SHEAF_OK;
}

sheaf_trainer sheaf_exec_trainer(sheaf_exec *exec) {
    sheaf_trainer trainer = {begin, load, train, store, examples, cancel, exec};
    return trainer;
}

void sheaf_exec_close(sheaf_exec *exec) {
    if (exec == NULL) return;
    forget_round(exec);
    free(exec->tensors);
    free(exec->values);
    free(exec->command);
    free(exec);
}
