/* device_session.h - a device's end of a session through a broker: handshake, then sealed requests and replies.
 *
 * Why it is safe stands in envelope.h. The caller moves the messages, keeps the last handshake message to send it again
 * when nothing comes back, and gives a handshake up in its own time.
 *
 * Owner:   the session is the caller's memory; _drop wipes it and may be called at any time, also on a zeroed one.
 * Threads: one at a time.
 * Units:   bytes.
 * Errors:  SHEAF_AGAIN (not now: the message is for another state and changes nothing, or the session is not ready),
 *          SHEAF_E_REPLAY (of another session, or seen before), SHEAF_E_VERSION, SHEAF_E_MALFORMED, SHEAF_E_TRUNCATED,
 *          SHEAF_E_CERTIFICATE and whatever `check` says, SHEAF_E_ROLE, SHEAF_E_IDENTITY, SHEAF_E_SIGNATURE,
 *          SHEAF_E_SEAL, SHEAF_E_TOO_LARGE, SHEAF_E_CLOSED (2^32 messages: open anew), SHEAF_E_CRYPTO.
 *          A message that is refused changes nothing: the true one may still come.
 * Not:     retries, time and topics are mqtt_link's. */
#pragma once
#include "common/transport/envelope.h"

typedef enum {
    SHEAF_DEVICE_SESSION_CLOSED = 0,
    SHEAF_DEVICE_SESSION_OPENING, /* OPEN was written: CHALLENGE is due */
    SHEAF_DEVICE_SESSION_PROVING, /* SESSION was written: ACCEPT is due */
    SHEAF_DEVICE_SESSION_READY
} sheaf_device_session_state;

/* Look, do not touch. */
typedef struct {
    sheaf_device_session_state state;
    uint8_t id[SHEAF_SESSION_ID_BYTES];
    uint8_t opening[SHEAF_ENVELOPE_OPEN_BYTES_MAX]; /* OPEN as it was sent */
    size_t opening_size;
    uint8_t transcript[SHEAF_DIGEST_BYTES]; /* T2, from PROVING on */
    sheaf_aead up, down;                    /* from PROVING on */
    uint64_t next_up;
    sheaf_replay_window replies;
    sheaf_certificate *aggregator; /* verified; from PROVING on */
} sheaf_device_session;

/* Forgets what was and writes OPEN, of at most SHEAF_ENVELOPE_OPEN_BYTES_MAX bytes, with a fresh id. `kems` in order of
 * preference; count 0: P-256, then X25519. */
SHEAF_MUST_USE sheaf_status sheaf_device_session_open(sheaf_device_session *session, const sheaf_kem *kems,
                                                      size_t count, sheaf_buffer *out);
/* Takes CHALLENGE and writes SESSION (out->capacity >= SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX). `aggregator`: the name that
 * the peer's certificate must bear, or NULL for any aggregator that `check` believes. */
SHEAF_MUST_USE sheaf_status sheaf_device_session_answer(sheaf_device_session *session, const sheaf_session_party *own,
                                                        const char *aggregator, sheaf_span message, sheaf_buffer *out,
                                                        sheaf_problem *problem);
/* Takes ACCEPT: the session is ready. */
SHEAF_MUST_USE sheaf_status sheaf_device_session_accepted(sheaf_device_session *session, sheaf_span message);
/* Writes DATA, frame.size + SHEAF_ENVELOPE_DATA_OVERHEAD bytes. frame.data may be out->data + SHEAF_ENVELOPE_DATA_CLEAR and
 * is then sealed in place; otherwise it must not overlap. *sequence is what the reply will name. */
SHEAF_MUST_USE sheaf_status sheaf_device_session_seal(sheaf_device_session *session, sheaf_span frame,
                                                      sheaf_buffer *out, uint64_t *sequence);
/* Turns DATA that this session sealed back, in place: the frame begins at message + SHEAF_ENVELOPE_DATA_CLEAR. */
SHEAF_MUST_USE sheaf_status sheaf_device_session_take_back(const sheaf_device_session *session, uint8_t *message,
                                                           size_t size);
/* Takes REPLY and writes its frame, message.size - SHEAF_ENVELOPE_REPLY_OVERHEAD bytes. out->data may be
 * message.data + SHEAF_ENVELOPE_REPLY_CLEAR. *answers: the request's sequence. */
SHEAF_MUST_USE sheaf_status sheaf_device_session_unseal(sheaf_device_session *session, sheaf_span message,
                                                        sheaf_buffer *out, uint64_t *answers);
/* 1 when REJECT names this session: nobody vouches for it, so it is reason enough to open a new one, and for no more. */
int sheaf_device_session_rejected(const sheaf_device_session *session, sheaf_span message, sheaf_status *reason);
void sheaf_device_session_drop(sheaf_device_session *session);
