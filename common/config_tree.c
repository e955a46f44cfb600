#include "common/config_tree.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct sheaf_config_block {
    sheaf_config_block *next;
    max_align_t memory[];
};

void *sheaf_config_arena_take(sheaf_config_arena *arena, size_t size) {
    if (size > SIZE_MAX - sizeof(sheaf_config_block)) return NULL;
    sheaf_config_block *block = calloc(1, sizeof *block + size);
    if (block == NULL) return NULL;
    block->next = arena->blocks;
    arena->blocks = block;
    return block->memory;
}

char *sheaf_config_arena_text(sheaf_config_arena *arena, const char *text, size_t size) {
    char *copy = sheaf_config_arena_take(arena, size + 1);
    if (copy != NULL && size > 0) memcpy(copy, text, size);
    return copy;
}

void sheaf_config_arena_free(sheaf_config_arena *arena) {
    while (arena->blocks != NULL) {
        sheaf_config_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
}

const char *sheaf_config_shown(const char *text, char out[SHEAF_CONFIG_SHOWN_BYTES]) {
    size_t i = 0;
    for (; text[i] != '\0' && i < SHEAF_CONFIG_SHOWN_BYTES - 4; i++) {
        unsigned char c = (unsigned char)text[i];
        out[i] = c < 0x20 || c == 0x7f ? '?' : text[i];
    }
    /* A cut never leaves half of a UTF-8 character behind. */
    if (text[i] != '\0') {
        while (i > 0 && ((unsigned char)text[i] & 0xc0) == 0x80) i--;
        memcpy(out + i, "...", 3);
        i += 3;
    }
    out[i] = '\0';
    return out;
}

const sheaf_node *sheaf_node_child(const sheaf_node *map, const char *key, size_t key_size) {
    for (const sheaf_node *child = map->first; child != NULL; child = child->next) {
        if (child->key != NULL && strlen(child->key) == key_size && memcmp(child->key, key, key_size) == 0)
            return child;
    }
    return NULL;
}

typedef struct {
    sheaf_config_arena *arena;
    const char *name;
    sheaf_problem *problem;
    sheaf_node *open[SHEAF_CONFIG_DEPTH_MAX];
    size_t depth;
    sheaf_node *root;
    const char *key; /* read, and waiting for its value */
    size_t key_line;
    unsigned documents;
} builder;

static sheaf_status refuse(builder *b, size_t line, const char *what) {
    return sheaf_problem_set(b->problem, SHEAF_E_CONFIG, "%s:%zu: %s", b->name, line, what);
}

static sheaf_status no_memory(builder *b) {
    return sheaf_problem_set(b->problem, SHEAF_E_MEMORY, "%s: no memory for the configuration", b->name);
}

/* Hangs `node` under the map or list that is open. */
static sheaf_status attach(builder *b, sheaf_node *node) {
    if (b->depth == 0) {
        b->root = node;
        return SHEAF_OK;
    }
    sheaf_node *parent = b->open[b->depth - 1];
    if (parent->count == SHEAF_CONFIG_ENTRIES_MAX)
        return refuse(b, node->line, "more than 4096 entries; expected fewer");
    if (parent->kind == SHEAF_NODE_MAP) {
        node->key = b->key;
        b->key = NULL;
    }
    if (parent->last == NULL)
        parent->first = node;
    else
        parent->last->next = node;
    parent->last = node;
    parent->count++;
    return SHEAF_OK;
}

static int expects_key(const builder *b) {
    return b->depth > 0 && b->open[b->depth - 1]->kind == SHEAF_NODE_MAP && b->key == NULL;
}

static sheaf_status take_key(builder *b, const char *text, size_t size, size_t line) {
    if (size == 0 || size > SHEAF_CONFIG_KEY_BYTES_MAX)
        return refuse(b, line, "not a usable key; expected 1..255 characters");
    const sheaf_node *twin = sheaf_node_child(b->open[b->depth - 1], text, size);
    b->key = sheaf_config_arena_text(b->arena, text, size);
    b->key_line = line;
    if (b->key == NULL) return no_memory(b);
    if (twin == NULL) return SHEAF_OK;
    char shown[SHEAF_CONFIG_SHOWN_BYTES];
    return sheaf_problem_set(b->problem, SHEAF_E_CONFIG,
                             "%s:%zu: %s: stands here a second time, first in line %zu; expected once", b->name, line,
                             sheaf_config_shown(b->key, shown), twin->line);
}

static sheaf_status take_scalar(builder *b, const yaml_event_t *event) {
    const char *text = (const char *)event->data.scalar.value;
    size_t size = event->data.scalar.length, line = event->start_mark.line + 1;
    if (memchr(text, 0, size) != NULL) return refuse(b, line, "a text with a NUL byte; expected none");
    if (expects_key(b)) return take_key(b, text, size, line);
    sheaf_node *node = sheaf_config_arena_take(b->arena, sizeof *node);
    if (node == NULL) return no_memory(b);
    /* An empty value has the mark of what follows it, so the key's line is the one to show. */
    node->line = size == 0 && b->key != NULL ? b->key_line : line;
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->text = sheaf_config_arena_text(b->arena, text, size);
    return node->text == NULL ? no_memory(b) : attach(b, node);
}

static sheaf_status take_start(builder *b, const yaml_event_t *event, sheaf_node_kind kind) {
    size_t line = event->start_mark.line + 1;
    if (expects_key(b)) return refuse(b, line, "a map or list as a key; expected a name");
    if (b->depth == SHEAF_CONFIG_DEPTH_MAX) return refuse(b, line, "nested more than 16 deep; expected less");
    sheaf_node *node = sheaf_config_arena_take(b->arena, sizeof *node);
    if (node == NULL) return no_memory(b);
    node->kind = kind;
    node->line = b->key != NULL ? b->key_line : line;
    sheaf_status status = attach(b, node);
    if (status == SHEAF_OK) b->open[b->depth++] = node;
    return status;
}

/* What YAML can say and a configuration must not: one value under two names, or of a type of its own. */
static const char *forbidden(const yaml_event_t *event) {
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return "an alias (*name); expected the value itself";
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
        break;
    default:
        break;
    }
    if (anchor != NULL) return "an anchor (&name); expected a plain value";
    return tag != NULL ? "a tag (!name); expected a plain value" : NULL;
}

