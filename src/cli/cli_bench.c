/* gyre bench engine: a workload (cli_bench_load.h), run several times in this process (cli_bench_run.h) or over others
 * (cli_bench_layout.h), reported (cli_bench_report.h). Each repeat opens an engine of its own: none finds KV, cached
 * prefixes or touched memory that an earlier one left.
 */
#include "base/cpu.h"
#include "cli/cli.h"
#include "cli/cli_bench_args.h"
#include "cli/cli_bench_floor.h"
#include "cli/cli_bench_html.h"
#include "cli/cli_bench_layout.h"
#include "cli/cli_bench_pd.h"
#include "cli/cli_bench_report.h"
#include "cli/cli_bench_run.h"
#include "cli/cli_engine.h"
#include "cli/cli_requests.h"
#include "cli/progress.h"
#include "model/loop.h"
#include "model/synth.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Streams of warm-up requests must not be those of the workload, or the prefix cache would know them. */
static const uint64_t WARMUP_SEED = 0x7761726d;
enum { DEFAULT_REPEAT = 3, DEFAULT_WARMUP = 2 };

typedef struct bench {
    const char *name; /* of a cell, else NULL */
    const gy_args *a;
    gy_cli_model *m; /* of the set */
    gy_jobs jobs;    /* one job: what all requests have in common, and the trace file */
    gy_request proto;
    gy_bench_load load, warm_load;
    gy_bench_item *items, *warm_items; /* in the arena */
    gy_engine_opts o;
    gy_ops_limits limits;
    gy_bench_ceilings ceilings; /* 0: not given */
    gy_bench_layout layout[GY_BENCH_MAX_LAYOUT];
    size_t n_layout; /* 0: one engine in this process */
    size_t n_series;
    gy_bench_series *series; /* in the arena */
    gy_bench_run *first;     /* the run that others are compared with */
    int32_t differ;          /* first request that differed in some run, -1 */
    int32_t n_failed;
} bench;

/* What is run on one loaded model: the command line itself, or its cells. */
typedef struct bench_set {
    const gy_args *a;
    char tmp_dir[32]; /* of a synthetic checkpoint while it is there; "" when it is not */
    gy_cli_model m;
    size_t n;
    bench *b;            /* [n] in the arena */
    gy_bench_cell *cell; /* [n] in the arena; NULL: no cells */
    gy_str json, csv;    /* cells: what grows with each */
} bench_set;

/* ---- the model ---- */

static void on_write(void *arg, uint64_t done, uint64_t total) {
    gy_progress_update(arg, (size_t)done, (size_t)total);
}

static gy_status write_synthetic(bench_set *set, const char *shape, gy_err *err) {
    gy_synth_info info;
    gy_progress p;
    if (gy_synth_get_info(shape, err, &info) < 0) return gy_err_prefix(err, "--synthetic");
    strcpy(set->tmp_dir, "/tmp/gyre-bench-XXXXXX");
    if (!mkdtemp(set->tmp_dir)) {
        set->tmp_dir[0] = '\0';
        return gy_err_set(err, GY_E_IO, "--synthetic: cannot make a folder in /tmp: %s", strerrordesc_np(errno));
    }
    gy_progress_begin(&p, "writing");
    const gy_status st = gy_synth_write(shape, 0, set->tmp_dir, on_write, &p, err);
    gy_progress_end(&p);
    return st;
}

/* Weights that are mapped stay readable. */
static void remove_synthetic(bench_set *set) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    char path[64];
    if (!set->tmp_dir[0]) return;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", set->tmp_dir, files[i]);
        unlink(path);
    }
    rmdir(set->tmp_dir);
    set->tmp_dir[0] = '\0';
}

static gy_status open_model(bench_set *set, gy_err *err) {
    const gy_args *a = set->a;
    const char *shape = a->bench.synthetic;
    if (shape && a->n_pos > 1)
        return gy_err_set(err, GY_E_ARG, "--synthetic: found a MODEL too (%.80s), expected one of them", a->pos[1]);
    if (!shape && a->n_pos < 2)
        return gy_err_set(err, GY_E_ARG, "no MODEL; give a folder, or --synthetic SHAPE for random weights");
    if (shape) GY_TRY(write_synthetic(set, shape, err));
    return gy_cli_model_open(&set->m, shape ? set->tmp_dir : a->pos[1], a, 0, err);
}

