/* The driver: what came in since the last step goes to the engine, one step, its events go out. By hand or by an own
 * thread. Submit and cancel are here too: they are the other end of the same queue.
 */
#include "api/api_int.h"

#include "base/clock.h"
#include "base/log.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* ---- the driver's list of requests that the engine has ---------------------------------------------------------- */

void gy_api_live_add(gy_api_req *q) {
    gyre *g = q->g;
    q->live_next = g->live;
    if (g->live) g->live->live_prev = q;
    g->live = q;
    g->n_live++;
}

void gy_api_live_remove(gy_api_req *q) {
    q->g->n_live--;
    *(q->live_prev ? &q->live_prev->live_next : &q->g->live) = q->live_next;
    if (q->live_next) q->live_next->live_prev = q->live_prev;
}

void gy_api_release(gy_api_req *q) {
    gyre *g = q->g;
    int32_t slot = q->slot, n = q->n;
    g->slot[slot].held = NULL;
    gy_api_req_free(q);
    pthread_mutex_lock(&g->room_lock);
    g->free_slot[(g->free_head + g->n_free++) % g->n_slot] = slot;
    g->n_choice -= n;
    pthread_mutex_unlock(&g->room_lock);
}

/* ---- submit and cancel ------------------------------------------------------------------------------------------ */

/* Whoever has room for its choices finds a slot: a request has at least one choice. */
static gy_status take_room(gyre *g, int32_t n, gy_err *err, int32_t *slot_out) {
    pthread_mutex_lock(&g->room_lock);
    int32_t taken = g->n_choice, fits = n <= g->n_slot - taken;
    if (fits) {
        *slot_out = g->free_slot[g->free_head];
        g->free_head = (g->free_head + 1) % g->n_slot;
        g->n_free--;
        g->n_choice += n;
    }
    pthread_mutex_unlock(&g->room_lock);
    if (fits) return GY_OK;
    return gy_err_set(
        err, GY_AGAIN,
        "%d of %d places are taken by choices that run, wait, or have events nobody has polled; %d more do "
        "not fit: try again later",
        taken, g->n_slot, n);
}

static gy_status check_alive(const gyre *g, gy_err *err) {
    if (!atomic_load_explicit(&g->lost_set, memory_order_acquire)) return GY_OK;
    return gy_err_set(err, g->lost.status, "the engine is lost: %.900s", g->lost.msg);
}

static gy_status submit(gyre *g, const gyre_request *r, gy_err *err, uint64_t *id_out) {
    gy_api_req *q;
    int32_t slot = 0;
    GY_TRY(check_alive(g, err));
    GY_TRY(gy_api_req_create(g, r, err, &q));
    gy_status st = take_room(g, q->n, err, &slot);
    if (st != GY_OK) {
        gy_api_req_free(q);
        return st;
    }
    gy_api_slot *s = &g->slot[slot];
    uint64_t id = s->round++ * (uint64_t)g->n_slot + (uint64_t)slot + 1;
    q->slot = slot;
    q->id = id;
    s->held = q;
    atomic_store(&s->issued, id);
    *id_out = id; /* before the push: its events may be out when that returns */
    GY_CHECK(gy_queue_push(g->inbox, &q) == GY_OK);
    return GY_OK;
}

gyre_status gyre_submit(gyre *g, const gyre_request *r, gyre_err *err, uint64_t *id_out) {
    gy_err e = {0};
    uint64_t id;
    gy_status st = submit(g, r, &e, &id);
    if (st != GY_OK) return gy_api_status(&e, err);
    *id_out = id;
    return GYRE_OK;
}

/* Leaves the largest id there: a late cancel of a slot's earlier request cannot hide one of its present request. */
void gyre_cancel(gyre *g, uint64_t id) {
    if (!id) return;
    gy_api_slot *s = &g->slot[(id - 1) % (uint64_t)g->n_slot];
    uint64_t have = atomic_load(&s->cancel);
    if (id > atomic_load(&s->issued)) return;
    while (have < id && !atomic_compare_exchange_weak(&s->cancel, &have, id)) {
    }
    atomic_store(&g->cancel_any, 1);
}

/* ---- one turn --------------------------------------------------------------------------------------------------- */

static void keep_deadline(gyre *g, const gy_api_req *q) {
    if (!q->deadline_ns) return;
    if (g->host->ops->set_deadline)
        g->host->ops->set_deadline(g->host, q->engine_id, q->deadline_ns);
    else if (!g->due_ns || q->deadline_ns < g->due_ns)
        g->due_ns = q->deadline_ns;
}

static void admit(gyre *g, gy_api_req *q) {
    gy_err err = g->lost;
    gy_api_live_add(q);
    gy_status st = atomic_load(&g->lost_set) ? err.status : g->host->ops->submit(g->host, &q->rq, &err, &q->engine_id);
    gy_mem_free(q->input);
    q->input = NULL;
    if (st == GY_OK)
        keep_deadline(g, q);
    else
        gy_api_fail(q, &err);
}

