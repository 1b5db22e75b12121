/* Messages of coordinator and workers: there and back for every kind, every cut and every odd length refused. */
#include "base_test.h"

#include "pd/msg.h"

#include <string.h>

static uint64_t rng = 1;
static uint32_t draw(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33);
}

static const gy_msg_kind all[] = {
    GY_MSG_READY, GY_MSG_CONNECTED, GY_MSG_RESERVED,    GY_MSG_REJECTED, GY_MSG_PREFILLED, GY_MSG_ACTIVE,
    GY_MSG_TOKEN, GY_MSG_PROMPT,    GY_MSG_FINISH,      GY_MSG_RELEASED, GY_MSG_STATS,     GY_MSG_FATAL,
    GY_MSG_PONG,  GY_MSG_LEAVING,   GY_MSG_CONNECT,     GY_MSG_GONE,     GY_MSG_RESERVE,   GY_MSG_PREFILL,
    GY_MSG_LOCAL, GY_MSG_CANCEL,    GY_MSG_CANCEL_SAFE, GY_MSG_STOP,     GY_MSG_PING};
enum { N_KIND = sizeof all / sizeof all[0] };

/* Everything that a message can carry, filled; what its kind does not carry is not written. */
typedef struct full {
    gy_msg m;
    int32_t prompt[5], trace[3], stop[2], ids[2][4];
    gy_logit_bias bias[2];
    float gates[4];
    gy_msg_table table[2];
    char blob[100];
} full;

static void fill(full *f, gy_msg_kind k) {
    memset(f, 0, sizeof *f);
    for (int i = 0; i < 5; i++) f->prompt[i] = (int32_t)draw();
    for (int i = 0; i < 3; i++) f->trace[i] = i + 1;
    for (int i = 0; i < 2; i++) {
        f->stop[i] = 7 * i;
        f->bias[i] = (gy_logit_bias){.id = i, .bias = 1.5f * (float)i};
        for (int j = 0; j < 4; j++) f->ids[i][j] = 10 * i + j;
        f->table[i] = (gy_msg_table){.group = i, .plane = 3 * i, .n = 4 - i, .ids = f->ids[i]};
    }
    for (int i = 0; i < 4; i++) f->gates[i] = (float)i / 3;
    for (int i = 0; i < 100; i++) f->blob[i] = (char)draw();
    gy_msg *m = &f->m;
    m->kind = k;
    m->tid = (gy_tid){draw(), draw()};
    m->peer = ((uint64_t)draw() << 32) | draw();
    m->status = GY_E_LIMIT;
    m->text = "no room\0behind";
    m->n_text = 14;
    m->blob = f->blob;
    m->n_blob = 100;
    m->ready =
        (gy_msg_ready){.role = 3, .pid = 4711, .info = {.family = "ouro", .n_loop = 4, .depth = 6, .max_handoff = 9}};
    m->ready.info.n_layer[GY_KV_CORE] = 24;
    for (int i = 0; i < 32; i++) m->ready.info.fingerprint[i] = (uint8_t)draw();
    m->tables = (gy_msg_tables){.n_have = 32, .hidden_slot = 2, .n_table = 2, .table = f->table};
    gy_request *r = &m->request.r;
    *r = (gy_request){.prompt = f->prompt, .n_prompt = 5, .max_tokens = 9, .min_tokens = 2, .n = 3};
    gy_sample_params_default(&r->sample);
    r->sample.temperature = 0.7f;
    r->sample.seed = ((uint64_t)draw() << 20) | 1;
    r->sample.bias = f->bias;
    r->sample.n_bias = 2;
    r->prompt_logprobs = 4;
    r->exit = (gy_exit_rule){.kind = GY_EXIT_TRACE, .threshold = 0.25, .min_loops = 1, .max_loops = 4, .on_prompt = 1};
    r->trace = f->trace;
    r->n_trace = 3;
    r->want_gates = r->ignore_eos = r->latent_noise = r->no_cache = 1;
    r->stop_ids = f->stop;
    r->n_stop_ids = 2;
    r->latent_seed = 12345678901u;
    r->priority = -3;
    r->cache_salt = "sa\0t";
    r->n_salt = 4;
    r->grammar_after = "</think>";
    r->n_grammar_after = 8;
    m->request.grammar_kind = 0;
    m->request.grammar = "[a-z]+";
    m->request.n_grammar = 6;
    m->token = (gy_msg_token){.choice = 1, .index = 4, .token = 99, .loops = 3, .logprob = -0.5f, .n_top = 2};
    m->token.top_id[1] = 5;
    m->token.top_logprob[0] = -1.25f;
    m->token.gates = f->gates;
    m->token.n_gate = 4;
    m->finish = (gy_msg_finish){
        .choice = 2, .n_left = 1, .reason = GY_FINISH_LENGTH, .stop_id = -1, .seed = 77, .finish_ns = 5};
    m->sent = (gy_msg_sent){.bytes = 1 << 30, .n_op = 7, .overlap_ns = 3, .n_computed = 11, .last_post_ns = 4};
    m->sent.said_ns = 5;
    m->stats = (gy_msg_stats){.n_waiting = 1, .kv_total = 50, .xfer_inflight = 1234567, .wait_tok = 12, .n_depth = 5};
#define COUNT(name) m->stats.name = (int64_t)draw() << 20;
    GY_MSG_COUNTS(COUNT)
#undef COUNT
    m->stats.kv_boundary = 8;
    for (int i = 0; i < 5; i++) {
        m->stats.n_row_at[0][i] = (int64_t)draw() << 20;
        m->stats.n_row_at[1][i] = (int64_t)draw() << 20;
        m->stats.kv_plane[i] = 3 + i;
    }
}

