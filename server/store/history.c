#include "server/store/history.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/file.h"
#include "server/store/database.h"

#define BUSY_MS 10000

struct sheaf_history {
    sqlite3 *handle;
};

static sheaf_status fail(sheaf_history *history, const char *what, sheaf_problem *problem) {
    const char *reason = history->handle == NULL ? "no memory" : sqlite3_errmsg(history->handle);
    return sheaf_problem_set(problem, SHEAF_E_DATABASE, "database: cannot %s: %s", what, reason);
}

static sheaf_status prepare(sheaf_history *history, const char *sql, sqlite3_stmt **out, sheaf_problem *problem) {
    return sqlite3_prepare_v2(history->handle, sql, -1, out, NULL) == SQLITE_OK ? SHEAF_OK
                                                                                : fail(history, "read", problem);
}

static sheaf_status check_version(sheaf_history *history, const char *path, sheaf_problem *problem) {
    sqlite3_stmt *query = NULL;
    sheaf_status status = prepare(history, "SELECT value FROM meta WHERE key = 'schema'", &query, problem);
    int version = status == SHEAF_OK && sqlite3_step(query) == SQLITE_ROW ? sqlite3_column_int(query, 0) : 0;
    sqlite3_finalize(query);
    if (status == SHEAF_OK && version != SHEAF_SCHEMA_VERSION)
        return sheaf_problem_set(problem, SHEAF_E_VERSION, "%s: has schema %d, this program knows %d%s", path, version,
                                 SHEAF_SCHEMA_VERSION,
                                 version < SHEAF_SCHEMA_VERSION ? "; a start of sheafd brings it up to date" : "");
    return status;
}

