#include "client/daemon/events.h"

#include <inttypes.h>
#include <time.h>

#include "common/bytes.h"
#include "common/log.h"

#define TRAINING_LINE_S 5u

static uint64_t now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec;
}

static void log_training(edge_events *events, const sheaf_edge_event *event) {
    uint64_t now = now_s();
    if (now < events->next_training_line_s && event->done_permille < 1000) return;
    events->next_training_line_s = now + TRAINING_LINE_S;
    sheaf_log(SHEAF_LOG_INFO, "training", "round=%" PRIu64 " done_permille=%u loss=%.6g", event->round,
              event->done_permille, event->loss);
}

static void log_digest(const char *name, const sheaf_edge_event *event) {
    char digest[2 * SHEAF_DIGEST_BYTES + 1] = "";
    if (event->digest != NULL) sheaf_hex(event->digest, SHEAF_DIGEST_BYTES, digest);
    sheaf_log(SHEAF_LOG_INFO, name, "round=%" PRIu64 " attempt=%u bytes=%" PRIu64 " weight=%" PRId64 " digest=%s",
              event->round, event->attempt, event->bytes, event->weight, digest);
}

static void log_trouble(sheaf_log_level level, const char *name, const sheaf_edge_event *event, const char *detail) {
    sheaf_log(level, name, "status=%s round=%" PRIu64 " attempt=%u text=%s detail=%s", sheaf_status_name(event->status),
              event->round, event->attempt, sheaf_status_text(event->status), detail != NULL ? detail : "");
}

static void stop_if_once(const edge_events *events) {
    if (events->once && events->device != NULL) sheaf_edge_device_request_stop(events->device);
}

void edge_events_take(const sheaf_edge_event *event, void *context) {
    edge_events *events = context;
    const char *link = events->device != NULL ? sheaf_edge_device_link_reason(events->device) : "";
    switch (event->kind) {
    case SHEAF_EDGE_JOINED:
        sheaf_log(SHEAF_LOG_INFO, "joined", "chunk_bytes=%" PRIu64, event->bytes);
        break;
    case SHEAF_EDGE_ROUND_OPENED:
        log_digest("round_opened", event);
        break;
    case SHEAF_EDGE_DOWNLOADED:
        if (event->status != SHEAF_OK) {
            log_trouble(SHEAF_LOG_WARNING, "download_restarted", event, NULL);
            break;
        }
        sheaf_log(SHEAF_LOG_DEBUG, "downloaded", "round=%" PRIu64 " bytes=%" PRIu64, event->round, event->bytes);
        break;
    case SHEAF_EDGE_CAST:
        sheaf_log(SHEAF_LOG_INFO, event->status == SHEAF_OK ? "cast_joined" : "cast_left",
                  "round=%" PRIu64 " bytes=%" PRIu64 " status=%s", event->round, event->bytes,
                  sheaf_status_name(event->status));
        break;
    case SHEAF_EDGE_MODEL_READY:
        log_digest("model_ready", event);
        break;
    case SHEAF_EDGE_TRAINING:
        log_training(events, event);
        break;
    case SHEAF_EDGE_UPDATE_STORED:
        log_digest("update_stored", event);
        break;
    case SHEAF_EDGE_UPLOADED:
        sheaf_log(SHEAF_LOG_DEBUG, "uploaded", "round=%" PRIu64 " bytes=%" PRIu64, event->round, event->bytes);
        break;
    case SHEAF_EDGE_RECEIPT:
        log_digest("receipt", event);
        events->receipts++;
        stop_if_once(events);
        break;
    case SHEAF_EDGE_REFUSED:
        log_trouble(SHEAF_LOG_WARNING, "refused", event, event->detail);
        events->refusals++;
        stop_if_once(events);
        break;
    case SHEAF_EDGE_GAVE_UP:
        log_trouble(SHEAF_LOG_WARNING, "gave_up", event, NULL);
        break;
    case SHEAF_EDGE_LINK_LOST:
        log_trouble(SHEAF_LOG_WARNING, "link_lost", event, link);
        break;
    case SHEAF_EDGE_STATE_LOST:
        log_trouble(SHEAF_LOG_WARNING, "state_lost", event, NULL);
        break;
    case SHEAF_EDGE_JOB_ENDED:
        events->job_status = event->status;
        sheaf_log(SHEAF_LOG_INFO, "job_ended", "status=%s rounds=%" PRIu64, sheaf_status_name(event->status),
                  event->round);
        break;
    }
}
