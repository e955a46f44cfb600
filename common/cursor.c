#include "common/cursor.h"

sheaf_span sheaf_read_bytes(sheaf_reader *reader, size_t size) {
    if (reader->failed || size > sheaf_reader_left(reader)) {
        reader->failed = 1;
        return sheaf_span_of(NULL, 0);
    }
    sheaf_span span = sheaf_span_of(reader->data + reader->position, size);
    reader->position += size;
    return span;
}

void sheaf_read_copy(sheaf_reader *reader, void *out, size_t size) {
    sheaf_span span = sheaf_read_bytes(reader, size);
    if (reader->failed)
        memset(out, 0, size);
    else if (size > 0)
        memcpy(out, span.data, size);
}

uint8_t sheaf_read_u8(sheaf_reader *reader) {
    uint8_t bytes[1];
    sheaf_read_copy(reader, bytes, sizeof bytes);
    return bytes[0];
}

uint16_t sheaf_read_u16(sheaf_reader *reader) {
    uint8_t bytes[2];
    sheaf_read_copy(reader, bytes, sizeof bytes);
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

uint32_t sheaf_read_u32(sheaf_reader *reader) {
    uint8_t bytes[4];
    sheaf_read_copy(reader, bytes, sizeof bytes);
    return sheaf_load_u32(bytes);
}

uint64_t sheaf_read_u64(sheaf_reader *reader) {
    uint8_t bytes[8];
    sheaf_read_copy(reader, bytes, sizeof bytes);
    return sheaf_load_u64(bytes);
}

void sheaf_read_name(sheaf_reader *reader, char *out, size_t capacity) {
    size_t size = sheaf_read_u16(reader);
    sheaf_span span = sheaf_read_bytes(reader, size);
    out[0] = '\0';
    if (reader->failed || size == 0 || size >= capacity || memchr(span.data, 0, size) != NULL) {
        reader->failed = 1;
        return;
    }
    memcpy(out, span.data, size);
    out[size] = '\0';
}

void sheaf_write_bytes(sheaf_writer *writer, const void *data, size_t size) {
    if (writer->failed || size > writer->capacity - writer->position) {
        writer->failed = 1;
        return;
    }
    if (size > 0) memcpy(writer->data + writer->position, data, size);
    writer->position += size;
}

void sheaf_write_u8(sheaf_writer *writer, uint8_t value) { sheaf_write_bytes(writer, &value, 1); }

void sheaf_write_u16(sheaf_writer *writer, uint16_t value) {
    uint8_t bytes[2] = {(uint8_t)value, (uint8_t)(value >> 8)};
    sheaf_write_bytes(writer, bytes, sizeof bytes);
}

void sheaf_write_u32(sheaf_writer *writer, uint32_t value) {
    uint8_t bytes[4];
    sheaf_store_u32(bytes, value);
    sheaf_write_bytes(writer, bytes, sizeof bytes);
}

void sheaf_write_u64(sheaf_writer *writer, uint64_t value) {
    uint8_t bytes[8];
    sheaf_store_u64(bytes, value);
    sheaf_write_bytes(writer, bytes, sizeof bytes);
}

void sheaf_write_name(sheaf_writer *writer, const char *name) {
    size_t size = strlen(name);
    if (size == 0 || size > UINT16_MAX) {
        writer->failed = 1;
        return;
    }
    sheaf_write_u16(writer, (uint16_t)size);
    sheaf_write_bytes(writer, name, size);
}
