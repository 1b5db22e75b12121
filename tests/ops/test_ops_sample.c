/* Sampling on the device against the host sampler: the same token and the same bits of every logprob, for thousands of
 * random rows of all kinds and parameters, in batches whose rows share nothing; a row alone = in a batch; rows that the
 * host sampler refuses are refused. Then the few words of a patch. Skipped where there is no GPU.
 *
 * test_ops_sample bench: times of one launch.
 */
#include "ops_fixture.h"

#include "base/clock.h"
#include "sample/sample.h"

enum { MAX_ROWS = 256, MAX_BIAS = 40, MAX_BAN = 8, MAX_IDS = 600 };

/* xorshift64*: millions of values, where Philox would take minutes. */
static uint64_t seed = 88172645463325252u;
static double unit(void) {
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (double)(seed * 2685821657736338717u >> 11) * 0x1p-53;
}
static int32_t below(int32_t n) {
    return (int32_t)(unit() * n);
}

typedef struct row {
    gy_sample_params p;
    gy_sample_in in;
    gy_logit_bias bias[MAX_BIAS];
    int32_t ban[MAX_BAN], prompt[MAX_IDS], known; /* known >= 0: not drawn */
    void *counts;
    uint32_t *mask;
    gy_status st; /* of the host */
    gy_sampled due;
} row;

/* A batch: rows, their logits, and all of it on the device. */
typedef struct batch {
    gy_backend *be;
    int32_t n, n_vocab;
    row *rows;
    float *logits, *dev_logits;
    char *pack, *dev_pack;
    size_t room;
    gy_drawn *out, *dev_out;
} batch;

static void fill_logits(float *x, int32_t n) {
    int kind = below(9);
    double mask = unit() < .3 ? unit() * .98 : 0, scale = kind == 6 ? 12 : 6;
    for (int32_t i = 0; i < n; i++) {
        double v = (unit() + unit() + unit() - 1.5) * scale;
        if (kind == 1) v = floor(v);
        if (kind == 2) v = unit() < .5 ? 1 : 0;
        if (kind == 3) v *= 1e37;
        if (kind == 4) v *= 1e-6;
        if (kind == 5) v = 3;
        if (kind == 7) v = unit() < .01 ? v + 20 : v - 5;
        if (kind == 8) v = unit() < .5 ? 0.0 : -0.0;
        x[i] = unit() < mask ? -INFINITY : (float)v;
    }
    x[below(n)] = kind == 8 ? -0.0f : 2;
    if (kind == 7) x[below(n)] = 40;
    double broken = unit();
    if (broken < .01) x[below(n)] = NAN;
    if (broken > .99) x[below(n)] = INFINITY;
    if (broken > .5 && broken < .505)
        for (int32_t i = 0; i < n; i++) x[i] = -INFINITY;
}

static void set_params(row *r, int32_t n) {
    static const float temperatures[] = {0, 0, 1, .7f, 1.3f, 1e-6f, 100, 1e-30f, 1e38f, .05f, 1e-45f};
    static const float ps[] = {1, 1, .9f, .5f, .1f, 1e-9f, .999999f, .3f, .95f, 1e-38f, 0.99999994f};
    static const float mins[] = {0, 0, .05f, .5f, .999f, 1e-6f, 1e-38f};
    gy_sample_params_default(&r->p);
    r->p.temperature = temperatures[below(COUNT(temperatures))];
    r->p.top_p = ps[below(COUNT(ps))];
    r->p.min_p = mins[below(COUNT(mins))];
    if (unit() < .5) r->p.top_k = unit() < .5 ? 1 + below(100) : below(n + 3) - 1;
    if (r->p.top_k < 0) r->p.top_k = 0;
    r->p.seed = (uint64_t)(unit() * 1e18);
    r->p.choice = (uint32_t)below(5);
    r->p.n_logprobs = unit() < .4 ? -1 : below(GY_MAX_LOGPROBS + 1);
    r->in = (gy_sample_in){.p = &r->p, .position = below(100000)};
    r->known = unit() < .1 ? below(n) : -1;
    if (r->known >= 0 && r->p.n_logprobs < 0) r->p.n_logprobs = 0;
}

