/* private_key.h - private keys of the two kinds that we use: made, read from and written to files that only we may
 * touch.
 *
 * Owner:   keys are OpenSSL's, released with EVP_PKEY_free, which wipes them.
 * Threads: any; no state.
 * Keys:    ECDSA P-256 and Ed25519. Files: PEM without passphrase, PKCS#8 or SEC1 to read, PKCS#8 mode 0600 to write.
 * Errors:  SHEAF_E_NOT_FOUND, SHEAF_E_PERMISSION (also when group or others may touch the file), SHEAF_E_CRYPTO (not
 * such a key), and those of sheaf_file_replace.
 * Tokens:  a pkcs11: URI in the place of the path, or a file that holds one, names a key that stays in its token; see
 *          token_key.h.
 * Not:     signing statements; that is signer.h. */
#pragma once
#include <openssl/types.h>

#include "common/problem.h"

typedef enum { SHEAF_KEY_ANY = 0, SHEAF_KEY_P256, SHEAF_KEY_ED25519 } sheaf_key_type;

const char *sheaf_key_type_name(sheaf_key_type type);      /* "p256", "ed25519"; "any" */
sheaf_key_type sheaf_key_type_from_name(const char *name); /* SHEAF_KEY_ANY when unknown */

/* The hash that signatures by this key use; NULL for Ed25519, which hashes by itself. */
const EVP_MD *sheaf_private_key_hash(sheaf_key_type type);
/* A new random key; SHEAF_KEY_ANY makes P-256. */
SHEAF_MUST_USE sheaf_status sheaf_private_key_make(sheaf_key_type type, EVP_PKEY **out, sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_private_key_read(const char *path, EVP_PKEY **out, sheaf_key_type *type,
                                                   sheaf_problem *problem);
/* Creates or replaces `path` durably; at no time can anybody else read it. */
SHEAF_MUST_USE sheaf_status sheaf_private_key_write(const char *path, const EVP_PKEY *key, sheaf_problem *problem);
