/* envelope.h - the messages in which frames travel past a broker that must not read, change or invent them.
 *
 * The bytes are laid down in proto/WIRE.md, "The MQTT envelope". The two ends are device_session.h and
 * aggregator_session.h; what both need stands here.
 *
 *     device                                      aggregator
 *       OPEN       session id, KEMs        ->
 *                                          <-     CHALLENGE  nonce, fresh seal key, chain, signature
 *       SESSION    nonce, enc,             ->
 *                  sealed: chain, signature
 *                                          <-     ACCEPT     sealed: nothing
 *       DATA       sequence, sealed frame  ->
 *                                          <-     REPLY      sequence, request's sequence, sealed frame
 *                                          <-     REJECT     plain: why; only ever a hint
 *     and CAST, from the aggregator to all that have a group's key.
 *
 * The argument. The attacker is the broker: it reads, drops, delays, repeats, reorders, changes and invents messages on
 * every topic, has recorded all earlier ones, and may work together with other devices that have good certificates.
 *
 *   Who speaks.    Topics and session ids prove nothing. CHALLENGE is signed by a certificate of role aggregator over a
 *                  transcript T1 that holds the device's name, all of OPEN, and all of CHALLENGE before the signature.
 *                  SESSION is signed by the device's certificate over T2 = T1 and SESSION's clear bytes, with the
 *                  certificate's digest. Each signature starts with its own domain, so that none serves as another.
 *   Other ends.    A CHALLENGE for another device or session has another T1: bad_signature. One of another aggregator
 *                  fails the expected name. A SESSION moved to another topic fails T1's device name, and the
 *                  certificate's name must be the topic's level: wrong_identity.
 *   Replay.        Each side contributes fresh random bytes: the device its session id, the aggregator its nonce and a
 *                  seal key that serves one handshake. A recorded SESSION names a nonce that is not pending: replay. A
 *                  recorded CHALLENGE has another session id: replay. In a session each direction counts its messages;
 *                  a window of 64 refuses what was seen or is older, after the tag has shown that the number is true.
 *   Reflection.    Each direction has its own key (HPKE's, and one exported under T2), and each kind of message its own
 *                  direction. What comes back to its sender is malformed.
 *   Mixing.        The session id and all clear bytes are authenticated with each message; keys are one session's.
 *   Downgrade.     OPEN with its list of KEMs is in T1. Another version is unknown_version on both sides; there is no
 *                  message in which to settle for less.
 *   Nonces.        A sequence is drawn once per sealed message from the counter of its direction, also for a second reply
 *                  to the same request; the request's sequence is authenticated beside it and never makes a nonce. A
 *                  session ends after 2^32 messages a direction. Casts: one key for one group, and a sequence is cast
 *                  again only with the same bytes (transport.h).
 *   Later theft.   The seal key is wiped when SESSION has come; recorded messages stay closed to whoever steals a
 *                  certificate's key later.
 *   What remains.  The broker can drop everything, and sees who speaks when and how much. A REJECT that it invents makes
 *                  a device open a new session, no more. Members of a group can write casts: their content is checked
 *                  against a signed digest.
 *
 * Owner:   nothing here allocates; `out` buffers are the caller's, with capacity for what is written.
 * Threads: any; no state.
 * Units:   bytes; numbers little-endian.
 * Errors:  SHEAF_E_TRUNCATED, SHEAF_E_MALFORMED (also a message of the other direction), SHEAF_E_VERSION,
 *          SHEAF_E_TOO_LARGE (does not fit `out`), SHEAF_E_SEAL, SHEAF_E_CRYPTO.
 * Not:     no I/O, no clocks, no tables: who keeps sessions and how long is the carrier's matter. */
#pragma once
#include "common/certificate.h"
#include "common/seal.h"
#include "common/signer.h"
#include "common/transport/transport.h"

#define SHEAF_ENVELOPE_VERSION     1u
#define SHEAF_SESSION_ID_BYTES     16u
#define SHEAF_SESSION_NONCE_BYTES  32u
#define SHEAF_SESSION_MESSAGES_MAX (UINT64_C(1) << 32) /* a direction; then SHEAF_E_CLOSED */
#define SHEAF_SESSION_KEMS_MAX     4u

#define SHEAF_ENVELOPE_HEAD_BYTES  21u                              /* all kinds */
#define SHEAF_ENVELOPE_DATA_CLEAR  (SHEAF_ENVELOPE_HEAD_BYTES + 8u) /* and CAST */
#define SHEAF_ENVELOPE_REPLY_CLEAR (SHEAF_ENVELOPE_HEAD_BYTES + 16u)
/* What an envelope adds to a frame: 45 bytes to a request or a cast, 53 to a reply. */
#define SHEAF_ENVELOPE_DATA_OVERHEAD  (SHEAF_ENVELOPE_DATA_CLEAR + SHEAF_SEAL_TAG_BYTES)
#define SHEAF_ENVELOPE_REPLY_OVERHEAD (SHEAF_ENVELOPE_REPLY_CLEAR + SHEAF_SEAL_TAG_BYTES)
#define SHEAF_ENVELOPE_OVERHEAD_MAX   SHEAF_ENVELOPE_REPLY_OVERHEAD

