/* One request at a time, each with one reply. A request is built again whenever it is sent again: all are safe to
 * repeat, and so the frame buffer serves both directions. */
#include "client/core/session.h"

#define REPLY_MS       30000u
#define PAUSE_MS       250u
#define PAUSE_MOST_MS  15000u
#define DOUBLINGS      7u
#define SEND_RETRY_MS  5u
#define LISTEN_MOST_MS 50u

/* WIRE.md, "Session": which reply may follow which request, and what it then means. */
static const struct {
    pb_size_t asked, reply;
    sheaf_session_trigger trigger;
} legal[] = {
    {sheaf_v1_Request_hello_tag, sheaf_v1_Reply_welcome_tag, SHEAF_ON_WELCOME},
    {sheaf_v1_Request_hello_tag, sheaf_v1_Reply_refusal_tag, SHEAF_ON_UNWELCOME},
    {sheaf_v1_Request_round_tag, sheaf_v1_Reply_round_tag, SHEAF_ON_ROUND},
    {sheaf_v1_Request_round_tag, sheaf_v1_Reply_wait_tag, SHEAF_ON_WAIT},
    {sheaf_v1_Request_round_tag, sheaf_v1_Reply_end_tag, SHEAF_ON_END},
    {sheaf_v1_Request_round_tag, sheaf_v1_Reply_refusal_tag, SHEAF_ON_REFUSED},
    {sheaf_v1_Request_model_tag, sheaf_v1_Reply_model_tag, SHEAF_ON_MODEL_PART},
    {sheaf_v1_Request_model_tag, sheaf_v1_Reply_refusal_tag, SHEAF_ON_REFUSED},
    {sheaf_v1_Request_progress_tag, sheaf_v1_Reply_wait_tag, SHEAF_ON_NOTED},
    {sheaf_v1_Request_progress_tag, sheaf_v1_Reply_refusal_tag, SHEAF_ON_REFUSED},
    {sheaf_v1_Request_offer_tag, sheaf_v1_Reply_upload_tag, SHEAF_ON_UPLOAD},
    {sheaf_v1_Request_offer_tag, sheaf_v1_Reply_receipt_tag, SHEAF_ON_RECEIPT},
    {sheaf_v1_Request_offer_tag, sheaf_v1_Reply_wait_tag, SHEAF_ON_BUSY},
    {sheaf_v1_Request_offer_tag, sheaf_v1_Reply_refusal_tag, SHEAF_ON_REFUSED},
    {sheaf_v1_Request_chunk_tag, sheaf_v1_Reply_upload_tag, SHEAF_ON_UPLOAD},
    {sheaf_v1_Request_chunk_tag, sheaf_v1_Reply_receipt_tag, SHEAF_ON_RECEIPT},
    {sheaf_v1_Request_chunk_tag, sheaf_v1_Reply_wait_tag, SHEAF_ON_BUSY},
    {sheaf_v1_Request_chunk_tag, sheaf_v1_Reply_refusal_tag, SHEAF_ON_REFUSED},
};

uint32_t sheaf_session_jitter(const sheaf_session *s, uint32_t ms) {
    uint8_t bytes[4] = {0};
    if (s->port.random.fill(bytes, sizeof bytes, s->port.random.context) != SHEAF_OK) return ms;
    uint64_t quarter = (uint64_t)(ms / 4) * sheaf_load_u32(bytes) >> 32;
    return ms > UINT32_MAX - ms / 4 ? ms : ms + (uint32_t)quarter;
}

uint32_t sheaf_session_pause(const sheaf_session *s, uint32_t base_ms, uint32_t times, uint32_t most_ms) {
    uint64_t ms = (uint64_t)base_ms << (times < 16 ? times : 16);
    return sheaf_session_jitter(s, ms < most_ms ? (uint32_t)ms : most_ms);
}

void sheaf_session_hold_requests(sheaf_session *s, uint32_t ms) { s->exchange.next_ms = sheaf_session_now(s) + ms; }

void sheaf_session_exchange_drop(sheaf_session *s) {
    if (s->exchange.on_its_way) s->port.transport.cancel(s->port.transport.context);
    s->exchange.on_its_way = 0;
}

/* No usable reply: whatever the state was doing is still to be done. Told once until a reply comes again. */
static void lost(sheaf_session *s, sheaf_status status) {
    sheaf_session_exchange *exchange = &s->exchange;
    exchange->on_its_way = 0;
    /* A reply to something else, which came twice, is no reason to start over; all else may be another connection. */
    if (status != SHEAF_E_MALFORMED) exchange->hello_due = 1;
    if (exchange->failures == 0) {
        sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_LINK_LOST, status);
        sheaf_session_tell(s, &event);
    }
    uint32_t times = exchange->failures < DOUBLINGS ? exchange->failures : DOUBLINGS;
    sheaf_session_hold_requests(s, sheaf_session_pause(s, PAUSE_MS, times, PAUSE_MOST_MS));
    if (exchange->failures < UINT32_MAX) exchange->failures++;
}

