#include "server/store/database.h"

#include <assert.h>
#include <math.h>
#include <sqlite3.h>
#include <stdlib.h>

enum { SCHEMA_VERSION = SHEAF_SCHEMA_VERSION };

static const char schema[] =
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;"
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, initial_model BLOB NOT NULL,"
    "  ended INTEGER NOT NULL, paused INTEGER NOT NULL DEFAULT 0, UNIQUE (tenant, name));"
    "CREATE TABLE rounds (job INTEGER NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL, outcome INTEGER NOT "
    "NULL,"
    "  reason INTEGER NOT NULL, statement BLOB NOT NULL, signature BLOB NOT NULL, plan BLOB NOT NULL,"
    "  opened_unix_ms INTEGER NOT NULL, closed_unix_ms INTEGER, accepted INTEGER, refused INTEGER, upload_bytes "
    "INTEGER,"
    "  weight INTEGER, training_loss REAL, model BLOB, PRIMARY KEY (job, round, attempt)) WITHOUT ROWID;"
    "CREATE TABLE updates (arrival INTEGER PRIMARY KEY, job INTEGER NOT NULL, round INTEGER NOT NULL, attempt INTEGER "
    "NOT NULL,"
    "  client TEXT NOT NULL, statement BLOB NOT NULL, signature BLOB NOT NULL, receipt BLOB NOT NULL,"
    "  receipt_signature BLOB NOT NULL, payload_digest BLOB NOT NULL, payload_bytes INTEGER NOT NULL,"
    "  weight INTEGER NOT NULL, training_loss REAL, accepted_unix_ms INTEGER NOT NULL, UNIQUE (job, round, client));"
    "CREATE TABLE refusals (job INTEGER NOT NULL, round INTEGER NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL,"
    "  PRIMARY KEY (job, round, reason)) WITHOUT ROWID;"
    "INSERT INTO meta VALUES ('schema', 2);";

/* Takes a file of version 1 to 2. */
static const char upgrade_1[] = "ALTER TABLE jobs ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;"
                                "UPDATE meta SET value = 2 WHERE key = 'schema';";

/* One row a statement: all of them are prepared when the connection opens, so a typing error shows at once. */
#define ROUND_COLUMNS                                                                                                  \
    "round, attempt, outcome, reason, statement, signature, plan, closed_unix_ms, accepted, refused, upload_bytes, "   \
    "weight, training_loss, model"
#define UPDATE_COLUMNS                                                                                                 \
    "round, attempt, client, statement, signature, receipt, receipt_signature, payload_digest, payload_bytes, "        \
    "weight, "                                                                                                         \
    "training_loss, accepted_unix_ms"
#define STATEMENTS(X)                                                                                                  \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                                        \
    X(COMMIT, "COMMIT")                                                                                                \
    X(ROLLBACK, "ROLLBACK")                                                                                            \
    X(JOB_FIND, "SELECT id, initial_model, ended, paused FROM jobs WHERE tenant = ?1 AND name = ?2")                   \
    X(JOB_CREATE, "INSERT INTO jobs (tenant, name, initial_model, ended) VALUES (?1, ?2, ?3, ?4)")                     \
    X(JOB_END, "UPDATE jobs SET ended = ?2 WHERE id = ?1")                                                             \
    X(JOB_PAUSE, "UPDATE jobs SET paused = ?2 WHERE id = ?1")                                                          \
    X(ROUND_OPEN, "INSERT INTO rounds (job, round, attempt, outcome, reason, statement, signature, plan, "             \
                  "opened_unix_ms) VALUES (?1, ?2, ?3, 0, 0, ?4, ?5, ?6, ?7)")                                         \
    X(ROUND_SIGN, "UPDATE rounds SET statement = ?4, signature = ?5 "                                                  \
                  "WHERE job = ?1 AND round = ?2 AND attempt = ?3 AND outcome = 0")                                    \
    X(ROUND_CLOSE, "UPDATE rounds SET outcome = ?4, reason = ?5, closed_unix_ms = ?6, accepted = ?7, refused = ?8, "   \
                   "upload_bytes = ?9, weight = ?10, training_loss = ?11, model = ?12 "                                \
                   "WHERE job = ?1 AND round = ?2 AND attempt = ?3 AND outcome = 0")                                   \
    X(ROUND_LAST, "SELECT " ROUND_COLUMNS " FROM rounds WHERE job = ?1 ORDER BY round DESC, attempt DESC LIMIT 1")     \
    X(ROUND_RELEASED, "SELECT " ROUND_COLUMNS " FROM rounds WHERE job = ?1 AND round = ?2 AND outcome = 1")            \
    X(UPDATE_INSERT, "INSERT INTO updates (job, " UPDATE_COLUMNS ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, " \
                     "?11, ?12, ?13)")                                                                                 \
    X(RECEIPT_FIND, "SELECT payload_digest, receipt, receipt_signature FROM updates "                                  \
                    "WHERE job = ?1 AND round = ?2 AND client = ?3")                                                   \
    X(UPDATES_OF, "SELECT " UPDATE_COLUMNS " FROM updates WHERE job = ?1 AND round = ?2 ORDER BY arrival")             \
    X(REFUSALS_ADD, "INSERT INTO refusals VALUES (?1, ?2, ?3, ?4) "                                                    \
                    "ON CONFLICT (job, round, reason) DO UPDATE SET count = count + excluded.count")

