#include "support/gold.h"

#include "base/file.h"
#include "base/json.h"
#include "model/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const gy_err *err) {
    fprintf(stderr, "%s: %s\n", what, err ? err->msg : "");
    exit(1);
}

static void model_path(const char *model, char *buf, size_t cap) {
    if (strchr(model, '/'))
        snprintf(buf, cap, "%s", model);
    else
        snprintf(buf, cap, GY_SOURCE_DIR "/tests/golden/models/%s", model);
}

static int32_t or_default(int32_t v, int32_t d) {
    return v ? v : d;
}

const char *gold_backend(const char *asked) {
    const char *instead = getenv("GY_TEST_BACKEND");
    return instead && !strcmp(asked, "cpu") ? instead : asked;
}

void gold_open(const gold_setup *s, gold_env *out) {
    char path[512];
    gy_err err;
    gy_model_desc d;
    model_path(s->model, path, sizeof path);
    *out = (gold_env){0};
    if (gy_model_read_desc(path, &err, &d) < 0) die(path, &err);
    gy_cpu_opts o = {.act = s->act,
                     .n_thread = s->n_thread ? s->n_thread : 2,
                     .limits = gy_loop_limits(&d, or_default(s->max_rows, 256), or_default(s->max_len, 256))};
    gy_cuda_opts co = {.act = s->act, .n_thread = o.n_thread, .limits = o.limits, .without = s->without};
    const char *backend = gold_backend(s->backend);
    gy_status st = !strcmp(backend, "ref")    ? gy_backend_ref_create(s->act, &err, &out->be)
                   : !strcmp(backend, "cuda") ? gy_backend_cuda_create(&co, &err, &out->be)
                                              : gy_backend_cpu_create(&o, &err, &out->be);
    if (st < 0) die(backend, &err);
    gy_model_load_opts lo = {.be = out->be, .form = s->form, .quant_head = s->quant_head};
    if (gy_model_load(path, &lo, &err, &out->m) < 0) die("load", &err);
}

void gold_engine(const gold_setup *s, gold_env *env) {
    gy_engine_opts o;
    gy_err err;
    gy_engine_close(env->e);
    env->e = NULL;
    gy_engine_opts_default(&o);
    o.sched.max_rows = or_default(s->max_rows, 256);
    o.sched.max_seqs = or_default(s->max_seqs, 16);
    o.max_len = or_default(s->max_len, 256);
    o.kv_blocks = s->kv_blocks;
    o.kv_layout = s->layout;
    o.cyclic_k = s->cyclic_k;
    o.kv_type = s->kv_type;
    o.max_loops = s->max_loops;
    if (s->patch) s->patch(&o, s->patch_arg);
    if (gy_engine_open(env->m, &o, &err, &env->e) < 0) die("engine", &err);
}

void gold_close(gold_env *env) {
    gy_engine_close(env->e);
    gy_model_free(env->m);
    gy_backend_destroy(env->be);
    *env = (gold_env){0};
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

/* FNV-1a over what is filled of the alternatives. */
static uint64_t top_digest(const gy_sampled *s) {
    uint64_t h = 14695981039346656037u;
    for (int32_t i = 0; i < s->n_top; i++) {
        uint32_t w[2] = {(uint32_t)s->top_id[i], 0};
        memcpy(&w[1], &s->top_logprob[i], sizeof w[1]);
        for (int k = 0; k < 2; k++) h = (h ^ w[k]) * 1099511628211u;
    }
    return h;
}

static gold_result *result_of(void *arg, int32_t request, int32_t choice) {
    gold_result *r = (gold_result *)arg + choice;
    if (r->id != request) die("event of another request", NULL);
    if (r->n_finish) die("event after the finish event", NULL);
    return r;
}

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    gold_result *r = result_of(arg, ev->request, ev->choice);
    int32_t i = r->n;
    if (ev->index != i || i >= GOLD_MAX_OUT) die("token event out of order", NULL);
    if (ev->sampled->id != ev->token) die("token event: sampled says another token", NULL);
    if (ev->n_gate < 0 || ev->n_gate > GOLD_MAX_GATE || (ev->n_gate && !ev->gates)) die("token event: gates", NULL);
    r->tokens[i] = ev->token;
    r->loops[i] = ev->loops;
    r->logprobs[i] = ev->sampled->logprob;
    r->tops[i] = top_digest(ev->sampled);
    r->n_gate[i] = ev->gates ? ev->n_gate : 0;
    if (r->n_gate[i]) memcpy(r->gates[i], ev->gates, (size_t)ev->n_gate * sizeof(float));
    r->n++;
    return GY_CONTINUE;
}

