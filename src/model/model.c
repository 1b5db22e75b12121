/* Loading: config.json -> description, tensors -> weights (model.h). The walk is driven by the family's weight table,
 * so a mismatch is found here, with both shapes printed, and the forward pass has nothing left to check.
 */
#include "model/model.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/vec.h"
#include "model/family.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Backend memory that the model owns, freed with it. */
typedef struct owned {
    void *p;
    size_t bytes;
} owned;

struct gy_model_own {
    gy_st *st;
    gy_pack_cache *cache; /* NULL: none is wanted, or kept */
    GY_VEC(owned) mem;
};

typedef struct loader {
    gy_model *m;
    const gy_family *family;
    const gy_model_load_opts *o;
    const gy_tensor_info *embed;
    size_t done, total;
    size_t to_pack, unpacked;      /* bytes of matrices to prepare; of those for which no form was made */
    int tells;                     /* the backend is told of all matrices, quantised ones too */
    void *whole;                   /* backend memory of the weight whose parts are being copied */
    float *whole_scale;            /* and of their scales */
    int whole_kept;                /* both came from the cache */
    int32_t n_kept[GY_PACK_KINDS]; /* of each kind, so far */
    gy_err *err;
} loader;

static const gy_json_limits config_limits = {.max_bytes = 4u << 20, .max_depth = 16};

static gy_status read_root(const gy_json *doc, gy_err *err, const gy_family **family_out, gy_model_desc *out) {
    const gy_jv *cfg = gy_json_root(doc);
    if (gy_jv_type(cfg) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_FORMAT, "found %s, expected an object", gy_jtype_name(gy_jv_type(cfg)));
    *family_out = gy_family_find(cfg, err);
    return *family_out ? (*family_out)->read_config(cfg, err, out) : GY_E_UNSUPPORTED;
}

static gy_status read_config(const char *dir, gy_err *err, const gy_family **family_out, gy_model_desc *out) {
    char *path = gy_path_join(dir, "config.json");
    if (!path) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    gy_json *doc = NULL;
    gy_status st = GY_OK;
    if (!gy_dir_exists(dir))
        st = gy_err_set(err, GY_E_IO, "%s: not a folder; a model is a folder with config.json and *.safetensors", dir);
    else if (!gy_file_exists(path))
        st = gy_err_set(err, GY_E_IO, "%s: not found; a model is a folder with config.json and *.safetensors", path);
    else if ((st = gy_json_read(path, &config_limits, err, &doc)) == GY_OK &&
             (st = read_root(doc, err, family_out, out)) < 0)
        gy_err_prefix(err, "%s", path);
    gy_json_free(doc);
    gy_mem_free(path);
    return st;
}

gy_status gy_model_parse_desc(const char *json, size_t len, gy_err *err, gy_model_desc *out) {
    gy_json *doc;
    const gy_family *family;
    gy_model_desc d;
    GY_TRY(gy_json_parse(json, len, &config_limits, err, &doc));
    gy_status st = read_root(doc, err, &family, &d);
    if (st == GY_OK) *out = d;
    gy_json_free(doc);
    return st;
}

gy_status gy_model_read_desc(const char *dir, gy_err *err, gy_model_desc *out) {
    const gy_family *family;
    gy_model_desc d;
    GY_TRY(read_config(dir, err, &family, &d));
    *out = d;
    return GY_OK;
}

static void *own_alloc(loader *l, size_t bytes) {
    gy_model *m = l->m;
    if (gy_vec_reserve(&m->own->mem, GY_MEM_MODEL, 1)) return NULL;
    void *p = m->be->ops->alloc(m->be, bytes);
    if (!p) return NULL;
    m->own->mem.data[m->own->mem.len++] = (owned){p, bytes};
    m->own_bytes += bytes;
    return p;
}

static gy_status no_memory(loader *l, const char *what, size_t bytes) {
    return gy_err_set(l->err, GY_E_NOMEM, "%s: no memory for %zu bytes, behind %zu bytes of other weights", what, bytes,
                      l->m->own_bytes);
}

static void note_progress(loader *l, size_t bytes) {
    l->done += bytes;
    if (l->o->progress) l->o->progress(l->o->progress_arg, l->done, l->total);
}

/* In pieces, through a host buffer where a backend with memory of its own needs another dtype; else straight from the
 * mapped file, in pieces large enough for a backend's threads to share. */
static gy_status convert_into(loader *l, void *dst, gy_dtype dst_type, const gy_tensor_info *t, size_t n) {
    enum { CONVERTED = 1 << 20, AS_IT_IS = 8 << 20 };
    gy_backend *be = l->m->be;
    size_t src_bytes = gy_dtype_bytes(t->dtype), dst_bytes = gy_dtype_bytes(dst_type);
    int converts = !be->is_host && t->dtype != dst_type;
    size_t piece = converts || be->is_host ? CONVERTED : AS_IT_IS;
    char *buf = converts ? gy_mem_alloc(GY_MEM_MODEL, piece, dst_bytes) : NULL;
    if (converts && !buf) return no_memory(l, t->name, piece * dst_bytes);
    for (size_t i = 0; i < n; i += piece) {
        size_t len = n - i < piece ? n - i : piece;
        const char *from = (const char *)t->data + i * src_bytes;
        char *to = (char *)dst + i * dst_bytes;
        if (be->is_host || converts) gy_convert(converts ? buf : to, dst_type, from, t->dtype, len);
        if (!be->is_host) be->ops->upload(be, to, converts ? buf : from, len * dst_bytes);
        note_progress(l, len * src_bytes);
    }
    gy_mem_free(buf);
    return GY_OK;
}

