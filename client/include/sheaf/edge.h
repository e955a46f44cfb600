/* edge.h - the device's side of Sheaf: join a job, fetch the model, let a trainer work, send the signed update.
 *
 * The core behind this header allocates nothing, starts no thread and calls no operating system: the caller gives the
 * object, two buffers, a trainer, and one struct of functions per thing of the outside world. sheaf/edge_posix.h fills
 * them for Linux; firmware fills them itself.
 *
 * Owner:   all memory is the caller's and must outlive sheaf_edge_fini; strings and structs given to sheaf_edge_init
 *          are borrowed, the structs of functions are copied.
 * Threads: one thread per sheaf_edge; sheaf_edge_request_stop may also come from a signal handler.
 * Units:   bytes, milliseconds (_ms), seconds (_s), thousandths (_permille); values are float32.
 * Errors:  a sheaf_status each. What is wrong with the aggregator, the link, the disk or the trainer is told by an
 *          event and tried again after a growing pause; nothing that was stored is lost.
 * C99; every callback takes its context last. */
#ifndef SHEAF_EDGE_H
#define SHEAF_EDGE_H
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHEAF_EDGE_DIGEST_BYTES        32u /* SHA-256 */
#define SHEAF_EDGE_GROUP_BYTES         16u
#define SHEAF_EDGE_SIGNATURE_BYTES_MAX 80u /* ECDSA P-256 in DER, or Ed25519 */

/* Frame buffer that moves `chunk_bytes` of bulk data per exchange; bigger is faster. */
#define SHEAF_EDGE_FRAME_BYTES(chunk_bytes) (2056u + (chunk_bytes))
#define SHEAF_EDGE_CHUNK_BYTES_MIN          1024u
/* Work buffer, in float32 values: blocks of half as many go to and from the trainer. */
#define SHEAF_EDGE_WORK_VALUES_MIN 128u

/* ---- trainer ---- */

typedef struct {
    const char *name;  /* borrowed for the call */
    const char *dtype; /* "F32": others are refused before the trainer sees them */
    uint32_t index;    /* 0, 1, ... in byte order of the names */
    uint32_t rank;
    const uint64_t *dims; /* rank of them, outermost first */
    uint64_t elements;    /* product of dims */
} sheaf_edge_tensor;

/* What the aggregator asks for in this round; signed by it and checked before anything here is called. */
typedef struct {
    const char *tenant, *job, *client; /* borrowed for the call */
    uint64_t round;
    uint32_t attempt;
    uint32_t epochs;      /* passes over the local examples; >= 1 */
    uint32_t batch;       /* examples per step; >= 1 */
    float learning_rate;  /* > 0 */
    float momentum;       /* 0 <= momentum < 1 */
    uint8_t seed[32];     /* all randomness of training derives from it: the same seed must give the same update */
    int64_t weight_cap;   /* the core signs min(examples, weight_cap) */
    uint32_t progress_s;  /* without growing progress for so long the aggregator stops waiting for this device */
    const char *encoding; /* of the update: "f32" */
} sheaf_edge_plan;

typedef struct {
    int stop;               /* in: not 0 when the device is asked to stop; return SHEAF_STOPPED */
    uint32_t done_permille; /* out: 0..1000, growing */
    double loss;            /* out: mean over the local examples so far; 0 until known */
    uint32_t wait_ms;       /* out, with SHEAF_AGAIN: nothing to do for so long, for a trainer that runs elsewhere */
} sheaf_edge_progress;

/* Order of calls for a round: begin, load..., train until it is not SHEAF_AGAIN, examples, store...; or cancel at any
 * point. None may block for long: the core keeps the link alive between the calls of train. */
