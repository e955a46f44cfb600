/* Both ends and the link between them die at every step of the protocol, before the request has arrived and after: the
 * job ends with the model of the undisturbed one, and every update is counted once.
 *
 * Over the in-process carrier the aggregator is stopped and started again; over NNG it is a sheafd of its own that is
 * killed with SIGKILL. test_broker_steps.c has the same over MQTT. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/cmocka.h"
#include "tests/kit/protocol_steps.h"

static void over_inproc(const steps_victim *victim) {
    const steps_trial trial = {.victim = victim};
    steps_try_all(&trial);
}

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static void over_nng(const steps_victim *victim) {
    char address[64];
    (void)snprintf(address, sizeof address, "tls+tcp://127.0.0.1:%d", free_port());
    const steps_trial trial = {
        .victim = victim, .carrier = &sheaf_transport_nng, .address = address, .program = SHEAFD_PROGRAM};
    steps_try_all(&trial);
}

static void the_aggregator_dies_without_carrier(void **state) {
    (void)state;
    over_inproc(&steps_aggregator);
}
static void a_device_dies_without_carrier(void **state) {
    (void)state;
    over_inproc(&steps_device);
}
static void the_link_dies_without_carrier(void **state) {
    (void)state;
    over_inproc(&steps_link);
}
static void the_aggregator_dies_over_nng(void **state) {
    (void)state;
    over_nng(&steps_aggregator);
}
static void a_device_dies_over_nng(void **state) {
    (void)state;
    over_nng(&steps_device);
}
static void the_link_dies_over_nng(void **state) {
    (void)state;
    over_nng(&steps_link);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_aggregator_dies_without_carrier),
        cmocka_unit_test(a_device_dies_without_carrier),
        cmocka_unit_test(the_link_dies_without_carrier),
        cmocka_unit_test(the_aggregator_dies_over_nng),
        cmocka_unit_test(a_device_dies_over_nng),
        cmocka_unit_test(the_link_dies_over_nng),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
