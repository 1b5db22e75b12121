/* See alive.h. The list of held futexes belongs to a thread, and the C library has its own on each: ours is that of a
 * thread which holds nothing else. That thread sleeps, so a signal that ends the process ends it first, wherever the
 * others are in the kernel just then.
 */
#include "pd/alive.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW };

typedef _Atomic uint32_t word; /* as the kernel has it: id of a thread, FUTEX_WAITERS, FUTEX_OWNER_DIED */

struct gy_alive {
    void *page;
    word *w; /* at its start */
    int event_fd;
    pthread_t thread;
    int has_thread;
    _Atomic int has_ended, is_over; /* is_over: nobody is to be told */
};

static void futex_wait(word *w, uint32_t seen) {
    syscall(SYS_futex, w, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void futex_wake(word *w) {
    syscall(SYS_futex, w, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Signals are for the threads that the program knows. 0, or an errno. */
static int start(pthread_t *t, void *(*fn)(void *), void *arg, const char *name) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!rc) pthread_setname_np(*t, name);
    return rc;
}

/* ---- the process ------------------------------------------------------------------------------------------------- */

typedef struct hold {
    word *w;
    sem_t begun;
} hold;

static void *hold_main(void *arg) {
    hold *h = arg;
    word *w = h->w;
    struct robust_list one = {0};
    struct robust_list_head held = {.list = {&one}, .futex_offset = (long)((intptr_t)w - (intptr_t)&one)};
    one.next = &held.list;
    int is_held = syscall(SYS_set_robust_list, &held, sizeof held) == 0;
    if (is_held) atomic_store(w, (uint32_t)syscall(SYS_gettid));
    if (is_held) futex_wake(w);
    sem_post(&h->begun); /* h is gone */
    if (!is_held) return NULL;
    for (;;) pause();
}

void gy_alive_hold(int fd) {
    pthread_t t;
    if (fcntl(fd, F_GET_SEALS) != SEALS) return;
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) return;
    hold h = {.w = page};
    sem_init(&h.begun, 0, 0);
    if (start(&t, hold_main, &h, "gyre-alive")) {
        munmap(page, PAGE);
        return;
    }
    while (sem_wait(&h.begun) < 0 && errno == EINTR) {
    }
    pthread_detach(t);
}

/* ---- its parent -------------------------------------------------------------------------------------------------- */

/* What the kernel wakes somebody for, it must find marked; until the word is held the one that takes it wakes. */
static int is_held(word *w) {
    uint32_t seen = atomic_load(w);
    if (seen & FUTEX_OWNER_DIED) return 0;
    if (seen && !(seen & FUTEX_WAITERS)) {
        if (!atomic_compare_exchange_strong(w, &seen, seen | FUTEX_WAITERS)) return 1;
        seen |= FUTEX_WAITERS;
    }
    futex_wait(w, seen);
    return 1;
}

static void *wait_main(void *arg) {
    gy_alive *a = arg;
    const uint64_t one = 1;
    while (is_held(a->w)) {
    }
    if (atomic_load(&a->is_over)) return NULL;
    atomic_store(&a->has_ended, 1);
    while (write(a->event_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    return NULL;
}

/* Sealed: a process that made it shorter would end this one. */
static int make_page(gy_alive *a) {
    int fd = memfd_create("gyre-alive", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, PAGE) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0) {
        void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page != MAP_FAILED) a->w = a->page = page;
    }
    if (a->w) return fd;
    close(fd);
    return -1;
}

gy_alive *gy_alive_create(int *fd_out) {
    gy_alive *a = gy_mem_alloc(GY_MEM_PD, 1, sizeof *a);
    if (!a) return NULL;
    int fd = make_page(a);
    a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd >= 0 && a->event_fd >= 0) a->has_thread = !start(&a->thread, wait_main, a, "gyre-alive");
    if (a->has_thread) {
        *fd_out = fd;
        return a;
    }
    if (fd >= 0) close(fd);
    gy_alive_destroy(a);
    return NULL;
}

/* The thread waits for the word to change; so it is changed. Whoever held it writes to a page of its own by now. */
void gy_alive_destroy(gy_alive *a) {
    if (!a) return;
    if (a->has_thread) {
        atomic_store(&a->is_over, 1);
        atomic_store(a->w, FUTEX_OWNER_DIED);
        futex_wake(a->w);
        pthread_join(a->thread, NULL);
    }
    if (a->page) munmap(a->page, PAGE);
    if (a->event_fd >= 0) close(a->event_fd);
    gy_mem_free(a);
}

int gy_alive_fd(const gy_alive *a) {
    return a->event_fd;
}

int gy_alive_has_ended(gy_alive *a) {
    uint64_t n;
    if (read(a->event_fd, &n, sizeof n) < 0) n = 0; /* looked at before */
    return atomic_load(&a->has_ended);
}
