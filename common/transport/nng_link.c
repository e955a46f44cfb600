/* The device's end: one TLS stream at a time, on which requests are written one behind the other, at most `window` of
 * them before their answers, which come in the same order.
 *
 *     RESTING -> DIALING -> HELLO_IN -> HELLO_OUT -> READY -> RESTING ...
 *
 * The server's hello is awaited before anything is sent: in TLS 1.3 a device's handshake ends before the server has
 * looked at its certificate, and bytes sent to a server that refuses it would destroy the alert that says why.
 *
 * READY is full duplex: a step that reads is always under way, one that writes while a request has not left. Requests
 * stand in a ring, oldest first: the first `answered` of them have their answers, the first `sent` were written on this
 * connection, or are being written.
 *
 * Requests that a broken connection takes along are sent again once, at once; if that fails too, or no connection comes
 * about, all of them have failed and `receive` says why. Pauses between attempts grow, with some randomness, so that a
 * fleet does not return all at the same moment; an answer makes them small again. A connection that breaks while
 * nothing is asked comes back with the next request.
 *
 * Threads: steps end on NNG's threads. `lock` guards everything; it may be held while NNG's functions are called, for
 * NNG never calls back on the calling thread. New attempts and deadlines are looked at only inside send and receive, so
 * the link needs no thread and no timer of its own. */
#include <openssl/rand.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/transport/nng_address.h"
#include "common/transport/nng_ends.h"
#include "common/transport/sp.h"
#include "common/transport/tls_stream.h"

#define PAUSE_MIN_MS    100u
#define PAUSE_MAX_MS    10000u
#define WATCH_PERIOD_MS 200u /* see sheaf_tls_stream_is_lost */
#define RESENDS         1u

typedef enum { RESTING, DIALING, HELLO_IN, HELLO_OUT, READY } phase;

/* Grows, and is kept for the next message: large blocks are dear to allocate. */
typedef struct {
    uint8_t *data;
    size_t capacity;
} block;

typedef struct {
    uint32_t id; /* the top bit is set */
    unsigned resends;
    block asked; /* the head that goes before it, then a copy of the frame */
    size_t asked_bytes;
    block answer;
    size_t answer_bytes;
    sheaf_certificate *peer; /* that gave the answer */
} request;

struct sheaf_link {
    pthread_mutex_t lock;
    char *url;
    sheaf_tls_context *credentials;
    uint32_t frame_bytes_max, handshake_ms;
    nng_stream_dialer *dialer;
    nng_aio *dialing;
    sheaf_tls_stream stream;
    phase phase;
    int sending, receiving; /* steps under way */
    int in_body;            /* the one that receives is behind the head */
    int abandoned;          /* what is under way is being closed; its end is still to come */
    int gave_up;            /* it was abandoned by cancel */
    int idle;               /* resting until somebody asks */
    const char *why;        /* it was abandoned; a constant */
    unsigned misses;        /* times in a row that the connection seemed lost */
    uint64_t deadline_ms;   /* of the handshake, from dialing on; 0: none */
    uint64_t lost_look_ms, retry_ms;
    sheaf_tls_watch watch; /* while an answer is owed */
    uint32_t pause_ms;

    request *requests; /* `window` of them, a ring */
    uint32_t window, first, count, answered, sent;
    uint32_t last_id;
    int failed; /* and nobody was told yet */
    uint8_t hello[SHEAF_SP_HELLO_BYTES], head[SHEAF_SP_HEAD_BYTES];
    block next;                        /* the copy of a frame before its turn; of whoever sends, without the lock */
    block stale[2];                    /* of requests that were given up, while steps may still touch them */
    sheaf_problem problem;             /* of the last failure */
    sheaf_certificate *connected_peer; /* of this connection */
    sheaf_certificate *peer;           /* of the last answer */
};

/* ---- requests ---- */

static request *request_at(sheaf_link *link, uint32_t place) {
    return &link->requests[(link->first + place) % link->window];
}

