#include "common/seal.h"

#include <assert.h>

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/obj_mac.h>
#include <openssl/param_build.h>

#define HASH_BYTES  32u /* SHA-256; also Nsecret and Nsk of both KEMs */
#define KDF_SHA256  0x0001u
#define AEAD_AES128 0x0001u
#define MODE_BASE   0x00u
#define PARTS_MAX   8u

size_t sheaf_kem_public_bytes(unsigned kem) { return kem == SHEAF_KEM_P256 ? 65 : kem == SHEAF_KEM_X25519 ? 32 : 0; }

/* --- labelled HKDF (RFC 9180, 4) ---------------------------------------------------------------------------------- */

static sheaf_span text_of(const char *text) { return sheaf_span_of(text, strlen(text)); }

/* Suite identifiers are in network order, as all numbers of that RFC. */
typedef struct {
    uint8_t bytes[10];
    size_t size;
} suite;

static suite suite_of_kem(sheaf_kem kem) {
    suite made = {{'K', 'E', 'M', 0, (uint8_t)kem}, 5};
    return made;
}
static suite suite_of_hpke(sheaf_kem kem) {
    suite made = {{'H', 'P', 'K', 'E', 0, (uint8_t)kem, 0, KDF_SHA256, 0, AEAD_AES128}, 10};
    return made;
}

/* HMAC-SHA256 over the parts in a row. */
static sheaf_status hmac(sheaf_span key, const sheaf_span *parts, size_t count, uint8_t out[HASH_BYTES]) {
    static const uint8_t none[1] = {0}; /* OpenSSL takes NULL for "no key yet" */
    OSSL_PARAM hash[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)"SHA256", 0),
                         OSSL_PARAM_construct_end()};
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = mac == NULL ? NULL : EVP_MAC_CTX_new(mac);
    size_t size = 0;
    int done = context != NULL && EVP_MAC_init(context, key.size > 0 ? key.data : none, key.size, hash) == 1;
    for (size_t i = 0; done && i < count; i++) {
        done = parts[i].size == 0 || EVP_MAC_update(context, parts[i].data, parts[i].size) == 1;
    }
    done = done && EVP_MAC_final(context, out, &size, HASH_BYTES) == 1 && size == HASH_BYTES;
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
    return done ? SHEAF_OK : SHEAF_E_CRYPTO;
}

static sheaf_status labeled_extract(const suite *of, sheaf_span salt, const char *label, sheaf_span ikm,
                                    uint8_t out[HASH_BYTES]) {
    static const uint8_t zeros[HASH_BYTES] = {0}; /* RFC 5869, 2.2: no salt means these */
    const sheaf_span parts[] = {text_of("HPKE-v1"), sheaf_span_of(of->bytes, of->size), text_of(label), ikm};
    return hmac(salt.size > 0 ? salt : sheaf_span_of(zeros, sizeof zeros), parts, 4, out);
}

/* HKDF-Expand (RFC 5869, 2.3) of the labelled info. size <= 255 * HASH_BYTES. */
static sheaf_status labeled_expand(const suite *of, const uint8_t prk[HASH_BYTES], const char *label, sheaf_span info,
                                   uint8_t *out, size_t size) {
    assert(size <= 255u * HASH_BYTES);
    const uint8_t length[2] = {(uint8_t)(size >> 8), (uint8_t)size};
    uint8_t block[HASH_BYTES], counter = 1;
    sheaf_span parts[PARTS_MAX] = {{block, 0},
                                   sheaf_span_of(length, sizeof length),
                                   text_of("HPKE-v1"),
                                   sheaf_span_of(of->bytes, of->size),
                                   text_of(label),
                                   info,
                                   sheaf_span_of(&counter, 1)};
    sheaf_status status = SHEAF_OK;
    for (size_t done = 0; status == SHEAF_OK && done < size; counter++) {
        status = hmac(sheaf_span_of(prk, HASH_BYTES), parts, 7, block);
        size_t take = size - done < HASH_BYTES ? size - done : HASH_BYTES;
        if (status == SHEAF_OK) memcpy(out + done, block, take);
        parts[0].size = HASH_BYTES; /* from the second block on, the one before it comes first */
        done += take;
    }
    sheaf_wipe(block, sizeof block);
    return status;
}

/* --- keys (RFC 9180, 7.1) ----------------------------------------------------------------------------------------- */

