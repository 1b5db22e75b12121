/* Shared by the tests: a model on a backend in one call, requests in and everything they said out, and the golden cases
 * (tests/golden/models/NAME/expected.json) as plain structs. Failures print and exit: tests have nothing to recover.
 */
#ifndef GY_TESTS_GOLD_H
#define GY_TESTS_GOLD_H

#include "engine/engine.h"
#include "engine/eval.h"

typedef struct gold_setup {
    const char *model;   /* "ouro-tiny" ..., under tests/golden/models, or a path with a slash */
    const char *backend; /* "ref", "cpu"; where the environment has GY_TEST_BACKEND, that takes the place of "cpu" */
    gy_dtype act;
    int n_thread;     /* cpu */
    int32_t max_rows; /* 0 = 256 */
    int32_t max_seqs; /* 0 = 16 */
    int32_t max_len;  /* 0 = 256 */
    int32_t kv_blocks;
    gy_kv_layout layout;
    int32_t cyclic_k;
    int32_t max_loops;
    gy_weight_form form; /* of the weights */
    int quant_head;
    uint32_t without; /* cuda: gy_cuda_opts */
    gy_kv_type kv_type;
    /* May change the options that the fields above and the defaults gave. NULL: nothing. */
    void (*patch)(gy_engine_opts *o, const void *arg);
    const void *patch_arg;
} gold_setup;

typedef struct gold_env {
    gy_backend *be;
    gy_model *m;
    gy_engine *e; /* NULL until gold_engine */
} gold_env;

const char *gold_backend(const char *asked);          /* after GY_TEST_BACKEND */
void gold_open(const gold_setup *s, gold_env *out);   /* backend and model */
void gold_engine(const gold_setup *s, gold_env *env); /* and an engine on it, in place of the one that is there */
void gold_close(gold_env *env);

enum { GOLD_MAX_OUT = 64, GOLD_MAX_PROMPT = 128, GOLD_MAX_GATE = 8 };
typedef struct gold_result { /* of one choice */
    int32_t n, tokens[GOLD_MAX_OUT], loops[GOLD_MAX_OUT];
    float logprobs[GOLD_MAX_OUT];
    uint64_t tops[GOLD_MAX_OUT]; /* digest of the alternatives */
    int32_t n_gate[GOLD_MAX_OUT];
    float gates[GOLD_MAX_OUT][GOLD_MAX_GATE];
    int32_t n_prompt; /* prompt logprobs that came: of tokens 1.. */
    float prompt_logprobs[GOLD_MAX_PROMPT];
    uint64_t prompt_tops[GOLD_MAX_PROMPT];
    gy_finish reason;
    char error[256];
    int n_finish;
    gy_finish_event fin; /* err is NULL: error says it */
    int32_t id;          /* of the request */
} gold_result;

/* Submits all requests at once (callbacks are set here) and steps until nothing is left, proving the books of KV and
 * scheduler after each step. Results in the order of the requests, the n choices of one beside each other. */
void gold_run(gy_engine *e, gy_request *requests, int n, gold_result *results);

/* The same with a hook before each step; step counts from 0. Returns the number of steps. A request that is refused
 * with GY_AGAIN is submitted again before the next step. */
typedef struct gold_hook {
    void (*before_step)(void *arg, gy_engine *e, int step, const gold_result *results);
    void *arg;
    int unchecked; /* 1: the books are proved at the end only */
} gold_hook;
int gold_run_hooked(gy_engine *e, gy_request *requests, int n, gold_result *results, const gold_hook *hook);

void gold_check(gy_engine *e); /* the books of KV and scheduler */
/* What r says goes to results, [r->n] of them and zeroed; for tests that submit in ways of their own. */
void gold_listen(gy_request *r, gold_result *results);

/* Queues one more, whose events go to results[0..n). 0: the queue has no room now. Also for hooks. */
int gold_submit(gy_engine *e, gy_request *r, gold_result *results);

int gold_n_choice(const gy_request *requests, int n); /* results that gold_run writes */
/* Bit for bit: tokens, loops, logprobs, alternatives, gates, prompt logprobs, reason. diff says what differs first. */
int gold_same(const gold_result *a, const gold_result *b);
int gold_diff(const gold_result *a, const gold_result *b, char *buf, size_t cap); /* 1: they differ */

/* Nothing runs, waits or is parked; every block is free or held by the prefix cache alone; both checkers agree. */
void gold_idle(gy_engine *e);

typedef struct gold_case {
    char kind[16], name[16], layout[16], exit[16];
    int32_t n_ids, *ids;
    int32_t n_out, *tokens, *loops;
    double threshold, argmax_gap; /* greedy: the least distance of a chosen logit to the next, exactly */
    int32_t min_loops, max_loops;
    int n_logits;
    double *logits;        /* prefill: last position; greedy: NULL */
    int n_hidden;          /* loops */
    double *hidden;        /* [n_hidden, n_embd] */
    double *gates;         /* [n_ids, n_loop] or NULL */
    double *initial_state; /* [n_ids, n_embd] or NULL */
} gold_case;

int gold_read_cases(const char *model, gold_case **cases_out); /* returns how many */
void gold_free_cases(gold_case *cases, int n);
/* The request of a greedy case. */
void gold_request(const gold_case *c, const gy_model_desc *d, gy_request *out);
gy_kv_layout gold_layout(const gold_case *c);

#endif
