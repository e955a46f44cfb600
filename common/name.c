#include "common/name.h"

#include <string.h>

int sheaf_name_ok(const char *name) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t size = strnlen(name, SHEAF_NAME_BYTES);
    return size > 0 && size < SHEAF_NAME_BYTES && name[0] != '.' && strspn(name, allowed) == size;
}
