/* Rounds open, collect, reduce, release, fail and start again as round.h promises, also across restarts. */
#include "tests/cmocka.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/kit/service_kit.h"

static void nap(long ms) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void give(device *self, float difference, int64_t weight) {
    update u;
    assert_true(device_await_round(self));
    device_update(self, difference, weight, &u);
    assert_int_equal(device_send(self, &u), sheaf_v1_Reply_receipt_tag);
}

static void start_again(service_kit *kit) {
    sheaf_problem problem = {SHEAF_OK, ""};
    if (sheafd_config_load(kit->config_path, &kit->config, &problem) != SHEAF_OK ||
        sheaf_service_open(&kit->config, &kit->service, &problem) != SHEAF_OK)
        fail_msg("%s", problem.text);
}

static void assert_model(const service_kit *kit, float added) {
    float model[4];
    service_kit_model(kit, model);
    for (int i = 0; i < 4; i++) assert_true(model[i] == (float)(i + 1) + added);
}

static void a_round_in_which_nothing_was_accepted_fails_as_no_weight_and_keeps_the_old_model(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 1, maximum: 4}\n    progress_s: 1\n");
    device *a = device_make(&kit, "a");
    update u;
    assert_true(device_await_round(a));
    uint8_t base[SHEAF_DIGEST_BYTES], nonce[SHEAF_NONCE_BYTES];
    memcpy(base, a->round.base_model, sizeof base);
    memcpy(nonce, a->round.nonce, sizeof nonce);
    device_update(a, 1.0f, 0, &u);
    assert_int_equal(device_send(a, &u), sheaf_v1_Reply_refusal_tag);
    for (int i = 0; i < 500 && a->round.attempt == 1; i++, nap(10)) assert_true(device_await_round(a));
    assert_int_equal(a->round.round, 1);
    assert_int_equal(a->round.attempt, 2);
    assert_memory_equal(a->round.base_model, base, sizeof base);
    assert_memory_not_equal(a->round.nonce, nonce, sizeof nonce);
    assert_int_equal(
        service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 2 AND reason = 140 AND attempt = 1"), 1);
    device_sign(a, &u); /* still of the first attempt */
    assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_LATE);
    give(a, 2.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 2.0f);
    device_free(a);
    service_kit_stop(&kit);
}

static void too_few_updates_fail_as_no_quorum_but_stay_counted_for_the_next_attempt(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 2, target: 2, maximum: 4}\n    progress_s: 1\n");
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    give(a, 1.0f, 1);
    for (int i = 0;
         i < 500 && service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 2 AND reason = 141") < 1; i++)
        nap(10);
    give(b, 3.0f, 1);
    assert_int_equal(b->round.attempt, 2);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 2.0f);
    assert_int_equal(service_kit_query(&kit, "SELECT accepted FROM rounds WHERE outcome = 1"), 2);
    assert_int_equal(service_kit_query(&kit, "SELECT weight FROM rounds WHERE outcome = 1"), 2);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void a_job_whose_rounds_keep_failing_is_given_up_by_name(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(
        &kit,
        "    rounds: 3\n    attempts_max: 2\n    cohort: {minimum: 1, target: 1, maximum: 4}\n    progress_s: 1\n");
    device *a = device_make(&kit, "a");
    while (device_await_round(a)) nap(20);
    assert_int_equal(a->reply.body.end.status, SHEAF_E_NO_WEIGHT);
    assert_int_equal(a->reply.body.end.rounds, 0);
    assert_int_equal(sheaf_service_jobs_ended(kit.service), SHEAF_E_NO_WEIGHT);
    service_kit_restart(&kit); /* it stays given up */
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_E_NO_WEIGHT);
    device_free(a);
    service_kit_stop(&kit);
}

static void silence_with_a_quorum_closes_the_round(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 3, maximum: 4}\n    progress_s: 1\n");
    device *a = device_make(&kit, "a"), *silent = device_make(&kit, "silent");
    assert_true(device_await_round(silent));
    give(a, 4.0f, 9);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 4.0f);
    device_free(a), device_free(silent);
    service_kit_stop(&kit);
}

