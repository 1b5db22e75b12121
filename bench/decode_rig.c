/* The rig: see decode_rig.h. */
#include "decode_rig.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "ceiling.h"
#include "model/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM_BYTES = 1 << 30, PROBE_BYTES = 128 << 20 };

/* ---- the process ------------------------------------------------------------------------------------------------- */

size_t rig_status_bytes(const char *field) {
    char line[256];
    size_t len = strlen(field), kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, len) == 0 && line[len] == ':') kib = strtoull(line + len + 1, NULL, 10);
    fclose(f);
    return kib << 10;
}

int rig_peak_reset(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return -1;
    int bad = fputs("5", f) < 0;
    return fclose(f) || bad ? -1 : 0;
}

void rig_load_average(char out[64]) {
    FILE *f = fopen("/proc/loadavg", "r");
    if (!f || !fgets(out, 64, f)) strcpy(out, "unknown");
    if (f) fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

/* Seconds of all processors that were not idle: fields 1 to 3 and 6 to 8 of the first line (man 5 proc). */
static double busy_seconds(void) {
    double v[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    if (!f) return NAN;
    const int n = fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7);
    fclose(f);
    return n < 8 ? NAN : (v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / (double)sysconf(_SC_CLK_TCK);
}

rig_watch rig_watch_begin(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (rig_watch){.busy_s = busy_seconds(),
                       .own_s = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                                (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6,
                       .ns = gy_clock_ns()};
}

double rig_watch_others(const rig_watch *w) {
    const rig_watch now = rig_watch_begin();
    return (now.busy_s - w->busy_s - (now.own_s - w->own_s)) / ((double)(now.ns - w->ns) * 1e-9);
}

static void memory_note(rig *r) {
    gy_engine_stats s;
    size_t used = 0, anon = rig_status_bytes("RssAnon");
    gy_engine_get_stats(r->engine, &s);
    for (int g = 0; g < GY_KV_GROUPS; g++) used += (size_t)(s.kv_total[g] - s.kv_free[g]) * r->plan.block_bytes[g];
    if (used > r->kv_used) r->kv_used = used;
    size_t beyond = anon > r->kv_used ? anon - r->kv_used : 0;
    if (beyond > r->anon_peak) r->anon_peak = beyond;
}

/* ---- checkpoint -------------------------------------------------------------------------------------------------- */

static void synth_progress(void *arg, uint64_t done, uint64_t total) {
    int *shown = arg, percent = total ? (int)(done * 100 / total) : 100;
    if (!isatty(STDERR_FILENO) || percent == *shown) return;
    *shown = percent;
    fprintf(stderr, "\rwriting the checkpoint: %3d %%%s", percent, percent == 100 ? "\n" : "");
}

static gy_status parents_make(const char *dir, gy_err *err) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s", dir) >= sizeof path)
        return gy_err_set(err, GY_E_ARG, "--dir: longer than %zu bytes", sizeof path - 1);
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        if (!gy_dir_exists(path) && mkdir(path, 0777))
            return gy_err_set(err, GY_E_IO, "%s: cannot create this folder; use --dir", path);
        *p = '/';
    }
    return GY_OK;
}

/* Under another name until it is complete: a run that was killed leaves nothing that looks like a checkpoint. */
static gy_status checkpoint_make(const rig_options *o, gy_err *err) {
    char part[4096], file[4200];
    int shown = -1;
    if (gy_dir_exists(o->dir)) return GY_OK;
    GY_TRY(parents_make(o->dir, err));
    snprintf(part, sizeof part, "%s.part", o->dir);
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s", part, i ? "config.json" : "model.safetensors");
        unlink(file);
    }
    fprintf(stderr, "writing %s, once\n", o->dir);
    GY_TRY(gy_synth_write(o->shape, 1, part, synth_progress, &shown, err));
    if (rename(part, o->dir)) return gy_err_set(err, GY_E_IO, "%s: cannot rename it to %s", part, o->dir);
    return GY_OK;
}

/* ---- ceilings ---------------------------------------------------------------------------------------------------- */

double rig_probe(rig *r) {
    const char *p = r->room + r->room_at;
    r->room_at = (r->room_at + PROBE_BYTES) % ROOM_BYTES;
    return gy_ceiling_read(r->team, p, PROBE_BYTES, 1);
}

