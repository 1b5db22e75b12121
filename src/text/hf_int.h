/* Inside the kind "hf" (tokenizer.json, vocab.json + merges.txt): its stages, in the order text goes through them.
 *   normalize.c  text -> text          pretok.c  text -> pieces          bpe.c  piece -> ids
 *   decode.c     ids -> text
 * Each stage's description is read from JSON once (model lifetime, read-only); working memory is in gy_hf_scratch, one
 * per gy_tok_ctx. Every stage adds what it does to *steps.
 */
#ifndef GY_TEXT_HF_INT_H
#define GY_TEXT_HF_INT_H

#include "base/json.h"
#include "text/regex.h"
#include "text/tok_int.h"

/* A pattern as Split and Replace have it: {"String": ...} or {"Regex": ...}. */
typedef struct gy_pattern {
    gy_str literal; /* used when regex is NULL; not empty */
    gy_regex *regex;
} gy_pattern;

gy_status gy_pattern_read(const gy_jv *v, gy_err *err, gy_pattern *out);
void gy_pattern_fini(gy_pattern *p);

typedef struct gy_span { /* a match, or what lies between matches */
    size_t off, len;
    int is_match;
} gy_span;
typedef GY_VEC(gy_span) gy_spans;

typedef struct gy_piece {
    size_t off, len; /* in gy_pieces.text */
    int at_start;    /* begins where the original text begins */
} gy_piece;
typedef struct gy_pieces {
    gy_str text;
    GY_VEC(gy_piece) v;
} gy_pieces;

typedef struct gy_bpe_scratch gy_bpe_scratch;
typedef struct gy_hf_scratch {
    gy_regex_scratch *regex;
    gy_str norm[2]; /* normalisation goes from one to the other */
    gy_added_parts parts;
    gy_pieces pieces, next;
    gy_spans spans;
    gy_bpe_scratch *bpe;
} gy_hf_scratch;

/* Spans that cover text exactly; matches may be empty. Replaces what is in s->spans. */
gy_status gy_pattern_spans(const gy_pattern *p, gy_hf_scratch *s, const char *text, size_t len, int64_t *steps,
                           gy_err *err);

/* ---- normalize.c ---- */

typedef enum gy_norm_kind { GY_NORM_FORM, GY_NORM_PREPEND, GY_NORM_REPLACE, GY_NORM_LOWER, GY_NORM_STRIP } gy_norm_kind;
typedef struct gy_norm {
    gy_norm_kind kind;
    int form; /* gy_uni_form */
    int strip_left, strip_right;
    gy_pattern pattern;
    gy_str text; /* Prepend's text, Replace's content */
} gy_norm;
typedef GY_VEC(gy_norm) gy_norms;

gy_status gy_norms_read(const gy_jv *v, gy_err *err, gy_norms *out); /* appends; v may be null */
void gy_norms_fini(gy_norms *n);
/* *out_text is borrowed from the scratch, or is the input. *cut_left: something was removed at the beginning. */
gy_status gy_norms_apply(const gy_norms *n, gy_hf_scratch *s, const char *text, size_t len, int64_t *steps, gy_err *err,
                         const char **out_text, size_t *out_len, int *cut_left);

/* ---- pretok.c ---- */

typedef enum gy_pretok_kind {
    GY_PRETOK_PREFIX_SPACE, /* first half of ByteLevel: a space before each piece that has none */
    GY_PRETOK_BYTES,        /* last half of ByteLevel: bytes -> the printable alphabet */
    GY_PRETOK_SPLIT,
    GY_PRETOK_DIGITS,
    GY_PRETOK_WORDS,  /* Whitespace */
    GY_PRETOK_SPACES, /* WhitespaceSplit */
    GY_PRETOK_PUNCT,
    GY_PRETOK_METASPACE
} gy_pretok_kind;
typedef enum gy_split_how {
    GY_SPLIT_REMOVED,
    GY_SPLIT_ISOLATED,
    GY_SPLIT_PREVIOUS,
    GY_SPLIT_NEXT,
    GY_SPLIT_RUNS
} gy_split_how;
typedef enum gy_prepend { GY_PREPEND_NEVER, GY_PREPEND_FIRST, GY_PREPEND_ALWAYS } gy_prepend;
typedef struct gy_pretok {
    gy_pretok_kind kind;
    gy_split_how how;
    int invert;
    gy_pattern pattern;
    gy_str replacement; /* Metaspace: one character */
    gy_prepend prepend;
    int split;
} gy_pretok;
typedef GY_VEC(gy_pretok) gy_pretoks;

