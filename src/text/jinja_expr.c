/* Expressions of templates: recursive descent in jinja2's order of precedence. Recursion is bounded by gy_jj_enter.
 * Filters and tests are looked up here, so that an unknown one is found before anything is rendered.
 */
#include "text/jinja_int.h"

#include <string.h>

/* ---- tokens and nodes ---- */

const gy_jj_token *gy_jj_peek(const gy_jj_parser *p) {
    return &p->tok.data[p->at];
}

int gy_jj_is_op(const gy_jj_parser *p, const char *op) {
    const gy_jj_token *t = gy_jj_peek(p);
    return t->type == GY_JJ_T_OP && strcmp(t->s, op) == 0;
}

int gy_jj_is_name(const gy_jj_parser *p, const char *name) {
    const gy_jj_token *t = gy_jj_peek(p);
    return t->type == GY_JJ_T_NAME && strcmp(t->s, name) == 0;
}

int gy_jj_skip_op(gy_jj_parser *p, const char *op) {
    int is = gy_jj_is_op(p, op);
    p->at += (size_t)is;
    return is;
}

int gy_jj_skip_name(gy_jj_parser *p, const char *name) {
    int is = gy_jj_is_name(p, name);
    p->at += (size_t)is;
    return is;
}

int gy_jj_unexpected(gy_jj_parser *p, const char *wanted) {
    const gy_jj_token *t = gy_jj_peek(p);
    static const char *const what[] = {"text", "{{", "}}", "{%", "%}", NULL, "a string", "a number", NULL, "the end"};
    const char *found = what[t->type] ? what[t->type] : t->s;
    return gy_jj_parse_fail(p, GY_E_FORMAT, t->line, "found %.60s, expected %s", found, wanted);
}

int gy_jj_expect_op(gy_jj_parser *p, const char *op) {
    return gy_jj_skip_op(p, op) ? 0 : gy_jj_unexpected(p, op);
}

int gy_jj_enter(gy_jj_parser *p) {
    if (++p->depth <= GY_JJ_PARSE_DEPTH) return 0;
    return gy_jj_parse_fail(p, GY_E_LIMIT, gy_jj_peek(p)->line, "nested more than %d deep", GY_JJ_PARSE_DEPTH);
}

gy_jj_node *gy_jj_node_new(gy_jj_parser *p, gy_jj_kind kind) {
    gy_jj_node *n = gy_arena_alloc(p->t->arena, 1, sizeof *n);
    int line = gy_jj_peek(p)->line;
    if (!n) {
        gy_jj_parse_fail(p, GY_E_NOMEM, line, "no memory for the template");
        return NULL;
    }
    n->kind = (uint8_t)kind;
    n->line = line;
    n->name = n->which = -1;
    return n;
}

int gy_jj_name_index(gy_jj_parser *p, const char *name) {
    gy_jinja *t = p->t;
    for (size_t i = 0; i < t->names.len; i++)
        if (strcmp(t->names.data[i], name) == 0) return (int)i;
    char *copy = gy_arena_strndup(t->arena, name, strlen(name));
    if (!copy || gy_vec_push(&t->names, GY_MEM_TEXT, copy))
        return gy_jj_parse_fail(p, GY_E_NOMEM, gy_jj_peek(p)->line, "no memory for the template");
    return (int)t->names.len - 1;
}

static int lit_str(gy_jj_parser *p, const char *s, size_t len, gy_jj_val *out) {
    gy_jj_text *t = gy_arena_alloc(p->t->arena, 1, sizeof *t);
    if (!t) return gy_jj_parse_fail(p, GY_E_NOMEM, gy_jj_peek(p)->line, "no memory for the template");
    *t = (gy_jj_text){.s = s, .len = len};
    *out = (gy_jj_val){.type = GY_JJ_STR, .u.str = t};
    return 0;
}

static gy_jj_node *literal(gy_jj_parser *p, gy_jj_val v) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_LIT);
    if (n) n->lit = v;
    return n;
}

/* ---- primaries ---- */

