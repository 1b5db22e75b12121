/* The prefix cache's tree, its order of eviction, and what requests do with it: match, attach, publish. Contract in
 * prefix.h, numbering and the rules of the two lists in prefix_int.h. The checker is prefix_check.c.
 */
#include "kv/prefix_int.h"

#include "base/mem.h"

#include <string.h>
#include <sys/random.h>

/* ---- hash: only ever finds candidates ---- */

/* The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA'14), with Stafford's constants "Mix13". */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t gy_prefix_row_bucket(const kv_prefix *x, int32_t parent, const int32_t *tok) {
    uint64_t h = mix(x->key ^ (uint32_t)parent), w[GY_KV_BLOCK_LEN / 2];
    memcpy(w, tok, sizeof w);
    for (size_t i = 0; i < GY_KV_BLOCK_LEN / 2; i++) h = mix(h ^ w[i]);
    return h & x->hash_mask & (x->n_bucket - 1);
}

uint64_t gy_prefix_space_bucket(const kv_prefix *x, const prefix_space *s) {
    uint64_t h = mix(x->key ^ s->latent_seed), w[GY_PREFIX_MAX_SALT / 8];
    memcpy(w, s->salt, sizeof w);
    h = mix(h ^ ((uint64_t)s->n_salt << 1 | (uint64_t)s->latent_noise));
    for (int32_t i = 0; i < (s->n_salt + 7) / 8; i++) h = mix(h ^ w[i]);
    return h & x->hash_mask & (x->n_bucket - 1);
}

int32_t gy_prefix_find_row(const kv_prefix *x, int32_t parent, const int32_t *tok) {
    int32_t r = x->bucket[gy_prefix_row_bucket(x, parent, tok)];
    while (r != PREFIX_NONE && (x->row[r].parent != parent || memcmp(x->row[r].tok, tok, sizeof x->row[r].tok) != 0))
        r = x->row[r].next;
    return r;
}

/* What a request says, in the form that is kept: bytes behind the salt are 0, a seed that does not count too. */
static prefix_space space_make(const gy_prefix_space *s) {
    prefix_space out = {.n_salt = s->n_salt, .latent_noise = s->latent_noise != 0};
    GY_CHECK(s->n_salt >= 0 && s->n_salt <= GY_PREFIX_MAX_SALT);
    if (s->n_salt) memcpy(out.salt, s->salt, (size_t)s->n_salt);
    if (s->latent_noise) out.latent_seed = s->latent_seed;
    return out;
}

static int space_equal(const prefix_space *a, const prefix_space *b) {
    return a->n_salt == b->n_salt && memcmp(a->salt, b->salt, (size_t)a->n_salt) == 0 &&
           a->latent_noise == b->latent_noise && a->latent_seed == b->latent_seed;
}

int32_t gy_prefix_find_space(const kv_prefix *x, const gy_prefix_space *s) {
    prefix_space want = space_make(s);
    int32_t i = x->sbucket[gy_prefix_space_bucket(x, &want)];
    while (i != PREFIX_NONE && !space_equal(&x->space[i], &want)) i = x->space[i].next;
    return i == PREFIX_NONE ? PREFIX_NONE : x->n_max + i;
}

/* ---- the two lists ---- */

static prefix_list *list_of(kv_prefix *x, int32_t r) {
    return x->row[r].pin ? &x->busy : &x->idle;
}

static void list_unlink(kv_prefix *x, prefix_list *l, int32_t r) {
    int32_t older = x->row[r].older, younger = x->row[r].younger;
    *(older == PREFIX_NONE ? &l->oldest : &x->row[older].younger) = younger;
    *(younger == PREFIX_NONE ? &l->youngest : &x->row[younger].older) = older;
}

/* Next to `than`, on its older side; PREFIX_NONE: at the young end. */
static void list_put(kv_prefix *x, prefix_list *l, int32_t r, int32_t than) {
    int32_t older = than == PREFIX_NONE ? l->youngest : x->row[than].older;
    x->row[r].older = older;
    x->row[r].younger = than;
    *(older == PREFIX_NONE ? &l->oldest : &x->row[older].younger) = r;
    *(than == PREFIX_NONE ? &l->youngest : &x->row[than].older) = r;
}

