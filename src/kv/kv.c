/* The life of a KV cache: create, claim and exit, the map. All memory is carved once at create; afterwards nothing is
 * allocated. The bytes of KV are never touched here: kernels write them at the slots that claim returns.
 * Broken call orders (a claim out of position order, below an exit, above a depth not yet claimed) are bugs of the
 * engine, not input: GY_CHECK.
 */
#include "kv/kv_int.h"

#include "base/mem.h"

enum { MAX_LOOP = 1 << 12, MAX_LEN = 1 << 26 }; /* with these n_map * max_len * 4 cannot overflow */

static gy_status range_check(const char *field, int64_t found, int64_t lo, int64_t hi, gy_err *err) {
    if (found >= lo && found <= hi) return GY_OK;
    return gy_err_set(err, GY_E_ARG, "kv config: %s is %lld; allowed %lld..%lld", field, (long long)found,
                      (long long)lo, (long long)hi);
}

/* Slots of blocks and of park blocks are 32-bit numbers. */
static gy_status group_check(const gy_kv_config *c, gy_kv_group g, const void *arena, gy_err *err) {
    const char *name = g == GY_KV_CORE ? "n_block[core]" : "n_block[boundary]";
    const char *park = g == GY_KV_CORE ? "n_park[core]" : "n_park[boundary]";
    size_t bytes;
    if (c->n_layer[g] == 0) return GY_OK;
    GY_TRY(range_check(name, c->n_block[g], 1, INT32_MAX / GY_KV_BLOCK_LEN, err));
    GY_TRY(range_check(park, c->n_park[g], 0, INT32_MAX / GY_KV_BLOCK_LEN, err));
    bytes = gy_kv_block_bytes(c, g);
    if (bytes == 0 || gy_size_mul(bytes, (size_t)c->n_block[g], &bytes))
        return gy_err_set(err, GY_E_ARG, "kv config: %s blocks of this model do not fit an address space", name);
    if (!arena) return gy_err_set(err, GY_E_ARG, "kv config: no arena for %s = %d", name, c->n_block[g]);
    return GY_OK;
}

static gy_status config_check(const gy_kv_config *c, void *const arena[GY_KV_GROUPS], gy_err *err) {
    GY_TRY(range_check("layout", c->layout, GY_KV_LAST_EXITED, GY_KV_CYCLIC, err));
    GY_TRY(range_check("n_loop", c->n_loop, 1, MAX_LOOP, err));
    if (c->layout == GY_KV_CYCLIC) GY_TRY(range_check("cyclic_k", c->cyclic_k, 1, c->n_loop, err));
    GY_TRY(range_check("n_layer[core]", c->n_layer[GY_KV_CORE], 1, INT32_MAX, err));
    GY_TRY(range_check("n_layer[boundary]", c->n_layer[GY_KV_BOUNDARY], 0, INT32_MAX, err));
    GY_TRY(range_check("n_head_kv", c->n_head_kv, 1, INT32_MAX, err));
    GY_TRY(range_check("head_dim", c->head_dim, 1, INT32_MAX, err));
    if (c->dtype != GY_I8) GY_TRY(range_check("dtype", c->dtype, GY_F32, GY_BF16, err));
    GY_TRY(range_check("max_seqs", c->max_seqs, 1, INT32_MAX, err));
    GY_TRY(range_check("max_len", c->max_len, 1, MAX_LEN, err));
    GY_TRY(group_check(c, GY_KV_CORE, arena[GY_KV_CORE], err));
    return group_check(c, GY_KV_BOUNDARY, arena[GY_KV_BOUNDARY], err);
}

static void pool_carve(gy_carve *c, const gy_kv_config *cfg, kv_pool *p) {
    size_t n_block = (size_t)p->n_block, n_seq = (size_t)cfg->max_seqs, n_plane = (size_t)p->n_plane;
    size_t n_park = (size_t)p->n_park, n_most = n_block > n_park ? n_block : n_park;
    p->free = gy_carve_take(c, n_block, sizeof *p->free);
    p->refs = gy_carve_take(c, n_block, sizeof *p->refs);
    p->plane = gy_carve_take(c, n_block, sizeof *p->plane);
    p->used = gy_carve_take(c, n_plane, sizeof *p->used);
    p->held = gy_carve_take(c, n_block, sizeof *p->held);
    p->park_free = gy_carve_take(c, n_park, sizeof *p->park_free);
    p->park_refs = gy_carve_take(c, n_park, sizeof *p->park_refs);
    p->moved = gy_carve_take(c, n_most, sizeof *p->moved);
    p->scratch = gy_carve_take(c, n_most, sizeof *p->scratch);
    p->place = gy_carve_take(c, n_block, sizeof *p->place);
    p->log = gy_carve_take(c, n_seq, n_plane * (size_t)p->log_blocks * sizeof *p->log);
    p->len = gy_carve_take(c, n_seq, n_plane * sizeof *p->len);
    p->last = gy_carve_take(c, n_seq, n_plane * sizeof *p->last);
    p->blocks = gy_carve_take(c, n_seq, sizeof *p->blocks);
    p->map = gy_carve_take(c, n_seq, (size_t)p->n_map * (size_t)cfg->max_len * sizeof *p->map);
}

