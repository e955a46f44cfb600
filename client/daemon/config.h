/* config.h - the config file of sheaf-edge.
 *
 * Owner:   edge_config_free releases every string.
 * Threads: one.
 * Errors:  SHEAF_E_CONFIG with file, line, key and what was expected; SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION. */
#pragma once
#include "common/log_config.h"

typedef struct {
    struct {
        const char *url, *topic_prefix, *state, *certificate, *key, *ca, *crl, *server_name, *tenant, *job;
        int tls12_profile;
        int exit_when_done;
    } edge;
    struct {
        const char *use; /* "builtin" or "exec:PROGRAM ARGUMENTS" */
        const char *network, *data, *labels, *label;
        uint32_t time_limit_s;
        uint64_t result_bytes;
    } trainer;
    struct {
        uint64_t chunk_bytes;
        uint32_t handshake_ms, reply_ms, window;
    } limits;
    sheaf_log_config log;
    sheaf_config *source;
} edge_config;

SHEAF_MUST_USE sheaf_status edge_config_load(const char *path, edge_config *out, sheaf_problem *problem);
/* Is `trainer.use` usable, and are the keys there that it needs? After the command line has had its say. */
SHEAF_MUST_USE sheaf_status edge_config_check_trainer(const edge_config *config, sheaf_problem *problem);
/* The program part of "exec:PROGRAM ARGUMENTS", or NULL. */
const char *edge_config_program(const edge_config *config);
void edge_config_free(edge_config *config);
void edge_config_print_reference(void *stream /* FILE * */);
