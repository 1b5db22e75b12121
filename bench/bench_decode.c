/* gyre-bench-decode: a checkpoint of a published shape from start to tokens on the CPU backend, beside what the machine
 * could do at most, measured in the same run (ceiling.h).
 *
 *   gyre-bench-decode [--shape ouro-1.4b] [--dir build/bench/SHAPE] [--dtype both|bf16|f32] [--tokens 12] [--threads N]
 *                     [--mask avx2] [--json]
 *
 *   start    backend, gy_model_load and gy_engine_open, from a warm page cache; and on to the first token of a prompt
 * of one token, which touches every page of the mapping for the first time decode   the time between tokens of 1 and of
 * 8 sequences, the bytes a token must move, and their quotient prefill  a prompt of 128 tokens, as arithmetic memory
 * resident memory that is neither weights (mapped, RssFile) nor KV blocks that were in use
 *
 * The checkpoint has random weights and is written once (2.9 GB for ouro-1.4b). Rates use the best of several tokens:
 * ceilings are the best of several tries too; the median beside it and the load tell how quiet the machine was.
 */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/mem.h"
#include "ceiling.h"
#include "engine/engine.h"
#include "model/loop.h"
#include "model/synth.h"
#include "timed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TOKENS = 256, N_START = 3, WIDE = 8, WIDE_TOKENS = 6, PREFILL = 128, N_PREFILL = 2, MAX_LEN = 512 };

typedef struct options {
    const char *shape, *dir;
    int n_thread, tokens, json, bf16, f32;
} options;

typedef struct bench {
    options o;
    double read, fma; /* ceilings: bytes/s, flop/s; the best of all tries so far */
    gy_team *team;    /* for the ceilings */
    gy_dtype act;
    timed_backend be;
    gy_model *model;
    gy_engine *engine;
    gy_engine_plan plan;
    size_t kv_used;                /* most bytes of KV blocks in use so far */
    size_t anon_peak;              /* most of RssAnon minus kv_used */
    int64_t stamp[MAX_TOKENS + 1]; /* when the first sequence's tokens came */
    int n_stamp;
    gy_err err;
} bench;

static double seconds(int64_t from_ns, int64_t to_ns) {
    return (double)(to_ns - from_ns) * 1e-9;
}

/* ---- the process and the machine ------------------------------------------------------------------------------- */

/* A line of /proc/self/status in bytes, 0 if it is not there. */
static size_t status_bytes(const char *field) {
    char line[256];
    size_t len = strlen(field), kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, len) == 0 && line[len] == ':') kib = strtoull(line + len + 1, NULL, 10);
    fclose(f);
    return kib << 10;
}

/* Forgets the peak that the ceilings' memory left behind. 0 on success. */
static int peak_reset(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return -1;
    int bad = fputs("5", f) < 0;
    return fclose(f) || bad ? -1 : 0;
}

static void load_read(char out[64]) {
    FILE *f = fopen("/proc/loadavg", "r");
    if (!f || !fgets(out, 64, f)) strcpy(out, "unknown");
    if (f) fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

static void memory_note(bench *b) {
    gy_engine_stats s;
    size_t used = 0, anon = status_bytes("RssAnon");
    gy_engine_get_stats(b->engine, &s);
    for (int g = 0; g < GY_KV_GROUPS; g++) used += (size_t)(s.kv_total[g] - s.kv_free[g]) * b->plan.block_bytes[g];
    if (used > b->kv_used) b->kv_used = used;
    size_t beyond = anon > b->kv_used ? anon - b->kv_used : 0;
    if (beyond > b->anon_peak) b->anon_peak = beyond;
}

/* ---- checkpoint ------------------------------------------------------------------------------------------------ */

static void synth_progress(void *arg, uint64_t done, uint64_t total) {
    int *shown = arg, percent = total ? (int)(done * 100 / total) : 100;
    if (!isatty(STDERR_FILENO) || percent == *shown) return;
    *shown = percent;
    fprintf(stderr, "\rwriting the checkpoint: %3d %%%s", percent, percent == 100 ? "\n" : "");
}

static gy_status parents_make(const char *dir, gy_err *err) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s", dir) >= sizeof path)
        return gy_err_set(err, GY_E_ARG, "--dir: longer than %zu bytes", sizeof path - 1);
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        if (!gy_dir_exists(path) && mkdir(path, 0777))
            return gy_err_set(err, GY_E_IO, "%s: cannot create this folder; use --dir", path);
        *p = '/';
    }
    return GY_OK;
}

