/* carrier_kit.h - a server that records and answers, and links to it, over any carrier; for the transport's tests.
 *
 * Owner:   the test; a carrier_server is stopped with carrier_stop, links are closed by the test.
 * Threads: one, besides those of the carrier.
 * Units:   milliseconds.
 * Errors:  a helper that fails fails the test. */
#pragma once
#include <pthread.h>

#include "common/transport/transport.h"
#include "tests/kit/pki_kit.h"

#define CARRIER_FRAME_MAX 65536u
#define CARRIER_HELD_MAX  64u

typedef enum {
    CARRIER_ECHO,   /* answers in the handler, with the request's bytes in reverse */
    CARRIER_WORKER, /* the same, later, from another thread */
    CARRIER_HOLD    /* answers nothing; the test takes the exchange with carrier_take */
} carrier_mode;

typedef struct {
    const sheaf_transport *transport;
    sheaf_server *server;
    carrier_mode mode;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned requests, rejects, most_at_once;
    int handlers, jobs; /* running; answers that are still to be given */
    sheaf_exchange *held[CARRIER_HELD_MAX];
    unsigned held_count;
    sheaf_identity last_peer;
    uint8_t last_fingerprint[SHEAF_DIGEST_BYTES];
    sheaf_status last_reject;
    char last_reject_text[700];
    char rejects_text[8192]; /* "name: text" lines of all */
} carrier_server;

/* Options with small limits; the aggregator's and a device's files come from `kit`. */
sheaf_transport_options carrier_options(const char *url, const pki_kit_files *files);

void carrier_start(carrier_server *server, const sheaf_transport *transport, const sheaf_transport_options *options,
                   carrier_mode mode);
void carrier_stop(carrier_server *server);
/* Waits for a held exchange. */
sheaf_exchange *carrier_take(carrier_server *server);
/* Peers that were turned away so far. */
unsigned carrier_rejects(carrier_server *server);
/* Waits until so many peers were turned away. */
void carrier_wait_rejects(carrier_server *server, unsigned count);

/* Sends and polls until there is an outcome that is not SHEAF_AGAIN, at most ten seconds. */
sheaf_status carrier_ask(const sheaf_transport *transport, sheaf_link *link, sheaf_span request, sheaf_buffer *answer,
                         sheaf_problem *problem);
sheaf_status carrier_poll(const sheaf_transport *transport, sheaf_link *link, sheaf_buffer *answer,
                          sheaf_problem *problem);
/* carrier_ask again until it works, for links that must reconnect first. */
sheaf_status carrier_insist(const sheaf_transport *transport, sheaf_link *link, sheaf_span request,
                            sheaf_buffer *answer, sheaf_problem *problem);
/* One round trip of `size` bytes made from `seed`; fails the test unless the answer is the reverse. */
void carrier_round_trip(const sheaf_transport *transport, sheaf_link *link, size_t size, unsigned seed);
void carrier_sleep_ms(unsigned ms);
uint64_t carrier_now_ms(void);
