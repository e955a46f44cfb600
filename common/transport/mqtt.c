/* The MQTT carrier: what both ends share, and the table. */
#include <stdio.h>

#include "common/transport/mqtt_ends.h"

#define TOPICS_VERSION "1"

static const char *const ways[] = {"up", "down", "cast"};

sheaf_status sheaf_mqtt_prefix(const sheaf_transport_options *options, char out[SHEAF_MQTT_PREFIX_BYTES],
                               sheaf_problem *problem) {
    const char *prefix =
        options->topic_prefix == NULL || options->topic_prefix[0] == '\0' ? "sheaf" : options->topic_prefix;
    if (!sheaf_name_ok(prefix))
        return sheaf_problem_set(problem, SHEAF_E_USAGE,
                                 "topic prefix '%.100s': expected one level of 1 to 63 of A-Z a-z 0-9 . _ -", prefix);
    (void)snprintf(out, SHEAF_MQTT_PREFIX_BYTES, "%s", prefix);
    return SHEAF_OK;
}

void sheaf_mqtt_topic(const char *prefix, sheaf_mqtt_way way, const char *name, char out[SHEAF_MQTT_TOPIC_BYTES]) {
    (void)snprintf(out, SHEAF_MQTT_TOPIC_BYTES, "%s/" TOPICS_VERSION "/%s/%s", prefix, ways[way], name);
}

const char *sheaf_mqtt_name_in(const char *prefix, sheaf_mqtt_way way, const char *topic) {
    char start[SHEAF_MQTT_TOPIC_BYTES];
    sheaf_mqtt_topic(prefix, way, "", start);
    size_t size = strlen(start);
    return strncmp(topic, start, size) == 0 && sheaf_name_ok(topic + size) ? topic + size : NULL;
}

void sheaf_mqtt_cast_topic(const char *prefix, const uint8_t id[16], char out[SHEAF_MQTT_TOPIC_BYTES]) {
    char name[33];
    sheaf_hex(id, 16, name);
    sheaf_mqtt_topic(prefix, SHEAF_MQTT_CAST, name, out);
}

/* --- who we are --------------------------------------------------------------------------------------------------- */

sheaf_status sheaf_mqtt_party_open(sheaf_mqtt_party *party, const sheaf_tls_options *tls, sheaf_problem *problem) {
    const sheaf_trust_options files = {.ca_path = tls->ca_path};
    sheaf_status status = SHEAF_OK;
    memset(party, 0, sizeof *party);
    party->own_trust = tls->trust == NULL;
    party->own_credentials = tls->credentials == NULL;
    if (party->own_credentials)
        status = sheaf_credentials_open(tls->certificate_path, tls->key_path, &party->credentials, problem);
    else
        party->credentials = sheaf_credentials_ref(tls->credentials);
    if (status == SHEAF_OK && party->own_trust)
        status = sheaf_trust_open(&files, &party->trust, problem);
    else if (status == SHEAF_OK)
        party->trust = sheaf_trust_ref(tls->trust);
    if (status == SHEAF_OK) sheaf_credentials_take(party->credentials, &party->pair);
    return status;
}

static sheaf_status check_peer(const sheaf_certificate *peer, void *context, sheaf_problem *problem) {
    return sheaf_trust_check(context, peer, SHEAF_ROLE_NONE, problem);
}

void sheaf_mqtt_party_take(sheaf_mqtt_party *party, sheaf_session_party *out) {
    if (party->own_trust) (void)sheaf_trust_poll(party->trust);
    if (party->own_credentials) (void)sheaf_credentials_poll(party->credentials);
    sheaf_credentials_pair_fini(&party->pair);
    sheaf_credentials_take(party->credentials, &party->pair);
    *out = (sheaf_session_party){party->pair.certificate, party->pair.signer, check_peer, party->trust};
}

void sheaf_mqtt_party_fini(sheaf_mqtt_party *party) {
    sheaf_credentials_pair_fini(&party->pair);
    sheaf_trust_unref(party->trust);
    sheaf_credentials_unref(party->credentials);
    memset(party, 0, sizeof *party);
}

const sheaf_transport sheaf_transport_mqtt = {
    .name = "mqtt",
    .url_prefix = "mqtts://",
    .open_server = sheaf_mqtt_open_server,
    .server_url = sheaf_mqtt_server_url,
    .stop_server = sheaf_mqtt_stop_server,
    .reply = sheaf_mqtt_reply,
    .cast = sheaf_mqtt_cast,
    .expel = sheaf_mqtt_expel,
    .look = sheaf_mqtt_look,
    .open_link = sheaf_mqtt_open_link,
    .send = sheaf_mqtt_send,
    .receive = sheaf_mqtt_receive,
    .cancel = sheaf_mqtt_cancel,
    .peer = sheaf_mqtt_peer,
    .join = sheaf_mqtt_join,
    .moved = sheaf_mqtt_moved,
    .close = sheaf_mqtt_close,
};
