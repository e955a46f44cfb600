/* cursor.h - the only way to read or write the bytes of a message: every step is checked, and a failure sticks.
 *
 * Owner:   a cursor borrows the memory it walks.
 * Threads: one at a time.
 * Units:   bytes; integers little-endian; names are a u16 length and that many bytes.
 * Errors:  after a failed step all later steps fail and yield zeros; ask `failed` once, at the end.
 * Not:     it judges no meaning; callers check ranges after reading. */
#pragma once
#include "common/bytes.h"

typedef struct {
    const uint8_t *data;
    size_t size;
    size_t position; /* <= size */
    int failed;
} sheaf_reader;

typedef struct {
    uint8_t *data;
    size_t capacity;
    size_t position; /* <= capacity */
    int failed;
} sheaf_writer;

static inline sheaf_reader sheaf_reader_of(sheaf_span span) {
    sheaf_reader reader = {span.data, span.size, 0, 0};
    return reader;
}
static inline sheaf_writer sheaf_writer_of(void *data, size_t capacity) {
    sheaf_writer writer = {(uint8_t *)data, capacity, 0, 0};
    return writer;
}
static inline size_t sheaf_reader_left(const sheaf_reader *reader) { return reader->size - reader->position; }
static inline sheaf_span sheaf_writer_span(const sheaf_writer *writer) {
    return sheaf_span_of(writer->data, writer->position);
}

/* The next `size` bytes, borrowed; an empty span after a failure. */
sheaf_span sheaf_read_bytes(sheaf_reader *reader, size_t size);
void sheaf_read_copy(sheaf_reader *reader, void *out, size_t size);
uint8_t sheaf_read_u8(sheaf_reader *reader);
uint16_t sheaf_read_u16(sheaf_reader *reader);
uint32_t sheaf_read_u32(sheaf_reader *reader);
uint64_t sheaf_read_u64(sheaf_reader *reader);
/* Reads a name into `out` (capacity bytes with the NUL). Fails when it does not fit, is empty, or holds a NUL. */
void sheaf_read_name(sheaf_reader *reader, char *out, size_t capacity);

void sheaf_write_bytes(sheaf_writer *writer, const void *data, size_t size);
void sheaf_write_u8(sheaf_writer *writer, uint8_t value);
void sheaf_write_u16(sheaf_writer *writer, uint16_t value);
void sheaf_write_u32(sheaf_writer *writer, uint32_t value);
void sheaf_write_u64(sheaf_writer *writer, uint64_t value);
void sheaf_write_name(sheaf_writer *writer, const char *name);
