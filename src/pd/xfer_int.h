/* Between xfer.c (checks, budget, books, callbacks) and the transports.
 *
 * A posted op lives in a slot of its transport until the transport has no more use for it; the caller's gy_xfer_op is
 * given back as soon as on_done ran, also when a peer is dropped while the transport still holds the slot:
 *
 *     (free) --post--> WIRE --done / failed--> DONE --on_done--> (free)
 *                        |                                          ^
 *                        +-- peer dropped: op leaves with GY_E_PEER |
 *                        +--> ORPHAN (no op) --transport is through-+
 */
#ifndef GY_PD_XFER_INT_H
#define GY_PD_XFER_INT_H

#include "pd/xfer.h"

enum { GY_XFER_MAX_OPS = 1024, GY_XFER_MAX_PEERS = 256 };

typedef struct gy_xfer_region {
    void *mem;
    size_t bytes;
    int is_device; /* of x's device: the CPU reads and writes no byte of it */
    void *priv;    /* the transport's */
} gy_xfer_region;

typedef struct gy_xfer_ops {
    const char *name;
    gy_status (*open)(gy_xfer *x, gy_err *err); /* fills x->priv */
    void (*close)(gy_xfer *x);                  /* accepts a half-opened one; all peers are dropped, no op is left */
    gy_status (*region_alloc)(gy_xfer *x, size_t bytes, gy_err *err, gy_xfer_region *out);
    gy_status (*region_map)(gy_xfer *x, gy_err *err, gy_xfer_region *r); /* r->mem, of x's device; fills r->priv */
    void (*region_free)(gy_xfer *x, gy_xfer_region *r);                  /* of a mapped one: not its memory */
    gy_status (*export_blob)(gy_xfer *x, void *blob, size_t cap, size_t *len_out, gy_err *err);
    /* Fills p->priv, epoch, bytes, is_device. GY_AGAIN: as gy_xfer_import's. */
    gy_status (*import_blob)(gy_xfer_peer *p, const void *blob, size_t len, gy_err *err);
    void (*drop)(gy_xfer_peer *p); /* its ops were taken off: use none of them any more */
    gy_status (*post)(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err); /* checked; gy_xfer_op_done later, not inside */
    /* Of device memory, back from a peer: waits, with progress. */
    gy_status (*fetch)(gy_xfer_peer *p, const gy_xfer_desc *d, gy_err *err);
    int (*progress)(gy_xfer *x); /* gy_xfer_op_done, gy_xfer_note; how many things happened */
    /* May be NULL: then what gy_xfer_is_forbidden says is all there is to do. GY_OK: from here on it is asked before
     * each byte of that writer, and none is under way past the question. */
    gy_status (*forbid)(gy_xfer *x, uint64_t epoch, gy_err *err);
    void (*wait)(gy_xfer *x, int timeout_ms);
    void (*wake)(gy_xfer *x);
    const char *(*lanes)(gy_xfer_peer *p);
} gy_xfer_ops;

extern const gy_xfer_ops gy_xfer_loopback, gy_xfer_mock, gy_xfer_ucx;

struct gy_xfer {
    const gy_xfer_ops *ops;
    gy_xfer_opts o;
    void *priv;
    gy_xfer_region region[GY_XFER_MAX_REGION];
    int32_t n_region;
    int is_exported;
    void *scratch; /* of the device, the last region: what lanes are proved with; NULL: nothing is */
    gy_xfer_peer *peers;
    gy_xfer_op *done, **done_tail; /* finished, callback to come */
    gy_xfer_stats stats;
    int n_called;        /* callbacks of this poll */
    uint64_t *forbidden; /* [n_forbidden] epochs, as they came */
    size_t n_forbidden, cap_forbidden;
};

struct gy_xfer_peer {
    gy_xfer *x;
    gy_xfer_peer *next;
    void *priv;
    size_t bytes[GY_XFER_MAX_REGION];
    int is_device[GY_XFER_MAX_REGION];
    uint64_t epoch;   /* its */
    double gbs;       /* proved */
    gy_xfer_op *wire; /* posted and not done, doubly linked */
};

/* By transports, inside progress (or from what it calls). */
void gy_xfer_op_done(gy_xfer_op *op, gy_status st);
void gy_xfer_note(gy_xfer *x, uint64_t from_epoch, const void *bytes, size_t len); /* of a forbidden one: dropped */
int gy_xfer_is_forbidden(const gy_xfer *x, uint64_t epoch);

/* xfer_prove.c. open: before the export; close: when no region is mapped any more. */
gy_status gy_xfer_prove_open(gy_xfer *x, gy_err *err);
void gy_xfer_prove_close(gy_xfer *x);
gy_status gy_xfer_prove(gy_xfer_peer *p, gy_err *err);
gy_status gy_xfer_post_own(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err);

#endif
