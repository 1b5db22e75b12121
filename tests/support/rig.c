#include "support/rig.h"

#include "base/clock.h"
#include "pd/worker_int.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void die(const char *what, const gy_err *err) {
    fprintf(stderr, "rig: %s: %s\n", what, err ? err->msg : "");
    abort();
}

uint32_t rig_draw(rig *g, uint32_t n) {
    g->rng = g->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((g->rng >> 33) % n);
}

/* ---- workers ----------------------------------------------------------------------------------------------------- */

static void on_send(void *user, const gy_msg *m) {
    rig_worker *w = user;
    pthread_mutex_lock(&w->lock);
    if (gy_msg_encode(m, &w->out) < 0) die("encode", NULL);
    pthread_mutex_unlock(&w->lock);
}

static int64_t on_clock(void *user) {
    const rig_worker *w = user;
    return w->clock ? *w->clock : gy_clock_ns();
}

static gy_engine_opts engine_opts(const rig *g, int role) {
    gy_engine_opts o;
    gy_engine_opts_default(&o);
    o.sched.max_rows = g->model.max_rows ? g->model.max_rows : 64;
    o.sched.max_seqs = g->model.max_seqs ? g->model.max_seqs : 5;
    o.max_len = g->model.max_len ? g->model.max_len : 256;
    o.kv_layout = g->model.layout;
    o.cyclic_k = g->model.cyclic_k;
    o.kv_blocks = g->model.kv_blocks;
    o.max_handoff = g->s.max_handoff ? g->s.max_handoff : 4;
    if (g->s.patch) g->s.patch(&o, role, g->s.patch_arg);
    return o;
}

static void read_ready(rig *g, int i) {
    gy_msg m;
    rig_worker *w = &g->w[i];
    if (!rig_said(g, i, &m) || m.kind != GY_MSG_READY || m.peer != w->epoch) die("no READY", NULL);
    w->info = m.ready.info;
    w->n_blob = m.n_blob;
    w->blob = malloc((size_t)m.n_blob + 1);
    memcpy(w->blob, m.blob, (size_t)m.n_blob);
}

static void connect(rig *g, int from, int to) {
    if (from == to || g->w[from].is_dead || g->w[to].is_dead || !g->w[from].w || !g->w[to].w) return;
    rig_tell(
        g, from,
        &(gy_msg){.kind = GY_MSG_CONNECT, .peer = g->w[to].epoch, .blob = g->w[to].blob, .n_blob = g->w[to].n_blob});
}

void rig_worker_open(rig *g, int i) {
    gy_err err = {0};
    rig_worker *w = &g->w[i];
    *w = (rig_worker){.epoch = ++g->next_epoch, .role = g->s.role[i]};
    pthread_mutex_init(&w->lock, NULL);
    gy_worker_opts o = {.model = g->s.each[i] ? g->s.each[i] : g->m,
                        .engine = engine_opts(g, w->role),
                        .role = w->role,
                        .epoch = w->epoch,
                        .user = w,
                        .send = on_send,
                        .compile = g->s.compile,
                        .now_ns = on_clock};
    o.xfer.kind = g->s.kind;
    o.xfer.mock = g->net;
    if (g->s.on_device) {
        fake_device_open(&w->device, 0); /* the CPU's kernels compute on it */
        o.xfer.device = &w->device.dev;
    }
    gy_xfer_limits_default(&o.xfer.limits);
    if (g->s.limits.chunk_bytes) o.xfer.limits = g->s.limits;
    if (gy_worker_open(&o, &err, &w->w) < 0) die("open", &err);
    if (!g->s.is_bare) read_ready(g, i);
}

void rig_worker_close(rig_worker *w) {
    gy_worker_close(w->w);
    fake_device_close(&w->device);
    gy_str_free(&w->out);
    gy_str_free(&w->in);
    free(w->blob);
    *w = (rig_worker){0};
}

