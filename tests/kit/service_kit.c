#include "tests/kit/service_kit.h"

#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/log.h"
#include "common/safetensors.h"
#include "server/queue.h"
#include "server/store/checkpoint.h"

extern char **environ;

static void need(int ok, const char *what, const char *detail) {
    if (ok) return;
    fprintf(stderr, "service_kit: %s: %s\n", what, detail);
    abort();
}

static void nap(long ms) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void write_model(const char *path, uint32_t values) {
    sheaf_tensor tensor = {.name = "a", .dtype = "F32", .rank = 1, .dims = {values}};
    sheaf_model model;
    sheaf_problem problem = {SHEAF_OK, ""};
    need(sheaf_model_make(&tensor, 1, &model, &problem) == SHEAF_OK, "model", problem.text);
    for (uint32_t i = 0; i < values; i++)
        sheaf_store_f32(model.stream + model.tensors[0].data_offset + 4 * i, (float)(i + 1));
    need(sheaf_safetensors_write(path, &model, NULL, 0, &problem) == SHEAF_OK, "model", problem.text);
    sheaf_model_free(&model);
}

void service_kit_configure(service_kit *kit, const char *job_yaml) {
    const pki_kit_files *aggregator = pki_kit_issue(kit->pki, "aggregator", "aggregator", NULL);
    FILE *file = fopen(kit->config_path, "w");
    need(file != NULL, "config", kit->config_path);
    int past_broker = strncmp(kit->url, "mqtts://", 8) == 0;
    fprintf(file,
            "broker: {url: '%s'}\n"
            "server:\n  listen: '%s'\n  state: %s\n  certificate: %s\n  key: %s\n  ca: %s\n  workers: %d\n"
            "limits:\n  chunk_bytes: 1KiB\n  uploads: 4\n"
            "log:\n  file: %s/service.log\n"
            "jobs:\n  - tenant: acme\n    name: job\n    initial_model: %s/initial.safetensors\n"
            "    plan: {learning_rate: 0.1}\n%s",
            past_broker ? kit->url : "", past_broker ? "" : kit->url, kit->state, aggregator->certificate,
            aggregator->key, pki_kit_ca(kit->pki), kit->workers == 0 ? 2 : kit->workers, kit->folder, kit->folder,
            job_yaml);
    fclose(file);
}

static void start_program(service_kit *kit) {
    char *const arguments[] = {(char *)(uintptr_t)kit->program, "--config", kit->config_path, NULL};
    pid_t process = 0;
    need(posix_spawn(&process, kit->program, NULL, NULL, arguments, environ) == 0, "program", kit->program);
    kit->process = process;
}

static void open_service(service_kit *kit) {
    sheaf_problem problem = {SHEAF_OK, ""};
    if (kit->program != NULL) {
        start_program(kit);
        return;
    }
    need(sheafd_config_load(kit->config_path, &kit->config, &problem) == SHEAF_OK, "config", problem.text);
    need(sheaf_log_configure(SHEAF_LOG_INFO, 0, kit->config.log.file) == SHEAF_OK, "log", kit->config.log.file);
    need(sheaf_service_open(&kit->config, &kit->service, &problem) == SHEAF_OK, "service", problem.text);
}

static void choose_url(service_kit *kit) {
    static const broker_kit_options rights = {.aggregator = "aggregator"};
    static int serial;
    if (kit->address != NULL && strcmp(kit->address, "mqtts://") == 0) {
        kit->broker = broker_kit_start(kit->pki, &rights);
        (void)snprintf(kit->url, sizeof kit->url, "%s", broker_kit_url(kit->broker));
    } else if (kit->address != NULL) {
        (void)snprintf(kit->url, sizeof kit->url, "%s", kit->address);
    } else {
        (void)snprintf(kit->url, sizeof kit->url, "inproc://service-%d-%d", (int)getpid(), serial++);
    }
}

void service_kit_start(service_kit *kit, const char *job_yaml) {
    char path[1024];
    const service_kit asked = *kit;
    memset(kit, 0, sizeof *kit);
    kit->workers = asked.workers;
    kit->values = asked.values == 0 ? DEVICE_VALUES : asked.values;
    kit->address = asked.address;
    kit->program = asked.program;
    kit->pki = pki_kit_make();
    kit->folder = pki_kit_folder(kit->pki);
    choose_url(kit);
    (void)snprintf(kit->config_path, sizeof kit->config_path, "%s/service.yaml", kit->folder);
    (void)snprintf(kit->state, sizeof kit->state, "%s/state", kit->folder);
    (void)snprintf(path, sizeof path, "%s/initial.safetensors", kit->folder);
    write_model(path, kit->values);
    service_kit_configure(kit, job_yaml);
    open_service(kit);
    if (kit->broker != NULL) broker_kit_await(kit->broker, "aggregator"); /* devices ask again only after a while */
}

