/* gyre inspect: what a folder or this machine offers, what gyre chooses from it, and why. Reads no weights: tensors are
 * counted from the headers.
 */
#include "base/cpu.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/cli_engine.h"
#include "cli/cli_model.h"
#include "cli/cli_pd.h"
#include "cli/cli_report.h"
#include "model/family.h"
#include "model/loop.h"
#include "pd/probe.h"
#include "tensor/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the model ---- */

static void report_desc(gy_report *r, const gy_model_desc *d) {
    static const char *const norms[] = {[GY_RESIDUAL_PRE] = "before each branch",
                                        [GY_RESIDUAL_BRANCH] = "before and after each branch",
                                        [GY_RESIDUAL_SUM] = "before each branch and after each sum"};
    gy_report_text(r, "family", "%s", d->family);
    gy_report_int(r, "n_vocab", d->n_vocab);
    gy_report_int(r, "n_embd", d->n_embd);
    gy_report_int(r, "n_ff", d->n_ff);
    gy_report_int(r, "n_head", d->n_head);
    gy_report_int(r, "n_head_kv", d->n_head_kv);
    gy_report_int(r, "head_dim", d->head_dim);
    gy_report_int(r, "prelude_layers", d->n_layer[GY_PRELUDE]);
    gy_report_int(r, "core_layers", d->n_layer[GY_CORE]);
    gy_report_int(r, "coda_layers", d->n_layer[GY_CODA]);
    gy_report_int(r, "n_loop", d->n_loop);
    gy_report_int(r, "max_pos", d->max_pos);
    gy_report_text(r, "norms", "%s", norms[d->norms]);
    gy_report_bool(r, "loop_norm", d->loop_norm);
    gy_report_text(r, "rope", "%s", d->rope == GY_ROPE_HALF ? "halves (rotate-half)" : "pairs (interleaved)");
    gy_report_num(r, "rope_theta", d->rope_theta);
    gy_report_bool(r, "exit_gate", d->has_gate);
    gy_report_bool(r, "initial_state", d->inject);
    gy_report_bool(r, "tied_head", d->tied);
}

/* In the order in which a token meets them. */
typedef enum part {
    PART_EMBED,
    PART_PRELUDE,
    PART_CORE,
    PART_CODA,
    PART_NORM,
    PART_ADAPTER,
    PART_GATE,
    PART_HEAD,
    PART_HEAD_COPY,
    PART_ROPE,
    PART_OTHER,
    PARTS
} part;
static const char *const part_names[PARTS] = {"embedding",        "prelude",    "core",      "coda",
                                              "final_norm",       "adapter",    "exit_gate", "head",
                                              "head_copy_unused", "rope_table", "other"};

static part part_of_role(gy_role role) {
    switch (role) {
    case GY_ROLE_EMBED:
        return PART_EMBED;
    case GY_ROLE_HEAD:
        return PART_HEAD;
    case GY_ROLE_HEAD_COPY:
        return PART_HEAD_COPY;
    case GY_ROLE_FINAL_NORM:
        return PART_NORM;
    case GY_ROLE_GATE_W:
    case GY_ROLE_GATE_B:
        return PART_GATE;
    case GY_ROLE_ADAPTER:
        return PART_ADAPTER;
    case GY_ROLE_ROPE_TABLE:
        return PART_ROPE;
    default:
        return PART_OTHER;
    }
}

/* The family's own table says what a tensor is; what it does not name is for the loader to judge. */
static part part_of(const gy_family *f, const char *name) {
    for (int s = 0; s < GY_STAGES; s++)
        if (f->stage_prefix[s] && !strncmp(name, f->stage_prefix[s], strlen(f->stage_prefix[s])))
            return (part)(PART_PRELUDE + s);
    for (size_t i = 0; i < f->n_weight; i++)
        if (f->weights[i].role < GY_ROLE_LAYER && !strcmp(f->weights[i].name, name))
            return part_of_role(f->weights[i].role);
    return PART_OTHER;
}

typedef struct part_sum {
    uint64_t params, bytes;
} part_sum;

