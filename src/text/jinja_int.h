/* Inside src/text only: the parts of the template language and what they share.
 *   jinja_lex.c    text -> tokens, white space rules          jinja_parse.c  tokens -> statements
 *   jinja_expr.c   tokens -> expressions                      jinja_eval.c   statements and expressions at work
 *   jinja_value.c  values, the memory of a rendering          jinja_print.c  str(), repr(), JSON
 *   jinja_text.c   functions of strings                       jinja_filter.c, jinja_method.c  what templates can call
 *
 * A compiled template lives in one arena, a rendering in another, which is freed whole. Functions that can fail return
 * 0 or -1; the one that fails has filled the run's (parser's) gy_err.
 */
#ifndef GY_TEXT_JINJA_INT_H
#define GY_TEXT_JINJA_INT_H

#include "base/arena.h"
#include "text/jinja.h"

/* ---- values ---- */

/* Where a byte came from. GY_JJ_FINAL marks the content of a message that is to be continued: chat.c cuts behind it. */
enum { GY_JJ_MARKUP = 0, GY_JJ_DATA = 1u << 0, GY_JJ_FINAL = 1u << 1 };

typedef enum gy_jj_type {
    GY_JJ_MISSING, /* an argument that was not given; never a value of a template */
    GY_JJ_UNDEF,
    GY_JJ_NONE,
    GY_JJ_BOOL,
    GY_JJ_INT,
    GY_JJ_REAL,
    GY_JJ_STR,
    GY_JJ_LIST,
    GY_JJ_TUPLE,
    GY_JJ_DICT,
    GY_JJ_SPACE, /* namespace(): the one value that changes */
    GY_JJ_LOOP,
    GY_JJ_MACRO,
    GY_JJ_FUNC,  /* a global function */
    GY_JJ_METHOD /* a function with its object */
} gy_jj_type;

/* UTF-8. marks: one origin a byte, NULL when all bytes have the value's origin. Never changes once made, so parts of a
 * string share its bytes. */
typedef struct gy_jj_text {
    const char *s;
    const uint8_t *marks;
    size_t len;
} gy_jj_text;

typedef struct gy_jj_list gy_jj_list;
typedef struct gy_jj_dict gy_jj_dict;
typedef struct gy_jj_loop gy_jj_loop;
typedef struct gy_jj_macro gy_jj_macro;
typedef struct gy_jj_method gy_jj_method;

typedef struct gy_jj_val {
    uint8_t type;   /* gy_jj_type */
    uint8_t origin; /* of what it prints as; for strings with marks: unused */
    union {
        int64_t i; /* BOOL, INT, FUNC (which) */
        double r;
        const gy_jj_text *str;
        gy_jj_list *list; /* LIST, TUPLE */
        gy_jj_dict *dict; /* DICT, SPACE */
        gy_jj_loop *loop;
        gy_jj_macro *macro;
        gy_jj_method *method;
        const char *what; /* UNDEF: how to speak of it in a message */
    } u;
} gy_jj_val;

struct gy_jj_list {
    gy_jj_val *v;
    size_t n;
};
typedef struct gy_jj_entry {
    gy_jj_val key, val;
} gy_jj_entry;
struct gy_jj_dict { /* in order of insertion */
    gy_jj_entry *e;
    size_t n, cap;
};
struct gy_jj_method {
    gy_jj_val self;
    int which;
};

/* ---- the tree ---- */

