/* The coordinator, message by message: every transition, every boundary of cancellation, every death, what comes late
 * or twice or from the wrong side, deadlines, retries, replays, placement. Its books are checked after each step.
 */
#include "coord_test.h"

static const int64_t second = 1000000000;

static void reserved(world *w, int32_t d, char try) {
    gy_msg m = of(w, GY_MSG_RESERVED, try);
    static const int32_t ids[3] = {7, 8, 9};
    static const gy_msg_table table[1] = {{.group = 0, .plane = 0, .n = 3, .ids = ids}};
    m.tables = (gy_msg_tables){.n_have = 16, .hidden_slot = 1, .n_table = 1, .table = table};
    said(w, d, m);
}

static void prefilled(world *w, int32_t p, char try) {
    gy_msg m = of(w, GY_MSG_PREFILLED, try);
    m.sent = (gy_msg_sent){.bytes = 1000,
                           .n_op = 3,
                           .n_desc = 8,
                           .n_computed = 30,
                           .overlap_ns = 5,
                           .overlap_bytes = 600,
                           .first_post_ns = 100,
                           .last_done_ns = 150};
    said(w, p, m);
}

/* A crossing from the queue to a phase. */
static void to_reserving(world *w) {
    assert_int_equal(turn(w), GY_OK);
    expect_log(w, "1<reserve a");
}
static void to_prefill(world *w) {
    to_reserving(w);
    reserved(w, 1, 'a');
    expect_log(w, "0<prefill a");
}
static void to_decode(world *w) {
    to_prefill(w);
    say(w, 1, GY_MSG_ACTIVE, 'a');
    said(w, 1, token(w, 'a', 0, 0));
    expect_log(w, "r0.0:0");
}

/* ---- the straight way ------------------------------------------------------------------------------------------- */

static void a_prompt_crosses(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.max_tokens = 2});
    to_reserving(&w);
    assert_int_equal(w.peer, 1); /* who will write */
    reserved(&w, 1, 'a');
    expect_log(&w, "0<prefill a");
    assert_int_equal(w.peer, 2); /* where to */
    assert_int_equal(w.last.r.n_prompt, 40);
    assert_int_equal(w.last.r.prompt[2], 2);
    assert_null(w.last.r.on_token);
    assert_null(w.last.r.arg);
    assert_int_equal(w.tables.n_have, 16);
    assert_int_equal(w.tables.hidden_slot, 1);
    assert_int_equal(w.tables.table[0].ids[2], 9);
    assert_int_equal(turn(&w), GY_AGAIN);
    prefilled(&w, 0, 'a');
    w.now = 5000;
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    gy_msg m = token(&w, 'a', 0, 0);
    const float gates[2] = {0.5f, 0.25f};
    m.token.logprob = -1.5f;
    m.token.n_top = 1;
    m.token.top_id[0] = 77;
    m.token.top_logprob[0] = -0.5f;
    m.token.gates = gates;
    m.token.n_gate = 2;
    said(&w, 1, m);
    expect_log(&w, "r0.0:0");
    assert_int_equal(w.token.loops, 4);
    assert_int_equal(w.token.n_gate, 2);
    assert_ptr_equal(w.token.gates, gates);
    assert_int_equal(w.sampled.top_id[0], 77);
    assert_true(w.sampled.logprob == -1.5f && w.sampled.top_logprob[0] == -0.5f);
    w.now = 6000;
    said(&w, 1, token(&w, 'a', 0, 1));
    m = finish(&w, 'a', 0, GY_FINISH_LENGTH, 2);
    m.finish.n_preempt = 3;
    m.finish.n_cached = 16;
    said(&w, 1, m);
    expect_log(&w, "r0.0:1  r0.0=length/0");
    assert_int_equal(w.finish.n_prompt, 40);
    assert_int_equal(w.finish.n_output, 2);
    assert_int_equal(w.finish.n_cached, 10); /* what P did not compute */
    assert_int_equal(w.finish.n_preempt, 3);
    assert_int_equal(w.finish.stop_id, -1);
    assert_int_equal(w.finish.submit_ns, 1000);
    assert_int_equal(w.finish.admit_ns, 1000);
    assert_int_equal(w.finish.first_token_ns, 5000);
    assert_int_equal(w.finish.finish_ns, 6000);
    assert_int_equal(turn(&w), GY_AGAIN); /* D has not let go yet */
    say(&w, 1, GY_MSG_RELEASED, 'a');
    gy_coord_stats s = stats_of(&w);
    assert_int_equal(s.n_crossed, 1);
    assert_int_equal(s.bytes, 1000);
    assert_int_equal(s.n_op, 3);
    assert_int_equal(s.n_desc, 8);
    assert_int_equal(s.overlap_ns, 5);
    assert_int_equal(s.overlap_bytes, 600);
    assert_int_equal(s.wire_ns, 50);
    assert_int_equal(s.n_output_tok, 2);
    assert_int_equal(s.n_loop_sum, 8);
    assert_int_equal(s.n_finish[GY_FINISH_LENGTH], 1);
    close_world(&w);
}

static void active_and_even_the_end_may_come_before_prefilled(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.max_tokens = 1});
    to_decode(&w);
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_STOP, 1));
    expect_log(&w, "r0.0=stop/0");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    assert_int_equal(stats_of(&w).n_cleanup, 1);
    assert_int_equal(turn(&w), GY_AGAIN);
    prefilled(&w, 0, 'a');
    close_world(&w);
}

static void what_cannot_cross_runs_where_it_decodes(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.is_local = 1, .prompt_logprobs = 2, .n_prompt = 3, .max_tokens = 1});
    assert_int_equal(turn(&w), GY_OK);
    expect_log(&w, "1<local a");
    gy_msg m = of(&w, GY_MSG_PROMPT, 'a');
    for (int pos = 1; pos < 3; pos++) {
        m.token.index = pos;
        said(&w, 1, m);
    }
    said(&w, 1, m);
    said(&w, 1, token(&w, 'a', 0, 0));
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_LENGTH, 1));
    expect_log(&w, "r0?1  r0?2  r0.0:0  r0.0=length/0");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    assert_int_equal(stats_of(&w).n_local, 1);
    assert_int_equal(stats_of(&w).n_swallowed, 1);
    close_world(&w);
}

static void choices_finish_one_by_one(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.n = 3, .max_tokens = 2});
    to_decode(&w);
    said(&w, 1, token(&w, 'a', 2, 0));
    said(&w, 1, finish(&w, 'a', 2, GY_FINISH_STOP, 1));
    gy_msg numeric = sentence(finish(&w, 'a', 1, GY_FINISH_ERROR, 0), GY_E_NUMERIC, "logits: NaN");
    said(&w, 1, numeric);
    assert_string_equal(w.err, "logits: NaN");
    said(&w, 1, numeric); /* twice: not told again */
    said(&w, 1, token(&w, 'a', 0, 1));
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_LENGTH, 2));
    expect_log(&w, "r0.2:200  r0.2=stop/2  r0.1=error/1  r0.0:1  r0.0=length/0");
    prefilled(&w, 0, 'a');
    say(&w, 1, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void the_seed_is_drawn_once(void **state) {
    (void)state;
    WORLD(w, P, D);
    w.next_random = 1 << 20;
    submit(&w, (ask){.random_seed = 1});
    to_reserving(&w);
    uint64_t seed = w.last.r.sample.seed;
    assert_int_equal(seed, ((1 << 20) + 1) >> 11);
    assert_int_equal(w.last.r.random_seed, 0);
    die(&w, 1);
    say_ready(&w, 1);
    say_connected(&w, 0, 1);
    turn(&w);
    expect_log(&w, "0<gone 2  0<connect 12  1<reserve b");
    assert_int_equal(w.last.r.sample.seed, seed);
    gy_coord_cancel(w.c, 0);
    turn(&w);
    assert_int_equal(w.finish.seed, seed);
    expect_log(&w, "1<cancel b  r0.0=cancelled/0");
    say(&w, 1, GY_MSG_RELEASED, 'b');
    w.is_random_broken = 1;
    gy_err err = {0};
    int32_t id = -7;
    assert_int_equal(try_submit(&w, (ask){.random_seed = 1}, &err, &id), GY_E_IO);
    assert_int_equal(id, -7);
    submit(&w, (ask){0});
    turn(&w); /* no random bits for a tid either */
    expect_log(&w, "r1.0=error/0");
    assert_non_null(strstr(w.err, "random"));
    close_world(&w);
}

/* ---- cancellation ---------------------------------------------------------------------------------------------------
 */

static void cancel(world *w, int32_t id) {
    gy_coord_cancel(w->c, id);
    expect_log(w, ""); /* nothing before the next turn */
    assert_int_equal(turn(w), GY_OK);
}

static void cancelled_while_it_waits(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.n = 2});
    cancel(&w, 0);
    expect_log(&w, "r0.0=cancelled/1  r0.1=cancelled/0");
    gy_coord_cancel(w.c, 0); /* and again, and one that never was */
    gy_coord_cancel(w.c, 99);
    close_world(&w);
}

static void cancelled_while_reserving(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_reserving(&w);
    cancel(&w, 0);
    expect_log(&w, "1<cancel a  r0.0=cancelled/0");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void a_late_reserved_is_answered_by_cancel_safe(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_reserving(&w);
    cancel(&w, 0);
    expect_log(&w, "1<cancel a  r0.0=cancelled/0");
    reserved(&w, 1, 'a');
    expect_log(&w, "1<cancel_safe a");
    reserved(&w, 1, 'a'); /* once */
    expect_log(&w, "");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    reserved(&w, 1, 'a');
    close_world(&w);
}

static void cancelled_while_prefilling(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    cancel(&w, 0);
    expect_log(&w, "0<cancel a  1<cancel a  r0.0=cancelled/0");
    assert_int_equal(turn(&w), GY_AGAIN);
    expect_log(&w, "");
    say(&w, 0, GY_MSG_RELEASED, 'a');
    expect_log(&w, "1<cancel_safe a");
    say(&w, 0, GY_MSG_RELEASED, 'a');
    say(&w, 1, GY_MSG_RELEASED, 'a');
    say(&w, 1, GY_MSG_RELEASED, 'a');
    assert_int_equal(stats_of(&w).n_late, 2);
    close_world(&w);
}

static void prefilled_crosses_the_cancel(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    cancel(&w, 0);
    expect_log(&w, "0<cancel a  1<cancel a  r0.0=cancelled/0");
    prefilled(&w, 0, 'a'); /* P is done, and will not answer the CANCEL */
    expect_log(&w, "1<cancel_safe a");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void active_crosses_the_cancel(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    cancel(&w, 0);
    expect_log(&w, "0<cancel a  1<cancel a  r0.0=cancelled/0");
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    said(&w, 1, token(&w, 'a', 0, 0));
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_CANCELLED, 1));
    say(&w, 1, GY_MSG_RELEASED, 'a');
    expect_log(&w, "");
    prefilled(&w, 0, 'a'); /* no CANCEL_SAFE: D has let go */
    close_world(&w);
}

