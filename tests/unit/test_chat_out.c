/* What chat models write, taken apart: by hand-made cases, and against a reference that sees the whole text at once,
 * searches it with strstr's like and goes back as it pleases. However a text is cut, the deltas together are the same.
 */
#include "base_test.h"

#include "base/clock.h"
#include "base/json.h"
#include "text/chat_out.h"

/* ---- a result as one string ------------------------------------------------------------------------------------- */

/* T: thoughts, C: content, then each call as name and arguments. */
typedef struct result {
    gy_str thoughts, content, calls;
    int32_t n_call;
} result;

static void result_free(result *r) {
    gy_str_free(&r->thoughts);
    gy_str_free(&r->content);
    gy_str_free(&r->calls);
}

static char *result_text(const result *r) {
    gy_str s = {0};
    gy_str_puts(&s, "T[");
    gy_str_append(&s, gy_str_z(&r->thoughts), r->thoughts.len);
    gy_str_puts(&s, "] C[");
    gy_str_append(&s, gy_str_z(&r->content), r->content.len);
    gy_str_puts(&s, "]");
    gy_str_append(&s, gy_str_z(&r->calls), r->calls.len);
    return s.data;
}

static void add_delta(result *r, gy_chat_out *c) {
    gy_chat_delta d;
    assert_int_equal(gy_chat_out_take(c, &d), GY_OK);
    gy_str_append(&r->thoughts, d.reasoning, d.n_reasoning);
    gy_str_append(&r->content, d.content, d.n_content);
    for (int32_t i = 0; i < d.n_call; i++) {
        const gy_chat_call_delta *k = &d.calls[i];
        if (k->name) {
            assert_int_equal(k->index, r->n_call++);
            gy_str_printf(&r->calls, " %s:", k->name);
        }
        assert_int_equal(k->index, r->n_call - 1); /* in order: nothing of an earlier one comes later */
        gy_str_append(&r->calls, k->arguments, k->n_arguments);
    }
}

/* Pieces end at the cuts, which rise; the last piece ends at n. */
static char *scan(const gy_chat_out_options *o, const char *s, size_t n, const size_t *cuts, size_t n_cut) {
    gy_chat_out *c = NULL;
    result r = {0};
    size_t from = 0;
    assert_int_equal(gy_chat_out_create(o, &c), GY_OK);
    for (size_t i = 0; i <= n_cut; i++) {
        size_t to = i < n_cut ? cuts[i] : n;
        gy_chat_out_push(c, s + from, to - from);
        add_delta(&r, c);
        from = to;
    }
    gy_chat_out_finish(c);
    add_delta(&r, c);
    gy_chat_out_destroy(c);
    char *text = result_text(&r);
    result_free(&r);
    return text;
}

static void same(const char *got, const char *want, const char *text, size_t at) {
    if (strcmp(got, want) != 0) fail_msg("cut at %zu of\n%s\ngot  %s\nwant %s", at, text, got, want);
}

static void every_split(const gy_chat_out_options *o, const char *s, size_t n, const char *want) {
    size_t *all = gy_mem_alloc(GY_MEM_TEXT, n + 1, sizeof *all);
    for (size_t i = 0; i <= n; i++) {
        char *got = scan(o, s, n, &i, 1);
        same(got, want, s, i);
        gy_mem_free(got);
        all[i] = i;
    }
    char *got = scan(o, s, n, all, n);
    same(got, want, s, n + 1);
    gy_mem_free(got);
    gy_mem_free(all);
}

/* ---- by hand ---------------------------------------------------------------------------------------------------- */

enum { R = 1, IN = 2, TAG = 4, BARE = 8, ONE = 16 };

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"o\":{\"type\":\"object\"},\"b\":{\"type\":\"boolean\"},"
    "\"u\":{\"type\":[\"integer\",\"string\"]},\"n\":{\"type\":[\"integer\",\"null\"]},\"e\":{\"enum\":[1,2]},"
    "\"a\":{\"anyOf\":[{\"type\":\"number\"},{\"type\":\"null\"}]},\"r\":{\"$ref\":\"#/$defs/x\"},"
    "\"l\":{\"$ref\":\"#/$defs/loop\"},\"k\":{\"const\":3},\"any\":{}},\"$defs\":{\"x\":{\"type\":\"array\"},"
    "\"loop\":{\"anyOf\":[{\"$ref\":\"#/$defs/loop\"},{\"$ref\":\"#/$defs/loop\"}]}}}}}]";
static gy_json *tools_doc;

static gy_chat_out_options options_of(int flags) {
    return (gy_chat_out_options){.reasoning = !!(flags & R),
                                 .in_reasoning = !!(flags & IN),
                                 .calls = flags & BARE  ? GY_CHAT_CALLS_BARE
                                          : flags & TAG ? GY_CHAT_CALLS_TAGGED
                                                        : GY_CHAT_CALLS_NONE,
                                 .one_call = !!(flags & ONE),
                                 .tools = gy_json_root(tools_doc)};
}

typedef struct known {
    int flags;
    const char *text, *want;
} known;

#define CALL(args) "<tool_call>\n{\"name\": \"f\", \"arguments\": " args "}\n</tool_call>"
#define TAGS(params) "<tool_call>\n<function=f>\n" params "</function>\n</tool_call>"
#define PARAM(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"

