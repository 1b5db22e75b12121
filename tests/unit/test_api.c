/* gyre.h driven by hand: defaults, refusals, equality with the engine beneath, poll and callback, text, cancel, room.
 */
#include "api_test.h"

#include "support/gold.h"
#include "text/tokenizer.h"

#include <math.h>
#include <poll.h>

/* ---- defaults, names -------------------------------------------------------------------------------------------- */

static void defaults_are_what_the_header_says(void **state) {
    (void)state;
    gyre_options o;
    gyre_options_default(&o, sizeof o);
    assert_int_equal(o.size, sizeof o);
    assert_string_equal(o.dtype, "auto");
    assert_string_equal(o.backend, "auto");
    assert_int_equal(o.threads, 0);
    assert_int_equal(o.max_rows, 256);
    assert_int_equal(o.max_seqs, 16);
    assert_int_equal(o.max_queue, 1024);
    assert_int_equal(o.max_len, 0);
    assert_int_equal(o.max_loops, 0);
    assert_int_equal(o.prefix_cache, 1);
    assert_string_equal(o.kv_layout, "last_exited");
    assert_int_equal(o.kv_blocks, 0);
    assert_true(o.kv_bytes == 0 && o.kv_fraction == 0.9 && o.park_bytes == (size_t)1 << 30);
    assert_string_equal(o.policy, "fcfs");
    assert_int_equal(o.prefill_chunk, 128);
    assert_true(o.prefill_share == 0.5);
    assert_int_equal(o.fuse_loops, 1);
    gyre_request r;
    gyre_request_default(&r, sizeof r);
    assert_int_equal(r.size, sizeof r);
    assert_null(r.prompt);
    assert_int_equal(r.max_tokens, 16);
    assert_int_equal(r.n, 1);
    assert_true(r.temperature == 0 && r.top_p == 1 && r.min_p == 0 && r.repetition_penalty == 1);
    assert_true(r.frequency_penalty == 0 && r.presence_penalty == 0 && !r.has_seed);
    assert_int_equal(r.logprobs, -1);
    assert_int_equal(r.prompt_logprobs, -1);
    assert_string_equal(r.exit, "fixed");
    assert_true(isnan(r.exit_threshold));
    assert_null(r.on_event);
}

/* A caller with a smaller struct keeps what lies behind it. */
static void defaults_stay_within_the_size(void **state) {
    (void)state;
    unsigned char mem[sizeof(gyre_request) > sizeof(gyre_options) ? sizeof(gyre_request) : sizeof(gyre_options)];
    memset(mem, 0xA5, sizeof mem);
    size_t small = offsetof(gyre_request, on_event);
    gyre_request_default((gyre_request *)(void *)mem, small);
    assert_int_equal(((gyre_request *)(void *)mem)->size, small);
    for (size_t i = small; i < sizeof mem; i++) assert_int_equal(mem[i], 0xA5);
    memset(mem, 0xA5, sizeof mem);
    small = offsetof(gyre_options, policy);
    gyre_options_default((gyre_options *)(void *)mem, small);
    for (size_t i = small; i < sizeof(gyre_options); i++) assert_int_equal(mem[i], 0xA5);
}

