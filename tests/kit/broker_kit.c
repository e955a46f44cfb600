#include "tests/kit/broker_kit.h"

#include <arpa/inet.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 512
#define START_MS   10000
#define AWAIT_MS   60000

extern char **environ;

struct broker_kit {
    pid_t process;
    int port;
    char url[64], config[PATH_BYTES], acl[PATH_BYTES], log[PATH_BYTES];
};

static void give_up(const char *what) {
    fprintf(stderr, "broker_kit: %s\n", what);
    abort();
}

static int loopback_socket(struct sockaddr_in *address, int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_port = htons((uint16_t)port);
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0) give_up("no socket");
    return fd;
}

static int free_port(void) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    int fd = loopback_socket(&address, 0);
    if (bind(fd, (struct sockaddr *)&address, size) != 0 || getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        give_up("no free port");
    close(fd);
    return ntohs(address.sin_port);
}

static int answers(int port) {
    struct sockaddr_in address;
    int fd = loopback_socket(&address, port);
    int connected = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return connected;
}

static void pause_ms(long ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
    (void)nanosleep(&pause, NULL);
}

static FILE *create(const char *path) {
    FILE *file = fopen(path, "w");
    if (file == NULL) give_up(path);
    return file;
}

static void write_acl(const broker_kit *broker, const broker_kit_options *options) {
    FILE *file = create(broker->acl);
    fprintf(file, "pattern write sheaf/1/up/%%u\npattern read sheaf/1/down/%%u\npattern read sheaf/1/cast/#\n");
    if (options->no_acl) fprintf(file, "pattern readwrite #\n");
    fprintf(file, "user %s\ntopic read sheaf/1/up/#\ntopic write sheaf/1/down/#\ntopic write sheaf/1/cast/#\n",
            options->aggregator != NULL ? options->aggregator : "main");
    if (options->superuser != NULL) fprintf(file, "user %s\ntopic readwrite #\n", options->superuser);
    fclose(file);
}

static void write_config(const broker_kit *broker, const pki_kit_files *files) {
    FILE *file = create(broker->config);
    const struct passwd *own = getpwuid(getuid());
    fprintf(file, "listener %d 127.0.0.1\n", broker->port);
    fprintf(file, "cafile %s\ncertfile %s\nkeyfile %s\n", files->ca, files->certificate, files->key);
    fprintf(file, "tls_version tlsv1.3\nrequire_certificate true\nuse_identity_as_username true\n");
    fprintf(file, "use_username_as_clientid true\nset_tcp_nodelay true\nallow_anonymous false\n");
    fprintf(file, "acl_file %s\npersistence false\n", broker->acl);
    fprintf(file, "log_dest file %s\nlog_type error\nlog_type warning\nlog_type notice\n", broker->log);
    if (own != NULL) fprintf(file, "user %s\n", own->pw_name); /* it would leave root, and the key is ours alone */
    fclose(file);
}

static void start(broker_kit *broker) {
    char *const arguments[] = {(char *)"mosquitto", (char *)"-c", broker->config, NULL};
    static const char *const places[] = {"/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/usr/bin/mosquitto"};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1 /* O_WRONLY */, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1, 0);
    int error = -1;
    for (size_t i = 0; error != 0 && i < sizeof places / sizeof places[0]; i++)
        error = posix_spawn(&broker->process, places[i], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) give_up("no mosquitto: install Debian's package mosquitto");
    for (int waited = 0; !answers(broker->port); waited += 10) {
        int status;
        if (waited > START_MS || waitpid(broker->process, &status, WNOHANG) != 0) give_up("mosquitto does not start");
        pause_ms(10);
    }
}

broker_kit *broker_kit_start(pki_kit *pki, const broker_kit_options *options) {
    static const pki_kit_options for_loopback = {.san = "DNS:localhost,IP:127.0.0.1", .eku = "serverAuth"};
    static const broker_kit_options plain = {NULL, NULL, 0};
    static unsigned number;
    broker_kit *broker = calloc(1, sizeof *broker);
    if (broker == NULL) give_up("no memory");
    const char *folder = pki_kit_folder(pki);
    number++;
    (void)snprintf(broker->config, PATH_BYTES, "%s/mosquitto-%u.conf", folder, number);
    (void)snprintf(broker->acl, PATH_BYTES, "%s/mosquitto-%u.acl", folder, number);
    (void)snprintf(broker->log, PATH_BYTES, "%s/mosquitto-%u.log", folder, number);
    broker->port = free_port();
    (void)snprintf(broker->url, sizeof broker->url, "mqtts://127.0.0.1:%d", broker->port);
    write_acl(broker, options != NULL ? options : &plain);
    write_config(broker, pki_kit_issue(pki, "broker", "broker", &for_loopback));
    start(broker);
    return broker;
}

/* Mosquitto's log: "New client connected from 127.0.0.1:40000 as NAME (p5, ...". */
static int has_connected(const broker_kit *broker, const char *name) {
    char wanted[128], line[512];
    int found = 0;
    FILE *file = fopen(broker->log, "r");
    if (file == NULL) return 0;
    (void)snprintf(wanted, sizeof wanted, " as %s (", name);
    while (!found && fgets(line, sizeof line, file) != NULL) found = strstr(line, wanted) != NULL;
    fclose(file);
    return found;
}

void broker_kit_await(const broker_kit *broker, const char *name) {
    for (int waited = 0; !has_connected(broker, name); waited += 5) {
        if (waited > AWAIT_MS) give_up("somebody does not connect");
        pause_ms(5);
    }
}

const char *broker_kit_url(const broker_kit *broker) { return broker->url; }
int broker_kit_port(const broker_kit *broker) { return broker->port; }

void broker_kit_kill(broker_kit *broker) {
    if (broker->process <= 0) return;
    (void)kill(broker->process, SIGKILL);
    (void)waitpid(broker->process, NULL, 0);
    broker->process = 0;
}

void broker_kit_pause(broker_kit *broker) { (void)kill(broker->process, SIGSTOP); }
void broker_kit_resume(broker_kit *broker) { (void)kill(broker->process, SIGCONT); }

void broker_kit_restart(broker_kit *broker) {
    broker_kit_kill(broker);
    start(broker);
}

long broker_kit_peak_kib(const broker_kit *broker) {
    char path[64], line[256];
    long kib = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)broker->process);
    FILE *file = fopen(path, "r");
    if (file == NULL) give_up(path);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtol(line + 6, NULL, 10);
    }
    fclose(file);
    return kib;
}

void broker_kit_free(broker_kit *broker) {
    if (broker == NULL) return;
    broker_kit_kill(broker);
    (void)remove(broker->config);
    (void)remove(broker->acl);
    (void)remove(broker->log);
    free(broker);
}
