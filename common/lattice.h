/* lattice.h - the one place that knows how a float becomes an integer, and the reverse.
 *
 * A job adds on a lattice: value = q * 2^-fraction_bits, |q| <= 2^31 - 1, sums in int64. Integer sums do not depend on
 * the order of their terms, so the model depends on the set of updates and on nothing else. Every rule here is exact
 * or rounds once, to nearest, ties to even; tests/vectors/lattice.py states them again in rational arithmetic.
 *
 * Owner:   nobody; plain values.
 * Threads: any; no state.
 * Units:   fraction_bits in -125..126; weights, clip_units and norms in integers, multipliers in 2^-32.
 * Errors:  SHEAF_E_NOT_FINITE, SHEAF_E_RANGE, SHEAF_E_NOT_REPRESENTABLE.
 * Not:     no FMA, no extended precision, no reassociation: compile with -ffp-contract=off and never -ffast-math;
 *          nvcc with -fmad=false -ftz=false -prec-div=true -prec-sqrt=true. Kernels use what is marked LATTICE_FN,
 *          decode and sums hold no floating-point instruction at all. */
#pragma once
#include "common/status.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "lattice.h needs float and double arithmetic without extra precision (on x86: SSE2, not the x87)"
#endif
#ifdef __FAST_MATH__
#error "lattice.h needs IEEE arithmetic: compile without -ffast-math"
#endif

#ifdef __CUDACC__
#define LATTICE_FN static inline __host__ __device__
#else
#define LATTICE_FN static inline
#endif

#define LATTICE_Q_MAX             INT32_C(2147483647) /* |q| <= 2^31 - 1: -2^31 is out of range, so that |q| fits too */
#define LATTICE_FRACTION_BITS_MIN (-125)
#define LATTICE_FRACTION_BITS_MAX 126
#define LATTICE_UNIT              (UINT64_C(1) << 32) /* the multiplier that changes nothing */

/* ---- decode ---- */

/* The bits of |x|. Magnitudes order as their values do; those from 0x7f800000 on are infinite or NaN. */
LATTICE_FN uint32_t lattice_f32_magnitude(uint32_t bits) { return bits & UINT32_C(0x7fffffff); }
LATTICE_FN int lattice_f32_is_finite(uint32_t bits) { return lattice_f32_magnitude(bits) < UINT32_C(0x7f800000); }

LATTICE_FN uint32_t lattice_f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* significand * 2^shift, rounded to nearest even. significand < 2^24; anything from 2^31 on comes back as 2^31 or more.
 */
LATTICE_FN uint64_t lattice_scale(uint32_t significand, int shift) {
    if (significand == 0 || shift <= -25) return 0; /* below half a unit: 2^24 * 2^-25 */
    if (shift >= 0) return (uint64_t)significand << (shift < 32 ? shift : 32);
    unsigned right = (unsigned)-shift; /* 1..24 */
    uint32_t odd = significand >> right & 1u;
    return (significand + (UINT32_C(1) << (right - 1)) - 1u + odd) >> right;
}

/* q = round_to_nearest_even(x * 2^fraction_bits) from the bit pattern of x. */
LATTICE_FN sheaf_status lattice_decode_f32(uint32_t bits, int fraction_bits, int32_t *q) {
    int exponent = (int)(bits >> 23 & 255u);
    uint32_t fraction = bits & UINT32_C(0x7fffff);
    if (exponent == 255) return SHEAF_E_NOT_FINITE;
    /* x = significand * 2^(exponent - 150); subnormals have no hidden one and the exponent of the smallest normals. */
    uint32_t significand = exponent == 0 ? fraction : fraction | UINT32_C(0x800000);
    uint64_t magnitude = lattice_scale(significand, (exponent == 0 ? 1 : exponent) - 150 + fraction_bits);
    if (magnitude > (uint64_t)LATTICE_Q_MAX) return SHEAF_E_RANGE;
    *q = bits >> 31 != 0 ? -(int32_t)magnitude : (int32_t)magnitude;
    return SHEAF_OK;
}

/* ---- sums ---- */

/* Never overflows in a round that lattice_bound_holds admitted: every partial sum is at most cohort * weight * bound.
 */
LATTICE_FN void lattice_accumulate(int64_t *accumulator, int64_t weight, int32_t q) { *accumulator += weight * q; }

/* Whether cohort_max * weight_max * bound + noise_tail < 2^63. By division, since the product may not fit anything:
 * floor(floor(limit / bound) / cohort) = floor(limit / (bound * cohort)). */
LATTICE_FN int lattice_bound_holds(uint64_t cohort_max, uint64_t weight_max, uint64_t bound, uint64_t noise_tail) {
    if (noise_tail > (uint64_t)INT64_MAX) return 0;
    if (cohort_max == 0 || weight_max == 0 || bound == 0) return 1;
    return weight_max <= ((uint64_t)INT64_MAX - noise_tail) / bound / cohort_max;
}

