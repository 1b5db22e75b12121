/* One deterministic automaton for each rule, by the subset construction over bytes and calls; then what is known about
 * all of them together: left recursion, and how deep the stack must become to end a rule's text from each state.
 *
 * Two facts that running relies on:
 *   a rule's first state is entered only by a call and never accepts, so every call takes at least one byte, and
 *   without left recursion the calls that follow each other without a byte are fewer than there are rules;
 *   a state whose need is GY_G_INF cannot reach its rule's end: packing drops it and whatever leads only to it.
 * Deliberately not done: minimisation. Shared suffixes of UTF-8 are shared by construction (grammar_nfa.c).
 */
#include "sample/grammar_int.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096, MAX_SET_ITEMS = 1 << 22 };

typedef struct subset {
    uint32_t at, n; /* its NFA states, ascending, in items */
    int32_t next;   /* of the same bucket */
} subset;

typedef struct dfa {
    gy_gbuild *b;
    gy_gnfa nfa;
    uint32_t first; /* the rule's first state; subset i belongs to state first + 1 + i */
    GY_VEC(subset) subsets;
    gy_vec_i32 items;
    int32_t bucket[BUCKETS]; /* subset or -1 */
    gy_vec_i32 mark;         /* [NFA state] the closure that saw it last */
    int32_t mark_now;
    gy_vec_i32 todo, set;   /* of the closure in progress */
    GY_VEC(gy_gedge) bytes; /* leaving the subset in progress */
    GY_VEC(gy_gedge) calls;
} dfa;

/* ---- closures ---- */

static void closure_begin(dfa *d) {
    d->mark_now++;
    d->todo.len = d->set.len = 0;
}

static void closure_add(dfa *d, int32_t q) {
    if (d->mark.data[q] == d->mark_now) return;
    d->mark.data[q] = d->mark_now;
    if (gy_vec_push(&d->todo, GY_MEM_SAMPLE, q)) gy_gb_nomem(d->b);
}

/* Only states from which something other than nothing leads on, and the end, make up a set. */
static void closure_end(dfa *d) {
    while (d->todo.len && gy_gb_work(d->b, 1)) {
        int32_t q = d->todo.data[--d->todo.len];
        int keep = q == 1;
        for (int32_t e = d->nfa.heads.data[q]; e >= 0 && gy_gb_work(d->b, 1); e = d->nfa.edges.data[e].next) {
            if (d->nfa.edges.data[e].kind == GY_G_EPS)
                closure_add(d, d->nfa.edges.data[e].to);
            else
                keep = 1;
        }
        if (keep && gy_vec_push(&d->set, GY_MEM_SAMPLE, q)) gy_gb_nomem(d->b);
    }
}

static int i32_compare(const void *x, const void *y) {
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return a < b ? -1 : a > b;
}

static uint32_t set_hash(const int32_t *s, size_t n) {
    uint64_t h = 1469598103934665603u; /* FNV-1a over words */
    for (size_t i = 0; i < n; i++) h = (h ^ (uint32_t)s[i]) * 1099511628211u;
    return (uint32_t)(h >> 32) % BUCKETS;
}

static void subset_push(dfa *d, uint32_t hash) {
    gy_gbuild *b = d->b;
    subset s = {(uint32_t)d->items.len, (uint32_t)d->set.len, d->bucket[hash]};
    gy_gdstate q = {.need = GY_G_INF};
    if (b->states.len >= GY_GRAMMAR_MAX_STATES || d->items.len + d->set.len > MAX_SET_ITEMS) {
        gy_gb_fail(b, GY_E_LIMIT, "grammar: it needs more than %d states; make it smaller or repeat less",
                   GY_GRAMMAR_MAX_STATES);
        return;
    }
    for (size_t i = 0; i < d->set.len; i++) q.accept |= d->set.data[i] == 1;
    if (gy_vec_reserve(&d->items, GY_MEM_SAMPLE, d->set.len) || gy_vec_push(&d->subsets, GY_MEM_SAMPLE, s) ||
        gy_vec_push(&b->states, GY_MEM_SAMPLE, q)) {
        gy_gb_nomem(b);
        return;
    }
    if (d->set.len) memcpy(d->items.data + d->items.len, d->set.data, d->set.len * sizeof(int32_t));
    d->items.len += d->set.len;
    d->bucket[hash] = (int32_t)d->subsets.len - 1;
}