static const known knowns[] = {
    /* nothing to look for */
    {0, "", "T[] C[]"},
    {0, "<think>a</think>" CALL("{}"), "T[] C[<think>a</think>" CALL("{}") "]"},
    {R | TAG, "plain <b>text</b>\n\nand more\n", "T[] C[plain <b>text</b>\n\nand more\n]"},
    {R | TAG, "\n\nkept newlines", "T[] C[\n\nkept newlines]"},
    {R | TAG, "a < b <thin", "T[] C[a < b <thin]"},
    {R | TAG, "<", "T[] C[<]"},
    {R | TAG, "<<think>", "T[] C[<<think>]"},
    /* thoughts */
    {R, "<think>\nhm\n</think>\n\nHi", "T[hm] C[Hi]"},
    {R, "\n<think>hm</think>Hi", "T[hm] C[Hi]"},
    {R, "<think>\n\n</think>\n\nHi", "T[] C[Hi]"},
    {R, "Hi <think>no</think>", "T[] C[Hi <think>no</think>]"},
    {R, "<think>a<think>b</think>c</think>d", "T[a<think>b] C[c</think>d]"},
    {R, "<think>a</think>b<think>c</think>", "T[a] C[b<think>c</think>]"},
    {R, "<think>cut off\n", "T[cut off\n] C[]"},
    {R, "<think>cut </thi", "T[cut </thi] C[]"},
    {R, "<think>a\n\nb\n</think>", "T[a\n\nb] C[]"},
    {R, "<think>a </think> b", "T[a ] C[ b]"},
    {R, "</think>a", "T[] C[</think>a]"},
    {R | IN, "hm\n</think>\n\nHi", "T[hm] C[Hi]"},
    {R | IN, "\n<think>\nhm</think>Hi", "T[hm] C[Hi]"},
    {R | IN, "hm <think> hm</think>Hi", "T[hm <think> hm] C[Hi]"},
    {R | IN, "never closed", "T[never closed] C[]"},
    {R | IN, "</think>\n\n", "T[] C[]"},
    {IN, "not asked</think>", "T[] C[not asked</think>]"},
    {R | TAG, "<think>" CALL("{}") "</think>x", "T[" CALL("{}") "] C[x]"},
    {R | TAG, "<think>a</think>\n\n" CALL("{}"), "T[a] C[] f:{}"},
    /* calls as JSON */
    {TAG, CALL("{\"a\": 1}"), "T[] C[] f:{\"a\": 1}"},
    {TAG, "Let me.\n\n" CALL("{}") "\n" CALL("{\"b\":[{}]}") "\nDone", "T[] C[Let me.Done] f:{} f:{\"b\":[{}]}"},
    {TAG | ONE, CALL("{}") "\n" CALL("{\"b\":2}") "x", "T[] C[x] f:{}"},
    {TAG, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":{\"b\":{\"c\":[[]]}}}}</tool_call>",
     "T[] C[] f:{\"a\":{\"b\":{\"c\":[[]]}}}"},
    {TAG, CALL("{\"s\": \"</tool_call> } \\\" \\\\\"}"), "T[] C[] f:{\"s\": \"</tool_call> } \\\" \\\\\"}"},
    {TAG, CALL("{\"s\": \"\\u00e9\\ud83d\\ude00 \xC3\xA9\xF0\x9F\x98\x80\"}"),
     "T[] C[] f:{\"s\": \"\\u00e9\\ud83d\\ude00 \xC3\xA9\xF0\x9F\x98\x80\"}"},
    {TAG, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", "T[] C[] f:{\"a\": 1}"},
    {TAG, "<tool_call>{\"id\": {\"name\": 1}, \"name\": \"g\\u0041\", \"arguments\": {}, \"x\": [1]}</tool_call>",
     "T[] C[] gA:{}"},
    {TAG, "<tool_call>{\"name\": \"f\"}</tool_call>", "T[] C[] f:{}"},
    {TAG, CALL("null"), "T[] C[] f:{}"},
    {TAG, CALL("\"{\\\"a\\\": 1}\""), "T[] C[] f:{\"a\": 1}"},
    {TAG, CALL("[1, 2]"), "T[] C[] f:[1, 2]"},
    {TAG, CALL("12"), "T[] C[] f:12"},
    {TAG, CALL("{\"a\": 1,}"), "T[] C[] f:{\"a\": 1,}"},
    {TAG, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "T[] C[] f:{\"a\": 1}"},
    {TAG, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ", "T[] C[] f:{\"a\": "},
    {TAG, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>\nx", "T[] C[x] f:{\"a\": 1}"},
    {TAG, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1\n</tool_call>x", "T[] C[x] f:{\"a\": 1\n"},
    {TAG, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}} trailing</tool_call>", "T[] C[trailing</tool_call>] f:{}"},
    {TAG, CALL("{}") CALL("{\"a\":1}"), "T[] C[] f:{} f:{\"a\":1}"},
    {TAG, "<tool_call>{\"name\": \"f\", \"arguments\": {}}" CALL("{}"), "T[] C[] f:{} f:{}"},
    /* what is none */
    {TAG, "a\n<tool_call>\nnot JSON\n</tool_call>b", "T[] C[a\n<tool_call>\nnot JSON\n</tool_call>b]"},
    {TAG, "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
     "T[] C[<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>]"},
    {TAG, "<tool_call>{\"name\": \"\", \"arguments\": {}}", "T[] C[<tool_call>{\"name\": \"\", \"arguments\": {}}]"},
    {TAG, "<tool_call>{\"arguments\": {}}</tool_call>", "T[] C[<tool_call>{\"arguments\": {}}</tool_call>]"},
    {TAG, "<tool_call>{\"arguments\": {</tool_call>", "T[] C[<tool_call>{\"arguments\": {</tool_call>]"},
    {TAG, "<tool_call>{'name': 'f'}</tool_call>", "T[] C[<tool_call>{'name': 'f'}</tool_call>]"},
    {TAG, "\n\n<tool_call>{\"na", "T[] C[\n\n<tool_call>{\"na]"},
    {TAG, "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>", "T[] C[<tool_call>] f:{}"},
    {TAG, "<tool_call> ? " CALL("{}"), "T[] C[<tool_call> ? ] f:{}"},
    {TAG, "</tool_call>", "T[] C[</tool_call>]"},
    /* calls as tags */
    {TAG, TAGS(PARAM("s", "text")), "T[] C[] f:{\"s\": \"text\"}"},
    {TAG, TAGS(""), "T[] C[] f:{}"},
    {TAG, TAGS(PARAM("s", "1") PARAM("i", "1")), "T[] C[] f:{\"s\": \"1\", \"i\": 1}"},
    {TAG, TAGS(PARAM("s", "a\n\n\"q\" \\ \t<b> </param\n")),
     "T[] C[] f:{\"s\": \"a\\n\\n\\\"q\\\" \\\\ \\t<b> </param\\n\"}"},
    {TAG, TAGS(PARAM("s", "\x01\x1f\xC3\xA9")), "T[] C[] f:{\"s\": \"\\u0001\\u001f\xC3\xA9\"}"},
    {TAG, TAGS(PARAM("s", "")), "T[] C[] f:{\"s\": \"\"}"},
    {TAG, TAGS("<parameter=s></parameter>"), "T[] C[] f:{\"s\": \"\"}"},
    {TAG, TAGS("<parameter=s>\n</parameter>"), "T[] C[] f:{\"s\": \"\"}"},
    {TAG, TAGS("<parameter=s>one line</parameter>"), "T[] C[] f:{\"s\": \"one line\"}"},
    {TAG, TAGS(PARAM("s", "</tool_call></function>")), "T[] C[] f:{\"s\": \"</tool_call></function>\"}"},
    {TAG, TAGS(PARAM("o", " {\"x\": [1,\n2]} ")), "T[] C[] f:{\"o\": {\"x\": [1,\n2]}}"},
    {TAG, TAGS(PARAM("o", "{broken")), "T[] C[] f:{\"o\": \"{broken\"}"},
    {TAG, TAGS(PARAM("i", "1, 2")), "T[] C[] f:{\"i\": \"1, 2\"}"},
    {TAG, TAGS(PARAM("i", "1], [2")), "T[] C[] f:{\"i\": \"1], [2\"}"},
    {TAG, TAGS(PARAM("i", "")), "T[] C[] f:{\"i\": \"\"}"},
    {TAG, TAGS(PARAM("b", "true") PARAM("n", "null")), "T[] C[] f:{\"b\": true, \"n\": null}"},
    {TAG, TAGS(PARAM("u", "5") PARAM("e", "2") PARAM("a", "0.5") PARAM("k", "3")),
     "T[] C[] f:{\"u\": \"5\", \"e\": 2, \"a\": 0.5, \"k\": 3}"},
    {TAG, TAGS(PARAM("r", "[1]") PARAM("l", "1") PARAM("any", "1") PARAM("none", "1")),
     "T[] C[] f:{\"r\": [1], \"l\": \"1\", \"any\": \"1\", \"none\": \"1\"}"},
    {TAG, "<tool_call><function=g><parameter=i>5</parameter></function></tool_call>", "T[] C[] g:{\"i\": \"5\"}"},
    {TAG, "<tool_call>\n<function=f>\n" PARAM("s", "x") "</tool_call>\n\ny", "T[] C[y] f:{\"s\": \"x\"}"},
    {TAG, "<tool_call>\n<function=f>\nodd</function>", "T[] C[odd</function>] f:{}"},
    {TAG, "<tool_call>\n<function=f>\n<parameter=a\n>", "T[] C[<parameter=a\n>] f:{}"},
    {TAG, "<tool_call>\n<function=f>\n<parameter=s>\ncut\n", "T[] C[] f:{\"s\": \"cut\\n"},
    {TAG, "<tool_call>\n<function=f>\n<parameter=i>\n12", "T[] C[] f:{\"i\": 12"},
    {TAG, "<tool_call>\n<function=f", "T[] C[<tool_call>\n<function=f]"},
    {TAG, "<tool_call>\n<function=>", "T[] C[<tool_call>\n<function=>]"},
    {TAG, "<tool_call>\n<func>", "T[] C[<tool_call>\n<func>]"},
    {TAG | ONE, TAGS(PARAM("s", "x")) "\n" TAGS(PARAM("s", "y")), "T[] C[] f:{\"s\": \"x\"}"},
    /* bare */
    {BARE, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "T[] C[] f:{\"a\": 1}"},
    {BARE, " \n[{\"name\":\"f\",\"arguments\":{}}, {\"name\":\"g\",\"arguments\":{\"x\":\"<\"}}]\n",
     "T[] C[] f:{} g:{\"x\":\"<\"}"},
    {BARE | ONE, "[{\"name\":\"f\",\"arguments\":{}},{\"name\":\"g\",\"arguments\":{}}]", "T[] C[] f:{}"},
    {R | IN | BARE, "hm\n</think>\n\n{\"name\":\"f\",\"arguments\":{}}", "T[hm] C[] f:{}"},
    {R | BARE, "<think>hm</think>{\"name\":\"f\",\"arguments\":{}}", "T[hm] C[] f:{}"},
    {R | BARE, "\n{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}}", "T[] C[] f:{\"a\":\"</tool_call>\"}"},
    {R | BARE, "<no>", "T[] C[<no>]"},
    {R | IN | BARE, "hm", "T[hm] C[]"},
    {BARE, "sorry {}", "T[] C[sorry {}]"},
    {BARE, "{\"name\":\"f\",\"arguments\":{\"a\"", "T[] C[] f:{\"a\""},
    {BARE, "{\"name\":\"f", "T[] C[{\"name\":\"f]"},
    {BARE, "[{\"name\":\"f\"}, 5]", "T[] C[ 5]] f:{}"},
    {BARE, "{}", "T[] C[{}]"},
};

static void cases(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof knowns / sizeof *knowns; i++) {
        const known *k = &knowns[i];
        const gy_chat_out_options o = options_of(k->flags);
        every_split(&o, k->text, strlen(k->text), k->want);
    }
}

/* ---- the reference ---------------------------------------------------------------------------------------------- */

typedef enum outcome { END, FAIL, DONE, CLOSED, NEVER } outcome; /* NEVER: closed before it was known to be a call */

typedef struct ref {
    const gy_chat_out_options *o;
    const char *s;
    size_t n;
    result r;
    int announced, mute, has_name, has_args;
    gy_str name, kept;
} ref;

static size_t past(const ref *f, size_t i, const char *set) {
    while (i < f->n && strchr(set, f->s[i])) i++;
    return i;
}

#define WS " \t\r\n"

static int at(const ref *f, size_t i, const char *lit) {
    size_t n = strlen(lit);
    return i + n <= f->n && !memcmp(f->s + i, lit, n);
}

static int is_cut(const ref *f, size_t i, const char *lit) {
    return f->n - i < strlen(lit) && !memcmp(f->s + i, lit, f->n - i);
}

static size_t find(const ref *f, size_t i, const char *lit) {
    while (i < f->n && !at(f, i, lit)) i++;
    return i;
}

static void content(ref *f, size_t from, size_t to) {
    gy_str_append(&f->r.content, f->s + from, to - from);
}

static void announce(ref *f) {
    f->announced = 1;
    f->mute = f->o->one_call && f->r.n_call;
    if (f->mute) return;
    f->r.n_call++;
    gy_str_printf(&f->r.calls, " %s:", gy_str_z(&f->name));
}

static void args(ref *f, const char *s, size_t n) {
    if (!f->mute) gy_str_append(&f->r.calls, s, n);
}

/* The string of s[from..to), quotes included, decoded into *out. */
static int decode(const char *s, size_t n, gy_str *out) {
    gy_str list = {0};
    gy_json *doc = NULL;
    gy_str_printf(&list, "[");
    gy_str_append(&list, s, n);
    gy_str_puts(&list, "]");
    gy_str_clear(out);
    if (gy_json_parse(list.data, list.len, NULL, NULL, &doc) == GY_OK) {
        size_t len = 0;
        const char *z = gy_jv_str(gy_jv_at(gy_json_root(doc), 0), &len);
        if (!z || gy_jv_len(gy_json_root(doc)) != 1) {
            gy_json_free(doc);
            doc = NULL;
        } else {
            gy_str_append(out, z, len);
        }
    }
    int ok = doc != NULL;
    gy_json_free(doc);
    gy_str_free(&list);
    return ok;
}

static void ref_kept(ref *f) {
    gy_str out = {0};
    if (f->kept.len && f->kept.data[0] == '"' && decode(f->kept.data, f->kept.len, &out))
        args(f, gy_str_z(&out), out.len);
    else if (!f->kept.len || !strcmp(f->kept.data, "null"))
        args(f, "{}", 2);
    else
        args(f, f->kept.data, f->kept.len);
    gy_str_free(&out);
}

static size_t string_end(const ref *f, size_t i) { /* i: behind the quote */
    while (i < f->n && f->s[i] != '"') i += f->s[i] == '\\' ? 2 : 1;
    return i < f->n ? i : f->n;
}

/* Behind a value that is no string. *whole 0: the text ends in it, or, with tags, a '<' stands in it. */
static size_t value_end(const ref *f, size_t i, int *whole) {
    int tagged = f->o->calls == GY_CHAT_CALLS_TAGGED, depth = 0, nested = f->s[i] == '{' || f->s[i] == '[';
    *whole = 1;
    for (; i < f->n; i++) {
        char b = f->s[i];
        if (tagged && b == '<') break;
        if (nested && b == '"') {
            i = string_end(f, i + 1);
            if (i == f->n) break;
        }
        depth += (b == '{' || b == '[') - (b == '}' || b == ']');
        if (nested && !depth) return i + 1;
        if (!nested && strchr(",} \t\r\n", b)) return i;
    }
    *whole = 0;
    return i;
}

static outcome ref_broken_value(ref *f, size_t e, int streams, size_t *pos) {
    int cut = is_cut(f, e, "</tool_call>");
    if (cut && streams) args(f, f->s + e, f->n - e);
    if (cut && f->announced && !streams) content(f, e, f->n);
    *pos = e;
    if (cut) return END;
    if (!at(f, e, "</tool_call>")) return FAIL;
    *pos = e + 12;
    return f->announced ? CLOSED : NEVER;
}

static outcome ref_object(ref *f, size_t i, size_t *pos) {
    for (int first = 1;; first = 0) {
        *pos = i = past(f, i, WS);
        if (i == f->n) return END;
        if (first && f->s[i] == '}') break;
        if (f->s[i] != '"') return FAIL;
        size_t e = string_end(f, i + 1), key = i + 1, n_key = e - i - 1;
        if (e == f->n) return END;
        *pos = i = past(f, e + 1, WS);
        if (i == f->n) return END;
        if (f->s[i] != ':') return FAIL;
        *pos = i = past(f, i + 1, WS);
        if (i == f->n) return END;
        int is_name = !f->has_name && n_key == 4 && !memcmp(f->s + key, "name", 4);
        int is_args = !f->has_args && n_key == 9 && !memcmp(f->s + key, "arguments", 9);
        if (strchr(",:}]<", f->s[i]) || (is_name && f->s[i] != '"')) return FAIL;
        if (f->s[i] == '"') {
            e = string_end(f, i + 1);
            if (e == f->n) return END;
            *pos = e;
            if (is_name) {
                if (!decode(f->s + i, e + 1 - i, &f->name) || !f->name.len || strlen(f->name.data) != f->name.len)
                    return FAIL;
                f->has_name = 1;
            }
            e++;
        } else {
            int whole, opens = f->s[i] == '{' || f->s[i] == '[';
            if (is_args && opens && f->has_name) announce(f);
            int streams = is_args && f->announced;
            e = value_end(f, i, &whole);
            if (streams) args(f, f->s + i, e - i);
            if (!whole) return ref_broken_value(f, e, streams, pos);
        }
        if (is_args) {
            f->has_args = 1;
            gy_str_clear(&f->kept);
            gy_str_append(&f->kept, f->s + i, e - i);
        }
        if (!f->announced && f->has_name && f->has_args) {
            announce(f);
            ref_kept(f);
        }
        *pos = i = past(f, e, WS);
        if (i == f->n) return END;
        if (f->s[i] == '}') break;
        if (f->o->calls == GY_CHAT_CALLS_TAGGED && f->s[i] == '<') return ref_broken_value(f, i, 0, pos);
        if (f->s[i] != ',') return FAIL;
        i++;
    }
    if (!f->has_name) return FAIL;
    if (!f->announced) {
        announce(f);
        ref_kept(f);
    }
    ++*pos;
    return DONE;
}

static void ref_escaped(ref *f, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        static const char *const names[32] = {
            ['\n'] = "\\n", ['\r'] = "\\r", ['\t'] = "\\t", ['\b'] = "\\b", ['\f'] = "\\f"};
        unsigned char b = (unsigned char)s[i];
        char hex[8];
        snprintf(hex, sizeof hex, "\\u%04x", b);
        if (b == '"' || b == '\\') args(f, "\\", 1);
        if (b >= 32)
            args(f, s + i, 1);
        else
            args(f, names[b] ? names[b] : hex, names[b] ? 2 : 6);
    }
}

/* By the table of tools_text. */
static int is_typed(const ref *f, const char *key) {
    return !strcmp(gy_str_z(&f->name), "f") && strlen(key) == 1 && strchr("iobneark", key[0]);
}

static void ref_value(ref *f, const char *key, size_t from, size_t to) {
    gy_str list = {0};
    gy_json *doc = NULL;
    gy_str_printf(&list, "[");
    gy_str_append(&list, f->s + from, to - from);
    gy_str_puts(&list, "]");
    if (is_typed(f, key) && gy_json_parse(list.data, list.len, NULL, NULL, &doc) == GY_OK &&
        gy_jv_len(gy_json_root(doc)) == 1) {
        while (strchr(WS, f->s[from])) from++;
        while (strchr(WS, f->s[to - 1])) to--;
        args(f, f->s + from, to - from);
    } else {
        args(f, "\"", 1);
        ref_escaped(f, f->s + from, to - from);
        args(f, "\"", 1);
    }
    gy_json_free(doc);
    gy_str_free(&list);
}

/* i: behind "<parameter="; the '>' that ends the name, or where it goes wrong. */
static size_t name_end(const ref *f, size_t i, int *ok) {
    size_t e = i;
    while (e < f->n && f->s[e] != '>' && f->s[e] != '<' && (unsigned char)f->s[e] >= 32) e++;
    *ok = e < f->n && f->s[e] == '>' && e > i;
    return e;
}

static outcome ref_tags(ref *f, size_t i, size_t *pos) {
    int ok, n_param = 0;
    size_t e = name_end(f, i, &ok);
    *pos = e;
    if (!ok) return e == f->n ? END : FAIL;
    gy_str_clear(&f->name);
    gy_str_append(&f->name, f->s + i, e - i);
    announce(f);
    args(f, "{", 1);
    for (i = e + 1;;) {
        *pos = i = past(f, i, WS);
        if (i == f->n) return END;
        if (at(f, i, "</function>") || at(f, i, "</tool_call>")) {
            int is_call = at(f, i, "</tool_call>");
            args(f, "}", 1);
            *pos = i + (is_call ? 12 : 11);
            return is_call ? CLOSED : DONE;
        }
        if (is_cut(f, i, "<parameter=") || is_cut(f, i, "</function>") || is_cut(f, i, "</tool_call>")) {
            content(f, i, f->n);
            return END;
        }
        size_t k = i + 11;
        e = at(f, i, "<parameter=") ? name_end(f, k, &ok) : f->n + 1;
        if (e == f->n) {
            content(f, i, f->n);
            return END;
        }
        if (e > f->n || !ok) {
            args(f, "}", 1);
            return FAIL;
        }
        char key[300];
        snprintf(key, sizeof key, "%.*s", (int)(e - k), f->s + k);
        if (n_param++) args(f, ", ", 2);
        args(f, "\"", 1);
        ref_escaped(f, key, strlen(key));
        args(f, "\": ", 3);
        size_t from = e + 1, to;
        if (at(f, from, "\n")) from++;
        to = find(f, from, "</parameter>");
        if (to == f->n) {
            if (!is_typed(f, key)) args(f, "\"", 1);
            if (is_typed(f, key))
                args(f, f->s + from, to - from);
            else
                ref_escaped(f, f->s + from, to - from);
            return END;
        }
        ref_value(f, key, from, to > from && f->s[to - 1] == '\n' ? to - 1 : to);
        i = to + 12;
    }
}

static void ref_new_call(ref *f) {
    f->announced = f->mute = f->has_name = f->has_args = 0;
    gy_str_clear(&f->name);
    gy_str_clear(&f->kept);
}

static void ref_tagged(ref *f, size_t i) {
    for (;;) {
        size_t m = find(f, i, "<tool_call>"), before = m, pos;
        if (m == f->n) {
            content(f, i, m);
            return;
        }
        while (before > i && f->s[before - 1] == '\n') before--;
        content(f, i, before);
        ref_new_call(f);
        size_t j = past(f, m + 11, WS);
        outcome o = FAIL;
        pos = j;
        if (j == f->n)
            o = END;
        else if (at(f, j, "<function="))
            o = ref_tags(f, j + 10, &pos);
        else if (f->s[j] == '{')
            o = ref_object(f, j + 1, &pos);
        if (o == END) {
            if (!f->announced) content(f, before, f->n);
            return;
        }
        i = pos;
        if ((o == FAIL && !f->announced) || o == NEVER) content(f, before, pos);
        if (o == CLOSED) i = past(f, pos, "\n");
        if (o != DONE) continue;
        i = past(f, pos, WS);
        if (at(f, i, "</tool_call>")) i = past(f, i + 12, "\n");
    }
}

static void ref_bare(ref *f, size_t i) {
    size_t hold = past(f, i, WS), pos;
    int list = hold < f->n && f->s[hold] == '[';
    for (size_t j = list ? past(f, hold + 1, WS) : hold;;) {
        ref_new_call(f);
        outcome o = FAIL;
        pos = j;
        if (j == f->n)
            o = END;
        else if (f->s[j] == '{')
            o = ref_object(f, j + 1, &pos);
        if (o == END || o == FAIL) {
            if (!f->announced) content(f, hold, f->n);
            if (f->announced && o == FAIL) content(f, pos, f->n);
            return;
        }
        j = past(f, pos, WS);
        if (!list || j == f->n || f->s[j] != ',') break;
        hold = j + 1;
        j = past(f, hold, WS);
    }
    size_t j = past(f, pos, WS);
    if (list && j < f->n && f->s[j] == ']') j = past(f, j + 1, "\n");
    content(f, j, f->n);
}

static char *reference(const gy_chat_out_options *o, const char *s, size_t n) {
    ref f = {.o = o, .s = s, .n = n};
    size_t i = 0, j = past(&f, 0, "\n");
    int thinks = o->reasoning && (o->in_reasoning || at(&f, j, "<think>"));
    if (thinks) {
        if (at(&f, j, "<think>")) j = past(&f, j + 7, "\n");
        size_t e = find(&f, j, "</think>"), last = e;
        while (e < n && last > j && s[last - 1] == '\n') last--;
        gy_str_append(&f.r.thoughts, s + j, last - j);
        i = e < n ? past(&f, e + 8, "\n") : n;
    }
    if (o->calls == GY_CHAT_CALLS_TAGGED)
        ref_tagged(&f, i);
    else if (o->calls == GY_CHAT_CALLS_BARE)
        ref_bare(&f, i);
    else
        content(&f, i, n);
    char *text = result_text(&f.r);
    result_free(&f.r);
    gy_str_free(&f.name);
    gy_str_free(&f.kept);
    return text;
}

static void cases_of_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof knowns / sizeof *knowns; i++) {
        const known *k = &knowns[i];
        const gy_chat_out_options o = options_of(k->flags);
        char *got = reference(&o, k->text, strlen(k->text));
        same(got, k->want, k->text, 0);
        gy_mem_free(got);
    }
}

