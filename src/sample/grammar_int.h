/* What the files of the grammar share: the tree that the four languages are translated to, the compiler's workspace,
 * and the compiled form.
 *
 *     text --(regex, ebnf, schema)--> rules, each a tree --(nfa)--> NFA of bytes and calls --(dfa)--> one DFA a rule,
 *     analysed and trimmed --(pack)--> gy_grammar
 *
 * The builder's errors stick: after the first one every call is harmless, returns node 0, and the status is looked at
 * where a loop could run long and at the end. Trees have a bounded depth, so walking them may recurse.
 */
#ifndef GY_SAMPLE_GRAMMAR_INT_H
#define GY_SAMPLE_GRAMMAR_INT_H

#include "base/str.h"
#include "base/vec.h"
#include "sample/grammar.h"

#include <stdatomic.h>

#define GY_G_INF UINT32_MAX

enum { GY_G_MAX_DEPTH = 1200, GY_G_MAX_NODES = 1 << 20, GY_G_MAX_NFA = 1 << 19, GY_G_MAX_WORK = 1 << 26 };

/* ---- trees (grammar_tree.c) ---- */

typedef struct gy_grange {
    uint32_t lo, hi; /* code points, both included */
} gy_grange;
typedef GY_VEC(gy_grange) gy_gset;

typedef enum gy_gkind {
    GY_G_EMPTY,   /* the empty text; node 0 is one */
    GY_G_FAIL,    /* no text at all */
    GY_G_BYTES,   /* bytes [a, a + b) of the pool */
    GY_G_SET,     /* one code point of ranges [a, a + b) of the pool, as UTF-8; flag: as a JSON string holds it */
    GY_G_CAT,     /* children one after the other */
    GY_G_ALT,     /* one of the children */
    GY_G_REP,     /* the child a to b times; b may be GY_G_INF */
    GY_G_CALL,    /* rule a */
    GY_G_SAME,    /* what node a is */
    GY_G_MEMBERS, /* children in order with separators between those that are there; flags: gy_gmember */
    GY_G_LIST     /* the child, once or more, with separators between */
} gy_gkind;
typedef enum gy_gmember { GY_G_OPTIONAL, GY_G_REQUIRED, GY_G_ANY_TIMES /* the last child only */ } gy_gmember;

typedef struct gy_gnode {
    uint8_t kind, flag;
    uint16_t depth; /* levels below; checked against GY_G_MAX_DEPTH */
    int32_t first, last, next;
    uint32_t a, b;
} gy_gnode;

typedef struct gy_grule {
    int32_t root;     /* -1: not defined (yet) */
    uint32_t name;    /* offset of its NUL-terminated name in `names` */
    const void *key;  /* a schema's: the value that it was made from */
    uint8_t nullable; /* its text may be empty; calls are then skippable and its automaton never takes the empty text */
} gy_grule;

typedef struct gy_gsym { /* a call as it is seen by automata: a rule, min to max times in a row */
    uint32_t rule, min, max;
} gy_gsym;
typedef struct gy_gtr {
    uint8_t lo, hi;
    uint32_t to;
} gy_gtr;
typedef struct gy_gdcall {
    uint32_t sym, to;
} gy_gdcall;
typedef struct gy_gdstate {
    uint32_t tr, n_tr, call, n_call; /* into trs and dcalls */
    uint32_t need;                   /* stack levels that the cheapest way to this rule's end takes; GY_G_INF: none */
    uint8_t accept;
} gy_gdstate;

typedef struct gy_gbuild {
    gy_err *err;
    gy_status st;   /* sticks */
    uint64_t work;  /* steps of anything that could run long */
    gy_str pool;    /* bytes of GY_G_BYTES */
    gy_str names;   /* of rules */
    gy_gset ranges; /* of GY_G_SET */
    GY_VEC(gy_gnode) nodes;
    GY_VEC(gy_grule) rules; /* 0 is the root */
    /* automata of the rules so far */
    GY_VEC(gy_gsym) syms;
    GY_VEC(gy_gtr) trs;
    GY_VEC(gy_gdcall) dcalls;
    GY_VEC(gy_gdstate) states;
    gy_vec_i32 starts; /* [rule] its first state; its states run to the next one's */
} gy_gbuild;

