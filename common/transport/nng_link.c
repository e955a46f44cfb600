/* The device's end: one NNG TLS stream at a time, one request at a time.
 *
 *     RESTING -> DIALING -> HELLO_IN -> HELLO_OUT -> READY -> ASKING -> LENGTH -> BODY -> READY ...
 *
 * The server's hello is awaited before anything is sent: in TLS 1.3 a device's handshake ends before the server has
 * looked at its certificate, and bytes sent to a server that refuses it would destroy the alert that says why.
 *
 * A request that a broken connection takes along is sent again once, at once; if that fails too, or no connection comes
 * about, the request has failed and `receive` says why. Pauses between attempts grow, with some randomness, so that a
 * fleet does not return all at the same moment; an answer makes them small again.
 *
 * Threads: steps end on NNG's threads. `lock` guards everything; it may be held while NNG's functions are called, for
 * NNG never calls back on the calling thread. New attempts and deadlines are looked at only inside send and receive, so
 * the link needs no thread and no timer of its own. */
#include <openssl/rand.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/transport/nng_ends.h"
#include "common/transport/sp.h"
#include "common/transport/tls_engine.h"

#define PAUSE_MIN_MS    100u
#define PAUSE_MAX_MS    10000u
#define ANSWER_MS       30000u /* a server that says nothing for so long is asked again on a new connection */
#define WATCH_PERIOD_MS 200u   /* see sheaf_sp_is_lost */
#define RESENDS         1

typedef enum { RESTING, DIALING, HELLO_IN, HELLO_OUT, READY, ASKING, LENGTH, BODY } phase;
typedef enum { NO_REQUEST, WANTED, ANSWERED, FAILED } request_state;

struct sheaf_link {
    pthread_mutex_t lock;
    char *url;
    sheaf_tls_context *credentials;
    nng_tls_config *tls;
    uint32_t frame_bytes_max, handshake_ms;
    nng_stream_dialer *dialer;
    nng_aio *dialing;
    sheaf_sp sp;
    phase phase;
    int abandoned;   /* we closed what is under way; its end is still to come */
    int gave_up;     /* it was abandoned by cancel */
    const char *why; /* it was abandoned; a constant */
    unsigned misses; /* times in a row that the connection seemed lost */
    uint64_t deadline_ms, watch_ms, retry_ms;
    uint32_t pause_ms;

    request_state request;
    uint32_t id; /* of the request; the top bit is set */
    unsigned resends;
    uint8_t *asked; /* a copy of the frame, until it is answered */
    size_t asked_bytes;
    uint8_t head[SHEAF_SP_HEAD_BYTES], hello[SHEAF_SP_HELLO_BYTES], length[SHEAF_SP_LENGTH_BYTES],
        answer_id[SHEAF_SP_ID_BYTES];
    uint8_t *answer;
    size_t answer_bytes;
    uint8_t *stale_asked, *stale_answer; /* of a request that was given up, while a step may still touch them */
    sheaf_problem problem;               /* of the last failure */
    sheaf_certificate *connected_peer;   /* of this connection */
    sheaf_certificate *peer;             /* of the last answer */
};

/* ---- when it fails ---- */

static void drop_request(sheaf_link *link) {
    free(link->asked);
    free(link->answer);
    link->asked = link->answer = NULL;
    link->request = NO_REQUEST;
}

static void fail_request(sheaf_link *link) {
    if (link->request != WANTED) return;
    drop_request(link);
    link->request = FAILED;
}

static void grow_pause(sheaf_link *link) {
    uint8_t random[2] = {0, 0};
    (void)RAND_bytes(random, sizeof random); /* without it pauses only lose their jitter */
    uint32_t jitter = link->pause_ms / 4u * (uint32_t)(random[0] | random[1] << 8) / 65536u;
    link->retry_ms = sheaf_sp_now_ms() + link->pause_ms + jitter;
    link->pause_ms = link->pause_ms > PAUSE_MAX_MS / 2u ? PAUSE_MAX_MS : link->pause_ms * 2u;
}