gy_status gy_pretoks_read(const gy_jv *v, gy_err *err, gy_pretoks *out); /* appends; v may be null */
void gy_pretoks_fini(gy_pretoks *p);
/* Cuts s->pieces, which the caller filled with one piece, in place. */
gy_status gy_pretoks_apply(const gy_pretoks *p, gy_hf_scratch *s, int64_t *steps, gy_err *err);

/* GPT-2's printable alphabet: byte -> code point (< 0x800), and back (-1 for no member). */
uint32_t gy_byte_to_char(unsigned char byte);
int gy_char_to_byte(uint32_t cp);

/* ---- bpe.c ---- */

typedef struct gy_bpe gy_bpe;
gy_status gy_bpe_read(const gy_jv *model, gy_err *err, gy_bpe **out);
gy_status gy_bpe_read_gpt2(const gy_jv *vocab, const char *merges, size_t merges_len, gy_err *err, gy_bpe **out);
void gy_bpe_destroy(gy_bpe *b); /* accepts NULL */
const gy_vocab *gy_bpe_vocab(const gy_bpe *b);
gy_status gy_bpe_scratch_create(gy_bpe_scratch **out);
void gy_bpe_scratch_destroy(gy_bpe_scratch *s); /* accepts NULL */
gy_status gy_bpe_encode(const gy_bpe *b, gy_bpe_scratch *s, const char *piece, size_t len, int64_t *steps, gy_err *err,
                        gy_vec_i32 *ids);

/* ---- decode.c ---- */

typedef enum gy_dec_kind {
    GY_DEC_BYTE_LEVEL,
    GY_DEC_BYTE_FALLBACK,
    GY_DEC_FUSE,
    GY_DEC_STRIP,
    GY_DEC_REPLACE,
    GY_DEC_METASPACE,
    GY_DEC_SPACES /* no decoder: tokens joined by spaces */
} gy_dec_kind;
enum { GY_DEC_MAX = 16 };
typedef struct gy_dec {
    gy_dec_kind kind;
    gy_str from, to;     /* Replace: literal pattern and content; Strip, Metaspace: the character in `from` */
    gy_vec_i32 fall;     /* Replace: where a partial match falls back to (Knuth, Morris, Pratt) */
    int64_t start, stop; /* Strip */
    int drop_first;      /* Metaspace: the first token loses its replacement characters */
} gy_dec;
typedef struct gy_decs {
    gy_dec dec[GY_DEC_MAX];
    int n;
} gy_decs;

gy_status gy_decs_read(const gy_jv *v, gy_err *err, gy_decs *out); /* v may be null */
void gy_decs_fini(gy_decs *d);

typedef struct gy_dec_state {
    gy_str held;   /* bytes that later tokens may change */
    int64_t count; /* Strip: characters of content seen or held; Replace: bytes matched */
    int phase;     /* Strip: past the start; ByteFallback: the run is broken */
    int64_t n_token;
} gy_dec_state;
typedef struct gy_decs_state {
    gy_dec_state st[GY_DEC_MAX];
} gy_decs_state;

gy_status gy_decs_push(const gy_decs *d, gy_decs_state *s, const char *token, size_t len, gy_str *out);
gy_status gy_decs_finish(const gy_decs *d, gy_decs_state *s, gy_str *out);
void gy_decs_state_fini(gy_decs_state *s);

#endif
