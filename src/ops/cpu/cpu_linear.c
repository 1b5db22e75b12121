/* How a product is shared out: rows are packed into scratch, then each member computes a range of panels. Packing of
 * weights is shared out in the same way, so that each member's panels lie on its own node. It computes no float itself
 * (panel.inc does).
 */
#include "ops/cpu/cpu_int.h"
#include "ops/ref/host.h"

#include <string.h>

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
    const char *from; /* panels that are there already; NULL: they are made of w */
    char *out;
    size_t panel_bytes;
} pack_task;

static void pack_member(void *arg, int member, int n_member) {
    const pack_task *t = arg;
    int64_t lo, hi;
    gy_team_share(n_panel(t->kern, t->w), 1, member, n_member, &lo, &hi);
    if (lo >= hi) return;
    size_t at = (size_t)lo * t->panel_bytes, n = (size_t)(hi - lo) * t->panel_bytes;
    if (t->from) {
        memcpy(t->out + at, t->from + at, n);
    } else {
        t->kern->panel_pack(t->w, lo, hi, t->out);
    }
}

/* One name for each layout, for the files that keep them: another number when panel_pack changes (test_pack_cache.c
 * notices). */
const char *gy_cpu_form_name(const gy_cpu_kernels *k) {
    return k->panel_n == 32 ? "panel32.1" : k->panel_n == 16 ? "panel16.1" : "panel8.1";
}

/* Weights in 8 bits are read as they are. */
static size_t form_bytes(const gy_cpu_kernels *k, const gy_weight *w) {
    if (gy_is_quant(w->dtype)) return 0;
    return (size_t)(n_panel(k, w) * k->panel_n) * (size_t)(w->k + w->k % 2) * (w->dtype == GY_F32 ? 4 : 2);
}

size_t gy_cpu_form_of(gy_backend *be, const gy_weight *w, const void **data_out) {
    const gy_cpu_packed *p = w->packed;
    *data_out = p ? p->data : NULL;
    return form_bytes(cpu_of(be)->kern, w);
}

/* Panels in pages of their own, made of w or copied; each member writes, and so places, what it will read. Without
 * memory the product packs on the way: slower, same bits. */
static size_t make_form(gy_backend *be, gy_weight *w, const void *from) {
    cpu_backend *c = cpu_of(be);
    size_t bytes = w->packed ? 0 : form_bytes(c->kern, w);
    gy_cpu_packed *p = bytes ? gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *p) : NULL;
    void *data = p ? gy_mem_map_pages(GY_MEM_ENGINE, bytes) : NULL;
    if (!data) {
        gy_mem_free(p);
        return 0;
    }
    pack_task t = {
        .kern = c->kern, .w = w, .from = from, .out = data, .panel_bytes = bytes / (size_t)n_panel(c->kern, w)};
    gy_team_run(c->team, pack_member, &t);
    *p = (gy_cpu_packed){.data = data, .bytes = bytes};
    w->packed = p;
    return bytes;
}

size_t gy_cpu_prepare(gy_backend *be, gy_weight *w, int y_f32) {
    (void)y_f32;
    return make_form(be, w, NULL);
}

int gy_cpu_adopt(gy_backend *be, gy_weight *w, const void *data, int copies) {
    GY_CHECK(!w->packed);
    if (copies) return make_form(be, w, data) ? 0 : -1;
    gy_cpu_packed *p = gy_mem_alloc(GY_MEM_ENGINE, 1, sizeof *p);
    if (!p) return -1;
    *p = (gy_cpu_packed){.data = data, .bytes = form_bytes(cpu_of(be)->kern, w), .is_borrowed = 1};
    w->packed = p;
    return 0;
}

void gy_cpu_unprepare(gy_backend *be, gy_weight *w) {
    (void)be;
    gy_cpu_packed *p = w->packed;
    if (!p) return;
    if (!p->is_borrowed) gy_mem_unmap_pages(GY_MEM_ENGINE, (void *)(uintptr_t)p->data, p->bytes);
    gy_mem_free(p);
    w->packed = NULL;
}
