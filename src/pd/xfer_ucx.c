/* The transport over UCX (libucp), used directly.
 *
 * Two ways for bytes, agreed in the address blob:
 *   puts  where the receiver's memory has a real remote key: inside a host, and over verbs. Inside a host regions come
 *         from ucp_mem_map(ALLOCATE) and are mapped on both sides: a put is a copy, and made here (stream.h). Elsewhere
 *         all puts of an op, then one endpoint flush. The note is an active message sent when that is complete; done =
 *         it is handed over.
 *   am    over tcp, where puts would be emulated by the receiver's processor (2.8 GB/s against 1.2 measured, and a
 *         killed sender could abort the receiver): each copy is cut into pieces, each an active message with its place
 *         in the header. The receiver counts an op's bytes, hands the note up when all are there, and answers; done =
 *         the answer. Pieces are always sent eagerly: UCX collects one in memory of its own and the handler copies it,
 *         so that no byte reaches a region but under the handler's eyes. By rendezvous UCX would be given the place
 *         itself, and over tcp a peer that was cut off could fill it at any later time; nothing in 1.13 takes such a
 *         place back.
 *
 * Error handling: NONE inside a host (PEER drops shared memory and falls to tcp), PEER across hosts. There is no
 * switch. The environment is not asked: what matters is set here (ucp_config_modify wins over UCX_* variables).
 *
 * Of a dropped peer in mode NONE nothing can be cancelled: its endpoint stays until the worker goes, and if requests
 * are left that can never complete, the worker stays until the process goes (destroying it would abort in 1.13). In
 * mode PEER a drop closes the endpoint by force, which ends all that is under way.
 *
 * Memory of GPUs is put over cuda_ipc, which maps the peer's here and keeps the mapping. While it is there the memory
 * of a dead peer is not freed, and the driver may take the handle of that peer's next life for the old one: its bytes
 * then went to the dead memory, in silence (3 of 3 on H200s, driver 580). So behind a drop the copies end, which they
 * always do, and then the endpoint is closed: with it 1.22 lets go of what the process had mapped. Progress sees to it;
 * until it is done no peer is taken.
 *
 * All that has to end without the peer's help. A flush of UCX asks for room in the peer's queue of messages, also when
 * nothing was ever sent there, and in a dead one's queue there is none for ever once notes have filled it. So with a
 * device each process has a second worker of UCX, whose queue nobody writes to, and puts have an endpoint of their own
 * between these two; and what is read back is copied over cuda_ipc too, where UCX alone would ask the peer to send it.
 */
#include "pd/xfer_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "pd/stream.h"
#include "pd/ucx_api.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { AM_NOTE = 1, AM_DATA = 2, AM_ACK = 3, N_TRACK = 2048, VERSION = 4, CLOSE_ROUNDS = 20000 };
enum {
    PIECE = 256 << 10, /* bytes of one message: what UCX collects at the receiver before it is copied */
    N_PIECE = 8,       /* of one op, handed to UCX and not sent: enough to keep a socket full */
    FETCH_MS = 5000,
    LET_GO_MS = 2000 /* from when somebody waits for it; copies of a GPU take no longer */
};

typedef struct note_head {
    uint64_t epoch, op, bytes; /* bytes: of the op's copies that came as messages; 0 for puts */
    uint64_t slot;             /* for the answer */
    uint32_t wants_ack, len;
    uint32_t gen, pad;
} note_head;

typedef struct data_head {
    uint64_t epoch, op, off;
    int32_t region;
    uint32_t gen; /* which connection of the writer, counted by it */
} data_head;

typedef struct route { /* a peer's priv */
    ucp_ep_h ep;
    ucp_ep_h note_ep; /* NONE, with device: of its own; NULL: ep */
    int n_put;        /* requests of puts that are not over */
    void *fetch;      /* NONE: request of one that was late */
    int is_leaving;   /* dropped, and its device memory is still mapped here */
    int64_t late_ns;  /* is_leaving: when it is for good; 0: nobody has waited for it yet */
    uint32_t gen;
    ucp_rkey_h rkey[GY_XFER_MAX_REGION];
    uint64_t addr[GY_XFER_MAX_REGION];
    char *at[GY_XFER_MAX_REGION]; /* where the CPU may store into it; NULL: it may not */
    int has_device;               /* regions on a device, that cuda_ipc maps here */
    uint64_t epoch;
    int is_dead; /* PEER: the error handler was called; or dropped */
    int is_dropped;
    void *closing; /* request of the close that a drop began */
    int64_t n_failed;
    char lanes[160];
    struct route *next; /* NONE: all there ever were, endpoints of dropped peers stay until close */
} route;

typedef struct piece { /* a message whose header UCX still reads */
    struct slot *s;
    data_head head;
    int is_used;
} piece;

typedef struct slot { /* drawn in xfer_int.h */
    struct ux *ux;
    gy_xfer_op *op; /* NULL: orphan or free */
    route *l;
    int n_pending; /* requests of UCX that will call back */
    int is_used, is_noted;
    int is_sending; /* inside of calls of UCX for it, from which callbacks for it may come: it does not end meanwhile */
    gy_status st;
    int32_t at_desc; /* am: the first byte that is not handed to UCX yet */
    size_t at_off;
    note_head head;
    char note[GY_XFER_MAX_NOTE];
} slot;

typedef struct track { /* an op that arrives by messages */
    uint64_t epoch, op, got;
    uint32_t gen;
    int is_used;
} track;

typedef struct writer { /* somebody of whom a note came by messages */
    uint64_t epoch;
    uint32_t gen; /* the newest: what older ones bring is not taken */
    int is_used;
} writer;

typedef struct ux {
    gy_xfer *x;
    ucp_context_h ctx;
    ucp_worker_h worker;
    ucp_address_t *addr;
    size_t n_addr;
    ucp_worker_h put_worker; /* NONE, with device: gets no message; NULL: there is none */
    ucp_address_t *put_addr;
    size_t n_put_addr;
    int efd, put_efd, wake, by_am;
    int with_errors; /* error handling mode PEER */
    uint64_t n_op;
    route *links;
    slot *slots;   /* [GY_XFER_MAX_OPS] */
    piece *pieces; /* [GY_XFER_MAX_OPS, N_PIECE]; am only */
    track *tracks; /* [N_TRACK]; am only */
    writer writers[GY_XFER_MAX_PEERS];
    uint32_t n_gen;
    int n_happened, n_closing, n_leaving;
} ux;

