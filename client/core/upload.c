/* From an encoded update to its receipt. The order is the promise: payload durable, then statement and signature
 * durable, and only then a first byte leaves; so whatever dies, the same bytes are sent again. */
#include "client/core/session.h"

static sheaf_status own_fingerprint(const sheaf_session *s, uint8_t out[SHEAF_DIGEST_BYTES]) {
    return s->port.signer.fingerprint(out, s->port.signer.context);
}

int sheaf_session_update_fits(const sheaf_session *s) {
    const sheaf_update_statement *update = &s->update;
    return s->record.pending && update->round == s->round.round &&
           memcmp(update->base_model, s->round.base_model, SHEAF_DIGEST_BYTES) == 0 &&
           memcmp(update->plan_digest, s->round.plan_digest, SHEAF_DIGEST_BYTES) == 0 &&
           strcmp(update->payload_type, s->plan.encoding) == 0;
}

int sheaf_session_statement_fits(sheaf_session *s) {
    uint8_t own[SHEAF_DIGEST_BYTES];
    return sheaf_session_update_fits(s) && s->update.attempt == s->round.attempt &&
           memcmp(s->update.nonce, s->round.nonce, SHEAF_NONCE_BYTES) == 0 && own_fingerprint(s, own) == SHEAF_OK &&
           memcmp(s->update.certificate, own, sizeof own) == 0;
}

/* Everything about the round; payload and weight stand in s->update already. */
static sheaf_status fill_statement(sheaf_session *s) {
    sheaf_update_statement *update = &s->update;
    memcpy(update->tenant, s->round.tenant, sizeof update->tenant);
    memcpy(update->job, s->round.job, sizeof update->job);
    memcpy(update->client, s->port.client, strlen(s->port.client) + 1);
    update->round = s->round.round;
    update->attempt = s->round.attempt;
    memcpy(update->nonce, s->round.nonce, sizeof update->nonce);
    memcpy(update->base_model, s->round.base_model, sizeof update->base_model);
    memcpy(update->plan_digest, s->round.plan_digest, sizeof update->plan_digest);
    memcpy(update->payload_type, s->plan.encoding, sizeof update->payload_type);
    return own_fingerprint(s, update->certificate);
}

static sheaf_status sign(sheaf_session *s) {
    sheaf_session_record *record = &s->record;
    sheaf_buffer out = {record->statement, 0, sizeof record->statement};
    sheaf_status status = sheaf_update_statement_encode(&s->update, &out);
    if (status != SHEAF_OK) return status;
    record->statement_bytes = out.size;
    record->signature_bytes = sizeof record->signature;
    return s->port.signer.sign(record->statement, record->statement_bytes, record->signature, &record->signature_bytes,
                               s->port.signer.context);
}

sheaf_status sheaf_session_sign_again(sheaf_session *s) {
    uint8_t own[SHEAF_DIGEST_BYTES], before[SHEAF_DIGEST_BYTES];
    sheaf_status status = own_fingerprint(s, own);
    if (status != SHEAF_OK || memcmp(s->update.certificate, own, sizeof own) == 0) return status;
    memcpy(before, s->update.certificate, sizeof before);
    memcpy(s->update.certificate, own, sizeof own);
    status = sign(s);
    if (status == SHEAF_OK) status = sheaf_session_write_record(s);
    if (status != SHEAF_OK) memcpy(s->update.certificate, before, sizeof before); /* so that it is tried again */
    return status;
}

sheaf_status sheaf_session_seal(sheaf_session *s) {
    sheaf_status status = fill_statement(s);
    if (status == SHEAF_OK) status = sign(s);
    if (status != SHEAF_OK) return status;
    s->record.pending = 1;
    s->settled = 0;
    status = sheaf_session_write_record(s);
    if (status != SHEAF_OK) return status;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_UPDATE_STORED, SHEAF_OK);
    event.digest = s->update.payload_digest;
    event.bytes = s->update.payload_bytes;
    event.weight = s->update.weight;
    event.loss = s->record.loss;
    sheaf_session_tell(s, &event);
    return SHEAF_OK;
}

sheaf_status sheaf_session_begin_upload(sheaf_session *s) {
    uint64_t next = s->message.reply.body.upload.next_offset;
    if (next > s->update.payload_bytes) return SHEAF_E_MALFORMED;
    memset(&s->upload, 0, sizeof s->upload);
    s->upload.first = s->upload.next = s->upload.cursor = next;
    s->upload.size = s->chunk_bytes;
    return SHEAF_OK;
}

