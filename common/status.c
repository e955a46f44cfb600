#include "common/status.h"

const char *sheaf_status_name(sheaf_status status) {
    switch (status) {
#define CASE(symbol, number, name, text)                                                                               \
    case SHEAF_##symbol:                                                                                               \
        return name;
        SHEAF_STATUS_LIST(CASE)
#undef CASE
    }
    return "unknown_status";
}

const char *sheaf_status_text(sheaf_status status) {
    switch (status) {
#define CASE(symbol, number, name, text)                                                                               \
    case SHEAF_##symbol:                                                                                               \
        return text;
        SHEAF_STATUS_LIST(CASE)
#undef CASE
    }
    return "a status that this version does not know";
}

sheaf_status sheaf_status_from_number(long number) {
    switch (number) {
#define CASE(symbol, number, name, text)                                                                               \
    case number:                                                                                                       \
        return SHEAF_##symbol;
        SHEAF_STATUS_LIST(CASE)
#undef CASE
    default:
        return SHEAF_E_MALFORMED;
    }
}
