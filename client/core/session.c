/* The device's way through a job as two tables: what each state asks for and works on, and where each thing that
 * happens leads. Rows are tried from the top; the first that fits is taken. */
#include "client/core/session.h"

#include "common/name.h"

#define SETBACK_MS      500u
#define SETBACK_MOST_MS 60000u
#define SETTLE_TRIES    3u /* an update that the aggregator cannot settle must not keep the device from the next */
#define REVOKED_MS      30000u
#define REVOKED_MOST_MS 900000u
#define BARRED_MS       2000u
#define DISK_RETRY_MS   2000u
#define WAIT_MOST_MS    3600000u /* an aggregator in error must not send a device away for weeks */
#define REPORT_LEAST_MS 200u
#define REPORT_MOST_MS  10000u

_Static_assert(sizeof(sheaf_session) <= sizeof(sheaf_edge), "the public object holds a session");
_Static_assert(SHEAF_EDGE_FRAME_BYTES(0) == SHEAF_FRAME_BYTES_MAX(0), "the public macro knows the frame's overhead");
_Static_assert(SHEAF_EDGE_FRAME_BYTES(SHEAF_EDGE_CHUNK_BYTES_MIN) >= SHEAF_EDGE_STATE_BYTES_MAX,
               "the frame buffer serves as scratch for the state record");

static sheaf_session *session_of(sheaf_edge *edge) { return (sheaf_session *)(void *)edge->opaque; }

/* ---- what a state does ---- */

typedef struct {
    const char *name;
    sheaf_session_build request;
    sheaf_status (*enter)(sheaf_session *s);
    sheaf_status (*work)(sheaf_session *s); /* one slice: SHEAF_AGAIN, SHEAF_OK (done), or why it failed */
} state_row;

#define REPORTS sheaf_session_make_progress
static const state_row states[] = {
    [SHEAF_EDGE_JOINING] = {"joining", sheaf_session_make_hello, NULL, NULL},
    [SHEAF_EDGE_ASKING] = {"asking", sheaf_session_make_round_query, NULL, NULL},
    [SHEAF_EDGE_CHECKING_UPDATE] = {"checking_update", REPORTS, sheaf_session_begin_check, sheaf_session_check_update},
    [SHEAF_EDGE_CHECKING_MODEL] = {"checking_model", REPORTS, sheaf_session_begin_check, sheaf_session_check_model},
    [SHEAF_EDGE_DOWNLOADING] = {"downloading", sheaf_session_make_model_query, sheaf_session_begin_download,
                                sheaf_session_use_what_is_here},
    [SHEAF_EDGE_LOADING] = {"loading", REPORTS, sheaf_session_begin_load, sheaf_session_load},
    [SHEAF_EDGE_IN_TRAINING] = {"in_training", REPORTS, NULL, sheaf_session_train},
    [SHEAF_EDGE_ENCODING] = {"encoding", REPORTS, sheaf_session_begin_encode, sheaf_session_encode},
    [SHEAF_EDGE_SEALING] = {"sealing", NULL, NULL, sheaf_session_seal},
    [SHEAF_EDGE_OFFERING] = {"offering", sheaf_session_make_offer, NULL, NULL},
    [SHEAF_EDGE_UPLOADING] = {"uploading", sheaf_session_make_chunk, NULL, NULL},
    [SHEAF_EDGE_FINISHING] = {"finishing", NULL, NULL, sheaf_session_finish},
    [SHEAF_EDGE_ENDED] = {"ended", NULL, NULL, NULL},
    [SHEAF_EDGE_STOPPED] = {"stopped", NULL, NULL, NULL},
};

static int reports(sheaf_edge_state state) { return states[state].request == REPORTS; }
static int trains(sheaf_edge_state state) { return state >= SHEAF_EDGE_LOADING && state <= SHEAF_EDGE_ENCODING; }

/* ---- guards ---- */

static uint32_t chunk_bytes_of(const sheaf_session *s, const sheaf_v1_Welcome *reply) {
    size_t room = s->port.frame_bytes - SHEAF_FRAME_BYTES_MAX(0);
    return reply->chunk_bytes < room ? reply->chunk_bytes : (uint32_t)room;
}

