/* The generator's loop: see cli_bench_serve_run.h. */
#include "cli/cli_bench_serve_run.h"

#include "base/clock.h"
#include "cli/cli_bench_serve_event.h"
#include "cli/progress.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>

typedef struct drive drive;

typedef struct conv { /* only of loads with several turns */
    gy_str past, reply;
} conv;

typedef struct req {
    drive *d;
    gy_bserve_record *rec;
    const gy_bench_item *item;
    gy_oai_call *call; /* NULL: not running */
} req;

struct drive {
    gy_oai *c;
    const gy_bserve_job *j;
    const gy_bserve_load *l;
    gy_bserve_run *run;
    gy_bench_item *items;
    req *reqs;         /* [n] */
    conv *convs;       /* [n_stream], NULL with one turn */
    int32_t next;      /* first turn that is sent next */
    int32_t n_running; /* conversations */
    int64_t free_ns;   /* when the last one ended while all places were taken */
    int64_t stop_ns;
    gy_str ready; /* the body of the next first turn: nothing is built while it is due */
    int32_t ready_for;
    int closed; /* nothing more is sent */
    gy_err *err;
    gy_status st;
    gy_batch_progress progress;
    gy_batch_counts counts;
};

static const char *path_of(const gy_bserve_load *l) {
    return l->chat ? "/v1/chat/completions" : "/v1/completions";
}

/* ---- what comes ---- */

static gy_str *reply_of(const req *q) {
    return q->d->convs ? &q->d->convs[q->item->stream].reply : NULL;
}

static int note_token(gy_bserve_record *r, int64_t at_ns) {
    if (gy_vec_grow_((void **)(void *)&r->tok_ns, &r->cap_tok, r->n_tok, 1, sizeof *r->tok_ns, GY_MEM_CLI)) return -1;
    r->tok_ns[r->n_tok++] = at_ns;
    return 0;
}

static void note_usage(gy_bserve_record *r, const gy_bserve_event *e) {
    if (e->n_out >= 0) {
        r->n_out = e->n_out;
        r->has_usage = 1;
    }
    if (e->n_prompt >= 0) r->n_prompt = e->n_prompt;
    if (e->n_cached >= 0) r->n_cached = e->n_cached;
}

static int on_event(void *user, int64_t at_ns, const char *data, size_t len) {
    req *q = user;
    gy_bserve_record *r = q->rec;
    gy_bserve_event e;
    if (gy_bserve_event_read(data, len, reply_of(q), &e)) return -1;
    if (e.has_choice) r->last_ns = at_ns;
    if (e.is_token && note_token(r, at_ns)) return -1;
    r->loops += e.loops;
    r->n_loop_tok += e.n_loop_tok;
    note_usage(r, &e);
    q->d->counts.n_tok += e.is_token;
    q->d->counts.n_loop += e.loops;
    return 0;
}

static void send_item(drive *d, int32_t i, int64_t due_ns);

static void conv_end(drive *d, const gy_bserve_record *r) {
    if (d->l->concurrency && d->n_running == d->l->concurrency) d->free_ns = r->end_ns;
    d->n_running--;
}

/* The next turn, or the end of the conversation. */
static void go_on(drive *d, const req *q) {
    const gy_bserve_record *r = q->rec;
    if (r->end != GY_OAI_DONE || q->item->turn + 1 == d->l->n_turn || d->closed) {
        conv_end(d, r);
        return;
    }
    conv *v = &d->convs[q->item->stream];
    gy_bserve_add_past(d->l, q->item, gy_str_z(&v->reply), v->reply.len, &v->past);
    gy_str_clear(&v->reply);
    send_item(d, (int32_t)(q - d->reqs) + d->l->n_stream, r->end_ns);
}

static void on_end(void *user, const gy_oai_result *res) {
    req *q = user;
    gy_bserve_record *r = q->rec;
    q->call = NULL;
    r->ended = 1;
    r->end = res->end;
    r->http_status = res->http_status;
    r->end_ns = res->end_ns;
    if (res->end != GY_OAI_DONE) r->msg = gy_mem_strdup(GY_MEM_CLI, res->msg);
    if (!r->has_usage) r->n_out = (int64_t)r->n_tok;
    q->d->counts.n_done++;
    go_on(q->d, q);
}

/* ---- what goes ---- */

static const gy_oai_hooks hooks = {on_event, on_end};

static void fail(drive *d, gy_status st) {
    if (d->st >= 0) d->st = st;
    d->closed = 1;
}

static void make_body(drive *d, int32_t i, gy_str *body) {
    const gy_bench_item *it = &d->items[i];
    if (d->ready_for == i) {
        *body = d->ready;
        d->ready = (gy_str){0};
        d->ready_for = -1;
        return;
    }
    gy_bserve_put_body(d->l, it, d->convs ? &d->convs[it->stream].past : NULL, body);
}

static void send_item(drive *d, int32_t i, int64_t due_ns) {
    req *q = &d->reqs[i];
    gy_str body = {0};
    make_body(d, i, &body);
    q->rec->due_ns = due_ns;
    q->rec->sent_ns = q->rec->last_ns = gy_clock_ns();
    const gy_status st = gy_oai_post(d->c, path_of(d->l), &body, &hooks, q, d->err, &q->call);
    q->rec->sent = st >= 0;
    if (st >= 0) return;
    fail(d, st);
    d->n_running--;
}

static int has_place(const drive *d) {
    return !d->l->concurrency || d->n_running < d->l->concurrency;
}

