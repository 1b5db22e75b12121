/* The parts of gyre-bench-pd: each measures one thing, prints its table, or with json one object a line. */
#ifndef GY_BENCH_PD_PARTS_H
#define GY_BENCH_PD_PARTS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct pd_bench {
    int json;
    const char *gyre;   /* the program whose workers are measured */
    const char *tmp;    /* a folder for checkpoints, emptied by main */
    int n_kill;         /* of each role */
    const char *device; /* of workers; NULL: the processor */
    const char *shape;  /* whose workers are killed */
    int32_t n_prompt;   /* of each of their requests */
} pd_bench;

gy_status pd_transfer(const pd_bench *b, gy_err *err);
gy_status pd_budget(const pd_bench *b, gy_err *err);
gy_status pd_handoff(const pd_bench *b, gy_err *err);
gy_status pd_detect(const pd_bench *b, gy_err *err);
gy_status pd_layouts(const pd_bench *b, gy_err *err);

/* Writes the shape into a folder below b->tmp, once; the path is static until the next call. */
gy_status pd_checkpoint(const pd_bench *b, const char *shape, gy_err *err, const char **dir_out);

#endif
