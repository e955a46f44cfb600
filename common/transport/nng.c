#include "common/transport/nng_ends.h"

const sheaf_transport sheaf_transport_nng = {
    .name = "nng",
    .url_prefix = "tls+tcp://",
    .open_server = sheaf_nng_open_server,
    .server_url = sheaf_nng_server_url,
    .stop_server = sheaf_nng_stop_server,
    .reply = sheaf_nng_reply,
    .expel = sheaf_nng_expel,
    .look = sheaf_nng_look,
    .open_link = sheaf_nng_open_link,
    .send = sheaf_nng_send,
    .receive = sheaf_nng_receive,
    .cancel = sheaf_nng_cancel,
    .peer = sheaf_nng_peer,
    .moved = sheaf_nng_moved,
    .close = sheaf_nng_close,
};