/* ---- what will be asked ---- */

/* The request options, read as those of `run` are: one job with a prompt that nobody sends. */
static gy_status make_proto(bench *b, gy_err *err) {
    gy_job job = {.source = "bench", .opt = b->a->req};
    job.opt.seed.v = b->load.seed;
    job.opt.seed.given = 1;
    job.opt.ignore_eos = 1;
    job.opt.max_tokens = 1;
    b->jobs.arena = b->a->arena;
    if (gy_vec_push(&job.ids, GY_MEM_CLI, 0) || gy_vec_push(&b->jobs.job, GY_MEM_CLI, job)) {
        gy_vec_free(&job.ids);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the requests");
    }
    GY_TRY(gy_jobs_prepare(&b->jobs, b->m, err));
    b->proto = b->jobs.job.data[0].rq;
    return GY_OK;
}

static gy_status check_trace(const bench *b, gy_err *err) {
    const gy_trace *t = &b->jobs.trace;
    for (size_t i = 0; i < t->n; i++)
        if (t->list[i].n < b->load.out.hi)
            return gy_err_set(err, GY_E_ARG, "--exit: list %zu of %s holds %d loops, --out asks for up to %d", i + 1,
                              t->path, t->list[i].n, b->load.out.hi);
    return GY_OK;
}

static gy_bench_item *make_items(bench *b, const gy_bench_load *l) {
    gy_bench_item *items = gy_arena_alloc(b->a->arena, (size_t)l->n_stream * (size_t)l->n_turn, sizeof *items);
    if (items) gy_bench_items(l, items);
    return items;
}

static gy_status make_load(bench *b, gy_err *err) {
    const int32_t warmup = b->a->bench.warmup < 0 ? DEFAULT_WARMUP : b->a->bench.warmup;
    const int64_t longest = gy_bench_longest(&b->load);
    if (longest > b->m->d.max_pos)
        return gy_err_set(err, GY_E_LIMIT,
                          "--in, --out: %d turn%s of up to %d + %d tokens make %lld; the model's context is %d",
                          b->load.n_turn, b->load.n_turn > 1 ? "s" : "", b->load.in.hi, b->load.out.hi,
                          (long long)longest, b->m->d.max_pos);
    b->warm_load = (gy_bench_load){.kind = GY_BENCH_CLOSED,
                                   .n_stream = warmup,
                                   .n_turn = 1,
                                   .concurrency = b->load.concurrency,
                                   .in = b->load.in,
                                   .in_spread = b->load.in_spread,
                                   .out = b->load.out,
                                   .seed = b->load.seed ^ WARMUP_SEED};
    b->items = make_items(b, &b->load);
    b->warm_items = warmup ? make_items(b, &b->warm_load) : NULL;
    if (!b->items || (warmup && !b->warm_items)) return gy_err_set(err, GY_E_NOMEM, "no memory for the requests");
    return GY_OK;
}

/* Without --max-seqs, as many as the workload keeps running at once; requests in the queue are never refused. */
static gy_status make_engine_opts(bench *b, gy_err *err) {
    gy_engine_opts *o = &b->o;
    gy_engine_plan plan;
    GY_TRY(gy_cli_engine_opts(b->a, err, o));
    const int open_loop = b->load.kind == GY_BENCH_POISSON;
    if (!open_loop && !gy_opts_given(b->a->opts, "max-seqs")) o->sched.max_seqs = b->load.concurrency;
    if (o->sched.max_queue < b->load.n_stream) o->sched.max_queue = b->load.n_stream;
    o->max_len = (int32_t)gy_bench_longest(&b->load);
    if (b->proto.exit.max_loops > b->m->d.n_loop) o->max_loops = b->proto.exit.max_loops;
    if (gy_engine_make_plan(&b->m->d, b->m->act, o, 0, err, &plan) >= 0) return GY_OK;
    gy_cli_name_flag(err);
    return err->status;
}

