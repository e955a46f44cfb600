#include "server/service.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/log.h"
#include "server/handle.h"
#include "server/job.h"

typedef struct {
    pthread_t thread;
    sheaf_queue *tasks;
    sheaf_buffer scratch; /* one frame */
} worker;

struct sheaf_service {
    const sheafd_config *config;
    sheaf_handlers handlers; /* what workers see */
    int lock;                /* on the state folder */
    sheaf_signer *signer;
    sheaf_certificate *certificate;
    const sheaf_transport *carrier;
    sheaf_server *server;
    sheaf_request_pool *pool;
    sheaf_queue *tasks;      /* of sheaf_task: requests, and additions of all jobs */
    sheaf_refusals refusals; /* of what never reached a job */
    sheaf_job **jobs;
    size_t job_count;
    worker *workers;
    uint32_t worker_count;
};

static void *work(void *context) {
    worker *self = context;
    while (!sheaf_queue_closed(self->tasks)) {
        sheaf_task *task = sheaf_queue_pop(self->tasks, SHEAF_NEVER_NS);
        if (task != NULL) task->run(task, &self->scratch);
    }
    return NULL;
}

/* For a carrier that lets in more than limits.exchanges at once. */
static void ask_to_wait(sheaf_service *service, sheaf_exchange *exchange) {
    uint8_t bytes[SHEAF_FRAME_BYTES_MAX(0)];
    sheaf_buffer frame = {bytes, 0, sizeof bytes};
    sheaf_v1_Reply reply = sheaf_v1_Reply_init_zero;
    reply.which_body = sheaf_v1_Reply_wait_tag;
    reply.body.wait.status = SHEAF_E_BUSY;
    reply.body.wait.retry_ms = 100;
    if (sheaf_frame_encode_reply(&reply, sheaf_span_of(NULL, 0), &frame) == SHEAF_OK)
        service->carrier->reply(exchange, sheaf_buffer_span(&frame));
}

static void on_request(void *context, sheaf_exchange *exchange, sheaf_certificate *peer, sheaf_span frame) {
    sheaf_service *service = context;
    sheaf_request *request = sheaf_request_take(service->pool);
    if (request == NULL) {
        ask_to_wait(service, exchange);
        return;
    }
    request->task.run = sheaf_handle_request;
    request->service = &service->handlers;
    request->carrier = service->carrier;
    request->exchange = exchange;
    request->peer = peer;
    request->frame = frame;
    sheaf_queue_push(service->tasks, &request->task);
}

static void on_reject(void *context, sheaf_status reason, const char *detail) {
    sheaf_service *service = context;
    /* A peer that leaves by itself before it has said who it is was not refused. */
    if (reason == SHEAF_E_NETWORK)
        sheaf_log(SHEAF_LOG_DEBUG, "connection_lost", "detail=\"%s\"", detail);
    else
        sheaf_refusals_note(&service->refusals, reason, "", "", detail);
}

static sheaf_status open_identity(sheaf_service *service, sheaf_problem *problem) {
    const sheafd_config *config = service->config;
    sheaf_status status = sheaf_certificate_from_pem_file(config->server.certificate, &service->certificate, problem);
    if (status != SHEAF_OK) return status;
    if (sheaf_certificate_identity(service->certificate)->role != SHEAF_ROLE_AGGREGATOR) {
        return sheaf_problem_set(
            problem, SHEAF_E_ROLE,
            "%s: has the role %s; expected an aggregator's certificate (sheaf pki issue --role aggregator)",
            config->server.certificate, sheaf_role_name(sheaf_certificate_identity(service->certificate)->role));
    }
    return sheaf_signer_open(config->server.key, &service->signer, problem);
}

