/* HPKE against the vectors of RFC 9180, and everything that must not open. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

#include <openssl/err.h>

#include "common/seal.h"

#define BYTES_MAX 256u

static const sheaf_kem kems[] = {SHEAF_KEM_P256, SHEAF_KEM_X25519};
static const sheaf_span nothing = {NULL, 0};

/* --- the vectors -------------------------------------------------------------------------------------------------- */

typedef struct {
    char key[32];
    uint8_t bytes[BYTES_MAX];
    size_t size;
    char text[2 * BYTES_MAX + 1];
} field;

static sheaf_span span_of(const field *of) { return sheaf_span_of(of->bytes, of->size); }

/* The next line "key: value" that is neither empty nor a comment; 0 at the end. */
static int read_field(FILE *file, field *out) {
    char line[1024];
    while (fgets(line, sizeof line, file) != NULL) {
        out->text[0] = '\0';
        if (line[0] == '#' || sscanf(line, "%31[^:]: %512s", out->key, out->text) < 1 || line[0] == '\n') continue;
        out->size = strlen(out->text) / 2;
        if (!sheaf_unhex(out->text, out->bytes, out->size)) out->size = 0; /* a number, read as text */
        return 1;
    }
    return 0;
}

static void expect_field(FILE *file, const char *key, field *out) {
    assert_int_equal(read_field(file, out), 1);
    assert_string_equal(out->key, key);
}

static void assert_bytes(const field *expected, const uint8_t *bytes, size_t size) {
    assert_int_equal(expected->size, size);
    assert_memory_equal(expected->bytes, bytes, size);
}

typedef struct {
    sheaf_seal_pair ephemeral, recipient;
    sheaf_hpke sender, receiver;
    unsigned encryptions, exports;
} vector_run;

static void derive(FILE *file, sheaf_kem kem, const char *seed, const char *public_key, sheaf_seal_pair *out) {
    field ikm, expected;
    expect_field(file, seed, &ikm);
    expect_field(file, public_key, &expected);
    assert_int_equal(sheaf_seal_pair_derive(kem, span_of(&ikm), out), SHEAF_OK);
    assert_bytes(&expected, out->public_bytes, sheaf_kem_public_bytes(kem));
    expect_field(file, public_key[2] == 'E' ? "skEm" : "skRm", &expected); /* shown by what it derives */
}

static void set_up_contexts(FILE *file, sheaf_kem kem, vector_run *run) {
    field info, expected, mode;
    uint8_t enc[SHEAF_SEAL_PUBLIC_BYTES_MAX];
    expect_field(file, "mode", &mode);
    expect_field(file, "kem_id", &mode);
    assert_int_equal(strtol(mode.text, NULL, 10), kem);
    expect_field(file, "kdf_id", &mode);
    expect_field(file, "aead_id", &mode);
    expect_field(file, "info", &info);
    derive(file, kem, "ikmE", "pkEm", &run->ephemeral);
    derive(file, kem, "ikmR", "pkRm", &run->recipient);
    size_t size = sheaf_kem_public_bytes(kem);
    assert_int_equal(sheaf_hpke_begin_sender(kem, sheaf_span_of(run->recipient.public_bytes, size), span_of(&info),
                                             &run->ephemeral, enc, &run->sender),
                     SHEAF_OK);
    expect_field(file, "enc", &expected);
    assert_bytes(&expected, enc, size);
    assert_int_equal(sheaf_hpke_begin_recipient(&run->recipient, span_of(&expected), span_of(&info), &run->receiver),
                     SHEAF_OK);
    while (strcmp(expected.key, "base_nonce") != 0) assert_int_equal(read_field(file, &expected), 1);
    assert_bytes(&expected, run->sender.aead.nonce_base, SHEAF_SEAL_NONCE_BYTES);
    assert_bytes(&expected, run->receiver.aead.nonce_base, SHEAF_SEAL_NONCE_BYTES);
    expect_field(file, "exporter_secret", &expected);
    assert_bytes(&expected, run->sender.exporter_secret, SHEAF_SEAL_SECRET_BYTES);
    assert_bytes(&expected, run->receiver.exporter_secret, SHEAF_SEAL_SECRET_BYTES);
}

