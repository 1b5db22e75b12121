/* xfer: moves bytes from memory regions of this process into those of others. Knows regions and offsets, never a model
 * and never what the bytes mean. One-sided: the receiver's pages were promised to this writer before (pd/README.md).
 *
 *   open -> region_alloc (KV arenas, hidden rows) -> export_blob  --control channel-->  import_blob -> peer
 *   peer: post(op) ... poll ... on_done(op) ; the other side: on_note(bytes) after the op's data is all there
 *
 * An op is a list of copies and a note. The note is given to the receiver only after every byte of the op is visible
 * to it: sent from the completion of the flush, never with the data (a flush is no fence for a later message on another
 * lane: nixl issue 252). Notes of one peer may overtake each other and may come twice (retry): what they say must be
 * cumulative. Losing none is promised while both processes live; a deadline of the caller covers the rest.
 *
 * A descriptor is a copy that is contiguous on both sides. Limits are flow control only: throughput must not depend on
 * them; an op larger than inflight_bytes is refused (GY_E_LIMIT), the caller cuts with gy_seg_next (segs.h).
 *
 * Threads: everything of one gy_xfer belongs to one thread (the worker's transfer thread) except gy_xfer_wake, which
 * any thread may call. poll never sleeps; wait sleeps until there is something to do, a wake, or the timeout.
 *
 * Device memory. A region may lie on the device of gy_xfer_opts (region_map): then no byte of it is read or written by
 * the CPU, here or at the peer. Its kind is said at every step and never detected: to ucp_mem_map, in the blob, in each
 * request. A copy goes from host to host or from device to device; one between the two is refused (GY_E_ARG).
 *
 * Death. A peer's death is told by the control channel (pd/control.h), not from here: gy_xfer_peer_drop makes all its
 * ops fail (on_done with GY_E_PEER, once each), after which no byte of this process is read for it any more; bytes may
 * be half written on the other side. A region may be freed when every process that has imported it is reaped or has
 * dropped it.
 *
 * A connection between hosts may be lost while both ends live. What it had under way may still arrive, after the drop
 * and at any time (the kernel of a host has it). It is fenced by a later import of the same region by the same gy_xfer:
 * once an op of the newer connection is done, be it one of nothing, nothing of the older ones is written any more.
 */
#ifndef GY_PD_XFER_H
#define GY_PD_XFER_H

#include "base/device.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_xfer gy_xfer;
typedef struct gy_xfer_peer gy_xfer_peer;
typedef struct gy_xfer_op gy_xfer_op;

enum { GY_XFER_MAX_REGION = 8, GY_XFER_MAX_NOTE = 256, GY_XFER_MAX_BLOB = 16384 };

typedef enum gy_xfer_kind {
    GY_XFER_LOOPBACK, /* same process or memory shared by fork (tests, hybrid workers): memcpy */
    GY_XFER_MOCK,     /* a simulated network (xfer_mock.h): latency, reordering, loss, death */
    GY_XFER_UCX
} gy_xfer_kind;

typedef struct gy_xfer_limits {
    size_t chunk_bytes;    /* of one op as segs.h cuts it; 256 MiB */
    size_t inflight_bytes; /* of all ops posted and not done, >= chunk_bytes; 2 GiB */
    int32_t max_desc;      /* of one op; 256 */
} gy_xfer_limits;
void gy_xfer_limits_default(gy_xfer_limits *l);
gy_status gy_xfer_limits_check(const gy_xfer_limits *l, gy_err *err);
/* What least_gbs below should be: that share of what NVLink gives two H200s (400); NAN: a quarter, which PCIe never
 * reaches and NVLink does on its worst day. */
double gy_xfer_least_gbs(double share);

typedef struct gy_xfer_opts {
    gy_xfer_kind kind;
    gy_xfer_limits limits;
    int across_hosts;    /* ucx: 0 = inside a host (error mode NONE, shared memory, no switch), 1 = PEER: puts where a
                            real remote key exists (verbs), else active messages (tcp) */
    const char *tls;     /* ucx: lanes to allow; NULL: chosen by across_hosts and printed by gy_xfer_lanes */
    const char *devices; /* ucx: network devices; NULL: lo inside a host; must be given across hosts */
    /* NULL: no region lies on a device. Lives longer than x. open binds the calling thread to it before any call of
     * UCX; ucx: cuda_ipc and cuda_copy join the lanes. Inside a host only (across_hosts: GY_E_UNSUPPORTED). */
    const gy_device *device;
    size_t piece_bytes; /* ucx: of one put of device memory, for measuring; 0: all that is contiguous */
    /* Of device memory: a new peer is refused (GY_E_UNSUPPORTED) when the lane to it carries less, in 1e9 bytes a
     * second. That its bytes arrive, and in its memory, is looked at with 0 too, but for devices that are made up
     * (xfer_prove.c). */
    double least_gbs;
    int peer_errors; /* ucx inside a host, for measuring: 1 = error mode PEER, whose small messages go over tcp */
    void *mock;      /* GY_XFER_MOCK: the gy_mock_net it belongs to */
    uint64_t epoch;  /* of this worker: given to peers with each note */
    void *user;
    void (*on_done)(void *user, gy_xfer_op *op, gy_status st);
    /* from_epoch: the writer's. bytes die when it returns. */
    void (*on_note)(void *user, uint64_t from_epoch, const void *bytes, size_t len);
} gy_xfer_opts;

