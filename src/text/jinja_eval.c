/* Templates at work. Scopes are jinja2's: if does not make one; for makes one a turn; macro, call, with, filter, block
 * set and generation make one each. A macro sees the names of where it was defined, as they are when it runs.
 * Recursion (bodies, expressions, macros) is bounded by the run's depth.
 */
#include "text/jinja_int.h"

#include <string.h>

enum { FLOW_NONE, FLOW_BREAK, FLOW_CONTINUE };

static int eval(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out);
static int exec_body(gy_jj_run *r, const gy_jj_node *n);

/* ---- names ---- */

static gy_jj_var *scope_find(gy_jj_scope *s, int name) {
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].name == name) return &s->v[i];
    return NULL;
}

static int scope_set(gy_jj_run *r, int name, const gy_jj_val *v) {
    gy_jj_scope *s = r->scope;
    gy_jj_var *there = scope_find(s, name);
    if (there) {
        there->val = *v;
        return 0;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4;
        gy_jj_var *bigger = gy_jj_alloc(r, cap, sizeof *bigger);
        if (!bigger) return -1;
        if (s->n) memcpy(bigger, s->v, s->n * sizeof *bigger);
        s->v = bigger;
        s->cap = cap;
    }
    s->v[s->n++] = (gy_jj_var){name, *v};
    return 0;
}

static gy_jj_val name_value(gy_jj_run *r, int name) {
    for (gy_jj_scope *s = r->scope; s; s = s->up) {
        gy_jj_var *v = scope_find(s, name);
        if (v) return v->val;
    }
    if (r->globals[name].type != GY_JJ_MISSING) return r->globals[name];
    return gy_jj_undef(r->t->names.data[name]);
}

static gy_jj_scope *scope_new(gy_jj_run *r, gy_jj_scope *up) {
    gy_jj_scope *s = gy_jj_alloc(r, 1, sizeof *s);
    if (s) s->up = up;
    return s;
}

/* A body in a scope of its own; the scope of before is current again afterwards, even after an error. */
static int exec_scoped(gy_jj_run *r, const gy_jj_node *body) {
    gy_jj_scope *before = r->scope, *s = scope_new(r, before);
    if (!s) return -1;
    r->scope = s;
    int failed = exec_body(r, body);
    r->scope = before;
    return failed;
}

/* What a body writes, as a string. */
static int capture(gy_jj_run *r, const gy_jj_node *body, gy_jj_val *out) {
    gy_jj_buf b = {0}, *before = r->out;
    r->out = &b;
    int failed = exec_body(r, body);
    r->out = before;
    return failed ? -1 : gy_jj_take(r, &b, out);
}

static int capture_scoped(gy_jj_run *r, const gy_jj_node *body, gy_jj_val *out) {
    gy_jj_scope *before = r->scope, *s = scope_new(r, before);
    if (!s) return -1;
    r->scope = s;
    int failed = capture(r, body, out);
    r->scope = before;
    return failed;
}

static int space_set(gy_jj_run *r, const gy_jj_node *target, const gy_jj_val *v) {
    gy_jj_val space = name_value(r, target->name);
    if (space.type == GY_JJ_UNDEF) return gy_jj_undefined(r, &space);
    if (space.type != GY_JJ_SPACE)
        return gy_jj_fail(r, GY_E_ARG, "'%s' is not a namespace: its members cannot be set",
                          r->t->names.data[target->name]);
    return gy_jj_dict_put(r, space.u.dict, &target->lit, v);
}

static int assign(gy_jj_run *r, const gy_jj_node *target, const gy_jj_val *v) {
    const gy_jj_list *items;
    if (target->kind == GY_JJ_N_NAME) return scope_set(r, target->name, v);
    if (target->kind == GY_JJ_N_ATTR) return space_set(r, target, v);
    size_t want = 0;
    for (const gy_jj_node *t = target->a; t; t = t->next) want++;
    if (gy_jj_iterate(r, v, &items)) return -1;
    if (items->n != want) return gy_jj_fail(r, GY_E_ARG, "%zu values cannot be given to %zu names", items->n, want);
    size_t i = 0;
    for (const gy_jj_node *t = target->a; t; t = t->next)
        if (assign(r, t, &items->v[i++])) return -1;
    return 0;
}