static gy_jj_node *name_node(gy_jj_parser *p, const char *name) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_NAME);
    if (!n || (n->name = gy_jj_name_index(p, name)) < 0) return NULL;
    if (p->uses && strcmp(name, "caller") == 0) *p->uses |= GY_JJ_USES_CALLER;
    if (p->uses && strcmp(name, "varargs") == 0) *p->uses |= GY_JJ_USES_VARARGS;
    if (p->uses && strcmp(name, "kwargs") == 0) *p->uses |= GY_JJ_USES_KWARGS;
    return n;
}

static gy_jj_node *parse_name(gy_jj_parser *p) {
    const gy_jj_token *t = gy_jj_peek(p);
    gy_jj_node *n;
    if (!strcmp(t->s, "true") || !strcmp(t->s, "True"))
        n = literal(p, gy_jj_bool(1));
    else if (!strcmp(t->s, "false") || !strcmp(t->s, "False"))
        n = literal(p, gy_jj_bool(0));
    else if (!strcmp(t->s, "none") || !strcmp(t->s, "None"))
        n = literal(p, gy_jj_none());
    else
        n = name_node(p, t->s);
    p->at++;
    return n;
}

/* Strings that stand side by side are one. */
static gy_jj_node *parse_string(gy_jj_parser *p) {
    const gy_jj_token *t = gy_jj_peek(p);
    const char *s = t->s;
    size_t len = t->len;
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_LIT);
    for (p->at++; n && gy_jj_peek(p)->type == GY_JJ_T_STRING; p->at++) {
        t = gy_jj_peek(p);
        char *both = gy_arena_alloc(p->t->arena, len + t->len + 1, 1);
        if (!both) {
            gy_jj_parse_fail(p, GY_E_NOMEM, t->line, "no memory for the template");
            return NULL;
        }
        memcpy(both, s, len);
        memcpy(both + len, t->s, t->len);
        s = both;
        len += t->len;
    }
    return n && lit_str(p, s, len, &n->lit) == 0 ? n : NULL;
}

/* The spelling is JSON's: its parser does not depend on the locale. */
static gy_jj_node *parse_number(gy_jj_parser *p) {
    const gy_jj_token *t = gy_jj_peek(p);
    gy_json *doc = NULL;
    gy_err err = {0};
    gy_jj_val v;
    if (gy_json_parse(t->s, t->len, NULL, &err, &doc) == GY_OK) {
        const gy_jv *j = gy_json_root(doc);
        v = gy_jv_type(j) == GY_J_INT ? gy_jj_int(gy_jv_int(j, 0)) : gy_jj_real(gy_jv_num(j, 0));
        gy_json_free(doc);
    } else {
        gy_jj_parse_fail(p, err.status, t->line, "the number %.40s cannot be used: %.200s", t->s, err.msg);
        return NULL;
    }
    gy_jj_node *n = literal(p, v);
    p->at++;
    return n;
}

/* Items up to the closing bracket, which is read; a comma may stand at the end. */
static int parse_items(gy_jj_parser *p, const char *close, int pairs, gy_jj_node **head) {
    gy_jj_node **tail = head;
    while (!gy_jj_skip_op(p, close)) {
        if (tail != head && (gy_jj_expect_op(p, ",") != 0)) return -1;
        if (tail != head && gy_jj_skip_op(p, close)) break;
        for (int i = 0; i <= pairs; i++) {
            if (i && gy_jj_expect_op(p, ":")) return -1;
            if (!(*tail = gy_jj_parse_expr(p))) return -1;
            tail = &(*tail)->next;
        }
    }
    return 0;
}

static gy_jj_node *parse_bracket(gy_jj_parser *p) {
    int is_dict = gy_jj_is_op(p, "{");
    gy_jj_node *n = gy_jj_node_new(p, is_dict ? GY_JJ_N_DICT : GY_JJ_N_LIST);
    p->at++;
    return n && parse_items(p, is_dict ? "}" : "]", is_dict, &n->a) == 0 ? n : NULL;
}

/* "(a)" is a, "(a,)", "(a, b)" and "()" are tuples. */
static gy_jj_node *parse_paren(gy_jj_parser *p) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_TUPLE);
    p->at++;
    if (!n || gy_jj_skip_op(p, ")")) return n;
    gy_jj_node *first = gy_jj_parse_expr(p);
    if (!first) return NULL;
    if (gy_jj_skip_op(p, ")")) return first;
    n->a = first;
    if (gy_jj_expect_op(p, ",")) return NULL;
    return parse_items(p, ")", 0, &first->next) == 0 ? n : NULL;
}

