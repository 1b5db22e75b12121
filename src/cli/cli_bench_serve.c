/* gyre bench serve: a workload (cli_bench_serve_load.h) sent to a server (cli_bench_serve_run.h), once or for each rate
 * of a sweep, reported (cli_bench_serve_report.h). The server is any that speaks OpenAI's API.
 */
#include "cli/cli.h"
#include "cli/cli_bench_report.h"
#include "cli/cli_bench_serve_args.h"
#include "cli/cli_bench_serve_html.h"
#include "cli/cli_bench_serve_report.h"
#include "cli/cli_bench_serve_run.h"
#include "cli/cli_chat_args.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* Prompts of the warm-up, and of each point of a sweep, are not those of the others: the server's prefix cache would
 * know them. */
static const uint64_t WARMUP_SEED = 0x7761726d, POINT_SEED = 0x706f696e74000000;
enum { COUNTED_WORDS = 512 };

typedef struct bench {
    const gy_args *a;
    const gy_bserve_opts *o;
    gy_bserve_plan plan;
    gy_oai *c;
    gy_str model, fixed;
    gy_bserve_data data;
    int words_counted;
    char when[32];
    gy_bserve_outcome *out; /* [plan.n_point] in the arena */
    size_t n_out;
} bench;

/* ---- Ctrl-C: the first one ends the run, and what there is is reported; a second one ends the process ---- */

static volatile sig_atomic_t stopped;
static gy_oai *to_wake;

static void on_interrupt(int signo) {
    stopped = 1;
    signal(signo, SIG_DFL);
    gy_oai_wake(to_wake);
}

static void watch_interrupt(gy_oai *c) {
    struct sigaction s = {.sa_handler = c ? on_interrupt : SIG_DFL, .sa_flags = SA_RESTART};
    to_wake = c;
    sigaction(SIGINT, &s, NULL);
}

/* ---- the server ---- */

/* A connection is a descriptor. */
static void allow_descriptors(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r)) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static int32_t most_at_once(const gy_bserve_plan *p) {
    int32_t most = 1;
    for (size_t i = 0; i < p->n_point; i++) {
        const int32_t c = p->point[i].concurrency ? p->point[i].concurrency : p->point[i].n_stream;
        if (c > most) most = c;
    }
    return most;
}

static gy_status open_client(bench *b, gy_err *err) {
    const char **headers = gy_arena_alloc(b->a->arena, b->o->headers.n + 1, sizeof *headers);
    gy_oai_opts o;
    gy_oai_opts_default(&o);
    if (!headers) return gy_err_set(err, GY_E_NOMEM, "no memory for options");
    for (size_t i = 0; i < b->o->headers.n; i++) headers[i] = b->o->headers.items[i].text;
    o.url = b->o->url;
    o.headers = headers;
    o.n_header = b->o->headers.n;
    o.cacert = b->a->chat.cacert;
    o.insecure = b->a->chat.insecure;
    o.max_conn = most_at_once(&b->plan);
    if (b->o->timeout) o.silence_timeout_s = b->o->timeout;
    GY_TRY(gy_chat_args_key(b->a, err, &o.api_key));
    allow_descriptors();
    return gy_oai_open(&o, err, &b->c);
}

static gy_status find_model(bench *b, gy_err *err) {
    char *name = NULL;
    if (b->o->model) {
        gy_str_puts(&b->model, b->o->model);
    } else {
        GY_TRY(gy_oai_first_model(b->c, err, &name));
        gy_str_puts(&b->model, name);
        gy_mem_free(name);
    }
    return b->model.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the model's name") : GY_OK;
}

/* ---- how long words are ---- */

typedef struct count {
    int ended;
    int64_t n; /* -1: the server did not say */
} count;

static void count_end(void *user, const gy_oai_result *r) {
    count *c = user;
    gy_json *doc = NULL;
    c->ended = 1;
    if (r->end != GY_OAI_DONE || gy_json_parse(r->body, r->body_len, NULL, NULL, &doc) < 0) return;
    c->n = gy_jv_int(gy_jv_get(gy_json_root(doc), "count"), -1);
    gy_json_free(doc);
}

