/* A model folder opened for the API and for the commands: description, tokenizer, the ids that end a text, dtype
 * (cheap: enough to check what was asked for); then backend and weights. Which dtype, which backend and which eos is
 * decided here and nowhere else. Owns all of it. Open struct: a zeroed one is closed.
 */
#ifndef GY_API_API_MODEL_H
#define GY_API_API_MODEL_H

#include "engine/engine.h"
#include "model/model.h"
#include "sample/grammar.h"
#include "text/tokenizer.h"

enum { GY_API_MAX_EOS = 32 };

typedef struct gy_api_model {
    const char *dir; /* borrowed; nothing here reads it after load */
    gy_model_desc d;
    gy_tok *tok;                 /* NULL when the folder holds no tokenizer, or none was wanted */
    int32_t eos[GY_API_MAX_EOS]; /* config.json's, generation_config.json's and the tokenizer's, each once */
    int32_t n_eos;
    int32_t long_id;   /* the token with the longest spelling, -1 without a tokenizer */
    size_t long_bytes; /* of that spelling */
    gy_dtype act;
    char act_why[160]; /* "100 % of the weight bytes are BF16" */
    gy_weight_form form;
    int quant_head; /* model.h */
    gy_pack pack;
    const char *cache_text; /* of gy_api_model_set_cache */
    gy_pack_where cache;
    gy_pin pin;
    gy_backend *be;
    gy_model *model;
} gy_api_model;

typedef struct gy_api_load_opts {
    const char *backend; /* "auto", "cpu", "cuda", "cuda:N", "ref" */
    int32_t threads;
    const gy_ops_limits *limits;
    void (*progress)(void *arg, size_t done_bytes, size_t total_bytes); /* may be NULL */
    void *progress_arg;
    /* May be NULL. An engine with these options will be opened: KV that the backend does not compute with, and
     * what cannot fit into its memory, is refused before the weights are read. */
    const gy_engine_opts *engine;
} gy_api_load_opts;

/* dtype: "auto", "f32", "bf16". Without want_tok there is no tokenizer and there are no eos. Cheap: reads no weights.
 * Nothing stays open on failure. */
gy_status gy_api_model_open(gy_api_model *m, const char *dir, const char *dtype, int want_tok, gy_err *err);
/* Of an open one, before it is loaded. weights: "auto", "bf16", "fp8", "int8", "int4", "int8-channel". */
gy_status gy_api_model_set_weights(gy_api_model *m, const char *weights, int quant_head, gy_err *err);
gy_status gy_api_model_set_pack(gy_api_model *m, const char *pack, gy_err *err); /* "auto", "on", "off" */
/* "off", "auto", "auto:FOLDER", or a path. Borrowed until load. */
gy_status gy_api_model_set_cache(gy_api_model *m, const char *cache, gy_err *err);
gy_status gy_api_model_set_pin(gy_api_model *m, const char *pin, gy_err *err); /* "auto", "on", "off" */
/* "auto" becomes "on" or "off", for a process that may take `have` bytes of the host (0: unknown). */
gy_status gy_api_model_settle_pack(gy_api_model *m, size_t have, gy_err *err);
/* What of `have` free bytes of the host (0: unknown) is left when weights in 8 bits or, with pack on, copies have been
 * made; others stay where they are mapped. At least 1 where it is known. */
gy_status gy_api_model_left(const gy_api_model *m, size_t have, gy_err *err, size_t *out);
/* The backend alone: for a process that computes nothing itself. */
gy_status gy_api_model_open_backend(gy_api_model *m, const gy_api_load_opts *o, gy_err *err);
/* On failure m is as open left it, or holds a backend: close it. */
gy_status gy_api_model_load(gy_api_model *m, const gy_api_load_opts *o, gy_err *err);
void gy_api_model_close(gy_api_model *m);
/* What its tokens stand for, for grammars; of an open one. The caller's. GY_E_ARG without a tokenizer. Takes a
 * millisecond for a few thousand tokens. */
gy_status gy_api_model_vocab(const gy_api_model *m, gy_err *err, gy_grammar_vocab **out);

#endif
