/* gyre-bench-onednn: linear of the CPU backend beside oneDNN's product of the same shape, in turns within one run, at
 * the shapes of ouro-1.4b and nanbeige-3b. Built only where libdnnl-dev 2.x is installed; nothing else needs it.
 *
 *   gyre-bench-onednn [--form bf16|f32|s8] [--shape PART-OF-NAME] [--rows 1,8,64,256,2048] [--threads N] [--turns N]
 *                     [--seconds S] [--json]
 *
 * Both read weights that are cold (copies of them, more than 1 GiB together, in turn), packed in advance as each likes
 * it, with activations that are not. Both get the same number of threads, one for each core: ours pinned by the team,
 * libgomp's by OMP_PROC_BIND (this program sets it and starts itself again). oneDNN is run in both of its forms, inner
 * product and matmul, and the one that is faster in a first trial stays. A turn is some calls of ours, then some of
 * theirs; between them both sides' threads get time to fall asleep. The ratio is theirs over ours (above 1: ours is
 * faster), the median of the turns' ratios of medians, since the memory of some machines changes its speed between
 * turns. One element's error is of the size of BF16's rounding; `differs` is the largest difference between the two
 * results over the largest value, and shows that both computed the same. Heads are taken with 64 rows at most: only
 * rows that end have logits.
 */
#include "ceiling.h"
#include "onednn_side.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/team.h"
#include "ops/ops.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SAMPLE = 2048, MAX_TURN = 32, MAX_ROWS = 4096, HEAD_ROWS = 64, COLD_ROWS = 8, MAX_K = 10752, N_ROWS = 5 };

typedef struct options {
    onednn_form form;
    const char *shape;
    int rows[N_ROWS], n_rows, n_thread, turns, json;
    double seconds; /* of a side in a turn */
} options;

typedef struct shape {
    const char *model, *name;
    int n[GY_WEIGHT_PARTS], k, head;
} shape;

static const shape shapes[] = {
    {"ouro-1.4b", "qkv", {2048, 2048, 2048}, 2048, 0}, {"ouro-1.4b", "out", {2048}, 2048, 0},
    {"ouro-1.4b", "gate+up", {5632, 5632}, 2048, 0},   {"ouro-1.4b", "down", {2048}, 5632, 0},
    {"ouro-1.4b", "head", {49152}, 2048, 1},           {"nanbeige-3b", "qkv", {6144, 1024, 1024}, 3072, 0},
    {"nanbeige-3b", "out", {3072}, 6144, 0},           {"nanbeige-3b", "gate+up", {10752, 10752}, 3072, 0},
    {"nanbeige-3b", "down", {3072}, 10752, 0},         {"nanbeige-3b", "head", {166144}, 3072, 1},
};
enum { N_SHAPE = sizeof shapes / sizeof *shapes };

typedef struct bench {
    options o;
    gy_team *team;
    gy_backend *be;
    double read, fma; /* ceilings, just before the cell */
} bench;

/* One shape with one number of rows. */
typedef struct cell {
    const shape *sh;
    int n, n_row, n_copy, at; /* at: the copy whose turn it is, of both sides */
    size_t bytes;             /* of a plain weight */
    char *plain;              /* [n_copy][bytes] */
    gy_weight *w;             /* [n_copy] */
    void *x, *y_ours, *y_theirs;
    onednn_product *theirs;
} cell;

typedef struct result {
    double best[2], median[2], ratio, ratio_best, differs; /* 0 ours, 1 theirs; seconds */
} result;

static double now(void) {
    return (double)gy_clock_ns() * 1e-9;
}

static int double_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, double_order);
    return v[n / 2];
}

static gy_dtype act_of(onednn_form f) {
    return f == ONEDNN_F32 ? GY_F32 : GY_BF16;
}

/* ---- one cell --------------------------------------------------------------------------------------------------- */

