/* The aggregator's end: one client of the broker, and a sealed session with each device, in that device's two topics.
 *
 * A session hands over one request at a time, in the order in which they came; what comes meanwhile waits behind it, a
 * few at most. A request that is repeated while the first still waits or is being handled is dropped; one that was
 * answered already is answered by a REJECT that says `replay`, upon which the device asks anew.
 *
 * Memory: the handler has at most exchanges_max requests, and no more than as many wait again. When exchanges_max frames
 * are held, nothing is read from the broker for up to HOLD_BACK_MS: TCP holds it back, and it the devices, of which each
 * has at most a window on its way. If that lasts longer, keep-alive would suffer: then what comes is thrown away unread,
 * and devices send it again.
 *
 * Threads: the client's thread opens messages, runs handshakes and the handler; replies are sealed on the thread that
 * gives them. `lock` guards everything, except that unsealing is the client's thread's, and sealing has a lock in each
 * session. The handler is called without locks. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/transport/mqtt_aggregator.h"

#define HOLD_BACK_MS   1000u
#define WAITING_MAX    8u       /* requests of one session behind the one in the handler */
#define CAST_BYTES_MAX 2097152u /* casts that the socket has not taken */
#define LINGER_MS      2000u
#define SPARE_MIN      65536u /* bytes of a frame */
#define SPARES_MAX     4u
#define SEQUENCE_AT    SHEAF_ENVELOPE_HEAD_BYTES

static void server_unref_locked(sheaf_server *server) {
    unsigned left = --server->references;
    pthread_mutex_unlock(&server->lock);
    if (left > 0) return;
    for (sheaf_exchange *spare = server->spares, *next; spare != NULL; spare = next) {
        next = spare->next;
        free(spare);
    }
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->casting);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

void sheaf_mqtt_server_report(sheaf_server *server, const char *device, sheaf_status reason, const char *text) {
    char detail[sizeof((sheaf_problem *)0)->text];
    if (server->on_reject == NULL) return;
    (void)snprintf(detail, sizeof detail, "%s topic of %s: %s", server->prefix, device, text);
    server->on_reject(server->context, reason, detail);
}

/* --- messages to devices ------------------------------------------------------------------------------------------ */

void sheaf_mqtt_server_post(sheaf_server *server, const char *device, uint8_t *message, size_t size) {
    char topic[SHEAF_MQTT_TOPIC_BYTES];
    sheaf_mqtt_topic(server->prefix, SHEAF_MQTT_DOWN, device, topic);
    sheaf_mqtt_client_post(server->client, topic, message, size);
}

void sheaf_mqtt_server_reject(sheaf_server *server, const char *device, const uint8_t id[SHEAF_SESSION_ID_BYTES],
                              sheaf_status reason) {
    sheaf_buffer out = {malloc(SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX), 0, SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX};
    if (out.data != NULL && sheaf_envelope_write_reject(id, reason, &out) == SHEAF_OK)
        sheaf_mqtt_server_post(server, device, out.data, out.size);
    else
        free(out.data);
}

/* --- exchanges ---------------------------------------------------------------------------------------------------- */

/* With the lock. The bytes of the frame are not cleared. */
static sheaf_exchange *exchange_take(sheaf_server *server, size_t size) {
    sheaf_exchange *exchange = size >= SPARE_MIN ? server->spares : NULL;
    size_t capacity = size >= SPARE_MIN ? server->frame_bytes_max + 1u : size;
    if (exchange != NULL) {
        server->spares = exchange->next;
        server->spares_count--;
    } else {
        exchange = malloc(sizeof *exchange + capacity);
    }
    if (exchange != NULL) memset(exchange, 0, sizeof *exchange);
    if (exchange != NULL) exchange->capacity = capacity;
    return exchange;
}

static void exchange_give_back(sheaf_server *server, sheaf_exchange *exchange) {
    if (exchange->capacity < SPARE_MIN || server->spares_count >= SPARES_MAX) {
        free(exchange);
        return;
    }
    exchange->next = server->spares;
    server->spares = exchange;
    server->spares_count++;
}

