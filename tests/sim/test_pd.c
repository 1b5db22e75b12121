/* Coordinator and workers under everything that may happen at once: messages of each worker come late (never out of
 * order: they cross a stream), the network delays, reorders, loses and repeats, users give up at any moment, deadlines
 * pass, workers die, stand still, are cut off and go on, and are replaced. Whatever it is: users hear what one engine
 * says, or a true prefix of it and why it ended; nothing is stuck; nothing is left in any book.
 *
 * test_pd SEED [COUNT]: those runs alone. The model is as small as models are: what counts is the order of things.
 */
#include "pd/coord.h"
#include "pd/worker_int.h"
#include "support/rig.h"
#include "support/tiny.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef GY_SANITIZED
enum { N_RUN = 1500 };
#else
enum { N_RUN = 10000 };
#endif
enum { MAX_USER = 12, MAX_TICK = 400000, MAX_TROUBLE = 2 };

typedef struct model {
    tiny t;
    gold_setup s;
    gold_env env;
    mixed w;
    gold_result base[MIXED_MAX_RESULT];
    int can_cross[MIXED_N];
} model;

typedef struct asker {
    int pick; /* of the mixed requests */
    gold_result res[3];
    int32_t id; /* -1: not asked yet */
    int gives_up, gave_up, has_deadline;
    int at; /* tick of asking, of giving up */
    int n_told;
} asker;

typedef struct run {
    uint64_t seed;
    const model *m;
    rig g;
    gy_coord *c;
    int64_t now;
    asker u[MAX_USER];
    int n_user, tick;
    uint32_t net_every;            /* ticks for each event of the net */
    int n_trouble, still[RIG_MAX]; /* still: ticks for which a worker stands still */
    int reap[RIG_MAX];             /* ticks until a dead worker is reaped, then until the next one is there; 0: lives */
    int is_reaped[RIG_MAX];
    int word[RIG_MAX]; /* 1: the early word of its end is still to come; 2: it came, and what it had copying goes on */
    int is_cut[RIG_MAX]; /* no message reaches it or comes from it; it lives on until the next one is there */
} run;

/* What must have happened somewhere in all runs together. */
static struct seen {
    int64_t crossed, local, retry, swallowed, late, death_p, death_d, still, cut, kept_out, give_up, give_up_early,
        deadline, owed, move, est, cached, have_est, have, word;
} seen;

static const tiny_spec specs[] = {{.family = "ouro",
                                   .n_vocab = 200,
                                   .n_embd = 16,
                                   .n_ff = 16,
                                   .n_head = 2,
                                   .n_head_kv = 1,
                                   .head_dim = 8,
                                   .n_layer = {0, 1, 0},
                                   .n_loop = 3,
                                   .max_pos = 64,
                                   .eps = 1e-5,
                                   .theta = 1000.0,
                                   .dtype = GY_F32,
                                   .seed = 3},
                                  {.family = "huginn",
                                   .n_vocab = 200,
                                   .n_embd = 16,
                                   .n_ff = 16,
                                   .n_head = 2,
                                   .n_head_kv = 2,
                                   .head_dim = 8,
                                   .n_layer = {1, 1, 1},
                                   .n_loop = 2,
                                   .max_pos = 64,
                                   .eps = 1e-5,
                                   .theta = 1000.0,
                                   .dtype = GY_F32,
                                   .seed = 4}};

static run r; /* large */

_Noreturn static void fail(const char *what) {
    fprintf(stderr, "test_pd %llu: tick %d: %s\n", (unsigned long long)r.seed, r.tick, what);
    abort();
}

/* ---- one run is made --------------------------------------------------------------------------------------------- */

static uint32_t below(uint32_t n) {
    return rig_draw(&r.g, n);
}