/* Under another name until it is complete: a run that was killed leaves nothing that looks like a checkpoint. */
static gy_status checkpoint_make(const options *o, gy_err *err) {
    char part[4096], file[4200];
    int shown = -1;
    if (gy_dir_exists(o->dir)) return GY_OK;
    GY_TRY(parents_make(o->dir, err));
    snprintf(part, sizeof part, "%s.part", o->dir);
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s", part, i ? "config.json" : "model.safetensors");
        unlink(file);
    }
    fprintf(stderr, "writing %s, once\n", o->dir);
    GY_TRY(gy_synth_write(o->shape, 1, part, synth_progress, &shown, err));
    if (rename(part, o->dir)) return gy_err_set(err, GY_E_IO, "%s: cannot rename it to %s", part, o->dir);
    return GY_OK;
}

/* ---- ceilings -------------------------------------------------------------------------------------------------- */

static void raise_to(double *best, double v) {
    if (v > *best) *best = v;
}

/* Reads the weights through a mapping, which also makes the page cache warm. */
static gy_status mapped_read(bench *b) {
    gy_map map = {0};
    char *path = gy_path_join(b->o.dir, "model.safetensors");
    if (!path) return gy_err_set(&b->err, GY_E_NOMEM, "out of memory");
    gy_status st = gy_map_open(path, &b->err, &map);
    if (st == GY_OK) raise_to(&b->read, gy_ceiling_read(b->team, map.data, map.size, 4));
    gy_map_close(&map);
    gy_mem_free(path);
    return st;
}

static gy_status ceilings_measure(bench *b) {
    if (gy_team_create(b->o.n_thread, 0, &b->team) < 0) return gy_err_set(&b->err, GY_E_NOMEM, "cannot start threads");
    b->fma = gy_ceiling_fma(b->team);
    b->read = gy_ceiling_read_anonymous(b->team, 8);
    if (b->read == 0) return gy_err_set(&b->err, GY_E_NOMEM, "no memory to measure read bandwidth");
    return mapped_read(b);
}

/* Again before each figure, over the bytes that the model itself reads: the machine may have been busy before. The
 * layers of a checkpoint of one file lie in one mapping. */
static void ceilings_again(bench *b) {
    const gy_model *m = b->model;
    const char *lo = NULL, *hi = NULL;
    for (int32_t il = 0; il < m->d.n_layer[GY_CORE]; il++) {
        const gy_weight *w = &m->layer[GY_CORE][il].gate_up;
        const char *p = w->part[0].data, *end = p + (size_t)w->part[0].n * (size_t)w->k * gy_dtype_bytes(w->dtype);
        if (!lo || p < lo) lo = p;
        if (!hi || end > hi) hi = end;
    }
    raise_to(&b->read, gy_ceiling_read(b->team, lo, (size_t)(hi - lo), 4));
    raise_to(&b->fma, gy_ceiling_fma(b->team));
}

/* ---- one engine ------------------------------------------------------------------------------------------------ */

static gy_engine_opts engine_opts(const gy_model_desc *d) {
    gy_engine_opts o;
    gy_engine_opts_default(&o);
    o.sched.max_seqs = WIDE;
    o.max_len = d->max_pos < MAX_LEN ? d->max_pos : MAX_LEN;
    return o;
}

static gy_status engine_start(bench *b) {
    gy_model_desc d;
    gy_backend *inner = NULL;
    GY_TRY(gy_model_read_desc(b->o.dir, &b->err, &d));
    gy_engine_opts eo = engine_opts(&d);
    gy_cpu_opts co = {
        .act = b->act, .n_thread = b->o.n_thread, .limits = gy_loop_limits(&d, eo.sched.max_rows, eo.max_len)};
    GY_TRY(gy_engine_make_plan(&d, b->act, &eo, 0, &b->err, &b->plan));
    GY_TRY(gy_backend_cpu_create(&co, &b->err, &inner));
    timed_init(&b->be, inner);
    GY_TRY(gy_model_load(b->o.dir, &(gy_model_load_opts){.be = &b->be.be}, &b->err, &b->model));
    return gy_engine_open(b->model, &eo, &b->err, &b->engine);
}

