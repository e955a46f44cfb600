#include "server/store/spool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

sheaf_status sheaf_spool_open(sheaf_spool *spool, const char *job_folder, sheaf_problem *problem) {
    sheaf_status status = sheaf_path_join(spool->folder, job_folder, "spool", problem);
    return status == SHEAF_OK ? sheaf_file_make_folder(spool->folder, problem) : status;
}

static sheaf_status round_folder(const sheaf_spool *spool, uint64_t round, char out[SHEAF_PATH_BYTES],
                                 sheaf_problem *problem) {
    char name[32];
    (void)snprintf(name, sizeof name, "%08" PRIu64, round);
    return sheaf_path_join(out, spool->folder, name, problem);
}

static sheaf_status payload_path(const sheaf_spool *spool, uint64_t round, const char *client, const char *suffix,
                                 char out[SHEAF_PATH_BYTES], sheaf_problem *problem) {
    char folder[SHEAF_PATH_BYTES], name[160]; /* a client's name has at most 63 bytes, a suffix 70 */
    sheaf_status status = round_folder(spool, round, folder, problem);
    (void)snprintf(name, sizeof name, "%s%s", client, suffix);
    return status == SHEAF_OK ? sheaf_path_join(out, folder, name, problem) : status;
}

static sheaf_status part_path(const sheaf_spool *spool, const sheaf_spool_part *part, char out[SHEAF_PATH_BYTES],
                              sheaf_problem *problem) {
    char hex[2 * SHEAF_DIGEST_BYTES + 1], suffix[sizeof hex + 6];
    sheaf_hex(part->digest, SHEAF_DIGEST_BYTES, hex);
    (void)snprintf(suffix, sizeof suffix, ".%s.part", hex);
    return payload_path(spool, part->round, part->client, suffix, out, problem);
}

sheaf_status sheaf_spool_begin(const sheaf_spool *spool, uint64_t round, sheaf_problem *problem) {
    char folder[SHEAF_PATH_BYTES];
    sheaf_status status = round_folder(spool, round, folder, problem);
    return status == SHEAF_OK ? sheaf_file_make_folder(folder, problem) : status;
}

sheaf_status sheaf_spool_receive(const sheaf_spool *spool, const sheaf_spool_part *part, int *fd, uint64_t *bytes,
                                 sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    struct stat info;
    *bytes = 0;
    sheaf_status status = part_path(spool, part, path, problem);
    if (status != SHEAF_OK) return status;
    *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*fd >= 0 && fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *bytes = (uint64_t)info.st_size;
        return SHEAF_OK;
    }
    if (*fd < 0 && errno != ENOENT && errno != ELOOP && errno != ENXIO)
        return sheaf_problem_errno(problem, "open", path);
    if (*fd >= 0) close(*fd); /* no file of ours: create puts one in its place */
    *fd = -1;
    return sheaf_file_create(path, 0600, fd, problem);
}

sheaf_status sheaf_spool_keep(const sheaf_spool *spool, const sheaf_spool_part *part, int fd, sheaf_problem *problem) {
    char from[SHEAF_PATH_BYTES], whole[SHEAF_PATH_BYTES];
    sheaf_status status = part_path(spool, part, from, problem);
    if (status == SHEAF_OK) status = payload_path(spool, part->round, part->client, ".update", whole, problem);
    return status == SHEAF_OK ? sheaf_file_publish(fd, from, whole, problem) : status;
}

void sheaf_spool_forget(const sheaf_spool *spool, const sheaf_spool_part *part) {
    char path[SHEAF_PATH_BYTES];
    if (part_path(spool, part, path, NULL) == SHEAF_OK) (void)unlink(path);
}

static int is_part(const char *name) {
    size_t size = strlen(name);
    return size > 5 && strcmp(name + size - 5, ".part") == 0;
}

