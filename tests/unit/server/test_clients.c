/* The table of devices that were seen: by tenant and name, in order of arrival, in pages. */
#include "tests/cmocka.h"

#include <stdio.h>

#include "server/clients.h"
#include "tests/kit/pki_kit.h"

static sheaf_certificate *certificate_of(pki_kit *pki, const char *name, const char *tenant) {
    const pki_kit_options options = {.tenant = tenant};
    sheaf_certificate *certificate = NULL;
    const pki_kit_files *files = pki_kit_issue(pki, "device", name, &options);
    assert_int_equal(sheaf_certificate_from_pem_file(files->certificate, &certificate, NULL), SHEAF_OK);
    return certificate;
}

static void devices_are_kept_apart_by_tenant_and_name(void **state) {
    (void)state;
    pki_kit *pki = pki_kit_make();
    sheaf_clients *clients = NULL;
    sheaf_client_row row;
    assert_int_equal(sheaf_clients_make(&clients), SHEAF_OK);
    sheaf_certificate *a = certificate_of(pki, "d1", "acme"), *b = certificate_of(pki, "d1", "other");
    sheaf_clients_saw(clients, a, "nng", "job");
    sheaf_clients_saw(clients, b, "mqtt", "");
    sheaf_clients_saw(clients, a, "mqtt", "job");
    sheaf_clients_accepted(clients, sheaf_certificate_identity(a), 7);
    sheaf_clients_refused(clients, sheaf_certificate_identity(b), SHEAF_E_JOB);
    assert_int_equal(sheaf_clients_count(clients), 2);
    assert_int_equal(sheaf_clients_find(clients, "acme", "d1", &row), 1);
    assert_string_equal(row.carrier, "mqtt");
    assert_string_equal(row.job, "job");
    assert_int_equal(row.accepted, 1);
    assert_int_equal(row.last_round, 7);
    assert_int_equal(row.refused, 0);
    assert_true(row.not_after_unix_s > 0 && row.last_seen_unix_ms >= row.first_seen_unix_ms);
    assert_int_equal(sheaf_clients_find(clients, "other", "d1", &row), 1);
    assert_int_equal(row.refused, 1);
    assert_int_equal(row.last_refusal, SHEAF_E_JOB);
    assert_int_equal(sheaf_clients_find(clients, "acme", "d2", &row), 0);
    sheaf_certificate_unref(a);
    sheaf_certificate_unref(b);
    sheaf_clients_free(clients);
    pki_kit_free(pki);
}

static void pages_cover_all_once(void **state) {
    (void)state;
    enum { DEVICES = 150, PAGE = 40 }; /* more than the first table holds */
    pki_kit *pki = pki_kit_make();
    sheaf_clients *clients = NULL;
    sheaf_client_row rows[PAGE];
    uint64_t total = 0;
    size_t seen = 0;
    assert_int_equal(sheaf_clients_make(&clients), SHEAF_OK);
    for (int i = 0; i < DEVICES; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "d%03d", i);
        sheaf_certificate *certificate = certificate_of(pki, name, i % 3 == 0 ? "other" : "acme");
        sheaf_clients_saw(clients, certificate, "nng", "job");
        sheaf_certificate_unref(certificate);
    }
    for (size_t count = 1; count > 0; seen += count) {
        count = sheaf_clients_list(clients, "acme", seen, rows, PAGE, &total);
        for (size_t i = 0; i < count; i++) {
            char name[16];
            (void)snprintf(name, sizeof name, "d%03zu", (seen + i) / 2 * 3 + (seen + i) % 2 + 1);
            assert_string_equal(rows[i].identity.name, name);
        }
    }
    assert_int_equal(seen, 100);
    assert_int_equal(total, 100);
    assert_int_equal(sheaf_clients_list(clients, NULL, 149, rows, PAGE, &total), 1);
    assert_int_equal(total, DEVICES);
    sheaf_clients_free(clients);
    pki_kit_free(pki);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_kept_apart_by_tenant_and_name),
        cmocka_unit_test(pages_cover_all_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
