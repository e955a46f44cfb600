/* slots.h - the core's three storage slots as files of a state folder.
 *
 * Owner:   the device; close releases the lock and the descriptors.
 * Threads: one.
 * Files:   NAME holds what was committed, NAME.new what is being written; `lock` keeps a second process out.
 * Errors:  SHEAF_E_EXISTS (in use by another process) and those of common/file.h. */
#pragma once
#include "common/file.h"
#include "sheaf/edge.h"

typedef struct {
    char path[SHEAF_PATH_BYTES];
    char draft_path[SHEAF_PATH_BYTES];
    int content; /* descriptor of what was committed, or -1 */
    int draft;   /* of what is being written, or -1 */
} sheaf_slot;

typedef struct {
    sheaf_slot slots[SHEAF_EDGE_SLOTS];
    int lock;              /* -1 when closed */
    sheaf_problem problem; /* of the last failure */
} sheaf_slots;

SHEAF_MUST_USE sheaf_status sheaf_slots_open(sheaf_slots *slots, const char *folder, sheaf_problem *problem);
void sheaf_slots_close(sheaf_slots *slots);
/* The core's storage over `slots`, which must outlive it. */
sheaf_edge_storage sheaf_slots_storage(sheaf_slots *slots);
