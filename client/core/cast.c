/* The base model from a group: frames come without being asked for, whoever joined gets the same ones, and anybody in the
 * group could have written them. So nothing of a cast is believed before the digest of the whole, and a cast that does
 * not bring what is due is left: then the device asks for what is missing. */
#include "client/core/session.h"

#define SILENCE_MS 5000u /* WIRE.md, "Casts" */
#define PASSES     2u    /* rounds of the whole model without a byte for us, after which nothing will come */
#define LOOK_MS    20u
#define ASK_MS     10000u

/* Asked for again while the cast lasts, so that the aggregator sees how far this device is. */
static void ask_later(sheaf_session *s) {
    uint64_t ms = (uint64_t)s->plan.progress_s * 1000 / 4;
    sheaf_session_hold_requests(s, ms < ASK_MS ? (uint32_t)ms : ASK_MS);
}

static void tell(sheaf_session *s, sheaf_status status) {
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_CAST, status);
    event.bytes = s->offset;
    sheaf_session_tell(s, &event);
}

sheaf_status sheaf_session_take_cast(sheaf_session *s) {
    const sheaf_v1_ModelCast *cast = &s->message.reply.body.cast;
    sheaf_session_download *download = &s->download;
    const sheaf_edge_transport *transport = &s->port.transport;
    ask_later(s);
    if (download->casting) return SHEAF_OK;
    int fits = cast->group.size == sizeof cast->group.bytes && cast->key.size == sizeof cast->key.bytes &&
               cast->total_bytes == s->round.base_model_bytes && !download->pulls && !download->plain;
    if (transport->join == NULL || !fits) return SHEAF_E_MALFORMED;
    sheaf_status status = transport->join(cast->group.bytes, cast->key.bytes, transport->context);
    download->pulls = status != SHEAF_OK;
    download->cursor = s->offset;
    if (status != SHEAF_OK) {
        sheaf_session_hold_requests(s, 0);
        return SHEAF_OK;
    }
    download->casting = 1;
    download->begun = 0;
    download->passed = 0;
    download->frame_ms = sheaf_session_now(s);
    download->took_shortcut = 1;
    tell(s, SHEAF_OK);
    return SHEAF_OK;
}

void sheaf_session_leave_cast(sheaf_session *s, sheaf_status why) {
    const sheaf_edge_transport *transport = &s->port.transport;
    if (!s->download.casting) return;
    s->download.casting = 0;
    s->download.pulls = 1;
    (void)transport->join(NULL, NULL, transport->context); /* the carrier drops what it cannot place */
    if (why == SHEAF_OK) return;
    tell(s, why);
    s->download.cursor = s->offset;
    sheaf_session_hold_requests(s, 0);
}

void sheaf_session_cast_passes(sheaf_session *s, const sheaf_v1_ModelPart *part) {
    sheaf_session_download *download = &s->download;
    download->frame_ms = sheaf_session_now(s);
    download->passed += s->payload.size;
    int gap = download->begun && part->offset > s->offset;
    if (gap || download->passed / PASSES > s->round.base_model_bytes) sheaf_session_leave_cast(s, SHEAF_E_TRUNCATED);
}

sheaf_status sheaf_session_cast_listen(sheaf_session *s, uint32_t *wait_ms) {
    uint64_t silent_ms = sheaf_session_now(s) - s->download.frame_ms;
    if (silent_ms >= SILENCE_MS) {
        sheaf_session_leave_cast(s, SHEAF_E_TIMEOUT);
        return SHEAF_OK;
    }
    if (*wait_ms > LOOK_MS) *wait_ms = LOOK_MS;
    return SHEAF_AGAIN;
}
