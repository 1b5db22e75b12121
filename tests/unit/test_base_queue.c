/* The bounded queue alone and between threads: each item exactly once, in order per producer, no push slept through. */
#include "base_test.h"

#include "base/mem.h"
#include "base/queue.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

typedef struct item {
    uint32_t producer, number;
    uint64_t check; /* torn copies show here */
    char text[11];  /* an odd size: cells are padded */
} item;

static int readable(const gy_queue *q, int wait_ms) {
    struct pollfd p = {.fd = gy_queue_fd(q), .events = POLLIN};
    return poll(&p, 1, wait_ms) == 1;
}

static void test_order_full_and_empty(void **state) {
    (void)state;
    gy_queue *q = NULL;
    assert_int_equal(gy_queue_create(5, sizeof(int), &q), GY_OK); /* becomes 8 */
    int next_in = 0, next_out = 0, got = -1;
    assert_int_equal(gy_queue_pop(q, &got), GY_AGAIN);
    assert_int_equal(got, -1);
    for (int round = 0; round < 50; round++) {
        while (gy_queue_push(q, &next_in) == GY_OK) next_in++;
        assert_int_equal(gy_queue_len(q), 8);
        for (int i = 0; i < 1 + round % 8; i++) {
            assert_int_equal(gy_queue_pop(q, &got), GY_OK);
            assert_int_equal(got, next_out++);
        }
        assert_int_equal(gy_queue_len(q), next_in - next_out);
    }
    while (gy_queue_pop(q, &got) == GY_OK) assert_int_equal(got, next_out++);
    assert_int_equal(next_in, next_out);
    assert_int_equal(gy_queue_len(q), 0);
    gy_queue_destroy(q);
    gy_queue_destroy(NULL);
}

static void test_fd_rings(void **state) {
    (void)state;
    gy_queue *q = NULL;
    int v = 7;
    assert_int_equal(gy_queue_create(2, sizeof v, &q), GY_OK);
    assert_false(readable(q, 0));
    gy_queue_fd_clear(q); /* nothing there: must not block */
    assert_int_equal(gy_queue_push(q, &v), GY_OK);
    assert_int_equal(gy_queue_push(q, &v), GY_OK);
    assert_true(readable(q, 0));
    gy_queue_fd_clear(q);
    assert_false(readable(q, 0));
    assert_int_equal(gy_queue_push(q, &v), GY_AGAIN);
    assert_false(readable(q, 0)); /* a refused push rings nobody */
    gy_queue_destroy(q);
}

static void test_arguments_and_memory(void **state) {
    (void)state;
    gy_queue *q = NULL;
    gy_mem_stats s;
    assert_int_equal(gy_queue_create(0, 4, &q), GY_E_ARG);
    assert_int_equal(gy_queue_create(4, 0, &q), GY_E_ARG);
    assert_int_equal(gy_queue_create(SIZE_MAX, 4, &q), GY_E_NOMEM);
    assert_int_equal(gy_queue_create((size_t)1 << 40, (size_t)1 << 40, &q), GY_E_NOMEM);
    assert_int_equal(gy_queue_create(2, SIZE_MAX, &q), GY_E_NOMEM);
    for (int n = 1; n <= 2; n++) {
        gy_mem_fail_after(n);
        assert_int_equal(gy_queue_create(4, 4, &q), GY_E_NOMEM);
        gy_mem_fail_after(0);
        gy_mem_get_stats(&s);
        assert_int_equal(s.live_bytes[GY_MEM_BASE], 0);
    }
    assert_null(q);
}

/* ---- many to many ---- */

enum { N_PRODUCER = 4, N_CONSUMER = 3, PER_PRODUCER = 8000 };

typedef struct crowd {
    gy_queue *q;
    uint32_t id;
    _Atomic int *left;                           /* items nobody has popped yet */
    _Atomic unsigned char (*seen)[PER_PRODUCER]; /* [N_PRODUCER] */
    int faults;
} crowd;

static uint64_t item_check(uint32_t producer, uint32_t number) {
    return ((uint64_t)producer << 40 ^ number) * 0x9E3779B97F4A7C15u;
}

static void *produce(void *arg) {
    crowd *c = arg;
    for (uint32_t i = 0; i < PER_PRODUCER; i++) {
        item it = {.producer = c->id, .number = i, .check = item_check(c->id, i)};
        snprintf(it.text, sizeof it.text, "%u", i);
        while (gy_queue_push(c->q, &it) == GY_AGAIN) sched_yield();
    }
    return NULL;
}

