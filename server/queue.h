/* queue.h - a bounded queue of pointers between threads.
 *
 * Owner:   the queue owns its ring, not what the pointers point to.
 * Threads: any number on both ends.
 * Units:   times in nanoseconds of CLOCK_MONOTONIC.
 * Errors:  pushing never waits: capacities are chosen so that all things that can be in a queue fit (each push says
 *          why), and a push that finds it full is a broken invariant of ours. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

typedef struct sheaf_queue sheaf_queue;

SHEAF_MUST_USE sheaf_status sheaf_queue_make(size_t capacity, sheaf_queue **out);
void sheaf_queue_free(sheaf_queue *queue); /* NULL is fine */
void sheaf_queue_push(sheaf_queue *queue, void *item);
/* The same unless the queue is closed, when nobody may be left to pop: then 0. */
int sheaf_queue_push_if_open(sheaf_queue *queue, void *item);
/* The next item; NULL when the deadline passes, when wake is called, or when the queue is closed and empty. */
void *sheaf_queue_pop(sheaf_queue *queue, uint64_t deadline_ns);
/* The next item if there is one, else NULL. */
void *sheaf_queue_try_pop(sheaf_queue *queue);
/* Makes one present or future pop return. */
void sheaf_queue_wake(sheaf_queue *queue);
/* Every pop returns NULL once the queue is empty. */
void sheaf_queue_close(sheaf_queue *queue);
int sheaf_queue_closed(sheaf_queue *queue);

#define SHEAF_NEVER_NS UINT64_MAX
uint64_t sheaf_now_ns(void);      /* CLOCK_MONOTONIC */
uint64_t sheaf_now_unix_ms(void); /* wall clock, for records only */
