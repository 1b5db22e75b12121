/* Stop strings on a stream. The oracle searches the whole text: the first end at which a stop string ends, and of
 * those that end there the leftmost begin. Every way of cutting the text into pieces must agree with it, and what is
 * shown after each piece must be exactly what no continuation of the text could take back.
 */
#include "sample/stop.h"

#include "base/mem.h"
#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MAX_STRINGS = 5, MAX_TEXT = 4096 };

typedef struct stops {
    gy_stop_string s[MAX_STRINGS];
    size_t n;
} stops;

static stops stops_of(const char *const *strings) {
    stops r = {0};
    for (; r.n < MAX_STRINGS && strings[r.n]; r.n++) r.s[r.n] = (gy_stop_string){strings[r.n], strlen(strings[r.n])};
    return r;
}

static gy_stop *stop_make(const stops *d) {
    gy_stop *s = NULL;
    gy_err err = {0};
    if (gy_stop_create(d->s, d->n, &err, &s) != GY_OK) fail_msg("%s", err.msg);
    return s;
}

/* ---- the oracle ---- */

typedef struct verdict {
    int hit;
    size_t before, end, which; /* text before the match; where it is complete */
} verdict;

static verdict oracle(const char *text, size_t len, const stops *d) {
    for (size_t end = 1; end <= len; end++) {
        for (size_t from = 0; from < end; from++) {
            for (size_t i = 0; i < d->n; i++)
                if (d->s[i].len == end - from && !memcmp(text + from, d->s[i].s, end - from))
                    return (verdict){1, from, end, i};
        }
    }
    return (verdict){0, len, 0, 0};
}

/* Bytes at the end of the text with which a stop string begins but does not end. */
static size_t oracle_held(const char *text, size_t len, const stops *d) {
    for (size_t k = len; k > 0; k--)
        for (size_t i = 0; i < d->n; i++)
            if (d->s[i].len > k && !memcmp(text + len - k, d->s[i].s, k)) return k;
    return 0;
}

/* ---- one text, one way of cutting it ---- */

/* Bit i of cuts: a piece ends after byte i. */
static void check(const char *text, size_t len, const stops *d, uint64_t cuts) {
    verdict v = oracle(text, len, d);
    gy_stop *s = stop_make(d);
    gy_str out = {0};
    size_t from = 0, which = 99;
    int hit = 0;
    for (size_t i = 0; i < len; i++) {
        if (i + 1 < len && !(cuts >> i % 64 & 1)) continue;
        hit = gy_stop_push(s, text + from, i + 1 - from, &out, &which);
        from = i + 1;
        assert_int_equal(hit, v.hit && v.end <= from);
        if (hit && which != v.which) fail_msg("text '%.*s': string %zu, not %zu", (int)len, text, which, v.which);
        size_t shown = hit ? v.before : from - oracle_held(text, from, d);
        if (out.len != shown || memcmp(gy_str_z(&out), text, shown))
            fail_msg("text '%.*s' cuts %llx after %zu: shown '%s', not %zu bytes", (int)len, text,
                     (unsigned long long)cuts, from, gy_str_z(&out), shown);
        assert_int_equal(gy_stop_held(s), hit ? 0 : from - shown);
        if (!hit) assert_int_equal(which, 99); /* not written */
    }
    gy_stop_finish(s, &out);
    assert_int_equal(out.len, v.before);
    assert_memory_equal(gy_str_z(&out), text, out.len);
    assert_int_equal(gy_stop_held(s), 0);
    gy_stop_destroy(s);
    gy_str_free(&out);
}

