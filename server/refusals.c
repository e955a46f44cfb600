#include "server/refusals.h"

#include "common/log.h"

void sheaf_refusals_note(sheaf_refusals *refusals, sheaf_status reason, const char *job, const char *client,
                         const char *detail) {
    int index = (int)reason - SHEAF_REFUSAL_FIRST;
    if (index >= 0 && index < SHEAF_REFUSAL_COUNT) atomic_fetch_add(&refusals->counts[index], 1);
    sheaf_log(SHEAF_LOG_WARNING, "refused", "reason=%s job=\"%s\" client=\"%s\" detail=\"%s\"",
              sheaf_status_name(reason), job, client, detail == NULL ? sheaf_status_text(reason) : detail);
}

uint64_t sheaf_refusals_total(const sheaf_refusals *refusals) {
    uint64_t total = 0;
    for (int i = 0; i < SHEAF_REFUSAL_COUNT; i++) total += atomic_load(&refusals->counts[i]);
    return total;
}

sheaf_status sheaf_refusals_flush(sheaf_refusals *refusals, sheaf_database *database, int64_t job, uint64_t round,
                                  sheaf_problem *problem) {
    for (int i = 0; i < SHEAF_REFUSAL_COUNT; i++) {
        uint32_t count = atomic_load(&refusals->counts[i]);
        if (count == 0) continue;
        sheaf_status status = sheaf_database_refusals_add(
            database, job, round, sheaf_status_from_number(SHEAF_REFUSAL_FIRST + i), count, problem);
        if (status != SHEAF_OK) return status;
        atomic_fetch_sub(&refusals->counts[i], count);
    }
    return SHEAF_OK;
}
