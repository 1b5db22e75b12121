/* A prefill worker that the coordinator has lost and that lives: it goes on computing and sending. D's pages go to
 * somebody else meanwhile, and nothing of what it still sends gets into them. And one that loses its connection to D
 * alone: it does not say that it writes no more before that is so.
 */
#include "base_test.h"

#include "base/mem.h"
#include "pd/worker_int.h"
#include "support/rig.h"

#include <string.h>

enum { N_PROMPT = 40, N_OUT = 6, ROWS = 3 };

typedef struct scene {
    gold_setup s;
    gold_env env;
    mixed w;
    gold_result base[1];
    rig g;
} scene;

static scene sc; /* large */

/* D has room for one request and no more: the next one gets the very pages of the last. */
static void patch(gy_engine_opts *o, int role, const void *arg) {
    (void)arg;
    o->prefix_cache = 0;
    o->sched.prefill_chunk = 8; /* the LOCAL one takes several steps */
    if (role == GY_PD_DECODE) o->kv_blocks = ROWS * sc.env.m->d.n_loop;
}

static gy_request request(int32_t i) {
    gy_request r;
    gy_request_default(&r, &sc.env.m->d);
    for (int32_t k = 0; k < N_PROMPT; k++)
        sc.w.ids[i][k] = (int32_t)(mixed_draw((uint32_t)i, (uint32_t)k) % (uint32_t)sc.env.m->d.n_vocab);
    r.prompt = sc.w.ids[i];
    r.n_prompt = N_PROMPT;
    r.max_tokens = N_OUT;
    r.ignore_eos = 1;
    return r;
}

static void fill_arena(int c) {
    const gy_engine *e = gy_worker_engine(sc.g.w[1].w);
    memset(gy_kv_arena(gy_engine_kv(e), GY_KV_CORE), c,
           gy_engine_get_plan(e)->block_bytes[GY_KV_CORE] *
               (size_t)gy_kv_get_config(gy_engine_kv(e))->n_block[GY_KV_CORE]);
}

static int is_arena(unsigned char c) {
    const gy_engine *e = gy_worker_engine(sc.g.w[1].w);
    const unsigned char *at = gy_kv_arena(gy_engine_kv(e), GY_KV_CORE);
    size_t n =
        gy_engine_get_plan(e)->block_bytes[GY_KV_CORE] * (size_t)gy_kv_get_config(gy_engine_kv(e))->n_block[GY_KV_CORE];
    for (size_t i = 0; i < n; i++)
        if (at[i] != c) return 0;
    return 1;
}

/* Ops of P are under way to D; the network stands still. */
static void open_scene(uint64_t seed, int n_again) {
    const rig_setup s = {.kind = GY_XFER_MOCK,
                         .n_worker = 2,
                         .role = {GY_PD_PREFILL, GY_PD_DECODE},
                         .mock = {.latency_ns = 1000, .jitter_ns = 20000, .n_forbid_again = n_again},
                         .limits = {.chunk_bytes = 4096, .inflight_bytes = 16384, .max_desc = 64},
                         .patch = patch};
    static gold_result unused[1];
    memset(&sc, 0, sizeof sc);
    sc.s = (gold_setup){.model = "ouro-tiny", .backend = "cpu", .act = GY_F32, .n_thread = 1};
    gold_open(&sc.s, &sc.env);
    gold_engine(&sc.s, &sc.env);
    rig_open(&sc.g, &s, &sc.s, sc.env.m, seed);
    gy_request r = request(0);
    rig_add(&sc.g, &r, unused);
    while (!sc.g.call[0].p_held) rig_step(&sc.g);
    for (int i = 0; i < 40; i++) rig_turn_worker(&sc.g, 0);
    assert_true(gy_mock_net_n_event(sc.g.net) > 0);
}

static void close_scene(void) {
    rig_close(&sc.g);
    gold_close(&sc.env);
}

static int said_by(int i, gy_msg_kind kind) {
    gy_msg m;
    int n = 0;
    while (rig_said(&sc.g, i, &m)) n += m.kind == kind;
    return n;
}

static int has_said(gy_msg_kind kind) {
    return said_by(1, kind);
}

/* What D is told of P's death, and P is not. */
static void cut_off(void) {
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_GONE, .peer = sc.g.w[0].epoch});
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = sc.g.call[0].tid});
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_CANCEL_SAFE, .tid = sc.g.call[0].tid});
}