static gy_jj_node *parse_primary(gy_jj_parser *p) {
    const gy_jj_token *t = gy_jj_peek(p);
    if (t->type == GY_JJ_T_NAME) return parse_name(p);
    if (t->type == GY_JJ_T_STRING) return parse_string(p);
    if (t->type == GY_JJ_T_NUMBER) return parse_number(p);
    if (gy_jj_is_op(p, "(")) return parse_paren(p);
    if (gy_jj_is_op(p, "[") || gy_jj_is_op(p, "{")) return parse_bracket(p);
    gy_jj_unexpected(p, "an expression");
    return NULL;
}

/* ---- behind a primary ---- */

/* Arguments behind "(", which is the current token, up to and with ")". */
static int parse_args(gy_jj_parser *p, gy_jj_node **head) {
    gy_jj_node **tail = head;
    int named = 0;
    for (p->at++; !gy_jj_skip_op(p, ")");) {
        if (tail != head && gy_jj_expect_op(p, ",")) return -1;
        if (tail != head && gy_jj_skip_op(p, ")")) break;
        if (gy_jj_is_op(p, "*") || gy_jj_is_op(p, "**"))
            return gy_jj_parse_fail(p, GY_E_FORMAT, gy_jj_peek(p)->line,
                                    "*args and **kwargs in a call are not supported");
        gy_jj_node *arg = gy_jj_node_new(p, GY_JJ_N_ARG);
        if (!arg) return -1;
        const gy_jj_token *t = gy_jj_peek(p);
        if (t->type == GY_JJ_T_NAME && t[1].type == GY_JJ_T_OP && !strcmp(t[1].s, "=")) {
            if (lit_str(p, t->s, t->len, &arg->lit)) return -1;
            p->at += 2;
            named = 1;
        } else if (named)
            return gy_jj_parse_fail(p, GY_E_FORMAT, t->line, "an argument without a name behind one with a name");
        if (!(arg->a = gy_jj_parse_expr(p))) return -1;
        *tail = arg;
        tail = &arg->next;
    }
    return 0;
}

static gy_jj_node *parse_attr(gy_jj_parser *p, gy_jj_node *of) {
    p->at++;
    const gy_jj_token *t = gy_jj_peek(p);
    gy_jj_node *n = gy_jj_node_new(p, t->type == GY_JJ_T_NUMBER ? GY_JJ_N_ITEM : GY_JJ_N_ATTR);
    if (!n) return NULL;
    n->a = of;
    if (t->type == GY_JJ_T_NUMBER) return (n->b = parse_number(p)) ? n : NULL;
    if (t->type != GY_JJ_T_NAME) {
        gy_jj_unexpected(p, "a name behind the dot");
        return NULL;
    }
    p->at++;
    return lit_str(p, t->s, t->len, &n->lit) == 0 ? n : NULL;
}

/* One of the three parts of a slice, which may be missing. */
static int parse_slice_part(gy_jj_parser *p, gy_jj_node **part) {
    if (gy_jj_is_op(p, ":") || gy_jj_is_op(p, "]")) return 0;
    return (*part = gy_jj_parse_expr(p)) ? 0 : -1;
}

static gy_jj_node *parse_subscript(gy_jj_parser *p, gy_jj_node *of) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_ITEM);
    p->at++;
    if (!n) return NULL;
    n->a = of;
    if (parse_slice_part(p, &n->b)) return NULL;
    if (gy_jj_skip_op(p, ":")) {
        n->kind = GY_JJ_N_SLICE;
        if (parse_slice_part(p, &n->c)) return NULL;
        if (gy_jj_skip_op(p, ":") && parse_slice_part(p, &n->d)) return NULL;
    } else if (!n->b) {
        gy_jj_unexpected(p, "an index");
        return NULL;
    }
    return gy_jj_expect_op(p, "]") ? NULL : n;
}

static gy_jj_node *parse_call(gy_jj_parser *p, gy_jj_node *of) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_CALL);
    if (!n) return NULL;
    n->a = of;
    return parse_args(p, &n->b) ? NULL : n;
}