static void patch(gy_engine_opts *o, int role, const void *arg) {
    const run *x = arg;
    uint64_t bits = x->seed >> 3;
    (void)role;
    o->sched.max_rows = bits & 1 ? 8 : 32;
    o->sched.prefill_chunk = bits & 2 ? 4 : 16;
    o->sched.max_seqs = 4;
    o->sched.max_queue = 64;
    o->max_len = 64;
    o->prefix_cache = bits & 4 ? 1 : 0;
    o->park_bytes = 1 << 16;
    o->mask_bytes = 1 << 16;
    o->kv_blocks = (bits & 8 ? 12 : 24) * x->m->env.m->d.n_loop;
}

static void to_worker(void *user, int32_t worker, const gy_msg *m) {
    (void)user;
    rig_post(&r.g, worker, m);
}

static void open_coord(const rig_setup *s) {
    gy_err err;
    gy_coord_opts o;
    gy_coord_opts_default(&o);
    o.n_worker = s->n_worker;
    for (int i = 0; i < s->n_worker; i++) o.role[i] = s->role[i];
    o.max_queue = 64;
    o.local_below = below(8) ? 0 : 8;
    o.max_prefill = 1 + (int32_t)below(4);
    o.policy = below(2) ? GY_SCHED_PRIORITY : GY_SCHED_FCFS;
    o.max_bypass = (int32_t)below(4);
    o.prefix_cache = r.seed >> 3 & 4 ? 1 : 0; /* as patch has it */
    o.local_queue = below(3) ? 0 : (int32_t)below(100);
    o.ask_ns = 10000 << below(8); /* a tick is a microsecond */
    o.suspect_ns = o.ask_ns * (int64_t)(1 + below(20));
    o.send = to_worker;
    if (gy_coord_create(&o, &err, &r.c) < 0) fail(err.msg);
}

/* Most of them can cross. */
static int pick(const model *m) {
    int k = (int)below(MIXED_N);
    return m->can_cross[k] || !below(4) ? k : (int)below(MIXED_N);
}

static void open_run(const model *m, uint64_t seed) {
    static const struct {
        int n, role[4];
    } worlds[] = {{2, {1, 2}}, {3, {1, 2, 2}}, {3, {1, 1, 2}}, {4, {1, 2, 1, 2}}, {2, {3, 3}}, {2, {1, 3}}};
    size_t k = seed % (sizeof worlds / sizeof worlds[0]);
    memset(&r, 0, sizeof r);
    r.seed = seed;
    r.m = m;
    rig_setup s = {.kind = GY_XFER_MOCK, .n_worker = worlds[k].n, .is_bare = 1, .patch = patch, .patch_arg = &r};
    s.mock = (gy_mock_opts){.latency_ns = 1000, .jitter_ns = (int64_t)(seed % 7) * 1000};
    s.mock.p_twice = (double)(seed % 3) * 0.15;
    s.mock.p_lost = (double)(seed % 4) * 0.1;
    s.mock.n_forbid_again = (int)(seed / 3 % 3);
    s.max_handoff = 1 + (int)(seed / 2 % 4);
    s.limits =
        (gy_xfer_limits){.chunk_bytes = 512 << seed % 4, .inflight_bytes = 8192, .max_desc = 4 + (int)(seed % 13)};
    memcpy(s.role, worlds[k].role, sizeof worlds[k].role);
    rig_open(&r.g, &s, &m->s, m->env.m, seed);
    r.net_every = 2u << seed / 5 % 4;
    open_coord(&s);
    r.n_user = 3 + (int)below(MAX_USER - 3);
    int spread = below(2) ? 300 : 3000; /* ticks within which they come */
    for (int i = 0; i < r.n_user; i++) {
        asker *u = &r.u[i];
        *u = (asker){.pick = pick(m), .id = -1, .at = (int)(below(4) ? 200 : 0) + (int)below((uint32_t)spread)};
        u->gives_up = below(3) == 0;
        u->has_deadline = below(12) == 0;
    }
}

/* ---- what may happen --------------------------------------------------------------------------------------------- */

