/* Running a grammar: sets of configurations (automaton state, stack), one byte at a time.
 *
 * The stacks of a set share their ends in a graph (Tomita's graph-structured stack; Scott and Johnstone, "GLL parsing",
 * ENTCS 253, 2010): within one byte, all calls of a rule push the same new node, and each caller is an edge of it. An
 * edge says which call, how many repetitions are done, and the node below. So a set stays small where the number of
 * stacks doubles with every level.
 *
 *   push   only nodes of this byte get edges; a rule's first state never accepts, so nothing pops one of them now,
 *          and the edges of a node are complete before anything reads them
 *   pop    goes on behind the call, or around once more when the call is a repetition
 *   live   depth + need <= GY_GRAMMAR_MAX_STACK for every configuration, and for what a push comes back to: then the
 *          way to the end that `need` counts is never refused, so no accepted text is a dead end
 *
 * All memory is scratch of fixed size. What does not fit sets `overflow` and is taken for not allowed.
 */
#include "base/arena.h"
#include "sample/grammar_int.h"

#include <string.h>

enum { MAX_CLOSURE = 2 * GY_GRAMMAR_CONFIGS };

static void scratch_layout(gy_carve *c, gy_gscratch *w) {
    gy_carve_take(c, 1, sizeof *w);
    w->confs = gy_carve_take(c, GY_G_SCRATCH_CONFS, sizeof *w->confs);
    w->nodes = gy_carve_take(c, GY_G_SCRATCH_NODES, sizeof *w->nodes);
    w->edges = gy_carve_take(c, GY_G_SCRATCH_EDGES, sizeof *w->edges);
    w->number = gy_carve_take(c, GY_G_SCRATCH_NODES, sizeof *w->number);
}

gy_gscratch *gy_gw_create(void) {
    gy_gscratch sizes = {0};
    gy_carve c = {0};
    scratch_layout(&c, &sizes);
    gy_gscratch *w = gy_mem_realloc(GY_MEM_SAMPLE, NULL, c.used, 1); /* megabytes: only what is read first is cleared */
    if (!w) return NULL;
    memset(w, 0, sizeof *w);
    gy_carve d = {.base = (char *)w, .cap = c.used};
    scratch_layout(&d, w);
    memset(w->number, 0, GY_G_SCRATCH_NODES * sizeof *w->number);
    return w;
}

/* ---- the closure of one byte ---- */

typedef struct closure {
    gy_gscratch *w;
    const gy_grammar *g;
    gy_gconf *confs; /* grows */
    int n, room;
    int32_t n_old; /* nodes from here on are of this byte */
    int complete;
} closure;

static int is_live(const closure *c, uint32_t depth, uint32_t need) {
    return need != GY_G_DEAD && depth + need <= GY_GRAMMAR_MAX_STACK && c->w;
}

static void conf_add(closure *c, uint16_t q, int32_t node) {
    if (!is_live(c, c->w->nodes[node].depth, c->g->need[q])) return;
    for (int i = 0; i < c->n; i++)
        if (c->confs[i].q == q && c->confs[i].node == node) return;
    if (c->n == c->room)
        c->w->overflow = 1;
    else
        c->confs[c->n++] = (gy_gconf){.q = q, .node = node};
}

/* The node of this byte for calls of this rule; -1: no room. */
static int32_t node_of(closure *c, uint16_t rule) {
    gy_gscratch *w = c->w;
    for (int32_t i = c->n_old; i < w->n_node; i++)
        if (w->nodes[i].rule == rule) return i;
    if (w->n_node == GY_G_SCRATCH_NODES) {
        w->overflow = 1;
        return -1;
    }
    w->nodes[w->n_node] = (gy_gsnode){.edge = -1, .depth = UINT16_MAX, .rule = rule};
    return w->n_node++;
}

/* Of two counts of the same repetition on the same stack, the one that allows all that the other does; -1: neither. */
static int64_t count_better(const gy_gcall *k, uint32_t x, uint32_t y) {
    if (k->max == GY_G_INF) return x > y ? x : y;
    if (x == y || (x + 1 >= k->min && y + 1 >= k->min)) return x < y ? x : y;
    return -1;
}

