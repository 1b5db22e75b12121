/* Statements of templates, and a template's life. Which tags exist is the table at the end; another is an error that
 * names it.
 */
#include "text/jinja_int.h"

#include <string.h>

static int parse_body(gy_jj_parser *p, const char *const *ends, gy_jj_node **head);

static int expect_tag_end(gy_jj_parser *p) {
    if (gy_jj_peek(p)->type != GY_JJ_T_TAG_END) return gy_jj_unexpected(p, "%}");
    p->at++;
    return 0;
}

/* A body up to {% end %}, which is read with its name. *which: which of ends it was. */
static int body_until(gy_jj_parser *p, const char *const *ends, gy_jj_node **head, int *which) {
    if (expect_tag_end(p) || gy_jj_enter(p) || parse_body(p, ends, head)) return -1;
    p->depth--;
    for (*which = 0; ends[*which] && !gy_jj_is_name(p, ends[*which]);) ++*which;
    p->at++;
    return 0;
}

static int body_to_end(gy_jj_parser *p, const char *end, gy_jj_node **head) {
    const char *const ends[] = {end, NULL};
    int which;
    return body_until(p, ends, head, &which);
}

static gy_jj_node *parse_if(gy_jj_parser *p) {
    static const char *const all[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_IF), **tail = n ? &n->a : NULL;
    for (int which = 0, is_else = 0; n;) {
        gy_jj_node *b = *tail = gy_jj_node_new(p, GY_JJ_N_BRANCH);
        if (!b || (!is_else && !(b->a = gy_jj_parse_tuple(p)))) return NULL;
        if (body_until(p, is_else ? last : all, &b->b, &which)) return NULL;
        if (is_else || which == 2) break;
        is_else = which == 1;
        tail = &b->next;
    }
    return n;
}

static gy_jj_node *parse_for(gy_jj_parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL};
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_FOR);
    if (!n || !(n->a = gy_jj_parse_target(p, 0))) return NULL;
    if (!gy_jj_skip_name(p, "in")) {
        gy_jj_unexpected(p, "in");
        return NULL;
    }
    /* "x for y if z": the walked value is no conditional expression */
    if (!(n->b = gy_jj_parse_or(p))) return NULL;
    if (gy_jj_skip_name(p, "if") && !(n->e = gy_jj_parse_expr(p))) return NULL;
    if (gy_jj_is_name(p, "recursive")) {
        gy_jj_parse_fail(p, GY_E_FORMAT, n->line, "recursive loops are not supported");
        return NULL;
    }
    int which;
    p->loops++;
    if (body_until(p, ends, &n->c, &which)) return NULL;
    p->loops--;
    return which == 0 && body_to_end(p, "endfor", &n->d) ? NULL : n;
}

static gy_jj_node *parse_set(gy_jj_parser *p) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_SET);
    if (!n || !(n->a = gy_jj_parse_target(p, 1))) return NULL;
    if (gy_jj_skip_op(p, "=")) return (n->b = gy_jj_parse_tuple(p)) ? n : NULL;
    n->kind = GY_JJ_N_CAPTURE;
    if (gy_jj_is_op(p, "|") && !(n->c = gy_jj_parse_filters(p, NULL, 0))) return NULL;
    return body_to_end(p, "endset", &n->b) ? NULL : n;
}

/* "(a, b=1)" behind a macro's name or "call". */
static int parse_params(gy_jj_parser *p, gy_jj_node **head) {
    gy_jj_node **tail = head;
    int had_default = 0;
    if (gy_jj_expect_op(p, "(")) return -1;
    while (!gy_jj_skip_op(p, ")")) {
        if (tail != head && gy_jj_expect_op(p, ",")) return -1;
        if (tail != head && gy_jj_skip_op(p, ")")) break;
        gy_jj_node *arg = *tail = gy_jj_node_new(p, GY_JJ_N_ARG);
        if (!arg) return -1;
        if (gy_jj_peek(p)->type != GY_JJ_T_NAME) return gy_jj_unexpected(p, "the name of a parameter");
        if ((arg->name = gy_jj_name_index(p, gy_jj_peek(p)->s)) < 0) return -1;
        p->at++;
        if (gy_jj_skip_op(p, "=")) {
            had_default = 1;
            if (!(arg->a = gy_jj_parse_expr(p))) return -1;
        } else if (had_default)
            return gy_jj_parse_fail(p, GY_E_FORMAT, arg->line,
                                    "a parameter without a default behind one with a default");
        tail = &arg->next;
    }
    return 0;
}

/* Parameters have been read. The body is a world of its own for break, continue and caller. */
static int macro_body(gy_jj_parser *p, const char *end, gy_jj_node *n) {
    uint8_t *uses = p->uses;
    int loops = p->loops;
    p->uses = &n->flags;
    p->loops = 0;
    if (body_to_end(p, end, &n->b)) return -1;
    p->uses = uses;
    p->loops = loops;
    return 0;
}

