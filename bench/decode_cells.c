/* The cells: see decode_cells.h. Goals are those of docs/kernels.md: decoding one sequence reaches 85 % of the
 * bandwidth, with quantized weights 80 % of what their bytes need; 8 and 32 sequences 70 % of the tighter bound; a
 * prompt 70 % of the f32 peak, with INT8 weights twice that; attention 75 % of the bandwidth.
 */
#include "decode_cells.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/philox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 2048, ATTN_CALLS = 96, LONGEST_PROMPT_S = 15 };

static int double_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, double_order);
    return v[n / 2];
}

/* ---- what a round must do -----------------------------------------------------------------------------------------
 */

static double weight_elems(const gy_weight *w) {
    return (double)w->n * w->k;
}

static double weight_bytes(const gy_weight *w) {
    const double scales = w->n_part && w->part[0].scale ? 4.0 * w->n : 0;
    if (gy_is_grouped(w->dtype)) return (double)gy_quant_bytes(w->dtype, w->n, w->k);
    return weight_elems(w) * (double)gy_dtype_bytes(w->dtype) + scales;
}

typedef double (*weight_fn)(const gy_weight *w);

/* Over the matrices that a token is multiplied with on its way through all loops, without the LM head. */
static double core_sum(const gy_model *m, weight_fn of) {
    double sum = of(&m->adapter) * m->d.n_loop;
    for (gy_stage s = GY_PRELUDE; s < GY_STAGES; s++)
        for (int32_t il = 0; il < m->d.n_layer[s]; il++) {
            const gy_layer *l = &m->layer[s][il];
            const double n = of(&l->qkv) + of(&l->o) + of(&l->gate_up) + of(&l->down);
            sum += s == GY_CORE ? n * m->d.n_loop : n;
        }
    return sum;
}

/* Weights are read once for all rows of a pass. A token at position p reads p + 1 tokens' KV and writes its own. */
static void work_of_decode(const rig *r, int n_seq, double mean_pos, cell_result *c) {
    const gy_model *m = r->model;
    c->bytes = core_sum(m, weight_bytes) + weight_bytes(&m->head) +
               n_seq * (double)m->embed.k * (double)gy_dtype_bytes(m->embed.dtype) +
               n_seq * (double)r->plan.kv_token_bytes * (mean_pos + 2);
    c->flop = 2.0 * n_seq * (core_sum(m, weight_elems) + weight_elems(&m->head));
}

/* The head of one row only: the others have no logits. */
static void work_of_prefill(const rig *r, int n_prompt, cell_result *c) {
    const gy_model_desc *d = &r->model->d;
    const double pairs = n_prompt * (n_prompt + 1) / 2.0;
    const double depth = (double)gy_desc_core_layers(d) * d->n_loop + gy_desc_boundary_layers(d);
    c->bytes = core_sum(r->model, weight_bytes) + weight_bytes(&r->model->head);
    c->flop = 2 * core_sum(r->model, weight_elems) * n_prompt + 2 * weight_elems(&r->model->head) +
              4 * pairs * d->n_head * d->head_dim * depth;
}

/* ---- figures ------------------------------------------------------------------------------------------------------
 */

static double bound_s(const cell_result *c, double read) {
    const double by_bytes = c->bytes / read, by_flop = c->flop / c->fma;
    return by_bytes > by_flop ? by_bytes : by_flop;
}

static void figures(const rig *r, const rig_round *round, int n, cell_result *c) {
    double s[RIG_MAX_TOKENS + 1], share[RIG_MAX_TOKENS + 1], read[RIG_MAX_TOKENS + 1];
    c->fma = r->fma;
    c->n_round = n;
    for (int i = 0; i < n; i++) {
        s[i] = (double)round[i].ns * 1e-9;
        read[i] = round[i].read;
        share[i] = bound_s(c, read[i]) / s[i];
    }
    c->share = median_of(share, n);
    c->read = median_of(read, n);
    c->median_s = median_of(s, n);
    c->best_s = s[0];
    c->share_best = bound_s(c, read[n - 1]) / s[0];
}

static int is_quantized(const rig *r) {
    return r->o.weights > GY_WEIGHTS_BF16;
}

/* ---- decode and prefill -------------------------------------------------------------------------------------------
 */