/* ---- expressions ---- */

static size_t list_len(const gy_jj_node *n) {
    size_t len = 0;
    for (; n; n = n->next) len++;
    return len;
}

static int eval_items(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val list;
    if (gy_jj_list_new(r, n->kind == GY_JJ_N_LIST ? GY_JJ_LIST : GY_JJ_TUPLE, list_len(n->a), &list)) return -1;
    size_t i = 0;
    for (const gy_jj_node *e = n->a; e; e = e->next)
        if (eval(r, e, &list.u.list->v[i++])) return -1;
    *out = list;
    return 0;
}

static int eval_dict(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val dict;
    if (gy_jj_dict_new(r, list_len(n->a) / 2, &dict)) return -1;
    for (const gy_jj_node *k = n->a; k; k = k->next->next) {
        gy_jj_val key, val;
        if (eval(r, k, &key) || eval(r, k->next, &val) || gy_jj_dict_put(r, dict.u.dict, &key, &val)) return -1;
    }
    *out = dict;
    return 0;
}

static int eval_cond(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val c;
    if (eval(r, n->a, &c)) return -1;
    if (gy_jj_truth(&c)) return eval(r, n->b, out);
    if (n->c) return eval(r, n->c, out);
    *out = gy_jj_undef("the missing else of an inline if");
    return 0;
}

static int compare(gy_jj_run *r, gy_jj_op op, const gy_jj_val *a, const gy_jj_val *b, int *out) {
    static const char *const names[] = {"<", "<=", ">", ">="};
    int c;
    if (op == GY_JJ_OP_EQ || op == GY_JJ_OP_NE) {
        if (gy_jj_equal(r, a, b, &c)) return -1;
        *out = c == (op == GY_JJ_OP_EQ);
        return 0;
    }
    if (op == GY_JJ_OP_IN || op == GY_JJ_OP_NOTIN) {
        if (gy_jj_contains(r, b, a, &c)) return -1;
        *out = c == (op == GY_JJ_OP_IN);
        return 0;
    }
    if (gy_jj_order(r, a, b, names[op - GY_JJ_OP_LT], &c)) return -1;
    *out = op == GY_JJ_OP_LT ? c < 0 : op == GY_JJ_OP_LE ? c <= 0 : op == GY_JJ_OP_GT ? c > 0 : c >= 0;
    return 0;
}

static int eval_compare(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val left, right;
    int ok = 1;
    if (eval(r, n->a, &left)) return -1;
    for (const gy_jj_node *o = n->b; o && ok; o = o->next) {
        if (eval(r, o->a, &right) || compare(r, (gy_jj_op)o->op, &left, &right, &ok)) return -1;
        left = right;
    }
    *out = gy_jj_bool(ok);
    return 0;
}

static int eval_binary(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val a, b;
    return eval(r, n->a, &a) || eval(r, n->b, &b) || gy_jj_binary(r, (gy_jj_op)n->op, &a, &b, out) ? -1 : 0;
}

static int eval_concat(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_buf b = {0};
    for (const gy_jj_node *e = n->a; e; e = e->next) {
        gy_jj_val v;
        if (eval(r, e, &v) || gy_jj_put_val(r, &b, &v)) return -1;
    }
    return gy_jj_take(r, &b, out);
}

static int eval_sign(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val v, zero = gy_jj_int(0);
    if (eval(r, n->a, &v)) return -1;
    if (v.type == GY_JJ_UNDEF) return gy_jj_undefined(r, &v);
    if (!gy_jj_is_num(&v)) return gy_jj_fail(r, GY_E_ARG, "a value of type '%s' has no sign", gy_jj_type_name(&v));
    if (n->kind == GY_JJ_N_NEG && v.type == GY_JJ_REAL)
        v.u.r = -v.u.r;
    else if (gy_jj_binary(r, n->kind == GY_JJ_N_NEG ? GY_JJ_OP_SUB : GY_JJ_OP_ADD, &zero, &v, &v))
        return -1;
    *out = v;
    return 0;
}

