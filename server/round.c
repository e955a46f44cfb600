/* round.c - the states of a round, as a table; see round.h for what they promise, round/state.h for where the actions
 * are.
 *
 *   COLLECTING --target, or patience ends with a quorum--> REDUCING --sum complete--> RELEASED --> next COLLECTING
 *       |                                                                                 `--last--> ENDED
 *       |--patience ends without a quorum--> FAILED --> next attempt COLLECTING, or ENDED
 *       `--pause--> PAUSED --resume--> COLLECTING;   cancel: ENDED, from everywhere */
#include "server/round.h"

#include <inttypes.h>

#include "common/log.h"
#include "server/round/state.h"

#define RETRY_AFTER_NS SECOND_NS /* after a failure of disk or database */

static int always(const sheaf_round *round, const sheaf_request *request) {
    (void)round, (void)request;
    return 1;
}

static int has_finished_with_it(const sheaf_round *round, const sheaf_request *request) {
    const sheaf_member *member = sheaf_cohort_find(round->cohort, request->message.client);
    return member != NULL && member->accepted;
}

/* It holds a receipt for a round that was never released here: its state folder, or ours, is of another run. */
static int is_ahead(const sheaf_round *round, const sheaf_request *request) {
    return request->message.body.round.last_round >= round->row.round;
}

static int may_join(const sheaf_round *round, const sheaf_request *request) {
    return sheaf_cohort_find(round->cohort, request->message.client) != NULL ||
           sheaf_cohort_count(round->cohort) < round->parts.config->cohort.maximum;
}

static int is_of_this_attempt(const sheaf_round *round, const sheaf_request *request) {
    const sheaf_update_statement *statement = &request->upload->statement;
    return statement->round == round->row.round && statement->attempt == round->row.attempt;
}

static int has_target(const sheaf_round *round, const sheaf_request *request) {
    (void)request;
    return round->accepted >= round->parts.config->cohort.target;
}

/* When patience ends: nothing has moved for progress_s, or the deadline since the first device's arrival. */
static uint64_t patience_ns(const sheaf_round *round) {
    if (round->joined_ns == SHEAF_NEVER_NS) return SHEAF_NEVER_NS;
    const sheafd_job_config *config = round->parts.config;
    uint64_t quiet = atomic_load(round->parts.moved_ns) + config->progress_s * SECOND_NS;
    uint64_t deadline = config->deadline_s == 0 ? SHEAF_NEVER_NS : round->joined_ns + config->deadline_s * SECOND_NS;
    return quiet < deadline ? quiet : deadline;
}

static int is_out_of_patience(const sheaf_round *round, const sheaf_request *request) {
    (void)request;
    return sheaf_now_ns() >= patience_ns(round);
}

static int is_out_of_patience_with_quorum(const sheaf_round *round, const sheaf_request *request) {
    return round->accepted >= round->parts.config->cohort.minimum && is_out_of_patience(round, request);
}

static int has_whole_sum(const sheaf_round *round, const sheaf_request *request) {
    (void)request;
    return atomic_load(&round->adding) == 0;
}

static int was_last_round(const sheaf_round *round, const sheaf_request *request) {
    (void)request;
    return round->row.round >= round->parts.config->rounds;
}

static int has_attempts_left(const sheaf_round *round, const sheaf_request *request) {
    (void)request;
    return round->row.attempt < round->parts.config->attempts_max;
}

static int is_paused(const sheaf_round *round, const sheaf_request *request) {
    (void)request;
    return round->paused;
}

static int is_not_paused(const sheaf_round *round, const sheaf_request *request) {
    (void)request;
    return !round->paused;
}

static int is_admitted(const sheaf_round *round, const sheaf_request *request) {
    return sheaf_cohort_find(round->cohort, request->message.client) != NULL;
}

static int was_not_cancelled(const sheaf_round *round, const sheaf_request *request) {
    (void)request;
    return round->ended != SHEAF_E_CANCELLED;
}

