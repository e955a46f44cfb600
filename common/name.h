/* name.h - which names of tenants, jobs, clients and tensors are allowed, and how long they may be.
 *
 * Threads: any; no state. Not: certificates' other fields. */
#pragma once
#include <stddef.h>

#define SHEAF_NAME_BYTES 64u /* tenant, job, client: with the NUL */

/* 1 if `name` is 1..63 bytes of [A-Za-z0-9._-] and does not start with '.': it can stand in a topic level, a file
 * name and a log line without escaping. (MQTT's / + #, control characters and spaces are therefore out.) */
int sheaf_name_ok(const char *name);
