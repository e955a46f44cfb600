/* edge_posix.h - the edge library on Linux and other POSIX systems: files, clock, random numbers, keys and network
 * behind one call.
 *
 * Owner:   strings and structs given to sheaf_edge_device_open are copied; the trainer's context and the event context
 *          must outlive sheaf_edge_device_close.
 * Threads: one thread per device; sheaf_edge_device_request_stop may also come from a signal handler. The carrier runs
 *          threads of its own, which never call back.
 * Rotation: certificate, key, authorities and revocation lists are read again when their files change; the device then
 *          connects anew, and signs again what has no receipt yet.
 * Files:   the state folder holds the model, the update and the state of one device in one job. Two processes cannot
 *          use it at a time.
 * Errors:  SHEAF_E_USAGE, SHEAF_E_CERTIFICATE, SHEAF_E_PERMISSION, SHEAF_E_NOT_FOUND, SHEAF_E_EXISTS (the state folder
 *          is in use), SHEAF_E_MISMATCH (it belongs to another job), SHEAF_E_MEMORY, SHEAF_E_DISK; `reason` says more. */
#ifndef SHEAF_EDGE_POSIX_H
#define SHEAF_EDGE_POSIX_H
#include "sheaf/edge.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHEAF_EDGE_REASON_BYTES 1024u

typedef struct sheaf_edge_device sheaf_edge_device;

typedef struct {
    const char *url;              /* tls+tcp://host:port, or mqtts://host:port of a broker */
    const char *certificate_path; /* PEM: own certificate, then any intermediates */
    const char *key_path;         /* PEM, readable by its owner only; or a pkcs11: URI */
    const char *ca_path;          /* PEM: authorities that the aggregator must chain to */
    const char *crl_path;         /* PEM: their revocation lists; NULL: none */
    const char *server_name;      /* that its (mqtts: the broker's) certificate must hold; NULL: the url's host */
    const char *topic_prefix;     /* mqtts: first level of all topics; NULL: "sheaf" */
    int tls12_profile;            /* 1: also TLS 1.2, for small aggregators; 0: TLS 1.3 only */
    const char *state_folder;     /* made if missing */
    const char *tenant;           /* NULL: the certificate's */
    const char *job;
    uint32_t chunk_bytes;  /* bulk data per exchange; 0 = 256 KiB */
    uint32_t handshake_ms; /* 0 = 10000 */
    uint32_t reply_ms;     /* 0 = 30000 */
    uint32_t window;       /* requests with bulk data on their way at a time; 0 = 2 */
    sheaf_trainer trainer;
    sheaf_edge_on_event on_event; /* may be NULL */
    void *event_context;
} sheaf_edge_device_options;

/* `reason` (SHEAF_EDGE_REASON_BYTES, may be NULL) gets the text for people when this fails. */
SHEAF_MUST_USE sheaf_status sheaf_edge_device_open(const sheaf_edge_device_options *options, sheaf_edge_device **out,
                                                   char *reason);
/* As sheaf_edge_poll. */
SHEAF_MUST_USE sheaf_status sheaf_edge_device_poll(sheaf_edge_device *device, uint32_t *wait_ms);
/* Polls and sleeps until SHEAF_ENDED or SHEAF_STOPPED. */
SHEAF_MUST_USE sheaf_status sheaf_edge_device_run(sheaf_edge_device *device);
void sheaf_edge_device_request_stop(sheaf_edge_device *device);
sheaf_edge_state sheaf_edge_device_state(const sheaf_edge_device *device);
const char *sheaf_edge_device_client(const sheaf_edge_device *device); /* the name in its certificate */
const char *sheaf_edge_device_tenant(const sheaf_edge_device *device);
/* Why the carrier last failed, for people; "" if it has not. Borrowed until the next poll. */
const char *sheaf_edge_device_link_reason(const sheaf_edge_device *device);
void sheaf_edge_device_close(sheaf_edge_device *device); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