static void exchange_free_locked(sheaf_exchange *exchange) {
    sheaf_server *server = exchange->server;
    sheaf_certificate_unref(exchange->peer);
    sheaf_mqtt_session_unref(exchange->session);
    server->held--;
    server->references--; /* never the last: the caller uses the server */
    exchange_give_back(server, exchange);
}

static void make_ready(sheaf_server *server, sheaf_mqtt_session *session) {
    if (session->is_ready || session->ended || session->handling != NULL || session->waiting == NULL) return;
    session->is_ready = 1;
    session->next_ready = NULL;
    *server->last_ready = session;
    server->last_ready = &session->next_ready;
    session->references++;
}

static sheaf_mqtt_session *take_ready(sheaf_server *server) {
    sheaf_mqtt_session *session = server->ready;
    if (session == NULL || server->handling >= server->exchanges_max || server->stopping) return NULL;
    server->ready = session->next_ready;
    if (server->ready == NULL) server->last_ready = &server->ready;
    session->is_ready = 0;
    return session;
}

static sheaf_exchange *take_waiting(sheaf_mqtt_session *session) {
    sheaf_exchange *exchange = session->waiting;
    if (exchange == NULL) return NULL;
    session->waiting = exchange->next;
    if (session->waiting == NULL) session->last = &session->waiting;
    session->waiting_count--;
    return exchange;
}

void sheaf_mqtt_server_drop_waiting(sheaf_mqtt_session *session) {
    for (sheaf_exchange *exchange; (exchange = take_waiting(session)) != NULL;) exchange_free_locked(exchange);
}

void sheaf_mqtt_server_end_session(sheaf_server *server, sheaf_mqtt_session *session) {
    session->references++;
    sheaf_mqtt_server_drop_waiting(session);
    sheaf_mqtt_sessions_remove(&server->sessions, session);
    sheaf_mqtt_session_unref(session);
}

static void hand_over(sheaf_server *server) {
    pthread_mutex_lock(&server->lock);
    for (sheaf_mqtt_session *session; (session = take_ready(server)) != NULL;) {
        sheaf_exchange *exchange = session->ended ? NULL : take_waiting(session);
        if (exchange != NULL) {
            session->handling = exchange;
            server->handling++;
        }
        sheaf_mqtt_session_unref(session);
        if (exchange == NULL) continue;
        sheaf_certificate *peer = exchange->peer;
        sheaf_span request = sheaf_span_of(exchange->request, exchange->size);
        pthread_mutex_unlock(&server->lock);
        server->on_request(server->context, exchange, peer, request);
        pthread_mutex_lock(&server->lock);
    }
    pthread_mutex_unlock(&server->lock);
}

/* Seals under the session's own lock, so that large replies of several sessions are sealed side by side. */
static uint8_t *seal_reply(sheaf_mqtt_session *session, uint64_t sequence, sheaf_span frame, size_t *size) {
    size_t capacity = frame.size + SHEAF_ENVELOPE_REPLY_OVERHEAD;
    sheaf_buffer out = {malloc(capacity), 0, capacity};
    if (out.data == NULL) return NULL;
    pthread_mutex_lock(&session->down);
    sheaf_status status = sheaf_aggregator_session_seal(&session->sealed, sequence, frame, &out);
    pthread_mutex_unlock(&session->down);
    if (status != SHEAF_OK) {
        free(out.data);
        return NULL;
    }
    *size = out.size;
    return out.data;
}

