/* MQTT past a broker that is not to be trusted, or does not stay: somebody with all rights there listens and speaks. */
#include "tests/cmocka.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/transport/envelope.h"
#include "common/transport/mqtt_client.h"
#include "tests/kit/broker_kit.h"
#include "tests/kit/carrier_kit.h"

#define UP           "sheaf/1/up/device-01"
#define DOWN         "sheaf/1/down/device-01"
#define RECORDED_MAX 512u
#define PATIENCE_MS  10000u

static const sheaf_transport *const mqtt = &sheaf_transport_mqtt;
static pki_kit *kit;
static const pki_kit_files *aggregator, *device, *mallory;

typedef struct {
    int is_up;
    uint8_t *data;
    size_t size;
} recorded;

typedef struct {
    pthread_mutex_t lock;
    sheaf_mqtt_client *client;
    int is_connected;
    int repeats; /* whatever it hears, it says again, and what came before that */
    recorded messages[RECORDED_MAX];
    unsigned count;
} eavesdropper;

static int make_kit(void **state) {
    (void)state;
    kit = pki_kit_make();
    aggregator = pki_kit_issue(kit, "aggregator", "main", NULL);
    device = pki_kit_issue(kit, "device", "device-01", NULL);
    mallory = pki_kit_issue(kit, "device", "mallory", NULL);
    return 0;
}

static int free_kit(void **state) {
    (void)state;
    pki_kit_free(kit);
    return 0;
}

/* --- who listens -------------------------------------------------------------------------------------------------- */

static void ear_connected(void *context) {
    eavesdropper *ear = context;
    pthread_mutex_lock(&ear->lock);
    ear->is_connected = 1;
    pthread_mutex_unlock(&ear->lock);
}

static void ear_lost(void *context, int was_connected, const sheaf_problem *problem) {
    (void)context, (void)was_connected, (void)problem;
}

static void ear_message(void *context, const char *topic, sheaf_span payload, int is_retained) {
    eavesdropper *ear = context;
    (void)is_retained;
    pthread_mutex_lock(&ear->lock);
    unsigned own = ear->count;
    if (own < RECORDED_MAX) {
        recorded *one = &ear->messages[ear->count++];
        one->is_up = strcmp(topic, UP) == 0;
        one->size = payload.size;
        one->data = malloc(payload.size + 1);
        assert_non_null(one->data);
        memcpy(one->data, payload.data, payload.size);
        for (unsigned back = 0; ear->repeats && back < 3 && back <= own; back++) {
            const recorded *again = &ear->messages[own - back];
            (void)sheaf_mqtt_client_publish(ear->client, again->is_up ? UP : DOWN,
                                            sheaf_span_of(again->data, again->size));
        }
    }
    pthread_mutex_unlock(&ear->lock);
}

static uint64_t ear_turn(void *context, uint64_t now) {
    (void)context, (void)now;
    return UINT64_MAX;
}

static void listen_in(eavesdropper *ear, const broker_kit *broker) {
    const sheaf_transport_options files = carrier_options(broker_kit_url(broker), mallory);
    const sheaf_mqtt_events events = {ear_connected, ear_lost, ear_message, ear_turn, NULL, ear};
    const sheaf_mqtt_client_options options = {broker_kit_url(broker), files.tls, 5000};
    uint64_t until = carrier_now_ms() + PATIENCE_MS;
    memset(ear, 0, sizeof *ear);
    pthread_mutex_init(&ear->lock, NULL);
    assert_int_equal(sheaf_mqtt_client_open(&options, &events, &ear->client, NULL), SHEAF_OK);
    assert_int_equal(sheaf_mqtt_client_join(ear->client, UP), SHEAF_OK);
    assert_int_equal(sheaf_mqtt_client_join(ear->client, DOWN), SHEAF_OK);
    for (int there = 0; !there; carrier_sleep_ms(10)) {
        assert_true(carrier_now_ms() < until);
        pthread_mutex_lock(&ear->lock);
        there = ear->is_connected;
        pthread_mutex_unlock(&ear->lock);
    }
}

static void say(eavesdropper *ear, const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size + 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    sheaf_mqtt_client_post(ear->client, UP, copy, size);
}

