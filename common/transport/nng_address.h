/* nng_address.h - where the NNG carrier's server listens, and where its peers come from, as text.
 *
 * Owner:   the caller frees the listener.
 * Threads: any.
 * Errors:  SHEAF_E_USAGE (url), SHEAF_E_ADDRESS_IN_USE, SHEAF_E_PERMISSION, SHEAF_E_MEMORY, SHEAF_E_NETWORK.
 * Not:     it accepts nobody. */
#pragma once
#include <nng/nng.h>

#include "common/problem.h"

#define SHEAF_NNG_ADDRESS_BYTES 64u
#define SHEAF_NNG_URL_BYTES     300u

/* tcp://host:port of tls+tcp://host:port, for NNG, which is to know nothing of the TLS. A part of `url`. */
const char *sheaf_nng_below_tls(const char *url);
/* Listens on tls+tcp://host:port; `bound` is the same url with the port that was chosen. */
SHEAF_MUST_USE sheaf_status sheaf_nng_listen(const char *text, nng_stream_listener **out,
                                             char bound[SHEAF_NNG_URL_BYTES], sheaf_problem *problem);
/* "192.0.2.1:4711", "[2001:db8:0:...]:4711" or "unknown address". */
void sheaf_nng_name_peer(nng_stream *stream, char out[SHEAF_NNG_ADDRESS_BYTES]);
