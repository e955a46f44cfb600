/* A model is its parameter stream: the digest below was computed by a few lines of Python (struct and hashlib) from the
 * layout in parameters.h. */
#include "tests/cmocka.h"

#include "common/model.h"

static const sheaf_tensor pair[] = {
    {.name = "b.weight", .dtype = "F32", .rank = 2, .dims = {2, 3}},
    {.name = "a", .dtype = "I64", .rank = 0},
};

static void fill(sheaf_model *model) {
    uint8_t *a = model->stream + model->tensors[0].data_offset;
    uint8_t *b = model->stream + model->tensors[1].data_offset;
    sheaf_store_u64(a, (uint64_t)-7);
    for (unsigned i = 0; i < 6; i++) sheaf_store_f32(b + 4 * i, (float)i);
}

static void make(sheaf_model *model) {
    assert_int_equal(sheaf_model_make(pair, 2, model, NULL), SHEAF_OK);
    fill(model);
}

static void digest_is_that_of_the_documented_stream(void **state) {
    (void)state;
    sheaf_model model;
    uint8_t digest[SHEAF_DIGEST_BYTES];
    char hex[2 * SHEAF_DIGEST_BYTES + 1];
    make(&model);
    assert_int_equal(model.stream_bytes, 127);
    assert_int_equal(model.elements, 7);
    assert_int_equal(sheaf_model_digest(&model, digest), SHEAF_OK);
    sheaf_hex(digest, sizeof digest, hex);
    assert_string_equal(hex, "8b0e3d70888589d4da8b9d0c30bdaa7e0b1756e701723cf6db87a42892f62e4c");
    sheaf_model_free(&model);
}

static void stream_and_copy_come_back_equal(void **state) {
    (void)state;
    sheaf_model model, back, copy;
    make(&model);
    sheaf_span stream = sheaf_span_of(model.stream, (size_t)model.stream_bytes);
    assert_int_equal(sheaf_model_from_stream(stream, &back, NULL), SHEAF_OK);
    assert_int_equal(sheaf_model_same_shape(&model, &back, NULL), SHEAF_OK);
    assert_memory_equal(back.stream, model.stream, stream.size);
    assert_int_equal(back.tensors[1].data_offset, model.tensors[1].data_offset);
    assert_int_equal(back.tensors[1].first, 1);
    assert_int_equal(sheaf_model_copy(&back, &copy), SHEAF_OK);
    sheaf_model_free(&back);
    assert_memory_equal(copy.stream, model.stream, stream.size);
    assert_ptr_equal(sheaf_model_find(&copy, "b.weight"), &copy.tensors[1]);
    assert_null(sheaf_model_find(&copy, "b"));
    sheaf_model_free(&copy);
    sheaf_model_free(&copy);
    sheaf_model_free(&model);
}

static void every_cut_is_truncated_unless_it_falls_between_tensors(void **state) {
    (void)state;
    sheaf_model model, back;
    make(&model);
    size_t first = (size_t)model.tensors[0].data_offset + 8;
    for (size_t cut = 0; cut < model.stream_bytes; cut++) {
        sheaf_status status = sheaf_model_from_stream(sheaf_span_of(model.stream, cut), &back, NULL);
        assert_int_equal(status, cut == 0 || cut == first ? SHEAF_OK : SHEAF_E_TRUNCATED);
        sheaf_model_free(&back);
    }
    sheaf_model_free(&model);
}

/* Changes one byte of the sample's stream and reads it. */
static sheaf_status with_byte(size_t at, uint8_t value) {
    sheaf_model model, back;
    make(&model);
    model.stream[at] = value;
    sheaf_status status = sheaf_model_from_stream(sheaf_span_of(model.stream, (size_t)model.stream_bytes), &back, NULL);
    sheaf_model_free(&back);
    sheaf_model_free(&model);
    return status;
}