static gy_status decode_cell(rig *r, int n_seq, int tokens, cell_result *c) {
    GY_TRY(rig_engine_open(r, n_seq, RIG_MAX_TOKENS + 8));
    if (r->o.split) timed_reset(&r->timed);
    GY_TRY(rig_generate(r, n_seq, 1, tokens + 1));
    work_of_decode(r, n_seq, (tokens + 1) / 2.0, c);
    c->goal = n_seq > 1 ? 0.7 : is_quantized(r) ? 0.8 : 0.85;
    figures(r, r->round + 1, r->n_round - 1, c); /* the first round maps pages and has the prompt */
    return GY_OK;
}

/* Once where it is long, twice where it is not. */
static gy_status prefill_cell(rig *r, int n_prompt, cell_result *c) {
    rig_round best = {0};
    GY_TRY(rig_engine_open(r, 1, n_prompt + 8));
    for (int i = 0; i < 2; i++) {
        if (r->o.split) timed_reset(&r->timed);
        GY_TRY(rig_generate(r, 1, n_prompt, 1));
        if (!i || r->round[0].ns < best.ns) best = r->round[0];
        if (best.ns > (int64_t)LONGEST_PROMPT_S * 1000000000) break;
    }
    work_of_prefill(r, n_prompt, c);
    c->goal = r->o.weights == GY_WEIGHTS_INT8 || r->o.weights == GY_WEIGHTS_INT8_CHANNEL ? 1.4 : 0.7;
    figures(r, &best, 1, c);
    return GY_OK;
}

/* ---- attention ----------------------------------------------------------------------------------------------------
 */

typedef struct attn_rig {
    gy_kv_view kv;
    gy_attn_args a;
    size_t pool_bytes;
    int32_t n_set; /* of contexts, one a row; at least 1 */
    int32_t *map, *pos, *slot;
    int64_t *off;
    void *q, *y;
} attn_rig;

static void attn_fini(attn_rig *t) {
    if (t->kv.base) gy_mem_unmap_pages(GY_MEM_BASE, t->kv.base, t->pool_bytes);
    gy_mem_free(t->map);
    gy_mem_free(t->pos);
    gy_mem_free(t->slot);
    gy_mem_free(t->off);
    gy_mem_free(t->q);
    gy_mem_free(t->y);
}

/* Values between -1 and 1: scores of a real size. */
static void values_fill(gy_dtype act, void *p, size_t n) {
    uint32_t w[4096];
    for (uint32_t i = 0; i < 1024; i++) gy_rand_block(1, 0, 0, GY_RAND_TEST, i, w + 4 * i);
    for (size_t i = 0; i < n; i++) {
        const float v = gy_rand_unit_f32(w[(i + i / 4093) % 4096] + (uint32_t)i * 0x9e3779b9U) * 2 - 1;
        if (act == GY_F32)
            ((float *)p)[i] = v;
        else
            ((uint16_t *)p)[i] = gy_f32_to_bf16(v);
    }
}

/* Rows have contexts of their own, at least 1 GiB of KV together over all layers. */
static int attn_init(attn_rig *t, const rig *r, int n_row) {
    const gy_model_desc *d = &r->model->d;
    const size_t elem = gy_dtype_bytes(r->o.act), n_layer = (size_t)d->n_layer[GY_CORE];
    const size_t ctx_bytes = (size_t)CONTEXT * n_layer * 2 * (size_t)d->n_head_kv * (size_t)d->head_dim * elem;
    t->n_set = (int32_t)(((size_t)1 << 30) / (ctx_bytes * (size_t)n_row)) + 1;
    const size_t n_ctx = (size_t)t->n_set * (size_t)n_row;
    const size_t n_slot = n_ctx * CONTEXT, n_q = (size_t)n_row * (size_t)d->n_head * (size_t)d->head_dim;
    t->pool_bytes = n_ctx * ctx_bytes;
    t->kv = (gy_kv_view){.base = gy_mem_map_pages(GY_MEM_BASE, t->pool_bytes),
                         .dtype = r->o.act,
                         .n_layer = d->n_layer[GY_CORE],
                         .n_head_kv = d->n_head_kv,
                         .head_dim = d->head_dim};
    t->map = gy_mem_alloc(GY_MEM_BASE, n_slot, sizeof *t->map);
    t->pos = gy_mem_alloc(GY_MEM_BASE, (size_t)n_row, sizeof *t->pos);
    t->slot = gy_mem_alloc(GY_MEM_BASE, (size_t)n_row, sizeof *t->slot);
    t->off = gy_mem_alloc(GY_MEM_BASE, (size_t)n_row, sizeof *t->off);
    t->q = gy_mem_alloc(GY_MEM_BASE, n_q, elem);
    t->y = gy_mem_alloc(GY_MEM_BASE, n_q, elem);
    if (!t->kv.base || !t->map || !t->pos || !t->slot || !t->off || !t->q || !t->y) return 0;
    values_fill(r->o.act, t->kv.base, t->pool_bytes / elem);
    values_fill(r->o.act, t->q, n_q);
    for (size_t i = 0; i < n_slot; i++) t->map[i] = (int32_t)i;
    t->kv.map = t->map;
    t->kv.n_map = (int64_t)n_slot;
    t->a = (gy_attn_args){.q = t->q,
                          .q_stride = d->n_head * d->head_dim,
                          .n_head = d->n_head,
                          .scale = 0.0884F,
                          .kv = &t->kv,
                          .rows = {n_row, t->pos, t->slot, t->off},
                          .y = t->y};
    return 1;
}