/* ---- many texts ------------------------------------------------------------------------------------------------- */

static const char *const parts[] = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": ",
    "<tool_call>\n<function=f>\n",
    "<function=g>",
    "</function>\n",
    "<parameter=s>\n",
    "<parameter=i>",
    "<parameter=o>\n",
    "\n</parameter>\n",
    "</parameter>",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    "\\u00e9",
    ",",
    ":",
    "\n",
    "\n\n",
    " ",
    "<",
    ">",
    "</",
    "{\"name\":",
    "\"name\": \"f\"",
    "\"arguments\":",
    "\"x\": ",
    "{\"a\": 1}",
    "{\"b\": [1, {\"c\": \"}\"}]}",
    "null",
    "12",
    "\"text\"",
    "hello",
    "\xC3\xA9",
    "\xF0\x9F\x98\x80",
    "}\n</tool_call>",
    "\x01",
    "\t",
    "\"{\\\"q\\\": 2}\"",
    "<tool_call>{\"arguments\": {\"z\": \"</tool_call>\"}, \"name\": \"g\"}</tool_call>"};

static uint64_t draw(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

static size_t make_text(uint64_t *seed, char *to, size_t cap) {
    size_t n = 0;
    for (uint64_t k = draw(seed) % 14; k; k--) {
        const char *p = parts[draw(seed) % (sizeof parts / sizeof *parts)];
        size_t len = strlen(p);
        if (n + len < cap) memcpy(to + n, p, len), n += len;
    }
    for (uint64_t k = draw(seed) % 3; n && !k; k++) { /* a byte goes away */
        size_t i = draw(seed) % n;
        memmove(to + i, to + i + 1, --n - i);
        break;
    }
    to[n] = '\0';
    return n;
}

static void one_text(uint64_t *seed, int with_every_split) {
    static const int flags[] = {R | TAG,       R | IN | TAG, TAG,        TAG | ONE, R | BARE,
                                R | IN | BARE, BARE,         BARE | ONE, R,         R | IN};
    char s[1024];
    size_t n = make_text(seed, s, sizeof s), cuts[8] = {0}, n_cut = draw(seed) % 8;
    const gy_chat_out_options o = options_of(flags[draw(seed) % (sizeof flags / sizeof *flags)]);
    char *want = reference(&o, s, n);
    for (size_t i = 0, last = 0; i < n_cut; i++) cuts[i] = last += draw(seed) % (n - last + 1);
    char *got = scan(&o, s, n, cuts, n_cut);
    same(got, want, s, n_cut ? cuts[0] : 0);
    gy_mem_free(got);
    if (with_every_split) every_split(&o, s, n, want);
    gy_mem_free(want);
}

static void random_texts(void **state) {
    (void)state;
    uint64_t seed = 0x9E3779B97F4A7C15u;
    for (int i = 0; i < 60000; i++) one_text(&seed, i % 20 == 0);
}

/* ---- arguments are valid JSON when they were, names and all ------------------------------------------------------ */

static void json_value(uint64_t *seed, int depth, gy_str *out) {
    static const char *const leaves[] = {"null",
                                         "true",
                                         "-1.5e3",
                                         "\"\"",
                                         "\"</tool_call>\"",
                                         "\"\\\"}]{[\\\\\"",
                                         "\"\\ud83d\\ude00 \xE2\x82\xAC <think>\"",
                                         "0"};
    uint64_t kind = depth ? draw(seed) % 4 : 0;
    if (kind < 2) {
        gy_str_puts(out, leaves[draw(seed) % 8]);
        return;
    }
    gy_str_putc(out, kind == 2 ? '[' : '{');
    for (uint64_t k = draw(seed) % 4, i = 0; i < k; i++) {
        if (i) gy_str_puts(out, draw(seed) % 2 ? "," : " ,\n ");
        if (kind == 3) gy_str_printf(out, "\"k%d\": ", (int)i);
        json_value(seed, depth - 1, out);
    }
    gy_str_putc(out, kind == 2 ? ']' : '}');
}

static void valid_arguments(void **state) {
    (void)state;
    uint64_t seed = 77;
    const gy_chat_out_options o = options_of(TAG);
    for (int i = 0; i < 3000; i++) {
        gy_str text = {0}, want = {0}, arg = {0};
        gy_str_puts(&arg, "{\"v\": ");
        json_value(&seed, 5, &arg);
        gy_str_puts(&arg, "}");
        gy_str_printf(&text, "<tool_call>\n{\"name\": \"f\", \"arguments\": %s}\n</tool_call>", arg.data);
        gy_str_printf(&want, "T[] C[] f:%s", arg.data);
        size_t cut = draw(&seed) % text.len;
        char *got = scan(&o, text.data, text.len, &cut, 1);
        same(got, want.data, text.data, cut);
        gy_mem_free(got);
        gy_str_free(&text);
        gy_str_free(&want);
        gy_str_free(&arg);
    }
}

/* What a parameter's value was is what its JSON says. */
static void valid_parameters(void **state) {
    (void)state;
    uint64_t seed = 78;
    const gy_chat_out_options o = options_of(TAG);
    for (int i = 0; i < 2000; i++) {
        gy_str text = {0}, value = {0};
        for (uint64_t k = draw(&seed) % 6; k; k--)
            gy_str_puts(&value, parts[draw(&seed) % (sizeof parts / sizeof *parts)]);
        if (strstr(gy_str_z(&value), "</parameter>")) gy_str_clear(&value);
        gy_str_printf(&text, "<tool_call>\n<function=f>\n<parameter=s>\n%s\n</parameter>\n</function>\n</tool_call>",
                      gy_str_z(&value));
        size_t cut = draw(&seed) % text.len;
        char *got = scan(&o, text.data, text.len, &cut, 1);
        gy_json *doc = NULL;
        assert_memory_equal(got, "T[] C[] f:", 10);
        assert_int_equal(gy_json_parse(got + 10, strlen(got + 10), NULL, NULL, &doc), GY_OK);
        assert_string_equal(gy_jv_str(gy_jv_get(gy_json_root(doc), "s"), NULL), gy_str_z(&value));
        gy_json_free(doc);
        gy_mem_free(got);
        gy_str_free(&text);
        gy_str_free(&value);
    }
}

/* ---- nothing waits that need not -------------------------------------------------------------------------------- */

static void is_prompt(void **state) {
    (void)state;
    gy_chat_out *c = NULL;
    gy_chat_delta d;
    const gy_chat_out_options o = options_of(R | TAG);
    assert_int_equal(gy_chat_out_create(&o, &c), GY_OK);
#define PUSH(text, thoughts, said, reasons)                                                                            \
    do {                                                                                                               \
        gy_chat_out_push(c, text, strlen(text));                                                                       \
        assert_int_equal(gy_chat_out_take(c, &d), GY_OK);                                                              \
        assert_int_equal(d.n_reasoning, strlen(thoughts));                                                             \
        assert_memory_equal(d.reasoning, thoughts, d.n_reasoning);                                                     \
        assert_int_equal(d.n_content, strlen(said));                                                                   \
        assert_memory_equal(d.content, said, d.n_content);                                                             \
        assert_int_equal(d.is_reasoning, reasons);                                                                     \
    } while (0)
    PUSH("<think>", "", "", 1);
    PUSH("\n", "", "", 1);
    PUSH("I am", "I am", "", 1);
    PUSH(" <", " ", "", 1);
    PUSH("b", "<b", "", 1);
    PUSH("\n</", "", "", 1);
    PUSH("think>\n\n", "", "", 1);
    PUSH("Hi", "", "Hi", 0);
    PUSH(" there.\n", "", " there.", 0);
    PUSH("\n<tool", "", "", 0);
    PUSH("_call>", "", "", 0);
    PUSH("\n{\"name\": \"f\", \"arg", "", "", 0);
    assert_int_equal(d.n_call, 0);
    PUSH("uments\": ", "", "", 0);
    assert_int_equal(d.n_call, 0);
    PUSH("{\"ci", "", "", 0);
    assert_int_equal(d.n_call, 1);
    assert_string_equal(d.calls[0].name, "f");
    assert_int_equal(d.calls[0].n_arguments, 4);
    PUSH("ty\":", "", "", 0);
    assert_int_equal(d.n_call, 1);
    assert_null(d.calls[0].name);
    assert_int_equal(d.calls[0].n_arguments, 4);
    PUSH("1}}\n</tool_call><tool_call><function=g><parameter=s>ab", "", "", 0);
    assert_int_equal(d.n_call, 2);
    assert_int_equal(d.calls[0].index, 0);
    assert_int_equal(d.calls[1].index, 1);
    assert_string_equal(d.calls[1].name, "g");
    PUSH("cd", "", "", 0);
    assert_int_equal(d.n_call, 1);
    assert_memory_equal(d.calls[0].arguments, "cd", 2);
    gy_chat_out_destroy(c);
}

/* ---- cost and memory -------------------------------------------------------------------------------------------- */

static int64_t time_of(const gy_chat_out_options *o, const char *part, size_t n) {
    gy_chat_out *c = NULL;
    gy_chat_delta d;
    assert_int_equal(gy_chat_out_create(o, &c), GY_OK);
    int64_t t = gy_clock_ns();
    for (size_t i = 0; i < n; i += strlen(part)) {
        gy_chat_out_push(c, part, strlen(part));
        assert_int_equal(gy_chat_out_take(c, &d), GY_OK);
    }
    gy_chat_out_finish(c);
    assert_int_equal(gy_chat_out_take(c, &d), GY_OK);
    gy_chat_out_destroy(c);
    return gy_clock_ns() - t;
}

/* Texts that made others' parsers go back again and again: 2 MB of each. Quadratic work would take hours. */
static void linear(void **state) {
    (void)state;
    static const char *const bad[] = {"<",
                                      "\n",
                                      "<tool_call>",
                                      "</think",
                                      "<tool_call>{",
                                      "<tool_call>{\"a\":\"<tool_call>",
                                      "{\"name\":",
                                      "[",
                                      "\"",
                                      "\\",
                                      "<tool_call><function=f><parameter=o>",
                                      "<tool_call>{\"arguments\":{\"",
                                      "</parameter",
                                      "\n<tool_cal",
                                      "<think>\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (int f = 0; f < 4; f++) {
            const gy_chat_out_options o = options_of(f == 0   ? R | TAG
                                                     : f == 1 ? R | IN | TAG
                                                     : f == 2 ? BARE
                                                              : R | BARE);
            assert_true(time_of(&o, bad[i], 2000000) < 20000000000);
        }
    }
}

