#include "common/transport/sp.h"

#include <time.h>

#include "common/transport/tcp_queue.h"
#include "common/transport/tls_engine.h"

/* ---- steps ---- */

/* The kernel knows no peer any more once both directions have ended: NNG has shut the socket, or a reset came. */
static int is_gone(const sheaf_sp *sp) {
    nng_sockaddr address;
    return nng_stream_get_addr(sp->stream, NNG_OPT_REMADDR, &address) != 0;
}

static int step(sheaf_sp_way *way) {
    sheaf_sp *sp = way->sp;
    pthread_mutex_lock(&sp->lock);
    int closed = sp->closed, is_first = way->moved == 0; /* not to be read once the step has begun */
    if (!closed) {
        (void)nng_aio_set_iov(way->aio, 2, way->parts); /* fails only above 8 parts */
        (way == &sp->out ? nng_stream_send : nng_stream_recv)(sp->stream, way->aio);
        if (is_first && is_gone(sp)) { /* it may just have swallowed this step */
            nng_stream_close(sp->stream);
            sp->closed = 1;
        }
    }
    pthread_mutex_unlock(&sp->lock);
    return closed ? NNG_ECLOSED : 0;
}

static size_t advance(nng_iov *part, size_t count) {
    size_t taken = count < part->iov_len ? count : part->iov_len;
    part->iov_buf = (uint8_t *)part->iov_buf + taken;
    part->iov_len -= taken;
    return count - taken;
}

/* A stream moves what it likes of a step, at most one TLS record at a time. */
static void on_moved(void *argument) {
    sheaf_sp_way *way = argument;
    int error = nng_aio_result(way->aio);
    if (error == 0) {
        size_t count = nng_aio_count(way->aio);
        way->moved += count;
        (void)advance(&way->parts[1], advance(&way->parts[0], count));
    }
    int more = error == 0 && way->moved < way->wanted;
    if (more) error = step(way);
    if (!more || error != 0) way->done(way->sp->context, error);
}

static int way_init(sheaf_sp_way *way, sheaf_sp *sp, sheaf_sp_done done) {
    way->sp = sp;
    way->done = done;
    int error = nng_aio_alloc(&way->aio, on_moved, way);
    if (error == 0) nng_aio_set_timeout(way->aio, NNG_DURATION_INFINITE);
    return error;
}

int sheaf_sp_init(sheaf_sp *sp, sheaf_sp_done on_received, sheaf_sp_done on_sent, void *context) {
    memset(sp, 0, sizeof *sp);
    sp->context = context;
    sp->closed = 1;
    int error = way_init(&sp->in, sp, on_received);
    if (error == 0) error = way_init(&sp->out, sp, on_sent);
    if (error == 0) {
        pthread_mutex_init(&sp->lock, NULL);
    } else if (sp->in.aio != NULL) {
        nng_aio_free(sp->in.aio);
        sp->in.aio = NULL;
    }
    return error;
}

void sheaf_sp_fini(sheaf_sp *sp) {
    if (sp->in.aio == NULL) return;
    sheaf_sp_close(sp);
    nng_aio_wait(sp->in.aio);
    nng_aio_wait(sp->out.aio);
    sheaf_sp_detach(sp);
    nng_aio_free(sp->in.aio);
    nng_aio_free(sp->out.aio);
    pthread_mutex_destroy(&sp->lock);
    sp->in.aio = sp->out.aio = NULL;
}

void sheaf_sp_attach(sheaf_sp *sp, nng_stream *stream) {
    pthread_mutex_lock(&sp->lock);
    sp->stream = stream;
    sp->closed = 0;
    pthread_mutex_unlock(&sp->lock);
}

void sheaf_sp_close(sheaf_sp *sp) {
    pthread_mutex_lock(&sp->lock);
    if (!sp->closed) nng_stream_close(sp->stream);
    sp->closed = 1;
    pthread_mutex_unlock(&sp->lock);
}

int sheaf_sp_is_lost(sheaf_sp *sp) {
    pthread_mutex_lock(&sp->lock);
    int lost = !sp->closed && is_gone(sp);
    pthread_mutex_unlock(&sp->lock);
    return lost;
}

void sheaf_sp_detach(sheaf_sp *sp) {
    sheaf_sp_close(sp);
    if (sp->stream != NULL) nng_stream_free(sp->stream); /* NNG frees it later, on its own thread */
    sp->stream = NULL;
}

