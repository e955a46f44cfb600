#include "server/clients.h"

#include <openssl/asn1.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "server/queue.h"

#define ROWS_AT_FIRST 64u

/* Rows in order of arrival, and an open-addressed index of them, at most half full. A job's devices have one name each
 * in their tenant, so tenant and name are the key. */
struct sheaf_clients {
    pthread_mutex_t lock;
    sheaf_client_row *rows;
    uint32_t *index; /* row + 1; 0: free */
    uint32_t count, capacity;
};

static uint32_t hash_of(const char *tenant, const char *name) {
    uint32_t hash = 2166136261u; /* FNV-1a; names are those of verified certificates, so nobody floods it */
    for (const char *c = tenant; *c != '\0'; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    hash = (hash ^ '/') * 16777619u;
    for (const char *c = name; *c != '\0'; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    return hash;
}

/* Where it stands in the index, or would stand. */
static uint32_t *slot_of(const sheaf_clients *clients, const char *tenant, const char *name) {
    uint32_t mask = 2 * clients->capacity - 1, at = hash_of(tenant, name) & mask;
    for (;; at = (at + 1) & mask) {
        uint32_t *slot = &clients->index[at];
        if (*slot == 0) return slot;
        const sheaf_identity *identity = &clients->rows[*slot - 1].identity;
        if (strcmp(identity->name, name) == 0 && strcmp(identity->tenant, tenant) == 0) return slot;
    }
}

static int grow(sheaf_clients *clients, uint32_t capacity) {
    sheaf_client_row *rows = realloc(clients->rows, capacity * sizeof *rows);
    if (rows == NULL) return 0;
    clients->rows = rows;
    uint32_t *index = calloc(2 * (size_t)capacity, sizeof *index);
    if (index == NULL) return 0;
    free(clients->index);
    clients->index = index;
    clients->capacity = capacity;
    for (uint32_t i = 0; i < clients->count; i++)
        *slot_of(clients, rows[i].identity.tenant, rows[i].identity.name) = i + 1;
    return 1;
}

sheaf_status sheaf_clients_make(sheaf_clients **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return SHEAF_E_MEMORY;
    pthread_mutex_init(&(*out)->lock, NULL);
    if (grow(*out, ROWS_AT_FIRST)) return SHEAF_OK;
    sheaf_clients_free(*out);
    *out = NULL;
    return SHEAF_E_MEMORY;
}

void sheaf_clients_free(sheaf_clients *clients) {
    if (clients == NULL) return;
    pthread_mutex_destroy(&clients->lock);
    free(clients->rows);
    free(clients->index);
    free(clients);
}

/* Under the lock. */
static sheaf_client_row *find(sheaf_clients *clients, const char *tenant, const char *name) {
    uint32_t slot = *slot_of(clients, tenant, name);
    return slot == 0 ? NULL : &clients->rows[slot - 1];
}

static sheaf_client_row *add(sheaf_clients *clients, const sheaf_identity *identity) {
    if (clients->count == SHEAF_CLIENTS_MAX) return NULL;
    if (clients->count == clients->capacity && !grow(clients, 2 * clients->capacity)) return NULL;
    sheaf_client_row *row = &clients->rows[clients->count];
    memset(row, 0, sizeof *row);
    row->identity = *identity;
    row->first_seen_unix_ms = sheaf_now_unix_ms();
    *slot_of(clients, identity->tenant, identity->name) = ++clients->count;
    return row;
}

static int64_t not_after_of(const sheaf_certificate *certificate) {
    struct tm parts;
    const ASN1_TIME *when = X509_get0_notAfter(sheaf_certificate_x509(certificate));
    return ASN1_TIME_to_tm(when, &parts) == 1 ? (int64_t)timegm(&parts) : 0;
}

void sheaf_clients_saw(sheaf_clients *clients, const sheaf_certificate *peer, const char *carrier, const char *job) {
    const sheaf_identity *identity = sheaf_certificate_identity(peer);
    pthread_mutex_lock(&clients->lock);
    sheaf_client_row *row = find(clients, identity->tenant, identity->name);
    if (row == NULL) row = add(clients, identity);
    if (row != NULL) {
        row->identity = *identity;
        row->last_seen_unix_ms = sheaf_now_unix_ms();
        row->not_after_unix_s = not_after_of(peer);
        (void)snprintf(row->carrier, sizeof row->carrier, "%s", carrier);
        (void)snprintf(row->job, sizeof row->job, "%s", job);
    }
    pthread_mutex_unlock(&clients->lock);
}

void sheaf_clients_accepted(sheaf_clients *clients, const sheaf_identity *identity, uint64_t round) {
    pthread_mutex_lock(&clients->lock);
    sheaf_client_row *row = find(clients, identity->tenant, identity->name);
    if (row != NULL) {
        row->accepted++;
        row->last_round = round;
    }
    pthread_mutex_unlock(&clients->lock);
}

void sheaf_clients_refused(sheaf_clients *clients, const sheaf_identity *identity, sheaf_status reason) {
    pthread_mutex_lock(&clients->lock);
    sheaf_client_row *row = find(clients, identity->tenant, identity->name);
    if (row != NULL) {
        row->refused++;
        row->last_refusal = reason;
    }
    pthread_mutex_unlock(&clients->lock);
}

uint32_t sheaf_clients_count(sheaf_clients *clients) {
    pthread_mutex_lock(&clients->lock);
    uint32_t count = clients->count;
    pthread_mutex_unlock(&clients->lock);
    return count;
}

size_t sheaf_clients_list(sheaf_clients *clients, const char *tenant, uint64_t skip, sheaf_client_row *rows,
                          size_t capacity, uint64_t *total) {
    size_t copied = 0;
    *total = 0;
    pthread_mutex_lock(&clients->lock);
    for (uint32_t i = 0; i < clients->count; i++) {
        if (tenant != NULL && strcmp(clients->rows[i].identity.tenant, tenant) != 0) continue;
        if ((*total)++ >= skip && copied < capacity) rows[copied++] = clients->rows[i];
    }
    pthread_mutex_unlock(&clients->lock);
    return copied;
}

int sheaf_clients_find(sheaf_clients *clients, const char *tenant, const char *name, sheaf_client_row *out) {
    pthread_mutex_lock(&clients->lock);
    const sheaf_client_row *row = find(clients, tenant, name);
    if (row != NULL) *out = *row;
    pthread_mutex_unlock(&clients->lock);
    return row != NULL;
}
