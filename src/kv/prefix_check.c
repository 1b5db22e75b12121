/* The prefix cache's part of gy_kv_is_valid: recomputes the tree's counts, pins and order from the rows, the pools and
 * each other. Trusts no index before it has checked it; allocates nothing. Runs after the pools were found valid, and
 * goes on with what that left in their scratch arrays (how many logs hold a block, and where).
 */
#include "kv/prefix_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct tree_check {
    const kv_prefix *x;
    int32_t *rank;    /* [n_max] 1, 2, ... from the oldest on; 0 = on no list */
    int32_t *height;  /* [n_max] rows above, 0 right below a space */
    int32_t *n_child; /* [2 * n_max] rows and spaces */
    char *buf;
    size_t cap;
} tree_check;

/* Always 0, so that a rule reads `return bad(...)`. */
static int __attribute__((format(printf, 2, 3))) bad(const tree_check *c, const char *fmt, ...) {
    static const char who[] = "kv prefix: ";
    va_list ap;
    if (c->cap < sizeof who) return 0;
    memcpy(c->buf, who, sizeof who);
    va_start(ap, fmt);
    vsnprintf(c->buf + sizeof who - 1, c->cap - sizeof who + 1, fmt, ap);
    va_end(ap);
    return 0;
}

static int in_range(const tree_check *c, int32_t i) {
    return i >= 0 && i < c->x->n_max;
}

/* Free rows are on the free list; the others are counted. */
static int free_rows_valid(const tree_check *c) {
    const kv_prefix *x = c->x;
    int32_t n_free = 0, n_live = 0;
    for (int32_t r = 0; r < x->n_max; r++) n_live += x->row[r].stamp != 0;
    for (int32_t r = x->free_row; r != PREFIX_NONE; r = x->row[r].next) {
        if (!in_range(c, r) || x->row[r].stamp) return bad(c, "row %d on the free list", r);
        if (++n_free > x->n_max) return bad(c, "the free list of rows is a ring");
    }
    if (n_free + n_live != x->n_max) return bad(c, "%d free + %d live rows are not %d", n_free, n_live, x->n_max);
    if (n_live != x->stats.n_row) return bad(c, "%d rows, counted as %d", n_live, x->stats.n_row);
    return 1;
}

/* Gives ranks. n: rows ranked so far. */
static int list_valid(const tree_check *c, const prefix_list *l, int busy, int32_t *n) {
    const kv_prefix *x = c->x;
    int32_t older = PREFIX_NONE;
    for (int32_t r = l->oldest; r != PREFIX_NONE; r = x->row[r].younger) {
        if (!in_range(c, r) || !x->row[r].stamp) return bad(c, "row %d on a list", r);
        if (c->rank[r]) return bad(c, "row %d is on the lists twice", r);
        if ((x->row[r].pin > 0) != busy) return bad(c, "row %d with %d pins on list %d", r, x->row[r].pin, busy);
        if (x->row[r].older != older) return bad(c, "row %d: older is %d, not %d", r, x->row[r].older, older);
        c->rank[r] = ++*n;
        older = r;
    }
    if (l->youngest != older) return bad(c, "youngest of list %d is %d, not %d", busy, l->youngest, older);
    return 1;
}

static int lists_valid(const tree_check *c) {
    int32_t n = 0;
    memset(c->rank, 0, (size_t)c->x->n_max * sizeof *c->rank);
    if (!list_valid(c, &c->x->idle, 0, &n) || !list_valid(c, &c->x->busy, 1, &n)) return 0;
    if (n != c->x->stats.n_row) return bad(c, "%d rows on the lists, not %d", n, c->x->stats.n_row);
    return 1;
}

static int parent_valid(const tree_check *c, int32_t r) {
    const kv_prefix *x = c->x;
    int32_t parent = x->row[r].parent;
    if (parent < 0 || parent >= 2 * x->n_max) return bad(c, "row %d: parent %d", r, parent);
    if (!prefix_is_row(x, parent)) {
        if (!x->space[parent - x->n_max].n_row) return bad(c, "row %d below free space %d", r, parent - x->n_max);
        return 1;
    }
    if (!x->row[parent].stamp) return bad(c, "row %d below free row %d", r, parent);
    if (c->rank[r] >= c->rank[parent]) return bad(c, "row %d is younger than its parent %d", r, parent);
    return 1;
}

