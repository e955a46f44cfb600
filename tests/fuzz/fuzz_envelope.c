/* Every message of the envelope, at the end that reads it. The first byte chooses which; with its top bit the message gets
 * the right head, so that mutations reach what lies behind it. A proof in SESSION is sealed here as a hostile device
 * would seal it: what is fuzzed is its plain content. */
#include <assert.h>
#include <stdlib.h>

#include "common/transport/aggregator_session.h"
#include "common/transport/device_session.h"
#include "common/transport/handshake.h"
#include "tests/kit/pki_kit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define DEVICE "device-01"
#define ROOM   65536u

static pki_kit *kit;
static sheaf_certificate *certificates[2];
static sheaf_signer *signers[2];
static sheaf_session_party aggregator, device;

static sheaf_status believe(const sheaf_certificate *peer, void *context, sheaf_problem *problem) {
    (void)peer;
    (void)context;
    (void)problem;
    return SHEAF_OK;
}

static void end_kit(void) {
    for (size_t i = 0; i < 2; i++) {
        sheaf_certificate_unref(certificates[i]);
        sheaf_signer_free(signers[i]);
    }
    pki_kit_free(kit);
}

static void make_kit(void) {
    static const char *const roles[] = {"aggregator", "device"}, *const names[] = {"main", DEVICE};
    sheaf_session_party *parties[] = {&aggregator, &device};
    kit = pki_kit_make();
    for (size_t i = 0; i < 2; i++) {
        const pki_kit_files *files = pki_kit_issue(kit, roles[i], names[i], NULL);
        sheaf_status status = sheaf_certificate_from_pem_file(files->certificate, &certificates[i], NULL);
        if (status == SHEAF_OK) status = sheaf_signer_open(files->key, &signers[i], NULL);
        assert(status == SHEAF_OK);
        *parties[i] = (sheaf_session_party){certificates[i], signers[i], believe, NULL};
    }
    (void)atexit(end_kit);
}

/* One handshake, up to where a message is to be read. */
typedef struct {
    sheaf_device_session device;
    sheaf_session_challenge pending;
    sheaf_aggregator_session aggregator;
    uint8_t open[ROOM], challenge[ROOM], session[ROOM], accept[ROOM], out[ROOM];
    size_t open_size, challenge_size, session_size, accept_size;
    sheaf_problem problem;
} talk;

typedef enum { OPENED, CHALLENGED, PROVED, ADMITTED, READY } stage;

static void advance(talk *both, stage until) {
    sheaf_buffer open = {both->open, 0, ROOM}, challenge = {both->challenge, 0, ROOM},
                 session = {both->session, 0, ROOM}, accept = {both->accept, 0, ROOM};
    sheaf_status status = sheaf_device_session_open(&both->device, NULL, 0, &open);
    if (status == SHEAF_OK && until >= CHALLENGED)
        status = sheaf_session_challenge_make(&aggregator, DEVICE, sheaf_buffer_span(&open), &both->pending, &challenge,
                                              &both->problem);
    if (status == SHEAF_OK && until >= PROVED)
        status = sheaf_device_session_answer(&both->device, &device, "main", sheaf_buffer_span(&challenge), &session,
                                             &both->problem);
    if (status == SHEAF_OK && until >= ADMITTED)
        status = sheaf_aggregator_session_admit(&both->pending, &aggregator, DEVICE, sheaf_buffer_span(&session),
                                                &both->aggregator, &accept, &both->problem);
    if (status == SHEAF_OK && until >= READY)
        status = sheaf_device_session_accepted(&both->device, sheaf_buffer_span(&accept));
    assert(status == SHEAF_OK);
    both->session_size = session.size;
}

/* Puts the head that the reader expects before the rest. */
static sheaf_span with_head(uint8_t *message, size_t size, sheaf_envelope_kind kind, const uint8_t *id) {
    if (size >= SHEAF_ENVELOPE_HEAD_BYTES) {
        sheaf_writer writer = sheaf_writer_of(message, SHEAF_ENVELOPE_HEAD_BYTES);
        sheaf_envelope_write_head(&writer, kind, id);
    }
    return sheaf_span_of(message, size);
}