static int in_a_reporting_state(sheaf_session *s) { return reports(s->state); }
static int is_barred(sheaf_session *s) {
    return s->barred_round == s->round.round && s->barred_attempt == s->round.attempt;
}
static int update_fits(sheaf_session *s) { return sheaf_session_update_fits(s); }
static int payload_is_ready(sheaf_session *s) { return s->update_whole && sheaf_session_update_fits(s); }
static int answer_is_ready(sheaf_session *s) { return s->update_whole && sheaf_session_statement_fits(s); }
static int statement_fits(sheaf_session *s) { return sheaf_session_statement_fits(s); }
static int model_is_here(sheaf_session *s) {
    return s->model_whole && memcmp(s->model, s->round.base_model, sizeof s->model) == 0;
}
static int model_may_be_here(sheaf_session *s) { return sheaf_session_model_may_be_here(s); }
/* It was continued, copied or cast; without such shortcuts the aggregator's own bytes decide. */
static int shortcut_failed(sheaf_session *s) {
    return s->status == SHEAF_E_DIGEST && s->download.took_shortcut && !s->download.plain;
}
/* The grid of chunks that was agreed on does not fit any more. */
static int grid_is_off(sheaf_session *s) { return s->message.reply.body.upload.next_offset < s->upload.first; }
static int chunks_would_change(sheaf_session *s) {
    return chunk_bytes_of(s, &s->message.reply.body.welcome) < s->upload.size;
}
/* Not merely unreadable for the moment: then it would be a pity to train again. */
static int update_is_gone(sheaf_session *s) {
    return s->status == SHEAF_E_CORRUPT || s->status == SHEAF_E_NOT_FOUND || s->status == SHEAF_E_TRUNCATED;
}
/* A stored update without a receipt, and the aggregator wants nothing more for its round: most likely the receipt was
 * lost on the way. It is offered once more; the aggregator gives the receipt again, or says what became of it. */
static int receipt_is_missing(sheaf_session *s) { return s->record.pending && s->settled < SETTLE_TRIES; }
static int receipt_is_missing_at_rest(sheaf_session *s) {
    return receipt_is_missing(s) && s->message.reply.body.wait.status == 0;
}
static int receipt_is_missing_of_before(sheaf_session *s) {
    return receipt_is_missing(s) && s->update.round != s->round.round;
}

/* ---- actions ---- */

static sheaf_status welcome(sheaf_session *s) {
    const sheaf_v1_Welcome *reply = &s->message.reply.body.welcome;
    if (reply->protocol != 1) return SHEAF_E_VERSION;
    if (reply->chunk_bytes == 0) return SHEAF_E_MALFORMED;
    if (reply->encodings_ok == 0) return SHEAF_E_ENCODING;
    s->chunk_bytes = chunk_bytes_of(s, reply);
    s->exchange.hello_due = 0;
    s->exchange.next_ms = 0;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_JOINED, SHEAF_OK);
    event.bytes = s->chunk_bytes;
    sheaf_session_tell(s, &event);
    return SHEAF_OK;
}

/* Who is revoked hears no more from asking often; a renewed certificate is noticed with the next question. */
static void pause_after_setback(sheaf_session *s) {
    int revoked = s->status == SHEAF_E_REVOKED;
    sheaf_session_hold_requests(s, sheaf_session_pause(s, revoked ? REVOKED_MS : SETBACK_MS, s->setbacks,
                                                       revoked ? REVOKED_MOST_MS : SETBACK_MOST_MS));
    if (s->setbacks < UINT32_MAX) s->setbacks++;
}

static sheaf_status tell_refusal(sheaf_session *s) {
    const sheaf_v1_Refusal *refusal = &s->message.reply.body.refusal;
    s->status = sheaf_status_from_number((long)refusal->status);
    if (s->status < SHEAF_E_MALFORMED) s->status = SHEAF_E_MALFORMED;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_REFUSED, s->status);
    event.detail = refusal->detail;
    sheaf_session_tell(s, &event);
    return SHEAF_OK;
}