static sheaf_status read_public(EVP_PKEY *key, sheaf_kem kem, uint8_t out[SHEAF_SEAL_PUBLIC_BYTES_MAX]) {
    size_t size = 0, expected = sheaf_kem_public_bytes(kem);
    int done = EVP_PKEY_get_octet_string_param(key, OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY, out,
                                               SHEAF_SEAL_PUBLIC_BYTES_MAX, &size);
    return done == 1 && size == expected ? SHEAF_OK : SHEAF_E_CRYPTO;
}

static sheaf_status finish_pair(sheaf_kem kem, EVP_PKEY *key, sheaf_seal_pair *out) {
    memset(out, 0, sizeof *out);
    sheaf_status status = key == NULL ? SHEAF_E_CRYPTO : read_public(key, kem, out->public_bytes);
    if (status != SHEAF_OK) {
        EVP_PKEY_free(key);
        return status;
    }
    out->kem = kem;
    out->key = key;
    return SHEAF_OK;
}

sheaf_status sheaf_seal_pair_make(sheaf_kem kem, sheaf_seal_pair *out) {
    memset(out, 0, sizeof *out);
    if (sheaf_kem_public_bytes(kem) == 0) return SHEAF_E_VERSION;
    (void)ERR_set_mark();
    EVP_PKEY *key = kem == SHEAF_KEM_P256 ? EVP_EC_gen("P-256") : EVP_PKEY_Q_keygen(NULL, NULL, "X25519");
    sheaf_status status = finish_pair(kem, key, out);
    (void)ERR_pop_to_mark();
    return status;
}

void sheaf_seal_pair_drop(sheaf_seal_pair *pair) {
    EVP_PKEY_free(pair->key); /* clears the private part */
    memset(pair, 0, sizeof *pair);
}

/* A P-256 key from its point and, when there is one, its scalar. */
static EVP_PKEY *build_p256(sheaf_span point, const BIGNUM *scalar) {
    EVP_PKEY *key = NULL;
    OSSL_PARAM_BLD *builder = OSSL_PARAM_BLD_new();
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    OSSL_PARAM *parameters = NULL;
    int done = builder != NULL && context != NULL && EVP_PKEY_fromdata_init(context) == 1 &&
               OSSL_PARAM_BLD_push_utf8_string(builder, OSSL_PKEY_PARAM_GROUP_NAME, "P-256", 0) == 1 &&
               OSSL_PARAM_BLD_push_octet_string(builder, OSSL_PKEY_PARAM_PUB_KEY, point.data, point.size) == 1 &&
               (scalar == NULL || OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_PRIV_KEY, scalar) == 1) &&
               (parameters = OSSL_PARAM_BLD_to_param(builder)) != NULL;
    if (done &&
        EVP_PKEY_fromdata(context, &key, scalar == NULL ? EVP_PKEY_PUBLIC_KEY : EVP_PKEY_KEYPAIR, parameters) != 1) {
        key = NULL;
    }
    OSSL_PARAM_free(parameters); /* OpenSSL keeps a secret number apart and clears it */
    OSSL_PARAM_BLD_free(builder);
    EVP_PKEY_CTX_free(context);
    return key;
}

/* scalar * G. NULL: no memory, or not a scalar of the group. */
static EVP_PKEY *p256_of_scalar(const BIGNUM *scalar) {
    uint8_t point[65];
    EVP_PKEY *key = NULL;
    EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    EC_POINT *product = group == NULL ? NULL : EC_POINT_new(group);
    if (product != NULL && EC_POINT_mul(group, product, scalar, NULL, NULL, NULL) == 1 &&
        EC_POINT_point2oct(group, product, POINT_CONVERSION_UNCOMPRESSED, point, sizeof point, NULL) == sizeof point) {
        key = build_p256(sheaf_span_of(point, sizeof point), scalar);
    }
    EC_POINT_free(product);
    EC_GROUP_free(group);
    return key;
}

/* 1: `bytes` is a scalar in (0, order) and *key its pair, or NULL without memory. 0: try the next candidate. */
static int p256_of_candidate(const uint8_t bytes[HASH_BYTES], EVP_PKEY **key) {
    static const uint8_t order[HASH_BYTES] = {0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff,
                                              0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17,
                                              0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51};
    static const uint8_t zero[HASH_BYTES] = {0};
    *key = NULL;
    if (memcmp(bytes, order, HASH_BYTES) >= 0 || memcmp(bytes, zero, HASH_BYTES) == 0) return 0;
    BIGNUM *scalar = BN_secure_new();
    if (scalar != NULL && BN_bin2bn(bytes, HASH_BYTES, scalar) != NULL) {
        BN_set_flags(scalar, BN_FLG_CONSTTIME);
        *key = p256_of_scalar(scalar);
    }
    BN_clear_free(scalar);
    return 1;
}

