/* A run over processes. A child of this process is an engine with its share of the requests, or a coordinator with
 * workers (its own children) and all requests:
 *
 *   child   opens and warms up --> says that it is ready (or why not)   parent waits for all of them
 *   child   runs               <-- a byte: go                           at once to all
 *   child   sends its records  --> fills them into the run
 *
 * A child ends with its parent, and with the socket.
 */
#include "cli/cli_bench_layout.h"

#include "api/api_host.h"
#include "base/cpu.h"
#include "cli/cli_engine.h"
#include "cli/cli_pd.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 63 };

/* ---- names ---- */

static gy_status bad_layout(const char *word, size_t len, gy_err *err) {
    return gy_err_set(err, GY_E_ARG,
                      "--layouts: found '%.*s', expected engine, 2r (replicas), or workers: 1p1d (prefill, decode), 2h "
                      "(both), 1p1d1h, 1p1d@64M/256M (chunk, in flight), 1p1d@peer",
                      (int)(len < 40 ? len : 40), word);
}

/* A count and a letter; 0 at the end or when it is none. */
static size_t read_part(const char *s, size_t len, int32_t *n_out, char *letter_out) {
    size_t at = 0;
    int32_t n = 0;
    while (at < len && s[at] >= '0' && s[at] <= '9' && n <= MOST) n = n * 10 + (s[at++] - '0');
    if (!at || at == len || n < 1 || n > MOST) return 0;
    *n_out = n;
    *letter_out = s[at];
    return at + 1;
}

static gy_status read_size(const char *s, size_t len, uint64_t *out) {
    char *end;
    errno = 0;
    if (!len || s[0] < '0' || s[0] > '9') return GY_E_ARG;
    *out = strtoull(s, &end, 10);
    const char *unit = end == s + len ? "" : strchr("KMG", *end);
    if (errno || !*out || !unit || (*unit && end + 1 != s + len)) return GY_E_ARG;
    for (const char *u = "KMG"; *unit; u++) {
        *out *= 1024;
        if (*u == *unit) break;
    }
    return GY_OK;
}

/* Behind the @. */
static gy_status read_transfer(const char *s, size_t len, gy_bench_layout *l) {
    const char *slash = memchr(s, '/', len);
    if (len == 4 && !memcmp(s, "peer", 4)) {
        l->peer_errors = 1;
        return GY_OK;
    }
    if (!slash) return GY_E_ARG;
    GY_TRY(read_size(s, (size_t)(slash - s), &l->chunk_bytes));
    return read_size(slash + 1, (size_t)(s + len - slash - 1), &l->inflight_bytes);
}

static gy_status parse_layout(const char *s, size_t len, gy_err *err, gy_bench_layout *out) {
    gy_bench_layout l = {.replicas = 0};
    if (!len || len >= sizeof l.name) return bad_layout(s, len, err);
    memcpy(l.name, s, len);
    const char *at_sign = memchr(s, '@', len);
    if (at_sign && read_transfer(at_sign + 1, (size_t)(s + len - at_sign - 1), &l) < 0) return bad_layout(s, len, err);
    if (at_sign) len = (size_t)(at_sign - s);
    if (!strcmp(l.name, "engine")) {
        l.replicas = 1;
        *out = l;
        return GY_OK;
    }
    for (size_t at = 0, k; at < len; at += k) {
        int32_t n;
        char letter;
        k = read_part(s + at, len - at, &n, &letter);
        int32_t *count = !k              ? NULL
                         : letter == 'r' ? &l.replicas
                         : letter == 'p' ? &l.prefill
                         : letter == 'd' ? &l.decode
                         : letter == 'h' ? &l.hybrid
                                         : NULL;
        if (!count || *count) return bad_layout(s, len, err);
        *count = n;
    }
    const int both = l.hybrid || (l.prefill && l.decode), any = l.prefill || l.decode || l.hybrid;
    if (l.replicas ? any || at_sign : !both) return bad_layout(s, len, err);
    if (gy_bench_layout_processes(&l) > MOST) return bad_layout(s, len, err);
    *out = l;
    return GY_OK;
}

static gy_status parse_list(const char *text, gy_err *err, gy_bench_layout *out, size_t *n_out) {
    size_t n = 0;
    for (const char *at = text;; at++) {
        const size_t len = strcspn(at, ",");
        if (n == GY_BENCH_MAX_LAYOUT)
            return gy_err_set(err, GY_E_ARG, "--layouts: found more than %d", GY_BENCH_MAX_LAYOUT);
        GY_TRY(parse_layout(at, len, err, &out[n]));
        n++;
        at += len;
        if (!*at) break;
    }
    *n_out = n;
    return GY_OK;
}

