/* Two passes a tensor: the largest magnitude over all inputs chooses the lattice, then windows of values are summed
 * over the inputs and divided. Both read the files anew; nothing of an input is kept. */
#include "server/aggregate/file_mean.h"

#include "common/lattice.h"
#include "common/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#define WINDOW_VALUES 32768u

typedef struct {
    const sheaf_file_mean_input *inputs;
    sheaf_safetensors_file *files; /* one an input, open */
    size_t count;
    size_t tensor;                    /* the one at work */
    uint8_t bytes[4 * WINDOW_VALUES]; /* of one input */
    uint8_t first[4 * WINDOW_VALUES]; /* of the first input, where all must be equal */
    int64_t sums[WINDOW_VALUES];
} workshop;

static const sheaf_tensor *tensor_of(const workshop *shop) { return &shop->files[0].tensors[shop->tensor]; }

static sheaf_status check_weights(const sheaf_file_mean_input *inputs, size_t count, uint64_t *total,
                                  sheaf_problem *problem) {
    *total = 0;
    if (count == 0) return sheaf_problem_set(problem, SHEAF_E_USAGE, "no inputs");
    for (size_t i = 0; i < count; i++) {
        if (inputs[i].weight < 0)
            return sheaf_problem_set(problem, SHEAF_E_WEIGHT_NEGATIVE, "%s: weight %" PRId64 " is negative",
                                     inputs[i].path, inputs[i].weight);
        if ((uint64_t)inputs[i].weight > (uint64_t)INT64_MAX - *total) {
            return sheaf_problem_set(problem, SHEAF_E_OVERFLOW, "%s: the sum of the weights does not stay below 2^63",
                                     inputs[i].path);
        }
        *total += (uint64_t)inputs[i].weight;
    }
    return *total > 0 ? SHEAF_OK : sheaf_problem_set(problem, SHEAF_E_NO_WEIGHT, "all weights are zero");
}

static int is_integer(const char *dtype) {
    static const char *const integers[] = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"};
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        if (strcmp(dtype, integers[i]) == 0) return 1;
    }
    return 0;
}

static int is_f32(const char *dtype) { return strcmp(dtype, "F32") == 0; }

static sheaf_status check_types(const sheaf_safetensors_file *file, sheaf_problem *problem) {
    for (size_t i = 0; i < file->count; i++) {
        const char *dtype = file->tensors[i].dtype;
        if (is_f32(dtype) || is_integer(dtype)) continue;
        return sheaf_problem_set(problem, SHEAF_E_DTYPE,
                                 "%s: tensor '%s' is %s; means are taken of F32 only: convert it first", file->path,
                                 file->tensors[i].name, dtype);
    }
    return SHEAF_OK;
}

static sheaf_status check_same(const sheaf_safetensors_file *expected, const sheaf_safetensors_file *found,
                               sheaf_problem *problem) {
    /* Like sheaf_model_same_shape, but files have no model in memory: their tensors stand in order of names too. */
    size_t both = expected->count < found->count ? expected->count : found->count;
    sheaf_status status = SHEAF_OK;
    for (size_t i = 0; status == SHEAF_OK && i < both; i++)
        status = sheaf_tensor_same(&expected->tensors[i], &found->tensors[i], problem);
    if (status == SHEAF_OK && expected->count > both)
        status = sheaf_problem_set(problem, SHEAF_E_NAME, "tensor '%s' is missing", expected->tensors[both].name);
    if (status == SHEAF_OK && found->count > both)
        status = sheaf_problem_set(problem, SHEAF_E_NAME, "tensor '%s' is not expected", found->tensors[both].name);
    return status == SHEAF_OK ? status
                              : sheaf_problem_prefix(problem, "%s, compared with %s", found->path, expected->path);
}

static sheaf_status open_files(workshop *shop, sheaf_problem *problem) {
    for (size_t i = 0; i < shop->count; i++) {
        sheaf_status status = sheaf_safetensors_open(shop->inputs[i].path, UINT64_MAX, &shop->files[i], problem);
        if (status == SHEAF_OK && i == 0) status = check_types(&shop->files[0], problem);
        if (status == SHEAF_OK && i > 0) status = check_same(&shop->files[0], &shop->files[i], problem);
        if (status != SHEAF_OK) return status;
    }
    return SHEAF_OK;
}