static int eval_or_none(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    *out = gy_jj_none();
    return n ? eval(r, n, out) : 0;
}

static int eval_slice(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val of, lo, hi, step;
    if (eval(r, n->a, &of) || eval_or_none(r, n->b, &lo) || eval_or_none(r, n->c, &hi) || eval_or_none(r, n->d, &step))
        return -1;
    return gy_jj_slice(r, &of, &lo, &hi, &step, out);
}

static int eval_item(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val of, key;
    return eval(r, n->a, &of) || eval(r, n->b, &key) || gy_jj_item(r, &of, &key, out) ? -1 : 0;
}

/* ---- calls ---- */

/* The arguments of a call; extra: one more with a name, or NULL. */
static int eval_args(gy_jj_run *r, const gy_jj_node *args, const gy_jj_named *extra, gy_jj_args *out) {
    size_t n = list_len(args), n_named = extra != NULL, at = 0;
    for (const gy_jj_node *a = args; a; a = a->next) n_named += a->lit.type == GY_JJ_STR;
    *out = (gy_jj_args){0};
    if (!n && !extra) return 0;
    gy_jj_val *pos = gy_jj_alloc(r, n, sizeof *pos);
    gy_jj_named *named = n_named ? gy_jj_alloc(r, n_named, sizeof *named) : NULL;
    if (!pos || (n_named && !named)) return -1;
    n_named = 0;
    for (const gy_jj_node *a = args; a; a = a->next) {
        gy_jj_val v;
        if (eval(r, a->a, &v)) return -1;
        if (a->lit.type == GY_JJ_STR)
            named[n_named++] = (gy_jj_named){&a->lit, v};
        else
            pos[at++] = v;
    }
    if (extra) named[n_named++] = *extra;
    *out = (gy_jj_args){.pos = pos, .n = at, .named = named, .n_named = n_named};
    return 0;
}

/* The place of the parameter `name` (of `len` bytes) in "a,b,c", or -1. */
static int param_index(const char *params, const char *name, size_t len) {
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, ",");
        if (n == len && memcmp(params, name, n) == 0) return i;
        params += n + (params[n] == ',');
    }
    return -1;
}

int gy_jj_bind_args(gy_jj_run *r, const char *who, const char *params, const gy_jj_args *a,
                    gy_jj_val out[GY_JJ_MAX_PARAM]) {
    size_t n_param = *params != 0;
    for (const char *c = params; *c; c++) n_param += *c == ',';
    if (strcmp(params, "*") == 0) return 0;
    memset(out, 0, GY_JJ_MAX_PARAM * sizeof *out);
    if (a->n > n_param) return gy_jj_fail(r, GY_E_ARG, "%s takes at most %zu values, found %zu", who, n_param, a->n);
    for (size_t i = 0; i < a->n; i++) out[i] = a->pos[i];
    for (size_t i = 0; i < a->n_named; i++) {
        const gy_jj_text *name = a->named[i].name->u.str;
        int at = param_index(params, name->s, name->len);
        if (at < 0 || out[at].type != GY_JJ_MISSING)
            return gy_jj_fail(r, GY_E_ARG, "%s: the argument \"%.60s\" is %s", who, name->s,
                              at < 0 ? "not known" : "given twice");
        out[at] = a->named[i].val;
    }
    return 0;
}

/* The value of a macro's parameter number i: from the arguments, its default (evaluated now, among the parameters that
 * are already there), or undefined. *used counts the named arguments that found a parameter. */
static int macro_param(gy_jj_run *r, const gy_jj_node *param, size_t i, const gy_jj_args *a, size_t *used) {
    const char *name = r->t->names.data[param->name];
    gy_jj_val v = i < a->n ? a->pos[i] : gy_jj_undef(name);
    int given = i < a->n;
    for (size_t k = 0; k < a->n_named; k++) {
        if (!gy_jj_is_str(a->named[k].name, name)) continue;
        if (given) return gy_jj_fail(r, GY_E_ARG, "the argument \"%.60s\" of a macro is given twice", name);
        v = a->named[k].val;
        given = 1;
        ++*used;
    }
    if (!given && param->a && eval(r, param->a, &v)) return -1;
    return scope_set(r, param->name, &v);
}

