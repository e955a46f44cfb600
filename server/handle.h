/* handle.h - what a worker does with a request: read the frame, check who speaks, and do the part that needs no state
 * of the round; the rest goes to the job's thread.
 *
 * Threads: workers, several at once.
 * Errors:  every request gets exactly one reply: here, or from the job's thread. */
#pragma once
#include "server/job.h"

typedef struct {
    sheaf_job **jobs;
    size_t job_count;
    sheaf_refusals *refusals; /* of what belongs to no job */
    uint32_t chunk_bytes;
    struct sheaf_trust *trust;
    sheaf_quota *quota;
} sheaf_handlers;

/* The task of a fresh request; request->service is the sheaf_handlers. */
void sheaf_handle_request(sheaf_task *task, sheaf_buffer *scratch);
