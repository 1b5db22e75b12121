/* gyre run: prompts in, one engine, outputs in the order of the prompts, or into a file in the order they end
 * (--output).
 *
 * A prompt's answer exists from its submission until it is printed; prompts are submitted as the engine's queue has
 * room. So memory does not grow with the outputs of a long batch, unless an early one is slow and stdout waits for it.
 */
#include "api/api_host.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_batch.h"
#include "cli/cli_engine.h"
#include "cli/cli_pd.h"
#include "cli/progress.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_ERROR_LINES = 10 };

typedef struct run_state {
    const gy_args *a;
    gy_cli_model m;
    gy_jobs jobs;
    gy_batch file;                   /* --output */
    gy_answer **answer;              /* [jobs.job.len] the live ones, in the arena */
    size_t n_fed;                    /* jobs before it were submitted, refused, or are answered in the file */
    size_t n_live;                   /* submitted and not finished */
    int32_t n_waiting;               /* in the engine when it last said that its queue is full; -1: it did not */
    gy_answer *ended, **ended_tail;  /* finished, in this order, not written yet (--output) */
    size_t n_shown, n_done, n_error; /* n_error: of this run */
    size_t n_before;                 /* answered in the file before this run */
    int stream;                      /* one prompt, text as it comes */
    gy_api_host *host;
    gy_batch_progress progress;
    gy_str line;
} run_state;

/* The one thing that a signal can do: say that it came. The second one of its kind ends the program at once. */
static volatile sig_atomic_t interrupted;

static void on_signal(int signo) {
    (void)signo;
    interrupted = 1;
}

