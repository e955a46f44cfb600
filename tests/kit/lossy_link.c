#include "tests/kit/lossy_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAME_BYTES SHEAF_EDGE_FRAME_BYTES(65536u)

static void need(int ok, const char *what, const char *detail) {
    if (ok) return;
    fprintf(stderr, "lossy_link: %s: %s\n", what, detail);
    abort();
}

static uint64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(lossy_link *lossy) {
    uint64_t z = lossy->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static unsigned happens(lossy_link *lossy, unsigned percent) { return draw(lossy) % 100 < percent; }

/* ---- frames that wait ---- */

static void push(lossy_queue *queue, sheaf_span bytes, uint64_t due_ms) {
    if (queue->count == LOSSY_HELD) return; /* one more that is lost */
    lossy_frame *frame = &queue->frames[queue->count++];
    frame->bytes = malloc(bytes.size + 1);
    need(frame->bytes != NULL, "frame", "memory");
    if (bytes.size > 0) memcpy(frame->bytes, bytes.data, bytes.size);
    frame->size = bytes.size;
    frame->due_ms = due_ms;
}

static lossy_frame *first_due(lossy_queue *queue) {
    lossy_frame *first = NULL;
    for (unsigned i = 0; i < queue->count; i++) {
        lossy_frame *frame = &queue->frames[i];
        if (frame->due_ms <= now_ms() && (first == NULL || frame->due_ms < first->due_ms)) first = frame;
    }
    return first;
}

static void pop(lossy_queue *queue, lossy_frame *frame) {
    free(frame->bytes);
    size_t at = (size_t)(frame - queue->frames);
    queue->count--;
    memmove(frame, frame + 1, (queue->count - at) * sizeof *frame);
}

static void drain(lossy_queue *queue) {
    while (queue->count > 0) pop(queue, &queue->frames[0]);
}

/* Every frame draws three times, whatever happens to it: so the same seed hits the same frames. */
static void pass(lossy_link *lossy, lossy_queue *queue, sheaf_span bytes) {
    unsigned dropped = happens(lossy, lossy->odds.drop), doubled = happens(lossy, lossy->odds.twice);
    unsigned delayed = happens(lossy, lossy->odds.late);
    uint64_t later = now_ms() + 1 + draw(lossy) % (lossy->odds.late_ms + 1);
    lossy->counts.frames++;
    if (lossy->closed || dropped) {
        lossy->counts.dropped++;
        return;
    }
    lossy->counts.doubled += doubled;
    lossy->counts.delayed += delayed;
    push(queue, bytes, delayed ? later : 0);
    if (doubled) push(queue, bytes, later);
}

/* ---- the carrier below ---- */

static int free_lane(const lossy_link *lossy) {
    for (unsigned i = 0; i < lossy->odds.lanes; i++) {
        if (!lossy->busy[i]) return (int)i;
    }
    return -1;
}

static void move_up(lossy_link *lossy) {
    lossy_frame *frame;
    int lane;
    while ((lane = free_lane(lossy)) >= 0 && (frame = first_due(&lossy->up)) != NULL) {
        sheaf_status status = lossy->carrier->send(lossy->lanes[lane], sheaf_span_of(frame->bytes, frame->size));
        if (status == SHEAF_AGAIN) return;
        lossy->busy[lane] = status == SHEAF_OK;
        pop(&lossy->up, frame);
    }
}

static void move_down(lossy_link *lossy) {
    sheaf_problem problem = {SHEAF_OK, ""};
    for (unsigned i = 0; i < lossy->odds.lanes; i++) {
        if (!lossy->busy[i] && !lossy->odds.casts) continue;
        sheaf_status status = lossy->carrier->receive(lossy->lanes[i], &lossy->in, &problem);
        if (status == SHEAF_AGAIN) continue;
        lossy->busy[i] = 0;
        if (status != SHEAF_OK && lossy->odds.lanes == 1) lossy->failed = status;
        if (status != SHEAF_OK) continue;
        lossy->spoke = i;
        if (lossy->hear != NULL && !lossy->hear(lossy->watch_context, sheaf_buffer_span(&lossy->in))) continue;
        pass(lossy, &lossy->down, sheaf_buffer_span(&lossy->in));
    }
}

/* ---- the port ---- */

static sheaf_status port_send(const uint8_t *frame, size_t size, void *context) {
    lossy_link *lossy = context;
    int passes = lossy->watch == NULL || lossy->watch(lossy->watch_context, sheaf_span_of(frame, size));
    if (passes) pass(lossy, &lossy->up, sheaf_span_of(frame, size));
    move_up(lossy);
    return SHEAF_OK;
}

static sheaf_status port_receive(uint8_t *frame, size_t capacity, size_t *size, void *context) {
    lossy_link *lossy = context;
    move_up(lossy);
    move_down(lossy);
    lossy_frame *first = first_due(&lossy->down);
    sheaf_status status = lossy->failed != SHEAF_OK ? lossy->failed : SHEAF_AGAIN;
    lossy->failed = SHEAF_OK;
    if (first == NULL) return status;
    status = first->size <= capacity ? SHEAF_OK : SHEAF_E_TOO_LARGE;
    *size = first->size;
    if (status == SHEAF_OK && first->size > 0) memcpy(frame, first->bytes, first->size);
    pop(&lossy->down, first);
    return status;
}

/* What is on its way stays on its way: the answer to a request that was given up may still come. */
static void port_cancel(void *context) {
    lossy_link *lossy = context;
    if (lossy->odds.lanes == 1) lossy_link_cut(lossy);
}

static sheaf_status port_peer(uint8_t fingerprint[SHEAF_EDGE_DIGEST_BYTES], void *context) {
    sheaf_certificate *peer = lossy_link_peer(context);
    if (peer == NULL) return SHEAF_E_CERTIFICATE;
    memcpy(fingerprint, sheaf_certificate_fingerprint(peer), SHEAF_EDGE_DIGEST_BYTES);
    return SHEAF_OK;
}

static sheaf_status port_join(const uint8_t id[SHEAF_EDGE_GROUP_BYTES], const uint8_t key[SHEAF_EDGE_GROUP_BYTES],
                              void *context) {
    lossy_link *lossy = context;
    sheaf_cast_group group;
    if (id == NULL) return lossy->carrier->join(lossy->lanes[0], NULL);
    memcpy(group.id, id, sizeof group.id);
    memcpy(group.key, key, sizeof group.key);
    return lossy->carrier->join(lossy->lanes[0], &group);
}

sheaf_edge_transport lossy_link_port(lossy_link *lossy) {
    return (sheaf_edge_transport){.send = port_send,
                                  .receive = port_receive,
                                  .cancel = port_cancel,
                                  .peer = port_peer,
                                  .join = lossy->odds.casts ? port_join : NULL,
                                  .context = lossy};
}

sheaf_certificate *lossy_link_peer(lossy_link *lossy) { return lossy->carrier->peer(lossy->lanes[lossy->spoke]); }

void lossy_link_cut(lossy_link *lossy) {
    drain(&lossy->up);
    drain(&lossy->down);
    for (unsigned i = 0; i < lossy->odds.lanes; i++) {
        lossy->carrier->cancel(lossy->lanes[i]);
        lossy->busy[i] = 0;
    }
}

static void open_lanes(lossy_link *lossy) {
    sheaf_problem problem = {SHEAF_OK, ""};
    for (unsigned i = 0; i < lossy->odds.lanes; i++) {
        need(lossy->carrier->open_link(&lossy->options, &lossy->lanes[i], &problem) == SHEAF_OK, "link", problem.text);
    }
}

void lossy_link_break(lossy_link *lossy) {
    lossy_link_cut(lossy);
    for (unsigned i = 0; i < lossy->odds.lanes; i++) lossy->carrier->close(lossy->lanes[i]);
    open_lanes(lossy);
}

void lossy_link_open(lossy_link *lossy, const sheaf_transport *carrier, const sheaf_transport_options *options,
                     uint64_t seed, const lossy_odds *odds) {
    memset(lossy, 0, sizeof *lossy);
    lossy->carrier = carrier;
    lossy->state = seed;
    lossy->odds = *odds;
    if (odds->lanes == 0) lossy->odds.lanes = LOSSY_LANES;
    lossy->in.data = malloc(FRAME_BYTES);
    lossy->in.capacity = FRAME_BYTES;
    need(lossy->in.data != NULL, "frame", "memory");
    lossy->options = *options;
    open_lanes(lossy);
}

void lossy_link_close(lossy_link *lossy) {
    if (lossy->carrier == NULL) return;
    drain(&lossy->up);
    drain(&lossy->down);
    for (unsigned i = 0; i < lossy->odds.lanes; i++) lossy->carrier->close(lossy->lanes[i]);
    free(lossy->in.data);
    memset(lossy, 0, sizeof *lossy);
}