static gy_status make_series(bench *b, gy_err *err) {
    b->n_series = b->n_layout ? b->n_layout : b->a->bench.compare ? 2 : 1;
    b->series = gy_arena_alloc(b->a->arena, b->n_series, sizeof *b->series);
    if (!b->series) return gy_err_set(err, GY_E_NOMEM, "no memory for the figures");
    for (size_t i = 0; i < b->n_series; i++) {
        b->series[i].prefix_cache = b->a->bench.compare ? (int)i : b->o.prefix_cache;
        if (!b->n_layout) continue;
        b->series[i].layout = b->layout[i].name;
        b->series[i].n_process = gy_bench_layout_processes(&b->layout[i]);
        b->series[i].n_thread = b->layout[i].n_thread;
    }
    return GY_OK;
}

/* All but the weights. */
static gy_status bench_prepare(bench *b, gy_err *err) {
    if (b->a->bench.ceilings) GY_TRY(gy_bench_parse_ceilings(b->a->bench.ceilings, err, &b->ceilings));
    GY_TRY(make_proto(b, err));
    GY_TRY(check_trace(b, err));
    GY_TRY(make_load(b, err));
    GY_TRY(make_engine_opts(b, err));
    GY_TRY(make_series(b, err));
    b->limits = gy_loop_limits(&b->m->d, b->o.sched.max_rows, b->o.max_len);
    return GY_OK;
}

/* ---- the set ---- */

static gy_status read_cells(bench_set *set, gy_err *err) {
    const gy_opt_list *cells = &set->a->bench.cells;
    set->n = cells->n ? cells->n : 1;
    set->b = gy_arena_alloc(set->a->arena, set->n, sizeof *set->b);
    set->cell = cells->n ? gy_arena_alloc(set->a->arena, cells->n, sizeof *set->cell) : NULL;
    if (!set->b || (cells->n && !set->cell)) return gy_err_set(err, GY_E_NOMEM, "no memory for the cells");
    memset(set->b, 0, set->n * sizeof *set->b);
    if (set->cell) memset(set->cell, 0, set->n * sizeof *set->cell);
    for (size_t i = 0; i < set->n; i++) {
        set->b[i] = (bench){.a = set->a, .m = &set->m, .differ = -1};
        if (!set->cell) break;
        GY_TRY(gy_bench_cell_read(set->a, &cells->items[i], err, &set->cell[i]));
        set->b[i].name = set->cell[i].name;
        set->b[i].a = &set->cell[i].args;
    }
    return GY_OK;
}

static gy_status cell_prefix(const bench *b, gy_err *err) {
    return b->name ? gy_err_prefix(err, "--cell %.40s", b->name) : err->status;
}

static gy_status settle_all(bench_set *set, gy_err *err) {
    for (size_t i = 0; i < set->n; i++)
        if (gy_bench_settle(set->b[i].a, err, &set->b[i].load) < 0) return cell_prefix(&set->b[i], err);
    if (set->cell && set->a->bench.compare)
        return gy_err_set(err, GY_E_ARG, "--cell: does not go together with --compare");
    for (size_t i = 0; i < set->n; i++) {
        bench *b = &set->b[i];
        if (gy_bench_layouts_of(b->a, gy_cpu_count_physical(), err, b->layout, &b->n_layout) < 0)
            return cell_prefix(b, err);
        if (!b->n_layout != !set->b->n_layout)
            return gy_err_set(err, GY_E_ARG, "--cell: found some with --layouts and some without, expected one kind");
    }
    return GY_OK;
}

static int32_t max_i32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* One backend serves all cells. */
static gy_ops_limits limits_of(const bench_set *set) {
    int32_t rows = 0, len = 0;
    for (size_t i = 0; i < set->n; i++) {
        rows = max_i32(rows, set->b[i].o.sched.max_rows);
        len = max_i32(len, set->b[i].o.max_len);
    }
    return gy_loop_limits(&set->m.d, rows, len);
}

static gy_status may_report(const gy_bench_opts *o, gy_err *err) {
    GY_TRY(gy_bench_may_write("--json", o->json_file, err));
    GY_TRY(gy_bench_may_write("--csv", o->csv_file, err));
    GY_TRY(gy_bench_may_write("--steps", o->steps_file, err));
    return gy_bench_may_write("--html", o->html_file, err);
}