/* Amortized O(1): each row that is walked over changes its list, and was put on the other one by somebody's use. */
void gy_prefix_pin(kv_prefix *x, int32_t r) {
    int32_t top = r;
    while (prefix_is_row(x, top) && x->row[top].pin == 0) top = x->row[top].parent;
    int32_t than = prefix_is_row(x, top) ? top : PREFIX_NONE;
    for (; r != top; r = x->row[r].parent) {
        list_unlink(x, &x->idle, r);
        x->row[r].pin = 1;
        list_put(x, &x->busy, r, than);
    }
    if (than != PREFIX_NONE) x->row[than].pin++;
}

void gy_prefix_unpin(kv_prefix *x, int32_t r) {
    while (prefix_is_row(x, r) && --x->row[r].pin == 0) {
        list_unlink(x, &x->busy, r);
        list_put(x, &x->idle, r, PREFIX_NONE);
        r = x->row[r].parent;
    }
}

static void row_touch(kv_prefix *x, int32_t r) {
    list_unlink(x, list_of(x, r), r);
    list_put(x, list_of(x, r), r, PREFIX_NONE);
}

/* ---- rows come and go ---- */

static int32_t space_new(kv_prefix *x, const gy_prefix_space *s) {
    int32_t i = x->free_space;
    GY_CHECK(i != PREFIX_NONE);
    x->free_space = x->space[i].next;
    x->space[i] = space_make(s);
    int32_t *head = &x->sbucket[gy_prefix_space_bucket(x, &x->space[i])];
    x->space[i].next = *head;
    *head = i;
    return x->n_max + i;
}

static void space_drop_row(kv_prefix *x, int32_t node) {
    int32_t i = node - x->n_max, *at = &x->sbucket[gy_prefix_space_bucket(x, &x->space[i])];
    if (--x->space[i].n_row > 0) return;
    while (*at != i) at = &x->space[*at].next;
    *at = x->space[i].next;
    x->space[i].next = x->free_space;
    x->free_space = i;
}

static int32_t row_new(kv_prefix *x, int32_t parent, const int32_t *tok) {
    int32_t r = x->free_row;
    GY_CHECK(r != PREFIX_NONE);
    x->free_row = x->row[r].next;
    x->row[r] = (prefix_row){.parent = parent, .stamp = ++x->stamp};
    memcpy(x->row[r].tok, tok, sizeof x->row[r].tok);
    int32_t *head = &x->bucket[gy_prefix_row_bucket(x, parent, tok)];
    x->row[r].next = *head;
    *head = r;
    (*(prefix_is_row(x, parent) ? &x->row[parent].n_child : &x->space[parent - x->n_max].n_row))++;
    list_put(x, &x->idle, r, PREFIX_NONE);
    x->stats.n_row++;
    return r;
}

static void row_unchain(kv_prefix *x, int32_t r) {
    int32_t *at = &x->bucket[gy_prefix_row_bucket(x, x->row[r].parent, x->row[r].tok)];
    while (*at != r) at = &x->row[*at].next;
    *at = x->row[r].next;
}

static void row_drop(kv_prefix *x, int32_t r) {
    int32_t parent = x->row[r].parent, was_pinned = x->row[r].pin > 0;
    GY_CHECK(x->row[r].n_child == 0);
    row_unchain(x, r);
    list_unlink(x, list_of(x, r), r);
    for (int32_t j = 0; j < x->n_own; j++)
        gy_kv_pool_uncache(&x->kv->pool[GY_KV_CORE], x->core[(int64_t)r * x->n_own + j]);
    if (x->boundary[r] != PREFIX_NONE) gy_kv_pool_uncache(&x->kv->pool[GY_KV_BOUNDARY], x->boundary[r]);
    x->row[r].stamp = 0;
    x->row[r].next = x->free_row;
    x->free_row = r;
    x->stats.n_row--;
    if (!prefix_is_row(x, parent)) {
        space_drop_row(x, parent);
        return;
    }
    x->row[parent].n_child--;
    if (was_pinned) gy_prefix_unpin(x, parent);
}