/* Of those after `from`; waits for the first. */
static int hears_reject(eavesdropper *ear, unsigned from, sheaf_status expected) {
    for (uint64_t until = carrier_now_ms() + PATIENCE_MS; carrier_now_ms() < until; carrier_sleep_ms(10)) {
        int found = 0;
        pthread_mutex_lock(&ear->lock);
        for (unsigned i = from; i < ear->count; i++) {
            sheaf_envelope_head head;
            sheaf_status reason = SHEAF_OK;
            sheaf_span message = sheaf_span_of(ear->messages[i].data, ear->messages[i].size);
            if (ear->messages[i].is_up || sheaf_envelope_read_head(message, &head) != SHEAF_OK) continue;
            if (head.kind != SHEAF_ENVELOPE_REJECT) continue;
            found |= sheaf_envelope_read_reject(message, &head, &reason) == SHEAF_OK && reason == expected;
        }
        pthread_mutex_unlock(&ear->lock);
        if (found) return 1;
    }
    return 0;
}

static unsigned heard(eavesdropper *ear) {
    pthread_mutex_lock(&ear->lock);
    unsigned count = ear->count;
    pthread_mutex_unlock(&ear->lock);
    return count;
}

static void say_all_again(eavesdropper *ear, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (ear->messages[i].is_up) say(ear, ear->messages[i].data, ear->messages[i].size);
}

static void stop_listening(eavesdropper *ear) {
    sheaf_mqtt_client_close(ear->client, 0);
    for (unsigned i = 0; i < ear->count; i++) free(ear->messages[i].data);
    pthread_mutex_destroy(&ear->lock);
}

/* --- who is listened to ------------------------------------------------------------------------------------------- */

static broker_kit *start_broker(void) {
    const broker_kit_options options = {.superuser = "mallory"};
    return broker_kit_start(kit, &options);
}

static void start(carrier_server *server, const broker_kit *broker) {
    sheaf_transport_options options = carrier_options(broker_kit_url(broker), aggregator);
    carrier_start(server, mqtt, &options, CARRIER_ECHO);
}

static sheaf_link *open_link(const broker_kit *broker, const char *prefix) {
    sheaf_transport_options options = carrier_options(broker_kit_url(broker), device);
    sheaf_link *link = NULL;
    options.topic_prefix = prefix;
    assert_int_equal(mqtt->open_link(&options, &link, NULL), SHEAF_OK);
    return link;
}

static void wait_ready(const carrier_server *server, int ready) {
    sheaf_server_report report = {.ready = !ready};
    for (uint64_t until = carrier_now_ms() + PATIENCE_MS; report.ready != ready; carrier_sleep_ms(10)) {
        assert_true(carrier_now_ms() < until);
        mqtt->look(server->server, &report);
    }
}

static void ask_until_answered(sheaf_link *link) {
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    assert_int_equal(carrier_insist(mqtt, link, sheaf_span_of("abc", 3), &answer, NULL), SHEAF_OK);
    assert_memory_equal(answer.data, "cba", 3);
}

static void a_recording_said_again_reaches_no_handler(void **state) {
    (void)state;
    enum { REQUESTS = 5 };
    broker_kit *broker = start_broker();
    carrier_server server;
    eavesdropper ear;
    listen_in(&ear, broker);
    start(&server, broker);
    sheaf_link *link = open_link(broker, NULL);
    for (unsigned i = 0; i < REQUESTS; i++) carrier_round_trip(mqtt, link, 100, i);
    unsigned asked = server.requests, recording = heard(&ear);
    say_all_again(&ear, recording);
    assert_true(hears_reject(&ear, recording, SHEAF_E_REPLAY));
    carrier_round_trip(mqtt, link, 100, REQUESTS);
    assert_int_equal(server.requests, asked + 1);
    mqtt->close(link);
    carrier_stop(&server);

    start(&server, broker);
    wait_ready(&server, 1);
    unsigned before = heard(&ear);
    say_all_again(&ear, recording);
    assert_true(hears_reject(&ear, before, SHEAF_E_REPLAY));    /* its handshake */
    assert_true(hears_reject(&ear, before, SHEAF_E_NOT_FOUND)); /* its requests */
    assert_int_equal(server.requests, 0);
    assert_int_equal(server.last_reject, SHEAF_E_REPLAY);
    carrier_stop(&server);
    stop_listening(&ear);
    broker_kit_free(broker);
}

/* A repeat by the device itself, on a loaded machine, may be handled anew; those of others never are. */
static void messages_that_come_again_and_in_disorder_change_nothing(void **state) {
    (void)state;
    enum { REQUESTS = 40 };
    broker_kit *broker = start_broker();
    carrier_server server;
    eavesdropper ear;
    listen_in(&ear, broker);
    ear.repeats = 1;
    start(&server, broker);
    sheaf_link *link = open_link(broker, NULL);
    for (unsigned i = 0; i < REQUESTS; i++) carrier_round_trip(mqtt, link, 1000, i);
    assert_in_range(server.requests, REQUESTS, REQUESTS + REQUESTS / 2);
    assert_true(heard(&ear) >= 2 * REQUESTS);
    mqtt->close(link);
    carrier_stop(&server);
    stop_listening(&ear);
    broker_kit_free(broker);
}

