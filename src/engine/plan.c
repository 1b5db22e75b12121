/* Sizes of an engine: what the options mean for this model, before anything is allocated. Pure.
 *
 * A block row is what 16 tokens at full depth need: one core block on each plane and one boundary block. Where early
 * exits leave core blocks free (last_exited) while every token takes its boundary slot, the boundary pool gets twice as
 * many rows as the core pool; its share of the bytes is small (Huginn: 4 of 132 layer-planes).
 */
#include "engine/engine_int.h"

#include <stdio.h>
#include <string.h>

int32_t gy_engine_depth(const gy_model_desc *d, const gy_engine_opts *o) {
    return o->max_loops > d->n_loop ? o->max_loops : d->n_loop;
}

int32_t gy_engine_max_logits(const gy_engine_opts *o) {
    int32_t n = o->max_logits ? o->max_logits : o->sched.max_seqs < 256 ? o->sched.max_seqs : 256;
    return n < o->sched.max_rows ? n : o->sched.max_rows;
}

gy_kv_config gy_engine_kv_config(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o,
                                 const gy_engine_plan *p) {
    gy_kv_config c = gy_kvmem_config(d, act, o->max_len);
    c.layout = o->kv_layout;
    c.cyclic_k = o->cyclic_k;
    c.dtype = gy_kv_type_dtype(o->kv_type, act);
    c.n_loop = gy_engine_depth(d, o);
    c.max_seqs = o->sched.max_seqs;
    for (int g = 0; g < GY_KV_GROUPS && p; g++) {
        c.n_block[g] = p->n_block[g];
        c.n_park[g] = p->n_park[g];
    }
    if (p && p->n_park[GY_KV_CORE]) c.max_seqs *= 2; /* parked sequences keep theirs */
    c.max_seqs += o->max_handoff;
    return c;
}

gy_loop_config gy_engine_loop_config(const gy_engine_opts *o) {
    return (gy_loop_config){.max_row = o->sched.max_rows,
                            .n_state = gy_sched_n_flight(&o->sched) + o->sched.max_seqs,
                            .max_logit = gy_engine_max_logits(o)};
}

static gy_status check_range(const char *field, int64_t found, int64_t lo, int64_t hi, gy_err *err) {
    if (found >= lo && found <= hi) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "%s: found %lld, expected %lld to %lld", field, (long long)found, (long long)lo,
                      (long long)hi);
}

static gy_status check_fraction(const char *field, double found, int zero, int one, gy_err *err) {
    if ((found > 0 || (zero && found == 0)) && (found < 1 || (one && found == 1))) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "%s: found %g, expected %s 0 %s 1", field, found, zero ? "from" : "above",
                      one ? "up to" : "to below");
}

static gy_status check_sched(const gy_sched_opts *s, gy_err *err) {
    GY_TRY(check_range("max_rows", s->max_rows, 1, 1 << 20, err));
    GY_TRY(check_range("max_seqs", s->max_seqs, 1, 1 << 16, err));
    GY_TRY(check_range("max_queue", s->max_queue, 1, 1 << 24, err));
    GY_TRY(check_range("prefill_chunk", s->prefill_chunk, 1, INT32_MAX, err));
    GY_TRY(check_range("min_coda", s->min_coda, 1, INT32_MAX, err));
    GY_TRY(check_range("scan_limit", s->scan_limit, 1, INT32_MAX, err));
    GY_TRY(check_range("max_bypass", s->max_bypass, 1, INT32_MAX, err));
    GY_TRY(check_range("policy", s->policy, GY_SCHED_FCFS, GY_SCHED_PRIORITY, err));
    GY_TRY(check_range("preempt", s->preempt, GY_PREEMPT_AUTO, GY_PREEMPT_RECOMPUTE, err));
    GY_TRY(check_fraction("prefill_share", s->prefill_share, 0, 1, err));
    return check_fraction("watermark", s->watermark, 1, 0, err);
}