static void engine_stop(bench *b) {
    gy_engine_close(b->engine);
    gy_model_free(b->model);
    if (b->be.inner) timed_fini(&b->be);
    b->engine = NULL;
    b->model = NULL;
}

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    bench *b = arg;
    (void)ev;
    if (b && b->n_stamp <= MAX_TOKENS) b->stamp[b->n_stamp++] = gy_clock_ns();
    return GY_CONTINUE;
}

/* n_seq prompts of n_prompt tokens each, n_tok outputs each; stamp[] has the first one's times, and *begin_out when
 * they were handed over. */
static gy_status generate(bench *b, int n_seq, int n_prompt, int n_tok, int64_t *begin_out) {
    int32_t prompt[PREFILL], id;
    gy_status st = GY_OK;
    b->n_stamp = 0;
    *begin_out = gy_clock_ns();
    for (int s = 0; s < n_seq; s++) {
        gy_request r;
        gy_request_default(&r, &b->model->d);
        for (int i = 0; i < n_prompt; i++) prompt[i] = (int32_t)((7919 * (i + 1) + 104729 * s) % b->model->d.n_vocab);
        r.prompt = prompt;
        r.n_prompt = n_prompt;
        r.max_tokens = n_tok;
        r.ignore_eos = 1;
        r.on_token = on_token;
        r.arg = s ? NULL : b;
        GY_TRY(gy_engine_submit(b->engine, &r, &b->err, &id));
    }
    for (; st == GY_OK; memory_note(b)) st = gy_engine_step(b->engine, &b->err);
    return st < 0 ? st : GY_OK;
}

/* ---- figures --------------------------------------------------------------------------------------------------- */

typedef struct timing {
    double best, median;
} timing;

static int double_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing timing_of(double *sample, int n) {
    qsort(sample, (size_t)n, sizeof *sample, double_order);
    return (timing){.best = sample[0], .median = sample[n / 2]};
}

/* Between the tokens of the first sequence. */
static timing gaps(const bench *b) {
    double gap[MAX_TOKENS];
    int n = b->n_stamp - 1;
    for (int i = 0; i < n; i++) gap[i] = seconds(b->stamp[i], b->stamp[i + 1]);
    return timing_of(gap, n);
}

static double weight_elems(const gy_weight *w) {
    return (double)w->n * w->k;
}

/* Elements of the matrices that one token is multiplied with on its way through all loops, without the LM head. */
static double core_elems(const gy_model *m) {
    double sum = weight_elems(&m->adapter) * m->d.n_loop;
    for (gy_stage s = GY_PRELUDE; s < GY_STAGES; s++)
        for (int32_t il = 0; il < m->d.n_layer[s]; il++) {
            const gy_layer *l = &m->layer[s][il];
            double n = weight_elems(&l->qkv) + weight_elems(&l->o) + weight_elems(&l->gate_up) + weight_elems(&l->down);
            sum += s == GY_CORE ? n * m->d.n_loop : n;
        }
    return sum;
}

typedef struct work {
    double weights, head, embed, kv, bytes; /* bytes that one round of n_seq tokens must move, and their sum */
    double flop;                            /* of its matrix products */
    double bound_s;                         /* no round can be shorter on this machine */
} work;

/* Weights are read once for all rows of a pass. KV: a token at position p reads p + 1 tokens' KV and writes its own. */
static work work_of_round(const bench *b, int n_seq, double mean_pos) {
    const gy_model *m = b->model;
    double elem = (double)gy_dtype_bytes(m->layer[GY_CORE][0].qkv.dtype);
    work w = {.weights = core_elems(m) * elem,
              .head = weight_elems(&m->head) * (double)gy_dtype_bytes(m->head.dtype),
              .embed = n_seq * (double)m->embed.k * (double)gy_dtype_bytes(m->embed.dtype),
              .kv = n_seq * (double)b->plan.kv_token_bytes * (mean_pos + 2),
              .flop = 2.0 * n_seq * (core_elems(m) + weight_elems(&m->head))};
    w.bytes = w.weights + w.head + w.embed + w.kv;
    w.bound_s = w.bytes / b->read > w.flop / b->fma ? w.bytes / b->read : w.flop / b->fma;
    return w;
}

static const char *act_name(const bench *b) {
    return b->act == GY_BF16 ? "bf16" : "f32";
}

