/* upload.h - the payloads that are arriving: agreed by the round, filled chunk by chunk by workers.
 *
 * Owner:   the job owns one table; an upload belongs to whoever took it until it is given back or dropped.
 * Threads: all functions from any thread. Between take and give_back/drop only the taker touches the upload.
 * Units:   bytes; times in nanoseconds of CLOCK_MONOTONIC.
 * Errors:  SHEAF_E_BUSY (table full, or another request has the upload), SHEAF_E_NOT_FOUND (unknown: offer again),
 *          SHEAF_E_TOO_LARGE, SHEAF_E_DIGEST, disk errors of common/file.h.
 * Not:     it judges no statement and counts nothing. */
#pragma once
#include "common/certificate.h"
#include "common/digest.h"
#include "proto/statement.h"
#include "server/store/spool.h"

typedef struct sheaf_uploads sheaf_uploads;

typedef struct {
    sheaf_update_statement statement;
    uint8_t statement_bytes[SHEAF_STATEMENT_BYTES_MAX];
    size_t statement_size;
    uint8_t signature[80];
    size_t signature_size;
    double training_loss;
    uint64_t next_offset; /* bytes before it are held */
    /* private to upload.c */
    sheaf_uploads *table;
    sheaf_digest digest;
    uint64_t moved_ns;
    int fd, used, taken, doomed;
} sheaf_upload;

SHEAF_MUST_USE sheaf_status sheaf_uploads_make(const sheaf_spool *spool, uint32_t maximum, sheaf_uploads **out);
void sheaf_uploads_free(sheaf_uploads *uploads); /* NULL is fine; none may be taken */

/* Agrees to an upload. If this client's upload of the same payload is already under way, it goes on where it is; one
 * of another payload is replaced. *next_offset tells where the device should go on. */
SHEAF_MUST_USE sheaf_status sheaf_uploads_agree(sheaf_uploads *uploads, const sheaf_update_statement *statement,
                                                sheaf_span statement_bytes, sheaf_span signature, double training_loss,
                                                uint64_t *next_offset, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_uploads_take(sheaf_uploads *uploads, const char *client, sheaf_span payload_digest,
                                               sheaf_upload **out);
void sheaf_upload_give_back(sheaf_upload *upload);
/* Ends the upload; a payload that was not kept is forgotten. */
void sheaf_upload_drop(sheaf_upload *upload);

/* Takes the bytes at `offset` if they are the next ones; bytes that are already held change nothing. */
SHEAF_MUST_USE sheaf_status sheaf_upload_write(sheaf_upload *upload, uint64_t offset, sheaf_span bytes,
                                               sheaf_problem *problem);
int sheaf_upload_whole(const sheaf_upload *upload);
/* Once whole: compares the digest and maps the payload for the checks that follow. */
SHEAF_MUST_USE sheaf_status sheaf_upload_verify(sheaf_upload *upload, sheaf_span *payload, sheaf_problem *problem);
/* Makes the payload durable in the spool. */
SHEAF_MUST_USE sheaf_status sheaf_upload_keep(sheaf_upload *upload, sheaf_problem *problem);

/* Drops those that have not moved since `before_ns`; returns how many. */
uint32_t sheaf_uploads_expire(sheaf_uploads *uploads, uint64_t before_ns);
/* Drops all; those that are taken end when they are given back. */
void sheaf_uploads_clear(sheaf_uploads *uploads);