static void cancelled_while_decoding(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_decode(&w);
    prefilled(&w, 0, 'a');
    cancel(&w, 0);
    expect_log(&w, "1<cancel a  r0.0=cancelled/0");
    assert_int_equal(w.finish.n_output, 1);
    say(&w, 1, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void cancelled_while_decoding_before_prefilled(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_decode(&w);
    cancel(&w, 0);
    expect_log(&w, "0<cancel a  1<cancel a  r0.0=cancelled/0");
    say(&w, 0, GY_MSG_RELEASED, 'a');
    expect_log(&w, ""); /* D decodes: no writer is left */
    say(&w, 1, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void cancelled_while_it_runs_alone(void **state) {
    (void)state;
    WORLD(w, D);
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "0<local a");
    cancel(&w, 0);
    expect_log(&w, "0<cancel a  r0.0=cancelled/0");
    said(&w, 0, token(&w, 'a', 0, 0));
    said(&w, 0, finish(&w, 'a', 0, GY_FINISH_LENGTH, 1)); /* the end was on its way */
    say(&w, 0, GY_MSG_RELEASED, 'a');
    assert_int_equal(stats_of(&w).n_late, 2);
    close_world(&w);
}

static void cancel_after_the_end_is_nothing(void **state) {
    (void)state;
    WORLD(w, D);
    submit(&w, (ask){0});
    turn(&w);
    said(&w, 0, finish(&w, 'a', 0, GY_FINISH_STOP, 0));
    gy_coord_cancel(w.c, 0);
    turn(&w);
    expect_log(&w, "0<local a  r0.0=stop/0");
    say(&w, 0, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void stop_from_on_token(void **state) {
    (void)state;
    WORLD(w, P, D);
    w.stop_at[0] = 1;
    submit(&w, (ask){0});
    to_decode(&w);
    said(&w, 1, token(&w, 'a', 0, 1));
    expect_log(&w, "r0.0:1  0<cancel a  1<cancel a  r0.0=stop/0");
    assert_int_equal(w.finish.n_output, 2);
    said(&w, 1, token(&w, 'a', 0, 2));
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_CANCELLED, 3));
    say(&w, 1, GY_MSG_RELEASED, 'a');
    prefilled(&w, 0, 'a');
    close_world(&w);
}

static void stop_of_one_choice_leaves_the_others(void **state) {
    (void)state;
    WORLD(w, D);
    w.stop_at[0] = 0;
    submit(&w, (ask){.n = 2});
    turn(&w);
    said(&w, 0, token(&w, 'a', 0, 0));
    expect_log(&w, "0<local a  r0.0:0  r0.0=stop/1");
    said(&w, 0, token(&w, 'a', 0, 1)); /* nobody listens */
    said(&w, 0, token(&w, 'a', 1, 0));
    said(&w, 0, finish(&w, 'a', 1, GY_FINISH_STOP, 1));
    expect_log(&w, "r0.1:100  0<cancel a  r0.1=stop/0"); /* choice 0 still runs there */
    say(&w, 0, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void submit_and_cancel(world *w, int32_t request) {
    submit(w, (ask){0});
    gy_coord_cancel(w->c, request);
}

static void callbacks_submit_and_cancel(void **state) {
    (void)state;
    WORLD(w, D);
    w.on_event = submit_and_cancel;
    submit(&w, (ask){.n = 2});
    turn(&w);
    said(&w, 0, token(&w, 'a', 0, 0));
    expect_log(&w, "0<local a  r0.0:0");
    w.on_event = submit_and_cancel; /* at the first of two finish events: r0 is known until the second */
    turn(&w);
    expect_log(&w, "0<cancel a  r0.0=cancelled/1  r0.1=cancelled/0  0<local b  0<local c");
    w.on_event = submit_and_cancel; /* of itself, with its last event: unknown by then */
    said(&w, 0, finish(&w, 'b', 0, GY_FINISH_STOP, 0));
    turn(&w);
    expect_log(&w, "r1.0=stop/0  0<local d");
    gy_coord_cancel(w.c, 2);
    gy_coord_cancel(w.c, 3);
    turn(&w);
    expect_log(&w, "0<cancel c  r2.0=cancelled/0  0<cancel d  r3.0=cancelled/0");
    for (char t = 'a'; t <= 'd'; t++) say(&w, 0, GY_MSG_RELEASED, t);
    close_world(&w);
}

/* ---- deaths ---------------------------------------------------------------------------------------------------------
 */

static void back(world *w, int32_t slot) { /* respawned and connected */
    say_ready(w, slot);
    for (int i = 0; i < w->o.n_worker; i++) {
        if (i != slot && (w->o.role[slot] & P) && (w->o.role[i] & D)) say_connected(w, slot, i);
        if (i != slot && (w->o.role[i] & P) && (w->o.role[slot] & D)) say_connected(w, i, slot);
    }
}

/* b, the second try, to its end. */
static void second_try_ends(world *w) {
    assert_int_equal(turn(w), GY_OK);
    expect_log(w, "1<reserve b");
    reserved(w, 1, 'b');
    prefilled(w, 0, 'b');
    say(w, 1, GY_MSG_ACTIVE, 'b');
    said(w, 1, token(w, 'b', 0, 0));
    said(w, 1, token(w, 'b', 0, 1));
    said(w, 1, finish(w, 'b', 0, GY_FINISH_STOP, 2));
    say(w, 1, GY_MSG_RELEASED, 'b');
    assert_int_equal(stats_of(w).n_retry, 1);
}

static void p_dies_while_reserving(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_reserving(&w);
    die(&w, 0);
    expect_log(&w, "1<gone 1  1<cancel a");
    reserved(&w, 1, 'a');
    expect_log(&w, "1<cancel_safe a");
    back(&w, 0);
    expect_log(&w, "0<connect 2");
    second_try_ends(&w);
    expect_log(&w, "0<prefill b  r0.0:0  r0.0:1  r0.0=stop/0");
    say(&w, 1, GY_MSG_RELEASED, 'a'); /* the first try lets go after the request has ended */
    close_world(&w);
}

static void d_dies_while_reserving(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_reserving(&w);
    die(&w, 1);
    expect_log(&w, "0<gone 2"); /* P was never told */
    assert_int_equal(turn(&w), GY_AGAIN);
    back(&w, 1);
    expect_log(&w, "0<connect 12");
    second_try_ends(&w);
    expect_log(&w, "0<prefill b  r0.0:0  r0.0:1  r0.0=stop/0");
    close_world(&w);
}

static void p_dies_while_prefilling(void **state) {
    (void)state;
    for (int has_said = 0; has_said < 2; has_said++) { /* PREFILLED: its last note may be lost all the same */
        WORLD(w, P, D);
        submit(&w, (ask){0});
        to_prefill(&w);
        if (has_said) prefilled(&w, 0, 'a');
        die(&w, 0);
        expect_log(&w, "1<gone 1  1<cancel a  1<cancel_safe a");
        back(&w, 0);
        expect_log(&w, "0<connect 2");
        say(&w, 1, GY_MSG_ACTIVE, 'a'); /* it had all of it: too late */
        said(&w, 1, token(&w, 'a', 0, 0));
        say(&w, 1, GY_MSG_RELEASED, 'a');
        second_try_ends(&w);
        expect_log(&w, "0<prefill b  r0.0:0  r0.0:1  r0.0=stop/0");
        close_world(&w);
    }
}

static void d_dies_while_prefilling(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    die(&w, 1);
    expect_log(&w, "0<gone 2  0<cancel a");
    back(&w, 1);
    expect_log(&w, "0<connect 12");
    second_try_ends(&w);
    expect_log(&w, "0<prefill b  r0.0:0  r0.0:1  r0.0=stop/0");
    say(&w, 0, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void both_die_while_prefilling(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        WORLD(w, P, D);
        submit(&w, (ask){0});
        to_prefill(&w);
        die(&w, first);
        die(&w, 1 - first);
        expect_log(&w, first ? "0<gone 2  0<cancel a" : "1<gone 1  1<cancel a  1<cancel_safe a");
        assert_int_equal(turn(&w), GY_AGAIN);
        say_ready(&w, 1);
        say_ready(&w, 0);
        expect_log(&w, "0<connect 12");
        say_connected(&w, 0, 1);
        second_try_ends(&w);
        expect_log(&w, "0<prefill b  r0.0:0  r0.0:1  r0.0=stop/0");
        close_world(&w);
    }
}

static void p_dies_while_decoding(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_decode(&w);
    die(&w, 0);
    expect_log(&w, "1<gone 1"); /* all bytes are there: nothing else happens */
    said(&w, 1, token(&w, 'a', 0, 1));
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_STOP, 2));
    say(&w, 1, GY_MSG_RELEASED, 'a');
    expect_log(&w, "r0.0:1  r0.0=stop/0");
    assert_int_equal(stats_of(&w).n_retry, 0);
    close_world(&w);
}

static void d_dies_while_decoding(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_decode(&w);
    die(&w, 1);
    expect_log(&w, "0<gone 2  0<cancel a");
    prefilled(&w, 0, 'a');
    back(&w, 1);
    expect_log(&w, "0<connect 12");
    second_try_ends(&w);
    expect_log(&w, "0<prefill b  r0.0:1  r0.0=stop/0"); /* output 0 was told before */
    assert_int_equal(stats_of(&w).n_swallowed, 1);
    close_world(&w);
}

static void deaths_while_cleaning_up(void **state) {
    (void)state;
    for (int who = 0; who < 3; who++) { /* P, D, both */
        WORLD(w, P, D);
        submit(&w, (ask){0});
        to_prefill(&w);
        cancel(&w, 0);
        expect_log(&w, "0<cancel a  1<cancel a  r0.0=cancelled/0");
        if (who != 1) die(&w, 0);
        if (who != 1) expect_log(&w, "1<gone 1  1<cancel_safe a");
        if (who != 0) die(&w, 1);
        if (who == 1) expect_log(&w, "0<gone 2"); /* P has its CANCEL */
        if (who == 0) say(&w, 1, GY_MSG_RELEASED, 'a');
        if (who == 1) say(&w, 0, GY_MSG_RELEASED, 'a');
        close_world(&w);
    }
}

static void d_dies_after_the_end_before_p_is_done(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.max_tokens = 1});
    to_decode(&w);
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_LENGTH, 1));
    die(&w, 1);
    expect_log(&w, "r0.0=length/0  0<gone 2  0<cancel a");
    say(&w, 0, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void p_dies_after_the_end_before_d_let_go(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.max_tokens = 1});
    to_decode(&w);
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_LENGTH, 1));
    die(&w, 0);
    expect_log(&w, "r0.0=length/0  1<gone 1");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void a_later_life_of_a_slot_is_not_the_earlier_one(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    die(&w, 1);
    back(&w, 1);
    expect_log(&w, "0<gone 2  0<cancel a  0<connect 12");
    int64_t n_late = stats_of(&w).n_late;
    say(&w, 1, GY_MSG_ACTIVE, 'a'); /* this life never heard of it */
    assert_int_equal(stats_of(&w).n_late, n_late + 1);
    said(&w, 0, (gy_msg){.kind = GY_MSG_CONNECTED, .peer = 2}); /* answer about the earlier life */
    assert_int_equal(stats_of(&w).n_late, n_late + 2);
    die(&w, 1);
    expect_log(&w, "0<gone 12");
    say(&w, 0, GY_MSG_RELEASED, 'a');
    cancel(&w, 0);
    expect_log(&w, "r0.0=cancelled/0");
    close_world(&w);
}

static void others_go_on_when_one_dies(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    submit(&w, (ask){0});
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "1<reserve a  2<reserve b");
    reserved(&w, 1, 'a');
    reserved(&w, 2, 'b');
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    say(&w, 2, GY_MSG_ACTIVE, 'b');
    prefilled(&w, 0, 'a');
    prefilled(&w, 0, 'b');
    die(&w, 1);
    turn(&w);
    expect_log(&w, "0<prefill a  0<prefill b  0<gone 2  2<gone 2  2<reserve c");
    said(&w, 2, finish(&w, 'b', 0, GY_FINISH_STOP, 0));
    say(&w, 2, GY_MSG_RELEASED, 'b');
    expect_log(&w, "r1.0=stop/0");
    cancel(&w, 0);
    expect_log(&w, "2<cancel c  r0.0=cancelled/0");
    say(&w, 2, GY_MSG_RELEASED, 'c');
    close_world(&w);
}

/* ---- the early word: begun again at once, and what it may still write into stays as it is until it is dead
 * ------------------------------------------------------------------------------------------------------------ */

static void p_ends_while_it_writes(void **state) {
    (void)state;
    WORLD(w, P, P, D);
    submit(&w, (ask){0});
    turn(&w);
    reserved(&w, 2, 'a');
    expect_log(&w, "2<reserve a  0<prefill a");
    begin_dying(&w, 0);
    turn(&w);
    expect_log(&w, "0<cancel a  2<cancel a  2<reserve b"); /* no CANCEL_SAFE, no GONE; who lives goes on */
    reserved(&w, 2, 'b');
    expect_log(&w, "1<prefill b");
    assert_int_equal(w.peer, 3);
    begin_dying(&w, 0); /* once is enough */
    expect_log(&w, "");
    die(&w, 0);
    expect_log(&w, "1<gone 1  2<gone 1  2<cancel_safe a");
    say(&w, 2, GY_MSG_RELEASED, 'a');
    prefilled(&w, 1, 'b');
    say(&w, 2, GY_MSG_ACTIVE, 'b');
    said(&w, 2, finish(&w, 'b', 0, GY_FINISH_STOP, 0));
    say(&w, 2, GY_MSG_RELEASED, 'b');
    expect_log(&w, "r0.0=stop/0");
    assert_int_equal(stats_of(&w).n_retry, 1);
    assert_int_equal(stats_of(&w).n_death, 1);
    close_world(&w);
}

static void d_ends_while_p_writes_to_it(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    submit(&w, (ask){0});
    turn(&w);
    reserved(&w, 1, 'a');
    begin_dying(&w, 1);
    turn(&w);
    expect_log(&w, "1<reserve a  0<prefill a  0<cancel a  1<cancel a  2<reserve b");
    say(&w, 0, GY_MSG_RELEASED, 'a');  /* before or behind its death */
    expect_log(&w, "1<cancel_safe a"); /* nobody hears it */
    die(&w, 1);
    expect_log(&w, "0<gone 2  2<gone 2");
    reserved(&w, 2, 'b');
    prefilled(&w, 0, 'b');
    say(&w, 2, GY_MSG_ACTIVE, 'b');
    said(&w, 2, finish(&w, 'b', 0, GY_FINISH_STOP, 0));
    say(&w, 2, GY_MSG_RELEASED, 'b');
    expect_log(&w, "0<prefill b  r0.0=stop/0");
    close_world(&w);
}

/* Nothing waits for the place that it held, and nothing new goes there, until its next life is ready. */
static void the_only_d_ends(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_decode(&w);
    begin_dying(&w, 1);
    expect_log(&w, "0<cancel a  1<cancel a");
    assert_int_equal(turn(&w), GY_AGAIN);
    die(&w, 1);
    assert_int_equal(turn(&w), GY_AGAIN);
    expect_log(&w, "0<gone 2");
    prefilled(&w, 0, 'a');
    back(&w, 1);
    expect_log(&w, "0<connect 12");
    second_try_ends(&w);
    expect_log(&w, "0<prefill b  r0.0:1  r0.0=stop/0"); /* output 0 was told before */
    close_world(&w);
}

