/* bench_mqtt.h - the MQTT carrier under load, through a broker of the bench's own, and what it is compared with.
 *
 * Threads: each role runs in a process of its own; the broker is a third, and ends with the server's.
 * Errors:  as bench_load.h; without a Mosquitto the server's role says which package has it.
 * Not:     the table of cases; that is bench_transport.c. */
#pragma once
#include "server/tool/bench_load.h"

/* Starts a broker for the load's certificates and writes its url. */
void sheaf_bench_broker_start(const sheaf_bench_load *load, char url[SHEAF_BENCH_ADDRESS_BYTES]);

/* The largest resident memory that this broker has had. */
double sheaf_bench_broker_peak_kib(const sheaf_bench_load *load);

/* Payloads in sealed frames over the carrier of ours, an acknowledgement each; MiB/s. */
void sheaf_bench_mqtt_serve(const sheaf_bench_load *load, int ready, int stop);
/* The same load; the figure is the broker's largest resident memory, in KiB. */
double sheaf_bench_broker_drive(const sheaf_bench_load *load, const char *address);
/* libmosquitto by itself: each chunk sealed, digested and acknowledged, its own threads; MiB/s. */
void sheaf_bench_raw_mqtt_serve(const sheaf_bench_load *load, int ready, int stop);
double sheaf_bench_raw_mqtt_drive(const sheaf_bench_load *load, const char *address);