/* The peer's statuses are about what was sent and stay true; busy and the world's pass, and a certificate may be renewed. */
static int is_final(sheaf_status status) { return status < SHEAF_E_BUSY && status != SHEAF_E_REVOKED; }
static void bar_if_final(sheaf_session *s, uint64_t round, uint32_t attempt) {
    if (!is_final(s->status)) return;
    s->barred_round = round;
    s->barred_attempt = attempt;
}

static sheaf_status refused(sheaf_session *s) {
    int about_update =
        s->exchange.asked == sheaf_v1_Request_offer_tag || s->exchange.asked == sheaf_v1_Request_chunk_tag;
    (void)tell_refusal(s);
    if (about_update) {
        if (s->status != SHEAF_E_REVOKED) s->settled = SETTLE_TRIES;
        bar_if_final(s, s->update.round, s->update.attempt);
    } else if (s->exchange.asked != sheaf_v1_Request_round_tag && s->status != SHEAF_E_NOT_FOUND)
        bar_if_final(s, s->round.round, s->round.attempt); /* not found: the round moved on, or a late answer */
    return SHEAF_OK;
}

static sheaf_status wait_as_told(sheaf_session *s) {
    uint32_t ms = s->message.reply.body.wait.retry_ms;
    sheaf_session_hold_requests(s, sheaf_session_jitter(s, ms < WAIT_MOST_MS ? ms : WAIT_MOST_MS));
    return SHEAF_OK;
}

static sheaf_status wait_with_chunks(sheaf_session *s) {
    (void)wait_as_told(s);
    return sheaf_session_hold_upload(s);
}

/* Those behind the one that waits are passed over, and it is asked for again; if it was the last, nothing else would tell. */
static sheaf_status wait_with_parts(sheaf_session *s) {
    if (s->exchange.in_flight == 0) s->download.cursor = s->offset;
    return wait_as_told(s);
}

static sheaf_status take_no_shortcut(sheaf_session *s) {
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_DOWNLOADED, s->status);
    sheaf_session_tell(s, &event);
    s->download.plain = 1;
    return SHEAF_OK;
}

static uint32_t report_ms(const sheaf_session *s) {
    uint64_t ms = (uint64_t)s->plan.progress_s * 1000 / 4;
    if (ms < REPORT_LEAST_MS) ms = REPORT_LEAST_MS;
    return ms < REPORT_MOST_MS ? (uint32_t)ms : REPORT_MOST_MS;
}

static sheaf_status next_report(sheaf_session *s) {
    uint32_t told = s->message.reply.body.wait.retry_ms;
    sheaf_session_hold_requests(s, told > 0 && told < REPORT_MOST_MS ? told : report_ms(s));
    return SHEAF_OK;
}

static sheaf_status hold_off(sheaf_session *s) {
    sheaf_session_hold_requests(s, sheaf_session_jitter(s, BARRED_MS));
    return SHEAF_OK;
}

static sheaf_status settle(sheaf_session *s) {
    s->settled++;
    return SHEAF_OK;
}

static sheaf_status forget_update(sheaf_session *s) {
    s->record.pending = 0;
    s->update_whole = 0;
    return SHEAF_OK;
}

static sheaf_status retry_work_later(sheaf_session *s) {
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_GAVE_UP, s->status);
    sheaf_session_tell(s, &event);
    s->work_ms = sheaf_session_now(s) + sheaf_session_jitter(s, DISK_RETRY_MS);
    return SHEAF_OK;
}

/* A trainer or a model that cannot give an update would not give one on a second try either. */
static int is_hopeless(sheaf_status status) { return status >= SHEAF_E_WEIGHT_ZERO && status < SHEAF_E_BUSY; }

