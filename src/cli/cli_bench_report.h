/* Figures to text: a table for people, JSON with everything, CSV for other programs. Pure. */
#ifndef GY_CLI_CLI_BENCH_REPORT_H
#define GY_CLI_CLI_BENCH_REPORT_H

#include "base/json.h"
#include "cli/cli_bench_stats.h"

/* What was measured: what a reader must know to do it again. Strings are borrowed. */
typedef struct gy_bench_setup {
    const char *model; /* folder or shape */
    int synthetic;     /* 1: a shape */
    const char *family, *dtype, *variant, *cpu, *kv_layout, *kv_dtype, *exit;
    int32_t n_loop, n_core, n_thread;
    const gy_bench_load *load;
    const gy_engine_opts *engine;
    const gy_request *proto;
    int32_t warmup;
    const char *cell; /* NULL: none */
} gy_bench_setup;

/* One way of running, several times. */
typedef struct gy_bench_series {
    int prefix_cache;
    const char *layout; /* NULL: an engine in this process, with its inner figures */
    int32_t n_process, n_thread;
    size_t n; /* 1..GY_BENCH_MAX_REPEAT */
    gy_bench_result r[GY_BENCH_MAX_REPEAT];
} gy_bench_series;

/* s[0..n): one series, or without and with the prefix cache, or layouts. differ: the first request whose outputs differ
 * from the first run's, -1 when none does. */
void gy_bench_put_table(const gy_bench_setup *u, const gy_bench_series *s, size_t n, int32_t differ, gy_str *out);
void gy_bench_put_json(const gy_bench_setup *u, const gy_bench_series *s, size_t n, int32_t differ, gy_str *out);
/* Names first, where out is empty. */
void gy_bench_put_csv(const gy_bench_setup *u, const gy_bench_series *s, size_t n, gy_str *out);

const char *gy_bench_kind_name(gy_bench_kind k); /* "burst" */

/* A line a step. */
void gy_bench_put_steps(const gy_bench_sample *s, size_t n, gy_str *out);

/* Cells: a line each under one head. */
void gy_bench_put_cell_head(gy_str *out);
void gy_bench_put_cell(const char *name, const gy_bench_series *s, int32_t differ, gy_str *out);

/* v between quotes, as CSV wants it (RFC 4180). */
void gy_bench_csv_text(gy_str *s, const char *v);
/* Before hours of work: whether gy_bench_write could open path for the option. Changes nothing; NULL and "-" can be. */
gy_status gy_bench_may_write(const char *flag, const char *path, gy_err *err);
/* Writes a report into the file of an option, "-" is standard output; s is emptied. cli_bench.c. */
gy_status gy_bench_write(const char *flag, const char *path, gy_str *s, gy_err *err);

/* Output tokens a second of series b over those of a, repeat by repeat: median, smallest, largest. */
void gy_bench_ratio(const gy_bench_series *a, const gy_bench_series *b, double out[3]);

#endif
