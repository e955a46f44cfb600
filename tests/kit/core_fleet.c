#include "tests/kit/core_fleet.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void need(int ok, const char *what, const char *detail) {
    if (ok) return;
    fprintf(stderr, "core_fleet: %s: %s\n", what, detail);
    abort();
}

static uint64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* ---- a device's ports that edge_world does not fill for a real service ---- */

static sheaf_status own_fingerprint(uint8_t out[SHEAF_DIGEST_BYTES], void *context) {
    memcpy(out, ((core_device *)context)->fingerprint, SHEAF_DIGEST_BYTES);
    return SHEAF_OK;
}

static sheaf_status sign(const uint8_t *message, size_t message_size, uint8_t *signature, size_t *size, void *context) {
    sheaf_buffer out = {signature, 0, *size};
    sheaf_status status =
        sheaf_signer_sign(((core_device *)context)->signer, sheaf_span_of(message, message_size), &out);
    *size = out.size;
    return status;
}

static sheaf_status verify_peer(const uint8_t *message, size_t message_size, const uint8_t *signature, size_t size,
                                void *context) {
    sheaf_certificate *peer = lossy_link_peer(&((core_device *)context)->link);
    if (peer == NULL) return SHEAF_E_CERTIFICATE;
    return sheaf_certificate_verify(peer, sheaf_span_of(message, message_size), sheaf_span_of(signature, size));
}

static void on_event(const sheaf_edge_event *event, void *context) {
    core_device *device = context;
    device->receipts += event->kind == SHEAF_EDGE_RECEIPT;
    /* A round statement that comes late leads to a model that is gone: that costs time, and is no refusal of an update. */
    if (event->kind == SHEAF_EDGE_REFUSED && event->status != SHEAF_E_NOT_FOUND) device->refusal = event->status;
    if (event->kind == SHEAF_EDGE_JOB_ENDED && event->digest != NULL)
        memcpy(device->model, event->digest, sizeof device->model);
}

static void open_keys(core_device *device, const pki_kit_files *files) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_certificate *certificate = NULL;
    need(sheaf_signer_open(files->key, &device->signer, &problem) == SHEAF_OK, "key", problem.text);
    need(sheaf_certificate_from_pem_file(files->certificate, &certificate, &problem) == SHEAF_OK, "certificate",
         problem.text);
    memcpy(device->fingerprint, sheaf_certificate_fingerprint(certificate), sizeof device->fingerprint);
    sheaf_certificate_unref(certificate);
}

static void open_device(core_fleet *fleet, unsigned index) {
    core_device *device = &fleet->device[index];
    (void)snprintf(device->name, sizeof device->name, "d%02u", index);
    const pki_kit_files *files = pki_kit_issue(fleet->kit.pki, "device", device->name, NULL);
    const sheaf_transport_options link = {
        .url = fleet->kit.url,
        .tls = {.certificate_path = files->certificate, .key_path = files->key, .ca_path = pki_kit_ca(fleet->kit.pki)},
        .frame_bytes_max = EDGE_WORLD_FRAME_BYTES,
        .handshake_ms = 5000,
        .exchanges_max = 1,
        .connections_max = 1};
    open_keys(device, files);
    lossy_link_open(&device->link, fleet->options.carrier, &link, fleet->options.seed * 1000 + index,
                    &fleet->options.odds);
    edge_world_open(&device->world, fleet->options.rounds);
    device->world.random = (uint32_t)fleet->options.seed * 31 + index;
    device->world.examples = 10 + index;
    sheaf_edge_options *options = &device->world.options;
    options->tenant = "acme";
    options->job = "job";
    options->client = device->name;
    options->transport = lossy_link_port(&device->link);
    options->signer = (sheaf_edge_signer){own_fingerprint, sign, verify_peer, device};
    options->reply_ms = (fleet->options.carrier == &sheaf_transport_inproc ? 25 : 250) * CORE_FLEET_HASTE;
    options->on_event = on_event;
    options->event_context = device;
    need(edge_world_start(&device->world) == SHEAF_OK, "device", device->name);
}

