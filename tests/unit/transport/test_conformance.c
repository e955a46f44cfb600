/* What every carrier must do when all goes well, or is refused: run over each of them. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/kit/conformance_kit.h"

static void the_carrier_of_a_url_is_found(void **state) {
    const conformance_carrier *carrier = *state;
    assert_ptr_equal(sheaf_transport_for(carrier->url), carrier->transport);
    assert_null(sheaf_transport_for("mqtt://127.0.0.1"));
}

static void an_answer_comes_back_whole_at_any_size(void **state) {
    static const size_t sizes[] = {0, 1, 100, 16383, 16384, 16385, CARRIER_FRAME_MAX - 1, CARRIER_FRAME_MAX};
    carrier_server server;
    conformance_start(&server, *state, CARRIER_ECHO);
    sheaf_link *link = conformance_open_link(&server);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        carrier_round_trip(server.transport, link, sizes[i], i);
    assert_int_equal(server.requests, sizeof sizes / sizeof sizes[0]);
    server.transport->close(link);
    carrier_stop(&server);
}

static void an_answer_may_come_later_from_another_thread(void **state) {
    carrier_server server;
    conformance_start(&server, *state, CARRIER_WORKER);
    sheaf_link *link = conformance_open_link(&server);
    for (unsigned i = 0; i < 50; i++) carrier_round_trip(server.transport, link, 1000u * i, i);
    server.transport->close(link);
    carrier_stop(&server);
}

static void both_ends_know_each_other_by_certificate(void **state) {
    carrier_server server;
    conformance_start(&server, *state, CARRIER_ECHO);
    sheaf_link *link = conformance_open_link(&server);
    assert_null(server.transport->peer(link));
    carrier_round_trip(server.transport, link, 10, 1);
    sheaf_certificate *own = NULL;
    assert_int_equal(sheaf_certificate_from_pem_file(conformance_device->certificate, &own, NULL), SHEAF_OK);
    assert_string_equal(server.last_peer.tenant, "acme");
    assert_string_equal(server.last_peer.name, "device-01");
    assert_int_equal(server.last_peer.role, SHEAF_ROLE_DEVICE);
    assert_memory_equal(server.last_fingerprint, sheaf_certificate_fingerprint(own), SHEAF_DIGEST_BYTES);
    sheaf_certificate *peer = server.transport->peer(link);
    assert_non_null(peer);
    assert_string_equal(sheaf_certificate_identity(peer)->name, "main");
    assert_int_equal(sheaf_certificate_identity(peer)->role, SHEAF_ROLE_AGGREGATOR);
    sheaf_certificate_unref(own);
    server.transport->close(link);
    carrier_stop(&server);
}

static void a_server_tells_how_many_devices_it_has(void **state) {
    carrier_server server;
    sheaf_server_report report = {0};
    conformance_start(&server, *state, CARRIER_ECHO);
    sheaf_link *link = conformance_open_link(&server);
    carrier_round_trip(server.transport, link, 10, 1);
    server.transport->look(server.server, &report);
    assert_int_equal(report.ready, 1);
    assert_int_equal(report.connections, 1);
    assert_int_equal(report.strangers, 0);
    server.transport->close(link);
    carrier_stop(&server);
}

static void a_frame_above_the_limit_is_not_taken(void **state) {
    static uint8_t big[CARRIER_FRAME_MAX + 1];
    carrier_server server;
    conformance_start(&server, *state, CARRIER_ECHO);
    sheaf_link *link = conformance_open_link(&server);
    assert_int_equal(server.transport->send(link, sheaf_span_of(big, sizeof big)), SHEAF_E_TOO_LARGE);
    carrier_round_trip(server.transport, link, 10, 1);
    server.transport->close(link);
    carrier_stop(&server);
}

static void the_server_ends_connections_that_exceed_its_limit(void **state) {
    static uint8_t big[5000];
    const conformance_carrier *carrier = *state;
    carrier_server server;
    sheaf_transport_options options = carrier_options(carrier->url, conformance_aggregator);
    options.frame_bytes_max = sizeof big - 1;
    carrier_start(&server, carrier->transport, &options, CARRIER_ECHO);
    sheaf_link *link = conformance_open_link(&server);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(carrier_ask(server.transport, link, sheaf_span_of(big, sizeof big), &answer, &problem),
                     SHEAF_E_NETWORK);
    carrier_wait_rejects(&server, 1);
    assert_int_equal(server.last_reject, SHEAF_E_TOO_LARGE);
    assert_int_equal(server.requests, 0);
    assert_int_equal(carrier_insist(server.transport, link, sheaf_span_of("ok", 2), &answer, &problem), SHEAF_OK);
    server.transport->close(link);
    carrier_stop(&server);
}

static void an_answer_that_does_not_fit_is_said_and_dropped(void **state) {
    static uint8_t request[100];
    carrier_server server;
    conformance_start(&server, *state, CARRIER_ECHO);
    sheaf_link *link = conformance_open_link(&server);
    uint8_t bytes[99];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(carrier_ask(server.transport, link, sheaf_span_of(request, sizeof request), &answer, &problem),
                     SHEAF_E_TOO_LARGE);
    carrier_round_trip(server.transport, link, 10, 1);
    server.transport->close(link);
    carrier_stop(&server);
}

static void one_request_at_a_time(void **state) {
    carrier_server server;
    conformance_start(&server, *state, CARRIER_HOLD);
    sheaf_link *link = conformance_open_link(&server);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    assert_int_equal(server.transport->receive(link, &answer, NULL), SHEAF_AGAIN);
    assert_int_equal(server.transport->send(link, sheaf_span_of("one", 3)), SHEAF_OK);
    assert_int_equal(server.transport->send(link, sheaf_span_of("two", 3)), SHEAF_AGAIN);
    sheaf_exchange *exchange = carrier_take(&server);
    assert_int_equal(server.transport->receive(link, &answer, NULL), SHEAF_AGAIN);
    server.transport->reply(exchange, sheaf_span_of("1", 1));
    assert_int_equal(carrier_poll(server.transport, link, &answer, NULL), SHEAF_OK);
    assert_int_equal(answer.size, 1);
    assert_int_equal(bytes[0], '1');
    assert_int_equal(server.transport->receive(link, &answer, NULL), SHEAF_AGAIN);
    server.transport->close(link);
    carrier_stop(&server);
}

static void many_links_work_side_by_side(void **state) {
    enum { LINKS = 40, ROUNDS = 5 };
    carrier_server server;
    sheaf_link *links[LINKS];
    uint8_t bytes[LINKS][64];
    conformance_start(&server, *state, CARRIER_WORKER);
    for (unsigned i = 0; i < LINKS; i++) links[i] = conformance_open_link_of_crowd(&server, i);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < LINKS; i++) {
            uint8_t request[2] = {(uint8_t)i, (uint8_t)round};
            assert_int_equal(server.transport->send(links[i], sheaf_span_of(request, 2)), SHEAF_OK);
        }
        for (unsigned i = 0; i < LINKS; i++) {
            sheaf_buffer answer = {bytes[i], 0, sizeof bytes[i]};
            sheaf_problem problem = {SHEAF_OK, ""};
            sheaf_status status = carrier_poll(server.transport, links[i], &answer, &problem);
            if (status != SHEAF_OK) fail_msg("link %u: %s: %s", i, sheaf_status_name(status), problem.text);
            assert_int_equal(answer.size, 2);
            assert_int_equal(bytes[i][0], round);
            assert_int_equal(bytes[i][1], i);
        }
    }
    assert_int_equal(server.requests, LINKS * ROUNDS);
    for (unsigned i = 0; i < LINKS; i++) server.transport->close(links[i]);
    carrier_stop(&server);
}

static void no_more_exchanges_than_allowed_wait_at_once(void **state) {
    enum { LINKS = 12 };
    carrier_server server;
    sheaf_link *links[LINKS];
    conformance_start(&server, *state, CARRIER_HOLD); /* exchanges_max is 8 */
    for (unsigned i = 0; i < LINKS; i++) {
        links[i] = conformance_open_link_of_crowd(&server, i);
        assert_int_equal(server.transport->send(links[i], sheaf_span_of("x", 1)), SHEAF_OK);
    }
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    for (unsigned polls = 0; polls < 300; polls++) {
        for (unsigned i = 0; i < LINKS; i++)
            assert_int_equal(server.transport->receive(links[i], &answer, NULL), SHEAF_AGAIN);
        carrier_sleep_ms(1);
    }
    for (unsigned i = 0; i < LINKS; i++) server.transport->reply(carrier_take(&server), sheaf_span_of("y", 1));
    for (unsigned i = 0; i < LINKS; i++) {
        assert_int_equal(carrier_poll(server.transport, links[i], &answer, NULL), SHEAF_OK);
        server.transport->close(links[i]);
    }
    assert_int_equal(server.most_at_once, 8);
    carrier_stop(&server);
}

