#include "client/daemon/config.h"

#include <string.h>

#define EDGE(member) (offsetof(edge_config, edge.member) - offsetof(edge_config, edge))
static const sheaf_config_field edge_fields[] = {
    {.key = "url",
     .kind = SHEAF_CONFIG_STRING,
     .offset = EDGE(url),
     .required = 1,
     .help = "The aggregator, as tls+tcp://host:port; or the MQTT broker before it, as mqtts://host:port."},
    {.key = "topic_prefix",
     .kind = SHEAF_CONFIG_NAME,
     .offset = EDGE(topic_prefix),
     .preset = "sheaf",
     .help = "mqtts: first level of all topics, as the aggregator has it."},
    {.key = "job", .kind = SHEAF_CONFIG_NAME, .offset = EDGE(job), .required = 1, .help = "The job to take part in."},
    {.key = "tenant",
     .kind = SHEAF_CONFIG_NAME,
     .offset = EDGE(tenant),
     .help = "Whose job it is; when absent, the tenant in the certificate, which it must equal."},
    {.key = "state",
     .kind = SHEAF_CONFIG_PATH,
     .offset = EDGE(state),
     .required = 1,
     .help = "Folder for the model, the update and the state of this device in this job."},
    {.key = "certificate",
     .kind = SHEAF_CONFIG_PATH,
     .offset = EDGE(certificate),
     .required = 1,
     .help = "The device's certificate, PEM; it says the device's name."},
    {.key = "key",
     .kind = SHEAF_CONFIG_PATH,
     .offset = EDGE(key),
     .required = 1,
     .help = "Its private key, PEM, readable by its owner only."},
    {.key = "ca",
     .kind = SHEAF_CONFIG_PATH,
     .offset = EDGE(ca),
     .required = 1,
     .help = "Authorities that the aggregator must chain to, PEM."},
    {.key = "crl",
     .kind = SHEAF_CONFIG_PATH,
     .offset = EDGE(crl),
     .help = "Their revocation lists, PEM; when absent, no aggregator is revoked."},
    {.key = "server_name",
     .kind = SHEAF_CONFIG_STRING,
     .offset = EDGE(server_name),
     .help = "Name or address that the aggregator's certificate must hold; when absent, the url's."},
    {.key = "tls12_profile",
     .kind = SHEAF_CONFIG_BOOL,
     .offset = EDGE(tls12_profile),
     .preset = "false",
     .help = "Also speak TLS 1.2 (P-256, AES-GCM)."},
    {.key = "exit_when_done",
     .kind = SHEAF_CONFIG_BOOL,
     .offset = EDGE(exit_when_done),
     .preset = "false",
     .help = "End the process when the job has ended; otherwise ask once a minute whether it goes on."},
    {0},
};
#define TRAINER(member) (offsetof(edge_config, trainer.member) - offsetof(edge_config, trainer))
static const sheaf_config_field trainer_fields[] = {
    {.key = "use",
     .kind = SHEAF_CONFIG_STRING,
     .offset = TRAINER(use),
     .preset = "builtin",
     .help = "builtin, or exec:PROGRAM ARGUMENTS for a program of your own (docs/TRAINERS.md)."},
    {.key = "network",
     .kind = SHEAF_CONFIG_PATH,
     .offset = TRAINER(network),
     .help = "builtin: the network's description."},
    {.key = "data",
     .kind = SHEAF_CONFIG_PATH,
     .offset = TRAINER(data),
     .help = "builtin: the examples, a CSV table or an IDX file of images."},
    {.key = "labels",
     .kind = SHEAF_CONFIG_PATH,
     .offset = TRAINER(labels),
     .help = "builtin: the IDX file of labels; when absent, data is a CSV table."},
    {.key = "label",
     .kind = SHEAF_CONFIG_STRING,
     .offset = TRAINER(label),
     .preset = "label",
     .help = "builtin: the CSV table's column of labels."},
    {.key = "time_limit_s",
     .kind = SHEAF_CONFIG_U32,
     .offset = TRAINER(time_limit_s),
     .preset = "86400",
     .minimum = 1,
     .maximum = 2592000,
     .help = "exec: longest training of a round; the program is killed then."},
    {.key = "result_bytes",
     .kind = SHEAF_CONFIG_BYTES,
     .offset = TRAINER(result_bytes),
     .preset = "4GiB",
     .minimum = 1024,
     .help = "exec: largest file that the program may give back."},
    {0},
};
#define LIMIT(member) (offsetof(edge_config, limits.member) - offsetof(edge_config, limits))
static const sheaf_config_field limit_fields[] = {
    {.key = "chunk_bytes",
     .kind = SHEAF_CONFIG_BYTES,
     .offset = LIMIT(chunk_bytes),
     .preset = "256KiB",
     .minimum = 1024,
     .maximum = 16777216,
     .help = "Bulk bytes in one frame."},
    {.key = "handshake_ms",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(handshake_ms),
     .preset = "10000",
     .minimum = 100,
     .maximum = 600000,
     .help = "A connection that has not finished its handshake by then is cut."},
    {.key = "reply_ms",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(reply_ms),
     .preset = "30000",
     .minimum = 100,
     .maximum = 3600000,
     .help = "Silence of the aggregator, while replies are owed, after which requests are sent again."},
    {.key = "window",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(window),
     .preset = "2",
     .minimum = 1,
     .maximum = 32,
     .help = "Chunks on their way at a time; more helps on lines that are fast and long."},
    {0},
};
static const sheaf_config_field top_fields[] = {
    {.key = "edge",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(edge_config, edge),
     .required = 1,
     .fields = edge_fields,
     .help = "This device and its aggregator."},
    {.key = "trainer",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(edge_config, trainer),
     .fields = trainer_fields,
     .help = "What trains here, and on what."},
    {.key = "limits",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(edge_config, limits),
     .fields = limit_fields,
     .help = "Everything has one."},
    {.key = "log",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(edge_config, log),
     .fields = sheaf_log_config_fields,
     .help = "What is told about it."},
    {0},
};

sheaf_status edge_config_load(const char *path, edge_config *out, sheaf_problem *problem) {
    sheaf_config *source = NULL;
    sheaf_status status = sheaf_config_load(path, top_fields, out, sizeof *out, &source, problem);
    if (status != SHEAF_OK) return status;
    out->source = source;
    return SHEAF_OK;
}

const char *edge_config_program(const edge_config *config) {
    static const char prefix[] = "exec:";
    size_t size = sizeof prefix - 1;
    return strncmp(config->trainer.use, prefix, size) == 0 ? config->trainer.use + size : NULL;
}

sheaf_status edge_config_check_trainer(const edge_config *config, sheaf_problem *problem) {
    const char *where = sheaf_config_where(config->source, "trainer");
    if (edge_config_program(config) != NULL) return SHEAF_OK;
    if (strcmp(config->trainer.use, "builtin") != 0) {
        return sheaf_problem_set(problem, SHEAF_E_CONFIG,
                                 "%s: trainer.use: \"%s\"; expected builtin or exec:PROGRAM ARGUMENTS", where,
                                 config->trainer.use);
    }
    if (config->trainer.network != NULL && config->trainer.data != NULL) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_CONFIG, "%s: trainer.%s: missing; the built-in trainer needs it", where,
                             config->trainer.network == NULL ? "network" : "data");
}

void edge_config_free(edge_config *config) {
    sheaf_config_free(config->source);
    memset(config, 0, sizeof *config);
}

void edge_config_print_reference(void *stream) { sheaf_config_print_reference(top_fields, stream); }