static int block_reserve(block *space, size_t bytes) {
    if (space->capacity >= bytes) return 1;
    free(space->data);
    space->data = malloc(bytes);
    space->capacity = space->data == NULL ? 0 : bytes;
    return space->data != NULL;
}

static void block_free(block *space) {
    free(space->data);
    *space = (block){NULL, 0};
}

/* Those without an answer; what was answered may still be fetched. */
static void drop_unanswered(sheaf_link *link) { link->count = link->sent = link->answered; }

static int is_owed_an_answer(const sheaf_link *link) { return link->count > link->answered; }

/* ---- when it fails ---- */

static void grow_pause(sheaf_link *link) {
    uint8_t random[2] = {0, 0};
    (void)RAND_bytes(random, sizeof random); /* without it pauses only lose their jitter */
    uint32_t jitter = link->pause_ms / 4u * (uint32_t)(random[0] | random[1] << 8) / 65536u;
    link->retry_ms = sheaf_tls_now_ms() + link->pause_ms + jitter;
    link->pause_ms = link->pause_ms > PAUSE_MAX_MS / 2u ? PAUSE_MAX_MS : link->pause_ms * 2u;
}

/* What TLS says is nearer to the cause than why we closed, and that nearer than NNG's number. */
static void explain(sheaf_link *link, const char *text) {
    sheaf_tls_state state = {NULL, SHEAF_OK, ""};
    if (link->why != NULL) text = link->why;
    sheaf_tls_stream_ask(&link->stream, &state);
    sheaf_certificate_unref(state.peer);
    if (state.status != SHEAF_OK) text = state.text;
    (void)sheaf_problem_set(&link->problem, SHEAF_E_NETWORK, "%s: %s", link->url, text);
}

/* Whether all that this connection took along may travel once more. */
static int take_resends(sheaf_link *link) {
    if (link->phase != READY) return 0;
    for (uint32_t i = link->answered; i < link->sent; i++)
        if (request_at(link, i)->resends == 0) return 0;
    for (uint32_t i = link->answered; i < link->sent; i++) request_at(link, i)->resends--;
    return 1;
}

/* Nothing is under way any more: what was tried has failed, or the connection broke. */
static void lose(sheaf_link *link, const char *text) {
    explain(link, text);
    sheaf_tls_stream_detach(&link->stream);
    sheaf_certificate_unref(link->connected_peer);
    link->connected_peer = NULL;
    block_free(&link->stale[0]);
    block_free(&link->stale[1]);
    grow_pause(link);
    if (link->gave_up) {
        link->retry_ms = 0; /* requests that came since then have nothing to do with the loss */
    } else if (!is_owed_an_answer(link)) {
        link->idle = link->phase == READY;
    } else if (take_resends(link)) {
        link->retry_ms = 0;
    } else {
        drop_unanswered(link);
        link->failed = 1;
    }
    link->sent = link->answered;
    link->phase = RESTING;
    link->deadline_ms = 0;
    link->abandoned = link->gave_up = link->in_body = 0;
    link->why = NULL;
}

/* Closes what is under way for a reason of ours; `lose` follows when it has ended. */
static void abandon(sheaf_link *link, const char *why) {
    if (link->abandoned || link->phase == RESTING) return;
    link->why = why;
    link->abandoned = 1;
    if (link->phase == DIALING) {
        nng_stream_dialer_close(link->dialer);
    } else {
        sheaf_tls_stream_close(&link->stream);
    }
}

/* Called where a step has ended or could not begin. */
static void break_off(sheaf_link *link, const char *why) {
    abandon(link, why);
    if (!link->sending && !link->receiving) lose(link, "");
}

/* ---- steps; under the lock ---- */

#define LOST "the connection was lost"

static void receive(sheaf_link *link, void *first, size_t first_bytes, void *second, size_t second_bytes) {
    link->receiving = sheaf_tls_stream_receive(&link->stream, first, first_bytes, second, second_bytes) == 0;
    if (!link->receiving) break_off(link, LOST);
}

