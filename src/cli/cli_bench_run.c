/* The driver of a benchmark: see cli_bench_run.h. Open workloads (poisson) measure from the planned arrival and not
 * from the moment at which this loop got round to sending: a step that takes long must not hide the wait that it
 * causes.
 */
#include "cli/cli_bench_run.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/vec.h"
#include "cli/cli_bench_wait.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PROGRESS_EVERY_NS = 200000000 };

typedef struct run_req { /* what the callbacks get */
    gy_bench_run *run;
    int32_t index;
} run_req;

struct gy_bench_run {
    gy_bench_job j;
    gy_engine *engine; /* what runs requests, while it goes: this or the next */
    gy_api_host *host;
    int32_t share, n_share; /* streams share, share + n_share, ... are sent */
    gy_arena *arena;
    int32_t n_req;
    run_req *req;         /* [n_req] */
    gy_bench_record *rec; /* [n_req] */
    int32_t *ids;         /* streams one after the other: prompts, and outputs over what was drawn for their places */
    size_t *stream_at;    /* [n_stream + 1] into ids */
    int64_t *tok_ns;      /* all outputs, request by request */
    int32_t *loops;
    size_t n_out;
    int32_t *next_turn; /* [n_stream]: the turn to be sent; n_turn: none is left, or one runs */
    int64_t *ready_ns;  /* [n_stream]: when the turn before ended */
    int32_t next;       /* outside sessions: requests are sent in their order */
    int32_t n_running, n_ended;
    int32_t failed; /* the first one, -1 */
    gy_err err;     /* its */
    GY_VEC(gy_bench_sample) samples;
    gy_engine_stats before, after, step; /* step: after the last one */
    int64_t step_wait_ns;
    gy_bench_wait wait;
    int64_t begin_ns, shown_ns;
    double cpu_seconds; /* of all threads, from the first request to the last: what a busy machine does not stretch */
    int progress;
};

/* ---- memory ---- */

static size_t run_outputs(const gy_bench_run *r) {
    size_t n = 0;
    for (int32_t i = 0; i < r->n_req; i++) n += (size_t)r->j.items[i].n_out;
    return n;
}

static int32_t stream_len(const gy_bench_run *r, int32_t stream) {
    const gy_bench_load *l = r->j.load;
    const gy_bench_item *last = &r->j.items[(size_t)(l->n_turn - 1) * (size_t)l->n_stream + (size_t)stream];
    return last->n_prompt + last->n_out;
}

static int run_alloc(gy_bench_run *r) {
    const size_t n = (size_t)r->n_req, n_stream = (size_t)r->j.load->n_stream;
    r->n_out = run_outputs(r);
    r->req = gy_arena_alloc(r->arena, n, sizeof *r->req);
    r->rec = gy_arena_alloc(r->arena, n, sizeof *r->rec);
    r->tok_ns = gy_arena_alloc(r->arena, r->n_out, sizeof *r->tok_ns);
    r->loops = gy_arena_alloc(r->arena, r->n_out, sizeof *r->loops);
    r->stream_at = gy_arena_alloc(r->arena, n_stream + 1, sizeof *r->stream_at);
    r->next_turn = gy_arena_alloc(r->arena, n_stream, sizeof *r->next_turn);
    r->ready_ns = gy_arena_alloc(r->arena, n_stream, sizeof *r->ready_ns);
    if (!r->req || !r->rec || !r->tok_ns || !r->loops || !r->stream_at || !r->next_turn || !r->ready_ns) return -1;
    for (size_t s = 0; s < n_stream; s++) r->stream_at[s + 1] = r->stream_at[s] + (size_t)stream_len(r, (int32_t)s);
    r->ids = gy_arena_alloc(r->arena, r->stream_at[n_stream], sizeof *r->ids);
    return r->ids ? 0 : -1;
}

static void run_fill(gy_bench_run *r) {
    size_t at = 0;
    for (int32_t s = 0; s < r->j.load->n_stream; s++)
        gy_bench_ids(r->j.load->seed, s, stream_len(r, s), r->j.n_vocab, r->ids + r->stream_at[s]);
    for (int32_t i = 0; i < r->n_req; i++) {
        const gy_bench_item *it = &r->j.items[i];
        r->req[i] = (run_req){r, i};
        r->rec[i] = (gy_bench_record){it->n_prompt, it->n_out, .tok_ns = r->tok_ns + at, .loops = r->loops + at};
        at += (size_t)it->n_out;
    }
}