/* {"prompt": ...} at /tokenize, as vLLM and gyre have it. Servers without it are no error. */
static gy_status count_words(bench *b, gy_err *err) {
    static const gy_oai_hooks hooks = {.on_end = count_end};
    const gy_bserve_load *l = &b->plan.load;
    const gy_bench_item it = {.n_new = COUNTED_WORDS};
    gy_bserve_load plain = *l;
    gy_str body = {0};
    count c = {.n = -1};
    plain.n_prefix = 0;
    gy_str_puts(&body, "{\"model\":");
    gy_jw w;
    gy_jw_init(&w, &body);
    gy_jw_strz(&w, gy_str_z(&b->model));
    gy_str_puts(&body, ",\"prompt\":\"");
    gy_bserve_put_words(&plain, &it, &body);
    gy_str_puts(&body, "\"}");
    GY_TRY(gy_oai_post(b->c, "/tokenize", &body, &hooks, &c, err, NULL));
    while (!c.ended) GY_TRY(gy_oai_step(b->c, -1, err));
    if (c.n <= 0) return GY_OK;
    b->plan.load.word_tok = (double)c.n / COUNTED_WORDS;
    b->words_counted = 1;
    return GY_OK;
}

static gy_status may_report(const gy_bserve_opts *o, gy_err *err) {
    GY_TRY(gy_bench_may_write("--json", o->json_file, err));
    GY_TRY(gy_bench_may_write("--csv", o->csv_file, err));
    return gy_bench_may_write("--html", o->html_file, err);
}

static gy_status bench_open(bench *b, gy_err *err) {
    GY_TRY(may_report(b->o, err));
    GY_TRY(gy_bserve_settle(b->a, err, &b->plan));
    GY_TRY(gy_bserve_put_fixed(b->a, "", err, &b->fixed)); /* mistakes are found before anybody is asked */
    gy_str_clear(&b->fixed);
    if (b->o->dataset) GY_TRY(gy_bserve_data_read(b->o->dataset, b->plan.load.chat, err, &b->data));
    GY_TRY(open_client(b, err));
    GY_TRY(find_model(b, err));
    GY_TRY(gy_bserve_put_fixed(b->a, gy_str_z(&b->model), err, &b->fixed));
    if (b->plan.load.prompts == GY_BSERVE_WORDS) GY_TRY(count_words(b, err));
    b->out = gy_arena_alloc(b->a->arena, b->plan.n_point, sizeof *b->out);
    if (!b->out) return gy_err_set(err, GY_E_NOMEM, "no memory for the figures");
    return GY_OK;
}

/* ---- runs ---- */

static gy_bserve_load load_of(const bench *b, const gy_bserve_point *p, uint64_t salt) {
    gy_bserve_load l = b->plan.load;
    l.fixed = gy_str_z(&b->fixed);
    l.data = &b->data;
    l.rate = p->rate;
    l.concurrency = p->concurrency;
    l.n_stream = p->n_stream;
    l.seed ^= salt;
    return l;
}

/* One that fails would make all others fail: its sentence is the command's. */
static gy_status warm_up(bench *b, gy_err *err) {
    const gy_bserve_point p = {INFINITY, most_at_once(&b->plan), b->plan.warmup};
    gy_bserve_load l = load_of(b, &p, WARMUP_SEED);
    const gy_bserve_job j = {.load = &l, .label = "warm-up", .stop = &stopped};
    gy_bserve_run run;
    l.n_turn = 1;
    if (!b->plan.warmup) return GY_OK;
    gy_status st = gy_bserve_run_go(b->c, &j, err, &run);
    for (size_t i = 0; st >= 0 && i < run.n; i++)
        if (run.rec[i].sent && run.rec[i].end != GY_OAI_DONE)
            st = gy_err_set(err, run.rec[i].end == GY_OAI_CANCELLED ? GY_E_CANCELLED : GY_E_PEER, "warm-up: %s: %s",
                            b->o->url, run.rec[i].msg ? run.rec[i].msg : gy_oai_end_name(run.rec[i].end));
    gy_bserve_run_fini(&run);
    return st < 0 ? st : GY_OK;
}

static gy_status run_point(bench *b, size_t i, gy_err *err) {
    gy_bserve_outcome *o = &b->out[i];
    o->point = b->plan.point[i];
    const gy_bserve_load l = load_of(b, &o->point, i ? POINT_SEED + i : 0);
    const gy_bserve_job j = {.load = &l, .label = "requests", .max_seconds = b->o->max_seconds, .stop = &stopped};
    b->n_out++;
    GY_TRY(gy_bserve_run_go(b->c, &j, err, &o->run));
    if (gy_bserve_figures(o->run.rec, o->run.n, o->run.begin_ns, o->run.cpu_s, &b->plan.slo, &o->result) < 0)
        return gy_err_set(err, GY_E_NOMEM, "no memory for the figures");
    return GY_OK;
}

