/* A body becomes work: parsed, its prompts turned into ids, all checked, then given to the engine; nothing is submitted
 * before everything that can be wrong was looked at.
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

/* ---- the body --------------------------------------------------------------------------------------------------- */

static void note_unknown(gy_app *a, const gy_oai_request *q) {
    if (!q->n_unknown) return;
    gy_oai_metrics_unknown_fields(a->metrics, q->n_unknown);
    for (int32_t i = 0; i < q->n_unknown && i < GY_OAI_MAX_UNKNOWN; i++) {
        char name[300];
        if (gy_oai_seen_add(a->seen, q->unknown[i]))
            gy_log(GY_LOG_WARN, "server", "a request has a field that is not known: ignored", "field=%s",
                   gy_log_quote(q->unknown[i], name, sizeof name));
    }
}

gy_oai_request *gy_app_parse(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    size_t len;
    gy_oai_error e;
    gy_oai_request *q = NULL;
    const char *body = gy_http_req_body(r, &len);
    if (gy_oai_request_parse(c->route->kind, body, len, &a->cfg, &e, &q) < 0) {
        gy_app_refuse(a, r, c, &e, NULL);
        return NULL;
    }
    note_unknown(a, q);
    return q;
}

/* What the parser understands and this build does not do yet. */
static gy_status check_can(const gy_oai_request *q, gy_oai_error *e) {
    if (q->constraint.kind != GY_OAI_FREE)
        return gy_oai_error_set(e, GY_OAI_E_UNSUPPORTED, q->constraint.field,
                                "%s: constrained output is not supported yet; leave it out", q->constraint.field);
    if (q->tools && q->tool_choice != GY_OAI_TOOL_NONE)
        return gy_oai_error_set(
            e, GY_OAI_E_UNSUPPORTED, "tools",
            "tools: calls are not taken out of the text yet; leave tools out or say tool_choice none");
    return GY_OK;
}

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

static gy_status make_ids(gy_app_req *r, int32_t i, gy_oai_error *e) {
    gy_app *a = r->app;
    gy_app_sub *s = &r->sub[i];
    if (r->q->n_message)
        GY_TRY(gy_app_chat_ids(a->scratch, r->q, e, &s->ids, &r->in_reasoning));
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
    char id[GY_APP_MAX_ID + 16], own[32];
    gy_app_new_id(a, own, sizeof own);
    snprintf(id, sizeof id, "%s-%.*s", r->q->kind == GY_OAI_CHAT ? "chatcmpl" : "cmpl", GY_APP_MAX_ID,
             r->q->request_id ? r->q->request_id : own);
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

static gy_status prepare(gy_app_req *r, gy_oai_error *e) {
    GY_TRY(check_can(r->q, e));
    GY_TRY(make_subs(r, e));
    for (int32_t i = 0; i < r->q->n_prompt; i++) GY_TRY(make_ids(r, i, e));
    GY_TRY(make_reply(r, e));
    for (int32_t i = 0; i < r->q->n_prompt; i++) GY_TRY(tell_prompt(r, i, e));
    return GY_OK;
}

/* ---- submit ----------------------------------------------------------------------------------------------------- */

static gy_status submit(gy_app_req *r, gy_oai_error *e) {
    gy_app *a = r->app;
    for (int32_t i = 0; i < r->q->n_prompt; i++) {
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
        r->n_live++;
        gy_vec_free(&s->ids);
        gy_oai_metrics_request(a->metrics, r->q->base.n, r->q->base.max_tokens);
    }
    r->phase = GY_APP_SUBMITTED;
    return GY_OK;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static gy_app_req *new_req(gy_app *a, gy_http_req *http, const gy_app_call *c) {
    gy_app_req *r = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *r);
    if (!r) return NULL;
    r->app = a;
    r->http = http;
    r->call = *c;
    r->next = a->reqs;
    if (a->reqs) a->reqs->prev = r;
    a->reqs = r;
    return r;
}

void gy_app_release(gy_app_req *r) {
    gy_app *a = r->app;
    GY_CHECK(r->n_live == 0);
    *(r->prev ? &r->prev->next : &a->reqs) = r->next;
    if (r->next) r->next->prev = r->prev;
    gy_oai_reply_destroy(r->reply); /* borrows q */
    for (int32_t i = 0; r->sub && i < r->q->n_prompt; i++) {
        gy_vec_free(&r->sub[i].ids);
        gy_mem_free(r->sub[i].last_ns);
    }
    gy_mem_free(r->sub);
    gy_oai_request_free(r->q);
    gy_mem_free(r);
}

void gy_app_generate(gy_app *a, gy_http_req *http, const gy_app_call *c) {
    gy_oai_error e;
    gy_oai_request *q = gy_app_parse(a, http, c);
    if (!q) return;
    gy_app_req *r = new_req(a, http, c);
    if (!r) {
        gy_oai_request_free(q);
        no_memory(&e);
        gy_app_refuse(a, http, c, &e, NULL);
        return;
    }
    r->q = q;
    gy_http_req_set_user(http, r);
    if (prepare(r, &e) < 0 || submit(r, &e) < 0) gy_app_fail(r, &e);
}
