/* What `gyre run` keeps of one request and how it is printed: JSON lines, blocks of text, or a stream.
 *
 *   answer   one request; lives from its submission until it is printed
 *   output   one of its n choices
 *
 * Filled by the engine's callbacks, whose arg is the answer.
 */
#ifndef GY_CLI_CLI_OUTPUT_H
#define GY_CLI_CLI_OUTPUT_H

#include "cli/cli_requests.h"

typedef GY_VEC(gy_sampled) gy_vec_sampled;

typedef struct gy_output {
    gy_detok *detok; /* NULL without a tokenizer */
    gy_stop *stop;   /* NULL likewise */
    gy_str text;     /* certain, stop strings cut off */
    size_t printed;  /* of text, or of the ids: what a stream has written */
    gy_vec_i32 ids, loops;
    gy_vec_sampled logprobs; /* only when asked for */
    GY_VEC(float) gate;      /* likewise: values of all tokens in a row */
    gy_vec_i32 n_gate;       /* of each token */
    const char *reason;      /* static: gy_finish_name; NULL while it runs */
    gy_err err;              /* reason "error" */
    int stopped;             /* a stop string was found, number stop_string */
    size_t stop_string;
    int32_t stop_id; /* -1: none */
    int32_t n_prompt, n_cached;
    uint64_t seed;
    int64_t submit_ns, first_token_ns, finish_ns;
    gy_pd_cost pd;
} gy_output;

typedef struct gy_answer {
    const gy_job *job;
    const gy_cli_model *m;
    size_t index;                   /* of the prompt */
    void *owner;                    /* the caller's */
    struct gy_answer *next;         /* likewise */
    int show_cached;                /* cached_tokens belongs into the JSON form */
    gy_vec_sampled prompt_logprobs; /* only when asked for: of the prompt's tokens from the second on */
    gy_err err;                     /* what was lost on our side, for all choices */
    int32_t n, n_done;
    gy_output choice[]; /* [n] */
} gy_answer;

gy_status gy_answer_create(const gy_job *job, const gy_cli_model *m, size_t index, gy_err *err, gy_answer **out);
void gy_answer_free(gy_answer *a); /* accepts NULL */
/* It will not run: all choices end with this sentence as their error. */
void gy_answer_refuse(gy_answer *a, const char *why);
int gy_answer_done(const gy_answer *a);
const gy_err *gy_answer_error(const gy_answer *a); /* the first choice's that has one; NULL */

/* The engine's callbacks. */
gy_verdict gy_answer_on_token(void *answer, const gy_token_event *ev);
void gy_answer_on_prompt(void *answer, const gy_prompt_event *ev);
void gy_answer_on_finish(void *answer, const gy_finish_event *ev);

/* One line for each choice. hash (may be NULL) becomes the member "request". */
void gy_answer_put_json(const gy_answer *a, const char *hash, gy_str *out);
void gy_answer_put_block(const gy_answer *a, gy_str *out); /* header, text or ids; for each choice */
void gy_answer_put_new(gy_answer *a, gy_str *out);         /* choice 0: what a stream has not written yet */
/* How each JSON line of this request begins, up to and with its prompt ids. */
void gy_answer_put_head(const gy_job *job, size_t index, gy_str *out);

#endif