/* A call that is not known to be one may wait for 256 KiB, a typed value likewise. */
static void bounds(void **state) {
    (void)state;
    const gy_chat_out_options o = options_of(TAG);
    gy_str text = {0}, want = {0};
    gy_str_puts(&text, "<tool_call>{\"arguments\": {\"a\": \"");
    while (text.len < GY_CHAT_OUT_MAX_HOLD + 1000) gy_str_puts(&text, "0123456789");
    gy_str_puts(&text, "\"}, \"name\": \"f\"}</tool_call>");
    gy_str_printf(&want, "T[] C[%s]", text.data);
    size_t cut = GY_CHAT_OUT_MAX_HOLD;
    char *got = scan(&o, text.data, text.len, &cut, 1);
    assert_string_equal(got, want.data);
    gy_mem_free(got);
    gy_str_clear(&text);
    gy_str_clear(&want);
    gy_str_puts(&text, "<tool_call><function=f><parameter=o>[");
    gy_str_puts(&want, "T[] C[] f:{\"o\": \"[");
    for (int i = 0; i < GY_CHAT_OUT_MAX_HOLD / 2; i++) {
        gy_str_puts(&text, "\"x\",");
        gy_str_puts(&want, "\\\"x\\\",");
    }
    gy_str_puts(&text, "1]</parameter></function></tool_call>");
    gy_str_puts(&want, "1]\"}");
    got = scan(&o, text.data, text.len, &cut, 1);
    assert_string_equal(got, want.data);
    gy_mem_free(got);
    gy_str_free(&text);
    gy_str_free(&want);
}