static void turn_d(void) {
    gy_err err;
    assert_true(gy_worker_turn(sc.g.w[1].w, &err) >= 0);
    gy_worker_xfer_turn(sc.g.w[1].w);
    assert_true(gy_worker_turn(sc.g.w[1].w, &err) >= 0);
}

/* Pages are D's own again when no byte can come any more, and not before. */
static void test_bytes(void **state) {
    (void)state;
    open_scene(1, 3);
    has_said(GY_MSG_RELEASED);
    cut_off();
    for (int i = 0; i < 3; i++) {
        turn_d();
        assert_int_equal(has_said(GY_MSG_RELEASED), 0);
    }
    turn_d();
    assert_int_equal(has_said(GY_MSG_RELEASED), 1);
    rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_GONE, .peer = sc.g.w[0].epoch}); /* again: nothing changes */
    fill_arena(0x7b);
    int n_event = 0;
    for (int i = 0; i < 500; i++) {
        n_event += gy_mock_net_step(sc.g.net);
        rig_turn_worker(&sc.g, 0);
        turn_d();
    }
    assert_true(n_event > 100); /* P went on to its last byte */
    assert_int_equal(gy_mock_net_n_event(sc.g.net), 0);
    assert_true(is_arena(0x7b));
    assert_true(gy_worker_is_empty(sc.g.w[1].w));
    close_scene();
}

static void take_tokens(int32_t *out, int *n, int *is_over) {
    gy_msg m;
    while (rig_said(&sc.g, 1, &m)) {
        if (m.kind == GY_MSG_TOKEN) out[(*n)++] = m.token.token;
        *is_over |= m.kind == GY_MSG_RELEASED && *n > 0;
        if (m.kind == GY_MSG_REJECTED) fail_msg("%s", m.text);
    }
}

/* The next request computes its prompt in those pages while the bytes of the last one arrive. */
static void test_next_one(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        int32_t got[64];
        int n = 0, is_over = 0;
        open_scene(seed, (int)seed % 3);
        cut_off();
        gy_msg m = {.kind = GY_MSG_LOCAL, .tid = {9, 9}};
        m.request.r = request(1);
        m.request.grammar_kind = -1;
        rig_tell(&sc.g, 1, &m);
        gold_run(sc.env.e, &m.request.r, 1, sc.base);
        for (int i = 0; i < 2000 && !is_over; i++) {
            for (uint32_t k = rig_draw(&sc.g, 8); k; k--) gy_mock_net_step(sc.g.net);
            rig_turn_worker(&sc.g, 0);
            turn_d();
            take_tokens(got, &n, &is_over);
        }
        assert_true(is_over);
        assert_int_equal(n, N_OUT);
        assert_memory_equal(got, sc.base[0].tokens, sizeof *got * N_OUT);
        close_scene();
    }
}

/* Of a worker that it never wrote to either; so many that a list grows. One that cannot be kept out ends D. */
static void test_strangers(void **state) {
    gy_err err;
    (void)state;
    open_scene(3, 0);
    for (uint64_t e = 1; e <= 200; e++) rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_GONE, .peer = e << 40});
    for (int i = 0; i < 3; i++) turn_d();
    for (uint64_t e = 1; e <= 256; e++) rig_tell(&sc.g, 1, &(gy_msg){.kind = GY_MSG_GONE, .peer = e << 41});
    assert_int_equal(gy_worker_message(sc.g.w[1].w, &(gy_msg){.kind = GY_MSG_GONE, .peer = 77}, &err), GY_E_LIMIT);
    assert_string_equal(err.msg, "message gone: of more than 256 workers at once");
    gy_mem_fail_after(1); /* no room for one of them */
    gy_worker_xfer_turn(sc.g.w[1].w);
    gy_mem_fail_after(0);
    assert_int_equal(gy_worker_turn(sc.g.w[1].w, &err), GY_E_PEER);
    assert_string_equal(err.msg, "a worker that was cut off cannot be kept from writing here");
    sc.g.w[1].is_dead = 1;
    close_scene();
}

/* ---- a connection that is lost between two that live ------------------------------------------------------------- */