/* A P whose bytes are all there, and one that was not told yet. */
static void p_ends_and_holds_nothing(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_decode(&w);
    begin_dying(&w, 0);
    expect_log(&w, "");
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_STOP, 1));
    say(&w, 1, GY_MSG_RELEASED, 'a');
    expect_log(&w, "r0.0=stop/0"); /* its own place goes back with its death */
    submit(&w, (ask){.max_tokens = 2});
    turn(&w);
    expect_log(&w, "1<local b"); /* no P is of use */
    die(&w, 0);
    expect_log(&w, "1<gone 1");
    said(&w, 1, finish(&w, 'b', 0, GY_FINISH_STOP, 0));
    say(&w, 1, GY_MSG_RELEASED, 'b');
    expect_log(&w, "r1.0=stop/0");
    assert_int_equal(stats_of(&w).n_retry, 0);
    close_world(&w);
}

static void p_ends_before_it_is_told(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_reserving(&w);
    begin_dying(&w, 0);
    expect_log(&w, "1<cancel a");
    reserved(&w, 1, 'a');
    expect_log(&w, "1<cancel_safe a"); /* nobody ever knew these pages */
    turn(&w);
    expect_log(&w, "1<local b");
    die(&w, 0);
    said(&w, 1, finish(&w, 'b', 0, GY_FINISH_STOP, 0));
    say(&w, 1, GY_MSG_RELEASED, 'b');
    say(&w, 1, GY_MSG_RELEASED, 'a');
    expect_log(&w, "1<gone 1  r0.0=stop/0");
    close_world(&w);
}

static void one_that_starts_ends(void **state) {
    (void)state;
    WORLD(w, P, D);
    die(&w, 0);
    expect_log(&w, "1<gone 1");
    begin_dying(&w, 0);
    begin_dying(&w, 9); /* there is none */
    die(&w, 0);
    back(&w, 0);
    submit(&w, (ask){0});
    expect_log(&w, "0<connect 2");
    turn(&w);
    reserved(&w, 1, 'a');
    expect_log(&w, "1<reserve a  0<prefill a"); /* its next life is like any */
    cancel(&w, 0);
    say(&w, 0, GY_MSG_RELEASED, 'a');
    say(&w, 1, GY_MSG_RELEASED, 'a');
    expect_log(&w, "0<cancel a  1<cancel a  r0.0=cancelled/0  1<cancel_safe a");
    close_world(&w);
}

/* ---- tries and rejections
 * --------------------------------------------------------------------------------------------- */

static void three_tries_and_no_more(void **state) {
    (void)state;
    WORLD(w, D, D, D, D);
    submit(&w, (ask){.n = 2});
    turn(&w);
    said(&w, 0, token(&w, 'a', 0, 0));
    said(&w, 0, finish(&w, 'a', 0, GY_FINISH_STOP, 1));
    expect_log(&w, "0<local a  r0.0:0  r0.0=stop/1");
    for (int i = 0; i < 3; i++) {
        die(&w, i);
        turn(&w);
    }
    expect_log(&w, "1<gone 1  2<gone 1  3<gone 1  1<local b  2<gone 2  3<gone 2  2<local c  3<gone 3  r0.1=error/0");
    assert_int_equal(w.err_status, GY_E_PEER);
    assert_string_equal(w.err, "request: given up after 3 tries on the workers; the last one failed because worker 2 "
                               "died");
    assert_int_equal(stats_of(&w).n_try, 3);
    assert_int_equal(stats_of(&w).n_retry, 2);
    close_world(&w);
}

static void rejected_for_good_is_the_requests_end(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){.n = 2});
    to_reserving(&w);
    said(&w, 1, sentence(of(&w, GY_MSG_REJECTED, 'a'), GY_E_LIMIT, "prompt: found 40 tokens, expected at most 30"));
    expect_log(&w, "r0.0=error/1  r0.1=error/0");
    assert_string_equal(w.err, "prompt: found 40 tokens, expected at most 30");
    assert_int_equal(w.err_status, GY_E_LIMIT);
    close_world(&w);
}

static void rejected_by_p_frees_d(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    said(&w, 0, sentence(of(&w, GY_MSG_REJECTED, 'a'), GY_E_LIMIT, "too long"));
    expect_log(&w, "1<cancel a  1<cancel_safe a  r0.0=error/0");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void what_another_worker_may_not_have_is_tried_again(void **state) {
    (void)state;
    const gy_status why[] = {GY_E_PEER, GY_E_TIMEOUT, GY_E_NOMEM, GY_E_BUG, GY_E_CANCELLED /* it ends */};
    for (size_t i = 0; i < sizeof why / sizeof why[0]; i++) {
        WORLD(w, P, D);
        submit(&w, (ask){0});
        to_prefill(&w);
        said(&w, 0, sentence(of(&w, GY_MSG_REJECTED, 'a'), why[i], "connection reset"));
        expect_log(&w, "1<cancel a  1<cancel_safe a");
        second_try_ends(&w);
        expect_log(&w, "0<prefill b  r0.0:0  r0.0:1  r0.0=stop/0");
        say(&w, 1, GY_MSG_RELEASED, 'a');
        close_world(&w);
    }
}

static void rejected_by_d_while_p_writes(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    said(&w, 1, sentence(of(&w, GY_MSG_REJECTED, 'a'), GY_E_UNSUPPORTED, "grammar"));
    expect_log(&w, "0<cancel a  r0.0=error/0");
    say(&w, 0, GY_MSG_RELEASED, 'a');
    close_world(&w);
}

static void not_now_is_no_failure(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    for (char t = 'a'; t < 'a' + 5; t++) { /* more often than a request may fail */
        char want[32];
        while (turn(&w) == GY_AGAIN) w.now += second / 100; /* it may look earlier than it has to */
        snprintf(want, sizeof want, "1<reserve %c", t);
        expect_log(&w, want);
        said(&w, 1, sentence(of(&w, GY_MSG_REJECTED, t), GY_AGAIN, "no room"));
        int64_t next_ns;
        assert_int_equal(gy_coord_turn(w.c, w.now, &next_ns), GY_AGAIN); /* it is left alone for a while */
        expect_log(&w, "");
        assert_true(next_ns > w.now && next_ns < w.now + 1000000000);
        w.now = next_ns;
    }
    assert_int_equal(stats_of(&w).n_retry, 0);
    cancel(&w, 0);
    expect_log(&w, "r0.0=cancelled/0");
    close_world(&w);
}

static void three_tries_exist_at_once(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    for (char t = 'a'; t <= 'c'; t++, w.now += second / 2) {
        assert_int_equal(turn(&w), GY_OK);
        reserved(&w, 1, t);
        said(&w, 0, sentence(of(&w, GY_MSG_REJECTED, t), GY_AGAIN, "queue"));
    }
    w.log[0] = '\0';
    assert_int_equal(turn(&w), GY_AGAIN); /* D has not let go of any */
    assert_int_equal(stats_of(&w).n_cleanup, 3);
    say(&w, 1, GY_MSG_RELEASED, 'b');
    assert_int_equal(turn(&w), GY_OK);
    expect_log(&w, "1<reserve d");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    say(&w, 1, GY_MSG_RELEASED, 'c');
    cancel(&w, 0);
    expect_log(&w, "1<cancel d  r0.0=cancelled/0");
    said(&w, 1, sentence(of(&w, GY_MSG_REJECTED, 'd'), GY_E_LIMIT, "crossed the cancel"));
    close_world(&w);
}

static void room_that_comes_back_ends_not_now(void **state) {
    (void)state;
    WORLD(w, D);
    submit(&w, (ask){0});
    submit(&w, (ask){0});
    turn(&w);
    said(&w, 0, sentence(of(&w, GY_MSG_REJECTED, 'b'), GY_AGAIN, "queue"));
    assert_int_equal(turn(&w), GY_AGAIN);
    said(&w, 0, finish(&w, 'a', 0, GY_FINISH_STOP, 0));
    say(&w, 0, GY_MSG_RELEASED, 'a');
    turn(&w);
    expect_log(&w, "0<local a  0<local b  r0.0=stop/0  0<local c");
    said(&w, 0, finish(&w, 'c', 0, GY_FINISH_STOP, 0));
    say(&w, 0, GY_MSG_RELEASED, 'c');
    expect_log(&w, "r1.0=stop/0");
    close_world(&w);
}

static void an_error_of_the_worker_is_tried_again(void **state) {
    (void)state;
    const struct {
        gy_finish reason;
        gy_status st;
    } kind[] = {{GY_FINISH_ERROR, GY_E_DEVICE}, {GY_FINISH_CANCELLED, GY_OK}};
    for (int i = 0; i < 2; i++) {
        WORLD(w, D);
        submit(&w, (ask){0});
        turn(&w);
        said(&w, 0, token(&w, 'a', 0, 0));
        said(&w, 0, sentence(finish(&w, 'a', 0, kind[i].reason, 1), kind[i].st, "lost"));
        turn(&w);
        expect_log(&w, "0<local a  r0.0:0  0<cancel a  0<local b");
        say(&w, 0, GY_MSG_RELEASED, 'a');
        said(&w, 0, token(&w, 'b', 0, 0));
        said(&w, 0, token(&w, 'b', 0, 1));
        said(&w, 0, finish(&w, 'b', 0, GY_FINISH_STOP, 2));
        say(&w, 0, GY_MSG_RELEASED, 'b');
        expect_log(&w, "r0.0:1  r0.0=stop/0");
        close_world(&w);
    }
}

static void a_replay_is_told_once(void **state) {
    (void)state;
    WORLD(w, D, D);
    submit(&w, (ask){.n = 2, .is_local = 1, .prompt_logprobs = 1, .n_prompt = 3});
    turn(&w);
    gy_msg m = of(&w, GY_MSG_PROMPT, 'a');
    m.token.index = 2;
    said(&w, 0, m);
    for (int i = 0; i < 3; i++) said(&w, 0, token(&w, 'a', 0, i));
    said(&w, 0, token(&w, 'a', 1, 0));
    said(&w, 0, finish(&w, 'a', 1, GY_FINISH_STOP, 1));
    expect_log(&w, "0<local a  r0?2  r0.0:0  r0.0:1  r0.0:2  r0.1:100  r0.1=stop/1");
    die(&w, 0);
    turn(&w);
    expect_log(&w, "1<gone 1  1<local b");
    m = of(&w, GY_MSG_PROMPT, 'b');
    for (int pos = 1; pos < 3; pos++) {
        m.token.index = pos;
        said(&w, 1, m);
    }
    for (int i = 0; i < 4; i++) said(&w, 1, token(&w, 'b', 0, i));
    said(&w, 1, token(&w, 'b', 1, 0));
    said(&w, 1, finish(&w, 'b', 1, GY_FINISH_STOP, 1));
    said(&w, 1, finish(&w, 'b', 0, GY_FINISH_LENGTH, 4));
    expect_log(&w, "r0?1  r0.0:3  r0.0=length/0");
    assert_int_equal(stats_of(&w).n_swallowed, 5);
    say(&w, 1, GY_MSG_RELEASED, 'b');
    close_world(&w);
}

/* ---- deadlines
 * ---------------------------------------------------------------------------------------------------------- */

static int64_t next_of(world *w) {
    int64_t next_ns;
    gy_coord_turn(w->c, w->now, &next_ns);
    return next_ns;
}

static void a_deadline_ends_one_request_in_any_state(void **state) {
    (void)state;
    static const char *const where[] = {"while it waited", "while a place for its KV was reserved",
                                        "while its prompt was computed", "while it was decoded"};
    static const char *const want[] = {"r0.0=error/0", "1<cancel a  r0.0=error/0",
                                       "0<cancel a  1<cancel a  r0.0=error/0", "0<cancel a  1<cancel a  r0.0=error/0"};
    for (int at = 0; at < 4; at++) {
        WORLD(w, P, D);
        submit(&w, (ask){.deadline_ns = w.now + 2 * second});
        if (at == 1) to_reserving(&w);
        if (at == 2) to_prefill(&w);
        if (at == 3) to_decode(&w);
        w.now += 2 * second - 1;
        if (at) assert_int_equal(next_of(&w), w.now + 1);
        expect_log(&w, "");
        w.now += 1;
        assert_int_equal(turn(&w), GY_OK);
        expect_log(&w, want[at]);
        assert_int_equal(w.err_status, GY_E_TIMEOUT);
        assert_non_null(strstr(w.err, "its deadline of 2.0 s passed"));
        assert_non_null(strstr(w.err, where[at]));
        if (at >= 2) say(&w, 0, GY_MSG_RELEASED, 'a');
        if (at) say(&w, 1, GY_MSG_RELEASED, 'a');
        if (at == 2) expect_log(&w, "1<cancel_safe a");
        close_world(&w);
    }
}

static void end_all(world *w, int32_t n) {
    w->log[0] = '\0';
    for (int32_t id = 0; id < n; id++) gy_coord_cancel(w->c, id);
    turn(w);
    for (int i = 0; i < w->o.n_worker; i++) die(w, i);
    w->log[0] = '\0';
}

static void deadlines_are_per_request(void **state) {
    (void)state;
    WORLD(w, D);
    submit(&w, (ask){.deadline_ns = w.now + 5 * second});
    submit(&w, (ask){0});
    submit(&w, (ask){.deadline_ns = w.now + 3 * second});
    turn(&w);
    assert_int_equal(next_of(&w), w.now + 3 * second);
    w.now += 3 * second;
    turn(&w);
    expect_log(&w, "0<local a  0<local b  0<local c  0<cancel c  r2.0=error/0");
    assert_int_equal(next_of(&w), w.now + 2 * second);
    w.now += 2 * second;
    turn(&w);
    expect_log(&w, "0<cancel a  r0.0=error/0");
    assert_int_equal(next_of(&w), INT64_MAX);
    cancel(&w, 1);
    expect_log(&w, "0<cancel b  r1.0=cancelled/0");
    for (char t = 'a'; t <= 'c'; t++) say(&w, 0, GY_MSG_RELEASED, t);
    close_world(&w);
}

static void a_deadline_may_be_set_later(void **state) {
    (void)state;
    WORLD(w, D);
    for (int i = 0; i < 3; i++) submit(&w, (ask){0});
    gy_coord_set_deadline(w.c, 1, w.now - 1); /* over before it came */
    gy_coord_set_deadline(w.c, 2, w.now + second);
    gy_coord_set_deadline(w.c, 99, w.now);
    turn(&w);
    expect_log(&w, "r1.0=error/0  0<local a  0<local b");
    assert_string_equal(w.err, "request: its deadline of 0.0 s passed while it waited");
    assert_int_equal(w.err_status, GY_E_TIMEOUT);
    w.now = next_of(&w);
    assert_int_equal(w.now, 1000 + second);
    turn(&w);
    expect_log(&w, "0<cancel b  r2.0=error/0");
    end_all(&w, 1);
    close_world(&w);
}

static void a_silent_reservation_suspects_its_worker(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    submit(&w, (ask){0});
    turn(&w);
    w.now += 30 * second; /* nobody looked meanwhile: no move, but a failure */
    assert_int_equal(turn(&w), GY_OK);
    expect_log(&w, "1<reserve a  1<cancel a  2<reserve b"); /* elsewhere */
    assert_int_equal(stats_of(&w).n_retry, 1);
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "2<reserve c"); /* nothing new for the silent one */
    say(&w, 1, GY_MSG_RELEASED, 'a');
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "1<reserve d"); /* it spoke */
    for (int32_t id = 0; id < 3; id++) gy_coord_cancel(w.c, id);
    turn(&w);
    expect_log(&w, "2<cancel b  r0.0=cancelled/0  2<cancel c  r1.0=cancelled/0  1<cancel d  r2.0=cancelled/0");
    say(&w, 2, GY_MSG_RELEASED, 'b');
    say(&w, 2, GY_MSG_RELEASED, 'c');
    say(&w, 1, GY_MSG_RELEASED, 'd');
    close_world(&w);
}