gy_status gy_bench_run_create(const gy_bench_job *j, gy_err *err, gy_bench_run **out) {
    gy_bench_run *r = gy_mem_alloc(GY_MEM_CLI, 1, sizeof *r);
    if (!r) return gy_err_set(err, GY_E_NOMEM, "no memory for the benchmark's requests");
    r->j = *j;
    r->n_req = j->load->n_stream * j->load->n_turn;
    r->n_share = 1;
    r->failed = -1;
    r->arena = gy_arena_create(GY_MEM_CLI, 1 << 16);
    if (!r->arena || run_alloc(r)) {
        gy_bench_run_destroy(r);
        return gy_err_set(err, GY_E_NOMEM, "no memory for the benchmark's requests");
    }
    run_fill(r);
    *out = r;
    return GY_OK;
}

void gy_bench_run_destroy(gy_bench_run *r) {
    if (!r) return;
    gy_vec_free(&r->samples);
    gy_arena_destroy(r->arena);
    gy_mem_free(r);
}

/* ---- what happens ---- */

static int32_t *run_output(gy_bench_run *r, int32_t i) {
    const gy_bench_item *it = &r->j.items[i];
    return r->ids + r->stream_at[it->stream] + it->n_prompt;
}

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    const run_req *q = arg;
    gy_bench_run *r = q->run;
    gy_bench_record *rec = &r->rec[q->index];
    if (rec->n_got == rec->n_out) return GY_STOP;
    const size_t at = (size_t)(rec->tok_ns - r->tok_ns) + (size_t)rec->n_got;
    run_output(r, q->index)[rec->n_got++] = ev->token;
    r->tok_ns[at] = gy_clock_ns();
    r->loops[at] = ev->loops;
    return GY_CONTINUE;
}

static void run_note_failure(gy_bench_run *r, int32_t i, const gy_finish_event *ev) {
    r->rec[i].failed = 1;
    if (r->failed >= 0) return;
    r->failed = i;
    if (ev->err)
        r->err = *ev->err;
    else
        gy_err_set(&r->err, GY_E_BUG, "ended with %s after %d of %d tokens", gy_finish_name(ev->reason),
                   r->rec[i].n_got, r->rec[i].n_out);
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    const run_req *q = arg;
    gy_bench_run *r = q->run;
    gy_bench_record *rec = &r->rec[q->index];
    const gy_bench_item *it = &r->j.items[q->index];
    rec->admit_ns = ev->admit_ns;
    rec->finish_ns = ev->finish_ns;
    rec->n_cached = ev->n_cached;
    rec->cross.tail_ns = ev->pd.is_measured ? ev->pd.tail_ns : -1;
    rec->cross.bytes = ev->pd.bytes;
    rec->cross.overlap_bytes = ev->pd.overlap_bytes;
    rec->cross.n_desc = ev->pd.n_desc;
    if (ev->reason != GY_FINISH_LENGTH || rec->n_got != rec->n_out) run_note_failure(r, q->index, ev);
    r->next_turn[it->stream] = it->turn + 1;
    r->ready_ns[it->stream] = ev->finish_ns;
    r->n_running--;
    r->n_ended++;
}

/* ---- sending ---- */

static void set_depths(const gy_bench_run *r, int32_t i, gy_request *rq) {
    if (!r->j.trace) return;
    const struct gy_trace_list *list = &r->j.trace->list[(size_t)i % r->j.trace->n];
    rq->trace = list->loops;
    rq->n_trace = list->n;
}

/* Dealt out in rounds, each of which begins with another one: lengths that come by turns reach all of them. */
static int32_t owner(int32_t stream, int32_t n) {
    return (int32_t)(((int64_t)stream + stream / n) % n);
}

static int is_mine(const gy_bench_run *r, int32_t stream) {
    return owner(stream, r->n_share) == r->share;
}

static int32_t n_mine(const gy_bench_run *r) {
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_req; i++) n += is_mine(r, r->j.items[i].stream);
    return n;
}

static gy_status submit(gy_bench_run *r, const gy_request *rq, gy_err *err) {
    int32_t id;
    return r->host ? r->host->ops->submit(r->host, rq, err, &id) : gy_engine_submit(r->engine, rq, err, &id);
}

