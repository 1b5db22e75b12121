/* How attention is shared out. Rows that follow one another and read the same map row (a piece of a prompt) form a
 * block, which reads each position once for all of them. The blocks' KV heads, in order, are cut into one piece for
 * each member, of about equal cost. A border falls between two heads. But a row alone that is a large part of a
 * member's share is cut chunk by chunk, all heads of a chunk together, so that each member reads memory in long runs:
 * its chunks are stored and joined in order afterwards, which is what a head in one piece does too (attn.inc). It
 * computes no float itself, and no border changes a bit.
 */
#include "ops/cpu/cpu_int.h"

#include "base/status.h"

enum {
    ATTN_HEAD_BYTES = 256 << 10,  /* K and V of a tile that a walk goes through: with the next one, half of an L2 */
    ATTN_PART_FLOATS = 256 << 10, /* for stored chunks, each member */
    ATTN_CUT_SHARE = 16,          /* a row is cut where it is more than this part of a member's share */
};

/* Where a member's piece begins. */
typedef struct attn_border {
    int64_t row0, head;
    int cut;       /* inside a row whose chunks are stored: before KV head `head` of chunk `chunk` */
    int64_t chunk; /* else 0 */
    float *part;
} attn_border;

typedef struct attn_task {
    const cpu_backend *c;
    const gy_attn_args *a;
    int64_t group, block_rows; /* query heads of a KV head; most rows of a block */
    int64_t share;             /* of the cost, a member's */
    attn_border *border;       /* [n_member + 1] */
} attn_task;

/* ---- scratch: borders, stored chunks, then one piece for each member --------------------------------------------- */

static int64_t border_floats(int64_t n_member) {
    return ((n_member + 1) * (int64_t)sizeof(attn_border) + 63) / 64 * 16;
}

/* Queries, a tile's K, V, sums and weights, then q and two states for each query; one row: its sums and weights. */
static int64_t walk_floats(int64_t d_pad, int64_t n_query) {
    return (2 * GY_CPU_ATTN_TILE + GY_CPU_ATTN_ROWS + 4 * n_query) * d_pad +
           (GY_CPU_ATTN_ROWS + n_query) * GY_CPU_ATTN_TILE + n_query * GY_CPU_ATTN_QUERY_FLOATS;
}

/* One row of one KV head fits whatever the shape: its group * head_dim <= max_k, because the next linear reads it, and
 * walk_floats along that curve is largest at one of its ends. */