static void set_changes(row *r, int32_t n) {
    static const float reps[] = {1, 1.3f, .7f, 2, 100, .01f}, pens[] = {0, .5f, 2, -2, -.3f, 1.1f};
    r->p.bias = r->bias;
    r->p.n_bias = below(n < MAX_BIAS ? n : MAX_BIAS);
    int32_t step = n / (r->p.n_bias ? r->p.n_bias : 1);
    for (int32_t i = 0; i < r->p.n_bias; i++)
        r->bias[i] = (gy_logit_bias){i * step + below(step), (float)(unit() * 30 - 15)};
    r->in.ban = r->ban;
    r->in.n_ban = below(MAX_BAN);
    for (int32_t i = 0; i < r->in.n_ban; i++) r->ban[i] = below(n + 2) - 1;
    if (unit() < .3) return;
    r->p.repetition_penalty = reps[below(6)];
    r->p.frequency_penalty = pens[below(6)];
    r->p.presence_penalty = pens[below(6)];
    int32_t n_prompt = below(MAX_IDS), n_output = below(MAX_IDS), most = unit() < .5 || n < 50 ? n : 50;
    for (int32_t i = 0; i < n_prompt; i++) r->prompt[i] = below(most);
    r->counts = malloc(gy_counts_bytes(n_prompt, n_output));
    gy_counts *c = gy_counts_init(r->counts, r->prompt, n_prompt, n_output);
    for (int32_t i = 0; i < n_output; i++) gy_counts_add(c, below(most));
    r->in.counts = c;
}

static void set_mask(row *r, int32_t n) {
    static const double shares[] = {.0002, .5, .99};
    int kind = below(4);
    r->mask = calloc((size_t)(n + 31) / 32, 4);
    for (int32_t i = 0; i < (n + 31) / 32 * 32; i++) /* bits behind the vocabulary too */
        if (kind == 3 ? i % 640 < 320 : unit() < shares[kind]) r->mask[i / 32] |= 1u << i % 32;
    r->in.mask = r->mask;
}

static batch batch_make(gy_backend *be, int32_t n, int32_t n_vocab) {
    batch b = {.be = be, .n = n, .n_vocab = n_vocab};
    size_t cells = (size_t)n * (size_t)n_vocab;
    b.rows = calloc((size_t)n, sizeof *b.rows);
    b.logits = malloc(cells * 4);
    b.out = malloc((size_t)n * sizeof *b.out);
    b.room = (size_t)n * (sizeof(gy_draw_row) + 32768 + (size_t)n_vocab / 8);
    b.pack = malloc(b.room);
    b.dev_logits = be->ops->alloc(be, cells * 4);
    b.dev_pack = be->ops->alloc(be, b.room);
    b.dev_out = be->ops->alloc(be, ((size_t)n + 1) * sizeof *b.out);
    assert_true(b.rows && b.logits && b.out && b.pack && b.dev_logits && b.dev_pack && b.dev_out);
    return b;
}

static void batch_free(batch *b) {
    size_t cells = (size_t)b->n * (size_t)b->n_vocab;
    for (int32_t i = 0; i < b->n; i++) {
        free(b->rows[i].counts);
        free(b->rows[i].mask);
    }
    b->be->ops->free(b->be, b->dev_logits, cells * 4);
    b->be->ops->free(b->be, b->dev_pack, b->room);
    b->be->ops->free(b->be, b->dev_out, ((size_t)b->n + 1) * sizeof *b->out);
    free(b->rows);
    free(b->logits);
    free(b->pack);
    free(b->out);
}

static void batch_fill(batch *b, gy_sampler *s) {
    for (int32_t i = 0; i < b->n; i++) {
        row *r = &b->rows[i];
        float *x = b->logits + (size_t)i * (size_t)b->n_vocab;
        fill_logits(x, b->n_vocab);
        set_params(r, b->n_vocab);
        if (r->known < 0 && unit() < .4) set_changes(r, b->n_vocab);
        if (r->known < 0 && unit() < .3) set_mask(r, b->n_vocab);
        r->in.logits = x;
        if (r->known >= 0)
            r->st = gy_logprob_row(x, b->n_vocab, r->known, r->p.n_logprobs, 0, NULL, &r->due);
        else
            r->st = gy_sample_row(s, 0, &r->in, NULL, &r->due);
    }
    b->be->ops->upload(b->be, b->dev_logits, b->logits, (size_t)b->n * (size_t)b->n_vocab * 4);
}

/* Rows first..first + n into out[0..n); the row behind them stays what it was. */
static void batch_run(batch *b, int32_t first, int32_t n) {
    const gy_ops *ops = b->be->ops;
    size_t at = (size_t)n * sizeof(gy_draw_row), bytes = (size_t)n * sizeof *b->out;
    gy_draw_row *plain = (gy_draw_row *)b->pack;
    for (int32_t i = 0; i < n; i++) {
        const row *r = &b->rows[first + i];
        if (r->known >= 0) {
            gy_sample_pack_known(r->known, r->p.n_logprobs, &plain[i]);
            continue;
        }
        gy_sample_pack(&r->in, b->n_vocab, b->pack, at, &plain[i]);
        at += gy_sample_pack_bytes(&r->in, b->n_vocab);
        assert_true(at % 8 == 0 && at <= b->room);
    }
    gy_drawn behind, after;
    memset(&behind, 0x5a, sizeof behind);
    ops->upload(b->be, b->dev_pack, b->pack, at);
    ops->upload(b->be, b->dev_out + n, &behind, sizeof behind);
    gy_sample_args a = {.logits = b->dev_logits + (size_t)first * (size_t)b->n_vocab,
                        .n_row = n,
                        .n_vocab = b->n_vocab,
                        .rows = (gy_draw_row *)b->dev_pack,
                        .out = b->dev_out};
    assert_int_equal(ops->sample(b->be, &a), 1);
    ops->download(b->be, b->out, b->dev_out, bytes);
    ops->download(b->be, &after, b->dev_out + n, sizeof after);
    assert_memory_equal(&behind, &after, sizeof after);
    gy_err err = {0};
    if (ops->sync(b->be, &err) != GY_OK) fail_msg("%s", err.msg);
}