static unsigned turn(ux *u) {
    unsigned n = gy_ucx()->ucp_worker_progress(u->worker);
    return u->put_worker ? n + gy_ucx()->ucp_worker_progress(u->put_worker) : n;
}

static gy_status status_of(ucs_status_t s, const char *what, gy_err *err) {
    if (s == UCS_OK) return GY_OK;
    gy_status st = s == UCS_ERR_NO_MEMORY ? GY_E_NOMEM : GY_E_PEER;
    return gy_err_set(err, st, "transfer: %s: UCX says: %s", what, gy_ucx()->ucs_status_string(s));
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static slot *slot_take(ux *u) {
    for (int i = 0; i < GY_XFER_MAX_OPS; i++)
        if (!u->slots[i].is_used) {
            u->slots[i] = (slot){.ux = u, .is_used = 1};
            return &u->slots[i];
        }
    return NULL;
}

static void slot_settle(slot *s);

static void slot_lost(slot *s, ucs_status_t st) {
    if (st == UCS_OK || s->st < 0) return;
    s->st = GY_E_PEER;
    if (s->op && !s->l->n_failed++) /* one of a dropped peer was told already */
        gy_log(GY_LOG_WARN, "transfer", "a transfer failed; further ones of this peer are not told", "reason=\"%s\"",
               gy_ucx()->ucs_status_string(st));
}

static void on_sent(void *request, ucs_status_t st, void *arg) {
    slot *s = arg;
    gy_ucx()->ucp_request_free(request);
    s->n_pending--;
    slot_lost(s, st);
    slot_settle(s);
}

static void on_put(void *request, ucs_status_t st, void *arg) {
    slot *s = arg;
    s->l->n_put--;
    on_sent(request, st, s);
}

/* What a call of UCX gave back: done at once, failed, or a request that will call on_sent. */
static void follow(slot *s, ucs_status_ptr_t r) {
    if (UCS_PTR_IS_ERR(r))
        slot_lost(s, UCS_PTR_STATUS(r));
    else if (r)
        s->n_pending++;
}

static int has_gpu(const gy_xfer_opts *o) {
    return o->device && o->device->kind == GY_DEVICE_CUDA;
}

static ucs_memory_type_t type_of(const gy_xfer *x, int is_device) {
    return is_device && has_gpu(&x->o) ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

static ucp_request_param_t param_of(slot *s) {
    return (ucp_request_param_t){.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                 .cb.send = on_sent,
                                 .user_data = s,
                                 .memory_type = UCS_MEMORY_TYPE_HOST};
}

static void follow_put(slot *s, ucs_status_ptr_t r) {
    if (UCS_PTR_IS_PTR(r)) s->l->n_put++;
    follow(s, r);
}

static ucp_request_param_t put_param_of(slot *s) {
    ucp_request_param_t p = param_of(s);
    p.cb.send = on_put;
    return p;
}

static void send_note(slot *s) {
    ucp_request_param_t p = param_of(s);
    p.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    p.flags = UCP_AM_SEND_FLAG_EAGER | (s->head.wants_ack ? UCP_AM_SEND_FLAG_REPLY : 0);
    s->is_noted = 1;
    ucp_ep_h to = s->l->note_ep ? s->l->note_ep : s->l->ep;
    follow(s, gy_ucx()->ucp_am_send_nbx(to, AM_NOTE, &s->head, sizeof s->head, s->note, s->head.len, &p));
}

static void slot_finish(slot *s) {
    if (s->op) {
        gy_xfer_op *op = s->op;
        s->op = NULL;
        op->slot = NULL;
        s->ux->n_happened++;
        gy_xfer_op_done(op, s->st);
    }
    if (!s->n_pending) s->is_used = 0;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static piece *piece_take(slot *s) {
    piece *p = s->ux->pieces + (size_t)(s - s->ux->slots) * N_PIECE;
    for (int i = 0; i < N_PIECE; i++)
        if (!p[i].is_used) return &p[i];
    return NULL;
}

static void on_piece_sent(void *request, ucs_status_t st, void *arg) {
    piece *p = arg;
    p->is_used = 0;
    on_sent(request, st, p->s);
}

static void send_piece(slot *s, piece *p, const void *bytes, size_t n) {
    ucp_request_param_t r = param_of(s);
    r.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    r.flags = UCP_AM_SEND_FLAG_EAGER;
    r.cb.send = on_piece_sent;
    r.user_data = p;
    ucs_status_ptr_t got = gy_ucx()->ucp_am_send_nbx(s->l->ep, AM_DATA, &p->head, sizeof p->head, bytes, n, &r);
    p->is_used = UCS_PTR_IS_PTR(got);
    follow(s, got);
}

/* As many as have room; when none is pending afterwards, all are sent or one failed. */
static void send_pieces(slot *s) {
    const gy_xfer *x = s->ux->x;
    while (s->st == GY_OK && s->at_desc < s->op->n_desc) {
        const gy_xfer_desc *d = &s->op->desc[s->at_desc];
        size_t n = d->bytes - s->at_off < PIECE ? d->bytes - s->at_off : PIECE;
        piece *p = n ? piece_take(s) : NULL;
        if (n && !p) return;
        if (n) {
            *p = (piece){.s = s, .head = {x->o.epoch, s->head.op, d->dst_off + s->at_off, d->dst_region, s->l->gen}};
            send_piece(s, p, (const char *)x->region[d->src_region].mem + d->src_off + s->at_off, n);
        }
        s->at_off += n;
        if (s->at_off < d->bytes) continue;
        s->at_desc++;
        s->at_off = 0;
    }
}

/* puts -> flush -> note -> finish; messages -> note -> answer -> finish. Called whenever something of it completed. */
static void slot_settle(slot *s) {
    if (s->is_sending) return;
    if (s->ux->by_am && s->op && s->st == GY_OK && !s->is_noted) {
        s->is_sending = 1;
        send_pieces(s);
        s->is_sending = 0;
    }
    if (s->n_pending) return;
    if (s->st < 0 || !s->op) {
        slot_finish(s);
        return;
    }
    if (!s->is_noted && (s->head.len || s->head.wants_ack)) send_note(s);
    if (s->n_pending) return;
    if (s->st < 0 || !s->head.wants_ack) slot_finish(s);
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

/* The kind of memory and its registration are said, so that nothing is looked up. Whole: 1.22 has one stream for a
 * peer, where 256 MiB went at 390 GB/s whole and at 375, 358, 343 in pieces of 32, 16, 8 MiB (H200, NVLink). */
static void put_device(slot *s, const gy_xfer_desc *d) {
    const gy_xfer *x = s->ux->x;
    const gy_xfer_region *from = &x->region[d->src_region];
    size_t most = x->o.piece_bytes ? x->o.piece_bytes : SIZE_MAX;
    for (size_t at = 0, n; at < d->bytes; at += n) {
        n = d->bytes - at < most ? d->bytes - at : most;
        ucp_request_param_t p = put_param_of(s);
        p.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        p.memory_type = type_of(x, 1);
        p.memh = from->priv;
        follow_put(s,
                   gy_ucx()->ucp_put_nbx(s->l->ep, (const char *)from->mem + d->src_off + at, n,
                                         s->l->addr[d->dst_region] + d->dst_off + at, s->l->rkey[d->dst_region], &p));
    }
}

static void put_host(slot *s, const gy_xfer_desc *d) {
    ucp_request_param_t p = put_param_of(s);
    follow_put(s,
               gy_ucx()->ucp_put_nbx(s->l->ep, (const char *)s->ux->x->region[d->src_region].mem + d->src_off, d->bytes,
                                     s->l->addr[d->dst_region] + d->dst_off, s->l->rkey[d->dst_region], &p));
}

static void post_puts(slot *s, const gy_xfer_op *op) {
    const gy_xfer *x = s->ux->x;
    int n_put = 0;
    for (int32_t i = 0; i < op->n_desc; i++) {
        const gy_xfer_desc *d = &op->desc[i];
        const gy_xfer_region *from = &x->region[d->src_region];
        n_put += from->is_device || !s->l->at[d->dst_region];
        if (from->is_device)
            put_device(s, d);
        else if (s->l->at[d->dst_region])
            gy_stream_copy(s->l->at[d->dst_region] + d->dst_off, (const char *)from->mem + d->src_off, d->bytes);
        else
            put_host(s, d);
    }
    if (!n_put) return;
    ucp_request_param_t p = put_param_of(s);
    p.op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    follow_put(s, gy_ucx()->ucp_ep_flush_nbx(s->l->ep, &p));
}

static gy_status ucx_post(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err) {
    ux *u = p->x->priv;
    route *l = p->priv;
    if (l->is_dead) return gy_err_set(err, GY_E_PEER, "transfer: the connection to this peer is lost");
    slot *s = slot_take(u);
    if (!s) return GY_AGAIN;
    s->op = op;
    s->l = l;
    s->head = (note_head){.epoch = p->x->o.epoch,
                          .op = ++u->n_op,
                          .bytes = u->by_am ? op->bytes : 0,
                          .slot = (uint64_t)(s - u->slots),
                          .wants_ack = (uint32_t)u->by_am,
                          .len = (uint32_t)op->n_note,
                          .gen = l->gen};
    if (op->n_note) memcpy(s->note, op->note, op->n_note);
    op->slot = s;
    s->is_sending = 1;
    if (u->by_am)
        send_pieces(s);
    else
        post_puts(s, op);
    s->is_sending = 0;
    return GY_OK; /* settled by progress: callbacks may not run in here */
}

/* Into src_off, from dst_off. After one that does not end in time the peer is dropped. */
static gy_status ucx_fetch(gy_xfer_peer *p, const gy_xfer_desc *d, gy_err *err) {
    ux *u = p->x->priv;
    route *l = p->priv;
    const gy_xfer_region *to = &p->x->region[d->src_region];
    int64_t until = gy_clock_ns() + (int64_t)FETCH_MS * 1000000;
    ucp_request_param_t q = {.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH,
                             .memory_type = type_of(p->x, 1),
                             .memh = to->priv};
    ucs_status_ptr_t r = gy_ucx()->ucp_get_nbx(l->ep, (char *)to->mem + d->src_off, d->bytes,
                                               l->addr[d->dst_region] + d->dst_off, l->rkey[d->dst_region], &q);
    ucs_status_t st = UCS_PTR_IS_PTR(r) ? UCS_INPROGRESS : UCS_PTR_STATUS(r);
    while (st == UCS_INPROGRESS && gy_clock_ns() < until) {
        turn(u);
        st = gy_ucx()->ucp_request_check_status(r);
    }
    if (st == UCS_INPROGRESS && !u->with_errors)
        l->fetch = r;
    else if (UCS_PTR_IS_PTR(r))
        gy_ucx()->ucp_request_free(r);
    return status_of(st, "reading from a peer", err);
}

static void settle_all(ux *u) {
    for (int i = 0; i < GY_XFER_MAX_OPS; i++) {
        slot *s = &u->slots[i];
        if (!s->is_used || s->n_pending) continue;
        int waits = s->op && s->st == GY_OK && s->is_noted && s->head.wants_ack && !s->l->is_dead;
        if (s->l->is_dead && s->st == GY_OK) s->st = GY_E_PEER;
        if (!waits) slot_settle(s);
    }
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

static writer *writer_of(ux *u, uint64_t epoch) {
    for (int i = 0; i < GY_XFER_MAX_PEERS; i++)
        if (u->writers[i].is_used && u->writers[i].epoch == epoch) return &u->writers[i];
    return NULL;
}

static int is_refused(ux *u, uint64_t epoch, uint32_t gen) {
    const writer *w = writer_of(u, epoch);
    return (w && gen < w->gen) || gy_xfer_is_forbidden(u->x, epoch);
}

static void forget_tracks(ux *u, uint64_t epoch, uint32_t below) {
    for (int i = 0; u->tracks && i < N_TRACK; i++)
        if (u->tracks[i].epoch == epoch && u->tracks[i].gen < below) u->tracks[i].is_used = 0;
}

/* 0: more writers than there can be peers. */
static int fence(ux *u, uint64_t epoch, uint32_t gen) {
    writer *w = writer_of(u, epoch);
    for (int i = 0; !w && i < GY_XFER_MAX_PEERS; i++)
        if (!u->writers[i].is_used) w = &u->writers[i];
    if (!w) return 0;
    if (w->is_used && w->gen == gen) return 1;
    *w = (writer){.epoch = epoch, .gen = gen, .is_used = 1};
    forget_tracks(u, epoch, gen);
    return 1;
}

static track *track_of(ux *u, uint64_t epoch, uint64_t op) {
    track *empty = NULL;
    for (int i = 0; i < N_TRACK; i++) {
        track *t = &u->tracks[i];
        if (t->is_used && t->epoch == epoch && t->op == op) return t;
        if (!t->is_used && !empty) empty = t;
    }
    if (empty) *empty = (track){.is_used = 1, .epoch = epoch, .op = op};
    return empty;
}

static void on_ack_sent(void *request, ucs_status_t st, void *arg) {
    (void)st;
    (void)arg;
    gy_ucx()->ucp_request_free(request);
}

static void send_ack(ucp_ep_h to, const note_head *h) {
    ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
                             .cb.send = on_ack_sent,
                             .flags = UCP_AM_SEND_FLAG_EAGER};
    /* The header is copied by eager sends of this size before the call returns or stays in the request. */
    (void)gy_ucx()->ucp_am_send_nbx(to, AM_ACK, h, sizeof *h, NULL, 0, &p);
}

/* A note is sent when all pieces are, and one lane keeps their order: so all are there, or the peer talks nonsense.
 * Nothing is kept for later: the way back to a peer is only good inside of its message's handler. */
static void arrived(ux *u, const note_head *h, const void *note, ucp_ep_h reply) {
    track *t = track_of(u, h->epoch, h->op);
    uint64_t got = t ? t->got : 0;
    if (t) t->is_used = 0;
    if (got != h->bytes) {
        gy_log(GY_LOG_ERROR, "transfer", "a peer sent other bytes than its note says: ignored", "bytes=%llu of=%llu",
               (unsigned long long)got, (unsigned long long)h->bytes);
        return;
    }
    if (h->len) gy_xfer_note(u->x, h->epoch, note, h->len);
    u->n_happened++;
    send_ack(reply, h);
}

static ucs_status_t on_note(void *arg, const void *header, size_t header_len, void *data, size_t len,
                            const ucp_am_recv_param_t *param) {
    ux *u = arg;
    note_head h;
    if (header_len != sizeof h || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) || len > GY_XFER_MAX_NOTE)
        return UCS_OK; /* not of this protocol */
    memcpy(&h, header, sizeof h);
    if (h.len != len) return UCS_OK;
    if (!h.wants_ack) {
        gy_xfer_note(u->x, h.epoch, data, len);
        u->n_happened++;
        return UCS_OK;
    }
    if (u->tracks && (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) && !is_refused(u, h.epoch, h.gen) &&
        fence(u, h.epoch, h.gen))
        arrived(u, &h, data, param->reply_ep);
    return UCS_OK;
}

/* What a peer says is checked like any input: outside of a region nothing is written. */
static ucs_status_t on_data(void *arg, const void *header, size_t header_len, void *data, size_t len,
                            const ucp_am_recv_param_t *param) {
    ux *u = arg;
    const gy_xfer *x = u->x;
    data_head h;
    if (header_len != sizeof h || !u->tracks || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) return UCS_OK;
    memcpy(&h, header, sizeof h);
    if (is_refused(u, h.epoch, h.gen)) return UCS_OK;
    if (h.region < 0 || h.region >= x->n_region || h.off > x->region[h.region].bytes ||
        len > x->region[h.region].bytes - h.off) {
        gy_log(GY_LOG_ERROR, "transfer", "a peer wanted to write outside of a region: ignored",
               "region=%d off=%llu bytes=%zu", h.region, (unsigned long long)h.off, len);
        return UCS_OK;
    }
    memcpy((char *)x->region[h.region].mem + h.off, data, len);
    track *t = track_of(u, h.epoch, h.op);
    if (!t) return UCS_OK;
    t->gen = h.gen;
    t->got += len;
    return UCS_OK;
}

static ucs_status_t on_ack(void *arg, const void *header, size_t header_len, void *data, size_t len,
                           const ucp_am_recv_param_t *param) {
    ux *u = arg;
    note_head h;
    (void)data;
    (void)len;
    (void)param;
    if (header_len != sizeof h) return UCS_OK;
    memcpy(&h, header, sizeof h);
    if (h.slot >= GY_XFER_MAX_OPS) return UCS_OK;
    slot *s = &u->slots[h.slot];
    if (!s->is_used || s->head.op != h.op) return UCS_OK; /* late: of an op that was given up */
    s->head.wants_ack = 0;
    slot_settle(s);
    return UCS_OK;
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */

static gy_status set(ucp_config_t *c, const char *name, const char *value, gy_err *err) {
    ucs_status_t s = gy_ucx()->ucp_config_modify(c, name, value);
    return s == UCS_OK ? GY_OK : gy_err_set(err, GY_E_ARG, "transfer: UCX takes no %s=%s", name, value);
}

static int is_tcp_only(const gy_xfer_opts *o) {
    return o->across_hosts && (!o->tls || !strcmp(o->tls, "tcp") || !strcmp(o->tls, "tcp,self"));
}

/* Without posix: its files have a name in /dev/shm until they are filled, and whoever is killed while it starts leaves
 * megabytes there for good. cuda_copy carries nothing here: without it UCX takes no memory of a GPU (it is what
 * allocates and recognises it). In mode PEER sysv keeps the keys of host regions and tcp takes the notes. */
static const char *tls_of(const gy_xfer_opts *o) {
    if (o->tls) return o->tls;
    if (o->across_hosts) return "tcp,self";
    if (o->peer_errors) return has_gpu(o) ? "cuda_ipc,cuda_copy,sysv,tcp,self" : "sysv,tcp,self";
    return has_gpu(o) ? "cuda_ipc,cuda_copy,sysv,self" : "sysv,self";
}

static gy_status configure(const gy_xfer_opts *o, ucp_config_t *c, gy_err *err) {
    GY_TRY(set(c, "TLS", tls_of(o), err));
    if (o->across_hosts && !o->devices)
        return gy_err_set(err, GY_E_ARG,
                          "transfer: across hosts the network devices must be named (eth0, mlx5_0:1, ...)");
    GY_TRY(set(c, "NET_DEVICES", o->devices ? o->devices : o->peer_errors ? "lo" : "all", err));
    GY_TRY(set(c, "ADAPTIVE_PROGRESS", "n", err)); /* ucx_wait says why */
    /* Else where NVML sees no NVLink the peer's processor sends what is read: it may be dead,
     * and says nothing about what is mapped here. A UCX without CUDA may not know the name. */
    if (has_gpu(o)) (void)gy_ucx()->ucp_config_modify(c, "CUDA_IPC_ENABLE_GET_ZCOPY", "on");
    if (!o->across_hosts) return GY_OK;
    /* Else a connection to a host that does not answer is waited for inside of post and import, for minutes. 1.13 knows
     * it by the first name, 1.22 by the second. */
    return gy_ucx()->ucp_config_modify(c, "CONN_NB", "y") == UCS_OK ? GY_OK : set(c, "TCP_CONN_NB", "y", err);
}

static gy_status open_context(ux *u, const gy_xfer_opts *o, gy_err *err) {
    ucp_config_t *c = NULL;
    GY_TRY(status_of(gy_ucx()->ucp_config_read(NULL, NULL, &c), "reading its configuration", err));
    gy_status st = configure(o, c, err);
    ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                      .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                      .name = "gyre"};
    if (st == GY_OK)
        st = status_of(gy_ucx()->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, c, &u->ctx), "start", err);
    gy_ucx()->ucp_config_release(c);
    return st;
}

static gy_status set_handler(ux *u, unsigned id, ucp_am_recv_callback_t cb, gy_err *err) {
    ucp_am_handler_param_t p = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                              UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                .id = id,
                                .cb = cb,
                                .arg = u};
    return status_of(gy_ucx()->ucp_worker_set_am_recv_handler(u->worker, &p), "message handler", err);
}

static gy_status create_worker(const ux *u, gy_err *err, ucp_worker_h *worker, ucp_address_t **addr, size_t *n_addr,
                               int *efd) {
    ucp_worker_params_t p = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    GY_TRY(status_of(gy_ucx()->ucp_worker_create(u->ctx, &p, worker), "worker", err));
    GY_TRY(status_of(gy_ucx()->ucp_worker_get_address(*worker, addr, n_addr), "address", err));
    return status_of(gy_ucx()->ucp_worker_get_efd(*worker, efd), "event descriptor", err);
}

static void destroy_worker(ucp_worker_h worker, ucp_address_t *addr) {
    if (addr) gy_ucx()->ucp_worker_release_address(worker, addr);
    if (worker) gy_ucx()->ucp_worker_destroy(worker);
}

static gy_status open_workers(ux *u, gy_err *err) {
    GY_TRY(create_worker(u, err, &u->worker, &u->addr, &u->n_addr, &u->efd));
    GY_TRY(set_handler(u, AM_NOTE, on_note, err));
    GY_TRY(set_handler(u, AM_DATA, on_data, err));
    GY_TRY(set_handler(u, AM_ACK, on_ack, err));
    if (!u->x->o.device || u->with_errors) return GY_OK;
    return create_worker(u, err, &u->put_worker, &u->put_addr, &u->n_put_addr, &u->put_efd);
}

static gy_status open_memory(ux *u, gy_err *err) {
    u->slots = gy_mem_alloc(GY_MEM_PD, GY_XFER_MAX_OPS, sizeof *u->slots);
    if (!u->slots) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory");
    if (!u->by_am) return GY_OK;
    u->pieces = gy_mem_alloc(GY_MEM_PD, (size_t)GY_XFER_MAX_OPS * N_PIECE, sizeof *u->pieces);
    u->tracks = gy_mem_alloc(GY_MEM_PD, N_TRACK, sizeof *u->tracks);
    return u->pieces && u->tracks ? GY_OK : gy_err_set(err, GY_E_NOMEM, "transfer: no memory");
}

static gy_status ucx_open(gy_xfer *x, gy_err *err) {
    if (x->o.device && x->o.across_hosts)
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "transfer: memory of a GPU is moved inside a host only; keep its workers on one host, or run "
                          "them with --device cpu");
    GY_TRY(gy_ucx_load(err));
    ux *u = gy_mem_alloc(GY_MEM_PD, 1, sizeof *u);
    if (!u) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory");
    x->priv = u;
    u->x = x;
    u->efd = u->put_efd = -1;
    u->by_am = is_tcp_only(&x->o);
    u->with_errors = x->o.across_hosts || x->o.peer_errors;
    u->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (u->wake < 0) return gy_err_set(err, GY_E_IO, "transfer: eventfd: %s", strerror(errno));
    GY_TRY(open_memory(u, err));
    GY_TRY(open_context(u, &x->o, err));
    return open_workers(u, err);
}