/* What TLS says is nearer to the cause than why we closed, and that nearer than NNG's number. */
static void explain(sheaf_link *link, const char *text) {
    sheaf_tls_state state = {NULL, SHEAF_OK, ""};
    if (link->why != NULL) text = link->why;
    if (link->sp.stream != NULL) sheaf_tls_ask(link->sp.stream, &state);
    sheaf_certificate_unref(state.peer);
    if (state.status != SHEAF_OK) text = state.text;
    (void)sheaf_problem_set(&link->problem, SHEAF_E_NETWORK, "%s: %s", link->url, text);
}

/* Nothing is under way any more: what was tried has failed, or the connection broke. */
static void lose(sheaf_link *link, const char *text) {
    int may_resend = link->phase >= ASKING && link->resends > 0;
    explain(link, text);
    sheaf_sp_detach(&link->sp);
    sheaf_certificate_unref(link->connected_peer);
    link->connected_peer = NULL;
    free(link->stale_asked);
    free(link->stale_answer);
    link->stale_asked = link->stale_answer = NULL;
    link->phase = RESTING;
    link->deadline_ms = 0;
    grow_pause(link);
    if (link->gave_up) {
        link->retry_ms = 0; /* a request that came since then has nothing to do with the loss */
    } else if (link->request == WANTED && may_resend) {
        free(link->answer);
        link->answer = NULL;
        link->resends--;
        link->retry_ms = 0;
    } else {
        fail_request(link);
    }
    link->abandoned = link->gave_up = 0;
    link->why = NULL;
}

/* Closes what is under way for a reason of ours; `lose` follows when it has ended. */
static void abandon(sheaf_link *link, const char *why) {
    if (link->abandoned || link->phase == RESTING || link->phase == READY) return;
    link->why = why;
    link->abandoned = 1;
    if (link->phase == DIALING) {
        nng_stream_dialer_close(link->dialer);
    } else {
        sheaf_sp_close(&link->sp);
    }
}

/* ---- steps; under the lock ---- */

static void lose_unless(sheaf_link *link, int error) {
    if (error != 0) lose(link, "the connection was lost");
}

static void set_deadline(sheaf_link *link, uint32_t base_ms, size_t bytes) {
    link->deadline_ms = sheaf_sp_now_ms() + sheaf_sp_patience_ms(base_ms, bytes);
}

static void receive_length(sheaf_link *link) {
    link->phase = LENGTH;
    set_deadline(link, ANSWER_MS, 0);
    lose_unless(link, sheaf_sp_receive(&link->sp, link->length, sizeof link->length, NULL, 0));
}

static void ask(sheaf_link *link) {
    link->phase = ASKING;
    set_deadline(link, link->handshake_ms, link->asked_bytes);
    sheaf_sp_write_head(link->head, link->id, link->asked_bytes);
    lose_unless(link, sheaf_sp_send(&link->sp, sheaf_span_of(link->head, sizeof link->head),
                                    sheaf_span_of(link->asked, link->asked_bytes)));
}

static void get_ready(sheaf_link *link) {
    link->phase = READY;
    link->deadline_ms = 0;
    if (link->request == WANTED) ask(link);
}

static void greet(sheaf_link *link) {
    sheaf_tls_state state;
    if (!sheaf_sp_hello_is(link->hello, SHEAF_SP_REP)) {
        lose(link, "the server does not speak NNG's REP protocol");
        return;
    }
    sheaf_tls_ask(link->sp.stream, &state);
    link->connected_peer = state.peer;
    if (state.peer == NULL) {
        lose(link, "the server has no verified certificate");
        return;
    }
    link->phase = HELLO_OUT;
    sheaf_sp_write_hello(link->hello, SHEAF_SP_REQ);
    lose_unless(link, sheaf_sp_send(&link->sp, sheaf_span_of(link->hello, sizeof link->hello), sheaf_span_of(NULL, 0)));
}