static size_t n_elem(const gy_tensor_info *t) {
    return t->bytes / gy_dtype_bytes(t->dtype);
}

/* A small vector in the activation dtype. */
static gy_status load_vec(loader *l, const gy_tensor_info *t, void **out) {
    gy_model *m = l->m;
    size_t bytes = n_elem(t) * gy_dtype_bytes(m->be->act);
    void *p = own_alloc(l, bytes);
    if (!p) return no_memory(l, t->name, bytes);
    GY_TRY(convert_into(l, p, m->be->act, t, n_elem(t)));
    *out = p;
    return GY_OK;
}

static const char *const pack_names[] = {[GY_PACK_AUTO] = "auto", [GY_PACK_ON] = "on", [GY_PACK_OFF] = "off"};

const char *gy_pack_name(gy_pack p) {
    return pack_names[p];
}

int gy_pack_parse(const char *name, gy_pack *out) {
    for (size_t i = 0; i < sizeof pack_names / sizeof *pack_names; i++) {
        if (strcmp(name, pack_names[i]) != 0) continue;
        *out = (gy_pack)i;
        return 0;
    }
    return -1;
}

static const char *const form_names[] = {
    [GY_WEIGHTS_AS_FILE] = "auto", [GY_WEIGHTS_BF16] = "bf16", [GY_WEIGHTS_FP8] = "fp8",
    [GY_WEIGHTS_INT8] = "int8",    [GY_WEIGHTS_INT4] = "int4", [GY_WEIGHTS_INT8_CHANNEL] = "int8-channel"};

const char *gy_weight_form_name(gy_weight_form f) {
    return form_names[f];
}

int gy_weight_form_parse(const char *name, gy_weight_form *out) {
    for (size_t i = 0; i < sizeof form_names / sizeof *form_names; i++) {
        if (strcmp(name, form_names[i]) != 0) continue;
        *out = (gy_weight_form)i;
        return 0;
    }
    return -1;
}

static gy_dtype quant_type(gy_weight_form form) {
    static const gy_dtype types[] = {[GY_WEIGHTS_FP8] = GY_F8_E4M3,
                                     [GY_WEIGHTS_INT8] = GY_Q8,
                                     [GY_WEIGHTS_INT4] = GY_Q4,
                                     [GY_WEIGHTS_INT8_CHANNEL] = GY_Q8C};
    return types[form];
}

/* What a matrix of this role is held in. */
static gy_dtype held_type(gy_dtype file, gy_dtype act, gy_weight_form form, int quant_head, gy_role role) {
    int stays = role == GY_ROLE_EMBED || (role == GY_ROLE_HEAD && !quant_head);
    if (!stays && form >= GY_WEIGHTS_FP8) return quant_type(form);
    return act == GY_BF16 || form == GY_WEIGHTS_BF16 ? GY_BF16 : file;
}

/* Rows of a tensor, shared by the backend's threads; host memory. */
typedef struct quant_task {
    const gy_tensor_info *t;
    gy_dtype to;
    uint8_t *q;          /* by rows: the first one's place; in groups: the whole matrix */
    float *scale;        /* by rows */
    int64_t lane0;       /* in groups: the first row's number there */
    int64_t row0, n_row; /* of the tensor */
    atomic_llong bad;    /* a row that holds what is not finite, or -1 */
} quant_task;
enum { QUANT_ROWS = GY_PANEL, QUANT_PIECE = 4096 }; /* of an item; of a piece */

static void quant_item(void *arg, int32_t item, int member) {
    quant_task *q = arg;
    int64_t k = q->t->shape[1], end = ((int64_t)item + 1) * QUANT_ROWS;
    size_t row_bytes = (size_t)k * gy_dtype_bytes(q->t->dtype);
    (void)member;
    for (int64_t r = (int64_t)item * QUANT_ROWS; r < end && r < q->n_row; r++) {
        const char *row = (const char *)q->t->data + (size_t)(q->row0 + r) * row_bytes;
        int bad = gy_is_grouped(q->to) ? gy_quant_groups_row(q->q, q->to, q->lane0 + r, row, q->t->dtype, (size_t)k)
                                       : gy_quant_row(q->q + r * k, q->scale + r, row, q->t->dtype, (size_t)k);
        if (bad) q->bad = q->row0 + r;
    }
}

static gy_status quant_piece(loader *l, quant_task *q) {
    gy_backend *be = l->m->be;
    be->ops->parallel(be, (int32_t)((q->n_row + QUANT_ROWS - 1) / QUANT_ROWS), quant_item, q);
    if (q->bad < 0) return GY_OK;
    return gy_err_set(l->err, GY_E_FORMAT,
                      "%s: tensor \"%s\" row %lld holds a value that is not finite, which has no place in %s; use "
                      "--weights auto",
                      q->t->file, q->t->name, (long long)atomic_load(&q->bad), gy_weight_form_name(l->o->form));
}

