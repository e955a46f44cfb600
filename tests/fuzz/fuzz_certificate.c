/* Bytes that pass as a certificate name somebody, in a role, by names that are safe in paths and logs. */
#include <assert.h>

#include "common/certificate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_certificate *certificate = NULL;
    if (sheaf_certificate_from_der(sheaf_span_of(data, size), &certificate) != SHEAF_OK) return 0;
    const sheaf_identity *identity = sheaf_certificate_identity(certificate);
    assert(sheaf_name_ok(identity->tenant) && sheaf_name_ok(identity->name) && identity->role != SHEAF_ROLE_NONE);
    sheaf_status status = sheaf_certificate_verify(certificate, sheaf_span_of(data, size), sheaf_span_of(data, size));
    assert(status != SHEAF_OK); /* nobody signed this */
    sheaf_certificate_unref(certificate);
    return 0;
}