typedef struct {
    /* A round starts: forget what is half done. May be NULL. */
    sheaf_status (*begin)(const sheaf_edge_plan *plan, void *context);
    /* Values [first, first + count) of a tensor, in order; a tensor without elements comes once with count 0.
     * SHEAF_E_NAME, SHEAF_E_SHAPE when the model is not this trainer's. */
    sheaf_status (*load)(const sheaf_edge_tensor *tensor, uint64_t first, const float *values, size_t count,
                         void *context);
    /* One slice of training. SHEAF_AGAIN: more to do. SHEAF_OK: done. SHEAF_STOPPED. SHEAF_E_TRAINER and others. */
    sheaf_status (*train)(const sheaf_edge_plan *plan, sheaf_edge_progress *progress, void *context);
    /* Fills values [first, first + count) as they are after training. */
    sheaf_status (*store)(const sheaf_edge_tensor *tensor, uint64_t first, float *values, size_t count, void *context);
    /* How many examples were trained on: the contribution weight before the cap. Asked after training. */
    int64_t (*examples)(void *context);
    /* The round is given up: release what training holds. May be NULL. */
    void (*cancel)(void *context);
    void *context;
} sheaf_trainer;

/* ---- what the device must provide ---- */

/* Whole frames. None of these blocks. A frame may be lost or arrive twice; requests are safe to repeat. Requests must
 * not overtake each other, nor replies: a hole among the answers counts as a loss, and is filled again at once. */
typedef struct {
    /* Takes one request (copied, or sent before it returns). SHEAF_AGAIN while `window` of sheaf_edge_options are on
     * their way; SHEAF_E_NETWORK; SHEAF_E_TOO_LARGE. */
    sheaf_status (*send)(const uint8_t *frame, size_t size, void *context);
    /* The next reply, whole, or a frame of the group joined. SHEAF_AGAIN: not there yet. SHEAF_E_NETWORK: all requests
     * on their way failed and may be sent again. SHEAF_E_TOO_LARGE: it did not fit and is gone. */
    sheaf_status (*receive)(uint8_t *frame, size_t capacity, size_t *size, void *context);
    /* Gives up the requests that are on their way. */
    void (*cancel)(void *context);
    /* SHA-256 of the certificate of the peer that sent the last reply. SHEAF_E_ROLE when that certificate was verified
     * but is no aggregator's; SHEAF_E_CERTIFICATE when there is none. */
    sheaf_status (*peer)(uint8_t fingerprint[SHEAF_EDGE_DIGEST_BYTES], void *context);
    /* From now on takes what is cast to this group, whose frames are sealed with this key; NULL, NULL leaves it. May be
     * NULL: the model is always asked for. */
    sheaf_status (*join)(const uint8_t group[SHEAF_EDGE_GROUP_BYTES], const uint8_t key[SHEAF_EDGE_GROUP_BYTES],
                         void *context);
    /* Grows while bytes of frames move either way, so that a slow line is told from a dead one: while it grows, requests
     * are not given up. May be NULL: then an answer has to be there, as a whole, within reply_ms. */
    uint64_t (*moved)(void *context);
    void *context;
} sheaf_edge_transport;

typedef struct {
    uint64_t (*now_ms)(void *context); /* never goes back; any start */
    void *context;
} sheaf_edge_clock;

typedef struct {
    sheaf_status (*fill)(uint8_t *out, size_t size, void *context); /* for jitter; need not be secret */
    void *context;
} sheaf_edge_random;

/* The device's key and certificate, which may live in a secure element. */
typedef struct {
    sheaf_status (*fingerprint)(uint8_t out[SHEAF_EDGE_DIGEST_BYTES],
                                void *context); /* own certificate, SHA-256 of DER */
    /* *size: capacity in (>= SHEAF_EDGE_SIGNATURE_BYTES_MAX), size out. */
    sheaf_status (*sign)(const uint8_t *message, size_t message_size, uint8_t *signature, size_t *size, void *context);
    /* SHEAF_OK when the signature is that of the certificate which transport.peer named; SHEAF_E_SIGNATURE. */
    sheaf_status (*verify_peer)(const uint8_t *message, size_t message_size, const uint8_t *signature, size_t size,
                                void *context);
    void *context;
} sheaf_edge_signer;

/* SHA-256; one digest at a time. begin also drops an unfinished one. */
typedef struct {
    sheaf_status (*begin)(void *context);
    sheaf_status (*update)(const uint8_t *data, size_t size, void *context);
    sheaf_status (*finish)(uint8_t out[SHEAF_EDGE_DIGEST_BYTES], void *context);
    void *context;
} sheaf_edge_digest;

