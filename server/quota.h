/* quota.h - how much one device may ask for: requests and bytes per second, and bytes that are in work at a time.
 *
 * Each device has two buckets, which hold two seconds' worth and fill steadily. One that is empty says when it will do again.
 * The table has a fixed size: of the devices that share a place of eight, the one that was silent the longest is
 * forgotten, and comes back with full buckets.
 *
 * Owner:   the service; the table is taken at make.
 * Threads: any.
 * Units:   bytes, nanoseconds of CLOCK_MONOTONIC.
 * Errors:  SHEAF_E_QUOTA with a time.
 * Not:     it refuses nobody for good and cuts no connection. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

typedef struct sheaf_quota sheaf_quota;

typedef struct {
    uint32_t requests_per_s;  /* 0: any number */
    uint64_t bytes_per_s;     /* of requests; 0: any number */
    uint64_t in_flight_bytes; /* of requests that have no reply yet; one alone is always let in; 0: any number */
} sheaf_quota_limits;

typedef enum { SHEAF_QUOTA_REQUESTS, SHEAF_QUOTA_BYTES, SHEAF_QUOTA_IN_FLIGHT, SHEAF_QUOTA_KINDS } sheaf_quota_kind;

/* What was charged, to be given back with the reply. */
typedef struct {
    sheaf_quota *quota; /* NULL: nothing */
    uint32_t place;
    uint64_t bytes;
} sheaf_quota_charged;

SHEAF_MUST_USE sheaf_status sheaf_quota_make(const sheaf_quota_limits *limits, sheaf_quota **out);
void sheaf_quota_free(sheaf_quota *quota); /* NULL is fine */

/* A request of so many bytes by this device. SHEAF_E_QUOTA: nothing is charged, and *retry_ms (> 0) is when it would do. */
SHEAF_MUST_USE sheaf_status sheaf_quota_charge(sheaf_quota *quota, const char *tenant, const char *client,
                                               uint64_t bytes, uint64_t now_ns, sheaf_quota_charged *out,
                                               uint32_t *retry_ms);
/* How often each kind made a device wait; where several did, the one that takes longest. */
void sheaf_quota_waits(sheaf_quota *quota, uint64_t out[SHEAF_QUOTA_KINDS]);
/* Its reply is given. Safe on a zeroed one, and twice. */
void sheaf_quota_give_back(sheaf_quota_charged *charged);