static int next_frame(rig *g, rig_worker *w) {
    gy_err err;
    size_t n;
    pthread_mutex_lock(&w->lock);
    if (gy_msg_frame(gy_str_z(&w->out) + w->at, w->out.len - w->at, &n, &err) < 0) die("frame", &err);
    gy_str_clear(&g->frame);
    if (n) gy_str_append(&g->frame, w->out.data + w->at, n);
    w->at += n;
    if (!n) {
        if (w->at != w->out.len) die("half a frame", NULL);
        gy_str_clear(&w->out);
        w->at = 0;
    }
    pthread_mutex_unlock(&w->lock);
    return n > 0;
}

int rig_said(rig *g, int i, gy_msg *m) {
    rig_worker *w = &g->w[i];
    gy_err err;
    if (!next_frame(g, w)) return 0;
    gy_arena_reset(g->arena);
    if (gy_msg_decode(g->frame.data, g->frame.len, g->arena, &err, m) != GY_OK) die("decode", &err);
    if (m->kind <= GY_MSG_LEAVING) w->n_said[m->kind]++;
    if (m->kind == GY_MSG_STATS) w->stats = m->stats;
    if (m->kind == GY_MSG_FATAL && !g->s.may_fail) die(m->text, NULL);
    if (m->kind == GY_MSG_FATAL) snprintf(w->fatal, sizeof w->fatal, "%.200s", m->text);
    if (m->kind == GY_MSG_CONNECTED && m->status < 0) die(m->text, NULL);
    return 1;
}

/* What the worker gets is a copy that is gone after the call. */
static void deliver(rig_worker *w, const char *bytes, size_t len) {
    gy_err err;
    gy_msg got;
    gy_arena *a = gy_arena_create(GY_MEM_PD, 4096);
    if (gy_msg_decode(bytes, len, a, &err, &got) != GY_OK) die("decode", &err);
    if (gy_worker_message(w->w, &got, &err) < 0) die("message", &err);
    gy_arena_destroy(a);
}

static void ring(rig_worker *w) {
    const uint64_t one = 1;
    if (write(w->bell, &one, sizeof one) < 0) die("bell", NULL);
}

void rig_tell(rig *g, int i, const gy_msg *m) {
    rig_worker *w = &g->w[i];
    if (w->is_dead || !w->w) return;
    pthread_mutex_lock(&w->lock);
    if (gy_msg_encode(m, &w->in) < 0) die("encode", NULL);
    pthread_mutex_unlock(&w->lock);
    if (g->has_threads) {
        ring(w);
        return;
    }
    deliver(w, w->in.data, w->in.len);
    gy_str_clear(&w->in);
}

void rig_post(rig *g, int i, const gy_msg *m) {
    if (g->w[i].w && gy_msg_encode(m, &g->w[i].in) < 0) die("encode", NULL);
}

int rig_deliver(rig *g, int i) {
    rig_worker *w = &g->w[i];
    gy_err err;
    size_t n;
    if (!w->w || w->is_dead || !w->in.len) return 0;
    if (gy_msg_frame(w->in.data, w->in.len, &n, &err) < 0 || !n) die("frame", &err);
    deliver(w, w->in.data, n);
    memmove(w->in.data, w->in.data + n, w->in.len - n);
    w->in.len -= n;
    return 1;
}

static gy_status turn_engine(rig *g, int i) {
    gy_err err;
    gy_status st = gy_worker_turn(g->w[i].w, &err);
    if (st < 0 && !g->s.may_fail) die("turn", &err);
    if (st < 0) g->w[i].has_failed = 1;
    return st;
}

static int is_live(const rig *g, int i) {
    return g->w[i].w && !g->w[i].is_dead;
}

void rig_turn_worker(rig *g, int i) {
    if (!is_live(g, i)) return;
    int engine = !g->unsteady || rig_draw(g, 2), xfer = !g->unsteady || rig_draw(g, 2);
    gy_status st = engine && !g->w[i].has_failed ? turn_engine(g, i) : GY_AGAIN;
    if (g->hold_p && st == GY_OK && (g->w[i].role & GY_PD_PREFILL)) return;
    if (xfer) gy_worker_xfer_turn(g->w[i].w);
}

