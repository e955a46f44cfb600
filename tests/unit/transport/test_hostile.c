/* Peers that stall, lie about sizes or speak nonsense: each is cut in time, and good ones never notice. */
#include "tests/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/kit/carrier_kit.h"
#include "tests/kit/raw_tls.h"

#define HANDSHAKE_MS 600u
#define PER_PEER     4u    /* connections that one identity may hold */
#define SLACK_MS     2000u /* a loaded machine; without a deadline they would stay for ever */

static const sheaf_transport *const nng = &sheaf_transport_nng;
static pki_kit *kit;
static const pki_kit_files *aggregator, *device;

static int make_kit(void **state) {
    (void)state;
    kit = pki_kit_make();
    aggregator = pki_kit_issue(kit, "aggregator", "main", NULL);
    device = pki_kit_issue(kit, "device", "device-01", NULL);
    return 0;
}

static int free_kit(void **state) {
    (void)state;
    pki_kit_free(kit);
    return 0;
}

static unsigned start(carrier_server *server, uint32_t connections_max, uint32_t exchanges_max) {
    sheaf_transport_options options = carrier_options("tls+tcp://127.0.0.1:0", aggregator);
    options.handshake_ms = HANDSHAKE_MS;
    options.connections_max = connections_max;
    options.exchanges_max = exchanges_max;
    carrier_start(server, nng, &options, CARRIER_ECHO);
    return raw_port(nng->server_url(server->server));
}

static sheaf_link *open_link_as(const carrier_server *server, const pki_kit_files *files) {
    sheaf_transport_options options = carrier_options(nng->server_url(server->server), files);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_link *link = NULL;
    if (nng->open_link(&options, &link, &problem) != SHEAF_OK) fail_msg("open_link: %s", problem.text);
    return link;
}

static sheaf_link *open_link(const carrier_server *server) { return open_link_as(server, device); }

static raw_client open_member_as(unsigned port, const pki_kit_files *files) {
    int shaken = 0;
    raw_client client = raw_client_open(port, &(raw_client_options){.files = files}, &shaken);
    assert_int_equal(shaken, 1);
    assert_int_equal(raw_greet(&client), 1);
    return client;
}

static raw_client open_member(unsigned port) { return open_member_as(port, device); }

/* A request and its answer; the server knows the client as a member after this. */
static void ask_and_hear(raw_client *client) {
    uint8_t answer[8];
    uint32_t id = 0;
    assert_int_equal(raw_ask(client, 0x80000001u, "x", 1), 1);
    assert_int_equal(raw_answer(client, &id, answer, sizeof answer), 1);
}

/* A whole ClientHello that OpenSSL wrote, so that a handshake begins in earnest. */
static size_t client_hello(uint8_t *out, size_t capacity) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    BIO *in = BIO_new(BIO_s_mem()), *written = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl, in, written);
    assert_int_equal(SSL_connect(ssl), -1);
    int size = BIO_read(written, out, (int)capacity);
    assert_true(size > 100);
    SSL_free(ssl);
    SSL_CTX_free(context);
    return (size_t)size;
}

static void say(int fd, const void *data, size_t size) {
    assert_int_equal(send(fd, data, size, MSG_NOSIGNAL), (ssize_t)size);
}

