/* Trees of a grammar: nodes, sets of code points, rules, and the error that sticks. No parsing and no automata here.
 * Parents are made before or after their children; the depth that a node records is what makes walks safe to recurse.
 */
#include "sample/grammar_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gy_gb_init(gy_gbuild *b, gy_err *err) {
    *b = (gy_gbuild){.err = err};
    gy_gb_node(b, GY_G_EMPTY);
}

void gy_gb_fini(gy_gbuild *b) {
    gy_str_free(&b->pool);
    gy_str_free(&b->names);
    gy_vec_free(&b->ranges);
    gy_vec_free(&b->nodes);
    gy_vec_free(&b->rules);
    gy_vec_free(&b->syms);
    gy_vec_free(&b->trs);
    gy_vec_free(&b->dcalls);
    gy_vec_free(&b->states);
    gy_vec_free(&b->starts);
}

void gy_gb_fail(gy_gbuild *b, gy_status st, const char *fmt, ...) {
    if (b->st < 0) return;
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    /* What is quoted may be any bytes, and may have been cut in the middle of a character. */
    gy_str clean = {0};
    gy_utf8_sanitize(msg, strlen(msg), &clean);
    b->st = st;
    gy_err_set(b->err, st, "%s", gy_str_z(&clean));
    gy_str_free(&clean);
}

void gy_gb_nomem(gy_gbuild *b) {
    gy_gb_fail(b, GY_E_NOMEM, "grammar: no memory to compile it");
}

int gy_gb_work(gy_gbuild *b, uint64_t steps) {
    b->work += steps;
    if (b->work > GY_G_MAX_WORK)
        gy_gb_fail(b, GY_E_LIMIT, "grammar: it takes more than %d steps to compile; write it simpler or repeat less",
                   GY_G_MAX_WORK);
    return b->st >= 0;
}

/* ---- nodes ---- */

int32_t gy_gb_node(gy_gbuild *b, gy_gkind kind) {
    if (!gy_gb_work(b, 1)) return 0;
    if (b->nodes.len >= GY_G_MAX_NODES) {
        gy_gb_fail(b, GY_E_LIMIT, "grammar: found more than %d parts; write it simpler", GY_G_MAX_NODES);
        return 0;
    }
    gy_gnode n = {.kind = (uint8_t)kind, .first = -1, .last = -1, .next = -1};
    if (gy_vec_push(&b->nodes, GY_MEM_SAMPLE, n)) {
        gy_gb_nomem(b);
        return 0;
    }
    return (int32_t)b->nodes.len - 1;
}

static void node_deepen(gy_gbuild *b, int32_t parent, int32_t child) {
    int depth = b->nodes.data[child].depth + 1;
    if (depth > GY_G_MAX_DEPTH)
        gy_gb_fail(b, GY_E_LIMIT, "grammar: found parts nested more than %d deep", GY_G_MAX_DEPTH);
    if (depth > b->nodes.data[parent].depth) b->nodes.data[parent].depth = (uint16_t)depth;
}

/* Node 0 stands for the empty text wherever one is wanted: it never becomes anybody's child. */
void gy_gb_add(gy_gbuild *b, int32_t parent, int32_t child) {
    if (b->st < 0) return;
    if (child == 0) child = gy_gb_node(b, GY_G_EMPTY);
    if (b->st < 0) return;
    gy_gnode *p = &b->nodes.data[parent];
    if (p->last >= 0)
        b->nodes.data[p->last].next = child;
    else
        p->first = child;
    p->last = child;
    node_deepen(b, parent, child);
}

static int32_t node_pair(gy_gbuild *b, gy_gkind kind, int32_t x, int32_t y) {
    int32_t n = gy_gb_node(b, kind);
    gy_gb_add(b, n, x);
    gy_gb_add(b, n, y);
    return n;
}

int32_t gy_gb_cat(gy_gbuild *b, int32_t x, int32_t y) {
    return node_pair(b, GY_G_CAT, x, y);
}

int32_t gy_gb_alt(gy_gbuild *b, int32_t x, int32_t y) {
    return node_pair(b, GY_G_ALT, x, y);
}

int32_t gy_gb_bytes(gy_gbuild *b, const char *s, size_t len) {
    int32_t n = gy_gb_node(b, GY_G_BYTES);
    uint32_t at = (uint32_t)b->pool.len;
    gy_gb_work(b, len);
    gy_str_append(&b->pool, s, len);
    if (b->pool.failed) gy_gb_nomem(b);
    if (b->st < 0) return 0;
    b->nodes.data[n].a = at;
    b->nodes.data[n].b = (uint32_t)len;
    return n;
}

int32_t gy_gb_z(gy_gbuild *b, const char *z) {
    return gy_gb_bytes(b, z, strlen(z));
}

