/* The walk over planes as a generator of runs: gy_seg_cursor names a run, `run_at` says which bytes it is, `advance`
 * goes to the next one. Everything else (sizes, cuts, merging) is built on these two.
 */
#include "pd/segs.h"

enum { BLOCK = 16 }; /* tokens of a block (kv.h) */

static size_t half_bytes(const gy_seg_group *g) { /* K or V of one layer of a block */
    return BLOCK * g->tok_bytes;
}

static size_t block_bytes(const gy_seg_group *g) {
    return (size_t)g->n_layer * 2 * half_bytes(g);
}

/* Tokens [*lo, *hi) of the block that the cursor stands in; whole: they are sent as one run. */
typedef struct span {
    int32_t lo, hi;
    int whole;
} span;

static span span_of(const gy_seg_plan *p, const gy_seg_plane *pl, int32_t block) {
    span s = {.hi = BLOCK};
    int32_t first = block * BLOCK;
    if (pl->from > first) s.lo = pl->from - first;
    if (pl->to < first + BLOCK) s.hi = pl->to - first;
    s.whole = s.lo == 0 && (s.hi == BLOCK || p->round_tail);
    return s;
}

static int32_t n_item(const gy_seg_plan *p) {
    return p->n_plane + p->n_raw;
}

/* A cursor may stand at a plane without tokens, or at the block that it enters the plane by: block 0 means the first
 * one that the range touches. */
static void settle(const gy_seg_plan *p, gy_seg_cursor *c) {
    while (c->plane < p->n_plane) {
        const gy_seg_plane *pl = &p->plane[c->plane];
        if (c->block < pl->from / BLOCK) c->block = pl->from / BLOCK;
        if (pl->from < pl->to && c->block * BLOCK < pl->to) return;
        *c = (gy_seg_cursor){.plane = c->plane + 1};
    }
    while (c->plane < n_item(p) && p->raw[c->plane - p->n_plane].bytes == 0) c->plane++;
}

static gy_xfer_desc plane_run(const gy_seg_plan *p, const gy_seg_cursor *c) {
    const gy_seg_plane *pl = &p->plane[c->plane];
    const gy_seg_group *g = pl->group;
    span s = span_of(p, pl, c->block);
    size_t inside = s.whole ? 0 : (size_t)c->part * half_bytes(g) + (size_t)s.lo * g->tok_bytes;
    return (gy_xfer_desc){.src_region = g->src_region,
                          .dst_region = g->dst_region,
                          .src_off = (size_t)pl->src[c->block] * block_bytes(g) + inside,
                          .dst_off = (size_t)pl->dst[c->block] * block_bytes(g) + inside,
                          .bytes = s.whole ? block_bytes(g) : (size_t)(s.hi - s.lo) * g->tok_bytes};
}

/* What is left of the cursor's run; the cursor is settled and not at the end. */
static gy_xfer_desc run_at(const gy_seg_plan *p, const gy_seg_cursor *c) {
    gy_xfer_desc d;
    if (c->plane < p->n_plane) {
        d = plane_run(p, c);
    } else {
        const gy_seg_raw *r = &p->raw[c->plane - p->n_plane];
        d = (gy_xfer_desc){.src_region = r->src_region,
                           .dst_region = r->dst_region,
                           .src_off = r->src_off,
                           .dst_off = r->dst_off,
                           .bytes = r->bytes};
    }
    d.src_off += c->done;
    d.dst_off += c->done;
    d.bytes -= c->done;
    return d;
}

static void advance(const gy_seg_plan *p, gy_seg_cursor *c) {
    c->done = 0;
    if (c->plane >= p->n_plane) {
        c->plane++;
        return;
    }
    const gy_seg_plane *pl = &p->plane[c->plane];
    span s = span_of(p, pl, c->block);
    if (!s.whole && ++c->part < 2 * pl->group->n_layer) return;
    c->part = 0;
    c->block++;
}

/* ---- the public part --------------------------------------------------------------------------------------------- */

static gy_status check_ids(const int32_t *ids, const gy_seg_plane *pl, int32_t n_block, const char *side, gy_err *err) {
    for (int32_t b = pl->from / BLOCK; b * BLOCK < pl->to; b++)
        if (ids[b] < 0 || ids[b] >= n_block)
            return gy_err_set(err, GY_E_ARG, "%s block table[%d]: found block %d, expected 0 to %d", side, b, ids[b],
                              n_block - 1);
    return GY_OK;
}

gy_status gy_seg_check(const gy_seg_plan *p, gy_err *err) {
    for (int32_t i = 0; i < p->n_plane; i++) {
        const gy_seg_plane *pl = &p->plane[i];
        if (pl->from < 0 || pl->from > pl->to)
            return gy_err_set(err, GY_E_ARG, "plane %d: found tokens %d to %d, expected an ordered range", i, pl->from,
                              pl->to);
        if (pl->from == pl->to) continue;
        GY_TRY(check_ids(pl->src, pl, pl->group->n_block_src, "source", err));
        GY_TRY(check_ids(pl->dst, pl, pl->group->n_block_dst, "destination", err));
    }
    return GY_OK;
}

size_t gy_seg_bytes(const gy_seg_plan *p) {
    size_t sum = 0;
    gy_seg_cursor c = {0};
    for (settle(p, &c); c.plane < n_item(p); settle(p, &c)) {
        sum += run_at(p, &c).bytes;
        advance(p, &c);
    }
    return sum;
}

static int continues(const gy_xfer_desc *a, const gy_xfer_desc *b) {
    return a->src_region == b->src_region && a->dst_region == b->dst_region && a->src_off + a->bytes == b->src_off &&
           a->dst_off + a->bytes == b->dst_off;
}

/* How many items may be read when planes 0..n_ready-1 are final. */
static int32_t n_open(const gy_seg_plan *p, int32_t n_ready) {
    return n_ready > p->n_plane ? n_item(p) : n_ready;
}

int32_t gy_seg_next(const gy_seg_plan *p, int32_t n_ready, const gy_xfer_limits *l, gy_seg_cursor *c,
                    gy_xfer_desc *desc) {
    int32_t n = 0, end = n_open(p, n_ready);
    size_t room = l->chunk_bytes;
    for (settle(p, c); c->plane < end && room; settle(p, c)) {
        gy_xfer_desc run = run_at(p, c);
        int merges = n && continues(&desc[n - 1], &run);
        if (!merges && n == l->max_desc) break;
        size_t left = run.bytes, take = left < room ? left : room;
        if (merges) {
            desc[n - 1].bytes += take;
        } else {
            run.bytes = take;
            desc[n++] = run;
        }
        room -= take;
        c->done += take;
        if (take == left) advance(p, c);
    }
    return n;
}
