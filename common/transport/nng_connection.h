/* nng_connection.h - what the two halves of the aggregator's end share: nng_server.c, which moves frames, and
 * nng_keeper.c, which cuts, frees and lets in.
 *
 * Owner:   a server owns its connections; one that has ended is freed by the keeper.
 * Threads: everything here is called under server->lock, unless it says so.
 * Units:   milliseconds of the monotonic clock.
 * Errors:  none.
 * Not:     for anybody else. */
#pragma once
#include <pthread.h>

#include "common/transport/nng_address.h"
#include "common/transport/sp.h"
#include "common/transport/tls_stream.h"
#include "common/transport/transport.h"

#define NEVER_MS UINT64_MAX

typedef enum { HELLO_OUT, HELLO_IN, LENGTH, SLOT, BODY, EXCHANGE, REPLY } phase;

typedef struct connection connection;
struct connection {
    connection *next, *previous; /* in server->live, newest first */
    connection *next_waiting;    /* in server->waiting; also in server->ended */
    sheaf_server *server;
    sheaf_tls_stream stream;
    phase phase;
    int busy;    /* a step is under way, or its end is being looked at */
    int closing; /* no further step */
    int has_slot;
    int guest;             /* beyond connections_max: its requests go to on_surplus; it counts as a stranger */
    int refused;           /* its handshake has failed, and the peer may still read why */
    uint64_t deadline_ms;  /* 0: none. In a handshake: its end. In BODY and REPLY: when to look for progress */
    sheaf_tls_watch watch; /* in BODY and REPLY */
    uint64_t trickle_ms, trickle_bytes; /* when it was last seen in its slot; 0: not yet. What it had moved then */
    sheaf_status reason;                /* why we cut it; SHEAF_OK: we did not */
    const char *reason_text;
    uint8_t hello[SHEAF_SP_HELLO_BYTES];
    uint8_t head[SHEAF_SP_HEAD_BYTES]; /* of the request */
    sheaf_exchange *exchange;
    uint8_t *reply; /* with its head */
    sheaf_certificate *peer;
    char address[SHEAF_NNG_ADDRESS_BYTES];
};

struct sheaf_exchange {
    sheaf_server *server;   /* holds a reference */
    connection *connection; /* NULL once nobody waits for the reply */
    sheaf_certificate *peer;
    size_t size;
    uint8_t request[];
};

struct sheaf_server {
    unsigned references; /* the owner's and one for each exchange */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t keeper;
    nng_stream_listener *listener;
    sheaf_tls_context *credentials;
    nng_aio *accepting;
    sheaf_request_handler on_request, on_surplus;
    sheaf_reject_handler on_reject;
    void *context;
    uint32_t frame_bytes_max, handshake_ms, exchanges_max, connections_max;
    uint32_t strangers, members; /* connections before and after the hello; guests are strangers still */
    uint32_t slots, handlers;    /* slots taken; handlers running */
    connection *live, *ended, *waiting, **waiting_end;
    uint64_t accept_again_ms; /* NEVER_MS: accept is under way */
    uint64_t look_ms;         /* when the keeper looks at deadlines; never after the earliest of them */
    uint64_t trickle_look_ms; /* when it looks for tricklers, while somebody waits */
    int stopping;
    char url[SHEAF_NNG_URL_BYTES];
};

/* Says who was turned away, if it never became a member or broke the rules. Called without the lock. */
void sheaf_nng_report(sheaf_server *server, const char *address, sheaf_status reason, const char *text);
/* Ends a connection: at once if nothing is under way (the keeper reports it), else when the step has noticed. */
void sheaf_nng_cut(connection *conn, sheaf_status reason, const char *text);
void sheaf_nng_leave_waiting(sheaf_server *server, connection *conn);
/* Gives a slot to a connection that has read a length, and reads on. Returns with the lock released. */
void sheaf_nng_read_body(connection *conn);
/* How long a member may move no byte of a message. */
uint64_t sheaf_nng_patience_ms(const sheaf_server *server);
/* The keeper's thread. Called without the lock; ends once the server is stopping and all is gone. */
void *sheaf_nng_keep(void *argument); /* the server */
