#include "common/trust.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include "common/log.h"
#include "common/openssl_problem.h"
#include "common/trust_content.h"

#define ALARM_PERIOD_S 3600 /* an alarm that stands is raised again so often */

/* Numbers are never used twice in a process, so a certificate's mark cannot be another trust's. */
static atomic_ullong generations = 1;

struct sheaf_trust {
    atomic_uint references;
    char *ca_path, *crl_path; /* crl_path: NULL when nobody is revoked */
    sheaf_trust_policy policy;
    uint32_t crl_warn_s;
    pthread_mutex_t lock; /* guards the rest */
    sheaf_trust_content content;
    atomic_ullong generation; /* read without the lock too */
    uint64_t stamp, alarms;
    int unreadable, expiring, expired;
    int64_t alarm_again_s;
};

/* --- open and close ----------------------------------------------------------------------------------------------- */

static sheaf_status read_content(sheaf_trust *trust, sheaf_trust_content *out, sheaf_problem *problem) {
    return sheaf_trust_content_read(trust->ca_path, trust->crl_path, &trust->policy, out, problem);
}

sheaf_status sheaf_trust_open(const sheaf_trust_options *options, sheaf_trust **out, sheaf_problem *problem) {
    *out = NULL;
    int has_lists = options->crl_path != NULL && options->crl_path[0] != '\0';
    sheaf_trust *trust = calloc(1, sizeof *trust);
    if (trust == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the authorities");
    atomic_init(&trust->references, 1);
    pthread_mutex_init(&trust->lock, NULL);
    trust->policy = (sheaf_trust_policy){options->crl_expired, options->crl_grace_s};
    trust->crl_warn_s = options->crl_warn_s;
    atomic_init(&trust->generation, atomic_fetch_add(&generations, 1));
    trust->ca_path = strdup(options->ca_path);
    if (has_lists) trust->crl_path = strdup(options->crl_path);
    sheaf_status status = trust->ca_path != NULL && (!has_lists || trust->crl_path != NULL)
                              ? SHEAF_OK
                              : sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for the authorities");
    /* The stamp first: a change between the two is read at the next poll. */
    if (status == SHEAF_OK) trust->stamp = sheaf_trust_content_stamp(trust->ca_path, trust->crl_path);
    if (status == SHEAF_OK) status = read_content(trust, &trust->content, problem);
    if (status != SHEAF_OK) {
        sheaf_trust_unref(trust);
        return status;
    }
    *out = trust;
    return SHEAF_OK;
}

sheaf_trust *sheaf_trust_ref(sheaf_trust *trust) {
    atomic_fetch_add_explicit(&trust->references, 1, memory_order_relaxed);
    return trust;
}

void sheaf_trust_unref(sheaf_trust *trust) {
    if (trust == NULL || atomic_fetch_sub_explicit(&trust->references, 1, memory_order_acq_rel) != 1) return;
    sheaf_trust_content_fini(&trust->content);
    pthread_mutex_destroy(&trust->lock);
    free(trust->ca_path);
    free(trust->crl_path);
    free(trust);
}

/* --- reading again, and alarms ------------------------------------------------------------------------------------ */

static void format_unix(int64_t seconds, char out[32]) {
    time_t when = (time_t)seconds;
    struct tm parts;
    if (gmtime_r(&when, &parts) == NULL || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        (void)snprintf(out, 32, "an unknown time");
}

static void raise_untaken(sheaf_trust *trust, const sheaf_problem *problem) {
    trust->alarms++;
    if (problem->status == SHEAF_E_CONFLICT)
        sheaf_log(
            SHEAF_LOG_ERROR, "trust_list_older",
            "reason=\"%s\" advice=\"what was read before stays in force; find out who put the old list back, and "
            "publish the newest: sheaf pki crl; if the authority counts anew after a loss, restart this process\"",
            problem->text);
    else
        sheaf_log(SHEAF_LOG_ERROR, "trust_unreadable",
                  "reason=\"%s\" advice=\"what was read before stays in force; replace the file\"", problem->text);
}

static int replace_content(sheaf_trust *trust, uint64_t stamp) {
    sheaf_trust_content fresh;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = read_content(trust, &fresh, &problem);
    if (status == SHEAF_OK) status = sheaf_trust_content_follow(&fresh, &trust->content, &problem);
    if (status != SHEAF_OK) {
        if (!trust->unreadable || trust->stamp != stamp) raise_untaken(trust, &problem);
        sheaf_trust_content_fini(&fresh);
        trust->unreadable = 1;
        trust->stamp = stamp;
        return 0;
    }
    sheaf_trust_content_fini(&trust->content);
    trust->content = fresh;
    trust->stamp = stamp;
    trust->unreadable = 0;
    atomic_store(&trust->generation, atomic_fetch_add(&generations, 1));
    trust->alarm_again_s = 0;
    sheaf_log(SHEAF_LOG_INFO, "trust_reloaded", "generation=%llu authorities=%u lists=%u revoked=%u",
              (unsigned long long)atomic_load(&trust->generation), fresh.authorities, fresh.lists, fresh.revoked);
    return 1;
}

static void watch_expiry(sheaf_trust *trust) {
    int64_t now = (int64_t)time(NULL), next = trust->content.next_update_unix_s;
    int expired = next != 0 && now > next, expiring = next != 0 && now > next - (int64_t)trust->crl_warn_s;
    int changed = expired != trust->expired || expiring != trust->expiring;
    trust->expired = expired;
    trust->expiring = expiring;
    if (!expiring || (!changed && now < trust->alarm_again_s)) return;
    char when[32];
    format_unix(next, when);
    trust->alarm_again_s = now + ALARM_PERIOD_S;
    trust->alarms++;
    uint32_t grace_s = trust->policy.crl_grace_s;
    int refused = trust->policy.crl_expired == SHEAF_CRL_REFUSE || (grace_s > 0 && now > next + (int64_t)grace_s);
    const char *fate = refused ? "refused" : "accepted for the grace";
    if (expired)
        sheaf_log(SHEAF_LOG_ERROR, "trust_list_expired",
                  "next_update=%s peers=\"%s\" grace_s=%u advice=\"publish a new one: sheaf pki crl\"", when, fate,
                  trust->policy.crl_grace_s);
    else
        sheaf_log(SHEAF_LOG_WARNING, "trust_list_expires",
                  "next_update=%s peers=\"%s\" advice=\"publish a new one in time: sheaf pki crl\"", when, fate);
}

int sheaf_trust_poll(sheaf_trust *trust) {
    int changed = 0;
    pthread_mutex_lock(&trust->lock);
    uint64_t stamp = sheaf_trust_content_stamp(trust->ca_path, trust->crl_path);
    if (stamp != trust->stamp || trust->unreadable) changed = replace_content(trust, stamp);
    watch_expiry(trust);
    pthread_mutex_unlock(&trust->lock);
    return changed;
}

void sheaf_trust_look(sheaf_trust *trust, sheaf_trust_report *out) {
    pthread_mutex_lock(&trust->lock);
    *out = (sheaf_trust_report){.generation = atomic_load(&trust->generation),
                                .authorities = trust->content.authorities,
                                .lists = trust->content.lists,
                                .revoked = trust->content.revoked,
                                .next_update_unix_s = trust->content.next_update_unix_s,
                                .expiring = trust->expiring,
                                .expired = trust->expired,
                                .unreadable = trust->unreadable,
                                .alarms = trust->alarms};
    pthread_mutex_unlock(&trust->lock);
}

uint64_t sheaf_trust_generation(sheaf_trust *trust) { return atomic_load(&trust->generation); }

X509_STORE *sheaf_trust_store(sheaf_trust *trust) {
    pthread_mutex_lock(&trust->lock);
    X509_STORE *store = trust->content.store;
    (void)X509_STORE_up_ref(store);
    pthread_mutex_unlock(&trust->lock);
    return store;
}

/* --- judging ------------------------------------------------------------------------------------------------------ */

static void format_asn1(const ASN1_TIME *time, char out[32]) {
    struct tm parts;
    if (time == NULL || ASN1_TIME_to_tm(time, &parts) != 1 || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        (void)snprintf(out, 32, "an unknown time");
}

/* Who is wrong, the certificate or this machine's clock, cannot be known here: so both times are told. */
static sheaf_status explain_time(int error, int depth, const X509 *culprit, sheaf_problem *problem) {
    char from[32], until[32], now[32];
    const char *whose = depth == 0 ? "it" : "an authority above it";
    format_asn1(culprit == NULL ? NULL : X509_get0_notBefore(culprit), from);
    format_asn1(culprit == NULL ? NULL : X509_get0_notAfter(culprit), until);
    format_unix((int64_t)time(NULL), now);
    if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
        return sheaf_problem_set(
            problem, SHEAF_E_CERTIFICATE,
            "certificate has expired: %s was valid until %s, and the clock here says %s; renew it, "
            "or set the clock that is wrong",
            whose, until, now);
    }
    return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE,
                             "certificate is not yet valid: %s is valid from %s, and the clock here says %s; set the "
                             "clock that is wrong",
                             whose, from, now);
}

static sheaf_status explain_list(int error, const X509_CRL *list, sheaf_problem *problem) {
    char until[32], now[32];
    if (error == X509_V_ERR_UNABLE_TO_GET_CRL) {
        return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE,
                                 "no revocation list of its authority is here; every authority of the chain needs one "
                                 "(sheaf pki crl)");
    }
    format_asn1(list == NULL ? NULL : X509_CRL_get0_nextUpdate(list), until);
    format_unix((int64_t)time(NULL), now);
    return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE,
                             "the revocation list of its authority expired: it was valid until %s, and the clock here "
                             "says %s; publish a new one (sheaf pki crl)",
                             until, now);
}

