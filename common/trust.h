/* trust.h - whom this process believes: authorities and their revocation lists, read again while it runs.
 *
 * One object judges every peer, whatever carried its certificate: chain, validity, revocation of the certificate and of
 * every intermediate, purpose (the extended key usage that its role needs) and role. Files are read again when they
 * change; what cannot be read, or is an older list than the one in force, leaves the old content in force and raises an
 * alarm.
 *
 * Owner:   reference counted; stores hold what they need by themselves.
 * Threads: any.
 * Units:   seconds. Alarms are log lines (trust_*) and stand in sheaf_trust_report.
 * Errors:  of a check: SHEAF_E_REVOKED, SHEAF_E_CERTIFICATE, SHEAF_E_ROLE, SHEAF_E_MEMORY, SHEAF_E_CRYPTO; the text says what is
 *          wrong and what to do. Of open: those of file.h and SHEAF_E_CERTIFICATE.
 * Not:     signatures over messages; that is certificate.h. */
#pragma once
#include "common/certificate.h"

typedef struct sheaf_trust sheaf_trust;

typedef enum { SHEAF_CRL_ACCEPT, SHEAF_CRL_REFUSE } sheaf_crl_policy;

typedef struct {
    const char *ca_path;          /* a PEM file, or a folder of *.pem */
    const char *crl_path;         /* a PEM file, or a folder of *.pem and *.crl; NULL or "": nobody is revoked */
    sheaf_crl_policy crl_expired; /* what becomes of peers when a list has passed its nextUpdate */
    uint32_t crl_grace_s;         /* SHEAF_CRL_ACCEPT: after so long all the same they are refused; 0: never */
    uint32_t crl_warn_s;          /* the alarm begins so long before nextUpdate */
} sheaf_trust_options;

#define SHEAF_CRL_GRACE_S 604800u
#define SHEAF_CRL_WARN_S  86400u

typedef struct {
    uint64_t generation; /* of the content in force: another, higher number with every one that is read */
    uint32_t authorities, lists, revoked;
    int64_t next_update_unix_s; /* the earliest of the newest lists; 0 when there is none */
    int expiring, expired;      /* a list is within its warning time; past its nextUpdate */
    int unreadable;             /* the files cannot be read now, or hold an older list: the old content is in force */
    uint64_t alarms;            /* how often one was raised */
} sheaf_trust_report;

SHEAF_MUST_USE sheaf_status sheaf_trust_open(const sheaf_trust_options *options, sheaf_trust **out,
                                             sheaf_problem *problem);
sheaf_trust *sheaf_trust_ref(sheaf_trust *trust);
void sheaf_trust_unref(sheaf_trust *trust); /* NULL is fine */

/* Looks whether the files are others than those that were read, and reads them then; raises the alarms that are due. 1
 * when the content in force has changed. To be called every second or two, and when asked (SIGHUP). Cheap when nothing
 * has changed. */
int sheaf_trust_poll(sheaf_trust *trust);
void sheaf_trust_look(sheaf_trust *trust, sheaf_trust_report *out);
uint64_t sheaf_trust_generation(sheaf_trust *trust);

/* Whether this certificate, with the intermediates that it brought, is believed now. `role`: the one that the peer must
 * have, or SHEAF_ROLE_NONE for any. */
SHEAF_MUST_USE sheaf_status sheaf_trust_check(sheaf_trust *trust, const sheaf_certificate *certificate, sheaf_role role,
                                              sheaf_problem *problem);
/* The same for a peer that is connected: the work is done once for each content and certificate, so it may be asked for
 * every request. */
SHEAF_MUST_USE sheaf_status sheaf_trust_holds(sheaf_trust *trust, const sheaf_certificate *peer,
                                              sheaf_problem *problem);
/* The content in force as OpenSSL takes it, with our rules inside (CRL flags, policy of expired lists): a new reference.
 * Purpose, role and host are the caller's to check. A store never changes; after a poll that returned 1 take the next
 * one for new handshakes. */
X509_STORE *sheaf_trust_store(sheaf_trust *trust);
/* For a verification in such a store that failed: the status, and a text that says what to do. */
sheaf_status sheaf_trust_explain(X509_STORE_CTX *failed, sheaf_problem *problem);

/* Chain to the authorities in the PEM file `ca_path`, validity now, purpose by role; without revocation. */
SHEAF_MUST_USE sheaf_status sheaf_certificate_check_chain(const sheaf_certificate *certificate, const char *ca_path,
                                                          sheaf_problem *problem);