/* All rows of t in groups, as rows n0 .. of the matrix at dst: host memory. */
static gy_status group_into(loader *l, uint8_t *dst, int64_t n0, gy_dtype to, const gy_tensor_info *t) {
    int64_t n = t->shape[0], k = t->shape[1];
    GY_CHECK(l->m->be->is_host);
    for (int64_t r = 0; r < n; r += QUANT_PIECE) {
        int64_t len = n - r < QUANT_PIECE ? n - r : QUANT_PIECE;
        quant_task q = {.t = t, .to = to, .q = dst, .lane0 = n0 + r, .row0 = r, .n_row = len, .bad = -1};
        GY_TRY(quant_piece(l, &q));
        note_progress(l, (size_t)(len * k) * gy_dtype_bytes(t->dtype));
    }
    return GY_OK;
}

/* All rows of t to dst and scale, memory of the backend; through host buffers where that is not the host's. */
static gy_status quant_into(loader *l, uint8_t *dst, float *scale, gy_dtype to, const gy_tensor_info *t) {
    gy_backend *be = l->m->be;
    int64_t n = t->shape[0], k = t->shape[1], piece = n < QUANT_PIECE ? n : QUANT_PIECE;
    uint8_t *buf = be->is_host ? NULL : gy_mem_alloc(GY_MEM_MODEL, (size_t)piece, (size_t)k + sizeof *scale);
    float *buf_scale = buf ? (float *)(void *)buf : NULL; /* first, so that it is aligned */
    gy_status st = GY_OK;
    if (!be->is_host && !buf) return no_memory(l, t->name, (size_t)piece * ((size_t)k + sizeof *scale));
    if (buf) buf += (size_t)piece * sizeof *scale;
    for (int64_t r = 0; r < n && st == GY_OK; r += piece) {
        int64_t len = n - r < piece ? n - r : piece;
        quant_task q = {.t = t,
                        .to = to,
                        .q = buf ? buf : dst + r * k,
                        .scale = buf ? buf_scale : scale + r,
                        .row0 = r,
                        .n_row = len,
                        .bad = -1};
        st = quant_piece(l, &q);
        if (buf && st == GY_OK) be->ops->upload(be, dst + r * k, buf, (size_t)(len * k));
        if (buf && st == GY_OK) be->ops->upload(be, scale + r, buf_scale, (size_t)len * sizeof *scale);
        note_progress(l, (size_t)(len * k) * gy_dtype_bytes(t->dtype));
    }
    gy_mem_free(buf_scale);
    return st;
}

static size_t matrix_bytes(gy_dtype t, int64_t n, int64_t k) {
    return gy_is_quant(t) ? gy_quant_bytes(t, n, k) : (size_t)n * (size_t)k * gy_dtype_bytes(t);
}

/* ---- what is kept in a file (pack_cache.h) ----------------------------------------------------------------------- */

static void cache_progress(void *arg, size_t bytes) {
    note_progress(arg, bytes);
}

/* What, of all that is held, this load's options decide. */
static void cache_form(const gy_model_load_opts *o, char form[32]) {
    snprintf(form, 32, "%s%s-%s", gy_weight_form_name(o->form),
             o->form >= GY_WEIGHTS_FP8 && o->quant_head ? "-head" : "", o->be->act == GY_BF16 ? "bf16" : "f32");
}

static void open_cache(loader *l, const char *dir) {
    struct gy_model_own *own = l->m->own;
    char form[32];
    if (!gy_pack_where_any(&l->o->cache) || !l->m->be->is_host) return;
    if (l->o->form < GY_WEIGHTS_FP8 && (l->o->pack != GY_PACK_AUTO || !l->m->be->ops->adopt)) {
        gy_log(GY_LOG_INFO, "model", "nothing to keep in a pack cache: no quantised weights, no pack auto", NULL);
        return;
    }
    cache_form(l->o, form);
    own->cache = gy_pack_cache_open(&l->o->cache, &(gy_pack_key){l->m->be, own->st, dir, form});
    l->total += gy_pack_cache_bytes(own->cache);
    gy_pack_cache_check(own->cache, cache_progress, l);
}

typedef struct copy_task {
    char *to;
    const char *from;
    size_t bytes;
} copy_task;
enum { COPY_PIECE = 1 << 20 };

static void copy_item(void *arg, int32_t item, int member) {
    const copy_task *t = arg;
    size_t at = (size_t)item * COPY_PIECE, left = t->bytes - at;
    (void)member;
    memcpy(t->to + at, t->from + at, left < COPY_PIECE ? left : COPY_PIECE);
}

/* The next piece of its kind, at `to`, memory of the host: brought from the cache (1), or to be made and kept (0). Into
 * huge pages: where it is mapped, decoding is 6 to 9 % slower. */
static int bring_kept(loader *l, gy_pack_part p, void *to) {
    gy_model *m = l->m;
    p.index = l->n_kept[p.kind]++;
    p.data = to;
    const void *from = gy_pack_cache_find(m->own->cache, &p);
    gy_pack_cache_add(m->own->cache, &p, !from);
    if (!from) return 0;
    copy_task t = {.to = to, .from = from, .bytes = p.bytes};
    m->be->ops->parallel(m->be, (int32_t)((p.bytes + COPY_PIECE - 1) / COPY_PIECE), copy_item, &t);
    gy_map_drop(from, p.bytes);
    return 1;
}

