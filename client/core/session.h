/* session.h - the inside of a sheaf_edge: what the files of the core share.
 *
 * Owner:   lies in the caller's sheaf_edge object; holds no memory of its own.
 * Threads: one.
 * Units:   milliseconds of the port's clock, bytes.
 * Errors:  functions return the status that a transition of session.c turns into an event and a next state.
 * Not:     an interface; ports and programs see sheaf/edge.h only. */
#pragma once
#include "common/parameters.h"
#include "proto/frame.h"
#include "proto/plan.h"
#include "proto/statement.h"
#include "sheaf/edge.h"

/* What happened; the columns of the table in session.c. The first group are replies, legal only to what was asked. */
typedef enum {
    SHEAF_ON_WELCOME,
    SHEAF_ON_UNWELCOME, /* Refusal of Hello */
    SHEAF_ON_WAIT,      /* nothing open for this device */
    SHEAF_ON_ROUND,     /* RoundOpen, verified */
    SHEAF_ON_END,       /* JobEnd */
    SHEAF_ON_MODEL_PART,
    SHEAF_ON_NOTED,  /* the answer to Progress */
    SHEAF_ON_UPLOAD, /* go on at next_offset */
    SHEAF_ON_CAST,   /* ModelCast */
    SHEAF_ON_BUSY,   /* Wait on any other request */
    SHEAF_ON_RECEIPT,
    SHEAF_ON_REFUSED,   /* Refusal of anything but Hello */
    SHEAF_ON_FORGOTTEN, /* Refusal not_found of a Chunk: offer again */
    SHEAF_ON_DONE,      /* the state's own work is done */
    SHEAF_ON_FAILED     /* it failed: session.status says how */
} sheaf_session_trigger;

/* Requests in flight are all of one kind: chunks, or queries for the model, up to the window; of all else one. Each is
 * owed one reply; which of them a reply belongs to shows in what it says, or does not matter. */
typedef struct {
    uint32_t in_flight;
    int hello_due;      /* a fresh or lost link introduces itself before anything else */
    pb_size_t asked;    /* tag of what is in flight */
    uint64_t heard_ms;  /* when the silence began */
    uint64_t moved;     /* on the line, when it was last looked at, */
    uint64_t look_ms;   /* and when to look again */
    uint64_t next_ms;   /* no request before */
    uint32_t failures;  /* in a row, without a usable reply */
    sheaf_status stray; /* what came instead of an answer, 0 if nothing did */
} sheaf_session_exchange;

/* s->offset is the next byte that is due: stored and hashed is all before it. */
typedef struct {
    uint64_t cursor;   /* of the next query */
    uint64_t standing; /* bytes from before a restart, to be hashed again */
    uint64_t same;     /* bytes to be copied from the version held */
    int took_shortcut; /* what is here is not only what the aggregator sent for it, one part after the other */
    int plain;         /* a shortcut led to a wrong digest: none until a model is whole */
    int tells_held;    /* the version held may serve */
    int narrow;        /* one query at a time: answers are shorter than was asked for, or all may come by a cast */
    int pulls;         /* a cast was left: no other in this download */
    int casting;       /* takes what is cast */
    int begun;         /* and took some of it */
    uint64_t asked_at; /* offset of the newest query */
    uint64_t passed;   /* bytes of the cast that were not for us */
    uint64_t frame_ms; /* when the last frame came */
} sheaf_session_download;

typedef struct {
    uint64_t first;  /* where the grid of chunks begins */
    uint64_t next;   /* the aggregator holds all before it ... */
    uint64_t held;   /* ... and of what follows, by bits of WIRE.md, this */
    uint64_t cursor; /* of the next chunk to send */
    uint32_t size;   /* of a chunk */
    int drains;      /* nothing more is sent until what is in flight is answered */
} sheaf_session_upload;

/* Where in the parameter stream of the base model we are. */
typedef struct {
    uint64_t offset; /* of the next byte to read */
    int in_tensor;
    uint32_t index;
    sheaf_tensor tensor;
    uint64_t first; /* next value of the tensor */
} sheaf_session_walk;