static void names_are_those_within(void **state) {
    (void)state;
    assert_string_equal(gyre_status_name(GYRE_E_ARG), gy_status_name(GY_E_ARG));
    assert_string_equal(gyre_status_name(GYRE_OK), gy_status_name(GY_OK));
    assert_int_equal(gyre_status_group(GYRE_OK), GYRE_GROUP_NONE);
    assert_int_equal(gyre_status_group(GYRE_E_LIMIT), GYRE_GROUP_REQUEST);
    assert_int_equal(gyre_status_group(GYRE_E_TIMEOUT), GYRE_GROUP_PEER);
    assert_int_equal(gyre_status_group(GYRE_E_FORMAT), GYRE_GROUP_ENGINE);
    assert_string_equal(gyre_finish_name(GYRE_FINISH_STOP), "stop");
    assert_string_equal(gyre_finish_name(GYRE_FINISH_LENGTH), "length");
    assert_string_equal(gyre_finish_name(GYRE_FINISH_CANCELLED), "cancelled");
    assert_string_equal(gyre_finish_name(GYRE_FINISH_ERROR), "error");
    assert_string_equal(gyre_version(), GY_VERSION);
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

static void not_opened(const char *dir, const gyre_options *o, gyre_status st, const char *part) {
    gyre_err err = {0};
    gyre *g = (gyre *)(uintptr_t)7;
    assert_int_equal(gyre_open(dir, o, &err, &g), st);
    assert_int_equal(err.status, st);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    assert_true(g == (gyre *)(uintptr_t)7);
    assert_int_equal(gyre_open(dir, o, NULL, &g), st); /* err may be NULL */
}

static void open_says_what_is_wrong(void **state) {
    (void)state;
    int64_t before = live_bytes();
    gyre_options ok, o;
    gyre_options_default(&ok, sizeof ok);
    not_opened("/nowhere/at/all", &ok, GYRE_E_IO, "/nowhere/at/all");
    not_opened(GY_SOURCE_DIR "/src", &ok, GYRE_E_IO, "config.json");
    o = ok, o.size = 0, not_opened(DEMO, &o, GYRE_E_ARG, "size: found 0");
    o = ok, o.size = sizeof o + 8, not_opened(DEMO, &o, GYRE_E_ARG, "gyre_options_default");
    o = ok, o.dtype = "f64", not_opened(DEMO, &o, GYRE_E_ARG, "dtype: found 'f64', expected auto, f32 or bf16");
    o = ok, o.backend = "gpu",
    not_opened(DEMO, &o, GYRE_E_ARG, "backend: found 'gpu', expected auto, cpu, cuda, cuda:N or ref");
    o = ok, o.backend = "cuda:x", not_opened(DEMO, &o, GYRE_E_ARG, "device: found 'cuda:x', expected cuda or cuda:N");
    o = ok, o.backend = "cuda:999", not_opened(DEMO, &o, GYRE_E_DEVICE, "device cuda");
    o = ok, o.policy = "lifo", not_opened(DEMO, &o, GYRE_E_ARG, "policy: found 'lifo', expected fcfs or priority");
    o = ok, o.kv_layout = "cyclic", not_opened(DEMO, &o, GYRE_E_ARG, "cyclic");
    o = ok, o.max_len = 513, not_opened(DEMO, &o, GYRE_E_LIMIT, "max_len: found 513 tokens, expected 1 to 512");
    o = ok, o.max_seqs = 0, not_opened(DEMO, &o, GYRE_E_ARG, "max_seqs: found 0");
    o = ok, o.max_queue = -1, not_opened(DEMO, &o, GYRE_E_ARG, "max_queue: found -1");
    o = ok, o.max_rows = 0, not_opened(DEMO, &o, GYRE_E_ARG, "max_rows: found 0");
    o = ok, o.threads = -1, not_opened(DEMO, &o, GYRE_E_ARG, "threads: found -1");
    o = ok, o.kv_fraction = 1.5, not_opened(DEMO, &o, GYRE_E_ARG, "kv_fraction: found 1.5");
    o = ok, o.fuse_loops = -1, not_opened(DEMO, &o, GYRE_E_ARG, "fuse_loops: found -1");
    assert_int_equal(live_bytes(), before);
    gyre_close(NULL);
}

static void info_tells_of_model_and_pool(void **state) {
    (void)state;
    gyre *g = NULL;
    gyre_err err = {0};
    gyre_options o;
    gyre_options_default(&o, sizeof o);
    o.kv_blocks = 64; /* 16 block rows of 4 planes: 256 tokens */
    assert_int_equal(gyre_open(DEMO, &o, &err, &g), GYRE_OK);
    const gyre_info *i = gyre_get_info(g);
    assert_string_equal(i->family, "ouro");
    assert_string_equal(i->dtype, "bf16");
    assert_int_equal(i->n_vocab, 320);
    assert_int_equal(i->n_loop, 4);
    assert_int_equal(i->max_loops, 4);
    assert_int_equal(i->max_len, 256);
    assert_int_equal(i->kv_tokens, 256);
    assert_string_equal(i->kv_limit, "kv_blocks");
    assert_int_equal(i->kv_token_bytes, 4 * 3 * 2 * 64 * 2); /* planes, layers, K and V, values, bytes */
    assert_int_equal(i->kv_bytes, 256 * i->kv_token_bytes);
    assert_true(i->has_gate && i->has_tokenizer);
    assert_int_equal(i->n_eos, 1);
    assert_int_equal(i->eos[0], 0);
    assert_true(i->weight_bytes > 300000 && i->workspace_bytes > 0);
    gyre_close(g);
    assert_int_equal(gyre_open(DEMO, NULL, &err, &g), GYRE_OK); /* defaults */
    assert_int_equal(gyre_get_info(g)->max_len, 512);
    gyre_close(g);
}

/* ---- submit ----------------------------------------------------------------------------------------------------- */

static void refused(gyre *g, const gyre_request *r, gyre_status st, const char *part) {
    gyre_err err = {0};
    uint64_t id = 77;
    assert_int_equal(gyre_submit(g, r, &err, &id), st);
    assert_int_equal(err.status, st);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    assert_int_equal(id, 77);
    assert_int_equal(gyre_submit(g, r, NULL, &id), st);
}

static void small_pool(gyre_options *o) {
    o->max_len = 128;
    o->kv_blocks = 20; /* 5 rows */
    o->max_seqs = 2;
    o->max_queue = 4;
}

static void submit_says_what_is_wrong(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, small_pool);
    int32_t some[8];
    size_t n_some;
    gyre_tokenize(g, "ab", 2, 0, NULL, some, 8, &n_some); /* the tokenizer keeps its scratch */
    int64_t before = live_bytes();
    gyre_request ok = ask("ab", 8, NULL), r;
    int32_t ids[] = {5, 320}, trace[] = {4, 5, 1, 1, 1, 1, 1, 1};
    gyre_bias bias[] = {{4, 101.0f}, {4, 1.0f}};
    gyre_string stop[65];
    for (int i = 0; i < 65; i++) stop[i] = (gyre_string){"x", 1};
    r = ok, r.size = 0, refused(g, &r, GYRE_E_ARG, "gyre_request_default");
    r = ok, r.size += 8, refused(g, &r, GYRE_E_ARG, "size: found");
    r = ok, r.n_prompt = 0, refused(g, &r, GYRE_E_ARG, "prompt: found no tokens");
    r = ok, r.prompt = NULL, refused(g, &r, GYRE_E_ARG, "prompt: found no tokens");
    r = ok, r.prompt_ids = ids, r.n_prompt_ids = 1, refused(g, &r, GYRE_E_ARG, "found both text and prompt_ids");
    r.prompt = NULL, r.n_prompt_ids = -1, refused(g, &r, GYRE_E_ARG, "prompt_ids: found -1 entries");
    r.n_prompt_ids = 2, refused(g, &r, GYRE_E_ARG, "prompt[1]: found token id 320, expected 0 to 319");
    r = ok, r.max_tokens = -1, refused(g, &r, GYRE_E_ARG, "max_tokens: found -1");
    r = ok, r.min_tokens = 9, refused(g, &r, GYRE_E_ARG, "min_tokens: found 9, expected 0 to 8");
    r = ok, r.n = 0, refused(g, &r, GYRE_E_ARG, "n: found 0");
    r = ok, r.n = 129, refused(g, &r, GYRE_E_ARG, "n: found 129");
    r = ok, r.n = 7, refused(g, &r, GYRE_E_LIMIT, "n: found 7 choices, the queue holds 6; raise max_queue");
    r = ok, r.max_tokens = 127, refused(g, &r, GYRE_E_LIMIT, "= 129, expected at most 128");
    r = ok, r.max_tokens = 100, refused(g, &r, GYRE_E_LIMIT, "the pool");
    r = ok, r.temperature = -1, refused(g, &r, GYRE_E_ARG, "temperature");
    r = ok, r.top_p = 0, refused(g, &r, GYRE_E_ARG, "top_p");
    r = ok, r.logprobs = 21, refused(g, &r, GYRE_E_ARG, "logprobs");
    r = ok, r.prompt_logprobs = 21, refused(g, &r, GYRE_E_ARG, "prompt_logprobs");
    r = ok, r.bias = bias, r.n_bias = 1, refused(g, &r, GYRE_E_ARG, "bias");
    r.bias = NULL, refused(g, &r, GYRE_E_ARG, "bias: found no array of the 1 entries");
    r = ok, r.exit = "soon", refused(g, &r, GYRE_E_ARG, "exit: found 'soon', expected fixed, gate");
    r = ok, r.exit = "gate", refused(g, &r, GYRE_E_ARG, "exit_threshold: not given; exit gate needs one");
    r.exit_threshold = 2, refused(g, &r, GYRE_E_ARG, "exit_threshold: found 2");
    r = ok, r.min_loops = 3, r.max_loops = 2, refused(g, &r, GYRE_E_ARG, "min_loops: found 3");
    r = ok, r.max_loops = 5, refused(g, &r, GYRE_E_ARG, "max_loops: found 5");
    r = ok, r.exit = "kl", r.exit_on_prompt = 1, refused(g, &r, GYRE_E_UNSUPPORTED, "exit_on_prompt");
    r = ok, r.exit = "trace", refused(g, &r, GYRE_E_ARG, "trace: found 0 depths");
    r.trace = trace, r.n_trace = 8, refused(g, &r, GYRE_E_ARG, "trace[1]: found 5 loops, expected 1 to 4");
    r = ok, r.stop_ids = ids, r.n_stop_ids = 2, refused(g, &r, GYRE_E_ARG, "stop_ids[1]: found token id 320");
    r = ok, r.stop = stop, r.n_stop = 65, refused(g, &r, GYRE_E_ARG, "stop: found 65 entries, expected 0 to 64");
    stop[1].n = 0, r.n_stop = 2, refused(g, &r, GYRE_E_ARG, "stop[1]");
    r = ok, r.latent_noise = 1, refused(g, &r, GYRE_E_ARG, "latent_noise: ouro models have no initial state");
    r = ok, r.cache_salt = "x", r.n_cache_salt = 1025, refused(g, &r, GYRE_E_ARG, "cache_salt: found 1025");
    assert_int_equal(live_bytes(), before);
    gyre_stats s;
    step_all(g);
    gyre_get_stats(g, &s, sizeof s);
    assert_int_equal(s.n_request, 0);
    gyre_close(g);
}

