/* The scheduler, driven by a small engine that keeps no tensors: a real gy_kv, and for each slot a note of what was
 * written there (token, position, depth, and a digest of all that came before). Each row of a pass checks that it reads
 * what it must; the books of scheduler and KV are checked after each call. Large random workloads are tests/sim's.
 */
#include "base_test.h"

#include "base/mem.h"
#include "sched/sched_int.h"

enum { MAX_JOB = 64, MAX_TOK = 512, MAX_FLIGHT = 1024, MAX_SLOT = 1 << 14, N_LOOP = 4 };

typedef struct note { /* what a slot holds */
    int32_t pos, depth;
    uint64_t digest; /* of the tokens up to pos and the depths they ran */
} note;

typedef struct tjob {
    int live;
    int32_t id;
    int32_t n_prompt, max_tokens, n_out, decode_loops, prompt_loops;
    uint32_t key; /* of its prompt */
    int32_t tok[MAX_TOK], ran[MAX_TOK];
    uint64_t digest[MAX_TOK + 1];
    int32_t n_logits; /* prompt rows reported */
} tjob;

typedef struct rig {
    gy_kv_config kc;
    gy_sched_opts o;
    gy_kv *kv;
    gy_sched *s;
    tjob job[MAX_JOB]; /* by name that the test gives; owner[id] leads back */
    int32_t owner[MAX_JOB * 2];
    note slot[GY_KV_GROUPS][MAX_SLOT], park[GY_KV_GROUPS][MAX_SLOT];
    int32_t max_logit;
    int64_t now, n_copy;
    int32_t n_step;
    /* of the last step */
    int32_t n_enter, n_pass, n_pass_decode, n_coda, n_coda_batch, pass_job[64], pass_pos[512], pass_depth[512];
} rig;

static rig R; /* large: not on the stack */
static char arena_mem[1];

/* ---- the rig ----------------------------------------------------------------------------------------------------- */

static void check_books(const char *after) {
    char why[256] = "";
    if (!gy_sched_is_valid(R.s, why, sizeof why)) fail_msg("after %s: %s", after, why);
    if (!gy_kv_is_valid(R.kv, why, sizeof why)) fail_msg("after %s: %s", after, why);
}

static void copy_park(void *arg, gy_kv_group g, int32_t block, int32_t park) {
    (void)arg;
    memcpy(&R.park[g][park * 16], &R.slot[g][block * 16], 16 * sizeof(note));
    R.n_copy++;
}

static void copy_restore(void *arg, gy_kv_group g, int32_t block, int32_t park) {
    (void)arg;
    memcpy(&R.slot[g][block * 16], &R.park[g][park * 16], 16 * sizeof(note));
    R.n_copy++;
}

/* A model with coda layers, 4 loops, 16 blocks of room unless a test says otherwise; begin() then opens. */
static void setup(void) {
    memset(&R, 0, sizeof R);
    R.kc =
        (gy_kv_config){.layout = GY_KV_LAST_EXITED, .n_loop = N_LOOP, .n_head_kv = 1, .head_dim = 1, .dtype = GY_BF16};
    R.kc.n_layer[GY_KV_CORE] = 1;
    R.kc.n_block[GY_KV_CORE] = 512;
    R.kc.max_seqs = 16;
    R.kc.max_len = MAX_TOK;
    gy_sched_opts_default(&R.o);
    R.o.max_rows = 32;
    R.o.max_seqs = 8;
    R.o.max_queue = 16;
    R.o.prefill_chunk = 16;
    R.o.n_loop = N_LOOP;
    R.o.park_copy = copy_park;
    R.o.restore_copy = copy_restore;
    R.max_logit = 32;
}

static void with_boundary(int has_coda) {
    R.kc.n_layer[GY_KV_BOUNDARY] = 1;
    R.kc.n_block[GY_KV_BOUNDARY] = 256;
    R.o.has_boundary = 1;
    R.o.has_coda = has_coda;
}

static void begin(int cache) {
    void *const arena[GY_KV_GROUPS] = {arena_mem, arena_mem};
    gy_err err = {0};
    assert_int_equal(gy_kv_create(&R.kc, arena, &err, &R.kv), GY_OK);
    if (cache) assert_int_equal(gy_prefix_create(R.kv, N_LOOP, &err), GY_OK);
    if (gy_sched_create(&R.o, R.kv, &err, &R.s) != GY_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < MAX_JOB * 2; i++) R.owner[i] = -1;
    check_books("create");
}

static void end(void) {
    gy_sched_destroy(R.s);
    gy_kv_destroy(R.kv);
}

static gy_sched_job spec(int name) {
    tjob *j = &R.job[name];
    return (gy_sched_job){.tok = j->tok,
                          .n_prompt = j->n_prompt,
                          .max_tokens = j->max_tokens,
                          .full_prompt = j->prompt_loops == N_LOOP,
                          .leader = -1};
}

/* The token at a position: a function of the job's key, so that equal keys are equal texts. */
static int32_t text(uint32_t key, int32_t pos) {
    return (int32_t)((key * 2654435761u + (uint32_t)pos * 40503u) >> 8) & 0xffff;
}

static void define(int name, uint32_t key, int32_t n_prompt, int32_t max_tokens) {
    tjob *j = &R.job[name];
    *j = (tjob){
        .key = key, .n_prompt = n_prompt, .max_tokens = max_tokens, .decode_loops = N_LOOP, .prompt_loops = N_LOOP};
    for (int32_t i = 0; i < n_prompt; i++) j->tok[i] = text(key, i);
}

static gy_status try_submit(int name, const gy_sched_job *in) {
    gy_status st = gy_sched_submit(R.s, in, ++R.now, &R.job[name].id);
    if (st == GY_OK) {
        R.job[name].live = 1;
        R.owner[R.job[name].id] = name;
    }
    check_books("submit");
    return st;
}

static void submit(int name) {
    gy_sched_job in = spec(name);
    assert_int_equal(try_submit(name, &in), GY_OK);
}

static void drop(int name) {
    gy_sched_remove(R.s, R.job[name].id);
    R.owner[R.job[name].id] = -1;
    R.job[name].live = 0;
    check_books("remove");
}

static gy_job_info info(int name) {
    gy_job_info out;
    gy_sched_job_info(R.s, R.job[name].id, &out);
    return out;
}

static gy_sched_stats stats(void) {
    gy_sched_stats out;
    gy_sched_get_stats(R.s, &out);
    return out;
}

/* ---- one step of the engine -------------------------------------------------------------------------------------- */

static tjob *job_of(int32_t flight) {
    int32_t name = R.owner[gy_sched_flight_job(R.s, flight)];
    assert_true(name >= 0);
    return &R.job[name];
}

/* Loops that the token at pos runs in this job. Prompt tokens of on_prompt jobs leave after 1..prompt_loops, by
 * position.
 */
static int32_t due_loops(const tjob *j, int32_t pos) {
    if (pos >= j->n_prompt) return j->decode_loops ? j->decode_loops : 1 + (pos * 7 + (int32_t)j->key) % N_LOOP;
    return j->prompt_loops ? j->prompt_loops : 1 + (pos * 5 + (int32_t)j->key) % N_LOOP;
}

static uint64_t digest_of(const tjob *j, int32_t pos) {
    uint64_t h = 1469598103934665603u;
    for (int32_t i = 0; i <= pos; i++)
        h = (h ^ (uint64_t)(uint32_t)j->tok[i] ^ (uint64_t)due_loops(j, i) << 32) * 1099511628211u;
    return h;
}

static void expect_note(const note *n, const tjob *j, int32_t pos, int32_t depth, const char *what) {
    if (n->pos != pos || n->depth != depth || n->digest != digest_of(j, pos))
        fail_msg("%s: pos %d: found pos %d depth %d, expected depth %d", what, pos, n->pos, n->depth, depth);
}

/* Row of a pass: each earlier token is read as it was at this depth, or as it left. */
static void run_row(const gy_sched_rows *r, int32_t i) {
    tjob *j = job_of(r->flight[i]);
    int32_t depth = gy_sched_flight_loops(R.s, r->flight[i]);
    R.slot[GY_KV_CORE][r->slot[i]] = (note){.pos = r->pos[i], .depth = depth, .digest = digest_of(j, r->pos[i])};
}

static void read_row(const gy_sched_rows *r, int32_t i) {
    tjob *j = job_of(r->flight[i]);
    int32_t depth = gy_sched_flight_loops(R.s, r->flight[i]);
    const int32_t *map = gy_kv_map(R.kv, GY_KV_CORE) + r->map_off[i];
    assert_int_equal(map[r->pos[i]], r->slot[i]);
    for (int32_t p = 0; p < r->pos[i]; p++) {
        int32_t last = due_loops(j, p) - 1, d = depth < last ? depth : last;
        if (R.kc.layout == GY_KV_SHARED) d = last; /* overwritten: the last loop's is what is left */
        assert_true(map[p] >= 0);
        expect_note(&R.slot[GY_KV_CORE][map[p]], j, p, d, "core");
    }
}