/* Three places that survive a power loss. Sizes: MODEL the parameter stream, UPDATE the encoded update, STATE at most
 * SHEAF_EDGE_STATE_BYTES_MAX. */
typedef enum { SHEAF_EDGE_MODEL = 0, SHEAF_EDGE_UPDATE = 1, SHEAF_EDGE_STATE = 2 } sheaf_edge_slot;
#define SHEAF_EDGE_SLOTS           3u
#define SHEAF_EDGE_STATE_BYTES_MAX 1152u

typedef struct {
    /* Exactly `size` bytes of what was last committed. SHEAF_E_NOT_FOUND, SHEAF_E_TRUNCATED (fewer are there). */
    sheaf_status (*read)(sheaf_edge_slot slot, uint64_t offset, uint8_t *out, size_t size, void *context);
    /* Offset 0 begins new content, further offsets follow without a hole. Until commit a power loss may leave anything
     * in MODEL and UPDATE (the core checks them by digest), but must leave the old STATE. */
    sheaf_status (*write)(sheaf_edge_slot slot, uint64_t offset, const uint8_t *data, size_t size, void *context);
    /* What was written since offset 0 is now the content. UPDATE and STATE survive a power loss; STATE: all or nothing.
     * MODEL need not: the core checks it by its digest and fetches it again. */
    sheaf_status (*commit)(sheaf_edge_slot slot, void *context);
    /* Fine if it is empty. */
    sheaf_status (*erase)(sheaf_edge_slot slot, void *context);
    /* The next two are both there or both NULL; NULL: a download that a restart breaks off begins anew. */
    /* How many bytes of MODEL were written since offset 0 and not committed, also before a restart; write then goes on
     * at that offset. Bytes that a power loss damaged may be among them: the core checks by digest. 0 when there are none. */
    sheaf_status (*unfinished)(sheaf_edge_slot slot, uint64_t *bytes, void *context);
    sheaf_status (*read_unfinished)(sheaf_edge_slot slot, uint64_t offset, uint8_t *out, size_t size, void *context);
    int keeps_old; /* not 0: MODEL's content can be read until the next commit, so that what is the same in the next
                      version need not be fetched */
    void *context;
} sheaf_edge_storage;

/* ---- events ---- */

typedef enum {
    SHEAF_EDGE_JOINED,       /* the aggregator knows this device */
    SHEAF_EDGE_ROUND_OPENED, /* round, attempt; digest: base model; bytes: its size */
    SHEAF_EDGE_DOWNLOADED,  /* bytes of the base model so far; status not 0: what was kept or copied was not it, anew */
    SHEAF_EDGE_CAST,        /* takes the model from a cast; status not 0: left it at `bytes`, the rest is asked for */
    SHEAF_EDGE_MODEL_READY, /* digest, bytes */
    SHEAF_EDGE_TRAINING,    /* done_permille, loss; when they change by a thousandth or more */
    SHEAF_EDGE_UPDATE_STORED, /* digest of the payload, bytes, weight, loss: durable, nothing has left yet */
    SHEAF_EDGE_UPLOADED,      /* bytes so far */
    SHEAF_EDGE_RECEIPT,       /* the update counts; digest of the payload; statement and signature are the receipt's */
    SHEAF_EDGE_REFUSED,       /* by the aggregator: status, detail; `revoked`: it is asked seldom from now on */
    SHEAF_EDGE_GAVE_UP,       /* this side could not go on with the round: status; it is tried again */
    SHEAF_EDGE_LINK_LOST,     /* status; tried again after a growing pause */
    SHEAF_EDGE_STATE_LOST,    /* the stored state does not have its digest (status): started from nothing */
    SHEAF_EDGE_JOB_ENDED      /* status 0 or why it was given up; round: rounds released; digest: final model or NULL */
} sheaf_edge_event_kind;

typedef struct {
    sheaf_edge_event_kind kind;
    sheaf_status status;
    uint64_t round;
    uint32_t attempt;
    uint32_t done_permille;
    double loss;
    int64_t weight;
    uint64_t bytes;
    const uint8_t *digest; /* SHEAF_EDGE_DIGEST_BYTES, or NULL; pointers are borrowed for the call */
    const char *detail;    /* for people, or NULL */
    const uint8_t *statement;
    size_t statement_bytes;
    const uint8_t *signature;
    size_t signature_bytes;
} sheaf_edge_event;