static void progress_holds_a_round_open_and_silence_does_not(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 2, maximum: 4}\n    progress_s: 1\n");
    device *a = device_make(&kit, "a"), *working = device_make(&kit, "working");
    assert_true(device_await_round(working));
    give(a, 4.0f, 1);
    sheaf_v1_Request request = device_request(working);
    request.which_body = sheaf_v1_Request_progress_tag;
    request.body.progress.round = 1;
    request.body.progress.attempt = 1;
    for (uint32_t i = 1; i <= 5; i++) { /* 2 s in all: twice the patience */
        request.body.progress.done_permille = 100 * i;
        device_exchange(working, &request, sheaf_span_of(NULL, 0));
        assert_int_equal(working->reply.which_body, sheaf_v1_Reply_wait_tag);
        nap(400);
        assert_int_equal(sheaf_service_jobs_ended(kit.service), SHEAF_AGAIN);
    }
    for (int i = 0; i < 8 && sheaf_service_jobs_ended(kit.service) == SHEAF_AGAIN;
         i++) { /* the same permille is no progress */
        device_exchange(working, &request, sheaf_span_of(NULL, 0));
        nap(400);
    }
    assert_int_equal(sheaf_service_jobs_ended(kit.service), SHEAF_OK);
    assert_model(&kit, 4.0f);
    device_free(a), device_free(working);
    service_kit_stop(&kit);
}

static void a_deadline_closes_the_round_however_much_moves(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(
        &kit,
        "    rounds: 1\n    cohort: {minimum: 1, target: 4, maximum: 100}\n    progress_s: 600\n    deadline_s: 1\n");
    device *a = device_make(&kit, "a");
    give(a, 4.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    device_free(a);
    service_kit_stop(&kit);
}

static void more_devices_than_the_maximum_are_asked_to_wait(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 1, maximum: 1}\n");
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    assert_true(device_await_round(a));
    assert_int_equal(device_ask_round(b, 0), sheaf_v1_Reply_wait_tag);
    assert_int_equal(device_told(b), SHEAF_E_COHORT_FULL);
    update u;
    b->round = a->round;
    memcpy(b->plan_digest, a->plan_digest, SHEAF_DIGEST_BYTES);
    device_update(b, 1.0f, 1, &u); /* it may not slip in by an offer either */
    assert_int_equal(device_offer(b, &u), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(b), SHEAF_E_COHORT_FULL);
    give(a, 1.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void more_uploads_than_the_limit_are_asked_to_wait(void **state) {
    (void)state;
    service_kit kit = {0}; /* limits.uploads is 4 */
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 5, target: 5, maximum: 5}\n");
    device *fleet[5];
    update updates[5];
    for (int i = 0; i < 5; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "d%d", i);
        fleet[i] = device_make(&kit, name);
        assert_true(device_await_round(fleet[i]));
        device_update(fleet[i], (float)i, 1, &updates[i]);
    }
    for (int i = 0; i < 4; i++) assert_int_equal(device_offer(fleet[i], &updates[i]), sheaf_v1_Reply_upload_tag);
    assert_int_equal(device_offer(fleet[4], &updates[4]), sheaf_v1_Reply_wait_tag);
    assert_int_equal(device_told(fleet[4]), SHEAF_E_BUSY);
    for (int i = 0; i < 5; i++) assert_int_equal(device_send(fleet[i], &updates[i]), sheaf_v1_Reply_receipt_tag);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 2.0f);
    for (int i = 0; i < 5; i++) device_free(fleet[i]);
    service_kit_stop(&kit);
}

/* limits.client_uploads is 32 unless configured. An upload that was begun may always be ended; another begins in the next
 * round. */
static void a_device_that_begins_too_many_payloads_waits_for_the_next_round(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 2\n    cohort: {minimum: 2, target: 2, maximum: 2}\n");
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    update u, beyond;
    assert_true(device_await_round(a));
    for (int i = 1; i <= 32; i++) {
        device_update(a, (float)i, 1, &u);
        assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_upload_tag);
        assert_int_equal(device_offer(a, &u), sheaf_v1_Reply_upload_tag); /* the same again is no other */
    }
    device_update(a, 33.0f, 1, &beyond);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(device_offer(a, &beyond), sheaf_v1_Reply_wait_tag);
        assert_int_equal(device_told(a), SHEAF_E_QUOTA);
        assert_true(a->reply.body.wait.retry_ms > 0);
    }
    assert_int_equal(device_chunk(a, &u, 0, u.payload_size), sheaf_v1_Reply_receipt_tag);
    give(b, 0.0f, 1); /* another's count is another's */
    for (int i = 0; i < 500 && a->round.round == 1; i++, nap(10)) assert_true(device_await_round(a));
    assert_int_equal(a->round.round, 2);
    device_update(a, 33.0f, 1, &beyond);
    assert_int_equal(device_send(a, &beyond), sheaf_v1_Reply_receipt_tag);
    give(b, 0.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 16.0f + 16.5f);
    device_free(a), device_free(b);
    service_kit_stop_service(&kit);
    assert_int_equal(service_kit_query(&kit, "SELECT sum(count) FROM refusals WHERE reason = 'over_quota'"), 3);
    service_kit_stop(&kit);
}

