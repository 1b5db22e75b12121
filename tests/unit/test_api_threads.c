/* gyre.h with its own thread: the same tokens as by hand, submits and cancels from four threads at once, start and stop
 * at any time, polls that wait. Meant for the thread sanitizer too.
 */
#include "api_test.h"

#include "base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static gyre_request varied(int i, seen *s) {
    static const char *const prompts[] = {"Once upon a time", "The sea", "a", "0123456789 0123456789 0123456789"};
    gyre_request r = ask(prompts[i % 4], 6 + i % 9, s);
    r.ignore_eos = 1, r.has_seed = 1, r.seed = (uint64_t)i;
    if (i % 3) r.temperature = 1.0f;
    if (i % 5 == 1) r.exit = "gate", r.exit_threshold = 0.6;
    return r;
}

enum { N_REQ = 24 };

static void submit_varied(gyre *g, seen *s) {
    for (int i = 0; i < N_REQ; i++) {
        gyre_request r = varied(i, &s[i]);
        must_submit(g, &r);
    }
}

static void by_hand(seen *s) {
    gyre *g = must_open(DEMO, NULL);
    memset(s, 0, N_REQ * sizeof *s);
    submit_varied(g, s);
    step_all(g);
    poll_all(g);
    gyre_close(g);
}

/* Polls until n requests have had their last event. */
static void poll_requests(gyre *g, int n) {
    const gyre_event *ev;
    while (n > 0) {
        assert_int_equal(gyre_poll(g, -1, &ev), GYRE_OK);
        seen_add(ev->user, ev);
        n -= ev->kind == GYRE_EVENT_FINISH && !ev->finish->n_left;
    }
}

static void the_thread_equals_by_hand(void **state) {
    (void)state;
    static seen s[N_REQ], t[N_REQ];
    by_hand(s);
    gyre *g = must_open(DEMO, NULL);
    gyre_err err = {0};
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    submit_varied(g, t);
    poll_requests(g, N_REQ);
    for (int i = 0; i < N_REQ; i++) seen_same(&s[i], &t[i]);
    assert_int_equal(gyre_start(g, &err), GYRE_E_ARG);
    assert_string_equal(err.msg, "gyre_start: the thread runs already");
    assert_int_equal(gyre_step(g, &err), GYRE_E_ARG);
    assert_string_equal(err.msg, "gyre_step: an own thread drives this handle; call gyre_stop first");
    assert_int_equal(gyre_stop(g, &err), GYRE_OK);
    assert_int_equal(gyre_stop(g, &err), GYRE_E_ARG);
    assert_int_equal(gyre_step(g, &err), GYRE_DONE);
    gyre_close(g);
}

/* The thread is stopped and started, or replaced by steps, in the middle of everything. */
static void driving_can_change_hands(void **state) {
    (void)state;
    static seen s[N_REQ], t[N_REQ];
    by_hand(s);
    gyre *g = must_open(DEMO, NULL);
    gyre_err err;
    for (int i = 0; i < N_REQ; i++) {
        gyre_request r = varied(i, &t[i]);
        must_submit(g, &r);
        if (i % 2) gyre_step(g, &err);
        if (i % 4) continue;
        assert_int_equal(gyre_start(g, &err), GYRE_OK);
        if (i % 8) sched_yield();
        assert_int_equal(gyre_stop(g, &err), GYRE_OK);
    }
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    poll_requests(g, N_REQ);
    for (int i = 0; i < N_REQ; i++) seen_same(&s[i], &t[i]);
    gyre_close(g); /* with the thread running */
}

/* ---- many submitters -------------------------------------------------------------------------------------------- */

enum { N_THREAD = 4, N_EACH = 40, N_CHOICE = 2 };

typedef struct submitter {
    gyre *g;
    int index, n_again;
    uint64_t ids[N_EACH];
    seen s[N_EACH][N_CHOICE];
    _Atomic int n_called; /* last events by callback */
} submitter;

static submitter subs[N_THREAD];

typedef struct called {
    seen *s;
    submitter *sub;
} called;
static called calls[N_THREAD][N_EACH];

static void note(void *user, const gyre_event *ev) {
    called *c = user;
    seen_add(c->s, ev);
    if (ev->kind == GYRE_EVENT_FINISH && !ev->finish->n_left) atomic_fetch_add(&c->sub->n_called, 1);
}