static void silent_peers_and_half_handshakes_are_all_cut(void **state) {
    (void)state;
    enum { EACH = 50 };
    carrier_server server;
    uint8_t hello[1024];
    int peers[2 * EACH];
    size_t size = client_hello(hello, sizeof hello);
    unsigned port = start(&server, 200, 8);
    sheaf_link *link = open_link(&server);
    carrier_round_trip(nng, link, 1000, 1);
    uint64_t begun = carrier_now_ms();
    for (unsigned i = 0; i < 2 * EACH; i++) {
        peers[i] = raw_connect(port);
        /* Silent ones; a torn first record; a whole ClientHello and then nothing. */
        if (i >= EACH) say(peers[i], hello, i % 2 == 0 ? size / 2 : size);
    }
    carrier_round_trip(nng, link, 1000, 2);
    sheaf_link *newcomer = open_link(&server);
    carrier_round_trip(nng, newcomer, 1000, 3);
    for (unsigned i = 0; i < 2 * EACH; i++) {
        uint64_t now = carrier_now_ms(), until = begun + HANDSHAKE_MS + SLACK_MS;
        if (!raw_is_closed(peers[i], now < until ? (unsigned)(until - now) : 0))
            fail_msg("peer %u is still connected", i);
        (void)close(peers[i]);
    }
    assert_true(carrier_now_ms() - begun >= HANDSHAKE_MS - 50);
    carrier_wait_rejects(&server, 2 * EACH);
    assert_int_equal(server.last_reject, SHEAF_E_TIMEOUT);
    assert_int_equal(server.rejects, 2 * EACH);
    carrier_round_trip(nng, link, 1000, 4);
    carrier_round_trip(nng, newcomer, 1000, 5);
    nng->close(link);
    nng->close(newcomer);
    carrier_stop(&server);
}

static void a_peer_that_ends_tls_but_says_no_hello_is_cut(void **state) {
    (void)state;
    carrier_server server;
    unsigned port = start(&server, 200, 8);
    int shaken = 0;
    raw_client client = raw_client_open(port, &(raw_client_options){.files = device}, &shaken);
    assert_int_equal(shaken, 1);
    assert_int_equal(raw_is_closed(client.fd, HANDSHAKE_MS + SLACK_MS), 1);
    carrier_wait_rejects(&server, 1);
    assert_int_equal(server.last_reject, SHEAF_E_TIMEOUT);
    raw_client_close(&client);
    carrier_stop(&server);
}

static void a_member_may_be_silent(void **state) {
    (void)state;
    carrier_server server;
    (void)start(&server, 200, 8);
    sheaf_link *link = open_link(&server);
    carrier_round_trip(nng, link, 10, 1);
    carrier_sleep_ms(2 * HANDSHAKE_MS + 1200);
    carrier_round_trip(nng, link, 10, 2);
    assert_int_equal(server.rejects, 0);
    nng->close(link);
    carrier_stop(&server);
}

static void a_crowd_of_silent_peers_locks_nobody_out(void **state) {
    (void)state;
    enum { CROWD = 20 };
    carrier_server server;
    int peers[CROWD];
    unsigned port = start(&server, 4, 8);
    for (unsigned i = 0; i < CROWD; i++) peers[i] = raw_connect(port);
    sheaf_link *link = open_link(&server);
    uint64_t begun = carrier_now_ms();
    carrier_round_trip(nng, link, 10, 1);
    assert_true(carrier_now_ms() - begun < HANDSHAKE_MS);
    carrier_wait_rejects(&server, CROWD - 4);
    for (unsigned i = 0; i < CROWD; i++) {
        assert_int_equal(raw_is_closed(peers[i], HANDSHAKE_MS + SLACK_MS), 1);
        (void)close(peers[i]);
    }
    assert_non_null(strstr(server.rejects_text, "busy: 127.0.0.1:"));
    nng->close(link);
    carrier_stop(&server);
}

static void nonsense_before_the_handshake_is_cut_at_once(void **state) {
    (void)state;
    static const char *const texts[] = {"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n",
                                        "\x00SP\x00\x00\x30\x00\x00"};
    static const size_t sizes[] = {18, 21, 8};
    carrier_server server;
    unsigned port = start(&server, 200, 8);
    for (unsigned i = 0; i < 3; i++) {
        int fd = raw_connect(port);
        say(fd, texts[i], sizes[i]);
        assert_int_equal(raw_is_closed(fd, HANDSHAKE_MS / 2 + SLACK_MS / 4), 1);
        (void)close(fd);
    }
    carrier_wait_rejects(&server, 3);
    assert_int_equal(server.last_reject, SHEAF_E_MALFORMED);
    carrier_stop(&server);
}

