/* mqtt_ends.h - what the two ends of the MQTT carrier share: topics, who we are, and the functions that mqtt.c lists.
 *
 * Owner:   a party is the caller's memory; _fini is fine on a zeroed one.
 * Threads: a party: one at a time. The functions: as transport.h says.
 * Errors:  as transport.h says.
 * Not:     the wire format; that is envelope.h, and proto/WIRE.md, "Topics". */
#pragma once
#include "common/credentials.h"
#include "common/transport/envelope.h"
#include "common/transport/mqtt_client.h"
#include "common/trust.h"

#define SHEAF_MQTT_PREFIX_BYTES 64u /* of the first topic level, with the NUL */

typedef enum { SHEAF_MQTT_UP, SHEAF_MQTT_DOWN, SHEAF_MQTT_CAST } sheaf_mqtt_way;

/* The prefix as options give it, checked: one level of letters as in names. */
SHEAF_MUST_USE sheaf_status sheaf_mqtt_prefix(const sheaf_transport_options *options, char out[SHEAF_MQTT_PREFIX_BYTES],
                                              sheaf_problem *problem);
/* PREFIX/1/up/NAME and so on. */
void sheaf_mqtt_topic(const char *prefix, sheaf_mqtt_way way, const char *name, char out[SHEAF_MQTT_TOPIC_BYTES]);
/* NAME of PREFIX/1/WAY/NAME if the topic is of this prefix and way and NAME may be one, else NULL. Borrowed. */
const char *sheaf_mqtt_name_in(const char *prefix, sheaf_mqtt_way way, const char *topic);
/* The group's level in cast topics. */
void sheaf_mqtt_cast_topic(const char *prefix, const uint8_t id[16], char out[SHEAF_MQTT_TOPIC_BYTES]);

/* Who we are and whom we believe, for handshakes inside topics. */
typedef struct {
    sheaf_trust *trust;
    sheaf_credentials *credentials;
    int own_trust, own_credentials; /* nobody else looks after their files */
    sheaf_credentials_pair pair;    /* of the handshake under way */
} sheaf_mqtt_party;

SHEAF_MUST_USE sheaf_status sheaf_mqtt_party_open(sheaf_mqtt_party *party, const sheaf_tls_options *tls,
                                                  sheaf_problem *problem);
/* What is in force now; *out borrows from the party until the next call. */
void sheaf_mqtt_party_take(sheaf_mqtt_party *party, sheaf_session_party *out);
void sheaf_mqtt_party_fini(sheaf_mqtt_party *party);

SHEAF_MUST_USE sheaf_status sheaf_mqtt_open_server(const sheaf_transport_options *options,
                                                   sheaf_request_handler on_request, sheaf_reject_handler on_reject,
                                                   void *context, sheaf_server **out, sheaf_problem *problem);
const char *sheaf_mqtt_server_url(const sheaf_server *server);
void sheaf_mqtt_stop_server(sheaf_server *server);
void sheaf_mqtt_reply(sheaf_exchange *exchange, sheaf_span frame);
SHEAF_MUST_USE sheaf_status sheaf_mqtt_cast(sheaf_server *server, const sheaf_cast_group *group, uint64_t sequence,
                                            sheaf_span frame);
unsigned sheaf_mqtt_expel(sheaf_server *server, int (*unwanted)(void *context, const sheaf_certificate *peer),
                          void *context);
/* Ready: connected to the broker, and the subscription is sent. Strangers: handshakes that are not finished. */
void sheaf_mqtt_look(sheaf_server *server, sheaf_server_report *out);

SHEAF_MUST_USE sheaf_status sheaf_mqtt_open_link(const sheaf_transport_options *options, sheaf_link **out,
                                                 sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_mqtt_send(sheaf_link *link, sheaf_span frame);
SHEAF_MUST_USE sheaf_status sheaf_mqtt_receive(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem);
void sheaf_mqtt_cancel(sheaf_link *link);
sheaf_certificate *sheaf_mqtt_peer(sheaf_link *link);
uint64_t sheaf_mqtt_moved(sheaf_link *link);
SHEAF_MUST_USE sheaf_status sheaf_mqtt_join(sheaf_link *link, const sheaf_cast_group *group);
void sheaf_mqtt_close(sheaf_link *link);