typedef enum {
#define X(name, text) name,
    STATEMENTS(X)
#undef X
        STATEMENT_COUNT
} statement_id;

static const char *const statement_texts[] = {
#define X(name, text) text,
    STATEMENTS(X)
#undef X
};

struct sheaf_database {
    sqlite3 *handle;
    sqlite3_stmt *statements[STATEMENT_COUNT];
};

static sheaf_status fail(sheaf_database *database, int code, const char *what, sheaf_problem *problem) {
    const char *reason = database->handle == NULL ? "no memory" : sqlite3_errmsg(database->handle);
    sheaf_status status = SHEAF_E_DATABASE;
    if ((code & 0xff) == SQLITE_FULL) status = SHEAF_E_NO_SPACE;
    if ((code & 0xff) == SQLITE_CONSTRAINT) status = SHEAF_E_EXISTS;
    return sheaf_problem_set(problem, status, "database: cannot %s: %s", what, reason);
}

static sheaf_status execute(sheaf_database *database, const char *sql, const char *what, sheaf_problem *problem) {
    int code = sqlite3_exec(database->handle, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? SHEAF_OK : fail(database, code, what, problem);
}

static sheaf_status schema_version(sheaf_database *database, int *version, sheaf_problem *problem) {
    sqlite3_stmt *query = NULL;
    *version = 0;
    int code = sqlite3_prepare_v2(database->handle, "SELECT value FROM meta WHERE key = 'schema'", -1, &query, NULL);
    if (code == SQLITE_ERROR) return SHEAF_OK; /* no such table: a new file */
    if (code == SQLITE_OK && sqlite3_step(query) == SQLITE_ROW)
        *version = sqlite3_column_int(query, 0);
    else if (code != SQLITE_OK)
        (void)fail(database, code, "read its schema version", problem);
    sqlite3_finalize(query);
    return code == SQLITE_OK ? SHEAF_OK : SHEAF_E_DATABASE;
}

static sheaf_status make_schema(sheaf_database *database, const char *path, sheaf_problem *problem) {
    /* Under a write lock, since several jobs may open a new file at once. */
    sheaf_status status = execute(database, "BEGIN IMMEDIATE", "lock for its schema", problem);
    if (status != SHEAF_OK) return status;
    int version = 0;
    status = schema_version(database, &version, problem);
    if (status == SHEAF_OK && version == 0)
        status = execute(database, schema, "make its schema", problem);
    else if (status == SHEAF_OK && version == 1)
        status = execute(database, upgrade_1, "bring its schema up to date", problem);
    else if (status == SHEAF_OK && version != SCHEMA_VERSION) {
        status = sheaf_problem_set(problem, SHEAF_E_VERSION, "%s: has schema %d, this program knows %d", path, version,
                                   SCHEMA_VERSION);
    }
    if (status == SHEAF_OK) return execute(database, "COMMIT", "keep its schema", problem);
    (void)sqlite3_exec(database->handle, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

static sheaf_status prepare_all(sheaf_database *database, sheaf_problem *problem) {
    for (int i = 0; i < STATEMENT_COUNT; i++) {
        int code = sqlite3_prepare_v3(database->handle, statement_texts[i], -1, SQLITE_PREPARE_PERSISTENT,
                                      &database->statements[i], NULL);
        if (code != SQLITE_OK) return fail(database, code, "prepare a statement", problem);
    }
    return SHEAF_OK;
}

sheaf_status sheaf_database_open(const char *path, sheaf_database **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_database *database = calloc(1, sizeof *database);
    if (database == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", path);
    int code = sqlite3_open_v2(path, &database->handle,
                               SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    sheaf_status status = code == SQLITE_OK ? SHEAF_OK : fail(database, code, "open", problem);
    if (status == SHEAF_OK) {
        (void)sqlite3_busy_timeout(database->handle, 10000);
        (void)sqlite3_extended_result_codes(database->handle, 1);
        status = execute(database, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;",
                         "set it up", problem);
    }
    if (status == SHEAF_OK) status = make_schema(database, path, problem);
    if (status == SHEAF_OK) status = prepare_all(database, problem);
    if (status == SHEAF_OK) {
        *out = database;
        return SHEAF_OK;
    }
    (void)sheaf_problem_prefix(problem, "%s", path);
    sheaf_database_close(database);
    return status;
}

void sheaf_database_close(sheaf_database *database) {
    if (database == NULL) return;
    for (int i = 0; i < STATEMENT_COUNT; i++) sqlite3_finalize(database->statements[i]);
    (void)sqlite3_close(database->handle);
    free(database);
}

/* Binding: a statement is taken clean, filled by these, and run. */
static sqlite3_stmt *take(sheaf_database *database, statement_id id) {
    sqlite3_stmt *statement = database->statements[id];
    (void)sqlite3_reset(statement);
    (void)sqlite3_clear_bindings(statement);
    return statement;
}

static void bind_u64(sqlite3_stmt *statement, int index, uint64_t value) {
    assert(value <= INT64_MAX);
    (void)sqlite3_bind_int64(statement, index, (sqlite3_int64)value);
}

static void bind_blob(sqlite3_stmt *statement, int index, sheaf_span span) {
    (void)sqlite3_bind_blob64(statement, index, span.data, span.size, SQLITE_STATIC);
}

static void bind_text(sqlite3_stmt *statement, int index, const char *text) {
    (void)sqlite3_bind_text(statement, index, text, -1, SQLITE_STATIC);
}

static void bind_loss(sqlite3_stmt *statement, int index, double loss) {
    if (isfinite(loss))
        (void)sqlite3_bind_double(statement, index, loss);
    else
        (void)sqlite3_bind_null(statement, index);
}

/* Runs a statement that yields no row. */
static sheaf_status run(sheaf_database *database, sqlite3_stmt *statement, const char *what, sheaf_problem *problem) {
    int code = sqlite3_step(statement);
    sheaf_status status = code == SQLITE_DONE ? SHEAF_OK : fail(database, code, what, problem);
    (void)sqlite3_reset(statement);
    (void)sqlite3_clear_bindings(statement);
    return status;
}

sheaf_status sheaf_database_begin(sheaf_database *database, sheaf_problem *problem) {
    return run(database, take(database, BEGIN), "begin", problem);
}

sheaf_status sheaf_database_commit(sheaf_database *database, sheaf_problem *problem) {
    sheaf_status status = run(database, take(database, COMMIT), "commit", problem);
    if (status != SHEAF_OK) sheaf_database_rollback(database);
    return status;
}

void sheaf_database_rollback(sheaf_database *database) {
    if (sqlite3_get_autocommit(database->handle) == 0) (void)run(database, take(database, ROLLBACK), "roll back", NULL);
}

/* Column readers: sizes come from our side, a blob of another size is a damaged database. */
static int column_digest(sqlite3_stmt *statement, int index, uint8_t out[SHEAF_DIGEST_BYTES]) {
    if (sqlite3_column_bytes(statement, index) != SHEAF_DIGEST_BYTES) return 0;
    memcpy(out, sqlite3_column_blob(statement, index), SHEAF_DIGEST_BYTES);
    return 1;
}

static int column_blob(sqlite3_stmt *statement, int index, uint8_t *out, size_t capacity, size_t *size) {
    int bytes = sqlite3_column_bytes(statement, index);
    if (bytes < 0 || (size_t)bytes > capacity) return 0;
    if (bytes > 0) memcpy(out, sqlite3_column_blob(statement, index), (size_t)bytes);
    *size = (size_t)bytes;
    return 1;
}

static sheaf_span column_span(sqlite3_stmt *statement, int index) {
    int bytes = sqlite3_column_bytes(statement, index);
    return sheaf_span_of(sqlite3_column_blob(statement, index), bytes < 0 ? 0 : (size_t)bytes);
}

static double column_loss(sqlite3_stmt *statement, int index) {
    return sqlite3_column_type(statement, index) == SQLITE_NULL ? (double)NAN : sqlite3_column_double(statement, index);
}

sheaf_status sheaf_database_job_find(sheaf_database *database, const char *tenant, const char *name, sheaf_job_row *out,
                                     sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, JOB_FIND);
    bind_text(statement, 1, tenant);
    bind_text(statement, 2, name);
    int code = sqlite3_step(statement);
    sheaf_status status = SHEAF_OK;
    if (code == SQLITE_DONE)
        status = sheaf_problem_set(problem, SHEAF_E_NOT_FOUND, "no job %s/%s", tenant, name);
    else if (code != SQLITE_ROW)
        status = fail(database, code, "look up a job", problem);
    else {
        out->id = sqlite3_column_int64(statement, 0);
        out->ended = sheaf_status_from_number(sqlite3_column_int(statement, 2));
        out->paused = sqlite3_column_int(statement, 3) != 0;
        if (!column_digest(statement, 1, out->initial_model))
            status = sheaf_problem_set(problem, SHEAF_E_CORRUPT, "database: job %s/%s is damaged", tenant, name);
    }
    (void)sqlite3_reset(statement);
    return status;
}

sheaf_status sheaf_database_job_create(sheaf_database *database, const char *tenant, const char *name,
                                       const uint8_t initial_model[SHEAF_DIGEST_BYTES], sheaf_job_row *out,
                                       sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, JOB_CREATE);
    bind_text(statement, 1, tenant);
    bind_text(statement, 2, name);
    bind_blob(statement, 3, sheaf_span_of(initial_model, SHEAF_DIGEST_BYTES));
    bind_u64(statement, 4, SHEAF_AGAIN);
    sheaf_status status = run(database, statement, "create a job", problem);
    if (status != SHEAF_OK) return status;
    out->id = sqlite3_last_insert_rowid(database->handle);
    out->ended = SHEAF_AGAIN;
    out->paused = 0;
    memcpy(out->initial_model, initial_model, SHEAF_DIGEST_BYTES);
    return SHEAF_OK;
}

sheaf_status sheaf_database_job_end(sheaf_database *database, int64_t job, sheaf_status why, sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, JOB_END);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, (uint64_t)why);
    return run(database, statement, "end a job", problem);
}

sheaf_status sheaf_database_job_pause(sheaf_database *database, int64_t job, int paused, sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, JOB_PAUSE);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, paused ? 1 : 0);
    return run(database, statement, "pause a job", problem);
}