static void run_enter(void) {
    for (;;) {
        const gy_sched_rows *r = gy_sched_enter(R.s);
        check_books("enter");
        if (!r->n_row) return;
        assert_true(r->n_row <= R.o.max_rows);
        R.n_enter += r->n_row;
        for (int32_t i = 0; i < r->n_row; i++) {
            assert_int_equal(r->pos[i], gy_sched_flight_pos(R.s, r->flight[i]));
            assert_int_equal(gy_sched_flight_loops(R.s, r->flight[i]), 0);
            if (R.o.has_boundary)
                R.slot[GY_KV_BOUNDARY][r->slot[i]] =
                    (note){.pos = r->pos[i], .digest = digest_of(job_of(r->flight[i]), r->pos[i])};
        }
    }
}

static int run_pass(int32_t *flight) {
    const gy_sched_rows *r = gy_sched_pass(R.s);
    check_books("pass");
    assert_true(r->n_row <= R.o.max_rows);
    R.n_pass = r->n_row;
    R.n_pass_decode = r->n_decode;
    for (int32_t i = 0; i < r->n_row; i++) run_row(r, i);
    for (int32_t i = 0; i < r->n_row; i++) {
        read_row(r, i);
        flight[i] = r->flight[i];
        R.pass_pos[i] = r->pos[i];
        R.pass_depth[i] = gy_sched_flight_loops(R.s, r->flight[i]);
        R.pass_job[R.owner[gy_sched_flight_job(R.s, r->flight[i])]]++;
        assert_int_equal(r->pos[i] >= job_of(r->flight[i])->n_prompt + job_of(r->flight[i])->n_out - 1 &&
                             r->pos[i] >= job_of(r->flight[i])->n_prompt,
                         i < r->n_decode);
    }
    return r->n_row;
}

static void route(const int32_t *flight, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t loops = gy_sched_flight_loops(R.s, flight[i]) + 1;
        if (loops < due_loops(job_of(flight[i]), gy_sched_flight_pos(R.s, flight[i])))
            gy_sched_stay(R.s, flight[i]);
        else
            gy_sched_leave(R.s, flight[i], 0);
    }
    check_books("routing");
}

/* Coda of a row: with coda layers it reads all earlier boundary slots. */
static void coda_row(const gy_sched_rows *r, int32_t i) {
    tjob *j = job_of(r->flight[i]);
    for (int32_t p = 0; p <= r->pos[i] && R.o.has_boundary; p++)
        expect_note(&R.slot[GY_KV_BOUNDARY][gy_kv_map(R.kv, GY_KV_BOUNDARY)[r->map_off[i] + p]], j, p, 0, "boundary");
    if (R.o.has_boundary) assert_int_equal(r->slot[i], gy_kv_map(R.kv, GY_KV_BOUNDARY)[r->map_off[i] + r->pos[i]]);
}

static void sample(int32_t flight) {
    tjob *j = job_of(flight);
    int32_t pos = gy_sched_flight_pos(R.s, flight);
    assert_int_equal(pos, j->n_prompt + j->n_out - 1);
    j->tok[pos + 1] = text(j->key, pos + 1);
    j->n_out++;
    gy_sched_sampled(R.s, flight);
    if (j->n_out == j->max_tokens) drop((int)(j - R.job));
}

static void finish_row(int32_t flight, int wants) {
    if (gy_sched_flight_samples(R.s, flight)) {
        assert_true(wants);
        job_of(flight)->n_logits++;
        sample(flight);
        return;
    }
    if (wants) assert_int_equal(gy_sched_flight_pos(R.s, flight), job_of(flight)->n_logits++); /* in order, each once */
    gy_sched_done(R.s, flight);
}

static void run_coda(void) {
    for (;;) {
        const gy_sched_rows *r = gy_sched_coda(R.s, R.max_logit);
        check_books("coda");
        if (!r->n_row) return;
        assert_true(r->n_row <= R.o.max_rows && r->n_logit <= R.max_logit);
        R.n_coda += r->n_row;
        R.n_coda_batch++;
        for (int32_t i = 0; i < r->n_row; i++) coda_row(r, i);
        for (int32_t i = 0, k = 0; i < r->n_row; i++) {
            int wants = k < r->n_logit && r->logit[k] == i;
            k += wants;
            finish_row(r->flight[i], wants);
        }
        check_books("coda's end");
    }
}

/* A scan is left out only when it would admit nobody. */
static void check_nobody_is_missed(void) {
    int32_t n = R.s->n_running;
    if (R.s->dirty) return;
    R.s->dirty = 1;
    gy_sched_admit(R.s, ++R.now);
    assert_int_equal(R.s->n_running, n);
}

static void step(void) {
    int32_t flight[512];
    gy_mem_guard_begin();
    R.n_step++;
    R.n_enter = R.n_coda = R.n_coda_batch = 0;
    memset(R.pass_job, 0, sizeof R.pass_job);
    check_nobody_is_missed();
    gy_sched_admit(R.s, ++R.now);
    check_books("admit");
    run_enter();
    int32_t n = run_pass(flight);
    route(flight, n);
    run_coda();
    gy_mem_guard_end();
}

static int run_all(int max_steps) {
    int n = 0;
    for (; !gy_sched_idle(R.s) && n < max_steps; n++) step();
    assert_true(gy_sched_idle(R.s));
    assert_int_equal(gy_kv_n_avail(R.kv, GY_KV_CORE), R.kc.n_block[GY_KV_CORE]);
    assert_int_equal(stats().n_flight, 0);
    return n;
}

/* Steps until the job has so many outputs. */
static void run_until_outputs(int name, int32_t n_out) {
    for (int i = 0; R.job[name].n_out < n_out; i++) {
        assert_true(i < 1000 && R.job[name].live);
        step();
    }
}

static int32_t blocks_used(void) {
    return R.kc.n_block[GY_KV_CORE] - gy_kv_n_avail(R.kv, GY_KV_CORE);
}

static gy_prefix_stats prefix(void) {
    gy_prefix_stats out;
    gy_prefix_get_stats(R.kv, &out);
    return out;
}

/* ---- a job alone ------------------------------------------------------------------------------------------------- */

static void one_job_runs(void **state) {
    (void)state;
    for (int coda = 0; coda < 3; coda++) {
        setup();
        if (coda) with_boundary(coda - 1);
        begin(0);
        define(0, 1, 20, 5);
        submit(0);
        assert_int_equal(info(0).state, GY_JOB_WAITING);
        step();
        assert_int_equal(info(0).state, GY_JOB_PREFILL);
        assert_int_equal(info(0).n_entered, 20);
        assert_int_equal(info(0).n_done, 0);
        assert_true(info(0).admit_ns > info(0).submit_ns);
        run_until_outputs(0, 1);
        assert_int_equal(info(0).state, GY_JOB_DECODE);
        assert_int_equal(info(0).n_known, 21);
        assert_int_equal(info(0).n_done, 20);
        assert_int_equal(run_all(1000), N_LOOP * 4); /* with 4 steps for the prompt: 4 for each output */
        assert_int_equal(R.job[0].n_out, 5);
        end();
    }
}

/* A prompt of one token, one output: nothing ever enters after the prompt. */
static void smallest_job(void **state) {
    (void)state;
    setup();
    begin(1);
    define(0, 1, 1, 1);
    submit(0);
    assert_int_equal(run_all(10), N_LOOP);
    end();
}

/* Outputs that leave early and deep, prompts whose tokens leave out of order: the rig checks what each row reads. */
static void depths_may_differ(void **state) {
    (void)state;
    for (int coda = 0; coda < 3; coda++)
        for (int32_t rows = 1; rows <= 32; rows = rows * 3 + 1) {
            setup();
            if (coda) with_boundary(coda - 1);
            R.o.max_rows = rows;
            R.o.prefill_chunk = 5;
            begin(0);
            for (int i = 0; i < 4; i++) {
                define(i, 7 + (uint32_t)i, 11 + 9 * i, 6);
                R.job[i].decode_loops = 0;
                R.job[i].prompt_loops = i % 2 ? 0 : N_LOOP;
                submit(i);
            }
            run_all(2000);
            end();
        }
}

/* Position-serial layouts: one flight of a sequence at a time, sequences side by side. */
static void serial_layouts_run_position_by_position(void **state) {
    (void)state;
    setup();
    R.kc.layout = GY_KV_SHARED;
    begin(0);
    for (int i = 0; i < 3; i++) {
        define(i, (uint32_t)i, 4, 2);
        submit(i);
    }
    step();
    assert_int_equal(R.n_pass, 3);
    assert_int_equal(1 + run_all(1000), (4 + 1) * N_LOOP);
    end();
}

/* ---- composition of passes --------------------------------------------------------------------------------------- */

/* Alike in length: each one's first token comes as soon as if nobody had come after it. */
static void prompts_enter_in_order_of_arrival(void **state) {
    (void)state;
    setup();
    R.o.max_rows = 24;
    R.o.prefill_chunk = 10;
    begin(0);
    for (int i = 0; i < 3; i++) {
        define(i, (uint32_t)i, 24, 1);
        submit(i);
    }
    for (int i = 0; i < 3; i++) {
        step();
        assert_int_equal(R.n_pass, 24);
        assert_int_equal(R.pass_job[i], 24);
        while (!R.job[i].n_out) step();
        assert_int_equal(R.n_step, (i + 1) * N_LOOP);
    }
    end();
}

/* What a prompt leaves of a pass is the next one's. */
static void the_next_prompt_fills_the_pass(void **state) {
    (void)state;
    setup();
    R.o.max_rows = 16;
    begin(0);
    for (int i = 0; i < 3; i++) {
        define(i, (uint32_t)i, i ? 30 : 4, 1);
        submit(i);
    }
    step();
    assert_int_equal(R.pass_job[0], 4);
    assert_int_equal(R.pass_job[1], 12);
    assert_int_equal(R.pass_job[2], 0);
    run_all(1000);
    end();
}