/* The state of the closure in progress, made if it is new. */
static uint32_t closure_state(dfa *d) {
    closure_end(d);
    if (d->set.len > 1) qsort(d->set.data, d->set.len, sizeof(int32_t), i32_compare);
    uint32_t hash = set_hash(d->set.data, d->set.len);
    for (int32_t i = d->bucket[hash]; i >= 0; i = d->subsets.data[i].next) {
        const subset *s = &d->subsets.data[i];
        if (s->n == d->set.len && (!s->n || !memcmp(d->items.data + s->at, d->set.data, s->n * sizeof(int32_t))))
            return d->first + 1 + (uint32_t)i;
    }
    subset_push(d, hash);
    return d->first + (uint32_t)d->subsets.len;
}

/* ---- one state ---- */

static void leave_gather(dfa *d, size_t at, size_t n) {
    d->bytes.len = d->calls.len = 0;
    for (size_t i = 0; i < n; i++)
        for (int32_t e = d->nfa.heads.data[d->items.data[at + i]]; e >= 0 && gy_gb_work(d->b, 1);
             e = d->nfa.edges.data[e].next) {
            gy_gedge x = d->nfa.edges.data[e];
            int bad = x.kind == GY_G_RANGE ? gy_vec_push(&d->bytes, GY_MEM_SAMPLE, x)
                      : x.kind == GY_G_SYM ? gy_vec_push(&d->calls, GY_MEM_SAMPLE, x)
                                           : 0;
            if (bad) gy_gb_nomem(d->b);
        }
}

static void transition_put(gy_gbuild *b, gy_gdstate *q, unsigned lo, unsigned hi, uint32_t to) {
    gy_gtr *last = q->n_tr ? &b->trs.data[b->trs.len - 1] : NULL;
    if (last && last->to == to && last->hi + 1u == lo) {
        last->hi = (uint8_t)hi;
        return;
    }
    gy_gtr t = {(uint8_t)lo, (uint8_t)hi, to};
    if (gy_vec_push(&b->trs, GY_MEM_SAMPLE, t)) gy_gb_nomem(b);
    q->n_tr++;
}

/* Sweeps over the intervals in which the same edges apply. */
static void leave_bytes(dfa *d, gy_gdstate *q) {
    uint8_t cut[257] = {0};
    for (size_t i = 0; i < d->bytes.len; i++) cut[d->bytes.data[i].lo] = cut[d->bytes.data[i].hi + 1] = 1;
    for (unsigned lo = 0; lo < 256;) {
        unsigned hi = lo;
        while (hi < 255 && !cut[hi + 1]) hi++;
        int any = 0;
        closure_begin(d);
        for (size_t i = 0; i < d->bytes.len; i++) {
            if (d->bytes.data[i].lo > lo || d->bytes.data[i].hi < lo) continue;
            closure_add(d, d->bytes.data[i].to);
            any = 1;
        }
        if (!gy_gb_work(d->b, d->bytes.len / 8 + 1)) return;
        if (any) transition_put(d->b, q, lo, hi, closure_state(d));
        lo = hi + 1;
    }
}

static int call_compare(const void *x, const void *y) {
    const gy_gedge *a = x, *b = y;
    if (a->sym != b->sym) return a->sym < b->sym ? -1 : 1;
    return a->to < b->to ? -1 : a->to > b->to;
}

