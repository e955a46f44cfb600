/* file.h - every file operation that must survive a crash goes through here, so that faults can be injected in one place.
 *
 * Owner:   read_whole gives memory that the caller frees with free(); descriptors stay the caller's.
 * Threads: any; no state.
 * Units:   bytes.
 * Errors:  SHEAF_E_NOT_FOUND, SHEAF_E_EXISTS, SHEAF_E_PERMISSION, SHEAF_E_NO_SPACE, SHEAF_E_MEMORY, SHEAF_E_TOO_LARGE,
 *          SHEAF_E_DISK for the rest. After a failed sync nothing may be believed about that file: do not retry it.
 * Durable: "durable" means: written, fsynced, renamed into place, and the folder fsynced. */
#pragma once
#include "common/bytes.h"
#include "common/problem.h"

#define SHEAF_PATH_BYTES 1024u /* longest path with the NUL; longer ones are refused */

/* Joins folder and name; SHEAF_E_TOO_LARGE when it does not fit. */
SHEAF_MUST_USE sheaf_status sheaf_path_join(char out[SHEAF_PATH_BYTES], const char *folder, const char *name,
                                            sheaf_problem *problem);

/* Makes the folder and its missing parents (mode 0700 for what is new), durably. Fine if it is there. */
SHEAF_MUST_USE sheaf_status sheaf_file_make_folder(const char *path, sheaf_problem *problem);
/* Creates or replaces `path` durably: after a crash either the old or the new content is there, whole. */
SHEAF_MUST_USE sheaf_status sheaf_file_replace(const char *path, sheaf_span content, unsigned mode,
                                               sheaf_problem *problem);
/* Opens a regular file for reading, SHEAF_E_DATA for anything else; *size_bytes is its size now. The caller closes *fd. */
SHEAF_MUST_USE sheaf_status sheaf_file_open(const char *path, int *fd, uint64_t *size_bytes, sheaf_problem *problem);
/* Puts a finished temporary file under its final name for readers now; after a power loss anything may stand there. For
 * what can be had again. SHEAF_E_EXISTS when what stands at `path` is no regular file (a device, a pipe). */
SHEAF_MUST_USE sheaf_status sheaf_file_swap(const char *temporary, const char *path, sheaf_problem *problem);
/* Reads all of `path`, at most `limit` bytes. out->capacity = size + 1 and a NUL follows the content. */
SHEAF_MUST_USE sheaf_status sheaf_file_read_whole(const char *path, size_t limit, sheaf_buffer *out,
                                                  sheaf_problem *problem);

/* All of `bytes` at `offset`, through short writes and signals. */
SHEAF_MUST_USE sheaf_status sheaf_file_write_at(int fd, sheaf_span bytes, uint64_t offset, const char *path,
                                                sheaf_problem *problem);
/* Exactly `size` bytes; SHEAF_E_TRUNCATED when the file ends before. */
SHEAF_MUST_USE sheaf_status sheaf_file_read_at(int fd, void *out, size_t size, uint64_t offset, const char *path,
                                               sheaf_problem *problem);
/* Creates `path` for reading and writing, empty and with this mode; what stood there is removed first. */
SHEAF_MUST_USE sheaf_status sheaf_file_create(const char *path, unsigned mode, int *fd, sheaf_problem *problem);
/* Makes a finished temporary file durable under its final name: fsync, rename, fsync of the folder. */
SHEAF_MUST_USE sheaf_status sheaf_file_publish(int fd, const char *temporary, const char *path, sheaf_problem *problem);
/* Removes a file durably; fine if it is not there. */
SHEAF_MUST_USE sheaf_status sheaf_file_remove(const char *path, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_file_sync_folder_of(const char *path, sheaf_problem *problem);
/* Takes the lock file `path` for this process, or SHEAF_E_EXISTS at once when somebody has it. Closing *fd frees it, and
 * so does the end of the process. */
SHEAF_MUST_USE sheaf_status sheaf_file_lock(const char *path, int *fd, sheaf_problem *problem);
