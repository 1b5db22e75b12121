/* The scheduler, driven by a small engine that keeps no tensors: a real gy_kv, and for each slot a note of what was
 * written there (token, position, depth, and a digest of all that came before). Each row of a pass checks that it reads
 * what it must; the books of scheduler and KV are checked after each call. Large random workloads are tests/sim's.
 */
#include "base_test.h"

#include "base/mem.h"
#include "sched/sched.h"

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

static void step(void) {
    int32_t flight[512];
    R.n_enter = R.n_coda = R.n_coda_batch = 0;
    memset(R.pass_job, 0, sizeof R.pass_job);
    gy_sched_admit(R.s, ++R.now);
    check_books("admit");
    run_enter();
    int32_t n = run_pass(flight);
    route(flight, n);
    run_coda();
}

static int run_all(int max_steps) {
    int n = 0;
    for (; !gy_sched_idle(R.s) && n < max_steps; n++) step();
    assert_true(gy_sched_idle(R.s));
    assert_int_equal(gy_kv_n_avail(R.kv, GY_KV_CORE), R.kc.n_block[GY_KV_CORE]);
    assert_int_equal(stats().n_flight, 0);
    return n;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void one_job_runs(void **state) {
    (void)state;
    for (int coda = 0; coda < 3; coda++) {
        setup();
        if (coda) with_boundary(coda - 1);
        begin(0);
        define(0, 1, 20, 5);
        submit(0);
        assert_int_equal(info(0).state, GY_JOB_WAITING);
        assert_int_equal(run_all(1000), N_LOOP * 5);
        assert_int_equal(R.job[0].n_out, 5);
        end();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_job_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