static void transmit(sheaf_link *link, sheaf_span bytes) {
    link->sending = sheaf_tls_stream_send(&link->stream, bytes) == 0;
    if (!link->sending) break_off(link, LOST);
}

static void receive_head(sheaf_link *link) {
    link->in_body = 0;
    receive(link, link->head, sizeof link->head, NULL, 0);
}

static uint64_t patience_ms(const sheaf_link *link) { return (uint64_t)link->handshake_ms * SHEAF_TLS_PATIENCE; }

static void send_next(sheaf_link *link) {
    if (link->phase != READY || link->abandoned || link->sending || link->sent == link->count) return;
    if (link->sent == link->answered) sheaf_tls_watch_begin(&link->watch, sheaf_tls_now_ms(), patience_ms(link));
    request *next = request_at(link, link->sent++);
    transmit(link, sheaf_span_of(next->asked.data, SHEAF_SP_HEAD_BYTES + next->asked_bytes));
}

static void get_ready(sheaf_link *link) {
    link->phase = READY;
    link->deadline_ms = 0;
    receive_head(link);
    send_next(link);
}

static void greet(sheaf_link *link) {
    sheaf_tls_state state;
    if (!sheaf_sp_hello_is(link->hello, SHEAF_SP_REP)) {
        break_off(link, "the server does not speak NNG's REP protocol");
        return;
    }
    sheaf_tls_stream_ask(&link->stream, &state);
    link->connected_peer = state.peer;
    if (state.peer == NULL) {
        break_off(link, "the server has no verified certificate");
        return;
    }
    link->phase = HELLO_OUT;
    sheaf_sp_write_hello(link->hello, SHEAF_SP_REQ);
    transmit(link, sheaf_span_of(link->hello, sizeof link->hello));
}

static void forbid_resends(sheaf_link *link) {
    for (uint32_t i = link->answered; i < link->count; i++) request_at(link, i)->resends = 0;
}

static void receive_body(sheaf_link *link) {
    uint64_t bytes = sheaf_sp_read_length(link->head);
    if (link->sent == link->answered) {
        break_off(link, "the server sent an answer that nobody had asked for");
        return;
    }
    if (bytes < SHEAF_SP_ID_BYTES || bytes > (uint64_t)link->frame_bytes_max + SHEAF_SP_ID_BYTES) {
        forbid_resends(link); /* it would come again */
        break_off(link, bytes < SHEAF_SP_ID_BYTES ? "the server sent a malformed message"
                                                  : "the server sent a frame above the limit");
        return;
    }
    request *oldest = request_at(link, link->answered);
    oldest->answer_bytes = (size_t)(bytes - SHEAF_SP_ID_BYTES);
    if (!block_reserve(&oldest->answer, oldest->answer_bytes + 1)) {
        break_off(link, "no memory for the answer");
        return;
    }
    link->in_body = 1;
    receive(link, oldest->answer.data, oldest->answer_bytes, NULL, 0);
}

static void take_body(sheaf_link *link) {
    /* Another id: an answer to something that nobody waits for any more. */
    if (sheaf_sp_read_id(link->head + SHEAF_SP_LENGTH_BYTES) == request_at(link, link->answered)->id) {
        request_at(link, link->answered++)->peer = sheaf_certificate_ref(link->connected_peer);
        link->pause_ms = PAUSE_MIN_MS;
        link->watch.since_ms = sheaf_tls_now_ms();
    }
    receive_head(link);
}

static const char *loss_text(const sheaf_link *link) {
    return link->phase <= HELLO_OUT ? "closed by the server before the connection was ready" : LOST;
}

static void on_received(void *context, int error) {
    sheaf_link *link = context;
    pthread_mutex_lock(&link->lock);
    link->receiving = 0;
    if (error != 0 || link->abandoned) {
        break_off(link, loss_text(link));
    } else if (link->phase == HELLO_IN) {
        greet(link);
    } else if (link->in_body) {
        take_body(link);
    } else if (sheaf_sp_read_length(link->head) == SHEAF_SP_ID_BYTES && link->sent > link->answered) {
        request_at(link, link->answered)->answer_bytes = 0; /* there is no body to wait for */
        take_body(link);
    } else {
        receive_body(link);
    }
    pthread_mutex_unlock(&link->lock);
}

