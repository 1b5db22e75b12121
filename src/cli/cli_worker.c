/* Two threads around a gy_worker: this one steps the engine and talks to the coordinator, the other one owns the
 * transfer. It ends when it is told to (STOP: with the last request; SIGTERM: now) and when the control channel does:
 * then nobody is left to work for.
 */
#include "cli/cli_worker.h"

#include "cli/cli.h"
#include "cli/cli_engine.h"
#include "cli/cli_model.h"
#include "cli/cli_pd.h"
#include "model/loop.h"
#include "pd/chan.h"
#include "pd/fingerprint.h"
#include "pd/host.h"
#include "pd/worker.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

typedef struct process {
    const gy_args *a;
    gy_cli_model m;
    gy_grammar_cache *grammars;
    gy_grammar_vocab *vocab; /* NULL until the first grammar */
    gy_chan *chan;
    gy_worker *w;
    pthread_t thread;
    int has_thread;
    _Atomic int stop_xfer;
    int stop_when_empty; /* STOP came */
} process;

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t terminated;
static int wake_fd = -1; /* set before the handler is installed */

static void on_term(int signo) {
    const uint64_t one = 1;
    (void)signo;
    terminated = 1;
    if (write(wake_fd, &one, sizeof one) < 0) return; /* full: readable already */
}

/* What a terminal sends is for the program that started us. */
static gy_status catch_signals(gy_err *err) {
    static const int ignored[] = {SIGINT, SIGHUP, SIGQUIT, SIGTTOU, SIGTTIN, SIGTSTP};
    struct sigaction term = {.sa_handler = on_term, .sa_flags = SA_RESTART};
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0) return gy_err_set(err, GY_E_IO, "the system gives no event descriptor");
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    sigaction(SIGTERM, &term, NULL);
    return GY_OK;
}

/* ---- callbacks of the worker ------------------------------------------------------------------------------------- */

/* A message that cannot be queued shows as a channel that has ended. */
static void send_message(void *user, const gy_msg *m) {
    process *p = user;
    gy_chan_send(p->chan, m, NULL);
}

static gy_status compile(void *user, int32_t kind, const char *text, int32_t n, gy_err *err, gy_grammar **out,
                         const gy_grammar_vocab **vocab_out) {
    process *p = user;
    if (kind < 0 || kind > GY_GRAMMAR_EBNF || n < 0)
        return gy_err_set(err, GY_E_ARG, "grammar: found kind %d, expected 0 to %d", kind, GY_GRAMMAR_EBNF);
    if (!p->vocab) GY_TRY(gy_api_model_vocab(&p->m, err, &p->vocab));
    GY_TRY(gy_grammar_cache_compile(p->grammars, (gy_grammar_kind)kind, text, (size_t)n, err, out));
    *vocab_out = p->vocab;
    return GY_OK;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static gy_status engine_opts(const process *p, gy_err *err, gy_engine_opts *e) {
    const gy_args *a = p->a;
    GY_TRY(gy_cli_engine_opts(a, err, e));
    e->max_len = a->max_len ? a->max_len : p->m.d.max_pos;
    e->max_loops = a->req.max_loops;
    e->max_handoff = a->pd.max_handoff;
    if (a->pd.grammar_bytes.given) e->mask_bytes = (size_t)a->pd.grammar_bytes.v;
    return GY_OK;
}

static gy_status set_fingerprint(const process *p, const gy_engine_opts *e, gy_err *err, uint8_t out[32]) {
    int32_t depth = e->max_loops > p->m.d.n_loop ? e->max_loops : p->m.d.n_loop;
    gy_fingerprint_opts f = {.version = GY_VERSION,
                             .kernels = p->m.be->ops->name,
                             .act = (int32_t)p->m.act,
                             .layout = (int32_t)e->kv_layout,
                             .cyclic_k = e->cyclic_k,
                             .depth = depth};
    return gy_fingerprint(p->m.dir, &f, err, out);
}

static gy_status load(process *p, const gy_engine_opts *e, gy_err *err) {
    gy_ops_limits limits = gy_loop_limits(&p->m.d, e->sched.max_rows, e->max_len);
    gy_api_load_opts o = {.backend = p->a->backend < 0 ? "auto"
                                     : p->a->backend   ? "cpu"
                                                       : "ref",
                          .threads = p->a->threads,
                          .limits = &limits};
    GY_TRY(gy_api_model_load(&p->m, &o, err));
    if (gy_grammar_cache_create(e->mask_bytes, &p->grammars) < 0)
        return gy_err_set(err, GY_E_NOMEM, "no memory for grammars");
    return GY_OK;
}

static gy_status open_worker(process *p, gy_err *err) {
    const gy_args *a = p->a;
    gy_worker_opts o = {.xfer = {.kind = GY_XFER_UCX},
                        .role = a->pd.role + 1, /* in the order of the words: GY_PD_PREFILL, GY_PD_DECODE, both */
                        .user = p,
                        .send = send_message};
    if (!a->n_pos) return gy_err_set(err, GY_E_ARG, "gyre worker: found no MODEL");
    GY_TRY(gy_cli_model_open(&p->m, a->pos[0], a, o.role & GY_PD_DECODE, err));
    GY_TRY(engine_opts(p, err, &o.engine));
    GY_TRY(gy_cli_transfer_limits(a, err, &o.xfer.limits));
    GY_TRY(load(p, &o.engine, err));
    GY_TRY(set_fingerprint(p, &o.engine, err, o.fingerprint));
    if (getrandom(&o.epoch, sizeof o.epoch, 0) != (ssize_t)sizeof o.epoch)
        return gy_err_set(err, GY_E_IO, "the system gives no random numbers");
    o.xfer.epoch = o.epoch;
    o.model = p->m.model;
    if (p->m.tok) o.compile = compile;
    return gy_worker_open(&o, err, &p->w);
}

/* ---- the transfer half ------------------------------------------------------------------------------------------- */

static void *xfer_main(void *arg) {
    process *p = arg;
    while (!atomic_load(&p->stop_xfer)) /* looked at behind a turn too: it may have used up the wake that says so */
        if (!gy_worker_xfer_turn(p->w) && !atomic_load(&p->stop_xfer)) gy_worker_xfer_wait(p->w, -1);
    return NULL;
}

static gy_status start_xfer(process *p, gy_err *err) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&p->thread, NULL, xfer_main, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) return gy_err_set(err, GY_E_NOMEM, "worker: the system gives no thread (%s)", strerror(rc));
    pthread_setname_np(p->thread, "gyre-xfer");
    p->has_thread = 1;
    return GY_OK;
}