static void take_inbox(gyre *g) {
    gy_api_req *q;
    while (gy_queue_pop(g->inbox, &q) == GY_OK) admit(g, q);
}

static void take_cancels(gyre *g) {
    for (gy_api_req *q = g->live; q; q = q->live_next) {
        if (q->cancelled || atomic_load(&g->slot[q->slot].cancel) != q->id) continue;
        q->cancelled = 1;
        g->host->ops->cancel(g->host, q->engine_id);
    }
}

/* An engine in this process always has something to do while it has requests, so nobody sleeps past it. */
static void take_deadlines(gyre *g) {
    int64_t now = g->due_ns ? gy_clock_ns() : 0;
    if (!g->due_ns || now < g->due_ns) return;
    g->due_ns = 0;
    for (gy_api_req *q = g->live; q; q = q->live_next) {
        if (!q->deadline_ns || q->cancelled) continue;
        if (q->deadline_ns > now) {
            keep_deadline(g, q);
            continue;
        }
        q->cancelled = q->is_late = 1;
        g->host->ops->cancel(g->host, q->engine_id);
    }
}

static void lose(gyre *g, const gy_err *why) {
    gy_log(GY_LOG_ERROR, "api", why->msg, NULL);
    g->lost = *why;
    atomic_store_explicit(&g->lost_set, 1, memory_order_release);
    for (gy_api_req *q = g->live, *next; q; q = next) {
        next = q->live_next;
        gy_api_fail(q, why);
    }
}

static void copy_depths(const gy_engine_stats *e, gyre_stats *s) {
    memcpy(s->n_row_prompt, e->n_row_at[0], sizeof s->n_row_prompt);
    memcpy(s->n_row_decode, e->n_row_at[1], sizeof s->n_row_decode);
    memcpy(s->n_exit, e->n_exit, sizeof s->n_exit);
    memcpy(s->kv_plane_blocks, e->kv_plane, sizeof s->kv_plane_blocks);
}

void gy_api_mirror_stats(gyre *g) {
    gy_api_host_stats all;
    g->host->ops->get_stats(g->host, &all);
    const gy_engine_stats e = all.e;
    gyre_stats s = {.n_step = e.n_step,
                    .n_pass = e.n_pass,
                    .n_row = e.n_row,
                    .n_prompt_tok = e.n_prompt_tok,
                    .n_output_tok = e.n_output_tok,
                    .n_loop_sum = e.n_loop_sum,
                    .n_request = e.n_request,
                    .n_waiting = e.sched.n_waiting,
                    .n_parked = e.sched.n_parked,
                    .n_running = e.sched.n_running,
                    .n_park = e.sched.n_park,
                    .n_restore = e.sched.n_restore,
                    .n_drop = e.sched.n_drop,
                    .n_recomputed_tok = e.sched.n_recomputed_tok,
                    .cache_query_tok = e.prefix.n_query_tok,
                    .cache_hit_tok = e.prefix.n_hit_tok,
                    .cache_evicted = e.prefix.n_evict,
                    .kv_blocks_free = e.kv_free[GY_KV_CORE],
                    .kv_blocks_cached = e.kv_cached[GY_KV_CORE],
                    .kv_blocks_total = e.kv_total[GY_KV_CORE],
                    .step_ns = e.step_ns,
                    .model_ns = e.model_ns,
                    .sample_ns = e.sample_ns,
                    .kv_boundary_blocks = e.kv_boundary,
                    .kv_block_bytes = g->host->plan.block_bytes[GY_KV_CORE],
                    .kv_boundary_block_bytes = g->host->plan.block_bytes[GY_KV_BOUNDARY],
                    .kv_owned = e.kv_total[GY_KV_CORE] - e.kv_free[GY_KV_CORE] - e.kv_cached[GY_KV_CORE],
                    .wait_tok = e.sched.n_wait_tok,
                    .grammar_mask_hit = (int64_t)e.mask.n_hit,
                    .grammar_mask_miss = (int64_t)e.mask.n_miss,
                    .n_live = g->n_live,
                    .worker = all.w};
    copy_depths(&e, &s);
    for (int i = 0; i <= GY_FINISH_ERROR; i++) s.n_finish[i] = e.n_finish[i];
    pthread_mutex_lock(&g->stats_lock);
    g->stats = s;
    pthread_mutex_unlock(&g->stats_lock);
}

/* The flag of the cancels is taken before the inbox: a cancel that it told of belongs to a request that is in there, or
 * was before. */
static gy_status drive(gyre *g, gy_err *err) {
    int cancels = atomic_exchange(&g->cancel_any, 0);
    gy_status st = GY_OK;
    take_inbox(g);
    if (!atomic_load(&g->lost_set)) {
        if (cancels) take_cancels(g);
        take_deadlines(g);
        st = g->host->ops->step(g->host, err);
        if (st < 0) lose(g, err);
        gy_api_mirror_stats(g);
    } else {
        st = check_alive(g, err);
    }
    gy_api_publish(g);
    return st;
}

