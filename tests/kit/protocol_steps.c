#include "tests/kit/protocol_steps.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/cmocka.h"

#define DEVICES    2u
#define VALUES     3000u /* 12,000 bytes: twelve chunks of 1 KiB */
#define PART_BYTES 1024u
#define SECONDS    60u
/* For a cast one waits as long as in real life, or on a busy machine devices would ask for the parts instead. */
#define CAST_HASTE 1u

typedef enum { FIRST, MIDDLE, LAST } place;

typedef struct {
    const char *name;
    pb_size_t tag; /* of the request; of a cast's part: of the reply */
    place at;
} step;

static const step requests[] = {
    {"hello", sheaf_v1_Request_hello_tag, FIRST},         {"round", sheaf_v1_Request_round_tag, FIRST},
    {"first part", sheaf_v1_Request_model_tag, FIRST},    {"middle part", sheaf_v1_Request_model_tag, MIDDLE},
    {"last part", sheaf_v1_Request_model_tag, LAST},      {"progress", sheaf_v1_Request_progress_tag, FIRST},
    {"offer", sheaf_v1_Request_offer_tag, FIRST},         {"first chunk", sheaf_v1_Request_chunk_tag, FIRST},
    {"middle chunk", sheaf_v1_Request_chunk_tag, MIDDLE}, {"last chunk", sheaf_v1_Request_chunk_tag, LAST},
    {"next round", sheaf_v1_Request_round_tag, LAST},
};
static const step parts[] = {
    {"first cast part", sheaf_v1_Reply_model_tag, FIRST},
    {"middle cast part", sheaf_v1_Reply_model_tag, MIDDLE},
    {"last cast part", sheaf_v1_Reply_model_tag, LAST},
};

typedef struct {
    const step *step;
    int arrives;      /* the frame does; a request is answered then, and the answer is lost */
    int fired, muted; /* it was sent; answers that were lost */
    core_fleet *fleet;
} plan;

static int is_place(place wanted, uint64_t offset) {
    uint64_t all = (4 * VALUES + PART_BYTES - 1) / PART_BYTES, part = offset / PART_BYTES;
    return part == (wanted == FIRST ? 0 : wanted == MIDDLE ? all / 2 : all - 1);
}

static int is_step(const plan *p, const sheaf_v1_Request *request) {
    place at = p->step->at;
    if (request->which_body != p->step->tag) return 0;
    if (request->which_body == sheaf_v1_Request_model_tag) return is_place(at, request->body.model.offset);
    if (request->which_body == sheaf_v1_Request_chunk_tag) return is_place(at, request->body.chunk.offset);
    return at == FIRST || p->fleet->device[0].receipts > 0;
}

static int watch_request(void *context, sheaf_span frame) {
    plan *p = context;
    sheaf_v1_Request request;
    sheaf_span payload;
    assert_int_equal(sheaf_frame_decode_request(frame, &request, &payload), SHEAF_OK);
    if (p->fired) return p->arrives; /* a window may hold more than one request */
    p->fired = is_step(p, &request);
    return !p->fired || p->arrives;
}

static int mute_answers(void *context, sheaf_span frame) {
    plan *p = context;
    (void)frame;
    p->muted += p->fired;
    return !p->fired;
}

static int watch_cast(void *context, sheaf_span frame) {
    plan *p = context;
    sheaf_v1_Reply reply;
    sheaf_span payload;
    assert_int_equal(sheaf_frame_decode_reply(frame, &reply, &payload), SHEAF_OK);
    if (p->fired) return p->arrives;
    if (reply.which_body == sheaf_v1_Reply_cast_tag) core_fleet_haste(p->fleet, CAST_HASTE);
    p->fired = reply.which_body == p->step->tag && is_place(p->step->at, reply.body.model.offset);
    return !p->fired || p->arrives;
}