static void check_encryption(FILE *file, const field *sequence, vector_run *run) {
    field plain, associated, nonce, sealed;
    uint8_t out[BYTES_MAX];
    uint64_t number = strtoull(sequence->text, NULL, 10);
    expect_field(file, "pt", &plain);
    expect_field(file, "aad", &associated);
    expect_field(file, "nonce", &nonce);
    expect_field(file, "ct", &sealed);
    assert_int_equal(sheaf_aead_seal(&run->sender.aead, number, span_of(&associated), span_of(&plain), out), SHEAF_OK);
    assert_bytes(&sealed, out, plain.size + SHEAF_SEAL_TAG_BYTES);
    assert_int_equal(
        sheaf_aead_take_back(&run->sender.aead, number, span_of(&associated), out, plain.size + SHEAF_SEAL_TAG_BYTES),
        SHEAF_OK);
    assert_bytes(&plain, out, plain.size);
    assert_int_equal(sheaf_aead_open(&run->receiver.aead, number, span_of(&associated), span_of(&sealed), out),
                     SHEAF_OK);
    assert_bytes(&plain, out, plain.size);
    run->encryptions++;
}

static void check_export(FILE *file, const field *context, vector_run *run) {
    field size, expected;
    uint8_t out[32];
    expect_field(file, "L", &size);
    expect_field(file, "exported_value", &expected);
    assert_int_equal(sheaf_hpke_export(&run->sender, span_of(context), out, sizeof out), SHEAF_OK);
    assert_bytes(&expected, out, sizeof out);
    assert_int_equal(sheaf_hpke_export(&run->receiver, span_of(context), out, sizeof out), SHEAF_OK);
    assert_bytes(&expected, out, sizeof out);
    run->exports++;
}

static void check_vectors(const char *path, sheaf_kem kem) {
    vector_run run = {0};
    field next;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    set_up_contexts(file, kem, &run);
    while (read_field(file, &next)) {
        if (strcmp(next.key, "sequence") == 0)
            check_encryption(file, &next, &run);
        else
            check_export(file, &next, &run);
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(run.encryptions, 6); /* 0, 1, 2, 4, 255, 256 */
    assert_int_equal(run.exports, 3);
    sheaf_hpke_drop(&run.sender);
    sheaf_hpke_drop(&run.receiver);
    sheaf_seal_pair_drop(&run.ephemeral);
    sheaf_seal_pair_drop(&run.recipient);
}

static void rfc_9180_a_1_1_x25519(void **state) {
    (void)state;
    check_vectors(SHEAF_TESTS_DIR "/vectors/hpke/rfc9180_a1_1_x25519.txt", SHEAF_KEM_X25519);
}

static void rfc_9180_a_3_1_p256(void **state) {
    (void)state;
    check_vectors(SHEAF_TESTS_DIR "/vectors/hpke/rfc9180_a3_1_p256.txt", SHEAF_KEM_P256);
}

/* --- fresh keys --------------------------------------------------------------------------------------------------- */

typedef struct {
    sheaf_seal_pair recipient;
    sheaf_hpke sender, receiver;
    uint8_t enc[SHEAF_SEAL_PUBLIC_BYTES_MAX];
} channel;

static channel channel_of(sheaf_kem kem, sheaf_span info, sheaf_span other_info) {
    channel made;
    size_t size = sheaf_kem_public_bytes(kem);
    assert_int_equal(sheaf_seal_pair_make(kem, &made.recipient), SHEAF_OK);
    assert_int_equal(sheaf_hpke_begin_sender(kem, sheaf_span_of(made.recipient.public_bytes, size), info, NULL,
                                             made.enc, &made.sender),
                     SHEAF_OK);
    assert_int_equal(
        sheaf_hpke_begin_recipient(&made.recipient, sheaf_span_of(made.enc, size), other_info, &made.receiver),
        SHEAF_OK);
    return made;
}

static void drop_channel(channel *gone) {
    sheaf_seal_pair_drop(&gone->recipient);
    sheaf_hpke_drop(&gone->sender);
    sheaf_hpke_drop(&gone->receiver);
}

static void fresh_pairs_and_senders_never_repeat(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        channel one = channel_of(kems[i], nothing, nothing), other = channel_of(kems[i], nothing, nothing);
        size_t size = sheaf_kem_public_bytes(kems[i]);
        assert_memory_not_equal(one.recipient.public_bytes, other.recipient.public_bytes, size);
        assert_memory_not_equal(one.enc, other.enc, size);
        assert_memory_not_equal(one.sender.exporter_secret, other.sender.exporter_secret, SHEAF_SEAL_SECRET_BYTES);
        drop_channel(&one);
        drop_channel(&other);
    }
}

