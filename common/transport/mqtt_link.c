/* The device's end: one client of the broker, and in its two topics one sealed session with the aggregator.
 *
 *     CLOSED -> OPENING -> PROVING -> READY      (the states of device_session.h)
 *
 * The session is independent of the connection to the broker: when that breaks and comes back, the same session goes on,
 * and what has no answer is sent again. MQTT is not trusted to deliver anything, nor to deliver it once: a request is sent
 * again, byte for byte, until its answer comes. How soon follows from the round trips that were measured (RFC 6298), and
 * never while the kernel still has bytes of ours to deliver, so that a slow line is not given everything twice. When the
 * aggregator has answered it already, and the answer was lost, the bytes are known there; it then says `replay`, and the
 * request is sealed anew.
 *
 * Requests fail together (SHEAF_E_NETWORK) when the broker cannot be reached, when nobody answers a handshake within
 * handshake_ms or a request within PATIENCE, and when the aggregator refuses the session.
 *
 * Threads: the client's thread does the protocol, the caller's only puts requests in and takes frames out. `lock` guards
 * everything; it is not held while a function of the client is called that calls back, and none does. */
#include <openssl/rand.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/transport/device_session.h"
#include "common/transport/mqtt_ends.h"

#define RESEND_FIRST_MS 1000u /* before there is a measurement */
#define RESEND_MIN_MS   300u
#define RESEND_MAX_MS   10000u
#define OPEN_RESEND_MS  500u
#define PATIENCE        6u     /* times handshake_ms, for one request while nothing moves and the session stands */
#define ARRIVING_MIN    32768u /* bytes of a message that is not whole yet: perhaps the answer */
#define REOPEN_MIN_MS   100u
#define REOPEN_MAX_MS   10000u
#define REOPENS_MAX     3u  /* sessions in a row that a request may see end by no fault of its own */
#define CASTS_MAX       64u /* frames of a group that were not fetched; it misses further ones */
#define LINGER_MS       200u
#define SPARE_MIN       65536u /* bytes */
#define SPARE_MS        1000u  /* without a request */

/* The only copy of a request. Sealed it is what travels, under `sequence`; not sealed (there is no session yet), its frame
 * stands where it will be sealed in place. */
typedef struct {
    uint8_t *message;
    size_t size, capacity;
    int is_sealed;
    uint64_t sequence;
    unsigned sendings, reopens;
    uint64_t alive_ms; /* when bytes of it last moved; 0: it was never sent */
    uint64_t sent_ms, resend_ms;
    uint32_t wait_ms;
} request;

typedef struct frame frame;
struct frame {
    frame *next;
    sheaf_certificate *peer; /* who gave it; NULL for casts */
    size_t size;
    uint8_t data[];
};

struct sheaf_link {
    pthread_mutex_t lock;
    sheaf_mqtt_client *client;
    sheaf_mqtt_party party;
    char *url;
    char up[SHEAF_MQTT_TOPIC_BYTES], down[SHEAF_MQTT_TOPIC_BYTES], prefix[SHEAF_MQTT_PREFIX_BYTES];
    uint32_t frame_bytes_max, handshake_ms, window;
    int is_connected;

    sheaf_device_session session;
    uint8_t *hello; /* the last handshake message, to be sent again */
    size_t hello_size;
    uint64_t hello_ms, opening_since_ms, reopen_ms; /* next sending; 0: not opening; not before */
    uint32_t hello_wait_ms, reopen_pause_ms;
    uint32_t round_trip_ms, deviation_ms; /* smoothed; 0: not measured */
    sheaf_mqtt_movement movement;         /* when it was last looked at */

    request *requests; /* `window` places, in the order of sending: oldest first */
    uint32_t pending;  /* places in use, and answers that were not fetched */
    uint32_t used;
    uint8_t *spare; /* for the next large request, or NULL */
    size_t spare_capacity;
    uint64_t spare_ms;
    frame *answers, *casts;
    uint32_t casts_count;
    int failed; /* and nobody was told yet */
    sheaf_problem problem;
    sheaf_certificate *peer; /* of the last answer that was fetched */

    int is_member;
    sheaf_cast_group group;
    sheaf_cast_key cast_key;
    char cast_topic[SHEAF_MQTT_TOPIC_BYTES];
};

