/* A CSV table: whatever it holds, it is read or refused. */
#include <stdlib.h>

#include "client/trainer/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_data_options options = {.path = "table.csv", .keep_source = 1};
    sheaf_problem problem;
    sheaf_dataset dataset;
    if (sheaf_csv_parse(sheaf_span_of(data, size), &options, &dataset, &problem) == SHEAF_OK) {
        if (dataset.count == 0 || dataset.features == 0 || dataset.lines[dataset.count] > size) abort();
        for (uint32_t i = 0; i < dataset.count; i++) {
            if (dataset.labels[i] >= dataset.classes || dataset.lines[i] >= dataset.lines[i + 1]) abort();
        }
    }
    sheaf_data_free(&dataset);
    return 0;
}
