#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

sheaf_status sheaf_path_join(char out[SHEAF_PATH_BYTES], const char *folder, const char *name, sheaf_problem *problem) {
    int written = snprintf(out, SHEAF_PATH_BYTES, "%s/%s", folder, name);
    if (written < 0 || (size_t)written >= SHEAF_PATH_BYTES) {
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s/%s: path is longer than %u bytes", folder, name,
                                 SHEAF_PATH_BYTES - 1);
    }
    return SHEAF_OK;
}

/* The folder part of `path`, "." when there is none. */
static sheaf_status folder_of(char out[SHEAF_PATH_BYTES], const char *path, sheaf_problem *problem) {
    const char *slash = strrchr(path, '/');
    size_t size = slash == NULL ? 0 : (size_t)(slash - path);
    if (size >= SHEAF_PATH_BYTES) return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: path is too long", path);
    if (slash == path) size = 1;
    if (size > 0)
        memcpy(out, path, size);
    else
        out[size++] = '.';
    out[size] = '\0';
    return SHEAF_OK;
}

sheaf_status sheaf_file_sync_folder_of(const char *path, sheaf_problem *problem) {
    char folder[SHEAF_PATH_BYTES];
    sheaf_status status = folder_of(folder, path, problem);
    if (status != SHEAF_OK) return status;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return sheaf_problem_errno(problem, "open the folder", folder);
    if (fsync(fd) != 0) status = sheaf_problem_errno(problem, "sync the folder", folder);
    close(fd);
    return status;
}

static sheaf_status make_one_folder(const char *path, sheaf_problem *problem) {
    if (mkdir(path, 0700) == 0) return sheaf_file_sync_folder_of(path, problem);
    if (errno != EEXIST) return sheaf_problem_errno(problem, "make the folder", path);
    struct stat info;
    if (stat(path, &info) != 0) return sheaf_problem_errno(problem, "look at", path);
    if (!S_ISDIR(info.st_mode))
        return sheaf_problem_set(problem, SHEAF_E_EXISTS, "%s: is there, but is no folder", path);
    /* It may stem from a run that died before its name was durable. Folders above ours may be closed to us. */
    sheaf_status status = sheaf_file_sync_folder_of(path, problem);
    return status == SHEAF_E_PERMISSION ? SHEAF_OK : status;
}

sheaf_status sheaf_file_make_folder(const char *path, sheaf_problem *problem) {
    char partial[SHEAF_PATH_BYTES];
    size_t size = strlen(path);
    if (size == 0 || size >= sizeof partial)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: not a usable path", path);
    for (size_t i = 1; i < size; i++) {
        if (path[i] != '/') continue;
        memcpy(partial, path, i);
        partial[i] = '\0';
        sheaf_status status = make_one_folder(partial, problem);
        if (status != SHEAF_OK) return status;
    }
    return make_one_folder(path, problem);
}