static void in_place_gives_the_same_bytes(void **state) {
    (void)state;
    enum { SIZE = 100000 };
    channel made = channel_of(SHEAF_KEM_P256, nothing, nothing);
    uint8_t *plain = malloc(SIZE), *apart = malloc(SIZE + SHEAF_SEAL_TAG_BYTES);
    uint8_t *within = malloc(SIZE + SHEAF_SEAL_TAG_BYTES);
    assert_true(plain != NULL && apart != NULL && within != NULL);
    for (size_t i = 0; i < SIZE; i++) plain[i] = within[i] = (uint8_t)(i * 31 + i / 256);
    assert_int_equal(sheaf_aead_seal(&made.sender.aead, 7, nothing, sheaf_span_of(plain, SIZE), apart), SHEAF_OK);
    assert_int_equal(sheaf_aead_seal(&made.sender.aead, 7, nothing, sheaf_span_of(within, SIZE), within), SHEAF_OK);
    assert_memory_equal(apart, within, SIZE + SHEAF_SEAL_TAG_BYTES);
    sheaf_span sealed = sheaf_span_of(within, SIZE + SHEAF_SEAL_TAG_BYTES);
    assert_int_equal(sheaf_aead_open(&made.receiver.aead, 7, nothing, sealed, within), SHEAF_OK);
    assert_memory_equal(plain, within, SIZE);
    free(plain);
    free(apart);
    free(within);
    drop_channel(&made);
}

static void only_what_was_sealed_here_is_taken_back(void **state) {
    (void)state;
    channel made = channel_of(SHEAF_KEM_P256, nothing, nothing), other = channel_of(SHEAF_KEM_P256, nothing, nothing);
    uint8_t sealed[20 + SHEAF_SEAL_TAG_BYTES], again[sizeof sealed];
    sheaf_span plain = sheaf_span_of("twenty bytes of text", 20);
    assert_int_equal(sheaf_aead_seal(&made.sender.aead, 3, nothing, plain, sealed), SHEAF_OK);
    memcpy(again, sealed, sizeof again);
    assert_int_equal(sheaf_aead_take_back(&other.sender.aead, 3, nothing, again, sizeof again), SHEAF_E_SEAL);
    memcpy(again, sealed, sizeof again);
    assert_int_equal(sheaf_aead_take_back(&made.sender.aead, 4, nothing, again, sizeof again), SHEAF_E_SEAL);
    assert_int_equal(sheaf_aead_take_back(&made.sender.aead, 3, nothing, again, 15), SHEAF_E_TRUNCATED);
    memcpy(again, sealed, sizeof again);
    assert_int_equal(sheaf_aead_take_back(&made.sender.aead, 3, nothing, again, sizeof again), SHEAF_OK);
    assert_memory_equal(again, plain.data, plain.size);
    assert_int_equal(sheaf_aead_seal(&made.sender.aead, 3, nothing, plain, again), SHEAF_OK); /* it still seals */
    assert_memory_equal(again, sealed, sizeof sealed);
    drop_channel(&made);
    drop_channel(&other);
}

static void an_empty_message_is_sealed_too(void **state) {
    (void)state;
    channel made = channel_of(SHEAF_KEM_X25519, nothing, nothing);
    uint8_t tag[SHEAF_SEAL_TAG_BYTES], out[1] = {42};
    assert_int_equal(sheaf_aead_seal(&made.sender.aead, 1, nothing, nothing, tag), SHEAF_OK);
    sheaf_span sealed = sheaf_span_of(tag, sizeof tag);
    assert_int_equal(sheaf_aead_open(&made.receiver.aead, 1, nothing, sealed, out), SHEAF_OK);
    tag[3] ^= 1;
    assert_int_equal(sheaf_aead_open(&made.receiver.aead, 1, nothing, sealed, out), SHEAF_E_SEAL);
    assert_int_equal(out[0], 42);
    drop_channel(&made);
}

