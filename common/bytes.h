/* bytes.h - views of memory that know their size, and little-endian loads and stores.
 *
 * Owner:   a span or a buffer borrows; whoever made it says for how long.
 * Threads: any; plain values.
 * Units:   bytes.
 * Not:     reading messages; that is cursor.h. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const uint8_t *data; /* may be NULL when size is 0 */
    size_t size;
} sheaf_span;

typedef struct {
    uint8_t *data;
    size_t size; /* used; <= capacity */
    size_t capacity;
} sheaf_buffer;

#define SHEAF_DIGEST_BYTES 32u /* SHA-256 */

static inline sheaf_span sheaf_span_of(const void *data, size_t size) {
    sheaf_span span = {(const uint8_t *)data, size};
    return span;
}
static inline sheaf_span sheaf_buffer_span(const sheaf_buffer *buffer) {
    return sheaf_span_of(buffer->data, buffer->size);
}
static inline int sheaf_span_equal(sheaf_span a, sheaf_span b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static inline uint32_t sheaf_load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t sheaf_load_u64(const uint8_t *p) {
    return (uint64_t)sheaf_load_u32(p) | (uint64_t)sheaf_load_u32(p + 4) << 32;
}
static inline void sheaf_store_u32(uint8_t *p, uint32_t v) {
    for (unsigned i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i));
}
static inline void sheaf_store_u64(uint8_t *p, uint64_t v) {
    for (unsigned i = 0; i < 8; i++) p[i] = (uint8_t)(v >> (8 * i));
}
static inline float sheaf_load_f32(const uint8_t *p) {
    uint32_t bits = sheaf_load_u32(p);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline void sheaf_store_f32(uint8_t *p, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    sheaf_store_u32(p, bits);
}

/* Lower-case hex with a closing NUL: text holds 2 * size + 1 bytes. */
void sheaf_hex(const uint8_t *data, size_t size, char *text);
/* Reads exactly 2 * size hex digits; 0 when the text is anything else. */
int sheaf_unhex(const char *text, uint8_t *data, size_t size);
/* Clears memory that held a secret, in a way that the optimiser keeps. */
void sheaf_wipe(void *data, size_t size);
