/* transport.h - one table of functions per carrier: requests go up, replies come down, whole frames at a time.
 *
 * A carrier delivers whole frames of bounded size between a device and an aggregator and says, from a verified
 * certificate, who the peer is. It may lose or repeat frames when links break: the session protocol (proto/WIRE.md)
 * makes every request idempotent, so a link may send a request again after a reconnect.
 *
 * Owner:   the caller owns servers and links and closes them; frames are copied in and out.
 * Threads: server: `open`, `stop` on one thread; the handler runs on carrier threads, several at a time, and must not
 *          block for long; `reply` may be called from any thread, in the handler or later. on_reject only logs and
 *          counts: it must not call back into the carrier.
 *          link: all calls on one thread. None of them blocks, except `open_link` (name lookup) and `close`.
 * Units:   bytes and milliseconds.
 * Errors:  per function, below.
 * Not:     it reads no frame. */
#pragma once
#include "common/bytes.h"
#include "common/certificate.h"
#include "common/problem.h"

typedef struct sheaf_transport sheaf_transport;
typedef struct sheaf_server sheaf_server;     /* a listening endpoint */
typedef struct sheaf_link sheaf_link;         /* a device's connection */
typedef struct sheaf_exchange sheaf_exchange; /* one request that waits for its reply */

struct sheaf_trust;       /* common/trust.h */
struct sheaf_credentials; /* common/credentials.h */

typedef struct {
    const char *certificate_path; /* PEM: own certificate, then any intermediates */
    const char *key_path;         /* PEM */
    const char *ca_path;          /* PEM: authorities that peers must chain to */
    const char *server_name; /* links: DNS name or address the aggregator's certificate must hold; NULL = from url */
    int tls12_profile; /* 0: TLS 1.3 only. 1: also TLS 1.2 with ECDHE-ECDSA AES-GCM on P-256, named in the config */
    struct sheaf_trust *trust; /* whom to believe; the carrier takes a reference. NULL: what ca_path holds, without
                                  revocation, looked at again before connections */
    struct sheaf_credentials *credentials; /* own certificate and key, likewise: each connection shows the pair in force
                                              when it begins. NULL: from the two paths, read once */
} sheaf_tls_options;

/* Called once per request. `peer` and `request` are borrowed until the reply is given. */
typedef void (*sheaf_request_handler)(void *context, sheaf_exchange *exchange, sheaf_certificate *peer,
                                      sheaf_span request);

typedef struct {
    const char *url;          /* tls+tcp://host:port (port 0 = any free one), mqtts://host:port (of the broker), or
                                 inproc://name */
    sheaf_tls_options tls;    /* paths are read during the call */
    uint32_t frame_bytes_max; /* larger frames end the connection; > 0 */
    uint32_t handshake_ms;    /* a peer that has not finished its handshake by then is cut; > 0 */
    uint32_t exchanges_max;   /* servers: requests in the handler or waiting for a reply; > 0 */
    uint32_t window;          /* links: requests that may wait for their replies at a time; 0 = 1 */
    uint32_t connections_max; /* servers: further ones are turned away; > 0. nng also keeps at most 4 of one identity,
                                 and a fifth ends the oldest of them (on_reject says SHEAF_E_BUSY) */
    /* servers: of nng, gets what those ask who are beyond connections_max, to tell them when to come again; the next request
     * of such a one goes the usual way once there is room. NULL: they are cut at once. */
    sheaf_request_handler on_surplus;
    const char *topic_prefix; /* mqtt: first level of all topics; NULL = "sheaf" */
} sheaf_transport_options;

/* Devices that take the same frames at the same time. Whoever has the key can read and write in the group, so what is
 * cast must be checked by a signed digest. */
typedef struct {
    uint8_t id[16];  /* names the group; need not be secret */
    uint8_t key[16]; /* AES-128-GCM; a new one for each id */
} sheaf_cast_group;

/* Called when a peer was turned away, before it could ask anything or later: status and a text for the log. */
typedef void (*sheaf_reject_handler)(void *context, sheaf_status reason, const char *detail);

/* How a server stands, for people. */
typedef struct {
    int ready;            /* devices can reach it; past a broker: it is connected and subscribed there */
    uint32_t connections; /* devices that have said who they are: connections, or sessions past a broker */
    uint32_t strangers;   /* connections that have not yet */
} sheaf_server_report;