void core_fleet_open(core_fleet *fleet, const core_fleet_options *options) {
    char yaml[200];
    unsigned devices = options->devices;
    memset(fleet, 0, sizeof *fleet);
    need(devices <= CORE_FLEET_MOST, "devices", "too many");
    fleet->options = *options;
    if (options->carrier == NULL) fleet->options.carrier = &sheaf_transport_inproc;
    fleet->kit.values = options->values;
    fleet->kit.address = options->address;
    fleet->kit.program = options->program;
    fleet->seen_ms = now_ms();
    fleet->haste = CORE_FLEET_HASTE;
    (void)snprintf(yaml, sizeof yaml,
                   "    rounds: %" PRIu64 "\n    cohort: {minimum: %u, target: %u, maximum: %u}\n    progress_s: 600\n",
                   options->rounds, devices, devices, devices);
    service_kit_start(&fleet->kit, yaml);
    for (unsigned i = 0; i < devices; i++) open_device(fleet, i);
}

void core_fleet_close(core_fleet *fleet) {
    for (unsigned i = 0; i < fleet->options.devices; i++) {
        edge_world_close(&fleet->device[i].world);
        lossy_link_close(&fleet->device[i].link);
        sheaf_signer_free(fleet->device[i].signer);
    }
    service_kit_stop(&fleet->kit);
}

void core_fleet_restart_device(core_device *device) {
    lossy_link_cut(&device->link);
    edge_world_power_on(&device->world);
    need(edge_world_start(&device->world) == SHEAF_OK, "device", device->name);
}

static uint64_t clock_of(core_fleet *fleet) {
    uint64_t now = now_ms();
    fleet->clock_ms += (now - fleet->seen_ms) * fleet->haste;
    fleet->seen_ms = now;
    return fleet->clock_ms;
}

void core_fleet_haste(core_fleet *fleet, unsigned haste) {
    (void)clock_of(fleet);
    fleet->haste = haste;
}

static int poll_device(core_fleet *fleet, core_device *device) {
    uint32_t wait_ms = 0;
    device->world.now_ms = clock_of(fleet);
    sheaf_status status = sheaf_edge_poll(&device->world.edge, &wait_ms);
    device->ended = status == SHEAF_ENDED;
    need(status == SHEAF_OK || status == SHEAF_AGAIN || status == SHEAF_ENDED, device->name, sheaf_status_name(status));
    return status != SHEAF_AGAIN;
}

int core_fleet_step(core_fleet *fleet) {
    const struct timespec pause = {0, 200000};
    unsigned running = 0, busy = 0;
    for (unsigned i = 0; i < fleet->options.devices; i++) {
        if (fleet->device[i].ended) continue;
        running++;
        busy += (unsigned)poll_device(fleet, &fleet->device[i]);
    }
    if (running > 0 && busy == 0) nanosleep(&pause, NULL);
    return running > 0;
}

int core_fleet_run(core_fleet *fleet, unsigned seconds) {
    uint64_t until = now_ms() + seconds * 1000u;
    while (core_fleet_step(fleet)) {
        if (now_ms() > until) return 0;
    }
    return 1;
}

int core_fleet_counted(core_fleet *fleet, uint8_t digest[SHEAF_DIGEST_BYTES]) {
    long long due = (long long)(fleet->options.devices * fleet->options.rounds);
    int counted = service_kit_query(&fleet->kit, "SELECT count(*) FROM updates") == due &&
                  service_kit_query(&fleet->kit, "SELECT count(DISTINCT client || round) FROM updates") == due;
    memcpy(digest, fleet->device[0].model, SHEAF_DIGEST_BYTES);
    for (unsigned i = 0; i < fleet->options.devices; i++) {
        if (memcmp(digest, fleet->device[i].model, SHEAF_DIGEST_BYTES) != 0) counted = 0;
    }
    return counted;
}
