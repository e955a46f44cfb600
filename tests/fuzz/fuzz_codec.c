/* A payload of any bytes decodes within the lattice or names its first bad value; what decodes encodes to itself. The
 * first byte chooses the lattice, the rest are the values. */
#include <assert.h>
#include <stdlib.h>

#include "common/codec/codec.h"
#include "common/lattice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encodes_to_itself(sheaf_span part, size_t count) {
    float *values = calloc(count + 1, sizeof *values);
    uint8_t *again = malloc(part.size + 1);
    size_t wrong = 0;
    assert(values != NULL && again != NULL);
    for (size_t i = 0; i < count; i++) values[i] = sheaf_load_f32(part.data + 4 * i);
    sheaf_status status = sheaf_codec_f32.encode(values, 0, count, again, &wrong);
    assert(status == SHEAF_OK && sheaf_span_equal(part, sheaf_span_of(again, part.size)));
    free(again);
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    size_t count = (size - 1) / 4, wrong = count;
    int fraction_bits =
        LATTICE_FRACTION_BITS_MIN + data[0] % (LATTICE_FRACTION_BITS_MAX - LATTICE_FRACTION_BITS_MIN + 1);
    sheaf_span part = sheaf_span_of(data + 1, 4 * count);
    int32_t *q = calloc(count + 1, sizeof *q);
    assert(q != NULL && sheaf_codec_find("f32") == &sheaf_codec_f32 && sheaf_codec_f32.part_bytes(count) == part.size);
    sheaf_status status = sheaf_codec_f32.decode(part, 0, count, fraction_bits, q, &wrong);
    for (size_t i = 0; i < (status == SHEAF_OK ? count : wrong); i++)
        assert(q[i] >= -LATTICE_Q_MAX); /* -2^31 is never made */
    if (status == SHEAF_OK)
        encodes_to_itself(part, count);
    else
        assert(wrong < count && (status == SHEAF_E_NOT_FINITE || status == SHEAF_E_RANGE));
    free(q);
    return 0;
}