sheaf_status sheaf_database_round_open(sheaf_database *database, int64_t job, const sheaf_round_row *row,
                                       sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, ROUND_OPEN);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, row->round);
    bind_u64(statement, 3, row->attempt);
    bind_blob(statement, 4, sheaf_span_of(row->statement_bytes, row->statement_size));
    bind_blob(statement, 5, sheaf_span_of(row->signature, row->signature_size));
    bind_blob(statement, 6, sheaf_span_of(row->plan, row->plan_size));
    bind_u64(statement, 7, row->statement.opened_unix_ms);
    return run(database, statement, "open a round", problem);
}

sheaf_status sheaf_database_round_sign(sheaf_database *database, int64_t job, const sheaf_round_row *row,
                                       sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, ROUND_SIGN);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, row->round);
    bind_u64(statement, 3, row->attempt);
    bind_blob(statement, 4, sheaf_span_of(row->statement_bytes, row->statement_size));
    bind_blob(statement, 5, sheaf_span_of(row->signature, row->signature_size));
    sheaf_status status = run(database, statement, "sign a round again", problem);
    if (status == SHEAF_OK && sqlite3_changes(database->handle) != 1)
        status = sheaf_problem_set(problem, SHEAF_E_NOT_FOUND, "database: the round to sign is not open");
    return status;
}