/* Values between -1 and 1 of the cell's type; not periodic in a row's length. */
static void values_fill(void *p, size_t n, onednn_form form) {
    uint32_t w[4096];
    for (uint32_t i = 0; i < 1024; i++) gy_rand_block(1, 0, 0, GY_RAND_TEST, i, w + 4 * i);
    for (size_t i = 0; i < n; i++) {
        const uint32_t r = w[(i + i / 4093) % 4096] + (uint32_t)i * 0x9e3779b9U;
        const float v = gy_rand_unit_f32(r) * 2 - 1;
        if (form == ONEDNN_F32) ((float *)p)[i] = v;
        if (form == ONEDNN_BF16) ((uint16_t *)p)[i] = gy_f32_to_bf16(v);
        if (form == ONEDNN_S8) ((uint8_t *)p)[i] = (uint8_t)(r >> 25);
    }
}

static size_t elem_bytes(onednn_form f) {
    return f == ONEDNN_F32 ? 4 : f == ONEDNN_BF16 ? 2 : 1;
}

static void weights_ours(bench *b, cell *c) {
    for (int i = 0; i < c->n_copy; i++) {
        gy_weight *w = &c->w[i];
        const char *p = c->plain + c->bytes * (size_t)i;
        *w = (gy_weight){.dtype = act_of(b->o.form), .n = c->n, .k = c->sh->k};
        for (; w->n_part < GY_WEIGHT_PARTS && c->sh->n[w->n_part]; w->n_part++) {
            const int n = c->sh->n[w->n_part];
            w->part[w->n_part].data = p;
            w->part[w->n_part].n = n;
            p += (size_t)n * (size_t)c->sh->k * elem_bytes(b->o.form);
        }
        if (b->be->ops->prepare) b->be->ops->prepare(b->be, w, c->sh->head);
    }
}

static void cell_fini(bench *b, cell *c) {
    onednn_destroy(c->theirs);
    for (int i = 0; c->w && b->be->ops->unprepare && i < c->n_copy; i++) b->be->ops->unprepare(b->be, &c->w[i]);
    if (c->plain) gy_mem_unmap_pages(GY_MEM_BASE, c->plain, c->bytes * (size_t)c->n_copy);
    gy_mem_free(c->w);
    gy_mem_free(c->x);
    gy_mem_free(c->y_ours);
    gy_mem_free(c->y_theirs);
}

static void call(bench *b, cell *c, int side) {
    c->at = (c->at + 1) % c->n_copy;
    if (side) {
        onednn_run(c->theirs, c->at);
        return;
    }
    gy_linear_args a = {.x = c->x, .w = &c->w[c->at], .n_row = c->n_row, .y_f32 = c->sh->head, .y = c->y_ours};
    b->be->ops->linear(b->be, &a);
}

/* Both sides' threads spin for a while after a call; neither shall take the other's core. */
static void rest(void) {
    const struct timespec t = {.tv_nsec = 15000000};
    nanosleep(&t, NULL);
}

/* One call that is not counted, then calls for the turn's time, at least two. Returns how many; sorts v. */
static int turn(bench *b, cell *c, int side, double *v) {
    int n = 0;
    call(b, c, side);
    for (double end = now() + b->o.seconds; n < 2 || (now() < end && n < MAX_SAMPLE / MAX_TURN); n++) {
        const double t0 = now();
        call(b, c, side);
        v[n] = now() - t0;
    }
    rest();
    qsort(v, (size_t)n, sizeof *v, double_order);
    return n;
}

static onednn_product *theirs_make(const bench *b, const cell *c, int matmul, int n_copy) {
    const onednn_shape s = {b->o.form, c->sh->head, matmul, c->n_row, c->n, c->sh->k};
    return onednn_create(&s, c->plain, c->x, c->y_theirs, n_copy);
}

/* The faster one of oneDNN's two operations, tried with less memory. */
static int theirs_choose(bench *b, cell *c) {
    double best[2] = {1e9, 1e9}, v[MAX_SAMPLE / MAX_TURN];
    const int n_copy = c->n_copy;
    c->n_copy = n_copy / 8 + 2;
    for (int matmul = 0; matmul < 2; matmul++) {
        c->theirs = theirs_make(b, c, matmul, c->n_copy);
        if (c->theirs && turn(b, c, 1, v)) best[matmul] = v[0];
        onednn_destroy(c->theirs);
    }
    c->n_copy = n_copy;
    c->at = 0;
    c->theirs = theirs_make(b, c, best[1] < best[0], n_copy);
    if (!c->theirs)
        fprintf(stderr, "gyre-bench-onednn: %s %s, %d rows: not offered, or no memory\n", c->sh->model, c->sh->name,
                c->n_row);
    return c->theirs != NULL;
}