static void ceilings_print(const bench *b) {
    char load[64];
    load_read(load);
    if (b->o.json)
        printf("{\"what\":\"machine\",\"cpu\":\"%s\",\"threads\":%d,\"shape\":\"%s\",\"read_gbytes_per_s\":%.2f,"
               "\"fma_gflop_per_s\":%.1f,\"load\":\"%s\"}\n",
               gy_cpu_model(), gy_team_size(b->team), b->o.shape, b->read * 1e-9, b->fma * 1e-9, load);
    else
        printf("%s on %s, %d threads, load %s\nceilings: read %.2f GB/s, f32 fma %.1f GFLOP/s\n", b->o.shape,
               gy_cpu_model(), gy_team_size(b->team), load, b->read * 1e-9, b->fma * 1e-9);
    fflush(stdout);
}

static void start_print(const bench *b, timing ready, timing token) {
    if (b->o.json)
        printf("{\"what\":\"start\",\"act\":\"%s\",\"ready_s\":%.4f,\"ready_median_s\":%.4f,\"first_token_s\":%.4f,"
               "\"first_token_median_s\":%.4f}\n",
               act_name(b), ready.best, ready.median, token.best, token.median);
    else
        printf("%-4s start: ready after %.4f s (median %.4f; aim 0.5), first token after %.3f s (median %.3f)\n",
               act_name(b), ready.best, ready.median, token.best, token.median);
}

static void decode_print(const bench *b, int n_seq, const work *w, timing t) {
    double read = w->bytes / t.best;
    if (b->o.json)
        printf("{\"what\":\"decode\",\"act\":\"%s\",\"batch\":%d,\"round_ms\":%.2f,\"round_median_ms\":%.2f,"
               "\"token_ms\":%.2f,\"read_bound_ms\":%.2f,\"fma_bound_ms\":%.2f,\"weight_bytes\":%.0f,"
               "\"head_bytes\":%.0f,\"embed_bytes\":%.0f,\"kv_bytes\":%.0f,\"gbytes_per_s\":%.2f,"
               "\"ceiling_gbytes_per_s\":%.2f,\"read_share\":%.3f,\"read_share_median\":%.3f,\"bound_share\":%.3f}\n",
               act_name(b), n_seq, t.best * 1e3, t.median * 1e3, t.best * 1e3 / n_seq, w->bytes / b->read * 1e3,
               w->flop / b->fma * 1e3, w->weights, w->head, w->embed, w->kv, read * 1e-9, b->read * 1e-9,
               read / b->read, w->bytes / t.median / b->read, w->bound_s / t.best);
    else
        printf("%-4s decode, batch %d: round %.1f ms (median %.1f), %.1f ms a token\n"
               "     it moves %.3f GB: %.2f GB/s, %.1f %% of the ceiling of %.2f (median %.1f %%%s)\n"
               "     prediction: %.1f ms by bytes, %.1f ms by arithmetic; %.1f %% of the tighter bound\n",
               act_name(b), n_seq, t.best * 1e3, t.median * 1e3, t.best * 1e3 / n_seq, w->bytes * 1e-9, read * 1e-9,
               100 * read / b->read, b->read * 1e-9, 100 * w->bytes / t.median / b->read, n_seq > 1 ? "" : "; aim 50",
               w->bytes / b->read * 1e3, w->flop / b->fma * 1e3, 100 * w->bound_s / t.best);
    fflush(stdout);
}

/* One line of the split: an operation, or what is left over (e NULL). best: of the shortest call. */
static void op_print(const bench *b, const timed_entry *e, int n_tok, double ms, double total_ms) {
    char name[64] = "outside";
    double calls = e ? (double)e->calls / n_tok : 0, best_ms = e ? (double)e->best_ns * calls * 1e-6 : ms;
    double gb = e ? e->weight_bytes / n_tok * 1e-9 : 0;
    if (e) snprintf(name, sizeof name, e->n ? "%s %dx%d" : "%s", e->op, e->n, e->k);
    if (b->o.json)
        printf(
            "{\"what\":\"op\",\"act\":\"%s\",\"op\":\"%s\",\"calls\":%.1f,\"ms\":%.3f,\"share\":%.4f,\"best_ms\":%.3f,"
            "\"gbytes_per_s\":%.2f,\"best_gbytes_per_s\":%.2f}\n",
            act_name(b), name, calls, ms, ms / total_ms, best_ms, gb / ms * 1e3, gb / best_ms * 1e3);
    else
        printf("       %-18s %6.1f calls %9.3f ms %6.2f %%, the shortest: %9.3f ms", name, calls, ms,
               100 * ms / total_ms, best_ms);
    if (!b->o.json) printf(gb > 0 ? "; %6.2f GB/s, %6.2f\n" : "\n", gb / ms * 1e3, gb / best_ms * 1e3);
}