static void on_sent(void *context, int error) {
    sheaf_link *link = context;
    pthread_mutex_lock(&link->lock);
    link->sending = 0;
    if (error != 0 || link->abandoned) {
        break_off(link, loss_text(link));
    } else if (link->phase == HELLO_OUT) {
        get_ready(link);
    } else {
        send_next(link);
    }
    pthread_mutex_unlock(&link->lock);
}

static void on_dialed(void *context) {
    sheaf_link *link = context;
    pthread_mutex_lock(&link->lock);
    int error = nng_aio_result(link->dialing);
    if (error == 0) sheaf_tls_stream_attach(&link->stream, nng_aio_get_output(link->dialing, 0), link->credentials);
    if (error != 0 || link->abandoned) {
        lose(link, nng_strerror(error));
    } else {
        link->phase = HELLO_IN;
        receive(link, link->hello, sizeof link->hello, NULL, 0);
    }
    pthread_mutex_unlock(&link->lock);
}

/* ---- what send and receive drive ---- */

static int renew_dialer(sheaf_link *link) {
    if (link->dialer != NULL) nng_stream_dialer_free(link->dialer);
    link->dialer = NULL;
    int error = nng_stream_dialer_alloc(&link->dialer, sheaf_nng_below_tls(link->url));
    if (error == 0) error = nng_stream_dialer_set_bool(link->dialer, NNG_OPT_TCP_NODELAY, true);
    if (error == 0) error = nng_stream_dialer_set_bool(link->dialer, NNG_OPT_TCP_KEEPALIVE, true);
    return error;
}

/* A new dialer each time, because one that was closed to end a stuck attempt cannot dial again. */
static void dial(sheaf_link *link) {
    int error = renew_dialer(link);
    link->phase = DIALING;
    if (error != 0) {
        lose(link, nng_strerror(error));
        return;
    }
    link->deadline_ms = sheaf_tls_now_ms() + link->handshake_ms;
    nng_stream_dialer_dial(link->dialer, link->dialing);
}

static void look_for_progress(sheaf_link *link, uint64_t now) {
    int waits = link->phase == READY && (link->sent > link->answered || link->sending);
    if (!waits || now < link->watch.look_ms) return;
    if (sheaf_tls_watch_is_still(&link->watch, &link->stream, now, patience_ms(link)))
        abandon(link, "no answer, and no byte has moved in time");
}

static void drive(sheaf_link *link) {
    uint64_t now = sheaf_tls_now_ms();
    if (link->phase == RESTING && now >= link->retry_ms && (!link->idle || is_owed_an_answer(link))) dial(link);
    send_next(link);
    if (link->deadline_ms != 0 && now >= link->deadline_ms)
        abandon(link, link->phase == DIALING ? "no connection in time" : "the handshake was not finished in time");
    if (link->phase < HELLO_IN || link->abandoned) return;
    look_for_progress(link, now);
    if (now < link->lost_look_ms) return;
    /* Twice in a row, so that an alert which came just before the end is read first. */
    link->lost_look_ms = now + WATCH_PERIOD_MS;
    link->misses = sheaf_tls_stream_is_lost(&link->stream) ? link->misses + 1 : 0;
    if (link->misses >= 2) abandon(link, LOST);
}

static int has_room(const sheaf_link *link) { return link->count < link->window && !link->failed; }

static sheaf_status copy_frame(block *into, sheaf_span frame) {
    if (!block_reserve(into, SHEAF_SP_HEAD_BYTES + frame.size)) return SHEAF_E_MEMORY;
    if (frame.size > 0) memcpy(into->data + SHEAF_SP_HEAD_BYTES, frame.data, frame.size);
    return SHEAF_OK;
}