/* Due sooner, because it is short; the long one goes on behind it. */
static void a_short_prompt_passes_a_long_one(void **state) {
    (void)state;
    setup();
    begin(0);
    define(0, 0, 200, 1);
    define(1, 1, 20, 1);
    submit(0);
    step();
    assert_int_equal(info(0).n_entered, 32);
    submit(1);
    run_until_outputs(1, 1);
    assert_int_equal(R.n_step, 2 * N_LOOP);
    assert_int_equal(info(0).n_entered, 32 + 12);
    run_all(1000);
    end();
}

/* One as long as what is left of the other is no reason to wait: it came later. */
static void a_started_prompt_is_not_passed_by_its_like(void **state) {
    (void)state;
    setup();
    begin(0);
    define(0, 0, 96, 1);
    define(1, 1, 90, 1);
    submit(0);
    step();
    submit(1);
    while (!R.job[0].n_out) step();
    assert_int_equal(R.n_step, 3 * N_LOOP);
    run_all(1000);
    end();
}

static void a_chunk_enters_as_a_whole(void **state) {
    (void)state;
    setup();
    R.o.max_rows = 16;
    R.o.prefill_chunk = 10;
    begin(0);
    define(0, 0, 100, 1);
    define(1, 1, 8, 1);
    submit(0);
    step();
    assert_int_equal(info(0).n_entered, 16); /* 6 of its second chunk */
    submit(1);
    while (info(0).n_entered == 16) step();
    assert_int_equal(R.pass_job[0], 4 + 4);
    assert_int_equal(R.pass_job[1], 8);
    run_all(1000);
    end();
}

/* Short prompts come for ever; the long one's tokens enter after SCHED_STRETCH times as many of theirs. */
static void short_prompts_do_not_starve_a_long_one(void **state) {
    (void)state;
    setup();
    R.o.max_rows = 8;
    R.o.prefill_chunk = 4;
    begin(0);
    define(0, 0, 64, 1);
    submit(0);
    int n_short = 0;
    while (info(0).n_entered < 64) {
        for (int i = 1; i < 4; i++) {
            if (n_short >= 3 && !R.job[i].n_out) continue;
            define(i, (uint32_t)++n_short, 8, 1);
            submit(i);
        }
        step();
    }
    assert_in_range(n_short * 8, SCHED_STRETCH * 64 - 64, SCHED_STRETCH * 64 + 4 * 8);
    run_all(1000);
    end();
}

static void a_better_priority_enters_first(void **state) {
    (void)state;
    setup();
    R.o.policy = GY_SCHED_PRIORITY;
    begin(0);
    for (int i = 0; i < 2; i++) {
        define(i, (uint32_t)i, i ? 64 : 32, 1);
        gy_sched_job in = spec(i);
        in.priority = 1 - i;
        assert_int_equal(try_submit(i, &in), GY_OK);
    }
    step();
    assert_int_equal(R.pass_job[1], 32);
    assert_int_equal(R.pass_job[0], 0);
    run_all(1000);
    end();
}

/* 48 tokens and 32 rows: the last 16 enter beside the first chunk's second loop, so that all passes are full. */
static void tail_of_a_prompt_fills_passes(void **state) {
    (void)state;
    setup();
    begin(0);
    define(0, 1, 48, 1);
    submit(0);
    step();
    assert_int_equal(info(0).n_entered, 48);
    assert_int_equal(R.n_pass, 32);
    step();
    assert_int_equal(R.n_pass, 32);
    for (int i = 0; i < 32; i++) {
        assert_int_equal(R.pass_depth[i], i < 16 ? 0 : 1);
        assert_int_equal(R.pass_pos[i], i < 16 ? 32 + i : i - 16);
    }
    assert_int_equal(2 + run_all(100), 48 * N_LOOP / 32);
    end();
}

/* What fills a pass by itself waits until it can: its rows would only make the chunk before it later. */
static void a_whole_chunk_waits(void **state) {
    (void)state;
    setup();
    begin(0);
    define(0, 1, 64, 1);
    submit(0);
    for (int i = 0; i < N_LOOP; i++) {
        step();
        assert_int_equal(info(0).n_entered, 32);
    }
    assert_int_equal(info(0).n_done, 32);
    run_all(100);
    end();
}

/* Decode rows first; beside them a prompt gets its share of the rows, and all of them when nothing decodes. */
static void prompts_keep_to_their_share(void **state) {
    (void)state;
    setup();
    R.o.prefill_share = 0.25;
    R.o.prefill_chunk = 64;
    begin(0);
    for (int i = 0; i < 3; i++) {
        define(i, (uint32_t)i, 4, 50);
        submit(i);
    }
    run_until_outputs(2, 1);
    define(3, 3, 100, 2);
    submit(3);
    int n_mixed = 0;
    for (; !R.job[3].n_out; n_mixed++) {
        step();
        assert_int_equal(R.n_pass_decode, 3);
        assert_true(R.pass_job[3] <= 8);
        assert_true(R.pass_job[0] == 1 && R.pass_job[1] == 1 && R.pass_job[2] == 1);
    }
    assert_int_equal(n_mixed, 100 * N_LOOP / 8); /* full all the time */
    run_all(1000);
    end();
}

/* A pass of a whole tile of 256 rows and no row more; what entered goes on together when another one begins to decode.
 */
static void prompt_rows_leave_decode_rows_their_tile(void **state) {
    (void)state;
    setup();
    R.o.max_rows = 500;
    R.o.prefill_share = 0.52; /* 260 rows */
    begin(0);
    for (int i = 0; i < 3; i++) {
        define(i, (uint32_t)i, 4, 50);
        submit(i);
    }
    run_until_outputs(2, 1);
    define(3, 3, 500, 2);
    submit(3);
    for (int i = 0; i < N_LOOP; i++) {
        step();
        assert_int_equal(R.n_pass_decode, 3);
        assert_int_equal(R.pass_job[3], 256 - 32);
    }
    assert_int_equal(info(3).n_entered, 256 - 32);
    run_all(1000);
    end();
}

/* The least share is one row. */
static void a_small_share_is_one_row(void **state) {
    (void)state;
    setup();
    R.o.prefill_share = 1e-9;
    begin(0);
    define(0, 0, 2, 40);
    define(1, 1, 5, 2);
    submit(0);
    run_until_outputs(0, 1);
    submit(1);
    step();
    assert_int_equal(R.pass_job[1], 1);
    run_all(1000);
    end();
}

/* More decoding jobs than rows: they come in turn, and a prompt still gets a row of each pass. */
static void more_jobs_than_rows(void **state) {
    (void)state;
    int seen[8] = {0};
    setup();
    R.o.max_rows = 4;
    begin(0);
    for (int i = 0; i < 7; i++) {
        define(i, (uint32_t)i, 1, 40);
        submit(i);
    }
    run_until_outputs(6, 1);
    define(7, 7, 6, 2);
    submit(7);
    for (int n = 0; n < 7; n++) {
        step();
        assert_int_equal(R.n_pass, 4);
        assert_int_equal(R.n_pass_decode, 3);
        assert_int_equal(R.pass_job[7], 1);
        for (int i = 0; i < 7; i++) seen[i] += R.pass_job[i];
    }
    for (int i = 0; i < 7; i++) assert_int_equal(seen[i], 3); /* 7 passes of 3 rows among 7 jobs */
    run_all(5000);
    end();
}

/* With one row in a pass, prompts wait while a decode row is there. */
static void one_row_is_the_decode_rows(void **state) {
    (void)state;
    setup();
    R.o.max_rows = 1;
    begin(0);
    define(0, 0, 1, 4);
    define(1, 1, 3, 2);
    submit(0);
    run_until_outputs(0, 1);
    submit(1);
    for (int i = 0; i < 3 * N_LOOP; i++) {
        step();
        assert_true(R.n_pass == 1 && R.n_pass_decode == 1 && R.pass_job[0] == 1);
    }
    assert_false(R.job[0].live);
    run_all(1000);
    assert_int_equal(R.job[1].n_out, 2);
    end();
}

/* no_refill: who is sampled early waits until the whole cohort has left, then all enter together. */
static void cohorts_without_refill(void **state) {
    (void)state;
    setup();
    R.o.no_refill = 1;
    begin(0);
    for (int i = 0; i < 4; i++) {
        define(i, (uint32_t)i, 3, 8);
        R.job[i].decode_loops = 1 + i;
        submit(i);
    }
    run_until_outputs(3, 1);
    for (int i = 0; i < 2 * N_LOOP; i++) {
        step();
        assert_int_equal(R.n_enter, i % N_LOOP ? 0 : 4);
        assert_int_equal(R.n_pass, 4 - i % N_LOOP);
        assert_int_equal(R.n_coda, i % N_LOOP == N_LOOP - 1 ? 4 : 0);
    }
    run_all(1000);
    end();
}

/* refill, the same jobs: a sampled row's successor is in the very next pass. */
static void refill_keeps_passes_full(void **state) {
    (void)state;
    setup();
    begin(0);
    for (int i = 0; i < 4; i++) {
        define(i, (uint32_t)i, 3, 30);
        R.job[i].decode_loops = 1 + i;
        submit(i);
    }
    run_until_outputs(3, 1);
    for (int i = 0; i < 8; i++) {
        step();
        assert_int_equal(R.n_pass, 4);
    }
    run_all(1000);
    end();
}