static void a_silent_prefill_suspects_p_then_d(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    w.now += 60 * second;
    turn(&w);
    expect_log(&w, "0<cancel a  1<cancel a  1<local b"); /* no other P: where it decodes */
    cancel(&w, 0);
    expect_log(&w, "1<cancel b  r0.0=cancelled/0");
    say(&w, 1, GY_MSG_RELEASED, 'b');
    assert_int_equal(turn(&w), GY_AGAIN); /* D keeps pages for a P that may still write */
    die(&w, 0);
    expect_log(&w, "1<gone 1  1<cancel_safe a");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    back(&w, 0);
    expect_log(&w, "0<connect 2");
    submit(&w, (ask){0});
    turn(&w);
    reserved(&w, 1, 'c');
    w.now += 59 * second;
    prefilled(&w, 0, 'c');
    w.now += 59 * second;
    assert_int_equal(turn(&w), GY_AGAIN);
    w.now += second;
    turn(&w);
    expect_log(&w, "1<reserve c  0<prefill c  1<cancel c  1<cancel_safe c"); /* D is suspected: it waits */
    say(&w, 1, GY_MSG_RELEASED, 'c');
    expect_log(&w, "deaf 1"); /* it answers, and did not begin what was all there */
    turn(&w);
    expect_log(&w, "1<reserve d");
    cancel(&w, 1);
    expect_log(&w, "1<cancel d  r1.0=cancelled/0");
    say(&w, 1, GY_MSG_RELEASED, 'd');
    close_world(&w);
}

/* ACTIVE and the coordinator's patience cross: D has heard. */
static void who_begins_too_late_is_not_deaf(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    to_prefill(&w);
    prefilled(&w, 0, 'a');
    w.now += 60 * second;
    turn(&w);
    expect_log(&w, "1<cancel a  1<cancel_safe a");
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    say(&w, 1, GY_MSG_RELEASED, 'a');
    expect_log(&w, "");
    turn(&w);
    expect_log(&w, "1<reserve b");
    cancel(&w, 0);
    expect_log(&w, "1<cancel b  r0.0=cancelled/0");
    say(&w, 1, GY_MSG_RELEASED, 'b');
    close_world(&w);
}

static void who_speaks_may_be_slow(void **state) {
    (void)state;
    for (int phase = 0; phase < 2; phase++) {
        WORLD(w, P, D);
        submit(&w, (ask){0});
        if (phase)
            to_prefill(&w);
        else
            to_reserving(&w);
        int64_t start = w.now, limit = (phase ? 60 : 30) * second;
        while (w.now + limit / 2 < start + GY_COORD_PATIENCE * limit) {
            w.now += limit / 2;
            said(&w, 1 - phase, (gy_msg){.kind = GY_MSG_STATS});
            turn(&w);
            expect_log(&w, "");
            assert_true(next_of(&w) > w.now);
        }
        w.now = start + GY_COORD_PATIENCE * limit - 1; /* but not for ever */
        assert_int_equal(turn(&w), GY_AGAIN);
        assert_int_equal(next_of(&w), w.now + 1);
        w.now++;
        assert_int_equal(turn(&w), GY_OK);
        expect_log(&w, phase ? "0<cancel a  1<cancel a  1<local b" : "1<cancel a");
        assert_int_equal(stats_of(&w).n_retry, 1);
        end_all(&w, 1);
        close_world(&w);
    }
}

static void silence_three_times_is_the_end(void **state) {
    (void)state;
    WORLD(w, P, D, D, D);
    submit(&w, (ask){0});
    for (int i = 0; i < 4; i++, w.now += 30 * second) turn(&w);
    expect_log(&w, "1<reserve a  1<cancel a  2<reserve b  2<cancel b  3<reserve c  3<cancel c  r0.0=error/0");
    assert_string_equal(w.err, "request: given up after 3 tries on the workers; the last one failed because worker 3 "
                               "did not reserve a place in 30.0 s");
    for (char t = 'a'; t <= 'c'; t++) say(&w, t - 'a' + 1, GY_MSG_RELEASED, t);
    close_world(&w);
}

/* ---- what may not be said
 * ------------------------------------------------------------------------------------------------ */

static void only_a_worker_that_fits_is_ready(void **state) {
    (void)state;
    const int32_t roles[2] = {P, D};
    world w;
    open_world(&w, 2, roles);
    assert_null(gy_coord_info(w.c));
    refused(&w, 0, (gy_msg){.kind = GY_MSG_STATS}, GY_E_FORMAT, "worker 0: said stats before ready");
    die(&w, 0);
    gy_msg m = ready(&w, 0);
    m.ready.role = D;
    refused(&w, 0, m, GY_E_ARG, "worker 0: role: found 2, expected 1");
    refused(&w, 0, ready(&w, 0), GY_E_FORMAT, "after its end");
    die(&w, 0);
    m = ready(&w, 0);
    m.ready.info.max_handoff = 0;
    refused(&w, 0, m, GY_E_ARG, "max_handoff: found 0");
    die(&w, 0);
    say_ready(&w, 0);
    assert_string_equal(gy_coord_info(w.c)->family, "ouro");
    m = ready(&w, 1);
    m.ready.info.fingerprint[3] = 1;
    refused(&w, 1, m, GY_E_ARG, "worker 1: worker: its checkpoint or options differ");
    assert_int_equal(gy_coord_n_ready(w.c, GY_PD_DECODE), 0);
    die(&w, 1);
    m = ready(&w, 1);
    m.ready.info.n_loop = 8;
    refused(&w, 1, m, GY_E_ARG, "n_loop");
    die(&w, 1);
    m = ready(&w, 1);
    m.peer = ready(&w, 0).peer;
    refused(&w, 1, m, GY_E_ARG, "another worker has it");
    die(&w, 1);
    m = ready(&w, 1);
    m.ready.info.n_block[0] = 7; /* what may differ */
    m.ready.info.max_seqs = 1;
    said(&w, 1, m);
    refused(&w, 1, m, GY_E_FORMAT, "ready twice");
    assert_int_equal(gy_coord_n_ready(w.c, GY_PD_DECODE), 1);
    assert_int_equal(gy_coord_n_ready(w.c, GY_PD_PREFILL), 1);
    expect_log(&w, "0<connect 32");
    die(&w, 0);
    die(&w, 1);
    expect_log(&w, "1<gone 31");
    assert_int_equal(gy_coord_n_ready(w.c, GY_PD_DECODE), 0);
    assert_non_null(gy_coord_info(w.c)); /* whoever comes back must be the same */
    m = ready(&w, 0);
    m.ready.info.n_vocab = 7;
    refused(&w, 0, m, GY_E_ARG, "n_vocab");
    gy_err err = {0};
    assert_int_equal(gy_coord_message(w.c, 2, &m, 0, &err), GY_E_ARG);
    assert_int_equal(gy_coord_message(w.c, -1, &m, 0, &err), GY_E_ARG);
    close_world(&w);
}

static gy_msg ready_as(world *w, int32_t slot, int32_t role) {
    gy_msg m = ready(w, slot);
    m.ready.role = role;
    return m;
}

/* Slots without a role: whoever comes says what it is, and its slot is empty again when it is gone. */
static void who_joins_says_its_role(void **state) {
    (void)state;
    const int32_t roles[3] = {0, 0, 0};
    world w;
    open_world(&w, 3, roles);
    submit(&w, (ask){.max_tokens = 1});
    assert_int_equal(turn(&w), GY_AGAIN);
    refused(&w, 0, ready_as(&w, 0, 0), GY_E_ARG, "role: found 0, expected 1 (prefill), 2 (decode) or 3");
    die(&w, 0);
    refused(&w, 0, ready_as(&w, 0, 4), GY_E_ARG, "role: found 4");
    die(&w, 0);
    said(&w, 2, ready_as(&w, 2, D));
    assert_int_equal(gy_coord_n_ready(w.c, GY_PD_DECODE), 1);
    said(&w, 0, ready_as(&w, 0, P));
    expect_log(&w, "0<connect 3");
    say_connected(&w, 0, 2);
    assert_int_equal(turn(&w), GY_OK);
    expect_log(&w, "2<reserve a");
    die(&w, 2);
    expect_log(&w, "0<gone 3");
    said(&w, 2, ready_as(&w, 2, P)); /* another life is another worker */
    said(&w, 1, ready_as(&w, 1, H));
    expect_log(&w, "0<connect 2  2<connect 2");
    die(&w, 0);
    assert_int_equal(gy_coord_n_ready(w.c, GY_PD_PREFILL), 2);
    assert_int_equal(gy_coord_n_ready(w.c, GY_PD_DECODE), 1);
    gy_coord_cancel(w.c, 0);
    w.log[0] = '\0';
    turn(&w);
    expect_log(&w, "r0.0=cancelled/0");
    for (int32_t i = 1; i < 3; i++) die(&w, i);
    w.log[0] = '\0';
    close_world(&w);
}

/* LEAVING, or the other way round: what it has goes on, nothing new goes there, and then it may stop. */
static void who_leaves_ends_what_it_has(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    submit(&w, (ask){.max_tokens = 1});
    to_prefill(&w);
    assert_false(gy_coord_may_stop(w.c, 1));
    said(&w, 1, (gy_msg){.kind = GY_MSG_LEAVING});
    gy_coord_leave(w.c, 0);
    submit(&w, (ask){.max_tokens = 1});
    assert_int_equal(turn(&w), GY_OK); /* P leaves too: where it decodes, and that is not 1 */
    expect_log(&w, "2<local b");
    assert_false(gy_coord_may_stop(w.c, 0) || gy_coord_may_stop(w.c, 1) || gy_coord_may_stop(w.c, 2));
    prefilled(&w, 0, 'a');
    assert_false(gy_coord_may_stop(w.c, 0)); /* its last note may be under way */
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    assert_true(gy_coord_may_stop(w.c, 0));
    die(&w, 0); /* it was told to stop */
    expect_log(&w, "1<gone 1  2<gone 1");
    said(&w, 1, token(&w, 'a', 0, 0));
    said(&w, 1, finish(&w, 'a', 0, GY_FINISH_LENGTH, 1));
    assert_false(gy_coord_may_stop(w.c, 1));
    say(&w, 1, GY_MSG_RELEASED, 'a');
    assert_true(gy_coord_may_stop(w.c, 1));
    die(&w, 1);
    assert_int_equal(stats_of(&w).n_death, 0);
    said(&w, 2, (gy_msg){.kind = GY_MSG_LEAVING});
    die(&w, 2); /* in the middle of it */
    assert_int_equal(stats_of(&w).n_death, 1);
    say_ready(&w, 2);
    assert_int_equal(turn(&w), GY_OK);
    expect_log(&w, "r0.0:0  r0.0=length/0  2<gone 2  2<local c");
    said(&w, 2, finish(&w, 'c', 0, GY_FINISH_STOP, 0));
    say(&w, 2, GY_MSG_RELEASED, 'c');
    expect_log(&w, "r1.0=stop/0");
    assert_false(gy_coord_may_stop(w.c, 2)); /* a new life does not leave */
    close_world(&w);
}