int64_t gy_cpu_attn_floats(cpu_backend *c) {
    int64_t n = gy_team_size(c->team), usual = walk_floats(256, GY_CPU_ATTN_QUERIES);
    int64_t ends = walk_floats(gy_cpu_pad(c->kern, c->max_k), 1) + walk_floats(gy_cpu_pad(c->kern, 1), c->max_k);
    c->attn_floats = ((usual > ends ? usual : ends) + 15) / 16 * 16;
    return border_floats(n) + n * (ATTN_PART_FLOATS + c->attn_floats);
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

typedef struct attn_block {
    int64_t row0, n_row, to; /* to: positions that its longest row sees */
    int64_t cost;            /* of one KV head; the unit is a query by a position */
} attn_block;

/* The block that begins at row0 < n_row. Packing a position costs about as much as two queries. */
static attn_block block_at(const attn_task *t, int64_t row0) {
    const gy_rows *rows = &t->a->rows;
    attn_block b = {.row0 = row0};
    int64_t sum = 0;
    for (int64_t r = row0; r < rows->n_row && b.n_row < t->block_rows; r++, b.n_row++) {
        if (rows->map_off[r] != rows->map_off[row0]) break;
        sum += rows->pos[r] + 1;
        b.to = rows->pos[r] + 1 > b.to ? rows->pos[r] + 1 : b.to;
    }
    b.cost = sum * t->group + 2 * b.to;
    return b;
}

/* So many rows that packing is paid for, and so few that each member finds some heads. */
static int64_t block_rows(const cpu_backend *c, const gy_attn_args *a) {
    int64_t group = a->n_head / a->kv->n_head_kv, n = GY_CPU_ATTN_QUERIES / group, n_member = gy_team_size(c->team);
    int64_t d_pad = gy_cpu_pad(c->kern, a->kv->head_dim);
    while (n > 8 && (a->rows.n_row + n - 1) / n * a->kv->n_head_kv < 4 * n_member) n /= 2;
    while (n > 1 && walk_floats(d_pad, n * group) > c->attn_floats) n--;
    return n > 1 ? n : 1;
}

static int64_t n_chunk_of(const attn_block *b) {
    return (b->to + GY_CPU_ATTN_CHUNK - 1) / GY_CPU_ATTN_CHUNK;
}

static int64_t n_head_kv_of(const attn_task *t) {
    return t->a->kv->n_head_kv;
}

/* The border `at` behind the beginning of the block's first head, at the nearest end of a head. */
static attn_border border_between(const attn_block *b, int64_t at) {
    return (attn_border){.row0 = b->row0, .head = (at + b->cost / 2) / b->cost};
}

/* The same in a row that is walked chunk by chunk, all KV heads of a chunk together. */
static attn_border border_inside(const attn_task *t, const attn_block *b, int64_t at) {
    int64_t n = n_head_kv_of(t), pos = at * b->to / (b->cost * n), chunk = pos / GY_CPU_ATTN_CHUNK;
    int64_t from = chunk * GY_CPU_ATTN_CHUNK;
    GY_CHECK(pos < b->to); /* a border lies before the end of its block */
    int64_t len = b->to - from < GY_CPU_ATTN_CHUNK ? b->to - from : GY_CPU_ATTN_CHUNK;
    int64_t head = ((pos - from) * n + len / 2) / len;
    return (attn_border){.row0 = b->row0, .cut = 1, .chunk = chunk + head / n, .head = head % n};
}

/* Where stored chunks may go. */
typedef struct attn_parts {
    float *at;
    int64_t left;
} attn_parts;

/* Border m, which lies in block b. A row is cut at all of its borders or at none, which share the place where its
 * chunks are stored; so borders stay in order. */
static void border_set(const attn_task *t, int64_t m, const attn_block *b, int64_t at, attn_parts *parts) {
    attn_border *s = &t->border[m];
    int64_t floats = n_chunk_of(b) * t->a->n_head * (gy_cpu_pad(t->c->kern, t->a->kv->head_dim) + 2);
    int again = m > 0 && s[-1].cut && s[-1].row0 == b->row0;
    int may = b->n_row == 1 && n_chunk_of(b) > 1 && at > 0 && floats <= parts->left &&
              b->cost * n_head_kv_of(t) * ATTN_CUT_SHARE > t->share;
    if (!again && !may) {
        *s = border_between(b, at);
        return;
    }
    *s = border_inside(t, b, at);
    s->part = again ? s[-1].part : parts->at;
    parts->at += again ? 0 : floats;
    parts->left -= again ? 0 : floats;
}

static void plan_make(attn_task *t, int64_t n_member, attn_parts parts) {
    int64_t n_head_kv = t->a->kv->n_head_kv, total = 0, before = 0, m = 0;
    attn_block b;
    for (int64_t r = 0; r < t->a->rows.n_row; r += b.n_row) {
        b = block_at(t, r);
        total += b.cost * n_head_kv;
    }
    t->share = total / n_member;
    for (int64_t r = 0; r < t->a->rows.n_row; r += b.n_row) {
        b = block_at(t, r);
        for (; m < n_member && total * m / n_member < before + b.cost * n_head_kv; m++)
            border_set(t, m, &b, total * m / n_member - before, &parts);
        before += b.cost * n_head_kv;
    }
    t->border[n_member] = (attn_border){.row0 = t->a->rows.n_row};
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

typedef struct attn_piece {
    const attn_task *t;
    attn_block b;
    float *scratch;
} attn_piece;

/* KV heads [lo, hi) over w's positions, as many at a time as scratch holds, and the L2 unless it is a row alone, which
 * is walked in memory's order. */
static void piece_heads(const attn_piece *p, gy_cpu_attn w, int64_t lo, int64_t hi) {
    const cpu_backend *c = p->t->c;
    const gy_kv_view *kv = p->t->a->kv;
    int64_t d_pad = gy_cpu_pad(c->kern, kv->head_dim), queries = p->b.n_row * p->t->group;
    int64_t tile_bytes = 2 * GY_CPU_ATTN_TILE * (int64_t)kv->head_dim * (int64_t)gy_dtype_bytes(kv->dtype);
    int in_order = p->b.n_row == 1 && d_pad == kv->head_dim;
    int64_t most = in_order ? hi - lo : ATTN_HEAD_BYTES / tile_bytes;
    while (most > 1 && (most * queries > GY_CPU_ATTN_QUERIES || walk_floats(d_pad, most * queries) > c->attn_floats))
        most--;
    w.a = p->t->a;
    w.row0 = p->b.row0;
    w.n_row = p->b.n_row;
    for (int64_t h = lo; h < hi; h += w.n_head) {
        w.head0 = h;
        w.n_head = most < 1 ? 1 : hi - h < most ? hi - h : most;
        c->kern->attn(c->be.act, &w, p->scratch);
    }
}

/* KV heads [lo, hi) of chunks [from, to) of a row that is cut. */
static void piece_chunks(const attn_piece *p, float *part, int64_t from, int64_t to, int64_t lo, int64_t hi) {
    gy_cpu_attn w = {.from = from * GY_CPU_ATTN_CHUNK, .to = to * GY_CPU_ATTN_CHUNK, .part = part};
    if (w.to > p->b.to) w.to = p->b.to;
    if (from < to) piece_heads(p, w, lo, hi);
}

/* A row that is cut, from lo (NULL: its beginning) to hi (NULL: its end). */
static void piece_cut(const attn_piece *p, const attn_border *lo, const attn_border *hi) {
    const attn_border first = {0}, last = {.chunk = n_chunk_of(&p->b)};
    float *part = lo && lo->cut ? lo->part : hi->part;
    const attn_border *a = lo ? lo : &first, *b = hi ? hi : &last;
    int64_t n = n_head_kv_of(p->t), from = a->chunk + (a->head > 0);
    if (a->chunk == b->chunk) {
        piece_chunks(p, part, a->chunk, a->chunk + 1, a->head, b->head);
        return;
    }
    if (a->head > 0) piece_chunks(p, part, a->chunk, from, a->head, n);
    piece_chunks(p, part, from, b->chunk, 0, n);
    if (b->head > 0) piece_chunks(p, part, b->chunk, b->chunk + 1, 0, b->head);
}

static float *member_scratch(const attn_task *t, int member, int n_member) {
    return t->c->scratch + t->c->linear_floats + border_floats(n_member) + n_member * (int64_t)ATTN_PART_FLOATS +
           member * t->c->attn_floats;
}

/* From border lo to border hi. */
static void attn_member(void *arg, int member, int n_member) {
    const attn_task *t = arg;
    const attn_border *lo = &t->border[member], *hi = lo + 1;
    attn_piece p = {.t = t, .scratch = member_scratch(t, member, n_member)};
    for (int64_t r = lo->row0; r < t->a->rows.n_row && r <= hi->row0; r += p.b.n_row) {
        const attn_border *a = r == lo->row0 ? lo : NULL, *b = r == hi->row0 ? hi : NULL;
        p.b = block_at(t, r);
        if ((a && a->cut) || (b && b->cut))
            piece_cut(&p, a, b);
        else
            piece_heads(&p, (gy_cpu_attn){.to = p.b.to}, a ? a->head : 0, b ? b->head : n_head_kv_of(t));
    }
}

/* Rows that were cut: each member joins some heads of each. */
static void join_member(void *arg, int member, int n_member) {
    const attn_task *t = arg;
    for (const attn_border *s = t->border; s < t->border + n_member; s++) {
        int64_t lo, hi;
        if (!s->cut || (s > t->border && s[-1].cut && s[-1].row0 == s->row0)) continue;
        gy_team_share(n_head_kv_of(t), 1, member, n_member, &lo, &hi);
        gy_cpu_attn w = {.a = t->a, .row0 = s->row0, .n_row = 1, .head0 = lo, .n_head = hi - lo, .part = s->part};
        w.to = block_at(t, s->row0).to;
        t->c->kern->attn_join(t->c->be.act, &w, member_scratch(t, member, n_member));
    }
}

void gy_cpu_attn_run(gy_backend *be, const gy_attn_args *a) {
    cpu_backend *c = cpu_of(be);
    int n_member = gy_team_size(c->team), cut = 0;
    float *scratch = c->scratch + c->linear_floats;
    attn_task t = {.c = c, .a = a, .group = a->n_head / a->kv->n_head_kv, .border = (attn_border *)(void *)scratch};
    GY_CHECK((int64_t)a->n_head * a->kv->head_dim <= c->max_k);
    if (a->rows.n_row == 0) return;
    t.block_rows = block_rows(c, a);
    plan_make(&t, n_member, (attn_parts){scratch + border_floats(n_member), n_member * (int64_t)ATTN_PART_FLOATS});
    gy_team_run(c->team, attn_member, &t);
    for (int m = 0; m < n_member; m++) cut |= t.border[m].cut;
    if (cut) gy_team_run(c->team, join_member, &t);
}
