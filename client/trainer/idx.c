/* idx.c - the IDX format (http://yann.lecun.com/exdb/mnist): two zero bytes, a type (0x08: unsigned bytes), the rank,
 * big-endian u32 dimensions, the data. */
#include <stdlib.h>

#include "client/trainer/data.h"

static uint32_t load_u32_big(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

typedef struct {
    uint32_t rank;
    uint32_t dims[4];
    sheaf_span data;
} idx;

static sheaf_status parse_one(sheaf_span file, const char *name, uint32_t rank_min, uint32_t rank_max, idx *out,
                              sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    if (file.size < 4 || file.data[0] != 0 || file.data[1] != 0) {
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: not an IDX file; expected it to start with two zero bytes",
                                 name);
    }
    if (file.data[2] != 0x08) {
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: IDX type 0x%02x; expected 0x08, unsigned bytes", name,
                                 file.data[2]);
    }
    out->rank = file.data[3];
    if (out->rank < rank_min || out->rank > rank_max) {
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: IDX data of %u dimensions; expected %u to %u", name,
                                 (unsigned)out->rank, (unsigned)rank_min, (unsigned)rank_max);
    }
    size_t header = 4 + 4 * (size_t)out->rank;
    if (file.size < header)
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: ends within its header of %zu bytes", name, header);
    uint64_t expected = 1;
    for (uint32_t i = 0; i < out->rank; i++) {
        out->dims[i] = load_u32_big(file.data + 4 + 4 * (size_t)i);
        /* The product stays below 2^63: it is checked before it grows, and a dimension is below 2^32. */
        if (expected <= SHEAF_DATA_BYTES_MAX) expected *= out->dims[i];
    }
    if (file.size - header != expected) {
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: %zu bytes of data; its header of %u records promises %llu",
                                 name, file.size - header, (unsigned)out->dims[0], (unsigned long long)expected);
    }
    out->data = sheaf_span_of(file.data + header, file.size - header);
    return SHEAF_OK;
}

static sheaf_status check_images(const idx *images, const sheaf_data_options *options, uint64_t *features,
                                 sheaf_problem *problem) {
    *features = 1;
    for (uint32_t i = 1; i < images->rank; i++) {
        if (*features <= SHEAF_DATA_FEATURES_MAX) *features *= images->dims[i];
    }
    if (images->dims[0] == 0 || *features == 0)
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: holds no examples", options->path);
    if (images->dims[0] > INT32_MAX || *features > SHEAF_DATA_FEATURES_MAX) {
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: more examples or features than can be held",
                                 options->path);
    }
    if (options->features != 0 && *features != options->features) {
        return sheaf_problem_set(problem, SHEAF_E_DATA,
                                 "%s: %llu features an example; expected %u, as the network takes", options->path,
                                 (unsigned long long)*features, (unsigned)options->features);
    }
    return SHEAF_OK;
}

static sheaf_status take_labels(const idx *labels, const sheaf_data_options *options, sheaf_dataset *out,
                                sheaf_problem *problem) {
    for (uint32_t i = 0; i < out->count; i++) {
        uint32_t label = labels->data.data[i];
        if (options->classes != 0 && label >= options->classes) {
            return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: record %u: label %u; expected 0 to %u",
                                     options->labels, (unsigned)i, (unsigned)label, (unsigned)options->classes - 1);
        }
        out->labels[i] = label;
        if (label >= out->classes) out->classes = label + 1;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_idx_parse(sheaf_span image_file, sheaf_span label_file, const sheaf_data_options *options,
                             sheaf_dataset *out, sheaf_problem *problem) {
    idx images, labels;
    uint64_t features = 0;
    memset(out, 0, sizeof *out);
    sheaf_status status = parse_one(image_file, options->path, 2, 4, &images, problem);
    if (status == SHEAF_OK) status = parse_one(label_file, options->labels, 1, 1, &labels, problem);
    if (status == SHEAF_OK) status = check_images(&images, options, &features, problem);
    if (status != SHEAF_OK) return status;
    if (labels.dims[0] != images.dims[0]) {
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: %u labels; expected %u, one for each record of %s",
                                 options->labels, (unsigned)labels.dims[0], (unsigned)images.dims[0], options->path);
    }
    out->count = images.dims[0];
    out->features = (uint32_t)features;
    out->rank = images.rank - 1;
    memcpy(out->shape, images.dims + 1, out->rank * sizeof *out->shape);
    out->bytes = malloc(images.data.size);
    out->labels = malloc(out->count * sizeof *out->labels);
    if (out->bytes == NULL || out->labels == NULL)
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", options->path);
    if (status == SHEAF_OK) memcpy(out->bytes, images.data.data, images.data.size);
    if (status == SHEAF_OK) status = take_labels(&labels, options, out, problem);
    if (status != SHEAF_OK) sheaf_data_free(out);
    return status;
}