/* --- what must not open ------------------------------------------------------------------------------------------- */

static void any_changed_bit_is_found_and_nothing_plain_is_left(void **state) {
    (void)state;
    static const uint8_t zeros[20] = {0};
    channel made = channel_of(SHEAF_KEM_P256, nothing, nothing);
    uint8_t message[20] = "twenty bytes of text", sealed[20 + SHEAF_SEAL_TAG_BYTES], out[20];
    sheaf_span associated = sheaf_span_of("head", 4), all = sheaf_span_of(sealed, sizeof sealed);
    assert_int_equal(sheaf_aead_seal(&made.sender.aead, 3, associated, sheaf_span_of(message, 20), sealed), SHEAF_OK);
    for (size_t bit = 0; bit < 8 * sizeof sealed; bit++) {
        sealed[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        memset(out, 0xaa, sizeof out);
        assert_int_equal(sheaf_aead_open(&made.receiver.aead, 3, associated, all, out), SHEAF_E_SEAL);
        assert_memory_equal(out, zeros, sizeof out);
        sealed[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    for (size_t size = 0; size < sizeof sealed; size++) {
        sheaf_status expected = size < SHEAF_SEAL_TAG_BYTES ? SHEAF_E_TRUNCATED : SHEAF_E_SEAL;
        assert_int_equal(sheaf_aead_open(&made.receiver.aead, 3, associated, sheaf_span_of(sealed, size), out),
                         expected);
    }
    assert_int_equal(sheaf_aead_open(&made.receiver.aead, 2, associated, all, out), SHEAF_E_SEAL);
    assert_int_equal(sheaf_aead_open(&made.receiver.aead, 3, sheaf_span_of("heap", 4), all, out), SHEAF_E_SEAL);
    assert_int_equal(sheaf_aead_open(&made.receiver.aead, 3, nothing, all, out), SHEAF_E_SEAL);
    assert_int_equal(sheaf_aead_open(&made.receiver.aead, 3, associated, all, out), SHEAF_OK);
    assert_memory_equal(out, message, sizeof message);
    assert_int_equal(ERR_peek_error(), 0);
    drop_channel(&made);
}

static void another_info_or_another_recipient_gives_another_key(void **state) {
    (void)state;
    uint8_t sealed[4 + SHEAF_SEAL_TAG_BYTES], out[4];
    for (size_t i = 0; i < 2; i++) {
        channel made = channel_of(kems[i], sheaf_span_of("one", 3), sheaf_span_of("two", 3));
        channel other = channel_of(kems[i], sheaf_span_of("one", 3), sheaf_span_of("one", 3));
        assert_int_equal(sheaf_aead_seal(&made.sender.aead, 0, nothing, sheaf_span_of("text", 4), sealed), SHEAF_OK);
        sheaf_span all = sheaf_span_of(sealed, sizeof sealed);
        assert_int_equal(sheaf_aead_open(&made.receiver.aead, 0, nothing, all, out), SHEAF_E_SEAL);
        assert_int_equal(sheaf_aead_open(&other.receiver.aead, 0, nothing, all, out), SHEAF_E_SEAL);
        drop_channel(&made);
        drop_channel(&other);
    }
}

/* Neither end takes `bytes` for a key, in either role. */
static void assert_refused(sheaf_kem kem, const uint8_t *bytes, size_t size) {
    sheaf_seal_pair own;
    sheaf_hpke context;
    uint8_t enc[SHEAF_SEAL_PUBLIC_BYTES_MAX];
    sheaf_span key = sheaf_span_of(bytes, size);
    assert_int_equal(sheaf_seal_pair_make(kem, &own), SHEAF_OK);
    assert_int_equal(sheaf_hpke_begin_sender(kem, key, nothing, NULL, enc, &context), SHEAF_E_MALFORMED);
    assert_int_equal(sheaf_hpke_begin_recipient(&own, key, nothing, &context), SHEAF_E_MALFORMED);
    assert_int_equal(ERR_peek_error(), 0);
    sheaf_seal_pair_drop(&own);
}

static void public_keys_of_a_wrong_size_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        sheaf_seal_pair pair;
        uint8_t longer[SHEAF_SEAL_PUBLIC_BYTES_MAX + 1] = {0};
        size_t size = sheaf_kem_public_bytes(kems[i]);
        assert_int_equal(sheaf_seal_pair_make(kems[i], &pair), SHEAF_OK);
        memcpy(longer, pair.public_bytes, size);
        assert_refused(kems[i], longer, 0);
        assert_refused(kems[i], longer, 1);
        assert_refused(kems[i], longer, size - 1);
        assert_refused(kems[i], longer, size + 1);
        sheaf_seal_pair_drop(&pair);
    }
}

static void points_that_are_not_on_the_curve_are_refused(void **state) {
    (void)state;
    sheaf_seal_pair pair;
    uint8_t point[65];
    assert_int_equal(sheaf_seal_pair_make(SHEAF_KEM_P256, &pair), SHEAF_OK);
    for (size_t i = 0; i < sizeof point; i += 8) { /* i = 0: the form; then both coordinates */
        memcpy(point, pair.public_bytes, sizeof point);
        point[i] ^= 1;
        assert_refused(SHEAF_KEM_P256, point, sizeof point);
    }
    /* A hybrid encoding of the very point: one key must have one spelling. */
    memcpy(point, pair.public_bytes, sizeof point);
    point[0] = (uint8_t)(6 | (point[64] & 1));
    assert_refused(SHEAF_KEM_P256, point, sizeof point);
    memset(point + 1, 0, 64);
    point[0] = 4;
    assert_refused(SHEAF_KEM_P256, point, sizeof point);
    memset(point + 1, 0xff, 64); /* beyond the field */
    assert_refused(SHEAF_KEM_P256, point, sizeof point);
    sheaf_seal_pair_drop(&pair);
}

/* The points of RFC 7748's curve that give zeros with any key: u of order 1, 2, 4 and 8, in both of their spellings. */
static void points_of_small_order_are_refused(void **state) {
    (void)state;
    static const char *const points[] = {
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    };
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        uint8_t bytes[32];
        assert_int_equal(sheaf_unhex(points[i], bytes, sizeof bytes), 1);
        assert_refused(SHEAF_KEM_X25519, bytes, sizeof bytes);
        bytes[31] |= 0x80; /* the bit that RFC 7748 says to ignore */
        assert_refused(SHEAF_KEM_X25519, bytes, sizeof bytes);
    }
}

