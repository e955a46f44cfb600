/* power_shim.c - LD_PRELOAD: remembers what a disk would still hold if the power failed now.
 *
 * Nothing but fsync makes a change durable: fsync of a file saves its content, fsync of a folder saves its names. So
 * writes need no interception. At each sync the shim copies that file, or that folder's list of names, into a shadow;
 * tests/fault/power.py builds the surviving tree from it. A file that was never synced comes back empty, a name
 * whose folder was never synced does not come back.
 *
 *     SHEAF_POWER_ROOT    the folder that is watched; all that it holds at the start counts as durable
 *     SHEAF_POWER_SHADOW  a folder outside of it: files/INODE, folders/INODE, root, count, sites
 *     SHEAF_POWER_DIE     N or N:after: SIGKILL at the Nth sync under the root, before (or after) it takes effect
 *     SHEAF_POWER_IGNORE  a site as listed in `sites`: its syncs do nothing, as if the call had been removed
 *
 * A site is "file" or "folder", a space, and the path below the root with digits and hashes replaced by '#'.
 * The shim keeps an O_PATH descriptor of every inode that it recorded, so that no number is used twice while it runs.
 * Only the first process counts: one that it starts inherits SHEAF_POWER_OWNER and stays passive. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    int active;
    char root[PATH_MAX], shadow[PATH_MAX];
    const char *ignore;
    long die_at, count;
    int die_after;
    ino_t *kept; /* inodes of which a descriptor is open */
    size_t kept_count;
    char (*sites)[PATH_MAX];
    size_t site_count;
} power;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what) {
    fprintf(stderr, "power_shim: %s: %s\n", what, strerror(errno));
    abort();
}

static void keep(int folder, const char *name, int flags, ino_t inode) {
    for (size_t i = 0; i < power.kept_count; i++) {
        if (power.kept[i] == inode) return;
    }
    if (openat(folder, name, O_PATH | O_CLOEXEC | flags) < 0) { /* stays open on purpose */
        if (errno == ENOENT) return;
        fail("keep an inode");
    }
    power.kept = realloc(power.kept, (power.kept_count + 1) * sizeof *power.kept);
    if (power.kept == NULL) fail("memory");
    power.kept[power.kept_count++] = inode;
}

/* ---- the shadow ---- */

static FILE *shadow_begin(char temporary[PATH_MAX]) {
    snprintf(temporary, PATH_MAX, "%.4000s/.new", power.shadow);
    FILE *out = fopen(temporary, "we");
    if (out == NULL) fail("shadow");
    return out;
}

/* The process may be killed at any time, so an entry of the shadow is replaced as a whole. */
static void shadow_end(FILE *out, const char *temporary, const char *folder, uintmax_t number) {
    char path[PATH_MAX];
    if (number == 0)
        snprintf(path, sizeof path, "%.4000s/%s", power.shadow, folder);
    else
        snprintf(path, sizeof path, "%.4000s/%s/%ju", power.shadow, folder, number);
    if (fclose(out) != 0 || rename(temporary, path) != 0) fail("shadow");
}

static void record_file(int fd, ino_t inode) {
    char temporary[PATH_MAX], bytes[65536];
    struct stat info;
    if (fstat(fd, &info) != 0) fail("look at a file");
    FILE *out = shadow_begin(temporary);
    if (ftruncate(fileno(out), info.st_size) != 0) fail("shadow");
    for (off_t at = lseek(fd, 0, SEEK_DATA); at >= 0 && at < info.st_size; at = lseek(fd, at, SEEK_DATA)) {
        ssize_t size = pread(fd, bytes, sizeof bytes, at);
        if (size <= 0) break;
        if (pwrite(fileno(out), bytes, (size_t)size, at) != size) fail("shadow");
        at += size;
    }
    shadow_end(out, temporary, "files", inode);
}

static void record_folder(int fd, ino_t inode, int with_content) {
    char temporary[PATH_MAX];
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (entries == NULL) fail("read a folder");
    FILE *out = shadow_begin(temporary);
    struct dirent *entry;
    while ((entry = readdir(entries)) != NULL) {
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue; /* gone meanwhile */
        if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) continue;
        keep(fd, entry->d_name, O_NOFOLLOW, info.st_ino);
        fprintf(out, "%s %ju %s\n", S_ISDIR(info.st_mode) ? "folder" : "file", (uintmax_t)info.st_ino, entry->d_name);
    }
    shadow_end(out, temporary, "folders", inode);
    /* At the start everything below is durable, too. */
    rewinddir(entries);
    while (with_content && (entry = readdir(entries)) != NULL) {
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int child = openat(fd, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (child < 0 || fstat(child, &info) != 0) fail("read the state at the start");
        if (S_ISDIR(info.st_mode))
            record_folder(child, info.st_ino, 1);
        else if (S_ISREG(info.st_mode))
            record_file(child, info.st_ino);
        close(child);
    }
    closedir(entries);
}

