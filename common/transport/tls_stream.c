/* What moves here, and who waits for whom:
 *
 *     step out  -> session seals -> out.buffer -> raw send  -> the peer
 *     step in  <-  session opens <- in.buffer  <- raw receive <-
 *
 * `pump` does all that can be done at once and begins the raw moves that are then needed; it runs when a step begins and
 * when a raw move has ended. While a step is under way, so is a raw move, or the step's end is on its way.
 *
 * NNG never calls back on the calling thread, so its functions may be called under the lock. A connection that breaks
 * just before a raw move begins may swallow the move: NNG 1.5.2 closes the connection's descriptor first and lets nobody
 * know who comes after. So it is looked for, and moves are cancelled where the stream is closed. */
#include "common/transport/tls_stream.h"

#include <stdlib.h>
#include <time.h>

#include "common/transport/tcp_queue.h"

/* Sealed bytes that move at once, at most. Whoever sends holds its frame anyway, and each move wakes a thread of NNG: a
 * frame of 256 KiB should leave in one. Whoever receives may hold many connections, and gets less at a time. */
#define SEND_BYTES      278528u
#define RECEIVE_BYTES   65536u
#define HANDSHAKE_BYTES 8192u /* a flight with its certificates, as a rule; others take two */

/* ---- buffers ---- */

static size_t held(const sheaf_tls_buffer *buffer) { return buffer->end - buffer->begin; }

static void buffer_free(sheaf_tls_buffer *buffer) {
    if (buffer->bytes != buffer->small) free(buffer->bytes);
    buffer->bytes = buffer->small;
    buffer->capacity = sizeof buffer->small;
    buffer->begin = buffer->end = 0;
}

/* Room for `bytes`, or as much as there is memory for; of an empty buffer with which nothing moves. */
static void buffer_prepare(sheaf_tls_buffer *buffer, size_t bytes) {
    buffer->begin = buffer->end = 0;
    if (bytes <= buffer->capacity && (bytes > sizeof buffer->small) == (buffer->bytes != buffer->small)) return;
    buffer_free(buffer);
    uint8_t *block = bytes > sizeof buffer->small ? malloc(bytes) : NULL;
    if (block == NULL) return; /* the small one does, slowly */
    buffer->bytes = block;
    buffer->capacity = bytes;
}

/* What is held moves to the small buffer if it fits. */
static void buffer_shrink(sheaf_tls_buffer *buffer) {
    size_t left = held(buffer);
    uint8_t *block = buffer->bytes;
    if (block == buffer->small || left > sizeof buffer->small) return;
    memcpy(buffer->small, block + buffer->begin, left);
    free(block);
    buffer->bytes = buffer->small;
    buffer->capacity = sizeof buffer->small;
    buffer->begin = 0;
    buffer->end = left;
}

