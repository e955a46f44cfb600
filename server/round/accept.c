/* accept.c - an update becomes durable, acknowledged, counted, in that order; see state.h. */
#include <inttypes.h>
#include <math.h>

#include "common/log.h"
#include "server/round/state.h"

#define LOSS_MAX 1e9 /* it is unsigned and only shown: one device must not spoil the mean that people see */

static void wait_all_staged(sheaf_round *round, sheaf_buffer *scratch, const sheaf_problem *problem) {
    sheaf_log(SHEAF_LOG_ERROR, "commit_failed", "updates=%zu reason=\"%s\"", round->staged_count, problem->text);
    for (size_t i = 0; i < round->staged_count; i++) {
        sheaf_upload_drop(round->staged[i].request->upload);
        sheaf_request_wait(round->staged[i].request, SHEAF_E_BUSY, COMMIT_RETRY_MS, scratch);
    }
    round->staged_count = 0;
}

static sheaf_status make_receipt(sheaf_round *round, const sheaf_upload *upload, sheaf_receipt_row *out,
                                 uint64_t now_ms) {
    sheaf_receipt_statement receipt = {
        .round = upload->statement.round, .attempt = upload->statement.attempt, .accepted_unix_ms = now_ms};
    memcpy(receipt.tenant, upload->statement.tenant, sizeof receipt.tenant);
    memcpy(receipt.job, upload->statement.job, sizeof receipt.job);
    memcpy(receipt.client, upload->statement.client, sizeof receipt.client);
    memcpy(receipt.payload_digest, upload->statement.payload_digest, SHEAF_DIGEST_BYTES);
    memcpy(out->payload_digest, upload->statement.payload_digest, SHEAF_DIGEST_BYTES);
    sheaf_status status =
        sheaf_digest_of(sheaf_span_of(upload->statement_bytes, upload->statement_size), receipt.update_digest);
    sheaf_buffer statement = {out->statement, 0, sizeof out->statement},
                 signature = {out->signature, 0, sizeof out->signature};
    if (status == SHEAF_OK) status = sheaf_receipt_statement_encode(&receipt, &statement);
    sheaf_credentials_pair own;
    sheaf_credentials_take(round->parts.credentials, &own);
    if (status == SHEAF_OK) status = sheaf_signer_sign(own.signer, sheaf_buffer_span(&statement), &signature);
    sheaf_credentials_pair_fini(&own);
    out->statement_size = statement.size;
    out->signature_size = signature.size;
    return status;
}

/* A device judges by the certificate of its connection, which may be a newer one than that of the day of the receipt. */
sheaf_status sheaf_round_refresh_receipt(sheaf_round *round, sheaf_receipt_row *receipt) {
    sheaf_credentials_pair own;
    sheaf_span statement = sheaf_span_of(receipt->statement, receipt->statement_size);
    sheaf_buffer signature = {receipt->signature, 0, sizeof receipt->signature};
    sheaf_credentials_take(round->parts.credentials, &own);
    sheaf_status status = sheaf_certificate_verify(own.certificate, statement,
                                                   sheaf_span_of(receipt->signature, receipt->signature_size));
    if (status == SHEAF_E_SIGNATURE) {
        status = sheaf_signer_sign(own.signer, statement, &signature);
        receipt->signature_size = signature.size;
    }
    sheaf_credentials_pair_fini(&own);
    return status;
}

static sheaf_status insert_update(sheaf_round *round, const sheaf_upload *upload, const sheaf_receipt_row *receipt,
                                  uint64_t now_ms, sheaf_problem *problem) {
    sheaf_update_row row = {.round = upload->statement.round,
                            .attempt = upload->statement.attempt,
                            .statement = sheaf_span_of(upload->statement_bytes, upload->statement_size),
                            .signature = sheaf_span_of(upload->signature, upload->signature_size),
                            .receipt = sheaf_span_of(receipt->statement, receipt->statement_size),
                            .receipt_signature = sheaf_span_of(receipt->signature, receipt->signature_size),
                            .payload_bytes = upload->statement.payload_bytes,
                            .weight = upload->statement.weight,
                            .training_loss = upload->training_loss,
                            .accepted_unix_ms = now_ms};
    memcpy(row.client, upload->statement.client, sizeof row.client);
    memcpy(row.payload_digest, upload->statement.payload_digest, SHEAF_DIGEST_BYTES);
    return sheaf_database_update_insert(round->parts.database, round->job_id, &row, problem);
}

/* Puts the update into the batch's transaction; it is neither counted nor acknowledged before
 * sheaf_round_commit_staged. */
sheaf_status sheaf_round_stage_update(sheaf_round *round, sheaf_request *request, sheaf_buffer *scratch) {
    assert(round->staged_count < round->staged_capacity);
    staged_update *staged = &round->staged[round->staged_count];
    sheaf_problem problem = {SHEAF_OK, "cannot sign the receipt"};
    uint64_t now_ms = sheaf_now_unix_ms();
    sheaf_status status = round->staged_count == 0 ? sheaf_database_begin(round->parts.database, &problem) : SHEAF_OK;
    if (status == SHEAF_OK) status = make_receipt(round, request->upload, &staged->receipt, now_ms);
    if (status == SHEAF_OK) status = insert_update(round, request->upload, &staged->receipt, now_ms, &problem);
    staged->request = request;
    round->staged_count++;
    if (status != SHEAF_OK) {
        sheaf_database_rollback(round->parts.database);
        wait_all_staged(round, scratch, &problem);
    }
    return SHEAF_OK;
}

