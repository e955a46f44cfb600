#include "server/service.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/log.h"
#include "server/ends.h"
#include "server/guard.h"
#include "server/handle.h"
#include "server/job.h"
#include "server/operator/operator.h"

typedef struct {
    pthread_t thread;
    sheaf_queue *tasks;
    sheaf_buffer scratch; /* one frame */
} worker;

struct sheaf_service {
    const sheafd_config *config;
    sheaf_handlers handlers; /* what workers see */
    int lock;                /* on the state folder */
    sheaf_guard guard;       /* who we are and whom we believe */
    sheaf_ends ends;
    sheaf_request_pool *pool;
    sheaf_queue *tasks; /* of sheaf_task: requests, and additions of all jobs */
    sheaf_clients *clients;
    sheaf_operator *operator;
    _Atomic int look_again; /* an operator wants the files of certificates looked at now */
    sheaf_quota *quota;
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
    const sheaf_quota_limits quota = {config->limits.client_requests_per_s, config->limits.client_bytes_per_s,
                                      config->limits.client_in_flight_bytes};
    if (sheaf_quota_make(&quota, &service->quota) != SHEAF_OK)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the quotas");
    const sheafd_job_config *jobs = config->jobs.items;
    service->jobs = calloc(config->jobs.count, sizeof(sheaf_job *));
    if (service->jobs == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the jobs");
    for (size_t i = 0; i < config->jobs.count; i++) {
        const sheaf_job_options options = {config, &jobs[i], service->guard.credentials, service->tasks};
        sheaf_status status = sheaf_job_open(&options, &service->jobs[i], problem);
        if (status != SHEAF_OK) return status;
        service->job_count++;
    }
    service->handlers = (sheaf_handlers){service->jobs,        service->job_count,
                                         &service->refusals,   (uint32_t)config->limits.chunk_bytes,
                                         service->guard.trust, service->quota};
    return SHEAF_OK;
}

static sheaf_status open_ends(sheaf_service *service, sheaf_problem *problem) {
    service->ends.sink =
        (sheaf_ends_sink){&service->handlers, &service->refusals, service->clients,     service->pool,
                          service->tasks,     service->config,    service->guard.trust, service->guard.credentials};
    return sheaf_ends_open(&service->ends, problem);
}

static void look_again(void *context) {
    sheaf_service *service = context;
    atomic_store(&service->look_again, 1);
}

static sheaf_status open_operator(sheaf_service *service, sheaf_problem *problem) {
    const sheaf_operator_options options = {.config = service->config,
                                            .jobs = service->jobs,
                                            .job_count = service->job_count,
                                            .refusals = &service->refusals,
                                            .clients = service->clients,
                                            .quota = service->quota,
                                            .ends = &service->ends,
                                            .trust = service->guard.trust,
                                            .credentials = service->guard.credentials,
                                            .look_again = look_again,
                                            .context = service};
    return sheaf_operator_open(&options, &service->operator, problem);
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
    sheaf_status status = sheaf_guard_open(config, &service->guard, problem);
    if (status == SHEAF_OK) status = take_state(service, problem);
    if (status == SHEAF_OK) status = open_workers(service, problem);
    if (status == SHEAF_OK && sheaf_clients_make(&service->clients) != SHEAF_OK)
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the table of clients");
    if (status == SHEAF_OK) status = open_jobs(service, problem);
    if (status == SHEAF_OK) status = open_operator(service, problem);
    if (status == SHEAF_OK) status = open_ends(service, problem);
    if (status == SHEAF_OK)
        *out = service;
    else
        sheaf_service_close(service);
    return status;
}

const char *sheaf_service_url(const sheaf_service *service) { return sheaf_ends_url(&service->ends, 0); }

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

void sheaf_service_watch(sheaf_service *service, int now) {
    now = atomic_exchange(&service->look_again, 0) || now;
    sheaf_guard_watch(&service->guard, &service->ends, service->jobs, service->job_count, now);
}

struct sheaf_trust *sheaf_service_trust(const sheaf_service *service) {
    return service->guard.trust;
}

/* From the outside in: no new requests, then no work, then no jobs. */
void sheaf_service_close(sheaf_service *service) {
    if (service == NULL) return;
    sheaf_operator_close(service->operator);
    for (size_t i = 0; i < service->job_count; i++) sheaf_job_stop_casts(service->jobs[i]);
    sheaf_ends_close(&service->ends);
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
    sheaf_quota_free(service->quota);
    sheaf_clients_free(service->clients);
    sheaf_guard_close(&service->guard);
    if (service->lock >= 0) close(service->lock);
    free(service);
}
