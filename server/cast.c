#include "server/cast.h"

#include <openssl/rand.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "common/log.h"
#include "proto/frame.h"
#include "server/cohort.h"
#include "server/queue.h"

#define MS_NS      1000000ull
#define JOIN_NS    (100 * MS_NS)  /* for the last of them to join, once enough were told */
#define QUIET_NS   (200 * MS_NS)  /* nobody new for so long: it begins */
#define GATHER_NS  (1000 * MS_NS) /* longest wait of the first */
#define AGAIN_NS   (2 * MS_NS)    /* the carrier is full */
#define GIVE_UP_NS (5000 * MS_NS) /* the carrier takes nothing: devices ask for parts by then */
#define JOINS_MAX  2u
#define RATE_FIRST (64u << 20) /* bytes per second */
#define RATE_MIN   (1u << 20)
#define RATE_MAX   (1u << 30)

struct sheaf_caster {
    sheaf_caster_options options;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    pthread_t thread;
    int running, stopping;
    uint64_t turn;   /* counts groups: a cast of an older turn ends */
    uint64_t number; /* of this turn's version; 0: none */
    sheaf_cast_group group;
    sheaf_cohort *members;      /* told this group; done_permille counts how often, accepted marks who missed parts */
    uint32_t waiting;           /* told since the cast under way began */
    uint32_t told, missed;      /* members in all; those of them that missed parts */
    uint64_t first_ns, last_ns; /* when the first and the last of those that wait came */
    uint64_t rate;
    _Atomic uint64_t bytes;
    sheaf_buffer frame; /* of the thread */
};

sheaf_status sheaf_caster_make(const sheaf_caster_options *options, sheaf_caster **out) {
    *out = NULL;
    sheaf_caster *self = calloc(1, sizeof *self);
    if (self == NULL) return SHEAF_E_MEMORY;
    self->options = *options;
    self->rate = RATE_FIRST;
    self->frame.capacity = SHEAF_FRAME_BYTES_MAX((size_t)options->part_bytes);
    self->frame.data = malloc(self->frame.capacity);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (self->frame.data == NULL || sheaf_cohort_make(options->devices_max, &self->members) != SHEAF_OK) {
        sheaf_caster_free(self);
        return SHEAF_E_MEMORY;
    }
    *out = self;
    return SHEAF_OK;
}

void sheaf_caster_stop(sheaf_caster *caster) {
    pthread_mutex_lock(&caster->lock);
    caster->stopping = 1;
    pthread_cond_broadcast(&caster->changed);
    int running = caster->running;
    caster->running = 0;
    pthread_mutex_unlock(&caster->lock);
    if (running) (void)pthread_join(caster->thread, NULL);
}

void sheaf_caster_free(sheaf_caster *caster) {
    if (caster == NULL) return;
    sheaf_caster_stop(caster);
    sheaf_cohort_free(caster->members);
    pthread_cond_destroy(&caster->changed);
    pthread_mutex_destroy(&caster->lock);
    sheaf_wipe(&caster->group, sizeof caster->group);
    free(caster->frame.data);
    free(caster);
}

static struct timespec time_of(uint64_t ns) {
    const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    return time;
}

/* Waits until then, or until something has changed; the lock is held. */
static void wait_until(sheaf_caster *self, uint64_t ns) {
    const struct timespec until = time_of(ns);
    (void)pthread_cond_timedwait(&self->changed, &self->lock, &until);
}

/* When those that wait have waited long enough. */
static uint64_t gathered_ns(const sheaf_caster *self) {
    if (self->told >= self->options.enough) return self->last_ns + JOIN_NS;
    uint64_t quiet = self->last_ns + QUIET_NS, longest = self->first_ns + GATHER_NS;
    return quiet < longest ? quiet : longest;
}