static long address_space_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld", &pages), 1);
    (void)fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Without the bound, NNG's own sockets allocate what is announced: 51 GB of address space for 50 peers. */
static void announced_gigabytes_cost_nothing(void **state) {
    (void)state;
    enum { PEERS = 50 };
    static const uint8_t gigabyte[8] = {0, 0, 0, 0, 0x40, 0, 0, 0};
    carrier_server server;
    raw_client clients[PEERS];
    unsigned port = start(&server, 200, 100);
    const pki_kit_files *files = NULL;
    for (unsigned i = 0; i < PEERS; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "giant-%02u", i);
        if (i % PER_PEER == 0) files = pki_kit_issue(kit, "device", name, NULL);
        clients[i] = open_member_as(port, files);
    }
    long before = address_space_kib();
    for (unsigned i = 0; i < PEERS; i++) assert_int_equal(raw_write(clients[i].ssl, gigabyte, 8), 1);
    carrier_wait_rejects(&server, PEERS);
    long grown = address_space_kib() - before;
    if (grown > 256 * 1024) fail_msg("the address space grew by %ld KiB", grown);
    assert_int_equal(server.last_reject, SHEAF_E_TOO_LARGE);
    for (unsigned i = 0; i < PEERS; i++) {
        assert_int_equal(raw_is_closed(clients[i].fd, SLACK_MS), 1);
        raw_client_close(&clients[i]);
    }
    sheaf_link *link = open_link(&server);
    carrier_round_trip(nng, link, 10, 1);
    nng->close(link);
    carrier_stop(&server);
}

static void malformed_messages_are_cut(void **state) {
    (void)state;
    static const struct {
        uint8_t bytes[16];
        size_t size;
    } messages[] = {
        {{0, 0, 0, 0, 0, 0, 0, 0}, 8},                         /* no room for an id */
        {{0, 0, 0, 0, 0, 0, 0, 3, 0x80, 0, 0}, 11},            /* half an id */
        {{0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 'x'}, 13},       /* an id without its top bit: a relay's hop */
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 8}, /* would wrap */
    };
    carrier_server server;
    unsigned port = start(&server, 200, 8);
    for (unsigned i = 0; i < 4; i++) {
        raw_client client = open_member(port);
        assert_int_equal(raw_write(client.ssl, messages[i].bytes, messages[i].size), 1);
        assert_int_equal(raw_is_closed(client.fd, SLACK_MS), 1);
        carrier_wait_rejects(&server, i + 1);
        assert_int_equal(server.last_reject, i == 3 ? SHEAF_E_TOO_LARGE : SHEAF_E_MALFORMED);
        raw_client_close(&client);
    }
    assert_int_equal(server.requests, 0);
    carrier_stop(&server);
}

static void another_protocol_of_nng_is_cut(void **state) {
    (void)state;
    static const uint8_t hello_of_pub[8] = {0, 'S', 'P', 0, 0, 0x20, 0, 0};
    carrier_server server;
    unsigned port = start(&server, 200, 8);
    int shaken = 0;
    raw_client client = raw_client_open(port, &(raw_client_options){.files = device}, &shaken);
    assert_int_equal(raw_write(client.ssl, hello_of_pub, 8), 1);
    carrier_wait_rejects(&server, 1);
    assert_int_equal(server.last_reject, SHEAF_E_MALFORMED);
    raw_client_close(&client);
    carrier_stop(&server);
}