/* Coda batches of models with coda layers wait for company, but not when nothing else runs. */
static void coda_waits_for_company(void **state) {
    (void)state;
    setup();
    with_boundary(1);
    R.o.min_coda = 3;
    begin(0);
    for (int i = 0; i < 3; i++) { /* they decode out of step: 1, 2 and 4 loops */
        define(i, (uint32_t)i, 2, 12);
        R.job[i].decode_loops = 1 << i;
        submit(i);
    }
    run_until_outputs(0, 1);
    step();
    assert_int_equal(R.n_pass, 3);
    assert_int_equal(R.n_coda, 0); /* job 0 left: one of three */
    step();
    assert_int_equal(R.n_pass, 2);
    assert_int_equal(R.n_coda, 0);
    step();
    step();
    assert_int_equal(R.n_coda, 3);
    assert_int_equal(R.n_coda_batch, 1);
    run_all(1000);
    end();
}

/* A model without coda layers has nothing to wait for. */
static void coda_without_layers_is_never_held(void **state) {
    (void)state;
    setup();
    with_boundary(0);
    R.o.min_coda = 8;
    begin(0);
    define(0, 0, 2, 3);
    define(1, 1, 90, 2);
    submit(0);
    submit(1);
    for (int i = 0; i < N_LOOP; i++) {
        assert_int_equal(R.job[0].n_out, 0);
        step();
    }
    assert_int_equal(R.job[0].n_out, 1);
    run_all(1000);
    end();
}

/* Logits of a batch are bounded; rows without logits come along. */
static void logits_of_a_coda_batch_are_bounded(void **state) {
    (void)state;
    setup();
    R.max_logit = 3;
    begin(0);
    for (int i = 0; i < 8; i++) {
        define(i, (uint32_t)i, 4, 1);
        submit(i);
    }
    for (int i = 0; i < N_LOOP; i++) step();
    assert_int_equal(R.n_coda, 8);
    assert_int_equal(R.n_coda_batch, 3);
    run_all(10);
    end();
}

/* ---- admission --------------------------------------------------------------------------------------------------- */

static void what_never_fits_is_refused_with_numbers(void **state) {
    (void)state;
    gy_err err = {0};
    setup();
    with_boundary(1);
    R.kc.n_block[GY_KV_CORE] = 40;
    R.kc.n_block[GY_KV_BOUNDARY] = 8;
    begin(0);
    assert_int_equal(gy_sched_fits(R.s, 100, 29, &err), GY_OK); /* 128 tokens: 8 rows, 32 blocks of 40, 8 of 8 */
    assert_int_equal(gy_sched_fits(R.s, 100, 30, &err), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "needs 9 KV blocks of the boundary layers at full depth, the pool has 8"));
    assert_int_equal(gy_sched_fits(R.s, 180, 20, &err), GY_E_LIMIT);
    assert_non_null(
        strstr(err.msg, "prompt of 180 tokens + max_tokens 20: needs 52 KV blocks at full depth, the pool has 40"));
    assert_int_equal(gy_sched_fits(R.s, 500, 14, &err), GY_E_LIMIT);
    assert_non_null(strstr(err.msg, "513 tokens of KV, expected at most 512"));
    assert_int_equal(gy_sched_fits(R.s, INT32_MAX, INT32_MAX, &err), GY_E_LIMIT);
    end();
}

static void a_full_queue_says_again(void **state) {
    (void)state;
    setup();
    R.o.max_queue = 2;
    R.o.max_seqs = 1;
    begin(0);
    for (int i = 0; i < 5; i++) define(i, (uint32_t)i, 4, 2);
    submit(0);
    step();
    submit(1);
    submit(2);
    gy_sched_job in = spec(3);
    assert_int_equal(try_submit(3, &in), GY_AGAIN);
    assert_int_equal(stats().n_waiting, 2);
    assert_int_equal(gy_sched_preempt(R.s, R.job[0].id, GY_PREEMPT_RECOMPUTE), GY_OK); /* three wait: still no room */
    check_books("preempt");
    drop(1);
    assert_int_equal(try_submit(3, &in), GY_AGAIN);
    drop(0);
    assert_int_equal(try_submit(3, &in), GY_OK);
    run_all(1000);
    end();
}

static void a_job_index_is_reused_at_once(void **state) {
    (void)state;
    setup();
    begin(0);
    define(0, 0, 20, 4);
    submit(0);
    int32_t id = R.job[0].id;
    step();
    drop(0);
    assert_true(gy_sched_idle(R.s));
    define(1, 1, 9, 4);
    submit(1);
    assert_int_equal(R.job[1].id, id);
    assert_int_equal(info(1).n_entered, 0);
    run_all(1000);
    end();
}

/* 16-token prompts need 4 blocks of a pool of 20; one of 64 needs 16 and is passed by small ones, but only so often. */
static void bypass_is_bounded(void **state) {
    (void)state;
    setup();
    R.kc.n_block[GY_KV_CORE] = 20;
    R.o.watermark = 0;
    R.o.max_bypass = 3;
    R.o.max_seqs = 16;
    begin(0);
    define(0, 0, 16, 1);
    R.job[0].n_prompt = 16;
    submit(0);
    define(1, 1, 80, 1);
    submit(1);
    for (int i = 2; i < 10; i++) {
        define(i, (uint32_t)i, 16, 1);
        submit(i);
    }
    step();
    assert_int_equal(info(1).state, GY_JOB_WAITING);
    assert_int_equal(info(1).n_bypass, 3);
    assert_int_equal(stats().n_running, 4);
    while (stats().n_running) step(); /* the small ones go, and nobody passes any more */
    assert_int_equal(info(1).n_bypass, 3);
    step();
    assert_int_equal(info(1).state, GY_JOB_PREFILL);
    assert_int_equal(stats().n_running, 1);
    run_all(1000);
    end();
}

static void scan_is_bounded(void **state) {
    (void)state;
    setup();
    R.kc.n_block[GY_KV_CORE] = 20;
    R.o.watermark = 0;
    R.o.scan_limit = 3;
    begin(0);
    define(0, 0, 8, 30);
    submit(0);
    for (int i = 1; i < 4; i++) {
        define(i, (uint32_t)i, 80, 1);
        submit(i);
    }
    define(4, 4, 8, 1);
    submit(4);
    step();
    assert_int_equal(stats().n_running, 1); /* job 4 would fit, but is the fourth that waits */
    drop(2);
    step();
    assert_int_equal(info(4).state, GY_JOB_PREFILL);
    run_all(1000);
    end();
}

/* What is admitted makes room in the next scan for those that stand further back. */
static void scan_goes_on(void **state) {
    (void)state;
    setup();
    R.o.scan_limit = 2;
    begin(0);
    for (int i = 0; i < 6; i++) {
        define(i, (uint32_t)i, 8, 30);
        submit(i);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(stats().n_running, 2 * i);
        step();
    }
    assert_int_equal(stats().n_running, 6);
    run_all(1000);
    end();
}

/* 4 blocks of 40 stay free while anything runs; alone a job may take them. */
static void watermark_holds_only_beside_others(void **state) {
    (void)state;
    setup();
    R.kc.n_block[GY_KV_CORE] = 40;
    R.o.watermark = 0.1;
    begin(0);
    define(0, 0, 80, 1); /* 20 blocks */
    define(1, 1, 80, 1);
    submit(0);
    submit(1);
    step();
    assert_int_equal(info(0).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).state, GY_JOB_WAITING);
    drop(0);
    define(2, 2, 160, 1); /* 40 blocks: all of them */
    drop(1);
    submit(2);
    step();
    assert_int_equal(info(2).state, GY_JOB_PREFILL);
    run_all(1000);
    end();
}

/* Part of a block is a whole one. */
static void watermark_rounds_up(void **state) {
    (void)state;
    setup();
    R.kc.n_block[GY_KV_CORE] = 40;
    R.o.watermark = 0.01;
    begin(0);
    define(0, 0, 80, 1); /* 20 blocks */
    define(1, 1, 80, 1);
    submit(0);
    submit(1);
    step();
    assert_int_equal(info(0).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).state, GY_JOB_WAITING);
    run_all(1000);
    end();
}

/* A prompt that left early holds less than was set aside for it: with its first output that is given back. */
static void a_promise_ends_with_the_prompt(void **state) {
    (void)state;
    setup();
    R.kc.n_block[GY_KV_CORE] = 7;
    R.o.watermark = 0;
    begin(0);
    define(0, 0, 10, 7); /* 4 blocks at full depth, takes 1 */
    R.job[0].prompt_loops = R.job[0].decode_loops = 1;
    define(1, 1, 16, 1); /* 4 */
    submit(0);
    submit(1);
    step();
    assert_int_equal(info(0).state, GY_JOB_DECODE);
    assert_int_equal(info(1).state, GY_JOB_WAITING);
    step();
    assert_int_equal(info(0).state, GY_JOB_DECODE);
    assert_int_equal(info(1).state, GY_JOB_PREFILL);
    run_all(1000);
    assert_int_equal(stats().n_park + stats().n_drop, 0);
    end();
}

