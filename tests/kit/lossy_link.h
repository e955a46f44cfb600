/* lossy_link.h - a bad network between a device's core and any carrier: frames are lost, come twice, or come late.
 *
 * Each frame runs over one of several links of the carrier below, so that a late request can meet the aggregator beside
 * a newer one, and an answer that nobody waits for any more still arrives: worse than any real carrier, and all that
 * proto/WIRE.md allows.
 *
 * Owner:   the test; lossy_link_close frees it.
 * Threads: one, that of the core.
 * Units:   milliseconds of real time; odds in percent.
 * Errors:  a link that cannot be opened ends the test program with a message.
 * Not:     a broken connection: what is lost is lost silently. Which frames are hit follows from the seed and the order
 *          of the frames, not from the clock. */
#pragma once
#include "common/transport/transport.h"
#include "sheaf/edge.h"

#define LOSSY_LANES 4u /* as many connections as one identity may hold */
#define LOSSY_HELD  64u

typedef struct {
    unsigned drop, twice, late; /* percent of the frames in each direction */
    uint32_t late_ms;           /* at most so late */
    unsigned lanes;             /* links below; 0: LOSSY_LANES. With one, a failed link is told to the core */
    int casts;                  /* with one lane and a carrier that casts: the core may join groups */
} lossy_odds;

typedef struct {
    unsigned frames, dropped, doubled, delayed; /* in both directions together */
} lossy_counts;

typedef struct {
    uint8_t *bytes;
    size_t size;
    uint64_t due_ms;
} lossy_frame;

/* Frames that wait, in the order in which they came; the one that is due first goes first. */
typedef struct {
    lossy_frame frames[LOSSY_HELD];
    unsigned count;
} lossy_queue;

/* Called with every frame that the core sends, or that comes to it; 0: it is lost. */
typedef int (*lossy_watch)(void *context, sheaf_span frame);

typedef struct {
    const sheaf_transport *carrier;
    sheaf_link *lanes[LOSSY_LANES];
    int busy[LOSSY_LANES];
    sheaf_status failed; /* of the only lane, not told yet */
    unsigned spoke;      /* the lane that the last answer came by */
    sheaf_buffer in;
    lossy_queue up, down;
    sheaf_transport_options options; /* what its pointers name must live as long as the link */
    lossy_odds odds;
    lossy_counts counts;
    uint64_t state;          /* of the random numbers */
    int closed;              /* nothing passes */
    lossy_watch watch, hear; /* up, down; NULL: none */
    void *watch_context;
} lossy_link;

void lossy_link_open(lossy_link *lossy, const sheaf_transport *carrier, const sheaf_transport_options *options,
                     uint64_t seed, const lossy_odds *odds);
void lossy_link_close(lossy_link *lossy);
/* What the core needs. */
sheaf_edge_transport lossy_link_port(lossy_link *lossy);
/* The certificate of the aggregator, or NULL before it has answered. */
sheaf_certificate *lossy_link_peer(lossy_link *lossy);
/* All that is on its way is lost, in both directions. */
void lossy_link_cut(lossy_link *lossy);
/* The same, and the connections end; new ones begin. */
void lossy_link_break(lossy_link *lossy);
