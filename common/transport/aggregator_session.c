#include "common/transport/aggregator_session.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "common/transport/handshake.h"

/* --- OPEN and CHALLENGE ------------------------------------------------------------------------------------------- */

/* The first KEM of the device's list that is known here. */
static sheaf_status read_open(sheaf_span message, uint8_t id[SHEAF_SESSION_ID_BYTES], sheaf_kem *kem) {
    sheaf_envelope_head head;
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_status status = sheaf_envelope_read_head(message, &head);
    if (status == SHEAF_OK) status = sheaf_envelope_expect(&reader, SHEAF_ENVELOPE_OPEN, NULL);
    if (status != SHEAF_OK) return status;
    size_t count = sheaf_read_u8(&reader);
    if (reader.failed) return SHEAF_E_TRUNCATED;
    if (count == 0 || count > SHEAF_SESSION_KEMS_MAX) return SHEAF_E_MALFORMED;
    unsigned chosen = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned offered = sheaf_read_u16(&reader);
        if (chosen == 0 && sheaf_kem_public_bytes(offered) > 0) chosen = offered;
    }
    if (reader.failed) return SHEAF_E_TRUNCATED;
    if (sheaf_reader_left(&reader) > 0) return SHEAF_E_MALFORMED;
    if (chosen == 0) return SHEAF_E_VERSION;
    memcpy(id, head.id, SHEAF_SESSION_ID_BYTES);
    *kem = (sheaf_kem)chosen;
    return SHEAF_OK;
}

static sheaf_status write_challenge(const sheaf_session_party *own, sheaf_span open, sheaf_session_challenge *challenge,
                                    sheaf_buffer *out) {
    uint8_t text[SHEAF_HANDSHAKE_SIGNED_BYTES];
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_CHALLENGE, challenge->id);
    sheaf_write_bytes(&writer, challenge->nonce, sizeof challenge->nonce);
    sheaf_write_u16(&writer, (uint16_t)challenge->pair.kem);
    sheaf_write_bytes(&writer, challenge->pair.public_bytes, sheaf_kem_public_bytes(challenge->pair.kem));
    sheaf_status status = sheaf_handshake_write_chain(&writer, own->certificate);
    if (status != SHEAF_OK) return status;
    status = sheaf_handshake_first(challenge->device, open, sheaf_writer_span(&writer), challenge->transcript);
    if (status != SHEAF_OK) return status;
    sheaf_span said = sheaf_handshake_aggregator_text(challenge->transcript, text);
    status = sheaf_handshake_write_signature(&writer, own->signer, said);
    out->size = writer.position;
    return status;
}

sheaf_status sheaf_session_challenge_make(const sheaf_session_party *own, const char *device, sheaf_span message,
                                          sheaf_session_challenge *challenge, sheaf_buffer *out,
                                          sheaf_problem *problem) {
    sheaf_kem kem;
    memset(challenge, 0, sizeof *challenge);
    sheaf_status status = read_open(message, challenge->id, &kem);
    if (status == SHEAF_E_VERSION)
        return sheaf_problem_set(problem, status, "\"%s\" speaks another version, or no KEM that is known here",
                                 device);
    if (status == SHEAF_OK && !sheaf_name_ok(device)) status = SHEAF_E_NAME;
    if (status != SHEAF_OK) return status;
    memcpy(challenge->device, device, strlen(device) + 1);
    if (RAND_bytes(challenge->nonce, sizeof challenge->nonce) != 1) status = SHEAF_E_CRYPTO;
    if (status == SHEAF_OK) status = sheaf_seal_pair_make(kem, &challenge->pair);
    if (status == SHEAF_OK) status = write_challenge(own, message, challenge, out);
    if (status != SHEAF_OK) sheaf_session_challenge_drop(challenge);
    return status;
}

void sheaf_session_challenge_drop(sheaf_session_challenge *challenge) {
    sheaf_seal_pair_drop(&challenge->pair);
    sheaf_wipe(challenge, sizeof *challenge);
}

/* --- SESSION and ACCEPT ------------------------------------------------------------------------------------------- */