/* The next layer, and after all layers the next contexts. */
static void attn_call(const rig *r, attn_rig *t, int call) {
    const int32_t n_row = t->a.rows.n_row, set = call / t->kv.n_layer % t->n_set;
    t->a.il = call % t->kv.n_layer;
    for (int32_t i = 0; i < n_row; i++) {
        t->pos[i] = CONTEXT - 1;
        t->off[i] = ((int64_t)set * n_row + i) * CONTEXT;
        t->slot[i] = t->map[t->off[i] + CONTEXT - 1];
    }
    r->be->ops->attn(r->be, &t->a);
}

static gy_status attn_cell(rig *r, int n_row, cell_result *c) {
    static rig_round round[ATTN_CALLS];
    attn_rig t = {0};
    gy_status st = attn_init(&t, r, n_row) ? GY_OK : gy_err_set(&r->err, GY_E_NOMEM, "no memory for attention's KV");
    for (int i = -1; st == GY_OK && i < ATTN_CALLS; i++) {
        const double read = rig_probe(r);
        attn_call(r, &t, 2 * i + 2); /* wakes the backend's threads; this layer's KV is the call's own */
        const int64_t begin = gy_clock_ns();
        attn_call(r, &t, 2 * i + 3);
        if (i >= 0) round[i] = (rig_round){.ns = gy_clock_ns() - begin, .read = read};
    }
    if (st == GY_OK) {
        const gy_model_desc *d = &r->model->d;
        const double pairs = (double)n_row * CONTEXT * d->head_dim;
        c->bytes = pairs * d->n_head_kv * 2 * (double)gy_dtype_bytes(r->o.act);
        c->flop = pairs * d->n_head * 4;
        c->goal = 0.75;
        figures(r, round, ATTN_CALLS, c);
    }
    attn_fini(&t);
    return st;
}

/* ---- one cell -----------------------------------------------------------------------------------------------------
 */

/* The number behind "what-", 0: another name or no number. */
static int number_after(const char *name, const char *what, int most) {
    const size_t len = strlen(what);
    if (strncmp(name, what, len) != 0) return 0;
    char *end;
    const long v = strtol(name + len, &end, 10);
    return *end || v < 1 || v > most ? 0 : (int)v;
}

static gy_status cell_choose(rig *r, const char *name, int tokens, cell_result *out) {
    int n;
    if ((n = number_after(name, "decode-", 256))) return decode_cell(r, n, tokens, out);
    if ((n = number_after(name, "prefill-", RIG_MAX_PROMPT))) return prefill_cell(r, n, out);
    if ((n = number_after(name, "attn-", 64))) return attn_cell(r, n, out);
    return gy_err_set(&r->err, GY_E_ARG,
                      "--cells: found \"%.20s\", expected start, decode-N, prefill-N, attn-N, memory", name);
}

gy_status cell_run(rig *r, const char *name, int tokens, cell_result *out) {
    *out = (cell_result){0};
    snprintf(out->name, sizeof out->name, "%s", name);
    const rig_watch w = rig_watch_begin();
    const gy_status st = cell_choose(r, name, tokens, out);
    out->others = rig_watch_others(&w);
    return st;
}

static const char *act_name(const rig *r) {
    return r->o.act == GY_BF16 ? "bf16" : "f32";
}

