#include "common/pki/enrol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/x509.h>

#include "common/digest.h"
#include "common/openssl_problem.h"
#include "common/pki/journal.h"

#define TOKEN_BYTES 32u
#define HEX_BYTES   (2 * SHEAF_DIGEST_BYTES + 1)

/* --- signing a request -------------------------------------------------------------------------------------------- */

static int is_same(const sheaf_identity *a, const sheaf_identity *b) {
    return a->role == b->role && strcmp(a->tenant, b->tenant) == 0 && strcmp(a->name, b->name) == 0 &&
           strcmp(a->region, b->region) == 0;
}

static sheaf_status refuse_other(const sheaf_identity *asked, const sheaf_identity *allowed, sheaf_problem *problem) {
    return sheaf_problem_set(
        problem, SHEAF_E_IDENTITY,
        "request refused: it asks for %s %s of %s, region '%s'; allowed is %s %s of %s, region '%s'",
        sheaf_role_name(asked->role), asked->name, asked->tenant, asked->region, sheaf_role_name(allowed->role),
        allowed->name, allowed->tenant, allowed->region);
}

static sheaf_status encode(X509 *x509, sheaf_buffer *der, sheaf_problem *problem) {
    unsigned char *text = NULL;
    int size = i2d_X509(x509, &text);
    if (size <= 0) return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot encode a certificate");
    der->data = malloc((size_t)size);
    if (der->data != NULL) {
        memcpy(der->data, text, (size_t)size);
        der->size = der->capacity = (size_t)size;
    }
    OPENSSL_free(text);
    return der->data != NULL ? SHEAF_OK : sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a certificate");
}

static sheaf_status issue(sheaf_authority *authority, const sheaf_request_content *request,
                          const sheaf_enrol_terms *terms, sheaf_issued *out, sheaf_buffer *der,
                          sheaf_problem *problem) {
    const sheaf_mint_options mint = {.role = terms->identity.role,
                                     .tenant = terms->identity.tenant,
                                     .name = terms->identity.name,
                                     .region = terms->identity.region,
                                     .alternative_names = terms->alternative_names,
                                     .days = terms->days};
    const sheaf_issuer issuer = sheaf_authority_issuer(authority);
    X509 *x509 = NULL;
    memset(out, 0, sizeof *out);
    memset(der, 0, sizeof *der);
    sheaf_status status = sheaf_mint_peer(&mint, request->key, &issuer, &x509, problem);
    if (status == SHEAF_OK) status = encode(x509, der, problem);
    if (status == SHEAF_OK) status = sheaf_authority_note(authority, x509, out, problem);
    if (status != SHEAF_OK) {
        free(der->data);
        memset(der, 0, sizeof *der);
    }
    X509_free(x509);
    return status;
}

sheaf_status sheaf_authority_sign_request(sheaf_authority *authority, sheaf_span request_der,
                                          const sheaf_enrol_terms *terms, sheaf_issued *out, sheaf_buffer *der,
                                          sheaf_problem *problem) {
    sheaf_request_content request;
    memset(der, 0, sizeof *der);
    sheaf_status status = sheaf_request_read(request_der, &request, problem);
    if (status != SHEAF_OK) return status;
    if (!is_same(&request.identity, &terms->identity))
        status = refuse_other(&request.identity, &terms->identity, problem);
    if (status == SHEAF_OK) status = issue(authority, &request, terms, out, der, problem);
    sheaf_request_fini(&request);
    return status;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

static sheaf_status hash_token(const char *token, char hex[HEX_BYTES]) {
    uint8_t digest[SHEAF_DIGEST_BYTES];
    sheaf_status status = sheaf_digest_of(sheaf_span_of(token, strlen(token)), digest);
    sheaf_hex(digest, sizeof digest, hex);
    return status;
}

/* base64url without padding (RFC 4648, section 5): it can stand in a URL, a header and a command line. */
static int print_token(const uint8_t random[TOKEN_BYTES], char token[SHEAF_TOKEN_TEXT_BYTES]) {
    unsigned char text[48];
    int size = EVP_EncodeBlock(text, random, TOKEN_BYTES);
    if (size != 44) return 0;
    for (size_t i = 0; i < SHEAF_TOKEN_TEXT_BYTES - 1; i++)
        token[i] = text[i] == '+' ? '-' : text[i] == '/' ? '_' : (char)text[i];
    token[SHEAF_TOKEN_TEXT_BYTES - 1] = '\0';
    OPENSSL_cleanse(text, sizeof text);
    return 1;
}

static sheaf_status note_token(sheaf_authority *authority, const char *hex, const sheaf_enrol_terms *terms,
                               uint32_t valid_s, sheaf_problem *problem) {
    json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "token_sha256", hex, "role",
                               sheaf_role_name(terms->identity.role), "tenant", terms->identity.tenant, "name",
                               terms->identity.name, "region", terms->identity.region, "san",
                               terms->alternative_names == NULL ? "" : terms->alternative_names, "days",
                               (json_int_t)terms->days, "until_unix_s", (json_int_t)time(NULL) + (json_int_t)valid_s);
    sheaf_status status = sheaf_journal_append(sheaf_authority_folder(authority), SHEAF_TOKEN_FILE, object, problem);
    json_decref(object);
    return status;
}

