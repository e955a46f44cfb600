/* Every mistake in a data file is named with file, place and what was expected. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/trainer/data.h"
#include "common/file.h"

static sheaf_problem problem;

static sheaf_status parse(const char *text, const sheaf_data_options *options, sheaf_dataset *out) {
    return sheaf_csv_parse(sheaf_span_of(text, strlen(text)), options, out, &problem);
}

static void refused(const char *text, const char *expected) {
    sheaf_data_options options = {.path = "t.csv", .features = 2, .classes = 3};
    sheaf_dataset dataset;
    assert_int_equal(parse(text, &options, &dataset), SHEAF_E_DATA);
    assert_null(dataset.values);
    if (strstr(problem.text, expected) == NULL) fail_msg("'%s' does not hold '%s'", problem.text, expected);
}

static void a_table_is_read(void **state) {
    (void)state;
    sheaf_data_options options = {.path = "t.csv", .label = "kind"};
    sheaf_dataset dataset;
    assert_int_equal(parse("\xef\xbb\xbf\"a\",kind, b c \r\n1.5,2,-3e2\r\n\"4\",0,.5\n\n", &options, &dataset),
                     SHEAF_OK);
    assert_int_equal(dataset.count, 2);
    assert_int_equal(dataset.features, 2);
    assert_int_equal(dataset.classes, 3);
    static const float expected[] = {1.5f, -300.0f, 4.0f, 0.5f};
    assert_memory_equal(dataset.values, expected, sizeof expected);
    sheaf_examples examples = sheaf_data_examples(&dataset);
    float features[2];
    uint32_t label;
    examples.read(1, features, &label, examples.context);
    assert_int_equal(label, 0);
    assert_memory_equal(features, expected + 2, sizeof features);
    sheaf_data_free(&dataset);
}

static void mistakes_in_a_table_are_named(void **state) {
    (void)state;
    refused("", "t.csv: is empty");
    refused("1,2,3\n", "t.csv:1: no column is named 'label'");
    refused("label,a,label\n0,1,2\n", "t.csv:1: two columns are named 'label'");
    refused("label\n0\n", "no columns besides the label");
    refused("label,a\n0,1\n", "t.csv:1: 1 feature columns; expected 2");
    refused("label,a,b\n", "no lines after the header");
    refused("label,a,b\n0,1\n", "t.csv:2: 2 fields; expected 3");
    refused("label,a,b\n0,1,2,3\n", "t.csv:2: 4 fields; expected 3");
    refused("label,a,b\n0,1,2\n\n0,1,2\n", "t.csv:3: an empty line");
    refused("label,a,b\n0,1,2\n1,x1,2\n", "t.csv:3: column 'a': 'x1'; expected a finite decimal number");
    refused("label,a,b\n0,1,\n", "column 'b': ''");
    refused("label,a,b\n0,nan,2\n", "column 'a': 'nan'");
    refused("label,a,b\n0,0x10,2\n", "column 'a': '0x10'");
    refused("label,a,b\n0,1e39,2\n", "column 'a': '1e39'");
    refused("label,a,b\n3,1,2\n", "column 'label': '3'; expected a class: a whole number from 0 to 2");
    refused("label,a,b\n0.5,1,2\n", "column 'label': '0.5'");
    refused("label,a,b\n-1,1,2\n", "column 'label': '-1'");
    refused("label,a,b\n0,\"1,2\n", "matching quotes");
}

/* Two images of 2 x 3 and their labels. */
static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 255, 0, 9, 8, 7, 6};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 1};

static sheaf_status parse_idx(sheaf_span image_file, sheaf_span label_file, uint32_t features, uint32_t classes,
                              sheaf_dataset *out) {
    sheaf_data_options options = {.path = "i.idx", .labels = "l.idx", .features = features, .classes = classes};
    return sheaf_idx_parse(image_file, label_file, &options, out, &problem);
}

