#include "client/trainer/model_file.h"

#include <stdio.h>
#include <string.h>

#include "common/config.h"

typedef struct {
    int kind;
    uint32_t units, channels, kernel, stride;
    int padding;
    uint32_t size;
} layer_entry;

typedef struct {
    sheaf_config_list input; /* of int64_t */
    double scale, shift;
    sheaf_config_list layers; /* of layer_entry */
} file_entry;

/* In the order of sheaf_layer_kind and sheaf_padding. */
static const char *const kinds[] = {"dense", "conv", "relu", "maxpool", "flatten", NULL};
static const char *const paddings[] = {"valid", "same", NULL};

static const sheaf_config_field layer_fields[] = {
    {.key = "kind",
     .kind = SHEAF_CONFIG_CHOICE,
     .offset = offsetof(layer_entry, kind),
     .required = 1,
     .choices = kinds,
     .help = "what the layer does"},
    {.key = "units",
     .kind = SHEAF_CONFIG_U32,
     .offset = offsetof(layer_entry, units),
     .minimum = 0,
     .maximum = 65536,
     .help = "dense: number of outputs"},
    {.key = "channels",
     .kind = SHEAF_CONFIG_U32,
     .offset = offsetof(layer_entry, channels),
     .minimum = 0,
     .maximum = 4096,
     .help = "conv: number of output channels"},
    {.key = "kernel",
     .kind = SHEAF_CONFIG_U32,
     .offset = offsetof(layer_entry, kernel),
     .minimum = 0,
     .maximum = 64,
     .help = "conv: height and width of the window"},
    {.key = "stride",
     .kind = SHEAF_CONFIG_U32,
     .offset = offsetof(layer_entry, stride),
     .preset = "1",
     .minimum = 1,
     .maximum = 64,
     .help = "conv: step of the window; same padding needs 1"},
    {.key = "padding",
     .kind = SHEAF_CONFIG_CHOICE,
     .offset = offsetof(layer_entry, padding),
     .preset = "valid",
     .choices = paddings,
     .help = "conv: valid shrinks the image by kernel - 1, same keeps its size"},
    {.key = "size",
     .kind = SHEAF_CONFIG_U32,
     .offset = offsetof(layer_entry, size),
     .minimum = 0,
     .maximum = 15,
     .help = "maxpool: height, width and step of the window, 2 to 15"},
    {.key = NULL},
};

static const sheaf_config_field file_fields[] = {
    {.key = "input",
     .kind = SHEAF_CONFIG_NUMBERS,
     .offset = offsetof(file_entry, input),
     .required = 1,
     .minimum = 1,
     .maximum = (double)SHEAF_LAYER_VALUES_MAX,
     .help = "[height, width, channels] of an image, or [features] of a table's row"},
    {.key = "scale",
     .kind = SHEAF_CONFIG_F64,
     .offset = offsetof(file_entry, scale),
     .preset = "1",
     .help = "an input value is (raw - shift) * scale"},
    {.key = "shift",
     .kind = SHEAF_CONFIG_F64,
     .offset = offsetof(file_entry, shift),
     .preset = "0",
     .help = "see scale"},
    {.key = "layers",
     .kind = SHEAF_CONFIG_LIST,
     .offset = offsetof(file_entry, layers),
     .required = 1,
     .minimum = 1,
     .maximum = SHEAF_LAYERS_MAX,
     .fields = layer_fields,
     .item_bytes = sizeof(layer_entry),
     .help = "from input to output; the last one has one output a class"},
    {.key = NULL},
};

static sheaf_status refuse(const sheaf_config *config, const char *key, sheaf_problem *problem, const char *why) {
    return sheaf_problem_set(problem, SHEAF_E_CONFIG, "%s: %s: %s", sheaf_config_where(config, key), key, why);
}

static sheaf_status take_input(const sheaf_config *config, const file_entry *file, sheaf_network_spec *out,
                               sheaf_problem *problem) {
    const int64_t *input = file->input.items;
    if (file->input.count != 1 && file->input.count != 3) {
        return refuse(config, "input", problem, "expected [height, width, channels] or [features]");
    }
    int image = file->input.count == 3;
    out->height = image ? (uint32_t)input[0] : 1;
    out->width = image ? (uint32_t)input[1] : 1;
    out->channels = (uint32_t)input[image ? 2 : 0];
    out->scale = (float)file->scale;
    out->shift = (float)file->shift;
    return SHEAF_OK;
}

/* Keys of another kind of layer are a mistake that would otherwise pass unseen. */
static const char *foreign_key(const layer_entry *layer) {
    if (layer->kind != SHEAF_LAYER_DENSE && layer->units != 0) return "units belongs to dense layers";
    if (layer->kind != SHEAF_LAYER_MAXPOOL && layer->size != 0) return "size belongs to maxpool layers";
    int conv =
        layer->channels != 0 || layer->kernel != 0 || layer->stride != 1 || layer->padding != SHEAF_PADDING_VALID;
    if (layer->kind != SHEAF_LAYER_CONV && conv) return "channels, kernel, stride and padding belong to conv layers";
    return NULL;
}

static sheaf_status take_layers(const sheaf_config *config, const file_entry *file, sheaf_network_spec *out,
                                sheaf_problem *problem) {
    const layer_entry *layers = file->layers.items;
    out->count = (uint32_t)file->layers.count;
    uint32_t where = 0;
    const char *why = NULL;
    for (uint32_t i = 0; i < out->count && why == NULL; i++) {
        const layer_entry *from = &layers[i];
        out->layers[i] = (sheaf_layer_spec){.kind = (sheaf_layer_kind)from->kind,
                                            .units = from->units,
                                            .channels = from->channels,
                                            .kernel = from->kernel,
                                            .stride = from->stride,
                                            .padding = (sheaf_padding)from->padding,
                                            .size = from->size};
        why = foreign_key(from);
        where = i;
    }
    if (why == NULL && sheaf_network_check(out, &where, &why) == SHEAF_OK) return SHEAF_OK;
    char key[32];
    if (where < out->count)
        snprintf(key, sizeof key, "layers[%u]", (unsigned)where);
    else
        snprintf(key, sizeof key, "input");
    return refuse(config, key, problem, why);
}

static sheaf_status take(sheaf_status status, const sheaf_config *config, const file_entry *file,
                         sheaf_network_spec *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    if (status == SHEAF_OK) status = take_input(config, file, out, problem);
    if (status == SHEAF_OK) status = take_layers(config, file, out, problem);
    return status;
}

sheaf_status sheaf_model_file_load(const char *path, sheaf_network_spec *out, sheaf_problem *problem) {
    file_entry file;
    sheaf_config *config = NULL;
    sheaf_status status = sheaf_config_load(path, file_fields, &file, sizeof file, &config, problem);
    status = take(status, config, &file, out, problem);
    sheaf_config_free(config);
    return status;
}

sheaf_status sheaf_model_file_parse(const char *text, size_t size, const char *name, sheaf_network_spec *out,
                                    sheaf_problem *problem) {
    file_entry file;
    sheaf_config *config = NULL;
    sheaf_status status = sheaf_config_parse(text, size, name, ".", file_fields, &file, sizeof file, &config, problem);
    status = take(status, config, &file, out, problem);
    sheaf_config_free(config);
    return status;
}

void sheaf_model_file_print_reference(void *stream) { sheaf_config_print_reference(file_fields, stream); }
