#include "common/transport/mqtt_sessions.h"

#include <stdio.h>
#include <stdlib.h>

static sheaf_mqtt_session **bucket_of(sheaf_mqtt_sessions *all, const uint8_t id[16]) {
    return &all->buckets[sheaf_load_u32(id) % SHEAF_MQTT_BUCKETS];
}

sheaf_mqtt_session *sheaf_mqtt_sessions_find(sheaf_mqtt_sessions *all, const char *device, const uint8_t id[16]) {
    sheaf_mqtt_session *session = *bucket_of(all, id);
    while (session != NULL &&
           (memcmp(session->sealed.id, id, SHEAF_SESSION_ID_BYTES) != 0 || strcmp(session->device, device) != 0))
        session = session->next_in_bucket;
    return session;
}

static void unlink_use(sheaf_mqtt_sessions *all, sheaf_mqtt_session *session) {
    *(session->previous != NULL ? &session->previous->next : &all->newest) = session->next;
    *(session->next != NULL ? &session->next->previous : &all->oldest) = session->previous;
    session->next = session->previous = NULL;
}

static void link_use(sheaf_mqtt_sessions *all, sheaf_mqtt_session *session) {
    session->next = all->newest;
    *(all->newest != NULL ? &all->newest->previous : &all->oldest) = session;
    all->newest = session;
}

void sheaf_mqtt_sessions_touch(sheaf_mqtt_sessions *all, sheaf_mqtt_session *session, uint64_t now_ms) {
    session->used_ms = now_ms;
    if (all->newest == session) return;
    unlink_use(all, session);
    link_use(all, session);
}

sheaf_mqtt_session *sheaf_mqtt_sessions_add(sheaf_mqtt_sessions *all, const char *device,
                                            sheaf_aggregator_session *sealed, uint64_t now_ms) {
    sheaf_mqtt_session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        sheaf_aggregator_session_drop(sealed);
        return NULL;
    }
    session->references = 1;
    session->sealed = *sealed;
    session->last = &session->waiting;
    session->used_ms = now_ms;
    session->order = ++all->orders;
    (void)snprintf(session->device, sizeof session->device, "%s", device);
    pthread_mutex_init(&session->down, NULL);
    sheaf_mqtt_session **bucket = bucket_of(all, session->sealed.id);
    session->next_in_bucket = *bucket;
    *bucket = session;
    link_use(all, session);
    all->count++;
    return session;
}

sheaf_mqtt_session *sheaf_mqtt_sessions_surplus(const sheaf_mqtt_sessions *all, const char *device) {
    sheaf_mqtt_session *first = NULL;
    unsigned held = 0;
    for (sheaf_mqtt_session *session = all->newest; session != NULL; session = session->next) {
        if (strcmp(session->device, device) != 0) continue;
        held++;
        if (first == NULL || session->order < first->order) first = session;
    }
    return held >= SHEAF_MQTT_SESSIONS_PER_PEER ? first : NULL;
}

void sheaf_mqtt_sessions_remove(sheaf_mqtt_sessions *all, sheaf_mqtt_session *session) {
    sheaf_mqtt_session **at = bucket_of(all, session->sealed.id);
    while (*at != session) at = &(*at)->next_in_bucket;
    *at = session->next_in_bucket;
    unlink_use(all, session);
    all->count--;
    session->ended = 1;
    sheaf_mqtt_session_unref(session);
}

void sheaf_mqtt_session_unref(sheaf_mqtt_session *session) {
    if (--session->references > 0) return;
    sheaf_aggregator_session_drop(&session->sealed);
    pthread_mutex_destroy(&session->down);
    free(session);
}

/* --- handshakes --------------------------------------------------------------------------------------------------- */

void sheaf_mqtt_challenge_free(sheaf_mqtt_challenge *challenge) {
    if (challenge == NULL) return;
    sheaf_session_challenge_drop(&challenge->made);
    free(challenge->said);
    free(challenge);
}

static void take_out(sheaf_mqtt_challenge **at) {
    sheaf_mqtt_challenge *challenge = *at;
    *at = challenge->next;
    sheaf_mqtt_challenge_free(challenge);
}

const sheaf_mqtt_challenge *sheaf_mqtt_challenges_find(const sheaf_mqtt_sessions *all, const char *device,
                                                       sheaf_span open, uint64_t now_ms) {
    const sheaf_mqtt_challenge *found = all->challenges;
    while (found != NULL && (now_ms >= found->until_ms || found->open_size != open.size ||
                             memcmp(found->open, open.data, open.size) != 0 || strcmp(found->made.device, device) != 0))
        found = found->next;
    return found;
}

void sheaf_mqtt_challenges_add(sheaf_mqtt_sessions *all, sheaf_mqtt_challenge *challenge, uint64_t now_ms) {
    unsigned total = 1, own = 1;
    challenge->next = all->challenges;
    all->challenges = challenge;
    for (sheaf_mqtt_challenge **at = &challenge->next; *at != NULL;) {
        int is_own = strcmp((*at)->made.device, challenge->made.device) == 0;
        if (now_ms >= (*at)->until_ms || total >= SHEAF_MQTT_CHALLENGES_MAX ||
            (is_own && own >= SHEAF_MQTT_CHALLENGES_PER_PEER)) {
            take_out(at);
            continue;
        }
        total++;
        own += (unsigned)is_own;
        at = &(*at)->next;
    }
}

sheaf_status sheaf_mqtt_challenges_admit(sheaf_mqtt_sessions *all, const char *device, const uint8_t id[16],
                                         const sheaf_session_party *own, sheaf_span message,
                                         sheaf_aggregator_session *session, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = SHEAF_E_REPLAY;
    for (sheaf_mqtt_challenge **at = &all->challenges; *at != NULL && status == SHEAF_E_REPLAY;) {
        sheaf_session_challenge *made = &(*at)->made;
        if (strcmp(made->device, device) != 0 || memcmp(made->id, id, SHEAF_SESSION_ID_BYTES) != 0) {
            at = &(*at)->next;
            continue;
        }
        status = sheaf_aggregator_session_admit(made, own, device, message, session, out, problem);
        if (status == SHEAF_E_REPLAY)
            at = &(*at)->next;
        else
            take_out(at);
    }
    return status;
}

void sheaf_mqtt_challenges_clear(sheaf_mqtt_sessions *all) {
    while (all->challenges != NULL) take_out(&all->challenges);
}
