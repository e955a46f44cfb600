/* The STATE slot: name "sheaf edge state v1", tenant, job, client, u64 last_round, u8 pending, then if pending u16 and
 * statement, u16 and signature, u64 bits of the loss; then u8 and, if it is 1, the digest of the model version held; the
 * same for the one that is being fetched; zeros; SHA-256 of all before. Always of one size, because the
 * storage interface has no call that tells a size. */
#include "client/core/session.h"

#include "common/cursor.h"

static const char domain[] = "sheaf edge state v1";
#define DIGESTED_BYTES (SHEAF_EDGE_STATE_BYTES_MAX - SHEAF_DIGEST_BYTES)

/* domain, three names, last_round, pending, statement, signature, loss, two digests. */
_Static_assert((2 + sizeof domain) + 3 * (2 + SHEAF_NAME_BYTES) + 9 + (2 + SHEAF_STATEMENT_BYTES_MAX) +
                       (2 + SHEAF_EDGE_SIGNATURE_BYTES_MAX) + 8 + 2 * (1 + SHEAF_DIGEST_BYTES) <=
                   DIGESTED_BYTES,
               "the largest record fits its slot");

static void write_blob(sheaf_writer *writer, const uint8_t *data, size_t size) {
    sheaf_write_u16(writer, (uint16_t)size);
    sheaf_write_bytes(writer, data, size);
}

static size_t read_blob(sheaf_reader *reader, uint8_t *out, size_t capacity) {
    size_t size = sheaf_read_u16(reader);
    if (size == 0 || size > capacity) {
        reader->failed = 1;
        return 0;
    }
    sheaf_read_copy(reader, out, size);
    return size;
}

static void write_digest(sheaf_writer *writer, int known, const uint8_t digest[SHEAF_DIGEST_BYTES]) {
    sheaf_write_u8(writer, (uint8_t)known);
    if (known) sheaf_write_bytes(writer, digest, SHEAF_DIGEST_BYTES);
}

static int read_digest(sheaf_reader *reader, uint8_t digest[SHEAF_DIGEST_BYTES]) {
    int known = sheaf_read_u8(reader) == 1;
    if (known) sheaf_read_copy(reader, digest, SHEAF_DIGEST_BYTES);
    return known;
}

static void encode_pending(const sheaf_session_record *record, sheaf_writer *writer) {
    uint64_t loss;
    memcpy(&loss, &record->loss, sizeof loss);
    write_blob(writer, record->statement, record->statement_bytes);
    write_blob(writer, record->signature, record->signature_bytes);
    sheaf_write_u64(writer, loss);
}

static void encode(const sheaf_session *s, sheaf_writer *writer) {
    const sheaf_session_record *record = &s->record;
    sheaf_write_name(writer, domain);
    sheaf_write_name(writer, s->port.tenant);
    sheaf_write_name(writer, s->port.job);
    sheaf_write_name(writer, s->port.client);
    sheaf_write_u64(writer, record->last_round);
    sheaf_write_u8(writer, (uint8_t)record->pending);
    if (record->pending) encode_pending(record, writer);
    write_digest(writer, record->held_known, record->held);
    write_digest(writer, record->fetching_known, record->fetching);
}

static int names_match(const sheaf_session *s, sheaf_reader *reader) {
    const char *expected[] = {s->port.tenant, s->port.job, s->port.client};
    int same = 1;
    for (size_t i = 0; i < 3; i++) {
        char found[SHEAF_NAME_BYTES];
        sheaf_read_name(reader, found, sizeof found);
        same &= strcmp(found, expected[i]) == 0;
    }
    return same;
}

static void decode_pending(sheaf_session_record *record, sheaf_reader *reader) {
    record->statement_bytes = read_blob(reader, record->statement, sizeof record->statement);
    record->signature_bytes = read_blob(reader, record->signature, sizeof record->signature);
    uint64_t loss = sheaf_read_u64(reader);
    memcpy(&record->loss, &loss, sizeof loss);
}

static sheaf_status decode(sheaf_session *s, sheaf_span bytes) {
    sheaf_session_record *record = &s->record;
    sheaf_reader reader = sheaf_reader_of(bytes);
    char found[SHEAF_NAME_BYTES];
    sheaf_read_name(&reader, found, sizeof found);
    if (strcmp(found, domain) != 0) return SHEAF_E_VERSION;
    if (!names_match(s, &reader)) return SHEAF_E_MISMATCH;
    record->last_round = sheaf_read_u64(&reader);
    record->pending = sheaf_read_u8(&reader) != 0;
    if (record->pending) decode_pending(record, &reader);
    record->held_known = read_digest(&reader, record->held);
    record->fetching_known = read_digest(&reader, record->fetching);
    if (reader.failed) return SHEAF_E_CORRUPT;
    if (!record->pending) return SHEAF_OK;
    sheaf_span statement = sheaf_span_of(record->statement, record->statement_bytes);
    return sheaf_update_statement_decode(statement, &s->update) == SHEAF_OK ? SHEAF_OK : SHEAF_E_CORRUPT;
}

static sheaf_status read_and_decode(sheaf_session *s) {
    uint8_t *bytes = s->port.frame;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sheaf_status status =
        s->port.storage.read(SHEAF_EDGE_STATE, 0, bytes, SHEAF_EDGE_STATE_BYTES_MAX, s->port.storage.context);
    if (status == SHEAF_E_TRUNCATED) return SHEAF_E_CORRUPT;
    if (status != SHEAF_OK) return status;
    status = sheaf_session_digest(s, sheaf_span_of(bytes, DIGESTED_BYTES), digest);
    if (status != SHEAF_OK) return status;
    if (memcmp(digest, bytes + DIGESTED_BYTES, sizeof digest) != 0) return SHEAF_E_CORRUPT;
    return decode(s, sheaf_span_of(bytes, DIGESTED_BYTES));
}

/* A device in the field must not need a visit because a sector died: a corrupt record is told, and work starts afresh.
 * The aggregator's own record keeps an update from being counted twice. */
sheaf_status sheaf_session_read_record(sheaf_session *s) {
    sheaf_status status = read_and_decode(s);
    if (status == SHEAF_OK || status == SHEAF_E_MISMATCH || status == SHEAF_E_VERSION) return status;
    if (status != SHEAF_E_NOT_FOUND && status != SHEAF_E_CORRUPT) return status;
    memset(&s->record, 0, sizeof s->record);
    memset(&s->update, 0, sizeof s->update);
    if (status == SHEAF_E_CORRUPT) {
        sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_STATE_LOST, status);
        sheaf_session_tell(s, &event);
    }
    return SHEAF_OK;
}

/* Uses the frame buffer: the caller knows that no reply lies there unread. */
sheaf_status sheaf_session_write_record(sheaf_session *s) {
    const sheaf_edge_storage *storage = &s->port.storage;
    uint8_t *bytes = s->port.frame;
    memset(bytes, 0, SHEAF_EDGE_STATE_BYTES_MAX);
    sheaf_writer writer = sheaf_writer_of(bytes, DIGESTED_BYTES);
    encode(s, &writer);
    if (writer.failed) return SHEAF_E_TOO_LARGE;
    sheaf_status status = sheaf_session_digest(s, sheaf_span_of(bytes, DIGESTED_BYTES), bytes + DIGESTED_BYTES);
    if (status != SHEAF_OK) return status;
    status = storage->write(SHEAF_EDGE_STATE, 0, bytes, SHEAF_EDGE_STATE_BYTES_MAX, storage->context);
    if (status != SHEAF_OK) return status;
    return storage->commit(SHEAF_EDGE_STATE, storage->context);
}
