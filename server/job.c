#include "server/job.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/log.h"

struct sheaf_job {
    sheaf_job_options options;
    char folder[SHEAF_PATH_BYTES];
    sheaf_database *database;
    sheaf_spool spool;
    sheaf_uploads *uploads;
    sheaf_refusals refusals;
    sheaf_shelf shelf;
    sheaf_queue *events; /* of sheaf_request; one for each exchange fits */
    _Atomic uint64_t moved_ns;
    _Atomic int ended;
    _Atomic int everyone_knows;
    pthread_mutex_t view_lock; /* guards the next two */
    sheaf_round_view view;
    sheaf_job_order *orders;      /* given and not yet carried out, oldest first */
    pthread_mutex_t readers_lock; /* guards the next two */
    sheaf_cohort *readers;        /* how far each device has fetched the version below */
    uint8_t read_version[SHEAF_DIGEST_BYTES];
    pthread_mutex_t casters_lock; /* guards the next two */
    struct {
        const sheaf_end *end;
        sheaf_caster *caster;
    } casters[SHEAF_ENDS_MAX];
    int casts_stopped;
    sheaf_round *round;
    sheaf_buffer scratch;
    pthread_t thread;
    int running;
};

/* Everything that has come in since the last look, up to one batch. */
static size_t collect(sheaf_job *job, sheaf_request **batch, uint64_t deadline_ns) {
    size_t count = 0;
    sheaf_request *request = sheaf_queue_pop(job->events, deadline_ns);
    while (request != NULL) {
        batch[count++] = request;
        request = count < SHEAF_ROUND_BATCH ? sheaf_queue_try_pop(job->events) : NULL;
    }
    return count;
}

static void show(sheaf_job *job) {
    pthread_mutex_lock(&job->view_lock);
    sheaf_round_look(job->round, &job->view);
    pthread_mutex_unlock(&job->view_lock);
}

static sheaf_job_order *next_order(sheaf_job *job) {
    pthread_mutex_lock(&job->view_lock);
    sheaf_job_order *order = job->orders;
    if (order != NULL) job->orders = order->next;
    pthread_mutex_unlock(&job->view_lock);
    return order;
}

/* Each is shown in the view before whoever gave it hears that it is done. */
static void carry_out_orders(sheaf_job *job) {
    for (sheaf_job_order *order = next_order(job); order != NULL; order = next_order(job)) {
        order->status = sheaf_round_order(job->round, order->kind, &order->problem);
        (void)sheaf_round_settle(job->round);
        show(job);
        sheaf_round_look(job->round, &order->view);
        atomic_store(&order->done, 1); /* last: it is the giver's from here on */
    }
}

static void *run(void *context) {
    sheaf_job *job = context;
    sheaf_request *batch[SHEAF_ROUND_BATCH];
    while (!sheaf_queue_closed(job->events)) {
        carry_out_orders(job);
        uint64_t deadline_ns = sheaf_round_settle(job->round);
        show(job);
        atomic_store(&job->ended, (int)sheaf_round_job_ended(job->round));
        atomic_store(&job->everyone_knows, sheaf_round_everyone_knows(job->round));
        size_t count = collect(job, batch, deadline_ns);
        sheaf_round_handle(job->round, batch, count, &job->scratch);
    }
    carry_out_orders(job);
    return NULL;
}

static sheaf_status make_folder(sheaf_job *job, sheaf_problem *problem) {
    char tenant[SHEAF_PATH_BYTES];
    sheaf_status status =
        sheaf_path_join(tenant, job->options.service->server.state, job->options.config->tenant, problem);
    if (status == SHEAF_OK) status = sheaf_path_join(job->folder, tenant, job->options.config->name, problem);
    return status == SHEAF_OK ? sheaf_file_make_folder(job->folder, problem) : status;
}

static sheaf_status open_stores(sheaf_job *job, sheaf_problem *problem) {
    const sheafd_config *service = job->options.service;
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = make_folder(job, problem);
    if (status == SHEAF_OK) status = sheaf_path_join(path, service->server.state, "state.db", problem);
    if (status == SHEAF_OK) status = sheaf_database_open(path, &job->database, problem);
    if (status == SHEAF_OK) status = sheaf_spool_open(&job->spool, job->folder, problem);
    if (status != SHEAF_OK) return status;
    const sheaf_uploads_options uploads = {&job->spool, service->limits.uploads, service->limits.spool_bytes};
    status = sheaf_uploads_make(&uploads, &job->uploads);
    if (status == SHEAF_OK) status = sheaf_cohort_make(job->options.config->cohort.maximum, &job->readers);
    if (status == SHEAF_OK) status = sheaf_queue_make(service->limits.exchanges, &job->events);
    job->scratch.capacity = SHEAF_FRAME_BYTES_MAX((size_t)service->limits.chunk_bytes);
    job->scratch.data = malloc(job->scratch.capacity);
    if (status != SHEAF_OK || job->scratch.data == NULL)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the job's tables");
    return SHEAF_OK;
}

