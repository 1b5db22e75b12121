/* Two threads around a gy_worker: this one steps the engine and talks to the coordinator, the other one owns the
 * transfer. It ends when it is told to (STOP: with the last request; SIGTERM: now) and when the control channel does:
 * then nobody is left to work for.
 *
 * One that listens (the child of cli_worker_listen.c) loads the model first, then lets one coordinator in and is of use
 * to it alone. It also ends when that one says nothing for --peer-timeout. The first SIGTERM asks the coordinator to
 * let it go (LEAVING), the second one ends it.
 */
#include "cli/cli_worker.h"

#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_engine.h"
#include "cli/cli_model.h"
#include "cli/cli_pd.h"
#include "cli/cli_worker_door.h"
#include "cli/cli_worker_listen.h"
#include "model/loop.h"
#include "pd/alive.h"
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

    /* one that listens */
    gy_door *door;  /* NULL: it does not */
    gy_msg ready;   /* READY, until there is somebody to hear it; its blob is owned */
    int is_leaving; /* LEAVING was said */
    int64_t heard_ns, peer_ns, door_ns;
} process;

enum { DOOR_NS = 50000000, EXIT_S = 5 };

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t n_term;
static int wake_fd = -1; /* set before the handler is installed */

static void on_term(int signo) {
    const uint64_t one = 1;
    (void)signo;
    n_term = n_term + 1;
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

static void keep_ready(process *p, const gy_msg *m) {
    void *blob = gy_mem_alloc(GY_MEM_PD, (size_t)m->n_blob + 1, 1);
    if (!blob) return; /* shows as a worker that never gets ready */
    memcpy(blob, m->blob, (size_t)m->n_blob);
    p->ready = *m;
    p->ready.blob = blob;
}

/* A message that cannot be queued shows as a channel that has ended. Before there is one only READY is said. */
static void send_message(void *user, const gy_msg *m) {
    process *p = user;
    if (p->chan)
        gy_chan_send(p->chan, m, NULL);
    else if (m->kind == GY_MSG_READY)
        keep_ready(p, m);
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
                             .depth = depth,
                             .form = (int32_t)p->m.form,
                             .quant_head = p->m.quant_head,
                             .kv_dtype = (int32_t)gy_kv_type_dtype(e->kv_type, p->m.act)};
    return gy_fingerprint(p->m.dir, &f, err, out);
}

static gy_status load(process *p, const gy_engine_opts *e, gy_err *err) {
    gy_ops_limits limits = gy_loop_limits(&p->m.d, e->sched.max_rows, e->max_len);
    gy_api_load_opts o = {.backend = gy_cli_backend(p->a), .threads = p->a->threads, .limits = &limits, .engine = e};
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
    o.xfer.peer_errors = a->pd.errors;
    if (a->pd.listen) {
        o.xfer.across_hosts = 1;
        o.xfer.devices = a->pd.device;
    }
    if (!a->n_pos) return gy_err_set(err, GY_E_ARG, "gyre worker: found no MODEL");
    GY_TRY(gy_cli_model_open(&p->m, a->pos[0], a, o.role & GY_PD_DECODE, err));
    GY_TRY(engine_opts(p, err, &o.engine));
    GY_TRY(gy_cli_transfer_limits(a, err, &o.xfer.limits));
    GY_TRY(load(p, &o.engine, err));
    GY_TRY(set_fingerprint(p, &o.engine, err, o.fingerprint));
    if (getrandom(&o.epoch, sizeof o.epoch, 0) != (ssize_t)sizeof o.epoch)
        return gy_err_set(err, GY_E_IO, "the system gives no random numbers");
    o.xfer.epoch = o.epoch;
    o.xfer.device = gy_backend_get_device(p->m.be);
    if (o.xfer.device && o.xfer.device->kind == GY_DEVICE_CUDA) o.xfer.least_gbs = gy_xfer_least_gbs(a->pd.min_share);
    o.model = p->m.model;
    if (p->m.tok) o.compile = compile;
    return gy_worker_open(&o, err, &p->w);
}

/* ---- the transfer half ------------------------------------------------------------------------------------------- */

