/* statement.h - the canonical bytes that get signed: what an update is, what a round is, what a receipt says.
 *
 * Each statement starts with a domain string and its version, so that no signature can serve for another purpose;
 * then fixed-width fields and length-prefixed names, little-endian, in the order of the structs below (WIRE.md gives
 * offsets). There is exactly one encoding of a statement; decoding refuses anything else, also trailing bytes.
 *
 * Owner:   the caller; statements hold no pointer.
 * Threads: any; no state.
 * Errors:  SHEAF_E_MALFORMED, SHEAF_E_TRUNCATED, SHEAF_E_VERSION (another domain string), SHEAF_E_TOO_LARGE.
 * Not:     it neither signs nor verifies. Verify over the bytes received, never over a re-encoding. */
#pragma once
#include "common/bytes.h"
#include "common/name.h"
#include "common/status.h"

#define SHEAF_STATEMENT_BYTES_MAX 640u
#define SHEAF_NONCE_BYTES         32u
#define SHEAF_PAYLOAD_TYPE_BYTES  16u /* with the NUL */

/* "sheaf update v1": signed by the device. */
typedef struct {
    char tenant[SHEAF_NAME_BYTES];
    char job[SHEAF_NAME_BYTES];
    uint64_t round;
    uint32_t attempt; /* of the round: 1 the first time it opens */
    uint8_t nonce[SHEAF_NONCE_BYTES];
    uint8_t base_model[SHEAF_DIGEST_BYTES];
    uint8_t plan_digest[SHEAF_DIGEST_BYTES];
    char client[SHEAF_NAME_BYTES];
    uint8_t certificate[SHEAF_DIGEST_BYTES];     /* SHA-256 of the device's certificate in DER */
    char payload_type[SHEAF_PAYLOAD_TYPE_BYTES]; /* name of the encoding */
    uint64_t payload_bytes;
    uint8_t payload_digest[SHEAF_DIGEST_BYTES];
    int64_t weight; /* contribution weight; two's complement on the wire, so that a negative one can be named */
} sheaf_update_statement;

/* "sheaf round v1": signed by the aggregator when a round opens. */
typedef struct {
    char tenant[SHEAF_NAME_BYTES];
    char job[SHEAF_NAME_BYTES];
    uint64_t round;
    uint32_t attempt;
    uint8_t nonce[SHEAF_NONCE_BYTES];
    uint8_t base_model[SHEAF_DIGEST_BYTES];
    uint64_t base_model_bytes; /* of its parameter stream */
    uint8_t plan_digest[SHEAF_DIGEST_BYTES];
    uint8_t certificate[SHEAF_DIGEST_BYTES]; /* SHA-256 of the aggregator's certificate */
    uint64_t opened_unix_ms;
} sheaf_round_statement;

/* "sheaf receipt v1": signed by the aggregator once an update is durable and counted. */
typedef struct {
    char tenant[SHEAF_NAME_BYTES];
    char job[SHEAF_NAME_BYTES];
    uint64_t round;
    uint32_t attempt;
    char client[SHEAF_NAME_BYTES];
    uint8_t update_digest[SHEAF_DIGEST_BYTES]; /* SHA-256 of the update statement's bytes */
    uint8_t payload_digest[SHEAF_DIGEST_BYTES];
    uint64_t accepted_unix_ms;
} sheaf_receipt_statement;

SHEAF_MUST_USE sheaf_status sheaf_update_statement_encode(const sheaf_update_statement *statement, sheaf_buffer *out);
SHEAF_MUST_USE sheaf_status sheaf_update_statement_decode(sheaf_span bytes, sheaf_update_statement *out);
SHEAF_MUST_USE sheaf_status sheaf_round_statement_encode(const sheaf_round_statement *statement, sheaf_buffer *out);
SHEAF_MUST_USE sheaf_status sheaf_round_statement_decode(sheaf_span bytes, sheaf_round_statement *out);
SHEAF_MUST_USE sheaf_status sheaf_receipt_statement_encode(const sheaf_receipt_statement *statement, sheaf_buffer *out);
SHEAF_MUST_USE sheaf_status sheaf_receipt_statement_decode(sheaf_span bytes, sheaf_receipt_statement *out);
