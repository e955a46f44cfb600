#include "server/intake/upload.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "server/queue.h"

struct sheaf_uploads {
    pthread_mutex_t lock; /* guards `used`, `taken`, `doomed` of every slot, and who may touch the rest */
    const sheaf_spool *spool;
    uint32_t maximum;
    sheaf_upload slots[];
};

sheaf_status sheaf_uploads_make(const sheaf_spool *spool, uint32_t maximum, sheaf_uploads **out) {
    *out = NULL;
    sheaf_uploads *uploads = calloc(1, sizeof *uploads + maximum * sizeof uploads->slots[0]);
    if (uploads == NULL) return SHEAF_E_MEMORY;
    pthread_mutex_init(&uploads->lock, NULL);
    uploads->spool = spool;
    uploads->maximum = maximum;
    for (uint32_t i = 0; i < maximum; i++) {
        uploads->slots[i].table = uploads;
        uploads->slots[i].fd = -1;
    }
    *out = uploads;
    return SHEAF_OK;
}

/* Frees a slot; the lock is held. */
static void release(sheaf_upload *upload) {
    sheaf_digest_drop(&upload->digest);
    if (upload->fd >= 0) {
        close(upload->fd);
        sheaf_spool_forget(upload->table->spool, upload->statement.round, upload->statement.client);
    }
    upload->fd = -1;
    upload->used = upload->taken = upload->doomed = 0;
}

void sheaf_uploads_free(sheaf_uploads *uploads) {
    if (uploads == NULL) return;
    sheaf_uploads_clear(uploads);
    pthread_mutex_destroy(&uploads->lock);
    free(uploads);
}

static sheaf_upload *find(sheaf_uploads *uploads, const char *client) {
    for (uint32_t i = 0; i < uploads->maximum; i++) {
        sheaf_upload *upload = &uploads->slots[i];
        if (upload->used && strcmp(upload->statement.client, client) == 0) return upload;
    }
    return NULL;
}

static sheaf_upload *find_free(sheaf_uploads *uploads) {
    for (uint32_t i = 0; i < uploads->maximum; i++) {
        if (!uploads->slots[i].used) return &uploads->slots[i];
    }
    return NULL;
}

static sheaf_status begin(sheaf_upload *upload, const sheaf_update_statement *statement, sheaf_problem *problem) {
    sheaf_status status = sheaf_digest_begin(&upload->digest);
    if (status != SHEAF_OK) return status;
    status = sheaf_spool_receive(upload->table->spool, statement->round, statement->client, &upload->fd, problem);
    if (status != SHEAF_OK) {
        sheaf_digest_drop(&upload->digest);
        return status;
    }
    upload->statement = *statement;
    upload->next_offset = 0;
    upload->used = 1;
    return SHEAF_OK;
}

/* A resumed upload takes the newer statement: the round may have opened again with another nonce. */
static void set_terms(sheaf_upload *upload, const sheaf_update_statement *statement, sheaf_span bytes,
                      sheaf_span signature, double loss) {
    assert(bytes.size <= sizeof upload->statement_bytes && signature.size <= sizeof upload->signature);
    upload->statement = *statement;
    memcpy(upload->statement_bytes, bytes.data, bytes.size);
    upload->statement_size = bytes.size;
    memcpy(upload->signature, signature.data, signature.size);
    upload->signature_size = signature.size;
    upload->training_loss = loss;
    upload->moved_ns = sheaf_now_ns();
}

sheaf_status sheaf_uploads_agree(sheaf_uploads *uploads, const sheaf_update_statement *statement,
                                 sheaf_span statement_bytes, sheaf_span signature, double training_loss,
                                 uint64_t *next_offset, sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    pthread_mutex_lock(&uploads->lock);
    sheaf_upload *upload = find(uploads, statement->client);
    if (upload != NULL && upload->taken) {
        status = SHEAF_E_BUSY;
    } else {
        int same = upload != NULL && upload->statement.round == statement->round &&
                   memcmp(upload->statement.payload_digest, statement->payload_digest, SHEAF_DIGEST_BYTES) == 0;
        if (upload != NULL && !same) release(upload);
        if (!same) {
            upload = find_free(uploads);
            status = upload == NULL ? SHEAF_E_BUSY : begin(upload, statement, problem);
        }
    }
    if (status == SHEAF_OK) {
        set_terms(upload, statement, statement_bytes, signature, training_loss);
        *next_offset = upload->next_offset;
    }
    pthread_mutex_unlock(&uploads->lock);
    return status;
}