static gy_status check_opts(const gy_model_desc *d, const gy_engine_opts *o, gy_err *err) {
    GY_TRY(check_sched(&o->sched, err));
    if (o->max_len < 1 || o->max_len > d->max_pos)
        return gy_err_set(err, GY_E_LIMIT, "max_len: found %d tokens, expected 1 to %d, the model's context",
                          o->max_len, d->max_pos);
    GY_TRY(check_range("max_loops", o->max_loops, 0, GY_ENGINE_MAX_LOOPS, err));
    GY_TRY(check_range("max_logits", o->max_logits, 0, 1 << 20, err));
    GY_TRY(check_range("max_handoff", o->max_handoff, 0, 1 << 16, err));
    GY_TRY(check_range("fuse_loops", o->fuse_loops, 1, GY_ENGINE_MAX_LOOPS, err));
    GY_TRY(check_range("kv_blocks", o->kv_blocks, 0, INT32_MAX / GY_BLOCK_SLOTS, err));
    GY_TRY(check_fraction("kv_fraction", o->kv_fraction, 0, 1, err));
    if (o->kv_layout == GY_KV_CYCLIC && (o->cyclic_k < 1 || o->cyclic_k > gy_engine_depth(d, o)))
        return gy_err_set(err, GY_E_ARG, "kv_layout: found cyclic:%d, expected cyclic:1 to cyclic:%d", o->cyclic_k,
                          gy_engine_depth(d, o));
    return GY_OK;
}

/* With the places of parked sequences. 0 where it overflows: gy_kv_create refuses that. */
static size_t map_bytes(const gy_kv_config *c, const gy_engine_opts *o) {
    size_t rows = (size_t)(c->n_layer[GY_KV_CORE] ? c->n_loop : 0) + (size_t)(c->n_layer[GY_KV_BOUNDARY] > 0), n;
    size_t seqs = (size_t)c->max_seqs + (o->park_bytes ? (size_t)o->sched.max_seqs : 0);
    if (gy_size_mul(rows * sizeof(int32_t), (size_t)c->max_len, &n) || gy_size_mul(n, seqs, &n)) return 0;
    return n;
}

typedef struct row_size { /* of one block row */
    int64_t plane[GY_KV_GROUPS];
    size_t block[GY_KV_GROUPS];
    int32_t side; /* boundary rows for each core row */
    size_t bytes; /* with that many boundary blocks */
} row_size;

static row_size measure_row(const gy_kv_config *c) {
    row_size r = {.side = c->layout == GY_KV_LAST_EXITED ? 2 : 1};
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        r.plane[g] = gy_kv_n_plane(c, (gy_kv_group)g);
        r.block[g] = gy_kv_block_bytes(c, (gy_kv_group)g);
        r.bytes += r.block[g] * (size_t)r.plane[g] * (size_t)(g == GY_KV_BOUNDARY ? r.side : 1);
    }
    return r;
}

/* Rows that max_seqs sequences of max_len tokens can ever use. */
static int64_t rows_needed(const gy_engine_opts *o) {
    return (int64_t)((o->max_len + GY_BLOCK_SLOTS - 1) / GY_BLOCK_SLOTS) * o->sched.max_seqs;
}

/* And what the watermark keeps free beside them, so that the last of them is admitted too. */
static int64_t rows_wanted(const gy_engine_opts *o) {
    double all = (double)rows_needed(o) / (1.0 - o->sched.watermark);
    if (all > INT32_MAX) all = INT32_MAX; /* more than slots can be counted */
    return ((int64_t)all + ((double)(int64_t)all < all)) * (o->prefix_cache ? 2 : 1);
}

static gy_status rows_in(size_t bytes, const row_size *r, const char *what, gy_err *err, int64_t *n_out) {
    *n_out = (int64_t)(bytes / r->bytes);
    if (*n_out) return GY_OK;
    return gy_err_set(
        err, GY_E_LIMIT,
        "%s: %zu bytes are left for KV, 16 tokens at full depth need %zu; free memory, or lower max_rows, "
        "max_logits or max_loops",
        what, bytes, r->bytes);
}

static gy_status rows_of_memory(const gy_engine_opts *o, const row_size *r, size_t available, gy_err *err,
                                gy_engine_plan *p, int64_t *n_io) {
    if (!available) return GY_OK;
    size_t usable = (size_t)((double)available * o->kv_fraction), beside = p->workspace_bytes + p->map_bytes;
    int64_t n;
    p->available_bytes = available;
    p->kv_fraction = o->kv_fraction;
    GY_TRY(rows_in(usable > beside ? usable - beside : 0, r, "free memory", err, &n));
    if (n >= *n_io) return GY_OK;
    *n_io = n;
    p->limit = "memory";
    return GY_OK;
}

