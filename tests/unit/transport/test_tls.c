/* Who may talk to whom over TLS: every refusal has a name at the server and a reason at the link. */
#include "tests/cmocka.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/kit/carrier_kit.h"
#include "tests/kit/raw_tls.h"

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

static void start(carrier_server *server, int tls12_profile) {
    sheaf_transport_options options = carrier_options("tls+tcp://127.0.0.1:0", aggregator);
    options.tls.tls12_profile = tls12_profile;
    carrier_start(server, nng, &options, CARRIER_ECHO);
}

static sheaf_link *open_link(const sheaf_transport_options *options) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_link *link = NULL;
    if (nng->open_link(options, &link, &problem) != SHEAF_OK) fail_msg("open_link: %s", problem.text);
    return link;
}

/* ---- devices that the server must refuse ---- */

typedef struct {
    const char *role;
    pki_kit_options options;
    sheaf_status status;
    const char *server_says, *link_says;
} refusal;

static void refused_device(const refusal *expected) {
    carrier_server server;
    start(&server, 0);
    sheaf_transport_options options = carrier_options(
        nng->server_url(server.server), pki_kit_issue(kit, expected->role, "someone", &expected->options));
    sheaf_link *link = open_link(&options);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(carrier_ask(nng, link, sheaf_span_of("x", 1), &answer, &problem), SHEAF_E_NETWORK);
    if (strstr(problem.text, expected->link_says) == NULL)
        fail_msg("link: '%s' lacks '%s'", problem.text, expected->link_says);
    carrier_wait_rejects(&server, 1);
    assert_string_equal(sheaf_status_name(server.last_reject), sheaf_status_name(expected->status));
    if (strstr(server.last_reject_text, expected->server_says) == NULL) {
        fail_msg("server: '%s' lacks '%s'", server.last_reject_text, expected->server_says);
    }
    assert_int_equal(server.requests, 0);
    assert_null(nng->peer(link));
    nng->close(link);
    carrier_stop(&server);
}

/* For certificates with which our own link would not even start: shown by a client of plain OpenSSL. */
static void refused_raw_device(const refusal *expected) {
    carrier_server server;
    start(&server, 0);
    const raw_client_options options = {.files = pki_kit_issue(kit, expected->role, "someone", &expected->options)};
    int shaken = 0;
    uint8_t byte = 0;
    raw_client client = raw_client_open(raw_port(nng->server_url(server.server)), &options, &shaken);
    carrier_wait_rejects(&server, 1);
    ERR_clear_error();
    while (raw_read(client.ssl, &byte, 1)) continue;
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    if (shaken && (reason == NULL || strstr(reason, expected->link_says) == NULL))
        fail_msg("client: '%s' lacks '%s'", reason == NULL ? "nothing" : reason, expected->link_says);
    assert_string_equal(sheaf_status_name(server.last_reject), sheaf_status_name(expected->status));
    if (strstr(server.last_reject_text, expected->server_says) == NULL)
        fail_msg("server: '%s' lacks '%s'", server.last_reject_text, expected->server_says);
    assert_int_equal(server.requests, 0);
    raw_client_close(&client);
    carrier_stop(&server);
}

static void a_device_of_an_unknown_authority_is_refused(void **state) {
    (void)state;
    refusal expected = {"device", {.other_ca = 1}, SHEAF_E_CERTIFICATE, "issuer", "unknown CA"};
    refused_device(&expected);
}

static void a_device_whose_certificate_has_expired_is_refused(void **state) {
    (void)state;
    refusal expected = {
        "device", {.not_before_s = -7200, .not_after_s = -3600}, SHEAF_E_CERTIFICATE, "expired", "certificate expired"};
    refused_device(&expected);
}

static void a_device_whose_certificate_is_not_yet_valid_is_refused(void **state) {
    (void)state;
    refusal expected = {
        "device", {.not_before_s = 3600, .not_after_s = 7200}, SHEAF_E_CERTIFICATE, "not yet valid", "bad certificate"};
    refused_device(&expected);
}

static void a_device_without_extended_key_usage_is_refused(void **state) {
    (void)state;
    refusal expected = {
        "device", {.eku = ""}, SHEAF_E_CERTIFICATE, "extendedKeyUsage extension is missing", "bad certificate"};
    refused_raw_device(&expected);
}

static void a_device_with_the_aggregators_role_is_refused(void **state) {
    (void)state;
    refusal expected = {"aggregator", {0}, SHEAF_E_ROLE, "aggregator", "unsupported certificate"};
    refused_device(&expected);
}