static gy_jj_node *parse_macro(gy_jj_parser *p) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_MACRO);
    if (!n) return NULL;
    if (gy_jj_peek(p)->type != GY_JJ_T_NAME) {
        gy_jj_unexpected(p, "the name of the macro");
        return NULL;
    }
    if ((n->name = gy_jj_name_index(p, gy_jj_peek(p)->s)) < 0) return NULL;
    p->at++;
    return parse_params(p, &n->a) || macro_body(p, "endmacro", n) ? NULL : n;
}

static gy_jj_node *parse_call_block(gy_jj_parser *p) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_CALLBODY);
    if (!n || !(n->b = gy_jj_node_new(p, GY_JJ_N_MACRO)) || (n->b->name = gy_jj_name_index(p, "caller")) < 0)
        return NULL;
    if (gy_jj_is_op(p, "(") && parse_params(p, &n->b->a)) return NULL;
    if (!(n->a = gy_jj_parse_postfix(p))) return NULL;
    if (n->a->kind != GY_JJ_N_CALL) {
        gy_jj_unexpected(p, "a call");
        return NULL;
    }
    return macro_body(p, "endcall", n->b) ? NULL : n;
}

static gy_jj_node *parse_filter_block(gy_jj_parser *p) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_FILTERED);
    if (!n || !(n->a = gy_jj_parse_filters(p, NULL, 1))) return NULL;
    return body_to_end(p, "endfilter", &n->b) ? NULL : n;
}

static gy_jj_node *parse_with(gy_jj_parser *p) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_WITH), **tail = n ? &n->a : NULL;
    while (n && gy_jj_peek(p)->type != GY_JJ_T_TAG_END) {
        if (n->a && gy_jj_expect_op(p, ",")) return NULL;
        gy_jj_node *set = *tail = gy_jj_node_new(p, GY_JJ_N_SET);
        if (!set || !(set->a = gy_jj_parse_target(p, 0)) || gy_jj_expect_op(p, "=") || !(set->b = gy_jj_parse_expr(p)))
            return NULL;
        tail = &set->next;
    }
    return n && body_to_end(p, "endwith", &n->b) == 0 ? n : NULL;
}

static gy_jj_node *parse_generation(gy_jj_parser *p) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_SCOPE);
    return n && body_to_end(p, "endgeneration", &n->a) == 0 ? n : NULL;
}

static gy_jj_node *parse_jump(gy_jj_parser *p, gy_jj_kind kind, const char *word) {
    gy_jj_node *n = gy_jj_node_new(p, kind);
    if (n && !p->loops) {
        gy_jj_parse_fail(p, GY_E_FORMAT, n->line, "%s outside of a loop", word);
        return NULL;
    }
    return n;
}

static gy_jj_node *parse_break(gy_jj_parser *p) {
    return parse_jump(p, GY_JJ_N_BREAK, "break");
}

static gy_jj_node *parse_continue(gy_jj_parser *p) {
    return parse_jump(p, GY_JJ_N_CONTINUE, "continue");
}

static const struct {
    const char *name;
    gy_jj_node *(*parse)(gy_jj_parser *p); /* behind the name, up to (not with) the last %} */
} tags[] = {
    {"if", parse_if},           {"for", parse_for},
    {"set", parse_set},         {"macro", parse_macro},
    {"call", parse_call_block}, {"filter", parse_filter_block},
    {"with", parse_with},       {"generation", parse_generation},
    {"break", parse_break},     {"continue", parse_continue},
};

static gy_jj_node *parse_tag(gy_jj_parser *p) {
    const gy_jj_token *t = gy_jj_peek(p);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (strcmp(t->s, tags[i].name) != 0) continue;
        p->at++;
        gy_jj_node *n = tags[i].parse(p);
        return n && expect_tag_end(p) == 0 ? n : NULL;
    }
    gy_jj_parse_fail(p, GY_E_FORMAT, t->line, "the tag \"%.60s\" is not known here", t->s);
    return NULL;
}

static gy_jj_node *parse_print(gy_jj_parser *p) {
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_PRINT);
    p->at++;
    if (!n || !(n->a = gy_jj_parse_tuple(p))) return NULL;
    if (gy_jj_peek(p)->type != GY_JJ_T_PRINT_END) {
        gy_jj_unexpected(p, "}}");
        return NULL;
    }
    p->at++;
    return n;
}