static void aggregator_dies(core_fleet *fleet) { service_kit_restart(&fleet->kit); }
static void device_dies(core_fleet *fleet) {
    lossy_link_break(&fleet->device[0].link);
    core_fleet_restart_device(&fleet->device[0]);
}
static void broker_dies(core_fleet *fleet) { broker_kit_restart(fleet->kit.broker); }
static void link_dies(core_fleet *fleet) { lossy_link_break(&fleet->device[0].link); }

const steps_victim steps_aggregator = {"aggregator", aggregator_dies};
const steps_victim steps_device = {"device", device_dies};
const steps_victim steps_broker = {"broker", broker_dies};
const steps_victim steps_link = {"link", link_dies};

static uint64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* Until the step is there; and, where an answer is to be lost, until one was. */
static void reach(core_fleet *fleet, plan *p, int answers) {
    lossy_link *link = &fleet->device[0].link;
    uint64_t until = now_ms() + SECONDS * 1000u;
    p->fleet = fleet;
    link->watch = answers ? watch_request : NULL;
    link->hear = !answers ? watch_cast : p->arrives ? mute_answers : NULL;
    link->watch_context = p;
    while (now_ms() < until && (!p->fired || (answers && p->arrives && p->muted == 0)) && core_fleet_step(fleet))
        continue;
    assert_int_equal(p->fired, 1);
    if (answers && p->arrives) assert_true(p->muted > 0);
}

/* The job, with at most one death. */
static void run_job(const steps_trial *trial, plan *p, uint8_t digest[SHEAF_DIGEST_BYTES]) {
    static core_fleet fleet;
    const core_fleet_options options = {.devices = DEVICES,
                                        .rounds = 1,
                                        .values = VALUES,
                                        .seed = 1,
                                        .odds = {.lanes = 1, .casts = trial->casts},
                                        .carrier = trial->carrier,
                                        .address = trial->address,
                                        .program = trial->program};
    core_fleet_open(&fleet, &options);
    for (unsigned i = 0; i < DEVICES; i++) fleet.device[i].world.slice_count = 30; /* long enough for a report */
    if (p != NULL) {
        reach(&fleet, p, !trial->casts);
        trial->victim->die(&fleet);
        fleet.device[0].link.watch = fleet.device[0].link.hear = NULL;
        core_fleet_haste(&fleet, CORE_FLEET_HASTE);
    }
    assert_int_equal(core_fleet_run(&fleet, SECONDS), 1);
    assert_int_equal(core_fleet_counted(&fleet, digest), 1);
    assert_int_equal(fleet.device[0].receipts, 1);
    assert_string_equal(sheaf_status_name(fleet.device[0].refusal), "ok");
    core_fleet_close(&fleet);
}

static void try_one(const steps_trial *trial, plan *p, const uint8_t expected[SHEAF_DIGEST_BYTES]) {
    const char *carrier = trial->carrier == NULL ? "inproc" : trial->carrier->name;
    uint8_t found[SHEAF_DIGEST_BYTES];
    uint64_t began = now_ms();
    run_job(trial, p, found);
    assert_memory_equal(found, expected, sizeof found);
    const char *what = trial->casts ? (p->arrives ? "taken" : "lost") : p->arrives ? "answer lost" : "request lost";
    print_message("    %-6s  %-10s dies at %-16s  %s: same model, %4llu ms\n", carrier, trial->victim->name,
                  p->step->name, what, (unsigned long long)(now_ms() - began));
}

void steps_try_all(const steps_trial *trial) {
    static const steps_trial calm = {.victim = NULL};
    const step *steps = trial->casts ? parts : requests;
    size_t count = trial->casts ? sizeof parts / sizeof parts[0] : sizeof requests / sizeof requests[0];
    uint8_t expected[SHEAF_DIGEST_BYTES];
    run_job(&calm, NULL, expected);
    for (size_t i = 0; i < count; i++) {
        for (int arrives = 0; arrives < 2; arrives++) {
            plan p = {.step = &steps[i], .arrives = arrives};
            try_one(trial, &p, expected);
        }
    }
}
