#include "client/core/session.h"

static void copy_bytes(pb_size_t *size, uint8_t *to, const uint8_t *from, size_t bytes) {
    memcpy(to, from, bytes);
    *size = (pb_size_t)bytes;
}

/* Names were checked to fit when the session was made. */
static void copy_name(char out[SHEAF_NAME_BYTES], const char *name) { memcpy(out, name, strlen(name) + 1); }

static void head(sheaf_session *s, pb_size_t body) {
    sheaf_v1_Request *request = &s->message.request;
    memset(request, 0, sizeof *request);
    copy_name(request->tenant, s->port.tenant);
    copy_name(request->job, s->port.job);
    copy_name(request->client, s->port.client);
    request->which_body = body;
}

sheaf_status sheaf_session_make_hello(sheaf_session *s, sheaf_span *payload) {
    (void)payload;
    head(s, sheaf_v1_Request_hello_tag);
    sheaf_v1_Hello *hello = &s->message.request.body.hello;
    hello->protocol = 1;
    hello->encodings_count = 1;
    memcpy(hello->encodings[0], "f32", sizeof "f32");
    hello->frame_bytes_max = s->port.frame_bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)s->port.frame_bytes;
    return SHEAF_OK;
}

sheaf_status sheaf_session_make_round_query(sheaf_session *s, sheaf_span *payload) {
    (void)payload;
    head(s, sheaf_v1_Request_round_tag);
    s->message.request.body.round.last_round = s->record.last_round;
    return SHEAF_OK;
}

sheaf_status sheaf_session_make_model_query(sheaf_session *s, sheaf_span *payload) {
    (void)payload;
    int busy_here = s->download.standing > s->offset || s->download.same > 0;
    if (busy_here || s->download.cursor >= s->round.base_model_bytes) return SHEAF_AGAIN;
    head(s, sheaf_v1_Request_model_tag);
    sheaf_v1_ModelQuery *query = &s->message.request.body.model;
    copy_bytes(&query->digest.size, query->digest.bytes, s->round.base_model, SHEAF_DIGEST_BYTES);
    query->offset = s->download.casting ? s->offset : s->download.cursor;
    query->bytes_max = s->chunk_bytes;
    if (s->download.tells_held) copy_bytes(&query->held.size, query->held.bytes, s->record.held, SHEAF_DIGEST_BYTES);
    query->can_join = s->port.transport.join != NULL && !s->download.pulls && !s->download.plain;
    return SHEAF_OK;
}

sheaf_status sheaf_session_make_progress(sheaf_session *s, sheaf_span *payload) {
    (void)payload;
    head(s, sheaf_v1_Request_progress_tag);
    sheaf_v1_Progress *progress = &s->message.request.body.progress;
    progress->round = s->round.round;
    progress->attempt = s->round.attempt;
    progress->done_permille = s->progress.done_permille;
    return SHEAF_OK;
}

/* The certificate may be another than when the update was sealed, if the link was lost since or an answer was. */
sheaf_status sheaf_session_make_offer(sheaf_session *s, sheaf_span *payload) {
    (void)payload;
    sheaf_status status = sheaf_session_sign_again(s);
    if (status != SHEAF_OK) return status;
    head(s, sheaf_v1_Request_offer_tag);
    sheaf_v1_Offer *offer = &s->message.request.body.offer;
    copy_bytes(&offer->statement.size, offer->statement.bytes, s->record.statement, s->record.statement_bytes);
    copy_bytes(&offer->signature.size, offer->signature.bytes, s->record.signature, s->record.signature_bytes);
    offer->training_loss = s->record.loss;
    return SHEAF_OK;
}

/* The payload is read to where it cannot meet the header that is written before it. With everything already there, an
 * empty chunk asks for the receipt. */
sheaf_status sheaf_session_make_chunk(sheaf_session *s, sheaf_span *payload) {
    uint64_t offset;
    sheaf_status status = sheaf_session_next_chunk(s, &offset);
    if (status != SHEAF_OK) return status;
    uint64_t left = s->update.payload_bytes - offset;
    size_t size = left < s->upload.size ? (size_t)left : s->upload.size;
    uint8_t *at = s->port.frame + SHEAF_FRAME_BYTES_MAX(0);
    uint8_t digest[SHEAF_DIGEST_BYTES];
    if (size > 0) {
        const sheaf_edge_storage *storage = &s->port.storage;
        status = storage->read(SHEAF_EDGE_UPDATE, offset, at, size, storage->context);
        if (status != SHEAF_OK) return status;
    }
    status = sheaf_session_digest(s, sheaf_span_of(at, size), digest);
    if (status != SHEAF_OK) return status;
    head(s, sheaf_v1_Request_chunk_tag);
    sheaf_v1_Chunk *chunk = &s->message.request.body.chunk;
    copy_bytes(&chunk->payload_digest.size, chunk->payload_digest.bytes, s->update.payload_digest, SHEAF_DIGEST_BYTES);
    copy_bytes(&chunk->chunk_digest.size, chunk->chunk_digest.bytes, digest, sizeof digest);
    chunk->offset = offset;
    *payload = sheaf_span_of(at, size);
    return SHEAF_OK;
}