/* --- frames and requests ------------------------------------------------------------------------------------------ */

static void frames_append(frame **list, frame *added) {
    while (*list != NULL) list = &(*list)->next;
    *list = added;
}

static void frames_free(frame **list) {
    while (*list != NULL) {
        frame *oldest = *list;
        *list = oldest->next;
        sheaf_certificate_unref(oldest->peer);
        free(oldest);
    }
}

/* Large buffers come and go with each request: one is kept, so that the kernel need not clear its pages anew. */
static uint8_t *take_buffer(sheaf_link *link, size_t size, size_t *capacity) {
    uint8_t *buffer = link->spare;
    if (buffer == NULL || size > link->spare_capacity || size < SPARE_MIN) {
        *capacity = size;
        return malloc(size);
    }
    *capacity = link->spare_capacity;
    link->spare = NULL;
    return buffer;
}

static void give_buffer_back(sheaf_link *link, uint8_t *buffer, size_t capacity) {
    if (link->spare != NULL || capacity < SPARE_MIN) {
        free(buffer);
        return;
    }
    link->spare = buffer;
    link->spare_capacity = capacity;
    link->spare_ms = sheaf_mqtt_now_ms();
}

/* Takes place `i` out; the order of the others stays. */
static void remove_request(sheaf_link *link, uint32_t i) {
    give_buffer_back(link, link->requests[i].message, link->requests[i].capacity);
    link->used--;
    memmove(&link->requests[i], &link->requests[i + 1], (link->used - i) * sizeof *link->requests);
    memset(&link->requests[link->used], 0, sizeof *link->requests);
}

static void remove_requests(sheaf_link *link) {
    while (link->used > 0) {
        remove_request(link, link->used - 1);
        link->pending--;
    }
}

/* All requests on their way have failed. */
static void fail(sheaf_link *link, const char *text) {
    if (link->used == 0) return;
    remove_requests(link);
    link->failed = 1;
    (void)sheaf_problem_set(&link->problem, SHEAF_E_NETWORK, "%s", text);
}

/* --- the session -------------------------------------------------------------------------------------------------- */

/* Turns a request into what it was before it was sealed, for another number or another session. 0: it cannot be. */
static int unseal_request(sheaf_link *link, request *one) {
    if (one->is_sealed && sheaf_device_session_take_back(&link->session, one->message, one->size) != SHEAF_OK) return 0;
    one->is_sealed = 0;
    one->sendings = 0;
    return 1;
}

static void unseal_requests(sheaf_link *link, unsigned sendings) {
    for (uint32_t i = 0; i < link->used; i++) {
        if (link->requests[i].sendings < sendings || unseal_request(link, &link->requests[i])) continue;
        fail(link, "no memory to seal a request anew");
        return;
    }
}

static void forget_session(sheaf_link *link) {
    unseal_requests(link, 0);
    sheaf_device_session_drop(&link->session);
    memset(&link->session, 0, sizeof link->session);
    free(link->hello);
    link->hello = NULL;
    link->opening_since_ms = 0;
}

static void pause_before_open(sheaf_link *link, uint64_t now) {
    uint8_t random = 0;
    (void)RAND_bytes(&random, 1);
    link->reopen_ms = now + link->reopen_pause_ms + link->reopen_pause_ms * random / 256u;
    link->reopen_pause_ms = link->reopen_pause_ms > REOPEN_MAX_MS / 2u ? REOPEN_MAX_MS : link->reopen_pause_ms * 2u;
}

static void end_session(sheaf_link *link, uint64_t now, const char *why) {
    char text[sizeof link->problem.text];
    forget_session(link);
    pause_before_open(link, now);
    (void)snprintf(text, sizeof text, "%s: %s", link->url, why);
    fail(link, text);
}

/* Keeps `size` bytes of `message` as what is said in the handshake now. */
static void say(sheaf_link *link, uint8_t *message, size_t size, uint64_t now) {
    free(link->hello);
    link->hello = message;
    link->hello_size = size;
    link->hello_ms = now;
    link->hello_wait_ms = link->round_trip_ms > OPEN_RESEND_MS / 2u ? link->round_trip_ms * 2u : OPEN_RESEND_MS;
}

