/* The page of gyre bench engine and pd: what is drawn of which figures, text that is no markup, what was not measured.
 */
#include "cli_test.h"

#include "base/mem.h"
#include "cli/cli_bench_html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct scene {
    gy_bench_load load[3];
    gy_bench_series series[3][2];
    gy_bench_outcome o[3];
} scene;

static void set_up(scene *s) {
    static const double rates[] = {0.5, 1, 2};
    static const char *const names[] = {"mixed-0.5", "mixed-1", "mixed-2"}, *const layouts[] = {"1p1d", "2r"};
    memset(s, 0, sizeof *s);
    for (int c = 0; c < 3; c++) {
        s->load[c] = (gy_bench_load){.kind = GY_BENCH_POISSON, .n_stream = 30, .n_turn = 1, .rate = rates[c]};
        for (int l = 0; l < 2; l++) {
            gy_bench_series *x = &s->series[c][l];
            x->layout = layouts[l];
            x->n = 1;
            for (size_t i = 0; i < GY_BENCH_N; i++) x->r[0].f[i] = NAN;
            x->r[0].f[GY_BENCH_OUTPUT_RATE] = l ? 50 : 100 * rates[c];
            x->r[0].f[gy_bench_at(GY_BENCH_TTFT, GY_BENCH_P95)] = l ? 2000 : 500;
        }
        s->o[c] = (gy_bench_outcome){.u = {.model = "a<b>&c",
                                           .family = "ouro",
                                           .dtype = "bf16",
                                           .cpu = "a cpu",
                                           .n_loop = 4,
                                           .load = &s->load[c]},
                                     .s = s->series[c],
                                     .n = 2,
                                     .differ = -1};
        s->o[c].u.cell = names[c];
    }
}

static int count(const gy_str *s, const char *what) {
    int n = 0;
    for (const char *at = gy_str_z(s); (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

static double width_behind(const gy_str *s, const char *name) {
    const char *at = strstr(gy_str_z(s), name);
    assert_non_null(at);
    at = strstr(at, "width=\"");
    assert_non_null(at);
    return strtod(at + strlen("width=\""), NULL);
}

static void bars_and_curves(void **state) {
    (void)state;
    scene s;
    gy_str out = {0};
    set_up(&s);
    assert_int_equal(gy_bench_put_html(s.o, 3, &out), GY_OK);
    assert_int_equal(count(&out, "<h2>"), 4);                  /* three cells, and over the rate */
    assert_int_equal(count(&out, "<rect"), 3 * 2 * 2);         /* cells, figures that are known, layouts */
    assert_int_equal(count(&out, "class=\"line s1\""), 1 + 2); /* the legend's, and a curve a figure */
    assert_int_equal(count(&out, "class=\"line s2\""), 1 + 2);
    assert_int_equal(count(&out, "<circle"), 2 * 2 * 3);
    assert_int_equal(count(&out, "outputs of all runs are equal"), 3);
    assert_int_equal(count(&out, "a&lt;b&gt;&amp;c"), 2);
    assert_int_equal(count(&out, "a<b>"), 0);
    assert_int_equal(count(&out, "nan"), 0);
    assert_int_equal(count(&out, "<svg"), count(&out, "</svg>"));
    const char *half = strstr(gy_str_z(&out), "mixed-0.5</h2>");
    assert_non_null(half);
    gy_str rest = {0};
    gy_str_puts(&rest, strstr(half, "<svg"));
    assert_true(fabs(width_behind(&rest, ">1p1d</text>") - width_behind(&rest, ">2r</text>")) < 0.11); /* 50 and 50 */
    gy_str_free(&rest);
    gy_str_free(&out);
}

/* One cell has no curve; what no repeat of was measured has no place; runs that differ are told. */
static void what_is_left_out(void **state) {
    (void)state;
    scene s;
    gy_str out = {0};
    set_up(&s);
    s.series[1][1].n = 0;
    s.o[0].differ = 7;
    assert_int_equal(gy_bench_put_html(s.o, 2, &out), GY_OK);
    assert_int_equal(count(&out, "<h2>"), 1);
    assert_int_equal(count(&out, "<circle"), 0);
    assert_int_equal(count(&out, "The outputs of request 7 differ"), 1);
    gy_str_free(&out);
    s.o[0].n = 1;
    s.series[0][0].layout = NULL;
    s.o[0].u.cell = NULL;
    assert_int_equal(gy_bench_put_html(s.o, 1, &out), GY_OK);
    assert_int_equal(count(&out, ">engine<"), 1 + 2); /* the table's, and two bars */
    gy_str_free(&out);
}

static void without_memory(void **state) {
    (void)state;
    scene s;
    set_up(&s);
    for (int n = 1;; n++) {
        gy_str out = {0};
        gy_mem_fail_after(n);
        gy_status st = gy_bench_put_html(s.o, 3, &out);
        gy_mem_fail_after(0);
        gy_str_free(&out);
        if (st == GY_OK) break;
        assert_int_equal(st, GY_E_NOMEM);
        assert_true(n < 100);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bars_and_curves), cmocka_unit_test(what_is_left_out),
                                       cmocka_unit_test(without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