static void part_add(part_sum *sum, const gy_tensor_info *t) {
    sum->params += t->bytes / gy_dtype_bytes(t->dtype);
    sum->bytes += t->bytes;
}

static size_t count_files(const gy_st *st) {
    size_t n = 0;
    for (size_t i = 0; i < gy_st_count(st); i++) {
        size_t k = 0;
        while (k < i && strcmp(gy_st_at(st, k)->file, gy_st_at(st, i)->file) != 0) k++;
        n += k == i;
    }
    return n;
}

static void report_tensors(gy_report *r, const gy_family *f, const gy_st *st) {
    part_sum sums[PARTS] = {{0}}, all = {0};
    char key[64];
    for (size_t i = 0; i < gy_st_count(st); i++) {
        part_add(&sums[part_of(f, gy_st_at(st, i)->name)], gy_st_at(st, i));
        part_add(&all, gy_st_at(st, i));
    }
    gy_report_section(r, "weights");
    gy_report_int(r, "tensors", (int64_t)gy_st_count(st));
    gy_report_int(r, "files", (int64_t)count_files(st));
    gy_report_int(r, "params", (int64_t)all.params);
    gy_report_bytes(r, "bytes", all.bytes);
    for (int i = 0; i < PARTS; i++) {
        if (!sums[i].bytes) continue;
        snprintf(key, sizeof key, "%s_params", part_names[i]);
        gy_report_int(r, key, (int64_t)sums[i].params);
        snprintf(key, sizeof key, "%s_bytes", part_names[i]);
        gy_report_bytes(r, key, sums[i].bytes);
    }
    gy_report_section_end(r);
}

static gy_status report_weights(gy_report *r, const char *dir, gy_err *err) {
    gy_json *doc = NULL;
    gy_st *st = NULL;
    char *path = gy_path_join(dir, "config.json");
    if (!path) return gy_err_set(err, GY_E_NOMEM, "out of memory");
    gy_status rc = gy_json_read(path, NULL, err, &doc);
    gy_mem_free(path);
    if (rc == GY_OK) rc = gy_st_open(dir, err, &st);
    const gy_family *f = rc == GY_OK ? gy_family_find(gy_json_root(doc), err) : NULL;
    if (f) report_tensors(r, f, st);
    gy_st_close(st);
    gy_json_free(doc);
    return rc == GY_OK && !f ? err->status : rc;
}

/* What the weights take once they are held in each form; of a device, or of a host whose form is not the file's. */
static gy_status report_held(gy_report *r, const gy_cli_model *m, gy_err *err) {
    gy_report_section(r, "held_bytes");
    for (gy_weight_form f = GY_WEIGHTS_AS_FILE; f <= GY_WEIGHTS_INT8_CHANNEL; f++) {
        size_t bytes;
        GY_TRY(gy_model_device_bytes(m->dir, m->act, f, m->quant_head, err, &bytes));
        gy_report_bytes(r, gy_weight_form_name(f), bytes);
    }
    gy_report_section_end(r);
    return GY_OK;
}

/* KV of one token at full depth, by layout. */
static void report_kv_token(gy_report *r, const gy_cli_model *m) {
    static const struct {
        const char *key;
        gy_kv_layout layout;
    } rows[] = {{"last_exited", GY_KV_LAST_EXITED}, {"shared", GY_KV_SHARED}, {"cyclic:2", GY_KV_CYCLIC}};
    gy_report_section(r, "kv_token_bytes");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gy_engine_opts o;
        gy_engine_plan plan;
        gy_engine_opts_default(&o);
        o.max_len = m->d.max_pos;
        o.sched.max_seqs = 1;
        o.kv_blocks = 1;
        o.kv_layout = rows[i].layout;
        o.cyclic_k = rows[i].layout == GY_KV_CYCLIC ? 2 : 0;
        if (gy_engine_make_plan(&m->d, m->act, &o, 0, NULL, &plan) >= 0)
            gy_report_bytes(r, rows[i].key, plan.kv_token_bytes);
    }
    gy_report_section_end(r);
}