/* A folder without tokenizer.json, and a family without a gate. */
static void what_a_model_lacks_is_refused(void **state) {
    (void)state;
    gyre *g = must_open(GOLDEN("nanbeige-tiny"), NULL);
    assert_int_equal(gyre_get_info(g)->has_tokenizer, 0);
    seen s = {0};
    int32_t ids[] = {7, 8, 9};
    gyre_string stop = {"x", 1};
    gyre_err err = {0};
    size_t n;
    gyre_request r = ask("ab", 4, &s);
    refused(g, &r, GYRE_E_ARG, "no tokenizer");
    r = ask(NULL, 4, &s);
    r.prompt_ids = ids;
    r.n_prompt_ids = 3;
    gyre_request bad = r;
    bad.stop = &stop, bad.n_stop = 1, refused(g, &bad, GYRE_E_ARG, "stop: the model's folder holds no tokenizer");
    bad = r, bad.want_gates = 1, refused(g, &bad, GYRE_E_ARG, "want_gates: a nanbeige model has no exit gate");
    bad = r, bad.exit = "gate", refused(g, &bad, GYRE_E_ARG, "needs an exit gate");
    bad = r, bad.exit = "select", bad.exit_threshold = 0.5, refused(g, &bad, GYRE_E_ARG, "needs an exit gate");
    assert_int_equal(gyre_tokenize(g, "a", 1, 0, &err, ids, 3, &n), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "no tokenizer"));
    must_submit(g, &r);
    step_all(g);
    poll_all(g);
    assert_int_equal(s.n, 4);
    assert_int_equal(s.n_text, 0);
    assert_int_equal(s.n_finish, 1);
    gyre_close(g);
}

/* ---- equal to the engine ---------------------------------------------------------------------------------------- */

enum { N_KIND = 7, N_SEEN = N_KIND + 2 }; /* the last one has three choices */

static const int32_t trace[] = {4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3};
static const gyre_bias some_bias[] = {{40, 3.0f}, {50, -2.0f}};
static const gy_logit_bias same_bias[] = {{40, 3.0f}, {50, -2.0f}};

static gyre_request request_of(int kind, seen *s) {
    static const char *const prompts[N_KIND] = {
        "Once upon a time", "The sea", "a", "Zeit und Raum, immer wieder gesagt und geschrieben",
        "0123456789",       "gate",    "n"};
    gyre_request r = ask(prompts[kind], 20, s);
    r.ignore_eos = 1;
    r.has_seed = 1;
    r.seed = 1000 + (uint64_t)kind;
    if (kind == 1) r.temperature = 0.9f, r.top_k = 40, r.top_p = 0.95f, r.min_p = 0.01f, r.logprobs = 3;
    if (kind == 2) r.exit = "gate", r.exit_threshold = 0.6, r.want_gates = 1;
    if (kind == 3)
        r.prompt_logprobs = 2, r.repetition_penalty = 1.3f, r.frequency_penalty = 0.5f, r.bias = some_bias,
        r.n_bias = 2;
    if (kind == 4) r.exit = "trace", r.trace = trace, r.n_trace = 20, r.logprobs = 0;
    if (kind == 5) r.exit = "select", r.exit_threshold = 0.5, r.min_loops = 2, r.presence_penalty = 1.0f;
    if (kind == 6) r.n = 3, r.temperature = 1.2f, r.logprobs = 5;
    return r;
}

static void engine_request(const gyre_request *r, const gy_tok *tok, const gy_model_desc *d, gy_vec_i32 *ids,
                           gy_request *q) {
    gy_tok_ctx *ctx = NULL;
    gy_err err;
    assert_int_equal(gy_tok_ctx_create(tok, &ctx), GY_OK);
    assert_int_equal(gy_tok_encode(ctx, r->prompt, r->n_prompt, GY_TOK_ADD_SPECIAL | GY_TOK_PARSE_SPECIAL, &err, ids),
                     GY_OK);
    gy_tok_ctx_destroy(ctx);
    gy_request_default(q, d);
    q->prompt = ids->data;
    q->n_prompt = (int32_t)ids->len;
    q->max_tokens = r->max_tokens;
    q->n = r->n;
    q->ignore_eos = 1;
    q->sample = (gy_sample_params){.temperature = r->temperature,
                                   .top_k = r->top_k,
                                   .top_p = r->top_p,
                                   .min_p = r->min_p,
                                   .seed = r->seed,
                                   .n_logprobs = r->logprobs,
                                   .repetition_penalty = r->repetition_penalty,
                                   .frequency_penalty = r->frequency_penalty,
                                   .presence_penalty = r->presence_penalty,
                                   .bias = r->n_bias ? same_bias : NULL,
                                   .n_bias = r->n_bias};
    q->prompt_logprobs = r->prompt_logprobs;
    q->want_gates = r->want_gates;
    gy_exit_parse(r->exit, &q->exit.kind);
    if (!isnan(r->exit_threshold)) q->exit.threshold = r->exit_threshold;
    q->exit.min_loops = q->exit.kind == GY_EXIT_GATE || q->exit.kind == GY_EXIT_SELECT ? 2 : 1;
    q->trace = r->trace;
    q->n_trace = r->n_trace;
}

/* Ids behind the tokenizer's own have no text. */
static void assert_is_text_of(const gy_tok *tok, const seen *s) {
    gy_str text = {0};
    int32_t ids[SEEN_MAX];
    size_t n = 0;
    for (int i = 0; i < s->n; i++)
        if (s->tokens[i] < gy_tok_n_vocab(tok)) ids[n++] = s->tokens[i];
    assert_int_equal(gy_tok_decode(tok, ids, n, 1, NULL, &text), GY_OK);
    assert_string_equal(s->text, gy_str_z(&text));
    gy_str_free(&text);
}