static void a_request_of_an_unknown_session_is_told_so(void **state) {
    (void)state;
    static const uint8_t stray[100] = {'S', 'h', 'm', SHEAF_ENVELOPE_VERSION, SHEAF_ENVELOPE_DATA, 1, 2, 3};
    broker_kit *broker = start_broker();
    carrier_server server;
    eavesdropper ear;
    listen_in(&ear, broker);
    start(&server, broker);
    sheaf_link *link = open_link(broker, NULL);
    carrier_round_trip(mqtt, link, 10, 1);
    unsigned before = heard(&ear);
    say(&ear, stray, sizeof stray);
    assert_true(hears_reject(&ear, before, SHEAF_E_NOT_FOUND));
    carrier_round_trip(mqtt, link, 10, 2); /* the session of the device is another, and stands */
    assert_int_equal(server.requests, 2);
    mqtt->close(link);
    carrier_stop(&server);
    stop_listening(&ear);
    broker_kit_free(broker);
}

/* Of those after `from` that went down and are of `kind`; waits until there are `wanted`. */
static unsigned count_down(eavesdropper *ear, unsigned from, sheaf_envelope_kind kind, unsigned wanted,
                           const recorded *found[]) {
    unsigned count = 0;
    for (uint64_t until = carrier_now_ms() + PATIENCE_MS; carrier_now_ms() < until && count < wanted;) {
        carrier_sleep_ms(10);
        count = 0;
        pthread_mutex_lock(&ear->lock);
        for (unsigned i = from; i < ear->count && count < wanted; i++) {
            sheaf_envelope_head head;
            sheaf_span message = sheaf_span_of(ear->messages[i].data, ear->messages[i].size);
            if (ear->messages[i].is_up || sheaf_envelope_read_head(message, &head) != SHEAF_OK) continue;
            if (head.kind == kind) found[count++] = &ear->messages[i];
        }
        pthread_mutex_unlock(&ear->lock);
    }
    return count;
}

static void an_open_that_comes_again_gets_the_same_challenge_again(void **state) {
    (void)state;
    enum { TIMES = 10 };
    static const uint8_t first[24] = {'S', 'h', 'm', SHEAF_ENVELOPE_VERSION, SHEAF_ENVELOPE_OPEN, 1, [21] = 1, 0x20};
    uint8_t second[sizeof first];
    const recorded *found[TIMES + 1];
    sheaf_server_report report;
    broker_kit *broker = start_broker();
    carrier_server server;
    eavesdropper ear;
    memcpy(second, first, sizeof second);
    second[5] = 2; /* another session's */
    listen_in(&ear, broker);
    start(&server, broker);
    wait_ready(&server, 1);
    for (unsigned i = 0; i < TIMES; i++) say(&ear, first, sizeof first);
    say(&ear, second, sizeof second);
    assert_int_equal(count_down(&ear, 0, SHEAF_ENVELOPE_CHALLENGE, TIMES + 1, found), TIMES + 1);
    for (unsigned i = 1; i < TIMES; i++) {
        assert_int_equal(found[i]->size, found[0]->size);
        assert_memory_equal(found[i]->data, found[0]->data, found[0]->size);
    }
    assert_memory_not_equal(found[TIMES]->data, found[0]->data, found[0]->size < 60 ? found[0]->size : 60);
    mqtt->look(server.server, &report);
    assert_int_equal(report.strangers, 2);
    assert_int_equal(carrier_rejects(&server), 0);
    carrier_stop(&server);
    stop_listening(&ear);
    broker_kit_free(broker);
}

static void a_broker_that_is_killed_costs_time_only(void **state) {
    (void)state;
    broker_kit *broker = start_broker();
    carrier_server server;
    start(&server, broker);
    sheaf_link *link = open_link(broker, NULL);
    for (unsigned turn = 0; turn < 3; turn++) {
        ask_until_answered(link);
        wait_ready(&server, 1);
        assert_int_equal(mqtt->send(link, sheaf_span_of("abc", 3)), SHEAF_OK);
        broker_kit_kill(broker);
        wait_ready(&server, 0);
        broker_kit_restart(broker);
        mqtt->cancel(link);
    }
    ask_until_answered(link);
    mqtt->close(link);
    carrier_stop(&server);
    broker_kit_free(broker);
}

