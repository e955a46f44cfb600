/* Payloads arrive in any order inside the window, survive the process that received them, and are never taken for another's.
 * Expected bytes are the test's own pattern; expected digests come from OpenSSL's one-shot function over them. */
#define _XOPEN_SOURCE 700
#include "tests/cmocka.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/intake/upload.h"

enum { TOTAL = 1000, CHUNK = 64 };

typedef struct {
    char folder[64];
    sheaf_spool spool;
    sheaf_uploads *uploads;
    uint8_t payload[TOTAL];
    sheaf_update_statement statement;
} world;

static void open_table(world *w, uint64_t capacity) {
    const sheaf_uploads_options options = {&w->spool, 4, capacity};
    assert_int_equal(sheaf_uploads_make(&options, &w->uploads), SHEAF_OK);
}

static int make_world(void **state) {
    world *w = calloc(1, sizeof *w);
    sheaf_problem problem;
    snprintf(w->folder, sizeof w->folder, "/tmp/sheaf-upload-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    assert_int_equal(sheaf_spool_open(&w->spool, w->folder, &problem), SHEAF_OK);
    assert_int_equal(sheaf_spool_begin(&w->spool, 7, &problem), SHEAF_OK);
    for (int i = 0; i < TOTAL; i++) w->payload[i] = (uint8_t)(i * 31 + i / 251);
    w->statement = (sheaf_update_statement){.round = 7, .payload_bytes = TOTAL, .client = "d1"};
    assert_int_equal(EVP_Digest(w->payload, TOTAL, w->statement.payload_digest, NULL, EVP_sha256(), NULL), 1);
    open_table(w, 0);
    *state = w;
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at) {
    (void)info, (void)type, (void)at;
    return remove(path);
}

static int end_world(void **state) {
    world *w = *state;
    sheaf_uploads_free(w->uploads);
    assert_int_equal(nftw(w->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    free(w);
    return 0;
}

static int count_parts(const world *w, char *path, size_t size) {
    char folder[128];
    int count = 0;
    snprintf(folder, sizeof folder, "%s/spool/00000007", w->folder);
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        if (strstr(entry->d_name, ".part") == NULL) continue;
        if (path != NULL) snprintf(path, size, "%s/%s", folder, entry->d_name);
        count++;
    }
    closedir(listing);
    return count;
}

/* Offers, reads again what there is, and returns the offset from which to go on. */
static uint64_t offer(world *w) {
    const sheaf_upload_terms terms = {&w->statement, sheaf_span_of("s", 1), sheaf_span_of("g", 1), 0.5};
    sheaf_upload *upload = NULL;
    sheaf_problem problem;
    sheaf_status status = sheaf_uploads_agree(w->uploads, &terms, &upload, &problem);
    while (status == SHEAF_AGAIN) status = sheaf_upload_read_again(upload, &problem);
    assert_int_equal(status, SHEAF_OK);
    uint64_t next = upload->part.next_offset;
    sheaf_upload_give_back(upload);
    return next;
}

static sheaf_upload *take(world *w) {
    sheaf_upload *upload = NULL;
    assert_int_equal(sheaf_uploads_take(w->uploads, w->statement.client,
                                        sheaf_span_of(w->statement.payload_digest, SHEAF_DIGEST_BYTES), &upload),
                     SHEAF_OK);
    return upload;
}

static sheaf_status put(world *w, uint64_t offset, size_t size, uint64_t *next, uint64_t *held) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_upload *upload = take(w);
    sheaf_status status =
        sheaf_upload_write(upload, offset, sheaf_span_of(w->payload + offset, size), sheaf_span_of(NULL, 0), &problem);
    *next = upload->part.next_offset;
    *held = upload->part.held;
    sheaf_upload_give_back(upload);
    return status;
}

static size_t size_at(uint64_t offset) { return TOTAL - offset < CHUNK ? (size_t)(TOTAL - offset) : CHUNK; }

static void send_rest(world *w, uint64_t from) {
    uint64_t next = from, held = 0;
    for (uint64_t at = from; at < TOTAL; at += CHUNK) assert_int_equal(put(w, at, size_at(at), &next, &held), SHEAF_OK);
    assert_int_equal(next, TOTAL);
    assert_int_equal(held, 0);
}

static void check_payload(world *w) {
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_span payload;
    sheaf_upload *upload = take(w);
    assert_int_equal(sheaf_upload_verify(upload, &payload, &problem), SHEAF_OK);
    assert_int_equal(payload.size, TOTAL);
    assert_memory_equal(payload.data, w->payload, TOTAL);
    sheaf_spool_cool(payload); /* and again from the file */
    assert_memory_equal(payload.data, w->payload, TOTAL);
    sheaf_spool_unmap(payload);
    sheaf_upload_drop(upload);
    assert_int_equal(count_parts(w, NULL, 0), 0);
}

static void chunks_in_any_order_inside_the_window_make_the_payload(void **state) {
    world *w = *state;
    uint64_t seed = 12345, next = 0, held = 0;
    for (int run = 0; run < 50; run++) {
        int order[16], count = (TOTAL + CHUNK - 1) / CHUNK;
        for (int i = 0; i < count; i++) order[i] = i;
        for (int i = count - 1; i > 0; i--) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int j = (int)(seed >> 33) % (i + 1), t = order[i];
            order[i] = order[j], order[j] = t;
        }
        assert_int_equal(offer(w), 0);
        uint8_t got[16] = {0};
        for (int i = 0; i < count; i++) {
            uint64_t at = (uint64_t)order[i] * CHUNK;
            assert_int_equal(put(w, at, size_at(at), &next, &held), SHEAF_OK);
            /* The last chunk before any other tells no grid: it may be passed over. */
            got[order[i]] = i > 0 || order[i] != count - 1;
            uint64_t first = 0, expected = 0;
            while (first < (uint64_t)count && got[first]) first++;
            for (int k = 0; k + (int)first + 1 < count; k++) expected |= (uint64_t)got[first + 1 + (unsigned)k] << k;
            assert_int_equal(next, first == (uint64_t)count ? TOTAL : first * CHUNK);
            assert_int_equal(held, expected);
            assert_int_equal(put(w, at, size_at(at), &next, &held), SHEAF_OK); /* twice changes nothing more */
        }
        if (next != TOTAL) send_rest(w, next);
        check_payload(w);
    }
}