static void same_as_engine(const seen *s, const gold_result *g, const gy_tok *tok) {
    assert_int_equal(s->n, g->n);
    for (int i = 0; i < s->n; i++) {
        assert_int_equal(s->tokens[i], g->tokens[i]);
        assert_int_equal(s->loops[i], g->loops[i]);
        if (s->fin.n_output && !isnan(s->logprobs[i])) assert_memory_equal(&s->logprobs[i], &g->logprobs[i], 4);
        assert_int_equal(s->n_gate[i], g->n_gate[i]);
        assert_memory_equal(s->gates[i], g->gates[i], (size_t)s->n_gate[i] * sizeof(float));
    }
    assert_int_equal(s->n_prompt, g->n_prompt);
    assert_memory_equal(s->prompt_logprobs, g->prompt_logprobs, (size_t)s->n_prompt * sizeof(float));
    assert_int_equal(s->fin.reason, (int)g->reason);
    assert_is_text_of(tok, s);
}

static void run_engine(gold_result res[N_SEEN], gy_tok *tok) {
    gold_setup s = {.model = DEMO, .backend = "cpu", .act = GY_BF16};
    gold_env env;
    gy_request q[N_KIND];
    gy_vec_i32 ids[N_KIND] = {0};
    gold_open(&s, &env);
    gold_engine(&s, &env);
    for (int k = 0; k < N_KIND; k++) {
        gyre_request r = request_of(k, NULL);
        engine_request(&r, tok, &env.m->d, &ids[k], &q[k]);
    }
    gold_run(env.e, q, N_KIND, res);
    for (int k = 0; k < N_KIND; k++) gy_vec_free(&ids[k]);
    gold_close(&env);
}

/* How events are taken: by polling after each step, by polling when all is over, by callbacks. */
typedef enum taking { EACH_STEP, AT_THE_END, CALLBACK } taking;

static void run_api(seen s[N_SEEN], taking how) {
    gyre *g = must_open(DEMO, NULL);
    memset(s, 0, N_SEEN * sizeof *s);
    for (int k = 0; k < N_KIND; k++) {
        gyre_request r = request_of(k, &s[k]);
        if (how == CALLBACK) r.on_event = seen_add;
        must_submit(g, &r);
    }
    gyre_err err;
    while (how == EACH_STEP && gyre_step(g, &err) == GYRE_OK) poll_all(g);
    step_all(g);
    assert_true(how == AT_THE_END ? poll_all(g) > N_SEEN * 20 : poll_all(g) == 0);
    gyre_close(g);
}

static void by_hand_equals_the_engine(void **state) {
    (void)state;
    gy_err err;
    gy_tok *tok = NULL;
    static gold_result res[N_SEEN];
    static seen s[N_SEEN], other[N_SEEN];
    assert_int_equal(gy_tok_open(DEMO, &err, &tok), GY_OK);
    run_engine(res, tok);
    run_api(s, EACH_STEP);
    int deep = 0, shallow = 0;
    for (int k = 0; k < N_SEEN; k++) {
        same_as_engine(&s[k], &res[k], tok);
        for (int i = 0; i < s[k].n; i++) s[k].loops[i] < 4 ? shallow++ : deep++;
    }
    assert_true(deep > 20 && shallow > 20); /* depths did vary */
    assert_true(s[1].n_top[0] == 3 && s[6].n_top[4] == 5 && s[4].n_top[0] == 0 && !isnan(s[4].logprobs[0]));
    assert_true(isnan(s[0].logprobs[0]) && s[2].n_gate[1] >= 2 && s[0].n_gate[0] == 0);
    assert_int_equal(s[3].n_prompt, s[3].fin.n_prompt - 1);
    run_api(other, AT_THE_END);
    for (int k = 0; k < N_SEEN; k++) seen_same(&s[k], &other[k]);
    run_api(other, CALLBACK);
    for (int k = 0; k < N_SEEN; k++) seen_same(&s[k], &other[k]);
    gy_tok_close(tok);
}

static void finish_tells_counts_and_times(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen s[3], again;
    memset(s, 0, sizeof s);
    gyre_request r = ask("The same beginning of two prompts, long enough for two blocks.", 5, s);
    r.n = 3, r.ignore_eos = 1;
    must_submit(g, &r);
    step_all(g);
    assert_int_equal(poll_all(g), 3 * 6);
    int left = 0;
    for (int k = 0; k < 3; k++) {
        const gyre_finish *f = &s[k].fin;
        left += f->n_left;
        assert_int_equal(f->n_prompt, 62);
        assert_int_equal(f->n_output, 5);
        assert_int_equal(f->reason, GYRE_FINISH_LENGTH);
        assert_int_equal(f->error, GYRE_OK);
        assert_true(f->stop_id == -1 && f->stop_string == -1);
        assert_true(0 < f->submit_ns && f->submit_ns <= f->admit_ns && f->admit_ns <= f->first_token_ns &&
                    f->first_token_ns <= f->finish_ns);
    }
    assert_int_equal(left, 2 + 1 + 0);
    memset(&again, 0, sizeof again);
    r.n = 1, r.user = &again;
    must_submit(g, &r);
    step_all(g);
    poll_all(g);
    assert_int_equal(again.fin.n_cached, 48);
    assert_memory_equal(again.tokens, s[0].tokens, sizeof again.tokens);
    gyre_stats st;
    gyre_get_stats(g, &st, sizeof st);
    assert_int_equal(st.n_request, 2);
    assert_int_equal(st.n_output_tok, 20);
    assert_int_equal(st.n_loop_sum, 80);
    assert_int_equal(st.n_finish[GYRE_FINISH_LENGTH], 4);
    assert_true(st.cache_hit_tok >= 48 && st.cache_query_tok >= st.cache_hit_tok);
    assert_true(st.n_step > 0 && st.n_running == 0 && st.n_waiting == 0 && st.kv_blocks_total > 0 && st.step_ns > 0);
    int64_t first = 0;
    gyre_get_stats(g, (gyre_stats *)(void *)&first, sizeof first);
    assert_int_equal(first, st.n_step);
    gyre_close(g);
}

/* ---- fields and options take effect ----------------------------------------------------------------------------- */

static void run_one(gyre *g, const gyre_request *r, seen *s);

static int32_t cached_of(gyre *g, gyre_request r, seen *s) {
    r.user = s;
    run_one(g, &r, s);
    return s->fin.n_cached;
}

static void salts_and_switches_of_the_cache(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen s;
    gyre_request r = ask("Forty characters and a few more, three blocks.", 4, NULL);
    assert_int_equal(cached_of(g, r, &s), 0);
    assert_int_equal(cached_of(g, r, &s), 32);
    r.no_cache = 1;
    assert_int_equal(cached_of(g, r, &s), 0);
    r.no_cache = 0, r.cache_salt = "mine", r.n_cache_salt = 4;
    assert_int_equal(cached_of(g, r, &s), 0);
    assert_int_equal(cached_of(g, r, &s), 32);
    gyre_close(g);
}

