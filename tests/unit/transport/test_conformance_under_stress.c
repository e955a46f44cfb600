/* What every carrier must do with windows, crowds, slow and breaking lines, restarts and casts: run over each of them. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/kit/conformance_kit.h"
#include "tests/kit/raw_tls.h"
#include "tests/kit/tcp_proxy.h"

/* ---- windows ---- */

static void a_window_of_requests_is_taken_and_answered_in_order(void **state) {
    enum { WINDOW = 4 };
    carrier_server server;
    conformance_start(&server, *state, CARRIER_HOLD);
    sheaf_link *link = conformance_open_window(&server, conformance_url_of(&server), WINDOW);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    for (uint8_t i = 0; i < WINDOW; i++) assert_int_equal(server.transport->send(link, sheaf_span_of(&i, 1)), SHEAF_OK);
    assert_int_equal(server.transport->send(link, sheaf_span_of("x", 1)), SHEAF_AGAIN);
    for (uint8_t i = 0; i < WINDOW; i++) {
        sheaf_exchange *exchange = carrier_take(&server);
        carrier_sleep_ms(20);
        assert_int_equal(server.requests, i + 1u); /* one of a connection at a time is in the handler */
        server.transport->reply(exchange, sheaf_span_of(&i, 1));
    }
    for (uint8_t i = 0; i < WINDOW; i++) {
        assert_int_equal(carrier_poll(server.transport, link, &answer, NULL), SHEAF_OK);
        assert_int_equal(bytes[0], i);
        assert_int_equal(server.transport->send(link, sheaf_span_of("y", 1)), SHEAF_OK);
    }
    server.transport->close(link);
    carrier_stop(&server);
}

static size_t odd_size(unsigned i) { return 4u + (i * 7919u) % (i % 5u == 0 ? CARRIER_FRAME_MAX - 4u : 1500u); }

/* Request i begins with its number and holds i % 251 else; the answer is its reverse. */
static sheaf_span make_request(uint8_t *space, unsigned i) {
    size_t size = odd_size(i);
    memset(space, (int)(i % 251u), size);
    memcpy(space, &i, sizeof i);
    return sheaf_span_of(space, size);
}

static void check_answer(const sheaf_buffer *answer, unsigned i) {
    unsigned number = 0;
    assert_int_equal(answer->size, odd_size(i));
    for (unsigned k = 0; k < sizeof number; k++) ((uint8_t *)&number)[k] = answer->data[answer->size - 1u - k];
    assert_int_equal(number, i);
    for (size_t k = 0; k + sizeof number < answer->size; k++) assert_int_equal(answer->data[k], i % 251u);
}

/* Sends `count` requests, a window of them at a time; what a broken connection made fail is sent again. */
static void ask_all(carrier_server *server, sheaf_link *link, unsigned count) {
    static uint8_t request[CARRIER_FRAME_MAX], bytes[CARRIER_FRAME_MAX];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    uint64_t until = carrier_now_ms() + 60000;
    for (unsigned sent = 0, answered = 0; answered < count;) {
        if (sent < count && server->transport->send(link, make_request(request, sent)) == SHEAF_OK) {
            sent++;
            continue;
        }
        sheaf_status status = server->transport->receive(link, &answer, &problem);
        if (status == SHEAF_OK) {
            check_answer(&answer, answered++);
        } else if (status == SHEAF_E_NETWORK) {
            sent = answered;
        } else {
            assert_int_equal(status, SHEAF_AGAIN);
            carrier_sleep_ms(1);
        }
        if (carrier_now_ms() > until) fail_msg("%u of %u answered: %s", answered, count, problem.text);
    }
}

static void many_requests_in_a_window_keep_their_order(void **state) {
    carrier_server server;
    conformance_start(&server, *state, CARRIER_WORKER);
    sheaf_link *link = conformance_open_window(&server, conformance_url_of(&server), 4);
    ask_all(&server, link, 200);
    assert_int_equal(server.requests, 200);
    server.transport->close(link);
    carrier_stop(&server);
}

