/* gyre eval: a given text at full depth. Perplexity, and the raw values as .npy files for comparison with other
 * implementations. All logits are kept in memory only when they are to be written.
 */
#include "base/file.h"
#include "base/npy.h"
#include "cli/cli.h"
#include "cli/cli_model.h"
#include "cli/cli_requests.h"
#include "engine/eval.h"
#include "model/loop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct eval_state {
    const gy_args *a;
    gy_cli_model m;
    gy_vec_i32 ids;
    gy_eval_opts o;
    float *logits, *hidden, *gates; /* NULL unless asked for */
    double nll;                     /* sum over tokens 1..n-1 */
} eval_state;

/* log softmax of the row at id, in double. */
static double log_prob(const float *logits, int32_t n_vocab, int32_t id) {
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if ((double)logits[i] > top) top = (double)logits[i];
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - top);
    return (double)logits[id] - top - log(sum);
}

static gy_status on_logits(void *arg, int32_t pos, const float *logits, gy_err *err) {
    eval_state *e = arg;
    size_t n_vocab = (size_t)e->m.d.n_vocab;
    (void)err;
    if (e->logits) memcpy(e->logits + (size_t)pos * n_vocab, logits, n_vocab * sizeof *logits);
    if ((size_t)pos + 1 < e->ids.len) e->nll -= log_prob(logits, e->m.d.n_vocab, e->ids.data[pos + 1]);
    return GY_OK;
}

static gy_status check_args(const gy_args *a, gy_err *err) {
    if (!a->n_pos)
        return gy_err_set(err, GY_E_ARG, "no MODEL; usage: gyre eval MODEL (--prompt-ids 1,2 | --file TEXT)");
    if (!a->prompt_ids == !a->file)
        return gy_err_set(err, GY_E_ARG, "found %s --prompt-ids and --file, expected one of them",
                          a->file ? "both" : "neither");
    return GY_OK;
}

