/* Both ends and the link between them die at every step of the protocol, before the request has arrived and after: the
 * job ends with the model of the undisturbed one, and every update is counted once.
 *
 * Over the in-process carrier the aggregator is stopped and started again; over the others it is a sheafd of its own that
 * is killed with SIGKILL. A device that dies keeps what it had committed to its storage, no more. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/cmocka.h"
#include "tests/kit/core_fleet.h"

#define DEVICES 2u
#define VALUES  3000u /* 12,000 bytes: twelve chunks of 1 KiB */
#define SECONDS 60u

typedef enum { FIRST, MIDDLE, LAST } place;

static const struct {
    const char *name;
    pb_size_t tag;
    place at;
} steps[] = {
    {"hello", sheaf_v1_Request_hello_tag, FIRST},         {"round", sheaf_v1_Request_round_tag, FIRST},
    {"first part", sheaf_v1_Request_model_tag, FIRST},    {"middle part", sheaf_v1_Request_model_tag, MIDDLE},
    {"last part", sheaf_v1_Request_model_tag, LAST},      {"progress", sheaf_v1_Request_progress_tag, FIRST},
    {"offer", sheaf_v1_Request_offer_tag, FIRST},         {"first chunk", sheaf_v1_Request_chunk_tag, FIRST},
    {"middle chunk", sheaf_v1_Request_chunk_tag, MIDDLE}, {"last chunk", sheaf_v1_Request_chunk_tag, LAST},
    {"next round", sheaf_v1_Request_round_tag, LAST},
};
#define STEPS (sizeof steps / sizeof steps[0])

typedef struct {
    size_t step;
    int arrives; /* the request does, and is answered; the answer is what gets lost */
    int fired, died;
    core_fleet *fleet;
} plan;

static int is_place(place wanted, uint64_t offset, uint64_t whole) {
    uint64_t parts = (whole + 1023) / 1024, part = offset / 1024;
    return part == (wanted == FIRST ? 0 : wanted == MIDDLE ? parts / 2 : parts - 1);
}

static int is_step(const plan *p, const sheaf_v1_Request *request) {
    place at = steps[p->step].at;
    if (request->which_body != steps[p->step].tag) return 0;
    if (request->which_body == sheaf_v1_Request_model_tag) return is_place(at, request->body.model.offset, 4 * VALUES);
    if (request->which_body == sheaf_v1_Request_chunk_tag) return is_place(at, request->body.chunk.offset, 4 * VALUES);
    return at == FIRST || p->fleet->device[0].receipts > 0;
}

static int watch(void *context, sheaf_span frame) {
    plan *p = context;
    sheaf_v1_Request request;
    sheaf_span payload;
    assert_int_equal(sheaf_frame_decode_request(frame, &request, &payload), SHEAF_OK);
    if (p->fired) return p->arrives; /* a window may hold more than one request */
    p->fired = is_step(p, &request);
    return !p->fired || p->arrives;
}

static void nap(long ms) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

typedef struct {
    const char *name;
    void (*die)(core_fleet *fleet);
} victim;

static void aggregator_dies(core_fleet *fleet) { service_kit_restart(&fleet->kit); }
static void device_dies(core_fleet *fleet) {
    lossy_link_break(&fleet->device[0].link);
    core_fleet_restart_device(&fleet->device[0]);
}
static void link_dies(core_fleet *fleet) { lossy_link_break(&fleet->device[0].link); }

static const victim victims[] = {{"aggregator", aggregator_dies}, {"device", device_dies}, {"link", link_dies}};

/* The job, with at most one death; returns the seconds. */
static void run_job(const core_fleet_options *options, plan *p, const victim *victim, uint8_t digest[32]) {
    static core_fleet fleet;
    core_fleet_open(&fleet, options);
    for (unsigned i = 0; i < DEVICES; i++) fleet.device[i].world.slice_count = 30; /* long enough for a report */
    if (p != NULL) {
        p->fleet = &fleet;
        fleet.device[0].link.watch = watch;
        fleet.device[0].link.watch_context = p;
        for (unsigned steps_left = 1000000; steps_left > 0 && !p->fired && core_fleet_step(&fleet); steps_left--)
            continue;
        assert_int_equal(p->fired, 1);
        if (p->arrives) nap(20);
        victim->die(&fleet);
        fleet.device[0].link.watch = NULL;
    }
    assert_int_equal(core_fleet_run(&fleet, SECONDS), 1);
    assert_int_equal(core_fleet_counted(&fleet, digest), 1);
    assert_int_equal(fleet.device[0].receipts, 1);
    assert_string_equal(sheaf_status_name(fleet.device[0].refusal), "ok");
    core_fleet_close(&fleet);
}

static uint64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static void try_all(const core_fleet_options *options) {
    const char *carrier = options->carrier == NULL ? "inproc" : options->carrier->name;
    uint8_t expected[SHEAF_DIGEST_BYTES], found[SHEAF_DIGEST_BYTES];
    run_job(options, NULL, NULL, expected);
    for (size_t v = 0; v < sizeof victims / sizeof victims[0]; v++) {
        for (size_t step = 0; step < STEPS; step++) {
            for (int arrives = 0; arrives < 2; arrives++) {
                plan p = {.step = step, .arrives = arrives};
                uint64_t began = now_ms();
                run_job(options, &p, &victims[v], found);
                assert_memory_equal(found, expected, sizeof found);
                print_message("    %-6s  %-10s dies at %-12s  %s lost: same model, %4llu ms\n", carrier,
                              victims[v].name, steps[step].name, arrives ? "answer " : "request",
                              (unsigned long long)(now_ms() - began));
            }
        }
    }
}

static void over_inproc(void **state) {
    (void)state;
    const core_fleet_options options = {
        .devices = DEVICES, .rounds = 1, .values = VALUES, .seed = 1, .odds = {.lanes = 1}};
    try_all(&options);
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

static void over_nng(void **state) {
    (void)state;
    char address[64];
    (void)snprintf(address, sizeof address, "tls+tcp://127.0.0.1:%d", free_port());
    const core_fleet_options options = {.devices = DEVICES,
                                        .rounds = 1,
                                        .values = VALUES,
                                        .seed = 1,
                                        .odds = {.lanes = 1},
                                        .carrier = &sheaf_transport_nng,
                                        .address = address,
                                        .program = SHEAFD_PROGRAM};
    try_all(&options);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(over_inproc), cmocka_unit_test(over_nng)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