/* Where a round of the phase went, and what it would take if each operation took as long as its shortest call: close
 * to what a quiet machine gives, even when this one is not. total_s: of the whole phase. */
static void split_print(const bench *b, int n_round, double total_s, const work *w) {
    double left = total_s * 1e3 / n_round, total = left, quiet = 0;
    for (int i = 0; i < b->be.n_entry; i++) {
        const timed_entry *e = &b->be.entry[i];
        double ms = (double)e->ns * 1e-6 / n_round;
        op_print(b, e, n_round, ms, total);
        left -= ms;
        quiet += (double)e->best_ns * (double)e->calls * 1e-6 / n_round;
    }
    op_print(b, NULL, n_round, left, total);
    quiet += left;
    if (b->o.json)
        printf("{\"what\":\"quiet_round\",\"act\":\"%s\",\"ms\":%.3f,\"read_share\":%.3f,\"bound_share\":%.3f}\n",
               act_name(b), quiet, w->bytes / quiet * 1e3 / b->read, w->bound_s / quiet * 1e3);
    else
        printf("       a round of the shortest calls: %.1f ms, %.1f %% of the read ceiling, %.1f %% of the tighter "
               "bound\n",
               quiet, 100 * w->bytes / quiet * 1e3 / b->read, 100 * w->bound_s / quiet * 1e3);
}

static void prefill_print(const bench *b, timing t) {
    const gy_model_desc *d = &b->model->d;
    double pairs = PREFILL * (PREFILL + 1) / 2.0;
    double depth = (double)gy_desc_core_layers(d) * d->n_loop + gy_desc_boundary_layers(d);
    double flop = 2 * core_elems(b->model) * PREFILL + 2 * weight_elems(&b->model->head) +
                  4 * pairs * d->n_head * d->head_dim * depth;
    if (b->o.json)
        printf("{\"what\":\"prefill\",\"act\":\"%s\",\"tokens\":%d,\"s\":%.3f,\"median_s\":%.3f,\"tok_per_s\":%.2f,"
               "\"gflop_per_s\":%.1f,\"fma_share\":%.3f}\n",
               act_name(b), PREFILL, t.best, t.median, PREFILL / t.best, flop / t.best * 1e-9, flop / t.best / b->fma);
    else
        printf("%-4s prefill, %d tokens: %.2f s (median %.2f), %.1f tok/s, %.1f GFLOP/s, %.1f %% of the ceiling\n",
               act_name(b), PREFILL, t.best, t.median, PREFILL / t.best, flop / t.best * 1e-9,
               100 * flop / t.best / b->fma);
}

static void memory_print(const bench *b, int peak_known) {
    double peak = (double)status_bytes("VmHWM"), file = (double)status_bytes("RssFile"), kv = (double)b->kv_used;
    double beyond = peak_known ? (peak - file - kv) * 1e-6 : -1;
    if (b->o.json)
        printf("{\"what\":\"memory\",\"act\":\"%s\",\"weights_mb\":%.1f,\"kv_used_mb\":%.1f,\"beyond_mb\":%.1f,"
               "\"vmhwm_beyond_mb\":%.1f,\"converted_mb\":%.1f}\n",
               act_name(b), (double)b->model->weight_bytes * 1e-6, kv * 1e-6, (double)b->anon_peak * 1e-6, beyond,
               (double)b->model->converted_bytes * 1e-6);
    else
        printf(
            "%-4s memory: weights %.1f MB mapped, %.1f MB of KV in use, beyond them %.1f MB (RssAnon), %.1f MB (VmHWM "
            "- RssFile); aim 300\n",
            act_name(b), (double)b->model->weight_bytes * 1e-6, kv * 1e-6, (double)b->anon_peak * 1e-6, beyond);
    fflush(stdout);
}

/* ---- phases ---------------------------------------------------------------------------------------------------- */

/* Leaves the last engine open, with every page of the weights mapped. */
static gy_status start_bench(bench *b) {
    double ready[N_START], token[N_START];
    int64_t begin;
    for (int i = 0; i < N_START; i++) {
        engine_stop(b);
        int64_t t0 = gy_clock_ns();
        GY_TRY(engine_start(b));
        ready[i] = seconds(t0, gy_clock_ns());
        GY_TRY(generate(b, 1, 1, 1, &begin));
        token[i] = seconds(t0, b->stamp[0]);
    }
    start_print(b, timing_of(ready, N_START), timing_of(token, N_START));
    return GY_OK;
}

