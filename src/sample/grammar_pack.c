/* The automata of all rules in their final form: one block, bytes mapped to classes that no state tells apart, a row of
 * next states for each state, calls in order of state. States that cannot reach their rule's end are left out of the
 * rows and calls (they keep their number). Compilation of the four languages starts here.
 */
#include "base/arena.h"
#include "base/clock.h"
#include "sample/grammar_int.h"

#include <string.h>

/* ---- classes of bytes ---- */

unsigned gy_g_group(uint8_t c) {
    if (c >= 0x80) return 1u << 0;
    if (c >= 'a' && c <= 'z') return 1u << 1;
    if (c >= 'A' && c <= 'Z') return 1u << 2;
    if (c >= '0' && c <= '9') return 1u << 3;
    switch (c) {
    case ' ':
        return 1u << 4;
    case '"':
        return 1u << 5;
    case '\\':
        return 1u << 6;
    case '\n':
    case '\r':
    case '\t':
        return 1u << 7;
    case '{':
    case '}':
    case '[':
    case ']':
        return 1u << 8;
    case ',':
    case ':':
        return 1u << 9;
    case '.':
    case '-':
    case '+':
        return 1u << 10;
    case '_':
        return 1u << 11;
    case '/':
    case '\'':
        return 1u << 12;
    default:
        return c < 0x20 || c == 0x7F ? 1u << 13 : 1u << 14;
    }
}

static int state_is_live(const gy_gbuild *b, uint32_t q) {
    return b->states.data[q].need != GY_G_INF;
}

/* Splits classes until no live transition begins or ends inside one. */
static int classes_fill(const gy_gbuild *b, uint8_t *cls) {
    uint8_t cut[257] = {0};
    for (size_t q = 0; q < b->states.len; q++)
        for (uint32_t i = 0; i < b->states.data[q].n_tr; i++) {
            gy_gtr t = b->trs.data[b->states.data[q].tr + i];
            if (state_is_live(b, t.to)) cut[t.lo] = cut[t.hi + 1] = 1;
        }
    int n = 0;
    for (int c = 0; c < 256; c++) {
        if (c && cut[c]) n++;
        cls[c] = (uint8_t)n;
    }
    return n + 1;
}

/* ---- the block ---- */

typedef struct counts {
    size_t n_state, n_rule, n_call, n_row;
    int n_class;
} counts;

static int state_moves(const gy_gbuild *b, const gy_gdstate *q) {
    for (uint32_t i = 0; i < q->n_tr; i++)
        if (state_is_live(b, b->trs.data[q->tr + i].to)) return 1;
    return 0;
}

static int call_is_live(const gy_gbuild *b, gy_gdcall c) {
    return state_is_live(b, c.to) && state_is_live(b, (uint32_t)b->starts.data[b->syms.data[c.sym].rule]);
}

static counts count(const gy_gbuild *b, uint8_t *cls) {
    counts n = {b->states.len, b->rules.len, 0, 1, classes_fill(b, cls)}; /* row 0 leads nowhere */
    for (size_t i = 0; i < b->states.len; i++) {
        const gy_gdstate *q = &b->states.data[i];
        n.n_row += (size_t)state_moves(b, q);
        for (uint32_t k = 0; k < q->n_call; k++) n.n_call += (size_t)call_is_live(b, b->dcalls.data[q->call + k]);
    }
    return n;
}

static void layout(gy_carve *c, gy_grammar *g, const counts *n) {
    gy_carve_take(c, 1, sizeof *g);
    g->row = gy_carve_take(c, n->n_state, sizeof *g->row);
    g->call_at = gy_carve_take(c, n->n_state + 1, sizeof *g->call_at);
    g->calls = gy_carve_take(c, n->n_call, sizeof *g->calls);
    g->need = gy_carve_take(c, n->n_state, sizeof *g->need);
    g->groups = gy_carve_take(c, n->n_state, sizeof *g->groups);
    g->start = gy_carve_take(c, n->n_rule, sizeof *g->start);
    g->next = gy_carve_take(c, n->n_row * (size_t)n->n_class, sizeof *g->next);
    g->flags = gy_carve_take(c, n->n_state, sizeof *g->flags);
    g->begin = gy_carve_take(c, 1, sizeof *g->begin);
}

/* ---- filling it ---- */