void rig_turn(rig *g) {
    for (int i = 0; i < g->n_worker; i++) {
        rig_turn_worker(g, i);
        for (uint32_t n = g->net ? rig_draw(g, 8) : 0; n; n--) gy_mock_net_step(g->net);
    }
    g->n_turn++;
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void take_in(rig_worker *w, gy_str *mine) {
    gy_err err;
    size_t n;
    pthread_mutex_lock(&w->lock);
    gy_str_append(mine, gy_str_z(&w->in), w->in.len);
    gy_str_clear(&w->in);
    pthread_mutex_unlock(&w->lock);
    for (size_t at = 0; at < mine->len; at += n) {
        if (gy_msg_frame(mine->data + at, mine->len - at, &n, &err) < 0 || !n) die("frame", &err);
        deliver(w, mine->data + at, n);
    }
    gy_str_clear(mine);
}

static void *run_engine(void *arg) {
    rig_worker *w = arg;
    gy_str mine = {0};
    gy_err err;
    uint64_t count;
    while (!atomic_load(&w->quit)) {
        take_in(w, &mine);
        gy_status st = gy_worker_turn(w->w, &err);
        if (st < 0) die("turn", &err);
        if (st == GY_OK) continue;
        struct pollfd fd[2] = {{.fd = gy_worker_fd(w->w), .events = POLLIN}, {.fd = w->bell, .events = POLLIN}};
        poll(fd, 2, -1);
        if (fd[1].revents && read(w->bell, &count, sizeof count) < 0) die("bell", NULL);
    }
    gy_str_free(&mine);
    return NULL;
}

static void *run_xfer(void *arg) {
    rig_worker *w = arg;
    while (!atomic_load(&w->quit))
        if (!gy_worker_xfer_turn(w->w)) gy_worker_xfer_wait(w->w, -1);
    return NULL;
}

void rig_start_threads(rig *g) {
    g->has_threads = 1;
    for (int i = 0; i < g->n_worker; i++) {
        g->w[i].bell = eventfd(0, EFD_CLOEXEC);
        pthread_create(&g->w[i].thread[0], NULL, run_engine, &g->w[i]);
        pthread_create(&g->w[i].thread[1], NULL, run_xfer, &g->w[i]);
    }
}

void rig_stop_threads(rig *g) {
    for (int i = 0; i < g->n_worker; i++) {
        rig_worker *w = &g->w[i];
        atomic_store(&w->quit, 1);
        ring(w);
        pthread_join(w->thread[0], NULL);
        gy_worker_xfer_wake(w->w);
        pthread_join(w->thread[1], NULL);
        close(w->bell);
    }
    g->has_threads = 0;
}

static void check_books(rig *g, int i) {
    gold_check((gy_engine *)(uintptr_t)gy_worker_engine(g->w[i].w));
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static int next_with(rig *g, int role, int after) {
    for (int k = 1; k <= g->n_worker; k++) {
        int i = (after + k) % g->n_worker;
        if (is_live(g, i) && (g->w[i].role & role)) return i;
    }
    return -1;
}

static gy_msg with_request(gy_msg_kind kind, const rig_call *c) {
    gy_msg m = {.kind = kind, .tid = c->tid};
    m.request.r = c->r;
    m.request.grammar_kind = -1;
    if (!c->regex) return m;
    m.request.grammar_kind = GY_GRAMMAR_REGEX;
    m.request.grammar = c->regex;
    m.request.n_grammar = (int32_t)strlen(c->regex);
    return m;
}

static void begin(rig *g, rig_call *c) {
    int k = (int)(c - g->call);
    c->d = next_with(g, GY_PD_DECODE, k + c->n_try);
    if (c->d < 0) return;
    c->p = next_with(g, GY_PD_PREFILL, k + c->n_try);
    if (c->p == c->d) c->p = next_with(g, GY_PD_PREFILL, c->p);
    if (c->p == c->d || !gy_handoff_can(gy_worker_engine(g->w[c->d].w), &c->r, NULL)) c->p = -1;
    c->tid = (gy_tid){.hi = 77, .lo = ++g->next_tid};
    c->was_reserved = c->was_active = c->was_cancelled = c->was_safe = c->is_lost = c->p_held = 0;
    c->d_held = 1;
    c->n_left = c->r.n;
    c->n_try++;
    if (c->n_try > 1) g->n_retry++;
    for (int32_t i = 0; i < c->r.n; i++) c->res[i] = (gold_result){.id = k};
    gy_msg m = with_request(c->p < 0 ? GY_MSG_LOCAL : GY_MSG_RESERVE, c);
    if (c->p >= 0) m.peer = g->w[c->p].epoch;
    *(c->p < 0 ? &g->n_local : &g->n_cross) += 1;
    if (c->p < 0) c->was_active = 1;
    rig_tell(g, c->d, &m);
}

static void maybe_safe(rig *g, rig_call *c) {
    if (!c->was_cancelled || !c->d_held || !c->was_reserved || c->was_active || c->p_held || c->was_safe) return;
    c->was_safe = 1;
    rig_tell(g, c->d, &(gy_msg){.kind = GY_MSG_CANCEL_SAFE, .tid = c->tid});
}

static void cancel(rig *g, rig_call *c) {
    if (c->was_cancelled) return;
    c->was_cancelled = 1;
    if (c->d_held) rig_tell(g, c->d, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = c->tid});
    if (c->p_held) rig_tell(g, c->p, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = c->tid});
    maybe_safe(g, c);
}

