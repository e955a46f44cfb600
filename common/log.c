#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/log_line.h"

static struct {
    atomic_int level;
    pthread_mutex_t mutex; /* guards the two below, and keeps the sink open while a line goes out */
    int json;
    int fd;
} sink = {SHEAF_LOG_INFO, PTHREAD_MUTEX_INITIALIZER, 0, STDERR_FILENO};

static sheaf_status open_sink(const char *path, int *fd) {
    *fd = STDERR_FILENO;
    if (path == NULL) return SHEAF_OK;
    *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (*fd >= 0) return SHEAF_OK;
    return errno == ENOENT   ? SHEAF_E_NOT_FOUND
           : errno == EACCES ? SHEAF_E_PERMISSION
           : errno == ENOSPC ? SHEAF_E_NO_SPACE
                             : SHEAF_E_DISK;
}

sheaf_status sheaf_log_configure(sheaf_log_level level, int json, const char *path) {
    int fd = STDERR_FILENO;
    sheaf_status status = open_sink(path, &fd);
    if (status != SHEAF_OK) return status;
    pthread_mutex_lock(&sink.mutex);
    int old = sink.fd;
    sink.fd = fd;
    sink.json = json;
    atomic_store(&sink.level, (int)level);
    pthread_mutex_unlock(&sink.mutex);
    if (old != STDERR_FILENO) close(old);
    return SHEAF_OK;
}

static void time_text(char *out, size_t capacity) {
    struct timespec now = {0, 0};
    struct tm parts;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &parts) == NULL) {
        (void)snprintf(out, capacity, "1970-01-01T00:00:00.000000Z");
        return;
    }
    size_t used = strftime(out, capacity, "%Y-%m-%dT%H:%M:%S", &parts);
    (void)snprintf(out + used, capacity - used, ".%06ldZ", now.tv_nsec / 1000);
}

/* A reader of our log that went away must not take the process with it, so SIGPIPE is held back for this one write
 * and taken from the queue when this write made it. */
static void write_quietly(int fd, const char *text, size_t size) {
    sigset_t pipe_only, before, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    int was_pending = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    ssize_t written = -1;
    do written = write(fd, text, size);
    while (written < 0 && errno == EINTR);
    if (written < 0 && errno == EPIPE && !was_pending) {
        struct timespec none = {0, 0};
        (void)sigtimedwait(&pipe_only, NULL, &none);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void sheaf_log(sheaf_log_level level, const char *event, const char *format, ...) {
    if ((int)level < atomic_load(&sink.level)) return;
    int saved = errno;
    char time[40];
    sheaf_log_line line;
    time_text(time, sizeof time);
    pthread_mutex_lock(&sink.mutex);
    va_list arguments;
    va_start(arguments, format);
    sheaf_log_line_make(&line, sink.json, time, level, event, format, arguments);
    va_end(arguments);
    write_quietly(sink.fd, line.text, line.size);
    pthread_mutex_unlock(&sink.mutex);
    errno = saved;
}
