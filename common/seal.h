/* seal.h - encryption to a public key (RFC 9180 HPKE, base mode) and the AES-128-GCM contexts that come of it.
 *
 * Suites:  DHKEM(P-256, HKDF-SHA256) 0x0010 and DHKEM(X25519, HKDF-SHA256) 0x0020, both with HKDF-SHA256 0x0001 and
 *          AES-128-GCM 0x0001. Small devices need one curve: the one of their certificate.
 * Owner:   all structs are the caller's; _drop releases what OpenSSL holds for them and wipes their secrets. Zeroed
 *          structs may be dropped; after a failure there is nothing to drop.
 * Threads: one at a time for each struct.
 * Units:   bytes. A sequence is the number of a message under one key: the nonce is base XOR sequence (RFC 9180, 5.2).
 * Errors:  SHEAF_E_MALFORMED (a public key of the wrong size, not on the curve, or of small order), SHEAF_E_VERSION (a
 *          KEM that is not known here), SHEAF_E_SEAL (bytes that were not sealed so), SHEAF_E_TRUNCATED,
 *          SHEAF_E_TOO_LARGE, SHEAF_E_CRYPTO.
 * Not:     it knows nobody: HPKE's base mode says nothing about the sender. Who spoke, signatures tell. And it does not
 *          choose sequences: to seal two different messages under one (key, sequence) gives both away. */
#pragma once
#include "common/bytes.h"
#include "common/status.h"

#define SHEAF_SEAL_TAG_BYTES        16u
#define SHEAF_SEAL_KEY_BYTES        16u /* AES-128 */
#define SHEAF_SEAL_NONCE_BYTES      12u
#define SHEAF_SEAL_PUBLIC_BYTES_MAX 65u
#define SHEAF_SEAL_SECRET_BYTES     32u
#define SHEAF_SEAL_PLAIN_BYTES_MAX  (1u << 30) /* OpenSSL counts in int */

typedef enum { SHEAF_KEM_P256 = 0x0010, SHEAF_KEM_X25519 = 0x0020 } sheaf_kem;

/* Bytes of a public key, which are also those of an encapsulated one: 65 (uncompressed point), 32; 0: unknown KEM. */
size_t sheaf_kem_public_bytes(unsigned kem);

/* --- keys --------------------------------------------------------------------------------------------------------- */

typedef struct {
    sheaf_kem kem;
    void *key;                                         /* EVP_PKEY with the private part */
    uint8_t public_bytes[SHEAF_SEAL_PUBLIC_BYTES_MAX]; /* sheaf_kem_public_bytes(kem) of them */
} sheaf_seal_pair;

/* A new random pair. */
SHEAF_MUST_USE sheaf_status sheaf_seal_pair_make(sheaf_kem kem, sheaf_seal_pair *out);
/* DeriveKeyPair of RFC 9180, 7.1.3. `seed` must hold at least 32 secret random bytes. */
SHEAF_MUST_USE sheaf_status sheaf_seal_pair_derive(sheaf_kem kem, sheaf_span seed, sheaf_seal_pair *out);
void sheaf_seal_pair_drop(sheaf_seal_pair *pair);

/* --- one direction of messages ------------------------------------------------------------------------------------ */

typedef struct {
    void *
        cipher; /* EVP_CIPHER_CTX with the key's schedule: made once, so that a message costs AES-GCM and little else */
    uint8_t nonce_base[SHEAF_SEAL_NONCE_BYTES];
    int opens; /* 0: it seals */
} sheaf_aead;

SHEAF_MUST_USE sheaf_status sheaf_aead_begin(sheaf_aead *aead, int opens, const uint8_t key[SHEAF_SEAL_KEY_BYTES],
                                             const uint8_t nonce_base[SHEAF_SEAL_NONCE_BYTES]);
void sheaf_aead_drop(sheaf_aead *aead);
/* Writes plain.size + SHEAF_SEAL_TAG_BYTES to `out`, which is plain.data itself or does not overlap it. */
SHEAF_MUST_USE sheaf_status sheaf_aead_seal(sheaf_aead *aead, uint64_t sequence, sheaf_span associated,
                                            sheaf_span plain, uint8_t *out);
/* The plain bytes again of what this very aead sealed, in place: `sealed` as it was written. SHEAF_E_SEAL: it was not. */
SHEAF_MUST_USE sheaf_status sheaf_aead_take_back(const sheaf_aead *aead, uint64_t sequence, sheaf_span associated,
                                                 uint8_t *sealed, size_t size);
/* Writes sealed.size - SHEAF_SEAL_TAG_BYTES to `out`, which is sealed.data itself or does not overlap it. On failure
 * nothing of what would have been the plain bytes is left there. */
SHEAF_MUST_USE sheaf_status sheaf_aead_open(sheaf_aead *aead, uint64_t sequence, sheaf_span associated,
                                            sheaf_span sealed, uint8_t *out);

/* --- HPKE --------------------------------------------------------------------------------------------------------- */

typedef struct {
    sheaf_kem kem;
    sheaf_aead aead; /* the sender's seals, the recipient's opens */
    uint8_t exporter_secret[SHEAF_SEAL_SECRET_BYTES];
} sheaf_hpke;

/* SetupBaseS. Writes the encapsulated key, sheaf_kem_public_bytes(kem) bytes, to `enc`. `ephemeral` is NULL for a fresh
 * pair; the vectors give theirs. */
SHEAF_MUST_USE sheaf_status sheaf_hpke_begin_sender(sheaf_kem kem, sheaf_span recipient, sheaf_span info,
                                                    const sheaf_seal_pair *ephemeral,
                                                    uint8_t enc[SHEAF_SEAL_PUBLIC_BYTES_MAX], sheaf_hpke *out);
/* SetupBaseR. */
SHEAF_MUST_USE sheaf_status sheaf_hpke_begin_recipient(const sheaf_seal_pair *recipient, sheaf_span enc,
                                                       sheaf_span info, sheaf_hpke *out);
/* A secret of `size` bytes that both ends have, bound to `context` (RFC 9180, 5.3). size <= 255 * 32. */
SHEAF_MUST_USE sheaf_status sheaf_hpke_export(const sheaf_hpke *hpke, sheaf_span context, uint8_t *out, size_t size);
/* Wipes the exporter's secret; sealing and opening go on. */
void sheaf_hpke_end_exports(sheaf_hpke *hpke);
void sheaf_hpke_drop(sheaf_hpke *hpke);