static void connections_above_the_limit_are_turned_away(void **state) {
    const conformance_carrier *carrier = *state;
    carrier_server server;
    sheaf_transport_options options = carrier_options(carrier->url, conformance_aggregator);
    options.connections_max = 2;
    carrier_start(&server, carrier->transport, &options, CARRIER_ECHO);
    sheaf_link *links[3];
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    for (unsigned i = 0; i < 2; i++) {
        links[i] = conformance_open_link(&server);
        carrier_round_trip(server.transport, links[i], 10, i);
    }
    links[2] = conformance_open_link(&server);
    assert_int_equal(carrier_ask(server.transport, links[2], sheaf_span_of("x", 1), &answer, &problem),
                     SHEAF_E_NETWORK);
    carrier_wait_rejects(&server, 1);
    assert_int_equal(server.last_reject, SHEAF_E_BUSY);
    carrier_round_trip(server.transport, links[0], 10, 7);
    server.transport->close(links[0]);
    assert_int_equal(carrier_insist(server.transport, links[2], sheaf_span_of("x", 1), &answer, &problem), SHEAF_OK);
    server.transport->close(links[1]);
    server.transport->close(links[2]);
    carrier_stop(&server);
}

static void a_request_that_is_given_up_makes_room(void **state) {
    carrier_server server;
    conformance_start(&server, *state, CARRIER_HOLD);
    sheaf_link *link = conformance_open_link(&server);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    server.transport->cancel(link); /* nothing to give up: fine */
    assert_int_equal(server.transport->send(link, sheaf_span_of("one", 3)), SHEAF_OK);
    sheaf_exchange *first = carrier_take(&server);
    server.transport->cancel(link);
    assert_int_equal(server.transport->receive(link, &answer, NULL), SHEAF_AGAIN);
    assert_int_equal(server.transport->send(link, sheaf_span_of("two", 3)), SHEAF_OK);
    sheaf_exchange *second = NULL;
    for (unsigned polls = 0; polls < 5000 && second == NULL; polls++) {
        assert_int_equal(server.transport->receive(link, &answer, NULL), SHEAF_AGAIN);
        pthread_mutex_lock(&server.lock);
        if (server.held_count > 0) second = server.held[--server.held_count];
        pthread_mutex_unlock(&server.lock);
        carrier_sleep_ms(1);
    }
    assert_non_null(second);
    server.transport->reply(first, sheaf_span_of("first", 5)); /* late: nobody may see it */
    carrier_sleep_ms(50);
    assert_int_equal(server.transport->receive(link, &answer, NULL), SHEAF_AGAIN);
    server.transport->reply(second, sheaf_span_of("second", 6));
    assert_int_equal(carrier_poll(server.transport, link, &answer, NULL), SHEAF_OK);
    assert_int_equal(answer.size, 6);
    assert_memory_equal(bytes, "second", 6);
    server.transport->close(link);
    carrier_stop(&server);
}