static int n_stuck(const ux *u) {
    int n = 0;
    for (int i = 0; u->slots && i < GY_XFER_MAX_OPS; i++) n += u->slots[i].n_pending;
    return n;
}

/* Keys first, as UCX wants it. */
static void begin_close(ux *u, route *l) {
    ucp_request_param_t p = {0};
    for (int i = 0; i < GY_XFER_MAX_REGION; i++) {
        if (l->rkey[i]) gy_ucx()->ucp_rkey_destroy(l->rkey[i]);
        l->rkey[i] = NULL;
    }
    if (u->with_errors) {
        p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        p.flags = UCP_EP_CLOSE_FLAG_FORCE;
    }
    ucs_status_ptr_t r = l->ep ? gy_ucx()->ucp_ep_close_nbx(l->ep, &p) : NULL;
    l->ep = NULL;
    l->closing = UCS_PTR_IS_PTR(r) ? r : NULL;
}

static int is_closed(route *l) {
    if (!l->closing) return 1;
    if (gy_ucx()->ucp_request_check_status(l->closing) == UCS_INPROGRESS) return 0;
    gy_ucx()->ucp_request_free(l->closing);
    l->closing = NULL;
    return 1;
}

static void close_endpoints(ux *u) {
    for (route *l = u->links, *next; l; l = next) {
        next = l->next;
        for (int i = 0; i < 2; i++) {
            if (l->ep) begin_close(u, l);
            for (int k = 0; !is_closed(l) && k < CLOSE_ROUNDS; k++) turn(u);
            if (l->closing) gy_ucx()->ucp_request_free(l->closing); /* else destroying the worker aborts */
            if (l->fetch) gy_ucx()->ucp_request_free(l->fetch);
            l->fetch = NULL;
            l->closing = NULL;
            l->ep = l->note_ep;
            l->note_ep = NULL;
        }
        gy_mem_free(l);
    }
    u->links = NULL;
}