sheaf_status sheaf_file_write_at(int fd, sheaf_span bytes, uint64_t offset, const char *path, sheaf_problem *problem) {
    while (bytes.size > 0) {
        ssize_t written = pwrite(fd, bytes.data, bytes.size, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return sheaf_problem_errno(problem, "write", path);
        bytes.data += written;
        bytes.size -= (size_t)written;
        offset += (uint64_t)written;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_file_read_at(int fd, void *out, size_t size, uint64_t offset, const char *path,
                                sheaf_problem *problem) {
    uint8_t *to = out;
    while (size > 0) {
        ssize_t got = pread(fd, to, size, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return sheaf_problem_errno(problem, "read", path);
        if (got == 0) return sheaf_problem_set(problem, SHEAF_E_TRUNCATED, "%s: ends %zu bytes too early", path, size);
        to += got;
        size -= (size_t)got;
        offset += (uint64_t)got;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_file_create(const char *path, unsigned mode, int *fd, sheaf_problem *problem) {
    (void)unlink(path); /* a stale one may have a wider mode */
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, (mode_t)mode);
    return *fd < 0 ? sheaf_problem_errno(problem, "create", path) : SHEAF_OK;
}

sheaf_status sheaf_file_swap(const char *temporary, const char *path, sheaf_problem *problem) {
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) /* /dev/null, say: root could rename over it */
        return sheaf_problem_set(problem, SHEAF_E_EXISTS, "%s: is there, but is no regular file", path);
    return rename(temporary, path) == 0 ? SHEAF_OK
                                        : sheaf_problem_errno(problem, "rename to its final name", temporary);
}

sheaf_status sheaf_file_publish(int fd, const char *temporary, const char *path, sheaf_problem *problem) {
    if (fsync(fd) != 0) return sheaf_problem_errno(problem, "sync", temporary);
    sheaf_status status = sheaf_file_swap(temporary, path, problem);
    return status == SHEAF_OK ? sheaf_file_sync_folder_of(path, problem) : status;
}

sheaf_status sheaf_file_replace(const char *path, sheaf_span content, unsigned mode, sheaf_problem *problem) {
    char temporary[SHEAF_PATH_BYTES];
    int written = snprintf(temporary, sizeof temporary, "%s.new", path);
    if (written < 0 || (size_t)written >= sizeof temporary)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: path is too long", path);
    int fd = -1;
    sheaf_status status = sheaf_file_create(temporary, mode, &fd, problem);
    if (status != SHEAF_OK) return status;
    status = sheaf_file_write_at(fd, content, 0, temporary, problem);
    if (status == SHEAF_OK) status = sheaf_file_publish(fd, temporary, path, problem);
    close(fd);
    if (status != SHEAF_OK) (void)unlink(temporary);
    return status;
}

sheaf_status sheaf_file_open(const char *path, int *fd, uint64_t *size_bytes, sheaf_problem *problem) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hold us */
    if (*fd < 0) return sheaf_problem_errno(problem, "open", path);
    struct stat info;
    sheaf_status status = SHEAF_OK;
    if (fstat(*fd, &info) != 0)
        status = sheaf_problem_errno(problem, "look at", path);
    else if (!S_ISREG(info.st_mode))
        status = sheaf_problem_set(problem, SHEAF_E_DATA, "%s: is not a regular file", path);
    if (status == SHEAF_OK) {
        *size_bytes = (uint64_t)info.st_size;
        return SHEAF_OK;
    }
    close(*fd);
    *fd = -1;
    return status;
}

sheaf_status sheaf_file_read_whole(const char *path, size_t limit, sheaf_buffer *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    int fd = -1;
    uint64_t size_bytes = 0;
    sheaf_status status = sheaf_file_open(path, &fd, &size_bytes, problem);
    if (status != SHEAF_OK) return status;
    if (size_bytes > limit || size_bytes >= SIZE_MAX) {
        status = sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: %llu bytes, the limit is %zu", path,
                                   (unsigned long long)size_bytes, limit);
    }
    if (status == SHEAF_OK) {
        out->capacity = (size_t)size_bytes + 1;
        out->data = malloc(out->capacity);
        if (out->data == NULL)
            status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for %zu bytes", path, out->capacity);
    }
    if (status == SHEAF_OK) status = sheaf_file_read_at(fd, out->data, out->capacity - 1, 0, path, problem);
    if (status == SHEAF_OK) {
        out->size = out->capacity - 1;
        out->data[out->size] = '\0';
    } else {
        free(out->data);
        memset(out, 0, sizeof *out);
    }
    close(fd);
    return status;
}

sheaf_status sheaf_file_remove(const char *path, sheaf_problem *problem) {
    if (unlink(path) != 0) return errno == ENOENT ? SHEAF_OK : sheaf_problem_errno(problem, "remove", path);
    return sheaf_file_sync_folder_of(path, problem);
}

sheaf_status sheaf_file_lock(const char *path, int *fd, sheaf_problem *problem) {
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) return sheaf_problem_errno(problem, "open", path);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return SHEAF_OK;
    sheaf_status status = errno == EWOULDBLOCK
                              ? sheaf_problem_set(problem, SHEAF_E_EXISTS, "%s: another process works here", path)
                              : sheaf_problem_errno(problem, "lock", path);
    close(*fd);
    *fd = -1;
    return status;
}