/* The version and group of the turn that is to be cast, with a reference; NULL: stop. The lock is held. */
static sheaf_version *gather(sheaf_caster *self, sheaf_cast_group *group, uint64_t *turn) {
    for (;;) {
        if (self->stopping) return NULL;
        if (self->waiting == 0) {
            pthread_cond_wait(&self->changed, &self->lock);
            continue;
        }
        uint64_t due = gathered_ns(self);
        if (sheaf_now_ns() < due) {
            wait_until(self, due);
            continue;
        }
        sheaf_version *current = sheaf_shelf_take(self->options.shelf);
        int serves = current->number == self->number;
        self->waiting = 0;
        if (serves) {
            *group = self->group;
            *turn = self->turn;
            return current;
        }
        sheaf_shelf_drop(self->options.shelf, current); /* the round has moved on, and so will they */
    }
}

/* 0 when this cast shall end. */
static int goes_on(sheaf_caster *self, uint64_t turn) { return !self->stopping && self->turn == turn; }

/* One part, as soon as the carrier takes it; 0 when the cast shall end. */
static int cast_part(sheaf_caster *self, const sheaf_version *version, const sheaf_cast_group *group, uint64_t turn,
                     uint64_t offset) {
    uint64_t left = version->model.stream_bytes - offset;
    size_t size = left < self->options.part_bytes ? (size_t)left : self->options.part_bytes;
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_model_tag;
    reply.body.model.offset = offset;
    reply.body.model.total_bytes = version->model.stream_bytes;
    sheaf_span part = sheaf_span_of(version->model.stream + offset, size);
    sheaf_status status = sheaf_frame_encode_reply(&reply, part, &self->frame);
    uint64_t give_up_ns = sheaf_now_ns() + GIVE_UP_NS;
    while (status == SHEAF_OK) {
        status = self->options.carrier->cast(*self->options.server, group, offset / self->options.part_bytes,
                                             sheaf_buffer_span(&self->frame));
        if (status == SHEAF_OK) break;
        if (sheaf_now_ns() >= give_up_ns) return 0;
        status = SHEAF_OK; /* full, or its connection is being made again */
        pthread_mutex_lock(&self->lock);
        wait_until(self, sheaf_now_ns() + AGAIN_NS);
        int go_on = goes_on(self, turn);
        pthread_mutex_unlock(&self->lock);
        if (!go_on) return 0;
    }
    atomic_fetch_add(&self->bytes, self->frame.size);
    if (self->options.moved_ns != NULL) atomic_store(self->options.moved_ns, sheaf_now_ns());
    return 1;
}

/* Does not run ahead of the rate; 0 when the cast shall end. */
static int keep_pace(sheaf_caster *self, uint64_t turn, uint64_t begun_ns, uint64_t sent) {
    pthread_mutex_lock(&self->lock);
    uint64_t due = begun_ns + (uint64_t)((double)sent / (double)self->rate * 1e9);
    while (goes_on(self, turn) && sheaf_now_ns() + MS_NS < due) wait_until(self, due);
    int go_on = goes_on(self, turn);
    pthread_mutex_unlock(&self->lock);
    return go_on;
}

static void cast_version(sheaf_caster *self, const sheaf_version *version, const sheaf_cast_group *group,
                         uint64_t turn) {
    uint64_t begun_ns = sheaf_now_ns(), offset = 0, total = version->model.stream_bytes;
    int go_on = 1;
    while (go_on && offset < total) {
        go_on = cast_part(self, version, group, turn, offset);
        if (go_on) offset += total - offset < self->options.part_bytes ? total - offset : self->options.part_bytes;
        if (go_on) go_on = keep_pace(self, turn, begun_ns, offset);
    }
    pthread_mutex_lock(&self->lock);
    uint32_t told = self->told;
    pthread_mutex_unlock(&self->lock);
    sheaf_log(SHEAF_LOG_INFO, "model_cast", "job=%s carrier=%s bytes=%llu of=%llu devices=%u ms=%llu",
              self->options.job, self->options.carrier->name, (unsigned long long)offset, (unsigned long long)total,
              told, (unsigned long long)((sheaf_now_ns() - begun_ns) / MS_NS));
}

