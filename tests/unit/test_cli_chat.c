/* The pure parts of gyre chat: foreign text on a terminal, columns, depth, lines, commands, history, conversations. */
#include "cli/cli_args.h"
#include "cli/cli_chat_args.h"
#include "cli/cli_chat_line.h"
#include "cli/cli_chat_talk.h"
#include "cli/cli_chat_text.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define is(s, expected)                                                                                                \
    do {                                                                                                               \
        assert_string_equal(gy_str_z(&(s)), expected);                                                                 \
        gy_str_free(&(s));                                                                                             \
    } while (0)

/* ---- foreign text ------------------------------------------------------------------------------------------------ */

static gy_str cleaned(const char *z) {
    gy_str out = {0};
    gy_chat_cleaner c = {0};
    gy_chat_clean(&c, z, strlen(z), &out);
    return out;
}

static void nothing_that_a_terminal_obeys(void **state) {
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain text, caf\xc3\xa9 \xe4\xb8\x96\n\ttab", "plain text, caf\xc3\xa9 \xe4\xb8\x96\n\ttab"},
        {"\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"},
        {"a\bb\x7f", "a\\x08b\\x7f"},
        {"\xc2\x9b"
         "31m",
         "\\x9b31m"}, /* CSI as one character of C1 */
        {"\xe2\x80\xae"
         "exe.txt",
         "\\u202e"
         "exe.txt"}, /* right to left override */
        {"\xe2\x81\xa6x\xe2\x81\xa9\xe2\x80\xa8", "\\u2066x\\u2069\\u2028"},
        {"\x9b"
         "31m\xff",
         "\xef\xbf\xbd"
         "31m\xef\xbf\xbd"}, /* no UTF-8: never the byte itself */
        {"a\r\nb\rc", "a\nb\\x0dc"},
        {"\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb",
         "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb"}, /* emoji with joiner */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gy_str out = cleaned(cases[i].in);
        is(out, cases[i].out);
    }
}

/* Every byte, alone and in pairs: what comes out is valid UTF-8 without controls but LF and TAB. */
static void all_pairs_of_bytes(void **state) {
    (void)state;
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            char in[2] = {(char)a, (char)b};
            gy_str out = {0};
            gy_chat_cleaner c = {0};
            gy_chat_clean(&c, in, 2, &out);
            assert_true(gy_utf8_valid(gy_str_z(&out), out.len));
            for (size_t i = 0; i < out.len; i++) {
                unsigned char x = (unsigned char)out.data[i];
                assert_true((x >= 0x20 && x != 0x7f) || x == '\n' || x == '\t');
                assert_false(x == 0xc2 && (unsigned char)out.data[i + 1] < 0xa0);
            }
            gy_str_free(&out);
        }
}

static void carriage_return_between_pieces(void **state) {
    gy_str out = {0};
    gy_chat_cleaner c = {0};
    (void)state;
    gy_chat_clean(&c, "a\r", 2, &out);
    gy_chat_clean(&c, "\nb\r", 3, &out);
    gy_chat_clean(&c, "c", 1, &out);
    is(out, "a\nb\\x0dc");
    gy_chat_clean_line("a\nb\tc\r", 6, &out);
    is(out, "a\\x0ab\\x09c\\x0d");
}

static int column(const char *z, int col, int width, int *rows) {
    *rows = 0;
    return gy_chat_column(z, strlen(z), col, width, rows);
}

