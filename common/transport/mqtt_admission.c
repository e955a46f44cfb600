/* The aggregator's part of handshakes: OPEN gets a CHALLENGE, SESSION an ACCEPT and its place in the table. The argument why
 * that is safe stands in envelope.h. */
#include <stdlib.h>

#include "common/transport/mqtt_aggregator.h"

/* --- OPEN --------------------------------------------------------------------------------------------------------- */

/* A repeat of what has an answer costs no key pair and no signature; with the session there, not even that answer. */
static int open_again(sheaf_server *server, const char *device, const sheaf_envelope_head *head, sheaf_span message,
                      uint64_t now) {
    uint8_t *again = NULL;
    size_t size = 0;
    pthread_mutex_lock(&server->lock);
    int known = sheaf_mqtt_sessions_find(&server->sessions, device, head->id) != NULL;
    const sheaf_mqtt_challenge *before = sheaf_mqtt_challenges_find(&server->sessions, device, message, now);
    if (!known && before != NULL && (again = malloc(before->said_size)) != NULL) {
        size = before->said_size;
        memcpy(again, before->said, size);
    }
    pthread_mutex_unlock(&server->lock);
    if (again != NULL) sheaf_mqtt_server_post(server, device, again, size);
    return known || before != NULL;
}

/* What came of OPEN: *said is a copy of the CHALLENGE, which `challenge` keeps. */
static sheaf_status make_challenge(sheaf_server *server, const char *device, sheaf_span message,
                                   sheaf_mqtt_challenge *challenge, uint8_t **said, sheaf_problem *problem) {
    uint8_t space[SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX];
    sheaf_buffer out = {space, 0, sizeof space};
    sheaf_session_party own;
    sheaf_mqtt_party_take(&server->party, &own);
    sheaf_status status = sheaf_session_challenge_make(&own, device, message, &challenge->made, &out, problem);
    if (status != SHEAF_OK) return status;
    challenge->said = malloc(out.size);
    *said = malloc(out.size);
    if (challenge->said == NULL || *said == NULL) return SHEAF_E_MEMORY;
    memcpy(challenge->said, space, out.size);
    memcpy(*said, space, out.size);
    challenge->said_size = out.size;
    memcpy(challenge->open, message.data, message.size); /* as long as it may be: it was read */
    challenge->open_size = message.size;
    return SHEAF_OK;
}

void sheaf_mqtt_take_open(sheaf_server *server, const char *device, const sheaf_envelope_head *head, sheaf_span message,
                          uint64_t now) {
    sheaf_problem problem = {SHEAF_OK, ""};
    uint8_t *said = NULL;
    if (open_again(server, device, head, message, now)) return;
    sheaf_mqtt_challenge *challenge = calloc(1, sizeof *challenge);
    sheaf_status status =
        challenge != NULL ? make_challenge(server, device, message, challenge, &said, &problem) : SHEAF_E_MEMORY;
    if (status == SHEAF_OK) {
        size_t size = challenge->said_size;
        challenge->until_ms = now + server->handshake_ms;
        pthread_mutex_lock(&server->lock);
        sheaf_mqtt_challenges_add(&server->sessions, challenge, now);
        pthread_mutex_unlock(&server->lock);
        sheaf_mqtt_server_post(server, device, said, size);
        return;
    }
    free(said);
    sheaf_mqtt_challenge_free(challenge);
    sheaf_mqtt_server_reject(server, device, head->id, status);
    sheaf_mqtt_server_report(server, device, status,
                             problem.text[0] != '\0' ? problem.text : sheaf_status_text(status));
}

/* Makes room for one more session of this device: 0 when there is none. */
static int make_room(sheaf_server *server, const char *device, uint64_t now) {
    sheaf_mqtt_session *surplus = sheaf_mqtt_sessions_surplus(&server->sessions, device);
    sheaf_mqtt_session *silent = server->sessions.oldest;
    if (surplus == NULL && server->sessions.count >= server->connections_max && silent != NULL &&
        silent->handling == NULL && now - silent->used_ms >= server->handshake_ms)
        surplus = silent;
    if (surplus != NULL) sheaf_mqtt_server_end_session(server, surplus);
    return server->sessions.count < server->connections_max;
}

/* A device that opens another session has given up what it asked in the one before. */
static void drop_waiting_of(sheaf_server *server, const char *device) {
    for (sheaf_mqtt_session *session = server->sessions.newest; session != NULL; session = session->next)
        if (strcmp(session->device, device) == 0) sheaf_mqtt_server_drop_waiting(session);
}

/* The last step of a handshake, with the lock. */
static sheaf_status admit(sheaf_server *server, const char *device, const sheaf_envelope_head *head, sheaf_span message,
                          sheaf_buffer *out, uint64_t now, sheaf_problem *problem) {
    sheaf_session_party own;
    sheaf_aggregator_session sealed;
    memset(&sealed, 0, sizeof sealed);
    sheaf_mqtt_party_take(&server->party, &own);
    sheaf_status status =
        sheaf_mqtt_challenges_admit(&server->sessions, device, head->id, &own, message, &sealed, out, problem);
    if (status == SHEAF_OK && server->stopping) {
        sheaf_aggregator_session_drop(&sealed);
        status = SHEAF_E_CLOSED;
    }
    if (status != SHEAF_OK) return status;
    if (!make_room(server, device, now)) {
        sheaf_aggregator_session_drop(&sealed);
        return sheaf_problem_set(problem, SHEAF_E_BUSY, "the limit of sessions is reached");
    }
    drop_waiting_of(server, device);
    return sheaf_mqtt_sessions_add(&server->sessions, device, &sealed, now) != NULL ? SHEAF_OK : SHEAF_E_MEMORY;
}

void sheaf_mqtt_take_session(sheaf_server *server, const char *device, const sheaf_envelope_head *head,
                             sheaf_span message, uint64_t now) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_buffer out = {malloc(SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX), 0, SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX};
    if (out.data == NULL) return;
    pthread_mutex_lock(&server->lock);
    sheaf_mqtt_session *session = sheaf_mqtt_sessions_find(&server->sessions, device, head->id);
    sheaf_status status = session != NULL ? sheaf_aggregator_session_accept_again(&session->sealed, message, &out)
                                          : admit(server, device, head, message, &out, now, &problem);
    pthread_mutex_unlock(&server->lock);
    if (status == SHEAF_OK) {
        sheaf_mqtt_server_post(server, device, out.data, out.size);
        return;
    }
    free(out.data);
    if (session != NULL) return; /* a REJECT would end the good session */
    sheaf_mqtt_server_reject(server, device, head->id, status);
    sheaf_mqtt_server_report(server, device, status,
                             problem.text[0] != '\0' ? problem.text : sheaf_status_text(status));
}
