/* gzip.c - unpacks a gzip file in memory, never beyond a limit, whatever the file claims. */
#include <limits.h>
#include <stdlib.h>
#include <zlib.h>

#include "client/trainer/data.h"

/* Doubles the room, up to one byte beyond the limit: so that data of exactly the limit may end, and more is seen. */
static sheaf_status grow(sheaf_buffer *out, uint64_t limit, const char *name, sheaf_problem *problem) {
    if (out->capacity > limit) {
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: unpacks to more than %llu bytes", name,
                                 (unsigned long long)limit);
    }
    uint64_t wanted = out->capacity == 0 ? 65536 : 2 * (uint64_t)out->capacity;
    if (wanted > limit) wanted = limit + 1;
    uint8_t *data = realloc(out->data, (size_t)wanted + 1);
    if (data == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory to unpack", name);
    out->data = data;
    out->capacity = (size_t)wanted;
    return SHEAF_OK;
}

static sheaf_status unpack(z_stream *stream, uint64_t limit, const char *name, sheaf_buffer *out,
                           sheaf_problem *problem) {
    for (;;) {
        if (out->size == out->capacity) {
            sheaf_status status = grow(out, limit, name, problem);
            if (status != SHEAF_OK) return status;
        }
        size_t room = out->capacity - out->size;
        stream->next_out = out->data + out->size;
        stream->avail_out = room > UINT_MAX ? UINT_MAX : (uInt)room;
        uInt offered = stream->avail_out;
        int result = inflate(stream, Z_NO_FLUSH);
        out->size += offered - stream->avail_out;
        if (result == Z_STREAM_END && out->size > limit) return grow(out, limit, name, problem);
        if (result == Z_STREAM_END) break;
        if (result == Z_OK && (stream->avail_in > 0 || stream->avail_out == 0)) continue;
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: gzip data %s", name,
                                 result == Z_OK || result == Z_BUF_ERROR ? "ends too early" : "is damaged");
    }
    if (stream->avail_in > 0) return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: bytes follow the gzip data", name);
    out->data[out->size] = '\0';
    return SHEAF_OK;
}

sheaf_status sheaf_gzip_unpack(sheaf_span packed, uint64_t limit, const char *name, sheaf_buffer *out,
                               sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    if (packed.size > UINT_MAX) return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: too large to unpack", name);
    z_stream stream = {0};
    if (inflateInit2(&stream, 15 + 16) != Z_OK)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory to unpack", name);
    stream.next_in = (Bytef *)packed.data; /* zlib only reads it */
    stream.avail_in = (uInt)packed.size;
    sheaf_status status = unpack(&stream, limit, name, out, problem);
    inflateEnd(&stream);
    if (status != SHEAF_OK) {
        free(out->data);
        memset(out, 0, sizeof *out);
    }
    return status;
}
