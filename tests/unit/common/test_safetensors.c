/* The rules of the safetensors format, each with a file that breaks it; and files of ours that come back as they were.
 */
#include "tests/cmocka.h"

#include "common/file.h"
#include "common/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PATH "safetensors-test.safetensors"

/* A file of this header and `data_bytes` bytes 0, 1, 2 ... */
static size_t build(uint8_t *file, const char *header, size_t data_bytes) {
    size_t size = strlen(header);
    sheaf_store_u64(file, size);
    memcpy(file + 8, header, size);
    for (size_t i = 0; i < data_bytes; i++) file[8 + size + i] = (uint8_t)i;
    return 8 + size + data_bytes;
}

static sheaf_status parse(const char *header, size_t data_bytes, sheaf_model *out, sheaf_problem *problem) {
    uint8_t file[2048];
    size_t size = build(file, header, data_bytes);
    uint8_t *exact = malloc(size); /* so that the sanitizer sees one byte too many */
    memcpy(exact, file, size);
    sheaf_status status = sheaf_safetensors_parse(sheaf_span_of(exact, size), "sample", out, problem);
    free(exact);
    return status;
}

static void refuses(const char *header, size_t data_bytes, const char *why) {
    sheaf_model model;
    sheaf_problem problem;
    assert_int_equal(parse(header, data_bytes, &model, &problem), SHEAF_E_DATA);
    if (strstr(problem.text, why) == NULL) fail_msg("'%s' does not say '%s'", problem.text, why);
}

static void reads_a_valid_file(void **state) {
    (void)state;
    sheaf_model model;
    assert_int_equal(
        parse("{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
              "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[8,8]},"
              "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}   ",
              9, &model, NULL),
        SHEAF_OK);
    assert_int_equal(model.count, 3);
    assert_string_equal(model.tensors[0].tensor.name, "a");
    assert_int_equal(model.stream[model.tensors[0].data_offset], 8);
    assert_int_equal(sheaf_load_u64(model.stream + model.tensors[1].data_offset), UINT64_C(0x0706050403020100));
    assert_int_equal(model.tensors[2].tensor.elements, 0);
    sheaf_model_free(&model);
}

static void refuses_what_breaks_the_header(void **state) {
    (void)state;
    refuses("", 0, "'{'");
    refuses(" {}", 0, "'{'");
    refuses("[]", 0, "'{'");
    refuses("{}x", 0, "not JSON");
    refuses("{", 0, "not JSON");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_"
            "offsets\":[1,2]}}",
            2, "duplicate");
    refuses("{\"__metadata__\":{\"a\":1}}", 0, "strings only");
    refuses("{\"__metadata__\":[]}", 0, "not an object");
    refuses("{\"\xff\":{}}", 0, "not JSON");
}

static void refuses_what_breaks_a_tensor(void **state) {
    (void)state;
    refuses("{\"a\":[]}", 0, "not an object");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 1, "exactly");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":1}}", 1, "exactly");
    refuses("{\"a\":{\"dtype\":\"X8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype");
    refuses("{\"a\":{\"dtype\":8,\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, "not a list");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "whole number");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "whole number");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "8 dimensions");
    refuses("{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, "counted");
    refuses("{\"\\n\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "name");
}

static void refuses_data_that_are_not_covered_exactly(void **state) {
    (void)state;
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "size of the data");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "ends before");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "list of two");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 2, "header speaks of");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 0, "header speaks of");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "hole or overlap");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
            "\"data_offsets\":[1,3]}}",
            3, "overlap");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],"
            "\"data_offsets\":[0,1]}}",
            1, "overlap");
}

static void refuses_lengths_beyond_the_file_and_the_format(void **state) {
    (void)state;
    uint8_t file[16] = {0};
    sheaf_model model;
    sheaf_problem problem;
    for (size_t size = 0; size < 8; size++)
        assert_int_equal(sheaf_safetensors_parse(sheaf_span_of(file, size), "f", &model, &problem), SHEAF_E_DATA);
    sheaf_store_u64(file, 9);
    assert_int_equal(sheaf_safetensors_parse(sheaf_span_of(file, 16), "f", &model, &problem), SHEAF_E_DATA);
    assert_non_null(strstr(problem.text, "ends inside its header"));
    sheaf_store_u64(file, 100000001);
    assert_int_equal(sheaf_safetensors_parse(sheaf_span_of(file, 16), "f", &model, &problem), SHEAF_E_DATA);
    assert_non_null(strstr(problem.text, "100 MB"));
}