static void report_tokenizer(gy_report *r, const gy_cli_model *m) {
    gy_report_section(r, "tokenizer");
    if (m->tok) {
        gy_report_text(r, "kind", "%s", gy_tok_kind(m->tok));
        gy_report_int(r, "n_vocab", gy_tok_n_vocab(m->tok));
        gy_report_int(r, "bos", gy_tok_bos(m->tok));
        gy_report_int(r, "eos", gy_tok_eos(m->tok));
    } else {
        gy_report_text(r, "kind", "none: only token ids are accepted");
    }
    gy_report_ids(r, "text_ends_at", m->eos, m->n_eos);
    gy_report_section_end(r);
}

static gy_status report_model(gy_report *r, const gy_cli_model *m, gy_err *err) {
    gy_report_section(r, "model");
    gy_report_text(r, "folder", "%s", m->dir);
    report_desc(r, &m->d);
    gy_report_text(r, "dtype", "%s", m->act == GY_BF16 ? "bf16" : "f32");
    gy_report_text(r, "dtype_why", "%s", m->act_why);
    gy_report_text(r, "weights", "%s", gy_weight_form_name(m->form));
    gy_report_section_end(r);
    GY_TRY(report_weights(r, m->dir, err));
    GY_TRY(report_held(r, m, err));
    report_tokenizer(r, m);
    report_kv_token(r, m);
    return GY_OK;
}

#define DEFAULT_MIN_SHARE 0.5 /* cli_args.c tells of it */

/* ---- the plan, the machine, the transport ---- */

/* Nothing is loaded here: what the weights will take is unknown where a backend keeps its own copy, so what is free now
 * is the upper bound that is reported as such. */
static void report_plan(gy_report *r, const gy_args *a, const gy_engine_opts *o, const gy_engine_plan *p) {
    gy_report_section(r, "kv");
    gy_report_text(r, "layout", "%s", a->kv_layout);
    gy_report_text(r, "dtype", "%s", a->kv_dtype);
    gy_report_int(r, "max_seqs", o->sched.max_seqs);
    gy_report_int(r, "max_len", o->max_len);
    gy_report_bytes(r, "token_bytes", p->kv_token_bytes);
    gy_report_int(r, "tokens_per_gib", p->kv_token_bytes ? (int64_t)(((size_t)1 << 30) / p->kv_token_bytes) : 0);
    gy_report_int(r, "core_blocks", p->n_block[GY_KV_CORE]);
    gy_report_bytes(r, "core_block_bytes", p->block_bytes[GY_KV_CORE]);
    gy_report_int(r, "boundary_blocks", p->n_block[GY_KV_BOUNDARY]);
    gy_report_bytes(r, "boundary_block_bytes", p->block_bytes[GY_KV_BOUNDARY]);
    gy_report_bytes(r, "bytes", p->kv_bytes);
    gy_report_int(r, "tokens", p->kv_tokens);
    gy_report_text(r, "limit", "%s", p->limit);
    gy_report_bytes(r, "park_bytes", p->park_bytes);
    gy_report_bytes(r, "workspace_bytes", p->workspace_bytes);
    gy_report_bytes(r, "free_before_loading", p->available_bytes);
    gy_report_section_end(r);
}

static gy_status report_kv_plan(gy_report *r, const gy_args *a, const gy_cli_model *m, gy_err *err) {
    gy_engine_opts o;
    gy_engine_plan p;
    GY_TRY(gy_cli_engine_opts(a, err, &o));
    o.max_len = a->max_len ? a->max_len : m->d.max_pos;
    if (gy_engine_make_plan(&m->d, m->act, &o, gy_mem_available(), err, &p) < 0) {
        gy_cli_name_flag(err);
        return err->status;
    }
    report_plan(r, a, &o, &p);
    return GY_OK;
}