static gy_status set_open(bench_set *set, gy_err *err) {
    GY_TRY(may_report(&set->a->bench, err));
    GY_TRY(read_cells(set, err));
    GY_TRY(settle_all(set, err));
    GY_TRY(open_model(set, err));
    for (size_t i = 0; i < set->n; i++)
        if (bench_prepare(&set->b[i], err) < 0) return cell_prefix(&set->b[i], err);
    if (set->b->n_layout) return GY_OK; /* others load it */
    const gy_ops_limits limits = limits_of(set);
    GY_TRY(gy_cli_model_load(&set->m, set->a, &limits, &set->b->o, err));
    remove_synthetic(set);
    return GY_OK;
}

/* ---- one repeat ---- */

static gy_bench_job bench_job(const bench *b, const gy_bench_load *l, const gy_bench_item *items, const char *label) {
    return (gy_bench_job){.load = l,
                          .items = items,
                          .proto = &b->proto,
                          .trace = b->jobs.trace.n ? &b->jobs.trace : NULL,
                          .n_vocab = b->m->d.n_vocab,
                          .be = b->m->be,
                          .label = label};
}

static gy_status warm_up(bench *b, gy_engine *e, gy_err *err) {
    gy_bench_run *run = NULL;
    if (!b->warm_load.n_stream) return GY_OK;
    const gy_bench_job j = bench_job(b, &b->warm_load, b->warm_items, "warm-up");
    gy_status st = gy_bench_run_create(&j, err, &run);
    if (st == GY_OK) st = gy_bench_run_go(run, e, err);
    gy_bench_run_destroy(run);
    return st;
}

/* The first failure of all runs becomes the command's message. */
static void note_failures(bench *b, const gy_bench_run *run, const gy_bench_result *r) {
    int32_t i = 0;
    const gy_err *why = gy_bench_run_failed(run, &i);
    if (why && !b->n_failed) fprintf(stderr, "gyre: request %d: %s\n", i, why->msg);
    b->n_failed += (int32_t)r->f[GY_BENCH_FAILED];
}

static gy_status write_steps(const bench *b, const gy_bench_run *run, gy_err *err) {
    gy_str s = {0};
    size_t n;
    const gy_bench_sample *steps = gy_bench_run_steps(run, &n);
    gy_bench_put_steps(steps, n, &s);
    const gy_status st = gy_bench_write("--steps", b->a->bench.steps_file, &s, err);
    gy_str_free(&s);
    return st;
}

/* Takes the run: the first one is kept, later ones are compared with it. */
static void keep_or_compare(bench *b, gy_bench_run *run) {
    if (!b->first) {
        b->first = run;
        return;
    }
    const int32_t differ = gy_bench_run_differ(b->first, run);
    if (b->differ < 0) b->differ = differ;
    gy_bench_run_destroy(run);
}

/* Of fixed lengths and numbers of sequences alone: a mean of floors would be no floor. */
static void put_floors(const bench *b, gy_bench_result *r) {
    const gy_bench_load *l = &b->load;
    const int fixed = (l->kind == GY_BENCH_CLOSED || l->kind == GY_BENCH_BURST) && l->in.lo == l->in.hi;
    const double elem = b->m->act == GY_BF16 ? 2 : 4,
                 at_once = fmin(l->concurrency, fmin(l->n_stream, b->o.sched.max_seqs));
    if (!b->ceilings.bytes || !fixed) return;
    r->f[GY_BENCH_FLOOR_PROMPT] = gy_bench_floor_prompt(&b->m->d, elem, l->in.lo, &b->ceilings);
    r->f[GY_BENCH_FLOOR_TOKEN] = gy_bench_floor_token(&b->m->d, elem, r->f[GY_BENCH_MEAN_LOOPS], at_once,
                                                      l->in.lo + 0.25 * (l->out.lo + l->out.hi), &b->ceilings);
}

static gy_status repeat_on(bench *b, gy_engine *e, const char *label, gy_err *err, gy_bench_result *out) {
    gy_bench_run *run = NULL;
    const gy_bench_job j = bench_job(b, &b->load, b->items, label);
    gy_status st = gy_bench_run_create(&j, err, &run);
    if (st == GY_OK) st = gy_bench_run_go(run, e, err);
    if (st == GY_OK) st = gy_bench_run_result(run, e, b->o.sched.max_rows, err, out);
    if (st < 0) {
        gy_bench_run_destroy(run);
        return st;
    }
    note_failures(b, run, out);
    put_floors(b, out);
    if (!b->first && b->a->bench.steps_file) st = write_steps(b, run, err);
    keep_or_compare(b, run);
    return st;
}

