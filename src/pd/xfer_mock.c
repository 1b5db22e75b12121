/* The made-up network: a heap-less list of events (there are few), each due at a drawn time. */
#include "pd/xfer_mock.h"

#include "base/mem.h"
#include "pd/xfer_int.h"

#include <string.h>

enum { MAX_EVENT = 4096, MAX_END = 64, MAX_INBOX = 512 };

typedef enum event_kind { COPY, DONE, NOTE, LOST } event_kind;

typedef struct event {
    int64_t at;
    uint64_t order; /* of making: the tie-break */
    event_kind kind;
    int32_t from, to; /* ends */
    uint64_t peer_id; /* of the writer's peer: events of a dropped one find nobody */
    gy_xfer_op *op;   /* COPY, DONE: while the peer lives */
    gy_xfer_desc d;   /* COPY */
    uint64_t epoch;   /* NOTE: the writer's */
    size_t n_note;
    char note[GY_XFER_MAX_NOTE];
} event;

typedef struct arrival {
    uint64_t epoch;
    size_t len;
    char bytes[GY_XFER_MAX_NOTE];
} arrival;

typedef struct end {
    gy_xfer *x; /* NULL: closed */
    void *mem[GY_XFER_MAX_REGION];
    int is_dead;
    arrival inbox[MAX_INBOX];
    int n_inbox;
    gy_xfer_op *finished[GY_XFER_MAX_OPS];
    int n_finished;
    int n_again;             /* that the forbid being asked for has heard */
    uint64_t fence[MAX_END]; /* by writer: the newest connection of which an op was done */
} end;

struct gy_mock_net {
    gy_mock_opts o;
    uint64_t rng, n_made, n_peer;
    int64_t now, n_kept_out;
    int is_parted;
    event ev[MAX_EVENT];
    int n_ev;
    end end[MAX_END];
    int32_t n_end;
};

typedef struct blob {
    char magic[8];
    int32_t end;
    size_t bytes[GY_XFER_MAX_REGION];
    int is_device[GY_XFER_MAX_REGION];
} blob;

static const char MAGIC[8] = "gymock1";

typedef struct link { /* a peer's priv */
    uint64_t id;
    int32_t to;
    int is_broken;
} link;

/* ---- the net ----------------------------------------------------------------------------------------------------- */

gy_status gy_mock_net_create(const gy_mock_opts *o, gy_mock_net **out) {
    gy_mock_net *n = gy_mem_alloc(GY_MEM_PD, 1, sizeof *n);
    if (!n) return GY_E_NOMEM;
    n->o = *o;
    n->rng = o->seed * 2 + 1;
    *out = n;
    return GY_OK;
}

void gy_mock_net_destroy(gy_mock_net *n) {
    gy_mem_free(n);
}

int64_t gy_mock_net_now(const gy_mock_net *n) {
    return n->now;
}

int gy_mock_net_n_event(const gy_mock_net *n) {
    return n->n_ev;
}

int64_t gy_mock_net_n_kept_out(const gy_mock_net *n) {
    return n->n_kept_out;
}

static double draw(gy_mock_net *n) { /* PCG's multiplier; [0, 1) */
    n->rng = n->rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(n->rng >> 11) * 0x1p-53;
}

static int64_t later(gy_mock_net *n, int64_t from) {
    return from + n->o.latency_ns + (int64_t)(draw(n) * (double)n->o.jitter_ns);
}

static void push(gy_mock_net *n, event e) {
    GY_CHECK(n->n_ev < MAX_EVENT);
    e.order = n->n_made++;
    n->ev[n->n_ev++] = e;
}

static int32_t end_of(const gy_mock_net *n, const gy_xfer *x) {
    for (int32_t i = 0; i < n->n_end; i++)
        if (n->end[i].x == x) return i;
    return -1;
}

void gy_mock_net_part(gy_mock_net *n, int is_parted) {
    n->is_parted = is_parted;
}

void gy_mock_net_break(gy_mock_net *n, gy_xfer *x) {
    int k = 0;
    for (gy_xfer_peer *p = x->peers; p; p = p->next) {
        link *l = p->priv;
        l->is_broken = 1;
        for (int i = 0; i < n->n_ev; i++)
            if (n->ev[i].peer_id == l->id && n->ev[i].kind == DONE) n->ev[i].kind = LOST;
    }
    for (int i = 0; i < n->n_ev; i++)
        if (n->ev[i].kind != LOST) n->ev[k++] = n->ev[i];
    n->n_ev = k;
}

void gy_mock_net_kill(gy_mock_net *n, gy_xfer *x) {
    int32_t i = end_of(n, x);
    GY_CHECK(i >= 0);
    n->end[i].is_dead = 1;
}

static void arrive(gy_mock_net *n, const event *e) {
    end *to = &n->end[e->to];
    if (to->is_dead || !to->x) return;
    GY_CHECK(to->n_inbox < MAX_INBOX);
    arrival *a = &to->inbox[to->n_inbox++];
    a->epoch = e->epoch;
    a->len = e->n_note;
    memcpy(a->bytes, e->note, e->n_note);
}