void sheaf_mqtt_reply(sheaf_exchange *exchange, sheaf_span frame) {
    sheaf_server *server = exchange->server;
    sheaf_mqtt_session *session = exchange->session;
    pthread_mutex_lock(&server->lock);
    int sends = !session->ended && !server->stopping;
    server->references++; /* for the duration of this call */
    if (sends) server->replying++;
    pthread_mutex_unlock(&server->lock);
    if (sends) {
        size_t size = 0;
        uint8_t *message = seal_reply(session, exchange->sequence, frame, &size);
        if (message != NULL) sheaf_mqtt_server_post(server, session->device, message, size);
    }
    pthread_mutex_lock(&server->lock);
    session->handling = NULL;
    make_ready(server, session);
    server->handling--;
    if (sends && server->ready != NULL) sheaf_mqtt_client_wake(server->client);
    exchange_free_locked(exchange);
    if (sends) server->replying--;
    pthread_cond_broadcast(&server->changed);
    server_unref_locked(server);
}

/* --- messages of devices ------------------------------------------------------------------------------------------ */

static int is_known(const sheaf_mqtt_session *session, uint64_t sequence) {
    if (session->handling != NULL && session->handling->sequence == sequence) return 1;
    for (const sheaf_exchange *exchange = session->waiting; exchange != NULL; exchange = exchange->next)
        if (exchange->sequence == sequence) return 1;
    return 0;
}

/* What becomes of a DATA message, before anything is decrypted: with the lock. SHEAF_AGAIN: not now, or not again. */
static sheaf_status judge(sheaf_server *server, sheaf_mqtt_session *session, sheaf_span message) {
    uint64_t sequence = sheaf_load_u64(message.data + SEQUENCE_AT);
    if (message.size - SHEAF_ENVELOPE_DATA_OVERHEAD > server->frame_bytes_max) return SHEAF_E_TOO_LARGE;
    if (is_known(session, sequence)) return SHEAF_AGAIN;
    if (!sheaf_replay_window_allows(&session->sealed.requests, sequence)) return SHEAF_E_REPLAY;
    if (server->held >= 2u * server->exchanges_max || session->waiting_count >= WAITING_MAX) return SHEAF_AGAIN;
    return SHEAF_OK;
}

static sheaf_status unseal(sheaf_server *server, sheaf_mqtt_session *session, sheaf_span message,
                           sheaf_exchange **made) {
    size_t size = message.size - SHEAF_ENVELOPE_DATA_OVERHEAD;
    pthread_mutex_lock(&server->lock);
    sheaf_exchange *exchange = exchange_take(server, size + 1);
    pthread_mutex_unlock(&server->lock);
    if (exchange == NULL) return SHEAF_AGAIN;
    sheaf_buffer out = {exchange->request, 0, size + 1};
    sheaf_status status =
        sheaf_aggregator_session_unseal(&session->sealed, session->device, message, &out, &exchange->sequence);
    if (status != SHEAF_OK) {
        pthread_mutex_lock(&server->lock);
        exchange_give_back(server, exchange);
        pthread_mutex_unlock(&server->lock);
        return status;
    }
    exchange->size = out.size;
    exchange->server = server;
    exchange->session = session;
    *made = exchange;
    return SHEAF_OK;
}

static void append(sheaf_server *server, sheaf_mqtt_session *session, sheaf_exchange *exchange) {
    exchange->peer = sheaf_certificate_ref(session->sealed.device);
    session->references++;
    server->references++;
    server->held++;
    *session->last = exchange;
    session->last = &exchange->next;
    session->waiting_count++;
    make_ready(server, session);
}

/* What a session's message came to: told to the device, and to whoever counts refusals. */
static void refuse_data(sheaf_server *server, const char *device, const sheaf_envelope_head *head,
                        sheaf_status status) {
    if (status == SHEAF_OK || status == SHEAF_AGAIN) return;
    if (status != SHEAF_E_SEAL)
        sheaf_mqtt_server_reject(server, device, head->id, status); /* forged: the session is not to blame */
    if (status == SHEAF_E_NOT_FOUND || status == SHEAF_E_REPLAY || status == SHEAF_E_CLOSED) return;
    sheaf_mqtt_server_report(server, device, status, sheaf_status_text(status));
}

