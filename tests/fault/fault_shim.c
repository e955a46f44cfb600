/* fault_shim.c - LD_PRELOAD: makes the Nth file call of a program fail, as a bad or full disk would.
 *
 *     SHEAF_FAULT         OP:N:ERROR[:COUNT] separated by commas. The Nth matching call and the COUNT - 1 after it fail
 *                         (COUNT * = all). OP: open read write fsync fdatasync rename unlink mkdir truncate, or any.
 *                         ERROR: ENOSPC EIO EINTR EDQUOT EACCES EMFILE, or short (a write or read of half the bytes).
 *     SHEAF_FAULT_PATH    only calls on paths that this fnmatch pattern matches, `*` also across slashes
 *     SHEAF_FAULT_WHILE   only while this file exists: the harness heals the disk by removing it
 *     SHEAF_FAULT_REPORT  at exit, one line "OP CALLS FAILED" for each OP is written here
 *
 * Only regular files and folders count, so sockets, pipes and the log on a terminal go on working. Calls that the C
 * library makes inside itself (fopen's) are not seen. Both the plain and the 64-bit symbols are covered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, FSYNC, FDATASYNC, RENAME, UNLINK, MKDIR, TRUNCATE, OPERATIONS, ANY = OPERATIONS };
static const char *const operation_names[] = {"open",   "read",   "write", "fsync",    "fdatasync",
                                              "rename", "unlink", "mkdir", "truncate", "any"};

enum { SHORT = -1 };
static const struct {
    const char *name;
    int code;
} errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EINTR", EINTR},   {"EDQUOT", EDQUOT},
              {"EACCES", EACCES}, {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM}, {"short", SHORT}};

typedef struct {
    int operation, error;
    long first, count;
    atomic_long seen;
} fault;

enum { FAULTS_MAX = 8 };
static fault faults[FAULTS_MAX];
static size_t fault_count;
static const char *path_pattern, *while_path, *report_path;
static atomic_long calls[OPERATIONS], failed[OPERATIONS];

static void give_up(const char *text) {
    fprintf(stderr, "fault_shim: SHEAF_FAULT: cannot read '%s'\n", text);
    abort();
}

static void read_fault(char *text) {
    char *fields[4] = {NULL}, *save = NULL;
    size_t count = 0;
    for (char *field = strtok_r(text, ":", &save); field != NULL && count < 4; field = strtok_r(NULL, ":", &save))
        fields[count++] = field;
    if (count < 3 || fault_count == FAULTS_MAX) give_up(text);
    fault *f = &faults[fault_count++];
    f->operation = f->error = INT_MIN;
    for (int i = 0; i <= ANY; i++) {
        if (strcmp(fields[0], operation_names[i]) == 0) f->operation = i;
    }
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (strcmp(fields[2], errors[i].name) == 0) f->error = errors[i].code;
    }
    f->first = strtol(fields[1], NULL, 10);
    f->count = fields[3] == NULL ? 1 : strcmp(fields[3], "*") == 0 ? LONG_MAX : strtol(fields[3], NULL, 10);
    if (f->operation == INT_MIN || f->error == INT_MIN) give_up(text);
}

__attribute__((constructor)) static void begin(void) {
    static char text[512];
    const char *given = getenv("SHEAF_FAULT");
    path_pattern = getenv("SHEAF_FAULT_PATH");
    while_path = getenv("SHEAF_FAULT_WHILE");
    report_path = getenv("SHEAF_FAULT_REPORT");
    if (given == NULL) return;
    snprintf(text, sizeof text, "%s", given);
    char *save = NULL;
    for (char *one = strtok_r(text, ",", &save); one != NULL; one = strtok_r(NULL, ",", &save)) read_fault(one);
}

__attribute__((destructor)) static void end(void) {
    FILE *out = report_path == NULL ? NULL : fopen(report_path, "w");
    if (out == NULL) return;
    for (int i = 0; i < OPERATIONS; i++)
        fprintf(out, "%s %ld %ld\n", operation_names[i], atomic_load(&calls[i]), atomic_load(&failed[i]));
    fclose(out);
}

/* ---- which calls count ---- */

static int active(void) { return while_path == NULL || faccessat(AT_FDCWD, while_path, F_OK, 0) == 0; }
static int path_matches(const char *path) { return path_pattern == NULL || fnmatch(path_pattern, path, 0) == 0; }

static int descriptor_matches(int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) return 0;
    if (path_pattern == NULL) return 1;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = '\0';
    return path_matches(path);
}

/* 0: let it through; SHORT; or the errno to fail with. */
static int decide(int operation) {
    if (!active()) return 0;
    atomic_fetch_add(&calls[operation], 1);
    int error = 0;
    for (size_t i = 0; i < fault_count; i++) {
        fault *f = &faults[i];
        if (f->operation != operation && f->operation != ANY) continue;
        long number = atomic_fetch_add(&f->seen, 1) + 1;
        if (error == 0 && f->first > 0 && number >= f->first && number - f->first < f->count) error = f->error;
    }
    if (error != 0) atomic_fetch_add(&failed[operation], 1);
    return error;
}

