/* Whom a certificate names, whose signature it checks, and everything that we refuse in one. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/x509.h>

#include "common/certificate.h"
#include "common/file.h"
#include "common/signer.h"
#include "common/trust.h"
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

static sheaf_certificate *accepted(const char *role, const char *name, const pki_kit_options *options) {
    sheaf_certificate *certificate = NULL;
    sheaf_problem problem = {0};
    sheaf_status status =
        sheaf_certificate_from_pem_file(pki_kit_issue(kit, role, name, options)->certificate, &certificate, &problem);
    if (status != SHEAF_OK) print_message("%s\n", problem.text);
    assert_int_equal(status, SHEAF_OK);
    return certificate;
}

/* The certificate is refused in both forms, with `why` in the text, and leaves nothing in OpenSSL's queue. */
static void assert_refused(const char *role, const char *name, const pki_kit_options *options, const char *why) {
    const pki_kit_files *files = pki_kit_issue(kit, role, name, options);
    sheaf_certificate *certificate = NULL;
    sheaf_problem problem = {0};
    assert_int_equal(sheaf_certificate_from_pem_file(files->certificate, &certificate, &problem), SHEAF_E_CERTIFICATE);
    assert_null(certificate);
    if (strstr(problem.text, why) == NULL) fail_msg("'%s' is not in '%s'", why, problem.text);
    assert_non_null(strstr(problem.text, files->certificate));
    sheaf_buffer der = {0};
    assert_int_equal(sheaf_file_read_whole(files->der, 65536, &der, NULL), SHEAF_OK);
    assert_int_equal(sheaf_certificate_from_der(sheaf_buffer_span(&der), &certificate), SHEAF_E_CERTIFICATE);
    assert_null(certificate);
    free(der.data);
    assert_int_equal(ERR_peek_error(), 0);
}

static void names_tenant_role_and_name_for_every_role_and_key(void **state) {
    (void)state;
    static const char *const types[] = {"p256", "ed25519"};
    static const sheaf_role roles[] = {SHEAF_ROLE_DEVICE, SHEAF_ROLE_OPERATOR, SHEAF_ROLE_AUDITOR,
                                       SHEAF_ROLE_AGGREGATOR};
    for (size_t i = 0; i < 8; i++) {
        pki_kit_options options = {.tenant = "Tenant_1.x", .key_type = types[i % 2]};
        sheaf_certificate *certificate = accepted(sheaf_role_name(roles[i / 2]), "node-07", &options);
        const sheaf_identity *identity = sheaf_certificate_identity(certificate);
        assert_string_equal(identity->tenant, "Tenant_1.x");
        assert_string_equal(identity->name, "node-07");
        assert_int_equal(identity->role, roles[i / 2]);
        sheaf_problem problem = {0};
        assert_int_equal(sheaf_certificate_check_chain(certificate, pki_kit_ca(kit), &problem), SHEAF_OK);
        sheaf_certificate_unref(certificate);
    }
}

static void the_longest_name_fits_and_one_byte_more_is_refused(void **state) {
    (void)state;
    char name[65];
    memset(name, 'a', sizeof name);
    name[63] = '\0';
    sheaf_certificate *certificate = accepted("device", name, NULL);
    assert_string_equal(sheaf_certificate_identity(certificate)->name, name);
    sheaf_certificate_unref(certificate);
    name[63] = 'a';
    name[64] = '\0';
    assert_refused("device", name, NULL, "CN (name)");
}

static void roles_have_one_name_each(void **state) {
    (void)state;
    for (int role = SHEAF_ROLE_DEVICE; role <= SHEAF_ROLE_AGGREGATOR; role++) {
        assert_int_equal(sheaf_role_from_name(sheaf_role_name((sheaf_role)role)), role);
    }
    assert_int_equal(sheaf_role_from_name("none"), SHEAF_ROLE_NONE);
    assert_int_equal(sheaf_role_from_name("Device"), SHEAF_ROLE_NONE);
    assert_int_equal(sheaf_role_from_name(""), SHEAF_ROLE_NONE);
    assert_string_equal(sheaf_role_name((sheaf_role)99), "none");
}

