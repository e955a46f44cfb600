/* What two versions of a model have in common is told by runs of bytes that are equal in both; expected runs are found by
 * comparing the streams byte by byte, tensor by tensor. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/digest.h"
#include "server/version.h"

enum { TENSORS = 7, MIN = 1024 };
static const uint64_t elements[TENSORS] = {300, 4, 600, 300, 10, 500, 256};

static void make_model(sheaf_model *out) {
    sheaf_tensor tensors[TENSORS] = {0};
    sheaf_problem problem;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(tensors[i].name, sizeof tensors[i].name, "t%d", i);
        snprintf(tensors[i].dtype, sizeof tensors[i].dtype, "F32");
        tensors[i].rank = 1;
        tensors[i].dims[0] = elements[i];
    }
    assert_int_equal(sheaf_model_make(tensors, TENSORS, out, &problem), SHEAF_OK);
}

/* The version after `base`, in which the tensors of `changed` have other bytes. */
static sheaf_version *follow(sheaf_version *base, unsigned changed) {
    sheaf_model model;
    sheaf_version *version = NULL;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    if (base == NULL)
        make_model(&model);
    else
        assert_int_equal(sheaf_model_copy(&base->model, &model), SHEAF_OK);
    for (int i = 0; i < TENSORS; i++) {
        if (changed >> i & 1) model.stream[model.tensors[i].data_offset + model.tensors[i].tensor.bytes - 1]++;
    }
    assert_int_equal(sheaf_model_digest(&model, digest), SHEAF_OK);
    assert_int_equal(sheaf_version_make(&model, digest, base, &version), SHEAF_OK);
    return version;
}

/* Which bytes need not travel: those of runs of equal tensors, header included, of at least MIN bytes. */
static void mark_same(const sheaf_model *a, const sheaf_model *b, uint8_t *same) {
    uint64_t start = 0, run = 0;
    for (size_t i = 0; i <= a->count; i++) {
        uint64_t end = i < a->count ? a->tensors[i].data_offset + a->tensors[i].tensor.bytes : start;
        int equal = i < a->count && memcmp(a->stream + start, b->stream + start, (size_t)(end - start)) == 0;
        if (!equal) {
            memset(same + run, start - run >= MIN, (size_t)(start - run));
            memset(same + start, 0, (size_t)(end - start));
            run = end;
        }
        start = end;
    }
}

static void check(sheaf_shelf *shelf, const sheaf_version *now, const sheaf_version *held) {
    uint64_t total = now->model.stream_bytes, all = 0;
    uint8_t *same = calloc(1, (size_t)total + 1);
    mark_same(&now->model, &held->model, same);
    for (uint64_t i = 0; i < total; i++) all += same[i];
    for (uint64_t at = 0; at < total; at += 13) {
        sheaf_difference found;
        uint64_t end = at;
        while (end < total && same[end] == same[at]) end++;
        sheaf_shelf_difference(shelf, now, sheaf_span_of(held->digest, SHEAF_DIGEST_BYTES), at, &found);
        assert_int_equal(found.same_bytes, same[at] ? end - at : 0);
        if (!same[at]) assert_int_equal(found.plain_bytes, end - at);
        assert_int_equal(found.same_total, all);
    }
    free(same);
}

static void runs_of_equal_tensors_are_found_for_the_newest_versions(void **state) {
    (void)state;
    const unsigned changes[] = {0x01, 0x7f, 0x54, 0x00, 0x20, 0x02, 0x08, 0x41, 0x10, 0x04, 0x7f, 0x3e};
    enum { COUNT = sizeof changes / sizeof changes[0] };
    sheaf_version *all[COUNT + 1] = {NULL};
    sheaf_shelf shelf;
    sheaf_shelf_init(&shelf);
    all[0] = follow(NULL, 0);
    sheaf_shelf_put(&shelf, all[0]);
    assert_ptr_equal(sheaf_shelf_take(&shelf), all[0]);
    for (int v = 1; v <= COUNT; v++) {
        all[v] = follow(all[v - 1], changes[v - 1]);
        sheaf_shelf_put(&shelf, all[v]);
        assert_ptr_equal(sheaf_shelf_take(&shelf), all[v]);
        for (int held = v < (int)SHEAF_SHELF_PAST ? 0 : v - (int)SHEAF_SHELF_PAST; held < v; held++)
            if (memcmp(all[held]->digest, all[v]->digest, SHEAF_DIGEST_BYTES) != 0) check(&shelf, all[v], all[held]);
    }
    for (int v = 0; v <= COUNT; v++) sheaf_shelf_drop(&shelf, all[v]);
    sheaf_shelf_fini(&shelf);
}

static void the_same_version_has_all_in_common_and_an_unknown_one_nothing(void **state) {
    (void)state;
    sheaf_shelf shelf;
    sheaf_difference found;
    uint8_t unknown[SHEAF_DIGEST_BYTES] = {1};
    sheaf_shelf_init(&shelf);
    sheaf_version *version = follow(NULL, 0);
    sheaf_shelf_put(&shelf, version);
    uint64_t total = version->model.stream_bytes;
    sheaf_shelf_difference(&shelf, version, sheaf_span_of(version->digest, SHEAF_DIGEST_BYTES), 5, &found);
    assert_int_equal(found.same_bytes, total - 5);
    const sheaf_span held[] = {sheaf_span_of(unknown, sizeof unknown), sheaf_span_of(unknown, 31),
                               sheaf_span_of(version->digest, 31), sheaf_span_of(NULL, 0)};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        sheaf_shelf_difference(&shelf, version, held[i], 5, &found);
        assert_int_equal(found.same_bytes, 0);
        assert_int_equal(found.same_total, 0);
        assert_int_equal(found.plain_bytes, total - 5);
    }
    sheaf_shelf_difference(&shelf, version, held[0], total, &found);
    assert_int_equal(found.same_bytes + found.plain_bytes, 0);
    sheaf_shelf_fini(&shelf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_of_equal_tensors_are_found_for_the_newest_versions),
        cmocka_unit_test(the_same_version_has_all_in_common_and_an_unknown_one_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
