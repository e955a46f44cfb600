#include "proto/frame.h"

#include <pb_decode.h>
#include <pb_encode.h>

static const uint8_t magic[4] = {'S', 'h', 'f', 1};

static sheaf_status encode(const pb_msgdesc_t *fields, const void *message, sheaf_span payload, sheaf_buffer *out) {
    out->size = 0;
    if (out->capacity < SHEAF_FRAME_PREFIX_BYTES) return SHEAF_E_TOO_LARGE;
    size_t room = out->capacity - SHEAF_FRAME_PREFIX_BYTES;
    if (room > SHEAF_FRAME_HEADER_BYTES_MAX) room = SHEAF_FRAME_HEADER_BYTES_MAX;
    pb_ostream_t stream = pb_ostream_from_buffer(out->data + SHEAF_FRAME_PREFIX_BYTES, room);
    if (!pb_encode(&stream, fields, message)) return SHEAF_E_TOO_LARGE;
    size_t used = SHEAF_FRAME_PREFIX_BYTES + stream.bytes_written;
    if (payload.size > out->capacity - used) return SHEAF_E_TOO_LARGE;
    memcpy(out->data, magic, sizeof magic);
    sheaf_store_u32(out->data + 4, (uint32_t)stream.bytes_written);
    /* memmove: a sender may have put the payload into the same buffer. */
    if (payload.size > 0) memmove(out->data + used, payload.data, payload.size);
    out->size = used + payload.size;
    return SHEAF_OK;
}

static sheaf_status decode(const pb_msgdesc_t *fields, sheaf_span frame, void *message, sheaf_span *payload) {
    if (frame.size < SHEAF_FRAME_PREFIX_BYTES) return SHEAF_E_TRUNCATED;
    if (memcmp(frame.data, magic, 3) != 0) return SHEAF_E_MALFORMED;
    if (frame.data[3] != magic[3]) return SHEAF_E_VERSION;
    uint32_t header = sheaf_load_u32(frame.data + 4);
    if (header > SHEAF_FRAME_HEADER_BYTES_MAX) return SHEAF_E_TOO_LARGE;
    if (header > frame.size - SHEAF_FRAME_PREFIX_BYTES) return SHEAF_E_TRUNCATED;
    pb_istream_t stream = pb_istream_from_buffer(frame.data + SHEAF_FRAME_PREFIX_BYTES, header);
    if (!pb_decode(&stream, fields, message)) return SHEAF_E_MALFORMED;
    size_t used = SHEAF_FRAME_PREFIX_BYTES + header;
    *payload = sheaf_span_of(frame.data + used, frame.size - used);
    return SHEAF_OK;
}

sheaf_status sheaf_frame_encode_request(const sheaf_v1_Request *request, sheaf_span payload, sheaf_buffer *out) {
    return encode(sheaf_v1_Request_fields, request, payload, out);
}

sheaf_status sheaf_frame_encode_reply(const sheaf_v1_Reply *reply, sheaf_span payload, sheaf_buffer *out) {
    return encode(sheaf_v1_Reply_fields, reply, payload, out);
}

sheaf_status sheaf_frame_decode_request(sheaf_span frame, sheaf_v1_Request *request, sheaf_span *payload) {
    sheaf_status status = decode(sheaf_v1_Request_fields, frame, request, payload);
    if (status != SHEAF_OK) return status;
    if (request->which_body == 0) return SHEAF_E_MALFORMED;
    if (payload->size > 0 && request->which_body != sheaf_v1_Request_chunk_tag) return SHEAF_E_MALFORMED;
    return SHEAF_OK;
}

sheaf_status sheaf_frame_decode_reply(sheaf_span frame, sheaf_v1_Reply *reply, sheaf_span *payload) {
    sheaf_status status = decode(sheaf_v1_Reply_fields, frame, reply, payload);
    if (status != SHEAF_OK) return status;
    if (reply->which_body == 0) return SHEAF_E_MALFORMED;
    if (payload->size > 0 && reply->which_body != sheaf_v1_Reply_model_tag) return SHEAF_E_MALFORMED;
    return SHEAF_OK;
}
