/* cohort.h - the devices of the open round: who was admitted, who works, whose update is counted.
 *
 * Owner:   the round; memory for the maximum is taken at make.
 * Threads: the round's thread.
 * Errors:  SHEAF_E_COHORT_FULL.
 * Not:     it survives no restart: accepted members come back from the database, the others when they speak. */
#pragma once
#include "common/bytes.h"
#include "common/name.h"
#include "common/status.h"

typedef struct {
    char client[SHEAF_NAME_BYTES];
    uint32_t done_permille;                     /* of its training, as it told */
    uint32_t payloads;                          /* different ones that it began to send */
    uint8_t payload_digest[SHEAF_DIGEST_BYTES]; /* of the last of them */
    int accepted;                               /* its update is durable */
    int told_end;                               /* it knows that the job has ended */
} sheaf_member;

typedef struct sheaf_cohort sheaf_cohort;

SHEAF_MUST_USE sheaf_status sheaf_cohort_make(uint32_t maximum, sheaf_cohort **out);
void sheaf_cohort_free(sheaf_cohort *cohort); /* NULL is fine */
/* Forgets everyone. */
void sheaf_cohort_clear(sheaf_cohort *cohort);
uint32_t sheaf_cohort_count(const sheaf_cohort *cohort);
/* The member of that name, or NULL. Valid until clear. */
sheaf_member *sheaf_cohort_find(sheaf_cohort *cohort, const char *client);
/* Finds or admits. */
SHEAF_MUST_USE sheaf_status sheaf_cohort_admit(sheaf_cohort *cohort, const char *client, sheaf_member **out);
/* Forgets the members whose update is not counted, so that a new attempt may ask others. */
void sheaf_cohort_keep_accepted(sheaf_cohort *cohort);
/* How many were told the end. */
uint32_t sheaf_cohort_told_end(const sheaf_cohort *cohort);