static void ask(asker *u) {
    gy_err err;
    gy_msg_request q = {.r = r.m->w.req[u->pick], .grammar_kind = -1};
    gold_listen(&q.r, u->res);
    gy_coord_request cr = {.q = &q, .can_cross = r.m->can_cross[u->pick]};
    if (u->has_deadline) cr.deadline_ns = r.now + below(3000000);
    if (gy_coord_submit(r.c, &cr, r.now, &err, &u->id) != GY_OK) fail(err.msg);
    for (int32_t k = 0; k < q.r.n; k++) u->res[k] = (gold_result){.id = u->id};
    u->at = r.tick + (int)below(1500);
}

static int is_over(const asker *u) {
    for (int32_t k = 0; k < r.m->w.req[u->pick].n; k++)
        if (!u->res[k].n_finish) return 0;
    return u->id >= 0;
}

static void turn_user(asker *u) {
    if (u->id < 0 && r.tick >= u->at) ask(u);
    if (u->id < 0 || !u->gives_up || u->gave_up || r.tick < u->at || is_over(u)) return;
    u->gave_up = 1;
    seen.give_up++;
    seen.give_up_early += u->res[0].n == 0;
    gy_coord_cancel(r.c, u->id);
}

static void kill_one(int i) {
    if (r.reap[i] || r.n_trouble == MAX_TROUBLE) return;
    r.n_trouble++;
    *(r.g.w[i].role & GY_PD_DECODE ? &seen.death_d : &seen.death_p) += 1;
    r.g.w[i].is_dead = 1;
    r.word[i] = (int)below(2);
    r.reap[i] = 1 + (int)below(100);
    if (!r.word[i]) gy_mock_net_kill(r.g.net, r.g.w[i].w->x);
}

/* Its threads stand still, and nothing that it said is read any more; its device copies until it is reaped. */
static void tell_word(int i) {
    if (r.word[i] != 1 || below(20)) return;
    r.word[i] = 2;
    seen.word++;
    gy_coord_dying(r.c, i, r.now);
}

/* Its clock stands, the others' does not. */
static void stop_one(int i) {
    if (r.reap[i] || r.still[i] || r.n_trouble == MAX_TROUBLE) return;
    r.n_trouble++;
    seen.still++;
    r.still[i] = 500;
    r.now += (int64_t)61 * 1000000000;
}

/* The coordinator loses it, and it goes on with what it has, and writes where it was told to. */
static void cut_one(int i) {
    if (r.reap[i] || r.n_trouble == MAX_TROUBLE) return;
    r.n_trouble++;
    seen.cut++;
    r.is_cut[i] = 1;
    r.reap[i] = 1 + (int)below(100);
}

/* Dead, then reaped and told, then replaced. What a dead worker had said may still be read, up to some point. */
static void turn_dead(int i) {
    if (!r.reap[i]) return;
    tell_word(i);
    if (--r.reap[i]) return;
    if (!r.is_reaped[i]) {
        if (r.word[i]) gy_mock_net_kill(r.g.net, r.g.w[i].w->x);
        r.word[i] = 0;
        gy_coord_dead(r.c, i, r.now);
        r.is_reaped[i] = 1;
        r.reap[i] = 1 + (int)below(r.is_cut[i] ? 2000 : 200);
        return;
    }
    r.is_reaped[i] = r.is_cut[i] = 0;
    rig_worker_close(&r.g.w[i]);
    rig_worker_open(&r.g, i);
}

static void hear(int i) {
    gy_msg m;
    gy_err err;
    if (!r.g.w[i].w || r.is_reaped[i] || r.is_cut[i] || r.word[i] == 2 || !rig_said(&r.g, i, &m)) return;
    if (gy_coord_message(r.c, i, &m, r.now, &err) < 0) fail(err.msg);
}

static void turn_worker(int i) {
    gy_err err;
    if (r.g.w[i].is_dead || !r.g.w[i].w) return;
    if (r.still[i]) {
        r.still[i]--;
        return;
    }
    switch (below(4)) {
    case 0:
        if (gy_worker_turn(r.g.w[i].w, &err) < 0) fail(err.msg);
        break;
    case 1:
        gy_worker_xfer_turn(r.g.w[i].w);
        break;
    default:
        if (!r.is_cut[i]) rig_deliver(&r.g, i);
    }
}