static void links_may_be_given_up_and_closed_at_any_moment(void **state) {
    static uint8_t request[40000];
    carrier_server server;
    conformance_start(&server, *state, CARRIER_WORKER);
    for (unsigned i = 0; i < 60; i++) {
        sheaf_link *link = conformance_open_link(&server);
        assert_int_equal(server.transport->send(link, sheaf_span_of(request, sizeof request)), SHEAF_OK);
        carrier_sleep_ms(i % 12u);
        if (i % 3u == 0) server.transport->cancel(link);
        if (i % 6u == 0) assert_int_equal(server.transport->send(link, sheaf_span_of(request, 10)), SHEAF_OK);
        server.transport->close(link);
    }
    carrier_stop(&server);
}

static void a_server_stops_with_exchanges_that_wait(void **state) {
    carrier_server server;
    sheaf_link *links[4];
    const sheaf_transport *transport = ((const conformance_carrier *)*state)->transport;
    conformance_start(&server, *state, CARRIER_HOLD);
    for (unsigned i = 0; i < 4; i++) {
        links[i] = conformance_open_link_of_crowd(&server, i * CONFORMANCE_EACH);
        assert_int_equal(transport->send(links[i], sheaf_span_of("x", 1)), SHEAF_OK);
    }
    sheaf_exchange *exchange = carrier_take(&server);
    carrier_stop(&server); /* and replies to what it held, late */
    transport->reply(exchange, sheaf_span_of("late", 4));
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(carrier_poll(transport, links[i], &answer, &problem), SHEAF_E_NETWORK);
        assert_true(strlen(problem.text) > 0);
        transport->close(links[i]);
    }
}