static sheaf_status done_already(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)round, (void)request, (void)scratch;
    return SHEAF_OK;
}

typedef struct {
    round_state in;
    sheaf_event on;
    int (*when)(const sheaf_round *round, const sheaf_request *request);
    sheaf_status (*then)(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch);
    round_state next; /* ANY: stays */
} transition;

/* The first row that fits is taken. ON_CLOCK rows are tried again and again until none fits. */
// clang-format off
static const transition round_table[] = {
    /* in        on                 if                              then                next       */
    {COLLECTING, SHEAF_ON_QUERY,    has_finished_with_it,           sheaf_round_tell_wait,          COLLECTING},
    {COLLECTING, SHEAF_ON_QUERY,    is_ahead,                       sheaf_round_refuse_ahead,       COLLECTING},
    {COLLECTING, SHEAF_ON_QUERY,    may_join,                       sheaf_round_tell_round,         COLLECTING},
    {COLLECTING, SHEAF_ON_QUERY,    always,                         sheaf_round_tell_cohort_full,   COLLECTING},
    {COLLECTING, SHEAF_ON_PROGRESS, always,                         sheaf_round_note_progress,      COLLECTING},
    {COLLECTING, SHEAF_ON_OFFER,    always,                         sheaf_round_judge_offer,        COLLECTING},
    {COLLECTING, SHEAF_ON_UPDATE,   is_of_this_attempt,             sheaf_round_stage_update,       COLLECTING},
    {COLLECTING, SHEAF_ON_CLOCK,    is_paused,                      sheaf_round_stand_still,        PAUSED},
    {COLLECTING, SHEAF_ON_CLOCK,    has_target,                     sheaf_round_begin_reduce,       REDUCING},
    {COLLECTING, SHEAF_ON_CLOCK,    is_out_of_patience_with_quorum, sheaf_round_begin_reduce,       REDUCING},
    {COLLECTING, SHEAF_ON_CLOCK,    is_out_of_patience,             sheaf_round_fail_attempt,       FAILED},
    {COLLECTING, SHEAF_ON_CANCEL,   always,                         sheaf_round_cancel_attempt,     ENDED},
    {PAUSED,     SHEAF_ON_QUERY,    always,                         sheaf_round_tell_paused,        PAUSED},
    {PAUSED,     SHEAF_ON_PROGRESS, always,                         sheaf_round_note_progress,      PAUSED},
    {PAUSED,     SHEAF_ON_OFFER,    is_admitted,                    sheaf_round_judge_offer,        PAUSED},
    {PAUSED,     SHEAF_ON_OFFER,    always,                         sheaf_round_tell_paused,        PAUSED},
    {PAUSED,     SHEAF_ON_UPDATE,   is_of_this_attempt,             sheaf_round_stage_update,       PAUSED},
    {PAUSED,     SHEAF_ON_CLOCK,    is_not_paused,                  sheaf_round_go_on,              COLLECTING},
    {PAUSED,     SHEAF_ON_CANCEL,   always,                         sheaf_round_cancel_attempt,     ENDED},
    {REDUCING,   SHEAF_ON_CANCEL,   always,                         sheaf_round_cancel_attempt,     ENDED},
    {REDUCING,   SHEAF_ON_CLOCK,    has_whole_sum,                  sheaf_round_release,            RELEASED},
    {RELEASED,   SHEAF_ON_CLOCK,    was_last_round,                 sheaf_round_end_job,            ENDED},
    {RELEASED,   SHEAF_ON_CLOCK,    always,                         sheaf_round_open_next,          COLLECTING},
    {FAILED,     SHEAF_ON_CLOCK,    has_attempts_left,              sheaf_round_open_again,         COLLECTING},
    {FAILED,     SHEAF_ON_CLOCK,    always,                         sheaf_round_give_up,            ENDED},
    {ENDED,      SHEAF_ON_QUERY,    always,                         sheaf_round_tell_end,           ENDED},
    {ENDED,      SHEAF_ON_PAUSE,    always,                         sheaf_round_refuse_order,       ENDED},
    {ENDED,      SHEAF_ON_RESUME,   always,                         sheaf_round_refuse_order,       ENDED},
    {ENDED,      SHEAF_ON_CANCEL,   was_not_cancelled,              sheaf_round_refuse_order,       ENDED},
    {ENDED,      SHEAF_ON_CANCEL,   always,                         done_already,                   ENDED},
    {ANY,        SHEAF_ON_PAUSE,    always,                         sheaf_round_pause,              ANY},
    {ANY,        SHEAF_ON_RESUME,   always,                         sheaf_round_resume,             ANY},
    {ANY,        SHEAF_ON_CANCEL,   always,                         sheaf_round_cancel,             ENDED},
    {ANY,        SHEAF_ON_QUERY,    always,                         sheaf_round_tell_wait,          ANY},
    {ANY,        SHEAF_ON_PROGRESS, always,                         sheaf_round_tell_wait,          ANY},
    {ANY,        SHEAF_ON_OFFER,    always,                         sheaf_round_refuse_late_offer,  ANY},
    {ANY,        SHEAF_ON_UPDATE,   always,                         sheaf_round_refuse_late_update, ANY},
};
// clang-format on