/* Memory for a matrix of n_all rows of k that is not used where it lies. */
static gy_status take_whole(loader *l, const gy_tensor_info *t, gy_dtype want, int32_t n_all) {
    size_t bytes = matrix_bytes(want, n_all, t->shape[1]), scales = (size_t)n_all * sizeof(float);
    if (!(l->whole = own_alloc(l, bytes))) return no_memory(l, t->name, bytes);
    if (gy_is_grouped(want)) l->m->converted_bytes += bytes;
    if (want == GY_F8_E4M3 && !(l->whole_scale = own_alloc(l, scales))) return no_memory(l, t->name, scales);
    l->whole_kept = 0;
    if (!gy_is_quant(want) || !l->m->own->cache) return GY_OK;
    gy_pack_part p = {.kind = GY_PACK_WEIGHT, .n = n_all, .k = (int32_t)t->shape[1], .type = want, .bytes = bytes};
    l->whole_kept = bring_kept(l, p, l->whole);
    p = (gy_pack_part){.kind = GY_PACK_SCALES, .n = n_all, .type = want, .bytes = scales};
    if (want == GY_F8_E4M3 && !bring_kept(l, p, l->whole_scale)) l->whole_kept = 0;
    return GY_OK;
}

/* t as rows w->n .. of what take_whole gave. */
static gy_status copy_part(loader *l, const gy_tensor_info *t, gy_dtype want, const gy_weight *w) {
    if (l->whole_kept) note_progress(l, t->bytes);
    if (gy_is_grouped(want)) return l->whole_kept ? GY_OK : group_into(l, l->whole, w->n, want, t);
    char *to = (char *)l->whole + (size_t)w->n * (size_t)t->shape[1] * gy_dtype_bytes(want);
    l->m->converted_bytes += n_elem(t) * gy_dtype_bytes(want);
    if (!gy_is_quant(want)) return convert_into(l, to, want, t, n_elem(t));
    l->m->converted_bytes += (size_t)t->shape[0] * sizeof(float);
    if (l->whole_kept) return GY_OK;
    return quant_into(l, (uint8_t *)to, l->whole_scale + w->n, want, t);
}

/* The next row block of a weight matrix of n_all rows: where it lies if the backend can use it so, else a copy; copied
 * parts lie behind one another, and groups of all rows make one part. */
static gy_status load_part(loader *l, gy_role role, const gy_tensor_info *t, gy_weight *w, int32_t n_all) {
    gy_model *m = l->m;
    gy_dtype want = held_type(t->dtype, m->be->act, l->o->form, l->o->quant_head, role);
    const void *data = t->data;
    if (want == GY_Q8C && t->shape[1] > GY_CHANNEL_MOST_K)
        return gy_err_set(l->err, GY_E_UNSUPPORTED,
                          "%s: tensor \"%s\" has rows of %lld elements, of which int8-channel sums at most %d; use "
                          "--weights int8",
                          t->file, t->name, (long long)t->shape[1], GY_CHANNEL_MOST_K);
    if (w->n_part && w->dtype != want)
        return gy_err_set(l->err, GY_E_UNSUPPORTED, "%s: tensor \"%s\" is %s while its neighbours are %s", t->file,
                          t->name, gy_dtype_name(t->dtype), gy_dtype_name(w->dtype));
    if (want != t->dtype || !m->be->is_host) {
        if (!w->n_part) GY_TRY(take_whole(l, t, want, n_all));
        GY_TRY(copy_part(l, t, want, w));
        data = (char *)l->whole + (size_t)w->n * (size_t)t->shape[1] * gy_dtype_bytes(want);
        if (want == GY_F8_E4M3) w->part[w->n_part].scale = l->whole_scale + w->n;
    } else {
        m->mapped_bytes += t->bytes;
        note_progress(l, t->bytes);
    }
    int32_t n = (int32_t)t->shape[0];
    w->dtype = want;
    w->k = (int32_t)t->shape[1];
    w->n += n;
    if (gy_is_grouped(want) && w->n_part) {
        w->part[0].n += n;
        return GY_OK;
    }
    w->part[w->n_part].data = data;
    w->part[w->n_part].n = n;
    w->n_part++;
    return GY_OK;
}

/* The embedding is the head too, unless the head is held in another form: then that is read from it once more. */
static gy_status tie_head(loader *l) {
    gy_model *m = l->m;
    const gy_tensor_info *t = l->embed;
    m->head = m->embed;
    if (!gy_is_quant(held_type(t->dtype, m->be->act, l->o->form, l->o->quant_head, GY_ROLE_HEAD))) return GY_OK;
    m->head = (gy_weight){0};
    l->total += t->bytes;
    return load_part(l, GY_ROLE_HEAD, t, &m->head, (int32_t)t->shape[0]);
}

static gy_status load_qk_bias(loader *l, const gy_tensor_info *t, gy_layer *y) {
    void *both = NULL;
    GY_TRY(load_vec(l, t, &both));
    y->q_bias = both; /* stored [2, 1, n_head, head_dim]: q first */
    y->k_bias = (char *)both + n_elem(t) / 2 * gy_dtype_bytes(l->m->be->act);
    return GY_OK;
}

