/* pki_revocation.c - `sheaf pki revoke` and `sheaf pki crl`. */
#include <stdio.h>
#include <time.h>

#include "common/pki/revocation.h"
#include "server/tool/pki.h"

static sheaf_status revoke(const sheaf_pki_choices *chosen, size_t *count, sheaf_published *published,
                           sheaf_problem *problem) {
    const sheaf_revocation_choice choice = {.serial = chosen->serial,
                                            .name = chosen->path,
                                            .tenant = chosen->tenant,
                                            .role = chosen->role == NULL ? SHEAF_ROLE_NONE
                                                                         : sheaf_role_from_name(chosen->role)};
    sheaf_authority *authority = NULL;
    sheaf_status status = sheaf_authority_open(chosen->dir, &authority, problem);
    if (status == SHEAF_OK)
        status = sheaf_authority_revoke(authority, &choice, (int64_t)time(NULL),
                                        chosen->reason == NULL ? "" : chosen->reason, count, problem);
    /* Published also when nothing is new: an earlier call may have died between the two. */
    if (status == SHEAF_OK) status = sheaf_authority_publish(authority, SHEAF_CRL_DAYS, published, problem);
    sheaf_authority_close(authority);
    return status;
}

static json_t *published_to_json(const sheaf_published *published) {
    return json_pack("{s:s, s:s, s:s, s:I}", "list", published->path, "number", published->number, "next_update",
                     published->next_update, "revoked", (json_int_t)published->revoked);
}

int sheaf_pki_revoke(const sheaf_pki_choices *chosen) {
    if (chosen->role != NULL && sheaf_role_from_name(chosen->role) == SHEAF_ROLE_NONE)
        return sheaf_pki_usage("--role must be device, operator, auditor, aggregator or broker");
    sheaf_problem problem = {0};
    sheaf_published published;
    size_t count = 0;
    if (revoke(chosen, &count, &published, &problem) != SHEAF_OK) return sheaf_pki_fail("pki revoke", &problem);
    if (chosen->json) {
        json_t *object = published_to_json(&published);
        (void)json_object_set_new(object, "newly_revoked", json_integer((json_int_t)count));
        return sheaf_pki_print_json(object);
    }
    printf("%zu certificate%s newly revoked; %s, number %s, has %zu, next update %s\n", count, count == 1 ? "" : "s",
           published.path, published.number, published.revoked, published.next_update);
    return SHEAF_EXIT_OK;
}

int sheaf_pki_crl(const sheaf_pki_choices *chosen) {
    sheaf_problem problem = {0};
    sheaf_published published;
    sheaf_authority *authority = NULL;
    sheaf_status status = sheaf_authority_open(chosen->dir, &authority, &problem);
    if (status == SHEAF_OK)
        status =
            sheaf_authority_publish(authority, chosen->days != 0 ? chosen->days : SHEAF_CRL_DAYS, &published, &problem);
    sheaf_authority_close(authority);
    if (status != SHEAF_OK) return sheaf_pki_fail("pki crl", &problem);
    if (chosen->json) return sheaf_pki_print_json(published_to_json(&published));
    printf("%s, number %s, %zu revoked, next update %s\n", published.path, published.number, published.revoked,
           published.next_update);
    return SHEAF_EXIT_OK;
}
