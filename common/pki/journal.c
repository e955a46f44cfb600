#include "common/pki/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES_MAX 8192u
#define FILE_BYTES_MAX (256u << 20) /* some half a million entries */

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

static sheaf_status append_line(const char *path, char *line, sheaf_problem *problem) {
    size_t size = strlen(line);
    if (size >= LINE_BYTES_MAX) return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: an entry is too long", path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return sheaf_problem_errno(problem, "open", path);
    line[size] = '\n'; /* in the place of the NUL */
    sheaf_status status = append(fd, path, sheaf_span_of(line, size + 1), problem);
    close(fd);
    return status;
}

sheaf_status sheaf_journal_append(const char *folder, const char *name, const json_t *object, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_path_join(path, folder, name, problem);
    if (status != SHEAF_OK) return status;
    char *line = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    if (line == NULL)
        return sheaf_problem_set(problem, SHEAF_E_NAME, "%s: an entry that is not UTF-8, or no memory", path);
    status = append_line(path, line, problem);
    free(line);
    return status;
}

static sheaf_status take_lines(const sheaf_buffer *text, const char *path,
                               int (*take)(void *context, const json_t *object), void *context,
                               sheaf_problem *problem) {
    const char *at = (const char *)text->data, *end = at + text->size;
    for (size_t number = 1;; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) return SHEAF_OK; /* what follows the last whole line was never finished */
        json_t *object = json_loadb(at, (size_t)(stop - at), JSON_REJECT_DUPLICATES, NULL);
        int good = json_is_object(object) && take(context, object);
        json_decref(object);
        if (!good) return sheaf_problem_set(problem, SHEAF_E_CORRUPT, "%s:%zu: not an entry", path, number);
        at = stop + 1;
    }
}

sheaf_status sheaf_journal_read(const char *folder, const char *name, int (*take)(void *context, const json_t *object),
                                void *context, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    sheaf_buffer text = {0};
    sheaf_status status = sheaf_path_join(path, folder, name, problem);
    if (status == SHEAF_OK) status = sheaf_file_read_whole(path, FILE_BYTES_MAX, &text, problem);
    if (status == SHEAF_E_NOT_FOUND) return SHEAF_OK;
    if (status != SHEAF_OK) return status;
    status = take_lines(&text, path, take, context, problem);
    free(text.data);
    return status;
}

int sheaf_journal_text(const json_t *object, const char *key, char *out, size_t capacity) {
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strlen(text) >= capacity) return 0;
    memcpy(out, text, strlen(text) + 1);
    return 1;
}
