/* Teacher-forced evaluation: see eval.h. One sequence, chunk by chunk, each chunk through all depths and the coda;
 * under the layouts that overwrite slots one position at a time, as the engine does it.
 */
#include "engine/eval.h"

#include "base/arena.h"
#include "engine/kvmem.h"
#include "model/loop.h"

#include <string.h>

typedef struct eval {
    gy_model *m;
    const gy_eval_opts *o;
    gy_kvmem kvmem;
    gy_kv *kv; /* kvmem's */
    gy_loop *loop;
    int32_t seq, chunk; /* rows of a chunk */
    void *mem;
    gy_carve carve;                          /* of mem */
    int32_t *state, *pos, *slot, *logit_row; /* [chunk] */
    int64_t *off;
    uint64_t *seed;
    uint8_t *zero;
    float *gate;
} eval;

static void lay_out(eval *v, gy_carve *c) {
    size_t n = (size_t)v->chunk;
    v->state = gy_carve_take(c, n, sizeof(int32_t));
    v->pos = gy_carve_take(c, n, sizeof(int32_t));
    v->slot = gy_carve_take(c, n, sizeof(int32_t));
    v->logit_row = gy_carve_take(c, n, sizeof(int32_t));
    v->off = gy_carve_take(c, n, sizeof(int64_t));
    v->seed = gy_carve_take(c, n, sizeof(uint64_t));
    v->zero = gy_carve_take(c, n, sizeof(uint8_t));
    v->gate = gy_carve_take(c, n, sizeof(float));
}

static gy_status open_arrays(eval *v, gy_err *err) {
    gy_carve measure = {0};
    lay_out(v, &measure);
    v->mem = gy_mem_alloc(GY_MEM_ENGINE, measure.used, 1);
    if (!v->mem) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    v->carve = (gy_carve){.base = v->mem, .cap = measure.used};
    lay_out(v, &v->carve);
    return GY_OK;
}

static gy_kv_config kv_config(const eval *v) {
    gy_kv_config c = gy_kvmem_config(&v->m->d, v->m->be->act, v->o->n_tok);
    c.layout = v->o->kv_layout;
    c.cyclic_k = v->o->cyclic_k;
    c.dtype = gy_kv_type_dtype(v->o->kv_type, v->m->be->act);
    for (int g = 0; g < GY_KV_GROUPS; g++) c.n_block[g] = (int32_t)gy_kv_blocks_for(&c, (gy_kv_group)g, v->o->n_tok);
    return c;
}

static gy_status open_kv(eval *v, gy_err *err) {
    gy_kv_config c = kv_config(v);
    GY_TRY(gy_kvmem_open(&v->kvmem, v->m->be, &c, NULL, err));
    v->kv = v->kvmem.kv;
    return gy_kv_seq_open(v->kv, v->o->n_tok, &v->seq);
}

/* Rows of logits that one coda call makes: enough to use the weights well, few enough for a 166k vocabulary. */
static int32_t max_logit(const eval *v) {
    if (!v->o->on_logits) return 1;
    return v->chunk < 32 ? v->chunk : 32;
}

static gy_status open_all(eval *v, gy_err *err) {
    GY_TRY(open_arrays(v, err));
    GY_TRY(open_kv(v, err));
    gy_loop_config c = {.max_row = v->chunk,
                        .n_state = v->chunk,
                        .max_logit = max_logit(v),
                        .core = v->kvmem.view[GY_KV_CORE],
                        .boundary = v->kvmem.view[GY_KV_BOUNDARY]};
    return gy_loop_create(v->m, &c, err, &v->loop);
}

static void close_all(eval *v) {
    GY_CHECK(gy_carve_check(&v->carve));
    gy_loop_destroy(v->loop);
    gy_kvmem_close(&v->kvmem);
    gy_mem_free(v->mem);
}

/* Row arrays of positions first .. first+n-1 at `depth` of a group; slots are claimed, or read again for the coda. */
static gy_loop_batch fill_rows(eval *v, gy_kv_group g, int32_t depth, int32_t first, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        v->state[i] = i;
        v->pos[i] = first + i;
        v->slot[i] = 0;
        v->off[i] = gy_kv_map_off(v->kv, g, v->seq, depth);
        if (g == GY_KV_BOUNDARY && !gy_desc_boundary_layers(&v->m->d)) continue;
        gy_status st = gy_kv_claim(v->kv, g, v->seq, depth, first + i, &v->slot[i]);
        GY_CHECK(st == GY_OK); /* the pool was sized for all tokens at full depth */
    }
    return (gy_loop_batch){.n_row = n, .state = v->state, .pos = v->pos, .slot = v->slot, .map_off = v->off};
}

static void run_prelude(eval *v, int32_t first, int32_t n) {
    const gy_eval_opts *o = v->o;
    gy_loop_batch b = fill_rows(v, GY_KV_BOUNDARY, 0, first, n);
    for (int32_t i = 0; i < n; i++) {
        v->seed[i] = o->latent_seed;
        v->zero[i] = !o->latent_noise;
    }
    gy_loop_prelude(v->loop, &b, &(gy_loop_entry){.ids = o->ids + first, .seed = v->seed, .zero = v->zero});
    size_t n_embd = (size_t)v->m->d.n_embd;
    for (int32_t i = 0; i < n && o->initial_state; i++)
        gy_loop_set_state(v->loop, i, o->initial_state + (size_t)(first + i) * n_embd);
}

