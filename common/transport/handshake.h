/* handshake.h - what both ends of a session through a broker build their first messages from; for their two files only.
 *
 * The bytes are laid down in proto/WIRE.md, "The MQTT envelope"; the reasons stand in envelope.h.
 *
 * Owner:   certificates that are read are new references.
 * Threads: any; no state.
 * Units:   bytes.
 * Errors:  those of envelope.h and of certificate.h. */
#pragma once
#include "common/cursor.h"
#include "common/transport/envelope.h"

void sheaf_envelope_write_head(sheaf_writer *writer, sheaf_envelope_kind kind,
                               const uint8_t id[SHEAF_SESSION_ID_BYTES]);
/* Reads the head at the cursor and demands that it is of this kind and, if `id` is given, of this session: SHEAF_E_REPLAY. */
SHEAF_MUST_USE sheaf_status sheaf_envelope_expect(sheaf_reader *reader, sheaf_envelope_kind kind, const uint8_t *id);

/* T1: all that was said in the clear up to the aggregator's signature, and to whom. */
SHEAF_MUST_USE sheaf_status sheaf_handshake_first(const char *device, sheaf_span open, sheaf_span challenge,
                                                  uint8_t out[SHEAF_DIGEST_BYTES]);
/* T2: T1 and the clear bytes of SESSION. */
SHEAF_MUST_USE sheaf_status sheaf_handshake_second(const uint8_t first[SHEAF_DIGEST_BYTES], sheaf_span session,
                                                   uint8_t out[SHEAF_DIGEST_BYTES]);

#define SHEAF_HANDSHAKE_SIGNED_BYTES 128u
/* What each end signs. The text is of SHEAF_HANDSHAKE_SIGNED_BYTES at most. */
sheaf_span sheaf_handshake_aggregator_text(const uint8_t first[SHEAF_DIGEST_BYTES],
                                           uint8_t out[SHEAF_HANDSHAKE_SIGNED_BYTES]);
sheaf_span sheaf_handshake_device_text(const uint8_t second[SHEAF_DIGEST_BYTES],
                                       const uint8_t certificate[SHEAF_DIGEST_BYTES],
                                       uint8_t out[SHEAF_HANDSHAKE_SIGNED_BYTES]);
/* The info of HPKE. */
sheaf_span sheaf_handshake_info(const uint8_t first[SHEAF_DIGEST_BYTES], uint8_t out[SHEAF_HANDSHAKE_SIGNED_BYTES]);
/* The key of the aggregator's direction, exported under T2. */
SHEAF_MUST_USE sheaf_status sheaf_handshake_down(const sheaf_hpke *hpke, const uint8_t second[SHEAF_DIGEST_BYTES],
                                                 int opens, sheaf_aead *out);

/* Number of certificates, then each with its length: own first. SHEAF_E_TOO_LARGE. */
SHEAF_MUST_USE sheaf_status sheaf_handshake_write_chain(sheaf_writer *writer, const sheaf_certificate *certificate);
SHEAF_MUST_USE sheaf_status sheaf_handshake_read_chain(sheaf_reader *reader, sheaf_certificate **out,
                                                       sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_handshake_write_signature(sheaf_writer *writer, sheaf_signer *signer,
                                                            sheaf_span text);
/* Borrowed from the message; the last thing in it, so nothing may follow. */
SHEAF_MUST_USE sheaf_status sheaf_handshake_read_signature(sheaf_reader *reader, sheaf_span *out);