static void a_window_is_given_up_as_a_whole(void **state) {
    carrier_server server;
    conformance_start(&server, *state, CARRIER_HOLD);
    sheaf_link *link = conformance_open_window(&server, conformance_url_of(&server), 3);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_exchange *held = NULL;
    for (unsigned i = 0; i < 3; i++) assert_int_equal(server.transport->send(link, sheaf_span_of("old", 3)), SHEAF_OK);
    held = carrier_take(&server);
    server.transport->cancel(link);
    for (unsigned i = 0; i < 3; i++) assert_int_equal(server.transport->send(link, sheaf_span_of("new", 3)), SHEAF_OK);
    assert_int_equal(server.transport->send(link, sheaf_span_of("new", 3)), SHEAF_AGAIN);
    server.transport->reply(held, sheaf_span_of("too late", 8));
    for (unsigned i = 0; i < 3;) {
        assert_int_not_equal(server.transport->receive(link, &answer, NULL), SHEAF_E_NETWORK);
        pthread_mutex_lock(&server.lock);
        held = server.held_count > 0 ? server.held[--server.held_count] : NULL;
        pthread_mutex_unlock(&server.lock);
        carrier_sleep_ms(1);
        if (held == NULL) continue;
        server.transport->reply(held, sheaf_span_of("fresh", 5));
        assert_int_equal(carrier_poll(server.transport, link, &answer, NULL), SHEAF_OK);
        assert_int_equal(answer.size, 5);
        i++;
    }
    server.transport->close(link);
    carrier_stop(&server);
}

/* Who does not fetch his answers slows nobody else, and finds them later. */
static void a_slow_reader_waits_alone(void **state) {
    static uint8_t request[CARRIER_FRAME_MAX], bytes[CARRIER_FRAME_MAX];
    enum { SLOW = 3, WINDOW = 4 };
    carrier_server server;
    sheaf_link *slow[SLOW];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    conformance_start(&server, *state, CARRIER_ECHO);
    for (unsigned i = 0; i < SLOW; i++) {
        slow[i] = conformance_open_window(&server, conformance_url_of(&server), WINDOW);
        for (unsigned k = 0; k < WINDOW; k++)
            assert_int_equal(server.transport->send(slow[i], sheaf_span_of(request, sizeof request)), SHEAF_OK);
    }
    sheaf_link *link = conformance_open_link_of_crowd(&server, 0);
    uint64_t begun = carrier_now_ms();
    for (unsigned i = 0; i < 50; i++) carrier_round_trip(server.transport, link, 1000, i);
    assert_true(carrier_now_ms() - begun < 3000);
    for (unsigned i = 0; i < SLOW; i++) {
        for (unsigned k = 0; k < WINDOW; k++) {
            assert_int_equal(carrier_poll(server.transport, slow[i], &answer, NULL), SHEAF_OK);
            assert_int_equal(answer.size, sizeof request);
        }
        server.transport->close(slow[i]);
    }
    server.transport->close(link);
    carrier_stop(&server);
}

/* ---- crowds ---- */

/* A sanitizer on a busy machine needs more than carrier_poll's ten seconds for so many handshakes. */
static sheaf_status poll_patiently(const sheaf_transport *transport, sheaf_link *link, sheaf_buffer *answer,
                                   sheaf_problem *problem) {
    sheaf_status status = SHEAF_AGAIN;
    for (unsigned tries = 0; tries < 6 && status == SHEAF_AGAIN; tries++)
        status = carrier_poll(transport, link, answer, problem);
    return status;
}

static void four_hundred_links_work_in_one_process(void **state) {
    const conformance_carrier *carrier = *state;
    carrier_server server;
    static sheaf_link *links[CONFORMANCE_CROWD];
    uint8_t bytes[16];
    uint32_t usual_ms = conformance_crowd_handshake_ms;
    sheaf_transport_options options = carrier_options(carrier->url, conformance_aggregator);
    conformance_crowd_handshake_ms = options.handshake_ms = 60000;
    carrier_start(&server, carrier->transport, &options, CARRIER_ECHO);
    for (unsigned i = 0; i < CONFORMANCE_CROWD; i++) links[i] = conformance_open_link_of_crowd(&server, i);
    conformance_crowd_handshake_ms = usual_ms;
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < CONFORMANCE_CROWD; i++)
            assert_int_equal(server.transport->send(links[i], sheaf_span_of((const uint8_t *)&i, sizeof i)), SHEAF_OK);
        for (unsigned i = 0; i < CONFORMANCE_CROWD; i++) {
            sheaf_buffer answer = {bytes, 0, sizeof bytes};
            sheaf_problem problem = {SHEAF_OK, ""};
            if (poll_patiently(server.transport, links[i], &answer, &problem) != SHEAF_OK)
                fail_msg("link %u: %s", i, problem.text);
            assert_int_equal(bytes[3], i % 256u);
            assert_int_equal(bytes[2], i / 256u);
        }
    }
    if (carrier_rejects(&server) != 0)
        fail_msg("turned away on the way: %u: %s", carrier_rejects(&server), server.rejects_text);
    for (unsigned i = 0; i < CONFORMANCE_CROWD; i++) server.transport->close(links[i]);
    carrier_stop(&server);
}

