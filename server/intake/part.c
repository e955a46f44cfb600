#include "server/intake/part.h"

#include <assert.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLICE_BYTES 65536u
#define MARK_BYTES  16u

static const uint8_t mark_magic[8] = {'s', 'h', 'e', 'a', 'f', 'g', 'a', 'p'};

static sheaf_status truncate_to(const sheaf_part *part, uint64_t bytes, sheaf_problem *problem) {
    return ftruncate(part->fd, (off_t)bytes) == 0 ? SHEAF_OK : sheaf_problem_errno(problem, "shorten", "payload");
}

/* How many bytes are there without a hole, in a file of `bytes`. */
static uint64_t bytes_without_hole(const sheaf_part *part, uint64_t bytes) {
    uint8_t mark[MARK_BYTES];
    sheaf_problem problem;
    if (bytes <= part->total) return bytes;
    if (bytes != part->total + MARK_BYTES ||
        sheaf_file_read_at(part->fd, mark, sizeof mark, part->total, "payload", &problem) != SHEAF_OK ||
        memcmp(mark, mark_magic, sizeof mark_magic) != 0)
        return 0; /* a crash tore the mark, or it is no file of ours */
    uint64_t before = sheaf_load_u64(mark + sizeof mark_magic);
    return before <= part->total ? before : 0;
}

sheaf_status sheaf_part_open(sheaf_part *part, const sheaf_spool *spool, const sheaf_spool_part *file, uint64_t total,
                             sheaf_problem *problem) {
    uint64_t bytes = 0;
    assert(total > 0);
    *part = (sheaf_part){.fd = -1, .total = total};
    sheaf_status status = sheaf_digest_begin(&part->digest);
    if (status == SHEAF_OK) status = sheaf_spool_receive(spool, file, &part->fd, &bytes, problem);
    if (status == SHEAF_OK) {
        part->on_disk = bytes_without_hole(part, bytes);
        /* The last byte is asked for again, so that there is a chunk whose answer is the receipt. */
        if (part->on_disk == total) part->on_disk--;
        part->resumed = part->on_disk > 0;
        if (bytes != part->on_disk) status = truncate_to(part, part->on_disk, problem);
    }
    if (status != SHEAF_OK) sheaf_part_close(part);
    return status;
}

void sheaf_part_close(sheaf_part *part) {
    sheaf_digest_drop(&part->digest);
    if (part->fd >= 0) close(part->fd);
    part->fd = -1;
}

/* Hashes the next `bytes` from the file. */
static sheaf_status hash_from_file(sheaf_part *part, uint64_t bytes, sheaf_problem *problem) {
    uint8_t slice[SLICE_BYTES];
    sheaf_status status = SHEAF_OK;
    while (status == SHEAF_OK && bytes > 0) {
        size_t size = bytes < sizeof slice ? (size_t)bytes : sizeof slice;
        status = sheaf_file_read_at(part->fd, slice, size, part->next_offset, "payload", problem);
        if (status == SHEAF_OK) status = sheaf_digest_update(&part->digest, sheaf_span_of(slice, size));
        if (status != SHEAF_OK) break;
        part->next_offset += size;
        bytes -= size;
    }
    /* A file that is shorter than it was is our disk's fault, not the sender's. */
    return status == SHEAF_E_TRUNCATED ? SHEAF_E_CORRUPT : status;
}

sheaf_status sheaf_part_read_again(sheaf_part *part, uint64_t budget, sheaf_problem *problem) {
    uint64_t left = part->on_disk > part->next_offset ? part->on_disk - part->next_offset : 0;
    sheaf_status status = hash_from_file(part, left < budget ? left : budget, problem);
    return status == SHEAF_OK && left > budget ? SHEAF_AGAIN : status;
}

sheaf_status sheaf_part_begin_grid(sheaf_part *part, sheaf_problem *problem) {
    part->chunk_bytes = 0;
    if (part->held == 0) return SHEAF_OK;
    part->held = 0;
    return truncate_to(part, part->next_offset, problem);
}

/* Whether a chunk of `size` at `offset` lies on the grid; the first that is not the last one begins it. */
static sheaf_status fit_grid(sheaf_part *part, uint64_t offset, size_t size, sheaf_problem *problem) {
    int last = offset + size == part->total;
    uint64_t ahead = offset - part->next_offset;
    if (part->chunk_bytes == 0 && !last) part->chunk_bytes = (uint32_t)size;
    if (part->chunk_bytes == 0) return SHEAF_OK;
    if (ahead % part->chunk_bytes == 0 && (last ? size <= part->chunk_bytes : size == part->chunk_bytes))
        return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_MALFORMED,
                             "a chunk of %zu bytes at %llu is off the grid of %u bytes from %llu on", size,
                             (unsigned long long)offset, part->chunk_bytes, (unsigned long long)part->next_offset);
}