static void what_lies_beyond_the_window_off_the_grid_or_past_the_end_changes_nothing(void **state) {
    world *w = *state;
    uint64_t next = 0, held = 0;
    sheaf_problem problem;
    assert_int_equal(offer(w), 0);
    assert_int_equal(put(w, 0, 4, &next, &held), SHEAF_OK);
    assert_int_equal(put(w, 4 + 65 * 4, 4, &next, &held), SHEAF_OK); /* the 65th ahead */
    assert_int_equal(held, 0);
    assert_int_equal(put(w, 4 + 64 * 4, 4, &next, &held), SHEAF_OK);
    assert_true(held == 1ull << 63);
    assert_int_equal(put(w, 10, 4, &next, &held), SHEAF_E_MALFORMED);
    assert_int_equal(put(w, 8, 3, &next, &held), SHEAF_E_MALFORMED);
    assert_int_equal(put(w, 4, 5, &next, &held), SHEAF_E_MALFORMED);
    assert_int_equal(next, 4);
    assert_true(held == 1ull << 63);
    sheaf_upload *upload = take(w);
    uint8_t bytes[8] = {0};
    const uint64_t wrong[] = {TOTAL - 7, TOTAL, TOTAL + 1, UINT64_MAX, UINT64_MAX - 3};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(
            sheaf_upload_write(upload, wrong[i], sheaf_span_of(bytes, 8), sheaf_span_of(NULL, 0), &problem),
            SHEAF_E_TOO_LARGE);
    sheaf_upload_give_back(upload);
    assert_int_equal(offer(w), 4);
    send_rest(w, 4);
    check_payload(w);
}

static void a_chunk_with_another_digest_is_named_and_changes_nothing(void **state) {
    world *w = *state;
    sheaf_problem problem;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    assert_int_equal(offer(w), 0);
    assert_int_equal(EVP_Digest(w->payload, CHUNK, digest, NULL, EVP_sha256(), NULL), 1);
    sheaf_upload *upload = take(w);
    sheaf_span chunk = sheaf_span_of(w->payload, CHUNK);
    digest[31] ^= 1;
    assert_int_equal(sheaf_upload_write(upload, 0, chunk, sheaf_span_of(digest, 32), &problem), SHEAF_E_DIGEST);
    assert_int_equal(sheaf_upload_write(upload, 0, chunk, sheaf_span_of(digest, 31), &problem), SHEAF_E_MALFORMED);
    assert_int_equal(upload->part.next_offset, 0);
    digest[31] ^= 1;
    assert_int_equal(sheaf_upload_write(upload, 0, chunk, sheaf_span_of(digest, 32), &problem), SHEAF_OK);
    assert_int_equal(upload->part.next_offset, CHUNK);
    sheaf_upload_give_back(upload);
    send_rest(w, CHUNK);
    check_payload(w);
}

/* The process dies: its table is gone without a word, the file stays. */
static void die(world *w) {
    sheaf_uploads_free(w->uploads);
    open_table(w, 0);
}

static void an_upload_goes_on_after_a_restart_where_its_bytes_have_no_hole(void **state) {
    world *w = *state;
    uint64_t next = 0, held = 0;
    for (int chunks = 1; chunks <= 15; chunks++) {
        assert_int_equal(offer(w), 0);
        for (int i = 0; i < chunks; i++) assert_int_equal(put(w, (uint64_t)i * CHUNK, CHUNK, &next, &held), SHEAF_OK);
        if (chunks < 14) { /* one after a hole: it is in the file, but must not count */
            assert_int_equal(put(w, (uint64_t)(chunks + 1) * CHUNK, CHUNK, &next, &held), SHEAF_OK);
            assert_int_equal(held, 1);
        }
        die(w);
        assert_int_equal(offer(w), (uint64_t)chunks * CHUNK);
        die(w); /* before anything came */
        assert_int_equal(offer(w), (uint64_t)chunks * CHUNK);
        send_rest(w, (uint64_t)chunks * CHUNK);
        if (chunks % 2 != 0) { /* it dies with all bytes on disk: the last is asked for again */
            die(w);
            assert_int_equal(offer(w), TOTAL - 1);
            assert_int_equal(put(w, TOTAL - 1, 1, &next, &held), SHEAF_OK);
        }
        check_payload(w);
    }
}