static void same_table(const gy_msg_tables *a, const gy_msg_tables *b) {
    assert_int_equal(a->n_have, b->n_have);
    assert_int_equal(a->hidden_slot, b->hidden_slot);
    assert_int_equal(a->n_table, b->n_table);
    for (int i = 0; i < a->n_table; i++) {
        assert_int_equal(a->table[i].group, b->table[i].group);
        assert_int_equal(a->table[i].plane, b->table[i].plane);
        assert_int_equal(a->table[i].n, b->table[i].n);
        assert_memory_equal(a->table[i].ids, b->table[i].ids, (size_t)a->table[i].n * 4);
    }
}

static void same_request(const gy_msg_request *x, const gy_msg_request *y) {
    const gy_request *a = &x->r, *b = &y->r;
    assert_int_equal(a->n_prompt, b->n_prompt);
    assert_memory_equal(a->prompt, b->prompt, 20);
    assert_int_equal(a->max_tokens, b->max_tokens);
    assert_int_equal(a->min_tokens, b->min_tokens);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(&a->sample, &b->sample, offsetof(gy_sample_params, bias));
    assert_int_equal(a->sample.n_bias, b->sample.n_bias);
    assert_memory_equal(a->sample.bias, b->sample.bias, 2 * sizeof(gy_logit_bias));
    assert_int_equal(a->prompt_logprobs, b->prompt_logprobs);
    assert_memory_equal(&a->exit, &b->exit, sizeof a->exit);
    assert_memory_equal(a->trace, b->trace, 12);
    assert_int_equal(a->n_trace, b->n_trace);
    assert_int_equal(a->n_stop_ids, b->n_stop_ids);
    assert_memory_equal(a->stop_ids, b->stop_ids, 8);
    assert_true(b->want_gates == 1 && b->ignore_eos == 1 && b->latent_noise == 1 && b->no_cache == 1);
    assert_int_equal(a->latent_seed, b->latent_seed);
    assert_int_equal(a->priority, b->priority);
    assert_int_equal(a->n_salt, b->n_salt);
    assert_memory_equal(a->cache_salt, b->cache_salt, 4);
    assert_string_equal(b->grammar_after, "</think>");
    assert_int_equal(y->grammar_kind, 0);
    assert_string_equal(y->grammar, "[a-z]+");
    assert_null(b->on_token);
    assert_null(b->grammar);
}

