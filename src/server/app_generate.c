/* A request becomes work of the engine: its prompts turned into ids, what its output must be compiled, all checked, on
 * whatever thread; then, on the loop, given to the engine. Nothing is submitted before everything that can be wrong was
 * looked at.
 */
#include "server/app_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static gy_status no_memory(gy_oai_error *e) {
    return gy_oai_error_set(e, GY_OAI_E_BUSY, NULL, "no memory for this request now; try again later");
}

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

static gy_status make_ids(gy_app_req *r, gy_app_scratch *t, int32_t i, gy_oai_error *e) {
    gy_app *a = r->app;
    gy_app_sub *s = &r->sub[i];
    if (r->q->n_message)
        GY_TRY(gy_app_chat_ids(t, r->q, e, &s->ids, &r->in_reasoning));
    else
        GY_TRY(gy_app_prompt(a, r->q, i, e, &s->ids, &s->is_cut));
    if (s->ids.len == 0)
        return gy_oai_error_set(e, GY_OAI_E_BAD_REQUEST, r->q->n_message ? "messages" : "prompt",
                                "%s: found no token, expected at least one", r->q->n_message ? "messages" : "prompt");
    GY_TRY(gy_oai_request_check_length(r->q, (int64_t)s->ids.len, a->info->max_len, e));
    gyre_request *run = &r->q->run[i];
    run->prompt = NULL;
    run->n_prompt = 0;
    run->plain_prompt = 0;
    run->prompt_ids = s->ids.data;
    run->n_prompt_ids = (int32_t)s->ids.len;
    run->user = s;
    return GY_OK;
}

/* The text that echo puts in front: as it was sent where it was one text, else what the ids spell. */
static gy_status tell_prompt(gy_app_req *r, int32_t i, gy_oai_error *e) {
    const gy_oai_prompt *p = &r->q->prompts[i];
    const gy_app_sub *s = &r->sub[i];
    const char *text = NULL;
    size_t n = 0;
    gy_str spelt = {0};
    if (r->q->echo && p->n_seg == 1 && p->seg[0].text && !s->is_cut) {
        text = p->seg[0].text;
        n = p->seg[0].n_text;
    } else if (r->q->echo && r->app->info->has_tokenizer) {
        gy_status st = gy_app_decode(r->app, s->ids.data, s->ids.len, 0, e, &spelt);
        if (st < 0) {
            gy_str_free(&spelt);
            return st;
        }
        text = gy_str_z(&spelt);
        n = spelt.len;
    }
    gy_status st = gy_oai_reply_prompt(r->reply, i, s->ids.data, (int32_t)s->ids.len, text, n);
    gy_str_free(&spelt);
    return st < 0 ? no_memory(e) : GY_OK;
}

static gy_status make_reply(gy_app_req *r, gy_oai_error *e) {
    gy_app *a = r->app;
    char id[GY_APP_MAX_ID + 16];
    snprintf(id, sizeof id, "%s-%.*s", r->q->kind == GY_OAI_CHAT ? "chatcmpl" : "cmpl", GY_APP_MAX_ID,
             r->q->request_id ? r->q->request_id : r->own_id);
    id[strlen(id) - (size_t)gy_utf8_incomplete_tail(id, strlen(id))] = '\0';
    const gy_oai_reply_options o = {.id = id,
                                    .created_s = r->call.wall_ns / 1000000000,
                                    .fingerprint = a->fingerprint,
                                    .piece = a->info->has_tokenizer ? gy_app_piece : NULL,
                                    .piece_user = a->scratch};
    return gy_oai_reply_create(r->q, &o, &r->reply) < 0 ? no_memory(e) : GY_OK;
}

static gy_status make_subs(gy_app_req *r, gy_oai_error *e) {
    size_t n_choice = (size_t)r->q->base.n;
    r->sub = gy_mem_alloc(GY_MEM_SERVER, (size_t)r->q->n_prompt, sizeof *r->sub);
    if (!r->sub) return no_memory(e);
    for (int32_t i = 0; i < r->q->n_prompt; i++) {
        r->sub[i].req = r;
        r->sub[i].prompt = i;
        r->sub[i].last_ns = gy_mem_alloc(GY_MEM_SERVER, n_choice, sizeof *r->sub[i].last_ns);
        if (!r->sub[i].last_ns) return no_memory(e);
    }
    return GY_OK;
}

/* A client that left meanwhile is told nothing: any error will do. */
static gy_status go_on(gy_app_req *r, gy_oai_error *e) {
    if (!atomic_load(&r->is_unwanted)) return GY_OK;
    return gy_oai_error_set(e, GY_OAI_E_CANCELLED, NULL, "the client left");
}

