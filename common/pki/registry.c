#include "common/pki/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#define LINE_BYTES_MAX  8192u
#define INDEX_BYTES_MAX (256u << 20) /* some half a million entries */

/* --- one entry as a line ------------------------------------------------------------------------------------------ */

static json_t *to_json(const sheaf_issued *entry) {
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "serial", entry->serial, "role",
                     sheaf_role_name(entry->identity.role), "tenant", entry->identity.tenant, "name",
                     entry->identity.name, "not_before", entry->not_before, "not_after", entry->not_after,
                     "fingerprint", entry->fingerprint, "certificate", entry->certificate, "key", entry->key);
}

static int take(const json_t *object, const char *key, char *out, size_t capacity) {
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strlen(text) >= capacity) return 0;
    memcpy(out, text, strlen(text) + 1);
    return 1;
}

static int from_json(const json_t *object, sheaf_issued *entry) {
    char role[SHEAF_NAME_BYTES];
    if (!take(object, "role", role, sizeof role)) return 0;
    entry->identity.role = sheaf_role_from_name(role);
    return entry->identity.role != SHEAF_ROLE_NONE && take(object, "serial", entry->serial, sizeof entry->serial) &&
           take(object, "tenant", entry->identity.tenant, sizeof entry->identity.tenant) &&
           take(object, "name", entry->identity.name, sizeof entry->identity.name) &&
           take(object, "not_before", entry->not_before, sizeof entry->not_before) &&
           take(object, "not_after", entry->not_after, sizeof entry->not_after) &&
           take(object, "fingerprint", entry->fingerprint, sizeof entry->fingerprint) &&
           take(object, "certificate", entry->certificate, sizeof entry->certificate) &&
           take(object, "key", entry->key, sizeof entry->key);
}

static char *to_line(const sheaf_issued *entry) {
    json_t *object = to_json(entry);
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

/* --- appending ---------------------------------------------------------------------------------------------------- */

/* Where the last whole line ends. */
static sheaf_status find_end(int fd, const char *path, uint64_t *end, sheaf_problem *problem) {
    struct stat info;
    if (fstat(fd, &info) != 0) return sheaf_problem_errno(problem, "look at", path);
    uint64_t size = (uint64_t)info.st_size;
    size_t tail = size < LINE_BYTES_MAX ? (size_t)size : LINE_BYTES_MAX;
    uint8_t bytes[LINE_BYTES_MAX];
    sheaf_status status = sheaf_file_read_at(fd, bytes, tail, size - tail, path, problem);
    if (status != SHEAF_OK) return status;
    while (tail > 0 && bytes[tail - 1] != '\n') tail--, size--;
    if (tail == 0 && size > 0)
        return sheaf_problem_set(problem, SHEAF_E_CORRUPT, "%s: its last line is too long", path);
    *end = size;
    return SHEAF_OK;
}

static sheaf_status append(int fd, const char *path, sheaf_span line, sheaf_problem *problem) {
    uint64_t end = 0;
    sheaf_status status = find_end(fd, path, &end, problem);
    if (status != SHEAF_OK) return status;
    if (ftruncate(fd, (off_t)end) != 0) return sheaf_problem_errno(problem, "cut the torn line of", path);
    status = sheaf_file_write_at(fd, line, end, path, problem);
    if (status != SHEAF_OK) return status;
    if (fsync(fd) != 0) return sheaf_problem_errno(problem, "sync", path);
    return sheaf_file_sync_folder_of(path, problem); /* the first entry also made the file */
}

sheaf_status sheaf_registry_add(const char *folder, const sheaf_issued *entry, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_path_join(path, folder, SHEAF_REGISTRY_FILE, problem);
    if (status != SHEAF_OK) return status;
    char *line = to_line(entry);
    if (line == NULL)
        return sheaf_problem_set(problem, SHEAF_E_NAME, "%s: an entry that is not UTF-8, or no memory", path);
    size_t size = strlen(line);
    int fd = -1;
    if (size >= LINE_BYTES_MAX) {
        status = sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: an entry is too long", path);
    } else if ((fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) < 0) {
        status = sheaf_problem_errno(problem, "open", path);
    } else {
        line[size] = '\n'; /* in the place of the NUL */
        status = append(fd, path, sheaf_span_of(line, size + 1), problem);
    }
    if (fd >= 0) close(fd);
    free(line);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static size_t count_lines(const sheaf_buffer *text) {
    size_t lines = 0;
    for (size_t i = 0; i < text->size; i++) lines += text->data[i] == '\n';
    return lines;
}

static sheaf_status parse_lines(const sheaf_buffer *text, const char *path, sheaf_issued *entries, size_t count,
                                sheaf_problem *problem) {
    const char *at = (const char *)text->data;
    for (size_t i = 0; i < count; i++) {
        size_t size = strcspn(at, "\n"); /* a NUL ends the text; one inside a line fails as JSON below */
        json_t *object = json_loadb(at, size, JSON_REJECT_DUPLICATES, NULL);
        int good = json_is_object(object) && from_json(object, &entries[i]);
        json_decref(object);
        if (!good) return sheaf_problem_set(problem, SHEAF_E_CORRUPT, "%s:%zu: not an entry", path, i + 1);
        at += size + 1;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_registry_read(const char *folder, sheaf_issued **entries, size_t *count, sheaf_problem *problem) {
    *entries = NULL;
    *count = 0;
    char path[SHEAF_PATH_BYTES];
    sheaf_buffer text = {0};
    sheaf_status status = sheaf_path_join(path, folder, SHEAF_REGISTRY_FILE, problem);
    if (status == SHEAF_OK) status = sheaf_file_read_whole(path, INDEX_BYTES_MAX, &text, problem);
    if (status == SHEAF_E_NOT_FOUND) return SHEAF_OK;
    if (status != SHEAF_OK) return status;
    size_t lines = count_lines(&text);
    sheaf_issued *read = calloc(lines + 1, sizeof *read);
    if (read == NULL) {
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for %zu entries", path, lines);
    } else {
        status = parse_lines(&text, path, read, lines, problem);
    }
    free(text.data);
    if (status != SHEAF_OK) {
        free(read);
        return status;
    }
    *entries = read;
    *count = lines;
    return SHEAF_OK;
}