/* Takes the first row that fits. SHEAF_ENDED: none did. */
static sheaf_status fire(sheaf_round *round, sheaf_event event, sheaf_request *request, sheaf_buffer *scratch) {
    for (size_t i = 0; i < sizeof round_table / sizeof round_table[0]; i++) {
        const transition *row = &round_table[i];
        if ((row->in != ANY && row->in != round->state) || row->on != event || !row->when(round, request)) continue;
        sheaf_status status = row->then(round, request, scratch);
        if (status == SHEAF_OK && row->next != ANY) round->state = row->next;
        return status;
    }
    return SHEAF_ENDED;
}

static void handle_all(sheaf_round *round, sheaf_request **requests, size_t count, int updates, sheaf_buffer *scratch) {
    for (size_t i = 0; i < count; i++) {
        /* Answering gives the request back, so each is looked at in one of the two passes only. */
        if (requests[i] == NULL || (requests[i]->event == SHEAF_ON_UPDATE) != updates) continue;
        sheaf_request *request = requests[i];
        requests[i] = NULL;
        sheaf_status status = fire(round, request->event, request, scratch);
        assert(status == SHEAF_OK); /* the ANY rows answer whatever no other row does */
    }
}

/* Updates come last: an offer of the same batch would else read rows that are not committed, and be told a receipt. */
void sheaf_round_handle(sheaf_round *round, sheaf_request **requests, size_t count, sheaf_buffer *scratch) {
    assert(count <= round->staged_capacity);
    handle_all(round, requests, count, 0, scratch);
    handle_all(round, requests, count, 1, scratch);
    sheaf_round_commit_staged(round, scratch);
}

/* An accepted update that cannot be read back must stop the job, not bend its result. */
static int has_lost_an_update(sheaf_round *round) {
    int failed = atomic_load(&round->addition_failed);
    if (failed == SHEAF_OK || atomic_load(&round->adding) != 0) return failed != SHEAF_OK;
    if (round->state != ENDED) {
        round->state = ENDED;
        round->ended = (sheaf_status)failed;
        sheaf_log(SHEAF_LOG_ERROR, "job_halted",
                  "job=%s round=%" PRIu64 " status=%s advice=\"restore the spool from a backup and restart\"",
                  round->parts.config->name, round->row.round, sheaf_status_name(round->ended));
    }
    return 1;
}

