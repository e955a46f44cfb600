#include "common/codec/codec.h"

static const sheaf_codec *const codecs[] = {&sheaf_codec_f32};

const sheaf_codec *sheaf_codec_find(const char *payload_type) {
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        if (strcmp(codecs[i]->name, payload_type) == 0) return codecs[i];
    }
    return NULL;
}
