/* Revocation lists as an operator's folder may hold them: bytes of PEM, or one list in DER, which is put into PEM here so that
 * mutations meet the decoder. Whatever is read says how many it holds and until when it serves, is no older than itself, and
 * never lets the revoked device in: corpus/crl has lists that the authority in crl_authority.pem has signed, and all of them
 * revoke the device of crl_device.pem. The authority's key was thrown away. */
#define _XOPEN_SOURCE 700
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/pem.h>

#include "common/trust_content.h"

#define AUTHORITY SHEAF_TESTS_DIR "/fuzz/crl_authority.pem"
#define DEVICE    SHEAF_TESTS_DIR "/fuzz/crl_device.pem"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char list_path[80];
static sheaf_certificate *device;
static sheaf_problem problem;

static void end(void) {
    (void)unlink(list_path);
    sheaf_certificate_unref(device);
}

static void begin(void) {
    const char *base = getenv("TMPDIR");
    (void)snprintf(list_path, sizeof list_path, "%.50s/sheaf-fuzz-crl-XXXXXX", base != NULL ? base : "/tmp");
    int fd = mkstemp(list_path);
    assert(fd >= 0);
    (void)close(fd);
    sheaf_status status = sheaf_certificate_from_pem_file(DEVICE, &device, &problem);
    assert(status == SHEAF_OK);
    (void)atexit(end);
}

static void write_list(const uint8_t *data, size_t size) {
    FILE *file = fopen(list_path, "wb");
    assert(file != NULL);
    if (size > 0 && data[0] != '-')
        (void)PEM_write(file, PEM_STRING_X509_CRL, "", data, (long)size);
    else
        (void)fwrite(data, 1, size, file);
    (void)fclose(file);
}

static void check_content(void) {
    const sheaf_trust_policy policy = {SHEAF_CRL_ACCEPT, 0};
    sheaf_trust_content first, second;
    if (sheaf_trust_content_read(AUTHORITY, list_path, &policy, &first, &problem) != SHEAF_OK) {
        assert(first.store == NULL && problem.text[0] != '\0');
        return;
    }
    assert(first.lists > 0 && first.authorities == 1 && first.next_update_unix_s != 0);
    sheaf_status status = sheaf_trust_content_read(AUTHORITY, list_path, &policy, &second, &problem);
    assert(status == SHEAF_OK && second.lists == first.lists && second.revoked == first.revoked);
    status = sheaf_trust_content_follow(&second, &first, &problem);
    assert(status == SHEAF_OK);
    sheaf_trust_content_fini(&first);
    sheaf_trust_content_fini(&second);
}

static void check_the_revoked(void) {
    const sheaf_trust_options options = {.ca_path = AUTHORITY, .crl_path = list_path, .crl_expired = SHEAF_CRL_ACCEPT};
    sheaf_trust *trust = NULL;
    if (sheaf_trust_open(&options, &trust, &problem) != SHEAF_OK) return;
    sheaf_status status = sheaf_trust_check(trust, device, SHEAF_ROLE_NONE, &problem);
    assert(status == SHEAF_E_REVOKED || status == SHEAF_E_CERTIFICATE);
    sheaf_trust_unref(trust);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (device == NULL) begin();
    write_list(data, size);
    check_content();
    check_the_revoked();
    return 0;
}
