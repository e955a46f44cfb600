#include "common/transport/envelope.h"

#include "common/transport/handshake.h"

sheaf_status sheaf_envelope_write_reject(const uint8_t id[SHEAF_SESSION_ID_BYTES], sheaf_status reason,
                                         sheaf_buffer *out) {
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_REJECT, id);
    sheaf_write_u32(&writer, (uint32_t)reason);
    out->size = writer.position;
    return writer.failed ? SHEAF_E_TOO_LARGE : SHEAF_OK;
}

sheaf_status sheaf_envelope_read_reject(sheaf_span message, sheaf_envelope_head *head, sheaf_status *reason) {
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_status status = sheaf_envelope_read_head(message, head);
    if (status != SHEAF_OK) return status;
    status = sheaf_envelope_expect(&reader, SHEAF_ENVELOPE_REJECT, NULL);
    uint32_t number = sheaf_read_u32(&reader);
    if (status != SHEAF_OK) return status;
    if (reader.failed) return SHEAF_E_TRUNCATED;
    if (sheaf_reader_left(&reader) > 0) return SHEAF_E_MALFORMED;
    *reason = sheaf_status_from_number((long)number);
    return SHEAF_OK;
}

/* --- which numbers were seen -------------------------------------------------------------------------------------- */

int sheaf_replay_window_allows(const sheaf_replay_window *window, uint64_t sequence) {
    if (sequence >= SHEAF_SESSION_MESSAGES_MAX) return 0;
    if (sequence >= window->next) return 1;
    uint64_t age = window->next - 1 - sequence;
    return age < 64 && (window->seen >> age & 1u) == 0;
}

void sheaf_replay_window_mark(sheaf_replay_window *window, uint64_t sequence) {
    if (sequence < window->next) {
        window->seen |= UINT64_C(1) << (window->next - 1 - sequence);
        return;
    }
    uint64_t steps = sequence - window->next + 1; /* >= 1, and no overflow: sequence < 2^32 */
    window->seen = steps < 64 ? window->seen << steps : 0;
    window->seen |= 1u;
    window->next = sequence + 1;
}

/* --- casts -------------------------------------------------------------------------------------------------------- */

sheaf_status sheaf_cast_key_begin(sheaf_cast_key *key, int opens, const sheaf_cast_group *group) {
    static const uint8_t nonce_base[SHEAF_SEAL_NONCE_BYTES] = {0}; /* the key serves this group only */
    memset(key, 0, sizeof *key);
    memcpy(key->id, group->id, sizeof key->id);
    return sheaf_aead_begin(&key->aead, opens, group->key, nonce_base);
}

void sheaf_cast_key_drop(sheaf_cast_key *key) {
    sheaf_aead_drop(&key->aead);
    memset(key, 0, sizeof *key);
}

sheaf_status sheaf_cast_seal(sheaf_cast_key *key, uint64_t sequence, sheaf_span frame, sheaf_buffer *out) {
    if (out->capacity < SHEAF_ENVELOPE_DATA_OVERHEAD || frame.size > out->capacity - SHEAF_ENVELOPE_DATA_OVERHEAD)
        return SHEAF_E_TOO_LARGE;
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_CAST, key->id);
    sheaf_write_u64(&writer, sequence);
    out->size = writer.position + frame.size + SHEAF_SEAL_TAG_BYTES;
    return sheaf_aead_seal(&key->aead, sequence, sheaf_writer_span(&writer), frame, out->data + writer.position);
}

sheaf_status sheaf_cast_open(sheaf_cast_key *key, sheaf_span message, uint64_t *sequence, sheaf_buffer *out) {
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_status status = sheaf_envelope_expect(&reader, SHEAF_ENVELOPE_CAST, key->id);
    *sequence = sheaf_read_u64(&reader);
    if (status != SHEAF_OK) return status;
    if (reader.failed || sheaf_reader_left(&reader) < SHEAF_SEAL_TAG_BYTES) return SHEAF_E_TRUNCATED;
    sheaf_span clear = sheaf_span_of(message.data, reader.position);
    sheaf_span sealed = sheaf_read_bytes(&reader, sheaf_reader_left(&reader));
    if (sealed.size - SHEAF_SEAL_TAG_BYTES > out->capacity) return SHEAF_E_TOO_LARGE;
    out->size = sealed.size - SHEAF_SEAL_TAG_BYTES;
    return sheaf_aead_open(&key->aead, *sequence, clear, sealed, out->data);
}
