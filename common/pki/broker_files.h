/* broker_files.h - the configuration of a Mosquitto 2 that devices and aggregators can meet at, and its access list.
 *
 * Owner:   everything is borrowed for the call.
 * Threads: any.
 * Errors:  SHEAF_E_USAGE (a listen address, a name), those of file.h.
 * Not:     it starts nothing, and does not look into the files that it names. */
#pragma once
#include "common/problem.h"

typedef struct {
    const char *listen;       /* HOST:PORT */
    const char *certificate;  /* PEM, of role broker */
    const char *key;          /* PEM */
    const char *ca;           /* PEM */
    const char *crl;          /* PEM, of leaf certificates; NULL for none */
    const char *aggregator;   /* name in the aggregator's certificate */
    const char *topic_prefix; /* NULL: sheaf */
} sheaf_broker_options;

/* Writes FOLDER/mosquitto.conf and FOLDER/acl, and makes the folder if it is not there. */
SHEAF_MUST_USE sheaf_status sheaf_broker_files_write(const sheaf_broker_options *options, const char *folder,
                                                     sheaf_problem *problem);