static sheaf_status open_workers(sheaf_service *service, sheaf_problem *problem) {
    const sheafd_config *config = service->config;
    const sheafd_job_config *jobs = config->jobs.items;
    size_t capacity = config->limits.exchanges;
    for (size_t i = 0; i < config->jobs.count; i++) capacity += jobs[i].cohort.maximum;
    sheaf_status status = sheaf_queue_make(capacity, &service->tasks);
    if (status == SHEAF_OK) status = sheaf_request_pool_make(config->limits.exchanges, &service->pool);
    service->workers = calloc(config->server.workers, sizeof *service->workers);
    if (status != SHEAF_OK || service->workers == NULL)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the workers");
    for (uint32_t i = 0; i < config->server.workers; i++) {
        worker *one = &service->workers[i];
        one->tasks = service->tasks;
        one->scratch.capacity = SHEAF_FRAME_BYTES_MAX((size_t)config->limits.chunk_bytes);
        one->scratch.data = malloc(one->scratch.capacity);
        if (one->scratch.data == NULL || pthread_create(&one->thread, NULL, work, one) != 0) {
            free(one->scratch.data);
            return sheaf_problem_set(problem, SHEAF_E_MEMORY, "cannot start worker %u", i);
        }
        service->worker_count++;
    }
    return SHEAF_OK;
}

static sheaf_status open_jobs(sheaf_service *service, sheaf_problem *problem) {
    const sheafd_config *config = service->config;
    const sheafd_job_config *jobs = config->jobs.items;
    service->jobs = calloc(config->jobs.count, sizeof(sheaf_job *));
    if (service->jobs == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the jobs");
    for (size_t i = 0; i < config->jobs.count; i++) {
        const sheaf_job_options options = {config, &jobs[i], service->signer, service->certificate, service->tasks};
        sheaf_status status = sheaf_job_open(&options, &service->jobs[i], problem);
        if (status != SHEAF_OK) return status;
        service->job_count++;
    }
    service->handlers =
        (sheaf_handlers){service->jobs, service->job_count, &service->refusals, (uint32_t)config->limits.chunk_bytes};
    return SHEAF_OK;
}

/* Where scripts and people find the port that was chosen; written anew at every start, so it is not synced. */
static sheaf_status write_address(const sheaf_service *service, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES], draft[SHEAF_PATH_BYTES];
    const char *url = sheaf_service_url(service), *state = service->config->server.state;
    int fd = -1;
    sheaf_status status = sheaf_path_join(path, state, "address", problem);
    if (status == SHEAF_OK) status = sheaf_path_join(draft, state, "address.new", problem);
    if (status == SHEAF_OK) status = sheaf_file_create(draft, 0644, &fd, problem);
    if (status != SHEAF_OK) return status;
    status = sheaf_file_write_at(fd, sheaf_span_of(url, strlen(url)), 0, draft, problem);
    close(fd);
    return status == SHEAF_OK ? sheaf_file_swap(draft, path, problem) : status;
}

/* Descriptors that the service needs beside connections: uploads, models, database, log, libraries. */
static uint64_t other_descriptors(const sheafd_config *config) {
    return 64 + config->jobs.count * ((uint64_t)config->limits.uploads + 8) + config->server.workers;
}

/* Connections that this process can hold without running out of descriptors for its own files; each connection may be
 * counted twice, before and after its handshake. Raises the soft limit first. */
static uint32_t connections_that_fit(const sheafd_config *config) {
    struct rlimit limit;
    uint64_t others = other_descriptors(config), wanted = others + 2 * (uint64_t)config->limits.connections;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return config->limits.connections;
    if (limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= wanted) return config->limits.connections;
    uint64_t fit = limit.rlim_cur > others + 2 ? (limit.rlim_cur - others) / 2 : 1;
    sheaf_log(SHEAF_LOG_WARNING, "connections_limited",
              "wanted=%u fit=%llu advice=\"raise the limit of open files (LimitNOFILE, ulimit -n) to %llu\"",
              config->limits.connections, (unsigned long long)fit, (unsigned long long)wanted);
    return (uint32_t)fit;
}

static sheaf_status listen_for_devices(sheaf_service *service, sheaf_problem *problem) {
    const sheafd_config *config = service->config;
    service->carrier = sheaf_transport_for(config->server.listen);
    if (service->carrier == NULL) {
        return sheaf_problem_set(problem, SHEAF_E_CONFIG,
                                 "%s: server.listen: '%s' is no address we can listen on; expected tls+tcp://HOST:PORT",
                                 sheaf_config_where(config->source, "server.listen"), config->server.listen);
    }
    const sheaf_transport_options options = {.url = config->server.listen,
                                             .tls = {.certificate_path = config->server.certificate,
                                                     .key_path = config->server.key,
                                                     .ca_path = config->server.ca,
                                                     .tls12_profile = config->server.tls12_profile},
                                             .frame_bytes_max =
                                                 (uint32_t)SHEAF_FRAME_BYTES_MAX(config->limits.chunk_bytes),
                                             .handshake_ms = config->limits.handshake_ms,
                                             .exchanges_max = config->limits.exchanges,
                                             .connections_max = connections_that_fit(config)};
    sheaf_status status =
        service->carrier->open_server(&options, on_request, on_reject, service, &service->server, problem);
    return status == SHEAF_OK ? write_address(service, problem) : status;
}