/* cmocka's asserts are for the main thread: here a failure is a number that it looks at. */
static void *submit_and_cancel(void *arg) {
    submitter *me = arg;
    gyre_stats st;
    for (int i = 0; i < N_EACH; i++) {
        int k = me->index * N_EACH + i;
        gyre_request r = varied(k, me->s[i]);
        r.n = 1 + k % N_CHOICE;
        calls[me->index][i] = (called){me->s[i], me};
        if (k % 4 == 0) r.on_event = note, r.user = &calls[me->index][i];
        while (gyre_submit(me->g, &r, NULL, &me->ids[i]) == GYRE_AGAIN) {
            me->n_again++;
            sched_yield();
        }
        if (k % 3 == 0) gyre_cancel(me->g, me->ids[i]);
        if (k % 7 == 0 && i) gyre_cancel(me->g, me->ids[i - 1]);
        gyre_get_stats(me->g, &st, sizeof st);
    }
    return NULL;
}

static void tight(gyre_options *o) {
    o->max_seqs = 4;
    o->max_queue = 20;
}

static int sum_called(void) {
    int n = 0;
    for (int t = 0; t < N_THREAD; t++) n += atomic_load(&subs[t].n_called);
    return n;
}

static int compare_ids(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void assert_all_distinct(void) {
    static uint64_t all[N_THREAD * N_EACH];
    for (int t = 0; t < N_THREAD; t++) memcpy(all + (size_t)t * N_EACH, subs[t].ids, sizeof subs[t].ids);
    qsort(all, N_THREAD * N_EACH, sizeof *all, compare_ids);
    for (int i = 1; i < N_THREAD * N_EACH; i++) assert_true(all[i] != all[i - 1]);
}

/* Of what was not cancelled, all of it is there and equals the request alone. */
static void assert_outcomes(void) {
    gyre *g = must_open(DEMO, NULL);
    static seen alone[N_CHOICE];
    int n_cancelled = 0;
    for (int t = 0; t < N_THREAD; t++)
        for (int i = 0; i < N_EACH; i++) {
            int k = t * N_EACH + i;
            gyre_request r = varied(k, alone);
            r.n = 1 + k % N_CHOICE;
            memset(alone, 0, sizeof alone);
            must_submit(g, &r);
            step_all(g);
            poll_all(g);
            for (int c = 0; c < r.n; c++) {
                const seen *s = &subs[t].s[i][c];
                assert_int_equal(s->n_finish, 1);
                n_cancelled += s->fin.reason == GYRE_FINISH_CANCELLED;
                if (s->fin.reason == GYRE_FINISH_CANCELLED)
                    assert_memory_equal(s->tokens, alone[c].tokens, (size_t)s->n * sizeof(int));
                else
                    seen_same(s, &alone[c]);
            }
        }
    assert_true(n_cancelled > 0);
    gyre_close(g);
}

static void four_threads_submit_and_cancel(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, tight);
    gyre_err err;
    pthread_t threads[N_THREAD];
    const gyre_event *ev;
    memset(subs, 0, sizeof subs);
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    for (int t = 0; t < N_THREAD; t++) {
        subs[t].g = g;
        subs[t].index = t;
        assert_int_equal(pthread_create(&threads[t], NULL, submit_and_cancel, &subs[t]), 0);
    }
    int n_by_call = N_THREAD * N_EACH / 4, n_polled = 0;
    while (n_polled < N_THREAD * N_EACH - n_by_call) {
        assert_int_equal(gyre_poll(g, 60000, &ev), GYRE_OK);
        seen_add(ev->user, ev);
        n_polled += ev->kind == GYRE_EVENT_FINISH && !ev->finish->n_left;
    }
    for (int t = 0; t < N_THREAD; t++) pthread_join(threads[t], NULL);
    while (sum_called() < n_by_call) sched_yield();
    assert_int_equal(gyre_poll(g, 0, &ev), GYRE_AGAIN);
    assert_int_equal(gyre_stop(g, &err), GYRE_OK); /* what callbacks wrote is ours to read now */
    assert_all_distinct();
    assert_outcomes();
    gyre_stats st;
    gyre_get_stats(g, &st, sizeof st);
    assert_int_equal(st.n_request, N_THREAD * N_EACH);
    assert_int_equal(st.n_running + st.n_waiting + st.n_parked, 0);
    gyre_close(g);
}

