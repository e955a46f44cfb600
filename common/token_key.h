/* token_key.h - private keys that never leave their token: named by a PKCS#11 URI (RFC 7512), used through OpenSSL's
 * engine "pkcs11" (Debian: libengine-pkcs11-openssl), which is loaded when the first such URI is read and not before.
 *
 *     pkcs11:token=fleet;object=node-1;type=private?pin-source=/etc/sheaf/pin&module-path=/usr/lib/softhsm/libsofthsm2.so
 *
 * Owner:   keys are OpenSSL's, released with EVP_PKEY_free.
 * Threads: any; reading is serialised.
 * PIN:     from the file that pin-source names (its owner's only), or from SHEAF_PKCS11_PIN in the environment; a
 *          pin-value in the URI is refused, since URIs stand in command lines, configs and logs. One process uses one PIN.
 * Module:  module-path of the URI, else what the engine finds (PKCS11_MODULE_PATH, p11-kit).
 * Errors:  SHEAF_E_NOT_FOUND (no engine, no such key), SHEAF_E_PERMISSION (the PIN's file, or a wrong PIN), SHEAF_E_USAGE (the
 *          URI), SHEAF_E_CRYPTO.
 * Not:     making keys in tokens; the token's own tools do that. */
#pragma once
#include <openssl/types.h>

#include "common/problem.h"

#define SHEAF_TOKEN_URI_BYTES 1024u

int sheaf_token_key_is(const char *path); /* begins with "pkcs11:" */
SHEAF_MUST_USE sheaf_status sheaf_token_key_read(const char *uri, EVP_PKEY **out, sheaf_problem *problem);