static gy_status try_all(void) {
    const gy_chat_out_options o = options_of(R | TAG);
    gy_chat_out *c = NULL;
    gy_chat_delta d;
    gy_str s = {0};
    gy_status st = gy_chat_out_create(&o, &c);
    if (st < 0) return st;
    for (size_t i = 0; i < sizeof knowns / sizeof *knowns && st == GY_OK; i++) {
        gy_chat_out_push(c, knowns[i].text, strlen(knowns[i].text));
        if (i % 4 == 0) st = gy_chat_out_take(c, &d);
    }
    gy_chat_out_finish(c);
    if (st == GY_OK) st = gy_chat_out_take(c, &d);
    gy_chat_out_destroy(c);
    gy_str_free(&s);
    return st;
}

static void memory_runs_out(void **state) {
    (void)state;
    int n = 0;
    for (gy_status st = GY_E_NOMEM; st != GY_OK && n < 10000; n++) {
        gy_mem_fail_after(n + 1);
        st = try_all();
        gy_mem_fail_after(0);
        assert_true(st == GY_OK || st == GY_E_NOMEM);
    }
    assert_in_range(n, 10, 9999);
}

/* Plain tokens cost nothing but time. */
static void allocates_nothing(void **state) {
    (void)state;
    const gy_chat_out_options o = options_of(R | TAG);
    gy_chat_out *c = NULL;
    gy_chat_delta d;
    assert_int_equal(gy_chat_out_create(&o, &c), GY_OK);
    gy_mem_guard_begin();
    for (int i = 0; i < 1000; i++) {
        gy_chat_out_push(c, i == 0 ? "<think>" : i == 500 ? "</think>" : " token", i == 0 ? 7 : i == 500 ? 8 : 6);
        assert_int_equal(gy_chat_out_take(c, &d), GY_OK);
    }
    gy_mem_guard_end();
    gy_chat_out_destroy(c);
}

/* Printed, not judged. */
static void cost_of_a_token(void **state) {
    (void)state;
    const gy_chat_out_options text = options_of(TAG), think = options_of(R | IN);
    int64_t a = time_of(&text, " word", 5000000), b = time_of(&think, " word", 5000000);
    printf("ns per token of 5 bytes: content %.0f, thoughts %.0f\n", (double)a / 1e6, (double)b / 1e6);
}

static int open_tools(void **state) {
    (void)state;
    return gy_json_parse(tools_text, strlen(tools_text), NULL, NULL, &tools_doc) == GY_OK ? 0 : -1;
}

static int close_tools(void **state) {
    (void)state;
    gy_json_free(tools_doc);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases),
        cmocka_unit_test(cases_of_reference),
        cmocka_unit_test(random_texts),
        cmocka_unit_test(valid_arguments),
        cmocka_unit_test(valid_parameters),
        cmocka_unit_test(is_prompt),
        cmocka_unit_test(linear),
        cmocka_unit_test(bounds),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(allocates_nothing),
        cmocka_unit_test(cost_of_a_token),
    };
    return cmocka_run_group_tests(tests, open_tools, close_tools);
}
