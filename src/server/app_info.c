/* Routes that need no request of the engine: models, health, metrics, version, tokens and text. */
#include "server/app_int.h"

#include "server/app_openapi.h"
#include "server/oai_info.h"

#include <string.h>

static const char JSON[] = "application/json";

static gy_str *fresh(gy_app *a) {
    if (a->out.failed) {
        gy_str_free(&a->out);
        a->out = (gy_str){0};
    }
    gy_str_clear(&a->out);
    return &a->out;
}

void gy_app_list(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    gy_str *out = fresh(a);
    gy_str_printf(out, "gyre %s\n\n", gyre_version());
    gy_str_puts(out, "POST /v1/completions        text or token ids; stream with \"stream\": true\n"
                     "POST /v1/chat/completions   messages, through the model's chat template\n"
                     "POST /tokenize              text or messages to token ids\n"
                     "POST /detokenize            token ids to text\n"
                     "POST /apply_template        messages to the prompt's text\n"
                     "GET  /                      the playground, a page\n"
                     "GET  /v1/models             what is served\n"
                     "GET  /health                200 when a request would be served, else 503\n"
                     "GET  /metrics               for Prometheus\n"
                     "GET  /stats                 requests that run or wait, KV blocks that they hold\n"
                     "GET  /version               the version\n"
                     "GET  /openapi.json          all of this, field by field\n");
    gy_app_answer(a, r, c, "text/plain; charset=utf-8", out);
}

/* Requests are still let in, and wait; whoever can should send them elsewhere. */
static int nobody_decodes(const gy_app *a, gy_oai_error *e) {
    const gyre_options *o = &a->o.engine;
    gyre_stats s;
    if (!o->peers && !o->etcd && !o->prefill && !o->decode && !o->hybrid) return 0;
    gyre_get_stats(a->g, &s, sizeof s);
    if (s.worker.n_decoder) return 0;
    gy_oai_error_set(e, GY_OAI_E_LOADING, NULL, "no worker that decodes is ready; requests wait");
    return 1;
}

void gy_app_health(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    gy_oai_error e;
    if (a->is_serving) gy_app_check_lost(a);
    if (!gy_app_is_ready(a, &e) || nobody_decodes(a, &e)) {
        gy_app_refuse(a, r, c, &e, NULL);
        return;
    }
    gy_str *out = fresh(a);
    gy_oai_health_body("ok", out);
    gy_app_answer(a, r, c, JSON, out);
}

void gy_app_version(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    gy_str *out = fresh(a);
    gy_oai_version_body(gyre_version(), out);
    gy_app_answer(a, r, c, JSON, out);
}

void gy_app_openapi(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    gy_str *out = fresh(a);
    gy_str_append(out, (const char *)gy_app_openapi_file, gy_app_openapi_file_len);
    gy_app_answer(a, r, c, JSON, out);
}

static gy_oai_model_facts facts(const gy_app *a) {
    const gyre_info *i = a->info;
    return (gy_oai_model_facts){.family = i->family,
                                .max_len = i->max_len,
                                .n_loop = i->n_loop,
                                .max_loops = i->max_loops,
                                .has_gate = i->has_gate,
                                .has_tokenizer = i->has_tokenizer,
                                .has_template = gy_app_has_template(a)};
}

void gy_app_models(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    gy_oai_model_facts f = facts(a);
    gy_str *out = fresh(a);
    gy_oai_models_body(a->o.names.s, (int32_t)a->o.names.n, a->created_s, &f, out);
    gy_app_answer(a, r, c, JSON, out);
}

