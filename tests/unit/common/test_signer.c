/* A signature is its certificate's over exactly the message, and keys that others can read are not used. */
#include "tests/cmocka.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "common/certificate.h"
#include "common/file.h"
#include "common/signer.h"
#include "tests/kit/pki_kit.h"

static pki_kit *kit;

static int set_up(void **state) {
    (void)state;
    kit = pki_kit_make();
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    pki_kit_free(kit);
    return 0;
}

typedef struct {
    sheaf_signer *signer;
    sheaf_certificate *certificate;
} pair;

static pair make_pair(const char *key_type) {
    pki_kit_options options = {.key_type = key_type};
    const pki_kit_files *files = pki_kit_issue(kit, "device", "d1", &options);
    pair made = {NULL, NULL};
    assert_int_equal(sheaf_signer_open(files->key, &made.signer, NULL), SHEAF_OK);
    assert_int_equal(sheaf_certificate_from_pem_file(files->certificate, &made.certificate, NULL), SHEAF_OK);
    return made;
}

static void drop_pair(pair *gone) {
    sheaf_signer_free(gone->signer);
    sheaf_certificate_unref(gone->certificate);
}

static const char *const key_types[] = {"p256", "ed25519"};
static const char message[] = "sheaf update v1: forty-two";

static sheaf_span message_span(void) { return sheaf_span_of(message, sizeof message - 1); }

static size_t sign(sheaf_signer *signer, sheaf_span bytes, uint8_t out[SHEAF_SIGNATURE_BYTES_MAX]) {
    sheaf_buffer signature = {out, 0, SHEAF_SIGNATURE_BYTES_MAX};
    assert_int_equal(sheaf_signer_sign(signer, bytes, &signature), SHEAF_OK);
    return signature.size;
}

static void what_the_key_signs_its_certificate_verifies(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        pair own = make_pair(key_types[i]);
        uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX];
        for (int again = 0; again < 20; again++) { /* DER signatures vary in length */
            size_t size = sign(own.signer, message_span(), bytes);
            assert_true(i == 0 ? size <= 72 : size == 64);
            assert_int_equal(sheaf_certificate_verify(own.certificate, message_span(), sheaf_span_of(bytes, size)),
                             SHEAF_OK);
        }
        size_t size = sign(own.signer, sheaf_span_of(NULL, 0), bytes);
        assert_int_equal(sheaf_certificate_verify(own.certificate, sheaf_span_of(NULL, 0), sheaf_span_of(bytes, size)),
                         SHEAF_OK);
        drop_pair(&own);
    }
}

static void another_message_does_not_verify(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        pair own = make_pair(key_types[i]);
        uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX], changed[sizeof message];
        size_t size = sign(own.signer, message_span(), bytes);
        for (size_t at = 0; at < message_span().size; at++) {
            memcpy(changed, message, sizeof message);
            changed[at] ^= 1;
            sheaf_span other = sheaf_span_of(changed, message_span().size);
            assert_int_equal(sheaf_certificate_verify(own.certificate, other, sheaf_span_of(bytes, size)),
                             SHEAF_E_SIGNATURE);
        }
        sheaf_span shorter = sheaf_span_of(message, message_span().size - 1);
        assert_int_equal(sheaf_certificate_verify(own.certificate, shorter, sheaf_span_of(bytes, size)),
                         SHEAF_E_SIGNATURE);
        drop_pair(&own);
    }
}

static void another_keys_signature_does_not_verify(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        pair own = make_pair(key_types[i / 2]), other = make_pair(key_types[i % 2]);
        uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX];
        size_t size = sign(other.signer, message_span(), bytes);
        assert_int_equal(sheaf_certificate_verify(own.certificate, message_span(), sheaf_span_of(bytes, size)),
                         SHEAF_E_SIGNATURE);
        drop_pair(&own);
        drop_pair(&other);
    }
}

