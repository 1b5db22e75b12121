/* The CPU backend: chooses the kernels, owns threads and scratch, splits work. It computes no float itself.
 *
 * Splitting never decides a result: linears are split by panels of outputs, attention by KV heads of rows and fixed
 * chunks of their context, the rest by rows, and each kernel's order of sums is fixed by one row's shape (kernels.inc).
 * Scratch is made once, at creation, and carved in this order: packed rows of a linear's input, then attention's
 * (cpu_attn.c) or a product's panels. It is lazily committed, so bounds that are never reached cost address space only.
 * Deliberately not here: AMX (no machine to measure it on), fused operations.
 */
#include "base/cpu.h"
#include "base/team.h"
#include "ops/cpu/cpu_int.h"
#include "ops/ref/host.h"

/* ---- rows ------------------------------------------------------------------------------------------------------ */

typedef struct rows_task {
    gy_cpu_row_fn fn;
    gy_dtype act;
    const void *args;
    int64_t n_row;
} rows_task;

static void rows_member(void *arg, int member, int n_member) {
    const rows_task *t = arg;
    int64_t lo, hi;
    gy_team_share(t->n_row, 1, member, n_member, &lo, &hi);
    if (lo < hi) t->fn(t->act, t->args, lo, hi);
}

/* n_elem: elements that one row touches, for the decision to fork. */
static void rows_run(gy_backend *be, gy_cpu_row_fn fn, const void *args, int64_t n_row, int64_t n_elem) {
    rows_task t = {.fn = fn, .act = be->act, .args = args, .n_row = n_row};
    if (n_row <= 1 || n_row * n_elem < GY_CPU_FORK_FROM) {
        rows_member(&t, 0, 1);
    } else {
        gy_team_run(cpu_of(be)->team, rows_member, &t);
    }
}

static void cpu_embed(gy_backend *be, const gy_embed_args *a) {
    rows_run(be, cpu_of(be)->kern->embed, a, a->n_row, a->table->k);
}

static void cpu_norm(gy_backend *be, const gy_norm_args *a) {
    rows_run(be, cpu_of(be)->kern->norm, a, a->n_row, a->n);
}

static void cpu_rope_kv(gy_backend *be, const gy_rope_kv_args *a) {
    rows_run(be, cpu_of(be)->kern->rope_kv, a, a->rows.n_row, (int64_t)a->n_head * a->kv->head_dim);
}

static void cpu_residual(gy_backend *be, const gy_residual_args *a) {
    rows_run(be, cpu_of(be)->kern->residual, a, a->n_row, a->n);
}

static void cpu_silu_mul(gy_backend *be, const gy_silu_mul_args *a) {
    rows_run(be, cpu_of(be)->kern->silu_mul, a, a->n_row, a->n_ff);
}

static void cpu_gate(gy_backend *be, const gy_gate_args *a) {
    rows_run(be, cpu_of(be)->kern->gate, a, a->n_row, a->n);
}

static void cpu_latent_diff(gy_backend *be, const gy_latent_diff_args *a) {
    rows_run(be, cpu_of(be)->kern->latent_diff, a, a->n_row, a->n);
}

static void rope_table_rows(gy_dtype act, const void *args, int64_t lo, int64_t hi) {
    (void)act;
    for (int64_t r = lo; r < hi; r++) gy_host_rope_row(args, r);
}

static void cpu_rope_table(gy_backend *be, const gy_rope_table_args *a) {
    rows_run(be, rope_table_rows, a, a->n_row, 16 * (int64_t)a->half); /* a cosine costs as much as 16 usual elements */
}

static void latent_init_rows(gy_dtype act, const void *args, int64_t lo, int64_t hi) {
    for (int64_t r = lo; r < hi; r++) gy_host_latent_row(args, act, r);
}

static void cpu_latent_init(gy_backend *be, const gy_latent_init_args *a) {
    rows_run(be, latent_init_rows, a, a->n_row, 16 * (int64_t)a->n);
}