static gy_status bench_go(bench *b, gy_err *err) {
    const time_t now = time(NULL);
    struct tm t;
    strftime(b->when, sizeof b->when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &t));
    GY_TRY(warm_up(b, err));
    for (size_t i = 0; i < b->plan.n_point && !stopped; i++) {
        if (b->plan.n_point > 1) gy_cli_note("run %zu of %zu", i + 1, b->plan.n_point);
        GY_TRY(run_point(b, i, err));
    }
    return GY_OK;
}

/* ---- report ---- */

static int is_stdout(const char *path) {
    return path && !strcmp(path, "-");
}

static gy_status report_to(const bench *b, const char *json, gy_str *s, gy_err *err) {
    const gy_bserve_setup u = {.url = b->o->url,
                               .model = gy_str_z(&b->model),
                               .when = b->when,
                               .fixed = gy_str_z(&b->fixed),
                               .dataset = b->o->dataset,
                               .words_counted = b->words_counted,
                               .plan = &b->plan};
    if (!is_stdout(json) && !is_stdout(b->o->csv_file)) {
        gy_bserve_put_table(&u, b->out, b->n_out, s);
        GY_TRY(gy_bench_write("", "-", s, err));
    }
    if (json) {
        gy_bserve_put_json(&u, b->out, b->n_out, b->o->samples, s);
        GY_TRY(gy_bench_write("--json", json, s, err));
    }
    if (b->o->csv_file) {
        gy_bserve_put_csv(b->out, b->n_out, s);
        GY_TRY(gy_bench_write("--csv", b->o->csv_file, s, err));
    }
    if (!b->o->html_file) return GY_OK;
    if (gy_bserve_put_html(&u, b->out, b->n_out, s) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory for the page");
    return gy_bench_write("--html", b->o->html_file, s, err);
}

static gy_status bench_report(const bench *b, gy_err *err) {
    gy_str s = {0};
    char name[64];
    const char *json = b->o->json_file;
    if (b->o->save_result) {
        snprintf(name, sizeof name, "bench-serve-%s.json", b->when);
        json = name;
        gy_cli_note("results go into %s", name);
    }
    const gy_status st = report_to(b, json, &s, err);
    gy_str_free(&s);
    return st;
}

/* Failures are no success, whatever the figures of the others say. */
static int bench_verdict(const bench *b) {
    double failed = 0, all = 0, not_sent = 0;
    const char *why = "";
    for (size_t i = 0; i < b->n_out; i++) {
        const gy_bserve_result *r = &b->out[i].result;
        failed += r->f[GY_BSERVE_FAILED];
        all += r->f[GY_BSERVE_REQUESTS];
        not_sent += r->f[GY_BSERVE_NOT_SENT];
        if (r->n_error && !why[0] && b->out[i].run.rec[r->error[0].first].msg)
            why = b->out[i].run.rec[r->error[0].first].msg;
    }
    if (failed > 0) fprintf(stderr, "gyre: %.0f of %.0f requests failed, the first: %s\n", failed, all, why);
    if (not_sent > 0) gy_cli_note("%.0f of %.0f requests were not sent", not_sent, all);
    return failed > 0 || stopped ? GY_CLI_FAILED : GY_CLI_OK;
}

static void bench_close(bench *b) {
    for (size_t i = 0; i < b->n_out; i++) gy_bserve_run_fini(&b->out[i].run);
    gy_oai_close(b->c);
    gy_bserve_data_fini(&b->data);
    gy_str_free(&b->model);
    gy_str_free(&b->fixed);
}

static int bench_serve(const gy_args *a) {
    bench b = {.a = a, .o = &a->bench.serve};
    gy_err err = {0};
    gy_status st = bench_open(&b, &err);
    if (st >= 0) {
        watch_interrupt(b.c);
        st = bench_go(&b, &err);
        watch_interrupt(NULL);
    }
    if (st >= 0) st = bench_report(&b, &err);
    const int rc = st < 0 ? gy_cli_fail(&err) : bench_verdict(&b);
    bench_close(&b);
    return rc;
}

const gy_cmd gy_cmd_bench_serve = {
    "bench serve",
    "--url URL [options]",
    "load any OpenAI server and measure it",
    "Sends streamed requests and prints latencies, rates and failures, as vllm bench serve defines them\n"
    "(docs/benchmarks.md). --concurrency: so many requests are always under way; --rate: they arrive by themselves.\n"
    "Prompts, lengths and arrivals are a function of the options and --seed. Exit code 1 if any request failed.\n",
    gy_bserve_groups,
    (size_t)1 << 10,
    bench_serve};
