/* Which bytes: from block tables on two sides to a short list of copies. Pure.
 *
 * A plan is a list of planes, each a range of tokens [from, to) of one plane of one group with the block tables of both
 * sides. Positions are absolute: the two sides may hold different prefixes (vllm issue 48633 C3). Block memory is
 * [layer][K|V][16 tokens] rows (ops.h), so a whole block is one run of block_bytes; part of a block is
 * 2 * n_layer runs of part of 16 tokens. Neighbours that are contiguous on both sides merge, across blocks and planes.
 *
 * The walk is a cursor, so that what is ready can be cut when it is posted, not when it is queued: each op takes up to
 * limits.chunk_bytes and max_desc of what is ready now. Bytes of the walk, in order, do not depend on how it is cut.
 *
 * Ragged tails: `round_tail` sends whole blocks where the destination block is owned by this transfer alone (its valid
 * length stays what the messages say), 1 descriptor instead of 2 * n_layer.
 */
#ifndef GY_PD_SEGS_H
#define GY_PD_SEGS_H

#include "base/status.h"
#include "pd/xfer.h"

typedef struct gy_seg_group { /* of the geometry both sides agreed on */
    int32_t src_region, dst_region;
    int32_t n_layer;
    size_t tok_bytes; /* of K of one token in one layer: gy_kv_row_bytes */
    int32_t n_block_src, n_block_dst;
} gy_seg_group;

typedef struct gy_seg_plane {
    const gy_seg_group *group;
    const int32_t *src, *dst; /* [ceil(to / 16)] block ids of the plane's log; entries before from / 16 are not read */
    int32_t from, to;         /* tokens; from == to: nothing */
} gy_seg_plane;

typedef struct gy_seg_raw { /* further bytes behind the planes: the hidden row */
    int32_t src_region, dst_region;
    size_t src_off, dst_off, bytes;
} gy_seg_raw;

typedef struct gy_seg_cursor {  /* plain data; a zeroed one stands at the beginning */
    int32_t plane, block, part; /* part: run inside a partial block */
    size_t done;                /* bytes of the current run that were cut off before */
} gy_seg_cursor;

typedef struct gy_seg_plan {
    const gy_seg_plane *plane; /* [n_plane] in the order in which they become ready */
    int32_t n_plane;
    const gy_seg_raw *raw; /* [n_raw] */
    int32_t n_raw;
    int round_tail;
} gy_seg_plan;

/* Block ids inside their pools, ranges in order. */
gy_status gy_seg_check(const gy_seg_plan *p, gy_err *err);
size_t gy_seg_bytes(const gy_seg_plan *p); /* of the whole plan (with round_tail: what will really move) */
/* The next op's descriptors into desc[max_desc], merged, at most chunk_bytes together; returns how many, 0 at the end.
 * n_ready: planes 0..n_ready-1 may be read now (raw: when n_ready == n_plane + 1). */
int32_t gy_seg_next(const gy_seg_plan *p, int32_t n_ready, const gy_xfer_limits *l, gy_seg_cursor *c,
                    gy_xfer_desc *desc);

#endif