static void concat_rows(gy_dtype act, const void *args, int64_t lo, int64_t hi) {
    const gy_concat_args *a = args;
    size_t e = act == GY_F32 ? 4 : 2, na = (size_t)a->na * e, nb = (size_t)a->nb * e;
    for (size_t r = (size_t)lo; r < (size_t)hi; r++) {
        memcpy((char *)a->y + r * (na + nb), (const char *)a->a + r * na, na);
        memcpy((char *)a->y + r * (na + nb) + na, (const char *)a->b + r * nb, nb);
    }
}

static void cpu_concat(gy_backend *be, const gy_concat_args *a) {
    rows_run(be, concat_rows, a, a->n_row, (int64_t)a->na + a->nb);
}

static void gather_rows(gy_dtype act, const void *args, int64_t lo, int64_t hi) {
    const gy_move_args *a = args;
    size_t n = (size_t)a->n * (act == GY_F32 ? 4 : 2);
    for (int64_t r = lo; r < hi; r++)
        memcpy((char *)a->y + (size_t)r * n, (const char *)a->x + (size_t)a->idx[r] * n, n);
}

static void cpu_gather(gy_backend *be, const gy_move_args *a) {
    rows_run(be, gather_rows, a, a->n_row, a->n);
}

static void scatter_rows(gy_dtype act, const void *args, int64_t lo, int64_t hi) {
    const gy_move_args *a = args;
    size_t n = (size_t)a->n * (act == GY_F32 ? 4 : 2);
    for (int64_t r = lo; r < hi; r++)
        memcpy((char *)a->y + (size_t)a->idx[r] * n, (const char *)a->x + (size_t)r * n, n);
}

static void cpu_scatter(gy_backend *be, const gy_move_args *a) {
    rows_run(be, scatter_rows, a, a->n_row, a->n);
}

/* ---- host work of others ---------------------------------------------------------------------------------------- */

typedef struct items_task {
    void (*fn)(void *arg, int32_t item, int member);
    void *arg;
    int32_t n;
} items_task;

/* Dealt in turn: neighbours often cost alike (rows of one request), so that each member gets some of every kind. */
static void items_member(void *arg, int member, int n_member) {
    const items_task *t = arg;
    for (int64_t i = member; i < t->n; i += n_member) t->fn(t->arg, (int32_t)i, member);
}

static int cpu_n_member(gy_backend *be) {
    return gy_team_size(cpu_of(be)->team);
}

static void cpu_parallel(gy_backend *be, int32_t n, void (*fn)(void *arg, int32_t item, int member), void *arg) {
    items_task t = {.fn = fn, .arg = arg, .n = n};
    if (n <= 1) {
        items_member(&t, 0, 1);
    } else {
        gy_team_run(cpu_of(be)->team, items_member, &t);
    }
}

/* ---- the object ------------------------------------------------------------------------------------------------ */

static void cpu_destroy(gy_backend *be) {
    cpu_backend *c = cpu_of(be);
    if (!c) return;
    gy_team_destroy(c->team);
    if (c->scratch) gy_mem_unmap_pages(GY_MEM_ENGINE, c->scratch, c->scratch_bytes);
    gy_mem_free(c);
}

static const gy_ops cpu_ops = {
    .name = "cpu", /* replaced by the kernels' name */
    .weight_types = GY_HOST_WEIGHT_TYPES,
    .kv_types = GY_HOST_KV_TYPES,
    .alloc = gy_host_alloc,
    .free = gy_host_free,
    .upload = gy_host_copy,
    .download = gy_host_copy,
    .sync = gy_host_sync,
    .destroy = cpu_destroy,
    .mem_available = gy_host_mem_available,
    .n_member = cpu_n_member,
    .parallel = cpu_parallel,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .prepare = gy_cpu_prepare,
    .unprepare = gy_cpu_unprepare,
    .form_of = gy_cpu_form_of,
    .adopt = gy_cpu_adopt,
    .linear = gy_cpu_linear_run,
    .rope_table = cpu_rope_table,
    .rope_kv = cpu_rope_kv,
    .attn = gy_cpu_attn_run,
    .residual = cpu_residual,
    .silu_mul = cpu_silu_mul,
    .concat = cpu_concat,
    .gather = cpu_gather,
    .scatter = cpu_scatter,
    .gate = cpu_gate,
    .latent_diff = cpu_latent_diff,
    .latent_init = cpu_latent_init,
};

