/* What workers tell of their work: the overlap of transfers and computing as an intersection of intervals, and STATS
 * that say what the engine says, down to zeros when nothing is left.
 */
#include "base_test.h"

#include "pd/worker_int.h"
#include "support/rig.h"

#include <string.h>

/* ---- intervals --------------------------------------------------------------------------------------------------- */

static void test_time_in_steps(void **state) {
    (void)state;
    gy_busy b = {0};
    gy_busy_begin(&b, 100);
    assert_int_equal(gy_busy_at(&b, 100), 0);
    assert_int_equal(gy_busy_at(&b, 130), 30); /* inside the step */
    gy_busy_end(&b, 150, 1);
    assert_int_equal(gy_busy_at(&b, 170), 50);
    gy_busy_begin(&b, 200);
    gy_busy_end(&b, 260, 0); /* nothing was computed in it */
    assert_int_equal(gy_busy_at(&b, 300), 50);
    gy_busy_begin(&b, 300);
    gy_busy_end(&b, 310, 1);
    assert_int_equal(gy_busy_at(&b, 400), 60);
}

/* An op that is posted and one that is done, at times of the test's own. */
typedef struct wire {
    gy_worker *w;
    gy_peer peer;
    gy_part part;
    gy_out_op op;
} wire;

static void post_at(wire *x, int64_t at, size_t bytes) {
    x->op = (gy_out_op){.part = &x->part, .busy_ns = gy_busy_at(&x->w->busy, at)};
    x->op.op = (gy_xfer_op){.user = &x->op, .post_ns = at, .bytes = bytes, .n_desc = 2};
    x->part.push.peer = &x->peer;
    x->part.push.n_flight++;
    x->peer.n_flight++;
}

static void done_at(wire *x, int64_t at) {
    x->op.op.done_ns = at;
    gy_push_done(x->w, &x->op.op, GY_OK);
}

static void expect_overlap(const wire *x, int64_t ns, int64_t bytes, int64_t n) {
    const gy_msg_sent *s = &x->part.push.sum;
    assert_int_equal(s->overlap_ns, ns);
    assert_int_equal(s->overlap_bytes, bytes);
    assert_int_equal(s->n_overlap, n);
}

static gy_worker bare; /* large */

static void test_overlap_is_an_intersection(void **state) {
    (void)state;
    memset(&bare, 0, sizeof bare);
    gy_busy *b = &bare.busy;
    wire early = {.w = &bare}, inside = {.w = &bare}, over = {.w = &bare}, late = {.w = &bare};
    post_at(&early, 10, 1); /* before any step */
    done_at(&early, 90);
    post_at(&over, 95, 1000);
    gy_busy_begin(b, 100);
    post_at(&inside, 110, 20); /* had drained before the next step: it counts all the same */
    done_at(&inside, 125);
    gy_busy_end(b, 150, 1);
    post_at(&late, 160, 5);
    done_at(&late, 190);
    gy_busy_begin(b, 200);
    done_at(&over, 230); /* across a whole step and into another one */
    gy_busy_end(b, 280, 1);
    expect_overlap(&early, 0, 0, 0);
    expect_overlap(&inside, 15, 20, 1);
    expect_overlap(&over, 50 + 30, 1000, 1);
    expect_overlap(&late, 0, 0, 0);
    assert_int_equal(over.part.push.sum.bytes, 1000);
    assert_int_equal(over.part.push.sum.last_done_ns, 230);
    post_at(&inside, 290, 300); /* sums go on */
    gy_busy_begin(b, 300);
    done_at(&inside, 301);
    gy_busy_end(b, 310, 1);
    expect_overlap(&inside, 16, 320, 2);
    assert_int_equal(inside.part.push.sum.n_op, 2);
    assert_int_equal(inside.part.push.sum.n_desc, 4);
}

/* ---- in a rig ---------------------------------------------------------------------------------------------------- */

typedef struct scene {
    gold_setup s;
    gold_env env;
    int32_t ids[8][128];
    gold_result got[8];
    rig g;
} scene;
static scene sc; /* large */

static void patch(gy_engine_opts *o, int role, const void *arg) {
    (void)role;
    o->sched.prefill_chunk = *(const int32_t *)arg;
    o->sched.max_rows = 128;
}

static void open_scene(const char *model, const rig_setup *s, int32_t max_seqs) {
    memset(&sc, 0, sizeof sc);
    sc.s = (gold_setup){.model = model, .backend = "cpu", .act = GY_F32, .n_thread = 1, .max_seqs = max_seqs};
    gold_open(&sc.s, &sc.env);
    rig_open(&sc.g, s, &sc.s, sc.env.m, 3);
}

static void close_scene(void) {
    rig_close(&sc.g);
    gold_close(&sc.env);
}

