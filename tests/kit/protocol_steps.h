/* protocol_steps.h - the steps of the session protocol at which somebody can die, and a job in which somebody does.
 *
 * The first of two devices is watched. A step is a request that it sends: either the request is lost, or it arrives, is
 * answered, and the answer is lost; then the victim dies. A step of a cast is a part that comes to the device, and is
 * lost or taken.
 *
 * Owner:   the test; nothing is kept.
 * Threads: one test thread.
 * Errors:  a job that does not end as the calm one fails the test. */
#pragma once
#include "tests/kit/core_fleet.h"

typedef struct {
    const char *name; /* in what is printed */
    void (*die)(core_fleet *fleet);
} steps_victim;

/* Dies with its memory, at once, and is started again; a device keeps what it had committed to its storage. */
extern const steps_victim steps_aggregator, steps_device, steps_broker;
extern const steps_victim steps_link; /* between device and aggregator, or broker */

typedef struct {
    const steps_victim *victim;
    const sheaf_transport *carrier;
    const char *address, *program; /* as in service_kit */
    int casts;                     /* the steps of a cast, instead of those of requests */
} steps_trial;

/* One job for each step and each kind of loss. All must end with the model of a job without carrier and without death,
 * and every update counted once. */
void steps_try_all(const steps_trial *trial);