sheaf_status sheaf_uploads_take(sheaf_uploads *uploads, const char *client, sheaf_span payload_digest,
                                sheaf_upload **out) {
    sheaf_status status = SHEAF_OK;
    pthread_mutex_lock(&uploads->lock);
    sheaf_upload *upload = find(uploads, client);
    if (upload == NULL ||
        !sheaf_span_equal(payload_digest, sheaf_span_of(upload->statement.payload_digest, SHEAF_DIGEST_BYTES))) {
        status = SHEAF_E_NOT_FOUND;
    } else if (upload->taken) {
        status = SHEAF_E_BUSY;
    } else {
        upload->taken = 1;
        *out = upload;
    }
    pthread_mutex_unlock(&uploads->lock);
    return status;
}

void sheaf_upload_give_back(sheaf_upload *upload) {
    pthread_mutex_lock(&upload->table->lock);
    upload->taken = 0;
    if (upload->doomed) release(upload);
    pthread_mutex_unlock(&upload->table->lock);
}

void sheaf_upload_drop(sheaf_upload *upload) {
    pthread_mutex_lock(&upload->table->lock);
    release(upload);
    pthread_mutex_unlock(&upload->table->lock);
}

int sheaf_upload_whole(const sheaf_upload *upload) { return upload->next_offset == upload->statement.payload_bytes; }

sheaf_status sheaf_upload_write(sheaf_upload *upload, uint64_t offset, sheaf_span bytes, sheaf_problem *problem) {
    if (offset != upload->next_offset) return SHEAF_OK; /* the reply's next_offset puts the device right */
    if (bytes.size > upload->statement.payload_bytes - upload->next_offset) return SHEAF_E_TOO_LARGE;
    sheaf_status status = sheaf_file_write_at(upload->fd, bytes, offset, "payload", problem);
    if (status == SHEAF_OK) status = sheaf_digest_update(&upload->digest, bytes);
    if (status != SHEAF_OK) return status;
    upload->next_offset += bytes.size;
    if (bytes.size > 0) upload->moved_ns = sheaf_now_ns();
    return SHEAF_OK;
}

sheaf_status sheaf_upload_verify(sheaf_upload *upload, sheaf_span *payload, sheaf_problem *problem) {
    uint8_t found[SHEAF_DIGEST_BYTES];
    sheaf_status status = sheaf_digest_finish(&upload->digest, found);
    if (status != SHEAF_OK) return status;
    if (memcmp(found, upload->statement.payload_digest, sizeof found) != 0) return SHEAF_E_DIGEST;
    return sheaf_spool_map_fd(upload->fd, upload->statement.payload_bytes, payload, problem);
}

sheaf_status sheaf_upload_keep(sheaf_upload *upload, sheaf_problem *problem) {
    sheaf_status status =
        sheaf_spool_keep(upload->table->spool, upload->statement.round, upload->statement.client, upload->fd, problem);
    if (status == SHEAF_OK) {
        close(upload->fd);
        upload->fd = -1;
    }
    return status;
}

uint32_t sheaf_uploads_expire(sheaf_uploads *uploads, uint64_t before_ns) {
    uint32_t dropped = 0;
    pthread_mutex_lock(&uploads->lock);
    for (uint32_t i = 0; i < uploads->maximum; i++) {
        sheaf_upload *upload = &uploads->slots[i];
        if (!upload->used || upload->taken || upload->moved_ns >= before_ns) continue;
        release(upload);
        dropped++;
    }
    pthread_mutex_unlock(&uploads->lock);
    return dropped;
}

void sheaf_uploads_clear(sheaf_uploads *uploads) {
    pthread_mutex_lock(&uploads->lock);
    for (uint32_t i = 0; i < uploads->maximum; i++) {
        if (!uploads->slots[i].used) continue;
        if (uploads->slots[i].taken)
            uploads->slots[i].doomed = 1;
        else
            release(&uploads->slots[i]);
    }
    pthread_mutex_unlock(&uploads->lock);
}