gy_status rig_init(rig *r, const rig_options *o) {
    *r = (rig){.o = *o};
    GY_TRY(checkpoint_make(o, &r->err));
    if (gy_team_create(o->n_thread, GY_PIN_AUTO, &r->team) < 0)
        return gy_err_set(&r->err, GY_E_NOMEM, "cannot start threads");
    r->room = gy_mem_map_pages(GY_MEM_BASE, ROOM_BYTES);
    if (!r->room) return gy_err_set(&r->err, GY_E_NOMEM, "no memory to measure read bandwidth");
    memset(r->room, 1, ROOM_BYTES); /* before this all pages are one page of zeros */
    r->fma = gy_ceiling_fma(r->team);
    return GY_OK;
}

void rig_fini(rig *r) {
    rig_model_close(r);
    if (r->room) gy_mem_unmap_pages(GY_MEM_BASE, r->room, ROOM_BYTES);
    gy_team_destroy(r->team);
    r->room = NULL;
    r->team = NULL;
}

/* ---- model and engine ---------------------------------------------------------------------------------------------
 */

static gy_engine_opts engine_opts(const rig *r, const gy_model_desc *d, int n_seq, int32_t max_len) {
    gy_engine_opts o;
    gy_engine_opts_default(&o);
    o.sched.max_seqs = n_seq;
    if (r->o.max_rows) o.sched.max_rows = r->o.max_rows;
    o.max_len = d->max_pos < max_len ? d->max_pos : max_len;
    return o;
}

gy_status rig_model_open(rig *r, int32_t max_len) {
    gy_model_desc d;
    gy_backend *inner = NULL;
    GY_TRY(gy_model_read_desc(r->o.dir, &r->err, &d));
    const gy_engine_opts eo = engine_opts(r, &d, 1, max_len);
    gy_cpu_opts co = {
        .act = r->o.act, .n_thread = r->o.n_thread, .limits = gy_loop_limits(&d, eo.sched.max_rows, eo.max_len)};
    GY_TRY(gy_backend_cpu_create(&co, &r->err, &inner));
    r->be = inner;
    if (r->o.split) {
        timed_init(&r->timed, inner);
        r->be = &r->timed.be;
    }
    return gy_model_load(r->o.dir, &(gy_model_load_opts){.be = r->be, .form = r->o.weights}, &r->err, &r->model);
}

void rig_model_close(rig *r) {
    rig_engine_close(r);
    gy_model_free(r->model);
    if (r->be && r->o.split)
        timed_fini(&r->timed);
    else
        gy_backend_destroy(r->be);
    r->model = NULL;
    r->be = NULL;
}

gy_status rig_engine_open(rig *r, int n_seq, int32_t max_len) {
    rig_engine_close(r);
    const gy_engine_opts eo = engine_opts(r, &r->model->d, n_seq, max_len);
    GY_TRY(gy_engine_make_plan(&r->model->d, r->o.act, &eo, 0, &r->err, &r->plan));
    return gy_engine_open(r->model, &eo, &r->err, &r->engine);
}

void rig_engine_close(rig *r) {
    gy_engine_close(r->engine);
    r->engine = NULL;
}

/* ---- tokens -------------------------------------------------------------------------------------------------------
 */

static gy_verdict on_token(void *arg, const gy_token_event *ev) {
    rig *r = arg;
    (void)ev;
    if (r) r->n_token++;
    return GY_CONTINUE;
}

static gy_status submit(rig *r, int seq, int n_prompt, int n_tok) {
    static int32_t prompt[RIG_MAX_PROMPT];
    int32_t id;
    gy_request q;
    gy_request_default(&q, &r->model->d);
    for (int i = 0; i < n_prompt; i++) prompt[i] = (int32_t)((7919 * (i + 1) + 104729 * seq) % r->model->d.n_vocab);
    q.prompt = prompt;
    q.n_prompt = n_prompt;
    q.max_tokens = n_tok;
    q.ignore_eos = 1;
    q.on_token = on_token;
    q.arg = seq ? NULL : r;
    return gy_engine_submit(r->engine, &q, &r->err, &id);
}

gy_status rig_generate(rig *r, int n_seq, int n_prompt, int n_tok) {
    r->n_round = r->n_token = 0;
    for (int s = 0; s < n_seq; s++) GY_TRY(submit(r, s, n_prompt, n_tok));
    rig_round now = {.read = rig_probe(r)};
    int64_t begin = gy_clock_ns();
    gy_status st = GY_OK;
    while (st == GY_OK && r->n_round <= RIG_MAX_TOKENS) {
        const int had = r->n_token;
        st = gy_engine_step(r->engine, &r->err);
        if (r->n_token == had) continue;
        now.ns = gy_clock_ns() - begin;
        r->round[r->n_round++] = now;
        memory_note(r);
        now.read = rig_probe(r);
        begin = gy_clock_ns();
    }
    return st < 0 ? st : GY_OK;
}