static void add_call(int i, int32_t n_prompt, int32_t max_tokens) {
    gy_request r;
    gy_request_default(&r, &sc.env.m->d);
    for (int32_t k = 0; k < n_prompt; k++) sc.ids[i][k] = (7 * k + 31 * i) % 200 + 1;
    r.prompt = sc.ids[i];
    r.n_prompt = n_prompt;
    r.max_tokens = max_tokens;
    r.ignore_eos = 1;
    rig_add(&sc.g, &r, &sc.got[i]);
}

#define PAIR .n_worker = 2, .role = {GY_PD_PREFILL, GY_PD_DECODE}

/* A network with latency: ops are under way while the next piece is computed. */
static void test_pieces_overlap(void **state) {
    const int32_t chunk = 8;
    const rig_setup s = {.kind = GY_XFER_MOCK,
                         PAIR,
                         .mock = {.latency_ns = 1000, .jitter_ns = 5000},
                         .limits = {.chunk_bytes = 4096, .inflight_bytes = 65536, .max_desc = 64},
                         .patch = patch,
                         .patch_arg = &chunk};
    (void)state;
    open_scene("ouro-tiny", &s, 0);
    add_call(0, 100, 4);
    rig_run(&sc.g);
    const gy_msg_sent *x = &sc.g.call[0].sent;
    assert_true(x->n_overlap > 0 && x->n_overlap <= x->n_op);
    assert_true(x->overlap_bytes > 0 && x->overlap_bytes <= x->bytes);
    assert_true(x->overlap_ns > 0);
    assert_true(x->start_ns < x->first_post_ns && x->first_post_ns < x->compute_ns);
    assert_true(x->last_post_ns >= x->compute_ns && x->last_post_ns <= x->last_done_ns);
    assert_true(x->last_done_ns <= x->said_ns);
    close_scene();
}

/* What D says of P is what P says, but for what P cannot know when it sends its last note. */
static void test_told_by_d(void **state) {
    static const gy_xfer_kind kinds[] = {GY_XFER_LOOPBACK, GY_XFER_MOCK};
    const int32_t chunk = 8;
    (void)state;
    for (int k = 0; k < 2; k++) {
        const rig_setup s = {.kind = kinds[k],
                             PAIR,
                             .mock = {.latency_ns = 1000, .jitter_ns = 5000, .p_twice = 0.2},
                             .limits = {.chunk_bytes = 4096, .inflight_bytes = 65536, .max_desc = 64},
                             .patch = patch,
                             .patch_arg = &chunk};
        open_scene("ouro-tiny", &s, 0);
        for (int i = 0; i < 4; i++) add_call(i, 60 + i, 3);
        rig_run(&sc.g);
        for (int i = 0; i < 4; i++) {
            const gy_msg_sent *p = &sc.g.call[i].sent, *d = &sc.g.call[i].told;
            assert_int_equal(d->bytes, p->bytes);
            assert_int_equal(d->n_op, p->n_op);
            assert_int_equal(d->n_desc, p->n_desc);
            assert_int_equal(d->compute_ns - d->start_ns, p->compute_ns - p->start_ns);
            /* One clock here: laid out later by what the last note took, never earlier. */
            assert_true(d->start_ns >= p->start_ns && d->last_post_ns >= p->last_post_ns);
            assert_true(d->compute_ns <= d->last_post_ns && d->last_post_ns <= d->said_ns);
        }
        close_scene();
    }
}

/* All is computed before anything is posted: whatever the engine does with nothing to compute is no overlap. */
static void test_nothing_overlaps(void **state) {
    const int32_t chunk = 128;
    const rig_setup s = {.kind = GY_XFER_MOCK,
                         PAIR,
                         .mock = {.latency_ns = 1000, .jitter_ns = 5000},
                         .limits = {.chunk_bytes = 1024, .inflight_bytes = 2048, .max_desc = 64},
                         .patch = patch,
                         .patch_arg = &chunk};
    (void)state;
    open_scene("ouro-tiny", &s, 0);
    sc.g.hold_p = 1;
    add_call(0, 12, 4);
    rig_run(&sc.g);
    const gy_msg_sent *x = &sc.g.call[0].sent;
    assert_true(x->n_op > 2 && x->bytes > 0);
    assert_int_equal(x->n_overlap, 0);
    assert_int_equal(x->overlap_bytes, 0);
    assert_int_equal(x->overlap_ns, 0);
    assert_true(x->first_post_ns > x->compute_ns);
    close_scene();
}

/* ---- STATS ------------------------------------------------------------------------------------------------------- */

static void hear_all(void) {
    gy_msg m;
    for (int i = 0; i < 2; i++)
        while (rig_said(&sc.g, i, &m)) {
        }
}