static void a_link_finds_the_server_that_came_back(void **state) {
    const conformance_carrier *carrier = *state;
    carrier_server server;
    char url[300];
    conformance_start(&server, carrier, CARRIER_ECHO);
    (void)snprintf(url, sizeof url, "%s", carrier->transport->server_url(server.server));
    sheaf_link *link = conformance_open_link(&server);
    carrier_round_trip(carrier->transport, link, 10, 1);
    for (unsigned restart = 0; restart < 3; restart++) {
        carrier_stop(&server);
        sheaf_transport_options options = carrier_options(url, conformance_aggregator);
        carrier_start(&server, carrier->transport, &options, CARRIER_ECHO);
        uint8_t bytes[16];
        sheaf_buffer answer = {bytes, 0, sizeof bytes};
        sheaf_problem problem = {SHEAF_OK, ""};
        assert_int_equal(carrier_insist(carrier->transport, link, sheaf_span_of("ab", 2), &answer, &problem), SHEAF_OK);
        assert_memory_equal(bytes, "ba", 2);
    }
    carrier->transport->close(link);
    carrier_stop(&server);
}

static void a_link_may_be_there_before_its_server(void **state) {
    const conformance_carrier *carrier = *state;
    carrier_server server;
    char url[300];
    conformance_start(&server, carrier, CARRIER_ECHO); /* only to learn a free port */
    (void)snprintf(url, sizeof url, "%s", carrier->transport->server_url(server.server));
    carrier_stop(&server);
    sheaf_link *link = conformance_open_link_to(carrier->transport, url, conformance_device);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(carrier_ask(carrier->transport, link, sheaf_span_of("x", 1), &answer, &problem), SHEAF_E_NETWORK);
    /* Over MQTT a broker is there all the same. */
    int is_mqtt = carrier->transport == &sheaf_transport_mqtt;
    assert_non_null(strstr(problem.text, is_mqtt ? "no aggregator answers" : "refused"));
    sheaf_transport_options options = carrier_options(url, conformance_aggregator);
    carrier_start(&server, carrier->transport, &options, CARRIER_ECHO);
    assert_int_equal(carrier_insist(carrier->transport, link, sheaf_span_of("x", 1), &answer, &problem), SHEAF_OK);
    carrier->transport->close(link);
    carrier_stop(&server);
}

