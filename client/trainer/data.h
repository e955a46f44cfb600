/* data.h - labelled examples from files, held in RAM: a CSV table, or a pair of IDX files as MNIST has them (.gz too).
 *
 * CSV:     a header line names the columns; the label column holds classes 0, 1, 2 ...; all other columns are features,
 *          in their order, and hold finite decimal numbers. Fields may stand in double quotes, without quotes inside.
 * IDX:     images of unsigned bytes, [count, height, width] or [count, features] or [count, channels, height, width];
 *          labels of unsigned bytes, [count].
 *
 * Owner:   sheaf_dataset owns its memory; free with sheaf_data_free (safe on a zeroed one).
 * Threads: reading from any thread once loaded.
 * Errors:  SHEAF_E_DATA with file, line or record, and what was expected; SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION,
 *          SHEAF_E_MEMORY, SHEAF_E_TOO_LARGE.
 * Limits:  2 GiB a file, unpacked; 2^31 - 1 examples; 65,536 classes; 2^24 features.
 * Not:     scaling; that is the network's (scale, shift), so that every device does the same. */
#pragma once
#include "client/trainer/sgd.h"
#include "common/problem.h"

#define SHEAF_DATA_BYTES_MAX    (UINT64_C(2) << 30)
#define SHEAF_DATA_CLASSES_MAX  65536u
#define SHEAF_DATA_FEATURES_MAX (1u << 24)

typedef struct {
    const char *path;   /* the table, or the IDX file of images */
    const char *labels; /* the IDX file of labels; NULL: path is a CSV table */
    const char *label;  /* CSV: name of the label column; NULL = "label" */
    uint32_t features;  /* what the network takes; other tables are refused; 0 = any */
    uint32_t classes;   /* labels must be below; 0 = any */
    int keep_source;    /* CSV: keep the text, for sheaf_data_write */
} sheaf_data_options;

typedef struct {
    uint32_t count, features, classes; /* classes: largest label + 1 */
    uint8_t *bytes;                    /* [count, features], or NULL */
    float *values;                     /* [count, features], or NULL: one of the two is there */
    uint32_t *labels;                  /* [count] */
    uint32_t shape[3];                 /* IDX: what follows the count, `rank` of them */
    uint32_t rank;
    sheaf_buffer source;   /* CSV with keep_source: the text */
    uint64_t *lines;       /* [count + 1] where each example's line starts in it, and the end */
    uint64_t header_bytes; /* the first line with its line end */
} sheaf_dataset;

SHEAF_MUST_USE sheaf_status sheaf_data_load(const sheaf_data_options *options, sheaf_dataset *out,
                                            sheaf_problem *problem);
void sheaf_data_free(sheaf_dataset *dataset);
/* A view for training; the dataset must outlive it. */
sheaf_examples sheaf_data_examples(const sheaf_dataset *dataset);

/* Writes the examples indices[0..count) in this order, in the format they came in, durably. `labels_path` for IDX. */
SHEAF_MUST_USE sheaf_status sheaf_data_write(const sheaf_dataset *dataset, const uint32_t *indices, uint32_t count,
                                             const char *path, const char *labels_path, sheaf_problem *problem);

/* From memory; the options' paths stand in errors. `text.data[text.size]` need not be a NUL. */
SHEAF_MUST_USE sheaf_status sheaf_csv_parse(sheaf_span text, const sheaf_data_options *options, sheaf_dataset *out,
                                            sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_idx_parse(sheaf_span images, sheaf_span labels, const sheaf_data_options *options,
                                            sheaf_dataset *out, sheaf_problem *problem);
/* Unpacks gzip data of at most `limit` bytes; *out is the caller's to free. Data that is not gzip is SHEAF_E_DATA. */
SHEAF_MUST_USE sheaf_status sheaf_gzip_unpack(sheaf_span packed, uint64_t limit, const char *name, sheaf_buffer *out,
                                              sheaf_problem *problem);
