/* tcp_queue.h - how many bytes of a TCP connection of ours the peer's kernel has not acknowledged yet.
 *
 * NNG does not show its sockets, so the kernel is asked by address (sock_diag of netlink, open to every process).
 *
 * Threads: any.
 * Errors:  none; where the kernel does not answer, nothing seems to be queued.
 * Not:     cheap enough for every message (about 10 us). */
#pragma once
#include <nng/nng.h>
#include <stdint.h>

uint64_t sheaf_tcp_queued(const nng_sockaddr *local, const nng_sockaddr *remote);