static int is_named(const ux *u, const route *l) {
    for (int i = 0; i < GY_XFER_MAX_OPS; i++)
        if (u->slots[i].is_used && u->slots[i].l == l) return 1;
    return 0;
}

/* Routes whose close has come to its end, and that no request names any more. */
static void sweep_routes(ux *u) {
    for (route **at = &u->links; *at;) {
        route *l = *at;
        if (!l->is_dropped || l->is_leaving || l->ep || l->note_ep || !is_closed(l) || is_named(u, l)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        gy_mem_free(l);
        u->n_closing--;
    }
}

static void ucx_close(gy_xfer *x) {
    ux *u = x->priv;
    if (!u) return;
    for (int k = 0; n_stuck(u) && k < CLOSE_ROUNDS; k++) turn(u);
    int stuck = n_stuck(u);
    if (!stuck) {
        close_endpoints(u);
        for (int32_t i = 0; i < x->n_region; i++) gy_ucx()->ucp_mem_unmap(u->ctx, x->region[i].priv);
        destroy_worker(u->put_worker, u->put_addr);
        destroy_worker(u->worker, u->addr);
        if (u->ctx) gy_ucx()->ucp_cleanup(u->ctx);
        gy_mem_free(u->slots);
        gy_mem_free(u->pieces);
        gy_mem_free(u->tracks);
    } else {
        gy_log(GY_LOG_WARN, "transfer", "requests to a dead peer cannot end: their worker stays until the process ends",
               "requests=%d", stuck);
    }
    if (u->wake >= 0) close(u->wake);
    if (!stuck) gy_mem_free(u);
}

/* ---- regions, addresses ------------------------------------------------------------------------------------------ */

static gy_status ucx_region_alloc(gy_xfer *x, size_t bytes, gy_err *err, gy_xfer_region *out) {
    ux *u = x->priv;
    ucp_mem_h mem;
    ucp_mem_map_params_t p = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                              .length = bytes,
                              .flags = UCP_MEM_MAP_ALLOCATE};
    ucs_status_t s = gy_ucx()->ucp_mem_map(u->ctx, &p, &mem);
    if (s != UCS_OK)
        return gy_err_set(err, GY_E_NOMEM,
                          "transfer: no shared memory for a region of %zu bytes (%s); look at the size of /dev/shm and "
                          "at kernel.shmmax (containers: --shm-size, --ipc=host)",
                          bytes, gy_ucx()->ucs_status_string(s));
    ucp_mem_attr_t a = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    s = gy_ucx()->ucp_mem_query(mem, &a);
    if (s != UCS_OK) {
        gy_ucx()->ucp_mem_unmap(u->ctx, mem);
        return status_of(s, "memory", err);
    }
    memset(a.address, 0, bytes);
    *out = (gy_xfer_region){.mem = a.address, .bytes = bytes, .priv = mem};
    return GY_OK;
}