static void unknown_kems_and_short_seeds_are_refused(void **state) {
    (void)state;
    static const uint8_t seed[32] = {1};
    sheaf_seal_pair pair;
    assert_int_equal(sheaf_kem_public_bytes(0x0010), 65);
    assert_int_equal(sheaf_kem_public_bytes(0x0020), 32);
    assert_int_equal(sheaf_kem_public_bytes(0x0012), 0); /* P-521, which we do not speak */
    assert_int_equal(sheaf_seal_pair_make((sheaf_kem)0x0012, &pair), SHEAF_E_VERSION);
    assert_int_equal(sheaf_seal_pair_derive((sheaf_kem)0, sheaf_span_of(seed, 32), &pair), SHEAF_E_VERSION);
    assert_int_equal(sheaf_seal_pair_derive(SHEAF_KEM_P256, sheaf_span_of(seed, 31), &pair), SHEAF_E_TRUNCATED);
    sheaf_seal_pair_drop(&pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rfc_9180_a_1_1_x25519),
        cmocka_unit_test(rfc_9180_a_3_1_p256),
        cmocka_unit_test(fresh_pairs_and_senders_never_repeat),
        cmocka_unit_test(in_place_gives_the_same_bytes),
        cmocka_unit_test(only_what_was_sealed_here_is_taken_back),
        cmocka_unit_test(an_empty_message_is_sealed_too),
        cmocka_unit_test(any_changed_bit_is_found_and_nothing_plain_is_left),
        cmocka_unit_test(another_info_or_another_recipient_gives_another_key),
        cmocka_unit_test(public_keys_of_a_wrong_size_are_refused),
        cmocka_unit_test(points_that_are_not_on_the_curve_are_refused),
        cmocka_unit_test(points_of_small_order_are_refused),
        cmocka_unit_test(unknown_kems_and_short_seeds_are_refused),
    };
    return cmocka_run_group_tests_name("common.seal", tests, NULL, NULL);
}