static gy_status turn_coord(void) {
    int64_t next;
    gy_status st = gy_coord_turn(r.c, r.now, &next);
    if (st < 0) fail("the coordinator is lost");
    return st;
}

static int is_quiet(void) {
    for (int i = 0; i < r.n_user; i++)
        if (!is_over(&r.u[i])) return 0;
    for (int i = 0; i < r.g.n_worker; i++)
        if (r.reap[i] || r.g.w[i].in.len || r.g.w[i].out.len != r.g.w[i].at || !gy_worker_is_empty(r.g.w[i].w))
            return 0;
    return 1;
}

static int tick(void) {
    int i = (int)below((uint32_t)r.g.n_worker);
    r.tick++;
    r.now += (int64_t)below(2000);
    turn_user(&r.u[below((uint32_t)r.n_user)]);
    turn_worker((int)below((uint32_t)r.g.n_worker));
    hear((int)below((uint32_t)r.g.n_worker));
    turn_dead(i);
    if (below(r.net_every) == 0) gy_mock_net_step(r.g.net);
    if (r.seed % 3 == 0 && below(400) == 0) kill_one(i);
    if (r.seed % 5 == 2 && below(300) == 0) cut_one(i);
    if (r.seed % 11 == 1 && below(400) == 0) stop_one(i);
    gy_status st = turn_coord();
    return st != GY_DONE || !is_quiet();
}

/* ---- what must hold ---------------------------------------------------------------------------------------------- */

static void check_choice(const asker *u, int32_t k) {
    const gold_result *got = &u->res[k], *base = &r.m->base[mixed_first(&r.m->w, u->pick) + k];
    char what[200], why[400];
    if (got->reason == GY_FINISH_STOP || got->reason == GY_FINISH_LENGTH) {
        if (!gold_diff(base, got, what, sizeof what)) return;
        snprintf(why, sizeof why, "user %d, request %d choice %d: %s", (int)(u - r.u), u->pick, k, what);
        fail(why);
    }
    if (got->reason == GY_FINISH_CANCELLED && !u->gave_up) fail("cancelled, and nobody had asked for it");
    if (got->reason == GY_FINISH_ERROR && !u->has_deadline) {
        snprintf(why, sizeof why, "user %d: %s", (int)(u - r.u), got->error);
        fail(why);
    }
    seen.deadline += got->reason == GY_FINISH_ERROR;
    for (int32_t i = 0; i < got->n; i++)
        if (got->tokens[i] != base->tokens[i]) fail("what was told is no prefix");
}

static void check_end(void) {
    gy_coord_stats s;
    char why[256];
    for (int i = 0; i < r.n_user; i++)
        for (int32_t k = 0; k < r.m->w.req[r.u[i].pick].n; k++) check_choice(&r.u[i], k);
    if (!gy_coord_is_valid(r.c, why, sizeof why)) fail(why);
    rig_idle(&r.g);
    gy_coord_get_stats(r.c, &s);
    if (s.n_waiting + s.n_reserving + s.n_prefill + s.n_decode + s.n_cleanup) fail("the coordinator's books");
    seen.crossed += s.n_crossed;
    seen.local += s.n_local;
    seen.retry += s.n_retry;
    seen.swallowed += s.n_swallowed;
    seen.late += s.n_late;
    seen.owed += s.n_owed;
    seen.move += s.n_move;
    seen.kept_out += gy_mock_net_n_kept_out(r.g.net);
    seen.est += s.prefix_est_tok;
    seen.cached += s.prefix_tok;
    seen.have_est += s.have_est_tok;
    seen.have += s.have_tok;
}