/* With a single slot, so that a request that never ends would block everybody if it kept it. */
static void a_request_that_stalls_or_dies_gives_its_slot_back(void **state) {
    (void)state;
    static const uint8_t begin[] = {0, 0, 0, 0, 0, 0, 4, 4, 0x80, 0, 0, 1, 'h', 'a', 'l', 'f'};
    carrier_server server;
    unsigned port = start(&server, 200, 1);
    sheaf_link *link = open_link(&server);
    raw_client dying = open_member(port);
    assert_int_equal(raw_write(dying.ssl, begin, sizeof begin), 1);
    carrier_sleep_ms(100);
    raw_client_close(&dying);
    carrier_round_trip(nng, link, 10, 1);
    raw_client stalling = open_member(port);
    assert_int_equal(raw_write(stalling.ssl, begin, sizeof begin), 1);
    carrier_sleep_ms(100);
    carrier_round_trip(nng, link, 10, 2); /* waits for the slot */
    assert_int_equal(server.rejects, 1);
    assert_int_equal(server.last_reject, SHEAF_E_TIMEOUT);
    assert_int_equal(raw_is_closed(stalling.fd, SLACK_MS), 1);
    raw_client_close(&stalling);
    nng->close(link);
    carrier_stop(&server);
}

static void requests_that_come_together_are_answered_in_turn(void **state) {
    (void)state;
    carrier_server server;
    unsigned port = start(&server, 200, 8);
    raw_client client = open_member(port);
    for (uint32_t i = 0; i < 20; i++) {
        uint8_t request[2] = {(uint8_t)i, 9};
        assert_int_equal(raw_ask(&client, 0x80000000u + i, request, 2), 1);
    }
    for (uint32_t i = 0; i < 20; i++) {
        uint8_t answer[8];
        uint32_t id = 0;
        assert_int_equal(raw_answer(&client, &id, answer, sizeof answer), 2);
        assert_int_equal(id, 0x80000000u + i);
        assert_int_equal(answer[1], i);
    }
    raw_client_close(&client);
    carrier_stop(&server);
}

static void random_bytes_after_the_handshake_hurt_nobody(void **state) {
    (void)state;
    carrier_server server;
    unsigned port = start(&server, 200, 8);
    uint64_t random = 88172645463325252u;
    for (unsigned i = 0; i < 60; i++) {
        uint8_t noise[300];
        for (size_t k = 0; k < sizeof noise; k++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            noise[k] = (uint8_t)random;
        }
        if (i % 3 != 0) memset(noise, 0, 6); /* believable lengths */
        raw_client client = open_member(port);
        (void)raw_write(client.ssl, noise, 1 + i * 4);
        raw_client_close(&client);
    }
    sheaf_link *link = open_link(&server);
    carrier_round_trip(nng, link, 1000, 1);
    nng->close(link);
    carrier_stop(&server);
}

static void peers_that_vanish_leave_no_connection_behind(void **state) {
    (void)state;
    carrier_server server;
    unsigned port = start(&server, 3, 8);
    for (unsigned i = 0; i < 12; i++) { /* four times the limit: a connection that stayed would be missed soon */
        uint8_t answer[8];
        uint32_t id = 0;
        raw_client client = open_member(port);
        assert_int_equal(raw_ask(&client, 0x80000000u + i, "x", 1), 1);
        if (i % 2 == 0) assert_int_equal(raw_answer(&client, &id, answer, sizeof answer), 1);
        raw_client_close(&client);
        carrier_sleep_ms(i % 3 == 0 ? 0 : 20);
        if (i % 3 == 2) carrier_sleep_ms(1200); /* see sheaf_tls_stream_is_lost */
    }
    carrier_stop(&server);
}

