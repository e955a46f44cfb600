#include "tests/kit/edge_world.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/parameters.h"

#define TENANT "acme"
#define JOB    "digits"
#define CLIENT "device-01"

static const uint8_t aggregator_certificate[SHEAF_DIGEST_BYTES] = {0xa9};

static void sha256(sheaf_span bytes, uint8_t out[SHEAF_DIGEST_BYTES]) {
    sheaf_status status = sheaf_digest_of(bytes, out);
    assert(status == SHEAF_OK);
}

/* ---- clock, random, digest, signer ---- */

static uint64_t now_ms(void *context) { return ((edge_world *)context)->now_ms; }

static sheaf_status fill(uint8_t *out, size_t size, void *context) {
    edge_world *world = context;
    for (size_t i = 0; i < size; i++) {
        world->random = world->random * 1664525u + 1013904223u;
        out[i] = (uint8_t)(world->random >> 24);
    }
    return SHEAF_OK;
}

static sheaf_status digest_begin(void *context) {
    edge_world *world = context;
    sheaf_digest_drop(world->digest);
    return sheaf_digest_begin(world->digest);
}
static sheaf_status digest_update(const uint8_t *data, size_t size, void *context) {
    return sheaf_digest_update(((edge_world *)context)->digest, sheaf_span_of(data, size));
}
static sheaf_status digest_finish(uint8_t out[SHEAF_DIGEST_BYTES], void *context) {
    return sheaf_digest_finish(((edge_world *)context)->digest, out);
}

static void mac(char key, uint8_t counter, sheaf_span message, uint8_t out[SHEAF_DIGEST_BYTES]) {
    uint8_t bytes[2 + SHEAF_STATEMENT_BYTES_MAX] = {(uint8_t)key, counter};
    assert(message.size <= SHEAF_STATEMENT_BYTES_MAX);
    memcpy(bytes + 2, message.data, message.size);
    sha256(sheaf_span_of(bytes, 2 + message.size), out);
}

static size_t sign_with(char key, edge_world *world, sheaf_span message, uint8_t *signature) {
    signature[0] = (uint8_t)++world->signatures;
    mac(key, signature[0], message, signature + 1);
    return 1 + SHEAF_DIGEST_BYTES;
}

static sheaf_status verify_with(char key, sheaf_span message, const uint8_t *signature, size_t size) {
    uint8_t expected[SHEAF_DIGEST_BYTES];
    if (size != 1 + sizeof expected || message.size > SHEAF_STATEMENT_BYTES_MAX) return SHEAF_E_SIGNATURE;
    mac(key, signature[0], message, expected);
    return memcmp(expected, signature + 1, sizeof expected) == 0 ? SHEAF_OK : SHEAF_E_SIGNATURE;
}

static sheaf_status fingerprint(uint8_t out[SHEAF_DIGEST_BYTES], void *context) {
    memset(out, ((edge_world *)context)->device_certificate, SHEAF_DIGEST_BYTES);
    return SHEAF_OK;
}
static sheaf_status sign(const uint8_t *message, size_t size, uint8_t *signature, size_t *written, void *context) {
    assert(*written >= SHEAF_EDGE_SIGNATURE_BYTES_MAX);
    *written = sign_with('d', context, sheaf_span_of(message, size), signature);
    return SHEAF_OK;
}
static sheaf_status verify_peer(const uint8_t *message, size_t message_size, const uint8_t *signature, size_t size,
                                void *context) {
    (void)context;
    return verify_with('a', sheaf_span_of(message, message_size), signature, size);
}

/* ---- trainer: adds a value that depends on seed and index ---- */

float edge_world_trained(float before, size_t index, const uint8_t seed[32]) {
    return before + (float)((seed[index % 32] + index) % 97) / 64.0f - 0.5f;
}

static sheaf_status trainer_begin(const sheaf_edge_plan *plan, void *context) {
    edge_world *world = context;
    world->value_count = 0;
    world->slices = 0;
    memcpy(world->seed, plan->seed, sizeof world->seed);
    return SHEAF_OK;
}

