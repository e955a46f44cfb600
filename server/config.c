#include "server/config.h"

#include <stdio.h>

static const char *const encodings[] = {"f32", NULL};
static const char *const crl_policies[] = {"accept", "refuse", NULL}; /* sheaf_crl_policy */

#define JOB(member) offsetof(sheafd_job_config, member)
static const sheaf_config_field cohort_fields[] = {
    {.key = "minimum",
     .kind = SHEAF_CONFIG_U32,
     .offset = 0,
     .required = 1,
     .minimum = 1,
     .maximum = 1000000,
     .help = "Fewest accepted updates with which a round may be released."},
    {.key = "target",
     .kind = SHEAF_CONFIG_U32,
     .offset = 4,
     .required = 1,
     .minimum = 1,
     .maximum = 1000000,
     .help = "The round is reduced as soon as so many updates are accepted."},
    {.key = "maximum",
     .kind = SHEAF_CONFIG_U32,
     .offset = 8,
     .required = 1,
     .minimum = 1,
     .maximum = 1000000,
     .help = "Most devices that a round admits."},
    {0},
};
#define PLAN(member) (offsetof(sheafd_job_config, plan.member) - offsetof(sheafd_job_config, plan))
static const sheaf_config_field plan_fields[] = {
    {.key = "epochs",
     .kind = SHEAF_CONFIG_U32,
     .offset = PLAN(epochs),
     .preset = "1",
     .minimum = 1,
     .maximum = 10000,
     .help = "Passes over the local examples."},
    {.key = "batch",
     .kind = SHEAF_CONFIG_U32,
     .offset = PLAN(batch),
     .preset = "32",
     .minimum = 1,
     .maximum = 1000000,
     .help = "Examples per step."},
    {.key = "learning_rate",
     .kind = SHEAF_CONFIG_F64,
     .offset = PLAN(learning_rate),
     .required = 1,
     .minimum = 1e-12,
     .maximum = 1e6,
     .help = "Step size of SGD."},
    {.key = "momentum",
     .kind = SHEAF_CONFIG_F64,
     .offset = PLAN(momentum),
     .preset = "0",
     .minimum = 0,
     .maximum = 0.9999,
     .help = "Momentum of SGD."},
    {.key = "seed",
     .kind = SHEAF_CONFIG_U64,
     .offset = PLAN(seed),
     .preset = "0",
     .help = "Seed from which each device derives its own for each round."},
    {.key = "encoding",
     .kind = SHEAF_CONFIG_CHOICE,
     .offset = PLAN(encoding),
     .preset = "f32",
     .choices = encodings,
     .help = "How updates are encoded."},
    {0},
};
#define RETAIN(member) (offsetof(sheafd_job_config, retain.member) - offsetof(sheafd_job_config, retain))
static const sheaf_config_field retain_fields[] = {
    {.key = "payload_rounds",
     .kind = SHEAF_CONFIG_U32,
     .offset = RETAIN(payload_rounds),
     .preset = "1",
     .help = "Released rounds whose payloads stay on disk, for audit and recomputation."},
    {.key = "models",
     .kind = SHEAF_CONFIG_U32,
     .offset = RETAIN(models),
     .preset = "0",
     .help = "Newest model versions that stay on disk; 0 keeps all."},
    {0},
};
static const sheaf_config_field job_fields[] = {
    {.key = "tenant",
     .kind = SHEAF_CONFIG_NAME,
     .offset = JOB(tenant),
     .required = 1,
     .help = "Who owns the job; O of its devices' certificates."},
    {.key = "name",
     .kind = SHEAF_CONFIG_NAME,
     .offset = JOB(name),
     .required = 1,
     .help = "Name of the job, unique within its tenant."},
    {.key = "initial_model",
     .kind = SHEAF_CONFIG_PATH,
     .offset = JOB(initial_model),
     .required = 1,
     .help = "safetensors file with F32 tensors; read once, when the job is created."},
    {.key = "rounds",
     .kind = SHEAF_CONFIG_U32,
     .offset = JOB(rounds),
     .required = 1,
     .minimum = 1,
     .maximum = 1000000,
     .help = "Rounds to release before the job ends."},
    {.key = "attempts_max",
     .kind = SHEAF_CONFIG_U32,
     .offset = JOB(attempts_max),
     .preset = "10",
     .minimum = 1,
     .maximum = 1000000,
     .help = "A round that fails so often in a row ends the job."},
    {.key = "cohort",
     .kind = SHEAF_CONFIG_MAP,
     .offset = JOB(cohort),
     .required = 1,
     .fields = cohort_fields,
     .help = "How many devices take part."},
    {.key = "plan",
     .kind = SHEAF_CONFIG_MAP,
     .offset = JOB(plan),
     .required = 1,
     .fields = plan_fields,
     .help = "What a device does in a round."},
    {.key = "weight_cap",
     .kind = SHEAF_CONFIG_I64,
     .offset = JOB(weight_cap),
     .preset = "1000000",
     .minimum = 1,
     .maximum = 1e12,
     .help = "Largest contribution weight of one update; devices cap theirs before they sign."},
    {.key = "fraction_bits",
     .kind = SHEAF_CONFIG_I64,
     .offset = JOB(fraction_bits),
     .preset = "24",
     .minimum = -125,
     .maximum = 126,
     .help = "Values are added as integers in units of 2^-fraction_bits."},
    {.key = "tensor_fraction_bits",
     .kind = SHEAF_CONFIG_PAIRS,
     .offset = JOB(tensor_fraction_bits),
     .minimum = -125,
     .maximum = 126,
     .help = "fraction_bits of single tensors, by name."},
    {.key = "regions",
     .kind = SHEAF_CONFIG_NAMES,
     .offset = JOB(regions),
     .preset = "[]",
     .help =
         "Regions (ST of the certificate) whose devices may take part; devices of others, or without one, hear nothing "
         "of the job. Empty: any."},
    {.key = "progress_s",
     .kind = SHEAF_CONFIG_U32,
     .offset = JOB(progress_s),
     .preset = "60",
     .minimum = 1,
     .maximum = 86400,
     .help = "A round in which nothing moves for so long is closed; a device that shows no progress for so long no "
             "longer counts as working."},
    {.key = "deadline_s",
     .kind = SHEAF_CONFIG_U32,
     .offset = JOB(deadline_s),
     .preset = "0",
     .maximum = 2592000,
     .help = "Longest time from the first device's arrival to the round's close; 0: none, progress alone decides."},
    {.key = "retain",
     .kind = SHEAF_CONFIG_MAP,
     .offset = JOB(retain),
     .fields = retain_fields,
     .help = "What stays on disk."},
    {0},
};

