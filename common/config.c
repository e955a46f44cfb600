#include "common/config.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config_tree.h"
#include "common/config_value.h"
#include "common/file.h"

struct sheaf_config {
    sheaf_config_arena arena;
    sheaf_config_arena *where_arena; /* texts of sheaf_config_where, which gets a const config */
    sheaf_node *root;                /* NULL when the file is empty */
    const char *name, *folder;
};

/* The walk down the table and the tree, with the key path for messages. */
typedef struct {
    sheaf_config *config;
    sheaf_problem *problem;
    char path[512]; /* cut, never overrun */
    size_t path_size;
} reader;

static void path_cut(reader *r, size_t size) {
    r->path_size = size;
    r->path[size] = '\0';
}

static size_t path_add(reader *r, const char *before, const char *text) {
    size_t size = r->path_size, left = sizeof r->path - size;
    char shown[SHEAF_CONFIG_SHOWN_BYTES];
    int written = snprintf(r->path + size, left, "%s%s", size > 0 ? before : "", sheaf_config_shown(text, shown));
    r->path_size = written < 0 ? size : (size_t)written >= left ? sizeof r->path - 1 : size + (size_t)written;
    return size;
}

static size_t path_index(reader *r, size_t index) {
    char text[32];
    (void)snprintf(text, sizeof text, "[%zu]", index);
    return path_add(r, "", text);
}

static sheaf_status refuse(reader *r, size_t line, const char *what, const char *expected) {
    return sheaf_problem_set(r->problem, SHEAF_E_CONFIG, "%s:%zu: %s%s%s%s%s", r->config->name, line, r->path,
                             r->path_size > 0 ? ": " : "", what, expected[0] != '\0' ? "; expected " : "", expected);
}

static sheaf_status no_memory(reader *r) {
    return sheaf_problem_set(r->problem, SHEAF_E_MEMORY, "%s: no memory for the configuration", r->config->name);
}

static sheaf_status refuse_value(reader *r, const sheaf_config_field *field, const sheaf_node *node,
                                 const char *wrong) {
    char what[SHEAF_CONFIG_SHOWN_BYTES + 64], shown[SHEAF_CONFIG_SHOWN_BYTES], expected[SHEAF_CONFIG_EXPECTED_BYTES];
    if (node->text[0] == '\0' && !node->quoted)
        (void)snprintf(what, sizeof what, "%s", wrong);
    else
        (void)snprintf(what, sizeof what, "'%s' %s", sheaf_config_shown(node->text, shown), wrong);
    return refuse(r, node->line, what, sheaf_config_expected(field, expected));
}

/* A map where a list was wanted, and so on. */
static sheaf_status require_kind(reader *r, const sheaf_config_field *field, const sheaf_node *node,
                                 sheaf_node_kind kind) {
    if (node->kind == kind) return SHEAF_OK;
    if (node->kind == SHEAF_NODE_SCALAR) {
        return refuse_value(r, field, node, node->text[0] == '\0' ? "has no value" : "is a single value");
    }
    return refuse(r, node->line, node->kind == SHEAF_NODE_MAP ? "is a map" : "is a list", sheaf_config_noun(field));
}

static sheaf_status resolve_path(reader *r, const sheaf_node *node, const char **text) {
    if (strncmp(*text, "pkcs11:", 7) == 0) return SHEAF_OK; /* a key in a token; see private_key.h */
    if ((*text)[0] == '/' || strcmp(r->config->folder, ".") == 0) return SHEAF_OK;
    size_t folder = strlen(r->config->folder), size = strlen(*text);
    if (folder + 1 + size >= SHEAF_PATH_BYTES)
        return refuse(r, node->line, "is too long", "a path of at most 1023 bytes");
    char *whole = sheaf_config_arena_take(&r->config->arena, folder + size + 2);
    if (whole == NULL) return no_memory(r);
    (void)snprintf(whole, folder + size + 2, "%s/%s", r->config->folder, *text);
    *text = whole;
    return SHEAF_OK;
}