/* The finest lattice on which values up to `magnitude` (bits of the largest |x|) and their weighted sum fit. */
LATTICE_FN sheaf_status lattice_choose_fraction_bits(uint32_t magnitude, uint64_t weight_total, int *fraction_bits) {
    if (!lattice_f32_is_finite(magnitude)) return SHEAF_E_NOT_FINITE;
    for (int f = LATTICE_FRACTION_BITS_MAX; f >= LATTICE_FRACTION_BITS_MIN; f--) {
        int32_t q = 0;
        if (lattice_decode_f32(magnitude, f, &q) != SHEAF_OK || !lattice_bound_holds(1, weight_total, (uint64_t)q, 0))
            continue;
        *fraction_bits = f;
        return SHEAF_OK;
    }
    return SHEAF_E_NOT_REPRESENTABLE;
}

/* ---- norm and clip ---- */

/* The sum of q^2 in two limbs: exact for 2^64 values, since q^2 < 2^62 and the sum < 2^126. */
typedef struct {
    uint64_t low, high;
} lattice_norm;

LATTICE_FN void lattice_norm_merge(lattice_norm *norm, lattice_norm other) {
    norm->low += other.low;
    norm->high += other.high + (norm->low < other.low);
}
LATTICE_FN void lattice_norm_add(lattice_norm *norm, int32_t q) {
    lattice_norm square = {(uint64_t)((int64_t)q * q), 0};
    lattice_norm_merge(norm, square);
}

/* The magnitude is scaled, then gets its sign back: an arithmetic shift of a negative number rounds away from zero and
 * would break the bound. |q| * multiplier < 2^63 by lattice_unit_multiplier_ok, so the result fits 31 bits. */
LATTICE_FN int32_t lattice_clip(int32_t q, uint64_t multiplier) {
    uint64_t magnitude = (uint64_t)(q < 0 ? -(int64_t)q : (int64_t)q);
    int32_t clipped = (int32_t)(magnitude * multiplier >> 32);
    return q < 0 ? -clipped : clipped;
}

/* To be true when a round with clip opens. */
LATTICE_FN int lattice_unit_multiplier_ok(uint64_t unit_multiplier) {
    return unit_multiplier > 0 && unit_multiplier <= (uint64_t)INT64_MAX / (uint64_t)LATTICE_Q_MAX;
}

#if defined(__SIZEOF_INT128__) /* hosts; once per update, never in a kernel */
__extension__ typedef unsigned __int128 lattice_u128;

/* The smallest r with r^2 >= sum. Digit by digit, two bits a step; sum < 2^126, so r <= 2^63. */
static inline uint64_t lattice_norm_ceil_root(lattice_norm norm) {
    lattice_u128 rest = (lattice_u128)norm.high << 64 | norm.low, root = 0;
    for (lattice_u128 bit = (lattice_u128)1 << 126; bit != 0; bit >>= 2) {
        lattice_u128 trial = root + bit;
        root >>= 1;
        if (rest < trial) continue;
        rest -= trial;
        root += bit;
    }
    return (uint64_t)root + (rest != 0);
}

/* min(unit_multiplier, floor(clip_units * 2^32 / ceil_isqrt(sum))): with it the clipped norm is at most clip_units. A
 * zero update divides nothing. clip_units >= 1. */
static inline uint64_t lattice_clip_multiplier(lattice_norm norm, uint64_t clip_units, uint64_t unit_multiplier) {
    uint64_t root = lattice_norm_ceil_root(norm);
    if (root == 0) return unit_multiplier;
    lattice_u128 multiplier = ((lattice_u128)clip_units << 32) / root;
    return multiplier < unit_multiplier ? (uint64_t)multiplier : unit_multiplier;
}
#endif

/* ---- mean ---- */

/* 2^exponent, exponent in -1022..1023. */
LATTICE_FN double lattice_power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* (double(total) * double(unit_multiplier)) * 2^(fraction_bits - 32), in this order. 0 < total < 2^63. */
LATTICE_FN double lattice_mean_divisor(uint64_t total, uint64_t unit_multiplier, int fraction_bits) {
    double product = (double)total * (double)unit_multiplier;
    return product * lattice_power_of_two(fraction_bits - 32);
}

/* float32(double(sum) / divisor). Infinite when it leaves float32's range: ask lattice_f32_is_finite and refuse. */
LATTICE_FN float lattice_mean_of(int64_t sum, double divisor) { return (float)((double)sum / divisor); }

LATTICE_FN float lattice_mean(int64_t sum, uint64_t total, uint64_t unit_multiplier, int fraction_bits) {
    return lattice_mean_of(sum, lattice_mean_divisor(total, unit_multiplier, fraction_bits));
}

/* Whether this thread rounds to nearest even and keeps subnormals. A library built with -ffast-math changes both for
 * the whole process, so the mean and the optimizer assert this. volatile: the question is for the processor, not for
 * the compiler. */
static inline int lattice_float_environment_ok(void) {
    volatile float one = 1.0f, next = 1.0f + FLT_EPSILON, half = FLT_EPSILON / 2, smallest = FLT_MIN;
    volatile float tie_down = one + half, tie_up = next + half, minus = -one - half;
    volatile float subnormal = smallest / 2;
    volatile float restored = subnormal * 2;
    return tie_down == 1.0f && tie_up == 1.0f + 2 * FLT_EPSILON && minus == -1.0f && restored == FLT_MIN;
}
