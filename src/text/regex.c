/* Running patterns: PCRE2 with JIT where the system allows it, its interpreter otherwise. The text is
 * validated once, in gy_tok_encode, so every call passes PCRE2_NO_UTF_CHECK: checking it again for each match would be
 * quadratic. Rewriting from Oniguruma's syntax is regex_translate.c.
 */
#include "text/regex.h"

#include <pcre2.h>

/* Limits on one match. A pre-tokenizer's match over a megabyte of white space takes some millions of steps. */
enum { MATCH_LIMIT = 1 << 26, HEAP_LIMIT_KIB = 64 << 10, JIT_STACK_MAX = 4 << 20, MAX_PATTERN = 64 << 10 };

struct gy_regex {
    pcre2_code *code;
    int has_jit;
};

struct gy_regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;
};

static void *pcre_alloc(size_t n, void *arg) {
    (void)arg;
    return gy_mem_alloc(GY_MEM_TEXT, n, 1);
}

static void pcre_free(void *p, void *arg) {
    (void)arg;
    gy_mem_free(p);
}

static gy_status regex_compile(gy_regex *r, const gy_str *pattern, gy_err *err) {
    pcre2_general_context *mem = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *ctx = mem ? pcre2_compile_context_create(mem) : NULL;
    int code = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE at = 0;
    if (ctx) {
        pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
        pcre2_set_bsr(ctx, PCRE2_BSR_UNICODE);
        /* MULTILINE: in Ruby's syntax ^ and $ are always about lines. */
        uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
        r->code = pcre2_compile((PCRE2_SPTR)gy_str_z(pattern), pattern->len, options, &code, &at, ctx);
    }
    pcre2_compile_context_free(ctx);
    pcre2_general_context_free(mem);
    if (r->code) return GY_OK;
    if (code == PCRE2_ERROR_NOMEMORY) return gy_err_set(err, GY_E_NOMEM, "no memory for a pattern");
    PCRE2_UCHAR text[160] = "";
    pcre2_get_error_message(code, text, sizeof(text));
    return gy_err_set(err, GY_E_UNSUPPORTED, "pattern is not usable: %s (at byte %zu of its PCRE2 form \"%.200s\")",
                      (const char *)text, (size_t)at, gy_str_z(pattern));
}

gy_status gy_regex_create(const char *pattern, size_t len, gy_err *err, gy_regex **out) {
    if (len > MAX_PATTERN)
        return gy_err_set(err, GY_E_LIMIT, "pattern has %zu bytes, at most %d are read", len, MAX_PATTERN);
    gy_str pcre = {0};
    gy_regex *r = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*r));
    gy_status st = r ? GY_OK : gy_err_set(err, GY_E_NOMEM, "no memory for a pattern");
    if (st == GY_OK) st = gy_regex_translate(pattern, len, err, &pcre);
    if (st == GY_OK) st = regex_compile(r, &pcre, err);
    gy_str_free(&pcre);
    if (st < 0) {
        gy_regex_destroy(r);
        return st;
    }
    r->has_jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    *out = r;
    return GY_OK;
}

void gy_regex_destroy(gy_regex *r) {
    if (!r) return;
    pcre2_code_free(r->code);
    gy_mem_free(r);
}

gy_status gy_regex_scratch_create(gy_regex_scratch **out) {
    gy_regex_scratch *s = gy_mem_alloc(GY_MEM_TEXT, 1, sizeof(*s));
    if (!s) return GY_E_NOMEM;
    s->data = pcre2_match_data_create(1, NULL); /* only the whole match is asked for */
    s->ctx = pcre2_match_context_create(NULL);
    if (!s->data || !s->ctx) {
        gy_regex_scratch_destroy(s);
        return GY_E_NOMEM;
    }
    s->stack = pcre2_jit_stack_create(64 << 10, JIT_STACK_MAX, NULL); /* NULL where JIT is not allowed */
    if (s->stack) pcre2_jit_stack_assign(s->ctx, NULL, s->stack);
    pcre2_set_match_limit(s->ctx, MATCH_LIMIT);
    pcre2_set_heap_limit(s->ctx, HEAP_LIMIT_KIB);
    *out = s;
    return GY_OK;
}

void gy_regex_scratch_destroy(gy_regex_scratch *s) {
    if (!s) return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->ctx);
    pcre2_jit_stack_free(s->stack);
    gy_mem_free(s);
}

static int regex_match(const gy_regex *r, gy_regex_scratch *s, const char *text, size_t len, size_t from) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (r->has_jit) rc = pcre2_jit_match(r->code, (PCRE2_SPTR)text, len, from, 0, s->data, s->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->data, s->ctx);
    return rc;
}

static size_t char_len(const char *text, size_t len, size_t at) {
    size_t n = 1;
    while (at + n < len && ((unsigned char)text[at + n] & 0xC0) == 0x80) n++;
    return n;
}

gy_status gy_regex_next(const gy_regex *r, gy_regex_scratch *s, const char *text, size_t len, gy_regex_walk *walk,
                        int64_t *steps, gy_err *err, size_t *start_out, size_t *end_out) {
    while (walk->from <= len) {
        int rc = regex_match(r, s, text, len, walk->from);
        if (rc == PCRE2_ERROR_NOMATCH) {
            *steps += (int64_t)(len - walk->from) + 1;
            walk->from = len + 1;
            break;
        }
        if (rc == PCRE2_ERROR_NOMEMORY) return gy_err_set(err, GY_E_NOMEM, "no memory while matching a pattern");
        if (rc < 0)
            return gy_err_set(err, GY_E_LIMIT,
                              "a pattern of the tokenizer takes too many steps on this text (PCRE2 error %d)", rc);
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->data);
        size_t start = at[0], end = at[1];
        *steps += (int64_t)(end - walk->from) + 1;
        if (start == end && start == walk->last_end) {
            walk->from += char_len(text, len, walk->from);
            continue;
        }
        walk->from = walk->last_end = end;
        *start_out = start;
        *end_out = end;
        return GY_OK;
    }
    return GY_DONE;
}