static void damage_on_our_disk_starts_the_upload_over_and_is_no_fault_of_the_device(void **state) {
    world *w = *state;
    uint64_t next = 0, held = 0;
    char path[300];
    sheaf_problem problem;
    sheaf_span payload;
    assert_int_equal(offer(w), 0);
    assert_int_equal(put(w, 0, CHUNK, &next, &held), SHEAF_OK);
    assert_int_equal(count_parts(w, path, sizeof path), 1);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, 5), 1);
    close(fd);
    die(w);
    assert_int_equal(offer(w), CHUNK);
    send_rest(w, CHUNK);
    sheaf_upload *upload = take(w);
    assert_int_equal(sheaf_upload_verify(upload, &payload, &problem), SHEAF_AGAIN);
    assert_int_equal(upload->part.next_offset, 0);
    sheaf_upload_give_back(upload);
    send_rest(w, 0);
    check_payload(w);
}

static void a_file_that_lies_about_its_size_is_not_believed(void **state) {
    world *w = *state;
    uint64_t next = 0, held = 0;
    char path[300];
    const off_t sizes[] = {TOTAL + 1, TOTAL + 16, TOTAL + 17, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(offer(w), 0);
        assert_int_equal(put(w, 0, CHUNK, &next, &held), SHEAF_OK);
        assert_int_equal(count_parts(w, path, sizeof path), 1);
        assert_int_equal(truncate(path, sizes[i]), 0);
        die(w);
        assert_int_equal(offer(w), 0);
        send_rest(w, 0);
        check_payload(w);
    }
}

static void another_payload_never_goes_on_with_this_ones_bytes(void **state) {
    world *w = *state;
    uint64_t next = 0, held = 0;
    assert_int_equal(offer(w), 0);
    assert_int_equal(put(w, 0, CHUNK, &next, &held), SHEAF_OK);
    die(w);
    w->payload[0] ^= 1;
    assert_int_equal(EVP_Digest(w->payload, TOTAL, w->statement.payload_digest, NULL, EVP_sha256(), NULL), 1);
    assert_int_equal(offer(w), 0);
    assert_int_equal(count_parts(w, NULL, 0), 2);
    send_rest(w, 0);
    sheaf_upload_drop(take(w));
    sheaf_problem problem;
    assert_int_equal(sheaf_spool_forget_parts(&w->spool, 7, &problem), SHEAF_OK);
    assert_int_equal(count_parts(w, NULL, 0), 0);
}

static void payloads_that_the_spool_has_no_room_for_are_put_off(void **state) {
    world *w = *state;
    sheaf_uploads_free(w->uploads);
    open_table(w, 2 * TOTAL + 10);
    sheaf_uploads_count_kept(w->uploads, TOTAL);
    assert_int_equal(offer(w), 0);
    sheaf_update_statement second = w->statement;
    snprintf(second.client, sizeof second.client, "d2");
    const sheaf_upload_terms terms = {&second, sheaf_span_of("s", 1), sheaf_span_of("g", 1), 0.5};
    sheaf_upload *upload = NULL;
    sheaf_problem problem;
    assert_int_equal(sheaf_uploads_agree(w->uploads, &terms, &upload, &problem), SHEAF_E_NO_SPACE);
    sheaf_upload_drop(take(w));
    assert_int_equal(sheaf_uploads_agree(w->uploads, &terms, &upload, &problem), SHEAF_OK);
    sheaf_upload_drop(upload);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(chunks_in_any_order_inside_the_window_make_the_payload, make_world, end_world),
        cmocka_unit_test_setup_teardown(what_lies_beyond_the_window_off_the_grid_or_past_the_end_changes_nothing,
                                        make_world, end_world),
        cmocka_unit_test_setup_teardown(a_chunk_with_another_digest_is_named_and_changes_nothing, make_world,
                                        end_world),
        cmocka_unit_test_setup_teardown(an_upload_goes_on_after_a_restart_where_its_bytes_have_no_hole, make_world,
                                        end_world),
        cmocka_unit_test_setup_teardown(damage_on_our_disk_starts_the_upload_over_and_is_no_fault_of_the_device,
                                        make_world, end_world),
        cmocka_unit_test_setup_teardown(a_file_that_lies_about_its_size_is_not_believed, make_world, end_world),
        cmocka_unit_test_setup_teardown(another_payload_never_goes_on_with_this_ones_bytes, make_world, end_world),
        cmocka_unit_test_setup_teardown(payloads_that_the_spool_has_no_room_for_are_put_off, make_world, end_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
