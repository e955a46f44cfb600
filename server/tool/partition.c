#include "server/tool/partition.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS_MAX = 1000 };

/* In (0, 1]. */
static double unit(sheaf_random *random) { return ((double)(sheaf_random_u64(random) >> 11) + 1.0) * 0x1p-53; }

static double normal(sheaf_random *random) {
    double radius = sqrt(-2.0 * log(unit(random)));
    return radius * cos(6.283185307179586 * unit(random));
}

/* Marsaglia and Tsang 2000, "A simple method for generating gamma variables"; shapes below 1 by their section 6. */
static double gamma_draw(sheaf_random *random, double shape) {
    if (shape < 1.0) return gamma_draw(random, shape + 1.0) * pow(unit(random), 1.0 / shape);
    double d = shape - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d);
    for (;;) {
        double x = normal(random), v = 1.0 + c * x;
        if (v <= 0.0) continue;
        v = v * v * v;
        if (log(unit(random)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

/* The shares of the clients in one class: a Dirichlet draw is gamma draws over their sum. Fills the running sums. */
static void draw_shares(sheaf_random *random, double alpha, double *running, uint32_t clients) {
    double sum = 0.0;
    for (uint32_t i = 0; i < clients; i++) {
        sum += gamma_draw(random, alpha);
        running[i] = sum;
    }
    for (uint32_t i = 0; i < clients; i++) running[i] = sum > 0.0 ? running[i] / sum : (double)(i + 1) / clients;
    running[clients - 1] = 1.0;
}

/* Cuts the class's examples, in the random order given, where the running sums lie. */
static void deal_class(const uint32_t *members, uint32_t count, const double *running, uint32_t clients,
                       uint32_t *owner) {
    uint32_t client = 0;
    for (uint32_t i = 0; i < count; i++) {
        while (client + 1 < clients && (double)i >= floor(running[client] * count + 0.5)) client++;
        owner[members[i]] = client;
    }
}

typedef struct {
    uint32_t *order, *members, *sizes;
    double *running;
} workspace;

static void deal_once(const sheaf_partition *partition, const uint32_t *labels, uint32_t count, uint32_t classes,
                      sheaf_random *random, workspace *w, uint32_t *owner) {
    sheaf_random_order(random, w->order, count);
    if (partition->alpha == 0.0) {
        for (uint32_t i = 0; i < count; i++) owner[w->order[i]] = i % partition->clients;
        return;
    }
    for (uint32_t class = 0; class < classes; class ++) {
        uint32_t found = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (labels[w->order[i]] == class) w->members[found++] = w->order[i];
        }
        draw_shares(random, partition->alpha, w->running, partition->clients);
        deal_class(w->members, found, w->running, partition->clients, owner);
    }
}

static uint32_t smallest(const sheaf_partition *partition, uint32_t count, const uint32_t *owner, uint32_t *sizes) {
    uint32_t least = UINT32_MAX;
    memset(sizes, 0, partition->clients * sizeof *sizes);
    for (uint32_t i = 0; i < count; i++) sizes[owner[i]]++;
    for (uint32_t i = 0; i < partition->clients; i++) least = sizes[i] < least ? sizes[i] : least;
    return least;
}

sheaf_status sheaf_partition_deal(const sheaf_partition *partition, const uint32_t *labels, uint32_t count,
                                  uint32_t classes, sheaf_random *random, uint32_t *owner, sheaf_problem *problem) {
    if ((uint64_t)partition->clients * partition->minimum > count) /* known without a thousand draws */
        return sheaf_problem_set(problem, SHEAF_E_DATA,
                                 "%u examples are too few to give each of %u clients %u; ask for fewer clients or a "
                                 "smaller --minimum",
                                 (unsigned)count, (unsigned)partition->clients, (unsigned)partition->minimum);
    workspace w = {.order = calloc(count, sizeof *w.order),
                   .members = calloc(count, sizeof *w.members),
                   .sizes = calloc(partition->clients, sizeof *w.sizes),
                   .running = calloc(partition->clients, sizeof *w.running)};
    sheaf_status status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory to deal %u examples", (unsigned)count);
    if (w.order != NULL && w.members != NULL && w.sizes != NULL && w.running != NULL) {
        uint32_t draws = 0;
        do {
            deal_once(partition, labels, count, classes, random, &w, owner);
        } while (smallest(partition, count, owner, w.sizes) < partition->minimum && ++draws < DRAWS_MAX);
        status = draws < DRAWS_MAX
                     ? SHEAF_OK
                     : sheaf_problem_set(
                           problem, SHEAF_E_DATA,
                           "no draw in %d gave each of %u clients %u of the %u examples; ask for fewer clients, "
                           "a larger alpha or a smaller --minimum",
                           DRAWS_MAX, (unsigned)partition->clients, (unsigned)partition->minimum, (unsigned)count);
    }
    free(w.order);
    free(w.members);
    free(w.sizes);
    free(w.running);
    return status;
}
