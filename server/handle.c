#include "server/handle.h"

#include "common/log.h"
#include "common/trust.h"
#include "server/ends.h"
#include "server/intake/offer.h"

#define DISK_RETRY_MS  1000u
#define BUSY_RETRY_MS  50u
#define AGAIN_RETRY_MS 8u /* a chunk that was damaged on its way, or an upload that is being read again */

static void refuse(sheaf_request *request, sheaf_job *job, sheaf_status reason, const char *detail,
                   sheaf_buffer *scratch) {
    const sheaf_handlers *handlers = request->service;
    sheaf_refusals *refusals = job == NULL ? handlers->refusals : sheaf_job_refusals(job);
    const char *client = request->peer == NULL ? "" : sheaf_certificate_identity(request->peer)->name;
    sheaf_refusals_note(refusals, reason, job == NULL ? "" : sheaf_job_config_of(job)->name, client, detail);
    sheaf_request_refuse(request, reason, detail, scratch);
}

static void post(sheaf_request *request, sheaf_job *job, sheaf_event event) {
    request->event = event;
    sheaf_job_post(job, request);
}

static void handle_hello(sheaf_request *request, sheaf_job *job, sheaf_buffer *scratch) {
    const sheaf_handlers *handlers = request->service;
    const sheaf_v1_Hello *hello = &request->message.body.hello;
    if (hello->protocol != 1) {
        refuse(request, job, SHEAF_E_VERSION, "this aggregator speaks protocol 1", scratch);
        return;
    }
    sheaf_plan plan = sheafd_job_plan(sheaf_job_config_of(job));
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_welcome_tag;
    reply.body.welcome.protocol = 1;
    reply.body.welcome.chunk_bytes = handlers->chunk_bytes;
    uint64_t room =
        hello->frame_bytes_max > SHEAF_FRAME_BYTES_MAX(0) ? hello->frame_bytes_max - SHEAF_FRAME_BYTES_MAX(0) : 0;
    if (room < reply.body.welcome.chunk_bytes) reply.body.welcome.chunk_bytes = (uint32_t)room;
    for (pb_size_t i = 0; i < hello->encodings_count; i++) {
        if (strcmp(hello->encodings[i], plan.encoding) == 0) reply.body.welcome.encodings_ok = 1;
    }
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
}

static void handle_query(sheaf_request *request, sheaf_job *job, sheaf_buffer *scratch) {
    (void)scratch;
    post(request, job, SHEAF_ON_QUERY);
}

static void handle_progress(sheaf_request *request, sheaf_job *job, sheaf_buffer *scratch) {
    (void)scratch;
    post(request, job, SHEAF_ON_PROGRESS);
}

/* Many devices want the whole version: it is cast once for all. 1 when the device was told so. */
static int answered_by_cast(sheaf_request *request, sheaf_job *job, const sheaf_version *version,
                            const sheaf_difference *difference, sheaf_buffer *scratch) {
    const sheaf_handlers *handlers = request->service;
    const sheaf_v1_ModelQuery *query = &request->message.body.model;
    sheaf_caster *caster = sheaf_job_caster(job, request->end);
    sheaf_cast_group group;
    if (caster == NULL) return 0;
    int wants = query->can_join && query->offset == 0 && query->bytes_max >= handlers->chunk_bytes &&
                version->model.stream_bytes > handlers->chunk_bytes && /* one part is told as fast as a group */
                difference->same_total < version->model.stream_bytes / 2;
    if (!wants) {
        sheaf_caster_note_pull(caster, version, request->message.client);
        return 0;
    }
    if (sheaf_caster_join(caster, version, request->message.client, &group) != SHEAF_OK) return 0;
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    sheaf_v1_ModelCast *cast = &reply.body.cast;
    reply.which_body = sheaf_v1_Reply_cast_tag;
    cast->group.size = sizeof group.id;
    cast->key.size = sizeof group.key;
    memcpy(cast->group.bytes, group.id, sizeof group.id);
    memcpy(cast->key.bytes, group.key, sizeof group.key);
    cast->total_bytes = version->model.stream_bytes;
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
    sheaf_wipe(&group, sizeof group);
    sheaf_wipe(&reply, sizeof reply);
    return 1;
}

