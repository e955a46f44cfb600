#include "common/transport/transport.h"

#include <string.h>

const sheaf_transport *sheaf_transport_for(const char *url) {
    static const sheaf_transport *const carriers[] = {&sheaf_transport_nng, &sheaf_transport_mqtt,
                                                      &sheaf_transport_inproc};
    for (size_t i = 0; i < sizeof carriers / sizeof carriers[0]; i++) {
        if (strncmp(url, carriers[i]->url_prefix, strlen(carriers[i]->url_prefix)) == 0) return carriers[i];
    }
    return NULL;
}
