/* gyre.h when memory fails: the n-th allocation, n rising until the call succeeds, in open, submit, step and poll. Each
 * failure is a clean error with a sentence and leaves nothing behind.
 */
#include "api_test.h"

#include "api/api_int.h"

enum { MOST = 20000 };

static void small(gyre_options *o) {
    o->max_rows = 16;
    o->max_seqs = 2;
    o->max_queue = 2;
    o->max_len = 64;
    o->park_bytes = 1 << 20;
    o->threads = 1;
}

static void open_gives_all_back(void **state) {
    (void)state;
    gyre_options o;
    gyre_options_default(&o, sizeof o);
    small(&o);
    int64_t before = live_bytes();
    int n = 1;
    for (; n < MOST; n++) {
        gyre_err err = {0};
        gyre *g = NULL;
        gy_mem_fail_after(n);
        gyre_status st = gyre_open(DEMO, &o, &err, &g);
        gy_mem_fail_after(0);
        if (st == GYRE_OK) {
            gyre_close(g);
            break;
        }
        assert_null(g);
        assert_int_equal(err.status, st);
        if (gyre_status_group(st) != GYRE_GROUP_ENGINE) fail_msg("n %d: %s: %s", n, gyre_status_name(st), err.msg);
        assert_true(strlen(err.msg) > 8);
        if (live_bytes() != before) fail_msg("n %d leaves %lld bytes", n, (long long)(live_bytes() - before));
    }
    assert_true(n > 100 && n < MOST);
    assert_int_equal(live_bytes(), before);
}

static gyre_request rich(seen *s, int callback) {
    static const gyre_string stop[] = {{"zz", 2}, {"never", 5}};
    static const gyre_bias bias[] = {{40, 1.0f}};
    static const int32_t ids[] = {7, 9};
    gyre_request r = ask("Once upon a time", 6, s);
    r.n = 2, r.ignore_eos = 1, r.temperature = 1.0f, r.has_seed = 1, r.seed = 3, r.repetition_penalty = 1.2f;
    r.bias = bias, r.n_bias = 1, r.stop = stop, r.n_stop = 2, r.stop_ids = ids, r.n_stop_ids = 2;
    r.logprobs = 2, r.prompt_logprobs = 1, r.want_gates = 1;
    r.cache_salt = "salt", r.n_cache_salt = 4;
    if (callback) r.on_event = seen_add;
    return r;
}

static void run(gyre *g, seen *s, int callback) {
    gyre_request r = rich(s, callback);
    memset(s, 0, 2 * sizeof *s);
    must_submit(g, &r);
    step_all(g);
    if (!callback) poll_all(g);
    for (int k = 0; k < 2; k++) assert_int_equal(s[k].n_finish, 1);
}

/* After each failure the handle is as good as before: the same request then gives the same tokens. */
static void submit_gives_all_back(void **state) {
    (void)state;
    static seen whole[2], s[2];
    for (int callback = 0; callback < 2; callback++) {
        gyre *g = must_open(DEMO, small);
        gyre_stats st;
        run(g, whole, callback);
        const gyre_event *ev;
        gyre_poll(g, 0, &ev); /* frees what was polled last */
        int64_t before = live_bytes();
        int n = 1;
        for (; n < MOST; n++) {
            gyre_err err = {0};
            uint64_t id = 0;
            gyre_request r = rich(s, callback);
            memset(s, 0, sizeof s);
            gy_mem_fail_after(n);
            gyre_status rc = gyre_submit(g, &r, &err, &id);
            gy_mem_fail_after(0);
            if (rc == GYRE_OK) break;
            if (rc != GYRE_E_NOMEM) fail_msg("n %d: %s: %s", n, gyre_status_name(rc), err.msg);
            assert_non_null(strstr(err.msg, "memory"));
            assert_int_equal(id, 0);
            if (live_bytes() != before) fail_msg("n %d leaves %lld bytes", n, (long long)(live_bytes() - before));
        }
        assert_true(n > 8 && n < MOST);
        step_all(g);
        poll_all(g);
        for (int k = 0; k < 2; k++) seen_same(&s[k], &whole[k]);
        gyre_get_stats(g, &st, sizeof st);
        assert_int_equal(st.n_request, 2);
        gyre_close(g);
    }
}

/* The engine's own copy is made by the driver: without memory the request ends with an error event. */
static void a_step_without_memory_ends_the_request(void **state) {
    (void)state;
    static seen whole[2], s[2];
    for (int callback = 0; callback < 2; callback++) {
        gyre *g = must_open(DEMO, small);
        gyre_err err;
        run(g, whole, callback);
        gyre_request r = rich(s, callback);
        memset(s, 0, sizeof s);
        must_submit(g, &r);
        gy_mem_fail_after(1);
        gyre_status st = gyre_step(g, &err);
        gy_mem_fail_after(0);
        assert_true(st >= 0); /* the engine goes on */
        poll_all(g);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(s[k].n_finish, 1);
            assert_int_equal(s[k].fin.reason, GYRE_FINISH_ERROR);
            assert_int_equal(s[k].fin.error, GYRE_E_NOMEM);
            assert_int_equal(s[k].fin.n_left, 1 - k);
            assert_non_null(strstr(s[k].message, "no memory"));
        }
        run(g, s, callback);
        for (int k = 0; k < 2; k++) seen_same(&s[k], &whole[k]);
        gyre_close(g);
    }
}

