/* How a product is shared out: rows are packed into scratch, then each member computes a range of panels. Packing of
 * weights is shared out in the same way, so that each member's panels lie on its own node. It computes no float itself
 * (panel.inc does).
 */
#include "ops/cpu/cpu_int.h"
#include "ops/ref/host.h"

typedef struct linear_task {
    cpu_backend *c;
    gy_cpu_linear l;
} linear_task;

static int64_t n_panel(const gy_cpu_kernels *k, const gy_weight *w) {
    return (w->n + k->panel_n - 1) / k->panel_n;
}

static void linear_x_member(void *arg, int member, int n_member) {
    const linear_task *t = arg;
    int64_t lo, hi, rows = t->c->kern->panel_rows;
    gy_team_share((t->l.n_row + rows - 1) / rows, 1, member, n_member, &lo, &hi);
    if (lo < hi) t->c->kern->panel_x(&t->l, lo, hi);
}

static void linear_member(void *arg, int member, int n_member) {
    const linear_task *t = arg;
    int64_t lo, hi;
    gy_team_share(n_panel(t->c->kern, t->l.a->w), 1, member, n_member, &lo, &hi);
    float *scratch = t->c->scratch + t->c->linear_floats + member * t->c->panel_floats;
    if (lo < hi) t->c->kern->panel(&t->l, lo, hi, scratch);
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
    if (gy_is_grouped(a->w->dtype)) {
        gy_cpu_quant_run(c, a);
        return;
    }
    const gy_cpu_packed *packed = a->w->packed;
    int64_t most = c->linear_floats / gy_cpu_pad(c->kern, a->w->k);
    for (int64_t r = 0; r < a->n_row; r += most) {
        int64_t n = a->n_row - r < most ? a->n_row - r : most;
        linear_task t = {.c = c,
                         .l = {.a = a,
                               .act = be->act,
                               .w = packed ? packed->data : NULL,
                               .x = (char *)c->scratch,
                               .row0 = r,
                               .n_row = n}};
        linear_run(c, linear_x_member, &t, n * a->w->k / 2);
        linear_run(c, linear_member, &t, n * a->w->k * a->w->n / 2);
    }
}

/* ---- weights ---------------------------------------------------------------------------------------------------- */

typedef struct pack_task {
    const gy_cpu_kernels *kern;
    const gy_weight *w;
    char *out;
} pack_task;

static void pack_member(void *arg, int member, int n_member) {
    const pack_task *t = arg;
    int64_t lo, hi;
    gy_team_share(n_panel(t->kern, t->w), 1, member, n_member, &lo, &hi);
    if (lo < hi) t->kern->panel_pack(t->w, lo, hi, t->out);
}

static gy_cpu_packed *packed_create(size_t bytes) {
    gy_cpu_packed *p = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *p);
    if (!p) return NULL;
    p->data = gy_mem_map_pages(GY_MEM_ENGINE, bytes);
    p->bytes = bytes;
    if (p->data) return p;
    gy_mem_free(p);
    return NULL;
}

/* Weights in 8 bits are read as they are. Without memory for panels the product packs on the way: slower, same bits. */
size_t gy_cpu_prepare(gy_backend *be, gy_weight *w, int y_f32) {
    (void)y_f32;
    cpu_backend *c = cpu_of(be);
    if (w->packed || gy_is_quant(w->dtype)) return 0;
    size_t elem = w->dtype == GY_F32 ? 4 : 2;
    size_t bytes = (size_t)(n_panel(c->kern, w) * c->kern->panel_n) * (size_t)(w->k + w->k % 2) * elem;
    gy_cpu_packed *p = packed_create(bytes);
    if (!p) return 0;
    pack_task t = {.kern = c->kern, .w = w, .out = p->data};
    gy_team_run(c->team, pack_member, &t);
    w->packed = p;
    return bytes;
}

void gy_cpu_unprepare(gy_backend *be, gy_weight *w) {
    (void)be;
    gy_cpu_packed *p = w->packed;
    if (!p) return;
    gy_mem_unmap_pages(GY_MEM_ENGINE, p->data, p->bytes);
    gy_mem_free(p);
    w->packed = NULL;
}