#define SERVER(member) (offsetof(sheafd_config, server.member) - offsetof(sheafd_config, server))
static const sheaf_config_field server_fields[] = {
    {.key = "listen",
     .kind = SHEAF_CONFIG_STRING,
     .offset = SERVER(listen),
     .preset = "tls+tcp://127.0.0.1:7443",
     .help =
         "Address to listen on over NNG; port 0 takes any free one (the file STATE/address tells which); '' for none."},
    {.key = "state",
     .kind = SHEAF_CONFIG_PATH,
     .offset = SERVER(state),
     .required = 1,
     .help = "Folder for the database, models and spools."},
    {.key = "certificate",
     .kind = SHEAF_CONFIG_PATH,
     .offset = SERVER(certificate),
     .required = 1,
     .help = "The aggregator's certificate, PEM."},
    {.key = "key",
     .kind = SHEAF_CONFIG_PATH,
     .offset = SERVER(key),
     .required = 1,
     .help = "Its private key: PEM, readable by its owner only, or a pkcs11: URI."},
    {.key = "ca",
     .kind = SHEAF_CONFIG_PATH,
     .offset = SERVER(ca),
     .required = 1,
     .help = "Authorities that devices must chain to: a PEM file or a folder of *.pem; read again when it changes."},
    {.key = "crl",
     .kind = SHEAF_CONFIG_PATH,
     .offset = SERVER(crl),
     .help = "Revocation lists: a PEM file, or a folder of *.pem and *.crl; every authority of a chain needs one. Read "
             "again when they change. Without this key nobody is revoked."},
    {.key = "crl_expired",
     .kind = SHEAF_CONFIG_CHOICE,
     .offset = SERVER(crl_expired),
     .preset = "accept",
     .choices = crl_policies,
     .help =
         "What becomes of peers when a list is past its nextUpdate; accept: they are accepted for crl_grace_s more, "
         "and an alarm is logged. What it revokes stays revoked."},
    {.key = "crl_grace_s",
     .kind = SHEAF_CONFIG_U32,
     .offset = SERVER(crl_grace_s),
     .preset = "604800",
     .help = "With crl_expired accept: so long after nextUpdate all are refused after all; 0: never."},
    {.key = "crl_warn_s",
     .kind = SHEAF_CONFIG_U32,
     .offset = SERVER(crl_warn_s),
     .preset = "86400",
     .help = "The alarm begins so long before a list's nextUpdate."},
    {.key = "tls12_profile",
     .kind = SHEAF_CONFIG_BOOL,
     .offset = SERVER(tls12_profile),
     .preset = "false",
     .help = "Also accept TLS 1.2 (P-256, AES-GCM), for small devices."},
    {.key = "workers",
     .kind = SHEAF_CONFIG_U32,
     .offset = SERVER(workers),
     .preset = "2",
     .minimum = 1,
     .maximum = 256,
     .help = "Threads that verify and add updates."},
    {.key = "exit_when_done",
     .kind = SHEAF_CONFIG_BOOL,
     .offset = SERVER(exit_when_done),
     .preset = "false",
     .help = "End the process when every job has ended and its devices know."},
    {0},
};
#define BROKER(member) (offsetof(sheafd_config, broker.member) - offsetof(sheafd_config, broker))
static const sheaf_config_field broker_fields[] = {
    {.key = "url",
     .kind = SHEAF_CONFIG_STRING,
     .offset = BROKER(url),
     .preset = "",
     .help = "MQTT broker through which devices are served too, mqtts://HOST:PORT; '' for none."},
    {.key = "topic_prefix",
     .kind = SHEAF_CONFIG_NAME,
     .offset = BROKER(topic_prefix),
     .preset = "sheaf",
     .help = "First level of all topics; devices must have the same."},
    {0},
};
static const sheaf_config_field operator_fields[] = {
    {.key = "listen",
     .kind = SHEAF_CONFIG_STRING,
     .offset = 0,
     .preset = "",
     .help = "Also serve operators and auditors over mutual TLS on https://HOST:PORT (port 0: any free one; the file "
             "STATE/operator.address tells which); '' for only the socket STATE/operator.sock."},
    {0},
};
#define ENROLMENT(member) (offsetof(sheafd_config, enrolment.member) - offsetof(sheafd_config, enrolment))
static const sheaf_config_field enrolment_fields[] = {
    {.key = "authority",
     .kind = SHEAF_CONFIG_PATH,
     .offset = ENROLMENT(authority),
     .help =
         "Folder of the authority that enrols devices over operator.listen (EST, RFC 7030). Without this key nobody "
         "is enrolled here."},
    {.key = "days",
     .kind = SHEAF_CONFIG_U32,
     .offset = ENROLMENT(days),
     .preset = "365",
     .minimum = 1,
     .maximum = 36500,
     .help = "Validity of a certificate that follows another; of the first one, its token decides."},
    {0},
};
#define LIMIT(member) (offsetof(sheafd_config, limits.member) - offsetof(sheafd_config, limits))
static const sheaf_config_field limit_fields[] = {
    {.key = "chunk_bytes",
     .kind = SHEAF_CONFIG_BYTES,
     .offset = LIMIT(chunk_bytes),
     .preset = "256KiB",
     .minimum = 1024,
     .maximum = 16777216,
     .help = "Bulk bytes in one frame."},
    {.key = "spool_bytes",
     .kind = SHEAF_CONFIG_BYTES,
     .offset = LIMIT(spool_bytes),
     .preset = "16GiB",
     .minimum = 1024,
     .help = "Most bytes that the payloads of one round of a job may take; a job that could need more is refused."},
    {.key = "model_bytes",
     .kind = SHEAF_CONFIG_BYTES,
     .offset = LIMIT(model_bytes),
     .preset = "4GiB",
     .minimum = 1024,
     .help = "Largest model file."},
    {.key = "exchanges",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(exchanges),
     .preset = "64",
     .minimum = 1,
     .maximum = 4096,
     .help = "Requests in work at a time; each takes one frame of memory."},
    {.key = "connections",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(connections),
     .preset = "1024",
     .minimum = 1,
     .maximum = 100000,
     .help = "Open connections; further devices are asked to come later."},
    {.key = "uploads",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(uploads),
     .preset = "256",
     .minimum = 1,
     .maximum = 100000,
     .help = "Unfinished uploads of a job; further devices are asked to wait."},
    {.key = "handshake_ms",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(handshake_ms),
     .preset = "10000",
     .minimum = 100,
     .maximum = 600000,
     .help = "A connection that has not finished its handshake by then is cut."},
    {.key = "client_requests_per_s",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(client_requests_per_s),
     .preset = "20000",
     .help = "Requests of one device in a second, and twice as many at once; more are asked to wait. 0: any number."},
    {.key = "client_bytes_per_s",
     .kind = SHEAF_CONFIG_BYTES,
     .offset = LIMIT(client_bytes_per_s),
     .preset = "0",
     .help = "Bytes that one device may send in a second, and twice as many at once; more are asked to wait. 0: any "
             "number."},
    {.key = "client_in_flight_bytes",
     .kind = SHEAF_CONFIG_BYTES,
     .offset = LIMIT(client_in_flight_bytes),
     .preset = "64MiB",
     .help =
         "Bytes of one device's requests in work at a time, over all its connections; one request alone is always let "
         "in. 0: any number."},
    {.key = "client_uploads",
     .kind = SHEAF_CONFIG_U32,
     .offset = LIMIT(client_uploads),
     .preset = "32",
     .minimum = 1,
     .maximum = 1000000,
     .help = "Different payloads that one device may begin to send in a round; an honest one has one."},
    {0},
};
static const sheaf_config_field top_fields[] = {
    {.key = "server",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(sheafd_config, server),
     .required = 1,
     .fields = server_fields,
     .help = "The service."},
    {.key = "broker",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(sheafd_config, broker),
     .fields = broker_fields,
     .help = "The MQTT carrier."},
    {.key = "operator",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(sheafd_config, operator),
     .fields = operator_fields,
     .help = "The channel for people and their tools."},
    {.key = "enrolment",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(sheafd_config, enrolment),
     .fields = enrolment_fields,
     .help = "Certificates for new devices."},
    {.key = "limits",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(sheafd_config, limits),
     .fields = limit_fields,
     .help = "Everything has one."},
    {.key = "log",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(sheafd_config, log),
     .fields = sheaf_log_config_fields,
     .help = "What is told about it."},
    {.key = "jobs",
     .kind = SHEAF_CONFIG_LIST,
     .offset = offsetof(sheafd_config, jobs),
     .required = 1,
     .minimum = 1,
     .maximum = 1024,
     .fields = job_fields,
     .item_bytes = sizeof(sheafd_job_config),
     .help = "The training tasks that are served."},
    {0},
};

