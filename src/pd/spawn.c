/* One thread, one order at a time. Between fork and exec only what may be called in a signal handler is called. */
#include "pd/spawn.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_KEPT = 5, MAX_ENV = N_KEPT + 3, HIGH_FD = 10 };

typedef struct order {
    const char *const *argv;
    int fd[2];             /* become 3 and 4; fd[1] may be -1 */
    int pid, pidfd, error; /* error: errno of what failed */
    const char *what;
} order;

struct gy_spawner {
    char *program;
    pthread_t thread;
    int has_thread, stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    order *todo, *done; /* at most one order exists */
    char *env[MAX_ENV]; /* own copies: the program may change its environment */
};

extern char **environ;

/* ---- in the child ------------------------------------------------------------------------------------------------ */

/* Until setpgid the child is of our process group, and a terminal's signal to that lies here, blocked: it was not for a
 * worker. SIG_IGN throws away what is pending; by SIG_DFL alone it would strike when the mask opens. */
static void reset_signals(void) {
    static const int ours[] = {SIGPIPE, SIGCHLD, SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGTTIN, SIGTTOU};
    sigset_t none;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        signal(ours[i], SIG_IGN);
        signal(ours[i], SIG_DFL);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* 0, or -1 with errno. All are moved out of the way first: any may lie on 0 to 4. */
static int set_descriptors(const int fd_of[2], int *report_io) {
    int fd = fcntl(fd_of[0], F_DUPFD_CLOEXEC, HIGH_FD), report = fcntl(*report_io, F_DUPFD_CLOEXEC, HIGH_FD);
    int more = fd_of[1] < 0 ? -1 : fcntl(fd_of[1], F_DUPFD_CLOEXEC, HIGH_FD);
    if (fd < 0 || report < 0 || (fd_of[1] >= 0 && more < 0)) return -1;
    *report_io = report;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) return -1;
    if (fcntl(STDERR_FILENO, F_GETFD) < 0 && dup2(null, STDERR_FILENO) < 0) return -1;
    if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0 || dup2(fd, 3) < 0) return -1;
    if (more >= 0 && dup2(more, 4) < 0) return -1;
    /* Ours are so anyway; the program's may not be. */
    syscall(SYS_close_range, more < 0 ? 4u : 5u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    return 0;
}

static _Noreturn void child(const gy_spawner *s, const order *o, pid_t parent, int report) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* it died before we said so */
    setpgid(0, 0);
    reset_signals();
    if (set_descriptors(o->fd, &report) == 0) execve(s->program, (char *const *)(uintptr_t)o->argv, s->env);
    int e = errno;
    while (write(report, &e, sizeof e) < 0 && errno == EINTR) {
    }
    _exit(127);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void failed(order *o, const char *what) {
    o->error = errno;
    o->what = what;
}

/* Whether the program runs is known when the pipe closes: by exec, or behind the number of an error. */
static void wait_for_exec(order *o, pid_t pid, int pipe_fd) {
    int e = 0;
    ssize_t n;
    while ((n = read(pipe_fd, &e, sizeof e)) < 0 && errno == EINTR) {
    }
    o->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (n == (ssize_t)sizeof e)
        errno = e;
    else if (o->pidfd >= 0) {
        o->pid = pid;
        return;
    }
    failed(o, n == (ssize_t)sizeof e ? "cannot be run" : "cannot be watched");
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    if (o->pidfd >= 0) close(o->pidfd);
    o->pidfd = -1;
}

static void carry_out(const gy_spawner *s, order *o) {
    int p[2];
    pid_t parent = getpid();
    if (pipe2(p, O_CLOEXEC) < 0) {
        failed(o, "no pipe");
        return;
    }
    pid_t pid = fork();
    if (pid == 0) child(s, o, parent, p[1]);
    close(p[1]);
    if (pid < 0)
        failed(o, "no process");
    else
        wait_for_exec(o, pid, p[0]);
    close(p[0]);
}