static sheaf_status trainer_load(const sheaf_edge_tensor *tensor, uint64_t first, const float *values, size_t count,
                                 void *context) {
    edge_world *world = context;
    if (strcmp(tensor->dtype, "F32") != 0 || first + count > tensor->elements) return SHEAF_E_SHAPE;
    world->values = realloc(world->values, (world->value_count + count + 1) * sizeof(float));
    assert(world->values != NULL);
    memcpy(world->values + world->value_count, values, count * sizeof(float));
    world->value_count += count;
    return SHEAF_OK;
}

static sheaf_status trainer_train(const sheaf_edge_plan *plan, sheaf_edge_progress *progress, void *context) {
    edge_world *world = context;
    (void)plan;
    if (progress->stop) return SHEAF_STOPPED;
    if (world->train_result != SHEAF_OK) return world->train_result;
    world->slices++;
    progress->done_permille = (uint32_t)(1000 * world->slices / world->slice_count);
    progress->loss = 1.0 / world->slices;
    progress->wait_ms = 500;
    if (world->slices < world->slice_count) return SHEAF_AGAIN;
    world->trainings++;
    for (size_t i = 0; i < world->value_count; i++) {
        world->values[i] = edge_world_trained(world->values[i], i, world->seed);
    }
    if (world->poison != 0.0f) world->values[0] = world->poison;
    return SHEAF_OK;
}

/* Tensors of the world's model: "a" of 300 values, "b" of 7. */
static sheaf_status trainer_store(const sheaf_edge_tensor *tensor, uint64_t first, float *values, size_t count,
                                  void *context) {
    const edge_world *world = context;
    size_t base = tensor->name[0] == 'a' ? 0 : 300;
    assert(base + first + count <= world->value_count);
    memcpy(values, world->values + base + first, count * sizeof(float));
    return SHEAF_OK;
}

static int64_t trainer_examples(void *context) { return ((edge_world *)context)->examples; }
static void trainer_cancel(void *context) { ((edge_world *)context)->cancels++; }

/* ---- the aggregator ---- */

static void set_bytes(pb_size_t *size, uint8_t *to, sheaf_span from) {
    memcpy(to, from.data, from.size);
    *size = (pb_size_t)from.size;
}

static void refuse(sheaf_v1_Reply *reply, sheaf_status status) {
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_refusal_tag;
    reply->body.refusal.status = (uint32_t)status;
    memcpy(reply->body.refusal.detail, "no", sizeof "no");
}

static void wait(sheaf_v1_Reply *reply, uint32_t ms) {
    reply->which_body = sheaf_v1_Reply_wait_tag;
    reply->body.wait.retry_ms = ms;
}

static void open_round(edge_world *world, const sheaf_v1_RoundQuery *query, sheaf_v1_Reply *reply) {
    edge_world_server *server = &world->server;
    server->last_round_told = query->last_round;
    if (server->round > server->last_round) {
        reply->which_body = sheaf_v1_Reply_end_tag;
        reply->body.end.rounds = server->last_round;
        return;
    }
    if (server->round == 0 || server->accepted_round == server->round || query->last_round >= server->round) {
        wait(reply, 1000);
        return;
    }
    uint8_t bytes[SHEAF_STATEMENT_BYTES_MAX];
    sheaf_buffer out = {bytes, 0, sizeof bytes};
    sheaf_round_statement round = {.tenant = TENANT,
                                   .job = JOB,
                                   .round = server->round,
                                   .attempt = server->attempt,
                                   .base_model_bytes = server->model_bytes,
                                   .opened_unix_ms = 5};
    memset(round.nonce, server->nonce_letter, sizeof round.nonce);
    sha256(sheaf_span_of(server->model, server->model_bytes), round.base_model);
    memcpy(round.certificate, aggregator_certificate, sizeof round.certificate);
    reply->which_body = sheaf_v1_Reply_round_tag;
    sheaf_v1_RoundOpen *open = &reply->body.round;
    sheaf_status status = sheaf_plan_encode(&server->plan, &out);
    assert(status == SHEAF_OK);
    set_bytes(&open->plan.size, open->plan.bytes, sheaf_buffer_span(&out));
    sha256(sheaf_buffer_span(&out), round.plan_digest);
    if (server->twist_round != NULL) server->twist_round(&round);
    status = sheaf_round_statement_encode(&round, &out);
    assert(status == SHEAF_OK);
    set_bytes(&open->statement.size, open->statement.bytes, sheaf_buffer_span(&out));
    open->signature.size = (pb_size_t)sign_with('a', world, sheaf_buffer_span(&out), open->signature.bytes);
}

