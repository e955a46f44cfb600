/* bench_load.h - what a benchmark of carriers runs: two roles in processes of their own, and the certificates for them.
 *
 * Server and clients are forked, so that each side has its own threads of NNG and OpenSSL, as in the field, and the
 * memory of the server is that of a process. Whoever forks must not have started NNG itself.
 *
 * Owner:   the folder of a load belongs to sheaf_bench_folder_make, which sheaf_bench_folder_remove ends.
 * Threads: one, without others beside it.
 * Units:   bytes, seconds, KiB of memory.
 * Errors:  a role that fails prints why on stderr and ends its process; its pair then has failed.
 * Not:     it knows no carrier. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/file.h"
#include "common/transport/transport.h"

typedef struct {
    char folder[SHEAF_PATH_BYTES]; /* certificates; the spool of durable loads */
    unsigned clients;
    size_t bytes;       /* of a payload */
    size_t frame_bytes; /* payload bytes in one frame of ours */
    double seconds;     /* that are measured, after a first payload of each client */
    int digests;        /* SHA-256 of each payload, at both ends */
    int durable;        /* the server syncs each payload to disk before it acknowledges the last byte */
} sheaf_bench_load;

#define SHEAF_BENCH_ADDRESS_BYTES 128u

typedef struct {
    /* Serves until `stop` is at its end; writes the address, SHEAF_BENCH_ADDRESS_BYTES of it, to `ready`. */
    void (*serve)(const sheaf_bench_load *load, int ready, int stop);
    /* The figure; negative: failed. */
    double (*drive)(const sheaf_bench_load *load, const char *address);
} sheaf_bench_pair;

/* Runs both roles; `peak_kib` (may be NULL) is the server's largest resident memory. Negative: failed. */
double sheaf_bench_run(const sheaf_bench_pair *pair, const sheaf_bench_load *load, long *peak_kib);

SHEAF_MUST_USE sheaf_status sheaf_bench_folder_make(sheaf_bench_load *load, unsigned devices, sheaf_problem *problem);
void sheaf_bench_folder_remove(const sheaf_bench_load *load);

/* Files of the aggregator (number < 0) or of a device, in `paths`, which must stay. */
typedef struct {
    char certificate[SHEAF_PATH_BYTES + 64], key[SHEAF_PATH_BYTES + 64], ca[SHEAF_PATH_BYTES + 64];
} sheaf_bench_paths;
sheaf_tls_options sheaf_bench_tls(const sheaf_bench_load *load, int number, sheaf_bench_paths *paths);

double sheaf_bench_now(void); /* seconds of the monotonic clock */
void sheaf_bench_die(const char *what, const char *why);
/* Writes the address and waits for the end. */
void sheaf_bench_serve_until(const char *address, int ready, int stop);