static void edge_add(closure *c, int32_t node, uint32_t call, uint32_t count, int32_t below) {
    gy_gscratch *w = c->w;
    for (int32_t e = w->nodes[node].edge; e >= 0; e = w->edges[e].next) {
        if (w->edges[e].call != call || w->edges[e].node != below) continue;
        int64_t better = count_better(&c->g->calls[call], w->edges[e].count, count);
        if (better < 0) continue;
        w->edges[e].count = (uint32_t)better;
        return;
    }
    if (w->n_edge == GY_G_SCRATCH_EDGES) {
        w->overflow = 1;
        return;
    }
    w->edges[w->n_edge] = (gy_gsedge){call, count, below, w->nodes[node].edge};
    w->nodes[node].edge = w->n_edge++;
}

static void push(closure *c, uint32_t call, uint32_t count, int32_t below) {
    gy_gscratch *w = c->w;
    const gy_gcall *k = &c->g->calls[call];
    uint16_t start = c->g->start[k->rule];
    uint32_t depth = w->nodes[below].depth;
    if (!is_live(c, depth + 1, c->g->need[start]) || !is_live(c, depth, k->ret_need)) return;
    int32_t node = node_of(c, k->rule);
    if (node < 0) return;
    gy_gsnode *x = &w->nodes[node];
    if (depth + 1 < x->depth) x->depth = (uint16_t)(depth + 1);
    if (w->nodes[below].grow + 1 > x->grow) x->grow = (uint16_t)(w->nodes[below].grow + 1);
    if (x->grow > w->grown) w->grown = x->grow;
    edge_add(c, node, call, count, below);
    conf_add(c, start, node);
}

static void pop(closure *c, int32_t node) {
    gy_gscratch *w = c->w;
    if (node == 0) {
        c->complete = 1;
        return;
    }
    if (node < w->n_base && w->nodes[node].level > w->deepest) w->deepest = w->nodes[node].level;
    for (int32_t e = w->nodes[node].edge; e >= 0; e = w->edges[e].next) {
        const gy_gcall *k = &c->g->calls[w->edges[e].call];
        uint32_t done = w->edges[e].count + 1;
        if (done >= k->min) conf_add(c, k->ret, w->edges[e].node);
        if (k->max == GY_G_INF && done > k->min) done = k->min; /* more makes no difference */
        if (done < k->max) push(c, w->edges[e].call, done, w->edges[e].node);
    }
}

static void call(closure *c, gy_gconf x) {
    const gy_grammar *g = c->g;
    for (uint32_t k = g->call_at[x.q]; k < g->call_at[x.q + 1]; k++) {
        if (g->calls[k].tail)
            conf_add(c, g->start[g->calls[k].rule], x.node);
        else
            push(c, k, 0, x.node);
    }
}

/* Only configurations that can take a byte stay. */
static int closure_run(closure *c, gy_gframe *out) {
    for (int i = 0; i < c->n; i++) {
        gy_gconf x = c->confs[i];
        if (c->g->flags[x.q] & GY_G_ACCEPT) pop(c, x.node);
        if (c->g->flags[x.q] & GY_G_CALLS) call(c, x);
    }
    int n = 0;
    for (int i = 0; i < c->n; i++)
        if (c->g->flags[c->confs[i].q] & GY_G_MOVES) c->confs[n++] = c->confs[i];
    out->n_conf = n;
    out->n_node = c->w->n_node;
    out->n_edge = c->w->n_edge;
    out->complete = c->complete;
    return n > 0 || c->complete;
}

static closure closure_begin(gy_gscratch *w, const gy_grammar *g, const gy_gframe *in, gy_gframe *out) {
    out->conf = in->conf + in->n_conf;
    w->n_node = in->n_node;
    w->n_edge = in->n_edge;
    int room = GY_G_SCRATCH_CONFS - out->conf;
    return (closure){w, g, w->confs + out->conf, 0, room < MAX_CLOSURE ? room : MAX_CLOSURE, in->n_node, 0};
}

/* ---- one byte ---- */