#define SHEAF_ENVELOPE_OPEN_BYTES_MAX      (SHEAF_ENVELOPE_HEAD_BYTES + 1u + 2u * SHEAF_SESSION_KEMS_MAX)
#define SHEAF_ENVELOPE_CHAIN_BYTES_MAX     8192u /* of all certificates that a peer shows, lengths not counted */
#define SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX 8704u /* OPEN, CHALLENGE, SESSION, ACCEPT and REJECT fit */

typedef enum {
    SHEAF_ENVELOPE_OPEN = 1,  /* to the aggregator */
    SHEAF_ENVELOPE_CHALLENGE, /* to the device */
    SHEAF_ENVELOPE_SESSION,   /* to the aggregator */
    SHEAF_ENVELOPE_ACCEPT,    /* to the device */
    SHEAF_ENVELOPE_DATA,      /* to the aggregator */
    SHEAF_ENVELOPE_REPLY,     /* to the device */
    SHEAF_ENVELOPE_REJECT,    /* to the device */
    SHEAF_ENVELOPE_CAST,      /* to a group */
} sheaf_envelope_kind;

typedef struct {
    sheaf_envelope_kind kind;
    uint8_t id[SHEAF_SESSION_ID_BYTES]; /* the session's; of a CAST the group's */
} sheaf_envelope_head;

/* Reads the head, which tells whom the message is for. With SHEAF_E_VERSION the id is right all the same (its place never
 * changes), so that the sender can be told. */
SHEAF_MUST_USE sheaf_status sheaf_envelope_read_head(sheaf_span message, sheaf_envelope_head *out);

/* Tells the device of session `id` that it is refused or unknown: SHEAF_E_NOT_FOUND for a session that is not known. */
SHEAF_MUST_USE sheaf_status sheaf_envelope_write_reject(const uint8_t id[SHEAF_SESSION_ID_BYTES], sheaf_status reason,
                                                        sheaf_buffer *out);
/* A number that is no status here reads as SHEAF_E_MALFORMED. */
SHEAF_MUST_USE sheaf_status sheaf_envelope_read_reject(sheaf_span message, sheaf_envelope_head *head,
                                                       sheaf_status *reason);

/* --- what each end brings to a handshake -------------------------------------------------------------------------- */

/* Whether a peer's certificate is believed: chain, validity, revocation. Name and role are checked by the session. */
typedef sheaf_status (*sheaf_session_check)(const sheaf_certificate *peer, void *context, sheaf_problem *problem);

/* Borrowed for one call at a time: a renewed certificate serves from the next handshake on. */
typedef struct {
    const sheaf_certificate *certificate; /* own, with its intermediates */
    sheaf_signer *signer;                 /* of that certificate's key */
    sheaf_session_check check;
    void *check_context;
} sheaf_session_party;

/* --- which numbers were seen -------------------------------------------------------------------------------------- */

/* Zeroed: nothing was seen. */
typedef struct {
    uint64_t next; /* one more than the greatest number seen */
    uint64_t seen; /* bit i: next - 1 - i was seen */
} sheaf_replay_window;

/* 1 when `sequence` is new and not older than the window's 64 numbers. */
int sheaf_replay_window_allows(const sheaf_replay_window *window, uint64_t sequence);
/* Only for a number that was allowed, and whose message has proved to be true. */
void sheaf_replay_window_mark(sheaf_replay_window *window, uint64_t sequence);

/* --- casts -------------------------------------------------------------------------------------------------------- */

typedef struct {
    sheaf_aead aead;
    uint8_t id[SHEAF_SESSION_ID_BYTES];
} sheaf_cast_key;

/* opens: 1 for members, 0 for the caster. */
SHEAF_MUST_USE sheaf_status sheaf_cast_key_begin(sheaf_cast_key *key, int opens, const sheaf_cast_group *group);
void sheaf_cast_key_drop(sheaf_cast_key *key);
/* frame.data may be out->data + SHEAF_ENVELOPE_DATA_CLEAR, and is then sealed in place. */
SHEAF_MUST_USE sheaf_status sheaf_cast_seal(sheaf_cast_key *key, uint64_t sequence, sheaf_span frame,
                                            sheaf_buffer *out);
/* out->data may be message.data + SHEAF_ENVELOPE_DATA_CLEAR. SHEAF_E_REPLAY: of another group. Repeats pass: the caller
 * knows what it has. */
SHEAF_MUST_USE sheaf_status sheaf_cast_open(sheaf_cast_key *key, sheaf_span message, uint64_t *sequence,
                                            sheaf_buffer *out);