static sheaf_status derive_p256(const suite *of, const uint8_t prk[HASH_BYTES], EVP_PKEY **key) {
    uint8_t bytes[HASH_BYTES];
    sheaf_status status = SHEAF_E_CRYPTO; /* 256 candidates in a row do not happen */
    for (unsigned counter = 0; counter < 256; counter++) {
        uint8_t number = (uint8_t)counter;
        status = labeled_expand(of, prk, "candidate", sheaf_span_of(&number, 1), bytes, sizeof bytes);
        if (status != SHEAF_OK || p256_of_candidate(bytes, key)) break;
        status = SHEAF_E_CRYPTO;
    }
    sheaf_wipe(bytes, sizeof bytes);
    return status;
}

static sheaf_status derive_x25519(const suite *of, const uint8_t prk[HASH_BYTES], EVP_PKEY **key) {
    uint8_t bytes[HASH_BYTES];
    sheaf_status status = labeled_expand(of, prk, "sk", sheaf_span_of(NULL, 0), bytes, sizeof bytes);
    if (status == SHEAF_OK) *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, bytes, sizeof bytes);
    sheaf_wipe(bytes, sizeof bytes);
    return status;
}

sheaf_status sheaf_seal_pair_derive(sheaf_kem kem, sheaf_span seed, sheaf_seal_pair *out) {
    memset(out, 0, sizeof *out);
    if (sheaf_kem_public_bytes(kem) == 0) return SHEAF_E_VERSION;
    if (seed.size < HASH_BYTES) return SHEAF_E_TRUNCATED;
    uint8_t prk[HASH_BYTES];
    const suite of = suite_of_kem(kem);
    EVP_PKEY *key = NULL;
    (void)ERR_set_mark();
    sheaf_status status = labeled_extract(&of, sheaf_span_of(NULL, 0), "dkp_prk", seed, prk);
    if (status == SHEAF_OK) status = (kem == SHEAF_KEM_P256 ? derive_p256 : derive_x25519)(&of, prk, &key);
    if (status == SHEAF_OK) status = finish_pair(kem, key, out);
    (void)ERR_pop_to_mark();
    sheaf_wipe(prk, sizeof prk);
    return status;
}

/* A peer's public key. OpenSSL refuses a point off the curve or with coordinates beyond the field when it reads it; the
 * group has a prime order and infinity has no encoding of this size, so nothing else can be wrong (RFC 9180, 7.1.4). */
static sheaf_status parse_public(sheaf_kem kem, sheaf_span bytes, EVP_PKEY **key) {
    if (bytes.size != sheaf_kem_public_bytes(kem)) return SHEAF_E_MALFORMED;
    if (kem == SHEAF_KEM_X25519) {
        *key = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, bytes.data, bytes.size);
        return *key != NULL ? SHEAF_OK : SHEAF_E_CRYPTO;
    }
    if (bytes.data[0] != POINT_CONVERSION_UNCOMPRESSED) return SHEAF_E_MALFORMED;
    *key = build_p256(bytes, NULL);
    return *key != NULL ? SHEAF_OK : SHEAF_E_MALFORMED;
}

/* --- Diffie-Hellman and the KEM (RFC 9180, 4.1) ------------------------------------------------------------------- */

static sheaf_status agree(EVP_PKEY *own, EVP_PKEY *peer, uint8_t out[HASH_BYTES]) {
    static const uint8_t zero[HASH_BYTES] = {0};
    size_t size = HASH_BYTES;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(own, NULL);
    sheaf_status status = SHEAF_OK;
    /* The peer's key was checked when it was read, so it need not be once more (that costs a multiplication). */
    if (context == NULL || EVP_PKEY_derive_init(context) != 1 || EVP_PKEY_derive_set_peer_ex(context, peer, 0) != 1) {
        status = SHEAF_E_CRYPTO;
    } else if (EVP_PKEY_derive(context, out, &size) != 1 || size != HASH_BYTES || memcmp(out, zero, size) == 0) {
        status = SHEAF_E_MALFORMED; /* X25519 with a point of small order gives zeros, which OpenSSL too refuses */
    }
    EVP_PKEY_CTX_free(context);
    return status;
}