static void an_aggregator_that_may_also_be_a_client_is_still_refused(void **state) {
    (void)state;
    refusal expected = {
        "aggregator", {.eku = "serverAuth,clientAuth"}, SHEAF_E_ROLE, "used by a client", "unsupported certificate"};
    refused_device(&expected);
}

static void an_unknown_role_is_refused(void **state) {
    (void)state;
    refusal expected = {"robot", {.eku = "clientAuth"}, SHEAF_E_CERTIFICATE, "is no role", "bad certificate"};
    refused_raw_device(&expected);
}

static void a_key_that_is_not_ours_is_refused(void **state) {
    (void)state;
    refusal expected = {
        "device", {.key_type = "rsa"}, SHEAF_E_CERTIFICATE, "must be ECDSA P-256 or Ed25519", "bad certificate"};
    refused_raw_device(&expected);
}

static void an_ed25519_device_is_welcome(void **state) {
    (void)state;
    pki_kit_options ed25519 = {.key_type = "ed25519"};
    carrier_server server;
    start(&server, 0);
    sheaf_transport_options options =
        carrier_options(nng->server_url(server.server), pki_kit_issue(kit, "device", "ed", &ed25519));
    sheaf_link *link = open_link(&options);
    carrier_round_trip(nng, link, 100, 1);
    nng->close(link);
    carrier_stop(&server);
}

static void a_peer_without_a_certificate_is_refused(void **state) {
    (void)state;
    carrier_server server;
    start(&server, 0);
    int shaken = 0;
    raw_client client = raw_client_open(raw_port(nng->server_url(server.server)), &(raw_client_options){0}, &shaken);
    assert_int_equal(raw_greet(&client), 0);
    carrier_wait_rejects(&server, 1);
    assert_int_equal(server.last_reject, SHEAF_E_CERTIFICATE);
    raw_client_close(&client);
    carrier_stop(&server);
}

/* ---- versions and resumption ---- */

static void tls_1_2_is_refused_by_default(void **state) {
    (void)state;
    carrier_server server;
    start(&server, 0);
    int shaken = 1;
    raw_client_options options = {.files = device, .max_version = TLS1_2_VERSION};
    raw_client client = raw_client_open(raw_port(nng->server_url(server.server)), &options, &shaken);
    assert_int_equal(shaken, 0);
    carrier_wait_rejects(&server, 1);
    assert_int_equal(server.last_reject, SHEAF_E_VERSION);
    raw_client_close(&client);
    carrier_stop(&server);
}

static void raw_round_trip(raw_client *client) {
    uint8_t bytes[8];
    uint32_t id = 0;
    assert_int_equal(raw_greet(client), 1);
    assert_int_equal(raw_ask(client, 0x80001234u, "abc", 3), 1);
    assert_int_equal(raw_answer(client, &id, bytes, sizeof bytes), 3);
    assert_int_equal(id, 0x80001234u);
    assert_memory_equal(bytes, "cba", 3);
}