/* The table comes when all have run; who is interrupted has these. */
static void tell_run(const bench *b, const gy_bench_series *s) {
    const double *f = s->r[s->n].f;
    fprintf(stderr,
            "gyre: %s%s%s, repeat %zu: %.1f output tokens/s, TTFT p50 %.1f p95 %.1f, TPOT p95 %.2f, tail p50 %.2f ms\n",
            b->name ? b->name : "", b->name ? ", " : "", s->layout, s->n + 1, f[GY_BENCH_OUTPUT_RATE],
            f[gy_bench_at(GY_BENCH_TTFT, GY_BENCH_P50)], f[gy_bench_at(GY_BENCH_TTFT, GY_BENCH_P95)],
            f[gy_bench_at(GY_BENCH_TPOT, GY_BENCH_P95)], f[gy_bench_at(GY_BENCH_TAIL, GY_BENCH_P50)]);
}

static gy_status repeat_over(bench *b, size_t series, gy_err *err) {
    gy_bench_series *s = &b->series[series];
    gy_bench_run *run = NULL;
    char label[64];
    snprintf(label, sizeof label, "repeat %zu, %s", s->n + 1, s->layout);
    gy_bench_site site = {.a = b->a, .m = b->m, .o = &b->o, .limits = &b->limits};
    site.job = bench_job(b, &b->load, b->items, label);
    if (b->warm_load.n_stream) site.warm = bench_job(b, &b->warm_load, b->warm_items, NULL);
    GY_TRY(gy_bench_layout_run(&site, &b->layout[series], err, &run));
    gy_status st = gy_bench_run_result(run, NULL, b->o.sched.max_rows, err, &s->r[s->n]);
    if (st < 0) {
        gy_bench_run_destroy(run);
        return st;
    }
    note_failures(b, run, &s->r[s->n]);
    keep_or_compare(b, run);
    tell_run(b, s);
    s->n++;
    return GY_OK;
}

static gy_status bench_repeat(bench *b, size_t series, gy_err *err) {
    if (b->n_layout) return repeat_over(b, series, err);
    gy_bench_series *s = &b->series[series];
    gy_engine_opts o = b->o;
    gy_engine *e = NULL;
    char label[64];
    snprintf(label, sizeof label, "repeat %zu%s", s->n + 1,
             b->n_series < 2 ? ""
             : series        ? ", cache on"
                             : ", cache off");
    o.prefix_cache = s->prefix_cache;
    GY_TRY(gy_engine_open(b->m->model, &o, err, &e));
    if (!s->n && !series) gy_cli_tell_plan(gy_engine_get_plan(e));
    gy_status st = warm_up(b, e, err);
    if (st == GY_OK) st = repeat_on(b, e, label, err, &s->r[s->n]);
    gy_engine_close(e);
    s->n += st == GY_OK;
    return st;
}

static gy_status bench_go(bench *b, gy_err *err) {
    const int32_t repeat = b->a->bench.repeat ? b->a->bench.repeat : DEFAULT_REPEAT;
    for (int32_t k = 0; k < repeat; k++)
        for (size_t i = 0; i < b->n_series; i++) GY_TRY(bench_repeat(b, i, err));
    return GY_OK;
}

/* ---- report ---- */

static gy_bench_setup bench_setup(const bench *b) {
    const gy_args *a = b->a;
    return (gy_bench_setup){.cell = b->name,
                            .model = a->bench.synthetic ? a->bench.synthetic : b->m->dir,
                            .synthetic = a->bench.synthetic != NULL,
                            .family = b->m->d.family,
                            .dtype = b->m->act == GY_BF16 ? "bf16" : "f32",
                            .variant = b->m->be ? b->m->be->ops->name : NULL,
                            .cpu = gy_cpu_model(),
                            .kv_layout = a->kv_layout,
                            .kv_dtype = a->kv_dtype,
                            .exit = a->req.exit,
                            .n_loop = b->m->d.n_loop,
                            .n_core = gy_cpu_count_physical(),
                            .n_thread = b->m->be ? b->m->be->ops->n_member(b->m->be) : 0,
                            .load = &b->load,
                            .engine = &b->o,
                            .proto = &b->proto,
                            .warmup = b->warm_load.n_stream};
}