static sheaf_status refuse_value(const workshop *shop, const char *path, uint64_t index, sheaf_status status,
                                 const char *what, sheaf_problem *problem) {
    return sheaf_problem_set(problem, status, "%s: tensor '%s', value %" PRIu64 ": %s", path, tensor_of(shop)->name,
                             index, what);
}

/* The largest magnitude of the tensor in one input, folded into *magnitude. */
static sheaf_status scan_input(workshop *shop, size_t input, uint32_t *magnitude, sheaf_problem *problem) {
    const sheaf_tensor *tensor = tensor_of(shop);
    for (uint64_t at = 0; at < tensor->elements; at += WINDOW_VALUES) {
        size_t count = tensor->elements - at < WINDOW_VALUES ? (size_t)(tensor->elements - at) : WINDOW_VALUES;
        sheaf_status status =
            sheaf_safetensors_pread(&shop->files[input], shop->tensor, 4 * at, shop->bytes, 4 * count, problem);
        if (status != SHEAF_OK) return status;
        for (size_t i = 0; i < count; i++) {
            uint32_t bits = sheaf_load_u32(shop->bytes + 4 * i);
            if (!lattice_f32_is_finite(bits)) {
                return refuse_value(shop, shop->inputs[input].path, at + i, SHEAF_E_NOT_FINITE,
                                    sheaf_status_text(SHEAF_E_NOT_FINITE), problem);
            }
            if (lattice_f32_magnitude(bits) > *magnitude) *magnitude = lattice_f32_magnitude(bits);
        }
    }
    return SHEAF_OK;
}

/* sums += weight * q over one window of one input. */
static sheaf_status add_window(workshop *shop, size_t input, uint64_t at, size_t count, uint32_t magnitude,
                               int fraction_bits, sheaf_problem *problem) {
    sheaf_status status =
        sheaf_safetensors_pread(&shop->files[input], shop->tensor, 4 * at, shop->bytes, 4 * count, problem);
    if (status != SHEAF_OK) return status;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = sheaf_load_u32(shop->bytes + 4 * i);
        int32_t q = 0;
        /* The bound was proved for what the first pass saw. */
        if (lattice_f32_magnitude(bits) > magnitude || lattice_decode_f32(bits, fraction_bits, &q) != SHEAF_OK) {
            return refuse_value(shop, shop->inputs[input].path, at + i, SHEAF_E_MISMATCH,
                                "the file changed while it was read", problem);
        }
        lattice_accumulate(&shop->sums[i], shop->inputs[input].weight, q);
    }
    return SHEAF_OK;
}

static sheaf_status mean_window(workshop *shop, uint64_t at, size_t count, double divisor, uint8_t *out,
                                sheaf_problem *problem) {
    for (size_t i = 0; i < count; i++) {
        float mean = lattice_mean_of(shop->sums[i], divisor);
        if (!lattice_f32_is_finite(lattice_f32_bits(mean))) {
            return refuse_value(shop, "mean", at + i, SHEAF_E_NOT_REPRESENTABLE, "is not finite in float32", problem);
        }
        sheaf_store_f32(out + 4 * (at + i), mean);
    }
    return SHEAF_OK;
}

static sheaf_status mean_tensor(workshop *shop, uint64_t total, uint8_t *out, int32_t *fraction_bits,
                                sheaf_problem *problem) {
    const sheaf_tensor *tensor = tensor_of(shop);
    uint32_t magnitude = 0;
    int bits = 0;
    sheaf_status status = SHEAF_OK;
    for (size_t i = 0; status == SHEAF_OK && i < shop->count; i++) status = scan_input(shop, i, &magnitude, problem);
    if (status != SHEAF_OK) return status;
    status = lattice_choose_fraction_bits(magnitude, total, &bits);
    if (status != SHEAF_OK)
        return sheaf_problem_set(problem, status,
                                 "tensor '%s': no lattice holds values of this size with weights that sum to %" PRIu64,
                                 tensor->name, total);
    *fraction_bits = bits;
    double divisor = lattice_mean_divisor(total, LATTICE_UNIT, bits);
    for (uint64_t at = 0; status == SHEAF_OK && at < tensor->elements; at += WINDOW_VALUES) {
        size_t count = tensor->elements - at < WINDOW_VALUES ? (size_t)(tensor->elements - at) : WINDOW_VALUES;
        memset(shop->sums, 0, count * sizeof shop->sums[0]);
        for (size_t i = 0; status == SHEAF_OK && i < shop->count; i++)
            status = add_window(shop, i, at, count, magnitude, bits, problem);
        if (status == SHEAF_OK) status = mean_window(shop, at, count, divisor, out, problem);
    }
    return status;
}