/* Block rows of the core pool, and who decided. */
static gy_status size_rows(const gy_engine_opts *o, const row_size *r, size_t available, gy_err *err, gy_engine_plan *p,
                           int64_t *n_out) {
    if (o->kv_bytes) {
        p->limit = "kv_bytes";
        return rows_in(o->kv_bytes, r, "kv_bytes", err, n_out);
    }
    p->limit = "max_seqs x max_len";
    *n_out = rows_wanted(o);
    return rows_of_memory(o, r, available, err, p, n_out);
}

static gy_status set_pools(const gy_engine_opts *o, const row_size *r, int64_t n_row, gy_err *err, gy_engine_plan *p) {
    int64_t most = rows_wanted(o), side = r->side * n_row;
    int64_t n[GY_KV_GROUPS] = {n_row * r->plane[GY_KV_CORE], side < most ? side : most};
    if (n[GY_KV_BOUNDARY] < n_row) n[GY_KV_BOUNDARY] = n_row;
    if (o->kv_blocks) n[GY_KV_CORE] = o->kv_blocks;
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        if (!r->plane[g]) n[g] = 0;
        if (n[g] > INT32_MAX / GY_BLOCK_SLOTS)
            return gy_err_set(
                err, GY_E_LIMIT,
                "KV needs %lld blocks, slots are 32 bit numbers: lower max_seqs or max_len, or set kv_blocks",
                (long long)n[g]);
        size_t bytes;
        p->n_block[g] = (int32_t)n[g];
        p->block_bytes[g] = r->block[g];
        if (gy_size_mul(r->block[g], (size_t)n[g], &bytes) || gy_size_add(p->kv_bytes, bytes, &p->kv_bytes))
            return gy_err_set(err, GY_E_LIMIT, "KV size overflows: lower max_seqs or max_len");
        if (g == GY_KV_CORE && r->plane[g] > 0) p->kv_tokens = n[g] / r->plane[g] * GY_BLOCK_SLOTS;
        p->kv_token_bytes += r->block[g] / GY_BLOCK_SLOTS * (size_t)r->plane[g];
    }
    return GY_OK;
}

/* Parked sequences: whole rows, no more than could ever run. */
static void set_park(const gy_engine_opts *o, const row_size *r, gy_engine_plan *p) {
    int64_t n = (int64_t)(o->park_bytes / r->bytes), most = rows_needed(o);
    if (n > most) n = most;
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        int64_t blocks = n * r->plane[g] * (g == GY_KV_BOUNDARY ? r->side : 1);
        if (blocks > INT32_MAX / GY_BLOCK_SLOTS) blocks = 0;
        p->n_park[g] = (int32_t)blocks;
    }
    if (!p->n_park[GY_KV_CORE] || (r->plane[GY_KV_BOUNDARY] && !p->n_park[GY_KV_BOUNDARY]))
        p->n_park[GY_KV_CORE] = p->n_park[GY_KV_BOUNDARY] = 0;
    for (int g = 0; g < GY_KV_GROUPS; g++) p->park_bytes += (size_t)p->n_park[g] * r->block[g];
}

gy_status gy_engine_make_plan(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o, size_t available,
                              gy_err *err, gy_engine_plan *out) {
    GY_TRY(check_opts(d, o, err));
    gy_kv_config c = gy_engine_kv_config(d, act, o, NULL);
    gy_loop_config lc = gy_engine_loop_config(o);
    row_size r = measure_row(&c);
    gy_engine_plan p = {.workspace_bytes = gy_loop_plan_bytes(d, act, &lc), .map_bytes = map_bytes(&c, o)};
    int64_t n_row = 0;
    if (!p.workspace_bytes)
        return gy_err_set(err, GY_E_LIMIT, "workspace size overflows: lower max_rows or max_logits");
    if (!r.bytes) return gy_err_set(err, GY_E_LIMIT, "size of a KV block overflows: the model's heads are too large");
    if (o->kv_blocks) {
        p.limit = "kv_blocks";
        n_row = (o->kv_blocks + r.plane[GY_KV_CORE] - 1) / r.plane[GY_KV_CORE];
    } else {
        GY_TRY(size_rows(o, &r, available, err, &p, &n_row));
    }
    p.kv_type = o->kv_type == GY_KV_INT8 ? gy_kv_type_name(o->kv_type) : NULL;
    GY_TRY(set_pools(o, &r, n_row, err, &p));
    set_park(o, &r, &p);
    *out = p;
    return GY_OK;
}

