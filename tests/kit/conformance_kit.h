/* conformance_kit.h - one table of carriers, and behaviours that run over each of them.
 *
 * To add a carrier, add its row in conformance_kit.c: what it can do decides which behaviours it is asked for.
 *
 * Owner:   the test closes the links and stops the servers that it opened.
 * Threads: one, besides those of the carriers.
 * Errors:  a helper that fails fails the test. */
#pragma once
#include "tests/cmocka.h"

#include "tests/kit/carrier_kit.h"

#define CONFORMANCE_OVER_TCP 1u /* the link's bytes go to the port in the url, so a proxy may stand between */
#define CONFORMANCE_CASTS    2u /* not in the table: its functions say so */
#define CONFORMANCE_LISTENS  4u /* the server owns its address; over MQTT the broker does */
#define CONFORMANCE_CROWDED  8u /* one identity may hold several links; a broker keeps one of a name */
#define CONFORMANCE_CUTS     16u /* cancel takes back what has not reached the handler; past a broker it may come to it */
#define CONFORMANCE_IN_ORDER 32u /* also when connections break */

typedef struct {
    const sheaf_transport *transport;
    const char *url;
    unsigned abilities;
} conformance_carrier;

typedef struct {
    const char *name;
    CMUnitTestFunction run; /* *state is a const conformance_carrier */
    unsigned needs;
} conformance_behaviour;

#define CONFORMANCE(function, needs)                                                                                   \
    { #function, function, needs }

/* An aggregator need not keep more connections of one identity than four, so crowds are made of many. */
#define CONFORMANCE_EACH  4u
#define CONFORMANCE_CROWD 400u

extern const pki_kit_files *conformance_aggregator, *conformance_other_aggregator, *conformance_device;

/* Of links of the crowd; a test of very many may set it higher, and sets it back. */
extern uint32_t conformance_crowd_handshake_ms;

/* Runs each behaviour over each carrier that has what it needs. */
int conformance_run(const conformance_behaviour *behaviours, size_t count);

void conformance_start(carrier_server *server, const conformance_carrier *carrier, carrier_mode mode);
const char *conformance_url_of(const carrier_server *server);
/* Links of device-01, but for the crowd's: number i of CONFORMANCE_CROWD. */
sheaf_link *conformance_open_link(const carrier_server *server);
sheaf_link *conformance_open_link_of_crowd(const carrier_server *server, unsigned i);
sheaf_link *conformance_open_link_to(const sheaf_transport *transport, const char *url, const pki_kit_files *files);
sheaf_link *conformance_open_window(const carrier_server *server, const char *url, uint32_t window);
