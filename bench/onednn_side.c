/* oneDNN's side: see onednn_side.h. It has two operations for this product, inner product and matmul, whose kernels
 * differ; both are made here, and the caller takes the faster one. Both choose the layout of the weights (format any),
 * which are reordered once and then copied: other memory, same values.
 */
#include "onednn_side.h"

#include "base/mem.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <string.h>

struct onednn_product {
    onednn_shape s;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_t x, y;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t prim;
    dnnl_memory_t *w; /* [n_copy] */
    char *packed;     /* [n_copy][bytes] */
    size_t bytes;     /* of one copy, whole pages */
    int n_copy;
    const char *impl;
};

static dnnl_data_type_t type_w(onednn_form f) {
    return f == ONEDNN_BF16 ? dnnl_bf16 : f == ONEDNN_F32 ? dnnl_f32 : dnnl_s8;
}

static dnnl_data_type_t type_x(onednn_form f) {
    return f == ONEDNN_S8 ? dnnl_u8 : type_w(f);
}

static dnnl_data_type_t type_y(const onednn_shape *s) {
    return s->y_f32 || s->form == ONEDNN_F32 ? dnnl_f32 : dnnl_bf16;
}

/* Memory that is only read has no type of its own there. */
static int memory_over(dnnl_memory_t *out, const dnnl_memory_desc_t *md, dnnl_engine_t engine, const void *p) {
    union {
        const void *in;
        void *out;
    } at = {p};
    return dnnl_memory_create(out, md, engine, at.out) == dnnl_success;
}

static int md_2d(dnnl_memory_desc_t *md, int64_t a, int64_t b, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    const dnnl_dims_t dims = {a, b};
    return dnnl_memory_desc_init_by_tag(md, 2, dims, type, tag) == dnnl_success;
}

/* Weights are [n, k] for an inner product and [k, n] for a matmul. */
static int md_weights(dnnl_memory_desc_t *md, const onednn_shape *s, int any) {
    const dnnl_data_type_t t = type_w(s->form);
    if (s->matmul) return md_2d(md, s->k, s->n, t, any ? dnnl_format_tag_any : dnnl_ba);
    return md_2d(md, s->n, s->k, t, any ? dnnl_format_tag_any : dnnl_ab);
}

/* One scale for each output, as a quantized weight has them. */
static dnnl_primitive_attr_t attr_make(const onednn_shape *s) {
    dnnl_primitive_attr_t attr = NULL;
    if (dnnl_primitive_attr_create(&attr) != dnnl_success) return NULL;
    float *scale = s->form == ONEDNN_S8 ? gy_mem_alloc(GY_MEM_BASE, (size_t)s->n, sizeof *scale) : NULL;
    for (int64_t i = 0; scale && i < s->n; i++) scale[i] = 1.0F / 4096;
    if (scale) dnnl_primitive_attr_set_output_scales(attr, s->n, 1 << 1, scale);
    gy_mem_free(scale);
    return attr;
}

static int primitive_make(onednn_product *p) {
    const onednn_shape *s = &p->s;
    dnnl_memory_desc_t x, w, y;
    dnnl_matmul_desc_t mm;
    dnnl_inner_product_desc_t ip;
    int ok = md_2d(&x, s->n_row, s->k, type_x(s->form), dnnl_ab) && md_weights(&w, s, 1) &&
             md_2d(&y, s->n_row, s->n, type_y(s), dnnl_ab);
    if (ok && s->matmul) ok = dnnl_matmul_desc_init(&mm, &x, &w, NULL, &y) == dnnl_success;
    if (ok && !s->matmul)
        ok = dnnl_inner_product_forward_desc_init(&ip, dnnl_forward_inference, &x, &w, NULL, &y) == dnnl_success;
    if (!ok) return 0;
    dnnl_primitive_attr_t attr = attr_make(s);
    const void *desc = s->matmul ? (const void *)&mm : (const void *)&ip;
    ok = attr && dnnl_primitive_desc_create(&p->pd, desc, attr, p->engine, NULL) == dnnl_success;
    dnnl_primitive_attr_destroy(attr);
    return ok && dnnl_primitive_desc_query(p->pd, dnnl_query_impl_info_str, 0, &p->impl) == dnnl_success &&
           dnnl_primitive_create(&p->prim, p->pd) == dnnl_success;
}