static sheaf_status send_request(sheaf_session *s, sheaf_session_build build, uint32_t *wait_ms) {
    sheaf_session_exchange *exchange = &s->exchange;
    sheaf_span payload = {NULL, 0};
    s->status = exchange->hello_due ? sheaf_session_make_hello(s, &payload) : build(s, &payload);
    if (s->status != SHEAF_OK) return sheaf_session_trigger_on(s, SHEAF_ON_FAILED);
    sheaf_buffer frame = {s->port.frame, 0, s->port.frame_bytes};
    s->status = sheaf_frame_encode_request(&s->message.request, payload, &frame);
    if (s->status != SHEAF_OK) return sheaf_session_trigger_on(s, SHEAF_ON_FAILED);
    sheaf_status status = s->port.transport.send(frame.data, frame.size, s->port.transport.context);
    if (status == SHEAF_AGAIN) {
        *wait_ms = SEND_RETRY_MS;
        return SHEAF_AGAIN;
    }
    if (status != SHEAF_OK) {
        lost(s, status);
        return SHEAF_OK;
    }
    exchange->on_its_way = 1;
    exchange->asked = s->message.request.which_body;
    exchange->sent_ms = sheaf_session_now(s);
    return SHEAF_OK;
}

static sheaf_status meaning_of(sheaf_session *s, sheaf_session_trigger *trigger) {
    const sheaf_v1_Reply *reply = &s->message.reply;
    for (size_t i = 0; i < sizeof legal / sizeof legal[0]; i++) {
        if (legal[i].asked != s->exchange.asked || legal[i].reply != reply->which_body) continue;
        *trigger = legal[i].trigger;
        if (*trigger != SHEAF_ON_REFUSED || reply->body.refusal.status != SHEAF_E_NOT_FOUND) return SHEAF_OK;
        if (s->exchange.asked == sheaf_v1_Request_chunk_tag) *trigger = SHEAF_ON_FORGOTTEN;
        /* Only chunks and queries for a model are answered so: else it is the answer to one before, late or twice. */
        int asks_so = *trigger == SHEAF_ON_FORGOTTEN || s->exchange.asked == sheaf_v1_Request_model_tag;
        return asks_so ? SHEAF_OK : SHEAF_E_MALFORMED;
    }
    return SHEAF_E_MALFORMED;
}

/* Only a verified aggregator is listened to. */
static sheaf_status read_reply(sheaf_session *s, size_t size, sheaf_session_trigger *trigger) {
    uint8_t peer[SHEAF_DIGEST_BYTES];
    sheaf_status status = s->port.transport.peer(peer, s->port.transport.context);
    if (status != SHEAF_OK) return status;
    status = sheaf_frame_decode_reply(sheaf_span_of(s->port.frame, size), &s->message.reply, &s->payload);
    if (status != SHEAF_OK) return status;
    return meaning_of(s, trigger);
}

static sheaf_status take_reply(sheaf_session *s, size_t size) {
    sheaf_session_trigger trigger;
    sheaf_status status = read_reply(s, size, &trigger);
    if (status != SHEAF_OK) {
        lost(s, status);
        return SHEAF_OK;
    }
    s->exchange.on_its_way = 0;
    s->exchange.failures = 0;
    if (trigger == SHEAF_ON_ROUND) {
        s->status = sheaf_session_accept_round(s);
        if (s->status != SHEAF_OK) trigger = SHEAF_ON_FAILED;
    }
    return sheaf_session_trigger_on(s, trigger);
}

static sheaf_status listen(sheaf_session *s, uint32_t *wait_ms) {
    size_t size = 0;
    sheaf_status status =
        s->port.transport.receive(s->port.frame, s->port.frame_bytes, &size, s->port.transport.context);
    if (status == SHEAF_OK) return take_reply(s, size);
    uint64_t waited_ms = sheaf_session_now(s) - s->exchange.sent_ms;
    uint32_t reply_ms = s->port.reply_ms != 0 ? s->port.reply_ms : REPLY_MS;
    if (status == SHEAF_AGAIN && waited_ms < reply_ms) {
        /* Short answers come soon; a slow one need not be asked for a thousand times a second. */
        uint64_t pause = 1 + waited_ms / 8;
        *wait_ms = pause < LISTEN_MOST_MS ? (uint32_t)pause : LISTEN_MOST_MS;
        return SHEAF_AGAIN;
    }
    if (status == SHEAF_AGAIN) {
        s->port.transport.cancel(s->port.transport.context);
        status = SHEAF_E_TIMEOUT;
    }
    lost(s, status);
    return SHEAF_OK;
}

sheaf_status sheaf_session_exchange_step(sheaf_session *s, sheaf_session_build build, uint32_t *wait_ms) {
    *wait_ms = UINT32_MAX;
    if (s->exchange.on_its_way) return listen(s, wait_ms);
    if (build == NULL) return SHEAF_AGAIN;
    uint64_t now = sheaf_session_now(s);
    if (now < s->exchange.next_ms) {
        uint64_t left = s->exchange.next_ms - now;
        *wait_ms = left < UINT32_MAX ? (uint32_t)left : UINT32_MAX;
        return SHEAF_AGAIN;
    }
    return send_request(s, build, wait_ms);
}
