/* Inside the SentencePiece kind only (spm*.c): the model as read and the scratch of one encoding.
 *
 *   bytes --spm_model.c--> gy_spm       text --spm_norm.c--> normalised text --spm_bpe.c | spm_unigram.c--> spans
 *   spans --spm.c--> ids (byte fallback, runs of unknown)         ids --spm.c--> text
 *
 * Behaviour follows sentencepiece 0.2.3, id for id, also where it looks odd; the oddities are named where they occur.
 */
#ifndef GY_TEXT_SPM_INT_H
#define GY_TEXT_SPM_INT_H

#include "base/vec.h"
#include "text/tok_int.h"

/* ---- spm_trie.c: prefixes of a byte string among many keys ---- */

/* Nodes in breadth-first order; the children of a node are neighbours, sorted by label. Read-only after build. */
typedef struct gy_spm_node {
    uint32_t first_child;
    int32_t id; /* -1: no key ends here */
    uint16_t n_child;
    uint8_t label;
} gy_spm_node;

typedef struct gy_spm_key {
    const char *s; /* borrowed while building */
    size_t len;    /* > 0 */
    int32_t id;
} gy_spm_key;

typedef struct gy_spm_trie {
    gy_spm_node *node; /* [n_node], NULL: no keys */
    size_t n_node;
} gy_spm_trie;

/* Sorts keys; they must differ. 0 on success, -1 on no memory (or more bytes than 2^31). */
int gy_spm_trie_build(gy_spm_trie *t, gy_spm_key *key, size_t n_key);
void gy_spm_trie_fini(gy_spm_trie *t);
/* One byte down from node *at (0 = the root): 1 and *at moves, 0 if there is no such child. */
int gy_spm_trie_step(const gy_spm_trie *t, uint32_t *at, uint8_t byte);

/* ---- spm_norm.c ---- */

typedef struct gy_spm_charsmap {
    uint32_t *unit; /* [n_unit] double array (darts-clone), checked at load: no transition leaves it */
    size_t n_unit;  /* 0: no normalisation rules */
    char *text;     /* [n_text] replacements, each NUL-terminated */
    size_t n_text;
} gy_spm_charsmap;

/* Copies precompiled_charsmap out of the file. Empty blob: no rules. */
gy_status gy_spm_charsmap_load(gy_spm_charsmap *m, const char *blob, size_t len, gy_err *err);
void gy_spm_charsmap_fini(gy_spm_charsmap *m);

/* ---- spm_model.c ---- */

typedef enum gy_spm_type {
    GY_SPM_NORMAL = 1,
    GY_SPM_UNKNOWN = 2,
    GY_SPM_CONTROL = 3,
    GY_SPM_USER_DEFINED = 4,
    GY_SPM_UNUSED = 5,
    GY_SPM_BYTE = 6
} gy_spm_type;

typedef enum gy_spm_algo { GY_SPM_UNIGRAM = 1, GY_SPM_BPE = 2, GY_SPM_WORD = 3, GY_SPM_CHAR = 4 } gy_spm_algo;

/* Model lifetime, read-only after load. */
typedef struct gy_spm {
    gy_spm_algo algo;
    /* Two vocabularies, since unigram models may spell a control piece and a normal piece alike: `plain` holds normal,
     * user-defined and unused pieces, `reserved` the others. In BPE models a spelling occurs once over both. */
    gy_vocab plain, reserved;
    float *score;  /* [n_piece] */
    uint8_t *type; /* [n_piece] gy_spm_type */
    int32_t n_piece;
    int32_t n_unused;
    size_t max_plain_len;
    int32_t unk; /* -1: none (then byte_fallback) */
    int32_t byte_id[256];
    float unk_score;  /* unigram: the lowest normal score - 10 */
    gy_spm_trie tree; /* unigram: normal and user-defined pieces */
    gy_spm_trie user; /* user-defined pieces */
    gy_spm_charsmap map;
    int add_dummy_prefix, remove_extra_ws, escape_ws, ws_suffix, byte_fallback;
    gy_str unk_surface; /* what an unknown piece decodes to */
    gy_str unk_piece, bos_piece, eos_piece;
} gy_spm;

/* Reads and checks a tokenizer.model. *m must be zeroed; on failure gy_spm_fini frees what is there. */
gy_status gy_spm_load(gy_spm *m, const void *data, size_t len, const char *name, gy_err *err);
void gy_spm_fini(gy_spm *m);
const char *gy_spm_piece(const gy_spm *m, int32_t id, size_t *len_out); /* NULL if absent */
int32_t gy_spm_id(const gy_spm *m, const char *piece, size_t len);      /* -1 if absent; control pieces first */

/* ---- scratch ---- */

typedef struct gy_spm_symbol {
    uint32_t off, len;  /* a span of the normalised text; len 0: merged into its left neighbour */
    int32_t prev, next; /* -1 at the ends */
    uint8_t frozen;     /* user-defined: never merged */
} gy_spm_symbol;

typedef struct gy_spm_pair {
    uint64_t key; /* score, then leftmost first: the larger the earlier */
    uint32_t right, len;
} gy_spm_pair;

typedef struct gy_spm_best {
    int32_t id;
    float score;
    int32_t start; /* -1: nothing ends here yet */
} gy_spm_best;

typedef struct gy_spm_split {
    uint32_t epoch, left_len;
} gy_spm_split;

/* A piece of the result: a span of the normalised text and its id, in order. */
typedef struct gy_spm_span {
    uint32_t off, len;
    int32_t id;
} gy_spm_span;

typedef struct gy_spm_scratch {
    gy_str norm;
    GY_VEC(gy_spm_symbol) symbol;
    GY_VEC(gy_spm_pair) heap;
    GY_VEC(gy_spm_best) best;
    GY_VEC(gy_spm_span) span;
    gy_spm_split *split; /* [n_piece] if the model has unused pieces: where the last merge to it cut; NULL else */
    uint32_t epoch;
    int64_t steps;
} gy_spm_scratch;

/* Bytes of the character at s by its first byte alone, at most len. The text is valid UTF-8 unless the model's own
 * replacements are not, and then this keeps every step inside it. */
size_t gy_spm_char_len(const char *s, size_t len);
/* The longest user-defined piece at s, 0 if none. */
size_t gy_spm_user_match(const gy_spm *m, const char *s, size_t len, int64_t *steps);

/* Each replaces s->norm or s->span; GY_E_NOMEM, GY_E_LIMIT. text: valid UTF-8. */
gy_status gy_spm_normalize(const gy_spm *m, gy_spm_scratch *s, const char *text, size_t len, gy_err *err);
gy_status gy_spm_encode_bpe(const gy_spm *m, gy_spm_scratch *s, gy_err *err);
gy_status gy_spm_encode_unigram(const gy_spm *m, gy_spm_scratch *s, gy_err *err);

#endif