/* One registration of the whole, of the kind that is said. */
static gy_status ucx_region_map(gy_xfer *x, gy_err *err, gy_xfer_region *r) {
    ux *u = x->priv;
    ucp_mem_h mem;
    ucp_mem_map_params_t p = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                            UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                              .address = r->mem,
                              .length = r->bytes,
                              .memory_type = type_of(x, 1)};
    ucs_status_t s = gy_ucx()->ucp_mem_map(u->ctx, &p, &mem);
    if (s != UCS_OK)
        return gy_err_set(err, GY_E_DEVICE,
                          "transfer: %zu bytes of GPU %d cannot be shown to other processes (%s); UCX must be one with "
                          "CUDA (PyPI's libucx-cu13, see docs/pd.md)",
                          r->bytes, x->o.device->ordinal, gy_ucx()->ucs_status_string(s));
    r->priv = mem;
    return GY_OK;
}

static void ucx_region_free(gy_xfer *x, gy_xfer_region *r) { /* in ucx_close, behind the endpoints */
    (void)x;
    (void)r;
}

typedef struct blob_head {
    char magic[8];
    uint32_t version, by_am, n_addr, n_put_addr, n_region, pad;
    uint64_t epoch;
    struct {
        uint64_t bytes, addr;
        uint32_t n_key, is_device;
    } region[GY_XFER_MAX_REGION];
} blob_head;

