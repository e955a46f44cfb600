/* A few requests at a time, each with one reply. A request is built again whenever it is sent again: all are safe to
 * repeat, and so the frame buffer serves both directions. What does not answer what was asked is dropped; time decides
 * whether it came instead of the answer. */
#include "client/core/session.h"

#define REPLY_MS       30000u
#define LOOKS          8u /* at the line, in reply_ms */
#define PAUSE_MS       250u
#define PAUSE_MOST_MS  15000u
#define DOUBLINGS      7u
#define SEND_RETRY_MS  5u
#define LISTEN_MOST_MS 50u
#define WINDOW_MOST    32u /* half of what an aggregator keeps out of order */

/* WIRE.md, "Session": which reply may follow which request, and what it then means. */
static const struct {
    pb_size_t asked, reply;
    sheaf_session_trigger trigger;
} legal[] = {
    {sheaf_v1_Request_hello_tag, sheaf_v1_Reply_welcome_tag, SHEAF_ON_WELCOME},
    {sheaf_v1_Request_hello_tag, sheaf_v1_Reply_refusal_tag, SHEAF_ON_UNWELCOME},
    {sheaf_v1_Request_hello_tag, sheaf_v1_Reply_wait_tag, SHEAF_ON_BUSY},
    {sheaf_v1_Request_round_tag, sheaf_v1_Reply_round_tag, SHEAF_ON_ROUND},
    {sheaf_v1_Request_round_tag, sheaf_v1_Reply_wait_tag, SHEAF_ON_WAIT},
    {sheaf_v1_Request_round_tag, sheaf_v1_Reply_end_tag, SHEAF_ON_END},
    {sheaf_v1_Request_round_tag, sheaf_v1_Reply_refusal_tag, SHEAF_ON_REFUSED},
    {sheaf_v1_Request_model_tag, sheaf_v1_Reply_model_tag, SHEAF_ON_MODEL_PART},
    {sheaf_v1_Request_model_tag, sheaf_v1_Reply_cast_tag, SHEAF_ON_CAST},
    {sheaf_v1_Request_model_tag, sheaf_v1_Reply_wait_tag, SHEAF_ON_BUSY},
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

/* What was sent without an answer is to be sent again. */
static void rewind_cursors(sheaf_session *s) {
    s->exchange.in_flight = 0;
    s->upload.cursor = s->upload.next;
    s->upload.drains = 0;
    s->download.cursor = s->offset;
}

void sheaf_session_exchange_drop(sheaf_session *s) {
    if (s->exchange.in_flight > 0) s->port.transport.cancel(s->port.transport.context);
    rewind_cursors(s);
}

/* No usable reply: whatever the state was doing is still to be done. Told once until a reply comes again. */
static void lost(sheaf_session *s, sheaf_status status) {
    sheaf_session_exchange *exchange = &s->exchange;
    sheaf_session_exchange_drop(s);
    if (s->download.casting) {
        sheaf_session_leave_cast(s, status);
        s->download.pulls = 0; /* the cast is not to blame */
    }
    exchange->hello_due = 1; /* it may be another connection */
    if (exchange->failures == 0) {
        sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_LINK_LOST, status);
        sheaf_session_tell(s, &event);
    }
    uint32_t times = exchange->failures < DOUBLINGS ? exchange->failures : DOUBLINGS;
    sheaf_session_hold_requests(s, sheaf_session_pause(s, PAUSE_MS, times, PAUSE_MOST_MS));
    if (exchange->failures < UINT32_MAX) exchange->failures++;
}

static void note_sent(sheaf_session *s, size_t payload_bytes) {
    sheaf_session_exchange *exchange = &s->exchange;
    const sheaf_v1_Request *request = &s->message.request;
    if (exchange->in_flight++ == 0) {
        exchange->heard_ms = sheaf_session_now(s);
        exchange->stray = SHEAF_OK;
    }
    exchange->asked = request->which_body;
    if (exchange->asked == sheaf_v1_Request_chunk_tag) s->upload.cursor = request->body.chunk.offset + payload_bytes;
    if (exchange->asked == sheaf_v1_Request_model_tag) {
        s->download.asked_at = request->body.model.offset;
        s->download.cursor = request->body.model.offset + request->body.model.bytes_max;
    }
}