static sheaf_status copy_tensor(workshop *shop, uint8_t *out, sheaf_problem *problem) {
    const sheaf_tensor *tensor = tensor_of(shop);
    for (uint64_t at = 0; at < tensor->bytes; at += sizeof shop->first) {
        size_t size = tensor->bytes - at < sizeof shop->first ? (size_t)(tensor->bytes - at) : sizeof shop->first;
        sheaf_status status = sheaf_safetensors_pread(&shop->files[0], shop->tensor, at, shop->first, size, problem);
        for (size_t i = 1; status == SHEAF_OK && i < shop->count; i++) {
            status = sheaf_safetensors_pread(&shop->files[i], shop->tensor, at, shop->bytes, size, problem);
            if (status != SHEAF_OK || memcmp(shop->bytes, shop->first, size) == 0) continue;
            status = sheaf_problem_set(problem, SHEAF_E_MISMATCH,
                                       "%s, compared with %s: tensor '%s' is %s and differs; only F32 is averaged",
                                       shop->inputs[i].path, shop->inputs[0].path, tensor->name, tensor->dtype);
        }
        if (status != SHEAF_OK) return status;
        memcpy(out + at, shop->first, size);
    }
    return SHEAF_OK;
}

static sheaf_status fill(workshop *shop, sheaf_file_mean *out, sheaf_problem *problem) {
    sheaf_status status = sheaf_model_make(shop->files[0].tensors, shop->files[0].count, &out->model, problem);
    if (status != SHEAF_OK) return sheaf_problem_prefix(problem, "%s", shop->files[0].path);
    out->fraction_bits = calloc(out->model.count + 1, sizeof *out->fraction_bits);
    if (out->fraction_bits == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory");
    /* Files and models have their tensors in the same order: that of names. */
    for (size_t i = 0; status == SHEAF_OK && i < out->model.count; i++) {
        uint8_t *data = out->model.stream + out->model.tensors[i].data_offset;
        shop->tensor = i;
        if (is_f32(tensor_of(shop)->dtype)) {
            status = mean_tensor(shop, out->weight, data, &out->fraction_bits[i], problem);
        } else {
            out->fraction_bits[i] = SHEAF_FILE_MEAN_COPIED;
            status = copy_tensor(shop, data, problem);
        }
    }
    return status;
}

sheaf_status sheaf_file_mean_make(const sheaf_file_mean_input *inputs, size_t count, sheaf_file_mean *out,
                                  sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    assert(lattice_float_environment_ok());
    sheaf_status status = check_weights(inputs, count, &out->weight, problem);
    if (status != SHEAF_OK) return status;
    workshop *shop = calloc(1, sizeof *shop);
    sheaf_safetensors_file *files = calloc(count, sizeof *files);
    if (shop == NULL || files == NULL) {
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for %zu inputs", count);
    } else {
        shop->inputs = inputs;
        shop->files = files;
        shop->count = count;
        status = open_files(shop, problem);
        if (status == SHEAF_OK) status = fill(shop, out, problem);
        for (size_t i = 0; i < count; i++) sheaf_safetensors_close(&files[i]);
    }
    free(files);
    free(shop);
    if (status != SHEAF_OK) sheaf_file_mean_free(out);
    return status;
}

void sheaf_file_mean_free(sheaf_file_mean *mean) {
    sheaf_model_free(&mean->model);
    free(mean->fraction_bits);
    memset(mean, 0, sizeof *mean);
}