static void the_profile_lets_tls_1_2_in_with_p256_and_gcm_only(void **state) {
    (void)state;
    carrier_server server;
    start(&server, 1);
    unsigned port = raw_port(nng->server_url(server.server));
    int shaken = 0;
    raw_client_options options = {.files = device, .max_version = TLS1_2_VERSION};
    raw_client client = raw_client_open(port, &options, &shaken);
    assert_int_equal(shaken, 1);
    assert_string_equal(SSL_get_version(client.ssl), "TLSv1.2");
    assert_non_null(strstr(SSL_get_cipher(client.ssl), "ECDHE-ECDSA-AES"));
    assert_non_null(strstr(SSL_get_cipher(client.ssl), "GCM"));
    raw_round_trip(&client);
    raw_client_close(&client);

    static const raw_client_options refused[] = {
        {.max_version = TLS1_2_VERSION, .ciphers = "ECDHE-ECDSA-AES128-SHA256"},
        {.max_version = TLS1_2_VERSION, .ciphers = "ECDHE-ECDSA-CHACHA20-POLY1305"},
        {.max_version = TLS1_2_VERSION, .groups = "X25519"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        options = refused[i];
        options.files = device;
        client = raw_client_open(port, &options, &shaken);
        assert_int_equal(shaken, 0);
        raw_client_close(&client);
    }
    pki_kit_options ed25519 = {.key_type = "ed25519"};
    options =
        (raw_client_options){.files = pki_kit_issue(kit, "device", "ed", &ed25519), .max_version = TLS1_2_VERSION};
    client = raw_client_open(port, &options, &shaken);
    assert_int_equal(shaken && raw_greet(&client), 0);
    raw_client_close(&client);
    carrier_stop(&server);
}

static void the_profile_still_speaks_tls_1_3(void **state) {
    (void)state;
    carrier_server server;
    start(&server, 1);
    int shaken = 0;
    raw_client client =
        raw_client_open(raw_port(nng->server_url(server.server)), &(raw_client_options){.files = device}, &shaken);
    assert_int_equal(shaken, 1);
    assert_string_equal(SSL_get_version(client.ssl), "TLSv1.3");
    raw_round_trip(&client);
    raw_client_close(&client);
    carrier_stop(&server);
}

static void no_session_is_ever_resumed(void **state) {
    (void)state;
    carrier_server server;
    start(&server, 1);
    unsigned port = raw_port(nng->server_url(server.server));
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    for (size_t i = 0; i < 2; i++) {
        int shaken = 0;
        raw_client_options options = {.files = device, .max_version = versions[i]};
        raw_client first = raw_client_open(port, &options, &shaken);
        raw_round_trip(&first);
        options.session = SSL_get1_session(first.ssl);
        SSL_SESSION *session = options.session;
        raw_client second = raw_client_open(port, &options, &shaken);
        raw_round_trip(&second);
        assert_int_equal(SSL_session_reused(second.ssl), 0);
        SSL_SESSION_free(session);
        raw_client_close(&first);
        raw_client_close(&second);
    }
    carrier_stop(&server);
}

/* ---- servers that a link must refuse ---- */

static sheaf_status ask_raw_server(const pki_kit_files *files, int max_version, int tls12_profile, const char *name,
                                   sheaf_problem *problem, int *version) {
    raw_server server;
    char url[64];
    raw_server_start(&server, files, max_version);
    (void)snprintf(url, sizeof url, "tls+tcp://127.0.0.1:%u", server.port);
    sheaf_transport_options options = carrier_options(url, device);
    options.tls.server_name = name;
    options.tls.tls12_profile = tls12_profile;
    sheaf_link *link = open_link(&options);
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_status status = carrier_ask(nng, link, sheaf_span_of("x", 1), &answer, problem);
    if (status == SHEAF_OK) assert_memory_equal(bytes, "raw", 3);
    nng->close(link);
    raw_server_stop(&server);
    if (version != NULL) *version = server.versions[0];
    return status;
}

static void refused_server(const pki_kit_files *files, int max_version, const char *name, const char *says) {
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(ask_raw_server(files, max_version, 0, name, &problem, NULL), SHEAF_E_NETWORK);
    if (strstr(problem.text, says) == NULL) fail_msg("'%s' lacks '%s'", problem.text, says);
}

static void a_good_server_answers(void **state) {
    (void)state;
    sheaf_problem problem = {SHEAF_OK, ""};
    int version = 0;
    if (ask_raw_server(aggregator, 0, 0, NULL, &problem, &version) != SHEAF_OK) fail_msg("%s", problem.text);
    assert_int_equal(version, TLS1_3_VERSION);
    assert_int_equal(ask_raw_server(aggregator, 0, 0, "localhost", &problem, NULL), SHEAF_OK);
}

static void a_server_with_a_devices_certificate_is_refused(void **state) {
    (void)state;
    refused_server(pki_kit_issue(kit, "device", "d", &(pki_kit_options){.san = "DNS:localhost,IP:127.0.0.1"}), 0, NULL,
                   "role device");
    refused_server(
        pki_kit_issue(kit, "device", "d", &(pki_kit_options){.san = "IP:127.0.0.1", .eku = "serverAuth,clientAuth"}), 0,
        NULL, "a server must have an aggregator's");
}

static void a_server_of_an_unknown_authority_is_refused(void **state) {
    (void)state;
    refused_server(pki_kit_issue(kit, "aggregator", "a", &(pki_kit_options){.other_ca = 1}), 0, NULL, "issuer");
}

static void a_server_whose_certificate_has_expired_is_refused(void **state) {
    (void)state;
    pki_kit_options expired = {.not_before_s = -7200, .not_after_s = -3600};
    refused_server(pki_kit_issue(kit, "aggregator", "a", &expired), 0, NULL, "expired");
}

static void a_server_of_another_name_is_refused(void **state) {
    (void)state;
    refused_server(pki_kit_issue(kit, "aggregator", "a", &(pki_kit_options){.san = "DNS:elsewhere.example"}), 0, NULL,
                   "not for 127.0.0.1");
    refused_server(aggregator, 0, "elsewhere.example", "not for elsewhere.example");
    refused_server(pki_kit_issue(kit, "aggregator", "localhost", &(pki_kit_options){.san = ""}), 0, "localhost",
                   "not for localhost");
}

static void a_server_with_tls_1_2_is_refused_unless_the_profile_allows_it(void **state) {
    (void)state;
    refused_server(aggregator, TLS1_2_VERSION, NULL, "protocol version");
    sheaf_problem problem = {SHEAF_OK, ""};
    int version = 0;
    if (ask_raw_server(aggregator, TLS1_2_VERSION, 1, NULL, &problem, &version) != SHEAF_OK)
        fail_msg("%s", problem.text);
    assert_int_equal(version, TLS1_2_VERSION);
}

/* ---- own files ---- */

static sheaf_status try_files(const char *certificate, const char *key, const char *ca, sheaf_problem *problem) {
    pki_kit_files files = {.certificate = certificate, .key = key, .ca = ca};
    sheaf_transport_options options = carrier_options("tls+tcp://127.0.0.1:9", &files);
    sheaf_link *link = NULL;
    sheaf_status status = nng->open_link(&options, &link, problem);
    nng->close(link);
    return status;
}

static void unusable_files_are_said_by_name(void **state) {
    (void)state;
    sheaf_problem problem = {SHEAF_OK, ""};
    const pki_kit_files *other = pki_kit_issue(kit, "device", "device-02", NULL);
    assert_int_equal(try_files(device->certificate, device->key, device->ca, &problem), SHEAF_OK);
    assert_int_equal(try_files(device->certificate, other->key, device->ca, &problem), SHEAF_E_MISMATCH);
    assert_non_null(strstr(problem.text, other->key));
    assert_int_equal(try_files(device->key, device->key, device->ca, &problem), SHEAF_E_CERTIFICATE);
    assert_int_equal(try_files(device->certificate, "/nonexistent", device->ca, &problem), SHEAF_E_NOT_FOUND);
    assert_int_equal(try_files(device->certificate, device->key, device->key, &problem), SHEAF_E_CERTIFICATE);
    assert_int_equal(chmod(other->key, 0640), 0);
    assert_int_equal(try_files(other->certificate, other->key, device->ca, &problem), SHEAF_E_PERMISSION);
    assert_non_null(strstr(problem.text, "0600"));
}

static void an_encrypted_key_is_refused_without_asking_the_terminal(void **state) {
    (void)state;
    char path[300];
    (void)snprintf(path, sizeof path, "%s/encrypted.pem", pki_kit_folder(kit));
    FILE *in = fopen(device->key, "r"), *out = fopen(path, "w");
    assert_non_null(in);
    assert_non_null(out);
    EVP_PKEY *key = PEM_read_PrivateKey(in, NULL, NULL, NULL);
    assert_int_equal(PEM_write_PKCS8PrivateKey(out, key, EVP_aes_128_cbc(), "secret", 6, NULL, NULL), 1);
    EVP_PKEY_free(key);
    (void)fclose(in);
    (void)fclose(out);
    assert_int_equal(chmod(path, 0600), 0);
    sheaf_problem problem = {SHEAF_OK, ""};
    assert_int_equal(try_files(device->certificate, path, device->ca, &problem), SHEAF_E_CRYPTO);
    (void)remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_of_an_unknown_authority_is_refused),
        cmocka_unit_test(a_device_whose_certificate_has_expired_is_refused),
        cmocka_unit_test(a_device_whose_certificate_is_not_yet_valid_is_refused),
        cmocka_unit_test(a_device_without_extended_key_usage_is_refused),
        cmocka_unit_test(a_device_with_the_aggregators_role_is_refused),
        cmocka_unit_test(an_aggregator_that_may_also_be_a_client_is_still_refused),
        cmocka_unit_test(an_unknown_role_is_refused),
        cmocka_unit_test(a_key_that_is_not_ours_is_refused),
        cmocka_unit_test(an_ed25519_device_is_welcome),
        cmocka_unit_test(a_peer_without_a_certificate_is_refused),
        cmocka_unit_test(tls_1_2_is_refused_by_default),
        cmocka_unit_test(the_profile_lets_tls_1_2_in_with_p256_and_gcm_only),
        cmocka_unit_test(the_profile_still_speaks_tls_1_3),
        cmocka_unit_test(no_session_is_ever_resumed),
        cmocka_unit_test(a_good_server_answers),
        cmocka_unit_test(a_server_with_a_devices_certificate_is_refused),
        cmocka_unit_test(a_server_of_an_unknown_authority_is_refused),
        cmocka_unit_test(a_server_whose_certificate_has_expired_is_refused),
        cmocka_unit_test(a_server_of_another_name_is_refused),
        cmocka_unit_test(a_server_with_tls_1_2_is_refused_unless_the_profile_allows_it),
        cmocka_unit_test(unusable_files_are_said_by_name),
        cmocka_unit_test(an_encrypted_key_is_refused_without_asking_the_terminal),
    };
    return cmocka_run_group_tests(tests, make_kit, free_kit);
}