static void take_data(sheaf_server *server, const char *device, const sheaf_envelope_head *head, sheaf_span message,
                      uint64_t now) {
    sheaf_exchange *exchange = NULL;
    sheaf_status status = SHEAF_E_NOT_FOUND;
    if (message.size < SHEAF_ENVELOPE_DATA_OVERHEAD) {
        sheaf_mqtt_server_report(server, device, SHEAF_E_TRUNCATED, sheaf_status_text(SHEAF_E_TRUNCATED));
        return;
    }
    pthread_mutex_lock(&server->lock);
    sheaf_mqtt_session *session = sheaf_mqtt_sessions_find(&server->sessions, device, head->id);
    if (session != NULL) status = judge(server, session, message);
    if (session != NULL) session->references++;
    pthread_mutex_unlock(&server->lock);
    if (status == SHEAF_OK) status = unseal(server, session, message, &exchange);
    pthread_mutex_lock(&server->lock);
    if (exchange != NULL && session->ended) {
        exchange_give_back(server, exchange);
        exchange = NULL;
    }
    if (exchange != NULL) append(server, session, exchange);
    if (exchange != NULL) sheaf_mqtt_sessions_touch(&server->sessions, session, now);
    if (session != NULL && !session->ended && (status == SHEAF_E_TOO_LARGE || status == SHEAF_E_CLOSED))
        sheaf_mqtt_server_end_session(server, session);
    if (session != NULL) sheaf_mqtt_session_unref(session);
    pthread_mutex_unlock(&server->lock);
    refuse_data(server, device, head, status);
}

static void take_up(sheaf_server *server, const char *device, sheaf_span message) {
    sheaf_envelope_head head = {0};
    uint64_t now = sheaf_mqtt_now_ms();
    sheaf_status status = sheaf_envelope_read_head(message, &head);
    if (status == SHEAF_OK && head.kind == SHEAF_ENVELOPE_OPEN) {
        sheaf_mqtt_take_open(server, device, &head, message, now);
    } else if (status == SHEAF_OK && head.kind == SHEAF_ENVELOPE_SESSION) {
        sheaf_mqtt_take_session(server, device, &head, message, now);
    } else if (status == SHEAF_OK && head.kind == SHEAF_ENVELOPE_DATA) {
        take_data(server, device, &head, message, now);
    } else {
        if (status == SHEAF_OK) status = SHEAF_E_MALFORMED; /* of the other direction */
        if (status == SHEAF_E_VERSION) sheaf_mqtt_server_reject(server, device, head.id, status);
        sheaf_mqtt_server_report(server, device, status, sheaf_status_text(status));
    }
}

/* --- events of the client ----------------------------------------------------------------------------------------- */

static void on_connected(void *context) {
    sheaf_server *server = context;
    pthread_mutex_lock(&server->lock);
    server->is_connected = 1;
    pthread_mutex_unlock(&server->lock);
    sheaf_log(SHEAF_LOG_INFO, "broker_connected", "url=%s", server->url);
}

static void on_lost(void *context, int was_connected, const sheaf_problem *problem) {
    sheaf_server *server = context;
    (void)was_connected;
    pthread_mutex_lock(&server->lock);
    server->is_connected = 0;
    pthread_mutex_unlock(&server->lock);
    sheaf_log(SHEAF_LOG_WARNING, "broker_lost", "reason=\"%s\"", problem->text);
}

static void on_message(void *context, const char *topic, sheaf_span payload, int is_retained) {
    sheaf_server *server = context;
    const char *device = sheaf_mqtt_name_in(server->prefix, SHEAF_MQTT_UP, topic);
    pthread_mutex_lock(&server->lock);
    int stopping = server->stopping;
    pthread_mutex_unlock(&server->lock);
    if (stopping) return;
    if (device == NULL) {
        sheaf_mqtt_server_report(server, "nobody", SHEAF_E_NAME, "a topic whose last level is no name");
    } else if (is_retained) {
        server->retained++;
        sheaf_mqtt_server_report(server, device, SHEAF_E_REPLAY,
                                 "a retained message: dropped; nobody of ours retains any");
    } else {
        take_up(server, device, payload);
    }
}

