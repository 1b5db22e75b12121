/* What all transports share: ranges are checked, the budget is kept, callbacks run in one place. */
#include "pd/xfer_int.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

static const gy_xfer_ops *const table[] = {
    [GY_XFER_LOOPBACK] = &gy_xfer_loopback, [GY_XFER_MOCK] = &gy_xfer_mock, [GY_XFER_UCX] = &gy_xfer_ucx};

gy_status gy_xfer_open(const gy_xfer_opts *o, gy_err *err, gy_xfer **out) {
    GY_TRY(gy_xfer_limits_check(&o->limits, err));
    gy_xfer *x = gy_mem_alloc(GY_MEM_PD, 1, sizeof *x);
    if (!x) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory");
    x->ops = table[o->kind];
    x->o = *o;
    x->done_tail = &x->done;
    gy_status st = gy_xfer_bind(x, err);
    if (st >= 0) st = x->ops->open(x, err);
    if (st < 0) {
        gy_xfer_close(x);
        return st;
    }
    *out = x;
    return GY_OK;
}

/* ---- regions and peers ------------------------------------------------------------------------------------------- */

gy_status gy_xfer_bind(gy_xfer *x, gy_err *err) {
    const gy_device *d = x->o.device;
    return d ? d->bind(d->arg, err) : GY_OK;
}

static gy_status check_room(const gy_xfer *x, size_t bytes, gy_err *err) {
    if (x->is_exported)
        return gy_err_set(err, GY_E_ARG, "transfer: a region after the export, expected all of them before");
    if (x->n_region == GY_XFER_MAX_REGION || bytes == 0)
        return gy_err_set(err, GY_E_LIMIT, "transfer: found region %d of %zu bytes, expected at most %d, none empty",
                          x->n_region, bytes, GY_XFER_MAX_REGION);
    return GY_OK;
}

gy_status gy_xfer_region_alloc(gy_xfer *x, size_t bytes, gy_err *err, int32_t *region_out, void **mem_out) {
    GY_TRY(check_room(x, bytes, err));
    gy_xfer_region r = {.bytes = bytes};
    GY_TRY(x->ops->region_alloc(x, bytes, err, &r));
    x->region[x->n_region] = r;
    *mem_out = r.mem;
    *region_out = x->n_region++;
    return GY_OK;
}

gy_status gy_xfer_region_map(gy_xfer *x, void *mem, size_t bytes, gy_err *err, int32_t *region_out) {
    GY_TRY(check_room(x, bytes, err));
    if (!x->o.device || !mem)
        return gy_err_set(err, GY_E_ARG, "transfer: memory of a device at %p, expected %s", mem,
                          x->o.device ? "an address" : "gy_xfer_opts to name the device");
    gy_xfer_region r = {.mem = mem, .bytes = bytes, .is_device = 1};
    GY_TRY(gy_xfer_bind(x, err));
    GY_TRY(x->ops->region_map(x, err, &r));
    x->region[x->n_region] = r;
    *region_out = x->n_region++;
    return GY_OK;
}

gy_status gy_xfer_export(gy_xfer *x, void *blob, size_t cap, size_t *len_out, gy_err *err) {
    if (!x->is_exported && !x->scratch) GY_TRY(gy_xfer_prove_open(x, err));
    GY_TRY(x->ops->export_blob(x, blob, cap, len_out, err));
    x->is_exported = 1;
    return GY_OK;
}

gy_status gy_xfer_import(gy_xfer *x, const void *blob, size_t len, gy_err *err, gy_xfer_peer **out) {
    GY_TRY(gy_xfer_bind(x, err));
    gy_xfer_peer *p = gy_mem_alloc(GY_MEM_PD, 1, sizeof *p);
    if (!p) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory for a peer");
    p->x = x;
    gy_status st = x->ops->import_blob(p, blob, len, err);
    if (st != GY_OK) {
        gy_mem_free(p);
        return st;
    }
    p->next = x->peers;
    x->peers = p;
    st = gy_xfer_prove(p, err);
    if (st < 0)
        gy_xfer_peer_drop(p);
    else
        *out = p;
    return st;
}