/* Room for six: ten silent members of one certificate would leave none. */
static void one_identity_holds_four_connections_and_the_newest_stay(void **state) {
    (void)state;
    enum { MEMBERS = 10, GONE = MEMBERS - PER_PEER };
    const pki_kit_files *namesake = pki_kit_issue(kit, "device", "device-01", &(pki_kit_options){.tenant = "umbrella"});
    carrier_server server;
    raw_client clients[MEMBERS];
    unsigned port = start(&server, PER_PEER + 2, 8);
    sheaf_link *link = open_link_as(&server, namesake); /* older than all of them, and not theirs to push out */
    carrier_round_trip(nng, link, 10, 1);
    for (unsigned i = 0; i < MEMBERS; i++) {
        clients[i] = open_member(port);
        ask_and_hear(&clients[i]);
    }
    carrier_wait_rejects(&server, GONE);
    for (unsigned i = 0; i < GONE; i++) assert_int_equal(raw_is_closed(clients[i].fd, SLACK_MS), 1);
    for (unsigned i = GONE; i < MEMBERS; i++) ask_and_hear(&clients[i]);
    carrier_round_trip(nng, link, 10, 2);
    sheaf_link *newcomer = open_link_as(&server, namesake);
    carrier_round_trip(nng, newcomer, 10, 3);
    assert_int_equal(server.rejects, GONE);
    assert_int_equal(server.last_reject, SHEAF_E_BUSY);
    assert_non_null(strstr(server.last_reject_text, "too many connections of this peer"));
    for (unsigned i = 0; i < MEMBERS; i++) raw_client_close(&clients[i]);
    nng->close(link);
    nng->close(newcomer);
    carrier_stop(&server);
}

/* There are five slots: without the limit of connections nobody else would get one before these are cut. */
static void half_sent_frames_of_one_identity_leave_slots_to_others(void **state) {
    (void)state;
    enum { MEMBERS = 10 };
    static const uint8_t begin[] = {0, 0, 0, 0, 0, 0, 0xf0, 0, 0x80, 0, 0, 1, 'h', 'a', 'l'};
    const pki_kit_files *namesake = pki_kit_issue(kit, "operator", "device-01", NULL);
    carrier_server server;
    raw_client clients[MEMBERS];
    unsigned port = start(&server, 200, PER_PEER + 1);
    for (unsigned i = 0; i < MEMBERS; i++) {
        clients[i] = open_member(port);
        assert_int_equal(raw_write(clients[i].ssl, begin, sizeof begin), 1);
    }
    carrier_wait_rejects(&server, MEMBERS - PER_PEER);
    sheaf_link *link = open_link_as(&server, namesake);
    uint64_t begun = carrier_now_ms();
    for (unsigned i = 0; i < 5; i++) carrier_round_trip(nng, link, 1000, i);
    assert_true(carrier_now_ms() - begun < SLACK_MS);
    assert_int_equal(server.rejects, MEMBERS - PER_PEER); /* the half-sent frames were still there meanwhile */
    for (unsigned i = 0; i < MEMBERS; i++) raw_client_close(&clients[i]);
    nng->close(link);
    carrier_stop(&server);
}

static uint64_t now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static int by_size(const void *a, const void *b) {
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return (one > other) - (one < other);
}

/* The median of 150 round trips, polled without sleeping. */
static uint64_t round_trip_us(sheaf_link *link) {
    uint64_t times[150];
    uint8_t bytes[1000] = {0}, out[1000];
    for (unsigned i = 0; i < 150; i++) {
        sheaf_buffer answer = {out, 0, sizeof out};
        sheaf_status status = SHEAF_AGAIN;
        uint64_t begun = now_us();
        assert_int_equal(nng->send(link, sheaf_span_of(bytes, sizeof bytes)), SHEAF_OK);
        while (status == SHEAF_AGAIN) status = nng->receive(link, &answer, NULL);
        assert_int_equal(status, SHEAF_OK);
        times[i] = now_us() - begun;
    }
    qsort(times, 150, sizeof times[0], by_size);
    return times[75];
}