static void a_device_that_dies_in_mid_upload_frees_its_place(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 2, maximum: 4}\n    progress_s: 1\n");
    device *dying = device_make(&kit, "dying"), *a = device_make(&kit, "a");
    update u;
    assert_true(device_await_round(dying));
    device_update(dying, 1.0f, 1, &u);
    assert_int_equal(device_offer(dying, &u), sheaf_v1_Reply_upload_tag);
    assert_int_equal(device_chunk(dying, &u, 0, 8), sheaf_v1_Reply_upload_tag);
    give(a, 4.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 4.0f);
    device_free(dying), device_free(a);
    service_kit_stop(&kit);
}

static void a_restart_goes_on_with_the_open_round_and_what_it_accepted(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 2\n    cohort: {minimum: 2, target: 2, maximum: 2}\n");
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    give(a, 1.0f, 3);
    uint8_t nonce[SHEAF_NONCE_BYTES];
    memcpy(nonce, a->round.nonce, sizeof nonce);
    service_kit_restart(&kit);
    assert_int_equal(device_ask_round(a, 0), sheaf_v1_Reply_wait_tag); /* its update is counted */
    give(b, 5.0f, 1);
    assert_memory_equal(nonce, b->round.nonce, sizeof nonce);
    for (int i = 0; i < 500 && service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 1") < 1; i++)
        nap(10);
    assert_model(&kit, 2.0f);
    service_kit_restart(&kit); /* between rounds */
    give(a, 1.0f, 1);
    service_kit_restart(&kit);
    give(b, 3.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 4.0f);
    service_kit_restart(&kit); /* and it stays ended */
    assert_false(device_await_round(a));
    assert_int_equal(a->reply.body.end.rounds, 2);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void an_accepted_payload_that_was_damaged_on_disk_halts_the_job_by_name(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 2, target: 2, maximum: 2}\n");
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    give(a, 1.0f, 1);
    service_kit_stop_service(&kit);
    char path[1200];
    (void)snprintf(path, sizeof path, "%s/acme/job/spool/00000001/a.update", kit.state);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    int first = fgetc(file);
    assert_true(fseek(file, 0, SEEK_SET) == 0 && fputc(first ^ 1, file) != EOF);
    fclose(file);
    assert_int_equal(sheafd_config_load(kit.config_path, &kit.config, &(sheaf_problem){0}), SHEAF_OK);
    assert_int_equal(sheaf_service_open(&kit.config, &kit.service, &(sheaf_problem){0}), SHEAF_OK);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_E_CORRUPT);
    service_kit_stop_service(&kit);
    file = fopen(path, "r+"); /* restored from a backup */
    assert_true(file != NULL && fputc(first, file) != EOF);
    fclose(file);
    assert_int_equal(sheafd_config_load(kit.config_path, &kit.config, &(sheaf_problem){0}), SHEAF_OK);
    assert_int_equal(sheaf_service_open(&kit.config, &kit.service, &(sheaf_problem){0}), SHEAF_OK);
    give(b, 3.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 2.0f);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

static void a_device_with_receipts_of_another_run_is_told_so(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 1, maximum: 2}\n");
    device *a = device_make(&kit, "a");
    assert_int_equal(device_ask_round(a, 1), sheaf_v1_Reply_refusal_tag);
    assert_int_equal(device_told(a), SHEAF_E_ROUND);
    device_free(a);
    service_kit_stop(&kit);
}