static void an_address_in_use_is_said(void **state) {
    const conformance_carrier *carrier = *state;
    carrier_server server;
    conformance_start(&server, carrier, CARRIER_ECHO);
    sheaf_transport_options options =
        carrier_options(carrier->transport->server_url(server.server), conformance_aggregator);
    sheaf_server *second = NULL;
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(carrier->transport->open_server(&options, NULL, NULL, NULL, &second, &problem),
                     SHEAF_E_ADDRESS_IN_USE);
    assert_null(second);
    carrier_stop(&server);
}

static void a_role_at_the_wrong_end_is_turned_away(void **state) {
    carrier_server server;
    conformance_start(&server, *state, CARRIER_ECHO);
    sheaf_link *link = conformance_open_link_to(server.transport, server.transport->server_url(server.server),
                                                conformance_other_aggregator);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(carrier_ask(server.transport, link, sheaf_span_of("x", 1), &answer, &problem), SHEAF_E_NETWORK);
    carrier_wait_rejects(&server, 1);
    assert_int_equal(server.last_reject, SHEAF_E_ROLE);
    assert_int_equal(server.requests, 0);
    server.transport->close(link);
    carrier_stop(&server);
}

static void missing_files_and_bad_urls_are_said_at_once(void **state) {
    const conformance_carrier *carrier = *state;
    sheaf_transport_options options = carrier_options(carrier->url, conformance_device);
    sheaf_link *link = NULL;
    sheaf_problem problem = {SHEAF_OK, ""};
    options.url = carrier->transport->url_prefix;
    assert_int_equal(carrier->transport->open_link(&options, &link, &problem), SHEAF_E_USAGE);
    options.url = strcmp(carrier->transport->name, "nng") == 0 ? "tls+tcp://127.0.0.1:1" : carrier->url;
    options.tls.certificate_path = "/nonexistent/certificate.pem";
    assert_int_equal(carrier->transport->open_link(&options, &link, &problem), SHEAF_E_NOT_FOUND);
    assert_null(link);
    carrier->transport->close(NULL);
    carrier->transport->stop_server(NULL);
}

int main(void) {
    static const conformance_behaviour behaviours[] = {
        CONFORMANCE(the_carrier_of_a_url_is_found, 0),
        CONFORMANCE(an_answer_comes_back_whole_at_any_size, 0),
        CONFORMANCE(an_answer_may_come_later_from_another_thread, 0),
        CONFORMANCE(both_ends_know_each_other_by_certificate, 0),
        CONFORMANCE(a_server_tells_how_many_devices_it_has, 0),
        CONFORMANCE(a_frame_above_the_limit_is_not_taken, 0),
        CONFORMANCE(the_server_ends_connections_that_exceed_its_limit, 0),
        CONFORMANCE(an_answer_that_does_not_fit_is_said_and_dropped, 0),
        CONFORMANCE(one_request_at_a_time, 0),
        CONFORMANCE(many_links_work_side_by_side, 0),
        CONFORMANCE(no_more_exchanges_than_allowed_wait_at_once, 0),
        CONFORMANCE(connections_above_the_limit_are_turned_away, 0),
        CONFORMANCE(a_request_that_is_given_up_makes_room, 0),
        CONFORMANCE(links_may_be_given_up_and_closed_at_any_moment, 0),
        CONFORMANCE(a_server_stops_with_exchanges_that_wait, 0),
        CONFORMANCE(a_link_finds_the_server_that_came_back, 0),
        CONFORMANCE(a_link_may_be_there_before_its_server, 0),
        CONFORMANCE(an_address_in_use_is_said, CONFORMANCE_LISTENS),
        CONFORMANCE(a_role_at_the_wrong_end_is_turned_away, 0),
        CONFORMANCE(missing_files_and_bad_urls_are_said_at_once, 0),
    };
    return conformance_run(behaviours, sizeof behaviours / sizeof behaviours[0]);
}
