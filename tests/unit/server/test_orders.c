/* An operator pauses, resumes and cancels a job, over the socket, while devices are at work. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/kit/service_kit.h"

static const char two_devices[] = "    rounds: 1\n    cohort: {minimum: 2, target: 2, maximum: 8}\n";

/* The HTTP status of the answer to POST /v1/jobs/acme/job/WHAT. */
static int order(const service_kit *kit, const char *what) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[2048] = "", request[256];
    assert_true(snprintf(address.sun_path, sizeof address.sun_path, "%s/operator.sock", kit->state) <
                (int)sizeof address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), size = 0;
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    int length = snprintf(request, sizeof request, "POST /v1/jobs/acme/job/%s HTTP/1.1\r\nHost: x\r\n\r\n", what);
    assert_int_equal(write(fd, request, (size_t)length), length);
    for (ssize_t got; (got = read(fd, text + size, sizeof text - 1 - (size_t)size)) > 0;) size += (int)got;
    close(fd);
    assert_int_equal(strncmp(text, "HTTP/1.1 ", 9), 0);
    return (int)strtol(text + 9, NULL, 10);
}

static long long paused(const service_kit *kit) { return service_kit_query(kit, "SELECT paused FROM jobs"); }

static void who_is_in_a_paused_round_may_finish_and_nobody_else_comes_in(void **state) {
    (void)state;
    service_kit kit = {0};
    update u;
    float model[4];
    service_kit_start(&kit, two_devices);
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b"), *late = device_make(&kit, "late");
    assert_true(device_await_round(a) && device_await_round(b));
    assert_int_equal(order(&kit, "pause"), 200);
    assert_int_equal(paused(&kit), 1);
    assert_int_equal(device_ask_round(late, 0), sheaf_v1_Reply_wait_tag);
    assert_int_equal(device_told(late), SHEAF_E_PAUSED);
    assert_true(late->reply.body.wait.retry_ms > 0);
    device_update(a, 0.5f, 1, &u);
    assert_int_equal(device_send(a, &u), sheaf_v1_Reply_receipt_tag);
    device_update(b, 1.5f, 1, &u);
    assert_int_equal(device_send(b, &u), sheaf_v1_Reply_receipt_tag);
    assert_int_equal(device_ask_round(a, 0), sheaf_v1_Reply_wait_tag);
    assert_int_equal(device_told(a), SHEAF_E_PAUSED);
    usleep(300000); /* the target is reached, and yet nothing is reduced */
    assert_int_equal(service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 1"), 0);
    assert_int_equal(order(&kit, "resume"), 200);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    service_kit_model(&kit, model);
    for (int i = 0; i < 4; i++) assert_true(model[i] == (float)(i + 1) + 1.0f); /* mean of 0.5 and 1.5 */
    device_free(a);
    device_free(b);
    device_free(late);
    service_kit_stop(&kit);
}

static void an_offer_of_who_was_not_admitted_waits(void **state) {
    (void)state;
    service_kit kit = {0};
    update u;
    service_kit_start(&kit, two_devices);
    device *a = device_make(&kit, "a");
    assert_true(device_await_round(a));
    device_update(a, 1, 1, &u);
    service_kit_restart(&kit); /* which forgets who was admitted */
    assert_int_equal(order(&kit, "pause"), 200);
    device *again = device_twin(a);
    assert_int_equal(device_offer(again, &u), sheaf_v1_Reply_wait_tag);
    assert_int_equal(device_told(again), SHEAF_E_PAUSED);
    assert_int_equal(order(&kit, "resume"), 200);
    assert_int_equal(device_send(again, &u), sheaf_v1_Reply_receipt_tag);
    device_free(again);
    device_free(a);
    service_kit_stop(&kit);
}

static void deadlines_stand_still(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 2, target: 2, maximum: 8}\n    progress_s: 1\n"
                            "    deadline_s: 2\n    attempts_max: 1\n");
    device *a = device_make(&kit, "a");
    assert_true(device_await_round(a));
    assert_int_equal(order(&kit, "pause"), 200);
    sleep(3);
    assert_int_equal(service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 2"), 0);
    assert_int_equal(order(&kit, "resume"), 200);
    assert_int_equal(service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 2"), 0);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_E_NO_WEIGHT); /* one second of silence later */
    device_free(a);
    service_kit_stop(&kit);
}

static void a_pause_outlives_a_restart(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, two_devices);
    assert_int_equal(order(&kit, "pause"), 200);
    assert_int_equal(order(&kit, "pause"), 200);
    service_kit_restart(&kit);
    device *a = device_make(&kit, "a");
    assert_int_equal(device_ask_round(a, 0), sheaf_v1_Reply_wait_tag);
    assert_int_equal(device_told(a), SHEAF_E_PAUSED);
    assert_int_equal(order(&kit, "resume"), 200);
    assert_int_equal(order(&kit, "resume"), 200);
    assert_int_equal(paused(&kit), 0);
    assert_true(device_await_round(a));
    device_free(a);
    service_kit_stop(&kit);
}

static void a_cancelled_job_tells_its_devices_and_stays_cancelled(void **state) {
    (void)state;
    service_kit kit = {0};
    update u;
    service_kit_start(&kit, two_devices);
    device *a = device_make(&kit, "a");
    assert_true(device_await_round(a));
    device_update(a, 1, 1, &u);
    assert_int_equal(device_send(a, &u), sheaf_v1_Reply_receipt_tag);
    assert_int_equal(order(&kit, "cancel"), 200);
    assert_int_equal(order(&kit, "cancel"), 200);
    assert_int_equal(order(&kit, "pause"), 409);
    for (int restarted = 0; restarted < 2; restarted++) {
        assert_int_equal(service_kit_wait_end(&kit), SHEAF_E_CANCELLED);
        assert_int_equal(device_ask_round(a, 0), sheaf_v1_Reply_end_tag);
        assert_int_equal(a->reply.body.end.status, SHEAF_E_CANCELLED);
        assert_int_equal(a->reply.body.end.rounds, 0);
        device_free(a);
        if (!restarted) service_kit_restart(&kit);
        a = device_make(&kit, "a");
    }
    assert_int_equal(service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 2 AND reason = 153"), 1);
    assert_int_equal(service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 0"), 0);
    device_free(a);
    service_kit_stop(&kit);
}

static void an_ended_job_takes_no_orders(void **state) {
    (void)state;
    service_kit kit = {0};
    update u;
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 1, maximum: 8}\n");
    device *a = device_make(&kit, "a");
    assert_true(device_await_round(a));
    device_update(a, 1, 1, &u);
    assert_int_equal(device_send(a, &u), sheaf_v1_Reply_receipt_tag);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    static const char *const orders[] = {"pause", "resume", "cancel"};
    for (int i = 0; i < 3; i++) assert_int_equal(order(&kit, orders[i]), 409);
    assert_int_equal(service_kit_query(&kit, "SELECT ended FROM jobs"), SHEAF_OK);
    device_free(a);
    service_kit_stop(&kit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_in_a_paused_round_may_finish_and_nobody_else_comes_in),
        cmocka_unit_test(an_offer_of_who_was_not_admitted_waits),
        cmocka_unit_test(deadlines_stand_still),
        cmocka_unit_test(a_pause_outlives_a_restart),
        cmocka_unit_test(a_cancelled_job_tells_its_devices_and_stays_cancelled),
        cmocka_unit_test(an_ended_job_takes_no_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
