/* Inside src/text only: what a tokenizer is made of, and the seam between the shared part (tokenizer.c, added.c) and
 * the kinds (hf.c: tokenizer.json and vocab.json + merges.txt; spm.c: SentencePiece).
 *
 * Shared part                                    kind
 *   invalid UTF-8 -> U+FFFD
 *   prefix ids (bos, template)
 *   cuts raw text at added tokens  --segment-->  encode: normalise, pre-tokenise, model
 *   suffix ids
 *   drops special ids if asked     ----id----->  detok_push / detok_finish: bytes that are certain
 */
#ifndef GY_TEXT_TOK_INT_H
#define GY_TEXT_TOK_INT_H

#include "base/json.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

/* ---- added.c: tokens that are cut out of the text before the model sees it ---- */

enum {
    GY_ADDED_SPECIAL = 1u << 0,
    GY_ADDED_LSTRIP = 1u << 1,      /* swallows white space before it */
    GY_ADDED_RSTRIP = 1u << 2,      /* swallows white space after it */
    GY_ADDED_SINGLE_WORD = 1u << 3, /* only between word boundaries */
    GY_ADDED_NORMALIZED = 1u << 4,  /* matched in the normalised text (kind hf), else in the raw text */
    GY_ADDED_RESPELLED = 1u << 5    /* set here: normalisation changed its spelling */
};

typedef struct gy_added gy_added; /* a set of added tokens with its matcher; model lifetime, read-only after build */

gy_added *gy_added_create(void);    /* NULL on no memory */
void gy_added_destroy(gy_added *a); /* accepts NULL */
/* Copies content. The same content again replaces flags. GY_E_FORMAT for another content at the id or an empty one. */
gy_status gy_added_put(gy_added *a, const char *content, size_t len, int32_t id, unsigned flags, gy_err *err);
/* The spelling that the id is decoded to: the content, or what gy_added_set_normal gave. NULL if it is not an added
 * token. flags_out may be NULL. */
const char *gy_added_piece(const gy_added *a, int32_t id, size_t *len_out, unsigned *flags_out);
int32_t gy_added_id(const gy_added *a, const char *content, size_t len); /* -1 if absent */
int32_t gy_added_n_id(const gy_added *a);                                /* largest id + 1; 0 if empty */

/* Matching. Tokens without GY_ADDED_NORMALIZED are looked for in raw text, the others in normalised text, under the
 * spelling that gy_added_set_normal gave them. gy_added_build ends the filling; all_raw puts every token into the raw
 * set. Where spellings coincide, the special one and then the first one is kept (tokenizers 0.23.3 takes any of them).
 * gy_added_cut appends a split of text[0..len) into added tokens (id >= 0) and what lies between (id -1), leftmost
 * match first, longest of those; with rstrip a token's range may reach into the next token's, as in tokenizers. */
typedef struct gy_added_part {
    size_t off, len;
    int32_t id;
} gy_added_part;
typedef GY_VEC(gy_added_part) gy_added_parts;

size_t gy_added_count(const gy_added *a);
const char *gy_added_at(const gy_added *a, size_t i, size_t *len_out, unsigned *flags_out); /* in order of putting */
gy_status gy_added_set_normal(gy_added *a, size_t i, const char *spelling, size_t len);
gy_status gy_added_build(gy_added *a, int all_raw);
gy_status gy_added_cut(const gy_added *a, int normalized, const char *text, size_t len, unsigned flags, int64_t *steps,
                       gy_added_parts *out);

/* ---- a kind ---- */

typedef struct gy_tok_ops {
    const char *name; /* "tokenizer.json BPE", "SentencePiece unigram", ... may be replaced by gy_tok.kind */

    /* Appends the ids of one segment of valid UTF-8, len > 0, that holds no (matched) added token. at_start: the
     * segment begins at byte 0 of the text. Adds what it did to c->steps. flags: those of gy_tok_encode. */
    gy_status (*encode)(gy_tok_ctx *c, const char *text, size_t len, int at_start, unsigned flags, gy_err *err,
                        gy_vec_i32 *ids);

    /* The kind's own vocabulary, added tokens not included (the shared part asks gy_added first). */
    const char *(*piece)(const gy_tok *t, int32_t id, size_t *len_out); /* NULL if absent; borrowed */
    int32_t (*id)(const gy_tok *t, const char *piece, size_t len);      /* -1 if absent */
    int (*is_special)(const gy_tok *t, int32_t id); /* beyond added tokens: control pieces. NULL = none */

    /* Called once, when all added tokens are known and before gy_added_build: sets spellings in normalised text. NULL:
     * this kind looks for all added tokens in raw text. */
    gy_status (*seal)(gy_tok *t, gy_err *err);

    /* Scratch of one gy_tok_ctx, may be NULL. Kept in c->scratch. */
    gy_status (*scratch_create)(const gy_tok *t, void **out);
    void (*scratch_destroy)(void *scratch); /* accepts NULL */

    /* Streaming decoder. state: detok_bytes of zeroed memory at the start of a text. push appends to out the bytes
     * that no later token can change, finish the rest, then leaves the state as at the start. ids given have a piece
     * (the kind's or an added token's: gy_added_piece) and are not skipped ones. All output put together is valid
     * UTF-8 and each push ends at a character's end. fini frees what a state holds, at any time. */
    size_t detok_bytes;
    gy_status (*detok_push)(const gy_tok *t, void *state, int32_t id, gy_err *err, gy_str *out);
    gy_status (*detok_finish)(const gy_tok *t, void *state, gy_err *err, gy_str *out);
    void (*detok_fini)(void *state);

    void (*destroy)(void *impl); /* accepts NULL and half-built objects */
} gy_tok_ops;

struct gy_tok {
    const gy_tok_ops *ops;
    void *impl; /* the kind's data, freed by ops->destroy */
    char kind[64];
    gy_added *added;
    int32_t n_vocab;           /* the kind sets its own largest id + 1; the shared part raises it for added tokens */
    int32_t bos, eos;          /* -1 if none */
    gy_vec_i32 prefix, suffix; /* ids that GY_TOK_ADD_SPECIAL puts around the text */
};

struct gy_tok_ctx {
    const gy_tok *t;
    void *scratch; /* the kind's */
    int64_t steps;
    gy_str clean; /* the text with invalid UTF-8 replaced */
    gy_added_parts parts;
};

/* Openers of the kinds: fill t->ops, impl, kind, n_vocab, bos, eos and put their added tokens into t->added (created
 * before). On failure the caller closes t, so half-built is fine. They leave prefix and suffix empty unless the
 * file itself says what goes around a text.
 * The shared part then reads tokenizer_config.json, if the folder has it: added_tokens_decoder into t->added,
 * bos_token and eos_token into t->bos and t->eos, add_bos_token and add_eos_token into prefix and suffix
 * (SentencePiece: add_bos_token is true by default when tokenizer_config.json exists, and nothing is added without that
 * file). */
gy_status gy_hf_open_json(gy_tok *t, const char *json, size_t len, const char *name, gy_err *err);
gy_status gy_hf_open_gpt2(gy_tok *t, const char *vocab_path, const char *merges_path, int add_prefix_space,
                          gy_err *err);
gy_status gy_spm_open(gy_tok *t, const void *data, size_t len, const char *name, gy_err *err); /* spm.c */

#endif