/* The duplicate head must be the embedding, or the file is not what the model's definition says. Rows are sampled:
 * reading 1.4 GB to compare equal bytes would double the start. */
static gy_status check_head_copy(loader *l, const gy_tensor_info *t) {
    enum { SAMPLED = 64 };
    const gy_weight *e = &l->m->embed;
    const gy_tensor_info *wte = l->embed;
    GY_CHECK(wte); /* the embedding is the first row of every table */
    size_t row = (size_t)e->k * gy_dtype_bytes(t->dtype);
    if (wte->dtype != t->dtype)
        return gy_err_set(l->err, GY_E_FORMAT, "%s: tensor \"%s\" and the embedding differ in dtype", t->file, t->name);
    for (int i = 0; i < SAMPLED; i++) {
        size_t r = (size_t)e->n * (size_t)i / SAMPLED;
        if (memcmp((const char *)t->data + r * row, (const char *)wte->data + r * row, row))
            return gy_err_set(l->err, GY_E_FORMAT,
                              "%s: tensor \"%s\" row %zu differs from the embedding, expected a copy (tie_embeddings)",
                              t->file, t->name, r);
    }
    return GY_OK;
}

static gy_status load_rope_table(loader *l, const gy_tensor_info *t) {
    if (t->dtype != GY_F32)
        return gy_err_set(l->err, GY_E_FORMAT,
                          "%s: tensor \"%s\": found %s, expected F32 (a rounded table corrupts long contexts)", t->file,
                          t->name, gy_dtype_name(t->dtype));
    float *p = own_alloc(l, t->bytes);
    if (!p) return no_memory(l, t->name, t->bytes);
    l->m->be->ops->upload(l->m->be, p, t->data, t->bytes);
    l->m->rope_table = p;
    return GY_OK;
}

static gy_status place(loader *l, gy_role role, const gy_tensor_info *t, gy_layer *y) {
    gy_model *m = l->m;
    switch (role) {
    case GY_ROLE_EMBED:
        l->embed = t; /* first row of every table */
        GY_TRY(load_part(l, role, t, &m->embed, (int32_t)t->shape[0]));
        return m->d.tied ? tie_head(l) : GY_OK;
    case GY_ROLE_HEAD:
        return load_part(l, role, t, &m->head, (int32_t)t->shape[0]);
    case GY_ROLE_HEAD_COPY:
        return check_head_copy(l, t);
    case GY_ROLE_FINAL_NORM:
        return load_vec(l, t, &m->final_norm);
    case GY_ROLE_GATE_W:
        return load_vec(l, t, &m->gate_w);
    case GY_ROLE_GATE_B:
        return load_vec(l, t, &m->gate_b);
    case GY_ROLE_ADAPTER:
        return load_part(l, role, t, &m->adapter, (int32_t)t->shape[0]);
    case GY_ROLE_ROPE_TABLE:
        return load_rope_table(l, t);
    case GY_ROLE_NORM_0:
        return load_vec(l, t, &y->norm[0]);
    case GY_ROLE_NORM_1:
        return load_vec(l, t, &y->norm[1]);
    case GY_ROLE_NORM_2:
        return load_vec(l, t, &y->norm[2]);
    case GY_ROLE_NORM_3:
        return load_vec(l, t, &y->norm[3]);
    case GY_ROLE_Q: /* q, k, v stand in this order in every table */
    case GY_ROLE_K:
    case GY_ROLE_V:
    case GY_ROLE_QKV:
        return load_part(l, role, t, &y->qkv, (m->d.n_head + 2 * m->d.n_head_kv) * m->d.head_dim);
    case GY_ROLE_QK_BIAS:
        return load_qk_bias(l, t, y);
    case GY_ROLE_O:
        return load_part(l, role, t, &y->o, (int32_t)t->shape[0]);
    case GY_ROLE_GATE: /* gate, up likewise */
    case GY_ROLE_UP:
    case GY_ROLE_GATE_UP:
        return load_part(l, role, t, &y->gate_up, 2 * m->d.n_ff);
    case GY_ROLE_DOWN:
        return load_part(l, role, t, &y->down, (int32_t)t->shape[0]);
    }
    return GY_E_BUG;
}

/* Roles that the description switches off, or that a file may leave out. */
static int is_absent(const loader *l, const gy_weight_row *row, const char *name) {
    const gy_model_desc *d = &l->m->d;
    if (row->role == GY_ROLE_HEAD) return d->tied;
    if (row->role == GY_ROLE_QK_BIAS) return !d->qk_bias;
    if (row->role == GY_ROLE_HEAD_COPY || row->role == GY_ROLE_ROPE_TABLE) return !gy_st_find(l->m->own->st, name);
    return 0;
}

static gy_status load_row(loader *l, const gy_weight_row *row, const char *name, gy_layer *y) {
    if (is_absent(l, row, name)) return GY_OK;
    int64_t shape[GY_MAX_DIM];
    int n_dim = 0;
    for (; row->shape[n_dim] != GY_DIM_END; n_dim++) shape[n_dim] = gy_dim_value(row->shape[n_dim], &l->m->d);
    const gy_tensor_info *t;
    GY_TRY(gy_st_claim(l->m->own->st, name, shape, n_dim, l->err, &t));
    return place(l, row->role, t, y);
}

