/* clients.h - the devices that have spoken since the service started: who they are, and when and how they were here last.
 *
 * Owner:   the service; one table for all jobs and carriers.
 * Threads: any.
 * Units:   times in Unix milliseconds, as records only; not_after in Unix seconds.
 * Errors:  none: beyond SHEAF_CLIENTS_MAX devices, further ones are served all the same and only not listed.
 * Not:     durable; what was accepted stands in the database. It decides nothing. */
#pragma once
#include "common/certificate.h"

#define SHEAF_CLIENTS_MAX 100000u /* about 64 MB, when there are so many */

typedef struct sheaf_clients sheaf_clients;

typedef struct {
    sheaf_identity identity;
    char carrier[16];
    char job[SHEAF_NAME_BYTES]; /* "" before it named one that there is */
    uint64_t first_seen_unix_ms, last_seen_unix_ms;
    uint64_t last_round;        /* of which an update was accepted; 0: none */
    uint64_t accepted, refused; /* updates; requests */
    sheaf_status last_refusal;  /* SHEAF_OK: none */
    int64_t not_after_unix_s;   /* of its certificate */
} sheaf_client_row;

SHEAF_MUST_USE sheaf_status sheaf_clients_make(sheaf_clients **out);
void sheaf_clients_free(sheaf_clients *clients); /* NULL is fine */

/* A device with this verified certificate has asked something. */
void sheaf_clients_saw(sheaf_clients *clients, const sheaf_certificate *peer, const char *carrier, const char *job);
void sheaf_clients_accepted(sheaf_clients *clients, const sheaf_identity *identity, uint64_t round);
void sheaf_clients_refused(sheaf_clients *clients, const sheaf_identity *identity, sheaf_status reason);

uint32_t sheaf_clients_count(sheaf_clients *clients);
/* Copies up to `capacity` rows of `tenant` (NULL: of all), in the order in which they first came, from the `skip`th on.
 * Returns how many; *total is how many there are. */
size_t sheaf_clients_list(sheaf_clients *clients, const char *tenant, uint64_t skip, sheaf_client_row *rows,
                          size_t capacity, uint64_t *total);
/* 0 when it was not seen. */
int sheaf_clients_find(sheaf_clients *clients, const char *tenant, const char *name, sheaf_client_row *out);
