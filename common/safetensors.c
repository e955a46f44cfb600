/* Reading: the header becomes a list of entries, checked as a whole before any data is touched. Writing stands in
 * safetensors_write.c. */
#include "common/safetensors.h"

#include "common/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#define HEADER_BYTES_MAX 100000000u /* the format's own bound */
#define METADATA_KEY     "__metadata__"

typedef struct {
    sheaf_tensor tensor;
    uint64_t begin, end; /* in the data after the header */
} entry;

typedef struct {
    entry *entries; /* in byte order of names once parsed */
    size_t count;
} entry_list;

static int u64_of(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return 0;
    *out = (uint64_t)json_integer_value(value);
    return 1;
}

/* NULL when the shape is one; else what is wrong with it. */
static const char *read_shape(const json_t *shape, sheaf_tensor *tensor) {
    if (!json_is_array(shape)) return "'shape' is not a list";
    if (json_array_size(shape) > SHEAF_TENSOR_RANK_MAX) return "more than 8 dimensions";
    tensor->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (!u64_of(json_array_get(shape, i), &tensor->dims[i])) return "a dimension is no whole number from 0 on";
    }
    return NULL;
}

static const char *read_offsets(const json_t *offsets, entry *out) {
    if (!json_is_array(offsets) || json_array_size(offsets) != 2) return "'data_offsets' is not a list of two";
    if (!u64_of(json_array_get(offsets, 0), &out->begin) || !u64_of(json_array_get(offsets, 1), &out->end))
        return "an offset is no whole number from 0 on";
    if (out->end < out->begin) return "data ends before it begins";
    return out->end - out->begin == out->tensor.bytes ? NULL : "the size of the data is not that of the shape";
}

static const char *read_tensor(const char *name, const json_t *value, entry *out) {
    if (!sheaf_tensor_name_ok(name)) return "the name is empty, longer than 127 bytes, or has control characters";
    if (!json_is_object(value)) return "is not an object";
    if (json_object_size(value) != 3) return "needs exactly dtype, shape and data_offsets";
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (dtype == NULL || strlen(dtype) >= sizeof out->tensor.dtype || sheaf_dtype_bytes(dtype) == 0)
        return "'dtype' is missing or unknown";
    memset(out, 0, sizeof *out);
    memcpy(out->tensor.name, name, strlen(name));
    memcpy(out->tensor.dtype, dtype, strlen(dtype));
    const char *wrong = read_shape(json_object_get(value, "shape"), &out->tensor);
    if (wrong != NULL) return wrong;
    if (sheaf_tensor_measure(&out->tensor) != SHEAF_OK) return "the shape has more elements than can be counted";
    return read_offsets(json_object_get(value, "data_offsets"), out);
}

static sheaf_status check_metadata(json_t *metadata, const char *file, sheaf_problem *problem) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: " METADATA_KEY " is not an object", file);
    json_object_foreach(metadata, key, value) {
        (void)key;
        if (!json_is_string(value))
            return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: " METADATA_KEY " may hold strings only", file);
    }
    return SHEAF_OK;
}

static int by_offset(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* empty tensors stand before the one that begins there */
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->tensor.name, ((const entry *)b)->tensor.name);
}

/* The data are covered from the first byte to the last, each by one tensor. */
static sheaf_status check_cover(entry_list *list, uint64_t data_bytes, const char *file, sheaf_problem *problem) {
    uint64_t at = 0;
    qsort(list->entries, list->count, sizeof *list->entries, by_offset);
    for (size_t i = 0; i < list->count; i++) {
        const entry *e = &list->entries[i];
        if (e->begin != at) {
            return sheaf_problem_set(problem, SHEAF_E_DATA,
                                     "%s: tensor '%s': its data leave a hole or overlap at byte %llu", file,
                                     e->tensor.name, (unsigned long long)at);
        }
        at = e->end;
    }
    if (at != data_bytes) {
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: %llu bytes of data, the header speaks of %llu", file,
                                 (unsigned long long)data_bytes, (unsigned long long)at);
    }
    qsort(list->entries, list->count, sizeof *list->entries, by_name);
    return SHEAF_OK;
}