/* The content of the STATE slot. */
typedef struct {
    uint64_t last_round; /* newest round with a receipt */
    int pending;         /* UPDATE holds an update that has a statement and no receipt */
    uint8_t statement[SHEAF_STATEMENT_BYTES_MAX];
    size_t statement_bytes;
    uint8_t signature[SHEAF_EDGE_SIGNATURE_BYTES_MAX];
    size_t signature_bytes;
    double loss;
    int held_known; /* MODEL holds this version whole, or did when the record was written */
    uint8_t held[SHEAF_DIGEST_BYTES];
    int fetching_known; /* what is unfinished in MODEL is of this one */
    uint8_t fetching[SHEAF_DIGEST_BYTES];
} sheaf_session_record;

typedef struct {
    sheaf_edge_options port;
    sheaf_edge_state state;
    volatile int stop;
    sheaf_status status; /* of the last failure */
    sheaf_session_exchange exchange;
    uint64_t work_ms;  /* no work before */
    uint32_t setbacks; /* rounds given up in a row */
    uint32_t chunk_bytes;

    /* The open round, verified. */
    int round_known;
    sheaf_round_statement round;
    sheaf_plan plan;
    uint8_t seed[SHEAF_DIGEST_BYTES];
    uint64_t barred_round; /* its (round, attempt) was refused, or cannot succeed here */
    uint32_t barred_attempt;

    /* The base model in the MODEL slot. */
    int model_checked; /* the slot was looked at since the start */
    int model_seen;    /* a download was begun since the start: the record is true */
    int model_whole;   /* it holds `model` */
    uint8_t model[SHEAF_DIGEST_BYTES];
    uint64_t offset; /* of the download, the check, or the update that is written */
    sheaf_session_download download;

    /* Training. */
    sheaf_session_walk walk;
    sheaf_edge_progress progress;
    uint32_t told_permille;
    int told_training;

    /* The update. */
    sheaf_session_record record;
    sheaf_update_statement update; /* record.statement, decoded; also filled while encoding */
    sheaf_session_upload upload;
    int update_whole; /* UPDATE holds update.payload_digest: seen in this process */
    unsigned settled; /* times that the pending update was offered for its receipt alone */

    /* One message is read or written at a time. */
    union {
        sheaf_v1_Request request;
        sheaf_v1_Reply reply;
    } message;
    sheaf_span payload; /* of the reply, in the frame buffer */
} sheaf_session;

/* session.c */
sheaf_status sheaf_session_trigger_on(sheaf_session *s, sheaf_session_trigger trigger);
void sheaf_session_tell(sheaf_session *s, const sheaf_edge_event *event);
/* An event of the open round. */
sheaf_edge_event sheaf_session_event(const sheaf_session *s, sheaf_edge_event_kind kind, sheaf_status status);
uint64_t sheaf_session_now(const sheaf_session *s);
/* `base_ms` doubled `times` over, at most `most_ms`, and up to a quarter more at random. */
uint32_t sheaf_session_pause(const sheaf_session *s, uint32_t base_ms, uint32_t times, uint32_t most_ms);
/* `ms` and up to a quarter more at random. */
uint32_t sheaf_session_jitter(const sheaf_session *s, uint32_t ms);
/* SHA-256 in one call. */
sheaf_status sheaf_session_digest(const sheaf_session *s, sheaf_span bytes, uint8_t out[SHEAF_DIGEST_BYTES]);

/* exchange.c */
/* Sends what the state asks for, or takes a reply. Returns SHEAF_OK when something moved, else SHEAF_AGAIN and the
 * pause in *wait_ms. `build` fills message.request and the payload, or says SHEAF_AGAIN when there is nothing to ask
 * at the moment; it is NULL when the state asks for nothing. */
typedef sheaf_status (*sheaf_session_build)(sheaf_session *s, sheaf_span *payload);
sheaf_status sheaf_session_exchange_step(sheaf_session *s, sheaf_session_build build, uint32_t *wait_ms);
/* Gives up what is in flight. */
void sheaf_session_exchange_drop(sheaf_session *s);
/* The next request waits for `ms`. */
void sheaf_session_hold_requests(sheaf_session *s, uint32_t ms);

