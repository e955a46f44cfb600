/* mqtt_client.h - one connection to a broker, kept up: both ends of the MQTT carrier are such clients.
 *
 * libmosquitto speaks MQTT 5 here over our own TLS context, one thread a client: its functions are called on that thread
 * only, and so are all callbacks. The thread also answers the broker's keep-alive, whatever the process is busy with.
 * When the connection breaks it comes back by itself, after pauses that grow and have some randomness; another client
 * under the same name makes them long, so that the two do not throw each other out for ever.
 *
 * Owner:   the caller closes, and not in a callback; topics and payloads of callbacks are borrowed for the call.
 * Threads: open, close, join and leave: one thread of the caller's, and the callbacks; post, wake, queued: any.
 * Units:   milliseconds of the monotonic clock; bytes.
 * Errors:  of open: SHEAF_E_USAGE (url), SHEAF_E_MEMORY and those of tls_source.h. A broker that is away is no error.
 * Not:     delivery: what is given to MQTT may be lost (QoS 0). Who needs an answer asks again. */
#pragma once
#include "common/transport/transport.h"

#define SHEAF_MQTT_TOPIC_BYTES 256u /* with the NUL */

typedef struct sheaf_mqtt_client sheaf_mqtt_client;

typedef struct {
    /* The connection is there, and topics are subscribed again. */
    void (*on_connected)(void *context);
    /* An attempt has failed, or (was_connected) what was there broke. */
    void (*on_lost)(void *context, int was_connected, const sheaf_problem *problem);
    void (*on_message)(void *context, const char *topic, sheaf_span payload, int is_retained);
    /* Once in every turn of the thread: to send what is due. Returns when the next turn is due at the latest. */
    uint64_t (*on_turn)(void *context, uint64_t now_ms);
    /* 0: leave what comes in the socket for now, so that the broker has to wait. May be NULL. */
    int (*may_read)(void *context);
    void *context;
} sheaf_mqtt_events;

typedef struct {
    const char *url; /* mqtts://host:port */
    sheaf_tls_options tls;
    uint32_t handshake_ms; /* an attempt that takes longer has failed */
} sheaf_mqtt_client_options;

SHEAF_MUST_USE sheaf_status sheaf_mqtt_client_open(const sheaf_mqtt_client_options *options,
                                                   const sheaf_mqtt_events *events, sheaf_mqtt_client **out,
                                                   sheaf_problem *problem);
/* Sends what is posted, for at most `linger_ms`, and ends. No callback runs afterwards. NULL is fine. */
void sheaf_mqtt_client_close(sheaf_mqtt_client *client, uint32_t linger_ms);
/* Makes the thread take a turn now. */
void sheaf_mqtt_client_wake(sheaf_mqtt_client *client);
/* Publishes as soon as the socket takes it; without a connection it is dropped. Takes `message` (of malloc) over. */
void sheaf_mqtt_client_post(sheaf_mqtt_client *client, const char *topic, uint8_t *message, size_t size);
/* Bytes posted that have not left. */
size_t sheaf_mqtt_client_queued(sheaf_mqtt_client *client);
/* In callbacks: publishes (copied) at once. SHEAF_AGAIN: the socket is full, or there is no connection. What matters is
 * sent again in any case, so the status may be ignored. */
sheaf_status sheaf_mqtt_client_publish(sheaf_mqtt_client *client, const char *topic, sheaf_span message);
/* In callbacks: bytes that the peer's kernel has not acknowledged. */
size_t sheaf_mqtt_client_unsent(const sheaf_mqtt_client *client);

/* Signs of life of the line. They count TLS's bytes in steps of some hundreds, so that a keep-alive is none. */
typedef struct {
    uint64_t sent; /* acknowledged by the peer's kernel */
    uint64_t received;
    size_t arriving; /* since the last whole message: much of it means that a large one is on its way */
} sheaf_mqtt_movement;
/* In callbacks. */
void sheaf_mqtt_client_movement(sheaf_mqtt_client *client, sheaf_mqtt_movement *out);
/* sent + received when it was last looked at; any thread. */
uint64_t sheaf_mqtt_client_moved(sheaf_mqtt_client *client);
/* Subscribes now and after every reconnect. SHEAF_E_MEMORY: too many topics. */
SHEAF_MUST_USE sheaf_status sheaf_mqtt_client_join(sheaf_mqtt_client *client, const char *topic);
void sheaf_mqtt_client_leave(sheaf_mqtt_client *client, const char *topic);
uint64_t sheaf_mqtt_now_ms(void);