static sheaf_status give_up(sheaf_session *s) {
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_GAVE_UP, s->status);
    sheaf_session_tell(s, &event);
    if (trains(s->state) && is_hopeless(s->status)) bar_if_final(s, s->round.round, s->round.attempt);
    /* Whatever failed may have been the storage: nothing in it is believed before it was hashed again. */
    s->update_whole = 0;
    s->model_whole = 0;
    s->model_checked = 0;
    return SHEAF_OK;
}

static sheaf_status counted(sheaf_session *s) {
    s->setbacks = 0;
    return SHEAF_OK;
}

static sheaf_status tell_end(sheaf_session *s) {
    const sheaf_v1_JobEnd *end = &s->message.reply.body.end;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_JOB_ENDED, SHEAF_OK);
    event.status = sheaf_status_from_number((long)end->status);
    event.round = end->rounds;
    event.digest = end->model_digest.size == SHEAF_DIGEST_BYTES ? end->model_digest.bytes : NULL;
    sheaf_session_tell(s, &event);
    return SHEAF_OK;
}

/* ---- where it leads ---- */

#define ANY  (-1)
#define SAME (-1)
typedef struct {
    int in;
    sheaf_session_trigger on;
    int (*guard)(sheaf_session *s);         /* NULL: always */
    sheaf_status (*then)(sheaf_session *s); /* SHEAF_AGAIN: stay; another failure: SHEAF_ON_FAILED */
    int next;
} transition;