static void row_check(const batch *b, const row *r, const gy_drawn *d, const char *how) {
    gy_sampled got;
    const gy_sample_params *p = &r->p;
    if (r->st != GY_OK) {
        if (!d->refused) fail_msg("row %d of %d (%s): not refused", (int)(r - b->rows), b->n, how);
        return;
    }
    if (d->refused) fail_msg("row %d of %d (%s): refused", (int)(r - b->rows), b->n, how);
    gy_sample_unpack(d, p->n_logprobs, b->n_vocab, &got);
    if (memcmp(&got, &r->due, sizeof got))
        fail_msg(
            "row %d of %d (%s): token %d logprob %a n_top %d [%d %a], not %d %a %d [%d %a]: n_vocab %d T %g k %d p "
            "%.9g min %g logprobs %d known %d bias %d bans %d counts %d mask %d",
            (int)(r - b->rows), b->n, how, got.id, (double)got.logprob, got.n_top, got.top_id[0],
            (double)got.top_logprob[0], r->due.id, (double)r->due.logprob, r->due.n_top, r->due.top_id[0],
            (double)r->due.top_logprob[0], b->n_vocab, (double)p->temperature, p->top_k, (double)p->top_p,
            (double)p->min_p, p->n_logprobs, r->known, p->n_bias, r->in.n_ban, r->counts != NULL, r->mask != NULL);
}

static gy_backend *open_gpu(void) {
    gy_cuda_opts o = {.act = GY_F32, .n_thread = 1, .limits = {.max_row = 16, .max_k = 64, .max_len = 64}};
    gy_err err = {0};
    gy_backend *be = NULL;
    if (gy_backend_cuda_create(&o, &err, &be) < 0) fail_msg("%s", err.msg);
    return be;
}

/* How often to go on: rounds of n rows. singles: rows of each round that run alone too. */
typedef struct plan {
    int32_t n_vocab, n, rounds, singles;
} plan;

static void run_plan(gy_backend *be, const plan *q) {
    gy_sampler *s = NULL;
    int32_t n_refused = 0;
    assert_int_equal(gy_sampler_create(q->n_vocab, 1, &s), GY_OK);
    for (int32_t round = 0; round < q->rounds; round++) {
        int32_t n = round % 2 ? q->n : 1 + below(q->n);
        batch b = batch_make(be, n, q->n_vocab);
        batch_fill(&b, s);
        batch_run(&b, 0, n);
        for (int32_t i = 0; i < n; i++) row_check(&b, &b.rows[i], &b.out[i], "together");
        for (int32_t i = 0; i < n; i++) n_refused += b.out[i].refused;
        for (int32_t k = 0; k < q->singles; k++) { /* other clusters, the same bits */
            int32_t i = below(n), some = 1 + below(n - i < 40 ? n - i : 40);
            batch_run(&b, i, some);
            for (int32_t j = 0; j < some; j++) row_check(&b, &b.rows[i + j], &b.out[j], "in part");
        }
        batch_free(&b);
    }
    assert_true(n_refused > 0 || q->rounds * q->n < 200);
    gy_sampler_destroy(s);
}

static void test_device_equals_host(void **state) {
    (void)state;
    if (cuda_missing()) skip();
    static const plan plans[] = {{1, 16, 4, 2},      {7, 64, 8, 4},      {320, 256, 16, 8},   {1003, 256, 8, 8},
                                 {4099, 256, 4, 8},  {32000, 70, 4, 8},  {49152, 140, 3, 10}, {65537, 33, 3, 6},
                                 {151936, 24, 3, 6}, {262144, 17, 2, 4}, {400001, 3, 2, 2}};
    gy_backend *be = open_gpu();
    for (int i = 0; i < COUNT(plans); i++) run_plan(be, &plans[i]);
    gy_backend_destroy(be);
}