static void columns(void **state) {
    int rows;
    (void)state;
    assert_int_equal(column("abc", 2, 10, &rows), 5);
    assert_int_equal(column("ab\xc3\xa9", 0, 10, &rows), 3);
    assert_int_equal(column("\xe4\xb8\x96\xe7\x95\x8c", 0, 10, &rows), 4); /* wide */
    assert_int_equal(column("e\xcc\x81", 0, 10, &rows), 1);                /* a combining accent */
    assert_int_equal(rows, 0);
    assert_int_equal(column("0123456789", 0, 10, &rows), 10); /* full: the wrap is still to come */
    assert_int_equal(rows, 0);
    assert_int_equal(column("0123456789a", 0, 10, &rows), 1);
    assert_int_equal(rows, 1);
    assert_int_equal(column("012345678\xe4\xb8\x96", 0, 10, &rows), 2); /* no room for both halves */
    assert_int_equal(rows, 1);
    assert_int_equal(column("a\n\nbc", 7, 10, &rows), 2);
    assert_int_equal(rows, 2);
    assert_int_equal(column("a\tb", 0, 20, &rows), 9);
    assert_int_equal(column("\t\t\t", 0, 20, &rows), 19); /* a tab does not wrap */
}

/* ---- depth ------------------------------------------------------------------------------------------------------- */

static void depth_bar(void **state) {
    gy_chat_depths d = {0};
    gy_str out = {0};
    (void)state;
    gy_chat_depths_bar(&d, 4, 10, &out);
    assert_int_equal(out.len, 0);
    for (int32_t i = 1; i <= 4; i++) gy_chat_depths_add(&d, i);
    gy_chat_depths_add(&d, 0);
    gy_chat_depths_add(&d, -1);
    assert_int_equal(d.n, 4);
    gy_chat_depths_bar(&d, 4, 10, &out);
    is(out, "\xe2\x96\x82\xe2\x96\x84\xe2\x96\x86\xe2\x96\x88");
    gy_chat_depths_bar(&d, 4, 2, &out); /* the newest */
    is(out, "\xe2\x96\x86\xe2\x96\x88");
    gy_chat_depths_bar(&d, 8, 10, &out); /* half as high */
    is(out, "\xe2\x96\x81\xe2\x96\x82\xe2\x96\x83\xe2\x96\x84");
    for (int i = 0; i < GY_CHAT_RECENT; i++) gy_chat_depths_add(&d, 64);
    gy_chat_depths_add(&d, 1);
    gy_chat_depths_bar(&d, 4, 3, &out); /* deeper than the model said: that is the height then */
    is(out, "\xe2\x96\x88\xe2\x96\x88\xe2\x96\x81");
}

static void depth_table(void **state) {
    gy_chat_depths d = {0}, all = {0};
    gy_str out = {0};
    (void)state;
    for (int i = 0; i < 4; i++) gy_chat_depths_add(&d, 2);
    gy_chat_depths_add(&d, 1);
    gy_chat_depths_add(&d, 1000);
    gy_chat_depths_merge(&all, &d);
    gy_chat_depths_merge(&all, &d);
    assert_int_equal(all.n, 12);
    assert_int_equal(all.sum, 2 * 1009);
    gy_chat_depths_table(&all, 4, &out);
    is(out, "   1  loop       2 \xe2\x96\x88\n"
            "   2  loops      8 \xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\n"
            "  64+ loops      2 \xe2\x96\x88\n");
}

static gy_chat_depths some_depths(void) {
    gy_chat_depths d = {0};
    for (int32_t i = 0; i < 5; i++) gy_chat_depths_add(&d, i == 0 ? 4 : 2);
    return d;
}

static void status_line(void **state) {
    gy_chat_depths d = some_depths(), none = {0};
    gy_chat_status s = {.depths = &d, .most = 4, .n_tok = 5, .tok_s = 31.4, .ttft_s = 0.21};
    gy_str out = {0};
    (void)state;
    gy_chat_status_put(&s, 79, &out);
    is(out, "depth 2.4 of 4 \xe2\x96\x88\xe2\x96\x84\xe2\x96\x84\xe2\x96\x84\xe2\x96\x84 | 31 tok/s | TTFT 0.2 s | 5 "
            "tokens");
    gy_chat_status_put(&s, 54, &out); /* one column too few: one cell goes */
    is(out, "depth 2.4 of 4 \xe2\x96\x84\xe2\x96\x84\xe2\x96\x84\xe2\x96\x84 | 31 tok/s | TTFT 0.2 s | 5 tokens");
    gy_chat_status_put(&s, 40, &out);
    is(out, "depth 2.4 of 4 \xe2\x96\x84\xe2\x96\x84\xe2\x96\x84\xe2\x96\x84 | 31 tok/s");
    gy_chat_status_put(&s, 15, &out);
    is(out, "depth 2.4 of 4");
    gy_chat_status_put(&s, 13, &out);
    assert_int_equal(out.len, 0);
    s.depths = &none; /* a server without loops */
    s.note = "stopped";
    s.n_tok = 1;
    gy_chat_status_put(&s, 79, &out);
    is(out, "stopped | 31 tok/s | TTFT 0.2 s | 1 token");
}