static void report_cpu(gy_report *r, uint32_t found) {
    char buf[128];
    gy_err err = {0};
    gy_backend *be = NULL;
    uint32_t used = gy_cpu_features();
    gy_cpu_opts o = {.act = GY_BF16, .n_thread = 1, .limits = {.max_row = 1, .max_k = 64, .max_len = 16}};
    gy_report_section(r, "cpu");
    gy_report_text(r, "model", "%s", gy_cpu_model());
    gy_cpu_format(found, buf, sizeof buf);
    gy_report_text(r, "features_found", "%s", buf[0] ? buf : "none");
    gy_cpu_format(found & ~used, buf, sizeof buf);
    gy_report_text(r, "features_masked", "%s", buf[0] ? buf : "none");
    gy_report_int(r, "physical_cores", gy_cpu_count_physical());
    gy_report_int(r, "numa_nodes", gy_cpu_count_nodes());
    if (gy_backend_cpu_create(&o, &err, &be) >= 0) {
        gy_report_text(r, "variant", "%s", be->ops->name);
        gy_report_text(r, "variant_why", "the fastest that the features in use allow");
    } else {
        gy_report_text(r, "variant", "ref");
        gy_report_text(r, "variant_why", "%s", err.msg);
    }
    gy_report_section_end(r);
    gy_backend_destroy(be);
}

static void report_lane(gy_report *r, const char *prefix, const gy_probe_result *p) {
    char key[64];
    snprintf(key, sizeof key, "%s_lanes", prefix);
    gy_report_text(r, key, "%s", p->lanes);
    snprintf(key, sizeof key, "%s_bytes", prefix);
    gy_report_bytes(r, key, p->bytes);
    snprintf(key, sizeof key, "%s_gb_per_s", prefix);
    gy_report_num(r, key, p->put_gbs);
    snprintf(key, sizeof key, "%s_share_of_memcpy", prefix);
    gy_report_num(r, key, p->put_gbs / p->copy_gbs);
    snprintf(key, sizeof key, "%s_us_of_64_bytes", prefix);
    gy_report_num(r, key, p->latency_us);
}

/* Inside a host it must be memory, and as fast; between hosts only that it works can be shown here. */
static gy_status judge_lane(const gy_args *a, const gy_probe_result *p, gy_err *err) {
    double least = isnan(a->pd.min_share) ? DEFAULT_MIN_SHARE : a->pd.min_share;
    if (p->put_gbs >= least * p->copy_gbs) return GY_OK;
    return gy_err_set(
        err, GY_E_PEER,
        "--transport: %.1f GB/s over %s is %.2f of a copy in memory (%.1f GB/s), expected %.2f; something "
        "slows it down, or allow it with --transport-min-share",
        p->put_gbs, p->lanes, p->put_gbs / p->copy_gbs, p->copy_gbs, least);
}

static gy_status judge_gpu_lane(const gy_args *a, const gy_probe_result *p, gy_err *err) {
    double least = gy_xfer_least_gbs(a->pd.min_share);
    if (p->put_gbs >= least) return GY_OK;
    return gy_err_set(err, GY_E_PEER,
                      "--transport: %.1f GB/s between the GPUs over %s, expected %.0f; look for NVLink between the two "
                      "(nvidia-smi topo -m) and for a UCX with CUDA (docs/pd.md), or allow it with "
                      "--transport-min-share",
                      p->put_gbs, p->lanes, least);
}

/* UCX obeys variables of its own; workers are started without them (pd/spawn.h), so what they would do is shown without
 * them too. For a program that has one thread and has not loaded UCX. */
static void forget_ucx_variables(void) {
    char name[64];
    for (size_t i = 0; environ[i];) {
        size_t n = strcspn(environ[i], "=");
        if (strncmp(environ[i], "UCX_", 4) || n >= sizeof name) {
            i++;
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)n, environ[i]);
        unsetenv(name); /* those behind it move up */
    }
}

static gy_status open_gpu(void *arg, int is_receiver, gy_err *err, gy_device **out) {
    const int32_t *ordinals = arg;
    return gy_cuda_device_open(ordinals[is_receiver], err, out);
}

/* "cuda:0,cuda:1"; one alone: to itself. */
static gy_status read_gpus(const char *text, gy_err *err, int32_t out[2]) {
    char word[16];
    size_t len = strcspn(text, ",");
    if (strchr(text + len + !!text[len], ','))
        return gy_err_set(err, GY_E_ARG, "--device: found '%.40s' with --transport, expected two GPUs", text);
    snprintf(word, sizeof word, "%.*s", (int)len, text);
    GY_TRY(gy_cuda_parse_device(word, err, &out[0]));
    return gy_cuda_parse_device(text[len] ? text + len + 1 : text, err, &out[1]);
}

