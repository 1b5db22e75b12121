/* gyre synth: writes a checkpoint with random weights (model/synth.h does the work). */
#include "cli/cli.h"
#include "cli/cli_args.h"
#include "cli/progress.h"
#include "model/synth.h"

#include <stdio.h>

static void on_progress(void *arg, uint64_t done, uint64_t total) {
    gy_progress_update(arg, (size_t)done, (size_t)total);
}

static gy_status synth_write(const gy_args *a, gy_err *err, gy_synth_info *info) {
    gy_progress p;
    if (!a->shape)
        return gy_err_set(err, GY_E_ARG,
                          "no --shape; usage: gyre synth --shape SHAPE OUT (gyre synth --help lists them)");
    if (!a->n_pos) return gy_err_set(err, GY_E_ARG, "no OUT; usage: gyre synth --shape SHAPE OUT");
    if (gy_synth_get_info(a->shape, err, info) < 0) return gy_err_prefix(err, "--shape");
    gy_progress_begin(&p, "writing");
    gy_status st = gy_synth_write(a->shape, a->synth_seed, a->pos[0], on_progress, &p, err);
    gy_progress_end(&p);
    if (st < 0 || !a->tokenizer) return st;
    return gy_synth_write_tokenizer(a->pos[0], info->n_vocab, err);
}

int gy_cmd_synth(const gy_args *a) {
    gy_err err = {0};
    gy_synth_info info = {0};
    char line[512];
    if (synth_write(a, &err, &info) < 0) return gy_cli_fail(&err);
    snprintf(line, sizeof line, "%.300s: %s, %zu tensors, %.1f MB of random weights, seed %llu%s\n", a->pos[0],
             info.name, info.n_tensor, (double)info.data_bytes / 1e6, (unsigned long long)a->synth_seed,
             a->tokenizer ? ", with a byte-level tokenizer" : "");
    gy_cli_puts(line);
    return GY_CLI_OK;
}
