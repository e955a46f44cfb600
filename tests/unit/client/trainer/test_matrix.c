/* Every kernel gives the sum in ascending order of the inner index, to the bit. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

#include "client/trainer/matrix.h"
#include "client/trainer/random.h"

typedef struct {
    size_t rows, columns, inner;
} size;

static float *random_floats(sheaf_random *random, size_t count) {
    float *values = malloc((count + 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) values[i] = sheaf_random_unit(random) - 0.5f;
    return values;
}

/* One rounding a product and one a sum, kept so by volatile. */
static float expected(const sheaf_product *p, float start, size_t i, size_t j) {
    volatile float sum = p->add ? start : 0.0f;
    for (size_t k = 0; k < p->inner; k++) {
        volatile float term = p->a[i * p->a_row + k * p->a_step] * p->b[k * p->b_row + j];
        sum = sum + term;
    }
    return sum;
}

static void check(const sheaf_matrix_kernel *kernel, size s, int turned, int add) {
    sheaf_random random;
    uint8_t seed[SHEAF_SEED_BYTES] = {9};
    sheaf_random_init(&random, seed, s.rows * 1000 + s.columns);
    /* Exactly as much memory as there is matrix, so that the sanitizer sees one element too far. */
    float *a = random_floats(&random, s.rows * s.inner), *b = random_floats(&random, s.inner * s.columns);
    float *c = random_floats(&random, s.rows * s.columns), *before = malloc((s.rows * s.columns + 1) * sizeof *c);
    float *pack = malloc(SHEAF_MATRIX_PACK * sizeof *pack);
    memcpy(before, c, s.rows * s.columns * sizeof *c);
    sheaf_product p = {.rows = s.rows,
                       .columns = s.columns,
                       .inner = s.inner,
                       .a = a,
                       .a_row = turned ? 1 : s.inner,
                       .a_step = turned ? s.rows : 1,
                       .b = b,
                       .b_row = s.columns,
                       .c = c,
                       .c_row = s.columns,
                       .add = add,
                       .pack = pack};
    kernel->multiply(&p);
    for (size_t i = 0; i < s.rows * s.columns; i++) {
        float want = expected(&p, before[i], i / s.columns, i % s.columns);
        if (memcmp(&want, &c[i], sizeof want) != 0) {
            fail_msg("%s %zux%zux%zu turned %d add %d: element %zu is %a, not %a", kernel->name, s.rows, s.columns,
                     s.inner, turned, add, i, (double)c[i], (double)want);
        }
    }
    free(a);
    free(b);
    free(c);
    free(before);
    free(pack);
}

static void all_kernels_agree_with_the_definition(void **state) {
    (void)state;
    static const size sizes[] = {{1, 1, 1},     {6, 16, 4},  {7, 17, 3},   {32, 10, 128}, {13, 8, 300},
                                 {14, 24, 513}, {5, 196, 9}, {3, 31, 256}, {25, 33, 257}, {2, 3, 0},
                                 {11, 7, 2},    {9, 8, 49},  {64, 15, 20}};
    for (size_t kernel = 0; kernel < sheaf_matrix_kernel_count; kernel++) {
        if (!sheaf_matrix_kernels[kernel].usable()) {
            printf("not on this processor: %s\n", sheaf_matrix_kernels[kernel].name);
            continue;
        }
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            for (int form = 0; form < 4; form++) check(&sheaf_matrix_kernels[kernel], sizes[i], form & 1, form >> 1);
        }
    }
}

static void a_transpose_turns(void **state) {
    (void)state;
    float from[3 * 37], to[3 * 37];
    for (int i = 0; i < 3 * 37; i++) from[i] = (float)i;
    sheaf_matrix_transpose(from, 37, 3, 3, to, 37);
    for (int i = 0; i < 37; i++) {
        for (int j = 0; j < 3; j++) assert_true(to[j * 37 + i] == (float)(i * 3 + j));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kernels_agree_with_the_definition),
        cmocka_unit_test(a_transpose_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