sheaf_status sheaf_history_open(const char *state_folder, sheaf_history **out, sheaf_problem *problem) {
    char path[SHEAF_PATH_BYTES];
    *out = NULL;
    sheaf_status status = sheaf_path_join(path, state_folder, "state.db", problem);
    if (status != SHEAF_OK) return status;
    /* Not by opening it: within sheafd, closing any descriptor of the file would drop the locks that SQLite holds on it. */
    if (access(path, R_OK) != 0) return sheaf_problem_errno(problem, "open", path);
    sheaf_history *history = calloc(1, sizeof *history);
    if (history == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", path);
    /* Not READONLY: a reader of a WAL database must be able to make its shared-memory file. query_only keeps it honest. */
    if (sqlite3_open_v2(path, &history->handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        status = fail(history, "open", problem);
    if (status == SHEAF_OK) {
        (void)sqlite3_busy_timeout(history->handle, BUSY_MS);
        if (sqlite3_exec(history->handle, "PRAGMA query_only=ON", NULL, NULL, NULL) != SQLITE_OK)
            status = fail(history, "set up", problem);
    }
    if (status == SHEAF_OK) status = check_version(history, path, problem);
    if (status == SHEAF_OK)
        *out = history;
    else
        sheaf_history_close(history);
    return status;
}

void sheaf_history_close(sheaf_history *history) {
    if (history == NULL) return;
    (void)sqlite3_close(history->handle);
    free(history);
}

sheaf_status sheaf_history_can_write(sheaf_history *history, sheaf_problem *problem) {
    if (sqlite3_db_readonly(history->handle, "main") == 1)
        return sheaf_problem_set(problem, SHEAF_E_DATABASE, "database: may only be read");
    (void)sqlite3_busy_timeout(history->handle, 1000); /* a commit of a job takes much less */
    int code = sqlite3_exec(history->handle, "PRAGMA query_only=OFF; BEGIN IMMEDIATE; ROLLBACK", NULL, NULL, NULL);
    (void)sqlite3_exec(history->handle, "PRAGMA query_only=ON", NULL, NULL, NULL);
    (void)sqlite3_busy_timeout(history->handle, BUSY_MS);
    return code == SQLITE_OK ? SHEAF_OK : fail(history, "be written", problem);
}

static int copy_name(sqlite3_stmt *query, int column, char out[SHEAF_NAME_BYTES]) {
    const char *text = (const char *)sqlite3_column_text(query, column);
    if (text == NULL || !sheaf_name_ok(text)) return 0;
    memcpy(out, text, strlen(text) + 1);
    return 1;
}

static int copy_digest(sqlite3_stmt *query, int column, uint8_t out[SHEAF_DIGEST_BYTES]) {
    if (sqlite3_column_bytes(query, column) != SHEAF_DIGEST_BYTES) return 0;
    memcpy(out, sqlite3_column_blob(query, column), SHEAF_DIGEST_BYTES);
    return 1;
}

/* Steps through all rows, each by `row`. */
static sheaf_status walk(sheaf_history *history, sqlite3_stmt *query,
                         sheaf_status (*row)(sqlite3_stmt *query, void *context), void *context,
                         sheaf_problem *problem) {
    sheaf_status status = SHEAF_OK;
    int code = sqlite3_step(query);
    while (status == SHEAF_OK && code == SQLITE_ROW) {
        status = row(query, context);
        if (status == SHEAF_OK) code = sqlite3_step(query);
    }
    if (status == SHEAF_E_CORRUPT) (void)sheaf_problem_set(problem, status, "database: a row is damaged");
    if (status == SHEAF_OK && code != SQLITE_DONE) status = fail(history, "read", problem);
    sqlite3_finalize(query);
    return status;
}

typedef struct {
    union {
        sheaf_status (*job)(const sheaf_job_summary *job, void *context);
        sheaf_status (*round)(const sheaf_round_summary *round, void *context);
        sheaf_status (*update)(const sheaf_update_summary *update, void *context);
        sheaf_status (*refusal)(const char *reason, uint64_t count, void *context);
    } each;
    void *context;
} visit;

static sheaf_status job_row(sqlite3_stmt *query, void *context) {
    const visit *to = context;
    sheaf_job_summary job = {.id = sqlite3_column_int64(query, 0)};
    int ok = copy_name(query, 1, job.tenant) && copy_name(query, 2, job.name) && copy_digest(query, 8, job.model);
    job.ended = sheaf_status_from_number(sqlite3_column_int(query, 3));
    job.released = (uint64_t)sqlite3_column_int64(query, 4);
    job.open_round = (uint64_t)sqlite3_column_int64(query, 5);
    job.open_attempt = (uint32_t)sqlite3_column_int64(query, 6);
    job.open_accepted = (uint64_t)sqlite3_column_int64(query, 7);
    job.paused = sqlite3_column_int(query, 9) != 0;
    return ok ? to->each.job(&job, to->context) : SHEAF_E_CORRUPT;
}

sheaf_status sheaf_history_jobs(sheaf_history *history,
                                sheaf_status (*each)(const sheaf_job_summary *job, void *context), void *context,
                                sheaf_problem *problem) {
    static const char sql[] =
        "SELECT j.id, j.tenant, j.name, j.ended, (SELECT count(*) FROM rounds r WHERE r.job = j.id AND r.outcome = 1),"
        " o.round, o.attempt, (SELECT count(*) FROM updates u WHERE u.job = j.id AND u.round = o.round),"
        " coalesce((SELECT model FROM rounds r WHERE r.job = j.id AND r.outcome = 1 ORDER BY round DESC LIMIT 1), j.initial_model),"
        " j.paused"
        " FROM jobs j LEFT JOIN rounds o ON o.job = j.id AND o.outcome = 0 ORDER BY j.tenant, j.name";
    sqlite3_stmt *query = NULL;
    sheaf_status status = prepare(history, sql, &query, problem);
    visit to = {.each.job = each, .context = context};
    return status == SHEAF_OK ? walk(history, query, job_row, &to, problem) : status;
}

static sheaf_status round_row(sqlite3_stmt *query, void *context) {
    const visit *to = context;
    sheaf_round_summary round = {.round = (uint64_t)sqlite3_column_int64(query, 0),
                                 .attempt = (uint32_t)sqlite3_column_int64(query, 1),
                                 .released = sqlite3_column_int(query, 2) == 1,
                                 .reason = sheaf_status_from_number(sqlite3_column_int(query, 3)),
                                 .opened_unix_ms = (uint64_t)sqlite3_column_int64(query, 4),
                                 .closed_unix_ms = (uint64_t)sqlite3_column_int64(query, 5),
                                 .accepted = (uint64_t)sqlite3_column_int64(query, 6),
                                 .refused = (uint64_t)sqlite3_column_int64(query, 7),
                                 .upload_bytes = (uint64_t)sqlite3_column_int64(query, 8),
                                 .weight = (uint64_t)sqlite3_column_int64(query, 9)};
    round.training_loss =
        sqlite3_column_type(query, 10) == SQLITE_NULL ? (double)NAN : sqlite3_column_double(query, 10);
    if (round.released && !copy_digest(query, 11, round.model)) return SHEAF_E_CORRUPT;
    return to->each.round(&round, to->context);
}

sheaf_status sheaf_history_rounds(sheaf_history *history, int64_t job, uint64_t round, uint32_t attempt,
                                  sheaf_status (*each)(const sheaf_round_summary *round, void *context), void *context,
                                  sheaf_problem *problem) {
    static const char sql[] =
        "SELECT round, attempt, outcome, reason, opened_unix_ms, closed_unix_ms, accepted, refused, upload_bytes, weight,"
        " training_loss, model FROM rounds WHERE job = ?1 AND outcome <> 0 AND (round, attempt) > (?2, ?3) ORDER BY round, attempt";
    sqlite3_stmt *query = NULL;
    sheaf_status status = prepare(history, sql, &query, problem);
    if (status != SHEAF_OK) return status;
    (void)sqlite3_bind_int64(query, 1, job);
    (void)sqlite3_bind_int64(query, 2, (sqlite3_int64)round);
    (void)sqlite3_bind_int64(query, 3, attempt);
    visit to = {.each.round = each, .context = context};
    return walk(history, query, round_row, &to, problem);
}

static sheaf_status update_row(sqlite3_stmt *query, void *context) {
    const visit *to = context;
    sheaf_update_summary update = {.arrival = (uint64_t)sqlite3_column_int64(query, 0),
                                   .attempt = (uint32_t)sqlite3_column_int64(query, 1),
                                   .weight = sqlite3_column_int64(query, 3),
                                   .payload_bytes = (uint64_t)sqlite3_column_int64(query, 4),
                                   .accepted_unix_ms = (uint64_t)sqlite3_column_int64(query, 5)};
    update.training_loss = sqlite3_column_type(query, 6) == SQLITE_NULL ? (double)NAN : sqlite3_column_double(query, 6);
    int ok = copy_name(query, 2, update.client) && copy_digest(query, 7, update.payload_digest);
    return ok ? to->each.update(&update, to->context) : SHEAF_E_CORRUPT;
}

sheaf_status sheaf_history_updates(sheaf_history *history, int64_t job, uint64_t round, uint64_t arrival,
                                   sheaf_status (*each)(const sheaf_update_summary *update, void *context),
                                   void *context, sheaf_problem *problem) {
    static const char sql[] =
        "SELECT arrival, attempt, client, weight, payload_bytes, accepted_unix_ms, training_loss, payload_digest"
        " FROM updates WHERE job = ?1 AND round = ?2 AND arrival > ?3 ORDER BY arrival";
    sqlite3_stmt *query = NULL;
    sheaf_status status = prepare(history, sql, &query, problem);
    if (status != SHEAF_OK) return status;
    (void)sqlite3_bind_int64(query, 1, job);
    (void)sqlite3_bind_int64(query, 2, (sqlite3_int64)round);
    (void)sqlite3_bind_int64(query, 3, (sqlite3_int64)arrival);
    visit to = {.each.update = each, .context = context};
    return walk(history, query, update_row, &to, problem);
}

static sheaf_status refusal_row(sqlite3_stmt *query, void *context) {
    const visit *to = context;
    const char *reason = (const char *)sqlite3_column_text(query, 0);
    return reason == NULL ? SHEAF_E_CORRUPT
                          : to->each.refusal(reason, (uint64_t)sqlite3_column_int64(query, 1), to->context);
}

sheaf_status sheaf_history_refusals(sheaf_history *history, int64_t job, uint64_t round,
                                    sheaf_status (*each)(const char *reason, uint64_t count, void *context),
                                    void *context, sheaf_problem *problem) {
    static const char sql[] = "SELECT reason, sum(count) FROM refusals WHERE job = ?1 AND (?2 = 0 OR round = ?2)"
                              " GROUP BY reason ORDER BY reason";
    sqlite3_stmt *query = NULL;
    sheaf_status status = prepare(history, sql, &query, problem);
    if (status != SHEAF_OK) return status;
    (void)sqlite3_bind_int64(query, 1, job);
    (void)sqlite3_bind_int64(query, 2, (sqlite3_int64)round);
    visit to = {.each.refusal = each, .context = context};
    return walk(history, query, refusal_row, &to, problem);
}
