/* Heads of HTTP requests, Basic credentials and base64: what is taken keeps its bounds, whatever comes. */
#include <assert.h>
#include <stdlib.h>

#include "server/operator/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_head(sheaf_span bytes) {
    sheaf_http_head head;
    const char *why = NULL;
    int code = sheaf_http_head_read(bytes, &head, &why);
    assert(why != NULL && (code == 200 || (code >= 400 && code < 600)));
    assert(head.segment_count <= SHEAF_HTTP_SEGMENTS_MAX && head.parameter_count <= SHEAF_HTTP_PARAMETERS_MAX);
    if (code != 200) return;
    for (size_t i = 0; i < head.segment_count; i++) {
        size_t length = strnlen(head.segments[i], SHEAF_NAME_BYTES);
        assert(length > 0 && length < SHEAF_NAME_BYTES && strpbrk(head.segments[i], "/%\\ ?#") == NULL);
        assert(strcmp(head.segments[i], "..") != 0 && strcmp(head.segments[i], ".") != 0);
    }
    for (size_t i = 0; i < head.parameter_count; i++)
        assert(sheaf_http_parameter_of(&head, head.parameters[i].name) == head.parameters[i].value);
    assert(strnlen(head.authorization, sizeof head.authorization) < sizeof head.authorization);
}

static void check_credentials(sheaf_span bytes) {
    char user[SHEAF_NAME_BYTES], password[SHEAF_HTTP_PARAMETER_BYTES];
    char *text = malloc(bytes.size + 1);
    assert(text != NULL);
    if (bytes.size > 0) memcpy(text, bytes.data, bytes.size);
    text[bytes.size] = '\0';
    if (sheaf_http_read_basic(text, user, password)) {
        assert(strnlen(user, sizeof user) < sizeof user && strchr(user, ':') == NULL);
        assert(strnlen(password, sizeof password) < sizeof password);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t memory[256];
    sheaf_buffer out = {memory, 0, sizeof memory};
    check_head(sheaf_span_of(data, size));
    check_credentials(sheaf_span_of(data, size));
    if (sheaf_http_read_base64(sheaf_span_of(data, size), &out)) assert(out.size <= sizeof memory);
    return 0;
}