void service_kit_stop_service(service_kit *kit) {
    if (kit->process > 0) {
        (void)kill(kit->process, SIGKILL);
        (void)waitpid(kit->process, NULL, 0);
        kit->process = 0;
        return;
    }
    sheaf_service_close(kit->service);
    kit->service = NULL;
    sheafd_config_free(&kit->config);
}

void service_kit_restart(service_kit *kit) {
    service_kit_stop_service(kit);
    open_service(kit);
}

void service_kit_stop(service_kit *kit) {
    if (kit->service != NULL || kit->process > 0) service_kit_stop_service(kit);
    broker_kit_free(kit->broker);
    pki_kit_free(kit->pki);
}

sheaf_status service_kit_wait_end(service_kit *kit) {
    for (int i = 0; i < 2000; i++) {
        sheaf_status ended = sheaf_service_jobs_ended(kit->service);
        if (ended != SHEAF_AGAIN) return ended;
        nap(10);
    }
    return SHEAF_AGAIN;
}

long long service_kit_query(const service_kit *kit, const char *sql) {
    char path[1100];
    sqlite3 *database = NULL;
    sqlite3_stmt *statement = NULL;
    (void)snprintf(path, sizeof path, "%s/state.db", kit->state);
    need(sqlite3_open(path, &database) == SQLITE_OK, "query", path);
    (void)sqlite3_busy_timeout(database, 5000);
    need(sqlite3_prepare_v2(database, sql, -1, &statement, NULL) == SQLITE_OK, "query", sql);
    long long value = sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : -1;
    sqlite3_finalize(statement);
    sqlite3_close(database);
    return value;
}

void service_kit_model(const service_kit *kit, float out[4]) {
    char path[1100], folder[1100];
    sqlite3 *database = NULL;
    sqlite3_stmt *statement = NULL;
    sheaf_model model;
    sheaf_problem problem = {SHEAF_OK, ""};
    (void)snprintf(path, sizeof path, "%s/state.db", kit->state);
    (void)snprintf(folder, sizeof folder, "%s/acme/job", kit->state);
    need(sqlite3_open(path, &database) == SQLITE_OK, "query", path);
    const char *sql = "SELECT model FROM rounds WHERE outcome = 1 ORDER BY round DESC LIMIT 1";
    need(sqlite3_prepare_v2(database, sql, -1, &statement, NULL) == SQLITE_OK, "query", sql);
    need(sqlite3_step(statement) == SQLITE_ROW, "query", "no released round");
    sheaf_status status = sheaf_checkpoint_load(folder, sqlite3_column_blob(statement, 0), 1 << 20, &model, &problem);
    need(status == SHEAF_OK, "model", problem.text);
    for (uint32_t i = 0; i < DEVICE_VALUES; i++)
        out[i] = sheaf_load_f32(model.stream + model.tensors[0].data_offset + 4 * i);
    sheaf_model_free(&model);
    sqlite3_finalize(statement);
    sqlite3_close(database);
}

static device *device_open(service_kit *kit, const pki_kit_files *files, const char *name) {
    device *self = calloc(1, sizeof *self);
    sheaf_problem problem = {SHEAF_OK, ""};
    need(self != NULL, "device", "memory");
    self->kit = kit;
    self->files = files;
    (void)snprintf(self->tenant, sizeof self->tenant, "acme");
    (void)snprintf(self->job, sizeof self->job, "job");
    (void)snprintf(self->name, sizeof self->name, "%s", name);
    need(sheaf_signer_open(self->files->key, &self->signer, &problem) == SHEAF_OK, "key", problem.text);
    need(sheaf_certificate_from_pem_file(self->files->certificate, &self->certificate, &problem) == SHEAF_OK,
         "certificate", problem.text);
    const sheaf_transport_options link = {.url = kit->url,
                                          .tls = {.certificate_path = self->files->certificate,
                                                  .key_path = self->files->key,
                                                  .ca_path = pki_kit_ca(kit->pki)},
                                          .frame_bytes_max = sizeof self->frame,
                                          .handshake_ms = 5000,
                                          .exchanges_max = 1,
                                          .connections_max = 1};
    need(sheaf_transport_inproc.open_link(&link, &self->link, &problem) == SHEAF_OK, "link", problem.text);
    return self;
}