static sheaf_status send_request(sheaf_session *s, sheaf_session_build build, uint32_t *wait_ms) {
    sheaf_span payload = {NULL, 0};
    sheaf_status status = s->exchange.hello_due ? sheaf_session_make_hello(s, &payload) : build(s, &payload);
    if (status == SHEAF_AGAIN) return status;
    sheaf_buffer frame = {s->port.frame, 0, s->port.frame_bytes};
    if (status == SHEAF_OK) status = sheaf_frame_encode_request(&s->message.request, payload, &frame);
    if (status != SHEAF_OK) {
        s->status = status;
        return sheaf_session_trigger_on(s, SHEAF_ON_FAILED);
    }
    status = s->port.transport.send(frame.data, frame.size, s->port.transport.context);
    if (status == SHEAF_AGAIN) {
        if (*wait_ms > SEND_RETRY_MS) *wait_ms = SEND_RETRY_MS;
        return SHEAF_AGAIN;
    }
    if (status == SHEAF_OK)
        note_sent(s, payload.size);
    else
        lost(s, status);
    return SHEAF_OK;
}

/* A cast's frames answer nothing, and come while something else may be asked. */
static int is_of_a_cast(const sheaf_session *s, pb_size_t reply) {
    return s->download.casting && reply == sheaf_v1_Reply_model_tag;
}