static void stop_xfer(process *p) {
    if (!p->has_thread) return;
    atomic_store(&p->stop_xfer, 1);
    gy_worker_xfer_wake(p->w);
    pthread_join(p->thread, NULL);
}

/* ---- the engine half --------------------------------------------------------------------------------------------- */

/* GY_AGAIN: nothing more is here; GY_DONE: the coordinator is gone. */
static gy_status take_messages(process *p, gy_err *err) {
    gy_msg m;
    gy_status st;
    while ((st = gy_chan_recv(p->chan, err, &m)) == GY_OK) {
        if (m.kind == GY_MSG_STOP)
            p->stop_when_empty = 1;
        else
            GY_TRY(gy_worker_message(p->w, &m, err));
    }
    return st == GY_E_PEER ? GY_DONE : st;
}

static void sleep_until_work(process *p) {
    struct pollfd f[] = {{.fd = gy_chan_fd(p->chan), .events = POLLIN},
                         {.fd = gy_worker_fd(p->w), .events = POLLIN},
                         {.fd = wake_fd, .events = POLLIN}};
    if (gy_chan_has_output(p->chan)) f[0].events |= POLLOUT;
    poll(f, sizeof f / sizeof *f, -1);
}

static gy_status serve(process *p, gy_err *err) {
    while (!terminated) {
        gy_status st = take_messages(p, err);
        if (st < 0 || st == GY_DONE) return st;
        st = gy_worker_turn(p->w, err);
        gy_status out = gy_chan_flush(p->chan, NULL);
        if (st < 0) return st;
        if (out < 0) return GY_DONE;
        if (p->stop_when_empty && gy_worker_is_empty(p->w) && out == GY_OK) return GY_OK;
        if (st != GY_OK) sleep_until_work(p);
    }
    return GY_OK;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static gy_status open_channel(process *p, gy_err *err) {
    if (gy_chan_create(GY_HOST_CONTROL_FD, GY_CHAN_OUT_MAX, err, &p->chan) == GY_OK) return GY_OK;
    return gy_err_set(err, GY_E_ARG,
                      "gyre worker: found no control channel on descriptor %d; workers are started by gyre run, gyre "
                      "serve and libgyre",
                      GY_HOST_CONTROL_FD);
}

/* The coordinator shows it; nothing of ours but a broken invariant is printed here. */
static void say_fatal(process *p, const gy_err *err) {
    gy_msg m = {.kind = GY_MSG_FATAL, .status = err->status, .text = err->msg, .n_text = (int32_t)strlen(err->msg)};
    gy_chan_send(p->chan, &m, NULL);
    gy_chan_flush(p->chan, NULL);
}

static int end(process *p, int rc) {
    stop_xfer(p);
    gy_worker_close(p->w);
    gy_grammar_cache_destroy(p->grammars);
    gy_grammar_vocab_destroy(p->vocab);
    gy_cli_model_close(&p->m);
    gy_chan_destroy(p->chan);
    if (wake_fd >= 0) close(wake_fd);
    return rc;
}

static int cmd_worker(const gy_args *a) {
    process p = {.a = a};
    gy_err err = {0};
    if (open_channel(&p, &err) < 0) return gy_cli_fail(&err);
    gy_status st = catch_signals(&err);
    if (st >= 0) st = open_worker(&p, &err);
    if (st >= 0) st = start_xfer(&p, &err);
    if (st >= 0) st = serve(&p, &err);
    if (st < 0) say_fatal(&p, &err);
    return end(&p, st < 0 ? GY_CLI_FAILED : GY_CLI_OK);
}

const gy_cmd gy_cmd_worker = {"worker",
                              "MODEL --role ROLE [options]",
                              "a process of --prefill and --decode; started by gyre",
                              "Its control channel is on descriptor 3.\n",
                              gy_worker_groups,
                              1,
                              cmd_worker};
