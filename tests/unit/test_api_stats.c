/* gyre_options of scheduling and gyre_stats: what is refused and how, that no option changes an answer, and that the
 * numbers add up at every step. */
#include "unit/api_test.h"

/* ---- options ---------------------------------------------------------------------------------------------------- */

static void (*patch_now)(gyre_options *o);

static void refused(void (*patch)(gyre_options *o), const char *part) {
    gyre_options o;
    gyre_err err = {0};
    gyre *g = NULL;
    gyre_options_default(&o, sizeof o);
    patch(&o);
    assert_int_equal(gyre_open(DEMO, &o, &err, &g), GYRE_E_ARG);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    assert_null(g);
}

static void bad_reserve(gyre_options *o) {
    o->reserve = "all";
}
static void bad_preempt(gyre_options *o) {
    o->preempt = "swap";
}
static void bad_watermark(gyre_options *o) {
    o->watermark = 0.6;
}
static void bad_coda(gyre_options *o) {
    o->min_coda = 0;
}

static void options_are_refused_by_name(void **state) {
    (void)state;
    refused(bad_reserve, "reserve: found 'all', expected grow or full");
    refused(bad_preempt, "preempt: found 'swap', expected park or recompute");
    refused(bad_watermark, "watermark: found 0.6, expected 0 to 0.5");
    refused(bad_coda, "min_coda: found 0, expected 1 to");
}

/* An older caller's struct ends with fuse_loops: what is behind it is not read. */
static void older_options_have_defaults(void **state) {
    (void)state;
    gyre_options o;
    gyre_err err = {0};
    gyre *g = NULL;
    memset(&o, 0xA5, sizeof o);
    gyre_options_default(&o, offsetof(gyre_options, reserve));
    assert_int_equal(o.size, offsetof(gyre_options, reserve));
    if (gyre_open(DEMO, &o, &err, &g) != GYRE_OK) fail_msg("%s", err.msg);
    gyre_close(g);
}

static void tight(gyre_options *o) {
    o->kv_blocks = 40;
    if (patch_now) patch_now(o);
}
static void full(gyre_options *o) {
    o->reserve = "full";
}
static void recompute(gyre_options *o) {
    o->preempt = "recompute";
}
static void cohorts(gyre_options *o) {
    o->no_refill = 1;
    o->min_coda = 3;
    o->watermark = 0.25;
}

enum { N = 6 };

static void add_up(const gyre_stats *s) {
    int64_t rows = 0, exits = 0;
    int32_t used = 0;
    for (int i = 0; i < GYRE_STAT_DEPTHS; i++) {
        rows += s->n_row_prompt[i] + s->n_row_decode[i];
        exits += s->n_exit[i];
        used += s->kv_plane_blocks[i];
    }
    assert_int_equal(rows, s->n_row);
    assert_int_equal(exits, s->n_output_tok);
    assert_int_equal(used, s->kv_blocks_total - s->kv_blocks_free);
    assert_int_equal(s->kv_owned, used - s->kv_blocks_cached);
    assert_true(s->wait_tok >= 0);
}

static void run_all(void (*patch)(gyre_options *o), seen *s, gyre_stats *last) {
    gyre_err err = {0};
    patch_now = patch;
    gyre *g = must_open(DEMO, tight);
    for (int i = 0; i < N; i++) {
        gyre_request r = ask(i % 2 ? "The wind blows" : "A story of a small cat that", 40, &s[i]);
        r.has_seed = 1;
        r.exit = "gate";
        r.min_loops = 1;
        r.exit_threshold = 0.4;
        r.ignore_eos = 1;
        must_submit(g, &r);
    }
    for (gyre_status st = GYRE_OK; st == GYRE_OK;) {
        st = gyre_step(g, &err);
        if (st < 0) fail_msg("%s", err.msg);
        gyre_get_stats(g, last, sizeof *last);
        add_up(last);
    }
    poll_all(g);
    gyre_close(g);
}

static void no_option_changes_an_answer(void **state) {
    (void)state;
    static void (*const patches[])(gyre_options * o) = {full, recompute, cohorts};
    static seen want[N], got[N];
    gyre_stats s;
    run_all(NULL, want, &s);
    assert_true(s.n_park > 0); /* the pool is too small for all of them */
    assert_int_equal(s.kv_owned, 0);
    assert_int_equal(s.wait_tok, 0);
    assert_true(s.n_exit[0] > 0 && s.n_exit[0] < s.n_output_tok);
    assert_true(s.n_row_decode[0] > s.n_row_decode[1]);
    assert_true(s.kv_block_bytes > 0);
    for (size_t k = 0; k < sizeof patches / sizeof *patches; k++) {
        memset(got, 0, sizeof got);
        run_all(patches[k], got, &s);
        for (int i = 0; i < N; i++) seen_same(&want[i], &got[i]);
        if (patches[k] == full) assert_int_equal(s.n_park + s.n_drop, 0);
        if (patches[k] == recompute) assert_true(s.n_park == 0 && s.n_drop > 0);
    }
}

static void one_at_a_time(gyre_options *o) {
    o->max_seqs = 1;
}

static void waiting_prompts_are_counted(void **state) {
    (void)state;
    static seen s[3];
    gyre_stats st;
    gyre_err err = {0};
    const int32_t ids[] = {1, 2, 3, 4, 5};
    gyre *g = must_open(DEMO, one_at_a_time);
    uint64_t id = 0;
    for (int i = 0; i < 3; i++) {
        gyre_request r = ask(NULL, 4, &s[i]);
        r.prompt_ids = ids;
        r.n_prompt_ids = 5;
        r.ignore_eos = 1;
        id = must_submit(g, &r);
    }
    assert_int_equal(gyre_step(g, &err), GYRE_OK);
    gyre_get_stats(g, &st, sizeof st);
    assert_int_equal(st.wait_tok, 10);
    gyre_cancel(g, id); /* before it was ever admitted */
    assert_int_equal(gyre_step(g, &err), GYRE_OK);
    gyre_get_stats(g, &st, sizeof st);
    assert_int_equal(st.wait_tok, 5);
    step_all(g);
    gyre_get_stats(g, &st, sizeof st);
    assert_int_equal(st.wait_tok, 0);
    assert_int_equal(poll_all(g), 11);
    gyre_close(g);
}

static void an_older_struct_gets_its_part(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_stats s;
    memset(&s, 0xA5, sizeof s);
    gyre_get_stats(g, &s, offsetof(gyre_stats, n_row_prompt));
    assert_int_equal(s.n_step, 0);
    assert_int_equal(*(unsigned char *)s.n_row_prompt, 0xA5);
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_refused_by_name),   cmocka_unit_test(older_options_have_defaults),
        cmocka_unit_test(no_option_changes_an_answer),   cmocka_unit_test(waiting_prompts_are_counted),
        cmocka_unit_test(an_older_struct_gets_its_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