/* Prompts that have been admitted and have not got their blocks yet count. */
static void promised_blocks_are_set_aside(void **state) {
    (void)state;
    setup();
    R.kc.n_block[GY_KV_CORE] = 40;
    R.o.watermark = 0;
    R.o.max_rows = 4;
    begin(0);
    define(0, 0, 100, 1); /* 28 blocks, which it takes slowly */
    define(1, 1, 49, 1);  /* 16 */
    submit(0);
    submit(1);
    step();
    assert_int_equal(info(0).state, GY_JOB_PREFILL);
    assert_true(blocks_used() < 8);
    assert_int_equal(info(1).state, GY_JOB_WAITING);
    run_all(1000);
    assert_int_equal(stats().n_park + stats().n_drop, 0);
    end();
}

/* Full-life reservation: admitted only with room for all outputs, then nobody is ever preempted. */
static void reservation_is_never_short(void **state) {
    (void)state;
    setup();
    with_boundary(1);
    R.kc.n_block[GY_KV_CORE] = 60;
    R.o.reserve_full = 1;
    R.o.watermark = 0;
    begin(0);
    for (int i = 0; i < 6; i++) {
        define(i, (uint32_t)i, 10, 70); /* 79 tokens: 20 blocks */
        submit(i);
    }
    step();
    assert_int_equal(stats().n_running, 3);
    run_all(5000);
    assert_int_equal(stats().n_park + stats().n_drop, 0);
    end();
}

/* ---- shortage ---------------------------------------------------------------------------------------------------- */

static void open_short(gy_preempt how, int32_t n_park) {
    setup();
    R.kc.n_block[GY_KV_CORE] = 28;
    R.kc.n_park[GY_KV_CORE] = n_park;
    R.o.watermark = 0;
    R.o.preempt = how;
    begin(0);
}

/* Four jobs that grow to 20 blocks each in a pool of 28. */
static void run_short(void) {
    for (int i = 0; i < 4; i++) {
        define(i, (uint32_t)i, 12, 60);
        R.job[i].decode_loops = i % 2 ? 0 : N_LOOP;
        submit(i);
    }
    while (R.job[0].live) {
        step();
        if (R.job[0].live) assert_int_equal(info(0).n_preempt, 0); /* the best one never gives way */
    }
    run_all(20000);
    for (int i = 0; i < 4; i++) assert_int_equal(R.job[i].n_out, 60);
}

static void shortage_parks_the_worst(void **state) {
    (void)state;
    open_short(GY_PREEMPT_AUTO, 100);
    run_short();
    assert_true(stats().n_park > 0);
    assert_int_equal(stats().n_drop, 0);
    assert_int_equal(stats().n_restore, stats().n_park);
    assert_int_equal(gy_kv_n_park_free(R.kv, GY_KV_CORE), 100);
    end();
}

static void shortage_drops_when_parking_is_full_or_forbidden(void **state) {
    (void)state;
    open_short(GY_PREEMPT_RECOMPUTE, 100);
    run_short();
    assert_int_equal(stats().n_park, 0);
    assert_true(stats().n_drop > 0 && stats().n_recomputed_tok > 0);
    end();
    open_short(GY_PREEMPT_PARK, 0);
    run_short();
    assert_int_equal(stats().n_park, 0);
    assert_true(stats().n_drop > 0);
    end();
    open_short(GY_PREEMPT_AUTO, 6);
    run_short();
    assert_true(stats().n_drop > 0);
    end();
}

/* Outputs may run deeper than prompts. A job that was dropped for want of a deep block waits until there is one: with
 * the blocks of its known tokens alone it would come and go until the job that stays ends.
 */
static void what_was_dropped_comes_back_once(void **state) {
    (void)state;
    setup();
    R.kc.n_loop = N_LOOP + 2;
    R.kc.n_block[GY_KV_CORE] = 12;
    R.o.watermark = 0;
    R.o.preempt = GY_PREEMPT_RECOMPUTE;
    begin(0);
    define(0, 0, 16, 16);
    submit(0);
    run_until_outputs(0, 2); /* 8 blocks */
    define(1, 1, 10, 6);     /* 4 for its prompt, 2 more for its outputs */
    R.job[1].decode_loops = N_LOOP + 2;
    submit(1);
    while (R.job[0].live) {
        step();
        assert_true(info(1).n_preempt <= 1);
    }
    assert_int_equal(info(1).n_preempt, 1);
    run_all(1000);
    assert_int_equal(R.job[1].n_out, 6);
    end();
}

/* The boundary pool can be short too: while tokens enter. */
static void shortage_while_entering(void **state) {
    (void)state;
    setup();
    with_boundary(1);
    R.kc.n_block[GY_KV_BOUNDARY] = 6;
    R.kc.n_park[GY_KV_CORE] = R.kc.n_park[GY_KV_BOUNDARY] = 64;
    begin(0);
    for (int i = 0; i < 4; i++) {
        define(i, (uint32_t)i, 12, 60); /* 5 rows each */
        submit(i);
    }
    run_all(20000);
    assert_true(stats().n_park > 0);
    end();
}

/* Parked jobs keep sequences, but never those that a job that may run needs. */
static void parked_jobs_give_up_their_sequences(void **state) {
    (void)state;
    setup();
    R.kc.max_seqs = 2;
    R.kc.n_park[GY_KV_CORE] = 64;
    R.o.max_seqs = 2;
    R.o.policy = GY_SCHED_PRIORITY;
    begin(0);
    for (int i = 0; i < 4; i++) define(i, (uint32_t)i, 20, 6);
    submit(0);
    submit(1);
    run_until_outputs(1, 2);
    gy_sched_job in[2] = {spec(2), spec(3)};
    in[0].priority = in[1].priority = -1;
    try_submit(2, &in[0]);
    step(); /* 1 parks for 2, and loses its sequence to it */
    assert_int_equal(info(2).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).state, GY_JOB_WAITING);
    assert_int_equal(stats().n_park, 1);
    assert_int_equal(stats().n_drop, 1);
    try_submit(3, &in[1]);
    step();
    assert_int_equal(info(0).state, GY_JOB_WAITING);
    run_all(1000);
    end();
}

/* ---- preemption by name ------------------------------------------------------------------------------------------ */

static void open_preempt(int cache) {
    setup();
    with_boundary(1);
    R.kc.n_park[GY_KV_CORE] = R.kc.n_park[GY_KV_BOUNDARY] = 128;
    begin(cache);
    define(0, 5, 40, 8);
    R.job[0].decode_loops = 0;
}

static void preempt(int name, gy_preempt how, gy_status due) {
    assert_int_equal(gy_sched_preempt(R.s, R.job[name].id, how), due);
    check_books("preempt");
}

static void parking_keeps_what_is_finished(void **state) {
    (void)state;
    open_preempt(0);
    submit(0);
    preempt(0, GY_PREEMPT_PARK, GY_AGAIN); /* it does not run */
    step();
    preempt(0, GY_PREEMPT_PARK, GY_OK); /* nothing finished: parked empty because the test insists */
    assert_int_equal(info(0).state, GY_JOB_PARKED);
    assert_int_equal(info(0).n_entered, 0);
    step();
    assert_int_equal(info(0).state, GY_JOB_PREFILL);
    while (info(0).n_done == 0) step();
    int32_t done = info(0).n_done;
    assert_true(info(0).n_entered > done && !R.job[0].n_out);
    preempt(0, GY_PREEMPT_AUTO, GY_OK);
    assert_int_equal(info(0).n_done, done);
    assert_int_equal(info(0).slot, -1);
    assert_true(info(0).kv_seq >= 0);
    assert_int_equal(blocks_used(), 0);
    run_until_outputs(0, 3);
    step();
    preempt(0, GY_PREEMPT_PARK, GY_OK);
    assert_int_equal(info(0).n_done, 42); /* 43 known, the last one flew */
    preempt(0, GY_PREEMPT_PARK, GY_AGAIN);
    step();
    assert_int_equal(info(0).state, GY_JOB_DECODE);
    assert_int_equal(info(0).n_preempt, 3);
    assert_true(R.n_copy > 0);
    run_all(1000);
    end();
}

static void dropping_computes_again(void **state) {
    (void)state;
    open_preempt(0);
    submit(0);
    run_until_outputs(0, 4);
    step();
    preempt(0, GY_PREEMPT_RECOMPUTE, GY_OK);
    assert_int_equal(info(0).state, GY_JOB_WAITING);
    assert_int_equal(info(0).kv_seq, -1);
    assert_int_equal(info(0).n_known, 44);
    assert_int_equal(blocks_used(), 0);
    step();
    assert_int_equal(info(0).state, GY_JOB_PREFILL);
    assert_int_equal(info(0).n_entered, 43); /* 40 + 3 outputs as prompt rows; the fourth is the decode row */
    while (info(0).n_entered == 43) step();
    assert_int_equal(R.n_pass_decode, 1);
    assert_int_equal(info(0).state, GY_JOB_PREFILL); /* until it is sampled */
    run_all(1000);
    assert_int_equal(stats().n_recomputed_tok, 44);
    end();
}

/* What is said of a job's admission is said of the first one, also when it finds its own rows in the cache later. */
static void the_first_admission_counts(void **state) {
    (void)state;
    open_preempt(1);
    gy_sched_job in = spec(0);
    in.use_cache = 1;
    try_submit(0, &in);
    run_until_outputs(0, 2);
    int64_t admit_ns = info(0).admit_ns;
    preempt(0, GY_PREEMPT_RECOMPUTE, GY_OK);
    step();
    assert_int_equal(info(0).state, GY_JOB_PREFILL);
    assert_int_equal(prefix().n_hit_tok, 32);
    assert_int_equal(info(0).n_cached, 0);
    assert_int_equal(info(0).admit_ns, admit_ns);
    run_all(1000);
    end();
}

