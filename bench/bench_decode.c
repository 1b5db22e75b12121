/* gyre-bench-decode: a checkpoint of a published shape from start to tokens on the CPU backend, beside what the machine
 * could do at most, measured in the same run (ceiling.h), and beside the goals that were set.
 *
 *   gyre-bench-decode [--shape ouro-1.4b] [--dir build/bench/SHAPE] [--act bf16|f32]
 *                     [--weights bf16|fp8|int8|int4|int8-channel] [--tokens 12]
 *                     [--cells start,decode-1,decode-8,decode-32,prefill-512,attn-1,attn-8,memory]
 *                     [--threads N] [--max-rows N] [--mask avx2] [--split] [--json]
 *
 *   start      backend, gy_model_load and gy_engine_open, from a warm page cache; and on to the first token of a prompt
 * of one token, which touches every page of the mapping for the first time decode-N   the time of a round of N
 * sequences (a token of each), and what it must move and compute prefill-N  a prompt of N tokens, as arithmetic attn-N
 * attention of N decode rows at a context of 2048, alone, each layer of each row in memory that was not read just
 * before memory     resident memory that is neither weights (mapped, RssFile) nor KV blocks that were in use
 *
 * The memory of some machines changes its speed from second to second. So read bandwidth is measured before each round
 * of decoding and each call of attention, and a share is that of the moment: the larger of bytes over bandwidth and
 * arithmetic over the f32 peak, over the time it took; the median of the rounds. "of the best" sets the shortest
 * round against the best bandwidth that the cell saw.
 * The checkpoint has random weights and is written once (2.9 GB for ouro-1.4b). --split adds where a round's time went,
 * by operation, through a backend that forwards (timed.h); it leaves fused operations to their parts.
 */
#include "base/clock.h"
#include "base/cpu.h"
#include "decode_cells.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_START = 3, MAX_CELLS = 16, MAX_LEN = RIG_MAX_PROMPT + 8 };

typedef struct options {
    rig_options rig;
    const char *cells;
    int tokens, json;
} options;

static const char *act_name(const rig *r) {
    return r->o.act == GY_BF16 ? "bf16" : "f32";
}

static double seconds_since(int64_t t0) {
    return (double)(gy_clock_ns() - t0) * 1e-9;
}

static int double_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- start and memory ----------------------------------------------------------------------------------------------
 */

static void start_print(const rig *r, const double ready[], const double token[], int json) {
    printf(json ? "{\"what\":\"start\",\"shape\":\"%s\",\"weights\":\"%s\",\"act\":\"%s\",\"ready_s\":%.4f,"
                  "\"ready_median_s\":%.4f,\"first_token_s\":%.4f,\"first_token_median_s\":%.4f}\n"
                : "start        %s, %s, %s: ready after %.4f s (median %.4f), first token after %.3f s (median %.3f)\n",
           r->o.shape, gy_weight_form_name(r->o.weights), act_name(r), ready[0], ready[N_START / 2], token[0],
           token[N_START / 2]);
}

/* Leaves the model open. */
static gy_status start_run(rig *r, int json) {
    double ready[N_START], token[N_START];
    for (int i = 0; i < N_START; i++) {
        rig_model_close(r);
        const int64_t t0 = gy_clock_ns();
        GY_TRY(rig_model_open(r, MAX_LEN));
        GY_TRY(rig_engine_open(r, 8, RIG_MAX_TOKENS + 8));
        ready[i] = seconds_since(t0);
        GY_TRY(rig_generate(r, 1, 1, 1));
        token[i] = ready[i] + (double)r->round[0].ns * 1e-9;
    }
    qsort(ready, N_START, sizeof *ready, double_order);
    qsort(token, N_START, sizeof *token, double_order);
    start_print(r, ready, token, json);
    return GY_OK;
}

/* Of a process of its own: the ceilings' memory is given back first, and a model is opened for it. */
static gy_status memory_run(rig *r, int tokens, int json) {
    rig_model_close(r);
    r->kv_used = r->anon_peak = 0;
    const double own = (double)rig_status_bytes("RssAnon"); /* the probes' memory, mostly */
    const int known = rig_peak_reset() == 0;
    GY_TRY(rig_model_open(r, MAX_LEN));
    GY_TRY(rig_engine_open(r, 8, RIG_MAX_TOKENS + 8));
    GY_TRY(rig_generate(r, 8, 64, tokens));
    const double peak = (double)rig_status_bytes("VmHWM"), file = (double)rig_status_bytes("RssFile");
    const double kv = (double)r->kv_used, beyond = known ? (peak - file - kv - own) * 1e-6 : -1;
    printf(json ? "{\"what\":\"memory\",\"shape\":\"%s\",\"weights\":\"%s\",\"act\":\"%s\",\"weights_mb\":%.1f,"
                  "\"converted_mb\":%.1f,\"kv_used_mb\":%.1f,\"beyond_mb\":%.1f,\"vmhwm_beyond_mb\":%.1f}\n"
                : "memory       %s, %s, %s: weights %.1f MB (%.1f MB of them converted), %.1f MB of KV in use; beyond "
                  "weights that "
                  "are mapped and KV %.1f MB (RssAnon), %.1f MB (VmHWM - RssFile)\n",
           r->o.shape, gy_weight_form_name(r->o.weights), act_name(r), (double)r->model->weight_bytes * 1e-6,
           (double)r->model->converted_bytes * 1e-6, kv * 1e-6, ((double)r->anon_peak - own) * 1e-6, beyond);
    return GY_OK;
}