static void on_prompt(void *arg, const gy_prompt_event *ev) {
    gold_result *r = result_of(arg, ev->request, 0);
    if (ev->pos != r->n_prompt + 1 || ev->pos >= GOLD_MAX_PROMPT) die("prompt event out of order", NULL);
    if (r->n) die("prompt event after a token event", NULL);
    r->prompt_logprobs[r->n_prompt] = ev->sampled->logprob;
    r->prompt_tops[r->n_prompt++] = top_digest(ev->sampled) ^ (uint64_t)ev->sampled->id;
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    gold_result *r = result_of(arg, ev->request, ev->choice);
    if (ev->n_output != r->n) die("finish event counts other outputs", NULL);
    r->n_finish = 1;
    r->reason = ev->reason;
    r->fin = *ev;
    r->fin.err = NULL;
    if (ev->err) snprintf(r->error, sizeof r->error, "%.200s", ev->err->msg);
}

int gold_n_choice(const gy_request *requests, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += requests[i].n;
    return sum;
}

void gold_listen(gy_request *r, gold_result *results) {
    r->on_token = on_token;
    r->on_prompt = on_prompt;
    r->on_finish = on_finish;
    r->arg = results;
    if (r->sample.n_logprobs < 0) r->sample.n_logprobs = 0;
}

int gold_submit(gy_engine *e, gy_request *r, gold_result *results) {
    gy_err err;
    int32_t id;
    gold_listen(r, results);
    gy_status st = gy_engine_submit(e, r, &err, &id);
    if (st < 0) die("submit", &err);
    if (st == GY_AGAIN) return 0;
    for (int32_t k = 0; k < r->n; k++) results[k] = (gold_result){.id = id};
    return 1;
}

void gold_check(gy_engine *e) {
    char why[256];
    if (!gy_kv_is_valid(gy_engine_kv(e), why, sizeof why)) die(why, NULL);
    if (!gy_sched_is_valid(gy_engine_sched(e), why, sizeof why)) die(why, NULL);
}

int gold_run_hooked(gy_engine *e, gy_request *requests, int n, gold_result *results, const gold_hook *hook) {
    gy_err err;
    int n_step = 0, n_sent = 0, at = 0;
    memset(results, 0, (size_t)gold_n_choice(requests, n) * sizeof *results);
    for (gy_status st = GY_OK; st != GY_DONE || n_sent < n; n_step++) {
        while (n_sent < n && gold_submit(e, &requests[n_sent], results + at)) at += requests[n_sent++].n;
        if (hook->before_step) hook->before_step(hook->arg, e, n_step, results);
        st = gy_engine_step(e, &err);
        if (st < 0) die("step", &err);
        if (!hook->unchecked) gold_check(e);
        if (n_step > 200000) die("never done", NULL);
    }
    gold_check(e);
    for (int i = 0; i < at; i++)
        if (!results[i].n_finish) die("a choice without its finish event", NULL);
    return n_step;
}

void gold_run(gy_engine *e, gy_request *requests, int n, gold_result *results) {
    gold_run_hooked(e, requests, n, results, &(gold_hook){0});
}

static int float_differs(float a, float b) {
    return memcmp(&a, &b, sizeof a) != 0;
}