static const transition transitions[] = {
    /* in                       on                   if                    then                           next */
    {SHEAF_EDGE_JOINING, SHEAF_ON_WELCOME, NULL, welcome, SHEAF_EDGE_ASKING},
    {ANY, SHEAF_ON_UNWELCOME, NULL, tell_refusal, SHEAF_EDGE_JOINING},
    {SHEAF_EDGE_JOINING, SHEAF_ON_FAILED, NULL, give_up, SHEAF_EDGE_JOINING},

    {SHEAF_EDGE_ASKING, SHEAF_ON_WAIT, receipt_is_missing_at_rest, settle, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_ASKING, SHEAF_ON_WAIT, NULL, wait_as_told, SAME},
    {SHEAF_EDGE_ASKING, SHEAF_ON_ROUND, receipt_is_missing_of_before, settle, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_ASKING, SHEAF_ON_ROUND, is_barred, hold_off, SAME},
    {SHEAF_EDGE_ASKING, SHEAF_ON_ROUND, answer_is_ready, NULL, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_ASKING, SHEAF_ON_ROUND, payload_is_ready, NULL, SHEAF_EDGE_SEALING},
    {SHEAF_EDGE_ASKING, SHEAF_ON_ROUND, update_fits, NULL, SHEAF_EDGE_CHECKING_UPDATE},
    {SHEAF_EDGE_ASKING, SHEAF_ON_ROUND, model_is_here, NULL, SHEAF_EDGE_LOADING},
    {SHEAF_EDGE_ASKING, SHEAF_ON_ROUND, model_may_be_here, NULL, SHEAF_EDGE_CHECKING_MODEL},
    {SHEAF_EDGE_ASKING, SHEAF_ON_ROUND, NULL, NULL, SHEAF_EDGE_DOWNLOADING},
    {SHEAF_EDGE_ASKING, SHEAF_ON_END, receipt_is_missing, settle, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_ASKING, SHEAF_ON_END, NULL, tell_end, SHEAF_EDGE_ENDED},

    {SHEAF_EDGE_CHECKING_UPDATE, SHEAF_ON_DONE, statement_fits, NULL, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_CHECKING_UPDATE, SHEAF_ON_DONE, NULL, NULL, SHEAF_EDGE_SEALING},
    {SHEAF_EDGE_CHECKING_UPDATE, SHEAF_ON_FAILED, update_is_gone, forget_update, SHEAF_EDGE_CHECKING_MODEL},
    {SHEAF_EDGE_CHECKING_MODEL, SHEAF_ON_DONE, NULL, NULL, SHEAF_EDGE_LOADING},
    {SHEAF_EDGE_CHECKING_MODEL, SHEAF_ON_FAILED, NULL, NULL, SHEAF_EDGE_DOWNLOADING},
    {SHEAF_EDGE_DOWNLOADING, SHEAF_ON_MODEL_PART, NULL, sheaf_session_take_model_part, SHEAF_EDGE_LOADING},
    {SHEAF_EDGE_DOWNLOADING, SHEAF_ON_CAST, NULL, sheaf_session_take_cast, SAME},
    {SHEAF_EDGE_DOWNLOADING, SHEAF_ON_BUSY, NULL, wait_with_parts, SAME},
    {SHEAF_EDGE_DOWNLOADING, SHEAF_ON_DONE, NULL, NULL, SHEAF_EDGE_LOADING},
    {SHEAF_EDGE_DOWNLOADING, SHEAF_ON_FAILED, shortcut_failed, take_no_shortcut, SHEAF_EDGE_DOWNLOADING},

    {SHEAF_EDGE_LOADING, SHEAF_ON_DONE, NULL, NULL, SHEAF_EDGE_IN_TRAINING},
    {SHEAF_EDGE_IN_TRAINING, SHEAF_ON_DONE, NULL, NULL, SHEAF_EDGE_ENCODING},
    {SHEAF_EDGE_ENCODING, SHEAF_ON_DONE, NULL, NULL, SHEAF_EDGE_SEALING},
    {SHEAF_EDGE_SEALING, SHEAF_ON_DONE, NULL, NULL, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_SEALING, SHEAF_ON_FAILED, NULL, retry_work_later, SAME},

    {SHEAF_EDGE_OFFERING, SHEAF_ON_UPLOAD, NULL, sheaf_session_begin_upload, SHEAF_EDGE_UPLOADING},
    {SHEAF_EDGE_OFFERING, SHEAF_ON_RECEIPT, NULL, sheaf_session_take_receipt, SHEAF_EDGE_FINISHING},
    {SHEAF_EDGE_UPLOADING, SHEAF_ON_UPLOAD, grid_is_off, NULL, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_UPLOADING, SHEAF_ON_WELCOME, chunks_would_change, welcome, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_UPLOADING, SHEAF_ON_UPLOAD, NULL, sheaf_session_take_upload, SAME},
    {SHEAF_EDGE_UPLOADING, SHEAF_ON_RECEIPT, NULL, sheaf_session_take_receipt, SHEAF_EDGE_FINISHING},
    {SHEAF_EDGE_UPLOADING, SHEAF_ON_BUSY, NULL, wait_with_chunks, SAME},
    {SHEAF_EDGE_UPLOADING, SHEAF_ON_FORGOTTEN, NULL, NULL, SHEAF_EDGE_OFFERING},
    {SHEAF_EDGE_FINISHING, SHEAF_ON_DONE, NULL, counted, SHEAF_EDGE_ASKING},
    {SHEAF_EDGE_FINISHING, SHEAF_ON_FAILED, NULL, retry_work_later, SAME},

    {ANY, SHEAF_ON_WELCOME, NULL, welcome, SAME},
    {ANY, SHEAF_ON_BUSY, NULL, wait_as_told, SAME},
    {ANY, SHEAF_ON_NOTED, in_a_reporting_state, next_report, SAME},
    {ANY, SHEAF_ON_NOTED, NULL, NULL, SAME},
    {ANY, SHEAF_ON_REFUSED, NULL, refused, SHEAF_EDGE_ASKING},
    {ANY, SHEAF_ON_FAILED, NULL, give_up, SHEAF_EDGE_ASKING},
};

static const transition *find(sheaf_session *s, sheaf_session_trigger trigger) {
    for (size_t i = 0; i < sizeof transitions / sizeof transitions[0]; i++) {
        const transition *row = &transitions[i];
        if (row->in != ANY && row->in != (int)s->state) continue;
        if (row->on == trigger && (row->guard == NULL || row->guard(s))) return row;
    }
    return NULL;
}

static int is_setback(sheaf_session_trigger trigger) {
    return trigger == SHEAF_ON_FAILED || trigger == SHEAF_ON_REFUSED || trigger == SHEAF_ON_UNWELCOME;
}

