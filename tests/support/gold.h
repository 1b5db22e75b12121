/* Shared by the tests: a model on a backend in one call, requests in and token lists out, and the golden cases
 * (tests/golden/models/NAME/expected.json) as plain structs. Failures print and exit: tests have nothing to recover.
 */
#ifndef GY_TESTS_GOLD_H
#define GY_TESTS_GOLD_H

#include "engine/engine.h"
#include "engine/eval.h"

typedef struct gold_setup {
    const char *model;   /* "ouro-tiny" ..., under tests/golden/models, or a path with a slash */
    const char *backend; /* "ref", "cpu" */
    gy_dtype act;
    int n_thread;     /* cpu */
    int32_t max_rows; /* 0 = 256 */
    int32_t max_seqs; /* 0 = 16 */
    int32_t max_len;  /* 0 = 256 */
    int32_t kv_blocks;
    gy_kv_layout layout;
    int32_t cyclic_k;
    int32_t max_loops;
} gold_setup;

typedef struct gold_env {
    gy_backend *be;
    gy_model *m;
    gy_engine *e; /* NULL until gold_engine */
} gold_env;

void gold_open(const gold_setup *s, gold_env *out);   /* backend and model */
void gold_engine(const gold_setup *s, gold_env *env); /* and an engine on it */
void gold_close(gold_env *env);

enum { GOLD_MAX_OUT = 64 };
typedef struct gold_result {
    int32_t n, tokens[GOLD_MAX_OUT], loops[GOLD_MAX_OUT];
    float logprobs[GOLD_MAX_OUT];
    gy_finish reason;
    char error[256];
} gold_result;

/* Submits all requests at once (callbacks are set here) and steps until nothing is left; results in their order. */
void gold_run(gy_engine *e, gy_request *requests, int n, gold_result *results);
int gold_same(const gold_result *a, const gold_result *b); /* bit for bit, logprobs too */

typedef struct gold_case {
    char kind[16], name[16], layout[16], exit[16];
    int32_t n_ids, *ids;
    int32_t n_out, *tokens, *loops;
    double threshold;
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
