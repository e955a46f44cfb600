#include "common/transport/device_session.h"

#include <openssl/rand.h>

#include "common/transport/handshake.h"

static sheaf_status write_open(sheaf_device_session *session, const sheaf_kem *kems, size_t count) {
    sheaf_writer writer = sheaf_writer_of(session->opening, sizeof session->opening);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_OPEN, session->id);
    sheaf_write_u8(&writer, (uint8_t)count);
    for (size_t i = 0; i < count; i++) sheaf_write_u16(&writer, (uint16_t)kems[i]);
    session->opening_size = writer.position;
    return writer.failed ? SHEAF_E_TOO_LARGE : SHEAF_OK;
}

sheaf_status sheaf_device_session_open(sheaf_device_session *session, const sheaf_kem *kems, size_t count,
                                       sheaf_buffer *out) {
    static const sheaf_kem preferred[] = {SHEAF_KEM_P256, SHEAF_KEM_X25519};
    if (count == 0) {
        kems = preferred;
        count = sizeof preferred / sizeof preferred[0];
    }
    if (count > SHEAF_SESSION_KEMS_MAX) return SHEAF_E_TOO_LARGE;
    sheaf_device_session_drop(session);
    if (RAND_bytes(session->id, sizeof session->id) != 1) return SHEAF_E_CRYPTO;
    sheaf_status status = write_open(session, kems, count);
    if (status == SHEAF_OK && session->opening_size > out->capacity) status = SHEAF_E_TOO_LARGE;
    if (status != SHEAF_OK) return status;
    memcpy(out->data, session->opening, session->opening_size);
    out->size = session->opening_size;
    session->state = SHEAF_DEVICE_SESSION_OPENING;
    return SHEAF_OK;
}

/* --- CHALLENGE ---------------------------------------------------------------------------------------------------- */

typedef struct {
    sheaf_span nonce, key, before_signature, signature; /* borrowed from the message */
    unsigned kem;
    sheaf_certificate *peer;
} challenge;

/* Whether OPEN named this KEM. */
static int was_offered(const sheaf_device_session *session, unsigned kem) {
    sheaf_reader reader = sheaf_reader_of(sheaf_span_of(session->opening, session->opening_size));
    (void)sheaf_read_bytes(&reader, SHEAF_ENVELOPE_HEAD_BYTES);
    for (size_t left = sheaf_read_u8(&reader); left > 0; left--) {
        if (sheaf_read_u16(&reader) == kem) return 1;
    }
    return 0;
}

static sheaf_status read_challenge(const sheaf_device_session *session, sheaf_span message, challenge *out,
                                   sheaf_problem *problem) {
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_status status = sheaf_envelope_expect(&reader, SHEAF_ENVELOPE_CHALLENGE, session->id);
    if (status != SHEAF_OK) return status;
    out->nonce = sheaf_read_bytes(&reader, SHEAF_SESSION_NONCE_BYTES);
    out->kem = sheaf_read_u16(&reader);
    if (reader.failed) return SHEAF_E_TRUNCATED;
    if (!was_offered(session, out->kem) || sheaf_kem_public_bytes(out->kem) == 0) return SHEAF_E_MALFORMED;
    out->key = sheaf_read_bytes(&reader, sheaf_kem_public_bytes(out->kem));
    status = sheaf_handshake_read_chain(&reader, &out->peer, problem);
    out->before_signature = sheaf_span_of(message.data, reader.position);
    return status == SHEAF_OK ? sheaf_handshake_read_signature(&reader, &out->signature) : status;
}

static sheaf_status judge_aggregator(const challenge *from, const sheaf_session_party *own, const char *expected,
                                     const uint8_t first[SHEAF_DIGEST_BYTES], sheaf_problem *problem) {
    uint8_t text[SHEAF_HANDSHAKE_SIGNED_BYTES];
    const sheaf_identity *identity = sheaf_certificate_identity(from->peer);
    sheaf_status status = own->check(from->peer, own->check_context, problem);
    if (status != SHEAF_OK) return status;
    if (identity->role != SHEAF_ROLE_AGGREGATOR) {
        return sheaf_problem_set(problem, SHEAF_E_ROLE, "\"%s\" is no aggregator but has the role %s", identity->name,
                                 sheaf_role_name(identity->role));
    }
    if (expected != NULL && strcmp(identity->name, expected) != 0) {
        return sheaf_problem_set(problem, SHEAF_E_IDENTITY, "the aggregator is \"%s\"; expected \"%s\"", identity->name,
                                 expected);
    }
    status = sheaf_certificate_verify(from->peer, sheaf_handshake_aggregator_text(first, text), from->signature);
    return status == SHEAF_OK ? status
                              : sheaf_problem_set(problem, status, "the aggregator \"%s\" did not sign this handshake",
                                                  identity->name);
}