/* That the fingerprint is the DER's SHA-256 is shown in tests/python/pki, by another implementation. */
static void keeps_the_der_that_it_was_read_from(void **state) {
    (void)state;
    const pki_kit_files *files = pki_kit_issue(kit, "device", "d1", NULL);
    sheaf_certificate *certificate = NULL, *same = NULL;
    assert_int_equal(sheaf_certificate_from_pem_file(files->certificate, &certificate, NULL), SHEAF_OK);
    sheaf_buffer der = {0};
    assert_int_equal(sheaf_file_read_whole(files->der, 65536, &der, NULL), SHEAF_OK);
    assert_true(sheaf_span_equal(sheaf_buffer_span(&der), sheaf_certificate_der(certificate)));
    assert_int_equal(sheaf_certificate_from_der(sheaf_buffer_span(&der), &same), SHEAF_OK);
    assert_memory_equal(sheaf_certificate_fingerprint(certificate), sheaf_certificate_fingerprint(same),
                        SHEAF_DIGEST_BYTES);
    free(der.data);
    sheaf_certificate_unref(certificate);
    sheaf_certificate_unref(same);
}

static void a_reference_keeps_it_alive(void **state) {
    (void)state;
    sheaf_certificate *certificate = accepted("device", "d1", NULL);
    sheaf_certificate *second = sheaf_certificate_ref(certificate);
    sheaf_certificate_unref(certificate);
    assert_string_equal(sheaf_certificate_identity(second)->name, "d1");
    sheaf_certificate_unref(second);
    sheaf_certificate_unref(NULL);
}

/* Parsed by OpenSSL alone, as TLS does it; NULL is no outcome. */
static X509 *parsed_by_openssl(const char *role, const char *name, const pki_kit_options *options) {
    sheaf_buffer der = {0};
    assert_int_equal(sheaf_file_read_whole(pki_kit_issue(kit, role, name, options)->der, 65536, &der, NULL), SHEAF_OK);
    const unsigned char *at = der.data;
    X509 *x509 = d2i_X509(NULL, &at, (long)der.size);
    assert_non_null(x509);
    free(der.data);
    return x509;
}

static void a_shared_chain_is_kept_as_it_is_and_outlives_its_giver(void **state) {
    (void)state;
    X509 *chain[] = {parsed_by_openssl("device", "d1", NULL),
                     parsed_by_openssl("device", "d2", &(pki_kit_options){.is_authority = 1})};
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sheaf_certificate *certificate = NULL;
    assert_int_equal(X509_digest(chain[0], EVP_sha256(), digest, NULL), 1);
    assert_int_equal(sheaf_certificate_share_chain(chain, 2, &certificate, NULL), SHEAF_OK);
    assert_ptr_equal(sheaf_certificate_x509(certificate), chain[0]);
    assert_int_equal(sk_X509_num(sheaf_certificate_intermediates(certificate)), 1);
    assert_ptr_equal(sk_X509_value(sheaf_certificate_intermediates(certificate), 0), chain[1]);
    X509_free(chain[0]);
    X509_free(chain[1]);
    assert_string_equal(sheaf_certificate_identity(certificate)->name, "d1");
    assert_memory_equal(sheaf_certificate_fingerprint(certificate), digest, sizeof digest);
    sheaf_certificate_unref(certificate);
}

static void a_shared_chain_must_pass_the_same_rules(void **state) {
    (void)state;
    sheaf_certificate *certificate = NULL;
    sheaf_problem problem = {0};
    X509 *bad = parsed_by_openssl("device", "d1", &(pki_kit_options){.eku = "serverAuth"});
    X509 *many[] = {bad, bad, bad, bad, bad, bad};
    _Static_assert(sizeof many / sizeof many[0] == SHEAF_CHAIN_MAX + 1, "one too many");
    assert_int_equal(sheaf_certificate_share_chain(many, 1, &certificate, &problem), SHEAF_E_CERTIFICATE);
    assert_null(certificate);
    assert_non_null(strstr(problem.text, "needs extendedKeyUsage clientAuth"));
    assert_int_equal(sheaf_certificate_share_chain(many, 0, &certificate, &problem), SHEAF_E_CERTIFICATE);
    assert_int_equal(sheaf_certificate_share_chain(many, SHEAF_CHAIN_MAX + 1, &certificate, &problem),
                     SHEAF_E_CERTIFICATE);
    assert_non_null(strstr(problem.text, "too many"));
    assert_int_equal(ERR_peek_error(), 0);
    X509_free(bad);
}