static gy_jj_node *parse_postfix_of(gy_jj_parser *p, gy_jj_node *n) {
    while (n) {
        if (gy_jj_is_op(p, "."))
            n = parse_attr(p, n);
        else if (gy_jj_is_op(p, "["))
            n = parse_subscript(p, n);
        else if (gy_jj_is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

gy_jj_node *gy_jj_parse_postfix(gy_jj_parser *p) {
    gy_jj_node *n = parse_primary(p);
    return n ? parse_postfix_of(p, n) : NULL;
}

static gy_jj_node *parse_filter(gy_jj_parser *p, gy_jj_node *of) {
    const gy_jj_token *t = gy_jj_peek(p);
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_FILTER);
    if (!n) return NULL;
    n->a = of;
    if (t->type != GY_JJ_T_NAME) {
        gy_jj_unexpected(p, "the name of a filter");
        return NULL;
    }
    if ((n->which = gy_jj_filter_find(t->s)) < 0) {
        gy_jj_parse_fail(p, GY_E_FORMAT, t->line, "there is no filter \"%.60s\" here", t->s);
        return NULL;
    }
    p->at++;
    return gy_jj_is_op(p, "(") && parse_args(p, &n->b) ? NULL : n;
}

/* An argument without brackets: "is divisibleby 3". */
static int test_arg_follows(const gy_jj_parser *p) {
    const gy_jj_token *t = gy_jj_peek(p);
    if (t->type == GY_JJ_T_STRING || t->type == GY_JJ_T_NUMBER) return 1;
    if (t->type == GY_JJ_T_OP) return !strcmp(t->s, "[") || !strcmp(t->s, "{");
    return t->type == GY_JJ_T_NAME && strcmp(t->s, "else") != 0 && strcmp(t->s, "or") != 0 && strcmp(t->s, "and") != 0;
}

static int parse_test_arg(gy_jj_parser *p, gy_jj_node *n) {
    if (gy_jj_is_op(p, "(")) return parse_args(p, &n->b);
    if (!test_arg_follows(p)) return 0;
    if (gy_jj_is_name(p, "is")) return gy_jj_unexpected(p, "no second \"is\" in a row");
    n->b = gy_jj_node_new(p, GY_JJ_N_ARG);
    return n->b && (n->b->a = gy_jj_parse_postfix(p)) ? 0 : -1;
}

static gy_jj_node *parse_test(gy_jj_parser *p, gy_jj_node *of) {
    p->at++;
    int negated = gy_jj_skip_name(p, "not");
    const gy_jj_token *t = gy_jj_peek(p);
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_TEST);
    if (!n) return NULL;
    n->a = of;
    n->flags = negated ? GY_JJ_NEGATED : 0;
    if (t->type != GY_JJ_T_NAME) {
        gy_jj_unexpected(p, "the name of a test");
        return NULL;
    }
    if ((n->which = gy_jj_test_find(t->s)) < 0) {
        gy_jj_parse_fail(p, GY_E_FORMAT, t->line, "there is no test \"%.60s\" here", t->s);
        return NULL;
    }
    p->at++;
    return parse_test_arg(p, n) ? NULL : n;
}

gy_jj_node *gy_jj_parse_filters(gy_jj_parser *p, gy_jj_node *of, int bar_read) {
    gy_jj_node *n = of;
    if (bar_read && !(n = parse_filter(p, n))) return NULL;
    for (;;) {
        if (gy_jj_skip_op(p, "|"))
            n = parse_filter(p, n);
        else if (gy_jj_is_name(p, "is"))
            n = parse_test(p, n);
        else if (n && gy_jj_is_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
        if (!n) return NULL;
    }
}

/* ---- operators ---- */

static gy_jj_node *parse_unary(gy_jj_parser *p, int with_filter) {
    int neg = gy_jj_is_op(p, "-");
    gy_jj_node *n;
    if (neg || gy_jj_is_op(p, "+")) {
        n = gy_jj_node_new(p, neg ? GY_JJ_N_NEG : GY_JJ_N_POS);
        p->at++;
        if (!n || gy_jj_enter(p) || !(n->a = parse_unary(p, 0))) return NULL;
        p->depth--;
    } else
        n = parse_primary(p);
    n = parse_postfix_of(p, n);
    return n && with_filter ? gy_jj_parse_filters(p, n, 0) : n;
}

typedef struct op_row {
    const char *s;
    gy_jj_op op;
} op_row;

static const op_row *op_find(const gy_jj_parser *p, const op_row *rows) {
    for (; rows->s; rows++)
        if (gy_jj_is_op(p, rows->s)) return rows;
    return NULL;
}

static gy_jj_node *parse_left(gy_jj_parser *p, const op_row *rows, gy_jj_node *(*operand)(gy_jj_parser *)) {
    gy_jj_node *left = operand(p);
    const op_row *row;
    while (left && (row = op_find(p, rows))) {
        gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_BINARY);
        p->at++;
        if (!n) return NULL;
        n->op = (uint8_t)row->op;
        n->a = left;
        if (!(n->b = operand(p))) return NULL;
        left = n;
    }
    return left;
}

static gy_jj_node *parse_factor(gy_jj_parser *p) {
    return parse_unary(p, 1);
}

static gy_jj_node *parse_pow(gy_jj_parser *p) {
    static const op_row rows[] = {{"**", GY_JJ_OP_POW}, {NULL, 0}};
    return parse_left(p, rows, parse_factor);
}

static gy_jj_node *parse_product(gy_jj_parser *p) {
    static const op_row rows[] = {
        {"*", GY_JJ_OP_MUL}, {"/", GY_JJ_OP_DIV}, {"//", GY_JJ_OP_FLOORDIV}, {"%", GY_JJ_OP_MOD}, {NULL, 0}};
    return parse_left(p, rows, parse_pow);
}

static gy_jj_node *parse_concat(gy_jj_parser *p) {
    gy_jj_node *first = parse_product(p);
    if (!first || !gy_jj_is_op(p, "~")) return first;
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_CONCAT), **tail = &first->next;
    if (!n) return NULL;
    n->a = first;
    while (gy_jj_skip_op(p, "~")) {
        if (!(*tail = parse_product(p))) return NULL;
        tail = &(*tail)->next;
    }
    return n;
}