/* When the first request of a state is due: at once, except for reports, and after a setback. */
static void schedule(sheaf_session *s, sheaf_edge_state before, sheaf_session_trigger trigger) {
    s->work_ms = 0;
    if (!reports(s->state))
        s->exchange.next_ms = 0;
    else if (!reports(before))
        sheaf_session_hold_requests(s, report_ms(s));
    int back = s->state == SHEAF_EDGE_ASKING || s->state == SHEAF_EDGE_JOINING;
    if (back && is_setback(trigger)) pause_after_setback(s);
}

static sheaf_status enter(sheaf_session *s, sheaf_edge_state next, sheaf_session_trigger trigger) {
    sheaf_edge_state before = s->state;
    if (trains(before) && next < SHEAF_EDGE_LOADING) sheaf_session_cancel_training(s);
    if (before == SHEAF_EDGE_DOWNLOADING) sheaf_session_leave_cast(s, SHEAF_OK);
    s->state = next;
    if (next == SHEAF_EDGE_JOINING) s->exchange.hello_due = 1;
    schedule(s, before, trigger);
    if (states[next].enter == NULL) return SHEAF_OK;
    s->status = states[next].enter(s);
    /* Ends: the rows for FAILED lead towards ASKING or JOINING, which have nothing that could fail on entering. */
    return s->status == SHEAF_OK ? SHEAF_OK : sheaf_session_trigger_on(s, SHEAF_ON_FAILED);
}

/* A reply that is legal in the protocol but not in this state (one that came twice) changes nothing. */
sheaf_status sheaf_session_trigger_on(sheaf_session *s, sheaf_session_trigger trigger) {
    const transition *row = find(s, trigger);
    if (row == NULL) return SHEAF_OK;
    sheaf_status status = row->then == NULL ? SHEAF_OK : row->then(s);
    if (status == SHEAF_AGAIN) return SHEAF_OK;
    if (status != SHEAF_OK) {
        s->status = status;
        return sheaf_session_trigger_on(s, SHEAF_ON_FAILED);
    }
    return row->next == SAME ? SHEAF_OK : enter(s, (sheaf_edge_state)row->next, trigger);
}

/* ---- ports ---- */

void sheaf_session_tell(sheaf_session *s, const sheaf_edge_event *event) {
    if (s->port.on_event != NULL) s->port.on_event(event, s->port.event_context);
}

sheaf_edge_event sheaf_session_event(const sheaf_session *s, sheaf_edge_event_kind kind, sheaf_status status) {
    sheaf_edge_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.status = status;
    event.round = s->round.round;
    event.attempt = s->round.attempt;
    event.done_permille = s->progress.done_permille;
    event.loss = s->progress.loss;
    return event;
}

uint64_t sheaf_session_now(const sheaf_session *s) { return s->port.clock.now_ms(s->port.clock.context); }

sheaf_status sheaf_session_digest(const sheaf_session *s, sheaf_span bytes, uint8_t out[SHEAF_DIGEST_BYTES]) {
    const sheaf_edge_digest *digest = &s->port.digest;
    sheaf_status status = digest->begin(digest->context);
    if (status == SHEAF_OK) status = digest->update(bytes.data, bytes.size, digest->context);
    return status == SHEAF_OK ? digest->finish(out, digest->context) : status;
}

/* ---- the public calls ---- */

static int names_ok(const sheaf_edge_options *o) {
    return o->tenant != NULL && o->job != NULL && o->client != NULL && sheaf_name_ok(o->tenant) &&
           sheaf_name_ok(o->job) && sheaf_name_ok(o->client);
}

static int functions_ok(const sheaf_edge_options *o) {
    return o->trainer.load != NULL && o->trainer.train != NULL && o->trainer.store != NULL &&
           o->trainer.examples != NULL && o->transport.send != NULL && o->transport.receive != NULL &&
           o->transport.cancel != NULL && o->transport.peer != NULL && o->clock.now_ms != NULL &&
           o->random.fill != NULL && o->signer.fingerprint != NULL && o->signer.sign != NULL &&
           o->signer.verify_peer != NULL && o->digest.begin != NULL && o->digest.update != NULL &&
           o->digest.finish != NULL && o->storage.read != NULL && o->storage.write != NULL &&
           o->storage.commit != NULL && o->storage.erase != NULL;
}

