/* A stage in one launch (src/ops/cuda/stage.cu) alone, on Ouro-1.4B's 24 layers with random weights, KV and inputs: how
 * long a layer takes, and where a layer's time goes. Results are not looked at: bits are test_ops_record's matter. Not
 * a part of gyre's build, because it needs the inside of libgyre_cuda.so:
 *   nvcc -std=c++20 -O3 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude bench/bench_stage_gpu.cu \
 *     -o gyre-bench-stage-gpu
 * gyre-bench-stage-gpu [CONTEXT [FLIGHT,OF_GATE_UP,OF_KV,COUNTERS,PARTS[,WORD]...]...]: without a list of ways those of
 * ways[]. Words: linear: weights are repacked, a slot is one copy. free: nobody waits for another block; noattn: and no
 * K and V are read, nobody attends; stream: free, and nobody computes: slots are given back as they come; weights:
 * stream and noattn.
 */
#include "ops/cuda/stage.cu"

#include <algorithm>
#include <vector>

enum { LAYERS = 24, EMBD = 2048, FF = 5632, HEADS = 16, TIMES = 11, LONGEST = 4096, BLOCK = GY_BLOCK_SLOTS };

/* What backend.cu has for the others. */
int cuda_ok(cuda_be *c, cudaError_t rc, const char *where) {
    (void)c;
    if (rc != cudaSuccess) printf("%s: %s\n", where, cudaGetErrorString(rc)), exit(1);
    return 1;
}
static void check(cudaError_t rc, const char *where) {
    cuda_ok(NULL, rc, where);
}

typedef struct rig {
    cuda_stage s;
    char *w[LAYERS][STAGE_PRODUCTS];
    bf16 *norm, *x, *kv;
    int32_t *map, *pos; /* pos, slot */
    int64_t *off;
    float *angle;
    long long *trace;
} rig;

/* Random BF16 between -1 and 1, times a power of two. */
static __global__ void fill_kernel(uint16_t *p, int64_t n, uint32_t seed, uint32_t less) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t z = (uint32_t)i * 2654435761u + seed;
        z ^= z >> 15, z *= 2246822519u, z ^= z >> 13;
        p[i] = (uint16_t)(0x3e80u - (less << 7) + (z & 0x17fu) + (z >> 31 << 15));
    }
}
static char *random_bf16(int64_t n, uint32_t seed, uint32_t less) {
    char *p;
    check(cudaMalloc((void **)&p, (size_t)n * 2), "memory");
    fill_kernel<<<1024, 256>>>((uint16_t *)p, n, seed, less);
    return p;
}

static const int32_t outputs[STAGE_PRODUCTS] = {3 * HEADS * STAGE_D, EMBD, 2 * FF, EMBD};
static const int32_t inputs[STAGE_PRODUCTS] = {EMBD, HEADS *STAGE_D, EMBD, FF};

static void open_rig(rig *r) {
    gy_cuda_stage o = {};
    cuda_be c = {};
    std::vector<int32_t> map(LONGEST);
    cuda_stage *s = cuda_stage_open(&c, &o);
    if (!s) printf("no device for a stage\n"), exit(1);
    r->s = *s;
    for (int l = 0; l < LAYERS; l++)
        for (int w = 0; w < STAGE_PRODUCTS; w++)
            r->w[l][w] = random_bf16((int64_t)outputs[w] * inputs[w], (uint32_t)(l * 4 + w), 5);
    r->norm = (bf16 *)random_bf16(EMBD, 7, 0);
    r->x = (bf16 *)random_bf16(EMBD, 8, 0);
    r->kv = (bf16 *)random_bf16((int64_t)(LONGEST + BLOCK) * LAYERS * 2 * HEADS * STAGE_D, 9, 0);
    r->angle = (float *)random_bf16(4 * (int64_t)STAGE_D, 10, 0);
    check(cudaMalloc((void **)&r->map, LONGEST * 4), "memory");
    check(cudaMalloc((void **)&r->pos, 8), "memory");
    check(cudaMalloc((void **)&r->off, 8), "memory");
    check(cudaMalloc((void **)&r->trace, (size_t)LAYERS * STAGE_BLOCKS * STAGE_TRACE * 8), "memory");
    for (int i = 0; i < LONGEST; i++) map[(size_t)i] = i;
    check(cudaMemcpy(r->map, map.data(), LONGEST * 4, cudaMemcpyHostToDevice), "the map");
    check(cudaMemset(r->off, 0, 8), "the map");
    check(cudaDeviceSynchronize(), "weights");
}