static void leave_calls(dfa *d, gy_gdstate *q) {
    if (d->calls.len > 1) qsort(d->calls.data, d->calls.len, sizeof(gy_gedge), call_compare);
    for (size_t i = 0; i < d->calls.len && d->b->st >= 0;) {
        uint32_t sym = d->calls.data[i].sym;
        closure_begin(d);
        for (; i < d->calls.len && d->calls.data[i].sym == sym; i++) closure_add(d, d->calls.data[i].to);
        gy_gdcall c = {sym, closure_state(d)};
        if (gy_vec_push(&d->b->dcalls, GY_MEM_SAMPLE, c)) gy_gb_nomem(d->b);
        q->n_call++;
    }
}

/* Transitions of the state with this set; making them may add states behind it. */
static void state_expand(dfa *d, uint32_t state, size_t at, size_t n) {
    gy_gbuild *b = d->b;
    leave_gather(d, at, n);
    gy_gdstate q = b->states.data[state];
    q.tr = (uint32_t)b->trs.len;
    leave_bytes(d, &q);
    q.call = (uint32_t)b->dcalls.len;
    leave_calls(d, &q);
    if (b->st >= 0) b->states.data[state] = q;
}

/* ---- one rule ---- */

static int dfa_reset(dfa *d) {
    memset(d->bucket, 0xFF, sizeof d->bucket);
    d->subsets.len = d->items.len = d->mark.len = 0;
    d->mark_now = 0;
    if (gy_vec_reserve(&d->mark, GY_MEM_SAMPLE, d->nfa.heads.len)) return -1;
    memset(d->mark.data, 0, d->nfa.heads.len * sizeof(int32_t));
    return 0;
}

/* The first state has a copy of the start's set that no transition leads to. */
static void dfa_rule(dfa *d, uint32_t rule) {
    gy_gbuild *b = d->b;
    gy_gnfa_make(&d->nfa, b->rules.data[rule].root);
    if (b->st < 0) return;
    if (dfa_reset(d)) {
        gy_gb_nomem(b);
        return;
    }
    d->first = (uint32_t)b->states.len;
    gy_gdstate start = {.need = GY_G_INF};
    if (gy_vec_push(&b->starts, GY_MEM_SAMPLE, (int32_t)d->first) || gy_vec_push(&b->states, GY_MEM_SAMPLE, start)) {
        gy_gb_nomem(b);
        return;
    }
    closure_begin(d);
    closure_add(d, 0);
    closure_state(d);
    if (b->st < 0) return;
    state_expand(d, d->first, d->subsets.data[0].at, d->subsets.data[0].n);
    for (size_t i = 0; i < d->subsets.len && b->st >= 0; i++)
        state_expand(d, d->first + 1 + (uint32_t)i, d->subsets.data[i].at, d->subsets.data[i].n);
}

static void dfa_free(dfa *d) {
    gy_gnfa_free(&d->nfa);
    gy_vec_free(&d->subsets);
    gy_vec_free(&d->items);
    gy_vec_free(&d->mark);
    gy_vec_free(&d->todo);
    gy_vec_free(&d->set);
    gy_vec_free(&d->bytes);
    gy_vec_free(&d->calls);
    gy_mem_free(d);
}

/* Long repetitions add rules while this runs. */
void gy_gdfa_make(gy_gbuild *b) {
    dfa *d = gy_mem_alloc(GY_MEM_SAMPLE, 1, sizeof *d);
    if (!d) {
        gy_gb_nomem(b);
        return;
    }
    d->b = d->nfa.b = b;
    for (size_t i = 0; i < b->rules.len && b->st >= 0; i++) dfa_rule(d, (uint32_t)i);
    if (b->starts.len && gy_vec_push(&b->starts, GY_MEM_SAMPLE, (int32_t)b->states.len)) gy_gb_nomem(b);
    dfa_free(d);
}

/* ---- left recursion: calls from first states only ---- */

typedef struct visit {
    uint32_t rule, call; /* the next call of its first state to look at */
} visit;

static void recursion_name(gy_gbuild *b, uint32_t rule) {
    gy_gb_fail(
        b, GY_E_ARG,
        "grammar: found that '%.100s' begins with itself (left recursion); put something in front of it, or write "
        "a repetition",
        gy_gb_rule_name(b, rule));
}

