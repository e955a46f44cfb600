#include "common/transport/sp.h"

#include <time.h>

/* ---- steps ---- */

/* The kernel knows no peer any more once both directions have ended: NNG has shut the socket, or a reset came. */
static int is_gone(const sheaf_sp *sp) {
    nng_sockaddr address;
    return nng_stream_get_addr(sp->stream, NNG_OPT_REMADDR, &address) != 0;
}

static int step(sheaf_sp *sp) {
    pthread_mutex_lock(&sp->lock);
    int closed = sp->closed;
    if (!closed) {
        (void)nng_aio_set_iov(sp->aio, 2, sp->parts); /* fails only above 8 parts */
        (sp->sending ? nng_stream_send : nng_stream_recv)(sp->stream, sp->aio);
        if (is_gone(sp)) { /* it may just have swallowed this step */
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
    sheaf_sp *sp = argument;
    int error = nng_aio_result(sp->aio);
    if (error == 0) (void)advance(&sp->parts[1], advance(&sp->parts[0], nng_aio_count(sp->aio)));
    int more = error == 0 && sp->parts[0].iov_len + sp->parts[1].iov_len > 0;
    if (more) error = step(sp);
    if (!more || error != 0) sp->done(sp->context, error);
}

int sheaf_sp_init(sheaf_sp *sp, sheaf_sp_done done, void *context) {
    memset(sp, 0, sizeof *sp);
    sp->done = done;
    sp->context = context;
    sp->closed = 1;
    pthread_mutex_init(&sp->lock, NULL);
    int error = nng_aio_alloc(&sp->aio, on_moved, sp);
    if (error == 0) {
        nng_aio_set_timeout(sp->aio, NNG_DURATION_INFINITE);
    } else {
        pthread_mutex_destroy(&sp->lock);
    }
    return error;
}

void sheaf_sp_fini(sheaf_sp *sp) {
    if (sp->aio == NULL) return;
    sheaf_sp_close(sp);
    nng_aio_wait(sp->aio);
    sheaf_sp_detach(sp);
    nng_aio_free(sp->aio);
    pthread_mutex_destroy(&sp->lock);
    sp->aio = NULL;
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

int sheaf_sp_send(sheaf_sp *sp, sheaf_span first, sheaf_span second) {
    sp->sending = 1;
    /* NNG's vectors are not const, but a send only reads. */
    memcpy(&sp->parts[0].iov_buf, &first.data, sizeof first.data);
    memcpy(&sp->parts[1].iov_buf, &second.data, sizeof second.data);
    sp->parts[0].iov_len = first.size;
    sp->parts[1].iov_len = second.size;
    return step(sp);
}

int sheaf_sp_receive(sheaf_sp *sp, void *first, size_t first_bytes, void *second, size_t second_bytes) {
    sp->sending = 0;
    sp->parts[0].iov_buf = first;
    sp->parts[0].iov_len = first_bytes;
    sp->parts[1].iov_buf = second;
    sp->parts[1].iov_len = second_bytes;
    return step(sp);
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

uint64_t sheaf_sp_patience_ms(uint32_t base_ms, size_t bytes) {
    return base_ms + (uint64_t)bytes * 1000u / SHEAF_SP_BYTES_PER_S_MIN;
}