/* Why path's folder takes no new file, or 0. */
static int folder_refuses(const char *path) {
    const char *slash = strrchr(path, '/');
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    return access(dir, W_OK | X_OK) ? errno : 0;
}

gy_status gy_bench_may_write(const char *flag, const char *path, gy_err *err) {
    struct stat st;
    int why = 0;
    if (!path || !strcmp(path, "-")) return GY_OK;
    if (stat(path, &st))
        why = errno == ENOENT ? folder_refuses(path) : errno;
    else if (S_ISDIR(st.st_mode))
        why = EISDIR;
    else if (access(path, W_OK))
        why = errno;
    return why ? gy_err_set(err, GY_E_IO, "%s: %s: cannot write: %s", flag, path, strerrordesc_np(why)) : GY_OK;
}

gy_status gy_bench_write(const char *flag, const char *path, gy_str *s, gy_err *err) {
    if (s->failed) return gy_err_set(err, GY_E_NOMEM, "no memory for the report");
    if (!strcmp(path, "-")) {
        gy_cli_put_str(s);
        return GY_OK;
    }
    FILE *f = fopen(path, "w");
    const int bad = !f || fwrite(s->data, 1, s->len, f) != s->len;
    const int why = errno;
    if ((f && fclose(f)) || bad)
        return gy_err_set(err, GY_E_IO, "%s: %s: cannot write: %s", flag, path, strerrordesc_np(bad ? why : errno));
    gy_str_clear(s);
    return GY_OK;
}

static int is_stdout(const char *path) {
    return path && !strcmp(path, "-");
}

static gy_status report_to(const bench *b, gy_str *s, gy_err *err) {
    const gy_bench_opts *o = &b->a->bench;
    const gy_bench_setup u = bench_setup(b);
    if (!is_stdout(o->json_file) && !is_stdout(o->csv_file)) {
        gy_bench_put_table(&u, b->series, b->n_series, b->differ, s);
        GY_TRY(gy_bench_write("", "-", s, err));
    }
    if (o->json_file) {
        gy_bench_put_json(&u, b->series, b->n_series, b->differ, s);
        GY_TRY(gy_bench_write("--json", o->json_file, s, err));
    }
    if (!o->csv_file) return GY_OK;
    gy_bench_put_csv(&u, b->series, b->n_series, s);
    return gy_bench_write("--csv", o->csv_file, s, err);
}

/* A cell's line is told when it is measured; its figures join the list. */
static gy_status report_cell(bench_set *set, const bench *b, gy_str *s, gy_err *err) {
    const gy_bench_setup u = bench_setup(b);
    if (b->n_layout) {
        gy_bench_put_table(&u, b->series, b->n_series, b->differ, s);
        gy_str_putc(s, '\n');
    } else {
        if (!set->json.len) gy_bench_put_cell_head(s);
        gy_bench_put_cell(b->name, b->series, b->differ, s);
    }
    if (!is_stdout(set->a->bench.json_file) && !is_stdout(set->a->bench.csv_file))
        GY_TRY(gy_bench_write("", "-", s, err));
    gy_str_clear(s);
    gy_bench_put_csv(&u, b->series, b->n_series, &set->csv);
    gy_str_puts(&set->json, set->json.len ? "," : "[");
    gy_bench_put_json(&u, b->series, b->n_series, b->differ, &set->json);
    return GY_OK;
}

static gy_status bench_report(bench_set *set, const bench *b, gy_err *err) {
    gy_str s = {0};
    const gy_status st = b->name ? report_cell(set, b, &s, err) : report_to(b, &s, err);
    gy_str_free(&s);
    return st;
}

static gy_status set_report(bench_set *set, gy_err *err) {
    const char *path = set->a->bench.json_file, *csv = set->a->bench.csv_file;
    if (!set->cell) return GY_OK;
    gy_str_puts(&set->json, set->json.len ? "]\n" : "[]\n");
    if (path) GY_TRY(gy_bench_write("--json", path, &set->json, err));
    return csv ? gy_bench_write("--csv", csv, &set->csv, err) : GY_OK;
}