int sheaf_sp_send(sheaf_sp *sp, sheaf_span bytes) {
    sheaf_sp_way *way = &sp->out;
    /* NNG's vectors are not const, but a send only reads. */
    memcpy(&way->parts[0].iov_buf, &bytes.data, sizeof bytes.data);
    way->parts[0].iov_len = way->wanted = bytes.size;
    way->parts[1].iov_len = way->moved = 0;
    return step(way);
}

int sheaf_sp_receive(sheaf_sp *sp, void *first, size_t first_bytes, void *second, size_t second_bytes) {
    sheaf_sp_way *way = &sp->in;
    way->parts[0].iov_buf = first;
    way->parts[0].iov_len = first_bytes;
    way->parts[1].iov_buf = second;
    way->parts[1].iov_len = second_bytes;
    way->wanted = first_bytes + second_bytes;
    way->moved = 0;
    return step(way);
}

int sheaf_sp_receive_some(sheaf_sp *sp, void *bytes, size_t least, size_t most) {
    sheaf_sp_way *way = &sp->in;
    way->parts[0].iov_buf = bytes;
    way->parts[0].iov_len = most;
    way->parts[1].iov_len = way->moved = 0;
    way->wanted = least;
    return step(way);
}

size_t sheaf_sp_received(const sheaf_sp *sp) { return sp->in.moved; }

/* ---- progress ---- */

uint64_t sheaf_sp_moved(sheaf_sp *sp) {
    sheaf_tls_state state = {NULL, SHEAF_OK, "", 0};
    nng_sockaddr local, remote;
    uint64_t moved = 0;
    pthread_mutex_lock(&sp->lock);
    if (!sp->closed) {
        sheaf_tls_ask(sp->stream, &state);
        moved = state.moved_bytes;
        if (nng_stream_get_addr(sp->stream, NNG_OPT_LOCADDR, &local) == 0 &&
            nng_stream_get_addr(sp->stream, NNG_OPT_REMADDR, &remote) == 0)
            moved -= sheaf_tcp_queued(&local, &remote);
    }
    pthread_mutex_unlock(&sp->lock);
    sheaf_certificate_unref(state.peer);
    return moved;
}

void sheaf_sp_watch_begin(sheaf_sp_watch *watch, uint64_t now_ms, uint64_t patience_ms) {
    watch->bytes = UINT64_MAX; /* so the first look sees a movement */
    watch->since_ms = now_ms;
    watch->look_ms = now_ms + patience_ms / 8u;
}

int sheaf_sp_watch_is_still(sheaf_sp_watch *watch, sheaf_sp *sp, uint64_t now_ms, uint64_t patience_ms) {
    uint64_t moved = sheaf_sp_moved(sp);
    if (moved != watch->bytes) watch->since_ms = now_ms;
    watch->bytes = moved;
    watch->look_ms = now_ms + patience_ms / 8u;
    return now_ms - watch->since_ms >= patience_ms;
}

/* ---- bytes ---- */

static void store_big(uint8_t *out, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

static uint64_t load_big(const uint8_t *in, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++) value = value << 8 | in[i];
    return value;
}

void sheaf_sp_write_hello(uint8_t out[SHEAF_SP_HELLO_BYTES], unsigned protocol) {
    static const uint8_t frame[SHEAF_SP_HELLO_BYTES] = {0, 'S', 'P', 0, 0, 0, 0, 0};
    memcpy(out, frame, sizeof frame);
    store_big(out + 4, protocol, 2);
}

int sheaf_sp_hello_is(const uint8_t hello[SHEAF_SP_HELLO_BYTES], unsigned protocol) {
    uint8_t expected[SHEAF_SP_HELLO_BYTES];
    sheaf_sp_write_hello(expected, protocol);
    return memcmp(hello, expected, sizeof expected) == 0;
}

void sheaf_sp_write_head(uint8_t out[SHEAF_SP_HEAD_BYTES], uint32_t id, size_t frame_bytes) {
    store_big(out, (uint64_t)frame_bytes + SHEAF_SP_ID_BYTES, SHEAF_SP_LENGTH_BYTES);
    store_big(out + SHEAF_SP_LENGTH_BYTES, id, SHEAF_SP_ID_BYTES);
}

uint64_t sheaf_sp_read_length(const uint8_t length[SHEAF_SP_LENGTH_BYTES]) {
    return load_big(length, SHEAF_SP_LENGTH_BYTES);
}

uint32_t sheaf_sp_read_id(const uint8_t id[SHEAF_SP_ID_BYTES]) { return (uint32_t)load_big(id, SHEAF_SP_ID_BYTES); }

/* ---- time ---- */

uint64_t sheaf_sp_now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail on Linux */
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}