static sheaf_status enqueue(sheaf_link *link, size_t frame_bytes) {
    if (!has_room(link)) return SHEAF_AGAIN; /* it has failed meanwhile */
    request *new = request_at(link, link->count++);
    block spare = new->asked;
    new->asked = link->next;
    link->next = spare;
    new->id = link->last_id = (link->last_id + 1u) | 0x80000000u;
    new->resends = RESENDS;
    new->asked_bytes = frame_bytes;
    sheaf_sp_write_head(new->asked.data, new->id, frame_bytes);
    return SHEAF_OK;
}

sheaf_status sheaf_nng_send(sheaf_link *link, sheaf_span frame) {
    if (frame.size > link->frame_bytes_max) return SHEAF_E_TOO_LARGE;
    sheaf_status status = SHEAF_AGAIN;
    pthread_mutex_lock(&link->lock);
    if (has_room(link)) {
        pthread_mutex_unlock(&link->lock); /* steps of other requests end meanwhile, and copying takes long */
        status = copy_frame(&link->next, frame);
        pthread_mutex_lock(&link->lock);
        if (status == SHEAF_OK) status = enqueue(link, frame.size);
    }
    drive(link);
    pthread_mutex_unlock(&link->lock);
    return status;
}

static sheaf_status take_answer(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    request *oldest = request_at(link, 0);
    sheaf_certificate_unref(link->peer);
    link->peer = oldest->peer;
    oldest->peer = NULL;
    if (oldest->answer_bytes > out->capacity) {
        status = sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: an answer of %zu bytes does not fit", link->url,
                                   oldest->answer_bytes);
    } else {
        if (oldest->answer_bytes > 0) memcpy(out->data, oldest->answer.data, oldest->answer_bytes);
        out->size = oldest->answer_bytes;
    }
    link->first = (link->first + 1) % link->window;
    link->count--;
    link->answered--;
    link->sent--;
    return status;
}

sheaf_status sheaf_nng_receive(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = SHEAF_AGAIN;
    pthread_mutex_lock(&link->lock);
    /* The news that a request has left may come later than its answer, and its buffer is in use until then. */
    int leaving = link->phase == READY && link->sending && link->sent == 1;
    if (link->answered > 0 && !leaving) {
        status = take_answer(link, out, problem);
    } else if (link->failed && link->answered == 0) {
        link->failed = 0;
        status = sheaf_problem_set(problem, link->problem.status, "%s", link->problem.text);
    }
    drive(link);
    pthread_mutex_unlock(&link->lock);
    return status;
}

/* Steps under way keep the buffers that they use. */
static void leave_buffers_to_steps(sheaf_link *link) {
    if (link->sending) {
        request *writing = request_at(link, link->sent - 1);
        link->stale[0] = writing->asked;
        writing->asked = (block){NULL, 0};
    }
    if (link->in_body) {
        request *reading = request_at(link, link->answered);
        link->stale[1] = reading->answer;
        reading->answer = (block){NULL, 0};
    }
}

/* Requests that nobody sent yet are just forgotten. Those that are out take their connection with them: whoever gives up
 * has waited, so the connection is not to be trusted, and it cannot then bring a late answer. */
void sheaf_nng_cancel(sheaf_link *link) {
    pthread_mutex_lock(&link->lock);
    if (link->phase == READY && (link->sent > link->answered || link->sending) && !link->gave_up) {
        leave_buffers_to_steps(link);
        link->gave_up = 1;
        abandon(link, "given up");
    }
    for (uint32_t i = 0; i < link->answered; i++) {
        sheaf_certificate_unref(request_at(link, i)->peer);
        request_at(link, i)->peer = NULL;
    }
    link->count = link->answered = link->sent = 0;
    link->failed = 0;
    pthread_mutex_unlock(&link->lock);
}

sheaf_certificate *sheaf_nng_peer(sheaf_link *link) {
    pthread_mutex_lock(&link->lock);
    sheaf_certificate *peer = link->peer;
    pthread_mutex_unlock(&link->lock);
    return peer;
}