static gy_status load_layers(loader *l, gy_stage stage) {
    gy_model *m = l->m;
    const gy_family *f = l->family;
    if (!m->d.n_layer[stage]) return GY_OK;
    m->layer[stage] = gy_mem_alloc(GY_MEM_MODEL, (size_t)m->d.n_layer[stage], sizeof(gy_layer));
    if (!m->layer[stage]) return no_memory(l, "layers", (size_t)m->d.n_layer[stage] * sizeof(gy_layer));
    for (int32_t il = 0; il < m->d.n_layer[stage]; il++)
        for (size_t i = 0; i < f->n_weight; i++) {
            char name[160];
            if (f->weights[i].role < GY_ROLE_LAYER) continue;
            snprintf(name, sizeof name, "%s%d.%s", f->stage_prefix[stage], il, f->weights[i].name);
            GY_TRY(load_row(l, &f->weights[i], name, &m->layer[stage][il]));
        }
    return GY_OK;
}

static gy_status load_weights(loader *l) {
    const gy_family *f = l->family;
    GY_CHECK(f);
    for (size_t i = 0; i < f->n_weight; i++)
        if (f->weights[i].role < GY_ROLE_LAYER) GY_TRY(load_row(l, &f->weights[i], f->weights[i].name, NULL));
    for (gy_stage s = GY_PRELUDE; s < GY_STAGES; s++) GY_TRY(load_layers(l, s));
    /* Non-persistent buffers that some exporters store, and the head of a tied file. */
    static const char *const extra[] = {"rotary_emb.inv_freq", "lm_head.weight"};
    return gy_st_check_unclaimed(l->m->own->st, extra, l->m->d.tied ? 2 : 1, l->err);
}

/* inv_freq[i] = theta^(-2i / head_dim), kept in f32 whatever act is: rounded further it corrupts long contexts
 * (ouro.md, rounding). */
static gy_status make_inv_freq(loader *l) {
    gy_model *m = l->m;
    int32_t half = m->d.head_dim / 2;
    float host[512];
    if (half > 512)
        return gy_err_set(l->err, GY_E_UNSUPPORTED, "head_dim %d: at most 1024 is supported", m->d.head_dim);
    for (int32_t i = 0; i < half; i++)
        host[i] = (float)(1.0 / pow(m->d.rope_theta, 2.0 * (double)i / (double)m->d.head_dim));
    m->inv_freq = own_alloc(l, (size_t)half * sizeof(float));
    if (!m->inv_freq) return no_memory(l, "inv_freq", (size_t)half * sizeof(float));
    m->be->ops->upload(m->be, m->inv_freq, host, (size_t)half * sizeof(float));
    return GY_OK;
}

/* All weights that products read. */
static void each_matrix(gy_model *m, void (*fn)(void *arg, gy_weight *w), void *arg) {
    for (gy_stage s = GY_PRELUDE; s < GY_STAGES; s++)
        for (int32_t il = 0; m->layer[s] && il < m->d.n_layer[s]; il++) {
            gy_layer *y = &m->layer[s][il];
            fn(arg, &y->qkv);
            fn(arg, &y->o);
            fn(arg, &y->gate_up);
            fn(arg, &y->down);
        }
    if (m->d.inject) fn(arg, &m->adapter);
    fn(arg, &m->head);
}

static void unprepare_one(void *arg, gy_weight *w) {
    gy_model *m = arg;
    m->be->ops->unprepare(m->be, w);
}

static size_t part_bytes(const gy_weight *w, int ip) {
    return (size_t)w->part[ip].n * (size_t)w->k * gy_dtype_bytes(w->dtype);
}

/* Of what products read by rows; quantised ones are made in a form for them, or stay rows. */
static void sum_bytes(void *arg, gy_weight *w) {
    if (gy_is_quant(w->dtype)) return;
    for (int ip = 0; ip < w->n_part; ip++) *(size_t *)arg += part_bytes(w, ip);
}

/* A model's own copy; 0: p is none. */
static int free_own(gy_model *m, const void *p) {
    for (size_t i = 0; i < m->own->mem.len; i++) {
        owned o = m->own->mem.data[i];
        if (o.p != p) continue;
        m->be->ops->free(m->be, o.p, o.bytes);
        m->own->mem.data[i] = m->own->mem.data[--m->own->mem.len];
        m->own_bytes -= o.bytes;
        m->converted_bytes -= o.bytes;
        return 1;
    }
    return 0;
}

/* The rows of a packed weight are not needed any more, but for an embedding, whose rows are looked up. Parts that were
 * copied lie in one piece of memory. */
static void drop_rows(gy_model *m, gy_weight *w) {
    int is_own = 0;
    if (w->part[0].data == m->embed.part[0].data) return;
    for (int ip = 0; ip < w->n_part; ip++) {
        is_own |= ip == 0 && free_own(m, w->part[ip].data);
        if (!is_own) gy_map_drop(w->part[ip].data, part_bytes(w, ip));
        if (!is_own) m->mapped_bytes -= part_bytes(w, ip);
        w->part[ip].data = NULL;
    }
}

