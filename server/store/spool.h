/* spool.h - the payloads of a job's rounds, one file each, until their round is old.
 *
 *     FOLDER/00000012/CLIENT.DIGEST.part   still arriving, or left by a crash; never counted. DIGEST is the payload's, in
 *                                          hex, so that no other payload's bytes are ever taken for this one's
 *     FOLDER/00000012/CLIENT.update        whole; counted only if the database has its row
 *
 * Owner:   the job; the spool holds a path and no descriptor.
 * Threads: begin and remove on the round's thread; the rest on any thread, one at a time for one client.
 * Units:   bytes.
 * Errors:  those of common/file.h; SHEAF_E_CORRUPT when a file does not have the size it was accepted with.
 * Not:     it does not verify, decompress or count. */
#pragma once
#include "common/file.h"

typedef struct {
    char folder[SHEAF_PATH_BYTES];
} sheaf_spool;

SHEAF_MUST_USE sheaf_status sheaf_spool_open(sheaf_spool *spool, const char *job_folder, sheaf_problem *problem);
/* Makes the round's folder, durably. */
SHEAF_MUST_USE sheaf_status sheaf_spool_begin(const sheaf_spool *spool, uint64_t round, sheaf_problem *problem);
/* Which .part file: of which client's payload. */
typedef struct {
    uint64_t round;
    const char *client;    /* borrowed for the call */
    const uint8_t *digest; /* SHEAF_DIGEST_BYTES of them */
} sheaf_spool_part;

/* Opens the .part file as it was left, or an empty one; *bytes is its size. */
SHEAF_MUST_USE sheaf_status sheaf_spool_receive(const sheaf_spool *spool, const sheaf_spool_part *part, int *fd,
                                                uint64_t *bytes, sheaf_problem *problem);
/* Makes the received payload durable under its final name. */
SHEAF_MUST_USE sheaf_status sheaf_spool_keep(const sheaf_spool *spool, const sheaf_spool_part *part, int fd,
                                             sheaf_problem *problem);
/* Forgets a .part file. */
void sheaf_spool_forget(const sheaf_spool *spool, const sheaf_spool_part *part);
/* Forgets all .part files of a round that has closed. */
SHEAF_MUST_USE sheaf_status sheaf_spool_forget_parts(const sheaf_spool *spool, uint64_t round, sheaf_problem *problem);
/* Maps a payload of exactly `bytes` for reading; sheaf_spool_unmap ends it. */
SHEAF_MUST_USE sheaf_status sheaf_spool_map(const sheaf_spool *spool, uint64_t round, const char *client,
                                            uint64_t bytes, sheaf_span *out, sheaf_problem *problem);
/* The same for a file that is still open under its .part name. */
SHEAF_MUST_USE sheaf_status sheaf_spool_map_fd(int fd, uint64_t bytes, sheaf_span *out, sheaf_problem *problem);
void sheaf_spool_unmap(sheaf_span mapped);
/* Lets go of the memory of what was read of a mapping; reading it again brings it back. For walks over payloads that are
 * larger than memory should be. */
void sheaf_spool_cool(sheaf_span mapped);
/* Removes all payloads of all rounds before `first_kept`, also those that a crash left behind. */
SHEAF_MUST_USE sheaf_status sheaf_spool_prune(const sheaf_spool *spool, uint64_t first_kept, sheaf_problem *problem);