static void receive_body(sheaf_link *link) {
    uint64_t bytes = sheaf_sp_read_length(link->length);
    if (bytes < SHEAF_SP_ID_BYTES || bytes > (uint64_t)link->frame_bytes_max + SHEAF_SP_ID_BYTES) {
        link->resends = 0; /* it would come again */
        lose(link, bytes < SHEAF_SP_ID_BYTES ? "the server sent a malformed message"
                                             : "the server sent a frame above the limit");
        return;
    }
    link->answer_bytes = (size_t)(bytes - SHEAF_SP_ID_BYTES);
    link->answer = malloc(link->answer_bytes + 1);
    if (link->answer == NULL) {
        lose(link, "no memory for the answer");
        return;
    }
    link->phase = BODY;
    set_deadline(link, link->handshake_ms, link->answer_bytes);
    lose_unless(link,
                sheaf_sp_receive(&link->sp, link->answer_id, sizeof link->answer_id, link->answer, link->answer_bytes));
}

static void take_body(sheaf_link *link) {
    if (sheaf_sp_read_id(link->answer_id) != link->id) { /* an answer to something that nobody waits for any more */
        free(link->answer);
        link->answer = NULL;
        receive_length(link);
        return;
    }
    free(link->asked);
    link->asked = NULL;
    link->request = ANSWERED;
    link->pause_ms = PAUSE_MIN_MS;
    sheaf_certificate_unref(link->peer);
    link->peer = sheaf_certificate_ref(link->connected_peer);
    get_ready(link);
}

static void on_step(void *context, int error) {
    sheaf_link *link = context;
    pthread_mutex_lock(&link->lock);
    if (error != 0 || link->abandoned) {
        lose(link, link->phase <= HELLO_OUT ? "closed by the server before the connection was ready"
                                            : "the connection was lost");
    } else if (link->phase == HELLO_IN) {
        greet(link);
    } else if (link->phase == HELLO_OUT) {
        get_ready(link);
    } else if (link->phase == ASKING) {
        receive_length(link);
    } else if (link->phase == LENGTH) {
        receive_body(link);
    } else {
        take_body(link);
    }
    pthread_mutex_unlock(&link->lock);
}

static void on_dialed(void *context) {
    sheaf_link *link = context;
    pthread_mutex_lock(&link->lock);
    int error = nng_aio_result(link->dialing);
    if (error == 0) sheaf_sp_attach(&link->sp, nng_aio_get_output(link->dialing, 0));
    if (error != 0 || link->abandoned) {
        lose(link, nng_strerror(error));
    } else {
        link->phase = HELLO_IN;
        lose_unless(link, sheaf_sp_receive(&link->sp, link->hello, sizeof link->hello, NULL, 0));
    }
    pthread_mutex_unlock(&link->lock);
}

/* ---- what send and receive drive ---- */

static int renew_dialer(sheaf_link *link) {
    if (link->dialer != NULL) nng_stream_dialer_free(link->dialer);
    link->dialer = NULL;
    int error = nng_stream_dialer_alloc(&link->dialer, link->url);
    if (error == 0) error = nng_stream_dialer_set_ptr(link->dialer, NNG_OPT_TLS_CONFIG, link->tls);
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
    set_deadline(link, link->handshake_ms, 0);
    nng_stream_dialer_dial(link->dialer, link->dialing);
}

static const char *late_text(phase phase) {
    switch (phase) {
    case DIALING:
        return "no connection in time";
    case HELLO_IN:
    case HELLO_OUT:
        return "the handshake was not finished in time";
    case LENGTH:
        return "no answer in time";
    default:
        return "too slow";
    }
}

