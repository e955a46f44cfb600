#include "tests/kit/tcp_proxy.h"

#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/kit/carrier_kit.h"
#include "tests/kit/raw_tls.h"

#define TICK_MS     5u
#define PIECE_BYTES 4096u

static void small_buffer(int fd) {
    int bytes = 4096;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

static void end_pair(tcp_proxy_pair *pair) {
    struct linger reset = {1, 0};
    for (unsigned i = 0; i < 2; i++) {
        if (pair->ends[i] < 0) continue;
        (void)setsockopt(pair->ends[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        (void)close(pair->ends[i]);
        pair->ends[i] = -1;
    }
}

static void begin_pair(tcp_proxy *proxy) {
    int fd = accept(proxy->listener, NULL, NULL);
    if (fd < 0) return;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)proxy->target)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    small_buffer(server);
    tcp_proxy_pair pair = {{fd, server}, {0, 0}, proxy->lifetime};
    if (proxy->count == TCP_PROXY_PAIRS || connect(server, (const struct sockaddr *)&to, sizeof to) != 0) {
        end_pair(&pair);
        return;
    }
    proxy->connections++;
    proxy->pairs[proxy->count++] = pair;
}

/* Moves what may move one way; a full receiver's rest waits in the socket, for send blocks only a moment on loopback. */
static void relay(tcp_proxy *proxy, tcp_proxy_pair *pair, unsigned from) {
    uint8_t piece[PIECE_BYTES];
    size_t most = sizeof piece;
    if (proxy->rate > 0) most = pair->budget[from] < most ? (size_t)pair->budget[from] : most;
    if (pair->left >= 0 && (uint64_t)pair->left < most) most = (size_t)pair->left;
    struct pollfd out = {pair->ends[1 - from], POLLOUT, 0};
    if (most == 0 || poll(&out, 1, 0) <= 0 || (out.revents & POLLOUT) == 0) return;
    ssize_t got = recv(pair->ends[from], piece, most, MSG_DONTWAIT);
    if (got < 0) return;
    if (got == 0 || send(pair->ends[1 - from], piece, (size_t)got, MSG_NOSIGNAL) != got) {
        end_pair(pair);
        return;
    }
    pair->budget[from] -= proxy->rate > 0 ? (uint64_t)got : 0;
    if (pair->left >= 0) pair->left -= got;
}

static void relay_pair(tcp_proxy *proxy, tcp_proxy_pair *pair, uint64_t elapsed_ms) {
    for (unsigned from = 0; from < 2 && pair->ends[0] >= 0; from++) {
        uint64_t most = proxy->rate / 20u + 1u;
        pair->budget[from] += proxy->rate * elapsed_ms / 1000u;
        if (pair->budget[from] > most) pair->budget[from] = most;
        relay(proxy, pair, from);
    }
    if (pair->left == 0) end_pair(pair);
}

static void relay_all(tcp_proxy *proxy, uint64_t elapsed_ms) {
    unsigned kept = 0;
    for (unsigned i = 0; i < proxy->count; i++) {
        if (!proxy->stalled) relay_pair(proxy, &proxy->pairs[i], elapsed_ms);
        if (proxy->pairs[i].ends[0] >= 0) proxy->pairs[kept++] = proxy->pairs[i];
    }
    proxy->count = kept;
}

static void wait_for_bytes(tcp_proxy *proxy) {
    struct pollfd watched[1 + 2 * TCP_PROXY_PAIRS];
    nfds_t count = 0;
    watched[count++] = (struct pollfd){proxy->listener, POLLIN, 0};
    for (unsigned i = 0; i < proxy->count && proxy->rate == 0 && !proxy->stalled; i++) {
        watched[count++] = (struct pollfd){proxy->pairs[i].ends[0], POLLIN, 0};
        watched[count++] = (struct pollfd){proxy->pairs[i].ends[1], POLLIN, 0};
    }
    pthread_mutex_unlock(&proxy->lock);
    (void)poll(watched, count, TICK_MS);
    pthread_mutex_lock(&proxy->lock);
    if ((watched[0].revents & POLLIN) != 0) begin_pair(proxy);
}

static void *proxy_main(void *argument) {
    tcp_proxy *proxy = argument;
    uint64_t last = carrier_now_ms();
    pthread_mutex_lock(&proxy->lock);
    while (!proxy->stopping) {
        wait_for_bytes(proxy);
        uint64_t now = carrier_now_ms();
        relay_all(proxy, now - last);
        last = now;
    }
    for (unsigned i = 0; i < proxy->count; i++) end_pair(&proxy->pairs[i]);
    pthread_mutex_unlock(&proxy->lock);
    return NULL;
}

void tcp_proxy_start(tcp_proxy *proxy, unsigned target_port) {
    memset(proxy, 0, sizeof *proxy);
    proxy->target = target_port;
    proxy->lifetime = -1;
    proxy->listener = raw_listen(&proxy->port);
    small_buffer(proxy->listener);
    pthread_mutex_init(&proxy->lock, NULL);
    (void)pthread_create(&proxy->thread, NULL, proxy_main, proxy);
}

void tcp_proxy_stop(tcp_proxy *proxy) {
    pthread_mutex_lock(&proxy->lock);
    proxy->stopping = 1;
    pthread_mutex_unlock(&proxy->lock);
    (void)pthread_join(proxy->thread, NULL);
    (void)close(proxy->listener);
    pthread_mutex_destroy(&proxy->lock);
}

void tcp_proxy_set_rate(tcp_proxy *proxy, uint64_t bytes_per_s) {
    pthread_mutex_lock(&proxy->lock);
    proxy->rate = bytes_per_s;
    pthread_mutex_unlock(&proxy->lock);
}

void tcp_proxy_stall(tcp_proxy *proxy, int stalled) {
    pthread_mutex_lock(&proxy->lock);
    proxy->stalled = stalled;
    pthread_mutex_unlock(&proxy->lock);
}

void tcp_proxy_cut_after(tcp_proxy *proxy, int64_t bytes) {
    pthread_mutex_lock(&proxy->lock);
    proxy->lifetime = bytes;
    pthread_mutex_unlock(&proxy->lock);
}

unsigned tcp_proxy_connections(tcp_proxy *proxy) {
    pthread_mutex_lock(&proxy->lock);
    unsigned connections = proxy->connections;
    pthread_mutex_unlock(&proxy->lock);
    return connections;
}