static void sample(sheaf_model *model) {
    const sheaf_tensor tensors[] = {{.name = "a", .dtype = "U8", .rank = 1, .dims = {3}},
                                    {.name = "b \"quoted\" \xc3\xa9", .dtype = "F32", .rank = 2, .dims = {2, 2}},
                                    {.name = "c", .dtype = "F64", .rank = 0}};
    assert_int_equal(sheaf_model_make(tensors, 3, model, NULL), SHEAF_OK);
    for (size_t i = 0; i < model->count; i++)
        memset(model->stream + model->tensors[i].data_offset, (int)i + 1, (size_t)model->tensors[i].tensor.bytes);
}

static void what_is_written_reads_back_by_both_readers(void **state) {
    (void)state;
    sheaf_model model, back, parsed;
    sheaf_buffer file;
    const sheaf_metadata metadata = {"round", "7"};
    sample(&model);
    assert_int_equal(sheaf_safetensors_write(PATH, &model, &metadata, 1, NULL), SHEAF_OK);
    assert_int_equal(access(PATH ".new", F_OK), -1);
    assert_int_equal(sheaf_safetensors_read(PATH, 4096, &back, NULL), SHEAF_OK);
    assert_int_equal(sheaf_file_read_whole(PATH, 4096, &file, NULL), SHEAF_OK);
    assert_int_equal(sheaf_safetensors_parse(sheaf_buffer_span(&file), PATH, &parsed, NULL), SHEAF_OK);
    assert_int_equal(back.stream_bytes, model.stream_bytes);
    assert_memory_equal(back.stream, model.stream, (size_t)model.stream_bytes);
    assert_memory_equal(parsed.stream, model.stream, (size_t)model.stream_bytes);
    assert_int_equal(sheaf_load_u64(file.data) % 8, 0);
    assert_non_null(strstr((char *)file.data + 8, "\"__metadata__\":{\"round\":\"7\"}"));
    free(file.data);
    sheaf_model_free(&parsed);
    sheaf_model_free(&back);
    sheaf_model_free(&model);
    unlink(PATH);
}

static void every_tensor_is_aligned_for_its_type(void **state) {
    (void)state;
    sheaf_model model;
    sheaf_safetensors_file file;
    sample(&model);
    assert_int_equal(sheaf_safetensors_write(PATH, &model, NULL, 0, NULL), SHEAF_OK);
    assert_int_equal(sheaf_safetensors_open(PATH, 4096, &file, NULL), SHEAF_OK);
    for (size_t i = 0; i < file.count; i++)
        assert_int_equal(file.offsets[i] % sheaf_dtype_bytes(file.tensors[i].dtype), 0);
    sheaf_safetensors_close(&file);
    sheaf_safetensors_close(&file);
    sheaf_model_free(&model);
    unlink(PATH);
}

static void a_missing_or_larger_file_is_named(void **state) {
    (void)state;
    sheaf_model model, back;
    sheaf_problem problem;
    assert_int_equal(sheaf_safetensors_read("no-such.safetensors", 4096, &back, &problem), SHEAF_E_NOT_FOUND);
    sample(&model);
    assert_int_equal(sheaf_safetensors_write(PATH, &model, NULL, 0, NULL), SHEAF_OK);
    assert_int_equal(sheaf_safetensors_read(PATH, 10, &back, &problem), SHEAF_E_TOO_LARGE);
    sheaf_model_free(&model);
    unlink(PATH);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_valid_file),
        cmocka_unit_test(refuses_what_breaks_the_header),
        cmocka_unit_test(refuses_what_breaks_a_tensor),
        cmocka_unit_test(refuses_data_that_are_not_covered_exactly),
        cmocka_unit_test(refuses_lengths_beyond_the_file_and_the_format),
        cmocka_unit_test(what_is_written_reads_back_by_both_readers),
        cmocka_unit_test(every_tensor_is_aligned_for_its_type),
        cmocka_unit_test(a_missing_or_larger_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