static sheaf_status read_scalar(reader *r, const sheaf_config_field *field, const sheaf_node *node, void *target) {
    sheaf_status status = require_kind(r, field, node, SHEAF_NODE_SCALAR);
    if (status != SHEAF_OK) return status;
    const char *wrong = sheaf_config_scalar_read(field, node, target);
    if (wrong != NULL) return refuse_value(r, field, node, wrong);
    return field->kind == SHEAF_CONFIG_PATH ? resolve_path(r, node, target) : SHEAF_OK;
}

/* Room for the children of `node`; checks the length for kinds whose bounds mean that. */
static sheaf_status make_list(reader *r, const sheaf_node *node, size_t item_bytes, sheaf_config_list *list) {
    assert(item_bytes > 0);
    list->count = node->count;
    list->items = NULL;
    if (node->count == 0) return SHEAF_OK;
    list->items = sheaf_config_arena_take(&r->config->arena, node->count * item_bytes);
    return list->items == NULL ? no_memory(r) : SHEAF_OK;
}

static sheaf_status read_map(reader *r, const sheaf_config_field *fields, const sheaf_node *node, size_t line,
                             int present, void *target);

static sheaf_status check_length(reader *r, const sheaf_config_field *field, const sheaf_node *node) {
    if (sheaf_config_length_ok(field, node->count)) return SHEAF_OK;
    char what[64], expected[64];
    (void)snprintf(what, sizeof what, "has %zu entries", node->count);
    if (field->maximum < field->minimum)
        (void)snprintf(expected, sizeof expected, "%.0f or more", field->minimum);
    else
        (void)snprintf(expected, sizeof expected, "%.0f..%.0f", field->minimum, field->maximum);
    return refuse(r, node->line, what, expected);
}

static sheaf_status read_list(reader *r, const sheaf_config_field *field, const sheaf_node *node,
                              sheaf_config_list *list) {
    static const sheaf_config_field entry = {.kind = SHEAF_CONFIG_MAP};
    sheaf_status status = require_kind(r, field, node, SHEAF_NODE_LIST);
    if (status == SHEAF_OK) status = check_length(r, field, node);
    if (status == SHEAF_OK) status = make_list(r, node, field->item_bytes, list);
    size_t index = 0;
    for (const sheaf_node *item = node->first; status == SHEAF_OK && item != NULL; item = item->next, index++) {
        size_t back = path_index(r, index);
        status = require_kind(r, &entry, item, SHEAF_NODE_MAP);
        if (status == SHEAF_OK)
            status = read_map(r, field->fields, item, item->line, 1, (char *)list->items + index * field->item_bytes);
        path_cut(r, back);
    }
    return status;
}

static sheaf_status read_whole(reader *r, const sheaf_config_field *field, const sheaf_node *node, int64_t *out) {
    if (node->kind != SHEAF_NODE_SCALAR)
        return refuse(r, node->line, node->kind == SHEAF_NODE_MAP ? "is a map" : "is a list", "a whole number");
    const char *wrong = sheaf_config_i64_read(field, node, out);
    if (wrong == NULL) return SHEAF_OK;
    return refuse_value(r, field, node, node->text[0] == '\0' ? "has no value" : wrong);
}

static sheaf_status read_pairs(reader *r, const sheaf_config_field *field, const sheaf_node *node,
                               sheaf_config_list *list) {
    sheaf_status status = require_kind(r, field, node, SHEAF_NODE_MAP);
    if (status == SHEAF_OK) status = make_list(r, node, sizeof(sheaf_config_pair), list);
    sheaf_config_pair *pair = list->items;
    for (const sheaf_node *item = node->first; status == SHEAF_OK && item != NULL; item = item->next, pair++) {
        size_t back = path_add(r, ".", item->key);
        pair->key = item->key;
        status = read_whole(r, field, item, &pair->value);
        path_cut(r, back);
    }
    return status;
}