double gy_xfer_peer_gbs(const gy_xfer_peer *p) {
    return p->gbs;
}

size_t gy_xfer_peer_region_bytes(const gy_xfer_peer *p, int32_t region) {
    return region >= 0 && region < GY_XFER_MAX_REGION ? p->bytes[region] : 0;
}

const char *gy_xfer_lanes(gy_xfer_peer *p) {
    return p->x->ops->lanes(p);
}

static void unlink_wire(gy_xfer_op *op) {
    if (op->prev)
        op->prev->next = op->next;
    else
        op->peer->wire = op->next;
    if (op->next) op->next->prev = op->prev;
    op->prev = op->next = NULL;
}

void gy_xfer_peer_drop(gy_xfer_peer *p) {
    if (!p) return;
    gy_xfer *x = p->x;
    while (p->wire) gy_xfer_op_done(p->wire, GY_E_PEER);
    x->ops->drop(p);
    for (gy_xfer_op *op = x->done; op; op = op->next)
        if (op->peer == p) op->peer = NULL;
    for (gy_xfer_peer **at = &x->peers; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    gy_mem_free(p);
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static int inside(size_t off, size_t bytes, size_t size) {
    return off <= size && bytes <= size - off;
}

static gy_status check_desc(const gy_xfer_peer *p, const gy_xfer_desc *d, int32_t i, gy_err *err) {
    const gy_xfer *x = p->x;
    if (d->src_region < 0 || d->src_region >= x->n_region ||
        !inside(d->src_off, d->bytes, x->region[d->src_region].bytes))
        return gy_err_set(err, GY_E_ARG, "transfer: copy %d reads region %d at %zu, %zu bytes: outside of it", i,
                          d->src_region, d->src_off, d->bytes);
    if (!inside(d->dst_off, d->bytes, gy_xfer_peer_region_bytes(p, d->dst_region)))
        return gy_err_set(err, GY_E_ARG, "transfer: copy %d writes region %d at %zu, %zu bytes: outside of it", i,
                          d->dst_region, d->dst_off, d->bytes);
    if (x->region[d->src_region].is_device != p->is_device[d->dst_region])
        return gy_err_set(err, GY_E_ARG, "transfer: copy %d from region %d to region %d: one of them lies on a device",
                          i, d->src_region, d->dst_region);
    return GY_OK;
}

static gy_status check_op(const gy_xfer_peer *p, gy_xfer_op *op, gy_err *err) {
    const gy_xfer *x = p->x;
    size_t bytes = 0;
    if (op->n_note > GY_XFER_MAX_NOTE || op->n_desc > x->o.limits.max_desc)
        return gy_err_set(err, GY_E_LIMIT, "transfer: found %d copies and a note of %zu bytes, expected at most %d, %d",
                          op->n_desc, op->n_note, x->o.limits.max_desc, GY_XFER_MAX_NOTE);
    for (int32_t i = 0; i < op->n_desc; i++) {
        GY_TRY(check_desc(p, &op->desc[i], i, err));
        if (gy_size_add(bytes, op->desc[i].bytes, &bytes)) bytes = SIZE_MAX;
    }
    if (bytes > x->o.limits.inflight_bytes)
        return gy_err_set(err, GY_E_LIMIT, "transfer: found an op of %zu bytes, expected at most %zu (in flight)",
                          bytes, x->o.limits.inflight_bytes);
    op->bytes = bytes;
    return GY_OK;
}

static gy_status post(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err) {
    gy_xfer *x = p->x;
    GY_TRY(check_op(p, op, err));
    if (op->bytes > x->o.limits.inflight_bytes - x->stats.inflight_bytes) return GY_AGAIN;
    op->post_ns = gy_clock_ns();
    op->peer = p;
    op->prev = NULL;
    op->slot = NULL;
    gy_status st = x->ops->post(p, op, err);
    if (st != GY_OK) return st;
    op->next = p->wire;
    if (p->wire) p->wire->prev = op;
    p->wire = op;
    x->stats.inflight_bytes += op->bytes;
    if (op->is_own) return GY_OK;
    x->stats.n_desc += op->n_desc;
    x->stats.post_ns += gy_clock_ns() - op->post_ns;
    return GY_OK;
}

gy_status gy_xfer_post(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err) {
    op->is_own = 0;
    return post(p, op, err);
}

gy_status gy_xfer_post_own(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err) {
    op->is_own = 1;
    return post(p, op, err);
}

void gy_xfer_op_done(gy_xfer_op *op, gy_status st) {
    gy_xfer *x = op->peer->x;
    unlink_wire(op);
    x->stats.inflight_bytes -= op->bytes;
    op->status = st;
    op->done_ns = gy_clock_ns();
    *x->done_tail = op;
    x->done_tail = &op->next;
}

/* ---- writers that are kept out ----------------------------------------------------------------------------------- */

int gy_xfer_is_forbidden(const gy_xfer *x, uint64_t epoch) {
    for (size_t i = 0; i < x->n_forbidden; i++)
        if (x->forbidden[i] == epoch) return 1;
    return 0;
}

static gy_status make_room(gy_xfer *x, gy_err *err) {
    size_t cap = x->cap_forbidden ? 2 * x->cap_forbidden : 64;
    if (x->n_forbidden < x->cap_forbidden) return GY_OK;
    uint64_t *bigger = gy_mem_alloc(GY_MEM_PD, cap, sizeof *bigger);
    if (!bigger) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory to keep out a writer");
    if (x->n_forbidden) memcpy(bigger, x->forbidden, x->n_forbidden * sizeof *bigger);
    gy_mem_free(x->forbidden);
    x->forbidden = bigger;
    x->cap_forbidden = cap;
    return GY_OK;
}

gy_status gy_xfer_forbid(gy_xfer *x, uint64_t epoch, gy_err *err) {
    if (gy_xfer_is_forbidden(x, epoch)) return GY_OK;
    GY_TRY(make_room(x, err));
    gy_status st = x->ops->forbid ? x->ops->forbid(x, epoch, err) : GY_OK;
    if (st == GY_OK) x->forbidden[x->n_forbidden++] = epoch;
    return st;
}

/* ---- callbacks --------------------------------------------------------------------------------------------------- */

void gy_xfer_note(gy_xfer *x, uint64_t from_epoch, const void *bytes, size_t len) {
    if (gy_xfer_is_forbidden(x, from_epoch)) return;
    x->stats.n_note++;
    x->n_called++;
    x->o.on_note(x->o.user, from_epoch, bytes, len);
}

static void tell_done(gy_xfer *x) {
    for (gy_xfer_op *op; (op = x->done); x->n_called++) {
        x->done = op->next;
        if (!x->done) x->done_tail = &x->done;
        op->next = NULL;
        x->stats.n_op++;
        if (op->status == GY_OK)
            x->stats.bytes += (int64_t)op->bytes;
        else
            x->stats.n_failed++;
        x->o.on_done(x->o.user, op, op->status);
    }
}

int gy_xfer_poll(gy_xfer *x) {
    x->n_called = 0;
    x->ops->progress(x);
    tell_done(x);
    return x->n_called;
}

void gy_xfer_wait(gy_xfer *x, int timeout_ms) {
    if (!x->done) x->ops->wait(x, timeout_ms);
}

void gy_xfer_wake(gy_xfer *x) {
    x->ops->wake(x);
}

void gy_xfer_get_stats(const gy_xfer *x, gy_xfer_stats *out) {
    *out = x->stats;
}

void gy_xfer_close(gy_xfer *x) {
    if (!x) return;
    while (x->peers) gy_xfer_peer_drop(x->peers);
    tell_done(x);
    for (int32_t i = 0; i < x->n_region; i++) x->ops->region_free(x, &x->region[i]);
    x->ops->close(x);
    gy_xfer_prove_close(x);
    gy_mem_free(x->forbidden);
    gy_mem_free(x);
}
