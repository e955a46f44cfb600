/* mqtt_aggregator.h - what the two halves of the aggregator's end over MQTT share: mqtt_server.c, which moves frames, and
 * mqtt_admission.c, which lets devices in.
 *
 * Owner:   a server owns its sessions and challenges.
 * Threads: take_open and take_session on the client's thread, without the lock; of the others each says it.
 * Units:   milliseconds of the monotonic clock; bytes.
 * Errors:  none: a message that is refused is answered by a REJECT and reported.
 * Not:     for anybody else. */
#pragma once
#include "common/transport/mqtt_ends.h"
#include "common/transport/mqtt_sessions.h"

struct sheaf_exchange {
    sheaf_exchange *next; /* of those that wait */
    sheaf_server *server;
    sheaf_mqtt_session *session;
    sheaf_certificate *peer;
    uint64_t sequence;
    size_t size, capacity;
    uint8_t request[];
};

struct sheaf_server {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sheaf_mqtt_client *client;
    sheaf_mqtt_party party;
    char *url;
    char prefix[SHEAF_MQTT_PREFIX_BYTES];
    uint32_t frame_bytes_max, exchanges_max, connections_max, handshake_ms;
    sheaf_request_handler on_request;
    sheaf_reject_handler on_reject;
    void *context;

    sheaf_mqtt_sessions sessions;
    sheaf_mqtt_session *ready, **last_ready;
    sheaf_exchange *spares; /* of the largest size: pages that the kernel need not clear anew for each frame */
    unsigned spares_count;
    unsigned held, handling; /* frames; those in the handler */
    unsigned references;     /* exchanges that are out, and the server itself */
    uint64_t held_back_ms;   /* since when nothing is read; 0: it is */
    int stopping, replying;  /* replies under way */
    int is_connected;
    uint64_t retained;
    sheaf_cast_key cast_key; /* of the last cast */
    sheaf_cast_group cast_group;
    int has_cast_key;
    pthread_mutex_t casting;
};

/* Tells the owner that something of this device was refused. Called without the lock. */
void sheaf_mqtt_server_report(sheaf_server *server, const char *device, sheaf_status reason, const char *text);
/* Sends a message to the device's topic, and takes it (of malloc) over. With the lock or without. */
void sheaf_mqtt_server_post(sheaf_server *server, const char *device, uint8_t *message, size_t size);
void sheaf_mqtt_server_reject(sheaf_server *server, const char *device, const uint8_t id[SHEAF_SESSION_ID_BYTES],
                              sheaf_status reason);
/* Drops the requests that wait behind the one in the handler. With the lock. */
void sheaf_mqtt_server_drop_waiting(sheaf_mqtt_session *session);
/* Takes a session out of everything; the requests that wait go with it. With the lock. */
void sheaf_mqtt_server_end_session(sheaf_server *server, sheaf_mqtt_session *session);

void sheaf_mqtt_take_open(sheaf_server *server, const char *device, const sheaf_envelope_head *head, sheaf_span message,
                          uint64_t now);
void sheaf_mqtt_take_session(sheaf_server *server, const char *device, const sheaf_envelope_head *head,
                             sheaf_span message, uint64_t now);
