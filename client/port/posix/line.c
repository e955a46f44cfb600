#include "client/port/posix/line.h"

#include <stdlib.h>

#define HANDSHAKE_MS 10000u
#define WINDOW       2u
#define LOOK_MS      1000u

/* ---- the core's transport ---- */

static sheaf_status line_send(const uint8_t *frame, size_t size, void *context) {
    sheaf_line *line = context;
    return line->carrier->send(line->link, sheaf_span_of(frame, size));
}

static sheaf_status line_receive(uint8_t *frame, size_t capacity, size_t *size, void *context) {
    sheaf_line *line = context;
    sheaf_buffer out = {frame, 0, capacity};
    if (line->is_replaced) {
        line->is_replaced = 0;
        return sheaf_problem_set(&line->problem, SHEAF_E_NETWORK, "connecting anew: certificate files have changed");
    }
    sheaf_status status = line->carrier->receive(line->link, &out, &line->problem);
    *size = out.size;
    return status;
}

static void line_cancel(void *context) {
    sheaf_line *line = context;
    line->is_replaced = 0;
    line->carrier->cancel(line->link);
}

static sheaf_status line_peer(uint8_t fingerprint[SHEAF_EDGE_DIGEST_BYTES], void *context) {
    sheaf_line *line = context;
    sheaf_certificate *peer = line->carrier->peer(line->link);
    if (peer == NULL) {
        return sheaf_problem_set(&line->problem, SHEAF_E_CERTIFICATE, "the aggregator has shown no certificate");
    }
    const sheaf_identity *identity = sheaf_certificate_identity(peer);
    if (identity->role != SHEAF_ROLE_AGGREGATOR) {
        return sheaf_problem_set(&line->problem, SHEAF_E_ROLE, "the peer \"%s\" is no aggregator but has the role %s",
                                 identity->name, sheaf_role_name(identity->role));
    }
    memcpy(fingerprint, sheaf_certificate_fingerprint(peer), SHEAF_EDGE_DIGEST_BYTES);
    return SHEAF_OK;
}

static uint64_t line_moved(void *context) {
    sheaf_line *line = context;
    return line->carrier->moved(line->link);
}

static sheaf_status line_join(const uint8_t id[SHEAF_EDGE_GROUP_BYTES], const uint8_t key[SHEAF_EDGE_GROUP_BYTES],
                              void *context) {
    sheaf_line *line = context;
    sheaf_cast_group group;
    if (id == NULL) return line->carrier->join(line->link, NULL);
    memcpy(group.id, id, sizeof group.id);
    memcpy(group.key, key, sizeof group.key);
    sheaf_status status = line->carrier->join(line->link, &group);
    sheaf_wipe(&group, sizeof group);
    return status;
}

sheaf_edge_transport sheaf_line_transport(sheaf_line *line) {
    const sheaf_transport *carrier = line->carrier;
    sheaf_edge_transport transport = {line_send,
                                      line_receive,
                                      line_cancel,
                                      line_peer,
                                      carrier->join != NULL ? line_join : NULL,
                                      carrier->moved != NULL ? line_moved : NULL,
                                      line};
    return transport;
}

/* ---- the core's signer ---- */

static sheaf_status own_fingerprint(uint8_t out[SHEAF_EDGE_DIGEST_BYTES], void *context) {
    const sheaf_line *line = context;
    memcpy(out, sheaf_certificate_fingerprint(line->pair.certificate), SHEAF_EDGE_DIGEST_BYTES);
    return SHEAF_OK;
}

static sheaf_status sign(const uint8_t *message, size_t message_size, uint8_t *signature, size_t *size, void *context) {
    sheaf_line *line = context;
    sheaf_buffer out = {signature, 0, *size};
    sheaf_status status = sheaf_signer_sign(line->pair.signer, sheaf_span_of(message, message_size), &out);
    *size = out.size;
    return status;
}

static sheaf_status verify_peer(const uint8_t *message, size_t message_size, const uint8_t *signature, size_t size,
                                void *context) {
    sheaf_line *line = context;
    sheaf_certificate *peer = line->carrier->peer(line->link);
    if (peer == NULL) return SHEAF_E_CERTIFICATE;
    return sheaf_certificate_verify(peer, sheaf_span_of(message, message_size), sheaf_span_of(signature, size));
}

sheaf_edge_signer sheaf_line_signer(sheaf_line *line) {
    sheaf_edge_signer signer = {own_fingerprint, sign, verify_peer, line};
    return signer;
}

/* ---- open, look, close ---- */

/* A copy of `text` that the line owns; NULL stays NULL. */
static sheaf_status keep(sheaf_line *line, size_t place, const char *text, const char **out) {
    *out = NULL;
    if (text == NULL) return SHEAF_OK;
    *out = line->texts[place] = strdup(text);
    return *out != NULL ? SHEAF_OK : SHEAF_E_MEMORY;
}