static gy_status encode(eval_state *e, gy_str *text, gy_err *err) {
    gy_tok_ctx *ctx = NULL;
    if (gy_tok_ctx_create(e->m.tok, &ctx) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    gy_status st =
        gy_tok_encode(ctx, gy_str_z(text), text->len, GY_TOK_ADD_SPECIAL | GY_TOK_PARSE_SPECIAL, err, &e->ids);
    gy_tok_ctx_destroy(ctx);
    return st;
}

static gy_status ids_from_file(eval_state *e, gy_err *err) {
    gy_str text = {0};
    if (!e->m.tok)
        return gy_err_set(err, GY_E_ARG, "--file: %s holds no tokenizer; give token ids: --prompt-ids 1,2,3", e->m.dir);
    gy_status st = gy_cli_read_input(e->a->file, err, &text);
    if (st == GY_OK) st = encode(e, &text, err);
    gy_str_free(&text);
    return st;
}

static gy_status read_ids(eval_state *e, gy_err *err) {
    const char *what = e->a->file ? "--file" : "--prompt-ids";
    if (e->a->file)
        GY_TRY(ids_from_file(e, err));
    else
        GY_TRY(gy_cli_parse_ids(e->a->prompt_ids, strlen(e->a->prompt_ids), what, err, &e->ids));
    if (!e->ids.len) return gy_err_set(err, GY_E_ARG, "%s: found no tokens, expected at least one", what);
    if (e->ids.len > (size_t)e->m.d.max_pos)
        return gy_err_set(err, GY_E_LIMIT, "%s: found %zu tokens, the model's context is %d", what, e->ids.len,
                          e->m.d.max_pos);
    return gy_cli_check_ids(e->ids.data, e->ids.len, e->m.d.n_vocab, what, err);
}

static gy_status set_opts(eval_state *e, gy_err *err) {
    const gy_args *a = e->a;
    e->o = (gy_eval_opts){.ids = e->ids.data, .n_tok = (int32_t)e->ids.len, .on_logits = on_logits, .arg = e};
    e->o.max_rows = a->max_rows < e->o.n_tok ? a->max_rows : e->o.n_tok;
    e->o.latent_noise = a->req.initial_state;
    e->o.latent_seed = a->req.latent_seed;
    if (gy_kv_layout_parse(a->kv_layout, err, &e->o.kv_layout, &e->o.cyclic_k) < 0)
        return gy_err_prefix(err, "--kv-layout");
    if (gy_kv_type_parse(a->kv_dtype, err, &e->o.kv_type) < 0) return gy_err_prefix(err, "--kv-dtype");
    if (e->o.latent_noise && !e->m.d.inject)
        return gy_err_set(err, GY_E_ARG, "--initial-state: found noise; %s models have no initial state to fill",
                          e->m.d.family);
    if (a->gates && !e->m.d.has_gate)
        return gy_err_set(err, GY_E_ARG, "--gates: this %s model has no exit gate", e->m.d.family);
    return GY_OK;
}

static gy_status take(float **out, size_t n, size_t row, const char *what, gy_err *err) {
    size_t total;
    *out = gy_size_mul(n, row, &total) ? NULL : gy_mem_alloc(GY_MEM_CLI, total, sizeof(float));
    if (*out) return GY_OK;
    return gy_err_set(err, GY_E_NOMEM, "%s: no memory for %zu x %zu floats", what, n, row);
}

static gy_status take_all(eval_state *e, gy_err *err) {
    size_t n_tok = e->ids.len, n_loop = (size_t)e->m.d.n_loop;
    if (e->a->logits) GY_TRY(take(&e->logits, n_tok, (size_t)e->m.d.n_vocab, "--logits", err));
    if (e->a->hidden) GY_TRY(take(&e->hidden, n_loop, (size_t)e->m.d.n_embd, "--hidden", err));
    if (e->a->gates) GY_TRY(take(&e->gates, n_tok, n_loop, "--gates", err));
    e->o.hidden = e->hidden;
    e->o.gates = e->gates;
    return GY_OK;
}

static gy_status write_all(const eval_state *e, gy_err *err) {
    int64_t n_tok = (int64_t)e->ids.len;
    const gy_model_desc *d = &e->m.d;
    if (e->logits) GY_TRY(gy_npy_write_f32(e->a->logits, e->logits, (int64_t[]){n_tok, d->n_vocab}, 2, err));
    if (e->hidden) GY_TRY(gy_npy_write_f32(e->a->hidden, e->hidden, (int64_t[]){d->n_loop, d->n_embd}, 2, err));
    if (e->gates) GY_TRY(gy_npy_write_f32(e->a->gates, e->gates, (int64_t[]){n_tok, d->n_loop}, 2, err));
    return GY_OK;
}

static gy_status eval_run(eval_state *e, gy_err *err) {
    GY_TRY(check_args(e->a, err));
    GY_TRY(gy_cli_model_open(&e->m, e->a->pos[0], e->a, e->a->file != NULL, err));
    GY_TRY(read_ids(e, err));
    GY_TRY(set_opts(e, err));
    GY_TRY(take_all(e, err));
    gy_cli_note_synthetic(e->m.dir);
    gy_ops_limits limits = gy_loop_limits(&e->m.d, e->o.max_rows, e->o.n_tok);
    GY_TRY(gy_cli_model_load(&e->m, e->a, &limits, NULL, err));
    GY_TRY(gy_eval(e->m.model, &e->o, err));
    return write_all(e, err);
}

static void print_result(const eval_state *e) {
    size_t n = e->ids.len;
    double mean = n > 1 ? e->nll / (double)(n - 1) : NAN;
    gy_str s = {0};
    if (e->a->json) {
        gy_jw w;
        gy_jw_init(&w, &s);
        gy_jw_obj_begin(&w);
        gy_jw_key(&w, "n_tok");
        gy_jw_int(&w, (int64_t)n);
        gy_jw_key(&w, "mean_nll");
        gy_jw_f64(&w, mean);
        gy_jw_key(&w, "perplexity");
        gy_jw_f64(&w, exp(mean));
        gy_jw_obj_end(&w);
        gy_str_putc(&s, '\n');
    } else if (n > 1) {
        gy_str_printf(&s, "tokens %zu\nperplexity %.6g\n", n, exp(mean));
    } else {
        gy_str_printf(&s, "tokens %zu\nperplexity n/a (needs two tokens)\n", n);
    }
    gy_cli_put_str(&s);
    gy_str_free(&s);
}

int gy_cmd_eval(const gy_args *a) {
    eval_state e = {.a = a};
    gy_err err = {0};
    gy_status st = eval_run(&e, &err);
    int rc = st < 0 ? gy_cli_fail(&err) : GY_CLI_OK;
    if (st >= 0) print_result(&e);
    gy_mem_free(e.logits);
    gy_mem_free(e.hidden);
    gy_mem_free(e.gates);
    gy_vec_free(&e.ids);
    gy_cli_model_close(&e.m);
    return rc;
}