static const char MAGIC[8] = "gyreucx";

typedef struct blob_out {
    char *at;
    size_t room;
    int is_full;
} blob_out;

static void put(blob_out *b, const void *bytes, size_t n) {
    if (n > b->room) b->is_full = 1;
    if (b->is_full) return;
    memcpy(b->at, bytes, n);
    b->at += n;
    b->room -= n;
}

static gy_status put_keys(const ux *u, blob_head *h, blob_out *b, gy_err *err) {
    for (int32_t i = 0; i < u->x->n_region; i++) {
        const gy_xfer_region *r = &u->x->region[i];
        void *key;
        size_t n;
        GY_TRY(status_of(gy_ucx()->ucp_rkey_pack(u->ctx, r->priv, &key, &n), "remote key", err));
        put(b, key, n);
        gy_ucx()->ucp_rkey_buffer_release(key);
        h->region[i].bytes = r->bytes;
        h->region[i].is_device = (uint32_t)r->is_device;
        h->region[i].addr = (uint64_t)(uintptr_t)r->mem;
        h->region[i].n_key = (uint32_t)n;
    }
    return GY_OK;
}

static gy_status ucx_export(gy_xfer *x, void *out, size_t cap, size_t *len_out, gy_err *err) {
    ux *u = x->priv;
    blob_head h = {.version = VERSION,
                   .by_am = (uint32_t)u->by_am,
                   .n_addr = (uint32_t)u->n_addr,
                   .n_put_addr = (uint32_t)u->n_put_addr,
                   .n_region = (uint32_t)x->n_region,
                   .epoch = x->o.epoch};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    blob_out b = {.at = out, .room = cap};
    put(&b, &h, sizeof h);
    put(&b, u->addr, u->n_addr);
    if (u->put_addr) put(&b, u->put_addr, u->n_put_addr);
    GY_TRY(put_keys(u, &h, &b, err));
    if (b.is_full) return gy_err_set(err, GY_E_ARG, "transfer: room for %zu bytes of address, more are needed", cap);
    memcpy(out, &h, sizeof h);
    *len_out = cap - b.room;
    return GY_OK;
}