static void messages_of_the_other_direction_are_refused(void **state) {
    (void)state;
    for (int k = GY_MSG_CONNECT; k <= GY_MSG_PING; k++) {
        WORLD(w, P, D);
        refused(&w, 0, (gy_msg){.kind = (gy_msg_kind)k}, GY_E_FORMAT, "which only a coordinator says");
        close_world(&w);
    }
}

typedef struct wrong {
    int phase;      /* 0 reserving, 1 prefill, 2 decode */
    int32_t worker; /* 0 P, 1 D, 2 another D */
    gy_msg_kind kind;
} wrong;

static void what_no_honest_worker_says(void **state) {
    (void)state;
    static const wrong all[] = {
        {0, 2, GY_MSG_RESERVED}, {0, 0, GY_MSG_RESERVED},  {0, 1, GY_MSG_PREFILLED}, {0, 1, GY_MSG_ACTIVE},
        {0, 1, GY_MSG_TOKEN},    {0, 1, GY_MSG_RELEASED},  {1, 1, GY_MSG_TOKEN},     {1, 1, GY_MSG_FINISH},
        {1, 1, GY_MSG_RELEASED}, {1, 0, GY_MSG_RELEASED},  {1, 0, GY_MSG_ACTIVE},    {1, 2, GY_MSG_PREFILLED},
        {2, 0, GY_MSG_TOKEN},    {2, 1, GY_MSG_PREFILLED}, {2, 2, GY_MSG_FINISH},    {2, 1, GY_MSG_RELEASED},
        {2, 1, GY_MSG_PROMPT},   {2, 2, GY_MSG_REJECTED},  {2, 2, GY_MSG_RELEASED},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        WORLD(w, P, D, D);
        submit(&w, (ask){0});
        if (all[i].phase == 0) to_reserving(&w);
        if (all[i].phase == 1) to_prefill(&w);
        if (all[i].phase == 2) to_decode(&w);
        refused(&w, all[i].worker, of(&w, all[i].kind, 'a'), GY_E_FORMAT, "worker");
        w.log[0] = '\0';
        for (int k = 0; k < 3; k++) die(&w, k);
        w.log[0] = '\0';
        cancel(&w, 0);
        expect_log(&w, "r0.0=cancelled/0");
        close_world(&w);
    }
}

static void outputs_must_be_whole(void **state) {
    (void)state;
    for (int i = 0; i < 7; i++) {
        WORLD(w, P, D);
        submit(&w, (ask){.max_tokens = 3});
        to_decode(&w);
        gy_msg bad[7] = {token(&w, 'a', 0, 2),
                         token(&w, 'a', 1, 0),
                         token(&w, 'a', -1, 0),
                         token(&w, 'a', 0, -1),
                         finish(&w, 'a', 0, GY_FINISH_STOP, 2),
                         finish(&w, 'a', 0, GY_FINISH_LENGTH, 0),
                         finish(&w, 'a', 1, GY_FINISH_STOP, 0)};
        refused(&w, 1, bad[i], GY_E_FORMAT, "found");
        expect_log(&w, "");
        cancel(&w, 0);
        die(&w, 0);
        die(&w, 1);
        expect_log(&w, "0<cancel a  1<cancel a  r0.0=cancelled/0  1<gone 1");
        close_world(&w);
    }
}

static void counts_must_be_possible(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        WORLD(w, P, D);
        submit(&w, (ask){.n_prompt = 40});
        to_reserving(&w);
        if (i > 1) reserved(&w, 1, 'a');
        gy_msg m = of(&w, i > 1 ? GY_MSG_PREFILLED : GY_MSG_RESERVED, 'a');
        m.tables.n_have = m.sent.n_computed = i % 2 ? 41 : -1;
        refused(&w, i > 1 ? 0 : 1, m, GY_E_FORMAT, i % 2 ? "found 41" : "found -1");
        end_all(&w, 1);
        close_world(&w);
    }
}

static void a_fatal_worker_gets_nothing_new(void **state) {
    (void)state;
    WORLD(w, D, D);
    said(&w, 0, sentence((gy_msg){.kind = GY_MSG_FATAL}, GY_OK, "out of memory"));
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "1<local a");
    die(&w, 0);
    expect_log(&w, "1<gone 1");
    said(&w, 0, sentence((gy_msg){.kind = GY_MSG_FATAL}, GY_OK, "cannot open the model")); /* before it was ready */
    die(&w, 0);
    expect_log(&w, "");
    say_ready(&w, 0);
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "0<local b");
    gy_coord_cancel(w.c, 0);
    gy_coord_cancel(w.c, 1);
    turn(&w);
    say(&w, 1, GY_MSG_RELEASED, 'a');
    say(&w, 0, GY_MSG_RELEASED, 'b');
    expect_log(&w, "1<cancel a  r0.0=cancelled/0  0<cancel b  r1.0=cancelled/0");
    assert_int_equal(stats_of(&w).n_death, 2);
    close_world(&w);
}

static void unknown_tids_are_counted(void **state) {
    (void)state;
    WORLD(w, P, D);
    for (int k = GY_MSG_RESERVED; k <= GY_MSG_RELEASED; k++)
        said(&w, 0, (gy_msg){.kind = (gy_msg_kind)k, .tid = {1234, 5678}});
    assert_int_equal(stats_of(&w).n_late, GY_MSG_RELEASED - GY_MSG_RESERVED + 1);
    said(&w, 0, (gy_msg){.kind = GY_MSG_STATS});
    close_world(&w);
}

/* ---- who goes where
 * ------------------------------------------------------------------------------------------------------- */

static void everyone_is_told_of_those_he_writes_to(void **state) {
    (void)state;
    const int32_t roles[4] = {D, P, H, D};
    world w;
    open_world(&w, 4, roles);
    for (int i = 0; i < 4; i++) say_ready(&w, i);
    expect_log(&w, "1<connect 1  2<connect 1  1<connect 3  1<connect 4  2<connect 4");
    die(&w, 2);
    expect_log(&w, "0<gone 3  1<gone 3  3<gone 3");
    say_ready(&w, 2);
    expect_log(&w, "2<connect 1  1<connect 13  2<connect 4");
    close_world(&w);
}

static void a_try_waits_for_connected(void **state) {
    (void)state;
    const int32_t roles[3] = {P, D, D};
    world w;
    open_world(&w, 3, roles);
    for (int i = 0; i < 3; i++) say_ready(&w, i);
    expect_log(&w, "0<connect 2  0<connect 3");
    submit(&w, (ask){0});
    assert_int_equal(turn(&w), GY_AGAIN);
    say_connected(&w, 0, 2);
    turn(&w);
    expect_log(&w, "2<reserve a");
    submit(&w, (ask){0});
    gy_msg failed = {.kind = GY_MSG_CONNECTED, .peer = 2, .status = GY_E_PEER, .text = "no route"};
    said(&w, 0, failed);
    turn(&w);
    expect_log(&w, "2<reserve b"); /* the only pair */
    for (int32_t id = 0; id < 2; id++) cancel(&w, id), w.log[0] = '\0';
    say(&w, 2, GY_MSG_RELEASED, 'a');
    say(&w, 2, GY_MSG_RELEASED, 'b');
    die(&w, 2);
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "0<gone 3  1<gone 3  1<local c"); /* P is alive, and cannot reach anybody */
    cancel(&w, 2);
    expect_log(&w, "1<cancel c  r2.0=cancelled/0");
    say(&w, 1, GY_MSG_RELEASED, 'c');
    close_world(&w);
}

static void without_p_all_is_local(void **state) {
    (void)state;
    WORLD(w, P, D);
    die(&w, 0);
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "1<gone 1  1<local a");
    die(&w, 1);
    assert_int_equal(turn(&w), GY_AGAIN); /* nobody decodes: it waits */
    say_ready(&w, 1);
    turn(&w);
    expect_log(&w, "1<local b");
    cancel(&w, 0);
    expect_log(&w, "1<cancel b  r0.0=cancelled/0");
    say(&w, 1, GY_MSG_RELEASED, 'b');
    close_world(&w);
}

static void open_with(world *w, int n, const int32_t *role, void (*change)(gy_coord_opts *)) {
    gy_err err = {0};
    open_world(w, n, role);
    gy_coord_destroy(w->c);
    change(&w->o);
    if (gy_coord_create(&w->o, &err, &w->c) < 0) fail_msg("%s", err.msg);
    start(w);
}
static void short_is_local(gy_coord_opts *o) {
    o->local_below = 40;
}
static void one_prefill(gy_coord_opts *o) {
    o->max_prefill = 1;
}
static void short_queue(gy_coord_opts *o) {
    o->max_queue = 4;
}

static void short_prompts_are_local(void **state) {
    (void)state;
    const int32_t roles[2] = {P, D};
    world w;
    open_with(&w, 2, roles, short_is_local);
    submit(&w, (ask){.n_prompt = 39});
    submit(&w, (ask){.n_prompt = 40});
    turn(&w);
    expect_log(&w, "1<local a  1<reserve b");
    end_all(&w, 2);
    close_world(&w);
}

static void the_least_loaded_gets_it(void **state) {
    (void)state;
    WORLD(w, P, P, D, D);
    submit(&w, (ask){.n_prompt = 100, .n = 2});
    submit(&w, (ask){.n_prompt = 30});
    submit(&w, (ask){.n_prompt = 20});
    submit(&w, (ask){.n_prompt = 20});
    submit(&w, (ask){.n_prompt = 20});
    turn(&w);
    expect_log(&w, "2<reserve a  3<reserve b  3<reserve c  3<reserve d  2<reserve e");
    for (char t = 'a'; t <= 'e'; t++) reserved(&w, t == 'a' || t == 'e' ? 2 : 3, t);
    expect_log(&w, "0<prefill a  1<prefill b  1<prefill c  1<prefill d  1<prefill e");
    end_all(&w, 5);
    close_world(&w);
}

static void p_has_so_many_prompts_at_once(void **state) {
    (void)state;
    const int32_t roles[2] = {P, D};
    world w;
    open_with(&w, 2, roles, one_prefill);
    submit(&w, (ask){0});
    submit(&w, (ask){0});
    submit(&w, (ask){.is_local = 1}); /* passes: it needs no P */
    turn(&w);
    expect_log(&w, "1<reserve a  1<local b");
    reserved(&w, 1, 'a');
    prefilled(&w, 0, 'a');
    turn(&w);
    expect_log(&w, "0<prefill a  1<reserve c"); /* P is free again, whatever D does */
    reserved(&w, 1, 'c');
    expect_log(&w, "0<prefill c");
    submit(&w, (ask){0});
    assert_int_equal(turn(&w), GY_AGAIN);
    w.now += second / 100;
    turn(&w);
    assert_int_equal(next_of(&w), w.now - second / 100 + 15 * second);
    w.now += 15 * second;
    turn(&w);
    expect_log(&w, "1<local d"); /* its patience is over, D has room */
    end_all(&w, 4);
    close_world(&w);
}

/* ---- who waits for whom ------------------------------------------------------------------------------------------ */

static void by_priority(gy_coord_opts *o) {
    o->policy = GY_SCHED_PRIORITY;
    o->max_bypass = 2;
}

/* All choices of one try end, and D lets go. */
static void let_go(world *w, int32_t d, char try, int32_t n) {
    for (int32_t k = 0; k < n; k++) said(w, d, finish(w, try, k, GY_FINISH_STOP, 0));
    say(w, d, GY_MSG_RELEASED, try);
    w->log[0] = '\0';
}

static void the_better_priority_goes_first(void **state) {
    (void)state;
    const int32_t roles[1] = {D};
    static const int32_t want[2][4] = {{1, 2, 3, 4}, {3, 2, 4, 1}}; /* fcfs; by priority, then by age */
    for (int i = 0; i < 2; i++) {
        world w;
        open_with(&w, 1, roles, i ? by_priority : short_queue);
        submit(&w, (ask){.n = 4, .is_local = 1});
        turn(&w);
        expect_log(&w, "0<local a");
        for (int k = 0; k < 4; k++)
            submit(&w, (ask){.n = 1, .priority = (const int32_t[]){7, 0, -3, 0}[k], .n_prompt = 1000 - k});
        assert_int_equal(turn(&w), GY_AGAIN); /* no blocks beside the first */
        for (int k = 0; k < 4; k++) {
            let_go(&w, 0, (char)('a' + k), k ? 1 : 4);
            assert_int_equal(turn(&w), GY_OK);
            assert_int_equal(w.last.r.n_prompt, 1000 - (want[i][k] - 1));
            w.log[0] = '\0';
        }
        let_go(&w, 0, 'e', 1);
        close_world(&w);
    }
}