sheaf_status sheaf_trust_explain(X509_STORE_CTX *failed, sheaf_problem *problem) {
    int error = X509_STORE_CTX_get_error(failed), depth = X509_STORE_CTX_get_error_depth(failed);
    switch (error) {
    case X509_V_ERR_OUT_OF_MEM: /* OpenSSL could not finish, rather than found something wrong */
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory to check a certificate");
    case X509_V_ERR_CERT_REVOKED:
        return sheaf_problem_set(problem, SHEAF_E_REVOKED, "%s revoked; enrol again for a new one",
                                 depth == 0 ? "it is" : "an authority above it is");
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return explain_time(error, depth, X509_STORE_CTX_get_current_cert(failed), problem);
    case X509_V_ERR_UNABLE_TO_GET_CRL:
    case X509_V_ERR_CRL_HAS_EXPIRED:
        return explain_list(error, X509_STORE_CTX_get0_current_crl(failed), problem);
    default:
        return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE, "%s (at depth %d)", X509_verify_cert_error_string(error),
                                 depth);
    }
}

static sheaf_status verify_in(X509_STORE *store, X509_STORE_CTX *context, const sheaf_certificate *certificate,
                              sheaf_problem *problem) {
    const sheaf_identity *identity = sheaf_certificate_identity(certificate);
    int purpose = sheaf_role_serves(identity->role) ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT;
    if (X509_STORE_CTX_init(context, store, sheaf_certificate_x509(certificate),
                            sheaf_certificate_intermediates(certificate)) != 1 ||
        X509_STORE_CTX_set_purpose(context, purpose) != 1) {
        return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot prepare the check of a certificate");
    }
    if (X509_verify_cert(context) == 1) return SHEAF_OK;
    sheaf_status status = sheaf_trust_explain(context, problem);
    if (status != SHEAF_E_MEMORY)
        (void)sheaf_problem_prefix(problem, "certificate refused: %s of %s", sheaf_role_name(identity->role),
                                   identity->name);
    return status;
}

