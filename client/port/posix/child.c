#include "client/port/posix/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

typedef struct {
    int ends[2]; /* read, write */
} pipe_pair;

static void close_and_forget(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static int make_pipe(pipe_pair *made) {
    if (pipe(made->ends) != 0) {
        made->ends[0] = made->ends[1] = -1;
        return 0;
    }
    return fcntl(made->ends[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(made->ends[1], F_SETFD, FD_CLOEXEC) == 0;
}

static int prepare(posix_spawn_file_actions_t *actions, posix_spawnattr_t *attributes, const pipe_pair pipes[3]) {
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGTERM);
    sigaddset(&defaults, SIGPIPE);
    /* The daemon's mask and dispositions are its own: the program starts with none blocked and none ignored. */
    return posix_spawn_file_actions_adddup2(actions, pipes[0].ends[0], STDIN_FILENO) == 0 &&
           posix_spawn_file_actions_adddup2(actions, pipes[1].ends[1], STDOUT_FILENO) == 0 &&
           posix_spawn_file_actions_adddup2(actions, pipes[2].ends[1], STDERR_FILENO) == 0 &&
           posix_spawnattr_setpgroup(attributes, 0) == 0 && posix_spawnattr_setsigmask(attributes, &none) == 0 &&
           posix_spawnattr_setsigdefault(attributes, &defaults) == 0 &&
           posix_spawnattr_setflags(attributes,
                                    POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF) == 0;
}

static int spawn(pid_t *pid, char *const arguments[], const pipe_pair pipes[3]) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&actions) != 0) return ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return ENOMEM;
    }
    int failure = ENOMEM;
    if (prepare(&actions, &attributes, pipes)) {
        failure = posix_spawnp(pid, arguments[0], &actions, &attributes, arguments, environ);
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failure;
}

static int make_stream(sheaf_child_stream *stream, int fd) {
    stream->fd = fd;
    stream->text = malloc(SHEAF_CHILD_LINE_BYTES);
    return stream->text != NULL && fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

/* Our ends become the child's; the others close. */
static sheaf_status keep_ends(sheaf_child *child, pipe_pair pipes[3], sheaf_problem *problem) {
    child->input = pipes[0].ends[1];
    int made = make_stream(&child->output, pipes[1].ends[0]);
    made &= make_stream(&child->errors, pipes[2].ends[0]);
    pipes[0].ends[1] = pipes[1].ends[0] = pipes[2].ends[0] = -1;
    return made ? SHEAF_OK : sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a trainer's lines");
}

sheaf_status sheaf_child_start(sheaf_child *child, char *const arguments[], sheaf_problem *problem) {
    memset(child, 0, sizeof *child);
    child->input = child->output.fd = child->errors.fd = -1;
    pipe_pair pipes[3] = {{{-1, -1}}, {{-1, -1}}, {{-1, -1}}};
    sheaf_status status = SHEAF_OK;
    for (size_t i = 0; i < 3 && status == SHEAF_OK; i++) {
        if (!make_pipe(&pipes[i])) status = sheaf_problem_errno(problem, "make a pipe for", arguments[0]);
    }
    if (status == SHEAF_OK) {
        int failure = spawn(&child->pid, arguments, pipes);
        errno = failure;
        if (failure != 0) status = sheaf_problem_errno(problem, "start", arguments[0]);
        if (failure != 0) child->pid = 0;
    }
    if (status == SHEAF_OK) status = keep_ends(child, pipes, problem);
    for (size_t i = 0; i < 3; i++) {
        close_and_forget(&pipes[i].ends[0]);
        close_and_forget(&pipes[i].ends[1]);
    }
    if (status != SHEAF_OK) sheaf_child_stop(child);
    return status;
}

sheaf_status sheaf_child_tell(sheaf_child *child, const char *text, sheaf_problem *problem) {
    size_t size = strlen(text);
    if (size > 4096) return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "a line of %zu bytes for the trainer", size);
    ssize_t written = write(child->input, text, size);
    if (written == (ssize_t)size) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_TRAINER, "the trainer does not read its standard input");
}

/* Moves what follows the line that was given out to the front. */
static void drop_given_line(sheaf_child_stream *stream) {
    if (stream->given == 0) return;
    memmove(stream->text, stream->text + stream->given, stream->size - stream->given);
    stream->size -= stream->given;
    stream->given = 0;
}

static int give_line(sheaf_child_stream *stream, const char **line) {
    char *end = memchr(stream->text, '\n', stream->size);
    if (end == NULL) return 0;
    /* A NUL inside would end the line early and leave its rest to be read as another: it becomes a question mark. */
    for (char *at = stream->text; at < end; at++) {
        if (*at == '\0') *at = '?';
    }
    *end = '\0';
    stream->given = (size_t)(end - stream->text) + 1;
    *line = stream->text;
    return 1;
}

sheaf_status sheaf_child_line(sheaf_child_stream *stream, const char **line) {
    if (stream->text == NULL) return SHEAF_ENDED;
    drop_given_line(stream);
    for (;;) {
        if (give_line(stream, line)) return SHEAF_OK;
        if (stream->size == SHEAF_CHILD_LINE_BYTES) return SHEAF_E_TOO_LARGE;
        if (stream->fd < 0) return SHEAF_ENDED;
        ssize_t got = read(stream->fd, stream->text + stream->size, SHEAF_CHILD_LINE_BYTES - stream->size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return SHEAF_AGAIN;
        if (got == 0) close_and_forget(&stream->fd);
        stream->size += (size_t)got;
    }
}

/* The group dies before its leader is reaped, while its number cannot belong to anybody else. */
static void reap(sheaf_child *child, int code) {
    (void)kill(-child->pid, SIGKILL);
    while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) continue;
    child->pid = 0;
    child->exited = 1;
    child->exit_code = code;
}

sheaf_status sheaf_child_ended(sheaf_child *child) {
    if (child->pid == 0) return SHEAF_OK;
    siginfo_t info;
    memset(&info, 0, sizeof info);
    int waited = waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (waited != 0 || info.si_pid == 0) return SHEAF_AGAIN;
    reap(child, info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status);
    return SHEAF_OK;
}

void sheaf_child_stop(sheaf_child *child) {
    if (child->pid != 0) reap(child, 128 + SIGKILL);
    if (child->output.text == NULL && child->errors.text == NULL && child->output.fd <= 0) {
        /* Zeroed, or never begun: descriptor 0 is not ours to close. */
        child->input = child->output.fd = child->errors.fd = -1;
        return;
    }
    close_and_forget(&child->input);
    close_and_forget(&child->output.fd);
    close_and_forget(&child->errors.fd);
    free(child->output.text);
    free(child->errors.text);
    child->output.text = child->errors.text = NULL;
}
