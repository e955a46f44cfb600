/* tls_stream.h - TLS over one plain byte stream of NNG, in steps: so many bytes out, so many bytes in.
 *
 * NNG has TLS streams of its own. They hold two buffers of 16 KiB for as long as they live, and wake a thread for each
 * record. Here sealed bytes move up to 64 KiB at a time, and their buffers are there only while bytes are under way: a
 * connection that waits for its peer's next message holds a few hundred bytes besides OpenSSL's own.
 *
 * Owner:   the user embeds a sheaf_tls_stream; NNG's stream belongs to it once attached.
 * Threads: one step (send or receive) at a time each way; `done` runs on a thread of NNG and may start the next step.
 *          Closing and asking are safe from any thread between init and fini.
 * Units:   bytes and milliseconds of the monotonic clock.
 * Errors:  NNG's numbers, 0 = all bytes have moved.
 * Not:     deadlines, which the users keep with the help of sheaf_tls_watch. */
#pragma once
#include <pthread.h>

#include "common/bytes.h"
#include "common/transport/tls_session.h"

/* Sealed bytes that wait here fit into it as a rule: a small request, a receipt, the head of a large frame. */
#define SHEAF_TLS_SMALL_BYTES 256u

/* Who moves no byte for so many times the handshake's deadline, while a message is under way, is gone. */
#define SHEAF_TLS_PATIENCE 3u

typedef void (*sheaf_tls_done)(void *context, int error);

typedef struct sheaf_tls_stream sheaf_tls_stream;

/* Sealed bytes between OpenSSL and the stream: those from begin to end are there. */
typedef struct {
    uint8_t *bytes; /* `small`, or a block of its own */
    size_t capacity, begin, end;
    uint8_t small[SHEAF_TLS_SMALL_BYTES];
} sheaf_tls_buffer;

/* One direction, with at most one step. */
typedef struct {
    sheaf_tls_stream *stream;
    nng_aio *raw;   /* moves sealed bytes */
    nng_aio *later; /* ends a step from a thread of NNG where none of it is at hand */
    int moving;     /* raw is under way */
    int stepping;   /* a step is under way */
    nng_iov parts[2];
    size_t wanted, moved; /* plain bytes of the step that must move, and that have */
    int result;           /* of the step, for `later` */
    sheaf_tls_done done;
    sheaf_tls_buffer buffer;
} sheaf_tls_way;

struct sheaf_tls_stream {
    pthread_mutex_t lock; /* orders everything here; no other lock of the carrier is taken under it */
    nng_stream *below;    /* NULL: none */
    sheaf_tls_session *session;
    int closed;   /* by the owner; no step can begin */
    int detached; /* given back by the owner, and freed once nothing moves */
    int ended;    /* why no step can go on; 0: they can */
    int no_more;  /* why no sealed byte will come; 0: they may */
    int cut;      /* below is closed */
    uint64_t moved_bytes;
    nng_stream *next_below; /* attached while an older one is still moving */
    sheaf_tls_context *next_context;
    sheaf_tls_way in, out;
    void *context;
};

/* 0 or NNG_ENOMEM. */
int sheaf_tls_stream_init(sheaf_tls_stream *stream, sheaf_tls_done on_received, sheaf_tls_done on_sent, void *context);
/* Waits until no `done` runs, then frees; not from `done`. Safe on a zeroed one. */
void sheaf_tls_stream_fini(sheaf_tls_stream *stream);

/* Without memory for a session steps end with an error. */
void sheaf_tls_stream_attach(sheaf_tls_stream *stream, nng_stream *below, sheaf_tls_context *context);
/* Ends the stream: steps under way are done with an error soon, and none can begin. */
void sheaf_tls_stream_close(sheaf_tls_stream *stream);
/* 1 when the connection below is gone, so that a step under way may never end by itself: close it then. */
int sheaf_tls_stream_is_lost(sheaf_tls_stream *stream);
/* Closes and gives back. No step may be under way. */
void sheaf_tls_stream_detach(sheaf_tls_stream *stream);

/* Moves all bytes, which must stay until `done`. NNG_ECLOSED: nothing has begun and no `done` will come; so `done` never
 * runs inside these three. The first step shakes hands. */
SHEAF_MUST_USE int sheaf_tls_stream_send(sheaf_tls_stream *stream, sheaf_span bytes);
SHEAF_MUST_USE int sheaf_tls_stream_receive(sheaf_tls_stream *stream, void *first, size_t first_bytes, void *second,
                                            size_t second_bytes);
/* Done as soon as `least` bytes are there; sheaf_tls_stream_received says how many of `most` are. */
SHEAF_MUST_USE int sheaf_tls_stream_receive_some(sheaf_tls_stream *stream, void *bytes, size_t least, size_t most);
size_t sheaf_tls_stream_received(const sheaf_tls_stream *stream);

/* Whoever is connected, or why the connection failed; all zero when there is none. The caller unrefs state->peer. */
void sheaf_tls_stream_ask(sheaf_tls_stream *stream, sheaf_tls_state *state);

/* The sealed bytes that have moved both ways since the stream began; those that left count once the peer's kernel has
 * acknowledged them: a slow line with large buffers below it shows no other sign of life for minutes. May step back by a
 * few KiB. */
uint64_t sheaf_tls_stream_moved(sheaf_tls_stream *stream);

/* When a peer was last seen to move bytes. */
typedef struct {
    uint64_t bytes, since_ms, look_ms;
} sheaf_tls_watch;

/* From now on; looks at nothing yet, so it costs nothing on a fast line. */
void sheaf_tls_watch_begin(sheaf_tls_watch *watch, uint64_t now_ms, uint64_t patience_ms);
/* 1 when no byte has moved for `patience_ms`. Worth calling only once now_ms has reached watch->look_ms. */
int sheaf_tls_watch_is_still(sheaf_tls_watch *watch, sheaf_tls_stream *stream, uint64_t now_ms, uint64_t patience_ms);

uint64_t sheaf_tls_now_ms(void);