/* From offset on, whole tensors: the second begins at the last 7 values and their header. */
static size_t same_run(const edge_world_server *server, const sheaf_v1_ModelQuery *query) {
    uint8_t digest[SHEAF_DIGEST_BYTES];
    if (server->old_model == NULL || query->held.size != sizeof digest) return 0;
    sha256(sheaf_span_of(server->old_model, server->model_bytes), digest);
    size_t from = (size_t)query->offset, to = server->model_bytes;
    if (memcmp(digest, query->held.bytes, sizeof digest) != 0) return 0;
    while (to > from && memcmp(server->model + from, server->old_model + from, to - from) != 0) to--;
    return to - from;
}

static void give_model(edge_world *world, const sheaf_v1_ModelQuery *query, sheaf_v1_Reply *reply,
                       sheaf_span *payload) {
    edge_world_server *server = &world->server;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sha256(sheaf_span_of(server->model, server->model_bytes), digest);
    if (query->digest.size != sizeof digest || memcmp(digest, query->digest.bytes, sizeof digest) != 0 ||
        query->offset > server->model_bytes) {
        refuse(reply, SHEAF_E_NOT_FOUND);
        return;
    }
    if (server->casts && query->can_join) {
        reply->which_body = sheaf_v1_Reply_cast_tag;
        reply->body.cast.group.size = reply->body.cast.key.size = 16;
        memset(reply->body.cast.group.bytes, 'g', 16);
        memset(reply->body.cast.key.bytes, 'k', 16);
        reply->body.cast.total_bytes = server->model_bytes;
        return;
    }
    size_t left = server->model_bytes - (size_t)query->offset;
    size_t size = left < server->chunk_bytes ? left : server->chunk_bytes;
    if (size > query->bytes_max) size = query->bytes_max;
    reply->which_body = sheaf_v1_Reply_model_tag;
    reply->body.model.offset = query->offset;
    reply->body.model.total_bytes = server->model_bytes;
    size_t same = same_run(server, query);
    server->same_bytes += same;
    reply->body.model.same_bytes = same;
    if (same > 0) return;
    *payload = sheaf_span_of(server->model + query->offset, size);
    server->model_bytes_sent += size;
}

/* The next frame of a cast that goes round for ever. */
static int give_cast(edge_world *world, sheaf_v1_Reply *reply, sheaf_span *payload) {
    edge_world_server *server = &world->server;
    size_t left = server->model_bytes - server->cast_at;
    size_t size = left < server->chunk_bytes ? left : server->chunk_bytes;
    memset(reply, 0, sizeof *reply);
    reply->which_body = sheaf_v1_Reply_model_tag;
    reply->body.model.offset = server->cast_at;
    reply->body.model.total_bytes = server->model_bytes;
    *payload = sheaf_span_of(server->model + server->cast_at, size);
    server->cast_at = size == left ? 0 : server->cast_at + size;
    server->cast_frames++;
    return server->cast_hook == NULL || server->cast_hook(world, reply, payload);
}

static void give_receipt(edge_world *world, sheaf_v1_Reply *reply) {
    edge_world_server *server = &world->server;
    sheaf_receipt_statement receipt = {.tenant = TENANT,
                                       .job = JOB,
                                       .client = CLIENT,
                                       .round = server->accepted_round,
                                       .attempt = server->accepted_attempt,
                                       .accepted_unix_ms = 9};
    memcpy(receipt.update_digest, server->accepted_update, SHEAF_DIGEST_BYTES);
    memcpy(receipt.payload_digest, server->accepted_payload, SHEAF_DIGEST_BYTES);
    uint8_t bytes[SHEAF_STATEMENT_BYTES_MAX];
    sheaf_buffer out = {bytes, 0, sizeof bytes};
    if (server->twist_receipt != NULL) server->twist_receipt(&receipt);
    sheaf_status status = sheaf_receipt_statement_encode(&receipt, &out);
    assert(status == SHEAF_OK);
    reply->which_body = sheaf_v1_Reply_receipt_tag;
    set_bytes(&reply->body.receipt.statement.size, reply->body.receipt.statement.bytes, sheaf_buffer_span(&out));
    reply->body.receipt.signature.size =
        (pb_size_t)sign_with('a', world, sheaf_buffer_span(&out), reply->body.receipt.signature.bytes);
}

