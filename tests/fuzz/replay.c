/* Feeds a fuzz target its corpus, then a fixed number of mutations of it: a fuzz target as an ordinary test.
 *
 *     replay MUTATIONS FILE...
 *
 * The mutations are the same in every run (splitmix64 from a constant), so that a failure can be repeated. The input is
 * copied to a block of exactly its size, so that the address sanitizer sees a read of one byte too many. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_BYTES_MAX 65536u
#define INPUTS_MAX      1024u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    uint8_t *data;
    size_t size;
} input;

typedef struct {
    input inputs[INPUTS_MAX];
    size_t count;
} corpus;

static uint64_t state = 0x5368656166ull; /* "Sheaf" */

static uint64_t next_random(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Uniform enough for choosing where to hurt; bound > 0. */
static size_t below(size_t bound) { return (size_t)(next_random() % bound); }

static void feed(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (exact == NULL) abort();
    if (size > 0) memcpy(exact, data, size);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void read_input(const char *path, corpus *all) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || all->count == INPUTS_MAX) {
        fprintf(stderr, "cannot take %s\n", path);
        exit(1);
    }
    input *out = &all->inputs[all->count++];
    out->data = malloc(INPUT_BYTES_MAX);
    if (out->data == NULL) abort();
    out->size = fread(out->data, 1, INPUT_BYTES_MAX, file);
    (void)fclose(file);
}

/* Values at which length and range checks break. */
static uint8_t interesting_byte(void) {
    static const uint8_t values[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0xfe, 0x20, 0x22};
    return values[below(sizeof values)];
}

static size_t cut(uint8_t *data, size_t size) {
    (void)data;
    return below(size + 1);
}
static size_t flip_bit(uint8_t *data, size_t size) {
    if (size > 0) data[below(size)] ^= (uint8_t)(1u << below(8));
    return size;
}
static size_t set_byte(uint8_t *data, size_t size) {
    if (size > 0) data[below(size)] = interesting_byte();
    return size;
}
static size_t set_word(uint8_t *data, size_t size) {
    uint8_t value = interesting_byte();
    for (size_t at = size > 0 ? below(size) : 0, end = at + 8; at < size && at < end; at++) data[at] = value;
    return size;
}
static size_t remove_bytes(uint8_t *data, size_t size) {
    if (size == 0) return 0;
    size_t at = below(size), count = 1 + below(size - at);
    memmove(data + at, data + at + count, size - at - count);
    return size - count;
}
static size_t repeat_bytes(uint8_t *data, size_t size) {
    if (size == 0) return 0;
    size_t at = below(size), count = 1 + below(size - at);
    if (count > INPUT_BYTES_MAX - size) count = INPUT_BYTES_MAX - size;
    memmove(data + at + count, data + at, size - at);
    return size + count;
}
static size_t splice(uint8_t *data, size_t size, const input *other) {
    if (size == 0 || other->size == 0) return size;
    size_t from = below(other->size), count = 1 + below(other->size - from), at = below(size);
    if (count > INPUT_BYTES_MAX - at) count = INPUT_BYTES_MAX - at;
    memcpy(data + at, other->data + from, count);
    return at + count > size ? at + count : size;
}

static size_t mutate(uint8_t *data, size_t size, const corpus *all) {
    static size_t (*const ways[])(uint8_t *, size_t) = {cut, flip_bit, set_byte, set_word, remove_bytes, repeat_bytes};
    for (size_t steps = 1 + below(4); steps > 0; steps--) {
        size_t way = below(sizeof ways / sizeof ways[0] + 1);
        size = way < sizeof ways / sizeof ways[0] ? ways[way](data, size)
                                                  : splice(data, size, &all->inputs[below(all->count)]);
    }
    return size;
}

int main(int count, char **arguments) {
    static corpus all;
    static uint8_t scratch[INPUT_BYTES_MAX];
    char *end = NULL;
    long mutations = count >= 3 ? strtol(arguments[1], &end, 10) : -1;
    if (mutations < 0 || end == arguments[1] || *end != '\0') {
        fprintf(stderr, "usage: %s MUTATIONS FILE...\n", arguments[0]);
        return 2;
    }
    for (int i = 2; i < count; i++) read_input(arguments[i], &all);
    feed(NULL, 0);
    for (size_t i = 0; i < all.count; i++) feed(all.inputs[i].data, all.inputs[i].size);
    for (long i = 0; i < mutations; i++) {
        const input *seed = &all.inputs[below(all.count)];
        memcpy(scratch, seed->data, seed->size);
        feed(scratch, mutate(scratch, seed->size, &all));
    }
    printf("%zu inputs, %ld mutations\n", all.count, mutations);
    for (size_t i = 0; i < all.count; i++) free(all.inputs[i].data);
    return 0;
}
