/* matrix.h - the one product of matrices that all layers are made of: C = A B, or C += A B.
 *
 * Every element of C is a sum over k = 0, 1, 2 ... in this order, each product rounded, then added, in float32. Blocks,
 * tiles and vectors only choose which elements are worked on together, never the order within one element. So the
 * result has the same bits on every processor and for every kernel here; fused multiply-add, which would round
 * differently, is not used. (Zen and its like have separate adders, so little speed is lost.)
 *
 * Owner:   the caller; nothing is kept.
 * Threads: any; no state.
 * Units:   strides and sizes in elements. Both matrices and C must not overlap. */
#pragma once
#include <stddef.h>

enum {
    SHEAF_MATRIX_DEPTH = 256, /* values of k that a packed panel of B holds */
    SHEAF_MATRIX_WIDTH = 16,  /* columns of a panel */
    SHEAF_MATRIX_PACK = SHEAF_MATRIX_DEPTH * SHEAF_MATRIX_WIDTH
};

typedef struct {
    size_t rows, columns, inner;
    const float
        *a; /* element (i, k) at a[i * a_row + k * a_step]: a transposed matrix is only another pair of strides */
    size_t a_row, a_step;
    const float *b; /* element (k, j) at b[k * b_row + j] */
    size_t b_row;
    float *c; /* element (i, j) at c[i * c_row + j] */
    size_t c_row;
    int add;     /* 0: C = A B; 1: C += A B */
    float *pack; /* room for SHEAF_MATRIX_PACK floats; its content is lost */
} sheaf_product;

/* Picks the fastest kernel that this processor has. */
void sheaf_matrix_multiply(const sheaf_product *product);

/* The kernels, for tests and benchmarks; entry 0 is plain C, and all give the same bits. */
typedef struct {
    const char *name;
    void (*multiply)(const sheaf_product *product);
    int (*usable)(void);
} sheaf_matrix_kernel;
extern const sheaf_matrix_kernel sheaf_matrix_kernels[];
extern const size_t sheaf_matrix_kernel_count;

/* to[j * to_row + i] = from[i * from_row + j] */
void sheaf_matrix_transpose(const float *from, size_t rows, size_t columns, size_t from_row, float *to, size_t to_row);
