/* The cells of gyre-bench-decode: one figure each of a whole model (or of attention alone), with what it must move and
 * compute, the ceilings of that moment, the share that it reached and the goal that was set for it.
 */
#ifndef GY_BENCH_DECODE_CELLS_H
#define GY_BENCH_DECODE_CELLS_H

#include "decode_rig.h"

typedef struct cell_result {
    char name[24];
    int n_round;
    double best_s, median_s; /* of a round */
    double bytes, flop;      /* that a round must move and compute */
    double read, fma;        /* ceilings: the median of the probes, and the peak */
    double share;            /* median of rounds: the larger bound over the time */
    double share_best;       /* the shortest round against the best bandwidth seen */
    double goal;             /* of share; 0: none was set */
    double others;           /* cores that other processes took meanwhile */
} cell_result;

/* The model must be open. name: decode-N, prefill-N, attn-N. GY_E_ARG for another one. */
gy_status cell_run(rig *r, const char *name, int tokens, cell_result *out);
void cell_print(const rig *r, const cell_result *c, int json);
void cell_print_table(const rig *r, const cell_result *c, int n); /* markdown */
void cell_print_split(const rig *r, const cell_result *c, int json);

#endif