typedef enum gy_jj_kind {
    /* statements */
    GY_JJ_N_TEXT,     /* lit */
    GY_JJ_N_PRINT,    /* a */
    GY_JJ_N_IF,       /* a: list of N_BRANCH */
    GY_JJ_N_BRANCH,   /* a: condition or NULL for else, b: body */
    GY_JJ_N_FOR,      /* a: target, b: what is walked, c: body, d: else, e: filter */
    GY_JJ_N_SET,      /* a: target, b: value */
    GY_JJ_N_CAPTURE,  /* {% set x %}: a: target, b: body, c: filters or NULL */
    GY_JJ_N_MACRO,    /* name, a: parameters (N_ARG), b: body, flags */
    GY_JJ_N_CALLBODY, /* a: call, b: the N_MACRO that caller() runs */
    GY_JJ_N_FILTERED, /* a: filters, b: body */
    GY_JJ_N_WITH,     /* a: list of N_SET, b: body */
    GY_JJ_N_SCOPE,    /* generation: a: body */
    GY_JJ_N_BREAK,
    GY_JJ_N_CONTINUE,
    /* expressions */
    GY_JJ_N_LIT,     /* lit */
    GY_JJ_N_NAME,    /* name */
    GY_JJ_N_LIST,    /* a: items */
    GY_JJ_N_TUPLE,   /* a: items */
    GY_JJ_N_DICT,    /* a: key, value, key, value, ... */
    GY_JJ_N_COND,    /* a: condition, b: then, c: else or NULL */
    GY_JJ_N_AND,     /* a, b */
    GY_JJ_N_OR,      /* a, b */
    GY_JJ_N_NOT,     /* a */
    GY_JJ_N_CMP,     /* a: first, b: list of N_OPERAND */
    GY_JJ_N_OPERAND, /* op, a */
    GY_JJ_N_BINARY,  /* op, a, b */
    GY_JJ_N_CONCAT,  /* a: items */
    GY_JJ_N_NEG,     /* a */
    GY_JJ_N_POS,     /* a */
    GY_JJ_N_ATTR,    /* a, lit: the name. As a target: name of the namespace, lit */
    GY_JJ_N_ITEM,    /* a, b */
    GY_JJ_N_SLICE,   /* a, b, c, d: each of the last three may be NULL */
    GY_JJ_N_CALL,    /* a, b: list of N_ARG */
    GY_JJ_N_ARG,     /* a; lit: its name, or MISSING if it has none */
    GY_JJ_N_FILTER,  /* a (NULL: the captured text), which, b: list of N_ARG */
    GY_JJ_N_TEST     /* a, which, b: list of N_ARG, flags: negated */
} gy_jj_kind;

enum { GY_JJ_USES_CALLER = 1, GY_JJ_USES_VARARGS = 2, GY_JJ_USES_KWARGS = 4, GY_JJ_NEGATED = 8 };

typedef enum gy_jj_op {
    GY_JJ_OP_ADD,
    GY_JJ_OP_SUB,
    GY_JJ_OP_MUL,
    GY_JJ_OP_DIV,
    GY_JJ_OP_FLOORDIV,
    GY_JJ_OP_MOD,
    GY_JJ_OP_POW,
    GY_JJ_OP_EQ,
    GY_JJ_OP_NE,
    GY_JJ_OP_LT,
    GY_JJ_OP_LE,
    GY_JJ_OP_GT,
    GY_JJ_OP_GE,
    GY_JJ_OP_IN,
    GY_JJ_OP_NOTIN
} gy_jj_op;

typedef struct gy_jj_node gy_jj_node;
struct gy_jj_node {
    uint8_t kind, op, flags;
    int line;
    int name;  /* index into the template's names, -1 = none */
    int which; /* filter or test */
    gy_jj_node *a, *b, *c, *d, *e;
    gy_jj_node *next; /* in a list */
    gy_jj_val lit;
};

struct gy_jinja {
    gy_arena *arena;
    char *name, *source; /* source: as given, for gy_jinja_source */
    size_t source_len;
    gy_jinja_limits lim;        /* no zeros */
    GY_VEC(const char *) names; /* NUL-terminated, in the arena */
    gy_jj_node *body;
};

/* ---- jinja_lex.c ---- */

typedef enum gy_jj_tok {
    GY_JJ_T_TEXT,
    GY_JJ_T_PRINT_BEGIN, /* {{ */
    GY_JJ_T_PRINT_END,
    GY_JJ_T_TAG_BEGIN, /* {% */
    GY_JJ_T_TAG_END,
    GY_JJ_T_NAME,
    GY_JJ_T_STRING, /* text: unescaped */
    GY_JJ_T_NUMBER, /* text: spelling without underscores */
    GY_JJ_T_OP,     /* text: the operator */
    GY_JJ_T_END
} gy_jj_tok;

typedef struct gy_jj_token {
    uint8_t type;
    int line;
    const char *s; /* NUL-terminated except T_TEXT; in the arena */
    size_t len;
} gy_jj_token;

typedef struct gy_jj_parser {
    gy_jinja *t;
    gy_err *err;
    GY_VEC(gy_jj_token) tok;
    size_t at;
    int depth, loops; /* nesting; how many for bodies are open in this macro */
    uint8_t *uses;    /* the flags of the macro that is being read, or NULL */
} gy_jj_parser;