static sheaf_status judge_offer(edge_world *world, const sheaf_v1_Offer *offer, sheaf_update_statement *statement) {
    edge_world_server *server = &world->server;
    sheaf_span bytes = sheaf_span_of(offer->statement.bytes, offer->statement.size);
    uint8_t expected[SHEAF_DIGEST_BYTES], certificate[SHEAF_DIGEST_BYTES];
    sheaf_status status = sheaf_update_statement_decode(bytes, statement);
    if (status != SHEAF_OK) return status;
    memset(certificate, world->device_certificate, sizeof certificate);
    if (memcmp(certificate, statement->certificate, sizeof certificate) != 0) return SHEAF_E_IDENTITY;
    status = verify_with('d', bytes, offer->signature.bytes, offer->signature.size);
    if (status != SHEAF_OK) return status;
    if (statement->round == server->accepted_round) {
        int same = memcmp(statement->payload_digest, server->accepted_payload, SHEAF_DIGEST_BYTES) == 0;
        server->conflicts += !same;
        return same ? SHEAF_OK : SHEAF_E_CONFLICT;
    }
    if (statement->round < server->round || statement->attempt < server->attempt) return SHEAF_E_LATE;
    if (statement->round != server->round || statement->attempt != server->attempt) return SHEAF_E_ROUND;
    memset(expected, server->nonce_letter, sizeof expected);
    if (memcmp(expected, statement->nonce, sizeof expected) != 0) return SHEAF_E_NONCE;
    if (statement->weight < 1) return SHEAF_E_WEIGHT_ZERO;
    return statement->weight <= server->plan.weight_cap ? SHEAF_OK : SHEAF_E_WEIGHT_CAP;
}

static void take_offer(edge_world *world, const sheaf_v1_Offer *offer, sheaf_v1_Reply *reply) {
    edge_world_server *server = &world->server;
    sheaf_update_statement statement;
    server->last_offer = *offer;
    sheaf_status status = judge_offer(world, offer, &statement);
    if (status != SHEAF_OK) {
        refuse(reply, status);
        return;
    }
    if (statement.round == server->accepted_round) {
        give_receipt(world, reply);
        return;
    }
    int same = server->offer_known && memcmp(server->offered.payload_digest, statement.payload_digest, 32) == 0;
    if (!same) server->upload_size = 0;
    server->chunk_size = 0;
    server->held = 0;
    server->offered = statement;
    sha256(sheaf_span_of(offer->statement.bytes, offer->statement.size), server->offered_digest);
    server->offer_known = 1;
    reply->which_body = sheaf_v1_Reply_upload_tag;
    reply->body.upload.next_offset = server->upload_size;
}

static void count_update(edge_world *world, sheaf_v1_Reply *reply) {
    edge_world_server *server = &world->server;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sha256(sheaf_span_of(server->upload, server->upload_size), digest);
    server->offer_known = 0;
    if (memcmp(digest, server->offered.payload_digest, sizeof digest) != 0) {
        refuse(reply, SHEAF_E_DIGEST);
        return;
    }
    server->accepted++;
    server->accepted_round = server->offered.round;
    server->accepted_attempt = server->offered.attempt;
    server->accepted_weight = server->offered.weight;
    memcpy(server->accepted_payload, digest, sizeof digest);
    memcpy(server->accepted_update, server->offered_digest, sizeof digest);
    give_receipt(world, reply);
}

/* WIRE.md, "Chunks". */
static void keep_chunk(edge_world_server *server, size_t offset, sheaf_span payload) {
    size_t total = (size_t)server->offered.payload_bytes;
    assert(offset + payload.size <= total);
    if (server->chunk_size == 0) server->chunk_size = payload.size;
    server->upload = realloc(server->upload, total + 1);
    assert(server->upload != NULL);
    if (payload.size == 0 || offset < server->upload_size) {
        server->chunks_again += payload.size > 0;
        return;
    }
    if ((offset - server->upload_size) % server->chunk_size != 0) { /* the reply puts the device right */
        server->off_grid++;
        return;
    }
    size_t place = (offset - server->upload_size) / server->chunk_size;
    if (place > 64) {
        server->passed_over++;
        return;
    }
    memcpy(server->upload + offset, payload.data, payload.size);
    if (place > 0) {
        server->chunks_again += (server->held >> (place - 1) & 1) != 0;
        server->held |= 1ull << (place - 1);
        return;
    }
    int more = 1;
    for (server->upload_size += payload.size; more; server->held >>= 1) {
        more = (int)(server->held & 1);
        size_t left = total - server->upload_size;
        if (more) server->upload_size += left < server->chunk_size ? left : server->chunk_size;
    }
}

