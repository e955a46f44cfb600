/* mqtt_shim.c - LD_PRELOAD: a broker's connection that loses and doubles messages, under either end of the MQTT carrier.
 *
 * libmosquitto is told that a message was published, and nothing is sent; or it is sent twice. Only messages from a size on
 * are touched: those that carry chunks of updates or parts of models.
 *
 *     SHEAF_LOSSY_SEED    of the random numbers, which are drawn in the order of the messages
 *     SHEAF_LOSSY_DROP    percent that are lost
 *     SHEAF_LOSSY_TWICE   percent that are sent twice
 *     SHEAF_LOSSY_BIG     bytes from which on a message counts
 *     SHEAF_LOSSY_COUNTS  a file per process, NAME.PID: how many messages counted, were lost, were doubled; three u64 that
 *                         are right at any time, also after a SIGKILL */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <mosquitto.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int (*publish_v5)(struct mosquitto *, int *, const char *, int, const void *, int, bool,
                          const mosquitto_property *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int ready;
    publish_v5 publish;
    uint64_t state;
    unsigned long drop, twice, big;
    uint64_t *counts; /* messages, lost, doubled */
} shim;

static unsigned long number(const char *name) {
    const char *text = getenv(name);
    return text == NULL ? 0 : strtoul(text, NULL, 10);
}

static uint64_t *map_counts(void) {
    static uint64_t nowhere[3];
    char path[PATH_MAX];
    const char *name = getenv("SHEAF_LOSSY_COUNTS");
    if (name == NULL) return nowhere;
    (void)snprintf(path, sizeof path, "%s.%d", name, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof nowhere) != 0) abort();
    void *map = mmap(NULL, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) abort();
    close(fd);
    return map;
}

static void prepare(void) {
    if (shim.ready) return;
    *(void **)&shim.publish = dlsym(RTLD_NEXT, "mosquitto_publish_v5");
    if (shim.publish == NULL) abort();
    shim.state = number("SHEAF_LOSSY_SEED");
    shim.drop = number("SHEAF_LOSSY_DROP");
    shim.twice = number("SHEAF_LOSSY_TWICE");
    shim.big = number("SHEAF_LOSSY_BIG");
    shim.counts = map_counts();
    shim.ready = 1;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(void) {
    uint64_t z = shim.state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* How often this message is sent. */
static int fate(int size) {
    int times = 1;
    (void)pthread_mutex_lock(&lock);
    prepare();
    if (size >= 0 && (unsigned long)size >= shim.big) {
        uint64_t hit = draw() % 100;
        times = hit < shim.drop ? 0 : hit < shim.drop + shim.twice ? 2 : 1;
        shim.counts[0]++;
        shim.counts[1] += times == 0;
        shim.counts[2] += times == 2;
    }
    (void)pthread_mutex_unlock(&lock);
    return times;
}

int mosquitto_publish_v5(struct mosquitto *client, int *mid, const char *topic, int size, const void *payload, int qos,
                         bool retain, const mosquitto_property *properties) {
    int times = fate(size), status = MOSQ_ERR_SUCCESS;
    if (times == 0 && mid != NULL) *mid = 0;
    while (times-- > 0 && status == MOSQ_ERR_SUCCESS) {
        status = shim.publish(client, mid, topic, size, payload, qos, retain, properties);
    }
    return status;
}

int mosquitto_publish(struct mosquitto *client, int *mid, const char *topic, int size, const void *payload, int qos,
                      bool retain) {
    return mosquitto_publish_v5(client, mid, topic, size, payload, qos, retain, NULL);
}
