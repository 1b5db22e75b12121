/* The fork-join team. One round:
 *
 *   caller:  fn, arg, n_pending = n - 1;  generation + 1 (publishes them);  wake sleepers;  fn(0);  wait n_pending == 0
 *   member:  wait for a new generation (spin, then futex);  fn(i);  n_pending - 1;  the last one wakes the caller
 *
 * Sleeping uses Dekker's pattern with sequentially consistent atomics: who is about to sleep first announces it and
 * then lets the kernel compare the word again; who changes the word first changes it and then looks for announcements.
 * So either the sleeper sees the change or the waker sees the sleeper. Deliberately not here: nesting, work stealing,
 * several callers, binding of the caller (threads it starts later would inherit its one core).
 */
#include "base/team.h"

#include "base/clock.h"
#include "base/cpu_int.h"
#include "base/mem.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TEAM_MAX = 1024, TEAM_SPIN_NS = 40000, TEAM_SPIN_SHORT_NS = 1000, TEAM_SPIN_BATCH = 32 };

typedef struct team_member {
    gy_team *team;
    pthread_t thread;
    int index;
} team_member;

struct gy_team {
    int n_member, n_started; /* n_started counts threads that exist, without the caller */
    int64_t spin_ns;
    gy_team_fn fn; /* written by the caller before it raises the generation, read by members after they saw that */
    void *arg;
    int running; /* caller only: finds nesting */
    team_member *member;
    /* Each word has its own cache line: members spin on the first while others count down the third. */
    alignas(64) _Atomic uint32_t generation;
    alignas(64) _Atomic uint32_t n_sleeper;
    alignas(64) _Atomic uint32_t n_pending;
    alignas(64) _Atomic uint32_t caller_sleeps;
    alignas(64) _Atomic int stop; /* set before the last generation */
};

static void team_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns at once when *word != expected; spurious returns are possible and all callers loop. */
static void team_futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void team_futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Spins until *word differs from old (1) or the time is over (0). The clock is read once per batch of pauses. */
static int team_spin(_Atomic uint32_t *word, uint32_t old, int64_t spin_ns) {
    int64_t end = 0;
    for (;;) {
        for (int i = 0; i < TEAM_SPIN_BATCH; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old) return 1;
            team_pause();
        }
        int64_t now = gy_clock_ns();
        if (end == 0)
            end = now + spin_ns;
        else if (now >= end)
            return 0;
    }
}

static void team_wait_generation(gy_team *t, uint32_t seen) {
    if (team_spin(&t->generation, seen, t->spin_ns)) return;
    atomic_fetch_add(&t->n_sleeper, 1);
    while (atomic_load(&t->generation) == seen) team_futex_wait(&t->generation, seen);
    atomic_fetch_sub(&t->n_sleeper, 1);
}

static void team_finish_share(gy_team *t) {
    if (atomic_fetch_sub(&t->n_pending, 1) == 1 && atomic_load(&t->caller_sleeps)) team_futex_wake(&t->n_pending, 1);
}

static void *team_thread(void *arg) {
    team_member *m = arg;
    gy_team *t = m->team;
    for (uint32_t seen = 0;; seen++) {
        team_wait_generation(t, seen);
        if (atomic_load(&t->stop)) return NULL;
        t->fn(t->arg, m->index, t->n_member);
        team_finish_share(t);
    }
}

static void team_new_generation(gy_team *t) {
    atomic_fetch_add(&t->generation, 1);
    if (atomic_load(&t->n_sleeper)) team_futex_wake(&t->generation, INT_MAX);
}

/* The word changes with each member that finishes, so each turn waits for the value it saw. */
static void team_wait_pending(gy_team *t) {
    uint32_t left;
    while ((left = atomic_load(&t->n_pending)) != 0) {
        if (team_spin(&t->n_pending, left, t->spin_ns)) continue;
        atomic_store(&t->caller_sleeps, 1);
        while ((left = atomic_load(&t->n_pending)) != 0) team_futex_wait(&t->n_pending, left);
        atomic_store(&t->caller_sleeps, 0);
    }
}

