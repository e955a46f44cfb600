#include "server/cohort.h"

#include <assert.h>
#include <stdlib.h>

/* Open addressing over twice the maximum: a look-up touches about two slots. */
struct sheaf_cohort {
    uint32_t maximum, count, slots;
    uint32_t *table; /* member index + 1; 0 = free */
    sheaf_member members[];
};

sheaf_status sheaf_cohort_make(uint32_t maximum, sheaf_cohort **out) {
    *out = NULL;
    sheaf_cohort *cohort = calloc(1, sizeof *cohort + maximum * sizeof cohort->members[0]);
    if (cohort == NULL) return SHEAF_E_MEMORY;
    cohort->maximum = maximum;
    cohort->slots = 2 * maximum + 1;
    cohort->table = calloc(cohort->slots, sizeof *cohort->table);
    if (cohort->table == NULL) {
        free(cohort);
        return SHEAF_E_MEMORY;
    }
    *out = cohort;
    return SHEAF_OK;
}

void sheaf_cohort_free(sheaf_cohort *cohort) {
    if (cohort == NULL) return;
    free(cohort->table);
    free(cohort);
}

void sheaf_cohort_clear(sheaf_cohort *cohort) {
    memset(cohort->table, 0, cohort->slots * sizeof *cohort->table);
    cohort->count = 0;
}

uint32_t sheaf_cohort_count(const sheaf_cohort *cohort) { return cohort->count; }

static uint32_t hash(const char *client) {
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *client != '\0'; client++) h = (h ^ (uint8_t)*client) * 16777619u;
    return h;
}

/* The slot that holds `client`, or the free one where it belongs. */
static uint32_t slot_of(const sheaf_cohort *cohort, const char *client) {
    uint32_t slot = hash(client) % cohort->slots;
    while (cohort->table[slot] != 0 && strcmp(cohort->members[cohort->table[slot] - 1].client, client) != 0)
        slot = (slot + 1) % cohort->slots;
    return slot;
}

sheaf_member *sheaf_cohort_find(sheaf_cohort *cohort, const char *client) {
    uint32_t index = cohort->table[slot_of(cohort, client)];
    return index == 0 ? NULL : &cohort->members[index - 1];
}

sheaf_status sheaf_cohort_admit(sheaf_cohort *cohort, const char *client, sheaf_member **out) {
    uint32_t slot = slot_of(cohort, client);
    if (cohort->table[slot] == 0) {
        if (cohort->count == cohort->maximum) return SHEAF_E_COHORT_FULL;
        sheaf_member *member = &cohort->members[cohort->count++];
        memset(member, 0, sizeof *member);
        size_t size = strlen(client);
        assert(size < sizeof member->client);
        memcpy(member->client, client, size + 1);
        cohort->table[slot] = cohort->count;
    }
    *out = &cohort->members[cohort->table[slot] - 1];
    return SHEAF_OK;
}

void sheaf_cohort_keep_accepted(sheaf_cohort *cohort) {
    uint32_t count = cohort->count;
    sheaf_cohort_clear(cohort);
    for (uint32_t i = 0; i < count; i++) {
        if (!cohort->members[i].accepted) continue;
        cohort->members[cohort->count++] = cohort->members[i];
        cohort->table[slot_of(cohort, cohort->members[cohort->count - 1].client)] = cohort->count;
    }
}

uint32_t sheaf_cohort_told_end(const sheaf_cohort *cohort) {
    uint32_t told = 0;
    for (uint32_t i = 0; i < cohort->count; i++) told += cohort->members[i].told_end != 0;
    return told;
}
