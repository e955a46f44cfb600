/* rounds.c - closed rounds of a job, and what one round took. */
#include <stdlib.h>

#include "server/operator/call.h"

enum { PAGE_PRESET = 100, PAGE_MAX = 1000 };

typedef struct {
    json_t *list;
    uint64_t left;   /* how many still fit the page */
    uint64_t wanted; /* only this round; 0: any */
    uint64_t last_round;
    uint32_t last_attempt;
} page;

static json_t *round_of(const sheaf_round_summary *round) {
    return json_pack("{s:I, s:I, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "round", (json_int_t)round->round,
                     "attempt", (json_int_t)round->attempt, "released", round->released, "reason",
                     sheaf_status_name(round->reason), "opened_unix_ms", (json_int_t)round->opened_unix_ms,
                     "closed_unix_ms", (json_int_t)round->closed_unix_ms, "accepted", (json_int_t)round->accepted,
                     "refused", (json_int_t)round->refused, "upload_bytes", (json_int_t)round->upload_bytes, "weight",
                     (json_int_t)round->weight, "training_loss", sheaf_json_real(round->training_loss), "model_digest",
                     round->released ? sheaf_json_hex(round->model) : json_null());
}

static sheaf_status add_round(const sheaf_round_summary *round, void *context) {
    page *to = context;
    if (to->left == 0 || (to->wanted != 0 && round->round != to->wanted)) return SHEAF_ENDED;
    to->left--;
    to->last_round = round->round;
    to->last_attempt = round->attempt;
    return json_array_append_new(to->list, round_of(round)) == 0 ? SHEAF_OK : SHEAF_E_MEMORY;
}

static sheaf_status add_update(const sheaf_update_summary *update, void *context) {
    page *to = context;
    if (to->left == 0) return SHEAF_ENDED;
    to->left--;
    to->last_round = update->arrival;
    json_t *row = json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "client", update->client, "attempt",
                            (json_int_t)update->attempt, "weight", (json_int_t)update->weight, "payload_bytes",
                            (json_int_t)update->payload_bytes, "accepted_unix_ms", (json_int_t)update->accepted_unix_ms,
                            "training_loss", sheaf_json_real(update->training_loss), "payload_digest",
                            sheaf_json_hex(update->payload_digest));
    return json_array_append_new(to->list, row) == 0 ? SHEAF_OK : SHEAF_E_MEMORY;
}

/* 1 when a page is whole; else it was answered. */
static int is_whole(sheaf_call *call, sheaf_status status, const sheaf_problem *problem) {
    if (status == SHEAF_OK || status == SHEAF_ENDED) return 1;
    sheaf_call_refuse(call, sheaf_call_code_of(status), status, "%s", problem->text);
    return 0;
}

void sheaf_get_rounds(sheaf_call *call) {
    sheaf_job_summary job;
    sheaf_problem problem = {SHEAF_E_MEMORY, "no memory for the answer"};
    uint64_t after, attempt, limit;
    if (!sheaf_call_number(call, "after", 0, INT64_MAX, &after) ||
        !sheaf_call_number(call, "after_attempt", after == 0 ? 0 : UINT32_MAX, UINT32_MAX, &attempt) ||
        !sheaf_call_number(call, "limit", PAGE_PRESET, PAGE_MAX, &limit) || !sheaf_call_job_summary(call, &job))
        return;
    page to = {.list = json_array(), .left = limit};
    sheaf_status status =
        sheaf_history_rounds(call->operator->history, job.id, after, (uint32_t)attempt, add_round, &to, &problem);
    if (!is_whole(call, status, &problem)) {
        json_decref(to.list);
        return;
    }
    json_t *next = status == SHEAF_ENDED ? json_pack("{s:I, s:I}", "after", (json_int_t)to.last_round, "after_attempt",
                                                     (json_int_t)to.last_attempt)
                                         : json_null();
    sheaf_call_answer(
        call, 200,
        json_pack("{s:s, s:s, s:o, s:o}", "tenant", job.tenant, "job", job.name, "rounds", to.list, "next", next));
}

static json_t *open_attempt_of(const sheaf_job_summary *job) {
    return json_pack("{s:I, s:I, s:I}", "round", (json_int_t)job->open_round, "attempt", (json_int_t)job->open_attempt,
                     "accepted", (json_int_t)job->open_accepted);
}

static void answer_round(sheaf_call *call, const sheaf_job_summary *job, uint64_t number, page *attempts,
                         const page *updates, int more) {
    int is_open = job->open_round == number;
    if (json_array_size(attempts->list) == 0 && !is_open) {
        sheaf_call_refuse(call, 404, SHEAF_E_NOT_FOUND, "the job has no round %llu yet", (unsigned long long)number);
        return;
    }
    /* What is counted since the last round closed is written down with the open one. */
    json_t *refusals = sheaf_operator_refusals(call->operator, job->id, number,
                                               is_open ? sheaf_operator_live_refusals(call->operator, job) : NULL);
    sheaf_call_answer(call, 200,
                      json_pack("{s:s, s:s, s:I, s:O, s:o, s:o, s:O, s:o}", "tenant", job->tenant, "job", job->name,
                                "round", (json_int_t)number, "attempts", attempts->list, "open",
                                is_open ? open_attempt_of(job) : json_null(), "refusals", refusals, "updates",
                                updates->list, "next",
                                more ? json_integer((json_int_t)updates->last_round) : json_null()));
}

void sheaf_get_round(sheaf_call *call) {
    sheaf_job_summary job;
    sheaf_problem problem = {SHEAF_E_MEMORY, "no memory for the answer"};
    uint64_t after, limit;
    size_t digits = strspn(call->names[2], "0123456789");
    if (digits == 0 || digits > 18 || call->names[2][digits] != '\0') {
        sheaf_call_refuse(call, 400, SHEAF_E_MALFORMED, "'%s' is no number of a round", call->names[2]);
        return;
    }
    uint64_t number = strtoull(call->names[2], NULL, 10);
    if (!sheaf_call_number(call, "after", 0, INT64_MAX, &after) ||
        !sheaf_call_number(call, "limit", PAGE_PRESET, PAGE_MAX, &limit) || !sheaf_call_job_summary(call, &job))
        return;
    page attempts = {.list = json_array(), .left = PAGE_MAX, .wanted = number},
         updates = {.list = json_array(), .left = limit};
    sheaf_status status = number == 0 ? SHEAF_OK
                                      : sheaf_history_rounds(call->operator->history, job.id, number - 1, UINT32_MAX,
                                                             add_round, &attempts, &problem);
    if (status == SHEAF_OK || status == SHEAF_ENDED)
        status = sheaf_history_updates(call->operator->history, job.id, number, after, add_update, &updates, &problem);
    if (is_whole(call, status, &problem)) answer_round(call, &job, number, &attempts, &updates, status == SHEAF_ENDED);
    json_decref(attempts.list);
    json_decref(updates.list);
}
