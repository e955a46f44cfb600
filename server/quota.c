#include "server/quota.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#define SETS         1024u
#define WAYS         8u
#define BURST_S      2.0
#define IN_FLIGHT_MS 50u
#define RETRY_MAX_MS 60000.0
#define NS_PER_S     1e9

typedef struct {
    uint64_t key; /* 0: free */
    uint64_t seen_ns;
    uint64_t in_flight;
    double requests, bytes; /* what is left in the buckets; bytes may be owed */
} account;

struct sheaf_quota {
    sheaf_quota_limits limits;
    pthread_mutex_t lock;
    uint64_t waits[SHEAF_QUOTA_KINDS];
    account accounts[SETS * WAYS];
};

sheaf_status sheaf_quota_make(const sheaf_quota_limits *limits, sheaf_quota **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return SHEAF_E_MEMORY;
    (*out)->limits = *limits;
    pthread_mutex_init(&(*out)->lock, NULL);
    return SHEAF_OK;
}

void sheaf_quota_free(sheaf_quota *quota) {
    if (quota == NULL) return;
    pthread_mutex_destroy(&quota->lock);
    free(quota);
}

/* FNV-1a of both names. Names are given out by the authority, so nobody chooses one to meet another's account. */
static uint64_t key_of(const char *tenant, const char *client) {
    uint64_t h = 14695981039346656037u;
    for (; *tenant != '\0'; tenant++) h = (h ^ (uint8_t)*tenant) * 1099511628211u;
    h = (h ^ 0xff) * 1099511628211u; /* stands in no name */
    for (; *client != '\0'; client++) h = (h ^ (uint8_t)*client) * 1099511628211u;
    return h == 0 ? 1 : h;
}

static account *open_account(sheaf_quota *quota, uint64_t key, uint64_t now_ns) {
    account *set = &quota->accounts[(key >> 32) % SETS * WAYS], *oldest = NULL;
    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].key == key) return &set[i];
        if (set[i].key != 0 && set[i].in_flight > 0) continue; /* its reply will be booked here */
        if (oldest == NULL || set[i].seen_ns < oldest->seen_ns) oldest = &set[i];
    }
    if (oldest == NULL) return NULL;
    *oldest = (account){.key = key,
                        .seen_ns = now_ns,
                        .requests = BURST_S * quota->limits.requests_per_s,
                        .bytes = BURST_S * (double)quota->limits.bytes_per_s};
    return oldest;
}

static double filled(double left, double per_s, double seconds) {
    double most = BURST_S * per_s, now = left + seconds * per_s;
    return now < most ? now : most;
}

static uint32_t ms_until(double lacking, double per_s) {
    double ms = ceil(lacking / per_s * 1000.0);
    return ms < 1 ? 1 : ms > RETRY_MAX_MS ? (uint32_t)RETRY_MAX_MS : (uint32_t)ms;
}

/* 0, or after how many ms it would do, and what for. */
static uint32_t wait_of(const sheaf_quota_limits *limits, const account *a, uint64_t bytes, sheaf_quota_kind *kind) {
    uint32_t ms[SHEAF_QUOTA_KINDS] = {0};
    if (limits->requests_per_s > 0 && a->requests < 1)
        ms[SHEAF_QUOTA_REQUESTS] = ms_until(1 - a->requests, limits->requests_per_s);
    if (limits->bytes_per_s > 0 && a->bytes <= 0)
        ms[SHEAF_QUOTA_BYTES] = ms_until(1 - a->bytes, (double)limits->bytes_per_s);
    if (limits->in_flight_bytes > 0 && a->in_flight > 0 &&
        (a->in_flight > limits->in_flight_bytes || bytes > limits->in_flight_bytes - a->in_flight))
        ms[SHEAF_QUOTA_IN_FLIGHT] = IN_FLIGHT_MS;
    *kind = SHEAF_QUOTA_REQUESTS;
    for (int i = 0; i < SHEAF_QUOTA_KINDS; i++) {
        if (ms[i] > ms[*kind]) *kind = (sheaf_quota_kind)i;
    }
    return ms[*kind];
}

static sheaf_status charge(sheaf_quota *quota, account *a, uint64_t bytes, uint64_t now_ns, uint32_t *retry_ms) {
    double seconds = now_ns > a->seen_ns ? (double)(now_ns - a->seen_ns) / NS_PER_S : 0;
    a->requests = filled(a->requests, quota->limits.requests_per_s, seconds);
    a->bytes = filled(a->bytes, (double)quota->limits.bytes_per_s, seconds);
    if (now_ns > a->seen_ns) a->seen_ns = now_ns;
    sheaf_quota_kind kind;
    *retry_ms = wait_of(&quota->limits, a, bytes, &kind);
    if (*retry_ms > 0) {
        quota->waits[kind]++;
        return SHEAF_E_QUOTA;
    }
    a->requests -= 1;
    a->bytes -= (double)bytes;
    a->in_flight += bytes;
    return SHEAF_OK;
}

sheaf_status sheaf_quota_charge(sheaf_quota *quota, const char *tenant, const char *client, uint64_t bytes,
                                uint64_t now_ns, sheaf_quota_charged *out, uint32_t *retry_ms) {
    sheaf_status status = SHEAF_OK;
    *retry_ms = 0;
    *out = (sheaf_quota_charged){0};
    pthread_mutex_lock(&quota->lock);
    account *a = open_account(quota, key_of(tenant, client), now_ns);
    if (a != NULL) { /* else all eight of its place are at work: it is let in uncounted */
        status = charge(quota, a, bytes, now_ns, retry_ms);
        if (status == SHEAF_OK) *out = (sheaf_quota_charged){quota, (uint32_t)(a - quota->accounts), bytes};
    }
    pthread_mutex_unlock(&quota->lock);
    return status;
}

void sheaf_quota_waits(sheaf_quota *quota, uint64_t out[SHEAF_QUOTA_KINDS]) {
    pthread_mutex_lock(&quota->lock);
    for (int i = 0; i < SHEAF_QUOTA_KINDS; i++) out[i] = quota->waits[i];
    pthread_mutex_unlock(&quota->lock);
}

void sheaf_quota_give_back(sheaf_quota_charged *charged) {
    if (charged->quota == NULL) return;
    pthread_mutex_lock(&charged->quota->lock);
    charged->quota->accounts[charged->place].in_flight -= charged->bytes;
    pthread_mutex_unlock(&charged->quota->lock);
    *charged = (sheaf_quota_charged){0};
}
