/* JSON Schema (2020-12, and the older spellings that OpenAPI and Pydantic still write) to trees.
 *
 * What is generated always satisfies the schema; not all that satisfies it is generated (docs/grammar.md: order of
 * members, whitespace, members that are not declared). A keyword that says something about values and that is not
 * known here is refused by its name; one that only describes is skipped.
 *
 * A place in the tree is compiled from a view: the schemas that all hold for it (itself, what $ref and allOf add, one
 * alternative of each anyOf). A schema that is reached by a lone $ref becomes a rule, which is what makes recursion
 * possible. JSON's depth limit bounds the recursion here, `depth` the one through $ref with siblings.
 */
#include "base/json.h"
#include "sample/grammar_int.h"
#include "sample/grammar_schema_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 100 };

static const char *const refused[] = {"not",
                                      "if",
                                      "then",
                                      "else",
                                      "patternProperties",
                                      "propertyNames",
                                      "minProperties",
                                      "maxProperties",
                                      "dependencies",
                                      "uniqueItems",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "multipleOf",
                                      "unevaluatedProperties",
                                      "unevaluatedItems",
                                      "$dynamicRef",
                                      "$recursiveRef",
                                      "additionalItems"};
static const char *const constraining[] = {"type",
                                           "enum",
                                           "const",
                                           "properties",
                                           "required",
                                           "additionalProperties",
                                           "items",
                                           "minItems",
                                           "maxItems",
                                           "pattern",
                                           "minLength",
                                           "maxLength",
                                           "format",
                                           "minimum",
                                           "maximum",
                                           "anyOf",
                                           "oneOf",
                                           "allOf",
                                           "exclusiveMinimum",
                                           "exclusiveMaximum",
                                           "$ref",
                                           "prefixItems"};
#define LEN(a) (sizeof(a) / sizeof *(a))

/* ---- errors and the path that they name ---- */