/* The device's certificate and signature, which stood sealed in SESSION. On success *out is a reference. */
static sheaf_status judge_device(sheaf_span proof, const uint8_t second[SHEAF_DIGEST_BYTES], const char *device,
                                 const sheaf_session_party *own, sheaf_certificate **out, sheaf_problem *problem) {
    uint8_t text[SHEAF_HANDSHAKE_SIGNED_BYTES];
    sheaf_span signature;
    sheaf_reader reader = sheaf_reader_of(proof);
    sheaf_status status = sheaf_handshake_read_chain(&reader, out, problem);
    if (status == SHEAF_OK) status = sheaf_handshake_read_signature(&reader, &signature);
    if (status == SHEAF_OK) status = own->check(*out, own->check_context, problem);
    if (status != SHEAF_OK) return status;
    const sheaf_identity *identity = sheaf_certificate_identity(*out);
    if (identity->role != SHEAF_ROLE_DEVICE) {
        return sheaf_problem_set(problem, SHEAF_E_ROLE, "\"%s\" is no device but has the role %s", identity->name,
                                 sheaf_role_name(identity->role));
    }
    if (strcmp(identity->name, device) != 0) {
        return sheaf_problem_set(problem, SHEAF_E_IDENTITY, "the certificate of \"%s\" came on the topic of \"%s\"",
                                 identity->name, device);
    }
    sheaf_span said = sheaf_handshake_device_text(second, sheaf_certificate_fingerprint(*out), text);
    status = sheaf_certificate_verify(*out, said, signature);
    return status == SHEAF_OK ? status
                              : sheaf_problem_set(problem, status, "\"%s\" did not sign this handshake", device);
}

/* Sealed once: whoever wants it again gets the bytes, so that a repeated SESSION never touches the key of replies. */
static sheaf_status make_accept(sheaf_aggregator_session *session) {
    sheaf_writer writer = sheaf_writer_of(session->accept, sizeof session->accept);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_ACCEPT, session->id);
    return sheaf_aead_seal(&session->down, 0, sheaf_writer_span(&writer), sheaf_span_of(NULL, 0),
                           session->accept + writer.position);
}

static sheaf_status give_accept(const sheaf_aggregator_session *session, sheaf_buffer *out) {
    if (out->capacity < sizeof session->accept) return SHEAF_E_TOO_LARGE;
    memcpy(out->data, session->accept, sizeof session->accept);
    out->size = sizeof session->accept;
    return SHEAF_OK;
}

/* Where SESSION's parts lie. */
typedef struct {
    sheaf_span nonce, enc, clear, sealed;
} session_message;

static sheaf_status read_session(sheaf_span message, const uint8_t id[SHEAF_SESSION_ID_BYTES], sheaf_kem kem,
                                 session_message *out) {
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_status status = sheaf_envelope_expect(&reader, SHEAF_ENVELOPE_SESSION, id);
    if (status != SHEAF_OK) return status;
    out->nonce = sheaf_read_bytes(&reader, SHEAF_SESSION_NONCE_BYTES);
    out->enc = sheaf_read_bytes(&reader, sheaf_kem_public_bytes(kem));
    out->clear = sheaf_span_of(message.data, reader.position);
    if (reader.failed || sheaf_reader_left(&reader) < SHEAF_SEAL_TAG_BYTES) return SHEAF_E_TRUNCATED;
    out->sealed = sheaf_read_bytes(&reader, sheaf_reader_left(&reader));
    return out->sealed.size <= SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX ? SHEAF_OK : SHEAF_E_TOO_LARGE;
}

/* Opens the proof and judges it; then takes the keys over. */
static sheaf_status admit(const sheaf_session_challenge *challenge, const session_message *said,
                          const sheaf_session_party *own, sheaf_hpke *hpke, sheaf_aggregator_session *session,
                          sheaf_problem *problem) {
    uint8_t proof[SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX];
    sheaf_status status = sheaf_handshake_second(challenge->transcript, said->clear, session->transcript);
    if (status == SHEAF_OK) status = sheaf_aead_open(&hpke->aead, 0, said->clear, said->sealed, proof);
    if (status != SHEAF_OK) return status;
    sheaf_span opened = sheaf_span_of(proof, said->sealed.size - SHEAF_SEAL_TAG_BYTES);
    status = judge_device(opened, session->transcript, challenge->device, own, &session->device, problem);
    if (status == SHEAF_OK) status = sheaf_handshake_down(hpke, session->transcript, 0, &session->down);
    if (status != SHEAF_OK) return status;
    session->up = hpke->aead;
    memset(&hpke->aead, 0, sizeof hpke->aead);
    memcpy(session->id, challenge->id, sizeof session->id);
    memcpy(session->before, challenge->transcript, sizeof session->before);
    sheaf_replay_window_mark(&session->requests, 0); /* SESSION's */
    session->next_down = 1;                          /* 0 is ACCEPT's */
    return SHEAF_OK;
}

