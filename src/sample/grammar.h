/* Constrained decoding: which tokens may come next, by a grammar over bytes.
 *
 * A grammar is compiled once (any thread, bounded time and memory), then only read (any thread). Where a text stands in
 * it is a gy_grammar_state: plain data of fixed size, copied by assignment, request lifetime. The runner holds scratch,
 * the vocabulary and the cache of masks: one thread; after its creation nothing here allocates. What is allowed is a
 * language of bytes: a token may end in the middle of a UTF-8 character, complete texts are valid UTF-8.
 *
 * Four languages; what is not in them is refused by name, never taken for something else:
 *
 * Regular expressions (the whole text matches; linear time, no backtracking anywhere): characters, . (not \n), classes
 *   with ranges and ^, \d \w \s \D \W \S (ASCII), \n \r \t \f \v \a \e \0 \xHH \x{H} \uHHHH \u{H} and pairs of
 * surrogates, groups of all capturing kinds and (?:), alternatives, * + ? {m} {m,} {m,n}, lazy forms (the same whole
 * texts), ^ and $ at the ends. Refused: references, lookaround, atomic groups, possessive quantifiers, \b, \p, flags,
 * POSIX classes. EBNF in the manner of GBNF: head of grammar_ebnf.c. The same classes and escapes; . is any character;
 * a rule that begins with itself is refused. JSON schemas: type (and lists), enum, const, properties, required,
 * additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format (date, time,
 * date-time, uuid, ipv4, hostname, email, uri), minimum, maximum and the exclusive ones (whole numbers), anyOf, oneOf
 * (as anyOf), allOf and $ref with siblings (merged), $ref into the document, recursion, nullable. Other keywords that
 * say something about values are refused; annotations and unknown words are skipped. What is generated satisfies the
 * schema, but for two members of one undeclared name; of what satisfies it, this is generated: one space or none after
 * ':' and ',', no other whitespace; members in the order of `properties`, undeclared ones behind them; without
 * additionalProperties undeclared members only if nothing is declared or required; without `items` no elements behind
 * prefixItems unless minItems wants them; names, enums, constants, patterns and formats with characters as they are and
 * the shortest escapes, any other string with any escape; numbers with bounds without exponents; without `type` the
 * types that the other keywords speak of. JSON object: any object, in that layout.
 *
 * No dead ends: whatever was accepted can be completed within the stack limit, byte by byte. That a vocabulary has no
 * token for the next byte, or that a grammar is ambiguous beyond the limits below, is reported as an error of that
 * request. A mask is a pure function of grammar, state and vocabulary; caches change its cost only.
 */
#ifndef GY_SAMPLE_GRAMMAR_H
#define GY_SAMPLE_GRAMMAR_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum gy_grammar_kind {
    GY_GRAMMAR_REGEX,
    GY_GRAMMAR_JSON_SCHEMA,
    GY_GRAMMAR_JSON_OBJECT, /* no source text */
    GY_GRAMMAR_EBNF
} gy_grammar_kind;

enum {
    GY_GRAMMAR_MAX_SOURCE = 256 * 1024, /* bytes */
    GY_GRAMMAR_MAX_NEST = 200,          /* groups in groups, of a regex or EBNF; a schema: 64 levels of JSON */
    GY_GRAMMAR_MAX_REPEAT = 1 << 20,    /* m and n of {m,n}; minLength, minItems */
    GY_GRAMMAR_MAX_STATES = 65000,      /* of the automata together */
    GY_GRAMMAR_MAX_RULES = 4096,
    GY_GRAMMAR_MAX_BYTES = 32 << 20, /* compiled */
    GY_GRAMMAR_MAX_STACK = 128,      /* calls of rules in calls of rules: levels of nested JSON, about */
    GY_GRAMMAR_MAX_TOKEN = 1024      /* bytes; a longer token is never allowed */
};

typedef struct gy_grammar gy_grammar;

