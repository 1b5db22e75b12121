/* Text to token ids and back. One noun, three file formats:
 *   tokenizer.model            SentencePiece (BPE and unigram)      -> src/text/spm.c
 *   tokenizer.json             Hugging Face tokenizers' format      -> src/text/hf.c (+ normalize, pretok, bpe, decode)
 *   vocab.json + merges.txt    GPT-2's byte-level BPE               -> src/text/hf.c
 * gy_tok_open takes the first of them that the folder holds, in this order (nanbeige.md, tokenizer: where both exist,
 * the SentencePiece file is the definition), and reads tokenizer_config.json / special_tokens_map.json for bos, eos and
 * added tokens. A component that is not honoured is refused by name.
 *
 * Immutable after open, model lifetime. gy_tok_encode keeps its scratch in a caller-owned gy_tok_ctx: one per thread.
 */
#ifndef GY_TEXT_TOKENIZER_H
#define GY_TEXT_TOKENIZER_H

#include "base/status.h"
#include "base/str.h"
#include "base/vec.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gy_tok gy_tok;
typedef struct gy_tok_ctx gy_tok_ctx;

gy_status gy_tok_open(const char *dir, gy_err *err, gy_tok **out); /* GY_E_IO with "no tokenizer" if none is there */
int gy_tok_exists(const char *dir);                                /* 1 if gy_tok_open would find a file to read */
void gy_tok_close(gy_tok *t);                                      /* accepts NULL */
/* Single files from memory, for tests and fuzzers. `name` is used in messages. */
gy_status gy_tok_open_json(const char *json, size_t len, const char *name, gy_err *err, gy_tok **out);
gy_status gy_tok_open_spm(const void *data, size_t len, const char *name, gy_err *err, gy_tok **out);

int32_t gy_tok_n_vocab(const gy_tok *t);  /* largest id + 1, added tokens included */
int32_t gy_tok_bos(const gy_tok *t);      /* -1 if none */
int32_t gy_tok_eos(const gy_tok *t);      /* -1 if none */
const char *gy_tok_kind(const gy_tok *t); /* "tokenizer.json BPE", ... for inspect */
/* The piece as stored (vocabulary spelling), NULL for an id without one. Borrowed. */
const char *gy_tok_piece(const gy_tok *t, int32_t id, size_t *len_out);
/* Appends the bytes that a piece stands for where no text spells it, because it is part of a character: "<0xHH>", or
 * the letters of a byte-level vocabulary (GPT-2's bytes_to_unicode). 0: it is no such piece, *out is as before. */
int gy_tok_piece_bytes(const char *piece, size_t len, gy_str *out);
int32_t gy_tok_id(const gy_tok *t, const char *piece, size_t len); /* -1 if absent */
int gy_tok_is_special(const gy_tok *t, int32_t id);

gy_status gy_tok_ctx_create(const gy_tok *t, gy_tok_ctx **out);
void gy_tok_ctx_destroy(gy_tok_ctx *c); /* accepts NULL */

enum {
    GY_TOK_ADD_SPECIAL = 1u << 0,  /* bos/eos as the post-processor or tokenizer_config says */
    GY_TOK_PARSE_SPECIAL = 1u << 1 /* spellings of special added tokens in the text become their ids; without it they
                                      are plain text. (Added tokens that are not special are always matched.) */
};
/* Appends the ids of text[0..len) to ids. Any bytes are accepted, NUL too; invalid UTF-8 is first replaced by U+FFFD
 * (maximal subparts, as Python's errors="replace"). A character without a token becomes the unknown token; where the
 * file names none, it is dropped, as tokenizers does. Errors: GY_E_NOMEM, GY_E_ARG (the unknown token is needed and not
 * in the vocabulary), GY_E_LIMIT (a pattern of the tokenizer takes too many steps on this text). */
gy_status gy_tok_encode(gy_tok_ctx *c, const char *text, size_t len, unsigned flags, gy_err *err, gy_vec_i32 *ids);
/* Elementary steps of the last encode (merges tried, heap operations, regex offsets, lattice edges): the tests hold
 * growth in length to 2.2 per doubling by it. */
int64_t gy_tok_ctx_steps(const gy_tok_ctx *c);

/* Appends the text of ids to out: always valid UTF-8, equal to what Hugging Face's decode gives. An id outside the
 * vocabulary is GY_E_ARG. */
gy_status gy_tok_decode(const gy_tok *t, const int32_t *ids, size_t n, int skip_special, gy_err *err, gy_str *out);

/* Streaming: text appears as soon as no later token can change it; never half a UTF-8 sequence. The pieces put together
 * equal gy_tok_decode of the whole. Request lifetime; single thread. */
typedef struct gy_detok gy_detok;
gy_status gy_detok_create(const gy_tok *t, int skip_special, gy_detok **out);
void gy_detok_destroy(gy_detok *d);                                         /* accepts NULL */
gy_status gy_detok_push(gy_detok *d, int32_t id, gy_err *err, gy_str *out); /* appends what became certain */
gy_status gy_detok_finish(gy_detok *d, gy_err *err, gy_str *out);           /* appends the rest; d can be used anew */

#endif
