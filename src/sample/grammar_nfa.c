/* A rule's tree to an NFA whose edges are ranges of bytes, calls of rules, or nothing (Thompson, "Regular expression
 * search algorithm", CACM 11, 1968). emit(node, from, to) only adds edges that leave `from` and edges that enter `to`,
 * so alternatives may share both ends; whatever loops does so over states of its own.
 *
 * A long repetition is not unrolled: its child becomes a rule of its own and the repetition one counted call, whose
 * count lies on the stack at run time. How long is "long" depends on how many states there are already.
 */
#include "sample/grammar_int.h"

#include <string.h>

enum { UNROLL = 2048, UNROLL_LATE = 64, UNROLL_MUCH = 20000 };

static void emit(gy_gnfa *n, int32_t node, int32_t from, int32_t to);

/* ---- states and edges ---- */

static int32_t state_new(gy_gnfa *n) {
    if (!gy_gb_work(n->b, 1)) return 0;
    if (n->heads.len >= GY_G_MAX_NFA) {
        gy_gb_fail(n->b, GY_E_LIMIT, "grammar: one rule has more than %d positions; repeat less", GY_G_MAX_NFA);
        return 0;
    }
    if (gy_vec_push(&n->heads, GY_MEM_SAMPLE, -1)) gy_gb_nomem(n->b);
    return n->b->st < 0 ? 0 : (int32_t)n->heads.len - 1;
}

static void edge_put(gy_gnfa *n, int32_t from, gy_gedge e) {
    if (!gy_gb_work(n->b, 1)) return;
    e.next = n->heads.data[from];
    if (gy_vec_push(&n->edges, GY_MEM_SAMPLE, e)) {
        gy_gb_nomem(n->b);
        return;
    }
    n->heads.data[from] = (int32_t)n->edges.len - 1;
}

static void edge_eps(gy_gnfa *n, int32_t from, int32_t to) {
    edge_put(n, from, (gy_gedge){.to = to, .kind = GY_G_EPS});
}

static void edge_range(gy_gnfa *n, int32_t from, int32_t to, unsigned lo, unsigned hi) {
    edge_put(n, from, (gy_gedge){.to = to, .kind = GY_G_RANGE, .lo = (uint8_t)lo, .hi = (uint8_t)hi});
}

static void edge_bytes(gy_gnfa *n, int32_t from, int32_t to, const char *s, size_t len) {
    if (len == 0) edge_eps(n, from, to);
    for (size_t i = 0; i < len && n->b->st >= 0; i++) {
        int32_t next = i + 1 == len ? to : state_new(n);
        edge_range(n, from, next, (uint8_t)s[i], (uint8_t)s[i]);
        from = next;
    }
}

static uint32_t sym_of(gy_gbuild *b, uint32_t rule, uint32_t min, uint32_t max) {
    for (size_t i = b->syms.len; i-- > 0 && i + 64 > b->syms.len;)
        if (b->syms.data[i].rule == rule && b->syms.data[i].min == min && b->syms.data[i].max == max)
            return (uint32_t)i;
    gy_gsym s = {rule, min, max};
    if (gy_vec_push(&b->syms, GY_MEM_SAMPLE, s)) gy_gb_nomem(b);
    return (uint32_t)b->syms.len - 1;
}

static void edge_call(gy_gnfa *n, int32_t from, int32_t to, uint32_t rule, uint32_t min, uint32_t max) {
    if (n->b->rules.data[rule].nullable) min = 0;
    if (min == 0) edge_eps(n, from, to);
    if (max == 0) return;
    edge_put(n, from, (gy_gedge){.to = to, .kind = GY_G_SYM, .sym = sym_of(n->b, rule, min ? min : 1, max)});
}

/* ---- code points as UTF-8 (RFC 3629) ---- */

typedef struct tails {
    int32_t s[4]; /* s[k]: states from which k continuation bytes of any value lead to the end; made when needed */
} tails;