/* ExtractAndExpand over kem_context = enc || recipient's public key. */
static sheaf_status share(sheaf_kem kem, EVP_PKEY *own, EVP_PKEY *peer, const uint8_t *enc, const uint8_t *recipient,
                          uint8_t out[HASH_BYTES]) {
    uint8_t dh[HASH_BYTES], prk[HASH_BYTES], context[2 * SHEAF_SEAL_PUBLIC_BYTES_MAX];
    size_t size = sheaf_kem_public_bytes(kem);
    const suite of = suite_of_kem(kem);
    memcpy(context, enc, size);
    memcpy(context + size, recipient, size);
    sheaf_status status = agree(own, peer, dh);
    if (status == SHEAF_OK)
        status = labeled_extract(&of, sheaf_span_of(NULL, 0), "eae_prk", sheaf_span_of(dh, sizeof dh), prk);
    if (status == SHEAF_OK)
        status = labeled_expand(&of, prk, "shared_secret", sheaf_span_of(context, 2 * size), out, HASH_BYTES);
    sheaf_wipe(dh, sizeof dh);
    sheaf_wipe(prk, sizeof prk);
    return status;
}

/* --- one direction ------------------------------------------------------------------------------------------------ */

sheaf_status sheaf_aead_begin(sheaf_aead *aead, int opens, const uint8_t key[SHEAF_SEAL_KEY_BYTES],
                              const uint8_t nonce_base[SHEAF_SEAL_NONCE_BYTES]) {
    memset(aead, 0, sizeof *aead);
    (void)ERR_set_mark();
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    int done = cipher != NULL && EVP_CipherInit_ex(cipher, EVP_aes_128_gcm(), NULL, key, nonce_base, !opens) == 1;
    (void)ERR_pop_to_mark();
    if (!done) {
        EVP_CIPHER_CTX_free(cipher);
        return SHEAF_E_CRYPTO;
    }
    aead->cipher = cipher;
    aead->opens = opens;
    memcpy(aead->nonce_base, nonce_base, SHEAF_SEAL_NONCE_BYTES);
    return SHEAF_OK;
}

void sheaf_aead_drop(sheaf_aead *aead) {
    EVP_CIPHER_CTX_free(aead->cipher); /* clears the key */
    sheaf_wipe(aead, sizeof *aead);
}

/* Sets the nonce and runs `associated`, then `in` to `out`. Sizes fit an int. */
static int run(const sheaf_aead *aead, uint64_t sequence, sheaf_span associated, sheaf_span in, uint8_t *out) {
    uint8_t nonce[SHEAF_SEAL_NONCE_BYTES];
    int size = 0;
    memcpy(nonce, aead->nonce_base, sizeof nonce);
    for (unsigned i = 0; i < 8; i++) nonce[11 - i] ^= (uint8_t)(sequence >> (8 * i));
    if (EVP_CipherInit_ex(aead->cipher, NULL, NULL, NULL, nonce, -1) != 1) return 0;
    if (associated.size > 0 && EVP_CipherUpdate(aead->cipher, NULL, &size, associated.data, (int)associated.size) != 1)
        return 0;
    if (in.size == 0) return 1;
    return EVP_CipherUpdate(aead->cipher, out, &size, in.data, (int)in.size) == 1 && (size_t)size == in.size;
}

sheaf_status sheaf_aead_seal(sheaf_aead *aead, uint64_t sequence, sheaf_span associated, sheaf_span plain,
                             uint8_t *out) {
    assert(aead->cipher != NULL && !aead->opens);
    if (plain.size > SHEAF_SEAL_PLAIN_BYTES_MAX || associated.size > SHEAF_SEAL_PLAIN_BYTES_MAX)
        return SHEAF_E_TOO_LARGE;
    int size = 0;
    (void)ERR_set_mark();
    int done = run(aead, sequence, associated, plain, out) &&
               EVP_CipherFinal_ex(aead->cipher, out + plain.size, &size) == 1 &&
               EVP_CIPHER_CTX_ctrl(aead->cipher, EVP_CTRL_AEAD_GET_TAG, SHEAF_SEAL_TAG_BYTES, out + plain.size) == 1;
    (void)ERR_pop_to_mark();
    return done ? SHEAF_OK : SHEAF_E_CRYPTO;
}

