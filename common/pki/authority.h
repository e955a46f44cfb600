/* authority.h - a certificate authority in a folder: made once, opened to issue, never replaced silently.
 *
 * Folder:  ca.pem (certificate; of an intermediate authority: its own first, then up to the root), ca.key (mode 0600),
 *          index.jsonl (what was issued, registry.h), lock; and <role>-<name>.pem, <role>-<name>.key unless the
 *          certificates go elsewhere.
 * Owner:   an open authority holds its private key and the folder's lock until it is closed.
 * Threads: one authority, one thread; processes take turns by the lock.
 * Units:   days.
 * Errors:  SHEAF_E_EXISTS (an authority or a certificate is there already), SHEAF_E_NAME, SHEAF_E_USAGE,
 * SHEAF_E_PERMISSION (a key or folder that others may change), SHEAF_E_CERTIFICATE (ca.pem), SHEAF_E_MISMATCH (ca.key
 * is another's), SHEAF_E_CRYPTO, and those of file.h. Not:     revocation; see revocation.h. */
#pragma once
#include "common/pki/mint.h"
#include "common/pki/registry.h"
#include "common/private_key.h"

#define SHEAF_AUTHORITY_CERTIFICATE "ca.pem"
#define SHEAF_AUTHORITY_KEY         "ca.key"

typedef struct sheaf_authority sheaf_authority;

typedef struct {
    const char *name; /* CN */
    uint32_t days;
    sheaf_key_type key_type;   /* SHEAF_KEY_ANY: P-256 */
    int may_have_others_below; /* a root that signs issuing authorities, and is then kept offline */
    const char *key_uri;       /* a pkcs11: URI of a key that is there; NULL: a new key in ca.key */
    sheaf_authority *parent;   /* open, of such a root: makes an issuing authority below it. NULL: a root */
} sheaf_authority_options;

typedef struct {
    char name[SHEAF_NAME_BYTES]; /* CN, as far as it fits */
    char not_after[SHEAF_RFC3339_BYTES];
    char fingerprint[2 * SHEAF_DIGEST_BYTES + 1];
    char certificate[SHEAF_PATH_BYTES];
} sheaf_authority_summary;

/* Makes the folder and in it a new root, or an issuing authority below `parent`, whose list then names it. SHEAF_E_EXISTS when either of its two files is there, whatever it holds. */
SHEAF_MUST_USE sheaf_status sheaf_authority_create(const char *folder, const sheaf_authority_options *options,
                                                   sheaf_problem *problem);
/* What the authority's certificate says; needs no private key. */
SHEAF_MUST_USE sheaf_status sheaf_authority_describe(const char *folder, sheaf_authority_summary *out,
                                                     sheaf_problem *problem);
/* Waits for the lock. */
SHEAF_MUST_USE sheaf_status sheaf_authority_open(const char *folder, sheaf_authority **out, sheaf_problem *problem);
void sheaf_authority_close(sheaf_authority *authority); /* NULL is fine */

/* For those who issue in other ways than sheaf_authority_issue; all borrowed. */
const char *sheaf_authority_folder(const sheaf_authority *authority);
sheaf_issuer sheaf_authority_issuer(const sheaf_authority *authority);
/* The issuer's certificate first, then up to the root. */
struct stack_st_X509 *sheaf_authority_chain(const sheaf_authority *authority);
/* Checks a certificate that was just signed by reading it as a peer would, fills *out, and notes it in the list. The
 * paths in *out are the caller's. */
SHEAF_MUST_USE sheaf_status sheaf_authority_note(sheaf_authority *authority, X509 *x509, sheaf_issued *out,
                                                 sheaf_problem *problem);

typedef struct {
    sheaf_role role;
    const char *tenant;
    const char *name;
    const char *region;            /* NULL or "": none */
    const char *alternative_names; /* aggregators only: "localhost,127.0.0.1" */
    uint32_t days;                 /* the certificate never outlives the authority's own */
    sheaf_key_type key_type;       /* SHEAF_KEY_ANY: P-256, or what the key that is there has */
    const char *folder;            /* where to put the files; NULL: the authority's */
    int renew;                     /* replace a certificate that is there; its key stays */
} sheaf_issue_options;

/* Makes a key, unless a key file is there, and a certificate for it. Written in this order, each durably: key, entry in
 * the list, certificate; so a crash leaves at worst a key without certificate, and the same call again finishes. */
SHEAF_MUST_USE sheaf_status sheaf_authority_issue(sheaf_authority *authority, const sheaf_issue_options *options,
                                                  sheaf_issued *out, sheaf_problem *problem);

/* Another key and certificate for a peer whose files are there (role, tenant, name and folder of the options; region and
 * alternative names as they were, unless given). The old certificate stays valid; with overlap_s > 0 it is noted as
 * revoked from then on, which the first list published after that time says. */
SHEAF_MUST_USE sheaf_status sheaf_authority_renew(sheaf_authority *authority, const sheaf_issue_options *options,
                                                  uint64_t overlap_s, sheaf_issued *out, sheaf_problem *problem);
