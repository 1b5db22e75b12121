/* When what happened to a request: eight times on the coordinator's clock, whatever clock P has and in whichever order
 * messages come; and what the coordinator counts.
 */
#include "coord_test.h"

static void reserved(world *w, int32_t d, char try) {
    gy_msg m = of(w, GY_MSG_RESERVED, try);
    static const int32_t ids[3] = {7, 8, 9};
    static const gy_msg_table table[1] = {{.group = 0, .plane = 0, .n = 3, .ids = ids}};
    m.tables = (gy_msg_tables){.n_table = 1, .table = table};
    said(w, d, m);
}

/* P's clock is `off` ahead of ours. It began 400 before it said so, had computed 150 before, posted last 120 before and
 * was done 20 before. */
static void prefilled(world *w, int32_t p, char try, int64_t off) {
    gy_msg m = of(w, GY_MSG_PREFILLED, try);
    int64_t said_ns = w->now + off;
    m.sent = (gy_msg_sent){.bytes = 1000,
                           .n_op = 3,
                           .n_desc = 8,
                           .n_computed = 30,
                           .post_ns = 7,
                           .overlap_ns = 5,
                           .overlap_bytes = 600,
                           .n_overlap = 2,
                           .start_ns = said_ns - 400,
                           .first_post_ns = said_ns - 300,
                           .compute_ns = said_ns - 150,
                           .last_post_ns = said_ns - 120,
                           .last_done_ns = said_ns - 20,
                           .said_ns = said_ns};
    said(w, p, m);
}

static void forget(world *w) {
    w->log[0] = '\0';
}

/* Never falling where they are known, and within submit and finish. */
static void expect_order(const world *w) {
    const gy_finish_event *f = &w->finish;
    int64_t last = f->submit_ns;
    for (int s = 0; s < GY_PD_STAGES; s++) {
        int64_t at = f->pd.at_ns[s];
        if (!at) continue;
        if (at < last) fail_msg("stage %d at %lld, an earlier one at %lld", s, (long long)at, (long long)last);
        last = at;
    }
    assert_true(last <= f->finish_ns);
    if (f->pd.n_try) assert_int_equal(f->pd.at_ns[GY_PD_FINISHED], f->finish_ns);
}

static void expect_times(const world *w, const int64_t want[GY_PD_STAGES]) {
    for (int s = 0; s < GY_PD_STAGES; s++)
        if (w->finish.pd.at_ns[s] != want[s])
            fail_msg("stage %d: found %lld, expected %lld", s, (long long)w->finish.pd.at_ns[s], (long long)want[s]);
    expect_order(w);
}

static void end_all(world *w, char try) {
    said(w, 1, finish(w, try, 0, GY_FINISH_STOP, 1));
    say(w, 1, GY_MSG_RELEASED, try);
    forget(w);
}

static void in_order_on_any_clock(void **state) {
    static const int64_t offs[] = {0, 86400000000000, -86400000000000};
    (void)state;
    for (size_t i = 0; i < sizeof offs / sizeof *offs; i++) {
        WORLD(w, P, D);
        submit(&w, (ask){.max_tokens = 2});
        w.now = 1100;
        turn(&w);
        w.now = 1200;
        reserved(&w, 1, 'a');
        w.now = 2000;
        prefilled(&w, 0, 'a', offs[i]);
        w.now = 2100;
        say(&w, 1, GY_MSG_ACTIVE, 'a');
        w.now = 2300;
        said(&w, 1, token(&w, 'a', 0, 0));
        w.now = 2900;
        end_all(&w, 'a');
        expect_times(&w, (int64_t[]){1100, 1200, 1600, 1850, 1880, 2100, 2300, 2900});
        const gy_pd_cost *c = &w.finish.pd;
        assert_int_equal(c->n_try, 1);
        assert_int_equal(c->prefill, 0);
        assert_int_equal(c->decode, 1);
        assert_int_equal(c->bytes, 1000);
        assert_int_equal(c->n_op, 3);
        assert_int_equal(c->n_desc, 8);
        assert_int_equal(c->post_ns, 7);
        assert_int_equal(c->wire_ns, 280);
        assert_int_equal(c->tail_ns, 130);
        assert_int_equal(c->overlap_ns, 5);
        assert_int_equal(c->overlap_bytes, 600);
        assert_int_equal(c->n_overlap, 2);
        close_world(&w);
    }
}