/* Longer than any cluster holds: left to the host. */
static void test_too_long(void **state) {
    (void)state;
    if (cuda_missing()) skip();
    gy_backend *be = open_gpu();
    assert_int_equal(be->ops->sample(be, &(gy_sample_args){.n_row = 1, .n_vocab = 1 << 22}), 0);
    gy_backend_destroy(be);
}

static void test_patch(void **state) {
    (void)state;
    if (cuda_missing()) skip();
    enum { N = 5000, LEN = 100000 };
    gy_backend *be = open_gpu();
    static int32_t v[N], y[LEN], got[LEN];
    static int64_t idx[N];
    int32_t *dy = be->ops->alloc(be, sizeof y), *dv = be->ops->alloc(be, sizeof v);
    int64_t *di = be->ops->alloc(be, sizeof idx);
    for (int32_t n = 0; n <= N; n = n * 3 + 1) {
        for (int32_t i = 0; i < n; i++) {
            idx[i] = i * (LEN / N) + below(LEN / N);
            y[idx[i]] = v[i] = below(1 << 30);
        }
        be->ops->upload(be, di, idx, sizeof idx);
        be->ops->upload(be, dv, v, sizeof v);
        be->ops->patch(be, &(gy_patch_args){.idx = di, .v = dv, .n = n, .y = dy});
        be->ops->download(be, got, dy, sizeof got);
        assert_memory_equal(got, y, sizeof y);
    }
    be->ops->free(be, dy, sizeof y);
    be->ops->free(be, dv, sizeof v);
    be->ops->free(be, di, sizeof idx);
    gy_backend_destroy(be);
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

typedef struct mode {
    const char *name;
    float temperature, top_p;
    int32_t top_k, n_logprobs;
    float spread; /* of the logits */
} mode;

static double time_of(batch *b, const mode *m) {
    enum { REPEAT = 200 };
    gy_draw_row *plain = (gy_draw_row *)b->pack;
    for (int32_t i = 0; i < b->n; i++) {
        gy_sample_params p;
        gy_sample_params_default(&p);
        p.temperature = m->temperature;
        p.top_p = m->top_p;
        p.top_k = m->top_k;
        p.n_logprobs = m->n_logprobs;
        gy_sample_pack(&(gy_sample_in){.p = &p, .position = i}, b->n_vocab, b->pack, (size_t)b->n * sizeof(gy_draw_row),
                       &plain[i]);
    }
    b->be->ops->upload(b->be, b->dev_pack, b->pack, (size_t)b->n * sizeof(gy_draw_row));
    gy_sample_args a = {.logits = b->dev_logits,
                        .n_row = b->n,
                        .n_vocab = b->n_vocab,
                        .rows = (gy_draw_row *)b->dev_pack,
                        .out = b->dev_out};
    int64_t t = 0;
    for (int i = -20; i < REPEAT; i++) {
        if (i == 0) {
            b->be->ops->sync(b->be, NULL);
            t = gy_clock_ns();
        }
        b->be->ops->sample(b->be, &a);
    }
    b->be->ops->sync(b->be, NULL);
    return (double)(gy_clock_ns() - t) * 1e-3 / REPEAT;
}

static int time_launches(void) {
    static const mode modes[] = {{"greedy", 0, 1, 0, -1, 3},
                                 {"greedy, 5 logprobs", 0, 1, 0, 5, 3},
                                 {"temperature", 1, 1, 0, -1, 3},
                                 {"top-k 50", 1, 1, 50, -1, 3},
                                 {"top-p .9, peaked", 1, .9f, 0, -1, 3},
                                 {"top-p .9, flat", 1, .9f, 0, -1, .01f},
                                 {"k 50, p .9", 1, .9f, 50, -1, 3}};
    static const int32_t sizes[] = {1, 32, 256}, vocabs[] = {49152, 151936};
    gy_backend *be = open_gpu();
    for (int v = 0; v < COUNT(vocabs); v++)
        for (int k = 0; k < COUNT(sizes); k++) {
            batch b = batch_make(be, sizes[k], vocabs[v]);
            for (int i = 0; i < COUNT(modes); i++) {
                size_t cells = (size_t)b.n * (size_t)b.n_vocab;
                for (size_t j = 0; j < cells && (!i || modes[i].spread != modes[i - 1].spread); j++)
                    b.logits[j] = (float)((unit() + unit() + unit() - 1.5) * 2 * modes[i].spread);
                be->ops->upload(be, b.dev_logits, b.logits, cells * 4);
                printf("n_vocab %6d rows %3d %-20s %8.1f us (bytes / 4.24 TB/s: %.1f)\n", b.n_vocab, b.n, modes[i].name,
                       time_of(&b, &modes[i]), (double)cells * 4 / 4.24e6);
            }
            batch_free(&b);
        }
    gy_backend_destroy(be);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "bench")) return cuda_missing() ? 0 : time_launches();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_equals_host),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_patch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