static int cell_init(bench *b, cell *c, const shape *sh, int n_row) {
    const onednn_form form = b->o.form;
    const size_t room = (size_t)1 << (n_row > COLD_ROWS ? 28 : 30);
    *c = (cell){.sh = sh, .n_row = n_row};
    for (int i = 0; i < GY_WEIGHT_PARTS; i++) c->n += sh->n[i];
    const size_t n_elem = (size_t)c->n * (size_t)sh->k;
    c->bytes = n_elem * elem_bytes(form);
    c->n_copy = (int)(room / c->bytes) + 2;
    c->plain = gy_mem_map_pages(GY_MEM_BASE, c->bytes * (size_t)c->n_copy);
    c->w = gy_mem_alloc(GY_MEM_BASE, (size_t)c->n_copy, sizeof *c->w);
    c->x = gy_mem_alloc(GY_MEM_BASE, (size_t)n_row * (size_t)sh->k, 4);
    c->y_ours = gy_mem_alloc(GY_MEM_BASE, (size_t)n_row * (size_t)c->n, 4);
    c->y_theirs = gy_mem_alloc(GY_MEM_BASE, (size_t)n_row * (size_t)c->n, 4);
    if (!c->plain || !c->w || !c->x || !c->y_ours || !c->y_theirs) return 0;
    values_fill(c->plain, n_elem, form);
    for (int i = 1; i < c->n_copy; i++) memcpy(c->plain + c->bytes * (size_t)i, c->plain, c->bytes);
    values_fill(c->x, (size_t)n_row * (size_t)sh->k, form);
    if (form != ONEDNN_S8) weights_ours(b, c);
    return theirs_choose(b, c);
}

static double value_at(const bench *b, const cell *c, const void *y, size_t i) {
    if (c->sh->head || b->o.form == ONEDNN_F32) return ((const float *)y)[i];
    return gy_bf16_to_f32(((const uint16_t *)y)[i]);
}

static double differs(const bench *b, const cell *c) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < (size_t)c->n_row * (size_t)c->n; i++) {
        const double x = value_at(b, c, c->y_ours, i), y = value_at(b, c, c->y_theirs, i), d = fabs(x - y);
        if (!(d <= most)) most = d;
        if (fabs(y) > largest) largest = fabs(y);
    }
    return most / largest;
}

static result measure(bench *b, cell *c) {
    static double all[2][MAX_SAMPLE];
    double ratio[MAX_TURN];
    int n[2] = {0, 0}, first = b->o.form == ONEDNN_S8;
    result r = {.differs = NAN, .ratio = NAN, .ratio_best = NAN, .best = {NAN, NAN}, .median = {NAN, NAN}};
    for (int t = 0; t < b->o.turns; t++) {
        double mid[2] = {NAN, NAN};
        for (int side = first; side < 2; side++) {
            const int k = turn(b, c, side, all[side] + n[side]);
            mid[side] = all[side][n[side] + k / 2];
            n[side] += k;
        }
        ratio[t] = mid[1] / mid[0];
    }
    for (int side = first; side < 2; side++) {
        r.median[side] = median_of(all[side], n[side]);
        r.best[side] = all[side][0];
    }
    if (first) return r;
    r.ratio = median_of(ratio, b->o.turns);
    r.ratio_best = r.best[1] / r.best[0];
    r.differs = differs(b, c);
    return r;
}

/* ---- figures ---------------------------------------------------------------------------------------------------- */

static const char *form_name(onednn_form f) {
    return f == ONEDNN_F32 ? "f32" : f == ONEDNN_BF16 ? "bf16" : "s8";
}

static const char *number(char out[32], double v, int digits) {
    strcpy(out, "null");
    if (!isnan(v)) snprintf(out, 32, "%.*f", digits, v);
    return out;
}

