/* Fills the core's ports: a carrier's link, CLOCK_MONOTONIC, getrandom, a key and a certificate in files, SHA-256 of
 * OpenSSL, and a state folder. */
#include "sheaf/edge_posix.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#include "client/port/posix/line.h"
#include "client/port/posix/slots.h"
#include "common/digest.h"

#define CHUNK_BYTES (256u * 1024u)
#define WORK_VALUES 16384u
#define NAP_MOST_MS 1000u

struct sheaf_edge_device {
    sheaf_edge edge;
    sheaf_line line;
    sheaf_digest digest;
    sheaf_slots slots;
    char tenant[SHEAF_NAME_BYTES], job[SHEAF_NAME_BYTES], client[SHEAF_NAME_BYTES];
    uint8_t *frame;
    float *work;
};

/* ---- clock, random, digest ---- */

static uint64_t now_ms(void *context) {
    (void)context;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static sheaf_status fill(uint8_t *out, size_t size, void *context) {
    (void)context;
    return getrandom(out, size, 0) == (ssize_t)size ? SHEAF_OK : SHEAF_E_CRYPTO;
}

static sheaf_status digest_begin(void *context) {
    sheaf_edge_device *device = context;
    sheaf_digest_drop(&device->digest);
    return sheaf_digest_begin(&device->digest);
}
static sheaf_status digest_update(const uint8_t *data, size_t size, void *context) {
    return sheaf_digest_update(&((sheaf_edge_device *)context)->digest, sheaf_span_of(data, size));
}
static sheaf_status digest_finish(uint8_t out[SHEAF_EDGE_DIGEST_BYTES], void *context) {
    return sheaf_digest_finish(&((sheaf_edge_device *)context)->digest, out);
}

/* ---- open and close ---- */

static sheaf_status copy_name(char out[SHEAF_NAME_BYTES], const char *what, const char *name, sheaf_problem *problem) {
    if (name == NULL || !sheaf_name_ok(name)) {
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%s: \"%s\" is not a usable name", what,
                                 name == NULL ? "" : name);
    }
    memcpy(out, name, strlen(name) + 1);
    return SHEAF_OK;
}

static sheaf_status copy_names(sheaf_edge_device *device, const sheaf_edge_device_options *options,
                               sheaf_problem *problem) {
    const sheaf_identity *own = sheaf_certificate_identity(device->line.pair.certificate);
    const char *tenant = own->tenant;
    memcpy(device->client, own->name, sizeof device->client);
    if (options->tenant != NULL && strcmp(options->tenant, tenant) != 0) {
        return sheaf_problem_set(problem, SHEAF_E_IDENTITY,
                                 "tenant: \"%s\", but the certificate belongs to tenant \"%s\"", options->tenant,
                                 tenant);
    }
    sheaf_status status = copy_name(device->tenant, "tenant", tenant, problem);
    return status == SHEAF_OK ? copy_name(device->job, "job", options->job, problem) : status;
}

static sheaf_edge_options core_options(sheaf_edge_device *device, const sheaf_edge_device_options *options,
                                       size_t frame_bytes) {
    sheaf_edge_options core = {
        .tenant = device->tenant,
        .job = device->job,
        .client = device->client,
        .trainer = options->trainer,
        .transport = sheaf_line_transport(&device->line),
        .clock = {now_ms, device},
        .random = {fill, device},
        .signer = sheaf_line_signer(&device->line),
        .digest = {digest_begin, digest_update, digest_finish, device},
        .storage = sheaf_slots_storage(&device->slots),
        .frame = device->frame,
        .frame_bytes = frame_bytes,
        .work = device->work,
        .work_values = WORK_VALUES,
        .window = device->line.options.window,
        .reply_ms = options->reply_ms,
        .on_event = options->on_event,
        .event_context = options->event_context,
    };
    return core;
}

static sheaf_status start_core(sheaf_edge_device *device, const sheaf_edge_device_options *options, size_t frame_bytes,
                               sheaf_problem *problem) {
    device->frame = malloc(frame_bytes);
    device->work = malloc(WORK_VALUES * sizeof(float));
    if (device->frame == NULL || device->work == NULL) {
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for buffers of %zu bytes", frame_bytes);
    }
    sheaf_edge_options core = core_options(device, options, frame_bytes);
    sheaf_status status = sheaf_edge_init(&device->edge, &core);
    if (status == SHEAF_E_MISMATCH) {
        return sheaf_problem_set(problem, status, "%s: holds the state of another tenant, job or client",
                                 options->state_folder);
    }
    if (status == SHEAF_E_USAGE) return sheaf_problem_set(problem, status, "the trainer lacks a function");
    if (status != SHEAF_OK) {
        return sheaf_problem_set(problem, status, "%s: cannot be read: %s", options->state_folder,
                                 device->slots.problem.text);
    }
    return status;
}