sheaf_status sheaf_database_round_close(sheaf_database *database, int64_t job, const sheaf_round_row *row,
                                        sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, ROUND_CLOSE);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, row->round);
    bind_u64(statement, 3, row->attempt);
    bind_u64(statement, 4, row->outcome);
    bind_u64(statement, 5, (uint64_t)row->reason);
    bind_u64(statement, 6, row->closed_unix_ms);
    bind_u64(statement, 7, row->accepted);
    bind_u64(statement, 8, row->refused);
    bind_u64(statement, 9, row->upload_bytes);
    bind_u64(statement, 10, row->weight);
    bind_loss(statement, 11, row->training_loss);
    if (row->outcome == SHEAF_ROUND_RELEASED) bind_blob(statement, 12, sheaf_span_of(row->model, sizeof row->model));
    sheaf_status status = run(database, statement, "close a round", problem);
    if (status == SHEAF_OK && sqlite3_changes(database->handle) != 1) {
        status = sheaf_problem_set(problem, SHEAF_E_NOT_FOUND, "database: the round to close is not open");
    }
    return status;
}

static sheaf_status read_round(sqlite3_stmt *statement, sheaf_round_row *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    out->round = (uint64_t)sqlite3_column_int64(statement, 0);
    out->attempt = (uint32_t)sqlite3_column_int64(statement, 1);
    out->outcome = (sheaf_round_outcome)sqlite3_column_int(statement, 2);
    out->reason = sheaf_status_from_number(sqlite3_column_int(statement, 3));
    int ok = column_blob(statement, 4, out->statement_bytes, sizeof out->statement_bytes, &out->statement_size) &&
             column_blob(statement, 5, out->signature, sizeof out->signature, &out->signature_size) &&
             column_blob(statement, 6, out->plan, sizeof out->plan, &out->plan_size);
    out->closed_unix_ms = (uint64_t)sqlite3_column_int64(statement, 7);
    out->accepted = (uint64_t)sqlite3_column_int64(statement, 8);
    out->refused = (uint64_t)sqlite3_column_int64(statement, 9);
    out->upload_bytes = (uint64_t)sqlite3_column_int64(statement, 10);
    out->weight = (uint64_t)sqlite3_column_int64(statement, 11);
    out->training_loss = column_loss(statement, 12);
    if (out->outcome == SHEAF_ROUND_RELEASED) ok = ok && column_digest(statement, 13, out->model);
    ok = ok && sheaf_round_statement_decode(sheaf_span_of(out->statement_bytes, out->statement_size),
                                            &out->statement) == SHEAF_OK;
    return ok ? SHEAF_OK
              : sheaf_problem_set(problem, SHEAF_E_CORRUPT, "database: round %llu is damaged",
                                  (unsigned long long)out->round);
}

