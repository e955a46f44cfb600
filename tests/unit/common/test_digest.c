/* SHA-256 as FIPS 180-2, appendix B, has it. */
#include "tests/cmocka.h"

#include "common/digest.h"

static void expect(const char *text, const char *hex) {
    uint8_t digest[SHEAF_DIGEST_BYTES];
    char found[2 * SHEAF_DIGEST_BYTES + 1];
    assert_int_equal(sheaf_digest_of(sheaf_span_of(text, strlen(text)), digest), SHEAF_OK);
    sheaf_hex(digest, sizeof digest, found);
    assert_string_equal(found, hex);
}

static void matches_the_published_vectors(void **state) {
    (void)state;
    expect("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void pieces_give_the_digest_of_the_whole(void **state) {
    (void)state;
    uint8_t whole[SHEAF_DIGEST_BYTES], pieces[SHEAF_DIGEST_BYTES];
    sheaf_digest digest;
    assert_int_equal(sheaf_digest_of(sheaf_span_of("abc", 3), whole), SHEAF_OK);
    assert_int_equal(sheaf_digest_begin(&digest), SHEAF_OK);
    assert_int_equal(sheaf_digest_update(&digest, sheaf_span_of("a", 1)), SHEAF_OK);
    assert_int_equal(sheaf_digest_update(&digest, sheaf_span_of(NULL, 0)), SHEAF_OK);
    assert_int_equal(sheaf_digest_update(&digest, sheaf_span_of("bc", 2)), SHEAF_OK);
    assert_int_equal(sheaf_digest_finish(&digest, pieces), SHEAF_OK);
    assert_memory_equal(whole, pieces, sizeof whole);
    sheaf_digest_drop(&digest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_the_published_vectors),
        cmocka_unit_test(pieces_give_the_digest_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