static void name_of(gy_bench_layout *l) {
    gy_str s = {0};
    if (l->prefill) gy_str_printf(&s, "%dp", l->prefill);
    if (l->decode) gy_str_printf(&s, "%dd", l->decode);
    if (l->hybrid) gy_str_printf(&s, "%dh", l->hybrid);
    snprintf(l->name, sizeof l->name, "%.*s", (int)s.len, gy_str_z(&s));
    gy_str_free(&s);
}

gy_status gy_bench_layouts_of(const gy_args *a, int32_t cores, gy_err *err, gy_bench_layout out[GY_BENCH_MAX_LAYOUT],
                              size_t *n_out) {
    *n_out = 0;
    if (a->bench.layouts && gy_cli_wants_workers(a))
        return gy_err_set(err, GY_E_ARG, "--layouts: found --prefill, --decode or --hybrid too, expected one of them");
    if (a->bench.layouts) {
        GY_TRY(parse_list(a->bench.layouts, err, out, n_out));
    } else {
        GY_TRY(gy_cli_check_workers(a, err));
        if (!gy_cli_wants_workers(a)) return GY_OK;
        out[0] = (gy_bench_layout){.prefill = a->pd.prefill, .decode = a->pd.decode, .hybrid = a->pd.hybrid};
        name_of(&out[0]);
        *n_out = 1;
    }
    for (size_t i = 0; i < *n_out; i++) {
        const int32_t share = cores / gy_bench_layout_processes(&out[i]);
        out[i].n_thread = a->threads ? a->threads : share < 1 ? 1 : share;
    }
    return GY_OK;
}

/* ---- a child ---- */

typedef struct word { /* of a child: ready, or why not; done, or why not */
    gy_status status;
    char why[1024];
} word;

typedef struct child {
    pid_t pid;
    int fd;
} child;

/* What runs requests in a child: one of the two. */
typedef struct target {
    gy_args a; /* with this layout's threads */
    char device[24];
    gyre_options lib;
    gy_engine *engine;
    gy_api_host *host;
} target;

/* The k-th of "cuda:0,cuda:1", from the first again behind the last; "cuda": the GPU of its own number. *n_out: how
 * many there are, at most n. */
static void choose_device(target *t, int32_t k, int32_t n, int32_t *n_out) {
    const char *list = t->a.device, *at = list;
    int32_t listed = 1;
    for (const char *c = list; *c; c++) listed += *c == ',';
    for (int32_t i = 0; i < k % listed; i++) at = strchr(at, ',') + 1;
    snprintf(t->device, sizeof t->device, "%.*s", (int)strcspn(at, ","), at);
    if (!strcmp(list, "cuda")) snprintf(t->device, sizeof t->device, "cuda:%d", k);
    *n_out = !strcmp(list, "cpu") ? 1 : !strcmp(list, "cuda") || listed > n ? n : listed;
    t->a.device = t->device;
}

static gy_status open_engine(const gy_bench_site *s, const gy_bench_layout *l, int32_t k, target *t, gy_err *err) {
    gy_engine_opts o = *s->o;
    int32_t n_device;
    choose_device(t, k, l->replicas, &n_device);
    int32_t sharing = (l->replicas + n_device - 1) / n_device; /* the memory that all of them find free */
    if (!o.kv_blocks && !o.kv_bytes) o.kv_fraction /= (double)sharing;
    GY_TRY(gy_cli_model_load(s->m, &t->a, s->limits, &o, err));
    return gy_engine_open(s->m->model, &o, err, &t->engine);
}

static gy_status open_workers(const gy_bench_site *s, const gy_bench_layout *l, target *t, gy_err *err) {
    t->a.pd.prefill = l->prefill;
    t->a.pd.decode = l->decode;
    t->a.pd.hybrid = l->hybrid;
    if (l->chunk_bytes) t->a.pd.chunk_bytes = (gy_opt_u64){.v = l->chunk_bytes, .given = 1};
    if (l->inflight_bytes) t->a.pd.inflight_bytes = (gy_opt_u64){.v = l->inflight_bytes, .given = 1};
    if (l->peer_errors) t->a.pd.errors = 1;
    GY_TRY(gy_cli_gyre_options(&t->a, err, &t->lib));
    return gy_api_host_open(s->m, s->o, &t->lib, NULL, NULL, err, &t->host);
}