static void take_chunk(edge_world *world, const sheaf_v1_Chunk *chunk, sheaf_span payload, sheaf_v1_Reply *reply) {
    edge_world_server *server = &world->server;
    if (memcmp(chunk->payload_digest.bytes, server->accepted_payload, 32) == 0 && server->accepted_round != 0) {
        give_receipt(world, reply);
        return;
    }
    if (!server->offer_known || memcmp(chunk->payload_digest.bytes, server->offered.payload_digest, 32) != 0) {
        refuse(reply, SHEAF_E_NOT_FOUND);
        return;
    }
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sha256(payload, digest);
    assert(chunk->chunk_digest.size == sizeof digest && memcmp(digest, chunk->chunk_digest.bytes, sizeof digest) == 0);
    keep_chunk(server, (size_t)chunk->offset, payload);
    if (server->upload_size == server->offered.payload_bytes) {
        count_update(world, reply);
        return;
    }
    reply->which_body = sheaf_v1_Reply_upload_tag;
    reply->body.upload.next_offset = server->upload_size;
    reply->body.upload.held = server->held;
}

static void note_progress(edge_world *world, const sheaf_v1_Progress *progress, sheaf_v1_Reply *reply) {
    world->server.regressions += progress->done_permille < world->server.max_permille;
    world->server.max_permille = progress->done_permille;
    wait(reply, 700);
}

static void answer(edge_world *world, const sheaf_v1_Request *request, sheaf_span payload, sheaf_v1_Reply *reply,
                   sheaf_span *out) {
    switch (request->which_body) {
    case sheaf_v1_Request_hello_tag:
        reply->which_body = sheaf_v1_Reply_welcome_tag;
        reply->body.welcome.protocol = 1;
        reply->body.welcome.chunk_bytes = world->server.chunk_bytes;
        reply->body.welcome.encodings_ok = 1;
        break;
    case sheaf_v1_Request_round_tag:
        open_round(world, &request->body.round, reply);
        break;
    case sheaf_v1_Request_model_tag:
        give_model(world, &request->body.model, reply, out);
        break;
    case sheaf_v1_Request_progress_tag:
        note_progress(world, &request->body.progress, reply);
        break;
    case sheaf_v1_Request_offer_tag:
        take_offer(world, &request->body.offer, reply);
        break;
    case sheaf_v1_Request_chunk_tag:
        take_chunk(world, &request->body.chunk, payload, reply);
        break;
    default:
        assert(0);
    }
}

/* ---- transport ---- */

static void enqueue(edge_world *world, const sheaf_v1_Reply *reply, sheaf_span payload) {
    unsigned at = (world->reply_first + world->reply_count) % EDGE_WORLD_REPLIES;
    assert(world->reply_count < EDGE_WORLD_REPLIES);
    sheaf_buffer encoded = {world->replies[at].frame, 0, EDGE_WORLD_FRAME_BYTES + 4096};
    if (encoded.data == NULL) encoded.data = world->replies[at].frame = malloc(encoded.capacity);
    assert(encoded.data != NULL);
    sheaf_status status = sheaf_frame_encode_reply(reply, payload, &encoded);
    assert(status == SHEAF_OK);
    world->replies[at].size = encoded.size;
    world->reply_count++;
}

static sheaf_status transport_send(const uint8_t *frame, size_t size, void *context) {
    edge_world *world = context;
    if (world->waiting >= (world->options.window > 0 ? world->options.window : 1)) return SHEAF_AGAIN;
    sheaf_v1_Request request;
    sheaf_v1_Reply reply;
    memset(&reply, 0, sizeof reply);
    sheaf_span payload, out = {NULL, 0};
    sheaf_status status = sheaf_frame_decode_request(sheaf_span_of(frame, size), &request, &payload);
    assert(status == SHEAF_OK);
    assert(strcmp(request.tenant, TENANT) == 0 && strcmp(request.job, JOB) == 0 && strcmp(request.client, CLIENT) == 0);
    world->server.requests[request.which_body]++;
    if (++world->waiting > world->waiting_most) world->waiting_most = world->waiting;
    if (world->lose != NULL && world->lose(world, &request)) return SHEAF_OK;
    answer(world, &request, payload, &reply, &out);
    if (world->hook != NULL && !world->hook(world, &request, &reply, &out)) return SHEAF_OK;
    enqueue(world, &reply, out);
    if (world->repeats) enqueue(world, &reply, out);
    return SHEAF_OK;
}

