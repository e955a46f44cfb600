#include "common/pki/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/bn.h>
#include <openssl/x509.h>

#include "common/openssl_problem.h"
#include "common/pki/journal.h"

static json_t *to_json(const sheaf_issued *entry) {
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "serial", entry->serial, "role",
                     entry->authority ? SHEAF_REGISTRY_AUTHORITY : sheaf_role_name(entry->identity.role), "tenant",
                     entry->identity.tenant, "name", entry->identity.name, "region", entry->identity.region,
                     "not_before", entry->not_before, "not_after", entry->not_after, "fingerprint", entry->fingerprint,
                     "certificate", entry->certificate, "key", entry->key);
}

static int take(const json_t *object, const char *key, char *out, size_t capacity) {
    return sheaf_journal_text(object, key, out, capacity);
}

/* Lists of older versions have no regions. */
static int take_region(const json_t *object, char out[SHEAF_NAME_BYTES]) {
    out[0] = '\0';
    return json_object_get(object, "region") == NULL || take(object, "region", out, SHEAF_NAME_BYTES);
}

static int from_json(const json_t *object, sheaf_issued *entry) {
    char role[SHEAF_NAME_BYTES];
    memset(entry, 0, sizeof *entry);
    if (!take(object, "role", role, sizeof role)) return 0;
    entry->authority = strcmp(role, SHEAF_REGISTRY_AUTHORITY) == 0;
    entry->identity.role = sheaf_role_from_name(role);
    return (entry->authority || entry->identity.role != SHEAF_ROLE_NONE) &&
           take(object, "serial", entry->serial, sizeof entry->serial) &&
           take(object, "tenant", entry->identity.tenant, sizeof entry->identity.tenant) &&
           take(object, "name", entry->identity.name, sizeof entry->identity.name) &&
           take_region(object, entry->identity.region) &&
           take(object, "not_before", entry->not_before, sizeof entry->not_before) &&
           take(object, "not_after", entry->not_after, sizeof entry->not_after) &&
           take(object, "fingerprint", entry->fingerprint, sizeof entry->fingerprint) &&
           take(object, "certificate", entry->certificate, sizeof entry->certificate) &&
           take(object, "key", entry->key, sizeof entry->key);
}

sheaf_status sheaf_registry_add(const char *folder, const sheaf_issued *entry, sheaf_problem *problem) {
    json_t *object = to_json(entry);
    sheaf_status status = sheaf_journal_append(folder, SHEAF_REGISTRY_FILE, object, problem);
    json_decref(object);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef struct {
    void *items;
    size_t count, capacity, item_bytes;
    int out_of_memory;
} growing;

static void *next_item(growing *list) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        void *larger = realloc(list->items, capacity * list->item_bytes);
        if (larger == NULL) {
            list->out_of_memory = 1;
            return NULL;
        }
        list->items = larger;
        list->capacity = capacity;
    }
    return (char *)list->items + list->count++ * list->item_bytes;
}

static sheaf_status end_list(growing *list, sheaf_status status, const char *folder, void *items, size_t *count,
                             sheaf_problem *problem) {
    if (list->out_of_memory)
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory for %zu entries", folder, list->count);
    if (status != SHEAF_OK) {
        free(list->items);
        return status;
    }
    memcpy(items, &list->items, sizeof list->items);
    *count = list->count;
    return SHEAF_OK;
}

static int take_issued(void *context, const json_t *object) {
    sheaf_issued *entry = next_item(context);
    return entry != NULL && from_json(object, entry);
}

sheaf_status sheaf_registry_read(const char *folder, sheaf_issued **entries, size_t *count, sheaf_problem *problem) {
    *entries = NULL;
    *count = 0;
    growing list = {.item_bytes = sizeof(sheaf_issued)};
    sheaf_status status = sheaf_journal_read(folder, SHEAF_REGISTRY_FILE, take_issued, &list, problem);
    return end_list(&list, status, folder, entries, count, problem);
}

/* --- revocations -------------------------------------------------------------------------------------------------- */

sheaf_status sheaf_registry_revoke(const char *folder, const sheaf_revoked *entry, sheaf_problem *problem) {
    json_t *object = json_pack("{s:s, s:I, s:s}", "serial", entry->serial, "at_unix_s", (json_int_t)entry->at_unix_s,
                               "reason", entry->reason);
    sheaf_status status = sheaf_journal_append(folder, SHEAF_REVOKED_FILE, object, problem);
    json_decref(object);
    return status;
}

static int take_revoked(void *context, const json_t *object) {
    sheaf_revoked *entry = next_item(context);
    if (entry == NULL) return 0;
    const json_t *at = json_object_get(object, "at_unix_s");
    entry->at_unix_s = json_integer_value(at);
    return json_is_integer(at) && take(object, "serial", entry->serial, sizeof entry->serial) &&
           take(object, "reason", entry->reason, sizeof entry->reason);
}

sheaf_status sheaf_registry_read_revoked(const char *folder, sheaf_revoked **entries, size_t *count,
                                         sheaf_problem *problem) {
    *entries = NULL;
    *count = 0;
    growing list = {.item_bytes = sizeof(sheaf_revoked)};
    sheaf_status status = sheaf_journal_read(folder, SHEAF_REVOKED_FILE, take_revoked, &list, problem);
    return end_list(&list, status, folder, entries, count, problem);
}

const sheaf_revoked *sheaf_registry_find_revoked(const sheaf_revoked *entries, size_t count, const char *serial) {
    const sheaf_revoked *found = NULL;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(entries[i].serial, serial) != 0) continue;
        if (found == NULL || entries[i].at_unix_s < found->at_unix_s) found = &entries[i];
    }
    return found;
}

sheaf_status sheaf_registry_serial_of(const X509 *x509, char out[SHEAF_SERIAL_BYTES], sheaf_problem *problem) {
    BIGNUM *number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(x509), NULL);
    char *text = number == NULL ? NULL : BN_bn2hex(number);
    sheaf_status status = SHEAF_OK;
    if (text == NULL || snprintf(out, SHEAF_SERIAL_BYTES, "%s", text) >= (int)SHEAF_SERIAL_BYTES) {
        status = sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot print a serial number");
    }
    OPENSSL_free(text);
    BN_free(number);
    return status;
}