/* Groups of bytes that all lead back to q. */
static uint16_t loops_of(const gy_grammar *g, uint32_t q) {
    unsigned out = 0;
    for (unsigned c = 0; c < 256; c++)
        if (g->next[g->row[q] + g->cls[c]] != q) out |= gy_g_group((uint8_t)c);
    return (uint16_t)~out;
}

static void row_fill(const gy_gbuild *b, gy_grammar *g, uint32_t q, uint32_t at) {
    const gy_gdstate *s = &b->states.data[q];
    g->row[q] = at;
    for (uint32_t i = 0; i < s->n_tr; i++) {
        gy_gtr t = b->trs.data[s->tr + i];
        if (!state_is_live(b, t.to)) continue;
        for (unsigned k = g->cls[t.lo]; k <= g->cls[t.hi]; k++) g->next[at + k] = (uint16_t)t.to;
        g->flags[q] |= GY_G_MOVES;
    }
}

/* Behind a tail call nothing is left to do: what the callee's end leads to is what the caller's end leads to. */
static int state_is_tail(const gy_gbuild *b, uint32_t q) {
    const gy_gdstate *s = &b->states.data[q];
    if (!s->accept || state_moves(b, s)) return 0;
    for (uint32_t i = 0; i < s->n_call; i++)
        if (call_is_live(b, b->dcalls.data[s->call + i])) return 0;
    return 1;
}

static uint32_t calls_fill(const gy_gbuild *b, gy_grammar *g, uint32_t q, uint32_t at) {
    const gy_gdstate *s = &b->states.data[q];
    g->call_at[q] = at;
    for (uint32_t i = 0; i < s->n_call; i++) {
        gy_gdcall c = b->dcalls.data[s->call + i];
        if (!call_is_live(b, c)) continue;
        gy_gsym y = b->syms.data[c.sym];
        g->calls[at++] = (gy_gcall){.min = y.min,
                                    .max = y.max,
                                    .rule = (uint16_t)y.rule,
                                    .ret = (uint16_t)c.to,
                                    .tail = y.max == 1 && state_is_tail(b, c.to),
                                    .ret_need = (uint16_t)b->states.data[c.to].need};
        g->flags[q] |= GY_G_CALLS;
    }
    g->call_at[q + 1] = at;
    return at;
}

static void grammar_fill(const gy_gbuild *b, gy_grammar *g, const counts *n) {
    uint32_t row = (uint32_t)n->n_class, call = 0;
    memset(g->next, 0xFF, n->n_row * (size_t)n->n_class * sizeof *g->next);
    for (uint32_t q = 0; q < n->n_state; q++) {
        const gy_gdstate *s = &b->states.data[q];
        g->flags[q] = s->accept ? GY_G_ACCEPT : 0;
        g->need[q] = s->need < GY_G_DEAD ? (uint16_t)s->need : GY_G_DEAD;
        if (state_is_live(b, q) && g->need[q] > g->max_need) g->max_need = g->need[q];
        call = calls_fill(b, g, q, call);
        if (!state_moves(b, s)) continue;
        row_fill(b, g, q, row);
        row += (uint32_t)n->n_class;
    }
    for (uint32_t q = 0; q < n->n_state; q++) g->groups[q] = loops_of(g, q);
    for (size_t i = 0; i < n->n_rule; i++) g->start[i] = (uint16_t)b->starts.data[i];
}

static void begin_fill(gy_gbuild *b, gy_grammar *g) {
    gy_gscratch *w = gy_gw_create();
    if (!w)
        gy_gb_nomem(b);
    else if (!gy_gw_begin(w, g, g->begin))
        gy_gb_fail(b, GY_E_LIMIT, "grammar: too many rules may begin a text at the same time");
    gy_mem_free(w);
}