static int32_t oldest_row(const kv_prefix *x) {
    return x->idle.oldest != PREFIX_NONE ? x->idle.oldest : x->busy.oldest;
}

void gy_prefix_evict(kv_prefix *x) {
    GY_CHECK(oldest_row(x) != PREFIX_NONE);
    row_drop(x, oldest_row(x));
    x->stats.n_evict++;
}

void gy_prefix_clear(gy_kv *kv) {
    kv_prefix *x = kv->prefix;
    while (x && oldest_row(x) != PREFIX_NONE) row_drop(x, oldest_row(x));
}

/* ---- create ---- */

static void prefix_carve(gy_carve *c, kv_prefix *x) {
    size_t n = (size_t)x->n_max, n_own = (size_t)x->n_own;
    x->bucket = gy_carve_take(c, x->n_bucket, sizeof *x->bucket);
    x->sbucket = gy_carve_take(c, x->n_bucket, sizeof *x->sbucket);
    x->row = gy_carve_take(c, n, sizeof *x->row);
    x->space = gy_carve_take(c, n, sizeof *x->space);
    x->core = gy_carve_take(c, n, n_own * sizeof *x->core);
    x->boundary = gy_carve_take(c, n, sizeof *x->boundary);
    x->scratch = gy_carve_take(c, n, 4 * sizeof *x->scratch);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        kv_pool *p = &x->kv->pool[g];
        int32_t *row = gy_carve_take(c, (size_t)p->n_block, sizeof *row);
        p->row = p->n_block ? row : NULL;
    }
}

static void prefix_fill(kv_prefix *x) {
    memset(x->bucket, 0xFF, x->n_bucket * sizeof *x->bucket); /* PREFIX_NONE */
    memset(x->sbucket, 0xFF, x->n_bucket * sizeof *x->sbucket);
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        kv_pool *p = &x->kv->pool[g];
        if (p->n_block) memset(p->row, 0xFF, (size_t)p->n_block * sizeof *p->row);
        p->prefix = x;
    }
    for (int32_t i = 0; i < x->n_max; i++) x->row[i].next = x->space[i].next = i + 1 < x->n_max ? i + 1 : PREFIX_NONE;
    x->free_row = x->free_space = x->n_max ? 0 : PREFIX_NONE;
    x->idle = x->busy = (prefix_list){PREFIX_NONE, PREFIX_NONE};
    x->hash_mask = UINT64_MAX;
    if (getrandom(&x->key, sizeof x->key, GRND_NONBLOCK) != (ssize_t)sizeof x->key) x->key = 0; /* still correct */
}

gy_status gy_prefix_create(gy_kv *kv, int32_t depth, gy_err *err) {
    const kv_pool *p = &kv->pool[GY_KV_CORE];
    gy_carve size = {0};
    GY_CHECK(!kv->prefix);
    if (depth < 1 || depth > kv->cfg.n_loop)
        return gy_err_set(err, GY_E_ARG, "prefix cache: depth is %d; allowed 1..%d", depth, kv->cfg.n_loop);
    kv_prefix *x = gy_mem_alloc(GY_MEM_KV, 1, sizeof *x);
    if (!x) return gy_err_set(err, GY_E_NOMEM, "prefix cache: no memory for %zu bytes", sizeof *x);
    x->kv = kv;
    x->depth = depth;
    x->n_own = depth < p->n_plane ? depth : p->n_plane;
    x->n_max = p->n_block / x->n_own;
    for (x->n_bucket = 1; x->n_bucket < (uint64_t)x->n_max;) x->n_bucket *= 2;
    prefix_carve(&size, x);
    x->mem.base = size.overflow ? NULL : gy_mem_map_pages(GY_MEM_KV, size.used);
    if (!x->mem.base) {
        gy_err_set(err, GY_E_NOMEM, "prefix cache: no memory for %d rows (%zu bytes)", x->n_max, size.used);
        gy_prefix_destroy(x);
        return GY_E_NOMEM;
    }
    x->mem.cap = size.used;
    prefix_carve(&x->mem, x);
    prefix_fill(x);
    kv->prefix = x;
    return GY_OK;
}

