#include "proto/statement.h"

#include "common/cursor.h"

/* One table per statement: reading and writing walk the same rows, so they cannot disagree. */
typedef enum { NAME, U32, U64, DIGEST, TYPE } field_kind;

typedef struct {
    field_kind kind;
    size_t offset; /* in the struct */
} field;

typedef struct {
    const char *domain;
    const field *fields;
    size_t count;
} layout;

#define UPDATE(kind, member)                                                                                           \
    { kind, offsetof(sheaf_update_statement, member) }
static const field update_fields[] = {
    UPDATE(NAME, tenant),        UPDATE(NAME, job),          UPDATE(U64, round),
    UPDATE(U32, attempt),        UPDATE(DIGEST, nonce),      UPDATE(DIGEST, base_model),
    UPDATE(DIGEST, plan_digest), UPDATE(NAME, client),       UPDATE(DIGEST, certificate),
    UPDATE(TYPE, payload_type),  UPDATE(U64, payload_bytes), UPDATE(DIGEST, payload_digest),
    UPDATE(U64, weight),
};
#define ROUND(kind, member)                                                                                            \
    { kind, offsetof(sheaf_round_statement, member) }
static const field round_fields[] = {
    ROUND(NAME, tenant),          ROUND(NAME, job),           ROUND(U64, round),
    ROUND(U32, attempt),          ROUND(DIGEST, nonce),       ROUND(DIGEST, base_model),
    ROUND(U64, base_model_bytes), ROUND(DIGEST, plan_digest), ROUND(DIGEST, certificate),
    ROUND(U64, opened_unix_ms),
};
#define RECEIPT(kind, member)                                                                                          \
    { kind, offsetof(sheaf_receipt_statement, member) }
static const field receipt_fields[] = {
    RECEIPT(NAME, tenant),
    RECEIPT(NAME, job),
    RECEIPT(U64, round),
    RECEIPT(U32, attempt),
    RECEIPT(NAME, client),
    RECEIPT(DIGEST, update_digest),
    RECEIPT(DIGEST, payload_digest),
    RECEIPT(U64, accepted_unix_ms),
};
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const layout update_layout = {"sheaf update v1", update_fields, COUNT(update_fields)};
static const layout round_layout = {"sheaf round v1", round_fields, COUNT(round_fields)};
static const layout receipt_layout = {"sheaf receipt v1", receipt_fields, COUNT(receipt_fields)};

static void write_field(sheaf_writer *writer, field_kind kind, const uint8_t *at) {
    uint32_t u32;
    uint64_t u64;
    switch (kind) {
    case NAME:
    case TYPE:
        sheaf_write_name(writer, (const char *)at);
        return;
    case U32:
        memcpy(&u32, at, sizeof u32);
        sheaf_write_u32(writer, u32);
        return;
    case U64:
        memcpy(&u64, at, sizeof u64);
        sheaf_write_u64(writer, u64);
        return;
    case DIGEST:
        sheaf_write_bytes(writer, at, SHEAF_DIGEST_BYTES);
        return;
    }
}

static void read_field(sheaf_reader *reader, field_kind kind, uint8_t *at) {
    uint32_t u32;
    uint64_t u64;
    switch (kind) {
    case NAME:
        sheaf_read_name(reader, (char *)at, SHEAF_NAME_BYTES);
        return;
    case TYPE:
        sheaf_read_name(reader, (char *)at, SHEAF_PAYLOAD_TYPE_BYTES);
        return;
    case U32:
        u32 = sheaf_read_u32(reader);
        memcpy(at, &u32, sizeof u32);
        return;
    case U64:
        u64 = sheaf_read_u64(reader);
        memcpy(at, &u64, sizeof u64);
        return;
    case DIGEST:
        sheaf_read_copy(reader, at, SHEAF_DIGEST_BYTES);
        return;
    }
}

static sheaf_status encode(const layout *layout, const void *statement, sheaf_buffer *out) {
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    sheaf_write_name(&writer, layout->domain);
    for (size_t i = 0; i < layout->count; i++) {
        write_field(&writer, layout->fields[i].kind, (const uint8_t *)statement + layout->fields[i].offset);
    }
    out->size = writer.failed ? 0 : writer.position;
    return writer.failed ? SHEAF_E_TOO_LARGE : SHEAF_OK;
}

static sheaf_status decode(const layout *layout, sheaf_span bytes, void *statement) {
    sheaf_reader reader = sheaf_reader_of(bytes);
    char domain[SHEAF_NAME_BYTES];
    sheaf_read_name(&reader, domain, sizeof domain);
    if (reader.failed) return SHEAF_E_TRUNCATED;
    if (strcmp(domain, layout->domain) != 0) return SHEAF_E_VERSION;
    for (size_t i = 0; i < layout->count; i++) {
        read_field(&reader, layout->fields[i].kind, (uint8_t *)statement + layout->fields[i].offset);
        /* A name that is too long or empty fails with bytes left; running out of bytes fails with none left to read. */
        if (reader.failed)
            return sheaf_reader_left(&reader) < SHEAF_DIGEST_BYTES ? SHEAF_E_TRUNCATED : SHEAF_E_MALFORMED;
    }
    return sheaf_reader_left(&reader) == 0 ? SHEAF_OK : SHEAF_E_MALFORMED;
}

sheaf_status sheaf_update_statement_encode(const sheaf_update_statement *statement, sheaf_buffer *out) {
    return encode(&update_layout, statement, out);
}
sheaf_status sheaf_update_statement_decode(sheaf_span bytes, sheaf_update_statement *out) {
    memset(out, 0, sizeof *out);
    return decode(&update_layout, bytes, out);
}
sheaf_status sheaf_round_statement_encode(const sheaf_round_statement *statement, sheaf_buffer *out) {
    return encode(&round_layout, statement, out);
}
sheaf_status sheaf_round_statement_decode(sheaf_span bytes, sheaf_round_statement *out) {
    memset(out, 0, sizeof *out);
    return decode(&round_layout, bytes, out);
}
sheaf_status sheaf_receipt_statement_encode(const sheaf_receipt_statement *statement, sheaf_buffer *out) {
    return encode(&receipt_layout, statement, out);
}
sheaf_status sheaf_receipt_statement_decode(sheaf_span bytes, sheaf_receipt_statement *out) {
    memset(out, 0, sizeof *out);
    return decode(&receipt_layout, bytes, out);
}