static void *thread_main(void *arg) {
    gy_spawner *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        order *o = s->todo;
        if (!o) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        carry_out(s, o);
        pthread_mutex_lock(&s->lock);
        s->todo = NULL;
        s->done = o;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int thread_start(gy_spawner *s) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&s->thread, NULL, thread_main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) return rc;
    pthread_setname_np(s->thread, "gyre-spawn");
    s->has_thread = 1;
    return 0;
}

/* ---- outside ----------------------------------------------------------------------------------------------------- */

static gy_status add_env(gy_spawner *s, size_t *n, const char *text) {
    s->env[*n] = gy_mem_strdup(GY_MEM_PD, text);
    return s->env[(*n)++] ? GY_OK : GY_E_NOMEM;
}

/* What the parent's environment says of UCX is nobody's wish: it is not passed on. Which GPUs there are, and how they
 * are numbered, is the same for all. */
static gy_status choose_env(gy_spawner *s) {
    static const char *const kept[N_KEPT] = {"PATH=", "HOME=", "LANG=", "LD_LIBRARY_PATH=", "CUDA_VISIBLE_DEVICES="};
    size_t n = 0;
    for (size_t i = 0; i < N_KEPT; i++)
        for (char **e = environ; e && *e; e++)
            if (!strncmp(*e, kept[i], strlen(kept[i]))) {
                GY_TRY(add_env(s, &n, *e));
                break;
            }
    GY_TRY(add_env(s, &n, "UCX_HANDLE_ERRORS=none"));
    return add_env(s, &n, "UCX_LOG_LEVEL=error");
}

gy_status gy_spawner_create(const char *program, gy_err *err, gy_spawner **out) {
    gy_spawner *s = gy_mem_alloc(GY_MEM_PD, 1, sizeof *s);
    if (!s) return gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->program = gy_mem_strdup(GY_MEM_PD, program);
    gy_status st = GY_OK;
    if (!s->program || choose_env(s) < 0) st = gy_err_set(err, GY_E_NOMEM, "no memory for workers");
    int rc = st == GY_OK ? thread_start(s) : 0;
    if (rc) st = gy_err_set(err, GY_E_NOMEM, "workers: the system gives no thread (%s)", strerror(rc));
    if (st < 0)
        gy_spawner_destroy(s);
    else
        *out = s;
    return st;
}

void gy_spawner_destroy(gy_spawner *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    for (size_t i = 0; i < MAX_ENV; i++) gy_mem_free(s->env[i]);
    gy_mem_free(s->program);
    gy_mem_free(s);
}

gy_status gy_spawner_start(gy_spawner *s, const char *const *argv, const int fd[2], gy_err *err, int *pid_out,
                           int *pidfd_out) {
    order o = {.argv = argv, .fd = {fd[0], fd[1]}, .pidfd = -1};
    pthread_mutex_lock(&s->lock);
    s->todo = &o;
    s->done = NULL;
    pthread_cond_broadcast(&s->changed);
    while (s->done != &o) pthread_cond_wait(&s->changed, &s->lock);
    s->done = NULL;
    pthread_mutex_unlock(&s->lock);
    if (o.pidfd < 0) return gy_err_set(err, GY_E_IO, "worker: %.300s: %s: %s", s->program, o.what, strerror(o.error));
    *pid_out = o.pid;
    *pidfd_out = o.pidfd;
    return GY_OK;
}

/* ---- its end ----------------------------------------------------------------------------------------------------- */

/* ECHILD: the program around us takes the status of every child, or ignores SIGCHLD; the pidfd still says when. */
int gy_child_reap(int pidfd, gy_child_end *out) {
    siginfo_t i = {0};
    *out = (gy_child_end){0};
    int rc;
    while ((rc = waitid((idtype_t)P_PIDFD, (id_t)pidfd, &i, WEXITED | WNOHANG)) < 0 && errno == EINTR) {
    }
    if (rc == 0 && !i.si_pid) return 0;
    if (rc < 0) return 1;
    out->known = 1;
    if (i.si_code == CLD_EXITED)
        out->code = i.si_status;
    else
        out->signal = i.si_status;
    return 1;
}

void gy_child_signal(int pidfd, int signo) {
    syscall(SYS_pidfd_send_signal, pidfd, signo, NULL, 0);
}
