/* The stream's layout stands in parameters.h. Nothing here allocates or prints: the device core walks its model with
 * these functions, a header at a time. */
#include "common/parameters.h"

#include "common/cursor.h"

typedef struct {
    const char *name;
    uint32_t bytes;
} dtype_size;

/* Types of the safetensors format whose elements are whole bytes. */
static const dtype_size dtypes[] = {
    {"F32", 4},  {"F16", 2},     {"BF16", 2},    {"F64", 8},     {"I64", 8}, {"I32", 4},
    {"I16", 2},  {"I8", 1},      {"U64", 8},     {"U32", 4},     {"U16", 2}, {"U8", 1},
    {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8},
};

uint32_t sheaf_dtype_bytes(const char *dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtype, dtypes[i].name) == 0) return dtypes[i].bytes;
    }
    return 0;
}

static int name_bytes_ok(const uint8_t *name, size_t size) {
    if (size == 0 || size >= SHEAF_TENSOR_NAME_BYTES) return 0;
    for (size_t i = 0; i < size; i++) {
        if (name[i] < 0x20 || name[i] == 0x7f) return 0;
    }
    return 1;
}

int sheaf_tensor_name_ok(const char *name) { return name_bytes_ok((const uint8_t *)name, strlen(name)); }

sheaf_status sheaf_tensor_measure(sheaf_tensor *tensor) {
    uint32_t size = sheaf_dtype_bytes(tensor->dtype);
    if (size == 0) return SHEAF_E_DTYPE;
    if (tensor->rank > SHEAF_TENSOR_RANK_MAX) return SHEAF_E_MALFORMED;
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (tensor->dims[i] != 0 && elements > UINT64_MAX / tensor->dims[i]) return SHEAF_E_MALFORMED;
        elements *= tensor->dims[i];
    }
    if (elements > UINT64_MAX / size) return SHEAF_E_MALFORMED;
    tensor->elements = elements;
    tensor->bytes = elements * size;
    return SHEAF_OK;
}

static void write_text(sheaf_writer *writer, const char *text) {
    size_t size = strlen(text);
    sheaf_write_u64(writer, size);
    sheaf_write_bytes(writer, text, size);
}

sheaf_status sheaf_tensor_header_encode(const sheaf_tensor *tensor, sheaf_buffer *out) {
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    write_text(&writer, tensor->name);
    write_text(&writer, tensor->dtype);
    sheaf_write_u64(&writer, tensor->rank);
    for (uint32_t i = 0; i < tensor->rank && i < SHEAF_TENSOR_RANK_MAX; i++) sheaf_write_u64(&writer, tensor->dims[i]);
    sheaf_write_u64(&writer, tensor->bytes);
    out->size = writer.failed ? 0 : writer.position;
    return writer.failed ? SHEAF_E_TOO_LARGE : SHEAF_OK;
}

/* A u64 length and that many bytes, as text. A length that no honest header has is refused before it is waited for. */
static sheaf_status read_text(sheaf_reader *reader, char *out, size_t capacity) {
    uint64_t size = sheaf_read_u64(reader);
    if (reader->failed) return SHEAF_E_TRUNCATED;
    if (size == 0 || size >= capacity) return SHEAF_E_MALFORMED;
    sheaf_span text = sheaf_read_bytes(reader, (size_t)size);
    if (reader->failed) return SHEAF_E_TRUNCATED;
    if (!name_bytes_ok(text.data, text.size)) return SHEAF_E_MALFORMED;
    memcpy(out, text.data, text.size);
    out[text.size] = '\0';
    return SHEAF_OK;
}

static sheaf_status read_dimensions(sheaf_reader *reader, sheaf_tensor *out) {
    uint64_t rank = sheaf_read_u64(reader);
    if (reader->failed) return SHEAF_E_TRUNCATED;
    if (rank > SHEAF_TENSOR_RANK_MAX) return SHEAF_E_MALFORMED;
    out->rank = (uint32_t)rank;
    for (uint32_t i = 0; i < out->rank; i++) out->dims[i] = sheaf_read_u64(reader);
    uint64_t bytes = sheaf_read_u64(reader);
    if (reader->failed) return SHEAF_E_TRUNCATED;
    if (sheaf_tensor_measure(out) != SHEAF_OK) return SHEAF_E_MALFORMED;
    return bytes == out->bytes ? SHEAF_OK : SHEAF_E_MALFORMED;
}

sheaf_status sheaf_tensor_header_decode(sheaf_span bytes, const sheaf_tensor *previous, sheaf_tensor *out,
                                        size_t *used) {
    sheaf_reader reader = sheaf_reader_of(bytes);
    memset(out, 0, sizeof *out);
    *used = 0;
    sheaf_status status = read_text(&reader, out->name, sizeof out->name);
    if (status != SHEAF_OK) return status;
    /* strcmp compares unsigned bytes, which is the order that the digest wants; equal names are out of order too. */
    if (previous != NULL && strcmp(previous->name, out->name) >= 0) return SHEAF_E_MALFORMED;
    status = read_text(&reader, out->dtype, sizeof out->dtype);
    if (status != SHEAF_OK) return status;
    status = read_dimensions(&reader, out);
    if (status == SHEAF_OK) *used = reader.position;
    return status;
}
