/* mqtt_sessions.h - the aggregator's tables of handshakes and sessions, with their limits.
 *
 * Devices choose session ids, so everything is found by device (the topic's level) and id. Limits: connections_max
 * sessions, SHEAF_MQTT_SESSIONS_PER_PEER of one device, of which the oldest goes; SHEAF_MQTT_CHALLENGES_MAX handshakes, two
 * of one device, likewise. When all sessions are in use, one that was silent for long makes room.
 *
 * Owner:   the server; a session is reference counted, as exchanges outlive it.
 * Threads: with the server's lock held; `down` of a session has a lock of its own.
 * Units:   milliseconds of the monotonic clock.
 * Errors:  NULL for what is not there.
 * Not:     messages; those are mqtt_server's. */
#pragma once
#include <pthread.h>

#include "common/transport/aggregator_session.h"

#define SHEAF_MQTT_SESSIONS_PER_PEER   4u
#define SHEAF_MQTT_CHALLENGES_MAX      2048u /* a crowd comes at once when a broker comes back */
#define SHEAF_MQTT_CHALLENGES_PER_PEER 4u
#define SHEAF_MQTT_BUCKETS             1024u

typedef struct sheaf_mqtt_session sheaf_mqtt_session;
struct sheaf_mqtt_session {
    sheaf_mqtt_session *next_in_bucket, *next, *previous; /* `next`: less recently used */
    unsigned references;
    char device[SHEAF_NAME_BYTES];
    sheaf_aggregator_session sealed; /* unseal: the client's thread */
    pthread_mutex_t down;            /* held while a reply is sealed */
    uint64_t used_ms, order;
    int ended; /* nothing is sent or handed over any more */

    sheaf_exchange *handling;        /* what the handler has */
    sheaf_exchange *waiting, **last; /* what comes after it, in order */
    unsigned waiting_count;
    sheaf_mqtt_session *next_ready; /* in the server's list of those with something to hand over */
    int is_ready;
};

typedef struct sheaf_mqtt_challenge sheaf_mqtt_challenge;
struct sheaf_mqtt_challenge {
    sheaf_mqtt_challenge *next; /* older */
    uint64_t until_ms;
    uint8_t open[SHEAF_ENVELOPE_OPEN_BYTES_MAX]; /* OPEN, and the CHALLENGE that it got: a repeat gets the same again */
    size_t open_size;
    uint8_t *said;
    size_t said_size;
    sheaf_session_challenge made;
};

typedef struct {
    sheaf_mqtt_session *buckets[SHEAF_MQTT_BUCKETS];
    sheaf_mqtt_session *newest, *oldest; /* by use */
    unsigned count;
    uint64_t orders;
    sheaf_mqtt_challenge *challenges;
} sheaf_mqtt_sessions;

sheaf_mqtt_session *sheaf_mqtt_sessions_find(sheaf_mqtt_sessions *all, const char *device, const uint8_t id[16]);
/* Marks it as used now. */
void sheaf_mqtt_sessions_touch(sheaf_mqtt_sessions *all, sheaf_mqtt_session *session, uint64_t now_ms);
/* Takes the sealed session over, also when there is no memory (NULL). */
sheaf_mqtt_session *sheaf_mqtt_sessions_add(sheaf_mqtt_sessions *all, const char *device,
                                            sheaf_aggregator_session *sealed, uint64_t now_ms);
/* The one of this device that must go before another may come, or NULL. */
sheaf_mqtt_session *sheaf_mqtt_sessions_surplus(const sheaf_mqtt_sessions *all, const char *device);
/* Takes it out of the table and drops the table's reference. */
void sheaf_mqtt_sessions_remove(sheaf_mqtt_sessions *all, sheaf_mqtt_session *session);
void sheaf_mqtt_session_unref(sheaf_mqtt_session *session);

/* The one that this very OPEN got already, or NULL. Crowds repeat theirs while they stand in the queue: a challenge for
 * each would make the queue longer, and push out those that are being answered. */
const sheaf_mqtt_challenge *sheaf_mqtt_challenges_find(const sheaf_mqtt_sessions *all, const char *device,
                                                       sheaf_span open, uint64_t now_ms);
/* Takes the challenge over, with its `said` (of malloc). */
void sheaf_mqtt_challenges_add(sheaf_mqtt_sessions *all, sheaf_mqtt_challenge *challenge, uint64_t now_ms);
/* Tries `message` on each challenge of this device and session, until one fits; as sheaf_aggregator_session_admit. */
sheaf_status sheaf_mqtt_challenges_admit(sheaf_mqtt_sessions *all, const char *device, const uint8_t id[16],
                                         const sheaf_session_party *own, sheaf_span message,
                                         sheaf_aggregator_session *session, sheaf_buffer *out, sheaf_problem *problem);
/* One that is in no table; NULL is fine. */
void sheaf_mqtt_challenge_free(sheaf_mqtt_challenge *challenge);
void sheaf_mqtt_challenges_clear(sheaf_mqtt_sessions *all);
