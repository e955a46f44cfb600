/* file_probe.c - calls of common/file.h, for the shims to disturb. It prints one line a call: the name of its status,
 * what the problem says, and how many descriptors it left open.
 *
 *     file_probe replace PATH TEXT | read PATH | remove PATH | make_folder PATH | config PATH
 *     file_probe script FOLDER     a fixed series of changes; a line is printed once a change is promised durable */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config.h"
#include "common/file.h"

static int open_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return -1;
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    return count;
}

static sheaf_status replace(const char *path, const char *text, sheaf_problem *problem) {
    return sheaf_file_replace(path, sheaf_span_of(text, strlen(text)), 0600, problem);
}

static sheaf_status read_config(const char *path, sheaf_problem *problem) {
    typedef struct {
        uint32_t a;
        sheaf_config_list b;
    } sample;
    static const sheaf_config_field fields[] = {
        {.key = "a", .kind = SHEAF_CONFIG_U32, .offset = offsetof(sample, a), .required = 1},
        {.key = "b", .kind = SHEAF_CONFIG_NUMBERS, .offset = offsetof(sample, b), .preset = "[1, 2]"},
        {.key = NULL},
    };
    sample out;
    sheaf_config *config = NULL;
    sheaf_status status = sheaf_config_load(path, fields, &out, sizeof out, &config, problem);
    sheaf_config_free(config);
    return status;
}

static sheaf_status read_whole(const char *path, sheaf_problem *problem) {
    sheaf_buffer content;
    sheaf_status status = sheaf_file_read_whole(path, 1 << 20, &content, problem);
    if (status == SHEAF_OK)
        printf("content %s\n", (const char *)content.data);
    else if (content.data != NULL || content.size != 0)
        printf("dangling\n");
    free(content.data);
    return status;
}

static int script(const char *folder) {
    static const struct {
        const char *call, *path, *text;
    } steps[] = {{"make_folder", "a/b", NULL},  {"replace", "a/b/x", "one"}, {"replace", "a/b/x", "two"},
                 {"replace", "a/b/y", "three"}, {"remove", "a/b/x", NULL},   {"replace", "a/z", "four"}};
    char path[SHEAF_PATH_BYTES];
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        sheaf_problem problem;
        sheaf_status status = sheaf_path_join(path, folder, steps[i].path, &problem);
        if (status == SHEAF_OK && steps[i].call[0] == 'm')
            status = sheaf_file_make_folder(path, &problem);
        else if (status == SHEAF_OK && steps[i].text != NULL)
            status = replace(path, steps[i].text, &problem);
        else if (status == SHEAF_OK)
            status = sheaf_file_remove(path, &problem);
        printf("%s %zu\n", sheaf_status_name(status), i + 1);
        fflush(stdout);
    }
    return 0;
}

int main(int count, char **arguments) {
    sheaf_problem problem = {SHEAF_OK, ""};
    if (count < 3) return 2;
    const char *call = arguments[1], *path = arguments[2];
    if (strcmp(call, "script") == 0) return script(path);
    int before = open_descriptors();
    sheaf_status status = SHEAF_E_USAGE;
    if (strcmp(call, "replace") == 0 && count > 3)
        status = replace(path, arguments[3], &problem);
    else if (strcmp(call, "read") == 0)
        status = read_whole(path, &problem);
    else if (strcmp(call, "remove") == 0)
        status = sheaf_file_remove(path, &problem);
    else if (strcmp(call, "make_folder") == 0)
        status = sheaf_file_make_folder(path, &problem);
    else if (strcmp(call, "config") == 0)
        status = read_config(path, &problem);
    printf("%s leaked=%d %s\n", sheaf_status_name(status), open_descriptors() - before, problem.text);
    return 0;
}
