/* A slot shows what was last committed and nothing else; one state folder serves one process. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/port/posix/slots.h"

static char folder[] = "/tmp/sheaf-slots-XXXXXX";
static sheaf_slots slots;
static sheaf_edge_storage storage;

static int setup(void **state) {
    (void)state;
    memcpy(folder + sizeof folder - 7, "XXXXXX", 6);
    if (mkdtemp(folder) == NULL || sheaf_slots_open(&slots, folder, NULL) != SHEAF_OK) return -1;
    storage = sheaf_slots_storage(&slots);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    static const char *const files[] = {"model", "model.new", "update", "update.new", "state", "state.new", "lock"};
    char path[SHEAF_PATH_BYTES];
    sheaf_slots_close(&slots);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

static void put(sheaf_edge_slot slot, uint64_t offset, const char *text) {
    assert_int_equal(storage.write(slot, offset, (const uint8_t *)text, strlen(text), storage.context), SHEAF_OK);
}

static sheaf_status get(sheaf_edge_slot slot, uint64_t offset, char *out, size_t size) {
    return storage.read(slot, offset, (uint8_t *)out, size, storage.context);
}

static void nothing_is_there_before_the_first_commit(void **state) {
    (void)state;
    char read[8];
    assert_int_equal(get(SHEAF_EDGE_MODEL, 0, read, 1), SHEAF_E_NOT_FOUND);
    put(SHEAF_EDGE_MODEL, 0, "draft");
    assert_int_equal(get(SHEAF_EDGE_MODEL, 0, read, 1), SHEAF_E_NOT_FOUND);
}

static void a_commit_shows_all_of_the_draft(void **state) {
    (void)state;
    char read[8];
    put(SHEAF_EDGE_UPDATE, 0, "one");
    put(SHEAF_EDGE_UPDATE, 3, "two");
    assert_int_equal(storage.commit(SHEAF_EDGE_UPDATE, storage.context), SHEAF_OK);
    assert_int_equal(get(SHEAF_EDGE_UPDATE, 0, read, 6), SHEAF_OK);
    assert_memory_equal(read, "onetwo", 6);
    assert_int_equal(get(SHEAF_EDGE_UPDATE, 4, read, 2), SHEAF_OK);
    assert_memory_equal(read, "wo", 2);
    assert_int_equal(get(SHEAF_EDGE_UPDATE, 4, read, 3), SHEAF_E_TRUNCATED);
}

static void old_content_stands_until_the_next_commit_and_over_a_restart(void **state) {
    (void)state;
    char read[8];
    put(SHEAF_EDGE_STATE, 0, "old!");
    assert_int_equal(storage.commit(SHEAF_EDGE_STATE, storage.context), SHEAF_OK);
    put(SHEAF_EDGE_STATE, 0, "new");
    assert_int_equal(get(SHEAF_EDGE_STATE, 0, read, 4), SHEAF_OK);
    assert_memory_equal(read, "old!", 4);
    sheaf_slots_close(&slots);
    assert_int_equal(sheaf_slots_open(&slots, folder, NULL), SHEAF_OK);
    assert_int_equal(get(SHEAF_EDGE_STATE, 0, read, 4), SHEAF_OK);
    assert_memory_equal(read, "old!", 4);
    put(SHEAF_EDGE_STATE, 0, "new");
    assert_int_equal(storage.commit(SHEAF_EDGE_STATE, storage.context), SHEAF_OK);
    assert_int_equal(get(SHEAF_EDGE_STATE, 0, read, 4), SHEAF_E_TRUNCATED); /* shorter, and nothing of the old behind */
    assert_int_equal(get(SHEAF_EDGE_STATE, 0, read, 3), SHEAF_OK);
    assert_memory_equal(read, "new", 3);
}

static void a_draft_begins_at_its_beginning(void **state) {
    (void)state;
    assert_int_equal(storage.write(SHEAF_EDGE_MODEL, 3, (const uint8_t *)"x", 1, storage.context), SHEAF_E_CLOSED);
    assert_int_equal(storage.commit(SHEAF_EDGE_MODEL, storage.context), SHEAF_E_CLOSED);
}

static void an_erased_slot_is_empty(void **state) {
    (void)state;
    char read[8];
    assert_int_equal(storage.erase(SHEAF_EDGE_MODEL, storage.context), SHEAF_OK);
    put(SHEAF_EDGE_MODEL, 0, "m");
    assert_int_equal(storage.commit(SHEAF_EDGE_MODEL, storage.context), SHEAF_OK);
    assert_int_equal(get(SHEAF_EDGE_MODEL, 0, read, 1), SHEAF_OK);
    assert_int_equal(storage.erase(SHEAF_EDGE_MODEL, storage.context), SHEAF_OK);
    assert_int_equal(get(SHEAF_EDGE_MODEL, 0, read, 1), SHEAF_E_NOT_FOUND);
}

static void a_second_owner_is_turned_away(void **state) {
    (void)state;
    sheaf_slots second;
    sheaf_problem problem;
    assert_int_equal(sheaf_slots_open(&second, folder, &problem), SHEAF_E_EXISTS);
    assert_non_null(strstr(problem.text, "in use"));
    sheaf_slots_close(&slots);
    assert_int_equal(sheaf_slots_open(&second, folder, &problem), SHEAF_OK);
    sheaf_slots_close(&second);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(nothing_is_there_before_the_first_commit),
        CASE(a_commit_shows_all_of_the_draft),
        CASE(old_content_stands_until_the_next_commit_and_over_a_restart),
        CASE(a_draft_begins_at_its_beginning),
        CASE(an_erased_slot_is_empty),
        CASE(a_second_owner_is_turned_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
