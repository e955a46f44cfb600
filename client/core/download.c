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

void sheaf_session_model_is_here(sheaf_session *s) {
    s->model_whole = 1;
    memcpy(s->model, s->round.base_model, sizeof s->model);
    s->record.held_known = 1;
    memcpy(s->record.held, s->model, sizeof s->record.held);
    s->record.fetching_known = 0;
    s->download.plain = 0;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_MODEL_READY, SHEAF_OK);
    event.digest = s->model;
    event.bytes = s->round.base_model_bytes;
    sheaf_session_tell(s, &event);
}

/* Not looked at since the start, and the record does not say that it is another. */
int sheaf_session_model_may_be_here(const sheaf_session *s) {
    const sheaf_session_record *record = &s->record;
    return !s->model_checked &&
           (!record->held_known || memcmp(record->held, s->round.base_model, sizeof record->held) == 0);
}

sheaf_status sheaf_session_check_model(sheaf_session *s) {
    sheaf_status status = check_slot(s, SHEAF_EDGE_MODEL, s->round.base_model_bytes, s->round.base_model);
    if (status == SHEAF_AGAIN) return status;
    s->model_checked = 1;
    if (status == SHEAF_OK)
        sheaf_session_model_is_here(s);
    else
        s->record.held_known = 0;
    return status;
}

/* ---- what is here already ---- */

static int is_fetching_this(const sheaf_session *s) {
    return s->record.fetching_known && memcmp(s->record.fetching, s->round.base_model, SHEAF_DIGEST_BYTES) == 0;
}

static uint64_t standing_bytes(const sheaf_session *s) {
    const sheaf_edge_storage *storage = &s->port.storage;
    uint64_t bytes = 0;
    if (storage->unfinished == NULL || storage->read_unfinished == NULL) return 0;
    if (storage->unfinished(SHEAF_EDGE_MODEL, &bytes, storage->context) != SHEAF_OK) return 0;
    return bytes <= s->round.base_model_bytes ? bytes : 0;
}

/* Names in the record which model the unfinished bytes are of, before the first of them is written. Without them it may
 * have been finished just before the last stop, so that the record no longer knows what the slot holds. */
static sheaf_status name_what_is_fetched(sheaf_session *s) {
    sheaf_session_record *record = &s->record;
    const sheaf_edge_storage *storage = &s->port.storage;
    if (storage->unfinished == NULL && !storage->keeps_old) return SHEAF_OK;
    if (record->fetching_known && s->download.standing == 0 && !s->model_seen) record->held_known = 0;
    s->model_seen = 1;
    if (is_fetching_this(s)) return SHEAF_OK;
    record->fetching_known = 1;
    memcpy(record->fetching, s->round.base_model, sizeof record->fetching);
    return sheaf_session_write_record(s);
}

sheaf_status sheaf_session_begin_download(sheaf_session *s) {
    sheaf_session_download *download = &s->download;
    int plain = download->plain;
    memset(download, 0, sizeof *download);
    download->plain = plain;
    s->model_checked = 1;
    s->model_whole = 0;
    uint64_t standing = standing_bytes(s);
    download->standing = standing;
    int ours = is_fetching_this(s);
    sheaf_status status = name_what_is_fetched(s);
    if (status != SHEAF_OK) return status;
    download->standing = ours && !plain ? standing : 0;
    download->tells_held = s->port.storage.keeps_old && s->record.held_known && !plain;
    /* The first answer may say that it is all cast: then a second part beside it would come in vain. */
    int may_be_cast = s->port.transport.join != NULL && download->standing == 0 && !plain;
    download->narrow = download->tells_held || may_be_cast;
    download->took_shortcut = download->standing > 0;
    s->work_ms = 0;
    return sheaf_session_begin_check(s);
}

static void tell_bytes(sheaf_session *s) {
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_DOWNLOADED, SHEAF_OK);
    event.bytes = s->offset;
    event.digest = s->round.base_model;
    sheaf_session_tell(s, &event);
}

/* Digest first: what is not the model that was signed never becomes the slot's content. */
static sheaf_status complete_model(sheaf_session *s) {
    uint8_t found[SHEAF_DIGEST_BYTES];
    sheaf_status status = s->port.digest.finish(found, s->port.digest.context);
    if (status != SHEAF_OK) return status;
    if (memcmp(found, s->round.base_model, sizeof found) != 0) return SHEAF_E_DIGEST;
    /* From here on the slot's content may be either; the record forgets the old one with the next that is written. */
    status = s->port.storage.commit(SHEAF_EDGE_MODEL, s->port.storage.context);
    if (status == SHEAF_OK) sheaf_session_model_is_here(s);
    return status;
}

/* SHEAF_AGAIN until the model is whole. */
static sheaf_status after_bytes(sheaf_session *s) {
    return s->offset < s->round.base_model_bytes ? SHEAF_AGAIN : complete_model(s);
}

static sheaf_status store(sheaf_session *s, const uint8_t *bytes, size_t size) {
    const sheaf_edge_storage *storage = &s->port.storage;
    sheaf_status status = storage->write(SHEAF_EDGE_MODEL, s->offset, bytes, size, storage->context);
    if (status == SHEAF_OK) status = s->port.digest.update(bytes, size, s->port.digest.context);
    if (status == SHEAF_OK) s->offset += size;
    return status;
}

