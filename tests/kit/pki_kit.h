/* pki_kit.h - certificates for tests: a folder with two authorities, and whatever good or bad certificate a test wants.
 *
 * It mints by plain OpenSSL calls, apart from common/pki, so that our issuing code is not its own witness.
 *
 * Owner:   the kit; paths live, and files stay, until pki_kit_free, which removes the folder.
 * Threads: one.
 * Units:   seconds from now.
 * Errors:  none are returned: a kit that fails ends the test program with a message. */
#pragma once

typedef struct pki_kit pki_kit;

/* All zero: an honest certificate of tenant "acme", P-256, valid from five minutes ago for a day. */
typedef struct {
    const char *tenant;   /* O; NULL: "acme" */
    const char *key_type; /* NULL or "p256", "ed25519", "p384", "rsa" */
    long not_before_s;    /* both 0: -300 and 86400 */
    long not_after_s;
    int other_ca;            /* signed by an authority that pki_kit_ca does not hold */
    const char *eku;         /* NULL: what the role needs; "": no such extension; else e.g. "serverAuth,clientAuth" */
    const char *key_usage;   /* NULL: "critical,digitalSignature"; "": no such extension */
    const char *san;         /* NULL: for aggregators "DNS:localhost,IP:127.0.0.1", else none; "": none */
    const char *second_name; /* one more CN */
    const char *country;     /* one more attribute, C */
    const char *region;      /* ST */
    int no_tenant;           /* leave O out */
    int is_authority;        /* basicConstraints CA:TRUE */
    int unknown_critical;    /* a critical extension that nobody knows */
    int duplicate_eku;       /* the extendedKeyUsage extension twice */
    int version_1;           /* no extensions, X.509 version 1 */
    int sha1;                /* signed with SHA-1 */
    int nul_in_name;         /* CN is the name, a NUL, and "x" */
    int name_type;           /* V_ASN1_... of CN; 0: UTF8String */
    int explicit_curve;      /* P-256 spelled out by its parameters */
} pki_kit_options;

typedef struct {
    const char *certificate; /* PEM */
    const char *der;         /* the same in DER */
    const char *key;         /* PEM, mode 0600 */
    const char *ca;          /* PEM: the honest authority, also when another one signed */
} pki_kit_files;

pki_kit *pki_kit_make(void);
void pki_kit_free(pki_kit *kit); /* NULL is fine */
const char *pki_kit_folder(const pki_kit *kit);
const char *pki_kit_ca(const pki_kit *kit);
const char *pki_kit_other_ca(const pki_kit *kit);
/* A revocation list of the honest authority (or the other one) that names these certificates, written to `path`. */
typedef struct {
    const pki_kit_files *revoked[4];   /* NULL ends */
    long last_update_s, next_update_s; /* from now; both 0: -300 and 86400 */
    int other_ca;
    long number;       /* the list's own, RFC 5280, 5.2.3; 0: none */
    int bad_signature; /* under the honest authority's name, signed by the other */
} pki_kit_list;
void pki_kit_write_list(const pki_kit *kit, const char *path, const pki_kit_list *list);
/* `role` is the text for OU, also a wrong one; `options` may be NULL. */
const pki_kit_files *pki_kit_issue(pki_kit *kit, const char *role, const char *name, const pki_kit_options *options);