struct sheaf_transport {
    const char *name;       /* "nng", "inproc" */
    const char *url_prefix; /* "tls+tcp://", "inproc://" */

    /* Listens. SHEAF_E_ADDRESS_IN_USE, SHEAF_E_CERTIFICATE, SHEAF_E_NOT_FOUND, SHEAF_E_USAGE (url), SHEAF_E_NETWORK. */
    sheaf_status (*open_server)(const sheaf_transport_options *options, sheaf_request_handler on_request,
                                sheaf_reject_handler on_reject, void *context, sheaf_server **out,
                                sheaf_problem *problem);
    /* The url with the port that was chosen. Borrowed from the server. */
    const char *(*server_url)(const sheaf_server *server);
    /* Stops listening and waits until no handler runs and no reply is in flight; exchanges that still wait are dropped
     * without a reply (a later `reply` on them is safe, sends nothing, and is what releases them). Frees. NULL is fine.
     */
    void (*stop_server)(sheaf_server *server);
    /* Gives the reply (copied) and ends the exchange. Owed exactly once for every exchange. */
    void (*reply)(sheaf_exchange *exchange, sheaf_span frame);
    /* Sends one frame (copied) to all that have joined the group; some may miss it. The same `sequence` may be cast again
     * only with the same frame. SHEAF_AGAIN: as much is on its way as may be, try later; SHEAF_E_NETWORK. The function is
     * NULL for carriers that cannot. Any thread. */
    sheaf_status (*cast)(sheaf_server *server, const sheaf_cast_group *group, uint64_t sequence, sheaf_span frame);

    /* Ends the connections of peers for whom `unwanted` returns 1, and hands over no more requests of theirs; those that
     * the handler has keep their right to a reply. Returns how many connections. `unwanted` is called with locks held: it
     * must not call back into the carrier. Any thread. */
    unsigned (*expel)(sheaf_server *server, int (*unwanted)(void *context, const sheaf_certificate *peer),
                      void *context);

    /* The function is NULL for carriers that have nothing to tell. Any thread. */
    void (*look)(sheaf_server *server, sheaf_server_report *out);

    /* Starts to connect; reconnects by itself with growing pauses. SHEAF_E_USAGE (url), SHEAF_E_CERTIFICATE,
     * SHEAF_E_MISMATCH, SHEAF_E_CRYPTO (the key), SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION. An unreachable peer is no error here. */
    sheaf_status (*open_link)(const sheaf_transport_options *options, sheaf_link **out, sheaf_problem *problem);
    /* Takes one request (copied). SHEAF_AGAIN while `window` of them have no answer; SHEAF_E_TOO_LARGE. */
    sheaf_status (*send)(sheaf_link *link, sheaf_span frame);
    /* The next answer, whole, in the order in which they were given; or a frame that was cast to the group joined.
     * SHEAF_AGAIN: not there yet. SHEAF_E_NETWORK: all requests on their way failed (see `problem` for why: refused
     * connection, rejected certificate ...) and may be sent again. SHEAF_E_TOO_LARGE: it does not fit and is dropped. */
    sheaf_status (*receive)(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem);
    /* Gives up the requests in flight, so that send may take others. */
    void (*cancel)(sheaf_link *link);
    /* The verified certificate of the aggregator that sent the last answer, or NULL before the first. Borrowed until
     * the next call on this link. */
    sheaf_certificate *(*peer)(sheaf_link *link);
    /* From now on takes what is cast to this group, and to no other; NULL leaves it. The function is NULL for carriers
     * that cannot. */
    sheaf_status (*join)(sheaf_link *link, const sheaf_cast_group *group);
    /* Grows while bytes of frames move on the line, up or down; what only keeps a connection alive does not count. The
     * function is NULL for carriers without a line. */
    uint64_t (*moved)(sheaf_link *link);
    void (*close)(sheaf_link *link); /* NULL is fine */
};

extern const sheaf_transport sheaf_transport_nng;
extern const sheaf_transport sheaf_transport_mqtt; /* the server is a client too: open_server with a broker that is away
                                                      succeeds, and it goes on trying */
extern const sheaf_transport sheaf_transport_inproc; /* tests and the simulator; certificates are read from the same
                                                         files but no TLS runs */

/* The carrier for a url, or NULL. */
const sheaf_transport *sheaf_transport_for(const char *url);
