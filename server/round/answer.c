/* answer.c - what devices are told; see state.h. */
#include <stdio.h>

#include "common/log.h"
#include "server/intake/offer.h"
#include "server/round/state.h"

#define READ_AGAIN_RETRY_MS 8u /* a worker has just read a slice: the next is due */

/* How soon a device that has nothing to do should ask again: about 500 questions a second from a full cohort. */
uint32_t sheaf_round_retry_ms(const sheaf_round *round) {
    uint32_t ms = 2 * round->parts.config->cohort.maximum;
    return ms < 40 ? 40 : ms > 5000 ? 5000 : ms;
}

void sheaf_round_note_move(sheaf_round *round) { atomic_store(round->parts.moved_ns, sheaf_now_ns()); }

static void refuse(sheaf_round *round, sheaf_request *request, sheaf_status reason, const char *detail,
                   sheaf_buffer *scratch) {
    sheaf_refusals_note(round->parts.refusals, reason, request->message.job, request->message.client, detail);
    sheaf_request_refuse(request, reason, detail, scratch);
}

/* Actions answer the request if there is one. A status that is not OK keeps the state; the clock tries again later. */

sheaf_status sheaf_round_tell_wait(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    sheaf_request_wait(request, SHEAF_OK, sheaf_round_retry_ms(round), scratch);
    return SHEAF_OK;
}

sheaf_status sheaf_round_tell_cohort_full(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    sheaf_request_wait(request, SHEAF_E_COHORT_FULL, sheaf_round_retry_ms(round), scratch);
    return SHEAF_OK;
}

sheaf_status sheaf_round_refuse_ahead(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    refuse(round, request, SHEAF_E_ROUND,
           "the device has receipts for rounds that this job has not reached; its state is of another run", scratch);
    return SHEAF_OK;
}

static sheaf_member *admit(sheaf_round *round, const char *client) {
    sheaf_member *member = sheaf_cohort_find(round->cohort, client);
    if (member != NULL) return member;
    if (sheaf_cohort_admit(round->cohort, client, &member) != SHEAF_OK) return NULL;
    sheaf_round_note_move(round);
    if (round->joined_ns == SHEAF_NEVER_NS) round->joined_ns = sheaf_now_ns();
    return member;
}

sheaf_status sheaf_round_tell_round(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    (void)admit(round, request->message.client);
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_round_tag;
    FILL(reply.body.round.statement, sheaf_span_of(round->row.statement_bytes, round->row.statement_size));
    FILL(reply.body.round.signature, sheaf_span_of(round->row.signature, round->row.signature_size));
    FILL(reply.body.round.plan, sheaf_span_of(round->row.plan, round->row.plan_size));
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
    return SHEAF_OK;
}

sheaf_status sheaf_round_note_progress(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    const sheaf_v1_Progress *progress = &request->message.body.progress;
    sheaf_member *member = sheaf_cohort_find(round->cohort, request->message.client);
    int current = progress->round == round->row.round && progress->attempt == round->row.attempt;
    if (current && member != NULL && progress->done_permille > member->done_permille &&
        progress->done_permille <= 1000) {
        member->done_permille = progress->done_permille;
        sheaf_round_note_move(round);
    }
    sheaf_request_wait(request, SHEAF_OK, round->parts.config->progress_s * 1000 / 4, scratch);
    return SHEAF_OK;
}

static void fill_receipt(sheaf_v1_Receipt *out, const sheaf_receipt_row *receipt) {
    FILL(out->statement, sheaf_span_of(receipt->statement, receipt->statement_size));
    FILL(out->signature, sheaf_span_of(receipt->signature, receipt->signature_size));
}

void sheaf_round_tell_receipt(sheaf_request *request, const sheaf_receipt_row *receipt, sheaf_buffer *scratch) {
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_receipt_tag;
    fill_receipt(&reply.body.receipt, receipt);
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
}

/* The device is told which of its updates counts. */
static void refuse_conflict(sheaf_round *round, sheaf_request *request, const sheaf_receipt_row *receipt,
                            sheaf_buffer *scratch) {
    sheaf_refusals_note(round->parts.refusals, SHEAF_E_CONFLICT, request->message.job, request->message.client, NULL);
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_refusal_tag;
    sheaf_request_fill_refusal(&reply.body.refusal, SHEAF_E_CONFLICT, NULL);
    reply.body.refusal.has_receipt = true;
    fill_receipt(&reply.body.refusal.receipt, receipt);
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
}

sheaf_status sheaf_round_tell_end(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    sheaf_member *member = sheaf_cohort_find(round->cohort, request->message.client);
    if (member != NULL) member->told_end = 1;
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_end_tag;
    reply.body.end.status = (uint32_t)round->ended;
    reply.body.end.rounds = round->ended == SHEAF_OK ? round->row.round : round->row.round - 1;
    sheaf_version *version = sheaf_shelf_take(round->parts.shelf);
    FILL(reply.body.end.model_digest, sheaf_span_of(version->digest, SHEAF_DIGEST_BYTES));
    sheaf_shelf_drop(round->parts.shelf, version);
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
    return SHEAF_OK;
}