static void drive(sheaf_link *link) {
    uint64_t now = sheaf_sp_now_ms();
    if (link->phase == RESTING && now >= link->retry_ms) dial(link);
    if (link->phase == READY && link->request == WANTED) ask(link);
    if (link->deadline_ms != 0 && now >= link->deadline_ms) abandon(link, late_text(link->phase));
    if (link->phase < HELLO_IN || link->phase == READY || now < link->watch_ms) return;
    /* Twice in a row, so that an alert which came just before the end is read first. */
    link->watch_ms = now + WATCH_PERIOD_MS;
    link->misses = sheaf_sp_is_lost(&link->sp) ? link->misses + 1 : 0;
    if (link->misses >= 2) abandon(link, "the connection was lost");
}

sheaf_status sheaf_nng_send(sheaf_link *link, sheaf_span frame) {
    if (frame.size > link->frame_bytes_max) return SHEAF_E_TOO_LARGE;
    sheaf_status status = SHEAF_AGAIN;
    pthread_mutex_lock(&link->lock);
    if (link->request == NO_REQUEST) {
        link->asked = malloc(frame.size + 1);
        status = link->asked == NULL ? SHEAF_E_MEMORY : SHEAF_OK;
    }
    if (status == SHEAF_OK) {
        if (frame.size > 0) memcpy(link->asked, frame.data, frame.size);
        link->asked_bytes = frame.size;
        link->id = (link->id + 1u) | 0x80000000u;
        link->resends = RESENDS;
        link->request = WANTED;
    }
    drive(link);
    pthread_mutex_unlock(&link->lock);
    return status;
}

static sheaf_status take_answer(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    if (link->answer_bytes > out->capacity) {
        status = sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: an answer of %zu bytes does not fit", link->url,
                                   link->answer_bytes);
    } else {
        if (link->answer_bytes > 0) memcpy(out->data, link->answer, link->answer_bytes);
        out->size = link->answer_bytes;
    }
    drop_request(link);
    return status;
}

sheaf_status sheaf_nng_receive(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = SHEAF_AGAIN;
    pthread_mutex_lock(&link->lock);
    if (link->request == ANSWERED) {
        status = take_answer(link, out, problem);
    } else if (link->request == FAILED) {
        drop_request(link);
        status = sheaf_problem_set(problem, link->problem.status, "%s", link->problem.text);
    }
    drive(link);
    pthread_mutex_unlock(&link->lock);
    return status;
}

/* A request that nobody sent yet is just forgotten. One that is out takes its connection with it: whoever gives up has
 * waited, so the connection is not to be trusted, and it cannot then bring a late answer. */
void sheaf_nng_cancel(sheaf_link *link) {
    pthread_mutex_lock(&link->lock);
    if (link->request == WANTED && link->phase >= ASKING && !link->gave_up) {
        link->stale_asked = link->asked;
        link->stale_answer = link->answer;
        link->asked = link->answer = NULL;
        link->gave_up = 1;
        abandon(link, "given up");
    }
    drop_request(link);
    pthread_mutex_unlock(&link->lock);
}

sheaf_certificate *sheaf_nng_peer(sheaf_link *link) {
    pthread_mutex_lock(&link->lock);
    sheaf_certificate *peer = link->peer;
    pthread_mutex_unlock(&link->lock);
    return peer;
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
    if (status == SHEAF_OK) status = sheaf_tls_context_configure(link->credentials, &link->tls, problem);
    nng_url_free(url);
    return status;
}

static sheaf_status start_link(sheaf_link *link, const char *url, sheaf_problem *problem) {
    link->url = strdup(url);
    if (link->url != NULL && sheaf_sp_init(&link->sp, on_step, link) == 0 &&
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
    sheaf_sp_fini(&link->sp);
    if (link->dialer != NULL) nng_stream_dialer_free(link->dialer);
    if (link->tls != NULL) nng_tls_config_free(link->tls);
    sheaf_tls_context_release(link->credentials);
    drop_request(link);
    free(link->stale_asked);
    free(link->stale_answer);
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
    link->pause_ms = PAUSE_MIN_MS;
    (void)RAND_bytes((unsigned char *)&link->id, sizeof link->id); /* any start will do */
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