static int name_of(const gy_jj_run *r, const char *z) {
    for (size_t i = 0; i < r->t->names.len; i++)
        if (strcmp(r->t->names.data[i], z) == 0) return (int)i;
    return -1;
}

/* varargs, kwargs and caller, where the macro's body mentions them. */
static int macro_extras(gy_jj_run *r, const gy_jj_macro *m, size_t n_param, const gy_jj_args *a, size_t *used) {
    gy_jj_val v;
    if (m->node->flags & GY_JJ_USES_CALLER) {
        v = gy_jj_undef("caller");
        for (size_t k = 0; k < a->n_named; k++) {
            if (!gy_jj_is_str(a->named[k].name, "caller")) continue;
            v = a->named[k].val;
            ++*used;
        }
        if (scope_set(r, name_of(r, "caller"), &v)) return -1;
    }
    if (m->node->flags & GY_JJ_USES_VARARGS) {
        size_t n = a->n > n_param ? a->n - n_param : 0;
        if (gy_jj_list_new(r, GY_JJ_TUPLE, n, &v)) return -1;
        if (n) memcpy(v.u.list->v, a->pos + n_param, n * sizeof(gy_jj_val));
        if (scope_set(r, name_of(r, "varargs"), &v)) return -1;
    }
    return 0;
}

static int is_param(const gy_jj_run *r, const gy_jj_macro *m, const gy_jj_val *name) {
    for (const gy_jj_node *p = m->node->a; p; p = p->next)
        if (gy_jj_is_str(name, r->t->names.data[p->name])) return 1;
    return m->node->flags & GY_JJ_USES_CALLER && gy_jj_is_str(name, "caller");
}

static int macro_kwargs(gy_jj_run *r, const gy_jj_macro *m, const gy_jj_args *a) {
    gy_jj_val dict;
    if (gy_jj_dict_new(r, a->n_named, &dict)) return -1;
    for (size_t k = 0; k < a->n_named; k++)
        if (!is_param(r, m, a->named[k].name) && gy_jj_dict_put(r, dict.u.dict, a->named[k].name, &a->named[k].val))
            return -1;
    return scope_set(r, name_of(r, "kwargs"), &dict);
}

static int macro_params(gy_jj_run *r, const gy_jj_macro *m, const gy_jj_args *a) {
    size_t i = 0, used = 0;
    const char *name = r->t->names.data[m->node->name];
    for (const gy_jj_node *p = m->node->a; p; p = p->next)
        if (macro_param(r, p, i++, a, &used)) return -1;
    if (macro_extras(r, m, i, a, &used)) return -1;
    if (a->n > i && !(m->node->flags & GY_JJ_USES_VARARGS))
        return gy_jj_fail(r, GY_E_ARG, "the macro \"%.60s\" takes at most %zu values, found %zu", name, i, a->n);
    if (m->node->flags & GY_JJ_USES_KWARGS) return macro_kwargs(r, m, a);
    for (size_t k = 0; used < a->n_named && k < a->n_named; k++)
        if (!is_param(r, m, a->named[k].name))
            return gy_jj_fail(r, GY_E_ARG, "the macro \"%.60s\" has no parameter \"%.60s\"", name,
                              a->named[k].name->u.str->s);
    return 0;
}

static int macro_call(gy_jj_run *r, const gy_jj_macro *m, const gy_jj_args *a, gy_jj_val *out) {
    gy_jj_scope *before = r->scope, *s = scope_new(r, m->scope);
    if (!s || gy_jj_down(r)) return -1;
    r->scope = s;
    int failed = macro_params(r, m, a) || capture(r, m->node->b, out);
    r->scope = before;
    r->depth--;
    return failed ? -1 : 0;
}

