/* nng_engine.h - our TLS for NNG's own sockets and streams: nothing of ours runs on these, but others' do, and what NNG
 * does by itself is what our carrier is compared with.
 *
 * Debian's NNG is built with mbedTLS: TLS 1.2 only, and it does not tell who the peer is. NNG takes another engine at
 * run time.
 *
 * Owner:   a configuration holds a reference to its context; NNG drops it some time after the last stream was given back,
 *          on a thread of its own.
 * Threads: any; the engine itself runs on NNG's threads.
 * Errors:  SHEAF_E_VERSION (another NNG than the one that we were compiled for), SHEAF_E_MEMORY.
 * Not:     our carrier: see tls_stream.h. */
#pragma once
#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#include "common/transport/tls_session.h"

/* A configuration for NNG's tls+tcp dialers and listeners, sockets' or streams'. Free it with nng_tls_config_free. */
SHEAF_MUST_USE sheaf_status sheaf_nng_engine_configure(sheaf_tls_context *context, nng_tls_config **out,
                                                       sheaf_problem *problem);