/* w's form, from the cache: the bytes, or 0. Of quantised weights it is the smaller part and is copied; else it is all
 * there is, and is used in place: a copy would cost as long as packing does. */
static size_t adopt_kept(loader *l, gy_weight *w) {
    gy_model *m = l->m;
    int copies = l->o->form >= GY_WEIGHTS_FP8;
    gy_pack_part p = {.kind = GY_PACK_PANELS, .n = w->n, .k = w->k, .type = w->dtype};
    p.bytes = m->be->ops->form_of(m->be, w, &p.data);
    if (!p.bytes) return 0;
    p.index = l->n_kept[p.kind]++;
    p.data = gy_pack_cache_find(m->own->cache, &p);
    if (!p.data || m->be->ops->adopt(m->be, w, p.data, copies)) return 0;
    gy_pack_cache_add(m->own->cache, &p, 0);
    *(copies ? &m->own_bytes : &m->mapped_bytes) += p.bytes;
    if (copies) gy_map_drop(p.data, p.bytes);
    return p.bytes;
}

static size_t make_form(loader *l, gy_weight *w) {
    gy_model *m = l->m;
    size_t bytes = m->be->ops->prepare(m->be, w, w == &m->head);
    m->own_bytes += bytes;
    if (!bytes || !m->own->cache || !m->be->ops->form_of) return bytes;
    gy_pack_part p = {.kind = GY_PACK_PANELS, .n = w->n, .k = w->k, .type = w->dtype, .bytes = bytes};
    p.index = l->n_kept[p.kind] - 1; /* as adopt_kept has counted */
    m->be->ops->form_of(m->be, w, &p.data);
    gy_pack_cache_add(m->own->cache, &p, 1);
    return bytes;
}

static void prepare_one(void *arg, gy_weight *w) {
    loader *l = arg;
    gy_model *m = l->m;
    size_t bytes = m->own->cache && m->be->ops->adopt ? adopt_kept(l, w) : 0, rows = 0;
    if (!bytes) bytes = make_form(l, w);
    sum_bytes(&rows, w);
    m->packed_bytes += bytes;
    l->unpacked += bytes ? 0 : rows;
    if (w->packed) drop_rows(m, w);
    if (m->be->is_host) note_progress(l, rows);
}

/* On a host a second copy of all matrices is a matter of memory; a device only learns which products will come. */
static int wants_prepare(loader *l, size_t bytes) {
    gy_backend *be = l->m->be;
    if (!be->ops->prepare) return 0;
    if (!be->is_host || l->o->pack == GY_PACK_ON) return 1;
    int in_place = l->o->form < GY_WEIGHTS_FP8 && gy_pack_cache_has(l->m->own->cache, GY_PACK_PANELS);
    if (l->o->pack == GY_PACK_AUTO && in_place) return 1;
    size_t available = l->o->pack == GY_PACK_AUTO ? be->ops->mem_available(be) : 0;
    if (bytes <= available / 2) return 1;
    gy_log(GY_LOG_INFO, "model", "weights are not packed", "pack=%s bytes=%zu available=%zu", gy_pack_name(l->o->pack),
           bytes, available);
    return 0;
}

/* Also moves the progress over tensors that were only looked at, so that it ends full. */
static void plan_prepare(loader *l) {
    size_t bytes = 0, left = l->total - l->done;
    each_matrix(l->m, sum_bytes, &bytes);
    l->to_pack = wants_prepare(l, bytes) ? bytes : 0;
    l->tells = l->to_pack || (l->m->be->ops->prepare && !l->m->be->is_host);
    if (l->m->be->is_host) l->total += l->to_pack;
    note_progress(l, left);
}

static gy_status prepare(loader *l) {
    if (l->tells) each_matrix(l->m, prepare_one, l);
    if (!l->unpacked || !l->m->be->is_host) return GY_OK;
    if (l->o->pack == GY_PACK_ON)
        return gy_err_set(l->err, GY_E_NOMEM, "pack: no memory for %zu bytes of %zu; use pack auto or off", l->unpacked,
                          l->to_pack);
    gy_log(GY_LOG_WARN, "model", "no memory to pack all weights; products with the others are slower",
           "unpacked=%zu of=%zu", l->unpacked, l->to_pack);
    return GY_OK;
}

static void finish_cache(loader *l) {
    gy_pack_cache *c = l->m->own->cache;
    size_t bytes = gy_pack_cache_new_bytes(c), before = l->done;
    l->total += bytes;
    gy_pack_cache_finish(c, cache_progress, l);
    note_progress(l, before + bytes - l->done); /* what could not be written */
}

static void log_loaded(const gy_model *m, int64_t ns, int64_t prepare_ns) {
    double s = (double)ns * 1e-9;
    gy_log(GY_LOG_INFO, "model", "loaded", "tensors=%zu bytes=%zu held=%zu seconds=%.3f gb_per_s=%.2f prepare_s=%.3f",
           gy_st_count(m->own->st), m->weight_bytes, m->own_bytes, s, s > 0 ? (double)m->weight_bytes * 1e-9 / s : 0.0,
           (double)prepare_ns * 1e-9);
}