/* Parking is refused in one piece when the park pool is too small: nothing changed. */
static void parking_needs_room(void **state) {
    (void)state;
    setup();
    R.kc.n_park[GY_KV_CORE] = 11;
    begin(0);
    define(0, 5, 40, 8);
    submit(0);
    run_until_outputs(0, 1);
    step();
    preempt(0, GY_PREEMPT_PARK, GY_AGAIN); /* 12 blocks */
    assert_int_equal(info(0).state, GY_JOB_DECODE);
    assert_int_equal(info(0).n_entered, 41);
    preempt(0, GY_PREEMPT_AUTO, GY_OK);
    assert_int_equal(info(0).state, GY_JOB_WAITING);
    run_all(1000);
    end();
}

/* Prompt logits are reported once each and in order, whatever happens in between. */
static void prompt_logits_come_once(void **state) {
    (void)state;
    for (int coda = 0; coda < 3; coda++)
        for (int loops = 0; loops <= N_LOOP; loops += N_LOOP)
            for (uint32_t at = 4; at < 14 * 4; at++) { /* steps, and four ways in which depths follow each other */
                setup();
                if (coda) with_boundary(coda - 1);
                R.o.max_rows = 8;
                R.max_logit = 3;
                begin(1);
                define(0, at % 4, 20, 4);
                R.job[0].prompt_loops = loops;
                gy_sched_job in = spec(0);
                in.all_logits = in.use_cache = 1;
                try_submit(0, &in);
                for (uint32_t i = 0; i < at / 4; i++) step();
                if (R.job[0].live) preempt(0, GY_PREEMPT_RECOMPUTE, GY_OK);
                run_all(1000);
                assert_int_equal(R.job[0].n_logits, 20 + 3); /* each prompt row, and each further output */
                assert_int_equal(prefix().n_query, 0);
                assert_int_equal(prefix().n_row, loops ? 1 : 0); /* published, if at full depth */
                end();
            }
}

/* ---- priorities -------------------------------------------------------------------------------------------------- */

static void open_priority(int32_t n_block, int32_t max_seqs) {
    setup();
    R.kc.n_block[GY_KV_CORE] = n_block;
    R.kc.n_park[GY_KV_CORE] = 64;
    R.o.policy = GY_SCHED_PRIORITY;
    R.o.max_seqs = max_seqs;
    R.o.watermark = 0;
    begin(0);
}

static void submit_at(int name, int32_t priority) {
    gy_sched_job in = spec(name);
    in.priority = priority;
    assert_int_equal(try_submit(name, &in), GY_OK);
}

static void better_jobs_take_slots(void **state) {
    (void)state;
    open_priority(512, 2);
    for (int i = 0; i < 5; i++) define(i, (uint32_t)i, 20, 6);
    submit_at(0, 1);
    submit_at(1, 2);
    run_until_outputs(1, 1);
    submit_at(2, 2); /* not strictly better than anyone */
    step();
    assert_int_equal(info(2).state, GY_JOB_WAITING);
    submit_at(3, 0);
    step();
    assert_int_equal(info(3).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).state, GY_JOB_PARKED);
    assert_int_equal(info(0).state, GY_JOB_DECODE);
    run_all(1000);
    end();
}

static void better_jobs_take_blocks(void **state) {
    (void)state;
    open_priority(24, 8);
    for (int i = 0; i < 4; i++) define(i, (uint32_t)i, 20, 10); /* 8 blocks each */
    define(4, 4, 60, 3);                                        /* 16 */
    submit_at(0, 0);
    submit_at(1, 1);
    submit_at(2, 2);
    run_until_outputs(2, 1);
    submit_at(4, 0);
    step(); /* both of the worse ones must go */
    assert_int_equal(info(4).state, GY_JOB_PREFILL);
    assert_int_equal(info(0).state, GY_JOB_DECODE);
    assert_int_equal(info(1).state, GY_JOB_PARKED);
    assert_int_equal(info(2).state, GY_JOB_PARKED);
    run_all(1000);
    end();
}

/* If it would not fit even then, nobody is disturbed. */
static void nobody_is_preempted_in_vain(void **state) {
    (void)state;
    open_priority(24, 8);
    define(0, 0, 60, 3); /* 16 */
    define(1, 1, 20, 9); /* 8 */
    define(2, 2, 60, 3); /* 16: more than job 1 holds */
    submit_at(0, 0);
    submit_at(1, 1);
    run_until_outputs(1, 1);
    submit_at(2, 0);
    step();
    assert_int_equal(info(2).state, GY_JOB_WAITING);
    assert_int_equal(info(1).n_preempt, 0);
    run_all(1000);
    end();
}

/* What the watermark keeps free beside those that stay is not room either. */
static void the_watermark_is_no_room_for_the_better(void **state) {
    (void)state;
    open_priority(24, 8);
    end();
    R.o.watermark = 0.25; /* 6 */
    begin(0);
    define(0, 0, 20, 9); /* 8 */
    define(1, 1, 20, 9); /* 8 */
    define(2, 2, 48, 1); /* 12: 8 are free and job 1 holds 8, 10 of them may be had */
    submit_at(0, 0);
    submit_at(1, 1);
    run_until_outputs(1, 1);
    submit_at(2, 0);
    step();
    assert_int_equal(info(2).state, GY_JOB_WAITING);
    assert_int_equal(info(1).n_preempt, 0);
    run_all(1000);
    end();
}

/* Under fcfs the number means nothing. */
static void fcfs_ignores_priorities(void **state) {
    (void)state;
    setup();
    R.o.max_seqs = 1;
    begin(0);
    define(0, 0, 4, 3);
    define(1, 1, 4, 3);
    define(2, 2, 4, 3);
    submit_at(0, 9);
    step();
    submit_at(1, 5);
    submit_at(2, -5);
    step();
    assert_int_equal(info(0).n_preempt, 0);
    while (R.job[0].live) step();
    step();
    assert_int_equal(info(1).state, GY_JOB_PREFILL);
    assert_int_equal(info(2).state, GY_JOB_WAITING);
    run_all(1000);
    end();
}

/* ---- sharing ----------------------------------------------------------------------------------------------------- */

static void submit_cached(int name) {
    gy_sched_job in = spec(name);
    in.use_cache = 1;
    assert_int_equal(try_submit(name, &in), GY_OK);
}

static void prompts_are_found_again(void **state) {
    (void)state;
    for (int boundary = 0; boundary < 2; boundary++) {
        setup();
        if (boundary) with_boundary(1);
        begin(1);
        define(0, 9, 48, 1);
        submit_cached(0);
        run_all(100);
        assert_int_equal(prefix().n_row, 3);
        define(1, 9, 48, 2); /* the same prompt: its last token must be computed, so two of three rows */
        submit_cached(1);
        step();
        assert_int_equal(info(1).n_cached, 32);
        assert_int_equal(info(1).n_entered, 48);
        run_all(100);
        define(2, 9, 49, 2);
        submit_cached(2);
        step();
        assert_int_equal(info(2).n_cached, 48);
        run_all(100);
        define(3, 9, 49, 2);
        submit(3); /* without the cache */
        step();
        assert_int_equal(info(3).n_cached, 0);
        run_all(100);
        end();
    }
}

/* Published while it runs, so that one that comes a little later already finds the first rows. */
static void rows_are_published_as_they_finish(void **state) {
    (void)state;
    setup();
    begin(1);
    define(0, 9, 96, 4);
    submit_cached(0);
    for (int i = 0; i < N_LOOP; i++) step();
    assert_int_equal(prefix().n_row, 2);
    assert_int_equal(info(0).state, GY_JOB_PREFILL);
    define(1, 9, 96, 4);
    submit_cached(1);
    step();
    assert_int_equal(info(1).n_cached, 32);
    run_all(1000);
    end();
}

/* Who waits for blocks may share rows as soon as they are published, long before that prompt is done. */
static void a_published_row_makes_room(void **state) {
    (void)state;
    setup();
    R.kc.n_block[GY_KV_CORE] = 20;
    R.o.watermark = 0;
    R.o.max_rows = 8;
    begin(1);
    define(0, 7, 64, 1); /* 16 blocks, slowly */
    define(1, 7, 40, 1); /* 12, of which 8 may be shared */
    submit_cached(0);
    submit_cached(1);
    step();
    assert_int_equal(info(1).state, GY_JOB_WAITING);
    while (prefix().n_row < 2) step();
    step();
    assert_int_equal(info(0).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).n_cached, 32);
    run_all(1000);
    end();
}

/* Outputs at full depth equal prompt tokens and are published; from the first one that was not, nothing is. */
static void outputs_are_published_as_far_as_they_are_full(void **state) {
    (void)state;
    for (int early = 0; early < 2; early++) {
        setup();
        begin(1);
        define(0, 9, 20, 30);
        if (early) R.job[0].decode_loops = N_LOOP - 1;
        submit_cached(0);
        run_all(1000);
        assert_int_equal(prefix().n_row, early ? 1 : 3); /* 49 tokens were computed */
        define(1, 9, 50, 2);                             /* the next turn of the talk */
        submit_cached(1);
        step();
        assert_int_equal(info(1).n_cached, early ? 16 : 48);
        run_all(100);
        end();
    }
}