/* Must not call back into the same sheaf_edge, except sheaf_edge_request_stop. */
typedef void (*sheaf_edge_on_event)(const sheaf_edge_event *event, void *context);

/* ---- the object ---- */

typedef enum {
    SHEAF_EDGE_JOINING = 0,     /* says hello, until welcome */
    SHEAF_EDGE_ASKING,          /* asks for the open round, or waits until it asks again */
    SHEAF_EDGE_CHECKING_UPDATE, /* a stored update fits the round: is it whole? */
    SHEAF_EDGE_CHECKING_MODEL,  /* is the base model already here, and whole? */
    SHEAF_EDGE_DOWNLOADING,     /* fetches the base model and checks its digest */
    SHEAF_EDGE_LOADING,         /* hands the model to the trainer */
    SHEAF_EDGE_IN_TRAINING,     /* slices of training, progress to the aggregator in between */
    SHEAF_EDGE_ENCODING,        /* writes the encoded update */
    SHEAF_EDGE_SEALING,         /* signs it and stores statement and signature */
    SHEAF_EDGE_OFFERING,        /* offers the statement */
    SHEAF_EDGE_UPLOADING,       /* sends the payload in chunks */
    SHEAF_EDGE_FINISHING,       /* stores that the receipt came */
    SHEAF_EDGE_ENDED,           /* the job is over */
    SHEAF_EDGE_STOPPED          /* as asked; a new object over the same storage goes on */
} sheaf_edge_state;

#define SHEAF_EDGE_OBJECT_WORDS 512u
typedef struct {
    uint64_t opaque[SHEAF_EDGE_OBJECT_WORDS];
} sheaf_edge;

typedef struct {
    const char *tenant, *job, *client; /* client is the name in the device's certificate */
    sheaf_trainer trainer;
    sheaf_edge_transport transport;
    sheaf_edge_clock clock;
    sheaf_edge_random random;
    sheaf_edge_signer signer;
    sheaf_edge_digest digest;
    sheaf_edge_storage storage;
    uint8_t *frame; /* SHEAF_EDGE_FRAME_BYTES(chunk) */
    size_t frame_bytes;
    float *work; /* >= SHEAF_EDGE_WORK_VALUES_MIN */
    size_t work_values;
    uint32_t window;   /* requests with bulk data on their way at a time, at most 32; 0 = 1 */
    uint32_t reply_ms; /* silence while replies are owed (no reply, and nothing `moved`), after which requests are sent
                                     again; 0 = 30000 */
    sheaf_edge_on_event on_event; /* may be NULL */
    void *event_context;
} sheaf_edge_options;

/* Reads the stored state. SHEAF_E_USAGE (a missing function, name or buffer), SHEAF_E_MISMATCH (the stored state
 * belongs to another tenant, job or client), or what the storage says. */
SHEAF_MUST_USE sheaf_status sheaf_edge_init(sheaf_edge *edge, const sheaf_edge_options *options);
/* One small step; never blocks. SHEAF_OK: call again at once. SHEAF_AGAIN: nothing to do for *wait_ms. SHEAF_ENDED:
 * the job is over. SHEAF_STOPPED. All else that goes wrong is told by events. */
SHEAF_MUST_USE sheaf_status sheaf_edge_poll(sheaf_edge *edge, uint32_t *wait_ms);
/* The next poll winds up and returns SHEAF_STOPPED; what is stored stays. */
void sheaf_edge_request_stop(sheaf_edge *edge);
sheaf_edge_state sheaf_edge_state_of(const sheaf_edge *edge);
const char *sheaf_edge_state_name(sheaf_edge_state state); /* "joining" ... */
/* Gives up the request on its way and any training. Frees nothing, for nothing was allocated; safe on a zeroed object.
 */
void sheaf_edge_fini(sheaf_edge *edge);

#ifdef __cplusplus
}
#endif
#endif