static sheaf_status check_space(const sheaf_job *job, sheaf_problem *problem) {
    sheaf_shelf *shelf = (sheaf_shelf *)&job->shelf;
    sheaf_version *version = sheaf_shelf_take(shelf);
    uint64_t payload = 4 * version->model.elements, cohort = job->options.config->cohort.maximum;
    sheaf_shelf_drop(shelf, version);
    uint64_t limit = job->options.service->limits.spool_bytes;
    if (payload <= limit / cohort) return SHEAF_OK;
    return sheaf_problem_set(
        problem, SHEAF_E_CONFIG,
        "%llu updates of %llu bytes may not fit limits.spool_bytes = %llu; raise it or lower cohort.maximum",
        (unsigned long long)cohort, (unsigned long long)payload, (unsigned long long)limit);
}

static sheaf_status start(sheaf_job *job, sheaf_problem *problem) {
    const sheaf_round_parts parts = {.config = job->options.config,
                                     .folder = job->folder,
                                     .model_bytes_max = job->options.service->limits.model_bytes,
                                     .client_payloads_max = job->options.service->limits.client_uploads,
                                     .database = job->database,
                                     .credentials = job->options.credentials,
                                     .spool = &job->spool,
                                     .uploads = job->uploads,
                                     .refusals = &job->refusals,
                                     .shelf = &job->shelf,
                                     .workers = job->options.workers,
                                     .events = job->events,
                                     .moved_ns = &job->moved_ns};
    sheaf_status status = sheaf_round_start(&parts, &job->round, problem);
    if (status == SHEAF_OK) status = check_space(job, problem);
    if (status != SHEAF_OK) return status;
    show(job);
    if (pthread_create(&job->thread, NULL, run, job) != 0)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "cannot start a thread");
    job->running = 1;
    return SHEAF_OK;
}