/* "name: line N: " and the sentence. Returns -1. */
int gy_jj_parse_fail(gy_jj_parser *p, gy_status st, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int gy_jj_lex(gy_jj_parser *p, const char *text, size_t len); /* fills tok; its last is T_END */

/* ---- jinja_expr.c ---- */

enum { GY_JJ_PARSE_DEPTH = 60 };
gy_jj_node *gy_jj_node_new(gy_jj_parser *p, gy_jj_kind kind); /* at the current line; NULL: no memory, reported */
int gy_jj_name_index(gy_jj_parser *p, const char *name);      /* -1: no memory, reported */
const gy_jj_token *gy_jj_peek(const gy_jj_parser *p);
int gy_jj_is_op(const gy_jj_parser *p, const char *op);
int gy_jj_is_name(const gy_jj_parser *p, const char *name);
int gy_jj_skip_op(gy_jj_parser *p, const char *op); /* 1 and forward if it is there */
int gy_jj_skip_name(gy_jj_parser *p, const char *name);
int gy_jj_expect_op(gy_jj_parser *p, const char *op);
int gy_jj_unexpected(gy_jj_parser *p, const char *wanted); /* -1 */
int gy_jj_enter(gy_jj_parser *p);                          /* one level deeper; -1 when that is too deep */
gy_jj_node *gy_jj_parse_expr(gy_jj_parser *p);             /* NULL on error, as all of these */
gy_jj_node *gy_jj_parse_or(gy_jj_parser *p);               /* without "x if y else z" */
gy_jj_node *gy_jj_parse_tuple(gy_jj_parser *p);            /* "a, b" is a tuple, "a" is not */
gy_jj_node *gy_jj_parse_target(gy_jj_parser *p, int with_space);
gy_jj_node *gy_jj_parse_filters(gy_jj_parser *p, gy_jj_node *of, int bar_read); /* the chain behind of */
gy_jj_node *gy_jj_parse_postfix(gy_jj_parser *p); /* a primary with calls and subscripts */

/* ---- jinja_parse.c ---- */

int gy_jj_parse(gy_jj_parser *p); /* fills t->body */

/* ---- a rendering ---- */

/* What is being written. marks is NULL while all bytes have one origin. */
typedef struct gy_jj_buf {
    char *s;
    uint8_t *marks;
    size_t len, cap;
    uint8_t origin;
    int is_output; /* counts against max_output_bytes */
} gy_jj_buf;

typedef struct gy_jj_var {
    int name;
    gy_jj_val val;
} gy_jj_var;
typedef struct gy_jj_scope gy_jj_scope;
struct gy_jj_scope {
    gy_jj_scope *up;
    gy_jj_var *v;
    size_t n, cap;
    int kept; /* a macro holds it: do not reuse */
};

struct gy_jj_loop {
    const gy_jj_list *items;
    size_t at;
    gy_jj_val changed; /* what changed() saw last, or MISSING */
};
struct gy_jj_macro {
    const gy_jj_node *node;
    gy_jj_scope *scope; /* where it was defined */
};

typedef struct gy_jj_doc {
    gy_json *doc;
    struct gy_jj_doc *next;
} gy_jj_doc;

typedef struct gy_jj_run {
    const gy_jinja *t;
    gy_arena *arena;
    size_t mem;
    int64_t steps;
    int depth, line;
    int loop_name; /* index of "loop", -1: the template never asks */
    gy_err *err;
    const struct tm *now;
    gy_jj_val *globals; /* by name index: the given variables and the functions; MISSING = undefined */
    gy_jj_scope *scope;
    gy_jj_buf *out;
    int flow;               /* what a break or continue is waiting for */
    struct gy_jj_doc *docs; /* JSON that values borrow from */
} gy_jj_run;

gy_status gy_jj_run_open(const gy_jinja *t, const struct tm *now, gy_err *err, gy_jj_run *r);
/* GY_OK: out has text and marks (marks[i] of each byte, or NULL and out->origin), in the run's memory. */
gy_status gy_jj_run_go(gy_jj_run *r, gy_jj_buf *out);
void gy_jj_run_close(gy_jj_run *r);                           /* accepts a zeroed run */
int gy_jj_keep(gy_jj_run *r, gy_json *doc);                   /* takes doc, also on failure: freed with the run */
void gy_jj_bind(gy_jj_run *r, const char *name, gy_jj_val v); /* a variable; a name that is not read is ignored */
gy_status gy_jj_split(const gy_jj_buf *b, gy_err *err, gy_jinja_out *out);

/* ---- jinja_value.c ---- */

int gy_jj_fail(gy_jj_run *r, gy_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4))); /* -1 */
int gy_jj_step(gy_jj_run *r, size_t n);                       /* counts n steps */
int gy_jj_down(gy_jj_run *r);                                 /* one level deeper: the caller does r->depth-- */
int gy_jj_undefined(gy_jj_run *r, const gy_jj_val *v);        /* -1: v is undefined and was used */
void *gy_jj_alloc(gy_jj_run *r, size_t n, size_t elem_bytes); /* NULL: reported */
const char *gy_jj_type_name(const gy_jj_val *v);              /* as Python calls it: "str", "list" */