/* What the table cannot say: relations between keys. */
static sheaf_status check_job(const sheafd_config *config, size_t index, sheaf_problem *problem) {
    const sheafd_job_config *jobs = config->jobs.items;
    const sheafd_job_config *job = &jobs[index];
    char key[64];
    (void)snprintf(key, sizeof key, "jobs[%zu]", index);
    if (job->cohort.minimum > job->cohort.target || job->cohort.target > job->cohort.maximum) {
        return sheaf_problem_set(
            problem, SHEAF_E_CONFIG, "%s: %s.cohort: %u, %u, %u; expected minimum <= target <= maximum",
            sheaf_config_where(config->source, key), key, job->cohort.minimum, job->cohort.target, job->cohort.maximum);
    }
    for (size_t i = 0; i < index; i++) {
        if (strcmp(jobs[i].tenant, job->tenant) != 0 || strcmp(jobs[i].name, job->name) != 0) continue;
        return sheaf_problem_set(problem, SHEAF_E_CONFIG,
                                 "%s: %s: tenant '%s' already has a job '%s'; expected a name of its own",
                                 sheaf_config_where(config->source, key), key, job->tenant, job->name);
    }
    static const char *const taken[] = {"state.db",    "state.db-wal", "state.db-shm",  "state.db-journal", "address",
                                        "address.new", "lock",         "operator.sock", "operator.address"};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        if (strcmp(job->tenant, taken[i]) != 0) continue;
        return sheaf_problem_set(problem, SHEAF_E_CONFIG,
                                 "%s: %s.tenant: '%s' is a file of the state folder; expected another name",
                                 sheaf_config_where(config->source, key), key, job->tenant);
    }
    sheaf_plan plan = sheafd_job_plan(job);
    if (sheaf_plan_validate(&plan) != SHEAF_OK) {
        return sheaf_problem_set(problem, SHEAF_E_CONFIG, "%s: %s.plan: a value is outside float32 or its range",
                                 sheaf_config_where(config->source, key), key);
    }
    return SHEAF_OK;
}

