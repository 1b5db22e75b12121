/* Opening a model for a command: what options and terminal add to api_model, which decides everything else. */
#include "cli/cli_model.h"

#include "base/cpu.h"
#include "base/file.h"
#include "cli/progress.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- device ---- */

static int is_cuda(const gy_args *a) {
    return !strncmp(a->device, "cuda", 4);
}

/* Several processes may have several. */
static int takes_devices(const gy_args *a) {
    return a->pd.prefill || a->pd.decode || a->pd.hybrid || a->bench.layouts || a->bench.cells.n || a->transport;
}

static gy_status no_such_device(const gy_args *a, gy_err *err) {
    return gy_err_set(err, GY_E_ARG, "--device: found '%.60s', expected cpu, cuda or cuda:N%s", a->device,
                      takes_devices(a) ? ", or a list: cuda:0,cuda:1" : "");
}

static int is_list(const char *text) {
    for (int32_t n;; text++) {
        char word[16];
        size_t len = strcspn(text, ",");
        if (len >= sizeof word) return 0;
        memcpy(word, text, len);
        word[len] = 0;
        if (gy_cuda_parse_device(word, NULL, &n) < 0) return 0;
        text += len;
        if (!*text) return 1;
    }
}

const char *gy_cli_backend(const gy_args *a) {
    if (is_cuda(a)) return a->device;
    return a->backend < 0 ? "auto" : a->backend ? "cpu" : "ref";
}

gy_status gy_cli_check_device(const gy_args *a, gy_err *err) {
    uint32_t mask;
    int32_t n;
    if (is_cuda(a)) {
        if (takes_devices(a) ? !is_list(a->device) : gy_cuda_parse_device(a->device, err, &n) < 0)
            return no_such_device(a, err);
        if (a->backend >= 0)
            return gy_err_set(err, GY_E_ARG, "--backend: it chooses among the CPU's; found with --device %.40s",
                              a->device);
    } else if (strcmp(a->device, "cpu") != 0) {
        return no_such_device(a, err);
    }
    if (!a->cpu_mask) return GY_OK;
    if (gy_cpu_parse_mask(a->cpu_mask, &mask))
        return gy_err_set(err, GY_E_ARG,
                          "--cpu-mask: found '%.80s', expected names among avx2, avx512, avx512_bf16, avx512_vnni, "
                          "amx_bf16, neon, separated by commas",
                          a->cpu_mask);
    gy_cpu_set_mask(mask);
    return GY_OK;
}

/* ---- open, load, close ---- */

const char *gy_cli_weights(const gy_args *a) {
    return gy_weight_form_name(a->weights < 0 ? GY_WEIGHTS_AS_FILE : (gy_weight_form)a->weights);
}

/* As the XDG base directory specification says: a relative path does not count. */
const char *gy_cli_pack_cache(const gy_args *a) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char text[PATH_MAX + 64];
    if (!a->pack_cache) return "off";
    if (strcmp(a->pack_cache, "auto") != 0) return a->pack_cache;
    int n = 0;
    if (xdg && xdg[0] == '/')
        n = snprintf(text, sizeof text, "auto:%s/gyre", xdg);
    else if (home && home[0] == '/')
        n = snprintf(text, sizeof text, "auto:%s/.cache/gyre", home);
    const char *full = n > 0 && n < (int)sizeof text ? gy_arena_strndup(a->arena, text, (size_t)n) : NULL;
    return full ? full : "auto";
}

const char *gy_cli_pin(const gy_args *a) {
    return a->pin == GY_PIN_ON ? "on" : a->pin == GY_PIN_OFF ? "off" : "auto";
}

static gy_status set_weights(gy_cli_model *m, const gy_args *a, gy_err *err) {
    gy_status st = gy_api_model_set_weights(m, gy_cli_weights(a), a->weights_head, err);
    m->pack = (gy_pack)a->pack;
    m->pin = (gy_pin)a->pin;
    if (st < 0)
        gy_err_set(err, st, "--weights-head: found without --weights fp8, int8, int4 or int8-channel");
    else if ((st = gy_api_model_set_cache(m, gy_cli_pack_cache(a), err)) < 0)
        gy_cli_name_flag(err);
    if (st < 0) gy_api_model_close(m);
    return st;
}