/* ---- for a person ----------------------------------------------------------------------------------------------- */

enum { AMOUNT = 32 };

static const char *amount(size_t bytes, char buf[AMOUNT]) {
    int is_small = bytes < 1000000000;
    snprintf(buf, AMOUNT, "%.2f %s", (double)bytes * (is_small ? 1e-6 : 1e-9), is_small ? "MB" : "GB");
    return buf;
}

static const char *limit_text(const gy_engine_plan *p, char *buf, size_t cap) {
    char have[AMOUNT];
    if (!strcmp(p->limit, "memory"))
        snprintf(buf, cap, "free memory (%g of %s, with the workspace)", p->kv_fraction,
                 amount(p->available_bytes, have));
    else if (!strcmp(p->limit, "max_seqs x max_len"))
        snprintf(buf, cap, "what max_seqs sequences of max_len tokens can use");
    else
        snprintf(buf, cap, "%s", p->limit);
    return buf;
}

void gy_engine_plan_text(const gy_engine_plan *p, char buf[GY_PLAN_TEXT]) {
    char a[6][AMOUNT], mapped[AMOUNT + 16] = "", limit[128];
    if (p->mapped_bytes) snprintf(mapped, sizeof mapped, "%s mapped and ", amount(p->mapped_bytes, a[0]));
    snprintf(buf, GY_PLAN_TEXT,
             "weights %s%s%s%s, workspace %s, slot map %s, KV %s%s%s for %lld tokens at full depth (%d blocks), "
             "limited by %s; "
             "parked KV may take %s of the host; %s stay free",
             mapped, amount(p->weight_bytes, a[0]), p->weights ? " with matrices in " : "",
             p->weights ? p->weights : "", amount(p->workspace_bytes, a[1]), amount(p->map_bytes, a[2]),
             amount(p->kv_bytes, a[3]), p->kv_type ? " in " : "", p->kv_type ? p->kv_type : "", (long long)p->kv_tokens,
             p->n_block[GY_KV_CORE], limit_text(p, limit, sizeof limit), amount(p->park_bytes, a[4]),
             amount(p->free_bytes, a[5]));
}

static gy_status too_large(const gy_engine_plan *p, size_t weights, size_t kv, size_t have, gy_err *err) {
    char a[5][AMOUNT];
    return gy_err_set(err, GY_E_NOMEM,
                      "does not fit into the memory of the device: weights %s, workspace %s, slot map %s and KV of at "
                      "least %s, while %s are free; end what else runs there, ask for less (--max-rows, --max-seqs, "
                      "--max-len, --kv-bytes), or use --device cpu",
                      amount(weights, a[0]), amount(p->workspace_bytes, a[1]), amount(p->map_bytes, a[2]),
                      amount(kv, a[3]), amount(have, a[4]));
}

gy_status gy_engine_check_fits(const gy_model_desc *d, gy_dtype act, const gy_engine_opts *o, size_t weights,
                               size_t have, gy_err *err) {
    gy_engine_plan most = {0}, p = {0};
    GY_TRY(gy_engine_make_plan(d, act, o, 0, err, &most)); /* wrong options, not want of memory */
    gy_status st = gy_engine_make_plan(d, act, o, have > weights ? have - weights : 1, NULL, &p);
    if (st < 0) return too_large(&most, weights, most.kv_token_bytes * GY_BLOCK_SLOTS, have, err);
    if (weights + p.workspace_bytes + p.map_bytes + p.kv_bytes <= have) return GY_OK;
    return too_large(&p, weights, p.kv_bytes, have, err);
}
