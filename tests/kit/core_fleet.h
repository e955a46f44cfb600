/* core_fleet.h - a real service and real cores of devices in one process, with a bad network in between.
 *
 * Trainer, storage and digest of each device are those of edge_world; certificates, signatures, frames and the
 * aggregator are real. The devices' clock runs CORE_FLEET_HASTE times as fast as ours, so that their pauses cost little.
 *
 * Owner:   the test; core_fleet_close frees all.
 * Threads: one test thread; the service has its own.
 * Units:   seconds, milliseconds.
 * Errors:  a kit that fails ends the test program with a message. */
#pragma once
#include "tests/kit/edge_world.h"
#include "tests/kit/lossy_link.h"
#include "tests/kit/service_kit.h"

#define CORE_FLEET_MOST  8u
#define CORE_FLEET_HASTE 100u

typedef struct {
    edge_world world;
    lossy_link link;
    sheaf_signer *signer;
    uint8_t fingerprint[SHEAF_DIGEST_BYTES];
    char name[16];
    uint8_t model[SHEAF_DIGEST_BYTES]; /* told at the job's end */
    unsigned receipts;                 /* events seen */
    sheaf_status refusal;              /* the last one that was about an update or the device */
    int ended;
} core_device;

typedef struct {
    unsigned devices;
    uint64_t rounds;
    uint32_t values; /* of the model */
    uint64_t seed;
    lossy_odds odds;
    const sheaf_transport *carrier; /* NULL: inproc */
    const char *address, *program;  /* as in service_kit */
} core_fleet_options;

typedef struct {
    core_fleet_options options;
    service_kit kit;
    core_device device[CORE_FLEET_MOST];
    uint64_t clock_ms, seen_ms; /* the devices' clock, and ours when it was last set */
    unsigned haste;
} core_fleet;

/* A job in which every device takes part in every round. */
void core_fleet_open(core_fleet *fleet, const core_fleet_options *options);
void core_fleet_close(core_fleet *fleet);
/* From now on the devices' clock runs so many times as fast as ours. */
void core_fleet_haste(core_fleet *fleet, unsigned haste);
/* One poll of every device that has not ended, and a short nap if none of them had anything to do. 0 when all ended. */
int core_fleet_step(core_fleet *fleet);
/* Steps until all have ended (1) or `seconds` are over (0). */
int core_fleet_run(core_fleet *fleet, unsigned seconds);
/* The power of one device goes and comes back: only what it committed is left. */
void core_fleet_restart_device(core_device *device);
/* Whether every device's every update was counted once, and all heard of the same model, which goes to `digest`. */
int core_fleet_counted(core_fleet *fleet, uint8_t digest[SHEAF_DIGEST_BYTES]);
