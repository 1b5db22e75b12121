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
    gy_status st = strcmp(s->backend, "ref") ? gy_backend_cpu_create(&o, &err, &out->be)
                                             : gy_backend_ref_create(s->act, &err, &out->be);
    if (st < 0) die(s->backend, &err);
    gy_model_load_opts lo = {.be = out->be};
    if (gy_model_load(path, &lo, &err, &out->m) < 0) die("load", &err);
}

void gold_engine(const gold_setup *s, gold_env *env) {
    gy_engine_opts o;
    gy_err err;
    gy_engine_opts_default(&o);
    o.max_rows = or_default(s->max_rows, 256);
    o.max_seqs = or_default(s->max_seqs, 16);
    o.max_len = or_default(s->max_len, 256);
    o.kv_blocks = s->kv_blocks;
    o.kv_layout = s->layout;
    o.cyclic_k = s->cyclic_k;
    o.max_loops = s->max_loops;
    if (gy_engine_open(env->m, &o, &err, &env->e) < 0) die("engine", &err);
}

void gold_close(gold_env *env) {
    gy_engine_close(env->e);
    gy_model_free(env->m);
    gy_backend_destroy(env->be);
    *env = (gold_env){0};
}

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    gold_result *r = arg;
    if (ev->index != r->n || r->n >= GOLD_MAX_OUT) die("token event out of order", NULL);
    r->tokens[r->n] = ev->token;
    r->loops[r->n] = ev->loops;
    r->logprobs[r->n++] = ev->sampled->logprob;
    return GY_CONTINUE;
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    gold_result *r = arg;
    if (ev->n_output != r->n) die("finish event counts other outputs", NULL);
    r->reason = ev->reason;
    if (ev->err) snprintf(r->error, sizeof r->error, "%.200s", ev->err->msg);
}

void gold_run(gy_engine *e, gy_request *requests, int n, gold_result *results) {
    gy_err err;
    memset(results, 0, (size_t)n * sizeof *results);
    for (int i = 0; i < n; i++) {
        int32_t id;
        requests[i].on_token = on_token;
        requests[i].on_finish = on_finish;
        requests[i].arg = &results[i];
        if (requests[i].sample.n_logprobs < 0) requests[i].sample.n_logprobs = 0;
        if (gy_engine_submit(e, &requests[i], &err, &id) < 0) die("submit", &err);
    }
    for (gy_status st = GY_OK; st != GY_DONE;) {
        st = gy_engine_step(e, &err);
        if (st < 0) die("step", &err);
        char why[256];
        if (!gy_kv_is_valid(gy_engine_kv(e), why, sizeof why)) die(why, NULL);
    }
}

int gold_same(const gold_result *a, const gold_result *b) {
    size_t n = (size_t)a->n;
    return a->n == b->n && a->reason == b->reason && !memcmp(a->tokens, b->tokens, n * sizeof(int32_t)) &&
           !memcmp(a->loops, b->loops, n * sizeof(int32_t)) && !memcmp(a->logprobs, b->logprobs, n * sizeof(float));
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