/* --- SESSION ------------------------------------------------------------------------------------------------------ */

/* What stands sealed in SESSION: who the device is, and its signature. Written behind the clear bytes. */
static sheaf_status write_proof(const sheaf_session_party *own, const uint8_t second[SHEAF_DIGEST_BYTES],
                                sheaf_writer *writer) {
    uint8_t text[SHEAF_HANDSHAKE_SIGNED_BYTES];
    sheaf_status status = sheaf_handshake_write_chain(writer, own->certificate);
    if (status != SHEAF_OK) return status;
    sheaf_span said = sheaf_handshake_device_text(second, sheaf_certificate_fingerprint(own->certificate), text);
    return sheaf_handshake_write_signature(writer, own->signer, said);
}

static sheaf_status write_session(const sheaf_device_session *session, const sheaf_session_party *own,
                                  const challenge *from, const uint8_t *enc, sheaf_hpke *hpke,
                                  const uint8_t first[SHEAF_DIGEST_BYTES], uint8_t second[SHEAF_DIGEST_BYTES],
                                  sheaf_buffer *out) {
    if (out->capacity < SHEAF_SEAL_TAG_BYTES) return SHEAF_E_TOO_LARGE;
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity - SHEAF_SEAL_TAG_BYTES);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_SESSION, session->id);
    sheaf_write_bytes(&writer, from->nonce.data, from->nonce.size);
    sheaf_write_bytes(&writer, enc, sheaf_kem_public_bytes(from->kem));
    if (writer.failed) return SHEAF_E_TOO_LARGE;
    sheaf_span clear = sheaf_writer_span(&writer);
    sheaf_status status = sheaf_handshake_second(first, clear, second);
    if (status == SHEAF_OK) status = write_proof(own, second, &writer);
    if (status != SHEAF_OK) return status;
    sheaf_span proof = sheaf_span_of(out->data + clear.size, writer.position - clear.size);
    out->size = writer.position + SHEAF_SEAL_TAG_BYTES;
    return sheaf_aead_seal(&hpke->aead, 0, clear, proof, out->data + clear.size);
}

/* Everything is known and proved: the session has its keys. */
static sheaf_status take_keys(sheaf_device_session *session, sheaf_hpke *hpke, challenge *from,
                              const uint8_t second[SHEAF_DIGEST_BYTES]) {
    sheaf_status status = sheaf_handshake_down(hpke, second, 1, &session->down);
    if (status != SHEAF_OK) return status;
    session->up = hpke->aead;
    memset(&hpke->aead, 0, sizeof hpke->aead);
    memcpy(session->transcript, second, sizeof session->transcript);
    session->next_up = 1; /* 0 was SESSION's */
    session->aggregator = from->peer;
    from->peer = NULL;
    session->state = SHEAF_DEVICE_SESSION_PROVING;
    return SHEAF_OK;
}

static sheaf_status answer(sheaf_device_session *session, const sheaf_session_party *own, const char *aggregator,
                           challenge *from, sheaf_buffer *out, sheaf_problem *problem) {
    uint8_t first[SHEAF_DIGEST_BYTES], second[SHEAF_DIGEST_BYTES], info[SHEAF_HANDSHAKE_SIGNED_BYTES];
    uint8_t enc[SHEAF_SEAL_PUBLIC_BYTES_MAX];
    sheaf_hpke hpke = {.kem = SHEAF_KEM_P256};
    const char *device = sheaf_certificate_identity(own->certificate)->name;
    sheaf_status status = sheaf_handshake_first(device, sheaf_span_of(session->opening, session->opening_size),
                                                from->before_signature, first);
    if (status == SHEAF_OK) status = judge_aggregator(from, own, aggregator, first, problem);
    if (status != SHEAF_OK) return status;
    status =
        sheaf_hpke_begin_sender((sheaf_kem)from->kem, from->key, sheaf_handshake_info(first, info), NULL, enc, &hpke);
    if (status != SHEAF_OK) return status;
    status = write_session(session, own, from, enc, &hpke, first, second, out);
    if (status == SHEAF_OK) status = take_keys(session, &hpke, from, second);
    sheaf_hpke_drop(&hpke);
    return status;
}

sheaf_status sheaf_device_session_answer(sheaf_device_session *session, const sheaf_session_party *own,
                                         const char *aggregator, sheaf_span message, sheaf_buffer *out,
                                         sheaf_problem *problem) {
    challenge from = {.kem = 0};
    if (session->state != SHEAF_DEVICE_SESSION_OPENING) return SHEAF_AGAIN;
    sheaf_status status = read_challenge(session, message, &from, problem);
    if (status == SHEAF_OK) status = answer(session, own, aggregator, &from, out, problem);
    sheaf_certificate_unref(from.peer);
    return status;
}

