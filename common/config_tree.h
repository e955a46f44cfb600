/* config_tree.h - a YAML text as a tree that remembers lines; the lower half of config.c.
 *
 * Owner:   the arena owns every node and every text; nothing is freed before it.
 * Threads: one.
 * Units:   lines count from 1; 0 = not from the file (a preset).
 * Errors:  SHEAF_E_CONFIG with "NAME:LINE: ...", SHEAF_E_MEMORY.
 * Not:     it knows no table; config.c gives the tree its meaning. */
#pragma once
#include "common/config.h"

#define SHEAF_CONFIG_FILE_BYTES_MAX (1024u * 1024u)
#define SHEAF_CONFIG_DEPTH_MAX      16u
#define SHEAF_CONFIG_ENTRIES_MAX    4096u /* of one list or map */
#define SHEAF_CONFIG_KEY_BYTES_MAX  255u

typedef struct sheaf_config_block sheaf_config_block;
typedef struct {
    sheaf_config_block *blocks;
} sheaf_config_arena;

/* Cleared memory, aligned for anything; NULL when there is none. */
void *sheaf_config_arena_take(sheaf_config_arena *arena, size_t size);
char *sheaf_config_arena_text(sheaf_config_arena *arena, const char *text, size_t size);
void sheaf_config_arena_free(sheaf_config_arena *arena);

typedef enum { SHEAF_NODE_SCALAR, SHEAF_NODE_MAP, SHEAF_NODE_LIST } sheaf_node_kind;

typedef struct sheaf_node sheaf_node;
struct sheaf_node {
    sheaf_node_kind kind;
    size_t line;
    const char *key;  /* of a map's member; else NULL */
    const char *text; /* SCALAR: without NUL inside */
    int quoted;       /* SCALAR: "10" is text, 10 is a number */
    size_t count;     /* MAP, LIST: children */
    sheaf_node *first, *last, *next;
};

/* *root is NULL for a text without content. */
SHEAF_MUST_USE sheaf_status sheaf_config_tree_parse(sheaf_config_arena *arena, const char *text, size_t size,
                                                    const char *name, sheaf_node **root, sheaf_problem *problem);
const sheaf_node *sheaf_node_child(const sheaf_node *map, const char *key, size_t key_size);
/* A short, printable copy of what stands in the file, for messages. */
#define SHEAF_CONFIG_SHOWN_BYTES 72u
const char *sheaf_config_shown(const char *text, char out[SHEAF_CONFIG_SHOWN_BYTES]);