/* A poller that sleeps through everything loses nothing: the engine goes on, events wait. */
static void a_slow_poller_loses_nothing(void **state) {
    (void)state;
    static seen s[N_REQ], t[N_REQ];
    by_hand(s);
    gyre *g = must_open(DEMO, NULL);
    gyre_err err;
    gyre_stats st = {0};
    memset(t, 0, sizeof t);
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    int64_t finished = 0;
    submit_varied(g, t);
    while (finished < N_REQ) { /* the engine does not wait for us */
        sched_yield();
        gyre_get_stats(g, &st, sizeof st);
        finished = st.n_finish[GYRE_FINISH_LENGTH];
    }
    poll_requests(g, N_REQ);
    for (int i = 0; i < N_REQ; i++) seen_same(&s[i], &t[i]);
    gyre_close(g);
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

/* Refused while the main thread is inside for a moment: it looks until this one is, so this one must not give up. */
static void *poll_one(void *arg) {
    gyre *g = arg;
    const gyre_event *ev;
    static int32_t id;
    gyre_status st;
    while ((st = gyre_poll(g, -1, &ev)) == GYRE_E_ARG) sched_yield();
    id = st == GYRE_OK ? ev->id : -7;
    return &id;
}

static void a_poll_waits_and_only_one_does(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_err err;
    pthread_t poller;
    const gyre_event *ev;
    static seen s;
    void *got;
    memset(&s, 0, sizeof s);
    int64_t t0 = gy_clock_ns();
    assert_int_equal(gyre_poll(g, 50, &ev), GYRE_AGAIN);
    assert_true(gy_clock_ns() - t0 >= 49000000);
    assert_int_equal(pthread_create(&poller, NULL, poll_one, g), 0);
    while (gyre_poll(g, 0, &ev) != GYRE_E_ARG) sched_yield(); /* the other one is inside */
    gyre_request r = ask("ab", 3, &s);
    r.ignore_eos = 1;
    must_submit(g, &r);
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    pthread_join(poller, &got);
    assert_true(*(int32_t *)got >= 0);
    int n = 0;
    while (n < 3) n += gyre_poll(g, 1000, &ev) == GYRE_OK; /* two tokens and the finish */
    assert_int_equal(ev->kind, GYRE_EVENT_FINISH);
    gyre_close(g);
}

/* The idle thread sleeps, and wakes for what is submitted. */
static void idle_costs_no_time(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_err err;
    static seen s;
    struct timespec a, b, nap = {.tv_nsec = 200000000};
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    for (int i = 0; i < 3; i++) {
        gyre_request r = ask("ab", 3, &s);
        memset(&s, 0, sizeof s);
        must_submit(g, &r);
        poll_requests(g, 1);
        assert_int_equal(s.n_finish, 1);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        nanosleep(&nap, NULL);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        int64_t cpu_ns = (b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec;
        assert_true(cpu_ns < 50000000);
    }
    gyre_close(g);
}

static void close_while_it_runs(void **state) {
    (void)state;
    int64_t before = live_bytes();
    for (int i = 0; i < 12; i++) {
        gyre *g = must_open(DEMO, NULL);
        gyre_err err;
        static seen s[N_REQ];
        memset(s, 0, sizeof s);
        assert_int_equal(gyre_start(g, &err), GYRE_OK);
        for (int k = 0; k < N_REQ; k++) {
            gyre_request r = varied(k, &s[k]);
            if (k % 2) r.on_event = seen_add;
            must_submit(g, &r);
        }
        for (int k = 0; k < i; k++) sched_yield();
        gyre_close(g);
        assert_int_equal(live_bytes(), before);
    }
}

typedef struct chain {
    gyre *g;
    _Atomic int left;
    int refused;
} chain;

static void submit_next(void *user, const gyre_event *ev) {
    chain *c = user;
    gyre_err err;
    if (ev->kind != GYRE_EVENT_FINISH) return;
    c->refused += gyre_stop(c->g, &err) == GYRE_E_ARG && gyre_step(c->g, &err) == GYRE_E_ARG;
    if (atomic_fetch_sub(&c->left, 1) == 1) return;
    gyre_request r = ask("ab", 2, NULL);
    uint64_t id;
    r.user = c, r.on_event = submit_next;
    if (gyre_submit(c->g, &r, &err, &id) != GYRE_OK) atomic_store(&c->left, -1000);
}

static void a_chain_of_callbacks(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    gyre_err err;
    static chain c;
    c = (chain){.g = g, .left = 30};
    gyre_request r = ask("ab", 2, NULL);
    r.user = &c, r.on_event = submit_next;
    must_submit(g, &r);
    assert_int_equal(gyre_start(g, &err), GYRE_OK);
    while (atomic_load(&c.left) > 0) sched_yield();
    assert_int_equal(gyre_stop(g, &err), GYRE_OK);
    assert_int_equal(atomic_load(&c.left), 0);
    assert_int_equal(c.refused, 30);
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_thread_equals_by_hand),
        cmocka_unit_test(driving_can_change_hands),
        cmocka_unit_test(four_threads_submit_and_cancel),
        cmocka_unit_test(a_slow_poller_loses_nothing),
        cmocka_unit_test(a_poll_waits_and_only_one_does),
        cmocka_unit_test(idle_costs_no_time),
        cmocka_unit_test(close_while_it_runs),
        cmocka_unit_test(a_chain_of_callbacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