gy_jj_val gy_jj_none(void);
gy_jj_val gy_jj_bool(int b);
gy_jj_val gy_jj_int(int64_t i);
gy_jj_val gy_jj_real(double r);
gy_jj_val gy_jj_undef(const char *what); /* what is kept */
gy_jj_val gy_jj_from(gy_jj_val v, unsigned origin);
/* Bytes are borrowed. */
int gy_jj_str(gy_jj_run *r, const char *s, size_t len, unsigned origin, gy_jj_val *out);
int gy_jj_strz(gy_jj_run *r, const char *z, gy_jj_val *out); /* markup */
int gy_jj_sub(gy_jj_run *r, const gy_jj_val *str, size_t off, size_t len, gy_jj_val *out);
int gy_jj_list_new(gy_jj_run *r, gy_jj_type type, size_t n, gy_jj_val *out); /* n values to be filled */
int gy_jj_pair(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, gy_jj_val *out);
int gy_jj_dict_new(gy_jj_run *r, size_t cap, gy_jj_val *out);
int gy_jj_dict_put(gy_jj_run *r, gy_jj_dict *d, const gy_jj_val *key, const gy_jj_val *val);  /* or replaces */
int gy_jj_dict_add(gy_jj_run *r, gy_jj_dict *d, const gy_jj_val *key, const gy_jj_val *val);  /* a new key */
int gy_jj_dict_get(gy_jj_run *r, const gy_jj_dict *d, const gy_jj_val *key, gy_jj_val **out); /* *out NULL if absent */
int gy_jj_dict_getz(const gy_jj_dict *d, const char *key, gy_jj_val *out);                    /* 1 if there */
int gy_jj_convert(gy_jj_run *r, const gy_jv *v, unsigned origin, gy_jj_val *out);

int gy_jj_truth(const gy_jj_val *v);
int gy_jj_is_num(const gy_jj_val *v); /* BOOL, INT, REAL */
int gy_jj_is_str(const gy_jj_val *v, const char *z);
double gy_jj_num(const gy_jj_val *v);
int gy_jj_equal(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, int *out);
int gy_jj_order(gy_jj_run *r, const gy_jj_val *a, const gy_jj_val *b, const char *op, int *out); /* <0, 0, >0 */
int gy_jj_contains(gy_jj_run *r, const gy_jj_val *in, const gy_jj_val *what, int *out);
int gy_jj_iterate(gy_jj_run *r, const gy_jj_val *v, const gy_jj_list **out); /* items, keys, characters */
int gy_jj_length(gy_jj_run *r, const gy_jj_val *v, int64_t *out);
int gy_jj_attr(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *name, gy_jj_val *out);
int gy_jj_item(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *key, gy_jj_val *out);
int gy_jj_slice(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *lo, const gy_jj_val *hi, const gy_jj_val *step,
                gy_jj_val *out);
int gy_jj_binary(gy_jj_run *r, gy_jj_op op, const gy_jj_val *a, const gy_jj_val *b, gy_jj_val *out);
int gy_jj_sort(gy_jj_run *r, const gy_jj_val *keys, size_t n, int reverse, size_t *order); /* stable */

/* ---- jinja_print.c ---- */

int gy_jj_put(gy_jj_run *r, gy_jj_buf *b, const char *s, size_t len, unsigned origin);
int gy_jj_put_str(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *str);
int gy_jj_put_sub(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *str, size_t off, size_t len);
int gy_jj_put_cp(gy_jj_run *r, gy_jj_buf *b, uint32_t cp, unsigned origin);
int gy_jj_put_val(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v); /* as str() gives it */
int gy_jj_put_repr(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v);
int gy_jj_put_real(gy_jj_run *r, gy_jj_buf *b, double v, int is_json, unsigned origin);
int gy_jj_take(gy_jj_run *r, gy_jj_buf *b, gy_jj_val *out); /* what was written, as a string */
int gy_jj_to_str(gy_jj_run *r, const gy_jj_val *v, gy_jj_val *out);