static gy_status read_head(const gy_xfer *x, const void *bytes, size_t len, gy_err *err, blob_head *h) {
    const ux *u = x->priv;
    if (len < sizeof *h || memcmp(bytes, MAGIC, sizeof MAGIC) != 0)
        return gy_err_set(err, GY_E_FORMAT, "transfer: %zu bytes are no address of this transport (ucx)", len);
    memcpy(h, bytes, sizeof *h);
    if (h->version != VERSION || h->n_region > GY_XFER_MAX_REGION || h->by_am != (uint32_t)u->by_am)
        return gy_err_set(err, GY_E_FORMAT,
                          "transfer: the peer speaks version %u with %s, expected version %d with %s: both ends must "
                          "run the same gyre with the same lanes",
                          h->version, h->by_am ? "messages" : "puts", VERSION, u->by_am ? "messages" : "puts");
    uint64_t need = sizeof *h + (uint64_t)h->n_addr + h->n_put_addr;
    for (uint32_t i = 0; i < h->n_region; i++) need += h->region[i].n_key;
    if (need != len)
        return gy_err_set(err, GY_E_FORMAT, "transfer: an address of %zu bytes, expected %llu", len,
                          (unsigned long long)need);
    return GY_OK;
}

static void on_peer_error(void *arg, ucp_ep_h ep, ucs_status_t st) {
    route *l = arg;
    (void)ep;
    l->is_dead = 1;
    gy_log(GY_LOG_WARN, "transfer", "a peer's connection is lost", "reason=\"%s\"", gy_ucx()->ucs_status_string(st));
}

static gy_status connect_worker(const ux *u, ucp_worker_h worker, route *l, const void *addr, gy_err *err,
                                ucp_ep_h *out) {
    ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                         .address = addr,
                         .err_mode = UCP_ERR_HANDLING_MODE_NONE};
    if (u->with_errors) {
        p.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER;
        p.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        p.err_handler = (ucp_err_handler_t){.cb = on_peer_error, .arg = l};
    }
    return status_of(gy_ucx()->ucp_ep_create(worker, &p, out), "connection", err);
}

static gy_status connect_link(const ux *u, route *l, const blob_head *h, const char *addr, gy_err *err) {
    const char *put_addr = h->n_put_addr ? addr + h->n_addr : addr;
    if (!l->has_device || !u->put_worker) return connect_worker(u, u->worker, l, addr, err, &l->ep);
    GY_TRY(connect_worker(u, u->put_worker, l, put_addr, err, &l->ep));
    return connect_worker(u, u->worker, l, addr, err, &l->note_ep);
}

/* Of GPU memory UCX may have an address too: for the GPU. */
static void find_mapped(const ux *u, route *l, uint32_t i, int is_device) {
    void *at;
    if (u->x->o.across_hosts || u->by_am || is_device) return;
    if (gy_ucx()->ucp_rkey_ptr(l->rkey[i], l->addr[i], &at) == UCS_OK) l->at[i] = at;
}

static gy_status read_keys(const ux *u, route *l, const blob_head *h, const char *at, gy_xfer_peer *p, gy_err *err) {
    for (uint32_t i = 0; i < h->n_region; i++) {
        if (!u->by_am) GY_TRY(status_of(gy_ucx()->ucp_ep_rkey_unpack(l->ep, at, &l->rkey[i]), "remote key", err));
        at += h->region[i].n_key;
        l->addr[i] = h->region[i].addr;
        find_mapped(u, l, i, h->region[i].is_device != 0);
        p->bytes[i] = h->region[i].bytes;
        p->is_device[i] = h->region[i].is_device != 0;
    }
    return GY_OK;
}

static int is_over(route *l) {
    if (l->fetch && gy_ucx()->ucp_request_check_status(l->fetch) != UCS_INPROGRESS) {
        gy_ucx()->ucp_request_free(l->fetch);
        l->fetch = NULL;
    }
    return !l->n_put && !l->fetch;
}

static void let_go(ux *u) {
    for (route *l = u->links; l && u->n_leaving; l = l->next) {
        if (!l->is_leaving) continue;
        if (l->ep && is_over(l)) begin_close(u, l); /* UCX takes no put back */
        if (l->ep || !is_closed(l)) continue;
        l->is_leaving = 0;
        u->n_leaving--;
    }
}

static void retire(ux *u, route *l) {
    l->is_dead = l->is_dropped = 1;
    if (u->with_errors) u->n_closing++;
    if (l->has_device) {
        l->is_leaving = 1;
        u->n_leaving++;
        let_go(u);
    } else if (u->with_errors) {
        begin_close(u, l);
    }
}

/* Puts that UCX carries itself, of memory that is a GPU's in name only, may never end; they map nothing. */
static int is_in_the_way(const ux *u, const route *l) {
    return l->is_leaving && (has_gpu(&u->x->o) || (!l->n_put && !l->fetch));
}

static int is_waited_for(const ux *u) {
    for (const route *l = u->links; l && u->n_leaving; l = l->next)
        if (is_in_the_way(u, l)) return 1;
    return 0;
}

static gy_status too_late(route *l, gy_err *err) {
    if (l->late_ns != INT64_MIN)
        gy_log(GY_LOG_ERROR, "transfer", "the GPU memory of a lost peer stays mapped: no other peer is taken",
               "puts=%d closing=%d", l->n_put, l->closing != NULL);
    l->late_ns = INT64_MIN; /* said */
    return gy_err_set(err, GY_E_PEER,
                      "transfer: the GPU memory of a lost peer is still mapped; start this worker again");
}

/* GY_AGAIN: somebody's memory is mapped still. */
static gy_status find_way(ux *u, gy_err *err) {
    int64_t now = gy_clock_ns();
    gy_status st = GY_OK;
    let_go(u);
    for (route *l = u->links; l && u->n_leaving; l = l->next) {
        if (!is_in_the_way(u, l)) continue;
        if (!l->late_ns) l->late_ns = now + (int64_t)LET_GO_MS * 1000000;
        if (now >= l->late_ns) return too_late(l, err);
        st = GY_AGAIN;
    }
    return st;
}

