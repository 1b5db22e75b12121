/* The least time that a model's work can take on a machine with two ceilings: the larger of bytes over its rate of
 * memory and floating-point operations over its rate of products. Counts what must be: each weight once for each pass
 * over it, K and V of the context once for each row, products, scores and sums of attention. Pure.
 */
#ifndef GY_CLI_CLI_BENCH_FLOOR_H
#define GY_CLI_CLI_BENCH_FLOOR_H

#include "base/status.h"
#include "model/desc.h"

typedef struct gy_bench_ceilings {
    double bytes, flops; /* a second; 0: not known */
} gy_bench_ceilings;

/* "4244:790": GB/s and TFLOP/s. */
gy_status gy_bench_parse_ceilings(const char *text, gy_err *err, gy_bench_ceilings *out);
/* Milliseconds; n_loop may be a mean. elem: bytes of weights and of KV. */
double gy_bench_floor_token(const gy_model_desc *d, double elem, double n_loop, double n_row, double context,
                            const gy_bench_ceilings *c);
double gy_bench_floor_prompt(const gy_model_desc *d, double elem, double n_tok, const gy_bench_ceilings *c);

#endif