/* The usual case, inside of a text of one rule: one configuration, and the next state neither calls nor ends. */
static int step_plain(gy_gscratch *w, const gy_grammar *g, const gy_gframe *in, gy_gconf x, gy_gframe *out) {
    int32_t at = in->conf + in->n_conf;
    if (at == GY_G_SCRATCH_CONFS) {
        w->overflow = 1;
        return 0;
    }
    if (w->nodes[x.node].depth + g->need[x.q] > GY_GRAMMAR_MAX_STACK) return 0;
    w->confs[at] = x;
    *out = (gy_gframe){at, (g->flags[x.q] & GY_G_MOVES) != 0, in->n_node, in->n_edge, g->flags[x.q] & GY_G_ACCEPT};
    return 1;
}

int gy_gw_step(gy_gscratch *w, const gy_grammar *g, const gy_gframe *in, uint8_t byte, gy_gframe *out) {
    unsigned k = g->cls[byte];
    const gy_gconf *from = w->confs + in->conf;
    if (in->n_conf == 1) {
        uint16_t q = g->next[g->row[from->q] + k];
        if (q == GY_G_DEAD) return 0;
        if (!(g->flags[q] & GY_G_CALLS) && (!(g->flags[q] & GY_G_ACCEPT) || from->node == 0))
            return step_plain(w, g, in, (gy_gconf){.q = q, .node = from->node}, out);
    }
    closure c = closure_begin(w, g, in, out);
    for (int i = 0; i < in->n_conf; i++) {
        uint16_t q = g->next[g->row[from[i].q] + k];
        if (q != GY_G_DEAD) conf_add(&c, q, from[i].node);
    }
    return closure_run(&c, out);
}

/* ---- states in and out of scratch ---- */

static void scratch_reset(gy_gscratch *w) {
    w->overflow = w->grown = 0;
    w->deepest = -1;
    w->nodes[0] = (gy_gsnode){.edge = -1};
    w->n_node = w->n_base = 1;
    w->n_edge = 0;
}

void gy_gw_load(gy_gscratch *w, const gy_grammar_state *s, gy_gframe *out) {
    scratch_reset(w);
    for (int i = 1; i < s->n_node; i++) {
        int begin = s->node[i].edge, end = i + 1 < s->n_node ? s->node[i + 1].edge : s->n_edge;
        w->nodes[i] =
            (gy_gsnode){.edge = begin < end ? begin : -1, .depth = s->node[i].depth, .level = s->node[i].level};
        for (int e = begin; e < end; e++)
            w->edges[e] = (gy_gsedge){s->edge[e].call, s->edge[e].count, s->edge[e].node, e + 1 < end ? e + 1 : -1};
    }
    for (int i = 0; i < s->n_config; i++) w->confs[i] = (gy_gconf){.q = s->config[i].q, .node = s->config[i].node};
    w->n_node = w->n_base = s->n_node;
    w->n_edge = s->n_edge;
    *out = (gy_gframe){0, s->n_config, s->n_node, s->n_edge, s->complete};
}

/* The number of a node in s, given when it is met first; 0 for the bottom, -1: no room. While this runs, depth holds
 * the node's place in scratch. */
static int number_of(gy_gscratch *w, gy_grammar_state *s, int32_t node, uint16_t level) {
    if (node == 0 || w->number[node]) return w->number[node];
    if (s->n_node == GY_GRAMMAR_NODES) return -1;
    s->node[s->n_node].depth = (uint16_t)node;
    s->node[s->n_node].level = level;
    return w->number[node] = s->n_node++;
}

static int store_confs(gy_gscratch *w, const gy_gframe *f, gy_grammar_state *s) {
    if (f->n_conf > GY_GRAMMAR_CONFIGS) return 0;
    gy_gconf *x = w->confs + f->conf;
    for (int i = 1; i < f->n_conf; i++) { /* by state: equal sets look alike */
        gy_gconf one = x[i];
        int k = i;
        for (; k > 0 && x[k - 1].q > one.q; k--) x[k] = x[k - 1];
        x[k] = one;
    }
    for (int i = 0; i < f->n_conf; i++) {
        int n = number_of(w, s, x[i].node, 0);
        if (n < 0) return 0;
        s->config[i].q = x[i].q;
        s->config[i].node = (uint16_t)n;
    }
    s->n_config = (uint16_t)f->n_conf;
    return 1;
}