/* Half of them say nothing at all, half are members. */
static void two_hundred_silent_connections_slow_nobody(void **state) {
    (void)state;
    enum { STRANGERS = 100, MEMBERS = 100 };
    carrier_server server;
    int strangers[STRANGERS];
    static raw_client members[MEMBERS];
    sheaf_transport_options options = carrier_options("tls+tcp://127.0.0.1:0", aggregator);
    options.handshake_ms = 20000; /* all stay to the end of this */
    carrier_start(&server, nng, &options, CARRIER_ECHO);
    unsigned port = raw_port(nng->server_url(server.server));
    sheaf_link *link = open_link(&server);
    carrier_round_trip(nng, link, 1000, 1);
    uint64_t alone = round_trip_us(link);
    for (unsigned i = 0; i < STRANGERS; i++) strangers[i] = raw_connect(port);
    const pki_kit_files *files = NULL;
    for (unsigned i = 0; i < MEMBERS; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "silent-%02u", i);
        if (i % PER_PEER == 0) files = pki_kit_issue(kit, "device", name, NULL);
        members[i] = open_member_as(port, files);
    }
    uint64_t among = round_trip_us(link);
    for (unsigned tries = 0; tries < 5 && among > 2 * alone + 100; tries++) among = round_trip_us(link);
    print_message("round trip of 1,000 bytes: %llu us alone, %llu us among 200 silent connections\n",
                  (unsigned long long)alone, (unsigned long long)among);
    assert_true(among <= 2 * alone + 100); /* a noisy machine; 200 that cost anything would show as far more */
    assert_int_equal(carrier_rejects(&server), 0);
    for (unsigned i = 0; i < STRANGERS; i++) (void)close(strangers[i]);
    for (unsigned i = 0; i < MEMBERS; i++) raw_client_close(&members[i]);
    nng->close(link);
    carrier_stop(&server);
}

/* One byte a record, ten records a second. */
static void trickle(raw_client *clients, unsigned count, unsigned for_ms) {
    uint64_t until = carrier_now_ms() + for_ms;
    while (carrier_now_ms() < until) {
        for (unsigned i = 0; i < count; i++) (void)raw_write(clients[i].ssl, "x", 1);
        carrier_sleep_ms(150);
    }
}

static const uint8_t begin_of_4000[] = {0, 0, 0, 0, 0, 0, 0x0f, 0xa4, 0x80, 0, 0, 1};

static void a_trickler_is_left_alone_while_nobody_waits(void **state) {
    (void)state;
    carrier_server server;
    unsigned port = start(&server, 200, 2);
    raw_client slow = open_member(port);
    assert_int_equal(raw_write(slow.ssl, begin_of_4000, sizeof begin_of_4000), 1);
    trickle(&slow, 1, 3 * HANDSHAKE_MS + 1500); /* longer than it might be silent */
    sheaf_link *link = open_link_as(&server, pki_kit_issue(kit, "device", "quick-1", NULL));
    carrier_round_trip(nng, link, 100, 1);
    assert_int_equal(carrier_rejects(&server), 0);
    raw_client_close(&slow);
    nng->close(link);
    carrier_stop(&server);
}

static void tricklers_give_their_slots_to_those_who_wait(void **state) {
    (void)state;
    enum { SLOTS = 3 };
    carrier_server server;
    raw_client slow[SLOTS];
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    unsigned port = start(&server, 200, SLOTS);
    for (unsigned i = 0; i < SLOTS; i++) {
        slow[i] = open_member(port);
        assert_int_equal(raw_write(slow[i].ssl, begin_of_4000, sizeof begin_of_4000), 1);
    }
    carrier_sleep_ms(100);
    sheaf_link *link = open_link_as(&server, pki_kit_issue(kit, "device", "quick-2", NULL));
    assert_int_equal(nng->send(link, sheaf_span_of("x", 1)), SHEAF_OK);
    sheaf_status status = SHEAF_AGAIN;
    uint64_t begun = carrier_now_ms();
    while (status == SHEAF_AGAIN && carrier_now_ms() - begun < 10000) {
        trickle(slow, SLOTS, 1);
        status = nng->receive(link, &answer, NULL);
    }
    assert_int_equal(status, SHEAF_OK);
    assert_true(carrier_now_ms() - begun < 2 * HANDSHAKE_MS + SLACK_MS);
    assert_int_equal(server.last_reject, SHEAF_E_TIMEOUT);
    assert_non_null(strstr(server.rejects_text, "too slow while others wait"));
    for (unsigned i = 0; i < SLOTS; i++) raw_client_close(&slow[i]);
    nng->close(link);
    carrier_stop(&server);
}

