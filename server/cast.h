/* cast.h - one model version sent once for many devices, on a carrier that can.
 *
 * Devices that ask for the version are told a group, and gathered for a moment: until as many have asked as the round wants,
 * or nobody new has come for a while. Then the version is cast to the group, part by part, in order. Who is told while it is
 * on its way waits for the next time around. When nobody waits, nothing is cast.
 *
 *   idle --somebody is told--> gathering --enough, or quiet--> casting --all parts--> idle, or gathering
 *
 * The carrier paces it by SHEAF_AGAIN; beyond that the rate falls when devices of a version had to ask for parts that they
 * missed, and rises again when they did not.
 *
 * Owner:   the job; one for each carrier end. It must be stopped before the end's server is.
 * Threads: join, note_pull and renew from any thread; it has one of its own, started by the first join.
 * Units:   bytes, nanoseconds of CLOCK_MONOTONIC.
 * Errors:  SHEAF_AGAIN from join: answer with parts. Casting itself fails silently: devices ask for what does not come.
 * Not:     it judges nobody; who joins has been let in by name. */
#pragma once
#include <stdatomic.h>

#include "common/transport/transport.h"
#include "server/version.h"

typedef struct sheaf_caster sheaf_caster;

typedef struct {
    const sheaf_transport *carrier; /* with a cast function */
    sheaf_server *const *server;    /* borrowed: where the server will stand once it is open */
    sheaf_shelf *shelf;
    const char *job; /* for the log */
    uint32_t enough; /* devices that a round wants */
    uint32_t devices_max;
    uint32_t part_bytes;        /* of the model in one frame */
    _Atomic uint64_t *moved_ns; /* told when a part has left; NULL: nobody */
} sheaf_caster_options;

SHEAF_MUST_USE sheaf_status sheaf_caster_make(const sheaf_caster_options *options, sheaf_caster **out);
/* Casts no more and waits for its thread; joins are answered SHEAF_AGAIN from now on. */
void sheaf_caster_stop(sheaf_caster *caster);
void sheaf_caster_free(sheaf_caster *caster); /* NULL is fine; stops it first */

/* Lets this device wait for a cast of the version, which is the current one. SHEAF_AGAIN: it was told twice already, or there is
 * no room; it shall have parts. */
SHEAF_MUST_USE sheaf_status sheaf_caster_join(sheaf_caster *caster, const sheaf_version *version, const char *client,
                                              sheaf_cast_group *out);
/* This device asks for parts of the version: if it was told a group, it missed some. */
void sheaf_caster_note_pull(sheaf_caster *caster, const sheaf_version *version, const char *client);
/* Somebody who has the group's key shall hear no more: ends the cast under way; who asks again is told a new group. */
void sheaf_caster_renew(sheaf_caster *caster);
/* Bytes of frames given to the carrier, in all. */
uint64_t sheaf_caster_bytes(const sheaf_caster *caster);
