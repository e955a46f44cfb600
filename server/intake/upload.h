/* upload.h - the payloads that are arriving: agreed by the round, filled chunk by chunk by workers.
 *
 * Owner:   the job owns one table; an upload belongs to whoever took it until it is given back or dropped.
 * Threads: all functions from any thread. Between take and give_back/drop only the taker touches the upload.
 * Units:   bytes; times in nanoseconds of CLOCK_MONOTONIC.
 * Errors:  SHEAF_E_BUSY (table full, or another request has the upload), SHEAF_E_NOT_FOUND (unknown: offer again),
 *          SHEAF_E_NO_SPACE, those of part.h, disk errors of common/file.h.
 * Not:     it judges no statement and counts nothing. */
#pragma once
#include "common/certificate.h"
#include "proto/statement.h"
#include "server/intake/part.h"

typedef struct sheaf_uploads sheaf_uploads;

typedef struct {
    sheaf_update_statement statement;
    uint8_t statement_bytes[SHEAF_STATEMENT_BYTES_MAX];
    size_t statement_size;
    uint8_t signature[80];
    size_t signature_size;
    double training_loss;
    sheaf_part part;
    /* private to upload.c */
    sheaf_uploads *table;
    uint64_t moved_ns;
    int used, taken, doomed;
} sheaf_upload;

typedef struct {
    const sheaf_spool *spool; /* borrowed */
    uint32_t maximum;         /* unfinished uploads */
    uint64_t capacity_bytes;  /* of one round's payloads, those that are kept and those that arrive; 0: no limit */
} sheaf_uploads_options;

SHEAF_MUST_USE sheaf_status sheaf_uploads_make(const sheaf_uploads_options *options, sheaf_uploads **out);
/* What is unfinished stays on disk, for the next process to go on. NULL is fine; none may be taken. */
void sheaf_uploads_free(sheaf_uploads *uploads);

/* What an offer says. */
typedef struct {
    const sheaf_update_statement *statement;
    sheaf_span statement_bytes, signature;
    double training_loss;
} sheaf_upload_terms;

/* Agrees to an upload and takes it: the caller gives it back once the device has been told part.next_offset. If this
 * client's upload of the same payload is already under way, here or on disk, it goes on where it is; one of another
 * payload is replaced. SHEAF_AGAIN: taken too, but sheaf_upload_read_again must come first. SHEAF_E_NO_SPACE: the round's
 * payloads would take more than they may. */
SHEAF_MUST_USE sheaf_status sheaf_uploads_agree(sheaf_uploads *uploads, const sheaf_upload_terms *terms,
                                                sheaf_upload **out, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_uploads_take(sheaf_uploads *uploads, const char *client, sheaf_span payload_digest,
                                               sheaf_upload **out);
void sheaf_upload_give_back(sheaf_upload *upload);
/* Ends the upload; a payload that was not kept is forgotten. */
void sheaf_upload_drop(sheaf_upload *upload);

/* Goes on with what was on disk, a slice that a worker does without delay for others; SHEAF_AGAIN while there is more. A
 * disk that does not give it back lets the upload start over: SHEAF_OK too. */
SHEAF_MUST_USE sheaf_status sheaf_upload_read_again(sheaf_upload *upload, sheaf_problem *problem);
/* Takes the bytes at `offset`, as sheaf_part_write does. */
SHEAF_MUST_USE sheaf_status sheaf_upload_write(sheaf_upload *upload, uint64_t offset, sheaf_span bytes,
                                               sheaf_span digest, sheaf_problem *problem);
/* Once whole: compares the digest and maps the payload for the checks that follow. SHEAF_AGAIN: bytes that were on disk
 * were damaged there, and the upload has started over. */
SHEAF_MUST_USE sheaf_status sheaf_upload_verify(sheaf_upload *upload, sheaf_span *payload, sheaf_problem *problem);
/* Makes the payload durable in the spool. */
SHEAF_MUST_USE sheaf_status sheaf_upload_keep(sheaf_upload *upload, sheaf_problem *problem);

/* So many bytes of the round's payloads are kept. */
void sheaf_uploads_count_kept(sheaf_uploads *uploads, uint64_t bytes);
/* Unfinished uploads, and the bytes of this round's payloads that are kept or arrive. */
uint32_t sheaf_uploads_load(sheaf_uploads *uploads, uint64_t *bytes);
/* Drops those that have not moved since `before_ns`; returns how many. */
uint32_t sheaf_uploads_expire(sheaf_uploads *uploads, uint64_t before_ns);
/* Drops all, and counts from nothing; those that are taken end when they are given back. */
void sheaf_uploads_clear(sheaf_uploads *uploads);