int gy_jj_call(gy_jj_run *r, const gy_jj_val *fn, const gy_jj_args *a, gy_jj_val *out) {
    if (fn->type == GY_JJ_MACRO) return macro_call(r, fn->u.macro, a, out);
    if (fn->type == GY_JJ_FUNC) return gy_jj_func_call(r, (int)fn->u.i, a, out);
    if (fn->type == GY_JJ_METHOD) return gy_jj_method_call(r, fn->u.method, a, out);
    if (fn->type == GY_JJ_UNDEF)
        return gy_jj_fail(r, GY_E_ARG, "'%.100s' is undefined or not allowed, and cannot be called", fn->u.what);
    return gy_jj_fail(r, GY_E_ARG, "a value of type '%s' cannot be called", gy_jj_type_name(fn));
}

static int eval_call(gy_jj_run *r, const gy_jj_node *n, const gy_jj_named *extra, gy_jj_val *out) {
    gy_jj_val fn;
    gy_jj_args args;
    if (eval(r, n->a, &fn) || eval_args(r, n->b, extra, &args)) return -1;
    r->line = n->line;
    return gy_jj_call(r, &fn, &args, out);
}

/* of: what a filter without an operand works on (captured text), or NULL. */
static int eval_filter(gy_jj_run *r, const gy_jj_node *n, const gy_jj_val *of, gy_jj_val *out) {
    gy_jj_val v;
    gy_jj_args args;
    if (gy_jj_step(r, 1) || gy_jj_down(r)) return -1;
    int failed = 0;
    if (!n->a) {
        GY_CHECK(of);
        v = *of;
    } else
        failed = of && n->a->kind == GY_JJ_N_FILTER ? eval_filter(r, n->a, of, &v) : eval(r, n->a, &v);
    failed = failed || eval_args(r, n->b, NULL, &args);
    r->line = n->line;
    failed = failed || gy_jj_filter_call(r, n->which, &v, &args, out);
    r->depth--;
    return failed ? -1 : 0;
}

static int eval_test(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val v;
    gy_jj_args args;
    int yes;
    if (eval(r, n->a, &v) || eval_args(r, n->b, NULL, &args)) return -1;
    r->line = n->line;
    if (gy_jj_test_call(r, n->which, &v, &args, &yes)) return -1;
    *out = gy_jj_bool(yes != !!(n->flags & GY_JJ_NEGATED));
    return 0;
}

static int eval_logic(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    if (eval(r, n->a, out)) return -1;
    if (n->kind == GY_JJ_N_NOT)
        *out = gy_jj_bool(!gy_jj_truth(out));
    else if (gy_jj_truth(out) == (n->kind == GY_JJ_N_AND))
        return eval(r, n->b, out);
    return 0;
}

static int eval_attr(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_val of;
    if (eval(r, n->a, &of)) return -1;
    r->line = n->line;
    return gy_jj_attr(r, &of, &n->lit, out);
}

static int eval_node(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    switch ((gy_jj_kind)n->kind) {
    case GY_JJ_N_LIT:
        *out = n->lit;
        return 0;
    case GY_JJ_N_NAME:
        *out = name_value(r, n->name);
        return 0;
    case GY_JJ_N_LIST:
    case GY_JJ_N_TUPLE:
        return eval_items(r, n, out);
    case GY_JJ_N_DICT:
        return eval_dict(r, n, out);
    case GY_JJ_N_COND:
        return eval_cond(r, n, out);
    case GY_JJ_N_AND:
    case GY_JJ_N_OR:
    case GY_JJ_N_NOT:
        return eval_logic(r, n, out);
    case GY_JJ_N_CMP:
        return eval_compare(r, n, out);
    case GY_JJ_N_BINARY:
        return eval_binary(r, n, out);
    case GY_JJ_N_CONCAT:
        return eval_concat(r, n, out);
    case GY_JJ_N_NEG:
    case GY_JJ_N_POS:
        return eval_sign(r, n, out);
    case GY_JJ_N_ATTR:
        return eval_attr(r, n, out);
    case GY_JJ_N_ITEM:
        return eval_item(r, n, out);
    case GY_JJ_N_SLICE:
        return eval_slice(r, n, out);
    case GY_JJ_N_CALL:
        return eval_call(r, n, NULL, out);
    case GY_JJ_N_FILTER:
        return eval_filter(r, n, NULL, out);
    case GY_JJ_N_TEST:
        return eval_test(r, n, out);
    default:
        GY_CHECK(!"a statement where an expression belongs");
        return -1;
    }
}

