#include "common/transport/tcp_queue.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    struct nlmsghdr head;
    struct inet_diag_req_v2 body;
} question;

static int put_address(const nng_sockaddr *address, uint32_t ip[4], uint16_t *port) {
    if (address->s_family == NNG_AF_INET) {
        ip[0] = address->s_in.sa_addr;
        *port = address->s_in.sa_port;
        return AF_INET;
    }
    if (address->s_family != NNG_AF_INET6) return AF_UNSPEC;
    memcpy(ip, address->s_in6.sa_addr, 16);
    *port = address->s_in6.sa_port;
    return AF_INET6;
}

static uint64_t ask(int fd, const question *asked) {
    union {
        struct nlmsghdr head;
        uint8_t bytes[1024];
    } answer;
    if (send(fd, asked, sizeof *asked, 0) != (ssize_t)sizeof *asked) return 0;
    ssize_t size = recv(fd, &answer, sizeof answer, MSG_DONTWAIT);
    if (size < (ssize_t)(NLMSG_HDRLEN + sizeof(struct inet_diag_msg))) return 0;
    if (answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY) return 0; /* an error: no such connection */
    struct inet_diag_msg message;
    memcpy(&message, answer.bytes + NLMSG_HDRLEN, sizeof message);
    return message.idiag_wqueue;
}

uint64_t sheaf_tcp_queued(const nng_sockaddr *local, const nng_sockaddr *remote) {
    question asked;
    memset(&asked, 0, sizeof asked);
    asked.head.nlmsg_len = sizeof asked;
    asked.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    asked.head.nlmsg_flags = NLM_F_REQUEST;
    asked.body.sdiag_protocol = IPPROTO_TCP;
    asked.body.idiag_states = ~0u;
    asked.body.id.idiag_cookie[0] = asked.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    int family = put_address(local, asked.body.id.idiag_src, &asked.body.id.idiag_sport);
    int other = put_address(remote, asked.body.id.idiag_dst, &asked.body.id.idiag_dport);
    if (family == AF_UNSPEC || family != other) return 0;
    asked.body.sdiag_family = (uint8_t)family;
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0) return 0;
    uint64_t queued = ask(fd, &asked);
    (void)close(fd);
    return queued;
}