int32_t gy_gb_rep(gy_gbuild *b, int32_t child, uint32_t min, uint32_t max) {
    int32_t n = gy_gb_node(b, GY_G_REP);
    gy_gb_add(b, n, child);
    if (b->st < 0) return 0;
    b->nodes.data[n].a = min;
    b->nodes.data[n].b = max;
    return n;
}

int32_t gy_gb_call(gy_gbuild *b, uint32_t rule) {
    int32_t n = gy_gb_node(b, GY_G_CALL);
    if (n) b->nodes.data[n].a = rule;
    return n;
}

int32_t gy_gb_same(gy_gbuild *b, int32_t node) {
    int32_t n = gy_gb_node(b, GY_G_SAME);
    if (!n) return 0;
    b->nodes.data[n].a = (uint32_t)node;
    node_deepen(b, n, node);
    return n;
}

/* ---- rules ---- */

int32_t gy_gb_rule(gy_gbuild *b, const char *name, size_t len) {
    if (b->rules.len >= GY_GRAMMAR_MAX_RULES) {
        gy_gb_fail(b, GY_E_LIMIT, "grammar: found more than %d rules", GY_GRAMMAR_MAX_RULES);
        return 0;
    }
    gy_grule r = {.root = -1, .name = (uint32_t)b->names.len};
    gy_str_append(&b->names, name, len);
    gy_str_putc(&b->names, '\0');
    if (b->names.failed || gy_vec_push(&b->rules, GY_MEM_SAMPLE, r)) {
        gy_gb_nomem(b);
        return 0;
    }
    return (int32_t)b->rules.len - 1;
}

const char *gy_gb_rule_name(const gy_gbuild *b, uint32_t rule) {
    return b->names.data + b->rules.data[rule].name;
}

/* ---- sets of code points ---- */

void gy_gset_add(gy_gbuild *b, gy_gset *s, uint32_t lo, uint32_t hi) {
    gy_grange r = {lo, hi};
    if (gy_gb_work(b, 1) && gy_vec_push(s, GY_MEM_SAMPLE, r)) gy_gb_nomem(b);
}

static int range_compare(const void *x, const void *y) {
    const gy_grange *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

static void set_merge(gy_gset *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++) {
        gy_grange r = s->data[i];
        if (n && r.lo <= s->data[n - 1].hi + 1) {
            if (r.hi > s->data[n - 1].hi) s->data[n - 1].hi = r.hi;
        } else {
            s->data[n++] = r;
        }
    }
    s->len = n;
}

void gy_gset_tidy(gy_gset *s) {
    if (s->len > 1) qsort(s->data, s->len, sizeof *s->data, range_compare);
    set_merge(s);
}

/* Whole complement; surrogates leave when the set becomes a node. */
void gy_gset_negate(gy_gbuild *b, gy_gset *s) {
    gy_gset_tidy(s);
    gy_gset r = {0};
    uint32_t at = 0;
    for (size_t i = 0; i < s->len; i++) {
        if (s->data[i].lo > at) gy_gset_add(b, &r, at, s->data[i].lo - 1);
        at = s->data[i].hi + 1;
    }
    if (at <= 0x10FFFF) gy_gset_add(b, &r, at, 0x10FFFF);
    gy_vec_free(s);
    *s = r;
}

static void ranges_put(gy_gbuild *b, uint32_t lo, uint32_t hi) {
    if (lo <= hi) gy_gset_add(b, &b->ranges, lo, hi);
}

/* A set without code points is the node that matches nothing. */
int32_t gy_gb_set(gy_gbuild *b, const gy_gset *set, int json) {
    uint32_t at = (uint32_t)b->ranges.len;
    for (size_t i = 0; i < set->len; i++) {
        gy_grange r = set->data[i];
        ranges_put(b, r.lo, r.hi < 0xD7FF ? r.hi : 0xD7FF);
        ranges_put(b, r.lo > 0xE000 ? r.lo : 0xE000, r.hi);
    }
    int32_t n = gy_gb_node(b, b->ranges.len == at ? GY_G_FAIL : GY_G_SET);
    if (!n) return 0;
    b->nodes.data[n].a = at;
    b->nodes.data[n].b = (uint32_t)b->ranges.len - at;
    b->nodes.data[n].flag = (uint8_t)json;
    return n;
}

int32_t gy_gb_range(gy_gbuild *b, uint32_t lo, uint32_t hi) {
    gy_grange r = {lo, hi};
    return gy_gb_set(b, &(gy_gset){&r, 1, 1}, 0);
}

int32_t gy_gb_chars(gy_gbuild *b, const char *ascii) {
    gy_gset s = {0};
    for (const char *c = ascii; *c; c++) gy_gset_add(b, &s, (uint8_t)*c, (uint8_t)*c);
    int32_t n = gy_gb_set(b, &s, 0);
    gy_vec_free(&s);
    return n;
}