static void payloads_of_old_rounds_and_old_models_are_removed(void **state) {
    (void)state;
    service_kit kit = {0};
    char path[1200];
    service_kit_start(
        &kit,
        "    rounds: 4\n    cohort: {minimum: 1, target: 1, maximum: 1}\n    retain: {payload_rounds: 2, models: 1}\n");
    device *a = device_make(&kit, "a");
    /* Left behind by a crash between a commit and its clean-up, long ago. */
    (void)snprintf(path, sizeof path, "%s/acme/job/spool/00000000", kit.state);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int round = 1; round <= 4; round++) {
        do assert_true(device_await_round(a));
        while (a->round.round != (uint64_t)round);
        give(a, 1.0f, 1);
    }
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    service_kit_stop_service(&kit);
    for (int round = 1; round <= 4; round++) {
        (void)snprintf(path, sizeof path, "%s/acme/job/spool/%08d/a.update", kit.state, round);
        FILE *file = fopen(path, "r");
        assert_int_equal(file != NULL, round >= 3);
        if (file != NULL) fclose(file);
    }
    (void)snprintf(path, sizeof path, "%s/acme/job/spool/00000000", kit.state);
    assert_int_equal(access(path, F_OK), -1);
    assert_model(&kit, 4.0f);
    device_free(a);
    service_kit_stop(&kit);
}

static void waiting_devices_do_not_stop_the_clock_of_a_later_attempt(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(
        &kit,
        "    rounds: 1\n    attempts_max: 2\n    cohort: {minimum: 2, target: 2, maximum: 4}\n    progress_s: 1\n");
    device *a = device_make(&kit, "a");
    give(a, 1.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_E_NO_QUORUM);
    assert_int_equal(service_kit_query(&kit, "SELECT count(*) FROM rounds WHERE outcome = 2 AND reason = 141"), 2);
    service_kit_stop_service(&kit);
    /* More attempts are allowed: the job goes on, and what was acknowledged still counts. */
    service_kit_configure(&kit,
                          "    rounds: 1\n    attempts_max: 5\n    cohort: {minimum: 1, target: 1, maximum: 4}\n");
    start_again(&kit);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 1.0f);
    device_free(a);
    service_kit_stop(&kit);
}

static void asking_for_the_same_bytes_holds_no_round_open(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 2, maximum: 4}\n    progress_s: 1\n");
    device *a = device_make(&kit, "a"), *staller = device_make(&kit, "staller");
    update u;
    assert_true(device_await_round(staller));
    device_update(staller, 1.0f, 1, &u);
    give(a, 4.0f, 1);
    sheaf_v1_Request request = device_request(staller);
    request.which_body = sheaf_v1_Request_model_tag;
    memcpy(request.body.model.digest.bytes, staller->round.base_model, SHEAF_DIGEST_BYTES);
    request.body.model.digest.size = SHEAF_DIGEST_BYTES;
    request.body.model.bytes_max = 1;
    for (int i = 0; i < 60 && sheaf_service_jobs_ended(kit.service) == SHEAF_AGAIN; i++) {
        device_exchange(staller, &request, sheaf_span_of(NULL, 0));
        (void)device_offer(staller, &u);
        nap(50);
    }
    assert_int_equal(sheaf_service_jobs_ended(kit.service), SHEAF_OK);
    device_free(a), device_free(staller);
    service_kit_stop(&kit);
}

static void an_impossible_recovery_is_refused_and_a_possible_one_goes_on(void **state) {
    (void)state;
    service_kit kit = {0};
    sheaf_problem problem = {SHEAF_OK, ""};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 3, target: 3, maximum: 3}\n");
    device *a = device_make(&kit, "a"), *b = device_make(&kit, "b");
    give(a, 1.0f, 1);
    give(b, 3.0f, 1);
    service_kit_stop_service(&kit);
    service_kit_configure(&kit, "    rounds: 1\n    cohort: {minimum: 1, target: 1, maximum: 1}\n");
    for (int i = 0; i < 10; i++) { /* the recovered updates were once handed to workers too early */
        assert_int_equal(sheafd_config_load(kit.config_path, &kit.config, &problem), SHEAF_OK);
        assert_int_equal(sheaf_service_open(&kit.config, &kit.service, &problem), SHEAF_E_CONFIG);
        assert_non_null(strstr(problem.text, "cohort.maximum"));
        sheafd_config_free(&kit.config);
    }
    service_kit_configure(&kit, "    rounds: 1\n    cohort: {minimum: 2, target: 2, maximum: 2}\n");
    start_again(&kit);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 2.0f);
    service_kit_stop_service(&kit);
    /* More rounds than before: an ended job goes on. */
    service_kit_configure(&kit, "    rounds: 2\n    cohort: {minimum: 1, target: 1, maximum: 1}\n");
    start_again(&kit);
    give(a, 1.0f, 1);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 3.0f);
    device_free(a), device_free(b);
    service_kit_stop(&kit);
}