static sheaf_status write_mark(const sheaf_part *part, sheaf_problem *problem) {
    uint8_t mark[MARK_BYTES];
    memcpy(mark, mark_magic, sizeof mark_magic);
    sheaf_store_u64(mark + sizeof mark_magic, part->next_offset);
    return sheaf_file_write_at(part->fd, sheaf_span_of(mark, sizeof mark), part->total, "payload", problem);
}

/* Keeps a chunk that came before its turn. */
static sheaf_status write_early(sheaf_part *part, uint64_t offset, sheaf_span bytes, sheaf_problem *problem) {
    if (part->chunk_bytes == 0) return SHEAF_OK; /* the last chunk, before any that tells the grid */
    uint64_t ahead = (offset - part->next_offset) / part->chunk_bytes;
    if (ahead > SHEAF_PART_WINDOW || (part->held >> (ahead - 1) & 1) != 0) return SHEAF_OK;
    sheaf_status status = part->held == 0 ? write_mark(part, problem) : SHEAF_OK;
    if (status == SHEAF_OK) status = sheaf_file_write_at(part->fd, bytes, offset, "payload", problem);
    if (status == SHEAF_OK) part->held |= 1ull << (ahead - 1);
    return status;
}

/* The chunks that came early and are next now. */
static sheaf_status absorb_early(sheaf_part *part, sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    if (part->held == 0) return SHEAF_OK;
    int next = 1;
    while (status == SHEAF_OK && next) {
        next = (int)(part->held & 1);
        part->held >>= 1;
        uint64_t left = part->total - part->next_offset;
        if (next) status = hash_from_file(part, left < part->chunk_bytes ? left : part->chunk_bytes, problem);
    }
    if (status == SHEAF_OK && part->held == 0) status = truncate_to(part, part->next_offset, problem);
    return status;
}

static sheaf_status write_next(sheaf_part *part, sheaf_span bytes, sheaf_problem *problem) {
    sheaf_status status = sheaf_file_write_at(part->fd, bytes, part->next_offset, "payload", problem);
    if (status == SHEAF_OK) status = sheaf_digest_update(&part->digest, bytes);
    if (status != SHEAF_OK) return status;
    part->next_offset += bytes.size;
    return absorb_early(part, problem);
}

static sheaf_status check_digest(sheaf_span bytes, sheaf_span digest, sheaf_problem *problem) {
    uint8_t found[SHEAF_DIGEST_BYTES];
    if (digest.size == 0) return SHEAF_OK;
    if (digest.size != sizeof found)
        return sheaf_problem_set(problem, SHEAF_E_MALFORMED, "a chunk's digest has 32 bytes, not %zu", digest.size);
    sheaf_status status = sheaf_digest_of(bytes, found);
    if (status != SHEAF_OK) return status;
    return memcmp(found, digest.data, sizeof found) == 0 ? SHEAF_OK : SHEAF_E_DIGEST;
}

sheaf_status sheaf_part_write(sheaf_part *part, uint64_t offset, sheaf_span bytes, sheaf_span digest,
                              sheaf_problem *problem) {
    if (offset > part->total || bytes.size > part->total - offset)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE,
                                 "a chunk of %zu bytes at %llu goes past the end of the payload, %llu bytes",
                                 bytes.size, (unsigned long long)offset, (unsigned long long)part->total);
    sheaf_status status = check_digest(bytes, digest, problem);
    if (status != SHEAF_OK || bytes.size == 0 || offset < part->next_offset) return status;
    status = fit_grid(part, offset, bytes.size, problem);
    if (status != SHEAF_OK) return status;
    return offset == part->next_offset ? write_next(part, bytes, problem) : write_early(part, offset, bytes, problem);
}

int sheaf_part_whole(const sheaf_part *part) { return part->next_offset == part->total; }

sheaf_status sheaf_part_verify(sheaf_part *part, const uint8_t expected[SHEAF_DIGEST_BYTES]) {
    uint8_t found[SHEAF_DIGEST_BYTES];
    assert(sheaf_part_whole(part));
    sheaf_status status = sheaf_digest_finish(&part->digest, found);
    if (status != SHEAF_OK) return status;
    return memcmp(found, expected, sizeof found) == 0 ? SHEAF_OK : SHEAF_E_DIGEST;
}

sheaf_status sheaf_part_restart(sheaf_part *part, sheaf_problem *problem) {
    sheaf_digest_drop(&part->digest);
    part->next_offset = part->on_disk = part->held = 0;
    part->chunk_bytes = 0;
    part->resumed = 0;
    sheaf_status status = sheaf_digest_begin(&part->digest);
    return status == SHEAF_OK ? truncate_to(part, 0, problem) : status;
}