static void no_cache_shared_deeper(gyre_options *o) {
    o->prefix_cache = 0;
    o->max_loops = 6;
    o->kv_layout = "shared";
    o->dtype = "f32";
    o->backend = "ref";
    o->kv_bytes = (size_t)1 << 20;
    o->park_bytes = 0;
}

static void options_reach_the_engine(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, no_cache_shared_deeper);
    const gyre_info *i = gyre_get_info(g);
    static seen s;
    gyre_request r = ask("Forty characters and a few more, three blocks.", 4, NULL);
    assert_string_equal(i->dtype, "f32");
    assert_string_equal(i->backend, "ref");
    assert_string_equal(i->kv_limit, "kv_bytes");
    assert_int_equal(i->kv_token_bytes, 1 * 3 * 2 * 64 * 4); /* one plane, F32 */
    assert_true(i->kv_bytes <= 1 << 20 && i->kv_bytes > 1 << 19);
    assert_int_equal(i->park_bytes, 0);
    assert_int_equal(i->max_loops, 6);
    r.max_loops = 6, r.ignore_eos = 1;
    assert_int_equal(cached_of(g, r, &s), 0);
    assert_int_equal(cached_of(g, r, &s), 0);
    assert_int_equal(s.loops[1], 6);
    r.max_loops = 7;
    refused(g, &r, GYRE_E_ARG, "max_loops");
    gyre_close(g);
}

static void one_at_a_time(gyre_options *o) {
    o->max_seqs = 1;
    o->policy = "priority";
}

static void priority_decides_who_is_next(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, one_at_a_time);
    static seen s[3];
    memset(s, 0, sizeof s);
    for (int i = 0; i < 3; i++) {
        gyre_request r = ask("ab", 6, &s[i]);
        r.priority = 5 - 2 * i;
        must_submit(g, &r);
    }
    step_all(g);
    poll_all(g);
    assert_true(s[2].fin.finish_ns < s[1].fin.finish_ns && s[1].fin.finish_ns < s[0].fin.finish_ns);
    gyre_close(g);
}