/* The chains are finite and hold each live row and space once, in the bucket it belongs to. */
static int chains_valid(const tree_check *c) {
    const kv_prefix *x = c->x;
    int32_t n_row = 0, n_space = 0, n_live = 0;
    for (uint64_t b = 0; b < x->n_bucket; b++) {
        for (int32_t r = x->bucket[b]; r != PREFIX_NONE; r = x->row[r].next) {
            if (!in_range(c, r) || !x->row[r].stamp) return bad(c, "row %d in a bucket", r);
            if (gy_prefix_row_bucket(x, x->row[r].parent, x->row[r].tok) != b || ++n_row > x->stats.n_row)
                return bad(c, "row %d in the wrong bucket", r);
        }
        for (int32_t i = x->sbucket[b]; i != PREFIX_NONE; i = x->space[i].next) {
            if (!in_range(c, i) || !x->space[i].n_row) return bad(c, "space %d in a bucket", i);
            if (x->space[i].n_salt < 0 || x->space[i].n_salt > GY_PREFIX_MAX_SALT)
                return bad(c, "space %d: salt of %d bytes", i, x->space[i].n_salt);
            if (gy_prefix_space_bucket(x, &x->space[i]) != b || ++n_space > x->n_max)
                return bad(c, "space %d in the wrong bucket", i);
        }
    }
    for (int32_t i = 0; i < x->n_max; i++) n_live += x->space[i].n_row != 0;
    if (n_row != x->stats.n_row) return bad(c, "%d rows in buckets, not %d", n_row, x->stats.n_row);
    if (n_space != n_live) return bad(c, "%d spaces in buckets, not %d", n_space, n_live);
    return 1;
}

static int spaces_valid(const tree_check *c) {
    const kv_prefix *x = c->x;
    int32_t n_free = 0, n_live = 0;
    for (int32_t i = 0; i < x->n_max; i++) {
        const prefix_space *s = &x->space[i];
        if (!s->n_row) continue;
        gy_prefix_space key = {s->salt, s->n_salt, s->latent_noise, s->latent_seed};
        if (gy_prefix_find_space(x, &key) != x->n_max + i) return bad(c, "space %d is not found", i);
        n_live++;
    }
    for (int32_t i = x->free_space; i != PREFIX_NONE; i = x->space[i].next)
        if (!in_range(c, i) || x->space[i].n_row || ++n_free > x->n_max) return bad(c, "space %d on the free list", i);
    if (n_free + n_live != x->n_max) return bad(c, "%d free + %d live spaces are not %d", n_free, n_live, x->n_max);
    return 1;
}

/* One block of a row: it says so, and it has one place, in the row and in the logs of sequences that hold it. */
static int row_block_valid(const tree_check *c, const kv_pool *p, int32_t r, int32_t plane, int32_t block) {
    if (block < 0 || block >= p->n_block || p->row[block] != r)
        return bad(c, "row %d plane %d: block %d is not its own", r, plane, block);
    int64_t place = (int64_t)plane * p->log_blocks + c->height[r];
    if (p->scratch[block] > 0 && p->place[block] != place)
        return bad(c, "row %d plane %d: block %d is at another place too", r, plane, block);
    p->scratch[block] = 1;
    p->place[block] = place;
    return 1;
}

static int row_valid(const tree_check *c, int32_t r) {
    const kv_prefix *x = c->x;
    const kv_pool *p = &x->kv->pool[GY_KV_CORE], *q = &x->kv->pool[GY_KV_BOUNDARY];
    if (gy_prefix_find_row(x, x->row[r].parent, x->row[r].tok) != r) return bad(c, "row %d is not found", r);
    for (int32_t j = 0; j < x->n_own; j++)
        if (!row_block_valid(c, p, r, j, x->core[(int64_t)r * x->n_own + j])) return 0;
    if (q->n_block) return row_block_valid(c, q, r, 0, x->boundary[r]);
    return x->boundary[r] == PREFIX_NONE || bad(c, "row %d: boundary block without that group", r);
}