/* GY_AGAIN: the engine's queue is full. */
static gy_status send_one(gy_bench_run *r, int32_t i, int64_t due_ns, gy_err *err) {
    const gy_bench_item *it = &r->j.items[i];
    gy_request rq = *r->j.proto;
    rq.prompt = r->ids + r->stream_at[it->stream];
    rq.n_prompt = it->n_prompt;
    rq.max_tokens = it->n_out;
    rq.sample.seed += (uint64_t)i;
    rq.on_token = on_token;
    rq.on_finish = on_finish;
    rq.arg = &r->req[i];
    set_depths(r, i, &rq);
    const gy_status st = submit(r, &rq, err);
    if (st < 0) return gy_err_prefix(err, "request %d", i);
    if (st != GY_OK) return st;
    r->rec[i].due_ns = due_ns;
    r->n_running++;
    return GY_OK;
}

/* The next request outside sessions, if it is due now. */
static int next_due(const gy_bench_run *r, int64_t now, int64_t *due_ns) {
    const gy_bench_load *l = r->j.load;
    if (r->next == r->n_req) return 0;
    *due_ns = now;
    if (l->kind == GY_BENCH_CLOSED) return r->n_running < (l->concurrency + r->n_share - 1) / r->n_share;
    if (l->kind == GY_BENCH_BURST) return 1;
    *due_ns = r->begin_ns + r->j.items[r->next].at_ns;
    return *due_ns <= now;
}

static void skip_others(gy_bench_run *r) {
    while (r->next < r->n_req && !is_mine(r, r->j.items[r->next].stream)) r->next++;
}

static gy_status send_next(gy_bench_run *r, gy_err *err) {
    int64_t due_ns;
    for (skip_others(r); next_due(r, gy_clock_ns(), &due_ns); skip_others(r)) {
        const gy_status st = send_one(r, r->next, due_ns, err);
        if (st != GY_OK) return st;
        r->next++;
    }
    return GY_OK;
}

static gy_status send_turns(gy_bench_run *r, gy_err *err) {
    const gy_bench_load *l = r->j.load;
    for (int32_t s = 0; s < l->n_stream; s++) {
        const int32_t turn = r->next_turn[s];
        if (turn == l->n_turn || !is_mine(r, s)) continue;
        const gy_status st = send_one(r, turn * l->n_stream + s, turn ? r->ready_ns[s] : r->begin_ns, err);
        if (st != GY_OK) return st;
        r->next_turn[s] = l->n_turn; /* until it ends */
    }
    return GY_OK;
}

static gy_status send_due(gy_bench_run *r, gy_err *err) {
    const gy_status st = r->j.load->kind == GY_BENCH_SESSION ? send_turns(r, err) : send_next(r, err);
    if (st == GY_AGAIN && !r->n_running) return gy_err_set(err, GY_E_BUG, "an idle engine refuses a request");
    return st < 0 ? st : GY_OK;
}

/* ---- going ---- */

/* What the last step added to the counters. */
static void note_step(gy_bench_run *r, const gy_engine_stats *now, gy_bench_sample *s) {
    for (int is_decode = 0; is_decode < 2; is_decode++)
        for (int d = 0; d < GY_STAT_DEPTHS; d++)
            s->n_row[is_decode] += (int32_t)(now->n_row_at[is_decode][d] - r->step.n_row_at[is_decode][d]);
    s->n_pass = (int32_t)(now->n_pass - r->step.n_pass);
    s->n_output = (int32_t)(now->n_output_tok - r->step.n_output_tok);
    s->step_ns = now->step_ns - r->step.step_ns;
    s->wait_ns = r->wait.ns - r->step_wait_ns;
    r->step_wait_ns = r->wait.ns;
    r->step = *now;
}

static gy_status run_sample(gy_bench_run *r, gy_err *err) {
    gy_bench_sample s = {.at_ns = gy_clock_ns()};
    gy_engine_stats now;
    if (!r->engine) return GY_OK;
    gy_engine_get_stats(r->engine, &now);
    note_step(r, &now, &s);
    for (int g = 0; g < GY_KV_GROUPS; g++) s.used[g] = now.kv_total[g] - now.kv_free[g] - now.kv_cached[g];
    if (gy_vec_push(&r->samples, GY_MEM_CLI, s)) return gy_err_set(err, GY_E_NOMEM, "no memory for the samples");
    return GY_OK;
}

