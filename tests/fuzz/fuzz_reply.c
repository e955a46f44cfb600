/* A reply frame that decodes, encodes again, and that encoding decodes to the same payload. */
#include <assert.h>
#include <stdlib.h>

#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero, again = sheaf_v1_Reply_init_zero;
    sheaf_span payload, payload_again;
    if (sheaf_frame_decode_reply(sheaf_span_of(data, size), &reply, &payload) != SHEAF_OK) return 0;
    assert(payload.size == 0 || (payload.data >= data && payload.data + payload.size == data + size));
    sheaf_buffer out = {malloc(SHEAF_FRAME_BYTES_MAX(payload.size)), 0, SHEAF_FRAME_BYTES_MAX(payload.size)};
    assert(out.data != NULL);
    sheaf_status status = sheaf_frame_encode_reply(&reply, payload, &out);
    assert(status == SHEAF_OK);
    status = sheaf_frame_decode_reply(sheaf_buffer_span(&out), &again, &payload_again);
    assert(status == SHEAF_OK && again.which_body == reply.which_body);
    assert(sheaf_span_equal(payload, payload_again));
    free(out.data);
    return 0;
}