/* A dropped job's outputs left early; a stranger has published the same text at full depth. Those rows are not its own.
 */
static void a_dropped_job_takes_only_rows_that_ran_as_its_own(void **state) {
    (void)state;
    setup();
    begin(1);
    define(0, 9, 20, 60);
    R.job[0].decode_loops = 2;
    submit_cached(0);
    run_until_outputs(0, 39);
    define(1, 9, 59, 1);
    submit_cached(1);
    while (R.job[1].live) step();
    assert_int_equal(prefix().n_row, 3);
    preempt(0, GY_PREEMPT_RECOMPUTE, GY_OK);
    step();
    assert_int_equal(info(0).n_done, 16); /* the first output that left early stands at 20 */
    run_all(1000);
    end();
}

static void only_full_prompts_share(void **state) {
    (void)state;
    setup();
    begin(1);
    define(0, 9, 40, 2);
    R.job[0].prompt_loops = 0;
    submit_cached(0);
    run_all(1000);
    assert_int_equal(prefix().n_publish, 0);
    assert_int_equal(prefix().n_query, 0);
    end();
}

static void submit_choice(int name, int leader) {
    gy_sched_job in = spec(name);
    in.leader = R.job[leader].id;
    assert_int_equal(try_submit(name, &in), GY_OK);
}

/* Choices of one request: the prompt is computed once, its blocks are shared. */
static void choices_share_their_leaders_rows(void **state) {
    (void)state;
    setup();
    with_boundary(1);
    begin(0);
    for (int i = 0; i < 3; i++) {
        define(i, 9, 40, 20);
        R.job[i].decode_loops = 0;
    }
    submit(0);
    submit_choice(1, 0);
    submit_choice(2, 0);
    while (info(0).n_done < 32) {
        step();
        assert_int_equal(info(1).state, GY_JOB_WAITING);
    }
    step();
    assert_int_equal(info(1).n_cached, 32);
    assert_int_equal(info(2).n_cached, 32);
    run_until_outputs(2, 1);
    assert_int_equal(blocks_used(), (2 + 3) * N_LOOP); /* two rows shared, one each */
    run_all(1000);
    assert_int_equal(R.job[2].n_out, 20);
    end();
}

/* The leader is gone and its index is another job's, with a prompt as long: whoever followed it follows nobody. */
static void a_leaders_index_is_not_the_leader(void **state) {
    (void)state;
    open_priority(512, 8);
    for (int i = 0; i < 3; i++) define(i, i < 2 ? 9 : 10, 40, 6);
    submit_at(0, 1);
    gy_sched_job in = spec(1);
    in.priority = 1;
    in.leader = R.job[0].id;
    assert_int_equal(try_submit(1, &in), GY_OK);
    step();
    assert_int_equal(info(1).state, GY_JOB_WAITING);
    int32_t id = R.job[0].id;
    drop(0);
    submit_at(2, 0);
    assert_int_equal(R.job[2].id, id);
    step();
    assert_int_equal(info(2).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).n_cached, 0);
    run_all(1000);
    assert_int_equal(R.job[1].n_out, 6);
    end();
}

/* The cache holds the prompt's two rows alone (8 blocks), the leader computed its own: taking over the leader's costs
 * nothing, attaching the cache's would cost 8 of the 11 blocks that are left.
 */
static void a_leaders_rows_come_before_the_caches_own(void **state) {
    (void)state;
    setup();
    R.kc.n_block[GY_KV_CORE] = 23;
    R.o.watermark = 0;
    begin(1);
    for (int i = 0; i < 3; i++) define(i, 9, 40, 8);
    submit_cached(0);
    run_all(1000);
    submit(1);
    gy_sched_job in = spec(2);
    in.use_cache = 1;
    in.leader = R.job[1].id;
    assert_int_equal(try_submit(2, &in), GY_OK);
    run_until_outputs(1, 1);
    step();
    assert_int_equal(gy_kv_n_cached(R.kv, GY_KV_CORE), 8);
    assert_int_equal(info(2).n_cached, 32);
    assert_int_equal(info(2).state, GY_JOB_PREFILL);
    assert_int_equal(prefix().n_hit, 0);
    run_all(1000);
    end();
}

/* A leader that is gone holds nobody up, also when its index names another job by now; nor does one too short. */
static void choices_do_not_wait_for_nothing(void **state) {
    (void)state;
    setup();
    R.o.max_seqs = 3;
    begin(0);
    define(0, 9, 40, 4);
    define(1, 9, 40, 4);
    submit(0);
    submit_choice(1, 0);
    step();
    drop(0);
    define(2, 8, 40, 4);
    submit(2);
    assert_int_equal(R.job[2].id, R.job[0].id); /* the same index, another job */
    step();
    assert_int_equal(info(1).state, GY_JOB_PREFILL);
    assert_int_equal(info(1).n_cached, 0);
    run_all(1000);
    define(3, 9, 16, 4); /* no whole row before the last token */
    define(4, 9, 16, 4);
    submit(3);
    submit_choice(4, 3);
    step();
    assert_int_equal(info(4).state, GY_JOB_PREFILL);
    run_all(1000);
    define(5, 9, 40, 4); /* a leader whose prompt leaves early has nothing to share */
    define(6, 9, 40, 4);
    R.job[5].prompt_loops = 0;
    submit(5);
    submit_choice(6, 5);
    step();
    assert_int_equal(info(6).state, GY_JOB_PREFILL);
    run_all(1000);
    end();
}

/* A better follower does not wait for a leader that stands behind it. */
static void a_follower_does_not_wait_for_a_worse_leader(void **state) {
    (void)state;
    open_priority(512, 1);
    define(0, 9, 40, 4);
    define(1, 9, 40, 4);
    submit_at(0, 5);
    gy_sched_job in = spec(1);
    in.leader = R.job[0].id;
    assert_int_equal(try_submit(1, &in), GY_OK);
    step();
    assert_int_equal(info(1).state, GY_JOB_PREFILL);
    run_all(1000);
    end();
}

/* ---- remove ------------------------------------------------------------------------------------------------------ */

/* In every state and stage: the books balance, the others go on, and the blocks are back. */
static void remove_in_every_state(void **state) {
    (void)state;
    for (int at = 0; at < 40; at++)
        for (int how = 0; how < 3; how++) {
            setup();
            with_boundary(at % 2);
            R.kc.n_park[GY_KV_CORE] = R.kc.n_park[GY_KV_BOUNDARY] = 128;
            R.o.min_coda = 1 + at % 3;
            begin(1);
            for (int i = 0; i < 3; i++) {
                define(i, 4, 40, 6);
                R.job[i].decode_loops = 0;
                submit_cached(i);
            }
            for (int i = 0; i < at; i++) step();
            for (int i = 0; i < 2; i++) {
                if (!R.job[i].live) continue;
                if (how && sched_runs(&R.s->job[R.job[i].id]))
                    preempt(i, how == 1 ? GY_PREEMPT_PARK : GY_PREEMPT_RECOMPUTE, GY_OK);
                drop(i);
            }
            run_all(1000);
            assert_int_equal(R.job[2].n_out, 6);
            gy_prefix_clear(R.kv);
            assert_int_equal(gy_kv_n_free(R.kv, GY_KV_CORE), R.kc.n_block[GY_KV_CORE]);
            assert_int_equal(gy_kv_n_park_free(R.kv, GY_KV_CORE), 128);
            end();
        }
}

/* ---- judged rows ------------------------------------------------------------------------------------------------- */

/* A rule that looks at logits: the row's coda runs before it leaves, and need not run again. */
static void judged_rows_are_sampled_at_once(void **state) {
    (void)state;
    setup();
    with_boundary(1);
    begin(0);
    define(0, 1, 20, 3);
    R.job[0].decode_loops = 1;
    submit(0);
    run_until_outputs(0, 1);
    run_enter();
    int32_t flight[512], n = run_pass(flight);
    assert_int_equal(n, 1);
    const gy_sched_rows *r = gy_sched_judge(R.s, flight, 1);
    assert_int_equal(r->n_row, 1);
    assert_int_equal(r->n_logit, 1);
    assert_int_equal(r->logit[0], 0);
    coda_row(r, 0);
    assert_int_equal(gy_sched_flight_loops(R.s, flight[0]), 0);
    gy_sched_leave(R.s, flight[0], 1);
    check_books("leave");
    assert_int_equal(gy_sched_flight_loops(R.s, flight[0]), 1);
    sample(flight[0]);
    check_books("sampled");
    assert_int_equal(gy_sched_coda(R.s, 8)->n_row, 0);
    run_all(100);
    end();
}

/* ---- what create refuses ----------------------------------------------------------------------------------------- */