gy_status gy_g_pack(gy_gbuild *b, gy_grammar **out) {
    if (b->st < 0) return b->st;
    uint8_t cls[256];
    counts n = count(b, cls);
    gy_grammar sizes = {0};
    gy_carve c = {0};
    layout(&c, &sizes, &n);
    if (c.overflow || c.used > GY_GRAMMAR_MAX_BYTES) {
        gy_gb_fail(b, GY_E_LIMIT, "grammar: compiled it takes %zu bytes; allowed %d", c.used, GY_GRAMMAR_MAX_BYTES);
        return b->st;
    }
    gy_grammar *g = gy_mem_alloc(GY_MEM_SAMPLE, c.used, 1);
    if (!g) {
        gy_gb_nomem(b);
        return b->st;
    }
    gy_carve d = {.base = (char *)g, .cap = c.used};
    layout(&d, g, &n);
    memcpy(g->cls, cls, sizeof cls);
    g->n_state = (int)n.n_state;
    g->n_rule = (int)n.n_rule;
    g->n_class = n.n_class;
    g->nullable = b->rules.data[0].nullable;
    g->bytes = c.used;
    g->born_ns = (uint64_t)gy_clock_ns();
    atomic_init(&g->n_ref, 1);
    grammar_fill(b, g, &n);
    begin_fill(b, g);
    if (b->st < 0)
        gy_grammar_put(g);
    else
        *out = g;
    return b->st;
}

/* ---- compilation ---- */

static gy_status source_check(gy_grammar_kind kind, size_t len, gy_err *err) {
    if (kind != GY_GRAMMAR_REGEX && kind != GY_GRAMMAR_JSON_SCHEMA && kind != GY_GRAMMAR_JSON_OBJECT &&
        kind != GY_GRAMMAR_EBNF)
        return gy_err_set(err, GY_E_ARG, "grammar: found kind %d; expected one of gy_grammar_kind", (int)kind);
    if (len > GY_GRAMMAR_MAX_SOURCE)
        return gy_err_set(err, GY_E_LIMIT, "grammar: found %zu bytes; allowed %d", len, GY_GRAMMAR_MAX_SOURCE);
    return GY_OK;
}

static void source_parse(gy_gbuild *b, gy_grammar_kind kind, const char *text, size_t len) {
    if (kind == GY_GRAMMAR_REGEX)
        gy_g_regex(b, text, len);
    else if (kind == GY_GRAMMAR_JSON_SCHEMA)
        gy_g_schema(b, text, len);
    else if (kind == GY_GRAMMAR_JSON_OBJECT)
        gy_g_object(b);
    else
        gy_g_ebnf(b, text, len);
}

static gy_status keep_source(gy_grammar *g, gy_grammar_kind kind, const char *text, size_t len, gy_err *err) {
    if (kind == GY_GRAMMAR_JSON_OBJECT) len = 0; /* its text is not read */
    g->source = gy_mem_alloc(GY_MEM_SAMPLE, len + 1, 1);
    if (!g->source) return gy_err_set(err, GY_E_NOMEM, "grammar: no memory for its text of %zu bytes", len);
    if (len) memcpy(g->source, text, len);
    g->n_source = len;
    g->kind = kind;
    g->bytes += len + 1;
    return GY_OK;
}

gy_status gy_grammar_compile(gy_grammar_kind kind, const char *text, size_t len, gy_err *err, gy_grammar **out) {
    GY_TRY(source_check(kind, len, err));
    gy_gbuild b;
    gy_gb_init(&b, err);
    source_parse(&b, kind, text, len);
    if (b.st >= 0) gy_gnfa_nullables(&b);
    if (b.st >= 0) gy_gdfa_make(&b);
    gy_gdfa_analyse(&b);
    gy_grammar *g = NULL;
    gy_status st = gy_g_pack(&b, &g);
    gy_gb_fini(&b);
    GY_CHECK(st < 0 || g);
    if (st >= 0) st = keep_source(g, kind, text, len, err);
    if (st < 0)
        gy_grammar_put(g);
    else
        *out = g;
    return st;
}

const char *gy_grammar_source(const gy_grammar *g, gy_grammar_kind *kind_out, size_t *len_out) {
    *kind_out = g->kind;
    *len_out = g->n_source;
    return g->source;
}

gy_grammar *gy_grammar_get(gy_grammar *g) {
    atomic_fetch_add_explicit(&g->n_ref, 1, memory_order_relaxed);
    return g;
}

/* Release and acquire: whoever frees sees all reads of the others done. */
void gy_grammar_put(gy_grammar *g) {
    if (!g || atomic_fetch_sub_explicit(&g->n_ref, 1, memory_order_acq_rel) != 1) return;
    gy_mem_free(g->source);
    gy_mem_free(g);
}

size_t gy_grammar_bytes(const gy_grammar *g) {
    return g->bytes;
}

int gy_grammar_n_state(const gy_grammar *g) {
    return g->n_state;
}