typedef struct gy_jj_json { /* arguments of json.dumps */
    int ensure_ascii, sort_keys, has_indent;
    gy_jj_val indent;            /* a string, when has_indent */
    gy_jj_val item_sep, key_sep; /* strings */
} gy_jj_json;
int gy_jj_put_json(gy_jj_run *r, gy_jj_buf *b, const gy_jj_val *v, const gy_jj_json *how);

/* ---- jinja_text.c ---- */

int gy_jj_is_space(uint32_t cp);                                   /* as Python's str.isspace */
uint32_t gy_jj_cp_at(const gy_jj_val *str, size_t off, size_t *n); /* the character there and its bytes */
uint8_t gy_jj_mark_at(const gy_jj_val *str, size_t off);
size_t gy_jj_n_char(const gy_jj_val *str);
size_t gy_jj_char_offset(const gy_jj_val *str, size_t n); /* byte offset of character n, at most the end */
typedef enum gy_jj_case { GY_JJ_UPPER, GY_JJ_LOWER, GY_JJ_TITLE, GY_JJ_CAPITAL, GY_JJ_WORDS } gy_jj_case;
int gy_jj_recase(gy_jj_run *r, const gy_jj_val *str, gy_jj_case how, gy_jj_val *out);
enum { GY_JJ_LEFT = 1, GY_JJ_RIGHT = 2 };
/* chars: MISSING or None for white space. */
int gy_jj_strip(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *chars, unsigned sides, gy_jj_val *out);
int gy_jj_split_str(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *sep, int64_t most, int from_right,
                    gy_jj_val *out);
int gy_jj_split_lines(gy_jj_run *r, const gy_jj_val *str, int keep_ends, gy_jj_val *out);
int gy_jj_replace(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *old, const gy_jj_val *with, int64_t most,
                  gy_jj_val *out);
int gy_jj_find(gy_jj_run *r, const gy_jj_val *str, const gy_jj_val *what, size_t from, int last, int64_t *off); /* -1 */
int gy_jj_affix(const gy_jj_val *str, const gy_jj_val *what, int at_end);
int gy_jj_join(gy_jj_run *r, const gy_jj_val *sep, const gy_jj_list *items, int as_str, gy_jj_val *out);
int gy_jj_percent(gy_jj_run *r, const gy_jj_val *fmt, const gy_jj_val *args, gy_jj_val *out); /* fmt % args */
int gy_jj_pad(gy_jj_run *r, const gy_jj_val *str, int64_t width, unsigned sides, const gy_jj_val *fill,
              gy_jj_val *out); /* sides: where the text goes */

/* ---- calls: jinja_eval.c, jinja_filter.c, jinja_method.c ---- */

typedef struct gy_jj_named {
    const gy_jj_val *name; /* a string */
    gy_jj_val val;
} gy_jj_named;
typedef struct gy_jj_args {
    const gy_jj_val *pos;
    size_t n;
    const gy_jj_named *named;
    size_t n_named;
} gy_jj_args;

enum { GY_JJ_MAX_PARAM = 6 };
/* Distributes arguments over the parameters "a,b,c": out[i] is MISSING where none was given. An argument too many or of
 * an unknown name is an error that names `who`. "*" as params: anything, out untouched. */
int gy_jj_bind_args(gy_jj_run *r, const char *who, const char *params, const gy_jj_args *a,
                    gy_jj_val out[GY_JJ_MAX_PARAM]);
int gy_jj_call(gy_jj_run *r, const gy_jj_val *fn, const gy_jj_args *a, gy_jj_val *out);
int gy_jj_filter_find(const char *name); /* -1: there is none */
int gy_jj_filter_call(gy_jj_run *r, int which, const gy_jj_val *of, const gy_jj_args *a, gy_jj_val *out);
int gy_jj_test_find(const char *name);
int gy_jj_test_call(gy_jj_run *r, int which, const gy_jj_val *of, const gy_jj_args *a, int *out);
int gy_jj_method_find(gy_jj_run *r, const gy_jj_val *of, const gy_jj_val *name, gy_jj_val *out); /* 1 if there is one */
int gy_jj_method_call(gy_jj_run *r, const gy_jj_method *m, const gy_jj_args *a, gy_jj_val *out);
int gy_jj_func_find(const char *name); /* -1: there is none */
int gy_jj_func_call(gy_jj_run *r, int which, const gy_jj_args *a, gy_jj_val *out);

#endif