static sheaf_status read_numbers(reader *r, const sheaf_config_field *field, const sheaf_node *node,
                                 sheaf_config_list *list) {
    sheaf_status status = require_kind(r, field, node, SHEAF_NODE_LIST);
    if (status == SHEAF_OK) status = make_list(r, node, sizeof(int64_t), list);
    int64_t *number = list->items;
    size_t index = 0;
    for (const sheaf_node *item = node->first; status == SHEAF_OK && item != NULL; item = item->next, index++) {
        size_t back = path_index(r, index);
        status = read_whole(r, field, item, &number[index]);
        path_cut(r, back);
    }
    return status;
}

static sheaf_status read_names(reader *r, const sheaf_config_field *field, const sheaf_node *node,
                               sheaf_config_list *list) {
    static const sheaf_config_field entry = {.kind = SHEAF_CONFIG_NAME};
    sheaf_status status = require_kind(r, field, node, SHEAF_NODE_LIST);
    if (status == SHEAF_OK) status = check_length(r, field, node);
    if (status == SHEAF_OK) status = make_list(r, node, sizeof(const char *), list);
    const char **name = list->items;
    size_t index = 0;
    for (const sheaf_node *item = node->first; status == SHEAF_OK && item != NULL; item = item->next, index++) {
        size_t back = path_index(r, index);
        status = read_scalar(r, &entry, item, &name[index]);
        path_cut(r, back);
    }
    return status;
}

static sheaf_status read_field(reader *r, const sheaf_config_field *field, const sheaf_node *node, void *target) {
    sheaf_status status;
    switch (field->kind) {
    case SHEAF_CONFIG_MAP:
        status = require_kind(r, field, node, SHEAF_NODE_MAP);
        return status == SHEAF_OK ? read_map(r, field->fields, node, node->line, 1, target) : status;
    case SHEAF_CONFIG_LIST:
        return read_list(r, field, node, target);
    case SHEAF_CONFIG_PAIRS:
        return read_pairs(r, field, node, target);
    case SHEAF_CONFIG_NUMBERS:
        return read_numbers(r, field, node, target);
    case SHEAF_CONFIG_NAMES:
        return read_names(r, field, node, target);
    default:
        return read_scalar(r, field, node, target);
    }
}

/* A preset is written as in the file and read by the same code. Scalars need no YAML parser for that. */
static sheaf_status read_preset(reader *r, const sheaf_config_field *field, size_t line, void *target) {
    int composite = field->kind == SHEAF_CONFIG_LIST || field->kind == SHEAF_CONFIG_PAIRS ||
                    field->kind == SHEAF_CONFIG_NUMBERS || field->kind == SHEAF_CONFIG_NAMES;
    sheaf_node scalar = {
        .kind = SHEAF_NODE_SCALAR, .line = line, .text = field->preset, .quoted = field->kind == SHEAF_CONFIG_STRING};
    sheaf_node *node = &scalar;
    if (composite) {
        sheaf_status status = sheaf_config_tree_parse(&r->config->arena, field->preset, strlen(field->preset),
                                                      r->config->name, &node, r->problem);
        if (status != SHEAF_OK) return status;
        assert(node != NULL);
    }
    return read_field(r, field, node, target);
}

static sheaf_status read_absent(reader *r, const sheaf_config_field *field, size_t line, int present, void *target) {
    if (field->required && present) {
        char expected[SHEAF_CONFIG_EXPECTED_BYTES], both[SHEAF_CONFIG_EXPECTED_BYTES + 64];
        const char *noun = sheaf_config_noun(field);
        (void)sheaf_config_expected(field, expected);
        (void)snprintf(both, sizeof both, "%s%s%s", noun, strcmp(noun, expected) == 0 ? "" : ", ",
                       strcmp(noun, expected) == 0 ? "" : expected);
        return refuse(r, line, "is missing", both);
    }
    if (field->kind == SHEAF_CONFIG_MAP) return read_map(r, field->fields, NULL, line, 0, target);
    return field->preset == NULL ? SHEAF_OK : read_preset(r, field, line, target);
}

/* ---- unknown keys ---- */

