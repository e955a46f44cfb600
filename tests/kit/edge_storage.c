/* The device's three places of edge_world.h: memory that loses power at a chosen call. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kit/edge_world.h"

static int power_fails(edge_world_storage *storage) {
    storage->calls++;
    if (storage->dead) return 1;
    if (storage->fail_at == 0 || storage->calls != storage->fail_at) return 0;
    storage->dead = 1;
    return 1;
}

static sheaf_status storage_read(sheaf_edge_slot slot, uint64_t offset, uint8_t *out, size_t size, void *context) {
    edge_world_storage *storage = &((edge_world *)context)->storage;
    edge_world_slot *at = &storage->slots[slot];
    if (storage->dead) return SHEAF_E_DISK;
    if (!at->committed) return SHEAF_E_NOT_FOUND;
    if (offset + size > at->size) return SHEAF_E_TRUNCATED;
    memcpy(out, at->content + offset, size);
    return SHEAF_OK;
}

static void append(edge_world_slot *at, uint64_t offset, const uint8_t *data, size_t size) {
    if (offset == 0) at->draft_size = 0;
    assert(offset == at->draft_size); /* the contract: no hole */
    at->draft = realloc(at->draft, at->draft_size + size + 1);
    assert(at->draft != NULL);
    memcpy(at->draft + at->draft_size, data, size);
    at->draft_size += size;
}

static sheaf_status storage_write(sheaf_edge_slot slot, uint64_t offset, const uint8_t *data, size_t size,
                                  void *context) {
    edge_world_storage *storage = &((edge_world *)context)->storage;
    edge_world_slot *at = &storage->slots[slot];
    int fails = power_fails(storage);
    if (fails && !storage->after) return SHEAF_E_DISK;
    if (storage->refuse != SHEAF_OK) return storage->refuse;
    append(at, offset, data, size);
    /* One copy only, as on a small flash: a begun draft has already cost the old content. */
    int one_copy = slot != SHEAF_EDGE_STATE && !(slot == SHEAF_EDGE_MODEL && storage->roomy);
    if (one_copy && at->size > 0) memset(at->content, 0xee, at->size);
    return fails ? SHEAF_E_DISK : SHEAF_OK;
}

static sheaf_status storage_commit(sheaf_edge_slot slot, void *context) {
    edge_world_storage *storage = &((edge_world *)context)->storage;
    edge_world_slot *at = &storage->slots[slot];
    int fails = power_fails(storage);
    if (fails && !storage->after) return SHEAF_E_DISK;
    if (storage->refuse != SHEAF_OK) return storage->refuse;
    free(at->content);
    at->content = at->draft;
    at->size = at->draft_size;
    at->committed = 1;
    at->draft = NULL;
    at->draft_size = 0;
    return fails ? SHEAF_E_DISK : SHEAF_OK;
}

static sheaf_status storage_erase(sheaf_edge_slot slot, void *context) {
    edge_world_slot *at = &((edge_world *)context)->storage.slots[slot];
    at->committed = 0;
    at->size = 0;
    return SHEAF_OK;
}

static sheaf_status storage_unfinished(sheaf_edge_slot slot, uint64_t *bytes, void *context) {
    *bytes = ((edge_world *)context)->storage.slots[slot].draft_size;
    return SHEAF_OK;
}

static sheaf_status storage_read_unfinished(sheaf_edge_slot slot, uint64_t offset, uint8_t *out, size_t size,
                                            void *context) {
    edge_world_slot *at = &((edge_world *)context)->storage.slots[slot];
    if (offset + size > at->draft_size) return SHEAF_E_TRUNCATED;
    memcpy(out, at->draft + offset, size);
    return SHEAF_OK;
}

void edge_world_give_room(edge_world *world) {
    world->storage.roomy = 1;
    world->options.storage.unfinished = storage_unfinished;
    world->options.storage.read_unfinished = storage_read_unfinished;
    world->options.storage.keeps_old = 1;
}

void edge_world_power_on(edge_world *world) {
    world->storage.dead = 0;
    world->storage.fail_at = 0;
    for (size_t i = 0; i < SHEAF_EDGE_SLOTS; i++) {
        if (world->storage.roomy && i == SHEAF_EDGE_MODEL) continue;
        free(world->storage.slots[i].draft);
        world->storage.slots[i].draft = NULL;
        world->storage.slots[i].draft_size = 0;
    }
}

sheaf_edge_storage edge_world_storage_of(edge_world *world) {
    sheaf_edge_storage storage = {.read = storage_read,
                                  .write = storage_write,
                                  .commit = storage_commit,
                                  .erase = storage_erase,
                                  .context = world};
    return storage;
}
