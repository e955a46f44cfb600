/* What a device may send. A request frame that decodes, encodes again, and that encoding decodes to the same payload. And a
 * session of offers and chunks, each a record of two bytes (little-endian: 14 bits of size, 2 of what happens before it) and a
 * frame, goes to the table of uploads as the service's handlers would give it: whatever comes, the table keeps its limits, and
 * a payload is taken as whole exactly when its bytes have the digest of its statement.
 *
 * Statements are believed here without certificate and signature; of a round's terms only its number and a largest size hold.
 * tests/fuzz/make_sessions.py writes the sessions of the corpus. */
#define _XOPEN_SOURCE 700
#include <assert.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/name.h"
#include "proto/frame.h"
#include "server/intake/upload.h"

#define ROUND        7u
#define PAYLOAD_MAX  8192u
#define UPLOADS_MAX  3u
#define CAPACITY     20000u
#define RECORD_BYTES 0x3fffu
#define RECORDS_MAX  64
#define SLICES_MAX   4 /* of what is read again: a payload is far smaller than one */
#define KIND_EXPIRE  1u
#define KIND_RESTART 2u
#define KIND_CLEAR   3u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_frame(const uint8_t *data, size_t size) {
    sheaf_v1_Request request = sheaf_v1_Request_init_zero, again = sheaf_v1_Request_init_zero;
    sheaf_span payload, payload_again;
    if (sheaf_frame_decode_request(sheaf_span_of(data, size), &request, &payload) != SHEAF_OK) return;
    assert(payload.size == 0 || (payload.data >= data && payload.data + payload.size == data + size));
    sheaf_buffer out = {malloc(SHEAF_FRAME_BYTES_MAX(payload.size)), 0, SHEAF_FRAME_BYTES_MAX(payload.size)};
    assert(out.data != NULL);
    sheaf_status status = sheaf_frame_encode_request(&request, payload, &out);
    assert(status == SHEAF_OK); /* every decoded header is within the header's bound */
    status = sheaf_frame_decode_request(sheaf_buffer_span(&out), &again, &payload_again);
    assert(status == SHEAF_OK && again.which_body == request.which_body);
    assert(sheaf_span_equal(payload, payload_again));
    free(out.data);
}

/* --- the table, one for all inputs -------------------------------------------------------------------------------- */

static char folder[64];
static sheaf_spool spool;
static sheaf_uploads *table;
static int kept; /* payloads of this input, which lie in the folder */
static sheaf_problem problem;

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at) {
    (void)info, (void)type, (void)at;
    return remove(path);
}