static void who_comes_back_keeps_its_priority(void **state) {
    (void)state;
    const int32_t roles[1] = {D};
    world w;
    open_with(&w, 1, roles, by_priority);
    submit(&w, (ask){.n_prompt = 901, .priority = 1});
    turn(&w);
    submit(&w, (ask){.n_prompt = 902, .priority = 0});
    submit(&w, (ask){.n_prompt = 903, .priority = 1});
    turn(&w);
    die(&w, 0);
    say_ready(&w, 0);
    w.log[0] = '\0';
    static const int32_t want[3] = {902, 901, 903};
    for (int k = 0; k < 3; k++) {
        turn(&w);
        assert_int_equal(w.last.r.n_prompt, want[k]);
        let_go(&w, 0, (char)('b' + k), 1);
    }
    close_world(&w);
}

static void nobody_is_passed_more_often_than_allowed(void **state) {
    (void)state;
    const int32_t roles[1] = {D};
    world w;
    open_with(&w, 1, roles, by_priority);
    submit(&w, (ask){.n = 4});
    turn(&w);
    submit(&w, (ask){.n = 6, .priority = -1}); /* has no place beside four */
    for (int i = 0; i < 4; i++) submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "0<local a  0<local b  0<local c"); /* two pass it, though four could */
    assert_int_equal(turn(&w), GY_AGAIN);
    submit(&w, (ask){.priority = -2}); /* a better one passes nobody */
    turn(&w);
    expect_log(&w, "0<local d");
    let_go(&w, 0, 'b', 1);
    let_go(&w, 0, 'd', 1);
    assert_int_equal(turn(&w), GY_AGAIN);
    let_go(&w, 0, 'a', 4);
    turn(&w);
    expect_log(&w, "0<local e  0<local f"); /* six beside one, and then the next */
    assert_int_equal(w.last.r.n, 1);
    end_all(&w, 7);
    close_world(&w);
}

/* ---- a D that does not answer ------------------------------------------------------------------------------------ */

static const int64_t ms = 1000000;

/* From RESERVED to the end, at once. */
static void serve(world *w, int32_t p, int32_t d, char try) {
    reserved(w, d, try);
    prefilled(w, p, try);
    say(w, d, GY_MSG_ACTIVE, try);
    let_go(w, d, try, 1);
}

/* Four prompts wait at D 1, which is stopped; D 2 joins. */
static void four_at_a_stopped_d(world *w) {
    die(w, 2);
    for (int i = 0; i < 4; i++) submit(w, (ask){0});
    w->log[0] = '\0';
    turn(w);
    expect_log(w, "1<reserve a  1<reserve b  1<reserve c  1<reserve d");
    back(w, 2);
    w->log[0] = '\0';
}

static void a_stopped_d_does_not_hold_up_the_others(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    four_at_a_stopped_d(&w);
    for (int i = 0; i < 3; i++) submit(&w, (ask){0});
    assert_int_equal(turn(&w), GY_AGAIN); /* P may get these four any moment */
    assert_int_equal(next_of(&w), w.now + 5 * ms);
    w.now += 5 * ms;
    assert_int_equal(turn(&w), GY_OK);
    expect_log(&w, "2<reserve e  2<reserve f"); /* half of P's places */
    assert_int_equal(stats_of(&w).n_owed, 4);
    serve(&w, 0, 2, 'e');
    turn(&w);
    expect_log(&w, "2<reserve g");
    serve(&w, 0, 2, 'f');
    serve(&w, 0, 2, 'g');
    end_all(&w, 7);
    close_world(&w);
}

static void what_waits_at_a_stopped_d_is_moved(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    four_at_a_stopped_d(&w);
    int64_t start = w.now;
    w.now += 5 * ms;
    turn(&w);
    assert_int_equal(next_of(&w), start + 2 * second);
    w.now = start + 2 * second;
    assert_int_equal(turn(&w), GY_OK);
    expect_log(&w, "1<cancel a  1<cancel b  1<cancel c  1<cancel d  "
                   "2<reserve e  2<reserve f  2<reserve g  2<reserve h");
    gy_coord_stats s = stats_of(&w);
    assert_int_equal(s.n_move, 4);
    assert_int_equal(s.n_retry, 0); /* nothing has failed */
    for (char t = 'e'; t <= 'h'; t++) serve(&w, 0, 2, t);
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "2<reserve i"); /* nothing new for the silent one */
    serve(&w, 0, 2, 'i');
    reserved(&w, 1, 'a'); /* it goes on: what it had said before it heard of the cancel */
    expect_log(&w, "1<cancel_safe a");
    for (char t = 'a'; t <= 'd'; t++) say(&w, 1, GY_MSG_RELEASED, t);
    submit(&w, (ask){.text = 1});
    turn(&w);
    expect_log(&w, "1<reserve j");
    serve(&w, 0, 1, 'j');
    close_world(&w);
}

static void without_another_d_it_waits(void **state) {
    (void)state;
    WORLD(w, P, D);
    w.now += 3600 * second; /* nobody had anything to say */
    submit(&w, (ask){0});
    to_reserving(&w);
    int64_t start = w.now;
    while (w.now < start + 29 * second) {
        w.now = next_of(&w);
        if (w.now < start + 30 * second) turn(&w);
    }
    expect_log(&w, "");
    assert_int_equal(w.now, start + 30 * second);
    serve(&w, 0, 1, 'a');
    assert_int_equal(stats_of(&w).n_move, 0);
    close_world(&w);
}

static void late_answers_are_served(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    four_at_a_stopped_d(&w);
    w.now += 5 * ms;
    for (int i = 0; i < 3; i++) submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "2<reserve e  2<reserve f");
    reserved(&w, 2, 'e');
    reserved(&w, 2, 'f');
    for (char t = 'a'; t <= 'd'; t++) reserved(&w, 1, t); /* whatever P has */
    expect_log(&w, "0<prefill e  0<prefill f  0<prefill a  0<prefill b  0<prefill c  0<prefill d");
    for (char t = 'a'; t <= 'b'; t++) prefilled(&w, 0, t);
    assert_int_equal(turn(&w), GY_AGAIN); /* still four */
    prefilled(&w, 0, 'c');
    turn(&w);
    expect_log(&w, "2<reserve g");
    end_all(&w, 7);
    close_world(&w);
}

static void every_end_of_an_owed_answer(void **state) {
    (void)state;
    for (int how = 0; how < 5; how++) {
        WORLD(w, P, D);
        submit(&w, (ask){0});
        to_reserving(&w);
        w.now += 5 * ms;
        turn(&w);
        assert_int_equal(stats_of(&w).n_owed, 1);
        if (how == 0) die(&w, 0);
        if (how == 1) die(&w, 1);
        if (how == 2) said(&w, 1, sentence(of(&w, GY_MSG_REJECTED, 'a'), GY_AGAIN, "no room"));
        if (how == 3) said(&w, 1, sentence(of(&w, GY_MSG_REJECTED, 'a'), GY_E_LIMIT, "too long"));
        if (how == 4) cancel(&w, 0);
        end_all(&w, 1);
        close_world(&w);
    }
}

/* Cancelled, and still no answer: the next prompt would wait there too. */
static void who_owes_an_answer_gets_nothing_new(void **state) {
    (void)state;
    WORLD(w, P, D, D);
    submit(&w, (ask){0});
    to_reserving(&w);
    w.now += 5 * ms;
    turn(&w);
    cancel(&w, 0);
    w.log[0] = '\0';
    submit(&w, (ask){0});
    submit(&w, (ask){.is_local = 1});
    turn(&w);
    expect_log(&w, "2<reserve b  2<local c");
    said(&w, 1, (gy_msg){.kind = GY_MSG_STATS}); /* alive: it has no room for the prompt, but it computes */
    submit(&w, (ask){0});
    submit(&w, (ask){.is_local = 1});
    turn(&w);
    expect_log(&w, "2<reserve d  1<local e");
    say(&w, 1, GY_MSG_RELEASED, 'a');
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "1<reserve f");
    end_all(&w, 6);
    close_world(&w);
}

static void a_slow_d_has_its_own_measure(void **state) {
    (void)state;
    WORLD(w, P, D);
    for (int i = 0; i < 2; i++) {
        submit(&w, (ask){0});
        turn(&w);
        w.now += (i ? 60 : 15) * ms;
        if (!i) turn(&w);
        serve(&w, 0, 1, (char)('a' + i));
    }
    assert_int_equal(stats_of(&w).n_owed, 1); /* the first: 15 ms are more than 5; then four times 15 is allowed */
    submit(&w, (ask){0});
    turn(&w);
    w.now += 100 * ms - 1; /* four times 60 is more than anybody gets */
    turn(&w);
    assert_int_equal(stats_of(&w).n_owed, 1);
    w.now += 1;
    turn(&w);
    assert_int_equal(stats_of(&w).n_owed, 2);
    end_all(&w, 3);
    close_world(&w);
}

static void who_only_cleans_up_bars_nobody(void **state) {
    (void)state;
    WORLD(w, P, D);
    submit(&w, (ask){0});
    for (char t = 'a'; t <= 'c'; t++, w.now += second / 2) {
        turn(&w);
        reserved(&w, 1, t);
        said(&w, 0, sentence(of(&w, GY_MSG_REJECTED, t), GY_AGAIN, "queue"));
    }
    w.now += 16 * second; /* the first one is old */
    w.log[0] = '\0';
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "1<reserve d");
    end_all(&w, 2);
    close_world(&w);
}

/* ---- where the beginning of it is -------------------------------------------------------------------------------- */

/* What a worker says of what it had. */
static void serve_cached(world *w, int32_t p, int32_t d, char try, int32_t n_have, int32_t n_computed) {
    gy_msg m = of(w, GY_MSG_RESERVED, try);
    m.tables.n_have = n_have;
    said(w, d, m);
    m = of(w, GY_MSG_PREFILLED, try);
    m.sent.n_computed = n_computed;
    said(w, p, m);
    say(w, d, GY_MSG_ACTIVE, try);
    let_go(w, d, try, 1);
}

/* Text 1 is at P 0 and D 2, text 2 at P 1 and D 3. */
static void two_texts(world *w) {
    submit(w, (ask){.n_prompt = 200, .text = 1});
    submit(w, (ask){.n_prompt = 200, .text = 2});
    turn(w);
    expect_log(w, "2<reserve a  3<reserve b");
    serve_cached(w, 0, 2, 'a', 0, 200);
    serve_cached(w, 1, 3, 'b', 0, 200);
}

static void prompts_go_where_their_beginning_is(void **state) {
    (void)state;
    WORLD(w, P, P, D, D);
    two_texts(&w);
    submit(&w, (ask){.n_prompt = 300, .text = 2});
    turn(&w);
    expect_log(&w, "3<reserve c");
    assert_int_equal(w.peer, 2); /* P 1 */
    serve_cached(&w, 1, 3, 'c', 192, 108);
    submit(&w, (ask){.n_prompt = 200, .text = 1});
    turn(&w);
    expect_log(&w, "2<reserve d");
    assert_int_equal(w.peer, 1);
    serve_cached(&w, 0, 2, 'd', 192, 8);
    submit(&w, (ask){.n_prompt = 304, .text = 2}); /* longer than what the first one of text 2 left */
    turn(&w);
    serve_cached(&w, 1, 3, 'e', 176, 100);
    gy_coord_stats s = stats_of(&w);
    assert_int_equal(s.prefix_est_tok, 192 + 192 + 288);
    assert_int_equal(s.prefix_tok, 192 + 192 + 204);
    assert_int_equal(s.have_est_tok, 192 + 192 + 288);
    assert_int_equal(s.have_tok, 192 + 192 + 176);
    close_world(&w);
}

static void who_shares_nothing_goes_anywhere(void **state) {
    (void)state;
    static const ask other[3] = {{.n_prompt = 200, .text = 2, .no_cache = 1},
                                 {.n_prompt = 200, .text = 2, .salt = "a"},
                                 {.n_prompt = 200, .text = 3}};
    for (int i = 0; i < 3; i++) {
        WORLD(w, P, P, D, D);
        two_texts(&w);
        submit(&w, other[i]);
        turn(&w);
        expect_log(&w, "2<reserve c"); /* where text 2 is not */
        assert_int_equal(w.peer, 1);
        serve(&w, 0, 2, 'c');
        submit(&w, (ask){.n_prompt = 200, .text = 2, .salt = i == 1 ? "b" : NULL, .no_cache = i == 0});
        turn(&w);
        expect_log(&w, i == 2 ? "3<reserve d" : "2<reserve d");
        end_all(&w, 4);
        close_world(&w);
    }
}

static void no_prefix_cache(gy_coord_opts *o) {
    o->prefix_cache = 0;
}

static void without_a_cache_there_is_nothing_to_go_to(void **state) {
    (void)state;
    const int32_t roles[4] = {P, P, D, D};
    world w;
    open_with(&w, 4, roles, no_prefix_cache);
    two_texts(&w);
    submit(&w, (ask){.n_prompt = 200, .text = 2});
    turn(&w);
    expect_log(&w, "2<reserve c");
    assert_int_equal(w.peer, 1);
    serve(&w, 0, 2, 'c');
    assert_int_equal(stats_of(&w).prefix_est_tok, 0);
    close_world(&w);
}

static void the_dead_know_nothing(void **state) {
    (void)state;
    WORLD(w, P, P, D, D);
    two_texts(&w);
    die(&w, 1);
    back(&w, 1);
    w.log[0] = '\0';
    submit(&w, (ask){.n_prompt = 200, .text = 2});
    turn(&w);
    expect_log(&w, "3<reserve c");
    assert_int_equal(w.peer, 1); /* P 0: neither has it, and D 3 does */
    end_all(&w, 3);
    close_world(&w);
}