static void answer_part(sheaf_request *request, sheaf_job *job, const sheaf_version *version,
                        const sheaf_difference *difference, sheaf_buffer *scratch) {
    const sheaf_handlers *handlers = request->service;
    const sheaf_v1_ModelQuery *query = &request->message.body.model;
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_model_tag;
    reply.body.model.offset = query->offset;
    reply.body.model.total_bytes = version->model.stream_bytes;
    reply.body.model.same_bytes = difference->same_bytes;
    uint64_t bytes = difference->same_bytes > 0 ? 0 : difference->plain_bytes;
    if (bytes > query->bytes_max) bytes = query->bytes_max;
    if (bytes > handlers->chunk_bytes) bytes = handlers->chunk_bytes;
    sheaf_job_fetched(job, request->message.client, version, query->offset + difference->same_bytes + bytes);
    sheaf_request_reply(request, &reply, sheaf_span_of(version->model.stream + query->offset, (size_t)bytes), scratch);
}

static void handle_model(sheaf_request *request, sheaf_job *job, sheaf_buffer *scratch) {
    const sheaf_v1_ModelQuery *query = &request->message.body.model;
    sheaf_shelf *shelf = sheaf_job_shelf(job);
    sheaf_version *version = sheaf_shelf_take(shelf);
    int known = sheaf_span_equal(sheaf_span_of(query->digest.bytes, query->digest.size),
                                 sheaf_span_of(version->digest, SHEAF_DIGEST_BYTES));
    if (!known) {
        /* No fault of the device: the round moved on while it fetched. */
        sheaf_request_refuse(request, SHEAF_E_NOT_FOUND, "not the model version that is served now", scratch);
    } else if (query->offset > version->model.stream_bytes) {
        refuse(request, job, SHEAF_E_TOO_LARGE, "offset is past the end of the model", scratch);
    } else {
        sheaf_difference difference;
        sheaf_shelf_difference(shelf, version, sheaf_span_of(query->held.bytes, query->held.size), query->offset,
                               &difference);
        if (!answered_by_cast(request, job, version, &difference, scratch))
            answer_part(request, job, version, &difference, scratch);
    }
    sheaf_shelf_drop(shelf, version);
}

static void handle_offer(sheaf_request *request, sheaf_job *job, sheaf_buffer *scratch) {
    const sheaf_v1_Offer *offer = &request->message.body.offer;
    sheaf_status status =
        sheaf_offer_verify(request->peer, request->message.tenant, request->message.job,
                           sheaf_span_of(offer->statement.bytes, offer->statement.size),
                           sheaf_span_of(offer->signature.bytes, offer->signature.size), &request->statement);
    if (status == SHEAF_OK)
        post(request, job, SHEAF_ON_OFFER);
    else
        refuse(request, job, status, NULL, scratch);
}

/* verify, then decode: digest first, then every value, then the disk. */
static sheaf_status finish_payload(sheaf_job *job, sheaf_upload *upload, sheaf_problem *problem) {
    sheaf_span payload = sheaf_span_of(NULL, 0);
    sheaf_status status = sheaf_upload_verify(upload, &payload, problem);
    if (status == SHEAF_OK) status = sheaf_job_validate(job, upload->statement.payload_type, payload, problem);
    sheaf_spool_unmap(payload);
    return status == SHEAF_OK ? sheaf_upload_keep(upload, problem) : status;
}

static void tell_next_offset(sheaf_request *request, sheaf_upload *upload, sheaf_buffer *scratch) {
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_upload_tag;
    reply.body.upload.next_offset = upload->part.next_offset;
    reply.body.upload.held = upload->part.held;
    sheaf_upload_give_back(upload);
    sheaf_request_reply(request, &reply, sheaf_span_of(NULL, 0), scratch);
}