static void huginn_has_an_initial_state(void **state) {
    (void)state;
    gyre *g = must_open(GOLDEN("huginn-tiny"), NULL);
    static seen zero, a, b, again;
    int32_t ids[] = {5, 6, 7, 8};
    gyre_request r = ask(NULL, 12, &zero);
    r.prompt_ids = ids, r.n_prompt_ids = 4, r.ignore_eos = 1, r.logprobs = 0;
    run_one(g, &r, &zero);
    r.latent_noise = 1, r.latent_seed = 1, r.user = &a;
    run_one(g, &r, &a);
    r.latent_seed = 2, r.user = &b;
    run_one(g, &r, &b);
    r.latent_seed = 1, r.user = &again;
    run_one(g, &r, &again);
    assert_memory_equal(a.logprobs, again.logprobs, 12 * sizeof(float));
    assert_true(memcmp(a.logprobs, b.logprobs, 12 * sizeof(float)) != 0);
    assert_true(memcmp(a.logprobs, zero.logprobs, 12 * sizeof(float)) != 0);
    r = ask(NULL, 8, &a);
    r.prompt_ids = ids, r.n_prompt_ids = 4, r.exit = "latent", r.ignore_eos = 1;
    r.exit_threshold = 1e9, r.min_loops = 2;
    run_one(g, &r, &a);
    for (int i = 1; i < 8; i++) assert_int_equal(a.loops[i], 2);
    gyre_close(g);
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static void run_one(gyre *g, const gyre_request *r, seen *s) {
    memset(s, 0, sizeof *s * (size_t)r->n);
    must_submit(g, r);
    step_all(g);
    if (!r->on_event) poll_all(g);
    for (int k = 0; k < r->n; k++) assert_int_equal(s[k].n_finish, 1);
}

/* Cuts at every place of a text that is known, by one to three characters, each of them a token of the demo. */
static void stop_strings_end_the_text(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen whole, s;
    gyre_bias abc[5];
    for (int i = 0; i < 5; i++) abc[i] = (gyre_bias){'a' + i + 3, 100.0f}; /* id 3 is byte 0 */
    gyre_request r = ask("Once upon a time", 24, &whole);
    r.ignore_eos = 1, r.temperature = 9.0f, r.has_seed = 1, r.seed = 5, r.bias = abc, r.n_bias = 5;
    run_one(g, &r, &whole);
    assert_int_equal(whole.n_text, 24);
    r.user = &s;
    for (int at = 0; at < 22; at++)
        for (int callback = 0; callback < 2; callback++) {
            char cut[4] = {0};
            memcpy(cut, whole.text + at, 1 + (size_t)at % 3);
            gyre_string stop[] = {{"\x01never", 6}, {cut, strlen(cut)}};
            const char *first = strstr(whole.text, cut);
            size_t expected = (size_t)(first - whole.text);
            r.stop = stop, r.n_stop = 2, r.on_event = callback ? seen_add : NULL;
            run_one(g, &r, &s);
            assert_int_equal(s.n_text, expected);
            assert_memory_equal(s.text, whole.text, expected);
            assert_int_equal(s.n, expected + strlen(cut)); /* ends with the token that completes it */
            assert_int_equal(s.fin.reason, GYRE_FINISH_STOP);
            assert_int_equal(s.fin.stop_string, 1);
            assert_int_equal(s.fin.stop_id, -1);
        }
    /* The beginning of a stop string at the end: held back, then it goes out with the finish. */
    char tail[8];
    snprintf(tail, sizeof tail, "%.3s?", whole.text + 21);
    r.stop = &(gyre_string){tail, 4}, r.n_stop = 1, r.on_event = NULL;
    memset(&s, 0, sizeof s);
    must_submit(g, &r);
    step_all(g);
    const gyre_event *ev;
    while (gyre_poll(g, 0, &ev) == GYRE_OK) {
        if (ev->kind == GYRE_EVENT_FINISH) assert_int_equal(ev->n_text, 3);
        seen_add(&s, ev);
    }
    assert_string_equal(s.text, whole.text);
    assert_int_equal(s.fin.reason, GYRE_FINISH_LENGTH);
    gyre_close(g);
}

/* A stop string counts from the first token behind min_tokens on: one that begins or lies in the text before does not
 * end it. */
static void stop_strings_wait_for_min_tokens(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen whole, s;
    gyre_bias to_a = {'a' + 3, 100.0f};
    gyre_string stop[] = {{"aaa", 3}};
    gyre_request r = ask("Once upon a time", 12, &whole);
    r.ignore_eos = 1, r.bias = &to_a, r.n_bias = 1;
    run_one(g, &r, &whole);
    assert_string_equal(whole.text, "aaaaaaaaaaaa");
    r.user = &s, r.stop = stop, r.n_stop = 1;
    for (int least = 0; least <= 12; least++)
        for (int callback = 0; callback < 2; callback++) {
            r.min_tokens = least, r.on_event = callback ? seen_add : NULL;
            run_one(g, &r, &s);
            int found = least + 3 <= 12;
            assert_int_equal(s.n, found ? least + 3 : 12);
            assert_int_equal(s.n_text, found ? least : 12);
            assert_int_equal(s.fin.reason, found ? GYRE_FINISH_STOP : GYRE_FINISH_LENGTH);
            assert_int_equal(s.fin.stop_string, found ? 0 : -1);
        }
    gyre_close(g);
}

/* Half a character becomes U+FFFD only when the text ends: with the finish, after the last token. */
static void the_end_of_a_text_may_be_a_stop_string(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen s;
    gyre_bias half = {0xE2 + 3, 100.0f};
    gyre_string stop = {"\xEF\xBF\xBD", 3};
    for (int i = 0; i < 4; i++) {
        gyre_request r = ask("x", 1, &s);
        r.bias = &half, r.n_bias = 1;
        r.on_event = i % 2 ? seen_add : NULL;
        if (i < 2) r.stop = &stop, r.n_stop = 1;
        run_one(g, &r, &s);
        assert_string_equal(s.text, i < 2 ? "" : stop.s);
        assert_int_equal(s.fin.reason, i < 2 ? GYRE_FINISH_STOP : GYRE_FINISH_LENGTH);
        assert_int_equal(s.fin.stop_string, i < 2 ? 0 : -1);
    }
    gyre_close(g);
}

static void eos_and_stop_ids_have_no_text(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen s, w;
    gyre_bias to_eos = {0, 100.0f};
    gyre_request r = ask("Once", 12, &s);
    r.bias = &to_eos, r.n_bias = 1, r.min_tokens = 3;
    run_one(g, &r, &s);
    assert_int_equal(s.n, 4);
    assert_int_equal(s.tokens[3], 0);
    assert_int_equal(s.n_text, 3);
    assert_int_equal(s.fin.reason, GYRE_FINISH_STOP);
    assert_int_equal(s.fin.stop_id, 0);
    r = ask("Once", 12, &w);
    r.ignore_eos = 1;
    run_one(g, &r, &w);
    int32_t id = w.tokens[5];
    int first = 0;
    while (w.tokens[first] != id) first++;
    r.stop_ids = &id, r.n_stop_ids = 1, r.user = &s;
    run_one(g, &r, &s);
    assert_int_equal(s.n, first + 1);
    assert_int_equal(s.n_text, first);
    assert_int_equal(s.fin.stop_id, id);
    assert_int_equal(s.fin.stop_string, -1);
    gyre_close(g);
}

/* Bytes drawn at random, most of them parts of UTF-8 sequences: deltas are whole characters and put together they are
 * what the ids decode to. */
static void deltas_put_together_are_the_text(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static const char bytes[] = "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";
    gyre_bias bias[10];
    static seen s;
    int n_held = 0, n_bias = 0;
    for (int b = 0; b < 256; b++)
        if (memchr(bytes, b, 10)) bias[n_bias++] = (gyre_bias){0, 30.0f};
    gy_err err;
    gy_tok *tok = NULL;
    assert_int_equal(gy_tok_open(DEMO, &err, &tok), GY_OK);
    for (int32_t id = 3, k = 0; id < 259 && k < n_bias; id++) { /* ids 3.. are the 256 bytes, in order */
        if (memchr(bytes, id - 3, 10)) bias[k++].id = id;
    }
    for (uint64_t seed = 0; seed < 40; seed++) {
        gyre_request r = ask("x", 60, &s);
        r.temperature = 5.0f, r.has_seed = 1, r.seed = seed, r.ignore_eos = 1, r.bias = bias, r.n_bias = n_bias;
        memset(&s, 0, sizeof s);
        must_submit(g, &r);
        step_all(g);
        const gyre_event *ev;
        while (gyre_poll(g, 0, &ev) == GYRE_OK) {
            assert_true(gy_utf8_valid(ev->text, ev->n_text));
            n_held += ev->kind == GYRE_EVENT_TOKEN && ev->n_text == 0;
            seen_add(ev->user, ev);
        }
        assert_is_text_of(tok, &s);
    }
    assert_true(n_held > 100);
    gy_tok_close(tok);
    gyre_close(g);
}

static void a_drawn_seed_is_reported(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen a[2], b[2], c[2];
    gyre_request r = ask("Once", 20, a);
    r.temperature = 1.5f, r.n = 2, r.ignore_eos = 1;
    run_one(g, &r, a);
    r.user = b;
    run_one(g, &r, b);
    assert_true(a[0].fin.seed != b[0].fin.seed);
    assert_true(memcmp(a[0].tokens, b[0].tokens, sizeof a[0].tokens) != 0);
    r.user = c, r.has_seed = 1, r.seed = a[0].fin.seed;
    run_one(g, &r, c);
    for (int k = 0; k < 2; k++) seen_same(&a[k], &c[k]);
    assert_true(memcmp(a[0].tokens, a[1].tokens, sizeof a[0].tokens) != 0); /* choices draw for themselves */
    gyre_close(g);
}

static void max_tokens_zero_fills_the_context(void **state) {
    (void)state;
    gyre *g = must_open(GOLDEN("ouro-tiny"), small_pool); /* 5 block rows: 80 tokens */
    int32_t ids[10] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    static seen s;
    gyre_request r = ask(NULL, 0, &s);
    r.prompt_ids = ids, r.n_prompt_ids = 10, r.ignore_eos = 1;
    assert_int_equal(gyre_get_info(g)->max_len, 80);
    run_one(g, &r, &s);
    assert_int_equal(s.n, 70);
    gyre_close(g);
}

static void tokenize_and_back(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    int32_t ids[64];
    char text[64];
    size_t n = 0, m = 0;
    gyre_err err = {0};
    assert_int_equal(gyre_tokenize(g, "caf\xC3\xA9 <|im_end|>", 16, GYRE_PARSE_SPECIAL, &err, ids, 64, &n), GYRE_OK);
    assert_int_equal(ids[n - 1], 2);
    assert_int_equal(gyre_detokenize(g, ids, n, 0, &err, text, sizeof text, &m), GYRE_OK);
    assert_string_equal(text, "caf\xC3\xA9 <|im_end|>");
    assert_int_equal(m, 16);
    assert_int_equal(gyre_detokenize(g, ids, n, 1, &err, text, sizeof text, &m), GYRE_OK);
    assert_string_equal(text, "caf\xC3\xA9 ");
    size_t plain = 0;
    assert_int_equal(gyre_tokenize(g, "caf\xC3\xA9 <|im_end|>", 16, 0, &err, ids, 64, &plain), GYRE_OK);
    assert_true(plain > n);
    ids[0] = -5;
    assert_int_equal(gyre_tokenize(g, "abcdef", 6, 0, &err, ids, 2, &n), GYRE_AGAIN);
    assert_true(n > 2 && ids[0] == -5);
    text[0] = '#';
    ids[0] = 40, ids[1] = 41;
    assert_int_equal(gyre_detokenize(g, ids, 2, 0, &err, text, 2, &m), GYRE_AGAIN); /* no room for the NUL */
    assert_true(m == 2 && text[0] == '#');
    ids[0] = 99999;
    assert_int_equal(gyre_detokenize(g, ids, 1, 0, &err, text, 9, &m), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "99999"));
    assert_int_equal(gyre_tokenize(g, "", 0, 0, &err, NULL, 0, &n), GYRE_OK);
    assert_int_equal(n, 0);
    gyre_close(g);
}