static void wrong_headers_are_malformed(void **state) {
    (void)state;
    assert_int_equal(with_byte(0, 0), SHEAF_E_MALFORMED);    /* empty name */
    assert_int_equal(with_byte(0, 200), SHEAF_E_MALFORMED);  /* name too long */
    assert_int_equal(with_byte(7, 1), SHEAF_E_MALFORMED);    /* name of 2^56 bytes */
    assert_int_equal(with_byte(8, '\n'), SHEAF_E_MALFORMED); /* control character */
    assert_int_equal(with_byte(8, 'c'), SHEAF_E_MALFORMED);  /* names out of order */
    assert_int_equal(with_byte(17, 'X'), SHEAF_E_MALFORMED); /* unknown type */
    assert_int_equal(with_byte(20, 9), SHEAF_E_MALFORMED);   /* rank */
    assert_int_equal(with_byte(28, 7), SHEAF_E_MALFORMED);   /* data bytes differ from the shape's */
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    sheaf_tensor tensor = {.name = "x", .dtype = "U8", .rank = 2, .dims = {UINT64_C(1) << 32, UINT64_C(1) << 32}};
    sheaf_model model;
    assert_int_equal(sheaf_tensor_measure(&tensor), SHEAF_E_MALFORMED);
    tensor.dims[1] = UINT64_C(1) << 31;
    assert_int_equal(sheaf_tensor_measure(&tensor), SHEAF_OK);
    assert_int_equal(sheaf_model_make(&tensor, 1, &model, NULL), SHEAF_E_TOO_LARGE);
    tensor.dtype[1] = '9';
    assert_int_equal(sheaf_tensor_measure(&tensor), SHEAF_E_DTYPE);
    tensor.rank = 9;
    assert_int_equal(sheaf_model_make(&tensor, 1, &model, NULL), SHEAF_E_DTYPE);
}

static void a_name_stands_once(void **state) {
    (void)state;
    const sheaf_tensor twice[] = {pair[0], pair[1], pair[0]};
    sheaf_problem problem;
    sheaf_model model;
    assert_int_equal(sheaf_model_make(twice, 3, &model, &problem), SHEAF_E_NAME);
    assert_non_null(strstr(problem.text, "b.weight"));
    /* and so it does in a stream */
    uint8_t stream[2 * 127];
    make(&model);
    size_t first = (size_t)model.tensors[0].data_offset + 8;
    memcpy(stream, model.stream, first);
    memcpy(stream + first, model.stream, first);
    sheaf_model_free(&model);
    assert_int_equal(sheaf_model_from_stream(sheaf_span_of(stream, 2 * first), &model, NULL), SHEAF_E_MALFORMED);
}

static sheaf_status compare(const sheaf_tensor *tensors, size_t count, sheaf_problem *problem) {
    sheaf_model a, b;
    make(&a);
    assert_int_equal(sheaf_model_make(tensors, count, &b, NULL), SHEAF_OK);
    sheaf_status status = sheaf_model_same_shape(&a, &b, problem);
    sheaf_model_free(&a);
    sheaf_model_free(&b);
    return status;
}

static void differences_of_shape_are_named(void **state) {
    (void)state;
    sheaf_tensor other[3] = {pair[0], pair[1], {.name = "c", .dtype = "U8", .rank = 0}};
    sheaf_problem problem;
    assert_int_equal(compare(other, 2, &problem), SHEAF_OK);
    assert_int_equal(compare(other, 3, &problem), SHEAF_E_NAME);
    assert_string_equal(problem.text, "tensor 'c' is not expected");
    assert_int_equal(compare(other, 1, &problem), SHEAF_E_NAME);
    assert_string_equal(problem.text, "tensor 'a' is missing");
    other[0].dims[1] = 4;
    assert_int_equal(compare(other, 2, &problem), SHEAF_E_SHAPE);
    other[0].rank = 1;
    assert_int_equal(compare(other, 2, &problem), SHEAF_E_SHAPE);
    memcpy(other[1].dtype, "F64", 4);
    assert_int_equal(compare(other, 2, &problem), SHEAF_E_DTYPE);
    assert_string_equal(problem.text, "tensor 'a' is F64; expected I64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest_is_that_of_the_documented_stream),
        cmocka_unit_test(stream_and_copy_come_back_equal),
        cmocka_unit_test(every_cut_is_truncated_unless_it_falls_between_tensors),
        cmocka_unit_test(wrong_headers_are_malformed),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(a_name_stands_once),
        cmocka_unit_test(differences_of_shape_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