sheaf_status sheaf_job_open(const sheaf_job_options *options, sheaf_job **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_job *job = calloc(1, sizeof *job);
    if (job == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a job");
    job->options = *options;
    atomic_init(&job->ended, SHEAF_AGAIN);
    sheaf_shelf_init(&job->shelf);
    pthread_mutex_init(&job->readers_lock, NULL);
    pthread_mutex_init(&job->view_lock, NULL);
    pthread_mutex_init(&job->casters_lock, NULL);
    sheaf_status status = open_stores(job, problem);
    if (status == SHEAF_OK) status = start(job, problem);
    if (status == SHEAF_OK) {
        *out = job;
        return SHEAF_OK;
    }
    (void)sheaf_problem_prefix(problem, "job %s/%s", options->config->tenant, options->config->name);
    sheaf_job_close(job);
    return status;
}

void sheaf_job_close(sheaf_job *job) {
    if (job == NULL) return;
    if (job->running) {
        sheaf_queue_close(job->events);
        (void)pthread_join(job->thread, NULL);
    }
    sheaf_job_stop_casts(job);
    for (size_t i = 0; i < SHEAF_ENDS_MAX; i++) sheaf_caster_free(job->casters[i].caster);
    sheaf_round_stop(job->round);
    sheaf_uploads_free(job->uploads);
    sheaf_queue_free(job->events);
    sheaf_shelf_fini(&job->shelf);
    sheaf_cohort_free(job->readers);
    pthread_mutex_destroy(&job->readers_lock);
    pthread_mutex_destroy(&job->view_lock);
    pthread_mutex_destroy(&job->casters_lock);
    sheaf_database_close(job->database);
    free(job->scratch.data);
    free(job);
}

void sheaf_job_post(sheaf_job *job, sheaf_request *request) { sheaf_queue_push(job->events, request); }
void sheaf_job_wake(sheaf_job *job) { sheaf_queue_wake(job->events); }

void sheaf_job_give_order(sheaf_job *job, sheaf_job_order *order) {
    order->next = NULL;
    pthread_mutex_lock(&job->view_lock);
    sheaf_job_order **at = &job->orders;
    while (*at != NULL) at = &(*at)->next;
    *at = order;
    pthread_mutex_unlock(&job->view_lock);
    sheaf_queue_wake(job->events);
}

void sheaf_job_look(sheaf_job *job, sheaf_round_view *out) {
    pthread_mutex_lock(&job->view_lock);
    *out = job->view;
    pthread_mutex_unlock(&job->view_lock);
}

const char *sheaf_job_status_name(sheaf_status ended, int paused) {
    if (ended == SHEAF_AGAIN) return paused ? "paused" : "running";
    return ended == SHEAF_OK ? "finished" : sheaf_status_name(ended);
}

const sheafd_job_config *sheaf_job_config_of(const sheaf_job *job) { return job->options.config; }
sheaf_shelf *sheaf_job_shelf(sheaf_job *job) { return &job->shelf; }
sheaf_uploads *sheaf_job_uploads(sheaf_job *job) { return job->uploads; }
sheaf_refusals *sheaf_job_refusals(sheaf_job *job) { return &job->refusals; }
void sheaf_job_moved(sheaf_job *job) { atomic_store(&job->moved_ns, sheaf_now_ns()); }
void sheaf_job_fetched(sheaf_job *job, const char *client, const sheaf_version *version, uint64_t offset) {
    uint64_t total = version->model.stream_bytes;
    uint32_t permille = total == 0 ? 1000 : (uint32_t)((double)offset / (double)total * 1000.0);
    sheaf_member *reader = NULL;
    pthread_mutex_lock(&job->readers_lock);
    if (memcmp(job->read_version, version->digest, SHEAF_DIGEST_BYTES) != 0) {
        memcpy(job->read_version, version->digest, SHEAF_DIGEST_BYTES);
        sheaf_cohort_clear(job->readers);
    }
    int further = sheaf_cohort_admit(job->readers, client, &reader) == SHEAF_OK && permille > reader->done_permille;
    if (further) reader->done_permille = permille;
    pthread_mutex_unlock(&job->readers_lock);
    if (further) sheaf_job_moved(job);
}

static sheaf_caster *make_caster(sheaf_job *job, const sheaf_end *end) {
    const sheaf_caster_options options = {.carrier = end->carrier,
                                          .server = &end->server,
                                          .shelf = &job->shelf,
                                          .job = job->options.config->name,
                                          .enough = job->options.config->cohort.target,
                                          .devices_max = job->options.config->cohort.maximum,
                                          .part_bytes = (uint32_t)job->options.service->limits.chunk_bytes,
                                          .moved_ns = &job->moved_ns};
    sheaf_caster *caster = NULL;
    return sheaf_caster_make(&options, &caster) == SHEAF_OK ? caster : NULL;
}

sheaf_caster *sheaf_job_caster(sheaf_job *job, const sheaf_end *end) {
    sheaf_caster *found = NULL;
    if (end->carrier->cast == NULL) return NULL;
    pthread_mutex_lock(&job->casters_lock);
    for (size_t i = 0; i < SHEAF_ENDS_MAX && found == NULL && !job->casts_stopped; i++) {
        if (job->casters[i].end == NULL) {
            job->casters[i].caster = make_caster(job, end);
            if (job->casters[i].caster == NULL) break;
            job->casters[i].end = end;
        }
        if (job->casters[i].end == end) found = job->casters[i].caster;
    }
    pthread_mutex_unlock(&job->casters_lock);
    return found;
}

void sheaf_job_renew_casts(sheaf_job *job) {
    pthread_mutex_lock(&job->casters_lock);
    for (size_t i = 0; i < SHEAF_ENDS_MAX; i++) {
        if (job->casters[i].caster != NULL) sheaf_caster_renew(job->casters[i].caster);
    }
    pthread_mutex_unlock(&job->casters_lock);
}

/* Workers may still ask a caster that they have found: it answers, but its thread is gone. They are freed with the job. */
void sheaf_job_stop_casts(sheaf_job *job) {
    pthread_mutex_lock(&job->casters_lock);
    job->casts_stopped = 1;
    for (size_t i = 0; i < SHEAF_ENDS_MAX; i++) {
        if (job->casters[i].caster != NULL) sheaf_caster_stop(job->casters[i].caster);
    }
    pthread_mutex_unlock(&job->casters_lock);
}

uint64_t sheaf_job_cast_bytes(sheaf_job *job) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&job->casters_lock);
    for (size_t i = 0; i < SHEAF_ENDS_MAX; i++) {
        if (job->casters[i].caster != NULL) bytes += sheaf_caster_bytes(job->casters[i].caster);
    }
    pthread_mutex_unlock(&job->casters_lock);
    return bytes;
}

sheaf_status sheaf_job_ended(sheaf_job *job) { return (sheaf_status)atomic_load(&job->ended); }
int sheaf_job_everyone_knows(sheaf_job *job) { return atomic_load(&job->everyone_knows); }

sheaf_status sheaf_job_validate(sheaf_job *job, const char *payload_type, sheaf_span payload, sheaf_problem *problem) {
    return sheaf_round_validate(job->round, payload_type, payload, problem);
}