static void test_there_and_back(void **state) {
    (void)state;
    gy_arena *a = gy_arena_create(GY_MEM_PD, 4096);
    for (int k = 0; k < N_KIND; k++) {
        full f;
        gy_str out = {0};
        gy_msg got;
        gy_err err = {0};
        size_t n;
        fill(&f, all[k]);
        assert_int_equal(gy_msg_encode(&f.m, &out), GY_OK);
        assert_int_equal(gy_msg_frame(out.data, out.len, &n, &err), GY_OK);
        assert_int_equal(n, out.len);
        if (gy_msg_decode(out.data, n, a, &err, &got) != GY_OK) fail_msg("%s", err.msg);
        assert_int_equal(got.kind, all[k]);
        int has_tid = all[k] != GY_MSG_READY && all[k] != GY_MSG_CONNECTED && all[k] != GY_MSG_STATS &&
                      all[k] != GY_MSG_FATAL && all[k] != GY_MSG_CONNECT && all[k] != GY_MSG_GONE &&
                      all[k] != GY_MSG_STOP && all[k] != GY_MSG_PING && all[k] != GY_MSG_PONG &&
                      all[k] != GY_MSG_LEAVING;
        assert_int_equal(gy_tid_same(got.tid, f.m.tid), has_tid);
        if (all[k] == GY_MSG_READY) {
            assert_memory_equal(&got.ready, &f.m.ready, sizeof got.ready);
            assert_int_equal(got.n_blob, 100);
            assert_memory_equal(got.blob, f.blob, 100);
            assert_true(got.peer == f.m.peer);
        }
        if (all[k] == GY_MSG_RESERVED || all[k] == GY_MSG_PREFILL) same_table(&f.m.tables, &got.tables);
        if (all[k] == GY_MSG_RESERVE || all[k] == GY_MSG_PREFILL || all[k] == GY_MSG_LOCAL)
            same_request(&f.m.request, &got.request);
        if (all[k] == GY_MSG_REJECTED || all[k] == GY_MSG_FATAL || all[k] == GY_MSG_FINISH) {
            assert_int_equal(got.status, GY_E_LIMIT);
            assert_int_equal(got.n_text, 14);
            assert_memory_equal(got.text, "no room\0behind", 15);
        }
        if (all[k] == GY_MSG_TOKEN || all[k] == GY_MSG_PROMPT) {
            assert_memory_equal(&got.token, &f.m.token, offsetof(gy_msg_token, gates));
            assert_memory_equal(got.token.gates, f.gates, sizeof f.gates);
        }
        if (all[k] == GY_MSG_FINISH) assert_memory_equal(&got.finish, &f.m.finish, sizeof got.finish);
        if (all[k] == GY_MSG_PREFILLED) assert_memory_equal(&got.sent, &f.m.sent, sizeof got.sent);
        if (all[k] == GY_MSG_STATS) assert_memory_equal(&got.stats, &f.m.stats, sizeof got.stats);
        gy_str_free(&out);
        gy_arena_reset(a);
    }
    gy_arena_destroy(a);
}

/* A body that ends early, at every byte, and one that goes on too long. */
static void test_cut(void **state) {
    (void)state;
    gy_arena *a = gy_arena_create(GY_MEM_PD, 4096);
    for (int k = 0; k < N_KIND; k++) {
        full f;
        gy_str out = {0};
        gy_msg got;
        gy_err err;
        fill(&f, all[k]);
        assert_int_equal(gy_msg_encode(&f.m, &out), GY_OK);
        for (size_t n = GY_MSG_HEAD; n < out.len; n++)
            assert_int_equal(gy_msg_decode(out.data, n, a, &err, &got), GY_E_FORMAT);
        size_t frame;
        for (size_t n = 0; n < out.len; n++) {
            assert_int_equal(gy_msg_frame(out.data, n, &frame, &err), GY_OK);
            assert_int_equal(frame, 0);
        }
        gy_str_putc(&out, 'x');
        assert_int_equal(gy_msg_decode(out.data, out.len, a, &err, &got), GY_E_FORMAT);
        assert_non_null(strstr(err.msg, "1 bytes too many"));
        gy_str_free(&out);
        gy_arena_reset(a);
    }
    gy_arena_destroy(a);
}