static void kv_carve(gy_carve *c, gy_kv *kv) {
    kv->seq = gy_carve_take(c, (size_t)kv->cfg.max_seqs, sizeof *kv->seq);
    kv->seq_free = gy_carve_take(c, (size_t)kv->cfg.max_seqs, sizeof *kv->seq_free);
    for (int g = 0; g < GY_KV_GROUPS; g++)
        if (kv->pool[g].n_block) pool_carve(c, &kv->cfg, &kv->pool[g]);
}

static void pool_describe(const gy_kv_config *c, gy_kv_group g, void *arena, kv_pool *p) {
    if (c->n_layer[g] == 0) return;
    p->arena = arena;
    p->n_block = c->n_block[g];
    p->n_park = c->n_park[g];
    p->n_plane = gy_kv_n_plane(c, g);
    p->n_map = g == GY_KV_CORE ? c->n_loop : 1;
    p->log_blocks = (c->max_len + GY_KV_BLOCK_LEN - 1) / GY_KV_BLOCK_LEN;
}

static gy_status kv_alloc(gy_kv *kv, gy_err *err) {
    gy_carve size = {0};
    kv_carve(&size, kv);
    kv->mem.base = size.overflow ? NULL : gy_mem_map_pages(GY_MEM_KV, size.used);
    if (!kv->mem.base)
        return gy_err_set(err, GY_E_NOMEM, "kv: no memory for the slot map of %d sequences of %d tokens (%zu bytes)",
                          kv->cfg.max_seqs, kv->cfg.max_len, size.used);
    kv->mem.cap = size.used;
    kv_carve(&kv->mem, kv);
    return GY_OK;
}

gy_status gy_kv_create(const gy_kv_config *c, void *const arena[GY_KV_GROUPS], gy_err *err, gy_kv **out) {
    GY_TRY(config_check(c, arena, err));
    gy_kv *kv = gy_mem_alloc(GY_MEM_KV, 1, sizeof *kv);
    if (!kv) return gy_err_set(err, GY_E_NOMEM, "kv: no memory for %zu bytes", sizeof *kv);
    kv->cfg = *c;
    for (int g = 0; g < GY_KV_GROUPS; g++) pool_describe(c, (gy_kv_group)g, arena[g], &kv->pool[g]);
    gy_status st = kv_alloc(kv, err);
    if (st < 0) {
        gy_kv_destroy(kv);
        return st;
    }
    for (int g = 0; g < GY_KV_GROUPS; g++) gy_kv_pool_reset(&kv->pool[g], c->max_seqs);
    for (int32_t s = c->max_seqs; s-- > 0;) kv->seq_free[kv->n_seq_free++] = s;
    *out = kv;
    return GY_OK;
}

void gy_kv_destroy(gy_kv *kv) {
    if (!kv) return;
    gy_prefix_destroy(kv->prefix);
    gy_mem_unmap_pages(GY_MEM_KV, kv->mem.base, kv->mem.cap);
    gy_mem_free(kv);
}

const gy_kv_config *gy_kv_get_config(const gy_kv *kv) {
    return &kv->cfg;
}

/* The next dense slot of a plane. Takes a block only when the last one is full, so failing changes nothing. */
static gy_status plane_append(kv_pool *p, int32_t seq, int32_t plane, int32_t pos, int32_t *slot_out) {
    int64_t i = kv_plane_index(p, seq, plane);
    int32_t *log = kv_log(p, seq, plane), n = p->len[i];
    GY_CHECK(pos > p->last[i] && (plane > 0 || pos == n));
    if (n % GY_KV_BLOCK_LEN == 0) {
        int32_t block = gy_kv_pool_take(p, plane);
        if (block < 0) return GY_AGAIN;
        log[n / GY_KV_BLOCK_LEN] = block;
        p->blocks[seq]++;
    }
    p->len[i] = n + 1;
    p->last[i] = pos;
    *slot_out = kv_log_slot(log, n);
    return GY_OK;
}