static void usage_must_fit_the_role(void **state) {
    (void)state;
    assert_refused("device", "d1", &(pki_kit_options){.eku = ""}, "extendedKeyUsage extension is missing");
    assert_refused("aggregator", "a1", &(pki_kit_options){.eku = ""}, "extendedKeyUsage extension is missing");
    assert_refused("device", "d1", &(pki_kit_options){.eku = "serverAuth"}, "needs extendedKeyUsage clientAuth");
    assert_refused("operator", "o1", &(pki_kit_options){.eku = "serverAuth"}, "needs extendedKeyUsage clientAuth");
    assert_refused("auditor", "u1", &(pki_kit_options){.eku = "codeSigning"}, "needs extendedKeyUsage clientAuth");
    assert_refused("aggregator", "a1", &(pki_kit_options){.eku = "clientAuth"}, "needs extendedKeyUsage serverAuth");
    assert_refused("device", "d1", &(pki_kit_options){.eku = "anyExtendedKeyUsage"},
                   "needs extendedKeyUsage clientAuth");
    assert_refused("device", "d1", &(pki_kit_options){.key_usage = "critical,keyAgreement"}, "lacks digitalSignature");
    assert_refused("device", "d1", &(pki_kit_options){.duplicate_eku = 1}, "there twice");
    assert_refused("device", "d1", &(pki_kit_options){.unknown_critical = 1}, "critical extension");
    assert_refused("device", "d1", &(pki_kit_options){.is_authority = 1}, "CA:TRUE");
    assert_refused("device", "d1", &(pki_kit_options){.version_1 = 1}, "version 3");
    sheaf_certificate_unref(accepted("device", "d1", &(pki_kit_options){.key_usage = ""}));
    sheaf_certificate_unref(accepted("aggregator", "a1", &(pki_kit_options){.eku = "serverAuth,clientAuth"}));
}

static void subject_is_exactly_one_tenant_role_and_name(void **state) {
    (void)state;
    assert_refused("device", "d1", &(pki_kit_options){.second_name = "d2"}, "exactly one CN");
    assert_refused("device", "d1", &(pki_kit_options){.no_tenant = 1}, "exactly one O");
    assert_refused("device", "d1", &(pki_kit_options){.country = "CH"}, "more than O, OU, CN and ST");
    assert_refused("gateway", "d1", NULL, "OU 'gateway' is no role");
    assert_refused("Device", "d1", NULL, "is no role");
    assert_refused("none", "d1", NULL, "is no role");
    assert_refused("device", "a/b", NULL, "CN (name)");
    assert_refused("device", "a+b", NULL, "CN (name)");
    assert_refused("device", "a#", NULL, "CN (name)");
    assert_refused("device", "a b", NULL, "CN (name)");
    assert_refused("device", "a\nb", NULL, "CN (name)");
    assert_refused("device", ".hidden", NULL, "CN (name)");
    assert_refused("device", "d\xc3\xa9", NULL, "CN (name)");
    assert_refused("device", "d1", &(pki_kit_options){.tenant = "ac/me"}, "O (tenant)");
    assert_refused("device", "d1", &(pki_kit_options){.nul_in_name = 1}, "CN (name)");
}

static void names_are_spelled_in_bytes(void **state) {
    (void)state;
    static const int good[] = {V_ASN1_UTF8STRING, V_ASN1_PRINTABLESTRING, V_ASN1_IA5STRING};
    static const int bad[] = {V_ASN1_T61STRING, V_ASN1_BMPSTRING};
    for (size_t i = 0; i < 3; i++)
        sheaf_certificate_unref(accepted("device", "node", &(pki_kit_options){.name_type = good[i]}));
    for (size_t i = 0; i < 2; i++)
        assert_refused("device", "node", &(pki_kit_options){.name_type = bad[i]}, "CN (name)");
}

static void a_certificate_of_more_than_16_kib_is_refused(void **state) {
    (void)state;
    static char san[16385];
    memset(san, 'a', sizeof san - 1);
    memcpy(san, "DNS:", 4);
    assert_refused("device", "d1", &(pki_kit_options){.san = san}, "larger than 16 KiB");
    san[15000] = '\0';
    sheaf_certificate_unref(accepted("device", "d1", &(pki_kit_options){.san = san}));
}

static void key_is_p256_or_ed25519(void **state) {
    (void)state;
    assert_refused("device", "d1", &(pki_kit_options){.key_type = "rsa"}, "ECDSA P-256 or Ed25519");
    assert_refused("device", "d1", &(pki_kit_options){.key_type = "p384"}, "ECDSA P-256 or Ed25519");
    assert_refused("device", "d1", &(pki_kit_options){.explicit_curve = 1}, "ECDSA P-256 or Ed25519");
}

