/* line.h - the device's line to the aggregator: carrier, link, who we are and whom we believe, as these are now.
 *
 * When the files of the certificate, the authorities or the revocation list change, the line takes them over: the next
 * requests go out on a new link, under the identity in force. What was on its way is then lost, as with a broken link.
 *
 * Owner:   the device; options are copied. sheaf_line_close is fine on a zeroed line.
 * Threads: one.
 * Errors:  of open: those of trust.h, credentials.h and the carrier; SHEAF_E_ROLE (not a device's certificate),
 *          SHEAF_E_USAGE (no such carrier).
 * Not:     the protocol; the core speaks it through the two ports below. */
#pragma once
#include "common/credentials.h"
#include "common/transport/transport.h"
#include "common/trust.h"
#include "sheaf/edge_posix.h"

typedef struct {
    const sheaf_transport *carrier;
    sheaf_link *link;
    sheaf_trust *trust;
    sheaf_credentials *credentials;
    sheaf_credentials_pair pair;     /* the one that the link shows */
    sheaf_transport_options options; /* its texts are ours */
    char *texts[6];
    int is_replaced; /* the core has not been told yet that what was on its way is lost */
    uint64_t look_ms;
    sheaf_problem problem; /* of the last failure; "" before */
} sheaf_line;

SHEAF_MUST_USE sheaf_status sheaf_line_open(sheaf_line *line, const sheaf_edge_device_options *options,
                                            size_t frame_bytes, sheaf_problem *problem);
/* Once a second, looks at the files; cheap in between. */
void sheaf_line_poll(sheaf_line *line, uint64_t now_ms);
void sheaf_line_close(sheaf_line *line);

/* The core's ports over `line`, which must outlive it. */
sheaf_edge_transport sheaf_line_transport(sheaf_line *line);
sheaf_edge_signer sheaf_line_signer(sheaf_line *line);