static int reorder(onednn_product *p, dnnl_memory_t from, dnnl_memory_t to) {
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t prim = NULL;
    const dnnl_memory_desc_t *a, *b;
    int ok = dnnl_memory_get_memory_desc(from, &a) == dnnl_success &&
             dnnl_memory_get_memory_desc(to, &b) == dnnl_success &&
             dnnl_reorder_primitive_desc_create(&pd, a, p->engine, b, p->engine, NULL) == dnnl_success &&
             dnnl_primitive_create(&prim, pd) == dnnl_success;
    if (ok) {
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
        ok = dnnl_primitive_execute(prim, p->stream, 2, args) == dnnl_success &&
             dnnl_stream_wait(p->stream) == dnnl_success;
    }
    dnnl_primitive_destroy(prim);
    dnnl_primitive_desc_destroy(pd);
    return ok;
}

static int weights_pack(onednn_product *p, const void *plain) {
    dnnl_memory_desc_t from_md;
    dnnl_memory_t from = NULL;
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(p->pd, dnnl_query_weights_md, 0);
    p->bytes = (dnnl_memory_desc_get_size(md) + 4095) / 4096 * 4096;
    p->packed = gy_mem_map_pages(GY_MEM_BASE, p->bytes * (size_t)p->n_copy);
    p->w = gy_mem_alloc(GY_MEM_BASE, (size_t)p->n_copy, sizeof(dnnl_memory_t));
    int ok = p->packed && p->w && md_weights(&from_md, &p->s, 0);
    for (int i = 0; ok && i < p->n_copy; i++)
        ok = dnnl_memory_create(&p->w[i], md, p->engine, p->packed + p->bytes * (size_t)i) == dnnl_success;
    ok = ok && memory_over(&from, &from_md, p->engine, plain) && reorder(p, from, p->w[0]);
    for (int i = 1; ok && i < p->n_copy; i++) memcpy(p->packed + p->bytes * (size_t)i, p->packed, p->bytes);
    if (from) dnnl_memory_destroy(from);
    return ok;
}

static int io_make(onednn_product *p, const void *x, void *y) {
    dnnl_memory_desc_t xd, yd;
    return dnnl_engine_create(&p->engine, dnnl_cpu, 0) == dnnl_success &&
           dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags) == dnnl_success &&
           md_2d(&xd, p->s.n_row, p->s.k, type_x(p->s.form), dnnl_ab) &&
           md_2d(&yd, p->s.n_row, p->s.n, type_y(&p->s), dnnl_ab) && memory_over(&p->x, &xd, p->engine, x) &&
           dnnl_memory_create(&p->y, &yd, p->engine, y) == dnnl_success;
}

onednn_product *onednn_create(const onednn_shape *s, const void *plain, const void *x, void *y, int n_copy) {
    onednn_product *p = gy_mem_alloc(GY_MEM_BASE, 1, sizeof *p);
    if (!p) return NULL;
    p->s = *s;
    p->n_copy = n_copy;
    if (io_make(p, x, y) && primitive_make(p) && weights_pack(p, plain)) return p;
    onednn_destroy(p);
    return NULL;
}

void onednn_destroy(onednn_product *p) {
    if (!p) return;
    for (int i = 0; p->w && i < p->n_copy; i++)
        if (p->w[i]) dnnl_memory_destroy(p->w[i]);
    gy_mem_free(p->w);
    if (p->packed) gy_mem_unmap_pages(GY_MEM_BASE, p->packed, p->bytes * (size_t)p->n_copy);
    if (p->prim) dnnl_primitive_destroy(p->prim);
    if (p->pd) dnnl_primitive_desc_destroy(p->pd);
    if (p->x) dnnl_memory_destroy(p->x);
    if (p->y) dnnl_memory_destroy(p->y);
    if (p->stream) dnnl_stream_destroy(p->stream);
    if (p->engine) dnnl_engine_destroy(p->engine);
    gy_mem_free(p);
}

void onednn_run(onednn_product *p, int copy) {
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->w[copy]}, {DNNL_ARG_DST, p->y}};
    dnnl_primitive_execute(p->prim, p->stream, 3, args);
    dnnl_stream_wait(p->stream);
}

const char *onednn_impl(const onednn_product *p) {
    return p->impl;
}

const char *onednn_version(void) {
    static char text[32];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}
