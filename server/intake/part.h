/* part.h - the bytes of one payload as they arrive: a file that survives the process, and how much of it is right.
 *
 * Chunks may come out of order inside a window. The file alone tells after a crash how far its bytes are without a hole: it
 * ends there, unless chunks beyond a hole were kept; then a mark behind the payload's last byte, written before the first
 * of them, names the place.
 *
 * Owner:   an upload; open to close.
 * Threads: one at a time.
 * Units:   bytes.
 * Errors:  SHEAF_E_TOO_LARGE (past the end), SHEAF_E_MALFORMED (off the grid), SHEAF_E_DIGEST; disk errors of
 *          common/file.h, after which only restart and close make sense.
 * Not:     it knows no client, statement or table. */
#pragma once
#include "common/digest.h"
#include "server/store/spool.h"

#define SHEAF_PART_WINDOW 64u /* chunks ahead of the next that are kept */

typedef struct {
    int fd;               /* -1: closed */
    uint64_t total;       /* bytes of the payload; > 0 */
    uint64_t next_offset; /* bytes before it are held and hashed */
    uint64_t on_disk;     /* bytes before it were held by an earlier process; hashed once next_offset is there */
    uint32_t chunk_bytes; /* of the grid; 0 before the first chunk */
    int resumed;          /* some bytes come from an earlier process: if the digest fails, they may be why */
    uint64_t held;        /* bit i: the chunk at next_offset + (i + 1) * chunk_bytes */
    sheaf_digest digest;  /* of the bytes before next_offset */
} sheaf_part;

/* Opens the file as it was left, or an empty one. */
SHEAF_MUST_USE sheaf_status sheaf_part_open(sheaf_part *part, const sheaf_spool *spool, const sheaf_spool_part *file,
                                            uint64_t total, sheaf_problem *problem);
/* Closes; the file stays. Safe on one that is closed. */
void sheaf_part_close(sheaf_part *part);

/* Hashes up to `budget` bytes of what an earlier process left; SHEAF_AGAIN while there are more. */
SHEAF_MUST_USE sheaf_status sheaf_part_read_again(sheaf_part *part, uint64_t budget, sheaf_problem *problem);
/* The sender is told next_offset anew, and its next chunk begins another grid: what came early must come again. */
SHEAF_MUST_USE sheaf_status sheaf_part_begin_grid(sheaf_part *part, sheaf_problem *problem);
/* Takes the bytes at `offset`: the next ones, or ones a few chunks ahead. Bytes that are held, or too far ahead, change
 * nothing. `digest` is empty or theirs. */
SHEAF_MUST_USE sheaf_status sheaf_part_write(sheaf_part *part, uint64_t offset, sheaf_span bytes, sheaf_span digest,
                                             sheaf_problem *problem);
int sheaf_part_whole(const sheaf_part *part);
/* Once whole, once: SHEAF_E_DIGEST if the bytes are not those. */
SHEAF_MUST_USE sheaf_status sheaf_part_verify(sheaf_part *part, const uint8_t expected[SHEAF_DIGEST_BYTES]);
/* Forgets all bytes. */
SHEAF_MUST_USE sheaf_status sheaf_part_restart(sheaf_part *part, sheaf_problem *problem);