static int prompt_differs(const gold_result *a, const gold_result *b, char *buf, size_t cap) {
    if (a->n_prompt != b->n_prompt)
        return snprintf(buf, cap, "prompt logprobs: %d and %d", a->n_prompt, b->n_prompt), 1;
    for (int32_t i = 0; i < a->n_prompt; i++)
        if (float_differs(a->prompt_logprobs[i], b->prompt_logprobs[i]) || a->prompt_tops[i] != b->prompt_tops[i])
            return snprintf(buf, cap, "prompt logprob %d: %.9g and %.9g", i + 1, (double)a->prompt_logprobs[i],
                            (double)b->prompt_logprobs[i]),
                   1;
    return 0;
}

int gold_diff(const gold_result *a, const gold_result *b, char *buf, size_t cap) {
    if (prompt_differs(a, b, buf, cap)) return 1;
    for (int32_t i = 0; i < a->n && i < b->n; i++) {
        if (a->loops[i] != b->loops[i])
            return snprintf(buf, cap, "loops of output %d: %d and %d", i, a->loops[i], b->loops[i]), 1;
        if (a->tokens[i] != b->tokens[i])
            return snprintf(buf, cap, "output %d: token %d and %d", i, a->tokens[i], b->tokens[i]), 1;
        if (float_differs(a->logprobs[i], b->logprobs[i]))
            return snprintf(buf, cap, "logprob of output %d: %.9g and %.9g", i, (double)a->logprobs[i],
                            (double)b->logprobs[i]),
                   1;
        if (a->tops[i] != b->tops[i]) return snprintf(buf, cap, "alternatives of output %d", i), 1;
        if (a->n_gate[i] != b->n_gate[i])
            return snprintf(buf, cap, "gates of output %d: %d and %d", i, a->n_gate[i], b->n_gate[i]), 1;
        if (memcmp(a->gates[i], b->gates[i], sizeof a->gates[i])) return snprintf(buf, cap, "gates of output %d", i), 1;
    }
    if (a->n != b->n) return snprintf(buf, cap, "%d and %d outputs", a->n, b->n), 1;
    if (a->reason == b->reason && a->fin.stop_id == b->fin.stop_id) return 0;
    snprintf(buf, cap, "finish: %s, stop id %d and %s, stop id %d", gy_finish_name(a->reason), a->fin.stop_id,
             gy_finish_name(b->reason), b->fin.stop_id);
    return 1;
}

int gold_same(const gold_result *a, const gold_result *b) {
    char what[128];
    return !gold_diff(a, b, what, sizeof what);
}