static int32_t tail_state(gy_gnfa *n, tails *t, int k) {
    if (k > 0 && t->s[k] < 0) {
        t->s[k] = state_new(n);
        edge_range(n, t->s[k], tail_state(n, t, k - 1), 0x80, 0xBF);
    }
    return t->s[k];
}

static int utf8_put(uint32_t c, uint8_t *out) {
    if (c < 0x80) return out[0] = (uint8_t)c, 1;
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)(lead[n] | c);
    return n;
}

/* lo and hi have equal length, and behind the first byte that differs all continuation bytes are possible. */
static void edge_sequence(gy_gnfa *n, tails *t, int32_t from, uint32_t lo, uint32_t hi) {
    uint8_t a[4], z[4];
    int len = utf8_put(lo, a);
    utf8_put(hi, z);
    int same = 0;
    while (same + 1 < len && a[same] == z[same]) same++;
    for (int i = 0; i < same; i++) {
        int32_t next = state_new(n);
        edge_range(n, from, next, a[i], a[i]);
        from = next;
    }
    edge_range(n, from, tail_state(n, t, len - 1 - same), a[same], z[same]);
}

static uint32_t utf8_last(uint32_t c) { /* of its length in bytes */
    return c < 0x80 ? 0x7F : c < 0x800 ? 0x7FF : c < 0x10000 ? 0xFFFF : 0x10FFFF;
}

/* Cuts [lo, hi] into pieces that edge_sequence can take, from below: the largest one that begins at lo. */
static void edge_codepoints(gy_gnfa *n, tails *t, int32_t from, uint32_t lo, uint32_t hi) {
    while (lo <= hi && n->b->st >= 0) {
        uint32_t end = utf8_last(lo) < hi ? utf8_last(lo) : hi;
        for (int bits = lo < 0x80 ? 0 : 18; bits > 0; bits -= 6) {
            uint32_t low = (1u << bits) - 1;
            if ((lo & ~low) == (end & ~low)) continue; /* the bytes above are the same: look further down */
            if (lo & low)
                end = lo | low; /* up to the next full block */
            else if ((end & low) != low)
                end = (end & ~low) - 1; /* full blocks only */
        }
        edge_sequence(n, t, from, lo, end);
        lo = end + 1;
    }
}

/* ---- code points inside a JSON string: as they are where that is allowed, else the shortest escape ---- */

static void edge_json_char(gy_gnfa *n, int32_t from, int32_t to, uint32_t c) {
    static const char shorts[][2] = {{'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'},
                                     {'\t', 't'}, {'"', '"'},  {'\\', '\\'}};
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++)
        if ((uint8_t)shorts[i][0] == c) {
            char two[2] = {'\\', shorts[i][1]};
            edge_bytes(n, from, to, two, 2);
            return;
        }
    char six[6] = {'\\', 'u', '0', '0', hex[c >> 4 & 15], hex[c & 15]};
    edge_bytes(n, from, to, six, 6);
}

static void edge_json(gy_gnfa *n, tails *t, int32_t from, int32_t to, uint32_t lo, uint32_t hi) {
    for (; lo <= hi && lo < 0x20; lo++) edge_json_char(n, from, to, lo);
    static const uint32_t marks[3] = {'"', '\\', 0x110000};
    for (int i = 0; i < 3 && lo <= hi; i++) {
        if (lo < marks[i]) edge_codepoints(n, t, from, lo, hi < marks[i] ? hi : marks[i] - 1);
        if (lo <= marks[i] && marks[i] <= hi && i < 2) edge_json_char(n, from, to, marks[i]);
        if (lo <= marks[i]) lo = marks[i] + 1;
    }
}

static void emit_set(gy_gnfa *n, const gy_gnode *node, int32_t from, int32_t to) {
    tails t = {{to, -1, -1, -1}};
    for (uint32_t i = 0; i < node->b && n->b->st >= 0; i++) {
        gy_grange r = n->b->ranges.data[node->a + i];
        if (node->flag)
            edge_json(n, &t, from, to, r.lo, r.hi);
        else
            edge_codepoints(n, &t, from, r.lo, r.hi);
    }
}

