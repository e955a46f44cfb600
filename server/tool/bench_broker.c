/* A Mosquitto for the bench, with the configuration that `sheaf pki broker-config` writes, on a free port of loopback. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/pki/broker_files.h"
#include "server/tool/bench_mqtt.h"

#define START_MS 10000
#define PID_FILE "broker.pid"

static int loopback(struct sockaddr_in *address, int port) {
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_port = htons((uint16_t)port);
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static int free_port(void) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    int fd = loopback(&address, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        sheaf_bench_die("broker", strerror(errno));
    close(fd);
    return ntohs(address.sin_port);
}

static int answers(int port) {
    struct sockaddr_in address;
    int fd = loopback(&address, port);
    int connected = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) close(fd);
    return connected;
}

static void write_files(const sheaf_bench_load *load, const char *folder, int port) {
    char listen[64], certificate[SHEAF_PATH_BYTES + 64], key[SHEAF_PATH_BYTES + 64], ca[SHEAF_PATH_BYTES + 64],
        path[SHEAF_PATH_BYTES + 64];
    sheaf_problem problem = {SHEAF_OK, ""};
    const struct passwd *own = getpwuid(getuid());
    (void)snprintf(listen, sizeof listen, "127.0.0.1:%d", port);
    (void)snprintf(certificate, sizeof certificate, "%s/pki/broker-broker.pem", load->folder);
    (void)snprintf(key, sizeof key, "%s/pki/broker-broker.key", load->folder);
    (void)snprintf(ca, sizeof ca, "%s/pki/ca.pem", load->folder);
    const sheaf_broker_options options = {
        .listen = listen, .certificate = certificate, .key = key, .ca = ca, .aggregator = "bench"};
    if (sheaf_broker_files_write(&options, folder, &problem) != SHEAF_OK) sheaf_bench_die("broker", problem.text);
    (void)snprintf(path, sizeof path, "%s/mosquitto.conf", folder);
    FILE *file = fopen(path, "a");
    if (file == NULL) sheaf_bench_die("broker", strerror(errno));
    /* As root it would become another user, who may not read the key. */
    if (own != NULL) (void)fprintf(file, "user %s\n", own->pw_name);
    (void)fprintf(file, "log_dest none\n");
    (void)fclose(file);
}

static void become_broker(const char *config) {
    static const char *const places[] = {"/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/usr/bin/mosquitto"};
    char name[] = "mosquitto", option[] = "-c", path[SHEAF_PATH_BYTES + 64];
    (void)snprintf(path, sizeof path, "%s", config);
    char *const arguments[] = {name, option, path, NULL};
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC), people = fcntl(2, F_DUPFD_CLOEXEC, 3);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(nowhere, 1);
    (void)dup2(nowhere, 2); /* it warns of root, whom its configuration asks for */
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) (void)execv(places[i], arguments);
    dprintf(people, "sheaf bench: no mosquitto on this machine: install Debian's package mosquitto\n");
    _exit(4);
}

void sheaf_bench_broker_start(const sheaf_bench_load *load, char url[SHEAF_BENCH_ADDRESS_BYTES]) {
    const struct timespec moment = {0, 10000000};
    char folder[SHEAF_PATH_BYTES + 32], config[SHEAF_PATH_BYTES + 64], path[SHEAF_PATH_BYTES + 64];
    int port = free_port();
    (void)snprintf(folder, sizeof folder, "%s/broker", load->folder);
    write_files(load, folder, port);
    (void)snprintf(config, sizeof config, "%s/mosquitto.conf", folder);
    pid_t child = fork();
    if (child == 0) become_broker(config);
    for (int waited = 0; child < 0 || !answers(port); waited += 10) {
        if (child < 0 || waited > START_MS || kill(child, 0) != 0) sheaf_bench_die("broker", "it does not start");
        (void)nanosleep(&moment, NULL);
    }
    (void)snprintf(path, sizeof path, "%s/" PID_FILE, load->folder);
    FILE *file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%d\n", (int)child) < 0 || fclose(file) != 0)
        sheaf_bench_die("broker", "cannot write its process id");
    (void)snprintf(url, SHEAF_BENCH_ADDRESS_BYTES, "mqtts://127.0.0.1:%d", port);
}

double sheaf_bench_broker_peak_kib(const sheaf_bench_load *load) {
    char path[SHEAF_PATH_BYTES + 64], line[256];
    double kib = -1;
    (void)snprintf(path, sizeof path, "%s/" PID_FILE, load->folder);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(line, sizeof line, file) == NULL) sheaf_bench_die("broker", "its process id is gone");
    (void)fclose(file);
    (void)snprintf(path, sizeof path, "/proc/%ld/status", strtol(line, NULL, 10));
    file = fopen(path, "r");
    if (file == NULL) sheaf_bench_die("broker", "it has ended");
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtod(line + 6, NULL);
    (void)fclose(file);
    return kib;
}