/* ---- the engine is lost ----------------------------------------------------------------------------------------- */

static gy_status broken_sync(gy_backend *be, gy_err *err) {
    (void)be;
    return gy_err_set(err, GY_E_DEVICE, "the device fell off");
}

/* Everything that was on its way ends with the device's error, whatever its state and however its events are taken. */
static void a_lost_engine_ends_everything(void **state) {
    (void)state;
    for (int by_thread = 0; by_thread < 2; by_thread++) {
        gyre *g = must_open(DEMO, small);
        gy_ops broken = *g->m.be->ops;
        gyre_err err = {0};
        uint64_t id;
        static seen s[8];
        memset(s, 0, sizeof s);
        gyre_request r = ask("Once upon a time", 20, &s[0]);
        r.ignore_eos = 1;
        must_submit(g, &r); /* runs */
        r.user = &s[1], r.on_event = seen_add;
        must_submit(g, &r);
        for (int i = 0; i < 12; i++) assert_int_equal(gyre_step(g, &err), GYRE_OK);
        r.user = &s[2], r.on_event = NULL, r.n = 2;
        must_submit(g, &r); /* in the inbox */
        broken.sync = broken_sync;
        g->m.be->ops = &broken;
        if (by_thread) {
            const gyre_event *ev;
            assert_int_equal(gyre_start(g, &err), GYRE_OK);
            for (int left = 3; left > 0;) {
                assert_int_equal(gyre_poll(g, 10000, &ev), GYRE_OK);
                seen_add(ev->user, ev);
                left -= ev->kind == GYRE_EVENT_FINISH;
            }
            assert_int_equal(gyre_stop(g, &err), GYRE_OK);
        } else {
            assert_int_equal(gyre_step(g, &err), GYRE_E_DEVICE);
            assert_non_null(strstr(err.msg, "the device fell off"));
            poll_all(g);
        }
        assert_true(s[0].n > 0 && s[0].n < 20);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(s[k].n_finish, 1);
            assert_int_equal(s[k].fin.reason, GYRE_FINISH_ERROR);
            assert_int_equal(s[k].fin.error, GYRE_E_DEVICE);
            assert_non_null(strstr(s[k].message, "the device fell off"));
            assert_int_equal(s[k].n_text, s[k].n);
        }
        assert_int_equal(gyre_submit(g, &r, &err, &id), GYRE_E_DEVICE);
        assert_non_null(strstr(err.msg, "the engine is lost: "));
        assert_int_equal(gyre_step(g, &err), GYRE_E_DEVICE);
        gyre_close(g);
    }
}

/* A choice that has ended keeps its end; the one beside it gets the error. Seeds are tried until the two end at
 * different tokens.
 */
static void a_lost_engine_spares_what_has_ended(void **state) {
    (void)state;
    gyre_bias letters[3];
    for (int i = 0; i < 3; i++) letters[i] = (gyre_bias){'a' + i + 3, 100.0f}; /* id 3 is byte 0 */
    gyre_string stop = {"a", 1};
    for (int callback = 0; callback < 2; callback++) {
        gyre *g = must_open(DEMO, small);
        gy_ops broken = *g->m.be->ops;
        gyre_err err = {0};
        static seen s[2];
        gyre_request r = ask("Once upon a time", 30, s);
        r.n = 2, r.temperature = 9.0f, r.has_seed = 1, r.bias = letters, r.n_bias = 3, r.stop = &stop, r.n_stop = 1;
        r.ignore_eos = 1, r.on_event = callback ? seen_add : NULL;
        for (r.seed = 1; s[0].n_finish == s[1].n_finish; r.seed++) {
            memset(s, 0, sizeof s);
            must_submit(g, &r);
            for (int n = 0; s[0].n_finish + s[1].n_finish == 0; n++) {
                assert_true(n < 10000);
                assert_int_equal(gyre_step(g, &err), GYRE_OK);
                poll_all(g);
            }
        }
        int ended = s[1].n_finish;
        broken.sync = broken_sync;
        g->m.be->ops = &broken;
        assert_int_equal(gyre_step(g, &err), GYRE_E_DEVICE);
        poll_all(g);
        assert_true(s[ended].n_finish == 1 && s[ended].fin.reason == GYRE_FINISH_STOP && s[ended].fin.n_left == 1);
        assert_true(s[!ended].n_finish == 1 && s[!ended].fin.reason == GYRE_FINISH_ERROR && s[!ended].fin.n_left == 0);
        gyre_close(g);
        memset(s, 0, sizeof s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_gives_all_back),
        cmocka_unit_test(submit_gives_all_back),
        cmocka_unit_test(a_step_without_memory_ends_the_request),
        cmocka_unit_test(a_lost_engine_ends_everything),
        cmocka_unit_test(a_lost_engine_spares_what_has_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
