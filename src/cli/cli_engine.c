/* What was given replaces the engine's default; ranges that the tables cannot say are the engine's to check. */
#include "cli/cli_engine.h"

#include "cli/cli.h"
#include "cli/cli_model.h"
#include "cli/cli_pd.h"

#include <math.h>
#include <unistd.h>

static void set_i32(int32_t *field, int32_t v) {
    if (v) *field = v;
}

static void set_f64(double *field, double v) {
    if (!isnan(v)) *field = v;
}

static void set_sched(const gy_args *a, gy_sched_opts *s) {
    s->max_rows = a->max_rows;
    s->max_seqs = a->max_seqs;
    set_i32(&s->max_queue, a->max_queue);
    set_i32(&s->prefill_chunk, a->prefill_chunk);
    set_f64(&s->prefill_share, a->prefill_share);
    s->no_refill = a->no_refill;
    set_i32(&s->min_coda, a->min_coda);
    s->reserve_full = a->reserve;
    set_f64(&s->watermark, a->watermark);
    s->policy = (gy_sched_policy)a->policy;
    s->preempt = (gy_preempt)a->preempt;
}

/* The engine takes the first that is set; two that disagree are a mistake of whoever typed them. */
static gy_status check_one_size(const gy_args *a, gy_err *err) {
    int n = (a->kv_blocks > 0) + a->kv_bytes.given + !isnan(a->kv_fraction);
    if (n > 1) return gy_err_set(err, GY_E_ARG, "found %d of --kv-blocks, --kv-bytes, --kv-fraction, expected one", n);
    if (a->kv_bytes.given && !a->kv_bytes.v) return gy_err_set(err, GY_E_ARG, "--kv-bytes: found 0, expected more");
    return GY_OK;
}

gy_status gy_cli_engine_opts(const gy_args *a, gy_err *err, gy_engine_opts *o) {
    gy_engine_opts n;
    GY_TRY(check_one_size(a, err));
    gy_engine_opts_default(&n);
    set_sched(a, &n.sched);
    set_i32(&n.fuse_loops, a->fuse_loops);
    n.prefix_cache = a->prefix_cache == 0;
    n.kv_blocks = a->kv_blocks;
    n.kv_bytes = (size_t)a->kv_bytes.v;
    set_f64(&n.kv_fraction, a->kv_fraction);
    if (a->park_bytes.given) n.park_bytes = (size_t)a->park_bytes.v;
    if (gy_kv_layout_parse(a->kv_layout, err, &n.kv_layout, &n.cyclic_k) < 0) return gy_err_prefix(err, "--kv-layout");
    if (gy_kv_type_parse(a->kv_dtype, err, &n.kv_type) < 0) return gy_err_prefix(err, "--kv-dtype");
    *o = n;
    return GY_OK;
}

gy_status gy_cli_gyre_options(const gy_args *a, gy_err *err, gyre_options *o) {
    gy_engine_opts e = {0};
    GY_TRY(gy_cli_engine_opts(a, err, &e));
    gyre_options_default(o, sizeof *o);
    o->dtype = a->dtype < 0 ? "auto" : a->dtype ? "bf16" : "f32";
    o->weights = gy_cli_weights(a);
    o->weights_head = a->weights_head;
    o->pack = gy_pack_name((gy_pack)a->pack);
    o->pack_cache = gy_cli_pack_cache(a);
    o->pin = gy_cli_pin(a);
    o->backend = gy_cli_backend(a);
    o->threads = a->threads;
    o->max_rows = a->max_rows;
    o->max_seqs = a->max_seqs;
    o->max_queue = e.sched.max_queue;
    o->max_len = a->max_len;
    o->max_loops = a->req.max_loops;
    /* Off by default in the other commands, whose prompts rarely begin alike. */
    o->prefix_cache = gy_opts_given(a->opts, "prefix-cache") ? a->prefix_cache == 0 : 1;
    o->kv_layout = a->kv_layout;
    o->kv_dtype = a->kv_dtype;
    o->kv_blocks = e.kv_blocks;
    o->kv_bytes = e.kv_bytes;
    o->kv_fraction = e.kv_fraction;
    o->park_bytes = e.park_bytes;
    o->policy = a->policy ? "priority" : "fcfs";
    o->prefill_chunk = e.sched.prefill_chunk;
    o->prefill_share = e.sched.prefill_share;
    o->fuse_loops = e.fuse_loops;
    return gy_cli_set_workers(a, err, o);
}

void gy_cli_tell_plan(const gy_engine_plan *p) {
    char text[GY_PLAN_TEXT];
    if (!p->free_bytes || !isatty(STDERR_FILENO)) return;
    gy_engine_plan_text(p, text);
    gy_cli_note("memory: %s", text);
}
