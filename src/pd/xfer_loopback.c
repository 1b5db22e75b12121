/* Peers in this process: threads of a test, or a worker that hands over to itself. A copy is a memcpy (of device
 * memory: the device's own) made in post, a note an element of the receiver's queue (whose push and pop order the
 * bytes). A peer must be dropped before the other side is closed.
 */
#include "pd/xfer_int.h"

#include "base/mem.h"
#include "base/queue.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { N_NOTE = 1024 };

typedef struct note {
    uint64_t epoch;
    uint32_t len;
    uint32_t is_wake; /* nothing but a reason to return from wait */
    char bytes[GY_XFER_MAX_NOTE];
} note;

typedef struct blob {
    char magic[8];
    int64_t pid;
    gy_xfer *x;
    size_t bytes[GY_XFER_MAX_REGION];
    int is_device[GY_XFER_MAX_REGION];
} blob;

static const char MAGIC[8] = "gyloop1";

static gy_status lo_open(gy_xfer *x, gy_err *err) {
    gy_queue *q = NULL;
    if (gy_queue_create(N_NOTE, sizeof(note), &q) < 0) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory");
    x->priv = q;
    return GY_OK;
}

static void lo_close(gy_xfer *x) {
    gy_queue_destroy(x->priv);
}

static gy_status lo_region_alloc(gy_xfer *x, size_t bytes, gy_err *err, gy_xfer_region *out) {
    (void)x;
    out->mem = gy_mem_map_pages(GY_MEM_PD, bytes);
    return out->mem ? GY_OK : gy_err_set(err, GY_E_NOMEM, "transfer: no memory for a region of %zu bytes", bytes);
}

static gy_status lo_region_map(gy_xfer *x, gy_err *err, gy_xfer_region *r) {
    (void)x, (void)err, (void)r;
    return GY_OK;
}

static void lo_region_free(gy_xfer *x, gy_xfer_region *r) {
    (void)x;
    if (!r->is_device) gy_mem_unmap_pages(GY_MEM_PD, r->mem, r->bytes);
}

static gy_status lo_export(gy_xfer *x, void *out, size_t cap, size_t *len_out, gy_err *err) {
    blob b = {.pid = getpid(), .x = x};
    memcpy(b.magic, MAGIC, sizeof MAGIC);
    for (int32_t i = 0; i < x->n_region; i++) {
        b.bytes[i] = x->region[i].bytes;
        b.is_device[i] = x->region[i].is_device;
    }
    if (cap < sizeof b) return gy_err_set(err, GY_E_ARG, "transfer: room for %zu bytes, needed %zu", cap, sizeof b);
    memcpy(out, &b, sizeof b);
    *len_out = sizeof b;
    return GY_OK;
}

static gy_status lo_import(gy_xfer_peer *p, const void *bytes, size_t len, gy_err *err) {
    blob b;
    if (len != sizeof b || memcmp(bytes, MAGIC, sizeof MAGIC) != 0)
        return gy_err_set(err, GY_E_FORMAT, "transfer: %zu bytes are no address of this transport (loopback)", len);
    memcpy(&b, bytes, sizeof b);
    if (b.pid != getpid())
        return gy_err_set(err, GY_E_PEER, "transfer: loopback reaches its own process only, found process %lld",
                          (long long)b.pid);
    p->priv = b.x;
    p->epoch = b.x->o.epoch;
    memcpy(p->bytes, b.bytes, sizeof p->bytes);
    memcpy(p->is_device, b.is_device, sizeof p->is_device);
    return GY_OK;
}

static void lo_drop(gy_xfer_peer *p) {
    p->priv = NULL;
}

static gy_status copy(const gy_xfer *x, const gy_xfer_region *to, const gy_xfer_desc *d, gy_err *err) {
    const gy_xfer_region *from = &x->region[d->src_region];
    char *dst = (char *)to->mem + d->dst_off;
    const char *src = (const char *)from->mem + d->src_off;
    if (from->is_device) return x->o.device->copy(x->o.device->arg, dst, src, d->bytes, err);
    memmove(dst, src, d->bytes);
    return GY_OK;
}

static gy_status lo_post(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err) {
    const gy_xfer *to = p->priv;
    for (int32_t i = 0; i < op->n_desc; i++) GY_TRY(copy(p->x, &to->region[op->desc[i].dst_region], &op->desc[i], err));
    return GY_OK;
}

static gy_status lo_fetch(gy_xfer_peer *p, const gy_xfer_desc *d, gy_err *err) {
    const gy_xfer *from = p->priv;
    const gy_device *dev = p->x->o.device;
    return dev->copy(dev->arg, (char *)p->x->region[d->src_region].mem + d->src_off,
                     (const char *)from->region[d->dst_region].mem + d->dst_off, d->bytes, err);
}

static gy_status send_note(const gy_xfer_peer *p, const gy_xfer_op *op) {
    const gy_xfer *to = p->priv;
    note n = {.epoch = p->x->o.epoch, .len = (uint32_t)op->n_note};
    if (!op->n_note) return GY_OK;
    memcpy(n.bytes, op->note, op->n_note);
    return gy_queue_push(to->priv, &n);
}

/* The wire list is newest first; notes go out oldest first. */
static int flush_peer(gy_xfer_peer *p) {
    int n = 0;
    for (gy_xfer_op *op; (op = p->wire); n++) {
        while (op->next) op = op->next;
        if (send_note(p, op) != GY_OK) break;
        gy_xfer_op_done(op, GY_OK);
    }
    return n;
}

static int lo_progress(gy_xfer *x) {
    int n = 0;
    note got;
    for (gy_xfer_peer *p = x->peers; p; p = p->next) n += flush_peer(p);
    gy_queue_fd_clear(x->priv);
    for (int k = 0; k < N_NOTE && gy_queue_pop(x->priv, &got) == GY_OK; k++)
        if (!got.is_wake) {
            gy_xfer_note(x, got.epoch, got.bytes, got.len);
            n++;
        }
    return n;
}

static int has_wire(const gy_xfer *x) {
    for (const gy_xfer_peer *p = x->peers; p; p = p->next)
        if (p->wire) return 1;
    return 0;
}

static void lo_wait(gy_xfer *x, int timeout_ms) {
    struct pollfd fd = {.fd = gy_queue_fd(x->priv), .events = POLLIN};
    if (gy_queue_len(x->priv)) return;
    poll(&fd, 1, has_wire(x) ? 0 : timeout_ms);
}

static void lo_wake(gy_xfer *x) {
    note n = {.is_wake = 1};
    (void)gy_queue_push(x->priv, &n); /* a full queue is awake already */
}

static const char *lo_lanes(gy_xfer_peer *p) {
    (void)p;
    return "memcpy";
}

const gy_xfer_ops gy_xfer_loopback = {.name = "loopback",
                                      .open = lo_open,
                                      .close = lo_close,
                                      .region_alloc = lo_region_alloc,
                                      .region_map = lo_region_map,
                                      .region_free = lo_region_free,
                                      .export_blob = lo_export,
                                      .import_blob = lo_import,
                                      .drop = lo_drop,
                                      .post = lo_post,
                                      .fetch = lo_fetch,
                                      .progress = lo_progress,
                                      .wait = lo_wait,
                                      .wake = lo_wake,
                                      .lanes = lo_lanes};
