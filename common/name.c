#include "common/name.h"

#include <string.h>

int sheaf_name_ok(const char *name) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    /* ISO C only, for firmware: memchr stops at the NUL, so a short name is not read past its end. */
    const char *end = memchr(name, '\0', SHEAF_NAME_BYTES);
    return end != NULL && end != name && name[0] != '.' && strspn(name, allowed) == (size_t)(end - name);
}