void gy_app_one_model(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    size_t n, skip = strlen(c->route->path) - 1;
    const char *path = gy_http_req_path(r, &n);
    gy_str *out = fresh(a);
    gy_oai_model_facts f = facts(a);
    for (size_t i = 0; i < a->o.names.n; i++) {
        const char *name = a->o.names.s[i];
        if (strlen(name) != n - skip || memcmp(name, path + skip, n - skip) != 0) continue;
        gy_oai_model_body(name, a->o.names.s[0], a->created_s, &f, out);
        gy_app_answer(a, r, c, JSON, out);
        return;
    }
    gy_oai_error e;
    gy_oai_error_set(&e, GY_OAI_E_MODEL, "model", "this model is not served here; GET /v1/models lists what is");
    gy_app_refuse(a, r, c, &e, NULL);
}

static void note_load(gy_app *a) {
    gy_log_writer_stats log;
    gy_app_log_stats(a, &log);
    gy_oai_load l = {.body_bytes = a->held_bytes,
                     .backlog_tok = a->backlog.tok,
                     .prefill_tok_s = gy_app_prefill_rate(a),
                     .n_log_dropped = log.n_dropped + log.n_failed};
    _Static_assert((int)GY_OAI_LANES == (int)GY_APP_LANES, "in the same order");
    for (int i = 0; i < GY_APP_LANES; i++) {
        gy_app_lane_stats s;
        gy_app_lane_get_stats(a->lane[i], &s);
        l.lane[i] = (gy_oai_lane){s.n_job, s.n_bytes, s.n_done, s.n_full, (double)s.busy_ns * 1e-9};
    }
    gy_oai_metrics_load(a->metrics, &l);
}

void gy_app_metrics(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    gy_str *out = fresh(a);
    gyre_stats s;
    gyre_get_stats(a->g, &s, sizeof s);
    gy_oai_metrics_stats(a->metrics, &s);
    note_load(a);
    gy_oai_metrics_text(a->metrics, out);
    gy_app_answer(a, r, c, "text/plain; version=0.0.4; charset=utf-8", out);
}

/* With workers: what the coordinator has promised for them. Without: what they have. Either way 0 when nothing is left.
 */
void gy_app_stats(gy_app *a, gy_http_req *r, const gy_app_call *c) {
    gy_str *out = fresh(a);
    gyre_stats s;
    gyre_get_stats(a->g, &s, sizeof s);
    gy_oai_stats_body(s.n_live, s.worker.n_worker ? s.worker.used_blocks : s.kv_owned, out);
    gy_app_answer(a, r, c, JSON, out);
}

/* ---- text: on whatever thread, into r->answer ------------------------------------------------------------------- */

gy_status gy_app_tokenize(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e) {
    gy_vec_i32 ids = {0};
    int is_cut = 0;
    const gy_oai_request *q = r->q;
    gy_status st = q->n_message ? gy_app_chat_ids(t, q, e, &ids, NULL) : gy_app_prompt(r->app, q, 0, e, &ids, &is_cut);
    int strs = q->return_token_strs && r->app->info->has_tokenizer;
    if (st >= 0)
        gy_oai_tokenize_body(ids.data, ids.len, r->app->info->max_len, strs ? gy_app_piece : NULL, t, &r->answer);
    gy_vec_free(&ids);
    return st;
}

gy_status gy_app_detokenize(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e) {
    gy_str text = {0};
    const gy_oai_prompt *p = &r->q->prompts[0];
    const gy_oai_seg none = {0}, *s = p->n_seg ? &p->seg[0] : &none;
    (void)t;
    gy_status st = gy_app_decode(r->app, s->ids, (size_t)s->n_ids, r->q->skip_special, e, &text);
    if (st >= 0) gy_oai_detokenize_body(gy_str_z(&text), text.len, &r->answer);
    gy_str_free(&text);
    return st;
}

gy_status gy_app_template(gy_app_req *r, gy_app_scratch *t, gy_oai_error *e) {
    gy_str text = {0};
    (void)t;
    gy_status st = gy_app_chat_text(r->app, r->q, e, &text);
    if (st >= 0) gy_oai_template_body(gy_str_z(&text), text.len, &r->answer);
    gy_str_free(&text);
    return st;
}
