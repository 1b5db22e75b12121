/* A backend whose memory the host cannot touch: what src/model and src/engine must respect for a GPU. The reference
 * backend's operations run on a region that is readable only while one of them, or an upload or download, runs; anybody
 * else who follows a pointer into it is stopped by the kernel. Results must be those of the plain reference backend.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "support/gold.h"

static struct {
    char *base;
    size_t used, cap, live;
    const gy_ops *real;
} own;

static void open_up(int on) {
    if (mprotect(own.base, own.cap, on ? PROT_READ | PROT_WRITE : PROT_NONE)) abort();
}

static int is_own(const void *p, size_t bytes) {
    return (const char *)p >= own.base && (const char *)p + bytes <= own.base + own.used;
}

static void *own_alloc(gy_backend *be, size_t bytes) {
    (void)be;
    size_t at = (own.used + 63) / 64 * 64;
    if (at + bytes > own.cap) return NULL;
    own.used = at + bytes;
    own.live += bytes;
    return own.base + at;
}

static void own_free(gy_backend *be, void *p, size_t bytes) {
    (void)be;
    if (p) own.live -= bytes;
}

static void own_upload(gy_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    assert_true(is_own(dst, bytes) && !is_own(src, 1));
    open_up(1);
    memcpy(dst, src, bytes);
    open_up(0);
}

static void own_download(gy_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    assert_true(is_own(src, bytes) && !is_own(dst, 1));
    open_up(1);
    memcpy(dst, src, bytes);
    open_up(0);
}

static void own_destroy(gy_backend *be) {
    be->ops = own.real;
    be->ops->destroy(be);
}

#define OWN(op, args)                                                                                                  \
    static void own_##op(gy_backend *be, const args *a) {                                                              \
        open_up(1);                                                                                                    \
        own.real->op(be, a);                                                                                           \
        open_up(0);                                                                                                    \
    }
OWN(embed, gy_embed_args)
OWN(norm, gy_norm_args)
OWN(linear, gy_linear_args)
OWN(rope_table, gy_rope_table_args)
OWN(rope_kv, gy_rope_kv_args)
OWN(attn, gy_attn_args)
OWN(residual, gy_residual_args)
OWN(silu_mul, gy_silu_mul_args)
OWN(concat, gy_concat_args)
OWN(gather, gy_move_args)
OWN(scatter, gy_move_args)
OWN(gate, gy_gate_args)
OWN(latent_diff, gy_latent_diff_args)
OWN(latent_init, gy_latent_init_args)

static gy_backend *own_create(gy_dtype act) {
    static gy_ops ops;
    gy_backend *be;
    gy_err err;
    assert_int_equal(gy_backend_ref_create(act, &err, &be), GY_OK);
    own.real = be->ops;
    own.used = own.live = 0;
    own.cap = (size_t)512 << 20;
    own.base = mmap(NULL, own.cap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(own.base != MAP_FAILED);
    ops = *be->ops;
    ops.alloc = own_alloc;
    ops.free = own_free;
    ops.upload = own_upload;
    ops.download = own_download;
    ops.destroy = own_destroy;
    ops.embed = own_embed;
    ops.norm = own_norm;
    ops.linear = own_linear;
    ops.rope_table = own_rope_table;
    ops.rope_kv = own_rope_kv;
    ops.attn = own_attn;
    ops.residual = own_residual;
    ops.silu_mul = own_silu_mul;
    ops.concat = own_concat;
    ops.gather = own_gather;
    ops.scatter = own_scatter;
    ops.gate = own_gate;
    ops.latent_diff = own_latent_diff;
    ops.latent_init = own_latent_init;
    be->ops = &ops;
    be->is_host = 0;
    return be;
}

/* ---- the same work on both -------------------------------------------------------------------------------------- */

enum { N = 6, N_ID = 20, MAX_VOCAB = 384, MAX_EMBD = 128 };

typedef struct outcome {
    size_t n_vocab;
    gold_result res[N], again[N];
    float logits[N_ID * MAX_VOCAB], hidden[8 * MAX_EMBD], gates[N_ID * 8];
} outcome;

static gy_status keep(void *arg, int32_t pos, const float *logits, gy_err *err) {
    (void)err;
    outcome *out = arg;
    memcpy(out->logits + (size_t)pos * MAX_VOCAB, logits, out->n_vocab * sizeof *logits);
    return GY_OK;
}

/* Parks, drops and shares blocks: what the engine does with KV by itself. */
static void with_everything(gy_engine_opts *o, const void *arg) {
    (void)arg;
    o->prefix_cache = 1;
    o->sched.prefill_chunk = 5;
}

/* Each of them at several stages; the number is bounded, or a token that takes longer than the next turn never ends. */
static void disturb(void *arg, gy_engine *e, int step, const gold_result *res) {
    int *n = arg;
    static const gy_preempt ways[] = {GY_PREEMPT_PARK, GY_PREEMPT_PARK, GY_PREEMPT_RECOMPUTE};
    if (step % 2 == 0 || *n >= 16) return;
    *n += gy_engine_preempt(e, res[step / 2 % 4].id, 0, ways[step / 2 % 3]) == GY_OK;
}