/* From the youngest on: a parent's height is known before its children's. */
static int rows_valid(const tree_check *c) {
    const kv_prefix *x = c->x;
    memset(c->n_child, 0, 2 * (size_t)x->n_max * sizeof *c->n_child);
    for (int busy = 1; busy >= 0; busy--)
        for (int32_t r = (busy ? &x->busy : &x->idle)->youngest; r != PREFIX_NONE; r = x->row[r].older) {
            int32_t parent = x->row[r].parent;
            c->height[r] = prefix_is_row(x, parent) ? c->height[parent] + 1 : 0;
            c->n_child[parent]++;
            if (!row_valid(c, r)) return 0;
        }
    for (int32_t r = 0; r < x->n_max; r++)
        if (x->row[r].stamp && c->n_child[r] != x->row[r].n_child)
            return bad(c, "row %d: %d children, counted as %d", r, c->n_child[r], x->row[r].n_child);
    for (int32_t i = 0; i < x->n_max; i++)
        if (c->n_child[x->n_max + i] != x->space[i].n_row)
            return bad(c, "space %d: %d rows, counted as %d", i, c->n_child[x->n_max + i], x->space[i].n_row);
    return 1;
}

/* rank is used up: it counts the pins now. */
static int pins_valid(const tree_check *c) {
    const kv_prefix *x = c->x;
    const kv_pool *p = &x->kv->pool[GY_KV_CORE], *q = &x->kv->pool[GY_KV_BOUNDARY];
    memset(c->rank, 0, (size_t)x->n_max * sizeof *c->rank);
    for (int32_t r = 0; r < x->n_max; r++) {
        if (!x->row[r].stamp) continue;
        for (int32_t j = 0; j < x->n_own; j++) c->rank[r] += p->refs[x->core[(int64_t)r * x->n_own + j]] > 1;
        if (q->n_block) c->rank[r] += q->refs[x->boundary[r]] > 1;
        if (x->row[r].pin && prefix_is_row(x, x->row[r].parent)) c->rank[x->row[r].parent]++;
    }
    for (int32_t r = 0; r < x->n_max; r++)
        if (x->row[r].stamp && c->rank[r] != x->row[r].pin)
            return bad(c, "row %d: %d pins, counted as %d", r, c->rank[r], x->row[r].pin);
    return 1;
}

/* No block says that it is cached but those of the rows. */
static int marks_valid(const tree_check *c) {
    const kv_prefix *x = c->x;
    for (int g = 0; g < GY_KV_GROUPS; g++) {
        const kv_pool *p = &x->kv->pool[g];
        int64_t n = 0, due = (int64_t)x->stats.n_row * (g == GY_KV_CORE ? x->n_own : 1);
        for (int32_t b = 0; b < p->n_block; b++) n += p->row[b] != PREFIX_NONE;
        if (p->n_block && n != due)
            return bad(c, "%lld blocks of group %d say that they are cached, not %lld", (long long)n, g,
                       (long long)due);
    }
    return 1;
}

int gy_prefix_is_valid(const kv_prefix *x, char *buf, size_t cap) {
    tree_check c = {.x = x, .rank = x->scratch, .buf = buf, .cap = cap};
    c.height = x->scratch + x->n_max;
    c.n_child = x->scratch + 2 * (int64_t)x->n_max;
    if (!gy_carve_check(&x->mem)) return bad(&c, "a red zone was written over");
    if (!free_rows_valid(&c) || !lists_valid(&c)) return 0;
    for (int32_t r = 0; r < x->n_max; r++)
        if (x->row[r].stamp && !parent_valid(&c, r)) return 0;
    return chains_valid(&c) && spaces_valid(&c) && rows_valid(&c) && pins_valid(&c) && marks_valid(&c);
}
