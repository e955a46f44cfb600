/* bench_trainer NETWORK.yaml BATCH SECONDS: prints the samples a second of training on examples in RAM, one line for
 * each of ten slices of the time, so that the reader may take the undisturbed ones. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/trainer/model_file.h"
#include "client/trainer/sgd.h"

enum { EXAMPLES = 1024, SLICES = 10 };

typedef struct {
    uint32_t features, classes;
    uint8_t *bytes; /* [EXAMPLES, features] */
} images;

static void read_image(uint32_t index, float *features, uint32_t *label, void *context) {
    const images *from = context;
    const uint8_t *bytes = from->bytes + (size_t)index * from->features;
    for (uint32_t i = 0; i < from->features; i++) features[i] = (float)bytes[i];
    *label = index % from->classes;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void check(sheaf_status status, const char *what) {
    if (status == SHEAF_OK || status == SHEAF_AGAIN) return;
    fprintf(stderr, "bench_trainer: %s: %s\n", what, sheaf_status_text(status));
    exit(1);
}

static void *take(size_t bytes) {
    void *memory = bytes == 0 ? NULL : malloc(bytes);
    check(memory == NULL ? SHEAF_E_MEMORY : SHEAF_OK, "memory");
    return memory;
}

static void run(sheaf_network *network, const sheaf_examples *examples, uint32_t batch, double seconds) {
    sheaf_training training;
    sheaf_training_options options = {
        .epochs = 1000000, .batch = batch, .learning_rate = 0.01f, .momentum = 0.9f, .seed = {1}};
    size_t bytes = sheaf_training_bytes(network->parameter_count, examples->count);
    void *memory = take(bytes);
    check(sheaf_training_begin(&training, network, examples, &options, memory, bytes), "begin");
    for (int slice = 0; slice < SLICES; slice++) {
        double start = seconds_now(), spent;
        uint64_t steps = 0;
        do {
            check(sheaf_training_step(&training, EXAMPLES / batch), "step");
            steps += EXAMPLES / batch;
            spent = seconds_now() - start;
        } while (spent < seconds / SLICES);
        printf("%.1f\n", (double)(steps * batch) / spent);
    }
    free(memory);
}

int main(int count, char **arguments) {
    sheaf_network_spec spec;
    sheaf_problem problem;
    sheaf_network network;
    if (count != 4) check(SHEAF_E_USAGE, "NETWORK.yaml BATCH SECONDS");
    uint32_t batch = (uint32_t)strtoul(arguments[2], NULL, 10);
    check(batch >= 1 && EXAMPLES % batch == 0 ? SHEAF_OK : SHEAF_E_USAGE, "BATCH must divide 1024");
    check(sheaf_model_file_load(arguments[1], &spec, &problem), arguments[1]);
    size_t bytes = sheaf_network_bytes(&spec, batch);
    void *memory = take(bytes);
    check(sheaf_network_open(&network, &spec, batch, memory, bytes), arguments[1]);
    uint8_t seed[SHEAF_SEED_BYTES] = {1};
    sheaf_network_initialise(&network, seed);
    images data = {network.features, network.classes, take((size_t)EXAMPLES * network.features)};
    sheaf_random random;
    sheaf_random_init(&random, seed, 1);
    for (size_t i = 0; i < (size_t)EXAMPLES * network.features; i++)
        data.bytes[i] = (uint8_t)sheaf_random_below(&random, 256);
    sheaf_examples examples = {EXAMPLES, read_image, &data};
    run(&network, &examples, batch, strtod(arguments[3], NULL));
    free(data.bytes);
    free(memory);
    return 0;
}