int gy_api_inside_callback(const gyre *g) {
    return atomic_load(&g->driver_tid) == (int32_t)gettid();
}

/* All requests wait for workers. Not longer than a caller may like to look at something else. */
static void wait_for_workers(const gyre *g) {
    enum { STEP_MS = 50 };
    struct pollfd p[2] = {{.fd = gy_queue_fd(g->inbox), .events = POLLIN}, {.fd = g->host->fd, .events = POLLIN}};
    poll(p, 2, STEP_MS);
    gy_queue_fd_clear(g->inbox);
}

gyre_status gyre_step(gyre *g, gyre_err *err) {
    gy_err e = {0};
    int idle = GY_API_IDLE;
    if (!atomic_compare_exchange_strong(&g->driver, &idle, GY_API_STEP)) {
        gy_err_set(&e, GY_E_ARG, "%s",
                   idle == GY_API_STEP ? "gyre_step: a step is in progress, in another thread or around this callback"
                                       : "gyre_step: an own thread drives this handle; call gyre_stop first");
        return gy_api_status(&e, err);
    }
    atomic_store(&g->driver_tid, (int32_t)gettid());
    gy_status st = drive(g, &e);
    if (st == GY_AGAIN) {
        wait_for_workers(g);
        st = GY_OK;
    }
    atomic_store(&g->driver_tid, 0);
    atomic_store(&g->driver, GY_API_IDLE);
    return st < 0 ? gy_api_status(&e, err) : (gyre_status)st;
}

/* ---- the own thread --------------------------------------------------------------------------------------------- */

/* The descriptor is cleared before the inbox is looked at: what is pushed after that rings again. */
static void *thread_main(void *arg) {
    gyre *g = arg;
    gy_err err;
    atomic_store(&g->driver_tid, (int32_t)gettid());
    while (!atomic_load(&g->stop)) {
        gy_queue_fd_clear(g->inbox);
        if (drive(g, &err) == GY_OK) continue;
        struct pollfd p[3] = {{.fd = gy_queue_fd(g->inbox), .events = POLLIN},
                              {.fd = g->wake_fd, .events = POLLIN},
                              {.fd = atomic_load(&g->lost_set) ? -1 : g->host->fd, .events = POLLIN}};
        poll(p, 3, -1);
    }
    atomic_store(&g->driver_tid, 0);
    return NULL;
}

static int thread_create(gyre *g) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&g->thread, NULL, thread_main, g);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!rc) pthread_setname_np(g->thread, "gyre");
    return rc;
}

gyre_status gyre_start(gyre *g, gyre_err *err) {
    gy_err e = {0};
    int idle = GY_API_IDLE;
    if (!atomic_compare_exchange_strong(&g->driver, &idle, GY_API_THREAD)) {
        gy_err_set(&e, GY_E_ARG, "%s",
                   idle == GY_API_STEP ? "gyre_start: a step is in progress, in another thread or around this callback"
                                       : "gyre_start: the thread runs already");
        return gy_api_status(&e, err);
    }
    atomic_store(&g->stop, 0);
    int rc = thread_create(g);
    if (!rc) return GYRE_OK;
    atomic_store(&g->driver, GY_API_IDLE);
    gy_err_set(&e, GY_E_NOMEM, "gyre_start: the system gives no thread (%s)", strerror(rc));
    return gy_api_status(&e, err);
}

gyre_status gyre_stop(gyre *g, gyre_err *err) {
    gy_err e = {0};
    int running = GY_API_THREAD;
    const uint64_t one = 1;
    uint64_t rung;
    if (gy_api_inside_callback(g)) {
        gy_err_set(&e, GY_E_ARG, "gyre_stop: called inside a callback, which the thread would wait for");
        return gy_api_status(&e, err);
    }
    if (!atomic_compare_exchange_strong(&g->driver, &running, GY_API_STOPPING)) {
        gy_err_set(&e, GY_E_ARG, "gyre_stop: no thread runs");
        return gy_api_status(&e, err);
    }
    atomic_store(&g->stop, 1);
    GY_CHECK(write(g->wake_fd, &one, sizeof one) == (ssize_t)sizeof one);
    pthread_join(g->thread, NULL);
    GY_CHECK(read(g->wake_fd, &rung, sizeof rung) == (ssize_t)sizeof rung);
    atomic_store(&g->driver, GY_API_IDLE);
    return GYRE_OK;
}

void gy_api_drive_fini(gyre *g) {
    if (atomic_load(&g->driver) == GY_API_THREAD) gyre_stop(g, NULL);
}

void gyre_get_stats(const gyre *g, gyre_stats *out, size_t size) {
    gyre *w = (gyre *)(uintptr_t)g; /* the lock */
    pthread_mutex_lock(&w->stats_lock);
    gyre_stats s = g->stats;
    pthread_mutex_unlock(&w->stats_lock);
    memcpy(out, &s, size < sizeof s ? size : sizeof s);
}