void cell_print(const rig *r, const cell_result *c, int json) {
    const double need = bound_s(c, c->read);
    const int by_bytes = c->bytes / c->read > c->flop / c->fma;
    if (json)
        printf("{\"what\":\"cell\",\"shape\":\"%s\",\"weights\":\"%s\",\"act\":\"%s\",\"cell\":\"%s\",\"rounds\":%d,"
               "\"best_ms\":%.3f,\"median_ms\":%.3f,\"bytes\":%.0f,\"flop\":%.0f,\"read_gbytes_per_s\":%.2f,"
               "\"fma_gflop_per_s\":%.1f,\"bound\":\"%s\",\"share\":%.3f,\"share_best\":%.3f,\"goal\":%.2f,\"others_"
               "cores\":%.2f}\n",
               r->o.shape, gy_weight_form_name(r->o.weights), act_name(r), c->name, c->n_round, c->best_s * 1e3,
               c->median_s * 1e3, c->bytes, c->flop, c->read * 1e-9, c->fma * 1e-9, by_bytes ? "bytes" : "arithmetic",
               c->share, c->share_best, c->goal, c->others);
    else
        printf("%-12s %.2f ms (median %.2f); %.3f GB, %.1f GFLOP: %.2f ms by %s at %.1f GB/s, %.0f GFLOP/s; %.1f %% "
               "(of the best %.1f %%), goal %.0f %%; others had %.2f cores\n",
               c->name, c->best_s * 1e3, c->median_s * 1e3, c->bytes * 1e-9, c->flop * 1e-9, need * 1e3,
               by_bytes ? "bytes" : "arithmetic", c->read * 1e-9, c->fma * 1e-9, 100 * c->share, 100 * c->share_best,
               100 * c->goal, c->others);
    fflush(stdout);
}

void cell_print_table(const rig *r, const cell_result *c, int n) {
    puts("\n| shape | weights, act | what | ms: best (median) | GB/s | GFLOP/s | ceilings then | bound by | share | of "
         "the "
         "best | goal |\n|---|---|---|---|---|---|---|---|---|---|---|");
    for (int i = 0; i < n; i++, c++)
        printf("| %s | %s, %s | %s | %.2f (%.2f) | %.1f | %.1f | %.1f, %.0f | %s | **%.0f %%** | %.0f %% | %.0f %% | "
               "%.2f |\n",
               r->o.shape, gy_weight_form_name(r->o.weights), act_name(r), c->name, c->best_s * 1e3, c->median_s * 1e3,
               c->bytes / c->median_s * 1e-9, c->flop / c->median_s * 1e-9, c->read * 1e-9, c->fma * 1e-9,
               c->bytes / c->read > c->flop / c->fma ? "bytes" : "arithmetic", 100 * c->share, 100 * c->share_best,
               100 * c->goal, c->others);
}

/* Where a round went, and what it would take if each operation took as long as its shortest call: close to what a quiet
 * machine gives, even when this one is not. All rounds of the cell, the first one too. */
void cell_print_split(const rig *r, const cell_result *c, int json) {
    double total = 0, quiet = 0;
    const int n = r->n_round;
    for (int i = 0; i < n; i++) total += (double)r->round[i].ns * 1e-6 / n;
    double left = total;
    for (int i = 0; i < r->timed.n_entry; i++) {
        const timed_entry *e = &r->timed.entry[i];
        char name[64];
        snprintf(name, sizeof name, e->n ? "%s %dx%d" : "%s", e->op, e->n, e->k);
        const double ms = (double)e->ns * 1e-6 / n, calls = (double)e->calls / n,
                     best = (double)e->best_ns * calls * 1e-6;
        const double gb = e->weight_bytes / n * 1e-6;
        left -= ms;
        quiet += best;
        printf(json ? "{\"what\":\"op\",\"cell\":\"%s\",\"op\":\"%s\",\"calls\":%.1f,\"ms\":%.3f,\"share\":%.4f,"
                      "\"best_ms\":%.3f,\"gbytes_per_s\":%.2f,\"best_gbytes_per_s\":%.2f}\n"
                    : "  %-12s %-18s %6.1f calls %9.3f ms (%.4f), the shortest %9.3f ms; %6.2f GB/s, %6.2f\n",
               c->name, name, calls, ms, ms / total, best, gb / ms, gb / best);
    }
    printf(json ? "{\"what\":\"outside\",\"cell\":\"%s\",\"ms\":%.3f,\"quiet_round_ms\":%.3f}\n"
                : "  %-12s outside %.3f ms; a round of the shortest calls: %.2f ms\n",
           c->name, left, quiet + left);
}
