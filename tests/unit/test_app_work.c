/* Lanes: order, bounds, who owns a job when, and a close at any moment. Run under TSan too. */
#include "base_test.h"

#include "server/app_work.h"

#include "base/mem.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

typedef struct fixture {
    gy_app_lane *l;
    sem_t done, gate; /* on_done posts; a gated job waits */
    pthread_t ran_on;
    atomic_int n_begun;
    int n_run; /* the lane's thread; read when it has given back or ended */
    int order[64];
} fixture;

typedef struct job {
    gy_app_job j;
    int number, is_gated;
    atomic_int *n_freed;
} job;

static void on_done(void *user) {
    sem_post(&((fixture *)user)->done);
}

static void run(gy_app_job *j, void *worker) {
    fixture *f = worker;
    job *x = (job *)j;
    f->n_begun++;
    if (x->is_gated) sem_wait(&f->gate);
    f->ran_on = pthread_self();
    f->order[f->n_run++ % 64] = x->number;
    if (!j->is_last) return;
    atomic_fetch_add(x->n_freed, 1);
    gy_mem_free(x);
}

static job make(int number, size_t bytes, int is_gated) {
    return (job){.j = {.run = run, .bytes = bytes}, .number = number, .is_gated = is_gated};
}

static void fixture_open(fixture *f, size_t max_jobs, size_t max_bytes) {
    gy_err err = {0};
    *f = (fixture){.n_run = 0};
    sem_init(&f->done, 0, 0);
    sem_init(&f->gate, 0, 0);
    const gy_app_lane_opts o = {.name = "test",
                                .nice = 5,
                                .max_jobs = max_jobs,
                                .max_bytes = max_bytes,
                                .on_done = on_done,
                                .user = f,
                                .worker = f};
    assert_int_equal(gy_app_lane_open(&o, &err, &f->l), GY_OK);
}

static void fixture_close(fixture *f) {
    gy_app_lane_close(f->l);
    sem_destroy(&f->done);
    sem_destroy(&f->gate);
}

static void in_order_on_its_own_thread(void **state) {
    (void)state;
    fixture f;
    job j[50];
    fixture_open(&f, 100, 1000);
    for (int i = 0; i < 50; i++) {
        j[i] = make(i, 1, i == 0);
        assert_int_equal(gy_app_lane_push(f.l, &j[i].j), GY_OK);
    }
    assert_null(gy_app_lane_take(f.l)); /* the first one waits at its gate */
    sem_post(&f.gate);
    for (int i = 0; i < 50; i++) {
        sem_wait(&f.done);
        assert_ptr_equal(gy_app_lane_take(f.l), &j[i].j);
    }
    assert_null(gy_app_lane_take(f.l));
    assert_int_equal(f.n_run, 50);
    for (int i = 0; i < 50; i++) assert_int_equal(f.order[i], i);
    assert_false(pthread_equal(f.ran_on, pthread_self()));
    gy_app_lane_stats s;
    gy_app_lane_get_stats(f.l, &s);
    assert_int_equal(s.n_job, 0);
    assert_int_equal(s.n_bytes, 0);
    assert_int_equal(s.n_done, 50);
    assert_int_equal(s.n_full, 0);
    assert_true(s.busy_ns > 0);
    fixture_close(&f);
}

static void bounds(void **state) {
    (void)state;
    fixture f;
    job a = make(0, 60, 1), b = make(1, 40, 0), c = make(2, 1, 0), d = make(3, 0, 0), huge = make(4, 5000, 1);
    fixture_open(&f, 3, 100);
    assert_int_equal(gy_app_lane_push(f.l, &a.j), GY_OK);
    assert_int_equal(gy_app_lane_push(f.l, &b.j), GY_OK);
    assert_int_equal(gy_app_lane_push(f.l, &c.j), GY_AGAIN); /* 101 bytes */
    assert_int_equal(gy_app_lane_push(f.l, &d.j), GY_OK);    /* 100 bytes, 3 jobs */
    c.j.bytes = 0;
    assert_int_equal(gy_app_lane_push(f.l, &c.j), GY_AGAIN); /* 4 jobs */
    gy_app_lane_stats s;
    gy_app_lane_get_stats(f.l, &s);
    assert_int_equal(s.n_job, 3);
    assert_int_equal(s.n_bytes, 100);
    assert_int_equal(s.n_full, 2);
    sem_post(&f.gate);
    for (int i = 0; i < 3; i++) sem_wait(&f.done);
    /* What was done counts no more, taken or not; and what alone is too large comes in when nothing else is there. */
    assert_int_equal(gy_app_lane_push(f.l, &huge.j), GY_OK);
    assert_int_equal(gy_app_lane_push(f.l, &c.j), GY_AGAIN);
    sem_post(&f.gate);
    sem_wait(&f.done);
    for (int i = 0; i < 4; i++) assert_non_null(gy_app_lane_take(f.l));
    fixture_close(&f);
}