static void a_pair_of_idx_files_is_read(void **state) {
    (void)state;
    sheaf_dataset dataset;
    assert_int_equal(
        parse_idx(sheaf_span_of(images, sizeof images), sheaf_span_of(labels, sizeof labels), 6, 5, &dataset),
        SHEAF_OK);
    sheaf_examples examples = sheaf_data_examples(&dataset);
    float features[6];
    uint32_t label;
    examples.read(1, features, &label, examples.context);
    static const float expected[] = {255, 0, 9, 8, 7, 6};
    assert_int_equal(label, 1);
    assert_memory_equal(features, expected, sizeof features);
    sheaf_data_free(&dataset);
}

static void refused_idx(const uint8_t *image, size_t image_size, const uint8_t *label, size_t label_size,
                        const char *expected) {
    sheaf_dataset dataset;
    assert_int_equal(parse_idx(sheaf_span_of(image, image_size), sheaf_span_of(label, label_size), 6, 5, &dataset),
                     SHEAF_E_DATA);
    if (strstr(problem.text, expected) == NULL) fail_msg("'%s' does not hold '%s'", problem.text, expected);
}

static void mistakes_in_idx_files_are_named(void **state) {
    (void)state;
    uint8_t bad[sizeof images], few[] = {0, 0, 8, 1, 0, 0, 0, 1, 4}, wrong[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 5};
    for (size_t cut = 0; cut < sizeof images; cut++) refused_idx(images, cut, labels, sizeof labels, "i.idx: ");
    for (size_t cut = 0; cut < sizeof labels; cut++) refused_idx(images, sizeof images, labels, cut, "l.idx: ");
    refused_idx(images, sizeof images - 1, labels, sizeof labels,
                "i.idx: 11 bytes of data; its header of 2 records promises 12");
    refused_idx(images, sizeof images, few, sizeof few, "l.idx: 1 labels; expected 2");
    refused_idx(images, sizeof images, wrong, sizeof wrong, "l.idx: record 1: label 5; expected 0 to 4");
    refused_idx(labels, sizeof labels, labels, sizeof labels, "i.idx: IDX data of 1 dimensions; expected 2 to 4");
    memcpy(bad, images, sizeof bad);
    bad[2] = 0x0d;
    refused_idx(bad, sizeof bad, labels, sizeof labels, "IDX type 0x0d; expected 0x08");
    memcpy(bad, images, sizeof bad);
    memset(bad + 4, 0xff, 12); /* 2^96 bytes */
    refused_idx(bad, sizeof bad, labels, sizeof labels, "promises");
    sheaf_dataset dataset;
    assert_int_equal(
        parse_idx(sheaf_span_of(images, sizeof images), sheaf_span_of(labels, sizeof labels), 7, 5, &dataset),
        SHEAF_E_DATA);
    assert_non_null(strstr(problem.text, "6 features an example; expected 7"));
}

/* Made by Python: gzip.compress(bytes(1000), mtime=0). */
static const uint8_t zeros_gz[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03,
                                   0x63, 0x60, 0x18, 0x05, 0xa3, 0x60, 0x14, 0x0c, 0x77, 0x00,
                                   0x00, 0x80, 0x17, 0x0b, 0x06, 0xe8, 0x03, 0x00, 0x00};

static void gzip_data_is_unpacked_up_to_a_limit(void **state) {
    (void)state;
    sheaf_buffer out;
    assert_int_equal(sheaf_gzip_unpack(sheaf_span_of(zeros_gz, sizeof zeros_gz), 1000, "z", &out, &problem), SHEAF_OK);
    assert_int_equal(out.size, 1000);
    for (size_t i = 0; i < out.size; i++) assert_int_equal(out.data[i], 0);
    free(out.data);
    assert_int_equal(sheaf_gzip_unpack(sheaf_span_of(zeros_gz, sizeof zeros_gz), 999, "z", &out, &problem),
                     SHEAF_E_TOO_LARGE);
    for (size_t cut = 0; cut < sizeof zeros_gz; cut++) {
        assert_int_equal(sheaf_gzip_unpack(sheaf_span_of(zeros_gz, cut), 1000, "z", &out, &problem), SHEAF_E_DATA);
    }
    uint8_t bad[sizeof zeros_gz];
    memcpy(bad, zeros_gz, sizeof bad);
    bad[sizeof bad - 8] ^= 1; /* the checksum */
    assert_int_equal(sheaf_gzip_unpack(sheaf_span_of(bad, sizeof bad), 1000, "z", &out, &problem), SHEAF_E_DATA);
}