gy_status gy_kv_claim(gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth, int32_t pos, int32_t *slot_out) {
    kv_pool *p = &kv->pool[g];
    GY_CHECK(kv_seq_is_live(kv, seq) && depth >= 0 && depth < p->n_map && pos >= 0 && pos < kv->seq[seq].max_tok);
    GY_CHECK(depth == 0 || kv_map_row(kv, p, seq, depth - 1)[pos] >= 0);
    int32_t plane = depth % p->n_plane, slot = kv_map_row(kv, p, seq, depth)[pos];
    if (slot < 0) {
        gy_status st = plane_append(p, seq, plane, pos, &slot);
        if (st != GY_OK) return st;
        for (int32_t d = plane; d < p->n_map; d += p->n_plane) kv_map_row(kv, p, seq, d)[pos] = slot;
    }
    GY_CHECK(kv_owns(kv, p, seq, plane, pos)); /* else it had left the core above this depth */
    *slot_out = slot;
    return GY_OK;
}

int gy_kv_claim_takes(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth, int32_t pos) {
    const kv_pool *p = &kv->pool[g];
    GY_CHECK(kv_seq_is_live(kv, seq) && depth >= 0 && depth < p->n_map && pos >= 0 && pos < kv->seq[seq].max_tok);
    if (kv_map_row(kv, p, seq, depth)[pos] >= 0) return 0;
    return p->len[kv_plane_index(p, seq, depth % p->n_plane)] % GY_KV_BLOCK_LEN == 0;
}

void gy_kv_exit(gy_kv *kv, int32_t seq, int32_t pos, int32_t depth) {
    const kv_pool *p = &kv->pool[GY_KV_CORE];
    GY_CHECK(kv_seq_is_live(kv, seq) && depth >= 0 && depth < p->n_map && pos >= 0 && pos < kv->seq[seq].max_tok);
    GY_CHECK(kv_owns(kv, p, seq, depth % p->n_plane, pos));
    int32_t slot = kv_map_row(kv, p, seq, depth)[pos];
    for (int32_t d = depth + 1; d < p->n_map; d++) {
        int32_t *entry = &kv_map_row(kv, p, seq, d)[pos];
        GY_CHECK(*entry < 0 || *entry == slot || d % p->n_plane <= depth);
        if (*entry < 0) *entry = slot;
    }
}

const int32_t *gy_kv_map(const gy_kv *kv, gy_kv_group g) {
    return kv->pool[g].map;
}

int64_t gy_kv_map_len(const gy_kv *kv, gy_kv_group g) {
    return (int64_t)kv->cfg.max_seqs * kv->pool[g].n_map * kv->cfg.max_len;
}

int64_t gy_kv_map_off(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t depth) {
    return ((int64_t)seq * kv->pool[g].n_map + depth) * kv->cfg.max_len;
}

void *gy_kv_arena(const gy_kv *kv, gy_kv_group g) {
    return kv->pool[g].arena;
}

int32_t gy_kv_plane_blocks(const gy_kv *kv, gy_kv_group g, int32_t plane) {
    const kv_pool *p = &kv->pool[g];
    GY_CHECK(plane >= 0 && plane < p->n_plane);
    return p->used[plane];
}

int32_t gy_kv_n_free(const gy_kv *kv, gy_kv_group g) {
    return kv->pool[g].n_free;
}

int32_t gy_kv_n_cached(const gy_kv *kv, gy_kv_group g) {
    return kv->pool[g].n_cached;
}

int32_t gy_kv_seq_blocks(const gy_kv *kv, gy_kv_group g, int32_t seq) {
    GY_CHECK(seq >= 0 && seq < kv->cfg.max_seqs);
    return kv->pool[g].n_block ? kv->pool[g].blocks[seq] : 0;
}

const int32_t *gy_kv_seq_log(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t plane, int32_t *n_out) {
    const kv_pool *p = &kv->pool[g];
    GY_CHECK(kv_seq_is_live(kv, seq) && plane >= 0 && plane < p->n_plane);
    *n_out = kv_blocks_of(p->len[kv_plane_index(p, seq, plane)]);
    return kv_log(p, seq, plane);
}

int32_t gy_kv_plane_len(const gy_kv *kv, gy_kv_group g, int32_t seq, int32_t plane) {
    const kv_pool *p = &kv->pool[g];
    GY_CHECK(seq >= 0 && seq < kv->cfg.max_seqs && plane >= 0 && plane < p->n_plane);
    return p->len[kv_plane_index(p, seq, plane)];
}