static sheaf_status read_entries(json_t *root, const char *file, entry_list *out, sheaf_problem *problem) {
    const char *name;
    json_t *value;
    out->entries = calloc(json_object_size(root) + 1, sizeof *out->entries);
    if (out->entries == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for its header", file);
    json_object_foreach(root, name, value) {
        if (strcmp(name, METADATA_KEY) == 0) {
            sheaf_status status = check_metadata(value, file, problem);
            if (status != SHEAF_OK) return status;
            continue;
        }
        const char *wrong = read_tensor(name, value, &out->entries[out->count]);
        if (wrong != NULL) {
            return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: tensor '%.128s': %s", file,
                                     sheaf_tensor_name_ok(name) ? name : "?", wrong);
        }
        out->count++;
    }
    return SHEAF_OK;
}

/* `header` is the JSON text alone, `data_bytes` what follows it in the file. */
static sheaf_status parse_header(sheaf_span header, uint64_t data_bytes, const char *file, entry_list *out,
                                 sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    if (header.size == 0 || header.data[0] != '{')
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: the header does not begin with '{'", file);
    json_error_t error;
    json_t *root = json_loadb((const char *)header.data, header.size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: the header is not JSON: %s (byte %d)", file, error.text,
                                 error.position);
    sheaf_status status = read_entries(root, file, out, problem);
    json_decref(root);
    if (status == SHEAF_OK) status = check_cover(out, data_bytes, file, problem);
    if (status != SHEAF_OK) {
        free(out->entries);
        memset(out, 0, sizeof *out);
    }
    return status;
}

static sheaf_status header_size(const uint8_t prefix[8], uint64_t file_bytes, const char *file, size_t *out,
                                sheaf_problem *problem) {
    uint64_t size = sheaf_load_u64(prefix);
    if (size > HEADER_BYTES_MAX)
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: the header's length is above 100 MB", file);
    if (size > file_bytes - 8)
        return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: the file ends inside its header", file);
    *out = (size_t)size;
    return SHEAF_OK;
}

