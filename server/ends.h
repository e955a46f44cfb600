/* ends.h - where devices reach the service: one end per carrier that is configured, all of them serving every job.
 *
 * Owner:   the service; what the sink points to must outlive sheaf_ends_close.
 * Threads: open and close on the service's main thread; requests come in on the carriers' threads and go to the workers.
 * Errors:  open: those of the carriers, and SHEAF_E_CONFIG for an address that no carrier knows.
 * Not:     it reads no frame. */
#pragma once
#include "server/config.h"
#include "server/refusals.h"
#include "server/work.h"

#define SHEAF_ENDS_MAX 2u

typedef struct {
    void *handlers; /* what workers see; see sheaf_request.service */
    sheaf_refusals *refusals;
    sheaf_clients *clients;
    sheaf_request_pool *pool;
    sheaf_queue *tasks;
    const sheafd_config *config;
    struct sheaf_trust *trust;
    struct sheaf_credentials *credentials;
} sheaf_ends_sink;

struct sheaf_end {
    const sheaf_transport *carrier;
    sheaf_server *server;
    const sheaf_ends_sink *sink;
};

typedef struct {
    sheaf_ends_sink sink; /* set before open */
    struct sheaf_end items[SHEAF_ENDS_MAX];
    _Atomic size_t count; /* those that are open; others may look while further ones open */
} sheaf_ends;

/* Opens every end and writes the file STATE/address: their urls with the ports that were chosen, one a line. */
SHEAF_MUST_USE sheaf_status sheaf_ends_open(sheaf_ends *ends, sheaf_problem *problem);
/* The url of end `index` < count; borrowed. */
const char *sheaf_ends_url(const sheaf_ends *ends, size_t index);
/* How many ends the config wants. */
size_t sheaf_ends_wanted(const sheafd_config *config);
/* Name of the carrier of end `index` < count and, if it tells, how it stands: ready, without numbers, if not. */
const char *sheaf_ends_look(const sheaf_ends *ends, size_t index, sheaf_server_report *out);
/* Ends the connections of these peers on every end; returns how many. See transport.h. */
unsigned sheaf_ends_expel(sheaf_ends *ends, int (*unwanted)(void *context, const sheaf_certificate *peer),
                          void *context);
/* Takes no further request and waits until no handler runs. Fine on a zeroed object. */
void sheaf_ends_close(sheaf_ends *ends);