sheaf_status sheaf_aead_open(sheaf_aead *aead, uint64_t sequence, sheaf_span associated, sheaf_span sealed,
                             uint8_t *out) {
    assert(aead->cipher != NULL && aead->opens);
    if (sealed.size < SHEAF_SEAL_TAG_BYTES) return SHEAF_E_TRUNCATED;
    sheaf_span body = sheaf_span_of(sealed.data, sealed.size - SHEAF_SEAL_TAG_BYTES);
    if (body.size > SHEAF_SEAL_PLAIN_BYTES_MAX || associated.size > SHEAF_SEAL_PLAIN_BYTES_MAX)
        return SHEAF_E_TOO_LARGE;
    uint8_t tag[SHEAF_SEAL_TAG_BYTES];
    uint8_t nothing[SHEAF_SEAL_TAG_BYTES]; /* Final writes no byte in this mode, but wants a place */
    int size = 0;
    memcpy(tag, sealed.data + body.size, sizeof tag);
    sheaf_status status = SHEAF_OK;
    (void)ERR_set_mark();
    if (!run(aead, sequence, associated, body, out) ||
        EVP_CIPHER_CTX_ctrl(aead->cipher, EVP_CTRL_AEAD_SET_TAG, SHEAF_SEAL_TAG_BYTES, tag) != 1) {
        status = SHEAF_E_CRYPTO;
    } else if (EVP_CipherFinal_ex(aead->cipher, nothing, &size) != 1) {
        status = SHEAF_E_SEAL;
    }
    (void)ERR_pop_to_mark();
    if (status != SHEAF_OK) sheaf_wipe(out, body.size);
    return status;
}

/* The key stands in the cipher only, so its copy is turned round. */
sheaf_status sheaf_aead_take_back(const sheaf_aead *aead, uint64_t sequence, sheaf_span associated, uint8_t *sealed,
                                  size_t size) {
    assert(aead->cipher != NULL && !aead->opens);
    sheaf_aead back = {.opens = 1};
    memcpy(back.nonce_base, aead->nonce_base, sizeof back.nonce_base);
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    back.cipher = cipher;
    (void)ERR_set_mark();
    int done = cipher != NULL && EVP_CIPHER_CTX_copy(cipher, aead->cipher) == 1 &&
               EVP_CipherInit_ex(cipher, NULL, NULL, NULL, NULL, 0) == 1;
    (void)ERR_pop_to_mark();
    sheaf_status status = SHEAF_E_CRYPTO;
    if (done) status = sheaf_aead_open(&back, sequence, associated, sheaf_span_of(sealed, size), sealed);
    sheaf_aead_drop(&back);
    return status;
}

/* --- HPKE (RFC 9180, 5.1) ----------------------------------------------------------------------------------------- */

/* key_schedule_context = mode || psk_id_hash || info_hash, with the empty identifier of base mode. */
static sheaf_status schedule_context(const suite *of, sheaf_span info, uint8_t out[1 + 2 * HASH_BYTES]) {
    const sheaf_span empty = {NULL, 0};
    out[0] = MODE_BASE;
    sheaf_status status = labeled_extract(of, empty, "psk_id_hash", empty, out + 1);
    if (status == SHEAF_OK) status = labeled_extract(of, empty, "info_hash", info, out + 1 + HASH_BYTES);
    return status;
}

static sheaf_status expand_schedule(const suite *of, const uint8_t secret[HASH_BYTES], sheaf_span context, int opens,
                                    sheaf_hpke *out) {
    uint8_t key[SHEAF_SEAL_KEY_BYTES], nonce[SHEAF_SEAL_NONCE_BYTES];
    sheaf_status status = labeled_expand(of, secret, "key", context, key, sizeof key);
    if (status == SHEAF_OK) status = labeled_expand(of, secret, "base_nonce", context, nonce, sizeof nonce);
    if (status == SHEAF_OK)
        status = labeled_expand(of, secret, "exp", context, out->exporter_secret, sizeof out->exporter_secret);
    if (status == SHEAF_OK) status = sheaf_aead_begin(&out->aead, opens, key, nonce);
    sheaf_wipe(key, sizeof key);
    sheaf_wipe(nonce, sizeof nonce);
    return status;
}