static void record_number(const char *name, uintmax_t number) {
    char temporary[PATH_MAX];
    FILE *out = shadow_begin(temporary);
    fprintf(out, "%ju\n", number);
    shadow_end(out, temporary, name, 0);
}

/* ---- sites ---- */

/* Hashes and numbers become '#', so that a call site has one name in all rounds. */
static void site_of(char out[PATH_MAX], const char *kind, const char *path) {
    size_t used = (size_t)snprintf(out, PATH_MAX, "%s ", kind);
    if (*path == '\0') path = ".";
    while (*path != '\0' && used + 2 < PATH_MAX) {
        size_t hex = strspn(path, "0123456789abcdef"), digits = strspn(path, "0123456789");
        size_t skip = hex >= 8 ? hex : digits;
        out[used++] = skip > 0 ? '#' : *path;
        path += skip > 0 ? skip : 1;
    }
    out[used] = '\0';
}

static void note_site(const char *site) {
    char path[PATH_MAX];
    for (size_t i = 0; i < power.site_count; i++) {
        if (strcmp(power.sites[i], site) == 0) return;
    }
    power.sites = realloc(power.sites, (power.site_count + 1) * sizeof *power.sites);
    if (power.sites == NULL) fail("memory");
    snprintf(power.sites[power.site_count++], PATH_MAX, "%s", site);
    snprintf(path, sizeof path, "%.4000s/sites", power.shadow);
    FILE *out = fopen(path, "ae");
    if (out == NULL || fprintf(out, "%s\n", site) < 0 || fclose(out) != 0) fail("sites");
}

/* ---- syncs ---- */

/* The path below the root, or NULL when `fd` is not there. A removed file is still where it was. */
static const char *below_root(int fd, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    size_t root = strlen(power.root);
    if (size < 0) return NULL;
    path[size] = '\0';
    if (strncmp(path, power.root, root) != 0 || (path[root] != '/' && path[root] != '\0')) return NULL;
    char *removed = strstr(path, " (deleted)");
    if (removed != NULL) *removed = '\0';
    return path[root] == '/' ? path + root + 1 : path + root;
}

static void take_effect(int fd, const struct stat *info) {
    if (S_ISDIR(info->st_mode)) {
        record_folder(fd, info->st_ino, 0);
        return;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = open(link, O_RDONLY | O_CLOEXEC); /* the caller's may be for writing only */
    if (again < 0) fail("read a synced file");
    keep(AT_FDCWD, link, 0, info->st_ino);
    record_file(again, info->st_ino);
    close(again);
}

static int sync_seen(int fd) {
    char path[PATH_MAX], site[PATH_MAX];
    struct stat info;
    const char *below = below_root(fd, path);
    if (below == NULL) return 0;
    if (fstat(fd, &info) != 0) return -1;
    pthread_mutex_lock(&mutex);
    site_of(site, S_ISDIR(info.st_mode) ? "folder" : "file", below);
    note_site(site);
    power.count++;
    record_number("count", (uintmax_t)power.count);
    if (power.count == power.die_at && !power.die_after) kill(getpid(), SIGKILL);
    if (power.ignore == NULL || strcmp(power.ignore, site) != 0) take_effect(fd, &info);
    if (power.count == power.die_at) kill(getpid(), SIGKILL);
    pthread_mutex_unlock(&mutex);
    return 0;
}

/* The real disk is left alone: the shadow is what counts, and it is faster. */
int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return power.active ? sync_seen(fd) : next(fd);
}

int fdatasync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return power.active ? sync_seen(fd) : next(fd);
}

static void make_shadow(void) {
    char path[PATH_MAX];
    static const char *const folders[] = {"", "/files", "/folders"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%.4000s%s", power.shadow, folders[i]);
        if (mkdir(path, 0700) != 0 && errno != EEXIST) fail("make the shadow");
    }
}

__attribute__((constructor)) static void begin(void) {
    const char *root = getenv("SHEAF_POWER_ROOT"), *shadow = getenv("SHEAF_POWER_SHADOW"),
               *die = getenv("SHEAF_POWER_DIE");
    char owner[32];
    struct rlimit limit;
    struct stat info;
    if (root == NULL || shadow == NULL || getenv("SHEAF_POWER_OWNER") != NULL) return;
    if (realpath(root, power.root) == NULL) fail(root);
    snprintf(power.shadow, sizeof power.shadow, "%s", shadow);
    snprintf(owner, sizeof owner, "%ld", (long)getpid());
    setenv("SHEAF_POWER_OWNER", owner, 1);
    power.ignore = getenv("SHEAF_POWER_IGNORE");
    if (die != NULL) {
        char *rest = NULL;
        power.die_at = strtol(die, &rest, 10);
        power.die_after = strcmp(rest, ":after") == 0;
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    make_shadow();
    int fd = open(power.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) fail(power.root);
    record_folder(fd, info.st_ino, 1);
    record_number("root", info.st_ino);
    record_number("count", 0);
    close(fd);
    power.active = 1;
}