sheaf_status sheaf_device_session_accepted(sheaf_device_session *session, sheaf_span message) {
    uint8_t nothing[1];
    if (session->state != SHEAF_DEVICE_SESSION_PROVING) return SHEAF_AGAIN;
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_status status = sheaf_envelope_expect(&reader, SHEAF_ENVELOPE_ACCEPT, session->id);
    if (status != SHEAF_OK) return status;
    sheaf_span clear = sheaf_span_of(message.data, reader.position);
    sheaf_span sealed = sheaf_read_bytes(&reader, sheaf_reader_left(&reader));
    if (sealed.size < SHEAF_SEAL_TAG_BYTES) return SHEAF_E_TRUNCATED;
    if (sealed.size > SHEAF_SEAL_TAG_BYTES) return SHEAF_E_MALFORMED;
    status = sheaf_aead_open(&session->down, 0, clear, sealed, nothing);
    if (status != SHEAF_OK) return status;
    sheaf_replay_window_mark(&session->replies, 0);
    session->state = SHEAF_DEVICE_SESSION_READY;
    return SHEAF_OK;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

sheaf_status sheaf_device_session_seal(sheaf_device_session *session, sheaf_span frame, sheaf_buffer *out,
                                       uint64_t *sequence) {
    if (session->state != SHEAF_DEVICE_SESSION_READY) return SHEAF_AGAIN;
    if (session->next_up >= SHEAF_SESSION_MESSAGES_MAX) return SHEAF_E_CLOSED;
    if (out->capacity < SHEAF_ENVELOPE_DATA_OVERHEAD || frame.size > out->capacity - SHEAF_ENVELOPE_DATA_OVERHEAD)
        return SHEAF_E_TOO_LARGE;
    *sequence = session->next_up++;
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_DATA, session->id);
    sheaf_write_u64(&writer, *sequence);
    out->size = writer.position + frame.size + SHEAF_SEAL_TAG_BYTES;
    return sheaf_aead_seal(&session->up, *sequence, sheaf_writer_span(&writer), frame, out->data + writer.position);
}

sheaf_status sheaf_device_session_take_back(const sheaf_device_session *session, uint8_t *message, size_t size) {
    if (session->state != SHEAF_DEVICE_SESSION_READY) return SHEAF_AGAIN;
    if (size < SHEAF_ENVELOPE_DATA_OVERHEAD) return SHEAF_E_TRUNCATED;
    return sheaf_aead_take_back(&session->up, sheaf_load_u64(message + SHEAF_ENVELOPE_HEAD_BYTES),
                                sheaf_span_of(message, SHEAF_ENVELOPE_DATA_CLEAR), message + SHEAF_ENVELOPE_DATA_CLEAR,
                                size - SHEAF_ENVELOPE_DATA_CLEAR);
}

sheaf_status sheaf_device_session_unseal(sheaf_device_session *session, sheaf_span message, sheaf_buffer *out,
                                         uint64_t *answers) {
    if (session->state != SHEAF_DEVICE_SESSION_READY) return SHEAF_AGAIN;
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_status status = sheaf_envelope_expect(&reader, SHEAF_ENVELOPE_REPLY, session->id);
    if (status != SHEAF_OK) return status;
    uint64_t sequence = sheaf_read_u64(&reader);
    *answers = sheaf_read_u64(&reader);
    if (reader.failed || sheaf_reader_left(&reader) < SHEAF_SEAL_TAG_BYTES) return SHEAF_E_TRUNCATED;
    if (!sheaf_replay_window_allows(&session->replies, sequence)) return SHEAF_E_REPLAY;
    sheaf_span clear = sheaf_span_of(message.data, reader.position);
    sheaf_span sealed = sheaf_read_bytes(&reader, sheaf_reader_left(&reader));
    if (sealed.size - SHEAF_SEAL_TAG_BYTES > out->capacity) return SHEAF_E_TOO_LARGE;
    status = sheaf_aead_open(&session->down, sequence, clear, sealed, out->data);
    if (status != SHEAF_OK) return status;
    sheaf_replay_window_mark(&session->replies, sequence);
    out->size = sealed.size - SHEAF_SEAL_TAG_BYTES;
    return SHEAF_OK;
}

int sheaf_device_session_rejected(const sheaf_device_session *session, sheaf_span message, sheaf_status *reason) {
    sheaf_envelope_head head;
    return session->state != SHEAF_DEVICE_SESSION_CLOSED &&
           sheaf_envelope_read_reject(message, &head, reason) == SHEAF_OK &&
           memcmp(head.id, session->id, sizeof head.id) == 0;
}

void sheaf_device_session_drop(sheaf_device_session *session) {
    sheaf_aead_drop(&session->up);
    sheaf_aead_drop(&session->down);
    sheaf_certificate_unref(session->aggregator);
    memset(session, 0, sizeof *session);
}