/* Depth first from one rule with a stack of our own; colour 1: on the stack, 2: done. */
static void recursion_from(gy_gbuild *b, uint32_t rule, uint8_t *colour, visit *stack) {
    size_t n = 0;
    stack[n++] = (visit){rule, 0};
    colour[rule] = 1;
    while (n && b->st >= 0) {
        visit *v = &stack[n - 1];
        const gy_gdstate *q = &b->states.data[b->starts.data[v->rule]];
        if (v->call == q->n_call) {
            colour[v->rule] = 2;
            n--;
            continue;
        }
        uint32_t callee = b->syms.data[b->dcalls.data[q->call + v->call++].sym].rule;
        if (colour[callee] == 1) {
            recursion_name(b, callee);
        } else if (!colour[callee]) {
            colour[callee] = 1;
            stack[n++] = (visit){callee, 0};
        }
    }
}

static void recursion_refuse(gy_gbuild *b) {
    size_t n = b->rules.len;
    uint8_t *colour = gy_mem_alloc(GY_MEM_SAMPLE, n, 1);
    visit *stack = gy_mem_alloc(GY_MEM_SAMPLE, n, sizeof *stack);
    if (!colour || !stack) gy_gb_nomem(b);
    for (size_t i = 0; i < n && colour && stack && b->st >= 0; i++)
        if (!colour[i]) recursion_from(b, (uint32_t)i, colour, stack);
    gy_mem_free(colour);
    gy_mem_free(stack);
}

/* ---- need: the least of all ways to the end, of the most that a way takes ---- */

static uint32_t need_of_call(const gy_gbuild *b, gy_gdcall c) {
    uint32_t inner = b->states.data[b->starts.data[b->syms.data[c.sym].rule]].need;
    uint32_t after = b->states.data[c.to].need;
    if (inner == GY_G_INF || after == GY_G_INF) return GY_G_INF;
    return inner + 1 > after ? inner + 1 : after;
}

static uint32_t need_of(const gy_gbuild *b, const gy_gdstate *q) {
    uint32_t least = q->accept ? 0 : GY_G_INF;
    for (uint32_t i = 0; i < q->n_tr && least; i++) {
        uint32_t n = b->states.data[b->trs.data[q->tr + i].to].need;
        if (n < least) least = n;
    }
    for (uint32_t i = 0; i < q->n_call && least; i++) {
        uint32_t n = need_of_call(b, b->dcalls.data[q->call + i]);
        if (n < least) least = n;
    }
    return least;
}

/* States of a rule from its last, where its end tends to be; rules in turns from both sides. */
static int need_sweep(gy_gbuild *b, int back) {
    int changed = 0;
    size_t n = b->rules.len;
    for (size_t k = 0; k < n; k++) {
        size_t rule = back ? n - 1 - k : k;
        for (int32_t i = b->starts.data[rule + 1]; i-- > b->starts.data[rule];) {
            gy_gdstate *q = &b->states.data[i];
            if (!gy_gb_work(b, 1 + (q->n_tr + q->n_call) / 8)) return 0;
            uint32_t need = need_of(b, q);
            changed |= need < q->need;
            q->need = need;
        }
    }
    return changed;
}

void gy_gdfa_analyse(gy_gbuild *b) {
    if (b->st < 0) return;
    recursion_refuse(b);
    for (int back = 0; b->st >= 0 && need_sweep(b, back); back = !back) {
    }
    if (b->st < 0) return;
    uint32_t need = b->states.data[b->starts.data[0]].need;
    if (need == GY_G_INF && !b->rules.data[0].nullable)
        gy_gb_fail(b, GY_E_ARG,
                   "grammar: no text at all satisfies it; look for a recursion without a way out or for parts that "
                   "contradict each other");
    else if (need != GY_G_INF && need > GY_GRAMMAR_MAX_STACK / 2)
        gy_gb_fail(b, GY_E_LIMIT, "grammar: its simplest text nests rules %u deep; allowed %d", need,
                   GY_GRAMMAR_MAX_STACK / 2);
}
