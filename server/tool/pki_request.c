/* pki_request.c - `sheaf pki renew`, `token`, `csr` and `sign`: next certificates, and those for keys that others hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include "common/pki/enrol.h"
#include "common/pki/peer_files.h"
#include "server/tool/pki.h"

#define TOKEN_FILE_BYTES_MAX 4096u

/* NULL, or what is wrong. Role, name, tenant and region of the command line. */
const char *sheaf_pki_identity(const sheaf_pki_choices *chosen, sheaf_identity *out) {
    const char *texts[] = {chosen->name, chosen->tenant != NULL ? chosen->tenant : "default",
                           chosen->region != NULL ? chosen->region : ""};
    char *fields[] = {out->name, out->tenant, out->region};
    if (chosen->role == NULL || chosen->name == NULL) return "--role and --name are needed";
    out->role = sheaf_role_from_name(chosen->role);
    if (out->role == SHEAF_ROLE_NONE) return "--role must be device, operator, auditor, aggregator or broker";
    if (!sheaf_role_serves(out->role) && chosen->san != NULL) return "--san is for aggregators and brokers";
    for (int i = 0; i < 3; i++) {
        /* Too long for any name: the first byte too many makes it one that is refused by its rule. */
        (void)snprintf(fields[i], SHEAF_NAME_BYTES, "%s", strlen(texts[i]) < SHEAF_NAME_BYTES ? texts[i] : "/");
    }
    return NULL;
}

/* --- renew -------------------------------------------------------------------------------------------------------- */

int sheaf_pki_renew(const sheaf_pki_choices *chosen) {
    sheaf_identity identity = {0};
    const char *wrong = sheaf_pki_identity(chosen, &identity);
    if (wrong != NULL) return sheaf_pki_usage(wrong);
    const sheaf_issue_options options = {.role = identity.role,
                                         .tenant = identity.tenant,
                                         .name = identity.name,
                                         .region = chosen->region,
                                         .alternative_names = chosen->san,
                                         .days = chosen->days != 0 ? chosen->days : 365,
                                         .key_type = chosen->key_type,
                                         .folder = chosen->out};
    sheaf_problem problem = {0};
    sheaf_issued issued;
    sheaf_authority *authority = NULL;
    sheaf_status status = sheaf_authority_open(chosen->dir, &authority, &problem);
    if (status == SHEAF_OK)
        status = sheaf_authority_renew(authority, &options, 3600ull * chosen->overlap_h, &issued, &problem);
    sheaf_authority_close(authority);
    if (status != SHEAF_OK) return sheaf_pki_fail("pki renew", &problem);
    if (chosen->json) return sheaf_pki_print_json(sheaf_pki_issued_to_json(&issued));
    printf("%s %s of %s: %s, new key %s, valid until %s\n", chosen->role, issued.identity.name, issued.identity.tenant,
           issued.certificate, issued.key, issued.not_after);
    return SHEAF_EXIT_OK;
}

/* --- token -------------------------------------------------------------------------------------------------------- */

int sheaf_pki_token(const sheaf_pki_choices *chosen) {
    sheaf_enrol_terms terms = {.days = chosen->days != 0 ? chosen->days : 365};
    const char *wrong = sheaf_pki_identity(chosen, &terms.identity);
    if (wrong != NULL) return sheaf_pki_usage(wrong);
    if (sheaf_role_serves(terms.identity.role))
        terms.alternative_names = chosen->san != NULL ? chosen->san : "localhost,127.0.0.1";
    uint32_t hours = chosen->valid_h != 0 ? chosen->valid_h : 24;
    char token[SHEAF_TOKEN_TEXT_BYTES];
    sheaf_problem problem = {0};
    sheaf_authority *authority = NULL;
    sheaf_status status = sheaf_authority_open(chosen->dir, &authority, &problem);
    if (status == SHEAF_OK) status = sheaf_authority_make_token(authority, &terms, 3600u * hours, token, &problem);
    sheaf_authority_close(authority);
    if (status != SHEAF_OK) return sheaf_pki_fail("pki token", &problem);
    int code = SHEAF_EXIT_OK;
    if (chosen->json)
        code = sheaf_pki_print_json(json_pack("{s:s, s:I}", "token", token, "valid_s", (json_int_t)3600 * hours));
    else
        printf("%s\n", token);
    sheaf_wipe(token, sizeof token);
    return code;
}

/* --- csr ---------------------------------------------------------------------------------------------------------- */

/* The key that --key names, or one in `path`: what is there, or else a new one. */
static sheaf_status get_key(const sheaf_pki_choices *chosen, const char *path, EVP_PKEY **key, sheaf_problem *problem) {
    sheaf_key_type type = SHEAF_KEY_ANY;
    int there = 0;
    if (chosen->key != NULL) return sheaf_private_key_read(chosen->key, key, &type, problem);
    sheaf_status status = sheaf_peer_files_exist(path, &there, problem);
    if (status == SHEAF_OK && there) return sheaf_private_key_read(path, key, &type, problem);
    if (status == SHEAF_OK) status = sheaf_private_key_make(chosen->key_type, key, problem);
    return status == SHEAF_OK ? sheaf_private_key_write(path, *key, problem) : status;
}

