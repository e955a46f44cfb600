#include "common/pki/broker_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/file.h"
#include "common/name.h"

#define CONFIG_BYTES_MAX 24576u

/* Without use_username_as_clientid any good certificate could take over another's client id, and without %u in the access
 * list write in another's topic. The limits bound what a device can make the broker hold: packets, and messages that wait
 * for somebody who does not read. No memory_limit: a broker at its limit never lets a queue drain. */
static const char config_form[] = "# Written by sheaf pki broker-config; see examples/broker/README.md.\n"
                                  "listener %d %.*s\n"
                                  "cafile %s\n"
                                  "certfile %s\n"
                                  "keyfile %s\n"
                                  "%s%s%s"
                                  "tls_version tlsv1.3\n"
                                  "require_certificate true\n"
                                  "use_identity_as_username true\n"
                                  "use_username_as_clientid true\n"
                                  "allow_anonymous false\n"
                                  "acl_file %s/acl\n"
                                  "set_tcp_nodelay true\n"
                                  "max_packet_size 16842752\n"
                                  "max_queued_messages 1000\n"
                                  "max_queued_bytes 16777216\n"
                                  "max_inflight_messages 20\n"
                                  "max_connections 4096\n"
                                  "retain_available false\n"
                                  "persistence false\n"
                                  "log_dest stderr\n"
                                  "log_type error\n"
                                  "log_type warning\n"
                                  "log_type notice\n";

static const char acl_form[] = "# Written by sheaf pki broker-config. %%u is the name in a client's certificate.\n"
                               "user %s\n"
                               "topic read %s/1/up/+\n"
                               "topic write %s/1/down/+\n"
                               "topic write %s/1/cast/+\n"
                               "\n"
                               "pattern write %s/1/up/%%u\n"
                               "pattern read %s/1/down/%%u\n"
                               "pattern read %s/1/cast/+\n";

static sheaf_status write_text(const char *folder, const char *name, const char *text, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES], draft[SHEAF_PATH_BYTES + 4];
    int fd = -1;
    sheaf_status status = sheaf_path_join(path, folder, name, problem);
    if (status != SHEAF_OK) return status;
    (void)snprintf(draft, sizeof draft, "%s.new", path);
    status = sheaf_file_create(draft, 0644, &fd, problem);
    if (status != SHEAF_OK) return status;
    status = sheaf_file_write_at(fd, sheaf_span_of(text, strlen(text)), 0, draft, problem);
    close(fd);
    return status == SHEAF_OK ? sheaf_file_swap(draft, path, problem) : status;
}

static sheaf_status check(const sheaf_broker_options *options, const char *colon, const char *prefix,
                          sheaf_problem *problem) {
    if (colon == NULL || colon == options->listen || strtol(colon + 1, NULL, 10) < 1 ||
        strtol(colon + 1, NULL, 10) > 65535)
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "'%.200s' is not HOST:PORT", options->listen);
    if (!sheaf_name_ok(options->aggregator) || !sheaf_name_ok(prefix))
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "'%.100s' or '%.100s' is no name", options->aggregator,
                                 prefix);
    return SHEAF_OK;
}

sheaf_status sheaf_broker_files_write(const sheaf_broker_options *options, const char *folder, sheaf_problem *problem) {
    const char *colon = strrchr(options->listen, ':');
    const char *prefix = options->topic_prefix != NULL ? options->topic_prefix : "sheaf";
    sheaf_status status = check(options, colon, prefix, problem);
    if (status == SHEAF_OK) status = sheaf_file_make_folder(folder, problem);
    char *text = malloc(CONFIG_BYTES_MAX);
    if (status == SHEAF_OK && text == NULL) status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory");
    if (status == SHEAF_OK) {
        (void)snprintf(text, CONFIG_BYTES_MAX, config_form, (int)strtol(colon + 1, NULL, 10),
                       (int)(colon - options->listen), options->listen, options->ca, options->certificate, options->key,
                       options->crl != NULL ? "crlfile " : "", options->crl != NULL ? options->crl : "",
                       options->crl != NULL ? "\n" : "", folder);
        status = write_text(folder, "mosquitto.conf", text, problem);
    }
    if (status == SHEAF_OK) {
        (void)snprintf(text, CONFIG_BYTES_MAX, acl_form, options->aggregator, prefix, prefix, prefix, prefix, prefix,
                       prefix);
        status = write_text(folder, "acl", text, problem);
    }
    free(text);
    return status;
}