static void test_refused(void **state) {
    (void)state;
    gy_arena *a = gy_arena_create(GY_MEM_PD, 4096);
    full f;
    gy_str out = {0};
    gy_msg got;
    gy_err err;
    size_t n;
    fill(&f, GY_MSG_CANCEL);
    assert_int_equal(gy_msg_encode(&f.m, &out), GY_OK);
    out.data[6] = 9; /* version */
    assert_int_equal(gy_msg_decode(out.data, out.len, a, &err, &got), GY_E_FORMAT);
    assert_string_equal(err.msg, "message cancel: found version 9, expected 2: both ends must run the same gyre");
    out.data[6] = GY_MSG_VERSION;
    out.data[4] = 50; /* kind */
    assert_int_equal(gy_msg_decode(out.data, out.len, a, &err, &got), GY_DONE);
    assert_int_equal(gy_msg_frame("\0\0\0\0", 4, &n, &err), GY_E_FORMAT);
    assert_int_equal(gy_msg_frame("\xff\xff\xff\xff", 4, &n, &err), GY_E_FORMAT);
    assert_string_equal(gy_msg_name((gy_msg_kind)50), "unknown");
    assert_string_equal(gy_msg_name(GY_MSG_CANCEL_SAFE), "cancel_safe");
    /* Counts that promise more than there is: refused before memory is asked for. */
    gy_str_free(&out);
    fill(&f, GY_MSG_LOCAL);
    assert_int_equal(gy_msg_encode(&f.m, &out), GY_OK);
    int32_t huge = INT32_MAX;
    memcpy(out.data + GY_MSG_HEAD + 16, &huge, sizeof huge); /* n_prompt, behind the tid */
    assert_int_equal(gy_msg_decode(out.data, out.len, a, &err, &got), GY_E_FORMAT);
    assert_non_null(strstr(err.msg, "prompt"));
    gy_str_free(&out);
    gy_arena_destroy(a);
}

static void test_info(void **state) {
    (void)state;
    gy_pd_info a = {.family = "ouro", .n_loop = 4, .n_vocab = 100}, b = a;
    gy_err err;
    b.max_seqs = 5; /* may differ */
    assert_int_equal(gy_pd_info_match(&a, &b, &err), GY_OK);
    b.n_vocab = 101;
    assert_int_equal(gy_pd_info_match(&a, &b, &err), GY_E_ARG);
    assert_string_equal(err.msg, "worker: n_vocab is 101, the others have 100: all must serve the same model alike");
    b = a;
    a.dtype = GY_BF16;
    b.dtype = GY_I8;
    assert_int_equal(gy_pd_info_match(&a, &b, &err), GY_E_ARG);
    assert_string_equal(err.msg, "worker: dtype of its KV is int8, the others have bf16: all must serve the same model "
                                 "alike (--dtype, --kv-dtype)");
    b.dtype = GY_BF16;
    strcpy(b.family, "huginn");
    assert_int_equal(gy_pd_info_match(&a, &b, &err), GY_E_ARG);
    assert_string_equal(err.msg, "worker: family is huginn, the others have ouro");
    b = a;
    b.fingerprint[31] = 1;
    assert_int_equal(gy_pd_info_match(&a, &b, &err), GY_E_ARG);
    assert_non_null(strstr(err.msg, "fingerprints"));
}

static gy_msg_stats counted(int64_t v, int32_t n_depth) {
    gy_msg_stats s = {.n_waiting = 1, .kv_free = 2, .wait_tok = 3, .xfer_inflight = 4, .kv_boundary = 5};
#define COUNT(name) s.name = v++;
    GY_MSG_COUNTS(COUNT)
#undef COUNT
    s.n_depth = n_depth;
    for (int32_t i = 0; i < n_depth; i++) {
        s.n_row_at[0][i] = v + i;
        s.n_row_at[1][i] = v + 100 + i;
        s.kv_plane[i] = 6;
    }
    return s;
}