static sheaf_status take_event(builder *b, const yaml_event_t *event) {
    const char *wrong = forbidden(event);
    if (wrong != NULL) return refuse(b, event->start_mark.line + 1, wrong);
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return take_scalar(b, event);
    case YAML_MAPPING_START_EVENT:
        return take_start(b, event, SHEAF_NODE_MAP);
    case YAML_SEQUENCE_START_EVENT:
        return take_start(b, event, SHEAF_NODE_LIST);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        b->depth--;
        return SHEAF_OK;
    case YAML_DOCUMENT_START_EVENT:
        if (b->documents++ > 0) return refuse(b, event->start_mark.line + 1, "a second document; expected one");
        return SHEAF_OK;
    default:
        return SHEAF_OK;
    }
}

static sheaf_status refuse_syntax(builder *b, const yaml_parser_t *parser) {
    if (parser->error == YAML_MEMORY_ERROR) return no_memory(b);
    size_t line = parser->problem_mark.line + 1;
    const char *text = parser->problem != NULL ? parser->problem : "unreadable";
    return sheaf_problem_set(b->problem, SHEAF_E_CONFIG, "%s:%zu: not YAML: %s; expected lines of 'key: value'",
                             b->name, line, text);
}

sheaf_status sheaf_config_tree_parse(sheaf_config_arena *arena, const char *text, size_t size, const char *name,
                                     sheaf_node **root, sheaf_problem *problem) {
    builder b = {.arena = arena, .name = name, .problem = problem};
    *root = NULL;
    if (size > SHEAF_CONFIG_FILE_BYTES_MAX)
        return sheaf_problem_set(problem, SHEAF_E_CONFIG, "%s: %zu bytes; expected at most 1 MiB", name, size);
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) return no_memory(&b);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    sheaf_status status = SHEAF_OK;
    for (int ended = 0; status == SHEAF_OK && !ended;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = refuse_syntax(&b, &parser);
            break;
        }
        status = take_event(&b, &event);
        ended = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (status == SHEAF_OK) *root = b.root;
    return status;
}