/* ---- cancel, room, memory --------------------------------------------------------------------------------------- */

static void cancel_at_every_time(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen whole, s[2], other;
    gyre_request r = ask("Once upon a time", 16, &whole);
    r.ignore_eos = 1, r.has_seed = 1;
    run_one(g, &r, &whole);
    for (int before = 0; before < 80; before++) {
        memset(s, 0, sizeof s);
        memset(&other, 0, sizeof other);
        r.user = s, r.n = 2;
        uint64_t id = must_submit(g, &r);
        r.user = &other, r.n = 1;
        must_submit(g, &r);
        gyre_err err;
        for (int i = 0; i < before; i++) gyre_step(g, &err);
        gyre_cancel(g, id);
        gyre_cancel(g, id);
        step_all(g);
        poll_all(g);
        gyre_cancel(g, id);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(s[k].n_finish, 1);
            assert_int_equal(s[k].fin.n_output, s[k].n);
            assert_memory_equal(s[k].tokens, whole.tokens, (size_t)s[k].n * sizeof(int));
            assert_memory_equal(s[k].text, whole.text, s[k].n_text);
            assert_int_equal(s[k].n_text, s[k].n); /* what was held back goes out */
            assert_int_equal(s[k].fin.reason, s[k].n < 16 ? GYRE_FINISH_CANCELLED : GYRE_FINISH_LENGTH);
        }
        if (before == 0) assert_int_equal(s[0].n + s[1].n, 0);
        assert_int_equal(other.n, 16);
        seen_same(&other, &whole);
    }
    gyre_cancel(g, 0);
    gyre_cancel(g, UINT64_MAX); /* never given out: hides no later cancel */
    memset(s, 0, sizeof s);
    r.user = s;
    gyre_cancel(g, must_submit(g, &r));
    step_all(g);
    poll_all(g);
    assert_int_equal(s[0].fin.reason, GYRE_FINISH_CANCELLED);
    gyre_close(g);
}

/* A slot of the handle serves one request after the other; its number is in the id. A cancel of an earlier one, or of
 * one that is still to come, neither ends nor protects the present one. */
static void a_cancel_is_for_its_own_request(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, small_pool);
    enum { N_SLOT = 6 };
    static seen s[N_SLOT];
    uint64_t id[N_SLOT], old[N_SLOT] = {0};
    for (int round = 0; round < 4; round++) {
        memset(s, 0, sizeof s);
        for (int i = 0; i < N_SLOT; i++) {
            gyre_request r = ask("ab", 4, &s[i]);
            r.ignore_eos = 1;
            id[i] = must_submit(g, &r);
            for (int k = 0; k < N_SLOT; k++) assert_true(id[i] != old[k]);
        }
        for (int i = 0; i < N_SLOT; i++) gyre_cancel(g, id[i] + N_SLOT * 1000);
        for (int i = 0; i < N_SLOT; i += 2) gyre_cancel(g, id[i]);
        for (int i = 0; i < N_SLOT; i++) gyre_cancel(g, old[i]);
        step_all(g);
        poll_all(g);
        for (int i = 0; i < N_SLOT; i++)
            assert_int_equal(s[i].fin.reason, i % 2 ? GYRE_FINISH_LENGTH : GYRE_FINISH_CANCELLED);
        memcpy(old, id, sizeof old);
    }
    gyre_close(g);
}

/* Places are taken until the last event is polled; ids never come again. */
static void room_is_bounded(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, small_pool); /* 2 + 4 choices */
    static seen s[64];
    uint64_t ids[64];
    int n = 0;
    memset(s, 0, sizeof s);
    for (int round = 0; round < 9; round++) {
        gyre_request r = ask("ab", 4, &s[n]);
        r.n = 1 + round % 3;
        if (r.n == 3) r.n = 4;
        for (int left = 6; left >= r.n; left -= r.n) {
            r.user = &s[n];
            ids[n] = must_submit(g, &r);
            for (int k = 1; k < r.n; k++) ids[n + k] = ids[n];
            n += r.n;
        }
        r.n = r.n == 4 ? 3 : r.n;
        refused(g, &r, GYRE_AGAIN, "of 6 places are taken");
        step_all(g);
        refused(g, &r, GYRE_AGAIN, "have events nobody has polled"); /* finished, not polled */
        poll_all(g);
        for (int i = 0; i < n; i++) assert_int_equal(s[i].n_finish, 1);
        if (n > 50) n = 0, memset(s, 0, sizeof s);
    }
    for (int i = 1; i < n; i++) assert_true(ids[i] >= ids[i - 1]);
    gyre_close(g);
}

static void close_frees_what_is_unfinished(void **state) {
    (void)state;
    int64_t before = live_bytes();
    for (int steps = 0; steps < 30; steps += 3) {
        gyre *g = must_open(DEMO, NULL);
        static seen s[40];
        gyre_string stop = {"zzzz", 4};
        memset(s, 0, sizeof s);
        for (int i = 0; i < 10; i++) {
            gyre_request r = ask("Once upon a time", 2 + 3 * i, &s[4 * i]);
            r.n = 1 + i % 4, r.stop = &stop, r.n_stop = i % 2;
            r.on_event = i % 3 ? NULL : seen_add;
            must_submit(g, &r);
        }
        gyre_err err;
        const gyre_event *ev;
        for (int i = 0; i < steps; i++) gyre_step(g, &err);
        for (int i = 0; i < steps; i++) gyre_poll(g, 0, &ev);
        gyre_request r = ask("in the inbox", 3, s);
        must_submit(g, &r);
        gyre_close(g);
        assert_int_equal(live_bytes(), before);
    }
}