gy_status gy_cli_model_open(gy_cli_model *m, const char *dir, const gy_args *a, int want_tok, gy_err *err) {
    const char *dtype = a->dtype < 0 ? "auto" : a->dtype ? "bf16" : "f32";
    GY_TRY(gy_cli_check_device(a, err));
    if (gy_api_model_open(m, dir, dtype, want_tok, err) >= 0) return set_weights(m, a, err);
    /* What a folder holds is no mistake of the command line: exit code 1, whatever the reader called it. */
    if (err->status == GY_E_ARG || err->status == GY_E_LIMIT) err->status = GY_E_FORMAT;
    return err->status;
}

gy_status gy_cli_model_load(gy_cli_model *m, const gy_args *a, const gy_ops_limits *limits, const gy_engine_opts *e,
                            gy_err *err) {
    gy_progress p;
    gy_api_load_opts o = {.backend = gy_cli_backend(a),
                          .threads = a->threads,
                          .limits = limits,
                          .engine = e,
                          .progress = gy_progress_update,
                          .progress_arg = &p};
    gy_progress_begin(&p, "loading");
    gy_status st = gy_api_model_load(m, &o, err);
    gy_progress_end(&p);
    return st;
}

void gy_cli_model_close(gy_cli_model *m) {
    gy_api_model_close(m);
}

/* ---- the model that comes with gyre ---- */

#define SHIPPED "models/gyre-6m"

static const char *folder_at(gy_arena *arena, const char *bin_dir, const char *tail) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", bin_dir, tail);
    return gy_dir_exists(path) ? gy_arena_strndup(arena, path, strlen(path)) : NULL;
}

const char *gy_cli_find_shipped(gy_arena *arena, gy_err *err) {
    static const char *const tails[] = {"../share/gyre/" SHIPPED, "../../" SHIPPED};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash) *slash = '\0';
    for (size_t i = 0; slash && i < sizeof tails / sizeof *tails; i++) {
        const char *found = folder_at(arena, exe, tails[i]);
        if (found) return found;
    }
    gy_err_set(err, GY_E_ARG,
               "no MODEL was given and the one that comes with gyre is not there (looked for ../share/gyre/" SHIPPED
               " and ../../" SHIPPED " from the program's folder); name a model folder");
    return NULL;
}

void gy_cli_note_synthetic(const char *dir) {
    char *note = gy_path_join(dir, "NOTE.txt");
    if (note && gy_file_exists(note)) gy_cli_note("%s has random weights: its text means nothing", dir);
    gy_mem_free(note);
}

/* ---- token ids ---- */

static int is_separator(char c) {
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

gy_status gy_cli_parse_ids(const char *text, size_t len, const char *what, gy_err *err, gy_vec_i32 *ids) {
    for (size_t i = 0; i < len;) {
        char word[24];
        size_t n = 0;
        int64_t id;
        while (i < len && is_separator(text[i])) i++;
        while (i + n < len && !is_separator(text[i + n])) n++;
        if (!n) break;
        snprintf(word, sizeof word, "%.*s", (int)(n < 20 ? n : 20), text + i);
        if (gy_parse_i64(word, &id) || n >= 20 || id < 0 || id > INT32_MAX)
            return gy_err_set(err, GY_E_ARG, "%s: found '%s', expected token ids separated by commas", what, word);
        if (gy_vec_push(ids, GY_MEM_CLI, (int32_t)id)) return gy_err_set(err, GY_E_NOMEM, "no memory for token ids");
        i += n;
    }
    return GY_OK;
}

gy_status gy_cli_check_ids(const int32_t *ids, size_t n, int32_t n_vocab, const char *what, gy_err *err) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return gy_err_set(err, GY_E_ARG, "%s: token id %d (number %zu): expected 0 to %d, the model's vocabulary",
                              what, ids[i], i + 1, n_vocab - 1);
    return GY_OK;
}