/* ---- broken connections and restarts ---- */

static const char *through(const carrier_server *server, const tcp_proxy *proxy, char url[64]) {
    const char *prefix = server->transport->url_prefix;
    (void)snprintf(url, 64, "%s127.0.0.1:%u", prefix, proxy->port);
    return url;
}

/* At any byte of the handshake, the request and the answer. */
static void a_connection_may_break_at_any_byte(void **state) {
    carrier_server server;
    tcp_proxy proxy;
    char url[64];
    uint8_t request[700] = {7}, bytes[700];
    conformance_start(&server, *state, CARRIER_ECHO);
    tcp_proxy_start(&proxy, raw_port(conformance_url_of(&server)));
    for (unsigned cut = 1; cut < 6500; cut += 190) {
        sheaf_buffer answer = {bytes, 0, sizeof bytes};
        sheaf_problem problem = {SHEAF_OK, ""};
        unsigned before = tcp_proxy_connections(&proxy);
        tcp_proxy_cut_after(&proxy, cut);
        sheaf_link *link = conformance_open_window(&server, through(&server, &proxy, url), 2);
        assert_int_equal(server.transport->send(link, sheaf_span_of(request, sizeof request)), SHEAF_OK);
        while (tcp_proxy_connections(&proxy) == before) carrier_sleep_ms(1);
        tcp_proxy_cut_after(&proxy, -1);
        sheaf_status status = carrier_poll(server.transport, link, &answer, &problem);
        if (status == SHEAF_E_NETWORK)
            status = carrier_insist(server.transport, link, sheaf_span_of(request, sizeof request), &answer, &problem);
        if (status != SHEAF_OK) fail_msg("cut after %u bytes: %s", cut, problem.text);
        assert_int_equal(answer.size, sizeof request);
        assert_int_equal(bytes[sizeof request - 1], 7);
        server.transport->close(link);
    }
    tcp_proxy_stop(&proxy);
    carrier_stop(&server);
}

/* Requests are lost and repeated below; above, each has one answer, in order. */
static void a_window_survives_connections_that_keep_breaking(void **state) {
    carrier_server server;
    tcp_proxy proxy;
    char url[64];
    conformance_start(&server, *state, CARRIER_ECHO);
    tcp_proxy_start(&proxy, raw_port(conformance_url_of(&server)));
    tcp_proxy_cut_after(&proxy, 300000); /* some requests of a window get through, and then no more */
    sheaf_link *link = conformance_open_window(&server, through(&server, &proxy, url), 4);
    ask_all(&server, link, 100);
    assert_true(tcp_proxy_connections(&proxy) > 3);
    assert_true(server.requests > 100); /* some twice */
    server.transport->close(link);
    tcp_proxy_stop(&proxy);
    carrier_stop(&server);
}

typedef enum { BEFORE_THE_REQUEST, WITH_THE_HANDLER, BEHIND_ANOTHER, ANSWERED_NOT_FETCHED, STEPS } step;

static void restart(carrier_server *server, const conformance_carrier *carrier, const char *url) {
    carrier_stop(server);
    sheaf_transport_options options = carrier_options(url, conformance_aggregator);
    carrier_start(server, carrier->transport, &options, CARRIER_HOLD);
}