void gy_team_run(gy_team *t, gy_team_fn fn, void *arg) {
    GY_CHECK(!t->running);
    t->running = 1;
    if (t->n_member > 1) {
        t->fn = fn;
        t->arg = arg;
        atomic_store(&t->n_pending, (uint32_t)t->n_member - 1);
        team_new_generation(t);
    }
    fn(arg, 0, t->n_member);
    if (t->n_member > 1) team_wait_pending(t);
    t->running = 0;
}

/* Best effort. Member 0's core is left to the caller. */
static void team_pin(gy_team *t, const gy_cores *c) {
    if (c->n < t->n_member) return;
    for (int i = 1; i < t->n_member; i++) {
        int cpu = gy_cores_of_member(c, i, t->n_member);
        cpu_set_t set;
        CPU_ZERO(&set);
        if (cpu >= CPU_SETSIZE) return;
        CPU_SET(cpu, &set);
        pthread_setaffinity_np(t->member[i].thread, sizeof set, &set);
    }
}

/* Members inherit a full signal mask: signals belong to the program's own threads. */
static gy_status team_start(gy_team *t) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    for (int i = 1; i < t->n_member && !failed; i++) {
        t->member[i] = (team_member){.team = t, .index = i};
        failed = pthread_create(&t->member[i].thread, NULL, team_thread, &t->member[i]);
        if (!failed) t->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? GY_E_NOMEM : GY_OK;
}

gy_status gy_team_create(int n_member, gy_pin pin, gy_team **out) {
    if (n_member < 0 || n_member > TEAM_MAX) return GY_E_ARG;
    gy_team *t = gy_mem_alloc(GY_MEM_BASE, 1, sizeof *t);
    if (!t) return GY_E_NOMEM;
    gy_cores c;
    gy_cores_find("", NULL, &c);
    t->n_member = n_member ? n_member : gy_cores_members(&c);
    if (t->n_member > TEAM_MAX) t->n_member = TEAM_MAX;
    t->spin_ns = t->n_member <= c.n_logical && t->n_member <= c.quota ? TEAM_SPIN_NS : TEAM_SPIN_SHORT_NS;
    t->member = gy_mem_alloc(GY_MEM_BASE, (size_t)t->n_member, sizeof *t->member);
    gy_status st = t->member ? team_start(t) : GY_E_NOMEM;
    if (st < 0) {
        gy_team_destroy(t);
        return st;
    }
    if (pin == GY_PIN_ON || (pin == GY_PIN_AUTO && c.n_node > 1)) team_pin(t, &c);
    *out = t;
    return GY_OK;
}

void gy_team_destroy(gy_team *t) {
    if (!t) return;
    GY_CHECK(!t->running);
    if (t->n_started) {
        atomic_store(&t->stop, 1);
        team_new_generation(t);
    }
    for (int i = 1; i <= t->n_started; i++) pthread_join(t->member[i].thread, NULL);
    gy_mem_free(t->member);
    gy_mem_free(t);
}

int gy_team_size(const gy_team *t) {
    return t->n_member;
}

/* The first `units % n_member` members take one unit more. */
void gy_team_share(int64_t n, int64_t grain, int member, int n_member, int64_t *lo, int64_t *hi) {
    GY_CHECK(grain > 0 && n_member > 0 && member >= 0 && member < n_member);
    int64_t units = n <= 0 ? 0 : (n - 1) / grain + 1, each = units / n_member, more = units % n_member;
    int64_t first = member * each + (member < more ? member : more);
    int64_t last = first + each + (member < more);
    *lo = first == units ? (n < 0 ? 0 : n) : first * grain;
    *hi = last == units ? (n < 0 ? 0 : n) : last * grain;
}
