/* config.h - the one config file of sheafd: the service, and its jobs.
 *
 * Owner:   sheafd_config owns what it points to; free with sheafd_config_free.
 * Threads: read-only once loaded.
 * Errors:  SHEAF_E_CONFIG with file, line, key and what was expected.
 * Reference: `sheafd --help-config` prints every key; docs/CONFIG.md explains. */
#pragma once
#include "common/log_config.h"
#include "proto/plan.h"

typedef struct {
    const char *tenant;
    const char *name;
    const char *initial_model; /* safetensors; read once, when the job is created */
    uint32_t rounds;
    uint32_t attempts_max; /* a round that fails so often in a row ends the job */
    struct {
        uint32_t minimum, target, maximum;
    } cohort;
    struct {
        uint32_t epochs, batch;
        double learning_rate, momentum;
        uint64_t seed;
        int encoding; /* index into the choices */
    } plan;
    int64_t weight_cap;
    int64_t fraction_bits;                  /* of every tensor that the map does not name */
    sheaf_config_list tensor_fraction_bits; /* sheaf_config_pair: tensor name, bits */
    sheaf_config_list regions;              /* const char *: of certificates that may take part; empty: any */
    uint32_t progress_s;
    uint32_t deadline_s; /* 0: none */
    struct {
        uint32_t payload_rounds; /* released rounds whose payloads are kept */
        uint32_t models;         /* newest versions that are kept; 0 = all */
    } retain;
} sheafd_job_config;

typedef struct {
    struct {
        const char *listen, *state, *certificate, *key, *ca;
        int tls12_profile;
        uint32_t workers;
        int exit_when_done;
        const char *crl; /* NULL: nobody is revoked */
        int crl_expired; /* sheaf_crl_policy */
        uint32_t crl_grace_s, crl_warn_s;
    } server;
    struct {
        const char *url, *topic_prefix;
    } broker;
    struct {
        const char *listen; /* https://HOST:PORT; "": only the socket in the state folder */
    } operator;
    struct {
        const char *authority; /* folder; NULL: nobody is enrolled here */
        uint32_t days;
    } enrolment;
    struct {
        uint64_t chunk_bytes, spool_bytes, model_bytes;
        uint32_t exchanges, connections, uploads, handshake_ms;
        uint32_t client_requests_per_s, client_uploads; /* of one device, as are the next two */
        uint64_t client_bytes_per_s, client_in_flight_bytes;
    } limits;
    sheaf_log_config log;
    sheaf_config_list jobs; /* sheafd_job_config */
    sheaf_config *source;
} sheafd_config;

SHEAF_MUST_USE sheaf_status sheafd_config_load(const char *path, sheafd_config *out, sheaf_problem *problem);
void sheafd_config_free(sheafd_config *config);
void sheafd_config_print_reference(void *stream /* FILE * */);

/* The plan of a job as it is signed. */
sheaf_plan sheafd_job_plan(const sheafd_job_config *job);