static gy_status ucx_import(gy_xfer_peer *p, const void *bytes, size_t len, gy_err *err) {
    ux *u = p->x->priv;
    blob_head h;
    GY_TRY(read_head(p->x, bytes, len, err, &h));
    gy_status st = find_way(u, err);
    if (st != GY_OK) return st;
    route *l = gy_mem_alloc(GY_MEM_PD, 1, sizeof *l);
    if (!l) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory for a peer");
    l->epoch = p->epoch = h.epoch;
    l->gen = ++u->n_gen;
    l->next = u->links;
    u->links = l;
    p->priv = l;
    for (uint32_t i = 0; i < h.n_region; i++) l->has_device |= h.region[i].is_device != 0;
    st = connect_link(u, l, &h, (const char *)bytes + sizeof h, err);
    if (st >= 0) st = read_keys(u, l, &h, (const char *)bytes + sizeof h + h.n_addr + h.n_put_addr, p, err);
    if (st < 0) retire(u, l);
    return st;
}

static void ucx_drop(gy_xfer_peer *p) {
    ux *u = p->x->priv;
    route *l = p->priv;
    for (int i = 0; i < GY_XFER_MAX_OPS; i++) {
        slot *s = &u->slots[i];
        if (!s->is_used || s->l != l) continue;
        s->op = NULL;
        if (!s->n_pending) s->is_used = 0;
    }
    retire(u, l);
}

/* Of puts over verbs nothing here can stop one that is under way. */
static gy_status ucx_forbid(gy_xfer *x, uint64_t epoch, gy_err *err) {
    ux *u = x->priv;
    if (x->o.across_hosts && !u->by_am)
        return gy_err_set(err, GY_E_UNSUPPORTED,
                          "transfer: with these lanes (%s) a writer that lives cannot be kept out: only tcp can",
                          x->o.tls);
    writer *w = writer_of(u, epoch);
    if (w) w->is_used = 0;
    forget_tracks(u, epoch, UINT32_MAX);
    return GY_OK;
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

static int ucx_progress(gy_xfer *x) {
    ux *u = x->priv;
    u->n_happened = 0;
    settle_all(u);
    while (turn(u)) {
    }
    settle_all(u);
    if (u->n_leaving) let_go(u);
    if (u->n_closing) sweep_routes(u);
    return u->n_happened;
}

/* Arm says OK when nothing has come since progress returned 0: then UCX's descriptor rings. That holds for interfaces
 * that UCX calls active only. By default one that no endpoint of this side uses (D's, over shared memory) is not: its
 * events are looked at by a callback of progress (ucp_worker.c, ucp_worker_iface_check_events_progress), which stays
 * queued, and reports no progress, when a message comes between its last look and its own arming (uct_iface_event_arm
 * says BUSY in ucp_worker_iface_check_events_do); ucp_worker_arm knows nothing of it, its list has active ones only,
 * and says OK, while the interface's events stay disabled. So a receiver slept behind a full queue for ever, 5 times in
 * 15 whole runs of 30,000 small ops (1.13.1). With ADAPTIVE_PROGRESS=n all interfaces are active from the start. */
static void ucx_wait(gy_xfer *x, int timeout_ms) {
    ux *u = x->priv;
    uint64_t n;
    struct pollfd fd[3] = {
        {.fd = u->wake, .events = POLLIN}, {.fd = u->efd, .events = POLLIN}, {.fd = u->put_efd, .events = POLLIN}};
    if (x->stats.inflight_bytes) return; /* spin: completions of plain stores ring nothing */
    if (is_waited_for(u) && (unsigned)timeout_ms > 1) timeout_ms = 1; /* nor does an endpoint that is closed */
    if (gy_ucx()->ucp_worker_arm(u->worker) != UCS_OK) return;
    if (u->put_worker && gy_ucx()->ucp_worker_arm(u->put_worker) != UCS_OK) return;
    poll(fd, u->put_worker ? 3 : 2, timeout_ms);
    if (read(u->wake, &n, sizeof n) < 0) return; /* nobody rang */
}

static void ucx_wake(gy_xfer *x) {
    const ux *u = x->priv;
    uint64_t one = 1;
    ssize_t n = write(u->wake, &one, sizeof one);
    (void)n; /* full: it rings already */
}

/* "lane[0]: 3:sysv/memory.0 md[1] ..." of ucp_ep_print_info: the names, each once. */
static void read_lanes(const char *text, char *out, size_t cap) {
    size_t n = 0;
    out[0] = 0;
    for (const char *at = text; (at = strstr(at, "lane[")); at++) {
        char name[32];
        if (sscanf(at, "lane[%*d]: %*d:%31[^/ ]", name) != 1 || strstr(out, name)) continue;
        int k = snprintf(out + n, cap - n, "%s%s", n ? ", " : "", name);
        if (k < 0 || (size_t)k >= cap - n) return;
        n += (size_t)k;
    }
}

static const char *ucx_lanes(gy_xfer_peer *p) {
    route *l = p->priv;
    char *text = NULL;
    size_t n;
    if (l->lanes[0]) return l->lanes;
    FILE *f = open_memstream(&text, &n);
    if (!f) return "unknown";
    gy_ucx()->ucp_ep_print_info(l->ep, f);
    if (fclose(f) == 0) read_lanes(text, l->lanes, sizeof l->lanes);
    free(text);
    return l->lanes[0] ? l->lanes : "unknown";
}

const gy_xfer_ops gy_xfer_ucx = {.name = "ucx",
                                 .open = ucx_open,
                                 .close = ucx_close,
                                 .region_alloc = ucx_region_alloc,
                                 .region_map = ucx_region_map,
                                 .region_free = ucx_region_free,
                                 .export_blob = ucx_export,
                                 .import_blob = ucx_import,
                                 .drop = ucx_drop,
                                 .post = ucx_post,
                                 .fetch = ucx_fetch,
                                 .progress = ucx_progress,
                                 .forbid = ucx_forbid,
                                 .wait = ucx_wait,
                                 .wake = ucx_wake,
                                 .lanes = ucx_lanes};