static sheaf_status check_in(X509_STORE *store, const sheaf_certificate *certificate, sheaf_problem *problem) {
    sheaf_problem unseen;
    if (problem == NULL) problem = &unseen;
    (void)ERR_set_mark();
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    sheaf_status status = context != NULL
                              ? verify_in(store, context, certificate, problem)
                              : sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory to check a certificate");
    X509_STORE_CTX_free(context);
    (void)ERR_pop_to_mark();
    return status;
}

sheaf_status sheaf_trust_check(sheaf_trust *trust, const sheaf_certificate *certificate, sheaf_role role,
                               sheaf_problem *problem) {
    X509_STORE *store = sheaf_trust_store(trust);
    sheaf_status status = check_in(store, certificate, problem);
    X509_STORE_free(store);
    sheaf_role found = sheaf_certificate_identity(certificate)->role;
    if (status != SHEAF_OK || role == SHEAF_ROLE_NONE || role == found) return status;
    return sheaf_problem_set(problem, SHEAF_E_ROLE, "certificate refused: its role is %s, and %s is needed here",
                             sheaf_role_name(found), sheaf_role_name(role));
}

sheaf_status sheaf_trust_holds(sheaf_trust *trust, const sheaf_certificate *peer, sheaf_problem *problem) {
    uint64_t generation = sheaf_trust_generation(trust); /* before the check: a newer content is looked at again */
    int is_known = sheaf_certificate_mark(peer) == generation;
    if (is_known && (int64_t)time(NULL) <= sheaf_certificate_not_after(peer)) return SHEAF_OK;
    sheaf_status status = sheaf_trust_check(trust, peer, SHEAF_ROLE_NONE, problem);
    if (status == SHEAF_OK) sheaf_certificate_set_mark(peer, generation);
    return status;
}

sheaf_status sheaf_certificate_check_chain(const sheaf_certificate *certificate, const char *ca_path,
                                           sheaf_problem *problem) {
    const sheaf_trust_policy policy = {SHEAF_CRL_ACCEPT, 0};
    sheaf_trust_content content;
    sheaf_status status = sheaf_trust_content_read(ca_path, NULL, &policy, &content, problem);
    if (status == SHEAF_OK) status = check_in(content.store, certificate, problem);
    sheaf_trust_content_fini(&content);
    return status;
}