gy_status gy_app_generate(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e) {
    GY_TRY(make_subs(r, e));
    for (int32_t i = 0; i < r->q->n_prompt; i++) {
        GY_TRY(go_on(r, e));
        GY_TRY(make_ids(r, t, i, e));
    }
    GY_TRY(go_on(r, e));
    GY_TRY(gy_app_constrain(r, e));
    GY_TRY(make_reply(r, e));
    GY_TRY(gy_app_chat_out_open(r, e));
    for (int32_t i = 0; i < r->q->n_prompt; i++) GY_TRY(tell_prompt(r, i, e));
    return GY_OK;
}

/* ---- the backlog ------------------------------------------------------------------------------------------------ */

enum { FADE_NS = 1000000000 * 10ll, MAX_RETRY_S = 60 };

void gy_app_started(gy_app_sub *s) {
    s->req->app->backlog.tok -= s->wait_tok;
    s->wait_tok = 0;
}

/* Steps with prompt tokens, decoding beside them included: so fast the backlog shrinks. */
void gy_app_backlog_note(gy_app *a, const gyre_stats *s) {
    gy_app_backlog *b = &a->backlog;
    if (s->n_prompt_tok > b->seen_tok) {
        b->tok_sum += (double)(s->n_prompt_tok - b->seen_tok);
        b->ns_sum += (double)(s->step_ns - b->seen_ns);
    }
    b->seen_tok = s->n_prompt_tok;
    b->seen_ns = s->step_ns;
    if (b->ns_sum < FADE_NS) return;
    b->tok_sum /= 2;
    b->ns_sum /= 2;
}

double gy_app_prefill_rate(const gy_app *a) {
    return a->backlog.ns_sum > 0 ? a->backlog.tok_sum / a->backlog.ns_sum * 1e9 : 0;
}

/* When the backlog will have shrunk enough, in whole seconds. */
static int retry_after(const gy_app *a, int64_t too_many) {
    double rate = gy_app_prefill_rate(a);
    if (rate <= 0) return 1;
    double s = (double)too_many / rate;
    return s >= MAX_RETRY_S ? MAX_RETRY_S : (int)s + 1;
}

/* What comes when nothing waits is taken, however long it is: else it could never be. */
static gy_status check_backlog(const gy_app_req *r, gy_oai_error *e) {
    const gy_app_backlog *b = &r->app->backlog;
    int64_t max = r->app->o.max_queue_tokens, more = 0;
    for (int32_t i = 0; i < r->q->n_prompt; i++) more += (int64_t)r->sub[i].ids.len;
    if (!max || !b->tok || b->tok + more <= max) return GY_OK;
    gy_status st = gy_oai_error_set(e, GY_OAI_E_QUEUE, NULL,
                                    "%lld prompt tokens wait and this request has %lld, together at most %lld may; "
                                    "try again later",
                                    (long long)b->tok, (long long)more, (long long)max);
    e->retry_after_s = retry_after(r->app, b->tok + more - max);
    return st;
}

/* ---- submit ----------------------------------------------------------------------------------------------------- */

static gy_status submit_one(gy_app_req *r, int32_t i, gy_oai_error *e) {
    gy_app *a = r->app;
    gy_app_sub *s = &r->sub[i];
    gyre_err err = {0};
    gyre_status st = gyre_submit(a->g, &r->q->run[i], &err, &s->id);
    if (st != GYRE_OK) {
        if (gyre_status_group(st) == GYRE_GROUP_ENGINE) gy_app_check_lost(a);
        gy_oai_error_from_status(e, st, err.msg);
        return GY_E_LIMIT;
    }
    s->live = 1;
    s->submit_ns = gy_clock_ns();
    s->wait_tok = (int64_t)s->ids.len;
    a->backlog.tok += s->wait_tok;
    r->n_live++;
    gy_vec_free(&s->ids);
    gy_oai_metrics_request(a->metrics, r->q->base.n, r->q->base.max_tokens);
    return GY_OK;
}

gy_status gy_app_submit(gy_app_req *r, gy_oai_error *e) {
    GY_TRY(check_backlog(r, e));
    for (int32_t i = 0; i < r->q->n_prompt; i++) GY_TRY(submit_one(r, i, e));
    gyre_grammar_release(r->grammar); /* the engine has references of its own */
    r->grammar = NULL;
    r->phase = GY_APP_SUBMITTED;
    return GY_OK;
}