/* All that was measured, in one page. */
static gy_status write_page(const bench_set *set, gy_err *err) {
    gy_str s = {0};
    gy_bench_outcome *o = gy_arena_alloc(set->a->arena, set->n, sizeof *o);
    if (!o) return gy_err_set(err, GY_E_NOMEM, "no memory for the page");
    for (size_t i = 0; i < set->n; i++) {
        const bench *b = &set->b[i];
        o[i] = (gy_bench_outcome){.u = bench_setup(b), .s = b->series, .n = b->n_series, .differ = b->differ};
    }
    gy_status st = gy_bench_put_html(o, set->n, &s);
    st = st < 0 ? gy_err_set(err, st, "no memory for the page")
                : gy_bench_write("--html", set->a->bench.html_file, &s, err);
    gy_str_free(&s);
    return st;
}

static int bench_verdict(const bench *b) {
    const char *name = b->name ? b->name : "";
    if (b->n_failed) fprintf(stderr, "gyre: %s%s%d requests ended in an error\n", name, *name ? ": " : "", b->n_failed);
    if (b->differ >= 0)
        fprintf(stderr, "gyre: %s%sthe outputs of request %d differ between two runs of the same work\n", name,
                *name ? ": " : "", b->differ);
    return b->n_failed || b->differ >= 0 ? GY_CLI_FAILED : GY_CLI_OK;
}

/* Its figures stay. */
static void bench_close(bench *b) {
    gy_bench_run_destroy(b->first);
    b->first = NULL;
    gy_jobs_fini(&b->jobs);
}

static void set_close(bench_set *set) {
    for (size_t i = 0; set->b && i < set->n; i++) bench_close(&set->b[i]);
    for (size_t i = 0; set->cell && i < set->n; i++) gy_opts_fini(&set->cell[i].opts);
    gy_cli_model_close(&set->m);
    remove_synthetic(set);
    gy_str_free(&set->json);
    gy_str_free(&set->csv);
}

/* A cell that fails does not keep the others from running. */
static int run_bench(bench_set *set, bench *b) {
    gy_err err = {0};
    gy_status st = bench_go(b, &err);
    if (st < 0) cell_prefix(b, &err);
    if (st >= 0) st = bench_report(set, b, &err);
    const int rc = st < 0 ? gy_cli_fail(&err) : bench_verdict(b);
    bench_close(b);
    return rc;
}

static int bench_engine(const gy_args *a) {
    bench_set set = {.a = a};
    gy_err err = {0};
    int rc = GY_CLI_OK;
    gy_status st = set_open(&set, &err);
    for (size_t i = 0; st >= 0 && i < set.n; i++) rc = max_i32(rc, run_bench(&set, &set.b[i]));
    if (st >= 0) st = set_report(&set, &err);
    if (st >= 0 && a->bench.html_file) st = write_page(&set, &err);
    if (st < 0) rc = gy_cli_fail(&err);
    set_close(&set);
    return rc;
}

/* ---- which benchmark ---- */

int gy_cmd_bench(const gy_args *a) {
    static const char usage[] = "usage: gyre bench engine (MODEL | --synthetic SHAPE) [options]\n"
                                "       gyre bench pd (MODEL | --synthetic SHAPE) [--part P] [options]\n"
                                "       gyre bench serve --url URL [options]\n\n"
                                "  engine   the engine under a workload (gyre bench --help lists the options)\n"
                                "  pd       prefill and decode workers beside replicas, on set workloads\n"
                                "  serve    any OpenAI server under load (gyre bench serve --help)\n\n"
                                "Programs of their own, built beside gyre (./do bench runs them):\n"
                                "  gyre-bench-ops      single operations against the machine's ceilings\n"
                                "  gyre-bench-decode   a whole checkpoint: start, decode, memory\n";
    gy_err err = {0};
    if (!a->n_pos) {
        fputs(usage, stderr);
        return GY_CLI_USAGE;
    }
    if (!strcmp(a->pos[0], "engine")) return bench_engine(a);
    if (!strcmp(a->pos[0], "pd")) {
        gy_args pd;
        return gy_bench_pd_args(a, &err, &pd) < 0 ? gy_cli_fail(&err) : bench_engine(&pd);
    }
    gy_err_set(&err, GY_E_ARG, "bench: found '%.40s', expected engine, pd or serve (gyre bench lists what there is)",
               a->pos[0]);
    return gy_cli_fail(&err);
}