/* When the next first turn may go; -1: not before something ends. */
static int64_t next_ns(const drive *d) {
    if (d->closed || d->next == d->l->n_stream || !has_place(d)) return -1;
    const int64_t arrival = d->run->begin_ns + d->items[d->next].at_ns;
    return arrival > d->free_ns ? arrival : d->free_ns;
}

static void send_due(drive *d) {
    for (int64_t due; (due = next_ns(d)) >= 0 && due <= gy_clock_ns();) {
        const int32_t i = d->next++;
        if (!isinf(d->l->rate)) d->reqs[i].rec->arrival_ns = d->run->begin_ns + d->items[i].at_ns;
        d->n_running++;
        send_item(d, i, due);
    }
    if (d->closed || d->next == d->l->n_stream || d->ready_for == d->next) return;
    gy_str_clear(&d->ready);
    gy_bserve_put_body(d->l, &d->items[d->next], NULL, &d->ready);
    d->ready_for = d->next;
}

static void close_if_told(drive *d) {
    if (d->stop_ns >= 0 && gy_clock_ns() >= d->stop_ns) d->closed = 1;
    if (!*d->j->stop || d->run->stopped) return;
    d->closed = d->run->stopped = 1;
    for (size_t i = 0; i < d->run->n; i++)
        if (d->reqs[i].call) gy_oai_cancel(d->reqs[i].call);
}

/* ---- the loop ---- */

static void show(drive *d, int64_t now) {
    if (d->j->label && gy_batch_progress_due(&d->progress, now)) gy_batch_progress_show(&d->progress, &d->counts, now);
}

static int64_t wait_until(const drive *d, int64_t now) {
    int64_t until = next_ns(d);
    if (d->progress.every_ns && (until < 0 || until > now + d->progress.every_ns)) until = now + d->progress.every_ns;
    if (d->stop_ns >= 0 && !d->closed && (until < 0 || until > d->stop_ns)) until = d->stop_ns;
    return until;
}

static gy_status loop(drive *d) {
    while (d->st >= 0) {
        close_if_told(d);
        send_due(d);
        const int more = !d->closed && d->next < d->l->n_stream;
        if (!gy_oai_n_open(d->c) && !more) break;
        const gy_status st = gy_oai_step(d->c, wait_until(d, gy_clock_ns()), d->err);
        if (st < 0) fail(d, st);
        show(d, gy_clock_ns());
    }
    return d->st;
}

static gy_status make_records(drive *d) {
    const gy_bserve_load *l = d->l;
    gy_bserve_run *run = d->run;
    run->n = (size_t)l->n_stream * (size_t)l->n_turn;
    run->rec = gy_mem_alloc(GY_MEM_CLI, run->n + 1, sizeof *run->rec);
    d->items = gy_mem_alloc(GY_MEM_CLI, run->n + 1, sizeof *d->items);
    d->reqs = gy_mem_alloc(GY_MEM_CLI, run->n + 1, sizeof *d->reqs);
    d->convs = l->n_turn > 1 ? gy_mem_alloc(GY_MEM_CLI, (size_t)l->n_stream, sizeof *d->convs) : NULL;
    if (!run->rec || !d->items || !d->reqs || (l->n_turn > 1 && !d->convs) || gy_bserve_items(l, d->items) < 0)
        return gy_err_set(d->err, GY_E_NOMEM, "no memory for %zu requests", run->n);
    for (size_t i = 0; i < run->n; i++) {
        const gy_bench_item *it = &d->items[i];
        run->rec[i] = (gy_bserve_record){.stream = it->stream,
                                         .turn = it->turn,
                                         .n_prompt_asked = it->n_prompt,
                                         .n_out_asked = gy_bserve_n_out(l, it),
                                         .n_cached = -1};
        d->reqs[i] = (req){d, &run->rec[i], it, NULL};
    }
    return GY_OK;
}

static void drive_fini(drive *d) {
    for (int32_t i = 0; d->convs && i < d->l->n_stream; i++) {
        gy_str_free(&d->convs[i].past);
        gy_str_free(&d->convs[i].reply);
    }
    gy_mem_free(d->convs);
    gy_mem_free(d->items);
    gy_mem_free(d->reqs);
    gy_str_free(&d->ready);
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

gy_status gy_bserve_run_go(gy_oai *c, const gy_bserve_job *j, gy_err *err, gy_bserve_run *out) {
    drive d = {.c = c, .j = j, .l = j->load, .run = out, .ready_for = -1, .stop_ns = -1, .err = err};
    *out = (gy_bserve_run){.n = 0};
    d.st = make_records(&d);
    if (d.st >= 0) {
        const double before = cpu_seconds();
        d.counts.n_total = out->n;
        if (j->label) gy_batch_progress_begin(&d.progress, 1);
        out->begin_ns = gy_clock_ns();
        if (j->max_seconds > 0) d.stop_ns = out->begin_ns + (int64_t)(j->max_seconds * 1e9);
        loop(&d);
        out->cpu_s = cpu_seconds() - before;
        if (j->label) gy_batch_progress_wipe(&d.progress);
    }
    drive_fini(&d);
    return d.st < 0 ? d.st : GY_OK;
}

void gy_bserve_run_fini(gy_bserve_run *r) {
    for (size_t i = 0; r->rec && i < r->n; i++) {
        gy_mem_free(r->rec[i].tok_ns);
        gy_mem_free(r->rec[i].msg);
    }
    gy_mem_free(r->rec);
    *r = (gy_bserve_run){.n = 0};
}