static gy_status decode_bench(bench *b, int n_seq, int n_tok) {
    int64_t begin;
    timed_reset(&b->be);
    GY_TRY(generate(b, n_seq, 1, n_tok + 1, &begin));
    double total = seconds(begin, gy_clock_ns());
    ceilings_again(b);
    work w = work_of_round(b, n_seq, (n_tok + 1) / 2.0);
    decode_print(b, n_seq, &w, gaps(b));
    split_print(b, n_tok + 1, total, &w);
    return GY_OK;
}

static gy_status prefill_bench(bench *b) {
    double t[N_PREFILL], sum = 0;
    int64_t begin;
    int n = 0;
    for (; n < N_PREFILL && sum < 15; n++) { /* a slow or busy machine measures it once */
        GY_TRY(generate(b, 1, PREFILL, 1, &begin));
        t[n] = seconds(begin, b->stamp[0]);
        sum += t[n];
    }
    ceilings_again(b);
    prefill_print(b, timing_of(t, n));
    return GY_OK;
}

static gy_status act_bench(bench *b, gy_dtype act) {
    b->act = act;
    b->kv_used = b->anon_peak = 0;
    int peak_known = peak_reset() == 0;
    GY_TRY(start_bench(b));
    GY_TRY(decode_bench(b, 1, b->o.tokens));
    GY_TRY(decode_bench(b, WIDE, WIDE_TOKENS));
    GY_TRY(prefill_bench(b));
    memory_print(b, peak_known);
    engine_stop(b);
    return GY_OK;
}

static gy_status bench_run(bench *b) {
    GY_TRY(checkpoint_make(&b->o, &b->err));
    GY_TRY(ceilings_measure(b));
    ceilings_print(b);
    if (b->o.bf16) GY_TRY(act_bench(b, GY_BF16));
    if (b->o.f32) GY_TRY(act_bench(b, GY_F32));
    return GY_OK;
}

/* ---- main ------------------------------------------------------------------------------------------------------ */

static int dtype_read(options *o, const char *s) {
    o->bf16 = strcmp(s, "f32") != 0;
    o->f32 = strcmp(s, "bf16") != 0;
    return strcmp(s, "both") == 0 || o->bf16 != o->f32;
}

static int int_read(const char *s, int lo, int hi, int *out) {
    char *end;
    long v = strtol(s, &end, 10);
    if (*end || end == s || v < lo || v > hi) return 0;
    *out = (int)v;
    return 1;
}

static int option_read(options *o, const char *name, const char *value) {
    uint32_t mask;
    if (strcmp(name, "--shape") == 0) {
        o->shape = value;
    } else if (strcmp(name, "--dir") == 0) {
        o->dir = value;
    } else if (strcmp(name, "--dtype") == 0) {
        return dtype_read(o, value);
    } else if (strcmp(name, "--tokens") == 0) {
        return int_read(value, 1, MAX_TOKENS, &o->tokens);
    } else if (strcmp(name, "--threads") == 0) {
        return int_read(value, 0, 1024, &o->n_thread);
    } else if (strcmp(name, "--mask") == 0) {
        if (gy_cpu_parse_mask(value, &mask)) return 0;
        gy_cpu_set_mask(mask);
    } else {
        return 0;
    }
    return 1;
}

static int options_read(options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            o->json = 1;
        } else if (i + 1 < argc && option_read(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "usage: gyre-bench-decode [--shape ouro-1.4b|nanbeige-3b|...] [--dir DIR] "
                            "[--dtype both|bf16|f32] [--tokens N] [--threads N] [--mask avx2,avx512] [--json]\n");
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    char dir[256];
    bench b = {.o = {.shape = "ouro-1.4b", .tokens = 12, .bf16 = 1, .f32 = 1}};
    if (!options_read(&b.o, argc, argv)) return 2;
    snprintf(dir, sizeof dir, "build/bench/%s", b.o.shape);
    if (!b.o.dir) b.o.dir = dir;
    gy_status st = bench_run(&b);
    if (st < 0) fprintf(stderr, "gyre-bench-decode: %s\n", b.err.msg);
    engine_stop(&b);
    gy_team_destroy(b.team);
    return st < 0 ? 1 : 0;
}