static void assert_chain_refused(const pki_kit_options *options, const char *ca, const char *why) {
    sheaf_certificate *certificate = accepted("device", "d1", options);
    sheaf_problem problem = {0};
    assert_int_equal(sheaf_certificate_check_chain(certificate, ca, &problem), SHEAF_E_CERTIFICATE);
    if (strstr(problem.text, why) == NULL) fail_msg("'%s' is not in '%s'", why, problem.text);
    assert_int_equal(ERR_peek_error(), 0);
    sheaf_certificate_unref(certificate);
}

static void chain_is_checked_for_time_and_authority(void **state) {
    (void)state;
    const char *ca = pki_kit_ca(kit);
    assert_chain_refused(&(pki_kit_options){.not_before_s = -7200, .not_after_s = -60}, ca, "certificate has expired");
    assert_chain_refused(&(pki_kit_options){.not_before_s = 60, .not_after_s = 7200}, ca,
                         "certificate is not yet valid");
    assert_chain_refused(&(pki_kit_options){.other_ca = 1}, ca, "unable to get local issuer certificate");
    assert_chain_refused(NULL, pki_kit_other_ca(kit), "unable to get local issuer certificate");
    assert_chain_refused(&(pki_kit_options){.sha1 = 1}, ca, "weak");
    sheaf_certificate *certificate = accepted("device", "d1", &(pki_kit_options){.other_ca = 1});
    assert_int_equal(sheaf_certificate_check_chain(certificate, pki_kit_other_ca(kit), NULL), SHEAF_OK);
    sheaf_certificate_unref(certificate);
}

static void missing_and_foreign_files_are_named(void **state) {
    (void)state;
    sheaf_problem problem = {0};
    sheaf_certificate *certificate = NULL;
    assert_int_equal(sheaf_certificate_from_pem_file("/nonexistent/x.pem", &certificate, &problem), SHEAF_E_NOT_FOUND);
    const pki_kit_files *files = pki_kit_issue(kit, "device", "d1", NULL);
    assert_int_equal(sheaf_certificate_from_pem_file(files->key, &certificate, &problem), SHEAF_E_CERTIFICATE);
    assert_non_null(strstr(problem.text, "holds no certificate"));
    assert_int_equal(sheaf_certificate_from_pem_file(files->der, &certificate, &problem), SHEAF_E_CERTIFICATE);
    assert_int_equal(sheaf_certificate_from_pem_file(files->certificate, &certificate, &problem), SHEAF_OK);
    assert_int_equal(sheaf_certificate_check_chain(certificate, "/nonexistent/ca.pem", &problem), SHEAF_E_NOT_FOUND);
    assert_int_equal(sheaf_certificate_check_chain(certificate, files->key, &problem), SHEAF_E_CERTIFICATE);
    assert_int_equal(ERR_peek_error(), 0);
    sheaf_certificate_unref(certificate);
}

static void a_cut_pem_file_is_malformed(void **state) {
    (void)state;
    const pki_kit_files *files = pki_kit_issue(kit, "device", "d1", NULL);
    sheaf_buffer text = {0};
    assert_int_equal(sheaf_file_read_whole(files->certificate, 65536, &text, NULL), SHEAF_OK);
    char path[256];
    snprintf(path, sizeof path, "%s/cut.pem", pki_kit_folder(kit));
    for (size_t size = 0; size + 1 < text.size; size += 7) { /* the last byte is a newline that nobody misses */
        assert_int_equal(sheaf_file_replace(path, sheaf_span_of(text.data, size), 0600, NULL), SHEAF_OK);
        sheaf_certificate *certificate = NULL;
        assert_int_equal(sheaf_certificate_from_pem_file(path, &certificate, NULL), SHEAF_E_CERTIFICATE);
    }
    free(text.data);
}

static void a_cut_second_certificate_is_malformed_too(void **state) {
    (void)state;
    const pki_kit_files *files = pki_kit_issue(kit, "device", "d1", NULL);
    sheaf_buffer text = {0};
    assert_int_equal(sheaf_file_read_whole(files->certificate, 65536, &text, NULL), SHEAF_OK);
    char path[256], twice[8192];
    snprintf(path, sizeof path, "%s/two.pem", pki_kit_folder(kit));
    assert_true(2 * text.size <= sizeof twice);
    memcpy(twice, text.data, text.size);
    memcpy(twice + text.size, text.data, text.size);
    sheaf_certificate *certificate = NULL;
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of(twice, 2 * text.size), 0600, NULL), SHEAF_OK);
    assert_int_equal(sheaf_certificate_from_pem_file(path, &certificate, NULL), SHEAF_OK);
    sheaf_certificate_unref(certificate);
    assert_int_equal(sheaf_file_replace(path, sheaf_span_of(twice, 2 * text.size - 100), 0600, NULL), SHEAF_OK);
    sheaf_problem problem = {0};
    assert_int_equal(sheaf_certificate_from_pem_file(path, &certificate, &problem), SHEAF_E_CERTIFICATE);
    assert_non_null(strstr(problem.text, "malformed PEM"));
    free(text.data);
}