static uint64_t on_turn(void *context, uint64_t now) {
    (void)now;
    hand_over(context);
    return UINT64_MAX;
}

static int may_read(void *context) {
    sheaf_server *server = context;
    uint64_t now = sheaf_mqtt_now_ms();
    pthread_mutex_lock(&server->lock);
    int full = server->held >= server->exchanges_max;
    if (!full) server->held_back_ms = 0;
    if (full && server->held_back_ms == 0) server->held_back_ms = now;
    int reads = !full || now - server->held_back_ms >= HOLD_BACK_MS;
    pthread_mutex_unlock(&server->lock);
    return reads;
}

/* --- the owner's side --------------------------------------------------------------------------------------------- */

static sheaf_status prepare(sheaf_server *server, const sheaf_transport_options *options, sheaf_problem *problem) {
    server->frame_bytes_max = options->frame_bytes_max;
    server->exchanges_max = options->exchanges_max;
    server->connections_max = options->connections_max;
    server->handshake_ms = options->handshake_ms;
    server->url = strdup(options->url);
    if (server->url == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    sheaf_status status = sheaf_mqtt_prefix(options, server->prefix, problem);
    return status == SHEAF_OK ? sheaf_mqtt_party_open(&server->party, &options->tls, problem) : status;
}

static sheaf_status connect_server(sheaf_server *server, const sheaf_transport_options *options,
                                   sheaf_problem *problem) {
    const sheaf_mqtt_events events = {on_connected, on_lost, on_message, on_turn, may_read, server};
    sheaf_mqtt_client_options client = {options->url, options->tls, options->handshake_ms};
    char topic[SHEAF_MQTT_TOPIC_BYTES];
    client.tls.trust = server->party.trust;
    client.tls.credentials = server->party.credentials;
    sheaf_mqtt_topic(server->prefix, SHEAF_MQTT_UP, "+", topic);
    sheaf_status status = sheaf_mqtt_client_open(&client, &events, &server->client, problem);
    return status == SHEAF_OK ? sheaf_mqtt_client_join(server->client, topic) : status;
}

static void server_free_parts(sheaf_server *server) {
    sheaf_mqtt_party_fini(&server->party);
    if (server->has_cast_key) sheaf_cast_key_drop(&server->cast_key);
    free(server->url);
    server->url = NULL;
}

sheaf_status sheaf_mqtt_open_server(const sheaf_transport_options *options, sheaf_request_handler on_request,
                                    sheaf_reject_handler on_reject, void *context, sheaf_server **out,
                                    sheaf_problem *problem) {
    *out = NULL;
    sheaf_server *server = calloc(1, sizeof *server);
    if (server == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    pthread_mutex_init(&server->lock, NULL);
    pthread_mutex_init(&server->casting, NULL);
    pthread_cond_init(&server->changed, NULL);
    server->references = 1;
    server->last_ready = &server->ready;
    server->on_request = on_request;
    server->on_reject = on_reject;
    server->context = context;
    sheaf_status status = prepare(server, options, problem);
    if (status == SHEAF_OK) status = connect_server(server, options, problem);
    if (status == SHEAF_OK) {
        *out = server;
        return SHEAF_OK;
    }
    sheaf_mqtt_client_close(server->client, 0);
    server_free_parts(server);
    pthread_mutex_lock(&server->lock);
    server_unref_locked(server);
    return status;
}

const char *sheaf_mqtt_server_url(const sheaf_server *server) { return server->url; }

/* Devices would otherwise wait for answers that never come. */
static void end_all(sheaf_server *server) {
    while (server->sessions.newest != NULL) {
        sheaf_mqtt_session *session = server->sessions.newest;
        sheaf_mqtt_server_reject(server, session->device, session->sealed.id, SHEAF_E_CLOSED);
        sheaf_mqtt_server_end_session(server, session);
    }
    while (server->ready != NULL) {
        sheaf_mqtt_session *session = server->ready;
        server->ready = session->next_ready;
        sheaf_mqtt_session_unref(session);
    }
    server->last_ready = &server->ready;
}

void sheaf_mqtt_stop_server(sheaf_server *server) {
    if (server == NULL) return;
    pthread_mutex_lock(&server->lock);
    server->stopping = 1;
    while (server->replying > 0) pthread_cond_wait(&server->changed, &server->lock);
    end_all(server);
    pthread_mutex_unlock(&server->lock);
    sheaf_mqtt_client_close(server->client, LINGER_MS); /* no handler runs any more */
    pthread_mutex_lock(&server->lock);
    end_all(server); /* what a last message made; its REJECT has nowhere to go */
    sheaf_mqtt_challenges_clear(&server->sessions);
    server_free_parts(server);
    server_unref_locked(server);
}

/* --- casts, and who must go --------------------------------------------------------------------------------------- */

static sheaf_status take_cast_key(sheaf_server *server, const sheaf_cast_group *group) {
    if (server->has_cast_key && memcmp(&server->cast_group, group, sizeof *group) == 0) return SHEAF_OK;
    if (server->has_cast_key) sheaf_cast_key_drop(&server->cast_key);
    sheaf_status status = sheaf_cast_key_begin(&server->cast_key, 0, group);
    server->has_cast_key = status == SHEAF_OK;
    server->cast_group = *group;
    return status;
}

sheaf_status sheaf_mqtt_cast(sheaf_server *server, const sheaf_cast_group *group, uint64_t sequence, sheaf_span frame) {
    char topic[SHEAF_MQTT_TOPIC_BYTES];
    size_t capacity = frame.size + SHEAF_ENVELOPE_DATA_OVERHEAD;
    pthread_mutex_lock(&server->lock);
    int is_connected = server->is_connected;
    pthread_mutex_unlock(&server->lock);
    if (!is_connected) return SHEAF_E_NETWORK;
    if (sheaf_mqtt_client_queued(server->client) >= CAST_BYTES_MAX) return SHEAF_AGAIN;
    sheaf_buffer out = {malloc(capacity), 0, capacity};
    if (out.data == NULL) return SHEAF_AGAIN;
    pthread_mutex_lock(&server->casting);
    sheaf_status status = take_cast_key(server, group);
    if (status == SHEAF_OK) status = sheaf_cast_seal(&server->cast_key, sequence, frame, &out);
    pthread_mutex_unlock(&server->casting);
    if (status != SHEAF_OK) {
        free(out.data);
        return status;
    }
    sheaf_mqtt_cast_topic(server->prefix, group->id, topic);
    sheaf_mqtt_client_post(server->client, topic, out.data, out.size);
    return SHEAF_OK;
}

unsigned sheaf_mqtt_expel(sheaf_server *server, int (*unwanted)(void *context, const sheaf_certificate *peer),
                          void *context) {
    unsigned count = 0;
    pthread_mutex_lock(&server->lock);
    for (sheaf_mqtt_session *session = server->sessions.newest, *next; session != NULL; session = next) {
        next = session->next;
        if (!unwanted(context, session->sealed.device)) continue;
        sheaf_mqtt_server_reject(server, session->device, session->sealed.id, SHEAF_E_REVOKED);
        sheaf_mqtt_server_end_session(server, session);
        count++;
    }
    pthread_mutex_unlock(&server->lock);
    return count;
}

void sheaf_mqtt_look(sheaf_server *server, sheaf_server_report *out) {
    uint32_t strangers = 0;
    pthread_mutex_lock(&server->lock);
    for (const sheaf_mqtt_challenge *one = server->sessions.challenges; one != NULL; one = one->next) strangers++;
    *out = (sheaf_server_report){.ready = server->is_connected && !server->stopping,
                                 .connections = server->sessions.count,
                                 .strangers = strangers};
    pthread_mutex_unlock(&server->lock);
}