/* SESSION as a device would send it that knows the rules and breaks them in what it seals. */
static size_t seal_proof(talk *both, const uint8_t *proof, size_t size) {
    uint8_t info[SHEAF_HANDSHAKE_SIGNED_BYTES], enc[SHEAF_SEAL_PUBLIC_BYTES_MAX];
    sheaf_hpke hpke = {.kem = SHEAF_KEM_P256};
    size_t public_bytes = sheaf_kem_public_bytes(both->pending.pair.kem);
    sheaf_status status =
        sheaf_hpke_begin_sender(both->pending.pair.kem, sheaf_span_of(both->pending.pair.public_bytes, public_bytes),
                                sheaf_handshake_info(both->pending.transcript, info), NULL, enc, &hpke);
    sheaf_writer writer = sheaf_writer_of(both->session, ROOM);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_SESSION, both->pending.id);
    sheaf_write_bytes(&writer, both->pending.nonce, sizeof both->pending.nonce);
    sheaf_write_bytes(&writer, enc, public_bytes);
    if (status == SHEAF_OK)
        status = sheaf_aead_seal(&hpke.aead, 0, sheaf_writer_span(&writer), sheaf_span_of(proof, size),
                                 both->session + writer.position);
    assert(status == SHEAF_OK);
    sheaf_hpke_drop(&hpke);
    return writer.position + size + SHEAF_SEAL_TAG_BYTES;
}

static void read_one(talk *both, unsigned which, int headed, uint8_t *message, size_t size) {
    sheaf_buffer out = {both->out, 0, ROOM};
    sheaf_span said = sheaf_span_of(message, size);
    sheaf_envelope_head head;
    sheaf_status status = SHEAF_OK, reason;
    uint64_t number;
    switch (which) {
    case 0:
        status = sheaf_envelope_read_reject(said, &head, &reason);
        break;
    case 1:
        advance(both, OPENED);
        if (headed) said = with_head(message, size, SHEAF_ENVELOPE_CHALLENGE, both->device.id);
        status = sheaf_device_session_answer(&both->device, &device, "main", said, &out, &both->problem);
        assert(status != SHEAF_OK); /* nobody else can sign as this aggregator */
        break;
    case 2:
        advance(both, PROVED);
        if (headed) said = with_head(message, size, SHEAF_ENVELOPE_ACCEPT, both->device.id);
        status = sheaf_device_session_accepted(&both->device, said);
        assert(status != SHEAF_OK);
        break;
    case 3:
        advance(both, READY);
        if (headed) said = with_head(message, size, SHEAF_ENVELOPE_REPLY, both->device.id);
        status = sheaf_device_session_unseal(&both->device, said, &out, &number);
        assert(status != SHEAF_OK);
        break;
    case 4:
        status = sheaf_session_challenge_make(&aggregator, DEVICE, said, &both->pending, &out, &both->problem);
        break;
    case 5:
        advance(both, CHALLENGED);
        size = seal_proof(both, message, size);
        status = sheaf_aggregator_session_admit(&both->pending, &aggregator, DEVICE, sheaf_span_of(both->session, size),
                                                &both->aggregator, &out, &both->problem);
        assert(status != SHEAF_OK); /* nobody else can sign as this device */
        break;
    case 6:
        advance(both, READY);
        if (headed) said = with_head(message, size, SHEAF_ENVELOPE_DATA, both->aggregator.id);
        status = sheaf_aggregator_session_unseal(&both->aggregator, DEVICE, said, &out, &number);
        assert(status != SHEAF_OK);
        break;
    default:
        advance(both, ADMITTED);
        if (headed) said = with_head(message, size, SHEAF_ENVELOPE_SESSION, both->aggregator.id);
        status = sheaf_aggregator_session_accept_again(&both->aggregator, said, &out);
        assert(status != SHEAF_OK || memcmp(message, both->session, SHEAF_ENVELOPE_HEAD_BYTES) == 0);
        break;
    }
    (void)status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (kit == NULL) make_kit();
    if (size < 1 || size > 16384) return 0;
    talk *both = calloc(1, sizeof *both);
    uint8_t *message = malloc(size); /* of its own size, so that a sanitizer sees each byte beyond it */
    assert(both != NULL && message != NULL);
    if (size > 1) memcpy(message, data + 1, size - 1);
    read_one(both, data[0] & 7u, data[0] >> 7, message, size - 1);
    sheaf_device_session_drop(&both->device);
    sheaf_session_challenge_drop(&both->pending);
    sheaf_aggregator_session_drop(&both->aggregator);
    free(message);
    free(both);
    return 0;
}
