/* f32: every value as IEEE binary32, little-endian. */
#include "common/codec/codec.h"

#include "common/lattice.h"

static uint64_t part_bytes(uint64_t elements) { return 4 * elements; }

static sheaf_status decode(sheaf_span part, uint64_t first, size_t count, int fraction_bits, int32_t *q,
                           size_t *wrong) {
    const uint8_t *at = part.data + 4 * first;
    for (size_t i = 0; i < count; i++) {
        sheaf_status status = lattice_decode_f32(sheaf_load_u32(at + 4 * i), fraction_bits, &q[i]);
        if (status == SHEAF_OK) continue;
        *wrong = i;
        return status;
    }
    return SHEAF_OK;
}

static sheaf_status encode(const float *values, uint64_t first, size_t count, uint8_t *part, size_t *wrong) {
    uint8_t *at = part + 4 * first;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = lattice_f32_bits(values[i]);
        if (!lattice_f32_is_finite(bits)) {
            *wrong = i;
            return SHEAF_E_NOT_FINITE;
        }
        sheaf_store_u32(at + 4 * i, bits);
    }
    return SHEAF_OK;
}

const sheaf_codec sheaf_codec_f32 = {"f32", part_bytes, decode, encode};