/* A connection that waits for the handler has no step under way which could report its end. */
static void the_oldest_goes_also_while_its_request_is_in_the_handler(void **state) {
    (void)state;
    carrier_server server;
    raw_client clients[PER_PEER + 1];
    sheaf_transport_options options = carrier_options("tls+tcp://127.0.0.1:0", aggregator);
    carrier_start(&server, nng, &options, CARRIER_HOLD);
    unsigned port = raw_port(nng->server_url(server.server));
    sheaf_exchange *held[PER_PEER];
    for (unsigned i = 0; i < PER_PEER; i++) {
        clients[i] = open_member(port);
        assert_int_equal(raw_ask(&clients[i], 0x80000001u, "x", 1), 1);
        held[i] = carrier_take(&server);
    }
    clients[PER_PEER] = open_member(port);
    carrier_wait_rejects(&server, 1);
    assert_int_equal(server.last_reject, SHEAF_E_BUSY);
    assert_int_equal(raw_is_closed(clients[0].fd, SLACK_MS), 1);
    for (unsigned i = 0; i < PER_PEER; i++) nng->reply(held[i], sheaf_span_of("late", 4));
    for (unsigned i = 1; i < PER_PEER; i++) {
        uint8_t answer[8];
        uint32_t id = 0;
        assert_int_equal(raw_answer(&clients[i], &id, answer, sizeof answer), 4);
    }
    for (unsigned i = 0; i <= PER_PEER; i++) raw_client_close(&clients[i]);
    carrier_stop(&server);
    assert_int_equal(server.rejects, 1);
}

static void a_link_cuts_a_server_that_stalls(void **state) {
    (void)state;
    unsigned port = 0;
    int listener = raw_listen(&port); /* the kernel accepts, and nobody speaks */
    char url[64];
    (void)snprintf(url, sizeof url, "tls+tcp://127.0.0.1:%u", port);
    sheaf_transport_options options = carrier_options(url, device);
    options.handshake_ms = HANDSHAKE_MS;
    sheaf_link *link = NULL;
    assert_int_equal(nng->open_link(&options, &link, NULL), SHEAF_OK);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(carrier_ask(nng, link, sheaf_span_of("x", 1), &answer, &problem), SHEAF_E_NETWORK);
    assert_non_null(strstr(problem.text, "handshake was not finished in time"));
    nng->close(link);
    (void)close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_peers_and_half_handshakes_are_all_cut),
        cmocka_unit_test(a_peer_that_ends_tls_but_says_no_hello_is_cut),
        cmocka_unit_test(a_member_may_be_silent),
        cmocka_unit_test(a_crowd_of_silent_peers_locks_nobody_out),
        cmocka_unit_test(nonsense_before_the_handshake_is_cut_at_once),
        cmocka_unit_test(announced_gigabytes_cost_nothing),
        cmocka_unit_test(malformed_messages_are_cut),
        cmocka_unit_test(another_protocol_of_nng_is_cut),
        cmocka_unit_test(a_request_that_stalls_or_dies_gives_its_slot_back),
        cmocka_unit_test(requests_that_come_together_are_answered_in_turn),
        cmocka_unit_test(random_bytes_after_the_handshake_hurt_nobody),
        cmocka_unit_test(peers_that_vanish_leave_no_connection_behind),
        cmocka_unit_test(one_identity_holds_four_connections_and_the_newest_stay),
        cmocka_unit_test(half_sent_frames_of_one_identity_leave_slots_to_others),
        cmocka_unit_test(the_oldest_goes_also_while_its_request_is_in_the_handler),
        cmocka_unit_test(a_link_cuts_a_server_that_stalls),
        cmocka_unit_test(two_hundred_silent_connections_slow_nobody),
        cmocka_unit_test(a_trickler_is_left_alone_while_nobody_waits),
        cmocka_unit_test(tricklers_give_their_slots_to_those_who_wait),
    };
    return cmocka_run_group_tests(tests, make_kit, free_kit);
}