/* The queue of the one that has it is worth more than what it saves: 192 tokens. */
static void a_long_queue_beats_the_cache(void **state) {
    (void)state;
    for (int is_long = 0; is_long < 2; is_long++) {
        WORLD(w, P, P, D, D);
        two_texts(&w);
        submit(&w, (ask){.n_prompt = 30, .text = 3}); /* P 0 */
        submit(&w, (ask){.n_prompt = is_long ? 230 : 210, .text = 4});
        turn(&w);
        expect_log(&w, "2<reserve c  3<reserve d");
        assert_int_equal(w.peer, 2);
        submit(&w, (ask){.n_prompt = 200, .text = 2}); /* P 1: 230 + 8 or 210 + 8; P 0: 30 + 200 */
        turn(&w);
        assert_int_equal(w.peer, is_long ? 1 : 2);
        end_all(&w, 5);
        close_world(&w);
    }
}

/* Of the 192 tokens an eighth need not cross: less than one place of four is worth. */
static void load_of_d_beats_its_cache(void **state) {
    (void)state;
    WORLD(w, P, P, D, D);
    two_texts(&w);
    submit(&w, (ask){.n_prompt = 20, .text = 3});
    submit(&w, (ask){.n_prompt = 20, .text = 4, .n = 2});
    turn(&w);
    expect_log(&w, "2<reserve c  3<reserve d");
    submit(&w, (ask){.n_prompt = 200, .text = 2});
    turn(&w);
    expect_log(&w, "2<reserve e");
    end_all(&w, 5);
    close_world(&w);
}

/* The next turn of a conversation: the outputs are at D as well, as far as they ran the trained depth. */
static void outputs_are_known_too(void **state) {
    (void)state;
    for (int is_early = 0; is_early < 2; is_early++) {
        WORLD(w, P, D, D);
        submit(&w, (ask){.n_prompt = 40, .text = 1, .max_tokens = 60});
        turn(&w);
        said(&w, 1, of(&w, GY_MSG_RESERVED, 'a'));
        prefilled(&w, 0, 'a');
        say(&w, 1, GY_MSG_ACTIVE, 'a');
        for (int i = 0; i < 50; i++) {
            gy_msg m = token(&w, 'a', 0, i);
            if (is_early && i == 30) m.token.loops = 3; /* so output 29, token 69, is not at full depth */
            said(&w, 1, m);
        }
        said(&w, 1, finish(&w, 'a', 0, GY_FINISH_STOP, 50));
        say(&w, 1, GY_MSG_RELEASED, 'a');
        submit(&w, (ask){.n_prompt = 40 + 50 + 1, .text = 1, .n_output = 50});
        turn(&w);
        serve_cached(&w, 0, 1, 'b', is_early ? 64 : 80, 59);
        gy_coord_stats s = stats_of(&w);
        assert_int_equal(s.have_est_tok, is_early ? 64 : 80); /* of 89 tokens with KV */
        assert_int_equal(s.have_tok, is_early ? 64 : 80);
        assert_int_equal(s.prefix_est_tok, 32); /* P never saw an output */
        close_world(&w);
    }
}

/* A try that starts over says its outputs again, and another D has them. */
static void outputs_are_known_where_they_were_made(void **state) {
    (void)state;
    WORLD(w, D, D);
    submit(&w, (ask){.n_prompt = 40, .text = 1, .max_tokens = 60});
    turn(&w);
    for (int i = 0; i < 35; i++) said(&w, 0, token(&w, 'a', 0, i));
    die(&w, 0);
    turn(&w);
    for (int i = 0; i < 50; i++) said(&w, 1, token(&w, 'b', 0, i));
    said(&w, 1, finish(&w, 'b', 0, GY_FINISH_STOP, 50));
    say(&w, 1, GY_MSG_RELEASED, 'b');
    back(&w, 0);
    w.log[0] = '\0';
    submit(&w, (ask){.n_prompt = 40 + 50 + 1, .text = 1, .n_output = 50});
    turn(&w);
    expect_log(&w, "1<local c");
    gy_msg m = finish(&w, 'c', 0, GY_FINISH_STOP, 0);
    m.finish.n_cached = 79;
    said(&w, 1, m);
    say(&w, 1, GY_MSG_RELEASED, 'c');
    w.log[0] = '\0';
    assert_int_equal(stats_of(&w).prefix_est_tok, 80);
    assert_int_equal(stats_of(&w).prefix_tok, 79);
    close_world(&w);
}

/* ---- hybrids, and prompts that stay ------------------------------------------------------------------------------ */

static void idle_hybrids_share_the_work(void **state) {
    (void)state;
    WORLD(w, H, H);
    submit(&w, (ask){.n_prompt = 400, .text = 1});
    turn(&w);
    expect_log(&w, "0<local a");
    submit(&w, (ask){.n_prompt = 100, .text = 2}); /* 0 computes a prompt: the idle one does all of this */
    turn(&w);
    expect_log(&w, "1<local b");
    said(&w, 1, token(&w, 'b', 0, 0));
    w.log[0] = '\0';
    submit(&w, (ask){.n_prompt = 50, .text = 3}); /* and this: a place costs less than the queue */
    turn(&w);
    expect_log(&w, "1<local c");
    said(&w, 0, token(&w, 'a', 0, 0)); /* the long one is decoded now */
    said(&w, 1, token(&w, 'c', 0, 0));
    w.log[0] = '\0';
    submit(&w, (ask){.n_prompt = 50, .text = 4});
    turn(&w);
    expect_log(&w, "0<local d");
    end_all(&w, 4);
    close_world(&w);
}

static void a_worker_of_one_role_has_one_role(void **state) {
    (void)state;
    WORLD(w, P, P, D);
    for (int i = 0; i < 12; i++) submit(&w, (ask){.text = i, .is_local = i % 3 == 0});
    turn(&w); /* D is full; both P are idle */
    assert_null(strstr(w.log, "0<local"));
    assert_null(strstr(w.log, "1<local"));
    assert_null(strstr(w.log, "0<reserve"));
    assert_null(strstr(w.log, "1<reserve"));
    assert_int_equal(stats_of(&w).n_waiting, 4);
    end_all(&w, 12);
    close_world(&w);
}

static void long_queues_are_left(gy_coord_opts *o) {
    o->local_queue = 500;
}

static void prompts_stay_when_the_queue_is_long(void **state) {
    (void)state;
    const int32_t roles[2] = {P, D};
    world w;
    open_with(&w, 2, roles, long_queues_are_left);
    submit(&w, (ask){.n_prompt = 400, .text = 1});
    submit(&w, (ask){.n_prompt = 101, .text = 2});
    turn(&w);
    expect_log(&w, "1<reserve a  1<reserve b");
    submit(&w, (ask){.n_prompt = 50, .text = 3}); /* behind 501 tokens */
    turn(&w);
    expect_log(&w, "1<local c");
    reserved(&w, 1, 'b');
    prefilled(&w, 0, 'b');
    w.log[0] = '\0';
    submit(&w, (ask){.n_prompt = 50, .text = 4}); /* behind 400 */
    turn(&w);
    expect_log(&w, "1<reserve d");
    end_all(&w, 4);
    close_world(&w);
}

static void one_and_a_long_queue(gy_coord_opts *o) {
    o->max_prefill = 1;
    o->local_queue = 500;
}

/* What waits here for P is in its queue as well. */
static void who_waits_counts_as_queue(void **state) {
    (void)state;
    const int32_t roles[2] = {P, D};
    world w;
    open_with(&w, 2, roles, one_and_a_long_queue);
    for (int i = 0; i < 4; i++) submit(&w, (ask){.n_prompt = 200, .text = i});
    turn(&w);
    expect_log(&w, "1<reserve a  1<local b"); /* 200 at P, 200 and 200 that wait; the fourth stays */
    assert_int_equal(w.last.r.prompt[0], 3000);
    end_all(&w, 4);
    close_world(&w);
}

static void nobody_passes_an_old_head(void **state) {
    (void)state;
    WORLD(w, D); /* 4 sequences and 4 on their way */
    submit(&w, (ask){.n = 7});
    submit(&w, (ask){.n = 2});
    submit(&w, (ask){.n = 1});
    turn(&w);
    expect_log(&w, "0<local a  0<local b"); /* r2 passes r1 */
    said(&w, 0, finish(&w, 'b', 0, GY_FINISH_STOP, 0));
    say(&w, 0, GY_MSG_RELEASED, 'b');
    w.now += 15 * second;
    submit(&w, (ask){.n = 1});
    turn(&w);
    expect_log(&w, "r2.0=stop/0"); /* there is room for r3: not any more */
    for (int k = 0; k < 7; k++) said(&w, 0, finish(&w, 'a', k, GY_FINISH_STOP, 0));
    say(&w, 0, GY_MSG_RELEASED, 'a');
    w.log[0] = '\0';
    turn(&w);
    expect_log(&w, "0<local c  0<local d");
    assert_int_equal(w.last.r.n, 1);
    end_all(&w, 4);
    close_world(&w);
}

static void who_comes_back_is_older(void **state) {
    (void)state;
    WORLD(w, D, D);
    submit(&w, (ask){.n = 8});
    submit(&w, (ask){.n = 8});
    submit(&w, (ask){.n = 8});
    turn(&w);
    expect_log(&w, "0<local a  1<local b");
    die(&w, 0);
    for (int k = 0; k < 8; k++) said(&w, 1, finish(&w, 'b', k, GY_FINISH_STOP, 0));
    say(&w, 1, GY_MSG_RELEASED, 'b');
    w.log[0] = '\0';
    turn(&w);
    expect_log(&w, "1<local c");
    end_all(&w, 1);
    assert_int_equal(w.finish.request, 0); /* so c was r0 again, not r2 */
    end_all(&w, 3);
    close_world(&w);
}

static void blocks_are_credits(void **state) {
    (void)state;
    WORLD(w, P, D); /* 64 rows of 16 tokens at 4 planes */
    submit(&w, (ask){.n_prompt = 600, .max_tokens = 100});
    submit(&w, (ask){.n_prompt = 300});
    submit(&w, (ask){.n_prompt = 400}); /* 38 + 19 + 25 rows */
    turn(&w);
    expect_log(&w, "1<reserve a  1<reserve b");
    reserved(&w, 1, 'b');
    prefilled(&w, 0, 'b');
    say(&w, 1, GY_MSG_ACTIVE, 'b');
    assert_int_equal(turn(&w), GY_AGAIN);
    said(&w, 1, finish(&w, 'b', 0, GY_FINISH_STOP, 0));
    say(&w, 1, GY_MSG_RELEASED, 'b');
    w.log[0] = '\0';
    reserved(&w, 1, 'a');
    prefilled(&w, 0, 'a');
    say(&w, 1, GY_MSG_ACTIVE, 'a');
    for (int i = 0; i < 28; i++) said(&w, 1, token(&w, 'a', 0, i)); /* 628 tokens: 40 rows */
    w.log[0] = '\0';
    assert_int_equal(turn(&w), GY_AGAIN);
    expect_log(&w, "");
    end_all(&w, 3);
    close_world(&w);
}

static void an_empty_worker_takes_anything(void **state) {
    (void)state;
    WORLD(w, D);
    submit(&w, (ask){.n_prompt = 4000, .n = 20});
    turn(&w);
    expect_log(&w, "0<local a"); /* the worker decides */
    said(&w, 0, sentence(of(&w, GY_MSG_REJECTED, 'a'), GY_E_LIMIT, "blocks"));
    w.log[0] = '\0';
    close_world(&w);
}

static void an_idle_hybrid_does_all_of_it(void **state) {
    (void)state;
    WORLD(w, H, D);
    submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "0<local a"); /* nothing crosses */
    submit(&w, (ask){.n_prompt = 50});
    submit(&w, (ask){.n_prompt = 60});
    turn(&w);
    expect_log(&w, "1<reserve b  1<reserve c"); /* now it computes for the other one */
    reserved(&w, 1, 'b');
    expect_log(&w, "0<prefill b");
    end_all(&w, 3);
    close_world(&w);
}

static void no_more_cross_than_a_worker_offers(void **state) {
    (void)state;
    WORLD(w, P, P, D); /* 4 imports at D; 4 exports at each P */
    for (int i = 0; i < 6; i++) submit(&w, (ask){0});
    turn(&w);
    expect_log(&w, "2<reserve a  2<reserve b  2<reserve c  2<reserve d");
    reserved(&w, 2, 'a');
    say(&w, 2, GY_MSG_ACTIVE, 'a'); /* the import is a request now */
    turn(&w);
    expect_log(&w, "0<prefill a  2<reserve e");
    end_all(&w, 6);
    close_world(&w);
}