static int store_edges(gy_gscratch *w, gy_grammar_state *s) {
    for (int i = 1; i < s->n_node; i++) {
        s->node[i].edge = s->n_edge;
        for (int32_t e = w->nodes[s->node[i].depth].edge; e >= 0; e = w->edges[e].next) {
            int below = number_of(w, s, w->edges[e].node, (uint16_t)(s->node[i].level + 1));
            if (below < 0 || s->n_edge == GY_GRAMMAR_EDGES) return 0;
            s->edge[s->n_edge].call = w->edges[e].call;
            s->edge[s->n_edge].count = w->edges[e].count;
            s->edge[s->n_edge++].node = (uint16_t)below;
        }
    }
    return 1;
}

/* The shortest way to the bottom, from the edges alone. Nodes further down mostly have the higher numbers. */
static void depths_fill(gy_grammar_state *s) {
    for (int i = 1; i < s->n_node; i++) s->node[i].depth = UINT16_MAX;
    s->node[0].depth = 0;
    for (int changed = 1; changed;) {
        changed = 0;
        for (int i = s->n_node - 1; i > 0; i--) {
            int end = i + 1 < s->n_node ? s->node[i + 1].edge : s->n_edge;
            for (int e = s->node[i].edge; e < end; e++) {
                unsigned d = s->node[s->edge[e].node].depth + 1u;
                if (d >= s->node[i].depth) continue;
                s->node[i].depth = (uint16_t)d;
                changed = 1;
            }
        }
    }
}

/* Breadth first, so that the nodes of one level follow each other. */
int gy_gw_store(gy_gscratch *w, const gy_gframe *f, gy_grammar_state *s) {
    s->n_config = s->n_edge = 0;
    s->n_node = 1;
    s->node[0].edge = s->node[0].level = 0;
    s->complete = f->complete != 0;
    int fits = store_confs(w, f, s) && store_edges(w, s);
    memset(w->number, 0, (size_t)f->n_node * sizeof *w->number);
    if (fits) depths_fill(s);
    return fits;
}

int gy_gw_begin(gy_gscratch *w, const gy_grammar *g, gy_grammar_state *out) {
    scratch_reset(w);
    const gy_gframe none = {.n_node = 1};
    gy_gframe f;
    closure c = closure_begin(w, g, &none, &f);
    conf_add(&c, g->start[0], 0);
    closure_run(&c, &f);
    f.complete |= g->nullable;
    return !w->overflow && gy_gw_store(w, &f, out);
}

/* ---- what a request calls ---- */

void gy_grammar_start(const gy_grammar *g, gy_grammar_state *out) {
    *out = *g->begin;
}

int gy_grammar_is_complete(const gy_grammar_state *s) {
    return s->complete;
}

int gy_grammar_is_final(const gy_grammar_state *s) {
    return s->complete && s->n_config == 0;
}

static gy_status accept_fail(const gy_gscratch *w, gy_err *err, size_t at, uint8_t byte) {
    if (w->overflow)
        return gy_err_set(err, GY_E_LIMIT, "grammar: it is too ambiguous at byte %zu of the token to be followed", at);
    return gy_err_set(err, GY_E_ARG, "grammar: byte 0x%02X, number %zu of the token, cannot come here", byte, at);
}

gy_status gy_grammar_accept(gy_grammar_runner *r, const gy_grammar *g, gy_grammar_state *s, const char *bytes,
                            size_t len, gy_err *err) {
    gy_gscratch *w = r->w;
    if (len > GY_GRAMMAR_MAX_TOKEN)
        return gy_err_set(err, GY_E_LIMIT, "grammar: found a token of %zu bytes; allowed %d", len,
                          GY_GRAMMAR_MAX_TOKEN);
    gy_gw_load(w, s, &r->frames[0]);
    for (size_t i = 0; i < len; i++)
        if (!gy_gw_step(w, g, &r->frames[i], (uint8_t)bytes[i], &r->frames[i + 1]))
            return accept_fail(w, err, i, (uint8_t)bytes[i]);
    if (w->overflow || !gy_gw_store(w, &r->frames[len], &r->next))
        return gy_err_set(err, GY_E_LIMIT, "grammar: it is too ambiguous behind this token to be followed");
    *s = r->next;
    return GY_OK;
}
