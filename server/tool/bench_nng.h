/* bench_nng.h - the NNG carrier under load, and what it is compared with.
 *
 * Threads: each role runs in a process of its own.
 * Not:     the table of cases; that is bench_transport.c. */
#pragma once
#include "server/tool/bench_load.h"

/* Payloads in frames over a carrier of ours, an acknowledgement each; MiB/s. */
void sheaf_bench_carrier_serve(const sheaf_bench_load *load, int ready, int stop);
double sheaf_bench_carrier_drive(const sheaf_bench_load *load, const char *address);
/* The same through NNG's own REQ and REP sockets, a payload a message. */
void sheaf_bench_raw_nng_serve(const sheaf_bench_load *load, int ready, int stop);
double sheaf_bench_raw_nng_drive(const sheaf_bench_load *load, const char *address);
/* Connections a second, from TCP to both hellos, with the carrier's server (sheaf_bench_carrier_serve). */
double sheaf_bench_connects_drive(const sheaf_bench_load *load, const char *address);
/* The same with OpenSSL on sockets. */
void sheaf_bench_raw_tls_serve(const sheaf_bench_load *load, int ready, int stop);
double sheaf_bench_raw_tls_drive(const sheaf_bench_load *load, const char *address);
