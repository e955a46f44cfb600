/* http_socket.h - listening sockets of the operator channel, with refusals that say what is wrong with an address.
 *
 * Owner:   the caller closes *fd.
 * Threads: any; no state.
 * Errors:  SHEAF_E_USAGE (a path too long for a socket, no address), SHEAF_E_EXISTS (something else stands at the path),
 *          SHEAF_E_ADDRESS_IN_USE, SHEAF_E_PERMISSION (the folder is open to others, or not ours), SHEAF_E_NETWORK.
 * Not:     what is said over them. */
#pragma once
#include "common/problem.h"

#define SHEAF_HTTP_URL_BYTES 300u /* "https://", a DNS name, a port; or the path of a socket */

SHEAF_MUST_USE sheaf_status sheaf_http_socket_local(const char *path, int *fd, sheaf_problem *problem);
/* `chosen`: the url with the port that was chosen. */
SHEAF_MUST_USE sheaf_status sheaf_http_socket_tcp(const char *url, int *fd, char chosen[SHEAF_HTTP_URL_BYTES],
                                                  sheaf_problem *problem);