uint64_t sheaf_nng_moved(sheaf_link *link) {
    pthread_mutex_lock(&link->lock);
    uint64_t moved = link->phase >= HELLO_IN && !link->abandoned ? sheaf_tls_stream_moved(&link->stream) : 0;
    pthread_mutex_unlock(&link->lock);
    return moved;
}

/* ---- open and close ---- */

static sheaf_status open_tls(sheaf_link *link, const sheaf_transport_options *options, sheaf_problem *problem) {
    nng_url *url = NULL;
    int error = nng_url_parse(&url, options->url);
    if (error != 0 || url->u_hostname[0] == '\0' || url->u_port[0] == '\0' || strcmp(url->u_port, "0") == 0 ||
        strlen(url->u_path) > 1) {
        if (error == 0) nng_url_free(url);
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%.200s: not of the form tls+tcp://host:port", options->url);
    }
    const char *host = options->tls.server_name != NULL ? options->tls.server_name : url->u_hostname;
    sheaf_status status = sheaf_tls_context_open(&options->tls, SHEAF_TLS_LINK, host, &link->credentials, problem);
    nng_url_free(url);
    return status;
}

static sheaf_status start_link(sheaf_link *link, const char *url, sheaf_problem *problem) {
    link->url = strdup(url);
    link->requests = calloc(link->window, sizeof *link->requests);
    if (link->url != NULL && link->requests != NULL &&
        sheaf_tls_stream_init(&link->stream, on_received, on_sent, link) == 0 &&
        nng_aio_alloc(&link->dialing, on_dialed, link) == 0) {
        nng_aio_set_timeout(link->dialing, NNG_DURATION_INFINITE);
        pthread_mutex_lock(&link->lock);
        drive(link);
        pthread_mutex_unlock(&link->lock);
        return SHEAF_OK;
    }
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for a link", url);
}

static void free_link(sheaf_link *link) {
    if (link->dialing != NULL) {
        nng_aio_wait(link->dialing);
        nng_aio_free(link->dialing);
    }
    sheaf_tls_stream_fini(&link->stream);
    if (link->dialer != NULL) nng_stream_dialer_free(link->dialer);
    sheaf_tls_context_unref(link->credentials);
    for (uint32_t i = 0; link->requests != NULL && i < link->window; i++) {
        block_free(&link->requests[i].asked);
        block_free(&link->requests[i].answer);
        sheaf_certificate_unref(link->requests[i].peer);
    }
    free(link->requests);
    block_free(&link->next);
    block_free(&link->stale[0]);
    block_free(&link->stale[1]);
    sheaf_certificate_unref(link->connected_peer);
    sheaf_certificate_unref(link->peer);
    pthread_mutex_destroy(&link->lock);
    free(link->url);
    free(link);
}

sheaf_status sheaf_nng_open_link(const sheaf_transport_options *options, sheaf_link **out, sheaf_problem *problem) {
    sheaf_link *link = calloc(1, sizeof *link);
    if (link == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->url);
    pthread_mutex_init(&link->lock, NULL);
    link->frame_bytes_max = options->frame_bytes_max;
    link->handshake_ms = options->handshake_ms;
    link->window = options->window > 0 ? options->window : 1;
    link->pause_ms = PAUSE_MIN_MS;
    (void)RAND_bytes((unsigned char *)&link->last_id, sizeof link->last_id); /* any start will do */
    sheaf_status status = open_tls(link, options, problem);
    if (status == SHEAF_OK) status = start_link(link, options->url, problem);
    if (status == SHEAF_OK) {
        *out = link;
    } else {
        free_link(link);
    }
    return status;
}

void sheaf_nng_close(sheaf_link *link) {
    if (link == NULL) return;
    pthread_mutex_lock(&link->lock);
    abandon(link, "closed");
    pthread_mutex_unlock(&link->lock);
    free_link(link);
}