/* GY_E_ARG: not a sentence of its language; GY_E_UNSUPPORTED: refused by name; GY_E_LIMIT; GY_E_NOMEM. The message
 * names place, found and expected. The text need not be NUL-terminated and is not kept. One reference is the caller's.
 */
gy_status gy_grammar_compile(gy_grammar_kind kind, const char *text, size_t len, gy_err *err, gy_grammar **out);
gy_grammar *gy_grammar_get(gy_grammar *g); /* one more reference; any thread; returns g */
void gy_grammar_put(gy_grammar *g);        /* accepts NULL */
size_t gy_grammar_bytes(const gy_grammar *g);
/* What it was compiled from: for another process, which compiles it again. Lives as long as g. */
const char *gy_grammar_source(const gy_grammar *g, gy_grammar_kind *kind_out, size_t *len_out);
int gy_grammar_n_state(const gy_grammar *g);

/* ---- compiled grammars by source text ---- */

/* Least recently used ones go when together they hold more than cap_bytes (sources included); one that is larger than
 * the cap alone is not kept. Any thread; two threads that ask for the same new text may both compile it. */
typedef struct gy_grammar_cache gy_grammar_cache;
gy_status gy_grammar_cache_create(size_t cap_bytes, gy_grammar_cache **out);
void gy_grammar_cache_destroy(gy_grammar_cache *c); /* accepts NULL; grammars live on with whoever holds them */
/* As gy_grammar_compile: the caller's reference goes back with gy_grammar_put. Failures are not kept. */
gy_status gy_grammar_cache_compile(gy_grammar_cache *c, gy_grammar_kind kind, const char *text, size_t len, gy_err *err,
                                   gy_grammar **out);
typedef struct gy_grammar_cache_stats {
    size_t bytes, n;
    uint64_t n_hit, n_miss, n_evict;
} gy_grammar_cache_stats;
void gy_grammar_cache_get_stats(gy_grammar_cache *c, gy_grammar_cache_stats *out);

/* ---- the vocabulary ---- */

enum {
    GY_GRAMMAR_SPECIAL = 1u << 0,  /* never allowed (markup, padding; eos is given apart) */
    GY_GRAMMAR_NOT_FIRST = 1u << 1 /* reads otherwise where a text begins: some decoders take a blank away there */
};
typedef struct gy_grammar_token {
    const char *s; /* [len] the bytes that the token stands for; copied */
    size_t len;    /* 0: never allowed */
    unsigned flags;
} gy_grammar_token;

/* Immutable, any thread, engine lifetime. eos [n_eos]: what may end a text, allowed when it is complete and only then
 * (whatever bytes they have). GY_E_ARG for an eos id that is no token. */
typedef struct gy_grammar_vocab gy_grammar_vocab;
gy_status gy_grammar_vocab_create(const gy_grammar_token *tokens, int32_t n_vocab, const int32_t *eos, int32_t n_eos,
                                  gy_err *err, gy_grammar_vocab **out);
void gy_grammar_vocab_destroy(gy_grammar_vocab *v); /* accepts NULL */
int32_t gy_grammar_vocab_n(const gy_grammar_vocab *v);
/* The bytes of any of its tokens, special ones and eos too. Borrowed. */
const char *gy_grammar_vocab_token(const gy_grammar_vocab *v, int32_t id, size_t *len_out);
int gy_grammar_vocab_is_eos(const gy_grammar_vocab *v, int32_t id);
/* Takes out of a mask what may not begin a text; what may end one. */
void gy_grammar_vocab_drop_not_first(const gy_grammar_vocab *v, uint32_t *mask);
void gy_grammar_vocab_drop_eos(const gy_grammar_vocab *v, uint32_t *mask);
int gy_grammar_vocab_n_byte(const gy_grammar_vocab *v); /* bytes that are a token by themselves; 256: never stuck */
size_t gy_grammar_vocab_bytes(const gy_grammar_vocab *v);

/* ---- where a text stands ---- */