static void known_cases(void **state) {
    static const struct {
        const char *text;
        const char *stop[MAX_STRINGS];
        int before; /* -1: none is found */
        size_t which;
    } cases[] = {
        {"hello world", {"wor"}, 6, 0},
        {"hello", {"xyz"}, -1, 0},
        {"aaab", {"aab"}, 1, 0},
        {"abc", {"c", "bc"}, 1, 1},          /* end together: leftmost */
        {"abcd", {"abcd", "bc"}, 1, 1},      /* complete first, though the other begins further left */
        {"xabc", {"c", "bc", "abc"}, 1, 2},  /* three end together */
        {"xaby", {"ab", "ab"}, 1, 0},        /* equal ones: the first */
        {"xbay", {"a", "b"}, 1, 1},          /* the order in the list does not matter */
        {"ab", {"ab"}, 0, 0},                /* nothing is before it */
        {"a", {"a"}, 0, 0},                  /* nor behind */
        {"x\n\nUser:", {"\n\nUser:"}, 1, 0}, /* held across many tokens */
        {"ababac", {"abac"}, 2, 0},          /* a match begins inside a failed one */
        {"aabaaabaaac", {"aabaaac"}, 4, 0},
        {"abc", {NULL}, -1, 0},
        {"n\xc3\xa4", {"\xa4"}, 2, 0}, /* bytes, not characters */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        stops d = stops_of(cases[i].stop);
        verdict v = oracle(text, strlen(text), &d);
        assert_int_equal(v.hit ? (int)v.before : -1, cases[i].before);
        assert_int_equal(v.which, cases[i].which);
        for (uint64_t cuts = 0; cuts < 1u << (strlen(text) - 1); cuts++) check(text, strlen(text), &d, cuts);
    }
}

/* ---- random ---- */

typedef struct source {
    uint32_t seed, n;
} source;

static uint32_t below(source *r, uint32_t n) {
    uint32_t w[4];
    gy_rand_block(r->seed, 0, 0, GY_RAND_TEST, r->n++, w);
    return (uint32_t)((uint64_t)w[0] * n >> 32);
}

static void random_bytes(source *r, char *p, size_t n, uint32_t alphabet) {
    for (size_t i = 0; i < n; i++) p[i] = (char)("ab\0c"[below(r, alphabet)]);
}

static stops random_stops(source *r, char bytes[MAX_STRINGS][8], uint32_t alphabet) {
    stops d = {.n = below(r, MAX_STRINGS + 1)};
    for (size_t i = 0; i < d.n; i++) {
        size_t len = 1 + below(r, 7);
        random_bytes(r, bytes[i], len, alphabet);
        d.s[i] = (gy_stop_string){bytes[i], len};
    }
    return d;
}

static void every_cut_agrees_with_the_oracle(void **state) {
    (void)state;
    source r = {.seed = 3};
    int n_hit = 0, n_miss = 0;
    for (int t = 0; t < 1500; t++) {
        char text[12], bytes[MAX_STRINGS][8];
        uint32_t alphabet = 1 + below(&r, 4);
        size_t len = 1 + below(&r, (uint32_t)sizeof text);
        stops d = random_stops(&r, bytes, alphabet);
        random_bytes(&r, text, len, alphabet);
        int hit = oracle(text, len, &d).hit;
        n_hit += hit;
        n_miss += !hit;
        for (uint64_t cuts = 0; cuts<1u << (len - 1); cuts += len> 8 ? 1 + below(&r, 9) : 1) check(text, len, &d, cuts);
    }
    assert_true(n_hit > 300 && n_miss > 300);
}

static void long_texts_cut_at_random(void **state) {
    (void)state;
    source r = {.seed = 4};
    for (int t = 0; t < 400; t++) {
        char text[60], bytes[MAX_STRINGS][8];
        uint32_t alphabet = 2 + below(&r, 3);
        stops d = random_stops(&r, bytes, alphabet);
        random_bytes(&r, text, sizeof text, alphabet);
        for (int i = 0; i < 10; i++) {
            uint64_t some = (uint64_t)below(&r, 1u << 31) << 32 | below(&r, 1u << 31);
            check(text, sizeof text, &d, some);
            check(text, sizeof text, &d, some & some >> 3 & some << 5);
        }
    }
}

/* ---- rules of the calls ---- */