typedef struct way {
    gy_cuda_stage o;
    int is_linear, less;
} way;

static void set_args(rig *r, const way *v, int32_t context, int *blocks) {
    stage_args *a = &r->s.args;
    int32_t at[2] = {context - 1, context - 1};
    memset(a, 0, sizeof *a);
    a->n_layer = a->kv_layers = LAYERS;
    a->n_embd = EMBD, a->n_ff = FF, a->n_head = a->n_head_kv = HEADS;
    a->n_chunk = (context - 1) / STAGE_CHUNK + 1;
    a->norms = GY_RESIDUAL_BRANCH;
    a->round_each = 1;
    a->eps = 1e-6f;
    a->scale = 0.1275f;
    a->by_n_embd = 1.0 / EMBD;
    a->is_linear = v->is_linear, a->less = v->less;
    a->tune = tuning_of(&v->o);
    a->x = r->x, a->kv = r->kv, a->map_of = r->map, a->pos = r->pos, a->slot = r->pos + 1, a->map_off = r->off;
    a->cos = r->angle, a->sin = r->angle + STAGE_D / 2;
    a->report = r->s.report_dev;
    a->patience = (long long)PATIENCE_MS * CLOCK_KHZ;
    check(cudaMemcpy(r->pos, at, sizeof at, cudaMemcpyHostToDevice), "the position");
    for (int l = 0; l < LAYERS; l++)
        for (int w = 0; w < STAGE_PRODUCTS; w++) {
            a->layer[l].norm[w] = r->norm;
            a->layer[l].w[w] = r->w[l][w];
            if (!cuda_stage_map(r->s.encode, &a->map[l][w], r->w[l][w], outputs[w], inputs[w], w == STAGE_GATE_UP))
                printf("no map\n"), exit(1);
        }
    *blocks = cuda_stage_blocks(a, STAGE_BLOCKS, &a->n_part);
    cuda_stage_lay_out(a, r->s.shared, &a->to);
}

static void wait_for(rig *r) {
    char why[128] = "";
    cudaError_t rc = cudaDeviceSynchronize();
    if (rc == cudaSuccess) return;
    cuda_stage_failure(&r->s, why, sizeof why);
    printf("a stage: %s%s\n", cudaGetErrorString(rc), why);
    exit(1);
}

/* Median of TIMES launches, us a layer. */
static float time_way(rig *r, int blocks) {
    cudaEvent_t begin, end;
    std::vector<float> us;
    check(cudaEventCreate(&begin), "events");
    check(cudaEventCreate(&end), "events");
    for (int i = 0; i < TIMES + 2; i++) {
        float ms = 0;
        cudaEventRecord(begin, 0);
        check(cuda_stage_launch(0, &r->s.args, blocks), "a stage");
        cudaEventRecord(end, 0);
        wait_for(r);
        cudaEventElapsedTime(&ms, begin, end);
        if (i > 1) us.push_back(ms * 1e3f / LAYERS);
    }
    std::sort(us.begin(), us.end());
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return us[TIMES / 2];
}

/* Has block b K and V: plan_attention's formula. */
static int has_attention(const stage_args *a, int blocks, int b) {
    int n = a->n_head_kv * a->n_chunk * a->n_part, q = (b * n + blocks - 1) / blocks;
    return !(a->less & LESS_ATTENTION) && q < n && q * blocks / n == b;
}

/* Notes that begin and end a phase; those in the middle are attention's. */
static const struct {
    const char *name;
    int from, to;
} phases[] = {{"qkv", 0, 1},       {"all warps", 1, 2}, {"vectors", 2, 3}, {"scores", 3, 4}, {"weights", 4, 5},
              {"values", 5, 6},    {"until att", 6, 7}, {"o", 7, 8},       {"norm", 8, 9},   {"gate/up", 9, 10},
              {"until f", 10, 11}, {"down", 11, 12},    {"norm", 12, 13}};