/* What grows is of all lives, what is held of the present one, deeper tables stay whole. */
static void test_past(void **state) {
    (void)state;
    gy_msg_stats now = counted(1, 2), past = counted(1000, 4);
    int64_t v = 1001;
    gy_msg_stats_add_past(&now, &past);
#define COUNT(name)                                                                                                    \
    assert_int_equal(now.name, v);                                                                                     \
    v += 2;
    GY_MSG_COUNTS(COUNT)
#undef COUNT
    assert_int_equal(now.n_depth, 4);
    int64_t a = 1 + (v - 1001) / 2, b = 999 + a;
    assert_int_equal(now.n_row_at[0][1], a + 1 + b + 1);
    assert_int_equal(now.n_row_at[1][0], a + 100 + b + 100);
    assert_int_equal(now.n_row_at[1][3], b + 103);
    assert_int_equal(now.kv_plane[1], 6);
    assert_int_equal(now.kv_plane[3], 0);
    assert_int_equal(now.n_waiting, 1);
    assert_int_equal(now.kv_free, 2);
    assert_int_equal(now.wait_tok, 3);
    assert_int_equal(now.xfer_inflight, 4);
    assert_int_equal(now.kv_boundary, 5);
}

/* What is only counted and shown: negative, or beyond what can be counted. Sums stay there. */
static void test_amounts(void **state) {
    (void)state;
    static const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, GY_MSG_MOST + 1};
    gy_arena *a = gy_arena_create(GY_MEM_PD, 4096);
    for (size_t i = 0; i < 2 * sizeof bad / sizeof *bad; i++) {
        full f;
        gy_str out = {0};
        gy_msg got;
        gy_err err;
        gy_msg_kind kind = i % 2 ? GY_MSG_PREFILLED : GY_MSG_STATS;
        fill(&f, kind);
        *(i % 2 ? &f.m.sent.overlap_bytes : &f.m.stats.n_pass) = bad[i / 2];
        assert_int_equal(gy_msg_encode(&f.m, &out), GY_OK);
        assert_int_equal(gy_msg_decode(out.data, out.len, a, &err, &got), GY_E_FORMAT);
        assert_string_equal(err.msg, i % 2 ? "message prefilled: s->overlap_bytes cannot be read"
                                           : "message stats: s->n_pass cannot be read");
        out.len = 0;
        fill(&f, GY_MSG_STATS);
        f.m.stats.kv_total = i % 2 ? -1 : INT32_MAX;
        assert_int_equal(gy_msg_encode(&f.m, &out), GY_OK);
        assert_int_equal(gy_msg_decode(out.data, out.len, a, &err, &got), GY_E_FORMAT);
        gy_str_free(&out);
    }
    gy_msg_stats now = counted(GY_MSG_MOST - 100, 1), past = now;
    for (int i = 0; i < 3; i++) gy_msg_stats_add_past(&now, &past);
    assert_int_equal(now.n_pass, GY_MSG_MOST);
    assert_int_equal(now.n_row_at[1][0], GY_MSG_MOST);
    gy_arena_destroy(a);
}

/* More depths than there is room for: refused before they are read. */
static void test_depths(void **state) {
    (void)state;
    gy_arena *a = gy_arena_create(GY_MEM_PD, 4096);
    full f;
    gy_str out = {0};
    gy_msg got;
    gy_err err;
    fill(&f, GY_MSG_STATS);
    f.m.stats.n_depth = GY_STAT_DEPTHS;
    assert_int_equal(gy_msg_encode(&f.m, &out), GY_OK);
    assert_int_equal(gy_msg_decode(out.data, out.len, a, &err, &got), GY_OK);
    int32_t n = GY_STAT_DEPTHS + 1;
    memcpy(out.data + out.len - GY_STAT_DEPTHS * (8 + 8 + 4) - 4, &n, sizeof n);
    assert_int_equal(gy_msg_decode(out.data, out.len, a, &err, &got), GY_E_FORMAT);
    assert_string_equal(err.msg, "message stats: n_depth cannot be read");
    gy_str_free(&out);
    gy_arena_destroy(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_cut),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_info),           cmocka_unit_test(test_past), cmocka_unit_test(test_depths),
        cmocka_unit_test(test_amounts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
