/* tcp_proxy.h - a TCP relay on 127.0.0.1 between the ends of a carrier, that is slow, stalls or breaks as the test says.
 *
 * Its receive buffers are small, so that bytes which it does not take wait in the sender's kernel, as on a slow line.
 *
 * Owner:   the test; tcp_proxy_stop ends what tcp_proxy_start began.
 * Threads: the relay has one of its own; all functions on the test's.
 * Units:   bytes, bytes a second.
 * Errors:  sockets that cannot be made fail the test. */
#pragma once
#include <pthread.h>
#include <stdint.h>

#define TCP_PROXY_PAIRS 64u

typedef struct {
    int ends[2];        /* towards the link, towards the server; -1: closed */
    uint64_t budget[2]; /* bytes that may still be taken now */
    int64_t left;       /* bytes both ways until it is cut; negative: never */
} tcp_proxy_pair;

typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    int listener;
    unsigned port, target;
    int stopping, stalled;
    uint64_t rate;    /* each way of each connection; 0: any */
    int64_t lifetime; /* bytes; of connections that begin from now on; negative: for ever */
    unsigned connections;
    tcp_proxy_pair pairs[TCP_PROXY_PAIRS];
    unsigned count;
} tcp_proxy;

void tcp_proxy_start(tcp_proxy *proxy, unsigned target_port);
void tcp_proxy_stop(tcp_proxy *proxy);
void tcp_proxy_set_rate(tcp_proxy *proxy, uint64_t bytes_per_s);
/* While 1, no byte moves and nothing ends. */
void tcp_proxy_stall(tcp_proxy *proxy, int stalled);
/* Connections that begin from now on break after so many bytes of both ways; negative: they do not. */
void tcp_proxy_cut_after(tcp_proxy *proxy, int64_t bytes);
/* How many have begun so far. */
unsigned tcp_proxy_connections(tcp_proxy *proxy);
