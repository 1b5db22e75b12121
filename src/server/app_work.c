/* Lanes: a list that waits, a thread, a list that was done, under one lock that nobody holds for longer than a few
 * pointers take: the loop never waits for a job.
 */
#include "server/app_work.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct job_list {
    gy_app_job *first, **end;
} job_list;

struct gy_app_lane {
    gy_app_lane_opts o;
    pthread_t thread;
    _Atomic int64_t busy_ns;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t bell;
    job_list wait, done;
    gy_app_lane_stats stats;
    int is_closing;
};

static void list_init(job_list *l) {
    l->first = NULL;
    l->end = &l->first;
}

static void list_put(job_list *l, gy_app_job *j) {
    j->next = NULL;
    *l->end = j;
    l->end = &j->next;
}

static gy_app_job *list_get(job_list *l) {
    gy_app_job *j = l->first;
    if (!j) return NULL;
    l->first = j->next;
    if (!l->first) l->end = &l->first;
    return j;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* The next job, or NULL when the lane closes. */
static gy_app_job *next_job(gy_app_lane *l) {
    gy_app_job *j = NULL;
    pthread_mutex_lock(&l->lock);
    while (!l->is_closing && !(j = list_get(&l->wait))) pthread_cond_wait(&l->bell, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return j;
}

/* on_done without the lock: whom it wakes comes for it at once. */
static void give_back(gy_app_lane *l, gy_app_job *j) {
    pthread_mutex_lock(&l->lock);
    l->stats.n_job--;
    l->stats.n_bytes -= j->bytes;
    l->stats.n_done++;
    list_put(&l->done, j);
    pthread_mutex_unlock(&l->lock);
    l->o.on_done(l->o.user);
}

static void *lane_main(void *arg) {
    gy_app_lane *l = arg;
    /* Linux keeps niceness by thread. Where it does not, or not this one, the lane is as any other thread. */
    if (l->o.nice) (void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + l->o.nice);
    for (gy_app_job *j; (j = next_job(l));) {
        int is_last = j->is_last; /* then run ends it */
        int64_t from = gy_clock_ns();
        j->run(j, l->o.worker);
        atomic_fetch_add(&l->busy_ns, gy_clock_ns() - from);
        if (!is_last) give_back(l, j);
    }
    return NULL;
}

/* Signals belong to the program's own threads. */
static int start(gy_app_lane *l) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&l->thread, NULL, lane_main, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_setname_np(l->thread, l->o.name);
    return failed;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

gy_status gy_app_lane_open(const gy_app_lane_opts *o, gy_err *err, gy_app_lane **out) {
    gy_app_lane *l = gy_mem_alloc(GY_MEM_SERVER, 1, sizeof *l);
    if (!l) return gy_err_set(err, GY_E_NOMEM, "server: no memory");
    l->o = *o;
    list_init(&l->wait);
    list_init(&l->done);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->bell, NULL);
    if (start(l)) {
        pthread_cond_destroy(&l->bell);
        pthread_mutex_destroy(&l->lock);
        gy_mem_free(l);
        return gy_err_set(err, GY_E_NOMEM, "server: no thread for the work on requests");
    }
    *out = l;
    return GY_OK;
}

void gy_app_lane_close(gy_app_lane *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->is_closing = 1;
    pthread_cond_signal(&l->bell);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    for (gy_app_job *j; (j = list_get(&l->wait));)
        if (j->is_last) j->run(j, l->o.worker);
    pthread_cond_destroy(&l->bell);
    pthread_mutex_destroy(&l->lock);
    gy_mem_free(l);
}

/* ---- the owner's side -------------------------------------------------------------------------------------------- */

static int has_room(const gy_app_lane *l, const gy_app_job *j) {
    if (l->stats.n_job == 0 || j->is_last) return 1;
    return l->stats.n_job < l->o.max_jobs && j->bytes <= l->o.max_bytes &&
           l->stats.n_bytes <= l->o.max_bytes - j->bytes;
}

gy_status gy_app_lane_push(gy_app_lane *l, gy_app_job *j) {
    pthread_mutex_lock(&l->lock);
    int fits = has_room(l, j);
    if (!fits) l->stats.n_full++;
    if (fits) list_put(&l->wait, j);
    if (fits && !j->is_last) {
        l->stats.n_job++;
        l->stats.n_bytes += j->bytes;
    }
    pthread_cond_signal(&l->bell);
    pthread_mutex_unlock(&l->lock);
    return fits ? GY_OK : GY_AGAIN;
}

gy_app_job *gy_app_lane_take(gy_app_lane *l) {
    pthread_mutex_lock(&l->lock);
    gy_app_job *j = list_get(&l->done);
    pthread_mutex_unlock(&l->lock);
    return j;
}

void gy_app_lane_get_stats(gy_app_lane *l, gy_app_lane_stats *out) {
    pthread_mutex_lock(&l->lock);
    *out = l->stats;
    pthread_mutex_unlock(&l->lock);
    out->busy_ns = atomic_load(&l->busy_ns);
}
