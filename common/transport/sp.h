/* sp.h - NNG's wire format for REQ and REP on one byte stream: a hello of 8 bytes each way, then lengths and messages.
 *
 *     hello    00 'S' 'P' 00, u16 protocol (REQ 0x30, REP 0x31), 00 00      big-endian, as all of this
 *     message  u64 bytes, then u32 request id with the top bit set, then the frame
 *
 * We speak it ourselves on nng_stream, instead of through NNG's REQ and REP sockets, for three things which those
 * cannot do in NNG 1.5.2: cut a peer that stalls in the TLS handshake (the connection is not visible to a socket's user
 * before it ends, and its own 10 s timer cancels a write that is not running), refuse a length before anything is
 * allocated for it, and give a request up without the known faults in cancelling a REQ (nng issues 1702, 1713) and
 * closing (1543). For the same reason nothing here aborts an aio or gives it a timeout: streams are closed instead, and
 * the aio ends.
 *
 * Owner:   the user of a sheaf_sp embeds it; the stream belongs to it once attached.
 * Threads: one step (send or receive) at a time each way; `done` runs on a thread of NNG and may start the next step.
 *          Closing and asking are safe from any thread between init and fini.
 * Units:   bytes and milliseconds of the monotonic clock.
 * Errors:  NNG's numbers, 0 = all bytes have moved.
 * Not:     deadlines, which the users keep with the help of sheaf_sp_watch. */
#pragma once
#include <nng/nng.h>
#include <pthread.h>

#include "common/bytes.h"
#include "common/status.h"

#define SHEAF_SP_HELLO_BYTES  8u
#define SHEAF_SP_LENGTH_BYTES 8u
#define SHEAF_SP_ID_BYTES     4u
#define SHEAF_SP_HEAD_BYTES   (SHEAF_SP_LENGTH_BYTES + SHEAF_SP_ID_BYTES)
#define SHEAF_SP_REQ          0x30u
#define SHEAF_SP_REP          0x31u

/* Who moves no byte for so many times the handshake's deadline, while a message is under way, is gone. */
#define SHEAF_SP_PATIENCE 3u

typedef void (*sheaf_sp_done)(void *context, int error);

typedef struct sheaf_sp sheaf_sp;

/* One direction, with at most one step. */
typedef struct {
    sheaf_sp *sp;
    nng_aio *aio;
    nng_iov parts[2];
    size_t wanted, moved; /* bytes of the step that must move, and that have */
    sheaf_sp_done done;
} sheaf_sp_way;

struct sheaf_sp {
    pthread_mutex_t lock; /* orders steps, close and detach; no other lock of ours is taken under it */
    int closed;
    nng_stream *stream; /* NULL: none */
    sheaf_sp_way in, out;
    void *context;
};

/* 0 or NNG_ENOMEM. */
int sheaf_sp_init(sheaf_sp *sp, sheaf_sp_done on_received, sheaf_sp_done on_sent, void *context);
/* Waits until no `done` runs, then frees; not from `done`. Safe on a zeroed one. */
void sheaf_sp_fini(sheaf_sp *sp);

void sheaf_sp_attach(sheaf_sp *sp, nng_stream *stream);
/* Ends the stream: steps under way are done with an error soon, and none can begin. */
void sheaf_sp_close(sheaf_sp *sp);
/* 1 when the connection below is gone, so that a step under way may never end by itself: close it then. */
int sheaf_sp_is_lost(sheaf_sp *sp);
/* Closes and frees the stream. No step may be under way. */
void sheaf_sp_detach(sheaf_sp *sp);

/* Moves all bytes, which must stay until `done`. NNG_ECLOSED: nothing has begun and no `done` will come; so `done` never
 * runs inside these two. */
SHEAF_MUST_USE int sheaf_sp_send(sheaf_sp *sp, sheaf_span bytes);
SHEAF_MUST_USE int sheaf_sp_receive(sheaf_sp *sp, void *first, size_t first_bytes, void *second, size_t second_bytes);
/* Done as soon as `least` bytes are there; sheaf_sp_received says how many of `most` are. */
SHEAF_MUST_USE int sheaf_sp_receive_some(sheaf_sp *sp, void *bytes, size_t least, size_t most);
size_t sheaf_sp_received(const sheaf_sp *sp);

/* When a peer was last seen to move bytes. Bytes count that came in, and those that left and that the peer's kernel
 * has acknowledged: a slow line with large buffers below it shows no other sign of life for minutes. */
typedef struct {
    uint64_t bytes, since_ms, look_ms;
} sheaf_sp_watch;

/* From now on; looks at nothing yet, so it costs nothing on a fast line. */
void sheaf_sp_watch_begin(sheaf_sp_watch *watch, uint64_t now_ms, uint64_t patience_ms);
/* 1 when no byte has moved for `patience_ms`. Worth calling only once now_ms has reached watch->look_ms. */
int sheaf_sp_watch_is_still(sheaf_sp_watch *watch, sheaf_sp *sp, uint64_t now_ms, uint64_t patience_ms);
/* The bytes that have moved both ways since the stream began, as above; may step back by a few KiB. */
uint64_t sheaf_sp_moved(sheaf_sp *sp);

void sheaf_sp_write_hello(uint8_t out[SHEAF_SP_HELLO_BYTES], unsigned protocol);
/* 1 if it is a hello of that protocol. */
int sheaf_sp_hello_is(const uint8_t hello[SHEAF_SP_HELLO_BYTES], unsigned protocol);
void sheaf_sp_write_head(uint8_t out[SHEAF_SP_HEAD_BYTES], uint32_t id, size_t frame_bytes);
uint64_t sheaf_sp_read_length(const uint8_t length[SHEAF_SP_LENGTH_BYTES]);
uint32_t sheaf_sp_read_id(const uint8_t id[SHEAF_SP_ID_BYTES]);

uint64_t sheaf_sp_now_ms(void);