static sheaf_status meaning_of(const sheaf_session *s, sheaf_session_trigger *trigger) {
    const sheaf_v1_Reply *reply = &s->message.reply;
    *trigger = SHEAF_ON_MODEL_PART;
    if (is_of_a_cast(s, reply->which_body)) return SHEAF_OK;
    for (size_t i = 0; i < sizeof legal / sizeof legal[0]; i++) {
        if (legal[i].asked != s->exchange.asked || legal[i].reply != reply->which_body) continue;
        *trigger = legal[i].trigger;
        if (s->exchange.in_flight == 0) return SHEAF_E_MALFORMED;
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
    sheaf_status status = sheaf_frame_decode_reply(sheaf_span_of(s->port.frame, size), &s->message.reply, &s->payload);
    return status == SHEAF_OK ? meaning_of(s, trigger) : status;
}

/* The rest of a window whose state has come to an end. */
static int is_left_over(const sheaf_session *s) {
    return (s->exchange.asked == sheaf_v1_Request_chunk_tag && s->state != SHEAF_EDGE_UPLOADING) ||
           (s->exchange.asked == sheaf_v1_Request_model_tag && s->state != SHEAF_EDGE_DOWNLOADING);
}

static void count_answer(sheaf_session *s) {
    sheaf_session_exchange *exchange = &s->exchange;
    int cast = is_of_a_cast(s, s->message.reply.which_body);
    if (cast &&
        (exchange->asked != sheaf_v1_Request_model_tag || s->message.reply.body.model.offset != s->download.asked_at)) {
        return;
    }
    if (exchange->in_flight > 0) exchange->in_flight--;
    exchange->heard_ms = sheaf_session_now(s);
    exchange->failures = 0;
}

static sheaf_status take_reply(sheaf_session *s, size_t size) {
    uint8_t peer[SHEAF_DIGEST_BYTES];
    sheaf_status status = s->port.transport.peer(peer, s->port.transport.context);
    if (status != SHEAF_OK) {
        lost(s, status);
        return SHEAF_OK;
    }
    sheaf_session_trigger trigger;
    status = read_reply(s, size, &trigger);
    if (status != SHEAF_OK) {
        s->exchange.stray = status;
        return SHEAF_OK;
    }
    count_answer(s);
    if (is_left_over(s)) return SHEAF_OK;
    if (trigger == SHEAF_ON_ROUND) {
        s->status = sheaf_session_accept_round(s);
        if (s->status != SHEAF_OK) trigger = SHEAF_ON_FAILED;
    }
    return sheaf_session_trigger_on(s, trigger);
}

/* Short answers come soon; a slow one need not be asked for a thousand times a second. */
static uint32_t listen_pause(uint64_t waited_ms) {
    uint64_t pause = 1 + waited_ms / 8;
    return pause < LISTEN_MOST_MS ? (uint32_t)pause : LISTEN_MOST_MS;
}

static uint32_t reply_ms(const sheaf_session *s) { return s->port.reply_ms != 0 ? s->port.reply_ms : REPLY_MS; }

/* A large frame on a slow line is no silence, though it may take minutes. */
static void look_at_the_line(sheaf_session *s) {
    sheaf_session_exchange *exchange = &s->exchange;
    uint64_t now = sheaf_session_now(s);
    if (s->port.transport.moved == NULL || now < exchange->look_ms) return;
    uint64_t moved = s->port.transport.moved(s->port.transport.context);
    exchange->look_ms = now + reply_ms(s) / LOOKS;
    if (moved != exchange->moved) exchange->heard_ms = now;
    exchange->moved = moved;
}

static sheaf_status listen(sheaf_session *s, uint32_t *wait_ms) {
    size_t size = 0;
    sheaf_status status =
        s->port.transport.receive(s->port.frame, s->port.frame_bytes, &size, s->port.transport.context);
    if (status == SHEAF_OK) return take_reply(s, size);
    if (status == SHEAF_AGAIN && s->exchange.in_flight == 0) return sheaf_session_cast_listen(s, wait_ms);
    look_at_the_line(s);
    uint64_t waited_ms = sheaf_session_now(s) - s->exchange.heard_ms;
    if (status == SHEAF_AGAIN && waited_ms < reply_ms(s)) {
        *wait_ms = listen_pause(waited_ms);
        return s->download.casting ? sheaf_session_cast_listen(s, wait_ms) : SHEAF_AGAIN;
    }
    if (status == SHEAF_AGAIN) status = s->exchange.stray != SHEAF_OK ? s->exchange.stray : SHEAF_E_TIMEOUT;
    lost(s, status);
    return SHEAF_OK;
}

/* How many requests may be in flight now. */
static uint32_t window_of(const sheaf_session *s) {
    uint32_t window = s->port.window < WINDOW_MOST ? s->port.window : WINDOW_MOST;
    if (s->exchange.hello_due || s->exchange.in_flight == 0) return 1;
    if (s->state == SHEAF_EDGE_UPLOADING && s->exchange.asked == sheaf_v1_Request_chunk_tag) return window;
    int pulls = s->state == SHEAF_EDGE_DOWNLOADING && s->exchange.asked == sheaf_v1_Request_model_tag;
    return pulls && !s->download.casting && !s->download.narrow ? window : 1;
}

sheaf_status sheaf_session_exchange_step(sheaf_session *s, sheaf_session_build build, uint32_t *wait_ms) {
    *wait_ms = UINT32_MAX;
    /* While a receipt is stored, it still stands in s->message. */
    int owed = s->exchange.in_flight > 0 && s->state != SHEAF_EDGE_FINISHING;
    if (owed || s->download.casting) {
        sheaf_status status = listen(s, wait_ms);
        if (status != SHEAF_AGAIN) return status;
    }
    if (build == NULL || s->exchange.in_flight >= window_of(s)) return SHEAF_AGAIN;
    uint64_t now = sheaf_session_now(s);
    if (now >= s->exchange.next_ms) return send_request(s, build, wait_ms);
    uint64_t left = s->exchange.next_ms - now;
    if (left < *wait_ms) *wait_ms = (uint32_t)left;
    return SHEAF_AGAIN;
}
