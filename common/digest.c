#include "common/digest.h"

#include <openssl/evp.h>

sheaf_status sheaf_digest_begin(sheaf_digest *digest) {
    digest->context = EVP_MD_CTX_new();
    if (digest->context == NULL) return SHEAF_E_CRYPTO;
    if (EVP_DigestInit_ex(digest->context, EVP_sha256(), NULL) == 1) return SHEAF_OK;
    sheaf_digest_drop(digest);
    return SHEAF_E_CRYPTO;
}

sheaf_status sheaf_digest_update(sheaf_digest *digest, sheaf_span bytes) {
    if (bytes.size == 0) return SHEAF_OK;
    return EVP_DigestUpdate(digest->context, bytes.data, bytes.size) == 1 ? SHEAF_OK : SHEAF_E_CRYPTO;
}

sheaf_status sheaf_digest_finish(sheaf_digest *digest, uint8_t out[SHEAF_DIGEST_BYTES]) {
    unsigned size = 0;
    int done = EVP_DigestFinal_ex(digest->context, out, &size);
    sheaf_digest_drop(digest);
    return done == 1 && size == SHEAF_DIGEST_BYTES ? SHEAF_OK : SHEAF_E_CRYPTO;
}

void sheaf_digest_drop(sheaf_digest *digest) {
    EVP_MD_CTX_free(digest->context);
    digest->context = NULL;
}

sheaf_status sheaf_digest_of(sheaf_span bytes, uint8_t out[SHEAF_DIGEST_BYTES]) {
    sheaf_digest digest = {NULL};
    sheaf_status status = sheaf_digest_begin(&digest);
    if (status == SHEAF_OK) status = sheaf_digest_update(&digest, bytes);
    if (status == SHEAF_OK) return sheaf_digest_finish(&digest, out);
    sheaf_digest_drop(&digest);
    return status;
}