void edge_world_replace_replies(edge_world *world, const uint8_t *frame, size_t size) {
    if (size > EDGE_WORLD_FRAME_BYTES) size = EDGE_WORLD_FRAME_BYTES;
    const sheaf_v1_Reply empty = {.which_body = sheaf_v1_Reply_wait_tag};
    world->reply_count = 0;
    enqueue(world, &empty, sheaf_span_of(NULL, 0));
    memcpy(world->replies[world->reply_first].frame, frame, size);
    world->replies[world->reply_first].size = size;
}

static void cast_frame(edge_world *world) {
    sheaf_v1_Reply reply;
    sheaf_span payload;
    if (world->server.joined && give_cast(world, &reply, &payload)) enqueue(world, &reply, payload);
}

static sheaf_status transport_receive(uint8_t *frame, size_t capacity, size_t *size, void *context) {
    edge_world *world = context;
    if (world->receive != SHEAF_OK) {
        sheaf_status status = world->receive;
        world->receive = SHEAF_OK;
        world->waiting = world->reply_count = 0;
        return status;
    }
    if (world->reply_count == 0) cast_frame(world);
    if (world->reply_count == 0) return SHEAF_AGAIN;
    unsigned at = world->reply_first;
    world->reply_first = (at + 1) % EDGE_WORLD_REPLIES;
    world->reply_count--;
    if (world->waiting > 0) world->waiting--;
    *size = world->replies[at].size;
    if (*size > capacity) return SHEAF_E_TOO_LARGE;
    memcpy(frame, world->replies[at].frame, *size);
    return SHEAF_OK;
}

static void transport_cancel(void *context) {
    edge_world *world = context;
    world->waiting = world->reply_count = 0;
}

static sheaf_status transport_join(const uint8_t group[SHEAF_EDGE_GROUP_BYTES],
                                   const uint8_t key[SHEAF_EDGE_GROUP_BYTES], void *context) {
    edge_world_server *server = &((edge_world *)context)->server;
    assert(group == NULL || (group[0] == 'g' && key[0] == 'k'));
    server->joined = group != NULL;
    server->joins += group != NULL;
    server->leaves += group == NULL;
    return SHEAF_OK;
}

static uint64_t transport_moved(void *context) {
    const edge_world *world = context;
    return world->now_ms < world->line_until_ms ? world->now_ms : world->line_until_ms;
}

static sheaf_status transport_peer(uint8_t out[SHEAF_DIGEST_BYTES], void *context) {
    memcpy(out, aggregator_certificate, SHEAF_DIGEST_BYTES);
    return ((edge_world *)context)->peer;
}

/* ---- the world ---- */

static void on_event(const sheaf_edge_event *event, void *context) {
    edge_world *world = context;
    unsigned at = world->event_count++ % EDGE_WORLD_EVENTS;
    world->events[at] = event->kind;
    world->statuses[at] = event->status;
    world->of_kind[event->kind]++;
    world->newest_bytes[event->kind] = event->bytes;
}

static void make_model(edge_world_server *server) {
    sheaf_tensor tensors[2] = {{.name = "a", .dtype = "F32", .rank = 2, .dims = {30, 10}},
                               {.name = "b", .dtype = "F32", .rank = 1, .dims = {7}}};
    server->model = malloc(4096);
    assert(server->model != NULL);
    uint32_t value = 1;
    for (size_t i = 0; i < 2; i++) {
        sheaf_buffer out = {server->model + server->model_bytes, 0, SHEAF_TENSOR_HEADER_BYTES_MAX};
        sheaf_status status = sheaf_tensor_measure(&tensors[i]);
        if (status == SHEAF_OK) status = sheaf_tensor_header_encode(&tensors[i], &out);
        assert(status == SHEAF_OK);
        server->model_bytes += out.size;
        for (uint64_t k = 0; k < tensors[i].elements; k++, server->model_bytes += 4) {
            sheaf_store_f32(server->model + server->model_bytes, (float)(value++ % 19) / 8.0f - 1.0f);
        }
    }
}