static void show_progress(gy_bench_run *r) {
    const int64_t now = gy_clock_ns();
    if (!r->progress || now - r->shown_ns < PROGRESS_EVERY_NS) return;
    fprintf(stderr, "\r%s: %d of %d requests\033[K", r->j.label, r->n_ended, r->n_req);
    fflush(stderr);
    r->shown_ns = now;
}

/* Until the next arrival; with workers, until they have something, too. */
static void sleep_until_due(const gy_bench_run *r) {
    enum { MOST_NS = 1000000000 };
    int64_t left = MOST_NS;
    if (r->j.load->kind == GY_BENCH_POISSON && r->next < r->n_req)
        left = r->begin_ns + r->j.items[r->next].at_ns - gy_clock_ns();
    if (left <= 0) return;
    const struct timespec ts = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    struct pollfd p = {.fd = r->host ? r->host->fd : -1, .events = POLLIN};
    ppoll(&p, 1, &ts, NULL);
}

/* Nothing runs. The engine says so a step after its last request, when a request may have been due already: then there
 * is nothing to wait for. */
static gy_status run_idle(const gy_bench_run *r, gy_err *err) {
    if (r->n_running)
        return gy_err_set(err, GY_E_BUG, "the engine is idle with %d of %d requests running", r->n_running, r->n_req);
    if (r->j.load->kind == GY_BENCH_POISSON && r->next < r->n_req) sleep_until_due(r);
    return GY_OK;
}

/* GY_OK, GY_DONE as an engine; workers may have nothing to say while requests run. */
static gy_status run_step(gy_bench_run *r, gy_err *err) {
    if (r->engine) return gy_engine_step(r->engine, err);
    const gy_status st = r->host->ops->step(r->host, err);
    if (st != GY_AGAIN) return st;
    sleep_until_due(r);
    return GY_OK;
}

static gy_status run_steps(gy_bench_run *r, gy_err *err) {
    const int32_t n = n_mine(r);
    while (r->n_ended < n) {
        GY_TRY(send_due(r, err));
        const gy_status st = run_step(r, err);
        if (st < 0) return st;
        GY_TRY(st == GY_DONE ? run_idle(r, err) : run_sample(r, err));
        show_progress(r);
    }
    return GY_OK;
}

static double process_cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static gy_status run_timed(gy_bench_run *r, gy_err *err) {
    r->progress = r->j.label && isatty(STDERR_FILENO);
    r->cpu_seconds = -process_cpu();
    r->begin_ns = r->shown_ns = gy_clock_ns();
    const gy_status st = run_steps(r, err);
    r->cpu_seconds += process_cpu();
    if (r->progress) fputs("\r\033[K", stderr);
    return st;
}

gy_status gy_bench_run_go(gy_bench_run *r, gy_engine *e, gy_err *err) {
    r->engine = e;
    const int waits = r->j.be && !r->j.be->is_host;
    gy_engine_get_stats(e, &r->before);
    r->step = r->before;
    if (waits) gy_bench_wait_begin(&r->wait, r->j.be);
    const gy_status st = run_timed(r, err);
    if (waits) gy_bench_wait_end(&r->wait, r->j.be);
    gy_engine_get_stats(e, &r->after);
    return st;
}

gy_status gy_bench_run_go_workers(gy_bench_run *r, gy_api_host *h, gy_err *err) {
    r->host = h;
    const gy_status st = run_timed(r, err);
    r->cpu_seconds = NAN; /* of this process alone */
    return st;
}

/* ---- over several processes ---- */

void gy_bench_run_set_share(gy_bench_run *r, int32_t k, int32_t n) {
    r->share = k;
    r->n_share = n;
}

int gy_bench_write_all(int fd, const void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        const ssize_t k = send(fd, (const char *)p + at, n - at, MSG_NOSIGNAL);
        if (k <= 0 && errno != EINTR) return -1;
        if (k > 0) at += (size_t)k;
    }
    return 0;
}

int gy_bench_read_all(int fd, void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        const ssize_t k = recv(fd, (char *)p + at, n - at, 0);
        if (k == 0 || (k < 0 && errno != EINTR)) return -1;
        if (k > 0) at += (size_t)k;
    }
    return 0;
}

/* Sender and taker are forks of one process that made the run: same program, same numbers of requests and outputs. */
typedef struct share_head {
    int32_t share, n_share, failed;
    double cpu_seconds;
    gy_err err;
} share_head;

