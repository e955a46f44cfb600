#include "client/port/posix/slots.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOT_MODE 0600u

static const char *const names[SHEAF_EDGE_SLOTS] = {"model", "update", "state"};

static void close_and_forget(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static sheaf_status slot_read(sheaf_edge_slot which, uint64_t offset, uint8_t *out, size_t size, void *context) {
    sheaf_slots *slots = context;
    sheaf_slot *slot = &slots->slots[which];
    if (slot->content < 0) slot->content = open(slot->path, O_RDONLY | O_CLOEXEC);
    if (slot->content < 0) return sheaf_problem_errno(&slots->problem, "open", slot->path);
    return sheaf_file_read_at(slot->content, out, size, offset, slot->path, &slots->problem);
}

static sheaf_status slot_write(sheaf_edge_slot which, uint64_t offset, const uint8_t *data, size_t size,
                               void *context) {
    sheaf_slots *slots = context;
    sheaf_slot *slot = &slots->slots[which];
    if (offset == 0) {
        close_and_forget(&slot->draft);
        sheaf_status status = sheaf_file_create(slot->draft_path, SLOT_MODE, &slot->draft, &slots->problem);
        if (status != SHEAF_OK) return status;
    }
    /* A commit that failed closed the draft: what comes after it has no beginning. */
    if (slot->draft < 0) return sheaf_problem_set(&slots->problem, SHEAF_E_CLOSED, "%s: not begun", slot->draft_path);
    return sheaf_file_write_at(slot->draft, sheaf_span_of(data, size), offset, slot->draft_path, &slots->problem);
}

static sheaf_status slot_commit(sheaf_edge_slot which, void *context) {
    sheaf_slots *slots = context;
    sheaf_slot *slot = &slots->slots[which];
    if (slot->draft < 0) return sheaf_problem_set(&slots->problem, SHEAF_E_CLOSED, "%s: not begun", slot->draft_path);
    /* A model that a power loss damages fails its digest and is fetched again: that is cheaper than syncing each. */
    sheaf_status status = which == SHEAF_EDGE_MODEL
                              ? sheaf_file_swap(slot->draft_path, slot->path, &slots->problem)
                              : sheaf_file_publish(slot->draft, slot->draft_path, slot->path, &slots->problem);
    close_and_forget(&slot->draft);
    close_and_forget(&slot->content);
    return status;
}

/* What was written before a restart counts as well. */
static sheaf_status slot_unfinished(sheaf_edge_slot which, uint64_t *bytes, void *context) {
    sheaf_slots *slots = context;
    sheaf_slot *slot = &slots->slots[which];
    struct stat info;
    *bytes = 0;
    if (slot->draft < 0) slot->draft = open(slot->draft_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (slot->draft < 0) return SHEAF_OK;
    if (fstat(slot->draft, &info) != 0) return sheaf_problem_errno(&slots->problem, "look at", slot->draft_path);
    *bytes = S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
    return SHEAF_OK;
}

static sheaf_status slot_read_unfinished(sheaf_edge_slot which, uint64_t offset, uint8_t *out, size_t size,
                                         void *context) {
    sheaf_slots *slots = context;
    const sheaf_slot *slot = &slots->slots[which];
    if (slot->draft < 0) return sheaf_problem_set(&slots->problem, SHEAF_E_CLOSED, "%s: not begun", slot->draft_path);
    return sheaf_file_read_at(slot->draft, out, size, offset, slot->draft_path, &slots->problem);
}

static sheaf_status slot_erase(sheaf_edge_slot which, void *context) {
    sheaf_slots *slots = context;
    sheaf_slot *slot = &slots->slots[which];
    close_and_forget(&slot->content);
    return sheaf_file_remove(slot->path, &slots->problem);
}

static sheaf_status take_lock(sheaf_slots *slots, const char *folder, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    sheaf_status status = sheaf_path_join(path, folder, "lock", problem);
    if (status != SHEAF_OK) return status;
    status = sheaf_file_lock(path, &slots->lock, problem);
    if (status != SHEAF_E_EXISTS) return status;
    return sheaf_problem_set(problem, status, "%s: the state folder is in use by another process", folder);
}

static sheaf_status name_slot(sheaf_slot *slot, const char *folder, const char *name, sheaf_problem *problem) {
    char draft[32];
    (void)snprintf(draft, sizeof draft, "%s.new", name);
    sheaf_status status = sheaf_path_join(slot->path, folder, name, problem);
    return status == SHEAF_OK ? sheaf_path_join(slot->draft_path, folder, draft, problem) : status;
}

sheaf_status sheaf_slots_open(sheaf_slots *slots, const char *folder, sheaf_problem *problem) {
    memset(slots, 0, sizeof *slots);
    slots->lock = -1;
    for (size_t i = 0; i < SHEAF_EDGE_SLOTS; i++) slots->slots[i].content = slots->slots[i].draft = -1;
    sheaf_status status = sheaf_file_make_folder(folder, problem);
    for (size_t i = 0; i < SHEAF_EDGE_SLOTS && status == SHEAF_OK; i++) {
        status = name_slot(&slots->slots[i], folder, names[i], problem);
    }
    if (status == SHEAF_OK) status = take_lock(slots, folder, problem);
    if (status != SHEAF_OK) sheaf_slots_close(slots);
    return status;
}

void sheaf_slots_close(sheaf_slots *slots) {
    for (size_t i = 0; i < SHEAF_EDGE_SLOTS; i++) {
        close_and_forget(&slots->slots[i].content);
        close_and_forget(&slots->slots[i].draft);
    }
    close_and_forget(&slots->lock);
}

sheaf_edge_storage sheaf_slots_storage(sheaf_slots *slots) {
    sheaf_edge_storage storage = {.read = slot_read,
                                  .write = slot_write,
                                  .commit = slot_commit,
                                  .erase = slot_erase,
                                  .unfinished = slot_unfinished,
                                  .read_unfinished = slot_read_unfinished,
                                  .keeps_old = 1,
                                  .context = slots};
    return storage;
}