static int eval(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    if (gy_jj_step(r, 1) || gy_jj_down(r)) return -1;
    r->line = n->line;
    int failed = eval_node(r, n, out);
    r->depth--;
    return failed;
}

/* ---- statements ---- */

static int exec_print(gy_jj_run *r, const gy_jj_node *n) {
    gy_jj_val v;
    if (eval(r, n->a, &v)) return -1;
    r->line = n->line;
    return gy_jj_put_val(r, r->out, &v);
}

static int exec_if(gy_jj_run *r, const gy_jj_node *n) {
    for (const gy_jj_node *b = n->a; b; b = b->next) {
        gy_jj_val c;
        if (b->a && eval(r, b->a, &c)) return -1;
        if (!b->a || gy_jj_truth(&c)) return exec_body(r, b->b);
    }
    return 0;
}

/* A scope for the next turn of a loop: the last one again, unless a macro holds on to it. */
static int turn_scope(gy_jj_run *r, gy_jj_scope *up) {
    if (r->scope != up && !r->scope->kept) {
        r->scope->n = 0;
        return 0;
    }
    gy_jj_scope *s = scope_new(r, up);
    if (!s) return -1;
    r->scope = s;
    return 0;
}

/* The items that pass the loop's filter. */
static int for_filtered(gy_jj_run *r, const gy_jj_node *n, const gy_jj_list **items) {
    gy_jj_scope *before = r->scope;
    gy_jj_val kept, ok;
    if (gy_jj_list_new(r, GY_JJ_LIST, (*items)->n, &kept)) return -1;
    size_t n_kept = 0;
    int failed = 0;
    for (size_t i = 0; !failed && i < (*items)->n; i++) {
        failed = turn_scope(r, before) || assign(r, n->a, &(*items)->v[i]) || eval(r, n->e, &ok);
        if (!failed && gy_jj_truth(&ok)) kept.u.list->v[n_kept++] = (*items)->v[i];
    }
    kept.u.list->n = n_kept;
    r->scope = before;
    *items = kept.u.list;
    return failed ? -1 : 0;
}

static int for_turn(gy_jj_run *r, const gy_jj_node *n, gy_jj_loop *loop, gy_jj_scope *up) {
    gy_jj_val self = {.type = GY_JJ_LOOP, .u.loop = loop};
    if (gy_jj_step(r, 1) || turn_scope(r, up)) return -1;
    if (r->loop_name >= 0 && scope_set(r, r->loop_name, &self)) return -1;
    return assign(r, n->a, &loop->items->v[loop->at]) || exec_body(r, n->c) ? -1 : 0;
}

static int for_turns(gy_jj_run *r, const gy_jj_node *n, const gy_jj_list *items) {
    gy_jj_scope *before = r->scope;
    int failed = 0;
    gy_jj_loop *loop = gy_jj_alloc(r, 1, sizeof *loop);
    if (!loop) return -1;
    *loop = (gy_jj_loop){.items = items};
    for (; !failed && loop->at < items->n; loop->at++) {
        failed = for_turn(r, n, loop, before);
        int flow = r->flow;
        r->flow = FLOW_NONE;
        if (flow == FLOW_BREAK) break;
    }
    r->scope = before;
    return failed;
}

static int exec_for(gy_jj_run *r, const gy_jj_node *n) {
    gy_jj_val v;
    const gy_jj_list *items;
    if (eval(r, n->b, &v)) return -1;
    r->line = n->line;
    if (gy_jj_iterate(r, &v, &items) || (n->e && for_filtered(r, n, &items))) return -1;
    if (items->n) return for_turns(r, n, items);
    return n->d ? exec_scoped(r, n->d) : 0;
}