static void a_full_queue_says_again(void **state) {
    (void)state;
    const int32_t roles[1] = {D};
    world w;
    open_with(&w, 1, roles, short_queue);
    gy_err err = {0};
    int32_t id = -7;
    submit(&w, (ask){.n = 3});
    assert_int_equal(try_submit(&w, (ask){.n = 2}, &err, &id), GY_AGAIN);
    assert_string_equal(err.msg, "the queue is full: 3 of 4 places are taken, 2 are needed; try again later");
    assert_int_equal(id, -7);
    submit(&w, (ask){.n = 1});
    turn(&w);
    submit(&w, (ask){.n = 4}); /* who runs does not wait */
    assert_int_equal(try_submit(&w, (ask){.n = 5}, &err, &id), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "raise max_queue"));
    assert_int_equal(try_submit(&w, (ask){.n = 129}, &err, &id), GY_E_ARG);
    assert_int_equal(try_submit(&w, (ask){.n_prompt = -1}, &err, &id), GY_E_ARG);
    assert_int_equal(try_submit(&w, (ask){.max_tokens = -1}, &err, &id), GY_E_ARG);
    end_all(&w, 3);
    close_world(&w);
}

static void options_are_checked(void **state) {
    (void)state;
    const int32_t roles[1] = {D};
    world w;
    open_world(&w, 1, roles);
    gy_coord *c = NULL;
    gy_err err = {0};
    gy_coord_opts bad[11];
    for (int i = 0; i < 11; i++) bad[i] = w.o;
    bad[0].n_worker = 0;
    bad[1].n_worker = GY_COORD_MAX_WORKERS + 1;
    bad[2].role[0] = 4;
    bad[3].max_queue = 0;
    bad[4].max_prefill = 0;
    bad[5].local_below = -1;
    bad[6].reserve_ns = 0;
    bad[7].send = NULL;
    bad[8].max_bypass = -1;
    bad[9].ask_ns = bad[9].suspect_ns + 1;
    bad[10].local_queue = -1;
    for (int i = 0; i < 11; i++) {
        assert_int_equal(gy_coord_create(&bad[i], &err, &c), GY_E_ARG);
        assert_non_null(strstr(err.msg, "found"));
    }
    assert_null(c);
    close_world(&w);
}

/* ---- memory
 * ------------------------------------------------------------------------------------------------------------------ */

static void everything_is_copied(void **state) {
    (void)state;
    WORLD(w, D);
    int32_t prompt[3] = {1, 2, 3}, trace[2] = {4, 5}, stops[1] = {6};
    gy_logit_bias bias[1] = {{.id = 7, .bias = 1}};
    char salt[3] = "ab", after[4] = "end", grammar[5] = "[a]+";
    gy_msg_request q = {.grammar_kind = 1, .grammar = grammar, .n_grammar = 4};
    q.r = (gy_request){.prompt = prompt,
                       .n_prompt = 3,
                       .max_tokens = 2,
                       .n = 1,
                       .prompt_logprobs = -1,
                       .trace = trace,
                       .n_trace = 2,
                       .stop_ids = stops,
                       .n_stop_ids = 1,
                       .cache_salt = salt,
                       .n_salt = 2,
                       .grammar_after = after,
                       .n_grammar_after = 3};
    q.r.sample.bias = bias;
    q.r.sample.n_bias = 1;
    gy_err err = {0};
    int32_t id;
    assert_int_equal(gy_coord_submit(w.c, &(gy_coord_request){.q = &q}, 0, &err, &id), GY_OK);
    memset(prompt, 0, sizeof prompt);
    memset(trace, 0, sizeof trace);
    memset(stops, 0, sizeof stops);
    memset(bias, 0, sizeof bias);
    memset(salt, 0, sizeof salt);
    memset(after, 0, sizeof after);
    memset(grammar, 0, sizeof grammar);
    turn(&w);
    const gy_request *r = &w.last.r;
    assert_true(r->prompt[2] == 3 && r->trace[1] == 5 && r->stop_ids[0] == 6 && r->sample.bias[0].id == 7);
    assert_memory_equal(r->cache_salt, "ab", 2);
    assert_memory_equal(r->grammar_after, "end", 3);
    assert_memory_equal(w.last.grammar, "[a]+", 4);
    said(&w, 0, token(&w, 'a', 0, 0)); /* without callbacks */
    said(&w, 0, finish(&w, 'a', 0, GY_FINISH_STOP, 1));
    say(&w, 0, GY_MSG_RELEASED, 'a');
    expect_log(&w, "0<local a");
    close_world(&w);
}

static void only_submit_and_ready_allocate(void **state) {
    (void)state;
    WORLD(w, P, D);
    gy_mem_stats before, after;
    gy_mem_get_stats(&before);
    submit(&w, (ask){.n = 2, .n_prompt = 300});
    gy_mem_get_stats(&after);
    assert_int_equal(after.n_alloc - before.n_alloc, 1);
    gy_mem_guard_begin();
    to_decode(&w);
    prefilled(&w, 0, 'a');
    cancel(&w, 0);
    say(&w, 1, GY_MSG_RELEASED, 'a');
    gy_mem_guard_end();
    w.log[0] = '\0';
    close_world(&w);
}

static void memory_fails_cleanly(void **state) {
    (void)state;
    WORLD(w, P, D);
    gy_err err = {0};
    int32_t id = -7;
    gy_mem_fail_after(1);
    assert_int_equal(try_submit(&w, (ask){0}, &err, &id), GY_E_NOMEM);
    assert_int_equal(id, -7);
    die(&w, 1);
    for (int n = 1; n <= 4; n++) {
        gy_mem_fail_after(n);
        refused(&w, 1, ready(&w, 1), GY_E_NOMEM, n == 1 ? "worker 1: ready: no memory" : "worker 1: no memory");
        die(&w, 1);
    }
    gy_coord *c = NULL;
    gy_mem_fail_after(1);
    assert_int_equal(gy_coord_create(&w.o, &err, &c), GY_E_NOMEM);
    assert_null(c);
    gy_mem_fail_after(0);
    w.log[0] = '\0';
    close_world(&w);
}

static void destroyed_in_any_state(void **state) {
    (void)state;
    gy_mem_stats at_start;
    gy_mem_get_stats(&at_start);
    int64_t live_bytes = at_start.live_bytes[GY_MEM_PD];
    for (int at = 0; at < 4; at++) {
        WORLD(w, P, D);
        submit(&w, (ask){0});
        submit(&w, (ask){.is_local = 1});
        if (at > 0) turn(&w);
        if (at > 1) reserved(&w, 1, 'a');
        if (at > 2) gy_coord_cancel(w.c, 0), turn(&w);
        gy_coord_destroy(w.c);
    }
    gy_coord_destroy(NULL);
    gy_mem_stats m;
    gy_mem_get_stats(&m);
    assert_int_equal(m.live_bytes[GY_MEM_PD], live_bytes);
}

static void the_systems_tids_differ(void **state) {
    (void)state;
    gy_coord_opts o;
    gy_tid a = {0}, b = {0};
    gy_coord_opts_default(&o);
    assert_int_equal(o.random(NULL, &a, sizeof a), 0);
    assert_int_equal(o.random(NULL, &b, sizeof b), 0);
    assert_false(gy_tid_same(a, b));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_crosses),
        cmocka_unit_test(active_and_even_the_end_may_come_before_prefilled),
        cmocka_unit_test(what_cannot_cross_runs_where_it_decodes),
        cmocka_unit_test(choices_finish_one_by_one),
        cmocka_unit_test(the_seed_is_drawn_once),
        cmocka_unit_test(cancelled_while_it_waits),
        cmocka_unit_test(cancelled_while_reserving),
        cmocka_unit_test(a_late_reserved_is_answered_by_cancel_safe),
        cmocka_unit_test(cancelled_while_prefilling),
        cmocka_unit_test(prefilled_crosses_the_cancel),
        cmocka_unit_test(active_crosses_the_cancel),
        cmocka_unit_test(cancelled_while_decoding),
        cmocka_unit_test(cancelled_while_decoding_before_prefilled),
        cmocka_unit_test(cancelled_while_it_runs_alone),
        cmocka_unit_test(cancel_after_the_end_is_nothing),
        cmocka_unit_test(stop_from_on_token),
        cmocka_unit_test(stop_of_one_choice_leaves_the_others),
        cmocka_unit_test(callbacks_submit_and_cancel),
        cmocka_unit_test(p_dies_while_reserving),
        cmocka_unit_test(d_dies_while_reserving),
        cmocka_unit_test(p_dies_while_prefilling),
        cmocka_unit_test(d_dies_while_prefilling),
        cmocka_unit_test(both_die_while_prefilling),
        cmocka_unit_test(p_dies_while_decoding),
        cmocka_unit_test(d_dies_while_decoding),
        cmocka_unit_test(deaths_while_cleaning_up),
        cmocka_unit_test(d_dies_after_the_end_before_p_is_done),
        cmocka_unit_test(p_dies_after_the_end_before_d_let_go),
        cmocka_unit_test(a_later_life_of_a_slot_is_not_the_earlier_one),
        cmocka_unit_test(others_go_on_when_one_dies),
        cmocka_unit_test(three_tries_and_no_more),
        cmocka_unit_test(rejected_for_good_is_the_requests_end),
        cmocka_unit_test(rejected_by_p_frees_d),
        cmocka_unit_test(what_another_worker_may_not_have_is_tried_again),
        cmocka_unit_test(rejected_by_d_while_p_writes),
        cmocka_unit_test(not_now_is_no_failure),
        cmocka_unit_test(three_tries_exist_at_once),
        cmocka_unit_test(room_that_comes_back_ends_not_now),
        cmocka_unit_test(an_error_of_the_worker_is_tried_again),
        cmocka_unit_test(a_replay_is_told_once),
        cmocka_unit_test(p_ends_while_it_writes),
        cmocka_unit_test(d_ends_while_p_writes_to_it),
        cmocka_unit_test(the_only_d_ends),
        cmocka_unit_test(p_ends_and_holds_nothing),
        cmocka_unit_test(p_ends_before_it_is_told),
        cmocka_unit_test(one_that_starts_ends),
        cmocka_unit_test(a_deadline_ends_one_request_in_any_state),
        cmocka_unit_test(deadlines_are_per_request),
        cmocka_unit_test(a_deadline_may_be_set_later),
        cmocka_unit_test(a_silent_reservation_suspects_its_worker),
        cmocka_unit_test(a_silent_prefill_suspects_p_then_d),
        cmocka_unit_test(who_begins_too_late_is_not_deaf),
        cmocka_unit_test(who_speaks_may_be_slow),
        cmocka_unit_test(silence_three_times_is_the_end),
        cmocka_unit_test(only_a_worker_that_fits_is_ready),
        cmocka_unit_test(who_joins_says_its_role),
        cmocka_unit_test(who_leaves_ends_what_it_has),
        cmocka_unit_test(messages_of_the_other_direction_are_refused),
        cmocka_unit_test(what_no_honest_worker_says),
        cmocka_unit_test(outputs_must_be_whole),
        cmocka_unit_test(counts_must_be_possible),
        cmocka_unit_test(a_fatal_worker_gets_nothing_new),
        cmocka_unit_test(unknown_tids_are_counted),
        cmocka_unit_test(everyone_is_told_of_those_he_writes_to),
        cmocka_unit_test(a_try_waits_for_connected),
        cmocka_unit_test(without_p_all_is_local),
        cmocka_unit_test(short_prompts_are_local),
        cmocka_unit_test(the_least_loaded_gets_it),
        cmocka_unit_test(p_has_so_many_prompts_at_once),
        cmocka_unit_test(the_better_priority_goes_first),
        cmocka_unit_test(who_comes_back_keeps_its_priority),
        cmocka_unit_test(nobody_is_passed_more_often_than_allowed),
        cmocka_unit_test(a_stopped_d_does_not_hold_up_the_others),
        cmocka_unit_test(what_waits_at_a_stopped_d_is_moved),
        cmocka_unit_test(without_another_d_it_waits),
        cmocka_unit_test(late_answers_are_served),
        cmocka_unit_test(every_end_of_an_owed_answer),
        cmocka_unit_test(who_owes_an_answer_gets_nothing_new),
        cmocka_unit_test(a_slow_d_has_its_own_measure),
        cmocka_unit_test(who_only_cleans_up_bars_nobody),
        cmocka_unit_test(prompts_go_where_their_beginning_is),
        cmocka_unit_test(who_shares_nothing_goes_anywhere),
        cmocka_unit_test(without_a_cache_there_is_nothing_to_go_to),
        cmocka_unit_test(the_dead_know_nothing),
        cmocka_unit_test(a_long_queue_beats_the_cache),
        cmocka_unit_test(load_of_d_beats_its_cache),
        cmocka_unit_test(outputs_are_known_too),
        cmocka_unit_test(outputs_are_known_where_they_were_made),
        cmocka_unit_test(idle_hybrids_share_the_work),
        cmocka_unit_test(a_worker_of_one_role_has_one_role),
        cmocka_unit_test(prompts_stay_when_the_queue_is_long),
        cmocka_unit_test(who_waits_counts_as_queue),
        cmocka_unit_test(nobody_passes_an_old_head),
        cmocka_unit_test(who_comes_back_is_older),
        cmocka_unit_test(blocks_are_credits),
        cmocka_unit_test(an_empty_worker_takes_anything),
        cmocka_unit_test(an_idle_hybrid_does_all_of_it),
        cmocka_unit_test(no_more_cross_than_a_worker_offers),
        cmocka_unit_test(a_full_queue_says_again),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(everything_is_copied),
        cmocka_unit_test(only_submit_and_ready_allocate),
        cmocka_unit_test(memory_fails_cleanly),
        cmocka_unit_test(destroyed_in_any_state),
        cmocka_unit_test(the_systems_tids_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
