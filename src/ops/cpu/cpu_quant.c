/* How a grouped product is shared out: rows are quantised into scratch, then each member computes a range of panels.
 * It computes no float itself (*_quant.c do).
 */
#include "base/cpu.h"
#include "ops/cpu/cpu_int.h"
#include "ops/cpu/quant_int.h"

typedef struct quant_task {
    const gy_cpu_quant_kernels *kern;
    gy_cpu_quant q;
} quant_task;

static void rows_member(void *arg, int member, int n_member) {
    const quant_task *t = arg;
    int64_t lo, hi;
    gy_team_share(t->q.n_row, 1, member, n_member, &lo, &hi);
    if (lo < hi) t->kern->rows(&t->q, lo, hi);
}

static void panels_member(void *arg, int member, int n_member) {
    const quant_task *t = arg;
    int64_t lo, hi;
    gy_team_share((t->q.a->w->n + GY_PANEL - 1) / GY_PANEL, 1, member, n_member, &lo, &hi);
    if (lo < hi) t->kern->panels(&t->q, lo, hi);
}

static void quant_run(cpu_backend *c, gy_team_fn fn, quant_task *t, int64_t work) {
    if (work < GY_CPU_FORK_FROM) {
        fn(t, 0, 1);
    } else {
        gy_team_run(c->team, fn, t);
    }
}

const gy_cpu_quant_kernels *gy_cpu_quant_choose(uint32_t features) {
#if defined(__x86_64__)
    if (features & GY_CPU_AVX512_VNNI) return &gy_cpu_quant_vnni;
    if (features & GY_CPU_AVX2) return &gy_cpu_quant_avx2;
#endif
    (void)features;
    return &gy_cpu_quant_plain;
}

/* A group of a row takes 32 bytes, its scale and its bias. Rows are quantised as many at a time as the scratch holds;
 * integer products are four times as fast as f32's, which the work counts. */
void gy_cpu_quant_run(cpu_backend *c, const gy_linear_args *a) {
    int64_t n_group = gy_quant_groups(a->w->k);
    int64_t most = c->linear_floats / (n_group * (GY_GROUP / 4 + 2));
    GY_CHECK(most >= 1 && a->w->n_part == 1);
    for (int64_t r = 0; r < a->n_row; r += most) {
        int64_t n = a->n_row - r < most ? a->n_row - r : most;
        quant_task t = {.kern = c->quant,
                        .q = {.a = a,
                              .act = c->be.act,
                              .scale = c->scratch,
                              .bias = (int32_t *)(void *)(c->scratch + n * n_group),
                              .q = (int8_t *)(void *)(c->scratch + 2 * n * n_group),
                              .n_group = n_group,
                              .n_scale = gy_quant_scales(a->w->dtype, a->w->k),
                              .row0 = r,
                              .n_row = n}};
        quant_run(c, rows_member, &t, n * a->w->k);
        quant_run(c, panels_member, &t, n * a->w->k * a->w->n / 8);
    }
}
