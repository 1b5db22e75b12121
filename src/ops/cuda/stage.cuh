/* A stage as one launch: all layers of a pass for one row, by blocks that stay (stage_kernel.cuh, stage.cu). What the
 * kernel is told, and what record.cu calls.
 */
#ifndef GY_OPS_CUDA_STAGE_CUH
#define GY_OPS_CUDA_STAGE_CUH

#include "ops/cuda/record.cuh"

#include <cuda.h> /* CUtensorMap; nothing of the driver is linked */

enum {
    STAGE_LAYERS = 48,
    STAGE_BLOCKS = 128,
    STAGE_SLOTS = 25,   /* of the ring */
    STAGE_SLOT = 8192,  /* bytes: 8 outputs x 512 of k; 32 positions of K */
    STAGE_K = 512,      /* of k in a slot */
    STAGE_FLIGHT = 14,  /* most slots under way: stage_kernel.cuh, parity */
    STAGE_EMBD = 2048,  /* most */
    STAGE_ATT = 2048,   /* most n_head * head_dim */
    STAGE_FF = 5632,    /* most */
    STAGE_D = 128,      /* head_dim */
    STAGE_HEADS = 16,   /* most of a group */
    STAGE_CHUNK = 512,  /* attention's (attn_tile.cuh) */
    STAGE_COUNTERS = 8, /* most of a kind */
    STAGE_THREADS = 384
};

/* Of a layer's products, in their order. */
typedef enum stage_weight { STAGE_QKV, STAGE_O, STAGE_GATE_UP, STAGE_DOWN, STAGE_PRODUCTS } stage_weight;

/* What may be tried without changing a bit. */
typedef struct stage_tuning {
    int32_t flight;    /* slots under way; 1 to STAGE_FLIGHT */
    int32_t flight_up; /* the same while gate and up are brought: nobody waits for words then */
    int32_t flight_kv; /* the same for K and V */
    int32_t n_counter; /* that tell when words may be there; a power of two, or 0: words are polled */
    int32_t parts;     /* most blocks that share a chunk of a head's context: 1, 2, 4 */
} stage_tuning;

/* What a wait that did not end was for; of one block. */
typedef struct stage_report {
    int32_t what; /* 0: nothing happened; stage_wait */
    int32_t warp, layer, index;
    uint32_t found, wanted;
} stage_report;
typedef enum stage_wait {
    WAIT_NONE,
    WAIT_ROOM,    /* a slot to be given back; index: in the ring */
    WAIT_FLIGHT,  /* a slot to be filled, by the one who brings */
    WAIT_FULL,    /* the same, by one who computes */
    WAIT_COUNTER, /* index: kind of word */
    WAIT_WORD     /* index: the word */
} stage_wait;

/* Memory that the blocks share: words of each kind, then counters. In 64-bit words. */
typedef struct stage_shared {
    uint64_t *qkv, *att, *out, *f, *down; /* a word: two outputs */
    uint64_t *part;                       /* of attention: f32 */
    uint32_t *counter;                    /* [4 kinds][STAGE_COUNTERS] a line each, zero at the start */
    uint32_t *epoch;                      /* layers run so far */
} stage_shared;
enum { STAGE_LINE = 32 }; /* counters in a line of 128 bytes */

typedef struct stage_layer {
    const bf16 *norm[4];
    const void *w[STAGE_PRODUCTS]; /* repacked, where the maps are not used */
} stage_layer;

typedef struct stage_args { /* a kernel's parameters are at most 32,764 bytes */
    CUtensorMap map[STAGE_LAYERS][STAGE_PRODUCTS];
    stage_layer layer[STAGE_LAYERS];
    stage_shared to;
    stage_tuning tune;
    bf16 *x; /* [n_embd] in place */
    bf16 *kv;
    const int32_t *map_of; /* the slot map */
    const int32_t *pos, *slot;
    const int64_t *map_off;
    const float *cos, *sin;
    stage_report *report; /* [blocks], memory that the host sees; not NULL */
    long long *trace;     /* [n_layer][blocks][STAGE_TRACE] cycles, or NULL */
    long long patience;   /* cycles that a wait may take */
    double by_n_embd;     /* 1 / n_embd where that is exact, else 0 */
    int32_t n_layer, n_embd, n_ff, n_head, n_head_kv, n_chunk, n_part, kv_layers, il, round_each;
    int32_t is_linear; /* weights are repacked */
    int32_t less;      /* of LESS_: a bench's; results are wrong */
    gy_residual_kind norms;
    float eps, scale; /* scale: times log2(e) */
} stage_args;
enum { STAGE_TRACE = 14 }; /* where GY_STAGE_TRACE is defined */
/* Nobody waits for words; nobody attends, no K and V; slots are given back as they come, and that is all. */
enum { LESS_WAITS = 1, LESS_ATTENTION = 2, LESS_SUMS = 4 };

/* NULL: this device has none, or there is no memory. */
cuda_stage *cuda_stage_open(cuda_be *c, const gy_cuda_stage *o);
void cuda_stage_close(cuda_stage *s); /* accepts NULL */
/* What became of a wait that did not end, as the end of a sentence in buf; 0: nothing. */
int cuda_stage_failure(const cuda_stage *s, char *buf, size_t cap);

/* A layer's calls, borrowed. */
typedef struct stage_calls {
    const gy_linear_args *w[STAGE_PRODUCTS];
    const gy_rope_kv_args *rope;
    const gy_attn_args *attn;
    const gy_silu_mul_args *silu;
    const gy_residual_norm_args *middle, *end; /* end: NULL in the last layer */
} stage_calls;
typedef struct stage_run { /* all of a stage, of one row */
    const gy_norm_args *first;
    const gy_residual_args *last;
    int32_t n_layer, n_chunk; /* n_chunk: of the row's context */
    stage_calls layer[STAGE_LAYERS];
} stage_run;
/* 0: not these, nothing was done. */
int cuda_stage_run(cuda_be *c, cuda_stage *s, const stage_run *run);

/* Of stage.cu, for the bench: queued on the stream; how many blocks serve these sizes (at most STAGE_BLOCKS; 0: none),
 * and how often they share a chunk; where the words lie behind base, and how many bytes they take (base NULL: only
 * that). */
cudaError_t cuda_stage_launch(cudaStream_t stream, const stage_args *a, int32_t blocks);
int32_t cuda_stage_blocks(const stage_args *a, int32_t n_sm, int32_t *n_part_out);
size_t cuda_stage_lay_out(const stage_args *a, char *base, stage_shared *at);
/* A weight's map; as units of gate and up, where it is that. 0: the driver will not. */
int cuda_stage_map(void *encode, CUtensorMap *map, const void *w, int32_t n, int32_t k, int is_units);

#endif
