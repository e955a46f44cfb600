#include "server/operator/http_socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 256 /* a Unix socket refuses at once when it is full */

static sheaf_status open_socket(int family, int *fd, sheaf_problem *problem) {
    *fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return *fd >= 0 ? SHEAF_OK : sheaf_problem_errno(problem, "make a socket", "operator channel");
}

static sheaf_status fail(int fd, const char *verb, const char *address, sheaf_problem *problem) {
    sheaf_status status = errno == EADDRINUSE                 ? SHEAF_E_ADDRESS_IN_USE
                          : errno == EACCES || errno == EPERM ? SHEAF_E_PERMISSION
                          : errno == EADDRNOTAVAIL            ? SHEAF_E_USAGE
                                                              : SHEAF_E_NETWORK;
    int saved = errno;
    close(fd);
    return sheaf_problem_set(problem, status, "%s: cannot %s: %s", address, verb, strerror(saved));
}

/* --- Unix --------------------------------------------------------------------------------------------------------- */

/* The socket's mode protects it only where nobody else may replace it. */
static sheaf_status check_folder(const char *path, sheaf_problem *problem) {
    char folder[sizeof((struct sockaddr_un *)NULL)->sun_path];
    struct stat about;
    (void)snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL || slash == folder)
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%s: expected a path in a folder", path);
    *slash = '\0';
    if (stat(folder, &about) != 0) return sheaf_problem_errno(problem, "look at", folder);
    if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return sheaf_problem_set(problem, SHEAF_E_PERMISSION,
                                 "%s: others may write in this folder, so they could stand in for the operator socket; "
                                 "chmod 700 it",
                                 folder);
    return SHEAF_OK;
}

/* Only what a process that died left behind is taken away: a socket on which nobody listens. */
static sheaf_status remove_stale(const struct sockaddr_un *address, sheaf_problem *problem) {
    struct stat about;
    int fd = -1;
    if (lstat(address->sun_path, &about) != 0)
        return errno == ENOENT ? SHEAF_OK : sheaf_problem_errno(problem, "look at", address->sun_path);
    if (!S_ISSOCK(about.st_mode))
        return sheaf_problem_set(problem, SHEAF_E_EXISTS, "%s: is no socket; expected nothing, or a socket of sheafd",
                                 address->sun_path);
    sheaf_status status = open_socket(AF_UNIX, &fd, problem);
    if (status != SHEAF_OK) return status;
    int answered = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN;
    close(fd);
    if (answered)
        return sheaf_problem_set(problem, SHEAF_E_ADDRESS_IN_USE, "%s: another process listens there",
                                 address->sun_path);
    return unlink(address->sun_path) == 0 ? SHEAF_OK : sheaf_problem_errno(problem, "remove", address->sun_path);
}

sheaf_status sheaf_http_socket_local(const char *path, int *fd, sheaf_problem *problem) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return sheaf_problem_set(
            problem, SHEAF_E_USAGE,
            "%s: %zu bytes; the path of a socket may have %zu: move server.state to a shorter path", path, strlen(path),
            sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    sheaf_status status = check_folder(path, problem);
    if (status == SHEAF_OK) status = remove_stale(&address, problem);
    if (status == SHEAF_OK) status = open_socket(AF_UNIX, fd, problem);
    if (status != SHEAF_OK) return status;
    /* Linux gives the socket's file the mode of its descriptor, so at no time can others connect. */
    if (fchmod(*fd, 0600) != 0 || bind(*fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(path, 0600) != 0 || listen(*fd, BACKLOG) != 0)
        return fail(*fd, "listen", path, problem);
    return SHEAF_OK;
}

/* --- TCP ---------------------------------------------------------------------------------------------------------- */

/* "https://HOST:PORT", HOST maybe in brackets; no path. */
static int split(const char *url, char host[256], char port[6]) {
    static const char scheme[] = "https://";
    if (strncmp(url, scheme, sizeof scheme - 1) != 0) return 0;
    url += sizeof scheme - 1;
    const char *colon = strrchr(url, ':');
    if (colon == NULL) return 0;
    const char *first = url, *last = colon;
    if (*url == '[' && last > first + 1 && last[-1] == ']') first++, last--;
    size_t size = (size_t)(last - first), digits = strspn(colon + 1, "0123456789");
    if (size == 0 || size > 255 || digits == 0 || digits > 5 || colon[1 + digits] != '\0') return 0;
    memcpy(host, first, size);
    host[size] = '\0';
    memcpy(port, colon + 1, digits + 1);
    return 1;
}

static uint16_t port_of(int fd) {
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    (void)getsockname(fd, (struct sockaddr *)&address, &size);
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

static sheaf_status listen_at(const struct addrinfo *at, const char *url, int *fd, sheaf_problem *problem) {
    const int on = 1;
    sheaf_status status = open_socket(at->ai_family, fd, problem);
    if (status != SHEAF_OK) return status;
    (void)setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(*fd, at->ai_addr, at->ai_addrlen) != 0 || listen(*fd, BACKLOG) != 0)
        return fail(*fd, "listen", url, problem);
    return SHEAF_OK;
}

sheaf_status sheaf_http_socket_tcp(const char *url, int *fd, char chosen[SHEAF_HTTP_URL_BYTES],
                                   sheaf_problem *problem) {
    char host[256], port[6];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    if (!split(url, host, port))
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "'%s' is no address; expected https://HOST:PORT", url);
    int code = getaddrinfo(host, port, &hints, &found);
    if (code != 0)
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%s: cannot find the host: %s", url, gai_strerror(code));
    sheaf_status status = listen_at(found, url, fd, problem);
    freeaddrinfo(found);
    if (status == SHEAF_OK)
        (void)snprintf(chosen, SHEAF_HTTP_URL_BYTES, strchr(host, ':') != NULL ? "https://[%s]:%u" : "https://%s:%u",
                       host, (unsigned)port_of(*fd));
    return status;
}
