/* A request's callbacks, as messages. Nothing is kept: send queues copies. */
#include "pd/worker_int.h"

#include <string.h>

static void set_token(gy_msg_token *t, const gy_sampled *s) {
    t->token = s->id;
    t->logprob = s->logprob;
    t->n_top = s->n_top;
    memcpy(t->top_id, s->top_id, (size_t)s->n_top * sizeof *t->top_id);
    memcpy(t->top_logprob, s->top_logprob, (size_t)s->n_top * sizeof *t->top_logprob);
}

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    gy_part *t = arg;
    gy_msg m = {.kind = GY_MSG_TOKEN, .tid = t->tid};
    set_token(&m.token, ev->sampled);
    m.token.choice = ev->choice;
    m.token.index = ev->index;
    m.token.token = ev->token;
    m.token.loops = ev->loops;
    if (ev->gates) {
        m.token.n_gate = ev->n_gate;
        m.token.gates = ev->gates;
    }
    t->w->o.send(t->w->o.user, &m);
    return GY_CONTINUE;
}

static void on_prompt(void *arg, const gy_prompt_event *ev) {
    gy_part *t = arg;
    gy_msg m = {.kind = GY_MSG_PROMPT, .tid = t->tid};
    set_token(&m.token, ev->sampled);
    m.token.index = ev->pos;
    t->w->o.send(t->w->o.user, &m);
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    gy_part *t = arg;
    gy_msg m = {.kind = GY_MSG_FINISH, .tid = t->tid};
    m.finish = (gy_msg_finish){.choice = ev->choice,
                               .n_left = ev->n_left,
                               .reason = ev->reason,
                               .stop_id = ev->stop_id,
                               .n_prompt = ev->n_prompt,
                               .n_output = ev->n_output,
                               .n_cached = ev->n_cached,
                               .n_preempt = ev->n_preempt,
                               .seed = ev->seed,
                               .admit_ns = ev->admit_ns,
                               .first_token_ns = ev->first_token_ns,
                               .finish_ns = ev->finish_ns};
    if (ev->err) {
        m.status = ev->err->status;
        m.text = ev->err->msg;
        m.n_text = (int32_t)strlen(ev->err->msg);
    }
    t->w->o.send(t->w->o.user, &m);
    if (ev->n_left) return;
    t->engine_over = 1;
    t->w->n_over++;
}

void gy_part_listen(gy_part *t) {
    t->r.on_token = on_token;
    t->r.on_prompt = on_prompt;
    t->r.on_finish = on_finish;
    t->r.arg = t;
}
