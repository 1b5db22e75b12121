/* Opening a model for a command. Which dtype, which backend, which ids end a text: decided here and nowhere else. */
#include "cli/cli_model.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/progress.h"
#include "tensor/safetensors.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- device and dtype ---- */

gy_status gy_cli_check_device(const gy_args *a, gy_err *err) {
    uint32_t mask;
    if (!strncmp(a->device, "cuda", 4))
        return gy_err_set(err, GY_E_ARG, "--device: found '%.40s'; this build has no CUDA backend, use --device cpu",
                          a->device);
    if (strcmp(a->device, "cpu") != 0)
        return gy_err_set(err, GY_E_ARG, "--device: found '%.40s', expected cpu, cuda or cuda:N", a->device);
    if (!a->cpu_mask) return GY_OK;
    if (gy_cpu_parse_mask(a->cpu_mask, &mask))
        return gy_err_set(err, GY_E_ARG,
                          "--cpu-mask: found '%.80s', expected names among avx2, avx512, avx512_bf16, avx512_vnni, "
                          "amx_bf16, neon, separated by commas",
                          a->cpu_mask);
    gy_cpu_set_mask(mask);
    return GY_OK;
}

/* The dtype of most weight bytes; activations are F32 where that is F32 or F16 (there is no F16 arithmetic). */
gy_status gy_cli_choose_dtype(const char *dir, int dtype_opt, gy_err *err, gy_dtype *out, char *why, size_t why_cap) {
    gy_st *st = NULL;
    size_t bytes[GY_DTYPE_COUNT] = {0};
    if (dtype_opt >= 0) {
        *out = dtype_opt ? GY_BF16 : GY_F32;
        snprintf(why, why_cap, "asked for");
        return GY_OK;
    }
    GY_TRY(gy_st_open(dir, err, &st));
    for (size_t i = 0; i < gy_st_count(st); i++) bytes[gy_st_at(st, i)->dtype] += gy_st_at(st, i)->bytes;
    size_t total = gy_st_data_bytes(st);
    gy_st_close(st);
    gy_dtype most = bytes[GY_BF16] > bytes[GY_F32] ? GY_BF16 : GY_F32;
    if (bytes[GY_F16] > bytes[most]) most = GY_F16;
    *out = most == GY_BF16 ? GY_BF16 : GY_F32;
    snprintf(why, why_cap, "%.0f %% of the weight bytes are %s%s",
             total ? 100.0 * (double)bytes[most] / (double)total : 0.0, gy_dtype_name(most),
             most == GY_F16 ? ", which is computed in F32" : "");
    return GY_OK;
}

static gy_status create_backend(gy_cli_model *m, const gy_args *a, const gy_ops_limits *limits, gy_err *err) {
    gy_cpu_opts o = {.act = m->act, .n_thread = a->threads, .pin = 0, .limits = *limits};
    if (a->backend == 0) return gy_backend_ref_create(m->act, err, &m->be);
    gy_status st = gy_backend_cpu_create(&o, err, &m->be);
    if (st != GY_E_UNSUPPORTED || a->backend >= 0) return st;
    gy_log(GY_LOG_WARN, "cli", "slow: this processor has none of the features that the fast kernels need", NULL);
    return gy_backend_ref_create(m->act, err, &m->be);
}

/* ---- ids that end a text ---- */

int gy_cli_is_eos(const gy_cli_model *m, int32_t id) {
    for (int32_t i = 0; i < m->n_eos; i++)
        if (m->eos[i] == id) return 1;
    return 0;
}

static void add_eos(gy_cli_model *m, int64_t id) {
    if (id < 0 || id >= m->d.n_vocab || gy_cli_is_eos(m, (int32_t)id) || m->n_eos == GY_CLI_MAX_EOS) return;
    m->eos[m->n_eos++] = (int32_t)id;
}

