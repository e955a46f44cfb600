/* enrol.h - certificates for keys that others hold: a request comes in, a certificate goes out, if who asks may have it.
 *
 * Two ways to be allowed: a one-time token that an operator made (first certificate), or the certificate that one has
 * (the next one of the same name). Of a token only its SHA-256 is stored, in tokens.jsonl of the authority's folder. Its
 * use is on the disk before the certificate exists; the same token with the same key may ask again while it is valid, so
 * that a lost answer or a lost machine costs nothing, and any other key is refused.
 *
 * Owner:   the caller frees *der.
 * Threads: one authority, one thread; the authority's lock makes processes take turns.
 * Units:   seconds, days.
 * Errors:  SHEAF_E_TOKEN (unknown, expired, or used with another key), SHEAF_E_IDENTITY (the request's subject is not the one
 *          allowed), those of request.h, authority.h and file.h.
 * Not:     transport; server/operator speaks EST. */
#pragma once
#include "common/pki/authority.h"
#include "common/pki/request.h"

#define SHEAF_TOKEN_FILE       "tokens.jsonl"
#define SHEAF_TOKEN_TEXT_BYTES 44u /* 43 characters of base64url (256 random bits), with the NUL */

typedef struct {
    sheaf_identity identity;       /* exactly what the certificate will say */
    const char *alternative_names; /* aggregators only */
    uint32_t days;
} sheaf_enrol_terms;

/* Checks form, self-signature and key, and that the request's subject is the identity of the terms; then issues: entry
 * in the list first. *der: the certificate, malloc'd; sheaf_authority_chain has what goes with it. */
SHEAF_MUST_USE sheaf_status sheaf_authority_sign_request(sheaf_authority *authority, sheaf_span request_der,
                                                         const sheaf_enrol_terms *terms, sheaf_issued *out,
                                                         sheaf_buffer *der, sheaf_problem *problem);

/* A new token for one certificate by these terms, valid for `valid_s`. The text is shown once and stored nowhere. */
SHEAF_MUST_USE sheaf_status sheaf_authority_make_token(sheaf_authority *authority, const sheaf_enrol_terms *terms,
                                                       uint32_t valid_s, char token[SHEAF_TOKEN_TEXT_BYTES],
                                                       sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_authority_enrol(sheaf_authority *authority, const char *token, sheaf_span request_der,
                                                  sheaf_issued *out, sheaf_buffer *der, sheaf_problem *problem);
/* For who presents a certificate that is believed (the caller has checked it with sheaf_trust_check) and still listed as
 * good here: a certificate of the same identity and alternative names, valid for `days`. */
SHEAF_MUST_USE sheaf_status sheaf_authority_enrol_again(sheaf_authority *authority, const sheaf_certificate *presented,
                                                        uint32_t days, sheaf_span request_der, sheaf_issued *out,
                                                        sheaf_buffer *der, sheaf_problem *problem);
