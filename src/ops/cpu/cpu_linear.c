/* How a product is shared out: rows are packed as f32 into scratch, then each member computes a range of outputs.
 * It computes no float itself (linear.inc does).
 */
#include "ops/cpu/cpu_int.h"
#include "ops/ref/host.h"

typedef struct linear_task {
    const gy_cpu_kernels *kern;
    gy_cpu_linear l;
} linear_task;

static void linear_pack_member(void *arg, int member, int n_member) {
    const linear_task *t = arg;
    int64_t lo, hi;
    gy_team_share(t->l.n_row, 1, member, n_member, &lo, &hi);
    if (lo < hi) t->kern->linear_pack(&t->l, lo, hi);
}

static void linear_member(void *arg, int member, int n_member) {
    const linear_task *t = arg;
    int64_t lo, hi;
    gy_team_share(t->l.a->w->n, 8, member, n_member, &lo, &hi);
    if (lo < hi) t->kern->linear(&t->l, lo, hi);
}

static void linear_run(cpu_backend *c, gy_team_fn fn, linear_task *t, int64_t work) {
    if (work < GY_CPU_FORK_FROM) {
        fn(t, 0, 1);
    } else {
        gy_team_run(c->team, fn, t);
    }
}

/* Rows are packed as many at a time as the scratch holds. */
void gy_cpu_linear_run(gy_backend *be, const gy_linear_args *a) {
    cpu_backend *c = cpu_of(be);
    GY_CHECK(a->w->k <= c->max_k && (GY_HOST_WEIGHT_TYPES >> a->w->dtype & 1));
    int64_t stride = gy_cpu_pad(c->kern, a->w->k), most = c->linear_floats / stride / 4 * 4;
    for (int64_t r = 0; r < a->n_row; r += most) {
        int64_t n = a->n_row - r < most ? a->n_row - r : most;
        linear_task t = {.kern = c->kern,
                         .l = {.a = a, .act = be->act, .x = c->scratch, .stride = stride, .row0 = r, .n_row = n}};
        linear_run(c, linear_pack_member, &t, n * a->w->k / 2);
        linear_run(c, linear_member, &t, n * a->w->k * a->w->n / 2);
    }
}