/* D is faster than P's word: what P did lies before what D has said. */
static void what_crosses_is_put_between(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.max_tokens = 2});
    turn(&w);
    w.now = 1200;
    reserved(&w, 1, 'a');
    w.now = 1500;
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    w.now = 1600;
    said(&w, 1, token(&w, 'a', 0, 0));
    w.now = 1700;
    prefilled(&w, 0, 'a', 99);
    w.now = 1800;
    end_all(&w, 'a');
    expect_times(&w, (int64_t[]){1000, 1200, 1300, 1500, 1500, 1500, 1600, 1800});
    close_world(&w);
}

/* On a clock of D's, which is nobody's: P began 500 before D said so, .. */
static gy_msg active(world *w, char try, int64_t said_ns) {
    gy_msg m = of(w, GY_MSG_ACTIVE, try);
    m.sent = (gy_msg_sent){.bytes = 900,
                           .n_op = 2,
                           .n_desc = 5,
                           .start_ns = said_ns - 500,
                           .compute_ns = said_ns - 250,
                           .last_post_ns = said_ns - 200,
                           .said_ns = said_ns};
    return m;
}

static void d_tells_what_p_is_too_late_for(void **state) {
    (void)state;
    for (int late = 0; late < 2; late++) {
        WORLD(w, P, D);
        submit(&w, (ask){.max_tokens = 1});
        turn(&w);
        w.now = 1100;
        reserved(&w, 1, 'a');
        w.now = 2000;
        said(&w, 1, active(&w, 'a', 77000));
        said(&w, 1, token(&w, 'a', 0, 0));
        w.now = 2100;
        if (!late) prefilled(&w, 0, 'a', 3); /* knows better */
        end_all(&w, 'a');
        if (late)
            expect_times(&w, (int64_t[]){1000, 1100, 1500, 1750, 1800, 2000, 2000, 2100});
        else
            expect_times(&w, (int64_t[]){1000, 1100, 1700, 1950, 1980, 2000, 2000, 2100});
        const gy_pd_cost *c = &w.finish.pd;
        assert_int_equal(c->bytes, late ? 900 : 1000);
        assert_int_equal(c->n_op, late ? 2 : 3);
        assert_int_equal(c->n_desc, late ? 5 : 8);
        assert_int_equal(c->is_measured, !late);
        assert_int_equal(c->wire_ns, late ? 0 : 280);
        assert_int_equal(c->tail_ns, late ? 0 : 130);
        assert_int_equal(c->n_overlap, late ? 0 : 2);
        if (late) prefilled(&w, 0, 'a', 3);
        assert_int_equal(stats_of(&w).bytes, 1000); /* sums are P's alone */
        close_world(&w);
    }
}

/* P's word comes first: D's changes nothing. */
static void p_knows_better(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.max_tokens = 1});
    turn(&w);
    reserved(&w, 1, 'a');
    w.now = 2000;
    prefilled(&w, 0, 'a', 0);
    w.now = 2200;
    said(&w, 1, active(&w, 'a', 5));
    said(&w, 1, token(&w, 'a', 0, 0));
    end_all(&w, 'a');
    expect_times(&w, (int64_t[]){1000, 1000, 1600, 1850, 1880, 2200, 2200, 2200});
    assert_int_equal(w.finish.pd.bytes, 1000);
    close_world(&w);
}

static void what_comes_after_the_end_is_not_known(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.max_tokens = 1});
    turn(&w);
    reserved(&w, 1, 'a');
    w.now = 1500;
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    said(&w, 1, token(&w, 'a', 0, 0));
    end_all(&w, 'a');
    expect_times(&w, (int64_t[]){1000, 1000, 0, 0, 0, 1500, 1500, 1500});
    assert_int_equal(w.finish.pd.bytes, 0);
    prefilled(&w, 0, 'a', 0);
    assert_int_equal(stats_of(&w).bytes, 1000); /* the sums have it all the same */
    assert_int_equal(stats_of(&w).n_overlap, 2);
    close_world(&w);
}

