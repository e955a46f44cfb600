/* Our streams speak NNG's own REQ/REP: its sockets are the other side here, on the same TLS engine. */
#include "tests/cmocka.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <stdio.h>

#include "common/transport/nng_engine.h"
#include "tests/kit/carrier_kit.h"
#include "tests/kit/raw_tls.h"

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

static nng_tls_config *configure(const pki_kit_files *files, sheaf_tls_side side) {
    sheaf_tls_options options = {.certificate_path = files->certificate, .key_path = files->key, .ca_path = files->ca};
    sheaf_tls_context *context = NULL;
    nng_tls_config *config = NULL;
    assert_int_equal(
        sheaf_tls_context_open(&options, side, side == SHEAF_TLS_LINK ? "127.0.0.1" : NULL, &context, NULL), SHEAF_OK);
    assert_int_equal(sheaf_nng_engine_configure(context, &config, NULL), SHEAF_OK);
    sheaf_tls_context_unref(context);
    return config;
}

static void send_bytes(nng_socket socket, const uint8_t *data, size_t size) {
    nng_msg *message = NULL;
    assert_int_equal(nng_msg_alloc(&message, 0), 0);
    assert_int_equal(nng_msg_append(message, data, size), 0);
    assert_int_equal(nng_sendmsg(socket, message, 0), 0);
}

static void a_req_socket_is_answered_by_our_server(void **state) {
    (void)state;
    static uint8_t request[CARRIER_FRAME_MAX];
    carrier_server server;
    sheaf_transport_options options = carrier_options("tls+tcp://127.0.0.1:0", aggregator);
    carrier_start(&server, &sheaf_transport_nng, &options, CARRIER_WORKER);
    nng_socket socket;
    nng_dialer dialer;
    nng_tls_config *config = configure(device, SHEAF_TLS_LINK);
    assert_int_equal(nng_req0_open(&socket), 0);
    assert_int_equal(nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, 10000), 0);
    assert_int_equal(nng_socket_set_ms(socket, NNG_OPT_SENDTIMEO, 10000), 0);
    assert_int_equal(nng_dialer_create(&dialer, socket, sheaf_transport_nng.server_url(server.server)), 0);
    assert_int_equal(nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, config), 0);
    assert_int_equal(nng_dialer_start(dialer, 0), 0);
    for (size_t size = 1; size <= sizeof request; size *= 16) {
        nng_msg *answer = NULL;
        for (size_t i = 0; i < size; i++) request[i] = (uint8_t)(i * 31u + size);
        send_bytes(socket, request, size);
        assert_int_equal(nng_recvmsg(socket, &answer, 0), 0);
        assert_int_equal(nng_msg_len(answer), size);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(((const uint8_t *)nng_msg_body(answer))[i], request[size - 1 - i]);
        nng_msg_free(answer);
    }
    nng_close(socket);
    nng_tls_config_free(config);
    assert_string_equal(server.last_peer.name, "device-01");
    carrier_stop(&server);
}

static void our_link_is_answered_by_a_rep_socket(void **state) {
    (void)state;
    unsigned port = 0;
    char url[64];
    raw_server port_finder;
    raw_server_start(&port_finder, aggregator, 0);
    port = port_finder.port;
    raw_server_stop(&port_finder);
    (void)snprintf(url, sizeof url, "tls+tcp://127.0.0.1:%u", port);
    nng_socket socket;
    nng_listener listener;
    nng_tls_config *config = configure(aggregator, SHEAF_TLS_SERVER);
    assert_int_equal(nng_rep0_open(&socket), 0);
    assert_int_equal(nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, 10000), 0);
    assert_int_equal(nng_listener_create(&listener, socket, url), 0);
    assert_int_equal(nng_listener_set_ptr(listener, NNG_OPT_TLS_CONFIG, config), 0);
    assert_int_equal(nng_listener_start(listener, 0), 0);
    sheaf_transport_options options = carrier_options(url, device);
    sheaf_link *link = NULL;
    assert_int_equal(sheaf_transport_nng.open_link(&options, &link, NULL), SHEAF_OK);
    for (unsigned i = 0; i < 5; i++) {
        nng_msg *request = NULL;
        uint8_t bytes[64], wanted[3] = {'a', 'b', (uint8_t)('0' + i)};
        sheaf_buffer answer = {bytes, 0, sizeof bytes};
        assert_int_equal(sheaf_transport_nng.send(link, sheaf_span_of(wanted, 3)), SHEAF_OK);
        while (nng_recvmsg(socket, &request, NNG_FLAG_NONBLOCK) != 0) {
            assert_int_equal(sheaf_transport_nng.receive(link, &answer, NULL), SHEAF_AGAIN);
            carrier_sleep_ms(1);
        }
        assert_int_equal(nng_msg_len(request), 3);
        assert_memory_equal(nng_msg_body(request), wanted, 3);
        assert_int_equal(nng_sendmsg(socket, request, 0), 0);
        assert_int_equal(carrier_poll(&sheaf_transport_nng, link, &answer, NULL), SHEAF_OK);
        assert_memory_equal(bytes, wanted, 3);
    }
    sheaf_transport_nng.close(link);
    nng_close(socket);
    nng_tls_config_free(config);
}

/* A configuration that did not come from a context of ours must not be an open door. */
static void a_bare_configuration_lets_nobody_in(void **state) {
    (void)state;
    nng_tls_config *ours = configure(aggregator, SHEAF_TLS_SERVER), *bare = NULL; /* the first registers the engine */
    assert_string_equal(nng_tls_engine_name(), "sheaf-openssl");
    assert_int_equal(nng_tls_config_alloc(&bare, NNG_TLS_MODE_SERVER), 0);
    nng_stream_listener *listener = NULL;
    nng_aio *aio = NULL;
    int port = 0;
    assert_int_equal(nng_stream_listener_alloc(&listener, "tls+tcp://127.0.0.1:0"), 0);
    assert_int_equal(nng_stream_listener_set_ptr(listener, NNG_OPT_TLS_CONFIG, bare), 0);
    assert_int_equal(nng_stream_listener_listen(listener), 0);
    assert_int_equal(nng_stream_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), 0);
    assert_int_equal(nng_aio_alloc(&aio, NULL, NULL), 0);
    nng_stream_listener_accept(listener, aio);
    int shaken = 1;
    raw_client client = raw_client_open((unsigned)port, &(raw_client_options){.files = device}, &shaken);
    nng_aio_wait(aio);
    assert_int_not_equal(nng_aio_result(aio), 0);
    assert_int_equal(shaken, 0);
    raw_client_close(&client);
    nng_aio_free(aio);
    nng_stream_listener_free(listener);
    nng_tls_config_free(bare);
    nng_tls_config_free(ours);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_req_socket_is_answered_by_our_server),
        cmocka_unit_test(our_link_is_answered_by_a_rep_socket),
        cmocka_unit_test(a_bare_configuration_lets_nobody_in),
    };
    return cmocka_run_group_tests(tests, make_kit, free_kit);
}
