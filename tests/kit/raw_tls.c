#include "tests/kit/raw_tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "tests/cmocka.h"
#include "tests/kit/carrier_kit.h"

static const uint8_t hello_of_req[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t hello_of_rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

unsigned raw_port(const char *url) { return (unsigned)strtoul(strrchr(url, ':') + 1, NULL, 10); }

static struct sockaddr_in loopback(unsigned port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void limit_waiting(int fd) {
    struct timeval limit = {10, 0}; /* a test that waits longer has failed */
    (void)signal(SIGPIPE, SIG_IGN); /* OpenSSL writes to sockets that the peer has closed */
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

int raw_connect(unsigned port) {
    struct sockaddr_in address = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    limit_waiting(fd);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

int raw_is_closed(int fd, unsigned within_ms) {
    uint64_t until = carrier_now_ms() + within_ms;
    for (;;) {
        uint64_t now = carrier_now_ms();
        struct pollfd wait = {fd, POLLIN, 0};
        int ready = poll(&wait, 1, now < until ? (int)(until - now) : 0);
        if (ready == 0) return 0;
        char byte[256];
        ssize_t got = recv(fd, byte, sizeof byte, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return 1;
    }
}

/* ---- client ---- */

raw_client raw_client_open(unsigned port, const raw_client_options *options, int *shaken) {
    raw_client client = {raw_connect(port), SSL_CTX_new(TLS_client_method()), NULL};
    assert_non_null(client.context);
    if (options->max_version != 0) SSL_CTX_set_max_proto_version(client.context, options->max_version);
    if (options->ciphers != NULL) assert_int_equal(SSL_CTX_set_cipher_list(client.context, options->ciphers), 1);
    if (options->groups != NULL) assert_int_equal(SSL_CTX_set1_groups_list(client.context, options->groups), 1);
    if (options->files != NULL) {
        assert_int_equal(SSL_CTX_use_certificate_chain_file(client.context, options->files->certificate), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(client.context, options->files->key, SSL_FILETYPE_PEM), 1);
    }
    client.ssl = SSL_new(client.context);
    assert_non_null(client.ssl);
    SSL_set_fd(client.ssl, client.fd);
    if (options->session != NULL) SSL_set_session(client.ssl, options->session);
    *shaken = SSL_connect(client.ssl) == 1;
    return client;
}

void raw_client_close(raw_client *client) {
    SSL_free(client->ssl);
    SSL_CTX_free(client->context);
    (void)close(client->fd);
}

int raw_write(SSL *ssl, const void *data, size_t size) {
    size_t written = 0;
    return size == 0 || (SSL_write_ex(ssl, data, size, &written) == 1 && written == size);
}

int raw_read(SSL *ssl, void *data, size_t size) {
    uint8_t *to = data;
    while (size > 0) {
        size_t got = 0;
        if (SSL_read_ex(ssl, to, size, &got) != 1) return 0;
        to += got;
        size -= got;
    }
    return 1;
}

int raw_greet(raw_client *client) {
    uint8_t hello[8];
    return raw_write(client->ssl, hello_of_req, 8) && raw_read(client->ssl, hello, 8) &&
           memcmp(hello, hello_of_rep, 8) == 0;
}

static void store_big(uint8_t *out, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

static int write_message(SSL *ssl, uint32_t id, const void *data, size_t size) {
    uint8_t head[12];
    store_big(head, size + 4, 8);
    store_big(head + 8, id, 4);
    return raw_write(ssl, head, sizeof head) && raw_write(ssl, data, size);
}

static long read_message(SSL *ssl, uint32_t *id, void *data, size_t capacity) {
    uint8_t head[12];
    uint64_t bytes = 0;
    if (!raw_read(ssl, head, sizeof head)) return -1;
    for (unsigned i = 0; i < 8; i++) bytes = bytes << 8 | head[i];
    *id = (uint32_t)head[8] << 24 | (uint32_t)head[9] << 16 | (uint32_t)head[10] << 8 | head[11];
    if (bytes < 4 || bytes - 4 > capacity || !raw_read(ssl, data, (size_t)bytes - 4)) return -1;
    return (long)bytes - 4;
}

int raw_ask(raw_client *client, uint32_t id, const void *data, size_t size) {
    return write_message(client->ssl, id, data, size);
}

long raw_answer(raw_client *client, uint32_t *id, void *data, size_t capacity) {
    return read_message(client->ssl, id, data, capacity);
}

/* ---- server ---- */

static void serve(raw_server *server, int fd) {
    static const char answer[] = "raw";
    uint8_t hello[8], request[1024];
    uint32_t id = 0;
    SSL *ssl = SSL_new(server->context);
    SSL_set_fd(ssl, fd);
    server->versions[1] = 0;
    if (SSL_accept(ssl) == 1) {
        server->versions[0] = SSL_version(ssl);
        server->versions[1] = raw_write(ssl, hello_of_rep, 8) && raw_read(ssl, hello, 8) &&
                              memcmp(hello, hello_of_req, 8) == 0 &&
                              read_message(ssl, &id, request, sizeof request) >= 0 && write_message(ssl, id, answer, 3);
        (void)SSL_shutdown(ssl);
    }
    SSL_free(ssl);
}

static void *server_main(void *argument) {
    raw_server *server = argument;
    for (;;) {
        int fd = accept(server->fd, NULL, NULL);
        if (fd < 0) return NULL;
        limit_waiting(fd);
        serve(server, fd);
        (void)close(fd);
    }
}

int raw_listen(unsigned *port) {
    struct sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

void raw_server_start(raw_server *server, const pki_kit_files *files, int max_version) {
    memset(server, 0, sizeof *server);
    server->fd = raw_listen(&server->port);
    server->context = SSL_CTX_new(TLS_server_method());
    if (max_version != 0) SSL_CTX_set_max_proto_version(server->context, max_version);
    assert_int_equal(SSL_CTX_use_certificate_chain_file(server->context, files->certificate), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(server->context, files->key, SSL_FILETYPE_PEM), 1);
    assert_int_equal(pthread_create(&server->thread, NULL, server_main, server), 0);
}

void raw_server_stop(raw_server *server) {
    (void)shutdown(server->fd, SHUT_RDWR); /* wakes accept */
    pthread_join(server->thread, NULL);
    (void)close(server->fd);
    SSL_CTX_free(server->context);
}
