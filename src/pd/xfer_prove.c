/* A lane between two GPUs is proved when a peer is imported: that its memory is reached and no other's, then copies of
 * known words are timed, read back and looked at. UCX falls back to other lanes in silence, a hundred times slower; it
 * decides when a peer is met first. And what is mapped may be a dead process's (xfer_ucx.c), which takes all that is
 * put there and gives it back: so each process keeps a tag that follows from its epoch, and that is read first.
 *
 * The peer takes no part: each process has some memory for others to write to, in slices, so that two writers rarely
 * meet; words are the writer's own, and who met somebody tries again. Knows no transport.
 *
 * Ends of other ops that are found meanwhile are kept for the next poll: no on_done runs in here.
 */
#include "pd/xfer_int.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

enum {
    SLICE = 8 << 20,
    N_SLICE = 8,
    MINE = N_SLICE * SLICE, /* from here nobody else writes: what is sent, then what came back */
    TAG = MINE + 2 * SLICE, /* never written again */
    TAG_BYTES = 4096,
    SCRATCH = TAG + TAG_BYTES,
    N_PUT = 8,  /* of one op, all to the same place */
    N_TIME = 5, /* ops; the fastest counts: another's traffic is no fault of the lane */
    N_TRY = 4,
    WAIT_MS = 5000
};

static uint64_t word_at(uint64_t key, size_t i) {
    uint64_t w = (i + 1) * 0x9e3779b97f4a7c15u ^ key;
    return w ^ w >> 29;
}

static void make_tag(uint64_t epoch, uint64_t out[TAG_BYTES / 8]) {
    for (size_t i = 0; i < TAG_BYTES / 8; i++) out[i] = word_at(epoch * 0xd1342543de82ef95u, i);
}

/* A GPU's memory is proved however slow it may be. */
static int is_wanted(const gy_xfer *x) {
    return x->o.device && x->ops->fetch && (x->o.least_gbs > 0 || x->o.device->kind == GY_DEVICE_CUDA);
}

gy_status gy_xfer_prove_open(gy_xfer *x, gy_err *err) {
    const gy_device *d = x->o.device;
    uint64_t tag[TAG_BYTES / 8];
    int32_t region;
    if (!is_wanted(x)) return GY_OK;
    GY_TRY(gy_xfer_bind(x, err));
    x->scratch = d->alloc(d->arg, SCRATCH);
    if (!x->scratch)
        return gy_err_set(err, GY_E_NOMEM,
                          "transfer: GPU %d has no %d MiB to prove lanes with; leave more with --kv-fraction or "
                          "--kv-bytes",
                          d->ordinal, SCRATCH >> 20);
    make_tag(x->o.epoch, tag);
    GY_TRY(d->copy(d->arg, (char *)x->scratch + TAG, tag, sizeof tag, err));
    return gy_xfer_region_map(x, x->scratch, SCRATCH, err, &region);
}