static sheaf_status schedule(sheaf_kem kem, const uint8_t shared[HASH_BYTES], sheaf_span info, int opens,
                             sheaf_hpke *out) {
    const suite of = suite_of_hpke(kem);
    uint8_t context[1 + 2 * HASH_BYTES], secret[HASH_BYTES];
    out->kem = kem;
    sheaf_status status = schedule_context(&of, info, context);
    if (status == SHEAF_OK)
        status = labeled_extract(&of, sheaf_span_of(shared, HASH_BYTES), "secret", sheaf_span_of(NULL, 0), secret);
    if (status == SHEAF_OK) status = expand_schedule(&of, secret, sheaf_span_of(context, sizeof context), opens, out);
    sheaf_wipe(secret, sizeof secret);
    return status;
}

static sheaf_status begin_sender(const sheaf_seal_pair *own, sheaf_span recipient, sheaf_span info, sheaf_hpke *out) {
    uint8_t shared[HASH_BYTES];
    EVP_PKEY *peer = NULL;
    sheaf_status status = parse_public(own->kem, recipient, &peer);
    if (status == SHEAF_OK) status = share(own->kem, own->key, peer, own->public_bytes, recipient.data, shared);
    if (status == SHEAF_OK) status = schedule(own->kem, shared, info, 0, out);
    EVP_PKEY_free(peer);
    sheaf_wipe(shared, sizeof shared);
    return status;
}

sheaf_status sheaf_hpke_begin_sender(sheaf_kem kem, sheaf_span recipient, sheaf_span info,
                                     const sheaf_seal_pair *ephemeral, uint8_t enc[SHEAF_SEAL_PUBLIC_BYTES_MAX],
                                     sheaf_hpke *out) {
    memset(out, 0, sizeof *out);
    sheaf_seal_pair fresh = {0};
    sheaf_status status = SHEAF_OK;
    if (ephemeral == NULL) status = sheaf_seal_pair_make(kem, &fresh);
    const sheaf_seal_pair *own = ephemeral != NULL ? ephemeral : &fresh;
    assert(status != SHEAF_OK || own->kem == kem);
    (void)ERR_set_mark();
    if (status == SHEAF_OK) status = begin_sender(own, recipient, info, out);
    (void)ERR_pop_to_mark();
    if (status == SHEAF_OK)
        memcpy(enc, own->public_bytes, sheaf_kem_public_bytes(kem));
    else
        sheaf_hpke_drop(out);
    sheaf_seal_pair_drop(&fresh);
    return status;
}

static sheaf_status begin_recipient(const sheaf_seal_pair *own, sheaf_span enc, sheaf_span info, sheaf_hpke *out) {
    uint8_t shared[HASH_BYTES];
    EVP_PKEY *peer = NULL;
    sheaf_status status = parse_public(own->kem, enc, &peer);
    if (status == SHEAF_OK) status = share(own->kem, own->key, peer, enc.data, own->public_bytes, shared);
    if (status == SHEAF_OK) status = schedule(own->kem, shared, info, 1, out);
    EVP_PKEY_free(peer);
    sheaf_wipe(shared, sizeof shared);
    return status;
}

sheaf_status sheaf_hpke_begin_recipient(const sheaf_seal_pair *recipient, sheaf_span enc, sheaf_span info,
                                        sheaf_hpke *out) {
    memset(out, 0, sizeof *out);
    (void)ERR_set_mark();
    sheaf_status status = begin_recipient(recipient, enc, info, out);
    (void)ERR_pop_to_mark();
    if (status != SHEAF_OK) sheaf_hpke_drop(out);
    return status;
}

sheaf_status sheaf_hpke_export(const sheaf_hpke *hpke, sheaf_span context, uint8_t *out, size_t size) {
    if (size > 255u * HASH_BYTES) return SHEAF_E_TOO_LARGE;
    const suite of = suite_of_hpke(hpke->kem);
    (void)ERR_set_mark();
    sheaf_status status = labeled_expand(&of, hpke->exporter_secret, "sec", context, out, size);
    (void)ERR_pop_to_mark();
    return status;
}

void sheaf_hpke_end_exports(sheaf_hpke *hpke) { sheaf_wipe(hpke->exporter_secret, sizeof hpke->exporter_secret); }

void sheaf_hpke_drop(sheaf_hpke *hpke) {
    sheaf_aead_drop(&hpke->aead);
    sheaf_wipe(hpke, sizeof *hpke);
}