static sheaf_status check_options(const sheaf_edge_device_options *options, uint32_t chunk_bytes,
                                  sheaf_problem *problem) {
    const char *required[] = {options->url,     options->certificate_path, options->key_path,
                              options->ca_path, options->state_folder,     options->job};
    static const char *const what[] = {"url", "certificate", "key", "ca", "state folder", "job"};
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
        if (required[i] == NULL) return sheaf_problem_set(problem, SHEAF_E_USAGE, "%s: missing", what[i]);
    }
    if (chunk_bytes >= SHEAF_EDGE_CHUNK_BYTES_MIN && chunk_bytes <= 64u << 20) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_USAGE, "chunk_bytes: %u; expected %u to 64 MiB", chunk_bytes,
                             SHEAF_EDGE_CHUNK_BYTES_MIN);
}

static sheaf_status open_device(sheaf_edge_device *device, const sheaf_edge_device_options *options,
                                sheaf_problem *problem) {
    uint32_t chunk_bytes = options->chunk_bytes != 0 ? options->chunk_bytes : CHUNK_BYTES;
    size_t frame_bytes = SHEAF_EDGE_FRAME_BYTES(chunk_bytes);
    sheaf_status status = check_options(options, chunk_bytes, problem);
    if (status == SHEAF_OK) status = sheaf_line_open(&device->line, options, frame_bytes, problem);
    if (status == SHEAF_OK) status = copy_names(device, options, problem);
    if (status == SHEAF_OK) status = sheaf_slots_open(&device->slots, options->state_folder, problem);
    if (status == SHEAF_OK) status = start_core(device, options, frame_bytes, problem);
    return status;
}

sheaf_status sheaf_edge_device_open(const sheaf_edge_device_options *options, sheaf_edge_device **out, char *reason) {
    *out = NULL;
    if (reason != NULL) reason[0] = '\0';
    sheaf_edge_device *device = calloc(1, sizeof *device);
    if (device == NULL) return SHEAF_E_MEMORY;
    device->slots.lock = -1;
    for (size_t i = 0; i < SHEAF_EDGE_SLOTS; i++) {
        device->slots.slots[i].content = -1;
        device->slots.slots[i].draft = -1;
    }
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = open_device(device, options, &problem);
    if (status == SHEAF_OK) {
        *out = device;
        return SHEAF_OK;
    }
    if (reason != NULL) (void)snprintf(reason, SHEAF_EDGE_REASON_BYTES, "%s", problem.text);
    sheaf_edge_device_close(device);
    return status;
}

void sheaf_edge_device_close(sheaf_edge_device *device) {
    if (device == NULL) return;
    sheaf_edge_fini(&device->edge);
    sheaf_line_close(&device->line);
    sheaf_slots_close(&device->slots);
    sheaf_digest_drop(&device->digest);
    free(device->frame);
    free(device->work);
    free(device);
}

/* ---- running ---- */

sheaf_status sheaf_edge_device_poll(sheaf_edge_device *device, uint32_t *wait_ms) {
    sheaf_line_poll(&device->line, now_ms(NULL));
    return sheaf_edge_poll(&device->edge, wait_ms);
}

/* A signal that asks for a stop cuts the nap short; one that comes just before it costs at most the nap. */
static void nap(uint32_t ms) {
    if (ms > NAP_MOST_MS) ms = NAP_MOST_MS;
    struct timespec pause = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000L};
    (void)nanosleep(&pause, NULL);
}

sheaf_status sheaf_edge_device_run(sheaf_edge_device *device) {
    for (;;) {
        uint32_t wait_ms;
        sheaf_status status = sheaf_edge_device_poll(device, &wait_ms);
        if (status == SHEAF_AGAIN)
            nap(wait_ms);
        else if (status != SHEAF_OK)
            return status;
    }
}

void sheaf_edge_device_request_stop(sheaf_edge_device *device) { sheaf_edge_request_stop(&device->edge); }
sheaf_edge_state sheaf_edge_device_state(const sheaf_edge_device *device) { return sheaf_edge_state_of(&device->edge); }
const char *sheaf_edge_device_client(const sheaf_edge_device *device) { return device->client; }
const char *sheaf_edge_device_tenant(const sheaf_edge_device *device) { return device->tenant; }
const char *sheaf_edge_device_link_reason(const sheaf_edge_device *device) { return device->line.problem.text; }
