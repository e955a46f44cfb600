#include "client/trainer/random.h"

#include <assert.h>

#include "common/bytes.h"

static uint64_t rotate_left(uint64_t x, unsigned by) { return x << by | x >> (64 - by); }

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void sheaf_random_init(sheaf_random *random, const uint8_t seed[SHEAF_SEED_BYTES], uint64_t stream) {
    uint64_t mix = stream;
    for (unsigned i = 0; i < 4; i++) {
        mix ^= sheaf_load_u64(seed + 8 * i);
        random->state[i] = splitmix64(&mix);
    }
    /* A second pass, so that the last word of the seed reaches the first of the state. */
    for (unsigned i = 0; i < 4; i++) random->state[i] ^= splitmix64(&mix);
    /* The one state from which the generator would never leave. */
    if ((random->state[0] | random->state[1] | random->state[2] | random->state[3]) == 0) random->state[0] = 1;
}

uint64_t sheaf_random_u64(sheaf_random *random) {
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint32_t sheaf_random_below(sheaf_random *random, uint32_t bound) {
    assert(bound > 0);
    uint32_t threshold = (uint32_t)(0u - bound) % bound; /* 2^32 mod bound: products below it are the surplus */
    uint64_t product;
    do {
        product = (sheaf_random_u64(random) >> 32) * bound;
    } while ((uint32_t)product < threshold);
    return (uint32_t)(product >> 32);
}

float sheaf_random_unit(sheaf_random *random) { return (float)(sheaf_random_u64(random) >> 40) * 0x1p-24f; }

void sheaf_random_order(sheaf_random *random, uint32_t *order, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) order[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = sheaf_random_below(random, i);
        uint32_t swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}