/* A result that no float holds is the round's failure, not the world's. */
static sheaf_status step(sheaf_round *round) {
    sheaf_status status = fire(round, SHEAF_ON_CLOCK, NULL, NULL);
    if (round->state == REDUCING && status == SHEAF_E_NOT_REPRESENTABLE) {
        status = sheaf_round_fail_attempt_as(round, status);
        if (status == SHEAF_OK)
            status = sheaf_round_end_job_as(round, SHEAF_E_NOT_REPRESENTABLE); /* the same sum would fail again */
        if (status == SHEAF_OK) round->state = ENDED;
    }
    return status;
}

sheaf_status sheaf_round_order(sheaf_round *round, sheaf_event order, sheaf_problem *problem) {
    assert(order == SHEAF_ON_PAUSE || order == SHEAF_ON_RESUME || order == SHEAF_ON_CANCEL);
    round->order_problem = problem;
    sheaf_status status = fire(round, order, NULL, NULL);
    round->order_problem = NULL;
    return status;
}

void sheaf_round_look(const sheaf_round *round, sheaf_round_view *out) {
    static const char *const phases[] = {[COLLECTING] = "collecting", [PAUSED] = "paused", [REDUCING] = "reducing",
                                         [RELEASED] = "released",     [FAILED] = "failed", [ENDED] = "ended"};
    *out = (sheaf_round_view){.ended = sheaf_round_job_ended(round),
                              .paused = round->paused,
                              .phase = phases[round->state],
                              .round = round->row.round,
                              .attempt = round->row.attempt,
                              .accepted = round->accepted,
                              .joined = sheaf_cohort_count(round->cohort),
                              .failing = round->failing,
                              .accepted_total = round->accepted_total,
                              .bytes_total = round->bytes_total,
                              .released_total = round->released_total,
                              .failed_total = round->failed_total};
}

uint64_t sheaf_round_settle(sheaf_round *round) {
    uint64_t now = sheaf_now_ns();
    if (has_lost_an_update(round)) return SHEAF_NEVER_NS;
    if (now >= round->add_again_ns && sheaf_round_add_again(round)) round->add_again_ns = now + RETRY_AFTER_NS;
    if (now < round->retry_ns) return round->retry_ns;
    if (sheaf_round_sign_again(round) != SHEAF_OK) {
        round->retry_ns = sheaf_now_ns() + RETRY_AFTER_NS;
        return round->retry_ns;
    }
    uint64_t quiet_ns = round->parts.config->progress_s * SECOND_NS;
    uint32_t expired = now > quiet_ns ? sheaf_uploads_expire(round->parts.uploads, now - quiet_ns) : 0;
    if (expired > 0)
        sheaf_log(SHEAF_LOG_WARNING, "uploads_abandoned", "job=%s count=%u", round->parts.config->name, expired);
    for (;;) {
        sheaf_status status = step(round);
        if (status == SHEAF_ENDED) break;
        round->failing = status;
        if (status != SHEAF_OK) {
            round->retry_ns = sheaf_now_ns() + RETRY_AFTER_NS;
            return round->retry_ns;
        }
    }
    uint64_t wake_ns = round->state == COLLECTING ? patience_ns(round) : SHEAF_NEVER_NS;
    return now < round->add_again_ns && round->add_again_ns < wake_ns ? round->add_again_ns : wake_ns;
}

sheaf_status sheaf_round_validate(const sheaf_round *round, const char *payload_type, sheaf_span payload,
                                  sheaf_problem *problem) {
    return sheaf_aggregator_validate(round->aggregator, payload_type, payload, problem);
}

sheaf_status sheaf_round_job_ended(const sheaf_round *round) {
    return round->state == ENDED ? round->ended : SHEAF_AGAIN;
}

int sheaf_round_everyone_knows(const sheaf_round *round) {
    /* After a restart nobody remembers who was told. */
    return round->state == ENDED && !round->was_ended &&
           sheaf_cohort_told_end(round->cohort) == sheaf_cohort_count(round->cohort);
}