/* A chunk that cannot be taken: the upload stays as it was before it. */
static void refuse_chunk(sheaf_request *request, sheaf_job *job, sheaf_upload *upload, sheaf_status status,
                         const sheaf_problem *problem, sheaf_buffer *scratch) {
    sheaf_upload_give_back(upload);
    if (status != SHEAF_E_DIGEST) {
        refuse(request, job, status, problem->text[0] == '\0' ? NULL : problem->text, scratch);
        return;
    }
    sheaf_refusals_note(sheaf_job_refusals(job), status, request->message.job, request->message.client,
                        "a chunk does not have its digest");
    sheaf_request_wait(request, status, AGAIN_RETRY_MS, scratch);
}

/* The peer's fault ends the upload with a refusal; the world's (disk) asks the device to try again. */
static void fail_upload(sheaf_request *request, sheaf_job *job, sheaf_upload *upload, sheaf_status status,
                        const sheaf_problem *problem, sheaf_buffer *scratch) {
    sheaf_upload_drop(upload);
    if (status < 200) {
        refuse(request, job, status, problem->text[0] == '\0' ? NULL : problem->text, scratch);
        return;
    }
    sheaf_log(SHEAF_LOG_ERROR, "spool_failed", "job=%s status=%s reason=\"%s\"", sheaf_job_config_of(job)->name,
              sheaf_status_name(status), problem->text);
    sheaf_request_wait(request, SHEAF_E_BUSY, DISK_RETRY_MS, scratch);
}

/* NULL when it cannot be had now; the device has been told. */
static sheaf_upload *take_upload(sheaf_request *request, sheaf_job *job, sheaf_buffer *scratch) {
    const sheaf_v1_Chunk *chunk = &request->message.body.chunk;
    sheaf_upload *upload = NULL;
    sheaf_status status =
        sheaf_uploads_take(sheaf_job_uploads(job), request->message.client,
                           sheaf_span_of(chunk->payload_digest.bytes, chunk->payload_digest.size), &upload);
    if (status == SHEAF_OK) return upload;
    if (status == SHEAF_E_BUSY)
        sheaf_request_wait(request, SHEAF_E_BUSY, BUSY_RETRY_MS, scratch);
    else /* no fault of the device: an answer was lost, or we were restarted */
        sheaf_request_refuse(request, status, "no such upload here: offer the update again", scratch);
    return NULL;
}

/* The last byte has come. */
static void finish_upload(sheaf_request *request, sheaf_job *job, sheaf_upload *upload, sheaf_buffer *scratch) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = finish_payload(job, upload, &problem);
    if (status == SHEAF_OK) {
        request->upload = upload;
        post(request, job, SHEAF_ON_UPDATE);
    } else if (status == SHEAF_AGAIN) {
        sheaf_log(SHEAF_LOG_WARNING, "part_damaged", "job=%s client=%s", sheaf_job_config_of(job)->name,
                  request->message.client);
        tell_next_offset(request, upload, scratch);
    } else {
        fail_upload(request, job, upload, status, &problem, scratch);
    }
}

static void handle_chunk(sheaf_request *request, sheaf_job *job, sheaf_buffer *scratch) {
    const sheaf_v1_Chunk *chunk = &request->message.body.chunk;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_upload *upload = take_upload(request, job, scratch);
    if (upload == NULL) return;
    if (upload->part.next_offset < upload->part.on_disk) { /* it was not told where to go on yet */
        sheaf_upload_give_back(upload);
        sheaf_request_refuse(request, SHEAF_E_NOT_FOUND, "the upload is being read again: offer the update again",
                             scratch);
        return;
    }
    uint64_t before = upload->part.next_offset, held = upload->part.held;
    sheaf_status status =
        sheaf_upload_write(upload, chunk->offset, request->payload,
                           sheaf_span_of(chunk->chunk_digest.bytes, chunk->chunk_digest.size), &problem);
    if (upload->part.next_offset != before || upload->part.held != held) sheaf_job_moved(job);
    if (status >= 200)
        fail_upload(request, job, upload, status, &problem, scratch);
    else if (status != SHEAF_OK)
        refuse_chunk(request, job, upload, status, &problem, scratch);
    else if (sheaf_part_whole(&upload->part))
        finish_upload(request, job, upload, scratch);
    else
        tell_next_offset(request, upload, scratch);
}