/* ---- repetition ---- */

/* States that a tree takes, about; saturates. */
static uint64_t weigh(const gy_gbuild *b, int32_t node, uint64_t cap) {
    const gy_gnode *x = &b->nodes.data[node];
    if (x->kind == GY_G_SAME) return weigh(b, (int32_t)x->a, cap);
    uint64_t sum = x->kind == GY_G_BYTES ? x->b : x->kind == GY_G_SET ? (x->b > 1 ? 2 * x->b + 4 : 1) : 1;
    for (int32_t c = x->first; c >= 0 && sum < cap; c = b->nodes.data[c].next) sum += weigh(b, c, cap);
    if (x->kind == GY_G_REP) sum *= x->b == GY_G_INF ? x->a + 1 : x->b ? x->b : 1;
    return sum < cap ? sum : cap;
}

static int is_nullable(gy_gbuild *b, int32_t node) {
    const gy_gnode *x = &b->nodes.data[node];
    if (!gy_gb_work(b, 1)) return 0;
    int all = 1, any = 0;
    switch ((gy_gkind)x->kind) {
    case GY_G_EMPTY:
        return 1;
    case GY_G_FAIL:
    case GY_G_SET:
        return 0;
    case GY_G_BYTES:
        return x->b == 0;
    case GY_G_CALL:
        return b->rules.data[x->a].nullable;
    case GY_G_SAME:
        return is_nullable(b, (int32_t)x->a);
    case GY_G_REP:
        return x->a == 0 || is_nullable(b, x->first);
    default:
        for (int32_t c = x->first; c >= 0; c = b->nodes.data[c].next) {
            int one = is_nullable(b, c) || (x->kind == GY_G_MEMBERS && b->nodes.data[c].flag != GY_G_REQUIRED);
            all &= one;
            any |= one;
        }
        return x->kind == GY_G_ALT ? any : all;
    }
}

/* To a fixed point. Alternating directions: definitions stand before or behind their uses. */
void gy_gnfa_nullables(gy_gbuild *b) {
    size_t n = b->rules.len;
    for (int changed = 1, back = 0; changed && b->st >= 0; back = !back) {
        changed = 0;
        for (size_t i = 0; i < n; i++) {
            gy_grule *r = &b->rules.data[back ? n - 1 - i : i];
            if (r->nullable || !is_nullable(b, r->root)) continue;
            r->nullable = 1;
            changed = 1;
        }
    }
}

static void emit_counted(gy_gnfa *n, int32_t child, int32_t from, int32_t to, uint32_t min, uint32_t max) {
    gy_gbuild *b = n->b;
    int32_t rule = gy_gb_rule(b, "repetition", 10);
    if (b->st < 0) return;
    b->rules.data[rule].root = child;
    b->rules.data[rule].nullable = (uint8_t)is_nullable(b, child);
    edge_call(n, from, to, (uint32_t)rule, min, max);
}

static void emit_unrolled(gy_gnfa *n, int32_t child, int32_t from, int32_t to, uint32_t min, uint32_t max) {
    int32_t at = from;
    for (uint32_t i = 0; i < min && n->b->st >= 0; i++) {
        int32_t next = state_new(n);
        emit(n, child, at, next);
        at = next;
    }
    if (max == GY_G_INF) {
        int32_t loop = state_new(n);
        edge_eps(n, at, loop);
        emit(n, child, loop, loop);
        at = loop;
    }
    for (uint32_t i = min; i < max && max != GY_G_INF && n->b->st >= 0; i++) {
        int32_t next = state_new(n);
        edge_eps(n, at, to); /* straight to the end: sets of states stay small */
        emit(n, child, at, next);
        at = next;
    }
    edge_eps(n, at, to);
}

static void emit_rep(gy_gnfa *n, const gy_gnode *x, int32_t from, int32_t to) {
    uint64_t times = x->b == GY_G_INF ? x->a : x->b;
    uint64_t allowed = n->b->states.len + n->heads.len > UNROLL_MUCH ? UNROLL_LATE : UNROLL;
    int32_t child = x->first;
    uint32_t min = x->a, max = x->b;
    if (times > 1 && times * weigh(n->b, child, allowed) > allowed)
        emit_counted(n, child, from, to, min, max);
    else
        emit_unrolled(n, child, from, to, min, max);
}

