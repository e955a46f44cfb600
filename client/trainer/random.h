/* random.h - the generator behind everything that is random in training: first values and the order of examples.
 *
 * xoshiro256** (Blackman, Vigna 2021, "Scrambled linear pseudorandom number generators"), its state filled from a
 * 32-byte seed and a stream number by SplitMix64, so that one seed gives independent streams for different uses.
 *
 * Owner:   the caller; plain values.
 * Threads: one at a time.
 * Not:     cryptographic. Keys, nonces and noise for privacy never come from here. */
#pragma once
#include <stdint.h>

#define SHEAF_SEED_BYTES 32u

typedef struct {
    uint64_t state[4]; /* never all zero */
} sheaf_random;

void sheaf_random_init(sheaf_random *random, const uint8_t seed[SHEAF_SEED_BYTES], uint64_t stream);
uint64_t sheaf_random_u64(sheaf_random *random);
/* Uniform in 0..bound-1, without bias (Lemire 2019); bound > 0. */
uint32_t sheaf_random_below(sheaf_random *random, uint32_t bound);
/* Uniform in [0, 1): a multiple of 2^-24, so exact in float32. */
float sheaf_random_unit(sheaf_random *random);
/* Fisher-Yates: afterwards order holds 0..count-1, every permutation equally likely. */
void sheaf_random_order(sheaf_random *random, uint32_t *order, uint32_t count);