/* The payload itself is not what was accepted; anything else (no descriptors, a disk that stutters) may pass. */
static int is_lost(sheaf_status status) {
    return status < 200 || status == SHEAF_E_CORRUPT || status == SHEAF_E_NOT_FOUND;
}

static void note_failed_addition(sheaf_round *round, addition *add, sheaf_status status, const char *reason) {
    int lost = is_lost(status);
    sheaf_log(SHEAF_LOG_ERROR, lost ? "accepted_update_lost" : "addition_failed",
              "job=%s round=%" PRIu64 " client=%s status=%s reason=\"%s\"", round->parts.config->name, add->number,
              add->client, sheaf_status_name(status), reason);
    if (lost)
        atomic_store(&round->addition_failed, (int)status);
    else
        atomic_store(&add->again, 1);
}

static void run_addition(sheaf_task *task, sheaf_buffer *scratch) {
    (void)scratch;
    addition *add = (addition *)task;
    sheaf_round *round = add->round;
    sheaf_span payload = sheaf_span_of(NULL, 0);
    sheaf_problem problem = {SHEAF_OK, "its digest or its values are not those that were accepted"};
    sheaf_status status =
        sheaf_spool_map(round->parts.spool, add->number, add->client, add->payload_bytes, &payload, &problem);
    if (status == SHEAF_OK && add->recovered) {
        uint8_t found[SHEAF_DIGEST_BYTES];
        status = sheaf_digest_of(payload, found);
        if (status == SHEAF_OK && memcmp(found, add->payload_digest, sizeof found) != 0) status = SHEAF_E_CORRUPT;
    }
    if (status == SHEAF_OK) status = sheaf_aggregator_add(round->aggregator, add->encoding, payload, add->weight);
    sheaf_spool_unmap(payload);
    if (status != SHEAF_OK) note_failed_addition(round, add, status, problem.text);
    /* Last, for after it the round may go on without looking at this addition again. */
    if (status == SHEAF_OK || is_lost(status)) atomic_fetch_sub(&round->adding, 1);
    sheaf_queue_wake(round->parts.events);
}

int sheaf_round_add_again(sheaf_round *round) {
    int found = 0;
    for (uint32_t i = 0; i < round->accepted; i++) {
        if (!atomic_exchange(&round->additions[i].again, 0)) continue;
        sheaf_queue_push(round->parts.workers, &round->additions[i].task);
        found = 1;
    }
    return found;
}

/* Counts a durable update and hands it to the workers. */
void sheaf_round_count_update(sheaf_round *round, const sheaf_update_statement *statement, double loss, int recovered) {
    sheaf_member *member = NULL;
    sheaf_status status = sheaf_cohort_admit(round->cohort, statement->client, &member);
    assert(status == SHEAF_OK && !member->accepted);
    member->accepted = 1;
    addition *add = &round->additions[round->accepted++];
    *add = (addition){.task = {run_addition},
                      .round = round,
                      .number = round->row.round,
                      .payload_bytes = statement->payload_bytes,
                      .weight = statement->weight,
                      .recovered = recovered};
    memcpy(add->client, statement->client, sizeof add->client);
    memcpy(add->encoding, statement->payload_type, sizeof add->encoding);
    memcpy(add->payload_digest, statement->payload_digest, SHEAF_DIGEST_BYTES);
    if (!recovered) {
        round->accepted_total++;
        round->bytes_total += statement->payload_bytes;
    }
    round->row.accepted++;
    round->row.upload_bytes += statement->payload_bytes;
    sheaf_uploads_count_kept(round->parts.uploads, statement->payload_bytes);
    round->row.weight += (uint64_t)statement->weight;
    if (isfinite(loss) && fabs(loss) < LOSS_MAX) {
        round->loss_sum += loss * (double)statement->weight;
        round->loss_weight += (double)statement->weight;
    }
    atomic_fetch_add(&round->adding, 1);
    /* While a round is being recovered it may still turn out to be impossible: workers must not know of it yet. The
     * first settle hands it over. */
    if (recovered)
        atomic_store(&add->again, 1);
    else
        sheaf_queue_push(round->parts.workers, &add->task);
}

void sheaf_round_commit_staged(sheaf_round *round, sheaf_buffer *scratch) {
    if (round->staged_count == 0) return;
    sheaf_problem problem;
    if (sheaf_database_commit(round->parts.database, &problem) != SHEAF_OK) {
        wait_all_staged(round, scratch, &problem);
        return;
    }
    for (size_t i = 0; i < round->staged_count; i++) {
        sheaf_request *request = round->staged[i].request;
        sheaf_upload *upload = request->upload;
        sheaf_log(SHEAF_LOG_INFO, "update_accepted",
                  "job=%s round=%" PRIu64 " client=%s weight=%" PRId64 " bytes=%" PRIu64, round->parts.config->name,
                  round->row.round, upload->statement.client, upload->statement.weight,
                  upload->statement.payload_bytes);
        sheaf_round_count_update(round, &upload->statement, upload->training_loss, 0);
        sheaf_clients_accepted(request->clients, sheaf_certificate_identity(request->peer), round->row.round);
        sheaf_upload_drop(upload);
        sheaf_round_tell_receipt(request, &round->staged[i].receipt, scratch);
    }
    round->staged_count = 0;
    sheaf_round_note_move(round);
}