void gy_gb_init(gy_gbuild *b, gy_err *err);
void gy_gb_fini(gy_gbuild *b);
void gy_gb_fail(gy_gbuild *b, gy_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void gy_gb_nomem(gy_gbuild *b);
int gy_gb_work(gy_gbuild *b, uint64_t steps); /* 0 when the budget is spent or something failed before */

int32_t gy_gb_node(gy_gbuild *b, gy_gkind kind);
void gy_gb_add(gy_gbuild *b, int32_t parent, int32_t child); /* child has no other parent */
int32_t gy_gb_cat(gy_gbuild *b, int32_t x, int32_t y);
int32_t gy_gb_alt(gy_gbuild *b, int32_t x, int32_t y);
int32_t gy_gb_bytes(gy_gbuild *b, const char *s, size_t len);
int32_t gy_gb_z(gy_gbuild *b, const char *z);
int32_t gy_gb_set(gy_gbuild *b, const gy_gset *set, int json);
int32_t gy_gb_range(gy_gbuild *b, uint32_t lo, uint32_t hi); /* a set of one range */
int32_t gy_gb_chars(gy_gbuild *b, const char *ascii);        /* a set of single characters, ascending */
int32_t gy_gb_rep(gy_gbuild *b, int32_t child, uint32_t min, uint32_t max);
int32_t gy_gb_call(gy_gbuild *b, uint32_t rule);
int32_t gy_gb_same(gy_gbuild *b, int32_t node);
int32_t gy_gb_rule(gy_gbuild *b, const char *name, size_t len); /* a new one without root; never 0 but for the first */
const char *gy_gb_rule_name(const gy_gbuild *b, uint32_t rule);

void gy_gset_add(gy_gbuild *b, gy_gset *s, uint32_t lo, uint32_t hi);
void gy_gset_tidy(gy_gset *s); /* sorted, merged, without surrogates */
void gy_gset_negate(gy_gbuild *b, gy_gset *s);

/* ---- languages: each defines rule 0 and what it needs ---- */

void gy_g_regex(gy_gbuild *b, const char *text, size_t len);  /* grammar_regex.c: the whole text matches */
void gy_g_ebnf(gy_gbuild *b, const char *text, size_t len);   /* grammar_ebnf.c */
void gy_g_schema(gy_gbuild *b, const char *text, size_t len); /* grammar_schema.c */
void gy_g_object(gy_gbuild *b);                               /* grammar_json.c */

/* grammar_regex.c. As the schema keyword `pattern`: found anywhere unless anchored, inside a JSON string. */
int32_t gy_g_pattern(gy_gbuild *b, const char *text, size_t len, int search, int json);

/* grammar_chars.c: what regex and EBNF share. p->at moves over what was read. */
typedef struct gy_gtext {
    gy_gbuild *b;
    const char *what; /* "regex", "grammar": begins error messages */
    const char *s;
    size_t len, at;
    int depth; /* groups that are open */
} gy_gtext;
int gy_gt_peek(const gy_gtext *t); /* the byte at `at`, -1 at the end */
int gy_gt_is(const gy_gtext *t, const char *z);
void gy_gt_fail(gy_gtext *t, gy_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
uint32_t gy_gt_codepoint(gy_gtext *t);            /* of UTF-8 text */
uint32_t gy_gt_escape(gy_gtext *t, gy_gset *set); /* behind '\': a code point, or GY_G_INF and a class in set */
int32_t gy_gt_class(gy_gtext *t, int json);       /* behind '[' */
int gy_gt_quantifier(gy_gtext *t, uint32_t *min, uint32_t *max); /* 1 when one was read */

/* A stack of open groups, so that parsing does not recurse: alternatives of sequences of items. */
typedef struct gy_ggroup {
    int32_t alt, cat, item; /* item: the last one, which a quantifier may still wrap; -1: none */
} gy_ggroup;
typedef struct gy_ggroups {
    gy_ggroup g[GY_GRAMMAR_MAX_NEST + 1];
    int n;
} gy_ggroups;
int gy_gg_open(gy_gtext *t, gy_ggroups *s);
void gy_gg_item(gy_gtext *t, gy_ggroups *s, int32_t node);
void gy_gg_repeat(gy_gtext *t, gy_ggroups *s, uint32_t min, uint32_t max);
void gy_gg_bar(gy_gtext *t, gy_ggroups *s);
int32_t gy_gg_close(gy_gtext *t, gy_ggroups *s); /* the group as one node */

/* grammar_json.c: the parts of JSON text. */
typedef struct gy_gjson {
    gy_gbuild *b;
    int32_t value, string, chr; /* rules of any value and any string, node of one character; -1: not made yet */
} gy_gjson;
void gy_gj_init(gy_gjson *j, gy_gbuild *b);
int32_t gy_gj_value(gy_gjson *j);  /* any value */
int32_t gy_gj_string(gy_gjson *j); /* any string */
int32_t gy_gj_string_len(gy_gjson *j, uint32_t min, uint32_t max);
int32_t gy_gj_object(gy_gjson *j, int32_t key, int32_t value); /* any members */
int32_t gy_gj_member(gy_gjson *j, int32_t key, int32_t value);
int32_t gy_gj_literal(gy_gjson *j, const char *s, size_t len); /* this string, quoted */
int32_t gy_gj_number(gy_gjson *j);
int32_t gy_gj_integer(gy_gjson *j);

typedef struct gy_gbound {
    int on, open; /* open: the bound itself is not allowed */
    int64_t v;
} gy_gbound;
int32_t gy_gj_integer_in(gy_gjson *j, gy_gbound lo, gy_gbound hi); /* closed bounds */
int32_t gy_gj_number_in(gy_gjson *j, gy_gbound lo, gy_gbound hi);

/* ---- trees to automata (grammar_nfa.c, grammar_dfa.c) ---- */

typedef struct gy_gedge {
    int32_t next, to;
    uint32_t sym; /* of a call */
    uint8_t kind; /* gy_gedge_kind */
    uint8_t lo, hi;
} gy_gedge;
typedef enum gy_gedge_kind { GY_G_EPS, GY_G_RANGE, GY_G_SYM } gy_gedge_kind;

typedef struct gy_gnfa {
    gy_gbuild *b;
    gy_vec_i32 heads; /* [state] first edge, -1: none. 0 is the start, 1 the end */
    GY_VEC(gy_gedge) edges;
} gy_gnfa;

void gy_gnfa_make(gy_gnfa *n, int32_t root); /* replaces what n held; may add rules for long repetitions */
void gy_gnfa_free(gy_gnfa *n);
void gy_gnfa_nullables(gy_gbuild *b); /* marks the rules whose text may be empty */

void gy_gdfa_make(gy_gbuild *b);    /* automata of all rules */
void gy_gdfa_analyse(gy_gbuild *b); /* left recursion refused, need filled in, an empty language refused */

/* ---- the compiled form (grammar_pack.c) ---- */

enum { GY_G_DEAD = 0xFFFF };
enum {
    GY_G_ACCEPT = 1u << 0, /* this rule's text may end here */
    GY_G_CALLS = 1u << 1,
    GY_G_MOVES = 1u << 2 /* some byte leads on */
};

typedef struct gy_gcall {
    uint32_t min, max;
    uint16_t rule, ret;
    uint16_t tail; /* 1: nothing is left to do behind it, so nothing is pushed */
    uint16_t ret_need;
} gy_gcall;

struct gy_grammar {
    atomic_int n_ref;
    uint64_t born_ns; /* with the address: its name in the cache of masks */
    size_t bytes;
    int n_state, n_rule, n_class;
    uint16_t max_need;
    uint8_t nullable; /* the empty text is one of its texts */
    uint8_t cls[256];
    uint32_t *row;     /* [n_state] offset in next */
    uint32_t *call_at; /* [n_state + 1] into calls */
    gy_gcall *calls;
    uint16_t *need;          /* [n_state] */
    uint16_t *groups;        /* [n_state] gy_g_group bits whose bytes all lead back to the state itself */
    uint16_t *start;         /* [n_rule] */
    uint16_t *next;          /* [n_row, n_class] GY_G_DEAD: no way on */
    uint8_t *flags;          /* [n_state] */
    gy_grammar_state *begin; /* where every text begins */
    char *source;            /* [n_source] of `kind`; memory of its own */
    size_t n_source;
    gy_grammar_kind kind;
};

gy_status gy_g_pack(gy_gbuild *b, gy_grammar **out);
/* 16 kinds of bytes: a subtree of the vocabulary that holds only bytes on which a state loops is allowed as a whole. */
unsigned gy_g_group(uint8_t byte); /* one bit */

/* ---- running (grammar_run.c, grammar_vocab.c, grammar_mask.c) ---- */

/* Vocabulary as a trie in preorder: node i's subtree is [i, skip[i]), its tokens are ids[first[i]..first[skip[i]]),
 * those that end at i are ids[first[i]..first[i + 1]). */
struct gy_grammar_vocab {
    int32_t n_vocab, n_node, n_id, n_eos;
    int n_byte, max_len;
    size_t bytes;
    int32_t *eos;       /* [n_eos] */
    size_t *at;         /* [n_vocab + 1] into text */
    char *text;         /* bytes of all tokens */
    uint32_t *first_ok; /* [(n_vocab + 31) / 32] may begin a text */
    int32_t *ids;       /* [n_id] allowed tokens in the order of their bytes */
    int32_t *first;     /* [n_node + 1] */
    int32_t *skip;      /* [n_node] */
    uint16_t *groups;   /* [n_node] bits of all bytes below it, its own not included */
    uint16_t *depth;    /* [n_node] 0: a first byte */
    uint8_t *byte;      /* [n_node] */
};

typedef struct gy_gconf {
    uint16_t q;
    uint16_t pad;
    int32_t node;
} gy_gconf;
typedef struct gy_gsnode {
    int32_t edge;         /* -1: none */
    uint16_t depth, grow; /* grow: pushes since the state that the walk began with */
    uint16_t level;       /* of nodes of that state */
    uint16_t rule;
} gy_gsnode;
typedef struct gy_gsedge {
    uint32_t call, count;
    int32_t node, next;
} gy_gsedge;
typedef struct gy_gframe { /* a set of configurations, and how much scratch is in use with it */
    int32_t conf, n_conf, n_node, n_edge;
    int complete;
} gy_gframe;

enum { GY_G_SCRATCH_CONFS = 1 << 16, GY_G_SCRATCH_NODES = 1 << 15, GY_G_SCRATCH_EDGES = 1 << 16 };

typedef struct gy_gscratch { /* one block */
    gy_gconf *confs;
    gy_gsnode *nodes;
    gy_gsedge *edges;
    uint16_t *number; /* [node] of gy_gw_store: its number in the state, 0 while it has none */
    int32_t n_node, n_edge;
    int32_t n_base; /* nodes below this one are the state's */
    int overflow;   /* some step needed more than there is */
    int deepest;    /* level of the deepest node of the state whose edges were read; -1: none */
    int grown;      /* the most pushes on top of the state */
} gy_gscratch;

gy_gscratch *gy_gw_create(void); /* NULL on no memory; gy_mem_free */
/* The set in which every text begins, for gy_grammar_start; 0: it does not fit. */
int gy_gw_begin(gy_gscratch *w, const gy_grammar *g, gy_grammar_state *out);
void gy_gw_load(gy_gscratch *w, const gy_grammar_state *s, gy_gframe *out);
/* The set behind one more byte; 0 when it is empty. in's scratch stays. */
int gy_gw_step(gy_gscratch *w, const gy_grammar *g, const gy_gframe *in, uint8_t byte, gy_gframe *out);
/* Renumbers what is reachable into s. 0: it does not fit. */
int gy_gw_store(gy_gscratch *w, const gy_gframe *f, gy_grammar_state *s);

typedef struct gy_gmasks gy_gmasks;                            /* the cache (grammar_masks.c) */
gy_gmasks *gy_gmasks_create(size_t cap_bytes, int32_t n_word); /* NULL on no memory */
void gy_gmasks_destroy(gy_gmasks *c);
const uint32_t *gy_gmasks_find(gy_gmasks *c, const gy_grammar *g, const gy_grammar_state *s, int max_len);
/* deepest, grown: what the walk that made the mask has seen (gy_gscratch). */
void gy_gmasks_keep(gy_gmasks *c, const gy_grammar *g, const gy_grammar_state *s, int max_len, int deepest, int grown,
                    const uint32_t *mask);

struct gy_grammar_runner {
    const gy_grammar_vocab *vocab;
    gy_gmasks *masks; /* NULL: no cache */
    gy_gscratch *w;
    gy_gframe frames[GY_GRAMMAR_MAX_TOKEN + 2];
    gy_grammar_state next;                      /* accept builds here */
    uint16_t matched[GY_GRAMMAR_MAX_TOKEN + 1]; /* of what a grammar stands behind, by depth */
    gy_grammar_mask_stats stats;
};

#endif
