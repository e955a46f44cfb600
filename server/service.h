/* service.h - sheafd without its main: carrier, workers and jobs.
 *
 *   carrier threads -> workers (verify, write, validate, add) -> each job's thread (decide, commit) -> reply
 *
 * Owner:   the caller owns the config, which must outlive the service.
 * Threads: open, wait, close on one thread.
 * Errors:  open names what is wrong: config, files, certificates, address in use.
 * Not:     signals and the command line; main.c has those. */
#pragma once
#include "server/config.h"

typedef struct sheaf_service sheaf_service;

SHEAF_MUST_USE sheaf_status sheaf_service_open(const sheafd_config *config, sheaf_service **out,
                                               sheaf_problem *problem);
/* The url with the port that was chosen. */
const char *sheaf_service_url(const sheaf_service *service);
/* SHEAF_AGAIN while any job runs, SHEAF_OK when all have finished, else why the first of them was given up. */
sheaf_status sheaf_service_jobs_ended(const sheaf_service *service);
/* 1 when every job has ended and its devices know. */
int sheaf_service_everyone_knows(const sheaf_service *service);
/* Writes down how often what was refused that belongs to no job; close does it too. Failures are logged. */
void sheaf_service_keep_refusals(sheaf_service *service);
/* Looks at certificates, keys, authorities and revocation lists again, if their files have changed, and ends what no
 * longer holds. To be called every second or so; `now`: at once (SIGHUP). Not while close runs. */
void sheaf_service_watch(sheaf_service *service, int now);
/* Whom the service believes, for those who tell of it or judge others. Borrowed. */
struct sheaf_trust *sheaf_service_trust(const sheaf_service *service);
/* Stops listening, finishes what is in work, closes. Nothing acknowledged is lost. NULL is fine. */
void sheaf_service_close(sheaf_service *service);