static sheaf_status make_request(const sheaf_pki_choices *chosen, const sheaf_identity *identity,
                                 sheaf_peer_files *files, char request[SHEAF_PATH_BYTES], sheaf_problem *problem) {
    const char *folder = chosen->out != NULL ? chosen->out : ".";
    EVP_PKEY *key = NULL;
    sheaf_buffer der = {0}, pem = {0};
    sheaf_status status =
        sheaf_peer_files_place(folder, identity->role, identity->tenant, identity->name, files, problem);
    if (status == SHEAF_OK) status = sheaf_file_make_folder(folder, problem);
    if (status == SHEAF_OK) status = get_key(chosen, files->key, &key, problem);
    if (status == SHEAF_OK) status = sheaf_request_make(identity, key, &der, problem);
    if (status == SHEAF_OK) status = sheaf_request_to_pem(sheaf_buffer_span(&der), &pem, problem);
    (void)snprintf(request, SHEAF_PATH_BYTES, "%.*s.csr", (int)(strlen(files->key) - 4), files->key);
    if (status == SHEAF_OK) status = sheaf_file_replace(request, sheaf_buffer_span(&pem), 0644, problem);
    EVP_PKEY_free(key);
    free(der.data);
    free(pem.data);
    return status;
}

int sheaf_pki_csr(const sheaf_pki_choices *chosen) {
    sheaf_identity identity = {0};
    sheaf_peer_files files = {0};
    char request[SHEAF_PATH_BYTES];
    sheaf_problem problem = {0};
    const char *wrong = sheaf_pki_identity(chosen, &identity);
    if (wrong != NULL) return sheaf_pki_usage(wrong);
    if (make_request(chosen, &identity, &files, request, &problem) != SHEAF_OK)
        return sheaf_pki_fail("pki csr", &problem);
    const char *key = chosen->key != NULL ? chosen->key : files.key;
    if (chosen->json) return sheaf_pki_print_json(json_pack("{s:s, s:s}", "request", request, "key", key));
    printf("request %s, key %s\n", request, key);
    return SHEAF_EXIT_OK;
}

/* --- sign --------------------------------------------------------------------------------------------------------- */

sheaf_status sheaf_pki_read_token(const char *path, sheaf_buffer *out, sheaf_problem *problem) {
    if (strcmp(path, "-") != 0) {
        sheaf_status status = sheaf_file_read_whole(path, TOKEN_FILE_BYTES_MAX, out, problem);
        if (status != SHEAF_OK) return status;
    } else {
        out->capacity = TOKEN_FILE_BYTES_MAX + 1;
        out->data = calloc(1, out->capacity);
        if (out->data == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a token");
        out->size = fread(out->data, 1, TOKEN_FILE_BYTES_MAX, stdin);
    }
    out->data[strcspn((char *)out->data, "\r\n")] = '\0';
    return SHEAF_OK;
}

static sheaf_status put_certificate(const sheaf_pki_choices *chosen, sheaf_authority *authority, sheaf_span der,
                                    sheaf_issued *issued, sheaf_problem *problem) {
    const char *folder = chosen->out != NULL ? chosen->out : ".";
    sheaf_peer_files files;
    const unsigned char *at = der.data;
    X509 *x509 = d2i_X509(NULL, &at, (long)der.size);
    sheaf_status status = sheaf_peer_files_place(folder, issued->identity.role, issued->identity.tenant,
                                                 issued->identity.name, &files, problem);
    if (status == SHEAF_OK) status = sheaf_file_make_folder(folder, problem);
    if (status == SHEAF_OK)
        status = sheaf_peer_files_write(files.certificate, x509, sheaf_authority_chain(authority), problem);
    if (status == SHEAF_OK) memcpy(issued->certificate, files.certificate, sizeof issued->certificate);
    X509_free(x509);
    return status;
}

static sheaf_status sign(const sheaf_pki_choices *chosen, const char *token, sheaf_issued *issued,
                         sheaf_problem *problem) {
    sheaf_authority *authority = NULL;
    sheaf_buffer pem = {0}, request = {0}, der = {0};
    sheaf_status status = sheaf_file_read_whole(chosen->path, 4 * SHEAF_REQUEST_BYTES_MAX, &pem, problem);
    if (status == SHEAF_OK) status = sheaf_request_from_pem(sheaf_buffer_span(&pem), &request, problem);
    if (status == SHEAF_OK) status = sheaf_authority_open(chosen->dir, &authority, problem);
    if (status == SHEAF_OK)
        status = sheaf_authority_enrol(authority, token, sheaf_buffer_span(&request), issued, &der, problem);
    if (status == SHEAF_OK) status = put_certificate(chosen, authority, sheaf_buffer_span(&der), issued, problem);
    sheaf_authority_close(authority);
    free(pem.data);
    free(request.data);
    free(der.data);
    return status;
}

int sheaf_pki_sign(const sheaf_pki_choices *chosen) {
    if (chosen->token_file == NULL) return sheaf_pki_usage("sign needs --token-file");
    sheaf_problem problem = {0};
    sheaf_buffer token = {0};
    sheaf_issued issued;
    sheaf_status status = sheaf_pki_read_token(chosen->token_file, &token, &problem);
    if (status == SHEAF_OK) status = sign(chosen, (char *)token.data, &issued, &problem);
    sheaf_wipe(token.data, token.size);
    free(token.data);
    if (status != SHEAF_OK) return sheaf_pki_fail("pki sign", &problem);
    if (chosen->json) return sheaf_pki_print_json(sheaf_pki_issued_to_json(&issued));
    printf("%s %s of %s: %s, valid until %s\n", sheaf_role_name(issued.identity.role), issued.identity.name,
           issued.identity.tenant, issued.certificate, issued.not_after);
    return SHEAF_EXIT_OK;
}
