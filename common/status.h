/* status.h - one list of everything that can go wrong, with pinned numbers, names and texts.
 *
 * Owner:   nobody; all values are constants.
 * Threads: any.
 * Errors:  numbers never change once released, for they travel in frames and stand in logs. Three kinds, by range:
 *          100..199 the peer's (refuse that message, count it under its name, go on), 200..299 the world's (disk,
 *          memory, network: the caller retries, waits or gives the round up), 300..399 the operator's (usage, config,
 *          data files). A broken invariant of ours is an assertion, never a status.
 * Not:     a last-error global; there is none. sheaf_problem carries a text where a person will read it. */
#ifndef SHEAF_COMMON_STATUS_H
#define SHEAF_COMMON_STATUS_H

#if defined(__GNUC__) || defined(__clang__)
#define SHEAF_MUST_USE            __attribute__((warn_unused_result))
#define SHEAF_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define SHEAF_MUST_USE
#define SHEAF_PRINTF(text, first)
#endif

/*      symbol          number  name                text */
#define SHEAF_STATUS_LIST(X)                                                                                           \
    X(OK, 0, "ok", "done")                                                                                             \
    X(AGAIN, 1, "again", "not yet: call again")                                                                        \
    X(ENDED, 2, "ended", "nothing is left to do")                                                                      \
    X(STOPPED, 3, "stopped", "stopped on request")                                                                     \
    X(E_MALFORMED, 100, "malformed", "the bytes do not follow the format")                                             \
    X(E_TRUNCATED, 101, "truncated", "the bytes end before the message does")                                          \
    X(E_TOO_LARGE, 102, "too_large", "larger than the limit allows")                                                   \
    X(E_VERSION, 103, "unknown_version", "a format or protocol version that is not known here")                        \
    X(E_CERTIFICATE, 110, "bad_certificate", "the certificate is missing, expired, or of an unknown authority")        \
    X(E_IDENTITY, 111, "wrong_identity", "the identity in the message differs from the certificate's")                 \
    X(E_ROLE, 112, "wrong_role", "the certificate's role does not allow this")                                         \
    X(E_SIGNATURE, 113, "bad_signature", "the signature does not verify over the bytes received")                      \
    X(E_DIGEST, 114, "wrong_digest", "the bytes do not have the digest that was signed")                               \
    X(E_REVOKED, 115, "revoked", "the certificate was revoked")                                                        \
    X(E_REGION, 116, "wrong_region", "the job does not take devices of this certificate's region")                     \
    X(E_REPLAY, 117, "replay", "this was said before, in another session or at another time")                          \
    X(E_TOKEN, 118, "bad_token", "the enrolment token is unknown, used, expired, or another device's")                 \
    X(E_SEAL, 119, "bad_seal", "the bytes were not sealed for here with the key in use, or were changed since")        \
    X(E_JOB, 120, "unknown_job", "no such job of this tenant is served here")                                          \
    X(E_ROUND, 121, "wrong_round", "not the round that is open")                                                       \
    X(E_NONCE, 122, "wrong_nonce", "not the nonce of the open round")                                                  \
    X(E_BASE_MODEL, 123, "wrong_base_model", "not the model version that the round started from")                      \
    X(E_PLAN, 124, "wrong_plan", "not the plan of the open round")                                                     \
    X(E_LATE, 125, "late", "the round no longer accepts updates")                                                      \
    X(E_CONFLICT, 126, "conflict", "a different update of this device is already counted in this round")               \
    X(E_COHORT_FULL, 127, "cohort_full", "the round has all the devices that it may have")                             \
    X(E_WEIGHT_ZERO, 130, "weight_zero", "the contribution weight is zero")                                            \
    X(E_WEIGHT_NEGATIVE, 131, "weight_negative", "the contribution weight is negative")                                \
    X(E_WEIGHT_CAP, 132, "weight_above_cap", "the contribution weight is above the job's cap")                         \
    X(E_NOT_FINITE, 133, "not_finite", "a value is NaN or infinite")                                                   \
    X(E_RANGE, 134, "out_of_range", "a value does not fit the lattice")                                                \
    X(E_SHAPE, 135, "wrong_shape", "the dimensions differ from the model's")                                           \
    X(E_DTYPE, 136, "wrong_dtype", "the element type is not the one expected")                                         \
    X(E_NAME, 137, "wrong_name", "a name is missing, unknown, duplicate, or has forbidden characters")                 \
    X(E_ENCODING, 138, "wrong_encoding", "an encoding that the plan does not name")                                    \
    X(E_MISMATCH, 139, "mismatch", "two things that must be equal differ")                                             \
    X(E_NO_WEIGHT, 140, "no_weight", "nothing was accepted, so there is nothing to average")                           \
    X(E_NO_QUORUM, 141, "no_quorum", "fewer updates than the cohort minimum were accepted in time")                    \
    X(E_NOT_REPRESENTABLE, 142, "not_representable", "no lattice holds these values, or the mean is not finite")       \
    X(E_BUSY, 150, "busy", "a limit is reached for the moment: try again after the given time")                        \
    X(E_QUOTA, 151, "over_quota", "more than this device may send for the moment: try again after the given time")     \
    X(E_PAUSED, 152, "paused", "the job is paused: try again after the given time")                                    \
    X(E_CANCELLED, 153, "cancelled", "the job was cancelled by its operator")                                          \
    X(E_DISK, 200, "disk", "a file operation failed")                                                                  \
    X(E_NO_SPACE, 201, "no_space", "the disk or the configured space is full")                                         \
    X(E_MEMORY, 202, "memory", "not enough memory")                                                                    \
    X(E_NETWORK, 203, "network", "the connection failed or was lost")                                                  \
    X(E_TIMEOUT, 204, "timeout", "no progress within the allowed time")                                                \
    X(E_ADDRESS_IN_USE, 205, "address_in_use", "another program listens on this address")                              \
    X(E_NOT_FOUND, 206, "not_found", "no such file, entry or object")                                                  \
    X(E_PERMISSION, 207, "permission", "not allowed by the operating system")                                          \
    X(E_CLOSED, 208, "closed", "already closed")                                                                       \
    X(E_CRYPTO, 209, "crypto", "the cryptographic library failed")                                                     \
    X(E_DATABASE, 210, "database", "the database failed")                                                              \
    X(E_CORRUPT, 211, "corrupt", "stored bytes do not have the digest they were stored with")                          \
    X(E_TRAINER, 212, "trainer", "the trainer failed")                                                                 \
    X(E_EXISTS, 213, "exists", "already there")                                                                        \
    X(E_USAGE, 300, "usage", "the command line or the call is wrong")                                                  \
    X(E_CONFIG, 301, "config", "the configuration is wrong")                                                           \
    X(E_DATA, 302, "data", "a data or model file is wrong")                                                            \
    X(E_OVERFLOW, 303, "overflow", "the limits given do not fit 64-bit sums")

typedef enum {
#define SHEAF_STATUS_ENUM(symbol, number, name, text) SHEAF_##symbol = number,
    SHEAF_STATUS_LIST(SHEAF_STATUS_ENUM)
#undef SHEAF_STATUS_ENUM
} sheaf_status;

/* Name and text of a status; "unknown_status" for a number that is not in the list. Static storage. */
const char *sheaf_status_name(sheaf_status status);
const char *sheaf_status_text(sheaf_status status);
/* The status of a number that came from outside; SHEAF_E_MALFORMED when it is not in the list. */
sheaf_status sheaf_status_from_number(long number);

#endif