/* With the whole gy_kv, or half-built: the rows' blocks are not given back. */
void gy_prefix_destroy(kv_prefix *x) {
    if (!x) return;
    gy_mem_unmap_pages(GY_MEM_KV, x->mem.base, x->mem.cap);
    gy_mem_free(x);
}

int gy_prefix_enabled(const gy_kv *kv) {
    return kv->prefix != NULL;
}

void gy_prefix_get_stats(const gy_kv *kv, gy_prefix_stats *out) {
    *out = kv->prefix ? kv->prefix->stats : (gy_prefix_stats){0};
}

/* ---- match and attach ---- */

/* Calls nothing, changes nothing: the last row of the run, PREFIX_NONE when there is none. */
static int32_t run_find(const kv_prefix *x, const gy_prefix_space *s, const int32_t *tok, int32_t n_tok,
                        int32_t *n_row) {
    int32_t node = gy_prefix_find_space(x, s), last = PREFIX_NONE;
    *n_row = 0;
    while (node != PREFIX_NONE && n_tok - *n_row * GY_KV_BLOCK_LEN >= GY_KV_BLOCK_LEN) {
        node = gy_prefix_find_row(x, node, tok + (int64_t)*n_row * GY_KV_BLOCK_LEN);
        if (node == PREFIX_NONE) break;
        last = node;
        ++*n_row;
    }
    return last;
}

int32_t gy_prefix_match(const gy_kv *kv, const gy_prefix_space *s, const int32_t *tok, int32_t n_tok,
                        int32_t alone_out[GY_KV_GROUPS]) {
    const kv_prefix *x = kv->prefix;
    int32_t alone[GY_KV_GROUPS] = {0}, n_row = 0;
    int32_t r = x ? run_find(x, s, tok, n_tok, &n_row) : PREFIX_NONE;
    for (; r != PREFIX_NONE && prefix_is_row(x, r); r = x->row[r].parent) {
        const int32_t *core = x->core + (int64_t)r * x->n_own;
        for (int32_t j = 0; j < x->n_own; j++) alone[GY_KV_CORE] += kv->pool[GY_KV_CORE].refs[core[j]] == 1;
        if (x->boundary[r] != PREFIX_NONE) alone[GY_KV_BOUNDARY] += kv->pool[GY_KV_BOUNDARY].refs[x->boundary[r]] == 1;
    }
    memcpy(alone_out, alone, sizeof alone);
    return n_row * GY_KV_BLOCK_LEN;
}

/* Finds the rows again from the top, since a row knows its parent only. */
static void run_adopt(kv_prefix *x, const gy_prefix_space *s, const int32_t *tok, int32_t n_row, int32_t seq) {
    int32_t node = gy_prefix_find_space(x, s);
    for (int32_t k = 0; k < n_row; k++) {
        node = gy_prefix_find_row(x, node, tok + (int64_t)k * GY_KV_BLOCK_LEN);
        gy_kv_adopt(x->kv, seq, x->core + (int64_t)node * x->n_own, 1, x->n_own, x->boundary[node]);
    }
}