/* Whatever the width, the line is no wider. */
static void status_never_wraps(void **state) {
    gy_chat_depths d = {0};
    (void)state;
    for (int i = 0; i < 40; i++) {
        gy_chat_depths_add(&d, 1 + i % 4);
        for (int width = 0; width < 100; width++) {
            gy_chat_status s = {.depths = &d, .most = 4, .n_tok = i * 1000, .tok_s = i * 7.7, .ttft_s = i * 0.4};
            gy_str out = {0};
            s.note = i % 2 ? "cut (length)" : NULL;
            gy_chat_status_put(&s, width, &out);
            assert_in_range(gy_chat_column(gy_str_z(&out), out.len, 0, INT32_MAX, NULL), 0, width);
            gy_str_free(&out);
        }
    }
}

/* ---- colours ----------------------------------------------------------------------------------------------------- */

static double light(int v) {
    double x = v / 255.0;
    return x <= 0.04045 ? x / 12.92 : pow((x + 0.055) / 1.055, 2.4);
}

/* WCAG's contrast against black and white, the lesser. */
static double contrast(int r, int g, int b) {
    double l = 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
    return fmin(1.05 / (l + 0.05), (l + 0.05) / 0.05);
}

static void ramp_is_readable(void **state) {
    static const int cube[] = {0, 95, 135, 175, 215, 255};
    char before[40] = "";
    (void)state;
    for (int32_t loops = 1; loops <= 32; loops++) {
        gy_str s = {0};
        int i, r, g, b;
        gy_chat_ramp(GY_CHAT_256, loops, 32, &s);
        assert_int_equal(sscanf(gy_str_z(&s), "\x1b[38;5;%dm", &i), 1);
        assert_in_range(i, 16, 231);
        i -= 16;
        assert_true(contrast(cube[i / 36], cube[i / 6 % 6], cube[i % 6]) >= 4);
        gy_str_clear(&s);
        gy_chat_ramp(GY_CHAT_TRUE, loops, 32, &s);
        assert_int_equal(sscanf(gy_str_z(&s), "\x1b[38;2;%d;%d;%dm", &r, &g, &b), 3);
        assert_true(contrast(r, g, b) >= 3.5);
        assert_string_not_equal(gy_str_z(&s), before); /* neighbours differ */
        snprintf(before, sizeof before, "%s", gy_str_z(&s));
        gy_str_free(&s);
    }
}

static void ramp_ends(void **state) {
    gy_str s = {0};
    (void)state;
    gy_chat_ramp(GY_CHAT_PLAIN, 1, 4, &s);
    assert_int_equal(s.len, 0);
    gy_chat_ramp(GY_CHAT_256, 1, 4, &s);
    is(s, "\x1b[38;5;27m");
    gy_chat_ramp(GY_CHAT_256, 4, 4, &s);
    is(s, "\x1b[38;5;164m");
    gy_chat_ramp(GY_CHAT_TRUE, 9, 4, &s); /* deeper than known */
    is(s, "\x1b[38;2;215;0;215m");
    gy_chat_ramp(GY_CHAT_TRUE, 1, 0, &s);
    is(s, "\x1b[38;2;0;95;255m");
}