static void a_broker_that_stands_still_for_three_seconds_loses_nothing(void **state) {
    (void)state;
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    broker_kit *broker = start_broker();
    carrier_server server;
    start(&server, broker);
    sheaf_link *link = open_link(broker, NULL);
    ask_until_answered(link);
    broker_kit_pause(broker);
    assert_int_equal(mqtt->send(link, sheaf_span_of("abc", 3)), SHEAF_OK);
    carrier_sleep_ms(3000);
    broker_kit_resume(broker);
    assert_int_equal(carrier_poll(mqtt, link, &answer, NULL), SHEAF_OK);
    assert_memory_equal(answer.data, "cba", 3);
    mqtt->close(link);
    carrier_stop(&server);
    broker_kit_free(broker);
}

/* A broker that dies in its handshakes: reads the beginning of one, and resets the connection. */
typedef struct {
    int listener;
    atomic_uint seen;
} dying_broker;

static void *die_again(void *context) {
    dying_broker *broker = context;
    const struct linger reset = {1, 0};
    uint8_t waste[64];
    for (int fd; (fd = accept(broker->listener, NULL, NULL)) >= 0; atomic_fetch_add(&broker->seen, 1)) {
        (void)!recv(fd, waste, sizeof waste, 0);
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        (void)close(fd);
    }
    return NULL;
}

static unsigned start_dying(dying_broker *broker, pthread_t *thread) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    broker->listener = socket(AF_INET, SOCK_STREAM, 0);
    atomic_init(&broker->seen, 0);
    assert_int_equal(bind(broker->listener, (const struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(broker->listener, 16), 0);
    assert_int_equal(getsockname(broker->listener, (struct sockaddr *)&at, &size), 0);
    assert_int_equal(pthread_create(thread, NULL, die_again, broker), 0);
    return ntohs(at.sin_port);
}

static void a_broker_that_dies_in_a_handshake_is_noticed_at_once(void **state) {
    (void)state;
    enum { TIMES = 40 };
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    dying_broker broker;
    pthread_t thread;
    char url[64];
    (void)snprintf(url, sizeof url, "mqtts://127.0.0.1:%u", start_dying(&broker, &thread));
    for (unsigned i = 0; i < TIMES; i++) {
        sheaf_problem problem = {SHEAF_OK, ""};
        sheaf_transport_options options = carrier_options(url, device);
        sheaf_link *link = NULL;
        options.handshake_ms = 60000;
        assert_int_equal(mqtt->open_link(&options, &link, NULL), SHEAF_OK);
        sheaf_status status = carrier_ask(mqtt, link, sheaf_span_of("abc", 3), &answer, &problem);
        if (status != SHEAF_E_NETWORK) fail_msg("at time %u: %s", i, sheaf_status_name(status));
        mqtt->close(link);
    }
    assert_true(atomic_load(&broker.seen) >= TIMES);
    (void)shutdown(broker.listener, SHUT_RDWR);
    (void)pthread_join(thread, NULL);
    (void)close(broker.listener);
}

static void without_rights_on_its_topic_a_device_fails_and_says_so(void **state) {
    (void)state;
    uint8_t bytes[16];
    sheaf_buffer answer = {bytes, 0, sizeof bytes};
    sheaf_problem problem = {SHEAF_OK, ""};
    broker_kit *broker = start_broker();
    carrier_server server;
    start(&server, broker);
    sheaf_link *link = open_link(broker, "elsewhere");
    assert_int_equal(carrier_ask(mqtt, link, sheaf_span_of("abc", 3), &answer, &problem), SHEAF_E_NETWORK);
    assert_non_null(strstr(problem.text, "no aggregator answers through this broker"));
    assert_int_equal(server.requests, 0);
    mqtt->close(link);
    carrier_stop(&server);
    broker_kit_free(broker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recording_said_again_reaches_no_handler),
        cmocka_unit_test(messages_that_come_again_and_in_disorder_change_nothing),
        cmocka_unit_test(a_request_of_an_unknown_session_is_told_so),
        cmocka_unit_test(an_open_that_comes_again_gets_the_same_challenge_again),
        cmocka_unit_test(a_broker_that_is_killed_costs_time_only),
        cmocka_unit_test(a_broker_that_stands_still_for_three_seconds_loses_nothing),
        cmocka_unit_test(a_broker_that_dies_in_a_handshake_is_noticed_at_once),
        cmocka_unit_test(without_rights_on_its_topic_a_device_fails_and_says_so),
    };
    return cmocka_run_group_tests(tests, make_kit, free_kit);
}