/* If this device's update of the round named is already counted: the receipt again, or `conflict`. 1 when answered. */
static int answered_from_memory(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    const sheaf_update_statement *statement = &request->statement;
    sheaf_receipt_row receipt;
    sheaf_problem problem;
    sheaf_status status = statement->round > INT64_MAX
                              ? SHEAF_E_NOT_FOUND
                              : sheaf_database_receipt_find(round->parts.database, round->job_id, statement->round,
                                                            statement->client, &receipt, &problem);
    if (status == SHEAF_E_NOT_FOUND) return 0;
    if (status == SHEAF_OK) {
        status = sheaf_round_refresh_receipt(round, &receipt);
        if (status != SHEAF_OK) (void)sheaf_problem_set(&problem, status, "cannot sign it again");
    }
    if (status != SHEAF_OK) {
        sheaf_log(SHEAF_LOG_ERROR, "receipt_unreadable", "client=%s reason=\"%s\"", statement->client, problem.text);
        sheaf_request_wait(request, SHEAF_E_BUSY, COMMIT_RETRY_MS, scratch);
    } else if (memcmp(receipt.payload_digest, statement->payload_digest, SHEAF_DIGEST_BYTES) == 0) {
        sheaf_round_tell_receipt(request, &receipt, scratch);
    } else {
        refuse_conflict(round, request, &receipt, scratch);
    }
    return 1;
}

sheaf_status sheaf_round_refuse_late_offer(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    if (!answered_from_memory(round, request, scratch)) refuse(round, request, SHEAF_E_LATE, NULL, scratch);
    return SHEAF_OK;
}

static void tell_next_offset(sheaf_request *request, sheaf_buffer *scratch) {
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_upload_tag;
    reply.body.upload.next_offset = request->upload->part.next_offset;
    sheaf_upload_give_back(request->upload);
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
}

static void tell_spool_failed(const sheaf_round *round, sheaf_request *request, sheaf_status status,
                              const sheaf_problem *problem, sheaf_buffer *scratch) {
    sheaf_log(SHEAF_LOG_ERROR, "spool_failed", "job=%s status=%s reason=\"%s\"", round->parts.config->name,
              sheaf_status_name(status), problem->text);
    sheaf_request_wait(request, SHEAF_E_BUSY, COMMIT_RETRY_MS, scratch);
}

/* On a worker: hashes a slice of what an earlier process received. The device offers again until all of it is. */
static void read_again(sheaf_task *task, sheaf_buffer *scratch) {
    sheaf_request *request = (sheaf_request *)task;
    sheaf_round *round = request->round;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = sheaf_upload_read_again(request->upload, &problem);
    sheaf_round_note_move(round);
    if (status == SHEAF_OK) {
        tell_next_offset(request, scratch);
    } else if (status == SHEAF_AGAIN) {
        sheaf_upload_give_back(request->upload);
        sheaf_request_wait(request, SHEAF_E_BUSY, READ_AGAIN_RETRY_MS, scratch);
    } else {
        sheaf_upload_drop(request->upload);
        tell_spool_failed(round, request, status, &problem, scratch);
    }
}

static void agree(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    const sheaf_v1_Offer *offer = &request->message.body.offer;
    const sheaf_upload_terms terms = {&request->statement, sheaf_span_of(offer->statement.bytes, offer->statement.size),
                                      sheaf_span_of(offer->signature.bytes, offer->signature.size),
                                      offer->training_loss};
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = sheaf_uploads_agree(round->parts.uploads, &terms, &request->upload, &problem);
    if (status == SHEAF_OK) {
        tell_next_offset(request, scratch);
    } else if (status == SHEAF_AGAIN) {
        request->round = round;
        request->task.run = read_again;
        /* The queue has room for every request. */
        if (sheaf_queue_push_if_open(round->parts.workers, &request->task)) return;
        sheaf_upload_give_back(request->upload);
        sheaf_request_wait(request, SHEAF_E_BUSY, COMMIT_RETRY_MS, scratch);
    } else if (status == SHEAF_E_BUSY) {
        sheaf_request_wait(request, SHEAF_E_BUSY, sheaf_round_retry_ms(round), scratch);
    } else {
        tell_spool_failed(round, request, status, &problem, scratch);
    }
}

/* Whether the device may send this payload, which counts when it is another than its last. */
static int may_begin(const sheaf_round *round, const sheaf_update_statement *statement) {
    sheaf_member *member = sheaf_cohort_find(round->cohort, statement->client);
    if (member->payloads > 0 && memcmp(member->payload_digest, statement->payload_digest, SHEAF_DIGEST_BYTES) == 0)
        return 1;
    if (member->payloads >= round->parts.client_payloads_max) return 0;
    member->payloads++;
    memcpy(member->payload_digest, statement->payload_digest, SHEAF_DIGEST_BYTES);
    return 1;
}

sheaf_status sheaf_round_judge_offer(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    if (answered_from_memory(round, request, scratch)) return SHEAF_OK;
    const sheaf_offer_terms terms = {&round->row.statement, &round->plan, round->payload_bytes};
    sheaf_status status = sheaf_offer_judge(&request->statement, &terms);
    if (status == SHEAF_OK && admit(round, request->statement.client) == NULL) status = SHEAF_E_COHORT_FULL;
    if (status != SHEAF_OK) {
        refuse(round, request, status, NULL, scratch);
        return SHEAF_OK;
    }
    if (!may_begin(round, &request->statement)) {
        sheaf_refusals_note(round->parts.refusals, SHEAF_E_QUOTA, request->message.job, request->message.client,
                            "it has begun to send too many different payloads in this round");
        sheaf_request_wait(request, SHEAF_E_QUOTA, round->parts.config->progress_s * 1000 / 4, scratch);
        return SHEAF_OK;
    }
    agree(round, request, scratch);
    return SHEAF_OK;
}

sheaf_status sheaf_round_refuse_late_update(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    sheaf_upload_drop(request->upload);
    refuse(round, request, SHEAF_E_LATE, NULL, scratch);
    return SHEAF_OK;
}