int32_t gy_prefix_attach(gy_kv *kv, const gy_prefix_space *s, const int32_t *tok, int32_t n_tok, int32_t seq,
                         gy_prefix_cursor *cursor_out) {
    kv_prefix *x = kv->prefix;
    int32_t n_row;
    *cursor_out = (gy_prefix_cursor){0};
    if (!x) return 0;
    GY_CHECK(kv_seq_is_live(kv, seq));
    for (int g = 0; g < GY_KV_GROUPS; g++) GY_CHECK(kv_seq_len(&kv->pool[g], seq) == 0);
    x->stats.n_query++;
    x->stats.n_query_tok += n_tok;
    int32_t last = run_find(x, s, tok, n_tok, &n_row);
    if (last == PREFIX_NONE) return 0;
    run_adopt(x, s, tok, n_row, seq);
    for (int32_t r = last; prefix_is_row(x, r); r = x->row[r].parent) row_touch(x, r);
    *cursor_out = (gy_prefix_cursor){.node = last, .n_row = n_row, .stamp = x->row[last].stamp};
    x->stats.n_hit++;
    x->stats.n_hit_tok += (int64_t)n_row * GY_KV_BLOCK_LEN;
    return n_row * GY_KV_BLOCK_LEN;
}

/* ---- publish ---- */

/* Row k of the sequence: each of its tokens j has slot j on the row's planes and on no other, and has left the core. */
static void row_check(const kv_prefix *x, int32_t seq, int32_t k) {
    const kv_pool *p = &x->kv->pool[GY_KV_CORE], *q = &x->kv->pool[GY_KV_BOUNDARY];
    int32_t pos = k * GY_KV_BLOCK_LEN, end = pos + GY_KV_BLOCK_LEN;
    const int32_t *deepest = kv_map_row(x->kv, p, seq, x->n_own - 1);
    const int32_t *next = x->n_own < p->n_plane ? kv_map_row(x->kv, p, seq, x->n_own) : deepest;
    GY_CHECK(p->len[kv_plane_index(p, seq, x->n_own - 1)] >= end && (!q->n_block || kv_seq_len(q, seq) >= end));
    for (; pos < end; pos++)
        GY_CHECK(deepest[pos] == kv_log_slot(kv_log(p, seq, x->n_own - 1), pos) && next[pos] == deepest[pos]);
}

static int32_t row_publish(kv_prefix *x, int32_t parent, const int32_t *tok, int32_t seq, int32_t k) {
    kv_pool *p = &x->kv->pool[GY_KV_CORE], *q = &x->kv->pool[GY_KV_BOUNDARY];
    int32_t r = row_new(x, parent, tok);
    for (int32_t j = 0; j < x->n_own; j++) {
        x->core[(int64_t)r * x->n_own + j] = kv_log(p, seq, j)[k];
        gy_kv_pool_cache(p, kv_log(p, seq, j)[k], r);
    }
    x->boundary[r] = q->n_block ? kv_log(q, seq, 0)[k] : PREFIX_NONE;
    if (q->n_block) gy_kv_pool_cache(q, x->boundary[r], r);
    x->stats.n_publish++;
    return r;
}

void gy_prefix_publish(gy_kv *kv, const gy_prefix_space *s, const int32_t *tok, int32_t n_done, int32_t seq,
                       gy_prefix_cursor *c) {
    kv_prefix *x = kv->prefix;
    if (!x || c->node == PREFIX_NONE || n_done / GY_KV_BLOCK_LEN <= c->n_row) return;
    GY_CHECK(kv_seq_is_live(kv, seq) && c->n_row >= 0 && c->node >= 0 && (c->n_row == 0 || c->node < x->n_max));
    if (c->n_row > 0 && x->row[c->node].stamp != c->stamp) {
        c->node = PREFIX_NONE;
        return;
    }
    int32_t node = c->n_row > 0 ? c->node : gy_prefix_find_space(x, s);
    if (node == PREFIX_NONE) node = space_new(x, s);
    for (; (c->n_row + 1) <= n_done / GY_KV_BLOCK_LEN; c->n_row++) {
        const int32_t *at = tok + (int64_t)c->n_row * GY_KV_BLOCK_LEN;
        int32_t r = gy_prefix_find_row(x, node, at);
        row_check(x, seq, c->n_row);
        node = r != PREFIX_NONE ? r : row_publish(x, node, at, seq, c->n_row);
    }
    c->node = node;
    c->stamp = x->row[node].stamp;
}