static size_t sealed_size(size_t plain) {
    return plain + (plain / SHEAF_TLS_RECORD_BYTES + 1) * SHEAF_TLS_RECORD_OVERHEAD;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* ---- the session's wire ---- */

static int give(void *wire, const uint8_t *bytes, size_t *size) {
    sheaf_tls_stream *stream = wire;
    sheaf_tls_buffer *buffer = &stream->out.buffer;
    size_t room = buffer->capacity - buffer->end;
    if (stream->cut) return NNG_ECLOSED;
    if (room == 0) return NNG_EAGAIN;
    *size = smaller(*size, room);
    memcpy(buffer->bytes + buffer->end, bytes, *size);
    buffer->end += *size;
    return 0;
}

static int take(void *wire, uint8_t *bytes, size_t *size) {
    sheaf_tls_stream *stream = wire;
    sheaf_tls_buffer *buffer = &stream->in.buffer;
    /* What a peer sent before it was lost is lost with it, as in the kernel: it waits for no answer any more. */
    if (held(buffer) == 0 || stream->cut) return stream->no_more != 0 ? stream->no_more : NNG_EAGAIN;
    *size = smaller(*size, held(buffer));
    memcpy(bytes, buffer->bytes + buffer->begin, *size);
    buffer->begin += *size;
    return 0;
}

static const sheaf_tls_wire ours = {give, take};

/* ---- what comes next; all under the lock ---- */

static int is_quiet(const sheaf_tls_stream *stream) { return !stream->in.moving && !stream->out.moving; }

static int is_short(const sheaf_tls_way *way) { return way->stepping && way->moved < way->wanted; }

/* The kernel knows no peer any more once both directions have ended: NNG has shut the socket, or a reset came. */
static int is_gone(const sheaf_tls_stream *stream) {
    nng_sockaddr address;
    return nng_stream_get_addr(stream->below, NNG_OPT_REMADDR, &address) != 0;
}

static void cut(sheaf_tls_stream *stream) {
    if (stream->cut) return;
    stream->cut = 1;
    nng_stream_close(stream->below);
    nng_aio_cancel(stream->in.raw); /* only what was swallowed is still there */
    nng_aio_cancel(stream->out.raw);
}

static void move(sheaf_tls_stream *stream, sheaf_tls_way *way, uint8_t *bytes, size_t size) {
    nng_iov part = {bytes, size};
    way->moving = 1;
    (void)nng_aio_set_iov(way->raw, 1, &part); /* fails only above 8 parts */
    (way == &stream->out ? nng_stream_send : nng_stream_recv)(stream->below, way->raw);
    if (is_gone(stream)) cut(stream); /* it may just have swallowed this move */
}

static size_t room_to_send(const sheaf_tls_stream *stream) {
    size_t room = is_short(&stream->out) ? sealed_size(stream->out.wanted - stream->out.moved) : 0;
    if (sheaf_tls_session_is_shaking(stream->session) && room < HANDSHAKE_BYTES) room = HANDSHAKE_BYTES;
    return smaller(room, SEND_BYTES);
}

/* Not much more than the step needs: what is behind it would keep its buffer until the next one. */
static size_t room_to_receive(const sheaf_tls_stream *stream) {
    size_t plain = is_short(&stream->in) ? stream->in.wanted - stream->in.moved : 0;
    if (sheaf_tls_session_is_shaking(stream->session)) return HANDSHAKE_BYTES;
    if (sealed_size(plain) > SHEAF_TLS_SMALL_BYTES) return smaller(sealed_size(plain), RECEIVE_BYTES);
    if (sheaf_tls_session_holds_part(stream->session)) /* the rest of a record that began in the small buffer */
        return SHEAF_TLS_RECORD_BYTES + SHEAF_TLS_RECORD_OVERHEAD - SHEAF_TLS_SMALL_BYTES;
    return SHEAF_TLS_SMALL_BYTES;
}

static void advance(sheaf_tls_way *way, size_t count) {
    nng_iov *part = way->parts[0].iov_len > 0 ? &way->parts[0] : &way->parts[1];
    part->iov_buf = (uint8_t *)part->iov_buf + count;
    part->iov_len -= count;
    way->moved += count;
}

/* Moves plain bytes of a step through the session, until it wants sealed ones. */
static void work(sheaf_tls_stream *stream, sheaf_tls_way *way) {
    while (is_short(way) && stream->ended == 0) {
        const nng_iov *part = way->parts[0].iov_len > 0 ? &way->parts[0] : &way->parts[1];
        size_t count = part->iov_len;
        int error = way == &stream->out ? sheaf_tls_session_write(stream->session, part->iov_buf, &count)
                                        : sheaf_tls_session_read(stream->session, part->iov_buf, &count);
        if (error == NNG_EAGAIN) return;
        if (error == 0) advance(way, count);
        stream->ended = error;
    }
}

static int needs_input(const sheaf_tls_stream *stream) {
    return is_short(&stream->in) || (is_short(&stream->out) && sheaf_tls_session_is_shaking(stream->session));
}

static void begin_moves(sheaf_tls_stream *stream) {
    sheaf_tls_buffer *out = &stream->out.buffer, *in = &stream->in.buffer;
    if (!stream->out.moving && held(out) > 0) move(stream, &stream->out, out->bytes + out->begin, held(out));
    if (stream->cut || stream->ended != 0 || stream->in.moving || held(in) > 0 || !needs_input(stream)) return;
    buffer_prepare(in, room_to_receive(stream));
    move(stream, &stream->in, in->bytes, in->capacity);
}

static void pump(sheaf_tls_stream *stream) {
    if (stream->below == NULL || stream->detached) return;
    if (stream->cut && !stream->in.moving && stream->no_more == 0) stream->no_more = NNG_ECLOSED;
    if (stream->cut && !stream->out.moving && held(&stream->out.buffer) > 0 && stream->ended == 0)
        stream->ended = NNG_ECLOSED;
    if (stream->ended == 0) {
        if (!stream->out.moving && held(&stream->out.buffer) == 0)
            buffer_prepare(&stream->out.buffer, room_to_send(stream));
        work(stream, &stream->out);
        work(stream, &stream->in);
    }
    /* An alert that says why goes first. */
    if (stream->ended != 0 && held(&stream->out.buffer) == 0) cut(stream);
    if (!stream->cut) begin_moves(stream);
    if (!stream->in.moving) buffer_shrink(&stream->in.buffer);
    if (!stream->out.moving) buffer_shrink(&stream->out.buffer);
}

/* ---- attaching and giving back; under the lock ---- */

static void adopt(sheaf_tls_stream *stream, nng_stream *below, sheaf_tls_context *context) {
    stream->below = below;
    stream->detached = stream->cut = stream->no_more = 0;
    stream->moved_bytes = 0;
    buffer_free(&stream->in.buffer);
    buffer_free(&stream->out.buffer);
    stream->ended = sheaf_tls_session_begin(context, &ours, stream, &stream->session);
}

static void drop_next(sheaf_tls_stream *stream) {
    if (stream->next_below == NULL) return;
    nng_stream_close(stream->next_below);
    nng_stream_free(stream->next_below);
    sheaf_tls_context_unref(stream->next_context);
    stream->next_below = NULL;
    stream->next_context = NULL;
}

/* Frees what was given back as soon as nothing moves, and goes on with what was attached meanwhile. */
static void settle(sheaf_tls_stream *stream) {
    if (!stream->detached || !is_quiet(stream)) return;
    sheaf_tls_session_end(stream->session);
    nng_stream_free(stream->below); /* NNG does it later, on its own thread */
    stream->session = NULL;
    stream->below = NULL;
    stream->detached = 0;
    buffer_free(&stream->in.buffer);
    buffer_free(&stream->out.buffer);
    if (stream->next_below == NULL) return;
    adopt(stream, stream->next_below, stream->next_context);
    sheaf_tls_context_unref(stream->next_context);
    stream->next_below = NULL;
    stream->next_context = NULL;
    pump(stream);
}

/* ---- the ends of steps ---- */

typedef struct {
    sheaf_tls_way *ways[2];
    unsigned count;
} endings;

static int is_over(const sheaf_tls_stream *stream, const sheaf_tls_way *way) {
    if (!way->stepping) return 0;
    if (stream->detached || stream->below == NULL) return stream->closed;
    if (stream->ended != 0 && (way == &stream->out || is_short(way))) return is_quiet(stream);
    return !is_short(way) && (way == &stream->in || (held(&way->buffer) == 0 && !way->moving));
}

static void collect(sheaf_tls_stream *stream, endings *over) {
    sheaf_tls_way *ways[2] = {&stream->in, &stream->out};
    over->count = 0;
    for (unsigned i = 0; i < 2; i++) {
        sheaf_tls_way *way = ways[i];
        if (!is_over(stream, way)) continue;
        int has_all = !is_short(way) && (way == &stream->in || stream->ended == 0);
        way->result = has_all ? 0 : stream->ended != 0 ? stream->ended : NNG_ECLOSED;
        way->stepping = 0;
        over->ways[over->count++] = way;
    }
}

static void on_later(void *argument) {
    sheaf_tls_way *way = argument;
    way->done(way->stream->context, way->result);
}

/* From where `done` may not run. */
static void end_later(sheaf_tls_stream *stream) {
    endings over;
    collect(stream, &over);
    for (unsigned i = 0; i < over.count; i++)
        if (nng_aio_begin(over.ways[i]->later)) nng_aio_finish(over.ways[i]->later, 0);
}

static void on_moved(void *argument) {
    sheaf_tls_way *way = argument;
    sheaf_tls_stream *stream = way->stream;
    endings over;
    pthread_mutex_lock(&stream->lock);
    int error = nng_aio_result(way->raw);
    size_t count = error == 0 ? nng_aio_count(way->raw) : 0;
    way->moving = 0;
    stream->moved_bytes += count;
    if (way == &stream->in) {
        way->buffer.end += count;
        stream->no_more = error;
    } else {
        way->buffer.begin += count;
        if (error != 0) way->buffer.begin = way->buffer.end = 0;
        if (error != 0 && stream->ended == 0) stream->ended = error;
    }
    pump(stream);
    settle(stream);
    collect(stream, &over);
    pthread_mutex_unlock(&stream->lock);
    for (unsigned i = 0; i < over.count; i++) over.ways[i]->done(stream->context, over.ways[i]->result);
}

/* ---- the owner's side ---- */

static int way_init(sheaf_tls_way *way, sheaf_tls_stream *stream, sheaf_tls_done done) {
    way->stream = stream;
    way->done = done;
    way->buffer.bytes = way->buffer.small;
    way->buffer.capacity = sizeof way->buffer.small;
    int error = nng_aio_alloc(&way->raw, on_moved, way);
    if (error == 0) error = nng_aio_alloc(&way->later, on_later, way);
    if (error == 0) nng_aio_set_timeout(way->raw, NNG_DURATION_INFINITE);
    return error;
}

static void way_fini(sheaf_tls_way *way) {
    nng_aio_free(way->raw);
    nng_aio_free(way->later);
    way->raw = way->later = NULL;
}

int sheaf_tls_stream_init(sheaf_tls_stream *stream, sheaf_tls_done on_received, sheaf_tls_done on_sent, void *context) {
    memset(stream, 0, sizeof *stream);
    stream->context = context;
    stream->closed = 1;
    int error = way_init(&stream->in, stream, on_received);
    if (error == 0) error = way_init(&stream->out, stream, on_sent);
    if (error == 0) {
        pthread_mutex_init(&stream->lock, NULL);
    } else {
        way_fini(&stream->in);
        way_fini(&stream->out);
    }
    return error;
}

void sheaf_tls_stream_fini(sheaf_tls_stream *stream) {
    if (stream->in.raw == NULL) return;
    sheaf_tls_stream_close(stream);
    nng_aio_wait(stream->in.raw);
    nng_aio_wait(stream->out.raw);
    nng_aio_wait(stream->in.later);
    nng_aio_wait(stream->out.later);
    sheaf_tls_stream_detach(stream);
    way_fini(&stream->in);
    way_fini(&stream->out);
    pthread_mutex_destroy(&stream->lock);
}

void sheaf_tls_stream_attach(sheaf_tls_stream *stream, nng_stream *below, sheaf_tls_context *context) {
    pthread_mutex_lock(&stream->lock);
    stream->closed = 0;
    if (stream->below == NULL) {
        adopt(stream, below, context);
    } else {
        stream->next_below = below;
        stream->next_context = sheaf_tls_context_ref(context);
    }
    pthread_mutex_unlock(&stream->lock);
}

/* Says farewell if nothing else is on its way: the peer can then tell an end from a cut. */
static void close_below(sheaf_tls_stream *stream) {
    if (stream->below == NULL) return;
    if (stream->ended == 0 && !stream->cut && !stream->out.moving) {
        if (held(&stream->out.buffer) == 0) buffer_prepare(&stream->out.buffer, 0);
        sheaf_tls_session_shut(stream->session);
        sheaf_tls_buffer *out = &stream->out.buffer;
        if (held(out) > 0) move(stream, &stream->out, out->bytes + out->begin, held(out));
    }
    if (stream->ended == 0) stream->ended = NNG_ECLOSED;
    cut(stream);
}

void sheaf_tls_stream_close(sheaf_tls_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    if (!stream->closed) {
        stream->closed = 1;
        drop_next(stream);
        if (!stream->detached) close_below(stream);
        end_later(stream);
    }
    pthread_mutex_unlock(&stream->lock);
}

int sheaf_tls_stream_is_lost(sheaf_tls_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    int lost = !stream->closed && !stream->detached && stream->below != NULL && is_gone(stream);
    pthread_mutex_unlock(&stream->lock);
    return lost;
}

void sheaf_tls_stream_detach(sheaf_tls_stream *stream) {
    sheaf_tls_stream_close(stream);
    pthread_mutex_lock(&stream->lock);
    if (stream->below != NULL) stream->detached = 1;
    settle(stream);
    pthread_mutex_unlock(&stream->lock);
}

static int step(sheaf_tls_stream *stream, sheaf_tls_way *way) {
    pthread_mutex_lock(&stream->lock);
    int closed = stream->closed;
    if (!closed) {
        way->stepping = 1;
        pump(stream);
        end_later(stream);
    }
    pthread_mutex_unlock(&stream->lock);
    return closed ? NNG_ECLOSED : 0;
}

int sheaf_tls_stream_send(sheaf_tls_stream *stream, sheaf_span bytes) {
    sheaf_tls_way *way = &stream->out;
    /* NNG's vectors are not const, but a send only reads. */
    memcpy(&way->parts[0].iov_buf, &bytes.data, sizeof bytes.data);
    way->parts[0].iov_len = way->wanted = bytes.size;
    way->parts[1].iov_len = way->moved = 0;
    return step(stream, way);
}

int sheaf_tls_stream_receive(sheaf_tls_stream *stream, void *first, size_t first_bytes, void *second,
                             size_t second_bytes) {
    sheaf_tls_way *way = &stream->in;
    way->parts[0] = (nng_iov){first, first_bytes};
    way->parts[1] = (nng_iov){second, second_bytes};
    way->wanted = first_bytes + second_bytes;
    way->moved = 0;
    return step(stream, way);
}

int sheaf_tls_stream_receive_some(sheaf_tls_stream *stream, void *bytes, size_t least, size_t most) {
    sheaf_tls_way *way = &stream->in;
    way->parts[0] = (nng_iov){bytes, most};
    way->parts[1].iov_len = way->moved = 0;
    way->wanted = least;
    return step(stream, way);
}

size_t sheaf_tls_stream_received(const sheaf_tls_stream *stream) { return stream->in.moved; }

void sheaf_tls_stream_ask(sheaf_tls_stream *stream, sheaf_tls_state *state) {
    memset(state, 0, sizeof *state);
    pthread_mutex_lock(&stream->lock);
    if (stream->session != NULL && !stream->detached) sheaf_tls_session_tell(stream->session, state);
    pthread_mutex_unlock(&stream->lock);
}

/* ---- progress ---- */

uint64_t sheaf_tls_stream_moved(sheaf_tls_stream *stream) {
    nng_sockaddr local, remote;
    uint64_t moved = 0;
    pthread_mutex_lock(&stream->lock);
    if (!stream->closed && !stream->detached && stream->below != NULL) {
        moved = stream->moved_bytes;
        if (nng_stream_get_addr(stream->below, NNG_OPT_LOCADDR, &local) == 0 &&
            nng_stream_get_addr(stream->below, NNG_OPT_REMADDR, &remote) == 0)
            moved -= sheaf_tcp_queued(&local, &remote);
    }
    pthread_mutex_unlock(&stream->lock);
    return moved;
}

void sheaf_tls_watch_begin(sheaf_tls_watch *watch, uint64_t now_ms, uint64_t patience_ms) {
    watch->bytes = UINT64_MAX; /* so the first look sees a movement */
    watch->since_ms = now_ms;
    watch->look_ms = now_ms + patience_ms / 8u;
}

int sheaf_tls_watch_is_still(sheaf_tls_watch *watch, sheaf_tls_stream *stream, uint64_t now_ms, uint64_t patience_ms) {
    uint64_t moved = sheaf_tls_stream_moved(stream);
    if (moved != watch->bytes) watch->since_ms = now_ms;
    watch->bytes = moved;
    watch->look_ms = now_ms + patience_ms / 8u;
    return now_ms - watch->since_ms >= patience_ms;
}

uint64_t sheaf_tls_now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail on Linux */
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}