static void dump(void) {
    gy_coord_stats s;
    gy_coord_get_stats(r.c, &s);
    fprintf(stderr, "coord: waiting %d reserving %d prefill %d decode %d cleanup %d\n", s.n_waiting, s.n_reserving,
            s.n_prefill, s.n_decode, s.n_cleanup);
    for (int i = 0; i < r.g.n_worker; i++) {
        const gy_worker *w = r.g.w[i].w;
        fprintf(stderr, "worker %d role %d reap %d:", i, r.g.w[i].role, r.reap[i]);
        for (const gy_part *t = w ? w->first : NULL; t; t = t->next)
            fprintf(stderr, " [kind %d state %d cancelled %d over %d xfer %d flight %d]", t->kind, t->state,
                    t->is_cancelled, t->engine_over, t->with_xfer, t->push.n_flight);
        fprintf(stderr, "\n");
    }
}

static void run_one(const model *m, uint64_t seed) {
    char why[256];
    open_run(m, seed);
    while (tick()) {
        if (r.tick % 64 == 0 && !gy_coord_is_valid(r.c, why, sizeof why)) fail(why);
        if (r.tick < MAX_TICK) continue;
        dump();
        fail("something is stuck");
    }
    check_end();
    gy_coord_destroy(r.c);
    for (int i = 0; i < r.g.n_worker; i++) rig_worker_close(&r.g.w[i]);
    rig_close(&r.g);
}

/* ---- all runs ---------------------------------------------------------------------------------------------------- */

static void open_model(model *m, const tiny_spec *s) {
    tiny_make(s, &m->t);
    m->s =
        (gold_setup){.model = m->t.dir, .backend = "cpu", .act = GY_F32, .n_thread = 1, .max_rows = 64, .max_len = 64};
    gold_open(&m->s, &m->env);
    gold_engine(&m->s, &m->env);
    mixed_make(&m->w, &m->env.m->d, 40, 6);
    gold_run(m->env.e, m->w.req, MIXED_N, m->base);
    for (int i = 0; i < MIXED_N; i++) m->can_cross[i] = gy_handoff_can(m->env.e, &m->w.req[i], NULL);
}

static void expect_seen(void) {
    printf("crossed %lld local %lld retry %lld swallowed %lld late %lld deaths %lld+%lld still %lld cut off %lld (%lld "
           "copies kept "
           "out) give-ups %lld (%lld "
           "before the first token) deadlines %lld owed %lld moved %lld "
           "cached %lld (est. %lld), at D %lld (est. %lld) early words %lld\n",
           (long long)seen.crossed, (long long)seen.local, (long long)seen.retry, (long long)seen.swallowed,
           (long long)seen.late, (long long)seen.death_p, (long long)seen.death_d, (long long)seen.still,
           (long long)seen.cut, (long long)seen.kept_out, (long long)seen.give_up, (long long)seen.give_up_early,
           (long long)seen.deadline, (long long)seen.owed, (long long)seen.move, (long long)seen.cached,
           (long long)seen.est, (long long)seen.have, (long long)seen.have_est, (long long)seen.word);
    if (!seen.crossed || !seen.local || !seen.retry || !seen.swallowed || !seen.late || !seen.death_p ||
        !seen.death_d || !seen.still || !seen.cut || !seen.kept_out || !seen.give_up || !seen.give_up_early ||
        !seen.deadline || !seen.owed || !seen.move || !seen.cached || !seen.est || !seen.have || !seen.have_est ||
        !seen.word) {
        fprintf(stderr, "something never happened\n");
        abort();
    }
    if (2 * llabs(seen.est - seen.cached) > seen.cached || 2 * llabs(seen.have_est - seen.have) > seen.have) {
        fprintf(stderr, "what was believed to be cached is far from what was\n");
        abort();
    }
}

int main(int argc, char **argv) {
    static model m[2];
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : argc > 1 ? 1 : N_RUN;
    for (int i = 0; i < 2; i++) open_model(&m[i], &specs[i]);
    for (uint64_t k = first; k < first + n; k++) run_one(&m[k / 6 % 2], k);
    if (argc == 1) expect_seen();
    for (int i = 0; i < 2; i++) {
        gold_close(&m[i].env);
        tiny_free(&m[i].t);
    }
    return 0;
}