static void expect_refusal(const char *needle) {
    void *const arena[GY_KV_GROUPS] = {arena_mem, arena_mem};
    gy_err err = {0};
    gy_sched *s = NULL;
    assert_int_equal(gy_kv_create(&R.kc, arena, &err, &R.kv), GY_OK);
    assert_int_equal(gy_sched_create(&R.o, R.kv, &err, &s), GY_E_ARG);
    if (!strstr(err.msg, needle)) fail_msg("found \"%s\"", err.msg);
    assert_null(s);
    gy_kv_destroy(R.kv);
    setup();
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    setup();
    R.o.max_rows = 0;
    expect_refusal("max_rows: found 0, expected 1 to ");
    R.o.max_seqs = 17;
    expect_refusal("max_seqs: found 17, but the KV cache offers 16 sequences");
    R.o.max_queue = -1;
    expect_refusal("max_queue: found -1");
    R.o.prefill_chunk = 0;
    expect_refusal("prefill_chunk: found 0");
    R.o.prefill_share = 0;
    expect_refusal("prefill_share: found 0, expected above 0 and at most 1");
    R.o.prefill_share = __builtin_nan("");
    expect_refusal("prefill_share: found nan");
    R.o.watermark = 1;
    expect_refusal("watermark: found 1, expected 0 or more and below 1");
    R.o.min_coda = 0;
    expect_refusal("min_coda: found 0");
    R.o.scan_limit = 0;
    expect_refusal("scan_limit: found 0");
    R.o.max_bypass = 0;
    expect_refusal("max_bypass: found 0");
    R.o.n_loop = N_LOOP + 1;
    expect_refusal("n_loop: found 5, expected 1 to 4");
    R.o.has_boundary = 1;
    expect_refusal("has_boundary: set, but the KV cache has no boundary layers");
    with_boundary(1);
    R.o.has_boundary = 0;
    expect_refusal("has_coda: coda layers are boundary layers");
    R.kc.n_park[GY_KV_CORE] = 7;
    R.o.restore_copy = NULL;
    expect_refusal("park_copy, restore_copy: needed, the KV cache has 7 park blocks");
    R.o.policy = (gy_sched_policy)7;
    expect_refusal("policy: found 7");
}

static void create_survives_failing_allocations(void **state) {
    (void)state;
    void *const arena[GY_KV_GROUPS] = {arena_mem, arena_mem};
    gy_err err = {0};
    setup();
    assert_int_equal(gy_kv_create(&R.kc, arena, &err, &R.kv), GY_OK);
    gy_status st = GY_E_NOMEM;
    int n = 0;
    for (; st != GY_OK; n++) {
        gy_sched *s = NULL;
        gy_mem_fail_after(n + 1);
        st = gy_sched_create(&R.o, R.kv, &err, &s);
        gy_mem_fail_after(0);
        if (st == GY_OK) {
            gy_sched_destroy(s);
        } else {
            assert_int_equal(st, GY_E_NOMEM);
            assert_non_null(strstr(err.msg, "no memory for the scheduler"));
            assert_null(s);
        }
    }
    assert_int_equal(n, 3);
    gy_sched_destroy(NULL);
    gy_kv_destroy(R.kv);
}

/* ---- the checker, and wrong orders of calls ---------------------------------------------------------------------- */

static void expect_invalid(const char *needle) {
    char why[256] = "";
    assert_int_equal(gy_sched_is_valid(R.s, why, sizeof why), 0);
    if (!strstr(why, needle)) fail_msg("found \"%s\"", why);
}

static void the_checker_sees_planted_faults(void **state) {
    (void)state;
    setup();
    R.o.max_seqs = 1;
    begin(0);
    for (int i = 0; i < 3; i++) {
        define(i, (uint32_t)i, 40, 3);
        submit(i);
    }
    step();
    sched_job *j = &R.s->job[R.job[0].id], *waits = &R.s->job[R.job[1].id];
    j->n_done++;
    expect_invalid("flight at 0 after 0");
    j->n_done--;
    R.s->n_flying[0]--;
    expect_invalid("flights, counted");
    R.s->n_flying[0]++;
    waits->place = PLACE_RING;
    expect_invalid("queue: job");
    waits->place = PLACE_QUEUE;
    waits->arrival += 5;
    expect_invalid("");
    waits->arrival -= 5;
    waits->kv_seq = 3;
    expect_invalid("sequence 3");
    waits->kv_seq = -1;
    waits->n_bypass = 99;
    expect_invalid("bypassed 99 times");
    waits->n_bypass = 0;
    R.s->queue[0].n++;
    expect_invalid("prompt queue: ends at");
    R.s->queue[0].n--;
    R.s->flight[R.s->queue[0].head].samples ^= 1;
    expect_invalid("samples");
    R.s->flight[R.s->queue[0].head].samples ^= 1;
    j->slot = 4;
    expect_invalid("slot 4");
    j->slot = 0;
    check_books("mending");
    run_all(1000);
    end();
}

static void remove_in_a_pass(void *arg) {
    (void)arg;
    gy_sched_pass(R.s);
    gy_sched_remove(R.s, R.job[0].id);
}

static void stay_of_what_is_not_in_a_pass(void *arg) {
    (void)arg;
    gy_sched_stay(R.s, R.s->queue[0].head);
}

static void submit_what_does_not_fit(void *arg) {
    (void)arg;
    gy_sched_job in = spec(0);
    int32_t id;
    in.max_tokens = 10000;
    gy_sched_submit(R.s, &in, 0, &id);
}

static void wrong_orders_of_calls_end_the_process(void **state) {
    (void)state;
    setup();
    begin(0);
    define(0, 0, 20, 3);
    submit(0);
    step();
    assert_aborts(remove_in_a_pass, NULL, "FLIGHT_PASS");
    assert_aborts(stay_of_what_is_not_in_a_pass, NULL, "where");
    assert_aborts(submit_what_does_not_fit, NULL, "gy_sched_fits");
    run_all(100);
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_job_runs),
        cmocka_unit_test(smallest_job),
        cmocka_unit_test(depths_may_differ),
        cmocka_unit_test(serial_layouts_run_position_by_position),
        cmocka_unit_test(prompts_enter_in_order_of_arrival),
        cmocka_unit_test(the_next_prompt_fills_the_pass),
        cmocka_unit_test(a_short_prompt_passes_a_long_one),
        cmocka_unit_test(a_started_prompt_is_not_passed_by_its_like),
        cmocka_unit_test(a_chunk_enters_as_a_whole),
        cmocka_unit_test(short_prompts_do_not_starve_a_long_one),
        cmocka_unit_test(a_better_priority_enters_first),
        cmocka_unit_test(tail_of_a_prompt_fills_passes),
        cmocka_unit_test(a_whole_chunk_waits),
        cmocka_unit_test(prompts_keep_to_their_share),
        cmocka_unit_test(prompt_rows_leave_decode_rows_their_tile),
        cmocka_unit_test(a_small_share_is_one_row),
        cmocka_unit_test(more_jobs_than_rows),
        cmocka_unit_test(one_row_is_the_decode_rows),
        cmocka_unit_test(cohorts_without_refill),
        cmocka_unit_test(refill_keeps_passes_full),
        cmocka_unit_test(coda_waits_for_company),
        cmocka_unit_test(coda_without_layers_is_never_held),
        cmocka_unit_test(logits_of_a_coda_batch_are_bounded),
        cmocka_unit_test(what_never_fits_is_refused_with_numbers),
        cmocka_unit_test(a_full_queue_says_again),
        cmocka_unit_test(a_job_index_is_reused_at_once),
        cmocka_unit_test(bypass_is_bounded),
        cmocka_unit_test(scan_is_bounded),
        cmocka_unit_test(scan_goes_on),
        cmocka_unit_test(watermark_holds_only_beside_others),
        cmocka_unit_test(watermark_rounds_up),
        cmocka_unit_test(a_promise_ends_with_the_prompt),
        cmocka_unit_test(promised_blocks_are_set_aside),
        cmocka_unit_test(reservation_is_never_short),
        cmocka_unit_test(shortage_parks_the_worst),
        cmocka_unit_test(shortage_drops_when_parking_is_full_or_forbidden),
        cmocka_unit_test(shortage_while_entering),
        cmocka_unit_test(what_was_dropped_comes_back_once),
        cmocka_unit_test(parked_jobs_give_up_their_sequences),
        cmocka_unit_test(parking_keeps_what_is_finished),
        cmocka_unit_test(dropping_computes_again),
        cmocka_unit_test(the_first_admission_counts),
        cmocka_unit_test(parking_needs_room),
        cmocka_unit_test(prompt_logits_come_once),
        cmocka_unit_test(better_jobs_take_slots),
        cmocka_unit_test(better_jobs_take_blocks),
        cmocka_unit_test(nobody_is_preempted_in_vain),
        cmocka_unit_test(the_watermark_is_no_room_for_the_better),
        cmocka_unit_test(fcfs_ignores_priorities),
        cmocka_unit_test(prompts_are_found_again),
        cmocka_unit_test(rows_are_published_as_they_finish),
        cmocka_unit_test(a_published_row_makes_room),
        cmocka_unit_test(outputs_are_published_as_far_as_they_are_full),
        cmocka_unit_test(a_dropped_job_takes_only_rows_that_ran_as_its_own),
        cmocka_unit_test(only_full_prompts_share),
        cmocka_unit_test(choices_share_their_leaders_rows),
        cmocka_unit_test(a_leaders_index_is_not_the_leader),
        cmocka_unit_test(a_leaders_rows_come_before_the_caches_own),
        cmocka_unit_test(choices_do_not_wait_for_nothing),
        cmocka_unit_test(a_follower_does_not_wait_for_a_worse_leader),
        cmocka_unit_test(remove_in_every_state),
        cmocka_unit_test(judged_rows_are_sampled_at_once),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(create_survives_failing_allocations),
        cmocka_unit_test(the_checker_sees_planted_faults),
        cmocka_unit_test(wrong_orders_of_calls_end_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
