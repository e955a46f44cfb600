#include "common/transport/nng_address.h"

#include <stdio.h>
#include <string.h>

static sheaf_status status_of_listen(int error) {
    switch (error) {
    case NNG_EADDRINUSE:
        return SHEAF_E_ADDRESS_IN_USE;
    case NNG_EADDRINVAL:
    case NNG_EINVAL:
        return SHEAF_E_USAGE;
    case NNG_EPERM:
        return SHEAF_E_PERMISSION;
    case NNG_ENOMEM:
        return SHEAF_E_MEMORY;
    default:
        return SHEAF_E_NETWORK;
    }
}

const char *sheaf_nng_below_tls(const char *url) { return strncmp(url, "tls+", 4) == 0 ? url + 4 : url; }

sheaf_status sheaf_nng_listen(const char *text, nng_stream_listener **out, char bound[SHEAF_NNG_URL_BYTES],
                              sheaf_problem *problem) {
    nng_stream_listener *listener = NULL;
    nng_url *url = NULL;
    int port = 0;
    int error = nng_url_parse(&url, text);
    if (error == 0 && (url->u_port[0] == '\0' || strlen(url->u_path) > 1 || strlen(url->u_hostname) > 255))
        error = NNG_EADDRINVAL;
    if (error == 0) error = nng_stream_listener_alloc(&listener, sheaf_nng_below_tls(text));
    if (error == 0) error = nng_stream_listener_set_bool(listener, NNG_OPT_TCP_NODELAY, true);
    if (error == 0) error = nng_stream_listener_set_bool(listener, NNG_OPT_TCP_KEEPALIVE, true);
    if (error == 0) error = nng_stream_listener_listen(listener);
    if (error == 0) error = nng_stream_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port);
    if (error == 0) {
        int is_v6 = strchr(url->u_hostname, ':') != NULL;
        (void)snprintf(bound, SHEAF_NNG_URL_BYTES, "tls+tcp://%s%s%s:%d", is_v6 ? "[" : "", url->u_hostname,
                       is_v6 ? "]" : "", port);
    }
    nng_url_free(url);
    if (error == 0) {
        *out = listener;
        return SHEAF_OK;
    }
    if (listener != NULL) nng_stream_listener_free(listener);
    return sheaf_problem_set(problem, status_of_listen(error), "%.200s: cannot listen: %s", text, nng_strerror(error));
}

void sheaf_nng_name_peer(nng_stream *stream, char out[SHEAF_NNG_ADDRESS_BYTES]) {
    nng_sockaddr address;
    if (nng_stream_get_addr(stream, NNG_OPT_REMADDR, &address) != 0) {
        (void)snprintf(out, SHEAF_NNG_ADDRESS_BYTES, "unknown address");
    } else if (address.s_family == NNG_AF_INET) {
        const uint8_t *ip = (const uint8_t *)&address.s_in.sa_addr;
        const uint8_t *port = (const uint8_t *)&address.s_in.sa_port;
        (void)snprintf(out, SHEAF_NNG_ADDRESS_BYTES, "%u.%u.%u.%u:%u", ip[0], ip[1], ip[2], ip[3],
                       port[0] * 256u + port[1]);
    } else {
        const uint8_t *ip = (const uint8_t *)address.s_in6.sa_addr;
        const uint8_t *port = (const uint8_t *)&address.s_in6.sa_port;
        int used = snprintf(out, SHEAF_NNG_ADDRESS_BYTES, "[");
        for (unsigned i = 0; i < 16; i += 2) {
            used += snprintf(out + used, SHEAF_NNG_ADDRESS_BYTES - (size_t)used, "%x%s", ip[i] * 256u + ip[i + 1],
                             i < 14 ? ":" : "]");
        }
        (void)snprintf(out + used, SHEAF_NNG_ADDRESS_BYTES - (size_t)used, ":%u", port[0] * 256u + port[1]);
    }
}