static gy_status go(gy_bench_run *r, const target *t, gy_err *err) {
    return t->engine ? gy_bench_run_go(r, t->engine, err) : gy_bench_run_go_workers(r, t->host, err);
}

static gy_status warm_up(const gy_bench_site *s, const target *t, gy_err *err) {
    gy_bench_run *r = NULL;
    if (!s->warm.load) return GY_OK;
    gy_status st = gy_bench_run_create(&s->warm, err, &r);
    if (st == GY_OK) st = go(r, t, err);
    gy_bench_run_destroy(r);
    return st;
}

static void say(int fd, gy_status st, const gy_err *err) {
    word w = {.status = st};
    if (st < 0) memcpy(w.why, err->msg, sizeof w.why);
    if (gy_bench_write_all(fd, &w, sizeof w)) _exit(1);
}

static _Noreturn void run_child(const gy_bench_site *s, const gy_bench_layout *l, gy_bench_run *r, int32_t k, int fd) {
    target t = {.a = *s->a};
    gy_err err = {0};
    char byte;
    t.a.threads = l->n_thread;
    gy_status st = l->replicas ? open_engine(s, l, k, &t, &err) : open_workers(s, l, &t, &err);
    if (st >= 0) st = warm_up(s, &t, &err);
    say(fd, st, &err);
    if (st >= 0 && !gy_bench_read_all(fd, &byte, 1)) {
        st = go(r, &t, &err);
        say(fd, st, &err);
        if (st >= 0 && gy_bench_run_send(r, fd)) _exit(1);
    }
    gy_api_host_close(t.host); /* workers end before their parent does */
    _exit(st < 0);
}

/* ---- the parent ---- */

static gy_status start_child(const gy_bench_site *s, const gy_bench_layout *l, gy_bench_run *r, int32_t k,
                             const child *before, gy_err *err, child *out) {
    int fd[2];
    const pid_t self = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return gy_err_set(err, GY_E_IO, "no socket: %s", strerrordesc_np(errno));
    const pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != self) _exit(1);
        close(fd[0]);
        for (int32_t i = 0; i < k; i++) close(before[i].fd);
        gy_bench_run_set_share(r, k, l->replicas ? l->replicas : 1);
        run_child(s, l, r, k, fd[1]);
    }
    close(fd[1]);
    if (pid < 0) {
        close(fd[0]);
        return gy_err_set(err, GY_E_IO, "no process: %s", strerrordesc_np(errno));
    }
    *out = (child){pid, fd[0]};
    return GY_OK;
}

static gy_status hear(const child *c, gy_err *err) {
    word w;
    if (gy_bench_read_all(c->fd, &w, sizeof w)) return gy_err_set(err, GY_E_PEER, "a process of this run is gone");
    return w.status < 0 ? gy_err_set(err, w.status, "%s", w.why) : GY_OK;
}

static gy_status run_all(const child *c, int32_t n, gy_bench_run *r, gy_err *err) {
    for (int32_t i = 0; i < n; i++) GY_TRY(hear(&c[i], err));
    for (int32_t i = 0; i < n; i++)
        if (gy_bench_write_all(c[i].fd, "g", 1)) return gy_err_set(err, GY_E_PEER, "a process of this run is gone");
    for (int32_t i = 0; i < n; i++) {
        GY_TRY(hear(&c[i], err));
        if (gy_bench_run_take(r, c[i].fd)) return gy_err_set(err, GY_E_PEER, "a process of this run is gone");
    }
    return GY_OK;
}

static void end_child(const child *c) {
    close(c->fd);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

gy_status gy_bench_layout_run(const gy_bench_site *s, const gy_bench_layout *l, gy_err *err, gy_bench_run **out) {
    child c[MOST];
    gy_bench_run *r;
    int32_t n = 0;
    const int32_t n_child = l->replicas ? l->replicas : 1;
    GY_TRY(gy_bench_run_create(&s->job, err, &r));
    fflush(NULL);
    gy_status st = GY_OK;
    for (; n < n_child && st == GY_OK; n += st == GY_OK) st = start_child(s, l, r, n, c, err, &c[n]);
    if (st == GY_OK) st = run_all(c, n, r, err);
    for (int32_t i = 0; i < n; i++) end_child(&c[i]);
    if (st == GY_OK) {
        *out = r;
        return GY_OK;
    }
    gy_bench_run_destroy(r);
    return gy_err_prefix(err, "layout %s", l->name);
}