static void the_server_may_be_restarted_at_every_step(void **state) {
    const conformance_carrier *carrier = *state;
    const sheaf_transport *transport = carrier->transport;
    carrier_server server;
    char url[300];
    uint8_t bytes[16];
    conformance_start(&server, carrier, CARRIER_HOLD);
    (void)snprintf(url, sizeof url, "%s", conformance_url_of(&server));
    for (step at = BEFORE_THE_REQUEST; at < STEPS; at++) {
        sheaf_buffer answer = {bytes, 0, sizeof bytes};
        sheaf_link *link = conformance_open_window(&server, url, 2);
        unsigned sent = at == BEFORE_THE_REQUEST ? 0 : at == BEHIND_ANOTHER ? 2 : 1, fetched = 0;
        for (unsigned i = 0; i < sent; i++) assert_int_equal(transport->send(link, sheaf_span_of("x", 1)), SHEAF_OK);
        if (sent > 0) {
            sheaf_exchange *exchange = carrier_take(&server);
            if (at == ANSWERED_NOT_FETCHED)
                transport->reply(exchange, sheaf_span_of("1", 1));
            else
                server.held[server.held_count++] = exchange;
        }
        if (at == ANSWERED_NOT_FETCHED) carrier_sleep_ms(100);
        restart(&server, carrier, url);
        if (at == BEFORE_THE_REQUEST) sent = 1;
        uint64_t until = carrier_now_ms() + 10000;
        for (unsigned taken = at == BEFORE_THE_REQUEST ? 0 : sent; fetched < sent && carrier_now_ms() < until;) {
            if (taken < sent && transport->send(link, sheaf_span_of("x", 1)) == SHEAF_OK) taken++;
            sheaf_status status = transport->receive(link, &answer, NULL);
            if (status == SHEAF_OK) fetched++;
            if (status == SHEAF_E_NETWORK) taken = fetched;
            pthread_mutex_lock(&server.lock);
            sheaf_exchange *held = server.held_count > 0 ? server.held[--server.held_count] : NULL;
            pthread_mutex_unlock(&server.lock);
            if (held != NULL) transport->reply(held, sheaf_span_of("1", 1));
            carrier_sleep_ms(1);
        }
        if (fetched != sent) fail_msg("step %u: %u of %u answered", (unsigned)at, fetched, sent);
        transport->close(link);
    }
    carrier_stop(&server);
}

static void a_link_may_be_replaced_at_every_step(void **state) {
    const sheaf_transport *transport = ((const conformance_carrier *)*state)->transport;
    carrier_server server;
    uint8_t bytes[16];
    conformance_start(&server, *state, CARRIER_HOLD);
    for (step at = BEFORE_THE_REQUEST; at < STEPS; at++) {
        sheaf_buffer answer = {bytes, 0, sizeof bytes};
        sheaf_exchange *held = NULL;
        sheaf_link *link = conformance_open_window(&server, conformance_url_of(&server), 2);
        unsigned sent = at == BEFORE_THE_REQUEST ? 0 : at == BEHIND_ANOTHER ? 2 : 1;
        for (unsigned i = 0; i < sent; i++) assert_int_equal(transport->send(link, sheaf_span_of("x", 1)), SHEAF_OK);
        if (sent > 0) held = carrier_take(&server);
        if (at == ANSWERED_NOT_FETCHED) transport->reply(held, sheaf_span_of("1", 1));
        transport->close(link);
        if (held != NULL && at != ANSWERED_NOT_FETCHED) transport->reply(held, sheaf_span_of("1", 1));
        link = conformance_open_window(&server, conformance_url_of(&server), 2);
        assert_int_equal(transport->send(link, sheaf_span_of("new", 3)), SHEAF_OK);
        for (unsigned polls = 0; transport->receive(link, &answer, NULL) != SHEAF_OK; polls++) {
            pthread_mutex_lock(&server.lock); /* the old link's second request may have come through */
            held = server.held_count > 0 ? server.held[--server.held_count] : NULL;
            pthread_mutex_unlock(&server.lock);
            if (held != NULL) transport->reply(held, sheaf_span_of("2", 1));
            assert_true(polls < 10000);
            carrier_sleep_ms(1);
        }
        assert_int_equal(bytes[0], '2');
        transport->close(link);
    }
    carrier_stop(&server);
}

/* ---- progress ---- */

