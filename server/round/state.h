/* state.h - the inside of a round, for the files of this folder only.
 *
 *   round.c      the table, its guards, and what turns it
 *   answer.c     what devices are told
 *   accept.c     an update becomes durable, acknowledged, counted
 *   release.c    reduce, checkpoint, commit point; or an attempt that fails
 *   open.c       the next round or attempt is written down and signed; or the job ends
 *   order.c      an operator pauses, resumes, cancels
 *   recover.c    where a restarted service goes on
 *
 * Threads: the job's thread, but for run_addition in accept.c and read_again in answer.c, which workers run. */
#pragma once
#include <assert.h>
#include <stdatomic.h>

#include "server/round.h"

typedef enum { COLLECTING, PAUSED, REDUCING, RELEASED, FAILED, ENDED, ANY } round_state;

#define SECOND_NS       1000000000ull
#define COMMIT_RETRY_MS 1000u /* when devices may try again after a failure of disk or database */

/* One accepted update on its way into the sum. */
typedef struct {
    sheaf_task task; /* first */
    sheaf_round *round;
    uint64_t number; /* copies: the round's row is the job thread's */
    char encoding[SHEAF_PAYLOAD_TYPE_BYTES];
    char client[SHEAF_NAME_BYTES];
    uint64_t payload_bytes;
    int64_t weight;
    uint8_t payload_digest[SHEAF_DIGEST_BYTES];
    _Atomic int again; /* it failed in a way that may pass: try again */
    int recovered;     /* compare the digest first: the disk may have changed since it was accepted */
} addition;

typedef struct {
    sheaf_request *request;
    sheaf_receipt_row receipt;
} staged_update;

struct sheaf_round {
    sheaf_round_parts parts;
    int64_t job_id;
    round_state state;
    sheaf_round_row row; /* of the open round */
    sheaf_plan plan;
    uint64_t signed_generation; /* of the credentials with which the row was signed or looked at */
    uint64_t payload_bytes;
    sheaf_aggregator *aggregator;
    sheaf_cohort *cohort;
    addition *additions; /* cohort.maximum of them */
    uint32_t accepted;
    double loss_sum, loss_weight;
    _Atomic uint32_t adding;     /* additions in work */
    _Atomic int addition_failed; /* a sheaf_status */
    staged_update *staged;       /* accepted in this batch, not yet committed */
    size_t staged_count, staged_capacity;
    uint64_t joined_ns;    /* when the first device of this attempt came; SHEAF_NEVER_NS before */
    uint64_t add_again_ns; /* when additions that failed are tried again */
    uint64_t retry_ns;     /* after a failure of the world: not before then */
    sheaf_status ended;
    int was_ended;      /* already when the service started */
    int paused;         /* ordered; a round that is being reduced is finished first */
    uint64_t paused_ns; /* since when it stands still */
    sheaf_status failing;
    sheaf_problem *order_problem; /* while an order is carried out */
    uint64_t accepted_total, bytes_total, released_total, failed_total;
};

/* Actions answer the request if there is one. A status that is not OK keeps the state; the clock tries again later. */
typedef sheaf_status round_action(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch);

round_action sheaf_round_tell_wait, sheaf_round_tell_cohort_full, sheaf_round_tell_round, sheaf_round_tell_end;
round_action sheaf_round_note_progress, sheaf_round_judge_offer;
round_action sheaf_round_refuse_ahead, sheaf_round_refuse_late_offer, sheaf_round_refuse_late_update;
round_action sheaf_round_stage_update;
round_action sheaf_round_tell_paused, sheaf_round_stand_still, sheaf_round_go_on;
round_action sheaf_round_pause, sheaf_round_resume, sheaf_round_cancel, sheaf_round_cancel_attempt,
    sheaf_round_refuse_order;
round_action sheaf_round_begin_reduce, sheaf_round_release, sheaf_round_fail_attempt;
round_action sheaf_round_open_next, sheaf_round_open_again, sheaf_round_end_job, sheaf_round_give_up;

/* Copies a span into a nanopb bytes field; it fits, by the sizes in proto/sheaf.options. */
#define FILL(field, span)                                                                                              \
    do {                                                                                                               \
        sheaf_span from_ = (span);                                                                                     \
        assert(from_.size <= sizeof(field).bytes);                                                                     \
        memcpy((field).bytes, from_.data, from_.size);                                                                 \
        (field).size = (pb_size_t)from_.size;                                                                          \
    } while (0)

void sheaf_round_note_move(sheaf_round *round);
/* How soon a device that has nothing to do should ask again. */
uint32_t sheaf_round_retry_ms(const sheaf_round *round);
void sheaf_round_tell_receipt(sheaf_request *request, const sheaf_receipt_row *receipt, sheaf_buffer *scratch);
/* Commits what this batch staged, counts it and sends the receipts; or asks all of it to wait. */
void sheaf_round_commit_staged(sheaf_round *round, sheaf_buffer *scratch);
/* Counts a durable update and hands it to the workers. */
void sheaf_round_count_update(sheaf_round *round, const sheaf_update_statement *statement, double loss, int recovered);
/* Signs the open round again when the aggregator has another certificate: same round, attempt and nonce, written down
 * before any device hears of it. */
SHEAF_MUST_USE sheaf_status sheaf_round_sign_again(sheaf_round *round);
/* The receipt of a stored row with a signature that the certificate in force verifies. */
SHEAF_MUST_USE sheaf_status sheaf_round_refresh_receipt(sheaf_round *round, sheaf_receipt_row *receipt);
/* Hands failed additions to the workers again; 1 when there were any. */
int sheaf_round_add_again(sheaf_round *round);
void sheaf_round_set_plan(sheaf_round *round, sheaf_plan plan);
SHEAF_MUST_USE sheaf_status sheaf_round_fail_attempt_as(sheaf_round *round, sheaf_status reason);
/* The row of the open attempt is closed as failed, and the job ended, in one transaction. */
SHEAF_MUST_USE sheaf_status sheaf_round_fail_job_as(sheaf_round *round, sheaf_status reason, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_round_end_job_as(sheaf_round *round, sheaf_status why);
