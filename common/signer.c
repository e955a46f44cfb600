#include "common/signer.h"

#include <stdatomic.h>
#include <stdlib.h>

#include <openssl/err.h>
#include <openssl/evp.h>

#include "common/private_key.h"

struct sheaf_signer {
    atomic_uint references;
    EVP_PKEY *key;
    const EVP_MD *hash;
};

sheaf_status sheaf_signer_open(const char *key_path, sheaf_signer **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_signer *signer = calloc(1, sizeof *signer);
    if (signer == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", key_path);
    atomic_init(&signer->references, 1);
    sheaf_key_type type = SHEAF_KEY_ANY;
    sheaf_status status = sheaf_private_key_read(key_path, &signer->key, &type, problem);
    if (status != SHEAF_OK) {
        sheaf_signer_free(signer);
        return status;
    }
    signer->hash = sheaf_private_key_hash(type);
    *out = signer;
    return SHEAF_OK;
}

sheaf_signer *sheaf_signer_ref(sheaf_signer *signer) {
    atomic_fetch_add_explicit(&signer->references, 1, memory_order_relaxed);
    return signer;
}

EVP_PKEY *sheaf_signer_key(const sheaf_signer *signer) { return signer->key; }

void sheaf_signer_free(sheaf_signer *signer) {
    if (signer == NULL || atomic_fetch_sub_explicit(&signer->references, 1, memory_order_acq_rel) != 1) return;
    EVP_PKEY_free(signer->key); /* clears the private part */
    free(signer);
}

sheaf_status sheaf_signer_sign(sheaf_signer *signer, sheaf_span message, sheaf_buffer *out) {
    out->size = 0;
    if (out->capacity < SHEAF_SIGNATURE_BYTES_MAX) return SHEAF_E_TOO_LARGE;
    (void)ERR_set_mark();
    size_t size = out->capacity;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int done = context != NULL && EVP_DigestSignInit(context, NULL, signer->hash, NULL, signer->key) == 1 &&
               EVP_DigestSign(context, out->data, &size, message.data, message.size) == 1;
    EVP_MD_CTX_free(context);
    (void)ERR_pop_to_mark();
    if (!done) return SHEAF_E_CRYPTO;
    out->size = size;
    return SHEAF_OK;
}
