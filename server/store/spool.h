/* spool.h - the payloads of a job's rounds, one file each, until their round is old.
 *
 *     FOLDER/00000012/CLIENT.part     still arriving, or left by a crash; never counted
 *     FOLDER/00000012/CLIENT.update   whole; counted only if the database has its row
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
/* Opens an empty .part file. */
SHEAF_MUST_USE sheaf_status sheaf_spool_receive(const sheaf_spool *spool, uint64_t round, const char *client, int *fd,
                                                sheaf_problem *problem);
/* Makes the received payload durable under its final name. */
SHEAF_MUST_USE sheaf_status sheaf_spool_keep(const sheaf_spool *spool, uint64_t round, const char *client, int fd,
                                             sheaf_problem *problem);
/* Forgets a .part file. */
void sheaf_spool_forget(const sheaf_spool *spool, uint64_t round, const char *client);
/* Maps a payload of exactly `bytes` for reading; sheaf_spool_unmap ends it. */
SHEAF_MUST_USE sheaf_status sheaf_spool_map(const sheaf_spool *spool, uint64_t round, const char *client,
                                            uint64_t bytes, sheaf_span *out, sheaf_problem *problem);
/* The same for a file that is still open under its .part name. */
SHEAF_MUST_USE sheaf_status sheaf_spool_map_fd(int fd, uint64_t bytes, sheaf_span *out, sheaf_problem *problem);
void sheaf_spool_unmap(sheaf_span mapped);
/* Removes all payloads of all rounds before `first_kept`, also those that a crash left behind. */
SHEAF_MUST_USE sheaf_status sheaf_spool_prune(const sheaf_spool *spool, uint64_t first_kept, sheaf_problem *problem);