static gy_jj_node *parse_text(gy_jj_parser *p) {
    const gy_jj_token *t = gy_jj_peek(p);
    gy_jj_node *n = gy_jj_node_new(p, GY_JJ_N_TEXT);
    gy_jj_text *text = gy_arena_alloc(p->t->arena, 1, sizeof *text);
    if (!n || !text) {
        gy_jj_parse_fail(p, GY_E_NOMEM, t->line, "no memory for the template");
        return NULL;
    }
    *text = (gy_jj_text){.s = t->s, .len = t->len};
    n->lit = (gy_jj_val){.type = GY_JJ_STR, .u.str = text};
    p->at++;
    return n;
}

static int is_end(const gy_jj_parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (gy_jj_is_name(p, *ends)) return 1;
    return 0;
}

static int missing_end(gy_jj_parser *p, const char *const *ends) {
    if (!ends) return 0;
    while (ends[1]) ends++;
    return gy_jj_parse_fail(p, GY_E_FORMAT, gy_jj_peek(p)->line, "the template ends, expected {%% %s %%}", *ends);
}

/* Up to "{%" and one of ends, whose name is then the current token; ends NULL: up to the end of the template. */
static int parse_body(gy_jj_parser *p, const char *const *ends, gy_jj_node **head) {
    for (gy_jj_node **tail = head;; tail = &(*tail)->next) {
        const gy_jj_token *t = gy_jj_peek(p);
        if (t->type == GY_JJ_T_END) return missing_end(p, ends);
        if (t->type == GY_JJ_T_TEXT)
            *tail = parse_text(p);
        else if (t->type == GY_JJ_T_PRINT_BEGIN)
            *tail = parse_print(p);
        else {
            p->at++;
            if (gy_jj_peek(p)->type != GY_JJ_T_NAME) return gy_jj_unexpected(p, "the name of a tag");
            if (is_end(p, ends)) return 0;
            *tail = parse_tag(p);
        }
        if (!*tail) return -1;
    }
}

int gy_jj_parse(gy_jj_parser *p) {
    return parse_body(p, NULL, &p->t->body);
}

/* ---- a template's life ---- */

static gy_jinja_limits limits_of(const gy_jinja_limits *lim) {
    gy_jinja_limits l = lim ? *lim : (gy_jinja_limits){0};
    if (!l.max_template_bytes) l.max_template_bytes = (size_t)1 << 20;
    if (!l.max_output_bytes) l.max_output_bytes = (size_t)64 << 20;
    if (!l.max_memory_bytes) l.max_memory_bytes = (size_t)256 << 20;
    if (l.max_steps <= 0) l.max_steps = 20000000;
    if (l.max_depth <= 0) l.max_depth = 400;
    return l;
}

static gy_status jinja_fill(gy_jinja *t, const char *text, size_t len, const char *name, gy_err *err) {
    t->arena = gy_arena_create(GY_MEM_TEXT, 16384);
    t->name = t->arena ? gy_arena_strndup(t->arena, name, strlen(name)) : NULL;
    t->source = t->name ? gy_arena_strndup(t->arena, text, len) : NULL;
    t->source_len = len;
    if (!t->source) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for the template", name);
    gy_jj_parser p = {.t = t, .err = err};
    int failed = gy_jj_lex(&p, text, len) || gy_jj_parse(&p);
    gy_vec_free(&p.tok);
    return failed ? err->status : GY_OK;
}

gy_status gy_jinja_compile(const char *text, size_t len, const char *name, const gy_jinja_limits *lim, gy_err *err,
                           gy_jinja **out) {
    gy_err here = {0};
    if (!err) err = &here; /* the status is read from it */
    gy_jinja_limits l = limits_of(lim);
    if (len > l.max_template_bytes)
        return gy_err_set(err, GY_E_LIMIT, "%s: a template of %zu bytes, at most %zu are allowed", name, len,
                          l.max_template_bytes);
    if (!gy_utf8_valid(text, len)) return gy_err_set(err, GY_E_FORMAT, "%s: the template is not valid UTF-8", name);
    gy_jinja *t = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof *t);
    if (!t) return gy_err_set(err, GY_E_NOMEM, "%s: no memory for the template", name);
    t->lim = l;
    gy_status st = jinja_fill(t, text, len, name, err);
    if (st < 0) {
        gy_jinja_destroy(t);
        return st;
    }
    *out = t;
    return GY_OK;
}

void gy_jinja_destroy(gy_jinja *t) {
    if (!t) return;
    gy_vec_free(&t->names);
    gy_arena_destroy(t->arena);
    gy_mem_free(t);
}

const char *gy_jinja_source(const gy_jinja *t, size_t *len_out) {
    *len_out = t->source_len;
    return t->source;
}

int gy_jinja_reads(const gy_jinja *t, const char *name) {
    for (size_t i = 0; i < t->names.len; i++)
        if (strcmp(t->names.data[i], name) == 0) return 1;
    return 0;
}