/* Frames that take many times longer than a peer may be silent; a TLS record alone takes longer than that too. */
static void a_slow_line_is_not_cut_while_bytes_move(void **state) {
    const conformance_carrier *carrier = *state;
    carrier_server server;
    tcp_proxy proxy;
    char url[64];
    sheaf_transport_options options = carrier_options(carrier->url, conformance_aggregator);
    options.handshake_ms = 200;
    carrier_start(&server, carrier->transport, &options, CARRIER_ECHO);
    tcp_proxy_start(&proxy, raw_port(conformance_url_of(&server)));
    options = carrier_options(through(&server, &proxy, url), conformance_device);
    options.handshake_ms = 200; /* so patience is 0.6 s */
    sheaf_link *link = NULL;
    assert_int_equal(carrier->transport->open_link(&options, &link, NULL), SHEAF_OK);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    assert_int_equal(carrier_insist(carrier->transport, link, sheaf_span_of("x", 1), &answer, NULL), SHEAF_OK);
    unsigned connections = tcp_proxy_connections(&proxy), asked = server.requests;
    tcp_proxy_set_rate(&proxy, 16384);
    uint64_t begun = carrier_now_ms();
    carrier_round_trip(carrier->transport, link, CARRIER_FRAME_MAX, 1);
    assert_true(carrier_now_ms() - begun > 4000); /* it was slow indeed */
    assert_int_equal(tcp_proxy_connections(&proxy), connections);
    assert_int_equal(server.requests, asked + 1); /* and nothing was said twice */
    assert_int_equal(carrier_rejects(&server), 0);
    carrier->transport->close(link);
    tcp_proxy_stop(&proxy);
    carrier_stop(&server);
}

static void a_line_on_which_nothing_moves_is_given_up(void **state) {
    const conformance_carrier *carrier = *state;
    static uint8_t request[CARRIER_FRAME_MAX];
    carrier_server server;
    tcp_proxy proxy;
    char url[64];
    conformance_start(&server, carrier, CARRIER_ECHO);
    tcp_proxy_start(&proxy, raw_port(conformance_url_of(&server)));
    sheaf_transport_options options = carrier_options(through(&server, &proxy, url), conformance_device);
    options.handshake_ms = 300;
    sheaf_link *link = NULL;
    assert_int_equal(carrier->transport->open_link(&options, &link, NULL), SHEAF_OK);
    carrier_round_trip(carrier->transport, link, 100, 1);
    tcp_proxy_stall(&proxy, 1);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    uint64_t begun = carrier_now_ms();
    assert_int_equal(carrier_ask(carrier->transport, link, sheaf_span_of(request, sizeof request), &answer, &problem),
                     SHEAF_E_NETWORK);
    assert_true(carrier_now_ms() - begun >= 800);
    tcp_proxy_stall(&proxy, 0);
    carrier->transport->close(link);
    tcp_proxy_stop(&proxy);
    carrier_stop(&server);
}

/* ---- who may stay ---- */

static int is_device_01(void *context, const sheaf_certificate *peer) {
    (*(unsigned *)context)++;
    return strcmp(sheaf_certificate_identity(peer)->name, "device-01") == 0;
}

static void expelled_peers_lose_their_connection_and_others_stay(void **state) {
    carrier_server server;
    unsigned asked = 0;
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    conformance_start(&server, *state, CARRIER_HOLD);
    sheaf_link *bad = conformance_open_link(&server), *good = conformance_open_link_of_crowd(&server, 0);
    assert_int_equal(server.transport->send(good, sheaf_span_of("x", 1)), SHEAF_OK);
    sheaf_exchange *of_good = carrier_take(&server);
    assert_int_equal(server.transport->send(bad, sheaf_span_of("x", 1)), SHEAF_OK);
    sheaf_exchange *of_bad = carrier_take(&server);
    assert_int_equal(server.transport->expel(server.server, is_device_01, &asked), 1);
    assert_true(asked >= 2);
    server.transport->reply(of_bad, sheaf_span_of("late", 4));
    server.transport->reply(of_good, sheaf_span_of("1", 1));
    assert_int_equal(carrier_poll(server.transport, good, &answer, NULL), SHEAF_OK);
    assert_int_equal(answer.size, 1);
    assert_int_equal(server.transport->expel(server.server, is_device_01, &asked), 0);
    server.transport->close(bad);
    server.transport->close(good);
    carrier_stop(&server);
}

/* ---- casts ---- */

