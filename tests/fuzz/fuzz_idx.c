/* A pair of IDX files, or gzip data: the first two bytes tell how many of the rest are the images. */
#include <stdlib.h>

#include "client/trainer/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    size_t first = ((size_t)data[0] << 8 | data[1]) % (size - 1);
    sheaf_data_options options = {.path = "images.idx", .labels = "labels.idx"};
    sheaf_problem problem;
    sheaf_dataset dataset;
    sheaf_span images = sheaf_span_of(data + 2, first), labels = sheaf_span_of(data + 2 + first, size - 2 - first);
    if (sheaf_idx_parse(images, labels, &options, &dataset, &problem) == SHEAF_OK) {
        if ((uint64_t)dataset.count * dataset.features > size) abort();
    }
    sheaf_data_free(&dataset);
    sheaf_buffer unpacked;
    if (sheaf_gzip_unpack(sheaf_span_of(data + 2, size - 2), 1u << 20, "data.gz", &unpacked, &problem) == SHEAF_OK) {
        if (unpacked.size > 1u << 20) abort();
        free(unpacked.data);
    }
    return 0;
}