/* Levenshtein's distance, for texts short enough to be keys; large for others. */
static size_t distance(const char *a, const char *b) {
    enum { LONGEST = 48 };
    size_t rows = strlen(a), columns = strlen(b), row[LONGEST + 1];
    if (rows > LONGEST || columns > LONGEST) return SIZE_MAX;
    for (size_t j = 0; j <= columns; j++) row[j] = j;
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            size_t shorter = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replaced < shorter ? replaced : shorter;
        }
    }
    return row[columns];
}

/* The known key that a person most likely meant: few letters differ, or one begins with the other. */
static const char *nearest(const sheaf_config_field *fields, const char *key) {
    const char *best = NULL;
    size_t best_distance = SIZE_MAX, key_size = strlen(key);
    for (const sheaf_config_field *field = fields; field->key != NULL; field++) {
        size_t size = strlen(field->key), shorter = size < key_size ? size : key_size;
        size_t apart = distance(key, field->key);
        int near = apart <= (key_size + 2) / 3 || (shorter >= 3 && strncmp(field->key, key, shorter) == 0);
        if (!near || apart >= best_distance) continue;
        best = field->key;
        best_distance = apart;
    }
    return best;
}

static sheaf_status refuse_unknown(reader *r, const sheaf_config_field *fields, const sheaf_node *node) {
    char what[128], expected[SHEAF_CONFIG_EXPECTED_BYTES] = "";
    const char *near = nearest(fields, node->key);
    (void)path_add(r, ".", node->key);
    if (near != NULL) {
        (void)snprintf(what, sizeof what, "is not a known key; did you mean '%s'?", near);
        return refuse(r, node->line, what, "");
    }
    size_t used = 0;
    for (const sheaf_config_field *field = fields; field->key != NULL && used < sizeof expected; field++) {
        const char *comma = field == fields ? "" : field[1].key == NULL ? " or " : ", ";
        int written = snprintf(expected + used, sizeof expected - used, "%s%s", comma, field->key);
        used += written > 0 ? (size_t)written : 0;
    }
    return refuse(r, node->line, "is not a known key", expected);
}

static int known(const sheaf_config_field *fields, const char *key) {
    for (const sheaf_config_field *field = fields; field->key != NULL; field++) {
        if (strcmp(field->key, key) == 0) return 1;
    }
    return 0;
}

/* `node` is NULL when the map is absent; then presets apply, and `present` says whether required keys are asked for. */
static sheaf_status read_map(reader *r, const sheaf_config_field *fields, const sheaf_node *node, size_t line,
                             int present, void *target) {
    size_t back = r->path_size;
    sheaf_status status = SHEAF_OK;
    for (const sheaf_node *child = node == NULL ? NULL : node->first; status == SHEAF_OK && child != NULL;
         child = child->next) {
        if (!known(fields, child->key)) status = refuse_unknown(r, fields, child);
    }
    for (const sheaf_config_field *field = fields; status == SHEAF_OK && field->key != NULL; field++) {
        const sheaf_node *child = node == NULL ? NULL : sheaf_node_child(node, field->key, strlen(field->key));
        void *place = (char *)target + field->offset;
        (void)path_add(r, ".", field->key);
        status = child != NULL ? read_field(r, field, child, place) : read_absent(r, field, line, present, place);
        path_cut(r, back);
    }
    return status;
}

/* ---- load ---- */

static sheaf_status read_root(sheaf_config *config, const sheaf_config_field *fields, void *target,
                              sheaf_problem *problem) {
    reader r = {.config = config, .problem = problem};
    if (config->root != NULL && config->root->kind != SHEAF_NODE_MAP)
        return refuse(&r, config->root->line, "the file is not a map", "lines of 'key: value'");
    return read_map(&r, fields, config->root, 1, 1, target);
}

static sheaf_config *make(const char *name, const char *folder) {
    sheaf_config *config = calloc(1, sizeof *config);
    if (config == NULL) return NULL;
    config->where_arena = calloc(1, sizeof *config->where_arena);
    config->name = sheaf_config_arena_text(&config->arena, name, strlen(name));
    config->folder = sheaf_config_arena_text(&config->arena, folder, strlen(folder));
    if (config->where_arena != NULL && config->name != NULL && config->folder != NULL) return config;
    sheaf_config_free(config);
    return NULL;
}