static void *xfer_main(void *arg) {
    process *p = arg;
    gy_err err = {0};
    if (gy_worker_xfer_begin(p->w, &err) < 0) {
        gy_log(GY_LOG_ERROR, "transfer", "this worker ends: its thread cannot use the device", "reason=\"%s\"",
               err.msg);
        _exit(GY_CLI_FAILED);
    }
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
        p->heard_ns = gy_clock_ns();
        if (m.kind == GY_MSG_STOP)
            p->stop_when_empty = 1;
        else
            GY_TRY(gy_worker_message(p->w, &m, err));
    }
    return st == GY_E_PEER ? GY_DONE : st;
}

static int ms_until(int64_t at_ns) {
    int64_t left_ns = at_ns - gy_clock_ns();
    if (at_ns == INT64_MAX) return -1;
    return left_ns <= 0 ? 0 : (int)(left_ns / 1000000) + 1;
}

static void sleep_until_work(process *p) {
    enum { OWN = 3 };
    struct pollfd f[OWN + GY_DOOR_POLLS] = {{.fd = gy_chan_fd(p->chan), .events = POLLIN},
                                            {.fd = gy_worker_fd(p->w), .events = POLLIN},
                                            {.fd = wake_fd, .events = POLLIN}};
    if (gy_chan_has_output(p->chan)) f[0].events |= POLLOUT;
    nfds_t n = OWN;
    int64_t until_ns = INT64_MAX;
    if (p->door) {
        n += (nfds_t)gy_door_polls(p->door, f + OWN);
        until_ns = gy_door_next_ns(p->door);
        if (p->heard_ns + p->peer_ns < until_ns) until_ns = p->heard_ns + p->peer_ns;
    }
    poll(f, n, ms_until(until_ns));
    p->door_ns = 0;
}

/* Others are told that they come too late. Seldom while there is work: it costs a few calls of the system. */
static void look_at_door(process *p) {
    int64_t now_ns = gy_clock_ns();
    if (now_ns < p->door_ns) return;
    p->door_ns = now_ns + DOOR_NS;
    gy_door_turn(p->door, now_ns, 0);
}

static void leave(process *p) {
    const gy_msg m = {.kind = GY_MSG_LEAVING};
    if (p->is_leaving || !n_term) return;
    uint64_t rings;
    if (read(wake_fd, &rings, sizeof rings) < 0) rings = 0; /* rung once more meanwhile, or not at all */
    p->is_leaving = 1;
    gy_chan_send(p->chan, &m, NULL);
}

/* Behind take_messages: what came during a long step was heard. */
static int is_forsaken(const process *p) {
    if (!p->door || gy_clock_ns() - p->heard_ns < p->peer_ns) return 0;
    gy_log(GY_LOG_WARN, "pd", "the coordinator says nothing any more: beginning anew", "seconds=%.1f",
           (double)p->peer_ns * 1e-9);
    return 1;
}

static gy_status serve(process *p, gy_err *err) {
    while (n_term < (p->door ? 2 : 1)) {
        gy_status st = take_messages(p, err);
        if (st < 0 || st == GY_DONE) return st;
        if (is_forsaken(p)) return GY_DONE;
        if (p->door) look_at_door(p);
        if (p->door) leave(p);
        st = gy_worker_turn(p->w, err);
        gy_status out = gy_chan_flush(p->chan, NULL);
        if (st < 0) return st;
        if (out < 0) return GY_DONE;
        if (p->stop_when_empty && gy_worker_is_empty(p->w) && out == GY_OK) return GY_OK;
        if (st != GY_OK) sleep_until_work(p);
    }
    return GY_OK;
}

