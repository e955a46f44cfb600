/* broker_kit.h - a real Mosquitto on a loopback port, for tests over MQTT.
 *
 * Its configuration is written here, line by line from what Mosquitto's manual says, and not by `sheaf pki broker-config`.
 * Whose certificate names `superuser` may read and write every topic: a broker that is not to be trusted.
 *
 * Owner:   the test; broker_kit_free ends the process and removes its files.
 * Threads: one.
 * Errors:  none are returned: a kit that fails ends the test program with a message. */
#pragma once
#include "tests/kit/pki_kit.h"

typedef struct broker_kit broker_kit;

typedef struct {
    const char *aggregator; /* name of the one that reads all devices' topics; NULL: "main" */
    const char *superuser;  /* NULL: nobody */
    int no_acl;             /* everybody may do everything */
} broker_kit_options;

/* Issues the broker's certificate, picks a free port and starts; `options` may be NULL. */
broker_kit *broker_kit_start(pki_kit *pki, const broker_kit_options *options);
const char *broker_kit_url(const broker_kit *broker); /* mqtts://127.0.0.1:PORT */
int broker_kit_port(const broker_kit *broker);
/* Waits until somebody of this name has connected. */
void broker_kit_await(const broker_kit *broker, const char *name);
/* SIGKILL, or SIGSTOP and SIGCONT. */
void broker_kit_kill(broker_kit *broker);
void broker_kit_pause(broker_kit *broker);
void broker_kit_resume(broker_kit *broker);
/* Again, on the same port. */
void broker_kit_restart(broker_kit *broker);
/* Peak of its resident memory so far, in KiB. */
long broker_kit_peak_kib(const broker_kit *broker);
void broker_kit_free(broker_kit *broker); /* NULL is fine */