typedef struct {
    device *self;
    const update *u;
    int whole; /* 0: only the offer */
    pb_size_t answer;
} talk;

static void *run_talk(void *context) {
    talk *work = context;
    work->answer =
        work->whole ? device_chunk(work->self, work->u, 0, work->u->payload_size) : device_offer(work->self, work->u);
    return NULL;
}

/* Three requests that meet in one batch: the thread of the job is held up by a lock on the database. */
static void an_offer_beside_its_own_last_chunk_gets_no_receipt_before_the_commit(void **state) {
    (void)state;
    service_kit kit = {0};
    service_kit_start(&kit, "    rounds: 1\n    cohort: {minimum: 2, target: 2, maximum: 4}\n");
    device *a = device_make(&kit, "a"), *again = device_twin(a), *b = device_make(&kit, "b");
    update of_a, of_b;
    char path[1100];
    sqlite3 *database = NULL;
    assert_true(device_await_round(a) && device_await_round(b));
    device_update(a, 1.0f, 1, &of_a);
    device_update(b, 3.0f, 1, &of_b);
    assert_int_equal(device_offer(a, &of_a), sheaf_v1_Reply_upload_tag);
    assert_int_equal(device_offer(b, &of_b), sheaf_v1_Reply_upload_tag);
    (void)snprintf(path, sizeof path, "%s/state.db", kit.state);
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    talk talks[] = {{b, &of_b, 1, 0}, {a, &of_a, 1, 0}, {again, &of_a, 0, 0}};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_talk, &talks[i]), 0);
        nap(200);
    }
    assert_int_equal(sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(database);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(talks[0].answer, sheaf_v1_Reply_receipt_tag);
    assert_int_equal(talks[1].answer, sheaf_v1_Reply_receipt_tag);
    assert_int_equal(talks[2].answer, sheaf_v1_Reply_wait_tag);
    assert_int_equal(device_told(again), SHEAF_E_BUSY);
    assert_int_equal(service_kit_wait_end(&kit), SHEAF_OK);
    assert_model(&kit, 2.0f);
    device_free(a), device_free(again), device_free(b);
    service_kit_stop(&kit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_in_which_nothing_was_accepted_fails_as_no_weight_and_keeps_the_old_model),
        cmocka_unit_test(too_few_updates_fail_as_no_quorum_but_stay_counted_for_the_next_attempt),
        cmocka_unit_test(a_job_whose_rounds_keep_failing_is_given_up_by_name),
        cmocka_unit_test(silence_with_a_quorum_closes_the_round),
        cmocka_unit_test(progress_holds_a_round_open_and_silence_does_not),
        cmocka_unit_test(a_deadline_closes_the_round_however_much_moves),
        cmocka_unit_test(more_devices_than_the_maximum_are_asked_to_wait),
        cmocka_unit_test(more_uploads_than_the_limit_are_asked_to_wait),
        cmocka_unit_test(a_device_that_begins_too_many_payloads_waits_for_the_next_round),
        cmocka_unit_test(a_device_that_dies_in_mid_upload_frees_its_place),
        cmocka_unit_test(a_restart_goes_on_with_the_open_round_and_what_it_accepted),
        cmocka_unit_test(an_accepted_payload_that_was_damaged_on_disk_halts_the_job_by_name),
        cmocka_unit_test(a_device_with_receipts_of_another_run_is_told_so),
        cmocka_unit_test(payloads_of_old_rounds_and_old_models_are_removed),
        cmocka_unit_test(waiting_devices_do_not_stop_the_clock_of_a_later_attempt),
        cmocka_unit_test(asking_for_the_same_bytes_holds_no_round_open),
        cmocka_unit_test(an_impossible_recovery_is_refused_and_a_possible_one_goes_on),
        cmocka_unit_test(an_offer_beside_its_own_last_chunk_gets_no_receipt_before_the_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