static void lose(rig *g, rig_call *c) {
    c->is_lost = 1;
    cancel(g, c);
}

static void reserved(rig *g, rig_call *c, const gy_msg *m) {
    c->was_reserved = 1;
    if (c->was_cancelled) {
        maybe_safe(g, c);
        return;
    }
    gy_msg p = with_request(GY_MSG_PREFILL, c);
    p.peer = g->w[c->d].epoch;
    p.tables = m->tables;
    if (c->patch_have) p.tables.n_have = c->patch_have;
    c->p_held = 1;
    rig_tell(g, c->p, &p);
}

static gy_sampled sampled(const gy_msg_token *t) {
    gy_sampled s = {.id = t->token, .n_top = t->n_top, .logprob = t->logprob};
    memcpy(s.top_id, t->top_id, (size_t)t->n_top * sizeof *t->top_id);
    memcpy(s.top_logprob, t->top_logprob, (size_t)t->n_top * sizeof *t->top_logprob);
    return s;
}

static void token(rig_call *c, int32_t id, const gy_msg_token *t, int is_prompt) {
    gy_sampled s = sampled(t);
    if (c->was_cancelled) return;
    if (is_prompt) {
        c->r.on_prompt(c->r.arg, &(gy_prompt_event){.request = id, .pos = t->index, .sampled = &s});
        return;
    }
    if (!c->first_ns) c->first_ns = gy_clock_ns();
    c->r.on_token(c->r.arg, &(gy_token_event){.request = id,
                                              .choice = t->choice,
                                              .index = t->index,
                                              .token = t->token,
                                              .loops = t->loops,
                                              .sampled = &s,
                                              .gates = t->n_gate ? t->gates : NULL,
                                              .n_gate = t->n_gate});
}

static void finish(rig_call *c, int32_t id, const gy_msg *m) {
    const gy_msg_finish *f = &m->finish;
    gy_err err = {.status = (gy_status)m->status};
    if (c->was_cancelled) return;
    snprintf(err.msg, sizeof err.msg, "%.1000s", m->text ? m->text : "");
    c->r.on_finish(c->r.arg, &(gy_finish_event){.request = id,
                                                .choice = f->choice,
                                                .n_left = f->n_left,
                                                .reason = (gy_finish)f->reason,
                                                .err = m->status < 0 ? &err : NULL,
                                                .stop_id = f->stop_id,
                                                .n_prompt = f->n_prompt,
                                                .n_output = f->n_output,
                                                .n_cached = f->n_cached,
                                                .n_preempt = f->n_preempt,
                                                .seed = f->seed,
                                                .admit_ns = f->admit_ns,
                                                .first_token_ns = f->first_token_ns,
                                                .finish_ns = f->finish_ns});
    c->n_left = f->n_left;
}

static rig_call *call_of(rig *g, gy_tid tid) {
    for (int i = 0; i < g->n_call; i++)
        if (g->call[i].n_try && gy_tid_same(g->call[i].tid, tid)) return &g->call[i];
    return NULL;
}