static void *run(void *context) {
    sheaf_caster *self = context;
    sheaf_cast_group group;
    uint64_t turn = 0;
    for (;;) {
        pthread_mutex_lock(&self->lock);
        sheaf_version *version = gather(self, &group, &turn);
        pthread_mutex_unlock(&self->lock);
        if (version == NULL) break;
        cast_version(self, version, &group, turn);
        sheaf_shelf_drop(self->options.shelf, version);
    }
    sheaf_wipe(&group, sizeof group);
    return NULL;
}

/* Half the rate when more than one in ten had missed parts, a quarter more otherwise. */
static void adapt_rate(sheaf_caster *self) {
    if (self->told == 0) return;
    self->rate = 10 * (uint64_t)self->missed > self->told ? self->rate / 2 : self->rate + self->rate / 4;
    if (self->rate < RATE_MIN) self->rate = RATE_MIN;
    if (self->rate > RATE_MAX) self->rate = RATE_MAX;
}

static void forget_group(sheaf_caster *self) {
    adapt_rate(self);
    self->turn++;
    self->told = self->missed = self->waiting = 0;
    sheaf_cohort_clear(self->members);
    self->number = 0;
    pthread_cond_broadcast(&self->changed);
}

/* A group of its own for the version; the lock is held. */
static sheaf_status begin_group(sheaf_caster *self, const sheaf_version *version) {
    forget_group(self);
    if (RAND_bytes(self->group.id, sizeof self->group.id) != 1 ||
        RAND_bytes(self->group.key, sizeof self->group.key) != 1)
        return SHEAF_AGAIN;
    self->number = version->number;
    return SHEAF_OK;
}

static sheaf_status admit(sheaf_caster *self, const char *client) {
    sheaf_member *member = sheaf_cohort_find(self->members, client);
    if (member == NULL && sheaf_cohort_admit(self->members, client, &member) != SHEAF_OK) return SHEAF_AGAIN;
    if (member->done_permille == JOINS_MAX) return SHEAF_AGAIN;
    if (!self->running) {
        if (pthread_create(&self->thread, NULL, run, self) != 0) return SHEAF_AGAIN;
        self->running = 1;
    }
    if (member->done_permille++ == 0) self->told++;
    self->last_ns = sheaf_now_ns();
    if (self->waiting++ == 0) self->first_ns = self->last_ns;
    pthread_cond_broadcast(&self->changed);
    return SHEAF_OK;
}

sheaf_status sheaf_caster_join(sheaf_caster *caster, const sheaf_version *version, const char *client,
                               sheaf_cast_group *out) {
    sheaf_status status = SHEAF_OK;
    pthread_mutex_lock(&caster->lock);
    if (caster->stopping)
        status = SHEAF_AGAIN;
    else if (caster->number < version->number) /* a request that is late must not bring back an old version */
        status = begin_group(caster, version);
    if (status == SHEAF_OK) status = caster->number == version->number ? admit(caster, client) : SHEAF_AGAIN;
    if (status == SHEAF_OK) *out = caster->group;
    pthread_mutex_unlock(&caster->lock);
    return status;
}

void sheaf_caster_note_pull(sheaf_caster *caster, const sheaf_version *version, const char *client) {
    pthread_mutex_lock(&caster->lock);
    sheaf_member *member = caster->number == version->number ? sheaf_cohort_find(caster->members, client) : NULL;
    if (member != NULL && !member->accepted) {
        member->accepted = 1;
        caster->missed++;
    }
    pthread_mutex_unlock(&caster->lock);
}

void sheaf_caster_renew(sheaf_caster *caster) {
    pthread_mutex_lock(&caster->lock);
    forget_group(caster);
    pthread_mutex_unlock(&caster->lock);
}

uint64_t sheaf_caster_bytes(const sheaf_caster *caster) { return atomic_load(&caster->bytes); }