static void break_it(void) {
    sc.g.w[0].w->o.xfer.across_hosts = 1;
    said_by(0, GY_MSG_REJECTED);
    gy_mock_net_break(sc.g.net, sc.g.w[0].w->x);
}

static int turn_p_until_rejected(int turns, int steps) {
    int n = 0;
    for (int i = 0; i < turns && !n; i++) {
        rig_turn_worker(&sc.g, 0);
        for (int k = 0; k < steps; k++) gy_mock_net_step(sc.g.net);
        n = said_by(0, GY_MSG_REJECTED);
    }
    return n;
}

static void expect_untouched(void) {
    fill_arena(0x7b);
    while (gy_mock_net_step(sc.g.net)) {
    }
    for (int i = 0; i < 10; i++) {
        rig_turn_worker(&sc.g, 0);
        turn_d();
    }
    assert_true(is_arena(0x7b));
}

static void test_lost_connection(void **state) {
    int64_t late = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        open_scene(seed, 0);
        break_it();
        assert_int_equal(turn_p_until_rejected(50, 0), 0); /* nothing went over the new one yet */
        assert_int_equal(turn_p_until_rejected(500, 1), 1);
        assert_null(sc.g.w[0].w->broken);
        expect_untouched();
        late += gy_mock_net_n_kept_out(sc.g.net);
        close_scene();
    }
    assert_true(late > 0);
}

/* Ops that do not end, though nobody says that they failed. */
static void test_patience(void **state) {
    (void)state;
    open_scene(1, 0);
    sc.g.w[0].w->o.xfer.across_hosts = 1;
    for (int i = 0; i < 20; i++) rig_turn_worker(&sc.g, 0);
    assert_null(sc.g.w[0].w->broken);
    sc.g.w[0].w->patience_ns = 0;
    rig_turn_worker(&sc.g, 0);
    assert_non_null(sc.g.w[0].w->broken);
    sc.g.w[0].w->patience_ns = INT64_MAX;
    assert_int_equal(turn_p_until_rejected(500, 1), 1);
    expect_untouched();
    close_scene();
}

/* No way to D: P keeps what it lost, whatever it is told, until there is a way again, or D is gone. */
static void test_no_way(void **state) {
    (void)state;
    for (int gone = 0; gone < 2; gone++) {
        open_scene(2, 0);
        gy_mock_net_part(sc.g.net, 1);
        break_it();
        rig_tell(&sc.g, 0, &(gy_msg){.kind = GY_MSG_CANCEL, .tid = sc.g.call[0].tid});
        for (int k = 0; k < 5; k++) {
            assert_int_equal(turn_p_until_rejected(30, 1), 0);
            sc.g.w[0].w->broken->mend_ns = 0; /* a second is over */
        }
        assert_false(gy_worker_is_empty(sc.g.w[0].w));
        gy_mock_net_part(sc.g.net, 0);
        if (gone) rig_tell(&sc.g, 0, &(gy_msg){.kind = GY_MSG_GONE, .peer = sc.g.w[1].epoch});
        for (int i = 0; i < 100; i++) {
            rig_turn_worker(&sc.g, 0);
            gy_mock_net_step(sc.g.net);
        }
        assert_true(gy_worker_is_empty(sc.g.w[0].w));
        if (!gone) expect_untouched();
        close_scene();
    }
}

/* Lost while nothing was under way: the next prompt goes over a new one, and nobody hears of it. */
static void test_lost_idle(void **state) {
    gold_result got[2];
    (void)state;
    open_scene(3, 0);
    sc.g.w[0].w->o.xfer.across_hosts = 1;
    rig_run(&sc.g);
    gy_mock_net_break(sc.g.net, sc.g.w[0].w->x);
    gy_request r = request(1);
    sc.g.n_call = 0;
    rig_add(&sc.g, &r, got);
    rig_run(&sc.g);
    assert_int_equal(sc.g.call[0].n_try, 1);
    gold_run(sc.env.e, &r, 1, sc.base);
    assert_memory_equal(got[0].tokens, sc.base[0].tokens, sizeof(int32_t) * N_OUT);
    rig_idle(&sc.g);
    close_scene();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),           cmocka_unit_test(test_next_one), cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_lost_connection), cmocka_unit_test(test_patience), cmocka_unit_test(test_no_way),
        cmocka_unit_test(test_lost_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
