/* Stop strings on a stream. The oracle is a search of the whole text: the match that ends first, the longest among
 * those that end there; every way of cutting the text into pieces must agree with it.
 */
#include "base/philox.h"
#include "cli/cli_stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_STOP = 4 };
typedef struct stops {
    gy_opt_item items[MAX_STOP];
    gy_opt_list list;
} stops;

static void set(stops *s, const char *const *strings) {
    *s = (stops){.list = {.items = s->items}};
    for (; strings[s->list.n]; s->list.n++)
        s->items[s->list.n] = (gy_opt_item){NULL, strings[s->list.n], strlen(strings[s->list.n])};
}

/* Length of the text before the stop string, or -1. */
static int oracle(const char *text, const char *const *strings) {
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t best = 0;
        for (int i = 0; strings[i]; i++) {
            size_t n = strlen(strings[i]);
            if (n && n <= end && n > best && !strncmp(text + end - n, strings[i], n)) best = n;
        }
        if (best) return (int)(end - best);
    }
    return -1;
}

/* Feeds text in pieces whose sizes come from the bits of cuts (a set bit ends a piece) and checks the result. */
static void check(const char *text, const char *const *strings, uint32_t cuts) {
    stops s;
    gy_stop st;
    gy_str out = {0};
    size_t len = strlen(text), from = 0;
    int hit = 0, want = oracle(text, strings);
    set(&s, strings);
    gy_stop_init(&st, &s.list);
    for (size_t i = 0; i < len && !hit; i++) {
        if (i + 1 < len && !(cuts >> (i % 32) & 1)) continue;
        hit = gy_stop_push(&st, text + from, i + 1 - from, &out);
        from = i + 1;
        if (!hit) assert_memory_equal(gy_str_z(&out), text, out.len);
    }
    gy_stop_finish(&st, &out);
    if (hit != (want >= 0) || strlen(gy_str_z(&out)) != (want >= 0 ? (size_t)want : len))
        fail_msg("text '%s' cuts %x: hit %d, out '%s', expected length %d", text, cuts, hit, gy_str_z(&out), want);
    assert_memory_equal(gy_str_z(&out), text, out.len);
    gy_stop_fini(&st);
    gy_str_free(&out);
}

static void known_cases(void **state) {
    static const struct {
        const char *text;
        const char *stop[MAX_STOP];
        int before;
    } cases[] = {
        {"hello world", {"wor"}, 6},      {"hello", {"xyz"}, -1},      {"aaab", {"aab"}, 1},
        {"abc", {"c", "bc"}, 1},          {"abcd", {"abcd", "bc"}, 1}, {"ab", {"ab"}, 0},
        {"x\n\nUser:", {"\n\nUser:"}, 1}, {"ababac", {"abac"}, 2},     {"abc", {"", "d"}, -1},
        {"n\xc3\xa4", {"\xc3\xa4"}, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(oracle(cases[i].text, cases[i].stop), cases[i].before);
        for (uint32_t cuts = 0; cuts < 1u << strlen(cases[i].text); cuts++) check(cases[i].text, cases[i].stop, cuts);
    }
}

static void text_is_held_only_while_it_may_match(void **state) {
    stops s;
    gy_stop st;
    gy_str out = {0};
    (void)state;
    set(&s, (const char *const[]){"stop!", NULL});
    gy_stop_init(&st, &s.list);
    assert_int_equal(gy_stop_push(&st, "a sto", 5, &out), 0);
    assert_string_equal(gy_str_z(&out), "a ");
    assert_int_equal(gy_stop_push(&st, "nst", 3, &out), 0);
    assert_string_equal(gy_str_z(&out), "a ston");
    assert_int_equal(gy_stop_push(&st, "op", 2, &out), 0);
    assert_string_equal(gy_str_z(&out), "a ston");
    assert_int_equal(gy_stop_push(&st, "! more", 6, &out), 1);
    assert_string_equal(gy_str_z(&out), "a ston");
    assert_int_equal(gy_stop_push(&st, "later", 5, &out), 1);
    gy_stop_finish(&st, &out);
    assert_string_equal(gy_str_z(&out), "a ston");
    gy_stop_fini(&st);
    gy_str_free(&out);
}

static void no_stop_strings_pass_at_once(void **state) {
    gy_opt_list none = {0};
    gy_stop st;
    gy_str out = {0};
    (void)state;
    gy_stop_init(&st, &none);
    assert_int_equal(gy_stop_push(&st, "abc", 3, &out), 0);
    assert_string_equal(gy_str_z(&out), "abc");
    assert_int_equal(gy_stop_push(&st, "", 0, &out), 0);
    gy_stop_fini(&st);
    gy_str_free(&out);
}

/* Texts over two letters, so that overlaps are the rule. */
static void random_texts(void **state) {
    (void)state;
    for (uint32_t n = 0; n < 20000; n++) {
        char text[17] = "", stop[3][6] = {"", "", ""};
        uint32_t w[4], v[4];
        gy_rand_block(1, 0, n, GY_RAND_TEST, 0, w);
        gy_rand_block(1, 1, n, GY_RAND_TEST, 0, v);
        for (int i = 0; i < 16; i++) text[i] = (char)('a' + (w[0] >> i & 1));
        for (int k = 0; k < 3; k++)
            for (uint32_t i = 0, len = 1 + (v[3] >> (8 * k)) % 5; i < len; i++)
                stop[k][i] = (char)('a' + (v[k] >> i & 1));
        check(text, (const char *const[]){stop[0], stop[1], stop[2], NULL}, w[1]);
    }
}

static void allocation_failures(void **state) {
    stops s;
    (void)state;
    set(&s, (const char *const[]){"zz", NULL});
    for (int64_t n = 1; n < 20; n++) {
        gy_stop st;
        gy_str out = {0};
        gy_stop_init(&st, &s.list);
        gy_mem_fail_after(n);
        gy_stop_push(&st, "abcz", 4, &out);
        gy_mem_fail_after(0);
        int failed = out.failed;
        if (!failed) assert_string_equal(gy_str_z(&out), "abc");
        gy_stop_fini(&st);
        gy_str_free(&out);
        if (!failed) return;
    }
    fail_msg("never succeeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_cases),
        cmocka_unit_test(text_is_held_only_while_it_may_match),
        cmocka_unit_test(no_stop_strings_pass_at_once),
        cmocka_unit_test(random_texts),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
