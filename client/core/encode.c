/* update = values after training - values before, one float32 subtraction each, in the order of the parameter stream.
 * Payload type "f32": the differences as binary32, little-endian, without headers or padding. */
#include "client/core/session.h"

#include "common/codec/codec.h"

static sheaf_status contribution_weight(sheaf_session *s) {
    int64_t examples = s->port.trainer.examples(s->port.trainer.context);
    if (examples < 0) return SHEAF_E_WEIGHT_NEGATIVE;
    if (examples == 0) return SHEAF_E_WEIGHT_ZERO;
    s->update.weight = examples < s->plan.weight_cap ? examples : s->plan.weight_cap;
    return SHEAF_OK;
}

/* From here on UPDATE no longer holds what the record says; the record is replaced when the new update is whole. */
sheaf_status sheaf_session_begin_encode(sheaf_session *s) {
    memset(&s->walk, 0, sizeof s->walk);
    memset(&s->update, 0, sizeof s->update);
    s->record.pending = 0;
    s->update_whole = 0;
    s->offset = 0;
    sheaf_status status = contribution_weight(s);
    return status != SHEAF_OK ? status : s->port.digest.begin(s->port.digest.context);
}

/* A value that is not finite is refused here, before anything is sent: the aggregator would refuse the whole update. A
 * block is encoded as a part of its own, which is right for encodings without ties between values; "f32" is one. */
static sheaf_status write_differences(sheaf_session *s, float *before, const float *after, uint8_t *bytes,
                                      size_t count) {
    size_t wrong;
    for (size_t i = 0; i < count; i++) before[i] = after[i] - before[i];
    if (count == 0) return SHEAF_OK;
    sheaf_status status = sheaf_codec_f32.encode(before, 0, count, bytes, &wrong);
    if (status != SHEAF_OK) return status;
    size_t size = (size_t)sheaf_codec_f32.part_bytes(count);
    status = s->port.storage.write(SHEAF_EDGE_UPDATE, s->offset, bytes, size, s->port.storage.context);
    if (status == SHEAF_OK) status = s->port.digest.update(bytes, size, s->port.digest.context);
    if (status == SHEAF_OK) s->offset += size;
    return status;
}

static sheaf_status complete_update(sheaf_session *s) {
    sheaf_status status = s->port.digest.finish(s->update.payload_digest, s->port.digest.context);
    if (status == SHEAF_OK) status = s->port.storage.commit(SHEAF_EDGE_UPDATE, s->port.storage.context);
    if (status != SHEAF_OK) return status;
    s->update.payload_bytes = s->offset;
    s->update_whole = 1;
    s->record.loss = s->progress.loss;
    return SHEAF_OK;
}

sheaf_status sheaf_session_encode(sheaf_session *s) {
    size_t half = s->port.work_values / 2;
    float *before = s->port.work, *after = s->port.work + half;
    sheaf_edge_tensor tensor;
    uint64_t first;
    size_t count;
    sheaf_status status = sheaf_session_walk_next(s, before, half, &tensor, &first, &count);
    if (status == SHEAF_ENDED) return complete_update(s);
    if (status != SHEAF_OK) return status;
    if (count > 0) status = s->port.trainer.store(&tensor, first, after, count, s->port.trainer.context);
    if (status == SHEAF_OK) status = write_differences(s, before, after, (uint8_t *)after, count);
    return status == SHEAF_OK ? SHEAF_AGAIN : status;
}