static sheaf_status check_ends(const sheafd_config *config, sheaf_problem *problem) {
    if (config->server.listen[0] != '\0' || config->broker.url[0] != '\0') return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_CONFIG,
                             "%s: server.listen and broker.url are both empty; expected at least one address",
                             sheaf_config_where(config->source, "server.listen"));
}

static sheaf_status check_operator(const sheafd_config *config, sheaf_problem *problem) {
    if (config->enrolment.authority == NULL || config->operator.listen[0] != '\0') return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_CONFIG,
                             "%s: enrolment.authority: devices could not reach it; expected operator.listen too",
                             sheaf_config_where(config->source, "enrolment.authority"));
}

/* Waiting devices keep their connections, so a job needs one for each device of its target. */
static sheaf_status check_connections(const sheafd_config *config, sheaf_problem *problem) {
    const sheafd_job_config *jobs = config->jobs.items;
    uint64_t targets = 0;
    for (size_t i = 0; i < config->jobs.count; i++) targets += jobs[i].cohort.target;
    if (targets <= config->limits.connections) return SHEAF_OK;
    return sheaf_problem_set(
        problem, SHEAF_E_CONFIG,
        "%s: limits.connections: %u; expected at least %llu, the cohort.target of all jobs together",
        sheaf_config_where(config->source, "limits.connections"), config->limits.connections,
        (unsigned long long)targets);
}

