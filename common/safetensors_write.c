/* Writing: keys stand in byte order of names. Data stand by falling element size, then name: with an aligned header
 * every tensor is then aligned for its type, which readers that map the file (PyTorch's) insist on. */
#include "common/safetensors.h"

#include "common/file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const uint32_t sizes[] = {8, 4, 2, 1};

/* Where each tensor's data begin after the header, and in which order they are written. */
static void place(const sheaf_model *model, uint64_t *begin, size_t *order) {
    uint64_t at = 0;
    size_t written = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t i = 0; i < model->count; i++) {
            if (sheaf_dtype_bytes(model->tensors[i].tensor.dtype) != sizes[s]) continue;
            begin[i] = at;
            order[written++] = i;
            at += model->tensors[i].tensor.bytes;
        }
    }
}

/* Takes the reference of `value`, also when it fails. */
static int put(json_t *object, const char *key, json_t *value) {
    return value != NULL && json_object_set_new(object, key, value) == 0;
}
static int append(json_t *array, uint64_t value) {
    return value <= INT64_MAX && json_array_append_new(array, json_integer((json_int_t)value)) == 0;
}

static json_t *tensor_json(const sheaf_tensor *tensor, uint64_t begin) {
    json_t *object = json_object(), *shape = json_array(), *offsets = json_array();
    int ok = object != NULL && shape != NULL && offsets != NULL && put(object, "dtype", json_string(tensor->dtype));
    for (uint32_t i = 0; ok && i < tensor->rank; i++) ok = append(shape, tensor->dims[i]);
    ok = ok && append(offsets, begin) && append(offsets, begin + tensor->bytes);
    ok = ok && json_object_set(object, "shape", shape) == 0 && json_object_set(object, "data_offsets", offsets) == 0;
    json_decref(shape);
    json_decref(offsets);
    if (ok) return object;
    json_decref(object);
    return NULL;
}

static json_t *metadata_json(const sheaf_metadata *metadata, size_t count) {
    json_t *object = json_object();
    for (size_t i = 0; object != NULL && i < count; i++) {
        if (put(object, metadata[i].key, json_string(metadata[i].value))) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *header_json(const sheaf_model *model, const uint64_t *begin, const sheaf_metadata *metadata,
                           size_t count) {
    json_t *root = json_object();
    int ok = root != NULL && (count == 0 || put(root, "__metadata__", metadata_json(metadata, count)));
    for (size_t i = 0; ok && i < model->count; i++) {
        const sheaf_tensor *tensor = &model->tensors[i].tensor;
        ok = strcmp(tensor->name, "__metadata__") != 0 && put(root, tensor->name, tensor_json(tensor, begin[i]));
    }
    if (ok) return root;
    json_decref(root);
    return NULL;
}

/* The length word and the header, padded with spaces to a multiple of eight bytes. */
static sheaf_status make_header(const sheaf_model *model, const uint64_t *begin, const sheaf_metadata *metadata,
                                size_t count, sheaf_buffer *out, sheaf_problem *problem) {
    json_t *root = header_json(model, begin, metadata, count);
    if (root == NULL)
        return sheaf_problem_set(problem, SHEAF_E_NAME,
                                 "a tensor name or metadata is not UTF-8, or not allowed in a safetensors header");
    size_t text = json_dumpb(root, NULL, 0, JSON_COMPACT);
    out->size = 8 + (text + 7) / 8 * 8;
    out->capacity = out->size;
    out->data = malloc(out->capacity);
    if (text == 0 || out->data == NULL) {
        json_decref(root);
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a safetensors header");
    }
    memset(out->data, ' ', out->size);
    sheaf_store_u64(out->data, out->size - 8);
    (void)json_dumpb(root, (char *)out->data + 8, text, JSON_COMPACT);
    json_decref(root);
    return SHEAF_OK;
}

static sheaf_status write_all(int fd, const char *path, sheaf_span header, const sheaf_model *model,
                              const uint64_t *begin, const size_t *order, sheaf_problem *problem) {
    sheaf_status status = sheaf_file_write_at(fd, header, 0, path, problem);
    for (size_t i = 0; status == SHEAF_OK && i < model->count; i++) {
        const sheaf_model_tensor *entry = &model->tensors[order[i]];
        sheaf_span data = sheaf_span_of(model->stream + entry->data_offset, (size_t)entry->tensor.bytes);
        status = sheaf_file_write_at(fd, data, header.size + begin[order[i]], path, problem);
    }
    return status;
}

static sheaf_status write_durably(const char *path, sheaf_span header, const sheaf_model *model, const uint64_t *begin,
                                  const size_t *order, sheaf_problem *problem) {
    char temporary[SHEAF_PATH_BYTES];
    int size = snprintf(temporary, sizeof temporary, "%s.new", path);
    if (size < 0 || (size_t)size >= sizeof temporary)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: path is too long", path);
    int fd = -1;
    sheaf_status status = sheaf_file_create(temporary, 0644, &fd, problem);
    if (status != SHEAF_OK) return status;
    status = write_all(fd, temporary, header, model, begin, order, problem);
    if (status == SHEAF_OK) status = sheaf_file_publish(fd, temporary, path, problem);
    close(fd);
    if (status != SHEAF_OK) (void)unlink(temporary);
    return status;
}

sheaf_status sheaf_safetensors_write(const char *path, const sheaf_model *model, const sheaf_metadata *metadata,
                                     size_t count, sheaf_problem *problem) {
    sheaf_buffer header = {NULL, 0, 0};
    uint64_t *begin = calloc(model->count + 1, sizeof *begin);
    size_t *order = calloc(model->count + 1, sizeof *order);
    sheaf_status status = SHEAF_OK;
    if (begin == NULL || order == NULL)
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for its header", path);
    if (status == SHEAF_OK) {
        place(model, begin, order);
        status = make_header(model, begin, metadata, count, &header, problem);
    }
    if (status == SHEAF_OK) status = write_durably(path, sheaf_buffer_span(&header), model, begin, order, problem);
    free(header.data);
    free(order);
    free(begin);
    return status;
}