sheaf_status sheaf_aggregator_session_admit(sheaf_session_challenge *challenge, const sheaf_session_party *own,
                                            const char *device, sheaf_span message, sheaf_aggregator_session *session,
                                            sheaf_buffer *out, sheaf_problem *problem) {
    uint8_t info[SHEAF_HANDSHAKE_SIGNED_BYTES];
    session_message said;
    sheaf_hpke hpke = {.kem = SHEAF_KEM_P256};
    memset(session, 0, sizeof *session);
    sheaf_status status = read_session(message, challenge->id, challenge->pair.kem, &said);
    if (status == SHEAF_E_REPLAY) return status;
    int same =
        status == SHEAF_OK && sheaf_span_equal(said.nonce, sheaf_span_of(challenge->nonce, sizeof challenge->nonce));
    if (status == SHEAF_OK && !same) return SHEAF_E_REPLAY;
    if (status == SHEAF_OK && strcmp(challenge->device, device) != 0) status = SHEAF_E_IDENTITY;
    if (status == SHEAF_OK)
        status = sheaf_hpke_begin_recipient(&challenge->pair, said.enc,
                                            sheaf_handshake_info(challenge->transcript, info), &hpke);
    if (status == SHEAF_OK) status = admit(challenge, &said, own, &hpke, session, problem);
    if (status == SHEAF_OK) status = make_accept(session);
    if (status == SHEAF_OK) status = give_accept(session, out);
    sheaf_hpke_drop(&hpke);
    sheaf_session_challenge_drop(challenge);
    if (status != SHEAF_OK) sheaf_aggregator_session_drop(session);
    return status;
}

sheaf_status sheaf_aggregator_session_accept_again(const sheaf_aggregator_session *session, sheaf_span message,
                                                   sheaf_buffer *out) {
    static const sheaf_kem kems[] = {SHEAF_KEM_P256, SHEAF_KEM_X25519}; /* the message does not say which it was */
    uint8_t second[SHEAF_DIGEST_BYTES];
    session_message said;
    for (size_t i = 0; i < sizeof kems / sizeof kems[0]; i++) {
        sheaf_status status = read_session(message, session->id, kems[i], &said);
        if (status == SHEAF_OK) status = sheaf_handshake_second(session->before, said.clear, second);
        if (status == SHEAF_OK && memcmp(second, session->transcript, sizeof second) == 0)
            return give_accept(session, out);
    }
    return SHEAF_E_REPLAY;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

sheaf_status sheaf_aggregator_session_unseal(sheaf_aggregator_session *session, const char *device, sheaf_span message,
                                             sheaf_buffer *out, uint64_t *sequence) {
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_status status = sheaf_envelope_expect(&reader, SHEAF_ENVELOPE_DATA, session->id);
    *sequence = sheaf_read_u64(&reader);
    if (status != SHEAF_OK) return status;
    if (reader.failed || sheaf_reader_left(&reader) < SHEAF_SEAL_TAG_BYTES) return SHEAF_E_TRUNCATED;
    if (strcmp(sheaf_certificate_identity(session->device)->name, device) != 0) return SHEAF_E_IDENTITY;
    if (*sequence >= SHEAF_SESSION_MESSAGES_MAX) return SHEAF_E_CLOSED;
    if (!sheaf_replay_window_allows(&session->requests, *sequence)) return SHEAF_E_REPLAY;
    sheaf_span clear = sheaf_span_of(message.data, reader.position);
    sheaf_span sealed = sheaf_read_bytes(&reader, sheaf_reader_left(&reader));
    if (sealed.size - SHEAF_SEAL_TAG_BYTES > out->capacity) return SHEAF_E_TOO_LARGE;
    status = sheaf_aead_open(&session->up, *sequence, clear, sealed, out->data);
    if (status != SHEAF_OK) return status;
    sheaf_replay_window_mark(&session->requests, *sequence);
    out->size = sealed.size - SHEAF_SEAL_TAG_BYTES;
    return SHEAF_OK;
}

sheaf_status sheaf_aggregator_session_seal(sheaf_aggregator_session *session, uint64_t answers, sheaf_span frame,
                                           sheaf_buffer *out) {
    if (session->next_down >= SHEAF_SESSION_MESSAGES_MAX) return SHEAF_E_CLOSED;
    if (out->capacity < SHEAF_ENVELOPE_REPLY_OVERHEAD || frame.size > out->capacity - SHEAF_ENVELOPE_REPLY_OVERHEAD)
        return SHEAF_E_TOO_LARGE;
    uint64_t sequence = session->next_down++;
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    sheaf_envelope_write_head(&writer, SHEAF_ENVELOPE_REPLY, session->id);
    sheaf_write_u64(&writer, sequence);
    sheaf_write_u64(&writer, answers);
    out->size = writer.position + frame.size + SHEAF_SEAL_TAG_BYTES;
    return sheaf_aead_seal(&session->down, sequence, sheaf_writer_span(&writer), frame, out->data + writer.position);
}

void sheaf_aggregator_session_drop(sheaf_aggregator_session *session) {
    sheaf_aead_drop(&session->up);
    sheaf_aead_drop(&session->down);
    sheaf_certificate_unref(session->device);
    memset(session, 0, sizeof *session);
}