static void release(rig *g, rig_call *c, int from) {
    if (from == c->p && c->p_held)
        c->p_held = 0;
    else if (from == c->d && c->d_held)
        c->d_held = 0;
    else
        die("released twice", NULL);
    maybe_safe(g, c);
}

static void hear(rig *g, int from, const gy_msg *m) {
    rig_call *c = call_of(g, m->tid);
    if (m->kind == GY_MSG_STATS || m->kind == GY_MSG_CONNECTED || m->kind == GY_MSG_FATAL || !c) return;
    int32_t id = (int32_t)(c - g->call);
    switch (m->kind) {
    case GY_MSG_RESERVED:
        reserved(g, c, m);
        break;
    case GY_MSG_PREFILLED:
        c->sent = m->sent;
        release(g, c, from);
        break;
    case GY_MSG_RELEASED:
        release(g, c, from);
        break;
    case GY_MSG_REJECTED:
        release(g, c, from);
        if (!c->was_cancelled) lose(g, c);
        break;
    case GY_MSG_ACTIVE:
        c->was_active = 1;
        c->active_ns = gy_clock_ns();
        c->told = m->sent;
        break;
    case GY_MSG_TOKEN:
        token(c, id, &m->token, 0);
        break;
    case GY_MSG_PROMPT:
        token(c, id, &m->token, 1);
        break;
    case GY_MSG_FINISH:
        finish(c, id, m);
        break;
    default:
        die("a message that a worker does not send", NULL);
    }
}

static int is_at(const rig_call *c, rig_when when) {
    switch (when) {
    case RIG_ASKED:
        return c->n_try > 0;
    case RIG_RESERVED:
        return c->was_reserved;
    case RIG_SENDING:
        return c->p_held;
    case RIG_ACTIVE:
        return c->was_active;
    case RIG_NEVER:
        break;
    }
    return 0;
}

static void advance(rig *g, rig_call *c) {
    if (c->is_done) return;
    if (!c->n_try) begin(g, c);
    if (!c->is_given_up && is_at(c, c->give_up) && c->give_up_after-- <= 0) {
        c->is_given_up = 1;
        cancel(g, c);
    }
    if (c->n_try && !c->p_held && !c->d_held) {
        if (c->is_given_up || (!c->is_lost && !c->n_left))
            c->is_done = 1;
        else
            begin(g, c);
    }
}

/* What it said before it failed is heard first. */
static void bury(rig *g) {
    for (int i = 0; i < g->n_worker; i++)
        if (is_live(g, i) && g->w[i].has_failed) rig_kill(g, i);
}

void rig_step(rig *g) {
    gy_msg m;
    for (int i = 0; i < g->n_worker; i++)
        while (is_live(g, i) && rig_said(g, i, &m)) hear(g, i, &m);
    bury(g);
    for (int i = 0; i < g->n_call; i++) advance(g, &g->call[i]);
    if (g->has_threads) {
        poll(NULL, 0, 1);
        g->n_turn++;
        return;
    }
    rig_turn(g);
    for (int i = 0; i < g->n_worker; i++)
        if (is_live(g, i) && !g->w[i].has_failed) check_books(g, i);
}

static int all_done(const rig *g) {
    for (int i = 0; i < g->n_call; i++)
        if (!g->call[i].is_done) return 0;
    return 1;
}

void rig_run(rig *g) {
    int begun = g->n_turn;
    while (!all_done(g)) {
        rig_step(g);
        if (g->n_turn - begun < 200000) continue;
        for (int i = 0; i < g->n_call; i++) {
            const rig_call *c = &g->call[i];
            if (!c->is_done)
                fprintf(stderr,
                        "call %d: try %d p %d d %d held %d %d reserved %d active %d cancelled %d safe %d left %d\n", i,
                        c->n_try, c->p, c->d, c->p_held, c->d_held, c->was_reserved, c->was_active, c->was_cancelled,
                        c->was_safe, c->n_left);
        }
        die("never done", NULL);
    }
}