static void after_a_match_nothing_goes_out(void **state) {
    (void)state;
    stops d = stops_of((const char *const[]){"END", "x", NULL});
    gy_stop *s = stop_make(&d);
    gy_str out = {0};
    size_t which = 9;
    assert_int_equal(gy_stop_push(s, "oneE", 4, &out, NULL), 0);
    assert_string_equal(gy_str_z(&out), "one");
    assert_int_equal(gy_stop_held(s), 1);
    assert_int_equal(gy_stop_push(s, "NDtwo", 5, &out, NULL), 1);
    assert_int_equal(gy_stop_push(s, "x", 1, &out, &which), 1); /* still the first */
    assert_int_equal(which, 0);
    which = 9;
    assert_int_equal(gy_stop_push(s, "", 0, &out, &which), 1);
    assert_int_equal(which, 0);
    gy_stop_finish(s, &out);
    assert_string_equal(gy_str_z(&out), "one");
    gy_stop_destroy(s);
    gy_str_free(&out);
}

static void empty_pieces_and_no_strings(void **state) {
    (void)state;
    gy_stop *s = stop_make(&(stops){0});
    gy_str out = {0};
    assert_int_equal(gy_stop_push(s, NULL, 0, &out, NULL), 0);
    assert_int_equal(gy_stop_push(s, "all\0of it", 9, &out, NULL), 0);
    assert_int_equal(gy_stop_held(s), 0);
    gy_stop_finish(s, &out);
    assert_int_equal(out.len, 9);
    gy_stop_destroy(s);
    stops d = stops_of((const char *const[]){"ab", NULL});
    s = stop_make(&d);
    gy_str_clear(&out);
    assert_int_equal(gy_stop_push(s, "a", 1, &out, NULL), 0);
    assert_int_equal(gy_stop_push(s, NULL, 0, &out, NULL), 0); /* holds on */
    assert_int_equal(gy_stop_push(s, "b", 1, &out, NULL), 1);
    assert_int_equal(out.len, 0);
    gy_stop_destroy(s);
    gy_stop_destroy(NULL);
    gy_str_free(&out);
}

/* The caller's strings may go away; out with room needs no allocation at all. */
static void strings_are_copied_and_push_allocates_nothing(void **state) {
    (void)state;
    char a[] = "stop", b[] = "halt";
    gy_stop_string strings[2] = {{a, 4}, {b, 4}};
    gy_stop *s = NULL;
    gy_str out = {0};
    assert_int_equal(gy_stop_create(strings, 2, NULL, &s), GY_OK);
    memset(a, 'x', 4);
    memset(b, 'x', 4);
    memset(strings, 0, sizeof strings);
    gy_str_puts(&out, "some text that makes room for more text of the same length");
    gy_str_clear(&out);
    gy_mem_guard_begin();
    size_t which = 9;
    assert_int_equal(gy_stop_push(s, "xxxx sto", 8, &out, &which), 0);
    assert_int_equal(gy_stop_push(s, "ne ha", 5, &out, &which), 0);
    assert_int_equal(gy_stop_push(s, "lt", 2, &out, &which), 1);
    gy_mem_guard_end();
    assert_string_equal(gy_str_z(&out), "xxxx stone ");
    assert_int_equal(which, 1);
    gy_stop_destroy(s);
    gy_str_free(&out);
}

static void a_failed_out_stays_failed(void **state) {
    (void)state;
    stops d = stops_of((const char *const[]){"z", NULL});
    gy_stop *s = stop_make(&d);
    gy_str out = {0};
    gy_mem_fail_after(1);
    assert_int_equal(gy_stop_push(s, "abc", 3, &out, NULL), 0);
    gy_mem_fail_after(0);
    assert_true(out.failed);
    gy_stop_destroy(s);
    gy_str_free(&out);
}

static void refuse(const gy_stop_string *strings, size_t n, const char *sentence) {
    gy_err err = {0};
    gy_stop *s = NULL;
    assert_int_equal(gy_stop_create(strings, n, &err, &s), GY_E_ARG);
    assert_null(s);
    assert_string_equal(err.msg, sentence);
}

