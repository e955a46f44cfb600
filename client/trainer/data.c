#include "client/trainer/data.h"

#include <assert.h>
#include <stdlib.h>

#include "common/file.h"

void sheaf_data_free(sheaf_dataset *dataset) {
    free(dataset->bytes);
    free(dataset->values);
    free(dataset->labels);
    free(dataset->source.data);
    free(dataset->lines);
    memset(dataset, 0, sizeof *dataset);
}

/* The whole file, unpacked when it is gzip data. */
static sheaf_status read_file(const char *path, sheaf_buffer *out, sheaf_problem *problem) {
    sheaf_status status = sheaf_file_read_whole(path, SHEAF_DATA_BYTES_MAX, out, problem);
    if (status != SHEAF_OK || out->size < 2 || out->data[0] != 0x1f || out->data[1] != 0x8b) return status;
    sheaf_buffer packed = *out;
    status = sheaf_gzip_unpack(sheaf_buffer_span(&packed), SHEAF_DATA_BYTES_MAX, path, out, problem);
    free(packed.data);
    return status;
}

static sheaf_status load_csv(const sheaf_data_options *options, sheaf_dataset *out, sheaf_problem *problem) {
    sheaf_buffer text;
    sheaf_status status = read_file(options->path, &text, problem);
    if (status != SHEAF_OK) return status;
    status = sheaf_csv_parse(sheaf_buffer_span(&text), options, out, problem);
    if (status == SHEAF_OK && options->keep_source)
        out->source = text;
    else
        free(text.data);
    return status;
}

static sheaf_status load_idx(const sheaf_data_options *options, sheaf_dataset *out, sheaf_problem *problem) {
    sheaf_buffer images = {0}, labels = {0};
    sheaf_status status = read_file(options->path, &images, problem);
    if (status == SHEAF_OK) status = read_file(options->labels, &labels, problem);
    if (status == SHEAF_OK)
        status = sheaf_idx_parse(sheaf_buffer_span(&images), sheaf_buffer_span(&labels), options, out, problem);
    free(images.data);
    free(labels.data);
    return status;
}

sheaf_status sheaf_data_load(const sheaf_data_options *options, sheaf_dataset *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    return options->labels == NULL ? load_csv(options, out, problem) : load_idx(options, out, problem);
}

static void read_example(uint32_t index, float *features, uint32_t *label, void *context) {
    const sheaf_dataset *dataset = context;
    assert(index < dataset->count);
    *label = dataset->labels[index];
    const size_t count = dataset->features, at = (size_t)index * count;
    if (dataset->values != NULL) {
        memcpy(features, dataset->values + at, count * sizeof *features);
        return;
    }
    const uint8_t *from = dataset->bytes + at;
    for (size_t i = 0; i < count; i++) features[i] = (float)from[i];
}

sheaf_examples sheaf_data_examples(const sheaf_dataset *dataset) {
    return (sheaf_examples){dataset->count, read_example, (void *)dataset};
}

/* ---- writing ---- */

static sheaf_status make_buffer(sheaf_buffer *out, uint64_t capacity, const char *path, sheaf_problem *problem) {
    out->size = 0;
    out->capacity = (size_t)capacity;
    out->data = malloc(out->capacity + 1);
    return out->data != NULL ? SHEAF_OK : sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", path);
}

static void append(sheaf_buffer *out, const void *data, size_t size) {
    assert(size <= out->capacity - out->size);
    if (size > 0) memcpy(out->data + out->size, data, size);
    out->size += size;
}

static sheaf_status write_csv(const sheaf_dataset *dataset, const uint32_t *indices, uint32_t count, const char *path,
                              sheaf_problem *problem) {
    uint64_t bytes = dataset->header_bytes + 1;
    for (uint32_t i = 0; i < count; i++) bytes += dataset->lines[indices[i] + 1] - dataset->lines[indices[i]] + 1;
    sheaf_buffer text;
    sheaf_status status = make_buffer(&text, bytes, path, problem);
    if (status != SHEAF_OK) return status;
    append(&text, dataset->source.data, (size_t)dataset->header_bytes);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t start = dataset->lines[indices[i]];
        append(&text, dataset->source.data + start, (size_t)(dataset->lines[indices[i] + 1] - start));
        if (text.data[text.size - 1] != '\n') append(&text, "\n", 1); /* the last line of the source may lack it */
    }
    status = sheaf_file_replace(path, sheaf_buffer_span(&text), 0644, problem);
    free(text.data);
    return status;
}

static void append_u32_big(sheaf_buffer *out, uint32_t value) {
    uint8_t bytes[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
    append(out, bytes, sizeof bytes);
}

static sheaf_status write_idx(const sheaf_dataset *dataset, const uint32_t *indices, uint32_t count, const char *path,
                              const char *labels_path, sheaf_problem *problem) {
    sheaf_buffer images, labels;
    sheaf_status status = make_buffer(&images, 20 + (uint64_t)count * dataset->features, path, problem);
    if (status != SHEAF_OK) return status;
    status = make_buffer(&labels, 8 + (uint64_t)count, labels_path, problem);
    if (status == SHEAF_OK) {
        append_u32_big(&images, 0x0800u | (dataset->rank + 1));
        append_u32_big(&images, count);
        for (uint32_t i = 0; i < dataset->rank; i++) append_u32_big(&images, dataset->shape[i]);
        append_u32_big(&labels, 0x0801u);
        append_u32_big(&labels, count);
        for (uint32_t i = 0; i < count; i++) {
            uint8_t label = (uint8_t)dataset->labels[indices[i]]; /* it came from one byte */
            append(&images, dataset->bytes + (size_t)indices[i] * dataset->features, dataset->features);
            append(&labels, &label, 1);
        }
        status = sheaf_file_replace(path, sheaf_buffer_span(&images), 0644, problem);
    }
    if (status == SHEAF_OK) status = sheaf_file_replace(labels_path, sheaf_buffer_span(&labels), 0644, problem);
    free(images.data);
    free(labels.data);
    return status;
}

sheaf_status sheaf_data_write(const sheaf_dataset *dataset, const uint32_t *indices, uint32_t count, const char *path,
                              const char *labels_path, sheaf_problem *problem) {
    assert(dataset->bytes != NULL || dataset->lines != NULL);
    for (uint32_t i = 0; i < count; i++) assert(indices[i] < dataset->count);
    if (dataset->bytes == NULL) return write_csv(dataset, indices, count, path, problem);
    return write_idx(dataset, indices, count, path, labels_path, problem);
}