/* One row a message of the protocol. */
static const struct {
    pb_size_t tag;
    void (*handle)(sheaf_request *request, sheaf_job *job, sheaf_buffer *scratch);
} handlers_by_body[] = {
    {sheaf_v1_Request_hello_tag, handle_hello}, {sheaf_v1_Request_round_tag, handle_query},
    {sheaf_v1_Request_model_tag, handle_model}, {sheaf_v1_Request_progress_tag, handle_progress},
    {sheaf_v1_Request_offer_tag, handle_offer}, {sheaf_v1_Request_chunk_tag, handle_chunk},
};

static sheaf_job *find_job(const sheaf_handlers *handlers, const char *tenant, const char *name) {
    for (size_t i = 0; i < handlers->job_count; i++) {
        const sheafd_job_config *config = sheaf_job_config_of(handlers->jobs[i]);
        if (strcmp(config->tenant, tenant) == 0 && strcmp(config->name, name) == 0) return handlers->jobs[i];
    }
    return NULL;
}

/* Data residency: a device of another region hears nothing of the job, but that it is not for it. */
static int is_of_region(const sheafd_job_config *config, const sheaf_certificate *peer) {
    const char *const *regions = config->regions.items;
    for (size_t i = 0; i < config->regions.count; i++) {
        if (strcmp(regions[i], sheaf_certificate_identity(peer)->region) == 0) return 1;
    }
    return config->regions.count == 0;
}

/* 1: too much for this device; it has been told when to ask again. */
static int is_over_quota(sheaf_request *request, sheaf_buffer *scratch) {
    const sheaf_handlers *handlers = request->service;
    const sheaf_identity *identity = sheaf_certificate_identity(request->peer);
    uint32_t retry_ms = 0;
    if (sheaf_quota_charge(handlers->quota, identity->tenant, identity->name, request->frame.size, sheaf_now_ns(),
                           &request->charged, &retry_ms) == SHEAF_OK)
        return 0;
    sheaf_refusals_note(handlers->refusals, SHEAF_E_QUOTA, "", identity->name, NULL);
    sheaf_request_wait(request, SHEAF_E_QUOTA, retry_ms, scratch);
    return 1;
}

/* Who speaks, whether he is believed, and what is his to hear. */
static sheaf_status check_peer(sheaf_request *request, sheaf_job **job, sheaf_problem *problem) {
    const sheaf_handlers *handlers = request->service;
    /* What was believed when the connection began may be revoked by now. */
    sheaf_status status = sheaf_trust_holds(handlers->trust, request->peer, problem);
    /* A job may be named in a refusal only once the peer is known to be of its tenant. */
    if (status == SHEAF_OK)
        status = sheaf_identity_check(request->peer, request->message.tenant, request->message.client);
    if (status != SHEAF_OK) return status;
    *job = find_job(handlers, request->message.tenant, request->message.job);
    sheaf_clients_saw(request->clients, request->peer, request->end->carrier->name,
                      *job == NULL ? "" : sheaf_job_config_of(*job)->name);
    if (*job == NULL) return SHEAF_E_JOB;
    return is_of_region(sheaf_job_config_of(*job), request->peer) ? SHEAF_OK : SHEAF_E_REGION;
}

void sheaf_handle_request(sheaf_task *task, sheaf_buffer *scratch) {
    sheaf_request *request = (sheaf_request *)task;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_job *job = NULL;
    if (is_over_quota(request, scratch)) return;
    sheaf_status status = sheaf_frame_decode_request(request->frame, &request->message, &request->payload);
    if (status == SHEAF_OK) status = check_peer(request, &job, &problem);
    if (status != SHEAF_OK) {
        refuse(request, status == SHEAF_E_REGION ? job : NULL, status, problem.text[0] == '\0' ? NULL : problem.text,
               scratch);
        return;
    }
    for (size_t i = 0; i < sizeof handlers_by_body / sizeof handlers_by_body[0]; i++) {
        if (handlers_by_body[i].tag != request->message.which_body) continue;
        handlers_by_body[i].handle(request, job, scratch);
        return;
    }
    refuse(request, job, SHEAF_E_MALFORMED, NULL, scratch);
}
