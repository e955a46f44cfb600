/* nng_ends.h - the two ends of the NNG carrier, for the table in nng.c; transport.h says what each function does. */
#pragma once
#include "common/transport/transport.h"

SHEAF_MUST_USE sheaf_status sheaf_nng_open_server(const sheaf_transport_options *options,
                                                  sheaf_request_handler on_request, sheaf_reject_handler on_reject,
                                                  void *context, sheaf_server **out, sheaf_problem *problem);
const char *sheaf_nng_server_url(const sheaf_server *server);
void sheaf_nng_stop_server(sheaf_server *server);
void sheaf_nng_reply(sheaf_exchange *exchange, sheaf_span frame);
unsigned sheaf_nng_expel(sheaf_server *server, int (*unwanted)(void *context, const sheaf_certificate *peer),
                         void *context);
void sheaf_nng_look(sheaf_server *server, sheaf_server_report *out);

SHEAF_MUST_USE sheaf_status sheaf_nng_open_link(const sheaf_transport_options *options, sheaf_link **out,
                                                sheaf_problem *problem);
SHEAF_MUST_USE sheaf_status sheaf_nng_send(sheaf_link *link, sheaf_span frame);
SHEAF_MUST_USE sheaf_status sheaf_nng_receive(sheaf_link *link, sheaf_buffer *out, sheaf_problem *problem);
void sheaf_nng_cancel(sheaf_link *link);
sheaf_certificate *sheaf_nng_peer(sheaf_link *link);
uint64_t sheaf_nng_moved(sheaf_link *link);
void sheaf_nng_close(sheaf_link *link);