void gy_gs_fail(schema *s, gy_status st, const char *fmt, ...) {
    char msg[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    gy_gb_fail(s->b, st, "json schema: at %s: %s", s->path, msg);
}

/* Returns the length to go back to. Too long a path is cut. */
size_t gy_gs_path_push(schema *s, const char *step) {
    size_t was = s->path_len, room = sizeof s->path - was;
    int n = snprintf(s->path + was, room, "/%s", step);
    s->path_len = was + (n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1);
    return was;
}

void gy_gs_path_pop(schema *s, size_t was) {
    s->path_len = was;
    s->path[was] = '\0';
}

/* ---- views ---- */

/* A harmless value of a refused keyword says nothing. */
static int says_nothing(const char *key, const gy_jv *v) {
    if (!strcmp(key, "uniqueItems")) return gy_jv_type(v) == GY_J_BOOL && !gy_jv_bool(v, 1);
    if (!strcmp(key, "minProperties")) return gy_jv_int(v, 1) == 0;
    return !strcmp(key, "multipleOf") && gy_jv_int(v, 0) == 1;
}

static void keywords_check(schema *s, const gy_jv *v) {
    for (size_t i = 0; i < LEN(refused); i++) {
        const gy_jv *x = gy_jv_get(v, refused[i]);
        if (x && !says_nothing(refused[i], x)) gy_gs_fail(s, GY_E_UNSUPPORTED, "'%s' is not supported", refused[i]);
    }
}

void gy_gs_view_add(schema *s, view *w, const gy_jv *v) {
    gy_jtype t = gy_jv_type(v);
    if (t == GY_J_BOOL) {
        w->never |= !gy_jv_bool(v, 1);
        return;
    }
    if (t != GY_J_OBJECT) {
        gy_gs_fail(s, GY_E_ARG, "found %s; expected a schema (an object or a boolean)", gy_jtype_name(t));
        return;
    }
    if (w->n == MAX_PARTS) {
        gy_gs_fail(s, GY_E_LIMIT, "more than %d schemas hold for one place; does a $ref lead back here?", MAX_PARTS);
        return;
    }
    keywords_check(s, v);
    w->part[w->n++] = (part){v, 0};
}

/* The value of a keyword that a part still has to say. */
const gy_jv *gy_gs_part_get(const part *p, const char *key) {
    if ((p->done & DONE_REF) && !strcmp(key, "$ref")) return NULL;
    if ((p->done & DONE_ALL) && !strcmp(key, "allOf")) return NULL;
    if ((p->done & DONE_ANY) && !strcmp(key, "anyOf")) return NULL;
    if ((p->done & DONE_ONE) && !strcmp(key, "oneOf")) return NULL;
    return gy_jv_get(p->v, key);
}

static int part_says(const part *p, const char *except) {
    for (size_t i = 0; i < LEN(constraining); i++)
        if (strcmp(constraining[i], except) && gy_gs_part_get(p, constraining[i])) return 1;
    return gy_jv_bool(gy_jv_get(p->v, "nullable"), 0);
}

static void view_drop_silent(view *w) {
    int n = 0;
    for (int i = 0; i < w->n; i++)
        if (part_says(&w->part[i], "")) w->part[n++] = w->part[i];
    w->n = n;
}

/* A keyword that at most one part may hold. */
const gy_jv *gy_gs_view_one(schema *s, const view *w, const char *key) {
    const gy_jv *found = NULL;
    for (int i = 0; i < w->n; i++) {
        const gy_jv *v = gy_gs_part_get(&w->part[i], key);
        if (v && found)
            gy_gs_fail(s, GY_E_UNSUPPORTED, "found '%s' in two schemas that hold together (allOf, $ref); expected one",
                       key);
        if (v) found = v;
    }
    return found;
}

int gy_gs_view_has(const view *w, const char *key) {
    for (int i = 0; i < w->n; i++)
        if (gy_gs_part_get(&w->part[i], key)) return 1;
    return 0;
}

/* ---- $ref ---- */

static int hex_of(char c) {
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* One step of a JSON pointer in a URI fragment (RFC 6901, 6): %xx, then ~1 and ~0. */
static void step_decode(const char *from, size_t len, gy_str *out) {
    gy_str_clear(out);
    for (size_t i = 0; i < len; i++) {
        char c = from[i];
        if (c == '%' && i + 2 < len && hex_of(from[i + 1]) >= 0 && hex_of(from[i + 2]) >= 0) {
            c = (char)(hex_of(from[i + 1]) * 16 + hex_of(from[i + 2]));
            i += 2;
        }
        if (c == '~' && i + 1 < len && (from[i + 1] == '0' || from[i + 1] == '1')) c = from[++i] == '0' ? '~' : '/';
        gy_str_putc(out, c);
    }
}

static const gy_jv *step_down(const gy_jv *v, const char *key) {
    if (gy_jv_type(v) != GY_J_ARRAY) return gy_jv_get(v, key);
    char *end = NULL;
    unsigned long i = strtoul(key, &end, 10);
    return key[0] >= '0' && key[0] <= '9' && !*end && i < gy_jv_len(v) ? gy_jv_at(v, i) : NULL;
}

static const gy_jv *ref_find(schema *s, const gy_jv *ref) {
    size_t len;
    const char *z = gy_jv_str(ref, &len);
    if (!z) {
        gy_gs_fail(s, GY_E_ARG, "'$ref': found %s; expected a string", gy_jtype_name(gy_jv_type(ref)));
        return NULL;
    }
    if (z[0] != '#' || (z[1] && z[1] != '/')) {
        gy_gs_fail(s, GY_E_UNSUPPORTED,
                   "'$ref': found '%.100s'; only places in this document (#, #/$defs/name) are supported", z);
        return NULL;
    }
    const gy_jv *v = s->root;
    gy_str step = {0};
    for (size_t i = 1; i < len && v;) {
        size_t end = i + 1;
        while (end < len && z[end] != '/') end++;
        step_decode(z + i + 1, end - i - 1, &step);
        v = step_down(v, gy_str_z(&step));
        i = end;
    }
    if (step.failed) gy_gb_nomem(s->b);
    gy_str_free(&step);
    if (!v) gy_gs_fail(s, GY_E_ARG, "'$ref': nothing is at '%.100s' in this document", z);
    return v;
}

/* The rule of a schema that a $ref leads to; its tree is made later, from the list of rules. */
static int32_t ref_call(schema *s, const gy_jv *ref, const gy_jv *target) {
    gy_gbuild *b = s->b;
    for (size_t i = 0; i < b->rules.len; i++)
        if (b->rules.data[i].key == target) return gy_gb_call(b, (uint32_t)i);
    size_t len;
    const char *z = gy_jv_str(ref, &len);
    int32_t rule = gy_gb_rule(b, z, len);
    if (b->st >= 0) b->rules.data[rule].key = target;
    return gy_gb_call(b, (uint32_t)rule);
}

/* ---- one place ---- */

static const gy_jv *list_of(schema *s, const gy_jv *v, const char *key) {
    if (gy_jv_type(v) == GY_J_ARRAY && gy_jv_len(v) > 0) return v;
    gy_gs_fail(s, GY_E_ARG, "'%s': found %s; expected an array of at least one schema", key,
               gy_jv_type(v) == GY_J_ARRAY ? "an empty array" : gy_jtype_name(gy_jv_type(v)));
    return NULL;
}

static void all_expand(schema *s, view *w, int i) {
    const gy_jv *all = gy_gs_part_get(&w->part[i], "allOf");
    w->part[i].done |= DONE_ALL;
    if (!list_of(s, all, "allOf")) return;
    for (size_t k = 0; k < gy_jv_len(all) && s->b->st >= 0; k++) gy_gs_view_add(s, w, gy_jv_at(all, k));
}

/* Adds what allOf and $ref say. Returns a call when the whole view is one $ref, else -1. */
static int32_t view_expand(schema *s, view *w) {
    view_drop_silent(w);
    for (int i = 0; i < w->n && s->b->st >= 0;) {
        const gy_jv *ref = gy_gs_part_get(&w->part[i], "$ref");
        if (gy_gs_part_get(&w->part[i], "allOf")) {
            all_expand(s, w, i);
            view_drop_silent(w);
            i = 0;
        } else if (ref) {
            const gy_jv *target = ref_find(s, ref);
            if (s->b->st < 0) break;
            if (w->n == 1 && !w->never && !part_says(&w->part[0], "$ref")) return ref_call(s, ref, target);
            w->part[i].done |= DONE_REF;
            gy_gs_view_add(s, w, target);
            view_drop_silent(w);
            i = 0;
        } else {
            i++;
        }
    }
    return -1;
}

/* anyOf and oneOf alike: one alternative after the other, each with all else that holds. */
static int32_t view_alternatives(schema *s, const view *w, int i, const char *key, unsigned done) {
    const gy_jv *list = list_of(s, gy_jv_get(w->part[i].v, key), key);
    int32_t alt = gy_gb_node(s->b, GY_G_ALT);
    size_t was = gy_gs_path_push(s, key);
    for (size_t k = 0; k < gy_jv_len(list) && s->b->st >= 0; k++) {
        view x = *w;
        x.part[i].done |= done;
        view_drop_silent(&x);
        char step[24];
        snprintf(step, sizeof step, "%zu", k);
        size_t inner = gy_gs_path_push(s, step);
        gy_gs_view_add(s, &x, gy_jv_at(list, k));
        gy_gb_add(s->b, alt, gy_gs_view_node(s, &x));
        gy_gs_path_pop(s, inner);
    }
    gy_gs_path_pop(s, was);
    return alt;
}

int32_t gy_gs_view_node(schema *s, view *w) {
    if (!gy_gb_work(s->b, 100)) return 0;
    if (++s->depth > MAX_DEPTH)
        gy_gs_fail(s, GY_E_LIMIT, "schemas nest more than %d deep; does a $ref with siblings contain itself?",
                   MAX_DEPTH);
    int32_t node = s->b->st < 0 ? 0 : view_expand(s, w);
    for (int i = 0; i < w->n && node < 0 && s->b->st >= 0; i++) {
        if (gy_gs_part_get(&w->part[i], "anyOf"))
            node = view_alternatives(s, w, i, "anyOf", DONE_ANY);
        else if (gy_gs_part_get(&w->part[i], "oneOf"))
            node = view_alternatives(s, w, i, "oneOf", DONE_ONE);
    }
    if (node < 0 && s->b->st >= 0) node = w->never ? gy_gb_node(s->b, GY_G_FAIL) : gy_gs_values(s, w);
    s->depth--;
    return s->b->st < 0 ? 0 : node;
}

int32_t gy_gs_node(schema *s, const gy_jv *v, const char *step) {
    view w = {0};
    size_t was = gy_gs_path_push(s, step);
    gy_gs_view_add(s, &w, v);
    int32_t node = gy_gs_view_node(s, &w);
    gy_gs_path_pop(s, was);
    return node;
}

/* ---- the document ---- */

static void rule_make(schema *s, size_t i) {
    snprintf(s->path, sizeof s->path, "%s", gy_gb_rule_name(s->b, (uint32_t)i));
    s->path_len = strlen(s->path);
    s->depth = 0;
    view w = {0};
    gy_gs_view_add(s, &w, s->b->rules.data[i].key);
    int32_t node = gy_gs_view_node(s, &w);
    if (s->b->st >= 0) s->b->rules.data[i].root = node ? node : gy_gb_node(s->b, GY_G_EMPTY);
}

static void document_make(gy_gbuild *b, const gy_json *doc) {
    schema s = {.b = b, .root = gy_json_root(doc), .path = "#", .path_len = 1};
    gy_gj_init(&s.j, b);
    gy_gb_rule(b, "#", 1);
    if (b->st < 0) return;
    b->rules.data[0].key = s.root;
    for (size_t i = 0; i < b->rules.len && b->st >= 0; i++)
        if (b->rules.data[i].root < 0) rule_make(&s, i);
}

void gy_g_schema(gy_gbuild *b, const char *text, size_t len) {
    const gy_json_limits lim = {.max_bytes = GY_GRAMMAR_MAX_SOURCE, .max_depth = 64};
    gy_err err = {0};
    gy_json *doc = NULL;
    gy_status st = gy_json_parse(text, len, &lim, &err, &doc);
    if (st < 0)
        gy_gb_fail(b, st == GY_E_FORMAT ? GY_E_ARG : st, "json schema: %s", err.msg);
    else
        document_make(b, doc);
    for (size_t i = 0; i < b->rules.len; i++) b->rules.data[i].key = NULL;
    gy_json_free(doc);
}
