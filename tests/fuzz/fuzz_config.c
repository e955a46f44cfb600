/* Any text is read by the table or refused with a sentence that names the file. */
#include <assert.h>
#include <string.h>

#include "common/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const char *name, *path;
    uint32_t minimum;
    uint64_t window_bytes;
    int64_t offset;
    double rate;
    int on, carrier;
} item;

typedef struct {
    const char *title;
    item single;
    sheaf_config_list items, bits;
} sample;

static const char *const carriers[] = {"nng", "inproc", NULL};
static const sheaf_config_field item_fields[] = {
    {.key = "name", .kind = SHEAF_CONFIG_NAME, .offset = offsetof(item, name), .required = 1},
    {.key = "path", .kind = SHEAF_CONFIG_PATH, .offset = offsetof(item, path)},
    {.key = "minimum", .kind = SHEAF_CONFIG_U32, .offset = offsetof(item, minimum), .preset = "3", .maximum = 100},
    {.key = "window_bytes", .kind = SHEAF_CONFIG_BYTES, .offset = offsetof(item, window_bytes)},
    {.key = "offset", .kind = SHEAF_CONFIG_I64, .offset = offsetof(item, offset)},
    {.key = "rate", .kind = SHEAF_CONFIG_F64, .offset = offsetof(item, rate)},
    {.key = "on", .kind = SHEAF_CONFIG_BOOL, .offset = offsetof(item, on)},
    {.key = "carrier", .kind = SHEAF_CONFIG_CHOICE, .offset = offsetof(item, carrier), .choices = carriers},
    {.key = NULL},
};
static const sheaf_config_field fields[] = {
    {.key = "title", .kind = SHEAF_CONFIG_STRING, .offset = offsetof(sample, title)},
    {.key = "single", .kind = SHEAF_CONFIG_MAP, .offset = offsetof(sample, single), .fields = item_fields},
    {.key = "items",
     .kind = SHEAF_CONFIG_LIST,
     .offset = offsetof(sample, items),
     .fields = item_fields,
     .item_bytes = sizeof(item)},
    {.key = "bits", .kind = SHEAF_CONFIG_PAIRS, .offset = offsetof(sample, bits), .minimum = -125, .maximum = 126},
    {.key = NULL},
};

static void check_read(const sample *read) {
    const item *items = read->items.items;
    const sheaf_config_pair *bits = read->bits.items;
    for (size_t i = 0; i < read->items.count; i++) {
        assert(items[i].name != NULL && strlen(items[i].name) < 64);
        assert(items[i].minimum <= 100 && items[i].carrier >= 0 && items[i].carrier <= 1);
    }
    for (size_t i = 0; i < read->bits.count; i++) assert(bits[i].value >= -125 && bits[i].value <= 126);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sample read;
    sheaf_config *config = NULL;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = sheaf_config_parse((const char *)data, size, "fuzz.yaml", "/tmp", fields, &read, sizeof read,
                                             &config, &problem);
    if (status == SHEAF_OK)
        check_read(&read);
    else
        assert(status != SHEAF_E_CONFIG || strncmp(problem.text, "fuzz.yaml", 9) == 0);
    sheaf_config_free(config);
    return 0;
}