static void limits_are_refused_with_a_sentence(void **state) {
    (void)state;
    static char bytes[GY_MAX_STOP_BYTES + 1];
    gy_stop_string many[GY_MAX_STOP + 1];
    for (int i = 0; i <= GY_MAX_STOP; i++) many[i] = (gy_stop_string){bytes, GY_MAX_STOP_BYTES};
    refuse(many, GY_MAX_STOP + 1, "stop: found 65 strings; allowed up to 64");
    many[2].len = 0;
    refuse(many, 5, "stop[2]: found an empty string; allowed 1 to 1024 bytes");
    many[2].len = GY_MAX_STOP_BYTES + 1;
    refuse(many, 5, "stop[2]: found 1025 bytes; allowed 1 to 1024");
    many[2].len = GY_MAX_STOP_BYTES;
    gy_stop *s = NULL;
    gy_err err = {0};
    assert_int_equal(gy_stop_create(many, GY_MAX_STOP, &err, &s), GY_OK);
    gy_stop_destroy(s);
    gy_mem_stats before, after;
    gy_mem_get_stats(&before);
    s = NULL;
    gy_mem_fail_after(1);
    assert_int_equal(gy_stop_create(many, 5, &err, &s), GY_E_NOMEM);
    gy_mem_fail_after(0);
    assert_null(s);
    assert_non_null(strstr(err.msg, "stop: no memory for"));
    gy_mem_get_stats(&after);
    assert_int_equal(before.live_bytes[GY_MEM_SAMPLE], after.live_bytes[GY_MEM_SAMPLE]);
}

/* ---- cost ---- */

/* Processor time of this thread for 64 strings of 1 KB, all a's but for the end, and n a's of text, byte by byte. */
static double push_seconds(gy_stop *s, size_t n) {
    gy_str out = {0};
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (size_t i = 0; i < n; i++) assert_int_equal(gy_stop_push(s, i % 1500 == 1499 ? "b" : "a", 1, &out, NULL), 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    gy_stop_finish(s, &out);
    assert_int_equal(out.len, n);
    gy_str_free(&out);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* Text that nearly matches everything, always. Held text stays up to 1023 bytes long; the cost of a byte depends
 * neither on that nor on the text so far: four times the text takes four times the time and not sixteen times. */
static void many_long_strings_stay_fast(void **state) {
    (void)state;
    static char bytes[GY_MAX_STOP][GY_MAX_STOP_BYTES];
    gy_stop_string strings[GY_MAX_STOP];
    gy_stop *s = NULL;
    for (int i = 0; i < GY_MAX_STOP; i++) {
        memset(bytes[i], 'a', GY_MAX_STOP_BYTES);
        bytes[i][GY_MAX_STOP_BYTES - 1] = (char)('c' + i % 8);
        strings[i] = (gy_stop_string){bytes[i], GY_MAX_STOP_BYTES};
    }
    assert_int_equal(gy_stop_create(strings, GY_MAX_STOP, NULL, &s), GY_OK);
    double t1 = push_seconds(s, 100000), t2 = push_seconds(s, 400000);
    print_message("    %.0f ns a byte, then %.0f\n", 1e9 * t1 / 100000, 1e9 * t2 / 400000);
    assert_true(t2 < 10 * t1 + 0.1);
    assert_true(t2 < 400000 * 10e-6); /* 64 strings in 10 us even with sanitizers */
    gy_stop_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_cases),
        cmocka_unit_test(every_cut_agrees_with_the_oracle),
        cmocka_unit_test(long_texts_cut_at_random),
        cmocka_unit_test(after_a_match_nothing_goes_out),
        cmocka_unit_test(empty_pieces_and_no_strings),
        cmocka_unit_test(strings_are_copied_and_push_allocates_nothing),
        cmocka_unit_test(a_failed_out_stays_failed),
        cmocka_unit_test(limits_are_refused_with_a_sentence),
        cmocka_unit_test(many_long_strings_stay_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
