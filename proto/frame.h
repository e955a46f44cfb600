/* frame.h - one message on any carrier: 8 fixed bytes, a protobuf header, then the bulk bytes.
 *
 *     offset 0   'S' 'h' 'f' 0x01      magic and frame version
 *     offset 4   u32 little-endian     header bytes (<= SHEAF_FRAME_HEADER_BYTES_MAX)
 *     offset 8   header                sheaf.v1.Request or sheaf.v1.Reply (sheaf.proto)
 *     then       payload               to the end of the frame; only Chunk and ModelPart have one
 *
 * Owner:   the caller's memory; a decoded payload borrows from the frame it was read from.
 * Threads: any; no state.
 * Units:   bytes.
 * Errors:  SHEAF_E_TRUNCATED, SHEAF_E_VERSION, SHEAF_E_MALFORMED (bad protobuf, no body, payload where none belongs),
 *          SHEAF_E_TOO_LARGE (does not fit `out`).
 * Not:     it checks no identity, round or signature. */
#pragma once
#include "common/bytes.h"
#include "common/status.h"
#include "sheaf.pb.h"

#define SHEAF_FRAME_PREFIX_BYTES     8u
#define SHEAF_FRAME_HEADER_BYTES_MAX 2048u
/* A frame that carries `chunk` payload bytes never exceeds this. */
#define SHEAF_FRAME_BYTES_MAX(chunk) (SHEAF_FRAME_PREFIX_BYTES + SHEAF_FRAME_HEADER_BYTES_MAX + (chunk))

SHEAF_MUST_USE sheaf_status sheaf_frame_encode_request(const sheaf_v1_Request *request, sheaf_span payload,
                                                       sheaf_buffer *out);
SHEAF_MUST_USE sheaf_status sheaf_frame_decode_request(sheaf_span frame, sheaf_v1_Request *request,
                                                       sheaf_span *payload);
SHEAF_MUST_USE sheaf_status sheaf_frame_encode_reply(const sheaf_v1_Reply *reply, sheaf_span payload,
                                                     sheaf_buffer *out);
SHEAF_MUST_USE sheaf_status sheaf_frame_decode_reply(sheaf_span frame, sheaf_v1_Reply *reply, sheaf_span *payload);
