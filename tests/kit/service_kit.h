/* service_kit.h - a whole service in this process over the in-process carrier, and devices that say whatever a test
 * wants.
 *
 * The devices here are not our client: they build frames and statements by hand, so that they can also lie.
 *
 * Owner:   the kit owns its folder, certificates and service; devices belong to the test.
 * Threads: one test thread; the service has its own.
 * Errors:  a kit that fails ends the test program with a message. */
#pragma once
#include "common/signer.h"
#include "common/transport/transport.h"
#include "proto/frame.h"
#include "proto/plan.h"
#include "proto/statement.h"
#include "server/service.h"
#include "tests/kit/broker_kit.h"
#include "tests/kit/pki_kit.h"

typedef struct {
    int workers;     /* set before start; 0: 2 */
    uint32_t values; /* set before start: of the model; 0: DEVICE_VALUES */
    /* set before start: an address for the service; NULL: one of the in-process carrier. mqtts:// is a broker's; without
     * host and port, that of a broker of the kit's own. */
    const char *address;
    /* set before start: this sheafd runs as a process of its own, and `service` stays NULL; stopping it is a kill -9. */
    const char *program;
    int process;
    pki_kit *pki;
    broker_kit *broker; /* NULL: none of its own */
    const char *folder; /* of the kit: service.yaml, initial.safetensors, state/ */
    char url[256];
    char config_path[1024];
    char state[1024];
    sheafd_config config;
    sheaf_service *service;
} service_kit;

/* A job acme/job over the model {"a": F32 [values]} = 1, 2, 3, 4 ... `job_yaml`: further keys of the job, each line indented by
 * four spaces; it must hold rounds and cohort. */
void service_kit_start(service_kit *kit, const char *job_yaml);
/* Writes the config anew, for the next start. */
void service_kit_configure(service_kit *kit, const char *job_yaml);
/* Stops the service and starts it again on the same state. */
void service_kit_restart(service_kit *kit);
void service_kit_stop_service(service_kit *kit);
void service_kit_stop(service_kit *kit);
/* Waits until all jobs have ended (at most 20 s) and returns how. */
sheaf_status service_kit_wait_end(service_kit *kit);
/* One number out of the state's database. */
long long service_kit_query(const service_kit *kit, const char *sql);
/* The four values of the newest released model. */
void service_kit_model(const service_kit *kit, float out[4]);

#define DEVICE_VALUES 4u

typedef struct {
    service_kit *kit;
    sheaf_link *link;
    const pki_kit_files *files;
    sheaf_signer *signer;
    sheaf_certificate *certificate;
    char tenant[SHEAF_NAME_BYTES], job[SHEAF_NAME_BYTES], name[SHEAF_NAME_BYTES];
    sheaf_round_statement round; /* of the last RoundOpen */
    sheaf_plan plan;
    uint8_t plan_digest[SHEAF_DIGEST_BYTES];
    sheaf_v1_Reply reply; /* the last one */
    sheaf_span payload;   /* of the last one */
    uint8_t frame[SHEAF_FRAME_BYTES_MAX(65536)], sent[SHEAF_FRAME_BYTES_MAX(65536)];
} device;

/* What an update says; device_update fills an honest one. */
typedef struct {
    sheaf_update_statement statement;
    uint8_t bytes[SHEAF_STATEMENT_BYTES_MAX];
    size_t size;
    uint8_t signature[80];
    size_t signature_size;
    uint8_t payload[4 * DEVICE_VALUES];
    size_t payload_size;
} update;

device *device_make(service_kit *kit, const char *name);
device *device_make_with(service_kit *kit, const char *role, const char *name, const pki_kit_options *options);
/* The same device on a second connection. */
device *device_twin(const device *other);
void device_free(device *self);
/* Sends and waits for the reply. */
void device_exchange(device *self, const sheaf_v1_Request *request, sheaf_span payload);
/* The same with any bytes as the frame; 0 when no reply could be read. */
int device_exchange_raw(device *self, sheaf_span frame);
sheaf_v1_Request device_request(const device *self);
/* RoundQuery until RoundOpen; returns 0 when the job has ended. Checks the aggregator's signature. */
int device_await_round(device *self);
/* One RoundQuery; returns which_body of the reply. */
pb_size_t device_ask_round(device *self, uint64_t last_round);
/* An honest update of the open round: the same difference for each value. */
void device_update(device *self, float difference, int64_t weight, update *out);
/* Encodes and signs the statement again after a change. */
void device_sign(device *self, update *u);
/* Offer; returns which_body. */
pb_size_t device_offer(device *self, const update *u);
pb_size_t device_chunk(device *self, const update *u, uint64_t offset, size_t size);
/* Offer and all chunks until Receipt or Refusal. */
pb_size_t device_send(device *self, const update *u);
/* The status of the last refusal or wait. */
sheaf_status device_told(const device *self);