static sheaf_status copy_options(sheaf_line *line, const sheaf_edge_device_options *options, size_t frame_bytes,
                                 sheaf_problem *problem) {
    sheaf_transport_options *out = &line->options;
    sheaf_status status = keep(line, 0, options->url, &out->url);
    if (status == SHEAF_OK) status = keep(line, 1, options->certificate_path, &out->tls.certificate_path);
    if (status == SHEAF_OK) status = keep(line, 2, options->key_path, &out->tls.key_path);
    if (status == SHEAF_OK) status = keep(line, 3, options->ca_path, &out->tls.ca_path);
    if (status == SHEAF_OK) status = keep(line, 4, options->server_name, &out->tls.server_name);
    if (status == SHEAF_OK) status = keep(line, 5, options->topic_prefix, &out->topic_prefix);
    if (status != SHEAF_OK) return sheaf_problem_set(problem, status, "no memory for the connection's settings");
    out->tls.tls12_profile = options->tls12_profile;
    out->tls.trust = line->trust;
    out->tls.credentials = line->credentials;
    out->frame_bytes_max = (uint32_t)frame_bytes;
    out->handshake_ms = options->handshake_ms != 0 ? options->handshake_ms : HANDSHAKE_MS;
    out->window = options->window != 0 ? options->window : WINDOW;
    out->exchanges_max = out->connections_max = 1;
    return SHEAF_OK;
}

static sheaf_status open_identity(sheaf_line *line, const sheaf_edge_device_options *options, sheaf_problem *problem) {
    const sheaf_trust_options files = {.ca_path = options->ca_path,
                                       .crl_path = options->crl_path,
                                       .crl_expired = SHEAF_CRL_ACCEPT,
                                       .crl_grace_s = SHEAF_CRL_GRACE_S,
                                       .crl_warn_s = SHEAF_CRL_WARN_S};
    sheaf_status status =
        sheaf_credentials_open(options->certificate_path, options->key_path, &line->credentials, problem);
    if (status != SHEAF_OK) return status;
    sheaf_credentials_take(line->credentials, &line->pair);
    const sheaf_identity *identity = sheaf_certificate_identity(line->pair.certificate);
    if (identity->role != SHEAF_ROLE_DEVICE) {
        return sheaf_problem_set(problem, SHEAF_E_ROLE, "%s: is the certificate of a role \"%s\", not of a device",
                                 options->certificate_path, sheaf_role_name(identity->role));
    }
    return sheaf_trust_open(&files, &line->trust, problem);
}

sheaf_status sheaf_line_open(sheaf_line *line, const sheaf_edge_device_options *options, size_t frame_bytes,
                             sheaf_problem *problem) {
    memset(line, 0, sizeof *line);
    line->carrier = sheaf_transport_for(options->url);
    if (line->carrier == NULL) {
        return sheaf_problem_set(problem, SHEAF_E_USAGE,
                                 "url: \"%s\" has no known carrier; expected tls+tcp://host:port or mqtts://host:port",
                                 options->url);
    }
    sheaf_status status = open_identity(line, options, problem);
    if (status == SHEAF_OK) status = copy_options(line, options, frame_bytes, problem);
    if (status == SHEAF_OK) status = line->carrier->open_link(&line->options, &line->link, problem);
    return status;
}

/* The old link stays when there can be no new one: the next look tries again. */
static void replace_link(sheaf_line *line) {
    sheaf_link *link = NULL;
    if (line->carrier->open_link(&line->options, &link, &line->problem) != SHEAF_OK) {
        line->look_ms = 0;
        return;
    }
    line->carrier->close(line->link);
    line->link = link;
    line->is_replaced = 1;
    sheaf_credentials_pair_fini(&line->pair);
    sheaf_credentials_take(line->credentials, &line->pair);
}

void sheaf_line_poll(sheaf_line *line, uint64_t now_ms) {
    if (now_ms < line->look_ms) return;
    line->look_ms = now_ms + LOOK_MS;
    int trust_changed = sheaf_trust_poll(line->trust);
    (void)sheaf_credentials_poll(line->credentials);
    if (trust_changed || sheaf_credentials_generation(line->credentials) != line->pair.generation) replace_link(line);
}

void sheaf_line_close(sheaf_line *line) {
    if (line->carrier != NULL) line->carrier->close(line->link);
    sheaf_credentials_pair_fini(&line->pair);
    sheaf_credentials_unref(line->credentials);
    sheaf_trust_unref(line->trust);
    for (size_t i = 0; i < sizeof line->texts / sizeof line->texts[0]; i++) free(line->texts[i]);
    memset(line, 0, sizeof *line);
}