static void of_the_last_try(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    submit(&w, (ask){.max_tokens = 3});
    turn(&w);
    reserved(&w, 1, 'a');
    w.now = 1500;
    prefilled(&w, 0, 'a', 0);
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    said(&w, 1, token(&w, 'a', 0, 0));
    die(&w, 1);
    w.now = 3000;
    turn(&w);
    w.now = 3100;
    reserved(&w, 2, 'b');
    w.now = 4000;
    prefilled(&w, 0, 'b', -7);
    say(&w, 2, GY_MSG_ACTIVE, 'b');
    w.now = 4100;
    said(&w, 2, token(&w, 'b', 0, 0)); /* told before */
    said(&w, 2, token(&w, 'b', 0, 1));
    w.now = 4200;
    said(&w, 2, finish(&w, 'b', 0, GY_FINISH_STOP, 2));
    say(&w, 2, GY_MSG_RELEASED, 'b');
    forget(&w);
    expect_times(&w, (int64_t[]){3000, 3100, 3600, 3850, 3880, 4000, 4100, 4200});
    assert_int_equal(w.finish.pd.n_try, 2);
    assert_int_equal(w.finish.pd.decode, 2);
    assert_int_equal(w.finish.first_token_ns, 1500); /* what the user saw */
    assert_int_equal(w.finish.admit_ns, 1000);
    close_world(&w);
}

static void where_nothing_crosses(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.is_local = 1, .max_tokens = 1});
    turn(&w);
    w.now = 2000;
    said(&w, 1, token(&w, 'a', 0, 0));
    w.now = 2500;
    gy_msg m = finish(&w, 'a', 0, GY_FINISH_STOP, 1);
    m.finish.admit_ns = 70000;
    m.finish.finish_ns = 71300;
    said(&w, 1, m);
    say(&w, 1, GY_MSG_RELEASED, 'a');
    forget(&w);
    expect_times(&w, (int64_t[]){1000, 0, 1200, 0, 0, 0, 2000, 2500});
    assert_int_equal(w.finish.pd.prefill, -1);
    assert_int_equal(w.finish.pd.bytes, 0);
    close_world(&w);
}

static void what_is_cancelled(void **state) {
    (void)state;
    WORLD(w, P, D);
    int32_t id = submit(&w, (ask){0});
    gy_coord_cancel(w.c, id);
    turn(&w);
    assert_int_equal(w.finish.pd.n_try, 0); /* it never was anywhere */
    expect_times(&w, (int64_t[GY_PD_STAGES]){0});
    id = submit(&w, (ask){0});
    w.now = 1300;
    turn(&w);
    w.now = 1400;
    reserved(&w, 1, 'a');
    w.now = 1500;
    gy_coord_cancel(w.c, id);
    turn(&w);
    expect_times(&w, (int64_t[]){1300, 1400, 0, 0, 0, 0, 0, 1500});
    say(&w, 0, GY_MSG_RELEASED, 'a');
    say(&w, 1, GY_MSG_RELEASED, 'a');
    forget(&w);
    close_world(&w);
}

static uint64_t rng = 5;
static uint64_t draw(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return rng >> 11;
}

/* Any number, often near one that means something. */
static int64_t any_time(const world *w) {
    switch (draw() % 4) {
    case 0:
        return (int64_t)(draw() << 11 | draw() % 2048);
    case 1:
        return draw() % 2 ? INT64_MAX : INT64_MIN;
    case 2:
        return 0;
    default:
        return w->now - 2000 + (int64_t)(draw() % 4000);
    }
}

static void lies_stay_in_order(void **state) {
    (void)state;
    for (int i = 0; i < 5000; i++) {
        WORLD(w, P, D);
        submit(&w, (ask){.max_tokens = 2});
        turn(&w);
        w.now += (int64_t)(draw() % 1000);
        reserved(&w, 1, 'a');
        gy_msg m = of(&w, GY_MSG_PREFILLED, 'a');
        int at = (int)(draw() % 3);
        for (int k = 0; k < 3; k++) {
            w.now += (int64_t)(draw() % 1000);
            if (k == at) {
                m.sent = (gy_msg_sent){.start_ns = any_time(&w),
                                       .compute_ns = any_time(&w),
                                       .first_post_ns = any_time(&w),
                                       .last_post_ns = any_time(&w),
                                       .last_done_ns = any_time(&w),
                                       .said_ns = any_time(&w)};
                said(&w, 0, m);
            }
            if (k == 0) {
                gy_msg a = active(&w, 'a', any_time(&w) / 2);
                a.sent.start_ns = any_time(&w);
                a.sent.compute_ns = any_time(&w);
                said(&w, 1, a);
            }
            if (k == 1) said(&w, 1, token(&w, 'a', 0, 0));
        }
        end_all(&w, 'a');
        expect_order(&w);
        const gy_pd_cost *c = &w.finish.pd;
        assert_true(c->wire_ns >= 0 && c->tail_ns >= 0 && stats_of(&w).wire_ns >= 0);
        for (int s = 0; s < GY_PD_STAGES; s++) assert_true(c->at_ns[s] >= 1000);
        close_world(&w);
    }
}