static void open_session(sheaf_link *link, uint64_t now) {
    sheaf_buffer out = {malloc(SHEAF_ENVELOPE_OPEN_BYTES_MAX), 0, SHEAF_ENVELOPE_OPEN_BYTES_MAX};
    if (out.data == NULL) return; /* in the next turn perhaps */
    sheaf_status status = sheaf_device_session_open(&link->session, NULL, 0, &out);
    if (status != SHEAF_OK) {
        free(out.data);
        end_session(link, now, sheaf_status_text(status));
        return;
    }
    link->opening_since_ms = now;
    say(link, out.data, out.size, now);
}

static void take_challenge(sheaf_link *link, sheaf_span message, uint64_t now) {
    sheaf_session_party own;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_buffer out = {malloc(SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX), 0, SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX};
    if (out.data == NULL) return;
    sheaf_mqtt_party_take(&link->party, &own);
    sheaf_status status = sheaf_device_session_answer(&link->session, &own, NULL, message, &out, &problem);
    if (status == SHEAF_OK) {
        say(link, out.data, out.size, now);
        return;
    }
    free(out.data);
    if (status == SHEAF_AGAIN || status == SHEAF_E_REPLAY) return;
    /* The true one may still come, but whoever waits should know: kept for when nothing better does. */
    (void)sheaf_problem_set(&link->problem, status, "the aggregator is refused: %s",
                            problem.text[0] != '\0' ? problem.text : sheaf_status_text(status));
}