void rig_add(rig *g, const gy_request *r, gold_result *res) {
    if (g->n_call == RIG_CALLS) die("too many calls", NULL);
    rig_call *c = &g->call[g->n_call++];
    *c = (rig_call){.r = *r, .res = res, .p = -1, .d = -1};
    gold_listen(&c->r, res);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void connect_all(rig *g) {
    for (int a = 0; a < g->n_worker; a++)
        for (int b = 0; b < g->n_worker; b++)
            if ((g->w[a].role & GY_PD_PREFILL) && (g->w[b].role & GY_PD_DECODE)) connect(g, a, b);
}

void rig_open(rig *g, const rig_setup *s, const gold_setup *model, gy_model *m, uint64_t seed) {
    *g =
        (rig){.s = *s, .model = *model, .m = m, .rng = seed * 2 + 1, .next_epoch = seed << 20, .n_worker = s->n_worker};
    g->arena = gy_arena_create(GY_MEM_PD, 1 << 16);
    gy_mock_opts mo = s->mock;
    mo.seed += seed;
    if (s->kind == GY_XFER_MOCK && gy_mock_net_create(&mo, &g->net) < 0) die("net", NULL);
    for (int i = 0; i < s->n_worker; i++) rig_worker_open(g, i);
    if (s->is_bare) return;
    connect_all(g);
    for (int i = 0; i < s->n_worker; i++)
        while (g->w[i].w->n_asked) rig_turn_worker(g, i);
}

/* Two turns more: what the last release freed is told. */
void rig_idle(rig *g) {
    for (int i = 0; i < g->n_worker; i++) {
        if (!is_live(g, i)) continue;
        turn_engine(g, i);
        gy_worker_xfer_turn(g->w[i].w);
        if (turn_engine(g, i) == GY_OK) turn_engine(g, i);
        if (!gy_worker_is_empty(g->w[i].w)) die("a worker is not empty", NULL);
        gy_engine *e = (gy_engine *)(uintptr_t)gy_worker_engine(g->w[i].w);
        gold_idle(e);
        if (gy_engine_n_handoff(e)) die("prompts that cross are left", NULL);
    }
}

/* Peers are dropped before the memory that they write to goes, as with processes. */
void rig_close(rig *g) {
    for (int i = 0; i < g->n_worker; i++)
        if (g->w[i].role & GY_PD_PREFILL)
            for (int k = 0; k < g->n_worker; k++) rig_tell(g, i, &(gy_msg){.kind = GY_MSG_GONE, .peer = g->w[k].epoch});
    for (int i = 0; i < g->n_worker; i++)
        if (is_live(g, i)) gy_worker_xfer_turn(g->w[i].w);
    for (int i = 0; i < g->n_worker; i++) rig_worker_close(&g->w[i]);
    gy_mock_net_destroy(g->net);
    gy_str_free(&g->frame);
    gy_arena_destroy(g->arena);
}

void rig_kill(rig *g, int i) {
    uint64_t epoch = g->w[i].epoch;
    g->w[i].is_dead = 1;
    if (g->net) gy_mock_net_kill(g->net, g->w[i].w->x);
    for (int k = 0; k < g->n_worker; k++)
        if (k != i) rig_tell(g, k, &(gy_msg){.kind = GY_MSG_GONE, .peer = epoch});
    for (int k = 0; k < g->n_call; k++) {
        rig_call *c = &g->call[k];
        if (c->is_done || !c->n_try) continue;
        int was_p = c->p == i && !c->was_active, was_d = c->d == i && c->d_held; /* D expects this very writer */
        if (c->p == i) c->p_held = 0;
        if (was_d) c->d_held = 0;
        if (was_p || was_d) lose(g, c);
        maybe_safe(g, c);
    }
}

void rig_replace(rig *g, int i) {
    for (int k = 0; k < g->n_worker; k++) /* the others have dropped it */
        if (is_live(g, k)) gy_worker_xfer_turn(g->w[k].w);
    rig_worker_close(&g->w[i]);
    rig_worker_open(g, i);
    for (int k = 0; k < g->n_worker; k++) {
        if (k == i) continue;
        if (g->w[i].role & GY_PD_PREFILL && g->w[k].role & GY_PD_DECODE) connect(g, i, k);
        if (g->w[k].role & GY_PD_PREFILL && g->w[i].role & GY_PD_DECODE) connect(g, k, i);
    }
}