device *device_make_with(service_kit *kit, const char *role, const char *name, const pki_kit_options *options) {
    return device_open(kit, pki_kit_issue(kit->pki, role, name, options), name);
}

device *device_make(service_kit *kit, const char *name) { return device_make_with(kit, "device", name, NULL); }

device *device_twin(const device *other) { return device_open(other->kit, other->files, other->name); }

void device_free(device *self) {
    if (self == NULL) return;
    sheaf_transport_inproc.close(self->link);
    sheaf_signer_free(self->signer);
    sheaf_certificate_unref(self->certificate);
    free(self);
}

int device_exchange_raw(device *self, sheaf_span frame) {
    sheaf_buffer in = {self->frame, 0, sizeof self->frame};
    sheaf_problem problem = {SHEAF_OK, ""};
    for (int attempt = 0; attempt < 20000; attempt++) {
        sheaf_status status = sheaf_transport_inproc.send(self->link, frame);
        if (status != SHEAF_OK && status != SHEAF_AGAIN) return 0;
        do {
            status = sheaf_transport_inproc.receive(self->link, &in, &problem);
            if (status == SHEAF_AGAIN) nap(1);
        } while (status == SHEAF_AGAIN && ++attempt < 20000);
        if (status == SHEAF_OK) break;
        nap(5); /* the service is being restarted */
    }
    memset(&self->reply, 0, sizeof self->reply);
    return sheaf_frame_decode_reply(sheaf_buffer_span(&in), &self->reply, &self->payload) == SHEAF_OK;
}

void device_exchange(device *self, const sheaf_v1_Request *request, sheaf_span payload) {
    sheaf_buffer out = {self->sent, 0, sizeof self->sent};
    need(sheaf_frame_encode_request(request, payload, &out) == SHEAF_OK, "frame", "encode");
    need(device_exchange_raw(self, sheaf_buffer_span(&out)), "exchange", "no readable reply");
}

sheaf_v1_Request device_request(const device *self) {
    sheaf_v1_Request request = sheaf_v1_Request_init_zero;
    (void)snprintf(request.tenant, sizeof request.tenant, "%s", self->tenant);
    (void)snprintf(request.job, sizeof request.job, "%s", self->job);
    (void)snprintf(request.client, sizeof request.client, "%s", self->name);
    return request;
}

static void read_round(device *self) {
    const sheaf_v1_RoundOpen *open = &self->reply.body.round;
    sheaf_span statement = sheaf_span_of(open->statement.bytes, open->statement.size);
    sheaf_span plan = sheaf_span_of(open->plan.bytes, open->plan.size);
    sheaf_certificate *peer = sheaf_transport_inproc.peer(self->link);
    need(peer != NULL && sheaf_certificate_verify(
                             peer, statement, sheaf_span_of(open->signature.bytes, open->signature.size)) == SHEAF_OK,
         "round", "signature");
    need(sheaf_round_statement_decode(statement, &self->round) == SHEAF_OK, "round", "statement");
    need(sheaf_plan_decode(plan, &self->plan) == SHEAF_OK, "round", "plan");
    need(sheaf_digest_of(plan, self->plan_digest) == SHEAF_OK, "round", "digest");
    need(memcmp(self->plan_digest, self->round.plan_digest, SHEAF_DIGEST_BYTES) == 0, "round", "plan digest");
}

pb_size_t device_ask_round(device *self, uint64_t last_round) {
    sheaf_v1_Request request = device_request(self);
    request.which_body = sheaf_v1_Request_round_tag;
    request.body.round.last_round = last_round;
    device_exchange(self, &request, sheaf_span_of(NULL, 0));
    if (self->reply.which_body == sheaf_v1_Reply_round_tag) read_round(self);
    return self->reply.which_body;
}

int device_await_round(device *self) {
    for (int i = 0; i < 4000; i++) {
        pb_size_t body = device_ask_round(self, 0);
        if (body == sheaf_v1_Reply_round_tag) return 1;
        if (body == sheaf_v1_Reply_end_tag) return 0;
        need(body == sheaf_v1_Reply_wait_tag, "round", "refused");
        nap(5);
    }
    need(0, "round", "none opened in 20 s");
    return 0;
}

