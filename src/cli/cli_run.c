/* gyre run: prompts in, one engine, outputs in the order of the prompts. */
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/cli_output.h"
#include "model/loop.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct run_state {
    const gy_args *a;
    gy_cli_model m;
    gy_jobs jobs;
    gy_output *out; /* [jobs.job.len], in the arena */
    size_t n_out;   /* of them initialised */
    size_t n_shown; /* JSON lines are printed as soon as all before them are */
    int stream;     /* one prompt, text as it comes */
    gy_engine *engine;
    gy_str line;
} run_state;

/* ---- callbacks ---- */

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    return gy_output_add(arg, ev->token, ev->loops, ev->sampled) ? GY_STOP : GY_CONTINUE;
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    gy_output_end(arg, ev);
}

/* ---- start ---- */

static gy_status refuse_later(const gy_args *a, gy_err *err) {
    if (a->prefix_cache == 0) return gy_err_set(err, GY_E_ARG, "--prefix-cache on: not in this build yet; use off");
    if (a->prefill || a->decode)
        return gy_err_set(err, GY_E_ARG, "--%s: prefill and decode workers are not in this build yet",
                          a->prefill ? "prefill" : "decode");
    return GY_OK;
}

static gy_status engine_opts(const run_state *r, gy_err *err, gy_engine_opts *o) {
    gy_engine_opts_default(o);
    o->max_rows = r->a->max_rows;
    o->max_seqs = r->a->max_seqs;
    if ((size_t)o->max_seqs > r->jobs.job.len) o->max_seqs = (int32_t)r->jobs.job.len;
    o->max_len = gy_jobs_max_len(&r->jobs);
    int32_t deepest = gy_jobs_max_loops(&r->jobs);
    o->max_loops = deepest > r->m.d.n_loop ? deepest : 0;
    o->kv_blocks = r->a->kv_blocks;
    if (gy_kv_layout_parse(r->a->kv_layout, err, &o->kv_layout, &o->cyclic_k) < 0)
        return gy_err_prefix(err, "--kv-layout");
    gy_engine_plan plan;
    return gy_engine_make_plan(&r->m.d, r->m.act, o, err, &plan);
}

static gy_status open_outputs(run_state *r, gy_err *err) {
    size_t n = r->jobs.job.len;
    r->out = gy_arena_alloc(r->a->arena, n, sizeof *r->out);
    if (!r->out) return gy_err_set(err, GY_E_NOMEM, "no memory for the outputs");
    for (; r->n_out < n; r->n_out++) GY_TRY(gy_output_init(&r->out[r->n_out], &r->jobs.job.data[r->n_out], &r->m, err));
    return GY_OK;
}

static gy_status submit_all(run_state *r, gy_err *err) {
    for (size_t i = 0; i < r->jobs.job.len; i++) {
        gy_job *job = &r->jobs.job.data[i];
        int32_t id;
        job->rq.on_token = on_token;
        job->rq.on_finish = on_finish;
        job->rq.arg = &r->out[i];
        if (gy_engine_submit(r->engine, &job->rq, err, &id) < 0) return gy_err_prefix(err, "%s", job->source);
    }
    return GY_OK;
}

static gy_status run_open(run_state *r, gy_err *err) {
    const gy_args *a = r->a;
    gy_engine_opts o;
    GY_TRY(refuse_later(a, err));
    GY_TRY(gy_jobs_collect(&r->jobs, a, a->n_pos > 1 ? a->pos[1] : NULL, err));
    const char *dir = a->n_pos ? a->pos[0] : gy_cli_find_demo(a->arena, err);
    if (!dir) return err->status;
    GY_TRY(gy_cli_model_open(&r->m, dir, a, 1, err));
    GY_TRY(gy_jobs_prepare(&r->jobs, &r->m, err));
    GY_TRY(engine_opts(r, err, &o));
    GY_TRY(open_outputs(r, err));
    gy_cli_note_synthetic(dir);
    gy_ops_limits limits = gy_loop_limits(&r->m.d, o.max_rows + o.max_seqs, o.max_len);
    GY_TRY(gy_cli_model_load(&r->m, a, &limits, err));
    GY_TRY(gy_engine_open(r->m.model, &o, err, &r->engine));
    r->stream = !a->json && r->jobs.job.len == 1;
    return submit_all(r, err);
}

/* ---- go ---- */

/* What can be shown now: the new part of a stream, or whole requests. 0, or -1 when nobody reads any more. */
static int show(run_state *r) {
    if (r->stream) {
        gy_output_put_new(&r->out[0], &r->line);
    } else {
        for (; r->n_shown < r->n_out && r->out[r->n_shown].done; r->n_shown++) {
            if (r->a->json)
                gy_output_put_json(&r->out[r->n_shown], r->n_shown, &r->line);
            else
                gy_output_put_block(&r->out[r->n_shown], r->n_shown, &r->line);
        }
    }
    return r->line.len || r->line.failed ? gy_cli_put_str(&r->line) : 0;
}

static gy_status run_steps(run_state *r, gy_err *err) {
    for (;;) {
        gy_status st = gy_engine_step(r->engine, err);
        if (st < 0) return st;
        if (show(r)) return r->line.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the output") : GY_DONE;
        if (st == GY_DONE) return GY_OK;
    }
}

static void print_summary(const run_state *r, int64_t begin_ns) {
    gy_engine_stats s;
    gy_engine_get_stats(r->engine, &s);
    double seconds = (double)(gy_clock_ns() - begin_ns) * 1e-9;
    if (!isatty(STDERR_FILENO) || seconds <= 0 || !s.n_output_tok) return;
    fprintf(stderr, "[%lld prompt tokens, %lld tokens in %.2f s: %.1f tok/s, %.2f loops a token, %s %s]\n",
            (long long)s.n_prompt_tok, (long long)s.n_output_tok, seconds, (double)s.n_output_tok / seconds,
            (double)s.n_loop_sum / (double)s.n_output_tok, r->m.be->ops->name, r->m.act == GY_BF16 ? "bf16" : "f32");
}

/* Requests that ended in an error: in JSON they say so themselves; else here. */
static int report_errors(const run_state *r) {
    int rc = GY_CLI_OK;
    for (size_t i = 0; i < r->n_out; i++) {
        const gy_err *e = &r->out[i].err;
        if (e->status >= 0) continue;
        fprintf(stderr, "gyre: request %zu: %s\n", i, e->msg);
        rc = GY_CLI_FAILED;
    }
    return rc;
}

static void run_close(run_state *r) {
    gy_engine_close(r->engine);
    for (size_t i = 0; i < r->n_out; i++) gy_output_fini(&r->out[i]);
    gy_jobs_fini(&r->jobs);
    gy_cli_model_close(&r->m);
    gy_str_free(&r->line);
}

int gy_cmd_run(const gy_args *a) {
    run_state r = {.a = a};
    gy_err err = {0};
    int64_t begin_ns = 0;
    int rc;
    gy_status st = run_open(&r, &err);
    if (st >= 0) {
        begin_ns = gy_clock_ns();
        st = run_steps(&r, &err);
        if (r.stream) gy_cli_puts("\n");
    }
    if (st < 0) {
        rc = gy_cli_fail(&err);
    } else {
        gy_cli_flush();
        rc = report_errors(&r);
        print_summary(&r, begin_ns);
    }
    run_close(&r);
    return rc;
}