static void take_accept(sheaf_link *link, sheaf_span message) {
    if (sheaf_device_session_accepted(&link->session, message) != SHEAF_OK) return;
    free(link->hello);
    link->hello = NULL;
    link->opening_since_ms = 0;
    link->reopen_pause_ms = REOPEN_MIN_MS;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

/* RFC 6298, of requests that were sent once (Karn's rule). */
static void measure(sheaf_link *link, uint32_t round_trip_ms) {
    if (link->round_trip_ms == 0) {
        link->round_trip_ms = round_trip_ms > 0 ? round_trip_ms : 1;
        link->deviation_ms = round_trip_ms / 2u;
        return;
    }
    uint32_t off =
        round_trip_ms > link->round_trip_ms ? round_trip_ms - link->round_trip_ms : link->round_trip_ms - round_trip_ms;
    link->deviation_ms = (3u * link->deviation_ms + off) / 4u;
    link->round_trip_ms = (7u * link->round_trip_ms + round_trip_ms + 7u) / 8u;
}

static uint32_t resend_wait_ms(const sheaf_link *link) {
    if (link->round_trip_ms == 0) return RESEND_FIRST_MS;
    uint32_t wait = link->round_trip_ms + 4u * link->deviation_ms;
    return wait < RESEND_MIN_MS ? RESEND_MIN_MS : wait > RESEND_MAX_MS ? RESEND_MAX_MS : wait;
}

static void answer_request(sheaf_link *link, uint64_t sequence, frame *answer, uint64_t now) {
    for (uint32_t i = 0; i < link->used; i++) {
        request *one = &link->requests[i];
        if (!one->is_sealed || one->sequence != sequence) continue;
        if (one->sendings == 1) measure(link, (uint32_t)(now - one->sent_ms));
        remove_request(link, i);
        frames_append(&link->answers, answer);
        return;
    }
    frames_free(&answer); /* nobody waits for it any more */
}

static void take_reply(sheaf_link *link, sheaf_span message, uint64_t now) {
    if (message.size < SHEAF_ENVELOPE_REPLY_OVERHEAD) return;
    size_t size = message.size - SHEAF_ENVELOPE_REPLY_OVERHEAD;
    uint64_t answers = 0;
    frame *answer = malloc(sizeof *answer + size + 1);
    if (answer == NULL) return;
    memset(answer, 0, sizeof *answer);
    sheaf_buffer out = {answer->data, 0, size + 1};
    if (sheaf_device_session_unseal(&link->session, message, &out, &answers) != SHEAF_OK) {
        free(answer);
        return;
    }
    answer->size = out.size;
    answer->peer = sheaf_certificate_ref(link->session.aggregator);
    answer_request(link, answers, answer, now);
}

/* The aggregator has seen what was sent again: the answer was lost, and comes only to a request with a new number. */
static void seal_repeated_anew(sheaf_link *link, uint64_t now) {
    for (uint32_t i = 0; i < link->used; i++)
        if (link->requests[i].sendings >= 2) link->requests[i].resend_ms = now;
    unseal_requests(link, 2);
}

static int may_reopen(sheaf_link *link) {
    for (uint32_t i = 0; i < link->used; i++)
        if (++link->requests[i].reopens > REOPENS_MAX) return 0;
    return 1;
}

/* A hint that nobody vouches for: at most it costs a session. */
static void take_reject(sheaf_link *link, sheaf_span message, uint64_t now) {
    sheaf_status reason = SHEAF_OK;
    char text[256];
    if (!sheaf_device_session_rejected(&link->session, message, &reason)) return;
    int ready = link->session.state == SHEAF_DEVICE_SESSION_READY;
    if (reason == SHEAF_E_REPLAY && ready) {
        seal_repeated_anew(link, now);
    } else if ((reason == SHEAF_E_NOT_FOUND || reason == SHEAF_E_REPLAY) && may_reopen(link)) {
        forget_session(link);
        link->reopen_ms = now;
        if (!ready) pause_before_open(link, now);
    } else {
        (void)snprintf(text, sizeof text, "the aggregator ended the session: %s: %s", sheaf_status_name(reason),
                       sheaf_status_text(reason));
        end_session(link, now, text);
    }
}

static void take_cast(sheaf_link *link, const char *topic, sheaf_span message) {
    if (!link->is_member || strcmp(topic, link->cast_topic) != 0 || link->casts_count >= CASTS_MAX ||
        message.size < SHEAF_ENVELOPE_DATA_OVERHEAD)
        return;
    size_t size = message.size - SHEAF_ENVELOPE_DATA_OVERHEAD;
    uint64_t sequence = 0;
    frame *cast = malloc(sizeof *cast + size + 1);
    if (cast == NULL) return;
    memset(cast, 0, sizeof *cast);
    sheaf_buffer out = {cast->data, 0, size + 1};
    if (size > link->frame_bytes_max || sheaf_cast_open(&link->cast_key, message, &sequence, &out) != SHEAF_OK) {
        free(cast);
        return;
    }
    cast->size = out.size;
    frames_append(&link->casts, cast);
    link->casts_count++;
}

static void take_down(sheaf_link *link, sheaf_span message) {
    sheaf_envelope_head head;
    uint64_t now = sheaf_mqtt_now_ms();
    if (sheaf_envelope_read_head(message, &head) != SHEAF_OK) return;
    switch (head.kind) {
    case SHEAF_ENVELOPE_CHALLENGE:
        take_challenge(link, message, now);
        return;
    case SHEAF_ENVELOPE_ACCEPT:
        take_accept(link, message);
        return;
    case SHEAF_ENVELOPE_REPLY:
        take_reply(link, message, now);
        return;
    case SHEAF_ENVELOPE_REJECT:
        take_reject(link, message, now);
        return;
    default:
        return; /* nothing that comes to devices */
    }
}

/* --- events of the client ----------------------------------------------------------------------------------------- */

static void on_connected(void *context) {
    sheaf_link *link = context;
    uint64_t now = sheaf_mqtt_now_ms();
    pthread_mutex_lock(&link->lock);
    link->is_connected = 1;
    link->hello_ms = now;
    if (link->opening_since_ms != 0) link->opening_since_ms = now;
    for (uint32_t i = 0; i < link->used; i++) {
        link->requests[i].resend_ms = now;
        if (link->requests[i].alive_ms != 0) link->requests[i].alive_ms = now;
    }
    pthread_mutex_unlock(&link->lock);
}

static void on_lost(void *context, int was_connected, const sheaf_problem *problem) {
    sheaf_link *link = context;
    pthread_mutex_lock(&link->lock);
    link->is_connected = 0;
    if (!was_connected) fail(link, problem->text);
    pthread_mutex_unlock(&link->lock);
}

static void on_message(void *context, const char *topic, sheaf_span payload, int is_retained) {
    sheaf_link *link = context;
    if (is_retained) return; /* nobody of ours retains: garbage, or a replay */
    pthread_mutex_lock(&link->lock);
    if (strcmp(topic, link->down) == 0)
        take_down(link, payload);
    else
        take_cast(link, topic, payload);
    pthread_mutex_unlock(&link->lock);
}

static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t turn_of_handshake(sheaf_link *link, uint64_t now) {
    if (link->session.state == SHEAF_DEVICE_SESSION_CLOSED) {
        if (link->used == 0) return UINT64_MAX;
        if (now < link->reopen_ms) return link->reopen_ms;
        link->problem.text[0] = '\0';
        open_session(link, now);
        if (link->hello == NULL) return now + 100;
    }
    if (now >= link->opening_since_ms + link->handshake_ms) {
        char why[sizeof link->problem.text];
        (void)snprintf(why, sizeof why, "%s",
                       link->problem.text[0] != '\0' ? link->problem.text
                                                     : "no aggregator answers through this broker");
        end_session(link, now, why);
        return link->reopen_ms;
    }
    if (now >= link->hello_ms) {
        (void)sheaf_mqtt_client_publish(link->client, link->up, sheaf_span_of(link->hello, link->hello_size));
        link->hello_ms = now + link->hello_wait_ms;
        link->hello_wait_ms *= 2u;
    }
    return sooner(link->hello_ms, link->opening_since_ms + link->handshake_ms);
}

/* `frame` may stand in one->message already, where it is sealed in place. */
static sheaf_status seal(sheaf_link *link, request *one, sheaf_span frame) {
    sheaf_buffer out = {one->message, 0, one->capacity};
    sheaf_status status = sheaf_device_session_seal(&link->session, frame, &out, &one->sequence);
    one->is_sealed = status == SHEAF_OK;
    return status;
}

/* 0: the session is gone, because all its numbers are used (the requests wait for another) or its cipher failed. */
static int seal_in_place(sheaf_link *link, request *one) {
    size_t size = one->size - SHEAF_ENVELOPE_DATA_OVERHEAD;
    sheaf_status status = seal(link, one, sheaf_span_of(one->message + SHEAF_ENVELOPE_DATA_CLEAR, size));
    if (status == SHEAF_OK) return 1;
    if (status != SHEAF_E_CLOSED) fail(link, sheaf_status_text(status)); /* the frame may be spoiled */
    forget_session(link);
    return 0;
}

static uint64_t turn_of_request(sheaf_link *link, request *one, uint64_t now) {
    if (one->is_sealed && now < one->resend_ms) return one->resend_ms;
    if (one->sendings > 0 && (sheaf_mqtt_client_unsent(link->client) > 0 || link->movement.arriving >= ARRIVING_MIN))
        return now + 50; /* the line is slow, not lost */
    if (!one->is_sealed && !seal_in_place(link, one)) return now + 50;
    if (sheaf_mqtt_client_publish(link->client, link->up, sheaf_span_of(one->message, one->size)) != SHEAF_OK)
        return UINT64_MAX; /* the turn after the socket has taken what is before it */
    one->wait_ms = one->sendings == 0 ? resend_wait_ms(link) : one->wait_ms * 2u;
    if (one->wait_ms > RESEND_MAX_MS) one->wait_ms = RESEND_MAX_MS;
    one->sendings++;
    one->sent_ms = now;
    if (one->alive_ms == 0) one->alive_ms = now;
    one->resend_ms = now + one->wait_ms;
    return one->resend_ms;
}

/* Bytes that come are a sign of life, and so are those of a request that leaves; but not those of a repetition. */
static void note_progress(sheaf_link *link, const sheaf_mqtt_movement *movement, uint64_t now) {
    int comes = movement->received != link->movement.received, goes = movement->sent != link->movement.sent;
    link->movement = *movement;
    for (uint32_t i = 0; i < link->used; i++) {
        request *one = &link->requests[i];
        if (one->sendings > 0 && (comes || (goes && one->sendings == 1))) one->alive_ms = now;
    }
}

static uint64_t turn_of_requests(sheaf_link *link, uint64_t now) {
    uint64_t until = UINT64_MAX;
    sheaf_mqtt_movement movement;
    if (link->used == 0) return until;
    sheaf_mqtt_client_movement(link->client, &movement);
    note_progress(link, &movement, now);
    for (uint32_t i = 0; i < link->used && link->session.state == SHEAF_DEVICE_SESSION_READY; i++) {
        request *one = &link->requests[i];
        if (one->alive_ms != 0 && now >= one->alive_ms + (uint64_t)PATIENCE * link->handshake_ms) {
            end_session(link, now, "no answer comes from the aggregator");
            return now;
        }
        until = sooner(until, turn_of_request(link, one, now));
    }
    return until;
}

static uint64_t on_turn(void *context, uint64_t now) {
    sheaf_link *link = context;
    uint64_t until = UINT64_MAX;
    pthread_mutex_lock(&link->lock);
    if (link->is_connected) {
        until = link->session.state == SHEAF_DEVICE_SESSION_READY ? UINT64_MAX : turn_of_handshake(link, now);
        if (link->session.state == SHEAF_DEVICE_SESSION_READY) until = turn_of_requests(link, now);
    }
    if (link->spare != NULL && link->used == 0 && now >= link->spare_ms + SPARE_MS) {
        free(link->spare);
        link->spare = NULL;
    }
    pthread_mutex_unlock(&link->lock);
    return until;
}

/* --- the caller's side -------------------------------------------------------------------------------------------- */

static sheaf_status prepare(sheaf_link *link, const sheaf_transport_options *options, sheaf_problem *problem) {
    link->frame_bytes_max = options->frame_bytes_max;
    link->handshake_ms = options->handshake_ms;
    link->window = options->window > 0 ? options->window : 1;
    link->reopen_pause_ms = REOPEN_MIN_MS;
    link->url = strdup(options->url);
    link->requests = calloc(link->window + 1u, sizeof *link->requests);
    if (link->url == NULL || link->requests == NULL)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    sheaf_status status = sheaf_mqtt_prefix(options, link->prefix, problem);
    if (status == SHEAF_OK) status = sheaf_mqtt_party_open(&link->party, &options->tls, problem);
    if (status != SHEAF_OK) return status;
    const char *name = sheaf_certificate_identity(link->party.pair.certificate)->name;
    sheaf_mqtt_topic(link->prefix, SHEAF_MQTT_UP, name, link->up);
    sheaf_mqtt_topic(link->prefix, SHEAF_MQTT_DOWN, name, link->down);
    return SHEAF_OK;
}

sheaf_status sheaf_mqtt_open_link(const sheaf_transport_options *options, sheaf_link **out, sheaf_problem *problem) {
    static const sheaf_mqtt_events callbacks = {on_connected, on_lost, on_message, on_turn, NULL, NULL};
    sheaf_mqtt_client_options client = {options->url, options->tls, options->handshake_ms};
    *out = NULL;
    sheaf_link *link = calloc(1, sizeof *link);
    if (link == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    pthread_mutex_init(&link->lock, NULL);
    sheaf_status status = prepare(link, options, problem);
    sheaf_mqtt_events events = callbacks;
    events.context = link;
    client.tls.trust = link->party.trust;
    client.tls.credentials = link->party.credentials;
    pthread_mutex_lock(&link->lock); /* callbacks wait until the client and its topic are there */
    if (status == SHEAF_OK) status = sheaf_mqtt_client_open(&client, &events, &link->client, problem);
    if (status == SHEAF_OK) status = sheaf_mqtt_client_join(link->client, link->down);
    pthread_mutex_unlock(&link->lock);
    if (status == SHEAF_OK)
        *out = link;
    else
        sheaf_mqtt_close(link);
    return status;
}

/* Sealed at once where there is a session, so that a large frame is read once and copied nowhere. */
static sheaf_status put_request(sheaf_link *link, sheaf_span frame) {
    request one = {.size = frame.size + SHEAF_ENVELOPE_DATA_OVERHEAD};
    if (link->pending >= link->window) return SHEAF_AGAIN;
    one.message = take_buffer(link, one.size, &one.capacity);
    if (one.message == NULL) return SHEAF_E_MEMORY;
    if (link->session.state != SHEAF_DEVICE_SESSION_READY || seal(link, &one, frame) != SHEAF_OK) {
        if (frame.size > 0) memcpy(one.message + SHEAF_ENVELOPE_DATA_CLEAR, frame.data, frame.size);
    }
    link->requests[link->used++] = one;
    link->pending++;
    return SHEAF_OK;
}

sheaf_status sheaf_mqtt_send(sheaf_link *link, sheaf_span bytes) {
    if (bytes.size > link->frame_bytes_max) return SHEAF_E_TOO_LARGE;
    pthread_mutex_lock(&link->lock);
    sheaf_status status = put_request(link, bytes);
    pthread_mutex_unlock(&link->lock);
    if (status == SHEAF_OK) sheaf_mqtt_client_wake(link->client);
    return status;
}

static sheaf_status fetch(sheaf_link *link, frame **list, sheaf_buffer *out) {
    frame *oldest = *list;
    *list = oldest->next;
    oldest->next = NULL;
    sheaf_status status = oldest->size <= out->capacity ? SHEAF_OK : SHEAF_E_TOO_LARGE;
    out->size = status == SHEAF_OK ? oldest->size : 0;
    if (status == SHEAF_OK && oldest->size > 0) memcpy(out->data, oldest->data, oldest->size);
    if (oldest->peer != NULL) {
        sheaf_certificate_unref(link->peer);
        link->peer = sheaf_certificate_ref(oldest->peer);
    }
    frames_free(&oldest);
    return status;
}

sheaf_status sheaf_mqtt_receive(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = SHEAF_AGAIN;
    out->size = 0;
    pthread_mutex_lock(&link->lock);
    if (link->answers != NULL) {
        link->pending--;
        status = fetch(link, &link->answers, out);
    } else if (link->failed) {
        link->failed = 0;
        status = SHEAF_E_NETWORK;
        if (problem != NULL) *problem = link->problem;
    } else if (link->casts != NULL) {
        link->casts_count--;
        status = fetch(link, &link->casts, out);
    }
    pthread_mutex_unlock(&link->lock);
    return status;
}

/* The aggregator may still work on what was given up, and takes one request of a session at a time: what comes next needs
 * a session of its own. */
void sheaf_mqtt_cancel(sheaf_link *link) {
    pthread_mutex_lock(&link->lock);
    if (link->used > 0) {
        remove_requests(link);
        forget_session(link);
    }
    frames_free(&link->answers);
    link->pending = 0;
    link->failed = 0;
    pthread_mutex_unlock(&link->lock);
}

sheaf_certificate *sheaf_mqtt_peer(sheaf_link *link) { return link->peer; }

uint64_t sheaf_mqtt_moved(sheaf_link *link) { return sheaf_mqtt_client_moved(link->client); }

sheaf_status sheaf_mqtt_join(sheaf_link *link, const sheaf_cast_group *group) {
    sheaf_status status = SHEAF_OK;
    pthread_mutex_lock(&link->lock);
    if (link->is_member) {
        sheaf_mqtt_client_leave(link->client, link->cast_topic);
        sheaf_cast_key_drop(&link->cast_key);
    }
    frames_free(&link->casts);
    link->casts_count = 0;
    link->is_member = 0;
    if (group != NULL) {
        status = sheaf_cast_key_begin(&link->cast_key, 1, group);
        sheaf_mqtt_cast_topic(link->prefix, group->id, link->cast_topic);
        if (status == SHEAF_OK) status = sheaf_mqtt_client_join(link->client, link->cast_topic);
        link->is_member = status == SHEAF_OK;
    }
    pthread_mutex_unlock(&link->lock);
    return status;
}

void sheaf_mqtt_close(sheaf_link *link) {
    if (link == NULL) return;
    sheaf_mqtt_client_close(link->client, LINGER_MS);
    remove_requests(link);
    forget_session(link);
    if (link->is_member) sheaf_cast_key_drop(&link->cast_key);
    frames_free(&link->answers);
    frames_free(&link->casts);
    sheaf_certificate_unref(link->peer);
    sheaf_mqtt_party_fini(&link->party);
    free(link->spare);
    free(link->requests);
    free(link->url);
    pthread_mutex_destroy(&link->lock);
    free(link);
}