/* Who comes first and knows the secret. GY_DONE: nobody is wanted any more. */
static gy_status meet(process *p, gy_err *err) {
    struct pollfd f[1 + GY_DOOR_POLLS] = {{.fd = wake_fd, .events = POLLIN}};
    if (!p->ready.kind) return gy_err_set(err, GY_E_NOMEM, "no memory for a worker's keys");
    gy_log(GY_LOG_INFO, "pd", "waiting for a coordinator", NULL);
    while (!n_term && !p->chan) {
        int n = gy_door_polls(p->door, f + 1);
        poll(f, (nfds_t)n + 1, ms_until(gy_door_next_ns(p->door)));
        p->chan = gy_door_turn(p->door, gy_clock_ns(), 1);
    }
    if (!p->chan) return GY_DONE;
    p->heard_ns = gy_clock_ns();
    return gy_chan_send(p->chan, &p->ready, err);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static gy_status open_channel(process *p, gy_err *err) {
    if (gy_chan_create(GY_HOST_CONTROL_FD, GY_CHAN_OUT_MAX, err, &p->chan) == GY_OK) return GY_OK;
    return gy_err_set(err, GY_E_ARG,
                      "gyre worker: found no control channel on descriptor %d; workers are started by gyre run, gyre "
                      "serve and libgyre, or by hand with --listen for other hosts",
                      GY_HOST_CONTROL_FD);
}

/* The coordinator shows it; nothing of ours but a broken invariant is printed here. */
static void say_fatal(process *p, const gy_err *err) {
    gy_msg m = {.kind = GY_MSG_FATAL, .status = err->status, .text = err->msg, .n_text = (int32_t)strlen(err->msg)};
    gy_chan_send(p->chan, &m, NULL);
    gy_chan_flush(p->chan, NULL);
}

static void on_late(int signo) {
    (void)signo;
    _exit(GY_CLI_OK);
}

/* The coordinator need not wait for the rest: nobody is listening any more when it hears of the end. Peers may be
 * unreachable: it does not take long until the transfer has let go of them. */
static void say_goodbye(process *p) {
    struct sigaction late = {.sa_handler = on_late};
    gy_door_close(p->door);
    gy_chan_destroy(p->chan);
    p->door = NULL;
    p->chan = NULL;
    sigaction(SIGALRM, &late, NULL);
    alarm(EXIT_S);
}

static int end(process *p, int rc) {
    if (p->door) say_goodbye(p);
    stop_xfer(p);
    gy_worker_close(p->w);
    gy_grammar_cache_destroy(p->grammars);
    gy_grammar_vocab_destroy(p->vocab);
    gy_cli_model_close(&p->m);
    gy_chan_destroy(p->chan);
    gy_door_close(p->door);
    gy_mem_free((void *)(uintptr_t)p->ready.blob);
    if (wake_fd >= 0) close(wake_fd);
    return rc;
}

/* What goes wrong here is said on stderr: nobody else may be there to hear it. */
static int serve_hosts(const gy_args *a) {
    process p = {.a = a, .peer_ns = (int64_t)(a->pd.peer_timeout * 1e9)};
    gy_err err = {0};
    gy_secret secret;
    gy_status st = gy_secret_read(a->pd.secret_file, &err, &secret);
    if (st >= 0) st = open_worker(&p, &err); /* SIGTERM ends it while it loads */
    if (st >= 0) st = catch_signals(&err);
    if (st >= 0) st = start_xfer(&p, &err);
    if (st >= 0) st = gy_door_open(GY_HOST_CONTROL_FD, &secret, (int32_t)(a->pd.peer_timeout * 1000), &err, &p.door);
    if (st >= 0) st = meet(&p, &err);
    if (st == GY_OK) st = serve(&p, &err);
    if (st < 0 && p.chan) say_fatal(&p, &err);
    int rc = st < 0 ? gy_cli_fail(&err) : GY_CLI_OK;
    return end(&p, st < 0 && p.door ? GY_WORKER_BROKEN : rc);
}

static int cmd_worker(const gy_args *a) {
    process p = {.a = a};
    if (a->pd.on_listener) return serve_hosts(a);
    if (gy_worker_listens(a)) return gy_worker_listen(a);
    gy_err err = {0};
    gy_alive_hold(GY_HOST_ALIVE_FD);
    if (open_channel(&p, &err) < 0) return gy_cli_fail(&err);
    gy_status st = catch_signals(&err);
    if (st >= 0) st = open_worker(&p, &err);
    if (st >= 0) st = start_xfer(&p, &err);
    if (st >= 0) st = serve(&p, &err);
    if (st < 0) say_fatal(&p, &err);
    return end(&p, st < 0 ? GY_CLI_FAILED : GY_CLI_OK);
}

const gy_cmd gy_cmd_worker = {
    "worker",
    "MODEL --role ROLE --listen HOST:PORT --secret-file FILE --transfer-device NAME [options]",
    "computes prompts, or decodes, for gyre run and serve",
    "With --listen for those of any host, which name it in --peers FILE or find it through --etcd. Each\n"
    "connection is a life of its own: the worker begins anew behind it. SIGTERM: what was begun is\n"
    "ended. Without --listen it is started by gyre itself, for --prefill and --decode.\n",
    gy_worker_groups,
    1,
    cmd_worker};