static void fill_options(edge_world *world) {
    sheaf_edge_options options = {
        .tenant = TENANT,
        .job = JOB,
        .client = CLIENT,
        .trainer = {trainer_begin, trainer_load, trainer_train, trainer_store, trainer_examples, trainer_cancel, world},
        .transport = {transport_send, transport_receive, transport_cancel, transport_peer, transport_join,
                      transport_moved, world},
        .clock = {now_ms, world},
        .random = {fill, world},
        .signer = {fingerprint, sign, verify_peer, world},
        .digest = {digest_begin, digest_update, digest_finish, world},
        .storage = edge_world_storage_of(world),
        .frame = world->frame,
        .frame_bytes = sizeof world->frame,
        .work = world->work,
        .work_values = SHEAF_EDGE_WORK_VALUES_MIN,
        .on_event = on_event,
        .event_context = world,
    };
    world->options = options;
}

void edge_world_open(edge_world *world, uint64_t rounds) {
    memset(world, 0, sizeof *world);
    world->digest = calloc(1, sizeof(sheaf_digest));
    assert(world->digest != NULL);
    world->examples = 40;
    world->slice_count = 4;
    world->device_certificate = 0xdd;
    world->server.round = 1;
    world->server.last_round = rounds;
    world->server.attempt = 1;
    world->server.nonce_letter = 'n';
    world->server.chunk_bytes = 500;
    sheaf_plan plan = {.epochs = 1,
                       .batch = 8,
                       .learning_rate = 0.1f,
                       .momentum = 0.0f,
                       .seed = 3,
                       .weight_cap = 32,
                       .progress_s = 4,
                       .encoding = "f32"};
    world->server.plan = plan;
    make_model(&world->server);
    fill_options(world);
}

void edge_world_close(edge_world *world) {
    sheaf_edge_fini(&world->edge);
    sheaf_digest_drop(world->digest);
    for (size_t i = 0; i < SHEAF_EDGE_SLOTS; i++) {
        free(world->storage.slots[i].content);
        free(world->storage.slots[i].draft);
    }
    free(world->digest);
    for (size_t i = 0; i < EDGE_WORLD_REPLIES; i++) free(world->replies[i].frame);
    free(world->values);
    free(world->server.model);
    free(world->server.old_model);
    free(world->server.upload);
    memset(world, 0, sizeof *world);
}

sheaf_status edge_world_start(edge_world *world) {
    transport_cancel(world);
    world->server.max_permille = 0;
    return sheaf_edge_init(&world->edge, &world->options);
}

/* The next round opens as soon as the last one has its update; the model stays, which the device cannot know. */
static void next_round(edge_world_server *server) {
    if (server->round == 0 || server->accepted_round != server->round) return;
    server->round++;
    server->attempt = 1;
    server->nonce_letter++;
    server->max_permille = 0;
}

static sheaf_status step(edge_world *world) {
    uint32_t wait_ms;
    sheaf_status status = sheaf_edge_poll(&world->edge, &wait_ms);
    if (status == SHEAF_AGAIN) world->now_ms += wait_ms < 60000 ? wait_ms : 60000;
    return status;
}

sheaf_status edge_world_run(edge_world *world, unsigned polls) {
    sheaf_status status = SHEAF_AGAIN;
    for (unsigned i = 0; i < polls && (status == SHEAF_OK || status == SHEAF_AGAIN) && !world->storage.dead; i++) {
        status = step(world);
        if (sheaf_edge_state_of(&world->edge) == SHEAF_EDGE_ASKING) next_round(&world->server);
    }
    return world->storage.dead ? SHEAF_E_DISK : status;
}

int edge_world_run_to(edge_world *world, sheaf_edge_state state) {
    for (unsigned i = 0; i < 10000; i++) {
        if (sheaf_edge_state_of(&world->edge) == state) return 1;
        sheaf_status status = step(world);
        if (status != SHEAF_OK && status != SHEAF_AGAIN) return 0;
    }
    return 0;
}