static void take_one(crowd *c, const item *it, int64_t last[N_PRODUCER]) {
    char text[11] = "";
    snprintf(text, sizeof text, "%u", it->number);
    if (it->producer >= N_PRODUCER || it->number >= PER_PRODUCER || strcmp(text, it->text) != 0 ||
        it->check != item_check(it->producer, it->number)) {
        c->faults++;
        return;
    }
    if ((int64_t)it->number <= last[it->producer]) c->faults++;
    last[it->producer] = it->number;
    atomic_fetch_add(&c->seen[it->producer][it->number], 1);
    atomic_fetch_sub(c->left, 1);
}

/* Several consumers share the descriptor: one may clear what another wanted to see, hence the short timeout. */
static void *consume(void *arg) {
    crowd *c = arg;
    int64_t last[N_PRODUCER] = {-1, -1, -1, -1};
    while (atomic_load(c->left) > 0) {
        item it;
        gy_queue_fd_clear(c->q);
        while (gy_queue_pop(c->q, &it) == GY_OK) take_one(c, &it, last);
        if (atomic_load(c->left) > 0) readable(c->q, 1);
    }
    return NULL;
}

static void run_crowd(size_t n_cell) {
    static _Atomic unsigned char seen[N_PRODUCER][PER_PRODUCER];
    memset(seen, 0, sizeof seen);
    gy_queue *q = NULL;
    assert_int_equal(gy_queue_create(n_cell, sizeof(item), &q), GY_OK);
    _Atomic int left = N_PRODUCER * PER_PRODUCER;
    pthread_t th[N_PRODUCER + N_CONSUMER];
    crowd c[N_PRODUCER + N_CONSUMER];
    for (uint32_t i = 0; i < N_PRODUCER + N_CONSUMER; i++) {
        c[i] = (crowd){.q = q, .id = i, .left = &left, .seen = seen};
        assert_int_equal(pthread_create(&th[i], NULL, i < N_PRODUCER ? produce : consume, &c[i]), 0);
    }
    for (int i = 0; i < N_PRODUCER + N_CONSUMER; i++) {
        pthread_join(th[i], NULL);
        assert_int_equal(c[i].faults, 0);
    }
    for (int p = 0; p < N_PRODUCER; p++)
        for (int i = 0; i < PER_PRODUCER; i++)
            if (seen[p][i] != 1) fail_msg("item %d of producer %d came %d times", i, p, seen[p][i]);
    assert_int_equal(gy_queue_len(q), 0);
    gy_queue_destroy(q);
}

static void test_many_to_many(void **state) {
    (void)state;
    run_crowd(2);
    run_crowd(64);
    run_crowd(65536); /* never full */
}

/* One consumer that waits without a timeout worth the name: a lost ring would stop it. */
static void *consume_alone(void *arg) {
    crowd *c = arg;
    uint32_t next[N_PRODUCER] = {0};
    while (atomic_load(c->left) > 0) {
        if (!readable(c->q, 20000)) {
            c->faults += 1000;
            break;
        }
        gy_queue_fd_clear(c->q);
        item it;
        while (gy_queue_pop(c->q, &it) == GY_OK) {
            if (it.number != next[it.producer]++) c->faults++;
            atomic_fetch_sub(c->left, 1);
        }
    }
    return NULL;
}

static void test_no_push_is_slept_through(void **state) {
    (void)state;
    gy_queue *q = NULL;
    assert_int_equal(gy_queue_create(16, sizeof(item), &q), GY_OK);
    _Atomic int left = 2 * PER_PRODUCER;
    pthread_t th[3];
    crowd c[3];
    for (uint32_t i = 0; i < 3; i++) {
        c[i] = (crowd){.q = q, .id = i, .left = &left};
        assert_int_equal(pthread_create(&th[i], NULL, i < 2 ? produce : consume_alone, &c[i]), 0);
    }
    for (int i = 0; i < 3; i++) pthread_join(th[i], NULL);
    assert_int_equal(c[2].faults, 0);
    assert_int_equal(left, 0);
    gy_queue_destroy(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_full_and_empty),     cmocka_unit_test(test_fd_rings),
        cmocka_unit_test(test_arguments_and_memory),     cmocka_unit_test(test_many_to_many),
        cmocka_unit_test(test_no_push_is_slept_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