static sheaf_status make_model(const entry_list *list, sheaf_model *out, const char *file, sheaf_problem *problem) {
    sheaf_tensor *tensors = calloc(list->count + 1, sizeof *tensors);
    if (tensors == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for its header", file);
    for (size_t i = 0; i < list->count; i++) tensors[i] = list->entries[i].tensor;
    sheaf_status status = sheaf_model_make(tensors, list->count, out, problem);
    if (status != SHEAF_OK) (void)sheaf_problem_prefix(problem, "%s", file);
    free(tensors);
    return status;
}

sheaf_status sheaf_safetensors_parse(sheaf_span file, const char *name, sheaf_model *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    if (file.size < 8) return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: shorter than 8 bytes", name);
    size_t header_bytes = 0;
    sheaf_status status = header_size(file.data, file.size, name, &header_bytes, problem);
    if (status != SHEAF_OK) return status;
    sheaf_span data = sheaf_span_of(file.data + 8 + header_bytes, file.size - 8 - header_bytes);
    entry_list list;
    status = parse_header(sheaf_span_of(file.data + 8, header_bytes), data.size, name, &list, problem);
    if (status != SHEAF_OK) return status;
    status = make_model(&list, out, name, problem);
    for (size_t i = 0; status == SHEAF_OK && i < out->count; i++) {
        size_t size = (size_t)out->tensors[i].tensor.bytes;
        if (size > 0) memcpy(out->stream + out->tensors[i].data_offset, data.data + list.entries[i].begin, size);
    }
    free(list.entries);
    return status;
}

/* Reads the header of an open file; *data_at is where the data begin. */
static sheaf_status load_header(int fd, uint64_t file_bytes, const char *path, entry_list *out, uint64_t *data_at,
                                sheaf_problem *problem) {
    uint8_t prefix[8];
    size_t size = 0;
    if (file_bytes < sizeof prefix) return sheaf_problem_set(problem, SHEAF_E_DATA, "%s: shorter than 8 bytes", path);
    sheaf_status status = sheaf_file_read_at(fd, prefix, sizeof prefix, 0, path, problem);
    if (status == SHEAF_OK) status = header_size(prefix, file_bytes, path, &size, problem);
    if (status != SHEAF_OK) return status;
    uint8_t *header = malloc(size + 1);
    if (header == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for its header", path);
    status = sheaf_file_read_at(fd, header, size, sizeof prefix, path, problem);
    *data_at = sizeof prefix + size;
    if (status == SHEAF_OK)
        status = parse_header(sheaf_span_of(header, size), file_bytes - *data_at, path, out, problem);
    free(header);
    return status;
}

static sheaf_status take_entries(const entry_list *list, uint64_t data_at, sheaf_safetensors_file *out,
                                 sheaf_problem *problem) {
    out->tensors = calloc(list->count + 1, sizeof *out->tensors);
    out->offsets = calloc(list->count + 1, sizeof *out->offsets);
    if (out->tensors == NULL || out->offsets == NULL)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for its header", out->path);
    out->count = list->count;
    for (size_t i = 0; i < list->count; i++) {
        out->tensors[i] = list->entries[i].tensor;
        out->offsets[i] = data_at + list->entries[i].begin;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_safetensors_open(const char *path, uint64_t limit_bytes, sheaf_safetensors_file *out,
                                    sheaf_problem *problem) {
    *out = (sheaf_safetensors_file){.path = path, .fd = -1};
    uint64_t file_bytes = 0, data_at = 0;
    sheaf_status status = sheaf_file_open(path, &out->fd, &file_bytes, problem);
    if (status != SHEAF_OK) return status;
    entry_list list = {NULL, 0};
    if (file_bytes > limit_bytes) {
        status = sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: %llu bytes, the limit is %llu", path,
                                   (unsigned long long)file_bytes, (unsigned long long)limit_bytes);
    }
    if (status == SHEAF_OK) status = load_header(out->fd, file_bytes, path, &list, &data_at, problem);
    if (status == SHEAF_OK) status = take_entries(&list, data_at, out, problem);
    free(list.entries);
    if (status != SHEAF_OK) sheaf_safetensors_close(out);
    return status;
}

sheaf_status sheaf_safetensors_pread(const sheaf_safetensors_file *file, size_t index, uint64_t offset, void *out,
                                     size_t size, sheaf_problem *problem) {
    sheaf_status status = sheaf_file_read_at(file->fd, out, size, file->offsets[index] + offset, file->path, problem);
    return status == SHEAF_OK ? status : sheaf_problem_prefix(problem, "tensor '%s'", file->tensors[index].name);
}

void sheaf_safetensors_close(sheaf_safetensors_file *file) {
    if (file->path != NULL && file->fd >= 0) close(file->fd);
    free(file->tensors);
    free(file->offsets);
    *file = (sheaf_safetensors_file){.fd = -1};
}

sheaf_status sheaf_safetensors_read(const char *path, uint64_t limit_bytes, sheaf_model *out, sheaf_problem *problem) {
    sheaf_safetensors_file file;
    memset(out, 0, sizeof *out);
    sheaf_status status = sheaf_safetensors_open(path, limit_bytes, &file, problem);
    if (status != SHEAF_OK) return status;
    status = sheaf_model_make(file.tensors, file.count, out, problem);
    if (status != SHEAF_OK) (void)sheaf_problem_prefix(problem, "%s", path);
    for (size_t i = 0; status == SHEAF_OK && i < out->count; i++) {
        status = sheaf_safetensors_pread(&file, i, 0, out->stream + out->tensors[i].data_offset,
                                         (size_t)out->tensors[i].tensor.bytes, problem);
    }
    sheaf_safetensors_close(&file);
    if (status != SHEAF_OK) sheaf_model_free(out);
    return status;
}