static void work(gold_env *env, const gold_setup *s, outcome *out) {
    const gy_model_desc *d = &env->m->d;
    gy_exit_rule rules[N] = {{GY_EXIT_FIXED, 1.0, 1, 2, 0},          {GY_EXIT_KL, 0.1, 1, d->n_loop, 0},
                             {GY_EXIT_LATENT, 0.3, 1, d->n_loop, 1}, {GY_EXIT_ARGMAX, 1.0, 1, d->n_loop, 0},
                             {GY_EXIT_GATE, 0.5, 1, d->n_loop, 1},   {GY_EXIT_SELECT, 0.6, 1, d->n_loop, 0}};
    gy_request r[N];
    gy_err err;
    int32_t ids[N_ID];
    int n = d->has_gate ? N : N - 2;
    memset(out, 0, sizeof *out);
    out->n_vocab = (size_t)d->n_vocab;
    for (int i = 0; i < N_ID; i++) ids[i] = (i * 37 + 11) % d->n_vocab;
    for (int i = 0; i < n; i++) {
        gy_request_default(&r[i], d);
        r[i].prompt = ids + i;
        r[i].n_prompt = N_ID - 2 * i - 1;
        r[i].max_tokens = 6;
        r[i].ignore_eos = 1;
        r[i].latent_noise = i % 2;
        r[i].exit = rules[i];
    }
    r[1].prompt_logprobs = 1;
    r[2].sample.repetition_penalty = 1.3f;
    int n_preempt = 0;
    gold_hook hook = {.before_step = disturb, .arg = &n_preempt};
    gold_engine(s, env);
    gold_run_hooked(env->e, r, n, out->res, &hook);
    gold_run_hooked(env->e, r, n, out->again, &hook); /* from the cache */
    gy_engine_stats st;
    gy_engine_get_stats(env->e, &st);
    assert_true(n_preempt > 4 && st.kv_copied_bytes > 0 && st.sched.n_drop > 0 && st.prefix.n_hit > 0);
    float init[N_ID * MAX_EMBD];
    for (int i = 0; i < N_ID * MAX_EMBD; i++) init[i] = (float)(i % 13) * 0.1f;
    assert_true(d->n_vocab <= MAX_VOCAB && d->n_embd <= MAX_EMBD && d->n_loop <= 8);
    gy_eval_opts o = {.ids = ids,
                      .n_tok = N_ID,
                      .max_rows = 7,
                      .initial_state = d->inject ? init : NULL,
                      .on_logits = keep,
                      .arg = out,
                      .hidden = out->hidden,
                      .gates = d->has_gate ? out->gates : NULL};
    assert_int_equal(gy_eval(env->m, &o, &err), GY_OK);
}

/* Rises with each piece, ends full. */
static void on_progress(void *arg, size_t done, size_t total) {
    size_t *last = arg;
    assert_true(done >= *last && done <= total);
    *last = done;
}

static void results_are_those_of_the_host(void **state) {
    (void)state;
    static const char *const models[] = {"ouro-tiny", "huginn-tiny", "nanbeige-tiny"};
    static outcome host, other;
    static const gy_weight_form forms[] = {GY_WEIGHTS_AS_FILE, GY_WEIGHTS_FP8, GY_WEIGHTS_BF16};
    for (int i = 0; i < 18; i++) {
        gold_setup s = {.model = models[i / 2 % 3],
                        .backend = "ref",
                        .act = i % 2 ? GY_BF16 : GY_F32,
                        .form = forms[i / 6],
                        .quant_head = i / 6 == 1,
                        .max_rows = 16,
                        .patch = with_everything};
        gold_env env;
        gy_err err;
        char path[512];
        gold_open(&s, &env);
        work(&env, &s, &host);
        gold_close(&env);
        env = (gold_env){.be = own_create(s.act)};
        snprintf(path, sizeof path, GY_SOURCE_DIR "/tests/golden/models/%s", s.model);
        size_t done = 0, told;
        gy_model_load_opts o = {
            .be = env.be, .form = s.form, .quant_head = s.quant_head, .progress = on_progress, .progress_arg = &done};
        if (gy_model_load(path, &o, &err, &env.m) != GY_OK) fail_msg("%s", err.msg);
        assert_true(done >= env.m->weight_bytes);
        assert_true(s.form || own.live > env.m->weight_bytes / 3); /* every weight was brought over */
        assert_int_equal(own.live, env.m->own_bytes);
        assert_int_equal(env.m->mapped_bytes, 0);
        assert_int_equal(gy_model_device_bytes(path, s.act, s.form, s.quant_head, &err, &told), GY_OK);
        /* vectors in F32 of a BF16 file make it more, a head that is only compared (huginn) less */
        assert_true(told + 5000 > own.live && own.live + env.m->weight_bytes / 16 > told);
        work(&env, &s, &other);
        gold_close(&env);
        assert_int_equal(own.live, 0);
        munmap(own.base, own.cap);
        for (int k = 0; k < N; k++)
            assert_true(gold_same(&host.res[k], &other.res[k]) && gold_same(&host.res[k], &other.again[k]));
        assert_true(host.res[0].n == 6);
        assert_memory_equal(host.logits, other.logits, sizeof host.logits);
        assert_memory_equal(host.hidden, other.hidden, sizeof host.hidden);
        assert_memory_equal(host.gates, other.gates, sizeof host.gates);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_are_those_of_the_host)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