static void a_changed_cut_or_longer_signature_does_not_verify(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        pair own = make_pair(key_types[i]);
        uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX + 1] = {0};
        size_t size = sign(own.signer, message_span(), bytes);
        for (size_t cut = 0; cut < size; cut++) {
            assert_int_equal(sheaf_certificate_verify(own.certificate, message_span(), sheaf_span_of(bytes, cut)),
                             SHEAF_E_SIGNATURE);
        }
        assert_int_equal(sheaf_certificate_verify(own.certificate, message_span(), sheaf_span_of(bytes, size + 1)),
                         SHEAF_E_SIGNATURE);
        assert_int_equal(sheaf_certificate_verify(own.certificate, message_span(), sheaf_span_of(NULL, 0)),
                         SHEAF_E_SIGNATURE);
        for (size_t at = 0; at < size; at++) {
            bytes[at] ^= 4;
            assert_int_equal(sheaf_certificate_verify(own.certificate, message_span(), sheaf_span_of(bytes, size)),
                             SHEAF_E_SIGNATURE);
            bytes[at] ^= 4;
        }
        assert_int_equal(ERR_peek_error(), 0);
        drop_pair(&own);
    }
}

static void *sign_and_verify(void *context) {
    const pair *own = context;
    sheaf_certificate *held = sheaf_certificate_ref(own->certificate);
    uintptr_t wrong = 0;
    for (uint32_t i = 0; i < 100; i++) {
        uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX];
        sheaf_buffer signature = {bytes, 0, sizeof bytes};
        sheaf_span number = sheaf_span_of(&i, sizeof i);
        wrong += sheaf_signer_sign(own->signer, number, &signature) != SHEAF_OK;
        wrong += sheaf_certificate_verify(held, number, sheaf_buffer_span(&signature)) != SHEAF_OK;
        wrong += sheaf_certificate_verify(held, message_span(), sheaf_buffer_span(&signature)) != SHEAF_E_SIGNATURE;
    }
    sheaf_certificate_unref(held);
    return (void *)wrong;
}

static void several_threads_share_one_key_and_one_certificate(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        pair own = make_pair(key_types[i]);
        pthread_t threads[4];
        for (int t = 0; t < 4; t++) assert_int_equal(pthread_create(&threads[t], NULL, sign_and_verify, &own), 0);
        for (int t = 0; t < 4; t++) {
            void *wrong = NULL;
            assert_int_equal(pthread_join(threads[t], &wrong), 0);
            assert_null(wrong);
        }
        drop_pair(&own);
    }
}