/* requests.c: one builder per request of WIRE.md */
sheaf_status sheaf_session_make_hello(sheaf_session *s, sheaf_span *payload);
sheaf_status sheaf_session_make_round_query(sheaf_session *s, sheaf_span *payload);
sheaf_status sheaf_session_make_model_query(sheaf_session *s, sheaf_span *payload);
sheaf_status sheaf_session_make_progress(sheaf_session *s, sheaf_span *payload);
sheaf_status sheaf_session_make_offer(sheaf_session *s, sheaf_span *payload);
sheaf_status sheaf_session_make_chunk(sheaf_session *s, sheaf_span *payload);

/* round.c */
/* Reads message.reply's RoundOpen into the session if signature, digests and ranges hold. */
sheaf_status sheaf_session_accept_round(sheaf_session *s);

/* download.c */
sheaf_status sheaf_session_begin_check(sheaf_session *s);
sheaf_status sheaf_session_check_model(sheaf_session *s);  /* a slice of hashing MODEL */
sheaf_status sheaf_session_check_update(sheaf_session *s); /* a slice of hashing UPDATE */
int sheaf_session_model_may_be_here(const sheaf_session *s);
void sheaf_session_model_is_here(sheaf_session *s);
sheaf_status sheaf_session_begin_download(sheaf_session *s);
sheaf_status sheaf_session_use_what_is_here(sheaf_session *s); /* a slice of hashing or copying what is here already */
sheaf_status sheaf_session_take_model_part(sheaf_session *s);  /* SHEAF_OK: whole; SHEAF_AGAIN: ask for more */

/* cast.c */
sheaf_status sheaf_session_take_cast(sheaf_session *s);
/* What a part that does not begin at the next byte means to a cast. */
void sheaf_session_cast_passes(sheaf_session *s, const sheaf_v1_ModelPart *part);
/* Leaves when nothing has come for too long. SHEAF_AGAIN, or SHEAF_OK when it left. */
sheaf_status sheaf_session_cast_listen(sheaf_session *s, uint32_t *wait_ms);
/* `why` SHEAF_OK: without a word. */
void sheaf_session_leave_cast(sheaf_session *s, sheaf_status why);

/* walk.c */
/* The next block of base values into `values` (capacity `most` > 0): tensor, *first and *count. SHEAF_ENDED. */
sheaf_status sheaf_session_walk_next(sheaf_session *s, float *values, size_t most, sheaf_edge_tensor *tensor,
                                     uint64_t *first, size_t *count);

/* training.c */
sheaf_status sheaf_session_begin_load(sheaf_session *s);
sheaf_status sheaf_session_load(sheaf_session *s);
sheaf_status sheaf_session_train(sheaf_session *s);
void sheaf_session_plan_view(const sheaf_session *s, sheaf_edge_plan *out);
void sheaf_session_cancel_training(sheaf_session *s);

/* encode.c */
sheaf_status sheaf_session_begin_encode(sheaf_session *s);
sheaf_status sheaf_session_encode(sheaf_session *s);

/* record.c: the STATE slot */
sheaf_status sheaf_session_read_record(sheaf_session *s);
sheaf_status sheaf_session_write_record(sheaf_session *s);

/* upload.c */
sheaf_status sheaf_session_seal(sheaf_session *s);
/* Signs the stored statement again if the certificate was renewed since, and changes nothing else of it. */
sheaf_status sheaf_session_sign_again(sheaf_session *s);
sheaf_status sheaf_session_begin_upload(sheaf_session *s); /* Upload in answer to an offer */
sheaf_status sheaf_session_take_upload(sheaf_session *s);
sheaf_status sheaf_session_hold_upload(sheaf_session *s); /* a chunk was answered Wait */
/* The next chunk that the aggregator lacks. SHEAF_AGAIN: none until something is answered. */
sheaf_status sheaf_session_next_chunk(sheaf_session *s, uint64_t *offset);
sheaf_status sheaf_session_take_receipt(sheaf_session *s);
sheaf_status sheaf_session_finish(sheaf_session *s);
/* The stored update answers the open round: same round, base model, plan and encoding. */
int sheaf_session_update_fits(const sheaf_session *s);
/* And its statement does too: same attempt, nonce and certificate. */
int sheaf_session_statement_fits(sheaf_session *s);