static void every_prefix_and_any_extra_byte_is_refused(void **state) {
    (void)state;
    sheaf_certificate *whole = accepted("device", "d1", NULL), *part = NULL;
    sheaf_span der = sheaf_certificate_der(whole);
    for (size_t size = 0; size <= der.size + 1; size++) {
        uint8_t *copy = calloc(1, size + 1); /* its own block, so that the sanitizer sees a read beyond */
        memcpy(copy, der.data, size < der.size ? size : der.size);
        sheaf_status status = sheaf_certificate_from_der(sheaf_span_of(copy, size), &part);
        assert_int_equal(status, size == der.size ? SHEAF_OK : SHEAF_E_CERTIFICATE);
        sheaf_certificate_unref(part);
        free(copy);
    }
    assert_int_equal(sheaf_certificate_from_der(sheaf_span_of(NULL, 0), &part), SHEAF_E_CERTIFICATE);
    sheaf_certificate_unref(whole);
}

static void any_flipped_byte_is_refused_or_another_certificate_that_no_authority_signed(void **state) {
    (void)state;
    sheaf_certificate *whole = accepted("device", "d1", NULL);
    sheaf_span der = sheaf_certificate_der(whole);
    uint8_t copy[4096];
    assert_true(der.size <= sizeof copy);
    for (size_t at = 0; at < der.size; at++) {
        memcpy(copy, der.data, der.size);
        copy[at] ^= 0x41;
        sheaf_certificate *other = NULL;
        if (sheaf_certificate_from_der(sheaf_span_of(copy, der.size), &other) != SHEAF_OK) continue;
        assert_int_equal(sheaf_certificate_check_chain(other, pki_kit_ca(kit), NULL), SHEAF_E_CERTIFICATE);
        sheaf_certificate_unref(other);
    }
    sheaf_certificate_unref(whole);
}

static void a_long_form_length_is_not_exact_der(void **state) {
    (void)state;
    sheaf_certificate *whole = accepted("device", "d1", NULL), *part = NULL;
    sheaf_span der = sheaf_certificate_der(whole);
    uint8_t copy[4096] = {0x30, 0x83, 0x00}; /* one length octet more than needed: legal BER, another fingerprint */
    assert_int_equal(der.data[1], 0x82);
    memcpy(copy + 3, der.data + 2, der.size - 2);
    assert_int_equal(sheaf_certificate_from_der(sheaf_span_of(copy, der.size + 1), &part), SHEAF_E_CERTIFICATE);
    sheaf_certificate_unref(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_tenant_role_and_name_for_every_role_and_key),
        cmocka_unit_test(the_longest_name_fits_and_one_byte_more_is_refused),
        cmocka_unit_test(roles_have_one_name_each),
        cmocka_unit_test(keeps_the_der_that_it_was_read_from),
        cmocka_unit_test(a_reference_keeps_it_alive),
        cmocka_unit_test(a_shared_chain_is_kept_as_it_is_and_outlives_its_giver),
        cmocka_unit_test(a_shared_chain_must_pass_the_same_rules),
        cmocka_unit_test(usage_must_fit_the_role),
        cmocka_unit_test(subject_is_exactly_one_tenant_role_and_name),
        cmocka_unit_test(names_are_spelled_in_bytes),
        cmocka_unit_test(a_certificate_of_more_than_16_kib_is_refused),
        cmocka_unit_test(key_is_p256_or_ed25519),
        cmocka_unit_test(chain_is_checked_for_time_and_authority),
        cmocka_unit_test(missing_and_foreign_files_are_named),
        cmocka_unit_test(a_cut_pem_file_is_malformed),
        cmocka_unit_test(a_cut_second_certificate_is_malformed_too),
        cmocka_unit_test(every_prefix_and_any_extra_byte_is_refused),
        cmocka_unit_test(any_flipped_byte_is_refused_or_another_certificate_that_no_authority_signed),
        cmocka_unit_test(a_long_form_length_is_not_exact_der),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
