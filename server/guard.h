/* guard.h - who the service is and whom it believes, and what happens when that changes while it runs.
 *
 *   files change -> trust or credentials are read again -> requests are judged by the new content at once
 *     -> jobs sign their open rounds again -> connections that no longer hold are ended
 *
 * Owner:   the service.
 * Threads: open, watch and close on the service's main thread; trust and credentials on any.
 * Errors:  of open: those of trust.h and credentials.h; SHEAF_E_ROLE when we are no aggregator. Later they are alarms in the
 *          log.
 * Not:     it judges nobody; trust.h does. */
#pragma once
#include "common/credentials.h"
#include "common/trust.h"
#include "server/ends.h"
#include "server/job.h"

typedef struct {
    sheaf_trust *trust;
    sheaf_credentials *credentials;
    uint64_t look_ns;    /* not before */
    uint64_t expel_ns;   /* when those that no longer hold are sent away; SHEAF_NEVER_NS: nothing is due */
    uint64_t renewed_ns; /* when those that know our old certificate are sent away */
} sheaf_guard;

SHEAF_MUST_USE sheaf_status sheaf_guard_open(const sheafd_config *config, sheaf_guard *out, sheaf_problem *problem);
/* Looks at the files, once a second unless `now`, and does what is due. */
void sheaf_guard_watch(sheaf_guard *guard, sheaf_ends *ends, sheaf_job **jobs, size_t job_count, int now);
void sheaf_guard_close(sheaf_guard *guard); /* fine on a zeroed object */
