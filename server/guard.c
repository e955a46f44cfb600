#include "server/guard.h"

#include "common/log.h"

#define SECOND_NS  1000000000ull
#define LOOK_NS    SECOND_NS
#define TELL_NS    (2 * SECOND_NS)  /* who asks something meanwhile is told why by name, before the connection goes */
#define SETTLE_NS  SECOND_NS        /* jobs sign their rounds again before devices come back for them */
#define REVISIT_NS (60 * SECOND_NS) /* certificates also expire while their connection is open */

static sheaf_status check_role(const char *path, sheaf_problem *problem) {
    sheaf_certificate *own = NULL;
    sheaf_status status = sheaf_certificate_from_pem_file(path, &own, problem);
    if (status != SHEAF_OK) return status;
    sheaf_role role = sheaf_certificate_identity(own)->role;
    sheaf_certificate_unref(own);
    if (role == SHEAF_ROLE_AGGREGATOR) return SHEAF_OK;
    return sheaf_problem_set(
        problem, SHEAF_E_ROLE,
        "%s: has the role %s; expected an aggregator's certificate (sheaf pki issue --role aggregator)", path,
        sheaf_role_name(role));
}

sheaf_status sheaf_guard_open(const sheafd_config *config, sheaf_guard *out, sheaf_problem *problem) {
    const sheaf_trust_options trust = {.ca_path = config->server.ca,
                                       .crl_path = config->server.crl,
                                       .crl_expired = (sheaf_crl_policy)config->server.crl_expired,
                                       .crl_grace_s = config->server.crl_grace_s,
                                       .crl_warn_s = config->server.crl_warn_s};
    memset(out, 0, sizeof *out);
    out->expel_ns = sheaf_now_ns() + REVISIT_NS;
    out->renewed_ns = SHEAF_NEVER_NS;
    sheaf_status status = check_role(config->server.certificate, problem);
    if (status == SHEAF_OK)
        status = sheaf_credentials_open(config->server.certificate, config->server.key, &out->credentials, problem);
    if (status == SHEAF_OK) status = sheaf_trust_open(&trust, &out->trust, problem);
    if (status != SHEAF_OK) return status;
    (void)sheaf_trust_poll(out->trust); /* says at once when a list is about to expire */
    return SHEAF_OK;
}

void sheaf_guard_close(sheaf_guard *guard) {
    sheaf_trust_unref(guard->trust);
    sheaf_credentials_unref(guard->credentials);
    memset(guard, 0, sizeof *guard);
}

static int no_longer_holds(void *context, const sheaf_certificate *peer) {
    sheaf_guard *guard = context;
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_status status = sheaf_trust_holds(guard->trust, peer, &problem);
    /* For want of memory nobody is sent away. */
    if (status == SHEAF_OK || status >= 200) return 0;
    const sheaf_identity *identity = sheaf_certificate_identity(peer);
    sheaf_log(SHEAF_LOG_WARNING, "session_ended", "tenant=%s client=%s reason=%s detail=\"%s\"", identity->tenant,
              identity->name, sheaf_status_name(status), problem.text);
    return 1;
}

static int is_anybody(void *context, const sheaf_certificate *peer) {
    (void)context, (void)peer;
    return 1;
}

/* They may have the key of a cast under way. */
static void renew_casts(sheaf_job **jobs, size_t job_count) {
    for (size_t i = 0; i < job_count; i++) sheaf_job_renew_casts(jobs[i]);
}

static void do_what_is_due(sheaf_guard *guard, sheaf_ends *ends, sheaf_job **jobs, size_t job_count, uint64_t now_ns) {
    if (now_ns >= guard->renewed_ns) {
        /* They judge what we sign by the certificate that their connection showed: so all come back for the new one. */
        unsigned count = sheaf_ends_expel(ends, is_anybody, NULL);
        sheaf_log(SHEAF_LOG_INFO, "sessions_renewed", "count=%u", count);
        guard->renewed_ns = SHEAF_NEVER_NS;
    }
    if (now_ns < guard->expel_ns) return;
    if (sheaf_ends_expel(ends, no_longer_holds, guard) > 0) renew_casts(jobs, job_count);
    guard->expel_ns = now_ns + REVISIT_NS;
}

void sheaf_guard_watch(sheaf_guard *guard, sheaf_ends *ends, sheaf_job **jobs, size_t job_count, int now) {
    uint64_t now_ns = sheaf_now_ns();
    if (!now && now_ns < guard->look_ns) return;
    guard->look_ns = now_ns + LOOK_NS;
    if (sheaf_trust_poll(guard->trust)) guard->expel_ns = now_ns + TELL_NS;
    if (sheaf_credentials_poll(guard->credentials)) {
        for (size_t i = 0; i < job_count; i++) sheaf_job_wake(jobs[i]);
        guard->renewed_ns = now_ns + SETTLE_NS;
    }
    do_what_is_due(guard, ends, jobs, job_count, now_ns);
}
