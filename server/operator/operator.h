/* operator.h - the one channel over which people and their tools watch and steer a service: HTTP and JSON, on a Unix socket
 * in the state folder and, if configured, over mutual TLS. docs/API.md lists what it answers.
 *
 * Owner:   the service; what the options point to must outlive sheaf_operator_close.
 * Threads: open, close: the service's main thread. It has a thread of its own, which reads the database and snapshots,
 *          and changes a job only by orders to the job's thread: it never holds up a round.
 * Errors:  open: those of http_socket.h, tls_source.h and history.h.
 * Not:     devices' requests; those come through carriers. */
#pragma once
#include "server/clients.h"
#include "server/ends.h"
#include "server/job.h"
#include "server/quota.h"

#define SHEAF_OPERATOR_SOCKET      "operator.sock"    /* in the state folder */
#define SHEAF_OPERATOR_ADDRESS     "operator.address" /* the https url with the port that was chosen */
#define SHEAF_OPERATOR_CONNECTIONS 64                 /* at a time, on each listener */

typedef struct sheaf_operator sheaf_operator;

typedef struct {
    const sheafd_config *config;
    sheaf_job *const *jobs;
    size_t job_count;
    sheaf_refusals *refusals; /* of what never reached a job */
    sheaf_clients *clients;
    sheaf_quota *quota;
    const sheaf_ends *ends;
    struct sheaf_trust *trust;
    struct sheaf_credentials *credentials;
    void (*look_again)(void *context); /* the files of certificates and revocation lists; from any thread */
    void *context;
} sheaf_operator_options;

SHEAF_MUST_USE sheaf_status sheaf_operator_open(const sheaf_operator_options *options, sheaf_operator **out,
                                                sheaf_problem *problem);
/* Waits for orders that were given, hangs up, ends the thread. NULL is fine. */
void sheaf_operator_close(sheaf_operator *operator);
/* The https url with the port that was chosen; NULL when there is only the socket. */
const char *sheaf_operator_url(const sheaf_operator *operator);