sheaf_status sheaf_config_parse(const char *text, size_t size, const char *name, const char *folder,
                                const sheaf_config_field *fields, void *target, size_t target_bytes, sheaf_config **out,
                                sheaf_problem *problem) {
    *out = NULL;
    memset(target, 0, target_bytes);
    sheaf_config *config = make(name, folder);
    if (config == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for the configuration", name);
    sheaf_status status = sheaf_config_tree_parse(&config->arena, text, size, config->name, &config->root, problem);
    if (status == SHEAF_OK) status = read_root(config, fields, target, problem);
    if (status == SHEAF_OK) {
        *out = config;
        return SHEAF_OK;
    }
    memset(target, 0, target_bytes); /* nothing may point into what is freed here */
    sheaf_config_free(config);
    return status;
}

sheaf_status sheaf_config_load(const char *path, const sheaf_config_field *fields, void *target, size_t target_bytes,
                               sheaf_config **out, sheaf_problem *problem) {
    char folder[SHEAF_PATH_BYTES] = ".";
    sheaf_buffer text = {NULL, 0, 0};
    *out = NULL;
    memset(target, 0, target_bytes);
    sheaf_status status = sheaf_file_read_whole(path, SHEAF_CONFIG_FILE_BYTES_MAX, &text, problem);
    if (status == SHEAF_E_TOO_LARGE)
        return sheaf_problem_set(problem, SHEAF_E_CONFIG, "%s: larger than 1 MiB; expected at most that", path);
    if (status != SHEAF_OK) return status;
    const char *slash = strrchr(path, '/');
    size_t size = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (size > 0 && size < sizeof folder) { /* a longer path could not have been opened */
        memcpy(folder, path, size);
        folder[size] = '\0';
    }
    status = sheaf_config_parse((const char *)text.data, text.size, path, folder, fields, target, target_bytes, out,
                                problem);
    sheaf_wipe(text.data, text.size);
    free(text.data);
    return status;
}

void sheaf_config_free(sheaf_config *config) {
    if (config == NULL) return;
    if (config->where_arena != NULL) sheaf_config_arena_free(config->where_arena);
    free(config->where_arena);
    sheaf_config_arena_free(&config->arena);
    free(config);
}

/* The child that the front of `path` names, and the rest of the path; NULL when there is none. */
static const sheaf_node *step(const sheaf_node *node, const char **path) {
    const char *at = **path == '.' ? *path + 1 : *path;
    if (*at == '[') {
        char *end = NULL;
        unsigned long index = strtoul(at + 1, &end, 10);
        *path = *end == ']' ? end + 1 : end;
        const sheaf_node *item = node->kind == SHEAF_NODE_LIST ? node->first : NULL;
        while (item != NULL && index-- > 0) item = item->next;
        return item;
    }
    /* Free keys (tensor names) may hold dots, so the longest child key that fits is taken. */
    const sheaf_node *best = NULL;
    size_t best_size = 0;
    for (const sheaf_node *child = node->kind == SHEAF_NODE_MAP ? node->first : NULL; child != NULL;
         child = child->next) {
        size_t size = strlen(child->key);
        if (size < best_size || strncmp(at, child->key, size) != 0 || strchr(".[", at[size]) == NULL) continue;
        best = child;
        best_size = size;
    }
    *path = at + best_size;
    return best;
}

const char *sheaf_config_where(const sheaf_config *config, const char *key_path) {
    size_t line = 1;
    const sheaf_node *node = config->root;
    while (node != NULL && *key_path != '\0') {
        node = step(node, &key_path);
        if (node != NULL) line = node->line;
    }
    size_t capacity = strlen(config->name) + 32;
    char *text = sheaf_config_arena_take(config->where_arena, capacity);
    if (text == NULL) return config->name;
    (void)snprintf(text, capacity, "%s:%zu", config->name, line);
    return text;
}