static gy_status report_gpu_lane(gy_report *r, const gy_args *a, gy_probe_opts o, gy_err *err) {
    gy_probe_result p;
    int32_t gpus[2];
    if (!strcmp(a->device, "cpu")) return GY_OK;
    GY_TRY(read_gpus(a->device, err, gpus));
    o.open_device = open_gpu;
    o.arg = gpus;
    gy_status st = gy_probe(&o, err, &p);
    if (st < 0) {
        gy_report_text(r, "between_gpus", "%s", err->msg);
        return st;
    }
    report_lane(r, "between_gpus", &p);
    return judge_gpu_lane(a, &p, err);
}

static gy_status report_transport(gy_report *r, const gy_args *a, gy_err *err) {
    gy_probe_opts o = {.bytes = gy_probe_bytes()};
    gy_probe_result inside, across;
    GY_TRY(gy_cli_transfer_limits(a, err, &o.limits));
    forget_ucx_variables();
    gy_report_section(r, "transport");
    gy_status st = gy_probe(&o, err, &inside);
    if (st < 0) {
        gy_report_text(r, "chosen", "none");
        gy_report_text(r, "why", "%s", err->msg);
        gy_report_section_end(r);
        return st == GY_E_IO ? GY_OK : st; /* a machine without UCX is no failure */
    }
    gy_report_text(r, "chosen", "%s", inside.lanes);
    gy_report_num(r, "memcpy_gb_per_s", inside.copy_gbs);
    report_lane(r, "inside_host", &inside);
    const gy_probe_opts gpu = o;
    o.across_hosts = 1;
    o.bytes = o.bytes / 8 & ~(size_t)4095;
    gy_err no_net = {0};
    if (gy_probe(&o, &no_net, &across) >= 0)
        report_lane(r, "loopback_network", &across);
    else
        gy_report_text(r, "loopback_network", "%s", no_net.msg);
    st = report_gpu_lane(r, a, gpu, err);
    gy_report_text(r, "checked", "every byte of every put");
    gy_report_section_end(r);
    return st < 0 ? st : judge_lane(a, &inside, err);
}

static gy_status inspect_model(gy_report *r, const gy_args *a, gy_err *err) {
    gy_cli_model m = {0};
    gy_status st = gy_cli_model_open(&m, a->pos[0], a, 1, err);
    if (st >= 0) st = report_model(r, &m, err);
    if (st >= 0 && a->kv) st = report_kv_plan(r, a, &m, err);
    gy_cli_model_close(&m);
    return st;
}

static gy_status inspect_run(gy_report *r, const gy_args *a, gy_err *err) {
    uint32_t found = gy_cpu_features();
    if (!a->n_pos && !a->cpu && !a->transport)
        return gy_err_set(err, GY_E_ARG, "%s; usage: gyre inspect MODEL, or --cpu, or --transport",
                          a->kv ? "--kv needs a MODEL" : "nothing to look at");
    if (!a->n_pos && a->kv) return gy_err_set(err, GY_E_ARG, "--kv needs a MODEL");
    if (!a->transport && strcmp(a->device, "cpu") != 0)
        return gy_err_set(err, GY_E_ARG, "--device: found without --transport, which is what it is about here");
    GY_TRY(gy_cli_check_device(a, err));
    if (a->n_pos) GY_TRY(inspect_model(r, a, err));
    if (a->cpu) report_cpu(r, found);
    return a->transport ? report_transport(r, a, err) : GY_OK;
}

int gy_cmd_inspect(const gy_args *a) {
    gy_report r;
    gy_err err = {0};
    gy_report_begin(&r, a->json);
    gy_status st = inspect_run(&r, a, &err);
    gy_report_end(&r);
    if (st >= 0 || err.status == GY_E_PEER) gy_cli_put_str(&r.out); /* a slow lane is shown all the same */
    gy_str_free(&r.out);
    return st < 0 ? gy_cli_fail(&err) : GY_CLI_OK;
}