static void remove_folder(void) {
    sheaf_uploads_free(table);
    (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void make_table(void) {
    const sheaf_uploads_options options = {&spool, UPLOADS_MAX, CAPACITY};
    sheaf_status status = sheaf_uploads_make(&options, &table);
    assert(status == SHEAF_OK);
}

static void make_folder(void) {
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%.40s/sheaf-fuzz-XXXXXX", base != NULL ? base : "/tmp");
    const char *made = mkdtemp(folder);
    assert(made != NULL);
    (void)atexit(remove_folder);
    sheaf_status status = sheaf_spool_open(&spool, folder, &problem);
    if (status == SHEAF_OK) status = sheaf_spool_begin(&spool, ROUND, &problem);
    assert(status == SHEAF_OK);
    make_table();
}

/* No input may find what the one before left. */
static void forget_all(void) {
    uint64_t bytes = 1;
    sheaf_uploads_clear(table);
    uint32_t count = sheaf_uploads_load(table, &bytes);
    assert(count == 0 && bytes == 0);
    sheaf_status status = sheaf_spool_forget_parts(&spool, ROUND, &problem);
    if (status == SHEAF_OK && kept > 0) status = sheaf_spool_prune(&spool, ROUND + 1, &problem);
    if (status == SHEAF_OK && kept > 0) status = sheaf_spool_begin(&spool, ROUND, &problem);
    assert(status == SHEAF_OK);
    kept = 0;
}

static void happen(unsigned kind) {
    if (kind == KIND_EXPIRE) (void)sheaf_uploads_expire(table, UINT64_MAX);
    if (kind == KIND_CLEAR) sheaf_uploads_clear(table);
    if (kind != KIND_RESTART) return;
    sheaf_uploads_free(table); /* the parts stay on disk */
    make_table();
}

/* --- as the handlers do it ---------------------------------------------------------------------------------------- */

static int is_of_the_round(const sheaf_update_statement *statement, const char *client) {
    return statement->round == ROUND && statement->payload_bytes > 0 && statement->payload_bytes <= PAYLOAD_MAX &&
           sheaf_name_ok(client) && strcmp(statement->client, client) == 0;
}

static void take_offer(const sheaf_v1_Request *request) {
    const sheaf_v1_Offer *offer = &request->body.offer;
    sheaf_update_statement statement;
    sheaf_upload *upload = NULL;
    const sheaf_upload_terms terms = {&statement, sheaf_span_of(offer->statement.bytes, offer->statement.size),
                                      sheaf_span_of(offer->signature.bytes, offer->signature.size),
                                      offer->training_loss};
    if (sheaf_update_statement_decode(terms.statement_bytes, &statement) != SHEAF_OK) return;
    if (!is_of_the_round(&statement, request->client)) return;
    sheaf_status status = sheaf_uploads_agree(table, &terms, &upload, &problem);
    for (int slice = 0; status == SHEAF_AGAIN && slice < SLICES_MAX; slice++)
        status = sheaf_upload_read_again(upload, &problem);
    if (upload == NULL) {
        assert(status == SHEAF_E_BUSY || status == SHEAF_E_NO_SPACE);
        return;
    }
    assert(status == SHEAF_OK && upload->part.next_offset < statement.payload_bytes && upload->part.held == 0);
    sheaf_upload_give_back(upload);
}

static int has_digest(sheaf_span bytes, const uint8_t expected[SHEAF_DIGEST_BYTES]) {
    uint8_t found[SHEAF_DIGEST_BYTES];
    sheaf_status status = sheaf_digest_of(bytes, found);
    assert(status == SHEAF_OK);
    return memcmp(found, expected, sizeof found) == 0;
}

static void finish(sheaf_upload *upload) {
    sheaf_span payload = {NULL, 0};
    uint64_t bytes = upload->statement.payload_bytes;
    sheaf_status status = sheaf_upload_verify(upload, &payload, &problem);
    if (status == SHEAF_AGAIN) {
        assert(upload->part.next_offset == 0 && !upload->part.resumed);
        sheaf_upload_give_back(upload);
        return;
    }
    if (status == SHEAF_E_DIGEST) {
        status = sheaf_spool_map_fd(upload->part.fd, bytes, &payload, &problem);
        assert(status == SHEAF_OK && !has_digest(payload, upload->statement.payload_digest));
    } else {
        assert(status == SHEAF_OK && has_digest(payload, upload->statement.payload_digest));
        status = sheaf_upload_keep(upload, &problem);
        assert(status == SHEAF_OK);
        sheaf_uploads_count_kept(table, bytes);
        kept++;
    }
    sheaf_spool_unmap(payload);
    sheaf_upload_drop(upload);
}

static void take_chunk(const sheaf_v1_Request *request, sheaf_span payload) {
    const sheaf_v1_Chunk *chunk = &request->body.chunk;
    sheaf_upload *upload = NULL;
    sheaf_span whose = sheaf_span_of(chunk->payload_digest.bytes, chunk->payload_digest.size);
    sheaf_status status = sheaf_uploads_take(table, request->client, whose, &upload);
    if (status != SHEAF_OK) {
        assert(status == SHEAF_E_NOT_FOUND);
        return;
    }
    uint64_t before = upload->part.next_offset;
    status = sheaf_upload_write(upload, chunk->offset, payload,
                                sheaf_span_of(chunk->chunk_digest.bytes, chunk->chunk_digest.size), &problem);
    assert(status == SHEAF_OK || status == SHEAF_E_TOO_LARGE || status == SHEAF_E_MALFORMED ||
           status == SHEAF_E_DIGEST);
    assert(upload->part.next_offset >= before && upload->part.next_offset <= upload->part.total);
    assert(status == SHEAF_OK || upload->part.next_offset == before);
    if (status == SHEAF_OK && sheaf_part_whole(&upload->part))
        finish(upload);
    else
        sheaf_upload_give_back(upload);
}

static void take_record(const uint8_t *data, size_t size) {
    sheaf_v1_Request request = sheaf_v1_Request_init_zero;
    sheaf_span payload;
    uint64_t bytes = 0;
    if (sheaf_frame_decode_request(sheaf_span_of(data, size), &request, &payload) != SHEAF_OK) return;
    if (request.which_body == sheaf_v1_Request_offer_tag) take_offer(&request);
    if (request.which_body == sheaf_v1_Request_chunk_tag) take_chunk(&request, payload);
    uint32_t count = sheaf_uploads_load(table, &bytes);
    assert(count <= UPLOADS_MAX && bytes <= CAPACITY);
}

static void run_session(const uint8_t *data, size_t size) {
    for (int i = 0; i < RECORDS_MAX && size >= 2; i++) {
        unsigned head = data[0] | (unsigned)data[1] << 8;
        size_t most = size - 2, frame = (head & RECORD_BYTES) < most ? head & RECORD_BYTES : most;
        happen(head >> 14);
        take_record(data + 2, frame);
        data += 2 + frame;
        size -= 2 + frame;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (table == NULL) make_folder();
    check_frame(data, size);
    run_session(data, size);
    forget_all();
    return 0;
}