void gold_idle(gy_engine *e) {
    gy_engine_stats s;
    gy_engine_get_stats(e, &s);
    gold_check(e);
    const gy_kv *kv = gy_engine_kv(e);
    const gy_kv_config *c = gy_kv_get_config(kv);
    if (!gy_sched_idle(gy_engine_sched(e)) || s.sched.n_waiting || s.sched.n_parked || s.sched.n_running ||
        s.sched.n_flight)
        die("the engine is not idle", NULL);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        if (s.kv_free[g] + s.kv_cached[g] != s.kv_total[g]) die("blocks are lost", NULL);
        if (gy_kv_n_park_free(kv, (gy_kv_group)g) != c->n_park[g]) die("park blocks are lost", NULL);
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static void copy_str(const gy_jv *v, char *buf, size_t cap) {
    const char *s = gy_jv_str(v, NULL);
    snprintf(buf, cap, "%s", s ? s : "");
}

static int32_t *copy_ints(const gy_jv *v, int32_t *n_out) {
    size_t n = gy_jv_len(v);
    int32_t *p = calloc(n + 1, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (int32_t)gy_jv_int(gy_jv_at(v, i), -1);
    *n_out = (int32_t)n;
    return p;
}

/* Numbers of an array, or of an array of arrays, in order; NULL if absent. */
static double *copy_nums(const gy_jv *v, int *n_outer) {
    size_t n = gy_jv_len(v), total = 0;
    if (n_outer) *n_outer = (int)n;
    if (!n) return NULL;
    int nested = gy_jv_type(gy_jv_at(v, 0)) == GY_J_ARRAY;
    for (size_t i = 0; i < n; i++) total += nested ? gy_jv_len(gy_jv_at(v, i)) : 1;
    double *p = calloc(total, sizeof *p), *q = p;
    for (size_t i = 0; i < n; i++) {
        const gy_jv *x = gy_jv_at(v, i);
        for (size_t k = 0; k < (nested ? gy_jv_len(x) : 1); k++) *q++ = gy_jv_num(nested ? gy_jv_at(x, k) : x, 0.0);
    }
    return p;
}

static void read_case(const gy_jv *v, gold_case *c) {
    copy_str(gy_jv_get(v, "kind"), c->kind, sizeof c->kind);
    copy_str(gy_jv_get(v, gy_jv_get(v, "name") ? "name" : "prompt"), c->name, sizeof c->name);
    copy_str(gy_jv_get(v, "layout"), c->layout, sizeof c->layout);
    copy_str(gy_jv_get(v, "exit"), c->exit, sizeof c->exit);
    c->ids = copy_ints(gy_jv_get(v, "ids"), &c->n_ids);
    c->tokens = copy_ints(gy_jv_get(v, "tokens"), &c->n_out);
    int32_t n_loops;
    c->loops = copy_ints(gy_jv_get(v, "loops"), &n_loops);
    c->threshold = gy_jv_num(gy_jv_get(v, "threshold"), 1.0);
    c->argmax_gap = gy_jv_num(gy_jv_get(v, "argmax_gap"), 1.0);
    c->min_loops = (int32_t)gy_jv_int(gy_jv_get(v, "min_loops"), 1);
    c->max_loops = (int32_t)gy_jv_int(gy_jv_get(v, "max_loops"), 0);
    c->logits = copy_nums(gy_jv_get(v, "logits"), &c->n_logits);
    c->hidden = copy_nums(gy_jv_get(v, "hidden_last_position"), &c->n_hidden);
    c->gates = copy_nums(gy_jv_get(v, "gates"), NULL);
    c->initial_state = copy_nums(gy_jv_get(v, "initial_state"), NULL);
}

int gold_read_cases(const char *model, gold_case **cases_out) {
    char dir[512], path[600];
    gy_err err;
    gy_json *doc;
    model_path(model, dir, sizeof dir);
    snprintf(path, sizeof path, "%s/expected.json", dir);
    if (gy_json_read(path, NULL, &err, &doc) < 0) die(path, &err);
    const gy_jv *list = gy_jv_get(gy_json_root(doc), "cases");
    int n = (int)gy_jv_len(list);
    *cases_out = calloc((size_t)n, sizeof **cases_out);
    for (int i = 0; i < n; i++) read_case(gy_jv_at(list, (size_t)i), &(*cases_out)[i]);
    gy_json_free(doc);
    if (!n) die("no golden cases", NULL);
    return n;
}

void gold_free_cases(gold_case *cases, int n) {
    for (int i = 0; i < n; i++) {
        free(cases[i].ids);
        free(cases[i].tokens);
        free(cases[i].loops);
        free(cases[i].logits);
        free(cases[i].hidden);
        free(cases[i].gates);
        free(cases[i].initial_state);
    }
    free(cases);
}

gy_kv_layout gold_layout(const gold_case *c) {
    return strcmp(c->layout, "shared") ? GY_KV_LAST_EXITED : GY_KV_SHARED;
}

void gold_request(const gold_case *c, const gy_model_desc *d, gy_request *out) {
    gy_request_default(out, d);
    out->prompt = c->ids;
    out->n_prompt = c->n_ids;
    out->max_tokens = c->n_out;
    out->ignore_eos = 1;
    if (gy_exit_parse(c->exit, &out->exit.kind) < 0) die(c->exit, NULL);
    out->exit.threshold = c->threshold;
    out->exit.min_loops = c->min_loops;
    out->exit.max_loops = c->max_loops;
    if (out->exit.min_loops > out->exit.max_loops) out->exit.min_loops = out->exit.max_loops;
}