/* Cycles in the middle of the layers, of the blocks that attend or of the others: the mean, and the longest. */
static void print_phases(const stage_args *a, const std::vector<long long> &t, int blocks, int is_attending) {
    int n = 0;
    for (int b = 0; b < blocks; b++) n += has_attention(a, blocks, b) == is_attending;
    if (!n) return;
    printf("    %3d blocks %s attention:", n, is_attending ? "with" : "without");
    double all = 0;
    for (auto &p : phases) {
        if (!is_attending && p.from >= 1 && p.to <= 6) continue;
        double sum = 0, most = 0;
        for (int l = 8; l < 16; l++)
            for (int b = 0; b < blocks; b++) {
                if (has_attention(a, blocks, b) != is_attending) continue;
                size_t at = ((size_t)l * (size_t)blocks + (size_t)b) * STAGE_TRACE;
                double d = (double)(t[at + (size_t)p.to] - t[at + (size_t)p.from]);
                sum += d, most = std::max(most, d);
            }
        all += sum / 8 / n;
        printf(" %s %.0f (%.0f),", p.name, sum / 8 / n, most);
    }
    printf(" sum %.0f\n", all);
}

static void print_trace(rig *r, int blocks) {
    std::vector<long long> t((size_t)LAYERS * (size_t)blocks * STAGE_TRACE);
    r->s.args.trace = r->trace;
    check(cuda_stage_launch(0, &r->s.args, blocks), "a stage");
    wait_for(r);
    r->s.args.trace = NULL;
    check(cudaMemcpy(t.data(), r->trace, t.size() * 8, cudaMemcpyDeviceToHost), "the trace");
    print_phases(&r->s.args, t, blocks, 1);
    print_phases(&r->s.args, t, blocks, 0);
}

static void run_way(rig *r, const char *text, int32_t context) {
    static const struct {
        const char *name;
        int is_linear, less;
    } words[] = {{"linear", 1, 0},
                 {"free", 0, LESS_WAITS},
                 {"noattn", 0, LESS_WAITS | LESS_ATTENTION},
                 {"stream", 0, LESS_WAITS | LESS_SUMS},
                 {"weights", 0, LESS_WAITS | LESS_SUMS | LESS_ATTENTION}};
    way v = {};
    int32_t *const field[] = {&v.o.flight, &v.o.flight_up, &v.o.flight_kv, &v.o.n_counter, &v.o.parts};
    int blocks, n = 0;
    std::vector<char> copy(text, text + strlen(text) + 1);
    for (char *rest = copy.data(), *word; (word = strtok_r(rest, ",", &rest));) {
        int is_word = 0;
        for (auto &w : words)
            if (!strcmp(word, w.name)) v.is_linear |= w.is_linear, v.less |= w.less, is_word = 1;
        if (!is_word && n < 5) *field[n++] = atoi(word);
    }
    set_args(r, &v, context, &blocks);
    printf("%5d  %-28s %7.2f\n", context, text, (double)time_way(r, blocks));
#ifdef GY_STAGE_TRACE
    if (!(v.less & LESS_SUMS)) print_trace(r, blocks);
#endif
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const char *const ways[] = {"5,5,5,weights", "4,4,4,linear,weights",
                                       "8,8,8,weights", "4,4,4,stream",
                                       "4,4,4,noattn",  "4,4,4,free",
                                       "4,4,4",         "4,6,4",
                                       "4,8,4",         "4,10,4",
                                       "4,8,8",         "5,5,5",
                                       "3,8,4",         "4,8,4,-1",
                                       "4,8,4,1",       "4,8,4,linear"};
    static rig r;
    int32_t context = argc > 1 ? atoi(argv[1]) : 128;
    if (context < 1 || context > LONGEST) return 2;
    open_rig(&r);
    printf("context  flight, of gate and up, of K and V, counters, parts    us a layer\n");
    if (argc > 2)
        for (int i = 2; i < argc; i++) run_way(&r, argv[i], context);
    else
        for (const char *text : ways) run_way(&r, text, context);
    return 0;
}