/* Lost and repeated notes: the same event again, later. */
static void do_note(gy_mock_net *n, const event *e) {
    event again = *e;
    if (draw(n) < n->o.p_lost) {
        again.at = n->now + 10 * n->o.latency_ns + 1;
        push(n, again);
        return;
    }
    arrive(n, e);
    if (draw(n) < n->o.p_twice) {
        again.at = later(n, n->now);
        push(n, again);
    }
}

static void do_copy(gy_mock_net *n, const event *e) {
    const end *from = &n->end[e->from], *to = &n->end[e->to];
    if (from->is_dead || !from->x || !to->mem[e->d.dst_region]) return;
    if (gy_xfer_is_forbidden(to->x, e->epoch) || e->peer_id < to->fence[e->from]) {
        n->n_kept_out++;
        return;
    }
    const gy_xfer_region *r = &from->x->region[e->d.src_region];
    const gy_device *dev = r->is_device ? from->x->o.device : NULL;
    char *dst = (char *)to->mem[e->d.dst_region] + e->d.dst_off;
    const char *src = (const char *)r->mem + e->d.src_off;
    if (dev)
        GY_CHECK(dev->copy(dev->arg, dst, src, e->d.bytes, NULL) == GY_OK);
    else
        memcpy(dst, src, e->d.bytes);
}

/* The flush is complete: only now the writer, if it lives, sends the note. */
static void do_done(gy_mock_net *n, const event *e) {
    end *from = &n->end[e->from];
    event note = *e;
    uint64_t *fence = &n->end[e->to].fence[e->from];
    if (*fence < e->peer_id) *fence = e->peer_id;
    from->finished[from->n_finished++] = e->op;
    if (!e->n_note) return;
    note.kind = NOTE;
    note.at = later(n, n->now);
    push(n, note);
}

int gy_mock_net_step(gy_mock_net *n) {
    int best = -1;
    for (int i = 0; i < n->n_ev; i++)
        if (best < 0 || n->ev[i].at < n->ev[best].at ||
            (n->ev[i].at == n->ev[best].at && n->ev[i].order < n->ev[best].order))
            best = i;
    if (best < 0) return 0;
    event e = n->ev[best];
    n->ev[best] = n->ev[--n->n_ev];
    n->now = e.at;
    end *from = &n->end[e.from];
    if (from->is_dead && e.kind != NOTE) return 1; /* a note that is on its way arrives */
    if (e.kind == COPY) do_copy(n, &e);
    if (e.kind == NOTE) do_note(n, &e);
    if (e.kind == DONE) do_done(n, &e);
    return 1;
}

/* ---- one end ----------------------------------------------------------------------------------------------------- */

static gy_status mock_open(gy_xfer *x, gy_err *err) {
    gy_mock_net *n = x->o.mock;
    if (!n || n->n_end == MAX_END) return gy_err_set(err, GY_E_ARG, "mock: no network, or more than %d ends", MAX_END);
    x->priv = n;
    n->end[n->n_end++] = (end){.x = x};
    return GY_OK;
}

static void mock_close(gy_xfer *x) {
    gy_mock_net *n = x->priv;
    if (!n) return;
    end *e = &n->end[end_of(n, x)];
    memset(e->mem, 0, sizeof e->mem);
    e->x = NULL;
}

static gy_status mock_region_alloc(gy_xfer *x, size_t bytes, gy_err *err, gy_xfer_region *out) {
    gy_mock_net *n = x->priv;
    out->mem = gy_mem_map_pages(GY_MEM_PD, bytes);
    if (!out->mem) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory for a region of %zu bytes", bytes);
    n->end[end_of(n, x)].mem[x->n_region] = out->mem;
    return GY_OK;
}

static gy_status mock_region_map(gy_xfer *x, gy_err *err, gy_xfer_region *r) {
    gy_mock_net *n = x->priv;
    (void)err;
    n->end[end_of(n, x)].mem[x->n_region] = r->mem;
    return GY_OK;
}

static void mock_region_free(gy_xfer *x, gy_xfer_region *r) {
    gy_mock_net *n = x->priv;
    memset(n->end[end_of(n, x)].mem, 0, sizeof n->end[0].mem);
    if (!r->is_device) gy_mem_unmap_pages(GY_MEM_PD, r->mem, r->bytes);
}