static gy_jj_node *parse_sum(gy_jj_parser *p) {
    static const op_row rows[] = {{"+", GY_JJ_OP_ADD}, {"-", GY_JJ_OP_SUB}, {NULL, 0}};
    return parse_left(p, rows, parse_concat);
}

/* The comparison at the current token, which is read. 0 if there is none. */
static int compare_op(gy_jj_parser *p, gy_jj_op *op) {
    static const op_row rows[] = {{"==", GY_JJ_OP_EQ}, {"!=", GY_JJ_OP_NE}, {"<", GY_JJ_OP_LT}, {"<=", GY_JJ_OP_LE},
                                  {">", GY_JJ_OP_GT},  {">=", GY_JJ_OP_GE}, {NULL, 0}};
    const op_row *row = op_find(p, rows);
    const gy_jj_token *t = gy_jj_peek(p);
    if (row)
        *op = row->op;
    else if (gy_jj_is_name(p, "in"))
        *op = GY_JJ_OP_IN;
    else if (gy_jj_is_name(p, "not") && t[1].type == GY_JJ_T_NAME && !strcmp(t[1].s, "in")) {
        *op = GY_JJ_OP_NOTIN;
        p->at++;
    } else
        return 0;
    p->at++;
    return 1;
}

static gy_jj_node *parse_compare(gy_jj_parser *p) {
    gy_jj_node *first = parse_sum(p), *n = NULL, **tail = NULL;
    gy_jj_op op;
    while (first && compare_op(p, &op)) {
        if (!n) {
            if (!(n = gy_jj_node_new(p, GY_JJ_N_CMP))) return NULL;
            n->a = first;
            tail = &n->b;
        }
        if (!(*tail = gy_jj_node_new(p, GY_JJ_N_OPERAND))) return NULL;
        (*tail)->op = (uint8_t)op;
        if (!((*tail)->a = parse_sum(p))) return NULL;
        tail = &(*tail)->next;
    }
    return n ? n : first;
}

static gy_jj_node *parse_not(gy_jj_parser *p) {
    if (!gy_jj_is_name(p, "not")) return parse_compare(p);
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_NOT);
    p->at++;
    if (!n || gy_jj_enter(p) || !(n->a = parse_not(p))) return NULL;
    p->depth--;
    return n;
}