static void report_json(const bench *b, const cell *c, const result *r) {
    char v[7][32];
    const double us[] = {r->best[0] * 1e6, r->median[0] * 1e6, r->best[1] * 1e6, r->median[1] * 1e6};
    for (int i = 0; i < 4; i++) number(v[i], us[i], 1);
    number(v[4], r->ratio, 3);
    number(v[5], r->ratio_best, 3);
    number(v[6], r->differs, 6);
    printf("{\"what\":\"onednn\",\"form\":\"%s\",\"model\":\"%s\",\"op\":\"%s\",\"n\":%d,\"k\":%d,\"n_row\":%d,"
           "\"ours_best_us\":%s,\"ours_median_us\":%s,\"theirs_best_us\":%s,\"theirs_median_us\":%s,\"ratio\":%s,"
           "\"ratio_best\":%s,\"differs\":%s,\"impl\":\"%s\",\"read_gbytes_per_s\":%.1f,\"fma_gflop_per_s\":%.1f}\n",
           form_name(b->o.form), c->sh->model, c->sh->name, c->n, c->sh->k, c->n_row, v[0], v[1], v[2], v[3], v[4],
           v[5], v[6], onednn_impl(c->theirs), b->read * 1e-9, b->fma * 1e-9);
}

/* A row of the table; rates are those of the best calls. */
static void report_table(const bench *b, const cell *c, const result *r) {
    const double flop = 2.0 * c->n * c->sh->k * c->n_row, bytes = (double)c->bytes;
    char v[6][32];
    const double shown[] = {r->best[0] * 1e6,   r->median[0] * 1e6,       r->best[1] * 1e6,
                            r->median[1] * 1e6, flop / r->best[0] * 1e-9, flop / r->best[1] * 1e-9};
    for (int i = 0; i < 6; i++) number(v[i], shown[i], 0);
    printf("| %s %s %dx%d | %d | %s (%s) | %s (%s) | %.2f | **%.2f** | %s, %s | %.1f, %.1f | %.1f | %.0e | %s |\n",
           c->sh->model, c->sh->name, c->n, c->sh->k, c->n_row, v[0], v[1], v[2], v[3], r->ratio_best, r->ratio, v[4],
           v[5], bytes / r->best[0] * 1e-9, bytes / r->best[1] * 1e-9, b->read * 1e-9, r->differs,
           onednn_impl(c->theirs));
}

static void heading_print(const bench *b) {
    if (b->o.json) return;
    printf("%s on %s against oneDNN %s, %s, %d threads, f32 fma %.0f GFLOP/s\n\n", b->be->ops->name, gy_cpu_model(),
           onednn_version(), form_name(b->o.form), gy_team_size(b->team), b->fma * 1e-9);
    puts(
        "| product | rows | ours, us: best (median) | oneDNN | ratio of the best | ratio | GFLOP/s, best: ours, theirs "
        "| GB/s of weights | read ceiling | differs | kernel |\n|---|---|---|---|---|---|---|---|---|---|---|");
}

static int cell_bench(bench *b, const shape *sh, int n_row, void *room, size_t room_bytes) {
    cell c;
    b->read = gy_ceiling_read(b->team, room, room_bytes, 1);
    int ok = cell_init(b, &c, sh, n_row);
    if (ok) {
        const result r = measure(b, &c);
        if (b->o.json)
            report_json(b, &c, &r);
        else
            report_table(b, &c, &r);
        fflush(stdout);
    }
    cell_fini(b, &c);
    return ok;
}

static int figures(bench *b) {
    const size_t bytes = (size_t)1 << 30;
    char *room = gy_mem_map_pages(GY_MEM_BASE, bytes);
    if (!room) return 0;
    memset(room, 1, bytes);
    int ok = 1;
    for (int r = 0; r < b->o.n_rows; r++)
        for (int i = 0; i < N_SHAPE; i++) {
            char name[64];
            snprintf(name, sizeof name, "%s %s", shapes[i].model, shapes[i].name);
            if (b->o.shape && !strstr(name, b->o.shape)) continue;
            if (shapes[i].head && b->o.rows[r] > HEAD_ROWS) continue;
            if (!cell_bench(b, &shapes[i], b->o.rows[r], room, bytes)) ok = 0;
        }
    gy_mem_unmap_pages(GY_MEM_BASE, room, bytes);
    return ok;
}

