/* events.h - what a device lives through, as lines of the log.
 *
 * Owner:   the caller; it must outlive the device whose events it gets.
 * Threads: the device's.
 * Not:     progress for machines; lines come at most every few seconds while training. */
#pragma once
#include "sheaf/edge_posix.h"

typedef struct {
    sheaf_edge_device *device; /* set after open; NULL before */
    int once;                  /* stop after the first receipt or refusal */
    unsigned receipts, refusals;
    sheaf_status job_status; /* of JOB_ENDED */
    uint64_t next_training_line_s;
} edge_events;

void edge_events_take(const sheaf_edge_event *event, void *context);