static sheaf_status check_terms(const sheaf_enrol_terms *terms, sheaf_problem *problem) {
    const sheaf_identity *identity = &terms->identity;
    if (!sheaf_name_ok(identity->tenant) || !sheaf_name_ok(identity->name) ||
        (identity->region[0] != '\0' && !sheaf_name_ok(identity->region))) {
        return sheaf_problem_set(problem, SHEAF_E_NAME,
                                 "tenant, name and region must be 1 to 63 of A-Z a-z 0-9 . _ - and not start with '.'");
    }
    if (identity->role == SHEAF_ROLE_NONE || sheaf_role_serves(identity->role) != (terms->alternative_names != NULL)) {
        return sheaf_problem_set(problem, SHEAF_E_USAGE,
                                 "a role is needed, and alternative names for aggregators only");
    }
    return SHEAF_OK;
}

sheaf_status sheaf_authority_make_token(sheaf_authority *authority, const sheaf_enrol_terms *terms, uint32_t valid_s,
                                        char token[SHEAF_TOKEN_TEXT_BYTES], sheaf_problem *problem) {
    uint8_t random[TOKEN_BYTES];
    char hex[HEX_BYTES];
    sheaf_status status = check_terms(terms, problem);
    if (status != SHEAF_OK) return status;
    if (RAND_bytes(random, sizeof random) != 1 || !print_token(random, token) || hash_token(token, hex) != SHEAF_OK)
        status = sheaf_problem_set(problem, SHEAF_E_CRYPTO, "cannot make a token");
    OPENSSL_cleanse(random, sizeof random);
    return status == SHEAF_OK ? note_token(authority, hex, terms, valid_s, problem) : status;
}

/* What tokens.jsonl says about one token: the line that made it, then perhaps the line of its use. */
typedef struct {
    const char *hex;
    int known, used;
    sheaf_identity identity;
    char alternative_names[SHEAF_ALTERNATIVES_BYTES];
    char key_digest[HEX_BYTES];
    int64_t until_unix_s, days;
} token_state;

static int take_use(token_state *state, const json_t *object) {
    state->used = 1;
    return sheaf_journal_text(object, "key_sha256", state->key_digest, sizeof state->key_digest);
}

static int take_line(void *context, const json_t *object) {
    token_state *state = context;
    char hex[HEX_BYTES], role[SHEAF_NAME_BYTES];
    if (!sheaf_journal_text(object, "token_sha256", hex, sizeof hex)) return 0;
    if (strcmp(hex, state->hex) != 0) return 1;
    if (json_object_get(object, "key_sha256") != NULL) return take_use(state, object);
    state->known = 1;
    state->until_unix_s = json_integer_value(json_object_get(object, "until_unix_s"));
    state->days = json_integer_value(json_object_get(object, "days"));
    if (!sheaf_journal_text(object, "role", role, sizeof role)) return 0;
    state->identity.role = sheaf_role_from_name(role);
    return sheaf_journal_text(object, "tenant", state->identity.tenant, SHEAF_NAME_BYTES) &&
           sheaf_journal_text(object, "name", state->identity.name, SHEAF_NAME_BYTES) &&
           sheaf_journal_text(object, "region", state->identity.region, SHEAF_NAME_BYTES) &&
           sheaf_journal_text(object, "san", state->alternative_names, sizeof state->alternative_names);
}

static sheaf_status note_use(sheaf_authority *authority, const token_state *state, const char *key_hex,
                             sheaf_problem *problem) {
    if (state->used) return SHEAF_OK; /* by the same key */
    json_t *object = json_pack("{s:s, s:s, s:I}", "token_sha256", state->hex, "key_sha256", key_hex, "at_unix_s",
                               (json_int_t)time(NULL));
    sheaf_status status = sheaf_journal_append(sheaf_authority_folder(authority), SHEAF_TOKEN_FILE, object, problem);
    json_decref(object);
    return status;
}