static int fails(int operation, int matches) {
    int saved = errno, error = matches ? decide(operation) : 0;
    errno = saved;
    if (error == 0 || error == SHORT) return 0; /* only reads and writes can be short */
    errno = error;
    return 1;
}

/* The size to pass on, or -1 when the call fails. */
static ssize_t transfer(int operation, int fd, size_t size) {
    int saved = errno, error = descriptor_matches(fd) ? decide(operation) : 0;
    errno = saved;
    if (error == SHORT) return (ssize_t)(size > 1 ? size / 2 : size);
    if (error == 0) return (ssize_t)size;
    errno = error;
    return -1;
}

#define NEXT(name)                                                                                                     \
    static __typeof__(&name) next;                                                                                     \
    if (next == NULL) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* ---- the calls ---- */

static mode_t mode_of(int flags, va_list *arguments) {
    return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(*arguments, mode_t) : 0;
}

#define OPEN_SHIM(name)                                                                                                \
    int name(const char *path, int flags, ...) {                                                                       \
        NEXT(name);                                                                                                    \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = mode_of(flags, &arguments);                                                                      \
        va_end(arguments);                                                                                             \
        return fails(OPEN, path_matches(path)) ? -1 : next(path, flags, mode);                                         \
    }
OPEN_SHIM(open)
OPEN_SHIM(open64)

#define OPENAT_SHIM(name)                                                                                              \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        NEXT(name);                                                                                                    \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = mode_of(flags, &arguments);                                                                      \
        va_end(arguments);                                                                                             \
        return fails(OPEN, path_matches(path)) ? -1 : next(folder, path, flags, mode);                                 \
    }
OPENAT_SHIM(openat)
OPENAT_SHIM(openat64)

#define TRANSFER_SHIM(name, operation, pointer)                                                                        \
    ssize_t name(int fd, pointer bytes, size_t size) {                                                                 \
        NEXT(name);                                                                                                    \
        ssize_t allowed = transfer(operation, fd, size);                                                               \
        return allowed < 0 ? -1 : next(fd, bytes, (size_t)allowed);                                                    \
    }
TRANSFER_SHIM(read, READ, void *)
TRANSFER_SHIM(write, WRITE, const void *)

#define TRANSFER_AT_SHIM(name, operation, pointer, offset_type)                                                        \
    ssize_t name(int fd, pointer bytes, size_t size, offset_type offset) {                                             \
        NEXT(name);                                                                                                    \
        ssize_t allowed = transfer(operation, fd, size);                                                               \
        return allowed < 0 ? -1 : next(fd, bytes, (size_t)allowed, offset);                                            \
    }
TRANSFER_AT_SHIM(pread, READ, void *, off_t)
TRANSFER_AT_SHIM(pread64, READ, void *, off64_t)
TRANSFER_AT_SHIM(pwrite, WRITE, const void *, off_t)
TRANSFER_AT_SHIM(pwrite64, WRITE, const void *, off64_t)

#define SYNC_SHIM(name, operation)                                                                                     \
    int name(int fd) {                                                                                                 \
        NEXT(name);                                                                                                    \
        return fails(operation, descriptor_matches(fd)) ? -1 : next(fd);                                               \
    }
SYNC_SHIM(fsync, FSYNC)
SYNC_SHIM(fdatasync, FDATASYNC)

#define TRUNCATE_SHIM(name, offset_type)                                                                               \
    int name(int fd, offset_type size) {                                                                               \
        NEXT(name);                                                                                                    \
        return fails(TRUNCATE, descriptor_matches(fd)) ? -1 : next(fd, size);                                          \
    }
TRUNCATE_SHIM(ftruncate, off_t)
TRUNCATE_SHIM(ftruncate64, off64_t)

#define ALLOCATE_SHIM(name, offset_type)                                                                               \
    int name(int fd, offset_type offset, offset_type size) {                                                           \
        NEXT(name);                                                                                                    \
        return fails(TRUNCATE, descriptor_matches(fd)) ? errno : next(fd, offset, size);                               \
    }
ALLOCATE_SHIM(posix_fallocate, off_t)
ALLOCATE_SHIM(posix_fallocate64, off64_t)

int rename(const char *from, const char *to) {
    NEXT(rename);
    return fails(RENAME, path_matches(from) || path_matches(to)) ? -1 : next(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    NEXT(renameat);
    return fails(RENAME, path_matches(from) || path_matches(to)) ? -1 : next(from_folder, from, to_folder, to);
}

int unlink(const char *path) {
    NEXT(unlink);
    return fails(UNLINK, path_matches(path)) ? -1 : next(path);
}

int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    return fails(MKDIR, path_matches(path)) ? -1 : next(path, mode);
}