static const sheaf_cast_group group_a = {{1}, {2}}, group_b = {{3}, {4}};

static void cast_insisting(carrier_server *server, const sheaf_cast_group *group, uint64_t sequence) {
    uint8_t frame[2] = {(uint8_t)sequence, group->id[0]};
    sheaf_status status = SHEAF_AGAIN;
    for (unsigned tries = 0; status == SHEAF_AGAIN && tries < 5000; tries++) {
        status = server->transport->cast(server->server, group, sequence, sheaf_span_of(frame, sizeof frame));
        if (status == SHEAF_AGAIN) carrier_sleep_ms(1);
    }
    assert_int_equal(status, SHEAF_OK);
}

static void who_joined_a_group_gets_all_its_frames_in_order(void **state) {
    enum { FRAMES = 40, LINKS = 4 };
    carrier_server server;
    sheaf_link *links[LINKS];
    uint8_t bytes[16];
    sheaf_buffer out = {bytes, 0, sizeof bytes};
    conformance_start(&server, *state, CARRIER_ECHO);
    for (unsigned i = 0; i < LINKS; i++) {
        links[i] = conformance_open_link_of_crowd(&server, i);
        carrier_round_trip(server.transport, links[i], 10, i);
    }
    for (unsigned i = 0; i < 2; i++) assert_int_equal(server.transport->join(links[i], &group_a), SHEAF_OK);
    assert_int_equal(server.transport->join(links[2], &group_b), SHEAF_OK);
    for (unsigned i = 0; i < LINKS; i++)
        carrier_round_trip(server.transport, links[i], 10, i); /* joining takes effect */
    for (unsigned k = 0; k < FRAMES; k++) cast_insisting(&server, &group_a, k);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < FRAMES; k++) {
            assert_int_equal(carrier_poll(server.transport, links[i], &out, NULL), SHEAF_OK);
            assert_int_equal(out.size, 2);
            assert_int_equal(bytes[0], k);
            assert_int_equal(bytes[1], group_a.id[0]);
        }
    }
    for (unsigned i = 0; i < LINKS; i++) {
        assert_int_equal(server.transport->receive(links[i], &out, NULL), SHEAF_AGAIN);
        carrier_round_trip(server.transport, links[i], 100, i);
    }
    assert_int_equal(server.transport->join(links[0], NULL), SHEAF_OK);
    carrier_round_trip(server.transport, links[0], 10, 0);
    cast_insisting(&server, &group_a, FRAMES);
    assert_int_equal(carrier_poll(server.transport, links[1], &out, NULL), SHEAF_OK);
    assert_int_equal(server.transport->receive(links[0], &out, NULL), SHEAF_AGAIN);
    for (unsigned i = 0; i < LINKS; i++) server.transport->close(links[i]);
    carrier_stop(&server);
}

int main(void) {
    static const conformance_behaviour behaviours[] = {
        CONFORMANCE(a_window_of_requests_is_taken_and_answered_in_order, 0),
        CONFORMANCE(many_requests_in_a_window_keep_their_order, 0),
        CONFORMANCE(a_window_is_given_up_as_a_whole, CONFORMANCE_CUTS),
        CONFORMANCE(a_slow_reader_waits_alone, 0),
        CONFORMANCE(four_hundred_links_work_in_one_process, 0),
        CONFORMANCE(the_server_may_be_restarted_at_every_step, 0),
        CONFORMANCE(a_link_may_be_replaced_at_every_step, 0),
        CONFORMANCE(expelled_peers_lose_their_connection_and_others_stay, 0),
        CONFORMANCE(a_connection_may_break_at_any_byte, CONFORMANCE_OVER_TCP),
        CONFORMANCE(a_window_survives_connections_that_keep_breaking, CONFORMANCE_OVER_TCP | CONFORMANCE_IN_ORDER),
        CONFORMANCE(a_slow_line_is_not_cut_while_bytes_move, CONFORMANCE_OVER_TCP),
        CONFORMANCE(a_line_on_which_nothing_moves_is_given_up, CONFORMANCE_OVER_TCP),
        CONFORMANCE(who_joined_a_group_gets_all_its_frames_in_order, CONFORMANCE_CASTS),
    };
    return conformance_run(behaviours, sizeof behaviours / sizeof behaviours[0]);
}