/* ---- members of an object, elements of an array ---- */

static void emit_separator(gy_gnfa *n, int32_t from, int32_t to) {
    int32_t comma = state_new(n);
    edge_range(n, from, comma, ',', ',');
    edge_range(n, comma, to, ' ', ' ');
    edge_eps(n, comma, to);
}

/* Two lanes: `none` while no member came yet, `some` (-1: impossible) afterwards. Each member's tree is emitted once,
 * entered from both. */
static void emit_members(gy_gnfa *n, const gy_gnode *x, int32_t from, int32_t to) {
    int32_t none = from, some = -1;
    for (int32_t c = x->first; c >= 0 && n->b->st >= 0;) {
        uint8_t flag = n->b->nodes.data[c].flag;
        int32_t begin = state_new(n), end = state_new(n);
        if (none >= 0) edge_eps(n, none, begin);
        if (some >= 0) emit_separator(n, some, begin);
        emit(n, c, begin, end);
        if (flag == GY_G_ANY_TIMES) emit_separator(n, end, begin);
        if (flag != GY_G_REQUIRED && some >= 0) edge_eps(n, some, end);
        if (flag == GY_G_REQUIRED) none = -1;
        some = end;
        c = n->b->nodes.data[c].next;
    }
    if (none >= 0) edge_eps(n, none, to);
    if (some >= 0) edge_eps(n, some, to);
}

static void emit_list(gy_gnfa *n, const gy_gnode *x, int32_t from, int32_t to) {
    int32_t begin = state_new(n), end = state_new(n);
    edge_eps(n, from, begin);
    emit(n, x->first, begin, end);
    emit_separator(n, end, begin);
    edge_eps(n, end, to);
}

/* ---- the tree ---- */

static void emit_cat(gy_gnfa *n, int32_t child, int32_t from, int32_t to) {
    if (child < 0) edge_eps(n, from, to);
    while (child >= 0 && n->b->st >= 0) {
        int32_t following = n->b->nodes.data[child].next;
        int32_t next = following < 0 ? to : state_new(n);
        emit(n, child, from, next);
        from = next;
        child = following;
    }
}

static void emit(gy_gnfa *n, int32_t node, int32_t from, int32_t to) {
    if (!gy_gb_work(n->b, 1)) return;
    const gy_gnode x = n->b->nodes.data[node];
    switch ((gy_gkind)x.kind) {
    case GY_G_EMPTY:
        edge_eps(n, from, to);
        break;
    case GY_G_FAIL:
        break;
    case GY_G_BYTES:
        edge_bytes(n, from, to, n->b->pool.data + x.a, x.b);
        break;
    case GY_G_SET:
        emit_set(n, &x, from, to);
        break;
    case GY_G_CAT:
        emit_cat(n, x.first, from, to);
        break;
    case GY_G_ALT:
        for (int32_t c = x.first; c >= 0; c = n->b->nodes.data[c].next) emit(n, c, from, to);
        break;
    case GY_G_REP:
        emit_rep(n, &x, from, to);
        break;
    case GY_G_CALL:
        edge_call(n, from, to, x.a, 1, 1);
        break;
    case GY_G_SAME:
        emit(n, (int32_t)x.a, from, to);
        break;
    case GY_G_MEMBERS:
        emit_members(n, &x, from, to);
        break;
    case GY_G_LIST:
        emit_list(n, &x, from, to);
        break;
    }
}

void gy_gnfa_make(gy_gnfa *n, int32_t root) {
    n->heads.len = n->edges.len = 0;
    int32_t start = state_new(n), end = state_new(n);
    emit(n, root, start, end);
}

void gy_gnfa_free(gy_gnfa *n) {
    gy_vec_free(&n->heads);
    gy_vec_free(&n->edges);
}
