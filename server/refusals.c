#include "server/refusals.h"

#include "common/log.h"
#include "server/queue.h"

/* Two threads may both begin a second: a line more or less does no harm. */
static int may_log(sheaf_refusals *refusals) {
    uint64_t second = sheaf_now_ns() / 1000000000u;
    if (atomic_exchange(&refusals->second, second) != second) {
        uint32_t before = atomic_exchange(&refusals->lines, 0);
        if (before > SHEAF_REFUSAL_LINES)
            sheaf_log(SHEAF_LOG_WARNING, "refusals_not_logged", "count=%u", before - SHEAF_REFUSAL_LINES);
    }
    return atomic_fetch_add(&refusals->lines, 1) < SHEAF_REFUSAL_LINES;
}

void sheaf_refusals_note(sheaf_refusals *refusals, sheaf_status reason, const char *job, const char *client,
                         const char *detail) {
    int index = (int)reason - SHEAF_REFUSAL_FIRST;
    if (index >= 0 && index < SHEAF_REFUSAL_COUNT) {
        atomic_fetch_add(&refusals->counts[index], 1);
        atomic_fetch_add(&refusals->since_start[index], 1);
    }
    if (!may_log(refusals)) return;
    sheaf_log(SHEAF_LOG_WARNING, "refused", "reason=%s job=\"%s\" client=\"%s\" detail=\"%s\"",
              sheaf_status_name(reason), job, client, detail == NULL ? sheaf_status_text(reason) : detail);
}

uint64_t sheaf_refusals_total(const sheaf_refusals *refusals) {
    uint64_t total = 0;
    for (int i = 0; i < SHEAF_REFUSAL_COUNT; i++) total += atomic_load(&refusals->counts[i]);
    return total;
}

sheaf_status sheaf_refusals_write(const sheaf_refusals *refusals, sheaf_database *database, int64_t job, uint64_t round,
                                  sheaf_refusals_written *written, sheaf_problem *problem) {
    for (int i = 0; i < SHEAF_REFUSAL_COUNT; i++) {
        written->counts[i] = atomic_load(&refusals->counts[i]);
        if (written->counts[i] == 0) continue;
        sheaf_status reason = sheaf_status_from_number(SHEAF_REFUSAL_FIRST + i);
        sheaf_status status = sheaf_database_refusals_add(database, job, round, reason, written->counts[i], problem);
        if (status != SHEAF_OK) return status;
    }
    return SHEAF_OK;
}

void sheaf_refusals_forget(sheaf_refusals *refusals, const sheaf_refusals_written *written) {
    for (int i = 0; i < SHEAF_REFUSAL_COUNT; i++) atomic_fetch_sub(&refusals->counts[i], written->counts[i]);
}
