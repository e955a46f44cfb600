/* Bytes that pass as a certificate request ask for safe names, with a key of ours that signed them. */
#include <assert.h>

#include "common/pki/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_request_content request;
    if (sheaf_request_read(sheaf_span_of(data, size), &request, NULL) != SHEAF_OK) return 0;
    const sheaf_identity *identity = &request.identity;
    assert(sheaf_name_ok(identity->tenant) && sheaf_name_ok(identity->name) && identity->role != SHEAF_ROLE_NONE);
    assert(identity->region[0] == '\0' || sheaf_name_ok(identity->region));
    assert(request.key != NULL);
    sheaf_request_fini(&request);
    return 0;
}
