#include "client/trainer/matrix.h"

#include <string.h>

/* A small loop nest for processors without wide registers: one row of C grows in place, k outermost within it. */
static void multiply_plain(const sheaf_product *p) {
    for (size_t i = 0; i < p->rows; i++) {
        float *c = p->c + i * p->c_row;
        if (!p->add) memset(c, 0, p->columns * sizeof *c);
        for (size_t k = 0; k < p->inner; k++) {
            const float a = p->a[i * p->a_row + k * p->a_step];
            const float *b = p->b + k * p->b_row;
            for (size_t j = 0; j < p->columns; j++) c[j] += a * b[j];
        }
    }
}

static int always(void) { return 1; }

void sheaf_matrix_transpose(const float *from, size_t rows, size_t columns, size_t from_row, float *to, size_t to_row) {
    enum { BLOCK = 16 }; /* both sides of a block stay in the nearest cache */
    for (size_t i0 = 0; i0 < rows; i0 += BLOCK) {
        size_t i1 = i0 + BLOCK < rows ? i0 + BLOCK : rows;
        for (size_t j = 0; j < columns; j++) {
            for (size_t i = i0; i < i1; i++) to[j * to_row + i] = from[i * from_row + j];
        }
    }
}

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__aarch64__))

/* The tiled kernel. A panel of B, SHEAF_MATRIX_WIDTH columns of up to SHEAF_MATRIX_DEPTH rows, stays in the nearest
 * cache while tiles of C, ROWS rows high, pass over it in registers. GCC's generic vectors become AVX or NEON by the
 * target of the function that the body is inlined in. */
typedef float vector __attribute__((vector_size(32)));
typedef float loose_vector __attribute__((vector_size(32), aligned(4), may_alias));

enum { ROWS = 6, LANES = 8 };

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    const float *a; /* first row of the tile, first k of the block */
    size_t a_row, a_step;
    const float *b;
    size_t b_row;
    float *c;
    size_t c_row;
    size_t depth;
    int add;
} tile;

/* `rows` and `vectors` are constants in every call, so that the sums are registers. */
INLINE void run_tile(const tile *t, const int rows, const int vectors) {
    vector sum[ROWS][2];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            if (t->add)
                sum[i][v] = *(const loose_vector *)(t->c + (size_t)i * t->c_row + (size_t)v * LANES);
            else
                sum[i][v] = (vector){0};
        }
    }
    const float *a = t->a, *b = t->b;
    for (size_t k = 0; k < t->depth; k++, a += t->a_step, b += t->b_row) {
        vector right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = *(const loose_vector *)(b + v * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const float left = a[(size_t)i * t->a_row];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[i][v] += left * right[v];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            *(loose_vector *)(t->c + (size_t)i * t->c_row + (size_t)v * LANES) = sum[i][v];
    }
}

INLINE void run_rows(const tile *t, size_t rows, const int vectors) {
    switch (rows) {
    case 1:
        run_tile(t, 1, vectors);
        break;
    case 2:
        run_tile(t, 2, vectors);
        break;
    case 3:
        run_tile(t, 3, vectors);
        break;
    case 4:
        run_tile(t, 4, vectors);
        break;
    case 5:
        run_tile(t, 5, vectors);
        break;
    default:
        run_tile(t, ROWS, vectors);
        break;
    }
}

/* A tile whose columns end inside a vector works on a copy, padded with zeros. */
INLINE void run_edge(tile t, size_t rows, size_t columns) {
    float copy[ROWS * SHEAF_MATRIX_WIDTH] = {0};
    float *c = t.c;
    size_t c_row = t.c_row;
    for (size_t i = 0; t.add && i < rows; i++)
        memcpy(copy + i * SHEAF_MATRIX_WIDTH, c + i * c_row, columns * sizeof *c);
    t.c = copy;
    t.c_row = SHEAF_MATRIX_WIDTH;
    if (columns <= LANES)
        run_rows(&t, rows, 1);
    else
        run_rows(&t, rows, 2);
    for (size_t i = 0; i < rows; i++) memcpy(c + i * c_row, copy + i * SHEAF_MATRIX_WIDTH, columns * sizeof *c);
}

INLINE void run_panel(const sheaf_product *p, tile t, size_t columns) {
    for (size_t i = 0; i < p->rows; i += ROWS) {
        size_t rows = p->rows - i < ROWS ? p->rows - i : ROWS;
        tile here = t;
        here.a = t.a + i * p->a_row;
        here.c = t.c + i * p->c_row;
        if (columns == SHEAF_MATRIX_WIDTH)
            run_rows(&here, rows, 2);
        else if (columns == LANES)
            run_rows(&here, rows, 1);
        else
            run_edge(here, rows, columns);
    }
}

INLINE void pack_panel(const float *b, size_t b_row, size_t depth, size_t columns, float *pack) {
    for (size_t k = 0; k < depth; k++) {
        for (size_t j = 0; j < columns; j++) pack[k * SHEAF_MATRIX_WIDTH + j] = b[k * b_row + j];
        for (size_t j = columns; j < SHEAF_MATRIX_WIDTH; j++) pack[k * SHEAF_MATRIX_WIDTH + j] = 0.0f;
    }
}

INLINE void multiply_tiled(const sheaf_product *p) {
    for (size_t k = 0; k < p->inner || k == 0; k += SHEAF_MATRIX_DEPTH) {
        size_t depth = p->inner - k < SHEAF_MATRIX_DEPTH ? p->inner - k : SHEAF_MATRIX_DEPTH;
        for (size_t j = 0; j < p->columns; j += SHEAF_MATRIX_WIDTH) {
            size_t columns = p->columns - j < SHEAF_MATRIX_WIDTH ? p->columns - j : SHEAF_MATRIX_WIDTH;
            tile t = {
                p->a + k * p->a_step, p->a_row, p->a_step, p->b + k * p->b_row + j, p->b_row, p->c + j, p->c_row, depth,
                p->add || k > 0};
            /* Few rows do not pay for a copy of B; a ragged panel needs one so as not to read past a row's end. */
            int whole = columns == SHEAF_MATRIX_WIDTH || columns == LANES;
            if (!whole || (p->rows > 2 * (size_t)ROWS && p->b_row != columns)) {
                pack_panel(t.b, t.b_row, depth, columns, p->pack);
                t.b = p->pack;
                t.b_row = SHEAF_MATRIX_WIDTH;
            }
            run_panel(p, t, columns);
        }
    }
}

/* With the 16 narrow registers of plain x86-64 the tile would live in memory; there the small loop nest is faster. */
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void multiply_avx2(const sheaf_product *p) { multiply_tiled(p); }
static int has_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }
#endif
#if defined(__aarch64__)
static void multiply_neon(const sheaf_product *p) { multiply_tiled(p); }
#endif
#endif

/* From the plainest to the fastest. */
const sheaf_matrix_kernel sheaf_matrix_kernels[] = {
    {"plain", multiply_plain, always},
#if defined(__GNUC__) && defined(__aarch64__)
    {"neon", multiply_neon, always},
#endif
#if defined(__GNUC__) && defined(__x86_64__)
    {"avx2", multiply_avx2, has_avx2},
#endif
};
const size_t sheaf_matrix_kernel_count = sizeof sheaf_matrix_kernels / sizeof sheaf_matrix_kernels[0];

void sheaf_matrix_multiply(const sheaf_product *product) {
    for (size_t i = sheaf_matrix_kernel_count; i-- > 0;) {
        if (!sheaf_matrix_kernels[i].usable()) continue;
        sheaf_matrix_kernels[i].multiply(product);
        return;
    }
}
