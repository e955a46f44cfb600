/* Between the base model and the update stands somebody else's trainer: it gets values in blocks, works in slices, and
 * is asked for values in blocks. */
#include "client/core/session.h"

void sheaf_session_plan_view(const sheaf_session *s, sheaf_edge_plan *out) {
    const sheaf_plan *plan = &s->plan;
    out->tenant = s->port.tenant;
    out->job = s->port.job;
    out->client = s->port.client;
    out->round = s->round.round;
    out->attempt = s->round.attempt;
    out->epochs = plan->epochs;
    out->batch = plan->batch;
    out->learning_rate = plan->learning_rate;
    out->momentum = plan->momentum;
    memcpy(out->seed, s->seed, sizeof out->seed);
    out->weight_cap = plan->weight_cap;
    out->progress_s = plan->progress_s;
    out->encoding = plan->encoding;
}

sheaf_status sheaf_session_begin_load(sheaf_session *s) {
    const sheaf_trainer *trainer = &s->port.trainer;
    memset(&s->walk, 0, sizeof s->walk);
    memset(&s->progress, 0, sizeof s->progress);
    s->told_training = 0;
    if (trainer->begin == NULL) return SHEAF_OK;
    sheaf_edge_plan plan;
    sheaf_session_plan_view(s, &plan);
    return trainer->begin(&plan, trainer->context);
}

sheaf_status sheaf_session_load(sheaf_session *s) {
    sheaf_edge_tensor tensor;
    uint64_t first;
    size_t count;
    sheaf_status status = sheaf_session_walk_next(s, s->port.work, s->port.work_values, &tensor, &first, &count);
    if (status == SHEAF_ENDED) return SHEAF_OK;
    if (status != SHEAF_OK) return status;
    status = s->port.trainer.load(&tensor, first, s->port.work, count, s->port.trainer.context);
    return status == SHEAF_OK ? SHEAF_AGAIN : status;
}

static void tell_progress(sheaf_session *s) {
    if (s->progress.done_permille > 1000) s->progress.done_permille = 1000;
    if (s->told_training && s->progress.done_permille == s->told_permille) return;
    s->told_training = 1;
    s->told_permille = s->progress.done_permille;
    sheaf_edge_event event = sheaf_session_event(s, SHEAF_EDGE_TRAINING, SHEAF_OK);
    sheaf_session_tell(s, &event);
}

sheaf_status sheaf_session_train(sheaf_session *s) {
    sheaf_edge_plan plan;
    sheaf_session_plan_view(s, &plan);
    s->progress.stop = s->stop;
    s->progress.wait_ms = 0;
    sheaf_status status = s->port.trainer.train(&plan, &s->progress, s->port.trainer.context);
    if (status == SHEAF_AGAIN) s->work_ms = sheaf_session_now(s) + s->progress.wait_ms;
    if (status == SHEAF_OK) s->progress.done_permille = 1000;
    if (status == SHEAF_OK || status == SHEAF_AGAIN) tell_progress(s);
    return status;
}

void sheaf_session_cancel_training(sheaf_session *s) {
    if (s->port.trainer.cancel != NULL) s->port.trainer.cancel(s->port.trainer.context);
}
