/* malloc_shim.c - LD_PRELOAD: makes the Nth allocation that our own program asks for fail.
 *
 *     SHEAF_MALLOC         N[:COUNT], the Nth and the COUNT - 1 after it fail (COUNT * = all)
 *     SHEAF_MALLOC_REPORT  at exit, "CALLS FAILED" is written here
 *
 * Only calls from the program itself count, not those of shared libraries: those have their own tests, and some abort.
 * It stands alone because a sanitizer has its own malloc, which this library would push aside. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* glibc's own names behind malloc, callable before dlsym is. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);

static uintptr_t code_begin, code_end;
static long first, count = 1;
static atomic_long calls, failed;
static const char *report_path;

/* The program is the first object that the loader lists. */
static int find_program(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    (void)context;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0) continue;
        code_begin = info->dlpi_addr + part->p_vaddr;
        code_end = code_begin + part->p_memsz;
    }
    return 1;
}

__attribute__((constructor)) static void begin(void) {
    const char *given = getenv("SHEAF_MALLOC");
    report_path = getenv("SHEAF_MALLOC_REPORT");
    if (given == NULL) return;
    char *colon = NULL;
    first = strtol(given, &colon, 10);
    if (*colon == ':') count = strcmp(colon + 1, "*") == 0 ? LONG_MAX : strtol(colon + 1, NULL, 10);
    dl_iterate_phdr(find_program, NULL);
}

__attribute__((destructor)) static void end(void) {
    char text[64];
    if (report_path == NULL) return;
    int size = snprintf(text, sizeof text, "%ld %ld\n", atomic_load(&calls), atomic_load(&failed));
    int fd = open(report_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, text, (size_t)size) != size) abort();
    close(fd);
}

static int fails(const void *caller) {
    if ((uintptr_t)caller < code_begin || (uintptr_t)caller >= code_end) return 0;
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (first <= 0 || number < first || number - first >= count) return 0;
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size); }
void *calloc(size_t number, size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(number, size);
}
void *realloc(void *memory, size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, size);
}