static void run_loops(eval *v, int32_t first, int32_t n) {
    const gy_eval_opts *o = v->o;
    int32_t n_loop = v->m->d.n_loop;
    for (int32_t depth = 0; depth < n_loop; depth++) {
        gy_loop_batch b = fill_rows(v, GY_KV_CORE, depth, first, n);
        gy_loop_pass(v->loop, &b, o->gates != NULL, 0);
        gy_loop_shown(v->loop, b.n_row, o->gates ? v->gate : NULL, NULL);
        for (int32_t i = 0; i < n && o->gates; i++)
            o->gates[(size_t)(first + i) * (size_t)n_loop + (size_t)depth] = v->gate[i];
        if (o->hidden && first + n == o->n_tok)
            gy_loop_get_state(v->loop, n - 1, o->hidden + (size_t)depth * (size_t)v->m->d.n_embd);
    }
    for (int32_t i = 0; i < n; i++) gy_kv_exit(v->kv, v->seq, first + i, n_loop - 1);
}

/* Coda of rows lo..hi of the chunk, logits for all of them or for the very last position only. */
static gy_status run_coda(eval *v, int32_t first, int32_t n, gy_err *err) {
    const gy_eval_opts *o = v->o;
    size_t n_vocab = (size_t)v->m->d.n_vocab;
    int all = o->on_logits != NULL, is_end = first + n == o->n_tok;
    gy_loop_batch b = {.n_row = n, .state = v->state, .pos = v->pos, .slot = v->slot, .map_off = v->off};
    int32_t n_logit = all ? n : is_end && o->last_logits;
    for (int32_t i = 0; i < n_logit; i++) v->logit_row[i] = all ? i : n - 1;
    const float *logits = gy_loop_coda(v->loop, &b, v->logit_row, n_logit);
    for (int32_t i = 0; i < n && all; i++) GY_TRY(o->on_logits(o->arg, v->pos[i], logits + (size_t)i * n_vocab, err));
    if (is_end && o->last_logits)
        memcpy(o->last_logits, logits + (size_t)(n_logit - 1) * n_vocab, n_vocab * sizeof(float));
    return GY_OK;
}

static gy_status run_chunk(eval *v, int32_t first, int32_t n, gy_err *err) {
    run_prelude(v, first, n);
    run_loops(v, first, n);
    int32_t piece = v->o->on_logits ? max_logit(v) : n;
    fill_rows(v, GY_KV_BOUNDARY, 0, first, n);
    for (int32_t i = 0; i < n; i += piece) {
        int32_t len = n - i < piece ? n - i : piece;
        if (i) { /* the next rows of the chunk move to the front of the row arrays */
            fill_rows(v, GY_KV_BOUNDARY, 0, first + i, len);
            for (int32_t k = 0; k < len; k++) v->state[k] = i + k;
        }
        GY_TRY(run_coda(v, first + i, len, err));
    }
    return gy_loop_sync(v->loop, err);
}

static gy_status check(const gy_model *m, const gy_eval_opts *o, gy_err *err) {
    if (o->n_tok < 1) return gy_err_set(err, GY_E_ARG, "ids: found none, expected at least one token");
    if (o->n_tok > m->d.max_pos)
        return gy_err_set(err, GY_E_LIMIT, "ids: found %d tokens, expected at most %d (context)", o->n_tok,
                          m->d.max_pos);
    if (o->max_rows < 1) return gy_err_set(err, GY_E_ARG, "max_rows: found %d, expected 1 or more", o->max_rows);
    if (o->gates && !m->d.has_gate) return gy_err_set(err, GY_E_ARG, "gates: a %s model has no exit gate", m->d.family);
    if (o->initial_state && !m->d.inject)
        return gy_err_set(err, GY_E_ARG, "initial_state: a %s model starts from its embedding", m->d.family);
    if (o->kv_layout == GY_KV_CYCLIC && (o->cyclic_k < 1 || o->cyclic_k > m->d.n_loop))
        return gy_err_set(err, GY_E_ARG, "kv_layout: found cyclic:%d, expected cyclic:1 to cyclic:%d", o->cyclic_k,
                          m->d.n_loop);
    for (int32_t i = 0; i < o->n_tok; i++)
        if (o->ids[i] < 0 || o->ids[i] >= m->d.n_vocab)
            return gy_err_set(err, GY_E_ARG, "ids[%d]: found %d, expected 0 to %d", i, o->ids[i], m->d.n_vocab - 1);
    return GY_OK;
}

gy_status gy_eval(gy_model *m, const gy_eval_opts *o, gy_err *err) {
    GY_TRY(check(m, o, err));
    eval v = {.m = m, .o = o, .chunk = o->max_rows < o->n_tok ? o->max_rows : o->n_tok};
    gy_kv_config c = kv_config(&v);
    if (gy_kv_position_serial(&c)) v.chunk = 1;
    gy_status st = open_all(&v, err);
    for (int32_t i = 0; st == GY_OK && i < o->n_tok; i += v.chunk)
        st = run_chunk(&v, i, o->n_tok - i < v.chunk ? o->n_tok - i : v.chunk, err);
    close_all(&v);
    return st;
}
