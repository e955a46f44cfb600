#include "common/transport/sp.h"

#include <string.h>

static void store_big(uint8_t *out, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

static uint64_t load_big(const uint8_t *in, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++) value = value << 8 | in[i];
    return value;
}

void sheaf_sp_write_hello(uint8_t out[SHEAF_SP_HELLO_BYTES], unsigned protocol) {
    static const uint8_t frame[SHEAF_SP_HELLO_BYTES] = {0, 'S', 'P', 0, 0, 0, 0, 0};
    memcpy(out, frame, sizeof frame);
    store_big(out + 4, protocol, 2);
}

int sheaf_sp_hello_is(const uint8_t hello[SHEAF_SP_HELLO_BYTES], unsigned protocol) {
    uint8_t expected[SHEAF_SP_HELLO_BYTES];
    sheaf_sp_write_hello(expected, protocol);
    return memcmp(hello, expected, sizeof expected) == 0;
}

void sheaf_sp_write_head(uint8_t out[SHEAF_SP_HEAD_BYTES], uint32_t id, size_t frame_bytes) {
    store_big(out, (uint64_t)frame_bytes + SHEAF_SP_ID_BYTES, SHEAF_SP_LENGTH_BYTES);
    store_big(out + SHEAF_SP_LENGTH_BYTES, id, SHEAF_SP_ID_BYTES);
}

uint64_t sheaf_sp_read_length(const uint8_t length[SHEAF_SP_LENGTH_BYTES]) {
    return load_big(length, SHEAF_SP_LENGTH_BYTES);
}

uint32_t sheaf_sp_read_id(const uint8_t id[SHEAF_SP_ID_BYTES]) { return (uint32_t)load_big(id, SHEAF_SP_ID_BYTES); }
