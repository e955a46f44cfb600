/* revocation.c - the revocation lists in force, and the wish that they be looked at again. */
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "server/operator/call.h"

static json_t *pem_of(X509_CRL *list) {
    char *text = NULL;
    BIO *memory = BIO_new(BIO_s_mem());
    long size = memory != NULL && PEM_write_bio_X509_CRL(memory, list) == 1 ? BIO_get_mem_data(memory, &text) : 0;
    json_t *pem = size > 0 ? json_stringn(text, (size_t)size) : NULL;
    BIO_free(memory);
    return pem;
}

/* The lists as the store holds them, so that what is shown is what counts. */
static json_t *lists_of(struct sheaf_trust *trust) {
    X509_STORE *store = sheaf_trust_store(trust);
    json_t *lists = json_array();
    STACK_OF(X509_OBJECT) *objects = store == NULL ? NULL : X509_STORE_get0_objects(store);
    for (int i = 0; i < sk_X509_OBJECT_num(objects); i++) {
        X509_CRL *list = X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(objects, i));
        if (list != NULL) (void)json_array_append_new(lists, pem_of(list));
    }
    X509_STORE_free(store);
    return lists;
}

void sheaf_get_crl(sheaf_call *call) {
    struct sheaf_trust *trust = call->operator->options.trust;
    sheaf_trust_report report;
    sheaf_trust_look(trust, &report);
    json_t *next = report.next_update_unix_s == 0 ? json_null() : json_integer(report.next_update_unix_s);
    sheaf_call_answer(call, 200,
                      json_pack("{s:I, s:I, s:I, s:I, s:o, s:b, s:b, s:b, s:I, s:o}", "generation",
                                (json_int_t)report.generation, "authorities", (json_int_t)report.authorities, "lists",
                                (json_int_t)report.lists, "revoked", (json_int_t)report.revoked, "next_update_unix_s",
                                next, "expiring", report.expiring, "expired", report.expired, "unreadable",
                                report.unreadable, "alarms", (json_int_t)report.alarms, "pem", lists_of(trust)));
}

/* The service's main thread looks, for it must also end the sessions of those who were revoked. */
void sheaf_look_at_crl(sheaf_call *call) {
    const sheaf_operator_options *options = &call->operator->options;
    options->look_again(options->context);
    sheaf_call_answer(call, 202, json_pack("{s:s}", "status", "looking"));
}