static gy_jj_node *parse_and(gy_jj_parser *p) {
    gy_jj_node *left = parse_not(p);
    while (left && gy_jj_skip_name(p, "and")) {
        gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_AND);
        if (!n) return NULL;
        n->a = left;
        if (!(n->b = parse_not(p))) return NULL;
        left = n;
    }
    return left;
}

gy_jj_node *gy_jj_parse_or(gy_jj_parser *p) {
    gy_jj_node *left = parse_and(p);
    while (left && gy_jj_skip_name(p, "or")) {
        gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_OR);
        if (!n) return NULL;
        n->a = left;
        if (!(n->b = parse_and(p))) return NULL;
        left = n;
    }
    return left;
}

gy_jj_node *gy_jj_parse_expr(gy_jj_parser *p) {
    if (gy_jj_enter(p)) return NULL;
    gy_jj_node *e = gy_jj_parse_or(p);
    while (e && gy_jj_skip_name(p, "if")) {
        gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_COND);
        if (!n) return NULL;
        n->b = e;
        if (!(n->a = gy_jj_parse_or(p))) return NULL;
        if (gy_jj_skip_name(p, "else") && !(n->c = gy_jj_parse_expr(p))) return NULL;
        e = n;
    }
    p->depth--;
    return e;
}

static int tuple_ends(const gy_jj_parser *p) {
    const gy_jj_token *t = gy_jj_peek(p);
    return t->type == GY_JJ_T_PRINT_END || t->type == GY_JJ_T_TAG_END || gy_jj_is_op(p, ")") || gy_jj_is_name(p, "in");
}

gy_jj_node *gy_jj_parse_tuple(gy_jj_parser *p) {
    gy_jj_node *first = gy_jj_parse_expr(p);
    if (!first || !gy_jj_is_op(p, ",")) return first;
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_TUPLE), **tail = &first->next;
    if (!n) return NULL;
    n->a = first;
    while (gy_jj_skip_op(p, ",") && !tuple_ends(p)) {
        if (!(*tail = gy_jj_parse_expr(p))) return NULL;
        tail = &(*tail)->next;
    }
    return n;
}

/* ---- what can be assigned to ---- */

static gy_jj_node *target_one(gy_jj_parser *p, int with_space);

/* Names between commas, up to what cannot be one. A single name without a comma is itself. */
static gy_jj_node *target_list(gy_jj_parser *p, int with_space) {
    gy_jj_node *first = target_one(p, with_space);
    if (!first || !gy_jj_is_op(p, ",")) return first;
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_TUPLE), **tail = &first->next;
    if (!n) return NULL;
    n->a = first;
    while (gy_jj_skip_op(p, ",") && (gy_jj_peek(p)->type == GY_JJ_T_NAME || gy_jj_is_op(p, "(")) &&
           !gy_jj_is_name(p, "in")) {
        if (!(*tail = target_one(p, with_space))) return NULL;
        tail = &(*tail)->next;
    }
    return n;
}

static gy_jj_node *target_one(gy_jj_parser *p, int with_space) {
    static const char *const fixed[] = {"true", "True", "false", "False", "none", "None"};
    if (gy_jj_skip_op(p, "(")) {
        if (gy_jj_enter(p)) return NULL;
        gy_jj_node *n = target_list(p, with_space);
        p->depth--;
        return n && gy_jj_expect_op(p, ")") == 0 ? n : NULL;
    }
    const gy_jj_token *t = gy_jj_peek(p);
    int bad = t->type != GY_JJ_T_NAME;
    for (size_t i = 0; !bad && i < sizeof fixed / sizeof *fixed; i++) bad = !strcmp(t->s, fixed[i]);
    if (bad) {
        gy_jj_unexpected(p, "a name to assign to");
        return NULL;
    }
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_NAME);
    if (!n || (n->name = gy_jj_name_index(p, t->s)) < 0) return NULL;
    p->at++;
    if (!with_space || !gy_jj_skip_op(p, ".")) return n;
    n->kind = GY_JJ_N_ATTR;
    t = gy_jj_peek(p);
    if (t->type != GY_JJ_T_NAME) {
        gy_jj_unexpected(p, "a name behind the dot");
        return NULL;
    }
    p->at++;
    return lit_str(p, t->s, t->len, &n->lit) == 0 ? n : NULL;
}

gy_jj_node *gy_jj_parse_target(gy_jj_parser *p, int with_space) {
    return target_list(p, with_space);
}