sheaf_status sheaf_spool_forget_parts(const sheaf_spool *spool, uint64_t round, sheaf_problem *problem) {
    char folder[SHEAF_PATH_BYTES];
    sheaf_status status = round_folder(spool, round, folder, problem);
    if (status != SHEAF_OK) return status;
    DIR *listing = opendir(folder);
    if (listing == NULL) return sheaf_problem_errno(problem, "list", folder);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        if (is_part(entry->d_name)) (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
    return SHEAF_OK;
}

sheaf_status sheaf_spool_map_fd(int fd, uint64_t bytes, sheaf_span *out, sheaf_problem *problem) {
    struct stat info;
    *out = sheaf_span_of(NULL, 0);
    if (fstat(fd, &info) != 0) return sheaf_problem_errno(problem, "look at", "payload");
    if ((uint64_t)info.st_size != bytes) {
        return sheaf_problem_set(problem, SHEAF_E_CORRUPT, "payload: has %lld bytes, was accepted with %" PRIu64,
                                 (long long)info.st_size, bytes);
    }
    if (bytes == 0) return SHEAF_OK;
    if (bytes > SIZE_MAX)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "payload: too large for this machine's addresses");
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return sheaf_problem_errno(problem, "map", "payload");
    *out = sheaf_span_of(memory, (size_t)bytes);
    return SHEAF_OK;
}

/* Brings the payload into the page cache by plain reads: a bad block is then a status, and not a SIGBUS of the map. */
static sheaf_status read_through(int fd, uint64_t bytes, const char *path, sheaf_problem *problem) {
    uint8_t block[65536];
    sheaf_status status = SHEAF_OK;
    for (uint64_t at = 0; status == SHEAF_OK && at < bytes; at += sizeof block) {
        size_t size = bytes - at < sizeof block ? (size_t)(bytes - at) : sizeof block;
        status = sheaf_file_read_at(fd, block, size, at, path, problem);
    }
    return status;
}

sheaf_status sheaf_spool_map(const sheaf_spool *spool, uint64_t round, const char *client, uint64_t bytes,
                             sheaf_span *out, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = payload_path(spool, round, client, ".update", path, problem);
    if (status != SHEAF_OK) return status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return sheaf_problem_errno(problem, "open", path);
    status = read_through(fd, bytes, path, problem);
    if (status == SHEAF_OK) status = sheaf_spool_map_fd(fd, bytes, out, problem);
    if (status != SHEAF_OK) (void)sheaf_problem_prefix(problem, "%s", path);
    close(fd);
    return status;
}

static void *address_of(sheaf_span mapped) {
    union {
        const uint8_t *constant;
        void *plain;
    } address = {mapped.data};
    return address.plain;
}

void sheaf_spool_unmap(sheaf_span mapped) {
    if (mapped.size > 0) (void)munmap(address_of(mapped), mapped.size);
}

/* The mapping is of a file and never written to, so nothing is lost: pages leave this process, not the page cache. */
void sheaf_spool_cool(sheaf_span mapped) {
    if (mapped.size > 0) (void)madvise(address_of(mapped), mapped.size, MADV_DONTNEED);
}

static sheaf_status remove_round(const sheaf_spool *spool, uint64_t round, sheaf_problem *problem) {
    char folder[SHEAF_PATH_BYTES];
    sheaf_status status = round_folder(spool, round, folder, problem);
    if (status != SHEAF_OK) return status;
    DIR *listing = opendir(folder);
    if (listing == NULL) return sheaf_problem_errno(problem, "list", folder);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        if (entry->d_name[0] != '.') (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
    /* No sync: payloads that come back after a power cut are removed by the next prune. */
    return rmdir(folder) == 0 ? SHEAF_OK : sheaf_problem_errno(problem, "remove", folder);
}

sheaf_status sheaf_spool_prune(const sheaf_spool *spool, uint64_t first_kept, sheaf_problem *problem) {
    DIR *listing = opendir(spool->folder);
    if (listing == NULL) return sheaf_problem_errno(problem, "list", spool->folder);
    sheaf_status status = SHEAF_OK;
    for (struct dirent *entry = readdir(listing); status == SHEAF_OK && entry != NULL; entry = readdir(listing)) {
        char *end = NULL;
        uint64_t round = strtoull(entry->d_name, &end, 10);
        int is_round = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' && *end == '\0';
        if (is_round && round < first_kept) status = remove_round(spool, round, problem);
    }
    closedir(listing);
    return status;
}
