#include "server/queue.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct sheaf_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t capacity, count, head;
    int woken, closed;
    void *ring[];
};

uint64_t sheaf_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t sheaf_now_unix_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

sheaf_status sheaf_queue_make(size_t capacity, sheaf_queue **out) {
    *out = NULL;
    sheaf_queue *queue = calloc(1, sizeof *queue + capacity * sizeof queue->ring[0]);
    if (queue == NULL) return SHEAF_E_MEMORY;
    queue->capacity = capacity;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = queue;
    return SHEAF_OK;
}

void sheaf_queue_free(sheaf_queue *queue) {
    if (queue == NULL) return;
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

static void put(sheaf_queue *queue, void *item) {
    assert(queue->count < queue->capacity);
    queue->ring[(queue->head + queue->count) % queue->capacity] = item;
    queue->count++;
    pthread_cond_signal(&queue->changed);
}

void sheaf_queue_push(sheaf_queue *queue, void *item) {
    pthread_mutex_lock(&queue->lock);
    put(queue, item);
    pthread_mutex_unlock(&queue->lock);
}

int sheaf_queue_push_if_open(sheaf_queue *queue, void *item) {
    pthread_mutex_lock(&queue->lock);
    int open = !queue->closed;
    if (open) put(queue, item);
    pthread_mutex_unlock(&queue->lock);
    return open;
}

static void *take(sheaf_queue *queue) {
    if (queue->count == 0) return NULL;
    void *item = queue->ring[queue->head];
    queue->head = (queue->head + 1) % queue->capacity;
    queue->count--;
    return item;
}

void *sheaf_queue_try_pop(sheaf_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    void *item = take(queue);
    pthread_mutex_unlock(&queue->lock);
    return item;
}

void *sheaf_queue_pop(sheaf_queue *queue, uint64_t deadline_ns) {
    struct timespec until = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    pthread_mutex_lock(&queue->lock);
    int waited = 0;
    while (queue->count == 0 && !queue->woken && !queue->closed && waited == 0) {
        waited = deadline_ns == SHEAF_NEVER_NS ? pthread_cond_wait(&queue->changed, &queue->lock)
                                               : pthread_cond_timedwait(&queue->changed, &queue->lock, &until);
    }
    void *item = take(queue);
    if (item == NULL) queue->woken = 0;
    pthread_mutex_unlock(&queue->lock);
    return item;
}

void sheaf_queue_wake(sheaf_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->woken = 1;
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

void sheaf_queue_close(sheaf_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->closed = 1;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

int sheaf_queue_closed(sheaf_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    int closed = queue->closed && queue->count == 0;
    pthread_mutex_unlock(&queue->lock);
    return closed;
}