static sheaf_status check_token(const token_state *state, const char *key_hex, sheaf_problem *problem) {
    if (!state->known) return sheaf_problem_set(problem, SHEAF_E_TOKEN, "the token is not one of this authority's");
    if ((int64_t)time(NULL) > state->until_unix_s) {
        return sheaf_problem_set(
            problem, SHEAF_E_TOKEN,
            "the token has expired; make another: sheaf pki token (or set the clock, if it is wrong)");
    }
    if (!state->used || strcmp(state->key_digest, key_hex) == 0) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_TOKEN, "the token was used already, with another key");
}

/* The use is durable before the certificate exists: whatever dies, at most one key ever gets one for a token. */
static sheaf_status enrol(sheaf_authority *authority, const char *hex, const sheaf_request_content *request,
                          sheaf_issued *out, sheaf_buffer *der, sheaf_problem *problem) {
    token_state *state = calloc(1, sizeof *state);
    char key_hex[HEX_BYTES];
    if (state == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a token");
    state->hex = hex;
    sheaf_hex(request->key_digest, SHEAF_DIGEST_BYTES, key_hex);
    sheaf_status status =
        sheaf_journal_read(sheaf_authority_folder(authority), SHEAF_TOKEN_FILE, take_line, state, problem);
    if (status == SHEAF_OK) status = check_token(state, key_hex, problem);
    if (status == SHEAF_OK && !is_same(&request->identity, &state->identity))
        status = refuse_other(&request->identity, &state->identity, problem);
    if (status == SHEAF_OK) status = note_use(authority, state, key_hex, problem);
    if (status == SHEAF_OK) {
        const char *names = state->alternative_names[0] != '\0' ? state->alternative_names : NULL;
        const sheaf_enrol_terms terms = {state->identity, names, (uint32_t)state->days};
        status = issue(authority, request, &terms, out, der, problem);
    }
    free(state);
    return status;
}

sheaf_status sheaf_authority_enrol(sheaf_authority *authority, const char *token, sheaf_span request_der,
                                   sheaf_issued *out, sheaf_buffer *der, sheaf_problem *problem) {
    char hex[HEX_BYTES];
    sheaf_request_content request;
    memset(der, 0, sizeof *der);
    sheaf_status status = sheaf_request_read(request_der, &request, problem);
    if (status != SHEAF_OK) return status;
    status = hash_token(token, hex);
    if (status == SHEAF_OK) status = enrol(authority, hex, &request, out, der, problem);
    sheaf_request_fini(&request);
    return status;
}

/* --- by the certificate that one has ------------------------------------------------------------------------------ */

/* The trust of the caller may rest on an older revocation list than what stands here. */
static sheaf_status check_not_revoked(sheaf_authority *authority, const sheaf_certificate *presented,
                                      sheaf_problem *problem) {
    char serial[SHEAF_SERIAL_BYTES];
    sheaf_revoked *entries = NULL;
    size_t count = 0;
    sheaf_status status = sheaf_registry_serial_of(sheaf_certificate_x509(presented), serial, problem);
    if (status == SHEAF_OK)
        status = sheaf_registry_read_revoked(sheaf_authority_folder(authority), &entries, &count, problem);
    if (status != SHEAF_OK) return status;
    const sheaf_revoked *found = sheaf_registry_find_revoked(entries, count, serial);
    if (found != NULL && found->at_unix_s <= (int64_t)time(NULL))
        status = sheaf_problem_set(problem, SHEAF_E_REVOKED, "the certificate that was presented is revoked");
    free(entries);
    return status;
}

sheaf_status sheaf_authority_enrol_again(sheaf_authority *authority, const sheaf_certificate *presented, uint32_t days,
                                         sheaf_span request_der, sheaf_issued *out, sheaf_buffer *der,
                                         sheaf_problem *problem) {
    memset(der, 0, sizeof *der);
    sheaf_enrol_terms terms = {.identity = *sheaf_certificate_identity(presented), .days = days};
    char *names = calloc(1, SHEAF_ALTERNATIVES_BYTES);
    if (names == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a certificate");
    sheaf_status status = check_not_revoked(authority, presented, problem);
    if (status == SHEAF_OK) status = sheaf_mint_alternatives_of(sheaf_certificate_x509(presented), names, problem);
    if (names[0] != '\0' && sheaf_role_serves(terms.identity.role)) terms.alternative_names = names;
    if (status == SHEAF_OK) status = sheaf_authority_sign_request(authority, request_der, &terms, out, der, problem);
    free(names);
    return status;
}