static job *make_last(atomic_int *n_freed) {
    job *x = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *x);
    assert_non_null(x);
    *x = make(9, (size_t)1 << 40, 0);
    x->j.is_last = 1;
    x->n_freed = n_freed;
    return x;
}

/* Jobs that end on the lane: always taken, never given back, and none is left behind by a close. */
static void last_jobs(void **state) {
    (void)state;
    fixture f;
    atomic_int n_freed = 0;
    job gated = make(0, 1, 1), waits = make(1, 1, 0);
    fixture_open(&f, 2, 10);
    assert_int_equal(gy_app_lane_push(f.l, &gated.j), GY_OK);
    assert_int_equal(gy_app_lane_push(f.l, &waits.j), GY_OK);
    for (int i = 0; i < 5; i++) assert_int_equal(gy_app_lane_push(f.l, &make_last(&n_freed)->j), GY_OK);
    gy_app_lane_stats s;
    gy_app_lane_get_stats(f.l, &s);
    assert_int_equal(s.n_job, 2);
    assert_int_equal(s.n_bytes, 2);
    sem_post(&f.gate);
    sem_wait(&f.done);
    fixture_close(&f);
    assert_int_equal(n_freed, 5);
}

typedef struct closer {
    gy_app_lane *l;
    atomic_int is_closed;
} closer;

static void *close_main(void *arg) {
    closer *c = arg;
    gy_app_lane_close(c->l);
    c->is_closed = 1;
    return NULL;
}

static void close_waits_for_what_runs(void **state) {
    (void)state;
    fixture f;
    job gated = make(0, 1, 1), never = make(1, 1, 0);
    fixture_open(&f, 10, 10);
    assert_int_equal(gy_app_lane_push(f.l, &gated.j), GY_OK);
    assert_int_equal(gy_app_lane_push(f.l, &never.j), GY_OK);
    /* The first one must have begun, or close would forget both. */
    while (!f.n_begun) poll(NULL, 0, 1);
    closer c = {.l = f.l};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, close_main, &c), 0);
    poll(NULL, 0, 50);
    assert_int_equal(c.is_closed, 0);
    sem_post(&f.gate);
    pthread_join(t, NULL);
    assert_int_equal(c.is_closed, 1);
    assert_true(f.n_run <= 1);
    gy_app_lane_close(NULL);
    sem_destroy(&f.done);
    sem_destroy(&f.gate);
}

/* Pushing, taking and closing at random moments; every job that was not given back is its owner's again. */
static void many(void **state) {
    (void)state;
    gy_mem_stats before, after;
    gy_mem_get_stats(&before);
    static job jobs[200];
    for (int round = 0; round < 30; round++) {
        fixture f;
        atomic_int n_freed = 0;
        int n_last = 0, n_pushed = 0, n_taken = 0;
        fixture_open(&f, 16, 1000);
        for (int i = 0; i < 200; i++) {
            jobs[i] = make(i, (size_t)(i * 7 % 90), 0);
            if (i % 5 == round % 5) {
                n_last++;
                assert_int_equal(gy_app_lane_push(f.l, &make_last(&n_freed)->j), GY_OK);
            }
            n_pushed += gy_app_lane_push(f.l, &jobs[i].j) == GY_OK;
            while (gy_app_lane_take(f.l)) n_taken++;
            if (i == round * 6) poll(NULL, 0, 1);
        }
        assert_true(n_taken <= n_pushed);
        fixture_close(&f);
        assert_int_equal(n_freed, n_last);
    }
    gy_mem_get_stats(&after);
    assert_int_equal(after.live_bytes[GY_MEM_SERVER], before.live_bytes[GY_MEM_SERVER]);
}

static void no_memory(void **state) {
    (void)state;
    gy_err err = {0};
    gy_app_lane *l = NULL;
    const gy_app_lane_opts o = {.name = "test", .max_jobs = 1, .max_bytes = 1, .on_done = on_done};
    gy_mem_fail_after(1);
    assert_int_equal(gy_app_lane_open(&o, &err, &l), GY_E_NOMEM);
    gy_mem_fail_after(0);
    assert_null(l);
    assert_string_equal(err.msg, "server: no memory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_order_on_its_own_thread), cmocka_unit_test(bounds), cmocka_unit_test(last_jobs),
        cmocka_unit_test(close_waits_for_what_runs),  cmocka_unit_test(many),   cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
