/* order.c - an operator pauses, resumes or cancels the job; see state.h.
 *
 * Paused means: the open round keeps what it has, devices that it has admitted may still bring their updates, so that no
 * work is lost; nobody else is admitted, nothing is reduced, and its clocks stand still. Each order is in the database
 * before it counts. */
#include <inttypes.h>

#include "common/log.h"
#include "server/round/state.h"

static sheaf_status set_paused(sheaf_round *round, int paused) {
    sheaf_status status = sheaf_database_job_pause(round->parts.database, round->job_id, paused, round->order_problem);
    if (status != SHEAF_OK) return status;
    if (round->paused != paused)
        sheaf_log(SHEAF_LOG_INFO, paused ? "job_paused" : "job_resumed", "job=%s round=%" PRIu64,
                  round->parts.config->name, round->row.round);
    round->paused = paused;
    return SHEAF_OK;
}

sheaf_status sheaf_round_pause(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    return set_paused(round, 1);
}

sheaf_status sheaf_round_resume(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    return set_paused(round, 0);
}

sheaf_status sheaf_round_stand_still(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    round->paused_ns = sheaf_now_ns();
    return SHEAF_OK;
}

/* The time that it stood still counts for no deadline. */
sheaf_status sheaf_round_go_on(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    if (round->joined_ns != SHEAF_NEVER_NS) round->joined_ns += sheaf_now_ns() - round->paused_ns;
    sheaf_round_note_move(round);
    return SHEAF_OK;
}

sheaf_status sheaf_round_tell_paused(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    sheaf_request_wait(request, SHEAF_E_PAUSED, sheaf_round_retry_ms(round), scratch);
    return SHEAF_OK;
}

sheaf_status sheaf_round_cancel_attempt(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    sheaf_status status = sheaf_round_fail_job_as(round, SHEAF_E_CANCELLED, round->order_problem);
    if (status != SHEAF_OK) {
        round->row.outcome = SHEAF_ROUND_OPEN;
        return status;
    }
    sheaf_uploads_clear(round->parts.uploads);
    round->ended = SHEAF_E_CANCELLED;
    sheaf_log(SHEAF_LOG_WARNING, "job_cancelled", "job=%s round=%" PRIu64, round->parts.config->name, round->row.round);
    return SHEAF_OK;
}

/* Between two rounds: no row is open. */
sheaf_status sheaf_round_cancel(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    sheaf_status status = sheaf_round_end_job_as(round, SHEAF_E_CANCELLED);
    if (status != SHEAF_OK) (void)sheaf_problem_set(round->order_problem, status, "the database failed; see the log");
    return status;
}

sheaf_status sheaf_round_refuse_order(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)request, (void)scratch;
    return sheaf_problem_set(round->order_problem, SHEAF_E_CONFLICT, "the job has ended already (%s)",
                             round->ended == SHEAF_OK ? "finished" : sheaf_status_name(round->ended));
}
