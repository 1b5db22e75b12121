/* How attention is shared out: whole rows, then KV heads of the rows that are left. It computes no float itself
 * (attn.inc does). */
#include "ops/cpu/cpu_int.h"

typedef struct attn_task {
    const cpu_backend *c;
    const gy_attn_args *a;
} attn_task;

/* Whole rows are dealt in turn, because later rows of a chunk see longer contexts; the rows that are left over, fewer
 * than members, are split by KV heads. */
static void attn_member(void *arg, int member, int n_member) {
    const attn_task *t = arg;
    const cpu_backend *c = t->c;
    const gy_attn_args *a = t->a;
    int64_t n_head_kv = a->kv->n_head_kv, group = a->n_head / n_head_kv, whole = a->rows.n_row / n_member * n_member;
    float *scratch = c->scratch + c->linear_floats + member * c->attn_floats;
    int64_t lo, hi;
    for (int64_t r = member; r < whole; r += n_member) c->kern->attn(c->be.act, a, r, 0, a->n_head, scratch);
    gy_team_share((a->rows.n_row - whole) * n_head_kv, 1, member, n_member, &lo, &hi);
    for (int64_t i = lo, n; i < hi; i += n) {
        int64_t first = i % n_head_kv;
        n = hi - i < n_head_kv - first ? hi - i : n_head_kv - first;
        c->kern->attn(c->be.act, a, whole + i / n_head_kv, first * group, (first + n) * group, scratch);
    }
}

void gy_cpu_attn_run(gy_backend *be, const gy_attn_args *a) {
    attn_task t = {.c = cpu_of(be), .a = a};
    GY_CHECK((int64_t)a->n_head * a->kv->head_dim <= t.c->max_k);
    if (a->rows.n_row > 0) gy_team_run(t.c->team, attn_member, &t);
}