void device_sign(device *self, update *u) {
    sheaf_buffer bytes = {u->bytes, 0, sizeof u->bytes}, signature = {u->signature, 0, sizeof u->signature};
    need(sheaf_update_statement_encode(&u->statement, &bytes) == SHEAF_OK, "statement", "encode");
    need(sheaf_signer_sign(self->signer, sheaf_buffer_span(&bytes), &signature) == SHEAF_OK, "statement", "sign");
    u->size = bytes.size;
    u->signature_size = signature.size;
}

void device_update(device *self, float difference, int64_t weight, update *u) {
    memset(u, 0, sizeof *u);
    for (uint32_t i = 0; i < DEVICE_VALUES; i++) sheaf_store_f32(u->payload + 4 * i, difference);
    u->payload_size = sizeof u->payload;
    sheaf_update_statement *statement = &u->statement;
    *statement = (sheaf_update_statement){.round = self->round.round,
                                          .attempt = self->round.attempt,
                                          .payload_bytes = u->payload_size,
                                          .weight = weight,
                                          .payload_type = "f32"};
    (void)snprintf(statement->tenant, sizeof statement->tenant, "%s", self->tenant);
    (void)snprintf(statement->job, sizeof statement->job, "%s", self->job);
    (void)snprintf(statement->client, sizeof statement->client, "%s", self->name);
    memcpy(statement->nonce, self->round.nonce, SHEAF_NONCE_BYTES);
    memcpy(statement->base_model, self->round.base_model, SHEAF_DIGEST_BYTES);
    memcpy(statement->plan_digest, self->plan_digest, SHEAF_DIGEST_BYTES);
    memcpy(statement->certificate, sheaf_certificate_fingerprint(self->certificate), SHEAF_DIGEST_BYTES);
    need(sheaf_digest_of(sheaf_span_of(u->payload, u->payload_size), statement->payload_digest) == SHEAF_OK, "payload",
         "digest");
    device_sign(self, u);
}

pb_size_t device_offer(device *self, const update *u) {
    sheaf_v1_Request request = device_request(self);
    request.which_body = sheaf_v1_Request_offer_tag;
    sheaf_v1_Offer *offer = &request.body.offer;
    memcpy(offer->statement.bytes, u->bytes, u->size);
    offer->statement.size = (pb_size_t)u->size;
    memcpy(offer->signature.bytes, u->signature, u->signature_size);
    offer->signature.size = (pb_size_t)u->signature_size;
    offer->training_loss = 0.5;
    device_exchange(self, &request, sheaf_span_of(NULL, 0));
    return self->reply.which_body;
}

pb_size_t device_chunk(device *self, const update *u, uint64_t offset, size_t size) {
    sheaf_v1_Request request = device_request(self);
    request.which_body = sheaf_v1_Request_chunk_tag;
    sheaf_v1_Chunk *chunk = &request.body.chunk;
    memcpy(chunk->payload_digest.bytes, u->statement.payload_digest, SHEAF_DIGEST_BYTES);
    chunk->payload_digest.size = SHEAF_DIGEST_BYTES;
    chunk->offset = offset;
    device_exchange(self, &request, sheaf_span_of(u->payload + offset, size));
    return self->reply.which_body;
}

pb_size_t device_send(device *self, const update *u) {
    pb_size_t body = device_offer(self, u);
    for (int i = 0; i < 2000; i++) {
        if (body == sheaf_v1_Reply_upload_tag) {
            uint64_t offset = self->reply.body.upload.next_offset;
            body = device_chunk(self, u, offset, u->payload_size - (size_t)offset);
        } else if (body == sheaf_v1_Reply_wait_tag) {
            nap(self->reply.body.wait.retry_ms > 20 ? 20 : (long)self->reply.body.wait.retry_ms);
            body = device_offer(self, u);
        } else {
            return body;
        }
    }
    return body;
}

sheaf_status device_told(const device *self) {
    if (self->reply.which_body == sheaf_v1_Reply_refusal_tag)
        return sheaf_status_from_number((long)self->reply.body.refusal.status);
    if (self->reply.which_body == sheaf_v1_Reply_wait_tag)
        return sheaf_status_from_number((long)self->reply.body.wait.status);
    return SHEAF_OK;
}