gy_status gy_xfer_open(const gy_xfer_opts *o, gy_err *err, gy_xfer **out);
void gy_xfer_close(gy_xfer *x); /* accepts NULL; all peers dropped, all ops done (else they fail first) */

/* Memory that others will write into or that is read from here: page aligned, zeroed, owned by x until close. Regions
 * are numbered from 0 in this order, the same on both sides of a deployment. UCX inside a host: ucp_mem_map(ALLOCATE),
 * so that a put is a plain store and a killed peer harms nobody. Says how large /dev/shm is when that is the reason. */
gy_status gy_xfer_region_alloc(gy_xfer *x, size_t bytes, gy_err *err, int32_t *region_out, void **mem_out);

/* The same numbering, for memory that lies on o.device: the whole of one device->alloc, mapped once, the caller's until
 * x is closed. Not zeroed here. GY_E_ARG without o.device. */
gy_status gy_xfer_region_map(gy_xfer *x, void *mem, size_t bytes, gy_err *err, int32_t *region_out);

/* By a thread that takes x over from another one, before anything else of x: what open did for the calling thread. UCX
 * decides by the thread that touches a peer or a region first whether cuda_ipc is there at all. Nothing without
 * o.device. */
gy_status gy_xfer_bind(gy_xfer *x, gy_err *err);

/* What a peer needs to write here: address, keys, sizes. After the last region_alloc. *len_out <= GY_XFER_MAX_BLOB. */
gy_status gy_xfer_export(gy_xfer *x, void *blob, size_t cap, size_t *len_out, gy_err *err);
/* Never accept a blob from an untrusted party: keys name raw addresses. Checked: version, number and sizes of regions.
 * Lanes between devices are proved before it returns, some 15 ms, in which notes may be given. GY_AGAIN, with devices:
 * the memory of a dropped peer is being let go of; ask again after a poll. */
gy_status gy_xfer_import(gy_xfer *x, const void *blob, size_t len, gy_err *err, gy_xfer_peer **out);
void gy_xfer_peer_drop(gy_xfer_peer *p);                                 /* accepts NULL; its ops fail */
size_t gy_xfer_peer_region_bytes(const gy_xfer_peer *p, int32_t region); /* 0: it has none */

typedef struct gy_xfer_desc {
    int32_t src_region, dst_region;
    size_t src_off, dst_off, bytes;
} gy_xfer_desc;

struct gy_xfer_op {           /* the caller's memory, from post until on_done */
    const gy_xfer_desc *desc; /* [n_desc]; 0: the note alone (a transfer of nothing still completes) */
    int32_t n_desc;
    const void *note; /* [n_note]; n_note 0: none is sent */
    size_t n_note;
    void *user;
    /* filled by xfer: */
    size_t bytes;
    int64_t post_ns, done_ns; /* CLOCK_MONOTONIC; done: remote completion is known here */
    /* xfer's own: */
    gy_xfer_peer *peer;
    gy_xfer_op *prev, *next;
    void *slot;
    gy_status status;
    int is_own; /* xfer's own: nobody is told of it */
};

/* GY_AGAIN: the in-flight budget is taken; nothing happened. GY_E_ARG: a range outside its region, on either side
 * (checked before anything is written). GY_E_PEER: dropped. on_done never runs inside post. */
gy_status gy_xfer_post(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err);
/* Progress: completions and notes by callback. Returns how many callbacks ran. Callbacks may post. */
int gy_xfer_poll(gy_xfer *x);
/* Sleeps until poll has something to do, a wake, or timeout_ms (< 0: none). */
void gy_xfer_wait(gy_xfer *x, int timeout_ms);
void gy_xfer_wake(gy_xfer *x); /* any thread; async-signal-safe */

/* From now on nothing of what that writer sends is written here, and no note of it is given: when this returns GY_OK no
 * byte of this process's regions changes by it any more. GY_AGAIN: some of its bytes are being taken in; ask again
 * after a poll. Inside a host puts are stores of the other process, which only its end stops: there it is always GY_OK
 * and means nothing (the control channel tells of the end). Between hosts over tcp it is what makes pages safe while
 * the link to a living writer is cut. Kept for the life of x. */
gy_status gy_xfer_forbid(gy_xfer *x, uint64_t epoch, gy_err *err);

typedef struct gy_xfer_stats {
    int64_t n_op, n_desc, n_note, n_failed;
    int64_t bytes;
    int64_t post_ns; /* inside gy_xfer_post */
    size_t inflight_bytes;
} gy_xfer_stats;
void gy_xfer_get_stats(const gy_xfer *x, gy_xfer_stats *out);

double gy_xfer_peer_gbs(const gy_xfer_peer *p); /* as it was proved; 0: it was not */
const char *gy_xfer_lanes(gy_xfer_peer *p);     /* "sysv, posix", "tcp", "memcpy": static or the peer's; never NULL */

#endif