/* ---- what is counted --------------------------------------------------------------------------------------------- */

static void books_are_seen_and_end_at_zero(void **state) {
    (void)state;
    WORLD(w, P, D);
    gy_coord_stats s = stats_of(&w);
    assert_int_equal(s.n_live + s.used_blocks + s.wait_tok, 0);
    submit(&w, (ask){.max_tokens = 2, .n = 2});
    s = stats_of(&w);
    assert_int_equal(s.n_live, 1);
    assert_int_equal(s.wait_tok, 80); /* 40 tokens, each choice's */
    assert_int_equal(s.used_blocks, 0);
    turn(&w);
    s = stats_of(&w);
    assert_int_equal(s.wait_tok, 80);
    assert_int_equal(s.used_blocks, 2 * 3 * 4); /* at P and D: 3 blocks on 4 planes */
    reserved(&w, 1, 'a');
    assert_int_equal(stats_of(&w).wait_tok, 0);
    prefilled(&w, 0, 'a', 0);
    assert_int_equal(stats_of(&w).used_blocks, 3 * 4);
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    gy_msg m = token(&w, 'a', 0, 0);
    m.token.loops = 2;
    said(&w, 1, m);
    m = token(&w, 'a', 1, 0);
    m.token.loops = 1000;
    said(&w, 1, m);
    said(&w, 1, m); /* told once */
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_STOP, 1));
    assert_int_equal(stats_of(&w).n_live, 1);
    said(&w, 1, finish(&w, 'a', 1, GY_FINISH_STOP, 1));
    s = stats_of(&w);
    assert_int_equal(s.n_live, 0);
    assert_true(s.used_blocks > 0); /* D has not let go */
    assert_int_equal(s.n_exit[1], 1);
    assert_int_equal(s.n_exit[GY_STAT_DEPTHS - 1], 1);
    say(&w, 1, GY_MSG_RELEASED, 'a');
    assert_int_equal(stats_of(&w).used_blocks, 0);
    forget(&w);
    close_world(&w);
}

static void the_lane_is_known(void **state) {
    (void)state;
    WORLD(w, P, D);
    assert_string_equal(stats_of(&w).lane, "");
    die(&w, 1);
    say_ready(&w, 1);
    said(&w, 0, sentence((gy_msg){.kind = GY_MSG_CONNECTED, .peer = 12}, GY_OK, "sysv, posix"));
    assert_string_equal(stats_of(&w).lane, "sysv, posix");
    die(&w, 1);
    say_ready(&w, 1);
    char text[200];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    said(&w, 0, sentence((gy_msg){.kind = GY_MSG_CONNECTED, .peer = 22}, GY_OK, text));
    assert_int_equal(strlen(stats_of(&w).lane), sizeof stats_of(&w).lane - 1);
    die(&w, 1);
    say_ready(&w, 1);
    said(&w, 0, sentence((gy_msg){.kind = GY_MSG_CONNECTED, .peer = 32}, GY_E_PEER, "no way"));
    assert_int_equal(stats_of(&w).lane[0], 'x');
    forget(&w);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_order_on_any_clock),
        cmocka_unit_test(what_crosses_is_put_between),
        cmocka_unit_test(d_tells_what_p_is_too_late_for),
        cmocka_unit_test(p_knows_better),
        cmocka_unit_test(what_comes_after_the_end_is_not_known),
        cmocka_unit_test(of_the_last_try),
        cmocka_unit_test(where_nothing_crosses),
        cmocka_unit_test(what_is_cancelled),
        cmocka_unit_test(lies_stay_in_order),
        cmocka_unit_test(books_are_seen_and_end_at_zero),
        cmocka_unit_test(the_lane_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