static void catch_signals(void) {
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

static int is_done(const run_state *r, size_t i) {
    return r->file.done && r->file.done[i];
}

/* ---- callbacks ---- */

static void answer_ended(run_state *r, gy_answer *a) {
    r->n_done++;
    *r->ended_tail = a;
    r->ended_tail = &a->next;
}

static void on_finish(void *arg, const gy_finish_event *ev) {
    gy_answer *a = arg;
    run_state *r = a->owner;
    gy_answer_on_finish(a, ev);
    if (!gy_answer_done(a)) return;
    r->n_live--;
    answer_ended(r, a);
}

/* ---- start ---- */

static int64_t n_to_run(const run_state *r) {
    int64_t n = 0;
    for (size_t i = 0; i < r->jobs.job.len; i++)
        if (!is_done(r, i) && !r->jobs.job.data[i].refused) n += r->jobs.job.data[i].opt.n;
    return n;
}

static gy_status engine_opts(const run_state *r, gy_err *err, gy_engine_opts *o) {
    gy_engine_plan plan;
    GY_TRY(gy_cli_engine_opts(r->a, err, o));
    int64_t n = n_to_run(r);
    if (n < o->sched.max_seqs) o->sched.max_seqs = n > 1 ? (int32_t)n : 1;
    o->max_len = gy_jobs_max_len(&r->jobs, r->file.done);
    int32_t deepest = gy_jobs_max_loops(&r->jobs, r->file.done);
    o->max_loops = deepest > r->m.d.n_loop ? deepest : 0;
    if (gy_engine_make_plan(&r->m.d, r->m.act, o, 0, err, &plan) >= 0) return GY_OK;
    gy_cli_name_flag(err);
    return err->status;
}

static gy_status open_file(run_state *r, gy_err *err) {
    uint64_t seed;
    if (!r->a->output) return GY_OK;
    GY_TRY(gy_batch_seed(&r->m, r->a, err, &seed));
    GY_TRY(gy_batch_open(&r->file, r->a->output, &r->jobs, seed, err));
    r->n_done = r->n_before = r->file.n_done;
    if (r->file.cut)
        gy_cli_note("%s: %lld bytes at its end are an incomplete answer, which is made again", r->a->output,
                    (long long)r->file.cut);
    if (r->file.n_done)
        gy_cli_note("%s: %zu of %zu prompts are answered already", r->a->output, r->file.n_done, r->jobs.job.len);
    return GY_OK;
}

/* Nothing is loaded when nothing is left to run. */
static gy_status open_host(run_state *r, const gy_engine_opts *e, const gyre_options *o, gy_err *err) {
    gy_progress p;
    if (gy_api_wants_workers(o)) return gy_api_host_open(&r->m, e, o, NULL, NULL, err, &r->host);
    gy_progress_begin(&p, "loading");
    gy_status st = gy_api_host_open(&r->m, e, o, gy_progress_update, &p, err, &r->host);
    gy_progress_end(&p);
    return st;
}

static gy_status open_engine(run_state *r, gy_err *err) {
    gy_engine_opts o;
    gyre_options lib;
    GY_TRY(engine_opts(r, err, &o));
    if (!n_to_run(r)) return GY_OK;
    gy_cli_note_synthetic(r->m.dir);
    GY_TRY(gy_cli_gyre_options(r->a, err, &lib));
    GY_TRY(open_host(r, &o, &lib, err));
    gy_cli_tell_plan(&r->host->plan);
    return GY_OK;
}

static gy_status run_open(run_state *r, gy_err *err) {
    const gy_args *a = r->a;
    GY_TRY(gy_cli_check_workers(a, err));
    if (a->output) GY_TRY(gy_batch_check_path(a->output, a, err));
    GY_TRY(gy_jobs_collect(&r->jobs, a, a->n_pos > 1 ? a->pos[1] : NULL, err));
    const char *dir = a->n_pos ? a->pos[0] : gy_cli_find_shipped(a->arena, err);
    if (!dir) return err->status;
    GY_TRY(gy_cli_model_open(&r->m, dir, a, 1, err));
    GY_TRY(gy_jobs_prepare(&r->jobs, &r->m, err));
    r->answer = gy_arena_alloc(a->arena, r->jobs.job.len, sizeof(gy_answer *));
    if (!r->answer) return gy_err_set(err, GY_E_NOMEM, "no memory for %zu prompts", r->jobs.job.len);
    GY_TRY(open_file(r, err));
    r->stream = !a->json && !a->output && r->jobs.job.len == 1 && r->jobs.job.data[0].opt.n == 1;
    return open_engine(r, err);
}

/* ---- feeding ---- */

static void refuse(run_state *r, size_t i, const char *why) {
    gy_answer_refuse(r->answer[i], why);
    answer_ended(r, r->answer[i]);
    r->n_fed = i + 1;
}

/* Below 2^53: every reader of JSON keeps such a number as it is. */
static gy_status draw_seed(gy_job *job, gy_err *err) {
    uint64_t seed;
    if (job->opt.seed.given || !(job->opt.temperature > 0)) return GY_OK;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        return gy_err_set(err, GY_E_IO, "seed: the system gives no random numbers; give one with --seed");
    job->rq.sample.seed = seed >> 11;
    return GY_OK;
}

/* GY_AGAIN: the queue is full. A line of a file that the engine refuses is answered by an error, so that a batch goes
 * on; what flags ask for ends the program. */
static gy_status submit(run_state *r, size_t i, gy_err *err) {
    gy_job *job = &r->jobs.job.data[i];
    int32_t id;
    job->rq.on_token = gy_answer_on_token;
    job->rq.on_prompt = gy_answer_on_prompt;
    job->rq.on_finish = on_finish;
    job->rq.arg = r->answer[i];
    gy_status st = r->host->ops->submit(r->host, &job->rq, err, &id);
    if (st == GY_AGAIN && r->n_live) return st;
    if (st == GY_OK) {
        r->n_live++;
        r->n_fed = i + 1;
        return st;
    }
    if (!job->from_file) {
        if (st == GY_AGAIN) err->status = GY_E_LIMIT;
        gy_cli_name_flag(err);
        return gy_err_prefix(err, "%s", job->source);
    }
    if (st < 0 && gy_status_get_group(st) != GY_GROUP_REQUEST) return gy_err_prefix(err, "%s", job->source);
    refuse(r, i, err->msg);
    return GY_OK;
}

static gy_status feed_job(run_state *r, size_t i, gy_err *err) {
    const gy_job *job = &r->jobs.job.data[i];
    if (!r->answer[i]) {
        GY_TRY(gy_answer_create(job, &r->m, i, err, &r->answer[i]));
        r->answer[i]->owner = r;
        r->answer[i]->show_cached = r->a->prefix_cache == 0;
        GY_TRY(draw_seed(&r->jobs.job.data[i], err));
    }
    if (!job->refused) return submit(r, i, err);
    refuse(r, i, job->refused);
    return GY_OK;
}

static gy_engine_stats stats_of(const run_state *r) {
    gy_api_host_stats s = {0};
    if (r->host) r->host->ops->get_stats(r->host, &s);
    return s.e;
}

static int32_t queue_len(const run_state *r) {
    gy_engine_stats s = stats_of(r);
    return s.sched.n_waiting + s.sched.n_parked;
}

/* As many as the queue takes. A full one is asked again when it has become shorter. */
static gy_status feed(run_state *r, gy_err *err) {
    if (r->n_waiting >= 0 && r->n_live && queue_len(r) >= r->n_waiting) return GY_OK;
    r->n_waiting = -1;
    while (r->n_fed < r->jobs.job.len) {
        if (is_done(r, r->n_fed)) {
            r->n_fed++;
            continue;
        }
        gy_status st = feed_job(r, r->n_fed, err);
        if (st < 0) return st;
        if (st != GY_AGAIN) continue;
        r->n_waiting = queue_len(r);
        return GY_OK;
    }
    return GY_OK;
}

/* ---- showing ---- */

static void say_error(run_state *r, const gy_answer *a) {
    const gy_err *e = gy_answer_error(a);
    if (!e || ++r->n_error > MAX_ERROR_LINES + 1) return;
    gy_batch_progress_wipe(&r->progress);
    if (r->n_error > MAX_ERROR_LINES)
        fputs("gyre: more requests ended in errors; their lines say why\n", stderr);
    else if (a->job->from_file)
        fprintf(stderr, "gyre: request %zu (%s): %s\n", a->index, a->job->source, e->msg);
    else
        fprintf(stderr, "gyre: request %zu: %s\n", a->index, e->msg);
}

static void drop(run_state *r, size_t i) {
    say_error(r, r->answer[i]);
    gy_answer_free(r->answer[i]);
    r->answer[i] = NULL;
}

static gy_status show_in_file(run_state *r, gy_err *err) {
    while (r->ended) {
        gy_answer *a = r->ended;
        GY_TRY(gy_batch_write(&r->file, a, err));
        r->ended = a->next;
        if (!r->ended) r->ended_tail = &r->ended;
        drop(r, a->index);
    }
    return GY_OK;
}

static void show_in_order(run_state *r) {
    for (; r->n_shown < r->n_fed && gy_answer_done(r->answer[r->n_shown]); r->n_shown++) {
        if (r->a->json)
            gy_answer_put_json(r->answer[r->n_shown], NULL, &r->line);
        else
            gy_answer_put_block(r->answer[r->n_shown], &r->line);
        drop(r, r->n_shown);
    }
}

static void show_stream(run_state *r) {
    if (!r->answer[0]) return;
    gy_answer_put_new(r->answer[0], &r->line);
    if (gy_answer_done(r->answer[0])) drop(r, 0);
}

/* What can be shown now. GY_DONE when nobody reads any more. */
static gy_status show(run_state *r, gy_err *err) {
    if (r->a->output) return show_in_file(r, err);
    r->ended = NULL;
    r->ended_tail = &r->ended;
    if (r->stream)
        show_stream(r);
    else
        show_in_order(r);
    if (!r->line.len && !r->line.failed) return GY_OK;
    gy_batch_progress_wipe(&r->progress);
    if (!gy_cli_put_str(&r->line)) return GY_OK;
    return r->line.failed ? gy_err_set(err, GY_E_NOMEM, "no memory for the output") : GY_DONE;
}

static void show_progress(run_state *r) {
    int64_t now = gy_clock_ns();
    if (!gy_batch_progress_due(&r->progress, now)) return;
    gy_engine_stats s = stats_of(r);
    gy_batch_counts c = {.n_done = r->n_done,
                         .n_total = r->jobs.job.len,
                         .n_before = r->n_before,
                         .n_tok = s.n_output_tok,
                         .n_loop = s.n_loop_sum};
    gy_batch_progress_show(&r->progress, &c, now);
}

/* ---- go ---- */

/* As long as progress and signals may wait. */
static void wait_for_workers(const run_state *r) {
    enum { WAIT_MS = 100 };
    struct pollfd p = {.fd = r->host->fd, .events = POLLIN};
    poll(&p, 1, WAIT_MS);
}

/* GY_DONE: the reader left. */
static gy_status run_steps(run_state *r, gy_err *err) {
    for (;;) {
        gy_status st = feed(r, err);
        if (st >= 0) st = show(r, err);
        if (st < 0 || st == GY_DONE) return st;
        if (!r->n_live && r->n_fed == r->jobs.job.len) return GY_OK;
        if (interrupted) return gy_err_set(err, GY_E_CANCELLED, "interrupted");
        st = r->host->ops->step(r->host, err);
        if (st < 0) return st;
        if (st == GY_AGAIN) wait_for_workers(r);
        show_progress(r);
    }
}

static void begin_progress(run_state *r) {
    if (r->a->output || (!r->stream && r->jobs.job.len > 1 && !isatty(STDOUT_FILENO)))
        gy_batch_progress_begin(&r->progress, r->a->output != NULL);
}

static void print_summary(const run_state *r, int64_t begin_ns) {
    gy_engine_stats s = stats_of(r);
    double seconds = (double)(gy_clock_ns() - begin_ns) * 1e-9;
    if (!isatty(STDERR_FILENO) || seconds <= 0 || !s.n_output_tok) return;
    fprintf(stderr, "[%lld prompt tokens, %lld tokens in %.2f s: %.1f tok/s, %.2f loops a token, %s %s]\n",
            (long long)s.n_prompt_tok, (long long)s.n_output_tok, seconds, (double)s.n_output_tok / seconds,
            (double)s.n_loop_sum / (double)s.n_output_tok, r->m.be->ops->name, r->m.act == GY_BF16 ? "bf16" : "f32");
}

static void log_work(const run_state *r) {
    gy_engine_stats s = stats_of(r);
    if (!r->host) return;
    gy_log(GY_LOG_INFO, "cli", "work done",
           "steps=%lld passes=%lld rows=%lld parked=%lld dropped=%lld computed_again=%lld host_us_per_step=%.1f",
           (long long)s.n_step, (long long)s.n_pass, (long long)s.n_row, (long long)s.sched.n_park,
           (long long)s.sched.n_drop, (long long)s.sched.n_recomputed_tok,
           s.n_step ? (double)(s.step_ns - s.model_ns - s.sample_ns) * 1e-3 / (double)s.n_step : 0.0);
}

/* 1 if this run, or an earlier one that the file remembers, had a request that ended in an error. */
static int end_well(run_state *r, int64_t begin_ns) {
    gy_cli_flush();
    log_work(r);
    print_summary(r, begin_ns);
    if (r->file.n_error > r->n_error)
        gy_cli_note("%s: %zu answers are errors; delete their lines to have them tried again", r->a->output,
                    r->file.n_error);
    return r->n_error || r->file.n_error ? GY_CLI_FAILED : GY_CLI_OK;
}

static int end_badly(const run_state *r, const gy_err *err) {
    int rc = gy_cli_fail(err);
    if (r->file.fd >= 0)
        gy_cli_note("%s: %zu of %zu prompts are answered; the same command goes on from there", r->a->output,
                    r->file.n_done, r->jobs.job.len);
    return rc;
}

static int run_close(run_state *r, int rc) {
    gy_err err = {0};
    gy_api_host_close(r->host);
    if (r->answer)
        for (size_t i = 0; i < r->jobs.job.len; i++) gy_answer_free(r->answer[i]);
    if (gy_batch_close(&r->file, &err) < 0) rc = gy_cli_fail(&err);
    gy_jobs_fini(&r->jobs);
    gy_cli_model_close(&r->m);
    gy_str_free(&r->line);
    return rc;
}

int gy_cmd_run(const gy_args *a) {
    run_state r = {.a = a, .file = {.fd = -1}, .n_waiting = -1};
    gy_err err = {0};
    int64_t begin_ns = 0;
    r.ended_tail = &r.ended;
    gy_status st = run_open(&r, &err);
    if (st >= 0) {
        if (a->output) catch_signals();
        begin_ns = gy_clock_ns();
        begin_progress(&r);
        st = run_steps(&r, &err);
        gy_batch_progress_wipe(&r.progress);
        if (r.stream && r.n_fed) gy_cli_puts("\n");
    }
    int rc = st < 0 ? end_badly(&r, &err) : end_well(&r, begin_ns);
    return run_close(&r, rc);
}