int gy_bench_run_send(const gy_bench_run *r, int fd) {
    const share_head h = {r->share, r->n_share, r->failed, r->cpu_seconds, r->err};
    if (gy_bench_write_all(fd, &h, sizeof h)) return -1;
    for (int32_t i = 0; i < r->n_req; i++) {
        const gy_bench_record *c = &r->rec[i];
        const gy_bench_item *it = &r->j.items[i];
        const size_t n = (size_t)c->n_got;
        if (!is_mine(r, it->stream)) continue;
        if (gy_bench_write_all(fd, c, sizeof *c) || gy_bench_write_all(fd, c->tok_ns, n * sizeof *c->tok_ns) ||
            gy_bench_write_all(fd, c->loops, n * sizeof *c->loops) ||
            gy_bench_write_all(fd, r->ids + r->stream_at[it->stream] + it->n_prompt, n * sizeof *r->ids))
            return -1;
    }
    return 0;
}

static int take_record(gy_bench_run *r, int32_t i, int fd) {
    gy_bench_record c;
    const size_t at = (size_t)(r->rec[i].tok_ns - r->tok_ns);
    if (gy_bench_read_all(fd, &c, sizeof c) || c.n_got < 0 || c.n_got > r->rec[i].n_out) return -1;
    c.tok_ns = r->rec[i].tok_ns;
    c.loops = r->rec[i].loops;
    r->rec[i] = c;
    const size_t n = (size_t)c.n_got;
    return gy_bench_read_all(fd, r->tok_ns + at, n * sizeof *r->tok_ns) ||
                   gy_bench_read_all(fd, r->loops + at, n * sizeof *r->loops) ||
                   gy_bench_read_all(fd, run_output(r, i), n * sizeof *r->ids)
               ? -1
               : 0;
}

int gy_bench_run_take(gy_bench_run *r, int fd) {
    share_head h;
    if (gy_bench_read_all(fd, &h, sizeof h)) return -1;
    for (int32_t i = 0; i < r->n_req; i++)
        if (owner(r->j.items[i].stream, h.n_share) == h.share && take_record(r, i, fd)) return -1;
    r->cpu_seconds += h.cpu_seconds;
    if (r->failed < 0 && h.failed >= 0) {
        r->failed = h.failed;
        r->err = h.err;
    }
    return 0;
}

/* ---- what came of it ---- */

gy_status gy_bench_run_result(const gy_bench_run *r, const gy_engine *e, int32_t max_rows, gy_err *err,
                              gy_bench_result *out) {
    gy_bench_result b;
    struct rusage u;
    for (size_t i = 0; i < GY_BENCH_N; i++) b.f[i] = NAN;
    gy_status st = gy_bench_from_records(r->rec, (size_t)r->n_req, &b);
    if (st == GY_OK && e)
        st = gy_bench_from_samples(gy_kv_get_config(gy_engine_kv(e)), r->rec, (size_t)r->n_req, r->samples.data,
                                   r->samples.len, &b);
    if (st < 0) return gy_err_set(err, st, "no memory for the figures");
    b.f[GY_BENCH_CPU_SECONDS] = r->cpu_seconds;
    if (e) {
        gy_bench_from_stats(&r->before, &r->after, max_rows, &b);
        if (r->wait.inner) gy_bench_from_wait(r->wait.ns, &b);
        getrusage(RUSAGE_SELF, &u);
        b.f[GY_BENCH_RSS_PEAK] = (double)u.ru_maxrss * 1024;
    }
    *out = b;
    return GY_OK;
}

const gy_bench_sample *gy_bench_run_steps(const gy_bench_run *r, size_t *n_out) {
    *n_out = r->samples.len;
    return r->samples.data;
}

int32_t gy_bench_run_differ(const gy_bench_run *a, const gy_bench_run *b) {
    for (int32_t i = 0; i < a->n_req; i++) {
        const gy_bench_record *x = &a->rec[i], *y = &b->rec[i];
        const gy_bench_item *it = &a->j.items[i];
        const size_t at = a->stream_at[it->stream] + (size_t)it->n_prompt, n = (size_t)x->n_got;
        if (x->n_got != y->n_got || memcmp(x->loops, y->loops, n * sizeof *x->loops) != 0 ||
            memcmp(a->ids + at, b->ids + at, n * sizeof *a->ids) != 0)
            return i;
    }
    return -1;
}

const gy_err *gy_bench_run_failed(const gy_bench_run *r, int32_t *index_out) {
    if (r->failed < 0) return NULL;
    *index_out = r->failed;
    return &r->err;
}
