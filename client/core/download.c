/* The base model comes in parts, goes straight to the MODEL slot, and counts only when the SHA-256 of the whole stream
 * is the digest in the signed round statement. What lies in a slot from before a restart is hashed again first. */
#include "client/core/session.h"

sheaf_status sheaf_session_begin_check(sheaf_session *s) {
    s->offset = 0;
    return s->port.digest.begin(s->port.digest.context);
}

/* Hashes one block of a slot. SHEAF_AGAIN until all `bytes` are through, then compares. */
static sheaf_status check_slot(sheaf_session *s, sheaf_edge_slot slot, uint64_t bytes,
                               const uint8_t expected[SHEAF_DIGEST_BYTES]) {
    const sheaf_edge_digest *digest = &s->port.digest;
    uint8_t *block = (uint8_t *)s->port.work;
    size_t most = s->port.work_values * sizeof(float);
    uint64_t left = bytes - s->offset;
    size_t size = left < most ? (size_t)left : most;
    if (size > 0) {
        sheaf_status status = s->port.storage.read(slot, s->offset, block, size, s->port.storage.context);
        if (status == SHEAF_OK) status = digest->update(block, size, digest->context);
        if (status != SHEAF_OK) return status;
        s->offset += size;
        if (s->offset < bytes) return SHEAF_AGAIN;
    }
    uint8_t found[SHEAF_DIGEST_BYTES];
    sheaf_status status = digest->finish(found, digest->context);
    if (status != SHEAF_OK) return status;
    return memcmp(found, expected, sizeof found) == 0 ? SHEAF_OK : SHEAF_E_CORRUPT;
}

sheaf_status sheaf_session_check_update(sheaf_session *s) {
    sheaf_status status = check_slot(s, SHEAF_EDGE_UPDATE, s->update.payload_bytes, s->update.payload_digest);
    if (status == SHEAF_OK) s->update_whole = 1;
    return status;
}

static void model_is_here(sheaf_session *s) {
    s->model_whole = 1;
    memcpy(s->model, s->round.base_model, sizeof s->model);
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_MODEL_READY, SHEAF_OK);
    event.digest = s->model;
    event.bytes = s->round.base_model_bytes;
    sheaf_session_tell(s, &event);
}

sheaf_status sheaf_session_check_model(sheaf_session *s) {
    sheaf_status status = check_slot(s, SHEAF_EDGE_MODEL, s->round.base_model_bytes, s->round.base_model);
    if (status == SHEAF_AGAIN) return status;
    s->model_checked = 1;
    if (status == SHEAF_OK) model_is_here(s);
    return status;
}

sheaf_status sheaf_session_begin_download(sheaf_session *s) {
    s->model_checked = 1;
    s->model_whole = 0;
    return sheaf_session_begin_check(s);
}

static sheaf_status store_part(sheaf_session *s) {
    const sheaf_edge_storage *storage = &s->port.storage;
    sheaf_status status =
        storage->write(SHEAF_EDGE_MODEL, s->offset, s->payload.data, s->payload.size, storage->context);
    if (status == SHEAF_OK) {
        status = s->port.digest.update(s->payload.data, s->payload.size, s->port.digest.context);
    }
    if (status == SHEAF_OK) s->offset += s->payload.size;
    return status;
}

/* Digest first: what is not the model that was signed never becomes the slot's content. */
static sheaf_status complete_model(sheaf_session *s) {
    uint8_t found[SHEAF_DIGEST_BYTES];
    sheaf_status status = s->port.digest.finish(found, s->port.digest.context);
    if (status != SHEAF_OK) return status;
    if (memcmp(found, s->round.base_model, sizeof found) != 0) return SHEAF_E_DIGEST;
    status = s->port.storage.commit(SHEAF_EDGE_MODEL, s->port.storage.context);
    if (status == SHEAF_OK) model_is_here(s);
    return status;
}

sheaf_status sheaf_session_take_model_part(sheaf_session *s) {
    const sheaf_v1_ModelPart *part = &s->message.reply.body.model;
    uint64_t total = s->round.base_model_bytes;
    if (part->total_bytes != total) return SHEAF_E_MALFORMED;
    /* An old part that came twice: ask again for the one that is due. */
    if (part->offset != s->offset) return SHEAF_AGAIN;
    if (s->payload.size == 0 || s->payload.size > total - s->offset) return SHEAF_E_MALFORMED;
    sheaf_status status = store_part(s);
    if (status != SHEAF_OK) return status;
    return s->offset < total ? SHEAF_AGAIN : complete_model(s);
}