static sheaf_status one_round(sheaf_database *database, sqlite3_stmt *statement, sheaf_round_row *out,
                              sheaf_problem *problem) {
    int code = sqlite3_step(statement);
    sheaf_status status;
    if (code == SQLITE_ROW)
        status = read_round(statement, out, problem);
    else if (code == SQLITE_DONE)
        status = sheaf_problem_set(problem, SHEAF_E_NOT_FOUND, "database: no such round");
    else
        status = fail(database, code, "read a round", problem);
    (void)sqlite3_reset(statement);
    return status;
}

sheaf_status sheaf_database_round_last(sheaf_database *database, int64_t job, sheaf_round_row *out,
                                       sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, ROUND_LAST);
    (void)sqlite3_bind_int64(statement, 1, job);
    return one_round(database, statement, out, problem);
}

sheaf_status sheaf_database_round_released(sheaf_database *database, int64_t job, uint64_t round, sheaf_round_row *out,
                                           sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, ROUND_RELEASED);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, round);
    return one_round(database, statement, out, problem);
}

sheaf_status sheaf_database_update_insert(sheaf_database *database, int64_t job, const sheaf_update_row *row,
                                          sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, UPDATE_INSERT);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, row->round);
    bind_u64(statement, 3, row->attempt);
    bind_text(statement, 4, row->client);
    bind_blob(statement, 5, row->statement);
    bind_blob(statement, 6, row->signature);
    bind_blob(statement, 7, row->receipt);
    bind_blob(statement, 8, row->receipt_signature);
    bind_blob(statement, 9, sheaf_span_of(row->payload_digest, SHEAF_DIGEST_BYTES));
    bind_u64(statement, 10, row->payload_bytes);
    (void)sqlite3_bind_int64(statement, 11, row->weight);
    bind_loss(statement, 12, row->training_loss);
    bind_u64(statement, 13, row->accepted_unix_ms);
    return run(database, statement, "keep an update", problem);
}

