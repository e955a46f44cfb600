/* parameters.h - a set of named tensors as one stream of bytes: what a model version is, on the wire and in a digest.
 *
 * Tensors stand in byte order of their names, each as: u64 name bytes, name, u64 dtype bytes, dtype (safetensors'
 * spelling: F32, I64 ...), u64 rank, u64 each dimension, u64 data bytes, data; all little-endian. The SHA-256 of
 * exactly this stream is the model digest, so a model is fetched by its digest, and is checked by hashing what came.
 *
 * Owner:   the caller; headers hold no pointer into the stream.
 * Threads: any; no state besides the reader's own.
 * Units:   bytes, elements. Limits: rank <= 8, names < 128 bytes, so that a device needs no allocation.
 * Errors:  SHEAF_E_MALFORMED (limits, sizes that disagree, names out of order), SHEAF_E_TRUNCATED.
 * Not:     files; server side files are safetensors (safetensors.h). */
#pragma once
#include "common/bytes.h"
#include "common/status.h"

#define SHEAF_TENSOR_NAME_BYTES 128u /* with the NUL */
#define SHEAF_TENSOR_RANK_MAX   8u
#define SHEAF_DTYPE_BYTES       12u /* with the NUL; "F8_E4M3" and kin fit */
/* The longest tensor header: five u64 words (name, dtype, rank, data, and spare), names and dimensions. */
#define SHEAF_TENSOR_HEADER_BYTES_MAX (8u + 127u + 8u + 11u + 8u + 8u * SHEAF_TENSOR_RANK_MAX + 8u)

typedef struct {
    char name[SHEAF_TENSOR_NAME_BYTES];
    char dtype[SHEAF_DTYPE_BYTES];
    uint32_t rank;
    uint64_t dims[SHEAF_TENSOR_RANK_MAX];
    uint64_t elements; /* product of dims; 1 for rank 0 */
    uint64_t bytes;    /* elements * element size */
} sheaf_tensor;

/* 1 if `name` is 1..127 bytes without control characters, so that it can stand in a log line. */
int sheaf_tensor_name_ok(const char *name);
/* Bytes per element of a dtype in safetensors' spelling, 0 when unknown. */
uint32_t sheaf_dtype_bytes(const char *dtype);
/* Fills elements and bytes from dtype, rank and dims; SHEAF_E_MALFORMED on overflow, SHEAF_E_DTYPE when unknown. */
SHEAF_MUST_USE sheaf_status sheaf_tensor_measure(sheaf_tensor *tensor);
/* Writes the header of a tensor; out->capacity >= SHEAF_TENSOR_HEADER_BYTES_MAX. */
SHEAF_MUST_USE sheaf_status sheaf_tensor_header_encode(const sheaf_tensor *tensor, sheaf_buffer *out);
/* Reads a header from the front of `bytes`; *used tells its length. SHEAF_E_TRUNCATED: give more bytes (never needs
 * more than SHEAF_TENSOR_HEADER_BYTES_MAX). `previous` (NULL for the first) enforces the order of names. */
SHEAF_MUST_USE sheaf_status sheaf_tensor_header_decode(sheaf_span bytes, const sheaf_tensor *previous,
                                                       sheaf_tensor *out, size_t *used);