static int exec_set(gy_jj_run *r, const gy_jj_node *n) {
    gy_jj_val v;
    if (eval(r, n->b, &v)) return -1;
    r->line = n->line;
    return assign(r, n->a, &v);
}

static int exec_capture(gy_jj_run *r, const gy_jj_node *n) {
    gy_jj_val v;
    if (capture_scoped(r, n->b, &v) || (n->c && eval_filter(r, n->c, &v, &v))) return -1;
    return assign(r, n->a, &v);
}

static int macro_make(gy_jj_run *r, const gy_jj_node *n, gy_jj_val *out) {
    gy_jj_macro *m = gy_jj_alloc(r, 1, sizeof *m);
    if (!m) return -1;
    *m = (gy_jj_macro){.node = n, .scope = r->scope};
    for (gy_jj_scope *s = r->scope; s; s = s->up) s->kept = 1;
    *out = (gy_jj_val){.type = GY_JJ_MACRO, .u.macro = m};
    return 0;
}

static int exec_macro(gy_jj_run *r, const gy_jj_node *n) {
    gy_jj_val m;
    return macro_make(r, n, &m) || scope_set(r, n->name, &m) ? -1 : 0;
}

static int exec_call_block(gy_jj_run *r, const gy_jj_node *n) {
    gy_jj_text word = {.s = "caller", .len = 6};
    gy_jj_val name = {.type = GY_JJ_STR, .u.str = &word}, v;
    gy_jj_named caller = {.name = &name};
    if (macro_make(r, n->b, &caller.val) || eval_call(r, n->a, &caller, &v)) return -1;
    return gy_jj_put_val(r, r->out, &v);
}

static int exec_filtered(gy_jj_run *r, const gy_jj_node *n) {
    gy_jj_val v;
    if (capture_scoped(r, n->b, &v) || eval_filter(r, n->a, &v, &v)) return -1;
    return gy_jj_put_val(r, r->out, &v);
}

/* The values are those of outside, whatever the names inside are. */
static int with_values(gy_jj_run *r, const gy_jj_node *sets, gy_jj_scope *inside) {
    gy_jj_scope *before = r->scope;
    for (const gy_jj_node *s = sets; s; s = s->next) {
        gy_jj_val v;
        if (eval(r, s->b, &v)) return -1;
        r->scope = inside;
        int failed = assign(r, s->a, &v);
        r->scope = before;
        if (failed) return -1;
    }
    return 0;
}

static int exec_with(gy_jj_run *r, const gy_jj_node *n) {
    gy_jj_scope *before = r->scope, *s = scope_new(r, before);
    if (!s || with_values(r, n->a, s)) return -1;
    r->scope = s;
    int failed = exec_body(r, n->b);
    r->scope = before;
    return failed;
}

static int exec(gy_jj_run *r, const gy_jj_node *n) {
    switch ((gy_jj_kind)n->kind) {
    case GY_JJ_N_TEXT:
        return gy_jj_put_str(r, r->out, &n->lit);
    case GY_JJ_N_PRINT:
        return exec_print(r, n);
    case GY_JJ_N_IF:
        return exec_if(r, n);
    case GY_JJ_N_FOR:
        return exec_for(r, n);
    case GY_JJ_N_SET:
        return exec_set(r, n);
    case GY_JJ_N_CAPTURE:
        return exec_capture(r, n);
    case GY_JJ_N_MACRO:
        return exec_macro(r, n);
    case GY_JJ_N_CALLBODY:
        return exec_call_block(r, n);
    case GY_JJ_N_FILTERED:
        return exec_filtered(r, n);
    case GY_JJ_N_WITH:
        return exec_with(r, n);
    case GY_JJ_N_SCOPE:
        return exec_scoped(r, n->a);
    case GY_JJ_N_BREAK:
        r->flow = FLOW_BREAK;
        return 0;
    case GY_JJ_N_CONTINUE:
        r->flow = FLOW_CONTINUE;
        return 0;
    default:
        GY_CHECK(!"an expression where a statement belongs");
        return -1;
    }
}

