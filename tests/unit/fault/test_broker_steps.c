/* Over MQTT, past a real Mosquitto: the aggregator (a sheafd of its own), a device and the broker die at every step of the
 * protocol, and at parts of a cast; the aggregator and the broker by SIGKILL. The job ends with the model of the
 * undisturbed one, and every update is counted once. */
#include "tests/cmocka.h"
#include "tests/kit/protocol_steps.h"

static void over_mqtt(const steps_victim *victim, int casts) {
    const steps_trial trial = {.victim = victim,
                               .carrier = &sheaf_transport_mqtt,
                               .address = "mqtts://",
                               .program = SHEAFD_PROGRAM,
                               .casts = casts};
    steps_try_all(&trial);
}

static void the_aggregator_dies(void **state) {
    (void)state;
    over_mqtt(&steps_aggregator, 0);
}
static void a_device_dies(void **state) {
    (void)state;
    over_mqtt(&steps_device, 0);
}
static void the_broker_dies(void **state) {
    (void)state;
    over_mqtt(&steps_broker, 0);
}
static void the_aggregator_dies_in_a_cast(void **state) {
    (void)state;
    over_mqtt(&steps_aggregator, 1);
}
static void a_device_dies_in_a_cast(void **state) {
    (void)state;
    over_mqtt(&steps_device, 1);
}
static void the_broker_dies_in_a_cast(void **state) {
    (void)state;
    over_mqtt(&steps_broker, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_aggregator_dies),     cmocka_unit_test(a_device_dies),
        cmocka_unit_test(the_broker_dies),         cmocka_unit_test(the_aggregator_dies_in_a_cast),
        cmocka_unit_test(a_device_dies_in_a_cast), cmocka_unit_test(the_broker_dies_in_a_cast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