/* ---- main
 * ------------------------------------------------------------------------------------------------------------ */

static void machine_print(rig *r, int json) {
    char load[64];
    rig_load_average(load);
    printf(
        json
            ? "{\"what\":\"machine\",\"cpu\":\"%s\",\"threads\":%d,\"read_gbytes_per_s\":%.2f,\"fma_gflop_per_s\":%.1f,"
              "\"load\":\"%s\"}\n"
            : "%s, %d threads; now read %.2f GB/s, f32 fma %.1f GFLOP/s; load %s\n",
        gy_cpu_model(), gy_team_size(r->team), rig_probe(r) * 1e-9, r->fma * 1e-9, load);
    fflush(stdout);
}

static gy_status one(rig *r, const options *o, const char *name, cell_result *cell, int *n_cell) {
    if (strcmp(name, "start") == 0) return start_run(r, o->json);
    if (strcmp(name, "memory") == 0) return memory_run(r, o->tokens, o->json);
    if (!r->model) GY_TRY(rig_model_open(r, MAX_LEN));
    GY_TRY(cell_run(r, name, o->tokens, &cell[*n_cell]));
    cell_print(r, &cell[*n_cell], o->json);
    if (o->rig.split && strncmp(name, "attn", 4) != 0) cell_print_split(r, &cell[*n_cell], o->json);
    ++*n_cell;
    return GY_OK;
}

static gy_status bench_run(rig *r, const options *o) {
    cell_result cell[MAX_CELLS];
    char list[512], *save = NULL;
    int n_cell = 0;
    GY_TRY(rig_init(r, &o->rig));
    machine_print(r, o->json);
    snprintf(list, sizeof list, "%s", o->cells);
    for (char *name = strtok_r(list, ",", &save); name && n_cell < MAX_CELLS; name = strtok_r(NULL, ",", &save))
        GY_TRY(one(r, o, name, cell, &n_cell));
    if (!o->json && n_cell) cell_print_table(r, cell, n_cell);
    return GY_OK;
}

static int int_read(const char *s, int lo, int hi, int *out) {
    char *end;
    long v = strtol(s, &end, 10);
    if (*end || end == s || v < lo || v > hi) return 0;
    *out = (int)v;
    return 1;
}

static int act_read(options *o, const char *s) {
    o->rig.act = strcmp(s, "f32") == 0 ? GY_F32 : GY_BF16;
    return strcmp(s, act_name(&(rig){.o = o->rig})) == 0;
}

static int option_read(options *o, const char *name, const char *value) {
    uint32_t mask;
    if (strcmp(name, "--act") == 0) return act_read(o, value);
    if (strcmp(name, "--weights") == 0) return gy_weight_form_parse(value, &o->rig.weights) == 0;
    if (strcmp(name, "--tokens") == 0) return int_read(value, 1, RIG_MAX_TOKENS - 1, &o->tokens);
    if (strcmp(name, "--threads") == 0) return int_read(value, 0, 1024, &o->rig.n_thread);
    if (strcmp(name, "--max-rows") == 0) return int_read(value, 1, 65536, &o->rig.max_rows);
    if (strcmp(name, "--shape") == 0) {
        o->rig.shape = value;
    } else if (strcmp(name, "--dir") == 0) {
        o->rig.dir = value;
    } else if (strcmp(name, "--cells") == 0) {
        o->cells = value;
    } else if (strcmp(name, "--mask") == 0) {
        if (gy_cpu_parse_mask(value, &mask)) return 0;
        gy_cpu_set_mask(mask);
    } else {
        return 0;
    }
    return 1;
}

static int options_read(options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            o->json = 1;
        } else if (strcmp(argv[i], "--split") == 0) {
            o->rig.split = 1;
        } else if (i + 1 < argc && option_read(o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "usage: gyre-bench-decode [--shape ouro-1.4b|nanbeige-3b|...] [--dir DIR] [--act bf16|f32] "
                            "[--weights bf16|fp8|int8|int4|int8-channel] [--cells "
                            "start,decode-1,decode-8,decode-32,prefill-512,attn-1,attn-8,memory] "
                            "[--tokens N] [--threads N] [--max-rows N] [--mask avx2,avx512] [--split] [--json]\n");
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    static rig r;
    char dir[256];
    options o = {.rig = {.shape = "ouro-1.4b", .weights = GY_WEIGHTS_BF16, .act = GY_BF16},
                 .cells = "start,decode-1,decode-8,decode-32,prefill-512,attn-1,attn-8,memory",
                 .tokens = 12};
    if (!options_read(&o, argc, argv)) return 2;
    snprintf(dir, sizeof dir, "build/bench/%s", o.rig.shape);
    if (!o.rig.dir) o.rig.dir = dir;
    gy_status st = bench_run(&r, &o);
    if (st < 0) fprintf(stderr, "gyre-bench-decode: %s\n", r.err.msg);
    rig_fini(&r);
    return st < 0 ? 1 : 0;
}
