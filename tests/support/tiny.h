/* Tiny models with odd switches, and a second opinion on them: a checkpoint with made-up weights in a temporary folder,
 * and its forward pass in float64, token by token, written from docs/models and kv.h alone. It shares no code with
 * src/model: it finds weights by their names in the file and asks for the family by name. Failures print and exit.
 */
#ifndef GY_TESTS_TINY_H
#define GY_TESTS_TINY_H

#include "kv/kv.h"
#include "tensor/safetensors.h"

enum { TINY_MAX_TENSOR = 128, TINY_NAME = 80, TINY_MOST_GROUP = 512 };

typedef struct tiny_spec {
    const char *family; /* "ouro", "nanbeige", "huginn" */
    int32_t n_vocab, n_embd, n_ff, n_head, n_head_kv, head_dim;
    int32_t n_layer[3]; /* prelude, core, coda */
    int32_t n_loop, max_pos;
    double eps, theta;
    gy_dtype dtype;          /* of every tensor but a rope table */
    int tied;                /* ouro, nanbeige: tie_word_embeddings */
    int stored_head;         /* a head beside the tied embedding; ouro, nanbeige: other values, huginn: the copy */
    int skip_norm;           /* nanbeige: skip_loop_final_norm */
    int loss_weights;        /* nanbeige: entries of loop_loss_weights; n_loop is theirs + 1 */
    int no_bias, rope_table; /* huginn: qk_bias false; a freqs_cis that is not what rope_base gives */
    double embed_scale, std; /* huginn: init_values; 0 = not in the file */
    uint64_t seed;
} tiny_spec;

typedef struct tiny_tensor {
    char name[TINY_NAME];
    gy_dtype dtype;
    int n_dim;
    int64_t shape[5];
    size_t n;
    double *v; /* the values that the file holds, after its dtype */
    int group; /* set by tests: products with it round their inputs, so many at a time, as ops.h says of Q8 and Q4 (32),
                  or of Q8C (TINY_MOST_GROUP: all) */
} tiny_tensor;

typedef struct tiny {
    tiny_spec s;
    char dir[40];
    int n_tensor, next; /* next: where tiny_find looks first */
    tiny_tensor t[TINY_MAX_TENSOR];
} tiny;

void tiny_make(const tiny_spec *s, tiny *out); /* the tensors, and a folder with config.json and weights */
void tiny_rewrite(tiny *t);                    /* the weights file again, after a test has changed tensors */
void tiny_free(tiny *t);                       /* removes the folder */
tiny_tensor *tiny_find(tiny *t, const char *name);

/* One sequence, position by position. */
typedef struct tiny_run {
    const int32_t *ids; /* [n_tok] */
    int32_t n_tok;
    int32_t depth; /* deepest loop that any token may run */
    gy_kv_layout layout;
    int32_t cyclic_k;
    gy_dtype act;       /* BF16: values are rounded where docs/models, rounding say */
    int kv_int8;        /* K and V are whole numbers of 1/127 of a head's largest size */
    int other_rope;     /* the rotation's rounding of the other families: what a wrong run would look like */
    const double *init; /* [n_tok, n_embd] huginn's s_0; NULL: zero */
    /* After each loop: does this token leave? May set read: the loop that is read out, 0 = the last. */
    int (*leave)(struct tiny_run *r, int32_t pos, int32_t loops);
    const void *arg;
    int32_t read;
    double gate, latent; /* of the loop that leave is asked about */
    /* Results, made by tiny_forward, freed by tiny_run_free. */
    double *logits;      /* [n_tok, n_vocab] */
    double *hidden;      /* [n_tok, depth, n_embd] */
    double *gates;       /* [n_tok, depth] */
    int32_t *loops;      /* [n_tok] run */
    int32_t *read_loops; /* [n_tok] of the state that was read out */
} tiny_run;

void tiny_forward(tiny *t, tiny_run *r);
void tiny_run_free(tiny_run *r);

#endif