static const gy_cpu_kernels *kernels_choose(uint32_t features) {
#if defined(__x86_64__)
    if ((features & GY_CPU_AVX512) && (features & GY_CPU_AVX512_BF16) && gy_cpu_has_fast_bf16_dot())
        return &gy_cpu_kernels_avx512bf16;
    if (features & GY_CPU_AVX512) return &gy_cpu_kernels_avx512;
    if (features & GY_CPU_AVX2) return &gy_cpu_kernels_avx2;
#elif defined(__aarch64__)
    if (features & GY_CPU_NEON) return &gy_cpu_kernels_neon;
#endif
    (void)features;
    return &gy_cpu_kernels_portable;
}

/* Packed rows get 16 MiB: enough rows that reading W again for the next ones costs nothing, and no more memory than
 * one layer's weights. At least one tile of 4 rows must fit. */
static gy_status scratch_create(cpu_backend *c, const gy_ops_limits *lim, gy_err *err) {
    const int64_t usual = (int64_t)16 << 20 >> 2;
    int64_t stride = gy_cpu_pad(c->kern, lim->max_k);
    size_t n;
    c->max_k = lim->max_k;
    c->linear_floats = 4 * stride > usual ? 4 * stride : usual;
    /* Attention and products never run at once: what comes behind the packed rows is either's. */
    c->panel_floats = ((int64_t)c->kern->panel_scratch + 63) / 64 * 16;
    int64_t attn = gy_cpu_attn_floats(c), panels = gy_team_size(c->team) * c->panel_floats;
    if (gy_size_add((size_t)(attn > panels ? attn : panels), (size_t)c->linear_floats, &n) ||
        gy_size_mul(n, sizeof(float), &n))
        return gy_err_set(err, GY_E_LIMIT, "cpu backend: max_k %d is too large", lim->max_k);
    c->scratch = gy_mem_map_pages(GY_MEM_ENGINE, n);
    if (!c->scratch) return gy_err_set(err, GY_E_NOMEM, "cpu backend: no memory for %zu bytes of scratch", n);
    c->scratch_bytes = n;
    return GY_OK;
}

static gy_status opts_check(const gy_cpu_opts *o, gy_err *err) {
    if (o->act != GY_F32 && o->act != GY_BF16)
        return gy_err_set(err, GY_E_UNSUPPORTED, "cpu backend: activations in %s; use f32 or bf16",
                          gy_dtype_name(o->act));
    if (o->n_thread < 0) return gy_err_set(err, GY_E_ARG, "cpu backend: %d threads; use 0 or more", o->n_thread);
    if (o->limits.max_k < 1)
        return gy_err_set(err, GY_E_ARG, "cpu backend: max_k %d; expected the longest input row", o->limits.max_k);
    return GY_OK;
}

gy_status gy_backend_cpu_create(const gy_cpu_opts *o, gy_err *err, gy_backend **out) {
    GY_TRY(opts_check(o, err));
    cpu_backend *c = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *c);
    if (!c) return gy_err_set(err, GY_E_NOMEM, "cpu backend: no memory for %zu bytes", sizeof *c);
    c->kern = kernels_choose(gy_cpu_features());
    c->quant = gy_cpu_quant_choose(gy_cpu_features());
    c->ops = cpu_ops;
    c->ops.name = c->kern->name;
    c->ops.form = gy_cpu_form_name(c->kern);
    c->be = (gy_backend){.ops = &c->ops, .act = o->act, .is_host = 1};
    gy_status st = gy_team_create(o->n_thread, o->pin, &c->team);
    if (st < 0) {
        gy_err_set(err, st, "cpu backend: cannot start %d threads", o->n_thread);
    } else {
        st = scratch_create(c, &o->limits, err);
    }
    if (st < 0) {
        cpu_destroy(&c->be);
        return st;
    }
    *out = &c->be;
    return GY_OK;
}
