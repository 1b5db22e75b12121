/* What the pages of `gyre bench` have in common: their style sheet, with the classes that cli_bench_serve_svg.h draws
 * with (s1 to s4 lines, f1 to f4 areas). */
#ifndef GY_CLI_CLI_BENCH_PAGE_H
#define GY_CLI_CLI_BENCH_PAGE_H

extern const char gy_bench_page_style[];

#endif