/* ---- main ------------------------------------------------------------------------------------------------------- */

static int rows_read(options *o, const char *s) {
    for (o->n_rows = 0; *s && o->n_rows < N_ROWS; o->n_rows++) {
        char *end;
        const long v = strtol(s, &end, 10);
        if (end == s || v < 1 || v > MAX_ROWS || (*end && *end != ',')) return 0;
        o->rows[o->n_rows] = (int)v;
        s = *end ? end + 1 : end;
    }
    return !*s;
}

static int option_read(options *o, const char *name, const char *value) {
    if (strcmp(name, "--rows") == 0) return rows_read(o, value);
    if (strcmp(name, "--shape") == 0) {
        o->shape = value;
    } else if (strcmp(name, "--form") == 0) {
        o->form = ONEDNN_BF16;
        while (o->form < ONEDNN_S8 && strcmp(value, form_name(o->form)) != 0) o->form++;
        return strcmp(value, form_name(o->form)) == 0;
    } else if (strcmp(name, "--threads") == 0) {
        o->n_thread = atoi(value);
    } else if (strcmp(name, "--turns") == 0) {
        o->turns = atoi(value);
        return o->turns >= 1 && o->turns <= MAX_TURN;
    } else if (strcmp(name, "--seconds") == 0) {
        o->seconds = atof(value);
    } else {
        return 0;
    }
    return 1;
}

static int options_read(options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            o->json = 1;
        } else if (i + 1 < argc && option_read(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fputs("usage: gyre-bench-onednn [--form bf16|f32|s8] [--shape PART-OF-NAME] [--rows 1,8,64,256,2048] "
                  "[--threads N] [--turns N] [--seconds S] [--json]\n",
                  stderr);
            return 0;
        }
    }
    return 1;
}

/* libgomp reads its settings before main. Returns when they are set; else starts the program again. */
static void gomp_settings(const options *o, char **argv) {
    char n[16];
    snprintf(n, sizeof n, "%d", o->n_thread);
    const char *have = getenv("OMP_NUM_THREADS"), *bind = getenv("OMP_PROC_BIND");
    if (have && strcmp(have, n) == 0 && bind && strcmp(bind, "true") == 0) return;
    setenv("OMP_NUM_THREADS", n, 1);
    setenv("OMP_PROC_BIND", "true", 1);
    execv("/proc/self/exe", argv);
}

/* libgomp has bound this thread to its first core already, and threads inherit that: ours are to be bound by the team.
 */
static void cores_all(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE; i++) CPU_SET(i, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void cores_first(void) {
    cpu_set_t set;
    int cpu = 0;
    if (sched_getaffinity(0, sizeof set, &set)) return;
    while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &set)) cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static int bench_open(bench *b) {
    gy_cpu_opts o = {.act = act_of(b->o.form), .n_thread = b->o.n_thread, .pin = 1, .limits = {MAX_ROWS, MAX_K, 2048}};
    gy_err err = {0};
    if (gy_team_create(b->o.n_thread, GY_PIN_ON, &b->team) < 0 || gy_backend_cpu_create(&o, &err, &b->be) < 0) {
        fprintf(stderr, "gyre-bench-onednn: %s\n", err.msg[0] ? err.msg : "no memory");
        return 0;
    }
    cores_first();
    b->fma = gy_ceiling_fma(b->team);
    return 1;
}

int main(int argc, char **argv) {
    bench b = {.o = {.rows = {1, 8, 64, 256, 2048}, .n_rows = N_ROWS, .turns = 5, .seconds = 0.08}};
    if (!options_read(&b.o, argc, argv)) return 2;
    cores_all();
    if (b.o.n_thread < 1) b.o.n_thread = gy_cpu_count_physical();
    gomp_settings(&b.o, argv);
    int ok = bench_open(&b);
    if (ok) {
        heading_print(&b);
        ok = figures(&b);
    }
    gy_backend_destroy(b.be);
    gy_team_destroy(b.team);
    return ok ? 0 : 1;
}