/* Two services on one state would each release the same rounds. */
static sheaf_status take_state(sheaf_service *service, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    const char *state = service->config->server.state;
    sheaf_status status = sheaf_file_make_folder(state, problem);
    if (status == SHEAF_OK) status = sheaf_path_join(path, state, "lock", problem);
    if (status == SHEAF_OK) status = sheaf_file_lock(path, &service->lock, problem);
    if (status == SHEAF_E_EXISTS)
        return sheaf_problem_set(problem, status, "server.state: %s: another sheafd works in this folder", state);
    return status;
}

sheaf_status sheaf_service_open(const sheafd_config *config, sheaf_service **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_service *service = calloc(1, sizeof *service);
    if (service == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the service");
    service->config = config;
    service->lock = -1;
    sheaf_status status = open_identity(service, problem);
    if (status == SHEAF_OK) status = take_state(service, problem);
    if (status == SHEAF_OK) status = open_workers(service, problem);
    if (status == SHEAF_OK) status = open_jobs(service, problem);
    if (status == SHEAF_OK) status = listen_for_devices(service, problem);
    if (status == SHEAF_OK)
        *out = service;
    else
        sheaf_service_close(service);
    return status;
}

const char *sheaf_service_url(const sheaf_service *service) { return service->carrier->server_url(service->server); }

sheaf_status sheaf_service_jobs_ended(const sheaf_service *service) {
    sheaf_status worst = SHEAF_OK;
    for (size_t i = 0; i < service->job_count; i++) {
        sheaf_status ended = sheaf_job_ended(service->jobs[i]);
        if (ended == SHEAF_AGAIN) return SHEAF_AGAIN;
        if (worst == SHEAF_OK) worst = ended;
    }
    return worst;
}

int sheaf_service_everyone_knows(const sheaf_service *service) {
    for (size_t i = 0; i < service->job_count; i++) {
        if (!sheaf_job_everyone_knows(service->jobs[i])) return 0;
    }
    return 1;
}

void sheaf_service_keep_refusals(sheaf_service *service) {
    sheaf_refusals_written written;
    char path[SHEAF_PATH_BYTES];
    sheaf_database *database = NULL;
    sheaf_problem problem;
    if (sheaf_refusals_total(&service->refusals) == 0) return;
    sheaf_status status = sheaf_path_join(path, service->config->server.state, "state.db", &problem);
    if (status == SHEAF_OK) status = sheaf_database_open(path, &database, &problem);
    if (status == SHEAF_OK) status = sheaf_refusals_write(&service->refusals, database, 0, 0, &written, &problem);
    if (status == SHEAF_OK) sheaf_refusals_forget(&service->refusals, &written);
    if (status != SHEAF_OK) sheaf_log(SHEAF_LOG_WARNING, "refusals_not_kept", "reason=\"%s\"", problem.text);
    sheaf_database_close(database);
}

/* From the outside in: no new requests, then no work, then no jobs. */
void sheaf_service_close(sheaf_service *service) {
    if (service == NULL) return;
    if (service->server != NULL) service->carrier->stop_server(service->server);
    if (service->tasks != NULL) sheaf_queue_close(service->tasks);
    for (uint32_t i = 0; i < service->worker_count; i++) {
        (void)pthread_join(service->workers[i].thread, NULL);
        free(service->workers[i].scratch.data);
    }
    for (size_t i = 0; i < service->job_count; i++) sheaf_job_close(service->jobs[i]);
    if (service->job_count > 0) sheaf_service_keep_refusals(service);
    free(service->jobs);
    free(service->workers);
    sheaf_queue_free(service->tasks);
    sheaf_request_pool_free(service->pool);
    sheaf_signer_free(service->signer);
    sheaf_certificate_unref(service->certificate);
    if (service->lock >= 0) close(service->lock);
    free(service);
}
