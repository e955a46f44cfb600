/* credentials.h - who this process is: its own certificate and private key, read again when the files change.
 *
 * Owner:   reference counted; what is taken from it holds its own reference and stays what it is.
 * Threads: any.
 * Errors:  of open: those of certificate.h and private_key.h; SHEAF_E_MISMATCH (the key is another's).
 * Rotation: the files are replaced one after the other (sheaf pki renew: the key first, what it was stays as KEY.old until
 *          the certificate is there). A pair that does not fit, or that names somebody else, is not taken over: the old
 *          pair stays in force, and an alarm is logged.
 * Not:     trust in others; that is trust.h. */
#pragma once
#include "common/certificate.h"
#include "common/signer.h"

typedef struct sheaf_credentials sheaf_credentials;

/* One certificate with its key. */
typedef struct {
    sheaf_certificate *certificate; /* with its intermediates */
    sheaf_signer *signer;
    uint64_t generation; /* grows with every pair that is taken over */
} sheaf_credentials_pair;

/* `key_path` may be a pkcs11: URI; see private_key.h. */
SHEAF_MUST_USE sheaf_status sheaf_credentials_open(const char *certificate_path, const char *key_path,
                                                   sheaf_credentials **out, sheaf_problem *problem);
sheaf_credentials *sheaf_credentials_ref(sheaf_credentials *credentials);
void sheaf_credentials_unref(sheaf_credentials *credentials); /* NULL is fine */

/* Reads the files again if they have changed; 1 when another pair is in force now. */
int sheaf_credentials_poll(sheaf_credentials *credentials);
/* New references to the pair in force; release with sheaf_credentials_pair_fini. */
void sheaf_credentials_take(sheaf_credentials *credentials, sheaf_credentials_pair *out);
void sheaf_credentials_pair_fini(sheaf_credentials_pair *pair);
uint64_t sheaf_credentials_generation(sheaf_credentials *credentials);
