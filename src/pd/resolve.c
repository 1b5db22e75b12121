/* One thread, a ring of questions, a ring of answers. Both have room for one of each asker. Whoever is the last to let
 * go frees it: the thread may still wait for a name server when nobody wants the answer any more.
 */
#include "pd/resolve.h"

#include "base/mem.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct question {
    int32_t who;
    uint32_t serial;
    char host[256], port[8];
} question;

struct gy_resolver {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_ref, stop; /* the owner, the thread */
    int fd;
    int32_t q_at, n_q, a_at, n_a;
    question q[GY_RESOLVE_QUEUE];
    gy_resolved a[GY_RESOLVE_QUEUE];
};

static int take_addresses(const struct addrinfo *list, gy_resolved *out) {
    for (; list && out->n < GY_RESOLVE_ADDRESSES; list = list->ai_next) {
        gy_address *a = &out->addr[out->n++];
        memcpy(&a->a, list->ai_addr, list->ai_addrlen);
        a->len = list->ai_addrlen;
    }
    return out->n > 0;
}

static void look_up(const char *host, const char *port, int flags, gy_resolved *out) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV}, *list = NULL;
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc || !take_addresses(list, out))
        (void)snprintf(out->why, sizeof out->why, "%.100s", rc ? gai_strerror(rc) : "no address");
    if (list) freeaddrinfo(list);
}

int gy_resolve_numeric(const char *host, const char *port, gy_address *out) {
    gy_resolved a = {0};
    look_up(host, port, AI_NUMERICHOST, &a);
    if (a.n) *out = a.addr[0];
    return a.n > 0;
}

static void let_go(gy_resolver *r) {
    pthread_mutex_lock(&r->lock);
    int is_last = !--r->n_ref;
    pthread_mutex_unlock(&r->lock);
    if (!is_last) return;
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    if (r->fd >= 0) close(r->fd);
    gy_mem_free(r);
}

static void answer(gy_resolver *r, const gy_resolved *a) {
    const uint64_t one = 1;
    r->a[(r->a_at + r->n_a++) % GY_RESOLVE_QUEUE] = *a;
    if (write(r->fd, &one, sizeof one) < 0) return; /* full: readable already */
}

static void *thread_main(void *arg) {
    gy_resolver *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (!r->n_q) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        question q = r->q[r->q_at];
        r->q_at = (r->q_at + 1) % GY_RESOLVE_QUEUE;
        r->n_q--;
        pthread_mutex_unlock(&r->lock);
        gy_resolved a = {.who = q.who, .serial = q.serial};
        look_up(q.host, q.port, AI_ADDRCONFIG, &a);
        pthread_mutex_lock(&r->lock);
        if (!r->stop) answer(r, &a);
    }
    pthread_mutex_unlock(&r->lock);
    let_go(r);
    return NULL;
}

static int start(gy_resolver *r) {
    pthread_t t;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r->n_ref = 2;
    int rc = pthread_create(&t, NULL, thread_main, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        r->n_ref = 1;
        return -1;
    }
    pthread_setname_np(t, "gyre-names");
    pthread_detach(t);
    return 0;
}

gy_status gy_resolver_create(gy_err *err, gy_resolver **out) {
    gy_resolver *r = gy_mem_alloc(GY_MEM_PD, 1, sizeof *r);
    if (!r) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->n_ref = 1;
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->fd < 0 || start(r) < 0) {
        let_go(r);
        return gy_err_set(err, GY_E_NOMEM, "workers: the system gives no descriptor or no thread");
    }
    *out = r;
    return GY_OK;
}

void gy_resolver_destroy(gy_resolver *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stop = 1;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    let_go(r);
}

int gy_resolver_fd(const gy_resolver *r) {
    return r->fd;
}

void gy_resolver_ask(gy_resolver *r, int32_t who, uint32_t serial, const char *host, const char *port) {
    pthread_mutex_lock(&r->lock);
    GY_CHECK(r->n_q < GY_RESOLVE_QUEUE);
    question *q = &r->q[(r->q_at + r->n_q++) % GY_RESOLVE_QUEUE];
    *q = (question){.who = who, .serial = serial};
    (void)snprintf(q->host, sizeof q->host, "%s", host);
    (void)snprintf(q->port, sizeof q->port, "%s", port);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int gy_resolver_next(gy_resolver *r, gy_resolved *out) {
    uint64_t n;
    pthread_mutex_lock(&r->lock);
    int has = r->n_a > 0;
    if (has) {
        *out = r->a[r->a_at];
        r->a_at = (r->a_at + 1) % GY_RESOLVE_QUEUE;
        r->n_a--;
    } else if (read(r->fd, &n, sizeof n) < 0) {
        has = 0; /* nothing to be cleared */
    }
    pthread_mutex_unlock(&r->lock);
    return has;
}
