/* aggregator_session.h - the aggregator's end of a device's session through a broker.
 *
 * Why it is safe stands in envelope.h. The caller keeps challenges and sessions in tables of bounded size, found by device
 * (the topic's level) *and* session id, since ids are the devices' choice. A challenge that is not found is
 * SHEAF_E_REPLAY, a session that is not found SHEAF_E_NOT_FOUND: both are told by REJECT.
 *
 * Owner:   structs are the caller's memory; _drop wipes them and may be called at any time, also on zeroed ones.
 * Threads: one at a time for each struct; but _unseal, _seal and _accept_again of one session may run at once.
 * Units:   bytes.
 * Errors:  SHEAF_E_REPLAY, SHEAF_E_VERSION, SHEAF_E_MALFORMED, SHEAF_E_TRUNCATED, SHEAF_E_CERTIFICATE and whatever `check`
 *          says, SHEAF_E_ROLE, SHEAF_E_IDENTITY, SHEAF_E_SIGNATURE, SHEAF_E_SEAL, SHEAF_E_TOO_LARGE, SHEAF_E_CLOSED (2^32
 *          messages: drop it, the device opens anew), SHEAF_E_CRYPTO.
 * Not:     tables, limits and time are mqtt_server's. */
#pragma once
#include "common/transport/envelope.h"

/* A handshake between CHALLENGE and SESSION. */
typedef struct {
    char device[SHEAF_NAME_BYTES];
    uint8_t id[SHEAF_SESSION_ID_BYTES];
    uint8_t nonce[SHEAF_SESSION_NONCE_BYTES];
    uint8_t transcript[SHEAF_DIGEST_BYTES]; /* T1 */
    sheaf_seal_pair pair;                   /* serves this handshake only */
} sheaf_session_challenge;

typedef struct {
    uint8_t id[SHEAF_SESSION_ID_BYTES];
    uint8_t before[SHEAF_DIGEST_BYTES];                               /* T1 */
    uint8_t transcript[SHEAF_DIGEST_BYTES];                           /* T2 */
    uint8_t accept[SHEAF_ENVELOPE_HEAD_BYTES + SHEAF_SEAL_TAG_BYTES]; /* ACCEPT as it was sent */
    sheaf_aead up, down;
    sheaf_replay_window requests;
    uint64_t next_down;
    sheaf_certificate *device; /* verified */
} sheaf_aggregator_session;

/* Takes OPEN on the topic of `device` and writes CHALLENGE (out->capacity >= SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX). A
 * challenge is good for one SESSION. Costs a key pair and a signature. */
SHEAF_MUST_USE sheaf_status sheaf_session_challenge_make(const sheaf_session_party *own, const char *device,
                                                         sheaf_span message, sheaf_session_challenge *challenge,
                                                         sheaf_buffer *out, sheaf_problem *problem);
void sheaf_session_challenge_drop(sheaf_session_challenge *challenge);

/* Takes SESSION and writes ACCEPT (SHEAF_ENVELOPE_HEAD_BYTES + SHEAF_SEAL_TAG_BYTES bytes). Uses the challenge up, whatever
 * comes of it, unless SESSION names another nonce (SHEAF_E_REPLAY). On failure there is no session to drop. */
SHEAF_MUST_USE sheaf_status sheaf_aggregator_session_admit(sheaf_session_challenge *challenge,
                                                           const sheaf_session_party *own, const char *device,
                                                           sheaf_span message, sheaf_aggregator_session *session,
                                                           sheaf_buffer *out, sheaf_problem *problem);
/* For a SESSION that is repeated because ACCEPT was lost: writes that same ACCEPT again. SHEAF_E_REPLAY: it is another
 * one, and is dropped without a word, for a REJECT would end the good session. */
SHEAF_MUST_USE sheaf_status sheaf_aggregator_session_accept_again(const sheaf_aggregator_session *session,
                                                                  sheaf_span message, sheaf_buffer *out);
/* Takes DATA on the topic of `device` and writes its frame, message.size - SHEAF_ENVELOPE_DATA_OVERHEAD bytes; out->data
 * may be message.data + SHEAF_ENVELOPE_DATA_CLEAR. *sequence is what the reply must name. */
SHEAF_MUST_USE sheaf_status sheaf_aggregator_session_unseal(sheaf_aggregator_session *session, const char *device,
                                                            sheaf_span message, sheaf_buffer *out, uint64_t *sequence);
/* Writes REPLY, frame.size + SHEAF_ENVELOPE_REPLY_OVERHEAD bytes. frame.data may be out->data + SHEAF_ENVELOPE_REPLY_CLEAR
 * and is then sealed in place; otherwise it must not overlap. */
SHEAF_MUST_USE sheaf_status sheaf_aggregator_session_seal(sheaf_aggregator_session *session, uint64_t answers,
                                                          sheaf_span frame, sheaf_buffer *out);
void sheaf_aggregator_session_drop(sheaf_aggregator_session *session);