static int buffers_ok(const sheaf_edge_options *o) {
    return o->frame != NULL && o->frame_bytes >= SHEAF_EDGE_FRAME_BYTES(SHEAF_EDGE_CHUNK_BYTES_MIN) &&
           o->work != NULL && o->work_values >= SHEAF_EDGE_WORK_VALUES_MIN;
}

sheaf_status sheaf_edge_init(sheaf_edge *edge, const sheaf_edge_options *options) {
    memset(edge, 0, sizeof *edge);
    if (!names_ok(options) || !functions_ok(options) || !buffers_ok(options)) return SHEAF_E_USAGE;
    sheaf_session *s = session_of(edge);
    s->port = *options;
    s->exchange.hello_due = 1;
    sheaf_status status = sheaf_session_read_record(s);
    if (status != SHEAF_OK) memset(edge, 0, sizeof *edge);
    return status;
}

static sheaf_status wind_up(sheaf_session *s) {
    if (s->state == SHEAF_EDGE_IN_TRAINING) (void)sheaf_session_train(s);
    if (trains(s->state)) sheaf_session_cancel_training(s);
    sheaf_session_leave_cast(s, SHEAF_OK);
    sheaf_session_exchange_drop(s);
    s->state = SHEAF_EDGE_STOPPED;
    return SHEAF_STOPPED;
}

static sheaf_status work_step(sheaf_session *s, uint32_t *wait_ms) {
    uint64_t now = sheaf_session_now(s);
    if (now >= s->work_ms) {
        sheaf_status status = states[s->state].work(s);
        if (status == SHEAF_OK) return sheaf_session_trigger_on(s, SHEAF_ON_DONE);
        if (status != SHEAF_AGAIN) {
            s->status = status;
            return s->stop ? SHEAF_OK : sheaf_session_trigger_on(s, SHEAF_ON_FAILED);
        }
        if (now >= s->work_ms) return SHEAF_OK;
    }
    uint64_t left = s->work_ms > now ? s->work_ms - now : 0;
    if (left < *wait_ms) *wait_ms = (uint32_t)left;
    return SHEAF_AGAIN;
}

sheaf_status sheaf_edge_poll(sheaf_edge *edge, uint32_t *wait_ms) {
    sheaf_session *s = session_of(edge);
    *wait_ms = 0;
    if (s->port.frame == NULL) return SHEAF_E_USAGE;
    if (s->state == SHEAF_EDGE_ENDED) return SHEAF_ENDED;
    if (s->state == SHEAF_EDGE_STOPPED) return SHEAF_STOPPED;
    if (s->stop) return wind_up(s);
    sheaf_status status = sheaf_session_exchange_step(s, states[s->state].request, wait_ms);
    if (status == SHEAF_AGAIN && states[s->state].work != NULL) status = work_step(s, wait_ms);
    if (status == SHEAF_OK) *wait_ms = 0;
    return status;
}

void sheaf_edge_request_stop(sheaf_edge *edge) { session_of(edge)->stop = 1; }

sheaf_edge_state sheaf_edge_state_of(const sheaf_edge *edge) {
    return ((const sheaf_session *)(const void *)edge->opaque)->state;
}

const char *sheaf_edge_state_name(sheaf_edge_state state) {
    return (size_t)state < sizeof states / sizeof states[0] ? states[state].name : "unknown";
}

void sheaf_edge_fini(sheaf_edge *edge) {
    sheaf_session *s = session_of(edge);
    if (s->port.frame != NULL) {
        if (trains(s->state)) sheaf_session_cancel_training(s);
        sheaf_session_leave_cast(s, SHEAF_OK);
        sheaf_session_exchange_drop(s);
    }
    memset(edge, 0, sizeof *edge);
}