void gy_xfer_prove_close(gy_xfer *x) {
    if (x->scratch) x->o.device->free(x->o.device->arg, x->scratch);
    x->scratch = NULL;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static int32_t n_put(const gy_xfer *x) {
    return x->o.limits.max_desc < N_PUT ? x->o.limits.max_desc : N_PUT;
}

static size_t put_bytes(const gy_xfer *x) {
    size_t n = x->o.limits.inflight_bytes / N_PUT & ~(size_t)4095;
    return n < SLICE ? n : SLICE;
}

static int32_t scratch_region(const gy_xfer *x) {
    return x->n_region - 1;
}

static size_t slice_of(const gy_xfer *x) {
    return (size_t)(x->o.epoch % N_SLICE) * SLICE;
}

static gy_status write_words(gy_xfer *x, uint64_t *host, uint64_t key, gy_err *err) {
    size_t bytes = put_bytes(x);
    for (size_t i = 0; i < bytes / sizeof *host; i++) host[i] = word_at(key, i);
    return x->o.device->copy(x->o.device->arg, (char *)x->scratch + MINE, host, bytes, err);
}

static gy_status fetch(gy_xfer_peer *p, size_t off, size_t bytes, void *host, gy_err *err) {
    gy_xfer *x = p->x;
    int32_t r = scratch_region(x);
    gy_xfer_desc d = {r, r, MINE + SLICE, off, bytes};
    GY_TRY(x->ops->fetch(p, &d, err));
    return x->o.device->copy(x->o.device->arg, host, (char *)x->scratch + MINE + SLICE, bytes, err);
}

static gy_status find_tag(gy_xfer_peer *p, gy_err *err) {
    uint64_t want[TAG_BYTES / 8], got[TAG_BYTES / 8];
    make_tag(p->epoch, want);
    GY_TRY(fetch(p, TAG, sizeof got, got, err));
    if (!memcmp(want, got, sizeof got)) return GY_OK;
    return gy_err_set(
        err, GY_E_PEER,
        "transfer: the GPU memory that is reached is not the new peer's: that of a lost one is still mapped "
        "in its place; start this worker again");
}

/* GY_AGAIN: they are others. */
static gy_status find_words(gy_xfer_peer *p, uint64_t *host, uint64_t key, gy_err *err) {
    size_t bytes = put_bytes(p->x);
    GY_TRY(fetch(p, slice_of(p->x), bytes, host, err));
    for (size_t i = 0; i < bytes / sizeof *host; i++)
        if (host[i] != word_at(key, i)) return GY_AGAIN;
    return GY_OK;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static int is_under_way(const gy_xfer_peer *p, const gy_xfer_op *op) {
    for (const gy_xfer_op *o = p->wire; o; o = o->next)
        if (o == op) return 1;
    return 0;
}

static void take_out(gy_xfer *x, const gy_xfer_op *op) {
    for (gy_xfer_op **at = &x->done; *at; at = &(*at)->next) {
        if (*at != op) continue;
        *at = op->next;
        break;
    }
    x->done_tail = &x->done;
    while (*x->done_tail) x->done_tail = &(*x->done_tail)->next;
}

/* One that is late leaves the peer's list here; the transport forgets it with the peer, which is dropped for it. */
static gy_status wait_for(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err) {
    int64_t until = gy_clock_ns() + (int64_t)WAIT_MS * 1000000;
    while (is_under_way(p, op) && gy_clock_ns() < until) p->x->ops->progress(p->x);
    int is_late = is_under_way(p, op);
    if (is_late) gy_xfer_op_done(op, GY_E_TIMEOUT);
    take_out(p->x, op);
    if (is_late)
        return gy_err_set(err, GY_E_TIMEOUT, "transfer: a copy to a new peer over %s was not done in %d s",
                          p->x->ops->lanes(p), WAIT_MS / 1000);
    return op->status < 0 ? gy_err_set(err, op->status, "transfer: a copy to a new peer failed") : GY_OK;
}

static gy_status time_puts(gy_xfer_peer *p, gy_err *err) {
    gy_xfer *x = p->x;
    gy_xfer_desc d[N_PUT];
    int32_t r = scratch_region(x);
    gy_xfer_op op = {.desc = d, .n_desc = n_put(x)};
    gy_status st;
    int64_t until = gy_clock_ns() + (int64_t)WAIT_MS * 1000000;
    for (int i = 0; i < N_PUT; i++) d[i] = (gy_xfer_desc){r, r, MINE, slice_of(x), put_bytes(x)};
    while ((st = gy_xfer_post_own(p, &op, err)) == GY_AGAIN && gy_clock_ns() < until) x->ops->progress(x);
    if (st == GY_AGAIN)
        return gy_err_set(err, GY_E_TIMEOUT, "transfer: no room for a copy to a new peer in %d s", WAIT_MS / 1000);
    if (st < 0) return st;
    GY_TRY(wait_for(p, &op, err));
    double gbs = (double)op.bytes / (double)(op.done_ns - op.post_ns);
    if (gbs > p->gbs) p->gbs = gbs;
    return GY_OK;
}

/* ---- the proof --------------------------------------------------------------------------------------------------- */

static gy_status prove_once(gy_xfer_peer *p, uint64_t *host, uint64_t key, gy_err *err) {
    GY_TRY(write_words(p->x, host, key, err));
    for (int i = 0; i < N_TIME; i++) GY_TRY(time_puts(p, err));
    return find_words(p, host, key, err);
}

static gy_status judge(const gy_xfer_peer *p, gy_status st, const char *lanes, gy_err *err) {
    const gy_xfer *x = p->x;
    if (st < 0) return st;
    if (st == GY_AGAIN)
        return gy_err_set(err, GY_E_PEER, "transfer: other bytes arrived at a new peer than were sent, over %s", lanes);
    if (p->gbs >= x->o.least_gbs) return GY_OK;
    return gy_err_set(
        err, GY_E_UNSUPPORTED,
        "transfer: %.2f GB/s from GPU %d to a new peer over %s, expected %.0f; look for NVLink between the "
        "two (nvidia-smi topo -m) and for a UCX with CUDA, or allow it with --transport-min-share",
        p->gbs, x->o.device->ordinal, lanes, x->o.least_gbs);
}

static int can_prove(const gy_xfer_peer *p) {
    const gy_xfer *x = p->x;
    return x->scratch && p->is_device[scratch_region(x)] && p->bytes[scratch_region(x)] == SCRATCH && put_bytes(x);
}

gy_status gy_xfer_prove(gy_xfer_peer *p, gy_err *err) {
    gy_status st = GY_AGAIN;
    if (!can_prove(p)) return GY_OK;
    GY_TRY(find_tag(p, err));
    uint64_t *host = gy_mem_alloc(GY_MEM_PD, SLICE, 1);
    if (!host) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory to prove a lane with");
    for (int i = 0; i < N_TRY && st == GY_AGAIN; i++)
        st = prove_once(p, host, p->x->o.epoch * 0xd1342543de82ef95u + (uint64_t)gy_clock_ns(), err);
    gy_mem_free(host);
    return judge(p, st, p->x->ops->lanes(p), err);
}