static int is_held(const sheaf_session_upload *upload, uint64_t offset) {
    uint64_t place = (offset - upload->next) / upload->size;
    return place > 0 && place <= 64 && (upload->held >> (place - 1) & 1) != 0;
}

sheaf_status sheaf_session_next_chunk(sheaf_session *s, uint64_t *offset) {
    sheaf_session_upload *upload = &s->upload;
    uint64_t end = s->update.payload_bytes;
    if (upload->drains) return SHEAF_AGAIN;
    while (upload->cursor < end && is_held(upload, upload->cursor)) upload->cursor += upload->size;
    if (upload->cursor >= end && s->exchange.in_flight > 0) return SHEAF_AGAIN;
    *offset = upload->cursor < end ? upload->cursor : end;
    return SHEAF_OK;
}

/* Once all is answered, the aggregator's last word says what is missing. */
static void settle_cursor(sheaf_session *s) {
    if (s->exchange.in_flight > 0) return;
    s->upload.cursor = s->upload.next;
    s->upload.drains = 0;
}

sheaf_status sheaf_session_hold_upload(sheaf_session *s) {
    s->upload.drains = 1;
    settle_cursor(s);
    return SHEAF_OK;
}

/* Requests are handled and answered in order, so a chunk that is missing while a later one is held was lost on the way,
 * unless its own answer told why (then `drains` is set). */
sheaf_status sheaf_session_take_upload(sheaf_session *s) {
    const sheaf_v1_Upload *reply = &s->message.reply.body.upload;
    sheaf_session_upload *upload = &s->upload;
    if (reply->next_offset > s->update.payload_bytes) return SHEAF_E_MALFORMED;
    int grows = reply->next_offset > upload->next;
    upload->next = reply->next_offset;
    upload->held = reply->held;
    if (upload->held != 0 && !upload->drains) sheaf_session_exchange_drop(s);
    if (upload->cursor < upload->next) upload->cursor = upload->next;
    settle_cursor(s);
    if (!grows) return SHEAF_OK;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_UPLOADED, SHEAF_OK);
    event.bytes = upload->next;
    sheaf_session_tell(s, &event);
    return SHEAF_OK;
}

/* The payload is what counts. The statement that was accepted may be another than the newest one: of an earlier attempt, or
 * signed before the certificate was renewed. So the statement's digest is not compared. */
static sheaf_status check_receipt(const sheaf_session *s, const sheaf_receipt_statement *receipt) {
    if (strcmp(receipt->tenant, s->port.tenant) != 0 || strcmp(receipt->job, s->port.job) != 0) return SHEAF_E_JOB;
    if (strcmp(receipt->client, s->port.client) != 0) return SHEAF_E_IDENTITY;
    if (receipt->round != s->update.round || receipt->attempt > s->update.attempt) return SHEAF_E_ROUND;
    int same = memcmp(receipt->payload_digest, s->update.payload_digest, SHEAF_DIGEST_BYTES) == 0;
    return same ? SHEAF_OK : SHEAF_E_DIGEST;
}

sheaf_status sheaf_session_take_receipt(sheaf_session *s) {
    const sheaf_v1_Receipt *reply = &s->message.reply.body.receipt;
    sheaf_receipt_statement receipt;
    sheaf_span statement = sheaf_span_of(reply->statement.bytes, reply->statement.size);
    sheaf_status status = s->port.signer.verify_peer(statement.data, statement.size, reply->signature.bytes,
                                                     reply->signature.size, s->port.signer.context);
    if (status == SHEAF_OK) status = sheaf_receipt_statement_decode(statement, &receipt);
    return status == SHEAF_OK ? check_receipt(s, &receipt) : status;
}

/* No request is built in this state, so the receipt still stands in s->message while the record is written. */
sheaf_status sheaf_session_finish(sheaf_session *s) {
    uint64_t before = s->record.last_round;
    s->record.last_round = s->update.round;
    s->record.pending = 0;
    sheaf_status status = sheaf_session_write_record(s);
    if (status != SHEAF_OK) {
        s->record.last_round = before;
        s->record.pending = 1;
        return status;
    }
    const sheaf_v1_Receipt *reply = &s->message.reply.body.receipt;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_RECEIPT, SHEAF_OK);
    event.round = s->update.round;
    event.attempt = s->update.attempt;
    event.digest = s->update.payload_digest;
    event.bytes = s->update.payload_bytes;
    event.weight = s->update.weight;
    event.loss = s->record.loss;
    event.statement = reply->statement.bytes;
    event.statement_bytes = reply->statement.size;
    event.signature = reply->signature.bytes;
    event.signature_bytes = reply->signature.size;
    sheaf_session_tell(s, &event);
    return SHEAF_OK;
}