enum { GY_GRAMMAR_CONFIGS = 128, GY_GRAMMAR_NODES = 256, GY_GRAMMAR_EDGES = 512 };

/* A set of (automaton state, stack); the stacks share their ends: node 0 is the bottom, every other node has edges
 * (return to where, repetitions done, node below). Copy by assignment; the fields belong to grammar_run.c. */
typedef struct gy_grammar_state {
    uint16_t n_config, n_node, n_edge;
    uint8_t complete;
    struct {
        uint16_t q, node;
    } config[GY_GRAMMAR_CONFIGS];
    struct {
        uint16_t edge, depth, level; /* first edge (they run to the next node's); calls below; distance from a config */
    } node[GY_GRAMMAR_NODES];
    struct {
        uint32_t call, count;
        uint16_t node;
    } edge[GY_GRAMMAR_EDGES];
} gy_grammar_state;

typedef struct gy_grammar_runner gy_grammar_runner;

/* vocab is borrowed and may be NULL: then only accept works. cache_bytes 0: no cache of masks. */
gy_status gy_grammar_runner_create(const gy_grammar_vocab *vocab, size_t cache_bytes, gy_grammar_runner **out);
void gy_grammar_runner_destroy(gy_grammar_runner *r); /* accepts NULL */

void gy_grammar_start(const gy_grammar *g, gy_grammar_state *out);
/* Bytes of a token (eos is not given here). GY_E_ARG: they cannot come next (byte and offset are named); GY_E_LIMIT:
 * the grammar is more ambiguous here than the state holds. On failure the state is what it was. */
gy_status gy_grammar_accept(gy_grammar_runner *r, const gy_grammar *g, gy_grammar_state *s, const char *bytes,
                            size_t len, gy_err *err);
int gy_grammar_is_complete(const gy_grammar_state *s); /* the text may end here: eos is allowed */
/* 1: nothing but eos can come (GY_DONE of a mask without calling it). */
int gy_grammar_is_final(const gy_grammar_state *s);

/* mask [(n_vocab + 31) / 32]: bit (id % 32) of word id / 32 is set when that token may come next. Bits past n_vocab
 * are 0. GY_E_LIMIT (mask all 0): the text is not complete and no token can go on, with the reason. */
gy_status gy_grammar_mask(gy_grammar_runner *r, const gy_grammar *g, const gy_grammar_state *s, uint32_t *mask,
                          gy_err *err);

/* ---- grammars that hold only behind a certain text ---- */

/* What is written before the first appearance of `s` is free; the grammar begins behind it, in the middle of a token if
 * need be: a token that would go on behind it with bytes which the grammar refuses is not allowed. Lives in caller's
 * memory of gy_grammar_after_bytes (request lifetime); v and s [len] are borrowed. 1 <= len <= GY_GRAMMAR_MAX_AFTER.
 * init looks at every token once (0.7 ms for 150,000). */
enum { GY_GRAMMAR_MAX_AFTER = 1024 };
typedef struct gy_grammar_after gy_grammar_after;
size_t gy_grammar_after_bytes(size_t len);
gy_grammar_after *gy_grammar_after_init(void *mem, const gy_grammar_vocab *v, const char *s, size_t len);
/* Goes on by the bytes of a token. matched: bytes of s that the text ends with, 0 at first. Returns how many of the
 * token's bytes stand behind the appearance, -1: it has not come yet. */
int64_t gy_grammar_after_push(const gy_grammar_after *a, const char *bytes, size_t len, int32_t *matched_io);
/* 0: every token is allowed; 1: those in mask are. */
int gy_grammar_after_mask(gy_grammar_runner *r, const gy_grammar *g, const gy_grammar_after *a, int32_t matched,
                          uint32_t *mask);

typedef struct gy_grammar_mask_stats {
    uint64_t n_hit, n_miss;
} gy_grammar_mask_stats;
void gy_grammar_runner_get_stats(const gy_grammar_runner *r, gy_grammar_mask_stats *out);

#endif