static gy_status check_form(const gy_model_load_opts *o, gy_err *err) {
    gy_dtype t = o->form < GY_WEIGHTS_FP8 ? GY_BF16 : quant_type(o->form);
    int taken = (o->be->ops->weight_types >> t & 1) && (o->be->is_host || !gy_is_grouped(t)); /* packed on the host */
    if (o->form < GY_WEIGHTS_FP8 || taken) return GY_OK;
    return gy_err_set(err, GY_E_UNSUPPORTED,
                      "weights: found %s, which backend %s does not take; use --weights auto, or --device cpu",
                      gy_weight_form_name(o->form), o->be->ops->name);
}

gy_status gy_model_load(const char *dir, const gy_model_load_opts *o, gy_err *err, gy_model **out) {
    gy_model *m = gy_mem_alloc(GY_MEM_MODEL, 1, sizeof *m);
    if (m) m->own = gy_mem_alloc(GY_MEM_MODEL, 1, sizeof *m->own);
    if (!m || !m->own) {
        gy_mem_free(m);
        return gy_err_set(err, GY_E_NOMEM, "out of memory");
    }
    m->be = o->be;
    m->form = o->form;
    loader l = {.m = m, .o = o, .err = err};
    gy_status st;
    int64_t begin = gy_clock_ns(), loaded;
    GY_TRY_GOTO(st, check_form(o, err), fail);
    GY_TRY_GOTO(st, read_config(dir, err, &l.family, &m->d), fail);
    GY_TRY_GOTO(st, gy_st_open(dir, err, &m->own->st), fail);
    m->weight_bytes = l.total = gy_st_data_bytes(m->own->st);
    open_cache(&l, dir);
    GY_TRY_GOTO(st, load_weights(&l), fail);
    plan_prepare(&l);
    GY_TRY_GOTO(st, make_inv_freq(&l), fail);
    GY_TRY_GOTO(st, m->be->ops->sync(m->be, err), fail);
    loaded = gy_clock_ns();
    GY_TRY_GOTO(st, prepare(&l), fail);
    finish_cache(&l);
    GY_TRY_GOTO(st, m->be->ops->sync(m->be, err), fail);
    log_loaded(m, loaded - begin, gy_clock_ns() - loaded);
    *out = m;
    return GY_OK;
fail:
    gy_model_free(m);
    return st;
}

/* By the end of its name, which is all that a row of the table says of a layer's. NULL: not in the table. */
static const gy_weight_row *row_of(const gy_family *f, const char *name) {
    size_t len = strlen(name);
    for (size_t i = 0; i < f->n_weight; i++) {
        const gy_weight_row *row = &f->weights[i];
        size_t n = strlen(row->name);
        if (n > len || strcmp(name + len - n, row->name) != 0) continue;
        if (n == len || (row->role >= GY_ROLE_LAYER && name[len - n - 1] == '.')) return row;
    }
    return NULL;
}

static int is_matrix(gy_role role) {
    return role == GY_ROLE_HEAD || role == GY_ROLE_ADAPTER ||
           (role >= GY_ROLE_Q && role != GY_ROLE_QK_BIAS); /* what load_part takes, but the embedding */
}

static size_t held_bytes(const gy_tensor_info *t, gy_dtype as) {
    if (!gy_is_quant(as)) return n_elem(t) * gy_dtype_bytes(as);
    return gy_quant_bytes(as, t->shape[0], t->shape[1]) + (as == GY_F8_E4M3 ? (size_t)t->shape[0] * sizeof(float) : 0);
}

/* Vectors and tables are in act, but for F32 tables, which are small. */
gy_status gy_model_device_bytes(const char *dir, gy_dtype act, gy_weight_form form, int quant_head, gy_err *err,
                                size_t *out) {
    const gy_family *f = NULL;
    gy_model_desc d;
    gy_st *st;
    size_t sum = 0;
    GY_TRY(read_config(dir, err, &f, &d));
    GY_CHECK(f);
    GY_TRY(gy_st_open(dir, err, &st));
    for (size_t i = 0; i < gy_st_count(st); i++) {
        const gy_tensor_info *t = gy_st_at(st, i);
        const gy_weight_row *row = row_of(f, t->name);
        int is_embed = row && row->role == GY_ROLE_EMBED, is_held = is_embed || (row && is_matrix(row->role));
        gy_dtype vec = act == GY_BF16 ? GY_BF16 : t->dtype;
        sum += held_bytes(t, is_held ? held_type(t->dtype, act, form, quant_head, row->role) : vec);
        if (is_embed && d.tied && quant_head && form >= GY_WEIGHTS_FP8)
            sum += held_bytes(t, held_type(t->dtype, act, form, 1, GY_ROLE_HEAD));
    }
    gy_st_close(st);
    *out = sum;
    return GY_OK;
}

void gy_model_free(gy_model *m) {
    if (!m) return;
    if (m->be->ops->unprepare) each_matrix(m, unprepare_one, m);
    for (size_t i = 0; i < m->own->mem.len; i++)
        m->be->ops->free(m->be, m->own->mem.data[i].p, m->own->mem.data[i].bytes);
    gy_vec_free(&m->own->mem);
    gy_pack_cache_close(m->own->cache);
    gy_st_close(m->own->st);
    gy_mem_free(m->own);
    for (gy_stage s = GY_PRELUDE; s < GY_STAGES; s++) gy_mem_free(m->layer[s]);
    gy_mem_free(m);
}