static size_t block_bytes(const sheaf_session *s, uint64_t left) {
    size_t most = s->port.work_values * sizeof(float);
    return left < most ? (size_t)left : most;
}

/* Bytes that were stored before a restart: hashed again, because the digest's own state is gone. */
static sheaf_status hash_standing(sheaf_session *s) {
    const sheaf_edge_storage *storage = &s->port.storage;
    uint8_t *block = (uint8_t *)s->port.work;
    size_t size = block_bytes(s, s->download.standing - s->offset);
    sheaf_status status = storage->read_unfinished(SHEAF_EDGE_MODEL, s->offset, block, size, storage->context);
    if (status == SHEAF_OK) status = s->port.digest.update(block, size, s->port.digest.context);
    if (status != SHEAF_OK) return status;
    s->offset += size;
    s->download.cursor = s->offset;
    if (s->offset < s->download.standing) return SHEAF_AGAIN;
    tell_bytes(s);
    return after_bytes(s);
}

static sheaf_status copy_same(sheaf_session *s) {
    const sheaf_edge_storage *storage = &s->port.storage;
    uint8_t *block = (uint8_t *)s->port.work;
    size_t size = block_bytes(s, s->download.same);
    sheaf_status status = storage->read(SHEAF_EDGE_MODEL, s->offset, block, size, storage->context);
    /* Shorter than it was believed to be: as wrong as another content. */
    if (status == SHEAF_E_TRUNCATED || status == SHEAF_E_NOT_FOUND) return SHEAF_E_DIGEST;
    if (status == SHEAF_OK) status = store(s, block, size);
    if (status != SHEAF_OK) return status;
    s->download.same -= size;
    s->download.cursor = s->offset;
    if (s->download.same > 0) return SHEAF_AGAIN;
    tell_bytes(s);
    return after_bytes(s);
}

sheaf_status sheaf_session_use_what_is_here(sheaf_session *s) {
    if (s->download.standing > s->offset) return hash_standing(s);
    if (s->download.same > 0) return copy_same(s);
    s->work_ms = UINT64_MAX; /* until a reply says that there is something to copy */
    return SHEAF_AGAIN;
}

/* ---- parts ---- */

/* The rest of the window would not fit behind what came: it is asked for again from where we are. */
static sheaf_status ask_from_here(sheaf_session *s) {
    if (s->download.cursor < s->offset || s->exchange.in_flight == 0) s->download.cursor = s->offset;
    return SHEAF_AGAIN;
}

static sheaf_status take_same(sheaf_session *s, uint64_t bytes) {
    if (!s->download.tells_held || s->payload.size > 0 || bytes > s->round.base_model_bytes - s->offset) {
        return SHEAF_E_MALFORMED;
    }
    s->download.same = bytes;
    s->download.narrow = 1;
    s->download.took_shortcut = 1;
    s->work_ms = 0;
    return SHEAF_AGAIN;
}

/* One that came twice, or one that follows a part which did not come. Answers come in order: it will not come late. */
static sheaf_status pass_over(sheaf_session *s, const sheaf_v1_ModelPart *part) {
    if (s->download.casting)
        sheaf_session_cast_passes(s, part);
    else if (part->offset > s->offset)
        sheaf_session_exchange_drop(s);
    return ask_from_here(s);
}

static int is_well_formed(const sheaf_session *s, const sheaf_v1_ModelPart *part) {
    uint64_t total = s->round.base_model_bytes;
    return part->total_bytes == total && part->offset <= total && s->payload.size <= total - part->offset &&
           (s->payload.size > 0) != (part->same_bytes > 0);
}

static sheaf_status take_bytes(sheaf_session *s, const sheaf_v1_ModelPart *part) {
    size_t known = (size_t)(s->offset - part->offset);
    sheaf_status status = store(s, s->payload.data + known, s->payload.size - known);
    if (status != SHEAF_OK) return status;
    s->download.narrow = s->download.tells_held && s->payload.size < s->chunk_bytes;
    s->download.begun = s->download.casting;
    s->download.passed = 0;
    s->download.frame_ms = sheaf_session_now(s);
    tell_bytes(s);
    status = after_bytes(s);
    return status == SHEAF_AGAIN ? ask_from_here(s) : status;
}

/* A part may begin with what is here already, when a cast goes on where answers had ended. */
sheaf_status sheaf_session_take_model_part(sheaf_session *s) {
    const sheaf_v1_ModelPart *part = &s->message.reply.body.model;
    sheaf_session_download *download = &s->download;
    if (!is_well_formed(s, part)) {
        if (!download->casting) return SHEAF_E_MALFORMED;
        sheaf_session_leave_cast(s, SHEAF_E_MALFORMED); /* anybody in the group could have written it */
        return ask_from_here(s);
    }
    if (download->same > 0 || download->standing > s->offset) return SHEAF_AGAIN;
    if (part->same_bytes > 0 && part->offset == s->offset) return take_same(s, part->same_bytes);
    if (part->offset > s->offset || part->offset + s->payload.size <= s->offset) return pass_over(s, part);
    return take_bytes(s, part);
}
