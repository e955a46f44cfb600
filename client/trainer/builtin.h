/* builtin.h - the built-in trainer behind the edge library's callbacks: network, examples and SGD in one block of
 * memory.
 *
 * Owner:   sheaf_builtin_init takes the caller's memory and allocates nothing; sheaf_builtin_open reads files,
 * allocates, and is paired with sheaf_builtin_close. Threads: one at a time, that of the sheaf_edge. Errors:  from the
 * callbacks: SHEAF_E_NAME, SHEAF_E_SHAPE, SHEAF_E_DTYPE (the model is not this network's), SHEAF_E_TOO_LARGE (the
 * plan's batch needs more memory than was given), SHEAF_E_NOT_FINITE (training diverged). Not:     evaluation; devices
 * that want it call sheaf_evaluate on the network. */
#pragma once
#include <sheaf/edge.h>

#include "client/trainer/data.h"
#include "client/trainer/model_file.h"

typedef struct {
    sheaf_network network;
    sheaf_examples examples;
    sheaf_training training;
    void *work; /* velocity and order */
    size_t work_bytes;
    uint64_t loaded; /* values of the model received so far */
    uint32_t slice;  /* batches per call of train */
    int training_begun;
} sheaf_builtin;

/* Memory for a network with batches up to batch_max over so many examples; 0 when the spec is wrong or too large. */
size_t sheaf_builtin_bytes(const sheaf_network_spec *spec, uint32_t batch_max, uint32_t examples);
/* A plan may ask for larger batches than batch_max only when there are no more than batch_max examples. `slice`:
 * batches worked on per call of train, so that the device stays responsive; 0 = 16. */
SHEAF_MUST_USE sheaf_status sheaf_builtin_init(sheaf_builtin *builtin, const sheaf_network_spec *spec,
                                               uint32_t batch_max, const sheaf_examples *examples, uint32_t slice,
                                               void *memory, size_t bytes);
/* The callbacks; builtin must outlive them. */
sheaf_trainer sheaf_builtin_trainer(sheaf_builtin *builtin);

/* ---- for hosts: from files ---- */

typedef struct {
    const char *model_path;  /* network description (model_file.h) */
    sheaf_data_options data; /* features and classes are filled from the network */
    uint32_t batch_max;      /* 0 = 1024; never more than there are examples */
    uint32_t slice;          /* 0 = 16 */
} sheaf_builtin_options;

typedef struct sheaf_builtin_host sheaf_builtin_host;

SHEAF_MUST_USE sheaf_status sheaf_builtin_open(const sheaf_builtin_options *options, sheaf_builtin_host **out,
                                               sheaf_problem *problem);
sheaf_trainer sheaf_builtin_host_trainer(sheaf_builtin_host *host);
uint32_t sheaf_builtin_host_examples(const sheaf_builtin_host *host);
void sheaf_builtin_close(sheaf_builtin_host *host); /* NULL is fine */