static gy_status mock_export(gy_xfer *x, void *out, size_t cap, size_t *len_out, gy_err *err) {
    blob b = {.end = end_of(x->priv, x)};
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

static gy_status mock_import(gy_xfer_peer *p, const void *bytes, size_t len, gy_err *err) {
    gy_mock_net *n = p->x->priv;
    blob b;
    if (len != sizeof b || memcmp(bytes, MAGIC, sizeof MAGIC) != 0)
        return gy_err_set(err, GY_E_FORMAT, "transfer: %zu bytes are no address of this transport (mock)", len);
    memcpy(&b, bytes, sizeof b);
    if (n->is_parted) return gy_err_set(err, GY_E_PEER, "transfer: no way to this peer");
    link *l = gy_mem_alloc(GY_MEM_PD, 1, sizeof *l);
    if (!l) return gy_err_set(err, GY_E_NOMEM, "transfer: no memory for a peer");
    *l = (link){.id = ++n->n_peer, .to = b.end};
    p->priv = l;
    memcpy(p->bytes, b.bytes, sizeof p->bytes);
    memcpy(p->is_device, b.is_device, sizeof p->is_device);
    return GY_OK;
}

/* What was under way stops; notes that are out already arrive. */
static void mock_drop(gy_xfer_peer *p) {
    gy_mock_net *n = p->x->priv;
    link *l = p->priv;
    int k = 0;
    for (int i = 0; i < n->n_ev; i++)
        if (n->ev[i].peer_id != l->id || n->ev[i].kind == NOTE || l->is_broken) n->ev[k++] = n->ev[i];
    n->n_ev = k;
    gy_mem_free(l);
}

static gy_status mock_post(gy_xfer_peer *p, gy_xfer_op *op, gy_err *err) {
    gy_mock_net *n = p->x->priv;
    const link *l = p->priv;
    int64_t last = n->now;
    if (l->is_broken) return gy_err_set(err, GY_E_PEER, "transfer: the connection to this peer is lost");
    event e = {.from = end_of(n, p->x), .to = l->to, .peer_id = l->id, .op = op, .epoch = p->x->o.epoch};
    if (n->n_ev + op->n_desc + 2 > MAX_EVENT) return GY_AGAIN;
    for (int32_t i = 0; i < op->n_desc; i++) {
        e.kind = COPY;
        e.at = later(n, n->now);
        e.d = op->desc[i];
        if (e.at > last) last = e.at;
        push(n, e);
    }
    e.kind = DONE;
    e.at = later(n, last);
    e.n_note = op->n_note;
    if (op->n_note) memcpy(e.note, op->note, op->n_note);
    push(n, e);
    return GY_OK;
}

static int is_on_wire(const gy_xfer *x, const gy_xfer_op *op) {
    for (const gy_xfer_peer *p = x->peers; p; p = p->next)
        for (const gy_xfer_op *w = p->wire; w; w = w->next)
            if (w == op) return 1;
    return 0;
}

static int fail_broken(const gy_xfer *x) {
    int n = 0;
    for (gy_xfer_peer *p = x->peers; p; p = p->next)
        for (; ((const link *)p->priv)->is_broken && p->wire; n++) gy_xfer_op_done(p->wire, GY_E_PEER);
    return n;
}

static int mock_progress(gy_xfer *x) {
    gy_mock_net *n = x->priv;
    end *e = &n->end[end_of(n, x)];
    if (e->is_dead) return 0;
    int failed = fail_broken(x);
    int done = e->n_finished, got = e->n_inbox;
    for (int i = 0; i < done; i++)
        if (is_on_wire(x, e->finished[i])) gy_xfer_op_done(e->finished[i], GY_OK);
    e->n_finished = 0;
    for (int i = 0; i < got; i++) gy_xfer_note(x, e->inbox[i].epoch, e->inbox[i].bytes, e->inbox[i].len);
    memmove(e->inbox, e->inbox + got, (size_t)(e->n_inbox - got) * sizeof *e->inbox);
    e->n_inbox -= got;
    return done + got + failed;
}

static gy_status mock_forbid(gy_xfer *x, uint64_t epoch, gy_err *err) {
    gy_mock_net *n = x->priv;
    end *e = &n->end[end_of(n, x)];
    (void)epoch, (void)err;
    if (e->n_again++ < n->o.n_forbid_again) return GY_AGAIN;
    e->n_again = 0;
    return GY_OK;
}

static void mock_wait(gy_xfer *x, int timeout_ms) { /* time is the test's */
    (void)x;
    (void)timeout_ms;
}

static void mock_wake(gy_xfer *x) {
    (void)x;
}

static const char *mock_lanes(gy_xfer_peer *p) {
    (void)p;
    return "mock";
}

const gy_xfer_ops gy_xfer_mock = {.name = "mock",
                                  .open = mock_open,
                                  .close = mock_close,
                                  .region_alloc = mock_region_alloc,
                                  .region_map = mock_region_map,
                                  .region_free = mock_region_free,
                                  .export_blob = mock_export,
                                  .import_blob = mock_import,
                                  .drop = mock_drop,
                                  .post = mock_post,
                                  .progress = mock_progress,
                                  .forbid = mock_forbid,
                                  .wait = mock_wait,
                                  .wake = mock_wake,
                                  .lanes = mock_lanes};