static gy_status eos_from_generation_config(gy_cli_model *m, const char *path, gy_err *err) {
    gy_json *doc = NULL;
    if (!gy_file_exists(path)) return GY_OK;
    GY_TRY(gy_json_read(path, NULL, err, &doc));
    const gy_jv *v = gy_jv_get(gy_json_root(doc), "eos_token_id");
    gy_jtype t = gy_jv_type(v);
    gy_status st = GY_OK;
    if (t == GY_J_INT) add_eos(m, gy_jv_int(v, -1));
    if (t == GY_J_ARRAY)
        for (size_t i = 0; i < gy_jv_len(v); i++) add_eos(m, gy_jv_int(gy_jv_at(v, i), -1));
    if (t != GY_J_INT && t != GY_J_ARRAY && t != GY_J_NULL && t != GY_J_NONE)
        st = gy_err_set(err, GY_E_FORMAT, "%s: field \"eos_token_id\": found %s, expected a token id or a list of them",
                        path, gy_jtype_name(t));
    gy_json_free(doc);
    return st;
}

static gy_status collect_eos(gy_cli_model *m, gy_err *err) {
    for (int32_t i = 0; i < m->d.n_eos; i++) add_eos(m, m->d.eos[i]);
    char *path = gy_path_join(m->dir, "generation_config.json");
    if (!path) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    gy_status st = eos_from_generation_config(m, path, err);
    gy_mem_free(path);
    if (m->tok) add_eos(m, gy_tok_eos(m->tok));
    return st;
}

/* ---- open, load, close ---- */

static gy_status open_tokenizer(gy_cli_model *m, gy_err *err) {
    if (!gy_tok_exists(m->dir)) return GY_OK;
    GY_TRY(gy_tok_open(m->dir, err, &m->tok));
    if (gy_tok_ctx_create(m->tok, &m->ctx) < 0) return gy_err_set(err, GY_E_NOMEM, "no memory for the tokenizer");
    return GY_OK;
}

gy_status gy_cli_model_open(gy_cli_model *m, const char *dir, const gy_args *a, int want_tok, gy_err *err) {
    gy_cli_model n = {.dir = dir};
    gy_status st;
    GY_TRY(gy_cli_check_device(a, err));
    GY_TRY_GOTO(st, gy_model_read_desc(dir, err, &n.d), fail);
    if (want_tok) GY_TRY_GOTO(st, open_tokenizer(&n, err), fail);
    if (want_tok) GY_TRY_GOTO(st, collect_eos(&n, err), fail);
    GY_TRY_GOTO(st, gy_cli_choose_dtype(dir, a->dtype, err, &n.act, n.act_why, sizeof n.act_why), fail);
    *m = n;
    return GY_OK;
fail:
    gy_cli_model_close(&n);
    /* What a folder holds is no mistake of the command line: exit code 1, whatever the reader called it. */
    if (err->status == GY_E_ARG || err->status == GY_E_LIMIT) err->status = GY_E_FORMAT;
    return err->status;
}

gy_status gy_cli_model_load(gy_cli_model *m, const gy_args *a, const gy_ops_limits *limits, gy_err *err) {
    gy_progress p;
    GY_TRY(create_backend(m, a, limits, err));
    gy_progress_begin(&p, "loading");
    gy_model_load_opts o = {.be = m->be, .progress = gy_progress_update, .progress_arg = &p};
    gy_status st = gy_model_load(m->dir, &o, err, &m->model);
    gy_progress_end(&p);
    return st;
}

void gy_cli_model_close(gy_cli_model *m) {
    gy_model_free(m->model);
    gy_backend_destroy(m->be);
    gy_tok_ctx_destroy(m->ctx);
    gy_tok_close(m->tok);
    *m = (gy_cli_model){0};
}

/* ---- the model that comes with gyre ---- */

static const char *demo_at(gy_arena *arena, const char *bin_dir, const char *tail) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", bin_dir, tail);
    return gy_dir_exists(path) ? gy_arena_strndup(arena, path, strlen(path)) : NULL;
}

const char *gy_cli_find_demo(gy_arena *arena, gy_err *err) {
    static const char *const tails[] = {"../share/gyre/models/demo", "../../models/demo"};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash) *slash = '\0';
    for (size_t i = 0; slash && i < sizeof tails / sizeof *tails; i++) {
        const char *found = demo_at(arena, exe, tails[i]);
        if (found) return found;
    }
    gy_err_set(err, GY_E_ARG,
               "no MODEL was given and the one that comes with gyre is not there (looked for ../share/gyre/models/demo "
               "and ../../models/demo from the program's folder); name a model folder");
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