static void colors_of_the_environment(void **state) {
    (void)state;
    assert_int_equal(gy_chat_colors_of("xterm-256color", NULL, NULL), GY_CHAT_256);
    assert_int_equal(gy_chat_colors_of("xterm-256color", "truecolor", NULL), GY_CHAT_TRUE);
    assert_int_equal(gy_chat_colors_of("xterm", "24bit", ""), GY_CHAT_TRUE);
    assert_int_equal(gy_chat_colors_of("xterm-256color", "truecolor", "1"), GY_CHAT_PLAIN);
    assert_int_equal(gy_chat_colors_of("xterm", NULL, NULL), GY_CHAT_PLAIN);
    assert_int_equal(gy_chat_colors_of("dumb", "truecolor", NULL), GY_CHAT_PLAIN);
    assert_int_equal(gy_chat_colors_of(NULL, "truecolor", NULL), GY_CHAT_PLAIN);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static gy_chat_fed feed(gy_chat_lines *l, const char *z) {
    return gy_chat_lines_feed(l, z, strlen(z));
}

static void lines(void **state) {
    gy_chat_lines l = {0};
    (void)state;
    assert_int_equal(feed(&l, "hello"), GY_CHAT_TEXT);
    assert_string_equal(l.text.data, "hello");
    assert_int_equal(feed(&l, ""), GY_CHAT_NOTHING);
    assert_int_equal(feed(&l, " \t"), GY_CHAT_NOTHING);
    assert_int_equal(feed(&l, "/help me"), GY_CHAT_COMMAND);
    assert_string_equal(l.text.data, "/help me");
    assert_int_equal(feed(&l, "//etc/passwd"), GY_CHAT_TEXT);
    assert_string_equal(l.text.data, "/etc/passwd");
    assert_int_equal(feed(&l, "one\\"), GY_CHAT_MORE);
    assert_int_equal(feed(&l, "/two\\"), GY_CHAT_MORE); /* no command inside a text */
    assert_int_equal(feed(&l, "three"), GY_CHAT_TEXT);
    assert_string_equal(l.text.data, "one\n/two\nthree");
    assert_int_equal(feed(&l, "C:\\\\"), GY_CHAT_TEXT); /* two backslashes are two */
    assert_string_equal(l.text.data, "C:\\\\");
    assert_int_equal(feed(&l, "pasted\nlines"), GY_CHAT_TEXT);
    assert_string_equal(l.text.data, "pasted\nlines");
    gy_chat_lines_fini(&l);
}

static void blocks(void **state) {
    gy_chat_lines l = {0};
    (void)state;
    assert_int_equal(feed(&l, "\"\"\""), GY_CHAT_MORE);
    assert_int_equal(feed(&l, "a\\"), GY_CHAT_MORE);
    assert_int_equal(feed(&l, ""), GY_CHAT_MORE);
    assert_int_equal(feed(&l, "/b"), GY_CHAT_MORE);
    assert_int_equal(feed(&l, "\"\"\""), GY_CHAT_TEXT);
    assert_string_equal(l.text.data, "a\\\n\n/b");
    assert_int_equal(feed(&l, "\"\"\"one line\"\"\""), GY_CHAT_TEXT);
    assert_string_equal(l.text.data, "one line");
    assert_int_equal(feed(&l, "\"\"\"a"), GY_CHAT_MORE);
    assert_int_equal(feed(&l, "b\"\"\""), GY_CHAT_TEXT);
    assert_string_equal(l.text.data, "a\nb");
    assert_int_equal(feed(&l, "\"\"\"\"\"\""), GY_CHAT_NOTHING);
    assert_int_equal(feed(&l, "\"\"\""), GY_CHAT_MORE);
    gy_chat_lines_drop(&l); /* Ctrl-C */
    assert_int_equal(feed(&l, "fresh"), GY_CHAT_TEXT);
    assert_string_equal(l.text.data, "fresh");
    gy_chat_lines_fini(&l);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static gy_status parse(const char *z, gy_err *err, gy_chat_command *k) {
    return gy_chat_command_parse(z, strlen(z), err, k);
}

static void commands(void **state) {
    gy_chat_command k;
    gy_err err;
    (void)state;
    assert_int_equal(parse("/quit", &err, &k), GY_OK);
    assert_int_equal(k.verb, GY_CHAT_QUIT);
    assert_int_equal(parse("/bye  ", &err, &k), GY_OK);
    assert_int_equal(k.verb, GY_CHAT_QUIT);
    assert_int_equal(parse("/system  be brief\nand kind \t", &err, &k), GY_OK);
    assert_int_equal(k.verb, GY_CHAT_SYSTEM);
    assert_int_equal(k.n_arg, strlen("be brief\nand kind"));
    assert_memory_equal(k.arg, "be brief\nand kind", k.n_arg);
    assert_int_equal(parse("/system", &err, &k), GY_OK);
    assert_int_equal(k.n_arg, 0);
    assert_int_equal(parse("/set temperature 0.5", &err, &k), GY_OK);
    assert_int_equal(k.verb, GY_CHAT_SET);
}

static void wrong_commands(void **state) {
    gy_chat_command k = {.verb = GY_CHAT_RAW};
    gy_err err;
    (void)state;
    assert_int_equal(parse("/hlep", &err, &k), GY_E_ARG);
    assert_non_null(strstr(err.msg, "unknown command /hlep; did you mean /help?"));
    assert_int_equal(parse("/xyzzy", &err, &k), GY_E_ARG);
    assert_non_null(strstr(err.msg, "unknown command /xyzzy; /help lists them"));
    assert_int_equal(parse("/", &err, &k), GY_E_ARG);
    assert_int_equal(parse("/save", &err, &k), GY_E_ARG);
    assert_string_equal(err.msg, "/save: expected /save FILE");
    assert_int_equal(parse("/clear all", &err, &k), GY_E_ARG);
    assert_string_equal(err.msg, "/clear: takes nothing behind it");
    assert_int_equal(k.verb, GY_CHAT_RAW);
}

static void help_knows_all(void **state) {
    static const char *const names[] = {"help", "quit", "clear", "system", "retry", "undo",  "trim",
                                        "save", "load", "set",   "show",   "stats", "depth", "raw"};
    gy_str out = {0};
    (void)state;
    gy_chat_command_help(&out);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char find[32];
        snprintf(find, sizeof find, "  /%s ", names[i]);
        assert_non_null(strstr(out.data, find));
    }
    gy_str_free(&out);
}

static void history(void **state) {
    static const char *const texts[] = {"plain", "a\nb", "\\n", "c:\\new\\", "\n\\\n", "caf\xc3\xa9"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        gy_str line = {0}, back = {0};
        gy_chat_history_escape(texts[i], strlen(texts[i]), &line);
        assert_null(strchr(line.data, '\n'));
        gy_chat_history_unescape(line.data, line.len, &back);
        assert_string_equal(back.data, texts[i]);
        gy_str_free(&line);
        gy_str_free(&back);
    }
    gy_str back = {0};
    gy_chat_history_unescape("odd\\", 4, &back); /* a line of somebody else */
    is(back, "odd\\");
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

static void add(gy_chat_talk *t, const char *question, const char *answer, int stopped) {
    gy_chat_turn turn = {.stopped = stopped};
    gy_err err;
    gy_str_puts(&turn.question, question);
    gy_str_puts(&turn.answer, answer);
    gy_str_puts(&turn.reasoning, "why");
    assert_int_equal(gy_chat_talk_add(t, &turn, &err), GY_OK);
    assert_null(turn.question.data);
}

static gy_status set(gy_chat_talk *t, const char *name, const char *value, gy_err *err) {
    return gy_chat_set(t, name, value, strlen(value), err, NULL);
}

static void body_of_messages(void **state) {
    gy_chat_talk t = {0};
    gy_str out = {0};
    gy_err err;
    (void)state;
    gy_str_puts(&t.system, "be brief");
    add(&t, "one", "1", 0);
    add(&t, "\"two\"\n", "2", 1);
    assert_int_equal(set(&t, "temperature", "0.5", &err), GY_OK);
    assert_int_equal(set(&t, "enable_thinking", "off", &err), GY_OK);
    assert_int_equal(set(&t, "stop", "[\"a\",\"b\"]", &err), GY_OK);
    assert_int_equal(set(&t, "temperature", "0", &err), GY_OK);
    gy_chat_talk_body(&t, "m", "three", 5, &out);
    is(out, "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},"
            "{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"1\"},"
            "{\"role\":\"user\",\"content\":\"\\\"two\\\"\\n\"},{\"role\":\"assistant\",\"content\":\"2\"},"
            "{\"role\":\"user\",\"content\":\"three\"}],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
            "\"temperature\":0,\"stop\":[\"a\",\"b\"],\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    t.raw = 1;
    gy_chat_talk_body(&t, "m", " three", 6, &out);
    is(out, "{\"model\":\"m\",\"prompt\":\"one1\\\"two\\\"\\n2 three\",\"stream\":true,"
            "\"stream_options\":{\"include_usage\":true},\"temperature\":0,\"stop\":[\"a\",\"b\"]}");
    gy_chat_talk_fini(&t);
}

static void settings(void **state) {
    static const struct {
        const char *name, *value, *message;
    } bad[] = {
        {"temperature", "warm", "temperature: found a string, expected a number"},
        {"temperature", "-1", "temperature: found -1, expected 0 to 100"},
        {"temperature", "1e999", "temperature: found a string, expected a number"},
        {"max_tokens", "1.5", "max_tokens: found a real number, expected a whole number"},
        {"max_tokens", "0", "max_tokens: found 0, expected 1 to 1.07374e+09"},
        {"seed", "-1", "seed: found an integer, expected a whole number from 0 to 2^63 - 1"},
        {"ignore_eos", "maybe", "ignore_eos: found a string, expected true or false"},
        {"initial_state", "hot", "initial_state: found a string, expected zero|noise"},
        {"temprature", "1", "unknown setting temprature; did you mean temperature?"},
        {"enable_thinkin", "1", "unknown setting enable_thinkin; did you mean enable_thinking?"},
        {"messages", "[]", "messages: chat fills this field itself"},
        {"stream", "false", "stream: chat fills this field itself"},
    };
    gy_chat_talk t = {0};
    gy_err err;
    int known = -1;
    gy_str out = {0};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(set(&t, bad[i].name, bad[i].value, &err), GY_E_ARG);
        assert_string_equal(err.msg, bad[i].message);
    }
    assert_int_equal(t.settings.len, 0);
    assert_int_equal(set(&t, "exit", "gate", &err), GY_OK);
    assert_int_equal(set(&t, "cache_salt", "7", &err), GY_OK); /* a text, whatever it looks like */
    assert_int_equal(set(&t, "ignore_eos", "on", &err), GY_OK);
    assert_int_equal(set(&t, "max_tokens", "9", &err), GY_OK);
    assert_int_equal(gy_chat_setting_int(&t, "max_tokens", -1), 9);
    assert_int_equal(gy_chat_setting_int(&t, "top_k", -1), -1);
    assert_int_equal(gy_chat_set(&t, "x_vendor", "1,\"w\":2", 7, &err, &known), GY_OK); /* no way into the body */
    assert_int_equal(known, 0);
    assert_int_equal(gy_chat_set(&t, "exit", "", 0, &err, &known), GY_OK); /* gone */
    assert_int_equal(known, 1);
    gy_chat_settings_put(&t, &out);
    is(out, "  cache_salt           \"7\"\n  ignore_eos           true\n  max_tokens           9\n"
            "  x_vendor             \"1,\\\"w\\\":2\"\n");
    gy_chat_talk_fini(&t);
}

static void undo_and_trim(void **state) {
    gy_chat_talk t = {0};
    gy_str q = {0};
    (void)state;
    assert_int_equal(gy_chat_talk_undo(&t, &q), -1);
    gy_chat_talk_trim(&t, 3);
    add(&t, "one", "1", 0);
    add(&t, "two", "2", 0);
    add(&t, "three", "3", 0);
    gy_chat_talk_trim(&t, 1);
    assert_string_equal(t.turns.data[0].question.data, "two");
    assert_int_equal(gy_chat_talk_undo(&t, &q), 0);
    assert_string_equal(q.data, "three");
    assert_int_equal(gy_chat_talk_undo(&t, &q), 0); /* what q held is freed */
    is(q, "two");
    assert_int_equal(t.turns.len, 0);
    gy_chat_talk_fini(&t);
}

static void saved_and_loaded(void **state) {
    gy_chat_talk t = {0}, u = {0};
    gy_str file = {0}, again = {0}, q = {0};
    gy_err err;
    (void)state;
    gy_str_puts(&t.system, "s");
    add(&t, "one", "1", 0);
    add(&t, "two", "2", 1);
    gy_chat_talk_write(&t, &file);
    assert_string_equal(file.data, "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
                                   "{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"1\"},"
                                   "{\"role\":\"user\",\"content\":\"two\"},"
                                   "{\"role\":\"assistant\",\"content\":\"2\",\"stopped\":true}]}\n");
    add(&u, "gone", "gone", 0);
    assert_int_equal(gy_chat_talk_read(&u, file.data, file.len, &err, &q), GY_OK);
    assert_int_equal(u.turns.len, 2);
    assert_int_equal(u.turns.data[1].stopped, 1);
    gy_chat_talk_write(&u, &again);
    assert_string_equal(again.data, file.data);
    assert_int_equal(q.len, 0);
    static const char list[] = "[{\"role\":\"user\",\"content\":\"later\"}]";
    assert_int_equal(gy_chat_talk_read(&u, list, sizeof list - 1, &err, &q), GY_OK);
    assert_int_equal(u.turns.len, 0);
    assert_int_equal(u.system.len, 0);
    is(q, "later");
    gy_str_free(&file);
    gy_str_free(&again);
    gy_chat_talk_fini(&t);
    gy_chat_talk_fini(&u);
}

static void files_that_are_none(void **state) {
    static const char *const bad[][2] = {
        {"", "found an empty text"},
        {"{", "not valid JSON"},
        {"3", "expected a list of messages"},
        {"{\"messages\":{}}", "expected a list of messages"},
        {"[1]", "message 1: expected a text as \"content\""},
        {"[{\"role\":\"user\",\"content\":null}]", "message 1: expected a text"},
        {"[{\"role\":\"user\",\"content\":\"\"}]", "message 1: found an empty text"},
        {"[{\"role\":\"tool\",\"content\":\"x\"}]", "message 1: expected role system, user or assistant"},
        {"[{\"role\":\"assistant\",\"content\":\"x\"}]", "message 1: found role assistant"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"y\"}]", "message 2: found role user"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"system\",\"content\":\"y\"}]",
         "message 2: found role system"},
    };
    gy_chat_talk t = {0};
    gy_str q = {0};
    gy_err err;
    (void)state;
    add(&t, "kept", "yes", 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_true(gy_chat_talk_read(&t, bad[i][0], strlen(bad[i][0]), &err, &q) < 0);
        if (!strstr(err.msg, bad[i][1])) fail_msg("'%s' does not say '%s'", err.msg, bad[i][1]);
        assert_int_equal(t.turns.len, 1);
        assert_int_equal(q.len, 0);
    }
    gy_chat_talk_fini(&t);
}

/* Each allocation fails once: an error or a whole result, never half of one, and nothing leaks (ASan). */
static void without_memory(void **state) {
    static const char text[] = "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"x\"},"
                               "{\"role\":\"assistant\",\"content\":\"y\"}]";
    (void)state;
    int n_failed = 0;
    for (int i = 1; i < 60; i++) {
        gy_chat_talk t = {0};
        gy_str q = {0}, body = {0};
        gy_err err = {0};
        gy_mem_fail_after(i);
        gy_status st = gy_chat_talk_read(&t, text, sizeof text - 1, &err, &q);
        gy_status st2 = set(&t, "top_p", "0.5", &err);
        gy_chat_talk_body(&t, "m", "z", 1, &body);
        gy_mem_fail_after(0);
        if (st < 0) assert_int_equal(t.turns.len + t.system.len, 0);
        if (st >= 0) assert_int_equal(t.turns.len, 1);
        assert_int_equal(t.settings.len, st2 >= 0);
        n_failed += st < 0 || st2 < 0 || body.failed;
        if (!body.failed) assert_int_equal(body.data[body.len - 1], '}');
        gy_str_free(&body);
        gy_str_free(&q);
        gy_chat_talk_fini(&t);
    }
    assert_in_range(n_failed, 8, 59);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void options_to_settings(void **state) {
    char *argv[] = {(char[]){"--temperature"},
                    (char[]){"0"},
                    (char[]){"--stop"},
                    (char[]){"a\"b"},
                    (char[]){"--stop=c"},
                    (char[]){"--exit"},
                    (char[]){"fixed"},
                    (char[]){"--logit-bias"},
                    (char[]){"1:2.5,7:-1"},
                    (char[]){"--seed"},
                    (char[]){"5"},
                    (char[]){"--stop-ids"},
                    (char[]){"1,2"},
                    (char[]){"--ignore-eos"},
                    (char[]){"--enable-thinking=on"}};
    const gy_cmd *chat = gy_cmd_find("chat");
    gy_arena *arena = gy_arena_create(GY_MEM_CLI, 4096);
    gy_args a;
    gy_err err;
    gy_chat_talk t = {0};
    gy_str out = {0};
    (void)state;
    gy_args_default(&a);
    a.arena = arena;
    gy_opts o = {.arena = arena, .groups = chat->groups, .values = &a};
    a.opts = &o;
    assert_int_equal(gy_opts_parse_argv(&o, (int)(sizeof argv / sizeof *argv), argv, &err), GY_OK);
    assert_int_equal(gy_chat_args_check(&a, &err), GY_OK);
    assert_int_equal(gy_chat_args_apply(&a, &err, &t), GY_OK);
    gy_chat_settings_put(&t, &out);
    is(out, "  temperature          0\n  logit_bias           {\"1\":2.5,\"7\":-1}\n"
            "  seed                 5\n  ignore_eos           true\n  stop                 [\"a\\\"b\",\"c\"]\n"
            "  stop_token_ids       [1,2]\n  exit                 \"fixed\"\n  enable_thinking      true\n");
    gy_chat_talk_fini(&t);
    gy_opts_fini(&o);
    gy_arena_destroy(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_that_a_terminal_obeys),
        cmocka_unit_test(all_pairs_of_bytes),
        cmocka_unit_test(carriage_return_between_pieces),
        cmocka_unit_test(columns),
        cmocka_unit_test(depth_bar),
        cmocka_unit_test(depth_table),
        cmocka_unit_test(status_line),
        cmocka_unit_test(status_never_wraps),
        cmocka_unit_test(ramp_is_readable),
        cmocka_unit_test(ramp_ends),
        cmocka_unit_test(colors_of_the_environment),
        cmocka_unit_test(lines),
        cmocka_unit_test(blocks),
        cmocka_unit_test(commands),
        cmocka_unit_test(wrong_commands),
        cmocka_unit_test(help_knows_all),
        cmocka_unit_test(history),
        cmocka_unit_test(body_of_messages),
        cmocka_unit_test(settings),
        cmocka_unit_test(undo_and_trim),
        cmocka_unit_test(saved_and_loaded),
        cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(options_to_settings),
    };
    setlocale(LC_CTYPE, "C.UTF-8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