static void expect_same_as_engine(int i) {
    const gy_msg_stats *s = &sc.g.w[i].stats;
    gy_engine_stats e;
    gy_engine_get_stats(gy_worker_engine(sc.g.w[i].w), &e);
    assert_true(e.n_pass > 0 && e.n_row > 0);
    assert_int_equal(s->n_pass, e.n_pass);
    assert_int_equal(s->n_row, e.n_row);
    assert_int_equal(s->n_output_tok, e.n_output_tok);
    assert_int_equal(s->n_prompt_tok, e.n_prompt_tok);
    assert_int_equal(s->model_ns, e.model_ns);
    assert_int_equal(s->sample_ns, e.sample_ns);
    assert_int_equal(s->n_park, e.sched.n_park);
    assert_int_equal(s->n_restore, e.sched.n_restore);
    assert_int_equal(s->n_drop, e.sched.n_drop);
    assert_int_equal(s->n_recomputed_tok, e.sched.n_recomputed_tok);
    assert_int_equal(s->cache_query_tok, e.prefix.n_query_tok);
    assert_int_equal(s->cache_hit_tok, e.prefix.n_hit_tok);
    assert_int_equal(s->cache_evicted, e.prefix.n_evict);
    assert_int_equal(s->mask_hit + s->mask_miss, e.mask.n_hit + e.mask.n_miss);
    assert_int_equal(s->kv_total, e.kv_total[GY_KV_CORE]);
    assert_int_equal(s->kv_cached, e.kv_cached[GY_KV_CORE]);
    int64_t n_row = 0;
    for (int32_t k = 0; k < s->n_depth; k++) {
        assert_int_equal(s->n_row_at[0][k], e.n_row_at[0][k]);
        assert_int_equal(s->n_row_at[1][k], e.n_row_at[1][k]);
        assert_int_equal(s->kv_plane[k], e.kv_plane[k]);
        n_row += s->n_row_at[0][k] + s->n_row_at[1][k];
    }
    assert_int_equal(n_row, s->n_row); /* all depths were told */
}

static void expect_nothing_held(int i) {
    const gy_msg_stats *s = &sc.g.w[i].stats;
    assert_int_equal(s->n_waiting + s->n_running + s->n_parked + s->n_handoff, 0);
    assert_int_equal(s->wait_tok, 0);
    assert_int_equal(s->xfer_inflight, 0);
    assert_int_equal(s->kv_free + s->kv_cached, s->kv_total);
    for (int32_t k = 0; k < s->n_depth; k++) assert_int_equal(s->kv_plane[k] > 0, s->kv_cached > 0);
}

static void test_stats_are_the_engine_s(void **state) {
    static const char *const models[] = {"ouro-tiny", "huginn-tiny"};
    const int32_t chunk = 16;
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, PAIR, .patch = patch, .patch_arg = &chunk};
    (void)state;
    for (int k = 0; k < 2; k++) {
        open_scene(models[k], &s, 0);
        for (int i = 0; i < 6; i++) add_call(i, 40 + i, 6);
        rig_run(&sc.g);
        rig_idle(&sc.g);
        hear_all();
        for (int i = 0; i < 2; i++) {
            expect_same_as_engine(i);
            expect_nothing_held(i);
        }
        assert_int_equal(sc.g.w[0].stats.n_prompt_tok, 6 * 40 + 15);
        assert_int_equal(sc.g.w[0].stats.n_row_at[1][0], 0); /* P decodes nothing */
        assert_true(sc.g.w[1].stats.n_row_at[1][0] > 0);
        assert_int_equal(sc.g.w[1].stats.n_depth, sc.env.m->d.n_loop);
        close_scene();
    }
}

/* What a worker could not begin yet is told too. */
static void test_what_waits(void **state) {
    const int32_t chunk = 16;
    const rig_setup s = {.kind = GY_XFER_LOOPBACK, PAIR, .max_handoff = 1, .patch = patch, .patch_arg = &chunk};
    int64_t most = 0, now = 0;
    (void)state;
    open_scene("ouro-tiny", &s, 1);
    for (int i = 0; i < 2; i++) sc.g.w[i].clock = &now;
    for (int i = 0; i < 5; i++) {
        add_call(i, 40, 3);
        sc.g.call[i].r.prompt_logprobs = i ? 0 : -1; /* such ones stay at D */
    }
    for (int i = 0; i < 20000 && sc.got[4].n_finish == 0; i++, now += 200000000) {
        rig_step(&sc.g);
        if (sc.g.w[1].stats.wait_tok > most) most = sc.g.w[1].stats.wait_tok;
    }
    rig_run(&sc.g);
    rig_idle(&sc.g);
    hear_all();
    assert_true(most >= 40 && most <= 4 * 40 && most % 40 == 0);
    for (int i = 0; i < 2; i++) expect_nothing_held(i);
    close_scene();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_in_steps),  cmocka_unit_test(test_overlap_is_an_intersection),
        cmocka_unit_test(test_pieces_overlap), cmocka_unit_test(test_nothing_overlaps),
        cmocka_unit_test(test_told_by_d),      cmocka_unit_test(test_stats_are_the_engine_s),
        cmocka_unit_test(test_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