static void a_missing_or_short_file_is_named(void **state) {
    (void)state;
    char folder[] = "/tmp/sheaf-data-XXXXXX", path[128], other[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/images.idx", folder);
    snprintf(other, sizeof other, "%s/labels.idx", folder);
    sheaf_data_options options = {.path = path, .labels = other};
    sheaf_dataset dataset;
    assert_int_equal(sheaf_data_load(&options, &dataset, &problem), SHEAF_E_NOT_FOUND);
    assert_non_null(strstr(problem.text, path));
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of(images, sizeof images - 3), 0600, &problem), SHEAF_OK);
    assert_int_equal(sheaf_data_load(&options, &dataset, &problem), SHEAF_E_NOT_FOUND);
    assert_non_null(strstr(problem.text, other));
    assert_int_equal(sheaf_file_replace(other, sheaf_span_of(labels, sizeof labels), 0600, &problem), SHEAF_OK);
    assert_int_equal(sheaf_data_load(&options, &dataset, &problem), SHEAF_E_DATA);
    assert_non_null(strstr(problem.text, "9 bytes of data"));
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of(zeros_gz, sizeof zeros_gz - 1), 0600, &problem), SHEAF_OK);
    assert_int_equal(sheaf_data_load(&options, &dataset, &problem), SHEAF_E_DATA);
    assert_non_null(strstr(problem.text, "ends too early"));
    unlink(path);
    unlink(other);
    rmdir(folder);
}

static void what_is_written_reads_back(void **state) {
    (void)state;
    char folder[] = "/tmp/sheaf-data-XXXXXX", path[128], other[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a", folder);
    snprintf(other, sizeof other, "%s/b", folder);
    sheaf_dataset from, back;
    static const uint32_t picked[] = {1, 0};
    sheaf_data_options csv = {.path = path, .keep_source = 1}, idx = {.path = path, .labels = other};
    static const char table[] = "a,label\n1,0\n2,1\n3,0";
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of(table, sizeof table - 1), 0600, &problem), SHEAF_OK);
    assert_int_equal(sheaf_data_load(&csv, &from, &problem), SHEAF_OK);
    assert_int_equal(sheaf_data_write(&from, (const uint32_t[]){2, 0}, 2, path, NULL, &problem), SHEAF_OK);
    sheaf_buffer text;
    assert_int_equal(sheaf_file_read_whole(path, 1000, &text, &problem), SHEAF_OK);
    assert_string_equal((const char *)text.data, "a,label\n3,0\n1,0\n");
    free(text.data);
    sheaf_data_free(&from);
    assert_int_equal(parse_idx(sheaf_span_of(images, sizeof images), sheaf_span_of(labels, sizeof labels), 0, 0, &from),
                     SHEAF_OK);
    assert_int_equal(sheaf_data_write(&from, picked, 2, path, other, &problem), SHEAF_OK);
    assert_int_equal(sheaf_data_load(&idx, &back, &problem), SHEAF_OK);
    assert_int_equal(back.count, 2);
    assert_int_equal(back.rank, 2);
    assert_int_equal(back.shape[1], 3);
    assert_memory_equal(back.bytes, images + 22, 6);
    assert_memory_equal(back.bytes + 6, images + 16, 6);
    assert_int_equal(back.labels[0], 1);
    sheaf_data_free(&from);
    sheaf_data_free(&back);
    unlink(path);
    unlink(other);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_is_read),
        cmocka_unit_test(mistakes_in_a_table_are_named),
        cmocka_unit_test(a_pair_of_idx_files_is_read),
        cmocka_unit_test(mistakes_in_idx_files_are_named),
        cmocka_unit_test(gzip_data_is_unpacked_up_to_a_limit),
        cmocka_unit_test(a_missing_or_short_file_is_named),
        cmocka_unit_test(what_is_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