/* RFC 8032, section 7.1, TEST 2: key, message and signature from outside. */
static void ed25519_gives_the_signature_of_rfc_8032(void **state) {
    (void)state;
    uint8_t seed[32], expected[64], bytes[SHEAF_SIGNATURE_BYTES_MAX];
    assert_true(sheaf_unhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", seed, sizeof seed));
    assert_true(sheaf_unhex("92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
                            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
                            expected, sizeof expected));
    char path[256];
    snprintf(path, sizeof path, "%s/rfc8032.key", pki_kit_folder(kit));
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, sizeof seed);
    FILE *file = fopen(path, "wb");
    assert_true(file != NULL && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(file);
    EVP_PKEY_free(key);
    assert_int_equal(chmod(path, 0600), 0);
    sheaf_signer *signer = NULL;
    assert_int_equal(sheaf_signer_open(path, &signer, NULL), SHEAF_OK);
    assert_int_equal(sign(signer, sheaf_span_of("\x72", 1), bytes), 64);
    assert_memory_equal(bytes, expected, 64);
    sheaf_signer_free(signer);
}

static void assert_not_opened(const char *path, sheaf_status expected, const char *why) {
    sheaf_signer *signer = NULL;
    sheaf_problem problem = {0};
    assert_int_equal(sheaf_signer_open(path, &signer, &problem), expected);
    assert_null(signer);
    if (strstr(problem.text, why) == NULL) fail_msg("'%s' is not in '%s'", why, problem.text);
    assert_int_equal(problem.status, expected);
    assert_int_equal(ERR_peek_error(), 0);
}

static void a_key_that_group_or_others_can_touch_is_refused(void **state) {
    (void)state;
    const char *path = pki_kit_issue(kit, "device", "d1", NULL)->key;
    static const mode_t open_modes[] = {0640, 0604, 0620, 0602, 0610, 0644, 0660};
    for (size_t i = 0; i < sizeof open_modes / sizeof open_modes[0]; i++) {
        assert_int_equal(chmod(path, open_modes[i]), 0);
        assert_not_opened(path, SHEAF_E_PERMISSION, "chmod 600");
    }
    assert_int_equal(chmod(path, 0400), 0);
    sheaf_signer *signer = NULL;
    assert_int_equal(sheaf_signer_open(path, &signer, NULL), SHEAF_OK);
    sheaf_signer_free(signer);
}

static void what_is_no_usable_key_is_named(void **state) {
    (void)state;
    static const uint8_t large[65537] = {0};
    char path[256];
    assert_not_opened("/nonexistent/x.key", SHEAF_E_NOT_FOUND, "/nonexistent/x.key");
    assert_not_opened(pki_kit_folder(kit), SHEAF_E_CRYPTO, "not a regular file");
    assert_not_opened(pki_kit_issue(kit, "device", "d1", NULL)->certificate, SHEAF_E_CRYPTO, "not a private key");
    assert_not_opened(pki_kit_issue(kit, "device", "d1", &(pki_kit_options){.key_type = "rsa"})->key, SHEAF_E_CRYPTO,
                      "P-256");
    assert_not_opened(pki_kit_issue(kit, "device", "d1", &(pki_kit_options){.key_type = "p384"})->key, SHEAF_E_CRYPTO,
                      "P-256");
    snprintf(path, sizeof path, "%s/empty.key", pki_kit_folder(kit));
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of(NULL, 0), 0600, NULL), SHEAF_OK);
    assert_not_opened(path, SHEAF_E_CRYPTO, "not a private key");
    snprintf(path, sizeof path, "%s/large.key", pki_kit_folder(kit));
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of(large, sizeof large), 0600, NULL), SHEAF_OK);
    assert_not_opened(path, SHEAF_E_CRYPTO, "too large");
    snprintf(path, sizeof path, "%s/fifo", pki_kit_folder(kit));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_not_opened(path, SHEAF_E_CRYPTO, "not a regular file");
}

static void an_encrypted_key_is_refused_and_asks_nobody(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/locked.key", pki_kit_folder(kit));
    EVP_PKEY *key = EVP_EC_gen("P-256");
    unsigned char passphrase[] = "secret";
    FILE *file = fopen(path, "wb");
    assert_true(file != NULL && PEM_write_PrivateKey(file, key, EVP_aes_256_cbc(), passphrase, 6, NULL, NULL) == 1);
    fclose(file);
    EVP_PKEY_free(key);
    assert_int_equal(chmod(path, 0600), 0);
    assert_not_opened(path, SHEAF_E_CRYPTO, "without passphrase");
}

static void a_small_buffer_is_refused(void **state) {
    (void)state;
    pair own = make_pair("p256");
    uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX];
    sheaf_buffer out = {bytes, 0, SHEAF_SIGNATURE_BYTES_MAX - 1};
    assert_int_equal(sheaf_signer_sign(own.signer, message_span(), &out), SHEAF_E_TOO_LARGE);
    assert_int_equal(out.size, 0);
    drop_pair(&own);
    sheaf_signer_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_key_signs_its_certificate_verifies),
        cmocka_unit_test(another_message_does_not_verify),
        cmocka_unit_test(another_keys_signature_does_not_verify),
        cmocka_unit_test(a_changed_cut_or_longer_signature_does_not_verify),
        cmocka_unit_test(several_threads_share_one_key_and_one_certificate),
        cmocka_unit_test(ed25519_gives_the_signature_of_rfc_8032),
        cmocka_unit_test(a_key_that_group_or_others_can_touch_is_refused),
        cmocka_unit_test(what_is_no_usable_key_is_named),
        cmocka_unit_test(an_encrypted_key_is_refused_and_asks_nobody),
        cmocka_unit_test(a_small_buffer_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