/* Text for callbacks and for stop strings is made inside the step: it takes no memory there. */
static void steps_allocate_nothing(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen s[12], last;
    gyre_string stop = {"\xC3\xA9\xC3\xA9\xC3\xA9zzz", 9};
    memset(s, 0, sizeof s);
    for (int i = 0; i < 6; i++) {
        gyre_request r = ask("Once upon a time", 40, &s[2 * i]);
        r.ignore_eos = 1, r.temperature = 2.0f, r.n = 2, r.logprobs = 4, r.want_gates = 1, r.prompt_logprobs = 1;
        r.stop = &stop, r.n_stop = i % 2;
        r.on_event = i < 3 ? seen_add : NULL;
        must_submit(g, &r);
    }
    /* A hundred bytes held back go out at once, inside the step that ends the text. */
    char long_stop[101];
    memset(long_stop, 'a', 100), long_stop[100] = 'z';
    gyre_string late = {long_stop, 101};
    gyre_bias to_a = {'a' + 3, 100.0f};
    gyre_request r = ask("Once", 99, &last);
    r.bias = &to_a, r.n_bias = 1, r.stop = &late, r.n_stop = 1, r.on_event = seen_add;
    must_submit(g, &r);
    gyre_err err;
    gyre_status st = gyre_step(g, &err); /* the engine's copies */
    gy_mem_guard_begin();
    while (st == GYRE_OK) st = gyre_step(g, &err);
    gy_mem_guard_end();
    poll_all(g);
    for (int i = 0; i < 12; i++) assert_int_equal(s[i].n, 40);
    assert_int_equal(last.n_text, 99);
    gyre_close(g);
}

/* ---- poll loop, modes ------------------------------------------------------------------------------------------- */

static int readable(const gyre *g) {
    struct pollfd p = {.fd = gyre_event_fd(g), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void the_descriptor_follows_the_events(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    const gyre_event *ev;
    static seen s[3];
    memset(s, 0, sizeof s);
    assert_int_equal(gyre_poll(g, 0, &ev), GYRE_AGAIN);
    assert_int_equal(gyre_poll(g, 20, &ev), GYRE_AGAIN);
    assert_false(readable(g));
    for (int i = 0; i < 3; i++) {
        gyre_request r = ask("ab", 6, &s[i]);
        r.ignore_eos = 1;
        must_submit(g, &r);
    }
    assert_false(readable(g));
    gyre_err err;
    int n = 0, seen_readable = 0;
    while (gyre_step(g, &err) == GYRE_OK) {
        int was = readable(g), got = poll_all(g);
        assert_true(was || !got); /* no event without a ring */
        assert_false(readable(g));
        seen_readable += was;
        n += got;
    }
    assert_int_equal(n + poll_all(g), 3 * 7);
    assert_true(seen_readable >= 6);
    gyre_close(g);
}

/* Requests whose events came together are taken in turns, not one to its end. */
static void a_backlog_is_taken_in_order_of_each(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static seen s[4];
    memset(s, 0, sizeof s);
    for (int i = 0; i < 4; i++) {
        gyre_request r = ask("ab", 10, &s[i]);
        r.ignore_eos = 1;
        must_submit(g, &r);
    }
    gyre_err err;
    const gyre_event *ev;
    int n = 0;
    while (gyre_step(g, &err) == GYRE_OK) /* one event for each step: the backlog grows */
        if (gyre_poll(g, 0, &ev) == GYRE_OK) seen_add(ev->user, ev), n++;
    int fewest = 99;
    for (int i = 0; i < 4; i++)
        if (s[i].n < fewest) fewest = s[i].n;
    assert_true(fewest >= 1);
    assert_int_equal(n + poll_all(g), 4 * 11);
    for (int i = 0; i < 4; i++) assert_int_equal(s[i].n_finish, 1);
    gyre_close(g);
}

typedef struct inside {
    gyre *g;
    int n, submitted;
    seen next;
} inside;

static void call_everything(void *user, const gyre_event *ev) {
    inside *in = user;
    gyre_err err = {0};
    gyre_stats st;
    if (ev->kind == GYRE_EVENT_FINISH) return;
    in->n++;
    assert_int_equal(gyre_step(in->g, &err), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "gyre_step: "));
    assert_int_equal(gyre_start(in->g, &err), GYRE_E_ARG);
    assert_int_equal(gyre_stop(in->g, &err), GYRE_E_ARG);
    assert_non_null(strstr(err.msg, "inside a callback"));
    gyre_close(in->g); /* refused: it says so in the log */
    gyre_get_stats(in->g, &st, sizeof st);
    if (in->submitted) return;
    gyre_request r = ask("next", 5, &in->next);
    r.on_event = seen_add, r.ignore_eos = 1;
    must_submit(in->g, &r);
    in->submitted = 1;
    gyre_cancel(in->g, ev->request);
}

static void callbacks_may_call(void **state) {
    (void)state;
    gyre *g = must_open(DEMO, NULL);
    static inside in;
    in = (inside){.g = g};
    gyre_request r = ask("Once", 10, NULL);
    r.user = &in, r.on_event = call_everything;
    must_submit(g, &r);
    step_all(g);
    assert_int_equal(in.n, 1); /* then it was cancelled */
    assert_int_equal(in.next.n, 5);
    assert_int_equal(in.next.n_finish, 1);
    gyre_err err = {0};
    assert_int_equal(gyre_stop(g, &err), GYRE_E_ARG);
    assert_string_equal(err.msg, "gyre_stop: no thread runs");
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_what_the_header_says),
        cmocka_unit_test(defaults_stay_within_the_size),
        cmocka_unit_test(names_are_those_within),
        cmocka_unit_test(open_says_what_is_wrong),
        cmocka_unit_test(info_tells_of_model_and_pool),
        cmocka_unit_test(submit_says_what_is_wrong),
        cmocka_unit_test(what_a_model_lacks_is_refused),
        cmocka_unit_test(by_hand_equals_the_engine),
        cmocka_unit_test(finish_tells_counts_and_times),
        cmocka_unit_test(salts_and_switches_of_the_cache),
        cmocka_unit_test(options_reach_the_engine),
        cmocka_unit_test(priority_decides_who_is_next),
        cmocka_unit_test(huginn_has_an_initial_state),
        cmocka_unit_test(stop_strings_end_the_text),
        cmocka_unit_test(stop_strings_wait_for_min_tokens),
        cmocka_unit_test(the_end_of_a_text_may_be_a_stop_string),
        cmocka_unit_test(eos_and_stop_ids_have_no_text),
        cmocka_unit_test(deltas_put_together_are_the_text),
        cmocka_unit_test(a_drawn_seed_is_reported),
        cmocka_unit_test(max_tokens_zero_fills_the_context),
        cmocka_unit_test(tokenize_and_back),
        cmocka_unit_test(cancel_at_every_time),
        cmocka_unit_test(a_cancel_is_for_its_own_request),
        cmocka_unit_test(room_is_bounded),
        cmocka_unit_test(close_frees_what_is_unfinished),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(the_descriptor_follows_the_events),
        cmocka_unit_test(a_backlog_is_taken_in_order_of_each),
        cmocka_unit_test(callbacks_may_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