sheaf_status sheafd_config_load(const char *path, sheafd_config *out, sheaf_problem *problem) {
    sheaf_config *source = NULL;
    sheaf_status status = sheaf_config_load(path, top_fields, out, sizeof *out, &source, problem);
    if (status != SHEAF_OK) return status;
    out->source = source;
    for (size_t i = 0; i < out->jobs.count && status == SHEAF_OK; i++) status = check_job(out, i, problem);
    if (status == SHEAF_OK) status = check_ends(out, problem);
    if (status == SHEAF_OK) status = check_operator(out, problem);
    if (status == SHEAF_OK) status = check_connections(out, problem);
    if (status != SHEAF_OK) sheafd_config_free(out);
    return status;
}

void sheafd_config_free(sheafd_config *config) {
    sheaf_config_free(config->source);
    memset(config, 0, sizeof *config);
}

void sheafd_config_print_reference(void *stream) { sheaf_config_print_reference(top_fields, stream); }

sheaf_plan sheafd_job_plan(const sheafd_job_config *job) {
    sheaf_plan plan = {.epochs = job->plan.epochs,
                       .batch = job->plan.batch,
                       .learning_rate = (float)job->plan.learning_rate,
                       .momentum = (float)job->plan.momentum,
                       .seed = job->plan.seed,
                       .weight_cap = job->weight_cap,
                       .progress_s = job->progress_s};
    (void)snprintf(plan.encoding, sizeof plan.encoding, "%s", encodings[job->plan.encoding]);
    return plan;
}