/* Ends early when a break or continue is under way. */
static int exec_body(gy_jj_run *r, const gy_jj_node *n) {
    if (gy_jj_down(r)) return -1;
    int failed = 0;
    for (; n && !failed && r->flow == FLOW_NONE; n = n->next) {
        r->line = n->line;
        failed = gy_jj_step(r, 1) || exec(r, n);
    }
    r->depth--;
    return failed;
}

/* ---- a rendering ---- */

void gy_jj_bind(gy_jj_run *r, const char *name, gy_jj_val v) {
    int at = name_of(r, name);
    if (at >= 0) r->globals[at] = v;
}

int gy_jj_keep(gy_jj_run *r, gy_json *doc) {
    gy_jj_doc *d = gy_jj_alloc(r, 1, sizeof *d);
    if (!d) {
        gy_json_free(doc);
        return -1;
    }
    *d = (gy_jj_doc){doc, r->docs};
    r->docs = d;
    return 0;
}

gy_status gy_jj_run_open(const gy_jinja *t, const struct tm *now, gy_err *err, gy_jj_run *r) {
    *r = (gy_jj_run){.t = t, .err = err, .now = now, .line = 1};
    r->arena = gy_arena_create(GY_MEM_TEXT, 65536);
    if (!r->arena) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for the template", t->name);
    r->globals = gy_jj_alloc(r, t->names.len, sizeof *r->globals);
    r->scope = r->globals ? scope_new(r, NULL) : NULL;
    if (!r->scope) {
        gy_jj_run_close(r);
        return err->status == GY_E_LIMIT ? GY_E_LIMIT : GY_E_NOMEM;
    }
    r->loop_name = name_of(r, "loop");
    for (size_t i = 0; i < t->names.len; i++) {
        int which = gy_jj_func_find(t->names.data[i]);
        if (which >= 0) r->globals[i] = (gy_jj_val){.type = GY_JJ_FUNC, .u.i = which};
    }
    return GY_OK;
}

gy_status gy_jj_run_go(gy_jj_run *r, gy_jj_buf *out) {
    *out = (gy_jj_buf){.is_output = 1};
    r->out = out;
    return exec_body(r, r->t->body) ? r->err->status : GY_OK;
}

void gy_jj_run_close(gy_jj_run *r) {
    for (gy_jj_doc *d = r->docs; d; d = d->next) gy_json_free(d->doc);
    gy_arena_destroy(r->arena);
    *r = (gy_jj_run){0};
}

static int bind_context(gy_jj_run *r, const gy_jv *context) {
    for (void *it = gy_jv_first(context); it; it = gy_jv_next(context, it)) {
        const char *name = gy_jv_key(it, NULL);
        gy_jj_val v;
        if (!gy_jinja_reads(r->t, name)) continue;
        if (gy_jj_convert(r, gy_jv_val(it), GY_JJ_DATA, &v)) return -1;
        gy_jj_bind(r, name, v);
    }
    return 0;
}

gy_status gy_jinja_render(const gy_jinja *t, const gy_jv *context, const struct tm *now, gy_err *err,
                          gy_jinja_out *out) {
    gy_err here = {0};
    gy_jj_run r;
    gy_jj_buf b;
    if (!err) err = &here; /* the status is read from it */
    if (gy_jv_type(context) != GY_J_NONE && gy_jv_type(context) != GY_J_OBJECT)
        return gy_err_set(err, GY_E_ARG, "the template's values are %s, expected an object",
                          gy_jtype_name(gy_jv_type(context)));
    GY_TRY(gy_jj_run_open(t, now, err, &r));
    gy_status st = gy_jv_type(context) == GY_J_OBJECT && bind_context(&r, context) ? err->status : GY_OK;
    if (st == GY_OK) st = gy_jj_run_go(&r, &b);
    if (st == GY_OK) st = gy_jj_split(&b, err, out);
    gy_jj_run_close(&r);
    return st;
}
