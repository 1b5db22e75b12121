/* See cli_bench_floor.h. Norms, biases, activations and the rotation count as nothing. */
#include "cli/cli_bench_floor.h"

#include <math.h>
#include <stdlib.h>

typedef struct floor_work { /* of one token */
    double core, once;      /* matrix elements that a loop reads; that are read once (prelude, coda, head) */
    double planes;          /* layers that attend, each loop counted */
} floor_work;

static floor_work work_of(const gy_model_desc *d, double n_loop) {
    const double e = d->n_embd, q = (double)d->n_head * d->head_dim, kv = (double)d->n_head_kv * d->head_dim;
    const double layer = e * (q + 2 * kv) + q * e + 3.0 * d->n_ff * e;
    const double boundary = d->n_layer[GY_PRELUDE] + d->n_layer[GY_CODA];
    return (floor_work){.core = d->n_layer[GY_CORE] * layer + (d->inject ? 2 * e * e : 0),
                        .once = boundary * layer + (double)d->n_vocab * e,
                        .planes = d->n_layer[GY_CORE] * n_loop + boundary};
}

static double least_ms(double bytes, double flops, const gy_bench_ceilings *c) {
    return 1e3 * fmax(bytes / c->bytes, flops / c->flops);
}

double gy_bench_floor_token(const gy_model_desc *d, double elem, double n_loop, double n_row, double context,
                            const gy_bench_ceilings *c) {
    const floor_work w = work_of(d, n_loop);
    const double weights = w.core * n_loop + w.once, kv = 2.0 * d->n_head_kv * d->head_dim * w.planes * context;
    const double attn = 4.0 * d->n_head * d->head_dim * w.planes * context;
    return least_ms(elem * (weights + n_row * kv), n_row * (2 * weights + attn), c);
}

double gy_bench_floor_prompt(const gy_model_desc *d, double elem, double n_tok, const gy_bench_ceilings *c) {
    const floor_work w = work_of(d, d->n_loop);
    const double head = (double)d->n_vocab * d->n_embd, products = w.core * d->n_loop + w.once - head;
    const double attn = 2.0 * d->n_head * d->head_dim * w.planes * n_tok * n_tok; /* causal: half of the square */
    return least_ms(elem * (products + head), 2 * (n_tok * products + head) + attn, c);
}

gy_status gy_bench_parse_ceilings(const char *text, gy_err *err, gy_bench_ceilings *out) {
    char *end;
    const double gb = strtod(text, &end);
    const double tflop = *end == ':' ? strtod(end + 1, &end) : 0;
    if (*end || !(gb > 0) || !(tflop > 0) || !isfinite(gb) || !isfinite(tflop))
        return gy_err_set(err, GY_E_ARG, "--ceilings: found '%.40s', expected GB/s:TFLOP/s, as 4244:790", text);
    *out = (gy_bench_ceilings){gb * 1e9, tflop * 1e12};
    return GY_OK;
}