static sheaf_status read_update(sqlite3_stmt *statement, sheaf_update_row *out, sheaf_problem *problem) {
    memset(out, 0, sizeof *out);
    out->round = (uint64_t)sqlite3_column_int64(statement, 0);
    out->attempt = (uint32_t)sqlite3_column_int64(statement, 1);
    const char *client = (const char *)sqlite3_column_text(statement, 2);
    int ok = client != NULL && sheaf_name_ok(client);
    if (ok) memcpy(out->client, client, strlen(client) + 1);
    out->statement = column_span(statement, 3);
    out->signature = column_span(statement, 4);
    out->receipt = column_span(statement, 5);
    out->receipt_signature = column_span(statement, 6);
    ok = ok && column_digest(statement, 7, out->payload_digest);
    out->payload_bytes = (uint64_t)sqlite3_column_int64(statement, 8);
    out->weight = sqlite3_column_int64(statement, 9);
    out->training_loss = column_loss(statement, 10);
    out->accepted_unix_ms = (uint64_t)sqlite3_column_int64(statement, 11);
    return ok ? SHEAF_OK
              : sheaf_problem_set(problem, SHEAF_E_CORRUPT, "database: an update of round %llu is damaged",
                                  (unsigned long long)out->round);
}

sheaf_status sheaf_database_receipt_find(sheaf_database *database, int64_t job, uint64_t round, const char *client,
                                         sheaf_receipt_row *out, sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, RECEIPT_FIND);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, round);
    bind_text(statement, 3, client);
    int code = sqlite3_step(statement);
    sheaf_status status = SHEAF_OK;
    if (code == SQLITE_DONE)
        status = sheaf_problem_set(problem, SHEAF_E_NOT_FOUND, "database: no such update");
    else if (code != SQLITE_ROW)
        status = fail(database, code, "look up a receipt", problem);
    else if (!column_digest(statement, 0, out->payload_digest) ||
             !column_blob(statement, 1, out->statement, sizeof out->statement, &out->statement_size) ||
             !column_blob(statement, 2, out->signature, sizeof out->signature, &out->signature_size)) {
        status = sheaf_problem_set(problem, SHEAF_E_CORRUPT, "database: a receipt of %s is damaged", client);
    }
    (void)sqlite3_reset(statement);
    return status;
}

sheaf_status sheaf_database_updates_of(sheaf_database *database, int64_t job, uint64_t round,
                                       sheaf_status (*each)(void *context, const sheaf_update_row *row), void *context,
                                       sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, UPDATES_OF);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, round);
    sheaf_status status = SHEAF_OK;
    int code = sqlite3_step(statement);
    while (status == SHEAF_OK && code == SQLITE_ROW) {
        sheaf_update_row row;
        status = read_update(statement, &row, problem);
        if (status == SHEAF_OK) status = each(context, &row);
        if (status == SHEAF_OK) code = sqlite3_step(statement);
    }
    if (status == SHEAF_OK && code != SQLITE_DONE) status = fail(database, code, "read a round's updates", problem);
    (void)sqlite3_reset(statement);
    return status;
}

sheaf_status sheaf_database_refusals_add(sheaf_database *database, int64_t job, uint64_t round, sheaf_status reason,
                                         uint64_t count, sheaf_problem *problem) {
    sqlite3_stmt *statement = take(database, REFUSALS_ADD);
    (void)sqlite3_bind_int64(statement, 1, job);
    bind_u64(statement, 2, round);
    bind_text(statement, 3, sheaf_status_name(reason));
    bind_u64(statement, 4, count);
    return run(database, statement, "count refusals", problem);
}
